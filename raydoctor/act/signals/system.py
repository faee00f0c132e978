"""The operating system behind `process.py`: pidfds on Linux, plain pids elsewhere.

Facts: pidfd_open(2) and pidfd_send_signal(2), Linux 5.3 and 5.1, have the numbers 434 and 424 on every
architecture but Alpha; a Python that was built with older headers (conda's) lacks the functions, not the
system calls. A pidfd is readable once its process has ended, reaped or not. `/proc/PID/status` has the real
and the effective user id first; the owner of `/proc/PID` is root where a process may not be dumped.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from raydoctor.observe.processes import proc

_PIDFD_OPEN, _PIDFD_SEND_SIGNAL = 434, 424
_INTERVAL = 0.02
"""Seconds between two checks of processes without a pidfd."""


class Handles(Protocol):
    """How processes are held."""

    def hold(self, pid: int) -> int | None:
        """A handle on the process that has this pid now; None if there is none."""

    def release(self, handle: int) -> None:
        """Close a handle."""

    def signal(self, handle: int, number: int) -> None:
        """Send a signal to the held process."""

    def ended(self, handles: Collection[int], seconds: float) -> set[int]:
        """Handles whose process has ended; waits up to `seconds` for all."""


@dataclass(slots=True)
class RealSystem:
    """This machine (`process.System`)."""

    handles: Handles
    is_exact: bool

    def hold(self, pid: int) -> int | None:
        """A handle on the process that has this pid now."""
        return self.handles.hold(pid)

    def release(self, handle: int) -> None:
        """Close a handle."""
        self.handles.release(handle)

    def signal(self, handle: int, number: int) -> None:
        """Send a signal to the held process."""
        self.handles.signal(handle, number)

    def ended(self, handles: Collection[int], seconds: float) -> set[int]:
        """Handles whose process has ended."""
        return self.handles.ended(handles, seconds)

    def started_at(self, pid: int) -> float | None:
        """When the process that has this pid now started."""
        process = proc.read(pid)
        return None if process is None else process.started_at

    def users(self, pid: int) -> frozenset[int]:
        """Its real and its effective user id."""
        return _users_linux(pid) if proc.LINUX else _users_elsewhere(pid)

    def protected(self) -> frozenset[int]:
        """Pids of this process and its ancestors."""
        found: set[int] = set()
        pid = os.getpid()
        while pid > 0 and pid not in found:
            found.add(pid)
            process = proc.read(pid)
            pid = process.ppid if process else 0
        return frozenset(found)

    def uid(self) -> int:
        """The effective user id of this process."""
        return os.geteuid()

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        return time.monotonic()


@cache
def real_system() -> RealSystem:
    """This machine; processes are held by pidfds if the kernel and the sandbox support them."""
    if proc.LINUX:
        handles = Pidfds()
        own = handles.hold(os.getpid())
        if own is not None:
            handles.release(own)
            return RealSystem(handles, is_exact=True)
    return RealSystem(Pids(), is_exact=False)


# ------------------------------------------------------------------ pidfds


class Pidfds:
    """A handle is a pidfd."""

    def hold(self, pid: int) -> int | None:
        """None if there is no such process, or the system has no pidfds."""
        try:
            return _pidfd_open(pid)
        except OSError as error:
            # Old kernels return EINVAL for the id of a thread that is not a process.
            if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOSYS, errno.EPERM):
                return None
            raise

    def release(self, handle: int) -> None:
        """Close it."""
        os.close(handle)

    def signal(self, handle: int, number: int) -> None:
        """As pidfd_send_signal(2) does."""
        _pidfd_send_signal(handle, number)

    def ended(self, handles: Collection[int], seconds: float) -> set[int]:
        """Sleeps until all have ended."""
        poll = select.poll()
        for handle in handles:
            poll.register(handle, select.POLLIN)
        deadline = time.monotonic() + seconds
        found: set[int] = set()
        while len(found) < len(set(handles)):
            left = max(0.0, deadline - time.monotonic())
            ready = [handle for handle, _ in poll.poll(left * 1000)]
            for handle in ready:
                poll.unregister(handle)
            found.update(ready)
            if not ready and left <= 0:
                break
        return found


def _pidfd_open(pid: int) -> int:
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    handle = _call(_PIDFD_OPEN, pid, 0)
    os.set_inheritable(handle, False)
    return handle


def _pidfd_send_signal(handle: int, number: int) -> None:
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(handle, number)
    else:
        _call(_PIDFD_SEND_SIGNAL, handle, number, None, 0)


def _call(number: int, *arguments: int | None) -> int:
    """A system call by its number. Raises its error as OSError."""
    if platform.machine() == "alpha":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    words = [None if a is None else ctypes.c_long(a) for a in arguments]
    result = int(syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


# ------------------------------------------------------------------ plain pids


@dataclass(slots=True)
class Pids:
    """A handle is a number for a pid and the start that it had; both are read again before each signal."""

    _held: dict[int, tuple[int, float]] = field(default_factory=dict)
    _last: int = 0

    def hold(self, pid: int) -> int | None:
        """None if there is no such process."""
        process = proc.read(pid)
        if process is None:
            return None
        self._last += 1
        self._held[self._last] = (pid, process.started_at)
        return self._last

    def release(self, handle: int) -> None:
        """Drop a handle."""
        del self._held[handle]

    def signal(self, handle: int, number: int) -> None:
        """As kill(2) does."""
        pid, begun = self._held[handle]
        process = proc.read(pid)
        if process is None or process.started_at != begun:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        os.kill(pid, number)

    def ended(self, handles: Collection[int], seconds: float) -> set[int]:
        """Polls until all have ended."""
        deadline = time.monotonic() + seconds
        while True:
            found = {handle for handle in handles if self._has_ended(handle)}
            left = deadline - time.monotonic()
            if len(found) == len(set(handles)) or left <= 0:
                return found
            time.sleep(min(_INTERVAL, left))

    def _has_ended(self, handle: int) -> bool:
        pid, begun = self._held[handle]
        process = proc.read(pid)
        return process is None or process.state == "Z" or process.started_at != begun


# ------------------------------------------------------------------ users


def _users_linux(pid: int) -> frozenset[int]:
    with suppress(OSError), open(f"/proc/{pid}/status", "rb") as stream:
        for line in stream:
            if line.startswith(b"Uid:"):
                real, effective = line.split()[1:3]
                return frozenset((int(real), int(effective)))
    return frozenset()


def _users_elsewhere(pid: int) -> frozenset[int]:
    import psutil

    with suppress(psutil.Error):
        users = psutil.Process(pid).uids()
        return frozenset((users.real, users.effective))
    return frozenset()
