"""A process could not listen on its port because another process or another component of Ray uses it.

## What you see
- `ValueError: Ray component worker_ports is trying to use a port number 10120 that is used by other components` from
  `ray start` or `ray.init`.
- `Failed to start the grpc server. The specified port is 6380` and `No address added out of total 1 resolved for
  '0.0.0.0:6380' … Address already in use` in the output of the GCS, a raylet, a worker or the driver.
- `ValueError: Failed to bind to 127.0.0.1:8265 because it's already occupied` from the dashboard's start.
- `ConnectionError: Ray is trying to start at 10.0.0.2:6379, but is already running at 10.0.0.2:6379` from `ray start
  --head`, or `Error: Ray is already started on this node.` from `ray symmetric-run`.
- `AssertionError: Session name session_… does not match persisted value b'session_…'` from `ray start --head` or
  `ray.init`: another GCS answered at the address of the new one, or both use one Redis.
- `DistNetworkError: The server socket has failed to listen on any local network address … EADDRINUSE` in a rank.
- `OSError: [Errno 98] Address already in use` in a task or actor, or uvicorn's `[Errno 98] error while attempting to
  bind on address ('0.0.0.0', 30000)`, from a server of the program, of vLLM or of SGLang.

## Why
Ray compares the ports of its own components before it starts. A port that Ray chose at random, or `--port` itself, may
lie in the range of the worker ports (10002 to 19999 by default). In other cases a second cluster, a leftover process or
an unrelated program on the same host holds the port. torch's rank 0 listens on `MASTER_PORT`: two jobs with the same
`MASTER_PORT` on one host collide.

## Confirm
- `ss -ltnp 'sport = :PORT'` on that host lists the process that listens on the port.
- Below Ray's error, `Port information:` lists the port or range of each component.

## Fix
Give each component a fixed port outside the worker range (`ray start` with `--node-manager-port`,
`--object-manager-port`, `--dashboard-agent-listen-port`, `--metrics-export-port`), and give each cluster on a host its
own ports. End leftover processes. For `DistNetworkError`, give each job its own `MASTER_PORT`. For a server of the
program, change the server's port, or end the process that `ss` lists.

## Not this when
- every port of the worker range is in use (`ports-exhausted`).
- torch only warns that it cannot bind to `[::]`: it then listens on an IPv4 address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import CORE, DRIVER, GCS, OUTPUT, RAYLET, WORKER_EXIT
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity
from raydoctor.rules.shared.cluster import CHECK_FAILED, RAY_STOP
from raydoctor.rules.shared.failures import (
    SIGNALS,
    constructors,
    ended_programs,
    failures,
    is_certain_end,
    program,
)
from raydoctor.rules.shared.task_error import Printed, error_entities
from raydoctor.rules.shared.traceback import Raised

_DAEMONS = (*RAYLET, *GCS, *CORE, "core-io", "raylet-echo", "gcs-echo", *OUTPUT)

COMPONENTS = Signal(
    "port.components",
    "that is used by other components.",
    r"\bValueError: Ray component (?P<component>\w{1,60}) is trying to use a port number (?P<port>\d{1,5}) that is used by "
    r"other components\.[ \t]*(?:\n|$)(?:[^\n]{0,40}Port information: (?P<ports>\{[^\n{}]{0,4000}\}))?",
    (*DRIVER, "raylet-echo", "worker-echo", "worker-err"),
    "ValueError: Ray component worker_ports is trying to use a port number 10120 that is used by other components.\n"
    "Port information: {'gcs': 6379, 'metrics_export': 10120, 'worker_ports': '9998 ports from 10002 to 19999'}",
    extent="record",
)
"""`ray/_private/parameter.py`, 2.9 to 2.60: before any process starts."""
SERVER = Signal(
    "port.grpc_server",
    "Failed to start the grpc server. The specified port is ",
    r"Check failed: server_ Failed to start the grpc server\. The specified port is (?P<port>\d{1,5})\.",
    _DAEMONS,
    " Check failed: server_ Failed to start the grpc server. The specified port is 6380. This means that Ray's core "
    "components will not be able to function correctly.",
)
LISTENER = Signal(
    "port.grpc_listener",
    "No address added out of total ",
    r"No address added out of total \d{1,4} resolved for '(?P<host>[^'\s]{0,80}):(?P<port>\d{1,5})'"
    r".{0,1500}?Address already in use",
    _DAEMONS,
    "UNKNOWN:No address added out of total 1 resolved for '0.0.0.0:6380' {children:[UNKNOWN:Failed to add any wildcard "
    'listeners {children:[UNKNOWN:Unable to configure socket {fd:41, children:[UNKNOWN:Address already in use {syscall:"bind"}]}]}]}',
)
"""gRPC's own line. A gRPC server of the program prints it as well."""
LISTENER_CUT = Signal(
    LISTENER.kind,
    "No address added out of total ",
    r"UNKNOWN:No address added out of total \d{1,4} resolved for '(?P<host>0\.0\.0\.0|\[::\]):(?P<port>\d{4,5})'\s{0,9}$",
    DRIVER,
    "UNKNOWN:No address added out of total 1 resolved for '0.0.0.0:10311'",
)
"""Without the reason, where a console breaks or cuts the line. For every address of a host and a port that needs no privilege, few others exist."""
LISTENER_OLD = Signal(
    LISTENER.kind,
    "No address added out of total ",
    r"No address added out of total \d{1,4} resolved\"(?P<port>),.{0,1500}?Address already in (?:use\b|us?$)",
    _DAEMONS,
    '{"created":"@1613354024.58","description":"No address added out of total 1 resolved","file":"chttp2_server.cc","file_line":394,'
    '"referenced_errors":[{"created":"@1613354024.58","description":"Address already in use","errno":98}]}',
)
"""Up to 2.1: without the port."""
DASHBOARD = Signal(
    "port.dashboard",
    "already occupied. You can use ",
    r"\bValueError: Failed to bind to (?P<host>[^\s:]{0,80}):(?P<port>\d{1,5}) because it's already occupied\. You can use ",
    (*DRIVER, "dashboard"),
    "ValueError: Failed to bind to 127.0.0.1:8265 because it's already occupied. You can use `ray start --dashboard-port ...`",
)
DASHBOARD_RETRIED = Signal(
    "port.dashboard",
    "Failed to find a valid port for dashboard after ",
    r"\bException: Failed to find a valid port for dashboard after \d{1,6} retries: \[Errno (?:98|48)\] error while attempting to "
    r"bind on address \('(?P<host>[^'\s]{1,80})', (?P<port>\d{1,5})",
    (*DRIVER, "dashboard"),
    "Exception: Failed to find a valid port for dashboard after 50 retries: [Errno 98] error while attempting to bind on address "
    "('127.0.0.1', 8315): address already in use",
)
"""The last of the ports from 8265 on that the dashboard tried (`dashboard/http_server_head.py`, 2.9 to 2.60)."""
RUNNING = (
    Signal(
        "port.cluster",
        ", but is already running at ",
        r"^ConnectionError: Ray is trying to start at (?P<at>[^\s,]{1,300}:(?P<port>\d{1,5})), but is already running at ",
        DRIVER,
        "ConnectionError: Ray is trying to start at 10.0.0.2:6379, but is already running at 10.0.0.2:6379. Please specify a different "
        "port using the `--port` flag of `ray start` command.",
        symptom=True,
    ),
    Signal(
        "port.cluster",
        "Error: Ray is already started on this node.",
        r"^Error: Ray is already started on this node\.",
        DRIVER,
        "Error: Ray is already started on this node.",
        symptom=True,
    ),
    Signal(
        "port.cluster",
        " does not match persisted value ",
        r"^(?:E {1,8})?AssertionError: Session name (?P<session>session_[\w-]{1,80}) does not match persisted value ",
        DRIVER,
        "AssertionError: Session name session_2026-11-21_07-34-12_503117_812 does not match persisted value "
        "b'session_2026-11-21_06-12-40_117502_95'. Perhaps there was an error connecting to the GCS storage backend.",
        fold=("session",),
    ),
)
"""`ray start --head` and `ray symmetric-run` (`scripts/`, 2.9 to 2.60)."""
STORE = Signal(
    "port.c10d",
    "The server socket has failed to listen on any local network address. ",
    r"Error: The server socket has failed to listen on any local network address\. "
    r"(?:The server socket has failed to bind to (?:\S{1,60}:(?P<port_bound>\d{1,5})|\S{1,60}) \(errno: 98\b|"
    r"port: (?P<port>\d{1,5}), [^\n]{0,60}code: -98\b|useIpv6: \w{1,8}, code: -98\b)",
    OUTPUT,
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
    "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
)
"""torch's `socket.cpp` (2.0 to 2.15) and its libuv store, the default since 2.4, which names the port since 2.5."""
STORE_LOGGED = Signal(
    "port.c10d",
    "The server socket has failed to bind to ",
    r"^\[c10d\] The server socket has failed to bind to \S{1,60}:(?P<port>\d{1,5}) \(errno: 98 - ",
    OUTPUT,
    "[c10d] The server socket has failed to bind to 0.0.0.0:29400 (errno: 98 - Address already in use).",
)
"""torch's log of each address, below its header. One that fails is harmless if another one can be used."""
STORE_FAILED = Signal(
    "port.c10d_failed",
    "] The server socket has failed to listen on any local",
    r"^\[c10d\] The server socket has failed to listen on any local network address\.",
    OUTPUT,
    "[c10d] The server socket has failed to listen on any local network address.",
)
GLOO = Signal(
    "port.gloo",
    "bind: Address already in use",
    r"gloo/transport/tcp/\w{1,40}\.cc:\d{1,6}\].{0,120}?bind: Address already in use",
    OUTPUT,
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:220] bind: Address already in use",
)
HTTP = Signal(
    "port.http",
    "] error while attempting to bind on address ",
    r"(?:^|\] )(?:ERROR: +|OSError: )?\[Errno (?:98|48)\] error while attempting to bind on address "
    r"\('(?P<host>[^'\s]{1,80})', (?P<port>\d{1,5})[^()\n]{0,40}\): (?:\[[Ee]rrno \d{1,3}\] )?address already in use",
    OUTPUT,
    "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use",
)
"""asyncio's text, which uvicorn prints when it cannot start: vLLM's and SGLang's HTTP servers."""
PROXY = Signal(
    "port.serve",
    "RuntimeError: Failed to bind to address '",
    r"RuntimeError: Failed to bind to address '(?P<host>[^'\s]{0,80}):(?P<port>\d{1,5})'\.",
    OUTPUT,
    "RuntimeError: Failed to bind to address '0.0.0.0:8000'.",
)
"""A proxy of Serve (`_private/http_util.py`, 2.9 to 2.60). The system's own words are in the exception before it."""
_TORCH = ("port.c10d", "port.gloo")
_OWNERS = {DASHBOARD.kind: "The dashboard", PROXY.kind: "A proxy of Ray Serve"}
_OCCUPIED = (
    SERVER,
    LISTENER,
    LISTENER_CUT,
    LISTENER_OLD,
    DASHBOARD,
    DASHBOARD_RETRIED,
    STORE,
    STORE_LOGGED,
    GLOO,
    HTTP,
    PROXY,
)
_SOCKET = pattern(
    r"\[Errno (?:98|48)\] (?:Address already in use|error while attempting to bind on address )"
)
"""Python's own text for a socket, which names no port."""
_REFUSED = pattern(r"(?i:address (?:is )?already in use)(?: \(os error (?:98|48)\))?\W{0,3}$")
"""The end of the message in which a library of C++ or Rust passes on the system's text."""
_BUSY = pattern(
    r"^(?:Could not find open port after \d{1,6} attempts starting from port (?P<first>\d{1,5})"
    r"|Could not bind port (?P<port>\d{1,5}) on any configured address family"
    r"|\w{1,60}_port (?P<named>\d{1,5}) is already in use\."
    r"|\w{1,60} at (?P<waited>\d{1,5}) is not available in \d{1,6} seconds\. )"
)
"""vLLM's (`utils/network_utils.py`) and SGLang's words (`srt/utils/network.py`, `server_args.py`) for a port that they cannot use."""
_DOC = "https://docs.ray.io/en/latest/ray-core/configure.html#ports-configurations"
_OPTIONS = {
    "gcs": "port",
    "object_manager": "object-manager-port",
    "node_manager": "node-manager-port",
    "client_server": "ray-client-server-port",
    "dashboard": "dashboard-port",
    "dashboard_agent_grpc": "dashboard-agent-grpc-port",
    "dashboard_agent_http": "dashboard-agent-listen-port",
    "runtime_env_agent": "runtime-env-agent-port",
    "metrics_export": "metrics-export-port",
}
"""Option of `ray start` for each component of `Port information`."""


