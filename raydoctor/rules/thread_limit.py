"""The system refused to create another thread because a limit on processes and threads was reached.

## What you see
- Workers die while they start (`Some workers of the worker process(…) have not registered within the timeout. The
  process is dead`).
- `raylet.err` or a worker's own `.err` contains `pthread_create failed: Resource temporarily unavailable`, `terminate
  called after throwing an instance of 'std::system_error'`, `OpenBLAS blas_thread_init: pthread_create failed for
  thread 7 of 64` or `can't start new thread`. Running workers abort with the same messages.
- A program ends with `RuntimeError: can't start new thread`, or with `BlockingIOError: [Errno 11] Resource temporarily
  unavailable` where it starts a process, or with `WouldBlock` and `ThreadPoolBuildError` from a Rust library.
- A shell prints `fork: retry: Resource temporarily unavailable` or `fork: retry: No child processes`.

## Why
Linux counts threads as processes. `ulimit -u` limits the threads of a user on the whole machine. `pids.max` limits the
threads of a container or service (Docker `--pids-limit`, the kubelet's `podPidsLimit`, systemd's `TasksMax`). An idle
worker has about 22 threads (measured with Ray 2.9 and 2.60), and the daemons of a head node together have 130 (Ray 2.9)
to 350 (Ray 2.60). OpenBLAS or OpenMP in each worker may add one thread for every core of the machine.

## Confirm
Compare the number of threads with the limits, on that node:

- `grep processes /proc/$(pgrep -o raylet)/limits` shows the user's limit (if no raylet runs, `ulimit -u` as Ray's user
  does), and `ps -L -u "$(ps -o user= -p $(pgrep -o raylet))" | wc -l` counts this user's threads. Run it on the host:
  in a container it counts only the container's.
- `cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids.current` in the container (cgroup v1: `/sys/fs/cgroup/pids/…`) shows
  the container's limit and its threads. `pids.events` counts the refusals.

## Fix
- Run fewer workers at the same time, and stop libraries from starting a thread for each core (`OMP_NUM_THREADS=1`,
  `OPENBLAS_NUM_THREADS=1`).
- Or raise the limit that was reached. The user's: `nproc` in `/etc/security/limits.conf`, or `LimitNPROC=` of the
  systemd unit. The container's or service's: `docker run --pids-limit`, the kubelet's `podPidsLimit`, `TasksMax=`.

## Not this when
- the messages are a library's warning, and the worker kept running or ended for another reason.
- the message is `Too many open files` (`file-descriptor-limit`).
- the message is `Cannot allocate memory`, which is not about threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import (
    CORE,
    DRIVER,
    GCS,
    RAYLET,
    RAYLET_STARTED,
    TRACEBACKS,
    WORKER_DIED,
    WORKER_EXIT,
)
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import cluster
from raydoctor.rules.shared.cluster import DeadRaylet
from raydoctor.rules.shared.connect import STARTED_LOCAL, UNREGISTERED
from raydoctor.rules.shared.crash import CRASH_SIGNALS
from raydoctor.rules.shared.failures import SIGNALS as FAILURES
from raydoctor.rules.shared.failures import constructors, ended_programs, failures, program
from raydoctor.rules.shared.setup import worker_start
from raydoctor.rules.shared.setup.worker_start import Starts
from raydoctor.rules.shared.task_error import Printed, error_entities
from raydoctor.rules.shared.traceback import Raised, parse

_OUTPUT = ("raylet-err", "gcs-err", "worker-err", "raylet-echo")

REFUSED = (
    Signal(
        "threads.refused",
        "pthread_create failed",
        r"pthread_create failed(?: for thread (?P<thread>\d+) of (?P<of>\d+))?: Resource temporarily unavailable",
        _OUTPUT,
        "OpenBLAS blas_thread_init: pthread_create failed for thread 7 of 64: Resource temporarily unavailable",
    ),
    Signal(
        "threads.refused",
        "start new thread",
        r"^(?:\w+Error|_?thread\.error): can't start new thread",
        _OUTPUT,
        "RuntimeError: can't start new thread",
    ),
)
FATAL = Signal(
    "threads.fatal",
    "source temporarily unavailable",
    r"^\s*(?:what\(\): |Unhandled exception: \S+ what\(\): |libgomp: Thread creation failed: ) ?(?:thread: )?Re\s{0,300}source temporarily unavailable",
    (*_OUTPUT, *RAYLET, *GCS, *CORE, "core-io", "worker-echo", *DRIVER),
    "Unhandled exception: St12system_error. what(): Resource temporarily unavailable ray::TerminateHandler()",
)
"""An uncaught C++ exception or a fatal error of OpenMP (`libgomp/error.c`): both end the process.

