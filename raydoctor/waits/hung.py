"""Which work hangs, in what, and which work waits for it: the input of `raydoctor hung` and of rules.

A task is hung if its stack has not changed for far longer than its peers took, if it waits for a hung task,
or if it is part of a cycle of waits. A CPU-bound task is busy, unless finished peers took far less time. A
task that waits for work in progress is not hung, however long it waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.cluster import waiting as now
from raydoctor.cluster.samples import SampledFrame, SampledProcess, SampledThread
from raydoctor.model import ids
from raydoctor.model.text import duration, join_names
from raydoctor.model.values import Event, Link
from raydoctor.waits import edges, graph, pending, young
from raydoctor.waits.candidates import MIN_AGE, SETTLED, UnfinishedTask, too_long
from raydoctor.waits.edges import Scene, Waiting, WaitTarget, target
from raydoctor.waits.graph import Needs
from raydoctor.waits.kinds import kind
from raydoctor.waits.kinds.catalog import WAITS, Kind, WaitCode
from raydoctor.waits.kinds.frames import EVENT_LOOP
from raydoctor.waits.kinds.kind import Verdict
from raydoctor.waits.kinds.specifics import FORK, watched_peers
from raydoctor.waits.young import TooYoung

_STATES: Mapping[str, Kind] = {
    "PENDING_ARGS_AVAIL": "arguments",
    "GETTING_AND_PINNING_ARGS": "arguments",
    "PENDING_ACTOR_TASK_ARGS_FETCH": "arguments",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY": "actor-queue",
    "PENDING_NODE_ASSIGNMENT": "resources",
}
_POLLS = 1.5
"""Times a second: a thread that gives up its CPU more often polls. Each sample itself costs one or two."""
_ASLEEP = 0.1
"""Of a CPU: a process that uses less is not known to work."""
_LONG_POLL = "ServeController.listen_for_change"
"""Ray Serve's own method that always waits: its processes learn of changes from it."""
HELD = ("stopped", "debugger")
"""Kinds in which another process pauses this one, or is to resume it: then polling is not progress."""
PREPARED: tuple[Kind, ...] = ("runtime-env", "worker-start")
"""What precedes a task may take a while: short waits for it matter only where nothing else makes progress."""
QUEUES: Mapping[str, tuple[WaitCode, str]] = {
    "_QueueActor.get": ("queue-item", "waits for an item in its empty queue (ray.util.queue)"),
    "_QueueActor.put": ("queue-room", "waits for room in its full queue (ray.util.queue)"),
}
"""Methods of `ray.util.queue`: what they wait in, and their sentences."""
_QUEUE_CLASS = "_QueueActor"
_ENDS: Mapping[Kind, str] = {
    "sleep": "its timer",
    "socket": "its peer",
    "subprocess": "its child process",
}
"""What may end the open wait of a driver."""
_ENDS_OF_CODE: Mapping[WaitCode, str] = {
    "accept": "a new connection",
    "asyncio-server": "a new connection",
    "event": "a signal",
    "asyncio-event": "a signal",
    "terminal": "input",
}
_NEVER_MEANT: tuple[Kind, ...] = ("lock", "stopped", "debugger", "disk", "collective", "native-gil")
"""Kinds in which work seldom waits on purpose; many drivers sleep, serve or wait for a child."""
_REPEATED: tuple[Kind, ...] = ("sleep", "lock", "socket", "subprocess", "disk", "native", "unknown")
"""Kinds of waits that a program may repeat after each time limit."""
_THINGS: Mapping[Kind, str] = {
    "socket": "address",
    "subprocess": "process",
    "debugger": "process",
    "disk": "file",
    "lock": "file",
}


class Hung(NamedTuple):
    """A task, method or driver that is hung, or busy for long."""

    work: UnfinishedTask
    kind: Kind
    summary: str
    """What it does: `waits on a socket to 10.0.0.9:5432 in load (etl.py:31)`."""
    reason: str
    """Why that is a hang: `has run for 86 s; the last 7 took 0.5 s`."""
    verdict: Verdict | None
    """What its stack shows; None where it does not run, or was not sampled."""
    waiting: Waiting | None
    """The work that it waits for; None where there is none."""
    links: tuple[Link, ...]

    @property
    def place(self) -> SampledFrame | None:
        """The innermost frame of the user's code."""
        return self.verdict.user if self.verdict else None

    @property
    def targets(self) -> tuple[WaitTarget, ...]:
        """The work, or the thing outside of Ray, that it waits for."""
        if self.waiting:
            return self.waiting.targets
        on = self.verdict.on if self.verdict else ""
        return (WaitTarget(_THINGS.get(self.kind, "thing"), None, on),) if on else ()

    @property
    def evidence(self) -> tuple[str, ...]:
        """One sentence for each observation."""
        shown = [link.shows for link in self.links]
        return (*shown, *(self.verdict.evidence if self.verdict else ()))


