"""Resolves a task, an actor, a pid or a node that the user named to processes of the cluster.

Pure: from rows of the tables `worker-stats`, `tasks`, `actors` and `nodes` to processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from raydoctor.model import ids, paste, target_names
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.target_names import is_prefix, short_names
from raydoctor.observe.stacks.stacks import ProcessToSample

Row = dict[str, Any]
_FEW = 5


class UnknownTargetError(RaydoctorError):
    """Nothing that runs has this name or id."""


class Known(NamedTuple):
    """Tables of the cluster; a missing table is empty."""

    stats: Sequence[Row] = ()
    tasks: Sequence[Row] = ()
    actors: Sequence[Row] = ()
    nodes: Sequence[Row] = ()

    def tasks_of(self, worker: str) -> list[Row]:
        """The tasks that a worker runs: as it reports itself, else according to the GCS."""
        row = next((each for each in self.stats if each.get("worker_id") == worker), {})
        known = {each["task_id"]: each for each in self.tasks}
        if row.get("answers"):
            running = row.get("running_task_ids") or ()
            return [known.get(task, {"task_id": task}) for task in running]
        return [
            each
            for each in self.tasks
            if each.get("worker_id") == worker and each.get("state") not in ("FINISHED", "FAILED")
        ]

    def actor_of(self, worker: str, pid: int) -> Row:
        """The actor in a worker; empty if there is none."""
        row = next((each for each in self.stats if each.get("worker_id") == worker), {})
        return next(
            (
                each
                for each in self.actors
                if each.get("state") == "ALIVE"
                and (
                    each["actor_id"] == row.get("actor_id")
                    or (each.get("pid") == pid and each.get("node_id") == row.get("node_id"))
                )
            ),
            {},
        )


def everywhere(known: Known, node: str = "") -> list[ProcessToSample]:
    """All workers and drivers of the cluster, or of one node."""
    return [
        _worker(each)
        for each in known.stats
        if each.get("pid") and (not node or each.get("node_id") == node)
    ]


def named(known: Known, wanted: str) -> list[ProcessToSample]:
    """The processes of a target. Raises UnknownTargetError if there are none."""
    wish = target_names.parse(wanted)
    name, pid = wish
    found: list[ProcessToSample] = []
    for find in (_by_node, _by_task, _by_actor, _by_worker, _by_job) if name else ():
        if found := [each for each in dict.fromkeys(find(known, name)) if pid in (None, each.pid)]:
            return found
    if pid is not None and (not name or wish.is_kind):
        found = list(_by_worker(known, str(pid)))
    if found:
        return found
    raise _unknown(known, wanted.strip() if pid is not None else name)


def _by_node(known: Known, name: str) -> Iterator[ProcessToSample]:
    for node in known.nodes:
        if name == node.get("node_ip") or is_prefix(name, node.get("node_id")):
            yield from everywhere(known, node["node_id"])


def _by_task(known: Known, name: str) -> Iterator[ProcessToSample]:
    tasks = {each["task_id"]: each for each in known.tasks}
    for row in known.stats:
        running = (each["task_id"] for each in known.tasks_of(row.get("worker_id") or ""))
        if any(is_prefix(name, each) or name in _names(tasks.get(each, {})) for each in running):
            yield _worker(row)


def _by_actor(known: Known, name: str) -> Iterator[ProcessToSample]:
    workers = {row["actor_id"]: row for row in known.stats if row.get("actor_id")}
    for actor in known.actors:
        if actor.get("state") == "ALIVE" and (
            is_prefix(name, actor["actor_id"])
            or name == actor.get("name")
            or any(name in short_names(actor.get(key)) for key in ("class_name", "repr_name"))
        ):
            if row := workers.get(actor["actor_id"]):
                yield _worker(row)
            elif actor.get("pid"):
                yield ProcessToSample(int(actor["pid"]), node_id=actor.get("node_id") or "")


def _by_worker(known: Known, name: str) -> Iterator[ProcessToSample]:
    for row in known.stats:
        if is_prefix(name, row.get("worker_id")) or (
            name.isdecimal() and len(name) < 11 and row.get("pid") == int(name)
        ):
            yield _worker(row)


def _by_job(known: Known, name: str) -> Iterator[ProcessToSample]:
    job = target_names.job_of_driver(name)
    for row in known.stats if job is not None else ():
        driver = row["worker_id"] if row.get("worker_type") == "DRIVER" else ""
        if driver and ids.job_number(ids.job_of_driver(driver)) == job:
            yield _worker(row)


def _worker(row: Row) -> ProcessToSample:
    return ProcessToSample(
        int(row["pid"]), 0.0, row.get("worker_id") or "", row.get("node_id") or ""
    )


def _names(row: Mapping[str, Any]) -> list[str]:
    return [*short_names(row.get("name")), *short_names(row.get("func_or_class_name"))]


def _unknown(known: Known, name: str) -> UnknownTargetError:
    for row in known.tasks:
        state = row.get("state")
        if (is_prefix(name, row["task_id"]) or name in _names(row)) and state != "FAILED":
            why = f"{row.get('name') or name} ({row['task_id'][:16]}) is not running: {state}"
            return UnknownTargetError(why, "To see what it waits for: raydoctor hung")
    running = [
        each.get("name") or "" for r in known.stats for each in known.tasks_of(r["worker_id"])
    ]
    few = ", ".join(dict.fromkeys(filter(None, running[:50])))
    hint = "To see what runs here: raydoctor stack"
    if few:
        hint = paste.text("Running now: {names}", names=few[:200])
    return UnknownTargetError(
        f"no running task, actor, process or node has the name or id {name}", hint
    )
