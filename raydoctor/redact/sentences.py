"""Secrets in prose: "the password is X", "using token X", "Incorrect API key provided: X"."""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.model.patterns import pattern
from raydoctor.redact.names import PROSE, is_plain, looks_chosen, looks_random
from raydoctor.redact.span import Span

_SUBJECTS = ((b"pass", "password"), (b"pw", "password"), (b"secret", "secret"), (b"token", "token"),
             (b"credential", "credential"), (b"key", "key"))  # fmt: skip
_ITS_KIND = pattern(
    rb"(?i)(?:api|access|secret|license|private|auth|account|signing|unseal|encryption|decryption)[ _-]?$"
)
"""Text before `key` in a sentence about a secret, not about the key of a table."""
_SUBJECT = (
    rb"(?i)(?:pass(?:word|wd|phrase|code)?|pwd?|secret|token|credential|key)s?(?: id)?[*_`]{0,2}(?:\\*[\"'])?"
    rb"(?:\s+(?:for|of)\s+[\w@.'\"-]{1,80})?"
)
_WORD = rb"(?:\\*[\"'`])?(?P<s>[^\s<\"'`\\][^\s\"'`\\]*)"
_VERB = (
    rb"(?:\s+(?:now\s+)?(?:is|was|are|provided|used|will be"
    rb"|(?:(?:is|was|has been|have been)\s+)?(?:re)?(?:set|changed)\s+(?:to|as))(?:\s+now)?\s*(?::\s*)?"
    rb"|\s+=\s+)"
)
_SAID = pattern(_SUBJECT + _VERB + _WORD)
_QUOTED = pattern(_SUBJECT + _VERB + rb"\\*(?P<q>[\"'`])(?P<s>[^\"'`\\\n]{4,80})\\*(?P=q)")
_GIVEN = pattern(_SUBJECT + rb"(?:\s*:\s*|\s+)" + _WORD)
_BEFORE = pattern(
    rb"(?i)\b(?:using|with|use|and|by|got|sent|your|new|the|root|admin|default|initial|temporary|correct|incorrect)"
    rb"\s+(?:the\s+)?(?:api|access|secret|auth|private)?[ _-]?$"
)
_ASKED = pattern(_SUBJECT + rb"[^:=\n]{1,80}:\s+" + _WORD)
"""A prompt with its input: "Paste an API key from your profile: X"."""
_NAME = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def spans(line: bytes, lower: bytes) -> Iterator[Span]:
    """Passwords and keys in sentences. `lower`: the line in lower case."""
    for subject, kind in _SUBJECTS:
        at = lower.find(subject)
        while at >= 0:
            yield from _said(line, at, kind)
            at = lower.find(subject, at + len(subject))


def _said(line: bytes, at: int, kind: str) -> Iterator[Span]:
    is_part = at > 0 and line[at - 1] in _NAME
    if (kind == "key" or is_part) and not _ITS_KIND.search(line, max(0, at - 12), at):
        return
    if match := _QUOTED.match(line, at):
        if not is_plain(match["s"], "value") and not PROSE & set(match["s"].lower().split()):
            yield Span(*match.span("s"), kind)
        return
    match = _SAID.match(line, at)
    if match is None and (kind == "key" or _BEFORE.search(line, max(0, at - 40), at)):
        match = _GIVEN.match(line, at)
        match = match if match and looks_chosen(match["s"].rstrip(b".,;:)")) else None
    if match is None and (match := _ASKED.match(line, at)) and not looks_random(match["s"]):
        return
    if match and looks_chosen(word := match["s"].rstrip(b".,;:)")):
        yield Span(match.start("s"), match.start("s") + len(word), kind)
