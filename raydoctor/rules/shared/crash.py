"""Crash reports of one process: signal, native symbol, Python stack, and the message before them.

A crash leaves up to three records: Ray's failure handler (abseil) in the core log and in `.err`, Python's faulthandler
in `.err`, and before both the message of the code that called `abort()`. Order and texts come from sessions of Ray 2.9.3
and 2.60 (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, `Py_FatalError`, an uncaught C++ exception). The wheels of all five
versions contain the abseil format string.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.model import ids
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event
from raydoctor.rules.shared.cluster import is_fatal
from raydoctor.rules.shared.traceback import TracebackFrame

_CORE = ("core-worker", "core-driver", "core-io")
_OUTPUT = ("worker-err", "io-worker", "worker-echo", *DRIVER)
_STACK = (
    'Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n  File "/app/decode.py", line 32 in brightness\n'
    "\nExtension modules: msgpack._cmsgpack, numpy._core._multiarray_umath (total: 2)"
)
_SIGNALS = "SIGSEGV|SIGBUS|SIGILL|SIGFPE|SIGABRT|SIGTRAP|SIGSYS"
"""Without SIGTERM and SIGINT: the handler reports them as well, but they are not crashes."""


def _handler(kind: str, roles: tuple[str, ...], *, symptom: bool) -> Signal:
    return Signal(
        kind,
        "*** SIG",
        rf"^\*\*\* (?P<signal>{_SIGNALS}) (?:received at time=(?P<epoch>\d+)|\(@0x[0-9a-f]{{1,16}}\) received by PID \d)",
        roles,
        "*** SIGSEGV received at time=1795247733 on cpu 0 ***",
        symptom=symptom,
    )


def _words(find: str, pattern: str, sample: str) -> Signal:
    return Signal("crash.words", find, pattern, (*_CORE, *_OUTPUT), sample)


DAEMON_FRAMES = tuple(
    Signal(
        "crash.daemon_frame",
        words,
        rf"^ *@ +0x[0-9a-f]+ +(?:\S+ +)?(?P<frame>{words}{rest})",
        DRIVER,
        sample,
    )
    for words, rest, sample in (
        (
            "ray::raylet::",
            r"(?!RayletClient|RayletConnection)\w+",
            "    @     0x56423c3996c4       1200  ray::raylet::NodeManager::Start()",
        ),
        (
            "ray::ObjectManager::",
            r"\w+",
            "    @     0x56423c3996c4  1200  ray::ObjectManager::Push()",
        ),
        (
            "ray::gcs::Gcs",
            r"\w{0,60}(?:Server|Manager|Scheduler)::",
            "    @     0x56423c3996c4       1200  ray::gcs::GcsActorManager::OnWorkerDead()",
        ),
    )
)
"""Frames that only a raylet or the GCS has: workers share neither these classes nor their namespaces."""
LOG_FRAME = Signal(
    "crash.log_frame",
    "ray::RayLog::~RayLog()",
    r"^ *@ +0x[0-9a-f]+ +(?:\S+ +)?ray::RayLog::~RayLog\(\)",
    ("raylet-echo", "gcs-echo", "worker-echo", *DRIVER),
    "    @     0x56142bb700d9  ray::RayLog::~RayLog()",
)
"""Below the last record of a process of Ray up to 1.1, whose header is glog's."""
OLD_FATAL = Signal(
    "crash.old_fatal",
    ".cc:",
    r"\bF\d{4} \d\d:\d\d:\d\d\.\d{1,9}\s{1,8}\d{1,10} {1,8}(?:\d{1,10} )?[\w./-]{1,200}\.cc:\d{1,6}\] {1,4}(?:Check failed: (?P<expression>[^\n]+)|(?P<said>[^\n]+))",
    ("raylet-echo", "gcs-echo"),
    "(pid=raylet) F0827 15:46:04.819053  1144  1156 malloc.cc:56] failed to find entry in mmap_records for fd 0",
    with_header=True,
)
"""The same record in a driver's echo of a daemon."""
CHECK = Signal(
    "worker.check_failed",
    "Check failed: ",
    r"Check failed: (?P<expression>[^\n]+)",
    ("core-worker", "core-io", "core-driver", "worker-err", "worker-echo", *DRIVER),
    " Check failed: objects_valid ",
)
_FILES = (
    *(
        "core_worker",
        "task_manager",
        "reference_count",
        "reference_counter",
        "actor_manager",
        "direct_actor_transport",
    ),
    *(
        "task_receiver",
        "normal_task_submitter",
        "actor_task_submitter",
        "plasma_store_provider",
        "future_resolver",
    ),
    *("object_recovery_manager", "generator_waiter", "direct_task_transport", "lease_policy"),
)
CHECK_PLACES = tuple(
    Signal(
        "crash.check_place",
        f"{name}.cc:",
        rf"(?:^|[\s/]){name}\.cc:\d{{1,6}}:?\s*(?:$|Check failed: )",
        DRIVER,
        f"{name}.cc:983",
    )
    for name in _FILES
)
"""Places of checks in Ray's code of workers and drivers (`src/ray/core_worker`, 0.8 to 2.60): people copy them without the header."""
NATIVE_STACK = Signal(
    "crash.native_stack",
    "*** StackTrace Information ***",
    r"^\*\*\* StackTrace Information \*\*\*.{0,2000}?(?:/|\d +)(?P<binary>raylet|gcs_server|_raylet\.so)(?:\(\+| +)0x[0-9a-f]",
    DRIVER,
    "*** StackTrace Information ***\n/venv/site-packages/ray/core/src/ray/raylet/raylet(+0xbd3d9a) [0x55d5b0c3ad9a] ray::operator<<()",
    extent="record",
)
"""`util/logging.cc` prints it below a failed check, with the binary of each frame."""
NATIVE_FRAMES = tuple(
    Signal(
        NATIVE_STACK.kind,
        find,
        rf"^ {{0,8}}/\S{{1,300}}/core/src/ray/{folder}/(?P<binary>{name})\(\+0x[0-9a-f]+\) \[0x[0-9a-f]+\]",
        DRIVER,
        f"    /venv/site-packages/ray/core/src/ray{find}21a557) [0x55d5b0c3ad9a] main",
    )
    for find, folder, name in (
        ("/raylet/raylet(+0x", "raylet", "raylet"),
        ("/gcs/gcs_server(+0x", "gcs", "gcs_server"),
    )
)
"""Frames of these stacks, if a paste begins within one: only a failed check or a crash prints them."""
_STOPPED = Signal(
    "crash.stopped", "*** SIG", r"^\*\*\* (?P<signal>SIGTERM|SIGINT|SIGHUP) received at time=", _OUTPUT,
    "*** SIGTERM received at time=1795465804 on cpu 0 ***",
)  # fmt: skip
"""The handler reports a request to stop as it reports a crash, with frames below."""
CRASH_SIGNALS = (
    _handler("crash.handler", _CORE, symptom=True),
    _handler("crash.printed", _OUTPUT, symptom=False),
    Signal(
        "crash.symbol",
        "PC: @",
        r"^PC: @ +0x[0-9a-f]+ +\S+ +(?P<symbol>[^(\s].*)",
        _CORE,
        "PC: @     0x7f1a0eb14923  (unknown)  FLOAT_pairwise_sum",
    ),
    Signal(
        "crash.frame",
        "PC: @",
        r"^PC: @ +0x[0-9a-f]+ +\(?[\w<>]+\)?(?: |$)",
        ("worker-echo", *DRIVER),
        "PC: @     0x7f1a0eb14923  (unknown)  FLOAT_pairwise_sum",
    ),
    Signal(
        "crash.frame",
        "  (unknown)  ",
        r"^ {4}@ {1,4}[0-9A-F]{16}  \(unknown\)  \S",
        ("worker-echo", *DRIVER),
        "    @   00007FF7F5782AAF  (unknown)  (unknown)",
    ),
    *DAEMON_FRAMES,
    Signal(
        "crash.python",
        "Fatal Python error: ",
        r"^Fatal Python error: (?P<what>[^\n]+)",
        _OUTPUT,
        _STACK,
        extent="record",
    ),
    Signal(
        "crash.tail",
        "Extension modules: ",
        r"^Extension modules: (?=[^\n]{0,12000}?\bray\._rayl|msgpack\._cmsgpack, \w)",
        _OUTPUT,
        "Extension modules: msgpack._cmsgpack, google._upb._message, ray._raylet, numpy.linalg._umath_linalg (total: 4)",
    ),
    Signal(
        "crash.frames",
        "    @ ",
        r"^ {4}@ +0x[0-9a-f]{4,16} +(?:\d{1,12}|\(unknown\)) +(?P<symbol>\S.*)",
        ("worker-echo", *DRIVER),
        "    @     0x7f1a0eb14923       1552  _PyImport_LoadDynamicModuleWithSpec",
    ),
    Signal(
        "crash.native",
        "/_raylet.so(+0x",
        r"^ {0,8}(?:\.{3})?/\S{1,300}/ray/_raylet\.so\(\+0x[0-9a-f]+\) \[0x[0-9a-f]+\](?: (?P<symbol>\S.*))?",
        ("worker-echo", *DRIVER),
        "/venv/site-packages/ray/_raylet.so(+0x9f330c) [0x7ffff662e30c] ray::core::TaskReceiver::HandleTask()",
    ),
    Signal(
        "crash.native",
        "ray::",
        r"^ {0,8}ray::[\w.:<>-]{1,200}\((?:\w{1,200}\+0x[0-9a-f]{1,12})?\) \[0x[0-9a-f]{5,16}\](?: (?P<symbol>\S.*))?",
        ("worker-echo", *DRIVER),
        "ray::Trainer.step(PyObject_Vectorcall+0x51) [0x543141] PyObject_Vectorcall",
    ),
    Signal(
        "crash.cpp_frame",
        ".so(_Z",
        r"^ {0,8}/\S{1,300}\.so\(_Z\w{1,1000}\+0x[0-9a-f]{1,12}\) \[0x[0-9a-f]{5,16}\] (?P<symbol>\S[^\[\n]{0,1000})",
        ("worker-echo", *DRIVER),
        "/venv/site-packages/tok/_tok.so(_ZN3tok4LoadEv+0x47) [0x7f82159c84b7] tok::Load()",
    ),
    Signal(
        "crash.paddle",
        "C++ Traceback (most recent call last):",
        r"^C\+\+ Traceback \(most recent call last\):",
        ("worker-echo", *DRIVER),
        "C++ Traceback (most recent call last):",
    ),
    Signal(
        "crash.shell",
        " is detected by the operating system.",
        r"^FatalError: `(?P<what>Segmentation fault|Bus error|Illegal instruction|Erroneous arithmetic operation|Process abort signal)` is detected by the operating system\.",
        ("worker-echo", *DRIVER),
        "FatalError: `Segmentation fault` is detected by the operating system.",
    ),
    Signal(
        "crash.shell",
        "(core dumped)",
        r"^(?:[^\s:]{1,200}: line \d{1,9}: +\d{1,10} )?(?P<what>Segmentation fault|Bus error|Illegal instruction"
        r"|Floating point exception|Aborted) {1,40}\(core dumped\)(?:$| {1,40}\S)",
        DRIVER,
        "train.sh: line 12: 12345 Segmentation fault      (core dumped) python train.py",
    ),
    Signal(
        "crash.shell",
        "Segmentation fault ",
        r"^[^\s:]{1,200}: line \d{1,9}: +\d{1,10} (?P<what>Segmentation fault) {2,40}[^\s(]",
        DRIVER,
        "train.sh: line 12: 12345 Segmentation fault      python train.py",
    ),
    Signal(
        "crash.shell",
        "terminated by signal SIG",
        rf"^fish: .{{0,300}}?terminated by signal (?P<what>{_SIGNALS})\b",
        DRIVER,
        "fish: Job 1, 'python3 train.py' terminated by signal SIGSEGV (Address boundary error)",
    ),
    Signal(
        "crash.shell",
        "zsh: ",
        r"^zsh: (?P<what>segmentation fault|bus error|floating point exception)(?: \(core dumped\))? {2,40}\S",
        DRIVER,
        "zsh: segmentation fault  python train.py",
    ),
    Signal(
        "crash.shell",
        " segmentation fault ",
        r"^\[\d{1,4}\]  (?:[+-] | {2})? ?\d{1,10} (?P<what>segmentation fault)"
        r"(?: \(core dumped\))? {2,40}\S",
        DRIVER,
        "[1]    12345 segmentation fault (core dumped)  python train.py",
    ),
    Signal(
        "crash.shell",
        "Caught signal ",
        r"^(?:\[[^\]\s]{1,200}\] )?(?P<handler>Caught) signal \d{1,2} \((?P<what>Segmentation fault|Bus error|Illegal instruction|Floating point exception)[:)]",
        ("driver", "job-driver", "worker-echo"),
        "[gpu-3:74387:0:74387] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x7eff867fbcc0)",
    ),
    _words(
        "terminate called ",
        r"^terminate called (?P<words>.*)",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ),
    _words(
        "Unhandled exception: ",
        r"(?P<words>Unhandled exception: .*)",
        "Unhandled exception: St9bad_alloc. what(): std::bad_alloc",
    ),
    _words(
        ": Assertion ",
        r": (?P<words>Assertion .* failed\.)",
        "python: solver.c:12: solve: Assertion `n > 0' failed.",
    ),
    _words(
        "Invalid handle. Cannot load symbol ",
        r"^(?P<words>Invalid handle\. Cannot load symbol \w{1,100})",
        "Invalid handle. Cannot load symbol cublasLtGetVersion",
    ),
    _words("free(): ", r"^(?P<words>free\(\): .*)", "free(): double free detected in tcache 2"),
    _words(
        "double free or corruption",
        r"^(?P<words>double free or corruption.*)",
        "double free or corruption (fasttop)",
    ),
    _words(
        "OMP: Error #",
        r"^(?P<words>OMP: Error #\d{1,6}: .*)",
        "OMP: Error #15: Initializing libiomp5, but found libomp already initialized.",
    ),
    _words("malloc(): ", r"^(?P<words>malloc\(\): .*)", "malloc(): corrupted top size"),
    _words(
        "corrupted size vs. prev_size",
        r"^(?P<words>corrupted size vs\. prev_size.*)",
        "corrupted size vs. prev_size while consolidating",
    ),
    _STOPPED,
)