@dataclass(slots=True)
class _Conflict:
    """One port that could not be opened, as all records report it."""

    port: str
    events: list[Event] = field(default_factory=list)

    @property
    def first(self) -> Event:
        """The most informative record: Ray's own check before gRPC's line."""
        return min(self.events, key=lambda e: e.kind == "port.grpc_listener")

    @property
    def owner(self) -> str:
        """The process that needed the port."""
        event = self.first
        if event.kind in _OWNERS:
            return _OWNERS[event.kind]
        if event.kind in (*_TORCH, HTTP.kind):
            http = f"{event['who'] or 'The program'}'s HTTP server"
            return http if event.kind == HTTP.kind else "A torch process"
        role, text = event.source.role, event.text
        if role.startswith("gcs") or "(gcs_server)" in text:
            return "The GCS"
        if role.startswith("raylet") or "(raylet)" in text:
            return (
                "A raylet" if event.kind == "port.grpc_server" else "A process of the raylet's node"
            )
        if role == "core-driver" or (role in DRIVER and not text.startswith("(")):
            return "The driver" if event.kind == "port.grpc_server" else "A gRPC server"
        return "A worker" if event.kind == "port.grpc_server" else "A gRPC server of a worker"


@rule(
    tier="root",
    severity="error",
    rank=8,
    explains=("daemon", "job", "ports", "process", "program", "raylet", "task-error", "worker"),
    looks_for=(COMPONENTS, *RUNNING, *_OCCUPIED, STORE_FAILED, *SIGNALS, CHECK_FAILED, WORKER_EXIT),
)
def port_conflict(case: Case) -> Iterator[Finding]:
    """One finding for ports that Ray's own components share, and one per port that another process holds."""
    if mine := [e for e in case.of(COMPONENTS.kind) if not case.torn_down(e)]:
        yield _of_components(mine)
    found: dict[str, _Conflict] = {}
    for event in case.of(*(signal.kind for signal in _OCCUPIED)):
        if not case.torn_down(event) and not _is_quoted(event) and _has_failed(case, event):
            port = event["port"] or event["port_bound"]
            found.setdefault(port, _Conflict(port)).events.append(event)
    for conflict in found.values():
        yield _occupied(case, conflict)
    raised = [
        s
        for s in (*failures(case), *constructors(case))
        if _is_of_socket(s) and not (HTTP.regex.search(_said(s)) and found)
    ]
    by_name: dict[str, list[Printed]] = {}
    for seen in raised:
        by_name.setdefault(seen.failure.function, []).append(seen)
    for name, alike in by_name.items():
        yield _raised(name, alike)
    for ending, end in () if found or raised else ended_programs(case):
        said = end.first.message
        if _SOCKET.match(said) or _REFUSED.search(said) or _BUSY.match(said):
            yield _of_program(case, ending, end)
    running = [e for e in case.of(RUNNING[0].kind) if not evidence.goes_on(case, e)]
    for events in evidence.grouped(running, lambda e: e["at"]).values():
        yield _running(case, events)


