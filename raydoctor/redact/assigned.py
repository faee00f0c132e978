"""Values assigned to the name of a secret: `token=X`, `"password": "X"`, `--api-key X`, name-value pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from raydoctor.model.patterns import pattern
from raydoctor.redact.names import (
    PROSE,
    holds,
    is_plain,
    kind_of,
    looks_chosen,
    looks_random,
    looks_secret,
)
from raydoctor.redact.span import HELD, PLACEHOLDER, PLACEHOLDER_BEFORE, Span

QUOTE = rb"\\{0,64}[\"']"
"""A quote, escaped as often as texts inside texts need; unlimited backslashes would take quadratic time."""
GAP = rb"\s*(?!\s)"
"""Blanks that a pattern gives back at once: two adjacent gaps would share them in every possible way."""
_OPEN = rb"[^\s\"'`,;&|)\]}<>\0\\]"
_BARE = (
    # A value without quotes ends at a blank or a closing character, unless more of the value follows: neither
    # the end nor the next name.
    _OPEN + rb"(?:" + _OPEN + rb"|[<>]|\\(?![nrtx0u\"'\\])"
    rb"|[,;&|)\]}\"'](?![\w.-]+\\*[\"']?\s*[=:])(?=" + _OPEN + rb"))*"
)
_SCHEME = rb"(?:(?i:bearer|basic|token|apikey|digest|negotiate)(?:\s|%20){1,8})?"
VALUE = (
    rb"(?:[bBrRuUfF]{0,2}(?P<vq>'{3}|\"{3}|" + QUOTE + rb")" + _SCHEME + rb"(?P<quoted>.*?)"
    rb"(?:(?<!\\)(?P=vq)|$)|" + _SCHEME + rb"(?P<bare>" + HELD + rb"|" + _BARE + rb"))"
)
_NAME_OF = pattern(rb"[\w-][\w.-]{0,199}(?![\w.-])")
_ASSIGNED = pattern(
    rb"(?P<name>[\w-][\w.-]{0,199})(?![\w.-])(?P<nq>" + QUOTE + rb")?(?:"
    rb"\]?\s*(?P<sep>:\s*(?:str|bytes|Optional\[str\]|str \| None|SecretStr)\s*=|:=|=>|-{1,2}>|!?={1,3}|:)\s*"
    rb"|(?P<encoded>%3[DdAa])"
    rb"|(?P<pair>\s*,\s*)(?=[bru]?" + QUOTE + rb")"
    rb"|(?P<blank>\s+)(?!-))" + VALUE
)
_PAIR = pattern(
    rb"(?i)(?<![\w-])(?:name|key)" + QUOTE + rb"?\s*[:=]\s*(?:" + QUOTE + rb")?(?P<name>[\w.-]{1,200})"
    rb"(?:" + QUOTE + rb")?" + GAP + rb"(?:," + GAP + rb")?(?:" + QUOTE + rb")?"
    rb"value" + QUOTE + rb"?\s*[:=]\s*" + VALUE
)  # fmt: skip
_VALUED = pattern(rb"(?i)(?<![\w-])value" + QUOTE + rb"?\s*[:=]\s*" + VALUE)
_NAMED_AFTER = pattern(
    rb"(?i)\s*,\s*(?:" + QUOTE + rb")?"
    rb"(?:name|key)" + QUOTE + rb"?\s*[:=]\s*(?:" + QUOTE + rb")?(?P<name>[\w.-]{1,200})"
)
_KEY_AFTER = pattern(rb"\s*:")
_COOKIE = pattern(
    rb"(?i)(?<![\w-])(?:set-)?cookies?" + QUOTE + rb"?\s*[:=]\s*(?:" + QUOTE + rb")?"
    rb"(?P<s>[^\s\"'\0<{=]+=[^\"'\0\r\\]+)"
)


_PARTS = (
    *b"token secret pass pw psk credential key auth cookie sig bearer pat jwt dsn sas".split(),
    *b"string connstr mnemonic sessionid sessid connect.sid saml verifier salt otp cred".split(),
)
"""Every name of a secret contains one of these."""
_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_NAME_RUN = pattern(rb"[\w.-]+")


def _names(line: bytes, lower: bytes) -> Iterator[int]:
    """Offsets of names that may hold a secret, in order."""
    at = sorted(hit for part in _PARTS if part in lower for hit in _hits(lower, part))
    end = 0
    for hit in at:
        if hit < end:
            continue
        begin = hit
        while begin > end and line[begin - 1] in _NAME:
            begin -= 1
        run = _NAME_RUN.match(line, begin)
        end = run.end() if run else hit + 1
        yield begin


def _hits(lower: bytes, part: bytes) -> Iterator[int]:
    at = lower.find(part)
    while at >= 0:
        yield at
        at = lower.find(part, at + len(part))


def value_span(match: re.Match[bytes]) -> tuple[int, int]:
    """The value's offsets in a match of `VALUE`."""
    return match.span("bare") if match["bare"] is not None else match.span("quoted")


