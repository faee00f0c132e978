"""Asks a GCS, and the workers that it knows, for tables: over plain gRPC, with Ray's own messages.

A program, run as a child: it takes the place of Ray's package, so nothing that imports the real one may
import this. Ray itself is never run: importing it costs 0.35 s, connecting with it registers a job, and its
clients wait 40 s for a dead GCS (2.60.0 measured); this costs 0.1 s in all and fails at once.

    gcs_tables.py FOLDER_OF_RAY

Standard input has a request a line, `{"address", "token", "timeout", "tables"}`; standard output an answer a
line: `{"probe": …}` once, `{"table", "rows", "total"}` or `{"failed", "code", "detail"}` for each table, and
`{"answered": true}` after each request. The token comes this way because arguments and environments can be
read by others.

The methods and messages are those of 2.9.3, 2.40.0 and 2.60.0; no field number was reused between them.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import gcs_rows  # type: ignore[import-not-found, unused-ignore]  # beside this program

LIMIT = 10_000
"""Rows of a table."""
LIMIT_WAITING = 1_000
"""Tasks that wait, of each state: they are alike."""
LIMIT_FAILED = 200
LIMIT_AT_ONCE = 5_000
"""Tasks that are not finished: more are asked for state by state."""
_WORKERS = 2_000
_WORKER_DEADLINE = 1.0
"""Its C++ thread answers within milliseconds, even while native code holds the GIL; a stopped one never."""
_PROBE_DEADLINE = 1.5
_WAITING = ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER")
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # 4 MB otherwise: 4,000 tasks
    ("grpc.enable_http_proxy", 0),  # as Ray does
)
_JOB_PREFIX = b"_ray_internal_job_info_"
_INTERNAL = "_ray_internal_"
_EQUAL, _NOT_EQUAL = 0, 1

Row = dict[str, Any]


class CallError(Exception):
    """A call that was not answered."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Table(NamedTuple):
    """Rows, and how many there are where these are the first."""

    rows: list[Row]
    total: int


class Call(NamedTuple):
    """A method, and a request to it."""

    path: str
    request: Any
    reply: Any


def messages(folder: str) -> Any:
    """Ray's modules of messages, found without running Ray's `__init__`."""
    for name in ("ray", "ray.core", "ray.core.generated"):
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(folder, *name.split(".")[1:])]
        sys.modules[name] = module
    from ray.core.generated import autoscaler_pb2, common_pb2, core_worker_pb2, gcs_service_pb2

    return types.SimpleNamespace(
        gcs=gcs_service_pb2, common=common_pb2, worker=core_worker_pb2, autoscaler=autoscaler_pb2
    )


class Wire:
    """Calls with the token."""

    def __init__(self, token: str | None) -> None:
        self._metadata = [("authorization", f"Bearer {token}")] if token else None
        self._channels: dict[str, Any] = {}

    def start(self, address: str, call: Call, timeout: float) -> Any:
        """Begin a call; `result` has its answer."""
        if address not in self._channels:
            self._channels[address] = _channel(address)
        method = self._channels[address].unary_unary(
            call.path, type(call.request).SerializeToString, call.reply.FromString
        )
        return method.future(call.request, timeout=timeout, metadata=self._metadata)

    def ask(self, address: str, call: Call, timeout: float) -> Any:
        """Call and wait."""
        return result(self.start(address, call, timeout))


def result(started: Any) -> Any:
    """The answer to a call that was started."""
    import grpc  # type: ignore[import-untyped, unused-ignore]

    try:
        return started.result()
    except grpc.RpcError as error:
        raise CallError(started.code().name, str(started.details())) from error


def _channel(address: str) -> Any:
    import grpc  # type: ignore[import-untyped, unused-ignore]

    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return grpc.insecure_channel(address, _OPTIONS)
    # As `ray/_private/tls_utils.py`.
    parts = [
        _content(os.environ.get(f"RAY_TLS_{name}", ""))
        for name in ("CA_CERT", "SERVER_KEY", "SERVER_CERT")
    ]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*parts), _OPTIONS)


def _content(path: str) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as stream:
        return stream.read()


