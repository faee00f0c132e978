"""Finds the lines of a capture that name certain entities by another `rg` pass, and the time of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from raydoctor.model.entities import Entity
from raydoctor.model.values import Gap, Source
from raydoctor.read import budget
from raydoctor.read.clock import NodeClocks
from raydoctor.read.lines import FileLines
from raydoctor.read.prefilter import Hit, search
from raydoctor.read.records import LogLine, parse_line

_LOOK_BACK = 300
"""Number of lines above a line that are searched for the header of its record."""
_PID_FORMS = (
    "pid={}", "pid {}", "pid: {}", "PID: {}", "PID={}", "PID {}", 'pid":{}', 'pid": {}', 'pid":"{}',
    "rocess {}", " W {} ", " E {} ", " C {} ",
)  # fmt: skip
"""Forms of a pid in the logs of Ray and the kernel and in JSON; the last three are headers of C++ records."""
_PLAIN_ROLES = frozenset(
    {"driver", "job-driver", "worker-out", "worker-err", "io-worker", "kernel"}
)
"""Roles in which a line without a header does not continue a record: user code may have printed it, possibly
hours after the line above it."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A line of a file, with the entities that it names."""

    source: Source
    number: int
    """1-based."""
    line: LogLine
    at: float | None
    inherited: bool = False
    """Whether the time is that of the record's first line."""


@dataclass(frozen=True, slots=True)
class MentionTarget:
    """An entity to search for, the literals that `rg` finds it by, and the test that confirms a line."""

    entity: Entity
    literals: tuple[str, ...]
    confirms: Callable[[Source, LogLine], bool]


def target(entity: Entity) -> MentionTarget:
    """The forms of an entity in text.

    An id inside a longer one also counts: a TaskID contains its ActorID, an ObjectID its TaskID, a LeaseID
    its submitter. A JobID is the end of nearly every other id of its job, so it counts only on its own.
    """
    value = entity.value
    if entity.kind == "process":
        return _process_target(entity)
    if entity.kind == "job":
        alone = re.compile(rf"(?<![0-9a-f]){value}(?![0-9a-f])")
        return MentionTarget(entity, (value,), lambda source, line: bool(alone.search(line.text)))
    if entity.kind == "name":
        word = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
        return MentionTarget(entity, (value,), lambda source, line: bool(word.search(line.text)))
    return MentionTarget(entity, (value,), lambda source, line: value in line.text)


def _process_target(entity: Entity) -> MentionTarget:
    """A process by pid; a line counts only on the node of the process."""
    node, _, pid = entity.value.rpartition("/")
    named = re.compile(rf"(?i:\bpid|process)\b[\"'\]]*\s*[:=]?\s*[\"'\[]?{pid}\b")

    def confirms(source: Source, line: LogLine) -> bool:
        if node and source.node and source.node != node:
            return False
        own = line.level in ("W", "E", "C") and line.pid == int(pid) and not line.echo
        return own or bool(named.search(line.text))

    return MentionTarget(entity, tuple(form.format(pid) for form in _PID_FORMS), confirms)


def mentions(
    files: Mapping[Source, str],
    targets: Sequence[MentionTarget],
    clock: NodeClocks,
    gaps: list[Gap],
) -> Iterator[Mention]:
    """Every line that names a target, file by file, each once."""
    by_path = {file: source for source, file in files.items()}
    literals = [literal for each in targets for literal in each.literals]
    for path, hits in _by_file(search(files.values(), literals, gaps)):
        source = by_path.get(path)
        if source is None:
            continue
        try:
            lines = FileLines(path)
        except OSError as error:
            gaps.append(Gap(source.path, f"could not be read: {error.strerror}"))
            continue
        try:
            for mention in _read(source, lines, hits, clock, gaps):
                if any(each.confirms(source, mention.line) for each in targets):
                    yield mention
        finally:
            lines.close()


def _by_file(hits: Iterator[Hit]) -> Iterator[tuple[str, Iterator[Hit]]]:
    """Hits grouped by file, one per line; each group must be consumed before the next."""
    from itertools import groupby

    for path, group in groupby(hits, key=lambda hit: hit.file):
        by_line = groupby(group, key=lambda hit: hit.line)
        yield path, (next(same) for _, same in by_line)


def _read(
    source: Source, lines: FileLines, hits: Iterable[Hit], clock: NodeClocks, gaps: list[Gap]
) -> Iterator[Mention]:
    previous: tuple[int, float | None] = (0, None)
    time = budget.of_file(source.size)
    for hit in hits:
        if time.spent:
            gaps.append(budget.gap(source.path, hit.offset, source.size, time))
            return
        start = lines.line_start(hit.offset)
        line = parse_line(lines.line_at(start).decode("utf-8", "replace"), source.role)
        at = time_of(source, line, clock)
        inherited = at is None
        if inherited:
            at = _time_above(source, lines, start, clock, previous)
        previous = (start, at)
        yield Mention(source, hit.line, line, at, inherited and at is not None)


def _time_above(
    source: Source,
    lines: FileLines,
    start: int,
    clock: NodeClocks,
    previous: tuple[int, float | None],
) -> float | None:
    """The time of the record that a line continues; `previous`: the last line with a known time."""
    if source.role in _PLAIN_ROLES:
        return None
    at = start
    for _ in range(_LOOK_BACK):
        if at <= previous[0]:
            break
        at = lines.line_start(at - 1)
        above = parse_line(lines.line_at(at).decode("utf-8", "replace"), source.role)
        if (found := time_of(source, above, clock)) is not None:
            return found
    return previous[1]


def time_of(source: Source, line: LogLine, clock: NodeClocks) -> float | None:
    """A line's own time in epoch seconds, or None."""
    if line.epoch is not None:
        return line.epoch
    if line.stamp:
        return clock.epoch(source.node, line.stamp)
    return clock.kernel(line.fields, source.node) if source.role == "kernel" else None