class HungGroup(NamedTuple):
    """Work that hangs for one reason."""

    culprits: tuple[Hung, ...]
    """Work that waits for no other: usually one task, several at one place, or the members of a cycle."""
    cycle: tuple[Hung, ...]
    """Each waits for the next one, and the last for the first; empty where there is no cycle."""
    behind: tuple[Hung, ...]
    """Work that waits for the culprits."""

    @property
    def all(self) -> tuple[Hung, ...]:
        """The culprits, then the work behind them."""
        return (*self.culprits, *self.behind)

    @property
    def first(self) -> Hung:
        """The one to inspect first: the oldest of the cycle, or the oldest culprit."""
        return (self.cycle or self.culprits)[0]

    @property
    def exact(self) -> bool:
        """Whether every wait of its cycle was observed, none inferred."""
        return all(h.waiting is None or h.waiting.exact for h in self.cycle)


class OpenWait(NamedTuple):
    """A long wait that is not known to be a hang."""

    hung: Hung
    ends: str
    """What may end it: `a new connection`, `a call of produce (pid 812)`; empty where nothing is known."""

    @property
    def is_known(self) -> bool:
        """Whether something that works or listens may end it; a driver may wait on purpose."""
        verdict = self.hung.verdict
        is_helped = verdict is not None and (bool(verdict.helper) or _naps(verdict))
        return self.hung.work.kind == "driver" or (bool(self.ends) and not is_helped)


class HungReport(NamedTuple):
    """What hangs in a cluster."""

    groups: tuple[HungGroup, ...]
    """The group with most members first."""
    unfinished: int
    """Tasks and methods that have not ended."""
    unseen: tuple[UnfinishedTask, ...]
    """Work that was to be sampled and could not: it may hang."""
    working: tuple[Hung, ...] = ()
    """Work that has run for long and is busy, or polls: its peers, if any, do not show a hang."""
    early: tuple[Hung, ...] = ()
    """Work that waits, but not long enough to count as hung."""
    open: tuple[OpenWait, ...] = ()
    """Work that has waited for long, and that something may still continue."""
    min_age: float = MIN_AGE
    is_stalled: bool = False
    """Whether nothing that runs makes progress."""
    is_young: bool = False
    """Whether every task has begun so recently that its wait does not count."""
    idle: frozenset[str] = frozenset()
    """Ids of `early` and `open` work that others wait for while nothing makes progress."""
    drivers: tuple[Hung, ...] = ()
    """The drivers that are in none of these lists: they run, or wait on purpose or not for long."""
    young: tuple[TooYoung, ...] = ()
    """Requests and jobs that are too young to be judged."""

    @property
    def is_conclusive(self) -> bool:
        """Whether all work that waits is known to hang, or to wait for something that may come."""
        early = [each for each in self.early if _counts(each)]
        never = any(
            each.kind in (*_NEVER_MEANT, "async-blocked")
            or (not each.work.runs and each.kind not in PREPARED)
            for each in early
        )
        is_early = bool(early) and (never or self.is_stalled)
        return not (is_early or self.young) and all(each.is_known for each in self.open)


