"""A node died while it was in use.

## What you see
Tasks and actors fail with `NodeDiedError` or `… because its node has died`. The GCS's log contains `Node is dead
because the health check failed` or `has been marked dead because the detector has missed too many heartbeats`.

## Why
The GCS checks the health of each raylet every 3 s. After five failed checks (each waits up to 10 s) it marks the node
dead, with all its workers, actors and objects. The status of the checks separates the causes: `Connection refused` or
`Socket closed` means that the process or the machine is gone. `Deadline Exceeded` means that the raylet runs but has
stalled, or that the network drops packets. A node that was preempted or drained has the `state_message` `Terminated due
to preemption` or `Terminated due to idle (no Ray activity)`.

## Confirm
- `ray list nodes --detail` shows the reason in `state_message`.
- `Health check failed for node …, status message …` in `gcs_server.out` shows the status of the checks.
- The end of that node's `raylet.out`, its console or the cloud's events show what ended it.

## Fix
If the node is gone, find out what ended it, and fix that. If the node stalled, leave CPU for Ray's daemons
(`--num-cpus=$(( $(nproc) - 1 ))` for `ray start`), or give the health checks more time. The GCS reads the settings of
the checks when the head starts (defaults: 10000 ms, 5 checks):

    RAY_health_check_timeout_ms=30000 RAY_health_check_failure_threshold=10 ray start --head

Let work that may run twice survive the loss of a node: set `max_retries` for tasks and `max_restarts` for actors.

## Not this when
- the node was removed on purpose while nothing ran there.
- the whole cluster was shut down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import (
    CORE,
    DRIVER,
    NODE_DEAD,
    NODE_HEALTH_FAILED,
    NODE_REGISTERED,
    RAY_EXCEPTION,
)
from raydoctor.cluster import hosts
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import cut
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Severity, Subject
from raydoctor.rules.shared import objects
from raydoctor.rules.shared.cluster import FAULT_TOLERANCE_DOC, is_expected, node_of_death, refused
from raydoctor.rules.shared.live import examples as sample

_N = "3f818372160713c4e2f1a871bd9bf562dfe4eb44b82671c5eba59a68"

TASK_LOST_NODE = (
    Signal("node.lost_task", "Task failed because the node it was running on is dead or unavailable.",
           r"Task failed because the node it was running on is dead or unavailable\. Node IP: (?P<ip>\S+), node ID: (?P<node>[0-9a-f]{8,56})",
           DRIVER, f"Task failed because the node it was running on is dead or unavailable. Node IP: 10.0.0.3, node ID: {_N}."),
    Signal("node.lost_task", "where this task was running) was dead or unavailable.",
           r"Task failed due to the node \(where this task was running\) was dead or unavailable\.\s+The node IP: (?P<ip>\S+), "
           r"node ID: (?P<node>[0-9a-f]{8,56})", DRIVER,
           f"Task failed due to the node (where this task was running) was dead or unavailable.\n\nThe node IP: 10.0.0.3, node ID: {_N}",
           extent="record"),
    Signal("node.lost_task", "Task failed due to the node dying.",
           r"Task failed due to the node dying\.\s+The node \(IP: (?P<ip>[^,]{1,100}), node ID: (?P<node>[0-9a-f]{8,56})\) where this task",
           DRIVER, f"Task failed due to the node dying.\n\nThe node (IP: 10.0.0.3, node ID: {_N}) where this task was running crashed",
           extent="record"),
    Signal("node.lost_attempt", " failed with error NODE_DIED ",
           r"^Task attempt (?P<task>[0-9a-f]{48}) failed with error NODE_DIED .{0,2000}?The node \(IP: (?P<ip>[^,]{1,100}), "
           r"node ID: (?P<node>[0-9a-f]{8,56})\) where this task", CORE,
           f"Task attempt {'c8' * 24} failed with error NODE_DIED Fail immediately? 0, status GrpcUnavailable: RPC Error message: "
           "Socket closed, error info error_message: \"Task failed due to the node dying.\\n\\nThe node (IP: 10.0.0.3, node ID: "
           f"{_N}) where this task was running crashed unexpectedly.", fold=("node",)),
    Signal("node.lost_actor", "because its node has died. Node Id: ",
           r"The actor (?:is dead|died) because its node has died\. Node Id: (?P<node>[0-9a-f]{8,56})(?:\s+the actor's node was (?P<how>[^:\n]+))?",
           DRIVER, f"The actor died because its node has died. Node Id: {_N}", extent="record"),
)  # fmt: skip


@dataclass(slots=True)
class _Death:
    node: str
    records: list[Event] = field(default_factory=list)
    echoes: list[Event] = field(default_factory=list)
    """Tasks and actor calls that drivers lost with it."""

    @property
    def at(self) -> float | None:
        return min((at for e in self.records if (at := _when(e)) is not None), default=None)

    @property
    def reason(self) -> str:
        worded = (_UNWANTED.get(e["state_message"].partition(":")[0], "") for e in self.records)
        return next((r for r in (*(e["reason"] for e in self.records), *worded) if r), "")


@rule(
    tier="cause",
    severity="error",
    rank=60,
    explains=("actor", "node"),
    caused_by=("gcs", "host", "raylet"),
    daemons_record=True,
    looks_for=(*NODE_DEAD, NODE_HEALTH_FAILED, *NODE_REGISTERED, *TASK_LOST_NODE, RAY_EXCEPTION),
)  # fmt: skip
def node_died(case: Case) -> Iterator[Finding]:
    """One finding per node that died unexpectedly, or that was stopped while drivers still used it."""
    deaths: dict[str, _Death] = {}
    for event in case.of("node.dead"):
        node = node_of_death(event)
        if node and not (is_expected(event) or case.torn_down(event)):
            deaths.setdefault(node, _Death(node)).records.append(event)
    excerpts = [e for e in case.of("node.lost_attempt") if e.source.is_excerpt]
    for event in (*case.of("node.lost_task", "node.lost_actor"), *excerpts):
        deaths.setdefault(event["node"], _Death(event["node"])).echoes.append(event)
    for event in case.of("node.dead"):
        node = node_of_death(event)
        if node in deaths and event not in deaths[node].records:
            deaths[node].records.append(event)
    for row in _dead_now(case):
        deaths.setdefault(row["node_id"], _Death(row["node_id"])).records.append(row)
    for death in deaths.values():
        yield _finding(case, death)
    if not deaths:
        yield from _only_raised(case)


def _only_raised(case: Case) -> Iterator[Finding]:
    """Exceptions of which a console shows only the first words, without the node."""
    raised = [
        e
        for e in case.of(RAY_EXCEPTION.kind)
        if e.source.is_excerpt and "NodeDiedError" in (e["type"], e["inner"])
    ]
    if raised:
        yield Finding(
            "A node died while the program's work ran on it",
            (Link(raised[0], "a driver lost work that ran on the node"),),
            explains=(Entity("node", ""),),
            severity="warning" if evidence.goes_on(case, raised[-1], is_line=True) else None,
            remedies=_remedies(case, []),
            covers=tuple(raised),
        )


_UNWANTED = {
    "Unexpected termination": "UNEXPECTED_TERMINATION",
    "Terminated due to preemption": "AUTOSCALER_DRAIN_PREEMPTED",
}
"""The state API's wording for the death reasons that are not intended (`dashboard/utils.py`, `compose_state_message`, 2.60)."""


