"""Every line about one thing, across all files and nodes, in time order.

The thing is an id (or a prefix of it), a pid, or a name. Its aliases are followed one step and listed: a
worker's pid, an actor's workers, an object's creator, a lease's submitter, a job's driver. All lines of a
worker's own logs belong to its story.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from raydoctor.capture.open import Capture
from raydoctor.case import Case, signals
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity, EntityKind
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Gap, Source
from raydoctor.read import build, entities
from raydoctor.read.clock import NodeClocks, as_utc
from raydoctor.read.mentions import Mention, mentions, target, time_of
from raydoctor.read.records import MAX_LINE, parse_line
from raydoctor.redact import Redactor

_MAX_ENTRIES = 10_000
_OWN_HEAD, _OWN_TAIL = 20, 200
"""Number of shown lines at the start and at the end of a worker's own output."""
_ID_LENGTHS: dict[int, EntityKind] = {
    8: "job",
    32: "actor",
    36: "pg",
    48: "task",
    56: "worker",
    64: "lease",
}
_HEX = pattern(r"(?<![0-9a-zA-Z])[0-9a-f]+(?![0-9a-zA-Z])")
_GIVEN_ID = pattern(r"(?:\w+\()?([0-9a-f]{6,})\)?", re.IGNORECASE)
"""`4a3f…`, or as Python prints it: `ObjectRef(4a3f…)`, `ActorID(4a3f…)`."""
_GIVEN_PID = pattern(r"(?:pid:(?:(?P<node>.*)/)?)?(?P<pid>\d{1,7})")
_LIKELY_OBJECT_INDEX = 10_000


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of the subject, and its source."""

    entity: Entity
    why: str


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One line of the story."""

    at: float | None
    source: Source
    line: int
    level: str
    message: str
    inherited: bool = False
    """Whether the time is that of the record's first line."""


@dataclass(slots=True)
class Story:
    """All lines of a capture about one subject."""

    subject: Entity
    aliases: tuple[Alias, ...] = ()
    entries: list[StoryLine] = field(default_factory=list)
    related: list[tuple[Entity, int]] = field(default_factory=list)
    """Other entities in the lines, with counts."""
    omitted: dict[str, int] = field(default_factory=dict)
    """File -> number of lines of the story that are not shown."""
    gaps: list[Gap] = field(default_factory=list)
    known: tuple[tuple[Entity, str], ...] = ()
    """Ids in the capture, with a label; empty unless nothing was found."""


@dataclass(frozen=True, slots=True)
class _Ground:
    """The inputs of a story."""

    capture: Capture
    case: Case
    clock: NodeClocks
    everything: bool


def story_of(capture: Capture, what: str, everything: bool = False) -> Story:
    """The story of an id, an unambiguous prefix, `pid:N`, `pid:NODE/N` or `name:X`.

    `everything` includes the routine lines of a worker's own logs. If nothing is found, `known` lists the ids
    in the capture. Raises RaydoctorError if the prefix or pid is ambiguous.
    """
    case = build.read(capture, signals.FACTS).case
    ground = _Ground(capture, case, _clock(case), everything)
    unread = [gap for gap in capture.gaps if not gap.optional]
    for subject in _subjects(ground, what.strip()):
        story = _story(ground, subject)
        if story.entries:
            story.gaps += unread
            return story
    return Story(Entity("unknown", what), gaps=unread, known=tuple(_known(case)))


def _clock(case: Case) -> NodeClocks:
    """The nodes' zones, as the diagnosis learned them."""
    clock = NodeClocks()
    for event in case.events:
        stamp = parse_line(event.text.partition("\n")[0], event.source.role).stamp
        if event.at is not None and stamp and as_utc(stamp) is not None:
            clock.learn(event.source.node, stamp, event.at)
    return clock


# ---------------------------------------------------------------- the subject