def hung(case: Case, min_age: float = MIN_AGE, sampled_after: float | None = None) -> HungReport:
    """What hangs, by the tables of a collection.

    `sampled_after`: seconds after which work was to be sampled; by default `min_age`.
    """
    scene = edges.read_scene(case)
    alone = {**pending.unplaced(scene), **edges.paused(scene), **edges.without_process(scene)}
    scene = replace(scene, groups=pending.of_groups(scene))
    verdicts = _verdicts(scene)
    scene = _aged(scene, verdicts)
    blockers = _blockers(scene, verdicts)
    judged = {}
    for work in scene.candidates.values():
        blocker = blockers.get((work.node, work.pid or 0))
        other = blocker if blocker is not None and blocker.id != work.id else None
        judged[work.id] = (
            _of_running(scene, work, verdicts, other, min_age)
            if work.runs and work.id not in alone
            else _of_pending(scene, work, min_age, alone.get(work.id))
        )
    waits = {
        name: each.waiting.needs
        for name, each in judged.items()
        if each.waiting and each.waiting.needs and _is_lasting(each.work)
    }
    callers = _callers(scene, judged)
    judged |= _uncalled(judged, waits, callers, min_age)
    judged |= _blocking(judged, min_age)
    hung_alone = {name for name, each in judged.items() if each.reason}
    found = [_group(each, judged) for each in graph.groups(hung_alone, waits)]
    inside = {h.work.id for group in found for h in group.all}
    others = [each for each in judged.values() if each.work.id not in inside]
    waiting = [each for each in others if _is_open(each, min_age)]
    listed = {each.work.id for each in waiting}
    early = [each for each in others if each.work.id not in listed and _is_early(each)]
    listed |= {each.work.id for each in early}
    idle = _idle(others, judged, waits, inside | listed)
    waiting += [each for each in idle if each.work.age >= min_age and each.work.id not in listed]
    early += [each for each in idle if each.work.age < min_age and each.work.id not in listed]
    listed |= {each.work.id for each in idle}
    working = [each for each in others if each.work.id not in listed and _is_at_work(each, min_age)]
    rest = listed | {each.work.id for each in working}
    drivers = [each for each in others if _is_driver_seen(each) and each.work.id not in rest]
    stuck = graph.stuck(inside | listed, waits)
    runs = {name for name, each in judged.items() if each.work.runs and each.work.kind != "driver"}
    least = min_age if sampled_after is None else max(SETTLED, sampled_after)
    unseen = [each.work for each in judged.values() if each.unseen and each.work.age >= least]
    return HungReport(
        tuple(_merged(found)),
        sum(work.kind != "driver" for work in scene.candidates.values()),
        tuple(sorted(unseen, key=lambda w: -w.age)),
        _oldest_first(map(_hung, working)),
        _oldest_first(map(_hung, early)),
        _open_waits(waiting, judged, callers, stuck, {each.work.id for each in idle}),
        min_age,
        runs <= stuck,
        all(work.kind == "driver" or not _is_lasting(work) for work in scene.candidates.values()),
        frozenset(each.work.id for each in idle),
        _oldest_first(map(_hung, drivers)),
        young.of(case, scene.candidates),
    )


class _Judged(NamedTuple):
    """One piece of work, judged by itself."""

    work: UnfinishedTask
    verdict: Verdict | None
    waiting: Waiting | None
    reason: str = ""
    """Why it hangs by itself; empty where it does not."""
    unseen: bool = False
    by_call: bool = False
    """Whether nothing but a call of its actor can end its wait."""
    soon: bool = False
    """Whether it would hang by itself if it had waited for longer."""


def _is_driver_seen(judged: _Judged) -> bool:
    return judged.work.kind == "driver" and judged.verdict is not None


def _is_at_work(judged: _Judged, min_age: float) -> bool:
    """Whether it has run for long, and its activity is known."""
    work, does = judged.work, judged.verdict
    is_task = work.runs and work.kind != "driver" and judged.waiting is None
    is_named = does is not None and (does.kind != "unknown" or does.is_open)
    is_old = work.age >= min_age or (work.is_ageless and does is not None and does.still)
    return is_task and is_named and is_old


def _is_open(judged: _Judged, min_age: float) -> bool:
    """Whether it has waited for long, and that is not known to be a hang."""
    work, does = judged.work, judged.verdict
    if not work.runs or judged.waiting is not None or work.process is None:
        return False
    is_old = work.age >= min_age or (work.is_ageless and work.name != _LONG_POLL)
    if does is None:
        return work.kind != "driver" and is_old
    if not does.thread or not does.thread.frames or does.moves or _wakes_soon(does, min_age):
        return False
    is_held = does.still and does.activity.type.ended_by_thread
    if does.helper or (work.kind != "driver" and (is_held or _naps(does))):
        return is_old
    if does.kind == "async-blocked" and _polls(work.process, does):
        return is_old  # between its naps, its event loop may run other coroutines, or not
    is_meant = judged.by_call or work.kind == "driver" or does.is_open or work.peers is not None
    return is_meant and _rested_itself(does, work) >= min_age and not _polls(work.process, does)


def _naps(verdict: Verdict) -> bool:
    """Whether it waits for a child process that runs for moments only: it may work, or poll without end."""
    return verdict.kind == "subprocess" and verdict.rested is not None and not verdict.moves


def _wakes_soon(verdict: Verdict, min_age: float) -> bool:
    return verdict.wakes is not None and verdict.wakes < min_age


def _rested(verdict: Verdict, work: UnfinishedTask) -> float:
    """Seconds that it has waited, at most its age where the idle time is unknown."""
    return verdict.rested if verdict.rested is not None else work.age


def _rested_itself(verdict: Verdict, work: UnfinishedTask) -> float:
    """The same, but of a driver without its children, which may wake up again and again in vain."""
    if work.kind == "driver" and verdict.kind == "subprocess" and verdict.thread and work.process:
        own = work.process.rest(verdict.thread.tid)
        return own.seconds if own else 0.0
    return _rested(verdict, work)


