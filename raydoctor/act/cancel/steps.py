"""The steps of a cancel, the gentlest first: when each applies, and how it is taken.

What each step ends with Ray 2.60.0:

- `cancel` (the owner's, as `ray.cancel`): waiting tasks, Python loops, `ray.get`, coroutines,
  `is_canceled()`.
- `interrupt` (SIGINT in the main thread): sleep, lock, socket, subprocess, regex; methods of plain actors.
- `force` (the owner's cancel with force): native code without the GIL, code that catches KeyboardInterrupt.
- `kill` (SIGKILL of the worker): native code that holds the GIL, a stopped worker.
- `kill-actor` (as `ray.kill`, if requested): any method, and the actor with its state.
- `job-stop` (if requested): the whole job.

Ray does not retry a task that its owner has cancelled, even if the worker is killed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from raydoctor.act.audit import Audit
from raydoctor.act.cancel import interrupt, job
from raydoctor.act.cancel.owner import AskError, Owners
from raydoctor.act.cancel.processes import started_by, worker_here
from raydoctor.act.cancel.target import CancelTarget, may_run
from raydoctor.act.signals.process import GRACE, end, identity_of
from raydoctor.observe.collector.cluster import Cluster

_AFTER_TERM = 0.2
"""Seconds between SIGTERM and SIGKILL: the worker had its grace period already."""


@dataclass(frozen=True, slots=True)
class CancelOptions:
    """How far a cancel may go."""

    grace: float = GRACE
    """Time each step may take before the next one is tried, in seconds."""
    recursive: bool = True
    """Also cancel the tasks that it submitted."""
    kill_actor: bool = False
    job_stop: bool = False
    all_users: bool = False
    """As root: also if its worker belongs to another user."""
    force: bool = True
    """Whether its worker may be ended."""


@dataclass(slots=True)
class CancelBackend:
    """The connections and state that steps use."""

    owners: Owners
    cluster: Cluster
    options: CancelOptions
    audit: Audit
    accepted: set[str] = field(default_factory=set)
    """Tasks whose owner accepted a cancel; Ray does not retry them."""
    ended: set[str] = field(default_factory=set)
    """Ended tasks whose children are to be cancelled as well."""


class Step(NamedTuple):
    """One step of the ladder."""

    name: str
    does: str
    """Its description in a plan."""
    fits: Callable[[CancelOptions, CancelTarget], bool]
    take: Callable[[CancelBackend, CancelTarget], str]
    """Returns why it could not be taken; empty if it was taken."""


# ------------------------------------------------------------------ actions


def _by_owner(backend: CancelBackend, target: CancelTarget, force: bool) -> str:
    if not target.owner:
        return "its owner is unknown"
    try:
        if target.parent in backend.ended:
            backend.owners.cancel_children(target.parent, target.owner, force)
        else:
            backend.owners.cancel(target.task, target.owner, force, backend.options.recursive)
    except AskError as error:
        if (
            error.code != "DEADLINE_EXCEEDED"
        ):  # otherwise the owner has received it and is busy with it
            return f"its owner (pid {target.owner_pid}) {_refusal(error)}"
    backend.accepted.add(target.task)
    return ""


def _refusal(error: AskError) -> str:
    if error.code == "ABORTED":  # "No owner found for object" (2.60.0)
        return (
            f"has dropped the reference to its result, which it needs to cancel the task ({error})"
        )
    return f"did not accept the cancel ({error})"


def _interrupt(backend: CancelBackend, target: CancelTarget) -> str:
    found = worker_here(target, backend.cluster.session_dir)
    if isinstance(found, str):
        return found
    if target.kind == "method":
        in_main = interrupt.main_thread_is_busy(target.pid)
        if in_main is None:
            return (
                "py-spy cannot read its worker, so it is unknown whether it runs in the main thread"
            )
        if not in_main:
            return (
                "it runs in another thread or is a coroutine: only main threads can be interrupted"
            )
    return interrupt.interrupt(
        found,
        lambda: may_run(backend.owners, target),
        backend.audit,
        all_users=backend.options.all_users,
    )


def _kill(backend: CancelBackend, target: CancelTarget) -> str:
    found = worker_here(target, backend.cluster.session_dir)
    if isinstance(found, str):
        return found
    session = backend.cluster.session_dir
    own = sorted(started_by(target, session).own)
    # Checked last: a worker that has finished it may run another task by now.
    if not may_run(backend.owners, target):
        return "its worker had started another task"
    outcomes = end(
        [found, *own],
        _AFTER_TERM,
        more=lambda: started_by(target, session).own if identity_of(target.pid) == found else (),
        all_users=backend.options.all_users,
        audit=backend.audit,
    )
    return next((each.reason for each in outcomes if each.outcome != "gone"), "")


def _kill_actor(backend: CancelBackend, target: CancelTarget) -> str:
    try:
        backend.owners.kill_actor(target.actor)
    except AskError as error:
        return str(error)
    return ""


def _job_stop(backend: CancelBackend, target: CancelTarget) -> str:
    return job.stop(
        backend.owners, backend.cluster, target.job, backend.audit, backend.options.all_users
    )


# ------------------------------------------------------------------ the ladder


def _may_end_worker(options: CancelOptions, target: CancelTarget) -> bool:
    return options.force and target.kind == "task" and target.runs


LADDER: Sequence[Step] = (
    Step(
        "cancel",
        "have its owner cancel it",
        lambda options, target: target.kind != "creation",
        partial(_by_owner, force=False),
    ),
    Step(
        "interrupt",
        "KeyboardInterrupt in its main thread; its worker keeps running",
        lambda options, target: target.runs and target.kind != "creation",
        _interrupt,
    ),
    Step(
        "force",
        "have its owner cancel it by force: Ray ends its worker",
        _may_end_worker,
        partial(_by_owner, force=True),
    ),
    Step("kill", "SIGKILL of its worker", _may_end_worker, _kill),
    Step(
        "kill-actor",
        "end its actor, which loses its state",
        lambda options, target: options.kill_actor and target.kind != "task",
        _kill_actor,
    ),
    Step("job-stop", "stop its whole job", lambda options, target: options.job_stop, _job_stop),
)


def plan(backend: CancelBackend, target: CancelTarget) -> list[Step]:
    """The applicable steps; each is taken only if it is needed."""
    return [step for step in LADDER if step.fits(backend.options, target)]
