"""A coroutine of an async actor blocks the event loop, so that no other call of the actor can go on.

## What you see
Every call of one async actor hangs, also the trivial ones; `GetTimeoutError`. If it blocks in `ray.get`, the worker
prints once `Using blocking ray.get inside async actor. This blocks the event loop.`

## Why
All coroutines of an async actor share one thread. While one of them is in `ray.get`, `time.sleep`, a request without
`await` or a long computation, none of the others runs. If it waits for a call of the same actor, it waits for
ever: that call would have to run in the thread that it blocks.

Only `ray.get` is told by Ray. For anything else the logs are silent, unless asyncio's debug mode is on
(`PYTHONASYNCIODEBUG=1`: `Executing <Task …> took 30.0 seconds`), or a stack is there: the blocking call stands in
the thread `AsyncIO Thread: default` (measured with Ray 2.60).

## Confirm
- `ray stack` on its node: in `AsyncIO Thread: default` the innermost frame should be `select`; anything of yours is the
  culprit. Put the output beside the logs as `ray-stack.txt` and diagnose again.
- `runtime_env={"env_vars": {"PYTHONASYNCIODEBUG": "1"}}` names every step longer than 0.1 s.

## Fix
`await ref` instead of `ray.get(ref)`, `await asyncio.sleep(s)` instead of `time.sleep(s)`, an async client for requests;
what cannot be awaited belongs into `await asyncio.to_thread(f, …)`.

## Not this when
The actor is not async, and waits for another actor (`actor-deadlock`) or for tasks (`nested-get-deadlock`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import RAY_EXCEPTION
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import calls, stacks, waiting
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples as looked
from raydoctor.rules.shared.live import hangs

if TYPE_CHECKING:
    from raydoctor.waits.hung import Group, Hung

_OUTPUT = ("worker-err", "worker-echo")

BLOCKING_GET = Signal(
    "async.blocking_get", "Using blocking ray.get inside async actor.",
    r"Using blocking ray\.get inside async actor\. This blocks the event loop\.", _OUTPUT,
    "Using blocking ray.get inside async actor. This blocks the event loop. Please use `await` on object ref with asyncio.gather "
    "if you want to yield execution to the event loop instead.",
)  # fmt: skip
"""`ray/_private/worker.py`, once for each process; in the same words since before 2.3."""

SLOW_STEP = Signal(
    "async.slow_step", "Executing <Task ",
    r"^Executing <Task .* took (?P<seconds>\d+\.\d{3}) seconds$", _OUTPUT,
    "Executing <Task finished name='Task-3' coro=<<coroutine without __name__>()> result=1 created at "
    "/usr/lib/python3.11/asyncio/tasks.py:680> took 30.044 seconds",
)  # fmt: skip
"""asyncio's own, with PYTHONASYNCIODEBUG=1."""

_SELECTS = pattern(r"(?:^|\.)(?:select|_run_once|run_forever|_run|poll)$")
_LONG_STEP = 5.0
"""Seconds: a shorter step is a slow one, no hang."""
_DOC = "https://docs.ray.io/en/latest/ray-core/actors/async_api.html"


@rule(
    tier="root",
    severity="error",
    rank=73,
    looks_for=(BLOCKING_GET, SLOW_STEP, RAY_EXCEPTION),
)  # fmt: skip
def async_actor_blocked(case: Case) -> Iterator[Finding]:
    """One finding per actor process."""
    seen = [group for group in hangs.groups(case) if hangs.blocks_its_loop(group)]
    yield from (_live_finding(group) for group in seen)
    told = {h.work.pid for group in seen for h in group.culprits}
    workers = {w.pid: w for w in calls.busy(case)}
    for blocked in _blocked(case):
        if blocked.pid not in told:
            yield _finding(case, blocked, workers.get(blocked.pid))


def _live_finding(group: Group) -> Finding:
    """What stands in the event loop's thread, and who waits for it."""
    from raydoctor.waits.remedies import at_once

    first = next(h for h in group.culprits if h.kind == "async-blocked" and h.verdict)
    name = first.work.class_name or first.work.name
    what = "waits in ray.get" if first.waiting else first.summary
    blocked = _Blocked(first.work.pid or 0, name, what, (), stands=True)
    return hangs.finding(
        group,
        f"{name} (pid {first.work.pid}) {first.summary}: none of its other coroutines can run{_behind(group, first)}",
        (*_remedies(name, blocked), *at_once(group)),
    )


def _behind(group: Group, first: Hung) -> str:
    """Who else is in the circle, where it waits for a call of its own actor; and who waits."""
    own = [h.work.name for h in group.cycle if h is not first]
    return (
        f"; it waits for {evidence.join_names(own)}, which would need it"
        if own
        else hangs.waiting(group)
    )


class _Blocked(NamedTuple):
    """A process whose event loop stands, and what shows it."""

    pid: int
    name: str
    what: str
    links: tuple[Link, ...]
    seconds: float = 0.0
    stands: bool = False
    """A stack shows it at this moment."""


