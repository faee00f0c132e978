"""Ray was stopped (`ray stop`, SIGTERM, a scale-down) while a job was still running.

## What you see
- The driver fails with `LocalRayletDiedError` or `Failed to connect to GCS`, and many workers and actors die at the
  same time.
- `raylet.out` and `gcs_server.out` contain `received SIGTERM`, or `Shutdown RPC has received`.

## Why
A person or a program stopped Ray: `ray stop`, a service manager, Kubernetes, or a cloud that ended the pod or the
machine. `ray stop` ends every Ray process on the machine that its user may signal: all clusters of that user, and as
root those of all users. All later errors are part of the shutdown.

## Confirm
- `received SIGTERM` appears in `raylet.out` before the job's end.
- The shell history, systemd's journal, `kubectl get events` or the scheduler's log shows what stopped Ray at that time.

## Fix
Stop Ray only when its jobs are done (`ray job list`). On a shared machine, end only your own cluster. If it was started
by `ray start --block`, press Ctrl-C there. Otherwise end the processes whose command lines contain the name of its
session folder, the raylet first:

    ls -dt /tmp/ray/session_2*                # the newest one first; below, SESSION is the name of your folder
    pgrep -af SESSION                         # what would end: check that all of it is yours
    pkill -f "raylet_socket_name=.*SESSION"   # the raylet; its workers end with it
    pkill -f SESSION                          # the rest. What is left after a minute: pkill -KILL -f SESSION

## Not this when
- the driver ended first: Ray's own cleanup then sends the SIGTERM, and nothing is wrong.
- the driver ended because it had lost a node: the cause is the loss of that node (`raylet-died`, `node-died`).
- the GCS was dead before the SIGTERM (`gcs-died`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import Job
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import (
    DRIVER,
    DRIVER_GONE,
    GCS_SIGTERM,
    JOB_FINISHED,
    JOB_STARTED,
    NODE_DEAD,
    RAYLET_DRAINED,
    RAYLET_SHUTDOWN_RPC,
    RAYLET_SIGTERM,
    RAYLET_STARTED,
    TASK_ATTEMPT_FAILED,
)
from raydoctor.cluster import hosts
from raydoctor.model import ids
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.cluster import (
    DRIVER_GOODBYE,
    GCS_LOST,
    GCS_STREAM_LOST,
    gcs_killed_before_stop,
    is_drivers,
    is_expected,
    lost_driver_errors,
)


@rule(
    tier="root",
    severity="error",
    rank=0,
    explains=("gcs", "job", "node", "process", "raylet", "worker"),
    caused_by=("host",),
    looks_for=(
        RAYLET_SIGTERM,
        RAYLET_SHUTDOWN_RPC,
        RAYLET_DRAINED,
        GCS_SIGTERM,
        RAYLET_STARTED,
        *NODE_DEAD,
        *JOB_STARTED,
        *JOB_FINISHED,
        DRIVER_GONE,
        DRIVER_GOODBYE,
        GCS_LOST,
        *GCS_STREAM_LOST,
        TASK_ATTEMPT_FAILED,
    ),
)
def ray_stopped(case: Case) -> Iterator[Finding]:
    """At most one finding: the first request to stop that came while a job was running."""
    requests = [
        e
        for e in case.of("raylet.sigterm", "gcs.sigterm")
        if _from_outside(case, e) and not _is_scale_down(case, e)
    ]
    requests = _without_drivers_shutdown(case, requests)
    if not requests or requests[0].at is None or gcs_killed_before_stop(case):
        return
    first, at = requests[0], requests[0].at
    running = [
        j
        for j in case.ledger.jobs.values()
        if (j.started or 0) <= at and (j.ended is None or j.ended >= at)
    ]
    if not running or not _affected_a_driver(case, requests):
        return
    yield _finding(case, first, at, requests, running)


def _from_outside(case: Case, event: Event) -> bool:
    """Whether another process sent the SIGTERM: up to 2.20 a raylet sends itself one when its agent has died."""
    if event.kind == "gcs.sigterm" or event.at is None:
        return True
    return case.stopped_at(case.node_of(event.source)) <= event.at


_LOST_ITS_NODE = ("node has died", "node dying", "dead or unavailable", "local raylet")


def _is_scale_down(case: Case, event: Event) -> bool:
    """Whether the autoscaler may have ended an idle node by an RPC: it cost no call."""
    by_rpc = event.kind == "raylet.sigterm" and "SIGTERM" not in event.message
    return by_rpc and not _cost_a_call(case, event, (event.at or 0.0) + _NOTICED)


_NOTICED = 10.0
"""Seconds in which the caller of a stopped node's task notices that its call failed."""
_RECENT = 60.0
"""Seconds between the loss of a node and the end of a driver that fails because of it."""


