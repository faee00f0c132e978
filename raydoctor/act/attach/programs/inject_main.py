"""Sends the main thread of a process through a piece of code, from a moment at which that does no harm.

A program, run as a child: what stops another process must end with its time, and then the system lets that
one go on by itself (ptrace(2), PTRACE_SEIZE).

Standard input has one JSON object: `pid`, `start` (of `/proc/PID/stat`, field 22), `at` and `data` (the code,
hexadecimal, and the address where it goes), `calling`, `queueing` and `spawning` (where each piece begins:
`act/attach/trampoline.py`), `below`, `system` and `forbidden` (ranges of addresses: the C library;
allocators and Python itself), `runtime` (the range that has the GIL's locks, or null), `checks` (where
`PyErr_CheckSignals` is), `now` (whether no next step of Python is to be waited for) and `gil` (whether the
thread holds it). Standard output gets one: `{"did": "called" | "queued" | "spawned", "in": …}` or
`{"problem": …}`; then nothing was changed.

Which piece a thread is sent through depends on where it stands:

* It is blocked for long, and not on a lock of Python's own: it executes the text at once. Python code there
  waits for the GIL, so the thread must be in none of the GIL's condition variables, which cannot be entered
  twice, and hold no lock that another thread needs to release the GIL.
* It is in any other system call, or runs outside of the C library: it queues the text, which takes no lock
  but that of the queue, and returns at once. The thread executes it when it has the GIL of its own accord.
* It runs native code without the GIL, and no next step of Python is in sight: it starts a thread that
  executes the text, and goes on itself.

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
"""Seconds that a thread may take to stand still."""
_TRIES, _BETWEEN = 40, 0.003
"""Looks, and seconds between them, until it is somewhere harmless."""
_PATIENCE = 4.0
"""Seconds for all looks, on a machine where each takes long."""
_ALLOCATES = {9, 10, 11, 12, 25, 28, 56, 57, 58, 59, 60, 231, 435}
"""System calls amid an allocation or a fork: mmap, mprotect, munmap, brk, mremap, madvise, clone, … exit."""
_RESTART = 219
_ABSOLUTE = {9, 11, 13}
"""Operations of futex(2) whose timeout is a point in time: they are made again as they are."""
_OPERATION = 0x7F
"""Without its flags: FUTEX_PRIVATE_FLAG, FUTEX_CLOCK_REALTIME."""
_RESTARTS = {-512, -513, -514}
"""ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND (linux/errno.h): the call is to be made again."""
_RESTART_BLOCK = -516
"""ERESTART_RESTARTBLOCK: it is to be made again by `restart_syscall`, which knows how long it waited."""
_UNSIGNED = (1 << 64) - 1
_CODE_OF_64_BITS = 0x33
"""The code segment's selector (arch/x86/include/asm/segment.h, __USER_CS)."""
_DID = {"calling": "called", "queueing": "queued", "spawning": "spawned"}
_WAITING = {*_RESTARTS, _RESTART_BLOCK, -errno.EINTR}
"""What a system call that we interrupted returns."""
_CHECKS = 1.0
"""Seconds in which native code that looks for signals at all does so (`re`: every 4096 steps)."""
_ROOM = {"calling": 512 << 10, "queueing": 64 << 10, "spawning": 64 << 10}
"""Bytes of the stack that each piece needs at most: vector registers, and what it calls."""


def main() -> None:
    """Do it, and tell."""
    plan: dict[str, Any] = json.load(sys.stdin)
    try:
        result = _sent(plan)
    except OSError as error:
        result = {"problem": error.strerror or str(error), "errno": error.errno}
    print(json.dumps(result), flush=True)


