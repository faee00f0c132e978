"""Samples processes of this machine that may be hung: the tables `samples` and `clues`.

`samples` has a row for each process and sample: its threads with their stacks (py-spy) and the kernel's data.
`clues` has a row for each process after its last sample: the peers of its sockets, its children, the locks
and objects that it waits for. The processes are sampled in parallel. A process is identified by pid and start
time, and is not sampled again once it has ended.

The tables contain no locals, which may be secrets, only ids and addresses derived from them.

A frame's `whose` is `user`, `library` (site-packages), `python` (the standard library), `ray` or `native`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from raydoctor.model.values import Gap
from raydoctor.observe.collector.parallel import parallel
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.processes import proc
from raydoctor.observe.stacks.pyspy import Cause
from raydoctor.observe.stacks.subject import (
    TIMEOUT,
    NoStack,
    ProcessToSample,
    Row,
    SampledSubject,
    SampleOptions,
    identify,
)

__all__ = ["TIMEOUT", "ProcessToSample", "Row", "SampleOptions", "fix", "rows", "samples"]

T = TypeVar("T")
_AT_ONCE = 32
_NO_END = 1e6
_THOROUGH = SampleOptions()
_SO_FAR = 1.0
"""Seconds after which an unfinished round yields its partial result."""
_FOR_CLUES = 0.3
"""Share of the time reserved for the clues, which show what the processes wait for."""
_LEAST = 0.1
"""Fewest seconds for the clues."""
_NO_TIME = "this machine is overloaded: "
_MORE_TIME = "Allow more time: --timeout 60."


def samples(
    processes: Sequence[ProcessToSample],
    options: SampleOptions = _THOROUGH,
    seconds: float = _NO_END,
) -> Iterator[Piece | Gap]:
    """The tables, updated after each round of samples and, in a slow round, with its partial result.

    It ends after `seconds` plus the pauses between samples; what would take longer is left out.
    """
    at, began = time.time(), time.monotonic()
    deadline = began + options.pauses + seconds
    subjects = [SampledSubject(each) for each in processes if identify(each) is not None]
    last = options.samples - 1
    for number in range(options.samples):
        if number:
            time.sleep(max(0.0, began + number * options.interval - time.monotonic()))
        left = deadline - _FOR_CLUES * seconds - time.monotonic()
        if number and left <= 0:
            break
        sample = partial(SampledSubject.sample, options=options, is_last=number == last)
        of_native = options.native and number == last
        most = min(left, 2 * options.timeout * _rounds(subjects, of_native))
        for _ in _now_and_then(_in_parallel(sample, subjects, most, of_native)):
            yield _samples(subjects, at)
    if options.clues:
        left = max(_LEAST, deadline - time.monotonic())
        clues = partial(SampledSubject.clues, options=options)
        most = min(left, 2 * options.timeout * _rounds(subjects))
        found: list[Row | None] = []
        for found in _now_and_then(_in_parallel(clues, subjects, most)):
            yield table("clues", [row for row in found if row], source="proc", at=at)
        searched = {row["pid"] for row in found if row}
        late = [s for s in subjects if s.rows and s.wanted.pid not in searched]
        if number := sum(identify(each.wanted) is not None for each in late):
            why = f"{_NO_TIME}the search did not end in time for {number} of {len(subjects)} processes"
            yield Gap("what processes wait for", why, _MORE_TIME, optional=True, about="stacks")
    yield from _gaps(subjects)
    yield from _incomplete(subjects, options)


def _samples(subjects: Sequence[SampledSubject], at: float) -> Piece:
    rows = [row for each in subjects for row in tuple(each.rows)]
    return table("samples", rows, source="py-spy", at=at)


def _now_and_then(found: Iterator[list[T]]) -> Iterator[list[T]]:
    """The last partial result once per `_SO_FAR` seconds, and the final one."""
    yielded, latest = time.monotonic(), list[T]()
    for latest in found:
        if time.monotonic() - yielded >= _SO_FAR:
            yield latest
            yielded = time.monotonic()
    yield latest


def rows(
    processes: Sequence[ProcessToSample], *, variables: bool, native: bool, timeout: float = TIMEOUT
) -> list[Row]:
    """One sample of each, to be shown: rows of `samples`, if requested with the locals of each frame.

    Locals may contain secrets: the caller must redact them and not store them.
    """
    subjects = [SampledSubject(each) for each in processes if identify(each) is not None]
    options = SampleOptions(1, native=native, timeout=timeout)
    sample = partial(
        SampledSubject.sample, options=options, is_last=True, variables=variables, native=native
    )
    for _ in _in_parallel(sample, subjects, 2 * timeout * _rounds(subjects, native), native):
        pass
    return [row for each in subjects for row in tuple(each.rows)]


def _in_parallel(
    do: Callable[[SampledSubject], T],
    subjects: Sequence[SampledSubject],
    seconds: float,
    native: bool = False,
) -> Iterator[list[T]]:
    """The results so far, in the subjects' order, after each new one; those that take too long are left out.

    A sample mostly waits until the threads of the process have stopped, so more run in parallel than there
    are processors (40 workers on two busy processors: 2.5 s two at a time, 1.0 s eight at a time). Unwinding
    native frames is CPU-bound and takes 80 MB.
    """
    calls = {f"sample-{number}": partial(do, each) for number, each in enumerate(subjects)}
    results: dict[str, T] = {}
    for name, outcome in parallel(calls, seconds, _width(native)):
        if isinstance(outcome, Exception):
            raise outcome
        results[name] = outcome
        yield [results[each] for each in calls if each in results]


def _width(native: bool) -> int:
    width = max(2, os.cpu_count() or 1)
    return width if native else min(4 * width, _AT_ONCE)


def _rounds(subjects: Sequence[SampledSubject], native: bool = False) -> int:
    """How many are sampled one after the other."""
    return 1 + len(subjects) // _width(native)


# ------------------------------------------------------------------ gaps


def _gaps(subjects: Sequence[SampledSubject]) -> Iterator[Gap]:
    """Why stacks are missing, each reason once, with its fix."""
    reasons: dict[NoStack, list[SampledSubject]] = {}
    for each in subjects:
        if each.no_stack:
            reasons.setdefault(each.no_stack, []).append(each)
    for failed, of in reasons.items():
        pids = ", ".join(str(each.wanted.pid) for each in of[:5]) + (" …" if len(of) > 5 else "")
        hint = fix(failed.cause, of[0].wanted.pid)
        yield Gap(f"the stacks of {pids}", failed.reason, hint, optional=True, about="stacks")


def _incomplete(subjects: Sequence[SampledSubject], options: SampleOptions) -> Iterator[Gap]:
    """A gap if processes have fewer samples than requested, for lack of time."""
    alive = [
        each for each in subjects if len(each.rows) < options.samples and identify(each.wanted)
    ]
    never = [each for each in alive if not each.rows]
    all_ = f"of {len(subjects)} processes"
    if never:
        why = f"{_NO_TIME}{all_}, {_were(len(never))} not sampled"
    elif alive:
        why = f"{_NO_TIME}{all_}, {_were(len(alive))} sampled fewer than {options.samples} times"
    else:
        return
    yield Gap("the stacks of workers", why, _MORE_TIME, optional=True, about="stacks")


def _were(number: int) -> str:
    return f"{number} was" if number == 1 else f"{number} were"


def fix(cause: Cause, pid: int) -> str:
    """What to do if a process has no stack for this reason; empty if nothing is known to help."""
    if cause == "missing":
        return "Install it for the Python that runs raydoctor: pip install py-spy"
    if cause != "forbidden":
        return ""
    uid = proc.owner(pid)
    if uid is not None and uid != os.geteuid():
        return proc.needs_sudo([uid])
    if _yama() > 0:
        return "Run it with sudo, or permit it: sudo sysctl -w kernel.yama.ptrace_scope=0"
    return (
        "Run it with sudo; a container also needs CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)."
    )


def _yama() -> int:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return 0
