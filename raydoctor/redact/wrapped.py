"""Lines that a terminal or a logger has wrapped, so that a secret continues on the next line.

Two lines are joined if the first has the length of its neighbours or of a usual terminal, or ends within a
possible secret, and the second does not begin a record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from raydoctor.model.patterns import pattern

_WIDTHS = frozenset(
    (40, 50, 60, 70, 72, 76, 78, 79, 80, 96, 99, 100, 119, 120, 128, 132, 140, 160, 180, 200, 240)
)
_LEAST, _MOST = 20, 400
NEAR = 60
"""Bytes at the end of a line that show whether a value must follow."""
MOST_LINES = 64
"""Largest number of lines that are joined."""
_RECORD = pattern(
    # The beginning of a record of Ray, Python's logging, gRPC or a traceback, or of a JSON line.
    rb"\[\d{4}-|\[\d\d|\([\w.:]+ pid=|\{\"|\}|\d{4}-\d\d-\d\d[ T]|\d\d:\d\d|[IWEFD]\d{4} "
    rb"|\s{3}|\s*File \"|Traceback |ray\.|[A-Z]\w+(?:Error|Exception): "
)
_BEGINS = frozenset((b"", *(bytes((c,)) for c in b"[({<} \t\r")))
"""First characters that a continuation line does not have; nearly all records have them."""
_BEGINS_RECORD = pattern(rb"20\d\d-|[IWEF]\d{4} |- ")
_PAIR = pattern(rb"[A-Za-z_][\w.-]*\s*[=:]")
_WAITS = pattern(
    rb"(?i)(?:(?<![\w-])-{1,2}[\w-]*(?:pass\w*|pwd?|token|secret|key|credentials?)|(?<!\S)-[pwuaP]|\b(?:is|bearer|basic))$"
)
"""Endings of a line that a value must follow, after a blank."""
_UNFINISHED = pattern(
    # A name without its value, or a long word that may be incomplete.
    rb"(?i)(?:pass\w*|pwd?|token|secret\w*|key|credentials?|authorization|bearer|basic)[\"']?\s*(?:[=:]|is|\s)\s*[\"']?$"
    rb"|[\w+/=.~%!#$^&*@:-]{8,}$"
)
_GOES_ON = pattern(
    rb"(?=\S*(?:\d|[a-z][A-Z]|[A-Z]{2}))[\w+/=.~%!#$^&*@:-]+[\"']?(?:[\s,;)\]}\"']|$)"
)


def waits(line: bytes) -> bool:
    """Whether a value must follow a line, after a blank."""
    end = line[-NEAR:]
    may_wait = b"-" in end or end[-6:].lower().endswith((b"is", b"bearer", b"basic"))
    return may_wait and bool(_WAITS.search(end))


class WrappedGroup(NamedTuple):
    """Wrapped lines: offsets of the beginning of the first, of the breaks, and of the end of the last."""

    start: int
    breaks: list[int]
    end: int


class WrappedLines:
    """The lines of a block; `before`: the length of the line before the block."""

    def __init__(self, block: bytes, before: int) -> None:
        self.texts = block.split(b"\n")
        self._lengths = list(map(len, self.texts))
        self._before = before
        first, *more = self._lengths
        # Each sum includes the preceding line break; `accumulate` avoids a Python call for each line.
        self.ends = list(accumulate(map((1).__add__, more), initial=first))

    def is_wide(self, number: int) -> bool:
        """Whether a line has the width of a terminal or of an adjacent line; False for the last line."""
        lengths = self._lengths
        length = lengths[number]
        if not _LEAST <= length <= _MOST or number + 1 == len(lengths):
            return False
        last = lengths[number - 1] if number else self._before
        return length in (last, lengths[number + 1]) or length in _WIDTHS

    def joins(self, number: int) -> bool:
        """Whether a line continues on the next one."""
        line, rest = self.texts[number], self.texts[number + 1]
        if not (_LEAST <= len(line) <= _MOST) or not rest or _RECORD.match(rest):
            return False
        if self.is_wide(number):
            return b" " in line or not (_PAIR.match(rest) and _PAIR.match(line))
        if waits(line):
            return True
        goes_on = not _PAIR.match(rest) and _GOES_ON.match(rest[:_MOST])
        return bool(goes_on and _UNFINISHED.search(line[-80:]))


def groups(block: bytes, starts: Iterable[int], before: int) -> Iterator[WrappedGroup]:
    """Groups of wrapped lines in a block; `before`: the length of the line before the block.

    `starts`: offsets of lines that may hold a secret.
    """
    lines = WrappedLines(block, before)
    texts, ends, last = lines.texts, lines.ends, len(lines.texts) - 1
    firsts = {number for start in starts if (number := bisect_left(ends, start)) < last}
    firsts.update(
        number
        for number, rest in enumerate(texts, -1)
        if (rest[:1] not in _BEGINS or (rest[:1] == b" " and waits(texts[number])))
        and number >= 0
        and lines.is_wide(number)
        and not _BEGINS_RECORD.match(rest)
    )
    done = -1
    for first in sorted(firsts):
        if first < done or not lines.joins(first):
            continue
        end = first + 1
        while end < last and end - first < MOST_LINES and lines.joins(end):
            end += 1
        done = end
        yield WrappedGroup(ends[first] - len(texts[first]), ends[first:end], ends[end])
