"""Which work each task waits for: by the objects that its process awaits, and by the queue of an actor.

The first 48 digits of an awaited object's id are the id of the task that creates it. Where the memory of a
process could not be read, only the references that it holds and the tasks that it has submitted are known:
it waits for one of them, and the wait is not exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from raydoctor.case import Case
from raydoctor.cluster import calls as live_calls
from raydoctor.cluster import ended
from raydoctor.cluster import holders as holding
from raydoctor.cluster import tables as live
from raydoctor.cluster.ended import EndedWorker
from raydoctor.cluster.samples import Awaited, SampledProcess, processes
from raydoctor.model import ids
from raydoctor.model.text import duration, join_names, plural, short_id
from raydoctor.model.values import Event, Link
from raydoctor.waits import training
from raydoctor.waits.candidates import UnfinishedTask, candidates
from raydoctor.waits.graph import Needs
from raydoctor.waits.kinds.catalog import WAITS, Kind
from raydoctor.waits.kinds.kind import Verdict

_Key = TypeVar("_Key", str, tuple[str, int])
_CALLS = {"get": "waits in ray.get", "wait": "waits in ray.wait", "await": "awaits"}
"""By the name of the call in `clues`."""


class WaitTarget(NamedTuple):
    """What a task waits for, as reports name it."""

    kind: str
    """`task`, `actor`, `job`, `object`, `placement-group`, `resources`, `address`, `process` …"""
    id: str | None
    name: str


class Waiting(NamedTuple):
    """A wait, and the work that has to end it."""

    kind: Kind
    summary: str
    """`waits in ray.get for load (pid 812)`."""
    targets: tuple[WaitTarget, ...]
    needs: Needs | None
    """The tasks that it waits for; None where it waits for something else, or they are unknown."""
    links: tuple[Link, ...] = ()
    exact: bool = True
    is_hopeless: bool = False
    """Whether no work in progress can end the wait."""
    short: tuple[str, ...] = ()
    """Names of the resources that it waits for, if others hold them."""
    never_fits: bool = False
    """Whether the nodes have no room for it, even if nothing else runs."""
    rested: float | None = None
    """Seconds since a process that it waits for has run; None where that is unknown, or there is none."""
    at_once: bool = False
    """Whether it is a hang however short it is."""
    ended: EndedWorker | None = None
    """The worker whose process has ended, if it waits for that."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster's unfinished work, and the processes that run it."""

    case: Case
    candidates: Mapping[str, UnfinishedTask]
    processes: Sequence[SampledProcess]
    in_get: frozenset[str]
    """Work in `ray.get` or `ray.wait`, by the metrics of its node."""
    of_actor: Mapping[str, list[UnfinishedTask]] = field(default_factory=dict)
    """Actor -> the work that it runs."""
    of_process: Mapping[tuple[str, int], list[UnfinishedTask]] = field(default_factory=dict)
    """(node, pid) -> the work that it runs."""
    children: Mapping[str, list[UnfinishedTask]] = field(default_factory=dict)
    groups: Mapping[str, Waiting] = field(default_factory=dict)
    """Job -> the wait for its oldest pending placement group."""
    silent: Mapping[str, Event] = field(default_factory=dict)
    """Worker -> the row of `worker-stats`, where it does not answer."""
    ended: Mapping[str, EndedWorker] = field(default_factory=dict)
    """Worker -> what is known of it, where its process has ended and Ray has not noticed."""


def read_scene(case: Case) -> Scene:
    """The unfinished work of a cluster."""
    sampled = processes(case)
    found = candidates(case, {(p.node, p.pid): p for p in sampled})
    found |= {work.id: work for work in training.loops(case, sampled)}
    running = [w for w in found.values() if w.runs]
    in_get = holding.in_ray_get(case, [w.event for w in running if w.kind != "driver"])
    stats = live.rows(case, "worker-stats")
    return Scene(
        case,
        found,
        sampled,
        frozenset(in_get),
        _grouped((w.actor, w) for w in running if w.actor),
        _grouped(((w.node, w.pid or 0), w) for w in running if w.pid),
        _grouped((w.parent, w) for w in found.values() if w.parent),
        silent={e["worker_id"]: e for e in stats if e["answers"] == "false"},
        ended=ended.workers(case),
    )


def _grouped(pairs: Iterable[tuple[_Key, UnfinishedTask]]) -> dict[_Key, list[UnfinishedTask]]:
    found: dict[_Key, list[UnfinishedTask]] = {}
    for key, work in sorted(pairs, key=lambda pair: pair[1].id):
        found.setdefault(key, []).append(work)
    return found


# ---------------------------------------------------------------- in ray.get