def _is_early(judged: _Judged) -> bool:
    """Whether it would hang if it had waited for longer."""
    waiting = judged.waiting
    waits = waiting is not None and waiting.is_hopeless
    is_paused = waiting is not None and waiting.kind == "debugger"
    is_old = _is_lasting(judged.work)
    return is_paused or (waits and (is_old or not judged.work.runs)) or (judged.soon and is_old)


def _counts(early: Hung) -> bool:
    """Whether an early wait is more than the moment that the start of a task takes."""
    never_fits = early.waiting is not None and early.waiting.never_fits
    return early.work.runs or never_fits or _is_lasting(early.work)


def _idle(
    others: Iterable[_Judged],
    judged: Mapping[str, _Judged],
    waits: Mapping[str, Needs],
    listed: Collection[str],
) -> list[_Judged]:
    """Work that sleeps, awaits or waits inside Ray while others wait for it, if nothing makes progress.

    It may poll for what never comes, or work in short steps: no sample distinguishes the two.
    `listed`: work that waits for other reasons.
    """
    needed = {name for needs in waits.values() for name in needs.nodes}
    quiet = [each for each in others if _is_quiet(each)]
    runs = {n for n, each in judged.items() if each.work.runs and each.work.kind != "driver"}
    if not runs <= graph.stuck({*listed, *(each.work.id for each in quiet)}, waits):
        return []
    return [each for each in quiet if each.work.id in needed]


def _is_quiet(judged: _Judged) -> bool:
    """Whether it runs for longer than its peers, and its samples show neither progress nor a known wait."""
    work, verdict = judged.work, judged.verdict
    is_task = work.runs and work.kind != "driver" and not work.is_ageless
    if not is_task or judged.waiting is not None or work.process is None or work.age < SETTLED:
        return False
    if work.peers and work.age <= work.peers.limit:
        return False
    is_asleep = (work.process.cpu_share or 0.0) < _ASLEEP
    return is_asleep and (verdict is None or _may_repeat(verdict))


def _may_repeat(verdict: Verdict) -> bool:
    """Whether it waits with a time limit, perhaps again and again, for something that may never come."""
    is_wait = verdict.kind in _REPEATED and verdict.code != "gpu" and not verdict.is_open
    return is_wait and verdict.still


def _open_waits(
    waiting: Iterable[_Judged],
    judged: Mapping[str, _Judged],
    callers: Mapping[str, _Callers],
    stuck: Collection[str],
    idle: Collection[str],
) -> tuple[OpenWait, ...]:
    """The open waits, oldest first, each with what may end it. `stuck`: work that makes no progress."""
    found = []
    first: dict[frozenset[str], str] = {}
    for each in waiting:
        known = callers.get(each.work.id)
        if known is not None and known.work not in first:
            free = (judged[name].work for name in known.work - frozenset(stuck))
            caller = min(free, key=lambda w: (w.kind == "driver", -w.age, w.id), default=None)
            first[known.work] = f"a call of {caller.label}" if caller else ""
        ends = (first[known.work] if known else "") or ("" if each.work.id in idle else _ends(each))
        found.append(OpenWait(_hung(each), ends))
    return tuple(sorted(found, key=lambda one: (-one.hung.work.age, one.hung.work.id)))


def _ends(judged: _Judged) -> str:
    """What may end an open wait; empty where nothing is known."""
    verdict, process = judged.verdict, judged.work.process
    if verdict is None:
        return "" if process is not None and _is_async(process) else "a consumer of its results"
    if verdict.helper:
        return verdict.helper
    if verdict.kind == "subprocess" and verdict.on.endswith(FORK):
        return "its child process, a fork in which Ray does not work,"
    if _naps(verdict):
        return _ENDS["subprocess"]
    if judged.work.peers is not None:
        return "what ended the waits of its peers"
    code = _ENDS_OF_CODE.get(verdict.code, "")
    is_meant = judged.work.kind == "driver" or verdict.activity.type.is_open
    return (code or _ENDS.get(verdict.kind, "")) if is_meant else ""


def _is_lasting(work: UnfinishedTask) -> bool:
    """Whether its wait has lasted longer than the collection of the tables."""
    return work.age >= SETTLED or work.kind == "driver" or work.is_ageless


# ---------------------------------------------------------------- what runs


