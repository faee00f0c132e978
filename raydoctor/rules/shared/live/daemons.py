"""Ray's daemons and services in a live collection: which are running, stopped, answering or gone.

The tables are `daemons` (a machine's process table) and `probes` (replies of services). `is_this` marks rows of the
diagnosed cluster. A process counts as gone only if the process table of its machine was read and its raylet or GCS is
running there. Without either the cluster has ended, and its logs show how.
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
"""Outcomes of a probe without a valid reply."""


def daemons(case: Case, *kinds: str) -> list[Event]:
    """This cluster's daemons of these kinds (or any) that have not exited, stopped ones included."""
    return [
        e
        for e in live.rows(case, "daemons")
        if live.truth(e, "is_this") and e["state"] != _GONE and (not kinds or e["kind"] in kinds)
    ]


def stopped(case: Case, *kinds: str) -> list[Event]:
    """This cluster's daemons that a signal or a debugger has stopped."""
    return [e for e in daemons(case, *kinds) if e["state"] in _STOPPED]


def probe(case: Case, name: str) -> Event | None:
    """The probe of one of this cluster's services (`gcs`, `dashboard`, `auth`), if there was one."""
    return next((e for e in live.rows(case, "probes") if e["name"] == name), None)


def is_silent(case: Case, name: str) -> Event | None:
    """The probe of a service that did not answer, or None."""
    asked = probe(case, name)
    return asked if asked is not None and asked["outcome"] in SILENT else None


class Missing(NamedTuple):
    """A daemon of the head that is gone while other daemons of its cluster are running."""

    left: Event
    """A daemon that is running."""
    asked: Event
    """The probe that got no reply."""


def gcs_gone(case: Case) -> Missing | None:
    """The head's GCS process is gone, its address does not answer, and it received no SIGTERM.

    On another node, which does not have its log: the address does not answer, and a raylet is running that needs it.
    """
    asked = is_silent(case, "gcs")
    if asked is None or "gcs" in case.ledger.stops:
        return None
    if "gcs-out" in case.roles:
        return _missing(case, "gcs_server", asked)
    raylets = [] if daemons(case, "gcs_server") else daemons(case, "raylet")
    return Missing(raylets[0], asked) if raylets else None


def dashboard_gone(case: Case) -> Missing | None:
    """The dashboard's process is gone while the GCS on its machine is running and answers.

    The probe's address came from a raylet, so the dashboard had been serving before.
    """
    asked = is_silent(case, "dashboard")
    if asked is None or not asked["address"] or is_silent(case, "gcs") is not None:
        return None
    return _missing(case, "dashboard", asked)


def _missing(case: Case, kind: str, asked: Event) -> Missing | None:
    """A daemon of the head whose process is gone while a raylet or GCS is running where the GCS's log is."""
    places = {source.node for source in case.sources if source.role == "gcs-out"}
    there = [e for e in daemons(case) if e.source.node in places]
    left = [e for e in there if e["kind"] in ("gcs_server", "raylet")]
    if not left or any(e["kind"] == kind for e in there):
        return None
    return Missing(min(left, key=lambda e: (e["kind"], e.pid or 0)), asked)


def raylet_gone(case: Case, started: Event) -> Event | None:
    """A daemon that outlived a raylet on the same machine; None if the raylet is running or its state is unknown.

    Agents do not count: they exit some seconds after their raylet, whatever its cause of death.
    """
    here = [e for e in daemons(case, "raylet", "gcs_server") if _same_machine(e, started)]
    if any(e["node_id"] == started["node"] or e.pid == started.pid for e in here):
        return None
    return min(here, key=lambda e: (e["kind"], e.pid or 0), default=None)


def _same_machine(row: Event, record: Event) -> bool:
    """Whether both come from one machine: its live tables and its logs are in the same folder."""
    return row.source.node == record.source.node
