"""A node or a driver lost its connection to a GCS that kept running, or a driver or a starting node never reached the GCS.

## What you see
A raylet, a worker or a driver logs `Failed to connect to GCS within 60 seconds. GCS may have been killed.` Yet on the
head, the same GCS process continues to write `gcs_server.out`. The GCS marks the node dead because the health checks of
that node time out (`Deadline Exceeded`).

A driver, `ray start` or a `ray` command prints at its start `Failed to connect to GCS at address … within 5 seconds.`,
then `Failed to get cluster ID from GCS server: TimedOut`. `ray symmetric-run` prints `Error: Timed out waiting for head
node to start.` on a worker node, and `Waiting for nodes to start... 1/2 nodes started` again and again on the head.

At its start, a driver can also fail with `ConnectionError: Failed to connect to Ray cluster at 10.0.0.9:6379`,
`RuntimeError: Failed to connect to GCS. Last connection error: …`, and `ConnectionError: Could not read 'session_name'
from GCS. Did GCS start successfully?`. On a head, `RuntimeError: Failed to start GCS.` means that the new GCS ended or
did not answer.

## Why
Raylets, workers and drivers exit when they have not reached the GCS for `RAY_gcs_rpc_server_reconnect_timeout_s` (60
s). If only one node or driver lost the GCS, the cause is the network between that machine and the head: a firewall, a
VPN, a changed address, a lost link. If even the raylet on the head lost the GCS, the network is not the cause: the GCS
was paused (no CPU left on the head, swapping, a paused machine) or answered too slowly.

A driver that never reached the GCS often has a wrong address. An address of `:6379` has no host: the shell variable
that should have held it was empty. The GCS listens on port 6379; 8265 is the port of the dashboard, and 10001 that of
Ray Client. If TLS is on for one side only, or a certificate does not contain the address, gRPC prints `Handshake failed
with fatal error SSL_ERROR_SSL: …WRONG_VERSION_NUMBER` or `No match found for server name: 127.0.0.1`. If the program
gives no address, Ray takes it from `RAY_ADDRESS` or from `/tmp/ray/ray_current_cluster`, and may find a cluster that
has ended. Otherwise the head has not started yet, or a firewall blocks the connection.

## Confirm
- Check which nodes lost the GCS. If only some did, the network is the cause; if all did at the same time, the cause is
  on the head.
- From that node or driver, `nc -vz HEAD 6379` fails if the network blocks the connection. `ray health-check --address
  HEAD:6379` fails if the GCS does not answer.
- If the head is the cause, its load was high or its memory low at that time, or `Event stats:` in `gcs_server.out`
  shows queueing times of many seconds.

## Fix
Fix the network, or keep the head's CPU and memory for Ray's own processes (`--num-cpus=0`). Correct a wrong address.
Remove a stale one: `unset RAY_ADDRESS`, or `rm /tmp/ray/ray_current_cluster`. To bridge short interruptions, raise the
timeout (default: 60 s) for `ray start` on every node and for drivers:

    export RAY_gcs_rpc_server_reconnect_timeout_s=300

## Not this when
- the log of the GCS ends (`gcs-died`).
- the driver connected in the end: Ray repeats each attempt.
- the address begins with `ray://`: it is that of a Ray Client server (`ray-client-disconnected`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import (
    CORE,
    DRIVER,
    GCS,
    JOB_FINISHED,
    JOB_STARTED,
    NODE_DEAD,
    NODE_REGISTERED,
    RAY_EXCEPTION,
    RAYLET,
    RAYLET_STARTED,
)
from raydoctor.cluster import hosts
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, cut, duration
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import cluster
from raydoctor.rules.shared.cluster import (
    AGENT_FAILED,
    GCS_DOC,
    GCS_LOST,
    GCS_LOST_CHECK,
    GCS_LOST_CUT,
    restore,
)
from raydoctor.rules.shared.connect import (
    CONNECTED,
    CONNECTING,
    INIT_DOC,
    STARTED_LOCAL,
    connected_to,
)

AWAY = (
    Signal(
        "gcs.away",
        "GCS has been unavailable for more than ",
        r"^GCS has been unavailable for more than (?P<seconds>\d+) seconds",
        (*RAYLET, *CORE),
        "GCS has been unavailable for more than 60 seconds",
    ),
    Signal(
        "gcs.away",
        "Timed out while waiting for GCS to become available",
        r"^Timed out while waiting for GCS to become available",
        (*RAYLET, *CORE),
        "Timed out while waiting for GCS to become available.",
    ),
)

NO_ANSWER = Signal(
    "gcs.no_answer",
    "Failed to connect to GCS at address ",
    r"^Failed to connect to GCS at address (?P<host>\S{0,300}?):(?P<port>\d+) within (?P<seconds>\d+) seconds",
    DRIVER,
    "Failed to connect to GCS at address 10.0.0.9:6379 within 5 seconds.",
    fold=("host", "port"),
)
"""Only the first attempt: `GcsRpcClient` then tries again."""
NO_CLUSTER_ID = Signal(
    "gcs.no_cluster_id",
    "Failed to get cluster ID from GCS server: ",
    r"^Failed to get cluster ID from GCS server: (?P<status>TimedOut|RpcError)",
    DRIVER,
    "Failed to get cluster ID from GCS server: TimedOut: Timed out while waiting for GCS to become available.",
    symptom=True,
)
_ON_WORKER = Signal(
    "symmetric.worker",
    "On worker node. Connecting to Ray cluster",
    r"^On worker node\. Connecting to Ray cluster(?: at (?P<host>\S{1,300}?):(?P<port>\d+))?\.\.\.",
    DRIVER,
    "On worker node. Connecting to Ray cluster at 10.0.0.9:6379...",
)
_NO_HEAD = Signal(
    "symmetric.no_head",
    "Timed out waiting for head node to start.",
    r"^(?P<error>Error: )?Timed out waiting for head node to start\.",
    DRIVER,
    "Error: Timed out waiting for head node to start.",
    symptom=True,
)
_POD_WAITS = Signal(
    "gcs.pod_waits",
    "aiting for GCS to be ready.",
    r"^(?:.*\D)?(?P<seconds>\d{1,9}) seconds elapsed: (?:Still w|W)aiting for GCS to be ready\.",
    DRIVER,
    "128 seconds elapsed: Still waiting for GCS to be ready. For troubleshooting, refer to the FAQ",
    fold=("seconds",),
)
_POD_READY = Signal(
    "gcs.pod_ready", "GCS is ready.", r"^GCS is ready\.", DRIVER, "GCS is ready."
)  # fmt: skip
_NO_COMMAND = Signal(
    "gcs.no_command",
    "ray: command not found",
    r"\bray: command not found",
    DRIVER,
    "/bin/bash: line 11: ray: command not found",
)
"""What KubeRay's init container of a worker pod prints (`common/pod.go`, 0.5 to 1.4)."""
_LONG_WAIT = 60
"""Seconds after which a head that is only starting should answer."""

