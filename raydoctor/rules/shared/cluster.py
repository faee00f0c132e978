"""Raylets, GCS and nodes: signals and joins that their rules share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.case.signals import CORE, DRIVER, GCS, RAYLET
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import cut
from raydoctor.model.values import Event, Link, Remedy

FAULT_TOLERANCE_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/nodes.html"
GCS_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/gcs.html"

RAY_STOP = "ray stop   # stops every Ray process of this user on this machine. Run as root, it stops those of every user"
"""It signals each process whose name or command line is Ray's (`scripts/scripts.py`, 2.9 to 2.60)."""


def restore(setting: str, limit: float, default: float) -> Remedy:
    """For a time limit below Ray's default: raising it a little would leave it there."""
    return Remedy(
        f"Restore Ray's default of {default:g} s: the limit was lowered to {limit:g} s",
        (
            paste.shell(
                "unset {setting:name}   # on every node, or remove it from the unit file or pod spec that sets it. Then restart Ray",
                setting=setting,
            ),
        ),
        risk="disruptive",
        doc=GCS_DOC,
    )


GCS_LOST = Signal(
    "gcs.lost", "Failed to connect to GCS within ",
    r"^Failed to connect to GCS within (?P<seconds>\d+) seconds", (*RAYLET, *CORE, *DRIVER, "core-io", "client-server"),
    "Failed to connect to GCS within 8 seconds. GCS may have been killed. It's either GCS is terminated by `ray stop` or is "
    "killed unexpectedly.", fold=("seconds",),
)  # fmt: skip
GCS_LOST_CHECK = Signal(
    GCS_LOST.kind, "_timeout_s() Failed to connect to GCS within ",
    r"^\s{0,4}Check failed: [^\n]{0,4000}?_reconnect_timeout_s\(\) Failed to connect to GCS within (?P<seconds>\d+) seconds",
    (*CORE, *DRIVER, "raylet-echo"),
    "Check failed: absl::ToInt64Seconds(absl::Now() - gcs_last_alive_time_) < "
    "::RayConfig::instance().gcs_rpc_server_reconnect_timeout_s() Failed to connect to GCS within 60 seconds", fold=("seconds",),
)  # fmt: skip
"""The check of 2.0 to 2.4 that fails for this reason, in a console."""
GCS_LOST_CUT = Signal(
    GCS_LOST.kind, "_timeout_s() Failed to connect to GCS within ",
    r"^(?!.{0,4000}Check failed).{0,4000}?_reconnect_timeout_s\(\) Failed to connect to GCS within (?P<seconds>\d+) seconds", DRIVER,
    "Message:instance().gcs_rpc_server_reconnect_timeout_s() Failed to connect to GCS within 60 seconds", fold=("seconds",),
)  # fmt: skip
"""The end of the check that fails for this reason (2.0 to 2.4), as the status of a container keeps it."""
GCS_STREAM_LOST = tuple(
    Signal(
        "gcs.stream_lost", f"Failed to read {text} 00000000", rf"^Failed to read {text} 0{{56}}", RAYLET,
        f"Failed to read {text} {'0' * 56}",
    )
    for text in ("the message from:", "a message from node:")
)  # fmt: skip
"""A raylet's connection to the GCS, whose node id is all zeros, broke."""
DRIVER_GOODBYE = Signal(
    "driver.goodbye", "exit_detail=Shutdown by ray.shutdown()", r"exit_detail=Shutdown by ray\.shutdown\(\)", ("core-driver",),
    "RayletIpcClient::Disconnect, exit_type=INTENDED_USER_EXIT, exit_detail=Shutdown by ray.shutdown()., "
    "has_creation_task_exception_pb_bytes=0",
)  # fmt: skip
CHECK_FAILED = Signal(
    "ray.check_failed", "Check failed: ", r"Check failed: (?P<expression>[^\n]+)", (*RAYLET, *GCS, "raylet-echo"),
    "Check failed: status.ok() Failed to bind", extent="record", symptom=True,
)  # fmt: skip
DAEMON_CRASH = Signal(
    "daemon.crash", " received at time=", r"^\*\*\* (?P<signal>SIG[A-Z]+) received at time=(?P<epoch>\d+)", (*RAYLET, *GCS),
    "*** SIGSEGV received at time=1795246490 on cpu 0 ***", symptom=True,
)  # fmt: skip
UNHANDLED = Signal(
    "daemon.unhandled", "Unhandled exception: ", r"^Unhandled exception: (?P<expression>[^\n]{1,500})", RAYLET,
    "Unhandled exception: St13runtime_error. what(): no space", symptom=True,
)  # fmt: skip
"""`util/logging.cc`, 2.9 to 2.60: the handler of uncaught C++ exceptions, which then ends the process."""
CRASH_FRAMES = tuple(
    Signal(
        "daemon.frame", f"ray::{name}::", rf"^ *@ +0x[0-9a-f]+ +\S+ +ray::{name}::(?!RayletClient|RayletConnection)\w", ("raylet-echo",),
        f"    @     0x56423c3996c4       1200  ray::{name}::HandlePush()",
    )
    for name in ("raylet", "ObjectManager")
)  # fmt: skip
"""Native frames that only a raylet has, in a driver's echo of its crash."""
WORKER_FRAME = Signal(
    "daemon.worker_frame", "ray::core::CoreWorker", r"^ *@ +0x[0-9a-f]+ +\S+ +ray::core::CoreWorker\w*", ("raylet-echo",),
    "    @     0x56423c3996c4       1200  ray::core::CoreWorker::CoreWorker()",
)  # fmt: skip
"""A worker that starts prints as the raylet does."""
AGENT_FAILED = Signal(
    "raylet.agent_failed", "The raylet exited immediately because ",
    r"^The raylet exited immediately because (?:the Ray agent failed|one Ray agent failed, agent_name = (?P<agent>\w+)|"
    r"the (?P<late>runtime env agent) timed out)", (*RAYLET, "raylet-echo"),
    "The raylet exited immediately because one Ray agent failed, agent_name = dashboard_agent.", symptom=True,
)  # fmt: skip
TOO_MANY_FILES = Signal(
    "raylet.too_many_files", "Too many workers, failed to create a file. ",
    r"^Too many workers, failed to create a file\. Try setting `ulimit -n", (*RAYLET, "raylet-echo"),
    "Too many workers, failed to create a file. Try setting `ulimit -n <num_files>` then restart Ray.", symptom=True,
)  # fmt: skip
MARKED_DEAD = Signal(
    "raylet.marked_dead", "has mistakenly been marked as dead by the GCS",
    r"Exiting because this node manager has mistakenly been marked as dead by the GCS", RAYLET,
    "[Timeout] Exiting because this node manager has mistakenly been marked as dead by the GCS: GCS failed to check the health "
    "of this node for 5 times. This is likely because the machine or raylet has become overloaded.", symptom=True,
)  # fmt: skip
MARKED_DEAD_OLD = Signal(
    "raylet.marked_dead", "This node has be", r"^This node has bee[nm] marked as dead\.", RAYLET,
    "This node has beem marked as dead.", symptom=True,
)  # fmt: skip
"""`node_manager.cc` of 1.x, level C."""
RAYLET_ERROR = Signal(
    "raylet.error", "RayletError: The Raylet died with this message: ",
    r"\bray\.exceptions\.RayletError: The Raylet died with this message: (?P<what>.*)", ("worker-echo", *DRIVER),
    "ray.exceptions.RayletError: The Raylet died with this message: [RayletClient] Raylet connection closed.",
)  # fmt: skip
"""What workers and drivers of 0.7 and 0.8 raise."""
RAYLET_CLOSED = tuple(
    Signal(RAYLET_ERROR.kind, find, words, ("worker-echo", *DRIVER), sample)
    for find, words, sample in (
        (
            "Exception: [RayletClient] Raylet connection closed.", r"^Exception: (?P<what>\[RayletClient\] Raylet connection closed\.)",
            "Exception: [RayletClient] Raylet connection closed.",
        ),
        (
            "Raylet failed. Shutting down.", r"^(?P<what>Raylet failed\. Shutting down\.)", "Raylet failed. Shutting down.",
        ),
        (
            "Lost connection with local raylet. Error: ", r"^(?P<what>Lost connection with local raylet\. Error: [^\n]{0,300})",
            "Lost connection with local raylet. Error: IOError: 14: Socket closed",
        ),
    )
)  # fmt: skip
"""Up to 0.7, in 1.0 to 1.4 (`core_worker.cc`), and in 0.8 (`direct_task_transport.cc`)."""
REDIS_FAILED = tuple(
    Signal("gcs.redis_failed", text, rf"^{text}", GCS, f"{text} 10.0.0.9:6379.", symptom=True)
    for text in ("Redis connection failed", "Could not establish connection to Redis")
)

