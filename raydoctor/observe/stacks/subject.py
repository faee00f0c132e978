"""One process that is sampled, from its first sample to its last."""

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
"""Seconds for one sample of one process, which takes 10 ms on an idle machine."""

_SAME_START = 0.02
"""Seconds: start times are rounded on their way through JSON."""
_UNSTOPPABLE = "TtD"
"""States in which a process cannot be stopped again: stopped, traced, in an uninterruptible wait."""
_WOKEN = 3
"""Voluntary context switches that a sample causes; after more, the thread has continued."""


class ProcessToSample(NamedTuple):
    """A process to sample."""

    pid: int
    started_at: float = 0.0
    """With the pid its identity; 0: the process that has the pid now."""
    worker_id: str = ""
    node_id: str = ""
    title: str = ""
    """`ray::train`; empty: its current title."""
    worker_pid: int = 0
    """The pid that Ray reports, if it differs: inside a container."""


class SampleOptions(NamedTuple):
    """How to sample."""

    samples: int = 3
    interval: float = 1.0
    """Seconds between the samples."""
    native: bool = False
    """Whether the last sample includes C and C++ functions, unless the process waits in Ray."""
    timeout: float = TIMEOUT
    clues: bool = True
    unfinished: frozenset[str] = frozenset()
    """Tasks; among many objects that a thread waits for, theirs are reported first."""

    @property
    def pauses(self) -> float:
        """Seconds between the first sample and the last, if samples took no time."""
        return (self.samples - 1) * self.interval


def identify(wanted: ProcessToSample) -> proc.Process | None:
    """The process, if it still runs and its identity matches."""
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
    """One way to call py-spy, and what its result then lacks."""

    native: bool
    stopping: bool
    lack: str = ""


def _attempts(native: bool, stopping: bool) -> tuple[_Attempt, ...]:
    """The ways to call py-spy, best first.

    Unwinding native frames sometimes fails (`UNW_EBADREG`, one sample of five: py-spy 0.4.3, Ray 2.60). A
    process that is traced by another process, or was just stopped, is read without stopping it; while it
    runs, that sometimes fails as well.
    """
    best = (_Attempt(native, True),) if stopping else ()
    plain = (_Attempt(True, True), _Attempt(False, True, "no native frames")) if native else ()
    lack = "read without stopping it" if stopping else ""
    still = _Attempt(False, False, lack)
    return (*best, *(plain if stopping else ()), still, still)


@dataclass(slots=True)
class SampledSubject:
    """One process, from its first sample to its last."""

    wanted: ProcessToSample
    rows: list[Row] = field(default_factory=list)
    last: Dump = field(default_factory=Dump)
    kernel: dict[int, KernelThread] = field(default_factory=dict)
    """Its threads, as they were before py-spy first stopped them."""
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
        """Take one more sample, if it still runs."""
        own = self.wanted
        before = identify(own)
        if before is None:
            return
        threads = self._kernel_threads()
        at = time.time()
        native = native or (options.native and is_last and self._needs_native())
        dump, how, problem = self._dump(before.state, native, variables, options.timeout)
        if identify(own) is None:
            return
        self.last = dump = _outside(own.pid, dump, threads)
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
                "threads": thread_rows(own.pid, dump, threads, variables),
            }
        )

    def clues(self, options: SampleOptions) -> Row | None:
        """Its row of `clues`; None if it has ended, or was never sampled."""
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

    def _dump(
        self, state: str, native: bool, variables: bool, timeout: float
    ) -> tuple[Dump, str, str]:
        """The dump, how it was made, and what it lacks."""
        problem, cause, deadline = "", Dump().cause, time.monotonic() + timeout
        for attempt in _attempts(native, state not in _UNSTOPPABLE):
            if attempt.stopping and time.monotonic() > deadline:
                continue
            dump = pyspy.dump(
                self.wanted.pid,
                native=attempt.native,
                variables=variables,
                stopping=attempt.stopping,
                timeout=timeout,
            )
            if dump.threads:
                lack = f"{attempt.lack}: {problem}" if problem and attempt.lack else ""
                return dump, "py-spy --native" if attempt.native else "py-spy", lack
            if not problem:
                problem, cause = dump.problem, dump.cause
            is_late = not attempt.stopping and time.monotonic() > deadline
            if dump.cause != "other" or is_late:
                break
        self.no_stack = NoStack(problem, cause)
        return Dump(), "proc", f"no stack: {problem}"

    def _needs_native(self) -> bool:
        """Whether native frames may add information: not if a thread waits in `ray.get` or `ray.wait`."""
        return not (self.last.threads and _clues.waits_for_ray(self.last))

    def _with_variables(self, options: SampleOptions) -> Dump:
        """A dump with locals if these are needed for the clues; they are not kept."""
        if not _clues.needs_variables(self.last):
            return self.last
        process = proc.read(self.wanted.pid)
        stopping = process is not None and process.state not in _UNSTOPPABLE
        dump = pyspy.dump(
            self.wanted.pid, variables=True, stopping=stopping, timeout=options.timeout
        )
        return _outside(self.wanted.pid, dump, self.kernel) if dump.threads else self.last


def _unhidden(now: KernelThread, before: KernelThread | None) -> KernelThread:
    """A thread with its original system call, if the previous sample interrupted and restarted that call."""
    if now.syscall != _threads.RESTARTED.get(os.uname().machine) or before is None:
        return now
    if now.voluntary - before.voluntary > _WOKEN:
        return now
    return now._replace(syscall=before.syscall, arguments=before.arguments, wchan=before.wchan)


def _outside(pid: int, dump: Dump, kernel: dict[int, KernelThread]) -> Dump:
    """The dump of a process in a container, with the thread ids of this pid namespace.

    py-spy reports those of the container, and all threads as running (0.4.3).
    """
    tids = _threads.outer_tids(pid)
    if not tids:
        return dump
    threads = []
    for thread in dump.threads:
        tid = tids.get(int(thread.get("os_thread_id") or 0), 0)
        runs = kernel[tid].state == "R" if tid in kernel else False
        threads.append({**thread, "os_thread_id": tid, "active": runs})
    return dump._replace(threads=tuple(threads))
