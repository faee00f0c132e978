"""Processes that a task has started on this machine: found before a cancel, ended afterwards if they survive.

Ray ends the process group of a dead worker (>= 2.57; direct children before), and nothing if the worker keeps
running. Processes in their own sessions are still descendants of the worker while it runs; detached processes
(a double fork) are found by the worker's output files or process group.

Children of an actor belong to the actor, not to its method: they are ended only with the actor.
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
from raydoctor.observe.processes import ownership, proc
from raydoctor.observe.processes.redact import command_line

_SETTLE = 0.6
"""Seconds that Ray takes to end the processes of a dead worker (0.2 s measured)."""
_INTERVAL = 0.05
_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL: the task had its grace period already."""
_ROUNDED = 1.0
"""Seconds: start times are based on a boot time in whole seconds (`btime` of `/proc/stat`)."""


class Survivor(NamedTuple):
    """A process that outlived its task, with the outcome."""

    identity: Identity
    command: str
    outcome: State
    reason: str = ""


def started_by(target: CancelTarget, with_actor: bool = False) -> list[Identity]:
    """Processes that the task has started here; `with_actor`: all that its actor has started.

    Empty if its worker is not a process of this machine and pid namespace.
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
    """Orphans that have the worker's output open or are in its process group, with their descendants."""
    machine = ownership.survey_machine()
    found: list[Identity] = []
    for pid in machine.orphans:
        log = machine.output.get(pid) or machine.log.get(pid)
        if (log and log.worker == target.worker) or machine.processes[pid].pgid == target.pid:
            found += tree(pid)
    return found


def end_survivors(
    started: Iterable[Identity], audit: Audit, all_users: bool = False
) -> list[Survivor]:
    """Give Ray time to end these processes, then end those that still run."""
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


def left_alone(started: Iterable[Identity]) -> list[Survivor]:
    """Those that still run, of a task that may still run as well."""
    why = "not ended: its task may still run"
    return [Survivor(each, command_line(each.pid), "running", why) for each in alive(started)]


def alive(started: Iterable[Identity]) -> Sequence[Identity]:
    """Those that still run."""
    found = []
    for each in started:
        process = proc.read(each.pid)
        if process and process.state != "Z" and process.started_at == each.started_at:
            found.append(each)
    return found