_NEAR = 4096
"""Characters from a name on in which its value normally ends."""
_MOST = 2
"""Times that a line may be read for longer values. A line of many of them would take quadratic time: after
that, its rest counts as one value."""


def spans(line: bytes) -> Iterator[Span]:
    """Values of names of secrets."""
    lower = line.lower()
    at = spent = 0
    for begin in _names(line, lower):
        if begin < at or not (named := _NAME_OF.match(line, begin)):
            continue
        name = named[0].decode("ascii", "replace")
        kind, certain = kind_of(name)
        if held := PLACEHOLDER.match(line, begin - 1):
            at = held.end()
            continue
        if not kind or not (match := _ASSIGNED.match(line, begin, begin + _NEAR)):
            continue
        if match.end() == begin + _NEAR:
            if spent > _MOST * len(line):
                yield Span(value_span(match)[0], len(line), kind)
                break
            match = _ASSIGNED.match(line, begin) or match
            spent += match.end() - begin
        if name.startswith("-") and PLACEHOLDER_BEFORE.search(line[: match.start()][-60:]):
            at = match.end("name")  # it directly follows a placeholder: not an option
            continue
        # A value that is not a secret may contain the next name: `config="token=X"`, `x: token: X`.
        at = match.end("name") + 1
        if _is_assigned(match, line, name, certain):
            start, end = value_span(match)
            yield Span(start, end, kind)
            at = max(at, end)
    if b"value" in lower:
        yield from _pair_spans(line)
    if b"cookie" in lower:
        yield from _cookie_spans(line)


def _pair_spans(line: bytes) -> Iterator[Span]:
    """The value in `{"name": "HF_TOKEN", "value": "X"}`, in either order."""
    for named in _PAIR.finditer(line):
        yield from _of_pair(line, named["name"], value_span(named))
    at = spent = 0
    while valued := _VALUED.search(line, at):
        value = value_span(valued)
        if named_after := _NAMED_AFTER.match(line, valued.end()):
            yield from _of_pair(line, named_after["name"], value)
        spent += value[1] - value[0]
        # The value may contain a pair, but each may be read only a few times.
        at = value[0] if spent <= _MOST * len(line) else valued.end()


def _of_pair(line: bytes, name: bytes, value: tuple[int, int]) -> Iterator[Span]:
    kind, certain = kind_of(name.decode("ascii", "replace"))
    if kind and holds(line[slice(*value)], certain):
        yield Span(*value, kind)


def _cookie_spans(line: bytes) -> Iterator[Span]:
    """The whole content of a cookie: any part may be the session's secret."""
    for match in _COOKIE.finditer(line):
        if b"<secret:" not in match["s"]:
            yield Span(*match.span("s"), "cookie")


def _is_assigned(match: re.Match[bytes], line: bytes, name: str, certain: bool) -> bool:
    """Whether name, separator and value together show that the value is a secret."""
    start, end = value_span(match)
    value = line[start:end]
    bare = match["bare"] is not None
    if is_plain(value, name, bare):
        return False
    if match["blank"] is not None and not _is_after_blank(match, line, name, certain):
        return False
    if match["pair"] is not None and (match["nq"] is None or _KEY_AFTER.match(line, match.end())):
        return False  # in `"name": "X_TOKEN", "value": …`, the second word is a key
    if not certain:
        return is_likely(name, value)
    if bare and match["sep"] == b":" and match["nq"] is None:
        return _is_said(match, line, name, value)
    return True


def _is_after_blank(match: re.Match[bytes], line: bytes, name: str, certain: bool) -> bool:
    """Whether the word after a name is its value: an option's, or one that does not occur in prose."""
    value = line[slice(*value_span(match))]
    if value.lower() in PROSE:
        return False
    if name.startswith("-") or match["nq"] is not None:
        return True
    if not certain or (name == "token" and line[: match.start()].lower().endswith(b" id ")):
        return False
    ends_line = name.isupper() and not line[match.end() :].strip()
    return looks_random(value.rstrip(b".,;:")) or (ends_line and looks_chosen(value))


def is_likely(name: str, value: bytes) -> bool:
    """Whether a value is a secret if its name alone does not decide it."""
    lower = name.lower()
    return (
        looks_secret(value)
        or (lower.endswith(("sig", "signature", "sessid", "sessionid", ".sid")) and len(value) > 15)
        or (lower.endswith("pass") and looks_chosen(value))
    )


def _is_said(match: re.Match[bytes], line: bytes, name: str, value: bytes) -> bool:
    """Whether `token: word` without quotes holds a secret: YAML, a header, or a word that is not prose."""
    before = line[: match.start()]
    if name.lower() == "token" and before.endswith((b" ID ", b" id ")):
        return False
    if name.lower().endswith("secret"):
        value = value.replace(b"-", b"")  # the name of a Kubernetes Secret
    is_word = value.isalpha() and (value[1:].islower() or value.isupper()) and len(value) < 20
    if not is_word or name.lower().endswith("authorization"):
        return True
    alone = not line[match.end() :].strip(b" \t\r,#")
    return alone and not before.strip(b" \t-{")
