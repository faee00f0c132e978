"""The GCS, the head's control service, is gone, and the whole cluster with it.

## What you see
`Failed to connect to GCS within N seconds. GCS may have been killed`, in the driver (which then exits),
in every raylet and every worker.

## Why
All raylets, workers and drivers end when the GCS stays away for `RAY_gcs_rpc_server_reconnect_timeout_s` (60
s). If its log ends without a shutdown, it was killed (SIGKILL, the kernel's OOM killer, the head's
container) or crashed; a failed check, a crash report or Redis errors at its end say why.

## Confirm
- The end of `gcs_server.out` and `gcs_server.err` on the head.
- `dmesg -T | grep -i gcs_server` there; the head pod's restarts and last state.

## Fix
Give the head memory of its own (`--num-cpus=0`, so that no task runs there), keep GCS state outside it
(Redis, KubeRay `gcsFaultToleranceOptions`) so that a new GCS can take over.

## Not this when
It was told to stop (`ray-stopped`), or its log goes on, and only somebody could not reach it (`gcs-unreachable`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import GCS_SIGTERM, NODE_REGISTERED, RAY_VERSION
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared.cluster import (
    CHECK_FAILED,
    DAEMON_CRASH,
    GCS_DOC,
    GCS_LOST,
    REDIS_FAILED,
    gcs_lived_on,
    lost_driver_errors,
)
from raydoctor.rules.shared.live import daemons as live
from raydoctor.rules.shared.live.daemons import Missing


@rule(
    tier="root",
    severity="critical",
    rank=5,
    daemons_record=True,
    looks_for=(
        GCS_LOST,
        GCS_SIGTERM,
        CHECK_FAILED,
        DAEMON_CRASH,
        *REDIS_FAILED,
        *NODE_REGISTERED,
        *RAY_VERSION,
    ),
)
def gcs_died(case: Case) -> Iterator[Finding]:
    """At most one finding: the head's GCS is gone, or this node could not reach it."""
    told = _Told(
        case.of("gcs.lost"), _last_words(case), case.of("gcs.redis_failed"), live.gcs_gone(case)
    )
    if (told.logged or told.missing) and not _is_another_story(case, told):
        yield _finding(case, told)


class _Told(NamedTuple):
    """What is known of its end."""

    lost: list[Event]
    """Who gave it up."""
    said: list[Event]
    """Its own last words."""
    redis: list[Event]
    missing: Missing | None
    """What the process table and the probes of a live collection say."""

    @property
    def logged(self) -> list[Event]:
        return [*self.lost, *self.said, *self.redis]

    @property
    def waited(self) -> float:
        """Seconds until others give it up."""
        return float((self.lost[0]["seconds"] if self.lost else "") or 60)


def _is_another_story(case: Case, told: _Told) -> bool:
    """It lived on (`gcs-unreachable`), stands still (`clock-skew`), or was told to stop (`ray-stopped`, or nothing)."""
    if not (told.said or told.redis or told.missing) and (
        gcs_lived_on(case, told.lost) or live.daemons(case, "gcs_server")
    ):
        return True
    first_loss = told.lost[0].at if told.lost else None
    return "gcs" in case.ledger.stops or (
        first_loss is not None and case.stopped_at() <= first_loss
    )


def _finding(case: Case, told: _Told) -> Finding:
    here = "gcs-out" in case.roles
    died = _died_at(case, told)
    exits = [e for e in case.exits if died is None or e.at is None or e.at >= died - 2]
    # Until its raylets have missed it, nothing that happened to them is its doing.
    nodes = tuple(case.ledger.node_ips) if told.logged else ()
    seen = (
        case.of("raylet.seen_dead", "node.health_failed", "raylet.agent_failed")
        if told.logged
        else []
    )
    return Finding(
        _headline(told, here),
        (*_chain(told, here, case), *_now(told.missing)),
        explains=(
            Entity("gcs", "gcs"),
            *(Entity(kind, node) for node in nodes for kind in ("raylet", "node")),
            *evidence.exit_entities(exits),
            *(Entity("job", job.id) for job in case.ledger.jobs.values() if job.ended is None),
        ),
        caused_by=(Entity("daemon", "gcs_server"),),
        subjects=(Subject("gcs", None, "gcs_server"),),
        remedies=_remedies(),
        covers=(*told.logged, *lost_driver_errors(case), *evidence.exit_events(exits), *seen),
        gaps=_gaps(case, here, bool(told.said or told.redis)),
    )


def _last_words(case: Case) -> list[Event]:
    """A failed check or crash report of the GCS itself."""
    return [
        e for e in case.of("ray.check_failed", "daemon.crash") if e.source.role.startswith("gcs")
    ]


def _died_at(case: Case, told: _Told) -> float | None:
    """When it went, at the earliest: who lost it had waited; else it lived when it wrote last."""
    if told.logged or told.missing is None:
        first = told.logged[0].at if told.logged else None
        return None if first is None else first - told.waited
    wrote = [e.at for e in case.events if e.source.role == "gcs-out" and e.at is not None]
    return max(wrote, default=(told.missing.asked.at or 0.0) - told.waited)


def _headline(told: _Told, here: bool) -> str:
    if told.said:
        why = f"crashed: {told.said[0]['signal'] or told.said[0]['expression'][:80]}"
    elif told.redis:
        why = "shut down: its Redis storage failed"
    elif here:
        why = "was killed: its log ends without a shutdown"
    elif told.missing:
        return _out_of_reach(told.missing, told.waited)
    else:
        return f"The GCS was gone or out of reach for {told.waited:.0f} s; its own log is not in the capture"
    now = f"; raylet {told.missing.left.pid} still runs, for now" if told.missing else ""
    return f"The GCS (head node) {why}{now}; after {told.waited:.0f} s without it, raylets, workers and drivers exit"


