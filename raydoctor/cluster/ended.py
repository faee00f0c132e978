"""Workers whose process has ended without Ray noticing it, from live tables.

The raylet and the callers of a worker notice its end by its connections. A process that the worker forked,
and that runs no other program, has inherited them and keeps them open until it ends itself. Measured with
Ray 2.60.0: its tasks stay unfinished, and its port accepts connections. Programs that it started do not
inherit them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.model.text import join_names
from raydoctor.model.values import Event

_TITLE = 40


class EndedWorker(NamedTuple):
    """A worker that Ray lists as alive, and whose process is gone."""

    event: Event
    """Its row of `worker-stats`: its port accepts connections, and nothing replies."""
    forks: tuple[Event, ...]
    """Rows of `processes`: the processes that keep its connections open, where they are known."""

    @property
    def pids(self) -> list[int]:
        """Of the forks: an event's own `pid` is that of their worker."""
        return [pid for row in self.forks if (pid := live.whole(row, "pid"))]

    @property
    def keepers(self) -> str:
        """`pid 460 (ray::convert)`."""
        return join_names(f"pid {row['pid']} ({row['title'][:_TITLE]})" for row in self.forks)


def workers(case: Case) -> dict[str, EndedWorker]:
    """Worker id -> the worker that has ended; none on nodes whose processes are not visible."""
    here: dict[str, list[Event]] = {}
    for row in live.rows(case, "processes"):
        here.setdefault(row["node_id"], []).append(row)
    asked = [e for e in live.rows(case, "worker-stats") if e["worker_type"] != "DRIVER"]
    listed = {(e["node_id"], e["pid"]) for e in asked}
    found = {}
    for event in asked:
        rows = here.get(event["node_id"], [])
        is_visible = any(row["kind"] == "daemon" for row in rows)
        if event["answers"] == "false" and is_visible and not _is_alive(event, rows, listed):
            found[event["worker_id"]] = EndedWorker(event, tuple(_forks(event, rows)))
    return found


def _is_alive(event: Event, rows: Iterable[Event], listed: set[tuple[str, str]]) -> bool:
    """Whether its process exists. A worker with unreadable files may have another pid in its container."""
    return any(
        row["worker_id"] == event["worker_id"]
        or row["pid"] == event["pid"]
        or (_may_be(row) and (event["node_id"], row["pid"]) not in listed)
        for row in rows
        if row["kind"] == "worker" and row["state"] != "Z"
    )


def _may_be(row: Event) -> bool:
    """Whether a child of the raylet may be any worker: its id is not known, and it runs no other program."""
    return not row["worker_id"] and ("ray::" in row["title"] or "worker" in row["title"].lower())


def _forks(event: Event, rows: Iterable[Event]) -> list[Event]:
    """What descends from it; of these, forks keep the title that Ray gave to the worker."""
    left = [
        row
        for row in rows
        if row["worker_id"] == event["worker_id"] and row["kind"] == "child" and row["state"] != "Z"
    ]
    return [row for row in left if row["title"].startswith("ray::")] or left
