"""The guard of a watch: it reports or cancels tasks that exceed their time limit.

Only the running time of an attempt counts, not its waiting time (`observe/watching/clocks.py`). Before the
guard acts, it queries the GCS for the attempt again and matches the name with the limits. It treats each
attempt once. `cancel` takes the gentle steps of `raydoctor cancel` (the owner's cancel, an interrupt),
`force` all of them, up to SIGKILL for native code that holds the GIL. Only `kill_actor` ends an actor. The
guard never touches drivers and Ray's own actors, whose methods run as long as the actor.

A cancel takes seconds, so a few run at a time in threads. Each result is an event, and each action a record
of the audit log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from raydoctor.model import ids
from raydoctor.model import text as _text
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.processes.redact import name_of_task
from raydoctor.observe.watching.clocks import Clocks, RunningClock
from raydoctor.observe.watching.watching import Attempt
from raydoctor.watch.event import WatchEvent, event

if TYPE_CHECKING:
    from raydoctor.act.cancel.ladder import Cancellation

Mode = Literal["report", "cancel", "force"]
_AT_ONCE = 4
"""Cancels at a time: each starts a process that queries the cluster."""
_ASKED = 50
"""Attempts that one round queries."""
_LAG = 5.0
"""Seconds after which the GCS should have recorded a task; otherwise it has lost the record."""
_LOOK = 0.1
_ENDED = ("FINISHED", "FAILED")
_RAYS_OWN = (
    # Their methods run as long as the actor: a submitted job's driver depends on the first.
    *(
        "JobSupervisor.*",
        "ServeController.*",
        "ProxyActor.*",
        "HTTPProxyActor.*",
        "gRPCProxyActor.*",
    ),
    *("ServeReplica:*", "*StatsActor.*", "SplitCoordinator.*", "TrainController.*", "raydoctor: *"),
)


class GuardLimits(NamedTuple):
    """The time limit of tasks, and what happens to tasks that exceed it."""

    timeout: float
    """Seconds that an attempt may run."""
    mode: Mode = "report"
    names: tuple[str, ...] = ()
    """Patterns of the function names to which the limit applies; empty: all."""
    exclude: tuple[str, ...] = ()
    kill_actor: bool = False
    grace: float = 5.0
    """Seconds that each step of a cancel may take before the next one is tried."""
    jobs: tuple[str, ...] = ()
    """Ids of the jobs to whose tasks the limit applies; empty: all."""


class CancelResult(NamedTuple):
    """The result of one cancel."""

    running: RunningClock
    ended: bool
    by: str = ""
    """The step that ended the task; empty if it had ended by itself."""
    seconds: float = 0.0
    why: str = ""
    """Why the task is still running."""
    steps: tuple[dict[str, Any], ...] = ()
    survivors: int = 0
    """Number of its subprocesses that still run."""


End = Callable[[Cluster, RunningClock, GuardLimits], CancelResult]


@dataclass(slots=True)
class TimeLimitGuard:
    """Enforces the limits while a watch runs."""

    limits: GuardLimits
    end: End = field(default_factory=lambda: end_task)
    """Ends one task; tests replace it."""
    reported: int = 0
    cancelled: int = 0
    _done: set[tuple[str, str, int]] = field(default_factory=set)
    _under_way: set[tuple[str, str, int]] = field(default_factory=set)
    _results: SimpleQueue[CancelResult] = field(default_factory=SimpleQueue)

    @property
    def under_way(self) -> int:
        """Number of unfinished cancels."""
        return len(self._under_way)

    def check(
        self,
        cluster: Cluster,
        clocks: Clocks,
        attempts_of: Callable[[Sequence[str]], dict[str, Attempt]],
        now: float,
    ) -> list[WatchEvent]:
        """Events of finished cancels and of overdue tasks; `attempts_of` queries the GCS for attempts."""
        events = list(self._finished())
        suspects = [each for each in clocks.running() if self._is_due(each, now)][:_ASKED]
        if suspects:
            answers = attempts_of([each.run.task for each in suspects])
            clocks.learn(answers.values())
            ended = {task for task, each in answers.items() if each.state in _ENDED}
            wanted = {(e.run.task, e.run.worker) for e in suspects if e.run.task not in ended}
            for each in clocks.running():
                if (each.run.task, each.run.worker) in wanted and self._is_due(each, now):
                    events += self._treat(cluster, each, now)
        alive = {each.key for each in clocks.running()}
        self._done &= alive | self._under_way
        return events

    def wait(self, seconds: float) -> list[WatchEvent]:
        """At the end, wait for unfinished cancels; events of those that finished."""
        deadline = time.monotonic() + seconds
        events = list(self._finished())
        while self._under_way and time.monotonic() < deadline:
            time.sleep(_LOOK)
            events += self._finished()
        return events

    def _is_due(self, running: RunningClock, now: float) -> bool:
        return running.age(now) > self.limits.timeout and running.key not in self._done

    def _treat(self, cluster: Cluster, running: RunningClock, now: float) -> Iterator[WatchEvent]:
        """Report an overdue task, and start its cancel if the mode and the task allow it."""
        if running.reported is None and now - running.seen < _LAG:
            return
        is_left = self.limits.mode == "report" or bool(_why_not(running))
        if not is_meant(running, self.limits):
            self._done.add(running.key)
            return
        if not is_left and self.under_way >= _AT_ONCE:
            return  # the next round sees it again
        self._done.add(running.key)
        self.reported += 1
        yield _overdue(running, self.limits, now)
        if not is_left:
            self._start(cluster, running)

    def _start(self, cluster: Cluster, running: RunningClock) -> None:
        self._under_way.add(running.key)

        def work() -> None:
            try:
                self._results.put(self.end(cluster, running, self.limits))
            except Exception as error:  # an exception in a thread would be lost
                self._results.put(CancelResult(running, False, why=str(error) or repr(error)))

        threading.Thread(target=work, name=f"cancel {running.run.task}", daemon=True).start()

    def _finished(self) -> Iterator[WatchEvent]:
        while True:
            try:
                made = self._results.get_nowait()
            except Empty:
                return
            self._under_way.discard(made.running.key)
            self.cancelled += made.ended
            yield _outcome(made)


# ------------------------------------------------------------------ which tasks are limited


def is_meant(running: RunningClock, limits: GuardLimits) -> bool:
    """Whether the limit applies to this task. To a task of unknown name it applies if no names are given."""
    if limits.jobs and ids.job_of_task(running.run.task) not in limits.jobs:
        return False
    names = _names(running)
    if not names:
        return not limits.names
    if any(fnmatchcase(name, each) for name in names for each in _RAYS_OWN):
        return False
    if any(fnmatchcase(name, each) for name in names for each in limits.exclude):
        return False
    return not limits.names or any(
        fnmatchcase(name, each) for name in names for each in limits.names
    )


def _names(running: RunningClock) -> list[str]:
    reported = running.reported
    if reported is None:
        return []
    full = [name for name in (reported.name, reported.function) if name]
    return [*full, *(name.rpartition(".")[2] for name in full)]


def _why_not(running: RunningClock) -> str:
    """Why a task is only reported, whatever the mode; empty if it may be cancelled."""
    if ids.is_creation_task(running.run.task):
        return "an actor creation cannot be cancelled"
    if running.reported is None:
        return "the GCS has no record of its name and start time"
    return ""


def title(running: RunningClock) -> str:
    """The name of a task for people."""
    if running.reported:
        return name_of_task(running.reported.name)
    return f"task {_text.short_id(running.run.task)}…"


def facts(running: RunningClock, now: float) -> dict[str, Any]:
    """A running task as a JSON object."""
    run, reported = running.run, running.reported
    return {
        "task_id": run.task,
        "name": name_of_task(reported.name) if reported else None,
        "attempt": reported.attempt if reported else None,
        "age_s": round(running.age(now), 1),
        "pid": run.pid,
        "ip": run.ip,
        "node_id": run.node,
        "worker_id": run.worker,
        "actor_id": ids.actor_of_task(run.task) or None,
    }


def _overdue(running: RunningClock, limits: GuardLimits, now: float) -> WatchEvent:
    """The event of a task that exceeds its limit, with the action taken."""
    does = {"report": "only reported", "cancel": "cancelling", "force": "cancelling by force"}
    why = "" if limits.mode == "report" else _why_not(running)
    done = f"not cancelled, because {why}" if why else does[limits.mode]
    text = (
        f"Task {title(running)} (pid {running.run.pid}) has run for "
        f"{_text.duration(running.age(now))}, more than {_text.duration(limits.timeout)}: {done}"
    )
    details = {**facts(running, now), "timeout_s": limits.timeout, "action": limits.mode}
    return event("task-overdue", "warning", text, **details, why_not=why or None)


def _outcome(made: CancelResult) -> WatchEvent:
    what = f"Task {title(made.running)} (pid {made.running.run.pid})"
    details = {
        **facts(made.running, time.time()),
        "by": made.by or None,
        "seconds": made.seconds,
        "steps": list(made.steps),
        "survivors": made.survivors,
    }
    if made.ended:
        how = (
            f"was ended by {made.by} in {_text.duration(made.seconds)}" if made.by else "had ended"
        )
        left = f"; {_text.plural(made.survivors, 'subprocess', 'subprocesses')} still running"
        text = f"{what} {how}{left if made.survivors else ''}"
        return event("task-ended", "warning" if made.survivors else "ok", text, **details)
    return event(
        "task-not-ended", "error", f"{what} was not ended: {made.why}", **details, why=made.why
    )


# ------------------------------------------------------------------ cancelling


def end_task(cluster: Cluster, running: RunningClock, limits: GuardLimits) -> CancelResult:
    """Cancel a task as far as the limits allow. Raises RaydoctorError if the cluster cannot be queried."""
    from raydoctor.act.audit import Audit
    from raydoctor.act.cancel.elsewhere import run_where_it_runs
    from raydoctor.act.cancel.ladder import TIMEOUT
    from raydoctor.act.cancel.owner import connected
    from raydoctor.act.cancel.steps import CancelBackend, CancelOptions
    from raydoctor.act.cancel.target import UnknownTaskError, by_id

    began = time.monotonic()
    audit = Audit(f"watch --timeout {limits.timeout:g} --on-timeout {limits.mode}")
    with connected(cluster, TIMEOUT) as owners:
        try:
            target = by_id(owners, running.run.task)
        except UnknownTaskError:
            return CancelResult(running, True)
        if target.worker != running.run.worker:
            return CancelResult(running, True)  # it has ended, or was retried elsewhere
        if running.reported and (target.attempt or 0) > running.reported.attempt:
            return CancelResult(
                running, True
            )  # it was retried on the same worker, with a new clock
        cancel_options = CancelOptions(
            limits.grace, kill_actor=limits.kill_actor, force=limits.mode == "force"
        )
        backend = CancelBackend(owners, cluster, cancel_options, audit)
        details = facts(running, time.time())
        audit.write("task-overdue", mode=limits.mode, timeout_s=limits.timeout, **details)
        made = run_where_it_runs(backend, target)
    return _of(running, made, time.monotonic() - began, limits)


def _of(
    running: RunningClock, made: Cancellation, seconds: float, limits: GuardLimits
) -> CancelResult:
    why = made.problem or next((each.why for each in reversed(made.steps) if each.why), "")
    if made.silence and not made.ended:
        why = f"it is unknown whether it has ended: the cluster stopped answering ({made.silence})"
    elif not made.ended:
        why = f"{why or 'no step had an effect'}{_more(running, limits)}"
    left = len(made.processes)
    steps = tuple(each._asdict() for each in made.steps)
    return CancelResult(running, made.ended, made.by, round(seconds, 2), why, steps, left)


def _more(running: RunningClock, limits: GuardLimits) -> str:
    """The option that may end the task after all; empty if there is none."""
    if limits.mode == "cancel":
        return "; --on-timeout force may end it"
    is_method = bool(ids.actor_of_task(running.run.task))
    return "; --kill-actor may end it" if is_method and not limits.kill_actor else ""


def check_limits(limits: GuardLimits) -> None:
    """Raises RaydoctorError if the limits contradict each other."""
    if limits.kill_actor and limits.mode != "force":
        raise RaydoctorError(
            "--kill-actor needs --on-timeout force", "Add it, or leave out --kill-actor."
        )
