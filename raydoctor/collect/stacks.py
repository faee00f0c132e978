"""Looks at processes of this machine that may hang: the tables `samples` and `clues`.

`samples` has a row for each process and look: its threads, with their stacks (py-spy) and what the kernel
says of them. `clues` has a row for each process after its last look: whom its sockets lead to, what runs
below it, which locks and which objects it waits for. All processes are looked at side by side, as many at a
time as there are processors; a process is told by pid and start, and is in no later look once it has ended.

No local of a frame is in a table: locals may be secrets. What is derived of them (ids, addresses) is.

A frame's `whose` is `user`, `library` (site-packages), `python` (the standard library), `ray` or `native`.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from raydoctor.collect import _clues, _pyspy, _threads, proc
from raydoctor.collect._pyspy import Look
from raydoctor.collect._threads import KernelThread
from raydoctor.collect.parallel import parallel
from raydoctor.collect.table import Piece, table
from raydoctor.model import Gap

Row = dict[str, Any]
T = TypeVar("T")
TIMEOUT = 5.0
"""Seconds for one look at one process: 10 ms on an idle machine."""
_SAME_START = 0.02
"""Seconds: start times are rounded on their way through JSON."""
_UNSTOPPABLE = "TtD"
"""States in which a process cannot be stopped once more, or does not hear it."""
_NAME = 300
"""Of a function of C++ with all its types."""
_MOST_FRAMES = 200
_WOKEN = 3
"""Times that a thread gives its processor away because it was looked at; more, and it has moved on."""
_HOPELESS = "py-spy is not installed"


class Wanted(NamedTuple):
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


class Manner(NamedTuple):
    """How to look."""

    looks: int = 3
    every: float = 1.0
    """Seconds between the looks."""
    native: bool = False
    """Functions of C and C++, too, in the last look, of processes whose stacks leave open what they do."""
    timeout: float = TIMEOUT
    clues: bool = True
    unfinished: frozenset[str] = frozenset()
    """Tasks: of many objects that a thread waits for, theirs are told first."""


_THOROUGH = Manner()


def samples(processes: Sequence[Wanted], manner: Manner = _THOROUGH) -> Iterator[Piece | Gap]:
    """The tables, anew after each look: whoever runs out of time has what was seen until then."""
    at = time.time()
    subjects = [_Subject(each) for each in processes if _identify(each) is not None]
    last = manner.looks - 1
    for number in range(manner.looks):
        if number:
            time.sleep(max(0.0, at + number * manner.every - time.time()))
        look = partial(_Subject.look, manner=manner, is_last=number == last)
        _side_by_side(look, subjects, manner.timeout)
        rows = [row for each in subjects for row in each.rows]
        yield table("samples", rows, source="py-spy", at=at)
    if manner.clues:
        found = _side_by_side(partial(_Subject.clues, manner=manner), subjects, manner.timeout)
        yield table("clues", [row for row in found if row], source="proc", at=at)
    yield from _gaps(subjects)


def rows(
    processes: Sequence[Wanted], *, variables: bool, native: bool, timeout: float = TIMEOUT
) -> list[Row]:
    """One look at each, for a person: rows of `samples`, with the locals of each frame on wish.

    Locals hold whatever the program holds: they are to be redacted, and kept nowhere.
    """
    subjects = [_Subject(each) for each in processes if _identify(each) is not None]
    manner = Manner(1, native=native, timeout=timeout)

    def seen(subject: _Subject) -> list[Row]:
        subject.look(manner, is_last=True, variables=variables, native=native)
        return subject.rows

    return [row for rows in _side_by_side(seen, subjects, timeout) for row in rows]


def _side_by_side(
    do: Callable[[_Subject], T], subjects: Sequence[_Subject], timeout: float
) -> list[T]:
    """What it gives for each, in their order; without those that took too long.

    py-spy is busy while it looks: no more at a time than there are processors.
    """
    waiting: queue.SimpleQueue[tuple[int, _Subject]] = queue.SimpleQueue()
    for item in enumerate(subjects):
        waiting.put(item)
    results: dict[int, T] = {}

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                number, subject = waiting.get_nowait()
                results[number] = do(subject)

    count = min(len(subjects), max(2, os.cpu_count() or 1))
    calls = dict.fromkeys((f"look-{n}" for n in range(count)), work)
    rounds = 1 + len(subjects) // max(1, count)
    for _, outcome in parallel(calls, 2 * timeout * rounds):
        if isinstance(outcome, Exception):
            raise outcome
    return [results[number] for number in sorted(results)]


def _identify(wanted: Wanted) -> proc.Process | None:
    """The process, if it still is the one that is meant."""
    process = proc.read(wanted.pid)
    if process is None or process.state == "Z":
        return None
    other = wanted.started_at and abs(process.started_at - wanted.started_at) > _SAME_START
    return None if other else process


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
class _Subject:
    """One process, from its first look to its last."""

    wanted: Wanted
    rows: list[Row] = field(default_factory=list)
    last: Look = field(default_factory=Look)
    kernel: dict[int, KernelThread] = field(default_factory=dict)
    """Its threads, as they were before they were looked at first."""
    refusal: str = ""

    def look(
        self, manner: Manner, is_last: bool, *, variables: bool = False, native: bool = False
    ) -> None:
        """One look more, if it still runs."""
        own = self.wanted
        before = _identify(own)
        if before is None:
            return
        threads = self._kernel_threads()
        at = time.time()
        native = native or (manner.native and is_last and self._leaves_open())
        seen, how, problem = self._see(before.state, native, variables, manner.timeout)
        if _identify(own) is None:
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
                "threads": _thread_rows(own.pid, seen, threads, variables),
            }
        )

    def clues(self, manner: Manner) -> Row | None:
        """What one look around is worth; None where it has ended, or was never seen."""
        if not self.rows or _identify(self.wanted) is None:
            return None
        own = self.wanted
        found = _clues.of(own.pid, self.kernel, self._with_variables(manner), manner.unfinished)
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
    ) -> tuple[Look, str, str]:
        """What py-spy tells, how it was asked, and what is less than it could be."""
        problem, deadline = "", time.monotonic() + timeout
        for attempt in _attempts(native, state not in _UNSTOPPABLE):
            if attempt.stopping and time.monotonic() > deadline:
                continue
            seen = _pyspy.look(
                self.wanted.pid,
                native=attempt.native,
                variables=variables,
                stopping=attempt.stopping,
                timeout=timeout,
            )
            if seen.threads:
                told = f"{attempt.lack}: {problem}" if problem and attempt.lack else ""
                return seen, "py-spy --native" if attempt.native else "py-spy", told
            problem = problem or seen.problem
            is_late = not attempt.stopping and time.monotonic() > deadline
            if seen.is_refused or is_late or seen.problem == _HOPELESS:
                break
        self.refusal = problem
        return Look(), "proc", f"no stack: {problem}"

    def _leaves_open(self) -> bool:
        """Whether the plain stack does not tell what it does: all but what waits for Ray."""
        return not (self.last.threads and _clues.waits_for_ray(self.last))

    def _with_variables(self, manner: Manner) -> Look:
        """A look with locals, of a process in which these tell more; they are not kept."""
        if not _clues.needs_variables(self.last):
            return self.last
        process = proc.read(self.wanted.pid)
        stopping = process is not None and process.state not in _UNSTOPPABLE
        seen = _pyspy.look(
            self.wanted.pid, variables=True, stopping=stopping, timeout=manner.timeout
        )
        return _outside(self.wanted.pid, seen, self.kernel) if seen.threads else self.last


def _unhidden(now: KernelThread, before: KernelThread | None) -> KernelThread:
    """A thread whose call was restarted since the look before, which stopped it, in that call again."""
    if now.syscall != _threads.RESTARTED.get(os.uname().machine) or before is None:
        return now
    if now.voluntary - before.voluntary > _WOKEN:
        return now
    return now._replace(syscall=before.syscall, arguments=before.arguments, wchan=before.wchan)


def _outside(pid: int, seen: Look, kernel: dict[int, KernelThread]) -> Look:
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


# ------------------------------------------------------------------ rows


def _thread_rows(
    pid: int, seen: Look, kernel: dict[int, KernelThread], variables: bool
) -> list[Row]:
    """The main thread first, then as py-spy has them; without py-spy, those of the kernel."""
    if not seen.threads:
        return [{**_empty(each.tid, each.name), **_kernel_row(each)} for each in kernel.values()]
    rows = []
    for thread in sorted(seen.threads, key=lambda each: each.get("os_thread_id") != pid):
        tid = thread.get("os_thread_id") or 0
        known = kernel.get(tid) or _threads.threads(pid, [tid]).get(tid) if tid else None
        row = {
            **_empty(tid, thread.get("thread_name") or (known.name if known else "")),
            "active": bool(thread.get("active")),
            "gil": bool(thread.get("owns_gil")),
            **(_kernel_row(known) if known else {}),
            "frames": _frames(thread, variables),
        }
        rows.append(row)
    return rows


def _empty(tid: int, name: str) -> Row:
    return {"tid": tid, "name": name, "active": False, "gil": False, "frames": []}


def _kernel_row(thread: KernelThread) -> Row:
    return {
        "state": thread.state,
        "wchan": thread.wchan,
        "syscall": thread.syscall,
        "cpu_seconds": thread.cpu_seconds,
        "voluntary": thread.voluntary,
        "involuntary": thread.involuntary,
    }


def _frames(thread: Row, variables: bool) -> list[Row]:
    """Its frames; of native ones those above all Python, for the rest is how Python is run."""
    found: list[Row] = []
    is_inside = False
    for each in _pyspy.frames(thread):
        whose = whose_is(each)
        if whose != "native":
            is_inside = True
        elif is_inside:
            continue
        row = {
            "function": str(each.get("name") or "")[:_NAME],
            "file": str(each.get("short_filename") or each.get("filename") or ""),
            "line": 0 if whose == "native" else int(each.get("line") or 0),
            "whose": whose,
        }
        if variables:
            told = each.get("locals") or ()
            row["locals"] = {str(v.get("name")): str(v.get("repr")) for v in told}
        found.append(row)
    return found[:_MOST_FRAMES]


def whose_is(frame: Row) -> str:
    """Whose code a frame of py-spy is."""
    name = str(frame.get("filename") or "")
    if frame.get("module"):
        return "native"
    if "/site-packages/ray/" in name or "/dist-packages/ray/" in name:
        return "ray"
    if "/site-packages/" in name or "/dist-packages/" in name:
        return "library"
    if name.startswith("<frozen ") or _in_standard_library(name):
        return "python"
    return "user"


def _in_standard_library(name: str) -> bool:
    """`…/lib/python3.11/threading.py`, `/usr/lib64/python3.11/…`."""
    _, lib, rest = name.rpartition("/python3.")
    return bool(lib) and rest.partition("/")[0].isdigit()


# ------------------------------------------------------------------ gaps


def _gaps(subjects: Sequence[_Subject]) -> Iterator[Gap]:
    """Why stacks are missing, each reason once, and what would bring them."""
    reasons: dict[str, list[_Subject]] = {}
    for each in subjects:
        if each.refusal:
            reasons.setdefault(each.refusal, []).append(each)
    for reason, of in reasons.items():
        pids = ", ".join(str(each.wanted.pid) for each in of[:5]) + (" …" if len(of) > 5 else "")
        yield Gap(f"the stacks of {pids}", reason, fix(reason, of[0].wanted.pid), optional=True)


def fix(reason: str, pid: int) -> str:
    """What to do where a process could not be looked at."""
    if reason == _HOPELESS:
        return "Install it for the Python that runs raydoctor: pip install py-spy"
    if reason != "permission denied":
        return ""
    uid = proc.owner(pid)
    if uid is not None and uid != os.geteuid():
        return f"Run it as {proc.user(uid)}, or with sudo."
    if _yama() > 0:
        return "Run it with sudo, or allow it: sudo sysctl -w kernel.yama.ptrace_scope=0"
    return "Run it with sudo; in a container, give that CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)."


def _yama() -> int:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return 0
