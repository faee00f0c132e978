"""Repeated snapshots of a running cluster: running tasks, their workers, waiting tasks, live nodes.

A snapshot takes one call to the GCS for the workers (nodes and demands: every third time), and one to each
worker that may have started another task since the last snapshot: 0.5 ms of CPU time here and about as much
there for each, for any number of finished or waiting tasks (Ray 2.60.0 measured). An idle worker is
recognized by its title. A worker that runs the same task for long is queried less often, down to every fifth
time.

A snapshot makes no call whose cost grows with the number of tasks: `GetTaskEvents` takes the GCS 0.6 s if it
holds its maximum of 100,000 tasks, unless the call selects one task by its id.

gRPC runs in this process, without Ray and without a child, because a permanent child takes 43 MB.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from raydoctor.model import ids
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.gcs.programs import gcs_rows, gcs_wire
from raydoctor.observe.gcs.programs.gcs_messages import Messages
from raydoctor.observe.gcs.programs.gcs_wire import Call, CallError, TaskFilter, Wire

_CALL = 3.0
"""Seconds for a call to the GCS."""
_WORKER_CALL = 1.0
"""Seconds for a call to a worker: its C++ thread replies within milliseconds, even while native code holds
the GIL; a stopped worker does not reply."""
_WORKERS = 2_000
_RARE = 3
_PATIENCE = 3
_RESTED = 5
"""Largest number of snapshots for which a worker with an unchanged task is not queried."""
_IDLE = b"ray::IDLE"
_TITLE = 100
_PEERS = 200
"""Finished attempts of a function from which its usual duration is computed."""
_REPLY = 200
"""Largest number of tasks that are requested at once: each takes a call."""


class QueryError(RaydoctorError):
    """A query that failed; `code` is gRPC's."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code

    @property
    def is_refusal(self) -> bool:
        """Whether the token is missing or wrong."""
        return self.code in ("UNAUTHENTICATED", "PERMISSION_DENIED")


class Node(NamedTuple):
    """A live node."""

    node: str
    ip: str
    is_head: bool
    metrics: str
    """`host:port` of its metrics; empty if there is none."""


class ReportedTask(NamedTuple):
    """A running task, as reported by its worker."""

    task: str
    worker: str
    pid: int
    ip: str
    node: str


class Demand(NamedTuple):
    """Tasks and actors that wait for the same resources."""

    resources: tuple[tuple[str, float], ...]
    number: int


class Snapshot(NamedTuple):
    """The state of a cluster at one time."""

    at: float
    """Epoch seconds."""
    session: str
    """The cluster's session, which identifies it; empty if unknown."""
    nodes: tuple[Node, ...]
    running: tuple[ReportedTask, ...]
    unfinished: int
    """Number of unfinished tasks of all owners, including running ones."""
    demands: tuple[Demand, ...]
    workers: int
    drivers: int
    silent: tuple[str, ...]
    """Workers that did not answer; their tasks are not in `running`."""
    steady: float = 0.0
    """`at` on the monotonic clock, which does not advance while the machine is suspended; 0: not read."""

    @property
    def waiting(self) -> int:
        """Number of tasks that do not run yet."""
        return max(0, self.unfinished - len(self.running))


class _Heard(NamedTuple):
    """The last reply of a worker, and how long it stays valid."""

    title: bytes
    tasks: frozenset[bytes]
    runs: tuple[ReportedTask, ...]
    unfinished: int
    same: int
    """Number of snapshots with this reply."""
    asked: int
    """Number of the snapshot in which it was queried."""


class Attempt(NamedTuple):
    """The last attempt of a task, as recorded by the GCS with a delay of a second."""

    task: str
    name: str
    function: str
    attempt: int
    state: str
    worker: str
    actor: str
    started_at: float | None
    """Epoch seconds on the clock of its worker's machine."""


class Peers(NamedTuple):
    """Durations of a function's last finished attempts."""

    finished: int
    median: float
    """Seconds."""


