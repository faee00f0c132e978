"""User code raised an exception in a task or an actor method.

## What you see
The program raises, prints or logs `ray.exceptions.RayTaskError(ValueError): ray::load() (pid=…, ip=…)` with a
traceback. `Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1')` marks an exception whose result was never
fetched. A task that gets a failed result as an argument fails as well: `At least one of the input arguments for this
task could not be computed`. vLLM's workers log `Error executing method 'load_model'. This might cause deadlock in
distributed execution.` above the traceback. If a console ends within the traceback, its frames can prove the same:
frames of a worker, or `raise value.as_instanceof_cause()` in Ray's `worker.py`. raydoctor then reports a warning.

## Why
The function raised an exception, as it would without Ray. Ray passes the exception to the caller of `ray.get` and
through every task that depends on the result. The first line therefore names the *last* task, and the innermost block
names the task that failed. Ray's own logs do not contain the exception. The driver's output contains it, and so do the
export events and, while the cluster runs, the table of tasks. That table does not show whether the program caught the
exception, so raydoctor reports an exception from there as a warning.

## Confirm
- The innermost block shows the exception, the function and the innermost line of your own program.
- While the cluster runs, `ray list tasks --filter error_type=TASK_EXECUTION_EXCEPTION` lists the failed tasks.

## Fix
Fix that line, or pass valid arguments. Retry temporary failures (network, files) with
`@ray.remote(retry_exceptions=[ConnectionError])`: by default Ray retries lost workers, not exceptions.

## Not this when
- the innermost exception is one of Ray's own (`OutOfMemoryError`, `ActorDiedError`, `OwnerDiedError`, …), which have
  their own rules.
- an actor's constructor raised the exception (`actor-init-failed`).
- an object cannot be pickled (`not-serializable`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, OUTPUT, RAY_EXCEPTION, TRACEBACKS
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import ELLIPSIS, called, cut
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import data, task_error, train
from raydoctor.rules.shared.cluster import LOST_WITH_CLUSTER
from raydoctor.rules.shared.disks import FULL, NO_SPACE
from raydoctor.rules.shared.failures import (
    METHOD_FAILED,
    ended_programs,
    ended_workers,
    exception_at_end,
    failures,
    is_plain,
    is_recorded,
    program,
    task_of,
)
from raydoctor.rules.shared.failures import SIGNALS as FAILURES
from raydoctor.rules.shared.live import examples as live_examples
from raydoctor.rules.shared.serialize import is_about_pickling, is_about_rebuilding
from raydoctor.rules.shared.serve import deployment_of
from raydoctor.rules.shared.setup import imports, misuse
from raydoctor.rules.shared.task_error import (
    MORE_FILES,
    OUT_OF_FILES,
    RETRIED,
    UNHANDLED,
    Printed,
    TaskFailure,
    error_entity,
    kind_and_place,
)
from raydoctor.rules.shared.traceback import (
    BEGIN,
    FIND_TRACEBACKS,
    NO_FAILURES,
    RAY_TASK_ERROR,
    Raised,
    cut_off,
    parse,
)

_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/tasks.html"
_ACTORS_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/actors.html"
_DEBUGGER_DOC = "https://docs.ray.io/en/latest/ray-observability/ray-distributed-debugger.html"
_EXCEPTIONS_DOC = "https://docs.ray.io/en/latest/ray-core/objects/serialization.html#custom-serializers-for-exceptions"
_LONGEST = 160
_EXISTS = pattern(
    r"\b(?:File exists|FileExistsError|already exists|[Dd]uplicate|UNIQUE constraint)\b"
)
_NO_MODULE = Signal(
    "task.no_module", "No module named ",
    r"^(?:ModuleNotFoundError|ImportError): No module named '(?P<module>[\w.]{1,200})'\s*$", DRIVER,
    "ModuleNotFoundError: No module named 'pyarrow'",
)  # fmt: skip
_ENGINE_FAILED = Signal(
    "task.engine_failed", " failed",
    r"^(?:AsyncLLM output_handler failed\.|EngineCore failed to start\.|WorkerProc failed to start\.)", DRIVER,
    "AsyncLLM output_handler failed.",
)  # fmt: skip
"""vLLM's words for the end of its engine (`v1/engine`, 0.7 and later). A paste may have lost the beginning of the traceback."""
_DASHBOARD = Signal(
    "task.dashboard_error", "Error Type: TASK_EXECUTION_EXCEPTION",
    r"^Error Type: TASK_EXECUTION_EXCEPTION\s{1,9}(?:User exception:)?(?P<what>.*)", DRIVER,
    "Error Type: TASK_EXECUTION_EXCEPTION\n\nUser exception:\nray::load() (pid=12)\n  File \"/app/etl.py\", line 6, in load\nKeyError: 'x'",
    extent="record",
)  # fmt: skip
"""How the dashboard shows a failed task; of a long text only the end (`components/TaskTable`, 2.3 to 2.60)."""
_HEADLESS = Signal(
    "task.headless", "() (pid=",
    r"^[\w.<>\[\]]{0,200}(?<!__)\(\) \(pid=(?P<task_pid>\d{1,10}), ip=[^,()\s]{1,100}(?:, actor_id=[0-9a-f]{32}, repr=<?(?P<actor>[\w.]{1,200})[^\n]{0,300})?\)", DRIVER,
    "_actor() (pid=391, ip=10.0.0.2, actor_id=cc6769f6fff03455586d62ff01000000, repr=<shop.Trainer object at 0x7f854ab3f9d0>)\n"
    '  File "/app/etl.py", line 6, in load\nKeyError: 1',
    extent="record",
)  # fmt: skip
"""The first line of a failed call, without `ray::`: a paste begins within it."""
_RECREATED = Signal(
    "task.worker_recreated", "Worker exception, recreating: ",
    r"^Worker exception, recreating: (?P<what>[^\n]{1,1000})", OUTPUT,
    "Worker exception, recreating: 'vf_preds'", fold=("what",),
)  # fmt: skip
_RECREATIONS = (
    _RECREATED,
    Signal(
        _RECREATED.kind, "Worker exception caught during `apply()`: ",
        r"^Worker exception caught during `apply\(\)`: (?P<what>[^\n]{1,1000})", OUTPUT,
        "Worker exception caught during `apply()`: 'vf_preds'", fold=("what",),
    ),
)  # fmt: skip
"""RLlib's `utils/actor_manager.py`, with the traceback below it: 2.3 to 2.34, and later."""
_ATTEMPT = Signal(
    "task.attempt_raised", " failed with error TASK_EXECUTION_EXCEPTION ",
    r"^Task attempt (?P<task>[0-9a-f]{48}) failed with error TASK_EXECUTION_EXCEPTION [^\n]{0,200}?"
    r"error_message: \"(?:User exception:\\n)?(?P<what>[^\n]{0,8000})", DRIVER,
    f"Task attempt {'c8' * 24} failed with error TASK_EXECUTION_EXCEPTION Fail immediately? 0, status OK, error info error_message: "
    '"User exception:\\nray::load() (pid=12, ip=10.0.0.2)\\n  File \\"/app/etl.py\\", line 6, in load\\nKeyError: 1"', fold=("task",),
)  # fmt: skip
"""A driver's own log of Ray's C++ code, pasted: Ray will retry the task (2.9 to 2.60). A program's output lacks it."""
_NOT_SUBCLASSED = Signal(
    "task.not_subclassed", "in RayTaskError can't be subclassed!",
    r"^User exception type <class '(?P<type>[\w.<>]{1,200})'> in RayTaskError can't be subclassed!", OUTPUT,
    "User exception type <class 'shop.errors.PriceError'> in RayTaskError can't be subclassed! This exception is raised as RayTaskError only.",
    fold=("type",),
)  # fmt: skip
"""Ray's warning where it raises the exception of a task in the caller (`exceptions.py`, 2.9 to 2.60)."""
_GET_FRAME = Signal(
    "task.get_frame", "/ray/_private/worker.py", r'^ {2,4}File "[^"\n]{1,300}/ray/_private/worker\.py", line \d{1,6}, in get_objects\s*$', DRIVER,
    '  File "/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 937, in get_objects',
)  # fmt: skip
"""The frame in which `ray.get` raises: other processes may print between the lines of its traceback."""
_SHOWS = (
    "Ray prints the failed call, and the console ends within its traceback",
    "Ray prints the failed result, which the program never fetched",
)
_REPEATED = 5
"""Attempts of one task that fail alike, after which it is reported while Ray still retries it."""
_PASSING = (
    "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "TimeoutError", "HTTPError", "URLError",
    "ReadTimeout", "ConnectTimeout", "BrokenPipeError", "ClientError", "EndpointConnectionError", "SSLError",
)  # fmt: skip
"""Exceptions of networks and services, which may not occur on the next attempt."""


@rule(
    tier="root",
    severity="error",
    rank=50,
    explains=("program", "task-error"),
    caused_by=("disk",),
    looks_for=(
        *FAILURES,
        RETRIED,
        _NO_MODULE,
        _ENGINE_FAILED,
        _DASHBOARD,
        _HEADLESS,
        _ATTEMPT,
        _NOT_SUBCLASSED,
        _GET_FRAME,
        *_RECREATIONS,
        *misuse.SIGNALS,
    ),
)
def task_exception(case: Case) -> Iterator[Finding]:
    """One finding per function, exception and place."""
    groups: dict[tuple[str, str, str], _SameError] = {}
    cut: dict[str, list[Printed]] = {}
    unloaded: dict[tuple[str, str], list[Printed]] = {}
    for seen in failures(case):
        failure = seen.failure
        if said := _unloaded(seen):
            unloaded.setdefault((failure.function, said), []).append(seen)
        if failure.is_rays_own or _is_of_another_rule(failure):
            continue
        if is_about_pickling(failure.raised) or is_about_rebuilding(failure.raised):
            continue
        if failure.raised is None and (not _type(seen) or _type(seen) in LOST_WITH_CLUSTER):
            # Cut off before the exception: it may be one of Ray's own, unless Ray says that a result failed
            # or nothing follows in a paste.
            if UNHANDLED in seen.event.message or _is_end_of_paste(case, seen):
                cut.setdefault(failure.function, []).append(seen)
            continue
        kind, place = kind_and_place(seen)
        groups.setdefault((failure.function, kind, str(place or "")), _SameError()).add(seen)
    for (function, kind, _), group in groups.items():
        if group.is_failure or _is_repeated(case, group.retried):
            yield _finding(case, function, kind, group, _attempts_before(groups, function, kind))
    for (function, said), printed in unloaded.items():
        yield _not_loaded(function, said, printed)
    if groups:
        return
    recreated = [*_recreated_workers(case)]
    found = [
        *map(_of_cut, cut.values()),
        *_missing_modules(case),
        *recreated,
        *_cut_trials(case),
        *([*_aborted_pipelines(case)] or _in_pipelines(case)),
    ]
    if not cut:
        found += [*([] if recreated else _cut_methods(case)), *_shown_by_dashboard(case)]
    yield from (
        found
        or [*_beheaded(case), *_cut_calls(case)]
        or [*_of_workers(case)]
        or [*_in_workers(case)]
        or [*_of_attempts(case)]
        or [*_of_warnings(case)]
        or [*_of_processes(case, is_known=bool(unloaded))]
        or _cut_gets(case)
    )


