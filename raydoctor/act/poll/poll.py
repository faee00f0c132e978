"""Waiting for any number of Ray's tasks: results as they come, and no task that runs for ever.

    import raydoctor

    for result in raydoctor.poll([mesh.remote(path) for path in paths], timeout=100):
        if result.ok:
            save(result.index, result.value)
        else:
            print(paths[result.index], result.status, result.error)

`timeout` is each task's own, and counts from when your function starts to *run*: a task that waits for a
free CPU waits as long as it has to, and what a new worker imports for its first task does not count, nor the
loading of arguments (up to 30 s; Ray's `RUNNING` includes both). One that runs longer is ended, and only that
one; `on_timeout` says how:

* `"force"` (the default): Ray's cancel; where that has no effect within `grace` seconds, the end of its
  worker, and of what that had started. Nothing is retried by Ray, and its CPU is free again. Of an actor's
  methods only `cancel` is tried: the actor's state is yours to give up (`ray.kill`).
* `"cancel"`: Ray's cancel alone. It ends Python code, not `time.sleep`, a lock, a socket or native code.
* `"report"`: nothing; the task runs on.

Each task gives exactly one result. One that could not be ended is told as such (`still_running`), and not
waited for any more.

Tasks can be submitted as others end, so that never more than `max_in_flight` are under way, and those that
ran into their limit can be tried again:

    jobs = [(mesh, (path,)) for path in paths]          # or functions: lambda: mesh.remote(path)
    results = raydoctor.poll(jobs, timeout=100, max_in_flight=64, retries=1, progress=True)
    for result in results: ...
    print(results.summary)                              # 93 ok, 7 timeouts, 7 retries in 312.0 s

Ctrl-C while it waits ends what is under way and is raised; the results that are there, and one of status
`cancelled` for each other task, come from going on with the same object, or from `results()`. As a context
manager it ends what is under way whenever the block is left, by an exception in it, too. Let go of without
that (a `break`), it leaves refs that it was given alone, and cancels what it has submitted itself.

    with raydoctor.poll(jobs, timeout=100) as polling:
        for result in polling: ...
"""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, NamedTuple

from raydoctor.act.poll.bar import Bar, bar
from raydoctor.act.poll.limits import LADDERS, Backend, EndingTask, TimeLimits
from raydoctor.act.poll.results import Result, Status, Summary, TaskTimeoutError, kinds
from raydoctor.act.poll.submit import Flight, Queue
from raydoctor.act.workers.running import LOADING, Cluster, Nobody, Source, Wire
from raydoctor.act.workers.worker import RayBackend
from raydoctor.model.errors import RaydoctorError

OnTimeout = Literal["cancel", "force", "report"]
Task = Any
"""A ref; a function that submits one and returns its ref; or (remote function or method, args[, kwargs])."""

_WAIT = 0.25
"""Seconds for which nothing interrupts Ray's wait."""
_LINGER_PER_REF = 30e-6
"""Seconds to wait for further results, for each ref: looking at one costs 2-4 us (2.60.0), so that looking
again and again costs a tenth of the time at most, however many there are."""
_LINGER = 1.0
_FETCH = 30.0
"""Seconds for what Ray said is there; it may be lost right after."""


class Options(NamedTuple):
    """How to poll."""

    timeout: float | None = None
    on_timeout: OnTimeout = "force"
    grace: float = 1.0
    max_in_flight: int | None = None
    retries: int = 0
    on_result: Callable[[Result], object] | None = None
    progress: bool = False


