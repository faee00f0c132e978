"""One node's reading as a file: the events of its logs, without the logs.

    {"reading": 1, "raydoctor": "0.1.0", "hits": 812, "files": 96, …}
    {"source": "logs/raylet.out", "role": "raylet-out", "size": 81920}
    {"event": "raylet.started", "source": 0, "line": 12, "offset": 2048, "text": "…", "at": 1795240000.5}
    …

One row per line (`live/live-events.jsonl`, role `reading`), so that a diagnosis of many nodes transfers
kilobytes of each and not gigabytes. Loading a reading restores it exactly. Rows that are damaged or have
another format are skipped and become a gap, never an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raydoctor.case.rule import Signal
from raydoctor.model import paste
from raydoctor.model.entities import MEANINGS, Entity
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read import budget, prefilter, scan
from raydoctor.read.valid_fields import ValidFields

FORMAT = 1
_LIMIT = 256 << 20
"""Maximum of bytes read from one file."""
_NESTED = 8
"""Maximum depth of sightings within sightings."""
_IDLE_SOURCES = 4000
"""Maximum of workers' files without events; a node exceeds it only after months."""
MORE_TIME = "Allow more time with --timeout, or copy that node's logs."
COPY = "Copy that node's logs."
_DIAGNOSE = "Copy that node's logs and run: raydoctor diagnose PATH"
_OWN_HINTS = frozenset({MORE_TIME, COPY, _DIAGNOSE, budget.HINT, scan.HINT, prefilter.AGAIN})
"""Hints that are kept unchanged; other hints may be forged and are made harmless to paste."""
_OF_WORKERS = ("worker-out", "worker-err", "core-worker", "core-io", "io-worker")


@dataclass(frozen=True, slots=True)
class NodeReading:
    """The events of one node's files, before nodes are merged."""

    events: tuple[Event, ...]
    sources: tuple[Source, ...]
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Worker -> the tasks that it had run."""
    endings: tuple[Event, ...] = ()
    """The ends of drivers' outputs."""
    gaps: tuple[Gap, ...] = ()
    hits: int = 0
    has_zone: bool = False
    """Whether the logs' offset from UTC is known."""


# ---------------------------------------------------------------- writing


def dump(reading: NodeReading, version: str = "") -> bytes:
    """A reading as JSON lines; `version`: the version of the raydoctor that made it."""
    used = {id(e.source) for e in _all(reading.events)} | {id(e.source) for e in reading.endings}
    idle = [s for s in reading.sources if s.role in _OF_WORKERS and id(s) not in used]
    dropped = {id(s) for s in idle[_IDLE_SOURCES:]}
    sources = [s for s in reading.sources if id(s) not in dropped]
    numbers = {id(source): number for number, source in enumerate(sources)}
    head = {
        "reading": FORMAT,
        "raydoctor": version,
        "hits": reading.hits,
        "files": len(reading.sources),
        "has_zone": reading.has_zone,
    }
    rows: list[Mapping[str, Any]] = [head, *map(_source_row, sources)]
    rows += [_event_row(event, numbers, "event") for event in reading.events]
    rows += [_event_row(event, numbers, "ending") for event in reading.endings]
    rows += [{"worker": worker, "ran": list(ran)} for worker, ran in reading.names.items()]
    rows += [_gap_row(gap) for gap in reading.gaps]
    text = "\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return f"{text}\n".encode("ascii")