class Gcs:
    """One cluster, asked for one request; what two tables need is asked for once."""

    def __init__(self, of: Any, wire: Wire, address: str, timeout: float) -> None:
        self.of = of
        self.wire = wire
        self.address = address
        self.timeout = timeout
        self._nodes: Any = None
        self._workers: Any = None
        self._stats: dict[bool, list[tuple[Any, Any, str]]] = {}
        self._silent: dict[bytes, str] = {}
        self.wanted: frozenset[str] = frozenset()

    def call(self, service: str, method: str, **fields: Any) -> Call:
        """A method of the GCS; fields that this version has not are left out."""
        of = self.of.autoscaler if service.startswith("autoscaler.") else self.of.gcs
        request = getattr(of, f"{method}Request")
        known = request.DESCRIPTOR.fields_by_name
        return Call(
            f"/ray.rpc.{service}/{method}",
            request(**{name: value for name, value in fields.items() if name in known}),
            getattr(of, f"{method}Reply"),
        )

    def start(self, call: Call) -> Any:
        """Begin a call to the GCS."""
        return self.wire.start(self.address, call, self.timeout)

    def ask(self, call: Call) -> Any:
        """Call the GCS and wait."""
        return result(self.start(call))

    def probe(self) -> Row:
        """Whether the GCS answers and takes the token."""
        began = time.monotonic()
        outcome, detail = "ok", ""
        try:
            deadline = min(self.timeout, _PROBE_DEADLINE)
            call = self.call("NodeInfoGcsService", "GetAllNodeInfo")
            self._nodes = list(self.wire.ask(self.address, call, deadline).node_info_list)
        except CallError as failed:
            outcome = {
                "UNAUTHENTICATED": "unauthenticated",
                "UNAVAILABLE": "refused",
                "DEADLINE_EXCEEDED": "timeout",
            }.get(failed.code, "error")
            detail = f"{failed.code}: {failed.detail}"
        seconds = round(time.monotonic() - began, 4)
        return {
            "name": "gcs",
            "address": self.address,
            "outcome": outcome,
            "seconds": seconds,
            "detail": detail,
        }

    def nodes(self) -> list[Any]:
        """Every node that the GCS remembers."""
        if self._nodes is None:
            call = self.call("NodeInfoGcsService", "GetAllNodeInfo")
            self._nodes = list(self.ask(call).node_info_list)
        return self._nodes  # type: ignore[no-any-return]

    def workers(self) -> list[Any]:
        """Every worker that the GCS remembers, those alive first."""
        if self._workers is None:
            call = self.call("WorkerInfoGcsService", "GetAllWorkerInfo")
            found = self.ask(call).worker_table_data
            self._workers = sorted(found, key=lambda each: not each.is_alive)
        return self._workers  # type: ignore[no-any-return]

    def stats(self, of_tasks: bool = False) -> list[tuple[Any, Any, str]]:
        """Each live worker, its own answer or None, and why there is none."""
        if of_tasks not in self._stats:
            alive = [each for each in self.workers() if each.is_alive][:_WORKERS]
            asked = [each for each in alive if _id(each) not in self._silent]
            started = [(each, self._start_stats(each, of_tasks)) for each in asked]
            told = {_id(each): _answer(future) for each, future in started}
            # Who was silent once is not waited for again.
            self._silent |= {name: told[name][1] for name in told if told[name][0] is None}
            self._stats[of_tasks] = [
                (each, *told.get(_id(each), (None, self._silent.get(_id(each), ""))))
                for each in alive
            ]
        return self._stats[of_tasks]

    def _start_stats(self, worker: Any, of_tasks: bool) -> Any:
        address = worker.worker_address
        of = self.of.worker
        memory = "objects" in self.wanted
        request = of.GetCoreWorkerStatsRequest(
            intended_worker_id=address.worker_id,
            include_memory_info=memory,
            include_task_info=True,  # without it, no word on what runs
            limit=LIMIT if memory or of_tasks else 0,  # of objects, and of tasks that it owns
        )
        path = "/ray.rpc.CoreWorkerService/GetCoreWorkerStats"
        call = Call(path, request, of.GetCoreWorkerStatsReply)
        return self.wire.start(_target(address), call, min(self.timeout, _WORKER_DEADLINE))

    def want(self, tables: list[str]) -> None:
        """Begin a request: what workers said before was without their objects."""
        if "objects" in tables and "objects" not in self.wanted:
            self._stats.clear()
        self.wanted = frozenset(tables)


