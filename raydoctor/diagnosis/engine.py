"""Runs the rules, assigns each entity to its best explanation, and links causes and consequences.

* Every finding *explains* entities (a worker that ended, a node that died, an object that was lost).
  If two findings explain the same entity, the rule with the lower `rank` keeps it. A finding that keeps
  none of its entities is dropped, and the other finding covers its evidence.
* Fallback rules run last and see which entities are already explained.
* A finding whose `caused_by` names an entity that another finding explains becomes its consequence. Each
  incident is one tree. If two findings name each other, the fallback rule's is the consequence.
* Every symptom event is covered by a diagnosis or listed as unexplained (see `unexplained`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeVar

from raydoctor.capture.cpu import CpuTimeSpent, cpu_limit, cpu_limits
from raydoctor.capture.open import Capture
from raydoctor.case import Case, signals
from raydoctor.case.rule import Rule, Signal
from raydoctor.cluster import tables as live
from raydoctor.diagnosis import (
    corroboration,
    cut_short,
    driver_output,
    plugins,
    survived,
    unexplained,
)
from raydoctor.diagnosis.callers import with_callers
from raydoctor.diagnosis.effect import Effect, Effects
from raydoctor.diagnosis.plugins import Catalogue
from raydoctor.diagnosis.status import status
from raydoctor.diagnosis.timeline import timeline
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.status import LiveStatus
from raydoctor.model.text import duration, headline
from raydoctor.model.values import (
    SEVERITIES,
    CaptureInfo,
    Diagnosis,
    Event,
    Finding,
    Gap,
    NodeInfo,
    Remedy,
    Report,
    Severity,
    Stats,
    Unexplained,
)
from raydoctor.read import build
from raydoctor.read.budget import CpuBudget
from raydoctor.read.detail import neighbours
from raydoctor.redact.report import scrub
from raydoctor.rules.shared.live import hangs
from raydoctor.rules.shared.waiting import TERMINATED
from raydoctor.waits import young

_T = TypeVar("_T")
RULE_SECONDS = 10.0
"""CPU seconds of one rule; with real logs, all rules together take less than one second."""
RULES_SECONDS = 60.0
"""CPU seconds of all rules."""


@dataclass(slots=True, eq=False)
class _Candidate:
    """A finding that may become a diagnosis."""

    rule: Rule
    finding: Finding
    held: set[Entity] = field(default_factory=set)
    is_claimed: bool = False
    """Whether only a program's output reports it, although complete logs of Ray's daemons would record it."""
    parent: _Candidate | None = None
    children: list[_Candidate] = field(default_factory=list)

    @property
    def severity(self) -> Severity:
        return self.finding.severity or self.rule.severity

    @property
    def times(self) -> list[float]:
        """Times of the evidence, without what began before the failure if anything else has a time."""
        begun = _preceding(self.rule)
        events = [link.event for link in self.finding.chain if link.event.at is not None]
        failed = [event for event in events if event.kind not in begun]
        happened = [] if self.finding.at is None else [self.finding.at]
        return happened + [event.at for event in failed or events if event.at is not None]

    @property
    def all_times(self) -> list[float]:
        """Also those of the events that the finding covers without a link."""
        return [*self.times, *(e.at for e in self.finding.covers if e.at is not None)]

    @property
    def key(self) -> tuple[int, int, float, str]:
        """Most severe first, then by rank, time and text, independent of the order of files."""
        first = min(self.times, default=float("inf"))
        return (SEVERITIES.index(self.severity), self.rule.rank, first, self.finding.headline)


@cache
def _preceding(rule: Rule) -> frozenset[str]:
    """Kinds of the records that precede a failure."""
    return frozenset(s.kind for s in (*signals.FACTS, *rule.looks_for) if s.precedes)


def run(  # noqa: PLR0913 - each has a default
    capture: Capture,
    *,
    since: float | None = None,
    until: float | None = None,
    catalogue: Catalogue | None = None,
    strict: bool = False,
    detailed: bool = False,
    has_failed: bool = False,
) -> Report:
    """Diagnose an open capture. `since`/`until` (epoch seconds) keep incidents that touch that span.

    Without a catalogue, the rules are raydoctor's own and those of installed packages. A rule that raises
    becomes a gap, unless `strict`. `detailed`: with a timeline, and with the lines around the evidence.
    `has_failed`: the program's exit code shows that it failed, so that its output alone is evidence.
    """
    began = time.monotonic()
    catalogue = catalogue or plugins.catalogue()
    rules = catalogue.rules
    looked_for = [*signals_of(catalogue), *unexplained.signals(s.role for s in capture.sources)]
    looked_for += [driver_output.AGENT_CONNECTING, TERMINATED, *survived.CONNECTED]
    reading = build.read(capture, looked_for, with_usage=detailed)
    case, gaps = reading.case, [*capture.gaps, *reading.gaps, *catalogue.gaps]
    now = time.time() if capture.kind == "live" else None
    gaps += driver_output.gaps_of(case, now, since, capture.path)
    candidates = judge(case, rules, gaps, strict, logs_are_complete=reading.is_complete)
    kinds = {s.kind for s in looked_for if s.symptom}
    if not has_failed and any(c.is_claimed for c in candidates):
        unfinished: list[Gap] = []
        everything = _left(case, kinds, [c.finding for c in candidates], (None, None), unfinished)
        if not unfinished:
            gaps += _weaken_contradicted(candidates, case, everything)
    gaps += _lower_survived(candidates, case)
    # Incidents outside the span are left out whole, and what they explain stays explained.
    effects = Effects(case)
    incidents = _link(candidates, effects)
    roots = [root for root in incidents if _within(case, root, since, until)]
    diagnoses = with_callers(case, _with_effects(_number(roots, case.version), roots, effects))
    if not any(_is_failure(each) for each in diagnoses) and not any(map(_explains_waits, roots)):
        unsettled = [*_unsettled_waits(case)] or [*_too_young(case, capture)]
        gaps += [*unsettled, *cut_short.gaps(case, now, since)]
    findings = [candidate.finding for candidate in candidates]
    left = _left(case, kinds, findings, (since, until), gaps)
    gaps += [*unexplained.gaps_of(left), *_other_clusters(case)]
    outside = len(incidents) - len(roots)
    seconds = capture.seconds + time.monotonic() - began
    stats = Stats(seconds, reading.hits, len(case.events), len(rules), outside, _has_workers(case))
    state = _status(capture, case, gaps)
    course = (
        _guarded(
            "the timeline",
            gaps,
            lambda: timeline(case, diagnoses, since, until, reading.own_records),
        )
        if detailed
        else None
    )
    if detailed:
        diagnoses = _with_neighbours(diagnoses, capture)
    report = Report(
        _info(capture, case),
        _in_original(diagnoses),
        left,
        tuple(dict.fromkeys(gaps)),
        stats,
        state,
        course,
    )
    scrubbed = scrub(report, capture.secrets)
    # After redaction, which does not recognize a secret without its $.
    return replace(scrubbed, diagnoses=tuple(map(_inert, scrubbed.diagnoses)))


def _other_clusters(case: Case) -> Iterator[Gap]:
    """The other live clusters of this user on this machine, which the report is not about."""
    rows = live.rows(case, "clusters")
    users = {row["user"] for row in rows if live.truth(row, "is_this")}
    for row in rows:
        if row["user"] in users and live.truth(row, "up") and not live.truth(row, "is_this"):
            command = paste.shell(
                "raydoctor --address {address:address}   # on that machine",
                address=row["gcs_address"],
            )
            yield Gap(
                f"another Ray cluster ({row['gcs_address']})",
                "was running on the same machine; this report does not cover it",
                command,
                optional=True,
                about="clusters",
            )


def _is_failure(diagnosis: Diagnosis) -> bool:
    return diagnosis.severity in ("critical", "error")


def _explains_waits(root: _Candidate) -> bool:
    """Whether it explains why work waits; other warnings are no reason to keep silent about waits."""
    entities = (entity for each in _tree(root) for entity in each.finding.explains)
    return any(entity.kind == "waiting" for entity in entities)


def _unsettled_waits(case: Case) -> Iterator[Gap]:
    """Methods that poll before queued calls, and the oldest waits, short and long, that may be hangs."""
    for each, behind in hangs.polling(case)[:1]:
        yield Gap(
            "whether the poll ends",
            f"{each.work.label} {each.summary}, and {behind} of the same actor is queued behind it; "
            "it never ends if it checks for what that call would set",
            "If so, poll in the caller, or make the methods of the actor async.",
            is_observation=True,
        )
    for each in hangs.early_waits(case)[:1]:
        pid = "" if each.work.pid is None else f" (pid {each.work.pid})"
        yield Gap(
            "whether the wait is a hang",
            f"{each.work.called}{pid} {each.summary}; this has lasted less than a minute",
            "Look again in a minute: raydoctor hung, or repeat it with a longer raydoctor run --timeout",
            is_observation=True,
        )
    for task in hangs.idle_tasks(case)[:1]:
        yield Gap(
            "whether the longest-running task makes progress",
            f"{task.label} has run for {duration(task.age)}, and no running task uses CPU time",
            "See what it waits for: raydoctor hung",
            is_observation=True,
        )
    for each in hangs.open_waits(case)[:1]:
        yield Gap(
            "whether a long wait ends",
            f"{each.work.label} {each.summary}, for {duration(each.work.age)}, and raydoctor sees nothing "
            "that ends it",
            paste.shell(
                "See what it checks or awaits: raydoctor stack {task} --locals", task=each.work.id
            ),
            is_observation=True,
        )


def _too_young(case: Case, capture: Capture) -> Iterator[Gap]:
    """A request and a job that may be stuck, but have not lasted long enough for any rule."""
    again = "raydoctor   # again in {seconds} s"
    later = "raydoctor collect   # at least {seconds} s later"
    for each in young.of(case):
        seconds = math.ceil(each.judged_in)
        hint = paste.shell(again if capture.kind == "live" else later, seconds=seconds)
        yield Gap(each.unknown, each.summary, hint, is_observation=True)


def _status(capture: Capture, case: Case, gaps: list[Gap]) -> LiveStatus | None:
    """The state of a live cluster; like a rule, it must not prevent the report."""
    return _guarded("the status", gaps, lambda: status(case)) if capture.kind == "live" else None


def _guarded(what: str, gaps: list[Gap], make: Callable[[], _T]) -> _T | None:
    """A part of the report that must not prevent the rest of it: a failure becomes a gap."""
    try:
        with cpu_limit(RULE_SECONDS):
            return make()
    except CpuTimeSpent:
        gaps.append(_unfinished(what, RULE_SECONDS))
    except Exception as error:
        gaps.append(Gap(what, f"failed: {error!r}"[:300], optional=True))
    return None


def _with_neighbours(diagnoses: tuple[Diagnosis, ...], capture: Capture) -> tuple[Diagnosis, ...]:
    """The diagnoses with the lines around each record of their evidence."""
    return tuple(
        replace(
            each,
            chain=tuple(
                replace(link, around=neighbours.around(capture.files, link.event))
                for link in each.chain
            ),
        )
        for each in diagnoses
    )


def _left(
    case: Case,
    kinds: set[str],
    findings: list[Finding],
    span: tuple[float | None, float | None],
    gaps: list[Gap],
) -> tuple[Unexplained, ...]:
    try:
        with cpu_limit(RULE_SECONDS):
            return unexplained.account(case, kinds, findings, *span)
    except CpuTimeSpent:
        gaps.append(_unfinished("errors that no rule matches", RULE_SECONDS))
        return ()


def signals_of(catalogue: Catalogue) -> list[Signal]:
    """The signals of these rules, independent of the files of a capture."""
    return [*signals.FACTS, *(s for rule in catalogue.rules for s in rule.looks_for)]


# ---------------------------------------------------------------- findings


def judge(
    case: Case,
    rules: Iterable[Rule],
    gaps: list[Gap],
    strict: bool = False,
    logs_are_complete: bool = False,
) -> list[_Candidate]:
    """Findings of all rules, with each entity assigned to its best explanation.

    `logs_are_complete`: a finding with only a program's output explains nothing that Ray's own logs explain.
    """
    ordered = sorted(rules, key=lambda r: (r.rank, r.name))
    time_left = CpuBudget(RULES_SECONDS)

    def found(rule: Rule) -> list[_Candidate]:
        seconds = min(RULE_SECONDS, time_left.left)
        try:
            limit(seconds)
            candidates = _findings(rule, case, gaps, strict)
        except CpuTimeSpent:
            gaps.append(_unfinished(f"rule {rule.name}", seconds))
            candidates = []
        finally:
            limit(None)
        for candidate in candidates:
            if corroboration.is_from_before(case, candidate.finding):
                earlier = corroboration.as_warning(candidate.finding, corroboration.EARLIER)
                candidate.finding = earlier
        if logs_are_complete and rule.daemons_record:
            for candidate in candidates:
                candidate.is_claimed = corroboration.is_claimed(case, candidate.finding)
        return candidates

    with cpu_limits() as limit:
        first = [c for rule in ordered if not rule.fallback for c in found(rule)]
        kept, holders = _claim(sorted(first, key=lambda c: c.is_claimed))
        for rule in (r for r in ordered if r.fallback):
            case.explained = frozenset(holders)
            case.accounted = _accounted(kept)
            more, holders = _claim(found(rule), holders)
            kept += more
    return kept


def _weaken_contradicted(
    candidates: list[_Candidate], case: Case, left: Iterable[Unexplained]
) -> list[Gap]:
    """Turn findings with only a program's output into warnings if Ray's logs report no failure at all.

    Ray's logs report none if they yield no finding and no unexplained error. Returns a gap if a finding
    became a warning: the program failed, or only printed this, and nothing shows which.
    """
    outputs = {s.path for s in case.sources if s.role in corroboration.PRINTED}
    if any(each.file not in outputs for each in left) or not all(
        corroboration.is_printed_only(c.finding) for c in candidates
    ):
        return []
    claimed = [c for c in candidates if c.is_claimed and c.severity in ("critical", "error")]
    for candidate in claimed:
        candidate.finding = corroboration.as_warning(candidate.finding)
    return [corroboration.GAP] if claimed else []


def _lower_survived(candidates: list[_Candidate], case: Case) -> list[Gap]:
    """Lower findings that the program survived. Returns a gap if nothing shows whether it succeeded."""
    is_proven = True
    for candidate in candidates:
        found = survived.lower(case, candidate.rule, candidate.finding, candidate.severity)
        if found:
            candidate.finding, proven = found
            is_proven = is_proven and proven
    is_unknown = not is_proven and all(c.severity in ("warning", "info") for c in candidates)
    return [survived.GAP] if is_unknown else []


def _accounted(candidates: Iterable[_Candidate]) -> dict[int, tuple[Entity, ...]]:
    """Identity of an event -> the entities that findings with this evidence explain."""
    found: dict[int, tuple[Entity, ...]] = {}
    for candidate in candidates:
        finding, held = candidate.finding, tuple(sorted(candidate.held))
        for event in {id(e) for e in (*(link.event for link in finding.chain), *finding.covers)}:
            found[event] = (*found[event], *held) if event in found else held
    return found


def _findings(rule: Rule, case: Case, gaps: list[Gap], strict: bool) -> list[_Candidate]:
    try:
        return [_Candidate(rule, finding) for finding in rule.judge(case)]
    except (Exception, SystemExit) as error:  # another package's rule must not end this process
        if strict:
            raise
        gaps.append(
            Gap(
                f"rule {rule.name}",
                f"crashed: {type(error).__name__}: {error}",
                "Please report this with the capture.",
            )
        )
        return []


def _unfinished(what: str, seconds: float) -> Gap:
    return Gap(
        what,
        f"not finished within its time budget of {duration(seconds)}: the logs contain very long or very "
        "many records",
        "Diagnose the logs of one node or one job at a time.",
    )


def _claim(
    candidates: list[_Candidate], holders: dict[Entity, _Candidate] | None = None
) -> tuple[list[_Candidate], dict[Entity, _Candidate]]:
    """Give each entity to the first candidate (sorted by rank); drop candidates without entities."""
    holders = dict(holders or {})
    kept = []
    for candidate in candidates:
        wanted = candidate.finding.explains
        candidate.held = {entity for entity in wanted if entity not in holders}
        if wanted and not candidate.held:
            continue
        for entity in candidate.held:
            holders[entity] = candidate
        kept.append(candidate)
    return kept, holders


def _within(case: Case, root: _Candidate, since: float | None, until: float | None) -> bool:
    """Whether an incident touches the span; if its evidence has no dates: whether it may."""
    tree = _tree(root)
    spans = [(at, at) for candidate in tree for at in candidate.all_times]
    spans = spans or [case.span(link.event) for each in tree for link in each.finding.chain]
    if not spans:
        return True
    first, last = min(low for low, _ in spans), max(high for _, high in spans)
    return (since is None or last >= since) and (until is None or first <= until)


# ---------------------------------------------------------------- links


def _link(candidates: list[_Candidate], effects: Effects) -> list[_Candidate]:
    """Link each finding to the one that explains it; return the roots, worst first.

    Of equally severe ones, the one that ended the program comes first.
    """
    holders = {entity: c for c in candidates for entity in c.held}
    for candidate in sorted(candidates, key=lambda c: c.key):
        causes = [holders[e] for e in candidate.finding.caused_by if e in holders]
        causes = [
            c
            for c in causes
            if not _is_below(c, candidate)
            and not (c.rule.fallback and candidate.held.intersection(c.finding.caused_by))
            and (not c.is_claimed or corroboration.is_printed_only(candidate.finding))
        ]
        if causes:
            candidate.parent = min(causes, key=lambda c: (c.rule.rank, c.key))
            candidate.parent.children.append(candidate)
    roots = [c for c in candidates if c.parent is None]
    for candidate in candidates:
        candidate.children.sort(key=lambda c: (min(c.times, default=float("inf")), c.key))
    return sorted(roots, key=lambda root: _root_key(root, effects))


def _is_below(candidate: _Candidate | None, top: _Candidate) -> bool:
    while candidate is not None:
        if candidate is top:
            return True
        candidate = candidate.parent
    return False


def _root_key(
    root: _Candidate, effects: Effects
) -> tuple[int, int, bool, tuple[int, int, float, str]]:
    """A root is as severe as the worst of its tree."""
    worst = min(SEVERITIES.index(c.severity) for c in _tree(root))
    return (worst, root.key[0], effects.ended_by(_events(root)) is None, root.key)


def _events(root: _Candidate) -> list[Event]:
    """The evidence of an incident, and what it covers without a link."""
    findings = [candidate.finding for candidate in _tree(root)]
    return [e for f in findings for e in (*(link.event for link in f.chain), *f.covers)]


def _with_effects(
    diagnoses: tuple[Diagnosis, ...], roots: Sequence[_Candidate], effects: Effects
) -> tuple[Diagnosis, ...]:
    """The diagnoses; that of each root with what the incident did to the program."""
    grave = [root for root in roots if root.severity in ("critical", "error")]
    found: dict[str, Effect] = {}
    number = 1
    for root in roots:
        is_alone = len(grave) == 1 and root is grave[0]
        found[f"d{number}"] = effects.of(
            root.rule.name, root.severity, _events(root), is_alone, len(roots) == 1
        )
        number += len(_tree(root))
    return tuple(
        replace(each, effect=effect.text, ended_driver=effect.ended_driver)
        for each in diagnoses
        for effect in (found.get(each.id, Effect()),)
    )


def _tree(candidate: _Candidate) -> list[_Candidate]:
    return [candidate, *(below for child in candidate.children for below in _tree(child))]


def shown(rule: Rule, findings: Iterable[Finding]) -> list[Diagnosis]:
    """A rule's findings as in a report, but not linked with each other."""
    candidates = [_Candidate(rule, finding) for finding in findings]
    return [_inert(each) for each in _number(candidates, (99, 0))]


