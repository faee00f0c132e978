"""A Ray Client (`ray://`) lost its connection to the cluster, or could not connect.

## What you see
- `Encountered connection issues in the data channel. Attempting to reconnect.`, then `Failed to reconnect the data
  channel` and `ConnectionError: Client is shutting down.` (or `Failed to reconnect within the reconnection grace
  period`).
- gRPC's `StatusCode.NOT_FOUND` with `Attempted to reconnect a session that has already been cleaned up`.
- At the start, the client prints `Ray Client connection timed out. Ensure that the Ray Client port on the head node is
  reachable`, then `ConnectionError: ray client connection timeout`. Or it prints `Starting Ray client server failed` or
  `Proxy failed to Connect to backend!`.
- On the head, `ray_client_server.err` contains `SpecificServer startup failed for client: …`.

## Why
A Ray Client is a connection to a server process on the head, and that process is the real driver. When the connection
is lost for longer than `RAY_CLIENT_RECONNECT_GRACE_PERIOD` (30 s), the server ends that driver with all its tasks,
actors and objects. Causes: a load balancer or ingress that closes idle connections, a laptop that sleeps, a VPN, or the
death of the server process (often because the head ran out of memory).

A client that never connects often has the wrong port in its `ray://` address: 6379 is the GCS's, 8265 the dashboard's.
The Ray Client server listens on 10001, or on the port of `ray start --ray-client-server-port`, and only if
`ray[client]` or `ray[default]` is installed on the head.

## Confirm
- On the head, `ray_client_server.err` (the proxy) or `ray_client_server_<port>.err` (this client's server) ends at that
  time if the server died. `sudo dmesg -T | grep -i 'killed process'` then shows whether the kernel's OOM killer ended
  it.
- A load balancer or proxy on the way has an idle timeout that matches the time of the loss (AWS ALB 60 s, nginx 60 s).

## Fix
Submit long work as a job, which runs on the cluster and needs no connection. Otherwise set a longer grace period, in
seconds, for the client and for `ray start` on the head:

    export RAY_CLIENT_RECONNECT_GRACE_PERIOD=600

If the client never connected, correct the port in its `ray://` address (10001 by default), and install `ray[client]` on
the head.

## Not this when
- the versions differ (`version-mismatch`).
- the client reconnected and continued.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Source
from raydoctor.rules.shared.failures import ended_programs, program
from raydoctor.rules.shared.traceback import Raised, TracebackFrame

_DOC = "https://docs.ray.io/en/latest/cluster/running-applications/job-submission/ray-client.html"
_JOB_DOC = (
    "https://docs.ray.io/en/latest/cluster/running-applications/job-submission/quickstart.html"
)
_GRACE = 30
"""`DEFAULT_CLIENT_RECONNECT_GRACE_PERIOD` in `util/client/common.py`, 2.9 to 2.60."""

_LOST = Signal(
    "client.lost", "Encountered connection issues in the data channel.", r"^Encountered connection issues in the data channel\.", DRIVER,
    "Encountered connection issues in the data channel. Attempting to reconnect.",
)  # fmt: skip
_GAVE_UP = (
    Signal(
        "client.gave_up", "Failed to reconnect the data channel", r"^Failed to reconnect the data channel", DRIVER,
        "Failed to reconnect the data channel", symptom=True,
    ),
    Signal(
        "client.gave_up", "Failed to reconnect within the reconnection grace period",
        r"^ConnectionError: Failed to reconnect within the reconnection grace period \((?P<seconds>\d+)s\)", DRIVER,
        "ConnectionError: Failed to reconnect within the reconnection grace period (8s)", symptom=True,
    ),
    Signal(
        "client.gave_up", "Unrecoverable error in data channel.", r"^Unrecoverable error in data channel\.", DRIVER,
        "Unrecoverable error in data channel.", symptom=True,
    ),
    Signal(
        "client.gave_up", "Exception that broke the connection: ",
        r"^ConnectionError: Failed during this or a previous request\. Exception that broke the connection: ", DRIVER,
        "ConnectionError: Failed during this or a previous request. Exception that broke the connection: Traceback", symptom=True,
    ),
)  # fmt: skip
_FORGOTTEN = Signal(
    "client.forgotten", " a session that has already been cleaned up",
    r'^[\s`]{0,20}(?:details = )?"?Attempted to reconnect (?:to )?a session that has already been cleaned up\.?[\s"`]*$', DRIVER,
    '\tdetails = "Attempted to reconnect a session that has already been cleaned up"', symptom=True,
)  # fmt: skip
"""From the head (`util/client/server/proxier.py`, with `to` `dataservicer.py`, 2.9 to 2.60), within gRPC's error."""
_SHUT_DOWN = (
    Signal(
        "client.shut_down", "ConnectionError: Client is shutting down.", r"^ConnectionError: Client is shutting down\.", DRIVER,
        "ConnectionError: Client is shutting down.",
    ),
    Signal(
        "client.shut_down", "t be sent because the Ray client has already been disconnected",
        r"^ConnectionError: Request can't be sent because the Ray client has already been disconnected", DRIVER,
        "ConnectionError: Request can't be sent because the Ray client has already been disconnected due to an error. Last exception: x",
    ),
    Signal(
        "client.shut_down", "Request cannot be fulfilled because the data client has disconnected.",
        r"^ConnectionError: Request cannot be fulfilled because the data client has disconnected\.", DRIVER,
        "ConnectionError: Request cannot be fulfilled because the data client has disconnected.",
    ),
)  # fmt: skip
_NO_CONNECTION = (
    Signal(
        "client.no_connection", "ray client connection timeout", r"^ConnectionError: ray client connection timeout", DRIVER,
        "ConnectionError: ray client connection timeout", symptom=True,
    ),
    Signal(
        "client.no_connection", "UserWarning: Ray Client connection timed out. Ensure that the Ray Client port ",
        r"/ray/util/client/worker\.py:\d+: UserWarning: Ray Client connection timed out\. Ensure that the Ray Client port ", DRIVER,
        "/app/venv/lib/python3.11/site-packages/ray/util/client/worker.py:335: UserWarning: Ray Client connection timed out. Ensure "
        "that the Ray Client port on the head node is reachable from your local machine.", symptom=True,
    ),
)  # fmt: skip
_RETRIED = Signal(
    "client.retried", "Waiting for Ray to become ready on the server, retry in ",
    r"^Waiting for Ray to become ready on the server, retry in \d+s", DRIVER,
    "Waiting for Ray to become ready on the server, retry in 5s...",
)  # fmt: skip
"""At level DEBUG, after each attempt to connect (`util/client/worker.py`, 2.9 to 2.60)."""
_ADDRESS = Signal(
    "client.address", "ray://", r"\bray://(?P<host>[\w.-]{1,300}):(?P<port>\d{1,5})\b", DRIVER,
    'ray.init("ray://10.0.0.2:6379")', fold=("host", "port"),
)  # fmt: skip
_NO_SERVER = Signal(
    "client.no_server", "Starting Ray client server failed.",
    r"^(?:RuntimeError: )?Starting Ray client server failed\. See (?P<file>\S+) for detailed logs", (*DRIVER, "client-server"),
    "RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err for detailed logs.", symptom=True,
)  # fmt: skip
_NO_BACKEND = Signal(
    "client.no_server", "Proxy failed to Connect to backend!",
    r"^RuntimeError: Proxy failed to Connect to backend! Check `ray_client_server\.err` and `(?P<file>ray_client_server_\d{1,5}\.err)`",
    (*DRIVER, "client-server"),
    "RuntimeError: Proxy failed to Connect to backend! Check `ray_client_server.err` and `ray_client_server_23000.err` on the head node "
    "of the cluster for the relevant logs.", symptom=True,
)  # fmt: skip
"""As the client prints it below `Initialization failure from server:` (`util/client/server/proxier.py`, 2.9 to 2.60)."""
_NO_SPECIFIC = Signal(
    "client.no_server", "Starting up Server Failed! Check ",
    r"^RuntimeError: Starting up Server Failed! Check `(?P<file>ray_client_server_\[port\]\.err)`",
    (*DRIVER, "client-server"),
    "RuntimeError: Starting up Server Failed! Check `ray_client_server_[port].err` on the cluster.", symptom=True,
)  # fmt: skip
"""The same in 1.5 to 1.8."""
_NOT_STARTED = Signal(
    "client.not_started", "erver startup failed for client: ",
    r"^(?:SpecificServer|Server) startup failed for client: (?P<client>\w{8,64})\b", (*DRIVER, "client-server"),
    "SpecificServer startup failed for client: 12a7d76475884459adb36165e666b3be", symptom=True,
)  # fmt: skip
"""Level E, in the log of the proxy: the process that it started for a client ended before it served."""
_ENVIRONMENT = Signal(
    "client.environment", "Increasing runtime env reference for ray_client_server_",
    r"^Increasing runtime env reference for ray_client_server_(?P<port>\d{1,5})\.\s?Serialized runtime env is \{(?P<env>[^\n]{1,4000})", (*DRIVER, "client-server"),
    "Increasing runtime env reference for ray_client_server_23000.Serialized runtime env is {\"image_uri\": \"hub/train:1\"}.",
)  # fmt: skip
_REJECTED = Signal(
    "client.rejected", "[Data Servicer]: Num clients ",
    r"^\[Data Servicer\]: Num clients (?P<clients>\d+) has reached the threshold (?P<limit>\d+)", ("client-server",),
    "[Data Servicer]: Num clients 100 has reached the threshold 100. Rejecting client: 12a7d76475884459adb36165e666b3be. ",
    symptom=True,
)  # fmt: skip
_SERVER = Signal(
    "client.server_started", "SpecificServer started on port: ",
    r"^SpecificServer started on port: (?P<port>\d+) with PID: (?P<server_pid>\d+) for client: (?P<client>\w+)", (*DRIVER, "client-server"),
    "SpecificServer started on port: 23000 with PID: 439 for client: 12a7d76475884459adb36165e666b3be",
)  # fmt: skip


