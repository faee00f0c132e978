"""When raylets and the GCS ended without a request to stop, for the timeline. Pure.

A process that is killed records nothing. Its end is then the first sign of it: a connection that broke, a
worker that lost its raylet, or the moment at which a live collection did not find the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.signals import GCS, RAYLET
from raydoctor.model.values import Diagnosis, Event
from raydoctor.rules.shared.cluster import (
    AGENT_FAILED,
    GCS_LOST,
    DeadRaylet,
    dead_raylets,
    fatal_reason,
    gcs_lived_on,
)

_GCS_RULE, _GCS = "gcs-died", "gcs"
_RAYLET = "raylet"


class DaemonEnd(NamedTuple):
    """The end of a raylet or of the GCS."""

    node: str
    """The raylet's node; empty for the GCS."""
    at: float
    """Epoch seconds: of its own last record, or of the first sign of its end."""
    text: str
    records: tuple[Event, ...] = ()
    """Its own last records; empty if others report its end."""
    diagnoses: tuple[str, ...] = ()
    is_consequence: bool = False
    """Whether it ended because the GCS did not answer."""


def ends(case: Case, diagnoses: Iterable[Diagnosis]) -> Iterator[DaemonEnd]:
    """The ends that no SIGTERM explains: of the GCS, then of each raylet."""
    found = list(diagnoses)
    yield from filter(None, (_gcs(each) for each in found if each.rule == _GCS_RULE))
    dead = {raylet.node: raylet for raylet in dead_raylets(case)}
    lost = evidence.grouped(case.of("raylet.seen_dead"), lambda e: node_of_witness(case, e))
    gone = case.of(GCS_LOST.kind)
    by_raylets = [e for e in gone if e.source.role in RAYLET] if gcs_lived_on(case, gone) else []
    without_gcs = {case.node_of(e.source) for e in by_raylets}
    for started in case.of("raylet.started"):
        node = started["node"]
        raylet = dead.get(node, DeadRaylet(node, "", started.pid, started, (), ()))
        # The first one is the cause; others are what the end left behind.
        about = [d for d in found if _is_about(d, raylet)][:1]
        is_known = bool(about) or node in dead
        witnesses = [e for e in lost.get(node, ()) if is_known or not case.torn_down(e)]
        if end := _raylet(raylet, about, witnesses):
            yield _without_gcs(end, raylet) if node in without_gcs else end


def node_of_witness(case: Case, event: Event) -> str:
    """The node of the process that reports the end of its raylet."""
    worker = next((e.value for e in event.source.entities if e.kind == "worker"), "")
    return case.ledger.worker_nodes.get(worker, "") or case.node_of(event.source)


def _is_about(diagnosis: Diagnosis, raylet: DeadRaylet) -> bool:
    """Whether the diagnosis is of this raylet and cites a record of its own."""
    if not any(s.kind == _RAYLET and s.id == raylet.node for s in diagnosis.subjects):
        return False
    own = (raylet.started, *raylet.said)
    return any(link.event is each for link in diagnosis.chain for each in own)


def _raylet(
    raylet: DeadRaylet, about: Sequence[Diagnosis], lost: Sequence[Event]
) -> DaemonEnd | None:
    """Failed health checks alone do not prove that the process ended: then a diagnosis must say so."""
    ids = tuple(each.id for each in about)
    name = f"The raylet (pid {raylet.pid})" if raylet.pid is not None else "The raylet"
    links = [link for each in about for link in each.chain]
    own = next((e for e in raylet.said if e.at is not None), None)
    if own is not None and own.at is not None:
        shown = next((link.shows for link in links if link.event is own), "")
        text = f"{shown[:1].upper()}{shown[1:]}" if shown else f"{name} {_reason(own)}"
        return DaemonEnd(raylet.node, own.at, text, raylet.said, ids)
    if not about and not lost:
        return None
    signs = [*raylet.seen, *lost] or [e.event for e in links if e.event.source.role not in RAYLET]
    at = min((e.at for e in signs if e.at is not None), default=None)
    return None if at is None else DaemonEnd(raylet.node, at, f"{name} has ended", (), ids)


def _without_gcs(end: DaemonEnd, raylet: DeadRaylet) -> DaemonEnd:
    """The end of a raylet that had lost a GCS which lived on: its agent may have given up first."""
    return end._replace(
        text=f"The raylet (pid {raylet.pid}) ends: it lost the GCS", is_consequence=True
    )


def _reason(own: Event) -> str:
    return "exits because its agent died" if own.kind == AGENT_FAILED.kind else fatal_reason(own)


def _gcs(diagnosis: Diagnosis) -> DaemonEnd | None:
    own, at = diagnosis.chain[0].event, diagnosis.first_at
    if at is None:
        return None
    if own.source.role in GCS and (own.level == "C" or own["signal"]):
        return DaemonEnd("", at, f"The GCS {fatal_reason(own)}", (own,), (diagnosis.id,))
    return DaemonEnd("", at, "The GCS has ended", (), (diagnosis.id,))
