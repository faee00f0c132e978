"""Worker processes that were started and never registered with their raylet.

The raylet reports them in one sentence with two endings, the same from 2.3 to 2.60: the process is dead, or it is
still alive. Output from before the process opened its own files is in `raylet.err`. Since 2.55 Ray fails a task after
several such starts (`RAY_pop_worker_max_retries`); before, it retried forever.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.case.signals import (
    DRIVER,
    RAY_EXCEPTION,
    RAYLET,
    TASK_FAILED,
    TRACEBACKS,
    WORKER_STARTED,
)
from raydoctor.case.signals import TRACEBACK as ANY_TRACEBACK
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event
from raydoctor.rules.shared.setup.environments import CREATED
from raydoctor.rules.shared.traceback import NO_FAILURES, Raised, parse

DEFAULT_TIMEOUT = 60.0
"""`RAY_worker_register_timeout_seconds`."""
GIVEN_UP = "Failed to startup worker after retrying"
NO_ACTOR = "because worker startup repeatedly failed"
_SECONDS = 2.0
"""Seconds within which a task fails after the last attempt."""

_FIRST_FRAME = '  File "/home/user/venv/lib/python3.11/site-packages/ray/_private/workers/default_worker.py", line 8, in <module>'

UNREGISTERED = Signal(
    "worker.unregistered",
    "have not registered within the timeout.",
    r"^Some workers of the worker process\((?:(?P<worker_pid>\d+)|<?\w{1,20}>?)\) have not registered within the timeout\.\s{1,3}"
    r"The process is (?P<state>dead|still alive)",
    (*RAYLET, "raylet-echo"),
    "Some workers of the worker process(450) have not registered within the timeout. The process is dead, probably it crashed "
    "during start.",
    extent="record",
    symptom=True,
    fold=("state",),
)
"""A person may replace the pid, or break the line."""
UNREGISTERED_OLD = Signal(
    UNREGISTERED.kind,
    " have not registered to raylet within timeout",
    r"^Some workers of the worker process\((?P<worker_pid>\d+)\) have not registered to raylet within timeout",
    (*UNREGISTERED.roles, *DRIVER),
    "Some workers of the worker process(450) have not registered to raylet within timeout.",
    symptom=True,
)
"""Up to 1.2, without a word about the process: it may be dead or alive."""
TRACEBACK = Signal(
    "worker.start_traceback",
    "/workers/default_worker.py",
    r'^ +File "[^"\n]*/workers/default_worker\.py", line \d+, in <module>\n(?P<what>.*)',
    ("raylet-err", "worker-err", "raylet-echo"),
    f"{_FIRST_FRAME}\n    import ray\nAttributeError: module 'queue' has no attribute 'LifoQueue'",
    extent="record",
)
SETUP_TRACEBACK = Signal(
    TRACEBACK.kind,
    "/workers/setup_worker.py",
    r'^ +File "[^"\n]*/workers/setup_worker\.py", line \d+, in <module>\n(?P<what>.*)',
    TRACEBACK.roles,
    f"{_FIRST_FRAME.replace('default_', 'setup_')}\n    setup = import_attr(args.worker_setup_hook)\nModuleNotFoundError: No module named 'hook'",
    extent="record",
)
"""The program that starts a worker in its runtime environment (1.3 to 2.60)."""
SHELL_WORDS = (
    Signal(
        "worker.start_words",
        "No such file or directory",
        r"^(?P<what>(?:/bin/|bash|sh|exec)[^\n]*: No such file or directory)$",
        ("raylet-err",),
        "bash: line 1: /opt/venv/bin/python: No such file or directory",
    ),
    Signal(
        "worker.start_words",
        "error while loading shared libraries",
        r"^(?P<what>[^\[\n]*error while loading shared libraries[^\n]*)",
        ("raylet-err",),
        "/opt/venv/bin/python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file",
    ),
    Signal(
        "worker.start_words",
        "pthread_create failed",
        r"^(?P<what>[^\[\n]*pthread_create failed[^\n]*)",
        ("raylet-err", "worker-err"),
        "OpenBLAS blas_thread_init: pthread_create failed for thread 7 of 64: Resource temporarily unavailable",
    ),
)
FATAL = Signal(
    "worker.start_words",
    "Fatal Python error: init",
    r"^(?P<what>Fatal Python error: init\w{1,60}: [^\n]{1,300})",
    ("raylet-err", "raylet-echo"),
    "Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding",
)
"""Python cannot start, and prints its paths above this line."""
PYTHON_HOME = Signal(
    "worker.python_home",
    "  PYTHONHOME = '",
    r"^  PYTHONHOME = '(?P<home>[^'\n]{1,300})'$",
    ("raylet-err", "raylet-echo"),
    "  PYTHONHOME = '/opt/python3'",
    fold=("home",),
)
ARGUMENTS = tuple(
    Signal(
        "worker.start_arguments", find, rf"^(?P<what>{words})", ("raylet-err", "worker-err", "raylet-echo", "worker-echo"), sample,
    )
    for find, words, sample in (
        (
            "default_worker.py: error: ",
            r"default_worker\.py: error: [\w ]{1,60}: -{1,2}[\w-]{1,60}",
            "default_worker.py: error: unrecognized arguments: --node-ip-address=10.0.0.2 --node-manager-port=38225",
        ),
        (
            "Unknown command line flag 'node-ip-address'",
            r"(?:absl\.flags\._exceptions\.UnrecognizedFlagError: )?Unknown command line flag 'node-ip-address'",
            "Unknown command line flag 'node-ip-address'",
        ),
        (
            "o such option: --node-ip-address",
            r"Error: [Nn]o such option: --node-ip-address",
            "Error: No such option: --node-ip-address",
        ),
    )
)  # fmt: skip
"""A module that a worker imports parses `sys.argv` with argparse, absl or click: it holds Ray's own options."""
REFUSED = Signal(
    "worker.start_words",
    "Failed to register worker ",
    r"^(?P<what>Failed to register worker (?:[0-9a-f]{56} )?to Raylet[.:] .*)",
    ("core-worker", "worker-err"),
    "Failed to register worker to Raylet: IOError: [RayletClient] Unable to register worker with raylet. End of file",
)

