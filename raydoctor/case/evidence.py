"""Shared by rule files: links to a worker's exit, subjects, and text for counts and names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from raydoctor.case.case import Case, sightings
from raydoctor.case.facts import WorkerExit
from raydoctor.case.signals import GCS, RAYLET
from raydoctor.model import text
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Link, Severity, Subject

many, join_names, short = text.plural, text.join_names, text.short_id
_Key = TypeVar("_Key", bound=Hashable)
_Item = TypeVar("_Item")
_WORD = pattern(r"[^\W\d_]{3}")
GB = 1024**3
"""Bytes in one GiB, which Ray labels `GB` (`memory_monitor_utils.cc`)."""


def exit_links(exit_: WorkerExit, most: int = 2) -> tuple[Link, ...]:
    """The best records of a worker's exit as links, one per kind of file."""
    links = []
    # A function does not exit: its worker does.
    process = f"the worker of {exit_.noun}" if exit_.names and not exit_.actor else exit_.noun
    for event in sightings(exit_):
        shows = {
            "worker.exit": f"the GCS records that {process} exited with {exit_.exit_type}",
            "worker.died": f"the raylet reports that {process} died with {exit_.exit_type}",
            "worker.disconnected": f"{process} disconnected from its raylet ({exit_.exit_type})",
            "driver.exception": f"the driver got {event['type']}",
        }[event.kind]
        links.append(Link(event, shows))
    return tuple(links[:most])


def printed_last(case: Case, exits: Iterable[WorkerExit]) -> tuple[Link, ...]:
    """The last line that the first of these workers with any output printed: it may say why it ended."""
    for exit_ in exits:
        own = [e for e in case.last_lines if exit_.worker and worker_of(e) == exit_.worker]
        echoes = [
            e
            for e in case.last_lines
            if e["who"] and e.pid is not None and e.pid == exit_.pid and _may_be_of(exit_, e["who"])
        ]
        for event in own or echoes[: len(echoes) == 1]:
            return (Link(event, f"the last line that {exit_.noun} printed"),)
    return ()


def _may_be_of(exit_: WorkerExit, who: str) -> bool:
    """Whether a console's prefix may name what the process ran last: an actor's prefix is its `repr`."""
    return bool(exit_.actor or not exit_.names or who == exit_.names[-1])


def exit_subject(exit_: WorkerExit) -> Subject:
    """The worker (or the actor in it) that exited."""
    name = exit_.names[-1] if exit_.names else None
    kind, id_ = ("actor", exit_.actor) if exit_.actor else ("worker", exit_.worker)
    return Subject(kind, id_ or None, name, exit_.pid, exit_.node or None)


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Items by a key, in the order of the first item of each group; one pass, as there may be very many."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def worker_of(event: Event) -> str:
    """WorkerID of the process whose file contains this event; empty for other files."""
    return next((e.value for e in event.source.entities if e.kind == "worker"), "")


def exit_of(case: Case, event: Event) -> WorkerExit | None:
    """The recorded exit of the process that wrote an event, by its worker or else by its pid."""
    if worker := worker_of(event):
        return case.exit_of(worker)
    return None if event.pid is None else case.exit_of_process(event.pid, ip=event["ip"])


def is_console(case: Case) -> bool:
    """Whether the capture has no log of the GCS or a raylet, which would record the ends of processes."""
    return case.roles.isdisjoint((*GCS, *RAYLET))


def is_recorded(exit_: WorkerExit) -> bool:
    """Whether a log of the GCS or of a raylet records this exit, with its type and time."""
    return any(event.source.role in (*GCS, *RAYLET) for event in exit_.events)


def unexpected_exits(case: Case, events: Iterable[Event]) -> list[WorkerExit]:
    """The exits of the processes that wrote these events, each once, without expected ones."""
    exits = (exit_of(case, event) for event in events)
    return list({exit_.entity: exit_ for exit_ in exits if exit_ and not exit_.expected}.values())


def last_before(case: Case, event: Event, *kinds: str) -> Event | None:
    """The last event of these kinds before an event of the same file."""
    before = (e for e in case.of(*kinds) if e.source is event.source and e.offset < event.offset)
    return max(before, key=lambda e: e.offset, default=None)


def later_output(case: Case, event: Event, *, is_line: bool = False) -> bool:
    """Whether the driver's output shows the program or its workers at work below an event.

    Lines that report a failure and lines of Ray do not count, nor do other workers' below a worker's.
    `is_line`: whether the record's lines below its first one may be the program's.
    """
    below = event.line if is_line else event.line + event.text.count("\n")
    writers = ("", _writer(event)) if _writer(event) else ()
    return any(
        (output.line > below if output.line else output.offset > event.offset)
        and (not writers or _writer(output) in writers)
        for output in case.outputs.get(event.source.path, ())
    )


def goes_on(case: Case, event: Event, *, is_line: bool = False) -> bool:
    """Whether the program survived an event: its output continues, and does not end with an exception."""
    ended = any(e["ended_by"] for s, e in case.endings.items() if s.path == event.source.path)
    return not ended and later_output(case, event, is_line=is_line)