_UNLOADED = pattern(r"System error: (?P<said>No module named '[\w.]{1,200}')\s*$")


def _of_processes(case: Case, *, is_known: bool) -> Iterator[Finding]:
    """What a paste shows of a task's failure, if the driver's own exception is cut off or missing.

    `is_known`: whether an argument that could not be loaded is reported already.
    """
    for event in () if is_known else case.of(RAY_EXCEPTION.kind):
        said = _UNLOADED.match(event["what"].partition("\n")[0])
        if said and event["type"] == "RaySystemError" and event.source.is_excerpt:
            yield Finding(
                f"A process of Ray could not load an object or argument: {said['said']}",
                (Link(event, "Ray passes on what the unpickling raised"),),
                explains=(Entity("task-error", said["said"]), *_ends(case, event)),
                remedies=(imports.install(said["said"].split("'")[1], of_driver=True),),
                covers=(
                    event,
                    *(e for e in case.of(*TRACEBACKS, "log.error") if e.source is event.source),
                ),
            )
            return
    for end in case.endings.values():
        cut_short = exception_at_end(end) if end.source.is_excerpt and not end["worker"] else None
        if cut_short is None or cut_short.type:
            continue
        shown = [
            (event, raised)
            for event in case.of(*TRACEBACKS, "log.error")
            if event.source is end.source
            and event["who"] not in ("", "raylet", "autoscaler")
            and event.line < end.line
            and (raised := parse(f"{BEGIN}\n{event.message}"))
            and not (raised.is_rays_own or raised.is_elsewhere or raised.name in NO_FAILURES)
            # A process that logs one line and continues may have caught the exception.
            and (
                raised.frames or (is_plain(case, event) and not evidence.later_output(case, event))
            )
        ]
        for event, raised in shown[-1:]:
            place = f", in {raised.place}" if raised.place else ""
            yield Finding(
                f"{event['who']} (pid {event.pid}) raised {_cut(str(raised))}{place}, and the console ends within the traceback below it",
                (
                    Link(
                        event,
                        "the last exception that the console shows",
                        raised.code,
                    ),
                ),
                explains=(
                    Entity("task-error", f"printed by {event['who']} {event.pid}"),
                    program(end),
                ),
                subjects=(Subject("task", None, event["who"], event.pid),),
                severity="warning",
                remedies=(
                    Remedy(f"Fix {raised.place}")
                    if raised.place and raised.place.is_user_code
                    else _READ_ON,
                ),
                covers=(
                    event,
                    *(
                        e
                        for e in case.of(*TRACEBACKS)
                        if e.source is end.source and e.line >= end.line
                    ),
                ),
            )


def _cut_gets(case: Case) -> Iterator[Finding]:
    """A `ray.get` that raised, of whose traceback an excerpt shows frames between the lines of other processes."""
    for event in case.of(_GET_FRAME.kind)[-1:]:
        same = [e for e in case.of(RAY_EXCEPTION.kind, *TRACEBACKS) if e.source is event.source]
        is_shown = any(e.kind == RAY_EXCEPTION.kind or parse(e.message) for e in same)
        ended = any(e["ended_by"] for s, e in case.endings.items() if s is event.source)
        below = (e for e in case.outputs.get(event.source.path, ()) if e.line > event.line + 1)
        if event.source.is_excerpt and not (is_shown or ended or any(below)):
            yield Finding(
                "A call of ray.get raised an exception that the console cut off",
                (Link(event, "ray.get raises in this frame, and the console ends"),),
                explains=(Entity("task-error", "ray.get"), Entity("program", event.source.path)),
                severity="warning",
                remedies=(_READ_ON,),
                covers=(event, *same),
            )


def _of_warnings(case: Case) -> Iterator[Finding]:
    """Exceptions of tasks of which an excerpt shows only Ray's warning about their class."""
    warned = [e for e in case.of(_NOT_SUBCLASSED.kind) if e.source.is_excerpt]
    for name, events in evidence.grouped(warned, lambda e: e["type"].rpartition(".")[2]).items():
        last = events[-1]
        ended = any(e["ended_by"] for s, e in case.endings.items() if s is last.source)
        if ended or evidence.later_output(case, last):
            continue
        yield Finding(
            f"A task or actor method raised {name}, whose message is not in this output",
            (Link(last, "Ray raises the exception of a task in its caller"),),
            explains=(Entity("task-error", f"type {name}"),),
            severity="warning",
            count=evidence.total(events),
            remedies=(
                Remedy(
                    "Read the exception's message and traceback in the output of the caller, below this line, or in the log of the worker",
                    (FIND_TRACEBACKS,),
                ),
            ),
            covers=tuple(events),
        )  # fmt: skip


def _of_attempts(case: Case) -> Iterator[Finding]:
    """Attempts that Ray retries, in a pasted log of a driver's C++ code; the log may be cut within the exception."""
    found: dict[str, list[Event]] = {}
    for event in case.of(_ATTEMPT.kind):
        if event.source.is_excerpt:
            text = (
                event["what"].replace("\\n", "\n").replace('\\"', '"').partition('" error_type')[0]
            )
            text = text.rstrip('"')
            failure = task_error.parse_failure(text)
            raised = failure.raised if failure else None
            raised = raised or parse(f"{BEGIN}\n{text}") or cut_off(f"{BEGIN}\n{text}")
            if raised and raised.is_rays_own:
                continue
            who = _called(failure.function) if failure else "A task"
            what = (
                _cut(str(raised)) if raised and raised.type else "an exception that the log cut off"
            )
            place = f", in {raised.place}" if raised and raised.place else ""
            found.setdefault(f"{who} raised {what}{place}", []).append(event)
    for headline, events in found.items():
        yield Finding(
            f"{headline}, and Ray runs the task again",
            (Link(events[-1], "the driver's own log reports the failed attempt"),),
            explains=(Entity("task-error", headline),),
            severity="warning",
            count=evidence.total(events),
            remedies=(
                Remedy(
                    "Read the whole exception in the log of the worker that ran the task",
                    (FIND_TRACEBACKS,),
                ),
            ),
            covers=tuple(events),
        )  # fmt: skip


def _is_repeated(case: Case, retried: Iterable[Printed]) -> bool:
    """Whether Ray runs a task again and again, and each attempt fails alike: it may never end."""
    open_ = {
        e["task_id"] for e in live.rows(case, "tasks") if e["state"] not in ("FINISHED", "FAILED")
    }
    attempts = Counter(task_of(seen.event) for seen in retried if seen.event.kind == "live.tasks")
    return any(number >= _REPEATED and task in open_ for task, number in attempts.items())


def _type(seen: Printed) -> str:
    """The class of an exception whose text is cut off, as `RayTaskError(X)` names it."""
    return seen.event["inner"] or seen.failure.type


_SYSTEM_ERROR = pattern(r"System error: (?P<said>\S.{0,400})")
_LOADING = ("\ntraceback: Traceback", "input arguments for this task could not be computed")
"""Ray's words where an object could not be unpickled (`_private/serialization.py`, 1.0 to 2.60)."""
_NAMES_MODULE = pattern(r"No module named '(?P<module>[\w.]{1,200})'$")


def _unloaded(seen: Printed) -> str:
    """What the loading of an argument raised; empty if the failure is another one."""
    raised = seen.failure.raised
    match = (
        _SYSTEM_ERROR.match(raised.message) if raised and raised.name == "RaySystemError" else None
    )
    if match is None or is_about_rebuilding(raised):
        return ""
    text = seen.event.message[seen.event.message.find(match[0]) :]
    is_loading = _LOADING[0] in text or _LOADING[1] in seen.event.message
    return match["said"].rstrip() if is_loading and not seen.is_retried else ""


def _not_loaded(function: str, said: str, found: list[Printed]) -> Finding:
    """An argument whose unpickling raised in the worker that was to run the task."""
    first = found[0]
    text = first.event.message.partition("\ntraceback: ")[2]
    raised = parse(text) if text else None
    module = _NAMES_MODULE.search(said)
    place = f", in {raised.place}" if raised and raised.place and not module else ""
    return Finding(
        f"{function} could not load an argument in its worker: {_cut(str(raised) if raised else said)}{place}",
        (Link(first.event, "Ray passes on what the unpickling of the argument raised"),),
        explains=tuple(dict.fromkeys(error_entity(seen) for seen in found)),
        subjects=(Subject("task", None, function, first.failure.pid),),
        count=_total(found),
        remedies=(
            imports.install(module["module"], of_driver=True)
            if module
            else Remedy(
                "Pass data that a worker can load: plain values or arrays instead of objects bound to a device, a file or a process"
            ),
        ),
        covers=tuple(event for seen in found for event in (*seen.records, *seen.inside)),
    )


def _is_end_of_paste(case: Case, seen: Printed) -> bool:
    """Whether an excerpt ends within this text, which then names the exception or shows frames."""
    event = seen.event
    if _type(seen):
        return event.source.is_excerpt and not evidence.later_output(case, event)
    if seen.failure.cause:
        return event.source.is_excerpt and not evidence.later_output(case, event, is_line=True)
    end = case.endings.get(event.source)
    last = event.line + event.text.count("\n")
    is_last = end is not None and end.line <= last <= end.line + end.text.count("\n")
    is_result = event.kind == RAY_EXCEPTION.kind and "\n  File " not in event.message
    return event.source.is_excerpt and is_last and (is_result or _is_own_code(event.message))


def _is_own_code(text: str) -> bool:
    """Whether the frames of a cut-off traceback show no wait for Ray, whose exceptions have other rules."""
    raised = cut_off(text[text.find("ray::") :])
    return raised is not None and not raised.is_waiting


def _of_cut(found: list[Printed]) -> Finding:
    """A failed result of which a console shows only the beginning of the traceback."""
    first = found[0]
    text = first.event.message.partition("ray::")[2]
    raised = cut_off(f"ray::{text}")
    place = raised.place if raised else None
    function = first.failure.function
    kind = _type(first)
    what = f"failed with {kind}, whose text" if kind else "raised an exception that"
    before = first.failure.cause
    after = f", after {_cut(str(before[1]))}" if before else ""
    return Finding(
        f"{_called(function)} {what} the console cut off{f', in {place}' if place else ''}{after}",
        (Link(first.event, _SHOWS[UNHANDLED in first.event.message]),),
        explains=(error_entity(first),),
        subjects=(Subject("task", None, function, first.failure.pid),),
        count=_total(found),
        # Where `RayTaskError(X)` names the class, the call has failed for certain.
        severity=None if kind and first.event.kind == RAY_EXCEPTION.kind else "warning",
        remedies=(
            Remedy(
                "Read the end of this traceback in the program's output: it names the "
                + ("process that died and why" if kind else "exception")
            ),
        ),
        covers=tuple(seen.event for seen in found),
    )


