"""Errors in a driver's output that belong to another cluster.

A program can print Ray's messages: a runbook, an old report, the output of another cluster. Only the node
or job in a message shows that. The GCS records the address and id of each node that registers, so if its
log covers the session from the first job to the end of all jobs, an error of an unknown node is from
another cluster. The same holds if the program started a local Ray, which has one node whose raylet records
its name. In a local Ray, the program's job is the first one: tasks, actors and objects of another job (the
last digits of their ids) are not of this run, and neither are records of a time long before that Ray
started. If the capture has one driver's output and one driver's own log, the job is that driver's.
"""

from __future__ import annotations

from collections.abc import Iterable

from raydoctor.model import ids
from raydoctor.model.patterns import pattern
from raydoctor.model.text import joined
from raydoctor.model.values import CONSOLES, Event, Gap, Source

_RAYS_OWN = frozenset(
    (
        *("gcs-out", "gcs-err", "raylet-out", "raylet-err", "event", "export-event"),
        *("core-driver", "core-worker", "core-io", "debug-state", "monitor"),
    )
)
"""Roles that reliably name nodes; the output of workers does not, as a task can print anything."""

_FIRST_JOB = "01000000"
_EARLIER_S = 86_400.0
"""Seconds before the start of a local Ray from which a record is of another run: clocks differ by less."""
_IP = r"\d{1,3}(?:\.\d{1,3}){3}"
_PLACES = pattern(
    rf"\b(?:ip=|IP: |IP address: |IP address )(?P<ip>(?!127\.){_IP})\b|"
    r"\b(?:Node ID: |node ID: |node_id=)(?P<node>[0-9a-f]{56})\b"
)


def without_foreign(
    events: list[Event], sources: Iterable[Source] = ()
) -> tuple[list[Event], list[Gap]]:
    """The events without those of other clusters, and gaps that report the dropped ones."""
    places = _known_places(events) if _covers_session(events) else frozenset[str]()
    jobs = _known_jobs(events, list(sources))
    starts = _starts(events)
    foreign = {
        event
        for event in events
        if _is_of_driver(event)
        and (
            (places and _are_others(_places(event), places))
            or (jobs and _are_others(_jobs(event), jobs))
            or _is_earlier(event, starts)
        )
    }
    if not foreign:
        return events, []
    return [event for event in events if event not in foreign], _gaps(foreign)


def _are_others(named: set[str], known: frozenset[str]) -> bool:
    """Whether the named places or jobs are all unknown."""
    return bool(named) and not named & known


def _starts(events: Iterable[Event]) -> dict[str, float]:
    """When the program of each file first started a local Ray."""
    found: dict[str, float] = {}
    for event in events:
        if event.kind == "driver.started_local" and event.at is not None:
            path = event.source.path
            found[path] = min(event.at, found.get(path, event.at))
    return found


def _is_earlier(event: Event, starts: dict[str, float]) -> bool:
    """Whether a record is from long before the Ray whose driver printed it."""
    start = starts.get(event.source.path)
    return start is not None and event.at is not None and event.at < start - _EARLIER_S


def _known_jobs(events: list[Event], sources: list[Source]) -> frozenset[str]:
    """Jobs that can have written the program's output; none if unknown."""
    started = {e["job"] for e in events if e.kind == "job.started" and e.source.role == "gcs-out"}
    if any(event.kind == "driver.started_local" for event in events):
        return frozenset({_FIRST_JOB, *started})
    outputs = [source for source in sources if source.role in CONSOLES]
    drivers = [source for source in sources if source.role == "core-driver"]
    jobs = {ids.job_of_driver(e.value) for source in drivers for e in source.entities}
    if len(outputs) == len(jobs) == 1 and "" not in jobs:
        named = {job for e in events if e.source.role in _RAYS_OWN for job in _jobs(e)}
        return frozenset({*jobs, *started, *named})
    return frozenset()


def _jobs(event: Event) -> set[str]:
    """Jobs of the tasks, actors and objects that an event names."""
    found = set()
    for entity in event.entities:
        if entity.kind == "task":
            found.add(ids.job_of_task(entity.value))
        elif entity.kind == "actor":
            found.add(ids.job_of_actor(entity.value))
        elif entity.kind == "object":
            parts = ids.parse_object_id(entity.value)
            found.add(parts.job if parts else "")
    return found - {"", "f" * len(_FIRST_JOB)}


def _covers_session(events: list[Event]) -> bool:
    """Whether every node of the session is known, from the GCS or as the only node of a `ray.init()`."""
    kinds = {event.kind for event in events}
    return {"driver.started_local", "raylet.started"} <= kinds or _gcs_records_session(events)


def _gcs_records_session(events: Iterable[Event]) -> bool:
    """Whether the GCS's log holds the head's registration, the first job, and the end of every job."""
    gcs = [e for e in events if e.source.role == "gcs-out"]
    nodes = [e.at for e in gcs if e.kind == "node.registered" and e.at is not None]
    jobs = {e["job"]: e.at for e in gcs if e.kind == "job.started" and e.at is not None}
    ended = {e["job"] for e in gcs if e.kind == "job.finished"}
    return bool(nodes) and min(nodes) <= jobs.get(_FIRST_JOB, 0.0) and jobs.keys() <= ended


def _known_places(events: Iterable[Event]) -> frozenset[str]:
    """Addresses and ids of nodes in the logs of Ray's own processes."""
    found: set[str] = set()
    for event in events:
        if event.source.role in _RAYS_OWN:
            found |= {event["ip"], event["node"]} | _places(event)
            found |= {entity.value for entity in event.entities if entity.kind == "node"}
    return frozenset(found)


def _is_of_driver(event: Event) -> bool:
    """Whether it is in a driver's output, including echoes (`(raylet) …`, `(train pid=…) …`)."""
    return event.source.role in CONSOLES or event.source.role.endswith("-echo")


def _places(event: Event) -> set[str]:
    return {match["ip"] or match["node"] for match in _PLACES.finditer(event.message)}


def _gaps(foreign: Iterable[Event]) -> list[Gap]:
    by_file: dict[str, list[Event]] = {}
    for event in foreign:
        by_file.setdefault(event.source.path, []).append(event)
    return [
        Gap(
            f"errors of {joined(sorted(set().union(*map(_named, quoted)))[:3])} in {path}",
            "Ray's own logs do not contain them, so they are of another cluster, or text that a program "
            "quotes",
            "If they are of this run, its logs are missing: collect them from the cluster it ran on",
            about="quoted",
        )
        for path, quoted in sorted(by_file.items())
    ]


def _named(event: Event) -> set[str]:
    """The nodes or jobs of another run that an event names, or that it is older."""
    jobs = {f"job {ids.job_number(job)}" for job in _jobs(event)}
    return _places(event) or jobs or {"an earlier day"}
