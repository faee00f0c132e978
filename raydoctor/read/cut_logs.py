"""Finds logs of raylets and of the GCS that are cut, by records that other logs prove to be missing.

A log that is cut exactly at the end of a line looks complete. Some records of Ray come in pairs, one in each
of two files. If the second record is missing, the rest of its file is missing as well. The pairs exist in
every fixture of Ray 2.9 to 2.60, including failed sessions:

* A worker that writes a log was started by its raylet, which records its pid or its id.
* The raylet records that a driver disconnects.
* The GCS records a job that a raylet starts, and marks it as finished when its driver disconnects.
* If a node stops as expected, its raylet and the GCS both record it.
* Both daemons print a table of their state at an interval, 60 s by default.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from raydoctor.capture.console.prefixes import STAMP
from raydoctor.model.patterns import pattern
from raydoctor.model.text import duration
from raydoctor.model.values import Source
from raydoctor.read.clock import as_utc

_MOST = 32 << 20
"""Bytes of all required logs; larger ones are not compared, because reading them again takes seconds."""
_PART = 16 << 10
"""Bytes of the beginning or end of another log."""
_MOST_WORKERS = 64
"""Maximum of workers with an inspected last record."""
_SETTLED_S = 5.0
"""Seconds after the last write to a log. Until then, the counterpart of a record may still be on its way."""
_INTERVALS = 2.5
"""Number of intervals without a table that shows that a log is cut. On a busy machine a table may be late."""

_STAMP = pattern(rb'(?m)(?:^\[|"asctime": ?")(%s)' % STAMP.encode())
_NODE = pattern(rb"Raylet of id, ([0-9a-f]{56})")
_JOB = pattern(rb'[jJ]ob[_ ]id[" =:]+([0-9a-f]{8})')
_ID = pattern(rb"[0-9a-f]{56}")
_STARTED = b"Started worker process with pid "
_DISCONNECTS = (b"Disconnecting to the raylet", b"Sending disconnect message to the local raylet")
_UNREGISTERED = b"Finished unregistering node info, status = OK"
_REMOVED = (b"Draining node info", b"UnregisterNode", b"death reason", b"Removing node")
_AS_EXPECTED = (b"Draining node info", b" EXPECTED_TERMINATION")
_STOPS = (b"received SIGTERM", b"graceful shutdown", b"nregistering node")
_JOB_OVER = (b"Marking job", b"marking job", b"Tried to mark job as finished")
"""The last one is for a driver that ended before the GCS knew its job, such as one without a token."""
_GCS_LOST = (b"GCS has been unavailable", b"Failed to connect to GCS", b"GCS may have been killed")
_TABLE = {
    "raylet-out": (b"[state-dump] NodeManager:",),
    "gcs-out": (b"Gcs Debug state:", b"] Event stats:"),
}


class DaemonLog(NamedTuple):
    """The log of a raylet or of the GCS from its beginning."""

    source: Source
    text: bytes

    @property
    def end(self) -> float:
        """The time of its last record, in the node's own time."""
        # A table is one record with one stamp, and may be longer than a part.
        parts = (self.text[-_PART:], self.text)
        return next((max(times) for part in parts if (times := [*_times(part)])), 0.0)

    def has(self, *marks: bytes) -> bool:
        """Whether it contains any of these texts."""
        return any(mark in self.text for mark in marks)

    def lines(self, *marks: bytes) -> Iterator[bytes]:
        """The lines that contain one of these texts. (Iterating over all lines takes ten times as long.)"""
        for mark in marks:
            at = self.text.find(mark)
            while at >= 0:
                end = self.text.find(b"\n", at)
                yield self.text[self.text.rfind(b"\n", 0, at) + 1 : end if end >= 0 else None]
                at = self.text.find(mark, end) if end >= 0 else -1


class _Other(NamedTuple):
    """The log of a driver or worker."""

    source: Source
    begin: float
    end: float
    disconnects: bool


def cut(files: Mapping[Source, str], begins: Iterable[Source]) -> Iterator[tuple[Source, str]]:
    """(log, evidence) for each required log that is cut. `begins`: logs that contain their beginning."""
    sources = list(begins)
    if sum(source.size for source in sources) > _MOST:
        return
    daemons = [d for source in sources if (d := _daemon(source, files[source]))]
    gcs = next((d for d in daemons if d.source.role == "gcs-out"), None)
    raylets = [d for d in daemons if d is not gcs and d.source.role == "raylet-out"]
    for raylet in raylets:
        drivers, workers = _others_on_node(files, raylet)
        alive = [other.end for other in (*drivers, *workers)]
        shown = _not_in_raylet(raylet, drivers, workers, gcs) or _silent(raylet, alive, gcs)
        if shown:
            yield raylet.source, shown
    if gcs:
        alive = [raylet.end for raylet in raylets if raylet.source.node == gcs.source.node]
        if shown := _not_in_gcs(gcs, raylets) or _silent(gcs, alive, None):
            yield gcs.source, shown


