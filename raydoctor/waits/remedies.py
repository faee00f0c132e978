"""What helps against a hang: look inside, end it, and change the code so that it does not come again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from raydoctor.cluster.samples import Kind
from raydoctor.model import paste
from raydoctor.model.values import Remedy
from raydoctor.waits.hung import Group, Hung
from raydoctor.waits.kinds import calls

_CORE = "https://docs.ray.io/en/latest/ray-core/"
_HANGS = "https://docs.ray.io/en/latest/ray-observability/user-guides/debug-apps/debug-hangs.html"

_CODE: Mapping[Kind, tuple[str, tuple[str, ...], str]] = {
    "socket": (
        "Give the connection a timeout, so that it fails instead of waiting for ever",
        ("requests.get(url, timeout=30)            # or socket.settimeout(30), the client's own timeout=",),
        "",
    ),
    "lock": (
        "Release every lock where it was taken, take none twice, hold none across ray.get",
        ("with lock: ...                           # or lock.acquire(timeout=60), queue.get(timeout=60)",),
        "",
    ),
    "sleep": (
        "Wait for the thing itself, with a limit, rather than for a time",
        ("if not ready.wait(timeout=60): raise TimeoutError(...)    # not time.sleep(...)",),
        "",
    ),
    "subprocess": (
        "Give the child process a limit and no input to wait for",
        ("subprocess.run(command, timeout=600, stdin=subprocess.DEVNULL)",),
        "",
    ),
    "python-loop": ("Give the loop an end, and print its progress", (), ""),
    "native-gil": (
        "Let the native code give up the interpreter's lock, or run it in a process of its own",
        ("while it holds the lock no signal, debugger or cancel gets in: only force ends it",),
        "",
    ),
    "native": ("Look at the library's own settings: threads, tolerance, number of iterations", (), ""),
    "collective": (
        "Let every rank reach the same calls in the same order; the one that stands elsewhere is the culprit",
        ("raydoctor stack --all-nodes              # of all ranks",),
        "",
    ),
    "disk": (
        "See what the disk or the file server is doing",
        ("dmesg | tail; nfsstat -c; mount | grep nfs   # a process in state D ends when its disk answers",),
        "",
    ),
    "async-blocked": (
        "Await in the coroutine instead of blocking its event loop",
        (
            "answer = await other.method.remote(...)  # not ray.get(...)",
            "await asyncio.sleep(1)                   # not time.sleep(1)",
            "await asyncio.to_thread(f, ...)          # what cannot be awaited",
        ),
        f"{_CORE}actors/async_api.html",
    ),
}  # fmt: skip

_LOCKS: Mapping[str, tuple[str, str]] = {
    calls.FUTURE: (
        "Give the wait a limit, and see what the thread does that has to answer",
        "future.result(timeout=60)",
    ),
    calls.THREAD_END: (
        "Give the wait a limit, and see what the thread does that has to end",
        "thread.join(timeout=60)",
    ),
    calls.POOL_END: (
        "See what the pool's threads do: it ends when the last of them does",
        "pool.shutdown(wait=False, cancel_futures=True)",
    ),
    calls.EVENT: (
        "Set the event on every way out, errors too, and wait with a limit",
        "if not event.wait(timeout=60): raise TimeoutError(...)",
    ),
    calls.CONDITION: (
        "Notify the condition on every way out, errors too, and wait with a limit",
        "if not condition.wait(timeout=60): raise TimeoutError(...)",
    ),
    calls.ITEM: (
        "Let whoever puts items end with a last one, and wait with a limit",
        "item = queue.get(timeout=60)",
    ),
    calls.ROOM: (
        "Let somebody take the items for as long as there are any, and wait with a limit",
        "queue.put(item, timeout=60)",
    ),
    calls.ITEMS_DONE: (
        "Call task_done() for each item that was taken, after errors too",
        "try: ...  finally: queue.task_done()",
    ),
    calls.BARRIER: (
        "Let as many come to the barrier as it was made for, after errors too",
        "barrier.wait(timeout=60)",
    ),
    calls.SEMAPHORE: ("Release the semaphore on every way out", "with semaphore: ..."),
    calls.FILE_LOCK.removesuffix("a file"): (
        "End whoever holds the file's lock, and wait for it with a limit",
        "FileLock(path, timeout=60)",
    ),
}
"""Of the kind `lock`, by what it waits for: what to do about locks would mislead."""
_COROUTINES = ("Give what is awaited a limit", "await asyncio.wait_for(call(...), timeout=60)")


def remedies(group: Group) -> Iterator[Remedy]:
    """For the culprit of a group; those of its circle first."""
    if group.circle:
        yield from _untied(group)
    else:
        yield from _changed(group.first)
    yield from at_once(group)


def at_once(group: Group) -> Iterator[Remedy]:
    """What can be done while it hangs: look inside, end it."""
    yield from _attached(group)
    yield from _ended(group)


def _untied(group: Group) -> Iterator[Remedy]:
    names = list(dict.fromkeys(h.work.class_name or h.work.name for h in group.circle))
    if any(h.kind == "resources" for h in group.circle):
        yield Remedy(
            "Let the waiting task hand the references on instead of waiting for its own children",
            ("return [child.remote(part) for part in parts]    # in the parent; the caller waits for both",),
            doc=f"{_CORE}patterns/nested-tasks.html",
        )  # fmt: skip
        return
    whose = names[0] if len(names) == 1 else f"{names[0]} and {names[1]}"
    yield Remedy(
        f"Break the circle of {whose}: pass what the other needs as an argument, or await instead of ray.get",
        (
            "result = actor.method.remote(other.look_up.remote(...))   # Ray waits for the argument first",
            "answer = await self.other.look_up.remote(...)             # in an async def method",
        ),
        doc=f"{_CORE}actors/async_api.html",
    )  # fmt: skip


def _changed(first: Hung) -> Iterator[Remedy]:
    told = _told(first)
    if told:
        title, steps, doc = told
        where = f" ({first.place.place})" if first.place else ""
        yield Remedy(f"{title}{where}", steps, doc=doc or _HANGS)
    elif first.kind == "stopped" and first.work.pid:
        steps = (paste.shell("kill -CONT {pid:pid}", pid=first.work.pid),)
        yield Remedy("Let it go on", steps, risk="disruptive")
    elif first.kind in ("resources", "placement-group"):
        yield Remedy(
            "Free what it waits for, or give the cluster more",
            ("raydoctor diagnose                       # who holds what, and what would fit",),
        )


def _told(first: Hung) -> tuple[str, tuple[str, ...], str] | None:
    """What to change in the code, and a page about it."""
    if first.verdict is not None and first.verdict.in_asyncio:
        title, step = _COROUTINES
        return title, (step,), ""
    words = first.verdict.words if first.verdict is not None and first.kind == "lock" else ""
    for waits, (title, step) in _LOCKS.items():
        if words.startswith(waits):
            return title, (step,), ""
    return _CODE.get(first.kind)


def _attached(group: Group) -> Iterator[Remedy]:
    first = group.first
    name = first.work.actor if first.work.kind == "creation" else first.work.id
    if first.work.runs and first.work.pid and first.kind != "debugger":
        yield Remedy(
            f"Look inside {first.work.label} with a debugger",
            (
                paste.shell("raydoctor attach {name}", name=name or ""),
                paste.shell("raydoctor stack {name} --locals", name=name or ""),
            ),
        )


def _ended(group: Group) -> Iterator[Remedy]:
    """To get on now: whoever waits for it gets an error, or its next attempt."""
    first = group.first
    if first.work.kind == "method":
        steps = (paste.shell("raydoctor cancel {task}", task=first.work.id),)
        yield Remedy(f"End {first.work.name} now; its actor keeps its state", steps, "disruptive")
    elif first.work.kind == "task":
        steps = (paste.shell("raydoctor cancel {task}", task=first.work.id),)
        yield Remedy(f"End {first.work.name} now", steps, "disruptive", f"{_CORE}tasks.html")