def _all(events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        yield event
        yield from _all(event.sightings)


def _source_row(source: Source) -> dict[str, Any]:
    row = {
        "source": source.path,
        "role": source.role,
        "node": source.node,
        "ids": [list(entity) for entity in source.entities],
        "pid": source.pid,
        "size": source.size,
    }
    return _without_empty(row, "source")


def _event_row(event: Event, numbers: Mapping[int, int], name: str) -> dict[str, Any]:
    row = {
        name: event.kind,
        "source": numbers[id(event.source)],
        "line": event.source.line(event.line),
        "offset": event.offset,
        "text": event.text,
        # A record is its header and its message, so the message is mostly the end of the text.
        "message": _cut_from(event.text, event.message),
        "at": event.at,
        "slack": event.slack,
        "level": event.level,
        "pid": event.pid,
        "fields": dict(event.fields),
        "ids": sorted(list(entity) for entity in event.entities),
        "count": event.count,
        "sightings": [_event_row(each, numbers, "event") for each in event.sightings],
    }
    return _without_empty(row, name, "source", "message", "count")


def _cut_from(text: str, message: str) -> str | int:
    """A message, or its offset in the text if it is the end of the text."""
    return len(text) - len(message) if text.endswith(message) else message


def _gap_row(gap: Gap) -> dict[str, Any]:
    row = {
        "gap": gap.what,
        "why": gap.why,
        "hint": gap.hint,
        "optional": gap.optional,
        "about": gap.about,
    }
    return _without_empty(row, "gap")


def _without_empty(row: dict[str, Any], *kept: str) -> dict[str, Any]:
    """The row without empty values; a time of zero is not empty."""
    return {
        name: value
        for name, value in row.items()
        if name in kept or (value is not None and value is not False and value not in ("", [], {}))
    }


# ---------------------------------------------------------------- reading


def load(data: bytes, folder: str = "", signals: Iterable[Signal] = ()) -> NodeReading:
    """A reading from its JSON lines; `folder` is prepended to paths and node labels.

    `signals`: an event whose fields none of those of its kind can give is damaged. Damaged rows are left out
    and counted in a gap. Raises ValueError for another format.
    """
    lines = data.splitlines()
    head = _object(lines[0]) if lines else None
    if head is None or head.get("reading") != FORMAT:
        raise ValueError("not a reading of this version of raydoctor")
    loader = _Loader(folder, ValidFields(signals))
    for line in lines[1:]:
        loader.take(line)
    gaps = loader.gaps
    if loader.damaged:
        gaps = [
            *gaps,
            Gap(folder or "a node's events", f"damaged rows left out: {loader.damaged:,}"),
        ]
    hits = head.get("hits")
    return NodeReading(
        tuple(loader.events),
        tuple(loader.sources),
        loader.names,
        tuple(loader.endings),
        tuple(gaps),
        hits if isinstance(hits, int) else 0,
        head.get("has_zone") is True,
    )


def read(
    files: Mapping[Source, str], gaps: list[Gap], signals: Iterable[Signal]
) -> list[NodeReading]:
    """The readings in a capture, by path; an unreadable one is a gap."""
    readings = []
    for source, file in files.items():
        if source.role != "reading":
            continue
        try:
            with open(file, "rb") as stream:
                readings.append(load(stream.read(_LIMIT), source.node, signals))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or f"damaged: {error}"
            gaps.append(Gap(source.path, f"could not be read: {why}"))
    return readings


_DAMAGED = (
    *(ValueError, TypeError, AttributeError, LookupError),  # values of a wrong type
    *(OverflowError, RecursionError),
)


class _Loader:
    """Rows -> values; invalid rows are counted."""

    def __init__(self, folder: str, valid: ValidFields) -> None:
        self._folder = folder
        self._valid = valid
        self.sources: list[Source] = []
        self.events: list[Event] = []
        self.endings: list[Event] = []
        self.names: dict[str, tuple[str, ...]] = {}
        self.gaps: list[Gap] = []
        self.damaged = 0

    def take(self, line: bytes) -> None:
        """Read one row."""
        row = _object(line)
        try:
            if row is None:
                raise ValueError("no object")
            self._take(row)
        except _DAMAGED:
            self.damaged += 1

    def _take(self, row: dict[str, Any]) -> None:
        if "event" in row:
            self.events.append(self._event(row, "event"))
        elif "role" in row:
            self.sources.append(self._source(row))
        elif "worker" in row:
            self.names[_text(row, "worker")] = tuple(str(name) for name in row["ran"])
        elif "gap" in row:
            self.gaps.append(self._gap(row))
        else:
            self.endings.append(self._event(row, "ending"))

    def _source(self, row: dict[str, Any]) -> Source:
        return Source(
            self._under(_text(row, "source")),
            _text(row, "role"),
            self._under(_text(row, "node")),
            tuple(_entities(row)),
            _whole(row, "pid"),
            _whole(row, "size") or 0,
        )

    def _under(self, path: str) -> str:
        return "/".join(part for part in (self._folder, path) if part)

    def _gap(self, row: dict[str, Any]) -> Gap:
        what = self._under(_text(row, "gap"))
        is_optional = row.get("optional") is True
        hint = _text(row, "hint")
        if hint and hint not in _OWN_HINTS:
            hint = paste.text("There: {hint}", hint=hint)
        return Gap(what, _text(row, "why"), hint, is_optional, _text(row, "about"))

    def _event(self, row: dict[str, Any], name: str, depth: int = 0) -> Event:
        if depth > _NESTED:
            raise ValueError("sightings of sightings of sightings")
        number = row["source"]
        if not isinstance(number, int) or number < 0:
            raise ValueError("no number of a source")
        text = _text(row, "text")
        cut = row.get("message", "")
        kind = _text(row, name)
        fields = {str(key): str(value) for key, value in row.get("fields", {}).items()}
        if not self._valid.has(kind, fields):
            raise ValueError("fields that no signal gives")
        return Event(
            kind=kind,
            source=self.sources[number],
            line=_whole(row, "line") or 0,
            offset=_whole(row, "offset") or 0,
            text=text,
            message=text[cut:] if isinstance(cut, int) else _text(row, "message"),
            at=_number(row, "at"),
            slack=_number(row, "slack") or 0.0,
            level=_text(row, "level"),
            pid=_whole(row, "pid"),
            fields=fields,
            entities=frozenset(_entities(row)),
            count=max(1, _whole(row, "count") or 1),
            sightings=tuple(self._event(r, "event", depth + 1) for r in row.get("sightings", ())),
        )


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name, "")
    if not isinstance(value, str):
        raise ValueError(name)
    return value


