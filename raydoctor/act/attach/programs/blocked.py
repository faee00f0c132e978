"""Whether the main thread of a process is blocked in a system call, and in which: as proc(5) shows it.

Only a thread that is blocked for long may be sent through Python code at once. One that waits for the GIL
looks blocked as well, but comes back every few milliseconds, and is inside a condition variable that Python
code enters again: glibc's `pthread_cond_signal` then waits for ever for the outer wait to end.
"""

from __future__ import annotations

import platform
import time
from typing import NamedTuple

FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
LASTS = 0.02
"""Seconds: an allocator's lock is held for less, and the GIL asked for again after 5 ms."""


class SystemCall(NamedTuple):
    """A system call that a thread is in."""

    number: int
    first: int
    """Its first argument; of a futex its address."""
    stack: int
    at: int
    """Stack pointer and instruction pointer."""


def lasting(pid: int, seconds: float = LASTS) -> SystemCall | None:
    """The system call that the main thread neither entered nor left, nor woke up in, for so long.

    Raises OSError where the process cannot be read.
    """
    before = current(pid), _switches(pid)
    if before[0] is None:
        return None
    time.sleep(seconds)
    return before[0] if (current(pid), _switches(pid)) == before else None


def current(pid: int) -> SystemCall | None:
    """The system call that the main thread is in; None where it runs. Raises OSError."""
    with open(f"/proc/{pid}/syscall", encoding="ascii") as stream:
        words = stream.read().split()
    if len(words) < 9 or words[0] == "-1":
        return None
    return SystemCall(int(words[0]), int(words[1], 16), int(words[-2], 16), int(words[-1], 16))


def _switches(pid: int) -> list[str]:
    """How often it got a processor and left it. Of the main thread alone: `status` has no others'."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as stream:
        return [line for line in stream if "ctxt_switches" in line]
