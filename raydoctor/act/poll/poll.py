"""Wait for any number of Ray tasks: results as they arrive, with a time limit for each task.

    import raydoctor

    for result in raydoctor.poll([mesh.remote(path) for path in paths], timeout=100):
        if result.ok:
            save(result.index, result.value)
        else:
            print(paths[result.index], result.status, result.error)

`timeout` applies to each task and counts from when your function starts to *run*. Waiting for a free CPU does
not count, and neither do imports of a new worker and the loading of arguments (up to 30 s; Ray's `RUNNING`
includes both). Only the task that runs longer is ended; `on_timeout` selects how:

* `"force"` (the default): Ray's cancel. If that has no effect within `grace` seconds, raydoctor ends the
  worker and the processes that it has started. Ray does not retry the task, and its CPU is free again. For
  methods of actors only `cancel` is tried: use `ray.kill` to end an actor, which loses its state.
* `"cancel"`: only Ray's cancel. It ends Python code, but not `time.sleep`, a lock, a socket or native code.
* `"report"`: nothing; the task keeps running.

Each task gives exactly one result. The result of a task that could not be ended has `still_running` set, and
`poll` stops waiting for the task.

Tasks can be submitted as others end, so that at most `max_in_flight` are in flight, and tasks that exceeded
their limit can be retried:

    jobs = [(mesh, (path,)) for path in paths]          # or functions: lambda: mesh.remote(path)
    results = raydoctor.poll(jobs, timeout=100, max_in_flight=64, retries=1, progress=True)
    for result in results: ...
    print(results.summary)                              # 93 ok, 7 timeouts, 7 retries in 312.0 s

Ctrl-C ends the tasks in flight and raises KeyboardInterrupt. Iterate over the same object again, or call
`results()`, to get the remaining results; ended tasks have the status `cancelled`. As a context manager, it
ends the tasks in flight when the block is left, also by an exception. If the object is dropped without that
(after a `break`), tasks that it has submitted itself are cancelled; given refs are left alone.

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
from typing import Any, Literal, NamedTuple

from raydoctor.act.poll.bar import Bar, bar
from raydoctor.act.poll.limits import LADDERS, Backend, EndingTask, TimeLimits
from raydoctor.act.poll.results import Result, Status, Summary, TaskTimeoutError, kinds
from raydoctor.act.poll.submit import Flight, Queue
from raydoctor.act.poll.timing import OwnTime
from raydoctor.act.workers.running import LOADING, JobCluster, Nobody, RayMessages, TaskSource
from raydoctor.act.workers.worker import RayBackend
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.gcs.programs.gcs_wire import Wire

OnTimeout = Literal["cancel", "force", "report"]
Task = Any
"""A ref; a function that submits one and returns its ref; or (remote function or method, args[, kwargs])."""

_WAIT = 0.25
"""Timeout in seconds of one call of `ray.wait`."""
_LINGER_PER_REF = 30e-6
"""Seconds to wait for further results, for each ref: checking one costs 2-4 us (2.60.0), so that repeated
checks take at most a tenth of the time for any number of refs."""
_LINGER = 1.0
_FETCH = 30.0
"""Timeout in seconds to get a ready object, which may be lost meanwhile."""


class Options(NamedTuple):
    """Options of `poll`."""

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
    with or without a mapping of keyword arguments. A generator is advanced only as far as `max_in_flight`
    allows. `timeout` (seconds that a task may run), `on_timeout` and `grace` are described in the module's
    docstring. `retries`: how often a task is submitted again after a timeout (not possible for refs).
    `on_result` is called with each result as it arrives, in the waiting thread. `progress` shows a bar on a
    terminal. Ray must be connected.
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
    """The values of tasks in the order in which they end, like `ray.util.as_completed`.

    Raises the first error: a `TaskTimeoutError` for a task that ran longer than `timeout`. After an error,
    given refs keep running, and tasks that it has submitted itself are cancelled. Accepts the same tasks as
    `poll`.
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
        raise ValueError("retries need on_timeout='cancel' or 'force': 'report' does not end tasks")
    return options