class Watcher:
    """Queries one cluster over permanent connections."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._wire = _connected(cluster)
        self._known: Messages | None = None
        self.here = frozenset(cluster.node_ids)
        """Nodes on this machine."""
        self._rounds = 0
        self._rare: tuple[tuple[Node, ...], Any] = ((), None)
        self._heard: dict[str, _Heard] = {}
        self._mute: dict[str, tuple[int, int]] = {}
        """Workers that did not answer -> how often, and in which snapshot last."""

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()

    def snapshot(self) -> Snapshot:
        """The state now. Raises QueryError if the GCS does not answer."""
        at, steady = time.time(), time.monotonic()
        workers = self._ask("WorkerInfoGcsService", "GetAllWorkerInfo", filters={"is_alive": True})
        living, state = self._nodes_and_demands()
        alive = [each for each in workers.worker_table_data if each.is_alive]
        silent = self._hear(alive[:_WORKERS])
        drivers = sum(_is_driver(each) for each in alive)
        return Snapshot(
            at,
            getattr(state, "cluster_session_name", ""),
            living,
            tuple(run for heard in self._heard.values() for run in heard.runs),
            sum(heard.unfinished for heard in self._heard.values()),
            tuple(_demands(state.pending_resource_requests)),
            len(alive) - drivers,
            drivers,
            tuple(silent),
            steady,
        )

    def _hear(self, workers: Sequence[Any]) -> list[str]:
        """Query the workers that may run another task than before; returns those that did not answer."""
        asked, heard, silent = [], {}, list[str]()
        for worker in workers:
            name, title = _worker_id(worker), self._title(worker)
            before = self._heard.get(name)
            if title == _IDLE:
                continue
            if name in self._mute and not self._is_retried(*self._mute[name]):
                silent.append(name)
                continue
            if before and before.title == title and self._rounds < before.asked + before.same:
                heard[name] = before
            else:
                asked.append((worker, name, title, self._start_stats(worker)))
        for worker, name, title, call in asked:
            reply = _answer(call)
            if reply is None:
                silent.append(name)
                self._mute[name] = self._mute.get(name, (0, 0))[0] + 1, self._rounds
            else:
                self._mute.pop(name, None)
                heard[name] = self._heard_from(worker, title, reply)
        self._heard = heard
        self._mute = {name: self._mute[name] for name in silent}
        return silent

    def _is_retried(self, times: int, last: int) -> bool:
        """Whether to query a silent worker again: a stopped one takes a second each time."""
        return times < _PATIENCE or self._rounds >= last + _RESTED

    def _heard_from(self, worker: Any, title: bytes, reply: Any) -> _Heard:
        tasks = frozenset(reply.running_task_ids)
        before = self._heard.get(_worker_id(worker))
        is_same = before is not None and before.tasks == tasks and before.title == title
        # A change of tasks is not visible for drivers, and for workers on other machines.
        same = min(_RESTED, before.same + 1) if before and is_same and title and tasks else 1
        unfinished = reply.core_worker_stats.num_pending_tasks
        return _Heard(title, tasks, tuple(_runs(worker, reply)), unfinished, same, self._rounds)

    def _nodes_and_demands(self) -> tuple[tuple[Node, ...], Any]:
        """Nodes and demands change slowly, so they are queried with every third snapshot."""
        if self._rounds % _RARE == 0:
            nodes = self._ask("NodeInfoGcsService", "GetAllNodeInfo")
            status = self._ask("autoscaler.AutoscalerStateService", "GetClusterStatus")
            self._rare = tuple(_nodes(nodes.node_info_list)), status.cluster_resource_state
        self._rounds += 1
        return self._rare

    def config(self) -> dict[str, Any]:
        """The head's `--system-config`; empty if unknown."""
        # Ray 2.9 has it with the nodes, 2.40 to 2.60 with the key-value store.
        for service in ("InternalKVGcsService", "NodeInfoGcsService"):
            with suppress(QueryError, ValueError, RecursionError):
                config = json.loads(self._ask(service, "GetInternalConfig").config)
                return config if isinstance(config, dict) else {}
        return {}

    def running(self) -> list[Attempt]:
        """All running tasks according to the GCS. The cost grows with its number of tasks: call it once."""
        if not gcs_wire.filters_states(
            self._of
        ):  # the reply would contain all tasks, including finished ones
            return []
        return self._attempts(
            self._begin(gcs_wire.task_events(self._of, TaskFilter(state="RUNNING")))
        )

    def attempts(self, tasks: Sequence[str]) -> dict[str, Attempt]:
        """Task -> its last attempt, for tasks that the GCS knows."""
        found: dict[str, Attempt] = {}
        keys = [bytes.fromhex(each) for each in tasks[:_REPLY]]
        groups = [[key] for key in keys] if gcs_wire.filters_states(self._of) else [keys]
        filters = [TaskFilter(ids=group, exclude_driver=False) for group in groups if group]
        for each in [self._begin(gcs_wire.task_events(self._of, only)) for only in filters]:
            for row in self._attempts(each):
                if row.task not in found or row.attempt >= found[row.task].attempt:
                    found[row.task] = row
        return found

    def peers(self, function: str) -> Peers | None:
        """Durations of its last finished attempts. The cost grows with the number of tasks in the GCS."""
        if not gcs_wire.filters_states(self._of):
            return None
        call = gcs_wire.task_events(self._of, TaskFilter(name=function, state="FINISHED"), _PEERS)
        found = _result(self._begin(call)).events_by_task
        took = sorted(_durations(found, self._of.rpc.TaskStatus))
        return Peers(len(took), took[len(took) // 2]) if took else None

    # -------------------------------------------------------------- calls

    @property
    def _of(self) -> Messages:
        """The messages of the cluster's version. Raises QueryError if the GCS does not answer."""
        if self._known is None:
            newest = Messages()
            try:
                about = gcs_wire.metadata(newest, self._wire, self._cluster.gcs_address, _CALL)
            except CallError as failed:
                raise QueryError(failed.code, failed.detail) from failed
            self._known = newest.of_version(about.get("ray_version", ""))
        return self._known

    def _ask(self, service: str, method: str, **fields: Any) -> Any:
        """The reply of the GCS to a call."""
        call = gcs_wire.call_of(self._of, service, method, **fields)
        try:
            return self._wire.ask(self._cluster.gcs_address, call, _CALL)
        except CallError as failed:
            raise QueryError(failed.code, failed.detail) from failed

    def _begin(self, call: Call) -> Any:
        return self._wire.start(self._cluster.gcs_address, call, _CALL)

    def _attempts(self, started: Any) -> list[Attempt]:
        states = self._of.rpc.TaskStatus
        return [_attempt(event, states) for event in _result(started).events_by_task]

    def _title(self, worker: Any) -> bytes:
        """The title of a worker on this machine, such as `ray::IDLE`; empty for others."""
        if _node_id(worker) not in self.here or _is_driver(worker):
            return b""
        try:
            file = os.open(f"/proc/{worker.pid}/cmdline", os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.read(file, _TITLE).partition(b"\0")[0]
        except OSError:
            return b""
        finally:
            os.close(file)

    def _start_stats(self, worker: Any) -> Any:
        where = worker.worker_address
        call = gcs_wire.worker_stats(self._of, where.worker_id, tasks=not _is_driver(worker))
        return self._wire.start(gcs_wire.host_port(where), call, _WORKER_CALL)


# ------------------------------------------------------------------ the wire


def _connected(cluster: Cluster) -> Wire:
    """The connections, with the token if the cluster requires it."""
    if not cluster.gcs_address:
        raise RaydoctorError(
            "no cluster runs on this machine", "Choose one: --address HOST:PORT of its GCS."
        )
    # gRPC also logs the errors that its calls return; its fork handlers are slow and not needed.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        gcs_wire.load_grpc()
        import_module("google.protobuf")
    except ImportError as error:
        hint = f"{sys.executable} -m pip install grpcio protobuf"
        raise RaydoctorError(f"gRPC cannot be used: {error}", hint) from error
    return Wire(cluster.access())


def _result(call: Any) -> Any:
    try:
        return gcs_wire.result(call)
    except CallError as failed:
        raise QueryError(failed.code, failed.detail) from failed


def _answer(call: Any) -> Any:
    """A worker's reply; None if there is none, as the worker may have ended."""
    try:
        return _result(call)
    except QueryError as failed:
        if failed.is_refusal:
            raise
        return None


# ------------------------------------------------------------------ messages


def _nodes(messages: Iterable[Any]) -> Iterator[Node]:
    for each in messages:
        if gcs_rows.enum(each, "state") == "ALIVE":
            ip, port = each.node_manager_address, each.metrics_export_port
            host = f"[{ip}]" if ":" in ip else ip
            yield Node(each.node_id.hex(), ip, each.is_head_node, f"{host}:{port}" if port else "")


def _runs(worker: Any, reply: Any) -> Iterator[ReportedTask]:
    where = worker.worker_address
    for task in reply.running_task_ids:
        name = task.hex()
        if not ids.is_driver_task(name):
            yield ReportedTask(
                name, _worker_id(worker), worker.pid, where.ip_address, _node_id(worker)
            )


def _demands(requests: Iterable[Any]) -> Iterator[Demand]:
    for each in requests:
        resources = tuple(sorted(each.request.resources_bundle.items()))
        yield Demand(resources, int(each.count))


def _attempt(event: Any, states: Any) -> Attempt:
    row = gcs_rows.task(event, states)
    started = row["start_time_ms"]
    return Attempt(
        row["task_id"],
        row["name"] or "",
        row["func_or_class_name"] or row["name"] or "",
        row["attempt_number"],
        row["state"],
        row["worker_id"] or "",
        row["actor_id"] or ids.actor_of_task(row["task_id"]),
        started / 1000 if started else None,
    )


def _durations(events: Iterable[Any], states: Any) -> Iterator[float]:
    for event in events:
        row = gcs_rows.task(event, states)
        if row["start_time_ms"] and row["end_time_ms"]:
            yield max(0.0, row["end_time_ms"] - row["start_time_ms"]) / 1000


def _is_driver(worker: Any) -> bool:
    return bool(ids.job_of_driver(_worker_id(worker)))


def _worker_id(worker: Any) -> str:
    return str(worker.worker_address.worker_id.hex())


def _node_id(worker: Any) -> str:
    return gcs_rows.node_of(worker.worker_address)