def _blocked(case: Case) -> list[_Blocked]:
    """By process; a stack says more than asyncio, and that more than Ray's advice."""
    found: dict[int, _Blocked] = {}
    for event in case.of("async.blocking_get", "async.slow_step"):
        pid = event.pid or 0
        if event.kind == "async.slow_step" and float(event["seconds"]) < _LONG_STEP:
            continue
        seen = found.get(pid, _Blocked(pid, _name(case, event), "", ()))
        found[pid] = _more(seen, event)
    for dump in stacks.dumps(case):
        if told := _in_loop(dump):
            links = found[dump.pid].links if dump.pid in found else ()
            found[dump.pid] = told._replace(links=(*links, *told.links))
    return list(found.values())


def _more(seen: _Blocked, event: Event) -> _Blocked:
    if any(link.event.kind == event.kind for link in seen.links):
        return seen
    if event.kind == "async.blocking_get":
        link = Link(event, "Ray says that a blocking ray.get stands in the event loop")
        return seen._replace(what="waits in ray.get", links=(link, *seen.links))
    seconds = float(event["seconds"])
    link = Link(event, f"asyncio says that one step took {seconds:.1f} s")
    return seen._replace(
        what=seen.what or "ran one step",
        seconds=max(seen.seconds, seconds),
        links=(*seen.links, link),
    )


def _in_loop(dump: stacks.Dump) -> _Blocked | None:
    """The user's frame on top of the event loop's thread."""
    for thread in dump.threads:
        if not thread.name.startswith(stacks.EVENT_LOOP) or not thread.frames:
            continue
        user = thread.user
        if user is None or _SELECTS.match(thread.frames[0].function):
            continue
        words = f"{thread.doing[1]} in {user.place}"
        link = Link(dump.event, f"the thread of its event loop {words}")
        return _Blocked(dump.pid, dump.name.partition(".")[0], words, (link,), stands=True)
    return None


def _name(case: Case, event: Event) -> str:
    worker = next((e.value for e in event.source.entities if e.kind == "worker"), "")
    names = case.names.get(worker, ())
    return names[-1] if names else event["who"].partition("(")[0] or "An async actor"


def _finding(case: Case, blocked: _Blocked, worker: calls.Worker | None) -> Finding:
    hangs = _hangs(case, blocked, worker)
    served = worker.serving if worker else 0
    behind = f"; {evidence.many(served, 'call')} of it unanswered" if hangs and served else ""
    took = f" for {blocked.seconds:.1f} s" if blocked.seconds else ""
    past = bool(blocked.seconds) and not hangs
    name = worker.name if worker and worker.names else blocked.name
    links = list(blocked.links)
    if worker and hangs:
        shows = f"{worker.label} served {evidence.many(served, 'call')} and waited for {worker.calling} itself"
        links.append(Link(worker.event, f"{shows}; unchanged for {worker.unmoved:.0f} s"))
    return Finding(
        f"{name} (pid {blocked.pid}) {blocked.what} and so block{'ed' if past else 's'} its event loop{took}: none of its "
        f"other coroutines {'could' if past else 'can'} run"
        f"{behind}",
        tuple(links),
        explains=(
            Entity("event-loop", f"{blocked.pid}"),
            *((Entity("waiting", "cluster"),) if hangs else ()),
        ),
        subjects=(worker.subject if worker else Subject("actor", None, name, blocked.pid),),
        severity="error" if hangs else "warning",
        remedies=_remedies(name, blocked),
    )  # fmt: skip


def _hangs(case: Case, blocked: _Blocked, worker: calls.Worker | None) -> bool:
    """Whether it is this that somebody gave up waiting for: it stands there now, or nothing else is told."""
    if not waiting.gave_up(case):
        return False
    if worker is not None and worker.is_async and (worker.calling or worker.leases):
        return True
    return blocked.stands or (bool(blocked.seconds) and not case.of("worker.calls"))


def _remedies(name: str, blocked: _Blocked) -> tuple[Remedy, ...]:
    get = "ray.get" in blocked.what
    return (
        Remedy(
            f"Await in the coroutines of {name} instead of blocking",
            (
                "answer = await self.other.method.remote(...)        # not ray.get(...)",
                "answers = await asyncio.gather(*refs)               # of many",
            )
            if get
            else (
                "await asyncio.sleep(1)                              # not time.sleep(1)",
                "await asyncio.to_thread(f, ...)                     # what cannot be awaited: files, requests, computation",
            ),
            doc=_DOC,
        ),
        Remedy(
            "See every step that takes longer than 0.1 s",
            (
                paste.python(
                    '{actor:name}.options(runtime_env={{"env_vars": {{"PYTHONASYNCIODEBUG": "1"}}}}).remote(...)',
                    actor=name,
                ),
            ),
        ),
        Remedy(
            f"Or make {name} an actor with threads: plain methods may block",
            (
                paste.python(
                    "{actor:name}.options(max_concurrency=8).remote(...)         # def instead of async def",
                    actor=name,
                ),
            ),
            doc=_DOC,
        ),
    )


# ------------------------------------------------------------------ examples


_ERROR = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
_W, _A = "a" * 56, f"{'1' * 24}01000000"