def _sent(plan: dict[str, Any]) -> dict[str, Any]:
    thread = Tracee(plan["pid"])
    thread.stop(_STOP)
    # It is held from here on: its pid cannot become another's.
    if _start_of(plan["pid"]) != plan["start"]:
        raise ProcessLookupError(errno.ESRCH, "its pid now belongs to another process")
    # Whether it holds the GIL was seen a while ago: by now it may wait for it.
    if plan["now"] and plan["gil"] and not _asks_for_python(thread.registers, plan):
        registers, way = _at_a_check(thread, plan), "calling"
    else:
        registers, way = _harmless(thread, plan)
    thread.write(plan["at"], bytes.fromhex(plan["data"]))
    _send(thread, registers, plan[way], plan["below"])
    runs = registers.orig_rax < 0
    return {"did": _DID[way], "in": "code" if runs else f"system call {registers.orig_rax}"}


def _send(thread: Tracee, registers: Registers, code: int, below: int) -> None:
    """Through the code, and then to where it is now."""
    back, result = registers.rip, registers.rax
    if registers.orig_rax >= 0 and result in _RESTARTS:
        back, result = back - 2, registers.orig_rax  # the instruction `syscall` has two bytes
    elif registers.orig_rax >= 0 and result == _RESTART_BLOCK:
        # What the code waits for itself may replace what the system knows of the call that it is to restart.
        is_absolute = _is_futex(registers) and registers.rsi & _OPERATION in _ABSOLUTE
        back, result = back - 2, registers.orig_rax if is_absolute else _RESTART
    stack = registers.rsp - below
    thread.write(stack, back.to_bytes(8, "little"))
    # Without a call's number the system does not see to its restart: we just did.
    thread.registers = registers._replace(rip=code, rsp=stack, rax=result, orig_rax=-1)
    thread.let_go()


def _harmless(thread: Tracee, plan: dict[str, Any]) -> tuple[Registers, str]:
    """Its registers, once it stands where it can be sent through a piece of code, and which.

    Raises OSError where that is nowhere.
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
            raise OSError(errno.ENOEXEC, "it does not run code of 64 bits")
        way = _way(registers, call, plan)
        if way and _has_room(plan["pid"], registers.rsp, _ROOM[way]):
            return registers, way
    raise OSError(errno.EBUSY, "its main thread was at no place where it may be sent away from")


def _way(registers: Registers, call: SystemCall | None, plan: dict[str, Any]) -> str:
    """Which piece of code it may be sent through; empty: none."""
    if registers.orig_rax < 0:
        return _way_of_code(registers.rip, plan)
    if registers.orig_rax in _ALLOCATES:
        return ""
    if _asks_for_python(registers, plan):
        return "queueing"
    # What has come back from its wait meanwhile is not blocked any more.
    if _call(registers) == call and registers.rax in _WAITING:
        return "calling"
    if not plan["now"]:
        return "queueing"
    return "" if _is_futex(registers) else "spawning"


def _way_of_code(address: int, plan: dict[str, Any]) -> str:
    """The same, of a thread that runs and is in no system call."""
    if _is_in(plan["system"], address):
        return ""
    if not plan["now"]:
        return "queueing"
    return "" if _is_in(plan["forbidden"], address) else "spawning"


def _asks_for_python(registers: Registers, plan: dict[str, Any]) -> bool:
    """Whether it waits for a lock of Python's own; any lock may be one where these cannot be found."""
    is_one = plan["runtime"] is None or _is_in([plan["runtime"]], registers.rdi)
    return _is_futex(registers) and is_one


def _call(registers: Registers) -> SystemCall:
    return SystemCall(registers.orig_rax, registers.rdi & _UNSIGNED, registers.rsp, registers.rip)


def _is_futex(registers: Registers) -> bool:
    return registers.orig_rax == blocked.FUTEX


def _is_in(ranges: list[list[int]], address: int) -> bool:
    return any(start <= address < end for start, end in ranges)


def _has_room(pid: int, stack: int, size: int) -> bool:
    """Whether so much of the stack is left: of the main thread's, which grows, or one that a program made."""
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
