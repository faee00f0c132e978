"""The output of running drivers, where it goes to a file, and what `raydoctor run` kept of ended ones.

A driver keeps its own log in the session open, which proves that a process is that driver. Only processes of
trusted users are read, and only files of the driver's own user that it has open for writing: with `sudo`, a
user's process must not be able to choose which file root reads. The file is opened once and checked through
that descriptor; the process is checked again afterwards, because a pid and a descriptor can be reused.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from raydoctor.capture import owners
from raydoctor.capture.open import Capture, add_driver_log
from raydoctor.model import paste
from raydoctor.model.values import CONSOLES, Gap, Source
from raydoctor.observe.processes import proc

MOST = 64 << 20
"""Bytes; a larger file is not read without being asked for: a diagnosis would wait for it."""
MOST_OF_ALL = 256 << 20
"""Bytes of all files together: each is copied to the temporary folder."""
ABOUT = "driver.json"
"""Beside an output that `raydoctor run` kept: its sessions and pids."""
_MOST_RUNS = 50
_ABOUT_BYTES = 1 << 20
HINT = "Give it with --driver-log."
_STREAMS = (1, 2)
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_O_PATH = 0o10000000
"""A descriptor that only names a file (asm-generic/fcntl.h); Python has the constant on Linux only."""


class DriverOutput(NamedTuple):
    """A file to which a running driver writes."""

    pid: int
    path: str
    """As the driver opened it."""
    stream: BinaryIO
    """Open until the next item is taken."""


def find(session: str, sources: Iterable[Source]) -> Iterator[DriverOutput | Gap]:
    """The output files of a session's running drivers, and a gap for each that cannot or may not be read."""
    seen: set[tuple[int, int]] = set()
    left = MOST_OF_ALL
    pids = {source.pid for source in sources if source.role == "core-driver" and source.pid}
    for pid in sorted(pids):
        uid = proc.credentials(pid)
        if uid not in owners.trusted():
            continue
        files = proc.files(pid)
        for number in _STREAMS if _is_driver(files, session, pid) else ():
            path = files.get(number, "")
            status = _status(pid, number)
            if status is None or (key := (status.st_dev, status.st_ino)) in seen:
                continue
            seen.add(key)
            if _is_within(path, session):
                continue  # a submitted job's log, which the capture has
            if why := _refusal(status, uid, left):
                yield Gap(path, why, HINT, about="driver")
                continue
            try:
                with open(os.open(f"/proc/{pid}/fd/{number}", _OPEN), "rb") as stream:
                    if (
                        os.path.samestat(status, os.fstat(stream.fileno()))
                        and proc.credentials(pid) == uid
                        and _is_driver(proc.files(pid), session, pid)
                    ):
                        left -= min(status.st_size, MOST)
                        yield DriverOutput(pid, path, stream)
            except (FileNotFoundError, ProcessLookupError):
                continue  # the driver has just ended
            except OSError as error:
                why = f"cannot be read: {error.strerror or error}"
                yield Gap(path, why, HINT, about="driver")


def _is_driver(files: dict[int, str], session: str, pid: int) -> bool:
    """Whether one of a process's open files is a driver's own log in this session."""
    return any(
        name.startswith("python-core-driver-")
        and name.endswith(f"_{pid}.log")
        and _is_within(path, session)
        for path in files.values()
        for name in (os.path.basename(path),)
    )


def runs_folder() -> str:
    """The folder in which `raydoctor run` keeps the output of each driver that failed."""
    return os.path.join(owners.state_folder(), "runs")


def add_kept(capture: Capture, session: str, is_up: bool = False) -> None:
    """Add the output that `raydoctor run` kept of a session's drivers, if it is that of all of them.

    Of a running cluster it counts only if it is recent. The systemd journal is not searched: `_PID` also
    matches earlier processes of that number.
    """
    # Only a diagnosis and an archive need it.
    from raydoctor.rules.shared.live.drivers import RECENT_S

    if not session or any(source.role in CONSOLES for source in capture.files):
        return
    log = _kept(session, {s.pid for s in capture.files if s.role == "core-driver"})
    status = _status_of(log) if log else None
    if status and (not is_up or time.time() - status.st_mtime < RECENT_S):
        add_driver_log(capture, log)
        capture.notes.append(paste.text("read the driver's output in {path}", path=log))


def _kept(session: str, pids: set[int | None]) -> str:
    """The log of these drivers; empty if there is none of all of them."""
    base, place = runs_folder(), os.path.realpath(session)
    with suppress(OSError):
        for name in sorted(os.listdir(base), reverse=True)[:_MOST_RUNS]:
            if pids and _is_about(os.path.join(base, name, ABOUT), place, pids):
                return os.path.join(base, name, "driver.log")
    return ""


def _is_about(file: str, session: str, pids: set[int | None]) -> bool:
    try:
        about = json.loads(owners.read_regular(file, _ABOUT_BYTES, owners.trusted()).data)
        return session in map(os.path.realpath, about["sessions"]) and pids <= {*about["pids"]}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _status_of(log: str) -> os.stat_result | None:
    """Of a regular file of a trusted user, neither empty nor large; None for anything else."""
    with suppress(OSError):
        status = os.lstat(log)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid in owners.trusted()
        return status if is_ours and 0 < status.st_size <= MOST else None
    return None


def _is_within(path: str, session: str) -> bool:
    return os.path.realpath(path).startswith(f"{os.path.realpath(session)}/")


def _status(pid: int, number: int) -> os.stat_result | None:
    """Of a regular file, not empty, that is open for writing; None for anything else."""
    with suppress(OSError):
        flags = proc.open_flags(pid, number)
        status = os.stat(f"/proc/{pid}/fd/{number}")
        is_written = flags is not None and not flags & _O_PATH and flags & os.O_ACCMODE != 0
        if is_written and stat.S_ISREG(status.st_mode) and status.st_size:
            return status
    return None


def _refusal(status: os.stat_result, uid: int | None, left: int) -> str:
    """Why a file is not read; empty if it is. `left`: bytes that may still be read."""
    if status.st_uid != uid:
        return f"belongs to user {owners.user(status.st_uid)}, not to the driver's user"
    if status.st_size > MOST:
        return f"{status.st_size >> 20:,} MiB, more than are read without being asked for"
    if status.st_size > left:
        return f"not read: drivers' output has more than {MOST_OF_ALL >> 20:,} MiB"
    return ""
