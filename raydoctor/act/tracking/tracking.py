"""`raydoctor.tracked` and `raydoctor.tracking()`: ends the processes of a task that fails.

    @ray.remote
    @raydoctor.tracked
    def mesh(path):
        subprocess.run(["mesher", path])

    @ray.remote
    def mesh(path):
        with raydoctor.tracking(grace=2):      # in a coroutine: async with
            subprocess.run(["mesher", path])

Every process that the task starts is recorded, in any session and at any depth (`spawns.py`, `family.py`). If
the task returns, its processes are left alone. If it raises or is cancelled, they are ended: SIGTERM, `grace`
seconds, SIGKILL. If its worker vanishes (SIGKILL, `ray job stop`, the end of the driver, a forced cancel), a
watcher on the same node ends them (`programs/reaper.py`). Tasks that share a worker (threaded and async
actors) never affect each other's processes.

Both do nothing outside a Ray worker, and on systems other than Linux. Ray 2.9.3 to 2.60.0.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from raydoctor.act.tracking import family, registry, spawns
from raydoctor.act.tracking.registry import StartedProcess, Task
from raydoctor.act.tracking.watcher import WorkerWatcher
from raydoctor.observe.processes import proc

if TYPE_CHECKING:
    from raydoctor.act.signals.process import Identity
    from raydoctor.observe.processes.proc import Process

_F = TypeVar("_F", bound=Callable[..., Any])
GRACE = 5.0
_FILE_LIMIT = 64_000
"""Approximate bytes of a worker's registry file before ended processes are dropped from it."""
_log = logging.getLogger("raydoctor")


def tracking(grace: float = GRACE) -> Tracking:
    """A context manager (`with` or `async with`): every process started in it belongs to the task.

    `grace` is the time in seconds between SIGTERM and SIGKILL.
    """
    return Tracking(grace)


@overload
def tracked(function: _F, /) -> _F: ...
@overload
def tracked(*, grace: float = GRACE) -> Callable[[_F], _F]: ...
def tracked(
    function: Callable[..., Any] | None = None, /, *, grace: float = GRACE
) -> Callable[..., Any]:
    """Run a task or an actor's method in `tracking`: `@tracked`, or `@tracked(grace=2)`.

    Place it below `@ray.remote`. Accepts functions, coroutine functions and generators of both kinds.
    """
    if function is None:
        return functools.partial(_wrapped, grace=grace)
    return _wrapped(function, grace)


def _wrapped(function: Callable[..., Any], grace: float) -> Callable[..., Any]:
    if isinstance(function, type) or not callable(function):
        raise TypeError("raydoctor.tracked goes on a function or a method, not on a class")
    if hasattr(function, "remote"):
        raise TypeError("raydoctor.tracked goes below ray.remote: @ray.remote, then @tracked")

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with Tracking(grace):
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        async with Tracking(grace):
            return await function(*args, **kwargs)

    @functools.wraps(function)
    def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with Tracking(grace):
            yield from function(*args, **kwargs)

    @functools.wraps(function)
    async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with Tracking(grace):
            async for item in function(*args, **kwargs):
                yield item

    if inspect.isasyncgenfunction(function):
        return stream
    if inspect.iscoroutinefunction(function):
        return coroutine
    return generator if inspect.isgeneratorfunction(function) else plain


class Tracking:
    """The context manager that `tracking()` returns; for one use."""

    __slots__ = ("_before", "_grace", "_scope")

    def __init__(self, grace: float = GRACE) -> None:
        self._grace = grace
        self._scope: _Scope | None = None
        self._before: spawns.Listener | None = None

    def __enter__(self) -> None:
        task = _task_id()
        if task:
            self._before = spawns.current.get()
            self._scope = _begin(task, self._grace, self._before)
            spawns.current.set(self._scope)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        scope = self._left()
        if scope is not None:
            scope.finish(is_well=kind is None)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        scope = self._left()
        if scope is None:
            return
        if kind is None or not scope.has_started:
            scope.finish(is_well=kind is None)
        else:
            await _in_thread(lambda: scope.finish(is_well=False))

    def _left(self) -> _Scope | None:
        """The scope, if there is one and this process runs it; a forked child does not end it."""
        scope = self._scope
        if scope is None or not scope.is_here:
            return None
        spawns.current.set(self._before)
        return scope


