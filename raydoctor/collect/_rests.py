"""How long each thread of a process has not run, for the table `rests`: before anybody looks at its stack.

A few looks within seconds cannot tell a loop that wakes up every minute from a hang; the kernel can.
`/proc/PID/task/TID/sched` has `se.exec_start`, when the thread last left a processor, in milliseconds of that
processor's own clock (`update_curr` in `kernel/sched/fair.c`; kernels with CONFIG_SCHED_DEBUG, measured on
Linux 6.18). A processor's clock leaves out what a hypervisor stole from it, so what time it is there is read
on that processor. Where there is no such file, nothing is told.

A look by py-spy wakes all threads of a process at once: how long those had rested before, nobody knows. Of a
`time.sleep` the kernel knows when it ends (Python >= 3.11 gives it the time, not the length): where that is
soon, it is a nap.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from raydoctor.collect import _threads, proc
from raydoctor.collect._memory import memory

Row = dict[str, Any]
_TOGETHER = 2.0
"""Seconds within which the threads of a stopped process go on: 0.4 s measured on a busy machine."""
_OTHERS = 3
"""As many others that last ran with a thread were woken with it; a worker of Ray has five that rest."""
_CPU_FIELD = 36
"""Of `/proc/PID/stat` behind the name: the processor that it last ran on (`proc(5)`, field 39)."""
_DESCENDANTS = 64
_SLEEPS = {"x86_64": 230, "aarch64": 115}
"""The number of `clock_nanosleep`."""
_ABSOLUTE = 1
"""Its flag TIMER_ABSTIME."""


class _Run(NamedTuple):
    """When a thread last ran."""

    cpu: int
    at: float
    """Seconds of that processor's clock."""


def of_threads(pid: int) -> list[Row]:
    """Each thread with its `rested_s`, seconds since it last ran, and whether it was merely woken then.

    Of those that sleep until a known time, `wakes_s`: seconds until then.
    """
    told = _rested([pid])
    together = woken(told.values())
    wakes = _wakes(pid, told)
    return [
        {
            "tid": tid,
            "rested_s": round(since, 3),
            "woken": since in together,
            **({"wakes_s": round(wakes[tid], 3)} if tid in wakes else {}),
        }
        for tid, since in told.items()
    ]


def woken(rested: Collection[float]) -> set[float]:
    """Of these, the longest, if they came about together: somebody stopped the process and let it go on."""
    begun = (
        max(rested, default=0.0) - _TOGETHER
    )  # no thread of a stopped process has rested for longer
    together = [since for since in rested if since >= begun]
    return set(together) if len(together) > _OTHERS else set()


def of_family(pid: int) -> float | None:
    """Seconds since anything last ran of a process and of all below it; None where that is not known."""
    known = _rested(_family(pid)).values() if proc.LINUX else ()
    return round(min(known), 3) if known else None


def _rested(pids: Iterable[int]) -> dict[int, float]:
    """Thread -> seconds since it last ran, as far as the kernel tells."""
    runs = {tid: run for pid in pids for tid in _threads.tids(pid) if (run := _run(pid, tid))}
    now = _clocks({run.cpu for run in runs.values()}) if runs else {}
    return {tid: max(0.0, now[run.cpu] - run.at) for tid, run in runs.items() if run.cpu in now}


def _wakes(pid: int, tids: Iterable[int]) -> dict[int, float]:
    """Thread -> seconds until the end of its sleep, of those that the kernel was told the end of."""
    number, found = _SLEEPS.get(os.uname().machine), {}
    asleep = [each for each in _threads.threads(pid, tids).values() if each.syscall == number]
    with memory(pid) as seen:
        for each in asleep if seen is not None else ():
            clock, flags, request = each.arguments[:3]
            until = seen.words(request, 2) if seen is not None else ()
            if until and flags & _ABSOLUTE:
                with suppress(OSError):  # a clock of another process's alone
                    found[each.tid] = until[0] + until[1] / 1e9 - time.clock_gettime(clock)
    return found


def _family(pid: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for each in proc.table().values():
        below.setdefault(each.ppid, []).append(each.pid)
    found = [pid]
    for parent in found:
        if parent in below and len(found) < _DESCENDANTS:
            found += below[parent]
    return found


def _run(pid: int, tid: int) -> _Run | None:
    folder = f"/proc/{pid}/task/{tid}"
    at = _last_run(f"{folder}/sched")
    if not at:  # a thread that has not run yet on the processor that it moved to
        return None
    with suppress(OSError, ValueError, IndexError), open(f"{folder}/stat", "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()
        return _Run(int(fields[_CPU_FIELD]), at)
    return None


def _last_run(path: str) -> float:
    """Seconds of its processor's clock; 0 where the kernel does not tell."""
    with suppress(OSError, ValueError), open(path) as stream:
        for line in stream:
            if line.startswith("se.exec_start"):
                return float(line.rpartition(":")[2]) / 1000
    return 0.0


def _clocks(cpus: Collection[int]) -> Mapping[int, float]:
    """What time it is on these processors: read by a thread that goes there."""
    found: dict[int, float] = {}

    def visit() -> None:
        for cpu in cpus:
            with suppress(OSError):  # a processor that this process may not use
                os.sched_setaffinity(0, {cpu})
            if now := _last_run("/proc/thread-self/sched"):
                found[cpu] = now

    visitor = threading.Thread(target=visit, name="clocks", daemon=True)
    visitor.start()
    visitor.join()
    return found
