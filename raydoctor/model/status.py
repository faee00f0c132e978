"""The state of a running cluster at one moment: the values that `status`, live reports and `watch` show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

NEAR = 0.9
"""Share of the threshold from which a gauge is `near`."""


class ResourceUser(NamedTuple):
    """A process that uses much memory, or content that fills a disk."""

    pid: int
    """0 for a folder."""
    name: str
    bytes: int
    path: str = ""


class Gauge(NamedTuple):
    """One memory or one file system of one node."""

    node: str
    ip: str
    what: Literal["memory", "disk"]
    path: str
    """Mount point of a disk, if known."""
    used: int
    limit: int
    threshold: float
    """The share at which Ray kills workers, or stops writing."""
    users: tuple[ResourceUser, ...] = ()
    is_assumed: bool = False
    """Whether the threshold is Ray's default because the node's setting is unknown."""

    @property
    def share(self) -> float:
        """Usage as a share of the limit."""
        return self.used / self.limit if self.limit else 0.0

    @property
    def level(self) -> Literal["ok", "near", "over"]:
        """Whether usage has reached the threshold, or is near it."""
        if self.share >= self.threshold:
            return "over"
        return "near" if self.share >= self.threshold * NEAR else "ok"

    def as_row(self) -> dict[str, Any]:
        """As a row of a table, and in JSON."""
        return {
            "node_id": self.node,
            "ip": self.ip or None,
            "what": self.what,
            "path": self.path or None,
            "used": self.used,
            "limit": self.limit,
            "threshold": self.threshold,
            "threshold_assumed": self.is_assumed,
            "level": self.level,
            "users": [each._asdict() for each in self.users],
        }


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """One resource of all live nodes, in Ray's units: bytes for memory and the object store."""

    name: str
    used: float | None
    """None if no node reported its usage."""
    total: float


@dataclass(frozen=True, slots=True)
class TaskAge:
    """A task, and the seconds since it entered its state."""

    name: str
    age: float


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Pending tasks of one function that wait for the same reason."""

    kind: str
    """As in `raydoctor hung`; for a task on its way, Ray's state in lower case."""
    name: str
    reason: str
    """`waits for 1 CPU, held by work (pid 812)`."""
    count: int
    oldest: float
    """Seconds that the oldest has been in its state."""


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The unfinished tasks, actor methods and actor creations."""

    running: int
    pending: int
    """According to the processes that submitted them, if all of these replied."""
    oldest_running: TaskAge | None
    oldest_pending: TaskAge | None
    waits: tuple[WaitingGroup, ...]
    """Most tasks first. Newer tasks may not be in them: Ray reports tasks with a delay of a second."""
    is_complete: bool
    """Whether all pending tasks were listed."""


@dataclass(frozen=True, slots=True)
class EnvironmentBuild:
    """A runtime environment that Ray's agent on a node is setting up."""

    tool: str
    """`pip`, `working_dir and uv`; empty if unknown."""
    node: str
    """Label of the node's logs; empty for this machine."""
    age: float | None
    """Seconds since it began."""
    limit: float | None
    """Seconds that each attempt may take."""
    attempt: int
    command: str
    """The command that runs now, if it is known: `pip install -r requirements.txt`."""
    command_age: float | None
    last_error: str
    """The decisive line of the last failed attempt."""


class SilentNode(NamedTuple):
    """A node that the GCS still lists as alive, although its raylet cannot answer."""

    node: str
    pid: int
    """Of the stopped raylet; 0 if it is gone."""


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """A cluster at one moment."""

    at: float
    """Epoch seconds."""
    nodes: int
    dead_nodes: int
    """Nodes that Ray still lists as dead."""
    draining: int
    """Of the live ones, those that take no new work because they are about to end."""
    workers: int | None
    drivers: int | None
    resources: tuple[ResourceUse, ...]
    tasks: TaskCounts | None
    """None if the cluster did not report its tasks."""
    actors: Mapping[str, int] | None
    """State -> number."""
    gauges: tuple[Gauge, ...]
    builds: tuple[EnvironmentBuild, ...]
    silent: tuple[SilentNode, ...] = ()
    """Among the live nodes, those of this machine with a stopped raylet, or without one."""