def _id(worker: Any) -> bytes:
    return bytes(worker.worker_address.worker_id)


def _answer(started: Any) -> tuple[Any, str]:
    try:
        return result(started), ""
    except CallError as failed:
        return None, failed.code


def _target(address: Any) -> str:
    ip = address.ip_address
    return f"[{ip}]:{address.port}" if ":" in ip else f"{ip}:{address.port}"


def _first(rows: list[Row], total: int | None = None) -> Table:
    return Table(rows[:LIMIT], len(rows) if total is None else max(total, len(rows)))


def nodes(gcs: Gcs) -> Table:
    """Nodes, dead ones too."""
    return _first([gcs_rows.node(each) for each in gcs.nodes()])


def metrics(gcs: Gcs) -> Table:
    """Where the nodes that are alive tell their metrics."""
    rows = [
        {
            "node_id": each.node_id.hex(),
            "ip": each.node_manager_address,
            "port": each.metrics_export_port,
        }
        for each in gcs.nodes()
        if gcs_rows.enum(each, "state") == "ALIVE"
    ]
    return _first(rows)


def workers(gcs: Gcs) -> Table:
    """Workers and drivers: those alive first, then the last that ended."""
    found = gcs.workers()
    kept = sorted(found, key=lambda each: (not each.is_alive, -each.end_time_ms))[:LIMIT]
    return Table([gcs_rows.worker(each) for each in kept], len(found))


def actors(gcs: Gcs) -> Table:
    """Actors: those not dead first, then the last that died."""
    reply = gcs.ask(gcs.call("ActorInfoGcsService", "GetAllActorInfo", show_dead_jobs=True))
    dead = _number_of(reply, "DEAD")
    found = sorted(reply.actor_table_data, key=lambda each: (each.state == dead, -each.end_time))
    total = max(len(found), reply.total)
    return Table([gcs_rows.actor(each) for each in found[:LIMIT]], total)


def _number_of(reply: Any, name: str) -> int | None:
    """The number of an actor's state."""
    table = reply.DESCRIPTOR.fields_by_name["actor_table_data"].message_type
    known = table.fields_by_name["state"].enum_type.values_by_name
    return known[name].number if name in known else None


def placement_groups(gcs: Gcs) -> Table:
    """Placement groups, removed ones last."""
    call = gcs.call("PlacementGroupInfoGcsService", "GetAllPlacementGroup")
    reply = gcs.ask(call)
    rows = [gcs_rows.placement_group(each) for each in reply.placement_group_table_data]
    rows.sort(key=lambda row: row["state"] == "REMOVED")
    return _first(rows, reply.total)


def jobs(gcs: Gcs) -> Table:
    """Drivers, and submitted jobs with theirs, as the job manager's list has them."""
    call = gcs.call(
        "JobInfoGcsService",
        "GetAllJobInfo",
        skip_submission_job_info_field=True,
        skip_is_running_tasks_field=True,
    )
    rows, drivers = [], {}
    for each in sorted(gcs.ask(call).job_info_list, key=lambda job: job.job_id):
        if each.config.ray_namespace.startswith(_INTERNAL):
            continue
        submission = each.config.metadata.get("job_submission_id")
        if submission:
            drivers[submission] = gcs_rows.driver(each)
        else:
            rows.append(gcs_rows.driver_job(each))
    for name, stored in _submissions(gcs):
        rows.append(gcs_rows.submitted_job(name, stored, drivers.get(name)))
    return _first(rows)


def _submissions(gcs: Gcs) -> Iterator[tuple[str, bytes]]:
    service, where = "InternalKVGcsService", {"namespace": b"job"}
    keys = gcs.ask(gcs.call(service, "InternalKVKeys", prefix=_JOB_PREFIX, **where)).results
    if keys:
        for each in gcs.ask(gcs.call(service, "InternalKVMultiGet", keys=keys, **where)).results:
            yield each.key.removeprefix(_JOB_PREFIX).decode("utf-8", "replace"), each.value


