"""Hits -> events.

For every line with a hit: the signals whose literal stands there and whose roles fit are matched
against the record's message. Beyond a cap per signal and file, further matches are folded: counted
on an event that is alike, not kept. Counts stay true, memory does not grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from raydoctor.model import Entity, Event, Gap, Source
from raydoctor.read import entities
from raydoctor.read.clock import Clock
from raydoctor.read.lines import Lines
from raydoctor.read.prefilter import Hit, search
from raydoctor.read.records import Line, assemble, parse_line, trailing_fields
from raydoctor.rule import Signal

KEPT_PER_SIGNAL_AND_FILE = 500
_KEPT_FOLDED = 200
"""Distinct folds kept beyond the cap; what is unlike all of them still counts, on the last one."""


@dataclass(slots=True)
class Draft:
    """An event before its time is known: clocks are learned during the same pass."""

    signal: Signal
    source: Source
    line: int
    offset: int
    head: Line
    text: str
    message: str
    fields: dict[str, str]
    entities: frozenset[Entity]
    count: int


@dataclass(slots=True)
class Scan:
    """What the pass found."""

    drafts: list[Draft] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    hits: int = 0


def scan(files: dict[Source, Path], signals: Iterable[Signal]) -> Scan:
    """Search the files for the signals' literals and match what is found."""
    result = Scan()
    index = _Index(signals)
    by_path = {str(path): source for source, path in files.items()}
    current = ""
    reader: _FileReader | None = None
    for hit in search(files.values(), index.literals, result.gaps):
        if hit.file != current:
            if reader:
                reader.finish()
            current, reader = hit.file, None
            if source := by_path.get(hit.file):
                reader = _open(source, Path(hit.file), index, result)
        result.hits += 1
        if reader:
            reader.take(hit)
    if reader:
        reader.finish()
    return result


def _open(source: Source, file: Path, index: _Index, result: Scan) -> _FileReader | None:
    try:
        return _FileReader(source, Lines(file), index, result)
    except OSError as error:
        result.gaps.append(Gap(source.path, f"could not be read: {error.strerror}"))
        return None


class _Index:
    """Literals, the signals that ask for each, and which literals can hide one another."""

    def __init__(self, signals: Iterable[Signal]) -> None:
        self._by_literal: dict[str, list[Signal]] = {}
        for signal in dict.fromkeys(signals):
            self._by_literal.setdefault(signal.find, []).append(signal)
        self.literals = list(self._by_literal)
        self._hidden = _overlaps(self.literals)
        self._by_role: dict[str, dict[str, tuple[list[Signal], list[tuple[str, list[Signal]]]]]] = {}

    def for_role(self, role: str) -> dict[str, tuple[list[Signal], list[tuple[str, list[Signal]]]]]:
        """literal -> (signals of this role, literals it may hide with their signals)."""
        if role not in self._by_role:
            self._by_role[role] = {
                literal: entry for literal in self.literals if any((entry := self._entry(literal, role)))
            }
        return self._by_role[role]

    def _entry(self, literal: str, role: str) -> tuple[list[Signal], list[tuple[str, list[Signal]]]]:
        own = [s for s in self._by_literal[literal] if _role_fits(s, role)]
        hidden = [
            (other, fitting)
            for other in self._hidden.get(literal, ())
            if (fitting := [s for s in self._by_literal[other] if _role_fits(s, role)])
        ]
        return own, hidden


_ECHOES = ("raylet-echo", "gcs-echo", "autoscaler-echo", "worker-echo")


def _role_fits(signal: Signal, role: str) -> bool:
    """Whether a file of this role may hold the signal; a driver's file also echoes other processes."""
    if role in signal.roles:
        return True
    return role in ("driver", "job-driver") and any(echo in signal.roles for echo in _ECHOES)


def _overlaps(literals: list[str]) -> dict[str, list[str]]:
    """literal -> others that can share characters with it in a line, and so be hidden by it."""
    starting: dict[str, list[str]] = {}
    for literal in literals:
        for size in range(1, len(literal) + 1):
            starting.setdefault(literal[:size], []).append(literal)
    found: dict[str, set[str]] = {}
    for literal in literals:
        for begin in range(len(literal)):
            for other in starting.get(literal[begin:], ()):
                if other != literal:
                    found.setdefault(literal, set()).add(other)
                    found.setdefault(other, set()).add(literal)
        for other in literals:
            if other != literal and other in literal:
                found.setdefault(literal, set()).add(other)
    return {literal: sorted(others) for literal, others in found.items()}


