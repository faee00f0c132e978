"""A raylet was killed or crashed, and its node went down with it.

## What you see
- The driver gets `LocalRayletDiedError: The task's local raylet died` or `NodeDiedError`. An agent logs `Raylet is
  terminated. Termination is unexpected`.
- About 15 s later the GCS marks the node dead.

## Why
The raylet is the daemon that runs a node. If its log ends without a signal or an error, it was killed from outside: SIGKILL by a
person or script, or by the kernel's OOM killer. If the log ends with a failed check or a crash report, that is the
cause. All workers of the node exit with their raylet.

If the raylet's log is missing, raydoctor reports this rule when a running driver logs the end of its raylet, unless an
agent quotes the last lines of that log and they show a request to stop.

## Confirm
- That node's `raylet.out` and `raylet.err` end without a record of a signal or a shutdown.
- `Timed out waiting for file …/metrics_agent_port_…` means that the dashboard agent did not start in time
  (`dashboard_agent.log`).
- `sudo dmesg -T | grep -i 'killed process'` on that node shows the raylet's pid if the kernel's OOM killer ended it.
- The GCS's health checks report `Connection refused` (process gone), not `Deadline Exceeded` (process stalled).

## Fix
Find what killed the raylet. Keep memory free for the daemons (fewer workers, `memory=`). Restart the node: `ray start
--address=HEAD:6379`. Work that may run twice survives with `max_retries` and `max_restarts`.

## Not this when
- Ray was stopped on purpose: the log then contains `received SIGTERM` (`ray-stopped`).
- the raylet exited because the GCS was gone (`gcs-died`).
- the raylet exited because its agent died: it then logs `The raylet exited immediately because …` (`agent-died`).
- the raylet could open no more files: it then logs `Too many workers, failed to create a file.`
  (`file-descriptor-limit`).
- only an agent calls the end `unexpected`: since Ray 2.24, agents print this for every raylet that ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, console, rule
from raydoctor.case.signals import (
    LOCAL_RAYLET_FAILED,
    NODE_DEAD,
    NODE_HEALTH_FAILED,
    RAY_EXCEPTION,
    RAYLET_DRAINED,
    RAYLET_SIGTERM,
    RAYLET_STARTED,
    RAYLET_TERMINATED,
    RAYLET_TERMINATED_UNSENT,
)
from raydoctor.cluster import hosts
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Severity, Subject
from raydoctor.rules.shared import kernel, objects
from raydoctor.rules.shared.cluster import (
    AGENT_FAILED,
    CHECK_FAILED,
    CRASH_FRAMES,
    DAEMON_CRASH,
    FAULT_TOLERANCE_DOC,
    GCS_LOST,
    MARKED_DEAD,
    MARKED_DEAD_OLD,
    RAYLET_CLOSED,
    RAYLET_ERROR,
    TOLD_BY_OTHERS,
    TOO_MANY_FILES,
    UNHANDLED,
    WORKER_FRAME,
    DeadRaylet,
    dead_node,
    dead_raylets,
    echoed_checks,
    fatal_reason,
    is_drivers,
    is_of_gcs,
    is_of_raylet,
    last_words,
    lost_driver_errors,
    lost_jobs,
    witnesses,
)
from raydoctor.rules.shared.connect import NODE_NOT_STARTED
from raydoctor.rules.shared.crash import (
    CHECK,
    CRASH_SIGNALS,
    LOG_FRAME,
    NATIVE_FRAMES,
    NATIVE_STACK,
    OLD_FATAL,
    fatal_ends,
    of_daemons,
)
from raydoctor.rules.shared.kernel import journal_span
from raydoctor.rules.shared.live import daemons as live
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import processes

_ASKED_TO_STOP = pattern(r"received SIGTERM|graceful(?:ly)? shutdown|Stats module has shutdown")
"""What a raylet logs when it was asked to stop."""
_RAYLET_LOG = Gap(
    "raylet.out",
    "the log of the dead raylet is not in the capture",
    "Copy /tmp/ray/session_latest/logs/raylet.out from its node into the folder with the logs, and diagnose that folder.",
    about="raylet-out",
)


@rule(
    tier="root",
    severity="error",
    rank=10,
    explains=("job", "raylet"),
    caused_by=("daemon", "gcs", "host"),
    daemons_record=True,
    looks_for=(
        RAYLET_STARTED, RAYLET_DRAINED, RAYLET_SIGTERM, LOCAL_RAYLET_FAILED, RAYLET_TERMINATED, RAYLET_TERMINATED_UNSENT, NODE_HEALTH_FAILED, *NODE_DEAD,
        AGENT_FAILED, TOO_MANY_FILES, CHECK_FAILED, DAEMON_CRASH, UNHANDLED, *CRASH_FRAMES, WORKER_FRAME, MARKED_DEAD, MARKED_DEAD_OLD, RAYLET_ERROR, *RAYLET_CLOSED, RAY_EXCEPTION,
        *CRASH_SIGNALS, CHECK, LOG_FRAME, OLD_FATAL, NATIVE_STACK, *NATIVE_FRAMES, *NODE_NOT_STARTED,
    ),
)  # fmt: skip
def raylet_died(case: Case) -> Iterator[Finding]:
    """One finding per raylet, or one for a driver that lost its raylet when that raylet's log is missing."""
    stopped = {e["node_id"] for e in live.stopped(case, "raylet")}
    dead = [r for r in dead_raylets(case) if r.node not in stopped and not _only_stalled(case, r)]
    for raylet in dead:
        if not any(e.kind in TOLD_BY_OTHERS for e in raylet.said):
            yield _finding(case, raylet)
    for started, left in _gone_now(case, {raylet.node for raylet in dead}):
        ip = case.ledger.node_ips.get(started["node"], started["ip"])
        yield _finding(case, DeadRaylet(started["node"], ip, started.pid, started, (), ()), left)
    checks = evidence.grouped(echoed_checks(case), lambda e: (e["ip"], e["expression"].strip()))
    for events in checks.values():
        yield _from_check(case, events)
    printed = [] if case.of("raylet.started", "node.dead") else of_daemons(case, "raylet")
    if not (dead or checks):
        ends = (e for e in fatal_ends(case) if is_of_raylet(e) and not is_of_gcs(e))
        printed += [e for e in ends if GCS_LOST.find not in e.message]
    words = evidence.grouped([*last_words(case), *printed], lambda e: (e["ip"], _reason(e)))
    for events in words.values():
        yield _from_words(case, events)
    if lost := case.of(RAYLET_ERROR.kind):
        yield _from_workers(case, lost)
    errors = lost_driver_errors(case, ("LocalRayletDiedError",))
    reported = [] if dead or checks or case.ledger.stops else _reported(case)
    for events in evidence.grouped(reported, lambda e: e["ip"]).values():
        yield _from_agent(case, events, errors)
    cut = (
        []
        if errors or dead or checks or reported or lost or words or case.exits
        else _cut_off(case)
    )
    if cut and evidence.is_console(case):
        yield _disconnected(case, cut)
    if errors and not dead and not checks and not reported and not case.ledger.stops:
        yield Finding(
            "The raylet of the driver's node died, and its log is not in the capture",
            tuple(Link(e, "the driver got LocalRayletDiedError") for e in errors[:1]),
            explains=(Entity("raylet", "local"),),
            caused_by=(Entity("gcs", "gcs"),),
            count=1,
            severity="critical",
            remedies=_remedies(case, None),
            covers=errors,
            gaps=(_RAYLET_LOG,),
        )