class Polling:
    """An iterator of results as they arrive; created by `poll`."""

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
        ladder = LADDERS[options.on_timeout]
        connect = _connector(self._ray, options.timeout)
        self._source = lambda: connect()[0]  # results keep it, and must not keep this object
        self._guard = TimeLimits(options.timeout, ladder, options.grace, connect)
        self._bar: Bar | None = None
        if options.progress:
            self._bar = bar(len(tasks) if isinstance(tasks, Sized) else None)
        self._finalizer = weakref.finalize(
            self, _abandon, self._ray, self._guard, self._pending, self._bar
        )
        self._finalizer.atexit = False

    # -------------------------------------------------------------- for callers

    @property
    def summary(self) -> Summary:
        """Counts of the results so far."""
        tally = self._tally + Counter(kinds(self._ready))
        seconds = time.monotonic() - self._began if math.isnan(self._seconds) else self._seconds
        return Summary(
            tally["ok"], tally["error"], tally["timeout"], tally["cancelled"], tally["retry"],
            tally["running"], len(self._pending), seconds, self._guard.problem,
        )  # fmt: skip

    def results(self) -> list[Result]:
        """Wait for all tasks; returns the results not yet taken, in the order of the tasks.

        After an interrupt, call it again to get the results that had arrived before.
        """
        for result in self:
            self._kept.append(result)
        return sorted(self._kept, key=lambda result: result.index)

    def cancel(self) -> None:
        """End the tasks in flight, whose status becomes `cancelled`, and submit no more."""
        self._is_ending = True
        self._queue.close()
        self._drop_settled()
        if self._pending:
            self._guard.end_all(LADDERS[self._options.on_timeout] or ("cancel",))
        try:
            while self._pending:
                self._advance()
        except BaseException:  # a second Ctrl-C: stop waiting
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

    def __exit__(self, *_: object) -> None:
        self.cancel()

    # -------------------------------------------------------------- one round

    def _is_over(self) -> bool:
        return not self._pending and self._queue.is_empty

    def _finish(self) -> None:
        if math.isnan(self._seconds):
            self._seconds = time.monotonic() - self._began
            self._finalizer()

    def _advance(self) -> None:
        """Submit tasks, wait for results, and collect them."""
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
        """Ready refs: waits for the first one, and briefly for further ones."""
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
        except Exception:  # one of them failed; Ray does not report which
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
        """Deliver the result of a ready ref, or submit its task again."""
        flight = self._pending[ref]
        ended = self._guard.done(flight.task)
        status: Status = "ok"
        failure: BaseException | None = error
        ran = math.nan
        if error is not None:
            is_cancelled = isinstance(error, self._ray.exceptions.TaskCancelledError)
            status = ended.reason if ended else "cancelled" if is_cancelled else "error"
        if status == "timeout" and ended is not None:
            if self._try_again(ref, flight):
                return
            failure, ran = self._timeout(ended, is_running=False), ended.ran
            failure.__cause__ = error
        self._deliver(ref, flight, status, ran, value=value, error=failure)

    def _try_again(self, ref: Any, flight: Flight) -> bool:
        if self._is_ending or flight.attempts > self._options.retries:
            return False
        if not self._queue.put_back(flight):
            return False
        self._tally["retry"] += 1
        del self._pending[ref]
        return True

    def _give_up(self, refs: list[Any], by_task: Mapping[bytes, EndingTask] | None = None) -> None:
        """Stop waiting for these refs."""
        for ref in refs:
            flight = self._pending[ref]
            ended = (by_task or {}).get(flight.task)
            if ended is not None and ended.reason == "timeout":
                error: BaseException = self._timeout(ended, is_running=True)
                self._deliver(ref, flight, "timeout", ended.ran, error=error, still_running=True)
            else:
                how = f" ({ended.how})" if ended and ended.how else ""
                error = self._ray.exceptions.TaskCancelledError(
                    error_message=f"the task was given up and may still run{how}"
                )
                self._deliver(ref, flight, "cancelled", error=error, still_running=True)

    def _timeout(self, ended: EndingTask, is_running: bool) -> TaskTimeoutError:
        name = ended.run.name if ended.run and ended.run.name else ended.task.hex()
        limit = self._options.timeout
        how = ended.how or "not ended, as requested"
        after = f"{how}; it still runs" if is_running else f"ended by {how}"
        return TaskTimeoutError(
            f"{name} ran for {ended.ran:.1f} s, longer than its {limit:g} s: {after}"
        )

    def _deliver(
        self, ref: Any, flight: Flight, status: Status, ran: float = math.nan, **rest: Any
    ) -> None:
        """Exactly one result for each index: results are stored before the ref is dropped."""
        elapsed = time.monotonic() - flight.began
        timing = OwnTime(flight.task, self._source, ran)
        results = [
            Result(
                index, status, ref, elapsed=elapsed, attempts=flight.attempts, timing=timing, **rest
            )
            for index in flight.indices
        ]
        self._ready.extend(results)
        del self._pending[ref]
        if self._options.on_result is not None:
            for result in results:
                self._options.on_result(result)

    def _drop_settled(self) -> None:
        """Drop refs that have a result: an interrupt may have hit `_deliver` between its two steps."""
        settled = {result.index for result in self._ready}
        for ref in [ref for ref, flight in self._pending.items() if flight.indices[0] in settled]:
            del self._pending[ref]