def _of_running(
    scene: Scene,
    work: UnfinishedTask,
    verdicts: Mapping[str, Verdict | None],
    blocker: UnfinishedTask | None,
    min_age: float,
) -> _Judged:
    """`blocker`: another method, which blocks the event loop that this one needs."""
    verdict = verdicts.get(work.id)
    if blocker is not None:
        return _Judged(work, None, _behind_blocker(work, blocker))
    if verdict is None and work.process is not None:
        # Without an event loop it was idle in the sample: it has ended since, or is inside Ray.
        is_async = _is_async(work.process)
        waiting = _of_coroutine(scene, work, verdicts) if is_async else None
        by_call = is_async and waiting is None and kind.is_asleep(work.process)
        return _Judged(work, None, waiting, by_call=by_call)
    if (others := edges.of_training(scene, work, verdicts)) is not None:
        return _Judged(work, verdict, others)
    in_get = verdict is not None and verdict.kind == "ray-get"
    waiting = edges.awaited(scene, work, in_get) if _may_await(verdict) else None
    if waiting is None and verdict is not None and verdict.in_asyncio:
        waiting = _of_coroutine(scene, work, verdicts)
    if _awaits_group(verdict, waiting):
        waiting = scene.groups.get(work.job, waiting)
    if work.kind == "driver" and (waiting is None or waiting.kind == "placement-group"):
        return _of_driver(work, verdict, waiting, min_age)
    waits = waiting is not None and waiting.needs is not None
    if waits or work.kind == "driver":  # a driver's wait has no known start
        return _Judged(work, verdict, waiting)
    # What it waits for in ray.get is not known: that work may be in progress.
    is_open = waiting is not None and not waiting.exact
    by_call = _is_ended_by_call(work, verdict)
    is_open = is_open or by_call
    still = not is_open and _is_still(work, verdict, min_age)
    advances = verdict is not None and work.process is not None and _advances(work.process, verdict)
    reason = too_long(work, still=still, advances=advances, min_age=min_age)
    unseen = not reason and not work.peers and not _is_seen(verdict)
    soon = not is_open and not reason and _is_soon(work, verdict, min_age)
    is_unseen = unseen and not _awaits(work, verdict)
    return _Judged(work, verdict, waiting, reason, is_unseen, by_call and not reason, soon)


def _is_ended_by_call(work: UnfinishedTask, verdict: Verdict | None) -> bool:
    """Whether a method waits in one of the threads of its actor: a call in another may end its wait."""
    if work.kind != "method" or verdict is None or verdict.thread is None or work.process is None:
        return False
    is_concurrent = verdict.thread.tid != work.process.pid and verdict.thread.name != "MainThread"
    is_for_thread = verdict.activity.type.ended_by_thread and verdict.still
    return is_concurrent and is_for_thread and not kind.has_own_threads(work.process)


def _is_soon(work: UnfinishedTask, verdict: Verdict | None, min_age: float) -> bool:
    """Whether running work would hang by itself if it had waited for longer."""
    if verdict is None or verdict.helper or _wakes_soon(verdict, min_age):
        return False
    if work.peers and work.age <= max(work.peers.longest, SETTLED):
        return False
    is_new = work.is_ageless and verdict.at_least < SETTLED
    is_still = _naps(verdict) or _is_still(work, verdict, SETTLED)
    return not is_new and is_still and _is_lasting(work)


def _of_driver(
    work: UnfinishedTask, verdict: Verdict | None, waiting: Waiting | None, min_age: float
) -> _Judged:
    """A driver outside of `ray.get`: its wait began when its thread last ran."""
    if waiting is not None:
        lasts = waiting.rested is None or waiting.rested >= min_age
        reason = f"has waited for {duration(waiting.rested or work.age)}" if lasts else ""
        return _Judged(work, verdict, waiting, reason if waiting.is_hopeless else "")
    is_seen = work.process is not None and (verdict is None or _is_seen(verdict))
    is_meant = verdict is None or verdict.code in _ENDS_OF_CODE
    if verdict is None or is_meant or verdict.kind not in _NEVER_MEANT:
        return _Judged(work, verdict, None, unseen=not is_seen)
    is_held = verdict.activity.type.ended_by_thread and work.process is not None
    if is_held and work.process is not None and kind.has_own_threads(work.process):
        return _Judged(work, verdict, None)
    rested = _rested(verdict, work)
    if _is_still(work, verdict, min_age) and rested >= min_age:
        return _Judged(work, verdict, None, f"its stack has not changed for {duration(rested)}")
    return _Judged(work, verdict, None, soon=_is_soon(work, verdict, min_age))


# ---------------------------------------------------------------- what only a call of its actor can end


class _Callers(NamedTuple):
    """What may call an actor."""

    work: frozenset[str]
    """Unfinished work with a reference to it, possibly; the waiting method itself is among it."""
    is_complete: bool
    """Whether there is nothing else: no other thread or actor that may still act."""


