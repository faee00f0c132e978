"""A Ray process reached its limit of open files (`ulimit -n`), which is too low.

## What you see
- The raylet exits with `Too many workers, failed to create a file. Try setting ulimit -n <num_files> then restart
  Ray.`, and its node dies (`LocalRayletDiedError`, `NodeDiedError`).
- A daemon logs `[Errno 24] Too many open files`, or gRPC prints `File descriptor limit reached. Retrying.` while
  calls hang.
- A task uses up the file descriptors of its worker, and the worker exits when Ray stores the result
  (`WorkerCrashedError`).

## Why
Every worker takes some open files (sockets and pipes) in the raylet and the GCS. Measured: about 3 in the raylet with
Ray 2.60, 5 with Ray 2.9, and about 60 before the first worker. A process inherits the limit of the shell, container
or service that started it. `ray.init` raises its own limit up to the hard limit, and prints `File descriptor limit N
is too low for production servers` if the limit stays below 4096. `ray start` does neither.

## Confirm
- On that node, `ls /proc/PID/fd | wc -l` for the process is close to the limit that `grep 'open files'
  /proc/PID/limits` shows.
- `events/event_RAYLET.log` contains `errno: 24 (Too many open files)`.

## Fix
Raise the limit where Ray is started, on every node (`ulimit -n 65536` before `ray start`, `docker run --ulimit
nofile=65536:65536`, systemd's `LimitNOFILE=65536`), and restart Ray: a running process keeps its limit.

## Not this when
- the warning about the limit is the only symptom: most small clusters never reach it.
- the message is `Resource temporarily unavailable`, a limit on threads (`thread-limit`), or `No space left on
  device`, a full disk (`disk-full`).
- a task opened thousands of files itself and raised `OSError`, and its worker survived (`task-exception`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import (
    CORE,
    DRIVER,
    GCS,
    NODE_DEAD,
    RAY_EXCEPTION,
    RAYLET,
    RAYLET_STARTED,
    TRACEBACK,
    TRACEBACKS,
    WORKER_DIED,
    WORKER_EXIT,
)
from raydoctor.model import paste
from raydoctor.model.entities import Entity, EntityKind
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import cluster, ended
from raydoctor.rules.shared.cluster import TOO_MANY_FILES, DeadRaylet
from raydoctor.rules.shared.exit_code import EXITING, Left, left_by_itself
from raydoctor.rules.shared.failures import ended_programs
from raydoctor.rules.shared.setup import worker_start
from raydoctor.rules.shared.task_error import MORE_FILES, OUT_OF_FILES

_DAEMONS = ("dashboard", "dashboard-agent", "runtime-env-agent", "log-monitor", "monitor")

BANNER = Signal(
    "files.limit",
    " is too low for production servers",
    r"^File descriptor limit (?P<limit>\d+) is too low for production servers",
    DRIVER,
    "File descriptor limit 100 is too low for production servers and may result in connection errors. At least 8192 is "
    "recommended. --- Fix with 'ulimit -n 8192'",
    precedes=True,
)
REFUSED = (
    Signal(
        "files.refused",
        "File descriptor limit reached. Retrying.",
        r"^File descriptor limit reached\. Retrying\.",
        (*RAYLET, *GCS, *_DAEMONS),
        "File descriptor limit reached. Retrying.",
        symptom=True,
    ),
    Signal(
        "files.refused",
        " with error: |Too many open files|",
        r"\bsocket\(\d+, \d+, \d+\) returned -?\d+ with error: \|Too many open files\|",
        (*RAYLET, *GCS, *_DAEMONS),
        "socket(10, 1, 0) returned -1 with error: |Too many open files|. This process might not have a sufficient file "
        "descriptor limit for the number of connections grpc wants to open",
        symptom=True,
    ),
    Signal(
        "files.refused",
        "Failed accept4: Too many open files",
        r"^Failed accept4: Too many open files",
        (*RAYLET, *GCS, *_DAEMONS, *DRIVER),
        "Failed accept4: Too many open files",
        symptom=True,
    ),
    Signal(
        "files.refused",
        ": Too many open files",
        r"^Raylet failed to accept new connection: Too many open files",
        RAYLET,
        "Raylet failed to accept new connection: Too many open files",
        symptom=True,
    ),
    Signal(
        "files.refused",
        ": Too many open files",
        r"^\s*(?:what\(\): |Unhandled exception: \S+ what\(\): ) ?"
        r"(?:\w{1,40}|filesystem error: [\w ]{1,80}): Too many open files",
        (*RAYLET, *GCS, *_DAEMONS, *CORE, "worker-err", "raylet-echo", "worker-echo", *DRIVER),
        "Unhandled exception: N5boost10wrapexceptINS_6system12system_errorEEE. what(): pipe_select_interrupter: Too many open files "
        "[system:24]",
        symptom=True,
    ),
)
"""The last one is an uncaught exception of boost or C++, which ends the process."""
PYTHON = Signal(
    "files.python",
    "[Errno 24] Too many open files",
    r"^(?:OSError|[\w.]*Error): \[Errno 24\] Too many open files",
    (*_DAEMONS, *DRIVER, "worker-echo"),
    "OSError: [Errno 24] Too many open files: '/proc/stat'",
    symptom=True,
)

_DOC = "https://docs.ray.io/en/latest/ray-core/configure.html"
_ENOUGH = 65536


@rule(
    tier="root",
    severity="error",
    rank=8,
    explains=("files", "job", "raylet", "worker"),
    looks_for=(
        *(TOO_MANY_FILES, BANNER, *REFUSED, PYTHON),
        *(RAYLET_STARTED, *NODE_DEAD, RAY_EXCEPTION, TRACEBACK, *worker_start.SIGNALS),
        *(WORKER_EXIT, WORKER_DIED, EXITING),
    ),
)  # fmt: skip
def file_descriptor_limit(case: Case) -> Iterator[Finding]:
    """One finding per raylet that the limit ended, one for workers, and one for processes that kept running."""
    lefts = ((exit_, left_by_itself(case, exit_)) for exit_ in case.exits)
    if workers := [(exit_, left) for exit_, left in lefts if left and left.is_out_of_files]:
        yield _of_workers(case, workers)
    ended = [
        raylet
        for raylet in cluster.dead_raylets(case)
        if any(e.kind == TOO_MANY_FILES.kind for e in raylet.said)
    ]
    for raylet in ended:
        yield _of_raylet(case, raylet)
    if ended:
        return
    if reports := case.of(TOO_MANY_FILES.kind):
        yield _of_unknown_raylet(case, reports)
    elif short := [e for e in case.of("files.refused", "files.python") if _is_from_ray(case, e)]:
        yield _of_others(case, short)


def _of_workers(case: Case, workers: list[tuple[WorkerExit, Left]]) -> Finding:
    """Workers in which Ray itself failed for want of a file descriptor, after their task had used up the others."""
    exits, left = [exit_ for exit_, _ in workers], workers[0][1]
    crashed = evidence.attempts_covered(case, exits)
    place = left.raised.first.place if left.raised else None
    return Finding(
        f"{ended.workers(exits)} reached the {_number(case)} open files{f' at {place}' if place else ''} and exited{evidence.recovery(case, exits)}",
        (
            *_limit(case),
            Link(left.event, "Ray itself cannot open another file in the worker"),
            *(Link(event, f"the driver got {event['type']}") for event in crashed[:1]),
        ),
        explains=(*evidence.exit_entities(exits), Entity("files", "limit")),
        subjects=tuple(evidence.exit_subject(exit_) for exit_ in exits[:10]),
        count=evidence.deaths(exits),
        severity=evidence.severity(case, exits),
        remedies=(MORE_FILES,),
        covers=(*evidence.exit_events(exits), *crashed, *_printed(case)),
    )


def _printed(case: Case) -> list[Event]:
    """Tracebacks in which a file could not be opened, and their last lines."""
    tracebacks = [e for e in case.of(*TRACEBACKS) if OUT_OF_FILES in e.text]
    return [*tracebacks, *case.of(PYTHON.kind)]


def _is_from_ray(case: Case, event: Event) -> bool:
    """Whether a Ray process reports it. A driver counts only together with Ray's warning about the limit.

    Where a console is all there is, so does a line of gRPC with its header.
    """
    if event.source.is_excerpt and event.kind == "files.refused":
        return bool(event.level)
    if event.kind == PYTHON.kind and event["who"] and not event.source.is_excerpt:
        return False
    if event.source.role in DRIVER and not (event.source.is_excerpt and _is_raised(case, event)):
        return bool(case.of(BANNER.kind)) and not _of_task(case, event)
    # A worker may notice only at its end what its task has used up.
    return event.source.role in ("worker-err", "core-worker") or not case.torn_down(event)


def _is_raised(case: Case, event: Event) -> bool:
    """Whether the line ends a traceback, or what an excerpt shows of one."""
    if _of_task(case, event):
        return False
    traceback = _traceback(case, event)
    if traceback is None:
        return any(end.offset == event.offset for end, _ in ended_programs(case))
    return _FRAME_OF_RAY in traceback.message or not evidence.goes_on(case, event, is_line=True)


_FRAME_OF_RAY = "-packages/ray/"


def _traceback(case: Case, event: Event) -> Event | None:
    return next(
        (
            e
            for e in case.of(*TRACEBACKS)
            if e.source is event.source and e.line < event.line <= e.line + e.text.count("\n")
        ),
        None,
    )


def _of_task(case: Case, event: Event) -> bool:
    """Whether the line is part of a task's error: that happened in a worker."""
    return any(
        e.source is event.source and e.line <= event.line <= e.line + e.text.count("\n")
        for e in case.of("driver.exception")
    )


