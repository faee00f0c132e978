"""The processes of this machine, as the system shows them: `/proc` on Linux, psutil elsewhere.

Reading one process never fails: it may be gone or another user's, and then there is nothing to tell (None,
or an empty tuple). Nothing of an environment is returned but the names that were asked for.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from raydoctor.capture import owners
from raydoctor.model.errors import RaydoctorError

if TYPE_CHECKING:
    import psutil

user = owners.user
"""The name of a user, or the number where it has none."""
LINUX = sys.platform.startswith("linux")
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the flags of `/proc/PID/stat` (linux/sched.h)."""

_FILES = 4096
"""Open files looked at in one process: a server may have a million connections."""


class Process(NamedTuple):
    """One process; its pid and `started_at` together are its identity."""

    pid: int
    name: str
    """At most 15 bytes on Linux: `ray::train_step`, `raylet`, `python3.11`."""
    state: str
    """`R S D T Z …`; `Z` has ended and its parent has not asked for its exit status."""
    ppid: int
    pgid: int
    sid: int
    started_at: float
    """Epoch seconds, as `psutil.Process.create_time()` counts them.

    Comparable within one process of ours: the clock may be set before another one reads it. What leaves this
    process says when it started `since_boot`.
    """
    cpu_seconds: float
    rss: int


def table() -> dict[int, Process]:
    """Every process but the kernel's own threads, by pid."""
    found = _linux() if LINUX else _elsewhere()
    return {process.pid: process for process in found}


def read(pid: int) -> Process | None:
    """One process, or None where it is gone."""
    if LINUX:
        return _stat(pid, _boot_time())
    return next((p for p in _elsewhere() if p.pid == pid), None)


def boot_time() -> float:
    """What `started_at` counts from, in epoch seconds: it moves when the clock is set; 0 but on Linux."""
    return _boot_time() if LINUX else 0.0


def since_boot(started_at: float) -> float:
    """A start in seconds since the boot, which no clock moves."""
    return started_at - boot_time()


def from_boot(seconds: float) -> float:
    """A start that `since_boot` has told, as `Process.started_at` has it in this process."""
    return seconds + boot_time()


@cache
def place() -> str:
    """Names this boot and these namespaces: pids and starts are comparable only within one place."""
    words = []
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        words.append(stream.read()[:8])
    for kind in ("pid", "time"):  # `time:[4026531834]`; Linux before 5.6 has no such namespace
        with suppress(OSError):
            words.append(os.readlink(f"/proc/self/ns/{kind}").rpartition("[")[2].rstrip("]"))
    return "x".join(words)


def by_parent(processes: Mapping[int, Process]) -> dict[int, list[int]]:
    """Parent -> its children, for a table."""
    found: dict[int, list[int]] = {}
    for process in processes.values():
        found.setdefault(process.ppid, []).append(process.pid)
    return found


def trees(processes: Mapping[int, Process], roots: Iterable[int], without: int = 0) -> list[int]:
    """These roots and all that descends from them, parents first; not `without`, nor what is below that."""
    children = by_parent(processes)
    order = dict.fromkeys(pid for pid in roots if pid in processes and pid != without)
    waiting = list(order)
    for pid in waiting:  # grows while it is walked
        fresh = [c for c in children.get(pid, ()) if c not in order and c != without]
        order.update(dict.fromkeys(fresh))
        waiting += fresh
    return list(order)


def private_memory(pid: int) -> int | None:
    """Bytes that would be free without it: no shared memory (Ray's object store), no mapped files."""
    if not LINUX:
        return None
    fields = _bytes(pid, "statm", most=4096).split()
    return (int(fields[1]) - int(fields[2])) * _units()[1] if len(fields) > 2 else None


def command(pid: int, most: int = 1 << 20) -> tuple[str, ...]:
    """Its command line, of which `most` bytes are read; empty for a defunct process and an unreadable one.

    A process that renamed itself (setproctitle: Ray's workers) fills the rest with NULs; they are dropped.
    """
    if LINUX:
        words = _bytes(pid, "cmdline", most).split(b"\0")
        return tuple(word.decode("utf-8", "replace") for word in words if word)
    with _quietly():
        return tuple(_psutil(pid).cmdline())
    return ()


def environment(pid: int, names: Iterable[str]) -> dict[str, str] | None:
    """Those of these variables that it was started with; None where its environment may not be read."""
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
    """Paths of the files that it has open (deleted ones too), by descriptor; empty where unreadable."""
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


def same_pids(pid: int) -> bool:
    """Whether the pids that it knows are those that we see; in a container they are others."""
    if not LINUX:
        return True
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
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
    """The user id that it runs as in every respect; None where it has several, as a set-uid program has.

    Not the owner of `/proc/PID`, which is root for every process that may not be traced.
    """
    if not LINUX:
        with _quietly():
            return _only(_psutil(pid).uids())
        return None
    for line in _bytes(pid, "status", most=4096).split(b"\n"):
        if line.startswith(
            b"Uid:"
        ):  # the name above it cannot hold a line break: the kernel escapes it
            return _only(line.split()[1:])
    return None


def _only(uids: Iterable[int | bytes]) -> int | None:
    found = {int(uid) for uid in uids}
    return found.pop() if len(found) == 1 else None


def program(pid: int) -> str | None:
    """The path of the file that it runs; None where the kernel does not show it to us.

    None for a defunct process and other users' processes; empty for a set-uid program: another user starts it
    with whatever name and arguments.
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
    """Raise RaydoctorError where this system does not show its processes."""
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
        # The plain system calls: a file object costs three times as much, and there are many files.
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
    # As psutil reads it, so that both name a process by the same second.
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