def _out_of_reach(missing: Missing, waited: float) -> str:
    where = f" at {missing.asked['address']}" if missing.asked["address"] else ""
    return (
        f"The GCS{where} is gone or out of reach: nobody answers there, and raylet {missing.left.pid} of this node ends after "
        f"{waited:.0f} s without it; its own log is on the head"
    )


def _now(missing: Missing | None) -> Iterator[Link]:
    """What the live collection adds."""
    if missing:
        where = missing.asked["address"]
        yield Link(
            missing.asked, f"nobody answers at its address{f' {where}' if where else ''} now"
        )
        yield Link(
            missing.left,
            f"of its machine's daemons this {missing.left['kind']} still runs, and no gcs_server",
        )


def _chain(told: _Told, here: bool, case: Case) -> tuple[Link, ...]:
    links = [Link(e, "the GCS's own last words") for e in told.said[:1]]
    links += [Link(e, "the GCS lost its storage") for e in told.redis[:1]]
    if here and not links and (last := [e for e in case.events if e.source.role == "gcs-out"]):
        links.append(
            Link(
                last[-1], "the GCS's log ends here or soon after, with neither SIGTERM nor shutdown"
            )
        )
    by_role: dict[str, Event] = {}
    for event in told.lost:
        by_role.setdefault(event.source.role, event)
    whom = {
        "raylet-out": "a raylet",
        "core-driver": "the driver",
        "driver": "the driver",
        "core-worker": "a worker",
    }
    links += [
        Link(e, f"{whom.get(role, 'a process')} gives up on the GCS and exits")
        for role, e in list(by_role.items())[:3]
    ]
    return tuple(links)


def _gaps(case: Case, here: bool, told: bool) -> tuple[Gap, ...]:
    gaps = []
    if not here:
        gaps.append(
            Gap(
                "gcs_server.out",
                "the head's GCS log would tell whether and why it went",
                "On the head: /tmp/ray/session_latest/logs/",
            )
        )
    if "kernel" not in case.roles and not told:
        gaps.append(
            Gap(
                "kernel log of the head",
                "not in the capture: it would tell an OOM kill of gcs_server",
                "On the head: dmesg -T > dmesg.txt",
            )
        )
    return tuple(gaps)


def _remedies() -> tuple[Remedy, ...]:
    return (
        Remedy(
            "Find out who ended it on the head",
            ("dmesg -T | grep -iE 'gcs_server|out of memory'",),
            doc=GCS_DOC,
        ),
        Remedy(
            "Keep user work off the head, so that the GCS has its memory",
            ("ray start --head --num-cpus=0 …",),
            risk="disruptive",
            doc="https://docs.ray.io/en/master/ray-core/head-node-memory-management.html",
        ),
        Remedy(
            "Let a new GCS take over: keep its state in Redis (RAY_REDIS_ADDRESS; KubeRay: gcsFaultToleranceOptions)",
            risk="disruptive",
            doc=GCS_DOC,
        ),
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


def _live(*kinds: str) -> dict[str, str]:
    """Tables of a live collection: these daemons run, and nobody answers at the GCS's address."""
    head = '{"table": "%s", "at": 1795246851.0, "from": "proc", "total": 1, "rows": [\n'
    rows = ",\n".join(
        f'{{"kind":"{kind}","pid":304,"state":"S","node_id":"","is_this":true}}' for kind in kinds
    )
    probe = '{"name":"gcs","address":"10.0.0.2:6379","outcome":"timeout","seconds":0.5,"detail":""}'
    return {
        "live/live-daemons.json": f"{head % 'daemons'}{rows}\n]}}\n",
        "live/live-probes.json": f"{head % 'probes'}{probe}\n]}}\n",
    }


EXAMPLES: tuple[Example, ...] = (
    Example(
        "killed: its log ends, the raylet gives up",
        {"logs/gcs_server.out": _GCS_LOG, "logs/raylet.out": _LOST},
        roots=("gcs-died",),
        says=("60 s",),
    ),
    Example(
        "killed a moment ago: nobody has missed it yet, but its process is gone",
        {"logs/gcs_server.out": _GCS_LOG, "logs/raylet.out": "", **_live("raylet")},
        roots=("gcs-died",),
        says=("raylet 304 still runs",),
    ),
    Example(
        "killed a moment ago; a node that was lost before is told as well",
        {
            "logs/gcs_server.out": _GCS_LOG + _NODE_LOST,
            "logs/raylet.out": "",
            **_live("raylet"),
        },
        roots=("gcs-died",),
        consequences=("node-died",),
    ),
    Example(
        "seen from another node: nobody answers at the head",
        {"logs/raylet.out": "", **_live("raylet")},
        roots=("gcs-died",),
        says=("10.0.0.2:6379", "out of reach", "raylet 304"),
    ),
    Example(
        "busy: it does not answer in time, and its process is there",
        {
            "logs/gcs_server.out": _GCS_LOG,
            "logs/raylet.out": "",
            **_live("raylet", "gcs_server"),
        },
    ),
    Example(
        "told to stop, with nothing running",
        {"logs/gcs_server.out": _GCS_LOG + _GCS_STOPPED, "logs/raylet.out": _LOST},
    ),
)