def _of_raylet(case: Case, raylet: DeadRaylet) -> Finding:
    reports = [e for e in raylet.said if e.kind == TOO_MANY_FILES.kind]
    workers = _workers(case, raylet, reports[0])
    errors = cluster.lost_driver_errors(case)
    links = [*_limit(case), *_refused(case), Link(reports[0], _reason(workers))]
    links += cluster.witnesses(raylet)[:1]
    links += [Link(e, f"the driver got {e['type']}") for e in errors[:1]]
    local = cluster.is_drivers(case, raylet.node)
    load = f" with {evidence.many(workers, 'worker')}" if workers else ""
    return Finding(
        f"The raylet (pid {raylet.pid}) of {case.node_name(raylet.node, raylet.ip)} reached its {_number(case)} open files{load} and exited",
        tuple(links),
        explains=(
            Entity("raylet", raylet.node),
            *cluster.lost_jobs(case, raylet),
            *cluster.crashed_owners(errors),
            *_not_started(case, raylet.node),
        ),
        subjects=(Subject("raylet", raylet.node, "raylet", raylet.pid, raylet.node),),
        severity="critical" if local else "error",
        remedies=_remedies(),
        covers=(*reports, *raylet.seen, *errors, *_all(case), *_echoes(case)),
    )


def _of_unknown_raylet(case: Case, reports: list[Event]) -> Finding:
    """If the raylet's own log is not in the capture, or does not name its node."""
    errors = cluster.lost_driver_errors(case)
    place = f" of node {reports[0]['ip']}" if reports[0]["ip"] else ""
    links = [*_limit(case), Link(reports[0], _reason(0))]
    links += [Link(e, f"the driver got {e['type']}") for e in errors[:1]]
    return Finding(
        f"The raylet{place} reached its {_number(case)} open files and exited",
        tuple(links),
        explains=(
            Entity("raylet", "local"),
            *cluster.dead_node(case, reports[0]["ip"]),
            *cluster.crashed_owners(errors),
            *_not_started(case),
        ),
        subjects=(Subject("raylet", None, "raylet", reports[0].pid),),
        severity="critical",
        remedies=_remedies(),
        covers=(*reports, *errors, *_all(case), *_echoes(case)),
    )


