"""The processes of this machine, from `/proc` on Linux and psutil elsewhere.

Reading a process never raises: if it is gone or not readable, the result is None or empty. Only the requested
variables of an environment are returned.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from raydoctor.capture import owners
from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern

if TYPE_CHECKING:
    import psutil

user = owners.user
"""The name of a user, or the number of a user without a name."""
LINUX = sys.platform.startswith("linux")
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the flags of `/proc/PID/stat` (linux/sched.h)."""

_LOG = pattern(r"/(?:python-core-)?(?:worker|driver)-[^/]*$")
"""`python-core-driver-<worker id>_<pid>.log`, `worker-<worker id>-<job id>-<pid>.out`."""
_FILES = 4096
"""Open files that are read per process: a server may have a million connections."""


class Process(NamedTuple):
    """One process; its pid and `started_at` together are its identity."""

    pid: int
    name: str
    """At most 15 bytes on Linux: `ray::train_step`, `raylet`, `python3.11`."""
    state: str
    """`R S D T Z …`; `Z` has exited, but its parent has not read its exit status."""
    ppid: int
    pgid: int
    sid: int
    started_at: float
    """Epoch seconds, equal to `psutil.Process.create_time()`.

    Comparable only within this process, as the clock may be set before another process reads it. Values for
    other processes use `since_boot`.
    """
    cpu_seconds: float
    rss: int


def needs_sudo(uids: Iterable[int]) -> str:
    """What to do about processes of other users: the same sentence in every command."""
    names = sorted({user(uid) for uid in uids})
    return paste.text(
        "Processes of {names} need sudo: run raydoctor with sudo, or as that user.", names=names
    )


def table() -> dict[int, Process]:
    """All processes by pid, without kernel threads."""
    found = _linux() if LINUX else _elsewhere()
    return {process.pid: process for process in found}


def read(pid: int) -> Process | None:
    """One process; None if it is gone."""
    if LINUX:
        return _stat(pid, _boot_time())
    return next((p for p in _elsewhere() if p.pid == pid), None)


def boot_time() -> float:
    """Origin of `started_at` in epoch seconds, which changes when the clock is set; 0 on other systems than
    Linux."""
    return _boot_time() if LINUX else 0.0


def origin() -> float:
    """The boot in epoch seconds by the clock as it is set now, not rounded as `boot_time`; 0 on other systems
    than Linux."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) if LINUX else 0.0


def since_boot(started_at: float) -> float:
    """A start time in seconds since boot, which does not depend on the clock."""
    return started_at - boot_time()


def identity(pid: int, started_at: float, boot: float) -> str:
    """A process as `812:5023.41`: its pid and its start in seconds since the boot of its machine."""
    return f"{pid}:{started_at - boot:.2f}"


def from_boot(seconds: float) -> float:
    """The inverse of `since_boot`: comparable with `Process.started_at` in this process."""
    return seconds + boot_time()


@cache
def place() -> str:
    """Identifies this boot and these namespaces: pids and start times are comparable only within them."""
    words = []
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        words.append(stream.read()[:8])
    for kind in ("pid", "time"):  # `time:[4026531834]`; Linux before 5.6 has no such namespace
        with suppress(OSError):
            words.append(os.readlink(f"/proc/self/ns/{kind}").rpartition("[")[2].rstrip("]"))
    return "x".join(words)


def kernel_clock() -> float:
    """The monotonic clock of the kernel's own log, without the offset of our time namespace."""
    return time.clock_gettime(time.CLOCK_MONOTONIC) - _clock_offset("self")


def monotonic_of(pid: int) -> float:
    """The monotonic clock of a process, which a time namespace may offset against ours."""
    return kernel_clock() + _clock_offset(str(pid))


def _clock_offset(pid: str) -> float:
    with suppress(OSError), open(f"/proc/{pid}/timens_offsets", encoding="ascii") as stream:
        for line in stream:  # `monotonic  86400  0`: seconds and nanoseconds
            if line.startswith("monotonic "):
                _, seconds, nanoseconds = line.split()
                return int(seconds) + int(nanoseconds) / 1e9
    return 0.0  # Linux before 5.6, or another system


