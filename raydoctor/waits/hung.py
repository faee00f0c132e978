"""Who hangs, in what, and for whom all the others wait: what `raydoctor hung` prints and rules tell.

A task hangs that stands still far longer than its peers took, or waits for one that hangs, or in a circle
of such as wait for each other. What uses a processor is at work, unless its peers prove otherwise; who
waits for work that goes on does not hang, however long he waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster.samples import Frame, Kind, Process, Thread
from raydoctor.model.text import duration
from raydoctor.model.values import Link
from raydoctor.waits import edges, graph, pending
from raydoctor.waits.candidates import MIN_AGE, SETTLED, Work, too_long
from raydoctor.waits.edges import Scene, Target, Waiting, target
from raydoctor.waits.graph import Wait
from raydoctor.waits.kinds import kind
from raydoctor.waits.kinds.frames import EVENT_LOOP
from raydoctor.waits.kinds.kind import Verdict
from raydoctor.waits.kinds.specifics import watched_peers

_STATES: Mapping[str, Kind] = {
    "PENDING_ARGS_AVAIL": "arguments",
    "GETTING_AND_PINNING_ARGS": "arguments",
    "PENDING_ACTOR_TASK_ARGS_FETCH": "arguments",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY": "actor-queue",
    "PENDING_NODE_ASSIGNMENT": "resources",
}
_POLLS = 1.5
"""Times a second: who gives his processor away more often polls. Each look itself costs one or two."""
_HELD = ("stopped", "debugger")
"""Somebody holds it, however often it looks whether he lets go."""
_QUEUES = {
    "_QueueActor.get": "waits until somebody puts an item into its queue (ray.util.queue)",
    "_QueueActor.put": "waits until somebody takes an item of its full queue (ray.util.queue)",
}
_THINGS: Mapping[Kind, str] = {
    "socket": "address",
    "subprocess": "process",
    "debugger": "process",
    "disk": "file",
    "lock": "file",
}


class Hung(NamedTuple):
    """One that hangs."""

    work: Work
    kind: Kind
    words: str
    """What it does: `waits for a socket, 10.0.0.9:5432, in load (etl.py:31)`."""
    why: str
    """Why that is a hang: `has run for 86 s; 7 before it took 0.5 s`."""
    verdict: Verdict | None
    """What its stack says; None of what does not run, or was not looked at."""
    waiting: Waiting | None
    """For whom it waits; None of one who waits for nobody of these."""
    links: tuple[Link, ...]

    @property
    def place(self) -> Frame | None:
        """The user's own frame that it stands in."""
        return self.verdict.user if self.verdict else None

    @property
    def targets(self) -> tuple[Target, ...]:
        """Whom or what it waits for."""
        if self.waiting:
            return self.waiting.targets
        on = self.verdict.on if self.verdict else ""
        return (Target(_THINGS.get(self.kind, "thing"), None, on),) if on else ()

    @property
    def tells(self) -> tuple[str, ...]:
        """The evidence in words."""
        told = [link.shows for link in self.links]
        return (*told, *(self.verdict.evidence if self.verdict else ()))


class Group(NamedTuple):
    """Those that hang for one reason."""

    culprits: tuple[Hung, ...]
    """Who waits for nobody else: usually one; several that hang at the same place; or a circle's members."""
    circle: tuple[Hung, ...]
    """Each before the one that it waits for, and the last for the first; empty where there is none."""
    behind: tuple[Hung, ...]
    """Who waits for them."""

    @property
    def all(self) -> tuple[Hung, ...]:
        """Everybody."""
        return (*self.culprits, *self.behind)

    @property
    def first(self) -> Hung:
        """The one to look at first: the circle's oldest, or the oldest culprit."""
        return (self.circle or self.culprits)[0]

    @property
    def exact(self) -> bool:
        """Whether nothing of its circle is a guess."""
        return all(h.waiting is None or h.waiting.exact for h in self.circle)


class Found(NamedTuple):
    """All that hangs."""

    groups: tuple[Group, ...]
    """The one with most members first."""
    unfinished: int
    """Tasks and methods that have not ended."""
    unseen: tuple[Work, ...]
    """What has run for long and could not be looked at: nobody knows whether it hangs."""
    working: tuple[Hung, ...] = ()
    """What has run for long and is at work, or polls: no hang, as far as its peers tell, or without any."""


