"""What a watch knows now: values that its rounds fill and its pages show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raydoctor.observe.watching.clocks import Running
from raydoctor.observe.watching.gauges import Gauge
from raydoctor.observe.watching.watching import Peers, Snapshot

PEERS_AGE = 10.0
"""Seconds that a task has run before it can be slow."""
_SLOW = 10
"""Times the median of its peers: a task that runs longer is slow."""


class WatchOptions(NamedTuple):
    """What is to be watched beside the tasks."""

    diagnose: bool = True
    hung: bool = True


class WatchProblem(NamedTuple):
    """Something that could not be found out."""

    what: str
    """`the diagnosis`, `metrics`."""
    why: str
    hint: str
    """What to do, a command mostly."""

    @property
    def text(self) -> str:
        """One sentence."""
        return f"{self.what}: {self.why}. {self.hint}".strip()


class TaskLine(NamedTuple):
    """A task that runs, for people."""

    running: Running
    name: str
    peers: Peers | None
    hang: str
    """In what it hangs, where that was found out."""

    def is_slow(self, now: float) -> bool:
        """Whether it runs far longer than its peers did."""
        least = max(PEERS_AGE, _SLOW * self.peers.median) if self.peers else float("inf")
        return self.running.age(now) > least


@dataclass(slots=True)
class WatchView:
    """What is known now."""

    snapshot: Snapshot
    lines: list[TaskLine] = field(default_factory=list)
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
    problems: list[WatchProblem] = field(default_factory=list)
    """What could not be found out the last time."""