def _missing_modules(case: Case) -> Iterator[Finding]:
    """Modules that vLLM's engine could not import before it failed: Ray imports some only where they are used."""
    failed = {e.source for e in case.of(_ENGINE_FAILED.kind) if e.level == "E"}
    logged = [e for e in case.of(_NO_MODULE.kind) if e.source in failed]
    for module, events in evidence.grouped(logged, lambda e: e["module"]).items():
        first = events[0]
        yield Finding(
            f"The engine could not import {module}: the package is not installed where its workers run",
            (Link(first, f"an engine logs that it cannot import {module}"),),
            explains=(Entity("task-error", f"module {module}"),),
            count=evidence.total(events),
            remedies=(imports.install(module),),
            covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
        )


def _recreated_workers(case: Case) -> Iterator[Finding]:
    """Exceptions that RLlib logs in its workers: it replaces the worker, and the driver gets none of them."""
    logged = [e for e in case.of(_RECREATED.kind) if e.level == "E"]
    for what, events in evidence.grouped(logged, lambda e: e["what"]).items():
        first = events[0]
        below = next((e for e in case.of(*TRACEBACKS) if _is_below(e, first)), None)
        raised = (parse(below.message) or cut_off(below.message)) if below else None
        named = str(raised) if raised and raised.type else f"an exception ({_cut(what)})"
        place = f", in {raised.place}" if raised and raised.place else ""
        who = first["who"] or "A worker of RLlib"
        yield Finding(
            f"{who} raised {_cut(named)}{place}, and RLlib takes the worker out of service",
            (Link(first, "RLlib logs the exception of its worker", raised.code if raised else ""),),
            explains=(Entity("task-error", f"rllib {what}"),),
            subjects=(Subject("task", None, who, first.pid),),
            count=evidence.total(events),
            remedies=(
                Remedy(
                    "Fix the environment, module or callback that this traceback names: RLlib's own frames only call it"
                ),
            ),
            covers=(*events, *((below,) if below else ())),
        )


def _cut_trials(case: Case) -> Iterator[Finding]:
    """Trials of Tune that failed, if the console ends within the traceback of the first."""
    for event in case.of(train.TRIAL.kind):
        below = [e for e in case.of("log.traceback") if _is_below(e, event)]
        if event.level != "E" or not event.source.is_excerpt or not below:
            continue
        last = below[0].line + below[0].text.count("\n")
        end = case.endings.get(event.source)
        if parse(below[0].message) or evidence.later_output(case, below[0]):
            continue
        if end is None or below[0].line <= end.line <= last:
            yield Finding(
                f"The trial {event['trial']} of Ray Tune failed with an exception that the console cut off",
                (Link(event, "Tune logs that the trial failed"),),
                explains=(Entity("task-error", f"trial {event['trial']}"),),
                severity="warning",
                remedies=(
                    Remedy(
                        "Read the whole exception in the folder of the trial",
                        ("cat ~/ray_results/*/*/error.txt   # or below storage_path",),
                    ),
                ),
                covers=(event, *below),
            )


def _cut_methods(case: Case) -> Iterator[Finding]:
    """Methods of vLLM's workers that raised, if the console ends before it names the exception."""
    logged = [e for e in case.of(METHOD_FAILED.kind) if e.source.is_excerpt and e.level == "E"]
    shown = {e.source for e in case.of(RAY_EXCEPTION.kind)}
    shown |= {e.source for e in case.of(*TRACEBACKS) if parse(e.message)}
    hidden = [e for e in logged if e.source not in shown]
    for method, events in evidence.grouped(hidden, lambda e: e["method"]).items():
        first = events[0]
        if evidence.later_output(case, events[-1]):
            continue
        below = [e for e in case.of(*TRACEBACKS) if _is_below(e, first)]
        raised = cut_off(below[0].message) if below else None
        place = f", in {raised.place}" if raised and raised.place else ""
        name = f"{first['who']}.{method}" if first["who"] else method
        yield Finding(
            f"Method {called(name)} raised an exception that the console cut off{place}",
            (Link(first, "vLLM logs that the method of its worker failed"),),
            explains=(Entity("task-error", f"method {method}"), *_ends(case, first)),
            subjects=(Subject("task", None, name, first.pid),),
            count=evidence.total(events),
            severity="warning",
            remedies=(
                Remedy(
                    "Read the end of this traceback in the output of the worker: it names the exception"
                ),
            ),
            covers=(*events, *below),
        )


def _in_workers(case: Case) -> Iterator[Finding]:
    """Tracebacks with which an excerpt ends, and whose frames show that a worker executed an actor's method."""
    # Where Ray knows no name of a worker's task, it prints the worker's output as the raylet's.
    ended = {source for source, each in case.endings.items() if each["ended_by"]}
    of_raylet = (
        (each, raised)
        for each in case.of(*TRACEBACKS)
        if each["who"] == "raylet" and each.source not in ended
        and not evidence.later_output(case, each, is_line=True)
        and (raised := parse(each.message) or cut_off(each.message))
    )  # fmt: skip
    for end, raised in (*ended_programs(case), *of_raylet):
        method = raised.executed
        if (
            not end.source.is_excerpt
            or not (method or raised.is_of_method)
            or method == "__init__"
            or raised.is_rays_own
            or (not raised.type and raised.is_waiting)
        ):
            continue
        ran = (
            "The training function of a trial of Ray Tune"
            if _is_of_trial(raised)
            else f"Method {called(method)} of an actor"
            if method
            else "A method of an actor"
        )
        yield Finding(
            f"{ran} raised {_what(raised)}",
            (Link(end, "the frames are those of a worker that executes a method", raised.code),),
            explains=(Entity("task-error", f"method {method}"), program(end)),
            subjects=(Subject("task", None, method or None),),
            severity=None if raised.type else "warning",
            remedies=(
                Remedy(f"Trace why {raised.place} raises {raised.name}")
                if raised.type
                else _READ_ON,
            ),
            covers=tuple(
                e for e in case.of(*TRACEBACKS) if e.source is end.source and e.line >= end.line
            ),
        )


_OF_TRIALS = ("ray/tune/function_runner.py", "ray/tune/trainable/function_trainable.py")


def _is_of_trial(raised: Raised) -> bool:
    return any(f.file.replace("\\", "/").endswith(_OF_TRIALS) for f in raised.frames)


_RAISES_RESULT = "raise value.as_"
"""`ray.get` raises the error of a task or method as an instance of its cause (`_private/worker.py`, 0.8 to 2.60)."""


def _cut_calls(case: Case) -> Iterator[Finding]:
    """Results of failed tasks that `ray.get` raises, if the console ends before or within the exception's name."""
    for end in case.endings.values():
        raised = exception_at_end(end) if end.source.is_excerpt else None
        if raised is None or not raised.frames or raised.message:
            continue
        is_cut = RAY_TASK_ERROR.startswith(raised.type)
        if (
            is_cut
            and raised.frames[-1].is_rays
            and raised.frames[-1].code.startswith(_RAISES_RESULT)
        ):
            own = [f for f in raised.frames if not f.is_rays][-1:]
            to = "".join(f" to {f.place if f.function.startswith('<') else f}" for f in own)
            yield Finding(
                f"A task or actor method raised an exception that the console cut off, and ray.get passed it on{to}",
                (
                    Link(
                        end,
                        "ray.get raises what the code of the task or method raised",
                        raised.code,
                    ),
                ),
                explains=(Entity("task-error", "ray.get"), program(end)),
                severity="warning",
                remedies=(_READ_ON,),
                covers=tuple(
                    e
                    for e in case.of(*TRACEBACKS, RAY_EXCEPTION.kind)
                    if e.source is end.source and e.line >= end.line
                ),
            )


def _beheaded(case: Case) -> Iterator[Finding]:
    """A failed task or method whose first line lost its beginning, `ray::` and a part of the name."""
    for event in case.of(_HEADLESS.kind):
        end = event.line + event.text.count("\n") + _NEAR
        below = [
            e.message
            for e in case.of(*TRACEBACKS)
            if e.source is event.source and event.line < e.line <= end
        ]
        text = "\n".join((BEGIN, event.message.partition("\n")[2], *below[:1]))
        raised = parse(text) or cut_off(text)
        if not event.source.is_excerpt or event.line > 1 or raised is None or raised.is_rays_own:
            continue
        name = event["actor"].rpartition(".")[2]
        yield Finding(
            f"A {f'method of actor {name}' if name else 'task or actor method'} raised {_what(raised)}",
            (
                Link(
                    event,
                    "Ray prints the failed call, whose name the text does not contain",
                    raised.code,
                ),
            ),
            explains=(Entity("task-error", "beheaded"), *_ends(case, event)),
            subjects=(Subject("task", None, name or None, int(event["task_pid"])),),
            severity=None if raised.type else "warning",
            remedies=(
                Remedy(f"Trace why {raised.place} raises {raised.name}")
                if raised.type
                else _READ_ON,
            ),
            covers=(event, *(e for e in case.of(*TRACEBACKS) if e.source is event.source)),
        )


_READ_ON = Remedy("Read the end of this traceback in the whole output: it names the exception")


def _ends(case: Case, event: Event) -> Iterator[Entity]:
    """The program whose output ends within the traceback."""
    end = case.endings.get(event.source)
    if end is not None and end["ended_by"]:
        yield program(end)


def _shown_by_dashboard(case: Case) -> Iterator[Finding]:
    """A failed task, copied from the dashboard."""
    for event in case.of(_DASHBOARD.kind)[:1]:
        raised = parse(f"{BEGIN}\n{event['what']}") if event.source.is_excerpt else None
        if not event.source.is_excerpt or (raised and raised.is_rays_own):
            continue
        cut_short = cut_off(f"{BEGIN}\n{event['what']}")
        shown = raised or cut_short
        place = shown.place if shown else None
        what = _cut(str(raised)) if raised else "an exception that the text does not show"
        yield Finding(
            f"A task raised {what}{f', in {place}' if place else ''}",
            (Link(event, "the dashboard shows that the task's own code raised an exception"),),
            explains=(Entity("task-error", "dashboard"), *_ends(case, event)),
            severity=None if raised else "warning",
            remedies=(
                Remedy(
                    "Read the whole exception",
                    ("ray list tasks --detail   # error_message has the exception",),
                ),
            ),
            covers=(event, *(e for e in case.of(*TRACEBACKS) if e.source is event.source)),
        )


_NEAR = 3
"""Lines from a logged message down to its traceback."""


def _is_below(traceback: Event, message: Event) -> bool:
    near = 0 < traceback.line - message.line <= _NEAR
    return near and traceback.source is message.source and traceback.pid == message.pid


