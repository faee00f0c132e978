"""How long the log of the GCS is silent around the moment at which another process gave up waiting for it.

The scan keeps only lines that a rule looks for, so the last line before and the first line after that moment
are looked up in the file. Its lines are in the order of time, which takes a bisection of a few dozen reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

from raydoctor.model.values import Event, Source
from raydoctor.read.clock import NodeClocks
from raydoctor.read.records import parse_line

KIND = "gcs.silence"
_BLOCK = 64 << 10
"""Bytes in which a line with a time must be: the GCS dumps its state in lines without one."""


def read(
    files: Mapping[Source, str], events: Iterable[Event], clock: NodeClocks
) -> Iterator[Event]:
    """For each log of the GCS, an event at its last line before the first `gcs.lost`; `until` its next."""
    moments = [e.at for e in events if e.kind == "gcs.lost" and e.at is not None]
    if not moments:
        return
    for source, file in files.items():
        if source.role == "gcs-out":
            try:
                with open(file, "rb") as stream:
                    found = _around(stream, min(moments), source, clock)
            except OSError:  # the scan reports files that cannot be read
                continue
            if found:
                offset, before, after = found
                yield Event(KIND, source, 0, offset, "", at=before, fields={"until": str(after)})


def _around(
    stream: BinaryIO, moment: float, source: Source, clock: NodeClocks
) -> tuple[int, float, float] | None:
    """The offset and time of the last line before a moment, and the time of the next one."""
    low, high = 0, stream.seek(0, 2)
    while high - low > _BLOCK:
        middle = (low + high) // 2
        first = next(_dated(stream, middle, _BLOCK, source, clock), None)
        if first is None or first[1] > moment:
            high = middle
        else:
            low = first[0]
    before = None
    for offset, at in _dated(stream, low, high - low + 2 * _BLOCK, source, clock):
        if at > moment:
            return (*before, at) if before else None
        before = offset, at
    return None


def _dated(
    stream: BinaryIO, begin: int, size: int, source: Source, clock: NodeClocks
) -> Iterator[tuple[int, float]]:
    """Offset and time of each dated line that begins in a part of the file."""
    stream.seek(begin)
    data = stream.read(size)
    offset = begin
    for number, raw in enumerate(data.splitlines(keepends=True)):
        is_whole = number > 0 or begin == 0
        if is_whole and raw[:1] in b"[{" and (line := raw[:200].decode("utf-8", "replace")):
            at = clock.epoch(source.node, parse_line(line).stamp)
            if at is not None:
                yield offset, at
        offset += len(raw)