_ECHOED = (
    *("crash.printed", "crash.frame", "crash.python", "crash.words"),
    *(
        "crash.tail",
        "crash.shell",
        "crash.frames",
        "crash.native",
        "crash.cpp_frame",
        "crash.paddle",
    ),
)
_REMAINS = ("crash.tail", "crash.shell", "crash.frames", "crash.native", "crash.paddle")
_ABORTS = pattern(r"Assertion |double free|free\(\)|malloc\(\)|corrupted size|OMP: Error ")
"""Words below which the C library, or OpenMP's, calls `abort()` at once: no exception is behind them."""
_OF_RAY = ("ray::", "std::", "boost::")
"""Functions that are in the native stack of each task."""
_NO_SYMBOL = pattern(
    r"0x0$|\(unknown\)|_{0,2}(?:gsignal|raise|abort|pthread_kill\w*|restore_rt|sigtramp)(?:@|\(|$)"
)
"""What `abort()` itself calls, and frames without a name."""
_RUNTIME = pattern(r"(?:std::|__cxxabiv1::|__gnu_cxx::|absl::|abort|_{0,2}cxa_|_{0,2}assert)")
"""What calls `abort()` for a function of C++ that raised, or whose assertion failed."""
_KINDS = ("crash.handler", "crash.symbol", *_ECHOED)
_FRAME = pattern(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d{1,20}),? in (?P<function>.*\S)\s*$')
_MODULES = pattern(
    r"^Extension modules: (?P<names>[^\n]*?)(?: \(total: (?P<total>\d{1,20})\)|$)", re.MULTILINE
)
_CRASHED_THREAD = pattern(r"^Current thread 0x.*?(?=^Thread 0x|^$|\Z)", re.MULTILINE | re.DOTALL)
_OTHER_THREAD = pattern(r"^Thread 0x", re.MULTILINE)
_RAYS_MODULES = (
    "msgpack", "google", "psutil", "setproctitle", "yaml", "charset_normalizer", "requests", "ray",
    "wcwidth", "multidict", "yarl", "frozenlist", "aiohttp", "propcache", "grpc",
)  # fmt: skip
"""Packages whose extension modules Ray itself loads (seen in workers and drivers that load no others)."""
BEHEADED = "a fatal error, of whose report the text contains only the end"
"""In place of a signal. Python lists extension modules only below a fatal error (`faulthandler`, 3.10 and later)."""
_UNNAMED = "a fatal signal, whose name the text does not contain"
"""In place of a signal below the first line of a report of Paddle's handler."""
_SIGNAL_OF = {
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Aborted": "SIGABRT",
    "Erroneous arithmetic operation": "SIGFPE",
    "Process abort signal": "SIGABRT",
}
"""faulthandler's names, and Paddle's last two; any other fatal error of Python calls `abort()`."""
_LONGEST_STACK = 100
"""Lines."""
_LATEST, _LONGEST_DUMP = 3.0, 900.0
"""Seconds between a crash report and the recorded exit: writing a core file may take minutes."""
_ZONES = 900.0
"""Seconds: time zones differ by multiples of a quarter of an hour."""


