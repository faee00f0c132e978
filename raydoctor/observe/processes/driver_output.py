"""The output of running drivers, where it goes to a file.

A driver keeps its own log in the session open, which proves that a process is that driver. Only processes of
trusted users are read, and only files of the driver's own user that it has open for writing: with `sudo`, a
user's process must not be able to choose which file root reads. The file is opened once and checked through
that descriptor; the process is checked again afterwards, because a pid and a descriptor can be reused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from raydoctor.capture import owners
from raydoctor.model.values import Gap, Source
from raydoctor.observe.processes import proc

MOST = 64 << 20
"""Bytes; a larger file is not read without being asked for: a diagnosis would wait for it."""
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
            if why := _refusal(status, uid):
                yield Gap(path, why, HINT, about="driver")
                continue
            try:
                with open(os.open(f"/proc/{pid}/fd/{number}", _OPEN), "rb") as stream:
                    if (
                        os.path.samestat(status, os.fstat(stream.fileno()))
                        and proc.credentials(pid) == uid
                        and _is_driver(proc.files(pid), session, pid)
                    ):
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


def _refusal(status: os.stat_result, uid: int | None) -> str:
    """Why a file is not read; empty if it is."""
    if status.st_uid != uid:
        return f"belongs to user {owners.user(status.st_uid)}, not to the driver's user"
    if status.st_size > MOST:
        return f"{status.st_size >> 20:,} MiB, more than are read without being asked for"
    return ""