def _of_workers(case: Case) -> Iterator[Finding]:
    """Exceptions that a task or an actor printed itself, and with which a console ends."""
    for ending, raised in ended_workers(case):
        who, pid = ending["worker"], int(ending["worker_pid"])
        if deployment_of(who) or raised.name in NO_FAILURES:
            continue
        yield Finding(
            f"{who} (pid {pid}) raised {_what(raised)}",
            (Link(ending, "the task or actor prints the exception, and the console ends", raised.code),),
            explains=(Entity("task-error", f"printed by {who} {pid}"), program(ending)),
            subjects=(Subject("task", None, who, pid),),
            severity="warning",
            remedies=(
                _READ_ON
                if not raised.type
                else Remedy(f"Fix {raised.place}")
                if raised.place and raised.place.is_user_code
                else Remedy(
                    f"Read the rest of the output of {who}, which shows where it failed",
                    (paste.shell("grep -l 'Traceback' /tmp/ray/session_latest/logs/worker-*-{pid:pid}.err   # on its node", pid=pid),),
                )
                ,
            ),
            covers=tuple(e for e in case.of(*TRACEBACKS, "log.error") if e.source is ending.source and e.line >= ending.line),
        )  # fmt: skip


_OF_PIPELINES = "UserCodeException"
"""Ray Data raises it from the exception of the user's function."""


def _in_pipelines(case: Case) -> Iterator[Finding]:
    """Ray Data's message that a user's function raised, if the console cuts the exception off."""
    logged = [e for e in case.of(data.USER_ERROR.kind) if e.source.is_excerpt and e.level == "E"]
    raised = [e for e in case.of(RAY_EXCEPTION.kind) if e.source.is_excerpt]
    if not logged and [e["type"] for e in raised] == [_OF_PIPELINES]:
        logged, raised = raised, []
    if logged and not any(e.source is logged[0].source for e in raised):
        yield Finding(
            "A function that the program passed to Ray Data raised an exception that the console cut off",
            (Link(logged[0], "Ray Data logs that the exception is one of the program's own code"),),
            explains=(Entity("task-error", "pipeline"),),
            count=evidence.total(logged),
            remedies=(
                Remedy(
                    "Read the exception in the log of the data set, which also has the whole stack trace",
                    (
                        "grep -A60 UserCodeException /tmp/ray/session_latest/logs/ray-data/ray-data.log   # on the machine of the driver",
                    ),
                ),
            ),
            covers=(*logged, *(e for e in case.of(*TRACEBACKS) if e.source is logged[0].source)),
        )


def _aborted_pipelines(case: Case) -> Iterator[Finding]:
    """Operators of Ray Data whose task raised an exception that a console cuts off."""
    aborted = [
        e
        for e in case.of(data.BLOCK_FAILED.kind)
        if e.source.is_excerpt and e.level == "E" and "will now abort" in e.message
    ]
    if aborted and any(e.source is aborted[0].source for e in case.of("driver.exception")):
        return
    for operator, events in evidence.grouped(aborted, lambda e: e["operator"]).items():
        yield Finding(
            f"A task of the Ray Data operator {operator} raised an exception that the console cut off",
            (Link(events[0], "Ray Data aborts the pipeline because a task raised an exception"),),
            explains=(Entity("task-error", f"operator {operator}"),),
            count=evidence.total(events),
            remedies=(
                Remedy(
                    "Read the end of this traceback in the program's output: it names the exception"
                ),
            ),
            covers=tuple(events),
        )


_OF_OTHERS = ("FUNCTION_SIZE_ERROR_THRESHOLD", " whose owner is unknown")
"""Parts of Ray's own ValueErrors, which `large-closure` and `object-owner-unknown` report."""


def _is_of_another_rule(failure: TaskFailure) -> bool:
    raised = failure.raised
    return raised is not None and any(words in raised.message for words in _OF_OTHERS)


@dataclass(slots=True)
class _SameError:
    """Equal failures."""

    raised: list[Printed] = field(default_factory=list)
    """`ray.get` raised them in the driver, from the task that failed."""
    unhandled: list[Printed] = field(default_factory=list)
    text: list[Printed] = field(default_factory=list)
    """Printed by the program, possibly the same failure several times."""
    passed_on: list[Printed] = field(default_factory=list)
    """The driver got them from a task that depended on the failed task."""
    retried: list[Printed] = field(default_factory=list)
    recorded: list[Printed] = field(default_factory=list)
    """Recorded by Ray: in export events, or in the table of tasks of a live cluster."""

    def add(self, seen: Printed) -> None:
        """Add a failure to the list of its kind."""
        if seen.is_retried:
            self.retried.append(seen)
        elif is_recorded(seen.event):
            self.recorded.append(seen)
        elif seen.failure.path:
            self.passed_on.append(seen)
        elif not seen.failure.is_remote:
            # Ray Train V1 prints one failure twice: for the trial and for the run.
            again = any(s.failure.pid == seen.failure.pid for s in self.raised)
            (self.text if again else self.raised).append(seen)
        elif seen.event.kind in ("driver.exception", "data.stack"):
            self.raised.append(seen)
        else:
            (self.unhandled if UNHANDLED in seen.event.message else self.text).append(seen)

    @property
    def all(self) -> list[Printed]:
        """Every record, the most informative first."""
        return [
            *self.raised, *self.unhandled, *self.text, *self.passed_on, *self.recorded, *self.retried
        ]  # fmt: skip

    @property
    def is_failure(self) -> bool:
        """Whether there are records other than retries, which the program asked for (`retry_exceptions`)."""
        return len(self.all) > len(self.retried)

    @property
    def count(self) -> int:
        """Failures of the task itself, as far as they can be counted."""
        reported = _total(self.raised) + _total(self.unhandled)
        tasks = {task_of(s.event) for s in self.recorded if not s.failure.path}
        return max(reported, len(tasks)) or _total(self.text) or _total(self.passed_on)

    @property
    def dependants(self) -> list[str]:
        """Tasks that failed because this one did."""
        return list(
            dict.fromkeys(
                name for s in (*self.passed_on, *self.recorded) for name in s.failure.path
            )
        )


def _total(seen: Iterable[Printed]) -> int:
    """The driver's output and a job's own log may be copies of each other: the larger count is correct."""
    by_role: dict[str, int] = {}
    for one in seen:
        role = one.event.source.role
        by_role[role] = by_role.get(role, 0) + one.event.count
    return max(by_role.values(), default=0)


# ---------------------------------------------------------------- finding


def _attempts_before(
    groups: dict[tuple[str, str, str], _SameError], function: str, kind: str
) -> list[Printed]:
    """Attempts of this function that raised another exception, after which Ray ran it again."""
    others = (
        group for (name, other, _), group in groups.items() if name == function and other != kind
    )
    return [seen for group in others if not group.is_failure for seen in group.retried]


def _finding(
    case: Case, function: str, kind: str, group: _SameError, before: list[Printed]
) -> Finding:
    """`before`: attempts that raised another exception."""
    best = group.all[0]
    misused = misuse.in_worker(case, best.failure.raised)
    lost = _lost_state(case, kind, best.failure)
    general = _remedies(
        function,
        kind,
        best.failure,
        is_known=bool(misused),
        is_retried=bool(before or group.retried),
    )
    advice = (
        *((_restore(function, lost),) if lost else ()),
        *((_repeatable(function, before[0]),) if before and _finds_remains(best) else ()),
        *((misused,) if misused else ()),
        *_left_behind(case, function, best.failure),
        *filter(None, (misuse.of_module(best.failure.raised),)),
        *((install,) if (install := imports.remedy(case, best.failure.raised)) else general),
    )
    return Finding(
        _headline(function, kind, group, before),
        (
            *_links(function, kind, group),
            *(
                (
                    Link(
                        lost.events[0],
                        f"before, {lost.noun} had ended, and Ray restarted the actor",
                    ),
                )
                if lost
                else ()
            ),
            *(
                Link(seen.event, f"an attempt before raised {seen.failure.raised}")
                for seen in before[:1]
            ),
        ),
        explains=(error_entity(best), *(error_entity(seen) for seen in before)),
        caused_by=(FULL,) if NO_SPACE in str(best.failure.raised) else (),
        subjects=(Subject("task", None, function, best.failure.pid),),
        count=group.count,
        severity="warning" if best in group.recorded else None,
        remedies=(*advice, *_rebuild(kind, group)),
        covers=(*_records(group), *(event for seen in before for event in seen.records)),
    )


def _headline(function: str, kind: str, group: _SameError, before: list[Printed]) -> str:
    best = group.all[0].failure
    raised = str(best.raised) if best.raised else kind
    text = f"{_subject(function, group)} raised {_cut(raised)}{_where(function, best)}{_from(function, best)}"
    if group.dependants:
        never = all(seen.failure.by_input for seen in group.passed_on)
        failed = "never ran" if never else "failed as well"
        text += f", so {evidence.join_names(map(called, group.dependants))} {failed}"
    if group.unhandled and not group.raised:
        text += ", and the program never fetched the result with ray.get"
    if before:
        text += f" when Ray retried it after {_cut(str(before[0].failure.raised or 'another exception'))}"
    elif group.retried:
        in_vain = "" if group.is_failure else ", without success so far"
        text += f", and Ray retried it {_times(len(group.retried))}{in_vain}"
    return text


def _subject(function: str, group: _SameError) -> str:
    """`Task load`, `Actor method Trainer.step`, `3 calls to load`."""
    if group.count > 1:
        return f"{group.count} calls of {called(function)}"
    if not group.all[0].failure.is_remote:
        return "The training function" if " " in function else f"The function {called(function)}"
    return _called(function)


_UNNAMED = f"task{ELLIPSIS}"
"""The name of a task whose text ends above its name."""


def _called(function: str) -> str:
    shown = function.removesuffix(ELLIPSIS)
    if function == _UNNAMED:
        return "A task or actor method"
    if function.endswith(ELLIPSIS) and "." not in shown:
        return f"A task or actor method ({function})"
    is_method = shown.replace(".", "").isidentifier() and "." in shown
    return f"{'Actor method' if is_method else 'Task'} {called(function)}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _cut(text: str) -> str:
    return cut(text, _LONGEST)


def _what(raised: Raised) -> str:
    """The exception and its place; of one that is cut off, also the exception that it followed."""
    first = raised.first
    is_chained = not raised.type and first is not raised and not first.is_rays_own
    what = _cut(str(raised)) if raised.type else "an exception that the console cut off"
    is_told = raised.place and (raised.type or not raised.place.is_rays)
    place = f", in {raised.place}" if is_told else ""
    return f"{what}{place}{f', after {_cut(str(first))}' if is_chained else ''}"


def _where(function: str, failure: TaskFailure) -> str:
    place = failure.raised.place if failure.raised else None
    if place is None:
        return ""
    own = place.function == function.rpartition(".")[2]
    return f" ({place.short_file}:{place.line})" if own else f", in {place}"


def _from(function: str, failure: TaskFailure) -> str:
    if not failure.cause:
        return ""
    source, cause = failure.cause
    return f", after {_cut(str(cause))}" + (f" in {source}" if source != function else "")