_DEEP, _MOSTLY, _TURNS = 50, 0.9, 3
"""Frames of a deep stack; the share of them that few functions, at most three, must have."""


class Crash(NamedTuple):
    """The records of one process's crash."""

    signal: str
    """`SIGSEGV`."""
    events: tuple[Event, ...]
    """Every report and message; never empty."""
    handler: Event | None = None
    """Ray's failure handler."""
    python: Event | None = None
    """faulthandler's record."""
    said: Event | None = None
    """The message before `abort()`."""
    symbol: str = ""
    """The native function that crashed, if the binary has symbols."""
    is_macos: bool = False
    """Whether its stack is one of macOS, where Linux's tools are missing."""
    words: str = ""
    """The reason given for `abort()`."""
    frames: tuple[TracebackFrame, ...] = ()
    """Python's stack, innermost first."""
    modules: tuple[str, ...] = ()
    """Packages with native code that the program, not Ray, loaded."""
    module_count: int = 0
    exit: WorkerExit | None = None

    @property
    def name(self) -> str:
        """The running task or class; without the worker's own files, from the driver's prefix; else empty."""
        if self.exit and self.exit.names:
            return self.exit.names[-1]
        return next((e["who"] for e in self.events if e["who"]), "")

    @property
    def place(self) -> TracebackFrame | None:
        """The innermost line of the user's program, or else the innermost line."""
        return next((f for f in self.frames if f.is_user_code), next(iter(self.frames), None))

    @property
    def recursive(self) -> TracebackFrame | None:
        """The innermost frame of a function that fills the stack with its own calls: the stack overflowed.

        faulthandler prints at most 100 frames. Functions that call each other in turns fill it together.
        """
        counts = Counter((f.file, f.function) for f in self.frames)
        turns = counts.most_common(_TURNS)
        if len(self.frames) < _DEEP or sum(n for _, n in turns) < _MOSTLY * len(self.frames):
            return None
        return next(f for f in self.frames if (f.file, f.function) == turns[0][0])


