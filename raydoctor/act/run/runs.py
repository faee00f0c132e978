"""Folders for the output of drivers of `raydoctor run`: the last ten, readable by their user only.

`${XDG_STATE_HOME:-~/.local/state}/raydoctor/runs/STARTED-PID/driver.log`, beside the audit. With it,
`driver.json` names the driver's sessions and pids, so that a later diagnosis of the session finds the output.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress

from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.processes import driver_output

_KEPT = 10


def new_log() -> str:
    """The path of a new log file. Raises RaydoctorError if no folder can be created."""
    base = driver_output.runs_folder()
    name = time.strftime(f"%Y-%m-%dT%H-%M-%S-{os.getpid()}")
    try:
        os.makedirs(base, mode=0o700, exist_ok=True)
        _drop_old(base)
        folder = os.path.join(base, name)
        os.mkdir(folder, 0o700)
    except OSError:
        try:
            folder = tempfile.mkdtemp(prefix="raydoctor-run-")  # the home folder is read-only
        except OSError as error:
            raise RaydoctorError(
                f"cannot create a folder for the driver's output: {error.strerror or error}",
                "Name a file with --log, or set TMPDIR to a writable folder.",
            ) from None
    return os.path.join(folder, "driver.log")


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
        pid = name.rpartition("-")[2]
        # Keep it while its `raydoctor run` is running.
        if not os.path.exists(f"/proc/{pid}"):
            shutil.rmtree(os.path.join(base, name), ignore_errors=True)


def forget(log: str) -> None:
    """Remove a log that `new_log` made."""
    with suppress(OSError):
        os.unlink(os.path.join(os.path.dirname(log), driver_output.ABOUT))
    with suppress(OSError):
        os.unlink(log)
        os.rmdir(os.path.dirname(log))