def hung(case: Case, min_age: float = MIN_AGE) -> Found:
    """Who hangs, as the tables of a collection show it."""
    seen = edges.scene(case)
    unplaced = pending.unplaced(seen)
    verdicts = _verdicts(seen)
    seen = _aged(seen, verdicts)
    blockers = _blockers(seen, verdicts)
    told = {}
    for work in seen.works.values():
        blocker = blockers.get((work.node, work.pid or 0))
        other = blocker if blocker is not None and blocker.id != work.id else None
        told[work.id] = (
            _of_running(seen, work, verdicts, other, min_age)
            if work.runs
            else _of_pending(seen, work, min_age, unplaced.get(work.id))
        )
    standing = {name for name, each in told.items() if each.standing}
    waits = {
        name: each.waiting.wait
        for name, each in told.items()
        if each.waiting and each.waiting.wait and _is_lasting(each.work)
    }
    found = [_group(each, told) for each in graph.groups(standing, waits)]
    unseen = [each.work for each in told.values() if each.unseen]
    tasks = sum(work.kind != "driver" for work in seen.works.values())
    inside = {h.work.id for group in found for h in group.all}
    working = [
        _hung(each)
        for each in told.values()
        if each.work.id not in inside and _is_at_work(each, min_age)
    ]
    by_age = tuple(sorted(unseen, key=lambda w: -w.age))
    return Found(tuple(_merged(found)), tasks, by_age, _oldest_first(working))


class _Told(NamedTuple):
    """What is known of one piece of work."""

    work: Work
    verdict: Verdict | None
    waiting: Waiting | None
    standing: str = ""
    """Why it hangs by itself; empty where it does not."""
    unseen: bool = False


def _is_at_work(told: _Told, min_age: float) -> bool:
    """Whether it has run for long, and does something that can be named."""
    work, does = told.work, told.verdict
    is_task = work.runs and work.kind != "driver" and told.waiting is None
    is_named = does is not None and (does.kind != "unknown" or does.is_open)
    has_no_stack = does is None and work.process is not None
    is_old = work.age >= min_age or (work.is_ageless and does is not None and does.still)
    return is_task and (is_named or has_no_stack) and is_old


def _is_lasting(work: Work) -> bool:
    """Whether its wait is no passing one."""
    return work.age >= SETTLED or work.kind == "driver" or work.is_ageless


# ---------------------------------------------------------------- what runs


def _of_running(
    seen: Scene,
    work: Work,
    verdicts: Mapping[str, Verdict | None],
    blocker: Work | None,
    min_age: float,
) -> _Told:
    """`blocker`: another method, which holds up the event loop that this one needs."""
    verdict = verdicts.get(work.id)
    if blocker is not None:
        return _Told(work, None, _beside(work, blocker))
    if verdict is None and work.process is not None:
        if not _is_async(
            work.process
        ):  # idle when it was looked at: it has ended since, or is in Ray
            return _Told(work, None, None)
        return _Told(work, None, _of_coroutine(seen, work, verdicts))
    if (others := edges.of_training(seen, work, verdicts)) is not None:
        return _Told(work, verdict, others)
    in_get = verdict is not None and verdict.kind == "ray-get"
    waiting = edges.awaited(seen, work, in_get) if _may_await(verdict) else None
    if waiting is None and verdict is not None and verdict.in_asyncio:
        waiting = _of_coroutine(seen, work, verdicts)
    lasts = waiting is not None and waiting.wait is not None
    if lasts or work.kind == "driver":  # nobody knows since when a driver stands where it stands
        return _Told(work, verdict, waiting)
    # For whom it waits in ray.get, nobody knows: that one may be at work.
    is_open = waiting is not None and not waiting.exact
    still = not is_open and _is_still(work, verdict, min_age)
    standing = too_long(work, still=still, min_age=min_age)
    unseen = not standing and work.age >= min_age and not work.peers and not _is_seen(verdict)
    return _Told(work, verdict, waiting, standing, unseen and not _awaits(work, verdict))


def _of_coroutine(
    seen: Scene, work: Work, verdicts: Mapping[str, Verdict | None]
) -> Waiting | None:
    """What one awaits that has no stack, as far as its calls tell."""
    told = edges.awaited(seen, work) or edges.of_training(seen, work, verdicts)
    return told or edges.awaiting(seen, work)


def _is_async(process: Process) -> bool:
    """Whether an actor's coroutines run there: those that await are on no stack."""
    return any(thread.name.startswith(EVENT_LOOP) for thread in process.last.threads)