def of_exit(case: Case, exit_: WorkerExit) -> Crash | None:
    """The crash that ended a worker: reports in its own files, or echoed by the driver.

    A program can print the same text. It counts only with the header of Ray's C++ logs or as a whole report of Python's,
    and only if its time fits the recorded exit. In a console without the daemons' logs, where such lines are often lost,
    either report counts.
    """
    events = [e for e in _reports_of(case, exit_) if _in_time(e, exit_)]
    return _crash(events, exit_) or (
        _crash_of_console(events, exit_) if evidence.is_console(case) else None
    )


def _crash_of_console(events: list[Event], exit_: WorkerExit) -> Crash | None:
    """A crash of which a driver's echo has kept only the first line of a report, of a process whose end is recorded."""
    handlers = [e for e in events if e.kind == "crash.printed"]
    fatal = [e for e in events if e.kind == "crash.python" and e["what"] in _SIGNAL_OF]
    if not handlers and not fatal:
        return None
    signal = handlers[0]["signal"] if handlers else _SIGNAL_OF[fatal[0]["what"]]
    return Crash(signal, (*handlers, *fatal), next(iter(handlers), None), exit=exit_)


def of_worker(case: Case, end: WorkerExit) -> Crash | None:
    """The crash of a worker without a recorded end, from its own files."""
    return _crash(case.about(Entity("worker", end.worker), *_KINDS), end)


