"""A few lines of Python, executed by a process that gdb holds: where our own code does not run (aarch64 …).

gdb calls functions of Python in the main thread and puts its registers back, in 0.3 s and 80 MB (gdb 13.1).
Until then nobody may end it with SIGKILL, which would leave the thread in the middle of nowhere: it has a
session of its own, and what takes too long is interrupted, upon which gdb takes its call back. A bare sleep
in C code is cut short (EINTR); Python's own calls begin again (PEP 475).

The same rules as for our own code (`programs/inject_main.py`): a thread in a system call that lasts is sent
at once, one that runs only notes the text for its next step.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from raydoctor.act import _elf
from raydoctor.act.arm import start_of

_SECONDS = 15.0
_LOOKS, _BETWEEN = 6, 0.005
"""Of a system call that lasts: 25 ms. An allocator's lock is held for less."""
_TRIES = 3
_OPTIONS = (
    *("--batch", "-nx", "-nh", "-iex", "set auto-load no", "-iex", "set auto-solib-add off"),
    *("-iex", "set debuginfod enabled off"),
)
_BEGIN = """\
set pagination off
set confirm off
set unwindonsignal on
handle all nostop noprint pass
sharedlibrary libpython
"""
_CALL = """\
if {where}
  restore {file} binary {at:#x}
  set $gil = ((int (*)(void))PyGILState_Ensure)()
  call (void)((int (*)(const char *))PyRun_SimpleString)((const char *){at:#x})
  call (void)((void (*)(int))PyGILState_Release)($gil)
  echo did=called\\n
else
  echo did=moved\\n
end
"""
_QUEUE = """\
restore {file} binary {at:#x}
set $failed = ((int (*)(void *, void *))Py_AddPendingCall)((void *)PyRun_SimpleString, (void *){at:#x})
if $failed == 0
  echo did=queued\\n
else
  echo did=full\\n
end
"""


def is_there() -> bool:
    """Whether gdb is installed."""
    return shutil.which("gdb") is not None


def inject(pid: int, start: str, text: str, *, now: bool, holds_gil: bool) -> str:
    """Have the main thread execute the text; `called` or `queued` (for Python's next step).

    Raises OSError where it could not be; then nothing was changed.
    """
    if now and holds_gil:
        raise OSError(
            errno.EBUSY, "it is in native code that keeps the GIL, where gdb must not call"
        )
    data = text.encode() + b"\0"
    at = _room(pid, len(data))
    with tempfile.TemporaryDirectory(prefix="raydoctor-") as folder:
        script, file = Path(folder, "script"), Path(folder, "text")
        file.write_bytes(data)
        for _ in range(_TRIES):
            where = waits(pid) or (_outside(pid) if now else "")
            steps = (_CALL if where else _QUEUE).format(where=where, file=file, at=at)
            script.write_text(_BEGIN + steps, encoding="ascii")
            if start_of(pid) != start:
                raise ProcessLookupError(errno.ESRCH, "its pid is another process's by now")
            if (did := _told(pid, script)) in {"called", "queued"}:
                return did
    raise OSError(errno.EBUSY, "its main thread was at no place where it may be sent away from")


def _told(pid: int, script: Path) -> str:
    """What gdb did. Raises OSError with what it complains of."""
    child = subprocess.Popen(
        ["gdb", *_OPTIONS, "-p", str(pid), "-x", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C", "HOME": "/"},
        start_new_session=True,
    )
    try:
        said = child.communicate(timeout=_SECONDS)[0]
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
        try:
            child.communicate(timeout=_SECONDS)
            why = "gdb's call in it did not come back, and was taken back"
        except subprocess.TimeoutExpired:
            why = f"gdb (pid {child.pid}) still holds it: its call did not come back"
        raise OSError(errno.EBUSY, why) from None
    lines = said.decode("utf-8", "replace").splitlines()
    if did := [line.partition("=")[2] for line in lines if line.startswith("did=")]:
        return did[-1]
    complaints = [line for line in lines if line.startswith(("ptrace:", "No symbol", "Could not"))]
    raise OSError(errno.EPERM, (complaints or lines or ["gdb said nothing"])[-1].strip())


def waits(pid: int) -> str:
    """gdb's condition for its main thread to be still in the system call that it is in; empty: none lasts."""
    seen = set()
    for number in range(_LOOKS):
        if number:
            time.sleep(_BETWEEN)
        with open(f"/proc/{pid}/syscall", encoding="ascii") as stream:
            seen.add(stream.read().strip())
    words = seen.pop().split()
    if seen or len(words) < 3 or words[0] == "-1":  # it runs, or came and went
        return ""
    return f"$pc == {words[-1]} && $sp == {words[-2]}"


def _outside(pid: int) -> str:
    """gdb's condition for its main thread to be in no allocator, nor in Python, where it may take the GIL."""
    files = [
        f
        for f in _elf.code(pid)
        if _elf.name(f).startswith(_elf.ALLOCATORS) or _elf.is_python(pid, f)
    ]
    return " && ".join(f"($pc < {f.start:#x} || $pc >= {f.end:#x})" for f in files) or "1"


def _room(pid: int, size: int) -> int:
    """Where nothing is: the end of a page of code. Raises OSError."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for mapping in _elf.code(pid):
            with suppress(OSError, ValueError):
                at, room = _elf.Library(pid, mapping).unused()
                if room >= size:
                    memory.seek(at)
                    if not memory.read(size).strip(b"\0"):
                        return at
    raise OSError(errno.ENOSPC, "no library of it has room for the text")