A terminal's copy may contain padding where the line was wrapped.
"""
NO_FORK = Signal(
    "threads.no_fork",
    "fork: retry: ",
    r"^(?:-?(?:ba|z|k|da)?sh|/[^\s:]{1,200}|[^\s:]{1,200}\.(?:sh|bash)): (?:line \d+: )?fork: retry: (?:Resource temporarily unavailable|No child processes)\s*$",
    (*DRIVER, "worker-err"),
    "bash: fork: retry: Resource temporarily unavailable",
    symptom=True,
)
"""bash repeats a refused fork (EAGAIN) for some seconds; at a container's limit it names a stale ECHILD."""
RAISED = (
    Signal(
        "threads.raised",
        "start new thread",
        r"^(?:[\w.]{0,80}Error|_?thread\.error): can't start new thread\s*$",
        (*DRIVER, "worker-echo"),
        "RuntimeError: can't start new thread",
    ),
    Signal(
        "threads.raised",
        "code: 11, kind: WouldBlock",
        r"(?:ThreadPoolBuildError|failed to spawn (?:a )?thread)\b.{0,200}?\bcode: 11, kind: WouldBlock\b",
        (*DRIVER, "worker-echo", "worker-err"),
        "The global thread pool has not been initialized.: ThreadPoolBuildError { kind: IOError(Os { code: 11, kind: WouldBlock, "
        'message: "Resource temporarily unavailable" }) }',
    ),
)
"""Exceptions of programs: Python's, and those of libraries in Rust (tokenizers and polars, by rayon and std)."""
_NO_THREAD = "can't start new thread"
_NO_PROCESS = "[Errno 11] Resource temporarily unavailable"
_FORKS = (
    ("subprocess.py", "_execute_child"),
    ("multiprocessing/popen_fork.py", "_launch"),
    ("multiprocessing/util.py", "spawnv_passfds"),
)
"""Where Python starts processes: elsewhere, EAGAIN means that a socket or lock is busy."""
OPENBLAS_LIMIT = Signal(
    "threads.limit",
    "blas_thread_init: RLIMIT_NPROC ",
    r"^OpenBLAS blas_thread_init: RLIMIT_NPROC (?P<limit>\d+) current",
    _OUTPUT,
    "OpenBLAS blas_thread_init: RLIMIT_NPROC 4096 current, 8192 max",
)

_JUST_BEFORE = 5
"""Lines of a console between the refusal and the failed registration."""
_DOC = "https://docs.ray.io/en/latest/ray-core/configure.html"


@rule(
    tier="root",
    severity="error",
    rank=8,
    explains=(
        *("process", "program", "registration", "start-crashed", "start-slow", "task-error"),
        *("waiting", "worker"),
    ),
    looks_for=(*REFUSED, *RAISED, *FAILURES, FATAL, UNREGISTERED, NO_FORK, OPENBLAS_LIMIT, *worker_start.SIGNALS, CRASH_SIGNALS[0], RAYLET_STARTED, WORKER_EXIT, WORKER_DIED),
)  # fmt: skip
def thread_limit(case: Case) -> Iterator[Finding]:
    """One finding per raylet that ended this way, and one per node whose workers did."""
    for raylet in cluster.dead_raylets(case):
        words = [e for e in case.of(FATAL.kind) if _is_raylets(case, raylet, e)]
        if words:
            yield _of_raylet(case, raylet, words)
    dead = {
        one.node: one for one in worker_start.starts(case, "dead") if _words(case, one)
    }  # fmt: skip
    aborted: dict[str, list[WorkerExit]] = {}
    for exit_ in case.exits:
        if exit_.worker and exit_.exit_type == "SYSTEM_ERROR" and _last_words(case, exit_):
            aborted.setdefault(exit_.node, []).append(exit_)
    for node in dict.fromkeys((*dead, *aborted)):
        yield _of_workers(case, dead.get(node), aborted.get(node, []), node)
    drivers = list(_of_drivers(case)) if evidence.is_console(case) else []
    yield from drivers
    is_explained = bool(dead or aborted or drivers)
    printed = [e for e in case.of(FATAL.kind) if e.source.role in (*DRIVER, "worker-err")]
    if printed and not (dead or aborted) and evidence.is_console(case):
        yield _of_console(case, printed)
    elif not is_explained and (raised := _raised(case)):
        yield _of_raised(case, *raised)
    elif not is_explained and (cut := [*_cut_starts(case)]):
        yield replace(_of_raised(case, cut, []), severity="warning")
    elif not is_explained and (refused := _refused_in_excerpt(case)):
        yield _of_refusals(case, refused)
    elif (shells := case.of(NO_FORK.kind)) and not (dead or aborted):
        yield _of_shells(case, shells)


