"""One cluster while it is watched: round after round what runs, what is full, left over, or wrong.

A round is one look (`observe/watching/watching.py`) and what it costs little to add; what costs more is
asked rarely, in a thread (metrics, leftovers, disks) or by a child (`looks.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raydoctor.act.tracking.remember import Memory
from raydoctor.model import paste
from raydoctor.model import text as _text
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.machine import storage
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.watching import gauges as watch_gauges
from raydoctor.observe.watching.clocks import Clocks, Running
from raydoctor.observe.watching.gauges import Gauge, Metrics, User
from raydoctor.observe.watching.logs import Logs
from raydoctor.observe.watching.process_table import Table
from raydoctor.observe.watching.watching import Peers, Snapshot, Watcher
from raydoctor.watch import background, changes
from raydoctor.watch import guard as guards
from raydoctor.watch.budget import WatchBudget
from raydoctor.watch.event import WatchEvent, event
from raydoctor.watch.guard import TimeLimitGuard
from raydoctor.watch.inspections import Inspections
from raydoctor.watch.view import PEERS_AGE, TaskLine, WatchOptions, WatchProblem, WatchView

SHOWN = 30
"""Running tasks that are told of, the slowest."""
_UNTOLD_AGE = 4.0
"""Seconds that a task has run before the GCS is asked for its name: short ones come and go."""
_UNTOLD = 20
"""Tasks asked for in one round."""
_PEERS_EVERY = 300.0
_PEERS_SHARE = 0.01
"""Of the GCS's time, for the usual time of functions: it looks through all tasks for it."""
_METRICS_EVERY = 15.0
_METRICS_NODES = 10
"""Nodes that are asked so often; more are asked more rarely."""
_GAUGES_EVERY = 10.0
_FILLERS_EVERY = 120.0
_LEFTOVERS_EVERY = 120.0
_LEFTOVERS_LEAST = 30.0
_LOGS_EVERY = 5.0
_STUCK = 30.0
"""Seconds for which tasks may wait while none runs."""
_SILENT = 3
"""Looks that a worker does not answer before that is told."""


