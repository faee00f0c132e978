"""Interrupts the main thread of a process: stops it, waits for a word, sends it SIGINT, restores its mask.

A program, run as a child: what stops another process must end with its time, and then the system lets that
one go on by itself (ptrace(2), PTRACE_SEIZE).

    interrupt_main.py PID

It prints `stopped` once the thread is stopped. On `go` from standard input it prints `sent`; on anything
else, or an end, it lets the thread go on. If it cannot, it prints `failed ERRNO MESSAGE`.

Nothing runs inside the process but its own handler. Ray's workers have Python's handler of SIGINT and block
the signal (`SigBlk` and `SigCgt` of 2.9.3 to 2.60.0), so it is let through this once: by the signal mask
that a stopped thread is given (PTRACE_SETSIGMASK, Linux 3.11).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import sys
import time

_SEIZE, _INTERRUPT, _GETSIGMASK, _SETSIGMASK = 0x4206, 0x4207, 0x420A, 0x420B
_CONT, _DETACH = 7, 17
_WALL = 0x40000000
_TGKILL = {"x86_64": 234, "aarch64": 131}
_MASK_BYTES = 8
_STOP = 1.0
"""Seconds that a thread may take to stop: one that waits for a disk does not."""
_HANDLED = 0.05
"""Seconds until its handler has begun: the mask that the handler's end restores is then the one to fix."""
_BIT = 1 << (signal.SIGINT - 1)


class TracedThread:
    """A thread that we trace."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.restype = ctypes.c_long
        self._libc.ptrace.argtypes = [
            ctypes.c_long,
            ctypes.c_long,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]

    def stop(self) -> None:
        """Make it stand still."""
        self._trace(_SEIZE)
        self._trace(_INTERRUPT)
        self.wait(_STOP)

    def go_on(self, number: int = 0) -> None:
        """Until its next signal; with the one that it stands at."""
        self._trace(_CONT, data=number)

    def let_go(self, number: int = 0) -> None:
        """Trace it no more."""
        self._trace(_DETACH, data=number)

    def wait(self, seconds: float) -> int:
        """The signal that it stops at; 0 where it does not stop for a signal."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, _WALL | os.WNOHANG)
            if pid and not os.WIFSTOPPED(status):
                raise ProcessLookupError(errno.ESRCH, "it has ended")
            if pid:
                return os.WSTOPSIG(status) if status >> 16 == 0 else 0
            time.sleep(0.0005)
        raise TimeoutError(errno.ETIMEDOUT, "its main thread does not stop")

    @property
    def mask(self) -> int:
        """Signals that it blocks, a bit each."""
        bits = ctypes.c_uint64()
        self._trace(_GETSIGMASK, _MASK_BYTES, ctypes.addressof(bits))
        return bits.value

    @mask.setter
    def mask(self, bits: int) -> None:
        self._trace(_SETSIGMASK, _MASK_BYTES, ctypes.addressof(ctypes.c_uint64(bits)))

    def signal(self, number: int) -> None:
        """To this thread, not to whichever of its process is free."""
        if hasattr(self._libc, "tgkill"):  # glibc >= 2.30
            failed = self._libc.tgkill(self.pid, self.pid, number)
        else:
            failed = self._libc.syscall(_TGKILL[platform.machine()], self.pid, self.pid, number)
        if failed:
            _raise()

    def _trace(self, request: int, address: int = 0, data: int = 0) -> None:
        if self._libc.ptrace(request, self.pid, address, data) < 0:
            _raise()


def _raise() -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))


def interrupt(thread: TracedThread) -> None:
    """Have a stopped thread handle one SIGINT."""
    before = thread.mask
    thread.mask = before & ~_BIT
    thread.signal(signal.SIGINT)
    thread.go_on()
    deadline = time.monotonic() + _STOP
    while (number := thread.wait(_STOP)) != signal.SIGINT:
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "it was not given the signal")
        thread.go_on(number)
    thread.let_go(number)
    if before & _BIT:
        time.sleep(_HANDLED)
        thread.stop()
        thread.mask |= _BIT
        thread.let_go()


def main() -> None:
    """Stop, ask, interrupt."""
    thread = TracedThread(int(sys.argv[1]))
    try:
        thread.stop()
        print("stopped", flush=True)
        if sys.stdin.readline() == "go\n":
            interrupt(thread)
            print("sent", flush=True)
        else:
            thread.let_go()
    except OSError as error:
        print(f"failed {error.errno} {error.strerror}", flush=True)


if __name__ == "__main__":
    main()
