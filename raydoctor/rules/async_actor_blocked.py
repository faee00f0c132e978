"""A coroutine of an async actor blocks the event loop, so that no other call of the actor can proceed.

## What you see
Every call to one async actor hangs, even a trivial one, or ends with `GetTimeoutError`. If a coroutine blocks in
`ray.get`, the worker prints once `Using blocking ray.get inside async actor. This blocks the event loop.`

## Why
All coroutines of an async actor share one thread. While one of them is in `ray.get`, `time.sleep`, a request without
`await` or a long computation, none of the others runs. A coroutine that blocks until another call of its own actor
returns waits forever: that call needs the blocked thread.

Ray logs only a blocking `ray.get`. Other blocking calls appear in the logs only with asyncio's debug mode
(`PYTHONASYNCIODEBUG=1`: `Executing <Task …> took 30.0 seconds`), or in a call stack: the blocking call is in the thread
`AsyncIO Thread: default` (measured with Ray 2.60).

## Confirm
- Run `ray stack` on the actor's node: in `AsyncIO Thread: default` the innermost frame should be `select`. A frame of
  your own code there is the blocking call. Save the output as `ray-stack.txt` in the folder of the logs, and diagnose
  that folder again.
- `runtime_env={"env_vars": {"PYTHONASYNCIODEBUG": "1"}}` logs every step longer than 0.1 s.

## Fix
Use `await ref` instead of `ray.get(ref)`, `await asyncio.sleep(s)` instead of `time.sleep(s)`, and an async client for
requests. Run blocking code with `await asyncio.to_thread(f, …)`.

## Not this when
- the actor is not async, and waits for another actor (`actor-deadlock`) or for tasks (`nested-get-deadlock`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, rule
from raydoctor.case.signals import RAY_EXCEPTION
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import calls, stacks, waiting
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples as sampled
from raydoctor.rules.shared.live import hangs

if TYPE_CHECKING:
    from raydoctor.waits.hung import Hung, HungGroup

_OUTPUT = ("worker-err", "worker-echo")

BLOCKING_GET = Signal(
    "async.blocking_get", "Using blocking ray.get inside async actor.",
    r"Using blocking ray\.get inside async actor\. This blocks the event loop\.", _OUTPUT,
    "Using blocking ray.get inside async actor. This blocks the event loop. Please use `await` on object ref with asyncio.gather "
    "if you want to yield execution to the event loop instead.",
)  # fmt: skip
"""`ray/_private/worker.py`, once per process, with the same text since before 2.3."""

SLOW_STEP = Signal(
    "async.slow_step", "Executing <Task ",
    r"^Executing <Task .* took (?P<seconds>\d+\.\d{3}) seconds$", _OUTPUT,
    "Executing <Task finished name='Task-3' coro=<<coroutine without __name__>()> result=1 created at "
    "/usr/lib/python3.11/asyncio/tasks.py:680> took 30.044 seconds",
)  # fmt: skip
"""Logged by asyncio with PYTHONASYNCIODEBUG=1."""

_METHOD = pattern(r"\bray\.get\((?:.{0,100}\W)?[A-Za-z_]\w{0,100}\.[A-Za-z_]\w{0,100}\.remote\(")
_SELECTS = pattern(r"(?:^|\.)(?:select|_run_once|run_forever|_run|poll)$")
_LONG_STEP = 5.0
"""Seconds: a shorter step is slow, but does not count as hung."""
_DOC = "https://docs.ray.io/en/latest/ray-core/actors/async_api.html"


@rule(
    tier="root",
    severity="error",
    rank=73,
    explains=("event-loop", "task", "waiting", "waiting-actor"),
    looks_for=(BLOCKING_GET, SLOW_STEP, RAY_EXCEPTION),
)  # fmt: skip
def async_actor_blocked(case: Case) -> Iterator[Finding]:
    """One finding per actor process."""
    groups = [group for group in hangs.groups(case) if hangs.blocks_its_loop(group)]
    yield from (_live_finding(group) for group in groups)
    reported = {h.work.pid for group in groups for h in group.culprits}
    workers = {w.pid: w for w in calls.busy(case)}
    for blocked in _blocked(case):
        if blocked.pid not in reported:
            yield _finding(case, blocked, workers.get(blocked.pid))


def _live_finding(group: HungGroup) -> Finding:
    """From a live call stack: the blocking call, and the tasks that wait for it."""
    from raydoctor.waits.remedies import at_once

    first = next(h for h in group.culprits if h.kind == "async-blocked" and h.verdict)
    name = first.work.class_name or first.work.name
    call = "waits in ray.get" if first.waiting else first.summary
    blocked = _Blocked(
        first.work.pid or 0, name, call, (), is_get=bool(first.waiting), is_current=True
    )
    return hangs.finding(
        group,
        f"Actor {name} (pid {first.work.pid}) {first.summary}, so that none of its other coroutines can run{_behind(group, first)}",
        (*_remedies(name, blocked), *at_once(group)),
    )


def _behind(group: HungGroup, first: Hung) -> str:
    """The calls of its own actor that it waits for, or else the tasks that wait for it."""
    own = [h.work.name for h in group.cycle if h is not first]
    return (
        f", and it waits for {evidence.join_names(own)}, which needs the same event loop"
        if own
        else hangs.waiting(group)
    )


class _Blocked(NamedTuple):
    """A process whose event loop is blocked, and the evidence."""

    pid: int
    name: str
    call: str
    """The blocking call: `waits in ray.get`."""
    links: tuple[Link, ...]
    is_get: bool = False
    """The blocking call is `ray.get`, so that `await` replaces it."""
    seconds: float = 0.0
    is_current: bool = False
    """A call stack shows the blocking call now."""


def _blocked(case: Case) -> list[_Blocked]:
    """By process. A call stack outranks asyncio's record, which outranks Ray's warning."""
    found: dict[int, _Blocked] = {}
    for event in case.of("async.blocking_get", "async.slow_step"):
        pid = event.pid or 0
        if event.kind == "async.slow_step" and float(event["seconds"]) < _LONG_STEP:
            continue
        seen = found.get(pid, _Blocked(pid, _name(case, event), "", ()))
        found[pid] = _more(seen, event)
    for dump in stacks.dumps(case):
        if blocked := _in_loop(dump):
            links = found[dump.pid].links if dump.pid in found else ()
            found[dump.pid] = blocked._replace(links=(*links, *blocked.links))
    return list(found.values())


def _more(seen: _Blocked, event: Event) -> _Blocked:
    if any(link.event.kind == event.kind for link in seen.links):
        return seen
    if event.kind == "async.blocking_get":
        link = Link(event, "Ray reports a blocking ray.get in the event loop")
        return seen._replace(call="waits in ray.get", is_get=True, links=(link, *seen.links))
    seconds = float(event["seconds"])
    link = Link(event, f"asyncio reports a step of {seconds:.1f} s")
    return seen._replace(
        call=seen.call or "ran one step",
        seconds=max(seen.seconds, seconds),
        links=(*seen.links, link),
    )


def _in_loop(dump: stacks.StackDump) -> _Blocked | None:
    """The innermost user frame of the event loop's thread."""
    for thread in dump.threads:
        if not thread.name.startswith(stacks.EVENT_LOOP) or not thread.frames:
            continue
        user = thread.user
        if user is None or _SELECTS.match(thread.frames[0].function):
            continue
        kind, does = thread.doing
        call = f"{does} in {user.place}"
        link = Link(dump.event, f"the event loop's thread {call}")
        name, is_get = dump.name.partition(".")[0], kind == "ray-get"
        return _Blocked(dump.pid, name, call, (link,), is_get, is_current=True)
    return None


