"""The GCS, the control service on the head node, is gone, and the whole cluster ends with it.

## What you see
The driver and every raylet and worker log `Failed to connect to GCS within N seconds. GCS may have been killed`, and
then exit.

## Why
All raylets, workers and drivers exit when the GCS is unreachable for `RAY_gcs_rpc_server_reconnect_timeout_s` (60 s).
If its log ends without a shutdown, the GCS crashed or was killed: by SIGKILL, the kernel's OOM killer, or the end of
the head's container. `Check failed:`, a crash report or Redis errors at the end of the log name the reason.

## Confirm
- `gcs_server.out` on the head ends before the other logs. Its end, or that of `gcs_server.err`, may name the reason.
- `sudo dmesg -T | grep -i gcs_server` on the head shows a kill by the kernel's OOM killer. On Kubernetes, `kubectl
  describe pod HEAD_POD` shows the restarts and the last state.

## Fix
Find out what ended the GCS. Run no tasks on the head, so that the head's memory is left to Ray's own processes. Keep
the state of the GCS in Redis (KubeRay: `gcsFaultToleranceOptions`), so that a new GCS can take over. One command does
the last two:

    RAY_REDIS_ADDRESS=REDIS_HOST:6379 ray start --head --num-cpus=0

## Not this when
- the GCS received a stop signal (`ray-stopped`).
- the log of the GCS continues, and only some processes could not reach it (`gcs-unreachable`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.case.signals import GCS, GCS_SIGTERM, NODE_REGISTERED, RAY_VERSION
from raydoctor.cluster import hosts, tables
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import kernel
from raydoctor.rules.shared.cluster import (
    CHECK_FAILED,
    DAEMON_CRASH,
    GCS_DOC,
    GCS_LOST,
    GCS_LOST_CHECK,
    GCS_STREAM_LOST,
    REDIS_FAILED,
    fatal_reason,
    fatal_records,
    gcs_ended_at,
    gcs_killed_before_stop,
    gcs_lived_on,
    is_of_gcs,
    lost_driver_errors,
)
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
from raydoctor.rules.shared.live import daemons as live
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live.daemons import Missing


@rule(
    tier="root",
    severity="critical",
    rank=5,
    explains=("gcs", "job", "node", "raylet"),
    caused_by=("daemon", "host"),
    daemons_record=True,
    looks_for=(
        GCS_LOST,
        GCS_LOST_CHECK,
        *GCS_STREAM_LOST,
        GCS_SIGTERM,
        CHECK_FAILED,
        DAEMON_CRASH,
        *CRASH_SIGNALS,
        CHECK,
        LOG_FRAME,
        OLD_FATAL,
        NATIVE_STACK,
        *NATIVE_FRAMES,
        *REDIS_FAILED,
        *NODE_REGISTERED,
        *RAY_VERSION,
    ),
)
def gcs_died(case: Case) -> Iterator[Finding]:
    """At most one finding: the head's GCS is gone, or this node could not reach it."""
    end = _GcsEnd(
        case.of("gcs.lost"),
        _crash_records(case),
        case.of("gcs.redis_failed"),
        live.gcs_gone(case),
        gcs_killed_before_stop(case),
        _reconnect_timeout(case),
    )
    if (end.logged or end.missing) and not _belongs_to_another_rule(case, end):
        yield _finding(case, end)


class _GcsEnd(NamedTuple):
    """The evidence about the end of the GCS."""

    lost: list[Event]
    """Reports of processes that stopped waiting for the GCS."""
    last_records: list[Event]
    """The GCS's own last records: a failed check or a crash."""
    redis: list[Event]
    missing: Missing | None
    """The process table and the probes of a live collection."""
    severed: Event | None
    """The raylet of its node lost it, and was stopped a moment later."""
    setting: float | None = None
    """Seconds of `RAY_gcs_rpc_server_reconnect_timeout_s`, if this machine's raylet was started with it."""

    @property
    def logged(self) -> list[Event]:
        severed = [self.severed] if self.severed else []
        return [*self.lost, *self.last_records, *self.redis, *severed]

    @property
    def waited(self) -> float:
        """Seconds after which other processes stop waiting for the GCS."""
        return float((self.lost[0]["seconds"] if self.lost else "") or self.setting or 60)

    @property
    def limit(self) -> str:
        """`5 s`, or the default where neither a log nor a setting is known."""
        is_known = bool(self.lost and self.lost[0]["seconds"]) or self.setting is not None
        return f"{self.waited:.0f} s{'' if is_known else ' (the default)'}"