def _without_drivers_shutdown(case: Case, requests: list[Event]) -> list[Event]:
    """The requests that the driver did not send itself when it ended.

    A driver shuts Ray down if it disconnected around then and nothing that it lost is due to the stop: it reported no error,
    or its errors are those of a node that it had lost before. Of the earlier requests, those count that cost it a call.
    """
    end = _end_of_cluster(case, requests)
    goodbye = [e for e in case.of("driver.goodbye") if e.at is not None and abs(e.at - end) < 10]
    if not goodbye or _gcs_lost(case):
        return requests
    errors = lost_driver_errors(case)
    earlier = [
        e for e in requests if e.at is not None and e.at < end and _cost_a_call(case, e, end)
    ]
    lost_before = bool(earlier) or any(
        e.at is not None and end - _RECENT <= e.at < end and not is_expected(e)
        for e in case.of("node.dead")
    )
    lost_raylet = any(e["type"] == "LocalRayletDiedError" for e in errors)
    if (
        lost_raylet
        and _raylet_died_first(case, requests)
        and min(e.at or end for e in goodbye) < end
    ):
        return []
    if errors and (not lost_before or lost_raylet):
        return requests
    return earlier if errors or case.roles.isdisjoint(DRIVER) else []


def _raylet_died_first(case: Case, requests: list[Event]) -> bool:
    """Whether the logs of a raylet and the GCS record a stop of the GCS alone: the raylet had ended without one."""
    return (
        "raylet-out" in case.roles
        and all(e.kind == "gcs.sigterm" for e in requests)
        and not any(is_expected(e) for e in case.of("node.dead"))
    )


def _end_of_cluster(case: Case, requests: list[Event]) -> float:
    """When the GCS, or the head without a record of it, was asked to stop; else the first request."""
    times = [e.at for e in requests if e.kind == "gcs.sigterm" and e.at is not None]
    head = [
        e.at
        for e in requests
        if e.at is not None and e.kind != "gcs.sigterm" and is_drivers(case, case.node_of(e.source))
    ]
    every = [e.at for e in requests if e.at is not None]
    return min((*times, *head), default=min(every, default=float("inf")))


def _cost_a_call(case: Case, request: Event, end: float) -> bool:
    """Whether a driver's call failed between a node's stop and the end of the cluster."""
    return any(
        e.at is not None and (request.at or 0.0) <= e.at < end
        for e in case.of("task.attempt_failed")
        if e["error"] in ("ACTOR_DIED", "NODE_DIED", "WORKER_DIED", "ACTOR_UNAVAILABLE")
    )


def _affected_a_driver(case: Case, requests: list[Event]) -> bool:
    """Whether the end of the whole cluster reached a driver, or no driver's log is there to show it.

    Where the record of a job's end is cut off, the driver's own shutdown looks like a stop. A driver
    that was still running then loses the GCS or its node.
    """
    whole = any(e.kind == "gcs.sigterm" for e in requests)
    silent = case.roles.isdisjoint((*DRIVER, "core-driver"))
    lost = any(w in e.message for e in lost_driver_errors(case) for w in _LOST_ITS_NODE)
    return not whole or silent or lost or bool(_gcs_lost(case))