def of_driver(case: Case, job: str) -> Crash | None:
    """The crash of a job's driver, from its core log; its output adds Python's stack."""
    logs = case.about(Entity("worker", ids.driver_of_job(job)), *_KINDS)
    handlers = [e for e in logs if e.kind == "crash.handler"]
    if not handlers:
        return None
    printed = [
        e
        for e in case.of("crash.printed", "crash.python", "crash.words")
        if e.source.role in DRIVER and not e["who"]
    ]
    return _crash([*logs, *printed], None)


def of_lone_output(case: Case) -> Iterator[Crash]:
    """Drivers of which only the output is left: handler and stack together, without a worker's prefix.

    An excerpt may have lost one of them: then a whole report counts, if no process's end is recorded.
    """
    by_file = evidence.grouped(
        (
            e
            for e in case.of("crash.handler", *_ECHOED)
            if e.source.role in DRIVER and not e["who"] and _is_whole_or_first(case, e)
        ),
        lambda e: e.source.path,
    )
    stops = evidence.grouped(case.of(_STOPPED.kind), lambda e: e.source.path)
    for path, found in by_file.items():
        events = [e for e in found if not _is_of_stop(e, stops.get(path, ()))]
        crash = _crash(events, None) if events else None
        if crash is None or _is_quoted(case, crash) or _is_daemons(case, crash):
            continue
        kinds = {e.kind for e in events}
        is_shown = (
            crash.python
            or kinds & {"crash.frame", *_REMAINS}
            or (crash.said and not crash.handler)
            or "E" in {e.level for e in events}
        )
        is_own = is_shown and events[0].source.is_excerpt and not case.exits
        if is_own or (crash.handler and crash.python):
            yield crash


