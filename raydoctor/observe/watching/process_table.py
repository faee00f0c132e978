"""The process table again and again, for a tenth of what reading it costs.

Which pids there are is asked each time; who they are, of new ones alone, and of all every ten seconds. So a
pid that is given anew within these seconds is told as its last owner: who acts on a process must look at it
again (`act/signals/process.py` does).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process

_WHOLE = 10.0


@dataclass(slots=True)
class ProcessTable:
    """The processes of this machine."""

    processes: dict[int, Process] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)
    """Pids that were looked at, the kernel's own threads too."""
    _next: float = 0.0

    def refresh(self) -> dict[int, Process]:
        """Those that are there now, by pid."""
        now = time.monotonic()
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