def tasks(gcs: Gcs) -> Table:
    """Tasks that are not finished, the last that failed, and those that run unknown to the GCS."""
    replies = _task_replies(gcs)
    names = gcs.of.common.TaskStatus
    rows: dict[tuple[str, int], Row] = {}
    for event in (event for each in replies for event in each.events_by_task):
        if gcs_rows.is_finished(event, names):
            continue
        row = gcs_rows.task(event, names)
        if row["type"] != "DRIVER_TASK":
            rows[row["task_id"], row["attempt_number"]] = row
    kept = _kept(list(rows.values())) + _lost(gcs, {row["task_id"] for row in rows.values()})
    return Table(kept, max(len(kept), len(rows) + sum(max(0, r.num_truncated) for r in replies)))


def _kept(rows: list[Row]) -> list[Row]:
    by_state: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["creation_time_ms"] or 0):
        by_state.setdefault(row["state"], []).append(row)
    failed = sorted(by_state.pop("FAILED", []), key=lambda row: row["end_time_ms"] or 0)
    limits = {"RUNNING": LIMIT}
    return [
        row
        for state, group in by_state.items()
        for row in group[: limits.get(state, LIMIT_WAITING)]
    ] + failed[-LIMIT_FAILED:]


def _task_call(gcs: Gcs, limit: int, state: str = "", others: tuple[str, ...] = ()) -> Call:
    """Tasks in `state`, or in none of `others`, as far as this version can tell them apart.

    A call costs 0.6 s where the GCS holds its 100,000 tasks, whatever it is asked for (2.60.0): it
    copies them all, and then takes the last first.
    """
    filters = gcs.of.gcs.GetTaskEventsRequest.Filters
    known = filters.DESCRIPTOR.fields_by_name
    fields: dict[str, Any] = {"exclude_driver": True}
    if "state_filters" in known:
        wanted = [(_EQUAL, state)] if state else [(_NOT_EQUAL, other) for other in others]
        fields["state_filters"] = [{"predicate": how, "state": name} for how, name in wanted]
    else:  # Ray <= 2.40 cannot: all of them come, and are chosen from here
        limit = -1
    return gcs.call("TaskInfoGcsService", "GetTaskEvents", limit=limit, filters=filters(**fields))


def _task_replies(gcs: Gcs) -> list[Any]:
    """As few calls as tell of all: 100,000 that wait must not hide the one that runs."""

    def ask(limits: dict[str, int]) -> list[Any]:
        calls = [_task_call(gcs, limit, state) for state, limit in limits.items()]
        others = ("FINISHED", "FAILED", "RUNNING", *limits)
        calls.append(_task_call(gcs, LIMIT_AT_ONCE, others=others))
        return [result(each) for each in [gcs.start(call) for call in calls]]

    whole = gcs.ask(_task_call(gcs, LIMIT_AT_ONCE, others=("FINISHED",)))
    if whole.num_truncated <= 0:
        return [whole]
    running, failed, waiting = ask({"RUNNING": LIMIT, "FAILED": LIMIT_FAILED})
    if waiting.num_truncated <= 0:
        return [running, failed, waiting]
    return [running, failed, *ask(dict.fromkeys(_WAITING, LIMIT_WAITING))]


def _lost(gcs: Gcs, known: set[str]) -> list[Row]:
    """Tasks that a worker says it runs and the GCS does not know: events come late, and may be dropped."""
    running = {}
    for worker, reply, _ in gcs.stats():
        for identifier in reply.running_task_ids if reply is not None else ():
            if identifier.hex() not in known:
                running[identifier.hex()] = (worker, reply.core_worker_stats)
    if not running:
        return []
    owned = {row["task_id"]: row for row in owned_tasks(gcs).rows}
    return [
        {
            **owned.get(identifier, {"task_id": identifier, "job_id": stats.job_id.hex()}),
            "attempt_number": None,
            "state": "RUNNING",
            "worker_id": worker.worker_address.worker_id.hex(),
            "worker_pid": worker.pid,
            "node_id": gcs_rows.node_of(worker.worker_address),
            "told_by": "worker",
        }
        for identifier, (worker, stats) in running.items()
    ]


def demands(gcs: Gcs) -> Table:
    """What waits for resources, as the autoscaler is told."""
    return _first(gcs_rows.demands(_status(gcs)))


def resources(gcs: Gcs) -> Table:
    """What each node has, and has left."""
    usage = {each.node_id: each for each in _status(gcs).node_states}
    return _first([gcs_rows.resources(each, usage.get(each.node_id)) for each in gcs.nodes()])


