"""The records of an export -> one file for each place, in the order of time.

Texts go to files while they are read; in memory are 20 bytes for each line. Stores answer newest first, and
in pages that can overlap: a line that two pages hold is written once, while equal lines of one page stay.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice
from operator import ge, gt, le, lt
from pathlib import Path
from typing import BinaryIO

from raydoctor.capture.budget import Budget
from raydoctor.capture.exports.labels import Place, Record

_HELD, _OF_TEXT = 32 << 20, 60
"""Bytes of text in memory before they are written, and what each text takes besides its own."""
_AT_ONCE = 20_000
"""Records to bring into order in memory."""
MOST = 100_000
"""Streams of one export."""


@dataclass(slots=True)
class Stream:
    """The records of one place, as they arrive."""

    path: Path
    times: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("I"))
    """Bytes of each record that is written, with the end of its last line."""
    lines: array[int] = field(default_factory=lambda: array("I"))
    """Of each record, in the export."""
    pages: list[int] = field(default_factory=list)
    """The first record of each document of the export but the first."""
    held: list[str] = field(default_factory=list)
    longer: dict[int, int] = field(default_factory=dict)
    """The number of lines of each record that has more than one."""

    def flush(self) -> int:
        """Write what is held; returns the number of bytes."""
        if not self.held:
            return 0
        begun = len(self.sizes)
        texts, self.held = self.held, []
        texts.append("")
        data = "\n".join(texts).encode("utf-8", "replace")
        texts.pop()
        each = texts if data.isascii() else [text.encode("utf-8", "replace") for text in texts]
        self.sizes.extend([size + 1 for size in map(len, each)])
        if data.count(b"\n") > len(texts):
            counts = ((n, text.count("\n") + 1) for n, text in enumerate(texts, begun))
            self.longer.update((n, count) for n, count in counts if count > 1)
        with self.path.open("ab") as out:
            out.write(data)
        return len(data)


class Streams:
    """The streams of one export."""

    def __init__(self, folder: Path, numbers: Iterator[int], budget: Budget) -> None:
        self._folder, self._numbers, self._budget = folder, numbers, budget
        self._held = 0
        self.places: dict[Place, Stream] = {}
        self.are_outputs = False
        """Whether a record is known to be the output of a container."""
        self.refused = 0
        """Records of more places than are read."""
        self.damaged, self.first_damaged = 0, 0
        """Places of the export that could not be parsed, and the line of the first one."""

    def add(self, record: Record, line: int) -> None:
        """Add a record. Raises TooMuchError where the budget is spent, OSError if the folder is full."""
        place, at, text, output, _ = record
        stream = self.places.get(place) or self._begin(place)
        if stream is None:
            self.refused += 1
            return
        stream.times.append(at)
        stream.lines.append(line)
        stream.held.append(text)
        if output:
            self.are_outputs = True
        self._held += len(text) + _OF_TEXT
        if self._held > _HELD:
            self.flush()

    def extend(
        self, place: Place, times: list[int], lines: list[int], texts: list[str], output: str
    ) -> None:
        """Add records of one place. Raises as `add`."""
        stream = self.places.get(place) or self._begin(place)
        if stream is None:
            self.refused += len(texts)
            return
        stream.times.extend(times)
        stream.lines.extend(lines)
        stream.held += texts
        self.are_outputs |= bool(output)
        self._held += sum(map(len, texts)) + _OF_TEXT * len(texts)
        if self._held > _HELD:
            self.flush()

    def _begin(self, place: Place) -> Stream | None:
        if len(self.places) >= MOST:
            return None
        stream = self.places[place] = Stream(self._folder / f"stream-{next(self._numbers)}")
        return stream

    def check_time(self) -> None:
        """Raise TooMuchError once the processor time is spent."""
        self._budget.check_time()

    def note_damage(self, line: int) -> None:
        """Note that the export could not be parsed at a line."""
        self.damaged += 1
        self.first_damaged = self.first_damaged or line

    def end_page(self) -> None:
        """Note that the following records may repeat earlier ones."""
        for stream in self.places.values():
            stream.pages.append(len(stream.times))

    def flush(self) -> None:
        """Write what is held."""
        self._held = 0
        self._budget.write(sum([stream.flush() for stream in self.places.values()]))


def finished(stream: Stream) -> array[int]:
    """Bring a stream's file into order; for each line its number in the export, none if it is unknown."""
    order = ordered(stream)
    if order is not None:
        _rewrite(stream, order)
    lines = stream.lines
    if not lines or not lines[0] or (order is None and not stream.longer):
        return lines if lines and lines[0] else array("I")
    if not stream.longer:
        if isinstance(order, range):
            return lines[::-1]
        return array("I", map(lines.__getitem__, order or ()))
    indices = range(len(lines)) if order is None else order
    return array("I", (lines[n] for n in indices for _ in range(stream.longer.get(n, 1))))