def _cut_starts(case: Case) -> Iterator[Event]:
    """Ends of consoles within the call that starts a thread, which raises nothing else."""
    for ending, raised in ended_programs(case):
        last = raised.frames[-1] if raised.frames else None
        if last and not raised.type and last.code.startswith("_start_new_thread("):
            yield ending


def _refused_in_excerpt(case: Case) -> list[Event]:
    """Refusals that gRPC or OpenBLAS print with their own header: a pasted log may show nothing else."""
    words = case.of(worker_start.REFUSED.kind)
    if case.of(UNREGISTERED.kind) or any(worker_start.REFUSED.find in e.message for e in words):
        return []
    return [
        e
        for e in case.of(REFUSED[0].kind)
        if e.source.is_excerpt and (e["thread"] or (e.level and "pthread_create" in e.message))
    ]


def _raised(case: Case) -> tuple[list[Event], list[Printed]] | None:
    """Exceptions for want of a thread or process, and the failures of tasks and actors among them."""
    failed = [
        seen
        for seen in (*failures(case), *constructors(case))
        if seen.failure.raised and _is_refusal(seen.failure.raised)
    ]
    shown = [e for e in case.of(RAISED[0].kind) if e.source.is_excerpt]
    shown += [
        e
        for e in case.of(*TRACEBACKS)
        if e.source.is_excerpt and (raised := parse(e.message)) and _is_refusal(raised)
    ]
    return (shown, failed) if shown or failed else None


def _is_refusal(raised: Raised) -> bool:
    last = raised.frames[-1] if raised.frames else None
    is_fork = last is not None and any(
        last.file.replace("\\", "/").endswith(file) and last.function == function
        for file, function in _FORKS
    )
    return raised.message == _NO_THREAD or (is_fork and raised.message.startswith(_NO_PROCESS))


def _of_raised(case: Case, shown: list[Event], failed: list[Printed]) -> Finding:
    events = [*shown, *(event for seen in failed for event in seen.records)]
    first = min(events, key=lambda e: (e.source.path, e.line))
    last = max(events, key=lambda e: (e.source.path, e.line))
    name = failed[0].failure.function if failed else first["who"] or "the program"
    ends = [
        e
        for e, raised in ended_programs(case)
        if (_is_refusal(raised) or e in shown) and any(e.source is x.source for x in events)
    ]
    return Finding(
        f"The system refused {name} another thread or process{_number(case)}",
        (Link(first, f"the system refused {name} another thread or process (EAGAIN)"),),
        explains=(
            *(Entity("start-crashed", ""),),
            *evidence.process_entities(shown),
            *error_entities(failed),
            *map(program, ends),
        ),
        severity="warning" if evidence.goes_on(case, last, is_line=True) else None,
        subjects=(Subject("process", None, name, first.pid),),
        remedies=tuple(_remedies([])),
        covers=(*events, *ends, *case.of(REFUSED[0].kind)),
    )


