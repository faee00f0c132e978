"""Secrets with their name on an earlier line: YAML, Kubernetes, `env_vars` over several lines, netrc."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from raydoctor.model.patterns import pattern
from raydoctor.redact import decode
from raydoctor.redact.assigned import GAP, QUOTE, VALUE, value_span
from raydoctor.redact.budget import JudgingBudget
from raydoctor.redact.names import (
    holds,
    is_plain,
    kind_of,
    looks_chosen,
    looks_random,
    looks_secret,
)
from raydoctor.redact.span import PLACEHOLDER, Span

_AFTER_MACHINE = 8
"""Lines of a netrc entry."""
_AFTER_KIND = 60
"""Lines of a Kubernetes object after its `kind`."""

_PREFIX = pattern(rb"(?:\([^()\n]{0,120}pid=\d{1,9}[^()\n]{0,80}\) ?)?")
"""The prefix of a worker's lines in a driver's output."""
_NAME_ALONE = pattern(
    rb"(?:^|(?<=[\s'\"=]))[\"']?(?P<name>[\w.-]{1,200})[\"']?\s*:\s*(?P<scalar>[|>][+-]?\d?)?\s*(?:#[^\"']*)?$"
)
_INDENT = pattern(rb"[ \t]*(?:- )*")
_LONGEST_NAME = 250
_ENTRY = pattern(rb"[ \t]*(?:- )?[\"']?[\w./-]{1,253}[\"']?\s*:\s+(?P<q>[\"']?)(?P<s>\S.*?)(?P=q)$")
_ITEM = pattern(rb"[ \t]*- +(?P<q>[\"']?)(?P<s>\S.*?)(?P=q)$")
_WHOLE = pattern(rb"[ \t]*(?P<q>[\"']?)(?P<s>\S.*?)(?P=q)$")
"""These three are for lines without blanks at the end."""
_ITEM_HEAD = (
    rb"(?i)"
    + GAP
    + rb"(?:(?:[^\n]*[\s'\"=])?- )?"
    + GAP
    + rb"(?:\{"
    + GAP
    + rb")?(?:"
    + QUOTE
    + rb")?"
)
_IS = QUOTE + rb"?\s*[:=]\s*"
_NAMED = pattern(
    _ITEM_HEAD + rb"(?:name|key)" + _IS + rb"(?:" + QUOTE + rb")?(?P<name>[\w.-]{1,200})"
    rb"(?![\w.-]|" + QUOTE + rb"?\s*[:=])"
)  # fmt: skip
_VALUED = pattern(_ITEM_HEAD + rb"value" + _IS + VALUE)
_KIND = pattern(
    rb"[ \t]*(?:- )?" + QUOTE + rb"?kind" + QUOTE + rb"?\s*:\s*" + QUOTE + rb"?Secret\b"
)
_MACHINE = pattern(rb"(?:\s*|.*[\s'\"=])machine\s+\S+|\s*default\s*$|\s*login\s+\S+\s*$")
_PASSWORD = pattern(rb"\s*(?:password|passwd|account)\s+(?P<s>(?!<secret:)[^\s\"']+)")
_MAPPING = pattern(rb"(?P<what>env_vars|stringData|data)" + QUOTE + rb"?\s*[=:]\s*\{")
_MAPPING_PAIR = pattern(
    rb"[\s,]*" + QUOTE + rb"[^\"'\\]*" + QUOTE + rb"\s*:\s*"
    rb"(?:(?P<vq>" + QUOTE + rb")(?P<quoted>.*?)(?:(?<!\\)(?P=vq)|$)|(?P<bare>[^\s,}\"']+))"
)
_NOTHING_MORE = pattern(rb"[ \t\r,]*$")
_SECRET_OBJECT = pattern(rb"kind" + QUOTE + rb"?\s*[=:]\s*" + QUOTE + rb"?Secret\b")


_LAST = frozenset((b":", b"|", b">", b"-", b"+", *(b"%d" % n for n in range(1, 10))))
"""Last characters of a line that has its value on the next line."""


class State:
    """Context that earlier lines provide for the next line."""

    __slots__ = (
        "budget",
        "certain",
        "column",
        "key_lines",
        "kind",
        "machine",
        "mapping",
        "mode",
        "named",
        "objects",
    )

    def __init__(self, budget: JudgingBudget) -> None:
        self.budget = budget
        self.key_lines = 0
        """How many more lines may belong to an unfinished private key."""
        self.named = ""
        """The kind of secret that the next line may contain (`- name: HF_TOKEN`)."""
        self.certain = False
        self.mode = ""
        """How lines that are indented deeper than `column` hold secrets: `scalar`, `items`, `list`, `values`,
        `coded`."""
        self.column = 0
        self.kind = ""
        self.mapping = False
        """Whether a mapping of `env_vars` is open."""
        self.machine = 0
        """How many more lines may belong to a netrc entry."""
        self.objects = 0
        """How many more lines may belong to a Kubernetes Secret."""

    def __bool__(self) -> bool:
        return bool(
            self.key_lines
            or self.named
            or self.mode
            or self.mapping
            or self.machine
            or self.objects
        )


def _body(line: bytes) -> int:
    """Offset of a line's text after a driver's prefix."""
    match = _PREFIX.match(line)
    return match.end() if match else 0


def spans(line: bytes, state: State) -> Iterator[Span]:
    """Secrets in this line by the context of earlier ones; updates the context for the next."""
    begin = _body(line)
    body = line[begin:]
    for span in _body_spans(body, state):
        yield span.moved(begin)


def note(line: bytes, state: State) -> None:
    """Update the context by a line whose own secrets do not matter, as it is replaced."""
    body = line[_body(line) :]
    if state.mode and (stripped := body.strip()):
        _end_block(body, stripped, state)
    if state.named:
        for _ in _next_value(body, state):
            pass
    state.machine = max(0, state.machine - 1)
    state.objects = max(0, state.objects - 1)
    if state.mapping or b"{" in body:
        for _ in _mappings(body, state):
            pass
    if not state.mode:
        _begin(body, state)


def _body_spans(body: bytes, state: State) -> Iterator[Span]:
    if state.mode:
        yield from _inner_spans(body, state)
    if state.named:
        yield from _next_value(body, state)
    if state.machine:
        state.machine -= 1
        if (match := _PASSWORD.match(body)) and not is_plain(match["s"], "password"):
            yield Span(*match.span("s"), "password")
    elif (match := _PASSWORD.match(body)) and (
        looks_random(match["s"]) if body[match.end() :].strip() else looks_chosen(match["s"])
    ):
        yield Span(*match.span("s"), "password")
    state.objects = max(0, state.objects - 1)
    yield from _mappings(body, state)
    if not state.mode:
        _begin(body, state)


def _begin(body: bytes, state: State) -> None:
    """Update the context by what this line begins."""
    if body.endswith(b"default") or b"machine" in body or b"login" in body:
        state.machine = _AFTER_MACHINE if _MACHINE.match(body) else state.machine
    if b":" not in body:
        return
    if b"Secret" in body and _KIND.match(body):
        state.objects = _AFTER_KIND
    if (b"ame" in body or b"ey" in body) and (match := _NAMED.match(body)):
        state.named, state.certain = kind_of(match["name"].decode("ascii", "replace"))
    last = body.rstrip()[-1:]
    if last in _LAST or b"#" in body:
        match = _NAME_ALONE.search(body, max(0, len(body) - _LONGEST_NAME))
        indent = _INDENT.match(body)
        if match and indent:
            name = match["name"].decode("ascii", "replace")
            # After other text (`args = 'token: |`), the block has the indentation of its lines.
            state.column = len(indent[0].expandtabs()) if match.start() <= indent.end() else 0
            state.mode, state.kind = _mode(name, match["scalar"] is not None, state.objects > 0)


def _mode(name: str, is_scalar: bool, in_secret: bool) -> tuple[str, str]:
    if name in ("env_vars", "stringData"):
        return "values", "env" if name == "env_vars" else "secret"
    if name in ("data", "binaryData"):
        return ("values" if in_secret else "coded"), "secret"
    kind, certain = kind_of(name)
    if not kind:
        return "", ""
    if is_scalar:
        return ("scalar" if certain else "items"), kind
    return ("items" if certain else "list"), kind


def _inner_spans(body: bytes, state: State) -> Iterator[Span]:
    """Secrets of this line in a block that an earlier line began; a less indented line ends the block."""
    stripped = body.strip()
    if not stripped or _end_block(body, stripped, state):
        return
    shape = {"scalar": _WHOLE, "items": _ITEM, "list": _ITEM}.get(state.mode, _ENTRY)
    text = body.rstrip()
    match = shape.match(text)
    if not match and state.mode == "items":
        match = _WHOLE.match(text) if b" " not in stripped else _ENTRY.match(text)
    if match and not PLACEHOLDER.match(match["s"]) and _is_inner(match["s"], state.mode):
        yield Span(*match.span("s"), state.kind)


def _end_block(body: bytes, stripped: bytes, state: State) -> bool:
    """Whether this line is not in the block that an earlier line began, which it then ends."""
    column = len(body[: len(body) - len(body.lstrip())].expandtabs())
    is_item = stripped.startswith(b"- ") and column >= state.column
    if column <= state.column and not (is_item and state.mode in ("items", "list")):
        state.mode = ""
        return True
    return False


def _is_inner(value: bytes, mode: str) -> bool:
    if mode in ("scalar", "values"):
        return not PLACEHOLDER.fullmatch(value)
    if mode == "coded":
        return is_coded(value)
    return looks_chosen(value) or looks_secret(value)


def is_coded(value: bytes) -> bool:
    """Whether a value is base64 of a text, or of binary data that is too long to be a word."""
    if len(value) < 8 or len(value) % 4 or not re.fullmatch(rb"[A-Za-z0-9+/]+={0,2}", value):
        return False
    try:
        decoded = base64.b64decode(value)
    except (binascii.Error, ValueError):
        return False
    return not decoded.translate(None, bytes(range(0x20, 0x7F)) + b"\n\r\t") or (
        len(value) >= 24 and looks_secret(value.rstrip(b"="))
    )


def _next_value(body: bytes, state: State) -> Iterator[Span]:
    match = _VALUED.match(body)
    if match:
        start, end = value_span(match)
        if holds(body[start:end], state.certain):
            yield Span(start, end, state.named)
    if match or not body.strip(b" \t\r{},"):
        state.named = "" if match else state.named
        return
    state.named = ""


def value_before(line: bytes, name: str) -> Iterator[Span]:
    """The value in `- value: X` if the next line is `name: API_TOKEN`."""
    kind, certain = kind_of(name)
    seen = decode.seen(line)
    text = seen.data if seen else line
    if kind and (match := _VALUED.match(text, max(_body(text), text.rfind(b"\0") + 1))):
        start, end = value_span(match)
        if holds(text[start:end], certain):
            span = Span(start, end, kind)
            yield seen.original(span) if seen else span


def note_machine(before: bytes, state: State) -> None:
    """Record that the previous line belongs to a netrc entry."""
    if _MACHINE.match(before, _body(before)):
        state.machine = _AFTER_MACHINE


def name_alone(line: bytes) -> str:
    """The name in a line such as Kubernetes' `name: API_TOKEN`; else empty."""
    seen = decode.seen(line)
    text = seen.data if seen else line
    match = _NAMED.match(text, _body(text))
    return match["name"].decode("ascii", "replace") if match else ""


