"""Makes the main thread of a process execute a piece of code, from a position at which that is safe.

A program, run as a child: a process that stops another one must have a time limit, and when it ends, the
kernel resumes the other one (ptrace(2), PTRACE_SEIZE).

Standard input has one JSON object: `pid`, `start` (of `/proc/PID/stat`, field 22), `data` (the code,
hexadecimal) and `at` (its address), `calling`, `queueing` and `spawning` (address of each piece:
`act/attach/trampoline.py`), `below`, `system` and `forbidden` (ranges of addresses: the C library; allocators
and Python itself), `runtime` (the range with the GIL's locks, or null), `checks` (address of
`PyErr_CheckSignals`), `now` (whether not to wait for the next step of Python) and `gil` (whether the thread
holds the GIL). Standard output gets one: `{"did": "called" | "queued" | "spawned", "in": …}`, or `{"problem":
…}` if nothing was changed.

The piece that the thread executes depends on its position:

* It is blocked for long, and not on a lock of Python itself: it executes the text immediately. The Python
code
  waits for the GIL, so the thread must not be in one of the GIL's condition variables, which cannot be
  entered twice, or hold a lock that another thread needs to release the GIL.
* It is in any other system call, or runs outside of the C library: it queues the text, which only takes the
lock
  of the queue, and returns immediately. The thread executes the text when it next has the GIL.
* It runs native code without the GIL, and will reach no Python code soon: it starts a thread that executes
the
  text, and continues.

No step before the last one changes anything that the thread uses. The last step sets its registers; from then
on the code returns without help. So this program may be killed at any time, with one exception: while it
waits for a thread that holds the GIL to check for signals, the thread has a breakpoint, and SIGKILL must not
be used.
"""

from __future__ import annotations

import errno
import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raydoctor.act.attach.programs import blocked
    from raydoctor.act.attach.programs.blocked import SystemCall
    from raydoctor.act.attach.programs.tracee import Registers, Tracee
else:
    sys.path.insert(0, str(Path(__file__).parent))
    import blocked
    from blocked import SystemCall
    from tracee import Registers, Tracee

_STOP = 1.0
"""Seconds that a thread may take to stop."""
_TRIES, _BETWEEN = 40, 0.003
"""Attempts to find it at a safe position, and seconds between them."""
_PATIENCE = 4.0
"""Seconds for all attempts, on a slow machine."""
_ALLOCATES = {9, 10, 11, 12, 25, 28, 56, 57, 58, 59, 60, 231, 435}
"""System calls during an allocation or a fork: mmap, mprotect, munmap, brk, mremap, madvise, clone, …
exit."""
_RESTART = 219
_ABSOLUTE = {9, 11, 13}
"""Operations of futex(2) with an absolute timeout, which are restarted with the same arguments."""
_OPERATION = 0x7F
"""Mask without the flags FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME."""
_RESTARTS = {-512, -513, -514}
"""ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND (linux/errno.h): the call must be restarted."""
_RESTART_BLOCK = -516
"""ERESTART_RESTARTBLOCK: it must be restarted by `restart_syscall`, which subtracts the elapsed time."""
_UNSIGNED = (1 << 64) - 1
_CODE_OF_64_BITS = 0x33
"""The code segment's selector (arch/x86/include/asm/segment.h, __USER_CS)."""
_DID = {"calling": "called", "queueing": "queued", "spawning": "spawned"}
_WAITING = {*_RESTARTS, _RESTART_BLOCK, -errno.EINTR}
"""Results of an interrupted system call."""
_CHECKS = 1.0
"""Seconds within which native code that checks for signals does so (`re`: every 4096 steps)."""
_ROOM = {"calling": 512 << 10, "queueing": 64 << 10, "spawning": 64 << 10}
"""Largest stack use of each piece in bytes: vector registers, and the functions that it calls."""


def main() -> None:
    """Carry out the plan and print the result."""
    plan: dict[str, Any] = json.load(sys.stdin)
    try:
        result = _sent(plan)
    except OSError as error:
        result = {"problem": error.strerror or str(error), "errno": error.errno}
    print(json.dumps(result), flush=True)


def _sent(plan: dict[str, Any]) -> dict[str, Any]:
    thread = Tracee(plan["pid"])
    thread.stop(_STOP)
    # It is traced from here on: its pid cannot be reused.
    if _start_of(plan["pid"]) != plan["start"]:
        raise ProcessLookupError(errno.ESRCH, "its pid now belongs to another process")
    # It held the GIL a while ago, but may wait for it by now.
    if plan["now"] and plan["gil"] and not _waits_for_python(thread.registers, plan):
        registers, way = _at_check(thread, plan), "calling"
    else:
        registers, way = _at_safe_position(thread, plan)
    thread.write(plan["at"], bytes.fromhex(plan["data"]))
    _send(thread, registers, plan[way], plan["below"])
    runs = registers.orig_rax < 0
    return {"did": _DID[way], "in": "code" if runs else f"system call {registers.orig_rax}"}