_SOCKET_LOST = pattern(
    r"System error: (?:Broken pipe|Connection reset by peer|The Plasma Store client is disconnected\.?|Failed to (?:read data from|write data to) the "
    r"socket: (?:End of file|Broken pipe|Connection reset by peer))\s*$"
)
"""What a driver or worker reads from the socket of a raylet that has ended."""


def _cut_off(case: Case) -> list[Event]:
    """Exceptions of a driver that lost the raylet on its machine, with which its output ends."""
    return [
        e
        for e in case.of(RAY_EXCEPTION.kind)
        if e["type"] == "RaySystemError"
        and _SOCKET_LOST.match(e["what"].partition("\n")[0])
        and not evidence.goes_on(case, e, is_line=True)
    ]


def _disconnected(case: Case, events: list[Event]) -> Finding:
    what = events[0]["what"].partition("\n")[0].removeprefix("System error: ").rstrip(". ")
    return Finding(
        f"The driver lost its connection to the raylet on its machine ({what}): the raylet ended, or a process that the driver forked used its socket",
        tuple(Link(e, "the driver got RaySystemError") for e in events[:1]),
        explains=(Entity("raylet", "local"),),
        caused_by=(Entity("gcs", "gcs"),),
        count=evidence.total(events),
        severity="error",
        remedies=_remedies(case, None),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is events[0].source)),
        gaps=(_RAYLET_LOG,),
    )


def _reported(case: Case) -> list[Event]:
    """Unexpected ends of raylets that an agent reports, in a console without their logs.

    Since 2.24 an agent calls every end unexpected: only the end of the raylet's log, which it appends, shows a stop.
    """
    if not evidence.is_console(case):
        return []
    return [
        e
        for e in case.of(RAYLET_TERMINATED.kind)
        if (e["who"] or e.level or e.message.startswith(RAYLET_TERMINATED_UNSENT.find))
        and "unexpected" in e["verdict"]
        and not _ASKED_TO_STOP.search(e.message)
        and not case.torn_down(e)
    ]


