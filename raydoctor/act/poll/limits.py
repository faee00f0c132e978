"""Enforces time limits: finds tasks that have run for too long, and ends them step by step.

It runs in a separate thread, so that limits hold while the caller handles a result. It samples only when a
task could exceed its limit: a task that was not running in a sample cannot exceed it before another `limit`
has passed. A task is ended by a ladder of steps; each is tried only if the previous one had no effect within
`grace` seconds:

* `cancel`: Ray's own; queued tasks never start, a Python loop is interrupted, its `finally` runs;
* `force`: Ray ends the worker, without a retry (not for actors, whose state would be lost);
* `kill`: SIGKILL of the worker, for native code that holds the GIL: after a cancel its worker handles no
  requests, including `force`. Not retried, because the owner has recorded the cancel (2.60.0 measured).

The worker is queried before the first step and again before `kill`: a worker that runs another task by now is
left alone. A worker that does not answer still runs the task. Before each step, the task is left alone if its
owner already holds the result.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from raydoctor.act.workers.running import LAG, TaskSource, WorkerTask, is_method
from raydoctor.observe.gcs.programs.gcs_wire import CallError

Step = Literal["cancel", "force", "kill"]
Reason = Literal["timeout", "cancelled"]
LADDERS: dict[str, tuple[Step, ...]] = {
    "report": (),
    "cancel": ("cancel",),
    "force": ("cancel", "force", "kill"),
}
_SHORTEST = 0.25
"""Minimum seconds between two samples."""
_REST_FACTOR = 10
"""Pause after a sample, as a multiple of the time that the GCS took to answer (0.6 s for 100,000 tasks)."""
_AFTER_FAILURE = 1.0
_IDLE = 60.0
_FIRST = 1.0
"""Seconds until the first sample: most batches of small tasks are done before."""
_log = logging.getLogger("raydoctor")


class Backend(Protocol):
    """Actions on a task; each returns why it failed, or an empty string."""

    def is_done(self, ref: Any) -> bool:
        """Whether its owner holds the result, which Ray records as running for a moment longer."""

    def cancel(self, ref: Any, force: bool) -> str:
        """Ray's cancel."""

    def remember(self, run: WorkerTask) -> None:
        """Record the processes that its worker has started."""

    def sweep(self, task: bytes) -> None:
        """End processes that outlived the worker of this task."""

    def kill(
        self, runs: Sequence[WorkerTask], still: Callable[[WorkerTask], bool]
    ) -> dict[bytes, str]:
        """End the workers of these tasks; `still` checks first that the worker runs that task."""


@dataclass(slots=True)
class EndingTask:
    """A task that is being ended: the reason, and the steps so far."""

    task: bytes
    ref: Any
    reason: Reason
    run: WorkerTask | None
    """None if no sample had it as running."""
    ran: float
    """Seconds that it had run when it was found."""
    ladder: tuple[Step, ...]
    due: float
    """Monotonic time of the next step."""
    actions: list[str] = field(default_factory=list)
    """The steps taken so far."""

    @property
    def how(self) -> str:
        """The steps as text."""
        return ", then ".join(self.actions)


