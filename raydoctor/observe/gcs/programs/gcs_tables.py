"""Queries a GCS and its workers for tables, over plain gRPC with Ray's messages.

A program, run as a child. It does not use Ray itself: its import takes 0.35 s, its connection registers a
job, and its clients wait 40 s for a dead GCS (2.60.0 measured); this program takes 0.1 s in total and fails
immediately.

    gcs_tables.py

Standard input has one request per line, `{"address", "access", "timeout", "tables"}`; standard output one
reply per line: `{"probe": …, "about": …}` once (`about` has the cluster's versions), `{"table", "rows",
"total"}` or `{"failed", "code", "detail"}` for each table, and `{"answered": true}` after each request. The
token is passed this way because other processes can read arguments and environments.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:  # `observe/gcs/state.py` reads `TABLES`
    from raydoctor.observe.collector.programs.peers import access_of
    from raydoctor.observe.gcs.programs import gcs_rows, gcs_wire
    from raydoctor.observe.gcs.programs.gcs_client import LIMIT, Gcs, Row, RowTable, first
    from raydoctor.observe.gcs.programs.gcs_messages import Messages
    from raydoctor.observe.gcs.programs.gcs_tasks import finished, owned_tasks, tasks
    from raydoctor.observe.gcs.programs.gcs_wire import CallError, Wire
else:  # a program finds only modules in its own folder
    sys.path.insert(0, str(Path(__file__).parents[2] / "collector" / "programs"))
    import gcs_rows
    import gcs_wire
    from gcs_client import LIMIT, Gcs, Row, RowTable, first
    from gcs_messages import Messages
    from gcs_tasks import finished, owned_tasks, tasks
    from gcs_wire import CallError, Wire
    from peers import access_of

_JOB_PREFIX = b"_ray_internal_job_info_"
_INTERNAL = "_ray_internal_"


def nodes(gcs: Gcs) -> RowTable:
    """Nodes, including dead ones."""
    return first([gcs_rows.node(each) for each in gcs.nodes()])


def metrics(gcs: Gcs) -> RowTable:
    """Addresses of the live nodes' metrics."""
    rows = [
        {
            "node_id": each.node_id.hex(),
            "ip": each.node_manager_address,
            "port": each.metrics_export_port,
        }
        for each in gcs.nodes()
        if gcs_rows.enum(each, "state") == "ALIVE"
    ]
    return first(rows)


def workers(gcs: Gcs) -> RowTable:
    """Workers and drivers: live ones first, then those that ended last."""
    found = gcs.workers()
    kept = sorted(found, key=lambda each: (not each.is_alive, -each.end_time_ms))[:LIMIT]
    return RowTable([gcs_rows.worker(each) for each in kept], len(found))


def actors(gcs: Gcs) -> RowTable:
    """Actors: live ones first, then those that died last."""
    reply = gcs.ask(gcs.call("ActorInfoGcsService", "GetAllActorInfo", show_dead_jobs=True))
    dead = _number_of(reply, "DEAD")
    found = sorted(reply.actor_table_data, key=lambda each: (each.state == dead, -each.end_time))
    total = max(len(found), reply.total)
    return RowTable([gcs_rows.actor(each) for each in found[:LIMIT]], total)


def _number_of(reply: Any, name: str) -> int | None:
    """The number of an actor's state."""
    table = reply.DESCRIPTOR.fields_by_name["actor_table_data"].message_type
    known = table.fields_by_name["state"].enum_type.values_by_name
    return known[name].number if name in known else None


def placement_groups(gcs: Gcs) -> RowTable:
    """Placement groups, removed ones last."""
    call = gcs.call("PlacementGroupInfoGcsService", "GetAllPlacementGroup")
    reply = gcs.ask(call)
    rows = [gcs_rows.placement_group(each) for each in reply.placement_group_table_data]
    rows.sort(key=lambda row: row["state"] == "REMOVED")
    return first(rows, reply.total)


def jobs(gcs: Gcs) -> RowTable:
    """Drivers, and submitted jobs with their drivers, as in the job manager's list."""
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
    return first(rows)


def _submissions(gcs: Gcs) -> Iterator[tuple[str, bytes]]:
    service, where = "InternalKVGcsService", {"namespace": b"job"}
    keys = gcs.ask(gcs.call(service, "InternalKVKeys", prefix=_JOB_PREFIX, **where)).results
    if keys:
        for each in gcs.ask(gcs.call(service, "InternalKVMultiGet", keys=keys, **where)).results:
            yield each.key.removeprefix(_JOB_PREFIX).decode("utf-8", "replace"), each.value


