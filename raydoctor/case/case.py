"""The input of rules: events and facts of one capture, indexed and read-only.

A rule never accesses the disk, the clock or the network: a `Case` is its only input.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from raydoctor.case import facts
from raydoctor.case.facts import ActorInfo, Job, Ledger, WorkerExit
from raydoctor.model.entities import Entity
from raydoctor.model.text import short_id
from raydoctor.model.values import Event, Source

_FOREVER = float("inf")
OUTPUT = "driver.output"
"""Kind of the last line of each process in a driver's output that reports no failure (`read/ending.py`)."""
LAST_LINE = "worker.last_line"
"""Kind of the last line of each worker that ended."""


class Case:
    """Events by kind and entity in time order, and the ledger built from them."""

    def __init__(
        self,
        events: Iterable[Event],
        sources: Iterable[Source] = (),
        names: Mapping[str, tuple[str, ...]] | None = None,
        endings: Iterable[Event] = (),
        has_zone: bool = False,
    ) -> None:
        self.events = tuple(sorted(events, key=order))
        self.sources = tuple(sources)
        self.roles = frozenset(s.role for s in self.sources if not s.is_excerpt)
        self.names = names or {}
        self.has_zone = has_zone
        """Whether a record shows the zone of the logs' local times."""
        self.is_packed = False
        """Whether the capture is an archive: no file can be put beside its logs before it is unpacked."""
        last = list(endings)
        self.endings = {e.source: e for e in last if e.kind not in (OUTPUT, LAST_LINE)}
        """The last output of each driver (`read/ending.py`)."""
        self.last_lines = [event for event in last if event.kind == LAST_LINE]
        """The last line that each worker that ended printed, in its own files and in consoles."""
        self.outputs: dict[str, list[Event]] = {}
        """By path: the last line of each process that reports no failure."""
        for event in last:
            if event.kind == OUTPUT:
                self.outputs.setdefault(event.source.path, []).append(event)
        self.ledger: Ledger = facts.build(self.events, self.sources, self.names)
        self._by_kind: dict[str, list[Event]] = {}
        self._by_entity: dict[Entity, list[Event]] = {}
        for event in self.events:
            self._by_kind.setdefault(event.kind, []).append(event)
            for entity in event.entities:
                self._by_entity.setdefault(entity, []).append(event)
        self.explained: frozenset[Entity] = frozenset()
        self.accounted: Mapping[int, tuple[Entity, ...]] = {}

    # ------------------------------------------------------------ events

    def of(self, *kinds: str) -> list[Event]:
        """Events of these kinds, in time order."""
        if len(kinds) == 1:
            return list(self._by_kind.get(kinds[0], ()))
        return sorted((e for kind in kinds for e in self._by_kind.get(kind, ())), key=order)

    def about(self, entity: Entity, *kinds: str) -> list[Event]:
        """Events that name this entity, of these kinds (or any), in time order."""
        return [e for e in self._by_entity.get(entity, ()) if not kinds or e.kind in kinds]

    def near(
        self, event: Event, *kinds: str, before: float = 5.0, after: float = 5.0
    ) -> list[Event]:
        """Events of these kinds within seconds of another event; events without a time are left out."""
        if event.at is None:
            return []
        low, high = event.at - before - event.slack, event.at + after + event.slack
        return [e for e in self.of(*kinds) if e.at is not None and low <= e.at <= high]

    def span(self, event: Event) -> tuple[float, float]:
        """Its earliest and latest time: an event without a date lies between its neighbours in its file."""
        if event.at is not None:
            return event.at, event.at
        dated = self._dated.get(event.source, [])
        place = bisect(dated, (event.line, _FOREVER))
        before = dated[place - 1][1] if place else -_FOREVER
        return before, max(before, dated[place][1]) if place < len(dated) else _FOREVER

    @cached_property
    def _dated(self) -> dict[Source, list[tuple[int, float]]]:
        found: dict[Source, list[tuple[int, float]]] = {}
        for event in sorted(self.events, key=lambda e: e.line):
            if event.at is not None:
                found.setdefault(event.source, []).append((event.line, event.at))
        return found

    # ------------------------------------------------------------ facts

    @property
    def version(self) -> tuple[int, int] | None:
        """(major, minor) of the capture's Ray, the oldest of several; None if unknown."""
        return self.ledger.version

    @property
    def exits(self) -> list[WorkerExit]:
        """Worker exits that are failures, in time order."""
        return [e for e in self.ledger.exits if not e.expected and not e.is_driver]

    @property
    def driver_exits(self) -> list[WorkerExit]:
        """Exits of drivers that did not disconnect from Ray, in time order."""
        return [e for e in self.ledger.exits if not e.expected and e.is_driver]

    @property
    def all_exits(self) -> list[WorkerExit]:
        """Every recorded worker exit, including expected ones."""
        return list(self.ledger.exits)

    def exit_of(self, worker: str) -> WorkerExit | None:
        """The recorded exit of a worker."""
        return self.ledger.exit_of(worker)

    def exit_of_process(self, pid: int, node: str = "", ip: str = "") -> WorkerExit | None:
        """The recorded exit of a process, if its pid is unambiguous or its node is given."""
        found = [
            e
            for e in self.ledger.exits
            if e.pid == pid
            and (not node or not e.node or e.node == node)
            and (not ip or not e.ip or e.ip == ip)
        ]
        return found[0] if len(found) == 1 else None

    def actor(self, actor: str) -> ActorInfo:
        """The known facts about an actor; at least its id."""
        return self.ledger.actors.get(actor) or ActorInfo(actor)

    def actor_of_worker(self, worker: str) -> str:
        """The actor that ran in a worker, or empty."""
        return next((a.id for a in self.ledger.actors.values() if worker in a.workers), "")

    def job(self, job: str) -> Job:
        """The known facts about a job; at least its id."""
        return self.ledger.jobs.get(job) or Job(job)

    def node_of(self, source: Source) -> str:
        """NodeID of the raylet that wrote this source, or of the only node in its folder; otherwise empty."""
        if source.role.startswith("raylet"):
            return facts.node_of_file(self.ledger, source.path)
        here = self._nodes_of_folders.get(_folder(source.path), set())
        return next(iter(here)) if len(here) == 1 else ""

    @cached_property
    def _nodes_of_folders(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for path, node in self.ledger.raylet_files.items():
            found.setdefault(_folder(path), set()).add(node)
        return found

    def address_of(self, node: str, known: str = "") -> str:
        """A node's address, with its short id if another node has the same one.

        `known`: an address from elsewhere, for a node whose start is not in the capture.
        """
        ips = self.ledger.node_ips
        ip = ips.get(node) or known
        is_shared = any(each == ip and other != node for other, each in ips.items())
        if ip and node and is_shared:
            return f"{ip} ({short_id(node)})"
        return ip or short_id(node)

    def node_name(self, node: str, known: str = "") -> str:
        """`node 10.0.0.2`; of several, `head node 10.0.0.2` or `worker node 10.0.0.3`, as far as is known."""
        registered = [event["node"] for event in self.of("node.registered")]
        role = ""
        if len(self.ledger.node_ips) > 1 and node in registered:
            role = "head " if node == registered[0] else "worker "
        return f"{role}node {self.address_of(node, known)}"

    def stopped_at(self, node: str = "") -> float:
        """When a node (or, without one, the first raylet or GCS) received SIGTERM; infinity if never."""
        if node:
            return self.ledger.stops.get(node, _FOREVER)
        return min(self.ledger.stops.values(), default=_FOREVER)

    def is_last_of_console(self, event: Event) -> bool:
        """Whether the console that holds an event shows nothing of its program after it."""
        end = self.endings.get(event.source)
        return end is None or end.line <= event.line

    def torn_down(self, event: Event) -> bool:
        """Whether an event belongs to a shutdown: it follows its job's end or its node's stop."""
        if event.at is None:
            return False
        jobs = [
            self.ledger.jobs[e.value]
            for e in event.entities
            if e.kind == "job" and e.value in self.ledger.jobs
        ]
        jobs = jobs or list(self.ledger.jobs.values())
        ended = bool(jobs) and all(j.ended is not None and event.at >= j.ended for j in jobs)
        node = event["node"] or self.node_of(event.source)
        return (
            ended or event.at >= self.stopped_at(node)
            if node
            else ended or event.at >= self.stopped_at()
        )

    # ------------------------------------------------------------ for fallback rules

    def is_explained(self, *entities: Entity) -> bool:
        """Whether another rule's finding already explains any of these (fallback rules only)."""
        return any(entity in self.explained for entity in entities)

    def is_accounted_for(self, event: Event) -> bool:
        """Whether another rule's finding uses this event as evidence (fallback rules only)."""
        return id(event) in self.accounted

    def explained_with(self, event: Event) -> tuple[Entity, ...]:
        """The entities explained by the finding that uses this event as evidence (fallback rules only)."""
        return self.accounted.get(id(event), ())


def order(event: Event) -> tuple[bool, float, str, int]:
    """Sort key: time, then place; events without a time last. The order of files must not matter."""
    return (event.at is None, event.at or 0.0, event.source.path, event.line)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def sightings(exit_: WorkerExit) -> Iterator[Event]:
    """An exit's events, the most informative first, each record once."""
    seen: set[tuple[str, str]] = set()
    for event in exit_.events:
        key = (event.kind, event.source.role)
        if key not in seen:
            seen.add(key)
            yield event
