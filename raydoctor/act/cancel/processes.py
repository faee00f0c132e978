"""What a task has started on this machine: seen before it is cancelled, ended afterwards where it survives.

Ray ends what a dead worker left in its process group (>= 2.57; direct children before), and nothing where the
worker lives on. What a task started in sessions of its own is still below its worker while that runs; what
has detached itself (a double fork) is known by the worker's output files or process group.

Children of an actor are the actor's, not its method's: they are ended with the actor alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from raydoctor.act.audit import Audit
from raydoctor.act.cancel.steps import worker_here
from raydoctor.act.cancel.target import CancelTarget
from raydoctor.act.signals.process import Identity, State, end
from raydoctor.act.workers.worker import tree
from raydoctor.observe.processes import kinship, proc
from raydoctor.observe.processes.redact import command_line

_SETTLE = 0.6
"""Seconds that Ray takes to end what a dead worker started (0.2 s measured): later ones are left over."""
_INTERVAL = 0.05
_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL: their task has had its time."""
_ROUNDED = 1.0
"""Start times count from a boot time in whole seconds (`btime` of `/proc/stat`)."""


class Survivor(NamedTuple):
    """A process that outlived its task, and what became of it."""

    identity: Identity
    command: str
    outcome: State
    reason: str = ""


def started_by(target: CancelTarget, with_actor: bool = False) -> list[Identity]:
    """What the task has started here; with `with_actor`, all that its actor has.

    Nothing where its worker is no process of this machine and pid namespace: its pid is another's here.
    """
    if not isinstance(worker_here(target), Identity):
        return []
    if target.kind == "task" and target.started_at is not None:
        since = target.started_at - _ROUNDED
    elif with_actor:
        since = 0.0
    else:
        return []
    below = {*tree(target.pid)[1:], *_detached(target)}
    return sorted(each for each in below if each.started_at >= since)


def _detached(target: CancelTarget) -> list[Identity]:
    """Orphans that have the worker's output open, or are in its process group, with what they started."""
    machine = kinship.look()
    found: list[Identity] = []
    for pid in machine.orphans:
        log = machine.output.get(pid) or machine.log.get(pid)
        if (log and log.worker == target.worker) or machine.processes[pid].pgid == target.pid:
            found += tree(pid)
    return found


def end_survivors(
    started: Iterable[Identity], audit: Audit, all_users: bool = False
) -> list[Survivor]:
    """End what still runs of them after the moment that Ray needs to do so itself."""
    deadline = time.monotonic() + _SETTLE
    left = alive(started)
    while left and time.monotonic() < deadline:
        time.sleep(_INTERVAL)
        left = alive(left)
    if not left:
        return []
    commands = {each: command_line(each.pid) for each in left}

    def more() -> list[Identity]:
        return [below for each in alive(left) for below in tree(each.pid)]

    return [
        Survivor(each.identity, commands.get(each.identity, ""), each.outcome, each.reason)
        for each in end([*left, *more()], _GRACE, more=more, all_users=all_users, audit=audit)
    ]


def alive(started: Iterable[Identity]) -> Sequence[Identity]:
    """Those that run."""
    found = []
    for each in started:
        process = proc.read(each.pid)
        if process and process.state != "Z" and process.started_at == each.started_at:
            found.append(each)
    return found