def _running(case: Case, events: list[Event]) -> Finding:
    """A head that was not started because the machine has one already."""
    first = events[0]
    at = f" at {first['at']}" if first["at"] else ""
    headline = f"Ray was not started because a Ray cluster already runs on this machine{at}"
    shows = "the command finds the running cluster and stops"
    if first["session"]:
        headline = "Ray was not started because the GCS of another session answered at its address, or its Redis holds another session"
        shows = "the new session's name is not the one that is stored"
    return Finding(
        headline,
        (Link(first, shows),),
        explains=(Entity("ports", f"cluster {first['port']}"),),
        count=evidence.total(events),
        remedies=(
            Remedy(
                "Use the running cluster",
                (
                    paste.shell("export RAY_ADDRESS={address:address}; ray status", address=first["at"])
                    if first["at"]
                    else "ray status   # its nodes, resources and waiting tasks",
                ),
            ),
            Remedy(
                "Or, when no job needs the running cluster any more, stop it and start again: this ends its jobs and actors",
                (RAY_STOP,),
                risk="destructive",
            ),
            Remedy(
                "Or start a second cluster with ports and a folder of its own",
                ("ray start --head --port=FREE_PORT --temp-dir=/tmp/ray2 --min-worker-port=20000 --max-worker-port=29999   # plus your other options",),
                doc=_DOC,
            ),
        ),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
    )  # fmt: skip