def _gcs_lost(case: Case) -> list[Event]:
    """Records of drivers that lost the GCS."""
    return [e for e in case.of("gcs.lost") if e.source.role in (*DRIVER, "core-driver")]


def _finding(
    case: Case, first: Event, at: float, requests: list[Event], running: list[Job]
) -> Finding:
    exits = [e for e in case.all_exits if e.at is not None and e.at >= at - 0.5]
    everything = any(e.kind == "gcs.sigterm" for e in requests)
    stopped = dict.fromkeys(case.node_of(e.source) for e in requests)
    nodes = tuple(case.ledger.node_ips) if everything else tuple(n for n in stopped if n)
    exceptions = lost_driver_errors(case)
    jobs = evidence.join_names(f"job {ids.job_number(j.id)}" for j in running)
    ips = evidence.join_names(case.ledger.node_ips.get(n, "") for n in nodes)
    where = (
        f"the cluster{f' ({ips})' if ips else ''}"
        if everything
        else f"node{'s' if len(nodes) > 1 else ''} {evidence.join_names(case.ledger.node_ips.get(n, evidence.short(n)) for n in nodes)}"
        if nodes
        else "a node"
    )
    what = "SIGTERM" if "SIGTERM" in first.message else "a shutdown request"
    links = [
        Link(
            first,
            f"the {'raylet' if first.kind.startswith('raylet') else 'GCS'} receives {what}",
        )
    ]
    links += [Link(e, "the GCS receives SIGTERM") for e in requests if e.kind == "gcs.sigterm"][:1]
    links += [Link(e, "the driver, still running, loses the GCS") for e in _gcs_lost(case)[:1]]
    links += [Link(e, f"the driver got {e['type']}") for e in exceptions[:1]]
    return Finding(
        f"{what[0].upper()}{what[1:]} stopped Ray on {where} while {jobs} {'was' if len(running) == 1 else 'were'} running",
        tuple(links),
        explains=(
            *(Entity(kind, node) for node in nodes for kind in ("raylet", "node")),
            *((Entity("gcs", "gcs"),) if everything else ()),
            *(Entity("job", j.id) for j in running),
            *evidence.exit_entities(exits),
        ),
        caused_by=(
            *(pod for n in nodes for pod in hosts.of_node(n, case.ledger.node_ips.get(n, ""))),
            *((hosts.entity("head"),) if everything else ()),
        ),
        subjects=tuple(Subject("job", j.id, None, j.driver_pid) for j in running),
        remedies=(
            _sender(what == "SIGTERM"),
            Remedy(
                "If it was ray stop: run it only while no job is running, because it ends all clusters of its user on the machine. "
                "Run as root, it ends those of every user",
                ("ray job list   # or: ray list jobs --filter status=RUNNING",),
            ),
        ),
        covers=(
            *requests,
            *exceptions,
            *case.of("gcs.lost", "raylet.seen_dead", "node.dead"),
            *evidence.exit_events(exits),
        ),
    )


def _sender(by_signal: bool) -> Remedy:
    if not by_signal:
        return Remedy(
            "Find what requested the shutdown: the autoscaler, ray drain-node or a person",
            (
                "grep -niE 'drain|shutdown' /tmp/ray/session_latest/logs/gcs_server.out /tmp/ray/session_latest/logs/monitor.log | tail   # on the head",
            ),
        )
    return Remedy(
        "Find what sent the SIGTERM: a person, systemd, Kubernetes, the notice of a spot machine, or a scheduler's time limit",
        (
            "last -x reboot shutdown; journalctl --since '-1 day' | grep -iE 'ray|shutdown|stopping'   # on that node",
            "kubectl get events -n NAMESPACE --sort-by=.lastTimestamp   # on Kubernetes",
            "sacct -j JOB -o JobID,State,ExitCode,Elapsed,Timelimit   # on Slurm",
        ),
    )