def _daemon(source: Source, file: str) -> DaemonLog | None:
    try:
        with open(file, "rb") as stream:
            return DaemonLog(source, stream.read(_MOST))
    except OSError:
        return None


def _others_on_node(
    files: Mapping[Source, str], raylet: DaemonLog
) -> tuple[list[_Other], list[_Other]]:
    """Drivers of the raylet's node, and workers: all that the raylet's log lacks, and some others."""
    near = [s for s in files if s.node == raylet.source.node and s.pid]
    drivers = [s for s in near if s.role == "core-driver"]
    workers = sorted(
        (s for s in near if s.role == "core-worker"),
        key=lambda s: (_records_worker(raylet, s), -(s.pid or 0)),
    )
    some = workers[:_MOST_WORKERS]
    return _others(drivers, files), _others(some, files)


def _others(sources: Iterable[Source], files: Mapping[Source, str]) -> list[_Other]:
    """The facts of these logs, without logs that are still being written: those prove nothing yet."""
    found = []
    for source in sources:
        try:
            with open(files[source], "rb", buffering=0) as stream:
                status = os.fstat(stream.fileno())
                head = stream.read(_PART) or b""
                tail = os.pread(stream.fileno(), _PART, max(0, status.st_size - _PART))
        except OSError:
            continue
        times = [*_times(head), *_times(tail)]
        if times and time.time() - status.st_mtime > _SETTLED_S:
            gone = any(mark in tail for mark in _DISCONNECTS)
            found.append(_Other(source, min(times), max(times), gone))
    return found


def _times(text: bytes) -> Iterator[float]:
    for stamp in _STAMP.findall(text):
        if (at := as_utc(stamp.decode())) is not None:
            yield at


def _not_in_raylet(
    raylet: DaemonLog, drivers: list[_Other], workers: list[_Other], gcs: DaemonLog | None
) -> str:
    """The evidence that the raylet's log lacks a record; empty if none is missing."""
    for driver in drivers:
        pid = driver.source.pid or 0
        if driver.disconnects and not raylet.has(b"Driver (pid=%d) is disconnected" % pid):
            return f"the driver with pid {pid} disconnected later"
    for worker in workers:
        late = worker.begin > raylet.end and raylet.has(_STARTED)
        if late and not _records_worker(raylet, worker.source):
            return f"the worker with pid {worker.source.pid} was started later"
    node = _NODE.search(raylet.text)
    if gcs and node and not raylet.has(*_STOPS):
        for record in _removals(gcs, node[1]):
            if any(mark in record for mark in _AS_EXPECTED):
                return "the GCS records that the node stopped as expected later"
    return ""


def _records_worker(raylet: DaemonLog, worker: Source) -> bool:
    ids = [entity.value.encode() for entity in worker.entities if entity.kind == "worker"]
    return raylet.has(_STARTED + b"%d" % (worker.pid or 0), *ids)


def _removals(gcs: DaemonLog, node: bytes) -> Iterator[bytes]:
    """The records with which the GCS removes a node."""
    return (record for record in gcs.lines(*_REMOVED) if node in record)


def _not_in_gcs(gcs: DaemonLog, raylets: list[DaemonLog]) -> str:
    """The evidence that the GCS's log lacks a record; empty if a raylet could not reach the GCS."""
    over = {job for line in gcs.lines(*_JOB_OVER) for job in _JOB.findall(line)}
    for raylet in raylets:
        if raylet.has(*_GCS_LOST):
            continue
        for line in raylet.lines(b"New job has started. Job id "):
            if (job := _JOB.search(line)) and not gcs.has(job[1]):
                return f"a raylet records the start of job {job[1].decode()}"
        for line in raylet.lines(b") is disconnected"):
            if (job := _JOB.search(line)) and job[1] not in over:
                return f"a raylet records the end of job {job[1].decode()}"
        for line in raylet.lines(_UNREGISTERED):
            if (node := _ID.search(line)) and not any(_removals(gcs, node[0])):
                return f"a raylet records that the GCS removed node {node[0][:12].decode()}"
    return ""


def _silent(daemon: DaemonLog, alive: list[float], gcs: DaemonLog | None) -> str:
    """The evidence that other processes of the node logged for many intervals longer; empty if none did."""
    lines = daemon.lines(*_TABLE[daemon.source.role])
    tables = sorted(at for line in lines for at in _times(line))
    steps = [after - before for before, after in pairwise(tables) if after - before > 1]
    late = max(alive, default=0.0) - daemon.end
    if len(steps) < 2 or late <= _INTERVALS * max(steps):
        return ""
    node = _NODE.search(daemon.text)
    if gcs and node and any(_removals(gcs, node[1])):
        return ""  # the node died, and the GCS records it
    usual = sorted(steps)[len(steps) // 2]
    return f"other logs of its node continue for {duration(late)}, and it writes every {duration(usual)}"
