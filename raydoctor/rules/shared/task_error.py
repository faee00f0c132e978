"""The text of a `RayTaskError`: the task that raised, the exception, its place, and the tasks that passed it on.

Forms (read in sessions of Ray 2.9.3 to 2.60): `ray.exceptions.RayTaskError(X): ray::f() (pid=…, ip=…)` at the end of a
traceback; the bare text if a program prints or logs the exception, or if Ray logs one whose result was never fetched
(`Unhandled error …`); inside an `UnserializableException` (2.50+). A task whose input failed, or whose own `ray.get`
raised, prints the inner task's text below its own. In a chain (`raise … from`) each traceback has its own `ray::f()`
line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Remedy
from raydoctor.rules.shared.traceback import CHAINED, Raised, TracebackFrame, parse

ERROR_TEXT = Signal(
    "task.error_text",
    "ray::",
    r"(?:^|[\s:])ray::(?P<function>[^\n]{1,300}?)\(\)(?:::\w{1,40})? \(pid=(?P<task_pid>\d+)(?:, (?:ip|host)=(?P<task_ip>[^,)\s]*)|, actor_id=|\))",
    DRIVER,
    "ray::load_shard() (pid=390, ip=10.0.0.2)\n  File \"/app/shards.py\", line 40, in load_shard\nKeyError: 'price'",
    extent="record",
    fold=("function",),
)
UNHANDLED = "Unhandled error (suppress with"
ECHOED_TEXT = Signal(
    ERROR_TEXT.kind,
    UNHANDLED,
    rf"^Unhandled error \(suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'\):{ERROR_TEXT.pattern}",
    ("worker-echo",),
    f"{UNHANDLED} 'RAY_IGNORE_UNHANDLED_ERRORS=1'): {ERROR_TEXT.sample}",
    extent="record",
    fold=("function",),
)
"""Ray prints it in the process that called the task: in a driver's echo, an actor."""
RETRIED = Signal(
    "task.retried",
    "so the task will be retried. Error: ",
    r"^Task (?P<function>.+?) failed\. There are (?P<left>\w+) retries remaining, so the task will be retried\. "
    r"Error: User exception:(?P<what>.*)",
    ("raylet-echo",),
    "Task download failed. There are 5 retries remaining, so the task will be retried. Error: User exception:\n"
    "ray::download() (pid=384, ip=127.0.0.1)\nConnectionError: 503 service unavailable",
    extent="record",
    fold=("function",),
)
"""Since 2.50; before, a retried exception leaves no trace."""

OUT_OF_FILES = "[Errno 24]"
"""EMFILE, as Python prints it."""
MORE_FILES = Remedy(
    "Close files that are no longer needed, or raise the hard limit: Ray raises each worker's own limit to it",
    (
        "ulimit -n 65536   # on that node, before ray start, or before your program if it starts Ray. If refused: nofile in /etc/security/limits.conf",
        "docker run --ulimit nofile=65536:65536   # plus your other options",
    ),
    risk="disruptive",
)
_HEADER = pattern(
    r"ray::(?P<function>.{1,300}?)\(\)(?:::\w{1,40})? \(pid=(?P<pid>\d{0,20})(?:, (?:ip|host)=(?P<ip>[^,)\s]*)|, actor_id=|\)|$)"
)
"""Ray 1.x adds a worker's title (`::Exiting`), and 0.7 writes `host`. People remove the address, and a console may end
within the line."""
_WITHOUT_PROCESS = pattern(
    r"ray\.exceptions\.RayTaskError\(\w{1,100}\): ray::[^\s()]{1,300}\(\)\s*"
)
"""A header from which a person removed the process."""
_OWN_LINE = pattern(r"^(?:ray\.exceptions\.RayTaskError(?:\(\w+\))?: )?ray::")
_OF_GROUP = pattern(r"^[ +|-]*\| ?")
_TYPE = pattern(r"^ray\.exceptions\.RayTaskError\((?P<type>\w{1,100})\): ")
_TYPES = pattern(r"(?m)^ray\.exceptions\.RayTaskError\((?P<type>\w{1,100})\): ")
_DEPENDENCY = "At least one of the input arguments for this task could not be computed"
_IMPORT_FAILED = "failed to import on the worker."
_UNREADABLE = "UnserializableException"
"""Since 2.50: the caller cannot rebuild an exception, so that Ray gives it as text."""
_WRAPPERS = ("UserCodeException",)
"""Ray Data's wrapper around the exception of a user's function."""
_TRAIN_WORKER = "_RayTrainWorker__execute."
"""The method in which Ray Train V1 runs a training function."""


