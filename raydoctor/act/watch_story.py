"""One cluster while it is watched: round after round what runs, what is full, left over, or wrong.

A round is one look (`collect/watching.py`) and what it costs little to add; what costs more is asked rarely,
in a thread (metrics, leftovers, disks) or by a command of raydoctor's own in a child (`diagnose` when tasks
failed or the logs tell of trouble, `hung` when a task runs far longer than its peers).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raydoctor import _text
from raydoctor.act import watch as guards
from raydoctor.act import watch_beside as beside
from raydoctor.act import watch_changes as changes
from raydoctor.act.remember import Memory
from raydoctor.act.watch import Guard
from raydoctor.act.watch_event import Event, event
from raydoctor.collect import watch_gauges
from raydoctor.collect.cluster import Cluster
from raydoctor.collect.proc import Process
from raydoctor.collect.watch_clocks import Clocks, Running
from raydoctor.collect.watch_gauges import Gauge, Metrics
from raydoctor.collect.watch_logs import Logs
from raydoctor.collect.watch_table import Table
from raydoctor.collect.watching import Peers, Seen, Watcher

SHOWN = 30
"""Running tasks that are told of, the slowest."""
_UNTOLD_AGE = 4.0
"""Seconds that a task has run before the GCS is asked for its name: short ones come and go."""
_UNTOLD = 20
"""Tasks asked for in one round."""
_PEERS_AGE = 10.0
_PEERS_EVERY = 300.0
_PEERS_SHARE = 0.01
"""Of the GCS's time, for the usual time of functions: it looks through all tasks for it."""
_SLOW = 10
"""Times the median of its peers: a task that runs longer is slow."""
_HUNG_AGE = 60.0
_METRICS_EVERY = 15.0
_METRICS_NODES = 10
"""Nodes that are asked so often; more are asked more rarely."""
_GAUGES_EVERY = 10.0
_LEFTOVERS_EVERY = 120.0
_LEFTOVERS_LEAST = 30.0
_DIAGNOSE_EVERY = 10.0
_HUNG_EVERY = 30.0
_HUNG_AGAIN = 4
"""Times the age at which its stack was looked at: then it is looked at again."""
_LOGS_EVERY = 5.0
_SILENT = 3
"""Looks that a worker does not answer before that is told."""


class Wishes(NamedTuple):
    """What is to be watched beside the tasks."""

    diagnose: bool = True
    hung: bool = True


class Line(NamedTuple):
    """A task that runs, for people."""

    running: Running
    name: str
    peers: Peers | None
    hang: str
    """In what it hangs, where that was found out."""

    def is_slow(self, now: float) -> bool:
        """Whether it runs far longer than its peers did."""
        return _is_slow(self.running.age(now), self.peers)


@dataclass(slots=True)
class View:
    """What is known now."""

    seen: Seen
    lines: list[Line] = field(default_factory=list)
    """The slowest first."""
    counts: Counter[str] | None = None
    """Tasks by state, those that ended too, as the metrics count; None while nobody has told."""
    gauges: list[Gauge] = field(default_factory=list)
    leftovers: int | None = None
    diagnoses: list[dict[str, Any]] = field(default_factory=list)
    """As in a report's JSON: `rule`, `severity`, `headline`."""
    is_diagnosed: bool = False
    """Whether any report has come yet."""
    hung: list[dict[str, Any]] = field(default_factory=list)
    """As in `raydoctor hung --json`."""


