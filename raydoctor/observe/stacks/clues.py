"""Evidence around a process that may be hung: sockets, files, children, locks, awaited objects.

A socket, a file or a pipe lists the threads that wait in a call on it (`tids`), if the kernel shows the
call's arguments. It is read from `/proc`: Linux only, and only for processes of this user or as root.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from raydoctor.observe.processes import proc
from raydoctor.observe.processes.redact import command_line
from raydoctor.observe.stacks import awaited, locks, pyspy, rests, sockets
from raydoctor.observe.stacks import threads as _threads
from raydoctor.observe.stacks.calls import descriptors, path_of
from raydoctor.observe.stacks.memory import memory
from raydoctor.observe.stacks.pyspy import Dump
from raydoctor.observe.stacks.threads import KernelThread

Row = dict[str, Any]
_MOST = 64
_COMMAND = 200


def of(
    pid: int,
    threads: Mapping[int, KernelThread],
    dump: Dump,
    unfinished: frozenset[str] = frozenset(),
) -> Row:
    """Sockets, pipes and files, children, locks, and awaited objects of a process.

    `threads` are its threads before py-spy stopped them; `dump` has locals if `needs_variables` returns True.
    """
    python = {int(each.get("os_thread_id") or 0) for each in dump.threads}
    # A worker has a dozen threads of Ray that permanently wait on sockets.
    waiting = {tid: each for tid, each in threads.items() if not python or tid in python}
    children = _children(pid)
    used, paths = _uses(pid, waiting)
    links = _links(pid)
    return {
        "sockets": sockets.rows(pid, links, used)[:_MOST],
        "children": children[:_MOST],
        "files": [*_files(links, used, children), *paths][:_MOST],
        "locks": [*locks.of_threads(pid, waiting, dump), *locks.of_files(pid)],
        "awaits": awaited.awaits(pid, dump, unfinished),
        "tracer": _tracer(pid),
    }


def waits_for_ray(dump: Dump) -> bool:
    """Whether a thread waits in `ray.get` or `ray.wait`."""
    return any(awaited.is_call(f) for thread in dump.threads for f in pyspy.frames(thread))


def needs_variables(dump: Dump) -> bool:
    """Whether the locals of its frames are needed to find the awaited objects or the lock."""
    return waits_for_ray(dump) or any(locks.may_wait(thread) for thread in dump.threads)


def _uses(pid: int, waiting: Mapping[int, KernelThread]) -> tuple[dict[int, list[int]], list[Row]]:
    """Descriptor -> threads with a call on it; and files that a call names by path."""
    used: dict[int, list[int]] = {}
    paths = []
    with memory(pid) as found:
        for tid, thread in waiting.items():
            for number in descriptors(pid, thread, found):
                used.setdefault(number, []).append(tid)
            if path := path_of(thread, found):
                paths.append({"fd": None, "path": path, "tids": [tid]})
    return used, paths


def _links(pid: int) -> dict[int, str]:
    """Descriptor -> target: `/data/x`, `socket:[4711]`, `pipe:[4712]`."""
    folder = f"/proc/{pid}/fd"
    found = {}
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                found[int(name)] = os.readlink(f"{folder}/{name}")
    return found


def _files(
    links: Mapping[int, str], used: dict[int, list[int]], children: list[Row]
) -> Iterator[Row]:
    """Files and pipes with a thread's call on them; for a pipe also the children that have it open."""
    for number, tids in used.items():
        path = links.get(number, "")
        if path.startswith("socket:") or not path:
            continue
        row: Row = {"fd": number, "path": path, "tids": tids}
        if path.startswith("pipe:"):
            ends = [c["pid"] for c in children if path in _links(c["pid"]).values()]
            row["held_by"] = ends
        yield row


def _children(pid: int) -> list[Row]:
    """Its child processes, including those that have exited and were not waited for."""
    rested = rests.of_families(_child_pids(pid))
    own = command_line(pid)
    return [
        _process(child) | {"rested_s": since, "is_fork": bool(own) and command_line(child) == own}
        for child, since in rested.items()
    ]


def _child_pids(pid: int) -> list[int]:
    found: set[int] = set()
    tids = _threads.tids(pid)
    with suppress(OSError, ValueError):
        for tid in tids:
            with open(f"/proc/{pid}/task/{tid}/children") as stream:
                found.update(map(int, stream.read().split()))
        if tids:
            return sorted(found)
    # A thread has ended meanwhile, the kernel lacks CONFIG_PROC_CHILDREN, or this is another system.
    return sorted(p.pid for p in proc.table().values() if p.ppid == pid)


def _process(pid: int) -> Row:
    process = proc.read(pid)
    command = command_line(pid) or (f"[{process.name}]" if process else "")
    return {"pid": pid, "command": command[:_COMMAND], "state": process.state if process else ""}


def _tracer(pid: int) -> Row | None:
    """The debugger that traces it."""
    tracer = _threads.tracer(pid)
    return _process(tracer) if tracer else None
