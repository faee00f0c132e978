"""One process that is looked at, from its first look to its last."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raydoctor.observe.processes import proc
from raydoctor.observe.stacks import clues as _clues
from raydoctor.observe.stacks import pyspy
from raydoctor.observe.stacks import threads as _threads
from raydoctor.observe.stacks.pyspy import Cause, Dump
from raydoctor.observe.stacks.thread_rows import thread_rows
from raydoctor.observe.stacks.threads import KernelThread

Row = dict[str, Any]
TIMEOUT = 5.0
"""Seconds for one look at one process: 10 ms on an idle machine."""

_SAME_START = 0.02
"""Seconds: start times are rounded on their way through JSON."""
_UNSTOPPABLE = "TtD"
"""States in which a process cannot be stopped once more, or does not hear it."""
_WOKEN = 3
"""Times that a thread gives its processor away because it was looked at; more, and it has moved on."""


class ProcessToSample(NamedTuple):
    """A process that is to be looked at."""

    pid: int
    started_at: float = 0.0
    """With the pid its identity; 0: whoever has the pid now."""
    worker_id: str = ""
    node_id: str = ""
    title: str = ""
    """`ray::train`; empty: as it calls itself now."""
    worker_pid: int = 0
    """The pid that Ray knows it by, where that is another one: in a container."""


class SampleOptions(NamedTuple):
    """How to look."""

    samples: int = 3
    interval: float = 1.0
    """Seconds between the looks."""
    native: bool = False
    """Functions of C and C++, too, in the last look, of processes whose stacks leave open what they do."""
    timeout: float = TIMEOUT
    clues: bool = True
    unfinished: frozenset[str] = frozenset()
    """Tasks: of many objects that a thread waits for, theirs are told first."""

    @property
    def pauses(self) -> float:
        """Seconds between the first look and the last, if they took no time."""
        return (self.samples - 1) * self.interval


def identify(wanted: ProcessToSample) -> proc.Process | None:
    """The process, if it still is the one that is meant."""
    process = proc.read(wanted.pid)
    if process is None or process.state == "Z":
        return None
    other = wanted.started_at and abs(process.started_at - wanted.started_at) > _SAME_START
    return None if other else process


class NoStack(NamedTuple):
    """Why a process has no stack."""

    reason: str
    cause: Cause


class _Attempt(NamedTuple):
    """One way to have py-spy look, and what is less than it could be in what it tells."""

    native: bool
    stopping: bool
    lack: str = ""


def _attempts(native: bool, stopping: bool) -> tuple[_Attempt, ...]:
    """The ways to look, best first.

    Native frames cannot be unwound at every moment (`UNW_EBADREG`, one look of five: py-spy 0.4.3, Ray 2.60).
    A process that another tracer has, or that was stopped just now, is read without stopping it; what moves
    is not legible at every moment.
    """
    best = (_Attempt(native, True),) if stopping else ()
    plain = (_Attempt(True, True), _Attempt(False, True, "no native frames")) if native else ()
    lack = "read without stopping it" if stopping else ""
    still = _Attempt(False, False, lack)
    return (*best, *(plain if stopping else ()), still, still)


@dataclass(slots=True)
class SampledSubject:
    """One process, from its first look to its last."""

    wanted: ProcessToSample
    rows: list[Row] = field(default_factory=list)
    last: Dump = field(default_factory=Dump)
    kernel: dict[int, KernelThread] = field(default_factory=dict)
    """Its threads, as they were before they were looked at first."""
    no_stack: NoStack | None = None
    """Why py-spy last failed; None if it has never failed."""

    def sample(
        self,
        options: SampleOptions,
        is_last: bool,
        *,
        variables: bool = False,
        native: bool = False,
    ) -> None:
        """One look more, if it still runs."""
        own = self.wanted
        before = identify(own)
        if before is None:
            return
        threads = self._kernel_threads()
        at = time.time()
        native = native or (options.native and is_last and self._leaves_open())
        seen, how, problem = self._see(before.state, native, variables, options.timeout)
        if identify(own) is None:
            return
        self.last = seen = _outside(own.pid, seen, threads)
        self.rows.append(
            {
                "node_id": own.node_id,
                "pid": own.pid,
                "worker_pid": own.worker_pid or own.pid,
                "started_at": before.started_at,
                "worker_id": own.worker_id,
                "title": own.title or before.name,
                "sample": len(self.rows),
                "at": round(at, 3),
                "cpu_seconds": before.cpu_seconds,
                "how": how,
                "problem": problem,
                "no_stack": self.no_stack._asdict() if self.no_stack and how == "proc" else None,
                "threads": thread_rows(own.pid, seen, threads, variables),
            }
        )

    def clues(self, options: SampleOptions) -> Row | None:
        """What one look around is worth; None where it has ended, or was never seen."""
        if not self.rows or identify(self.wanted) is None:
            return None
        own = self.wanted
        found = _clues.of(own.pid, self.kernel, self._with_variables(options), options.unfinished)
        return {
            "node_id": own.node_id,
            "pid": own.pid,
            "worker_pid": own.worker_pid or own.pid,
            "worker_id": own.worker_id,
            **found,
        }

    def _kernel_threads(self) -> dict[int, KernelThread]:
        now = _threads.threads(self.wanted.pid)
        found = {tid: _unhidden(each, self.kernel.get(tid)) for tid, each in now.items()}
        self.kernel = found
        return found

    def _see(
        self, state: str, native: bool, variables: bool, timeout: float
    ) -> tuple[Dump, str, str]:
        """What py-spy tells, how it was asked, and what is less than it could be."""
        problem, cause, deadline = "", Dump().cause, time.monotonic() + timeout
        for attempt in _attempts(native, state not in _UNSTOPPABLE):
            if attempt.stopping and time.monotonic() > deadline:
                continue
            seen = pyspy.dump(
                self.wanted.pid,
                native=attempt.native,
                variables=variables,
                stopping=attempt.stopping,
                timeout=timeout,
            )
            if seen.threads:
                told = f"{attempt.lack}: {problem}" if problem and attempt.lack else ""
                return seen, "py-spy --native" if attempt.native else "py-spy", told
            if not problem:
                problem, cause = seen.problem, seen.cause
            is_late = not attempt.stopping and time.monotonic() > deadline
            if seen.cause != "other" or is_late:
                break
        self.no_stack = NoStack(problem, cause)
        return Dump(), "proc", f"no stack: {problem}"

    def _leaves_open(self) -> bool:
        """Whether the plain stack does not tell what it does: all but what waits for Ray."""
        return not (self.last.threads and _clues.waits_for_ray(self.last))

    def _with_variables(self, options: SampleOptions) -> Dump:
        """A look with locals, of a process in which these tell more; they are not kept."""
        if not _clues.needs_variables(self.last):
            return self.last
        process = proc.read(self.wanted.pid)
        stopping = process is not None and process.state not in _UNSTOPPABLE
        seen = pyspy.dump(
            self.wanted.pid, variables=True, stopping=stopping, timeout=options.timeout
        )
        return _outside(self.wanted.pid, seen, self.kernel) if seen.threads else self.last


def _unhidden(now: KernelThread, before: KernelThread | None) -> KernelThread:
    """A thread whose call was restarted since the look before, which stopped it, in that call again."""
    if now.syscall != _threads.RESTARTED.get(os.uname().machine) or before is None:
        return now
    if now.voluntary - before.voluntary > _WOKEN:
        return now
    return now._replace(syscall=before.syscall, arguments=before.arguments, wchan=before.wchan)


def _outside(pid: int, seen: Dump, kernel: dict[int, KernelThread]) -> Dump:
    """A look into a container with the ids that its threads have here.

    py-spy tells those that they have there, and takes all of them to be running (0.4.3).
    """
    tids = _threads.outer_tids(pid)
    if not tids:
        return seen
    threads = []
    for thread in seen.threads:
        tid = tids.get(int(thread.get("os_thread_id") or 0), 0)
        runs = kernel[tid].state == "R" if tid in kernel else False
        threads.append({**thread, "os_thread_id": tid, "active": runs})
    return seen._replace(threads=tuple(threads))