@rule(
    tier="cause",
    severity="critical",
    rank=14,
    explains=("client", "program"),
    caused_by=("gcs", "job", "process"),
    looks_for=(_LOST, *_GAVE_UP, _FORGOTTEN, *_SHUT_DOWN, *_NO_CONNECTION, _RETRIED, _ADDRESS, _NO_SERVER, _NO_BACKEND, _NO_SPECIFIC, _NOT_STARTED, _ENVIRONMENT, _REJECTED, _SERVER),
)  # fmt: skip
def ray_client_disconnected(case: Case) -> Iterator[Finding]:
    """One finding per driver that lost its connection or could not connect."""
    by_source = evidence.grouped(
        (
            e
            for e in case.of(
                "client.gave_up", "client.forgotten", "client.no_connection", "client.no_server"
            )
            if e.source.role in DRIVER
        ),
        lambda e: e.source,
    )
    for events in by_source.values() or _retried(case):
        if events[0].kind in ("client.gave_up", "client.forgotten"):
            yield _dropped(case, events)
        else:
            yield _never(case, events)
    if not by_source:
        for ending, raised in ended_programs(case):
            own = [frame for frame in raised.frames if _CLIENT.search(frame.file)]
            is_cut = not raised.type and own and own[-1] is raised.frames[-1]
            if is_cut or (own and raised.type.startswith("grpc.")):
                yield _cut_off(case, ending, raised, own[-1])
    closed = [e for e in case.of("client.shut_down") if e.source not in by_source]
    for events in evidence.grouped(closed, lambda e: e.source).values():
        if not evidence.goes_on(case, events[-1]):
            yield _closed(case, events)
    if not by_source:
        yield from _not_started(case)