LOST_WITH_CLUSTER = (
    "LocalRayletDiedError", "NodeDiedError", "RaySystemError", "WorkerCrashedError", "ActorDiedError", "RayActorError",
    "ActorUnavailableError", "RpcError", "GetTimeoutError", "ObjectLostError", "OwnerDiedError",
)  # fmt: skip
"""What drivers raise after they have lost their cluster."""


_LONGEST = 160
_LONGEST_STACK = 100
"""Lines."""
_FATAL_HEADER = pattern(r" C \d{1,10} \d{1,10}\] ")


def is_fatal(event: Event) -> bool:
    """Whether Ray's C++ code wrote the record as its process's last: level `C`, and not another library's `F1121 …`."""
    return event.level == "C" and (
        '"levelname"' in event.text or bool(_FATAL_HEADER.search(event.text))
    )


def fatal_records(case: Case, roles: Iterable[str]) -> list[Event]:
    """Records of level `C` in these files: a process of Ray ends with one, whatever its words."""
    wanted = frozenset(roles)
    return [e for e in case.of("log.critical") if e.source.role in wanted and is_fatal(e)]


def spelled(expression: str) -> str:
    """A failed check's first sentence for a headline, where `||`, `&&` and `->` would not stay."""
    words = " ".join(expression.split()).partition(". ")[0]
    words = words.replace("||", "or").replace("&&", "and").replace("->", ".")
    return cut(words, _LONGEST)


