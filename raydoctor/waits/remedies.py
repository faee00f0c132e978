"""Fixes for a hang: look inside the process, end the hang, and change the code so that it does not recur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from raydoctor.model import paste
from raydoctor.model.text import join_names
from raydoctor.model.values import Remedy
from raydoctor.waits.hung import QUEUES, Hung, HungGroup
from raydoctor.waits.kinds.catalog import Kind, WaitCode

_CORE = "https://docs.ray.io/en/latest/ray-core/"
_HANGS = "https://docs.ray.io/en/latest/ray-observability/user-guides/debug-apps/debug-hangs.html"


class _Fix(NamedTuple):
    """A change of the user's code."""

    title: str
    steps: tuple[str, ...] = ()
    doc: str = _HANGS


_OF_KIND: Mapping[Kind, _Fix] = {
    "socket": _Fix(
        "Set a timeout on the connection",
        ("requests.get(url, timeout=30)            # or sock.settimeout(30), or the timeout of your client",),
    ),
    "lock": _Fix(
        "Release the lock on every path, and acquire it only once per thread (or use an RLock). "
        "Never hold it across ray.get",
        (
            "lock = threading.RLock()                  # if the same thread acquires it twice",
            "if not lock.acquire(timeout=60): raise TimeoutError    # shows where it would hang",
        ),
    ),
    "sleep": _Fix(
        "Wait for the event itself, with a timeout, instead of sleeping",
        ("if not ready.wait(timeout=60): raise TimeoutError    # not time.sleep(...)",),
    ),
    "subprocess": _Fix(
        "Set a timeout on the child process, and give it no input to wait for",
        ("subprocess.run(command, timeout=600, stdin=subprocess.DEVNULL)",),
    ),
    "python-loop": _Fix("Make sure that the loop ends, and print its progress"),
    "native-gil": _Fix(
        "Release the interpreter's lock (GIL) in the native code, or run it in a process of its own",
        ("# while native code holds the GIL, only a forced cancel ends the task",),
    ),
    "native": _Fix("Check the library's settings: threads, tolerance, number of iterations"),
    "collective": _Fix(
        "Find the rank with another stack, and make every rank reach the same calls in the same order",
        ("raydoctor stack --all-nodes              # of all ranks",),
    ),
    "disk": _Fix(
        "Check the disk or the file server",
        ("dmesg | tail; nfsstat -c; mount | grep nfs   # a process in state D ends when its disk answers",),
    ),
    "async-blocked": _Fix(
        "Await in the coroutine instead of blocking its event loop",
        (
            "answer = await other.method.remote(...)  # not ray.get(...)",
            "await asyncio.sleep(1)                   # not time.sleep(1)",
            "await asyncio.to_thread(f, ...)          # what cannot be awaited",
        ),
        f"{_CORE}actors/async_api.html",
    ),
}  # fmt: skip

_AWAIT = _Fix(
    "Set a timeout on what is awaited", ("await asyncio.wait_for(call(...), timeout=60)",)
)
_ASYNC = f"{_CORE}actors/async_api.html"
_IN_LOOP: Mapping[WaitCode, _Fix] = {
    **dict.fromkeys(
        ("sleep", "polling"),
        _Fix(
            "Await asyncio.sleep in the coroutine: time.sleep blocks all calls of its actor",
            ("await asyncio.sleep(0.5)                 # not time.sleep(0.5)",),
            _ASYNC,
        ),
    ),
    "ray-get": _Fix(
        "Await in the coroutine: ray.get blocks all calls of its actor",
        ("answer = await other.method.remote(...)  # not ray.get(...)",),
        _ASYNC,
    ),
}
"""For a coroutine that blocks its event loop, by what it waits in."""