def _not_started(case: Case) -> Iterator[Finding]:
    """Clients whose server process ended at its start, where only the log of the proxy shows it."""
    failures = [e for e in case.of(_NOT_STARTED.kind) if e.level == "E"]
    failed = {e["client"] for e in failures}
    servers = case.of(_SERVER.kind)
    if not failures:
        return
    last = failures[-1]
    ports = [e["port"] for e in servers if e["client"] == last["client"]]
    environments = [e for e in case.of(_ENVIRONMENT.kind) if e["port"] in ports]
    later = [
        e
        for e in servers
        if e["client"] not in failed and e.source is last.source and e.offset > last.offset
    ]
    own = " (with a runtime_env)" if environments else ""
    yield Finding(
        f"The Ray Client could not connect: its server process on the head{own} ended at its start",
        (
            Link(last, "the proxy on the head finds the client's server process ended"),
            *(Link(e, "the runtime_env in which the process starts") for e in environments[-1:]),
        ),
        explains=tuple(Entity("client", client) for client in sorted(failed)),
        caused_by=_ends(case),
        count=len(failed),
        severity="warning" if later else None,
        remedies=(
            Remedy(
                "Read on the head why the process ended",
                tuple(
                    paste.shell("tail -n 50 /tmp/ray/session_latest/logs/ray_client_server_{port:number}.*", port=port)
                    for port in ports[-1:] or ["23000"]
                ),
                finds_cause=True,
            ),
            *(
                (
                    Remedy(
                        "Connect once without runtime_env: if that works, correct the environment (its image, working_dir or packages)",
                        ('ray.init("ray://HEAD:10001")',),
                        doc=_DOC,
                    ),
                )
                if environments
                else ()
            ),
            *_remedies()[:1],
        ),
        covers=(*failures, *environments),
    )  # fmt: skip


