"""The background work of a watch: slow queries in threads, costly inspections in a child process.

An inspection (`watch/programs/inspect_cluster.py`: a diagnosis, the stacks of suspects) is a process of its
own, so that its memory is returned to the system. It runs at low priority, one at a time, when there is a
reason (`Pace`) and the budget allows it (`budget.py`). A failed inspection reports why it failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Generic, TypeVar

_Reply = TypeVar("_Reply")
_NICE = 10
_MOST = 120.0
"""Time limit of an inspection, in seconds."""
_SHARE = 0.001
"""Share of one CPU that a query may use."""
_QUIET = 600.0
"""Seconds between two inspections without a reason."""
_FUTILE = 8
"""Doublings of the wait after inspections without news: further ones would make no difference."""
_ALLOCATION = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
"""Settings of glibc. By default it has one arena per thread and keeps large blocks: 4 MB for 1,000 tasks."""
_ERROR_BYTES = 4096
"""Bytes that are read from the end of a failed child's standard error."""


@dataclass(slots=True)
class BackgroundQuery(Generic[_Reply]):
    """A query that a thread makes at an interval."""

    query: Callable[[], _Reply]
    every: float
    """Seconds."""
    problem: str = ""
    """Why the last query failed, or empty."""
    spent: float = 0.0
    """CPU seconds of all queries."""
    _cost: float = 0.0
    """CPU seconds of the last query."""
    _next: float = 0.0
    _thread: threading.Thread | None = None
    _replies: list[_Reply] = field(default_factory=list)

    def turn(self, now: float) -> _Reply | None:
        """The reply, once it has arrived; starts the next query when it is due. `now`: a monotonic time."""
        if self._thread is not None and self._thread.is_alive():
            return None
        if now >= self._next:
            self._next = now + max(self.every, self._cost / _SHARE)
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        return self._replies.pop() if self._replies else None

    def hurry(self, least: float) -> None:
        """Query sooner than planned, but not within `least` seconds of the last query."""
        self._next = min(self._next, self._next - self.every + max(least, self._cost / _SHARE))

    def _work(self) -> None:
        try:
            reply = self.query()
        except Exception as error:  # an exception in a thread would be lost
            self.problem = f"{type(error).__name__}: {error}"
        else:
            self.problem = ""
            self._replies[:] = [reply]
        self._cost = time.thread_time()  # each query has a thread of its own
        self.spent += self._cost


@dataclass(slots=True)
class Pace:
    """When the next inspection is due: soon if there is a reason, otherwise rarely.

    After an inspection without news, the next reason has to wait longer.
    """

    least: float
    """Minimum seconds between two inspections."""
    _last: float | None = None
    _futile: int = 0

    def is_due(self, now: float, has_reason: bool) -> bool:
        """Whether an inspection may start now."""
        return self.has_rested(now, self.wait if has_reason else _QUIET)

    def has_rested(self, now: float, seconds: float) -> bool:
        """Whether no inspection has started for so long."""
        return self._last is None or now - self._last >= seconds

    @property
    def wait(self) -> float:
        """Seconds that a reason has to wait after the last inspection."""
        return min(_QUIET, self.least * 2.0**self._futile)

    def started(self, now: float) -> None:
        """Record the start of an inspection."""
        self._last = now

    def ended(self, has_news: bool) -> None:
        """Record the end of an inspection, and whether it found anything new."""
        self._futile = 0 if has_news else min(_FUTILE, self._futile + 1)


@dataclass(slots=True)
class BackgroundProcess:
    """The program that inspects the cluster: at most one process at a time."""

    program: str = "raydoctor.watch.programs.inspect_cluster"
    cost: float = 0.0
    """CPU seconds of the last inspection."""
    spent: float = 0.0
    """CPU seconds of all inspections."""
    _process: subprocess.Popen[bytes] | None = None
    _out: IO[bytes] | None = None
    _err: IO[bytes] | None = None
    _began: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the process runs, or has ended and was not polled since."""
        return self._process is not None

    def start(self, request: Mapping[str, Any], *, is_urgent: bool = False) -> str:
        """Start an inspection; the reason if it cannot start, otherwise empty.

        An urgent one runs at the priority of the watch: on a busy machine it would be late otherwise.
        """
        self._began = time.monotonic()
        try:
            self._out = tempfile.TemporaryFile()  # noqa: SIM115 - read when it has ended
            self._err = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.program, json.dumps(request)],
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                cwd="/",  # -m puts the working folder first on the path
                env={**os.environ, **_ALLOCATION},
                start_new_session=True,
            )
        except OSError as error:
            self._close()
            return f"could not be started: {error.strerror or error}"
        if not is_urgent:
            with suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICE)
        return ""

    def poll(self) -> dict[str, Any] | None:
        """The reply of a process that has ended, None before; `problem` says why a process failed."""
        if self._process is None:
            return None
        is_late = time.monotonic() - self._began > _MOST
        if is_late:
            self._kill()
        code = self._code()
        if code is None:
            return None
        why = f"took more than {_MOST:.0f} s" if is_late else self._why(code)
        reply = {"problem": why} if why else self._read()
        self._close()
        return reply

    def _code(self) -> int | None:
        """The exit code; None while the process runs."""
        assert self._process is not None
        try:
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        except ChildProcessError:  # our parent ignores SIGCHLD, so the kernel has reaped the child
            code = 0
        else:
            if not pid:
                return None
            code = os.waitstatus_to_exitcode(status)
            self.cost = usage.ru_utime + usage.ru_stime
            self.spent += self.cost
        self._process.returncode, self._process = code, None
        return code

    def _why(self, code: int) -> str:
        """The reason for a failure; empty for a success."""
        if code < 0:
            return f"was ended by {_signal(-code)}"
        if not code or self._err is None:
            return ""
        self._err.seek(max(0, self._err.seek(0, os.SEEK_END) - _ERROR_BYTES))
        errors = self._err.read().decode("utf-8", "replace").strip().splitlines()
        return f"failed: {errors[-1].strip()}" if errors else f"ended with {code}"

    def _read(self) -> dict[str, Any]:
        assert self._out is not None
        self._out.seek(0)
        try:
            reply = json.load(self._out)
        except (ValueError, RecursionError):
            reply = None
        return reply if isinstance(reply, dict) else {"problem": "wrote an unreadable reply"}

    def end(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None:
            self._kill()
            self._process.wait()
            self._process = None
        self._close()

    def _kill(self) -> None:
        """Kill the process and its own children: it leads a session of its own."""
        assert self._process is not None
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _close(self) -> None:
        for file in (self._out, self._err):
            if file is not None:
                file.close()
        self._out = self._err = None


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