def _whole(row: Mapping[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(name)
    return value


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(name)
    return float(value)


def _entities(row: Mapping[str, Any]) -> Iterator[Entity]:
    for kind, value in row.get("ids", ()):
        if kind in MEANINGS:
            yield Entity(kind, str(value))


# ---------------------------------------------------------------- bounding


def trim(reading: NodeReading, most: int) -> NodeReading:
    """A reading with at most that many events, the first and last of each kind; counts remain correct.

    Frequent kinds are trimmed first, so that a storm of one kind does not remove the record that explains it.
    """
    excess = len(reading.events) - most
    if excess <= 0:
        return reading
    by_kind: dict[str, list[int]] = {}
    for number, event in enumerate(reading.events):
        by_kind.setdefault(event.kind, []).append(number)
    share = _share([len(numbers) for numbers in by_kind.values()], most)
    counts = {n: event.count for n, event in enumerate(reading.events)}
    for numbers in by_kind.values():
        head = -(-share // 2)
        for number in numbers[head : len(numbers) - share // 2] if len(numbers) > share else ():
            counts[numbers[head - 1]] += counts.pop(number)
    events = tuple(
        event if counts[n] == event.count else replace(event, count=counts[n])
        for n, event in enumerate(reading.events)
        if n in counts
    )
    left_out = len(reading.events) - len(events)
    gap = Gap(
        "some events of this node",
        f"{left_out:,} of {len(reading.events):,} were only counted: a node sends at most {most:,}",
        _DIAGNOSE,
        optional=True,
    )
    return replace(reading, events=events, gaps=(*reading.gaps, gap))


def _share(sizes: list[int], most: int) -> int:
    """The number of events that each kind may keep, for a total of at most `most`; at least one."""
    low, high = 1, max(sizes)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(size, middle) for size in sizes) <= most:
            low = middle
        else:
            high = middle - 1
    return low