def _of_others(case: Case, short: Sequence[Event]) -> Finding:
    processes = evidence.join_names(_process(e) for e in short)
    return Finding(
        f"{processes[0].upper()}{processes[1:]} reached the {_number(case)} open files, so new connections and files fail",
        (*_limit(case), Link(short[0], f"{_process(short[0])} cannot open more files")),
        explains=(Entity("files", "limit"), *_not_started(case)),
        count=evidence.total(short),
        severity="warning" if all(_is_users(case, e) for e in short) else None,
        remedies=_remedies(),
        covers=(*_all(case), *_echoes(case)),
    )


def _is_users(case: Case, event: Event) -> bool:
    """Whether a pasted traceback shows that a program's own code opened the file."""
    traceback = _traceback(case, event) if event.source.is_excerpt else None
    return traceback is not None and _FRAME_OF_RAY not in traceback.message


def _not_started(case: Case, node: str = "") -> tuple[Entity, ...]:
    """Workers that died while starting without an error, or whose connection the raylet could not accept."""
    kinds: dict[EntityKind, str] = {"start-crashed": "dead"}
    if case.of("files.refused"):
        kinds["start-slow"] = "still alive"
    return tuple(
        entity
        for kind, state in kinds.items()
        for one in worker_start.starts(case, state)
        if not one.words and node in ("", one.node)
        for entity in (Entity(kind, one.node), *one.entities)
    )


