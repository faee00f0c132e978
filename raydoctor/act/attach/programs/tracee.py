"""Traces one thread of another process by ptrace(2): stops, reads, writes and releases it.

It uses PTRACE_SEIZE: the thread gets no signal, and if this process ends, the kernel resumes the thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import time
from typing import NamedTuple

_SEIZE, _INTERRUPT = 0x4206, 0x4207
_POKE, _POKE_USER, _CONT, _GETREGS, _SETREGS, _DETACH = 5, 6, 7, 12, 13, 17
_WALL = 0x40000000
_SURELY = 60.0
"""Seconds to stop a thread with a breakpoint, even on a very busy machine: the breakpoint must be removed."""
_DEBUG = 848
"""Offset of the debug registers in `struct user` (sys/user.h): `offsetof(struct user, u_debugreg)`."""


class Registers(NamedTuple):
    """`struct user_regs_struct` of x86-64 (sys/user.h)."""

    r15: int
    r14: int
    r13: int
    r12: int
    rbp: int
    rbx: int
    r11: int
    r10: int
    r9: int
    r8: int
    rax: int
    rcx: int
    rdx: int
    rsi: int
    rdi: int
    orig_rax: int
    """The number of its current system call; negative if it is in none."""
    rip: int
    cs: int
    eflags: int
    rsp: int
    ss: int
    fs_base: int
    gs_base: int
    ds: int
    es: int
    fs: int
    gs: int


_LAYOUT = struct.Struct("<27q")


class Tracee:
    """A traced thread."""

    def __init__(self, tid: int) -> None:
        self.tid = tid
        libc = ctypes.CDLL(None, use_errno=True)
        self._ptrace = libc.ptrace
        self._ptrace.restype = ctypes.c_long
        self._ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._trace(_SEIZE)

    def stop(self, seconds: float) -> None:
        """Stop it. Raises TimeoutError if that fails: in an uninterruptible wait for a disk, for example."""
        self._trace(_INTERRUPT)
        # Signals that are already pending are delivered first.
        while number := self._next_stop(seconds):
            self.go_on(number)

    def runs_to(self, address: int, seconds: float) -> bool:
        """Run it until it reaches that address, or for `seconds`; returns whether it did. It is then
        stopped."""
        self._break_at(address, 1)
        try:
            self.go_on()
            while (number := self._next_stop(seconds)) != signal.SIGTRAP:
                self.go_on(number)
        except TimeoutError:
            self.stop(_SURELY)
        finally:
            self._break_at(0, 0)
        return self.registers.rip == address

    def _break_at(self, address: int, control: int) -> None:
        """Set a hardware breakpoint for this thread only, without changing the program."""
        self._trace(_POKE_USER, _DEBUG, address)
        self._trace(_POKE_USER, _DEBUG + 7 * 8, control)

    def _next_stop(self, seconds: float) -> int:
        """The signal at which it stops; 0 for a requested stop. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.tid, _WALL | os.WNOHANG)
            if not pid:
                time.sleep(0.0002)
            elif not os.WIFSTOPPED(status):
                raise ProcessLookupError(errno.ESRCH, "it has ended")
            else:
                return 0 if status >> 16 else os.WSTOPSIG(status)
        raise TimeoutError(errno.ETIMEDOUT, "its main thread does not stop")

    def go_on(self, number: int = 0) -> None:
        """Resume it until its next stop, delivering that signal."""
        self._trace(_CONT, data=number)

    def let_go(self) -> None:
        """Resume it and stop tracing."""
        self._trace(_DETACH)

    @property
    def registers(self) -> Registers:
        """Registers of the stopped thread."""
        room = ctypes.create_string_buffer(_LAYOUT.size)
        self._trace(_GETREGS, data=ctypes.addressof(room))
        return Registers(*_LAYOUT.unpack(room.raw))

    @registers.setter
    def registers(self, wanted: Registers) -> None:
        room = ctypes.create_string_buffer(_LAYOUT.pack(*wanted), _LAYOUT.size)
        self._trace(_SETREGS, data=ctypes.addressof(room))

    def write(self, address: int, data: bytes) -> None:
        """Write to its memory in words of 8 bytes, also to pages that are read-only for it."""
        padded = data + b"\0" * (-len(data) % 8)
        for at in range(0, len(padded), 8):
            (word,) = struct.unpack_from("<Q", padded, at)
            self._trace(_POKE, address + at, word)

    def _trace(self, request: int, address: int = 0, data: int = 0) -> None:
        if self._ptrace(request, self.tid, address, data) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