def _callers(scene: Scene, judged: Mapping[str, _Judged]) -> dict[str, _Callers]:
    """Method that only a call can end -> what may call its actor: its job, or all jobs if it has a name."""
    actors = {e["actor_id"]: e for e in live.rows(scene.case, "actors")}
    is_cut = now.is_cut(scene.case)
    of_scope: dict[str, _Callers] = {}
    found = {}
    for name, each in judged.items():
        if not each.by_call:
            continue
        own = actors.get(each.work.actor)
        scope = "" if own is None or own["name"] else each.work.job
        if scope not in of_scope:
            work = [w for w in scene.candidates.values() if not scope or w.job == scope]
            threads = any(w.process is not None and kind.has_own_threads(w.process) for w in work)
            is_idle = any(
                _may_act(event, scene) and (not scope or ids.job_of_actor(actor) == scope)
                for actor, event in actors.items()
            )
            is_complete = not (threads or is_idle or is_cut)
            of_scope[scope] = _Callers(frozenset(w.id for w in work), is_complete)
        found[name] = of_scope[scope]._replace(
            is_complete=own is not None and of_scope[scope].is_complete
        )
    return found


def _may_act(actor: Event, scene: Scene) -> bool:
    """Whether a live actor that runs no call may still act, by a thread or a timer of its own."""
    is_idle = actor["state"] == "ALIVE" and actor["actor_id"] not in scene.of_actor
    return is_idle and actor["class_name"] != _QUEUE_CLASS


def _uncalled(
    judged: Mapping[str, _Judged],
    waits: Mapping[str, Needs],
    callers: Mapping[str, _Callers],
    min_age: float,
) -> dict[str, _Judged]:
    """The methods that hang because all work that could call their actor waits as well."""
    alone = {name for name, each in judged.items() if each.reason}
    known = {name: each for name, each in callers.items() if each.is_complete}
    needs = {name: Needs(each.work, "any") for name, each in known.items()}
    stuck = graph.stuck(alone, {**waits, **needs})
    found = {}
    for name in needs:
        each = judged[name]
        if name in stuck and each.work.age >= min_age:
            found[name] = each._replace(
                reason=f"has waited for {duration(each.work.age)}, and all other work that could call "
                "its actor waits as well"
            )
        elif name in stuck:
            found[name] = each._replace(soon=True)
    return found


def _blocking(judged: Mapping[str, _Judged], min_age: float) -> dict[str, _Judged]:
    """The coroutines that every sample shows in their event loop, while later calls of their actor wait.

    Between its naps such a coroutine may await, but an event loop that gets a turn runs the calls that wait.
    """
    late: dict[str, list[UnfinishedTask]] = {}
    for each in judged.values():
        needs = each.waiting.needs if each.waiting else None
        for name in needs.nodes if needs else ():
            blocker = judged[name].work if name in judged else None
            if blocker and blocker.actor == each.work.actor and each.work.age <= blocker.age:
                late.setdefault(name, []).append(each.work)
    found = {}
    for name, behind in late.items():
        each = judged[name]
        verdict, process = each.verdict, each.work.process
        is_in_loop = verdict is not None and verdict.kind == "async-blocked" and verdict.still
        is_known = process is not None and len(process.samples) > 1
        if each.waiting is None and not each.reason and is_in_loop and is_known:
            lasted = max(work.age for work in behind)
            names = join_names(dict.fromkeys(work.called for work in behind))
            reason = (
                f"every sample shows it there, and later calls of its actor ({names}) have waited for "
                f"{duration(lasted)}"
            )
            found[name] = each._replace(reason=reason if lasted >= min_age else "", soon=True)
    return found


def _awaits_group(verdict: Verdict | None, waiting: Waiting | None) -> bool:
    """Whether it waits for a placement group, if one of its job is pending."""
    if waiting is not None:
        return edges.is_put(waiting)
    return verdict is not None and verdict.kind == "placement-group"


def _of_coroutine(
    scene: Scene, work: UnfinishedTask, verdicts: Mapping[str, Verdict | None]
) -> Waiting | None:
    """What a coroutine without a stack awaits, by its actor's pending calls."""
    known = edges.awaited(scene, work) or edges.of_training(scene, work, verdicts)
    return known or edges.awaiting(scene, work)


def _is_async(process: SampledProcess) -> bool:
    """Whether the process runs an actor's coroutines: those that await are on no stack."""
    return any(thread.name.startswith(EVENT_LOOP) for thread in process.last.threads)


def _may_await(verdict: Verdict | None) -> bool:
    return verdict is None or verdict.kind in ("ray-get", "async-blocked", "unknown")


def _is_seen(verdict: Verdict | None) -> bool:
    """Whether its stack was read: the kernel alone is seldom enough."""
    has_stack = verdict is not None and verdict.thread is not None and verdict.thread.frames
    return bool(has_stack) or (verdict is not None and verdict.kind != "unknown")