def _said(seen: Printed) -> str:
    return f"OSError: {seen.failure.raised.message}" if seen.failure.raised else ""


def _is_of_socket(seen: Printed) -> bool:
    raised = seen.failure.raised
    return raised is not None and raised.name == "OSError" and bool(_SOCKET.match(raised.message))


def _raised(name: str, seen: list[Printed]) -> Finding:
    """A task or actor whose own server could not listen; Python does not name the port."""
    raised = seen[0].failure.raised
    place = f" ({raised.place.short_file}:{raised.place.line})" if raised and raised.place else ""
    return Finding(
        f"{name} could not listen on its port because another process uses it{place}",
        (Link(seen[0].event, f"{name} raised OSError: the address is already in use"),),
        explains=(Entity("ports", f"raised {name}"), *error_entities(seen)),
        count=max(1, evidence.total([s.event for s in seen])),
        remedies=(_own_port(""),),
        covers=tuple(e for s in seen for e in s.records),
    )


def _of_program(case: Case, ending: Event, raised: Raised) -> Finding:
    """A program of any kind whose last exception is the system's refusal."""
    place = f" ({raised.place.short_file}:{raised.place.line})" if raised.place else ""
    busy = _BUSY.match(raised.first.message)
    port = (busy["port"] or busy["named"] or busy["waited"]) if busy else ""
    which = f"port {port}" if port else "its port"
    if busy and busy["first"]:
        which = f"any port from {busy['first']} on"
    return Finding(
        f"The program could not listen on {which} because another process uses it{place}",
        (
            Link(
                ending, f"the program ends with {raised.first.name}: the address is already in use"
            ),
        ),
        explains=(Entity("ports", f"program {ending.source.path}"), program(ending)),
        severity=None if is_certain_end(ending) else "warning",
        remedies=(
            Remedy(
                "Find the process that listens on the program's port, end it if it is a leftover, or choose another port",
                ("ss -ltnp   # every port in use, with its process",),
            ),
        ),
        covers=tuple(e for e in case.of("log.traceback") if e.source is ending.source and raised.first.message in e.message),
    )  # fmt: skip