def fatal_reason(event: Event) -> str:
    """What a process of Ray recorded last: a signal, a failed check, or another fatal record."""
    if event["signal"]:
        return f"crashed: {event['signal']}"
    if event.kind == UNHANDLED.kind:
        return f"crashed because of an uncaught C++ exception: {spelled(event['expression'])}"
    if event["binary"]:
        return "ended itself, for a reason that the text does not contain"
    if event["expression"]:
        return f"ended itself because a check failed: {spelled(event['expression'])}"
    return f"ended itself: {spelled(event['said'] or event.message.strip().partition(chr(10))[0])}"


class DeadRaylet(NamedTuple):
    """A raylet that ended without a request to stop."""

    node: str
    ip: str
    pid: int | None
    started: Event | None
    """Its own start line, if its log is here."""
    seen: tuple[Event, ...]
    """Records of others that report its end: workers, agents, the GCS's health checks."""
    said: tuple[Event, ...]
    """Its own last records: a failed check, a crash, an agent's death."""


def dead_raylets(case: Case) -> list[DeadRaylet]:
    """Raylets with a log in the capture that got no SIGTERM before other processes reported their exit."""
    found = []
    by_pid = evidence.grouped(case.of("raylet.seen_dead"), lambda e: e["raylet_pid"])
    deaths = evidence.grouped(case.of("node.dead"), node_of_death)
    checks = evidence.grouped(case.of("node.health_failed"), lambda e: e["node"])
    last_words = evidence.grouped(case.of(*_LAST_WORDS), lambda e: case.node_of(e.source))
    fatal = evidence.grouped(fatal_records(case, RAYLET), lambda e: case.node_of(e.source))
    driver_left = _driver_shut_down(case)
    for started in case.of("raylet.started"):
        node, pid = started["node"], started.pid
        seen = [e for e in by_pid.get(str(pid), ()) if _same_place(e, started)]
        seen += [e for e in deaths.get(node, ()) if not is_expected(e)]
        seen += filter(_is_refused, checks.get(node, ()))
        said = [e for e in last_words.get(node, ()) if e.pid in _own_pids(e, pid)]
        if seen and not said and not case.of("gcs.lost"):
            said = [e for e in fatal.get(node, ()) if e.pid == pid]
        ended = min(case.stopped_at(node), driver_left)
        before_stop = [e for e in (*seen, *said) if e.at is None or e.at < ended]
        if before_stop:
            ip = case.ledger.node_ips.get(node, started["ip"])
            found.append(DeadRaylet(node, ip, pid, started, tuple(seen), tuple(said)))
    return found


