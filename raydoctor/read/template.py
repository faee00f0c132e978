"""A line that matched -> a fast test that accepts equal lines with other ids, numbers and times.

In an error storm, consecutive lines differ only in ids, numbers and times. A *template* is the line with
variable places: one regular expression over bytes, made of the line's own characters, without decoding,
header parsing or much backtracking. It accepts a line only if the signal's pattern matches it as well:

* A place is variable if the pattern itself accepts any number, any hex digits or any text there. A number
  remains a number, and hex digits remain hex digits, with the same length if the pattern counts them.
* All other characters must be equal, as must the fields that separate records of a signal.
* Patterns with look-around, back references or their own flags have no template.

The path through the pattern that matched the first line therefore matches each accepted line. The converse
does not hold: the pattern itself is tried on lines that no template accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from raydoctor.model.patterns import pattern as late
from raydoctor.read.records import header_length

_QUANTIFIER = r"(?:[*+?]|\{\d+(?:,\d*)?\})\??"
_TOKEN = late(
    r"(?P<atom>\\.|\[\^?\]?(?:[^\[\]\\]|\\.)*\]|[^\\\[\](){}*+?|])"
    rf"(?P<times>{_QUANTIFIER})?|\(\?P<\w+>|\(\?:|\((?!\?)|[)|]|{_QUANTIFIER}",
    re.DOTALL,
)
"""One token of a signal's pattern; it never reads a log. A `[` inside a class has no token (write `\\[`), so
that the search for a class ends at the next `[`."""
_OPEN_ATOMS = {r"\d": b"[0-9]", "[0-9a-f]": b"[0-9a-f]", ".": b""}
"""An atom of a pattern that accepts variable text -> the class that a template allows there (empty for any
text: the numbers and ids in it)."""
_MAY_BEGIN_HEADERS = frozenset("[{(0123456789EWIF")
_LONGEST = 4096
"""Characters; longer lines are rare, and a template has to be compiled."""
_BREAK = rb"(?:\n|\Z)"
_RUN = late(r"[0-9a-f]{8,}|[0-9]+")
_DIGITS = late(r"[0-9]+")


class _OpenGroup(NamedTuple):
    number: int
    allowed: bytes
    free: bool
    """Whether the pattern accepts any length."""


class _OpenedPlace(NamedTuple):
    begin: int
    end: int
    allowed: bytes
    free: bool


@cache
def _opened(pattern: str, flags: int) -> tuple[re.Pattern[str], tuple[_OpenGroup, ...]] | None:
    """The pattern with a group around every atom for variable text, or None."""
    parts: list[str] = []
    groups: list[_OpenGroup] = []
    count = at = 0
    for token in _TOKEN.finditer(pattern):
        atom = token["atom"] or ""
        if token.start() != at or re.fullmatch(r"\\[1-9]", atom):
            return None
        text, at = token[0], token.end()
        if text == "(" or text.startswith("(?P"):
            count += 1
        if atom in _OPEN_ATOMS:
            count += 1
            free = (token["times"] or "").rstrip("?") in ("*", "+")
            groups.append(_OpenGroup(count, _OPEN_ATOMS[atom], free))
            text = f"({text})"
        parts.append(text)
    if at != len(pattern):
        return None
    return re.compile("".join(parts), flags), tuple(groups)


def draw(
    pattern: re.Pattern[str],
    fold: Iterable[str],
    raw: bytes,
    message: str,
    with_header: bool = False,
) -> re.Pattern[bytes] | None:
    """A template of a line (with its break) that the pattern matched, or None if none is safe.

    `message`: the text that the pattern matched; `with_header`: whether it includes the header. If the
    message is not simply the line's end (colours, JSON), or if other digits could turn the start of the line
    into a header, the template accepts only identical lines.
    """
    if not raw.isascii() or len(raw) > _LONGEST:
        return None
    line, begin = raw.decode("ascii"), len(raw) - len(message)
    headless = not begin and not with_header
    if not line.endswith(message) or (headless and line[:1] in _MAY_BEGIN_HEADERS):
        return re.compile(re.escape(raw) + _BREAK)
    opened = _opened(pattern.pattern, pattern.flags & ~re.UNICODE)
    found = opened[0].search(message) if opened else None
    if opened is None or found is None:
        return None
    fixed = [(a + begin, b + begin) for a, b in (found.span(name) for name in fold)]
    places = [
        place
        for place in (*_in_header(line, begin), *_in_message(line, begin, found, opened[1]))
        if not any(place.begin < b and a < place.end for a, b in fixed)
    ]
    return re.compile(_joined(raw, places))


def _in_header(line: str, begin: int) -> Iterator[_OpenedPlace]:
    """Places in the header: it remains a header with any digits."""
    if header_length(line) == begin:
        for run in _DIGITS.finditer(line, 0, begin):
            yield _OpenedPlace(*run.span(), b"[0-9]", False)


def _in_message(
    line: str, begin: int, found: re.Match[str], groups: Iterable[_OpenGroup]
) -> Iterator[_OpenedPlace]:
    """Places in the order of the line: before the match, in the atoms for variable text, after the match."""
    yield from _runs(line, begin, begin + found.start(), free=True)
    at = found.start()
    for group in groups:
        a, b = found.span(group.number)
        if a < at or a == b:
            continue  # did not take part, or an earlier turn of a repetition
        at = b
        if group.allowed:
            yield _OpenedPlace(begin + a, begin + b, group.allowed, group.free)
        else:
            yield from _runs(line, begin + a, begin + b, group.free)
    yield from _runs(line, begin + found.end(), len(line), free=True)


def _runs(line: str, begin: int, end: int, free: bool) -> Iterator[_OpenedPlace]:
    for run in _RUN.finditer(line, begin, end):
        allowed = b"[0-9]" if run[0].isdigit() else b"[0-9a-f]"
        yield _OpenedPlace(*run.span(), allowed, free)


def _joined(raw: bytes, places: Iterable[_OpenedPlace]) -> bytes:
    parts, at = [], 0
    for place in places:
        length = b"+" if place.free else b"{%d}" % (place.end - place.begin)
        parts += [re.escape(raw[at : place.begin]), place.allowed, length]
        at = place.end
    return b"".join((*parts, re.escape(raw[at:]), _BREAK))
