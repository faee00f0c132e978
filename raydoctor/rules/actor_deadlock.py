"""Actors wait for each other in a cycle, so that none of their calls can ever return.

## What you see
Nothing moves and nothing fails, except with `GetTimeoutError` if the program sets a timeout. Every actor of the cycle
is in the middle of a method, and further calls wait in the actor's queue.

## Why
An actor runs one method at a time (without `max_concurrency`, threads or `async`). In a deadlock, a method waits in
`ray.get` for another actor, and that actor waits for the first, directly or through others. The call that would end the
wait stays in the queue of an actor that waits. The shortest such cycle is an actor that calls itself and waits.

Ray does not log deadlocks. But every core worker logs once a minute how many calls it serves
(`CoreWorkerService.grpc_server.PushTask … active`), how many it waits for (`grpc_client.PushTask … active`), and for
which actors it holds handles (`received notification on actor`). raydoctor reports a deadlock if every actor of a group
serves a call and waits for one, none holds a handle of a busy actor outside the group, and nothing changes from one
minute to the next. (Measured with Ray 2.9.3, 2.40, 2.50 and 2.60.)

## Confirm
- `ray stack` on the nodes: each actor is in `get_objects (ray/_private/worker.py)`, below its own method.
- `ray list tasks --detail --filter state!=FINISHED` (`parent_task_id` names the caller): methods in state `RUNNING`,
  and other methods of the same actors in `PENDING_ACTOR_TASK_…` or `SUBMITTED_TO_WORKER`.

## Fix
Break the cycle in one of three ways:
- Pass the other actor's result as an argument, or let the driver call both actors.
- Make the methods `async` and `await` the calls.
- Give the actor a second thread (`max_concurrency=2`) and make its state thread-safe.

## Not this when
- one of the actors is still busy: the others only wait for it (`task-hung` if it never returns).
- an async actor blocks its own event loop (`async-actor-blocked`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, rule
from raydoctor.case.signals import ACTOR_PLACED, RAY_EXCEPTION
from raydoctor.cluster import calls as live_calls
from raydoctor.cluster import waiting as now
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import called
from raydoctor.model.values import Finding, Link, Remedy
from raydoctor.rules.shared import calls, waiting
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples as sampled
from raydoctor.rules.shared.live import hangs

if TYPE_CHECKING:
    from raydoctor.waits.hung import Hung, HungGroup


_NAMED = 3
"""Actors of a cycle that a sentence names one by one."""


@rule(
    tier="root",
    severity="error",
    rank=74,
    explains=("task", "waiting", "waiting-actor"),
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
    reported = {h.work.actor for group in exact for h in group.all}
    blocked = live_calls.stuck(case)
    for cycle in _cycles(blocked):
        if min(s.age for s in cycle) >= now.AGE and not reported & {s.actor for s in cycle}:
            yield _live_finding(cycle, blocked)
    workers = {
        w.actor: w for w in calls.busy(case) if w.actor and w.actor not in {*blocked, *reported}
    }
    stuck = _stuck(workers, _idle_actors(case, workers))
    while stuck:
        path = _cycle(workers, stuck)
        group = _reachable(workers, stuck, path[0])
        yield _finding([workers[a] for a in path], [workers[a] for a in sorted(group)])
        stuck -= group


def _idle_actors(case: Case, workers: Mapping[str, calls.Worker]) -> set[str]:
    """Idle actors: their core logs are in the capture and show no call."""
    logs = {e.value for s in case.sources if s.role == "core-worker" for e in s.entities}
    known = case.ledger.actors.values()
    return {a.id for a in known if a.workers and a.workers[-1] in logs and a.id not in workers}


def _stuck(workers: Mapping[str, calls.Worker], idle: set[str]) -> set[str]:
    """The actors that wait for a call and hold handles only of idle actors and of other stuck actors.

    An actor that leases workers for plain tasks, or requests them, may wait for those tasks instead.
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


def _cycle(workers: Mapping[str, calls.Worker], stuck: set[str]) -> list[str]:
    """Follow the waits from the actor with the longest queue until an actor repeats."""
    start = max(sorted(stuck), key=lambda a: workers[a].queued)
    path = [start]
    while True:
        step = next(p for p in workers[path[-1]].peers if p in stuck)
        if step in path:
            return path[path.index(step) :]
        path.append(step)


def _reachable(workers: Mapping[str, calls.Worker], stuck: set[str], start: str) -> set[str]:
    """The actors of the cycle, and all stuck actors that wait for them."""
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