_CLIENT = pattern(r"[/\\]ray[/\\](?:util[/\\]client(?:[/\\]|_connect\.py)|client_builder\.py)")


def _cut_off(case: Case, ending: Event, raised: Raised, last: TracebackFrame) -> Finding:
    """A console that ends within Ray Client's own part of a traceback, or with what gRPC raised in it."""
    is_start = any(frame.function in ("_server_init", "connect") for frame in raised.frames)
    what = "could not connect" if is_start else "failed"
    source = ending.source
    return Finding(
        f"The Ray Client {what} in {called(last.function)}, with {raised.name or 'an exception that the console cut off'}",
        (Link(ending, "the console ends within the traceback of the Ray Client"),),
        explains=(Entity("client", source.path), program(ending)),
        caused_by=_ends(case),
        severity="warning",
        remedies=(
            Remedy(
                "Read the end of this traceback in the program's output: it names the exception"
            ),
            *_remedies(),
        ),
        covers=tuple(_tracebacks(case, source)),
        gaps=() if "client-server" in case.roles else (_GAP,),
    )


def _closed(case: Case, events: list[Event]) -> Finding:
    """A call on a client whose connection had ended, if the output lacks the line that says why."""
    return Finding(
        "A call failed because the Ray Client was already closed: it lost its connection, or the program had disconnected it",
        (Link(events[0], "the client refuses the call"),),
        explains=(Entity("client", events[0].source.path),),
        caused_by=_ends(case),
        remedies=(
            Remedy(
                "Read the first error of the client above this one, and check that the program does not call ray.shutdown() before",
                ("grep -n -m3 -e 'data channel' -e 'connection grace' -e 'ray.shutdown' OUTPUT",),
                finds_cause=True,
            ),
            *_remedies(),
        ),
        covers=(*events, *_tracebacks(case, events[0].source)),
        gaps=() if "client-server" in case.roles else (_GAP,),
    )


_ATTEMPTS = 2
"""Failed attempts to connect at the end of a console: the first one may only be early."""


def _retried(case: Case) -> Iterator[list[Event]]:
    """Attempts to connect with which a console ends."""
    by_source = evidence.grouped(case.of(_RETRIED.kind), lambda e: e.source)
    for events in by_source.values():
        if evidence.total(events) >= _ATTEMPTS and case.is_last_of_console(events[-1]):
            yield events


def _dropped(case: Case, gave_up: list[Event]) -> Finding:
    source = gave_up[0].source
    lost = [e for e in case.of("client.lost") if e.source is source]
    ended = [e for e in case.of("client.shut_down") if e.source is source]
    seconds = _waited(lost, gave_up)
    within = f" within {seconds:.0f} s" if seconds is not None else ""
    forgotten = [e for e in gave_up if e.kind == "client.forgotten"]
    lost_its = "The Ray Client lost its connection to the cluster"
    headline = (
        f"{lost_its}, and its session on the head ended before it reconnected: after the grace period ({_GRACE} s), or with a restart"
        if forgotten
        else f"{lost_its} and could not reconnect{within}, so its driver on the head ends with all its tasks, actors and objects"
    )
    return Finding(
        headline,
        (
            *(Link(e, "the client loses its connection") for e in lost[-1:]),
            Link(gave_up[0], "the head refuses the old session" if forgotten else "the client stops reconnecting"),
            *(Link(e, "the program's next call fails") for e in ended[:1]),
        ),
        explains=(Entity("client", source.path),),
        caused_by=_ends(case),
        remedies=_remedies(),
        covers=(*gave_up, *lost, *ended, *_tracebacks(case, source)),
        gaps=() if "client-server" in case.roles else (_GAP,),
    )  # fmt: skip


