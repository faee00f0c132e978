"""Records which processes the workers of a cluster start, while their parents still prove it.

A child with its own session, without its worker's environment and open files, is tied to the worker only by
its parent. Once the parent is gone, no evidence remains. So `raydoctor run` and `raydoctor watch` sample the
process table, and record each process below a worker, by pid and start time, in the registry (`registry.py`),
where `raydoctor zombies` finds it.

A process that is started and loses its parents between two samples is not recorded. A driver that runs below
a worker (the entrypoint of a job) owns its processes; the worker does not.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from raydoctor.act.signals.process import Identity
from raydoctor.act.tracking import family, registry, watcher
from raydoctor.act.tracking.registry import StartedProcess, Task
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.processes import daemons, ownership, proc, traces
from raydoctor.observe.processes.proc import Process

_NUMBER = 0
"""The only task of such a file: an observer cannot see which of the worker's tasks started a process."""
_AGENTS = ("ray::DashboardA", "ray::RuntimeEnv")
"""Other children of raylets, by their kernel name (Ray 2.60; older agents do not begin with `ray::`)."""

Table = Mapping[int, Process]


@dataclass(slots=True)
class _Tree:
    """A worker and the processes sampled below it."""

    worker: StartedProcess
    task: Task
    path: str = ""
    """Its file; empty if none is written yet, or none can be written."""

    def living(self, table: Table) -> dict[int, StartedProcess]:
        """Its living processes without the worker."""
        return {s.pid: s for s in self.task.processes.values() if _lives(table, s)}

    def write(self, new: Collection[StartedProcess]) -> None:
        """Append to its file; if that fails, the processes are known to this process only."""
        with suppress(OSError):
            try:
                if not self.path:
                    raise FileNotFoundError
                registry.append(self.path, [registry.saw_line(_NUMBER, s) for s in new])
            except FileNotFoundError:  # not created yet, or removed by another process
                self.path = registry.path_of(self.worker, is_tracked=False)
                registry.replace(self.path, registry.lines_of([self.task]))

    def forget(self) -> None:
        """Remove its file."""
        with suppress(OSError):
            if self.path:
                os.unlink(self.path)