def _subjects(ground: _Ground, what: str) -> Iterator[Entity]:
    """Entities that the text may name, the most likely first."""
    if match := _GIVEN_PID.fullmatch(what):
        yield _process(ground, int(match["pid"]), match["node"])
    if match := _GIVEN_ID.fullmatch(what):
        yield from _by_prefix(ground, match[1].lower())
    name = what.removeprefix("name:").strip()
    if name and not what.startswith("pid:"):
        yield Entity("name", name)


def _process(ground: _Ground, pid: int, node: str | None) -> Entity:
    labels = sorted({s.node for s in ground.capture.sources if s.pid == pid})
    if node is not None:
        return Entity("process", f"{node}/{pid}")
    if len(labels) > 1:
        raise RaydoctorError(
            f"pid {pid} existed on {len(labels)} nodes",
            "Name one: " + ", ".join(paste.word(f"pid:{label or '.'}/{pid}") for label in labels),
        )
    return Entity("process", f"{labels[0] if labels else ''}/{pid}")


def _by_prefix(ground: _Ground, prefix: str) -> Iterator[Entity]:
    """The only id with this prefix; ids that continue it (a task's objects) do not make it ambiguous."""
    labels: Counter[Entity] = Counter()
    found: set[str] = set()
    for source in ground.capture.sources:
        for entity in source.entities:
            if entity.value.startswith(prefix):
                found.add(entity.value)
                labels[entity] += 1
    literal = target(Entity("id", prefix))
    for mention in mentions(ground.capture.files, [literal], ground.clock, []):
        text = mention.line.text
        runs = (run for run in _HEX.findall(text) if run.startswith(prefix))
        found.update(run for run in runs if len(run) in _ID_LENGTHS)
        labels.update(e for e in entities.in_text(text) if e.value.startswith(prefix))
    shortest = {f for f in found if not any(f != other and f.startswith(other) for other in found)}
    meant = {prefix} if prefix in found else shortest
    if len(meant) > 1:
        candidates = [_kind(ground.case, value, labels) for value in sorted(meant)]
        raise RaydoctorError(
            f"{prefix} is ambiguous: {len(candidates)} ids begin with it",
            paste.text(
                "Give more digits: {ids}", ids=[f"{e.kind} {e.value}" for e in candidates[:8]]
            ),
        )
    yield from (_kind(ground.case, value, labels) for value in meant)


def _kind(case: Case, value: str, labels: Counter[Entity]) -> Entity:
    """An id with its kind: from the ledger, from the labels in lines, or from its length."""
    ledger = case.ledger
    tables: tuple[tuple[EntityKind, Container[str]], ...] = (
        ("worker", ledger.pids),
        ("node", ledger.node_ips),
        ("actor", ledger.actors),
        ("job", ledger.jobs),
        ("task", ledger.tasks),
    )
    for kind, known in tables:
        if value in known:
            return Entity(kind, value)
    labelled = [(count, entity) for entity, count in labels.items() if entity.value == value]
    if labelled:
        return max(labelled)[1]
    if (parts := ids.parse_object_id(value)) and (
        parts.number <= _LIKELY_OBJECT_INDEX or 0 <= parts.number - ids.FIRST_PUT_INDEX <= 1_000_000
    ):
        return Entity("object", value)
    return Entity(_ID_LENGTHS.get(len(value), "id"), value)


def _known(case: Case) -> Iterator[tuple[Entity, str]]:
    """Ids in the capture, those with a story first."""
    ledger = case.ledger
    for exit_ in ledger.exits:
        if exit_.worker:
            yield Entity("worker", exit_.worker), exit_.label
    for actor in ledger.actors.values():
        yield Entity("actor", actor.id), actor.class_name or actor.name
    for worker, pid in ledger.pids.items():
        if ledger.exit_of(worker) is None and not ids.job_of_driver(worker):
            yield Entity("worker", worker), f"pid {pid}"
    for node, ip in ledger.node_ips.items():
        yield Entity("node", node), ip
    for job in ledger.jobs.values():
        yield Entity("job", job.id), f"driver pid {job.driver_pid}" if job.driver_pid else ""


