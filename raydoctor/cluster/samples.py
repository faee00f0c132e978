"""What was seen of processes that may hang: the rows of the tables `samples`, `clues`, `rests` as values.

A sample is one look at a process: its threads, with their stacks (py-spy) and what the kernel says of each
(`/proc/PID/task/TID`). Clues are what only one look at the end is worth: whom its sockets lead to, what
runs below it, which objects it awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.model.values import Event


class Frame(NamedTuple):
    """One frame of a stack."""

    function: str
    file: str
    """As short as py-spy makes it: `train.py`, `ray/_private/worker.py`; a library of native ones."""
    line: int
    """0 where it is not known, as in native frames."""
    whose: str = ""
    """`user`, `library`, `python`, `ray` or `native`; empty where the look did not tell."""

    @property
    def place(self) -> str:
        """`resample (train.py:31)`."""
        return f"{self.function} ({self.file}:{self.line})" if self.line else self.function


class Thread(NamedTuple):
    """One thread at one look."""

    tid: int
    """The kernel's; of the main thread it is the pid."""
    name: str
    active: bool
    """Whether py-spy found it on a processor."""
    gil: bool
    """Whether it held the interpreter's lock."""
    frames: tuple[Frame, ...]
    """Innermost first; empty where the stack could not be read."""
    state: str = ""
    """The kernel's letter: R, S, D, T, t, Z."""
    wchan: str = ""
    """The kernel's function that it waits in."""
    syscall: int | None = None
    """The number of the call that it is in; None where it runs, or that may not be read."""
    cpu_seconds: float = 0.0
    voluntary: int = 0
    """Times that it gave its processor away by itself."""
    involuntary: int = 0


class Sample(NamedTuple):
    """One look at a process."""

    at: float
    """Epoch seconds."""
    cpu_seconds: float
    """Of all its threads, since its start."""
    threads: tuple[Thread, ...]
    how: str
    """`py-spy`, `py-spy --native`, `proc` (no stack), `faulthandler` …"""
    problem: str
    """Why it is less than it could be, or empty."""
    event: Event
    """The row, for a chain's link."""


class Awaited(NamedTuple):
    """Objects that a thread waits for."""

    tid: int
    call: str
    """`get`, `wait` or `await`."""
    objects: tuple[str, ...]
    """Their ids: the first 48 digits are the task that makes each."""
    untold: int
    """As many more, which could not be read."""
    exact: bool
    """Read from the process; else it is what the process merely holds references to."""


class Rest(NamedTuple):
    """For how long a thread had not run when its process was looked at first."""

    tid: int
    seconds: float
    woken: bool
    """Whether somebody had stopped its process then: by itself it has rested for longer."""
    wakes: float | None = None
    """Seconds until the end of its sleep, where that is known."""


class Process(NamedTuple):
    """One process that was looked at."""

    pid: int
    node: str
    worker: str
    """Its worker id, or empty."""
    title: str
    """`ray::train`."""
    samples: tuple[Sample, ...]
    """Oldest first, at least one."""
    clues: Mapping[str, Any]
    """The row of `clues`: `sockets`, `children`, `files`, `locks`; empty where none was taken."""
    awaits: tuple[Awaited, ...]
    rests: tuple[Rest, ...] = ()
    """Of its threads, where anybody knows."""

    def rest(self, tid: int) -> Rest | None:
        """For how long a thread had not run when it was looked at first."""
        return next((rest for rest in self.rests if rest.tid == tid), None)

    @property
    def last(self) -> Sample:
        """The newest look."""
        return self.samples[-1]

    @property
    def cpu_share(self) -> float | None:
        """Processors that it used between the first look and the last; None of one look."""
        first, last = self.samples[0], self.samples[-1]
        seconds = last.at - first.at
        return (last.cpu_seconds - first.cpu_seconds) / seconds if seconds > 0 else None