def _of_drivers(case: Case) -> Iterator[Finding]:
    """Drivers that could not register with their raylet right after the refusal, in a console."""
    words = case.of(REFUSED[0].kind)
    for event in case.of(UNREGISTERED.kind):
        near = [
            e for e in words if e.source is event.source and 0 < event.line - e.line <= _JUST_BEFORE
        ]
        if not near:
            continue
        yield Finding(
            f"The driver could not register with its raylet because the system refused another thread{_number(case)}{_openblas_threads(near)}",
            (
                Link(near[0], "the system refused a process of this Ray another thread (EAGAIN)"),
                Link(event, "just after that, the raylet does not register the driver"),
            ),
            explains=(Entity("registration", event.source.node),),
            subjects=(Subject("process", None, None, event.pid),),
            severity="critical",
            remedies=tuple(_remedies(near)),
            covers=(*near, event),
        )


def _of_console(case: Case, printed: list[Event]) -> Finding:
    """Processes that the uncaught C++ exception ended, in a console without the daemons' logs."""
    writers = dict.fromkeys((e["ip"], e.pid) for e in printed)
    exits = evidence.unexpected_exits(case, printed)
    first, count = printed[0], len(writers)
    name = first["who"] or "process"
    subject = f"{count} processes" if count > 1 else f"A {name}" if name == "process" else name
    pid = f" (pid {first.pid})" if count == 1 and first.pid is not None else ""
    words = case.of(REFUSED[0].kind)
    return Finding(
        f"{subject}{pid} aborted because the system refused another thread{_number(case)}{_openblas_threads(words)}",
        (
            Link(
                first,
                "the system refused another thread, which ended the process",
            ),
            *(link for x in exits[:1] for link in evidence.exit_links(x, most=1)),
        ),
        explains=(
            *(Entity("process", f"{ip}/{pid}") for ip, pid in writers if pid is not None),
            *evidence.exit_entities(exits),
        ),
        subjects=(Subject("process", None, first["who"] or None, first.pid),),
        count=count,
        remedies=tuple(_remedies(words)),
        covers=(*printed, *words, *evidence.exit_events(exits)),
    )


def _of_refusals(case: Case, refused: list[Event]) -> Finding:
    """Refusals of which the process may have survived any. The header of gRPC names a thread and not a process."""
    return Finding(
        f"The system refused another thread{_number(case)}{_openblas_threads(refused)}",
        (Link(refused[0], "the system refused another thread (EAGAIN)"),),
        explains=(Entity("start-crashed", ""),),
        severity="warning" if evidence.goes_on(case, refused[-1]) else None,
        count=evidence.total(refused),
        remedies=tuple(_remedies(refused)),
        covers=tuple(refused),
    )


def _of_shells(case: Case, shells: list[Event]) -> Finding:
    """A shell on the node that cannot start a command; if its script continues, a later attempt succeeded."""
    return Finding(
        f"The system refused a shell another process{_number(case)}: the user's processes and threads reached the limit",
        (Link(shells[0], "fork failed, and the shell tries again"),),
        explains=(Entity("start-crashed", ""),),
        severity="warning" if evidence.goes_on(case, shells[-1]) else None,
        subjects=(Subject("process", None, "bash", None),),
        count=evidence.total(shells),
        remedies=(
            Remedy(
                "Find out which processes hold the threads",
                (
                    "ps -eLo user,pid,comm | sort | uniq -c | sort -n | tail   # as another user, if no command starts",
                ),
            ),
            Remedy(
                "End those of earlier runs: raydoctor shows its plan and asks",
                ("raydoctor zombies --kill   # on that machine",),
                risk="destructive",
            ),
            *_remedies([]),
        ),
        covers=tuple(shells),
    )


def _is_raylets(case: Case, raylet: DeadRaylet, event: Event) -> bool:
    """Whether the record is the raylet's own, by its pid: starting workers also print into `raylet.err`."""
    here = event.source.role in RAYLET and case.node_of(event.source) == raylet.node
    return here and bool(event.level) and event.pid == raylet.pid


def _words(case: Case, one: Starts) -> list[Event]:
    return worker_start.said_by(case, one.events, REFUSED[0].kind, FATAL.kind)


def _last_words(case: Case, exit_: WorkerExit) -> list[Event]:
    """The refusal that ended a worker: alone it is a warning, with a crash report it is the cause."""
    worker = Entity("worker", exit_.worker)
    if fatal := case.about(worker, FATAL.kind):
        return fatal
    return case.about(worker, REFUSED[0].kind) if case.about(worker, "crash.handler") else []


