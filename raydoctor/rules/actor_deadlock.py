"""Actors wait for each other in a circle, so that none of their calls can ever end.

## What you see
Nothing moves and nothing fails; `GetTimeoutError` if the program has a deadline. Every actor of the circle
is in the middle of a method, and further calls queue behind it.

## Why
An actor runs one method at a time (without `max_concurrency`, threads or `async`). If that method waits in
`ray.get` for another actor, and that one waits for the first, directly or through others, then the call that
would free them stands in the queue of an actor that waits. An actor that calls itself and waits is the
shortest such circle.

Ray writes no line about it. But every core worker prints once a minute how many calls it serves
(`CoreWorkerService.grpc_server.PushTask … active`) and how many it waits for (`grpc_client.PushTask …
active`), and which actors it knows (`received notification on actor`). Actors that all serve and all wait, know
nobody else who works, and do not change from one table to the next are a deadlock. (Read with Ray 2.9.3,
2.40, 2.50 and 2.60.)

## Confirm
- `ray stack` on the nodes: each actor stands in `get_objects (ray/_private/worker.py)`, below its own method.
- `ray list tasks --detail --filter state!=FINISHED` (`parent_task_id` says who called): methods that are `RUNNING`, and others of the same actors
  that are `PENDING_ACTOR_TASK_…` or `SUBMITTED_TO_WORKER`.

## Fix
Break the circle: pass what the other one needs as an argument, or have the caller ask both; or make the
methods `async` and `await` the calls; or give the actor a second thread (`max_concurrency=2`) and make its
state safe for that.

## Not this when
One of them still works: the others merely wait for it (`task-hung` if it never ends). An async actor that
blocks its own event loop is `async-actor-blocked`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import ACTOR_PLACED, RAY_EXCEPTION
from raydoctor.cluster import calls as live_calls
from raydoctor.cluster import waiting as now
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Finding, Link, Remedy
from raydoctor.rules.shared import calls, waiting
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples as looked
from raydoctor.rules.shared.live import hangs

if TYPE_CHECKING:
    from raydoctor.waits.hung import Group


@rule(
    tier="root",
    severity="error",
    rank=74,
    looks_for=(waiting.INTERRUPTED, RAY_EXCEPTION, *ACTOR_PLACED),
)  # fmt: skip
def actor_deadlock(case: Case) -> Iterator[Finding]:
    """One finding per group of actors that wait for each other."""
    exact = [
        g
        for g in hangs.groups(case)
        if g.cycle and not hangs.is_nested(g) and not hangs.blocks_its_loop(g)
    ]
    yield from (_exact_finding(group) for group in exact)
    told = {h.work.actor for group in exact for h in group.all}
    seen = live_calls.stuck(case)
    for ring in _rings(seen):
        if min(s.age for s in ring) >= now.AGE and not told & {s.actor for s in ring}:
            yield _live_finding(ring, seen)
    workers = {w.actor: w for w in calls.busy(case) if w.actor and w.actor not in {*seen, *told}}
    stuck = _stuck(workers, _idle_actors(case, workers))
    while stuck:
        circle = _circle(workers, stuck)
        group = _reachable(workers, stuck, circle[0])
        yield _finding(case, [workers[a] for a in circle], [workers[a] for a in sorted(group)])
        stuck -= group


def _idle_actors(case: Case, workers: Mapping[str, calls.Worker]) -> set[str]:
    """Actors that had nothing in hand: their core logs are in the capture, without a call."""
    logs = {e.value for s in case.sources if s.role == "core-worker" for e in s.entities}
    known = case.ledger.actors.values()
    return {a.id for a in known if a.workers and a.workers[-1] in logs and a.id not in workers}


def _stuck(workers: Mapping[str, calls.Worker], idle: set[str]) -> set[str]:
    """The actors that wait for a call, each of whom knows nobody but idle ones and such as wait too.

    Who has been given workers for plain tasks, or asks for them, may wait for these instead.
    """
    stuck = {
        w.actor
        for w in workers.values()
        if w.running and w.calling and w.waits and not (w.leases or w.leased or w.is_async)
    }
    while True:
        left = {a for a in stuck if _waits_among(workers[a], stuck, idle)}
        if left == stuck:
            return left if any(workers[a].queued for a in left) else set()
        stuck = left


def _waits_among(worker: calls.Worker, stuck: set[str], idle: set[str]) -> bool:
    targets = [peer for peer in worker.peers if peer not in idle]
    return bool(targets) and all(peer in stuck for peer in targets)


def _circle(workers: Mapping[str, calls.Worker], stuck: set[str]) -> list[str]:
    """Follow who waits for whom from the actor with the longest queue until one comes again."""
    start = max(sorted(stuck), key=lambda a: workers[a].queued)
    path = [start]
    while True:
        step = next(p for p in workers[path[-1]].peers if p in stuck)
        if step in path:
            return path[path.index(step) :]
        path.append(step)


def _reachable(workers: Mapping[str, calls.Worker], stuck: set[str], start: str) -> set[str]:
    """The circle and everybody of the stuck who waits for it."""
    group = {start}
    while True:
        more = {
            a
            for a in stuck
            if a not in group
            and (group & set(workers[a].peers) or any(a in workers[g].peers for g in group))
        }
        if not more:
            return group
        group |= more


def _finding(case: Case, circle: list[calls.Worker], group: list[calls.Worker]) -> Finding:
    names = [w.label for w in circle]
    queue = sum(w.queued for w in group)
    lasted = min(w.unmoved for w in circle)
    behind = len(group) - len(circle)
    others = f"; {evidence.many(behind, 'more actor')} wait for them" if behind else ""
    alone = "calls itself and waits" if len(circle) == 1 else "wait for each other"
    return Finding(
        f"{' → '.join([*names, names[0]])}: {'it' if len(circle) == 1 else 'they'} {alone}, and nothing has moved for at least "
        f"{lasted:.0f} s, {evidence.many(queue, 'call')} queued{others}",
        tuple(Link(w.event, _shows(w)) for w in circle[:5]),
        explains=(Entity("waiting", "cluster"), *(Entity("waiting-actor", w.actor) for w in group)),
        subjects=tuple(w.subject for w in group[:10]),
        count=1,
        remedies=_remedies([w.name for w in circle]),
        covers=tuple(w.event for w in group),
    )  # fmt: skip


def _rings(seen: Mapping[str, live_calls.Stuck]) -> Iterator[list[live_calls.Stuck]]:
    """Each circle once: from any of its actors one comes back to it."""
    told: set[str] = set()
    for start in seen:
        path = [start]
        while (step := seen[path[-1]].awaits) not in (*path, *told):
            path.append(step)
        if step in path:
            yield [seen[a] for a in path[path.index(step) :]]
        told |= set(path)


def _exact_finding(group: Group) -> Finding:
    """A circle whose every step was seen: by the objects that each waits for, and by its queue."""
    from raydoctor.waits.remedies import at_once

    labels = [h.work.label for h in (*group.cycle, group.cycle[0])]
    lasted = min(h.work.age for h in group.cycle)
    guess = "" if group.exact else ", as far as can be told without reading their memory"
    actors = list(
        dict.fromkeys(h.work.class_name or h.work.name for h in group.cycle if h.work.runs)
    )
    alone = (
        "it calls itself and waits"
        if len({h.work.actor for h in group.cycle}) == 1
        else "they wait for each other"
    )
    return hangs.finding(
        group,
        f"{' → '.join(labels)}: {alone}{guess}, and nothing has moved for {lasted:.0f} s{hangs.waiting(group)}",
        (*_remedies(actors), *at_once(group)),
    )


def _live_finding(ring: list[live_calls.Stuck], seen: Mapping[str, live_calls.Stuck]) -> Finding:
    """A circle, call by call, and how many more wait behind it."""
    names = [s.label for s in ring]
    queue = sum(s.queued for s in ring)
    inside = {s.actor for s in ring}
    behind = [s for s in seen.values() if s.actor not in inside and s.awaits in inside]
    others = f"; {evidence.many(len(behind), 'more actor')} wait for them" if behind else ""
    alone = "it calls itself and waits" if len(ring) == 1 else "they wait for each other"
    lasted = min(s.age for s in ring)
    return Finding(
        f"{' → '.join([*names, names[0]])}: {alone}, and nothing has moved for {lasted:.0f} s, "
        f"{evidence.many(queue, 'call')} queued{others}",
        tuple(link for s in ring[:3] for link in _calls(s)),
        explains=(
            Entity("waiting", "cluster"),
            *(Entity("waiting-actor", s.actor) for s in (*ring, *behind)),
            *(Entity("task", e["task_id"]) for s in (*ring, *behind) for e in (s.method, s.call)),
        ),
        subjects=tuple(s.subject for s in ring[:10]),
        remedies=_remedies([s.name for s in ring]),
    )


def _calls(stuck: live_calls.Stuck) -> Iterator[Link]:
    method, call = stuck.method["name"], stuck.call["name"]
    runs = f"{method} (pid {stuck.pid}) runs, and waits in ray.get by its node's metrics"
    if stuck.call["state"] in live_calls.QUEUED:
        yield Link(stuck.method, runs)
        shows = f"{call}, which it has called, has stood queued for {stuck.age:.0f} s"
        yield Link(stuck.call, shows)
    else:
        yield Link(stuck.method, f"{runs}; it has called {call}")


def _shows(worker: calls.Worker) -> str:
    behind = f", {worker.queued} more queued behind it" if worker.queued else ""
    return (
        f"{worker.label} is in a method{behind}, and waits for {evidence.many(worker.calling, 'call')} of its own; "
        f"unchanged for {worker.unmoved:.0f} s"
    )


def _remedies(names: Sequence[str]) -> tuple[Remedy, ...]:
    first, last = names[0], names[-1]
    return (
        _untie(first, last),
        Remedy(
            f"Or do not block {first} while it waits: async methods may run in between",
            (
                paste.python("class {actor:name}:", actor=first),
                "    async def method(self, ...):",
                "        answer = await self.other.look_up.remote(...)   # not ray.get",
            ),
            doc="https://docs.ray.io/en/latest/ray-core/actors/async_api.html",
        ),
        Remedy(
            f"Or let {first} answer in a second thread (its state must be safe for that)",
            (paste.python("{actor:name}.options(max_concurrency=2).remote(...)", actor=first),),
            doc="https://docs.ray.io/en/latest/ray-core/actors/async_api.html",
        ),
    )


def _untie(first: str, last: str) -> Remedy:
    if first == last:
        return Remedy(
            f"Call {first}'s own method directly, not through its handle",
            ("answer = self.look_up(...)                   # not ray.get(me.look_up.remote(...))",),
            doc="https://docs.ray.io/en/latest/ray-core/actors.html",
        )
    return Remedy(
        f"Break the circle: let the caller ask {last} first, and hand its answer to {first} as an argument",
        (
            "answer = other.look_up.remote(...)           # in the caller: a reference is enough",
            "result = actor.method.remote(answer)         # Ray waits for the argument before it calls",
        ),
        doc="https://docs.ray.io/en/latest/ray-core/actors.html",
    )


# ------------------------------------------------------------------ examples


_BOOK, _DESK = f"{'1' * 24}01000000", f"{'2' * 24}01000000"
_WORKERS = {_BOOK: "a" * 56, _DESK: "b" * 56}
_ERROR = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"


def _row(what: str, total: int, active: int, running: int = 0) -> str:
    more = f", {running} running" if running else ""
    return (
        f"\t{what} - {total} total ({active} active{more}), Execution time: mean = 143.25ms, total = 573.00ms, "
        "Queueing time: mean = 0.00ms, max = -0.00ms, min = 9223372036854.78ms, total = 0.00ms\n"
    )


def _table(at: str, pid: int, serving: int, calling: int) -> str:
    return (
        f"[2026-11-21 {at},438 I {pid} 418] core_worker.cc:591: Event stats:\n\n\nGlobal stats: 822 total (13 active)\n"
        + _row("CoreWorkerService.grpc_server.PushTask", serving + 2, serving)
        + (_row("CoreWorkerService.grpc_client.PushTask", 1, calling) if calling else "")
        + "\n-----------------\nTask execution event stats:\n"
        + _row("CoreWorker.HandlePushTaskActor", serving + 1, serving, 1)
    )


def _log(pid: int, own: str, peer: str, serving: int, calling: int) -> str:
    return (
        f"[2026-11-21 10:41:55,169 I {pid} {pid}] task_receiver.cc:117: Actor creation task finished, task_id: {'f' * 16}{own}, "
        f"actor_id: {own}, actor_repr_name: \n"
        f"[2026-11-21 10:41:55,880 I {pid} 418] actor_manager.cc:236: received notification on actor, state: ALIVE, ip address: "
        f"10.0.0.2, port: 44061, num_restarts: 0, death context type=CONTEXT_NOT_SET actor_id={peer} worker_id={_WORKERS[peer]} "
        f"node_id={'c' * 56}\n" + _table("10:42:54", pid, serving, calling) + _table("10:43:54", pid, serving, calling)
    )  # fmt: skip


def _files(book: tuple[int, int], desk: tuple[int, int]) -> dict[str, str]:
    """A capture in which both actors serve and wait for so many calls."""
    return {
        "logs/gcs_server.out": "",
        "logs/raylet.out": "",
        "driver.log": _ERROR,
        f"logs/python-core-worker-{_WORKERS[_BOOK]}_400.log": _log(400, _BOOK, _DESK, *book),
        f"logs/python-core-worker-{_WORKERS[_DESK]}_399.log": _log(399, _DESK, _BOOK, *desk),
        f"logs/worker-{_WORKERS[_BOOK]}-01000000-400.out": ":job_id:01000000\n:actor_name:OrderBook\n",
        f"logs/worker-{_WORKERS[_DESK]}-01000000-399.out": ":job_id:01000000\n:actor_name:RiskDesk\n",
    }


_BOOK_ROW, _DESK_ROW = sample.actor(1, "OrderBook", {}), sample.actor(2, "RiskDesk", {})
_BUY = sample.call(1, "OrderBook.buy", _BOOK_ROW)


def _live(*calls: sample.Row) -> dict[str, str]:
    """An order book that waits for a risk desk, which waits as well; and further calls."""
    check = sample.call(2, "RiskDesk.check", _DESK_ROW, parent_task_id=sample.task_id(1))
    gets = [sample.in_ray_get(name, 1) for name in ("OrderBook.buy", "RiskDesk.check")]
    nodes = [sample.node({"CPU": 2})]
    return sample.tables(nodes=nodes, ray_get=gets, tasks=[_BUY, check, *calls])


def _seen(*awaited_by_desk: sample.Row) -> dict[str, str]:
    """The same, with the objects that both wait for, read from their memory."""
    buy = sample.call(1, "OrderBook.buy", _BOOK_ROW, **looked.since(90))
    check = sample.call(2, "RiskDesk.check", _DESK_ROW, **looked.since(90))
    price = sample.call(
        3, "OrderBook.price", _BOOK_ROW, worker_pid=None, **looked.since(90, "SUBMITTED_TO_WORKER")
    )
    asked = awaited_by_desk or (price,)
    return sample.tables(
        nodes=[sample.node({"CPU": 2})],
        tasks=[buy, check, price, *awaited_by_desk],
        samples=[
            *looked.getting(buy, ("OrderBook.buy", "desk.py", 12)), *looked.getting(check, ("RiskDesk.check", "desk.py", 31)),
        ],
        clues=[looked.clues(buy, check), looked.clues(check, *asked)],
    )  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    Example(
        "an order book asks a risk desk, which asks the order book",
        _files((2, 1), (1, 1)),
        roots=("actor-deadlock",),
        consequences=("get-timeout",),
        says=("OrderBook (pid 400) → RiskDesk (pid 399) → OrderBook (pid 400)", "1 call queued"),
    ),
    Example(
        "the risk desk still works: the order book only waits for it",
        _files((2, 1), (1, 0)),
        roots=("get-timeout",),
    ),
    Example(
        "live: an order book asks a risk desk, which asks the order book",
        _live(
            sample.call(
                3,
                "OrderBook.price",
                _BOOK_ROW,
                state="SUBMITTED_TO_WORKER",
                parent_task_id=sample.task_id(2),
            )
        ),
        roots=("actor-deadlock",),
        says=("OrderBook (pid 801) → RiskDesk (pid 802) → OrderBook (pid 801)", "1 call queued"),
    ),
    Example(
        "live: the same, by the objects that they wait for",
        _seen(),
        roots=("actor-deadlock",),
        says=(
            "OrderBook.buy (pid 801) → RiskDesk.check (pid 802) → OrderBook.price → OrderBook.buy (pid 801)",
            "wait for each other",
        ),
    ),
    Example(
        "live: the risk desk waits for a ledger that works",
        _seen(sample.call(4, "Ledger.sum", sample.actor(9, "Ledger", {}), **looked.since(90))),
    ),
    Example(
        "live: an actor calls itself and waits",
        sample.tables(
            nodes=[sample.node({"CPU": 2})],
            ray_get=[sample.in_ray_get("OrderBook.buy", 1)],
            tasks=[
                _BUY,
                sample.call(
                    3,
                    "OrderBook.price",
                    _BOOK_ROW,
                    state="SUBMITTED_TO_WORKER",
                    parent_task_id=sample.task_id(1),
                ),
            ],
        ),
        roots=("actor-deadlock",),
        says=("it calls itself and waits",),
    ),
    Example(
        "live: the risk desk has another call at work, which may free it",
        _live(
            sample.call(
                3,
                "OrderBook.price",
                _BOOK_ROW,
                state="SUBMITTED_TO_WORKER",
                parent_task_id=sample.task_id(2),
            ),
            sample.call(
                4, "Ledger.sum", sample.actor(9, "Ledger", {}), parent_task_id=sample.task_id(2)
            ),
        ),
    ),
    Example(
        "live: both wait, the second for a call that has only just been made",
        _live(
            sample.call(
                3,
                "OrderBook.price",
                _BOOK_ROW,
                state="SUBMITTED_TO_WORKER",
                parent_task_id=sample.task_id(2),
                events=[{"state": "SUBMITTED_TO_WORKER", "created_ms": int(sample.AT) * 1000}],
            )
        ),
    ),
    Example(
        "both wait, but nothing is queued behind them: they wait for tasks elsewhere",
        _files((1, 1), (1, 1)),
        roots=("get-timeout",),
    ),
)
