"""A worker or a driver ended itself because one of Ray's own checks failed.

## What you see
- The driver gets `WorkerCrashedError` or `ActorDiedError`.
- The process's core log, its `.err` and the driver's output contain a line of level `C` (fatal): `Check failed:
  <expression>`. Since Ray 2.49 the line also contains `An unexpected system state has occurred. You have likely
  discovered a bug in Ray`. A native stack follows.

## Why
Ray's C++ code checks its own assumptions and ends the process when one does not hold. Often the environment broke it:
the raylet or the GCS had exited, or a file or the shared memory was full. The expression `objects_valid` means that a
task raised a `BaseException` that is not an `Exception` (seen from Ray 2.9.3 to 2.47; later versions pass the exception
on).

## Confirm
- Read the records just above the `Check failed:` line in that core log.
- Search Ray's issue tracker (github.com/ray-project/ray/issues) for the expression after `Check failed:`.

## Fix
Remove the cause in the environment. If there is none, report the expression, the version and the stack. A newer Ray may
contain the fix.

## Not this when
- the raylet or the GCS failed a check (`raylet-died`, `gcs-died`).
- a library caused a SIGSEGV or called `abort()` (`worker-native-crash`).
- another library failed a check of its own: TensorFlow, XLA and glog print the same words behind `F1121 10:58:30.466
  …`.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, console, rule
from raydoctor.case.signals import LOCAL_RAYLET_FAILED, WORKER_DIED, WORKER_EXIT
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.cluster import (
    GCS_LOST_CHECK,
    is_fatal,
    is_of_gcs,
    is_of_raylet,
    is_of_redis_client,
    spelled,
)
from raydoctor.rules.shared.crash import (
    CHECK,
    CHECK_PLACES,
    LOG_FRAME,
    NATIVE_STACK,
    OLD_FATAL,
    checks_of_processes,
    fatal_ends,
    is_of_old_ray,
)

_ISSUES = "https://github.com/ray-project/ray/issues"


_OF_OTHERS = (
    *("Failed to start the grpc server", "find an authentication token."),
    GCS_LOST_CHECK.find,
)
"""Checks that `port-conflict`, `auth-token` and `gcs-unreachable` report."""


@rule(
    tier="root",
    severity="error",
    rank=31,
    explains=("daemon", "process", "worker"),
    caused_by=("gcs", "node", "raylet"),
    daemons_record=True,
    looks_for=(
        CHECK,
        *CHECK_PLACES,
        LOG_FRAME,
        OLD_FATAL,
        NATIVE_STACK,
        WORKER_EXIT,
        WORKER_DIED,
        LOCAL_RAYLET_FAILED,
    ),
)
def ray_check_failed(case: Case) -> Iterator[Finding]:
    """One finding per expression for workers, and one per driver."""
    groups: dict[str, dict[Entity, tuple[Event, WorkerExit]]] = {}
    drivers: dict[int | None, Event] = {}
    for event in _last_words(case):
        if any(text in event.message for text in _OF_OTHERS) or _is_of_daemon(event):
            continue
        worker = evidence.worker_of(event)
        if ids.job_of_driver(worker) or not (worker or event["who"]):
            if not case.torn_down(event):
                drivers.setdefault(event.pid, event)
        elif (exit_ := _exit(case, worker, event)) and not exit_.expected:
            alike = groups.setdefault(_expression(event), {})
            alike.setdefault(exit_.entities[-1], (event, exit_))
    for event in drivers.values():
        yield _of_driver(case, event, ids.job_of_driver(evidence.worker_of(event)))
    for expression, members in groups.items():
        yield _of_workers(case, expression, list(members.values()))


_CLOSED = ("Broken pipe", "Connection reset by peer", "End of file")
"""Errors of a worker's connection to its raylet, which the raylet's end closes."""


def _is_of_daemon(event: Event) -> bool:
    """Whether `gcs-died`, `raylet-died` or `redis-unreachable` reports the check."""
    return is_of_gcs(event) or is_of_raylet(event) or is_of_redis_client(event)


def _exit(case: Case, worker: str, event: Event) -> WorkerExit | None:
    """The recorded end of the process, or else the end that this record itself proves."""
    known = evidence.exit_of(case, event)
    if known or case.torn_down(event):
        return known
    names = (event["who"],) if event["who"] not in ("", "raylet") else ()
    same_pid = [w for w, pid in case.ledger.pids.items() if pid == event.pid]
    if not worker and len(same_pid) == 1:
        worker = same_pid[0]
    node = case.ledger.worker_nodes.get(worker, "")
    return WorkerExit(
        worker, "SYSTEM_ERROR", "", [], event.at, node, event["ip"], event.pid, names=names
    )


def _expression(event: Event) -> str:
    return " ".join((event["expression"] or event.message.partition("\n")[0]).split())


def _last_words(case: Case) -> list[Event]:
    """Failed checks that ended a process: level `C`, or in a paste without headers the stack below."""
    above_stacks = checks_of_processes(case)
    checks = [
        e
        for e in case.of(CHECK.kind)
        if is_fatal(e) or id(e) in above_stacks or is_of_old_ray(case, e)
    ]
    return [*checks, *(e for e in fatal_ends(case) if not is_of_raylet(e))]


def _reports(case: Case, expression: str) -> list[Event]:
    """Every copy of the records: in the core log, in `.err`, and echoed."""
    return [e for e in _last_words(case) if _expression(e) == expression]


def _of_workers(case: Case, expression: str, members: list[tuple[Event, WorkerExit]]) -> Finding:
    events, exits = [event for event, _ in members], [exit_ for _, exit_ in members]
    names = evidence.join_names(e.noun for e in exits)
    is_cut_off = any(words in expression for words in _CLOSED)
    lost = [
        e
        for e in exits
        if is_cut_off
        or any(
            evidence.worker_of(seen) == e.worker
            for seen in case.about(Entity("worker", e.worker), "raylet.seen_dead")
        )
    ]
    crashed = evidence.attempts_covered(case, exits)
    links = [
        Link(
            events[0],
            f"{exits[0].noun} ends itself because a check of Ray failed: {expression[:120]}",
        )
    ]
    links += evidence.exit_links(exits[0], most=1)
    links += [Link(event, "the driver got WorkerCrashedError") for event in crashed[:1]]
    return Finding(
        f"One of Ray's own checks failed and ended {names}: {spelled(expression)}{evidence.recovery(case, exits)}",
        tuple(links),
        explains=evidence.exit_entities(exits),
        caused_by=tuple(
            Entity(kind, e.node) for e in lost for kind in ("raylet", "node") if e.node
        ),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=evidence.deaths(exits),
        severity=evidence.severity(case, exits),
        remedies=tuple(_remedies(expression)),
        covers=(*_reports(case, expression), *evidence.exit_events(exits), *crashed),
    )


def _of_driver(case: Case, event: Event, job: str) -> Finding:
    expression = _expression(event)
    name = f"the driver (pid {event.pid})" if event.pid is not None else "a process of Ray"
    return Finding(
        f"One of Ray's own checks failed and ended {name}: {spelled(expression)}",
        (Link(event, f"{name} ends itself because a check of Ray failed: {expression[:120]}"),),
        explains=(Entity("job", job) if job else Entity("daemon", f"driver/{event.pid}"),),
        caused_by=(Entity("gcs", "gcs"), Entity("raylet", "local")),
        subjects=(Subject("job", job or None, None, event.pid),),
        remedies=tuple(_remedies(expression)),
        covers=tuple(_reports(case, expression)),
    )


def _remedies(expression: str) -> Iterator[Remedy]:
    if expression.startswith("objects_valid"):
        yield Remedy(
            "Find the task that raises a BaseException, and derive that class from Exception",
            (
                "grep -B3 'Exception ignored in: .ray._raylet.task_execution_handler' /tmp/ray/session_latest/logs/worker-*.err   # on the node of that process",
            ),
        )
    yield Remedy(
        "Search Ray's issues for the expression, and report it with version and stack if it is new",
        (
            paste.shell(
                "https://github.com/ray-project/ray/issues?q={words:url}",
                words=" ".join(expression.split()[:8]),
            ),
        ),
        doc=_ISSUES,
    )


# ------------------------------------------------------------------ examples

_W = "205d1ecf18c5bf6ba8aa480f2fd89b9cfd629c3a774f4475a9d2f216"
_EXIT = (
    "[2026-11-21 08:09:34,720 W 8 8] (gcs_server) gcs_worker_manager.cc:55: Reporting worker exit, worker id = "
    f"{_W}, node id = {'a' * 56}, address = 127.0.0.1, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits with a "
    "connection error code 2. End of file.\n"
)
_LOG = f"logs/python-core-worker-{_W}_237.log"
_C = "[2026-11-21 08:09:34,709 C 237 237] direct_actor_transport.cc:205:  Check failed: objects_valid \n*** StackTrace Information ***\n"

_OLD_STACK = (
    "*** Check failure stack trace: ***\n    @     0x7f1b5fd568ed  google::LogMessage::Fail()\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a worker ends on a failed check",
        {_LOG: _C, "logs/gcs_server.out": _EXIT, "logs/raylet.out": ""},
        says=("objects_valid", "pid 237", "BaseException"),
    ),
    Example(
        "the same words at another log level",
        {
            _LOG: _C.replace(" C 237", " W 237"),
            "logs/gcs_server.out": _EXIT,
            "logs/raylet.out": "",
        },
        roots=("worker-vanished",),
    ),
    console(
        "two ranks of a training run, in the driver's output",
        "".join(
            f"(RayTrainWorker pid={pid}, ip=10.0.0.2) [2026-11-21 08:09:34,709 C {pid} {pid + 9}] task_receiver.cc:213:  Check "
            f"failed: objects_valid \n(RayTrainWorker pid={pid}, ip=10.0.0.2) *** StackTrace Information ***\n"
            for pid in (611, 612)
        ),
        says=("objects_valid", "RayTrainWorker (pid 611)", "RayTrainWorker (pid 612)"),
    ),
    console(
        "the worker's end is recorded as well",
        "(solve pid=237) [2026-11-21 08:09:34,709 C 237 240] reference_counter.cc:88: An unexpected system state has "
        "occurred. You have likely discovered a bug in Ray. Check failed: it != refs.end() object \n"
        f"(raylet) {WORKER_DIED.sample.replace('PID: 379', 'PID: 237').replace('127.0.0.1', '10.0.0.2')}\n",
        says=("it != refs.end() object", "pid 237"),
    ),
    console(
        "the driver itself",
        "step 12\n[2026-11-21 08:09:34,709 C 77 77] plasma_client.cc:44:  Check failed: fd.ok() Bad file descriptor\n",
        says=("the driver (pid 77)", "fd.ok()"),
    ),
    console(
        "another library's check, and a task that quotes the words",
        "(train pid=12) F1121 10:58:30.466599   543 device.cc:12] Check failed: n > 0 (0 vs. 1)\n"
        "(train pid=12) retrying after: Check failed: objects_valid\n"
        "(train pid=12) [2026-11-21 08:09:34,709 W 12 12] retry.cc:9: Check failed: objects_valid\n",
    ),
    console(
        "the check of a driver of Ray 0.8",
        f"F0420 23:07:59.585644 78855 service_based_gcs_client.cc:89]  Check failed: attempts < 5 No entry\n{_OLD_STACK}{LOG_FRAME.sample}\n",
        says=("the driver (pid 78855)", "No entry"),
    ),
    console(
        "the check of another library whose header is glog's",
        f"F0420 23:07:59.585644 78855 device.cc:89] Check failed: n > 0 (0 vs. 1)\n{_OLD_STACK}    @     0x7f1b5fae14c9  tensor::Pool::Take()\n",
    ),
    console(
        "a check without its header, above the stack of a worker or driver",
        "core_worker.cc:1075:  Check failed: it != current_tasks_.end() \n*** StackTrace Information ***\n"
        "/venv/site-packages/ray/_raylet.so(+0xbd3d9a) [0x7f05b0c3ad9a] ray::operator<<()\n",
        says=("ended a process of Ray", "current_tasks_"),
    ),
    console(
        "a person copied the place and the check without their header",
        "task_manager.cc:412\nCheck failed: it != submissible_tasks_.end()\nTried to fail task that was not pending 16310a0f\n",
        says=("submissible_tasks_",),
    ),
    console(
        "a place in the code of another library, and a test that goes on",
        "device.cc:412\nCheck failed: n > 0\ntask_manager.cc:412\nCheck failed: it != tasks_.end()\nnext test\nanother test\nall tests done\n",
    ),
)