def _from_agent(case: Case, events: list[Event], errors: tuple[Event, ...]) -> Finding:
    """An agent's report in the driver's echo, which only a running driver prints, or in the agent's own log."""
    first = events[0]
    ip, echoed = first["ip"], any(e["who"] for e in events)
    severity: Severity = "critical" if errors else "error" if echoed else "warning"
    return Finding(
        f"The raylet{f' of node {ip}' if ip else ''} ended, and the part of its log in the capture shows no request to stop",
        (
            Link(first, "an agent of the node found that its raylet had ended"),
            *(Link(e, f"the driver got {e['type']}") for e in errors[:1]),
        ),
        explains=(Entity("raylet", ip or "local"), *dead_node(case, ip)),
        caused_by=(Entity("gcs", "gcs"),),
        severity=severity,
        remedies=_remedies(case, None),
        covers=(*events, *errors),
        gaps=(_RAYLET_LOG,),
    )


def _from_check(case: Case, events: list[Event]) -> Finding:
    """A failed check in the driver's echo or in a log without its beginning."""
    first = events[0]
    ip, expression = first["ip"], " ".join(first["expression"].split())
    errors = lost_driver_errors(case, ("LocalRayletDiedError",))
    place = f" of node {ip}" if ip else ""
    agent = _late_agent(expression)
    return Finding(
        f"The raylet{f' (pid {first.pid})' if first.pid is not None else ''}{place} {_why(first, agent)}",
        (
            Link(first, "one of Ray's own checks failed, which ends the raylet and its node"),
            *(Link(e, f"the driver got {e['type']}") for e in errors[:1]),
        ),
        explains=(Entity("raylet", ip or "local"), *dead_node(case, ip)),
        caused_by=(Entity("gcs", "gcs"),),
        subjects=(Subject("raylet", None, "raylet", first.pid),),
        severity="critical" if errors else "error",
        remedies=(
            _start_agent(agent) if agent else _search(expression),
            *_retries(case),
        ),
        covers=(*events, *errors),
    )


_LATE_PORT = pattern(r"Timed out waiting for file \S*/(?P<port>\w+?)_port_[0-9a-f]{8,}")
"""The agents of 2.60 report their ports in files of the session, for which the raylet waits."""


def _late_agent(expression: str) -> str:
    """The agent that did not report its port to the raylet; otherwise empty."""
    found = _LATE_PORT.search(expression)
    if not found:
        return ""
    return "runtime_env_agent" if found["port"].startswith("runtime_env") else "dashboard_agent"


def _why(check: Event, agent: str) -> str:
    if agent:
        return f"ended itself because its {agent} did not report its port in time"
    return fatal_reason(check)


def _start_agent(agent: str) -> Remedy:
    return Remedy(
        f"Read why the {agent} did not start, or wait until the machine is less busy, and start the node again",
        (
            "tail -n 50 /tmp/ray/session_latest/logs/*_agent.log; uptime   # on that node. After a restart of Ray, read the old session instead of session_latest",
        ),
    )


def _search(expression: str) -> Remedy:
    return Remedy(
        "Search Ray's issues for the expression, and try a newer Ray if it is fixed there",
        (
            paste.shell(
                "https://github.com/ray-project/ray/issues?q={words:url}",
                words=" ".join(expression.split()[:8]),
            ),
        ),
    )


def _from_words(case: Case, events: list[Event]) -> Finding:
    """A crash or an exit in the driver's echo or in a log without its beginning."""
    first = events[0]
    count = evidence.total(events)
    times = f" {count} times" if count > 1 else ""
    place = f" of node {first['ip']}" if first["ip"] else ""
    return Finding(
        f"The raylet{f' (pid {first.pid})' if first.pid is not None else ''}{place} {_reason(first)}{times}",
        (Link(first, f"the raylet {_reason(first)}"),),
        explains=(Entity("raylet", first["ip"] or "local"),),
        caused_by=(Entity("gcs", "gcs"),),
        subjects=(Subject("raylet", None, "raylet", first.pid),),
        remedies=_remedies(case, None),
        covers=tuple(events),
    )


def _from_workers(case: Case, events: list[Event]) -> Finding:
    """What workers of an old Ray print when their raylet is gone."""
    return Finding(
        "The raylet of a node died, and its log is not in the capture",
        (Link(events[0], "a process of the node lost the connection to its raylet"),),
        explains=(Entity("raylet", "local"),),
        caused_by=(Entity("gcs", "gcs"),),
        count=1,
        remedies=_remedies(case, None),
        covers=tuple(events),
    )


