"""The file that a thread waits on, from its current system call and the call's arguments.

Call numbers of Linux: `arch/x86/entry/syscalls/syscall_64.tbl`, `include/uapi/asm-generic/unistd.h`.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import NamedTuple

from raydoctor.observe.stacks.memory import ProcessMemory
from raydoctor.observe.stacks.threads import KernelThread

_MOST_POLLED = 32
_MOST_WATCHED = 512


class _Numbers(NamedTuple):
    """The call numbers of one architecture."""

    descriptor: frozenset[int]
    """Calls with a descriptor as first argument: read, write, recv, send, connect, accept, flock, fsync …"""
    poll: frozenset[int]
    """poll, ppoll: a table of descriptors."""
    epoll: frozenset[int]
    """epoll_wait, epoll_pwait, epoll_pwait2: a descriptor for a set of others."""
    paths: dict[int, int]
    """open, stat …: index of the path among the arguments."""
    futex: int


_X86 = _Numbers(
    frozenset(
        {0, 1, 17, 18, 19, 20, 42, 43, 44, 45, 46, 47, 72, 73, 74, 75, 217, 288, 295, 296, 299, 307}
    ),
    frozenset({7, 271}),
    frozenset({232, 281, 441}),
    {2: 0, 4: 0, 6: 0, 21: 0, 82: 0, 83: 0, 84: 0, 87: 0, 257: 1, 262: 1, 263: 1, 332: 1},
    202,
)
_ARM = _Numbers(
    frozenset(
        {25, 32, 61, 63, 64, 65, 66, 67, 68, 69, 70, 82, 83, 202, 203, 206, 207, 211, 212, 242, 243}
    ),
    frozenset({73}),
    frozenset({22, 441}),
    {35: 1, 48: 1, 56: 1, 79: 1, 291: 1},
    98,
)
_NONE = _Numbers(frozenset(), frozenset(), frozenset(), {}, -1)


def _numbers() -> _Numbers:
    return {"x86_64": _X86, "aarch64": _ARM}.get(os.uname().machine, _NONE)


def descriptors(pid: int, thread: KernelThread, found: ProcessMemory | None) -> list[int]:
    """The descriptors that a thread's call operates on."""
    numbers, call = _numbers(), thread.syscall
    if call is None or not thread.arguments:
        return []
    if call in numbers.descriptor:
        return [thread.arguments[0]]
    if call in numbers.epoll:
        return _watched(pid, thread.arguments[0])
    if call in numbers.poll and found is not None:
        data = found.read(thread.arguments[0], 8 * min(thread.arguments[1], _MOST_POLLED))
        return (
            [fd for fd, _ in struct.iter_unpack("=iI", data) if fd >= 0]
            if len(data) % 8 == 0
            else []
        )
    return []


def _watched(pid: int, descriptor: int) -> list[int]:
    """The descriptors that an epoll descriptor watches (`tfd:` in its fdinfo, Linux >= 3.8)."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/fdinfo/{descriptor}") as stream:
        found = [int(line.split()[1]) for line in stream if line.startswith("tfd:")]
        return sorted(found)[:_MOST_WATCHED]
    return []


def path_of(thread: KernelThread, found: ProcessMemory | None) -> str:
    """The path argument of a thread's call: a file server, a disk or a FIFO without a writer blocks it."""
    where = _numbers().paths.get(-1 if thread.syscall is None else thread.syscall)
    if where is None or found is None or len(thread.arguments) <= where:
        return ""
    return found.text(thread.arguments[where], 4096)


def futex_of(thread: KernelThread) -> int:
    """The futex address that a thread waits at; 0 if it is not in a futex call."""
    return thread.arguments[0] if thread.syscall == _numbers().futex and thread.arguments else 0
