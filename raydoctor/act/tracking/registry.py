"""Processes started by tracked tasks, recorded on disk in one file per worker that outlives the worker.

The file is `WORKER_PID-START-PLACE` in a private folder of the user (`private.py`). It has one line per fact,
appended atomically by the process that learns it first: the worker, the watcher (`programs/reaper.py`), or a
forked child of the task. A file whose worker and watcher are gone remains evidence (`known_workers`).
Processes are ended on that evidence, so every access verifies that no other user can have written the file.

Start times are in seconds since boot: epoch seconds change when the clock is set, and a living worker would
then appear to be gone. The place (`proc.place`) identifies the boot and the pid namespace: a container may
share the folder, but its pids refer to other processes.

`WORKER_PID-START-PLACE.seen` is written by observers (`lineage.py`): processes sampled below the worker, of
any task. It has one task, number 0, whose id is the worker's job.

No lock is needed: a line is one `write` to a file opened for appending. Imports few modules, all of the
standard library, to keep the watcher small.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from raydoctor.act import private
from raydoctor.observe.processes import proc

MARK = "RAYDOCTOR_TASK"
"""Environment variable of processes that a tracked task starts: `TASK_ID:WORKER_PID:WORKER_START:NUMBER`."""
RUN_MARK = "RAYDOCTOR_RUN"
"""The same for what raydoctor starts under a guard; a separate name, because no Ray worker is involved."""
SESSION, GROUP = "s", "g"
RUN = "run"
"""Used instead of a task id for what raydoctor starts; raydoctor is the worker then (`run/guard.py`)."""
_SAMPLED = ".seen"
"""Suffix of a file that an observer wrote."""
_MOST = 8 << 20
"""Bytes of a file; a worker drops ended processes at 64 kB, and a line has 40 bytes."""
_SAME = 0.005
"""Seconds: start times are counted in ticks of 0.01 s."""


class StartedProcess(NamedTuple):
    """A process that a task has started, directly or indirectly."""

    pid: int
    started_at: float
    leads: str = ""
    """`s` if it leads a session, `g` if it leads a process group."""

    def is_same(self, pid: int, started_at: float) -> bool:
        """Whether pid and start time are those of this process."""
        return self.pid == pid and abs(self.started_at - started_at) < _SAME


def _start(process: StartedProcess) -> str:
    return f"{proc.since_boot(process.started_at):.2f}"


def _process(pid: str, start: str, leads: str = "") -> StartedProcess:
    return StartedProcess(int(pid), proc.from_boot(float(start)), leads)


def _key(process: StartedProcess) -> tuple[int, float]:
    return process.pid, round(process.started_at, 2)


class Task(NamedTuple):
    """A tracked task, or a part of one, that has not ended."""

    number: int
    """Unique within a worker."""
    task: str
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    processes: dict[tuple[int, float], StartedProcess]

    def mark(self, worker: StartedProcess) -> str:
        """Value of `MARK` in the environment of its processes."""
        return f"{self.task}:{worker.pid}:{_start(worker)}:{self.number}"

    def shut(self, process: StartedProcess) -> None:
        """Record that its session and group are empty: a later leader with that number is another process."""
        self.processes[_key(process)] = process._replace(leads="")

    def add(self, process: StartedProcess) -> bool:
        """Record a process and all that it has ever led; whether anything was new."""
        key = _key(process)
        before = self.processes.get(key)
        leads = "".join(sorted({*process.leads, *(before.leads if before else "")}))
        self.processes[key] = process._replace(leads=leads)
        return before is None or before.leads != leads


class WorkerRecord(NamedTuple):
    """The content of one worker's file."""

    worker: StartedProcess
    tasks: dict[int, Task]
    path: str
    is_tracked: bool = True
    """Whether the worker's tasks were tracked; otherwise an observer sampled its descendants."""
    is_here: bool = True
    """Whether its pids belong to this boot and pid namespace."""


def path_of(worker: StartedProcess, is_tracked: bool = True) -> str:
    """Path of a worker's file: the existing one, else where to create it, in a private folder.

    Raises OSError if there is no such folder and none can be created.
    """
    name = f"{worker.pid}-{_start(worker)}-{proc.place()}{'' if is_tracked else _SAMPLED}"
    for folder in private.existing():
        if folder.has(name):
            return os.path.join(folder.path, name)
    with private.created(lasting=True) as folder:
        return os.path.join(folder.path, name)


def append(path: str, lines: Iterable[str], create: bool = False) -> None:
    """Append lines. Raises FileNotFoundError if the file does not exist and `create` is not set."""
    folder, name = os.path.split(path)
    with private.opened(folder) as opened:
        opened.append(name, _text(lines), create)


def replace(path: str, lines: Iterable[str]) -> None:
    """Replace the file atomically."""
    folder, name = os.path.split(path)
    with private.opened(folder) as opened:
        opened.write(name, _text(lines))


def _text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def begin_line(task: Task) -> str:
    """The task has started its first process."""
    return f"begin {task.number} {task.task} {task.grace:g}"


def saw_line(number: int, process: StartedProcess) -> str:
    """The task has started this process."""
    return f"saw {number} {process.pid} {_start(process)} {process.leads or '-'}"


def shut_line(number: int, process: StartedProcess) -> str:
    """A leader has ended, and its session and group are empty."""
    return f"shut {number} {process.pid} {_start(process)}"


def end_line(number: int) -> str:
    """The task has ended; its processes are no longer tracked."""
    return f"end {number}"


def lines_of(tasks: Iterable[Task]) -> Iterator[str]:
    """The lines of a file with these tasks."""
    for task in tasks:
        yield begin_line(task)
        for process in list(task.processes.values()):  # another thread may add to it
            yield saw_line(task.number, process)


def read(path: str) -> dict[int, Task]:
    """The unfinished tasks of a file; empty if it cannot be read."""
    folder, name = os.path.split(path)
    with suppress(OSError), private.opened(folder) as opened:
        return _tasks(opened.read(name, _MOST))
    return {}


def _tasks(text: bytes) -> dict[int, Task]:
    tasks: dict[int, Task] = {}
    for line in text.decode("ascii", "replace").splitlines():
        with suppress(ValueError, LookupError):  # an incomplete line
            _take(line.split(" "), tasks)
    return tasks


def _take(words: list[str], tasks: dict[int, Task]) -> None:
    what, number = words[0], int(words[1])
    if what == "begin":
        tasks.setdefault(number, Task(number, words[2], float(words[3]), {}))
    elif what == "saw":
        tasks[number].add(_process(words[2], words[3], words[4].replace("-", "")))
    elif what == "shut":
        tasks[number].shut(_process(words[2], words[3]))
    elif what == "end":
        tasks.pop(number, None)


def known_workers(everywhere: bool = False) -> list[WorkerRecord]:
    """All files of this user, including ended workers; `everywhere`: and other boots and containers."""
    found = []
    for folder in private.existing():
        for name in sorted(folder.names()):
            pid, _, rest = name.removesuffix(_SAMPLED).partition("-")
            start, _, place = rest.rpartition("-")
            is_here = place == proc.place()
            with suppress(ValueError, OSError):
                worker = _process(pid, start)
                if is_here or everywhere:
                    tasks = _tasks(folder.read(name, _MOST))
                    path = os.path.join(folder.path, name)
                    is_tracked = not name.endswith(_SAMPLED)
                    found.append(WorkerRecord(worker, tasks, path, is_tracked, is_here))
    return found
