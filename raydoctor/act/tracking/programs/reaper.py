"""Waits until a worker vanishes, then ends the processes that its unfinished tracked tasks have started.

A separate program, because it must outlive the worker even after SIGKILL:

    reaper.py FOLDER_OF_RAYDOCTOR REGISTRY WORKER_PID WORKER_START

The start is in seconds since boot.

It sleeps on a pidfd of the worker and on standard input, where the worker writes after it has started a
process. While tasks have processes, it samples them at growing intervals, so that processes that lose their
parents later are already recorded. The code that ends processes is loaded only when it is needed: until then
the watcher takes less than 12 MB.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydoctor.act.tracking import family, registry
    from raydoctor.act.tracking.registry import StartedProcess, Task
    from raydoctor.observe.processes import proc
else:
    sys.path.insert(0, sys.argv[1])
    from raydoctor.act.tracking import family, registry
    from raydoctor.act.tracking.registry import StartedProcess, Task
    from raydoctor.observe.processes import proc

_FIRST, _LAST = 0.1, 8.0
"""Seconds between samples: after a process was started, and after a long time without changes."""
_WITHOUT_PIDFD = 0.5
_NEVER = float("inf")
_RAYS_OWN = 0.5
"""Seconds that a raylet has to end its worker's group (200 ms in Ray 2.60) before raydoctor ends the rest."""


def main(path: str, worker: StartedProcess) -> None:
    """Wait for the end of the worker, and end the remaining processes."""
    memory: dict[int, Task] = {}
    while _runs(worker):
        gone = _pidfd(worker.pid)
        if gone is None:  # a kernel or a sandbox without pidfds
            sample(path, memory)
            time.sleep(_WITHOUT_PIDFD)
        elif _runs(worker):  # the pidfd refers to the worker
            _wait(path, memory, gone)
            break
    _end(path, memory, worker)


def _runs(worker: StartedProcess) -> bool:
    now = proc.read(worker.pid)
    return now is not None and worker.is_same(now.pid, now.started_at) and now.state != "Z"


def _pidfd(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None if pidfds are not supported."""
    with suppress(OSError):
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        from raydoctor.act.signals.system import Pidfds  # this Python was built with old headers

        return Pidfds().hold(pid)
    return None


def _wait(path: str, memory: dict[int, Task], gone: int) -> None:
    poll = select.poll()
    poll.register(gone, select.POLLIN)
    poll.register(0, select.POLLIN)
    pause, due = _FIRST, time.monotonic()
    while True:
        left = None if due == _NEVER else max(0.0, due - time.monotonic()) * 1000
        ready = {file for file, _ in poll.poll(left)}
        now = time.monotonic()
        if gone in ready:
            return
        if 0 in ready:
            if not os.read(0, 65536):
                poll.unregister(0)
            pause, due = _FIRST, min(due, now + _FIRST)
        if now >= due:
            is_news, is_needed = sample(path, memory)
            pause = _FIRST if is_news else min(_LAST, 2 * pause)
            due = time.monotonic() + pause if is_needed else _NEVER


def _read(path: str, memory: dict[int, Task]) -> dict[int, Task]:
    """The unfinished tasks, including what was read before: the file may have been removed."""
    if os.path.exists(path):
        tasks = registry.read(path)
        for number, task in tasks.items():
            for process in memory[number].processes.values() if number in memory else ():
                if (process.pid, round(process.started_at, 2)) not in task.processes:
                    task.add(process)
        memory.clear()
        memory.update(tasks)
    return memory


def sample(path: str, memory: dict[int, Task]) -> tuple[bool, bool]:
    """Record new processes; whether there were any, and whether further samples are needed."""
    lines, alive = [], 0
    tasks = _read(path, memory)
    for task in tasks.values():
        known = {s.pid: s for s in task.processes.values() if family.lives(s)}
        alive += len(known)
        lines += [
            registry.saw_line(task.number, process)
            for process in _below(known)
            if task.add(process)
        ]
        lines += [registry.shut_line(task.number, process) for process in _emptied(task, known)]
    if lines:
        with suppress(OSError):
            registry.append(path, lines)
    is_led = any(s.leads for task in tasks.values() for s in task.processes.values())
    return bool(lines), bool(alive) or is_led


def _below(known: dict[int, StartedProcess]) -> list[StartedProcess]:
    """The living ones of these processes and their descendants, in their current state."""
    found: dict[int, StartedProcess] = {}
    waiting = list(known)
    while waiting:
        pid = waiting.pop()
        process = None if pid in found else family.started_process(pid)
        if process is not None:
            found[pid] = process
            waiting += family.children(pid) or ()
    return list(found.values())


def _emptied(task: Task, known: dict[int, StartedProcess]) -> list[StartedProcess]:
    """Ended leaders whose session and group are empty."""
    dead = [s for s in task.processes.values() if s.leads and s.pid not in known]
    if not dead:
        return []
    table = proc.table().values()
    inhabited = {p.sid for p in table} | {p.pgid for p in table}
    return [s for s in dead if s.pid not in inhabited]


def _end(path: str, memory: dict[int, Task], worker: StartedProcess) -> None:
    """End the processes of the unfinished tasks, then remove the worker's file."""
    tasks = list(_read(path, memory).values())
    if tasks:
        from raydoctor.act.audit import Audit
        from raydoctor.act.signals import process

        def left() -> list[process.Identity]:
            known = _read(path, memory).values()
            started = [s for task in known for s in task.processes.values()]
            marks = [task.mark(worker) for task in tasks]
            found = family.members(started, marks, since=worker.started_at)
            return [process.Identity(m.pid, m.started_at) for m in found]

        grace = max(task.grace for task in tasks)
        audit = Audit(_purpose(tasks, worker.pid))
        began = time.monotonic()
        process.end(left(), grace, more=left, all_users=True, audit=audit)
        # Children that were being forked when their parent was ended.
        time.sleep(max(0.0, began + _RAYS_OWN - time.monotonic()))
        process.end(left(), 0.0, more=left, all_users=True, audit=audit)
    with suppress(OSError):
        os.unlink(path)
    family.forget_old()


def _purpose(tasks: list[Task], pid: int) -> str:
    names = [task.task for task in tasks]
    if names == [registry.RUN]:
        return f"raydoctor (pid {pid}) has vanished"
    return f"tracked {' '.join(names)}: its worker {pid} is gone"


if __name__ == "__main__":
    main(sys.argv[2], StartedProcess(int(sys.argv[3]), proc.from_boot(float(sys.argv[4]))))
