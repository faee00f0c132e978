"""When a watch inspects its cluster closely, which processes it samples, and the results.

One child process does both: a diagnosis when tasks failed, a node left, the logs report trouble or tasks wait
while none runs; stack samples when a task does not change for a minute or runs far longer than its peers. The
oldest tasks of each function are sampled, and again when they are several times older. A task of this
machine whose main thread has not run for a minute is urgent: `raydoctor hung` would report it now. So is one
whose main thread ran since only because another tool, such as `raydoctor hung`, read its stack. A failed
inspection is reported once and repeated. If the cluster dies, its logs on this machine are diagnosed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.stacks import rests
from raydoctor.watch import changes
from raydoctor.watch.background import BackgroundProcess, Pace
from raydoctor.watch.budget import WatchBudget
from raydoctor.watch.effort import Effort
from raydoctor.watch.event import WatchEvent
from raydoctor.watch.view import TaskLine, WatchOptions, WatchProblem, WatchView

_DIAGNOSE_EVERY = 10.0
_HUNG_EVERY = 30.0
_URGENT_EVERY = 10.0
_HUNG_AGE = 62.0
"""Seconds that a task has run before it is sampled: after 60 s without running it counts as hung."""
_IDLE_AGE = 61.0
_URGENT = 2
"""Times that one task is sampled urgently: the main thread of an async actor is always idle."""
_IDLE_EVERY = 2.0
_WOKEN_AFTER = 2 * _IDLE_EVERY
"""Seconds without running after which it is worth its cost to see what woke a thread."""
_SAME = 1.0
"""Seconds: two readings of the moment at which a thread last ran differ by less."""
_HUNG_AGAIN = 4
"""A task is sampled again at this multiple of its age when it was sampled last."""
_SUSPECTS = 8
"""Processes that one inspection samples, in addition to the drivers."""
_DRIVERS = 8
"""The number of drivers that `observe/stacks/suspects.py` samples before any task."""
_YOUNGEST = 5.0
_AT_WORK = 0.5
"""CPUs: a task that uses more is busy."""
_REPORT = (True, False)
_AUTOPSIES = (15.0, 90.0)
"""Seconds without a reply after which the cluster's logs are diagnosed: raylets notice a loss late."""
_EXPECTED = {_REPORT: 0.8, (False, True): 0.75, (True, True): 1.35}
"""Expected CPU seconds of the first diagnosis, the first samples, or both (measured with 1,000 tasks)."""


