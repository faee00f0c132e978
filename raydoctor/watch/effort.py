"""The CPU use of processes, from the process tables of a watch. Pure.

A CPU-bound task is busy, not hung, unless its peers show otherwise (`waits/hung.py`): its stack need not be
sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raydoctor.observe.processes.proc import Process

_SPAN = 20.0
"""Seconds between two readings; a watch's tables are up to ten seconds old."""


class _Reading(NamedTuple):
    started_at: float
    at: float
    cpu_seconds: float
    share: float | None
    """CPUs used before that reading; None if unknown."""


@dataclass(slots=True)
class Effort:
    """The CPU use of the processes that are queried repeatedly."""

    _known: dict[int, _Reading] = field(default_factory=dict)

    def share(self, pid: int, table: Mapping[int, Process], now: float) -> float | None:
        """CPUs that the process used within about the last 30 s; None if unknown."""
        process = table.get(pid)
        if process is None:
            self._known.pop(pid, None)
            return None
        before = self._known.get(pid)
        if before is None or before.started_at != process.started_at:
            self._known[pid] = _Reading(process.started_at, now, process.cpu_seconds, None)
            return None
        if now - before.at >= _SPAN:
            share = (process.cpu_seconds - before.cpu_seconds) / (now - before.at)
            self._known[pid] = _Reading(process.started_at, now, process.cpu_seconds, share)
            return share
        return before.share