def _send(thread: Tracee, registers: Registers, code: int, below: int) -> None:
    """Make it execute the code and then return to its current position."""
    back, result = registers.rip, registers.rax
    if registers.orig_rax >= 0 and result in _RESTARTS:
        back, result = back - 2, registers.orig_rax  # `syscall` is an instruction of two bytes
    elif registers.orig_rax >= 0 and result == _RESTART_BLOCK:
        # A wait in the injected code may overwrite the kernel's data about the call to be restarted.
        is_absolute = _is_futex(registers) and registers.rsi & _OPERATION in _ABSOLUTE
        back, result = back - 2, registers.orig_rax if is_absolute else _RESTART
    stack = registers.rsp - below
    thread.write(stack, back.to_bytes(8, "little"))
    # Without the call's number, the kernel does not restart it again.
    thread.registers = registers._replace(rip=code, rsp=stack, rax=result, orig_rax=-1)
    thread.let_go()


def _at_safe_position(thread: Tracee, plan: dict[str, Any]) -> tuple[Registers, str]:
    """Its registers at a position from which it can execute a piece of code, and which piece.

    Raises OSError if it reaches no such position.
    """
    deadline = time.monotonic() + _PATIENCE
    for number in range(_TRIES):
        if number and time.monotonic() > deadline:
            break
        thread.go_on()
        time.sleep(_BETWEEN)
        call = blocked.lasting(plan["pid"])
        thread.stop(_STOP)
        registers = thread.registers
        if registers.cs != _CODE_OF_64_BITS:
            raise OSError(errno.ENOEXEC, "it does not run 64-bit code")
        way = _way(registers, call, plan)
        if way and _has_room(plan["pid"], registers.rsp, _ROOM[way]):
            return registers, way
    raise OSError(
        errno.EBUSY, "its main thread did not reach a position where it can be interrupted safely"
    )


def _way(registers: Registers, call: SystemCall | None, plan: dict[str, Any]) -> str:
    """The piece of code that it may execute; empty: none."""
    if registers.orig_rax < 0:
        return _way_of_code(registers.rip, plan)
    if registers.orig_rax in _ALLOCATES:
        return ""
    if _waits_for_python(registers, plan):
        return "queueing"
    # If the call has returned meanwhile, the thread is not blocked any more.
    if _call(registers) == call and registers.rax in _WAITING:
        return "calling"
    if not plan["now"]:
        return "queueing"
    return "" if _is_futex(registers) else "spawning"


def _way_of_code(address: int, plan: dict[str, Any]) -> str:
    """The same for a running thread, which is in no system call."""
    if _is_in(plan["system"], address):
        return ""
    if not plan["now"]:
        return "queueing"
    return "" if _is_in(plan["forbidden"], address) else "spawning"


def _waits_for_python(registers: Registers, plan: dict[str, Any]) -> bool:
    """Whether it waits for a lock of Python itself; True for any lock if these cannot be found."""
    is_one = plan["runtime"] is None or _is_in([plan["runtime"]], registers.rdi)
    return _is_futex(registers) and is_one


def _call(registers: Registers) -> SystemCall:
    return SystemCall(registers.orig_rax, registers.rdi & _UNSIGNED, registers.rsp, registers.rip)


def _is_futex(registers: Registers) -> bool:
    return registers.orig_rax == blocked.FUTEX


def _is_in(ranges: list[list[int]], address: int) -> bool:
    return any(start <= address < end for start, end in ranges)


def _has_room(pid: int, stack: int, size: int) -> bool:
    """Whether this much of the stack is left: of the growing main stack, or of one that a program
    allocated."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            start, end = (int(each, 16) for each in line.partition(" ")[0].split("-"))
            if start <= stack < end:
                if line.rstrip().endswith("[stack]"):
                    start = min(start, end - _largest_stack(pid))
                return stack - start >= size
    return False


def _largest_stack(pid: int) -> int:
    with open(f"/proc/{pid}/limits", encoding="ascii") as limits:
        (soft,) = (line.split()[3] for line in limits if line.startswith("Max stack size"))
    return 1 << 40 if soft == "unlimited" else int(soft)


def _at_check(thread: Tracee, plan: dict[str, Any]) -> Registers:
    """Its registers where native code that holds the GIL checks for signals, so that any code may run.

    Raises OSError if it does not reach such a check.
    """
    registers = thread.registers
    if registers.orig_rax >= 0:
        raise OSError(errno.EBUSY, "it is blocked while it holds the GIL")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not thread.runs_to(plan["checks"], _CHECKS):
        raise OSError(errno.EBUSY, "its native code does not check for signals")
    return thread.registers


def _start_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat", "rb") as stream:
        return stream.read().rpartition(b")")[2].split()[19].decode()


if __name__ == "__main__":
    main()
