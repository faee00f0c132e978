"""Idle time of each thread, for the table `rests`, measured before the stacks are sampled.

A few samples within seconds cannot distinguish a loop that wakes up every minute from a hang, but the kernel
can: `se.exec_start` in `/proc/PID/task/TID/sched` is when the thread last ran, in milliseconds of that
processor's own clock (`update_curr` in `kernel/sched/fair.c`; kernels with CONFIG_SCHED_DEBUG, measured on
Linux 6.18). A processor's clock excludes time that a hypervisor stole, so its current time is read on that
processor. Without that file, the idle time is unknown.

py-spy wakes all threads of a process at once, which resets their idle times. For a `time.sleep`, the kernel
holds the end (Python >= 3.11 passes the time, not the duration), so a short sleep is recognized. An event
loop passes `epoll_wait` the time until its next timer, or -1 if it has none.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from raydoctor.observe.processes import proc
from raydoctor.observe.stacks import threads
from raydoctor.observe.stacks.memory import memory

Row = dict[str, Any]
_TOGETHER = 2.0
"""Seconds within which the threads of a stopped process resume: 0.4 s measured on a busy machine."""
_OTHERS = 3
"""Threads were woken together if more than this number last ran at the same time: an idle worker has five."""
_CPU_FIELD = 36
"""Index in `/proc/PID/stat`, after the name, of the processor that it last ran on (`proc(5)`, field 39)."""
_DESCENDANTS = 64
_SLEEPS = {"x86_64": 230, "aarch64": 115}
"""The number of `clock_nanosleep`."""
_ABSOLUTE = 1
"""Its flag TIMER_ABSTIME."""
_EPOLLS = {"x86_64": (232, 281), "aarch64": (22,)}
"""The numbers of `epoll_wait` and `epoll_pwait`: their fourth argument is the timeout in milliseconds."""
_NO_TIMEOUT = -1


class _Run(NamedTuple):
    """When a thread last ran."""

    cpu: int
    at: float
    """Seconds on that processor's clock."""
    read: float
    """When it was read, on the monotonic clock of this machine."""


def of_threads(pids: Iterable[int]) -> dict[int, list[Row]]:
    """The threads of each process with `rested_s`, seconds since they last ran, and `woken`, whether they
    were only woken by a stop of the process then.

    A thread that sleeps until a known time also has `wakes_s`: at most this many seconds until then; None
    if it waits for its descriptors without a timeout.
    """
    runs = {pid: _runs(pid) for pid in pids}
    now = _clocks({run.cpu for those in runs.values() for run in those.values()})
    return {pid: list(_rows(pid, _rested(those, now))) for pid, those in runs.items()}


def of_main_threads(pids: Iterable[int]) -> dict[int, float]:
    """Seconds since the main thread of each process last ran, where known: a fraction of the cost of all."""
    runs = {pid: run for pid in pids if proc.LINUX and (run := _run(pid, pid)) is not None}
    now = _clocks({run.cpu for run in runs.values()})
    return {pid: since for pid, run in runs.items() for since in _rested({pid: run}, now).values()}


def is_main_woken(pid: int) -> bool:
    """Whether its main thread last ran only because the process was stopped and resumed, as py-spy does."""
    rested = _rested(runs := _runs(pid), _clocks({run.cpu for run in runs.values()}))
    return rested.get(pid) in woken(rested.values())


def _rows(pid: int, rested: Mapping[int, float]) -> Iterator[Row]:
    together = woken(rested.values())
    wakes = _wakes(pid, rested)
    for tid, since in rested.items():
        row: Row = {"tid": tid, "rested_s": round(since, 3), "woken": since in together}
        yield row | ({"wakes_s": wakes[tid]} if tid in wakes else {})


def woken(rested: Collection[float]) -> set[float]:
    """The longest of these idle times, if they began together: the process was stopped and resumed."""
    begun = (
        max(rested, default=0.0) - _TOGETHER
    )  # no thread of a stopped process has rested for longer
    together = [since for since in rested if since >= begun]
    return set(together) if len(together) > _OTHERS else set()


