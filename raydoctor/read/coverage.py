"""Checks that the logs that every session has were read. A log counts only if its records are recognized.

A log of a raylet or of the GCS hides failures if it is empty, stops during start-up, is cut off inside a
record, contains NULs, or contains no record. Each is a gap with its reason. According to the fixtures of Ray
2.9 to 2.60, a raylet logs its own id at the end of its start-up, and the GCS logs the first node.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Gap, Source
from raydoctor.read import cut_logs
from raydoctor.read.records import LogLine, parse_line

_UP = {
    "raylet-out": (b"Raylet of id, ",),
    "gcs-out": (b"Registering new node", b"Registering node info, "),
}
"""Text that a daemon logs when its start-up is complete, per role."""
_BEGINS = {
    "raylet-out": (b"Setting cluster ID to: ", b"IOServicePool is running"),
    "gcs-out": (b"IOServicePool is running", b"Ray cluster metadata", b"GCS storage type is "),
}
"""Texts among the first records of a daemon; a rotated log lacks them."""
_OPENING = 8 << 10
_HOLE = b"\0" * 16
_HEAD = 1 << 20
"""Bytes: far more than a daemon writes while it starts (20 kB)."""
_TAIL = 64 << 10
_READ_WHOLE = 32 << 20
"""Bytes; a smaller log is searched for NULs completely, a larger one by samples."""
_SAMPLE_EVERY = 16 << 20
_BASE64 = pattern(rb"[A-Za-z0-9+/]{40,}={0,2}\s")
_HEX = pattern(rb"(?:[0-9a-f]{4,}[: ]+)?(?:[0-9a-f]{2,8} +){8,}")


class _Log(NamedTuple):
    """The inspected parts of a required log."""

    source: Source
    head: bytes
    tail: bytes
    """The last bytes; equal to the head if the log is that short."""
    size: int
    has_nul: bool

    @property
    def is_up(self) -> bool:
        """Whether the daemon's start-up was complete or is not in this file."""
        return not self.begins or self.shows_up or self.size > _HEAD

    @property
    def begins(self) -> bool:
        """Whether the log begins with the start of its daemon; a rotated one does not."""
        return any(mark in self.head[:_OPENING] for mark in _BEGINS[self.source.role])

    @property
    def shows_up(self) -> bool:
        """Whether the log holds the record that ends start-up."""
        return any(mark in self.head for mark in _UP[self.source.role])


def gaps_of(files: Mapping[Source, str]) -> list[Gap]:
    """One gap for each required log that was not read as a whole; the search reports those it cannot open."""
    logs = [
        log
        for source, file in files.items()
        if source.role in _UP and not source.is_excerpt and (log := _log(source, file))
    ]
    filled = {(log.source.role, log.source.node) for log in logs if log.size}
    raylets = [log for log in logs if log.source.role == "raylet-out"]
    # The GCS waits without a time limit for nodes whose raylets cannot start.
    no_nodes = not any(log.shows_up for log in raylets) and any(map(_died, raylets))
    found = {}
    for log in logs:
        rotated = not log.size and (log.source.role, log.source.node) in filled
        if not rotated and (why := _why(log, no_nodes)):
            found[log.source] = why
    parts = Counter((log.source.role, log.source.node) for log in logs)
    whole = [
        log.source
        for log in logs
        if log.source not in found and log.begins and parts[log.source.role, log.source.node] == 1
    ]
    for source, shown in cut_logs.cut(files, whole):
        found[source] = f"ends too early: {shown}"
    return [_gap(source, why) for source, why in found.items()]


def _gap(source: Source, why: str) -> Gap:
    name = os.path.basename(source.path)
    hint = "Copy it from its node again: /tmp/ray/session_latest/logs/{name}"
    return Gap(source.path, why, paste.text(hint, name=name))


def _log(source: Source, file: str) -> _Log | None:
    try:
        with open(file, "rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(min(size, _HEAD)) or b""
            if size <= len(head):
                return _Log(source, head, head[-_TAIL:], len(head), _is_holed(head))
            has_nul = any(map(_is_holed, (head, *_parts(stream.fileno(), size))))
            return _Log(source, head, os.pread(stream.fileno(), _TAIL, size - _TAIL), size, has_nul)
    except OSError:
        return None


def _is_holed(chunk: bytes) -> bool:
    """Whether a part has the NULs of lost or overwritten text: the GCS also prints some binary bytes."""
    return _HOLE in chunk or chunk.count(0) > len(_HOLE) + len(chunk) // 1000


def _parts(handle: int, size: int) -> Iterator[bytes]:
    """Everything after the head, or samples of it."""
    length, step = (_HEAD, _HEAD) if size <= _READ_WHOLE else (_TAIL, _SAMPLE_EVERY)
    yield from (os.pread(handle, length, start) for start in range(_HEAD, size, step))
    yield os.pread(handle, _TAIL, size - _TAIL)


def _why(log: _Log, no_nodes: bool) -> str:
    """Why a log does not count as read; empty if it counts."""
    if not log.size:
        return "is empty"
    if not any(line.headed for line in _lines(log)):
        return _without_records(log)
    if log.has_nul:
        return "contains NUL bytes: parts of it are lost or overwritten"
    waits = no_nodes and log.source.role == "gcs-out"
    if not (log.is_up or waits or _died(log)):
        return "ends during the daemon's start-up: the rest is missing"
    if not log.tail.endswith(b"\n"):
        return "ends in the middle of a line: the rest is missing"
    return ""


def _lines(log: _Log) -> Iterator[LogLine]:
    """Lines of the beginning and of the end."""
    parts = (log.head[:_TAIL], log.tail) if log.size > _TAIL else (log.head,)
    for part in parts:
        for raw in part.split(b"\n"):
            yield parse_line(raw.decode("utf-8", "replace"), log.source.role)


def _died(log: _Log) -> bool:
    """Whether the log records a fatal error, so that nothing can follow."""
    return any(line.level == "C" for line in _lines(log))


def _without_records(log: _Log) -> str:
    """Describe a text without records."""
    text = log.head[:_TAIL]
    if log.has_nul or any(byte < 9 for byte in text):
        looks = "binary data"
    elif not text.strip():
        looks = "white space"
    elif _HEX.match(text):
        looks = "a hex dump"
    elif _BASE64.match(text + b"\n"):
        looks = "base64"
    else:
        looks = "text in another format or encoding"
    return f"holds no log record that raydoctor recognizes ({looks})"