@dataclass(slots=True)
class ClusterLineage:
    """Processes sampled below the workers of one cluster on this machine."""

    cluster: Cluster
    _is_tidy: bool = False
    """Whether old files of the registry were removed."""
    _raylets: dict[tuple[int, float], bool] = field(default_factory=dict)
    _drivers: set[tuple[int, float]] = field(default_factory=set)
    _trees: dict[tuple[int, float], _Tree] = field(default_factory=dict)

    def sample(self, table: Table) -> None:
        """Record the processes below the cluster's workers. `table`: a fresh `proc.table()`."""
        if not self._is_tidy:
            self._is_tidy = True
            family.forget_old()
        children = proc.by_parent(table)
        for worker in self._workers(table, children):
            if worker.pid in children and _key(worker) not in self._trees:
                self._trees[_key(worker)] = _tree(worker)
        for key, tree in list(self._trees.items()):
            new = self._below(tree, table, children)
            if new:
                tree.write([process for process in new if tree.task.add(process)])
            if not _lives(table, tree.worker) and not tree.living(table):
                tree.forget()
                del self._trees[key]

    def left(self, jobs: Collection[str]) -> list[Identity]:
        """Living processes that ended workers of these jobs have started, parents first."""
        trees = [t for t in self._trees.values() if t.task.task in jobs]
        table = proc.table() if trees else {}
        orphans = [
            each
            for tree in trees
            if not _lives(table, tree.worker)
            for each in tree.living(table).values()
            if not self._is_rays(table[each.pid])
        ]
        found = family.members(orphans, ()) if orphans else []
        return [Identity(each.pid, each.started_at) for each in found]

    def is_awaited(self, jobs: Collection[str]) -> bool:
        """Whether workers of these jobs still run with processes that they have started."""
        trees = [t for t in self._trees.values() if t.task.task in jobs]
        table = proc.table() if trees else {}
        return any(_lives(table, tree.worker) and tree.living(table) for tree in trees)

    # -------------------------------------------------------------- ownership

    def _workers(self, table: Table, children: Mapping[int, list[int]]) -> Iterator[Process]:
        for raylet in table.values():
            if raylet.name == "raylet" and raylet.state != "Z" and self._is_ours(raylet):
                for pid in children.get(raylet.pid, ()):
                    name = table[pid].name
                    if name.startswith("ray::") and not name.startswith(_AGENTS):
                        yield table[pid]

    def _is_ours(self, raylet: Process) -> bool:
        """Whether it belongs to this cluster; its command line is read once."""
        key = _key(raylet)
        if key not in self._raylets:
            found = daemons.find({raylet.pid: raylet})
            ours = posixpath.basename(self.cluster.session_dir)
            self._raylets[key] = any(
                posixpath.basename(each.daemon.session_dir) == ours for each in found
            )
        return self._raylets[key]

    def _below(
        self, tree: _Tree, table: Table, children: Mapping[int, list[int]]
    ) -> list[StartedProcess]:
        """Processes below a worker, or below its known processes, that are not recorded yet."""
        known = tree.living(table)
        new = []
        waiting = [*known, *([tree.worker.pid] if _lives(table, tree.worker) else [])]
        while waiting:
            parent = waiting.pop()
            fresh = [p for p in children.get(parent, ()) if p not in known]
            if not fresh or (parent != tree.worker.pid and self._is_rays(table[parent])):
                continue
            for pid in fresh:
                process = table[pid]
                if process.state != "Z" and pid != os.getpid() and not watcher.is_one(pid):
                    # Without session and group: their number may be reused after sampling has ended.
                    known[pid] = StartedProcess(pid, process.started_at)
                    new.append(known[pid])
                    waiting.append(pid)
        return new

    def _is_rays(self, process: Process) -> bool:
        """Whether it is a driver or a daemon, which owns the processes below it."""
        if process.name in daemons.BINARIES or _key(process) in self._drivers:
            return True
        is_driver = ownership.is_driver(process.pid)
        if is_driver:
            self._drivers.add(_key(process))
        return is_driver


@dataclass(slots=True)
class JoinedClusters:
    """The clusters that a driver is connected to, and its jobs there."""

    _memories: dict[str, ClusterLineage] = field(default_factory=dict)
    _jobs: dict[str, set[str]] = field(default_factory=dict)

    def add(self, session: str, job: str) -> None:
        """Record a job of the driver in the cluster of this session."""
        self._memories.setdefault(session, ClusterLineage(Cluster(session_dir=session)))
        self._jobs.setdefault(session, set()).add(job)

    def sample(self, table: Table | None = None) -> None:
        """Record the processes below the workers of all clusters."""
        if self._memories:
            table = proc.table() if table is None else table
            for memory in self._memories.values():
                memory.sample(table)

    def left(self) -> list[Identity]:
        """Living processes that ended workers of its jobs have started."""
        return [i for session, m in self._memories.items() for i in m.left(self._jobs[session])]

    def is_awaited(self) -> bool:
        """Whether workers of its jobs still run with processes that they have started."""
        return any(m.is_awaited(self._jobs[session]) for session, m in self._memories.items())


def _tree(worker: Process) -> _Tree:
    """The tree of a worker, including what its file records already."""
    who = StartedProcess(worker.pid, worker.started_at)
    task = Task(_NUMBER, traces.job_of_worker(worker.pid) or "-", 0.0, {})
    tree = _Tree(who, task)
    with suppress(OSError):
        path = registry.path_of(who, is_tracked=False)
        if before := registry.read(path).get(_NUMBER):
            tree.path = path
            for process in before.processes.values():
                task.add(process)
    return tree


def _key(process: Process) -> tuple[int, float]:
    return process.pid, process.started_at


def _lives(table: Table, process: StartedProcess) -> bool:
    now = table.get(process.pid)
    return now is not None and now.state != "Z" and process.is_same(now.pid, now.started_at)
