"""Cancels one task step by step; a step is taken only if the previous one had no effect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from raydoctor.act.audit import Audit
from raydoctor.act.cancel.owner import AskError, Owners, Row
from raydoctor.act.cancel.processes import (
    Started,
    Survivor,
    end_survivors,
    left_alone,
    started_by,
)
from raydoctor.act.cancel.steps import CancelBackend, CancelOptions, Step, plan
from raydoctor.act.cancel.target import (
    CancelTarget,
    children,
    has_ended,
    may_run,
    refreshed,
    with_start,
)
from raydoctor.observe.collector.cluster import Cluster

Effect = Literal["ended", "no-effect", "retried", "skipped", "unknown"]
_INTERVAL = 0.05
TIMEOUT = 3.0
"""Seconds for each query."""
_ROUNDS = 5
"""A retried task is ended again until its retries are used up (3 by default)."""
_CHILDREN = 100
_BEGINNING = 1.5
"""Seconds until the GCS has the start time of a task, which identifies the processes that it started."""


class Taken(NamedTuple):
    """The result of a step."""

    step: str
    outcome: Effect
    seconds: float
    why: str = ""
    """Why it was skipped."""
    task: str = ""
    """The task: the target or one of its children."""


@dataclass(slots=True)
class Cancellation:
    """The steps of a cancel, and the result."""

    target: CancelTarget
    """Its state before the first step."""
    steps: list[Taken] = field(default_factory=list)
    ended: bool = False
    was_accepted: bool = False
    """Whether its owner accepted the cancel; Ray does not retry the task then."""
    survivors: list[Survivor] = field(default_factory=list)
    """Processes that outlived it, with the outcome."""
    children: list[CancelTarget] = field(default_factory=list)
    """Submitted tasks that still run or wait."""
    last: Row = field(default_factory=dict)
    """Its last attempt as the GCS records it afterwards; empty unless the caller sets it."""
    is_recursive: bool = True
    """Whether the tasks that it submitted were to end with it."""
    problem: str = ""
    """Why some permitted steps could not be tried."""
    unknown: list[CancelTarget] = field(default_factory=list)
    """Tasks whose state is unknown, because the cluster stopped answering."""
    silence: str = ""
    """The failed query, if the cluster stopped answering."""

    @property
    def by(self) -> str:
        """The step that ended it; empty if none did."""
        own = (each for each in self.steps if each.task == self.target.task)
        return next((each.step for each in own if each.outcome == "ended"), "")

    @property
    def processes(self) -> list[Survivor]:
        """Processes that outlived it and still run."""
        return [each for each in self.survivors if each.outcome != "gone"]

    @property
    def tasks(self) -> list[CancelTarget]:
        """Tasks that were to end with it and still run or wait."""
        return self.children if self.is_recursive and self.steps else []


ReportProgress = Callable[[str], None]


def backend_for(
    owners: Owners, cluster: Cluster, options: CancelOptions, target: CancelTarget
) -> CancelBackend:
    """The backend for a cancel of this task."""
    return CancelBackend(owners, cluster, options, Audit(f"cancel {target.task}"))


def run(
    backend: CancelBackend,
    target: CancelTarget,
    report_progress: ReportProgress = lambda doing: None,
) -> Cancellation:
    """Cancel it and verify the result."""
    made = Cancellation(target, is_recursive=backend.options.recursive)
    started = Started()
    try:
        # It may have ended before the user confirmed: its worker may run another task by now.
        target = _with_start(backend, refreshed(backend.owners, target))
        made.ended = _climb(backend, target, made.steps, started, report_progress)
    except AskError as error:
        made.silence = str(error)
        made.unknown.append(target)
        made.survivors = left_alone(started)
    made.was_accepted = target.task in backend.accepted
    if made.silence:
        return made
    if made.ended and made.steps:
        report_progress("looking for processes that it left behind")
        made.survivors = end_survivors(started, backend.audit, backend.options.all_users)
    try:
        # A task that had ended before is left as it is, with the tasks that it submitted.
        if backend.options.recursive and made.ended and made.steps:
            _cancel_children(backend, target, made, report_progress)
        else:
            made.children = children(backend.owners, target)
    except AskError as error:
        made.silence = str(error)
    return made


def _with_start(backend: CancelBackend, target: CancelTarget) -> CancelTarget:
    """The same, once the GCS has its start time."""
    deadline = time.monotonic() + _BEGINNING
    while target.runs and target.started_at is None and time.monotonic() < deadline:
        time.sleep(2 * _INTERVAL)
        target = with_start(backend.owners, target)
    return target


# ------------------------------------------------------------------ the ladder


def _climb(
    backend: CancelBackend,
    target: CancelTarget,
    taken: list[Taken],
    started: Started,
    report_progress: ReportProgress,
) -> bool:
    """Take step after step, and add the task's processes to `started`. Returns whether the task has ended."""
    futile: set[str] = set()
    for _ in range(_ROUNDS):
        done: set[str] = set()
        while step := _next(backend, target, done | futile):
            done.add(step.name)
            report_progress(f"{step.name} {target.name}")
            started.add(_started(backend, step, target))
            outcome = _take(backend, step, target, taken)
            if outcome == "ended":
                return True
            target = _now(backend, target)
            if outcome == "retried":
                target = _with_start(backend, target)
                break
            futile.add(step.name)
        else:
            break
    return has_ended(backend.owners, target)