def awaited(scene: Scene, work: UnfinishedTask, in_get: bool = False) -> Waiting | None:
    """What a running task or a driver awaits; None where it is not seen to await anything.

    `in_get`: its stack shows it in `ray.get`, though its objects may not have been read.
    """
    mine = list(_own_awaits(scene, work))
    exact = [each for each in mine if each.exact and each.objects]
    if exact:
        return _of_objects(scene, work, exact)
    if mine or in_get or work.id in scene.in_get:
        return _of_references(scene, work, mine)
    return None


def awaiting(scene: Scene, work: UnfinishedTask) -> Waiting | None:
    """What a coroutine awaits, which no stack shows: one of the pending calls of its actor.

    None where the actor runs more coroutines than it holds unfinished calls: then some await other things.
    """
    calls = [w.id for w in scene.children.get(work.id, ()) if w.kind != "creation"]
    needs = calls or _guesses(scene, work, [])
    same_process = scene.of_process.get((work.node, work.pid or 0), [work])
    is_enough = bool(calls) or len(needs) >= len(same_process)
    return _one_of(scene, work, needs, "await", _HELD) if is_enough else None


def of_training(
    scene: Scene, work: UnfinishedTask, verdicts: Mapping[str, Verdict | None]
) -> Waiting | None:
    """What Ray Train's controller waits for, or a rank whose collective operation others are not in."""
    verdict = verdicts.get(work.id)
    if verdict is None:
        loops = training.of_controller(work, scene.candidates)
        return _of_all(
            "ray-get", "awaits", loops, (_sampled(work, f"{work.label} awaits its training loops"),)
        )
    if verdict.kind != "collective":
        return None
    others = training.elsewhere(work, scene.candidates, verdicts)
    links = training.links(work, others) if others else ()
    return _of_all("collective", "waits in a collective operation for", others, links)


def _of_all(
    kind: Kind, does: str, tasks: Sequence[UnfinishedTask], links: tuple[Link, ...]
) -> Waiting | None:
    if not tasks:
        return None
    needs = Needs(frozenset(w.id for w in tasks))
    return Waiting(kind, f"{does} {_name_all(tasks)}", tuple(map(target, tasks)), needs, links)


def _own_awaits(scene: Scene, work: UnfinishedTask) -> Iterator[Awaited]:
    """The waits of a process that belong to this work: an actor may run several methods, each in a thread."""
    process = work.process
    if process is None:
        return
    same_process = scene.of_process.get((work.node, work.pid or 0), [work])
    for each in process.awaits:
        names = _functions(process, each.tid)
        same = [w for w in same_process if _function(w) in names]
        if len(same_process) == 1 or same == [work]:
            yield each
        elif work in same:
            yield each._replace(exact=False)


def _function(work: UnfinishedTask) -> str:
    return work.name.rpartition(".")[2]


def _functions(process: SampledProcess, tid: int) -> set[str]:
    threads = (t for t in process.last.threads if t.tid == tid)
    return {frame.function.rpartition(".")[2] for t in threads for frame in t.frames}


def _of_objects(scene: Scene, work: UnfinishedTask, awaits: list[Awaited]) -> Waiting:
    objects = list(dict.fromkeys(o for each in awaits for o in each.objects))
    makers = {o: o[:48] for o in objects}
    needs = list(dict.fromkeys(t for t in makers.values() if t in scene.candidates))
    call = awaits[0].call
    unread = sum(each.untold for each in awaits)
    either = call == "wait"
    if not needs:
        return _of_ended(scene, work, call, objects)
    first = _name_all([scene.candidates[t] for t in needs])
    made = next(o for o, task in makers.items() if task == needs[0])
    maker = scene.candidates[needs[0]].called
    shows = f"{work.label} {_waits_for(call)} object {short_id(made)}, which {maker} has to create"
    more = f" and {plural(unread, 'more object')}" if unread else ""
    return Waiting(
        "ray-get",
        f"{_waits_for(call)} {first}{more}",
        tuple(target(scene.candidates[t]) for t in needs),
        None if either and unread else Needs(frozenset(needs), "any" if either else "all"),
        (_sampled(work, f"{shows}; its id was read from the process's memory"),),
    )


def _of_ended(scene: Scene, work: UnfinishedTask, call: str, objects: list[str]) -> Waiting:
    """Objects of no unfinished task: they will not come, or their tasks are newer than the list of tasks.

    The list of objects is as old as the list of tasks, so an object on it is not new.
    """
    listed = {e["object_id"] for e in live.rows(scene.case, "objects")}
    are_old = not listed.isdisjoint(objects)
    how = "whose tasks have ended" if are_old else "of tasks that have just begun or ended"
    shows = f"{work.label} {_waits_for(call)} object {short_id(objects[0])}, which no known task creates"
    return Waiting(
        "ray-get",
        f"{_waits_for(call)} {plural(len(objects), 'object')} {how}",
        tuple(WaitTarget("object", o, _maker(o)) for o in objects),
        None,
        (_sampled(work, f"{shows}; its id was read from the process's memory"),),
        exact=are_old,
    )


