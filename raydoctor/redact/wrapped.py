"""Lines that a terminal or a logger has broken: a secret that goes on in the next line.

Two lines are joined where the first is as long as its neighbours or as a usual terminal is wide, or ends
within a possible secret, and the second does not begin a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.model.patterns import pattern

_WIDTHS = frozenset(
    (40, 50, 60, 70, 72, 76, 78, 79, 80, 96, 99, 100, 119, 120, 128, 132, 140, 160, 180, 200, 240)
)
_LEAST, _MOST = 20, 400
MOST_LINES = 64
"""Lines that are taken together at most."""
_RECORD = pattern(
    # What begins a record of Ray, of Python's logging, of gRPC and of a traceback, or a line of JSON.
    rb"\[\d{4}-|\[\d\d|\([\w.:]+ pid=|\{\"|\}|\d{4}-\d\d-\d\d[ T]|\d\d:\d\d|[IWEFD]\d{4} "
    rb"|\s{3}|\s*File \"|Traceback |ray\.|[A-Z]\w+(?:Error|Exception): "
)
_GOING_ON = pattern(rb"\n(?=[^\[({<} \t\r\n])(?!20\d\d-|[IWEF]\d{4} |- )")
"""The end of a line whose next may go on with it: nearly all records begin otherwise."""
_PAIR = pattern(rb"[A-Za-z_][\w.-]*\s*[=:]")
WAITS = pattern(
    rb"(?i)(?:(?<![\w-])-{1,2}[\w-]*(?:pass\w*|pwd?|token|secret|key|credentials?)|(?<!\S)-[pwuaP]|\b(?:is|bearer|basic))$"
)
"""What ends a line whose next word is a value: a blank was there."""
_UNFINISHED = pattern(
    # A name that waits for its value, or a long word whose end may be missing.
    rb"(?i)(?:pass\w*|pwd?|token|secret\w*|key|credentials?|authorization|bearer|basic)[\"']?\s*(?:[=:]|is|\s)\s*[\"']?$"
    rb"|[\w+/=.~%!#$^&*@:-]{8,}$"
)
_GOES_ON = pattern(
    rb"(?=\S*(?:\d|[a-z][A-Z]|[A-Z]{2}))[\w+/=.~%!#$^&*@:-]+[\"']?(?:[\s,;)\]}\"']|$)"
)


class Group(NamedTuple):
    """Lines that belong together: offsets of the first's begin and the last's end."""

    start: int
    end: int


def groups(block: bytes, starts: set[int], before: int) -> Iterator[Group]:
    """Lines of a block that are parts of one, with `before` the length of the line before the block.

    `starts`: where lines begin that may hold a secret.
    """
    ends = {end for start in starts if (end := block.find(b"\n", start)) >= 0}
    ends.update(
        match.start()
        for match in _GOING_ON.finditer(block)
        if _is_full(block, match.start(), before)
    )
    done = -1
    for first in sorted(ends):
        if first < done or not joins(block, first, before):
            continue
        start, end = block.rfind(b"\n", 0, first) + 1, first
        for _ in range(MOST_LINES):
            following = block.find(b"\n", end + 1)
            end = len(block) if following < 0 else following
            if following < 0 or not joins(block, end, before):
                break
        done = end
        yield Group(start, end)


def _is_full(block: bytes, end: int, before: int) -> bool:
    """Whether the line that ends there is as wide as a terminal, or as a line beside it."""
    start = block.rfind(b"\n", 0, end) + 1
    length = end - start
    if not _LEAST <= length <= _MOST:
        return False
    if length in _WIDTHS:
        return True
    last = start - 1 - (block.rfind(b"\n", 0, start - 1) + 1) if start else before
    following = block.find(b"\n", end + 1)
    return length == last or length == (len(block) if following < 0 else following) - end - 1


def joins(block: bytes, end: int, before: int) -> bool:
    """Whether a line that ends at `end` goes on in the next."""
    start = block.rfind(b"\n", 0, end) + 1
    line, rest = block[start:end], block[end + 1 : end + 1 + _MOST].partition(b"\n")[0]
    if not (_LEAST <= len(line) <= _MOST) or not rest or _RECORD.match(rest):
        return False
    if _is_full(block, end, before):
        return not (_PAIR.match(rest) and _PAIR.match(line) and b" " not in line)
    if WAITS.search(line[-60:]):
        return True
    return not _PAIR.match(rest) and bool(_UNFINISHED.search(line[-80:]) and _GOES_ON.match(rest))
