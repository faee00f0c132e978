"""Whether the main thread of a process is blocked in a system call, and in which one, by proc(5).

Only a thread that is blocked for long may execute Python code immediately. A thread that waits for the GIL
looks blocked as well, but wakes up every few milliseconds. It is inside a condition variable that the Python
code would enter again: glibc's `pthread_cond_signal` would then wait forever for the outer wait to end.
"""

from __future__ import annotations

import platform
import time
from typing import NamedTuple

FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
LASTS = 0.02
"""Seconds; an allocator's lock is held for less, and a waiting thread requests the GIL every 5 ms."""


class SystemCall(NamedTuple):
    """The current system call of a thread."""

    number: int
    first: int
    """Its first argument: for a futex, the address."""
    stack: int
    at: int
    """Stack pointer and instruction pointer."""


def lasting(pid: int, seconds: float = LASTS) -> SystemCall | None:
    """The system call in which the main thread has been blocked for `seconds` without waking up; else None.

    Raises OSError if the process cannot be read.
    """
    before = current(pid), _switches(pid)
    if before[0] is None:
        return None
    time.sleep(seconds)
    return before[0] if (current(pid), _switches(pid)) == before else None


def current(pid: int) -> SystemCall | None:
    """The current system call of the main thread; None if it runs. Raises OSError."""
    with open(f"/proc/{pid}/syscall", encoding="ascii") as stream:
        words = stream.read().split()
    if len(words) < 9 or words[0] == "-1":
        return None
    return SystemCall(int(words[0]), int(words[1], 16), int(words[-2], 16), int(words[-1], 16))


def _switches(pid: int) -> list[str]:
    """The main thread's numbers of context switches; `status` contains no other thread's."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as stream:
        return [line for line in stream if "ctxt_switches" in line]