def _name(case: Case, event: Event) -> str:
    worker = evidence.worker_of(event)
    names = case.names.get(worker, ())
    return names[-1] if names else event["who"].partition("(")[0]


def _finding(case: Case, blocked: _Blocked, worker: calls.Worker | None) -> Finding:
    hangs = _hangs(case, blocked, worker)
    served = worker.serving if worker else 0
    behind = f", and {evidence.many(served, 'call')} did not return" if hangs and served else ""
    took = f" for {blocked.seconds:.1f} s" if blocked.seconds else ""
    past = bool(blocked.seconds) and not hangs
    name = worker.name if worker and worker.names else blocked.name
    subject = f"Actor {name}" if name else "An async actor"
    links = list(blocked.links)
    if worker and hangs:
        shows = f"{worker.label} has {evidence.many(served, 'unfinished call')} and waits for {evidence.many(worker.calling, 'call')} that it made"
        links.append(Link(worker.event, f"{shows}, unchanged for {worker.unmoved:.0f} s"))
    return Finding(
        f"{subject} (pid {blocked.pid}) {blocked.call}{took} and block{'ed' if past else 's'} its event loop: its other "
        f"coroutines {'could' if past else 'can'}not run{behind}",
        tuple(links),
        explains=(
            Entity("event-loop", f"{blocked.pid}"),
            *((Entity("waiting", "cluster"),) if hangs else ()),
        ),
        subjects=(worker.subject if worker else Subject("actor", None, name or None, blocked.pid),),
        severity="error" if hangs else "warning",
        remedies=_remedies(name or "Actor", blocked),
    )  # fmt: skip


