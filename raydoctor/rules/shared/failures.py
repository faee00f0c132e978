"""Every exception of user code in a capture, from all of its sources: one stream for several rules.

Besides printed ones, these are exceptions that Ray itself recorded: export events, and the failed rows of a live
cluster's table of tasks, which the GCS keeps even if the program caught the exception and printed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from raydoctor.case import Case
from raydoctor.case.case import LAST_LINE
from raydoctor.case.case import OUTPUT as OUTPUT_LINE
from raydoctor.case.rule import Signal
from raydoctor.case.signals import CORE, OUTPUT, RAY_EXCEPTION, TRACEBACK, TRACEBACKS
from raydoctor.cluster import tables as live
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event
from raydoctor.rules.shared import data, train
from raydoctor.rules.shared.task_error import (
    ECHOED_TEXT,
    ERROR_TEXT,
    Printed,
    TaskFailure,
    parse_failure,
    printed,
)
from raydoctor.rules.shared.traceback import (
    BEGIN,
    NO_FAILURES,
    Raised,
    cut_off,
    lone,
    parse,
)

RESUBMITTED = Signal(
    "task.resubmitted",
    "Attempting to resubmit task ",
    r"^Attempting to resubmit task (?P<task>[0-9a-f]{48}) for attempt number: (?P<attempt>\d+)",
    CORE,
    "Attempting to resubmit task c8ef45ccd0112571ffffffffffffffffffffffff01000000 for attempt number: 0",
)
"""Its owner runs the task again after this attempt: an exception of the attempt does not fail the task."""
METHOD_FAILED = Signal(
    "task.method_failed",
    "Error executing method ",
    r"^Error executing method '?(?P<method>\w{1,100})'?\. This might cause deadlock in distributed execution\.",
    OUTPUT,
    "Error executing method 'load_model'. This might cause deadlock in distributed execution.",
    fold=("method",),
)
"""vLLM's workers log it above the traceback, and raise the exception again (`worker_base.py`, 0.4 to 0.18)."""
SIGNALS = (
    *(RAY_EXCEPTION, ERROR_TEXT, ECHOED_TEXT, RESUBMITTED, METHOD_FAILED, TRACEBACK),
    *(*train.SIGNALS, *data.FAILED),
)
_BELOW = 3
"""Lines from vLLM's message down to its traceback: another process may print between them."""


def failures(case: Case) -> Iterator[Printed]:
    """Failures of tasks and methods, of training functions, and of functions in pipelines.

    A rank that failed because its peer was gone belongs to `train-worker-failed`: that error is not a cause.
    """
    raised = [*printed(case), *_recorded(case), *train.errors(case), *data.errors(case)]
    for seen in (*raised, *_methods(case, raised)):
        if not train.is_loss_of_peer(seen):
            yield seen


CONSTRUCTED = "raised in its creation task, ray::"


def constructors(case: Case) -> Iterator[Printed]:
    """Constructors of actors that raised, each once, as a call on the actor or the actor's own process prints it.

    `actor-init-failed` reports them; a rule that knows the exception explains it as the cause.
    """
    found: set[tuple[str, int | None]] = set()
    for event in case.of(RAY_EXCEPTION.kind, "actor.creation_printed", ERROR_TEXT.kind):
        begin = event.message.find("ray::")
        is_lone = event.kind == ERROR_TEXT.kind and begin == 0 and event.source.is_excerpt
        is_quoted = event.kind != ERROR_TEXT.kind and CONSTRUCTED in event.message[: begin + 5]
        failure = parse_failure(event.message[begin:]) if is_lone or is_quoted else None
        if failure is None or not failure.function.endswith(".__init__") or case.torn_down(event):
            continue
        if (failure.function, failure.pid) not in found:
            found.add((failure.function, failure.pid))
            yield Printed(event, failure)


def is_recorded(event: Event) -> bool:
    """Whether Ray recorded this failure itself; the program may have caught the exception."""
    return event.kind in _RECORDS


def task_of(event: Event) -> str:
    """TaskID of a failure that Ray recorded."""
    return event["task"] or event["task_id"]


_RECORDS = ("export.task_error", "live.tasks")


def _recorded(case: Case) -> Iterator[Printed]:
    again = {(e["task"], e["attempt"]) for e in case.of(RESUBMITTED.kind)}
    latest: dict[str, int] = {}
    for row in live.rows(case, "tasks"):
        number = live.whole(row, "attempt_number") or 0
        latest[row["task_id"]] = max(number, latest.get(row["task_id"], 0))
    for event in case.of(*_RECORDS):
        if (event["error"] or event["error_type"]) != "TASK_EXECUTION_EXCEPTION":
            continue
        failure = parse_failure(event["what"]) or _of_row(event)
        if failure and not failure.function.endswith(".__init__"):
            attempt = event["attempt"] or event["attempt_number"]
            is_old = (live.whole(event, "attempt_number") or 0) < latest.get(task_of(event), 0)
            is_retried = is_old or (task_of(event), attempt) in again
            yield Printed(event, failure, is_retried=is_retried)