def _is_whole_or_first(case: Case, event: Event) -> bool:
    """Whether a frame of a worker may count: what is above a whole stack says more."""
    if event.kind != "crash.native":
        return True
    first = next(e.line for e in case.of(event.kind) if e.source is event.source)
    heads = case.of(CHECK.kind, NATIVE_STACK.kind, "log.critical")
    is_named = any(e.source is event.source and e.line < first for e in heads)
    return first <= _FRAMES_ABOVE and not is_named


_FRAMES_ABOVE = 4
"""The first line of such a frame in a paste that begins within a stack: frames of the C library may be above it."""


def _is_of_stop(event: Event, stops: Sequence[Event]) -> bool:
    """Whether an event is a part of the stack below the handler's report of a request to stop."""
    is_part = event.kind in ("crash.frame", *_REMAINS)
    return is_part and any(0 <= event.line - e.line <= _LONGEST_STACK for e in stops)


def _is_quoted(case: Case, crash: Crash) -> bool:
    """Whether the process that printed the report continues: then the report is another program's."""
    return evidence.later_output(case, max(crash.events, key=lambda e: e.line))


def _is_daemons(case: Case, crash: Crash) -> bool:
    """Whether a frame that only a raylet or the GCS has is below the report."""
    first = crash.events[0]
    return any(
        e.source is first.source and 0 < e.line - first.line <= _LONGEST_STACK
        for e in case.of("crash.daemon_frame")
    )


def of_daemons(case: Case, binary: Literal["raylet", "gcs_server"]) -> list[Event]:
    """The last records of a raylet or of the GCS whose header a paste has lost: its frames show who wrote them.

    The record is the signal or the failed check above the frames, or else the stack itself.
    """
    by_source = evidence.grouped(case.of("crash.printed", CHECK.kind), lambda e: e.source)
    above = {
        source: sorted(heads, key=lambda e: e.line)
        for source, heads in by_source.items()
        if source.is_excerpt
    }
    found: dict[int, Event] = {}
    for frame in case.of("crash.daemon_frame", NATIVE_STACK.kind):
        of_gcs = frame["frame"].startswith("ray::gcs::") or frame["binary"] == "gcs_server"
        is_wanted = of_gcs == (binary == "gcs_server") and frame["binary"] != "_raylet.so"
        if not is_wanted or not frame.source.is_excerpt:
            continue
        heads = above.get(frame.source, [])
        before = bisect_right(heads, frame.line, key=lambda e: e.line)
        head = heads[before - 1] if before else None
        if head and frame.line - head.line <= _LONGEST_STACK:
            found[id(head)] = head
        elif frame["binary"]:
            found[id(frame)] = frame
    return list(found.values())


_LOGS_STACK = 12
"""Lines from glog's record down to the frame of Ray's own logger."""


def is_of_old_ray(case: Case, event: Event) -> bool:
    """Whether glog's fatal record is Ray's own: the frame of Ray's logger is below it."""
    return (
        (event.level == "C" or event.kind == OLD_FATAL.kind)
        and event.source.is_excerpt
        and any(
            frame.source is event.source and 0 < frame.line - event.line <= _LOGS_STACK
            for frame in case.of(LOG_FRAME.kind)
        )
    )


def fatal_ends(case: Case) -> list[Event]:
    """Last records of Ray's processes in excerpts, in words that no signal knows."""
    critical = [
        e
        for e in case.of("log.critical", OLD_FATAL.kind)
        if e.source.is_excerpt and (is_fatal(e) or is_of_old_ray(case, e))
    ]
    if not critical:
        return []
    known = {
        (e.source, e.line) for e in case.events if not e.kind.startswith(("log.", OLD_FATAL.kind))
    }
    left = {(e.source, e.line): e for e in critical if (e.source, e.line) not in known}
    return [e for e in left.values() if not case.torn_down(e)]


def checks_of_processes(case: Case) -> set[int]:
    """Identities of failed checks in excerpts right above the stack of a worker or driver, or beside the place in its code."""
    stacks = {(e.source, e.line) for e in case.of(NATIVE_STACK.kind) if e["binary"] == "_raylet.so"}
    places = {(e.source, e.line) for e in case.of("crash.check_place")}
    return {
        id(e)
        for e in case.of(CHECK.kind)
        if e.source.is_excerpt
        and (
            {(e.source, e.line + 1), (e.source, e.line + 2)} & stacks
            or (
                not e.level
                and {(e.source, e.line), (e.source, e.line - 1)} & places
                and not _goes_on(case, e)
            )
        )
    }


