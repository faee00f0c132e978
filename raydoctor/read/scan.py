"""Hits -> events.

For every line with a hit, the signals with this literal and a fitting role are matched against the record's
message. Most records of an error storm are only counted (see `keep`).
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from re import Match
from typing import NamedTuple

from raydoctor.capture.budget import ReportBytes
from raydoctor.case.rule import Signal
from raydoctor.model.text import duration
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read import budget, entities
from raydoctor.read.budget import CpuBudget
from raydoctor.read.clock import NodeClocks
from raydoctor.read.index import (
    DRIVERS,
    Index,
    LiteralEntry,
    SignalProbe,
    echo_table,
    index_of,
    table_of,
)
from raydoctor.read.keep import Draft, Keeper
from raydoctor.read.lines import FileLines
from raydoctor.read.prefilter import RawHit, batches
from raydoctor.read.records import (
    MAX_LINE,
    assemble,
    begins_record,
    message_of,
    parse_line,
    plausible,
    strip_ansi,
    trailing_fields,
)
from raydoctor.read.template import draw

_FOLDS = 200
"""Maximum of distinct values of the fold fields in one file; all further values share one run."""
_KEPT_CHARS = 32_000_000
"""Characters of the kept records of one file; after that, one record per run is kept."""
_DIGIT = re.compile(r"\d").search
_DRAWN, _TEMPLATES = 16, 4
"""Maximum of templates that are made for a literal in one file before its lines count as too different, and
of templates that are tried on a line."""
_LONGEST_NUMBER = 64
"""Characters of the longest number: Python refuses to convert thousands of digits, or makes them infinite."""
_NUMBER = re.compile(r"[-+]?[\d.]+").fullmatch


@dataclass(slots=True)
class Scan:
    """The result of a scan."""

    drafts: list[Draft] = field(default_factory=list)
    """By signal, in the order of the signals given; then by file and line."""
    gaps: list[Gap] = field(default_factory=list)
    clock: NodeClocks = field(default_factory=NodeClocks)
    hits: int = 0


def scan(
    files: Mapping[Source, str],
    signals: Iterable[Signal],
    report: ReportBytes = lambda done, total: None,
) -> Scan:
    """Search the files for the signals' literals and match the lines with hits.

    `report` is called with the number of bytes that are done, without files that have no hit, and of all.
    """
    result, index = Scan(), index_of(tuple(signals))
    keepers: defaultdict[SignalProbe, Keeper] = defaultdict(Keeper)
    by_path = {file: source for source, file in files.items()}
    roles = {path: table_of(source) for path, source in by_path.items()}
    literals = {role: index.literals(role) for role in {*roles.values()}}
    wanted = {path: literals[roles[path]] for path in by_path}
    reader: _FileReader | None = None
    current = ""
    sizes = {path: source.size for path, source in by_path.items()}
    given_up: set[str] = set()
    done, total = 0, sum(sizes.values())
    time_left = budget.of_run(total)
    with closing(batches(wanted, result.gaps, sizes, given_up)) as found:
        for file, hits in found:
            if file != current:
                _finish(reader)
                if time_left.spent:
                    result.gaps.append(_unsearched(len(files), time_left))
                    reader = None
                    break
                done += sizes.get(current, 0)
                current, reader = file, _open(file, by_path[file], index, keepers, result.gaps)
            result.hits += len(hits)
            report(done + int(hits[-1][1]) if hits else done, total)
            if reader and not reader.take(hits):
                given_up.add(file)
                result.gaps.append(reader.gap(file))
    _finish(reader)
    kept = (keepers[probe] for probe in index.probes if probe in keepers)
    result.drafts = [draft for keeper in kept for draft in keeper.drafts()]
    for draft in result.drafts:
        _learn(draft, result.clock)
    shown = {replace(gap, what=_shown(gap.what, by_path)) for gap in result.gaps}
    result.gaps = sorted(shown, key=lambda gap: (gap.what, gap.why))
    return result


def _open(
    file: str, source: Source, index: Index, keepers: Mapping[SignalProbe, Keeper], gaps: list[Gap]
) -> _FileReader | None:
    try:
        return _FileReader(source, FileLines(file), index, keepers)
    except OSError as error:
        gaps.append(Gap(file, f"could not be read: {error.strerror}"))
        return None


HINT = "Diagnose one node's logs at a time, without the files that other gaps name."


def _unsearched(files: int, spent: CpuBudget) -> Gap:
    return Gap(
        "logs",
        f"the time budget of {duration(spent.seconds)} for all {files:,} files is spent; some of "
        "them are not searched",
        HINT,
    )


def _finish(reader: _FileReader | None) -> None:
    if reader:
        reader.finish()


def _shown(file: str, by_path: Mapping[str, Source]) -> str:
    """A file's path in the capture, instead of the path of its (perhaps unpacked) bytes."""
    return by_path[file].path if file in by_path else file