# ---------------------------------------------------------------- aliases


def _aliases(ground: _Ground, subject: Entity) -> list[Alias]:
    """One step: other ids of the subject, the processes it ran in, and its creator."""
    value, case = subject.value, ground.case
    found: list[Alias] = []
    if subject.kind == "worker":
        found = _processes_of(ground, value)
    elif subject.kind == "process":
        found = _workers_of(ground, value)
    elif subject.kind == "actor":
        workers = case.actor(value).workers
        found = [Alias(Entity("worker", w), "the actor ran in it") for w in workers]
    elif subject.kind == "object" and (parts := ids.parse_object_id(value)):
        found = [_creator(parts)]
    elif subject.kind == "task" and ids.is_driver_task(value):
        found = [_driver(ids.job_of_task(value), "the task id represents it")]
    elif subject.kind == "lease" and (submitter := ids.submitter_of_lease(value)):
        found = [Alias(Entity("worker", submitter), "it requested the lease")]
    elif subject.kind == "job":
        found = [_driver(value, "the job's driver")]
    return list({alias.entity: alias for alias in found}.values())


def _processes_of(ground: _Ground, worker: str) -> list[Alias]:
    found = [
        Alias(Entity("process", f"{s.node}/{s.pid}"), "its log files' names")
        for s in ground.capture.sources
        if s.pid is not None and any(e.value == worker for e in s.entities)
    ]
    if not found and (pid := ground.case.ledger.pids.get(worker)):
        found = [Alias(Entity("process", f"/{pid}"), "the raylet started it")]
    return found


def _workers_of(ground: _Ground, process: str) -> list[Alias]:
    node, _, pid = process.rpartition("/")
    named = [
        Alias(entity, "its log files' names")
        for source in ground.capture.sources
        if source.pid == int(pid) and source.node == node
        for entity in source.entities
        if entity.kind == "worker"
    ]
    if named:
        return named
    started = (w for w, number in ground.case.ledger.pids.items() if number == int(pid))
    return [Alias(Entity("worker", w), "the raylet started it") for w in started]


def _creator(parts: ids.ObjectIdParts) -> Alias:
    if ids.is_driver_task(parts.task):
        return _driver(parts.job, "it called ray.put for the object")
    how = "called ray.put for it" if parts.put else f"returned it (value {parts.number})"
    return Alias(Entity("task", parts.task), f"the task {how}")


def _driver(job: str, why: str) -> Alias:
    return Alias(Entity("worker", ids.driver_of_job(job)), f"driver of job {job}: {why}")


# ---------------------------------------------------------------- the lines


def _story(ground: _Ground, subject: Entity) -> Story:
    aliases = _aliases(ground, subject)
    story = Story(subject, tuple(aliases))
    named = [subject, *(alias.entity for alias in aliases)]
    found: dict[tuple[Source, int], Mention] = {}
    for mention in _own_lines(ground, named, story):
        found[(mention.source, mention.number)] = mention
    targets = [target(entity) for entity in named]
    for mention in mentions(ground.capture.files, targets, ground.clock, story.gaps):
        if len(found) < _MAX_ENTRIES or ground.everything:
            found.setdefault((mention.source, mention.number), mention)
        else:
            _omit(story, mention.source.path, 1)
    story.related = _related(found.values(), named)
    story.entries = _without_secrets(_ordered(found.values()), found, ground.capture.secrets)
    return story


def _omit(story: Story, path: str, count: int) -> None:
    if count > 0:
        story.omitted[path] = story.omitted.get(path, 0) + count