_MESSAGE = 2
"""Lines that a check's message may have below the expression."""


def _goes_on(case: Case, check: Event) -> bool:
    return any(o.line > check.line + _MESSAGE for o in case.outputs.get(check.source.path, ()))


def of_lone_echoes(case: Case) -> Iterator[Crash]:
    """Workers whose end is not recorded, from the driver's echoes of Ray's handler or of Python's report."""
    echoed = [
        e
        for e in case.of(*_ECHOED)
        if (e["who"] or e.text.startswith("(pid="))
        and e.pid is not None
        and case.exit_of_process(e.pid, ip=e["ip"]) is None
        and _is_whole_or_first(case, e)
    ]
    for (ip, pid), events in evidence.grouped(echoed, lambda e: (e["ip"], e.pid)).items():
        name = events[0]["who"]
        end = WorkerExit("", "SYSTEM_ERROR", "", [], events[0].at, ip=ip, pid=pid, names=(name,))
        crash = _crash(events, end)
        if crash is None and _fails_below(case, events[0]):
            crash = _crash_of_console(events, end)
        # Another process may print a report: a bare `*** SIG…` needs the process's recorded end, or a frame
        # below it where no process's end is recorded.
        if (
            crash
            and not _is_quoted(case, crash)
            and (
                crash.python
                or not case.exits
                or any(e.level == "E" or e.kind == _REMAINS[0] for e in crash.events)
                or (crash.handler and _is_framed(events) and any(e.count > 1 for e in events))
            )
        ):
            yield crash


def _is_framed(events: Sequence[Event]) -> bool:
    """Whether the handler's own lines are below its report in an excerpt: an actor may print those that it reads."""
    kinds = {e.kind for e in events if e.source.is_excerpt}
    return {"crash.printed", "crash.frame"} <= kinds


def _fails_below(case: Case, event: Event) -> bool:
    """Whether the program in whose excerpt a worker's line stands fails below it."""
    ending = case.endings.get(event.source)
    is_end = ending is not None and bool(ending["ended_by"]) and ending.line > event.line
    return event.source.is_excerpt and is_end


def _reports_of(case: Case, exit_: WorkerExit) -> list[Event]:
    own = case.about(Entity("worker", exit_.worker), *_KINDS) if exit_.worker else []
    echoed = [
        e
        for e in case.of(*_ECHOED)
        if e["who"] and e.pid == exit_.pid and case.exit_of_process(e.pid or 0, ip=e["ip"]) is exit_
    ]
    return own + echoed


def _in_time(event: Event, exit_: WorkerExit) -> bool:
    if event.at is None or exit_.at is None:
        return True
    apart = event.at - exit_.at
    # The handler counts from 1970, and a console's other times are those of an unknown zone.
    zone = round(apart / _ZONES) * _ZONES if event.source.is_excerpt else 0.0
    return any(
        -_LONGEST_DUMP <= seconds <= _LATEST + event.slack for seconds in (apart, apart - zone)
    )


def _crash(events: list[Event], exit_: WorkerExit | None) -> Crash | None:
    handlers = [e for e in events if e.kind == "crash.handler"]
    is_framed = any(e.kind == "crash.frame" for e in events)
    handlers += [
        e
        for e in events
        if e.kind == "crash.printed" and (e.level == "E" or (is_framed and e.source.is_excerpt))
    ]
    stacks = [e for e in events if e.kind == "crash.python" and _is_whole(e)]
    if not handlers and not stacks:
        return _remains(events, exit_)
    python = max(stacks, key=_completeness) if stacks else None
    modules, count = _modules(python)
    words = [e for e in events if e.kind == "crash.words"]
    symbols = [e["symbol"] for e in events if e.kind == "crash.symbol"]
    fatal = python["what"] if python else ""
    reason = words[-1]["words"] if words else "" if fatal in _SIGNAL_OF else fatal
    frames = [e["symbol"].strip() for e in events if e.kind == "crash.frames"]
    return Crash(
        signal=handlers[0]["signal"] if handlers else _SIGNAL_OF.get(fatal, "SIGABRT"),
        events=(*handlers, *stacks, *words),
        handler=handlers[0] if handlers else None,
        python=python,
        said=words[-1] if words else None,
        symbol=symbols[-1].strip() if symbols else _aborting(frames),
        is_macos=any(name.startswith("_sigtramp") for name in frames),
        words=reason.strip(),
        frames=tuple(_frames(python)),
        modules=modules,
        module_count=count,
        exit=exit_,
    )


