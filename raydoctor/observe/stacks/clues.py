"""What one look around a process that may hang is worth: sockets, files, children, locks, awaited objects.

A socket, a file or a pipe names the threads that wait in a call on it (`tids`), as far as the kernel tells
the call's arguments. Read from `/proc`, so for one's own processes or as root, and on Linux alone.
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
    look: Dump,
    unfinished: frozenset[str] = frozenset(),
) -> Row:
    """Sockets, pipes and files, children, locks, and awaited objects of a process.

    `threads` are its threads before it was looked at; `look` has locals where `needs_variables` says so.
    """
    python = {int(each.get("os_thread_id") or 0) for each in look.threads}
    # A worker has a dozen threads of Ray's own that wait on sockets for ever.
    waiting = {tid: each for tid, each in threads.items() if not python or tid in python}
    children = _children(pid)
    used, paths = _uses(pid, waiting)
    links = _links(pid)
    return {
        "sockets": sockets.rows(pid, links, used)[:_MOST],
        "children": children[:_MOST],
        "files": [*_files(links, used, children), *paths][:_MOST],
        "locks": [*locks.of_threads(pid, waiting, look), *locks.of_files(pid)],
        "awaits": awaited.awaits(pid, look, unfinished),
        "tracer": _tracer(pid),
    }


def waits_for_ray(look: Dump) -> bool:
    """Whether a thread waits in `ray.get` or `ray.wait`."""
    return any(awaited.is_call(f) for thread in look.threads for f in pyspy.frames(thread))


def needs_variables(look: Dump) -> bool:
    """Whether the locals of its frames would tell more than the stack: which objects, which lock."""
    return waits_for_ray(look) or any(locks.may_wait(thread) for thread in look.threads)


def _uses(pid: int, waiting: Mapping[int, KernelThread]) -> tuple[dict[int, list[int]], list[Row]]:
    """Descriptor -> threads whose call is on it; and files that a call names by their path."""
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
    """What its descriptors lead to: `/data/x`, `socket:[4711]`, `pipe:[4712]`."""
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
    """Files and pipes that a thread's call is on; of a pipe, which children have it open, too."""
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
    """What it started itself and has not ended, or not been waited for."""
    rested = rests.of_families(_child_pids(pid))
    return [_process(child) | {"rested_s": since} for child, since in rested.items()]


def _child_pids(pid: int) -> list[int]:
    found: set[int] = set()
    tids = _threads.tids(pid)
    with suppress(OSError, ValueError):
        for tid in tids:
            with open(f"/proc/{pid}/task/{tid}/children") as stream:
                found.update(map(int, stream.read().split()))
        if tids:
            return sorted(found)
    # A thread has ended meanwhile, a kernel without CONFIG_PROC_CHILDREN, or another system.
    return sorted(p.pid for p in proc.table().values() if p.ppid == pid)


def _process(pid: int) -> Row:
    process = proc.read(pid)
    command = command_line(pid) or (f"[{process.name}]" if process else "")
    return {"pid": pid, "command": command[:_COMMAND], "state": process.state if process else ""}


def _tracer(pid: int) -> Row | None:
    """The debugger that traces it."""
    tracer = _threads.tracer(pid)
    return _process(tracer) if tracer else None