_OF_CODE: Mapping[WaitCode, _Fix] = {
    "coroutines": _AWAIT,
    "asyncio-socket": _AWAIT,
    "asyncio-event": _AWAIT,
    "asyncio-sleep": _AWAIT,
    "future": _Fix(
        "Set a timeout on the wait, and check the thread that has to set the result",
        ("future.result(timeout=60)",),
    ),
    "thread-end": _Fix(
        "Set a timeout on the wait, and check the thread that has to end",
        ("thread.join(timeout=60)",),
    ),
    "pool-end": _Fix(
        "Check the pool's threads: shutdown() returns when the last of them has ended",
        ("pool.shutdown(wait=False, cancel_futures=True)",),
    ),
    "event": _Fix(
        "Set the event on every path, also after errors, and wait with a timeout",
        ("if not event.wait(timeout=60): raise TimeoutError",),
    ),
    "condition": _Fix(
        "Notify the condition on every path, also after errors, and wait with a timeout",
        ("if not condition.wait(timeout=60): raise TimeoutError",),
    ),
    "queue-item": _Fix(
        "End the queue with a sentinel item, and wait with a timeout",
        ("item = queue.get(timeout=60)",),
    ),
    "queue-room": _Fix(
        "Consume the queue until its producers have ended, and wait with a timeout",
        ("queue.put(item, timeout=60)",),
    ),
    "queue-done": _Fix(
        "Call task_done() for each item taken from the queue, also after errors",
        ("try: ...  finally: queue.task_done()",),
    ),
    "process-data": _Fix(
        "Make the other process send what is read, also after errors, and wait with a timeout",
        ("item = queue.get(timeout=60)             # or: if connection.poll(60): ...",),
    ),
    "barrier": _Fix(
        "Make as many threads reach the barrier as it was created for, also after errors",
        ("barrier.wait(timeout=60)",),
    ),
    "semaphore": _Fix("Release the semaphore on every path", ("with semaphore: ...",)),
    "process-semaphore": _Fix("Release the semaphore on every path", ("with semaphore: ...",)),
    "file-lock": _Fix(
        "End the process that holds the file lock, and acquire it with a timeout",
        ("FileLock(path, timeout=60)",),
    ),
}
"""For waits that the fix of their kind does not fit."""


def remedies(group: HungGroup) -> Iterator[Remedy]:
    """For the culprit of a group; those of its cycle first."""
    if group.cycle:
        yield from _break_cycle(group)
    else:
        yield from _change(group.first)
    yield from at_once(group)


def at_once(group: HungGroup) -> Iterator[Remedy]:
    """What helps while it hangs: look inside, end it; nothing where its process is gone."""
    if group.first.kind != "process-ended":
        yield from _attach(group)
        yield from _end(group)


def _break_cycle(group: HungGroup) -> Iterator[Remedy]:
    names = list(dict.fromkeys(h.work.class_name or h.work.called for h in group.cycle))
    if any(h.kind == "resources" for h in group.cycle):
        if held := _held_by_actor(group):
            yield from for_waiting_actors(*held)
            return
        yield Remedy(
            "Return the children's references instead of waiting for them in the parent task",
            ("return [child.remote(part) for part in parts]    # in the parent; the caller waits for both",),
            doc=f"{_CORE}patterns/nested-tasks.html",
        )  # fmt: skip
        return
    members = names[0] if len(names) == 1 else f"{names[0]} and {names[1]}"
    places = join_names(h.place.place for h in group.cycle if h.place)
    where = f" at {places}" if places else ""
    yield Remedy(
        f"Break the cycle of {members}{where}: pass the value as an argument, or await instead of ray.get",
        (
            "result = actor.METHOD.remote(other.METHOD.remote(...))   # Ray waits for the argument first",
            "answer = await self.other.METHOD.remote(...)             # in an async def method",
        ),
        doc=f"{_CORE}actors/async_api.html",
    )  # fmt: skip


def _held_by_actor(group: HungGroup) -> tuple[str, str] | None:
    """The class of an actor of the cycle, and what it holds that another member waits for."""
    if not any(h.kind == "resources" for h in group.cycle):
        return None
    holders = [h.work.class_name for h in group.cycle if h.work.runs and h.work.class_name]
    asked = (name for h in group.cycle if h.waiting for name in h.waiting.short)
    return (holders[0], next(asked, "CPU")) if holders else None


def for_waiting_actors(name: str, resource: str) -> Iterator[Remedy]:
    """For actors that wait for their children, while they hold what these need.

    An actor keeps its resources until it ends, so it does not help if its method returns references.
    """
    without = (
        "{actor:name}.options(num_cpus=0).remote(...)      # where it is created"
        if resource == "CPU"
        else "{actor:name}.options(...).remote(...)             # without {resource}"
    )
    yield Remedy(
        f"Request no {resource} for {name}: it waits for its children, and holds its {resource} "
        "until the actor ends",
        (paste.python(without, actor=name, resource=resource),),
        doc=f"{_CORE}scheduling/resources.html",
    )
    many = f"{resource}s" if resource in {"CPU", "GPU"} else resource
    yield Remedy(
        f"Or add nodes, so that the cluster has more {many} than the waiting {name} actors hold together",
        ("ray start --address=HEAD:6379                     # on another node",),
        doc=f"{_CORE}patterns/limit-pending-tasks.html",
    )  # fmt: skip