_WAITS_FOR_NODES = Signal(
    "symmetric.waits",
    "Waiting for nodes to start... ",
    r"^Waiting for nodes to start\.\.\. (?P<joined>\d+)/(?P<nodes>\d+) nodes started",
    DRIVER,
    "Waiting for nodes to start... 1/2 nodes started",
    fold=("joined",),
)
"""The head of `ray symmetric-run`, every 5 s (`scripts/symmetric_run.py`, 2.49 to 2.60)."""
_NOT_ALL = Signal(
    "symmetric.not_all",
    "Timed out waiting for other nodes to start.",
    r"^Error: Timed out waiting for other nodes to start\.",
    DRIVER,
    "Error: Timed out waiting for other nodes to start.",
    symptom=True,
)
_RUNS = Signal(
    "symmetric.runs",
    "Running command on head node: ",
    r"^Running command on head node: ",
    DRIVER,
    "Running command on head node: ['python', 'train.py']",
)
_PATIENCE = 3
"""Reports of a wait for nodes (15 s) after which it counts: nodes need some seconds to start."""
_REFUSED = pattern(
    r"(?:^|: )failed to connect to all addresses(?:; last error: \w+: (?:ipv[46]:)?(?P<host>[^\s;]{1,300}?):(?P<port>\d{1,20}): )?"
)
_RPC_ERROR = Signal(
    "gcs.rpc_error",
    "RPC Error message: ",
    r"^RuntimeError: b['\"]RPC Error message: (?P<status>Deadline Exceeded|failed to connect to all addresses|Socket closed)",
    DRIVER,
    "RuntimeError: b'RPC Error message: Deadline Exceeded; RPC Error details: '",
)
"""A failed query of the GCS when a driver connects (`global_state_accessor.pxi`)."""
_UNAVAILABLE = Signal(
    "gcs.grpc_unavailable",
    "_InactiveRpcError of RPC that terminated with:",
    r"^grpc\._channel\._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\s{1,9}status = StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED)\b",
    DRIVER,
    "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n"
    '\tdetails = "failed to connect to all addresses"',
    extent="record",
)
"""What gRPC raises in Ray's client of the GCS up to 2.3; other clients raise it as well."""
_OLD_CLIENT = (
    "/ray/_private/gcs_utils.py",
    "/ray/_private/gcs_pubsub.py",
    "\\ray\\_private\\gcs_utils.py",
)
_UNANSWERED = Signal(
    "gcs.unanswered",
    "Unable to connect to GCS ",
    r"^Unable to connect to GCS (?:\(ray head\) )?at (?P<host>\S{0,300}?):(?P<port>\d{1,5})\. Check that \(1\) Ray ",
    DRIVER,
    "Unable to connect to GCS (ray head) at 10.0.0.9:6379. Check that (1) Ray with matching version started successfully",
    fold=("host", "port"),
)
"""A driver or node that starts prints it for each of its attempts (`_private/utils.py`, 2.0 to 2.60)."""
_GAVE_UP = (
    Signal(
        "gcs.gave_up",
        "Failed to connect to Ray cluster at ",
        r"^ConnectionError: Failed to connect to Ray cluster at (?P<host>\S{0,300}?):(?P<port>\d{1,5})$",
        DRIVER,
        "ConnectionError: Failed to connect to Ray cluster at 10.0.0.9:6379",
        fold=("host", "port"),
    ),
    Signal(
        "gcs.gave_up",
        "RpcError: failed to connect to all addresses; last error: ",
        r"^(?:[\w.]{1,60}\.)?RpcError: failed to connect to all addresses; last error: \w{1,20}: (?:ipv[46]:)?"
        r"(?P<host>[^\s;]{1,300}?):(?P<port>\d{1,5}): ",
        DRIVER,
        "ray._raylet.RpcError: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:6379: Failed to connect to remote "
        "host: Connection refused",
        fold=("host", "port"),
    ),
    Signal(
        "gcs.gave_up",
        "Unable to connect to Redis at ",
        r"^(?:RuntimeError|ConnectionError): Unable to connect to Redis at (?P<host>\S{0,300}?):(?P<port>\d{1,5})\.",
        DRIVER,
        "RuntimeError: Unable to connect to Redis at 10.0.0.9:6379. Check that this address and port are accessible.",
        fold=("host", "port"),
    ),
    Signal(
        "gcs.gave_up",
        "Failed to connect to GCS. ",
        r"^RuntimeError: Failed to connect to GCS\. +Last ",
        DRIVER,
        "RuntimeError: Failed to connect to GCS. Last connection error: Traceback (most recent call last):",
    ),
)
"""The exceptions of `ray.init` and `ray start` (`_private/worker.py` and `node.py`, 2.9 to 2.60; of a client of the GCS; and up
to 1.10, whose GCS was a Redis)."""
_NOT_STARTED = (
    Signal(
        "gcs.head_not_started",
        "Failed to start GCS. ",
        r"^RuntimeError: Failed to start GCS\. +Last ",
        DRIVER,
        "RuntimeError: Failed to start GCS.  Last 0 lines of error files:",
    ),
    Signal(
        "gcs.head_not_started",
        "/gcs_server_port_",
        r"^RuntimeError: Timed out waiting for file \S{1,400}/gcs_server_port_\w{1,80}",
        DRIVER,
        "RuntimeError: Timed out waiting for file /tmp/ray/session_1/gcs_server_port_4508d",
    ),
)
_NO_VALUE = Signal(
    "gcs.no_value",
    " from GCS. Did GCS start successfully?",
    r"^ConnectionError: Could not (?:read|list) '(?P<key>[^'\n]{1,80})' from GCS\. Did GCS start successfully\?",
    DRIVER,
    "ConnectionError: Could not read 'session_name' from GCS. Did GCS start successfully?",
    fold=("key",),
)
_OF_VERSIONS = ("temp_dir", "session_dir")
"""Keys that the GCS no longer stores since 2.55: beside a cluster of known version, `version-mismatch` reports them."""
_NO_REPLY = "Timed out while waiting for GCS to become available"
_NO_ACCESSOR = "Failed to connect to GCS. Please check if the GCS server is running"
"""The state API in a driver (`_private/state.py`)."""

_TLS = (
    Signal(
        "gcs.tls", "Handshake failed with ",
        r"(?:^|\] ?|: )Handshake failed with (?:fatal )?error (?P<why>SSL_ERROR_SSL[^\n]{0,300})", (*DRIVER, *GCS, *RAYLET, *CORE),
        "E0217 05:57:22.475672451      20 ssl_transport_security.cc:1506] Handshake failed with fatal error SSL_ERROR_SSL: "
        "error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER.",
        with_header=True,
    ),
    Signal(
        "gcs.tls", "No match found for server name: ",
        r"No match found for server name: (?P<name>[\w.:-]{1,253}?)\.?$", (*DRIVER, *GCS, *RAYLET, *CORE),
        "E0901 00:56:32.714599637    3179 ssl_transport_security.cc:1910] No match found for server name: 127.0.0.1.",
    ),
    Signal(
        "gcs.tls", "is not in peer certificate", r"Peer name (?P<name>[\w.:-]{1,253}) is not in peer certificate", DRIVER,
        "RpcError: failed to connect to all addresses; last error: UNKNOWN: Peer name 10.0.0.9 is not in peer certificate",
    ),
    Signal(
        "gcs.tls", "Ssl handshake failed", r"\bSsl handshake failed(?:: (?P<why>SSL_ERROR_SSL[^\n]{0,300}))?", DRIVER,
        "RpcError: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:6379: Ssl handshake failed: SSL_ERROR_SSL: "
        "error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED",
    ),
)  # fmt: skip
"""gRPC's own lines (`ssl_transport_security.cc`, 1.37 to 1.70) and its words within an error: other clients print them as well."""
_NOT_SENT = Signal(
    "gcs.not_sent", "Failed to send request to gcs",
    r"\bFailed to send request to gcs, reconnecting\.", (*DRIVER, "monitor", "dashboard"),
    "Failed to send request to gcs, reconnecting. Error <_InactiveRpcError of RPC that terminated with:",
)  # fmt: skip
"""`_private/gcs_utils.py`, 1.11 to 2.3."""
_NO_GCS = Signal(
    "gcs.daemon_no_answer", NO_ANSWER.find, NO_ANSWER.pattern, (*GCS, *RAYLET, *CORE), NO_ANSWER.sample, fold=NO_ANSWER.fold,
)  # fmt: skip
"""The same in a log of a daemon, and of the GCS itself, which connects to its own port."""
_NOT_TLS = pattern(r"WRONG_VERSION_NUMBER|HTTP_REQUEST|UNEXPECTED_MESSAGE")
_TLS_DOC = "https://docs.ray.io/en/latest/ray-core/configure.html#tls-authentication"