SIGNALS = (
    UNREGISTERED, UNREGISTERED_OLD, ANY_TRACEBACK, TRACEBACK, SETUP_TRACEBACK, *SHELL_WORDS, FATAL, *ARGUMENTS, PYTHON_HOME, REFUSED, CREATED, WORKER_STARTED, TASK_FAILED, RAY_EXCEPTION,
)  # fmt: skip


@dataclass(slots=True)
class Starts:
    """Failed worker starts of one node in one state: dead, or alive and not registered."""

    node: str
    ip: str
    events: list[Event] = field(default_factory=list)
    """The raylet's records."""
    timeout: float = 0.0
    """Seconds from start to record; 0 if unknown."""
    given_up: list[Event] = field(default_factory=list)
    """The errors that drivers got for it (2.55+)."""
    words: list[Event] = field(default_factory=list)
    """What the processes printed before they died."""

    @property
    def count(self) -> int:
        """How many workers failed to start."""
        return evidence.total(self.events)

    @property
    def place(self) -> str:
        """` on node 10.0.0.2`, or nothing."""
        return f" on node {self.ip}" if self.ip else ""

    @property
    def entities(self) -> tuple[Entity, ...]:
        """What such failures explain: waiting tasks, and actors that Ray stopped creating."""
        actors = {e for event in self.given_up for e in event.entities if e.kind == "actor"}
        return (Entity("waiting", "cluster"), *sorted(actors))


def starts(case: Case, state: str) -> list[Starts]:
    """Failed starts in this state (`dead`, `still alive`) by node; drivers' errors count for the more frequent one."""
    found: dict[str, Starts] = {}
    kinds = {"dead": 0, "still alive": 0}
    records = case.of("worker.unregistered")
    logged = {e["worker_pid"] for e in records if e.source.role in RAYLET}
    for event in records:
        if case.torn_down(event):
            continue
        kinds[_state(event)] += event.count
        echo = event.source.role not in RAYLET and event["worker_pid"] in logged
        if _state(event) == state and not echo:
            node = case.node_of(event.source)
            ip = case.ledger.node_ips.get(node) or event["ip"]
            found.setdefault(node, Starts(node, ip)).events.append(event)
    for one in found.values():
        one.timeout = _timeout(case, one.events)
        one.words = said_by(case, one.events, TRACEBACK.kind, REFUSED.kind, ARGUMENTS[0].kind)
    given_up = _given_up(case)
    if state == "dead" and not (records or given_up):
        return _only_printed(case)
    most = max(kinds, key=lambda kind: kinds[kind])
    if given_up and most == state:
        first = next(iter(found.values()), None) or found.setdefault("", Starts("", ""))
        first.given_up = given_up
    return list(found.values())


def _state(event: Event) -> str:
    """`dead` or `still alive`; without a word about it the raylet did not find the process dead."""
    return event["state"] or "still alive"


def _only_printed(case: Case) -> list[Starts]:
    """Starts of which a console shows only what ended them: a traceback, or Ray's own options that a parser rejects."""
    printed = [
        e
        for e in case.of(TRACEBACK.kind)
        if e.source.is_excerpt and _RUNS not in e.message and not _is_interrupted(e)
    ]
    printed += [e for e in case.of(ARGUMENTS[0].kind) if e.source.is_excerpt]
    printed = printed or [e for e in case.of(*TRACEBACKS) if _is_of_start(e)]
    by_ip = evidence.grouped(printed, lambda e: e["ip"])
    return [Starts("", ip, words=words) for ip, words in by_ip.items()]


_DAEMONS = (
    "dashboard/",
    "runtime_env_agent",
    "autoscaler/",
    "monitor.py",
    "process_watcher",
    "serve/",
)
"""Parts of the files of Ray's other processes, whose output the raylet may print."""


