"""Samples of processes that may hang: the rows of the tables `samples`, `clues`, `rests` as values.

A sample is a snapshot of a process: its threads, their stacks (py-spy) and the kernel's state of each
(`/proc/PID/task/TID`). Clues are collected once, at the end: the peers of its sockets, its child processes,
and the objects that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.model.text import called
from raydoctor.model.values import Event


class SampledFrame(NamedTuple):
    """One frame of a stack."""

    function: str
    file: str
    """Shortened by py-spy: `train.py`, `ray/_private/worker.py`; the library of a native frame."""
    line: int
    """0 if unknown, as in native frames."""
    whose: str = ""
    """`user`, `library`, `python`, `ray` or `native`; empty if the sample does not contain it."""

    @property
    def place(self) -> str:
        """`resample() (train.py:31)`; a native frame has no line."""
        return f"{called(self.function)} ({self.file}:{self.line})" if self.line else self.function


class SampledThread(NamedTuple):
    """One thread in one sample."""

    tid: int
    """The kernel's thread id; the main thread's is the pid."""
    name: str
    active: bool
    """Whether py-spy found it running on a CPU."""
    gil: bool
    """Whether it held the interpreter's lock."""
    frames: tuple[SampledFrame, ...]
    """Innermost first; empty if the stack could not be read."""
    state: str = ""
    """The kernel's state letter: R, S, D, T, t, Z."""
    wchan: str = ""
    """The kernel function that it waits in."""
    syscall: int | None = None
    """The number of its system call; None if it is running or the number is not readable."""
    cpu_seconds: float = 0.0
    voluntary: int = 0
    """Voluntary context switches."""
    involuntary: int = 0


class Sample(NamedTuple):
    """One sample of a process."""

    at: float
    """Epoch seconds."""
    cpu_seconds: float
    """CPU time of all its threads since its start."""
    threads: tuple[SampledThread, ...]
    how: str
    """`py-spy`, `py-spy --native`, `proc` (no stack), `faulthandler` …"""
    problem: str
    """Why the sample is incomplete, or empty."""
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
    """Number of further objects whose ids could not be read."""
    exact: bool
    """Whether they were read from the process; otherwise they are objects that it holds references to."""


class Rest(NamedTuple):
    """How long a thread had been idle when its process was first sampled."""

    tid: int
    seconds: float
    woken: bool
    """Whether its process had just been stopped and continued, so that it had been idle for longer."""
    wakes: float | None = None
    """Seconds until the end of its sleep or of its wait for descriptors, if known."""
    is_endless: bool = False
    """Whether it waits for descriptors without a timeout: its event loop has no timer."""


class SampledProcess(NamedTuple):
    """One sampled process."""

    pid: int
    node: str
    worker: str
    """Its worker id, or empty."""
    title: str
    """`ray::train`."""
    samples: tuple[Sample, ...]
    """Oldest first, at least one."""
    clues: Mapping[str, Any]
    """The row of `clues`: `sockets`, `children`, `files`, `locks`; empty if there is none."""
    awaits: tuple[Awaited, ...]
    rests: tuple[Rest, ...] = ()
    """Idle times of its threads, if known."""

    def rest(self, tid: int) -> Rest | None:
        """The idle time of a thread at the first sample, if known."""
        return next((rest for rest in self.rests if rest.tid == tid), None)

    @property
    def last(self) -> Sample:
        """The newest sample."""
        return self.samples[-1]

    @property
    def cpu_share(self) -> float | None:
        """CPUs that it used between the first sample and the last; None if there is only one."""
        first, last = self.samples[0], self.samples[-1]
        seconds = last.at - first.at
        return (last.cpu_seconds - first.cpu_seconds) / seconds if seconds > 0 else None


def processes(case: Case) -> list[SampledProcess]:
    """Every sampled process, in the order of the rows."""
    samples: dict[tuple[str, int], list[Event]] = {}
    for event in live.rows(case, "samples"):
        samples.setdefault((event["node_id"], event.pid or 0), []).append(event)
    clues = {(event["node_id"], event.pid or 0): event for event in live.rows(case, "clues")}
    rests = {(event["node_id"], event.pid or 0): event for event in live.rows(case, "rests")}
    return [_process(samples[key], clues.get(key), rests.get(key)) for key in samples]


def _process(events: list[Event], clue: Event | None, rest: Event | None) -> SampledProcess:
    samples = sorted((_sample(event) for event in events), key=lambda sample: sample.at)
    first = events[0]
    return SampledProcess(
        first.pid or 0,
        first["node_id"],
        first["worker_id"],
        first["title"],
        tuple(samples),
        {name: _clue(live.value(clue, name)) for name in clue.fields} if clue else {},
        tuple(_awaited(clue)) if clue else (),
        tuple(_rests(rest)) if rest else (),
    )


def _clue(value: object) -> Any:
    """A value of `clues`: a row or a list of rows, whose columns have the types of `_COLUMNS`."""
    if isinstance(value, list):
        return [_clue_row(row) for row in live.records_of(value)]
    return _clue_row(value) if isinstance(value, dict) else value


def _clue_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _COLUMNS.get(name, _scalar)(value) for name, value in row.items()}


def _scalar(value: object) -> object:
    return None if isinstance(value, (list, dict)) else value


def _wholes(value: object) -> list[int]:
    items = value if isinstance(value, list) else []
    return [number for each in items if (number := live.whole_of(each)) is not None]


_COLUMNS: Mapping[str, Callable[[object], object]] = {
    **dict.fromkeys(("pid", "tid", "holder_tid", "holder_pid", "line"), live.whole_of),
    **dict.fromkeys(("tids", "held_by"), _wholes),
    "rested_s": live.number_of,
    "seen_in": lambda value: [_clue_row(row) for row in live.records_of(value)],
}
"""Columns of the rows of `clues` that are not text."""


def _rests(row: Event) -> Iterable[Rest]:
    for each in live.records(row, "threads"):
        if (rested := live.number_of(each.get("rested_s"))) is not None:
            wakes = live.number_of(each.get("wakes_s"))
            endless = "wakes_s" in each and each["wakes_s"] is None
            yield Rest(_whole(each.get("tid")), rested, bool(each.get("woken")), wakes, endless)


def _sample(event: Event) -> Sample:
    return Sample(
        live.number(event, "at") or event.at or 0.0,
        live.number(event, "cpu_seconds") or 0.0,
        tuple(thread(each) for each in live.records(event, "threads")),
        event["how"],
        event["problem"],
        event,
    )


def thread(row: Mapping[str, Any]) -> SampledThread:
    """A thread from its row, with defaults for missing values."""
    return SampledThread(
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


def _frames(value: object) -> Iterable[SampledFrame]:
    for each in live.records_of(value):
        yield SampledFrame(
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


def _number(value: object) -> float:
    return live.number_of(value) or 0.0


def _whole(value: object) -> int:
    return live.whole_of(value) or 0