def _has_failed(case: Case, event: Event) -> bool:
    """Whether no address could be used: torch logs also one of several, and continues."""
    is_logged = event.message.startswith("[c10d] ")
    return not is_logged or any(e.source is event.source for e in case.of(STORE_FAILED.kind))


def _is_quoted(event: Event) -> bool:
    """Whether a program may have printed the message: Ray's own check is a fatal record with Ray's header."""
    return event.kind == SERVER.kind and event.level != "C"


# ---------------------------------------------------------------- components of one node


def _of_components(events: list[Event]) -> Finding:
    first = events[0]
    port, ports = first["port"], first["ports"]
    other = next((n for n in _OPTIONS if f"'{n}': {port}" in ports and n != first["component"]), "")
    with_ = f" and {other}" if other else ""
    return Finding(
        f"Ray did not start because two of its components use port {port}: {first['component']}{with_}",
        (Link(first, "Ray compared the ports of its components and stopped"),),
        explains=(Entity("ports", f"components {port}"),),
        count=evidence.total(events),
        remedies=tuple(_separate(first["component"], other, port)),
        covers=tuple(events),
    )


def _separate(component: str, other: str, port: str) -> Iterator[Remedy]:
    if option := _OPTIONS.get(other) or _OPTIONS.get(component):
        yield Remedy(
            f"Give {other or component} a fixed port outside the worker range, which contains {port}"
            if component == "worker_ports"
            else f"Give {other or component} a port other than {port}",
            (
                paste.shell(
                    "ray start --{option:id}=FREE_PORT   # plus your other options. FREE_PORT: below 10002 if the worker range is the default",
                    option=option,
                ),
            ),
            risk="disruptive",
            doc=_DOC,
        )
    yield Remedy(
        "Fix the ports that Ray otherwise chooses at random, on every node",
        (
            "ray start --node-manager-port=8076 --object-manager-port=8077 --metrics-export-port=8090 "
            "--runtime-env-agent-port=8092 --dashboard-agent-grpc-port=8093 --min-worker-port=10002 --max-worker-port=19999   # plus your other options",
        ),
        risk="disruptive",
        doc=_DOC,
    )


# ---------------------------------------------------------------- a port that another process holds


def _occupied(case: Case, conflict: _Conflict) -> Finding:
    first, port = conflict.first, conflict.port
    exits = list({e.entity: e for event in conflict.events if (e := _exit(case, event))}.values())
    errors = [
        seen
        for seen in failures(case)
        if first.kind in (*_TORCH, HTTP.kind, PROXY.kind)
        and seen.failure.raised
        and any(
            signal.regex.search(f"{seen.failure.raised.name}: {seen.failure.raised.message}")
            for signal in (STORE, HTTP, PROXY)
        )
        and port in seen.failure.raised.message
    ]
    number = f"port {port}" if port else "a port"
    is_named = first.kind != LISTENER.kind or "already in us" in first.message
    why = (
        " because another process uses it" if is_named else ", which another process probably uses"
    )
    reason = "the address is already in use" if is_named else "the console cuts off the reason"
    return Finding(
        f"{conflict.owner} could not listen on {number}{why}",
        (
            Link(first, f"the system refused {number}: {reason}"),
            *(link for exit_ in exits[:1] for link in evidence.exit_links(exit_, most=1)),
            *(Link(seen.event, f"{seen.failure.function} raised the error") for seen in errors[:1]),
        ),
        explains=(
            Entity("ports", f"occupied {port}"),
            *((Entity("daemon", "gcs_server"),) if conflict.owner == "The GCS" else ()),
            *((Entity("raylet", first["ip"] or "local"),) if conflict.owner == "A raylet" else ()),
            *evidence.exit_entities(exits),
            *error_entities(errors),
            *_jobs(conflict),
        ),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=max(1, len(exits)),
        severity=_severity(case, conflict, exits),
        remedies=tuple(_remedies(conflict)),
        covers=(
            *conflict.events,
            *(
                e
                for e in case.of(CHECK_FAILED.kind)
                if f"The specified port is {port}." in e.message
            ),
            *evidence.exit_events(exits),
            *(e for seen in errors for e in seen.records),
        ),
    )