def _only_stalled(case: Case, raylet: DeadRaylet) -> bool:
    """Whether only health checks timed out and no record shows that the process ended (`node-died`)."""
    checks = [e for e in case.of("node.health_failed") if e["node"] == raylet.node]
    in_time = [e for e in checks if "Deadline" in e["status"]]
    seen = {e.kind for e in raylet.seen}
    return (
        bool(in_time) and len(in_time) == len(checks) and not raylet.said and seen <= {"node.dead"}
    )


def _gone_now(case: Case, known: set[str]) -> Iterator[tuple[Event, Event]]:
    """(its start, a daemon that outlived it) of raylets that are gone although no log reports it yet."""
    for started in case.of("raylet.started"):
        was_stopped = case.stopped_at(started["node"]) < float("inf")
        if (
            started["node"] not in known
            and not was_stopped
            and (left := live.raylet_gone(case, started))
        ):
            yield started, left


def _finding(case: Case, raylet: DeadRaylet, left: Event | None = None) -> Finding:
    local = is_drivers(case, raylet.node)
    links = [Link(e, f"the raylet {_reason(e)}") for e in raylet.said[:1]]
    if not raylet.said and raylet.started:
        links.insert(
            0,
            Link(
                raylet.started,
                "from this line to its end, the log records no SIGTERM and no shutdown",
            ),
        )
    links += witnesses(raylet)
    if left:
        links.append(
            Link(
                left,
                f"{left['kind']} {left.pid} is still running there, but no raylet with pid {raylet.pid}",
            )
        )
    errors = lost_driver_errors(
        case, ("LocalRayletDiedError", "RaySystemError") if local else ("LocalRayletDiedError",)
    )
    links += [Link(e, f"the driver got {e['type']}") for e in errors[:1]]
    how = _how(raylet)
    return Finding(
        f"The raylet (pid {raylet.pid}) of {case.node_name(raylet.node, raylet.ip)} {how}",
        tuple(links),
        explains=(Entity("raylet", raylet.node), *lost_jobs(case, raylet)),
        caused_by=(
            Entity("gcs", "gcs"),
            Entity("daemon", f"{raylet.ip}/{raylet.pid}"),
            *hosts.of_node(raylet.node, raylet.ip),
        ),
        subjects=(Subject("raylet", raylet.node, "raylet", raylet.pid, raylet.node),),
        severity="critical" if local else "error",
        remedies=_remedies(case, raylet),
        covers=(*raylet.seen, *raylet.said, *errors),
        gaps=() if raylet.said else _kernel(case, raylet),
    )


def _how(raylet: DeadRaylet) -> str:
    if raylet.said:
        return _reason(raylet.said[0])
    return "ended suddenly, probably by SIGKILL: its log stops without a signal or an error"


def _reason(event: Event) -> str:
    if event.kind == "raylet.marked_dead":
        return "exited because the GCS had marked it dead: overload or network, not a crash"
    return fatal_reason(event)


def _kernel(case: Case, raylet: DeadRaylet) -> tuple[Gap, ...]:
    return kernel.gaps(
        case,
        f"node {raylet.ip}",
        f"only this log shows whether the kernel's OOM killer ended pid {raylet.pid}",
        kernel.raylet_logs(case, [raylet.node]),
    )


def _remedies(case: Case, raylet: DeadRaylet | None) -> tuple[Remedy, ...]:
    where = case.node_name(raylet.node, raylet.ip) if raylet else "the node"
    return (
        Remedy(
            f"Find what killed the raylet on {where}",
            (
                paste.shell(
                    "sudo dmesg -T | grep -iwE 'killed process {pid:pid}|out of memory'   # if Ray runs in a container, the kernel log shows another pid: look for a kill at that time",
                    pid=raylet.pid,
                )
                if raylet and raylet.pid
                else "sudo dmesg -T | grep -iE 'killed process|out of memory'",
                paste.shell(
                    "journalctl --since {since} --until {until} | grep -iE 'kill|oom|shutdown'",
                    **journal_span(case, [*raylet.said, *raylet.seen] if raylet else []),
                ),
            ),
            doc=FAULT_TOLERANCE_DOC,
            finds_cause=True,
        ),
        *(_survivors(case, raylet) if raylet else ()),
        *_retries(case),
    )


