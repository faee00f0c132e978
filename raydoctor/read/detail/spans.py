"""From when to when each worker and driver wrote its own log, for the bars of a chart.

Only the two ends of each log are read. These lines are no evidence for a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from raydoctor.model.patterns import pattern
from raydoctor.model.timeline import OwnRecords
from raydoctor.model.values import Source
from raydoctor.read.clock import NodeClocks
from raydoctor.read.records import parse_line

_ROLES = ("core-worker", "core-driver")
_MOST = 5_000
"""Logs that are read; bars of further processes are as other records show them."""
_EDGE = 8 << 10
"""Bytes that are read at each end of a log."""
_LEFT = pattern(r"Raylet(?:Ipc)?Client::Disconnect, exit_type=")
"""A process takes leave of its raylet at its end; Ray 2.9 to 2.60."""


def read(files: Mapping[Source, str], clock: NodeClocks) -> dict[str, OwnRecords]:
    """WorkerID -> the first and the last time in its logs; rotated logs count as one."""
    found: dict[str, OwnRecords] = {}
    logs = ((source, file) for source, file in files.items() if source.role in _ROLES)
    for source, file in islice(logs, _MOST):
        worker = next((e.value for e in source.entities if e.kind == "worker"), "")
        own = _of_file(source, file, clock) if worker else None
        if own is None:
            continue
        known = found.get(worker, own)
        last = max(known, own, key=lambda each: each.last)
        found[worker] = OwnRecords(min(known.first, own.first), last.last, last.has_left)
    return found


def _of_file(source: Source, file: str, clock: NodeClocks) -> OwnRecords | None:
    try:
        with open(file, "rb") as stream:
            head = stream.read(_EDGE)
            size = stream.seek(0, 2)
            stream.seek(max(len(head), size - _EDGE))
            tail = stream.read(_EDGE)
    except OSError:  # the scan reports files that cannot be read
        return None
    text = (head + (b"" if size <= 2 * _EDGE else b"\n") + tail).decode("utf-8", "replace")
    stamps = (parse_line(line).stamp for line in text.split("\n"))
    times = [at for stamp in stamps if stamp and (at := clock.epoch(source.node, stamp))]
    return OwnRecords(min(times), max(times), bool(_LEFT.search(text))) if times else None