def _exit(case: Case, event: Event) -> WorkerExit | None:
    worker = evidence.worker_of(event)
    exit_ = case.exit_of(worker) if worker else None
    return exit_ if exit_ and not exit_.expected else None


def _jobs(conflict: _Conflict) -> Iterator[Entity]:
    """The jobs of drivers that ended themselves."""
    for event in conflict.events:
        if event.kind == "port.grpc_server" and (
            job := ids.job_of_driver(evidence.worker_of(event))
        ):
            yield Entity("job", job)


def _severity(case: Case, conflict: _Conflict, exits: list[WorkerExit]) -> Severity | None:
    """A warning for a worker without a recorded exit, which Ray replaces, and for the line of a server alone."""
    if conflict.owner == "A worker":
        return evidence.severity(case, exits) if exits else "warning"
    first = conflict.first
    is_alone = first.kind == HTTP.kind and first["who"] and not exits
    return "warning" if first.kind == LISTENER.kind or is_alone else None


def _own_port(port: str) -> Remedy:
    other = f" other than {port}" if port else ""
    return Remedy(
        f"Give each server on a host its own port{other}: Ray may start several replicas or actors on one node",
        (
            'sock.bind(("", 0)); port = sock.getsockname()[1]   # in the actor: the system chooses a free port',
        ),
    )


_OWN_DASHBOARD = ("ray.init(dashboard_port=FREE_PORT)   # if the program starts Ray",)