def _change(first: Hung) -> Iterator[Remedy]:
    fix = _fix(first)
    if fix is not None:
        place = f"In {first.place.place}, " if first.place else ""
        title = f"{place}{fix.title[:1].lower()}{fix.title[1:]}" if place else fix.title
        yield Remedy(title, fix.steps, doc=fix.doc)
    elif first.kind == "stopped" and first.work.pid:
        steps = (paste.shell("kill -CONT {pid:pid}", pid=first.work.pid),)
        yield Remedy("Resume the process", steps, risk="disruptive")
    elif first.kind == "process-ended":
        yield from _end_forks(first)
    elif first.kind in ("resources", "placement-group"):
        if first.waiting is None or not first.waiting.never_fits:
            yield Remedy(
                "Free resources that the task waits for, or add some to the cluster",
                ("raydoctor                                # what holds them",),
            )
        else:
            yield Remedy(
                "Request what fits, or add nodes: an empty cluster has no room for it",
                ("raydoctor                                # what fits",),
            )


def _end_forks(first: Hung) -> Iterator[Remedy]:
    """End what keeps the connections of the ended process open: then Ray fails or retries its tasks."""
    gone = first.waiting.ended if first.waiting else None
    if pids := gone.pids if gone else []:
        which = join_names(f"pid {pid}" for pid in pids)
        named = ",".join(map(str, pids))
        worker = (gone.event.pid if gone else None) or ""
        is_one = len(pids) == 1
        look = (
            "ps -o pid,ppid,user,lstart,rss,args -p {pids:pids}   # on the node of pid {worker:pid}"
        )
        yield Remedy(
            f"Find out what {which} still {'does' if is_one else 'do'}",
            (paste.shell(look, pids=named, worker=worker),),
        )
        yield Remedy(
            f"If {'it is' if is_one else 'they are'} not needed, end {which}: "
            "Ray then retries or fails the task",
            (paste.shell("kill {pids:pid}   # on the same node", pids=pids),),
            risk="destructive",
        )  # fmt: skip
    yield Remedy(
        "Start helpers as programs, not with os.fork: a fork inherits the connections of its worker",
        (
            "subprocess.Popen(command)                 # not os.fork()",
            'multiprocessing.get_context("spawn")      # not "fork", for Process and Pool',
        ),
    )


def _fix(first: Hung) -> _Fix | None:
    """The change of the code: that of its own wait, else that of its kind."""
    verdict = first.verdict
    if verdict is None and first.waiting is None and first.work.name in QUEUES:
        return _OF_CODE[QUEUES[first.work.name][0]]
    is_own = verdict is not None and (verdict.in_asyncio or verdict.kind == first.kind)
    own = _OF_CODE.get(verdict.code) if verdict is not None and is_own else None
    inner = verdict.activity.inner if verdict is not None else None
    in_loop = _IN_LOOP.get(inner) if inner and first.kind == "async-blocked" else None
    return own or in_loop or _OF_KIND.get(first.kind)


def _attach(group: HungGroup) -> Iterator[Remedy]:
    first = group.first
    name = first.work.actor if first.work.kind == "creation" else first.work.id
    if first.work.kind == "driver":
        name = str(first.work.pid)
    if first.kind == "debugger" and (first.verdict is None or first.verdict.code == "debugger"):
        yield Remedy(
            "Attach a debugger and continue, or remove the breakpoint",
            (
                paste.shell("raydoctor attach {name}", name=name or ""),
                "ray debug                                # instead of it, with RAY_DEBUG=legacy",
            ),
        )
    elif first.work.runs and first.work.pid and first.kind != "debugger":
        yield Remedy(
            f"Look inside {first.work.label} with a debugger",
            (
                paste.shell("raydoctor attach {name}", name=name or ""),
                paste.shell("raydoctor stack {name} --locals", name=name or ""),
            ),
        )


def _end(group: HungGroup) -> Iterator[Remedy]:
    """Cancel the culprit: its callers get an error, or its next attempt."""
    first = group.first
    if first.work.kind == "method" and (held := _held_by_actor(group)):
        # A cancelled method frees nothing: the resource is the actor's.
        yield Remedy(
            f"Or end one {held[0]} actor: this frees its {held[1]}, and loses its state",
            ("ray.kill(ACTOR)   # in a program that holds its handle. Or stop the job",),
            "destructive",
        )
    elif first.work.kind == "method":
        steps = (paste.shell("raydoctor cancel {task}", task=first.work.id),)
        yield Remedy(f"Cancel {first.work.called}; its actor keeps its state", steps, "disruptive")
    elif first.work.kind == "task":
        steps = (paste.shell("raydoctor cancel {task}", task=first.work.id),)
        yield Remedy(f"Cancel {first.work.called}", steps, "disruptive", f"{_CORE}tasks.html")