def _is_of_start(event: Event) -> bool:
    """Whether the raylet's own output shows a traceback in an excerpt: its workers share it until they run."""
    is_raylets = event.source.is_excerpt and event.text.startswith("(raylet")
    return (
        is_raylets
        and not any(part in event.message for part in _DAEMONS)
        and not _is_interrupted(event)
        and not executed(event)
    )


_EXECUTES = (", in ray._raylet.execute_task", ", in actor_method_executor")
"""Frames of a worker that has started: it runs a task or a method."""


def executed(event: Event) -> bool:
    """Whether a traceback is that of a task or a method, so that its worker had started."""
    return any(frame in event.message for frame in _EXECUTES)


def _is_interrupted(event: Event) -> bool:
    end = parse(event.message)
    return end is not None and end.name in NO_FAILURES


_RUNS = "main_loop()"
"""The line of `default_worker.py` that a worker has reached once it runs."""


def echoes(case: Case, state: str) -> list[Event]:
    """Every record of this kind, including drivers' echoes, to be covered."""
    return [e for e in case.of("worker.unregistered") if _state(e) == state]


def _timeout(case: Case, events: Iterable[Event]) -> float:
    """Seconds that the raylet waited, from the start of a process to its record."""
    began = {e["worker_pid"]: e.at for e in case.of("worker.started") if e.at is not None}
    waited = [
        e.at - start
        for e in events
        if e.at is not None and (start := began.get(e["worker_pid"])) is not None and e.at > start
    ]
    return min(waited, default=0.0)


def _given_up(case: Case) -> list[Event]:
    return [
        e for e in case.of("driver.exception") if GIVEN_UP in e["what"] or NO_ACTOR in e["what"]
    ]


def said_by(case: Case, events: Iterable[Event], *kinds: str) -> list[Event]:
    """What these processes printed: in `raylet.err` of their node, or in files of their pid."""
    starts_ = list(events)
    pids = {int(e["worker_pid"]) for e in starts_ if e["worker_pid"]}
    folders = {e.source.path.rpartition("/")[0] for e in starts_}
    found = []
    for event in case.of(*kinds):
        here = event.source.path.rpartition("/")[0] in folders
        # A worker's own file counts for its pid only: other workers have errors of their own.
        if here and (event.source.pid is None or event.source.pid in pids):
            found.append(event)
    return found


def raised(words: Iterable[Event]) -> Raised | None:
    """The exception that ended most of these processes."""
    found: dict[str, list[Raised]] = {}
    for event in words:
        is_traceback = event.kind in (TRACEBACK.kind, *TRACEBACKS)
        if is_traceback and (one := parse(event.message)):
            found.setdefault(str(one), []).append(one)
    return max(found.values(), key=len)[0] if found else None


def is_over(case: Case, one: Starts) -> bool:
    """Whether the failure is over: no caller timed out, and a later start succeeded.

    If every start fails, the one after the last record is younger than the timeout.
    """
    if not one.events and one.words and not one.given_up:
        return evidence.goes_on(case, one.words[-1])
    gave_up = any(e["type"] == "GetTimeoutError" for e in case.of("driver.exception"))
    late = [e.at for e in case.of("worker.unregistered") if e.at is not None]
    times = [e.at for e in case.events if e.at is not None]
    if one.given_up or gave_up or not late:
        return False
    enough = one.timeout or DEFAULT_TIMEOUT
    return any(
        e.at is not None and e.at >= late[-1] and times[-1] - e.at > enough
        for e in case.of("worker.started")
    )


def affected(case: Case, one: Starts) -> list[str]:
    """Tasks and actors that failed with the last attempt (2.55+), from their submitters' logs."""
    names = {
        task["name"]
        for event in one.events[-1:]
        for task in case.near(event, "task.failed", before=0.5, after=_SECONDS)
        if task["status"] == "OK"  # no worker replied: it never started
    }
    return sorted(names)


def search_path(case: Case) -> str:
    """PYTHONPATH that a runtime environment sets for workers: modules there are imported first."""
    for event in case.of("runtime_env.created"):
        try:
            env = json.loads(event["env"])
        except (ValueError, RecursionError):
            continue
        variables = env.get("env_vars") if isinstance(env, dict) else None
        if isinstance(variables, dict) and variables.get("PYTHONPATH"):
            return str(variables["PYTHONPATH"])
    return ""


def python_with(path: str) -> paste.Pasted:
    """The `python` command as workers start it, for a line to paste."""
    if not path:
        return paste.shell("python")
    return paste.shell("PYTHONPATH={path:path} python", path=path)


def started_line(at: str, pid: int) -> str:
    """A raylet's record of a start, for the examples."""
    return (
        f"[2026-11-21 07:48:{at} I 285 285] (raylet) worker_pool.cc:564: Started worker process with pid {pid} "
        f"worker_id={pid:056x}\n"
    )