def _survivors(case: Case, raylet: DeadRaylet) -> Iterator[Remedy]:
    """Its workers that keep running because its parent does not reap it (`raylet-defunct`)."""
    for defunct in processes.defunct_raylets(case):
        if defunct.pid == raylet.pid and defunct.event["node_id"] in ("", raylet.node):
            left = (*defunct.workers, *defunct.others)
            title = "End the workers of the dead raylet that keep running"
            yield processes.end(title, [p.pid for p in left], processes.place(case, left))


def _retries(case: Case) -> tuple[Remedy, ...]:
    title = "Set retries and restarts, so that work survives the loss of a node"
    return objects.survive(case, title)


# ------------------------------------------------------------------ examples


_N = "fd875f52489dc9a2f53c85a6f87fba13611a3340ab1d20bc262561bf"
_STARTED = (
    f"[2026-11-21 07:44:03,993 I 305 305] (raylet) node_manager.cc:355: Raylet of id, {_N} started. Raylet consists of "
    "node_manager and object_manager. node_manager address: 10.0.0.2:0 object_manager address: 10.0.0.2:46637 hostname: n\n"
)
_SEEN = (
    "[2026-11-21 07:44:10,500 W 424 462] core_worker.cc:1075: Shutting down the core worker because the local raylet failed. "
    "Check out the raylet.out log file. Raylet pid: 305\n"
)
_CORE = f"logs/python-core-worker-{'b' * 56}_424.log"
_PLACED = (
    "[2026-11-21 07:44:05,123 I 13 25] (gcs_server) gcs_actor_scheduler.cc:447: Start creating actor "
    f"775f6c931a052a50cda6d8c901000000 on worker {'b' * 56} at node {_N}, job id = 01000000\n"
)
_BROKEN = "[2026-11-21 07:44:10,910 C 431 431] core_worker.cc:2694:  Check failed: _s.ok() Bad status: IOError: Broken pipe\n"
_STOPPED = "[2026-11-21 07:44:10,000 I 305 305] (raylet) main.cc:1174: received SIGTERM. Existing local drain request = None\n"
_AGENT = (
    "2026-11-21 07:44:10,600\tERROR process_watcher.py:115 -- Raylet is terminated. Termination is unexpected. Possible reasons "
    "include: (1) SIGKILL by the user or system OOM killer\n"
)
_GIVEN_UP = (
    f"[2026-11-21 07:45:24,439 W 13 13] (gcs_server) gcs_health_check_manager.cc:209: Health check failed for node {_N}, remaining "
    "checks 0, status 4, response status 0, status message Deadline Exceeded, status details \n"
    f"[2026-11-21 07:45:24,440 W 13 13] (gcs_server) gcs_health_check_manager.cc:88: Node is dead because the health check failed. "
    f"node_id={_N}\n"
)


def _daemons(*running: tuple[str, int]) -> dict[str, str]:
    """The process table of the machine, with these daemons of the cluster."""
    return sample.tables(1795247060.0, daemons=[sample.daemon(*each) for each in running])


_TERMINATED = f"{RAYLET_TERMINATED.sample} Last 20 lines of the Raylet logs:\n"