def _links(function: str, kind: str, group: _SameError) -> Iterator[Link]:
    own = [*group.raised, *group.unhandled, *group.text, *group.recorded, *group.retried]
    for seen in own[:1]:
        yield Link(
            seen.event,
            f"{called(function)} raised {kind}{_where(function, seen.failure)}: {_how(seen)}",
            _code(seen.failure),
        )
    if own and own[-1].event is not own[0].event:
        yield Link(
            own[-1].event, f"the last of {len(own)} records of this failure ({_how(own[-1])})"
        )
    for seen in group.passed_on[:2]:
        path = " and ".join(map(called, seen.failure.path))
        why = (
            "never ran because an input failed"
            if seen.failure.by_input
            else "failed because ray.get raised the error"
        )
        yield Link(
            seen.event,
            f"{path} {why} in {called(function)}: {kind}{_where(function, seen.failure)}",
            "" if own else _code(seen.failure),
        )


def _code(failure: TaskFailure) -> str:
    return failure.raised.code if failure.raised else ""


_LIBRARIES = {"data.stack": "Ray Data", **dict.fromkeys(TRACEBACKS, "vLLM")}
"""Libraries that log a failure themselves, by the event's kind."""


def _how(seen: Printed) -> str:
    if library := _LIBRARIES.get(seen.event.kind):
        return f"{library} logs it"
    if not seen.failure.is_remote:
        return "Ray Train reports it"
    if seen.event.kind == "driver.exception":
        return "it reached the driver through ray.get"
    if seen.event.kind == "task.retried":
        return "Ray retried the task"
    if is_recorded(seen.event):
        source = "an export event" if seen.event["task"] else "the GCS"
        return f"{source} records it"
    return (
        "the result was never fetched"
        if UNHANDLED in seen.event.message
        else "the driver printed it"
    )


def _records(group: _SameError) -> Iterator[Event]:
    for seen in group.all:
        yield seen.event
        yield from seen.inside


# ---------------------------------------------------------------- remedies


def _remedies(
    function: str, kind: str, failure: TaskFailure, *, is_known: bool, is_retried: bool
) -> Iterator[Remedy]:
    """`is_known`: a property of Ray leads to the exception, and its remedy comes first."""
    place = failure.raised.place if failure.raised else None
    is_task = failure.is_remote and "." not in function
    if kind in _PASSING and is_task and not is_retried:
        yield Remedy(
            f"Make Ray retry {called(function)} when it raises {kind}, if a second run does no harm: by default Ray retries "
            "only lost workers",
            (
                paste.python(
                    "@ray.remote(max_retries=3, retry_exceptions=[{kind:name}])   # {function}",
                    kind=kind,
                    function=function,
                ),
            ),
            doc=_DOC,
        )
    if failure.raised and OUT_OF_FILES in failure.raised.message:
        yield MORE_FILES
    if is_known:
        return
    alone = paste.python(
        "{function:name}._function(ARGUMENTS)   # in a plain Python session, without a worker. If it succeeds there, the workers' environment differs, or an earlier task left something behind",
        function=function,
    )
    trace = (
        f"Check what {called(function)} passes to {place}, which raises {kind}"
        if place and not place.is_user_code
        else f"Trace why {place or called(function)} raises {kind}"
    )
    yield Remedy(
        f"{trace}: the error surfaced there, but its cause may be earlier",
        (alone,) if is_task and function.isidentifier() else (),
        doc=_DOC,
    )
    yield Remedy(
        "Attach the debugger at the exception",
        (
            'ray.init(runtime_env={"env_vars": {"RAY_DEBUG_POST_MORTEM": "1"}})   # tasks stop at the exception',
            "raydoctor attach   # lists the tasks that wait for a debugger",
        ),
        doc=_DEBUGGER_DOC,
        since=(2, 39),
    )


def _finds_remains(seen: Printed) -> bool:
    """Whether the exception is about something that already exists."""
    return bool(_EXISTS.search(str(seen.failure.raised)))


def _repeatable(function: str, before: Printed) -> Remedy:
    """For a retry that finds what the attempt before it left behind."""
    kind, _ = kind_and_place(before)
    return Remedy(
        f"Make {called(function)} safe to run twice: Ray ran it again after {kind}, and it found what the first attempt left",
        (
            "os.makedirs(FOLDER, exist_ok=True)   # write to a temporary name, and rename it as the last step",
            paste.python(
                "{function:name}.options(max_retries=0, retry_exceptions=False).remote(ARGUMENTS)   # or run it only once",
                function=function,
            ),
        ),
        doc=_DOC,
    )


_OF_STATE = ("KeyError", "AttributeError", "IndexError", "AssertionError", "TypeError")
"""Exceptions of a method that misses what an earlier call stored in the actor."""


def _lost_state(case: Case, kind: str, failure: TaskFailure) -> WorkerExit | None:
    """The end of an actor's earlier process, if the method ran after a restart and read the actor's attributes."""
    raised = failure.raised
    if raised is None or kind not in _OF_STATE or not any("self." in f.code for f in raised.frames):
        return None
    workers = {worker for worker, pid in case.ledger.pids.items() if pid == failure.pid}
    for actor in case.ledger.actors.values():
        restarted = [w for w in actor.workers[1:] if w in workers]
        if restarted and len(workers) == 1:
            return case.exit_of(actor.workers[actor.workers.index(restarted[0]) - 1])
    return None


def _restore(function: str, lost: WorkerExit) -> Remedy:
    return Remedy(
        f"Restore in {function.rpartition('.')[0]}.__init__() what earlier calls stored: Ray restarted the actor after {lost.noun} had ended, "
        "and a restart runs only __init__()",
        ("@ray.remote(max_restarts=0)   # or: later calls raise ActorDiedError instead",),
        doc=_ACTORS_DOC,
    )


def _left_behind(case: Case, function: str, failure: TaskFailure) -> Iterator[Remedy]:
    """For a signal handler that an earlier task of the worker installed: no frame above calls it.

    A comprehension, a lambda and an operator's method are called without their names.
    """
    frames = [f for f in failure.raised.frames if f.is_user_code] if failure.raised else []
    if len(frames) < 2 or frames[-1].function in frames[-2].code or not frames[-2].code:
        return
    if frames[-1].function.startswith(("<", "__")):
        return
    if failure.raised and failure.raised.frames[-1] is not frames[-1]:
        return
    workers = [w for w, pid in case.ledger.pids.items() if pid == failure.pid and w in case.names]
    names = case.names[workers[0]] if len(workers) == 1 else ()
    earlier = [name for name in names if name != function]
    if earlier:
        yield Remedy(
            f"Disarm what {evidence.join_names(map(called, earlier))} left in the worker, if {called(frames[-1].function)} is a signal "
            "handler: no line of the program calls it, and Ray reuses workers",
            (
                "signal.alarm(0)   # in a finally: of the task that set the alarm",
                "@ray.remote(max_calls=1)   # or: each call of that task gets a worker of its own",
            ),
            doc=_DOC,
        )


def _rebuild(kind: str, group: _SameError) -> Iterator[Remedy]:
    """Since 2.50 Ray reports when the driver cannot unpickle an exception, and prints the original."""
    if any("UnserializableException" in (s.event["type"], s.event["inner"]) for s in group.raised):
        yield Remedy(
            f"Make {kind} picklable, and its module importable for the caller, so that the caller gets the exception itself",
            (
                paste.python(
                    "class {kind:name}(Exception):\n    def __reduce__(self):\n        return ({kind:name}, (...))   # all arguments of __init__",
                    kind=kind,
                ),
            ),
            doc=_EXCEPTIONS_DOC,
        )


# ------------------------------------------------------------------ examples


_TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 68, in main\n    ray.get(shard)\n'
)
_FRAMES = (
    '  File "/app/shards.py", line 49, in load_shard\n    return column_mean(header)\n'
    '  File "/app/shards.py", line 40, in column_mean\n    return header[column]\n'
    "KeyError: 'price'\n"
)
_RAISED = f"{_TRACEBACK}ray.exceptions.RayTaskError(KeyError): ray::load_shard() (pid=389, ip=10.0.0.2)\n{_FRAMES}"
_OF_PYTHON_C = (
    f"{_TRACEBACK}ray.exceptions.RayTaskError(ZeroDivisionError): ray::parse() (pid=389, ip=10.0.0.2)\n"
    '  File "<string>", line 7, in parse\n  File "<string>", line 8, in <listcomp>\n'
    "ZeroDivisionError: division by zero\n"
)
_BY_INPUT = (
    f"{_TRACEBACK}ray.exceptions.RayTaskError(KeyError): ray::report() (pid=390, ip=10.0.0.2)\n"
    "  At least one of the input arguments for this task could not be computed:\n"
    f"ray.exceptions.RayTaskError: ray::load_shard() (pid=390, ip=10.0.0.2)\n{_FRAMES}"
)
_CHAIN = (
    f"{_TRACEBACK}ray.exceptions.RayTaskError(CorruptShardError): ray::load_shard() (pid=390, ip=10.0.0.2)\n"
    '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n'
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n\n"
    "The above exception was the direct cause of the following exception:\n\n"
    "ray::load_shard() (pid=390, ip=10.0.0.2)\n"
    '  File "/app/shards.py", line 35, in read_header\n    raise CorruptShardError(raw) from error\n'
    "CorruptShardError: shard header is not JSON\n"
)
_RETRY = (
    "(raylet) Task download failed. There are 5 retries remaining, so the task will be retried. Error: User exception:\n"
    "ray::download() (pid=384, ip=127.0.0.1)\n"
    '  File "/app/fetch.py", line 29, in download\nConnectionError: 503 service unavailable\nstatus 200\n'
)

_ACTOR, _NODE, _OLD, _NEW = "c1" * 12 + "01000000", "ab" * 28, "5d" * 28, "6e" * 28
_STATE = (
    f"{_TRACEBACK}ray.exceptions.RayTaskError(KeyError): ray::Basket.add() (pid=412, ip=10.0.0.2, actor_id={_ACTOR}, "
    "repr=<shop.Basket object at 0x7f>)\n"
    "  File \"/app/shop.py\", line 31, in add\n    self.items[name] += 1\n    ~~~~~~~~~~^^^^^^\nKeyError: 'tea'\n"
)


def _restarts(*workers: tuple[str, int]) -> dict[str, str]:
    """Logs of an actor that ran in these workers, one after the other."""
    gcs = raylet = ""
    for n, (worker, pid) in enumerate(workers):
        at = f"2026-11-21 07:34:{10 + n}"
        raylet += f"[{at},100 I 9 9] (raylet) worker_pool.cc:812: Started worker process with pid {pid} worker_id={worker}\n"
        if n:
            gcs += (
                f"[{at},100 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
                f"{workers[n - 1][0]}, node id = {_NODE}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = "
                "Worker unexpectedly exits with a connection error code 2. End of file.\n"
            )
        gcs += (
            f"[{at},200 I 8 8] (gcs_server) gcs_actor_scheduler.cc:424: Submitting actor creation task to worker. "
            f"actor_id={_ACTOR} worker_id={worker} node_id={_NODE} job_id=01000000\n"
        )
    return {"logs/gcs_server.out": gcs, "logs/raylet.out": raylet}


