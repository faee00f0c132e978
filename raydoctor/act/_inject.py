"""A few lines of Python, executed by a process that nobody prepared.

Where the processor is x86-64 that is done by our own code (`_trampoline.py`), which may be interrupted at
any time; elsewhere by hypno, in a child that only SIGKILL ends before it is done.
"""

from __future__ import annotations

import json
import platform
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from raydoctor.act import _elf, _trampoline

_PROGRAM = Path(__file__).with_name("programs") / "inject_main.py"
_SECONDS = 6.0
"""For the child: to start on a busy machine, and its looks."""
_HYPNO_SECONDS = 20.0
_ALLOCATORS = ("libc.", "libc-", "ld-", "libstdc++", "libjemalloc", "libtcmalloc", "libmimalloc")
_HYPNO = "import json,sys; from hypno import inject_py; inject_py(*json.load(sys.stdin))"


class Injection(NamedTuple):
    """What became of it."""

    did: str
    """`called` (it has begun, or begins with the GIL), `queued` (for Python's next step); empty: nothing."""
    problem: str = ""


class _Ground(NamedTuple):
    """What has to be known of a process before it is touched."""

    functions: dict[str, int]
    at: int
    """Where code can be put."""
    room: int
    allocators: list[tuple[int, int]]


def inject(pid: int, start: str, text: str, *, now: bool, holds_gil: bool) -> Injection:
    """Have the main thread of that process execute the text.

    `now`: also where it runs native code, which no Python follows in the foreseeable future.
    """
    if platform.machine() != _trampoline.MACHINE:
        return _by_hypno(pid, text)
    try:
        ground = _ground(pid)
    except (OSError, struct.error, ValueError, LookupError) as error:
        return Injection("", str(error))
    plain = text.encode()
    calling = _trampoline.calling(ground.functions, ground.at, plain)
    queueing = _trampoline.queueing(ground.functions, ground.at, plain)
    if max(len(calling), len(queueing)) + 8 > ground.room:
        return Injection("", "no library of it has room for the code")
    plan = {
        "pid": pid,
        "start": start,
        "at": ground.at,
        "calling": calling.hex(),
        "queueing": queueing.hex(),
        "below": _trampoline.BELOW,
        "allocators": ground.allocators,
        "now": now,
        "gil": holds_gil,
    }
    return _told(json.dumps(plan))


def _told(plan: str) -> Injection:
    command = [sys.executable, "-I", "-S", str(_PROGRAM)]
    try:
        said = subprocess.run(
            command,
            input=plan.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            start_new_session=True,
            check=False,
        ).stdout
        told = json.loads(said)
    except (subprocess.TimeoutExpired, ValueError):
        return Injection("", "the process that injects ended before it was done")
    return Injection(str(told.get("did", "")), str(told.get("problem", "")))


def _ground(pid: int) -> _Ground:
    """Raises LookupError where it has not what is needed."""
    files = _elf.code(pid)
    # The program first: with Debian's and conda's Python it has Python itself, and no libpython is mapped.
    candidates = [f for f in files if "python" in _elf.name(f).lower()]
    functions = _elf.exported(pid, _trampoline.FUNCTIONS, candidates)
    system = [f for f in files if _elf.name(f).startswith(("libc.", "libc-"))]
    functions |= _elf.exported(pid, set(_trampoline.FUNCTIONS) - functions.keys(), system)
    if missing := [name for name in _trampoline.FUNCTIONS if name not in functions]:
        raise LookupError(f"it exports no {missing[0]}")
    at, room = _room(pid, files)
    allocators = [(f.start, f.end) for f in files if _elf.name(f).startswith(_ALLOCATORS)]
    return _Ground(functions, at, room, allocators)


def _room(pid: int, files: list[_elf.Mapping]) -> tuple[int, int]:
    """The largest end of a page of code that is empty."""
    best = (0, 0)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for mapping in files:
            with suppress(OSError, ValueError, struct.error):
                at, size = _elf.Library(pid, mapping).unused()
                if size > best[1]:
                    memory.seek(at)
                    if not memory.read(size).strip(b"\0"):
                        best = at, size
    return best


def _by_hypno(pid: int, text: str) -> Injection:
    """In a session of its own, so that no Ctrl-C reaches it: killed half-way it would leave a wreck."""
    child = subprocess.Popen(
        [sys.executable, "-c", _HYPNO],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        said = child.communicate(json.dumps([pid, text]).encode(), timeout=_HYPNO_SECONDS)[1]
    except subprocess.TimeoutExpired:
        return Injection("called", "hypno has not come back yet")
    words = said.decode("utf-8", "replace").strip().splitlines()
    return (
        Injection("", words[-1] if words else "hypno failed")
        if child.returncode
        else Injection("called")
    )