def _echoes(case: Case) -> list[Event]:
    kinds = {e.kind for e in _not_started(case)}
    dead = worker_start.echoes(case, "dead") if "start-crashed" in kinds else []
    alive = worker_start.echoes(case, "still alive") if "start-slow" in kinds else []
    return [*dead, *alive]


def _process(event: Event) -> str:
    role = event.source.role
    if event["who"] or role == "worker-err" or (role in DRIVER and event.pid):
        return f"a process (pid {event.pid})" if event.pid else "a process"
    known = {
        "raylet": "a raylet",
        "gcs": "the GCS",
        "driver": "the driver",
        "job-driver": "the driver",
    }
    return known.get(role.removesuffix("-out").removesuffix("-err"), f"Ray's {role}")  # fmt: skip


def _workers(case: Case, raylet: DeadRaylet, last: Event) -> int:
    """Number of workers that it had started, including workers that have exited."""
    return evidence.total(
        [
            e
            for e in case.of("worker.started")
            if case.node_of(e.source) == raylet.node and (e.at or 0) <= (last.at or 0)
        ]
    )


def _reason(workers: int) -> str:
    after = f" after starting {workers}" if workers else ""
    return f"the raylet cannot open the files for another worker{after}, and exits"


def _limit(case: Case) -> list[Link]:
    return [
        Link(e, f"Ray warns that a process can open only {e['limit']} files")
        for e in case.of(BANNER.kind)[:1]
    ]


def _refused(case: Case) -> list[Link]:
    refused = [e for e in case.of("files.refused") if e.source.role in RAYLET]
    return [Link(e, "the raylet has no file descriptor for a connection") for e in refused[:1]]


def _number(case: Case) -> str:
    """The limit, if a driver printed it: processes that the driver starts inherit it."""
    limits = {e["limit"] for e in case.of(BANNER.kind)}
    return f"limit of {limits.pop()}" if len(limits) == 1 else "limit of"


def _all(case: Case) -> tuple[Event, ...]:
    return tuple(
        e
        for e in case.of(TOO_MANY_FILES.kind, "files.refused", "files.python")
        if _is_from_ray(case, e)
    )