def _reconnect_timeout(case: Case) -> float | None:
    for row in tables.rows(case, "settings"):
        if row["setting"].removeprefix("RAY_") == "gcs_rpc_server_reconnect_timeout_s":
            return tables.number(row, "raylet")
    return None


def _belongs_to_another_rule(case: Case, end: _GcsEnd) -> bool:
    """It kept running (`gcs-unreachable`), is paused (`clock-skew`), or received a stop signal (`ray-stopped`, or none)."""
    if end.severed:
        return False
    if not (end.last_records or end.redis or end.missing) and (
        gcs_lived_on(case, end.lost) or live.daemons(case, "gcs_server")
    ):
        return True
    first_loss = end.lost[0].at if end.lost else None
    return "gcs" in case.ledger.stops or (
        first_loss is not None and case.stopped_at() <= first_loss
    )


def _finding(case: Case, end: _GcsEnd) -> Finding:
    has_log = "gcs-out" in case.roles
    died = _died_at(case, end)
    exits = [e for e in case.exits if died is None or e.at is None or e.at >= died - 2]
    # Before the raylets have lost the GCS, its end explains nothing that happened to them.
    nodes = tuple(case.ledger.node_ips) if end.logged else ()
    reports = (
        case.of("raylet.seen_dead", "node.health_failed", "raylet.agent_failed")
        if end.logged
        else []
    )
    chain = (*_chain(end, has_log, case), *_now(end.missing))
    return Finding(
        _headline(end, has_log),
        chain,
        explains=(
            Entity("gcs", "gcs"),
            *(Entity(kind, node) for node in nodes for kind in ("raylet", "node")),
            *evidence.exit_entities(exits),
            *(Entity("job", job.id) for job in case.ledger.jobs.values() if job.ended is None),
        ),
        caused_by=(Entity("daemon", "gcs_server"), hosts.entity("head")),
        subjects=(Subject("gcs", None, "gcs_server"),),
        remedies=_of_record(end.last_records[0]) if end.last_records else _remedies(),
        covers=(
            *end.logged,
            *lost_driver_errors(case),
            *evidence.exit_events(exits),
            *reports,
            *(e for last in end.last_records[:1] for e in _errors_before(case, last)),
        ),
        gaps=_gaps(case, has_log, bool(end.last_records or end.redis)),
        at=_ended_at(case, end, chain),
    )


def _ended_at(case: Case, end: _GcsEnd, chain: Sequence[Link]) -> float | None:
    """When it ended; None if its own records show that, or nothing does."""
    if end.last_records or end.redis:
        return None
    others = [link.event for link in chain if link.event.source.role not in GCS]
    return gcs_ended_at(case, others)


def _crash_records(case: Case) -> list[Event]:
    """A failed check, a crash report or another fatal record of the GCS itself."""
    known = [e for e in case.of("ray.check_failed", "daemon.crash") if is_of_gcs(e)]
    return (
        known
        or fatal_records(case, GCS)
        or of_daemons(case, "gcs_server")
        or [e for e in fatal_ends(case) if is_of_gcs(e)]
    )


def _died_at(case: Case, end: _GcsEnd) -> float | None:
    """Earliest time of its end: before the others waited for it, or else the time of its last record."""
    if end.severed:
        return end.severed.at
    if end.logged or end.missing is None:
        first = end.logged[0].at if end.logged else None
        return None if first is None else first - end.waited
    wrote = [e.at for e in case.events if e.source.role == "gcs-out" and e.at is not None]
    return max(wrote, default=(end.missing.asked.at or 0.0) - end.waited)