def of_families(pids: Iterable[int]) -> dict[int, float | None]:
    """Seconds since any thread of each process or its descendants last ran; None if unknown."""
    wanted = tuple(pids)
    below = _below() if proc.LINUX and wanted else {}
    runs = {pid: _merged(_runs(each) for each in _family(pid, below)) for pid in wanted}
    now = _clocks({run.cpu for those in runs.values() for run in those.values()})
    rested = {pid: _rested(those, now).values() for pid, those in runs.items()}
    return {pid: round(min(known), 3) if known else None for pid, known in rested.items()}


def _merged(runs: Iterable[dict[int, _Run]]) -> dict[int, _Run]:
    return {tid: run for those in runs for tid, run in those.items()}


def _rested(runs: Mapping[int, _Run], now: Mapping[int, tuple[float, float]]) -> dict[int, float]:
    """Thread -> seconds since it last ran, if known."""
    found = {}
    for tid, run in runs.items():
        if run.cpu in now:
            clock, at = now[run.cpu]
            found[tid] = max(0.0, clock - run.at - (at - run.read))
    return found


def _wakes(pid: int, rested: Mapping[int, float]) -> dict[int, float | None]:
    """Thread -> seconds until its sleep or its wait for descriptors ends; None: the wait has no timeout."""
    machine = os.uname().machine
    number, epolls = _SLEEPS.get(machine), _EPOLLS.get(machine, ())
    calls = {tid: threads.call(pid, tid) for tid in rested}
    found: dict[int, float | None] = {}
    for tid, (call, arguments) in calls.items():
        if call in epolls and len(arguments) > 3:
            (timeout,) = struct.unpack("=i", struct.pack("=I", arguments[3] & 0xFFFFFFFF))
            found[tid] = None if timeout == _NO_TIMEOUT else round(timeout / 1000 - rested[tid], 3)
    asleep = {tid: arguments for tid, (call, arguments) in calls.items() if call == number}
    with memory(pid) as opened:
        for tid, arguments in asleep.items() if opened is not None else ():
            clock, flags, request = arguments[:3]
            until = opened.words(request, 2) if opened is not None else ()
            if until and flags & _ABSOLUTE:
                with suppress(OSError):  # the clock of another process
                    left = until[0] + until[1] / 1e9 - time.clock_gettime(clock)
                    found[tid] = round(left, 3)
    return found


def _below() -> dict[int, list[int]]:
    """Parent -> its children."""
    below: dict[int, list[int]] = {}
    for each in proc.table().values():
        below.setdefault(each.ppid, []).append(each.pid)
    return below


def _family(pid: int, below: Mapping[int, list[int]]) -> list[int]:
    found = [pid]
    for parent in found:
        if parent in below and len(found) < _DESCENDANTS:
            found += below[parent]
    return found


def _runs(pid: int) -> dict[int, _Run]:
    """Its threads that have run, if known."""
    tids = threads.tids(pid) if proc.LINUX else ()
    return {tid: run for tid in tids if (run := _run(pid, tid)) is not None}


def _run(pid: int, tid: int) -> _Run | None:
    folder = f"/proc/{pid}/task/{tid}"
    at = _last_run(f"{folder}/sched")
    if not at:  # it has not run yet on the processor that it was moved to
        return None
    with suppress(OSError, ValueError, IndexError), open(f"{folder}/stat", "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()
        return _Run(int(fields[_CPU_FIELD]), at, time.monotonic())
    return None


def _last_run(path: str) -> float:
    """Seconds on its processor's clock; 0 if unknown."""
    with suppress(OSError, ValueError), open(path) as stream:
        for line in stream:
            if line.startswith("se.exec_start"):
                return float(line.rpartition(":")[2]) / 1000
    return 0.0


def _clocks(cpus: Collection[int]) -> Mapping[int, tuple[float, float]]:
    """The current time of each processor's clock, and when it was read, by a thread that moves there.

    The thread may wait for each processor, so one visit serves all processes.
    """
    found: dict[int, tuple[float, float]] = {}

    def visit() -> None:
        for cpu in cpus:
            with suppress(OSError):  # a processor that this process may not use
                os.sched_setaffinity(0, {cpu})
            if now := _last_run("/proc/thread-self/sched"):
                found[cpu] = now, time.monotonic()

    if cpus:
        visitor = threading.Thread(target=visit, name="clocks", daemon=True)
        visitor.start()
        visitor.join()
    return found
