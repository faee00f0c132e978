"""Detects findings with only a program's output as evidence, and whether Ray's own logs contradict them.

A program may print anything: an old log, a test's expectation, a forged record. The GCS and the raylets
record every failure that involves them (`Rule.daemons_record`). If their logs are complete, cover the time in
question and report no failure at all, such a finding is at most a warning, with the reason in its headline,
and the report is inconclusive: the program may have failed in a way that Ray does not record.
If they report another failure, the finding explains nothing that they explain. Printed records with times of
another day than the session are a warning even beside incomplete logs.
"""

from __future__ import annotations

from dataclasses import replace

from raydoctor.case import Case
from raydoctor.case.case import LAST_LINE
from raydoctor.model.values import Event, Finding, Gap

PRINTED = frozenset({"driver", "job-driver", "worker-out", "worker-err"})
"""Roles of files with the output of programs."""
_SLACK = 60.0
"""Seconds after the last record of Ray's daemons for which their logs still count as complete."""
_LONG_BEFORE = 86_400.0
"""Seconds: more than time zones differ."""
EARLIER = "only the program's output reports this, with a time before this session"
_NOTE = "only the program's output reports this; the GCS and raylet logs are complete and do not record it"

GAP = Gap(
    "whether the program failed",
    "only its output reports an error",
    "Look up the program's exit code, and read its output around the lines above.",
)


def is_printed_only(finding: Finding) -> bool:
    """Whether all evidence of the finding is in files with the output of programs."""
    events = (*(link.event for link in finding.chain), *finding.covers)
    return all(_is_printed(event) for event in events)


def is_claimed(case: Case, finding: Finding) -> bool:
    """Whether only a program's output reports it, at a time that the logs of Ray's daemons cover."""
    return is_printed_only(finding) and _covers(case, finding)


def _covers(case: Case, finding: Finding) -> bool:
    """Whether the logs of Ray's daemons reach as far as the finding's evidence.

    They do if a daemon logged that late or recorded its own stop. Evidence without a time counts as covered.
    """
    if case.stopped_at() != float("inf"):
        return True
    written = [e.at for e in case.events if e.at is not None and not _is_printed(e)]
    printed = [link.event.at for link in finding.chain if link.event.at is not None]
    return bool(written) and max(printed, default=0.0) <= max(written) + _SLACK


def as_warning(finding: Finding, reason: str = _NOTE) -> Finding:
    """The same finding as a warning, with the reason in its headline."""
    return replace(finding, severity="warning", headline=f"{finding.headline} ({reason})")


def is_from_before(case: Case, finding: Finding) -> bool:
    """Whether only a program's output reports it, with times long before the first record of Ray's processes.

    Such lines are a quotation, or the end of an earlier run in the same file.
    """
    times = [link.event.at for link in finding.chain if link.event.kind != LAST_LINE]
    if not times or None in times or not is_printed_only(finding):
        return False
    written = (e.at for e in case.events if e.at is not None and not _is_printed(e))
    return max(at for at in times if at is not None) < min(written, default=0.0) - _LONG_BEFORE


def _is_printed(event: Event) -> bool:
    return event.source.role in PRINTED