def _starting(case: Case, node: str) -> Iterator[Entity]:
    """Workers that aborted before they registered: Ray does not record their end."""
    for event in case.of(REFUSED[0].kind, FATAL.kind):
        for entity in event.source.entities:
            here = entity.kind == "worker" and case.node_of(event.source) in ("", node)
            if here and case.about(entity, "crash.handler"):
                end = case.exit_of(entity.value)
                end = end or WorkerExit(entity.value, "", "", [], pid=event.source.pid)
                yield from end.entities


def _unregistered(case: Case, node: str) -> list[Starts]:
    """Workers of the node that hang after the refusal instead of dying."""
    return [one for one in worker_start.starts(case, "still alive") if one.node == node]


def _reports(case: Case, node: str) -> Iterator[Event]:
    """Crash reports, including those of workers that still wrote into `raylet.err`."""
    for entity in _starting(case, node):
        yield from case.about(entity, "crash.handler")
    pids = {e.pid for e in case.of(REFUSED[0].kind, FATAL.kind) if e.pid}
    for event in case.of("daemon.crash", "log.error"):
        here = event.source.role == "raylet-err" and case.node_of(event.source) == node
        if here and (event.pid in pids or (event.pid is None and event.kind == "daemon.crash")):
            yield event


def _of_raylet(case: Case, raylet: DeadRaylet, words: list[Event]) -> Finding:
    errors = cluster.lost_driver_errors(case)
    return Finding(
        f"The raylet (pid {raylet.pid}) of {case.node_name(raylet.node, raylet.ip)} died because the system refused another "
        f"thread{_number(case)}",
        (
            Link(
                words[0], "the system refused the raylet a thread, and the uncaught error ended it"
            ),
            *cluster.witnesses(raylet)[:2],
            *(Link(e, f"the driver got {e['type']}") for e in errors[:1]),
        ),
        explains=(Entity("raylet", raylet.node), *cluster.lost_jobs(case, raylet)),
        subjects=(Subject("raylet", raylet.node, "raylet", raylet.pid, raylet.node),),
        severity="critical" if cluster.is_drivers(case, raylet.node) else "error",
        remedies=tuple(_remedies(words)),
        covers=(*words, *raylet.seen, *raylet.said, *errors),
    )


def _of_workers(
    case: Case, dead: Starts | None, aborted: list[WorkerExit], node: str
) -> Finding:  # fmt: skip
    words = _words(case, dead) if dead else []
    words += [e for exit_ in aborted for e in _last_words(case, exit_)]
    ip = case.ledger.node_ips.get(node, dead.ip if dead else "")
    names = worker_start.affected(case, dead) if dead else []
    crashed = evidence.attempts_covered(case, aborted) if aborted else ()
    return Finding(
        _headline(case, dead, aborted, ip, names) + _openblas_threads(words),
        tuple(_links(dead, aborted, words)),
        explains=(
            *evidence.exit_entities(aborted),
            *_starting(case, node),
            *((Entity("start-crashed", node), *dead.entities) if dead else ()),
            *(Entity("start-slow", one.node) for one in _unregistered(case, node)),
        ),
        subjects=(
            Subject("node", node or None, ip or None),
            *(evidence.exit_subject(e) for e in aborted[:9]),
        ),
        count=(dead.count if dead else 0) + evidence.deaths(aborted),
        severity="warning" if dead and not aborted and worker_start.is_over(case, dead) else None,
        remedies=tuple(_remedies(words)),
        covers=(
            *words,
            *(e for one in (dead,) if one for e in (*one.events, *one.words, *one.given_up)),
            *(worker_start.echoes(case, "dead") if dead else ()),
            *(worker_start.echoes(case, "still alive") if _unregistered(case, node) else ()),
            *evidence.exit_events(aborted),
            *crashed,
            *case.of(REFUSED[0].kind, FATAL.kind),
            *_reports(case, node),
        ),
    )


