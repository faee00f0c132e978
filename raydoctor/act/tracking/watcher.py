"""Starts and wakes the process that ends a worker's tracked tasks if the worker vanishes.

The watcher is not a child of the worker (Ray 2.4 and later end those when a worker exits), is not in a
process group that Ray knows, and does not inherit the worker's environment, so that it never counts as part
of a task.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path

from raydoctor.act.tracking.registry import StartedProcess
from raydoctor.act.tracking.spawns import NO_TASK, current
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process

_PROGRAM = Path(__file__).with_name("programs") / "reaper.py"
_WATCHER = "/raydoctor/act/tracking/programs/reaper.py"
_SHELL = ("/bin/sh", "-c", 'exec 3<&0; "$@" <&3 3<&- &', "sh")
"""Starts a program that init adopts; without `<&3` its standard input would be /dev/null."""
_KEPT = ("HOME", "XDG_STATE_HOME", "LD_LIBRARY_PATH")
"""Environment variables that the watcher keeps: the place of the audit, and what Python may need to start."""


def is_one(pid: int) -> bool:
    """Whether a process is a watcher or about to become one; a watcher never belongs to a task."""
    return any(word.endswith(_WATCHER) for word in proc.command(pid))


def running(processes: Mapping[int, Process], path: str) -> int:
    """The pid of the watcher with this registry file; 0 if none runs."""
    alive = (pid for pid, process in processes.items() if process.state != "Z")
    return next((pid for pid in alive if path in proc.command(pid) and is_one(pid)), 0)


class WorkerWatcher:
    """The worker's connection to its watcher."""

    __slots__ = ("_path", "_pipe", "_worker")

    def __init__(self, path: str, worker: StartedProcess) -> None:
        self._path, self._worker = path, worker
        self._pipe = -1

    def wake(self) -> None:
        """Start it if necessary, and have it read the registry soon. Raises OSError if it does not start."""
        try:
            if self._pipe < 0:
                self._start()
            os.write(self._pipe, b".")
        except BlockingIOError:
            pass  # it is about to read the registry
        except BrokenPipeError:  # another process has ended it
            self._close()
            self._start()
            os.write(self._pipe, b".")

    def _close(self) -> None:
        pipe, self._pipe = self._pipe, -1
        with suppress(OSError):
            os.close(pipe)

    def _start(self) -> None:
        readable, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            copy_context().run(self._launch, readable)
        except BaseException:
            self._close()
            raise
        finally:
            os.close(readable)

    def _launch(self, readable: int) -> None:
        current.set(NO_TASK)  # the watcher does not belong to the task
        _popen([*_SHELL, *_command(self._path, self._worker)], readable).wait()


def start_child(path: str, worker: StartedProcess) -> subprocess.Popen[bytes]:
    """Start a watcher as a child of this process, whose children Ray does not end. Raises OSError."""
    return _popen(_command(path, worker), subprocess.DEVNULL)


def _command(path: str, worker: StartedProcess) -> list[str]:
    home = str(Path(__file__).parents[3])
    identity = (str(worker.pid), f"{proc.since_boot(worker.started_at):.2f}")
    return [sys.executable, "-I", "-S", str(_PROGRAM), home, path, *identity]


def _popen(command: list[str], readable: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=readable,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: os.environ[name] for name in _KEPT if name in os.environ},
        start_new_session=True,
    )
