"""A throwaway Ray: started by a driver program in a folder of its own, and gone afterwards.

Nothing of it is reachable from outside (a network of its own if the kernel permits it, loopback, a token),
nothing of the user's Ray is touched (`RAY_*` of the environment are dropped, a new local cluster is forced),
and only processes that are known to be its own are ended: descendants of the driver, or this user's that
inherited its marker.

The programs start no dashboard, with port 0: Ray's agent sends events, with the token, to the dashboard's
port, where another user could listen. On port 0, none can.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from raydoctor.capture import owners
from raydoctor.demo import network
from raydoctor.model.errors import RaydoctorError

_MARKER = "RAYDOCTOR_DEMO"
_LONGEST_FOLDER = 40
"""Ray's sockets lie some 60 characters deeper, and a socket's path may have 107."""
_LOOK_EVERY = 0.2
_GRACE = 5.0
"""Seconds that Ray's own shutdown may take before its processes are ended."""


@dataclass(slots=True)
class DemoRun:
    """One run of a driver in its own Ray."""

    folder: Path
    environment: dict[str, str]
    driver_log: Path
    exit_code: int | None = None
    """None: it took too long and was ended."""
    processes: dict[tuple[int, float], psutil.Process] = field(default_factory=dict)
    """Processes of this Ray, by identity: a pid alone may be another's tomorrow."""

    @property
    def session(self) -> Path | None:
        """The folder of the session that the driver started."""
        sessions = sorted((self.folder / "ray").glob("session_2*"))
        return sessions[-1] if sessions else None


@contextmanager
def throw_away(keep: bool = False) -> Iterator[DemoRun]:
    """A folder and an environment for one Ray; its processes and files are gone at the end."""
    try:
        parent = owners.temporary_parent(_LONGEST_FOLDER)
        folder = Path(tempfile.mkdtemp(prefix="raydoctor-", dir=parent))
    except OSError as error:
        raise RaydoctorError(
            f"cannot make a temporary folder: {error.strerror or error}",
            "Set TMPDIR to a folder that only you can write to.",
        ) from None
    run = DemoRun(folder, _environment(folder), folder / "driver.log")
    try:
        with _terminations_interrupt():
            yield run
    finally:
        with _uninterrupted():
            _end(run)
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path) -> dict[str, str]:
    """The user's environment without their Ray, and what keeps the demo's Ray to itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {
        **kept,
        _MARKER: str(folder),
        "TMPDIR": str(folder),
        "PYTHONUNBUFFERED": "1",
        "RAY_TMPDIR": str(folder),
        "RAY_ADDRESS": "local",
        # Ray binds all interfaces otherwise, even with a node address of 127.0.0.1.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # With a token of its own, Ray (2.59 and later) writes none to the user's home.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


def supervise(
    run: DemoRun,
    program: Path,
    settings: Mapping[str, str],
    seconds: float,
    report_line: Callable[[str], None],
) -> None:
    """Run a driver program to its end or time limit, and report each line of its output at once."""
    with run.driver_log.open("wb") as log, _no_core_dumps():
        driver = subprocess.Popen(
            [sys.executable, program.name],
            cwd=program.parent,
            env={**run.environment, **settings},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=network.enter if network.is_available() else None,  # noqa: PLW1509 - no other thread
        )
    deadline = time.monotonic() + seconds
    with run.driver_log.open("rb") as output:
        while (code := driver.poll()) is None and time.monotonic() < deadline:
            _remember(run, driver.pid)
            _report_new(output.readlines(), report_line)
            time.sleep(_LOOK_EVERY)
        run.exit_code = code
        if code is None:
            driver.kill()
            driver.wait()
        _report_new(output.readlines(), report_line)


def _report_new(lines: list[bytes], report_line: Callable[[str], None]) -> None:
    for line in lines:
        report_line(line.decode("utf-8", "replace").rstrip())


@contextmanager
def _no_core_dumps() -> Iterator[None]:
    """What the block starts leaves no core file: a crash is wanted, gigabytes on disk are not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


# ---------------------------------------------------------------- the end of it


@contextmanager
def _terminations_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that what was started is ended too."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _TERMINATIONS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C does not cut the clean-up short: it takes seconds at most."""
    numbers = (signal.SIGINT, *_TERMINATIONS)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)


def _remember(run: DemoRun, driver: int) -> None:
    """Note the driver's descendants while they are that: orphans have no ancestry left."""
    with suppress(psutil.Error):
        process = psutil.Process(driver)
        for each in (process, *process.children(recursive=True)):
            _note(run, each)


def _remember_marked(run: DemoRun) -> None:
    """Note this user's processes whose environment says that they were started for this folder.

    Any user can see the folder's name, and give it to a process.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_own = process.uids().real == os.getuid()
            if is_own and process.environ().get(_MARKER) == str(run.folder):
                _note(run, process)


def _note(run: DemoRun, process: psutil.Process) -> None:
    with suppress(psutil.Error):
        run.processes.setdefault((process.pid, process.create_time()), process)


def _end(run: DemoRun) -> None:
    """End what is left of this Ray: wait for its own shutdown, then ask, then force."""
    if run.exit_code is not None:
        psutil.wait_procs(_left(run), timeout=_GRACE)
    for action in (psutil.Process.terminate, psutil.Process.kill):
        left = _left(run)
        for process in left:
            with suppress(psutil.Error):
                action(process)  # psutil checks the creation time before it signals a pid
        psutil.wait_procs(left, timeout=_GRACE)


def _left(run: DemoRun) -> list[psutil.Process]:
    """This Ray's processes that still do something; a zombie waits for its parent alone."""
    _remember_marked(run)
    left = []
    for process in run.processes.values():
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left