def _headline(end: _GcsEnd, has_log: bool) -> str:
    if end.last_records:
        why = fatal_reason(end.last_records[0]).rstrip(".")
    elif end.redis:
        why = "shut down: its Redis storage failed"
    elif has_log:
        why = "ended without shutting down, probably by SIGKILL"
    elif end.missing:
        return _out_of_reach(end.missing, end.limit)
    else:
        return f"The GCS was gone or out of reach for {end.waited:.0f} s, and its own log is not in the capture"
    raylets = f"the raylet (pid {end.missing.left.pid})" if end.missing else "raylets"
    return f"The GCS on the head {why}: without it, {raylets}, workers and drivers exit after {end.limit}"


def _out_of_reach(missing: Missing, limit: str) -> str:
    where = f" at {missing.asked['address']}" if missing.asked["address"] else ""
    return (
        f"The GCS{where} is gone or out of reach and does not answer: without it, the raylet (pid {missing.left.pid}) of this node exits after "
        f"{limit}"
    )


def _now(missing: Missing | None) -> Iterator[Link]:
    """Links from the live collection."""
    if missing:
        where = missing.asked["address"]
        yield Link(missing.asked, f"the GCS does not answer{f' at {where}' if where else ''} now")
        yield Link(
            missing.left,
            f"this {missing.left['kind']} runs on the same machine, but no gcs_server does",
        )


def _chain(end: _GcsEnd, has_log: bool, case: Case) -> tuple[Link, ...]:
    links = [Link(e, "the GCS reports why it crashed") for e in end.last_records[:1]]
    before = [e for last in end.last_records[:1] for e in _errors_before(case, last)]
    links += [Link(e, "the GCS reports this right before") for e in before[-1:]]
    links += [Link(e, "the GCS lost its Redis storage") for e in end.redis[:1]]
    if has_log and not links and (last := [e for e in case.events if e.source.role == "gcs-out"]):
        links.append(
            Link(
                last[-1],
                "the last record of the GCS, which logged neither a SIGTERM nor a shutdown",
            )
        )
    if end.severed:
        links.append(
            Link(end.severed, "the raylet on its node loses the GCS before it is stopped itself")
        )
    by_role: dict[str, Event] = {}
    for event in end.lost:
        by_role.setdefault(event.source.role, event)
    names = {
        "raylet-out": "a raylet",
        "core-driver": "the driver",
        "driver": "the driver",
        "core-worker": "a worker",
        "client-server": "the Ray Client server",
        "dashboard": "the dashboard",
        "dashboard-agent": "a dashboard agent",
        "monitor": "the autoscaler's monitor",
    }
    links += [
        Link(
            e,
            f"{names.get(role, 'a process of Ray')} has not reached the GCS for {end.waited:.0f} s, and exits",
        )
        for role, e in list(by_role.items())[:3]
    ]
    return tuple(links)


def _gaps(case: Case, has_log: bool, explained: bool) -> tuple[Gap, ...]:
    gaps = []
    if not (has_log or explained):
        gaps.append(
            Gap(
                "gcs_server.out",
                "only the GCS log on the head shows whether and why the GCS ended",
                "Copy /tmp/ray/session_latest/logs/gcs_server.out from the head into the folder with the logs, and diagnose that folder.",
                about="gcs-out",
            )
        )
    if not explained:
        gaps += kernel.gaps(
            case,
            "the head",
            "only this log shows whether the kernel's OOM killer ended gcs_server",
            kernel.gcs_logs(case),
        )
    return tuple(gaps)


_RIGHT_BEFORE_S = 1.0
_LOOKUP = pattern(r"Key \S{1,80} doesn't exist")
"""`map_find_or_die` of Ray's C++ code (`util/container_util.h`): Ray itself looked for what it had removed."""
_VALUE = pattern(r"-?\d{4,}|0x\w+|(?=\w*\d)[0-9a-f]{12,}")
"""A word of a record that differs from cluster to cluster."""


