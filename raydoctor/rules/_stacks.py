"""What a stack says a worker does: the shapes that `py-spy dump` and `ray stack` print.

A thread's header holds its state: `active+gil` runs Python code, `active` runs native code without the
lock, `idle` waits in a call. Frames are `function (file.py:12)`, innermost first. With `--native` the C
functions stand above them. (py-spy 0.4, measured on workers of Ray 2.60 that hung in eleven ways.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from raydoctor._pattern import pattern
from raydoctor.case import Case
from raydoctor.model import Event
from raydoctor.rule import Signal

PRINTED = Signal(
    "stack.printed", "Timeout (0:",
    r"^Timeout \(0:\d\d:\d\d(?:\.\d+)?\)!\n(?:Current t|T)hread 0x[0-9a-f]+", ("worker-err",),
    'Timeout (0:01:00)!\nThread 0x00007f3b78275700 (most recent call first):\n  File "/home/user/project/train.py", line 31 in resample\n'
    '  File "/home/user/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 947 in main_loop', extent="record",
)  # fmt: skip
"""What `faulthandler.dump_traceback_later(60)` prints (its format in CPython's `traceback.c` and `faulthandler.c`)."""

_PRINTED_THREAD = pattern(
    r"^(?:Current t|T)hread (?P<id>0x[0-9a-f]+)[^\n]*\(most recent call first\):\n(?P<frames>(?:[ \t]+File .*\n?)*)",
    re.MULTILINE,
)
_PRINTED_FRAME = pattern(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_INSTALLED = pattern(r"^.*/(?:site-packages|lib/python3\.\d+)/")
_THREAD = pattern(
    r'^Thread (?P<id>\S+) \((?P<state>[\w+ ]+)\)(?:: "(?P<name>[^"]*)")?\n(?P<frames>(?:[ \t]+.*\n?)*)', re.MULTILINE
)  # fmt: skip
_FRAME = pattern(r"^\s+(?P<function>.+?) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)$")


def _native(names: str) -> str:
    """C functions, as `--native` shows them: in a library or the interpreter, not in a `.py` file."""
    return rf"^\s*_*(?:{names})\w* \((?!.*\.py)"


_WAITS: tuple[tuple[str, str, str], ...] = (
    ("debugger", r"wait_for_client|_RemotePdb|listen \(ray/util/rpdb|set_trace \(ray/util/(?:debugpy|rpdb)", "waits for a debugger"),
    ("ray-get", r"get_objects \(.*ray/_private/worker\.py", "waits in ray.get"),
    ("ray-get", r"\bwait \(.*ray/_private/worker\.py", "waits in ray.wait"),
    ("collective", rf"torch/distributed|ray/util/collective|{_native('nccl')}", "waits in a collective operation"),
    ("subprocess", rf"\(.*\bsubprocess\.py|{_native('wait4|waitpid')}", "waits for a subprocess"),
    ("socket", rf"\((?:.*/)?(?:socket|ssl|http/client)\.py|\(.*\burllib3/|{_native('recv|poll|connect|accept')}", "waits for a socket"),
    ("lock", rf"\((?:.*/)?(?:threading|queue)\.py|{_native('PyThread_acquire_lock|pthread_cond|futex')}", "waits for a lock"),
    ("sleep", _native("time_sleep|clock_nanosleep|nanosleep"), "sleeps"),
)  # fmt: skip
"""(kind, what the innermost frames look like, words); the first that fits."""
_OWN = pattern(r"^(?:.*/)?(?:ray/(?:_private|util|actor|remote_function|serve/_private)|threading|asyncio|selectors|subprocess|socket|ssl|queue|concurrent|http|urllib3|torch|debugpy|_pydev\w*|pydev\w*)[/.]")  # fmt: skip
_INNERMOST = 4
EVENT_LOOP = "AsyncIO Thread"
"""How Ray calls the threads that run an async actor's coroutines."""


class Frame(NamedTuple):
    """One Python frame."""

    function: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """`resample (train.py:31)`."""
        return f"{self.function} ({self.file}:{self.line})"


class Thread(NamedTuple):
    """One thread of a dump."""

    name: str
    state: str
    frames: tuple[Frame, ...]
    text: str

    @property
    def user(self) -> Frame | None:
        """The innermost frame that is neither Ray's nor of the standard library's waiting functions."""
        return next((f for f in self.frames if f.line and not _OWN.match(f.file)), None)

    @property
    def doing(self) -> tuple[str, str]:
        """(kind, words): what the thread does."""
        innermost = "\n".join(self.text.splitlines()[:_INNERMOST])
        for kind, frames, words in _WAITS:
            if re.search(frames, innermost, re.MULTILINE):
                return kind, words
        if "gil" in self.state and "active" in self.state:
            return "python-loop", "runs Python code"
        if "gil" in self.state:
            return "native-gil", "waits in native code that holds the interpreter's lock"
        if "active" in self.state:
            return "native", "runs native code"
        return "unknown", "waits in a call (a lock, a sleep, a file or a socket)"


class Dump(NamedTuple):
    """The stack of one process at one moment."""

    pid: int
    title: str
    threads: tuple[Thread, ...]
    event: Event

    @property
    def is_worker(self) -> bool:
        """Whether it is a Ray worker with something to do; an idle one is called `ray::IDLE`."""
        return self.title.startswith("ray::") and not self.title.startswith("ray::IDLE")

    @property
    def name(self) -> str:
        """What Ray had called the process after: a task, or an actor's method."""
        return self.title.removeprefix("ray::").split()[0].removesuffix("()") if self.title else ""

    @property
    def main(self) -> Thread | None:
        """The thread that runs plain tasks and methods."""
        return next((t for t in self.threads if t.name == "MainThread"), None)

    @property
    def busy(self) -> Thread | None:
        """The thread in a user's function: the main one, or one of an actor with several; no event loop's."""
        ordered = sorted(self.threads, key=lambda t: t.name != "MainThread")
        own = (t for t in ordered if t.user is not None and not t.name.startswith(EVENT_LOOP))
        return next(own, None)


def dumps(case: Case) -> list[Dump]:
    """Every stack in the capture, in the order of its files."""
    taken = [
        Dump(event.pid or 0, event["title"], tuple(_threads(event.message)), event)
        for event in case.of("stack.dump")
    ]
    return taken + [_printed(case, event) for event in case.of("stack.printed")]


def _printed(case: Case, event: Event) -> Dump:
    """A stack that a worker printed itself; the main thread is the one in Ray's main loop."""
    worker = next((e.value for e in event.source.entities if e.kind == "worker"), "")
    names = case.names.get(worker, ())
    threads = []
    for match in _PRINTED_THREAD.finditer(event.message):
        told = (_PRINTED_FRAME.match(line) for line in match["frames"].splitlines())
        frames = tuple(
            Frame(f["function"], _INSTALLED.sub("", f["file"]), int(f["line"])) for f in told if f
        )
        main = any(f.function == "main_loop" for f in frames)
        text = "\n".join(f"    {f.place}" for f in frames)
        threads.append(Thread("MainThread" if main else match["id"], "", frames, text))
    return Dump(event.pid or 0, f"ray::{names[-1] if names else 'task'}", tuple(threads), event)


def _threads(text: str) -> Iterator[Thread]:
    for match in _THREAD.finditer(text):
        frames = [f for line in match["frames"].splitlines() if (f := _FRAME.match(line))]
        yield Thread(
            match["name"] or "",
            match["state"],
            tuple(Frame(f["function"], f["file"], int(f["line"] or 0)) for f in frames),
            match["frames"],
        )