def ordered(stream: Stream) -> Sequence[int] | None:
    """The records to keep, oldest first; None if all are, as they are."""
    times = stream.times
    if all(map(lt, times, islice(times, 1, None))):
        return None
    if all(map(gt, times, islice(times, 1, None))):
        return range(len(times) - 1, -1, -1)
    pages = _pages(stream)
    if all(map(le, times, islice(times, 1, None))) and not pages:
        return None
    indices: Iterable[int] = range(len(times))
    if sum(map(gt, times, islice(times, 1, None))) > sum(map(lt, times, islice(times, 1, None))):
        indices = reversed(range(len(times)))
    return list(_once(stream, sorted(indices, key=times.__getitem__), pages))


def _pages(stream: Stream) -> list[int]:
    """The first record of each page but the first: of documents, and where the order of time starts again."""
    times = stream.times
    is_falling = all(map(ge, times, islice(times, 1, None)))
    if is_falling:
        return [page for page in stream.pages if 0 < page < len(times)]
    falls = [n for n, each in enumerate(map(gt, times, islice(times, 1, None)), 1) if each]
    rises = [n for n, each in enumerate(map(lt, times, islice(times, 1, None)), 1) if each]
    turns = rises if len(falls) > len(rises) else falls
    return sorted({*turns, *(page for page in stream.pages if 0 < page < len(times))})


def _once(stream: Stream, order: list[int], pages: list[int]) -> Iterator[int]:
    """The records without those that another page has already.

    Of a store's answer, newest first, equal lines of the same nanosecond are one: it keeps no others.
    """
    offsets = array("Q", accumulate(stream.sizes, initial=0))
    stream.flush()
    with (
        stream.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        for at, group in groupby(order, key=stream.times.__getitem__):
            same = list(group)
            if len(same) == 1 or not at:
                yield from same
                continue
            # Of a page that is cut off in between, not all of these lines are known, nor their order.
            of_page = Counter(bisect_right(pages, index) for index in same)
            same.sort(key=lambda index: -of_page[bisect_right(pages, index)])
            kept: Counter[bytes] = Counter()
            seen: Counter[tuple[int, bytes]] = Counter()
            for index in same:
                raw = text[offsets[index] : offsets[index + 1]]
                page = bisect_right(pages, index) if not at % 1000 else index
                seen[page, raw] += 1
                if seen[page, raw] > kept[raw]:
                    kept[raw] += 1
                    yield index


def _rewrite(stream: Stream, order: Sequence[int]) -> None:
    target = stream.path.with_name(f"{stream.path.name}-ordered")
    is_reversed = isinstance(order, range) and not stream.longer
    with stream.path.open("rb") as file, target.open("wb") as out:
        out.writelines(
            _reversed(file, stream.sizes) if is_reversed else _sorted(file, stream, order)
        )
    target.replace(stream.path)


def _reversed(file: BinaryIO, sizes: array[int]) -> Iterator[bytes]:
    """The lines of a file, last first."""
    end = sum(sizes)
    for last in range(len(sizes), 0, -_AT_ONCE):
        begin = end - sum(sizes[max(last - _AT_ONCE, 0) : last])
        file.seek(begin)
        yield b"\n".join((*reversed(file.read(end - begin)[:-1].split(b"\n")), b""))
        end = begin


def _sorted(file: BinaryIO, stream: Stream, order: Sequence[int]) -> Iterator[bytes]:
    offsets = array("Q", accumulate(stream.sizes, initial=0))
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        yield from (text[offsets[index] : offsets[index + 1]] for index in order)