_AROUND = 60.0
"""Seconds before and after the loss in which other daemons' errors belong to it."""


@rule(
    tier="cause",
    severity="error",
    rank=6,
    explains=("gcs-away", "gcs-lost", "job", "node", "raylet"),
    caused_by=("daemon", "gcs", "host"),
    looks_for=(
        *(GCS_LOST, GCS_LOST_CHECK, GCS_LOST_CUT, *AWAY, AGENT_FAILED, RAYLET_STARTED, *NODE_REGISTERED, *NODE_DEAD),
        *(*JOB_STARTED, *JOB_FINISHED),
        *(_WAITS_FOR_NODES, _NOT_ALL, _RUNS),
        *(*_GAVE_UP, *_NOT_STARTED, _NO_VALUE),
        *(NO_ANSWER, NO_CLUSTER_ID, _RPC_ERROR, _UNAVAILABLE, _UNANSWERED, _ON_WORKER, _NO_HEAD, _POD_WAITS, _POD_READY, _NO_COMMAND, CONNECTED, CONNECTING, STARTED_LOCAL, RAY_EXCEPTION),
        *(*_TLS, _NOT_SENT, _NO_GCS),
    ),
)  # fmt: skip
def gcs_unreachable(case: Case) -> Iterator[Finding]:
    """One finding for processes that lost the GCS, or for an interruption; one per address that never answered."""
    lost = [e for e in case.of(GCS_LOST.kind) if e.at is None or e.at < case.stopped_at()]
    alive = cluster.gcs_lived_on(case, lost)
    if alive:
        yield _lost(case, lost, alive)
    away = [e for e in case.of(AWAY[0].kind) if not case.torn_down(e)]
    if away and not case.of(GCS_LOST.kind) and "gcs" not in case.ledger.stops:
        yield _interrupted(case, away)
    refusals = list(_without_tls(case))
    yield from refusals or _never(case)
    if not (lost or away or refusals):
        yield from _refused(case)
        yield from _head_not_started(case)
    yield from _without_nodes(case)
    by_file = evidence.grouped(case.of(_POD_WAITS.kind), lambda e: e.source.path)
    for events in by_file.values():
        last = max(events, key=lambda e: int(e["seconds"]))
        ready = any(e.source is last.source for e in case.of(_POD_READY.kind))
        if int(last["seconds"]) >= _LONG_WAIT and not ready:
            yield _pod_waits(case, events, last)


def _pod_waits(case: Case, events: list[Event], last: Event) -> Finding:
    """KubeRay's init container, which waits without end."""
    missing = case.of(_NO_COMMAND.kind)
    why = "its image has no ray command" if missing else "no GCS answered at the head's service"
    return Finding(
        f"A worker pod waited {last['seconds']} s for the GCS and did not start: {why}",
        (
            *(Link(e, "the container cannot run `ray health-check`") for e in missing[:1]),
            Link(last, "the pod's init container is still waiting"),
        ),
        explains=(Entity("gcs-away", "host"),),
        caused_by=() if missing else (Entity("gcs", "gcs"), hosts.entity("head")),
        remedies=(
            Remedy(
                "Use an image with Ray in the worker group"
                if missing
                else "Read why the head's GCS does not run or does not answer",
                (
                    "kubectl get raycluster,pods   # the image of each group, the state of the head",
                    "kubectl logs HEAD_POD -c ray-head; kubectl describe pod HEAD_POD   # Redis, memory, ports",
                ),
                doc=GCS_DOC,
            ),
        ),
        covers=(*events, *missing),
    )


def _lost(case: Case, lost: list[Event], alive: Event) -> Finding:
    waited = int(lost[0]["seconds"] or 60)
    nodes = _nodes(case, lost)
    stalled = any(cluster.is_drivers(case, node) for node in nodes)
    names = evidence.join_names(case.ledger.node_ips.get(n, evidence.short(n)) for n in nodes)
    exceptions = cluster.lost_driver_errors(case)
    since = (lost[0].at or 0) - waited
    exits = [e for e in case.exits if e.node in ("", *nodes) and (e.at is None or e.at >= since)]
    where = f"{'nodes' if len(nodes) > 1 else 'node'} {names}" if nodes else "a driver"
    silent = cluster.gcs_silence(case, lost, alive)
    log = f" and wrote no log for {duration(silent[1] - silent[0])}" if silent else ""
    return Finding(
        f"The GCS kept running but did not answer {where} within the limit of {waited} s{log}: {_why(case, stalled)}",
        tuple(_links(lost, alive, waited, exceptions)),
        explains=(
            *(Entity(kind, node) for node in nodes for kind in ("raylet", "node")),
            *evidence.exit_entities(exits),
            *_jobs(case, lost, stalled),
            Entity("gcs-lost", nodes[0] if nodes else ""),
        ),
        subjects=tuple(
            Subject("node", n, case.ledger.node_ips.get(n), None, n) for n in nodes[:10]
        ),
        count=max(1, len(nodes)),
        severity="critical" if stalled or not nodes else "error",
        remedies=tuple(_remedies(case, waited, stalled)),
        covers=(
            *case.of(GCS_LOST.kind, AWAY[0].kind, AGENT_FAILED.kind),
            *case.of("raylet.seen_dead", "node.health_failed"),
            *_observers(case, lost[0], waited),
            *exceptions,
            *evidence.exit_events(exits),
        ),
    )  # fmt: skip


def _why(case: Case, stalled: bool) -> str:
    """The raylet on the head decides: no network is between it and the GCS."""
    if stalled:
        return "it was paused or overloaded"
    head = next((e["node"] for e in case.of("node.registered")), "")
    if head in case.ledger.raylet_files.values():
        return "the cause is the network, because the head's own raylet did not lose the GCS"
    return "the cause is the network or a paused GCS (the head's raylet.out shows which)"


def _observers(case: Case, first: Event, waited: int) -> list[Event]:
    """Errors of the dashboard and other daemons about a GCS that does not answer."""
    roles = ("dashboard", "dashboard-agent", "monitor", "log-monitor", "runtime-env-agent")
    around = case.near(first, "log.error", before=waited + _AROUND, after=_AROUND)
    return [e for e in around if e.source.role in roles]