def _of_row(event: Event) -> TaskFailure | None:
    """The failure of a record that names the task: Ray keeps only the end of a long message."""
    text = event["error_message"].removeprefix("User exception:\n") or event["what"]
    if failure := parse_failure(text):
        return failure
    name = event["func_or_class_name"] or event["name"]
    # The pid of an export event is that of the process that wrote it.
    pid = (event.pid or 0) if event["error_message"] else 0
    head = f"ray::{name}() (pid={pid}, ip=0.0.0.0)"
    return parse_failure(f"{head}\n{text.partition(chr(10))[2]}") if name and text else None


def _methods(case: Case, known: list[Printed]) -> Iterator[Printed]:
    """Methods of vLLM's workers that raised, unless the exception is known from a result."""
    found = case.of(METHOD_FAILED.kind)
    logged = case.of(*TRACEBACKS) if found else []
    parsed = [(event, raised) for event in logged if (raised := parse(event.message))]
    same = {str(seen.failure.raised) for seen in known}
    methods: list[tuple[Event, Event, Raised]] = []
    for event in found:
        below = (
            (event, each, raised)
            for each, raised in parsed
            if each.source is event.source
            and (each.pid, each["rank"]) == (event.pid, event["rank"])
            and 0 < each.line - event.line <= _BELOW
        )
        methods += [m for m in islice(below, 1) if not (m[2].is_rays_own or str(m[2]) in same)]
    # One of vLLM's workers may run in the driver, whose lines have no prefix.
    classes = {
        (e["method"], str(raised)): e["who"] for e, _, raised in methods if e.pid and e["who"]
    }
    for event, traceback, raised in methods:
        method = event["method"]
        who = classes.get((method, str(raised)))
        name = f"{who}.{method}" if who else method
        failure = TaskFailure(name, raised, pid=event.pid, is_remote=bool(who))
        copies = (each for each, other in parsed if str(other) == str(raised))
        yield Printed(traceback, failure, (event, *copies))


# ---------------------------------------------------------------- programs


def ended_programs(case: Case) -> Iterator[tuple[Event, Raised]]:
    """The end of each output that ends with an exception, and this exception."""
    for ending in sorted(case.endings.values(), key=lambda each: each.source.path):
        if found := exception_at_end(ending):
            yield ending, found


def ended_workers(case: Case) -> Iterator[tuple[Event, Raised]]:
    """The exceptions of tasks and actors with which excerpts end, if no signal recognizes another line of them."""
    for ending, raised in ended_programs(case):
        last = ending.line + ending.text.count("\n")
        own = (
            e
            for e in case.events
            if e.source is ending.source
            and (ending.line <= e.line <= last or f"{e.pid}" == ending["worker_pid"])
        )
        if (
            ending["worker"]
            and all(e.kind in _PLAIN for e in own)
            and not (raised.is_rays_own or raised.is_elsewhere)
        ):
            yield ending, raised


def is_plain(case: Case, event: Event) -> bool:
    """Whether no signal recognizes the first line of a record, so that no other rule knows its exception."""
    alike = (e for e in case.events if e.source is event.source and e.line == event.line)
    return all(e.kind in _PLAIN for e in alike)


_PLAIN = (*TRACEBACKS, "log.error", LAST_LINE, OUTPUT_LINE, "driver.tail")


def exception_at_end(ending: Event) -> Raised | None:
    """The exception with which an output ends, even if the output lacks the traceback's beginning or end."""
    if not ending["ended_by"]:
        return None
    text = ending.text
    return cut_off(text) or parse(text) or parse(f"{BEGIN}\n{text}") or lone(text)


def cause_above(
    case: Case, event: Event, *, within: int | None = None
) -> tuple[Event, Raised] | None:
    """The last exception in the same output above an event whose own exception is missing or only refers to it.

    `within`: number of lines above the event in which it must end.
    """
    found: list[tuple[Event, Raised]] = []
    for each in case.of(*TRACEBACKS, "log.error"):
        if each.source is event.source and each.line < event.line:
            raised = parse(f"{BEGIN}\n{each.message}")
            if raised and not (raised.is_rays_own or raised.is_elsewhere or _is_no_failure(raised)):
                found.append((each, raised))
    last = max(found, key=lambda pair: pair[0].line, default=None)
    end = last[0].line + last[0].message.count("\n") if last else 0
    if within is not None and event.line - end > within:
        return None
    alike = (pair for pair in found if last and str(pair[1]) == str(last[1]))
    return max(alike, key=lambda pair: (len(pair[1].frames), pair[0].line), default=None)


def _is_no_failure(raised: Raised) -> bool:
    return raised.name in NO_FAILURES or raised.name.endswith("Warning")


def is_certain_end(ending: Event) -> bool:
    """Whether the exception ended the program; an excerpt may leave out what follows it."""
    return ending["ended_by"] != "excerpt"


def program(ending: Event) -> Entity:
    """The program whose output ends here."""
    return Entity("program", ending.source.path)