def _waited(lost: list[Event], gave_up: list[Event]) -> float | None:
    """Seconds that the client tried to reconnect; None if unknown."""
    if gave_up[0]["seconds"]:
        return float(gave_up[0]["seconds"])
    begin, end = (lost[-1].at if lost else None), gave_up[0].at
    return None if begin is None or end is None else end - begin


def _never(case: Case, failed: list[Event]) -> Finding:
    first = failed[0]
    rejected = case.of("client.rejected")
    host, port = _address(case, first.source)
    if rejected:
        why = f"the server already has its maximum of {rejected[0]['limit']} clients"
    elif first["file"]:
        why = f"its server process on the head did not start (see {first['file']} there)"
    else:
        why = _unanswered(host, port)
    return Finding(
        f"The Ray Client could not connect: {why}",
        (
            Link(first, "the client cannot connect"),
            *(Link(e, "the server rejects the client") for e in rejected[:1]),
        ),
        explains=(Entity("client", first.source.path),),
        caused_by=_ends(case),
        remedies=(*_other_address(host, port), *_remedies()),
        covers=(*failed, *rejected, *_tracebacks(case, first.source), *case.of("client.no_server")),
        gaps=() if "client-server" in case.roles else (_GAP,),
    )


_OTHER_SERVERS = {"6379": "the GCS", "8265": "the dashboard"}
"""Default ports of the head that are not Ray Client's, and their servers."""


def _address(case: Case, source: Source) -> tuple[str, str]:
    """Host and port of the only `ray://` address in an output; empty if it names none or several."""
    found = {(e["host"], e["port"]) for e in case.of(_ADDRESS.kind) if e.source is source}
    return found.pop() if len(found) == 1 else ("", "")


def _unanswered(host: str, port: str) -> str:
    if server := _OTHER_SERVERS.get(port):
        return f"port {port} of {host} is usually {server}, and Ray Client's is 10001"
    at = f"ray://{host}:{port}" if port else "the address"
    return f"no server answered at {at} (port {port or 10001} of the head must be reachable)"


def _other_address(host: str, port: str) -> Iterator[Remedy]:
    if port in _OTHER_SERVERS:
        yield Remedy(
            "Connect to Ray Client's port, or without Ray Client on a node of the cluster",
            (
                paste.python("ray.init({address})", address=f"ray://{host}:10001"),
                "ray.init()   # on a node of the cluster",
            ),
            doc=_DOC,
        )
    elif port:
        yield Remedy(
            "Check that a Ray Client server listens on the head and is reachable",
            (
                paste.shell("nc -vz {head:address} {port:number}", head=host, port=port),
                paste.shell("ss -ltnp | grep {port:number}   # on the head", port=port),
            ),
            doc=_DOC,
        )


def _ends(case: Case) -> tuple[Entity, ...]:
    """Failures that end the client's server: of the GCS, of its job, or of its own process."""
    pids = {e["server_pid"] for e in case.of("client.server_started")}
    jobs = [j for j in case.ledger.jobs.values() if str(j.driver_pid) in pids]
    processes = [
        Entity("process", f"{ip}/{pid}")
        for ip in case.ledger.node_ips.values()
        for pid in sorted(pids)
    ]
    return (Entity("gcs", "gcs"), *(Entity("job", j.id) for j in jobs), *processes)


def _tracebacks(case: Case, source: Source) -> tuple[Event, ...]:
    return tuple(e for e in case.of("log.traceback") if e.source is source)


_GAP = Gap(
    "ray_client_server*.err",
    "only this log shows whether the server process ended or the connection was lost",
    "Copy /tmp/ray/session_latest/logs/ray_client_server* from the head into the folder with the logs, and diagnose that folder.",
)


def _remedies() -> tuple[Remedy, ...]:
    return (
        Remedy(
            "Submit the program as a job: it then runs on the cluster and needs no lasting connection",
            ("ray job submit --address http://HEAD:8265 --working-dir . -- python your_script.py",),
            doc=_JOB_DOC,
        ),
        Remedy(
            f"If the program needs Ray Client, raise the reconnection grace period above {_GRACE} s",
            ("export RAY_CLIENT_RECONNECT_GRACE_PERIOD=600   # where the client runs",),
            doc=_DOC,
        ),
        Remedy("Raise the idle timeout of the load balancer or ingress in front of port 10001"),
    )


