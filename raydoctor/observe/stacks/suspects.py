"""Processes of a cluster that may be hung: workers with a long-running task, and drivers that may wait.

They are found in the tables that were just collected, line by line: a queue of ten thousand tasks is not
parsed to find the few that run. A worker that reports no running task is not sampled, even if the GCS lists
one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from raydoctor.model import ids
from raydoctor.observe.stacks.stacks import ProcessToSample

Row = dict[str, Any]
_DRIVERS = 8
"""Number of drivers that are sampled before any task."""
_FIRST = 50
"""Waiting tasks that are parsed: the table lists the oldest of each state first."""


_CONTROLLER, _TRAINER = "TrainController", "RayTrainWorker"
"""Ray Train's actors: the second runs the user's loop in a thread, without a task (`ray/train/v2`)."""


ENVIRONMENTS = "/runtime_resources/"
"""Folder of runtime environments: a process that creates one has it in its command line."""


class Sampling(NamedTuple):
    """Which processes to sample, and how often."""

    samples: int = 2
    interval: float = 0.5
    """Seconds between the samples."""
    min_age_s: float = 60.0
    """Seconds that a task must have run or waited before its process is sampled."""
    native: bool = False
    most: int = 40
    """Largest number of processes, each function's oldest first."""
    drivers: bool = False
    """Whether all drivers are sampled, even if no task is old enough."""


class _Running(NamedTuple):
    worker: str
    task: str
    name: str
    age: float
    pid: int
    node: str


class Suspects(NamedTuple):
    """Processes to sample, and the tasks that are not finished."""

    here: Sequence[ProcessToSample] = ()
    elsewhere: Mapping[str, Sequence[ProcessToSample]] = MappingProxyType({})
    """By node."""
    unfinished: frozenset[str] = frozenset()
    makers: tuple[tuple[str, int], ...] = ()
    """Processes of this machine that create runtime environments, each with its node."""

    @property
    def total(self) -> int:
        """Number of processes."""
        return len(self.here) + sum(map(len, self.elsewhere.values()))


def suspects(
    pieces: Mapping[str, bytes], sampling: Sampling, nodes_here: Sequence[str] = ()
) -> Suspects:
    """Processes to sample, from a collection's tables; none if no task is old enough."""
    stats = {row["worker_id"]: row for row in rows(pieces, "worker-stats") if "worker_id" in row}
    silent = {worker for worker, row in stats.items() if not row.get("answers")}
    tasks, at = _unfinished(pieces, silent)
    workers = {
        task: name for name, row in stats.items() for task in row.get("running_task_ids") or ()
    }
    running = [r for row in tasks if (r := _running(row, at, silent, workers)) is not None]
    old = [r for r in running if r.age >= sampling.min_age_s and _may_run(r, stats)]
    is_due = bool(old) or any(_age(row, at) >= sampling.min_age_s for row in tasks)
    if not is_due and not sampling.drivers:
        return Suspects()
    trains = any(each.name.startswith(f"{_CONTROLLER}.") for each in old)
    trainers = _trainers(rows(pieces, "actors"), stats.values()) if trains else ()
    drivers = list(_drivers(stats.values()))
    later = drivers[_DRIVERS:] if sampling.drivers else []
    wanted = [*drivers[:_DRIVERS], *trainers, *_workers(old, stats), *later][: sampling.most]
    processes = rows(pieces, "processes")
    unfinished = frozenset(row["task_id"] for row in tasks)
    found = placed(wanted, processes, nodes_here, unfinished)
    return found._replace(makers=tuple(_makers(processes)))


def _makers(processes: Sequence[Row]) -> Iterator[tuple[str, int]]:
    for row in processes:
        is_one = ENVIRONMENTS in (row.get("title") or "") and row.get("kind") != "worker"
        if is_one and row.get("is_this"):
            yield row.get("node_id") or "", row["pid"]


def placed(
    wanted: Sequence[ProcessToSample],
    processes: Sequence[Row],
    nodes_here: Sequence[str],
    unfinished: frozenset[str] = frozenset(),
) -> Suspects:
    """Those that run on this machine, as `processes` has it, and those of other nodes."""
    mine = [row for row in processes if row.get("is_this")]
    workers = {row["worker_id"]: row for row in mine if row.get("kind") == "worker"}
    drivers = {row["pid"]: row for row in mine if row.get("kind") == "driver"}
    here: list[ProcessToSample] = []
    elsewhere: dict[str, list[ProcessToSample]] = {}
    for each in wanted:
        row = workers.get(each.worker_id) or drivers.get(each.pid)
        if row is not None and each.node_id in (*nodes_here, row.get("node_id")):
            start = float(row["started_at"])
            title = each.title or row.get("title") or ""
            here.append(
                ProcessToSample(row["pid"], start, each.worker_id, each.node_id, title, each.pid)
            )
        elif each.node_id not in nodes_here:
            elsewhere.setdefault(each.node_id, []).append(each)
    return Suspects(here, elsewhere, unfinished)


