"""Looks at processes of this machine that may hang: the tables `samples` and `clues`.

`samples` has a row for each process and look: its threads, with their stacks (py-spy) and what the kernel
says of them. `clues` has a row for each process after its last look: whom its sockets lead to, what runs
below it, which locks and which objects it waits for. The processes are looked at side by side; a process is
told by pid and start, and is in no later look once it has ended.

No local of a frame is in a table: locals may be secrets. What is derived of them (ids, addresses) is.

A frame's `whose` is `user`, `library` (site-packages), `python` (the standard library), `ray` or `native`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from raydoctor.model import paste
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
"""Seconds after which a look that is not done tells what it has."""
_FOR_CLUES = 0.3
"""Of the time, for what lies around the processes, which says for whom they wait."""
_LEAST = 0.1
"""Seconds in which at least some are looked around."""
_NO_TIME = "this machine has no time: "
_MORE_TIME = "Give it more: --timeout 60."


def samples(
    processes: Sequence[ProcessToSample],
    options: SampleOptions = _THOROUGH,
    seconds: float = _NO_END,
) -> Iterator[Piece | Gap]:
    """The tables, anew after each look, and while one takes long: what was seen until then.

    In `seconds`, beside the pauses between looks, all is over: what would take longer is left out.
    """
    at = time.time()
    deadline = time.monotonic() + options.pauses + seconds
    subjects = [SampledSubject(each) for each in processes if identify(each) is not None]
    last = options.samples - 1
    for number in range(options.samples):
        if number:
            time.sleep(max(0.0, at + number * options.interval - time.time()))
        left = deadline - _FOR_CLUES * seconds - time.monotonic()
        if number and left <= 0:
            break
        look = partial(SampledSubject.sample, options=options, is_last=number == last)
        of_native = options.native and number == last
        most = min(left, 2 * options.timeout * _rounds(subjects, of_native))
        for _ in _now_and_then(_side_by_side(look, subjects, most, of_native)):
            yield _samples(subjects, at)
    if options.clues:
        left = max(_LEAST, deadline - time.monotonic())
        around = partial(SampledSubject.clues, options=options)
        most = min(left, 2 * options.timeout * _rounds(subjects))
        for found in _now_and_then(_side_by_side(around, subjects, most)):
            yield table("clues", [row for row in found if row], source="proc", at=at)
    yield from _gaps(subjects)
    yield from _unseen(subjects, options)


def _samples(subjects: Sequence[SampledSubject], at: float) -> Piece:
    rows = [row for each in subjects for row in tuple(each.rows)]
    return table("samples", rows, source="py-spy", at=at)


def _now_and_then(found: Iterator[list[T]]) -> Iterator[list[T]]:
    """What there is when it is long ago that anything was told, and at the end."""
    told, have = time.monotonic(), list[T]()
    for have in found:
        if time.monotonic() - told >= _SO_FAR:
            yield have
            told = time.monotonic()
    yield have


def rows(
    processes: Sequence[ProcessToSample], *, variables: bool, native: bool, timeout: float = TIMEOUT
) -> list[Row]:
    """One look at each, for a person: rows of `samples`, with the locals of each frame on wish.

    Locals hold whatever the program holds: they are to be redacted, and kept nowhere.
    """
    subjects = [SampledSubject(each) for each in processes if identify(each) is not None]
    options = SampleOptions(1, native=native, timeout=timeout)
    look = partial(
        SampledSubject.sample, options=options, is_last=True, variables=variables, native=native
    )
    for _ in _side_by_side(look, subjects, 2 * timeout * _rounds(subjects, native), native):
        pass
    return [row for each in subjects for row in tuple(each.rows)]


def _side_by_side(
    do: Callable[[SampledSubject], T],
    subjects: Sequence[SampledSubject],
    seconds: float,
    native: bool = False,
) -> Iterator[list[T]]:
    """What it has given so far, in their order: anew with each, without those that took too long.

    A look mostly waits until the threads of the process stand still, so there are more at a time than
    processors (40 workers on two busy ones: 2.5 s two at a time, 1.0 s eight at a time). To unwind native
    frames keeps a processor busy, and takes 80 MB.
    """
    calls = {f"look-{number}": partial(do, each) for number, each in enumerate(subjects)}
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
    """How many are looked at one after the other."""
    return 1 + len(subjects) // _width(native)


# ------------------------------------------------------------------ gaps


def _gaps(subjects: Sequence[SampledSubject]) -> Iterator[Gap]:
    """Why stacks are missing, each reason once, and what would bring them."""
    reasons: dict[NoStack, list[SampledSubject]] = {}
    for each in subjects:
        if each.no_stack:
            reasons.setdefault(each.no_stack, []).append(each)
    for failed, of in reasons.items():
        pids = ", ".join(str(each.wanted.pid) for each in of[:5]) + (" …" if len(of) > 5 else "")
        hint = fix(failed.cause, of[0].wanted.pid)
        yield Gap(f"the stacks of {pids}", failed.reason, hint, optional=True, about="stacks")


def _unseen(subjects: Sequence[SampledSubject], options: SampleOptions) -> Iterator[Gap]:
    """Who was looked at more rarely than was wished, for want of time."""
    alive = [
        each for each in subjects if len(each.rows) < options.samples and identify(each.wanted)
    ]
    never = [each for each in alive if not each.rows]
    whom = f"of {len(subjects)} processes"
    if never:
        why = f"{_NO_TIME}{whom}, {_were(len(never))} not looked at"
    elif alive:
        why = f"{_NO_TIME}{whom}, {_were(len(alive))} looked at less than {options.samples} times"
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
        return paste.text("Run it as {user}, or with sudo.", user=proc.user(uid))
    if _yama() > 0:
        return "Run it with sudo, or allow it: sudo sysctl -w kernel.yama.ptrace_scope=0"
    return "Run it with sudo; in a container, give that CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)."


def _yama() -> int:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return 0