def _finding(cycle: list[calls.Worker], group: list[calls.Worker]) -> Finding:
    alone = len(cycle) == 1
    lasted = min(w.unmoved for w in cycle)
    queues = {w.label: w.queued for w in group if w.queued}
    return Finding(
        f"{_headline([w.label for w in cycle], alone=alone)}{_extent(lasted, queues, len(group) - len(cycle), alone=alone)}",
        tuple(Link(w.event, _shows(w, alone=len(cycle) == 1), _outgoing(w)) for w in cycle[:5]),
        explains=(Entity("waiting", "cluster"), *(Entity("waiting-actor", w.actor) for w in group)),
        subjects=tuple(w.subject for w in group[:10]),
        count=1,
        remedies=_remedies([w.name for w in cycle], alone=len(cycle) == 1),
        covers=tuple(w.event for w in group),
    )  # fmt: skip


def _headline(labels: Sequence[str], *, alone: bool) -> str:
    """`Deadlock: A and B wait for each other`, `Deadlock: A.add → A.get → A.add waits for a call to itself`."""
    if alone:
        return f"Deadlock: {' → '.join([*labels, labels[0]])} waits for a call to itself"
    return f"Deadlock: {evidence.join_names(labels, 6)} wait for each other"


def _extent(lasted: float, queues: Mapping[str, int], behind: int, *, alone: bool) -> str:
    """`, unchanged for at least 45 s, and 2 calls wait in their queues, and 2 more actors wait for them`.

    `queues`: the number of queued calls of each actor that has some.
    """
    queue = sum(queues.values())
    whose = f"the queue of {next(iter(queues))}" if len(queues) == 1 else "their queues"
    waiting = [
        f"{evidence.many(count, what)} wait{'s' if count == 1 else ''} {where}"
        for count, what, where in (
            (queue, "call", "in its queue" if alone else f"in {whose}"),
            (behind, "more actor", "for it" if alone else "for them"),
        )
        if count
    ]
    return ", and ".join([f", unchanged for at least {lasted:.0f} s", *waiting])


def _cycles(blocked: Mapping[str, live_calls.Stuck]) -> Iterator[list[live_calls.Stuck]]:
    """Each cycle once, whichever of its actors comes first."""
    visited: set[str] = set()
    for start in blocked:
        path = [start]
        while (step := blocked[path[-1]].awaits) not in (*path, *visited):
            path.append(step)
        if step in path:
            yield [blocked[a] for a in path[path.index(step) :]]
        visited |= set(path)


def _exact_finding(group: HungGroup) -> Finding:
    """A cycle whose every step is proven: by the objects that each task waits for, and by the queues."""
    from raydoctor.waits.chains import chain
    from raydoctor.waits.remedies import at_once

    labels = [h.work.label for h in group.cycle]
    lasted = min(h.work.age for h in group.cycle)
    guess = "" if group.exact else " (inferred without reading their memory)"
    alone = len({h.work.actor for h in group.cycle}) == 1
    steps = "" if alone else chain(group.cycle)
    said = f"Deadlock: {steps}" if steps else _headline(labels, alone=alone)
    methods = list(dict.fromkeys(_own_name(h) for h in group.cycle if h.work.runs))
    places = evidence.join_names(h.place.place for h in group.cycle if h.place)
    found = hangs.finding(
        group,
        f"{said}{guess}, unchanged for {lasted:.0f} s{hangs.waiting(group)}",
        (*_remedies(methods, alone=alone, places=places), *at_once(group)),
    )
    return replace(found, count=1)


def _own_name(hung: Hung) -> str:
    """`OrderBook.add`, or the class alone if the task is named otherwise."""
    name, actor = hung.work.name, hung.work.class_name
    return name if not actor or name.startswith(f"{actor}.") else actor


def _live_finding(
    cycle: list[live_calls.Stuck], blocked: Mapping[str, live_calls.Stuck]
) -> Finding:
    """A cycle, call by call, and how many more actors wait for it."""
    alone = len(cycle) == 1
    inside = {s.actor for s in cycle}
    behind = [s for s in blocked.values() if s.actor not in inside and s.awaits in inside]
    lasted = min(s.age for s in cycle)
    steps = "" if alone else _steps(cycle)
    # The sentence names the calls of the cycle that are queued.
    own = Counter(s.awaits for s in cycle if steps and _is_queued(s))
    queues = {s.label: s.queued - own[s.actor] for s in cycle if s.queued > own[s.actor]}
    said = f"Deadlock: {steps}" if steps else _headline([s.label for s in cycle], alone=alone)
    return Finding(
        f"{said}{_extent(lasted, queues, len(behind), alone=alone)}",
        tuple(link for s in cycle[:3] for link in _calls(s)),
        explains=(
            Entity("waiting", "cluster"),
            *(Entity("waiting-actor", s.actor) for s in (*cycle, *behind)),
            *(Entity("task", e["task_id"]) for s in (*cycle, *behind) for e in (s.method, s.call)),
        ),
        subjects=tuple(s.subject for s in cycle[:10]),
        remedies=_remedies([_method(s) for s in cycle], alone=len(cycle) == 1),
    )