def _learn(draft: Draft, clock: NodeClocks) -> None:
    """Learn a node's zone from a record that contains both local time and epoch."""
    if draft.head.stamp:
        epoch = draft.head.epoch or _epoch(draft.fields)
        if epoch is not None:
            clock.learn(draft.source.node, draft.head.stamp, epoch)


def _epoch(fields: Mapping[str, str]) -> float | None:
    """The crash handler's `received at time=<epoch>`."""
    return plausible(fields.get("epoch"))


@dataclass(slots=True)
class _AlikeRecords:
    """Kept records among equal ones, while their file is read."""

    first: list[Draft] = field(default_factory=list)
    passed: int = 0
    """The number of records after the first ones."""
    last: deque[tuple[bytes, int]] = field(default_factory=deque)
    """Line number and offset of the last hits; the kept ones are read again at the end of the file."""


class _Known(NamedTuple):
    """A template, and the run that counts the lines that it accepts."""

    accepts: Callable[[bytes, int], Match[bytes] | None]
    probe: SignalProbe
    run: _AlikeRecords
    alone: bool
    """Whether the next line must begin a record, because the pattern reads more than one line."""


class _FileReader:
    """Matches the hits of one file, in order."""

    def __init__(
        self, source: Source, lines: FileLines, index: Index, keepers: Mapping[SignalProbe, Keeper]
    ) -> None:
        self._source = source
        self._lines = lines
        self._keepers = keepers
        self._index = index
        self._role = table_of(source)
        self._relevant = index.relevant(self._role)
        self._table = index.table(self._role)
        self._number = b""
        self._offset = 0
        self._raw, self._text = b"", ""
        self._message, self._echo, self._repeated = "", "", 1
        self._whole: tuple[str, str] | None = None
        self._tried: set[SignalProbe] = set()
        self._matched: set[SignalProbe] = set()
        self._runs: dict[tuple[SignalProbe, object], _AlikeRecords] = {}
        self._folds: dict[SignalProbe, int] = {}
        self._known: dict[bytes, list[_Known]] = {}
        self._drawn: dict[bytes, int] = {}
        self._seen_number = b""
        self._seen_literals: list[bytes] = []
        self._seen_probes: list[SignalProbe] = []
        self._done: set[bytes] = set()
        self._hit, self._view_ends = 0, 0
        self._time = budget.of_file(source.size)
        self._kept_chars = 0

    def take(self, hits: Iterable[RawHit]) -> bool:
        """Try the signals of each hit; false if the file's time budget is spent."""
        for number, offset, literal in hits:
            if number != self._number:
                known = self._known.get(literal)
                if known and self._recognize(number, int(offset), literal, known):
                    continue
                if not self._relevant[literal]:
                    continue
                if self._time.spent:
                    self._hit = int(offset)
                    return False
                self._enter(number, int(offset))
            elif self._view_ends and int(offset) >= self._view_ends:
                # Further along a line that is only partly in view.
                if not self._relevant[literal]:
                    continue
                if self._time.spent:
                    self._hit = int(offset)
                    return False
                self._view(int(offset))
            elif literal in self._done:
                continue
            self._done.add(literal)
            self._try_literal(literal)
        return True

    def gap(self, file: str) -> Gap:
        """The gap for a spent time budget, with the position of the search."""
        return budget.gap(file, self._hit, self._source.size, self._time)

    def _try_literal(self, literal: bytes) -> None:
        """Try the signals of a literal, and of those that it may hide, on the line in view."""
        entry = self._table[literal]
        if entry is None:
            return
        self._try(entry.own)
        for other, probes in entry.hidden:
            if other in self._text:
                self._try(probes)
        if entry.inside and not any(probe.signal.symptom for probe in self._matched):
            self._try(entry.inside)
        self._learn_like(literal, entry)

    def finish(self) -> None:
        """Hand over the kept records, and close the file."""
        for (probe, _), run in self._runs.items():
            self._keepers[probe].add(self._drafts(probe, run))
        self._lines.close()

    # ------------------------------------------------------------ one line

    def _enter(self, number: bytes, offset: int) -> None:
        """Go to the line of a hit."""
        self._number = number
        self._matched.clear()
        if number == self._seen_number:
            self._matched.update(self._seen_probes)
        self._view(offset)

    def _view(self, offset: int) -> None:
        """Load the part of the line around a hit; the whole line unless it is very long."""
        self._hit = offset
        self._offset, self._raw = self._lines.around(offset)
        self._view_ends = self._offset + len(self._raw) if len(self._raw) >= MAX_LINE else 0
        self._text = strip_ansi(self._raw.decode("utf-8", "replace"))
        role = self._source.role
        self._message, self._echo, self._repeated = message_of(self._text, role)
        self._whole = None
        self._done.clear()
        self._tried.clear()
        self._tried.update(self._matched)
        if role in DRIVERS:
            self._table = self._index.table(echo_table(self._source, self._echo, self._message))

    def _try(self, probes: tuple[SignalProbe, ...]) -> None:
        for probe in probes:
            if probe in self._tried:
                continue
            self._tried.add(probe)
            if found := self._match(probe):
                self._matched.add(probe)
                self._count(probe, found)

    def _match(self, probe: SignalProbe) -> Match[str] | None:
        if probe.with_header:
            return probe.search(self._text)
        if not probe.whole:
            return probe.search(self._message)
        found = probe.search(self._message) if probe.first_line_decides else None
        return found or probe.search(self._record()[1])

    def _record(self) -> tuple[str, str]:
        """(text, message) of the whole record that the line begins."""
        if self._whole is None:
            first = parse_line(self._text, self._source.role)
            following = self._lines.after(self._offset)
            self._whole = assemble(first, following, self._source.role)
        return self._whole

    # ------------------------------------------------------------ storms

    def _recognize(self, number: bytes, offset: int, literal: bytes, known: list[_Known]) -> bool:
        """Count a line that one of the literal's templates accepts."""
        again = number == self._seen_number
        if again and literal in self._seen_literals:
            return True
        data, start, base = self._lines.begin(offset)
        for one in known:
            if (end := one.accepts(data, start)) and (
                not one.alone or begins_record(data, end.end())
            ):
                one.run.passed += 1
                one.run.last.append((number, base + start))
                if not again:
                    self._seen_number, self._seen_literals, self._seen_probes = number, [], []
                self._seen_literals.append(literal)
                self._seen_probes.append(one.probe)
                if one is not known[0]:
                    known.remove(one)
                    known.insert(0, one)
                return True
        return False

    def _learn_like(self, literal: bytes, entry: LiteralEntry) -> None:
        """Make a template of the current line if exactly one signal matched it and is in an error storm."""
        if len(entry.own) != 1 or self._drawn.get(literal, 0) >= _DRAWN:
            return
        probe = entry.own[0]
        searched = self._text if probe.with_header else self._message
        found = probe.search(searched)
        if found is None or self._repeated != 1:
            return
        run = self._runs.get(_key(probe, found))
        if (
            run is None
            or not run.last
            or any(o in self._text or _DIGIT(o) for o, _ in entry.hidden)
        ):
            return
        alone = probe.whole and not (probe.first_line_decides or probe.with_header)
        if alone and self._record()[1] != self._message.rstrip():
            return
        self._drawn[literal] = self._drawn.get(literal, 0) + 1
        template = draw(probe.pattern, probe.fold, self._raw, searched, probe.with_header)
        if template:
            known = self._known.setdefault(literal, [])
            known.insert(0, _Known(template.match, probe, run, alone))
            del known[_TEMPLATES:]

    # ------------------------------------------------------------ kept records

    @property
    def _has_room(self) -> bool:
        """Whether further records of this file are kept, and not only counted."""
        return self._kept_chars < _KEPT_CHARS

    def _count(self, probe: SignalProbe, found: Match[str]) -> None:
        key = _key(probe, found)
        run = self._runs.get(key) or self._new_run(key)
        if not run.first or (self._has_room and len(run.first) < self._keepers[probe].each):
            run.first.append(self._draft(probe, found))
            self._kept_chars += run.first[-1].chars
        else:
            run.passed += self._repeated
            run.last.append((self._number, self._hit))

    def _new_run(self, key: tuple[SignalProbe, object]) -> _AlikeRecords:
        probe = key[0]
        self._folds[probe] = self._folds.get(probe, 0) + 1
        if self._folds[probe] > _FOLDS or not self._has_room:
            key = (probe, "…")
        each = self._keepers[probe].each
        return self._runs.setdefault(key, _AlikeRecords(last=deque(maxlen=each)))

    def _drafts(self, probe: SignalProbe, run: _AlikeRecords) -> list[Draft]:
        """A run's first and last records, with the number of records that each represents."""
        last = []
        for number, offset in run.last:
            if not self._has_room or self._time.spent:
                break
            self._enter(number, offset)
            if found := self._match(probe):
                last.append(self._draft(probe, found))
                self._kept_chars += last[-1].chars
        run.first[-1].count += run.passed - sum(draft.count for draft in last)
        return run.first + last

    def _draft(self, probe: SignalProbe, found: Match[str]) -> Draft:
        head = parse_line(self._text, self._source.role)
        text, message = head.text, head.message
        if probe.whole:
            text, message = self._record()
        if not probe.with_header:
            found = probe.signal.regex.search(message) or found
        groups = {k: _bounded(v) for k, v in found.groupdict().items() if v}
        fields = {**head.fields, **trailing_fields(message), **groups}
        if head.who:
            fields.setdefault("who", head.who)
        if head.ip:
            fields.setdefault("ip", head.ip)
        own = self._source.entities if not head.echo else ()
        return Draft(
            signal=probe.signal,
            source=self._source,
            line=int(self._number),
            offset=self._offset,
            head=head,
            text=text,
            message=message,
            fields=fields,
            entities=entities.in_fields(fields) | entities.in_text(message) | frozenset(own),
            count=head.repeated,
        )


def _key(probe: SignalProbe, found: Match[str]) -> tuple[SignalProbe, object]:
    return (probe, found.group(*probe.fold) if probe.fold else None)


def _bounded(value: str) -> str:
    """A field that rules may convert: of a number that is too long, its beginning."""
    is_long = len(value) > _LONGEST_NUMBER and _NUMBER(value)
    return value[:_LONGEST_NUMBER] if is_long else value


def finish(drafts: Iterable[Draft], clock: NodeClocks) -> list[Event]:
    """Events with their times, once the clocks are known."""
    return [_event(draft, clock) for draft in drafts]


def _event(draft: Draft, clock: NodeClocks) -> Event:
    head, source = draft.head, draft.source
    at = head.epoch
    slack = 1.0 if source.role == "event" else 0.0  # C++ writes whole seconds there
    if at is None and (epoch := _epoch(draft.fields)) is not None:
        at, slack = epoch, 1.0
    if at is None and head.stamp:
        at = clock.epoch(source.node, head.stamp)
    if at is None and (stamp := draft.fields.get("stamp")):  # within the message: slurmstepd's
        at, slack = clock.epoch(source.node, stamp.replace("T", " ", 1)), 1.0
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
