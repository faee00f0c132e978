"""Exceptions that ended drivers, as the GCS of a live cluster keeps them: the frames, without type and message.

Ray's `sys.excepthook` sends the frames of a connected driver's exception (`custom_excepthook` in
`ray/_private/worker.py`, 2.9.3 to 2.60.0). Python calls it neither for SystemExit nor for threads, but for
KeyboardInterrupt: Ctrl-C leaves the same record as an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.model import ids
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event
from raydoctor.rules.shared.traceback import NO_FAILURES, Raised, cut_off

RECENT_S = 3600.0
"""Seconds in which the end of a driver of a running cluster matters, unless the user names a time."""
_RAISES = pattern(r"raise\b")
_RAISED_TYPE = pattern(r"raise (?P<type>(?:\w{1,60}\.){0,5}[A-Z]\w{0,100})(?:\(|$| from )")
_FROM = pattern(r"raise\b.{0,300}? from (?!None\b)")
_JUMPS = pattern(r"(?:while|for|if|elif|async|with)\b")
_CALLS = pattern(r"\(|\bawait\b|\byield\b")
_PROGRAMS = ("<string>", "<frozen ")
"""Outermost frames of `python -c` and `python -m`; those of a prompt, such as `<stdin>`, do not end their process."""
_CHECKS = ("ValueError", "TypeError")
"""Exceptions by which Ray rejects arguments."""


class DriverEnd(NamedTuple):
    """A driver that an exception ended."""

    event: Event
    """Its row in the table of workers."""
    job: str
    pid: int | None
    submission: str
    """The submission that started it; empty for a program that was run by hand."""
    raised: Raised
    """Its type is empty if the last line does not name it."""
    is_error: bool
    """Whether the last line shows that it was not Ctrl-C."""
    is_passed_on: bool
    """Whether Ray or the program raised it because something else had failed."""


def ends(case: Case) -> Iterator[DriverEnd]:
    """Drivers that an exception ended in the last hour before the collection.

    Of several drivers of one submission, only the one in the table of jobs counts: its entrypoint may go on.
    """
    head = live.looked(case, "workers")
    since = (head.at or 0.0) - RECENT_S if head else 0.0
    jobs = {row["job_id"]: row for row in live.rows(case, "jobs")}
    knows_jobs = live.looked(case, "jobs") is not None
    for row in live.rows(case, "workers"):
        job = ids.job_of_driver(row["worker_id"])
        ended = (live.number(row, "end_time_ms") or 0.0) / 1000
        if not (row["exception"] and job) or live.truth(row, "is_alive") or ended < since:
            continue
        if knows_jobs and job not in jobs:
            continue
        if raised := cut_off(row["exception"]):
            info = live.mapping(jobs[job], "driver_info") if job in jobs else {}
            pid = live.whole_of(info.get("pid")) or case.job(job).driver_pid
            submission = jobs[job]["submission_id"] if job in jobs else ""
            if end := _end(raised):
                yield DriverEnd(row, job, pid, submission, *end)


def _end(raised: Raised) -> tuple[Raised, bool, bool] | None:
    """The exception with its type, and the last two fields of a `DriverEnd`; None if nothing failed."""
    first, last = raised.frames[0], raised.frames[-1]
    if first.file.startswith("<") and not first.file.startswith(_PROGRAMS):
        return None
    code = last.code.partition("\n")[0]
    named = _RAISED_TYPE.match(code)
    raised = raised._replace(type=named["type"] if named else "")
    if raised.name in NO_FAILURES:
        return None
    is_raised = bool(_RAISES.match(code))
    is_rays = "/ray/" in last.file.replace("\\", "/") and not last.is_user_code
    by_ray = is_raised and is_rays and raised.name not in _CHECKS
    return raised, is_raised or _is_operation(last.code), by_ray or bool(_FROM.match(code))


def _is_operation(code: str) -> bool:
    """Whether Python marks a part of the line that calls nothing, such as `row["key"]`.

    Python handles Ctrl-C only at calls and jumps (`Python/ceval.c`, 3.11 to 3.13).
    """
    line, _, marks = code.partition("\n")
    marked = line[len(marks) - len(marks.lstrip()) : len(marks.rstrip())]
    return len(marked) > 1 and not _CALLS.search(marked) and not _JUMPS.match(line)
