"""Lowers failures that the program survived, according to its own output.

A program may expect an exception: a test, a poll with a timeout, a copy that is cancelled, a record that is
skipped. Its output then continues below the exception and ends without a failure. Such an exception is no
cause of a failure. What Ray's daemons record as well (a worker that died, memory that ran out) may still
hurt, so it becomes a warning.

Unless the output says that the program succeeded, its exit code is unknown: the report is inconclusive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from raydoctor.case import Case, evidence
from raydoctor.case.case import LAST_LINE
from raydoctor.case.rule import Rule
from raydoctor.case.signals import TRACEBACK
from raydoctor.diagnosis.corroboration import PRINTED
from raydoctor.model.values import Event, Finding, Gap, Severity
from raydoctor.rules.shared.connect import CONNECTING, STARTED_LOCAL
from raydoctor.rules.shared.traceback import parse

CONNECTED = (STARTED_LOCAL, CONNECTING)
"""The beginning of a driver's output. An excerpt without it may leave out how the program ended."""
GAP = Gap(
    "whether the program succeeded",
    "its output continues below the exceptions and ends without an error, and the exit code is unknown",
    "Look up the exit code: raydoctor run -- COMMAND prints and keeps it.",
)


_WAITS = frozenset(("waiting", "request", "lease", "starved", "placement-group"))
"""Kinds of what findings about waits explain: a program that prints while it waits has survived nothing."""
_HURTS = frozenset(("memory", "disk", "node", "raylet", "gcs", "spilling", "object"))
"""Kinds of what a finding about resources and daemons explains: the next run may not survive it."""


def lower(
    case: Case, rule: Rule, finding: Finding, severity: Severity
) -> tuple[Finding, bool] | None:
    """The finding with a lower severity, and whether the output proves that the program succeeded.

    None if the program may have failed because of it.
    """
    if severity not in ("critical", "error"):
        return None
    kinds = frozenset(rule.explains or ())
    is_proven = _succeeded(case)
    if not is_proven and (kinds & _WAITS or not _is_survived(case, finding)):
        return None
    is_death = "worker" in kinds and "actor" not in kinds
    lowest: Severity = "warning" if kinds & _HURTS or is_death else "info"
    headline = f"{finding.headline}, and the program continued"
    return replace(finding, severity=lowest, headline=headline), is_proven


def _is_survived(case: Case, finding: Finding) -> bool:
    """Whether all evidence is above the part of a program's output that shows no failure until its end."""
    events = [link.event for link in finding.chain if link.event.kind != LAST_LINE]
    return bool(events) and all(_is_above_end(case, event) for event in events)


def _succeeded(case: Case) -> bool:
    """Whether the only program whose output the capture has says that it succeeded."""
    return len(case.endings) == 1 and all(end["is_success"] for end in case.endings.values())


def _is_above_end(case: Case, event: Event) -> bool:
    if event.source.role not in PRINTED or not evidence.outlived(case, event):
        return False
    if _may_have_ended_another(case, event):
        return False
    return not event.source.is_excerpt or _is_whole(case, event.source.path)


def _may_have_ended_another(case: Case, event: Event) -> bool:
    """Whether several programs share the output, and the exception left the outermost frame of one of them.

    What follows may then be the output of the others.
    """
    drivers = [
        e
        for e in case.of(*(signal.kind for signal in CONNECTED))
        if e.source.path == event.source.path and e.line < event.line
    ]
    above = [
        e for e in case.of(TRACEBACK.kind) if e.source is event.source and e.line <= event.line
    ]
    if len(drivers) < 2 or not above:
        return False
    raised = parse(above[-1].message)
    return raised is not None and bool(raised.frames) and raised.frames[0].function == "<module>"


def _is_whole(case: Case, path: str) -> bool:
    """Whether an output without Ray's logs shows its program's connection to Ray, or its success."""
    ends: Iterable[Event] = (e for s, e in case.endings.items() if s.path == path)
    return any(e["is_success"] for e in ends) or any(
        e.source.path == path for e in case.of(*(signal.kind for signal in CONNECTED))
    )