def _workers(old: list[_Running], stats: Mapping[str, Row]) -> Iterator[ProcessToSample]:
    """Each worker once: first the longest-running task of each function, then the second …"""
    turns: dict[str, int] = {}
    ranked = []
    for each in sorted(old, key=lambda each: -each.age):
        turns[each.name] = turns.get(each.name, 0) + 1
        ranked.append((turns[each.name], each))
    seen = set()
    for _, each in sorted(ranked, key=lambda pair: pair[0]):
        if each.worker not in seen:
            seen.add(each.worker)
            row = stats.get(each.worker, {})
            pid, node = row.get("pid") or each.pid, row.get("node_id") or each.node
            if pid and node:
                yield ProcessToSample(int(pid), 0.0, each.worker, node, f"ray::{each.name}")


def _drivers(stats: Any) -> Iterator[ProcessToSample]:
    found = [row for row in stats if row.get("worker_type") == "DRIVER" and row.get("pid")]
    for row in found:
        job = ids.job_number(ids.job_of_driver(row["worker_id"]))
        yield ProcessToSample(
            int(row["pid"]), 0.0, row["worker_id"], row.get("node_id") or "", f"driver of job {job}"
        )


def _trainers(actors: Sequence[Row], stats: Iterable[Row]) -> Iterator[ProcessToSample]:
    """Workers of Ray Train, which run the user's loop without a task."""
    those = {row["actor_id"] for row in actors if row.get("class_name") == _TRAINER}
    for row in stats:
        if row.get("actor_id") in those and row.get("pid") and row.get("node_id"):
            title = f"ray::{_TRAINER}"
            yield ProcessToSample(int(row["pid"]), 0.0, row["worker_id"], row["node_id"], title)


def _may_run(task: _Running, stats: Mapping[str, Row]) -> bool:
    """Whether its worker reports that it runs it, or does not answer, like a stopped one."""
    row = stats.get(task.worker)
    if row is None or not row.get("answers"):
        return True
    return task.task in (row.get("running_task_ids") or ())


# ------------------------------------------------------------------ tasks


def _unfinished(pieces: Mapping[str, bytes], silent: Collection[str]) -> tuple[list[Row], float]:
    """Tasks that run or may run, and the first waiting ones; and the time of the table."""
    data = pieces.get("live/live-tasks.json", b"")
    head, _, rest = data.partition(b"\n")
    try:
        at = float(json.loads(head + b"]}")["at"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return [], 0.0
    words = [b'"state":"RUNNING', *(worker.encode() for worker in silent)]
    found, waiting = [], 0
    for line in rest.split(b"\n"):
        runs = any(word in line for word in words)
        if not line.startswith(b"{") or (not runs and waiting >= _FIRST):
            continue
        row = json.loads(line.removesuffix(b","))
        if row.get("state") not in ("FINISHED", "FAILED"):
            waiting += not runs
            found.append(row)
    return found, at


def _running(
    row: Row, at: float, silent: Collection[str], workers: Mapping[str, str]
) -> _Running | None:
    # The GCS does not know the worker of an actor that is being created (2.60.0).
    worker = row.get("worker_id") or workers.get(row["task_id"])
    # A worker may have stopped before it could report the start of its task to the GCS.
    runs = str(row.get("state")).startswith("RUNNING")
    if not worker or not (runs or worker in silent):
        return None
    name = row.get("name") or row.get("func_or_class_name") or ""
    return _Running(
        worker,
        row["task_id"],
        name,
        _age(row, at),
        int(row.get("worker_pid") or 0),
        row.get("node_id") or "",
    )


def _age(row: Row, at: float) -> float:
    """Seconds that it has run or waited; infinite if only its worker reports it, without a start time."""
    since = row.get("start_time_ms") or row.get("creation_time_ms")
    if since:
        return at - float(since) / 1000
    return float("inf") if row.get("reported_by") == "worker" else 0.0


def rows(pieces: Mapping[str, bytes], name: str) -> list[Row]:
    """The rows of a table; empty if it was not collected."""
    data = pieces.get(f"live/live-{name}.json")
    if not data:
        return []
    return [row for row in json.loads(data)["rows"] if isinstance(row, dict)]