def _maker(identifier: str) -> str:
    parts = ids.parse_object_id(identifier)
    return _PUT if parts and parts.put else ""


_PUT = "ray.put"


def is_put(waiting: Waiting) -> bool:
    """Whether all objects that it waits for were made as by `ray.put`, without a task."""
    return bool(waiting.targets) and all(each.name == _PUT for each in waiting.targets)


_HELD = "it holds these unfinished calls and references"


def _of_references(scene: Scene, work: UnfinishedTask, mine: list[Awaited]) -> Waiting:
    """One of the tasks that it may wait for."""
    call = mine[0].call if mine else "get"
    known = f"its memory was not read; {_HELD}"
    if any(each.objects for each in mine):
        known = (
            "several threads of its actor are in the same function, and one of them waits for each"
        )
    return _one_of(scene, work, _guesses(scene, work, mine), call, known)


def _one_of(scene: Scene, work: UnfinishedTask, needs: list[str], call: str, known: str) -> Waiting:
    event = next(iter(_metric(scene, work)), work.event)
    does = _CALLS.get(call, f"waits in {call}")
    if not needs:
        link = Link(event, f"{work.label} {does}")
        return Waiting("ray-get", does, (), None, (link,), exact=False)
    which = _name_all([scene.candidates[t] for t in needs])
    one_of = "one of " if len(needs) > 1 else ""
    return Waiting(
        "ray-get",
        f"{_waits_for(call)} {one_of}{which}",
        tuple(target(scene.candidates[t]) for t in needs),
        Needs(frozenset(needs), "any"),
        (Link(event, f"{work.label} {does}; {known}"),),
        exact=False,
    )


def _guesses(scene: Scene, work: UnfinishedTask, mine: list[Awaited]) -> list[str]:
    """What threads in its function await; else its unfinished calls, and the references that it holds."""
    alike = [o[:48] for each in mine for o in each.objects]
    # The parent of a coroutine's calls is not its method but the creation of its actor (Ray 2.60).
    parents = (work.id, "f" * 16 + work.actor) if work.actor else (work.id,)
    made = (w for parent in parents for w in scene.children.get(parent, ()))
    own = [w.id for w in made if w.kind != "creation"]
    held = (
        e["object_id"][:48]
        for e in live.rows(scene.case, "objects")
        if e.pid == work.pid and e["reference_type"] == "LOCAL_REFERENCE"
    )
    tasks = alike or (*own, *held)
    return list(dict.fromkeys(t for t in tasks if t in scene.candidates and t != work.id))


def _metric(scene: Scene, work: UnfinishedTask) -> Iterator[Event]:
    names = {work.event["name"], work.event["func_or_class_name"]} - {""}
    yield from (e for e in live.rows(scene.case, "ray-get") if e["name"] in names)


def _sampled(work: UnfinishedTask, shows: str) -> Link:
    return Link(work.process.last.event if work.process else work.event, shows)


# ---------------------------------------------------------------- queues of actors, arguments


def queued(scene: Scene, work: UnfinishedTask) -> Waiting | None:
    """What a pending call waits for, if that is its actor or an argument."""
    worker = work.event["worker_id"]
    if gone := scene.ended.get(worker):
        return _of_ended_process(gone)
    if silent := scene.silent.get(worker):
        return _unanswered(scene, work, silent)
    if work.state in live_calls.QUEUED and work.actor:
        return _behind(work, scene.of_actor.get(work.actor, []))
    creation = scene.candidates.get("f" * 16 + work.actor) if work.kind == "method" else None
    if creation is not None:
        return _behind(work, [creation])
    is_argument = work.state in ("PENDING_ARGS_AVAIL", "GETTING_AND_PINNING_ARGS")
    return _argument(scene, work) if is_argument else None


def without_process(scene: Scene) -> dict[str, Waiting]:
    """Running tasks whose process has ended."""
    return {
        work.id: _of_ended_process(gone)
        for work in scene.candidates.values()
        if work.runs and (gone := scene.ended.get(work.worker))
    }