def _number(roots: list[_Candidate], version: tuple[int, int] | None) -> tuple[Diagnosis, ...]:
    ordered = [c for root in roots for c in _tree(root)]
    names = {id(c): f"d{n}" for n, c in enumerate(ordered, 1)}
    return tuple(_diagnosis(c, names, version) for c in ordered)


def _diagnosis(
    candidate: _Candidate, names: dict[int, str], version: tuple[int, int] | None
) -> Diagnosis:
    rule, finding = candidate.rule, candidate.finding
    remedies = rule.remedies if finding.remedies is None else finding.remedies
    return Diagnosis(
        id=names[id(candidate)],
        rule=rule.name,
        tier=rule.tier,
        severity=candidate.severity,
        headline=finding.headline,
        count=finding.count,
        chain=tuple(dict.fromkeys(finding.chain)),
        remedies=tuple(
            r
            for remedy in remedies
            if (r := _for_version(remedy, version)) and not (candidate.parent and r.finds_cause)
        ),
        subjects=finding.subjects,
        gaps=tuple(g for g in finding.gaps if not (candidate.parent and g.about == "cause")),
        consequences=tuple(names[id(child)] for child in candidate.children),
        first_at=min(candidate.times, default=None) if finding.at is None else finding.at,
        last_at=max(candidate.all_times, default=None),
    )


