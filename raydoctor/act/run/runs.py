"""Folders for the output of drivers of `raydoctor run`: the last ten, readable by their user only.

`${XDG_STATE_HOME:-~/.local/state}/raydoctor/runs/STARTED-PID/driver.log`, beside the audit. With it,
`driver.json` names the driver's sessions and pids, so that a later diagnosis of the session finds the output.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress

from raydoctor.capture import owners
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.processes import driver_output

_KEPT = 10


def new_log() -> str:
    """The path of a new log file. Raises RaydoctorError if no folder can be created."""
    base = driver_output.runs_folder()
    name = time.strftime(f"%Y-%m-%dT%H-%M-%S-{os.getpid()}")
    try:
        os.makedirs(base, mode=0o700, exist_ok=True)
        if owners.is_shared_path(base):
            raise PermissionError(errno.EACCES, "other users can replace its folders", base)
        _drop_old(base)
        folder = os.path.join(base, name)
        os.mkdir(folder, 0o700)
    except OSError:
        try:
            # The home folder is read-only, or open to others.
            folder = tempfile.mkdtemp(prefix="raydoctor-run-", dir=owners.temporary_parent())
        except OSError as error:
            raise RaydoctorError(
                f"cannot create a folder for the driver's output: {error.strerror or error}",
                "Name a file with --log, or set TMPDIR to a writable folder.",
            ) from None
    log = os.path.join(folder, "driver.log")
    _hold(log)
    return log


def describe(log: str, sessions: Iterable[str], pids: Iterable[int]) -> None:
    """Record to which sessions and processes a log that `new_log` made belongs."""
    about = {"sessions": [*sessions], "pids": sorted(pids)}
    path = os.path.join(os.path.dirname(log), driver_output.ABOUT)
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as out:
            json.dump(about, out)


def _drop_old(base: str) -> None:
    for name in sorted(os.listdir(base))[: 1 - _KEPT]:
        folder = os.path.join(base, name)
        if not _is_held(os.path.join(folder, "driver.log")):
            shutil.rmtree(folder, ignore_errors=True)


_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _hold(log: str) -> None:
    """Create the log and lock it until this process ends.

    A pid in the folder's name would not show whether `raydoctor run` still runs: another process may have
    that pid now, and in another container its processes are not visible.
    """
    with suppress(OSError):
        fcntl.flock(os.open(log, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600), fcntl.LOCK_EX)


def _is_held(log: str) -> bool:
    """Whether the `raydoctor run` that made this log still runs; True if that is unknown."""
    try:
        file = os.open(log, _FLAGS)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def forget(log: str) -> None:
    """Remove a log that `new_log` made."""
    with suppress(OSError):
        os.unlink(os.path.join(os.path.dirname(log), driver_output.ABOUT))
    with suppress(OSError):
        os.unlink(log)
        os.rmdir(os.path.dirname(log))
