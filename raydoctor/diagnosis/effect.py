"""What an incident did to the program: the exception that ended the driver, or that the program went on.

The end of a driver is in its own output (`read/ending.py`), in the records of the job manager and, for a
driver that still runs, in the tables of a live collection. An incident ended the program if its evidence is
part of the traceback at the end. Where the logs do not show the end, the sentence says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.signals import RAY_EXCEPTION, TRACEBACK, TRACEBACKS, WORKER_DISCONNECTED
from raydoctor.cluster import tables as live
from raydoctor.diagnosis.callers import exception_of
from raydoctor.model import ids
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called, join_names, one_line, plural
from raydoctor.model.values import CONSOLES, Event, Severity, Source
from raydoctor.rules.shared import jobs
from raydoctor.rules.shared.task_error import raised_by_task
from raydoctor.rules.shared.traceback import Raised, parse

_ABOUT_ENDS = ("job-failed", "driver-vanished", "several-jobs")
"""Rules whose headline itself says how the program ended, or that nothing failed."""
_OF_MODULE = pattern(r"(?m)^Traceback \(most recent call last\):\n {2}File .{1,300}, in <module>$")
_WAITS = (
    "actor-deadlock",
    "async-actor-blocked",
    "cluster-starved",
    "debugger-waiting",
    "infeasible-request",
    "job-pending",
    "nested-get-deadlock",
    "no-node-type-fits",
    "placement-group-pending",
    "task-hung",
)
"""Rules about work that waits and has not failed."""
_WORD = pattern(r"[^\W\d_]{2}")
_MOST = 20
"""Records of an incident that are compared with the program's later output: it may have very many."""
_QUOTED = 60
"""Letters of a last line that are quoted."""
_DRIVER = "The driver"
_UNKNOWN, _WENT_ON = "Not known from these logs", "The program continued"


class Effect(NamedTuple):
    """What an incident did to the program."""

    text: str = ""
    """One sentence; empty if the incident has no effect or its headline says it."""
    ended_driver: bool = False
    """Whether a driver's output ends with the exception that it caused."""


