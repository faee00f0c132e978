"""Sends the main thread of a process through a piece of code, from a moment at which that does no harm.

A program, run as a child: what stops another process must end with its time, and then the system lets that
one go on by itself (ptrace(2), PTRACE_SEIZE).

Standard input has one JSON object: `pid`, `start` (of `/proc/PID/stat`, field 22), `at` and `data` (the code,
hexadecimal, and the address where it goes), `calling` and `queueing` (where each piece begins:
`act/_trampoline.py`), `below`, `forbidden` (ranges of addresses: allocators, and Python itself), `checks`
(where `PyErr_CheckSignals` is), `now` (whether the code may be called where the thread runs, too) and `gil`
(whether the thread holds it). Standard output gets one: `{"did": "called" | "queued", "in": …}` or
`{"problem": …}`; then nothing was changed.

Everything up to the last step changes nothing that the thread uses. The last step sets its registers; from
then on it finds its way back alone. So it may be killed at any moment, but for one case: while it waits for a
thread that holds the GIL to look for signals, the thread has a breakpoint, and nobody must use SIGKILL.
"""

from __future__ import annotations

import errno
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raydoctor.act.programs.tracee import Registers, Tracee
else:
    sys.path.insert(0, str(Path(__file__).parent))
    from tracee import Registers, Tracee

_STOP = 1.0
"""Seconds that a thread may take to stand still."""
_TRIES, _BETWEEN = 40, 0.003
"""Looks, and seconds between them, until it is somewhere harmless."""
_ALLOCATES = {9, 10, 11, 12, 25, 28, 56, 57, 58, 59, 60, 231, 435}
"""System calls amid an allocation or a fork: mmap, mprotect, munmap, brk, mremap, madvise, clone, … exit."""
_FUTEX, _RESTART = 202, 219
_WAITS = 0.02
"""Seconds: a lock of an allocator is held for less, so what waits longer waits for another."""
_RESTARTS = {-512, -513, -514}
"""ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND (linux/errno.h): the call is to be made again."""
_RESTART_BLOCK = -516
"""ERESTART_RESTARTBLOCK: it is to be made again by `restart_syscall`, which knows how long it waited."""
_CHECKS = 1.0
"""Seconds in which native code that looks for signals at all does so (`re`: every 4096 steps)."""


def main() -> None:
    """Do it, and tell."""
    plan: dict[str, Any] = json.load(sys.stdin)
    try:
        told = _sent(plan)
    except OSError as error:
        told = {"problem": error.strerror or str(error), "errno": error.errno}
    print(json.dumps(told), flush=True)


def _sent(plan: dict[str, Any]) -> dict[str, Any]:
    thread = Tracee(plan["pid"])
    thread.stop(_STOP)
    # It is held from here on: its pid cannot become another's.
    if _start_of(plan["pid"]) != plan["start"]:
        raise ProcessLookupError(errno.ESRCH, "its pid is another process's by now")
    registers = (
        _at_a_check(thread, plan) if plan["now"] and plan["gil"] else _harmless(thread, plan)
    )
    runs = registers.orig_rax < 0
    is_queued = runs and not plan["now"]
    thread.write(plan["at"], bytes.fromhex(plan["data"]))
    _send(thread, registers, plan["queueing" if is_queued else "calling"], plan["below"])
    return {
        "did": "queued" if is_queued else "called",
        "in": "code" if runs else f"system call {registers.orig_rax}",
    }


def _send(thread: Tracee, registers: Registers, code: int, below: int) -> None:
    """Through the code, and then to where it is now."""
    back, result = registers.rip, registers.rax
    if registers.orig_rax >= 0 and result in _RESTARTS:
        back, result = back - 2, registers.orig_rax  # the instruction `syscall` has two bytes
    elif registers.orig_rax >= 0 and result == _RESTART_BLOCK:
        back, result = back - 2, _RESTART
    stack = registers.rsp - below
    thread.write(stack, back.to_bytes(8, "little"))
    # Without a call's number the system does not see to its restart: we just did.
    thread.registers = registers._replace(rip=code, rsp=stack, rax=result, orig_rax=-1)
    thread.let_go()


def _harmless(thread: Tracee, plan: dict[str, Any]) -> Registers:
    """Its registers, once it stands where the code can be called. Raises OSError where that is nowhere."""
    seen: list[Registers] = []
    for registers in _looks(thread):
        seen.append(registers)
        if registers.cs != 0x33:
            raise OSError(errno.ENOEXEC, "it does not run code of 64 bits")
        if registers.orig_rax >= 0:
            if _waits(seen):
                return registers
        elif not plan["now"] or not _is_forbidden(registers.rip, plan):
            return registers
    raise OSError(errno.EBUSY, "its main thread was at no place where it may be sent away from")


def _looks(thread: Tracee) -> Iterator[Registers]:
    """At a thread that stands still; it goes on between them."""
    for _ in range(_TRIES):
        yield thread.registers
        thread.go_on()
        time.sleep(_BETWEEN)
        thread.stop(_STOP)


def _waits(seen: list[Registers]) -> bool:
    """Whether the system call that it is in cannot belong to an allocation."""
    last = seen[-1]
    if last.orig_rax in _ALLOCATES:
        return False
    looks = 1 + int(_WAITS / _BETWEEN)
    same = [
        (r.orig_rax, r.rip, r.rsp) == (last.orig_rax, last.rip, last.rsp) for r in seen[-looks:]
    ]
    return last.orig_rax != _FUTEX or (len(same) == looks and all(same))


def _is_forbidden(address: int, plan: dict[str, Any]) -> bool:
    """Whether code there may be in the middle of an allocation: of the C library, or of Python's own."""
    return any(start <= address < end for start, end in plan["forbidden"])


def _at_a_check(thread: Tracee, plan: dict[str, Any]) -> Registers:
    """Its registers where native code that holds the GIL lets the handlers of signals run: any code may.

    Raises OSError where it does not come there.
    """
    registers = thread.registers
    if registers.orig_rax >= 0:
        raise OSError(errno.EBUSY, "it waits, and holds the GIL")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not thread.comes_to(plan["checks"], _CHECKS):
        raise OSError(errno.EBUSY, "the native code that it is in looks for no signals")
    return thread.registers


def _start_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat", "rb") as stream:
        return stream.read().rpartition(b")")[2].split()[19].decode()


if __name__ == "__main__":
    main()