_FRAMES = (
    "*** SIGSEGV received at time=1795247060 on cpu 5 ***\nPC: @     0x55d2f3a3c1d4  (unknown)  {}\n"
    "    @     0x7f6b1e042520  (unknown)  (unknown)\n    @     0x55d2f3a3d2a1       1200  {}\n"
)
_STACK = (
    "*** StackTrace Information ***\n/venv/site-packages/ray/{}(+0xbd3d9a) [0x55d5b0c3ad9a] ray::operator<<()\n"
    "/venv/site-packages/ray/{}(+0x2a4b1a) [0x55d5b030bb1a] std::_Function_handler<>::_M_invoke()\n"
)
_BINARY = "core/src/ray/raylet/raylet"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "SIGKILL ended the raylet, so its log stops without a reason, and its workers notice",
        {
            "logs/raylet.out": _STARTED,
            _CORE: _SEEN,
            "logs/gcs_server.out": "",
            "logs/dashboard_agent.log": _AGENT,
        },
        says=("pid 305", "10.0.0.2"),
        severity="critical",
    ),
    Example(
        "an actor's process fails a check because its connection to the raylet is gone",
        {
            "logs/raylet.out": _STARTED,
            _CORE.replace("b" * 56, "c" * 56): _SEEN,
            "logs/gcs_server.out": _PLACED,
            _CORE.replace("424", "431"): _BROKEN,
        },
        consequences=("ray-check-failed",),
        says=("pid 305",),
        severity="critical",
    ),
    Example(
        "the same check, and the raylet is alive",
        {
            "logs/raylet.out": _STARTED,
            "logs/gcs_server.out": _PLACED,
            _CORE.replace("424", "431"): _BROKEN,
        },
        roots=("ray-check-failed",),
    ),
    console(
        "an agent's last words, which it could not send to the GCS",
        f"{RAYLET_TERMINATED_UNSENT.sample} Last 20 lines of the Raylet logs:\n    [2026-11-21 07:44:10,573 I 29 90] (raylet) "
        "ray_syncer.cc:99: Connection is broken. Reconnect to node.\n",
        severity="warning",
    ),
    Example(
        "a fatal record in words that no check uses",
        {
            "logs/raylet.out": f"{_STARTED}[2026-11-21 07:44:10,000 C 305 305] (raylet) ray_config.cc:60: Received unexpected config "
            "parameter no_such_setting\n",
            _CORE: _SEEN,
            "logs/gcs_server.out": "",
        },
        says=("pid 305", "ended itself: Received unexpected config parameter no_such_setting"),
        severity="critical",
    ),
    Example(
        "a raylet that could not start, and ray.init that waited for it",
        {
            "logs/raylet.out": "[2026-11-21 07:44:10,000 C 305 305] (raylet) threshold.cc:33: An unexpected system state has occurred. "
            "You have likely discovered a bug in Ray.  Check failed: RAY_PREDICT_TRUE(_left_ <= _right_) 7.5 vs 1 usage_threshold must be <= 1\n",
            "logs/gcs_server.out": "",
            "driver.log": 'Traceback (most recent call last):\n  File "/app/b.py", line 2, in <module>\n    ray.init()\n'
            '  File "/lib/python3.11/site-packages/ray/_private/node.py", line 440, in __init__\n    raise Exception(\n'
            "Exception: The current node timed out during startup.\n",
        },
        consequences=("job-failed",),
        says=("usage_threshold must be ‹= 1",),
    ),
    Example(
        "SIGTERM, which the agent calls unexpected all the same",
        {
            "logs/raylet.out": _STARTED + _STOPPED,
            _CORE: _SEEN,
            "logs/gcs_server.out": "",
            "logs/dashboard_agent.log": _AGENT,
        },
    ),
    Example(
        "killed a moment ago: the process table shows the GCS and no raylet",
        {"logs/raylet.out": _STARTED, "logs/gcs_server.out": "", **_daemons(("gcs_server", 13))},
        says=("pid 305", "10.0.0.2"),
        severity="critical",
    ),
    Example(
        "the process table shows that the raylet is alive",
        {
            "logs/raylet.out": _STARTED,
            "logs/gcs_server.out": "",
            **_daemons(("gcs_server", 13), ("raylet", 305)),
        },
    ),
    Example(
        "the raylet received SIGTERM and has exited",
        {
            "logs/raylet.out": _STARTED + _STOPPED,
            "logs/gcs_server.out": "",
            **_daemons(("gcs_server", 13)),
        },
    ),
    Example(
        "the GCS gave up the node after timeouts, and no record shows that the raylet was killed",
        {"logs/raylet.out": _STARTED, "logs/gcs_server.out": _GIVEN_UP},
        roots=("node-died",),
    ),
    console(
        "only the driver's output is left",
        "ray.exceptions.LocalRayletDiedError: The task's local raylet died. Check raylet.out for more information.\n",
        severity="critical",
    ),
    console(
        "the driver echoes the raylet's failed check",
        "(raylet, ip=10.0.0.7) [2026-11-21 07:44:10,500 C 338 338] (raylet) lease_pool.cc:51:  Check failed: "
        "lease.IsNil() || lease.Owner() == owner \n(raylet, ip=10.0.0.7) *** StackTrace Information ***\n",
        says=("lease.IsNil() or lease.Owner() == owner", "10.0.0.7", "pid 338"),
    ),
    console(
        "a paste that begins within the stack of a raylet's failed check",
        "".join(
            f"    /venv/site-packages/ray/core/src/ray/raylet/raylet(+0x{n}1a557) [0x55d5b0c3{n}d9a] {name}\n"
            for n, name in enumerate(
                ("ray::RayLog::~RayLog()", "ray::raylet::NodeManager::Start()", "main"), 2
            )
        ),
        says=("raylet",),
    ),
    console(
        "a paste that begins within the header of a raylet's failed check on Windows",
        "(raylet.exe) dlmalloc.cc:129:  Check failed: *handle != nullptr CreateFileMapping() failed. GetLastError() = 1450\n"
        "[2026-11-21 07:44:10,270 I 338 496] (raylet.exe) store.cc:245: at capacity\n",
        says=("a check failed: *handle != nullptr CreateFileMapping() failed",),
    ),
    console(
        "a task that quotes it",
        "(audit pid=12) (raylet) dlmalloc.cc:129:  Check failed: *handle != nullptr\n",
    ),
    Example(
        "the end of a raylet's log, with a failed check",
        {
            "logs/raylet.out": "[2026-11-21 07:44:10,500 C 338 338] (raylet) lease_pool.cc:87:  Check failed: (_left_ != _right_) nil vs nil \n"
            "*** StackTrace Information ***\n"
        },
        says=("(_left_ != _right_)", "pid 338"),
    ),
    *(
        Example(
            f"the {agent} of a raylet does not report its port",
            {
                "logs/raylet.out": "[2026-11-21 07:44:10,500 C 338 338] (raylet) node_manager.cc:3576:  An unexpected system state "
                "has occurred. You have likely discovered a bug in Ray. Check failed: statussetor3576.has_value() Timed out waiting "
                f"for file /tmp/ray/session_1/{port}_{'b' * 56}\n*** StackTrace Information ***\n"
            },
            says=(f"its {agent} did not report its port in time", "pid 338"),
        )
        for agent, port in (
            ("dashboard_agent", "metrics_agent_port"),
            ("runtime_env_agent", "runtime_env_agent_port"),
        )
    ),
    Example(
        "a check that waits for another file",
        {
            "logs/raylet.out": "[2026-11-21 07:44:10,500 C 338 338] (raylet) lease_pool.cc:87:  Check failed: file.has_value() "
            "Timed out waiting for file /tmp/ray/session_1/leases\n*** StackTrace Information ***\n"
        },
        says=("a check failed: file.has_value()",),
    ),
    console(
        "only the driver's echo of an agent's report is left",
        f"(raylet, ip=10.0.0.7) {_TERMINATED}    [state-dump] NodeManager: 3 leases\n",
        says=("10.0.0.7", "shows no request to stop"),
    ),
    Example(
        "only an agent's own log is left",
        {
            "agent.txt": f"2026-11-21 07:44:11,500\tERROR process_watcher.py:116 -- {_TERMINATED}    [state-dump] 3 leases\n"
        },
        severity="warning",
    ),
    console(
        "the raylet's log, which the agent appends to its report, shows a stop",
        f"(raylet) {_TERMINATED}    [2026-11-21 07:44:10,500 I 305 305] (raylet) main.cc:917: received SIGTERM. "
        "Existing local drain request = None\n    [2026-11-21 07:44:10,501 I 305 305] (raylet) main.cc:307: Raylet graceful "
        "shutdown triggered, reason = EXPECTED_TERMINATION, reason message = received SIGTERM\n",
    ),
    console(
        "programs quote an agent's report",
        f"(report pid=9) {_TERMINATED}{_TERMINATED}",
    ),
    console(
        "a task quotes the line",
        "(report pid=9) (raylet) lease_pool.cc:51:  Check failed: lease.IsNil()\n",
    ),
    console(
        "a console with the raylet's crash report",
        "(raylet, ip=10.0.0.2) [2026-11-21 07:44:44,626 E 305 309] (raylet) logging.cc:321: *** SIGSEGV received at "
        "time=1795247084 on cpu 0 ***\n",
        says=("The raylet (pid 305) of node 10.0.0.2 crashed: SIGSEGV",),
    ),
    Example(
        "Ray 1.11: the GCS had marked the node dead",
        {
            "logs/raylet.out": f"[2026-11-21 07:44:44,626 C 305 305] (raylet) node_manager.cc:170: {MARKED_DEAD_OLD.sample}\n"
        },
        says=("the GCS had marked it dead",),
    ),
    console(
        "Ray 0.8: a worker lost its raylet",
        f"(pid=41715) {RAYLET_ERROR.sample}\n",
        roots=("raylet-died",),
    ),
    console(
        "a worker that starts crashes and prints into the raylet's log",
        "(raylet) [2026-11-21 07:44:44,626 E 399 400] logging.cc:321: *** SIGSEGV received at time=1795247084 on cpu 0 "
        "***\n",
    ),
    console(
        "a program writes about the exception of Ray 0.8",
        "except ray.exceptions.RayletError: print('The Raylet died')\n",
    ),
    console(
        "a console with the report of a crash and the raylet's own frames",
        "(raylet) *** SIGBUS received at time=1795246490 on cpu 166 ***\n(raylet) PC: @     0x7f65bf115c61  "
        f"(unknown)  (unknown)\n(raylet) {CRASH_FRAMES[1].sample}\n",
        says=("crashed: SIGBUS",),
    ),
    console(
        "a console with the crash of a process that a raylet started",
        "(raylet) *** SIGBUS received at time=1795246490 on cpu 166 ***\n(raylet) PC: @     0x7f65bf115c61  "
        "(unknown)  (unknown)\n(raylet)     @     0x56423c3996c4       1200  ray::core::CoreWorker::Exit()\n",
    ),
    console(
        "a part of a raylet's log with an uncaught exception",
        "[2026-11-21 07:44:10,419 I 305 305] (raylet) local_resource_manager.cc:287: Object store memory is not idle.\n"
        f"[2026-11-21 07:44:10,420 E 305 305] (raylet) logging.cc:108: {UNHANDLED.sample}\n",
        says=("uncaught C++ exception: St13runtime_error",),
    ),
    console(
        "a worker that crashes while it starts",
        "(raylet) *** SIGSEGV received at time=1795247733 on cpu 0 ***\n(raylet)     @     0x56423c3996c4       1200  "
        f"ray::raylet::RayletConnection::AtomicRequestReply()\n(raylet) {WORKER_FRAME.sample}\n",
    ),
    console(
        "a pasted crash report that only its frames identify",
        _FRAMES.format(
            "ray::raylet::WorkerPool::PopWorker()", "ray::raylet::NodeManager::DoWork()"
        ),
        says=("crashed: SIGSEGV",),
    ),
    console(
        "the crash of a worker, which calls its raylet",
        _FRAMES.format("ray::raylet::RayletClient::Wait()", "ray::core::CoreWorker::Wait()"),
        roots=("worker-native-crash",),
    ),
    console(
        "a failed check without its header, above the raylet's stack",
        f"Check failed: it != end() \n{_STACK.format(_BINARY, _BINARY)}",
        says=("a check failed: it != end()",),
    ),
    console(
        "the raylet's stack alone",
        _STACK.format(_BINARY, _BINARY),
        says=("for a reason that the text does not contain",),
    ),
    console(
        "a program that prints such a check, without a stack",
        "unit test 4: Check failed: it != end() \nall other tests passed\n",
    ),
    console(
        "a raylet's check in the driver's echo, shortened by a person",
        "(raylet) node_manager.cc:3557: ... Check failed: ... Timed out waiting for file\n"
        "Exception: The current node timed out during startup. This could happen because some of\n",
        roots=("raylet-died",),
        consequences=("driver-not-registered",),
    ),
    console(
        "a fatal record of the raylet in the driver's echo, without the words of a check",
        "(raylet) [2026-11-21 07:44:44,626 C 399 399] (raylet) shared_memory.cc:32: mmap failed\n(raylet) *** StackTrace Information ***\n",
        says=("The raylet (pid 399) ended itself: mmap failed",),
    ),
    console(
        "the same from a worker that starts, and a task's own record",
        "(raylet) [2026-11-21 07:44:44,626 C 399 399] shared_memory.cc:32: mmap failed\n"
        "(check pid=12) (raylet) shared_memory.cc:32: mmap failed\n",
        roots=("ray-check-failed",),
    ),
    console(
        "Ray 0.8 echoes the last record of a raylet",
        f"(pid=raylet, ip=10.0.0.3) F0827 15:46:04.819053  1144  1156 malloc.cc:56] no entry for fd 0\n"
        "(pid=raylet, ip=10.0.0.3) *** Check failure stack trace: ***\n"
        "(pid=raylet, ip=10.0.0.3)     @     0x56142bb84d1d  google::LogMessage::Fail()\n"
        f"(pid=raylet, ip=10.0.0.3) {LOG_FRAME.sample}\n",
        says=("of node 10.0.0.3 ended itself: no entry for fd 0",),
    ),
    console(
        "the driver's socket to the raylet breaks",
        'Traceback (most recent call last):\n  File "/app/train.py", line 5, in <module>\n    ray.get(ref)\n'
        "ray.exceptions.RaySystemError: System error: Broken pipe\n",
        says=("lost its connection to the raylet on its machine (Broken pipe)",),
        severity="error",
    ),
    console(
        "a program catches the error of a broken socket and continues",
        "ray.exceptions.RaySystemError: System error: Broken pipe\nconnecting again\nloss 0.1\n",
    ),
    *(
        console(
            f"a process of an older Ray loses its raylet: {signal.sample}",
            f"{head}{signal.sample}\n",
            says=("The raylet of a node died",),
        )
        for signal, head in zip(
            RAYLET_CLOSED,
            (
                '(pid=7) Traceback (most recent call last):\n(pid=7)   File "python/ray/_raylet.pyx", line 60, in ray._raylet.check_status\n(pid=7) ',
                "(pid=20260) E0701 12:47:39.776859 20260 20405 core_worker.cc:693] ",
                "F0207 11:16:26.652703 51019 direct_task_transport.cc:154] ",
            ),
            strict=True,
        )
    ),
)
