"""A few lines of Python, executed by a process that gdb holds: where our own code does not run (aarch64 …).

gdb calls functions of Python in the main thread and puts its registers back, in 0.3 s and 80 MB (gdb 13.1).
Until then nobody may end it with SIGKILL, which would leave the thread in the middle of nowhere: it has a
session of its own, and what takes too long is interrupted, upon which gdb takes its call back. A bare sleep
in C code is cut short (EINTR); Python's own calls begin again (PEP 475).

The same rules as for our own code (`programs/inject_main.py`): a thread that is blocked for long, and not on
a lock of Python's own, executes the text at once; any other only notes the text for its next step. Native
code without a next step is not entered: gdb would wait in it for the GIL, with whatever locks that code has.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from raydoctor.act.attach import elf
from raydoctor.act.attach.arm import start_of
from raydoctor.act.attach.programs import blocked

_SECONDS = 15.0
_TAKEN_BACK = 15.0
"""Seconds for gdb to take a call back."""
_INTERVAL = 0.05
_TRIES = 3
_IN_CALL = {
    "x86_64": "*(unsigned short *)($pc - 2) == 0x050f",
    "aarch64": "*(unsigned int *)($pc - 4) == 0xd4000001",
}
"""That the instruction before is `syscall` (`svc #0`)."""
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
if {where}
  restore {file} binary {at:#x}
  set $failed = ((int (*)(void *, void *))Py_AddPendingCall)((void *)PyRun_SimpleString, (void *){at:#x})
  if $failed == 0
    echo did=queued\\n
  else
    echo did=full\\n
  end
else
  echo did=moved\\n
end
"""


def is_there() -> bool:
    """Whether gdb is installed."""
    return shutil.which("gdb") is not None


def inject(pid: int, start: str, text: str, *, now: bool, holds_gil: bool) -> str:
    """Have the main thread execute the text; `called` or `queued` (for Python's next step).

    Raises OSError where it could not be; then nothing was changed.
    """
    where = waits(pid)
    if now and not where:
        if _asks_for_python(blocked.current(pid), pid):
            return "queued"  # by the call before; it goes on as soon as it gets the GIL
        keeps = "keeps" if holds_gil else "may run without"
        raise OSError(
            errno.EBUSY, f"it is in native code that {keeps} the GIL, where gdb must not call"
        )
    data = text.encode() + b"\0"
    at = _room(pid, len(data))
    with tempfile.TemporaryDirectory(prefix="raydoctor-") as folder:
        script, file = Path(folder, "script"), Path(folder, "text")
        file.write_bytes(data)
        for _ in range(_TRIES):
            where = where or waits(pid)
            steps = (_CALL if where else _QUEUE).format(
                where=where or _outside(pid), file=file, at=at
            )
            script.write_text(_BEGIN + steps, encoding="ascii")
            if start_of(pid) != start:
                raise ProcessLookupError(errno.ESRCH, "its pid is another process's by now")
            if (did := _run_gdb(pid, script)) in {"called", "queued"}:
                return did
            where = ""
    raise OSError(errno.EBUSY, "its main thread was at no place where it may be sent away from")


def _run_gdb(pid: int, script: Path) -> str:
    """What gdb did. Raises OSError with what it complains of."""
    before = blocked.current(pid)
    child = subprocess.Popen(
        ["gdb", *_OPTIONS, "-p", str(pid), "-x", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C", "HOME": "/"},
        start_new_session=True,
    )
    try:
        output = child.communicate(timeout=_SECONDS)[0]
    except subprocess.TimeoutExpired:
        output = _taken_back(child, pid, before)
    lines = output.decode("utf-8", "replace").splitlines()
    if did := [line.partition("=")[2] for line in lines if line.startswith("did=")]:
        return did[-1]
    complaints = [line for line in lines if line.startswith(("ptrace:", "No symbol", "Could not"))]
    raise OSError(errno.EPERM, (complaints or lines or ["gdb said nothing"])[-1].strip())


def _taken_back(
    child: subprocess.Popen[bytes], pid: int, before: blocked.SystemCall | None
) -> bytes:
    """What a gdb prints whose call ends after all. Raises OSError where the call was interrupted.

    A call that has the GIL is not interrupted: its thread would keep the GIL, and wait for it for ever.
    """
    deadline, is_interrupted = time.monotonic() + _TAKEN_BACK, False
    while time.monotonic() < deadline:
        call = blocked.current(pid)
        if not is_interrupted and (_asks_for_python(call, pid) or (call and call == before)):
            child.send_signal(signal.SIGINT)
            is_interrupted = True
        with suppress(subprocess.TimeoutExpired):
            output = child.communicate(timeout=_INTERVAL)[0]
            if not is_interrupted:
                return output
            raise OSError(errno.EBUSY, "gdb's call in it did not come back, and was taken back")
    why = f"gdb (pid {child.pid}) still holds it: its call did not come back"
    raise OSError(errno.EBUSY, why)


def waits(pid: int) -> str:
    """gdb's condition for its main thread to be blocked where it is; empty: nowhere for long.

    So is a thread that waits for a lock of Python's own: it goes on without us.
    """
    call = blocked.lasting(pid)
    if call is None or _asks_for_python(call, pid):
        return ""
    return f"$pc == {call.at:#x} && $sp == {call.stack:#x}"


def _asks_for_python(call: blocked.SystemCall | None, pid: int) -> bool:
    """Whether it waits for a lock of Python's own, as far as that can be told from others."""
    if call is None or call.number != blocked.FUTEX:
        return False
    locks = elf.runtime(pid)
    return locks is None or call.first in locks


def _outside(pid: int) -> str:
    """gdb's condition for its main thread to be in a system call, or outside of the C library."""
    files = [f for f in elf.code(pid) if elf.name(f).startswith(elf.SYSTEM)]
    outside = " && ".join(f"($pc < {f.start:#x} || $pc >= {f.end:#x})" for f in files) or "1"
    in_call = _IN_CALL.get(platform.machine())
    return f"({outside}) || {in_call}" if in_call else outside


def _room(pid: int, size: int) -> int:
    """Where nothing is: the end of a page of code. Raises OSError."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for mapping in elf.code(pid):
            with suppress(OSError, ValueError), elf.Library(pid, mapping) as library:
                at, room = library.unused()
                if room >= size:
                    memory.seek(at)
                    if not memory.read(size).strip(b"\0"):
                        return at
    raise OSError(errno.ENOSPC, "no library of it has room for the text")