class _FileReader:
    """Matches the hits of one file, in order."""

    def __init__(self, source: Source, lines: Lines, index: _Index, result: Scan) -> None:
        self._source = source
        self._lines = lines
        self._wanted = index.for_role(source.role)
        self._result = result
        self._line = -1
        self._offset = 0
        self._literals: list[str] = []
        self._kept: dict[Signal, int] = {}
        self._folds: dict[tuple[Signal, tuple[str, ...]], Draft] = {}

    def take(self, hit: Hit) -> None:
        """Collect the literals of one line; match when the next line begins."""
        if hit.line != self._line:
            self._match()
            self._line, self._offset = hit.line, hit.offset
        if hit.literal in self._wanted:
            self._literals.append(hit.literal)

    def finish(self) -> None:
        """Match the last line and close the file."""
        self._match()
        self._lines.close()

    def _match(self) -> None:
        if not self._literals:
            return
        literals, self._literals = self._literals, []
        start = self._lines.line_start(self._offset)
        raw = self._lines.line_at(start).decode("utf-8", "replace")
        head = parse_line(raw, self._source.role)
        role = f"{head.echo}-echo" if head.echo else self._source.role
        whole: tuple[str, str] | None = None
        for signal in self._candidates(literals, raw):
            if role not in signal.roles:
                continue
            if signal.extent == "line":
                text, message = head.text, head.message
            else:
                if whole is None:
                    whole = assemble(head, self._lines.after(start), self._source.role)
                text, message = whole
            if found := signal.regex.search(message):
                self._keep(signal, start, head, text, message, {k: v for k, v in found.groupdict().items() if v})

    def _candidates(self, literals: list[str], raw: str) -> list[Signal]:
        """Signals to try on a line: of its literals, and of those that these may hide."""
        found: dict[Signal, None] = {}
        for literal in literals:
            own, hidden = self._wanted[literal]
            found.update(dict.fromkeys(own))
            for other, signals in hidden:
                if other in raw:
                    found.update(dict.fromkeys(signals))
        return list(found)

    def _keep(
        self, signal: Signal, start: int, head: Line, text: str, message: str, groups: dict[str, str]
    ) -> None:
        kept = self._kept.get(signal, 0)
        self._kept[signal] = kept + 1
        if kept >= KEPT_PER_SIGNAL_AND_FILE:
            key = (signal, tuple(groups.get(name, "") for name in signal.fold))
            if alike := self._folds.get(key):
                alike.count += head.repeated
                return
            if len(self._folds) >= _KEPT_FOLDED:
                next(reversed(self._folds.values())).count += head.repeated
                return
        draft = self._draft(signal, start, head, text, message, groups)
        self._result.drafts.append(draft)
        self._folds[(signal, tuple(groups.get(name, "") for name in signal.fold))] = draft

    def _draft(
        self, signal: Signal, start: int, head: Line, text: str, message: str, groups: dict[str, str]
    ) -> Draft:
        fields = {**head.fields, **trailing_fields(message), **groups}
        if head.who:
            fields.setdefault("who", head.who)
        if head.ip:
            fields.setdefault("ip", head.ip)
        epoch = fields.get("epoch", "")
        if head.stamp and epoch.isdigit():
            self._result.clock.learn(self._source.node, head.stamp, float(epoch))
        if head.stamp and head.epoch:
            self._result.clock.learn(self._source.node, head.stamp, head.epoch)
        own = self._source.entities if not head.echo else ()
        ids = entities.in_fields(fields) | entities.in_text(message) | frozenset(own)
        return Draft(
            signal, self._source, self._line, start, head, text, message, fields, ids, head.repeated
        )


def finish(drafts: Iterable[Draft], clock: Clock) -> list[Event]:
    """Events with their times, once the clocks are known."""
    return [_event(draft, clock) for draft in drafts]


def _event(draft: Draft, clock: Clock) -> Event:
    head, source = draft.head, draft.source
    at = head.epoch
    slack = 1.0 if source.role == "event" else 0.0  # C++ writes whole seconds there
    if at is None and draft.fields.get("epoch", "").isdigit():
        at, slack = float(draft.fields["epoch"]), 1.0
    if at is None and head.stamp:
        at = clock.epoch(source.node, head.stamp)
    if at is None and source.role == "kernel":
        at, slack = clock.kernel(head.fields, source.node), 2.0
    return Event(
        kind=draft.signal.kind,
        source=source,
        line=draft.line,
        offset=draft.offset,
        text=draft.text,
        message=draft.message,
        at=at,
        slack=slack,
        level=head.level,
        pid=head.pid if head.pid is not None else source.pid,
        fields=draft.fields,
        entities=draft.entities,
        count=draft.count,
    )
