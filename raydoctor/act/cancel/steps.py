"""The steps of a cancel, the gentlest first: when one fits a task, and how it is taken.

What each ends, with Ray 2.60.0:

- `cancel`, the owner's, as `ray.cancel`: what waits; Python loops, `ray.get`, coroutines, `is_canceled()`.
- `interrupt`, SIGINT in the main thread: sleep, lock, socket, subprocess, regex; methods of plain actors.
- `force`, the owner's cancel with force: native code without the GIL, who swallows KeyboardInterrupt.
- `kill`, SIGKILL of the worker: native code that holds the GIL, a worker that is stopped.
- `kill-actor`, as `ray.kill`, where asked for: any method, and the actor with its state.
- `job-stop`, where asked for: the whole job.

Ray does not retry what its owner has cancelled, also where the worker is killed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raydoctor.act.audit import Audit
from raydoctor.act.cancel import interrupt, job
from raydoctor.act.cancel.owner import AskError, Owners
from raydoctor.act.cancel.target import CancelTarget, may_run
from raydoctor.act.signals.process import GRACE, Identity, end, identity_of
from raydoctor.act.workers.worker import tree
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.processes import proc

_AFTER_TERM = 0.2
"""Seconds between SIGTERM and SIGKILL: its worker has had its time."""


@dataclass(frozen=True, slots=True)
class CancelOptions:
    """How far a cancel may go."""

    grace: float = GRACE
    """Seconds that a step has before the next one is taken."""
    recursive: bool = True
    """Tasks that it submitted, too."""
    kill_actor: bool = False
    job_stop: bool = False
    all_users: bool = False
    """As root: also where its worker is another user's."""
    force: bool = True
    """Whether its worker may be ended with it."""


@dataclass(slots=True)
class CancelBackend:
    """What steps act with."""

    owners: Owners
    cluster: Cluster
    options: CancelOptions
    audit: Audit
    accepted: set[str] = field(default_factory=set)
    """Tasks whose owner took a cancel: these are not retried."""
    ended: set[str] = field(default_factory=set)
    """Tasks that have ended, and whose children are to end, too."""


class Step(NamedTuple):
    """One step of the ladder."""

    name: str
    does: str
    """In a plan: what it would do."""
    fits: Callable[[CancelBackend, CancelTarget], bool]
    take: Callable[[CancelBackend, CancelTarget], str]
    """Returns why it could not be taken; empty where it was."""


# ------------------------------------------------------------------ what they do


def _cancel(backend: CancelBackend, target: CancelTarget) -> str:
    return _by_owner(backend, target, force=False)


def _force(backend: CancelBackend, target: CancelTarget) -> str:
    return _by_owner(backend, target, force=True)


def _by_owner(backend: CancelBackend, target: CancelTarget, force: bool) -> str:
    if not target.owner:
        return "its owner could not be found"
    try:
        if target.parent in backend.ended:
            backend.owners.cancel_children(target.parent, target.owner, force)
        else:
            backend.owners.cancel(target.task, target.owner, force, backend.options.recursive)
    except AskError as error:
        if error.code != "DEADLINE_EXCEEDED":  # then it has it, and is busy with it
            return f"its owner (pid {target.owner_pid}) {_refusal(error)}"
    backend.accepted.add(target.task)
    return ""


def _refusal(error: AskError) -> str:
    if error.code == "ABORTED":  # "No owner found for object" (2.60.0)
        return f"keeps no reference to its result, and cannot cancel it without ({error})"
    return f"did not take it ({error})"


def _interrupt(backend: CancelBackend, target: CancelTarget) -> str:
    found = worker_here(target)
    if isinstance(found, str):
        return found
    if target.kind == "method":
        in_main = interrupt.main_thread_is_busy(target.pid)
        if in_main is None:
            return "whether it runs in the main thread cannot be told: py-spy cannot look into its worker"
        if not in_main:
            return (
                "it runs in another thread, or is a coroutine: only main threads can be interrupted"
            )
    return interrupt.interrupt(
        found,
        lambda: may_run(backend.owners, target),
        backend.audit,
        all_users=backend.options.all_users,
    )


def _kill(backend: CancelBackend, target: CancelTarget) -> str:
    found = worker_here(target)
    if isinstance(found, str):
        return found
    below = tree(target.pid)
    if below[:1] != [found]:
        return "its worker has ended"
    # Asked last: a worker that has finished it may run another task by now.
    if not may_run(backend.owners, target):
        return "it had gone on to something else"
    outcomes = end(
        below,
        _AFTER_TERM,
        more=lambda: tree(target.pid) if identity_of(target.pid) == found else (),
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


def worker_here(target: CancelTarget) -> Identity | str:
    """The process of its worker, by identity; or why it cannot be touched from here."""
    if not target.pid or not target.worker:
        return "no worker says that it runs it"
    found = identity_of(target.pid)
    # Pids of other nodes and containers mean nothing here; a worker has its own log open.
    if found is None or not any(target.worker in path for path in proc.files(target.pid).values()):
        return f"its worker (pid {target.pid}) is not on this machine: run raydoctor on {target.ip}"
    return found


# ------------------------------------------------------------------ which fit


def _is_task(backend: CancelBackend, target: CancelTarget) -> bool:
    return backend.options.force and target.kind == "task" and target.runs


def _is_no_creation(backend: CancelBackend, target: CancelTarget) -> bool:
    return target.kind != "creation"


def _runs(backend: CancelBackend, target: CancelTarget) -> bool:
    return target.runs and target.kind != "creation"


def _is_actors(backend: CancelBackend, target: CancelTarget) -> bool:
    return backend.options.kill_actor and target.kind != "task"


def _is_jobs(backend: CancelBackend, target: CancelTarget) -> bool:
    return backend.options.job_stop


LADDER: Sequence[Step] = (
    Step("cancel", "have its owner cancel it", _is_no_creation, _cancel),
    Step(
        "interrupt", "KeyboardInterrupt in its main thread; its worker lives on", _runs, _interrupt
    ),
    Step("force", "have its owner cancel it by force: Ray ends its worker", _is_task, _force),
    Step("kill", "SIGKILL of its worker", _is_task, _kill),
    Step("kill-actor", "end its actor, with its state", _is_actors, _kill_actor),
    Step("job-stop", "stop its whole job", _is_jobs, _job_stop),
)


def plan(backend: CancelBackend, target: CancelTarget) -> list[Step]:
    """The steps that would be taken, as far as each were needed."""
    return [step for step in LADDER if step.fits(backend, target)]