def _in_original(diagnoses: tuple[Diagnosis, ...]) -> tuple[Diagnosis, ...]:
    """The diagnoses with line numbers of the files as they were given."""
    events = {link.event for each in diagnoses for link in each.chain if link.event.source.lines}
    changed = {event: replace(event, line=event.source.line(event.line)) for event in events}
    if not changed:
        return diagnoses
    return tuple(
        replace(
            each,
            chain=tuple(
                replace(link, event=changed.get(link.event, link.event)) for link in each.chain
            ),
        )
        for each in diagnoses
    )


def _inert(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with a headline and titles that are harmless if pasted into a shell by mistake."""
    return replace(
        diagnosis,
        headline=paste.inert(headline(diagnosis.headline)),
        effect=paste.inert(diagnosis.effect) if diagnosis.effect else "",
        remedies=tuple(replace(r, title=paste.inert(r.title)) for r in diagnosis.remedies),
    )


def _for_version(remedy: Remedy, version: tuple[int, int] | None) -> Remedy | None:
    """The remedy if this Ray supports it; for an unknown version, with its versions in the title."""
    if version is None:
        known = f"Ray ≥ {remedy.since[0]}.{remedy.since[1]}" if remedy.since > (2, 9) else ""
        if remedy.until < (999, 0):
            known = f"{known or 'Ray'} < {remedy.until[0]}.{remedy.until[1]}"
        return replace(remedy, title=f"{remedy.title} ({known})") if known else remedy
    return remedy if remedy.since <= version < remedy.until else None


# ---------------------------------------------------------------- the capture


def _has_workers(case: Case) -> bool:
    return any(line["who"] for line in case.last_lines)


def _info(capture: Capture, case: Case) -> CaptureInfo:
    timed = [e for e in case.events if e.at is not None]
    # What a program prints may quote records of another day.
    times = [e.at or 0.0 for e in timed if e.source.role not in corroboration.PRINTED] or [
        e.at or 0.0 for e in timed
    ]
    ledger = case.ledger
    registered = [e["node"] for e in case.of("node.registered")]
    nodes = tuple(
        NodeInfo(node, ip, head=bool(registered) and node == registered[0])
        for node, ip in sorted(
            ledger.node_ips.items(), key=lambda item: (item[0] not in registered[:1], item[0])
        )
    )
    # A console and the parts separated from it are one file.
    sizes = {(source.node, source.path): source.size for source in reversed(case.sources)}
    return CaptureInfo(
        path=capture.path,
        kind=capture.kind,
        ray_versions=ledger.versions,
        nodes=nodes,
        begin=min(times, default=None),
        end=max(times, default=None),
        files=len(sizes),
        bytes=sum(sizes.values()),
        has_zone=case.has_zone,
    )
