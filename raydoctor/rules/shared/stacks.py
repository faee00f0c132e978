"""What a worker is doing, from a stack that `py-spy dump` or `ray stack` printed.

A thread's header contains its state: `active+gil` runs Python code, `active` runs native code without the lock, `idle`
waits in a call. Frames are `function (file.py:12)`, innermost first. With `--native` the C functions precede them
(py-spy 0.4). `raydoctor.waits` classifies them, as it does for live samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.cluster import samples
from raydoctor.cluster.samples import SampledFrame
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event
from raydoctor.waits.kinds import kind
from raydoctor.waits.kinds.catalog import Kind

PRINTED = Signal(
    "stack.printed", "Timeout (0:",
    r"^Timeout \(0:\d\d:\d\d(?:\.\d+)?\)!\n(?:Current t|T)hread 0x[0-9a-f]+", ("worker-err",),
    'Timeout (0:01:00)!\nThread 0x00007f3b78275700 (most recent call first):\n  File "/home/user/project/train.py", line 31 in resample\n'
    '  File "/home/user/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 947 in main_loop', extent="record",
)  # fmt: skip
"""Output of `faulthandler.dump_traceback_later(60)` (its format is in CPython's `traceback.c` and `faulthandler.c`)."""

_PRINTED_THREAD = pattern(
    r"^(?:Current t|T)hread (?P<id>0x[0-9a-f]+)[^\n]*\(most recent call first\):\n(?P<frames>(?:[ \t]+File .*\n?)*)",
    re.MULTILINE,
)
_PRINTED_FRAME = pattern(
    r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d{1,20}) in (?P<function>.+)$'
)
_THREAD = pattern(
    r'^Thread (?P<id>\S+) \((?P<state>[\w+ ]+)\)(?:: "(?P<name>[^"]*)")?\n(?P<frames>(?:[ \t]+.*\n?)*)', re.MULTILINE
)  # fmt: skip
EVENT_LOOP = kind.EVENT_LOOP
_FRAME = pattern(
    r"^\s{1,20}(?P<function>\S.{0,1000}?) \((?P<file>[^()]+?)(?::(?P<line>\d{1,20}))?\)$"
)


class DumpedThread(NamedTuple):
    """One thread of a dump."""

    name: str
    state: str
    """`active+gil`, `active`, `idle`; empty if the dump does not contain it."""
    frames: tuple[SampledFrame, ...]

    @property
    def sample(self) -> samples.SampledThread:
        """The same thread as a live sample has it."""
        is_active, has_gil = "active" in self.state, "gil" in self.state
        return samples.SampledThread(0, self.name, is_active, has_gil, self.frames)

    @property
    def user(self) -> SampledFrame | None:
        """The innermost frame of user code."""
        return kind.user_frame(self.frames)

    @property
    def doing(self) -> tuple[Kind, str]:
        """(kind, summary): what the thread is doing, in general terms."""
        done = kind.doing_of(self.sample)
        return done.kind, done.plain.summary

    @property
    def words(self) -> str:
        """What it is doing, as exactly as its stack shows: `waits for an item of a queue`."""
        return kind.doing_of(self.sample).activity.summary


class StackDump(NamedTuple):
    """The stack of one process at one moment."""

    pid: int
    title: str
    threads: tuple[DumpedThread, ...]
    event: Event

    @property
    def is_worker(self) -> bool:
        """Whether it is a Ray worker that is not idle; the title of an idle one is `ray::IDLE`."""
        return self.title.startswith("ray::") and not self.title.startswith("ray::IDLE")

    @property
    def name(self) -> str:
        """The task or actor method that gave the process its title."""
        return self.title.removeprefix("ray::").split()[0].removesuffix("()") if self.title else ""

    @property
    def main(self) -> DumpedThread | None:
        """The thread that runs plain tasks and methods."""
        return next((t for t in self.threads if t.name == "MainThread"), None)

    @property
    def busy(self) -> DumpedThread | None:
        """The thread in user code: the main one or one of a threaded actor, but not an event loop."""
        ordered = sorted(self.threads, key=lambda t: t.name != "MainThread")
        own = (t for t in ordered if t.user is not None and not t.name.startswith(EVENT_LOOP))
        return next((t for t in own if not kind.is_background(t.sample)), None)


def dumps(case: Case) -> list[StackDump]:
    """Every stack in the capture, in the order of its files."""
    taken = [
        StackDump(event.pid or 0, event["title"], tuple(_threads(event.message)), event)
        for event in case.of("stack.dump")
    ]
    return taken + [_printed(case, event) for event in case.of("stack.printed")]


def _printed(case: Case, event: Event) -> StackDump:
    """A stack that a worker printed itself; the main thread is the one in Ray's main loop."""
    worker = evidence.worker_of(event)
    names = case.names.get(worker, ())
    threads = []
    for match in _PRINTED_THREAD.finditer(event.message):
        lines = (_PRINTED_FRAME.match(line) for line in match["frames"].splitlines())
        frames = tuple(SampledFrame(f["function"], f["file"], int(f["line"])) for f in lines if f)
        main = any(f.function == "main_loop" for f in frames)
        threads.append(DumpedThread("MainThread" if main else match["id"], "", frames))
    return StackDump(
        event.pid or 0, f"ray::{names[-1] if names else 'task'}", tuple(threads), event
    )


def _threads(text: str) -> Iterator[DumpedThread]:
    for match in _THREAD.finditer(text):
        frames = [f for line in match["frames"].splitlines() if (f := _FRAME.match(line))]
        yield DumpedThread(
            match["name"] or "",
            match["state"],
            tuple(SampledFrame(f["function"], f["file"], int(f["line"] or 0)) for f in frames),
        )
