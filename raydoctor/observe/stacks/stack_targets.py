"""Resolves a task, an actor, a pid or a node that the user named to processes of the cluster.

Pure: from rows of the tables `worker-stats`, `tasks`, `actors` and `nodes` to processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from raydoctor.model import ids, paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern
from raydoctor.observe.stacks.stacks import ProcessToSample

Row = dict[str, Any]
_LEAST_DIGITS = 6
"""Fewest digits that identify an id."""
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
    name = plain(wanted)
    for find in (_by_node, _by_task, _by_actor, _by_worker):
        if found := list(dict.fromkeys(find(known, name))):
            return found
    raise _unknown(known, name)


def plain(wanted: str) -> str:
    """The id from Ray's output (`TaskID(…)`, `ObjectRef(…)`, `Actor(…)`); other text unchanged."""
    inside = pattern(r"\w+\((?:\w[\w.]*, *)?([0-9a-fA-F]+)\)").fullmatch(wanted.strip())
    digits = inside[1].lower() if inside else wanted.strip()
    parts = ids.parse_object_id(digits)
    return parts.task if parts and inside and "Object" in wanted else digits


def _by_node(known: Known, name: str) -> Iterator[ProcessToSample]:
    for node in known.nodes:
        if name == node.get("node_ip") or _is(name, node.get("node_id")):
            yield from everywhere(known, node["node_id"])


def _by_task(known: Known, name: str) -> Iterator[ProcessToSample]:
    task = name[:48] if ids.parse_object_id(name) else name
    tasks = {each["task_id"]: each for each in known.tasks}
    for row in known.stats:
        running = (each["task_id"] for each in known.tasks_of(row.get("worker_id") or ""))
        if any(_is(task, each) or task in _names(tasks.get(each, {})) for each in running):
            yield _worker(row)


def _by_actor(known: Known, name: str) -> Iterator[ProcessToSample]:
    workers = {row["actor_id"]: row for row in known.stats if row.get("actor_id")}
    for actor in known.actors:
        if actor.get("state") == "ALIVE" and (
            _is(name, actor["actor_id"])
            or name in (actor.get("name"), actor.get("repr_name"), *_ends(actor.get("class_name")))
        ):
            if row := workers.get(actor["actor_id"]):
                yield _worker(row)
            elif actor.get("pid"):
                yield ProcessToSample(int(actor["pid"]), node_id=actor.get("node_id") or "")


def _by_worker(known: Known, name: str) -> Iterator[ProcessToSample]:
    for row in known.stats:
        if _is(name, row.get("worker_id")) or (name.isdigit() and row.get("pid") == int(name)):
            yield _worker(row)


def _worker(row: Row) -> ProcessToSample:
    return ProcessToSample(
        int(row["pid"]), 0.0, row.get("worker_id") or "", row.get("node_id") or ""
    )


def _is(name: str, identifier: str | None) -> bool:
    """Whether `name` is this id, or a sufficiently long prefix."""
    if not identifier or len(name) < _LEAST_DIGITS:
        return False
    return identifier.startswith(name) and not name.strip("0123456789abcdef")


def _names(row: Mapping[str, Any]) -> list[str]:
    return [*_ends(row.get("name")), *_ends(row.get("func_or_class_name"))]


def _ends(name: str | None) -> list[str]:
    """`module.Class.method`, `Class.method` and `method`."""
    parts = (name or "").split(".")
    return [".".join(parts[n:]) for n in range(len(parts))] if name else []


def _unknown(known: Known, name: str) -> UnknownTargetError:
    for row in known.tasks:
        state = row.get("state")
        if (_is(name, row["task_id"]) or name in _names(row)) and state != "FAILED":
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