def _ray() -> Any:
    """The module `ray`. Raises RaydoctorError if it is not connected."""
    import ray

    if not ray.is_initialized():
        raise RaydoctorError("Ray is not connected", "call ray.init() first")
    return ray


def _connector(ray: Any, timeout: float | None) -> Callable[[], tuple[TaskSource, Backend]]:
    """A function that connects to the cluster; the context is read here, in the caller's thread."""
    if ray.util.client.ray.is_connected():
        if timeout is not None:
            raise RaydoctorError(
                "poll(timeout=...) cannot see what runs from a Ray Client (ray://)",
                "run the driver on the cluster: `ray job submit`, or a task that polls",
            )
        return lambda: (Nobody(), RayBackend(ray, ""))
    context = ray.get_runtime_context()
    address, job, node = context.gcs_address, context.get_job_id(), context.get_node_id()

    def connect() -> tuple[TaskSource, Backend]:
        from ray.core.generated import common_pb2, core_worker_pb2, gcs_service_pb2

        messages = RayMessages(gcs_service_pb2, core_worker_pb2, common_pb2)
        loading = LOADING if ray._raylet.Config.enable_timeline() else 0.0
        gcs, workers = (Wire(Access(), _channels()) for _ in range(2))
        cluster = JobCluster(messages, gcs, workers, address, bytes.fromhex(job), loading)
        return cluster, RayBackend(ray, node)

    return connect


def _channels() -> Any:
    """Ray's function that opens a channel, with token and TLS."""
    try:
        from ray._private.grpc_utils import init_grpc_channel
    except ImportError:  # Ray <= 2.50
        from ray._private import utils

        return utils.init_grpc_channel  # type: ignore[attr-defined, unused-ignore]
    return init_grpc_channel


def _abandon(ray: Any, guard: TimeLimits, pending: Mapping[Any, Flight], shown: Bar | None) -> None:
    """Clean up after the object was dropped: cancel the tasks that only it had refs of."""
    guard.close()
    if shown is not None:
        shown.close()
    if not ray.is_initialized():
        return
    for ref, flight in list(pending.items()):
        if flight.submit is not None:
            with suppress(Exception):
                ray.cancel(ref)