def _may_await(verdict: Verdict | None) -> bool:
    return verdict is None or verdict.kind in ("ray-get", "async-blocked", "unknown")


def _is_seen(verdict: Verdict | None) -> bool:
    """Whether its stack was read: the kernel alone seldom tells enough."""
    has_stack = verdict is not None and verdict.thread is not None and verdict.thread.frames
    return bool(has_stack) or (verdict is not None and verdict.kind != "unknown")


def _is_still(work: Work, verdict: Verdict | None, min_age: float) -> bool:
    """Whether it stood at one place in several looks, and before them, and did not merely poll there."""
    if verdict is not None and verdict.kind in _HELD:
        return True
    if verdict is None or work.process is None:
        return False
    if verdict.rested is None and len(work.process.samples) < 2:
        return False  # what one look sees may be over the next moment; the kernel tells of the time before
    if verdict.is_open or (verdict.rested is not None and verdict.rested < min_age):
        return False
    if verdict.wakes is not None and verdict.wakes < min_age:
        return False  # a nap: a look may have woken it since it lay down
    asks_child = verdict.kind == "subprocess" and verdict.rested is not None
    polls = not asks_child and _polls(work.process, verdict)
    return not verdict.moves and _is_seen(verdict) and not polls


def _polls(process: Process, verdict: Verdict) -> bool:
    """Whether it gives its processor away again and again: it looks for something, and goes on looking."""
    tid = verdict.thread.tid if verdict.thread else 0
    looks = [(s.at, t.voluntary) for s in process.samples for t in s.threads if t.tid == tid]
    if len(looks) < 2:
        return False
    (began, before), (ended, after) = looks[0], looks[-1]
    return after - before > _POLLS * (ended - began) + len(looks)


def _awaits(work: Work, verdict: Verdict | None) -> bool:
    """A coroutine that awaits: its process was looked at, and it has no stack while it waits."""
    return verdict is None and work.process is not None


def _verdicts(seen: Scene) -> dict[str, Verdict | None]:
    """What the stack of each that runs says; of several methods, that of the threads in its function."""
    found: dict[str, Verdict | None] = {}
    for beside in seen.of_process.values():
        process = beside[0].process
        if process is None:
            found |= {work.id: None for work in beside}
        elif len(beside) == 1:
            found[beside[0].id] = kind.kind_of(process)
        else:
            found |= _shared(process, beside)
    return found


def _shared(process: Process, beside: list[Work]) -> dict[str, Verdict | None]:
    """Of several methods in one process each one's own; where no thread is in any method's function, as in

    Ray Serve's replicas: who blocks the loop stands for all, and of as many threads as methods each for one.
    """
    own = {work.id: kind.kind_of(_part(process, work)) for work in beside}
    if any(own.values()) or not _is_async(process):
        return own
    whole = [verdict for verdict in kind.verdicts_of(process) if verdict.user is not None]
    if whole and whole[0].kind == "async-blocked":
        return {**own, beside[0].id: whole[0]}
    if len(whole) >= len(beside):
        return {work.id: verdict for work, verdict in zip(beside, whole, strict=False)}
    return own


def _aged(seen: Scene, verdicts: Mapping[str, Verdict | None]) -> Scene:
    """With ages for what has no start in any table (Ray Serve's calls): as long as its thread has rested."""
    works = {}
    for name, work in seen.works.items():
        verdict = verdicts.get(name)
        rested = verdict.at_least if verdict else 0.0
        works[name] = work._replace(age=rested) if work.is_ageless and rested >= 1 else work
    return replace(seen, works=works)


def _part(process: Process, work: Work) -> Process:
    """Of a process, the threads in a method's function, and the main one: that shows a stopped process."""
    name = work.name.rpartition(".")[2]

    def is_its(thread: Thread) -> bool:
        return thread.tid == process.pid or any(
            f.function.rpartition(".")[2] == name for f in thread.frames
        )

    looks = [
        sample._replace(threads=tuple(t for t in sample.threads if is_its(t)))
        for sample in process.samples
    ]
    return process._replace(samples=tuple(looks))


def _blockers(seen: Scene, verdicts: Mapping[str, Verdict | None]) -> dict[tuple[str, int], Work]:
    """(node, pid) of an async actor whose event loop stands -> the method that holds it up."""
    return {
        key: work
        for key, beside in seen.of_process.items()
        for work in reversed(beside)
        if (verdict := verdicts.get(work.id)) and verdict.kind == "async-blocked"
    }


