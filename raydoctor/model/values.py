"""The values that cross layers: frozen, slotted, without behaviour beyond small properties.

Imports only from this package. The terms follow the project's glossary: a *source* is one file of a
*capture*, an *event* one recognized record in it, a *finding* a rule's conclusion from events, a
*diagnosis* a finding in the report, linked with the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raydoctor.model.entities import Entity
from raydoctor.model.status import LiveStatus
from raydoctor.model.timeline import Neighbours, Timeline

Severity = Literal["critical", "error", "warning", "info"]
Tier = Literal["root", "cause", "symptom"]
Risk = Literal["safe", "disruptive", "destructive"]

SEVERITIES: tuple[Severity, ...] = ("critical", "error", "warning", "info")
"""Worst first."""


CONSOLES = ("driver", "job-driver")
"""Roles of sources that hold the output of drivers."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One file of a capture, with the facts in its path. Compared by identity, because captures have many."""

    path: str
    """Relative to the capture, with forward slashes, as in reports."""
    role: str
    node: str = ""
    """Label of the node of these logs: the folder that contains `logs/`, or empty."""
    entities: tuple[Entity, ...] = ()
    pid: int | None = None
    size: int = 0
    is_excerpt: bool = False
    """A part of a console, or a console without Ray's logs: its content identifies its writers."""
    places: Sequence[int] = field(default=(), repr=False)
    """If the file is a part of a rewritten console: the place of each line in the whole."""
    lines: Sequence[int] = field(default=(), repr=False)
    """The line number in the original of each place, if the file was rewritten."""

    def place(self, number: int) -> int:
        """The place of a line of this file."""
        return self.places[number - 1] if 0 < number <= len(self.places) else number

    def line(self, place: int) -> int:
        """The number in the original of the line at a place."""
        return self.lines[place - 1] if 0 < place <= len(self.lines) else place


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One match of a signal. Compared by identity: two equal lines are two events."""

    kind: str
    source: Source
    line: int
    """1-based line of the hit in the source. In a rewritten console it is a place until the report."""
    offset: int
    text: str
    """The whole record without colours, at most some hundred lines."""
    message: str = ""
    """The record without header and driver prefix, which patterns are matched against."""
    at: float | None = None
    """Epoch seconds; None if the record contains no time."""
    slack: float = 0.0
    """Uncertainty of `at` in seconds."""
    level: str = ""
    """`D I W E C` as Ray's C++ prints it (`C` is fatal), or empty."""
    pid: int | None = None
    """Pid of the process that wrote the record, if the record or the file name contains it."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Named groups of the signal's pattern, and `key=value` pairs at the record's end."""
    entities: frozenset[Entity] = frozenset()
    count: int = 1
    """The number of equal records that this one represents (`[repeated 3x across cluster]`, error storms)."""
    sightings: tuple[Event, ...] = ()
    """Records of the same event in other files (`.err` twins)."""

    def __getitem__(self, name: str) -> str:
        """A field, or the empty string if this version of the text lacks it."""
        return self.fields.get(name) or ""