class WatchedCluster:
    """One cluster, as long as it is the same."""

    def __init__(
        self,
        cluster: Cluster,
        watcher: Watcher,
        options: WatchOptions,
        guard: TimeLimitGuard | None,
        budget: WatchBudget,
    ) -> None:
        self.cluster = cluster
        self.watcher = watcher
        self.clocks = Clocks()
        self.view: WatchView | None = None
        self._guard = guard
        self._memory = Memory(cluster)
        self._processes = Table()
        self._logs = Logs(cluster.session_dir)
        self._logs_next = 0.0
        self._stuck_since = 0.0
        """Since when tasks wait and none runs; 0 while some do."""
        self._config = watcher.config() or storage.system_config(cluster)
        self._threshold = watch_gauges.memory_threshold(cluster, self._config)
        self._things: list[User] = []
        """What of Ray's fills the disks here, as far as that was asked."""
        self._peers: dict[str, tuple[float, Peers | None]] = {}
        self._peers_next = 0.0
        self._silent: Counter[str] = Counter()
        self._slow: set[tuple[str, str]] = set()
        self._counted: Metrics | None = None
        self._elsewhere: tuple[Gauge, ...] = ()
        self._table: Mapping[int, Process] = {}
        self._inspections = Inspections(cluster, options, budget)
        self._threads()

    def _threads(self) -> None:
        self._metrics = background.BackgroundQuery[Metrics](self._ask_metrics, _METRICS_EVERY)
        self._gauges = background.BackgroundQuery[list[Gauge]](self._ask_gauges, _GAUGES_EVERY)
        self._leftovers = background.BackgroundQuery[int](_count_leftovers, _LEFTOVERS_EVERY)
        self._fillers = background.BackgroundQuery[list[User]](
            lambda: watch_gauges.fillers(self.cluster), _FILLERS_EVERY
        )

    @property
    def _all_threads(self) -> tuple[background.BackgroundQuery[Any], ...]:
        return self._metrics, self._gauges, self._leftovers, self._fillers

    def is_same(self, snapshot: Snapshot) -> bool:
        """Whether a look is of the cluster that this is the story of."""
        before = self.view.snapshot if self.view else None
        if before is None:
            return True
        if before.session and snapshot.session:
            return before.session == snapshot.session
        return bool({n.node for n in before.nodes} & {n.node for n in snapshot.nodes})

    def use(self, cluster: Cluster, watcher: Watcher | None = None) -> None:
        """The cluster as it is now on this machine, and who looks at it from now on."""
        self.cluster, self.watcher = cluster, watcher or self.watcher
        self.watcher.here = frozenset(cluster.node_ids)
        self._inspections.cluster = cluster

    def add(self, snapshot: Snapshot, events: list[WatchEvent]) -> None:
        """A round: what happened since the last one is added to `events`, as far as it was found out.

        Raises LookError where the GCS answers no more.
        """
        before = self.view
        self.clocks.see(snapshot)
        if before is None:
            self.clocks.learn(self.watcher.running())
        elif untold := self.clocks.untold(snapshot.at, _UNTOLD_AGE, _UNTOLD):
            self.clocks.learn(self.watcher.told(untold).values())
        self._remember()
        self._ask_peers(snapshot.at)
        view = WatchView(snapshot) if before is None else before
        events += self._changes(view.snapshot, snapshot)
        self.view, view.snapshot = view, snapshot
        view.lines = self._lines(view)
        events += self._slow_ones(view)
        events += self._from_threads(view)
        if self._guard is not None:
            events += self._guard.check(self.cluster, self.clocks, self.watcher.told, snapshot.at)
        events += self._inspections.turn(view, self._table, self._reason(events))
        self._note_problems(view, events)

    def lost(self, events: list[WatchEvent]) -> None:
        """A round without an answer: what the logs say of it."""
        if self.view is not None:
            events += self._inspections.turn_after_loss(self.view)
            self._note_problems(self.view, events)

    def close(self) -> None:
        """Let go of everything; a child that runs is ended."""
        self.watcher.close()
        self._inspections.end()

    @property
    def spent(self) -> float:
        """Seconds of a processor that children took."""
        return self._inspections.spent

    @property
    def spent_in_threads(self) -> float:
        """The same for what was asked in threads of this process."""
        return sum(each.spent for each in self._all_threads)

    # -------------------------------------------------------------- tasks

    def _remember(self) -> None:
        """What workers of this machine started: `zombies` finds it later."""
        if self.cluster.node_ids:
            self._table = self._processes.look()
            self._memory.look(self._table)

    def _ask_peers(self, now: float) -> None:
        """How long the functions of the slowest usually take: one question a round, and not often."""
        if now < self._peers_next:
            return
        for running in self.clocks.running():
            told = running.told
            if told is None or running.age(now) < PEERS_AGE:
                continue
            asked = self._peers.get(told.function)
            if asked is None or now - asked[0] > _PEERS_EVERY:
                began = time.monotonic()
                self._peers[told.function] = (now, self.watcher.peers(told.function))
                self._peers_next = now + (time.monotonic() - began) / _PEERS_SHARE
                return

    def _lines(self, view: WatchView) -> list[TaskLine]:
        hangs = {changes.task_of(each): str(each.get("kind", "")) for each in view.hung}
        lines = []
        for running in self.clocks.running()[:SHOWN]:
            function = running.told.function if running.told else ""
            peers = self._peers.get(function, (0.0, None))[1]
            hang = hangs.get(running.run.task, "")
            lines.append(TaskLine(running, self._name(running), peers, hang))
        return lines

    def _name(self, running: Running) -> str:
        process = self._table.get(running.run.pid)
        is_here = running.run.node in self.cluster.node_ids
        if running.told is None and is_here and process and process.name.startswith("ray::"):
            return process.name.removeprefix("ray::")
        return guards.title(running)

    def _slow_ones(self, view: WatchView) -> Iterator[WatchEvent]:
        now = view.snapshot.at
        for line in view.lines:
            key = line.running.key[:2]
            if key not in self._slow and line.peers and line.is_slow(now):
                self._slow.add(key)
                age = _text.duration(line.running.age(now))
                usual = _text.duration(line.peers.median)
                text = f"{line.name} (pid {line.running.run.pid}) runs for {age}, its peers took {usual}"
                told = guards.facts(line.running, now)
                yield event("task-slow", "warning", text, **told, median_s=line.peers.median)
        self._slow &= {each.key[:2] for each in self.clocks.running()}

    # -------------------------------------------------------------- what changed

    def _changes(self, before: Snapshot, snapshot: Snapshot) -> Iterator[WatchEvent]:
        yield from changes.nodes(before.nodes, snapshot.nodes)
        self._silent = Counter({w: self._silent[w] + 1 for w in snapshot.silent})
        for worker in (w for w, looks in self._silent.items() if looks == _SILENT):
            text = (
                f"worker {_text.short_id(worker)}… does not answer: it is stopped, or a cancel "
                "waits for its GIL"
            )
            yield event("worker-silent", "warning", text, worker_id=worker)
        if snapshot.workers < before.workers:
            self._leftovers.hurry(_LEFTOVERS_LEAST)

    def _reason(self, events: Sequence[WatchEvent]) -> bool:
        """Whether a diagnosis is worth more than in quiet times."""
        now = time.monotonic()
        if now >= self._logs_next:
            self._logs_next = now + _LOGS_EVERY
            if self._logs.look().is_trouble:
                return True
        return self._is_stuck(now) or any(
            each.event in ("tasks-failed", "node-gone", "worker-silent") for each in events
        )

    def _is_stuck(self, now: float) -> bool:
        """Whether tasks have waited for long while none ran: said once each time."""
        snapshot = self.view.snapshot if self.view else None
        if snapshot is None or snapshot.running or not snapshot.waiting:
            self._stuck_since = 0.0
        elif not self._stuck_since:
            self._stuck_since = now
        elif now - self._stuck_since > _STUCK:
            self._stuck_since = float("inf")
            return True
        return False

    # -------------------------------------------------------------- beside

    def _ask_metrics(self) -> Metrics:
        nodes = self.view.snapshot.nodes if self.view else ()
        return watch_gauges.metrics(self.cluster, nodes, self._config)

    def _ask_gauges(self) -> list[Gauge]:
        """Memory and disks of this machine."""
        cluster = self.cluster
        memory = watch_gauges.memory(cluster, self._table, self._threshold)
        return [*memory, *(watch_gauges.disks_here(cluster, self._config) if memory else ())]

    def _from_threads(self, view: WatchView) -> Iterator[WatchEvent]:
        now = time.monotonic()
        many = len(view.snapshot.nodes) / _METRICS_NODES
        self._metrics.every = _METRICS_EVERY * max(1.0, many)
        if (told := self._metrics.turn(now)) is not None:
            self._elsewhere = told.gauges
            yield from self._counts(view, told)
        if (here := self._gauges.turn(now)) is not None:
            gauges = [*watch_gauges.filled(here, self._things), *self._elsewhere]
            yield from changes.levels(view.gauges, gauges)
            view.gauges = gauges
        is_full = any(g.what == "disk" and g.level != "ok" and not g.ip for g in view.gauges)
        if is_full and (things := self._fillers.turn(now)) is not None:
            self._things = things
            view.gauges = watch_gauges.filled(view.gauges, things)
        count = self._leftovers.turn(now) if self.cluster.node_ids else None
        if count is not None:
            if count > (view.leftovers or 0):
                noun = _text.plural(count, "process", "processes")
                text = f"{noun} outlived a worker or session: raydoctor zombies"
                yield event("leftovers", "warning", text, count=count)
            view.leftovers = count

    def _counts(self, view: WatchView, told: Metrics) -> Iterator[WatchEvent]:
        """Tasks by state; and who failed since the last time, if as many nodes have told as then."""
        if not told.heard:
            return
        before, self._counted = self._counted, told
        view.counts = Counter()
        for (state, name), number in told.tasks.items():
            view.counts[state] += number
            more = number - before.tasks[state, name] if before else 0
            if state == "FAILED" and more > 0 and before and before.heard == told.heard:
                text = f"{_text.plural(more, 'task')} of {name or 'an unnamed function'} failed"
                yield event("tasks-failed", "error", text, name=name, count=more)

    def _note_problems(self, view: WatchView, events: list[WatchEvent]) -> None:
        problems = list(self._problems())
        events += changes.problems(view.problems, problems)
        view.problems = problems

    def _problems(self) -> Iterator[WatchProblem]:
        """What could not be found out the last time it was tried."""
        by_hand = paste.shell(
            "By hand: raydoctor check --address {address:address}", address=self.cluster.gcs_address
        )
        asked = (
            ("metrics", self._metrics, by_hand),
            ("memory and disks", self._gauges, by_hand),
            ("what fills the disks", self._fillers, "By hand: du -x -d 3 of the session's folder"),
            ("leftovers", self._leftovers, "By hand: raydoctor zombies"),
        )
        for what, thread, hint in asked:
            if thread.problem:
                yield WatchProblem(what, thread.problem, hint)
        yield from self._inspections.problems


def _count_leftovers() -> int:
    from raydoctor.act.zombies import leftovers

    return len(leftovers.find(leftovers.SweepOptions()))