def _of_ended_process(gone: EndedWorker) -> Waiting:
    pid = f"pid {gone.event.pid}"
    forks, keep = ("forks", "keep") if len(gone.forks) > 1 else ("fork", "keeps")
    forks = f"{forks} {gone.keepers}" if gone.keepers else forks
    return Waiting(
        "process-ended",
        f"was sent to {pid}, which has ended without Ray's notice, because its {forks} {keep} the "
        "connections open",
        tuple(WaitTarget("process", None, f"pid {fork}") for fork in gone.pids),
        None,
        (
            Link(gone.event, f"the port of {pid} accepts connections, and nothing answers"),
            *(Link(row, f"pid {row['pid']} descends from {pid}, which does not exist") for row in gone.forks),
        ),
        is_hopeless=True,
        at_once=True,
        ended=gone,
    )  # fmt: skip


def _unanswered(scene: Scene, work: UnfinishedTask, silent: Event) -> Waiting:
    pid = f"pid {silent.pid}"
    return Waiting(
        "actor-queue" if work.actor else "stopped",
        f"was sent to {pid}, which does not answer: {_of_silence(scene, silent)}",
        (WaitTarget("process", None, pid),),
        None,
        (Link(silent, f"{pid} accepted a connection and did not answer"),),
        is_hopeless=True,
    )


def _of_silence(scene: Scene, silent: Event) -> str:
    """What is known of a process that does not answer: only processes of some nodes are visible."""
    rows = live.rows(scene.case, "processes")
    if any(row["worker_id"] == silent["worker_id"] and row["kind"] == "worker" for row in rows):
        return "it is stopped, hangs in the kernel, or is ending"
    return "it is stopped, hangs in the kernel, or has ended (not checked on its node)"


def _behind(work: UnfinishedTask, running: list[UnfinishedTask]) -> Waiting | None:
    """An actor runs its calls one after the other, unless it has threads or coroutines."""
    if not running:
        return None
    first = running[0]
    doing = "is created" if first.kind == "creation" else f"runs {first.called}"
    shows = f"{work.called} has been queued for {duration(work.age)}; its actor {doing}"
    more = f" and {len(running) - 1} more" if len(running) > 1 else ""
    return Waiting(
        "actor-queue",
        f"is queued behind {first.label}{more} of the same actor",
        tuple(target(w) for w in running),
        Needs(frozenset(w.id for w in running), "any"),
        (Link(work.event, shows),),
    )


def paused(scene: Scene) -> dict[str, Waiting]:
    """Tasks whose process was not sampled, and in which Ray's debugger has paused a thread."""
    rows = live.rows(scene.case, "workers")
    stopped = {e["worker_id"]: e for e in rows if live.number(e, "num_paused_threads")}
    sentence = WAITS["debugger"].sentence
    return {
        work.id: Waiting("debugger", sentence, (), None, (Link(row, sentence),), is_hopeless=True)
        for work in scene.candidates.values()
        if work.runs and work.process is None and (row := stopped.get(work.worker))
    }


def _argument(scene: Scene, work: UnfinishedTask) -> Waiting | None:
    """One of the results that its owner keeps for pending calls is its argument."""
    owner = scene.candidates.get(work.parent)
    rows = [
        e
        for e in live.rows(scene.case, "objects")
        if e["reference_type"] == "USED_BY_PENDING_TASK"
        and (owner is None or e.pid == owner.pid)
        and e["object_id"][:48] in scene.candidates
        and e["object_id"][:48] != work.id
    ]
    needs = list(dict.fromkeys(e["object_id"][:48] for e in rows))
    own = Link(work.event, f"{work.called} waits for an argument")
    if not needs:
        return Waiting("arguments", "waits for an argument", (), None, (own,))
    which = _name_all([scene.candidates[t] for t in needs])
    one_of = "one of " if len(needs) > 1 else ""
    return Waiting(
        "arguments",
        f"waits for its argument, the result of {one_of}{which}",
        tuple(target(scene.candidates[t]) for t in needs),
        Needs(frozenset(needs), "any"),
        (Link(rows[0], "its owner keeps the result for a pending call"), own),
        exact=len(needs) == 1,
    )


# ---------------------------------------------------------------- sentences


def target(work: UnfinishedTask) -> WaitTarget:
    """A task, as the target of a wait."""
    if work.kind == "driver":
        return WaitTarget("job", work.job, work.name)
    return WaitTarget("task", work.id, work.name)


def _waits_for(call: str) -> str:
    """`waits in ray.get for`, `awaits`."""
    does = _CALLS.get(call, f"waits in {call}")
    return does if call == "await" else f"{does} for"


def _name_all(tasks: Sequence[UnfinishedTask]) -> str:
    """`load() (pid 812)`, `load(), plan() and 3 more`."""
    names = list(dict.fromkeys(w.called for w in tasks))
    if len(tasks) == 1:
        return tasks[0].label
    if len(names) == 1:
        return f"{len(tasks)} × {names[0]}"
    return join_names(names)
