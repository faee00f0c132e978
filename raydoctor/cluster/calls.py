"""Which actor waits for which right now, from the live tables of tasks and of tasks in `ray.get`.

A call's row names its parent, the task that made it (Ray 2.9 to 2.60). In actors with threads or coroutines
Ray loses this and names the driver's task: such calls prove nothing here. A method that is RUNNING and in
`ray.get`, whose call is `SUBMITTED_TO_WORKER` at another actor, waits until that actor runs the call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import holders as holding
from raydoctor.cluster import rows as live_rows
from raydoctor.cluster import tables as live
from raydoctor.model import ids
from raydoctor.model.values import Event, Subject

QUEUED = (
    "SUBMITTED_TO_WORKER",
    "PENDING_ACTOR_TASK_ARGS_FETCH",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY",
)
_ENDED = ("FINISHED", "FAILED")


class Stuck(NamedTuple):
    """An actor whose method waits in `ray.get` for a call to another stuck actor."""

    actor: str
    name: str
    pid: int | None
    method: Event
    """The row of its running method."""
    call: Event
    """The row of the call that it waits for."""
    queued: int
    """Calls in its own queue."""

    @property
    def awaits(self) -> str:
        """The actor that must answer."""
        return self.call["actor_id"]

    @property
    def label(self) -> str:
        """`OrderBook (pid 400)`."""
        return f"{self.name} (pid {self.pid})" if self.pid else self.name

    @property
    def subject(self) -> Subject:
        """For reports."""
        return Subject("actor", self.actor, self.name, self.pid)

    @property
    def age(self) -> float:
        """Seconds since its call last changed state."""
        events = live.records(self.call, "events")
        times = [t for e in events if (t := live.number_of(e.get("created_ms")))]
        return (self.call.at or 0.0) - max(times, default=0.0) / 1000


def stuck(case: Case) -> dict[str, Stuck]:
    """Actors that wait only for each other, by id."""
    tasks = live.rows(case, "tasks")
    running = [e for e in tasks if e["state"] == "RUNNING"]
    waiting = holding.in_ray_get(case, running)
    found = _waiting_actors(running, waiting)
    children: dict[str, list[Event]] = {}
    for event in tasks:
        if event["state"] not in _ENDED:
            children.setdefault(event["parent_task_id"], []).append(event)
    while True:
        left = {
            actor: method
            for actor, method in found.items()
            if _is_stuck(children.get(method["task_id"], []), found, waiting)
        }
        if left.keys() == found.keys():
            break
        found = left
    queues: dict[str, int] = {}
    for event in tasks:
        if event["state"] in QUEUED and event["type"] == "ACTOR_TASK":
            queues[event["actor_id"]] = queues.get(event["actor_id"], 0) + 1
    return {
        actor: Stuck(
            actor,
            live_rows.name_of(method).partition(".")[0],
            method.pid,
            method,
            children[method["task_id"]][0],
            queues.get(actor, 0),
        )
        for actor, method in found.items()
    }


def _waiting_actors(running: Iterable[Event], waiting: set[str]) -> dict[str, Event]:
    """Actors with one running method, which waits in `ray.get`."""
    methods: dict[str, list[Event]] = {}
    for event in running:
        if event["actor_id"] and event["type"] == "ACTOR_TASK":
            methods.setdefault(event["actor_id"], []).append(event)
    return {a: m[0] for a, m in methods.items() if len(m) == 1 and m[0]["task_id"] in waiting}


def _is_stuck(calls: list[Event], found: dict[str, Event], waiting: set[str]) -> bool:
    """Whether none of a method's own calls can progress: each is queued at, or runs in, a waiting actor."""
    return bool(calls) and all(
        call["actor_id"] in found
        and call["type"] == "ACTOR_TASK"
        and not ids.is_creation_task(call["task_id"])
        and (call["state"] in QUEUED or call["task_id"] in waiting)
        for call in calls
    )
