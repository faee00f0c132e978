"""What Linux says of the threads of a process: `/proc/PID/task/TID`. Empty elsewhere.

It is read before py-spy stops the process: a call that was interrupted by that shows as `restart_syscall`
afterwards, without its arguments (`nanosleep`, `poll` and `futex` with a time limit; Linux 6.18 measured).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from raydoctor.observe.processes import proc

_MOST = 512
RESTARTED = {"x86_64": 219, "aarch64": 128}
"""The number of `restart_syscall` (`asm/unistd_64.h`, `asm-generic/unistd.h`)."""


class KernelThread(NamedTuple):
    """One thread, as the kernel has it."""

    tid: int
    name: str
    """At most 15 bytes; Python's threads have that of the thread that made them."""
    state: str
    cpu_seconds: float
    wchan: str = ""
    """The function of the kernel that it waits in."""
    syscall: int | None = None
    """The call that it is in; None where it runs, or may not be read."""
    arguments: tuple[int, ...] = ()
    """Of that call."""
    voluntary: int = 0
    involuntary: int = 0


def threads(pid: int, only: Iterable[int] = ()) -> dict[int, KernelThread]:
    """Its threads by tid, all of them where none are named."""
    if not proc.LINUX:
        return {}
    found = {}
    for tid in tuple(only) or tids(pid):
        if (thread := _thread(pid, tid)) is not None:
            found[tid] = thread
    return found


def tids(pid: int) -> list[int]:
    """The threads of a process, the first being its main one."""
    with suppress(OSError):
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))[:_MOST]
    return []


def outer_tids(pid: int) -> dict[int, int]:
    """The thread's id in its own pid namespace -> that in ours; empty where these are the same."""
    if not proc.LINUX or proc.same_pids(pid):
        return {}
    found = {}
    for tid in tids(pid):
        own = _fields(_read(f"/proc/{pid}/task/{tid}/status")).get("NSpid", "").split()
        if own:
            found[int(own[-1])] = tid
    return found


def call(pid: int, tid: int) -> tuple[int | None, tuple[int, ...]]:
    """The kernel's call that a thread is in, and its arguments; None where it runs, or may not be read."""
    return _call(_read(f"/proc/{pid}/task/{tid}/syscall"))


def tracer(pid: int) -> int:
    """Who traces the process (a debugger); 0 where nobody does, or that may not be read."""
    told = _fields(_read(f"/proc/{pid}/status")).get("TracerPid", "0")
    return int(told) if told.isdigit() else 0


def _thread(pid: int, tid: int) -> KernelThread | None:
    folder = f"/proc/{pid}/task/{tid}"
    head, _, rest = _read(f"{folder}/stat").rpartition(b")")
    fields = rest.split()
    if len(fields) < 13:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    status = _fields(_read(f"{folder}/status"))
    number, arguments = call(pid, tid)
    return KernelThread(
        tid,
        head.partition(b"(")[2].decode("utf-8", "replace"),
        fields[0].decode(),
        (int(fields[11]) + int(fields[12])) / ticks,
        _read(f"{folder}/wchan").decode("ascii", "replace").removesuffix("\n").removeprefix("0"),
        number,
        arguments,
        int(status.get("voluntary_ctxt_switches", 0)),
        int(status.get("nonvoluntary_ctxt_switches", 0)),
    )


def _call(told: bytes) -> tuple[int | None, tuple[int, ...]]:
    """Number and arguments; `running` and `-1` (blocked, but in no call) are none."""
    words = told.split()
    if len(words) < 7 or not words[0].isdigit():
        return None, ()
    number = int(words[0])
    if number == RESTARTED.get(os.uname().machine):
        return number, ()
    return number, tuple(int(word, 16) for word in words[1:7])


def _fields(status: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in status.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _read(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, 1 << 16)
        finally:
            os.close(file)
    except OSError:
        return b""