def _started(backend: CancelBackend, step: Step, target: CancelTarget) -> Started:
    """The processes that it has started so far."""
    if step.name == "kill-actor":
        return started_by(target, backend.cluster.session_dir, with_actor=True)
    found = started_by(target, backend.cluster.session_dir)
    # Checked afterwards: while its worker still runs it, no other task has started processes there.
    return found if found and may_run(backend.owners, target) else Started()


def _now(backend: CancelBackend, target: CancelTarget) -> CancelTarget:
    """Its current state; the GCS reports the start time a second late, so a known one is kept."""
    now = refreshed(backend.owners, target)
    return replace(now, started_at=target.started_at) if now.worker == target.worker else now


def _next(backend: CancelBackend, target: CancelTarget, done: Iterable[str]) -> Step | None:
    """The first applicable step that was not taken; a waiting task may have started meanwhile."""
    if target.state == "ended":
        return None
    return next((step for step in plan(backend, target) if step.name not in done), None)


def _take(backend: CancelBackend, step: Step, target: CancelTarget, taken: list[Taken]) -> Effect:
    """Take a step and record it, also if the cluster stops answering (AskError)."""
    began = time.monotonic()
    why = ""
    outcome: Effect = "unknown"
    try:
        why = step.take(backend, target)
        outcome = "skipped" if why else _effect(backend, target)
    finally:
        seconds = round(time.monotonic() - began, 2)
        taken.append(Taken(step.name, outcome, seconds, why, target.task))
    return outcome


def _effect(backend: CancelBackend, target: CancelTarget) -> Effect:
    deadline = time.monotonic() + backend.options.grace
    while True:
        asked = time.monotonic()
        if has_ended(backend.owners, target):
            return "ended"
        now = time.monotonic()
        if now > deadline:
            break
        # An owner of 10,000 tasks lists all of them in each reply: leave it time for other work.
        time.sleep(max(_INTERVAL, 2 * (now - asked)))
    later = refreshed(backend.owners, target)
    return "retried" if target.worker and later.worker != target.worker else "no-effect"


def _cancel_children(
    backend: CancelBackend,
    target: CancelTarget,
    made: Cancellation,
    report_progress: ReportProgress,
) -> None:
    """Cancel its children, and theirs, that its own cancel has not ended."""
    waiting, known = [target], {target.task}
    backend.ended.add(target.task)
    while waiting and len(known) <= _CHILDREN:
        left = [each for each in children(backend.owners, waiting.pop()) if each.task not in known]
        known.update(each.task for each in left)
        while left:
            started = Started()
            try:
                if not has_ended(backend.owners, left[0]):
                    waiting.append(left[0])
                    _cancel_child(backend, left[0], made, started, report_progress)
            except AskError:
                made.unknown += left
                made.survivors += left_alone(started)
                raise
            del left[0]


def _cancel_child(
    backend: CancelBackend,
    child: CancelTarget,
    made: Cancellation,
    started: Started,
    report_progress: ReportProgress,
) -> None:
    if _climb(backend, _with_start(backend, child), made.steps, started, report_progress):
        backend.ended.add(child.task)
        made.survivors += end_survivors(started, backend.audit, backend.options.all_users)
    else:
        made.children.append(child)