def _nodes(case: Case, events: list[Event]) -> list[str]:
    """Nodes whose raylets or workers report it."""
    found = (case.node_of(e.source) for e in events)
    return list(dict.fromkeys(node for node in found if node))


def _jobs(case: Case, lost: list[Event], stalled: bool) -> Iterator[Entity]:
    """Jobs whose driver lost the GCS, or all jobs if the GCS was paused."""
    drivers = {e.source.pid for e in lost if e.source.role == "core-driver"}
    for job in case.ledger.jobs.values():
        over = job.ended is not None and job.ended < (lost[0].at or 0)
        if not over and (stalled or job.driver_pid in drivers):
            yield Entity("job", job.id)


def _links(
    lost: list[Event], alive: Event, waited: int, exceptions: tuple[Event, ...]
) -> Iterator[Link]:  # fmt: skip
    by_role: dict[str, Event] = {}
    for event in lost:
        by_role.setdefault(event.source.role.partition("-")[0], event)
    names = {"raylet": "a raylet", "core": "a worker or driver", "driver": "the driver"}
    for role, event in list(by_role.items())[:2]:
        yield Link(
            event,
            f"{names.get(role, 'a process')} has not reached the GCS for {waited} s, and exits",
        )
    at = lost[0].at
    later = "" if at is None or alive.at is None else f", here {duration(alive.at - at)} later"
    yield Link(
        alive, f"the GCS (pid {alive.pid}) continues to write its log{later}: it did not die"
    )
    for event in exceptions[:1]:
        yield Link(event, f"the driver got {event['type']}")


def _interrupted(case: Case, away: list[Event]) -> Finding:
    seconds = next((int(e["seconds"]) for e in away if e["seconds"]), 0)
    nodes = _nodes(case, away)
    names = evidence.join_names(case.ledger.node_ips.get(n, evidence.short(n)) for n in nodes)
    after = f" for {seconds} s" if seconds else ""
    return Finding(
        f"The GCS was unreachable{f' from node {names}' if names else ''}{after}, and answered again before any process exited",
        (Link(away[0], "the connection to the GCS is down"),),
        explains=(Entity("gcs-away", nodes[0] if nodes else ""),),
        subjects=tuple(Subject("node", n, case.ledger.node_ips.get(n), None, n) for n in nodes[:10]),
        count=evidence.total(away),
        severity="warning",
        remedies=tuple(_remedies(case, seconds or 60, False)),
        covers=tuple(away),
    )  # fmt: skip


def _never(case: Case) -> Iterator[Finding]:
    """Starting drivers and nodes that got no answer, by address, unless the same output shows a connection later."""
    found: dict[tuple[str, str], list[Event]] = {}
    for event in case.of(NO_CLUSTER_ID.kind, _NO_HEAD.kind):
        connected = case.of(CONNECTED.kind, STARTED_LOCAL.kind)
        asked = _asked(case, event)
        in_turn = event.kind == _NO_HEAD.kind and asked is not None
        is_rays = bool(event.level or event["error"]) or in_turn
        if is_rays and not any(
            e.source is event.source and e.offset > event.offset for e in connected
        ):
            found.setdefault((asked["host"], asked["port"]) if asked else ("", ""), []).append(
                event
            )
    for (host, port), events in found.items():
        yield _no_answer(case, host, port, events)
    for event in [] if found else case.of(NO_ANSWER.kind):
        if event.level and event.source.is_excerpt and _only_first(case, event):
            no_answer = _no_answer(case, event["host"], event["port"], [event])
            yield replace(no_answer, severity="warning")


def _without_tls(case: Case) -> Iterator[Finding]:
    """A connection to the GCS that fails because only one side uses TLS, or because a certificate is not valid."""
    asked = case.of(
        *(NO_ANSWER.kind, NO_CLUSTER_ID.kind, _NO_GCS.kind, _NOT_SENT.kind, _UNANSWERED.kind),
        *(_RPC_ERROR.kind, _GAVE_UP[0].kind, GCS_LOST.kind),
    )
    asked += [e for e in case.of(RAY_EXCEPTION.kind) if e["type"] in ("RpcError", "RaySystemError")]
    sources = {e.source.path for e in asked}
    events = [e for e in case.of(_TLS[0].kind) if e.source.path in sources]
    answered = [
        e
        for e in case.of(CONNECTED.kind, STARTED_LOCAL.kind)
        if events and e.source is events[-1].source and e.line > events[-1].line
    ]
    if not events or answered:
        return
    name = next((e["name"] for e in events if e["name"]), "")
    said = next((e["why"] for e in events if e["why"]), "")
    if name:
        why = f"the certificate of the server does not contain {name}"
    elif _NOT_TLS.search(said):
        why = "only one of the two sides uses TLS"
    else:
        why = f"the TLS handshake fails{f' ({cut(clause(said), 120)})' if said else ''}"
    yield Finding(
        f"A process of Ray could not connect to the GCS: {why}",
        (Link(events[0], "gRPC refuses the connection"), Link(asked[0], "a process of Ray does not reach the GCS")),
        explains=(Entity("gcs-away", "tls"),),
        count=1,
        remedies=(
            Remedy(
                "Set the four variables of TLS alike for ray start on every node, and for every driver and client",
                ("env | grep TLS   # RAY_USE_TLS=1, RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY, RAY_TLS_CA_CERT",),
                doc=_TLS_DOC,
            ),
            Remedy(
                "Issue the certificate of each node for every address by which Ray calls it: its own IP address, its name and 127.0.0.1",
                ('openssl x509 -in "$RAY_TLS_SERVER_CERT" -noout -ext subjectAltName -enddate',),
                doc=_TLS_DOC,
            ),
        ),
        covers=(*events, *asked, *(e for e in case.of("log.error", "log.failure") if e.source.path in sources and _is_grpcs(e))),
    )  # fmt: skip


def _is_grpcs(event: Event) -> bool:
    return "ssl_transport_security.cc" in event.text or "connect to GCS at" in event.text


def _only_first(case: Case, event: Event) -> bool:
    """Whether an excerpt shows nothing of the driver's later attempts to connect."""
    later = case.of(CONNECTED.kind, STARTED_LOCAL.kind, RAY_EXCEPTION.kind)
    return not evidence.later_output(case, event) and not any(
        e.source is event.source and e.offset > event.offset for e in later
    )


