"""Ray was stopped (`ray stop`, SIGTERM, a scale-down) while a job was still running.

## What you see
- The driver fails with `LocalRayletDiedError` or `Failed to connect to GCS`, and many workers and actors die at once.
- `raylet.out` and `gcs_server.out` contain `received SIGTERM`.

## Why
A person or a program stopped Ray: `ray stop` (it ends every Ray on the machine, including other users' clusters), a
service manager, Kubernetes, or a cloud that ended the pod or the machine. All later errors are part of the shutdown.

## Confirm
- `received SIGTERM` appears in `raylet.out` before the job's end.
- Check shell history, systemd, `kubectl get events` and the scheduler's log at that time.

## Fix
Stop Ray only when its jobs are done (`ray job list`). On a shared machine end your own cluster, not all of them.

## Not this when
The driver ended first: Ray's own cleanup then sends the SIGTERM, and nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import Job
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import (
    DRIVER_GONE,
    GCS_SIGTERM,
    JOB_FINISHED,
    JOB_STARTED,
    RAYLET_SIGTERM,
    RAYLET_STARTED,
)
from raydoctor.model import ids
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.cluster import DRIVER_GOODBYE, GCS_LOST, lost_driver_errors


@rule(
    tier="root",
    severity="error",
    rank=0,
    explains=("gcs", "job", "node", "raylet"),
    caused_by=(),
    looks_for=(
        RAYLET_SIGTERM,
        GCS_SIGTERM,
        RAYLET_STARTED,
        *JOB_STARTED,
        *JOB_FINISHED,
        DRIVER_GONE,
        DRIVER_GOODBYE,
        GCS_LOST,
    ),
)
def ray_stopped(case: Case) -> Iterator[Finding]:
    """At most one finding: the first SIGTERM that came while a job was running."""
    signals = [e for e in case.of("raylet.sigterm", "gcs.sigterm") if _from_outside(case, e)]
    if not signals or signals[0].at is None:
        return
    first, at = signals[0], signals[0].at
    running = [
        j
        for j in case.ledger.jobs.values()
        if (j.started or 0) <= at and (j.ended is None or j.ended >= at)
    ]
    if not running or _is_drivers_shutdown(case, at) or not _affected_a_driver(case):
        return
    yield _finding(case, first, at, signals, running)


def _from_outside(case: Case, event: Event) -> bool:
    """Whether another process sent the SIGTERM: up to 2.20 a raylet sends itself one when its agent has died."""
    if event.kind == "gcs.sigterm" or event.at is None:
        return True
    return case.stopped_at(case.node_of(event.source)) <= event.at


_LOST_ITS_NODE = ("node has died", "node dying", "dead or unavailable", "local raylet")


def _is_drivers_shutdown(case: Case, at: float) -> bool:
    """Whether the driver itself shut Ray down: it disconnected around then and reported no error."""
    goodbye = [e for e in case.of("driver.goodbye") if e.at is not None and abs(e.at - at) < 10]
    return bool(goodbye) and not lost_driver_errors(case) and not _gcs_lost(case)


def _affected_a_driver(case: Case) -> bool:
    """Whether the end of the whole cluster reached a driver, or no driver's log is there to show it.

    Where the record of a job's end is cut off, the driver's own shutdown looks like a stop. A driver
    that was still running then loses the GCS or its node.
    """
    whole = "gcs" in case.ledger.stops
    silent = not case.roles & {"driver", "job-driver", "core-driver"}
    lost = any(w in e.message for e in lost_driver_errors(case) for w in _LOST_ITS_NODE)
    return not whole or silent or lost or bool(_gcs_lost(case))


def _gcs_lost(case: Case) -> list[Event]:
    """Records of drivers that lost the GCS."""
    return [
        e for e in case.of("gcs.lost") if e.source.role in ("driver", "job-driver", "core-driver")
    ]


def _finding(
    case: Case, first: Event, at: float, signals: list[Event], running: list[Job]
) -> Finding:
    exits = [e for e in case.all_exits if e.at is not None and e.at >= at - 0.5]
    stopped = tuple(case.ledger.stops)
    everything = "gcs" in stopped
    nodes = tuple(case.ledger.node_ips) if everything else tuple(n for n in stopped if n)
    exceptions = lost_driver_errors(case)
    jobs = evidence.join_names(f"job {ids.job_number(j.id)}" for j in running)
    where = (
        "the cluster"
        if everything
        else evidence.join_names(case.ledger.node_ips.get(n, n[:12]) for n in nodes)
    )
    links = [
        Link(
            first,
            f"the {'raylet' if first.kind.startswith('raylet') else 'GCS'} receives SIGTERM",
        )
    ]
    links += [Link(e, "the GCS receives SIGTERM") for e in signals if e.kind == "gcs.sigterm"][:1]
    links += [Link(e, "the driver, still running, loses the GCS") for e in _gcs_lost(case)[:1]]
    links += [Link(e, f"the driver got {e['type']}") for e in exceptions[:1]]
    ips = evidence.join_names(case.ledger.node_ips.get(n, "") for n in nodes)
    return Finding(
        f"SIGTERM stopped Ray on {where} while {jobs} {'was' if len(running) == 1 else 'were'} running"
        + (f" ({ips})" if everything and ips else ""),
        tuple(links),
        explains=(
            *(Entity(kind, node) for node in nodes for kind in ("raylet", "node")),
            *((Entity("gcs", "gcs"),) if everything else ()),
            *(Entity("job", j.id) for j in running),
            *evidence.exit_entities(exits),
        ),
        subjects=tuple(Subject("job", j.id, None, j.driver_pid) for j in running),
        remedies=(
            Remedy(
                "Stop Ray only when no job is running: ray stop ends every Ray on the machine",
                ("ray job list   # or: ray list jobs --filter status=RUNNING", "ray status"),
            ),
            Remedy(
                "Find what sent the SIGTERM: a person, systemd, Kubernetes (kubectl get events), a spot notice, or a scheduler's time limit"
            ),
        ),
        covers=(
            *signals,
            *exceptions,
            *case.of("gcs.lost", "raylet.seen_dead", "node.dead"),
            *evidence.exit_events(exits),
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

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a job is running when Ray is stopped",
        {"logs/raylet.out": _RAYLET, "logs/gcs_server.out": _JOB, _DRIVER: _LOST},
        roots=("ray-stopped",),
        says=("job 1", "10.0.0.2"),
    ),
    Example(
        "the driver ends before Ray stops",
        {"logs/raylet.out": _RAYLET, "logs/gcs_server.out": _JOB + _ENDED, _DRIVER: ""},
    ),
)
