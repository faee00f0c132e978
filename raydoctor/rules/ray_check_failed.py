"""A worker or a driver ended itself because one of Ray's own checks failed.

## What you see
- The driver gets `WorkerCrashedError` or `ActorDiedError`.
- The process's core log (and `.err`) has a line of level `C`: `Check failed: <expression>`. Since 2.49 it adds
  `An unexpected system state has occurred. You have likely discovered a bug in Ray`. A native stack follows.

## Why
Ray's C++ code checks its own assumptions and ends the process when one does not hold. Often the environment broke it:
the raylet or the GCS had exited, or a file or the shared memory was full. `objects_valid` means that a task raised a
`BaseException` that is not an `Exception` (seen with 2.9.3, 2.20 and 2.40; later versions pass it on).

## Confirm
- Read the records just above the line in that core log.
- Search the issue tracker for the expression.

## Fix
Remove the cause in the environment. If there is none, report the expression, the version and the stack. A newer Ray may
contain the fix.

## Not this when
- The raylet or the GCS failed a check (`raylet-died`, `gcs-died`).
- A library caused a SIGSEGV or called `abort()` (`worker-native-crash`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import LOCAL_RAYLET_FAILED, WORKER_EXIT
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject

CHECK = Signal(
    "worker.check_failed",
    "Check failed: ",
    r"Check failed: (?P<expression>[^\n]+)",
    ("core-worker", "core-io", "core-driver"),
    " Check failed: objects_valid ",
)
_ISSUES = "https://github.com/ray-project/ray/issues"


@rule(
    tier="root",
    severity="error",
    rank=31,
    explains=("job", "process", "worker"),
    caused_by=("gcs", "raylet"),
    looks_for=(CHECK, WORKER_EXIT, LOCAL_RAYLET_FAILED),
)
def ray_check_failed(case: Case) -> Iterator[Finding]:
    """One finding per expression for workers, and one per driver."""
    groups: dict[str, list[tuple[Event, WorkerExit]]] = {}
    for event in case.of("worker.check_failed"):
        worker = evidence.worker_of(event)
        if event.level != "C" or not worker:
            continue
        exit_ = case.exit_of(worker)
        if job := ids.job_of_driver(worker):
            if not case.torn_down(event):
                yield _of_driver(event, job)
        elif exit_ is not None and not exit_.expected:
            groups.setdefault(event["expression"].strip(), []).append((event, exit_))
    for expression, members in groups.items():
        yield _of_workers(case, expression, members)


def _of_workers(case: Case, expression: str, members: list[tuple[Event, WorkerExit]]) -> Finding:
    events, exits = [event for event, _ in members], [exit_ for _, exit_ in members]
    names = evidence.join_names(e.label for e in exits)
    lost = [e for e in exits if case.about(Entity("worker", e.worker), "raylet.seen_dead")]
    crashed = evidence.attempts_covered(case, exits)
    links = [
        Link(events[0], f"{exits[0].label} ends itself: Ray's check {expression[:120]} failed")
    ]
    links += evidence.exit_links(exits[0], most=1)
    links += [Link(event, "the driver got WorkerCrashedError") for event in crashed[:1]]
    return Finding(
        f"One of Ray's own checks failed and ended {names}: {expression[:160]}",
        tuple(links),
        explains=evidence.exit_entities(exits),
        caused_by=tuple(
            Entity(kind, e.node) for e in lost for kind in ("raylet", "node") if e.node
        ),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=evidence.deaths(exits),
        severity=evidence.severity(case, exits),
        remedies=tuple(_remedies(expression)),
        covers=(*events, *evidence.exit_events(exits), *crashed),
    )


def _of_driver(event: Event, job: str) -> Finding:
    expression = event["expression"].strip()
    return Finding(
        f"One of Ray's own checks failed and ended the driver (pid {event.source.pid}): {expression[:160]}",
        (Link(event, f"the driver ends itself: Ray's check {expression[:120]} failed"),),
        explains=(Entity("job", job),),
        caused_by=(Entity("gcs", "gcs"), Entity("raylet", "local")),
        subjects=(Subject("job", job, None, event.source.pid),),
        remedies=tuple(_remedies(expression)),
        covers=(event,),
    )


def _remedies(expression: str) -> Iterator[Remedy]:
    if expression.startswith("objects_valid"):
        yield Remedy(
            "Find the task that raises a BaseException, and derive that class from Exception",
            (
                "grep -B3 'Exception ignored in: .ray._raylet.task_execution_handler' logs/worker-*.err",
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

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a worker ends on a failed check",
        {_LOG: _C, "logs/gcs_server.out": _EXIT, "logs/raylet.out": ""},
        roots=("ray-check-failed",),
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
)