def _refused(case: Case) -> Iterator[Finding]:
    """Exceptions of a GCS client, by address, in outputs without any other record of the attempt."""
    reported = {
        e.source
        for e in case.of(NO_CLUSTER_ID.kind, _NO_HEAD.kind, CONNECTED.kind, STARTED_LOCAL.kind)
    }
    found: dict[tuple[str, str], list[Event]] = {}
    for event in case.of(RAY_EXCEPTION.kind):
        if event.source in reported or event["type"] not in ("RpcError", "RaySystemError"):
            continue
        text = event["what"].partition("\n")[0]
        match = _REFUSED.search(text)
        is_lost = _LOST.search(text) and _is_in_gcs_client(case, event)
        if match or is_lost or _NO_REPLY in text or _NO_ACCESSOR in text:
            address = (match["host"] or "", match["port"] or "") if match else ("", "")
            found.setdefault(address, []).append(event)
    for event in case.of(_RPC_ERROR.kind, _UNANSWERED.kind):
        is_logged = event.level or event.kind == _RPC_ERROR.kind
        if is_logged and event.source not in reported and not evidence.goes_on(case, event):
            found.setdefault((event["host"], event["port"]), []).append(event)
    for event in filter(partial(_is_end_of_old_client, case), case.of(_UNAVAILABLE.kind)):
        found.setdefault(("", ""), []).append(event)
    # The last exception of a chain: the GCS may have answered, with a refusal.
    replied = {
        e.source
        for e in case.of(RAY_EXCEPTION.kind)
        if e["type"] not in ("RpcError", "RaySystemError")
    }
    for event in case.of(_GAVE_UP[0].kind):
        if event.source not in reported | replied and not evidence.goes_on(case, event):
            found.setdefault((event["host"], event["port"]), []).append(event)
    if len(found) == 2 and (unnamed := found.pop(("", ""), None)):
        next(iter(found.values())).extend(unnamed)
    for (host, port), events in found.items():
        yield _no_answer(case, host, port, events)
    answered = {e.source for e in case.of(CONNECTED.kind)}
    versions = case.version is not None
    missing = [
        event
        for event in case.of(_NO_VALUE.kind)
        if event.source not in answered | {e.source for each in found.values() for e in each}
        and not (versions and event["key"] in _OF_VERSIONS)
        and not evidence.goes_on(case, event)
    ]
    if missing:
        yield _no_value(case, missing)


_LOST = pattern(
    r"Connection reset by peer|Socket closed|Connection refused|failed to connect|Broken pipe"
)
"""gRPC's words for a connection that ended. Beside an answer of the GCS there are none of these."""
_GCS_CLIENT = (
    "ray._raylet._GcsSubscriber.",
    "ray._raylet.GcsClient.",
    "ray._raylet._GcsPublisher.",
)


def _is_in_gcs_client(case: Case, event: Event) -> bool:
    """Whether Ray's client of the GCS raised an exception."""
    return _is_of(case, event, _GCS_CLIENT)


def _is_end_of_old_client(case: Case, event: Event) -> bool:
    return _is_of(case, event, _OLD_CLIENT) and not evidence.goes_on(case, event)


def _is_of(case: Case, event: Event, frames: tuple[str, ...]) -> bool:
    """Whether an exception is the end of a traceback that names one of these places."""
    return any(
        e.source is event.source
        and e.line <= event.line <= e.line + e.text.count("\n")
        and any(frame in e.text for frame in frames)
        for e in case.of("log.traceback")
    )


def _no_value(case: Case, events: list[Event]) -> Finding:
    """A driver whose GCS did not answer a query, or lacks what the driver needs."""
    first = events[0]
    joined = connected_to(case, first)
    at = f" at {joined['address']}" if joined else ""
    why = (
        "it did not answer, or its Ray version is another one"
        if first["key"] in _OF_VERSIONS
        else "it did not answer, or it was still starting"
    )
    return Finding(
        f"The driver could not read {first['key']} from the GCS{at}: {why}",
        (
            *(Link(e, "the driver connects to this address") for e in (joined,) if e),
            Link(first, "the driver stops after its attempts to read the value"),
        ),
        explains=(Entity("gcs-away", f"value {at}"),),
        caused_by=(Entity("gcs", "gcs"), Entity("daemon", "gcs_server"), hosts.entity("head")),
        count=evidence.total(events),
        remedies=(
            Remedy(
                "Compare the versions of Ray on both machines, and check that the GCS answers",
                (
                    "ray --version   # where the driver runs and on the head",
                    paste.shell("ray health-check --address {head:address}:6379", head=joined["ip"] if joined else ""),
                ),
                doc=GCS_DOC,
            ),
            Remedy(
                "Exclude the head from an HTTP proxy: gRPC uses it as well",
                ("env | grep -i _proxy; export no_proxy=HEAD,127.0.0.1,localhost",),
            ),
        ),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
    )  # fmt: skip


def _is_of_ray(case: Case, event: Event) -> bool:
    """Whether Ray raised it: a program that waits for the same file may raise the same text."""
    below = [e for e in case.of("log.traceback") if event.message in e.text]
    return _NOT_STARTED[0].find in event.message or any("/ray/_private/" in e.text for e in below)


def _head_not_started(case: Case) -> Iterator[Finding]:
    """A head whose own GCS ended or did not answer, by output."""
    raised = [e for e in case.of(_NOT_STARTED[0].kind) if _is_of_ray(case, e)]
    for events in evidence.grouped(raised, lambda e: e.source).values():
        first = events[0]
        if any(
            e.source is first.source and e.line > first.line for e in case.of(STARTED_LOCAL.kind)
        ):
            continue
        yield Finding(
            "The GCS of the new cluster ended or did not answer at its start, so Ray did not start",
            (Link(first, "Ray waited for the GCS that it had started"),),
            explains=(Entity("gcs-away", "own"),),
            caused_by=(Entity("gcs", "gcs"), Entity("daemon", "gcs_server")),
            count=1,
            severity="warning" if evidence.goes_on(case, events[-1]) else None,
            remedies=(
                Remedy(
                    "Read the last lines of the GCS, which state why it ended",
                    (
                        "tail -n 20 /tmp/ray/session_latest/logs/gcs_server.err /tmp/ray/session_latest/logs/gcs_server.out   # on the head",
                        "df -h /tmp; ss -ltnp 'sport = :6379'; env | grep -i -e ^ray -e _proxy   # disk, port, settings, proxy",
                    ),
                    doc=GCS_DOC,
                    finds_cause=True,
                ),
            ),
            covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
        )  # fmt: skip


def _without_nodes(case: Case) -> Iterator[Finding]:
    """The head of `ray symmetric-run`, if it gave up its wait for nodes or was still waiting at the end."""
    reports = evidence.grouped(case.of(_WAITS_FOR_NODES.kind, _NOT_ALL.kind), lambda e: e.source)
    for source, events in reports.items():
        waits = [e for e in events if e.kind == _WAITS_FOR_NODES.kind]
        gave_up = [e for e in events if e.kind == _NOT_ALL.kind]
        started = any(e.source is source for e in case.of(_RUNS.kind))
        if not started and (gave_up or evidence.total(waits) >= _PATIENCE):
            yield _nodes_missing(case, waits, gave_up)


def _nodes_missing(case: Case, waits: list[Event], gave_up: list[Event]) -> Finding:
    last = waits[-1] if waits else None
    joined = connected_to(case, (gave_up or waits)[0])
    at = f" at {joined['address']}" if joined else ""
    how_many = (
        f"only {last['joined']} of {last['nodes']} nodes joined" if last else "too few nodes joined"
    )
    end = "and it gave up" if gave_up else "and it was still waiting when the output ended"
    host = joined["ip"] if joined else ""
    return Finding(
        f"The head of ray symmetric-run{at} waited for its nodes: {how_many} (--min-nodes), {end}",
        (
            *(Link(e, f"{e['joined']} of {e['nodes']} nodes have joined") for e in waits[-1:]),
            *(Link(e, "the head stops waiting") for e in gave_up[:1]),
        ),
        explains=(Entity("gcs-away", f"{host} nodes"),),
        count=1,
        remedies=(
            Remedy(
                "Read the output of ray symmetric-run on the nodes that are missing, and check that they reach the head",
                (
                    paste.shell("nc -vz {head:address} 6379   # from such a node", head=host),
                    "ray --version; python --version   # equal on all nodes?",
                    "ps aux | grep -e raylet -e symmetric-run   # was it started there at all?",
                ),
                doc=GCS_DOC,
            ),
            Remedy(
                "Wait longer than 30 s for nodes that start slowly",
                ("RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=180 ray symmetric-run   # plus your other options. On every node",),
                since=(2, 50),
            ),
        ),
        covers=(*waits, *gave_up),
    )  # fmt: skip