def _driver_shut_down(case: Case) -> float:
    """When the driver that had started this cluster shut it down; infinity if none did, or its raylet was lost before.

    The cluster's processes end with it. If the driver calls `os._exit` after `ray.shutdown()`, they have no time to
    log their end.
    """
    if not case.of("driver.started_local") or lost_driver_errors(case, ("LocalRayletDiedError",)):
        return float("inf")
    return min((e.at for e in case.of("driver.goodbye") if e.at is not None), default=float("inf"))


TOLD_BY_OTHERS = ("raylet.agent_failed", "raylet.too_many_files")
"""Last records of a raylet that another rule reports."""
_LAST_WORDS = (
    *("ray.check_failed", "daemon.crash", "daemon.unhandled", "raylet.marked_dead"),
    *TOLD_BY_OTHERS,
)


def is_of_gcs(event: Event) -> bool:
    """Whether the GCS wrote the record: a driver echoes the end of its output as `(gcs_server)`."""
    return (
        event.source.role in GCS
        or event["who"].startswith("gcs_server")
        or "] (gcs_server) " in event.text[:200]
    )


_RAYLETS_FILES = (
    "plasma/malloc.cc:",
    " malloc.cc:",
    "dlmalloc.cc:",
    "node_manager.cc:",
    "worker_pool.cc:",
)


def is_of_raylet(event: Event) -> bool:
    """Whether a raylet wrote the record: workers that start share `raylet.err`, whose end a driver echoes."""
    head = event.text[:200]
    return (
        event.source.role in RAYLET
        or "] (raylet) " in head
        or (
            event["who"] == "raylet"
            and (head.startswith("(pid=") or any(name in head for name in _RAYLETS_FILES))
        )
    )


def is_of_redis_client(event: Event) -> bool:
    """Whether a record comes from the client of Redis, which the GCS, `ray start` and drivers of old versions use."""
    return "redis_context.cc:" in event.text[:200] or "redis_client.cc:" in event.text[:200]


def echoed_checks(case: Case) -> list[Event]:
    """Failed checks of raylets, if their own logs are missing or lack their beginning."""
    if case.of("raylet.started"):
        return []
    return [
        e
        for e in case.of(CHECK_FAILED.kind)
        if (is_fatal(e) or _is_echoed(case, e))
        and e.source.role not in GCS
        and not is_of_gcs(e)
        and not case.torn_down(e)
        and GCS_LOST_CHECK.find not in e.message
        # `resource-isolation-failed` reports these.
        and "cgroup" not in e["expression"].lower()
    ]


_CHECK = pattern(r"\s*(?:\w{1,60}\.cc:\d{1,6}: *)?(?:\.\.\. *)?Check failed: ")


def _is_echoed(case: Case, event: Event) -> bool:
    """Whether an excerpt shows a raylet's check without its header: people shorten such lines.

    A task may quote the line, so it counts only with the place in Ray's code (which then has the level of a fatal
    record), or where the program found that its node had not started.
    """
    is_raylets = event["who"] == "raylet" and event.source.is_excerpt
    return (
        is_raylets
        and bool(_CHECK.match(event.message))
        and (event.level == "C" or bool(case.of("driver.node_not_started")))
    )


