"""What tracked tasks have started, on disk: one small file per worker, so that it survives the worker.

`WORKER_PID-START-PLACE` in a folder of the user's own (`private.py`), a line per fact, appended whole by the
process that has it first: the worker, the watcher (`programs/reaper.py`), or a forked child of the task. A
file whose worker and watcher are gone is still evidence of what that worker's tasks started: `remembered`.
Processes are ended on such evidence, so every access verifies that no other user can have written it.

Starts are in seconds since the boot: the kernel's epoch seconds move when the clock is set, and a living
worker would then be taken for one that is gone. The place (`proc.place`) is the boot and the pid namespace:
another container may share the folder, and its pids name other processes here.

`WORKER_PID-START-PLACE.seen` is written by others that only looked (`lineage.py`): what was seen below the
worker, of whichever task. It has one task, of number 0, which names the worker's job.

No lock: a line is one `write` to a file opened for appending. Standard library only, and little of it: the
watcher has to stay small.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from raydoctor.act import private
from raydoctor.observe.processes import proc

MARK = "RAYDOCTOR_TASK"
"""Environment variable of what a tracked task starts: `TASK_ID:WORKER_PID:WORKER_START:NUMBER`."""
RUN_MARK = "RAYDOCTOR_RUN"
"""The same of what the driver of `raydoctor run` starts; another name, as it ties nothing to a Ray worker."""
SESSION, GROUP = "s", "g"
RUN = "run"
"""In place of a task's id: the driver of `raydoctor run`, whose process is then the worker (`guard.py`)."""
_SAMPLED = ".seen"
"""End of the name of a file whose writer only looked."""
_MOST = 8 << 20
"""Bytes of a file; a worker drops what has ended at 64 kB, and a line has 40."""
_SAME = 0.005
"""Seconds: start times are counted in ticks of 0.01 s."""


class StartedProcess(NamedTuple):
    """A process that a task has started, at whatever remove."""

    pid: int
    started_at: float
    leads: str = ""
    """`s` where it leads a session, `g` where it leads a process group."""

    def is_same(self, pid: int, started_at: float) -> bool:
        """Whether that is this process."""
        return self.pid == pid and abs(self.started_at - started_at) < _SAME


def _start(process: StartedProcess) -> str:
    return f"{proc.since_boot(process.started_at):.2f}"


def _process(pid: str, start: str, leads: str = "") -> StartedProcess:
    return StartedProcess(int(pid), proc.from_boot(float(start)), leads)


def _key(process: StartedProcess) -> tuple[int, float]:
    return process.pid, round(process.started_at, 2)


class Task(NamedTuple):
    """A tracked piece of work that has not ended."""

    number: int
    """Counts them within a worker."""
    task: str
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    processes: dict[tuple[int, float], StartedProcess]

    def mark(self, worker: StartedProcess) -> str:
        """Value of `MARK` in the environment of what it starts."""
        return f"{self.task}:{worker.pid}:{_start(worker)}:{self.number}"

    def shut(self, process: StartedProcess) -> None:
        """Its session and its group are empty: whoever leads one of that number now is another."""
        self.processes[_key(process)] = process._replace(leads="")

    def add(self, process: StartedProcess) -> bool:
        """Keep a process, with all that it was ever seen to lead; whether that was news."""
        key = _key(process)
        before = self.processes.get(key)
        leads = "".join(sorted({*process.leads, *(before.leads if before else "")}))
        self.processes[key] = process._replace(leads=leads)
        return before is None or before.leads != leads


class WorkerRecord(NamedTuple):
    """What one worker's file says."""

    worker: StartedProcess
    tasks: dict[int, Task]
    path: str
    is_tracked: bool = True
    """Whether the worker's tasks were tracked; else what is below the worker was seen from outside."""
    is_here: bool = True
    """Whether its pids are those of this boot and this pid namespace."""


def path_of(worker: StartedProcess, is_tracked: bool = True) -> str:
    """Of a worker's file: the one that exists, else where to make it; its folder is this user's alone.

    Raises OSError where there is no such folder and none can be made.
    """
    name = f"{worker.pid}-{_start(worker)}-{proc.place()}{'' if is_tracked else _SAMPLED}"
    for folder in private.existing():
        if folder.has(name):
            return os.path.join(folder.path, name)
    with private.created(lasting=True) as folder:
        return os.path.join(folder.path, name)


def append(path: str, lines: Iterable[str], create: bool = False) -> None:
    """Add lines. Raises FileNotFoundError where there is no file and `create` is not set."""
    folder, name = os.path.split(path)
    with private.opened(folder) as opened:
        opened.append(name, _text(lines), create)


def replace(path: str, lines: Iterable[str]) -> None:
    """Write the file anew, whole or not at all."""
    folder, name = os.path.split(path)
    with private.opened(folder) as opened:
        opened.write(name, _text(lines))


def _text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def begin_line(task: Task) -> str:
    """A tracked piece of work has started its first process."""
    return f"begin {task.number} {task.task} {task.grace:g}"


def saw_line(number: int, process: StartedProcess) -> str:
    """It has started this one."""
    return f"saw {number} {process.pid} {_start(process)} {process.leads or '-'}"


def shut_line(number: int, process: StartedProcess) -> str:
    """It has ended, and so have all of the session and the group that it led."""
    return f"shut {number} {process.pid} {_start(process)}"


def end_line(number: int) -> str:
    """It has ended; what it started is nobody's business any more."""
    return f"end {number}"


def lines_of(tasks: Iterable[Task]) -> Iterator[str]:
    """A file's text, for these."""
    for task in tasks:
        yield begin_line(task)
        for process in list(task.processes.values()):  # another thread may add to it
            yield saw_line(task.number, process)


def read(path: str) -> dict[int, Task]:
    """The tasks of a file that have not ended; none where it cannot be read."""
    folder, name = os.path.split(path)
    with suppress(OSError), private.opened(folder) as opened:
        return _tasks(opened.read(name, _MOST))
    return {}


def _tasks(text: bytes) -> dict[int, Task]:
    tasks: dict[int, Task] = {}
    for line in text.decode("ascii", "replace").splitlines():
        with suppress(ValueError, LookupError):  # a line that was cut short
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
    """All files of this user, whether or not their workers live; `everywhere`: those of other places, too."""
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