def _hangs(case: Case, blocked: _Blocked, worker: calls.Worker | None) -> bool:
    """Whether a driver's timeout belongs to this: the call blocks now, or no other record explains the wait."""
    if not waiting.gave_up(case):
        return False
    if worker is not None and worker.is_async and (worker.calling or worker.leases):
        return True
    if blocked.is_get and not case.of("worker.calls") and _is_awaited(case, blocked):
        return True
    return blocked.is_current or (bool(blocked.seconds) and not case.of("worker.calls"))


def _is_awaited(case: Case, blocked: _Blocked) -> bool:
    """Whether the driver's timeout is of a method, and no other actor than this one is known.

    A run of less than a minute leaves no record of which calls an actor served.
    """
    pids = case.ledger.pids
    placed = {w for actor in case.ledger.actors.values() for w in actor.workers}
    known = {pids.get(w) for w in placed} | {e.pid for e in case.of("async.blocking_get")}
    is_method = any(_METHOD.search(e["code"]) for e in case.of("get.call"))
    return is_method and known == {blocked.pid}


def _remedies(name: str, blocked: _Blocked) -> tuple[Remedy, ...]:
    return (
        Remedy(
            f"Await in the coroutines of {name} instead of blocking",
            (
                "answer = await self.other.method.remote(...)        # not ray.get(...)",
                "answers = await asyncio.gather(*refs)               # for several calls",
            )
            if blocked.is_get
            else (
                "await asyncio.sleep(1)                              # not time.sleep(1)",
                "await asyncio.to_thread(f, ...)                     # for blocking code: files, requests, computation",
            ),
            doc=_DOC,
        ),
        Remedy(
            "Turn on asyncio's debug mode: it logs each callback that blocked for more than 0.1 s, when the callback returns",
            (
                paste.python(
                    '{actor:name}.options(runtime_env={{"env_vars": {{"PYTHONASYNCIODEBUG": "1"}}}}).remote(...)',
                    actor=name,
                ),
            ),
        ),
        Remedy(
            f"Or make {name} a threaded actor: change each `async def` method to `def`, then create it with 8 threads",
            (
                paste.python(
                    "{actor:name}.options(max_concurrency=8).remote(...)         # only without async def methods",
                    actor=name,
                ),
            ),
            doc=_DOC,
        ),
    )


# ------------------------------------------------------------------ examples


_ERROR = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
_TIMED_OUT = (
    'Traceback (most recent call last):\n  File "/app/crawl.py", line 40, in <module>\n'
    f"    ray.get(crawler.ping.remote(), timeout=20)\n{_ERROR}"
)
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
        **QUIET_LOGS,
        "driver.log": _ERROR,
        f"logs/worker-{_W}-01000000-398.err": f":job_id:01000000\n:actor_name:Crawler\n{err}",
        f"logs/worker-{_W}-01000000-398.out": ":job_id:01000000\n:actor_name:Crawler\n",
        f"logs/python-core-worker-{_W}_398.log": core,
    }


