"""A few lines of Python, executed by a process that nobody prepared.

On x86-64, raydoctor's own code does that (`trampoline.py`), which may be interrupted at any time. On other
processors gdb does it (`by_gdb.py`), or, from Python 3.14 on, Python itself (`by_remote_exec.py`).
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
"""For the child: to start on a busy machine, and its looks."""


class Injection(NamedTuple):
    """What became of it."""

    did: str
    """`called` (it has begun, or begins with the GIL), `queued` (for Python's next step), `spawned` (a thread
    of its own executes it); empty: nothing."""
    problem: str = ""
    way: str = "injected"
    """`injected`, `gdb` or `remote-exec`: by which it was done, or would have been."""


class _Code(NamedTuple):
    """What is put into a process: the text, and the pieces of code that have Python execute it.

    For one text it is always the same, so that one attempt may write over what another left.
    """

    at: int
    data: bytes
    calling: int
    queueing: int
    spawning: int
    """Where each begins."""


def inject(pid: int, start: str, text: str, *, now: bool, holds_gil: bool) -> Injection:
    """Have the main thread of that process execute the text.

    `now`: also where it runs native code, which no Python follows in the foreseeable future. What runs
    without the GIL is not the main thread then, but one of its own.
    """
    text = _guarded(pid, text)
    if not trampoline.works_here():
        return _otherwise(pid, start, text, now=now, holds_gil=holds_gil)
    try:
        files = elf.code(pid)
        functions, runtime = _functions(pid, files)
        code = _placed(pid, files, functions, text.encode())
    except OSError as error:
        return Injection("", str(error))
    except (ValueError, LookupError) as error:
        # It is not built as others are: gdb knows more of symbols, and remote_exec needs none.
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
    """The text, for that process alone: a child that it forks meanwhile inherits what is queued.

    `threading` takes the thread that imports it first for the main thread, so that must be the main thread.
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
    except (subprocess.TimeoutExpired, ValueError):
        return Injection("", "the process that injects ended before it was done")
    finally:
        # It ends by itself, and is never killed: it may have set a breakpoint.
        with suppress(subprocess.TimeoutExpired):
            child.wait(_SECONDS)
    return Injection(str(reply.get("did", "")), str(reply.get("problem", "")))


def _functions(pid: int, files: list[elf.CodeMapping]) -> tuple[dict[str, int], range | None]:
    """The functions that are needed, and where Python has its own locks, the GIL's among them.

    Raises LookupError where it has not all functions.
    """
    python = [f for f in files if elf.is_python(pid, f)]
    system = [f for f in files if elf.name(f).startswith(elf.SYSTEM)]
    wanted = (*trampoline.FUNCTIONS, elf.RUNTIME)
    found = elf.exported(pid, wanted, python + system)
    runtime = found.pop(elf.RUNTIME, None)
    if missing := [name for name in trampoline.FUNCTIONS if name not in found]:
        raise LookupError(f"it exports no {missing[0]}")
    return {name: where.start for name, where in found.items()}, runtime


def _placed(
    pid: int, files: list[elf.CodeMapping], functions: Mapping[str, int], text: bytes
) -> _Code:
    """The code, for the end of a page of code that is empty; for the one that has it already, if any does.

    Raises LookupError where none is large enough.
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
        raise LookupError("no library of it has room for the code")
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
    """Whether there is any way into a process of that Python but our own code."""
    return by_gdb.is_there() or version >= by_remote_exec.SINCE


def _otherwise(pid: int, start: str, text: str, *, now: bool, holds_gil: bool) -> Injection:
    version = elf.python(pid) or (0, 0)
    may_exec = version >= by_remote_exec.SINCE and not now
    try:
        if may_exec and not (by_gdb.is_there() and by_gdb.waits(pid)):
            by_remote_exec.inject(pid, start, text, version)
            return Injection("queued", way="remote-exec")
        if by_gdb.is_there():
            did = by_gdb.inject(pid, start, text, now=now, holds_gil=holds_gil)
            return Injection(did, way="gdb")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Injection("", getattr(error, "strerror", None) or str(error))
    return Injection("", "gdb is not installed")