def demands(gcs: Gcs) -> RowTable:
    """Pending resource requests, as reported to the autoscaler."""
    return first(gcs_rows.demands(_status(gcs)))


def resources(gcs: Gcs) -> RowTable:
    """Total and available resources of each node."""
    usage = {each.node_id: each for each in _status(gcs).node_states}
    return first([gcs_rows.resources(each, usage.get(each.node_id)) for each in gcs.nodes()])


def _status(gcs: Gcs) -> Any:
    call = gcs.call("autoscaler.AutoscalerStateService", "GetClusterStatus")
    return gcs.ask(call).cluster_resource_state


def worker_stats(gcs: Gcs) -> RowTable:
    """The reply of each live worker, and workers that can be reached but do not reply."""
    # Slow to import, and `TABLES` is read without it.
    from concurrent.futures import ThreadPoolExecutor

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
                row["answers"] = None  # it has ended meanwhile, or is behind a firewall
        rows.append(row)
    return first(rows, sum(each.is_alive for each in gcs.workers()))


def _is_reached(worker: Any) -> bool:
    """Whether its port accepts connections, which the kernel does for a stopped process as well."""
    address = worker.worker_address
    try:
        socket.create_connection((address.ip_address, address.port), timeout=0.3).close()
    except OSError:
        return False
    return True


def objects(gcs: Gcs) -> RowTable:
    """References to objects from all workers, as in `ray memory`; largest objects first."""
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
    return first(rows, total)


class Table(NamedTuple):
    """A table, and what raydoctor has to know of it: another one is a function and an entry in `TABLES`."""

    read: Callable[[Gcs], RowTable]
    is_always_wanted: bool = False
    """Whether it is requested from every cluster, because no dashboard holds it."""
    called: str = ""
    """What a report calls it if it is missing; empty if its name tells a reader."""


TABLES = {
    "nodes": Table(nodes),
    "resources": Table(resources, is_always_wanted=True),
    "demands": Table(demands, is_always_wanted=True, called="resource requests"),
    "worker-stats": Table(
        worker_stats, is_always_wanted=True, called="memory and objects of workers"
    ),
    "workers": Table(workers),
    "actors": Table(actors),
    "jobs": Table(jobs),
    "placement-groups": Table(placement_groups),
    "tasks": Table(tasks),
    "objects": Table(objects),
    "owned-tasks": Table(owned_tasks),
    "finished": Table(finished, called="durations of finished tasks"),
    "metrics": Table(metrics),
}


def answer(gcs: Gcs, tables: list[str]) -> Iterator[Row]:
    """The replies to one request."""
    gcs.want(tables)
    for name in tables:
        try:
            yield {"table": name, **TABLES[name].read(gcs)._asdict()}
        except CallError as failed:
            yield {"failed": name, "code": failed.code, "detail": failed.detail}
        except Exception as error:  # a message of another version must not affect the other tables
            yield {"failed": name, "code": type(error).__name__, "detail": str(error)[:300]}


def serve(of: Messages) -> Iterator[Row]:
    """The replies to all requests; after a failed probe, all tables fail."""
    gcs: Gcs | None = None
    probe: Row = {}
    for line in sys.stdin:
        request = json.loads(line)
        if gcs is None:
            gcs = Gcs(
                of, Wire(access_of(request["access"])), request["address"], request["timeout"]
            )
            probe = gcs.probe()
            yield {"probe": probe, "about": gcs.about}
        if probe["outcome"] == "ok":
            yield from answer(gcs, request["tables"])
        else:
            for name in request["tables"]:
                yield {"failed": name, "code": probe["outcome"], "detail": probe["detail"]}
        yield {"answered": True}


def main() -> None:
    """Serve until standard input ends."""
    try:
        of = Messages()
        gcs_wire.load_grpc()  # report a missing gRPC before the first request
    except Exception as error:
        failure = {"failed": "", "code": type(error).__name__, "detail": str(error)[:300]}
        print(json.dumps(failure), flush=True)
        return
    # No name holds the rows of one table while those of the next are made.
    for text in map(_as_text, serve(of)):
        print(text, flush=True)


def _as_text(reply: Row) -> str:
    return json.dumps(reply, separators=(",", ":"), default=str)


if __name__ == "__main__":
    main()
