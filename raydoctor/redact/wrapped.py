"""Lines that a terminal or a logger has broken: a secret that goes on in the next line.

Two lines are joined where the first is as long as its neighbours or as a usual terminal is wide, or ends
within a possible secret, and the second does not begin a record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate, count
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
_GOING_ON = pattern(rb"(?=[^\[({<} \t\r\n])(?!20\d\d-|[IWEF]\d{4} |- )")
"""The begin of a line that may go on with the one before it: nearly all records begin otherwise."""
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


class WrappedGroup(NamedTuple):
    """Lines that belong together: offsets of the first's begin, of the breaks between, of the last's end."""

    start: int
    breaks: list[int]
    end: int


class WrappedLines:
    """The lines of a block, with `before` the length of the line before the block."""

    def __init__(self, block: bytes, before: int) -> None:
        self.texts = block.split(b"\n")
        lengths = list(map(len, self.texts))
        first, *more = lengths
        # Each sum counts the break before the line, without a call of Python for each.
        self.ends = list(accumulate([length + 1 for length in more], initial=first))
        self.wide = {
            number
            for number, last, length, following in zip(
                count(), [before, *lengths], lengths, lengths[1:]
            )
            if _LEAST <= length <= _MOST and (length in (last, following) or length in _WIDTHS)
        }
        """Those as wide as a terminal, or as a line beside them; the last line is none."""

    def joins(self, number: int) -> bool:
        """Whether a line goes on in the next."""
        line, rest = self.texts[number], self.texts[number + 1]
        if not (_LEAST <= len(line) <= _MOST) or not rest or _RECORD.match(rest):
            return False
        if number in self.wide:
            return b" " in line or not (_PAIR.match(rest) and _PAIR.match(line))
        if WAITS.search(line[-60:]):
            return True
        goes_on = _UNFINISHED.search(line[-80:]) and _GOES_ON.match(rest[:_MOST])
        return bool(goes_on and not _PAIR.match(rest))


def groups(block: bytes, starts: Iterable[int], before: int) -> Iterator[WrappedGroup]:
    """Lines of a block that are parts of one, with `before` the length of the line before the block.

    `starts`: where lines begin that may hold a secret.
    """
    lines = WrappedLines(block, before)
    texts, ends, last = lines.texts, lines.ends, len(lines.texts) - 1
    firsts = {number for start in starts if (number := bisect_left(ends, start)) < last}
    firsts.update(number for number in lines.wide if _GOING_ON.match(texts[number + 1]))
    done = -1
    for first in sorted(firsts):
        if first < done or not lines.joins(first):
            continue
        end = first + 1
        while end < last and end - first < MOST_LINES and lines.joins(end):
            end += 1
        done = end
        yield WrappedGroup(ends[first] - len(texts[first]), ends[first:end], ends[end])