def by_parent(processes: Mapping[int, Process]) -> dict[int, list[int]]:
    """Parent -> its children."""
    found: dict[int, list[int]] = {}
    for process in processes.values():
        found.setdefault(process.ppid, []).append(process.pid)
    return found


def trees(processes: Mapping[int, Process], roots: Iterable[int], without: int = 0) -> list[int]:
    """These roots and their descendants, parents first, excluding `without` and its descendants."""
    children = by_parent(processes)
    order = dict.fromkeys(pid for pid in roots if pid in processes and pid != without)
    waiting = list(order)
    for pid in waiting:  # grows while it is walked
        fresh = [c for c in children.get(pid, ()) if c not in order and c != without]
        order.update(dict.fromkeys(fresh))
        waiting += fresh
    return list(order)


def private_memory(pid: int) -> int | None:
    """Bytes that its exit would free: without shared memory (Ray's object store) and mapped files."""
    if not LINUX:
        return None
    fields = _bytes(pid, "statm", most=4096).split()
    return (int(fields[1]) - int(fields[2])) * _units()[1] if len(fields) > 2 else None


def command(pid: int, most: int = 1 << 20) -> tuple[str, ...]:
    """Its command line, up to `most` bytes; empty for a defunct or unreadable process.

    A process that renamed itself (setproctitle: Ray's workers) pads the rest with NULs, which are dropped.
    """
    if LINUX:
        words = _bytes(pid, "cmdline", most).split(b"\0")
        return tuple(word.decode("utf-8", "replace") for word in words if word)
    with _quietly():
        return tuple(_psutil(pid).cmdline())
    return ()


def environment(pid: int, names: Iterable[str]) -> dict[str, str] | None:
    """These variables of its initial environment, if set; None if its environment is not readable."""
    wanted = frozenset(names)
    if not LINUX:
        with _quietly():
            return {k: v for k, v in _psutil(pid).environ().items() if k in wanted}
        return None
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            data = stream.read()
    except OSError:
        return None
    found = {}
    for item in data.split(b"\0"):
        name, is_set, value = item.partition(b"=")
        if is_set and (key := name.decode("utf-8", "replace")) in wanted:
            found[key] = value.decode("utf-8", "replace")
    return found


def files(pid: int) -> dict[int, str]:
    """Paths of its open files (including deleted ones) by descriptor; empty if not readable."""
    if not LINUX:
        with _quietly():
            return {file.fd: file.path for file in _psutil(pid).open_files()}
        return {}
    folder = f"/proc/{pid}/fd"
    found = {}
    with suppress(OSError):
        for name in os.listdir(folder)[:_FILES]:
            with suppress(OSError):
                path = os.readlink(f"{folder}/{name}")
                if path.startswith("/"):
                    found[int(name)] = path.removesuffix(" (deleted)")
    return found


def open_flags(pid: int, descriptor: int) -> int | None:
    """The flags with which a file was opened (`/proc/PID/fdinfo/N`); None if not readable."""
    for line in _bytes(pid, f"fdinfo/{descriptor}", most=4096).split(b"\n"):
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8)
    return None


def logs(pid: int) -> list[str]:
    """Logs of workers and drivers that it has open for writing, as the process has that owns a log.

    A process that only reads one (`tail -F`) does not belong to Ray.
    """
    return [
        path for number, path in files(pid).items() if _LOG.search(path) and writes(pid, number)
    ]


def is_log_of(path: str, session: str) -> bool:
    """Whether a log that a process has open is in a session's folder; never if that is unknown (empty)."""
    folders = {session, os.path.realpath(session)} if session else ()
    return os.path.dirname(path) in {f"{folder.rstrip('/')}/logs" for folder in folders}


def writes(pid: int, descriptor: int) -> bool:
    """Whether a file is open for writing; on other systems than Linux, which do not show it, True."""
    if not LINUX:
        return True
    flags = open_flags(pid, descriptor)
    return flags is not None and flags & os.O_ACCMODE != os.O_RDONLY


def same_pids(pid: int) -> bool:
    """Whether it is in our pid namespace; a container has its own."""
    if not LINUX:
        return True
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def has_other_pids(pid: int) -> bool:
    """Whether it is known to be in another pid namespace, as in a container."""
    with suppress(OSError):
        return LINUX and os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    return False