@dataclass(frozen=True, slots=True)
class Gap:
    """Missing evidence: what is missing, why, and how to get it."""

    what: str
    why: str
    hint: str = ""
    optional: bool = False
    """Whether the source is optional (the kernel log, for example). Its absence alone does not make a capture
    incomplete; it counts if a diagnosis lists it."""
    about: str = ""
    """The missing part, for programs: `tasks`, `stacks`, `table` (damaged), `search` (rg ended early),
    `driver` (output), `end` (of a driver), `clusters` (others), `joining` (programs that have
    not connected), `kernel` (log), `raylet-out`, `gcs-out`. A report lists each part once. `quoted`: errors
    that were left out. `cause`: of a failure, dropped if the report shows it."""
    is_observation: bool = False
    """Whether `why` says what the logs show, and only its meaning is unknown: nothing was left unread."""

    @property
    def gist(self) -> str:
        """The main clause, for a headline."""
        said = self.why if self.is_observation else f"{self.what}: {self.why}"
        return said.partition("; ")[0]


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain: an event and its meaning."""

    event: Event
    shows: str
    code: str = ""
    """The line of the user's program that failed, and in a second line Python's marks, if there are any."""
    around: Neighbours | None = None
    """The lines around the record, where a format shows them."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A concrete fix. `steps` are lines to paste or to follow; `risk` is the possible harm."""

    title: str
    steps: tuple[str, ...] = ()
    risk: Risk = "safe"
    doc: str = ""
    since: tuple[int, int] = (0, 0)
    """First Ray (major, minor) that supports the setting; the remedy is dropped for older captures."""
    until: tuple[int, int] = (999, 0)
    """First Ray (major, minor) that no longer supports it."""
    finds_cause: bool = False
    """Only finds out what caused the failure: dropped if the report shows the cause."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The task, actor, process or node that a diagnosis is about, for reports."""

    kind: str
    id: str | None = None
    name: str | None = None
    pid: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """One incident as a rule reports it."""

    headline: str
    """One sentence with the numbers that matter."""
    chain: tuple[Link, ...]
    """From cause to symptom; never empty, because every finding needs evidence."""
    explains: tuple[Entity, ...] = ()
    """Entities whose end or failure this finding accounts for."""
    caused_by: tuple[Entity, ...] = ()
    """Entities whose end or failure would in turn account for this finding."""
    subjects: tuple[Subject, ...] = ()
    count: int = 1
    severity: Severity | None = None
    """None: the rule's own."""
    remedies: tuple[Remedy, ...] | None = None
    """None: the rule's own; computed ones carry this incident's numbers."""
    covers: tuple[Event, ...] = ()
    """Further events that belong to this incident and need no link of their own."""
    gaps: tuple[Gap, ...] = ()
    at: float | None = None
    """Epoch seconds at which it happened, where its evidence only shows when others noticed it. None: at the
    first evidence of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """A finding as the report shows it: with an id, its rule's name, and its consequences."""

    id: str
    rule: str
    tier: Tier
    severity: Severity
    headline: str
    count: int
    chain: tuple[Link, ...]
    remedies: tuple[Remedy, ...]
    subjects: tuple[Subject, ...] = ()
    gaps: tuple[Gap, ...] = ()
    consequences: tuple[str, ...] = ()
    first_at: float | None = None
    """Epoch seconds: when it happened, or the first evidence of it."""
    last_at: float | None = None
    effect: str = ""
    """What it did to the program, in one sentence, as far as the logs show it. Empty for a consequence."""
    ended_driver: bool = False
    """Whether a driver's output ends with the exception that it caused."""

    @property
    def noticed_at(self) -> float | None:
        """The time of its first evidence, if that is later than what it is about; otherwise None."""
        times = [link.event.at for link in self.chain if link.event.at is not None]
        if self.first_at is None or self.first_at in times:
            return None
        return min((at for at in times if at >= self.first_at + 1), default=None)

    @property
    def is_snapshot(self) -> bool:
        """Whether its time is that of a live collection, which saw what may have begun long before."""
        if self.first_at is None:
            return False
        at_first = [link.event.kind for link in self.chain if link.event.at == self.first_at]
        return bool(at_first) and all(kind.startswith("live.") for kind in at_first)

    def __repr__(self) -> str:
        """One line, for a prompt."""
        return f"<Diagnosis {self.id} {self.rule} ({self.severity}): {self.headline!r}>"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as the capture shows it."""

    id: str
    ip: str = ""
    head: bool = False


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """The read capture, for the report's head."""

    path: str
    kind: str
    """`live`, `session`, `logs`, `tree`, `archive`, `file` or `driver`."""
    ray_versions: tuple[str, ...] = ()
    nodes: tuple[NodeInfo, ...] = ()
    begin: float | None = None
    end: float | None = None
    files: int = 0
    bytes: int = 0
    has_zone: bool = True
    """Whether the zone of the logs' times is known; otherwise times are those of the log."""


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A symptom that no diagnosis accounts for."""

    kind: str
    file: str
    line: int
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Stats:
    """What the diagnosis cost, and how much it left out."""

    seconds: float = 0.0
    """From the opening of the capture on, the unpacking of an archive included."""
    hits: int = 0
    events: int = 0
    rules: int = 0
    outside_span: int = 0
    """Incidents that the report leaves out because they do not touch the requested span."""
    has_workers: bool = False
    """Whether an output has lines of workers, with the prefix that Ray gives them."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a diagnosis, which every renderer takes."""

    capture: CaptureInfo
    diagnoses: tuple[Diagnosis, ...] = ()
    unexplained: tuple[Unexplained, ...] = ()
    gaps: tuple[Gap, ...] = ()
    stats: Stats = Stats()
    status: LiveStatus | None = None
    """The state of the cluster during the diagnosis; None if it was not live."""
    timeline: Timeline | None = None
    """The course of the incident, where a format draws it."""

    def __repr__(self) -> str:
        """One line, for a prompt."""
        found = ", ".join(dict.fromkeys(root.rule for root in self.roots)) or "nothing found"
        more = f", {len(self.unexplained)} unexplained" if self.unexplained else ""
        state = "" if self.complete else ", evidence is missing"
        return f"<Report on {self.capture.path!r}: {found}{more}{state}>"

    @property
    def roots(self) -> tuple[Diagnosis, ...]:
        """The diagnoses that are not a consequence of another one, most severe first."""
        below = {name for d in self.diagnoses for name in d.consequences}
        return tuple(d for d in self.diagnoses if d.id not in below)

    @property
    def recognized(self) -> bool:
        """Whether anything in the files is a message of Ray or looks like an error."""
        info = self.capture
        read = self.stats.events or self.stats.has_workers
        return bool(read or info.ray_versions or info.nodes or self.unexplained)

    @property
    def complete(self) -> bool:
        """Whether no missing evidence could have hidden a failure."""
        return all(gap.optional for gap in self.gaps)
