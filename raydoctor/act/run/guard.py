"""Ends what raydoctor has started if it vanishes: killed with SIGKILL, or crashed.

This is the driver of `raydoctor run`, a command of `watch --notify`, and the commands of `raydoctor mcp`.

The guard is the watcher of workers with tracked tasks (`tracking/programs/reaper.py`), with the same
registry. It sleeps on a pidfd of raydoctor, in its own session. Processes are found by
descent, by session and process group, and by a mark in the environment that the driver has from the start.
Not found: a process that cleared its environment, left its session and lost its parents between two samples
(0.5 s apart at the start, at most 30 s later).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from raydoctor.act.tracking import family, registry, watcher
from raydoctor.act.tracking.registry import RUN_MARK, StartedProcess, Task
from raydoctor.observe.processes import proc

_NUMBER = 1
_FILE_LIMIT = 64_000
"""Approximate bytes of the registry file before ended processes are dropped from it."""


class ProcessGuard:
    """The guard of this process. Its methods never raise."""

    __slots__ = ("_child", "_path", "_task", "_written", "environment", "problem")

    def __init__(self, grace: float) -> None:
        """`grace`: seconds between SIGTERM and SIGKILL."""
        self._task = Task(_NUMBER, registry.RUN, grace, {})
        self._child: subprocess.Popen[bytes] | None = None
        self._path, self._written = "", 0
        self.environment: dict[str, str] = {}
        """Environment variables that identify what this process starts."""
        self.problem = ""
        """Why there is no guard; empty if there is one."""
        if proc.LINUX:
            self._try_to_start()

    @property
    def pid(self) -> int:
        """0 if none was started."""
        return self._child.pid if self._child else 0

    def record(self, processes: Iterable[proc.Process]) -> None:
        """Record processes that this process has started, directly or indirectly."""
        started = [StartedProcess(p.pid, p.started_at, family.leads(p)) for p in processes]
        lines = [registry.saw_line(_NUMBER, each) for each in started if self._task.add(each)]
        if lines and self._child is not None:
            self._written += sum(map(len, lines))
            with suppress(OSError):
                registry.append(self._path, lines)
                if self._written > _FILE_LIMIT:
                    self._forget_the_dead()

    def close(self) -> None:
        """End the guard: nothing is left to end."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._path:
            with suppress(OSError):
                os.unlink(self._path)

    def _forget_the_dead(self) -> None:
        """Replace the file, without ended processes: a file that is too large is not read any more."""
        known = registry.read(self._path).get(_NUMBER)
        if known is None:
            return
        # The guard records empty sessions and groups in the file.
        kept = {key: s for key, s in known.processes.items() if s.leads or family.lives(s)}
        self._task = known._replace(processes=kept)
        registry.replace(self._path, registry.lines_of([self._task]))
        self._written = 0

    def _try_to_start(self) -> None:
        me = family.started_process(os.getpid())
        if me is None:
            return
        try:
            self._path = registry.path_of(me)
            registry.replace(self._path, registry.lines_of([self._task]))
            self._child = watcher.start_child(self._path, me)
        except OSError as error:
            self.problem = error.strerror or str(error)
        else:
            self.environment[RUN_MARK] = self._task.mark(me)
