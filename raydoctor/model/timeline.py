"""The course of an incident: what happened when, on which node and in which process, and how full memory was.

A `Report` has a timeline only where a format draws it (`engine.run(…, detailed=True)`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MarkKind = Literal["kill", "death", "failure", "silent", "spill", "restart", "sign", "start", "end"]
"""`kill`: by the kernel or the raylet, for memory. `death`: an end that is a failure. `failure`: the event
that a diagnosis of an error is about, if it is none of the others. `silent`: no reply.
`spill`: objects move to disk, or the disk is full. `sign`: other evidence of a diagnosis. `end`: an expected
end."""
Resource = Literal["memory", "object store", "disk"]


@dataclass(frozen=True, slots=True)
class Lane:
    """A component that things happen to."""

    id: str
    kind: Literal["cluster", "node", "process"]
    name: str
    """`node 10.0.0.2`, `train (pid 379)`, `rank 1: RayTrainWorker (pid 605)`."""
    node: str = ""
    """The lane of the process's node; empty if unknown."""
    begin: float | None = None
    """Epoch seconds of its start, or of the first sign of it; None if not recorded."""
    end: float | None = None
    """Epoch seconds of its end; None if nothing shows that it ended."""
    missing: str = ""
    """Why its logs show nothing; empty if they were read."""
    has_own_row: bool = False
    """A driver, a rank, or a process that a diagnosis is about: the chart draws it even if it has no mark."""
    is_driver: bool = False
    """A driver of the user, and not Ray's job manager, which Ray records as the driver of a submitted job."""


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """One moment of a lane."""

    lane: str
    kind: MarkKind
    text: str
    at: float
    until: float | None = None
    """The end of a period, such as a silence."""
    count: int = 1
    diagnoses: tuple[str, ...] = ()
    """Ids of the diagnoses that use it as evidence."""
    short: str = ""
    """A few words for a chart that has no room for the text."""
    is_repeat: bool = False
    """Another lane has the same event, so the chart has words for that one only."""


@dataclass(frozen=True, slots=True)
class UsageReading:
    """How full a node's memory, object store or disk was at one moment."""

    node: str
    """The lane of the node."""
    what: Resource
    scope: str
    """The cgroup or mount, where the reading is not of the whole node."""
    at: float
    used: float
    """Bytes."""
    limit: float
    """Bytes."""
    threshold: float = 0.0
    """Bytes from which Ray kills, or refuses to write; 0 if there is none."""
    holders: tuple[tuple[str, float], ...] = ()
    """The processes that held most, largest first, and their bytes, if the record lists them."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that a chart of the incident needs, in time order."""

    lanes: tuple[Lane, ...] = ()
    marks: tuple[TimelineMark, ...] = ()
    readings: tuple[UsageReading, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnRecords:
    """When a process wrote its own log."""

    first: float
    """Epoch seconds of the first record."""
    last: float
    has_left: bool = False
    """Whether it took leave of its raylet, which is how a process ends on purpose."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The lines of a file around a record."""

    before: str
    after: str