def poll(  # noqa: PLR0913 - each has a default
    tasks: Iterable[Task],
    *,
    timeout: float | None = None,
    on_timeout: OnTimeout = "force",
    grace: float = 1.0,
    max_in_flight: int | None = None,
    retries: int = 0,
    on_result: Callable[[Result], object] | None = None,
    progress: bool = False,
) -> Polling:
    """Wait for tasks: an iterator of a `Result` for each, in the order in which they end.

    `tasks` are refs, functions that submit a task and return its ref, or `(remote function or method, args)`
    with or without a mapping of keyword arguments; of a generator no more is taken than `max_in_flight`
    allows. `timeout` (seconds that a task may run), `on_timeout` and `grace` are told in this module's text.
    `retries` is how often a task is submitted again after its time was up (not for refs, which cannot be).
    `on_result` is called with each result as it arrives, in the thread that waits. `progress` shows a bar,
    on a terminal. Ray has to be connected.
    """
    options = Options(timeout, on_timeout, grace, max_in_flight, retries, on_result, progress)
    return Polling(tasks, _checked(options))


def as_completed(
    tasks: Iterable[Task],
    *,
    timeout: float | None = None,
    on_timeout: OnTimeout = "force",
    max_in_flight: int | None = None,
    progress: bool = False,
) -> Iterator[Any]:
    """The values of tasks in the order in which they end, as Ray's own `ray.util.as_completed`.

    Raises the first error, a `TaskTimeoutError` for a task that ran longer than `timeout`. Of the others,
    refs go on; what this has submitted itself is cancelled. Takes what `poll` takes.
    """
    options = Options(timeout, on_timeout, max_in_flight=max_in_flight, progress=progress)
    polling = Polling(tasks, _checked(options))
    return (result.get() for result in polling)


def _checked(options: Options) -> Options:
    if options.timeout is not None and not options.timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, not {options.timeout}")
    if options.on_timeout not in LADDERS:
        known = ", ".join(map(repr, LADDERS))
        raise ValueError(f"on_timeout must be one of {known}, not {options.on_timeout!r}")
    if options.max_in_flight is not None and options.max_in_flight < 1:
        raise ValueError(f"max_in_flight must be at least 1, not {options.max_in_flight}")
    if not options.grace >= 0 or options.retries < 0:
        raise ValueError("grace and retries must not be negative")
    if options.retries and options.on_timeout == "report":
        raise ValueError("retries need an end: on_timeout='report' lets tasks run on")
    return options


