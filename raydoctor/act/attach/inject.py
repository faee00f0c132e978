"""Has an unprepared process execute a few lines of Python.

On x86-64, raydoctor's own code injects them (`trampoline.py`), and may be interrupted at any time. On other
processors gdb injects them (`by_gdb.py`), or, from Python 3.14 on, Python itself (`by_remote_exec.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from raydoctor.act.attach import by_gdb, by_remote_exec, elf, trampoline

_PROGRAM = Path(__file__).with_name("programs") / "inject_main.py"
_SECONDS = 10.0
"""Seconds for the child: its start on a busy machine, and its attempts."""


class Injection(NamedTuple):
    """The result of an injection."""

    did: str
    """`called` (it has begun, or begins once it gets the GIL), `queued` (as a pending call of Python),
    `spawned` (a new thread executes it); empty: nothing."""
    problem: str = ""
    way: str = "injected"
    """`injected`, `gdb` or `remote-exec`: the way that was used or tried."""


class _Code(NamedTuple):
    """The data written into a process: the text, and code that has Python execute it.

    It is the same for each attempt with one text, so that an attempt may overwrite an earlier one.
    """

    at: int
    data: bytes
    calling: int
    queueing: int
    spawning: int
    """Addresses of the pieces of code."""


def inject(pid: int, start: str, text: str, *, now: bool, holds_gil: bool) -> Injection:
    """Have the main thread of that process execute the text.

    `now`: also if it is in native code that will not return to Python soon. If that code does not hold the
    GIL, a new thread executes the text instead of the main thread.
    """
    text = _guarded(pid, text)
    if not trampoline.is_supported():
        return _otherwise(pid, start, text, now=now, holds_gil=holds_gil)
    try:
        files = elf.code(pid)
        functions, runtime = _functions(pid, files)
        code = _placed(pid, files, functions, text.encode())
    except OSError as error:
        return Injection("", str(error))
    except (ValueError, LookupError) as error:
        # An unusual build: gdb knows more symbols, and remote_exec needs none.
        made = _otherwise(pid, start, text, now=now, holds_gil=holds_gil)
        return made if made.did else made._replace(problem=f"{error}; {made.problem}")
    plan = {
        "pid": pid,
        "start": start,
        **code._replace(data=b"")._asdict(),
        "data": code.data.hex(),
        "below": trampoline.BELOW,
        "system": [(f.start, f.end) for f in files if elf.name(f).startswith(elf.SYSTEM)],
        "forbidden": [
            (f.start, f.end)
            for f in files
            if elf.name(f).startswith(elf.ALLOCATORS) or functions["PyErr_CheckSignals"] in f
        ],
        "runtime": (runtime.start, runtime.stop) if runtime else None,
        "checks": functions["PyErr_CheckSignals"],
        "now": now,
        "gil": holds_gil,
    }
    return _run_program(json.dumps(plan))


def _guarded(pid: int, text: str) -> str:
    """The text, restricted to that process: a forked child inherits pending calls.

    `threading` treats the thread that first imports it as the main thread, so that must be the main thread.
    """
    return (
        f"__import__('os').getpid() == {pid} and ('threading' in __import__('sys').modules"
        f" or __import__('_thread').get_native_id() == {pid}) and exec({text!r}, {{}})"
    )


def _run_program(plan: str) -> Injection:
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        reply = json.loads(child.communicate(plan.encode(), timeout=_SECONDS)[0])
    except (subprocess.TimeoutExpired, ValueError, RecursionError):
        return Injection("", "the injecting process ended early")
    finally:
        # It ends by itself, and is never killed: it may have set a breakpoint.
        with suppress(subprocess.TimeoutExpired):
            child.wait(_SECONDS)
    return Injection(str(reply.get("did", "")), str(reply.get("problem", "")))


def _functions(pid: int, files: list[elf.CodeMapping]) -> tuple[dict[str, int], range | None]:
    """The required functions, and the range with Python's own locks, including the GIL.

    Raises LookupError if a function is missing.
    """
    python = [f for f in files if elf.is_python(pid, f)]
    system = [f for f in files if elf.name(f).startswith(elf.SYSTEM)]
    wanted = (*trampoline.FUNCTIONS, elf.RUNTIME)
    found = elf.exported(pid, wanted, python + system)
    runtime = found.pop(elf.RUNTIME, None)
    if missing := [name for name in trampoline.FUNCTIONS if name not in found]:
        raise LookupError(f"it does not export {missing[0]}")
    return {name: where.start for name, where in found.items()}, runtime


def _placed(
    pid: int, files: list[elf.CodeMapping], functions: Mapping[str, int], text: bytes
) -> _Code:
    """The code for unused memory at the end of a page of code, preferably where it already is.

    Raises LookupError if there is not enough room.
    """
    free = None
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for mapping in files:
            with suppress(OSError, ValueError), elf.Library(pid, mapping) as library:
                at, size = library.unused()
                code = _code(at, functions, text)
                if size < len(code.data):
                    continue
                memory.seek(at)
                there = memory.read(size)
                if there.startswith(code.data):
                    return code
                if free is None and not there.strip(b"\0"):
                    free = code
    if free is None:
        raise LookupError("none of its libraries has room for the code")
    return free


def _code(at: int, functions: Mapping[str, int], text: bytes) -> _Code:
    data = text + b"\0"

    def put(make: Callable[[Mapping[str, int], int], bytes], about: int) -> int:
        nonlocal data
        data += b"\0" * (-len(data) % 16)
        begins = at + len(data)
        data += make(functions, about)
        return begins

    calling = put(trampoline.calling, at)
    queueing = put(trampoline.queueing, at)
    spawning = put(trampoline.spawning, put(trampoline.thread, at))
    return _Code(at, data + b"\0" * (-len(data) % 8), calling, queueing, spawning)


def has_other_ways(version: tuple[int, int]) -> bool:
    """Whether gdb or `sys.remote_exec` can enter a process of that Python version."""
    return by_gdb.is_there() or version >= by_remote_exec.SINCE


def _otherwise(pid: int, start: str, text: str, *, now: bool, holds_gil: bool) -> Injection:
    version = elf.python(pid) or (0, 0)
    may_exec = version >= by_remote_exec.SINCE and not now
    try:
        if may_exec and not (
            by_gdb.waits(pid) and by_gdb.is_there() and by_gdb.restores_registers()
        ):
            by_remote_exec.inject(pid, start, text, version)
            return Injection("queued", way="remote-exec")
        if by_gdb.is_there():
            did = by_gdb.inject(pid, start, text, now=now, holds_gil=holds_gil)
            return Injection(did, way="gdb")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Injection("", getattr(error, "strerror", None) or str(error))
    return Injection("", "gdb is not installed")