def _retried(attempts: int) -> list[live_examples.Row]:
    """A task whose attempts fail, and the one that runs now."""
    failed = _failed("load_shard", f"ray::load_shard() (pid=7, ip=10.0.0.2)\n{_FRAMES}")
    rows = [{**failed, "attempt_number": number} for number in range(attempts)]
    now = live_examples.running(1, "load_shard", {}, attempt_number=attempts)
    return [now, *rows]


def _failed(name: str, text: str) -> live_examples.Row:
    """A failed task in a live table."""
    return live_examples.running(
        1, name, {},
        state="FAILED",
        attempt_number=0,
        error_type="TASK_EXECUTION_EXCEPTION",
        error_message=f"User exception:\n{text}",
    )  # fmt: skip


_EXPORTED = (
    '{"event_data":{"attempt_number":0,"job_id":"AQAAAA==","state_updates":{"error_info":{"error_message":"User exception:\\n'
    'request.py\\", line 4, in open\\n    call()\\n  File \\"/app/client.py\\", line 9, in do_open\\n    raise URLError(error)\\n'
    'urllib.error.URLError: timed out","error_type":"TASK_EXECUTION_EXCEPTION"}},"task_id":"yO9FzNARJXH///////////////8BAAAA",'
    '"task_info":{"func_or_class_name":"fetch"}},"event_id":"a7","source_type":"EXPORT_TASK","timestamp":1795525550}\n'
)
"""Python's part of the first frame is cut off."""


def _of_rllib(*lines: str) -> str:
    head = "2026-11-21 10:49:20,676\tERROR actor_manager.py:187 -- "
    shown = (f"{head}{line}" if line.startswith("Worker ") else line for line in lines)
    return "".join(f"(EnvRunner pid=12) {line}\n" for line in shown)


def _surfaced(code: str, error: str, function: str = "norm") -> str:
    """What the driver prints for a task whose line raised."""
    return (
        f"{_TRACEBACK}ray.exceptions.RayTaskError({error.partition(':')[0]}): ray::{function}() (pid=389, ip=10.0.0.2)\n"
        f'  File "/app/etl.py", line 6, in {function}\n    {code}\n{error}\n'
    )


_UPLOADED = (
    "2026-11-21 08:34:17,000\tINFO runtime_env_agent.py:543 -- Creating runtime env: "
    '{"working_dir": "gcs://_ray_pkg_f4a04bdd8f69c2cf.zip"} with timeout 600 seconds.\n'
)
_READS = _surfaced(
    'open("data/x.csv")', "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'"
)

_BY_REFERENCE = (
    f"{_TRACEBACK}ray.exceptions.RayTaskError(ModuleNotFoundError): ray::score() (pid=389, ip=10.0.0.2)\n"
    '  File "/venv/lib/python3.11/site-packages/ray/cloudpickle/cloudpickle.py", line 469, in subimport\n    __import__(name)\n'
    "ModuleNotFoundError: No module named 'textclean'\n"
)