def _headline(
    case: Case, dead: Starts | None, aborted: list[WorkerExit], ip: str, names: list[str]
) -> str:
    parts = []
    if dead:
        parts.append(f"{evidence.many(dead.count, 'worker process', 'worker processes')} died while starting")  # fmt: skip
    if aborted:
        parts.append(f"{_aborted(aborted)} aborted")
    place = f" on node {ip}" if ip else ""
    subject = " and ".join(parts)
    text = f"{subject[:1].upper()}{subject[1:]}{place} because the system refused another thread{_number(case)}"
    tasks = f"task{'s' if len(names) > 1 else ''} {evidence.join_names(names)}"
    return f"{text}, so {tasks} could not run" if names else text


def _aborted(exits: list[WorkerExit]) -> str:
    if evidence.deaths(exits) == 1:
        return f"the worker of {exits[0].label}" if exits[0].names else f"the {exits[0].label}"
    return f"{evidence.deaths(exits)} workers ({evidence.join_names(e.label for e in exits)})"


def _number(case: Case) -> str:
    limits = {e["limit"] for e in case.of(OPENBLAS_LIMIT.kind)}
    known = f" of {limits.pop()}" if len(limits) == 1 else ""
    return f" (ulimit -u{known}, or the container's pids.max)"


def _openblas_threads(words: list[Event]) -> str:
    of = max((int(e["of"]) for e in words if e["of"]), default=0)
    return f": OpenBLAS starts {of} threads in each worker" if of else ""


def _links(dead: Starts | None, aborted: list[WorkerExit], words: list[Event]) -> Iterator[Link]:
    for event in words[:1]:
        yield Link(event, "the system refused a Ray process another thread (EAGAIN)")
    if dead:
        yield Link(dead.events[0], "the raylet found a starting worker dead")
        if dead.count > 1:
            yield Link(
                dead.events[-1], f"the last of {dead.count} workers that died while starting"
            )
        for event in dead.given_up[:1]:
            yield Link(event, f"Ray gave up, and the driver got {event['type']}")
    for exit_ in aborted[:1]:
        yield from evidence.exit_links(exit_, most=1)


