"""Secrets in command lines and environments with NULs between elements, where values may contain blanks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from raydoctor.model.patterns import pattern
from raydoctor.redact import places, reasons
from raydoctor.redact.assigned import is_likely
from raydoctor.redact.names import is_plain, kind_of, looks_chosen
from raydoctor.redact.span import Span

_NAME = pattern(rb"-{0,2}[A-Za-z_][\w.-]{1,199}")
_ASSIGNMENT = pattern(rb"(?P<name>-{0,2}[A-Za-z_][\w.-]{0,199})=(?P<s>.+)", re.DOTALL)
_SHELL = pattern(rb"-[a-z]*c")
"""A shell's option with a program as value: an assignment in it ends before the program does."""
_WITH_PROGRAM = pattern(rb"(?:^|/)(?:ba|z|da|k|fi|)sh$")


def spans(line: bytes, analyse: Callable[[bytes], list[Span]]) -> Iterator[Span]:
    """Whole values, and what `analyse` finds in single elements."""
    # With blanks for NULs it is an ordinary command line with the same offsets.
    yield from places.command_spans(line.replace(b"\0", b" "))
    elements = line.split(b"\0")
    with_reason = frozenset(reasons.of_lines(elements))
    at, before, shell = 0, b"", False
    for number, element in enumerate(elements):
        whole = _whole(element, before, shell)
        if whole is not None:
            yield whole.moved(at)
        if (whole is None or whole.start) and number in with_reason:
            yield from (span.moved(at) for span in analyse(element))
        at += len(element) + 1
        shell = bool(_SHELL.fullmatch(element)) and bool(_WITH_PROGRAM.search(before) or shell)
        before = element


def unread(line: bytes) -> Iterator[Span]:
    """Each element as a whole, for a line that takes too long to be judged: others may make it a secret."""
    at = 0
    for element in line.split(b"\0"):
        yield Span(at, at + len(element), "unread")
        at += len(element) + 1


def _whole(element: bytes, before: bytes, is_program: bool) -> Span | None:
    """The whole secret value in an element: the element itself, or the part after `=`."""
    if before.startswith(b"-") and _NAME.fullmatch(before):
        name = before.decode("ascii", "replace")
        kind, certain = kind_of(name)
        if kind and element[:1] != b"-" and _is_value(element, name, certain):
            return Span(0, len(element), kind)
    match = None if is_program else _ASSIGNMENT.fullmatch(element)
    if match:
        name = match["name"].decode("ascii", "replace")
        kind, certain = kind_of(name)
        if kind and _is_value(match["s"], name, certain):
            return Span(*match.span("s"), kind)
    return None


def _is_value(value: bytes, name: str, certain: bool) -> bool:
    if is_plain(value, name):
        return False
    return certain or is_likely(name, value) or (looks_chosen(value) and b" " not in value)
