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
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from raydoctor.collect import proc
from raydoctor.collect._subject import HOPELESS, TIMEOUT, Manner, Row, Subject, Wanted, identify
from raydoctor.collect.parallel import parallel
from raydoctor.collect.table import Piece, table
from raydoctor.model import Gap

__all__ = ["TIMEOUT", "Manner", "Row", "Wanted", "fix", "rows", "samples"]

T = TypeVar("T")
_AT_ONCE = 32
_THOROUGH = Manner()


def samples(processes: Sequence[Wanted], manner: Manner = _THOROUGH) -> Iterator[Piece | Gap]:
    """The tables, anew after each look: whoever runs out of time has what was seen until then."""
    at = time.time()
    subjects = [Subject(each) for each in processes if identify(each) is not None]
    last = manner.looks - 1
    for number in range(manner.looks):
        if number:
            time.sleep(max(0.0, at + number * manner.every - time.time()))
        look = partial(Subject.look, manner=manner, is_last=number == last)
        _side_by_side(look, subjects, manner.timeout, manner.native and number == last)
        rows = [row for each in subjects for row in each.rows]
        yield table("samples", rows, source="py-spy", at=at)
    if manner.clues:
        found = _side_by_side(partial(Subject.clues, manner=manner), subjects, manner.timeout)
        yield table("clues", [row for row in found if row], source="proc", at=at)
    yield from _gaps(subjects)


def rows(
    processes: Sequence[Wanted], *, variables: bool, native: bool, timeout: float = TIMEOUT
) -> list[Row]:
    """One look at each, for a person: rows of `samples`, with the locals of each frame on wish.

    Locals hold whatever the program holds: they are to be redacted, and kept nowhere.
    """
    subjects = [Subject(each) for each in processes if identify(each) is not None]
    manner = Manner(1, native=native, timeout=timeout)

    def seen(subject: Subject) -> list[Row]:
        subject.look(manner, is_last=True, variables=variables, native=native)
        return subject.rows

    return [row for rows in _side_by_side(seen, subjects, timeout, native) for row in rows]


def _side_by_side(
    do: Callable[[Subject], T], subjects: Sequence[Subject], timeout: float, native: bool = False
) -> list[T]:
    """What it gives for each, in their order; without those that took too long.

    A look mostly waits until the threads of the process stand still, so there are more at a time than
    processors (40 workers on two busy ones: 2.5 s two at a time, 1.0 s eight at a time). To unwind native
    frames keeps a processor busy, and takes 80 MB.
    """
    waiting: queue.SimpleQueue[tuple[int, Subject]] = queue.SimpleQueue()
    for item in enumerate(subjects):
        waiting.put(item)
    results: dict[int, T] = {}

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                number, subject = waiting.get_nowait()
                results[number] = do(subject)

    width = max(2, os.cpu_count() or 1)
    count = min(len(subjects), width if native else min(4 * width, _AT_ONCE))
    calls = dict.fromkeys((f"look-{n}" for n in range(count)), work)
    rounds = 1 + len(subjects) // max(1, count)
    for _, outcome in parallel(calls, 2 * timeout * rounds):
        if isinstance(outcome, Exception):
            raise outcome
    return [results[number] for number in sorted(results)]


# ------------------------------------------------------------------ gaps


def _gaps(subjects: Sequence[Subject]) -> Iterator[Gap]:
    """Why stacks are missing, each reason once, and what would bring them."""
    reasons: dict[str, list[Subject]] = {}
    for each in subjects:
        if each.refusal:
            reasons.setdefault(each.refusal, []).append(each)
    for reason, of in reasons.items():
        pids = ", ".join(str(each.wanted.pid) for each in of[:5]) + (" …" if len(of) > 5 else "")
        yield Gap(f"the stacks of {pids}", reason, fix(reason, of[0].wanted.pid), optional=True)


def fix(reason: str, pid: int) -> str:
    """What to do where a process could not be looked at."""
    if reason == HOPELESS:
        return "Install it for the Python that runs raydoctor: pip install py-spy"
    if reason != "permission denied":
        return ""
    uid = proc.owner(pid)
    if uid is not None and uid != os.geteuid():
        return f"Run it as {proc.user(uid)}, or with sudo."
    if _yama() > 0:
        return "Run it with sudo, or allow it: sudo sysctl -w kernel.yama.ptrace_scope=0"
    return "Run it with sudo; in a container, give that CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)."


def _yama() -> int:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return 0
