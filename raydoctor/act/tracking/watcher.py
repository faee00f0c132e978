"""Starts and wakes the process that ends a worker's tracked tasks if the worker vanishes.

It is no child of the worker (Ray ends those when a worker exits: Ray 2.4 and later), leads no group that
Ray knows, and has nothing of the worker's environment, so that nothing takes it for a part of the task.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path

from raydoctor.act.tracking.registry import StartedProcess
from raydoctor.act.tracking.spawns import NOBODY, current
from raydoctor.observe.processes import proc

_PROGRAM = Path(__file__).with_name("programs") / "reaper.py"
_WATCHER = "/raydoctor/act/tracking/programs/reaper.py"
_SHELL = ("/bin/sh", "-c", 'exec 3<&0; "$@" <&3 3<&- &', "sh")
"""Starts a program that is then nobody's child; without `<&3` it would read from nowhere."""
_KEPT = ("HOME", "XDG_STATE_HOME", "LD_LIBRARY_PATH")
"""Of the environment: where the audit is, and what Python may need to start."""


def is_one(pid: int) -> bool:
    """Whether a process is a watcher, or about to become one: it is not what a task started."""
    return any(word.endswith(_WATCHER) for word in proc.command(pid))


class WorkerWatcher:
    """The watcher of one worker, as the worker knows it."""

    __slots__ = ("_path", "_pipe", "_worker")

    def __init__(self, path: str, worker: StartedProcess) -> None:
        self._path, self._worker = path, worker
        self._pipe = -1

    def wake(self) -> None:
        """See that it runs and looks at the registry soon. Raises OSError where it cannot be started."""
        try:
            if self._pipe < 0:
                self._start()
            os.write(self._pipe, b".")
        except BlockingIOError:
            pass  # it is about to look
        except BrokenPipeError:  # somebody has ended it
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
        current.set(NOBODY)  # it is not the task's
        _popen([*_SHELL, *_command(self._path, self._worker)], readable).wait()


def start_child(path: str, worker: StartedProcess) -> subprocess.Popen[bytes]:
    """A watcher as a child of this process, where nothing ends children. Raises OSError."""
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