def _is_queued(stuck: live_calls.Stuck) -> bool:
    return stuck.call["state"] in live_calls.QUEUED


def _steps(cycle: Sequence[live_calls.Stuck]) -> str:
    """`A.add() (pid 4) waits for B.get() (pid 5), which waits for A.size(), which is queued behind A.add()`.

    Empty for a cycle that is too long for a sentence.
    """
    if len(cycle) > _NAMED:
        return ""
    names = [f"{called(_method(s))}{f' (pid {s.pid})' if s.pid else ''}" for s in cycle]
    names.append(called(_method(cycle[0])))
    said = names[0]
    for n, stuck in enumerate(cycle):
        queued = (
            f"{called(stuck.call['name'])}, which is queued behind " if _is_queued(stuck) else ""
        )
        said += f"{', which' if n else ''} waits for {queued}{names[n + 1]}"
    return said


def _method(stuck: live_calls.Stuck) -> str:
    """`OrderBook.add`, or the class alone if the row is named otherwise."""
    name = stuck.method["name"]
    return name if name.startswith(f"{stuck.name}.") else stuck.name


def _calls(stuck: live_calls.Stuck) -> Iterator[Link]:
    method, call = stuck.method["name"], stuck.call["name"]
    blocked = f"{method} (pid {stuck.pid}) called {call} and is blocked in ray.get (by the metrics of its node)"
    yield Link(stuck.method, blocked)
    if _is_queued(stuck):
        yield Link(stuck.call, f"this call of {call} has been queued for {stuck.age:.0f} s")


def _outgoing(worker: calls.Worker) -> str:
    """The line that counts the calls that it made and that have not returned."""
    rows = (row.strip() for row in worker.event.message.split("\n"))
    return next((row for row in rows if "grpc_client.PushTask" in row), "")


def _shows(worker: calls.Worker, *, alone: bool) -> str:
    behind = f", has {evidence.many(worker.queued, 'call')} in its queue" if worker.queued else ""
    return (
        f"{worker.label} is running a method{behind}, and waits for {evidence.many(worker.calling, 'call')} that it made, "
        f"unchanged for {worker.unmoved:.0f} s{'' if alone else _INFERRED}"
    )


_INFERRED = ". It holds no handle of any other busy actor. This is inferred from these counts; `ray stack` can confirm it"


def _remedies(names: Sequence[str], *, alone: bool, places: str = "") -> tuple[Remedy, ...]:
    """`names`: of the actors' classes or methods. `alone`: one actor waits for itself. `places`: the lines that wait."""
    first = names[0].partition(".")[0]
    return (
        _break_cycle(names[0], names[-1], f" at {places}" if places else "", alone=alone),
        Remedy(
            f"Or make the methods of {first} async: while one awaits, others can run",
            (
                paste.python("class {actor:name}:", actor=first),
                "    async def METHOD(self, item):",
                "        answer = await self.other.METHOD.remote(item)   # not ray.get",
            ),
            doc="https://docs.ray.io/en/latest/ray-core/actors/async_api.html",
        ),
        Remedy(
            f"Or give {first} a second thread, which can run the call that ends the wait (the actor's state must be thread-safe)",
            (
                paste.python(
                    "{actor:name}.options(max_concurrency=2).remote(...)   # for one waiting call at a time: add a thread for each further one",
                    actor=first,
                ),
            ),
            doc="https://docs.ray.io/en/latest/ray-core/actors/async_api.html",
        ),
    )


