"""Processes that a task has started on this machine: found before a cancel, ended afterwards if they survive.

Ray ends the process group of a dead worker (>= 2.57; direct children before), and nothing if the worker keeps
running. Processes in their own sessions are still descendants of the worker while it runs; detached processes
(a double fork) are found by the worker's output files or process group.

Children of an actor belong to the actor, not to its method: they are ended only with the actor.

A worker keeps what its earlier tasks left behind. Ray reports the start of a task by the time of day, the
kernel that of a process since the boot, so the two are comparable only if the clock was not set in between.
The launch of the worker is known on both clocks. If they disagree, the clock was set before or after the
task's start, and a process that only one of these assumptions gives to the task is listed, not ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raydoctor.act.audit import Audit
from raydoctor.act.cancel.target import CancelTarget
from raydoctor.act.signals.process import Identity, State, end, identity_of
from raydoctor.act.workers.worker import WORKER_LOG, tree
from raydoctor.observe.processes import ownership, proc
from raydoctor.observe.processes.redact import command_line

_SETTLE = 0.6
"""Seconds that Ray takes to end the processes of a dead worker (0.2 s measured)."""
_INTERVAL = 0.05
_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL: the task had its grace period already."""
_ROUNDED = 0.02
"""Seconds: the kernel counts start times in ticks of 0.01 s, and Ray in ms."""
_SET = 0.5
"""Seconds by which the clocks differ if one was set; a raylet takes less between its stamp and the fork."""
_WAS_SET = "the clock was set since its worker started, so an earlier task may have started it"
_NO_TIME = "Ray has no time of its task's start, so an earlier task may have started it"


class Survivor(NamedTuple):
    """A process that outlived its task, with the outcome."""

    identity: Identity
    command: str
    outcome: State
    reason: str = ""


@dataclass(slots=True)
class Started:
    """Processes below a task's worker."""

    own: set[Identity] = field(default_factory=set)
    """Those that the task has started."""
    unplaced: dict[Identity, str] = field(default_factory=dict)
    """Those that an earlier task may have started -> why that is unknown."""

    def add(self, more: Started) -> None:
        """Add those that were found before a later step."""
        self.own |= more.own
        self.unplaced |= more.unplaced

    def __bool__(self) -> bool:
        return bool(self.own or self.unplaced)


def worker_here(target: CancelTarget, session: str) -> Identity | str:
    """The identity of its worker's process, or why there is none on this machine.

    `session`: the folder of its cluster's session here; empty if the cluster runs elsewhere.
    """
    if not target.pid or not target.worker:
        return "no worker reports that it runs the task"
    found = identity_of(target.pid)
    # Pids of other nodes and containers mean other processes here, and a cluster of another user can report
    # any pid with any worker's id: the worker of this cluster has its own log in this session open.
    if found is None or not any(
        _is_own_log(path, target, session) for path in proc.logs(found.pid)
    ):
        return f"its worker (pid {target.pid}) is not on this machine: run raydoctor on {target.ip}"
    return found


def _is_own_log(path: str, target: CancelTarget, session: str) -> bool:
    named = WORKER_LOG.search(path)
    return named is not None and named[1] == target.worker and proc.is_log_of(path, session)


def started_by(target: CancelTarget, session: str, with_actor: bool = False) -> Started:
    """Processes that the task has started here; `with_actor`: all that its actor has.

    `session`: as for `worker_here`. Empty if its worker is not a process of this machine and pid namespace.
    """
    worker = worker_here(target, session)
    found = Started()
    if not isinstance(worker, Identity) or not (with_actor or target.kind == "task"):
        return found
    surely, perhaps, why = (0.0, 0.0, "") if with_actor else _beginning(target, worker)
    for first, *below in _families(target):
        since_boot = proc.since_boot(first.started_at)
        # A descendant belongs to the task that started the first process, whenever that forked.
        if since_boot >= surely:
            found.own.update((first, *below))
        elif since_boot >= perhaps:
            found.unplaced.update(dict.fromkeys((first, *below), why))
    return found


def _beginning(target: CancelTarget, worker: Identity) -> tuple[float, float, str]:
    """When the task has surely and perhaps started, in seconds since the boot, and why these differ."""
    started, launched = target.started_at, target.launched_at
    if started is None or launched is None:
        return float("inf"), 0.0, _NO_TIME
    now = proc.origin()
    then = launched - proc.since_boot(worker.started_at)
    if abs(now - then) < _SET:
        return started - now - _ROUNDED, started - now - _ROUNDED, ""
    earlier, later = sorted((started - now, started - then))
    return later - _ROUNDED, earlier - _ROUNDED, _WAS_SET


def _families(target: CancelTarget) -> Iterator[list[Identity]]:
    """The children of its worker, then detached processes that have the worker's output open or are in its
    process group (only that shows for one that changed its user): each with its descendants."""
    machine = ownership.survey_machine()
    table = machine.processes

    def is_detached(pid: int) -> bool:
        log = machine.output.get(pid) or machine.log.get(pid)
        is_writer = pid in machine.orphans and log is not None and log.worker == target.worker
        return is_writer or table[pid].pgid == target.pid

    detached = sorted(filter(is_detached, table), key=lambda pid: table[pid].started_at)
    visited = {target.pid}
    for root in (*machine.children.get(target.pid, ()), *detached):
        family = [each for each in (root, *machine.below(root)) if each not in visited]
        visited.update(family)
        if family:
            yield [Identity(each, table[each].started_at) for each in family]


def end_survivors(started: Started, audit: Audit, all_users: bool = False) -> list[Survivor]:
    """Give Ray time to end these processes, then end those of the task that still run."""
    deadline = time.monotonic() + _SETTLE
    left = alive(started.own)
    while left and time.monotonic() < deadline:
        time.sleep(_INTERVAL)
        left = alive(left)
    ended = _ended(left, audit, all_users) if left else []
    settled = {each.identity for each in ended} | started.own
    return [*ended, *(each for each in _unplaced(started) if each.identity not in settled)]


def _ended(left: Sequence[Identity], audit: Audit, all_users: bool) -> list[Survivor]:
    commands = {each: command_line(each.pid) for each in left}

    def more() -> list[Identity]:
        return [below for each in alive(left) for below in tree(each.pid)]

    return [
        Survivor(each.identity, commands.get(each.identity, ""), each.outcome, each.reason)
        for each in end([*left, *more()], _GRACE, more=more, all_users=all_users, audit=audit)
    ]


def left_alone(started: Started) -> list[Survivor]:
    """Those that still run, of a task that may still run as well."""
    return _survivors(dict.fromkeys(started.own, "its task may still run")) + _unplaced(started)


def _unplaced(started: Started) -> list[Survivor]:
    return _survivors(
        {each: why for each, why in started.unplaced.items() if each not in started.own}
    )


def _survivors(reasons: Mapping[Identity, str]) -> list[Survivor]:
    """Those that still run, with the reason why they were not ended."""
    return [
        Survivor(each, command_line(each.pid), "running", f"not ended: {reasons[each]}")
        for each in alive(sorted(reasons))
    ]


def alive(started: Iterable[Identity]) -> Sequence[Identity]:
    """Those that still run."""
    found = []
    for each in started:
        process = proc.read(each.pid)
        if process and process.state != "Z" and process.started_at == each.started_at:
            found.append(each)
    return found