def _own_lines(ground: _Ground, named: Iterable[Entity], story: Story) -> Iterator[Mention]:
    """The output of the subject's own processes."""
    workers = {e.value for e in named if e.kind == "worker"}
    for source, file in ground.capture.files.items():
        if not any(e.kind == "worker" and e.value in workers for e in source.entities):
            continue
        try:
            if source.role.startswith("core-"):
                yield from _own_records(ground, source, file, story)
            else:
                yield from _own_output(ground, source, file, story)
        except OSError as error:
            story.gaps.append(Gap(source.path, f"could not be read: {error.strerror}"))


def _own_records(ground: _Ground, source: Source, file: str, story: Story) -> Iterator[Mention]:
    """Records of a core worker's log; routine records only with `everything`."""
    routine = 0
    with open(file, "rb") as stream:
        for number, raw in enumerate(stream, 1):
            line = parse_line(raw[:MAX_LINE].decode("utf-8", "replace"), source.role)
            if not line.headed:
                continue
            if ground.everything or line.level in ("W", "E", "C"):
                yield Mention(source, number, line, time_of(source, line, ground.clock))
            else:
                routine += 1
    _omit(story, source.path, routine)


def _own_output(ground: _Ground, source: Source, file: str, story: Story) -> Iterator[Mention]:
    """The worker's output: the first and the last lines."""
    head: list[tuple[int, bytes]] = []
    tail: deque[tuple[int, bytes]] = deque(maxlen=None if ground.everything else _OWN_TAIL)
    count = 0
    with open(file, "rb") as stream:
        for number, raw in enumerate(stream, 1):
            if raw.strip():
                count += 1
                place = head if len(head) < _OWN_HEAD else tail
                place.append((number, raw[:MAX_LINE]))
    _omit(story, source.path, count - len(head) - len(tail))
    for number, raw in (*head, *tail):
        line = parse_line(raw.decode("utf-8", "replace"), source.role)
        yield Mention(source, number, line, time_of(source, line, ground.clock))


def _related(found: Iterable[Mention], named: list[Entity]) -> list[tuple[Entity, int]]:
    counts: Counter[Entity] = Counter()
    for mention in found:
        counts.update(entities.in_text(mention.line.text))
    for entity in named:
        counts.pop(entity, None)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _ordered(found: Iterable[Mention]) -> list[StoryLine]:
    """Lines in order of time, without `.err` twins of a record; lines without a time come last."""
    first_file: dict[object, str] = {}
    entries = []
    for mention in sorted(found, key=_rank):
        line, source = mention.line, mention.source
        entry = StoryLine(
            mention.at,
            source,
            source.line(source.place(mention.number)),
            line.level,
            line.message.strip() or line.text.strip(),
            mention.inherited,
        )
        if source.role.endswith(("-out", "-err")) and mention.at is not None:
            twin = (source.role[:-4], source.node, mention.at, entry.message)
            if first_file.setdefault(twin, source.path) != source.path:
                continue
        entries.append(entry)
    return entries


def _without_secrets(
    entries: list[StoryLine], found: Mapping[tuple[Source, int], Mention], secrets: Iterable[str]
) -> list[StoryLine]:
    """The entries without secrets.

    The whole lines of a file are read together: one may begin a key, and a terminal breaks whole lines.
    """
    redactor = Redactor(secrets)
    by_file: dict[Source, list[int]] = {}
    for n in sorted(range(len(entries)), key=lambda n: entries[n].line):
        by_file.setdefault(entries[n].source, []).append(n)
    for source, places in by_file.items():
        raw = [found[source, entries[n].line].line.text.replace("\n", "\x1f") for n in places]
        clean = redactor.redact("\n".join(raw)).split("\n")
        for n, before, after in zip(places, raw, clean, strict=True):
            if before != after:
                message = parse_line(after.replace("\x1f", "\n"), source.role).message
                entries[n] = replace(entries[n], message=message)
    return entries


def _rank(mention: Mention) -> tuple[bool, float, str, int]:
    # `.out` sorts before its twin `.err` by role, so it is kept.
    place = f"{mention.source.role.endswith('-err')} {mention.source.path}"
    return (mention.at is None, mention.at or 0.0, place, mention.number)