def _dead_now(case: Case) -> list[Event]:
    """Nodes that the GCS lists as dead unexpectedly: the only source when its log is on another machine."""
    return [
        e
        for e in live.rows(case, "nodes")
        if e["state"] == "DEAD"
        and e["node_id"]
        and e["state_message"].partition(":")[0] in _UNWANTED
    ]


def _when(event: Event) -> float | None:
    """The time at which the node ended: a column of a live row, or the time of a log record."""
    ended = live.number(event, "end_time_ms")
    return ended / 1000 if ended else event.at


def _finding(case: Case, death: _Death) -> Finding:
    checks = [e for e in case.of("node.health_failed") if e["node"] == death.node]
    exits = _lost_workers(case, death)
    lost = sum(e.count for e in death.echoes)
    links = [Link(checks[-1], f"health check: {cut(checks[-1]['status'], 80)}")] if checks else []
    links += [Link(e, "the GCS marks the node dead") for e in death.records[:1]]
    links += [Link(e, "a driver lost work that ran on the node") for e in death.echoes[:1]]
    exceptions = [
        e
        for e in case.of("driver.exception")
        if e["inner"] == "NodeDiedError" or e["type"] == "NodeDiedError" or death.node in e["what"]
    ]
    ip = case.ledger.node_ips.get(death.node) or next(
        (ip for e in (*death.records, *death.echoes) if (ip := e["ip"] or e["node_ip"])), ""
    )
    with_it = [evidence.many(evidence.deaths(exits), "worker")] if exits else []
    with_it += [f"{lost} task or actor call{'s' if lost != 1 else ''}"] if lost else []
    were = "was" if evidence.deaths(exits) + lost == 1 else "were"
    name = case.node_name(death.node, ip)
    return Finding(
        f"{name[:1].upper()}{name[1:]} {_how(case, death, checks)}"
        + (f", and {' and '.join(with_it)} {were} lost with it" if with_it else ""),
        tuple(
            links or [Link(e, "a driver lost work that ran on the node") for e in exceptions[:1]]
        ),
        explains=(
            Entity("node", death.node),
            *evidence.exit_entities(exits),
            *_actors_there(case, death.node),
        ),
        caused_by=(
            Entity("raylet", death.node),
            Entity("gcs", "gcs"),
            *hosts.of_node(death.node, ip),
        ),
        subjects=(Subject("node", death.node, ip or None, None, death.node),),
        severity=_severity(case, death),
        remedies=_remedies(case, checks),
        covers=(*death.records, *death.echoes, *checks, *exceptions, *evidence.exit_events(exits)),
        gaps=_gaps(case, death, ip),
    )


