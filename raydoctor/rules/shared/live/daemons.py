"""Ray's own processes and services as a live collection saw them: which run, stand still, answer, are gone.

Tables `daemons` (the process table of a machine) and `probes` (who answered). A row is about the cluster that is
diagnosed where it says `is_this`. That a process is gone is said only where the process table of its machine
was read and its raylet or GCS lives there: without one the cluster has ended, and its logs tell how.
"""

from __future__ import annotations

from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.model.values import Event

_GONE = "Z"
_STOPPED = ("T", "t")
"""States of `/proc/PID/stat`: stopped by a signal, or by a tracer (a debugger)."""
SILENT = ("refused", "timeout", "error")
"""Outcomes of a probe to which nobody, or nothing sensible, answered."""


def daemons(case: Case, *kinds: str) -> list[Event]:
    """This cluster's daemons of these kinds (or any) that run, or stand still."""
    return [
        e
        for e in live.rows(case, "daemons")
        if live.truth(e, "is_this") and e["state"] != _GONE and (not kinds or e["kind"] in kinds)
    ]


def stopped(case: Case, *kinds: str) -> list[Event]:
    """Those of them that a signal or a debugger has stopped."""
    return [e for e in daemons(case, *kinds) if e["state"] in _STOPPED]


def probe(case: Case, name: str) -> Event | None:
    """How one of this cluster's services (`gcs`, `dashboard`, `auth`) answered, where it was asked."""
    return next((e for e in live.rows(case, "probes") if e["name"] == name), None)


def is_silent(case: Case, name: str) -> Event | None:
    """The probe of a service that did not answer, or None."""
    asked = probe(case, name)
    return asked if asked is not None and asked["outcome"] in SILENT else None


class Missing(NamedTuple):
    """A daemon of the head that is not there, though others of its cluster are."""

    left: Event
    """A daemon that is."""
    asked: Event
    """The probe to which nobody answered."""


def gcs_gone(case: Case) -> Missing | None:
    """The head's GCS is no process any more, and nobody answers at its address; it was not told to stop.

    Seen from another node, where its log is not: nobody answers, and a raylet lives that needs it.
    """
    asked = is_silent(case, "gcs")
    if asked is None or "gcs" in case.ledger.stops:
        return None
    if "gcs-out" in case.roles:
        return _missing(case, "gcs_server", asked)
    raylets = [] if daemons(case, "gcs_server") else daemons(case, "raylet")
    return Missing(raylets[0], asked) if raylets else None


def dashboard_gone(case: Case) -> Missing | None:
    """The dashboard's process is gone while the GCS beside it lives and answers.

    It was asked, so its address is known: of a raylet that was told so, and then it has served once.
    """
    asked = is_silent(case, "dashboard")
    if asked is None or not asked["address"] or is_silent(case, "gcs") is not None:
        return None
    return _missing(case, "dashboard", asked)


def _missing(case: Case, kind: str, asked: Event) -> Missing | None:
    """A daemon of the head whose process is gone, where raylet or GCS live on beside the GCS's log."""
    places = {source.node for source in case.sources if source.role == "gcs-out"}
    there = [e for e in daemons(case) if e.source.node in places]
    left = [e for e in there if e["kind"] in ("gcs_server", "raylet")]
    if not left or any(e["kind"] == kind for e in there):
        return None
    return Missing(min(left, key=lambda e: (e["kind"], e.pid or 0)), asked)


def raylet_gone(case: Case, started: Event) -> Event | None:
    """A daemon that outlived a raylet on its own machine; None where it runs, or nothing tells that it does not.

    Agents do not count: they end some seconds after their raylet, however that ended.
    """
    here = [e for e in daemons(case, "raylet", "gcs_server") if _same_machine(e, started)]
    if any(e["node_id"] == started["node"] or e.pid == started.pid for e in here):
        return None
    return min(here, key=lambda e: (e["kind"], e.pid or 0), default=None)


def _same_machine(row: Event, record: Event) -> bool:
    """A live table stands in the folder of the node that it was collected on, as the node's logs do."""
    return row.source.node == record.source.node