def has_our_files(pid: int) -> bool:
    """Whether a path of this process leads to the same file here: it is in our mount namespace."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    return False


def owner(pid: int) -> int | None:
    """The user id that it runs as."""
    if not LINUX:
        with _quietly():
            return int(_psutil(pid).uids().effective)
        return None
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def credentials(pid: int) -> int | None:
    """The user id it runs as; None if it has several, like a set-uid program.

    This is not the owner of `/proc/PID`, which is root for every process that may not be traced.
    """
    if not LINUX:
        with _quietly():
            return _only(_psutil(pid).uids())
        return None
    for line in _bytes(pid, "status", most=4096).split(b"\n"):
        # The process's name above it cannot contain a line break: the kernel escapes it.
        if line.startswith(b"Uid:"):
            return _only(line.split()[1:])
    return None


def _only(uids: Iterable[int | bytes]) -> int | None:
    found = {int(uid) for uid in uids}
    return found.pop() if len(found) == 1 else None


def program(pid: int) -> str | None:
    """The path of its program file; None if the kernel does not show it.

    None for a defunct process and those of other users. Empty for a set-uid program, which any user can start
    with any name and arguments.
    """
    if not LINUX:
        with _quietly():
            return _psutil(pid).exe() or None
        return None
    try:
        path = os.readlink(f"/proc/{pid}/exe")
        mode = os.stat(f"/proc/{pid}/exe").st_mode
    except OSError:
        return None
    return "" if mode & (stat.S_ISUID | stat.S_ISGID) else path.removesuffix(" (deleted)")


# ------------------------------------------------------------------ Linux


def require() -> None:
    """Raise RaydoctorError if /proc is not mounted."""
    if LINUX and not os.path.exists("/proc/self/stat"):
        raise RaydoctorError(
            "cannot see the processes of this machine: /proc is not mounted",
            "Mount it (mount -t proc proc /proc), or diagnose the logs alone: raydoctor diagnose PATH",
        )


def _linux() -> Iterator[Process]:
    require()
    boot = _boot_time()
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _stat(int(name), boot)) is not None:
            yield process


def _stat(pid: int, boot: float) -> Process | None:
    # Fields of proc(5), counted from the state, which follows the name in parentheses.
    head, _, rest = _bytes(pid, "stat", most=4096).rpartition(b")")
    fields = rest.split()
    if len(fields) < 22 or int(fields[6]) & _KERNEL_THREAD:
        return None
    ticks, page = _units()
    return Process(
        pid,
        head.partition(b"(")[2].decode("utf-8", "replace"),
        fields[0].decode(),
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        boot + int(fields[19]) / ticks,
        (int(fields[11]) + int(fields[12])) / ticks,
        int(fields[21]) * page,
    )


def _bytes(pid: int, name: str, most: int = 1 << 20) -> bytes:
    try:
        # Plain system calls: a file object takes three times as long, and there are many files.
        file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
        try:
            return os.read(file, most)
        finally:
            os.close(file)
    except OSError:
        return b""


@cache
def _units() -> tuple[int, int]:
    return os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@cache
def _boot_time() -> float:
    # As psutil reads it, so that both yield the same start times.
    with suppress(OSError), open("/proc/stat", "rb") as stream:
        for line in stream:
            if line.startswith(b"btime"):
                return float(line.split()[1])
    return 0.0


# ------------------------------------------------------------------ elsewhere

_STATES = {
    "running": "R",
    "sleeping": "S",
    "idle": "S",
    "disk-sleep": "D",
    "stopped": "T",
    "zombie": "Z",
}


def _elsewhere() -> Iterator[Process]:
    import psutil

    for process in psutil.process_iter():
        with _quietly(), process.oneshot():
            yield Process(
                process.pid,
                process.name(),
                _STATES.get(str(process.status()), "S"),
                process.ppid(),
                os.getpgid(process.pid),
                os.getsid(process.pid),
                process.create_time(),
                float(sum(process.cpu_times()[:2])),
                process.memory_info().rss,
            )


def _psutil(pid: int) -> psutil.Process:
    import psutil

    return psutil.Process(pid)


def _quietly() -> suppress:
    import psutil

    return suppress(psutil.Error, OSError)