def _asked(case: Case, event: Event) -> Event | None:
    """The last record before it in the same output that names the address."""
    return evidence.last_before(case, event, NO_ANSWER.kind, _ON_WORKER.kind)


def _no_answer(case: Case, host: str, port: str, events: list[Event]) -> Finding:
    first = events[0]
    asked = _asked(case, first)
    joined = connected_to(case, first)
    errors = [
        e
        for e in case.of(RAY_EXCEPTION.kind)
        if e.source is first.source and ("waiting for GCS" in e["what"] or e in events)
    ]
    tried = (*case.of(NO_ANSWER.kind), *case.of(_ON_WORKER.kind))
    symmetric = first.kind == _NO_HEAD.kind
    subject = "The worker node of ray symmetric-run" if symmetric else "The driver or command"
    subject = "A process of Ray" if first.kind == RAY_EXCEPTION.kind else subject
    address = f"{host}:{port}" if port else "its address"
    ours = not case.ledger.node_ips or host in case.ledger.node_ips.values()
    return Finding(
        f"{subject} could not reach a GCS at {address}: {_reason(host, port, symmetric)}",
        (
            *(Link(e, "the driver connects to this address") for e in (joined,) if e),
            *(Link(e, f"no connection to {address}" if e.kind == NO_ANSWER.kind else "the node waits for the head") for e in (asked,) if e),
            *(Link(e, "the process stops waiting for the GCS") for e in (first,) if e not in errors),
            *(Link(e, f"the program got {e['type']}") for e in errors[:1]),
        ),
        explains=(Entity("gcs-away", address),),
        caused_by=(Entity("gcs", "gcs"), hosts.entity("head")) if ours else (),
        count=evidence.total(events),
        severity="error" if symmetric or errors or not evidence.goes_on(case, events[-1]) else "warning",
        remedies=tuple(_remedies_at_start(host, port, symmetric)),
        covers=(*events, *tried, *errors, *(e for e in case.of("log.traceback") if errors and e.source is first.source)),
    )  # fmt: skip


_LOCAL = ("127.0.0.1", "localhost")
_HEADS_HERE = (
    "pgrep -af gcs_server   # the heads on this machine: --gcs_server_port is the port of each",
)


def _reason(host: str, port: str, symmetric: bool) -> str:
    if port and not host:
        return "the address has no host, so the variable for it was empty"
    if port == "8265":
        return "8265 is the dashboard's port, and the GCS usually listens on 6379"
    if port == "10001":
        return "10001 is the port of Ray Client, and the GCS usually listens on 6379"
    if host in _LOCAL:
        return "no GCS listens on that port of this machine or container"
    if symmetric:
        return "the head had not started, or its port is not reachable from this node"
    return "the head has ended or not started, or its port is not reachable from this machine"


def _remedies_at_start(host: str, port: str, symmetric: bool) -> Iterator[Remedy]:
    if port and (not host or port in ("8265", "10001")):
        yield Remedy(
            "Use the address that ray start --head printed",
            (
                paste.shell("ray start --address={head:address}:6379", head=host),
                paste.shell("export RAY_ADDRESS={head:address}:6379", head=host),
            ),
            risk="disruptive",
            doc=INIT_DOC,
        )
        return
    yield Remedy(
        "Check from this machine whether a GCS listens at that address",
        (
            paste.shell("nc -vz {head:address} {port:number}", head=host, port=port or 6379),
            paste.shell("ray health-check --address {head:address}:{port:number}", head=host, port=port or 6379),
            *(_HEADS_HERE if host in _LOCAL else ()),
        ),
        doc=GCS_DOC,
    )  # fmt: skip
    if symmetric:
        yield Remedy(
            "Wait longer than 30 s for a head that starts slowly",
            (
                "RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=180 ray symmetric-run   # plus your other options. On every node",
            ),
            since=(2, 50),
        )
    else:
        yield Remedy(
            "If the cluster has ended, find out where its address comes from",
            ("echo $RAY_ADDRESS; cat /tmp/ray/ray_current_cluster   # where the driver runs",),
            doc=INIT_DOC,
        )
        yield Remedy(
            "Then remove the address there, and start a new cluster",
            (
                "unset RAY_ADDRESS",
                "rm /tmp/ray/ray_current_cluster   # or, if the address is from this file. ray start writes a new one",
            ),
            risk="disruptive",
            doc=INIT_DOC,
        )


_DEFAULT_WAIT = 60
"""`gcs_rpc_server_reconnect_timeout_s` (2.9 to 2.60)."""


def _remedies(case: Case, waited: int, stalled: bool) -> Iterator[Remedy]:
    registered = case.of("node.registered")
    head = registered[0]["ip"] if registered else ""
    if waited < _DEFAULT_WAIT:
        yield restore("RAY_gcs_rpc_server_reconnect_timeout_s", waited, _DEFAULT_WAIT)
    if stalled:
        yield Remedy(
            "Find out what kept the head busy at that time",
            (
                "uptime; vmstat 1 5; sudo dmesg -T | tail   # on the head: load, swapping, a pause of the machine",
            ),
            doc=GCS_DOC,
        )
        if len(case.ledger.node_ips) > 1:  # a head that is the only node must run the tasks
            yield Remedy(
                "Run no tasks on the head",
                (
                    "ray start --head --num-cpus=0   # plus your other options. KubeRay: rayStartParams: num-cpus: '0'",
                ),
                risk="disruptive",
                doc=GCS_DOC,
            )
    else:
        yield Remedy(
            "Find what interrupts the network between that node and the head",
            (
                paste.shell(
                    "nc -vz {head:address} 6379   # from that node. 6379: the port of ray start on the head",
                    head=head,
                ),
                paste.shell("ray health-check --address {head:address}:6379", head=head),
                "ip -s link; sudo dmesg -T | grep -iE 'link|nic|carrier'",
            ),
            doc=GCS_DOC,
        )
    if waited < _DEFAULT_WAIT:
        return
    yield Remedy(
        f"Raise the timeout from {waited} s to {4 * waited} s to bridge short interruptions",
        (
            paste.shell(
                "export RAY_gcs_rpc_server_reconnect_timeout_s={seconds}   # on every node before ray start, and in the shell that starts the driver",
                seconds=4 * waited,
            ),
        ),
        risk="disruptive",
        doc=GCS_DOC,
    )


# ------------------------------------------------------------------ examples