_STACK = (
    "Process 398: ray::Crawler.crawl\nPython v3.11.7 (/home/user/venv/bin/python3.11)\n\n"
    'Thread 398 (idle): "MainThread"\n    main_loop (ray/_private/worker.py:947)\n'
    'Thread 490 (idle): "AsyncIO Thread: default"\n    crawl() (crawl.py:31)\n    async_func (ray/_private/async_compat.py:40)\n'
    "    _run (asyncio/events.py:84)\n    _run_once (asyncio/base_events.py:1922)\n"
)


_CRAWLER = sample.actor(1, "Crawler", {})
_CRAWL = sample.call(1, "Crawler.crawl", _CRAWLER, **sampled.since(300))
_FETCHES = [
    sample.call(n, "Crawler.fetch", _CRAWLER, worker_pid=801, **sampled.since(200)) for n in (2, 3)
]


def _live(*frames: tuple[str, str, int], count: int = 3) -> dict[str, str]:
    """An actor with three coroutines, one of which is at these frames."""
    samples = sampled.blocking(_CRAWL, *frames, count=count)
    return sample.tables(
        nodes=[sample.node({"CPU": 2})], tasks=[_CRAWL, *_FETCHES], actors=[_CRAWLER], samples=samples, clues=[sampled.clues(_CRAWL)],
    )  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a blocking ray.get for calls of the same actor",
        _files(f"{BLOCKING_GET.sample}\n", _core(11, 10)),
        consequences=("get-timeout",),
        says=("Crawler (pid 398)", "ray.get", "await self.other", "11 calls"),
    ),
    Example(
        "a blocking ray.get in a short run: the method that the driver waits for is of the only actor",
        {**_files(f"{BLOCKING_GET.sample}\n"), "driver.log": _TIMED_OUT},
        consequences=("get-timeout",),
        says=("Crawler (pid 398)",),
        severity="error",
    ),
    Example(
        "a blocking ray.get in an actor, and a timeout of a task",
        {
            **_files(f"{BLOCKING_GET.sample}\n"),
            "driver.log": _TIMED_OUT.replace("crawler.ping.remote", "parse.remote"),
        },
        roots=("async-actor-blocked", "get-timeout"),
        severity="warning",
    ),
    Example(
        "asyncio's debug mode logs a step of half a minute",
        _files(f"{SLOW_STEP.sample}\n"),
        consequences=("get-timeout",),
        says=("30.0 s",),
    ),
    Example(
        "a call stack shows the blocking call in the event loop's thread",
        {**_files(core=_core(3, 0)), "ray-stack.txt": _STACK},
        consequences=("get-timeout",),
        says=("crawl() (crawl.py:31)",),
    ),
    Example(
        "live: a request without await",
        _live(("SocketIO.readinto", "socket.py", 706), ("crawl", "crawl.py", 31)),
        says=(
            "Crawler (pid 801)",
            "crawl() (crawl.py:31)",
            "2 Crawler.fetch() tasks wait for it",
            "asyncio.to_thread",
        ),
    ),
    Example(
        "live: the event loop is idle while its coroutines await",
        _live(("EpollSelector.select", "selectors.py", 468)),
    ),
    Example(
        "an idle event loop",
        {
            **_files(core=_core(3, 0)),
            "ray-stack.txt": _STACK.replace(
                "    crawl() (crawl.py:31)\n    async_func (ray/_private/async_compat.py:40)\n",
                "    EpollSelector.select (selectors.py:468)\n",
            ),
        },
        roots=("get-timeout",),
    ),
    Example(
        "Ray printed the warning, and the program went on",
        {**_files(f"{BLOCKING_GET.sample}\n"), "driver.log": "crawled 10\n"},
        says=("blocks its event loop",),
        severity="warning",
    ),
    Example(
        "a program prints the same message",
        {
            **_files(),
            "driver.log": "(train pid=7) docs: using blocking ray.get inside async actor is bad\n",
        },
    ),
)