class Effects:
    """The effects of the incidents of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        whole = {s: e for s, e in case.endings.items() if not s.is_excerpt and not s.pid}
        self.endings = whole
        """The last output of each driver, without pastes: these may leave out how the program ended."""

    @cached_property
    def _submissions(self) -> dict[str, jobs.Submission]:
        found = (s for s in jobs.submissions(self.case) if s.source is not None)
        return {s.source.path: s for s in found if s.source}

    def ended_by(self, events: Iterable[Event]) -> Event | None:
        """The end of the program that one of these events is part of."""
        for event in events:
            end = self.endings.get(event.source)
            is_own = not event.text.startswith("(")
            if end and end["ended_by"] == "traceback" and is_own and event.line >= end.line:
                return end
        return None

    def of(
        self,
        rule: str,
        severity: Severity,
        events: Sequence[Event],
        is_alone: bool,
        is_only: bool = False,
    ) -> Effect:
        """The effect of an incident with these events.

        `is_alone`: no other incident can have ended the program. `is_only`: the report has no other incident.
        """
        if severity == "info":
            return Effect()
        end = self.ended_by(events)
        if rule in _ABOUT_ENDS:
            return Effect(ended_driver=end is not None)
        if end is None and is_alone and len(self.endings) == 1:
            (only,) = self.endings.values()
            end = only if only["ended_by"] == "traceback" else None
        if end is not None:
            ended = f"{_got(end)} and ended{self._code(end.source)}"
            return Effect(f"{self._program(end.source)} {ended}", ended_driver=True)
        if severity in ("critical", "error") and (
            known := self._lost_gcs(events)
            or self._refused(events)
            or self._alive(is_only and rule in _WAITS)
        ):
            return Effect(known)
        printed = islice((e for e in events if e.source in self.endings), _MOST)
        found = next(filter(None, map(self._survived, printed)), "")
        return Effect(found or (self._open() if severity in ("critical", "error") else ""))

    def _survived(self, event: Event) -> str:
        """That the program went on after an event of its output, or did not end where it printed it."""
        end = self.endings[event.source]
        if end["ended_by"] == "traceback":
            own = [e for e in self.case.outputs.get(event.source.path, ()) if not e["who"]]
            went_on = any(event.line < e.line < end.line for e in own) or self._caught(event)
            return f"{_WENT_ON} and later {_got(end)}, which ended it" if went_on else ""
        left = " and later disconnected from Ray in order" if self._has_left() else ""
        if evidence.outlived(self.case, event):
            if end["is_success"] and len(self.endings) == 1:
                return f"{_WENT_ON}, and its output says that it succeeded"
            if vanished := self._vanished():
                return f"{_WENT_ON} until its output ended with {last_line(end)}. {vanished}"
            code = "" if left else ", and no exit code is known"
            return f"{_WENT_ON}{left}; its output ends with {last_line(end)}{code}"
        caught = self._caught(event)
        if not caught or not caught.place:
            return ""
        known = (
            "no exit code is known"
            if left
            else "no log shows whether it ended because of this error"
        )
        return f"The program printed {_name(event.text, caught)} at {caught.place.place}{left}; {known}"

    def _has_left(self) -> bool:
        """Whether the only driver took leave of its raylet, as a program does that nothing killed."""
        of_ray = jobs.managers(self.case)
        found = [j.id for j in self.case.ledger.jobs.values() if j.driver_pid not in of_ray]
        left = self.case.of(WORKER_DISCONNECTED.kind)
        return len(found) == 1 and any(
            e["graceful"] == "true" and ids.job_of_driver(e["worker"]) == found[0] for e in left
        )

    def _vanished(self) -> str:
        """That the only driver ended without disconnecting from Ray, as if killed; otherwise empty."""
        of_ray = jobs.managers(self.case)
        jobs_ = [j.id for j in self.case.ledger.jobs.values() if j.driver_pid not in of_ray]
        gone = [ids.job_of_driver(e.worker) for e in self.case.driver_exits]
        if len(jobs_) != 1 or gone != jobs_:
            return ""
        return "It then exited without disconnecting from Ray, and no exit code is known"

    def _caught(self, event: Event) -> Raised | None:
        """The exception of a traceback that begins in a function of the program, which printed it.

        The traceback of one that ends a program begins with the module's frame, a thread's in `threading.py`.
        """
        if event.text.startswith("("):
            return None
        if event.kind == RAY_EXCEPTION.kind:
            raised = exception_of(self.case, event)
        else:
            raised = parse(event.text) if event.kind == TRACEBACK.kind else None
        first = raised.frames[0] if raised and raised.frames else None
        is_function = first and first.is_user_code and first.function != "<module>"
        return raised if is_function else None

    def _lost_gcs(self, events: Iterable[Event]) -> str:
        """A driver exits when it gives up waiting for the GCS."""
        for event in events:
            if event.kind == "gcs.lost" and event.source.role in CONSOLES:
                where = f"{event.source.path.rpartition('/')[2]}:{event.line}"
                return f"{_DRIVER} ended: it had not reached the GCS for {event['seconds']} s ({where})"
        return ""

    def _code(self, source: Source) -> str:
        submission = self._submissions.get(source.path)
        return f" with exit code {submission.code}" if submission and submission.code else ""

    def _refused(self, events: Iterable[Event]) -> str:
        """What a cluster that refuses the shell of a live collection means for running drivers."""
        is_refused = any(
            e.kind == "live.probes" and e["outcome"] == "unauthenticated" for e in events
        )
        running = list(dict(self._running()).values()) if is_refused else []
        if not running:
            return ""
        names = join_names(running)
        verb = "keep" if len(running) > 1 else "keeps"
        refused = (
            "the cluster refuses new drivers and ray commands from the shell that ran raydoctor"
        )
        return f"{names[:1].upper()}{names[1:]} {verb} running; {refused}"

    def _alive(self, only_waits: bool) -> str:
        """That drivers were still running, if a live collection saw them.

        `only_waits`: the report has no other incident, and this one is about work that waits.
        """
        running = dict(self._running())
        if not running:
            return ""
        names = join_names(running.values())
        were = "were" if len(running) > 1 else "was"
        is_whole = only_waits and not self._has_failed()
        begin = (
            f"Nothing has failed yet: {names}" if is_whole else f"{names[:1].upper()}{names[1:]}"
        )
        said = f"{begin} {were} still running"
        waiting = self._waiting(running)
        return f"{said}, and {waiting} had not started" if waiting else said

    def _has_failed(self) -> bool:
        """Whether any process or task failed, or any output has an exception, explained or not."""
        ended = any(not each.expected for each in self.case.ledger.exits)
        failed = any(row["state"] == "FAILED" for row in live.rows(self.case, "tasks"))
        return ended or failed or bool(self.case.of(RAY_EXCEPTION.kind, *TRACEBACKS))

    def _waiting(self, of_jobs: Collection[str]) -> str:
        """The tasks of these jobs that wait for a worker: `2 train() tasks`."""
        rows = [
            row["name"]
            for row in live.rows(self.case, "tasks")
            if row["type"] == "NORMAL_TASK"
            and row["state"] == "PENDING_NODE_ASSIGNMENT"
            and row["job_id"] in of_jobs
        ]
        counts = Counter(called(name) for name in rows)
        return join_names(plural(n, f"{name} task") for name, n in counts.most_common())

    def _open(self) -> str:
        ends = [e for s, e in self.endings.items() if s.role == "driver"]
        if len(ends) == 1 and not ends[0]["ended_by"]:
            last = last_line(ends[0])
            said = (
                f"{_UNKNOWN}: they contain no exit code, and the program's output ends with {last}"
            )
            if self._vanished():
                return f"{said}. It then exited without disconnecting from Ray"
            return said
        if not any(source.role in CONSOLES for source in self.case.sources):
            return f"{_UNKNOWN}: the program's output is not in the capture"
        return ""

    def _running(self) -> Iterator[tuple[str, str]]:
        """The jobs whose drivers a live collection saw, and their drivers in words."""
        of_ray = jobs.managers(self.case)
        for row in live.rows(self.case, "processes"):
            is_program = row["job_id"] and live.whole(row, "pid") not in of_ray
            if row["kind"] == "driver" and row["state"] != "Z" and is_program:
                name = f"the driver of job {ids.job_number(row['job_id'])} (pid {row['pid']})"
                yield row["job_id"], name

    def _program(self, source: Source) -> str:
        submission = self._submissions.get(source.path)
        return f"Job '{submission.id}'" if submission else _DRIVER


def _got(end: Event) -> str:
    """`got KeyError at train.py:12`, of the traceback that ended a program."""
    raised = parse(_uncaught(end.text))
    where = f"{end.source.path.rpartition('/')[2]}:{end.line}"
    if raised is None:
        return f"got the exception at {where}"
    frame = raised.place
    at = f"at {frame.place}" if frame and frame.is_user_code else f"({where})"
    return f"got {_name(end.text, raised)} {at}"


def _uncaught(text: str) -> str:
    """From the last traceback that begins in the program's module: its message may quote further ones."""
    begin = max((found.start() for found in _OF_MODULE.finditer(text)), default=0)
    return text[begin:]


def _name(text: str, raised: Raised) -> str:
    """The exception; of one that a task raised, the task's own."""
    of_task = raised_by_task(text) if raised.name == "RayTaskError" else ""
    return of_task or raised.name


def last_line(end: Event) -> str:
    """The last line of an output, if it reads as one: some end with a list or a line of signs."""
    name, line = end.source.path.rpartition("/")[2], end.text.split("\n")[-1]
    is_words = _WORD.match(line) and len(line) <= _QUOTED
    return f"'{one_line(line)}' ({name}:{end.line})" if is_words else f"line {end.line} of {name}"