class TaskFailure(NamedTuple):
    """One printed failure of a task or method."""

    function: str
    """The task that raised: `load_shard`, `Trainer.step`."""
    raised: Raised | None
    """None if the text is cut off."""
    cause: tuple[str, Raised] | None = None
    """(function, exception) that came before: `raise … from`, or an exception while handling."""
    path: tuple[str, ...] = ()
    """Tasks that only passed it on, outermost first."""
    by_input: bool = False
    """Whether some of them never ran because one of their inputs had failed."""
    pid: int | None = None
    lines: int = 1
    """Number of lines of its text."""
    is_remote: bool = True
    """Whether the function is a task or method; otherwise Ray Train or Serve called it in theirs."""
    type: str = ""
    """The class of the exception where its text is cut off, as the last `RayTaskError(X)` names it."""

    @property
    def is_rays_own(self) -> bool:
        """Whether the innermost exception is one of Ray's, which other rules report."""
        return (
            self.raised is not None
            and self.raised.is_rays_own
            and self.raised.name not in _WRAPPERS
        )


class Printed(NamedTuple):
    """A failure and its records."""

    event: Event
    failure: TaskFailure
    inside: tuple[Event, ...] = ()
    """Records within its text: the nested exceptions."""
    is_retried: bool = False
    """Whether Ray ran the task again after it."""

    @property
    def records(self) -> tuple[Event, ...]:
        """All records of the failure."""
        return (self.event, *self.inside)

    def contains(self, event: Event) -> bool:
        """Whether the other event's line is in the text of the failure."""
        begin = self.event.line
        return (
            self.event.source == event.source and begin < event.line <= begin + self.failure.lines
        )


def kind_and_place(seen: Printed) -> tuple[str, TracebackFrame | None]:
    """The exception's class, and the line of the program that raised it."""
    raised = seen.failure.raised
    if raised is None:
        return seen.event["inner"] or seen.failure.type or "an exception", None
    return raised.name, raised.place


def error_entity(seen: Printed) -> Entity:
    """One entity for equal failures (function, exception, place): a finding that explains it explains all."""
    kind, place = kind_and_place(seen)
    return Entity("task-error", f"{seen.failure.function} {kind} {place}")


def error_entities(errors: Iterable[Printed]) -> tuple[Entity, ...]:
    """The entities of these failures, each once."""
    return tuple(dict.fromkeys(map(error_entity, errors)))


def printed(case: Case) -> Iterator[Printed]:
    """Every task failure that a driver's output shows, each text once."""
    kinds = ("driver.exception", "task.error_text", "task.retried")
    by_file = evidence.grouped(case.of(*kinds), lambda e: e.source.path)
    for path in sorted(by_file):
        yield from _in_file(sorted(by_file[path], key=lambda e: (e.line, kinds.index(e.kind))))


def _in_file(events: list[Event]) -> Iterator[Printed]:
    end = 0
    found: Printed | None = None
    inside: list[Event] = []
    for event in events:
        if event.line <= end:
            inside.append(event)
            continue
        if found:
            yield found._replace(inside=tuple(inside))
        found, inside = None, []
        if (failure := parse_failure(event.message)) and _is_of_a_task(event, failure):
            retried = event.kind == RETRIED.kind
            found = Printed(event, failure, is_retried=retried)
            end = event.line + failure.lines - 1
    if found:
        yield found._replace(inside=tuple(inside))


def _is_of_a_task(event: Event, failure: TaskFailure) -> bool:
    """Whether a task or method failed: other rules report constructors and other exceptions."""
    if failure.function.endswith(".__init__"):
        return False
    return event.kind != "driver.exception" or event["type"] in (
        "RayTaskError",
        _UNREADABLE,
    )