def processes(case: Case) -> list[Process]:
    """Those that were looked at, in the order of the rows."""
    looks: dict[tuple[str, int], list[Event]] = {}
    for event in live.rows(case, "samples"):
        looks.setdefault((event["node_id"], event.pid or 0), []).append(event)
    clues = {(event["node_id"], event.pid or 0): event for event in live.rows(case, "clues")}
    rests = {(event["node_id"], event.pid or 0): event for event in live.rows(case, "rests")}
    return [_process(looks[key], clues.get(key), rests.get(key)) for key in looks]


def _process(events: list[Event], clue: Event | None, rest: Event | None) -> Process:
    samples = sorted((_sample(event) for event in events), key=lambda sample: sample.at)
    first = events[0]
    return Process(
        first.pid or 0,
        first["node_id"],
        first["worker_id"],
        first["title"],
        tuple(samples),
        {name: _clue(live.value(clue, name)) for name in clue.fields} if clue else {},
        tuple(_awaited(clue)) if clue else (),
        tuple(_rests(rest)) if rest else (),
    )


def _clue(told: object) -> Any:
    """A value of `clues`: a row or a list of rows, whose columns have the types of `_COLUMNS`."""
    if isinstance(told, list):
        return [_clue_row(row) for row in live.records_of(told)]
    return _clue_row(told) if isinstance(told, dict) else told


def _clue_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _COLUMNS.get(name, _scalar)(told) for name, told in row.items()}


def _scalar(told: object) -> object:
    return None if isinstance(told, (list, dict)) else told


def _wholes(told: object) -> list[int]:
    given = told if isinstance(told, list) else []
    return [number for each in given if (number := live.whole_of(each)) is not None]


_COLUMNS: Mapping[str, Callable[[object], object]] = {
    **dict.fromkeys(("pid", "tid", "holder_tid", "holder_pid", "line"), live.whole_of),
    **dict.fromkeys(("tids", "held_by"), _wholes),
    "rested_s": live.number_of,
    "seen_in": lambda told: [_clue_row(row) for row in live.records_of(told)],
}
"""Columns of the rows of `clues` that are no texts."""


def _rests(row: Event) -> Iterable[Rest]:
    for each in live.records(row, "threads"):
        if (rested := live.number_of(each.get("rested_s"))) is not None:
            wakes = live.number_of(each.get("wakes_s"))
            yield Rest(_whole(each.get("tid")), rested, bool(each.get("woken")), wakes)


def _sample(event: Event) -> Sample:
    return Sample(
        live.number(event, "at") or event.at or 0.0,
        live.number(event, "cpu_seconds") or 0.0,
        tuple(thread(each) for each in live.records(event, "threads")),
        event["how"],
        event["problem"],
        event,
    )


def thread(row: Mapping[str, Any]) -> Thread:
    """A thread of its row, whatever that lacks."""
    return Thread(
        _whole(row.get("tid")),
        str(row.get("name") or ""),
        bool(row.get("active")),
        bool(row.get("gil")),
        tuple(_frames(row.get("frames"))),
        str(row.get("state") or ""),
        str(row.get("wchan") or ""),
        None if row.get("syscall") is None else _whole(row["syscall"]),
        _number(row.get("cpu_seconds")),
        _whole(row.get("voluntary")),
        _whole(row.get("involuntary")),
    )


def _frames(told: object) -> Iterable[Frame]:
    for each in live.records_of(told):
        yield Frame(
            live.text_of(each.get("function")),
            live.text_of(each.get("file")),
            _whole(each.get("line")),
            live.text_of(each.get("whose")),
        )


def _awaited(clue: Event) -> Iterable[Awaited]:
    for each in live.records(clue, "awaits"):
        yield Awaited(
            _whole(each.get("tid")),
            live.text_of(each.get("call")) or "get",
            tuple(live.texts_of(each.get("objects"))),
            _whole(each.get("untold")),
            bool(each.get("exact")),
        )


def _number(told: object) -> float:
    return live.number_of(told) or 0.0


def _whole(told: object) -> int:
    return live.whole_of(told) or 0