_N, _H = "fd875f52489dc9a2f53c85a6f87fba13611a3340ab1d20bc262561bf", "a" * 56
_GCS_LOG = (
    f"[2026-11-21 07:40:00,000 I 13 13] (gcs_server) gcs_node_manager.cc:111: Registering new node. node_id={_H} "
    "node_name=10.0.0.2 node_address=10.0.0.2\n"
    f"[2026-11-21 07:40:01,000 I 13 13] (gcs_server) gcs_node_manager.cc:111: Registering new node. node_id={_N} "
    "node_name=10.0.0.3 node_address=10.0.0.3\n"
)
_GCS_LATER = "[2026-11-21 07:43:00,000 I 13 13] (gcs_server) gcs_job_manager.cc:80: Registering job. job_id=02000000 driver_pid=300\n"
_OTHER_PROCESS = _GCS_LATER.replace(" 13 13]", " 99 99]")


_CONNECTING = "2026-11-21 10:40:11,306\tINFO worker.py:1833 -- Connecting to existing Ray cluster at address: 10.0.0.9:6379...\n"
_LOGGED = (
    f"[2026-11-21 10:40:16,537 W 51 51] rpc_client.h:153: {NO_ANSWER.sample}\n"
    f"[2026-11-21 10:40:46,552 W 51 51] gcs_client.cc:205: {NO_CLUSTER_ID.sample}\n"
)
_RAISED = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 24, in <module>\n    ray.init("10.0.0.9:6379")\n'
    "ray.exceptions.RpcError: Timed out while waiting for GCS to become available.\n"
)


def _raylet(node: str, ip: str, lost: bool = True) -> str:
    started = (
        f"[2026-11-21 07:40:02,000 I 304 304] (raylet) node_manager.cc:355: Raylet of id, {node} started. Raylet consists of "
        f"node_manager and object_manager. node_manager address: {ip}:0 object_manager address: {ip}:46637 hostname: n\n"
    )
    gave_up = f"[2026-11-21 07:42:11,775 E 304 304] (raylet) rpc_client.h:204: {GCS_LOST.sample}\n"
    return started + (gave_up.replace("within 8 ", "within 60 ") if lost else "")


_FRAMES = 'Traceback (most recent call last):\n  File "/app/train.py", line 24, in <module>\n    ray.init("10.0.0.9:6379")\n'