@lru_cache(maxsize=1024)  # several rules parse the same records
def parse_failure(text: str) -> TaskFailure | None:
    """Read the text that begins in this record; None if it names no task."""
    lines = [_OF_GROUP.sub("", line) for line in text.splitlines()]
    if lines and _WITHOUT_PROCESS.fullmatch(lines[0]):
        lines[0] = f"{lines[0].rstrip()} (pid=)"
    heads = [
        i for i, line in enumerate(lines)
        if _HEADER.search(line) and (i == 0 or _OWN_LINE.match(line))
    ]  # fmt: skip
    path: list[str] = []
    by_input, cause = False, None
    for n, begin in enumerate(heads):
        segment = lines[begin : heads[n + 1] if n + 1 < len(heads) else None]
        head = _HEADER.search(segment[0])
        function, pid = (head["function"], int(head["pid"] or 0)) if head else ("", 0)
        raised = parse("\n".join((segment[0][segment[0].find("ray::") :], *segment[1:])))
        if raised is None:
            path.append(function)
            by_input = by_input or any(_DEPENDENCY in line for line in segment)
            continue
        length = _end_of(raised, segment)
        if _IMPORT_FAILED in raised.message and n + 1 < len(heads):
            continue  # the cause follows as another traceback of the same task
        if raised.name == _UNREADABLE and n + 1 < len(heads):
            path.append(function)  # the text of the task's exception follows
            continue
        if not raised.is_rays_own and _goes_on(segment[length:]) and n + 1 < len(heads):
            cause = (function, raised)
            continue
        if raised.name in _WRAPPERS and cause:
            (function, raised), cause = cause, None
        if function.startswith(_TRAIN_WORKER):
            inner = function_of(raised)
            return TaskFailure(
                inner, raised, cause, (), False, pid, begin + length, is_remote=False
            )
        passed_on = tuple(f for f in dict.fromkeys(path) if f != function)
        return TaskFailure(function, raised, cause, passed_on, by_input, pid, begin + length)
    if not heads:
        return _of_group(lines)
    outer = tuple(f for f in dict.fromkeys(path[:-1]) if f != path[-1])
    named = _TYPE.match(lines[heads[-1]])
    kind = named["type"] if named else ""
    is_training = path[-1].startswith(_TRAIN_WORKER)
    name = "the training function" if is_training else path[-1]
    return TaskFailure(
        name, None, cause, outer, by_input, None, heads[-1] + 1, not is_training, kind
    )


def raised_by_task(text: str) -> str:
    """The class of the exception that a task raised, as the last `RayTaskError(X)` of a traceback names it.

    Of a wrapper, that of the user's function. Empty where no line names one.
    """
    found = list(_TYPES.finditer(text))
    if not found:
        return ""
    kind = found[-1]["type"]
    failure = parse_failure(text[found[-1].start() :]) if kind in _WRAPPERS else None
    return failure.raised.name if failure and failure.raised else kind


def function_of(raised: Raised) -> str:
    """The outermost function of the user's program in an exception's frames."""
    own = [frame.function for frame in raised.frames if frame.is_user_code]
    return own[0] if own else "the training function"


def _of_group(lines: list[str]) -> TaskFailure | None:
    """An `ExceptionGroup` prints no `ray::f()`: its outermost frame gives the task's name."""
    if not lines or "Exception Group Traceback" not in lines[0]:
        return None
    raised = parse("\n".join(("Traceback (most recent call last):", *lines[1:])))
    own = [frame for frame in raised.frames if frame.is_user_code] if raised else []
    if raised is None or not own:
        return None
    return TaskFailure(own[0].function, raised, lines=_end_of(raised, lines))


def _end_of(raised: Raised, segment: list[str]) -> int:
    """Number of lines of the traceback, up to the exception's own line."""
    for i, line in enumerate(segment):
        if i and line.startswith(raised.type) and line[len(raised.type) :][:1] in ("", ":", "("):
            return i + 1
    return len(segment)


def _goes_on(rest: list[str]) -> bool:
    return any(line.startswith(CHAINED) for line in rest)
