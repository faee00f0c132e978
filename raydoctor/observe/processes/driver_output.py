"""The output of running drivers, where it goes to a file, and what `raydoctor run` kept of ended ones.

A driver keeps its own log in the session open, which proves that a process is that driver. Only processes of
trusted users are read, and through the descriptor: another user cannot exchange the file behind it.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from raydoctor.capture import owners
from raydoctor.capture.open import Capture, add_driver_log
from raydoctor.model import paste
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


def add_kept(capture: Capture, session: str, is_up: bool = False) -> None:
    """Add the output that `raydoctor run` kept of a session's drivers, if it is that of all of them.

    Of a running cluster it counts only if it is recent. The systemd journal is not searched: `_PID` also
    matches earlier processes of that number.
    """
    from raydoctor.diagnosis.driver_output import (
        RECENT_S,
    )  # only a diagnosis and an archive need it

    if not session or any(source.role in ("driver", "job-driver") for source in capture.files):
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
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _status_of(log: str) -> os.stat_result | None:
    """Of a regular file of a trusted user, neither empty nor large; None for anything else."""
    with suppress(OSError):
        status = os.lstat(log)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid in owners.trusted()
        return status if is_ours and 0 < status.st_size <= MOST else None
    return None