def _errors_before(case: Case, last: Event) -> list[Event]:
    """Errors that the GCS logged right before its last record, unless a rule knows them."""
    return [
        e
        for e in case.of("log.error", "log.failure")
        if e.source is last.source
        and e.line < last.line
        and (e.at is not None and last.at is not None and last.at - e.at <= _RIGHT_BEFORE_S)
    ]


def _of_record(last: Event) -> tuple[Remedy, ...]:
    """What to do if the GCS itself recorded why it ended."""
    if last["signal"]:
        return _remedies()
    reason = fatal_reason(last).partition(": ")[2]
    words = [word for word in reason.split() if not _VALUE.fullmatch(word)]
    is_lookup = _LOOKUP.match(reason) is not None
    words += ["map_find_or_die"] if is_lookup else []
    search = Remedy(
        "Search Ray's issues for the record, and try a newer Ray if it is fixed there",
        (
            paste.shell(
                "https://github.com/ray-project/ray/issues?q={words:url}",
                words=" ".join(words[:8]),
            ),
        ),
    )
    fix = Remedy(
        "Fix the setting, file or port if the record names one, and start the head again",
        (paste.shell("grep -n -B20 ' C ' {log:path}", log=last.source.path),),
        doc=GCS_DOC,
    )
    first = (search,) if is_lookup else (search, fix) if last["expression"] else (fix, search)
    return (*first, _keep_state())


def _remedies() -> tuple[Remedy, ...]:
    return (
        Remedy(
            "Find out what ended gcs_server on the head",
            ("sudo dmesg -T | grep -iE 'gcs_server|out of memory'",),
            doc=GCS_DOC,
            finds_cause=True,
        ),
        Remedy(
            "Start the cluster again. If the head ran out of memory, run no tasks there, so that its memory is left to the GCS",
            (
                "ray stop   # on every node: ends what is left of the old cluster",
                "ray start --head --num-cpus=0   # plus your other options. --num-cpus=0: only if the head ran out of memory",
                "ray start --address=HEAD:6379   # then on the other nodes",
            ),
            risk="disruptive",
            doc="https://docs.ray.io/en/latest/ray-core/head-node-memory-management.html",
        ),
        _keep_state(),
    )


def _keep_state() -> Remedy:
    return Remedy(
        "Keep the state of the GCS in Redis, so that a new GCS can take over",
        (
            "export RAY_REDIS_ADDRESS=HOST:6379   # on the head, before ray start, or before your program if it starts Ray. KubeRay: gcsFaultToleranceOptions",
        ),
        risk="disruptive",
        doc=GCS_DOC,
    )


# ------------------------------------------------------------------ examples


_LOST = (
    "[2026-11-21 07:42:11,775 E 304 304] (raylet) rpc_client.h:204: Failed to connect to GCS within 60 seconds. GCS may have been "
    "killed. It's either GCS is terminated by `ray stop` or is killed unexpectedly.\n"
)
_GCS_LOG = "[2026-11-21 07:40:00,000 I 13 13] (gcs_server) gcs_server_main.cc:98: Ray cluster metadata ray_version=2.60.0 ray_commit=b7f\n"
_GCS_STOPPED = "[2026-11-21 07:40:50,000 I 13 13] (gcs_server) gcs_server_main.cc:266: GCS server received SIGTERM, shutting down...\n"
_NODE_LOST = (
    "[2026-11-21 07:40:20,000 I 13 13] (gcs_server) gcs_node_manager.cc:734: , death reason = UNEXPECTED_TERMINATION, death message "
    f"= health check failed due to missing too many heartbeats node_id={'b' * 56} node_name=10.0.0.3\n"
)