class Polling:
    """Results of tasks as they come; made by `poll`."""

    def __init__(self, tasks: Iterable[Task], options: Options) -> None:
        self._ray = _ray()
        self._options = options
        self._queue = Queue(self._ray, tasks, needs_functions=options.retries > 0)
        self._pending: dict[Any, Flight] = {}
        self._ready: deque[Result] = deque()
        self._kept: list[Result] = []
        self._tally: Counter[str] = Counter()
        self._began = time.monotonic()
        self._seconds = math.nan
        self._is_ending = False
        ladder, connect = LADDERS[options.on_timeout], _connector(self._ray, options.timeout)
        self._guard = TimeLimits(options.timeout, ladder, options.grace, connect)
        self._bar: Bar | None = None
        if options.progress:
            self._bar = bar(len(tasks) if isinstance(tasks, Sized) else None)
        self._finalizer = weakref.finalize(
            self, _abandon, self._ray, self._guard, self._pending, self._bar
        )
        self._finalizer.atexit = False

    # -------------------------------------------------------------- what callers use

    @property
    def summary(self) -> Summary:
        """What has come so far; all, once this is exhausted."""
        tally = self._tally + Counter(kinds(self._ready))
        seconds = time.monotonic() - self._began if math.isnan(self._seconds) else self._seconds
        return Summary(
            tally["ok"], tally["error"], tally["timeout"], tally["cancelled"], tally["retry"],
            tally["still running"], len(self._pending), seconds, self._guard.problem,
        )  # fmt: skip

    def results(self) -> list[Result]:
        """Wait for all; those that were not yet taken, in the order of the tasks.

        What had come before an interrupt is kept: call it again to have it.
        """
        for result in self:
            self._kept.append(result)
        return sorted(self._kept, key=lambda result: result.index)

    def cancel(self) -> None:
        """End what is under way and submit nothing more; what was under way gives results `cancelled`."""
        self._is_ending = True
        self._queue.close()
        self._drop_settled()
        if self._pending:
            self._guard.end_all(LADDERS[self._options.on_timeout] or ("cancel",))
        try:
            while self._pending:
                self._advance()
        except BaseException:  # a second Ctrl-C: no more patience
            self._drop_settled()
            self._give_up(list(self._pending))
            raise
        finally:
            self._finish()

    def __iter__(self) -> Polling:
        return self

    def __next__(self) -> Result:
        try:
            while not self._ready and not self._is_over():
                self._advance()
        except KeyboardInterrupt:
            self.cancel()
            raise
        if not self._ready:
            self._finish()
            raise StopIteration
        result = self._ready.popleft()
        self._tally.update(kinds([result]))
        return result

    def __enter__(self) -> Polling:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    # -------------------------------------------------------------- one round

    def _is_over(self) -> bool:
        return not self._pending and self._queue.is_empty

    def _finish(self) -> None:
        if math.isnan(self._seconds):
            self._seconds = time.monotonic() - self._began
            self._finalizer()

    def _advance(self) -> None:
        """Submit what may be, wait for what comes, and note it."""
        self._submit()
        if self._pending:
            self._collect(self._wait())
        given_up = self._guard.given_up()
        if given_up:
            by_task = {each.task: each for each in given_up}
            self._give_up([r for r, f in self._pending.items() if f.task in by_task], by_task)
        if self._bar is not None:
            self._bar.show(self.summary.done, len(self._pending))

    def _submit(self) -> None:
        most = self._options.max_in_flight
        while most is None or len(self._pending) < most:
            submitted = self._queue.submit()
            if submitted is None:
                return
            ref, flight = submitted
            if ref in self._pending:
                self._pending[ref].indices += flight.indices
            else:
                self._pending[ref] = flight
                self._guard.watch(flight.task, ref)

    def _wait(self) -> list[Any]:
        """Refs that are there: waits for the first, and a little for those that come with it."""
        refs = list(self._pending)
        linger = min(_LINGER, len(refs) * _LINGER_PER_REF)
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=max(_WAIT, linger))
        if ready and len(refs) > 1:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=linger)
        return list(ready)

    def _collect(self, ready: list[Any]) -> None:
        if not ready:
            return
        try:
            values = self._ray.get(ready, timeout=_FETCH)
        except Exception:  # of one of them; which one, Ray does not say
            for ref in ready:
                self._collect_one(ref)
        else:
            for ref, value in zip(ready, values, strict=True):
                self._settle(ref, value, None)

    def _collect_one(self, ref: Any) -> None:
        try:
            value = self._ray.get(ref, timeout=_FETCH)
        except Exception as error:
            of_ray = self._ray.exceptions
            is_lost = isinstance(error, of_ray.GetTimeoutError)
            if not is_lost or isinstance(error, of_ray.RayTaskError):
                self._settle(ref, None, error.with_traceback(None))
        else:
            self._settle(ref, value, None)

    # -------------------------------------------------------------- one result

    def _settle(self, ref: Any, value: Any, error: Exception | None) -> None:
        """A ref is there."""
        flight = self._pending[ref]
        ended = self._guard.done(flight.task)
        status: Status = "ok"
        failure: BaseException | None = error
        if error is not None:
            is_cancelled = isinstance(error, self._ray.exceptions.TaskCancelledError)
            status = ended.reason if ended else "cancelled" if is_cancelled else "error"
        if status == "timeout" and ended is not None:
            if self._try_again(ref, flight):
                return
            failure = self._timeout(ended, is_running=False)
            failure.__cause__ = error
        self._deliver(ref, flight, status, value=value, error=failure)

    def _try_again(self, ref: Any, flight: Flight) -> bool:
        if self._is_ending or flight.attempts > self._options.retries:
            return False
        if not self._queue.put_back(flight):
            return False
        self._tally["retry"] += 1
        del self._pending[ref]
        return True

    def _give_up(self, refs: list[Any], by_task: Mapping[bytes, EndingTask] | None = None) -> None:
        """Refs that are not waited for any more."""
        for ref in refs:
            flight = self._pending[ref]
            ended = (by_task or {}).get(flight.task)
            if ended is not None and ended.reason == "timeout":
                error: BaseException = self._timeout(ended, is_running=True)
                self._deliver(ref, flight, "timeout", error=error, still_running=True)
            else:
                how = f" ({ended.how})" if ended and ended.how else ""
                error = self._ray.exceptions.TaskCancelledError(
                    error_message=f"the task was given up and may still run{how}"
                )
                self._deliver(ref, flight, "cancelled", error=error, still_running=True)

    def _timeout(self, ended: EndingTask, is_running: bool) -> TaskTimeoutError:
        name = ended.run.name if ended.run and ended.run.name else ended.task.hex()
        limit = self._options.timeout
        how = ended.how or "not ended, as asked"
        after = f"{how}; it still runs" if is_running else f"ended by {how}"
        return TaskTimeoutError(
            f"{name} ran for {ended.ran:.1f} s, longer than its {limit:g} s: {after}"
        )

    def _deliver(self, ref: Any, flight: Flight, status: Status, **rest: Any) -> None:
        """Exactly one result for each index: the results are there before the ref is not waited for."""
        seconds = time.monotonic() - flight.began
        results = [
            Result(index, status, ref, seconds=seconds, attempts=flight.attempts, **rest)
            for index in flight.indices
        ]
        self._ready.extend(results)
        del self._pending[ref]
        if self._options.on_result is not None:
            for result in results:
                self._options.on_result(result)

    def _drop_settled(self) -> None:
        """After an interrupt between the two lines of `_deliver`: what has a result is not pending."""
        settled = {result.index for result in self._ready}
        for ref in [ref for ref, flight in self._pending.items() if flight.indices[0] in settled]:
            del self._pending[ref]