def _remedies(words: list[Event]) -> Iterator[Remedy]:
    yield Remedy(
        "Raise the limit that was reached, and restart Ray",
        (
            "grep processes /proc/$(pgrep -o raylet)/limits; cat /sys/fs/cgroup/pids.max; ps -eLf | wc -l   # which limit was reached?",
            "ulimit -u unlimited; ray start   # with the options that this node was started with, in the same shell. Hard limit: /etc/security/limits.conf",
            "docker run --pids-limit=-1   # plus your other options. Kubernetes: podPidsLimit of the kubelet. systemd: TasksMax=infinity",
        ),
        risk="disruptive",
        doc=_DOC,
    )
    most = ": OpenBLAS starts one per core" if _openblas_threads(words) else ""
    yield Remedy(
        f"Limit numerical libraries to 1 thread in each worker{most}",
        (
            'ray.init(runtime_env={"env_vars": {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}})',
        ),
        doc=_DOC,
    )
    yield Remedy(
        "Run fewer workers at the same time on a node",
        (
            "ray start --num-cpus=CORES   # plus your other options. CORES: those that the container has",
            "ray.init(num_cpus=CORES)   # if the program starts Ray",
        ),
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples

_W = "10c5b6e9aa963461b88bd8fa222edff4d67f9453931d5de07a1d8eaa"
_N = "4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483"
_STARTED = (
    f"[2026-11-21 10:58:03,993 I 293 293] (raylet) node_manager.cc:355: Raylet of id, {_N} started. Raylet consists of "
    "node_manager and object_manager. node_manager address: 10.0.0.2:0 object_manager address: 10.0.0.2:46637 hostname: n\n"
)
_GRPC = "E1121 10:58:30.466599685     543 thd.cc:157]                           pthread_create failed: Resource temporarily unavailable\n"
_TERMINATE = "terminate called after throwing an instance of 'std::system_error'\n  what():  Resource temporarily unavailable\n"
_OPENBLAS = (
    f"{REFUSED[0].sample}\nOpenBLAS blas_thread_init: ensure that your address space and process count limits are big enough "
    f"(ulimit -a)\n{OPENBLAS_LIMIT.sample}\n"
)
_EXIT = (
    "[2026-11-21 10:58:26,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{_W}, node id = {_N}, address = 10.0.0.2, exit_type = {{}}, exit_detail = Worker unexpectedly exits with a connection "
    "error code 2. End of file.\n"
)


def _dead(n: int) -> str:
    text = worker_start.UNREGISTERED.sample.replace("(450)", f"({543 + n})")
    return f"[2026-11-21 10:58:{32 + n},806 E 293 293] (raylet) worker_pool.cc:660: {text}\n"


_UNREGISTERED = (
    f"Failed to register worker 01000000{'f' * 48} to Raylet. IOError: [RayletClient] Unable to register worker with raylet. "
    "No such file or directory"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the limit leaves no thread for a new worker",
        {
            "logs/raylet.out": _STARTED + "".join(_dead(n) for n in range(3)),
            "logs/raylet.err": "".join(_GRPC + _TERMINATE + _dead(n) for n in range(3)),
            "logs/gcs_server.out": "",
        },
        says=("3 worker processes", "10.0.0.2", "pids.max", "ulimit -u", "--pids-limit"),
    ),
    console(
        "a terminal's copy contains padding within the error's words",
        "[2026-11-21 06:21:57,911 E 3961 4396] logging.cc:97: Unhandled exception: N5boost10wrapexceptINS_6system12system_errorEEE. "
        f"what(): thread: Re{' ' * 90}source temporarily unavailable [system:11]\n",
        says=("pid 3961",),
    ),
    Example(
        "OpenBLAS starts a thread for each of 64 cores, and reports the limit",
        {
            "logs/raylet.out": _STARTED + _dead(0),
            "logs/raylet.err": _OPENBLAS + _dead(0),
            "logs/gcs_server.out": "",
        },
        says=("64", "4096", "OPENBLAS_NUM_THREADS"),
    ),
    Example(
        "a running worker aborts when it starts another thread",
        {
            f"logs/worker-{_W}-01000000-472.err": "[2026-11-21 10:58:25,816 E 472 472] logging.cc:118: "
            + FATAL.sample
            + "\n",
            "logs/gcs_server.out": _EXIT.format("SYSTEM_ERROR"),
            "logs/raylet.out": _STARTED,
        },
        says=("pid 472",),
    ),
    Example(
        "a user's library got fewer threads, and its worker ended for another reason",
        {
            f"logs/worker-{_W}-01000000-472.err": _OPENBLAS,
            "logs/gcs_server.out": _EXIT.format("SYSTEM_ERROR"),
            "logs/raylet.out": _STARTED,
        },
        roots=("worker-vanished",),
    ),
    Example(
        "a worker that kept running after the refusal",
        {
            f"logs/worker-{_W}-01000000-472.err": _OPENBLAS,
            "logs/gcs_server.out": "",
            "logs/raylet.out": _STARTED,
        },
    ),
    console(
        "two workers of a console without other logs",
        "".join(
            f"(pid={pid}) [2026-11-21 10:58:25,816 E {pid} {pid}] logging.cc:97: {FATAL.sample}\n"
            for pid in (911, 912)
        )
        + _GRPC,
        says=("2 processes aborted", "pids.max"),
    ),
    console(
        "the driver itself, with the message of boost",
        "[2026-11-21 10:58:25,816 E 77 77] logging.cc:97: Unhandled exception: "
        "N5boost10wrapexceptINS_6system12system_errorEEE. what(): thread: Resource temporarily unavailable [system:11]\n",
        says=("(pid 77)", "ulimit -u"),
    ),
    console(
        "the refusal just before a driver cannot register",
        f"2026-11-21 10:58:24,387\tINFO worker.py:1771 -- {STARTED_LOCAL.sample}\n"
        "E1121 10:58:25.605366961 2474 thd.cc:157]   pthread_create failed: Resource temporarily unavailable\n"
        f"[2026-11-21 10:58:25,819 E 77 77] core_worker.cc:251: {_UNREGISTERED}\n",
        says=("could not register with its raylet", "pids.max"),
        severity="critical",
    ),
    console(
        "a library got fewer threads long before a driver could not register",
        f"{REFUSED[0].sample}\n"
        + "loss 0.1\n" * 9
        + f"[2026-11-21 10:58:25,819 E 77 77] core_worker.cc:251: {_UNREGISTERED}\n",
        roots=("driver-not-registered",),
    ),
    console(
        "a shell on the node cannot start any command",
        "-bash: fork: retry: No child processes\n" * 3,
        says=("a shell another process", "pids.max"),
    ),
    console(
        "a script that starts Ray",
        f"/app/start.sh: line 12: {NO_FORK.sample.partition(': ')[2]}\n",
        roots=("thread-limit",),
    ),
    console(
        "a shell without memory, and a note",
        "bash: fork: Cannot allocate memory\nIf fork: retry: No child processes appears, raise the limit\n",
    ),
    console(
        "a socket or lock that is busy, and a library that got fewer threads",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable\n"
        f"(train pid=12) {REFUSED[0].sample}\nloss 0.1\n",
    ),
    console(
        "OpenMP ends a worker in a console",
        "(load pid=129) libgomp: Thread creation failed: Resource temporarily unavailable\n",
        says=("load (pid 129)", "refused another thread"),
    ),
    console(
        "a program that quotes the message",
        "if you see 'libgomp: Thread creation failed', raise the limit\n",
    ),
    console(
        "a pasted log shows gRPC's refusals and nothing else",
        "E1121 11:41:39.402580729     469 thd.cc:157]                           pthread_create failed: Resource "
        "temporarily unavailable\n" * 2,
        says=("The system refused another thread",),
    ),
    console(
        "the same in a program that goes on: no process ended",
        "E1121 11:41:39.402580     469 thd.cc:157] pthread_create failed: Resource temporarily unavailable\n"
        "epoch 1\nepoch 2\ntraining done\n",
        severity="warning",
    ),
    console(
        "a compiler that a task starts gets no thread",
        "".join(
            f"(TaskRunner pid=77) {line}\n"
            for line in (
                "Uncaught exception in compile_worker subprocess",
                "Traceback (most recent call last):",
                '  File "/venv/lib/python3.11/site-packages/torch/_inductor/compile_worker/watchdog.py", line 9, in start',
                "    thread.start()",
                '  File "/usr/lib/python3.11/threading.py", line 935, in start',
                "    _start_new_thread(self._bootstrap, ())",
                RAISED[0].sample,
            )
        ),
        says=("refused TaskRunner another thread or process", "pids.max"),
    ),
    console(
        "a task cannot start a process",
        "Traceback (most recent call last):\n"
        "ray.exceptions.RayTaskError(BlockingIOError): ray::unpack() (pid=12, ip=10.0.0.2)\n"
        '  File "/app/etl.py", line 6, in unpack\n    subprocess.run(["tar"])\n'
        '  File "/usr/lib/python3.11/subprocess.py", line 1885, in _execute_child\n    self.pid = _fork_exec(\n'
        "BlockingIOError: [Errno 11] Resource temporarily unavailable\n",
        says=("refused unpack another thread",),
    ),
    console(
        "a task whose lock is busy",
        "Traceback (most recent call last):\n"
        "ray.exceptions.RayTaskError(BlockingIOError): ray::unpack() (pid=12, ip=10.0.0.2)\n"
        '  File "/app/etl.py", line 6, in unpack\n    fcntl.flock(f, LOCK_EX | LOCK_NB)\n'
        "BlockingIOError: [Errno 11] Resource temporarily unavailable\n",
        roots=("task-exception",),
    ),
    console(
        "a tokenizer cannot start its threads",
        f"(Reader pid=12) thread '<unnamed>' panicked at src/lib.rs:9:1:\n(Reader pid=12) {RAISED[1].sample}\n",
        says=("refused Reader another thread",),
    ),
    console(
        "a program that survives the refusal, and one that writes about it",
        f"worker 3: {_NO_THREAD}, continuing with 2\nepoch 1\n",
    ),
    console(
        "a console that ends within the start of a thread",
        'Traceback (most recent call last):\n  File "/app/train.py", line 9, in <module>\n    pool.start()\n'
        '  File "/usr/lib/python3.11/threading.py", line 957, in start\n    _start_new_thread(self._bootstrap, ())\n',
        roots=("thread-limit",),
        severity="warning",
    ),
)