class Inspections:
    """The inspections of one cluster."""

    def __init__(self, cluster: Cluster, options: WatchOptions, budget: WatchBudget) -> None:
        self.cluster = cluster
        self._problems: list[WatchProblem | None] = [None, None]
        """Why the last diagnosis and the last stack samples failed."""
        self._options = options
        self._budget = budget
        self._child = BackgroundProcess()
        self._paces = Pace(_DIAGNOSE_EVERY), Pace(_HUNG_EVERY)
        self._costs = dict(_EXPECTED)
        self._under_way = False, False
        """Whether the current inspection includes a diagnosis, and whether it includes stack samples."""
        self._stacked: dict[tuple[str, str], float] = {}
        """Sampled tasks, with their age at that time."""
        self._urgent: Counter[tuple[str, str]] = Counter()
        """Tasks that were urgent, with how often they were sampled for that."""
        self._idle: set[tuple[str, str]] = set()
        """Tasks that are urgent now."""
        self._idle_next = 0.0
        self._woken: dict[int, tuple[float, bool]] = {}
        """Process -> when its main thread last ran, and whether it was only woken then."""
        self._has_reason = False
        self._lost_since = 0.0
        """When the cluster stopped replying; 0 while it replies."""
        self._autopsies = 0
        self._effort = Effort()
        self._processes: Mapping[int, Process] = {}

    @property
    def problems(self) -> list[WatchProblem]:
        """Why the last inspection failed, if it did."""
        return list(dict.fromkeys(each for each in self._problems if each is not None))

    @property
    def spent(self) -> float:
        """CPU seconds of all inspections."""
        return self._child.spent

    def end(self) -> None:
        """End the current inspection."""
        self._child.end()

    def turn(
        self, view: WatchView, processes: Mapping[int, Process], has_reason: bool
    ) -> Iterator[WatchEvent]:
        """Events of a finished inspection; starts the next one when it is due.

        `has_reason`: whether there is a reason to diagnose.
        """
        now = time.monotonic()
        self._processes = processes
        self._has_reason = self._has_reason or has_reason
        self._lost_since, self._autopsies = 0.0, 0
        yield from self._found(view, now)
        self._forget_ended(view)
        if not self._child.is_running:
            self._begin(view, now)

    def turn_after_loss(self, view: WatchView) -> Iterator[WatchEvent]:
        """As `turn`, while the cluster does not reply: its logs on this machine are diagnosed."""
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        yield from self._found(view, now)
        may = self._options.diagnose and self.cluster.session_dir and not self._child.is_running
        due = [each for each in _AUTOPSIES if now - self._lost_since >= each]
        if may and len(due) > self._autopsies and self._budget.may(now, self._costs[_REPORT]):
            self._autopsies = len(due)
            self._start({"session": self.cluster.session_dir, "report": True}, _REPORT, now)

    def _found(self, view: WatchView, now: float) -> Iterator[WatchEvent]:
        reply = self._child.poll()
        if reply is not None:
            self._budget.child(now, self._child.cost)
            if not reply.get("problem"):
                self._costs[self._under_way] = self._child.cost
            yield from self._taken(view, reply)

    # -------------------------------------------------------------- starting

    def _begin(self, view: WatchView, now: float) -> None:
        self._find_idle(view, now)
        suspects = [
            each
            for each in view.lines
            if each.running.key[:2] in self._idle or self._may_hang(each, view.snapshot.at)
        ]
        wanted = self._affordable(now, bool(suspects))
        if wanted is None:
            return
        address = self.cluster.gcs_address
        typed = address in self.cluster.typed
        request: dict[str, Any] = {"address": address, "typed": typed, "report": wanted[0]}
        is_urgent = wanted[1] and bool(self._idle)
        if wanted[1]:
            request |= self._of_stacks(view, suspects)
            self._urgent.update(self._idle)
            self._idle = set()
        self._start(request, wanted, now, is_urgent=is_urgent)

    def _start(
        self,
        request: dict[str, Any],
        wanted: tuple[bool, bool],
        now: float,
        *,
        is_urgent: bool = False,
    ) -> None:
        for pace, is_wanted in zip(self._paces, wanted, strict=True):
            if is_wanted:
                pace.started(now)
        self._has_reason = self._has_reason and not wanted[0]
        self._under_way = wanted
        if why := self._child.start(request, is_urgent=is_urgent):
            self._note(self._failed(why))

    def _affordable(self, now: float, has_suspects: bool) -> tuple[bool, bool] | None:
        """The due parts that the budget allows: both, otherwise the diagnosis, otherwise the stacks."""
        of_report, of_stacks = self._paces
        report = self._options.diagnose and of_report.is_due(now, self._has_reason)
        is_urgent = bool(self._idle) and of_stacks.has_rested(now, _URGENT_EVERY)
        stacks = self._options.hung and has_suspects and (is_urgent or of_stacks.is_due(now, True))
        choices = ((report, stacks), (report, False), (False, stacks))
        for each in reversed(choices) if is_urgent else choices:
            may_advance = is_urgent and each == (False, True)
            if any(each) and self._budget.may(now, self._costs[each], is_urgent=may_advance):
                return each
        return None

    def _find_idle(self, view: WatchView, now: float) -> None:
        """Find the tasks of this machine whose main thread has not run for a minute."""
        if now < self._idle_next or not self._options.hung:
            return
        self._idle_next = now + _IDLE_EVERY
        at, known = view.snapshot.at, {changes.task_of(each) for each in view.hung}
        lines = [
            each.running
            for each in view.lines
            if each.running.age(at) >= _IDLE_AGE
            and each.running.run.task not in known
            and self._is_here(each)
            and self._urgent[each.running.key[:2]] < _URGENT
        ]
        rested = rests.of_main_threads({each.run.pid for each in lines[:_SUSPECTS]})
        self._woken = {pid: known for pid, known in self._woken.items() if pid in rested}
        self._see_what_woke(rested, now)
        idle = {pid for pid, since in rested.items() if since >= _IDLE_AGE}
        idle |= {pid for pid, (_, was_woken) in self._woken.items() if was_woken}
        self._idle = {each.key[:2] for each in lines if each.run.pid in idle}

    def _see_what_woke(self, rested: Mapping[int, float], now: float) -> None:
        """Find out whether main threads that ran lately were only woken: one process in each turn."""
        for pid, since in rested.items():
            ran_at = now - since
            known = self._woken.get(pid)
            if known is not None and abs(known[0] - ran_at) < _SAME:
                continue
            self._woken.pop(pid, None)
            if _WOKEN_AFTER <= since < _IDLE_AGE:
                self._woken[pid] = ran_at, rests.is_main_woken(pid)
                return

    def _is_here(self, line: TaskLine) -> bool:
        """Whether its process runs here. The pid of a worker in a container is not one of this machine's."""
        run = line.running.run
        return run.node in self.cluster.node_ids and run.pid in self._processes

    def _of_stacks(self, view: WatchView, suspects: Sequence[TaskLine]) -> dict[str, Any]:
        """The processes to sample: all tasks that are as old as the youngest suspect, up to the limit."""
        at, here = view.snapshot.at, self.cluster.node_ids
        youngest = min(_HUNG_AGE, *(each.running.age(at) for each in suspects))
        old = [each.running for each in view.lines if each.running.age(at) >= youngest]
        self._stacked |= {each.key[:2]: each.age(at) for each in old}
        return {
            "suspects": min(_DRIVERS, view.snapshot.drivers) + min(_SUSPECTS, len(old)),
            "age_s": max(_YOUNGEST, youngest - 1.0),
            "elsewhere": any(each.running.run.node not in here for each in suspects),
        }

    def _may_hang(self, line: TaskLine, now: float) -> bool:
        """Whether a task may be hung: it is old or slow, and was not sampled recently."""
        age = line.running.age(now)
        if age <= _HUNG_AGAIN * self._stacked.get(line.running.key[:2], 0.0):
            return False
        if line.is_slow(now):
            return True
        if not self._is_here(line):
            return age >= _HUNG_AGE
        share = self._effort.share(line.running.run.pid, self._processes, now)
        return age >= _HUNG_AGE and share is not None and share < _AT_WORK

    # -------------------------------------------------------------- results

    def _taken(self, view: WatchView, reply: dict[str, Any]) -> Iterator[WatchEvent]:
        """Events for what is new; a part that the reply lacks stays unchanged."""
        rows, hangs = reply.get("diagnoses"), reply.get("hung")
        found = list(changes.diagnoses(view.diagnoses, rows)) if rows is not None else []
        hung = list(changes.hangs(view.hung, hangs)) if hangs is not None else []
        for pace, was_wanted, news in zip(self._paces, self._under_way, (found, hung), strict=True):
            if was_wanted:
                pace.ended(bool(news))
        if rows is not None:
            view.diagnoses = rows
        if hangs is not None:
            view.hung = hangs
        why = reply.get("problem")
        if why and hangs is None:
            self._stacked.clear()
        self._note(self._failed(str(why), str(reply.get("hint") or "")) if why else None)
        yield from (*found, *hung)

    def _note(self, problem: WatchProblem | None) -> None:
        for n, was_wanted in enumerate(self._under_way):
            if was_wanted:
                self._problems[n] = problem

    def _failed(self, why: str, hint: str = "") -> WatchProblem:
        names = ("the diagnosis", "the search for hung tasks")
        commands = ("raydoctor diagnose", "raydoctor hung")
        parts = [n for n, asked in zip(names, self._under_way, strict=True) if asked]
        command = commands[0] if self._under_way[0] else commands[1]
        where = f"{command} --address {self.cluster.gcs_address}"
        return WatchProblem(
            " and ".join(parts), why, hint or f"raydoctor tries again. By hand: {where}"
        )

    def _forget_ended(self, view: WatchView) -> None:
        """Drop hung tasks that no longer run; for pending tasks the next inspection decides."""
        running = {each.running.run.task for each in view.lines}
        running |= {each.task for each in view.snapshot.running}
        view.hung = [h for h in view.hung if changes.task_of(h) in running or not _runs(h)]
        self._stacked = {k: age for k, age in self._stacked.items() if k[0] in running}
        self._urgent = Counter({k: n for k, n in self._urgent.items() if k[0] in running})


def _runs(hung: Mapping[str, Any]) -> bool:
    return bool(changes.task_of(hung)) and str(hung.get("state")).startswith("RUNNING")