def is_half(line: bytes) -> bool:
    """Whether this line must be judged together with the next one."""
    begin = _body(line)
    is_value = b"alue" in line and bool(_VALUED.match(line, begin))
    return is_value or bool(_MACHINE.match(line, begin))


# ---------------------------------------------------------------- mappings in braces


def _mappings(body: bytes, state: State) -> Iterator[Span]:
    """`env_vars` and the data of a Secret, on one or several lines."""
    if state.mapping:
        pairs, end = _pairs(body, 0)
        yield from pairs
        state.mapping = body.find(b"}", end) < 0
    if b"env_vars" not in body and b"ata" not in body:
        return
    is_secret = state.objects > 0 or bool(_SECRET_OBJECT.search(body))
    end = 0
    for match in _MAPPING.finditer(body):
        if match.start() < end or (match["what"] == b"data" and not is_secret):
            continue
        pairs, end = _pairs(body, match.end())
        yield from pairs
        if _NOTHING_MORE.match(body, end):
            state.mapping = True


def _pairs(line: bytes, at: int) -> tuple[list[Span], int]:
    """Every value of the flat mapping that begins at `at`, and where it ends."""
    found = []
    while match := _MAPPING_PAIR.match(line, at):
        start, end = match.span("bare") if match["bare"] is not None else match.span("quoted")
        if start < end:
            found.append(Span(start, end, "env"))
        at = match.end()
    return found, at