def _ray() -> Any:
    """Ray, which the caller has connected."""
    import ray

    if not ray.is_initialized():
        raise RaydoctorError("Ray is not connected", "call ray.init() first")
    return ray


def _connector(ray: Any, timeout: float | None) -> Callable[[], tuple[Source, Backend]]:
    """How the guard reaches the cluster, once it has to; the context is read here, in the caller's thread."""
    if ray.util.client.ray.is_connected():
        if timeout is not None:
            raise RaydoctorError(
                "poll(timeout=...) cannot see what runs from a Ray Client (ray://)",
                "run the driver on the cluster: `ray job submit`, or a task that polls",
            )
        return lambda: (Nobody(), RayBackend(ray, ""))
    context = ray.get_runtime_context()
    address, job, node = context.gcs_address, context.get_job_id(), context.get_node_id()

    def connect() -> tuple[Source, Backend]:
        from ray.core.generated import common_pb2, core_worker_pb2, gcs_service_pb2

        messages = gcs_service_pb2, core_worker_pb2, common_pb2
        wire = Wire(*messages, _channels(), address)
        loading = LOADING if ray._raylet.Config.enable_timeline() else 0.0
        return Cluster(wire, bytes.fromhex(job), loading), RayBackend(ray, node)

    return connect


def _channels() -> Any:
    """Ray's own way to open a channel, with its token and TLS."""
    try:
        from ray._private.grpc_utils import init_grpc_channel
    except ImportError:  # Ray <= 2.50
        from ray._private import utils

        return utils.init_grpc_channel  # type: ignore[attr-defined, unused-ignore]
    return init_grpc_channel


def _abandon(ray: Any, guard: TimeLimits, pending: Mapping[Any, Flight], shown: Bar | None) -> None:
    """Nobody takes results any more: what only we know of is not to run on."""
    guard.close()
    if shown is not None:
        shown.close()
    if not ray.is_initialized():
        return
    for ref, flight in list(pending.items()):
        if flight.submit is not None:
            with suppress(Exception):
                ray.cancel(ref)
