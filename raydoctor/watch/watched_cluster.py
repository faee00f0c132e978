"""One watched session: each round updates its tasks, gauges, leftovers, diagnoses and problems.

A round is one snapshot (`observe/watching/watching.py`) and cheap additions. Costlier data is queried rarely,
in a thread (metrics, leftovers, disks) or by a child process (`inspections.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raydoctor.act.tracking.lineage import ClusterLineage
from raydoctor.model import paste
from raydoctor.model import text as _text
from raydoctor.model.status import Gauge, ResourceUser
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.machine import storage
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.processes.redact import name_of_task
from raydoctor.observe.watching import gauges as watch_gauges
from raydoctor.observe.watching.clocks import Clocks, RunningClock
from raydoctor.observe.watching.gauges import Metrics
from raydoctor.observe.watching.logs import Logs
from raydoctor.observe.watching.process_table import ProcessTable
from raydoctor.observe.watching.silence import LogSilence
from raydoctor.observe.watching.watching import Peers, Snapshot, Watcher
from raydoctor.watch import background, changes
from raydoctor.watch import guard as guards
from raydoctor.watch.budget import WatchBudget
from raydoctor.watch.event import WatchEvent, event
from raydoctor.watch.guard import TimeLimitGuard
from raydoctor.watch.inspections import Inspections
from raydoctor.watch.view import PEERS_AGE, TaskLine, WatchOptions, WatchProblem, WatchView

SHOWN = 300
"""Number of running tasks that are listed, longest first."""
_UNREPORTED_AGE = 4.0
"""Seconds that a task has run before its name is queried from the GCS: short tasks are soon gone."""
_UNREPORTED = 20
"""Task names that one round queries."""
_PEERS_EVERY = 300.0
_PEERS_SHARE = 0.01
"""Share of the GCS's time for the usual time of functions: such a query scans all tasks."""
_METRICS_EVERY = 15.0
_METRICS_NODES = 10
"""Number of nodes that are queried this often; more nodes are queried more rarely."""
_GAUGES_EVERY = 10.0
_FILLERS_EVERY = 120.0
_LEFTOVERS_EVERY = 120.0
_LEFTOVERS_LEAST = 30.0
_LOGS_EVERY = 5.0
_STUCK = 30.0
"""Seconds that tasks may wait while none runs."""
_SILENT = 3
"""Rounds without a reply after which a worker is reported as silent."""


