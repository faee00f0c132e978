"""The current state of a watch: values that rounds update and pages show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raydoctor.model.status import Gauge
from raydoctor.observe.watching.clocks import RunningClock
from raydoctor.observe.watching.watching import Peers, Snapshot

PEERS_AGE = 10.0
"""Seconds of running time from which a task can count as slow."""
_SLOW = 10
"""A task is slow if it has run for this multiple of its peers' median."""


class WatchOptions(NamedTuple):
    """Which inspections a watch makes."""

    diagnose: bool = True
    hung: bool = True
    silence: str = ""
    """What the lines of a job that makes progress match, for ripgrep; empty: log silence is not reported."""
    silence_after: float = 600.0
    """Seconds without such a line that are reported."""


class WatchProblem(NamedTuple):
    """Data that could not be collected."""

    what: str
    """`the diagnosis`, `metrics`."""
    why: str
    hint: str
    """What to do, usually a command."""

    @property
    def text(self) -> str:
        """One sentence."""
        return f"{self.what}: {self.why}. {self.hint}".strip()


class TaskLine(NamedTuple):
    """A running task, as pages show it."""

    running: RunningClock
    name: str
    peers: Peers | None
    hang: str
    """The kind of wait if the task is hung; otherwise empty."""

    def is_slow(self, now: float) -> bool:
        """Whether the task has run far longer than its peers."""
        least = max(PEERS_AGE, _SLOW * self.peers.median) if self.peers else float("inf")
        return self.running.age(now) > least


@dataclass(slots=True)
class WatchView:
    """The state of the watched cluster."""

    snapshot: Snapshot
    lines: list[TaskLine] = field(default_factory=list)
    """Longest running first."""
    counts: Counter[str] | None = None
    """Tasks by state, including finished ones, by Ray's metrics; None until the first reply."""
    counted_at: float = 0.0
    """When that reply arrived, by the clock of the snapshots."""
    gauges: list[Gauge] = field(default_factory=list)
    leftovers: int | None = None
    diagnoses: list[dict[str, Any]] = field(default_factory=list)
    """As in a report's JSON: `rule`, `severity`, `headline`."""

    hung: list[dict[str, Any]] = field(default_factory=list)
    """As in `raydoctor hung --json`."""
    problems: list[WatchProblem] = field(default_factory=list)
    """The data that could not be collected at the last attempt."""