class Story:
    """One cluster, as long as it is the same."""

    def __init__(
        self, cluster: Cluster, watcher: Watcher, wishes: Wishes, guard: Guard | None
    ) -> None:
        self.cluster = cluster
        self.watcher = watcher
        self.clocks = Clocks()
        self.view: View | None = None
        self._guard = guard
        self._memory = Memory(cluster)
        self._processes = Table()
        self._logs = Logs(cluster.session_dir)
        self._logs_next = 0.0
        self._has_trouble = False
        """Whether the logs have told of trouble since the last diagnosis."""
        self._threshold = watch_gauges.memory_threshold(cluster)
        self._peers: dict[str, tuple[float, Peers | None]] = {}
        self._peers_next = 0.0
        self._silent: Counter[str] = Counter()
        self._slow: set[tuple[str, str]] = set()
        self._stacked: dict[tuple[str, str], float] = {}
        """Tasks whose stacks were looked at, and how old they were."""
        self._counted: Metrics | None = None
        self._elsewhere: tuple[Gauge, ...] = ()
        self._table: Mapping[int, Process] = {}
        self._threads()
        self._commands(wishes)

    def _threads(self) -> None:
        self._metrics = beside.Thread[Metrics](self._ask_metrics, _METRICS_EVERY)
        self._gauges = beside.Thread[list[Gauge]](self._ask_gauges, _GAUGES_EVERY)
        self._leftovers = beside.Thread[int](_count_leftovers, _LEFTOVERS_EVERY)

    def _commands(self, wishes: Wishes) -> None:
        where = ("--address", self.cluster.gcs_address)
        report = ("diagnose", "--format", "json", "--fail-on", "never", "--this-node", *where)
        self._diagnose = beside.Command(report) if wishes.diagnose else None
        self._hung_words = ("hung", "--json", *where)
        self._hung = beside.Command(self._hung_words) if wishes.hung else None
        self._diagnose_pace = beside.Pace(_DIAGNOSE_EVERY)
        self._hung_pace = beside.Pace(_HUNG_EVERY)

    def is_same(self, seen: Seen) -> bool:
        """Whether a look is of the cluster that this is the story of."""
        before = self.view.seen if self.view else None
        if before is None:
            return True
        if before.session and seen.session:
            return before.session == seen.session
        return bool({n.node for n in before.nodes} & {n.node for n in seen.nodes})

    def add(self, seen: Seen, events: list[Event]) -> None:
        """A round: what happened since the last one is added to `events`, as far as it was found out.

        Raises LookError where the GCS answers no more.
        """
        before = self.view
        self.clocks.see(seen)
        if before is None:
            self.clocks.learn(self.watcher.running())
        elif untold := self.clocks.untold(seen.at, _UNTOLD_AGE, _UNTOLD):
            self.clocks.learn(self.watcher.told(untold).values())
        self._remember()
        self._ask_peers(seen.at)
        view = View(seen) if before is None else before
        events += self._changes(view.seen, seen)
        self.view, view.seen = view, seen
        view.lines = self._lines(view)
        events += self._slow_ones(view)
        events += self._from_threads(view)
        if self._guard is not None:
            events += self._guard.check(self.cluster, self.clocks, self.watcher.told, seen.at)
        events += self._from_commands(view, self._reason(events))

    def close(self) -> None:
        """Let go of everything; commands that run are ended."""
        self.watcher.close()
        for command in (self._diagnose, self._hung):
            if command is not None:
                command.end()

    @property
    def spent(self) -> float:
        """Seconds of a processor that commands took."""
        return sum(each.spent for each in (self._diagnose, self._hung) if each is not None)

    @property
    def spent_in_threads(self) -> float:
        """The same for what was asked in threads of this process."""
        return sum(each.spent for each in (self._metrics, self._gauges, self._leftovers))

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
            if told is None or running.age(now) < _PEERS_AGE:
                continue
            asked = self._peers.get(told.function)
            if asked is None or now - asked[0] > _PEERS_EVERY:
                began = time.monotonic()
                self._peers[told.function] = (now, self.watcher.peers(told.function))
                self._peers_next = now + (time.monotonic() - began) / _PEERS_SHARE
                return

    def _lines(self, view: View) -> list[Line]:
        hangs = {_task_of(each): str(each.get("kind", "")) for each in view.hung}
        lines = []
        for running in self.clocks.running()[:SHOWN]:
            function = running.told.function if running.told else ""
            peers = self._peers.get(function, (0.0, None))[1]
            hang = hangs.get(running.run.task, "")
            lines.append(Line(running, self._name(running), peers, hang))
        return lines

    def _name(self, running: Running) -> str:
        process = self._table.get(running.run.pid)
        is_here = running.run.node in self.cluster.node_ids
        if running.told is None and is_here and process and process.name.startswith("ray::"):
            return process.name.removeprefix("ray::")
        return guards.title(running)

    def _slow_ones(self, view: View) -> Iterator[Event]:
        now = view.seen.at
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

    def _changes(self, before: Seen, seen: Seen) -> Iterator[Event]:
        yield from changes.nodes(before.nodes, seen.nodes)
        self._silent = Counter({w: self._silent[w] + 1 for w in seen.silent})
        for worker in (w for w, looks in self._silent.items() if looks == _SILENT):
            text = f"worker {_text.short_id(worker)}… does not answer: it may be stopped"
            yield event("worker-silent", "warning", text, worker_id=worker)
        if seen.workers < before.workers:
            self._leftovers.hurry(_LEFTOVERS_LEAST)

    def _reason(self, events: Sequence[Event]) -> bool:
        """Whether a diagnosis is worth more than in quiet times."""
        now = time.monotonic()
        if now >= self._logs_next:
            self._logs_next = now + _LOGS_EVERY
            self._has_trouble = self._has_trouble or self._logs.look().is_trouble
        return self._has_trouble or any(
            each.event in ("tasks-failed", "node-gone", "worker-silent") for each in events
        )

    # -------------------------------------------------------------- beside

    def _ask_metrics(self) -> Metrics:
        nodes = self.view.seen.nodes if self.view else ()
        return watch_gauges.metrics(nodes, self.cluster.node_ids, self._threshold)

    def _ask_gauges(self) -> list[Gauge]:
        """Memory and disks of this machine."""
        cluster = self.cluster
        memory = watch_gauges.memory(cluster, self._table, self._threshold)
        return [*memory, *(watch_gauges.disks_here(cluster) if memory else ())]

    def _from_threads(self, view: View) -> Iterator[Event]:
        now = time.monotonic()
        many = len(view.seen.nodes) / _METRICS_NODES
        self._metrics.every = _METRICS_EVERY * max(1.0, many)
        if (told := self._metrics.turn(now)) is not None:
            self._elsewhere = told.gauges
            yield from self._counts(view, told)
        if (here := self._gauges.turn(now)) is not None:
            gauges = [*here, *self._elsewhere]
            yield from changes.levels(view.gauges, gauges)
            view.gauges = gauges
        count = self._leftovers.turn(now) if self.cluster.node_ids else None
        if count is not None:
            if count > (view.leftovers or 0):
                noun = _text.plural(count, "process", "processes")
                text = f"{noun} outlived a worker or session: raydoctor zombies"
                yield event("leftovers", "warning", text, count=count)
            view.leftovers = count

    def _counts(self, view: View, told: Metrics) -> Iterator[Event]:
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

    def _from_commands(self, view: View, has_reason: bool) -> Iterator[Event]:
        if self._diagnose is not None:
            was_running = self._diagnose.is_running
            report = _turn(self._diagnose, self._diagnose_pace, True, has_reason)
            if self._diagnose.is_running and not was_running:
                self._has_trouble = False
            if report is not None:
                found = list(changes.diagnoses(view.diagnoses, report))
                self._diagnose_pace.ended(self._diagnose.cost, bool(found))
                view.diagnoses = list(report.get("diagnoses", []))
                view.is_diagnosed = True
                yield from found
        if self._hung is not None:
            yield from self._hangs(view, self._hung)

    def _hangs(self, view: View, command: beside.Command) -> Iterator[Event]:
        now = view.seen.at
        suspects = [each for each in view.lines if self._may_hang(each, now)]
        was_running = command.is_running
        is_here = all(each.running.run.node in self.cluster.node_ids for each in suspects)
        command.arguments = (*self._hung_words, *(("--this-node",) if is_here else ()))
        told = _turn(command, self._hung_pace, bool(suspects), True)
        if command.is_running and not was_running:
            self._stacked |= {each.running.key[:2]: each.running.age(now) for each in view.lines}
        if told is not None:
            found = list(changes.hangs(view.hung, told))
            self._hung_pace.ended(command.cost, bool(found))
            view.hung = list(told.get("hung", []))
            yield from found
        running = {each.running.run.task for each in view.lines}
        view.hung = [h for h in view.hung if _task_of(h) in running or not _task_of(h)]
        self._stacked = {k: age for k, age in self._stacked.items() if k[0] in running}

    def _may_hang(self, line: Line, now: float) -> bool:
        """Whether its stack is worth a look: it is old or slow, and was not looked at lately."""
        age = line.running.age(now)
        if age < _HUNG_AGE and not _is_slow(age, line.peers):
            return False
        return age > _HUNG_AGAIN * self._stacked.get(line.running.key[:2], 0.0)


def _task_of(hung: Mapping[str, Any]) -> str:
    return str((hung.get("task") or {}).get("id") or "")


def _turn(
    command: beside.Command, pace: beside.Pace, is_wanted: bool, has_reason: bool
) -> dict[str, Any] | None:
    """Run it when it is due; what it told."""
    was_running = command.is_running
    told = command.poll()
    if told is None and was_running and not command.is_running:
        pace.ended(command.cost, has_news=False)
    now = time.monotonic()
    if is_wanted and not command.is_running and pace.is_due(now, has_reason):
        pace.started(now)
        command.start()
    return told


def _is_slow(age: float, peers: Peers | None) -> bool:
    return peers is not None and age > max(_PEERS_AGE, _SLOW * peers.median)


def _count_leftovers() -> int:
    from raydoctor.act import leftovers

    return len(leftovers.find(leftovers.Wishes()))
