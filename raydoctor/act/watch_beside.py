"""What a watch has done beside its rounds: slow questions in a thread, raydoctor's own commands in a child.

A command runs as a process of its own so that its memory is given back, at low priority, and as often as its
cost allows: `Pace`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Generic, TypeVar

_Told = TypeVar("_Told")
_NICE = 10
_MOST = 120.0
"""Seconds that a command may take."""
_SHARE = 0.002
"""Of a processor, for one question or command in quiet times."""
_HURRIED = 0.05
"""Of a processor, where there is always a reason."""
_FUTILE = 8
"""Doublings of a wait: more make no difference."""


@dataclass(slots=True)
class Thread(Generic[_Told]):
    """A question that is asked in a thread, every so many seconds."""

    ask: Callable[[], _Told]
    every: float
    problem: str = ""
    """Why it was not answered the last time."""
    spent: float = 0.0
    """Seconds of a processor that all answers took."""
    _cost: float = 0.0
    """The same of the last one."""
    _next: float = 0.0
    _thread: threading.Thread | None = None
    _answers: list[_Told] = field(default_factory=list)

    def turn(self, now: float) -> _Told | None:
        """The answer, once it is there; asks anew when it is time. `now`: of a clock that nobody sets."""
        if self._thread is not None and self._thread.is_alive():
            return None
        if now >= self._next:
            self._next = now + max(self.every, self._cost / _SHARE)
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        return self._answers.pop() if self._answers else None

    def hurry(self, least: float) -> None:
        """Ask sooner than planned, but not before `least` seconds after the last time."""
        self._next = min(self._next, self._next - self.every + max(least, self._cost / _SHARE))

    def _work(self) -> None:
        try:
            answer = self.ask()
        except Exception as error:  # nobody else would know
            self.problem = f"{type(error).__name__}: {error}"
        else:
            self.problem = ""
            self._answers[:] = [answer]
        self._cost = time.thread_time()  # a thread of its own for each question
        self.spent += self._cost


@dataclass(slots=True)
class Pace:
    """When a command may run again: seldom by what it costs, soon where there is a reason.

    A reason that led to nothing new counts less the next time.
    """

    least: float
    """Seconds between two runs, at least."""
    _last: float | None = None
    _cost: float = 1.0
    _futile: int = 0

    def is_due(self, now: float, has_reason: bool) -> bool:
        """Whether it may run now."""
        if self._last is None:
            return True
        quiet = max(self.least, self._cost / _SHARE)
        soon = min(quiet, max(self.least * 2**self._futile, self._cost / _HURRIED))
        return now - self._last >= (soon if has_reason else quiet)

    def started(self, now: float) -> None:
        """It runs."""
        self._last = now

    def ended(self, cost: float, has_news: bool) -> None:
        """It has run: what it cost, in seconds of a processor, and whether it found anything new."""
        self._cost = cost
        self._futile = 0 if has_news else min(_FUTILE, self._futile + 1)


@dataclass(slots=True)
class Command:
    """One command of raydoctor's, of which its JSON counts."""

    arguments: Sequence[str]
    problem: str = ""
    """Why the last run told nothing."""
    cost: float = 0.0
    """Seconds of a processor that the last run took."""
    spent: float = 0.0
    """The same of all runs."""
    _process: subprocess.Popen[bytes] | None = None
    _output: IO[bytes] | None = None
    _began: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether it runs, or has run and was not polled since."""
        return self._process is not None

    def start(self) -> None:
        """Run it."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - read when the command has ended
        self._began = time.monotonic()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "raydoctor", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                cwd="/",  # -m puts the working folder first on the path
                start_new_session=True,
            )
        except OSError as error:
            self.problem = f"could not be started: {error.strerror or error}"
            self._output.close()
            return
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICE)

    def poll(self) -> dict[str, Any] | None:
        """What it has told, once it has ended."""
        if self._process is None or self._output is None:
            return None
        if time.monotonic() - self._began > _MOST:
            self.problem = f"took more than {_MOST:.0f} s"
            self.end()
            return None
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if not pid:
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._process = None
        self.cost = usage.ru_utime + usage.ru_stime
        self.spent += self.cost
        return self._read()

    def _read(self) -> dict[str, Any] | None:
        assert self._output is not None
        with self._output as output:
            output.seek(0)
            try:
                told = json.load(output)
            except ValueError:
                told = None
        self.problem = "" if isinstance(told, dict) else "told nothing that can be read"
        return told if isinstance(told, dict) else None

    def end(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()
            self._process.wait()
            self._process = None
        if self._output is not None:
            self._output.close()
