"""Which worker serves which, and which waits for which: joins for the rules about deadlocks.

They use what `read.dumps` found: `worker.calls` (the calls that a worker served and waited for at its last core log
record) and `raylet.dump` or `debug.state` (queued requests, held resources). `Resource usage` of a raylet lists only
running workers. A task that is blocked in `ray.get` or `ray.wait` is still counted in `Granted leases by scheduling
class` (`Running tasks by scheduling class` up to 2.40), so the difference is the blocked tasks. Read in the logs of Ray
2.9.3, 2.40, 2.50 and 2.60.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.cluster import resources, tables
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Event, Subject
from raydoctor.rules.shared import waiting

LASTING = 10.0
"""Seconds between two equal tables that prove that nothing changed (a minute apart by default)."""


class Worker(NamedTuple):
    """A worker with open calls in its last record."""

    id: str
    pid: int
    names: tuple[str, ...]
    actor: str
    serving: int
    running: int
    calling: int
    """Its own calls without a reply."""
    leases: int
    """Leases that it requested and did not get: its own tasks are in the raylets' queues."""
    leased: int
    """Leases that it got before: it has also called plain tasks."""
    done: int
    mean: float
    """Seconds that an answered call took."""
    unmoved: float
    peers: tuple[str, ...]
    is_async: bool
    event: Event

    @property
    def queued(self) -> int:
        """Calls that wait behind the running one."""
        return max(self.serving - self.running, 0)

    @property
    def waits(self) -> bool:
        """Whether it waits for others, without any change."""
        return bool(self.calling or self.leases) and self.unmoved >= LASTING

    @property
    def name(self) -> str:
        """The actor's class, or the task it started last."""
        return self.names[-1] if self.names else "worker"

    @property
    def label(self) -> str:
        """`OrderBook (pid 400)`, `load() (pid 400)`."""
        return f"{self.called} (pid {self.pid})"

    @property
    def called(self) -> str:
        """`OrderBook`, `load()`, `worker`."""
        return self.name if self.actor or not self.names else called(self.name)

    @property
    def subject(self) -> Subject:
        """For reports."""
        if self.actor:
            return Subject("actor", self.actor, self.name, self.pid)
        return Subject("worker", self.id, self.name, self.pid)


def busy(case: Case) -> list[Worker]:
    """Workers that still served calls, in the order of their logs."""
    return [_worker(case, event) for event in case.of("worker.calls")]


def _worker(case: Case, event: Event) -> Worker:
    worker = evidence.worker_of(event)
    return Worker(
        id=worker,
        pid=event.pid or 0,
        names=case.names.get(worker, ()),
        actor=event["actor"],
        serving=tables.whole(event, "serving") or 0,
        running=tables.whole(event, "running") or 0,
        calling=tables.whole(event, "calling") or 0,
        leases=tables.whole(event, "leases") or 0,
        leased=tables.whole(event, "leased") or 0,
        done=tables.whole(event, "done") or 0,
        mean=tables.number(event, "mean") or 0.0,
        unmoved=tables.number(event, "unmoved") or 0.0,
        peers=tuple(event["peers"].split()),
        is_async=bool(event["async"]),
        event=event,
    )


def working(workers: Iterable[Worker]) -> list[Worker]:
    """Workers that run a call and wait for nothing: while there is one, there is no deadlock."""
    return [w for w in workers if w.running and not w.calling and not w.leases]


# ---------------------------------------------------------------- the raylets' side

_GRANTED = pattern(
    r"class_name=(?P<class>[^,}]{0,300}), function_name=(?P<function>[^,}]{0,300})[^{]{0,300}\} scheduling_strategy=(?s:.{0,1000}?)"
    r"resource_set=\{(?P<set>[^{}]{0,2000})\}(?s:.{0,500}?): (?P<granted>\d{1,20})/\d+$",
    re.MULTILINE,
)
_AVAILABLE = pattern(r'Local resources: \{"total":.{0,4000}?"available": \{(?P<items>[^{}]*)\}')
_ITEM = pattern(r"([\w:.\-/]{1,200}): (\[[^\[\]]*\]|[^\s,\[{}]+)")


@dataclass(frozen=True, slots=True)
class Blocked:
    """Tasks of one function that hold a worker and wait in it."""

    function: str
    count: int
    each: resources.Needs
    """What one of them requested; it gives its CPUs back while it waits."""


def queued(dump: Event) -> int:
    """Requests that wait for resources on that raylet."""
    return waiting.queue(dump) if tables.whole(dump, "num_waiting_for_resource") else 0


def blocked_in(dump: Event) -> list[Blocked]:
    """Tasks that wait in `ray.get` or `ray.wait`, from a raylet's dump."""
    text = dump.message
    begin = max(
        text.find("Granted leases by scheduling class:"),
        text.find("Running tasks by scheduling class:"),
    )
    if begin < 0:
        return []
    part = text[begin:].partition("\n=====")[0]
    listed = [h.name for h in waiting.holders_in(dump)]
    found = []
    for match in _GRANTED.finditer(part):
        name = match["function"]
        count = int(match["granted"]) - listed.count(name)
        if count > 0:
            found.append(Blocked(name, count, _set(match["set"])))
    return found


def _set(text: str) -> resources.Needs:
    """`CPU : 1, licence : 1, ` of a scheduling class."""
    items = [item.rpartition(" : ") for item in text.split(", ")]
    return {name.strip(): sum(resources.numbers(amount)) for name, _, amount in items if name}


def exhausted(dump: Event) -> set[str]:
    """Exhausted resources; one that the dump does not list counts as exhausted."""
    found = _AVAILABLE.search(dump.message)
    if not found:
        return set()
    left = {name: sum(resources.numbers(amount)) for name, amount in _ITEM.findall(found["items"])}
    total = re.search(r'Local resources: \{"total":\{([^}]*)\}', dump.message)
    names = [name for name, _ in _ITEM.findall(total[1])] if total else []
    return {name for name in names if not left.get(name, 0.0)}


def has(dump: Event, name: str) -> float:
    """The node's total of a resource."""
    total = re.search(r'Local resources: \{"total":\{([^}]*)\}', dump.message)
    amounts = dict(_ITEM.findall(total[1])) if total else {}
    return sum(resources.numbers(amounts.get(name, ""))) / 10_000
