"""How full a node's memory and object store were over time, from the logs of its raylet.

A raylet dumps its state every minute (`event_stats_print_interval_ms`): `num bytes available for pulled
objects` is the room that is left in its object store. Its memory monitor prints what is in use before it
kills. Observed in Ray 2.9.3 to 2.60. These lines are no evidence for a rule, so only charts read them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping

from raydoctor.model.values import Event, Gap, Source
from raydoctor.read.clock import NodeClocks
from raydoctor.read.records import parse_line

_ALL, _TAIL, _LEAST = 256 << 20, 64 << 20, 256 << 10
"""Bytes that are searched at the ends of all logs together, and of one log at most and at least."""
_MOST = 2000
"""Readings of one kind in one file: the last ones count."""
_LONGEST = 64 << 10
"""Bytes from the head of a dump to a line of it, and of a dump that is one line of JSON."""
_KINDS = (
    (
        "usage.store",
        re.compile(rb"num bytes available for pulled objects: (?P<available>\d{1,18})"),
    ),
    (
        "usage.memory",
        re.compile(
            rb"Node memory usage above threshold, used: (?P<used>\d{1,18}), threshold_bytes: "
            rb"(?P<threshold>\d{1,18}), total bytes: (?P<limit>\d{1,18})"
        ),
    ),
)


def read(files: Mapping[Source, str], clock: NodeClocks, gaps: list[Gap]) -> list[Event]:
    """Events `usage.store` (`available`) and `usage.memory` (`used`, `threshold`, `limit`), in bytes."""
    logs = {source: file for source, file in files.items() if source.role == "raylet-out"}
    tail = max(_LEAST, min(_TAIL, _ALL // max(len(logs), 1)))
    found: list[Event] = []
    for source, file in sorted(logs.items(), key=lambda item: item[0].path):
        try:
            found += _of_file(source, file, tail, clock)
        except OSError as error:
            gaps.append(Gap(source.path, f"no readings of memory: {error.strerror}", optional=True))
    return found


def _of_file(source: Source, file: str, tail: int, clock: NodeClocks) -> Iterator[Event]:
    with open(file, "rb") as stream:
        begin = max(0, stream.seek(0, 2) - tail)
        stream.seek(begin)
        data = stream.read(tail)
    for kind, looked_for in _KINDS:
        for match in deque(looked_for.finditer(data), _MOST):
            at = clock.epoch(source.node, _stamp_before(data, match.start()))
            if at is not None:
                fields = {k: v.decode() for k, v in match.groupdict().items()}
                yield Event(kind, source, 0, begin + match.start(), "", at=at, fields=fields)


def _stamp_before(data: bytes, place: int) -> str:
    """The time of the record that contains a place: its head is the last line that begins with a time."""
    least = max(0, place - _LONGEST)
    begin = max(data.rfind(b"\n[2", least, place), data.rfind(b"\n{", least, place)) + 1
    end = data.find(b"\n", begin, begin + _LONGEST)
    line = data[begin : end if end >= 0 else begin + 200]
    return parse_line(line.decode("utf-8", "replace")).stamp