def _remedies() -> tuple[Remedy, ...]:
    return (
        Remedy(
            f"Allow {_ENOUGH} open files where Ray is started, on every node, and start Ray again",
            (
                paste.shell(
                    "ulimit -n {enough}; ray start   # with the options that this node was started with, in the same shell. Hard limit: /etc/security/limits.conf",
                    enough=_ENOUGH,
                ),
                paste.shell(
                    "docker run --ulimit nofile={enough}:{enough}   # plus your other options",
                    enough=_ENOUGH,
                ),
                paste.shell(
                    "LimitNOFILE={enough}   # in the section [Service] of a systemd unit (on Kubernetes, that of containerd)",
                    enough=_ENOUGH,
                ),
                "grep 'open files' /proc/$(pgrep -o raylet)/limits   # the current limit of the raylet",
            ),
            risk="disruptive",
            doc=_DOC,
        ),
        Remedy(
            "Until the limit is raised, run fewer workers on each node",
            (
                "ray start --num-cpus=FEWER   # plus your other options. Or give the actors a larger num_cpus=",
                "ray.init(num_cpus=FEWER)   # if the program starts Ray",
            ),
            doc=_DOC,
        ),
    )


# ------------------------------------------------------------------ examples

_W = "b41a1ad54acd561a0b77648b762c9b4372963c4eb73f76d0d8e90e8c"
_N = "22c00d69c65a13466942f2a8aa08d230059da8310e62499720254418"
_STARTED = (
    f"[2026-11-21 10:43:41,993 I 293 293] (raylet) node_manager.cc:355: Raylet of id, {_N} started. Raylet consists of "
    "node_manager and object_manager. node_manager address: 10.0.0.2:0 object_manager address: 10.0.0.2:46637 hostname: n\n"
)
_WORKERS = "".join(
    f"[2026-11-21 10:43:5{n},100 I 293 293] (raylet) worker_pool.cc:564: Started worker process with pid {400 + n} "
    f"worker_id={n:056x}\n"
    for n in range(8)
)
_FATAL = f"[2026-11-21 10:44:03,585 C 293 293] (raylet) worker_pool.cc:760: {TOO_MANY_FILES.sample}\n*** StackTrace Information ***\n"
_BANNER = f"2026-11-21 10:43:29,183\tWARNING worker.py:1776 -- {BANNER.sample}\n"
_LOST = "ray.exceptions.LocalRayletDiedError: The task's local raylet died. Check raylet.out for more information.\n"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the raylet cannot open files for a worker, and exits",
        {
            "logs/raylet.out": _STARTED + _WORKERS + _FATAL,
            "logs/raylet.err": _FATAL,
            "logs/gcs_server.out": "",
            "driver.log": _BANNER + _LOST,
        },
        says=("10.0.0.2", "limit of 100", "8 workers", "ulimit -n 65536", "LimitNOFILE"),
        severity="critical",
    ),
    Example(
        "a worker that has used up its files notices it only at its end",
        {
            **QUIET_LOGS,
            f"logs/worker-{_W}-01000000-398.err": "[2026-11-21 10:44:03,929 E 398 398] logging.cc:118: Unhandled exception: "
            "NSt10filesystem16filesystem_errorE. what(): filesystem error: directory iterator cannot open directory: Too many "
            "open files [/proc]\n",
        },
        says=("pid 398",),
    ),
    Example(
        "Ray cannot store the error of a task that used up the files of its worker",
        {
            "logs/gcs_server.out": "[2026-11-21 08:00:48,887 W 17 17] (gcs_server) gcs_worker_manager.cc:70: Reporting worker "
            f"exit, worker id = {_W}, node id = {_N}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = Worker exits "
            "unexpectedly. Worker exits with an exit code None. Traceback (most recent call last):\n"
            '  File "python/ray/_raylet.pyx", line 2205, in ray._raylet.execute_task\n'
            '  File "/home/ray/convert.py", line 9, in convert\n'
            "OSError: [Errno 24] Too many open files: 'part-290.csv'\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n"
            '  File "python/ray/_raylet.pyx", line 987, in ray._raylet.store_task_errors\n'
            '  File "/venv/lib/python3.11/site-packages/ray/util/serialization_addons.py", line 29, in apply\n'
            "OSError: [Errno 24] Too many open files: '/venv/lib/python3.11/site-packages/ray/_common/pydantic_compat.py'\n"
            "An unexpected internal error occurred while the worker was executing a task.\n",
            "logs/raylet.out": "",
        },
        says=("reached the limit of open files", "convert() (convert.py:9)"),
    ),
    console(
        "only the driver's output is in the capture",
        f"{_BANNER}(raylet) {_FATAL.partition(chr(10))[0]}\n{_LOST}",
        says=("limit of 100",),
        severity="critical",
    ),
    Example(
        "gRPC in the GCS has no file descriptor left",
        {
            "logs/gcs_server.err": "E1121 04:58:43.606480278   31606 tcp_server_posix.cc:378]              File descriptor limit "
            "reached. Retrying.\n",
            **QUIET_LOGS,
        },
        says=("GCS",),
    ),
    Example(
        "Ray warns about the limit at the start, and no process reaches it",
        {"driver.log": f"{_BANNER}done\n", "logs/raylet.out": _STARTED, "logs/gcs_server.out": ""},
    ),
    Example(
        "a task opened too many files itself",
        {
            "driver.log": f'{_BANNER}Traceback (most recent call last):\n  File "/app/main.py", line 9, in <module>\n    ray.get(ref)\n'
            'ray.exceptions.RayTaskError(OSError): ray::load() (pid=12, ip=10.0.0.2)\n  File "/app/main.py", line 5, in load\n'
            f"    return open(path)\n{PYTHON.sample}\n",
            "logs/raylet.out": _STARTED,
            "logs/gcs_server.out": "",
        },
        roots=("task-exception",),
    ),
    Example(
        "a task prints both messages",
        {
            "driver.log": f"(audit pid=12) {TOO_MANY_FILES.sample}\n(audit pid=12) {PYTHON.sample}\n{REFUSED[0].sample}\n",
            "logs/raylet.out": _STARTED,
            "logs/gcs_server.out": "",
        },
    ),
    console(
        "a console that begins within the traceback of a process without free descriptors",
        '  File "/usr/lib/python3.10/pathlib.py", line 1134, in read_text\n'
        '  File "/usr/lib/python3.10/pathlib.py", line 1119, in open\n'
        f"{PYTHON.sample}\n",
        severity="warning",
    ),
    console(
        "gRPC cannot accept connections, in a console",
        "E1121 07:35:03.286716015 1531938 tcp_server_posix.cc:213]    Failed accept4: Too many open files\n"
        * 2,
        roots=("file-descriptor-limit",),
    ),
    console(
        "boost cannot open a pipe in a worker, in a console",
        f"(pid=4413) [2026-11-21 07:35:04,911 E 4413 5132] logging.cc:97: {REFUSED[-1].sample}\n",
        says=("A process (pid 4413) reached the limit",),
    ),
    console(
        "a program prints text about boost's error",
        "what(): pipe_select_interrupter: Too many open files [system:24]\n",
    ),
    console(
        "a program prints the words without gRPC's header",
        "Failed accept4: Too many open files\nretrying with fewer clients\n",
    ),
    console(
        "a program that opens fewer files after the error",
        'Traceback (most recent call last):\n  File "/app/a.py", line 4, in shards\n    fs = [open(p) for p in paths]\n'
        "OSError: [Errno 24] Too many open files: '/data/7'\nreading shards one by one instead\ndone\n",
    ),
    console(
        "only the last line of a traceback",
        f"{PYTHON.sample}\n",
        roots=("file-descriptor-limit",),
    ),
    console(
        "the same line, and the program continues",
        f"{PYTHON.sample}\nepoch 3 done\n",
    ),
)