async def _in_thread(work: Callable[[], None]) -> None:
    """Run it in a thread, and to its end: a second cancel waits until it is done."""
    import asyncio

    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def run() -> None:
        try:
            work()
        finally:
            loop.call_soon_threadsafe(done.set_result, None)

    threading.Thread(target=run, name="raydoctor-end", daemon=True).start()
    cancelled: BaseException | None = None
    while not done.done():
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


# ------------------------------------------------------------------ the current task


def _task_id() -> str:
    """The id of the Ray task that runs here; empty outside a Ray worker. Imports nothing."""
    ray = sys.modules.get("ray")
    if ray is None or not proc.LINUX or not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    if getattr(getattr(context, "worker", None), "mode", None) != ray.WORKER_MODE:
        return ""  # a driver, or a client's
    if _is_forked_child():
        return ""
    return str(context.get_task_id() or "unknown")


def _is_forked_child() -> bool:
    """Whether this process is a fork of a worker: Ray's state in it is still the worker's."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return True
    return _Here.worker is not None and _Here.worker.identity.pid != os.getpid()


def _is_actor() -> bool:
    ray = sys.modules["ray"]
    return bool(ray.get_runtime_context().get_actor_id())


class _Here:
    """The worker of this process, created with the first tracked task."""

    worker: _Worker | None = None
    lock = threading.Lock()


def _begin(task: str, grace: float, outer: spawns.Listener | None) -> _Scope:
    with _Here.lock:
        if _Here.worker is None:
            own = family.started_process(os.getpid())
            assert own is not None, "this process is there"
            _Here.worker = _Worker(own)
            spawns.install(_only)
    worker = _Here.worker
    worker.is_actor = _is_actor()  # a worker that ran tasks may become an actor's
    scope = _Scope(worker, task, grace, outer if isinstance(outer, _Scope) else None)
    worker.scopes[scope.number] = scope
    return scope


def _only() -> _Scope | None:
    """The task of a worker that runs one task at a time, for threads that inherited none.

    A thread that is older than the task may belong to an earlier task.
    """
    worker = _Here.worker
    if worker is None or worker.is_actor or not worker.scopes:
        return None
    first = next(iter(list(worker.scopes.values())), None)
    return None if first is None or threading.get_ident() in first.threads else first


# ------------------------------------------------------------------ the worker and its tasks


@dataclass(slots=True)
class _Worker:
    """This worker process and its running tracked tasks."""

    identity: StartedProcess
    is_actor: bool = False
    scopes: dict[int, _Scope] = field(default_factory=dict)
    path: str = ""
    problem: str = ""
    """Why there is no registry file; the tasks are then tracked in memory and by marks only."""
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    written: int = 0
    watcher: WorkerWatcher | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    def write(self, scope: _Scope, lines: list[str]) -> None:
        """Append facts about a task to the registry, and wake the watcher. Never raises."""
        try:
            with self.lock:
                if not scope.has_started:
                    scope.has_started = True
                    lines = [registry.begin_line(scope.record), *lines]
                self._write(lines)
        except OSError as error:
            if not self.problem:
                _log.warning("processes of tracked tasks would outlive a killed worker: %s", error)
            self.problem = str(error)

    def _write(self, lines: list[str]) -> None:
        if not self.path:
            self.path = registry.path_of(self.identity)
            self._rewrite()
        self.written += sum(map(len, lines))
        try:
            if self.written > _FILE_LIMIT:
                self._rewrite()
            else:
                registry.append(self.path, lines)
        except FileNotFoundError:  # the file or its folder was removed
            self.path = registry.path_of(self.identity)
            self._rewrite()
        if self.watcher is None:
            self.watcher = WorkerWatcher(self.path, self.identity)
        self.watcher.wake()

    def _rewrite(self) -> None:
        """Replace the file: running tasks only, without ended processes."""
        kept = [scope.record for scope in list(self.scopes.values()) if scope.has_started]
        known = registry.read(self.path)
        for record in kept:
            if record.number in known:  # the watcher and forked children append to the file
                record.processes.update(known[record.number].processes)
            for key, process in list(record.processes.items()):
                if not process.leads and not family.lives(process):
                    del record.processes[key]
        lines = list(registry.lines_of(kept))
        registry.replace(self.path, lines)
        self.written = min(sum(map(len, lines)), _FILE_LIMIT // 2)


class _Scope:
    """One tracked task, or a part of one (`spawns.Listener`)."""

    __slots__ = (
        "_marks",
        "_outer",
        "_worker",
        "begun",
        "has_started",
        "is_open",
        "mark",
        "record",
        "threads",
    )

    def __init__(self, worker: _Worker, task: str, grace: float, outer: _Scope | None) -> None:
        self._worker, self._outer = worker, outer
        self.record = Task(next(worker.numbers), task, grace, {})
        self.mark = self.record.mark(worker.identity)
        self._marks = {self.mark}
        self.has_started = False
        """Whether it has started any process, and the registry has a record of it."""
        self.is_open = True
        self.begun = family.now()
        self.threads = frozenset(t.ident for t in threading.enumerate()) - {threading.get_ident()}

    @property
    def number(self) -> int:
        """Unique within the worker."""
        return self.record.number

    @property
    def is_here(self) -> bool:
        """Whether this process is the worker, not a fork of it."""
        return self._worker.identity.pid == os.getpid()

    def announce(self) -> None:
        """Record this task in the registry, and start the watcher."""
        if self.is_here and not self.has_started:
            self._worker.write(self, [])

    def started(self, pid: int) -> None:
        """Record a child of this process."""
        process = family.started_process(pid)
        if process is None:
            return
        if not self.is_here:
            self._append(process)
            return
        if self.record.add(process):
            self._worker.write(self, [registry.saw_line(self.number, process)])

    def forked(self) -> None:
        """Record this process, a fork of the worker or of one of the task's processes."""
        process = family.started_process(os.getpid())
        if process is not None:
            self._append(process)

    def _append(self, process: StartedProcess) -> None:
        """Append to the file from a forked child. Takes no lock: a thread of the parent may hold it."""
        with suppress(OSError):
            if self._worker.path:
                registry.append(self._worker.path, [registry.saw_line(self.number, process)])

    def finish(self, is_well: bool) -> None:
        """End the scope; if the task failed, end its processes first."""
        try:
            if not is_well and self._may_have_started():
                self._end_all()
        finally:
            self.is_open = False
            self._worker.scopes.pop(self.number, None)
            if self.has_started:
                self._hand_on()
                self._worker.write(self, [registry.end_line(self.number)])

    def _may_have_started(self) -> bool:
        """Whether there may be processes to end; native code starts some without a hook."""
        if self.has_started or self._worker.is_actor:
            return self.has_started
        return family.children(os.getpid()) != []

    def _hand_on(self) -> None:
        """Pass remaining processes of a part of a task to the enclosing scope."""
        outer = self._outer
        if outer is None or not outer.is_open:
            return
        outer._marks |= self._marks
        for process in self._known():
            outer.record.add(process)
        self._worker.write(outer, list(registry.lines_of([outer.record])))

    def _known(self) -> list[StartedProcess]:
        """Its processes: from the file, where the watcher and forked children append, and from memory."""
        recorded = registry.read(self._worker.path).get(self.number) if self._worker.path else None
        task = recorded or Task(self.number, "", 0.0, {})
        for process in list(self.record.processes.values()):
            # Only the file records whether a leader's session is empty by now.
            task.add(process._replace(leads=""))
        return list(task.processes.values())

    def _end_all(self) -> None:
        """End all its processes. A second interrupt only ends the grace period."""
        from raydoctor.act.audit import Audit
        from raydoctor.act.signals import process

        def left() -> list[Identity]:
            found = family.members(self._known(), self._marks, self._sure, self.begun)
            return [process.Identity(m.pid, m.started_at) for m in found]

        audit = Audit(f"tracked {self.record.task}")
        grace = self.record.grace
        while True:
            try:
                outcomes = process.end(left(), grace, more=left, all_users=True, audit=audit)
                break
            except KeyboardInterrupt:
                grace = 0.0
        for each in outcomes:
            if each.outcome != "gone":
                pid, why = each.identity.pid, each.reason
                _log.warning(
                    "a process that a task started could not be ended: pid %s (%s)", pid, why
                )

    def _sure(self, table: Mapping[int, Process]) -> list[int]:
        """Children that a worker with one task at a time started since, for example in native code."""
        if self._worker.is_actor or self._outer is not None:
            return []
        return [
            p.pid
            for p in table.values()
            if p.ppid == os.getpid() and p.started_at >= self.begun and not _is_helper(p.pid)
        ]


def _is_helper(pid: int) -> bool:
    """Whether it is a helper of multiprocessing for the whole worker."""
    command = " ".join(proc.command(pid))
    return "multiprocessing.forkserver" in command or "multiprocessing.resource_tracker" in command