class TimeLimits:
    """Enforces the limits of tasks from `watch` to `done`. All methods are thread-safe."""

    def __init__(
        self,
        limit: float | None,
        ladder: tuple[Step, ...],
        grace: float,
        connect: Callable[[], tuple[TaskSource, Backend]],
    ) -> None:
        self._limit, self._ladder, self._grace = limit, ladder, grace
        self._connect = connect
        self._source: TaskSource | None = None
        self._backend: Backend | None = None
        self._watched: dict[bytes, list[Any]] = {}
        self._ending: dict[bytes, EndingTask] = {}
        self._given_up: list[EndingTask] = []
        self._sample_at = time.monotonic() + min(_FIRST, limit or 0.0)
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self.problem = ""
        """Why limits could not be enforced; empty if they were."""

    # -------------------------------------------------------------- from the caller

    def watch(self, task: bytes, ref: Any) -> None:
        """Start watching a task, which may have several refs."""
        with self._lock:
            self._watched.setdefault(task, []).append(ref)
        if self._limit is not None and self._thread is None:
            self._start()

    def done(self, task: bytes) -> EndingTask | None:
        """One of its refs is ready; returns the steps that ended the task, if any."""
        with self._lock:
            refs = self._watched.get(task, [])
            given_up = [each for each in self._given_up if each.task == task]
            ended = self._ending.get(task) or (given_up[0] if given_up else None)
            if ended is not None:
                ended.ladder, ended.due = (), math.inf
            if refs:
                refs.pop()
            if not refs:
                self._watched.pop(task, None)
                self._ending.pop(task, None)
        if ended is not None and self._backend is not None:
            self._backend.sweep(task)
        return ended

    def given_up(self) -> list[EndingTask]:
        """Tasks that no step has ended; each is returned once, and not watched any more."""
        with self._lock:
            reported, self._given_up = self._given_up, []
        return reported

    def end_all(self, ladder: tuple[Step, ...]) -> None:
        """End all watched tasks by this ladder."""
        now = time.monotonic()
        with self._lock:
            self._sample_at = now
            for task, refs in self._watched.items():
                if task not in self._ending:
                    self._ending[task] = EndingTask(
                        task, refs[0], "cancelled", None, 0.0, ladder, now
                    )
        if self._thread is None:
            self._start()
        self._changed.set()

    def close(self) -> None:
        """Stop the thread."""
        self._is_closed = True
        self._changed.set()

    # -------------------------------------------------------------- the thread

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._guard, name="raydoctor-poll", daemon=True)
        self._thread.start()

    def _guard(self) -> None:
        while not self._is_closed:
            try:
                wait = self._step()
            except Exception as error:  # callers must not wait without end
                self._report(error)
                wait = _SHORTEST
            self._changed.wait(min(wait, _IDLE))
            self._changed.clear()
        if self._source is not None:
            self._source.close()

    def _report(self, error: Exception) -> None:
        has_code = isinstance(error, CallError)  # with its code, which says more than its type
        problem = str(error) if has_code else f"{type(error).__name__}: {error}"
        if not self.problem:
            _log.warning("time limits cannot be enforced at present: %s", problem)
        self.problem = problem

    def _step(self) -> float:
        """Do what is due; returns the seconds until the next action."""
        now = time.monotonic()
        soonest = min([self._sample_at, *self._dues()])
        if now < soonest:
            return soonest - now
        if self._source is None or self._backend is None:
            self._source, self._backend = self._connect()
        if now >= self._sample_at:
            self._try_to_sample(self._source)
        self._escalate(self._backend, self._source)
        return min([self._sample_at, *self._dues()]) - time.monotonic()

    def _dues(self) -> list[float]:
        with self._lock:
            return [each.due for each in self._ending.values()]

    def _try_to_sample(self, source: TaskSource) -> None:
        """Take a sample; if that fails, tasks that are being ended continue without it."""
        try:
            self._sample(source)
        except Exception as error:  # gRPC errors, and a cluster that shuts down
            self._report(error)
            self._sample_at = time.monotonic() + _AFTER_FAILURE
        else:
            self.problem = ""

    def _sample(self, source: TaskSource) -> None:
        """Find tasks that have run for too long, and the time of the next sample."""
        asked = time.monotonic()
        watched = self._watched
        runs = source.running(watched.__contains__) if watched else []
        limit = math.inf if self._limit is None else self._limit
        soonest = asked - LAG + limit
        overdue = []
        for run in runs:
            with self._lock:
                ending = self._ending.get(run.task)
            if ending is not None:
                ending.run = run
            elif time.monotonic() - run.started_at < limit:
                soonest = min(soonest, run.started_at + limit)
            else:
                overdue.append(run)
        for run in _confirmed(source, overdue):
            self._overdue(run)
        rest = max(_SHORTEST, min(_REST_FACTOR * source.cost, limit))
        with self._lock:
            self._sample_at = max(time.monotonic() + rest, soonest)

    def _overdue(self, run: WorkerTask) -> None:
        now = time.monotonic()
        with self._lock:
            if run.task in self._watched and run.task not in self._ending:
                ref, ran = self._watched[run.task][0], now - run.started_at
                ended = EndingTask(run.task, ref, "timeout", run, ran, self._ladder, now)
                self._ending[run.task] = ended

    def _escalate(self, backend: Backend, source: TaskSource) -> None:
        """Take the next step with each task that is due."""
        now = time.monotonic()
        with self._lock:
            due = [each for each in self._ending.values() if each.due <= now]
        to_kill: list[EndingTask] = []
        for each in due:
            if backend.is_done(each.ref):
                self._leave(each)
                continue
            step = self._next(each)
            if step is None:
                self._give_up(each)
            elif step == "kill":
                to_kill.append(each)
            else:
                self._cancel(backend, each, force=step == "force")
        if to_kill:
            self._kill(backend, source, to_kill)

    def _leave(self, each: EndingTask) -> None:
        """Take no further step with a task that is done: without any, its result is its own."""
        with self._lock:
            each.ladder, each.due = (), math.inf
            if not each.actions:
                self._ending.pop(each.task, None)

    def _next(self, each: EndingTask) -> Step | None:
        """Its next step, if any applies: an actor is not ended for one of its methods."""
        step, each.ladder = (each.ladder[0], each.ladder[1:]) if each.ladder else (None, ())
        return None if step != "cancel" and is_method(each.task) else step

    def _cancel(self, backend: Backend, each: EndingTask, force: bool) -> None:
        if force and each.run is not None:
            backend.remember(each.run)
        why = backend.cancel(each.ref, force)
        words = "force" if force else "cancel"
        each.actions.append(f"{words} ({why})" if why else words)
        each.due = time.monotonic() + (0.0 if why else self._grace)

    def _kill(self, backend: Backend, source: TaskSource, all_due: list[EndingTask]) -> None:
        if any(each.run is None for each in all_due):
            self._try_to_sample(source)
        running = {each.task: each.run for each in all_due if each.run is not None}
        runs = _confirmed(source, list(running.values()))
        reported = backend.kill(runs, lambda run: bool(_confirmed(source, [run]))) if runs else {}
        for each in all_due:
            each.due = time.monotonic() + self._grace
            why = "its worker does not run it" if each.run else "not seen running"
            why = reported.get(each.task, why)
            each.actions.append(f"kill ({why})" if why else "kill")

    def _give_up(self, each: EndingTask) -> None:
        with self._lock:
            if self._ending.pop(each.task, None) is not None:
                self._watched.pop(each.task, None)
                self._given_up.append(each)


def _confirmed(source: TaskSource, runs: list[WorkerTask]) -> list[WorkerTask]:
    """Without those that their worker denies to run: a worker that does not answer still runs its task."""
    if not runs:
        return []
    try:
        reported = source.confirm(runs)
    except Exception:  # a gRPC error: the addresses of workers come from the GCS
        return runs
    return [run for run, is_running in zip(runs, reported, strict=True) if is_running is not False]