def _break_cycle(one: str, other: str, where: str, *, alone: bool) -> Remedy:
    (first, _, begun), (last, _, called) = one.partition("."), other.partition(".")
    if alone:
        return Remedy(
            f"Call {first}'s own method directly{where}, not through its handle",
            ("answer = self.METHOD(...)                   # not ray.get(me.METHOD.remote(...))",),
            doc="https://docs.ray.io/en/latest/ray-core/actors.html",
        )
    if first == last:
        return Remedy(
            f"Break the cycle of the {first} actors{where}: let the driver call one of them first, and pass the result to "
            "the other as an argument",
            (
                "answer = other.METHOD.remote(...)   # in the driver, without ray.get",
                "result = actor.METHOD.remote(answer)   # Ray sends the call when the argument is ready",
            ),
            doc="https://docs.ray.io/en/latest/ray-core/actors.html",
        )
    return Remedy(
        f"Break the cycle{where}: let the driver call {last} first, and pass the result to {first} as an argument",
        (
            paste.python(
                "answer = {last:name}_handle.{method:name}.remote(...)   # in the driver, without ray.get",
                last=last,
                method=called or "METHOD",
            ),
            paste.python(
                "result = {first:name}_handle.{method:name}.remote(answer)   # Ray sends the call when the argument is ready",
                first=first,
                method=begun or "METHOD",
            ),
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
    """A capture in which both actors serve and wait for this number of calls."""
    return {
        **QUIET_LOGS,
        "driver.log": _ERROR,
        f"logs/python-core-worker-{_WORKERS[_BOOK]}_400.log": _log(400, _BOOK, _DESK, *book),
        f"logs/python-core-worker-{_WORKERS[_DESK]}_399.log": _log(399, _DESK, _BOOK, *desk),
        f"logs/worker-{_WORKERS[_BOOK]}-01000000-400.out": ":job_id:01000000\n:actor_name:OrderBook\n",
        f"logs/worker-{_WORKERS[_DESK]}-01000000-399.out": ":job_id:01000000\n:actor_name:RiskDesk\n",
    }


_BOOK_ROW, _DESK_ROW = sample.actor(1, "OrderBook", {}), sample.actor(2, "RiskDesk", {})
_BUY = sample.call(1, "OrderBook.buy", _BOOK_ROW)


def _live(*calls: sample.Row) -> dict[str, str]:
    """An order book that waits for a risk desk, which waits itself, and further calls."""
    check = sample.call(2, "RiskDesk.check", _DESK_ROW, parent_task_id=sample.task_id(1))
    gets = [sample.in_ray_get(name, 1) for name in ("OrderBook.buy", "RiskDesk.check")]
    nodes = [sample.node({"CPU": 2})]
    return sample.tables(nodes=nodes, ray_get=gets, tasks=[_BUY, check, *calls])


def _proven(*awaited_by_desk: sample.Row) -> dict[str, str]:
    """The same, with the objects that both wait for, as read from their memory."""
    buy = sample.call(1, "OrderBook.buy", _BOOK_ROW, **sampled.since(90))
    check = sample.call(2, "RiskDesk.check", _DESK_ROW, **sampled.since(90))
    price = sample.call(
        3, "OrderBook.price", _BOOK_ROW, worker_pid=None, **sampled.since(90, "SUBMITTED_TO_WORKER")
    )
    asked = awaited_by_desk or (price,)
    return sample.tables(
        nodes=[sample.node({"CPU": 2})],
        tasks=[buy, check, price, *awaited_by_desk],
        samples=[
            *sampled.getting(buy, ("OrderBook.buy", "desk.py", 12)), *sampled.getting(check, ("RiskDesk.check", "desk.py", 31)),
        ],
        clues=[sampled.clues(buy, check), sampled.clues(check, *asked)],
    )  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    Example(
        "an order book calls a risk desk, which calls the order book",
        _files((2, 1), (1, 1)),
        consequences=("get-timeout",),
        says=(
            "OrderBook (pid 400) and RiskDesk (pid 399) wait for each other",
            "1 call waits in the queue of OrderBook (pid 400)",
        ),
    ),
    Example(
        "the risk desk is busy, and the order book only waits for it",
        _files((2, 1), (1, 0)),
        roots=("get-timeout",),
    ),
    Example(
        "live: an order book calls a risk desk, which calls the order book",
        _live(
            sample.call(
                3,
                "OrderBook.price",
                _BOOK_ROW,
                state="SUBMITTED_TO_WORKER",
                parent_task_id=sample.task_id(2),
            )
        ),
        says=(
            "OrderBook.buy() (pid 801) waits for RiskDesk.check() (pid 802), which waits for OrderBook.price(), "
            "which is queued behind OrderBook.buy()",
        ),
    ),
    Example(
        "live: the same, proven by the objects that both wait for",
        _proven(),
        says=(
            "OrderBook.buy() (pid 801) waits for RiskDesk.check() (pid 802), which waits for OrderBook.price(), "
            "which is queued behind OrderBook.buy()",
            "RiskDesk_handle.check.remote(...)",
        ),
    ),
    Example(
        "live: the risk desk waits for a busy ledger",
        _proven(sample.call(4, "Ledger.sum", sample.actor(9, "Ledger", {}), **sampled.since(90))),
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
        says=("waits for a call to itself",),
    ),
    Example(
        "live: the risk desk waits for another running call",
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
        "live: both wait, the second for a call made just now",
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
        "both wait, but have no calls queued: they wait for other tasks",
        _files((1, 1), (1, 1)),
        roots=("get-timeout",),
    ),
)