_STARTED = (
    f"[2026-11-21 07:40:01,000 I 307 307] (raylet) node_manager.cc:355: Raylet of id, {'a' * 56} started. Raylet consists of "
    "node_manager and object_manager. node_manager address: 10.0.0.2:0 object_manager address: 10.0.0.2:1 hostname: n\n"
)
_SEVERED = {
    "2.60": "[2026-11-21 07:40:49,500 I 307 307] (raylet) ray_syncer_bidi_reactor_base.h:243: Failed to read a message from node: "
    f"{'0' * 56}\n",
    "2.47": "[2026-11-21 07:40:49,500 I 307 307] (raylet) ray_syncer_bidi_reactor_base.h:182: Failed to read the message from: "
    f"{'0' * 56}\n",
}
_STOPPED = "[2026-11-21 07:40:50,000 I 307 307] (raylet) main.cc:1174: received SIGTERM. Existing local drain request = None\n"
_NODE_LATER = (
    "[2026-11-21 07:40:49,900 I 13 13] (gcs_server) gcs_node_manager.cc:734: , death reason = EXPECTED_TERMINATION, death message "
    f"= received SIGTERM node_id={'c' * 56} node_name=10.0.0.3\n"
)


def _live(*kinds: str) -> dict[str, str]:
    """Tables of a live collection: these daemons run, and the GCS does not answer."""
    probe = {"name": "gcs", "address": "10.0.0.2:6379", "outcome": "timeout", "detail": ""}
    return sample.tables(
        1795246851.0, daemons=[sample.daemon(kind, 304) for kind in kinds], probes=[probe]
    )