EXAMPLES: tuple[Example, ...] = (
    *(
        console(
            f"a driver's own log reports an attempt, {what}",
            f"[2026-11-21 07:34:12,340 W 38 59] task_manager.cc:1107: {text}\n",
            says=(says, "Ray runs the task again"),
            severity="warning",
        )
        for what, text, says in (
            ("whole", _ATTEMPT.sample, "load() raised KeyError: 1, in load() (etl.py:6)"),
            (
                "cut within the traceback",
                _ATTEMPT.sample.partition(", in load")[0],
                "raised an exception that the log cut off",
            ),
        )
    ),
    console(
        "a driver's own log reports an attempt whose worker died",
        "[2026-11-21 07:34:12,340 W 38 59] task_manager.cc:1107: "
        f"{_ATTEMPT.sample.replace('TASK_EXECUTION_EXCEPTION', 'WORKER_DIED').partition('ray::')[0]}\n",
    ),
    Example(
        "an exception raised from another one",
        {"driver.log": _CHAIN, "logs/gcs_server.out": "", "logs/raylet.out": ""},
        says=("CorruptShardError", "read_header() (shards.py:35)", "JSONDecodeError"),
        is_typical=True,
    ),
    Example(
        "the driver has a module that its working_dir leaves out",
        {
            "driver.log": _BY_REFERENCE,
            "logs/gcs_server.out": "",
            "logs/raylet.out": "",
            "logs/runtime_env_agent.log": _UPLOADED,
        },
        says=("textclean", "git check-ignore -v textclean.py", "excludes"),
    ),
    Example(
        "the driver has a module, and sends no folder",
        {"driver.log": _BY_REFERENCE, "logs/gcs_server.out": "", "logs/raylet.out": ""},
        says=("Send textclean to the workers",),
    ),
    console(
        "an engine logs that it cannot import a package, and the head of the traceback is lost",
        "".join(
            f"ERROR 04-29 00:53:54 [core.py:398] {line}\n"
            for line in (
                '  File "/venv/lib/python3.11/site-packages/ray/air/config.py", line 17, in <module>',
                "    import pyarrow.fs",
                "ModuleNotFoundError: No module named 'pyarrow'",
            )
        )
        + f"ERROR 04-29 00:53:54 [async_llm.py:399] {_ENGINE_FAILED.sample}\n",
        says=("could not import pyarrow", "Install pyarrow"),
    ),
    console(
        "a list comprehension in a program of python -c",
        _OF_PYTHON_C,
        logs=QUIET_LOGS,
        says=("Trace why parse() (‹string›:8) raises ZeroDivisionError",),
    ),
    console(
        "optional packages that are missing",
        "WARNING 04-29 00:53:54 [config.py:3] ModuleNotFoundError: No module named 'apex'\n"
        "ERROR 04-29 00:53:54 [core.py:398] falling back: No module named 'apex'\n"
        "ModuleNotFoundError: No module named 'apex'\nepoch 2\n",
    ),
    console(
        "a task that returns more values than it declares",
        f"{_TRACEBACK}ray.exceptions.RayTaskError(ValueError): ray::cut() (pid=389, ip=10.0.0.2)\n"
        "ValueError: Task returned 4 objects, but num_returns=2.\n",
        logs=QUIET_LOGS,
        says=("Return 2 values", "@ray.remote(num_returns=4)"),
    ),
    console(
        "a method of a concurrent actor installs a signal handler",
        f"{_TRACEBACK}ray.exceptions.RayTaskError(ValueError): ray::Fit.run() (pid=389, ip=10.0.0.2)\n"
        '  File "/app/fit.py", line 12, in run\n    signal.signal(signal.SIGTERM, self.stop)\n'
        "ValueError: signal only works in main thread of the main interpreter\n",
        logs=QUIET_LOGS,
        says=("Install the handler in __init__",),
    ),
    console(
        "a constant of a module that only the driver set",
        f"{_TRACEBACK}ray.exceptions.RayTaskError(TypeError): ray::read() (pid=389, ip=10.0.0.2)\n"
        '  File "/app/read.py", line 7, in read\n    return open(paths.MASTER_DIR + name)\n'
        "TypeError: unsupported operand type(s) for +: 'NoneType' and 'str'\n",
        logs=QUIET_LOGS,
        says=("Pass paths.MASTER_DIR to the task", "Trace why read"),
    ),
    console(
        "three equal failures, and a task that depended on one of them",
        _RAISED * 3 + _BY_INPUT,
        logs=QUIET_LOGS,
        says=(
            "3 calls of load_shard() raised KeyError: 'price'",
            "column_mean() (shards.py:40)",
            "report",
        ),
    ),
    console(
        "a method of a restarted actor misses what an earlier call stored",
        _STATE,
        logs=_restarts((_OLD, 411), (_NEW, 412)),
        roots=("task-exception", "worker-vanished"),
        says=("Restore in Basket.__init__", "(pid 411) had ended"),
    ),
    console(
        "a result that the program never fetched",
        "2026-11-21 08:34:17,706\tERROR worker.py:439 -- Unhandled error (suppress with "
        f"'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::load_shard() (pid=390, ip=10.0.0.2)\n{_FRAMES}",
        logs=QUIET_LOGS,
        says=("never fetched the result",),
    ),
    Example(
        "a function of a Ray Data pipeline: only the logs are available",
        {
            "logs/ray-data/ray-data.log": f"2026-11-21 10:49:20,676\tERROR exceptions.py:86 -- {data.STACK.sample}\n",
            **QUIET_LOGS,
        },
        says=("ReadRange->Map(price) raised ZeroDivisionError",),
    ),
    console(
        "the worker could not import the function",
        f"{_TRACEBACK}ray.exceptions.RayTaskError(RuntimeError): ray::detect() (pid=389, ip=10.0.0.2)\n"
        "RuntimeError: The remote function failed to import on the worker. This may be because needed library dependencies "
        "are not installed in the worker environment:\n\nray::detect() (pid=389, ip=10.0.0.2)\n"
        "ModuleNotFoundError: No module named 'cv2'\n",
        logs=QUIET_LOGS,
        says=("detect() raised ModuleNotFoundError: No module named 'cv2'", "runtime_env"),
    ),
    Example(
        "a retried task that succeeded, as the option intends",
        {"driver.log": _RETRY, "logs/gcs_server.out": "", "logs/raylet.out": ""},
    ),
    console(
        "an exception that a worker handled and logged",
        "(Importer pid=12) Traceback (most recent call last):\n(Importer pid=12) "
        "ray.exceptions.RayTaskError(ValueError): ray::parse() (pid=13, ip=10.0.0.2)\n(Importer pid=12) ValueError: x\n",
        logs=QUIET_LOGS,
    ),
    console(
        "the driver prints the names of tasks and exceptions",
        "ray::load_shard is the title of the process; see RayTaskError(KeyError) in the handbook\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a console that ends within the traceback of a result that the program never fetched",
        "(main_task pid=7) Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::load_shard() "
        "(pid=390, ip=10.0.0.2)\n"
        + "".join(f"(main_task pid=7) {line}\n" for line in _FRAMES.splitlines()[:4]),
        says=(
            "Task load_shard() raised an exception that the console cut off, in column_mean() (shards.py:40)",
        ),
        severity="warning",
    ),
    Example(
        "a running cluster whose program caught the exception of a method; the message lacks its beginning",
        live_examples.tables(
            tasks=[_failed("Trainer.step", "pr=<a.Trainer object at 0x7f>)\n" + _FRAMES)]
        ),
        says=(
            "Actor method Trainer.step() raised KeyError: 'price', in column_mean() (shards.py:40)",
        ),
        severity="warning",
    ),
    Example(
        "an export event keeps only the end of a long message",
        {
            "logs/export_events/event_EXPORT_TASK_16.log": _EXPORTED,
            **QUIET_LOGS,
        },
        says=("Task fetch() raised URLError: timed out, in do_open() (client.py:9)",),
        severity="warning",
    ),
    Example(
        "a running cluster that runs a task again and again, always in vain",
        live_examples.tables(tasks=_retried(6)),
        says=("load_shard() raised", "Ray retried it 6 times", "without success so far"),
    ),
    Example(
        "a running cluster that ran a task again for the second time",
        {**live_examples.tables(tasks=_retried(2)), **QUIET_LOGS},
    ),
    Example(
        "a running cluster that ran the task again after the exception",
        {
            **live_examples.tables(
                tasks=[_failed("load_shard", f"ray::load_shard() (pid=7, ip=10.0.0.2)\n{_FRAMES}")]
            ),
            f"logs/python-core-driver-01000000{'f' * 48}_16.log": "[2026-11-21 08:34:17,706 I 16 39] task_manager.cc:1565: "
            f"Attempting to resubmit task {live_examples.task_id(1)} for attempt number: 0\n",
            **QUIET_LOGS,
        },
    ),
    console(
        "a console with the beginning of a failure of any kind",
        'ray::load_shard() (pid=390, ip=10.0.0.2)\n  File "/app/etl.py", line 8, in load_shard\n'
        "    rows = ray.get(reference)\n",
    ),
    console(
        "an actor called the method, so that the driver's echo of this actor shows the failure",
        "(Trainer pid=7, ip=10.0.0.2) Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): "
        "ray::Engine.start() (pid=390, ip=10.0.0.2)\n"
        '(Trainer pid=7, ip=10.0.0.2)   File "/app/engine.py", line 40, in start\n(Trainer pid=7, ip=10.0.0.2)     self.model.load()\n'
        "(Trainer pid=7, ip=10.0.0.2) AttributeError: 'Engine' object has no attribute 'model'\n",
        says=("Engine.start() raised AttributeError",),
    ),
    Example(
        "vLLM's workers log the exception of a method, one of them in the driver, which ends with it",
        {
            "driver.log": "".join(
                f"{who}ERROR 11-21 07:34:14 worker_base.py:467] {line}\n"
                for who in ("(RayWorkerWrapper pid=7, ip=10.0.0.3) ", "")
                for line in (
                    METHOD_FAILED.sample,
                    _TRACEBACK.splitlines()[0],
                    *_FRAMES.splitlines(),
                )
            )
            + "".join(f"[rank0]: {line}\n" for line in (_TRACEBACK + _FRAMES).splitlines())
        },
        roots=("task-exception",),
        says=("2 calls of RayWorkerWrapper.load_model() raised KeyError: 'price'",),
    ),
    Example(
        "a program that writes about vLLM's message, above a traceback that it survives",
        {
            "driver.log": f"advice: {METHOD_FAILED.sample}\n{_TRACEBACK}{_FRAMES}loading again\nepoch 1\n"
        },
    ),
    console(
        "an argument refers to a module that the worker cannot import",
        f"{_TRACEBACK}ray.exceptions.RayTaskError: ray::norm() (pid=12, ip=10.0.0.2)\n"
        "  At least one of the input arguments for this task could not be computed:\n"
        "ray.exceptions.RaySystemError: System error: No module named 'shards'\ntraceback: Traceback (most recent call last):\n"
        "ModuleNotFoundError: No module named 'shards'\n",
        says=(
            "norm could not load an argument in its worker",
            "No module named 'shards'",
            "Send shards to the workers",
        ),
    ),
    console(
        "a call on an actor fails, and a console that prefixes each line is cut off",
        "(Loop pid=9) Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::Stats.update() (pid=77, ip=10.0.0.2)\n"
        "(Loop pid=9)   At least one of the input arguments for this task could not be computed:\n"
        "(Loop pid=9) ray.exceptions.RaySystemError: System error: can't set attribute 'rate'\n",
        says=("Stats.update could not load an argument in its worker: can't set attribute 'rate'",),
    ),
    console(
        "a console that ends below vLLM's message",
        "(EngineCore_DP0 pid=13) (RayWorkerWrapper pid=34, ip=10.0.0.7) ERROR 11-21 10:31:21 [worker_base.py:275] "
        f"{METHOD_FAILED.sample}\n",
        says=("RayWorkerWrapper.load_model() raised an exception that the console cut off",),
        severity="warning",
    ),
    console(
        "a failed task in the dashboard",
        f"{_DASHBOARD.sample}\n",
        says=("Task load() raised KeyError: 'x' (etl.py:6)",),
    ),
    console(
        "the dashboard shows only the end of a long text, and the paste only its beginning",
        "Error Type: TASK_EXECUTION_EXCEPTION\n\nUser exception:\n"
        'b/python3.11/site-packages/numpy/core.py", line 49, in mean\n    return total / n\n  File "/app/etl.py", line 6, in load\n',
        says=("A task raised an exception that the text does not show",),
        severity="warning",
    ),
    console(
        "a failed task in the dashboard, by an exception of Ray's own",
        "Error Type: TASK_EXECUTION_EXCEPTION\n\nUser exception:\nray::load() (pid=12)\n"
        '  File "/app/etl.py", line 6, in load\nray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n',
        roots=("get-timeout",),
    ),
    console(
        "a paste of the exception that Ray Data raises from the program's own",
        '  File "/venv/site-packages/ray/data/_internal/planner/plan_udf_map_op.py", line 363, in _try_wrap_udf_exception\n'
        "    raise UserCodeException(error_message) from e\n"
        "ray.exceptions.UserCodeException: Failed to process the following data block: {}\n",
        says=("passed to Ray Data raised an exception that the console cut off",),
    ),
    console(
        "a paste that ends within the traceback of a failed call",
        'ray::Engine.start() (pid=390, ip=10.0.0.2)\n  File "/app/engine.py", line 40, in start\n    self.model.load()\n',
        severity="warning",
        says=("the console cut off, in start() (engine.py:40)",),
    ),
    *(
        console(
            f"RLlib logs the exception of an env runner ({words})",
            _of_rllib(f"{words} 'obs'") + _of_rllib(*_FRAMES.splitlines()[:4]),
            says=(
                "EnvRunner raised",
                "column_mean() (shards.py:40)",
                "takes the worker out of service",
            ),
        )
        for words in ("Worker exception, recreating:", "Worker exception caught during `apply()`:")
    ),
    console(
        "an env runner's own print of such words",
        "(EnvRunner pid=12) Worker exception, recreating: the pool of simulators\n",
    ),
    console(
        "Ray Data reports an exception of the program, and the console ends before it",
        f"2026-11-21 10:49:20,676\tERROR exceptions.py:63 -- {data.USER_ERROR.sample} from stdout\n"
        "ray.data.exceptions.UserCodeException\n\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/app/etl.py", line 8, in <module>\n    run().take_all()\n',
        says=("passed to Ray Data raised an exception that the console cut off",),
    ),
    console(
        "a task of the program quotes what Ray Data reports",
        f"(audit pid=12) 9 lines of {data.USER_ERROR.sample}\n",
    ),
    console(
        "a console that ends within the line that names the exception",
        f"{_TRACEBACK}ray.exceptions.RayTaskError(KeyError): ray::Trainer.step() (pid=39",
        says=("Actor method Trainer.step() raised KeyError",),
    ),
    console(
        "a console that ends below the error of a training function",
        "ray::_Inner.train() (pid=12, ip=10.0.0.2)\n"
        '  File "/venv/lib/python3.11/site-packages/ray/train/_internal/utils.py", line 43, in check_for_failure\n'
        "    ray.get(object_ref)\n"
        "ray.exceptions.RayTaskError(RuntimeError): ray::_RayTrainWorker__execute.get_next() (pid=17, ip=10.0.0.2)\n"
        '  File "/venv/lib/python3.11/site-packages/ray/train/_internal/worker_group.py", line 33, in __execute\n',
        says=("The training function raised RuntimeError",),
    ),
    console(
        "a console that ends before it names the actor that died",
        f"{_TRACEBACK}ray.exceptions.RayTaskError(ActorDiedError): ray::Trainer.fit() (pid=390, ip=10.0.0.2, actor_id=12b7",
        says=(
            "Actor method Trainer.fit() failed with ActorDiedError, whose text the console cut off",
        ),
    ),
    console(
        "a trial of Tune fails, and the console ends within the traceback",
        "2026-11-21 10:22:34,870\tERROR tune_controller.py:1331 -- Trial task failed for trial fit_5c8f1_00003\n"
        'Traceback (most recent call last):\n  File "/venv/site-packages/ray/air/execution/_internal/event_manager.py", line 110, in '
        "resolve_future\n    result = ray.get(future)\n",
        says=("The trial fit_5c8f1_00003 of Ray Tune failed",),
        severity="warning",
    ),
    console(
        "a training function raises, and the console ends before the controller's decision",
        "".join(
            f"(RayTrainWorker pid=51, ip=10.0.0.7) {line}\n"
            for line in (
                "Error in training function:",
                "Traceback (most recent call last):",
                '  File "/app/fit.py", line 33, in train_fn',
                '    loss = crit(out, batch["label"])',
                "KeyError: 'label'",
            )
        ),
        says=("The function train_fn() raised KeyError: 'label' (fit.py:33)",),
    ),
    console(
        "a console that ends within the traceback of a worker",
        "(Loader pid=34, ip=10.0.0.7) Traceback (most recent call last):\n"
        '(Loader pid=34, ip=10.0.0.7)   File "/app/load.py", line 12, in load\n(Loader pid=34, ip=10.0.0.7)     self.read()\n'
        '(Loader pid=34, ip=10.0.0.7)   File "/app/lo\n',
        says=(
            "Loader (pid 34) raised an exception that the console cut off, in load() (load.py:12)",
        ),
        severity="warning",
    ),
    console(
        "a worker that goes on below its traceback",
        "(Loader pid=34) Traceback (most recent call last):\n"
        '(Loader pid=34)   File "/app/load.py", line 12, in load\n(Loader pid=34)     self.read()\n(Loader pid=34) loaded 12 shards\n(Loader pid=34) loaded 24 shards\n',
    ),
    *(
        console(
            f"a console that ends {where} what ray.get raises",
            f'{BEGIN}\n  File "/app/train.py", line 8, in <module>\n    ray.get(step.remote())\n'
            '  File "/venv/lib/python3.12/site-packages/ray/_private/worker.py", line 930, in get_objects\n'
            f"    raise value.as_instanceof_cause()\n{begun}",
            says=("the console cut off, and ray.get passed it on to train.py:8",),
            severity="warning",
        )
        for where, begun in (("before", ""), ("within the name of", "ray.exceptions.RayTas\n"))
    ),
    console(
        "frames of a worker that executes a method, without head and end",
        '  File "/venv/lib/python3.12/site-packages/ray/util/tracing/tracing_helper.py", line 463, in _resume_span\n'
        '    return method(self, *_args, **_kwargs)\n  File "/app/actors.py", line 105, in forward\n    loss = self.model(batch)\n'
        '  File "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1532, in _call_impl\n    return forward_call(*args)\n',
        says=(
            "of an actor raised an exception that the console cut off, in forward() (actors.py:105)",
        ),
        severity="warning",
    ),
    console(
        "a console that ends within a wait for Ray, which can also end with one of Ray's own exceptions",
        f'{BEGIN}\n  File "/app/train.py", line 8, in <module>\n    ray.get(step.remote())\n'
        '  File "/venv/lib/python3.12/site-packages/ray/_private/worker.py", line 930, in get_objects\n    raise value\n',
        roots=("job-failed",),
    ),
    console(
        "a paste that begins within the first line of a failed call",
        "rner.step() (pid=391, ip=10.0.0.2, actor_id=cc6769f6fff03455586d62ff01000000, repr=<shop.Learner object at 0x7f85>)\n"
        '  File "/app/etl.py", line 6, in load\n    rows[key]\nKeyError: 1\n',
        says=("A method of actor Learner raised KeyError: 1, in load() (etl.py:6)",),
    ),
    console(
        "a failed call whose address was removed",
        f"ray.exceptions.RayTaskError(KeyError): ray::Learner.step() (pid=391, actor_id=cc6769f6fff03455586d62ff01000000, repr=<shop.Learner object>)\n{_FRAMES}",
        says=("Actor method Learner.step() raised KeyError: 'price'",),
    ),
    console(
        "Ray 1.x names a worker that exits",
        f"ray::Trainer.step()::Exiting (pid=390, ip=10.0.0.2)\n{_FRAMES}",
        says=("Actor method Trainer.step() raised KeyError: 'price'",),
    ),
    console(
        "a task changes an array that it got",
        _surfaced("x -= x.mean()", "ValueError: output array is read-only"),
        logs=QUIET_LOGS,
        says=("Copy the array before changing it",),
    ),
    console(
        "a task gets references in a list",
        _surfaced(
            "sum(x)", "TypeError: unsupported operand type(s) for +: 'int' and 'ray.ObjectRef'"
        ),
        logs=QUIET_LOGS,
        says=("Fetch the references with ray.get first",),
    ),
    console(
        "a variable that the driver sets after ray.init",
        _surfaced('os.environ["token_path"]', "KeyError: 'token_path'"),
        logs=QUIET_LOGS,
        says=("Pass token_path to the workers", '"env_vars": {"token_path": VALUE}'),
    ),
    console(
        "a key that a dictionary lacks: no environment variable",
        _surfaced('header["token_path"]', "KeyError: 'token_path'"),
        logs=QUIET_LOGS,
        says=("Trace why norm() (etl.py:6) raises KeyError",),
    ),
    console(
        "a file of working_dir that .gitignore lists",
        _READS,
        logs={**QUIET_LOGS, "logs/runtime_env_agent.log": _UPLOADED},
        says=("Make sure that Ray uploads data/x.csv", "git check-ignore -v data/x.csv"),
    ),
    console(
        "a relative path without working_dir",
        _READS,
        logs=QUIET_LOGS,
        says=("data/x.csv is relative to the folder in which the worker runs",),
    ),
    console(
        "a retry finds what the attempt before it left behind",
        _RETRY.replace("5 retries", "1 retries")
        + _surfaced("os.mkdir(out)", "FileExistsError: [Errno 17] File exists: '/out'", "download"),
        logs=QUIET_LOGS,
        says=(
            "when Ray retried it after ConnectionError: 503",
            "Make download() safe to run twice",
        ),
    ),
    Example(
        "the handler of an alarm that an earlier task of the worker set",
        {
            "driver.log": _surfaced(
                'time.sleep(6)\n  File "/app/etl.py", line 2, in too_late\n    raise Late("9 s")',
                "Late: 9 s",
            ),
            f"logs/worker-{'5d' * 28}-01000000-389.out": ":job_id:01000000\n:task_name:quick\n:task_name:norm\n",
            **QUIET_LOGS,
        },
        says=("Disarm what quick() left in the worker, if too_late() is a signal handler",),
    ),
    console(
        "a console ends with the exception that an actor printed",
        '(Embedder pid=77) Traceback (most recent call last):\n(Embedder pid=77)   File "/app/embed.py", line 31, in encode\n'
        "(Embedder pid=77)     return self.table[key]\n(Embedder pid=77) KeyError: 'de'\n",
        says=(
            "Embedder (pid 77) raised KeyError: 'de', in encode() (embed.py:31)",
            "Fix encode() (embed.py:31)",
        ),
        severity="warning",
    ),
    console(
        "only its last line is left",
        "(ReadParquet pid=77) pyarrow.lib.ArrowInvalid: Could not open Parquet input source '<Buffer>': Parquet magic bytes not found\n",
        says=("ReadParquet (pid 77) raised ArrowInvalid", "worker-*-77.err"),
        severity="warning",
    ),
    console(
        "an actor prints an exception and continues",
        '(Embedder pid=77) Traceback (most recent call last):\n(Embedder pid=77)   File "/app/embed.py", line 31, in encode\n'
        "(Embedder pid=77)     return self.table[key]\n(Embedder pid=77) KeyError: 'de'\n(Embedder pid=77) uses the default table, 300 rows encoded\n",
    ),
    console(
        "a process prints its exception, and the console cuts off the driver's",
        "(Loader pid=7) Traceback (most recent call last):\n"
        '(Loader pid=7)   File "/app/etl.py", line 40, in load\n(Loader pid=7)     os.makedirs(target)\n'
        "(Loader pid=7) PermissionError: [Errno 13] Permission denied: '/mlruns'\n"
        'Traceback (most recent call last):\n  File "/app/train.py", line 8, in <module>\n    sys.exit(main())\n',
        says=("Loader (pid 7) raised PermissionError",),
        severity="warning",
    ),
    console(
        "a process prints an exception and goes on, and so does the driver",
        "(Loader pid=7) Traceback (most recent call last):\n"
        '(Loader pid=7)   File "/app/etl.py", line 40, in load\n(Loader pid=7)     os.makedirs(target)\n'
        "(Loader pid=7) PermissionError: [Errno 13] Permission denied: '/mlruns'\n(Loader pid=7) epoch 1\nepoch 2\nepoch 3\n",
    ),
    console(
        "an object whose module is missing, and processes that a person made unreadable",
        "(Actor pid=xxx) Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): ray::_StatsActor.update_metrics()\n\n"
        "At least one of the input arguments for this task could not be computed:\n"
        "(Actor pid=xxx) ray.exceptions.RaySystemError: System error: No module named 'shop'\n",
        says=("could not load an object or argument: No module named 'shop'",),
    ),
    console(
        "the function of a trial raises, and the console ends within the traceback",
        "2019-11-21 15:12:00,835\tERROR function_runner.py:83 -- Runner Thread raised error.\nTraceback (most recent call last):\n"
        '  File "/venv/lib/python3.6/site-packages/ray/tune/function_runner.py", line 80, in run\n    self._entrypoint(*self._entrypoint_args)\n'
        '  File "/app/mnist.py", line 279, in train_mnist\n    test()\n',
        says=(
            "The training function of a trial of Ray Tune raised an exception that the console cut off",
        ),
        severity="warning",
    ),
    *(
        console(
            f"a call as {version} prints it",
            f'ray.exceptions.RayTaskError{title} (pid=7, {place})\n  File "/app/etl.py", line 6, in step\n    raise ValueError(9)\nValueError: 9\n',
            says=(says,),
        )
        for version, title, place, says in (
            (
                "Ray 0.7",
                ": ray_Trainer:step()",
                "host=ray-node",
                "Trainer.step() raised ValueError: 9",
            ),
            (
                "Ray 0.8",
                "(ValueError): ray_Trainer:step()",
                "ip=10.0.0.2",
                "Trainer.step() raised ValueError: 9",
            ),
            ("an idle worker of Ray 0.7", ": ray_worker", "host=ray-node", "raised ValueError: 9"),
        )
    ),
    console(
        "a paste shows only Ray's warning about the class of the exception",
        f"(Runner pid=7) {_NOT_SUBCLASSED.sample}\n",
        says=("raised PriceError, whose message is not in this output",),
        severity="warning",
    ),
    console(
        "the caller catches the exception and continues",
        f"{_NOT_SUBCLASSED.sample}\nskipped 1 row\nepoch 2\nepoch 3\n",
    ),
    console(
        "the last line of a process's exception, and a driver's traceback that the console cuts off",
        "(Shard pid=7) RuntimeError: shard 3 has no rows\n"
        'Traceback (most recent call last):\n  File "/app/train.py", line 8, in main\n    ray.get(shard.read.remote())\n'
        '  File "/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 2772, in get\n    values, debugger_breakpoint = wor',
        says=(
            "Shard (pid 7) raised RuntimeError: shard 3 has no rows",
            "ends within the traceback",
        ),
        severity="warning",
    ),
    console(
        "a process logs an exception and continues, and the console ends within another one's traceback",
        "(Shard pid=7) RuntimeError: shard 3 has no rows\n(Shard pid=7) shard 4: 500 rows\n"
        'Traceback (most recent call last):\n  File "/app/train.py", line 8, in main\n    report(rows)\n',
        roots=("job-failed",),
    ),
    *(
        console(
            f"the second traceback of a chain is cut off {where}",
            f"{before}ray::Shard.read() (pid=7, ip=10.0.0.2)\n"
            '  File "/app/etl.py", line 6, in fetch\n    raise TimeoutError("3 s")\nTimeoutError: 3 s\n\n'
            f"During handling of the above exception, another exception occurred:\n\nray::Shard.read() (pid=7, {rest}",
            says=(
                "Shard.read() raised an exception that the console cut off",
                "after TimeoutError: 3 s",
            ),
            severity="warning",
        )
        for before, where, rest in (
            ("", "within its header", "ip=10.0"),
            (
                "ray.exceptions.RayTaskError: ",
                "below its frame",
                'ip=10.0.0.2)\n  File "/app/etl.py", line 9, in read\n    fetch(\n',
            ),
        )
    ),
    console(
        "a chain that is cut off, above a program that continues",
        "ray::Shard.read() (pid=7, ip=10.0.0.2)\n"
        '  File "/app/etl.py", line 6, in fetch\n    raise TimeoutError("3 s")\nTimeoutError: 3 s\n\n'
        "During handling of the above exception, another exception occurred:\n\nray::Shard.read() (pid=7, ip=10.0.0.2)\n"
        "shard 3 left out\nepoch 2\nepoch 3\n",
    ),
    *(
        console(
            f"a console ends within the header of a failed call: {header}",
            f"ray.exceptions.{header}",
            says=(says,),
        )
        for header, says in (
            ("RayTaskError(OSError): ra", "A task or actor method raised OSError"),
            ("RayTaskError(OSError): ray::Loader.re", "Actor method Loader.re… raised OSError"),
            ("RayTaskError(OSError): ray::Loader.read() (p", "Loader.read() raised OSError"),
        )
    ),
    console(
        "a program quotes such a header and continues",
        "ray.exceptions.RayTaskError(OSError): ray::Loader.re\nis what a cut header looks like\nepoch 2\n",
    ),
)