def last_words(case: Case) -> list[Event]:
    """Crashes and exits that a raylet itself recorded, if its own log is missing or lacks its beginning.

    Workers that start share `raylet.err`, so a crash counts only with a header that names the raylet.
    """
    if case.of("raylet.started", "node.dead"):
        return []
    return [
        e
        for e in case.of("daemon.crash", "raylet.marked_dead", UNHANDLED.kind)
        if not case.torn_down(e)
        and (
            is_fatal(e)
            if e.kind == "raylet.marked_dead"
            else e["expression"]
            or (
                e["signal"] not in ("SIGTERM", "SIGINT")
                and ("(raylet) logging.cc:" in e.text or _has_frame(case, e))
            )
        )
    ]


def _has_frame(case: Case, crash: Event) -> bool:
    """Whether a raylet's own frame is below the report of a crash, in an excerpt."""
    if not crash.source.is_excerpt:
        return False
    below = [
        e
        for e in case.of(CRASH_FRAMES[0].kind, WORKER_FRAME.kind, crash.kind)
        if e.source is crash.source and 0 < e.line - crash.line <= _LONGEST_STACK
    ]
    first = min(below, key=lambda e: e.line, default=None)
    return first is not None and first.kind == CRASH_FRAMES[0].kind


def witnesses(raylet: DeadRaylet) -> tuple[Link, ...]:
    """Records that report a raylet's end: one of each kind, in time order."""
    kinds: dict[str, Event] = {}
    for event in sorted(raylet.seen, key=lambda e: (e.at is None, e.at or 0.0)):
        kinds.setdefault(event.kind, event)
    shows = {
        "raylet.seen_dead": f"a worker of the node reports that the raylet (pid {raylet.pid}) is gone",
        "node.health_failed": "the GCS's health check cannot connect to the raylet's port",
        "node.dead": "the GCS marks the node dead",
    }
    return tuple(Link(event, shows[event.kind]) for event in list(kinds.values())[:3])


def is_drivers(case: Case, node: str) -> bool:
    """Whether this node's end ends a whole job: it is the head or the only node."""
    registered = case.of("node.registered")
    head = bool(registered) and registered[0]["node"] == node
    return head or len(case.ledger.node_ips) <= 1


def lost_jobs(case: Case, raylet: DeadRaylet) -> tuple[Entity, ...]:
    """Jobs that were still running when the raylet of their drivers' node ended."""
    if not is_drivers(case, raylet.node):
        return ()
    times = [e.at for e in (*raylet.said, *raylet.seen) if e.at is not None]
    ended = min(times, default=None)
    return tuple(
        Entity("job", job.id)
        for job in case.ledger.jobs.values()
        if job.ended is None or ended is None or job.ended >= ended
    )


def _own_pids(event: Event, pid: int | None) -> tuple[int | None, ...]:
    """Pids of the raylet's own records: starting workers share `raylet.err`, with their own pid or none (2.9)."""
    return (pid,) if event.kind == "daemon.crash" else (pid, None)


def refused(case: Case, node: str) -> list[Event]:
    """Health checks that got no connection to a node's port: the raylet's process is gone."""
    return [e for e in case.of("node.health_failed") if e["node"] == node and _is_refused(e)]


def _is_refused(event: Event) -> bool:
    """Whether a health check got no connection to the raylet's port."""
    texts = ("refused", "failed to connect", "Socket closed", "Connection reset")
    return any(text in event["status"] for text in texts)


def node_of_death(event: Event) -> str:
    """The NodeID that a `node.dead` record names."""
    return event["node"] or event["node_a"] or event["node_b"]


def is_expected(event: Event) -> bool:
    """Whether a node's end was intended: stopped, or drained when idle or by SIGTERM."""
    if event["reason"] == "AUTOSCALER_DRAIN_PREEMPTED":
        return "received SIGTERM" in event["why"]
    return event["reason"] in ("EXPECTED_TERMINATION", "AUTOSCALER_DRAIN_IDLE")


def lost_driver_errors(case: Case, types: Iterable[str] = LOST_WITH_CLUSTER) -> tuple[Event, ...]:
    """Driver exceptions that the loss of a node, raylet or cluster causes."""
    wanted = set(types)
    return tuple(
        e
        for e in case.of("driver.exception")
        if (e["inner"] or e["type"]) in wanted or e["type"] in wanted
    )


