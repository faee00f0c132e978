"""Ending a Ray worker that nothing else can end, with all that it started, on the node where it runs.

A task in native code that holds the GIL is not reached by `ray.cancel`, and with SIGTERM ignored not by
`force=True` either (2.60.0): its process has to be killed. What it started in sessions of its own survives
Ray's own killing (of the worker's process group, Ray >= 2.57; of direct children before).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydoctor.act.audit import Audit
from raydoctor.act.signals.process import Identity, end, identity_of
from raydoctor.act.workers.running import WorkerTask
from raydoctor.observe.processes import proc

WORKER_LOG = re.compile(r"/(?:python-core-)?worker-([0-9a-f]{56})[-_][^/]*$")
_GRACE = 0.2
"""Seconds between SIGTERM and SIGKILL: these have had their time."""
_GONE_ON = "its worker does not run it any more"
_ELSEWHERE = 20.0
"""Seconds that a task on another node may take to start there and to end a worker."""


def tree(pid: int) -> list[Identity]:
    """A process and all its descendants, itself first; empty where it is gone."""
    table = proc.table()
    return [Identity(each, table[each].started_at) for each in proc.trees(table, [pid])]


def end_tree(targets: Iterable[Identity], purpose: str) -> str:
    """End these processes and what they start meanwhile. Empty, or why one of them still runs."""
    known = dict.fromkeys(targets)

    def relist() -> list[Identity]:
        for each in [each for each in known if identity_of(each.pid) == each]:
            known.update(dict.fromkeys(tree(each.pid)))
        return list(known)

    outcomes = end(relist(), _GRACE, more=relist, audit=Audit(purpose))
    left = [each for each in outcomes if each.outcome != "gone"]
    return "; ".join(f"pid {each.identity.pid}: {each.reason}" for each in left)


def end_worker(pid: int, worker: str, purpose: str) -> str:
    """End the worker with this pid and id (hex), on this node. Empty, or why it still runs."""
    targets = tree(pid)
    if not targets:
        return ""
    # A worker writes to files with its id in their names. Where its logs go to standard error, only its title
    # is left; one that has another worker's log open is that one.
    found = (WORKER_LOG.search(path) for path in proc.logs(pid))
    names = {each[1] for each in found if each}
    is_named = worker in names if names else " ".join(proc.command(pid)).startswith("ray::")
    if not is_named or identity_of(pid) != targets[0]:
        return f"pid {pid} is not a worker here (another PID namespace?)"
    return end_tree(targets, purpose)


@dataclass(slots=True)
class RayBackend:
    """What ends tasks: Ray's own cancel, and the end of a worker wherever it runs."""

    ray: Any
    """The package; only user code's own Ray is used, none is started."""
    node: str
    """The node that we run on, hex."""
    _trees: dict[bytes, list[Identity]] = field(default_factory=dict)
    """What a worker had started when it was to be ended by force, by task."""

    def is_done(self, ref: Any) -> bool:
        """Whether its owner, which is this process, holds the result."""
        try:
            return bool(self.ray.wait([ref], timeout=0, fetch_local=False)[0])
        except Exception:  # Ray was shut down, or does not answer: the steps report why they fail
            return False

    def cancel(self, ref: Any, force: bool) -> str:
        """`ray.cancel`. Empty where it was sent, else why not."""
        if not self.ray.is_initialized():
            return "Ray was shut down"
        try:
            self.ray.cancel(ref, force=force)
        except Exception as error:  # each Ray has its own, and a thread that ends tasks must go on
            return f"{type(error).__name__}: {error}"
        return ""

    def remember(self, run: WorkerTask) -> None:
        """Note what its worker has started, while that is known."""
        if run.node == self.node:
            self._trees[run.task] = tree(run.pid)[1:]

    def sweep(self, task: bytes) -> None:
        """End what the worker of this task had started and what outlived it."""
        left = self._trees.pop(task, ())
        if left:
            end_tree(left, f"poll {task.hex()}")

    def kill(
        self, runs: Sequence[WorkerTask], still: Callable[[WorkerTask], bool]
    ) -> dict[bytes, str]:
        """End the workers of these tasks. By task: empty, or why it still runs.

        Each takes up to seconds, in which the worker of the next one may finish its task and take another:
        `still` is asked right before. Of a worker on another node, that is before its node is asked.
        """
        outcomes: dict[bytes, str] = {}
        away = {run.task: self._kill_away(run) for run in runs if run.node != self.node}
        for run in runs:
            if run.task not in away and not still(run):
                outcomes[run.task] = _GONE_ON
            elif run.task not in away:
                outcomes[run.task] = end_worker(run.pid, run.worker.hex(), f"poll {run.task.hex()}")
        for task, ref in away.items():
            try:
                outcomes[task] = self.ray.get(ref, timeout=_ELSEWHERE)
            except Exception as error:
                outcomes[task] = f"its node could not be reached: {type(error).__name__}"
        return outcomes

    def _kill_away(self, run: WorkerTask) -> Any:
        """Start a task on that node that needs no CPU, as the hung ones may have them all."""

        def end_worker_here(pid: int, worker: str, purpose: str) -> str:
            # Pickled by value: it can say that raydoctor is not there.
            try:
                from raydoctor.act.workers.worker import end_worker
            except ImportError:
                return "raydoctor is not installed on its node"
            return end_worker(pid, worker, purpose)

        where = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            run.node, soft=False
        )
        task = self.ray.remote(end_worker_here).options(
            num_cpus=0, max_retries=0, scheduling_strategy=where, name="raydoctor: end a worker"
        )
        return task.remote(run.pid, run.worker.hex(), f"poll {run.task.hex()}")