def _is_still(work: UnfinishedTask, verdict: Verdict | None, min_age: float) -> bool:
    """Whether its stack was the same in several samples and before them, and it did not merely poll."""
    if verdict is not None and verdict.kind in HELD:
        return True
    if verdict is None or work.process is None:
        return False
    if verdict.rested is None and len(work.process.samples) < 2:
        return (
            False  # one sample may show a passing wait; the kernel reports the idle time before it
        )
    if verdict.is_open or (verdict.rested is not None and verdict.rested < min_age):
        return False
    if verdict.wakes is not None and verdict.wakes < min_age:
        return False  # a short sleep, which a sample may have interrupted
    polls_child = verdict.kind == "subprocess" and verdict.rested is not None
    polls = not polls_child and _polls(work.process, verdict)
    return not verdict.moves and _is_seen(verdict) and not polls


def _advances(process: SampledProcess, verdict: Verdict) -> bool:
    """Whether its stack changes, or it runs again and again, as a loop with naps does."""
    return verdict.changes or verdict.code == "polling" or _polls(process, verdict)


def _polls(process: SampledProcess, verdict: Verdict) -> bool:
    """Whether it gives up its CPU again and again: it checks something repeatedly."""
    tid = verdict.thread.tid if verdict.thread else 0
    counts = [(s.at, t.voluntary) for s in process.samples for t in s.threads if t.tid == tid]
    if len(counts) < 2:
        return False
    (began, before), (ended, after) = counts[0], counts[-1]
    return after - before > _POLLS * (ended - began) + len(counts)


def _awaits(work: UnfinishedTask, verdict: Verdict | None) -> bool:
    """Whether it is a coroutine that awaits: its process was sampled, and it has no stack."""
    return verdict is None and work.process is not None


def _verdicts(scene: Scene) -> dict[str, Verdict | None]:
    """What the stack of each running task shows; of several methods, that of the threads in its function."""
    found: dict[str, Verdict | None] = {}
    for same_process in scene.of_process.values():
        process = same_process[0].process
        if process is None:
            found |= {work.id: None for work in same_process}
        elif len(same_process) == 1:
            found[same_process[0].id] = kind.kind_of(process)
        else:
            found |= _shared(process, same_process)
    return found


def _shared(
    process: SampledProcess, same_process: list[UnfinishedTask]
) -> dict[str, Verdict | None]:
    """Of several methods in one process, each one's own verdict.

    In a replica of Ray Serve no thread is in a method's function: then the one that blocks the event loop
    counts for the first method, and of as many threads as methods each counts for one.
    """
    own = {work.id: kind.kind_of(_part(process, work)) for work in same_process}
    if any(own.values()) or not _is_async(process):
        return own
    whole = [verdict for verdict in kind.verdicts_of(process) if verdict.user is not None]
    if whole and whole[0].kind == "async-blocked":
        return {**own, same_process[0].id: whole[0]}
    if len(whole) >= len(same_process):
        return {work.id: verdict for work, verdict in zip(same_process, whole, strict=False)}
    return own


def _aged(scene: Scene, verdicts: Mapping[str, Verdict | None]) -> Scene:
    """With ages for work that no table has a start of (Ray Serve's calls): the idle time of its thread."""
    aged = {}
    for name, work in scene.candidates.items():
        verdict = verdicts.get(name)
        rested = verdict.at_least if verdict else 0.0
        aged[name] = work._replace(age=rested) if work.is_ageless and rested >= 1 else work
    return replace(scene, candidates=aged)


def _part(process: SampledProcess, work: UnfinishedTask) -> SampledProcess:
    """The threads of a process in a method's function, and the main one, which shows a stopped process."""
    name = work.name.rpartition(".")[2]

    def is_its(thread: SampledThread) -> bool:
        return thread.tid == process.pid or any(
            f.function.rpartition(".")[2] == name for f in thread.frames
        )

    samples = (
        sample._replace(threads=tuple(t for t in sample.threads if is_its(t)))
        for sample in process.samples
    )
    return process._replace(samples=tuple(samples))


def _blockers(
    scene: Scene, verdicts: Mapping[str, Verdict | None]
) -> dict[tuple[str, int], UnfinishedTask]:
    """(node, pid) of an async actor whose event loop is blocked -> the method that blocks it."""
    return {
        key: work
        for key, same_process in scene.of_process.items()
        for work in reversed(same_process)
        if (verdict := verdicts.get(work.id)) and verdict.kind == "async-blocked"
    }