# ------------------------------------------------------------------ examples


_N = "0aa46c9edf11d6fbb17d7a7acab0a95cb1485c37abd3ca9c1dda4310"
_RAYLET = (
    f"[2026-11-21 07:46:01,000 I 307 307] (raylet) node_manager.cc:355: Raylet of id, {_N} started. Raylet consists of node_manager "
    "and object_manager. node_manager address: 10.0.0.2:0 object_manager address: 10.0.0.2:1 hostname: n\n"
    "[2026-11-21 07:46:23,381 I 307 307] (raylet) main.cc:1174: received SIGTERM. Existing local drain request = None\n"
)
_JOB = "[2026-11-21 07:46:17,300 I 13 13] (gcs_server) gcs_job_manager.cc:115: Registering job. job_id=01000000 driver_pid=397\n"
_DRIVER = f"logs/python-core-driver-01000000{'f' * 48}_397.log"
_LOST = "[2026-11-21 07:46:32,625 E 397 472] rpc_client.h:204: Failed to connect to GCS within 8 seconds. GCS may have been killed.\n"
_ENDED = "[2026-11-21 07:46:20,000 I 13 13] (gcs_server) gcs_job_manager.cc:156: Marking job as finished. job_id=01000000\n"

_GOODBYE = (
    "[2026-11-21 07:46:24,{} I 397 397] raylet_ipc_client.cc:133: RayletIpcClient::Disconnect, exit_type=INTENDED_USER_EXIT, "
    "exit_detail=Shutdown by ray.shutdown()., has creation_task_exception_pb_bytes=0\n"
)
_ATTEMPT = (
    f"[2026-11-21 07:46:23,100 W 397 472] task_manager.cc:1678: Task attempt {'1' * 40}01000000 failed with error ACTOR_DIED Fail "
    "immediately? 0, status IOError: The actor was restarted, error info null\n"
)
_OTHER = "1" * 56
_TWO_NODES = "".join(
    f"[2026-11-21 07:46:00,{n}00 I 13 13] (gcs_server) gcs_node_manager.cc:70: Registering new node. node_id={node} node_name={ip} "
    f"node_address={ip}\n"
    for n, node, ip in ((1, _N, "10.0.0.2"), (2, _OTHER, "10.0.0.3"))
)
_GCS_STOPPED = "[2026-11-21 07:46:23,400 I 13 13] (gcs_server) gcs_server_main.cc:266: GCS server received SIGTERM, shutting down...\n"
_NODE_LOST = (
    "[2026-11-21 07:46:23,050 W 13 13] (gcs_server) gcs_node_manager.cc:761: The node with node id: "
    f"{_OTHER} and address: 10.0.0.3 and node name: 10.0.0.3 has been marked dead because the detector has missed too many heartbeats "
    "from it.\n"
)
_DIED = (
    'Traceback (most recent call last):\n  File "/app/a.py", line 9, in <module>\n    ray.get(x)\n'
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    f"\tclass_name: A\n\tactor_id: {'1' * 24}01000000\nThe actor died because its node has died. Node Id: {_OTHER}\n"
)
_WORKER_NODE = (
    _RAYLET.replace(_N, _OTHER).replace("10.0.0.2", "10.0.0.3").replace("307 307", "308 308")
)
_SHUTDOWN_RPC = _WORKER_NODE.replace(
    "main.cc:1174: received SIGTERM. Existing local drain request = None",
    "node_manager.cc:1977: Shutdown RPC has received. Shutdown will happen after the RPC is replied.",
).replace("07:46:23,381", "07:46:23,090")
_DRAINED = _RAYLET.replace(
    "main.cc:1174: received SIGTERM. Existing local drain request = None",
    "node_manager.cc:2245: Drain raylet RPC has received. Deadline is 1795413861018. Drain reason: DRAIN_NODE_REASON_PREEMPTION. "
    "Drain reason message: Node received SIGTERM; draining before shutdown.",
)
_DRAINED_DEAD = (
    "[2026-11-21 07:46:23,382 I 13 13] (gcs_server) gcs_node_manager.cc:734: , death reason = AUTOSCALER_DRAIN_PREEMPTED, "
    f"death message = Node received SIGTERM; draining before shutdown. node_id={_N} node_name=10.0.0.2\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a job is running when `ray start --block` gets SIGTERM",
        {"logs/raylet.out": _DRAINED, "logs/gcs_server.out": _JOB + _DRAINED_DEAD, _DRIVER: _LOST},
        says=("SIGTERM stopped Ray on node 10.0.0.2 while job 1 was running",),
    ),
    Example(
        "`ray start --block` gets SIGTERM after the job has ended",
        {
            "logs/raylet.out": _DRAINED,
            "logs/gcs_server.out": _JOB + _ENDED + _DRAINED_DEAD,
            _DRIVER: "",
        },
    ),
    Example(
        "a job is running when Ray is stopped",
        {"logs/raylet.out": _RAYLET, "logs/gcs_server.out": _JOB, _DRIVER: _LOST},
        says=("job 1", "10.0.0.2"),
    ),
    Example(
        "the driver ends before Ray stops",
        {"logs/raylet.out": _RAYLET, "logs/gcs_server.out": _JOB + _ENDED, _DRIVER: ""},
    ),
    Example(
        "a node is lost; the driver fails because of it, and shuts its cluster down",
        {
            "logs/gcs_server.out": _TWO_NODES + _JOB + _NODE_LOST + _GCS_STOPPED,
            "logs/raylet.out": _RAYLET,
            _DRIVER: _ATTEMPT + _GOODBYE.format("000"),
            "driver.log": _DIED,
        },
        roots=("node-died",),
    ),
    Example(
        "a raylet dies; its driver fails because of it, and stops the GCS that it had started",
        {
            "logs/gcs_server.out": _JOB + _GCS_STOPPED,
            "logs/raylet.out": _RAYLET.splitlines(keepends=True)[0],
            _DRIVER: _GOODBYE.format("100").replace("07:46:24", "07:46:23"),
            f"logs/python-core-worker-{'c' * 56}_383.log": "[2026-11-21 07:46:24,052 E 383 402] core_worker.cc:715: Shutting down the "
            "core worker because the local raylet failed. Check out the raylet.out log file. Raylet pid: 307\n",
            "driver.log": "2026-11-21 07:46:17,002\tINFO worker.py:1821 -- Started a local Ray instance.\n"
            'Traceback (most recent call last):\n  File "/app/a.py", line 9, in <module>\n    ray.get(x)\n'
            "ray.exceptions.LocalRayletDiedError: The task's local raylet died. Check raylet.out for more information.\n",
        },
        roots=("raylet-died",),
    ),
    Example(
        "a tool ends one node by an RPC, which costs the driver a call; then the driver shuts its cluster down",
        {
            "head/logs/gcs_server.out": _TWO_NODES + _JOB + _GCS_STOPPED,
            "head/logs/raylet.out": _RAYLET,
            f"head/{_DRIVER}": _ATTEMPT + _GOODBYE.format("000"),
            "other/logs/raylet.out": _SHUTDOWN_RPC,
        },
        says=("A shutdown request stopped Ray on node 10.0.0.3 while job 1 was running",),
    ),
    Example(
        "the autoscaler ends an idle node by an RPC",
        {
            "head/logs/gcs_server.out": _TWO_NODES + _JOB,
            "head/logs/raylet.out": _RAYLET.splitlines(keepends=True)[0],
            f"head/{_DRIVER}": "",
            "other/logs/raylet.out": _SHUTDOWN_RPC,
        },
    ),
)
