"""The output of running drivers, where it goes to a file, and what `raydoctor run` kept of ended ones.

A driver keeps its own log in the session open, which proves that a process is that driver. Only processes of
trusted users are read, and through the descriptor: another user cannot exchange the file behind it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from raydoctor.capture import owners
from raydoctor.model.values import Gap, Source
from raydoctor.observe.processes import proc

MOST = 64 << 20
"""Bytes; a larger file is not read without being asked for: a diagnosis would wait for it."""
ABOUT = "driver.json"
"""Beside an output that `raydoctor run` kept: its sessions and pids."""
_STREAMS = (1, 2)
_MOST_RUNS = 50
_ABOUT_BYTES = 1 << 20


class DriverOutput(NamedTuple):
    """A file to which a running driver writes."""

    pid: int
    path: str
    """As the driver opened it."""
    descriptor: int

    @property
    def file(self) -> str:
        """The path under which exactly this file can be opened while the driver runs."""
        return f"/proc/{self.pid}/fd/{self.descriptor}"


def find(session: str, sources: Iterable[Source]) -> Iterator[DriverOutput | Gap]:
    """The output files of a session's running drivers, and a gap for each that is too large."""
    seen: set[tuple[int, int]] = set()
    pids = {source.pid for source in sources if source.role == "core-driver" and source.pid}
    for pid in sorted(pids):
        if proc.credentials(pid) not in owners.trusted():
            continue
        files = proc.files(pid)
        if not any(_is_log(path, session, pid) for path in files.values()):
            continue
        for number in _STREAMS:
            output = DriverOutput(pid, files.get(number, ""), number)
            status = _status(output)
            if status is None or (key := (status.st_dev, status.st_ino)) in seen:
                continue
            seen.add(key)
            if os.path.realpath(output.path).startswith(f"{os.path.realpath(session)}/"):
                continue  # a submitted job's log, which the capture has
            if status.st_size > MOST:
                why = f"{status.st_size >> 20:,} MiB, more than are read without being asked for"
                yield Gap(output.path, why, "Give it with --driver-log.", about="driver")
            else:
                yield output


def _is_log(path: str, session: str, pid: int) -> bool:
    name = os.path.basename(path)
    is_drivers = name.startswith("python-core-driver-") and name.endswith(f"_{pid}.log")
    return is_drivers and os.path.realpath(path).startswith(f"{os.path.realpath(session)}/")


def _status(output: DriverOutput) -> os.stat_result | None:
    """Of a regular file of a trusted user with something in it; None for anything else."""
    try:
        status = os.stat(output.file)
    except OSError:
        return None
    is_read = stat.S_ISREG(status.st_mode) and status.st_uid in owners.trusted()
    return status if is_read and status.st_size else None


def runs_folder() -> str:
    """The folder in which `raydoctor run` keeps the output of each driver that failed."""
    return os.path.join(owners.state_folder(), "runs")


def kept(session: str, sources: Iterable[Source]) -> str:
    """The output that `raydoctor run` kept of a session's drivers; empty unless it is that of all of them.

    The systemd journal is not searched: `_PID` also matches earlier processes of that number.
    """
    pids = {source.pid for source in sources if source.role == "core-driver"}
    base, place = runs_folder(), os.path.realpath(session)
    with suppress(OSError):
        for name in sorted(os.listdir(base), reverse=True)[:_MOST_RUNS]:
            log = os.path.join(base, name, "driver.log")
            if pids and _is_about(os.path.join(base, name, ABOUT), place, pids):
                return log if _is_kept(log) else ""
    return ""


def _is_about(file: str, session: str, pids: set[int | None]) -> bool:
    try:
        about = json.loads(owners.read_regular(file, _ABOUT_BYTES, owners.trusted()).data)
        return session in map(os.path.realpath, about["sessions"]) and pids <= {*about["pids"]}
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _is_kept(log: str) -> bool:
    try:
        status = os.lstat(log)
    except OSError:
        return False
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid in owners.trusted()
    return is_ours and 0 < status.st_size <= MOST