def _lost_workers(case: Case, death: _Death) -> list[WorkerExit]:
    """Workers of that node that ended with it, or that Ray declared dead afterwards."""
    at = death.at
    return [
        e
        for e in case.exits
        if e.node == death.node and (at is None or e.at is None or e.at >= at - 20)
    ]


def _actors_there(case: Case, node: str) -> tuple[Entity, ...]:
    """Actors that last ran on the node; their callers get `ActorUnavailableError` before Ray has the reason."""
    workers = case.ledger.worker_nodes
    return tuple(
        Entity("actor", actor.id)
        for actor in case.ledger.actors.values()
        if actor.workers and workers.get(actor.workers[-1]) == node
    )


def _how(case: Case, death: _Death, checks: list[Event]) -> str:
    reason = death.reason
    if reason == "AUTOSCALER_DRAIN_PREEMPTED" or any("preempted" in e["how"] for e in death.echoes):
        return "was preempted"
    if reason == "EXPECTED_TERMINATION":
        return "was stopped while it was in use"
    if refused(case, death.node):
        return "is gone: no process answered at its raylet's port"
    if any("Deadline" in e["status"] for e in checks):
        return "stalled or was cut off: its health checks timed out"
    return "died"


def _severity(case: Case, death: _Death) -> Severity:
    registered = case.of("node.registered")
    head = bool(registered) and registered[0]["node"] == death.node
    return "critical" if head else "error"


def _gaps(case: Case, death: _Death, ip: str) -> tuple[Gap, ...]:
    if death.node in case.ledger.raylet_files.values():
        return ()
    where = ip or evidence.short(death.node)
    return (
        Gap(
            f"raylet.out of node {where}",
            "only that node's own logs record why it ended",
            paste.text(
                "Copy /tmp/ray/session_latest/logs from node {where} into a folder beside those of the other nodes, put its kernel log there as well (sudo dmesg -T > dmesg.txt), and diagnose the folder above.",
                where=where,
            ),
        ),
    )


def _remedies(case: Case, checks: list[Event]) -> tuple[Remedy, ...]:
    survive = objects.survive(case, "Let tasks and actors survive the loss of a node")
    if any("Deadline" in e["status"] for e in checks):
        return (
            Remedy(
                "Leave CPU for the raylet, or give its health checks more time",
                (
                    "ray start --num-cpus=CORES   # plus your other options. On the stalled node: CORES is one less than it has",
                    "ray.init(num_cpus=CORES)   # if the program starts Ray",
                    "export RAY_health_check_failure_threshold=10 RAY_health_check_timeout_ms=30000   # on the head, before ray start, or before your program if it starts Ray",
                ),
                risk="disruptive",
                doc=FAULT_TOLERANCE_DOC,
            ),
            *survive,
        )
    return survive


# ------------------------------------------------------------------ examples


_HEALTH = (
    f"[2026-11-21 07:44:24,439 W 13 13] (gcs_server) gcs_health_check_manager.cc:209: Health check failed for node {_N}, remaining "
    "checks 0, status 14, response status 0, status message {why}, status details \n"
    f"[2026-11-21 07:44:24,439 W 13 13] (gcs_server) gcs_health_check_manager.cc:88: Node is dead because the health check failed. "
    f"node_id={_N}\n"
)
_REGISTERED = (
    f"[2026-11-21 07:44:01,000 I 13 13] (gcs_server) gcs_node_manager.cc:111: Registering new node. node_id={'a' * 56} "
    "node_name=10.0.0.2 node_address=10.0.0.2\n"
    f"[2026-11-21 07:44:02,000 I 13 13] (gcs_server) gcs_node_manager.cc:111: Registering new node. node_id={_N} "
    "node_name=10.0.0.3 node_address=10.0.0.3\n"
)
_STOPPED = (
    f"[2026-11-21 07:44:55,712 I 8 15] (gcs_server) gcs_node_manager.cc:734: , death reason = EXPECTED_TERMINATION, death message = "
    f"received SIGTERM node_id={_N} node_name=10.0.0.3\n"
)