def _row(what: str, total: int, active: int) -> str:
    return (
        f"\tCoreWorkerService.{what}.PushTask - {total} total ({active} active), Execution time: mean = 0.19 s, total = 0.38 s, "
        "Queueing time: mean = 0.00ms, max = -0.00ms, min = 9223372036854.78ms, total = 0.00ms\n"
    )


def _core(serving: int, calling: int) -> str:
    tables = "".join(
        f"[2026-11-21 {at},438 I 398 418] core_worker.cc:591: Event stats:\n\n\n"
        + _row("grpc_server", serving + 2, serving)
        + _row("grpc_client", 10, calling)
        for at in ("10:42:54", "10:43:54")
    )
    return (
        "[2026-11-21 10:42:07,330 I 398 398] unordered_actor_task_execution_queue.cc:58: Setting actor as asyncio with "
        f"max_concurrency=1000\n[2026-11-21 10:42:07,331 I 398 398] task_receiver.cc:117: Actor creation task finished, task_id: "
        f"{'f' * 16}{_A}, actor_id: {_A}, actor_repr_name: \n{tables}"
    )


def _files(err: str = "", core: str = "") -> dict[str, str]:
    return {
        "logs/gcs_server.out": "",
        "logs/raylet.out": "",
        "driver.log": _ERROR,
        f"logs/worker-{_W}-01000000-398.err": f":job_id:01000000\n:actor_name:Crawler\n{err}",
        f"logs/worker-{_W}-01000000-398.out": ":job_id:01000000\n:actor_name:Crawler\n",
        f"logs/python-core-worker-{_W}_398.log": core,
    }


_STACK = (
    "Process 398: ray::Crawler.crawl\nPython v3.11.7 (/home/user/venv/bin/python3.11)\n\n"
    'Thread 398 (idle): "MainThread"\n    main_loop (ray/_private/worker.py:947)\n'
    'Thread 490 (idle): "AsyncIO Thread: default"\n    crawl (crawl.py:31)\n    async_func (ray/_private/async_compat.py:40)\n'
    "    _run (asyncio/events.py:84)\n    _run_once (asyncio/base_events.py:1922)\n"
)


_CRAWLER = sample.actor(1, "Crawler", {})
_CRAWL = sample.call(1, "Crawler.crawl", _CRAWLER, **looked.since(300))
_FETCHES = [
    sample.call(n, "Crawler.fetch", _CRAWLER, worker_pid=801, **looked.since(200)) for n in (2, 3)
]


def _live(*frames: tuple[str, str, int], looks: int = 3) -> dict[str, str]:
    """An actor of whose three coroutines one stands at these frames."""
    samples = looked.blocking(_CRAWL, *frames, looks=looks)
    return sample.tables(
        nodes=[sample.node({"CPU": 2})], tasks=[_CRAWL, *_FETCHES], actors=[_CRAWLER], samples=samples, clues=[looked.clues(_CRAWL)],
    )  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a blocking ray.get for calls of the same actor",
        _files(f"{BLOCKING_GET.sample}\n", _core(11, 10)),
        roots=("async-actor-blocked",),
        consequences=("get-timeout",),
        says=("Crawler (pid 398)", "ray.get", "await self.other", "11 calls"),
    ),
    Example(
        "asyncio's debug mode names a step of half a minute",
        _files(f"{SLOW_STEP.sample}\n"),
        roots=("async-actor-blocked",),
        consequences=("get-timeout",),
        says=("30.0 s",),
    ),
    Example(
        "a stack shows what stands in the event loop's thread",
        {**_files(core=_core(3, 0)), "ray-stack.txt": _STACK},
        roots=("async-actor-blocked",),
        consequences=("get-timeout",),
        says=("crawl (crawl.py:31)",),
    ),
    Example(
        "live: a request without await",
        _live(("SocketIO.readinto", "socket.py", 706), ("crawl", "crawl.py", 31)),
        roots=("async-actor-blocked",),
        says=(
            "Crawler (pid 801)",
            "crawl (crawl.py:31)",
            "2 Crawler.fetch tasks wait for it",
            "asyncio.to_thread",
        ),
    ),
    Example(
        "live: its event loop waits for something to do, however long its coroutines await",
        _live(("EpollSelector.select", "selectors.py", 468)),
    ),
    Example(
        "an event loop that waits for something to do",
        {
            **_files(core=_core(3, 0)),
            "ray-stack.txt": _STACK.replace(
                "    crawl (crawl.py:31)\n    async_func (ray/_private/async_compat.py:40)\n",
                "    EpollSelector.select (selectors.py:468)\n",
            ),
        },
        roots=("get-timeout",),
    ),
    Example(
        "it printed the advice and went on",
        {**_files(f"{BLOCKING_GET.sample}\n"), "driver.log": "crawled 10\n"},
        roots=("async-actor-blocked",),
        says=("blocks its event loop",),
    ),
    Example(
        "a program that prints about it",
        {
            **_files(),
            "driver.log": "(train pid=7) docs: using blocking ray.get inside async actor is bad\n",
        },
    ),
)
