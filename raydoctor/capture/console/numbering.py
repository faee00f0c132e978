"""Line numbers of a rewritten file in its original."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import overload


class Numbering(Sequence[int]):
    """A list of line numbers, stored as runs of consecutive numbers: 8 bytes a run instead of a line."""

    def __init__(self) -> None:
        self._places = array("I")
        self._firsts = array("I")
        self._length = 0

    def append(self, number: int) -> None:
        """Add the number of the next line."""
        length = self._length
        if not length or number != self._firsts[-1] + length - self._places[-1]:
            self._places.append(length)
            self._firsts.append(number)
        self._length = length + 1

    def extend(self, numbers: range) -> None:
        """Add consecutive numbers."""
        if numbers:
            self.append(numbers[0])
            self._length += len(numbers) - 1

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(self._length))]
        place += self._length if place < 0 else 0
        if not 0 <= place < self._length:
            raise IndexError(place)
        run = bisect_right(self._places, place) - 1
        return self._firsts[run] + place - self._places[run]