def _status(gcs: Gcs) -> Any:
    call = gcs.call("autoscaler.AutoscalerStateService", "GetClusterStatus")
    return gcs.ask(call).cluster_resource_state


def worker_stats(gcs: Gcs) -> Table:
    """What each live worker says of itself; one that does not say anything, though it can be reached."""
    asked = gcs.stats()
    silent = [each for each, reply, _ in asked if reply is None]
    with ThreadPoolExecutor(32) as pool:
        reached = dict(zip(map(id, silent), pool.map(_is_reached, silent), strict=True))
    rows = []
    for each, reply, code in asked:
        row = gcs_rows.worker_stats(each, reply)
        if reply is None:
            row["error"] = code
            if code != "DEADLINE_EXCEEDED" or not reached[id(each)]:
                row["answers"] = None  # gone meanwhile, or behind a firewall: not its fault
        rows.append(row)
    return _first(rows, sum(each.is_alive for each in gcs.workers()))


def _is_reached(worker: Any) -> bool:
    """Whether its port takes connections: the kernel does that for a stopped process, too."""
    address = worker.worker_address
    try:
        socket.create_connection((address.ip_address, address.port), timeout=0.3).close()
    except OSError:
        return False
    return True


def objects(gcs: Gcs) -> Table:
    """What holds which object, as `ray memory` shows it, asked of the workers; the largest first."""
    rows, total = [], 0
    for _, reply, _ in gcs.stats():
        if reply is None:
            continue
        stats = reply.core_worker_stats
        found = [gcs_rows.reference(each, stats) for each in stats.object_refs]
        valid = [row for row in found if row is not None]
        rows += valid
        total += len(valid) + max(0, stats.objects_total - len(found))
    rows.sort(key=lambda row: -row["object_size"])
    return _first(rows, total)


def owned_tasks(gcs: Gcs) -> Table:
    """What owners say of their tasks, as far as they are not finished."""
    replies = [reply for _, reply, _ in gcs.stats(of_tasks=True) if reply is not None]
    found = [each for reply in replies for each in reply.owned_task_info_entries]
    rows = [gcs_rows.owned_task(each) for each in found]
    return _first([row for row in rows if row["state"] != "FINISHED"])


TABLES: dict[str, Callable[[Gcs], Table]] = {
    "nodes": nodes,
    "resources": resources,
    "demands": demands,
    "worker-stats": worker_stats,
    "workers": workers,
    "actors": actors,
    "jobs": jobs,
    "placement-groups": placement_groups,
    "tasks": tasks,
    "objects": objects,
    "owned-tasks": owned_tasks,
    "metrics": metrics,
}


def answer(gcs: Gcs, tables: list[str]) -> Iterator[Row]:
    """The answers to one request."""
    gcs.want(tables)
    for name in tables:
        try:
            found = TABLES[name](gcs)
            yield {"table": name, "rows": found.rows, "total": found.total}
        except CallError as failed:
            yield {"failed": name, "code": failed.code, "detail": failed.detail}
        except Exception as error:  # a message of another version: the other tables still count
            yield {"failed": name, "code": type(error).__name__, "detail": str(error)[:300]}


def serve(of: Any) -> Iterator[Row]:
    """The answers to all requests; those after a failed probe are failed too."""
    gcs: Gcs | None = None
    probe: Row = {}
    for line in sys.stdin:
        request = json.loads(line)
        if gcs is None:
            gcs = Gcs(of, Wire(request["token"]), request["address"], request["timeout"])
            probe = gcs.probe()
            yield {"probe": probe}
        if probe["outcome"] == "ok":
            yield from answer(gcs, request["tables"])
        else:
            for name in request["tables"]:
                yield {"failed": name, "code": probe["outcome"], "detail": probe["detail"]}
        yield {"answered": True}


def main() -> None:
    """Serve until standard input ends."""
    try:
        of = messages(sys.argv[1])
        import grpc  # noqa: F401
    except Exception as error:
        told = {"failed": "", "code": type(error).__name__, "detail": str(error)[:300]}
        print(json.dumps(told), flush=True)
        return
    for told in serve(of):
        print(json.dumps(told, separators=(",", ":"), default=str), flush=True)


if __name__ == "__main__":
    main()
