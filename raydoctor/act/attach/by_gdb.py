"""Injects a few lines of Python by gdb, where raydoctor's own code is not supported (aarch64 …).

gdb calls functions of Python in the main thread and restores its registers, in 0.3 s and 80 MB (gdb 13.1).
It must not be killed with SIGKILL meanwhile, because the thread could not return then. So it has its own
session, and a call that takes too long is interrupted, upon which gdb undoes the call. A bare sleep in C code
is cut short (EINTR); Python restarts its own calls (PEP 475). A call that waits for the GIL is never undone:
glibc's condition variable would wait forever for the waiter that vanished, and so would every thread that
releases the GIL. Before gdb enters a process, it has to call a function in a child of ours: a gdb that cannot
restore all registers of the processor would kill the process (gdb 13.1 on processors with AMX).

The rules are those of `programs/inject_main.py`: a thread that is blocked for long, and not on a lock of
Python itself, executes the text immediately; any other thread only queues it. A thread in native code that
reaches no further Python code is not entered: gdb would wait for the GIL while that code holds its locks.
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
from functools import cache
from pathlib import Path

from raydoctor.act.attach import elf
from raydoctor.act.attach.arm import start_of
from raydoctor.act.attach.programs import blocked
from raydoctor.capture import owners

_SECONDS = 15.0
_TRIAL = 5.0
_TAKEN_BACK = 15.0
"""Seconds for gdb to undo a call."""
_INTERVAL = 0.05
_TRIES = 3
_IN_CALL = {
    "x86_64": "*(unsigned short *)($pc - 2) == 0x050f",
    "aarch64": "*(unsigned int *)($pc - 4) == 0xd4000001",
}
"""Condition that the previous instruction is `syscall` (`svc #0`)."""
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
_GETPID = ("-ex", "sharedlibrary libc", "-ex", "print ((int (*)(void))getpid)()")
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


@cache
def restores_registers() -> bool:
    """Whether a process continues after gdb has called a function in it: a child of ours shows it (0.3 s)."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        try:
            deadline = time.monotonic() + _TRIAL
            while not (reads := blocked.lasting(child.pid)) and time.monotonic() < deadline:
                pass  # it begins
            trial = subprocess.run(
                ["gdb", *_OPTIONS, "-p", str(child.pid), *_GETPID],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env={**os.environ, "LC_ALL": "C", "HOME": "/"},
                timeout=_TRIAL,
                check=False,
            )
            is_called = f"= {child.pid}\n".encode() in trial.stdout
            return is_called and reads is not None and blocked.lasting(child.pid) == reads
        except (OSError, subprocess.TimeoutExpired):
            return False
        finally:
            child.kill()


def inject(pid: int, start: str, text: str, *, now: bool, holds_gil: bool) -> str:
    """Have the main thread execute the text; `called` or `queued` (as a pending call of Python).

    Raises OSError if that failed; nothing was changed then.
    """
    where = waits(pid)
    if now and not where:
        if _waits_for_python(blocked.current(pid), pid):
            return "queued"  # by the previous call; it continues once it gets the GIL
        keeps = "keeps" if holds_gil else "may run without"
        raise OSError(
            errno.EBUSY,
            f"it is in native code that {keeps} the GIL, where gdb must not call functions",
        )
    if not restores_registers():
        raise OSError(
            errno.ENOTSUP,
            "this gdb cannot restore the registers of this processor: use a newer gdb",
        )
    data = text.encode() + b"\0"
    at = _room(pid, len(data))
    with tempfile.TemporaryDirectory(prefix="raydoctor-", dir=owners.temporary_parent()) as folder:
        script, file = Path(folder, "script"), Path(folder, "text")
        file.write_bytes(data)
        for _ in range(_TRIES):
            where = where or waits(pid)
            steps = (_CALL if where else _QUEUE).format(
                where=where or _outside(pid), file=file, at=at
            )
            script.write_text(_BEGIN + steps, encoding="ascii")
            if start_of(pid) != start:
                raise ProcessLookupError(errno.ESRCH, "its pid now belongs to another process")
            if (did := _run_gdb(pid, script)) in {"called", "queued"}:
                return did
            where = ""
    raise OSError(
        errno.EBUSY, "its main thread did not reach a position where it can be interrupted safely"
    )


def _run_gdb(pid: int, script: Path) -> str:
    """What gdb did. Raises OSError with its error message."""
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
    raise OSError(errno.EPERM, (complaints or lines or ["gdb printed nothing"])[-1].strip())


def _taken_back(
    child: subprocess.Popen[bytes], pid: int, before: blocked.SystemCall | None
) -> bytes:
    """The output of gdb if its call ends after all. Raises OSError if the call was interrupted or still runs.

    A call that has the GIL or waits for it is not interrupted. gdb stays until it ends, and then goes.
    """
    deadline, is_interrupted = time.monotonic() + _TAKEN_BACK, False
    while time.monotonic() < deadline:
        call = blocked.current(pid)
        if not is_interrupted and call and call == before and not _waits_for_python(call, pid):
            child.send_signal(signal.SIGINT)
            is_interrupted = True
        with suppress(subprocess.TimeoutExpired):
            output = child.communicate(timeout=_INTERVAL)[0]
            if not is_interrupted:
                return output
            raise OSError(errno.EBUSY, "gdb's call in it did not return and was undone")
    why = f"gdb (pid {child.pid}) still holds it: its call did not return"
    raise OSError(errno.EBUSY, why)


def waits(pid: int) -> str:
    """gdb's condition that its main thread is still blocked in the same place; empty if it is not blocked.

    A thread that waits for a lock of Python itself does not count as blocked.
    """
    call = blocked.lasting(pid)
    if call is None or _waits_for_python(call, pid):
        return ""
    return f"$pc == {call.at:#x} && $sp == {call.stack:#x}"


def _waits_for_python(call: blocked.SystemCall | None, pid: int) -> bool:
    """Whether it waits for a lock of Python itself; True if the locks cannot be distinguished."""
    if call is None or call.number != blocked.FUTEX:
        return False
    locks = elf.runtime(pid)
    return locks is None or call.first in locks


def _outside(pid: int) -> str:
    """gdb's condition that its main thread is in a system call or outside the C library."""
    files = [f for f in elf.code(pid) if elf.name(f).startswith(elf.SYSTEM)]
    outside = " && ".join(f"($pc < {f.start:#x} || $pc >= {f.end:#x})" for f in files) or "1"
    in_call = _IN_CALL.get(platform.machine())
    return f"({outside}) || {in_call}" if in_call else outside


def _room(pid: int, size: int) -> int:
    """The address of unused memory at the end of a page of code. Raises OSError."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for mapping in elf.code(pid):
            with suppress(OSError, ValueError), elf.Library(pid, mapping) as library:
                at, room = library.unused()
                if room >= size:
                    memory.seek(at)
                    if not memory.read(size).strip(b"\0"):
                        return at
    raise OSError(errno.ENOSPC, "none of its libraries has room for the text")