_UNKNOWN_SETTING = (
    "[2026-11-23 00:52:54,702 C 7 7] (gcs_server) ray_config.cc:60: Received unexpected config parameter no_such_setting\n"
    "*** StackTrace Information ***\n"
)
_NOT_STARTED = (
    'Traceback (most recent call last):\n  File "/app/b.py", line 2, in <module>\n    ray.init()\n'
    '  File "/lib/python3.11/site-packages/ray/_private/node.py", line 1407, in start_gcs_server\n    wait()\n'
    "RuntimeError: Timed out waiting for file /tmp/ray/session_1/gcs_server_port_4508d\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the GCS was killed, so its log stops, and the raylet loses its connection to the GCS",
        {"logs/gcs_server.out": _GCS_LOG, "logs/raylet.out": _LOST},
        says=("60 s",),
    ),
    Example(
        "the GCS was killed a moment ago: no process reports it yet, but its process is gone",
        {"logs/gcs_server.out": _GCS_LOG, "logs/raylet.out": "", **_live("raylet")},
        says=("the raylet (pid 304), workers and drivers exit",),
    ),
    Example(
        "the same where the raylet was started with another time limit",
        {
            "logs/gcs_server.out": _GCS_LOG,
            "logs/raylet.out": "",
            **_live("raylet"),
            **sample.tables(
                settings=[
                    {
                        "setting": "RAY_gcs_rpc_server_reconnect_timeout_s",
                        "raylet": "5",
                        "raylet_pid": 304,
                    }
                ]
            ),
        },
        says=("without it, the raylet (pid 304), workers and drivers exit after 5 s",),
    ),
    Example(
        "the GCS was killed a moment ago, after a node was lost",
        {
            "logs/gcs_server.out": _GCS_LOG + _NODE_LOST,
            "logs/raylet.out": "",
            **_live("raylet"),
        },
        roots=("gcs-died",),
        consequences=("node-died",),
    ),
    Example(
        "the GCS ends itself at its start, in words that no check uses, and ray.init fails",
        {"logs/gcs_server.err": _UNKNOWN_SETTING, "driver.log": _NOT_STARTED},
        consequences=("gcs-unreachable",),
        says=("ended itself: Received unexpected config parameter no_such_setting",),
    ),
    console(
        "a program that raises below a folder of the same name, and a record of level C that a program prints",
        _UNKNOWN_SETTING
        + _NOT_STARTED.replace("site-packages/ray/_private/node.py", "app/node.py"),
        logs=QUIET_LOGS,
        roots=("job-failed",),
    ),
    Example(
        "the GCS does not answer from another node",
        {"logs/raylet.out": "", **_live("raylet")},
        says=("10.0.0.2:6379", "out of reach", "the raylet (pid 304)"),
    ),
    Example(
        "a busy GCS does not answer in time, and its process runs",
        {
            "logs/gcs_server.out": _GCS_LOG,
            "logs/raylet.out": "",
            **_live("raylet", "gcs_server"),
        },
    ),
    *(
        Example(
            f"the GCS was killed, and its node was stopped before anything gave up ({name})",
            {"logs/gcs_server.out": _GCS_LOG, "logs/raylet.out": _STARTED + severed + _STOPPED},
            roots=("gcs-died",),
        )
        for name, severed in _SEVERED.items()
    ),
    Example(
        "a person stops the whole cluster, the GCS first",
        {
            "logs/gcs_server.out": _GCS_LOG + _GCS_STOPPED,
            "logs/raylet.out": _STARTED + _SEVERED["2.60"] + _STOPPED,
        },
    ),
    Example(
        "a raylet reconnects to the GCS, and is stopped later",
        {
            "logs/gcs_server.out": _GCS_LOG + _NODE_LATER,
            "logs/raylet.out": _STARTED + _SEVERED["2.60"] + _STOPPED,
        },
    ),
    Example(
        "a raylet loses another node, and is stopped",
        {
            "logs/gcs_server.out": _GCS_LOG,
            "logs/raylet.out": _STARTED + _SEVERED["2.60"].replace("0" * 56, "b" * 56) + _STOPPED,
        },
    ),
    Example(
        "the GCS received a stop signal, and no job was running",
        {"logs/gcs_server.out": _GCS_LOG + _GCS_STOPPED, "logs/raylet.out": _LOST},
    ),
    console(
        "a pasted crash report that only its frames identify",
        "*** SIGSEGV received at time=1795247060 on cpu 5 ***\n"
        "PC: @     0x55d2f3a3c1d4  (unknown)  ray::gcs::GcsActorManager::OnWorkerDead()\n"
        "    @     0x55d2f3a3d2a1       1200  ray::gcs::GcsServer::Start()\n",
        says=("crashed: SIGSEGV",),
    ),
    console(
        "the crash of a driver in its client of the GCS",
        "*** SIGSEGV received at time=1795247060 on cpu 5 ***\n"
        "PC: @     0x55d2f3a3c1d4  (unknown)  ray::gcs::GcsClient::Connect()\n"
        "    @     0x55d2f3a3d2a1       1200  ray::gcs::GcsRpcClient::CheckChannelStatus()\n",
        roots=("worker-native-crash",),
    ),
    console(
        "the check of Ray 2.0 to 2.4 that fails where the GCS does not answer",
        f"(raylet) [2026-11-21 07:42:11,775 C 304 304] (raylet) gcs_rpc_client.h:537:  {GCS_LOST_CHECK.sample}\n",
        says=("gone or out of reach for 60 s",),
    ),
    console(
        "a task quotes that check",
        f"(audit pid=12) seen yesterday: {GCS_LOST_CHECK.sample}\n",
    ),
    console(
        "the GCS looks for what it has removed, and logs an error right before",
        "[2026-11-21 07:07:00,334 I 42 42] (gcs_server) gcs_placement_group_scheduler.cc:311: Failed to commit resources because the node is "
        f"dead, node id = {'7659e0fc' * 7}\n[2026-11-21 07:07:00,361 C 42 42] (gcs_server) container_util.h:88: Key -324564792491083059 doesn't "
        "exist\n*** StackTrace Information ***\n/venv/ray/core/src/ray/gcs/gcs_server(+0x406f79) [0x5636a4d81f79] ray::map_find_or_die<>()\n",
        roots=("gcs-died",),
        says=("Key -324564792491083059 doesn't exist", "q=Key+doesn%27t+exist+map_find_or_die"),
    ),
)