def _remedies(conflict: _Conflict) -> Iterator[Remedy]:
    port = conflict.port
    if port:
        yield Remedy(
            f"Find the process that listens on port {port} on that host, and end it if it is a leftover",
            (paste.shell("ss -ltnp 'sport = :{port:number}'", port=port),),
        )
    if conflict.first.kind == PROXY.kind:
        yield Remedy(
            "Let the proxies of this cluster listen on another port",
            (
                'serve.start(http_options={"port": FREE_PORT})   # or http_options in the Serve config file',
            ),
        )
        return
    if conflict.first.kind in _TORCH:
        other = f" other than {port}" if port else ""
        yield Remedy(
            f"Give each job on a host its own MASTER_PORT{other}",
            (
                "python -c 'import socket; s = socket.socket(); s.bind((\"\", 0)); print(s.getsockname()[1])'   # a free port",
                "export MASTER_PORT=FREE_PORT   # before the job starts, vLLM: VLLM_PORT",
            ),
        )
        return
    if conflict.first.kind == HTTP.kind:
        yield _own_port(port)
        return
    option = {"The dashboard": "dashboard-port", "The GCS": "port"}.get(conflict.owner)
    if option:
        yield Remedy(
            f"Start Ray with another port than {port}",
            (
                paste.shell(
                    "ray start --head --{option:id}=FREE_PORT   # plus your other options",
                    option=option,
                ),
                *(_OWN_DASHBOARD if conflict.owner == "The dashboard" else ()),
            ),
            risk="disruptive",
            doc=_DOC,
        )
        return
    yield Remedy(
        f"Give each cluster on the host a worker range of its own, without port {port}",
        (
            "ray start --min-worker-port=20000 --max-worker-port=29999   # plus your other options. Choose a range that nothing else uses",
        ),
        risk="disruptive",
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples

_W = "3b1d6ff0a2c94c1a8f1f35ae0a0c6b5af4d0e31e7c0f9b2d55c1a7e2"
_TRACE = (
    'Traceback (most recent call last):\n  File "/opt/venv/bin/ray", line 8, in <module>\n    sys.exit(main())\n'
    '  File "/opt/venv/lib/python3.11/site-packages/ray/_private/parameter.py", line 343, in update_pre_selected_port\n'
    "    raise ValueError(\n"
)
_FATAL = (
    "[2026-11-22 18:50:26,084 C {pid} {pid}] {name}grpc_server.cc:134:  An unexpected system state has occurred. You have "
    "likely discovered a bug in Ray.{sample}\n*** StackTrace Information ***\n"
)
_EXIT = (
    "[2026-11-22 18:50:26,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{_W}, node id = {'a' * 56}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits "
    "with a connection error code 2. End of file.\n"
)
_TASK_ERROR = (
    "Traceback (most recent call last):\n"
    "ray.exceptions.RayTaskError(DistNetworkError): ray::Rank.setup() (pid=2381, ip=10.0.0.3, "
    "actor_id=7dbdc85090b37cd39fb9e77001000000, repr=<train.Rank object>)\n"
    '  File "/app/train.py", line 31, in setup\n    dist.init_process_group("nccl")\n'
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. The server "
    "socket has failed to bind to [::]:29541 (errno: 98 - Address already in use).\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "the GCS of another session answers a new head",
        'Traceback (most recent call last):\n  File "/venv/lib/python3.11/site-packages/ray/_private/node.py", line 1144, in '
        f"start_head_processes\n    self._write_cluster_info_to_kv()\n{RUNNING[2].sample}\n",
        says=("the GCS of another session answered at its address", "ray stop"),
    ),
    console(
        "a program quotes the text, and continues",
        f"seen before: {RUNNING[2].sample}\nstep 2\n",
    ),
    console(
        "`ray start --head` finds a running cluster",
        f"{_TRACE}{RUNNING[0].sample}\n",
        says=("already runs on this machine at 10.0.0.2:6379", "export RAY_ADDRESS=10.0.0.2:6379", "ray stop"),
    ),
    console(
        "a proxy of Serve finds its port taken",
        'ray.exceptions.RayTaskError(RuntimeError): ray::ProxyActor.ready() (pid=21, ip=10.0.0.2)\n'
        '  File "/venv/site-packages/ray/serve/_private/http_util.py", line 784, in start\n    sock.bind(address)\n'
        "OSError: [Errno 98] Address already in use\n\nThe above exception was the direct cause of the following exception:\n\n"
        "ray::ProxyActor.ready() (pid=21, ip=10.0.0.2)\n"
        '  File "/venv/site-packages/ray/serve/_private/http_util.py", line 786, in start\n    raise RuntimeError(\n'
        f"{PROXY.sample}\n",
        says=("A proxy of Ray Serve could not listen on port 8000", "http_options"),
    ),
    console(
        "ray symmetric-run finds one",
        f"{RUNNING[1].sample}\n",
        says=("already runs on this machine", "ray status"),
    ),
    console(
        "the dashboard finds no free port",
        f"{_TRACE}{DASHBOARD_RETRIED.sample}\n",
        says=("The dashboard could not listen on port 8315",),
    ),
    console(
        "a server of SGLang cannot bind its port",
        'Traceback (most recent call last):\n  File "/app/serve.py", line 3, in <module>\n    main()\n'
        "OSError: Could not bind port 30000 on any configured address family\n",
        says=("could not listen on port 30000", "ss -ltnp"),
    ),
    console(
        "programs that quote a running cluster or a port, and continue",
        f"the launcher said {RUNNING[0].sample}\n{RUNNING[1].sample}\nCould not bind port 30000 on any configured address family\n"
        "loss 0.1\n",
    ),
    Example(
        "a raylet whose port is taken, so that its node never registers",
        {
            "logs/raylet.out": "[2026-11-21 07:44:10,000 C 305 305] (raylet) grpc_server.cc:134:  Check failed: server_ Failed to start the "
            "grpc server. The specified port is 7777. This means that Ray's core components will not be able to function correctly.\n",
            "logs/gcs_server.out": "",
        },
        says=("A raylet could not listen on port 7777",),
    ),
    console(
        "the metrics port lies in the range of the worker ports",
        f"{_TRACE}{COMPONENTS.sample}\n",
        says=("10120", "worker_ports and metrics_export", "--metrics-export-port"),
    ),
    Example(
        "a second GCS on the host uses the port of the first one",
        {
            "logs/gcs_server.out": _FATAL.format(pid=97, name="(gcs_server) ", sample=SERVER.sample),
            "logs/gcs_server.err": f"E1122 18:50:25.996730693      97 chttp2_server.cc:1059]    {LISTENER.sample}\n",
        },
        consequences=("gcs-died",),
        says=("The GCS could not listen on port 6380", "ss -ltnp 'sport = :6380'", "--port=FREE_PORT"),
        is_typical=True,
    ),
    console(
        "a console breaks gRPC's line before the reason",
        f"E1122 18:50:25.996730693  472 chttp2_server.cc:1063]     {LISTENER_CUT.sample}\n",
        severity="warning",
        says=("A gRPC server could not listen on port 10311, which another process probably uses",),
    ),
    console(
        "the same of one address, which the host may not have",
        f"E1122 18:50:25.996730693  472 chttp2_server.cc:1063]     {LISTENER_CUT.sample}\n".replace("0.0.0.0", "10.0.0.9"),
    ),
    console(
        "a raylet of Ray 1.x finds its port taken",
        f"(raylet, ip=10.0.0.7) E0301 08:45:44.685832418   28476 server_chttp2.cc:48]        {LISTENER_OLD.sample}\n",
        severity="warning",
        says=("could not listen on a port because another process uses it",),
    ),
    Example(
        "a worker finds its port taken by another cluster's worker",
        {
            f"logs/python-core-worker-{_W}_472.log": _FATAL.format(pid=472, name="", sample=SERVER.sample.replace("6380", "10023")),
            "logs/gcs_server.out": _EXIT,
            "logs/raylet.out": "",
        },
        says=("A worker", "10023", "--min-worker-port"),
    ),
    Example(
        "the driver finds its port taken",
        {
            f"logs/python-core-driver-01000000{'f' * 48}_7.log": _FATAL.format(
                pid=7, name="", sample=SERVER.sample.replace("6380", "10031")
            ),
            **QUIET_LOGS,
        },
        says=("The driver", "10031"),
    ),
    console(
        "a worker's record in the driver's output",
        "(pid=3366, ip=10.0.0.3) "
        + _FATAL.format(pid=3366, name="", sample=SERVER.sample.replace("6380", "10014")),
        says=("A worker", "10014", "--min-worker-port"),
        severity="warning",
    ),
    console(
        "two jobs on one host use the same MASTER_PORT",
        _TASK_ERROR,
        says=("A torch process", "29541", "MASTER_PORT"),
    ),
    console(
        "the dashboard's port is taken",
        f"{_TRACE}{DASHBOARD.sample}\n",
        says=("8265", "--dashboard-port"),
    ),
    console(
        "two servers of actors use the same port of a node",
        f"(Server pid=12, ip=10.0.0.3) {HTTP.sample}\n",
        says=("Server's HTTP server", "port 30000", "other than 30000", "chooses a free port"),
        severity="warning",
    ),
    console(
        "a task opens a socket on a port that is taken",
        "Traceback (most recent call last):\nray.exceptions.RayTaskError(OSError): ray::Server.start() (pid=389, ip=10.0.0.2, "
        'actor_id=7dbdc85090b37cd39fb9e77001000000, repr=<s>)\n  File "/app/server.py", line 49, in start\n    sock.bind(address)\n'
        "OSError: [Errno 98] Address already in use\n",
        says=("Server.start could not listen on its port", "server.py:49"),
    ),
    console(
        "a program in Rust passes on the system's error",
        'Traceback (most recent call last):\n  File "/home/user/.local/bin/lighthouse", line 8, in <module>\n'
        "    sys.exit(main())\nRuntimeError: Address already in use (os error 98)\n",
        says=("lighthouse:8", "ss -ltnp"),
    ),
    console(
        "a program fails on a street's address that its table has twice",
        'Traceback (most recent call last):\n  File "/app/customers.py", line 8, in <module>\n    add(row)\n'
        "ValueError: address already in use by customer 12\n",
        roots=("job-failed",),
    ),
    console(
        "a program tries the next port",
        "(Server pid=12) WARNING [Errno 98] Address already in use, trying 30001\n"
        "(Server pid=12) skip: [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use\n",
    ),
    console(
        "torch falls back to IPv4, and a program quotes the errors",
        "(Rank pid=12, ip=10.0.0.3) [W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29541 "
        "(errno: 98 - Address already in use).\n"
        "retrying: 'is trying to use a port number 10120 that is used by other components.' was seen before\n"
        "hint: look for Check failed: server_ Failed to start the grpc server. The specified port is 6380. in the log\n",
        logs=QUIET_LOGS,
    ),
    console(
        "torch logs that it can use none of its addresses",
        f"[W socket.cpp:401] {STORE_LOGGED.sample}\n[E socket.cpp:435] {STORE_FAILED.sample}\n",
        says=("port 29400",),
    ),
    console(
        "torch logs that one of its addresses is in use, and takes another one",
        f"[W socket.cpp:401] {STORE_LOGGED.sample}\nepoch 1\n",
    ),
)  # fmt: skip