class WatchedCluster:
    """One session of a cluster."""

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
        self._lineage = ClusterLineage(cluster)
        self._processes = ProcessTable()
        self._logs = Logs(cluster.session_dir)
        self._logs_next = 0.0
        self._options = options
        self._silence = self._log_silence()
        self._silence_next = 0.0
        self._is_log_silent = False
        self._stuck_since = 0.0
        """When tasks began to wait while none runs; 0 while some run."""
        self._config = watcher.config() or storage.system_config(cluster)
        self._threshold = watch_gauges.memory_threshold(cluster, self._config)
        self._things: list[ResourceUser] = []
        """Ray's own files and folders that fill this machine's disks, if queried."""
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
        self._leftovers = background.BackgroundQuery[int](
            lambda: _count_leftovers(self.cluster), _LEFTOVERS_EVERY
        )
        self._fillers = background.BackgroundQuery[list[ResourceUser]](
            lambda: watch_gauges.fillers(self.cluster), _FILLERS_EVERY
        )

    @property
    def _all_threads(self) -> tuple[background.BackgroundQuery[Any], ...]:
        return self._metrics, self._gauges, self._leftovers, self._fillers

    def is_same(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is of this session."""
        before = self.view.snapshot if self.view else None
        if before is None:
            return True
        if before.session and snapshot.session:
            return before.session == snapshot.session
        return bool({n.node for n in before.nodes} & {n.node for n in snapshot.nodes})

    def use(self, cluster: Cluster, watcher: Watcher | None = None) -> None:
        """Update the cluster's processes on this machine, and replace the watcher if one is given."""
        self.cluster, self.watcher = cluster, watcher or self.watcher
        self.watcher.here = frozenset(cluster.node_ids)
        self._inspections.cluster = cluster

    def add(self, snapshot: Snapshot, events: list[WatchEvent]) -> None:
        """Do one round and add its events to `events`, even if it fails halfway.

        Raises QueryError if the GCS no longer replies.
        """
        before = self.view
        self.clocks.see(snapshot)
        if before is None:
            self.clocks.learn(self.watcher.running())
        elif untold := self.clocks.unreported(snapshot.at, _UNREPORTED_AGE, _UNREPORTED):
            self.clocks.learn(self.watcher.attempts(untold).values())
        self._remember()
        self._ask_peers(snapshot.at)
        view = WatchView(snapshot) if before is None else before
        events += self._changes(view.snapshot, snapshot)
        self.view, view.snapshot = view, snapshot
        view.lines = self._lines(view)
        events += self._slow_ones(view)
        events += self._from_threads(view)
        events += self._from_silence()
        if self._guard is not None:
            events += self._guard.check(
                self.cluster, self.clocks, self.watcher.attempts, snapshot.at
            )
        events += self._inspections.turn(view, self._table, self._reason(events))
        self._note_problems(view, events)

    def lost(self, events: list[WatchEvent]) -> None:
        """A round without a reply: the logs are diagnosed."""
        if self.view is not None:
            events += self._inspections.turn_after_loss(self.view)
            self._note_problems(self.view, events)

    def close(self) -> None:
        """Close the connection and end a running child process."""
        self.watcher.close()
        self._inspections.end()

    @property
    def spent(self) -> float:
        """CPU seconds of the child processes."""
        return self._inspections.spent

    @property
    def spent_in_threads(self) -> float:
        """CPU seconds of the queries in threads of this process."""
        return sum(each.spent for each in self._all_threads)

    # -------------------------------------------------------------- tasks

    def _remember(self) -> None:
        """Record the subprocesses of this machine's workers, so that `zombies` finds them later."""
        if self.cluster.node_ids:
            self._table = self._processes.refresh()
            self._lineage.sample(self._table)

    def _ask_peers(self, now: float) -> None:
        """Query how long the functions of the slowest tasks usually take: rarely, and one at a time."""
        if now < self._peers_next:
            return
        for running in self.clocks.running():
            reported = running.reported
            if reported is None or running.age(now) < PEERS_AGE:
                continue
            asked = self._peers.get(reported.function)
            if asked is None or now - asked[0] > _PEERS_EVERY:
                began = time.monotonic()
                self._peers[reported.function] = (now, self.watcher.peers(reported.function))
                self._peers_next = now + (time.monotonic() - began) / _PEERS_SHARE
                return

    def _lines(self, view: WatchView) -> list[TaskLine]:
        hangs = {changes.task_of(each): str(each.get("kind", "")) for each in view.hung}
        lines = []
        for running in self.clocks.running()[:SHOWN]:
            function = running.reported.function if running.reported else ""
            peers = self._peers.get(function, (0.0, None))[1]
            hang = hangs.get(running.run.task, "")
            lines.append(TaskLine(running, self._name(running), peers, hang))
        return lines

    def _name(self, running: RunningClock) -> str:
        process = self._table.get(running.run.pid)
        is_here = running.run.node in self.cluster.node_ids
        if running.reported is None and is_here and process and process.name.startswith("ray::"):
            return name_of_task(process.name.removeprefix("ray::"))
        return guards.title(running)

    def _slow_ones(self, view: WatchView) -> Iterator[WatchEvent]:
        now = view.snapshot.at
        for line in view.lines:
            key = line.running.key[:2]
            if key not in self._slow and line.peers and line.is_slow(now):
                self._slow.add(key)
                age = _text.duration(line.running.age(now))
                usual = _text.duration(line.peers.median)
                text = (
                    f"Task {line.name} (pid {line.running.run.pid}) has run for {age}; "
                    f"its peers took {usual}"
                )
                details = guards.facts(line.running, now)
                yield event("task-slow", "warning", text, **details, median_s=line.peers.median)
        self._slow &= {each.key[:2] for each in self.clocks.running()}

    # -------------------------------------------------------------- what changed

    def _changes(self, before: Snapshot, snapshot: Snapshot) -> Iterator[WatchEvent]:
        yield from changes.nodes(before.nodes, snapshot.nodes)
        self._silent = Counter({w: self._silent[w] + 1 for w in snapshot.silent})
        for worker in (w for w, looks in self._silent.items() if looks == _SILENT):
            text = (
                f"Worker {_text.short_id(worker)}… does not reply: it is stopped, or a cancel "
                "waits for its GIL"
            )
            yield event("worker-silent", "warning", text, worker_id=worker)
        if snapshot.workers < before.workers:
            self._leftovers.hurry(_LEFTOVERS_LEAST)

    def _reason(self, events: Sequence[WatchEvent]) -> bool:
        """Whether there is a reason for a diagnosis."""
        now = time.monotonic()
        if now >= self._logs_next:
            self._logs_next = now + _LOGS_EVERY
            if self._logs.has_trouble():
                return True
        return self._is_stuck(now) or any(
            each.event in ("tasks-failed", "node-gone", "worker-silent") for each in events
        )

    def _is_stuck(self, now: float) -> bool:
        """Whether tasks have waited for long while none ran; true once each time."""
        snapshot = self.view.snapshot if self.view else None
        if snapshot is None or snapshot.running or not snapshot.waiting:
            self._stuck_since = 0.0
        elif not self._stuck_since:
            self._stuck_since = now
        elif now - self._stuck_since > _STUCK:
            self._stuck_since = float("inf")
            return True
        return False

    def _log_silence(self) -> LogSilence | None:
        pattern, folder = self._options.silence, self.cluster.session_dir
        return LogSilence(folder, pattern) if pattern and folder else None

    def _from_silence(self) -> Iterator[WatchEvent]:
        """An event when no line has matched the pattern for too long, and one when a line matches again."""
        now = time.monotonic()
        if self._silence is None or now < self._silence_next:
            return
        self._silence_next = now + min(_LOGS_EVERY, self._options.silence_after / 4)
        seconds = self._silence.seconds(now)
        was, self._is_log_silent = self._is_log_silent, seconds >= self._options.silence_after
        shown = self._options.silence
        if self._is_log_silent and not was:
            age = _text.duration(seconds)
            text = f"No line of this machine's logs has matched {shown!r} for {age}"
            yield event("log-silent", "error", text, pattern=shown, silent_s=round(seconds, 1))
        elif was and not self._is_log_silent:
            yield event("log-resumed", "ok", f"A line matches {shown!r} again", pattern=shown)

    # -------------------------------------------------------------- in the background

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
        if (metrics := self._metrics.turn(now)) is not None:
            self._elsewhere = metrics.gauges
            yield from self._counts(view, metrics)
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
                text = f"{noun} outlived a worker or session. List them: raydoctor zombies"
                yield event("leftovers", "warning", text, count=count)
            view.leftovers = count

    def _counts(self, view: WatchView, metrics: Metrics) -> Iterator[WatchEvent]:
        """Tasks by state, and an event for new failures if the same nodes replied as last time."""
        if not metrics.heard:
            return
        before, self._counted = self._counted, metrics
        view.counts, view.counted_at = Counter(), view.snapshot.at
        for (state, name), number in metrics.tasks.items():
            view.counts[state] += number
            more = number - before.tasks[state, name] if before else 0
            if state == "FAILED" and more > 0 and before and before.heard == metrics.heard:
                shown = name_of_task(name)
                text = f"{_text.plural(more, 'task')} of {shown or 'an unnamed function'} failed"
                yield event("tasks-failed", "error", text, name=shown, count=more)

    def _note_problems(self, view: WatchView, events: list[WatchEvent]) -> None:
        problems = list(self._problems())
        events += changes.problems(view.problems, problems)
        view.problems = problems

    def _problems(self) -> Iterator[WatchProblem]:
        """The data that could not be collected at the last attempt."""
        by_hand = paste.shell(
            "By hand: raydoctor check --address {address:address}", address=self.cluster.gcs_address
        )
        asked = (
            ("metrics", self._metrics, by_hand),
            ("memory and disks", self._gauges, by_hand),
            ("the largest folders", self._fillers, "By hand: du -x -d 3 of the session's folder"),
            ("leftovers", self._leftovers, "By hand: raydoctor zombies"),
        )
        for what, thread, hint in asked:
            if thread.problem:
                yield WatchProblem(what, thread.problem, hint)
        yield from self._inspections.problems


def _count_leftovers(cluster: Cluster) -> int:
    from raydoctor.act.zombies import leftovers

    return sum(cluster.may_have_started(each.uid) for each in leftovers.find())