# ------------------------------------------------------------------ examples


_STAMP = "2026-11-21 11:{},424\tWARNING dataclient.py:402 -- "
_PROXY = "2026-11-21 11:18:55,424\t"
_FRAMES = 'Traceback (most recent call last):\n  File "/app/train.py", line 49, in <module>\n    ray.get(train.remote(40))\n'
_DROPPED = f"{_STAMP.format('18:55')}{_LOST.sample}\n{_STAMP.format('19:05')}{_GAVE_UP[0].sample}\n{_FRAMES}{_SHUT_DOWN[0].sample}\n"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the connection drops and does not come back",
        {"driver.log": f"epoch 1\n{_DROPPED}", **QUIET_LOGS},
        says=("10 s", "ray job submit", "RAY_CLIENT_RECONNECT_GRACE_PERIOD"),
    ),
    console(
        "the thread of a client of 1.4 ends with an exception of gRPC",
        "Got Error from data channel -- shutting down: <_MultiThreadedRendezvous of RPC that terminated with:\n"
        "Exception in thread Thread-6:\nTraceback (most recent call last):\n"
        '  File "/venv/lib/python3.7/threading.py", line 926, in _bootstrap_inner\n    self.run()\n'
        '  File "/venv/lib/python3.7/site-packages/ray/util/client/dataclient.py", line 69, in _data_main\n    for response in stream:\n'
        '  File "/venv/lib/python3.7/site-packages/grpc/_channel.py", line 803, in _next\n    raise self\n'
        "grpc._channel._MultiThreadedRendezvous: <_MultiThreadedRendezvous of RPC that terminated with:\n",
        says=("The Ray Client failed in _data_main(), with _MultiThreadedRendezvous",),
        severity="warning",
    ),
    console(
        "the output begins below the loss of the connection",
        f"{_FRAMES}{_SHUT_DOWN[0].sample}\n",
        says=("already closed", "ray job submit"),
    ),
    console(
        "the proxy on the head cannot reach the client's server",
        f"{_FRAMES}ConnectionAbortedError: Initialization failure from server:\nTraceback (most recent call last):\n"
        '  File "/venv/ray/util/client/server/proxier.py", line 700, in Datapath\n    raise RuntimeError(\n'
        f"{_NO_BACKEND.sample}\n\n",
        says=("did not start", "ray_client_server_23000.err"),
    ),
    console(
        "a program catches the refusal of a closed client, and quotes the proxy",
        f"{_SHUT_DOWN[0].sample}\nwe once saw {_NO_BACKEND.sample}\nreconnected\nloss 0.1\n",
    ),
    Example(
        "Ray prints the grace period",
        {"driver.log": f"{_FRAMES}{_GAVE_UP[1].sample}\n", **QUIET_LOGS},
        says=("8 s", "RAY_CLIENT_RECONNECT_GRACE_PERIOD=600"),
    ),
    console(
        "the head no longer knows the session",
        f"{_STAMP.format('18:55')}{_LOST.sample}\n{_FRAMES}grpc._channel._MultiThreadedRendezvous: "
        "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.NOT_FOUND\n"
        f"{_FORGOTTEN.sample}\n>\n",
        says=("its session on the head ended", "RAY_CLIENT_RECONNECT_GRACE_PERIOD=600"),
    ),
    console(
        "the client never connected",
        f"{_FRAMES}{_NO_CONNECTION[0].sample}\n",
        says=("10001",),
    ),
    console(
        "the address has the port of the GCS, and only the warning was pasted",
        f"{_NO_CONNECTION[1].sample}\n  warnings.warn(\n{_FRAMES}".replace(
            "ray.get(train.remote(40))", _ADDRESS.sample
        ),
        says=("the GCS", "ray://10.0.0.2:10001"),
    ),
    console(
        "no server listens on Ray Client's port",
        f"connecting to ray://10.0.0.2:10001\n{_FRAMES}{_NO_CONNECTION[0].sample}\n",
        says=("ray://10.0.0.2:10001", "nc -vz 10.0.0.2 10001"),
    ),
    console(
        "a console that ends where the client connects",
        f"{_FRAMES}"
        '  File "/venv/site-packages/ray/util/client/__init__.py", line 94, in connect\n'
        "    self.client_worker._server_init(job_config, ray_init_kwargs)\n"
        '  File "/venv/site-packages/ray/util/client/worker.py", line 804, in _server_init\n    f"Initializat\n',
        severity="warning",
        says=("The Ray Client could not connect in _server_init",),
    ),
    console(
        "a console that ends within a traceback of the program's own client",
        f'{_FRAMES}  File "/app/util/client/__init__.py", line 94, in connect\n    self.open(\n',
        roots=("job-failed",),
    ),
    *(
        console(
            f"the client's own words for a broken connection: {sample[:30]}",
            f"{_FRAMES}{sample}\n",
            says=(says,),
        )
        for sample, says in (
            (_GAVE_UP[2].sample, "lost its connection"),
            (_GAVE_UP[3].sample, "lost its connection"),
            (_SHUT_DOWN[1].sample, "already closed"),
            (_SHUT_DOWN[2].sample, "already closed"),
        )
    ),
    console(
        "its server process did not start",
        f"{_FRAMES}ConnectionAbortedError: Initialization failure from server:\n"
        f"Traceback (most recent call last):\n{_NO_SERVER.sample}\n\n",
        logs=QUIET_LOGS,
        says=("ray_client_server_23000.err",),
    ),
    *(
        Example(
            f"the proxy's log alone shows that a server process ended, in {where}",
            {
                path: f"{_PROXY}INFO proxier.py:223 -- {_ENVIRONMENT.sample}\n{_PROXY}ERROR proxier.py:333 -- {_NOT_STARTED.sample}\n"
                f"{_PROXY}INFO proxier.py:341 -- {_SERVER.sample}\n"
                f"{_PROXY}ERROR proxier.py:707 -- {_NOT_STARTED.sample.removeprefix('Specific')}, using JobConfig: <ray.job_config.JobConfig "
                "object at 0x7f0c26b8c490>!\n",
                **logs,
            },
            says=(
                "its server process on the head (with a runtime_env) ended at its start",
                "ray_client_server_23000",
                "without runtime_env",
            ),
        )
        for where, path, logs in (
            ("its file", "logs/ray_client_server.err", QUIET_LOGS),
            ("a console", "driver.log", {}),
        )
    ),
    Example(
        "another client connects after one whose server process ended",
        {
            "logs/ray_client_server.err": f"{_PROXY}ERROR proxier.py:333 -- {_NOT_STARTED.sample}\n{_PROXY}INFO proxier.py:341 -- {_SERVER.sample}\n"
            f"{_PROXY}INFO proxier.py:341 -- {_SERVER.sample.replace('23000', '23001').replace('12a7', '90ff')}\n",
            **QUIET_LOGS,
        },
        says=("ended at its start",),
        severity="warning",
    ),
    console(
        "a program quotes the proxy",
        f"(check pid=12) {_NOT_STARTED.sample}\nnote: {_NOT_STARTED.sample}\nloss 0.1\n",
        logs=QUIET_LOGS,
    ),
    Example(
        "a short interruption after which the client reconnected",
        {"driver.log": f"{_STAMP.format('18:55')}{_LOST.sample}\nepoch 2\nepoch 3\n", **QUIET_LOGS},
    ),
    console(
        "a program that ends the client itself, and a task that prints the same words",
        f"done\n(check pid=12) {_DROPPED.splitlines()[0]}\n(check pid=12) {_GAVE_UP[0].sample}\n"
        "on 'Attempted to reconnect a session that has already been cleaned up' we connect again\n"
        "retry: Client is shutting down.\nwe use ray://10.0.0.2:6379\nRay Client connection timed out. Ensure that the Ray Client "
        "port is open\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a console that ends above the client's own frames",
        '$ python -c \'import ray; ray.init("ray://127.0.0.1:10001")\'\nTraceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
        '  File "/venv/site-packages/ray/worker.py", line 882, in init\n    return builder.connect()\n'
        '  File "/venv/site-packages/ray/client_builder.py", line 164, in connect\n    ray_init_kwargs=self._remote_init_kwargs,\n',
        roots=("ray-client-disconnected",),
        severity="warning",
    ),
)
