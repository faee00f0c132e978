"""Finds what prevents a debugger from entering a process, before the process is touched.

Facts: ptrace(2), "Ptrace access mode checking"; namespaces(7); proc(5). `/proc/PID/mem` can be opened by
users that may attach, and opening it does not affect the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import NamedTuple

from raydoctor.act import private
from raydoctor.act.attach import arm, elf, inject, trampoline
from raydoctor.model import paste
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.redact import command_line
from raydoctor.observe.stacks.stacks import fix

_OLDEST, _NEWEST = (3, 8), (3, 14)
"""Versions of Python whose workers Ray has had since 2.9, and that debugpy and the payload work with."""
_NAMESPACES = {"pid": "processes", "mnt": "files", "net": "network"}
_INTERRUPT = 0x4207
_GDB = "apt-get install gdb, or dnf install gdb."
_AHEAD = "Or arm workers ahead: runtime_env={'worker_process_setup_hook': 'raydoctor.arm'}"


class Obstacle(NamedTuple):
    """A reason why a process cannot be entered."""

    what: str
    """`stopped`, `traced`, `ptrace`, `user`, `namespace`, `python`, `gdb`, `debugpy`, `system`, `gone`."""
    why: str
    fix: str = ""
    only_injection: bool = False
    """Whether an armed process can be entered despite it."""


def obstacle(pid: int) -> list[Obstacle]:
    """All obstacles that are visible beforehand."""
    return list(_found(pid))


def is_armed(pid: int) -> bool:
    """Whether `raydoctor.arm()` was called in it."""
    with suppress(OSError, IndexError):
        found, name = os.stat(f"/proc/{pid}"), arm.name_of("armed", pid)
        folders = private.existing(found.st_uid, found.st_gid)
        return handles(pid) and any(folder.has(name) for folder in folders)
    return False


def handles(pid: int) -> bool:
    """Whether it has a handler of the signal that wakes it."""
    return bool(arm.SIGNAL and int(status(pid).get("SigCgt", "0"), 16) & 1 << (arm.SIGNAL - 1))


def status(pid: int) -> dict[str, str]:
    """`/proc/PID/status`; empty if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
    return {}


def _found(pid: int) -> Iterator[Obstacle]:
    if not proc.LINUX:
        yield Obstacle("system", "entering a running process is supported on Linux only")
        return
    now = status(pid)
    state = now.get("State", "")[:1]
    if not now or state in "ZX":
        yield Obstacle("gone", f"pid {pid} has ended")
        return
    if foreign := _foreign(pid):
        yield foreign
    yield from _user(pid)
    if now.get("TracerPid", "0") != "0":
        tracer = command_line(int(now["TracerPid"]))[:60] or "another process"
        yield Obstacle(
            "traced",
            f"pid {pid} is already traced by {tracer} (pid {now['TracerPid']})",
            "End that process first.",
            only_injection=state != "t",
        )
    elif state == "T":
        yield Obstacle(
            "stopped",
            f"pid {pid} is stopped (SIGSTOP)",
            paste.shell("Resume it: kill -CONT {pid:pid}", pid=pid),
        )
    yield from _python(pid)
    if find_spec("debugpy") is None:
        yield Obstacle(
            "debugpy",
            "debugpy is not installed for the Python that runs raydoctor",
            "pip install debugpy",
            only_injection=True,
        )
    if "shstk" in now.get("x86_Thread_features", ""):
        # The injected code returns without a call, which ends a process with a shadow stack.
        why = f"pid {pid} has a shadow stack, which prevents code injection"
        yield Obstacle("system", why, _AHEAD, only_injection=True)
    if refused := _refused(pid):
        yield refused


def _foreign(pid: int) -> Obstacle | None:
    """An obstacle if it runs in another container."""
    for name, what in _NAMESPACES.items():
        try:
            if os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}"):
                continue
        except OSError:
            continue  # it cannot be read: another obstacle reports that
        return Obstacle(
            "namespace",
            f"pid {pid} runs in a container with its own {what}",
            paste.shell(
                "Run raydoctor in that container: docker exec, kubectl exec, or "
                "sudo nsenter -t {pid:pid} -a raydoctor …",
                pid=pid,
            ),
        )
    return None


def _user(pid: int) -> Iterator[Obstacle]:
    user = proc.owner(pid)
    if user is not None and user != os.geteuid() and os.geteuid() != 0:
        yield Obstacle(
            "user",
            f"pid {pid} belongs to {proc.user(user)}, but raydoctor runs as {proc.user(os.geteuid())}",
            proc.needs_sudo([user]),
        )


def _python(pid: int) -> Iterator[Obstacle]:
    try:
        found = elf.python(pid)
    except OSError:
        return  # it cannot be read: another obstacle reports that
    if found is None:
        yield Obstacle("python", f"pid {pid} is not a Python process")
    elif not _OLDEST <= found <= _NEWEST:
        spelled = ".".join(map(str, found))
        yield Obstacle("python", f"pid {pid} runs Python {spelled}; raydoctor supports 3.8 to 3.14")
    elif not (trampoline.is_supported() or inject.has_other_ways(found)):
        why = f"on {platform.machine()} only gdb can enter a running process, and gdb is not installed"
        yield Obstacle("gdb", why, f"{_GDB} {_AHEAD}", only_injection=True)


def _refused(pid: int) -> Obstacle | None:
    """An obstacle if ptrace(2) is not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    # We do not trace it, so a system that permits the call returns another error than EPERM.
    libc.ptrace(_INTERRUPT, pid, 0, 0)
    forbidden = ctypes.get_errno() in (errno.EPERM, errno.ENOSYS)
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except PermissionError:
        forbidden = True
    except OSError:
        return None
    if not forbidden:
        return None
    how = fix("forbidden", pid)
    why = f"the system does not permit ptrace on pid {pid}"
    return Obstacle("ptrace", why, f"{how} {_AHEAD}", only_injection=True)
