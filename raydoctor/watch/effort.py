"""How busy processes are, from the process tables of a watch: pure.

What uses a processor is at work: it is no hang, unless its peers prove otherwise (`waits/hung.py`), and its
stack need not be taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raydoctor.observe.processes.proc import Process

_SPAN = 20.0
"""Seconds between two readings; tables of a watch are up to ten old."""


class _Reading(NamedTuple):
    started_at: float
    at: float
    cpu_seconds: float
    share: float | None
    """Before that reading."""


@dataclass(slots=True)
class Effort:
    """Of the processes that are asked for again and again."""

    _known: dict[int, _Reading] = field(default_factory=dict)

    def share(self, pid: int, table: Mapping[int, Process], now: float) -> float | None:
        """Of a processor, within the last half minute or so; None while that is not known."""
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