def outlived(case: Case, event: Event) -> bool:
    """Whether the program's own output shows no failure from a place below an event until its end.

    Other processes' lines reach the driver late: those below a result that ends the output may be older.
    """
    is_late = event.text.startswith("(")
    return any(
        source.path == event.source.path
        and bool(end["quiet_from"])
        and (int(end["quiet_from"]) > event.offset or (is_late and bool(end["is_result"])))
        for source, end in case.endings.items()
    )


def _writer(event: Event) -> str:
    return f"{event['who']} {event.pid}" if event["who"] and event.pid is not None else ""


def is_before(event: Event, other: Event) -> bool:
    """Whether an event is before another: by place in the same file, else by time; false if unknown."""
    if event.source == other.source:
        return event.line < other.line
    return event.at is not None and other.at is not None and event.at <= other.at


def deaths(exits: Iterable[WorkerExit]) -> int:
    """How many workers exited, including those that a folded storm only counts."""
    return sum(exit_.count for exit_ in exits)


def exit_entities(exits: Iterable[WorkerExit]) -> tuple[Entity, ...]:
    """Everything that these exits explain, under every name."""
    return tuple(dict.fromkeys(entity for exit_ in exits for entity in exit_.entities))


def process_entities(events: Iterable[Event]) -> tuple[Entity, ...]:
    """The processes that wrote these lines, as a driver's prefix names them."""
    return tuple(
        dict.fromkeys(Entity("process", f"{e['ip']}/{e.pid}") for e in events if e.pid is not None)
    )


def exit_events(exits: Iterable[WorkerExit]) -> tuple[Event, ...]:
    """Every record of these exits, to be covered."""
    return tuple(event for exit_ in exits for event in exit_.events)


def attempts_covered(case: Case, exits: Iterable[WorkerExit]) -> tuple[Event, ...]:
    """`WorkerCrashedError`s of the driver, if one of these exits may have caused them.

    The exception names neither worker nor task. Every worker's exit is explained separately, so whichever
    of them it was, it is covered.
    """
    if all(e.actor for e in exits):
        return ()
    return tuple(e for e in case.of("driver.exception") if e["type"] == "WorkerCrashedError")


def unreachable_nodes(case: Case) -> tuple[Event, ...]:
    """The dashboard's `Cannot reach the node`: a raylet queries its workers, and a stopped worker blocks it.

    (Seen with Ray 2.9.3 and 2.40, whenever a worker was stopped by SIGSTOP.)
    """
    return tuple(e for e in case.of("log.error") if "Cannot reach the node, " in e.message)


_WORKER_LOST = ("WORKER_DIED", "OUT_OF_MEMORY", "NODE_DIED", "ACTOR_UNAVAILABLE")
_LOOP = 3
"""If one task failed this often, its retry does not count as a recovery."""


def healed(case: Case, exit_: WorkerExit) -> bool:
    """Whether Ray's own retry recovered from this exit, according to the logs.

    An actor recovered if Ray restarted it. A task recovered if its submitter's core log contains a failed
    attempt at that time and no final failure of any such task. Without that log the answer is no.
    """
    if exit_.actor:
        return any(
            e["worker"] == exit_.worker and e["reschedule"] == "1" and e["remaining"] != "0"
            for e in case.actor(exit_.actor).failures
        )
    if not exit_.events:
        return False
    attempts = _lost_attempts(case, exit_)
    return bool(attempts) and not any(e["task"] in case.ledger.tasks for e in attempts)


def _lost_attempts(case: Case, exit_: WorkerExit) -> list[Event]:
    """The attempts of tasks that failed with a lost worker at the time of this exit."""
    near = case.near(exit_.events[0], "task.attempt_failed", before=2, after=3)
    return [e for e in near if e["error"] in _WORKER_LOST]


def recovery(case: Case, exits: Sequence[WorkerExit]) -> str:
    """For a headline: how Ray recovered from all of these exits; empty if it did not, or if no log shows it.

    The logs record a final failure of a task, but not its success. A task that fails again and again has not
    recovered.
    """
    if not exits or not all(healed(case, e) for e in exits):
        return ""
    tries = grouped(case.of("task.attempt_failed"), lambda e: e["task"])
    near = {e["task"] for exit_ in exits if not exit_.actor for e in _lost_attempts(case, exit_)}
    if any(total(tries[task]) >= _LOOP for task in near):
        return ""
    if all(e.actor for e in exits):
        return f"; Ray restarted the actor{'s' if len({e.actor for e in exits}) > 1 else ''}"
    actors = " and restarted the actors" if any(e.actor for e in exits) else ""
    tasks = "task" if deaths(exits) == 1 else "tasks"
    return f"; Ray retried the {tasks}{actors} without a final failure"


def severity(case: Case, exits: Iterable[WorkerExit], normally: Severity = "error") -> Severity:
    """One step lower if a retry recovered from every one of these exits."""
    lower: dict[Severity, Severity] = {
        "critical": "error",
        "error": "warning",
        "warning": "info",
        "info": "info",
    }
    return lower[normally] if all(healed(case, e) for e in exits) else normally


def total(events: Sequence[Event]) -> int:
    """How many records these events stand for."""
    return sum(event.count for event in events)


def last_line(text: str) -> str:
    """The last line that is not blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def last_words(text: str) -> str:
    """The last line with a word: pytest prints `.` or `F` per test, and programs draw rules and bars."""
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next((line for line in lines if _WORD.search(line)), "")