def _aborting(frames: Sequence[str]) -> str:
    """The function that called `abort()`, by a stack from the innermost frame; empty if the stack does not show it."""
    begin = next((n for n, name in enumerate(frames) if name.startswith("abort")), len(frames))
    below = (
        name for name in frames[begin:] if not (_NO_SYMBOL.match(name) or _RUNTIME.match(name))
    )
    return next(below, "")


def _remains(events: list[Event], exit_: WorkerExit | None) -> Crash | None:
    """A crash of which an excerpt shows only a part: the end of a report, frames, the shell's line, or the last words."""
    found = [
        e
        for e in events
        if e.kind in _REMAINS
        and e.source.is_excerpt
        # Only the handler of signals logs frames at this level.
        and (e.kind != "crash.frames" or e.level == "E")
    ]
    fatal = [e for e in events if e.kind == "crash.python" and e["what"].strip() in _SIGNAL_OF]
    # Up to 1.2 an echo has no name: no actor prints it that reads such reports.
    found = found or [e for e in fatal if e.source.is_excerpt and e.text.startswith("(pid=")]
    words = [e for e in events if e.kind == "crash.words" and e.source.is_excerpt]
    aborts = [e for e in words if _ABORTS.match(e["words"])]
    if not found and not aborts:
        return None
    stack = [e["symbol"].strip() for e in found if e["symbol"]]
    is_abort = bool(aborts) or any(name.startswith("abort") for name in stack)
    modules, count = _modules(found[0]) if found else ((), 0)
    what = found[0]["what"].strip() if found else ""
    signal = (
        what
        if what.startswith("SIG")
        else _SIGNAL_OF.get(what, "") or _SIGNAL_OF.get(what.capitalize(), "")
    )
    said = aborts[-1] if aborts else None
    library = _of_libraries(found, events)
    return Crash(
        signal
        or ("SIGABRT" if is_abort else _UNNAMED if found[0].kind == "crash.paddle" else BEHEADED),
        (*found, *words),
        said=said,
        symbol=next((name for name in stack if not _NO_SYMBOL.match(name)), "")
        if is_abort
        else library,
        words=said["words"].strip() if said else "",
        modules=modules,
        module_count=count,
        exit=exit_,
    )


def _of_libraries(found: Sequence[Event], events: Sequence[Event]) -> str:
    """The innermost function of a library of C++ above frames of a task's process; empty if no frame shows one."""
    if not any(e.kind == "crash.native" for e in found):
        return ""
    symbols = (
        e["symbol"].strip()
        for e in sorted(events, key=lambda e: e.line)
        if e.kind == "crash.cpp_frame"
    )
    return next((name for name in symbols if not name.startswith(_OF_RAY)), "")


def _completeness(stack: Event) -> tuple[int, bool]:
    """The more frames the better: a driver's echo omits lines that it has printed for another worker."""
    return (len(_frames(stack)), not stack["who"])


def _is_whole(event: Event) -> bool:
    """Whether a record contains frames, or the modules of a process that loaded Ray, as faulthandler lists them."""
    found = _MODULES.search(event.message)
    names = found["names"].split(", ") if found else ()
    return "ray._raylet" in names or any(map(_FRAME.match, event.message.splitlines()))


def _stack(event: Event) -> str:
    """The crashed thread's part of a record, which faulthandler marks as `Current` among several.

    A native thread has no such part: then the frames belong to threads that did not crash.
    """
    if found := _CRASHED_THREAD.search(event.message):
        return found[0]
    return "" if _OTHER_THREAD.search(event.message) else event.message


def _frames(event: Event | None) -> list[TracebackFrame]:
    if event is None:
        return []
    matches = (_FRAME.match(line) for line in _stack(event).splitlines())
    return [TracebackFrame(m["file"], int(m["line"]), m["function"]) for m in matches if m]


def _modules(event: Event | None) -> tuple[tuple[str, ...], int]:
    """Packages with native code that not every Ray worker loads, and the number of all modules."""
    found = _MODULES.search(event.message) if event else None
    if not found:
        return (), 0
    packages = dict.fromkeys(name.strip().partition(".")[0] for name in found["names"].split(","))
    return tuple(p for p in packages if p not in _RAYS_MODULES), int(found["total"] or 0)