def _nodes(message: str) -> dict[str, str]:
    """Two nodes as the state API has them: the head, and one that is dead."""
    alive = {
        "node_id": "a" * 56,
        "node_ip": "10.0.0.2",
        "state": "ALIVE",
        "state_message": None,
        "end_time_ms": 0,
    }
    dead = {
        "node_id": _N,
        "node_ip": "10.0.0.3",
        "state": "DEAD",
        "state_message": message,
        "end_time_ms": 1795247100000,
    }
    return sample.tables(1795247200.0, nodes=[alive, dead])


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a worker node's machine is gone",
        {
            "logs/gcs_server.out": _REGISTERED
            + _HEALTH.format(why="failed to connect to all addresses; Connection refused"),
            "logs/raylet.out": "",
        },
        says=("10.0.0.3", "gone"),
    ),
    Example(
        "retries alone do not bring back the objects that a machine takes with it",
        {
            "logs/gcs_server.out": _REGISTERED
            + _HEALTH.format(why="failed to connect to all addresses; Connection refused"),
            "logs/raylet.out": "",
            "driver.log": "ray.exceptions.ObjectReconstructionFailedError: "
            + objects.error(
                "[OBJECT_UNRECONSTRUCTABLE_LINEAGE_EVICTED] The object cannot be reconstructed because its lineage has been "
                "evicted to reduce memory pressure."
            ),
        },
        consequences=("object-unreconstructable",),
        says=("RAY_max_lineage_bytes=4294967296", "max_retries"),
    ),
    Example(
        "the raylet runs but has stalled",
        {
            "logs/gcs_server.out": _REGISTERED + _HEALTH.format(why="Deadline Exceeded"),
            "logs/raylet.out": "",
        },
        says=("RAY_health_check_failure_threshold",),
    ),
    Example(
        "only the state API reports it: the GCS's log is on another machine",
        {
            "logs/raylet.out": "",
            **_nodes("Unexpected termination: health check failed"),
        },
        says=("10.0.0.3", "max_retries"),
    ),
    Example(
        "the state API lists a node that was stopped on purpose",
        {
            "logs/raylet.out": "",
            **_nodes("Expected termination: received SIGTERM"),
        },
    ),
    console(
        "a pasted line of the GCS's event file",
        f'{{"custom_fields":{{"ip":"10.0.0.3","node_id":"{_N}"}},"event_id":"8fcc","host_name":"h","label":'
        f'"RAY_NODE_REMOVED","message":"The node with node id: {_N} and address: 10.0.0.3 and node name: 10.0.0.3 has been '
        'marked dead because the detector has missed too many heartbeats from it.","pid":"17","severity":"ERROR",'
        '"source_type":"GCS","timestamp":1795257972}\n',
        says=("10.0.0.3",),
    ),
    Example(
        "a node that received SIGTERM",
        {"logs/gcs_server.out": _REGISTERED + _STOPPED, "logs/raylet.out": ""},
    ),
    console(
        "a driver of Ray 2.6 logs it, and a person removed the names",
        "2026-11-21 07:42:46,044\tWARNING worker.py:2037 -- The node with node id: <node> and address: <its address> and "
        "node name: <name> has been marked dead because the detector has missed too many heartbeats from it. This can happen when a "
        "\t(1) raylet crashes unexpectedly (OOM, preempted node, etc.) \n\t(2) raylet has lagging heartbeats.\n",
        says=("died",),
    ),
    console(
        "a program prints the sentence",
        "(watch pid=12) The node with node id: 7 and address: a and node name: b has been marked dead because of me\n",
    ),
    console(
        "a core worker's own log of the attempt that its node lost",
        f"[2026-11-21 07:42:46,044 I 61 77] task_manager.cc:906: {TASK_LOST_NODE[1].sample}\n",
        says=("10.0.0.3",),
    ),
    console(
        "a console that ends with the first words of the exception",
        "ray.exceptions.NodeDiedError: Task failed due to the node (where this task was running) was dead or "
        "unavailable.\n",
        roots=("node-died",),
    ),
    console(
        "a caught exception",
        "ray.exceptions.NodeDiedError: Task failed because the node it was running on is dead or unavailable.\n"
        "task retried by hand: ok\n",
        severity="warning",
    ),
    console(
        "Ray 1.x names the node by its address only",
        f"2026-11-21 07:35:03,092\tWARNING worker.py:1462 -- The node with node id: {'4' * 56} and ip: 10.0.0.3 has been marked dead "
        "because the detector has missed too many heartbeats from it.\n",
        says=("Node 10.0.0.3 died",),
    ),
    console(
        "a paste that begins within the message about a dead node",
        "10.0.0.7 has been marked dead because the detector has missed too many heartbeats from it. This can happen when a raylet crashes.\n",
        roots=("node-died",),
    ),
)
