"""Repeated reads of the process table, at a twentieth of the cost of a full read.

The list of pids is read every three seconds (with 250 processes it takes a millisecond), the processes only
if they are new, and all of them every ten seconds. A pid that is reused within these seconds still appears as
its last owner, so code that acts on a process must verify it (`act/signals/process.py` does).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process

_WHOLE, _LEAST = 10.0, 3.0


@dataclass(slots=True)
class ProcessTable:
    """The processes of this machine."""

    processes: dict[int, Process] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)
    """Pids that were read, including kernel threads."""
    _next: float = 0.0
    _next_pids: float = 0.0

    def refresh(self) -> dict[int, Process]:
        """The processes by pid, as they were within the last seconds."""
        now = time.monotonic()
        if now < self._next_pids:
            return self.processes
        self._next_pids = now + _LEAST
        if now >= self._next or not proc.LINUX:
            self._next = now + _WHOLE
            self._known = _pids() if proc.LINUX else set()
            self.processes = proc.table()
            return self.processes
        pids = _pids()
        kept = {pid: process for pid, process in self.processes.items() if pid in pids}
        for pid in pids - self._known:
            if (process := proc.read(pid)) is not None:
                kept[pid] = process
        self._known = pids
        self.processes = kept
        return kept


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}