_OF_THREAD = (
    "Exception in thread ray_print_logs:\nTraceback (most recent call last):\n"
    '  File "/venv/site-packages/ray/_private/worker.py", line 893, in print_logs\n    subscriber.subscribe()\n'
    '  File "python/ray/_raylet.pyx", line 3111, in ray._raylet._GcsSubscriber.subscribe\n'
    '  File "python/ray/_raylet.pyx", line 586, in ray._raylet.check_status\n'
    "ray.exceptions.RpcError: recvmsg:Connection reset by peer\n"
)
EXAMPLES: tuple[Example, ...] = (
    console(
        "only one side uses TLS",
        f"2026-11-21 05:57:20,001\tINFO monitor.py:206 -- Monitor: Started\n{_TLS[0].sample}\n"
        f"2026-11-21 05:57:22,480\tERROR gcs_utils.py:137 -- {_NOT_SENT.sample}\n",
        says=("only one of the two sides uses TLS", "RAY_USE_TLS"),
    ),
    console(
        "the GCS's own certificate lacks the loopback address",
        f"{_TLS[1].sample}\n[2026-11-21 00:56:37,713 E 3141 3141] (gcs_server) gcs_rpc_client.h:203: {NO_ANSWER.sample}\n{_TLS[1].sample}\n",
        says=("does not contain 127.0.0.1", "subjectAltName"),
    ),
    console(
        "the driver's error contains the reason",
        'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    ray.init()\n'
        f"ray.exceptions.{_TLS[3].sample}\n",
        says=("CERTIFICATE_VERIFY_FAILED",),
    ),
    console(
        "a program's own client of another server has trouble with TLS",
        f"{_TLS[0].sample}\n{_TLS[1].sample}\nloss 0.1\n",
    ),
    console(
        "`ray.init` gives up, and the exception names the address",
        f"{_CONNECTING}{_RAISED}\nThe above exception was the direct cause of the following exception:\n\n{_FRAMES}{_GAVE_UP[0].sample}\n",
        says=("10.0.0.9:6379", "nc -vz 10.0.0.9 6379"),
    ),
    console(
        "a worker node's ray start gives up",
        f'{_FRAMES}{_GAVE_UP[1].sample}\n  File "/venv/ray/_private/node.py", line 1000, in _init_gcs_client\n    connect()\n'
        "ray.exceptions.RpcError: Timed out\n\n",
        says=("could not reach a GCS",),
    ),
    console(
        "the state API finds no GCS",
        f"{_FRAMES}ray.exceptions.RaySystemError: System error: {_NO_ACCESSOR} and if this node can connect to the head node.\n",
        says=("could not reach a GCS",),
    ),
    console(
        "the GCS lacks the session's name",
        f"{_CONNECTING}{_FRAMES}{_NO_VALUE.sample}\n",
        says=("session_name", "10.0.0.9:6379", "no_proxy"),
    ),
    console(
        "the GCS of a new head does not start",
        f"{_FRAMES}{_NOT_STARTED[0].sample}\n\n.Please check /tmp/ray/session_1/logs/gcs_server.out for details. Last connection "
        "error: None\n",
        says=("did not start", "gcs_server.err"),
    ),
    console(
        "a program quotes the exceptions, and continues",
        f"retry after {_GAVE_UP[0].sample}\nretry after {_NO_VALUE.sample}\n{_GAVE_UP[0].sample}\n{_NO_VALUE.sample}\nloss 0.1\n",
    ),
    Example(
        "one node lost the head, which kept serving the others",
        {
            "head/logs/gcs_server.out": _GCS_LOG + _GCS_LATER,
            "head/logs/raylet.out": _raylet(_H, "10.0.0.2", lost=False),
            "worker/logs/raylet.out": _raylet(_N, "10.0.0.3"),
        },
        says=("10.0.0.3", "60 s", "network", "nc -vz 10.0.0.2 6379"),
        is_typical=True,
    ),
    Example(
        "even the raylet on the head lost the GCS: it was paused",
        {"logs/gcs_server.out": _GCS_LOG + _GCS_LATER, "logs/raylet.out": _raylet(_H, "10.0.0.2")},
        says=("paused", "Find out what kept the head busy", "vmstat"),
        severity="critical",
    ),
    Example(
        "all raylets lost the GCS, and other nodes can run the tasks",
        {
            "head/logs/gcs_server.out": _GCS_LOG + _GCS_LATER,
            "head/logs/raylet.out": _raylet(_H, "10.0.0.2"),
            "worker/logs/raylet.out": _raylet(_N, "10.0.0.3"),
        },
        says=("Find out what kept the head busy", "ray start --head --num-cpus=0"),
        severity="critical",
    ),
    Example(
        "the GCS answered again in time",
        {
            "logs/gcs_server.out": _GCS_LOG + _GCS_LATER,
            "logs/raylet.out": _raylet(_H, "10.0.0.2", lost=False)
            + f"[2026-11-21 07:42:11,775 W 304 304] (raylet) rpc_client.h:204: {AWAY[0].sample}\n",
        },
        says=("60 s",),
        severity="warning",
    ),
    Example(
        "another GCS was started later, because the first one died",
        {
            "logs/gcs_server.out": _GCS_LOG + _OTHER_PROCESS,
            "logs/raylet.out": _raylet(_H, "10.0.0.2"),
        },
        roots=("gcs-died",),
    ),
    console(
        "a driver connects to a cluster that has ended",
        _CONNECTING + _LOGGED + _RAISED,
        says=("10.0.0.9:6379", "nc -vz 10.0.0.9 6379", "ray_current_cluster"),
    ),
    console(
        "the variable for the head's address was empty",
        "Local node IP: 10.0.0.3\n" + _LOGGED.replace("10.0.0.9:", ":"),
        says=("has no host",),
    ),
    console(
        "the port of the dashboard",
        _LOGGED.replace(":6379", ":8265") + "retrying\n",
        says=("dashboard", "RAY_ADDRESS=10.0.0.9:6379"),
        severity="warning",
    ),
    console(
        "a worker node of symmetric-run",
        f"{_ON_WORKER.sample}\n{_NO_HEAD.sample}\n",
        says=("10.0.0.9:6379", "WAIT_TIMEOUT=180"),
    ),
    console(
        "the head of symmetric-run waits until a batch system ends it",
        f"Head node started.\n{_CONNECTING}" + f"{_WAITS_FOR_NODES.sample}\n" * 6 + "Terminated\n",
        says=("10.0.0.9:6379", "1 of 2 nodes", "still waiting", "nc -vz 10.0.0.9 6379"),
    ),
    console(
        "the head of symmetric-run gives up",
        f"{_WAITS_FOR_NODES.sample}\n{_NOT_ALL.sample}\n",
        says=("gave up",),
    ),
    Example(
        "the nodes of symmetric-run joined a little later, and another launcher waits for nodes",
        {
            "driver.log": f"{_WAITS_FOR_NODES.sample}\n" * 4 + f"{_RUNS.sample}\nepoch 1\n",
            "other/driver.log": "Waiting for nodes to start...\n" * 9,
        },
    ),
    console(
        "the supervisor of a job cannot reach the GCS, and the paste begins within its traceback (2.9)",
        '  File "python/ray/_raylet.pyx", line 2501, in ray._raylet.GcsClient._connect\n'
        "ray.exceptions.RaySystemError: System error: RPC Error message: failed to connect to all addresses; last error: UNKNOWN: "
        "ipv4:10.0.0.9:6379: tcp handshaker shutdown; RPC Error details: \n",
        says=("10.0.0.9:6379", "nc -vz 10.0.0.9 6379"),
    ),
    console(
        "the same in newer versions, with the address of the dashboard",
        f"{_RAISED.rpartition('ray.')[0]}ray.exceptions.RpcError: failed to connect to all addresses; last error: "
        "UNKNOWN: ipv4:10.0.0.9:8265: Failed to connect to remote host: Connection refused\n",
        says=("8265 is the dashboard's port",),
    ),
    console(
        "no address, and nothing else",
        "ray.exceptions.RpcError: Timed out while waiting for GCS to become available.\n",
        roots=("gcs-unreachable",),
    ),
    console(
        "the thread that prints the workers' output loses the GCS",
        _OF_THREAD,
        says=("GCS",),
    ),
    console(
        "an exception of that name and text in the program's own thread",
        _OF_THREAD.replace("ray._raylet._GcsSubscriber.", "app.Subscriber."),
    ),
    console(
        "gRPC of another program",
        "grpc.RpcError: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:6379: x\n"
        "grpc._channel._InactiveRpcError: failed to connect to all addresses\nnext\n",
    ),
    Example(
        "the GCS had crashed",
        {
            "driver.log": _CONNECTING + _LOGGED + _RAISED,
            "logs/gcs_server.out": "[2026-11-21 10:39:00,000 E 13 13] (gcs_server) logging.cc:440: *** SIGSEGV received at "
            "time=1795257540 on cpu 0 ***\n",
            "logs/raylet.out": "",
        },
        roots=("gcs-died",),
        consequences=("gcs-unreachable",),
    ),
    console(
        "the GCS answered a later attempt",
        _CONNECTING
        + _LOGGED
        + f"2026-11-21 10:40:50,000\tINFO worker.py:2012 -- {CONNECTED.sample}\nloss 0.1\n",
        logs=QUIET_LOGS,
    ),
    console(
        "only the first attempt failed, and a program and a task quote the words",
        f"{_LOGGED.splitlines()[0]}\nretry on: {NO_CLUSTER_ID.sample}\n(check pid=12) {_NO_HEAD.sample}\n"
        f"{NO_CLUSTER_ID.sample}\n",
        logs=QUIET_LOGS,
    ),
    console(
        "the init container of a worker pod waits for minutes",
        "\n".join(f"{n} seconds elapsed: Waiting for GCS to be ready." for n in range(1, 120, 7))
        + f"\n{_POD_WAITS.sample}\n",
        says=("waited 128 s", "no GCS answered"),
    ),
    console(
        "the image of the worker pod has no Ray",
        f"{_NO_COMMAND.sample}\n{_POD_WAITS.sample}\n",
        says=("its image has no ray command",),
    ),
    console(
        "the head starts slowly",
        f"{_POD_WAITS.sample}\nGCS is ready. Any error messages above can be safely ignored.\n",
    ),
    console(
        "the first seconds of a start",
        "8 seconds elapsed: Waiting for GCS to be ready.\n",
    ),
    console(
        "a driver's query of the GCS times out",
        f"{_RPC_ERROR.sample}\n",
        roots=("gcs-unreachable",),
    ),
    console(
        "a console that ends with the first failed attempt",
        "[2026-11-21 10:40:16,537 E 51 51] gcs_rpc_client.h:179: Failed to connect to GCS at address "
        "10.0.0.9:6379 within 5 seconds.\n",
        says=("10.0.0.9:6379",),
        severity="warning",
    ),
    console(
        "a first attempt that failed, above the output of a worker; and a caught error of a program that connected later",
        f"[2026-11-21 07:34:50,739 E 283 293] gcs_rpc_client.h:100: {NO_ANSWER.sample}\n"
        f"(train pid=77) epoch 1\n{_RPC_ERROR.sample}\nsecond attempt connected; nodes: 4\n(train pid=77) epoch 2\nfinished\n",
    ),
    console(
        "a job's client logs its attempts",
        f"WARNING:ray._private.utils:{_UNANSWERED.sample}\n"
        'File "/venv/lib/python3.11/site-packages/ray/dashboard/modules/job/sdk.py", line 96, in __init__\n',
        says=("10.0.0.9:6379",),
    ),
    console(
        "a program that quotes such a line",
        f"{_UNANSWERED.sample}\nthe manual's page 7 explains this message\n",
    ),
    console(
        "the address of the dashboard, in a line of Ray without its time",
        f"WARNING utils.py:1415 -- {_UNANSWERED.sample.replace('6379', '8265')}\n",
        says=("10.0.0.9:8265", "8265 is the dashboard's port"),
    ),
    *(
        console(
            f"a lone last line: {signal.find}",
            f"{signal.sample}\n",
            roots=("gcs-unreachable",),
            says=("10.0.0.9:6379",),
        )
        for signal in _GAVE_UP[1:3]
    ),
    console(
        "a program logs such an error of its own service and continues",
        "store.RpcError, so the cache is used: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:50051: refused\nepoch 2\n",
    ),
)