def _behind_blocker(work: UnfinishedTask, blocker: UnfinishedTask) -> Waiting:
    shows = f"{blocker.label} blocks the event loop that {work.called} runs on"
    event = work.process.last.event if work.process else work.event
    return Waiting(
        "async-blocked",
        f"cannot continue: {blocker.called} blocks its actor's event loop",
        (target(blocker),),
        Needs(frozenset({blocker.id})),
        (Link(event, shows),),
    )


# ---------------------------------------------------------------- what has not begun


def _of_pending(
    scene: Scene, work: UnfinishedTask, min_age: float, placed: Waiting | None
) -> _Judged:
    waiting = edges.queued(scene, work) or placed
    lasts = waiting is not None and (waiting.at_once or work.age >= min_age)
    is_hung = waiting is not None and waiting.is_hopeless and lasts
    if waiting is not None and waiting.rested is not None and waiting.rested < min_age:
        is_hung = False
    reason = f"has waited for {duration(work.age)}" if is_hung else ""
    return _Judged(work, None, waiting, reason)


# ---------------------------------------------------------------- groups


def _group(found: graph.StuckGroup, judged: Mapping[str, _Judged]) -> HungGroup:
    culprits = _oldest_first(_hung(judged[name]) for name in found.ends)
    behind = _oldest_first(_hung(judged[name]) for name in found.behind)
    return HungGroup(culprits, _rotated([_hung(judged[name]) for name in found.cycle]), behind)


def _oldest_first(those: Iterable[Hung]) -> tuple[Hung, ...]:
    return tuple(sorted(those, key=lambda h: (-h.work.age, h.work.id)))


def _rotated(cycle: list[Hung]) -> tuple[Hung, ...]:
    """A cycle that begins with its oldest running member."""
    if not cycle:
        return ()
    first = min(cycle, key=lambda h: (not h.work.runs, -h.work.age, h.work.id))
    start = cycle.index(first)
    return (*cycle[start:], *cycle[:start])


def _hung(judged: _Judged) -> Hung:
    work, verdict, waiting = judged.work, judged.verdict, judged.waiting
    links = (*(waiting.links if waiting else ()), *_links(judged))
    does = "has run" if work.runs and waiting is None else "has waited"
    since = f"for {duration(work.age)}" if work.age else "for an unknown time"
    reason = judged.reason or f"{does} {since}"
    if verdict is not None and (waiting is None or verdict.kind == "async-blocked"):
        summary = f"{verdict.summary}, and {waiting.summary}" if waiting else verdict.summary
        return Hung(work, verdict.kind, summary, reason, verdict, waiting, links)
    if waiting is not None:
        return Hung(work, waiting.kind, waiting.summary, reason, verdict, waiting, links)
    summary = _without_stack(work) if work.runs else f"is {work.state}"
    kind_of_state = _STATES.get(work.state, "unknown")
    if work.runs and work.name in QUEUES:
        kind_of_state = WAITS[QUEUES[work.name][0]].kind
    return Hung(work, kind_of_state, summary, reason, verdict, waiting, links)


def _without_stack(work: UnfinishedTask) -> str:
    if work.process is None:
        return "runs"
    if work.name in QUEUES:
        return QUEUES[work.name][1]
    if _is_async(work.process):
        loops = [t.tid for t in work.process.last.threads if t.name.startswith(EVENT_LOOP)]
        peers = watched_peers(work.process, loops)
        watches = f"; its event loop watches {peers}" if peers else ""
        return f"awaits, and a coroutine has no stack while it awaits{watches}"
    return "waits inside Ray: for its arguments, or for a consumer of its generator"


def _links(judged: _Judged) -> Iterator[Link]:
    work = judged.work
    if judged.reason and work.runs:
        yield Link(work.event, f"{work.label} has run for {duration(work.age)}")
        if work.peers:
            yield Link(work.peers.event, work.peers.summary(work.called))
    if judged.verdict is not None and work.process is not None and judged.waiting is None:
        count = len(work.process.samples)
        when = f"in {count} samples" if count > 1 else "in one sample"
        yield Link(
            work.process.last.event, f"{when}, its stack shows that it {judged.verdict.summary}"
        )


def _merged(groups: list[HungGroup]) -> list[HungGroup]:
    """One group of all tasks of one function that hang at one place: eight ranks, one collective."""
    alike: dict[tuple[object, ...], HungGroup] = {}
    for group in groups:
        first = group.first
        where = first.place or first.targets
        key: tuple[object, ...] = (first.work.name, first.kind, where)
        if group.cycle or not where:
            key = (first.work.id,)
        if before := alike.get(key):
            culprits = _oldest_first((*before.culprits, *group.culprits))
            group = HungGroup(culprits, (), _oldest_first((*before.behind, *group.behind)))  # noqa: PLW2901
        alike[key] = group
    return sorted(alike.values(), key=lambda g: (-len(g.all), g.first.work.id))
