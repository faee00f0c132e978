"""The kernel's data on the threads of a process: `/proc/PID/task/TID`. Linux only.

It is read before py-spy stops the process: a system call that py-spy interrupts appears as `restart_syscall`
afterwards, without its arguments (`nanosleep`, `poll` and `futex` with a timeout; Linux 6.18 measured).
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
    """The kernel's data on one thread."""

    tid: int
    name: str
    """At most 15 bytes; a Python thread has the name of the thread that created it."""
    state: str
    cpu_seconds: float
    wchan: str = ""
    """The kernel function that it waits in."""
    syscall: int | None = None
    """Its current system call; None if it runs, or is not readable."""
    arguments: tuple[int, ...] = ()
    """Of that call."""
    voluntary: int = 0
    involuntary: int = 0


def threads(pid: int, only: Iterable[int] = ()) -> dict[int, KernelThread]:
    """Its threads by tid; `only`: a subset."""
    if not proc.LINUX:
        return {}
    found = {}
    for tid in tuple(only) or tids(pid):
        if (thread := _thread(pid, tid)) is not None:
            found[tid] = thread
    return found


def tids(pid: int) -> list[int]:
    """Thread ids of a process, the main thread first."""
    with suppress(OSError):
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))[:_MOST]
    return []


def outer_tids(pid: int) -> dict[int, int]:
    """Thread id in the process's own pid namespace -> id in ours; empty if both are the same."""
    if not proc.LINUX or proc.same_pids(pid):
        return {}
    found = {}
    for tid in tids(pid):
        own = _fields(_read(f"/proc/{pid}/task/{tid}/status")).get("NSpid", "").split()
        if own:
            found[int(own[-1])] = tid
    return found


def call(pid: int, tid: int) -> tuple[int | None, tuple[int, ...]]:
    """The current system call of a thread and its arguments; None if it runs, or is not readable."""
    return _call(_read(f"/proc/{pid}/task/{tid}/syscall"))


def tracer(pid: int) -> int:
    """Pid of the process's tracer (a debugger); 0 if there is none, or it is not readable."""
    value = _fields(_read(f"/proc/{pid}/status")).get("TracerPid", "0")
    return int(value) if value.isdigit() else 0


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


def _call(content: bytes) -> tuple[int | None, tuple[int, ...]]:
    """Number and arguments; None for `running` and `-1` (blocked outside of a call)."""
    words = content.split()
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