def _beside(work: Work, blocker: Work) -> Waiting:
    shows = f"{blocker.label} blocks the event loop that {work.name} needs, too"
    event = work.process.last.event if work.process else work.event
    return Waiting(
        "async-blocked",
        f"cannot go on: {blocker.name} blocks its actor's event loop",
        (target(blocker),),
        Wait(frozenset({blocker.id})),
        (Link(event, shows),),
    )


# ---------------------------------------------------------------- what waits for its turn


def _of_pending(seen: Scene, work: Work, min_age: float, placed: Waiting | None) -> _Told:
    waiting = edges.queued(seen, work) or placed
    stands = waiting is not None and waiting.stands and work.age >= min_age
    if waiting is not None and waiting.rested is not None and waiting.rested < min_age:
        stands = False
    why = f"has waited for {duration(work.age)}" if stands else ""
    return _Told(work, None, waiting, why)


# ---------------------------------------------------------------- groups


def _group(found: graph.Group, told: Mapping[str, _Told]) -> Group:
    culprits = _oldest_first(_hung(told[name]) for name in found.ends)
    behind = _oldest_first(_hung(told[name]) for name in found.behind)
    return Group(culprits, _turned([_hung(told[name]) for name in found.circle]), behind)


def _oldest_first(those: Iterable[Hung]) -> tuple[Hung, ...]:
    return tuple(sorted(those, key=lambda h: (-h.work.age, h.work.id)))


def _turned(circle: list[Hung]) -> tuple[Hung, ...]:
    """A circle from the oldest that runs on."""
    if not circle:
        return ()
    first = min(circle, key=lambda h: (not h.work.runs, -h.work.age, h.work.id))
    start = circle.index(first)
    return (*circle[start:], *circle[:start])


def _hung(told: _Told) -> Hung:
    work, verdict, waiting = told.work, told.verdict, told.waiting
    links = (*(waiting.links if waiting else ()), *_links(told))
    does = "has run" if work.runs and waiting is None else "has waited"
    since = f"for {duration(work.age)}" if work.age else "since nobody knows when"
    why = told.standing or f"{does} {since}"
    if verdict is not None and (waiting is None or verdict.kind == "async-blocked"):
        words = verdict.told if waiting is None else f"{verdict.told}, and {waiting.words}"
        return Hung(work, verdict.kind, words, why, verdict, waiting, links)
    if waiting is not None:
        return Hung(work, waiting.kind, waiting.words, why, verdict, waiting, links)
    words = _without_stack(work) if work.runs else f"is {work.state}"
    return Hung(work, _STATES.get(work.state, "unknown"), words, why, verdict, waiting, links)


def _without_stack(work: Work) -> str:
    if work.process is None:
        return "runs"
    if work.name in _QUEUES:
        return _QUEUES[work.name]
    if _is_async(work.process):
        loops = [t.tid for t in work.process.last.threads if t.name.startswith(EVENT_LOOP)]
        peers = watched_peers(work.process, loops)
        watches = f"; its event loop watches {peers}" if peers else ""
        return f"awaits something: a coroutine has no stack while it waits{watches}"
    return "waits in Ray itself: for its arguments, or until somebody takes what its generator made"


def _links(told: _Told) -> Iterator[Link]:
    work = told.work
    if told.standing and work.runs:
        yield Link(work.event, f"{work.label} has run for {duration(work.age)}")
        if work.peers:
            yield Link(work.peers.event, f"{work.name}: {work.peers.told}")
    if told.verdict is not None and work.process is not None and told.waiting is None:
        looks = len(work.process.samples)
        when = f"in {looks} looks" if looks > 1 else "in one look"
        yield Link(work.process.last.event, f"its stack, {when}: {told.verdict.told}")


def _merged(groups: list[Group]) -> list[Group]:
    """Those of one function that hang at one place are one group: eight ranks, one collective."""
    alike: dict[tuple[object, ...], Group] = {}
    for group in groups:
        first = group.first
        where = first.place or first.targets
        key: tuple[object, ...] = (first.work.name, first.kind, where)
        if group.circle or not where:
            key = (first.work.id,)
        if before := alike.get(key):
            culprits = _oldest_first((*before.culprits, *group.culprits))
            group = Group(culprits, (), _oldest_first((*before.behind, *group.behind)))  # noqa: PLW2901
        alike[key] = group
    return sorted(alike.values(), key=lambda g: (-len(g.all), g.first.work.id))