def dead_node(case: Case, ip: str = "") -> tuple[Entity, ...]:
    """The raylet of the node that the GCS marked dead, if it is only one."""
    dead = {
        node_of_death(e)
        for e in case.of("node.dead")
        if not is_expected(e) and (not ip or not e["ip"] or e["ip"] == ip)
    }
    return tuple(Entity("raylet", node) for node in dead) if len(dead) == 1 else ()


_OWNER = pattern(r"Owner Id: ([0-9a-f]{56})")


def crashed_owners(errors: Iterable[Event]) -> tuple[Entity, ...]:
    """Drivers and workers on a crashed node, according to a driver's error."""
    owners = [
        owner
        for error in errors
        if "Owner's node has crashed" in error.text
        for owner in _OWNER.findall(error.text)
    ]
    jobs = (ids.job_of_driver(owner) for owner in owners)
    return (
        *(Entity("worker", owner) for owner in dict.fromkeys(owners)),
        *(Entity("job", job) for job in dict.fromkeys(jobs) if job),
    )


def gcs_lived_on(case: Case, lost: list[Event]) -> Event | None:
    """A record that the same GCS process wrote after others had lost it."""
    if not lost or lost[0].at is None:
        return None
    gave_up = lost[0].at + lost[0].slack
    unheard = gave_up - float(lost[0]["seconds"] or 0)
    known: set[int] = set()
    for event in case.events:
        if event.source.role not in GCS or event.at is None or event.pid is None:
            continue
        if event.at < unheard:
            known.add(event.pid)
        elif event.at > gave_up + 1 and event.pid in known:
            return event
    return None


def gcs_silence(case: Case, lost: list[Event], alive: Event) -> tuple[float, float] | None:
    """From when to when the log of a GCS is silent that even its own node lost; None if for less than their limit.

    `alive` is its later record: a capture may have the logs of several clusters.

    An idle GCS dumps its state once a minute, so that beside a broken network its silence means nothing.
    """
    waited = float(lost[0]["seconds"] or 0) if lost else 0.0
    nodes = {case.node_of(event.source) for event in lost} - {""}
    if any(is_drivers(case, node) for node in nodes):
        for event in case.of("gcs.silence"):
            begin, until = event.at or 0.0, float(event["until"])
            if event.source.node == alive.source.node and until - begin >= waited:
                return begin, until
    return None


def gcs_killed_before_stop(case: Case) -> Event | None:
    """The broken connection that proves that the GCS was dead when its own node was stopped.

    A GCS that receives SIGTERM, or that still runs when its raylet unregisters, records it.
    """
    records = [e for e in case.events if e.source.role in GCS]
    if not records or "gcs" in case.ledger.stops:
        return None
    for event in case.of("gcs.stream_lost"):
        at, stop = event.at, case.stopped_at(case.node_of(event.source))
        here = [e for e in records if _same_place(e, event)]
        if at is None or not at <= stop < at + 600 or not here:
            continue
        if all(e.at is not None and e.at <= at for e in here):
            return event
    return None


def gcs_ended_at(case: Case, signs: Iterable[Event]) -> float | None:
    """When a GCS without a last word ended: before others had waited for it, and after its own last record.

    `signs`: records of others that had no GCS; broken connections to it are signs as well.
    """
    wrote = (e.at for e in case.events if e.source.role in GCS and e.at is not None)
    last = max(wrote, default=float("-inf"))
    noticed = [e for e in (*case.of("gcs.stream_lost"), *signs) if e.at is not None]
    times = [(e.at or 0.0) - _waited(e) for e in noticed]
    return min((max(each, last) for each in times if each >= last - 1), default=None)


def _waited(event: Event) -> float:
    """How long a process had waited for the GCS when it reported the loss."""
    return float(event["seconds"] or 0) if event.kind in ("gcs.lost", "gcs.away") else 0.0


def _same_place(one: Event, other: Event) -> bool:
    return one.source.node == other.source.node
