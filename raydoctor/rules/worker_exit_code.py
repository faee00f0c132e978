"""A worker left by `sys.exit` (SystemExit) in the middle of a task or a method.

## What you see
`WorkerCrashedError` or `ActorDiedError` with `Worker exits with an exit code 3.` A text instead of a
number is the argument of `sys.exit("…")`; `None` is `sys.exit()` without one. After the code a traceback may
stand: then Ray itself failed while it ran the task.

## Why
Code that was written for the command line calls `sys.exit` where it should raise: an argument parser, a
`main()`, a training script. Ray takes SystemExit as the wish to end the whole worker process, so the
task fails as if the worker had crashed. In a task even `sys.exit(0)` counts as a failure; in an actor it is
a deliberate end, but later calls fail all the same. In Kubernetes Ray adds `The worker may have exceeded K8s pod
memory limits.` to every such text; that is a guess and no evidence.

## Confirm
- The worker's `.err` and `.out`: what the program printed just before it left.
- The worker's core log: `Worker exits with an exit code …`.

## Fix
Raise an exception instead, or catch SystemExit around the call; then the caller sees the reason. To end an
actor on purpose use `ray.actor.exit_actor()`.

## Not this when
`The process receives a SIGTERM` follows the code (`worker-terminated`, `worker-killed-with-owner`), or no exit code
is told at all: `os._exit` leaves none (`worker-vanished`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import RAY_EXCEPTION, WORKER_DIED, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Finding, Link, Remedy
from raydoctor.rules.shared.exit_code import EXITING, Left, left_by_itself
from raydoctor.rules.shared.serialize import is_about_pickling
from raydoctor.rules.shared.traceback import parse

_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/tasks.html"


@rule(
    tier="root",
    severity="error",
    rank=35,
    looks_for=(WORKER_EXIT, WORKER_DIED, RAY_EXCEPTION, EXITING),
)
def worker_exit_code(case: Case) -> Iterator[Finding]:
    """One finding per code: the same check usually ends them all."""
    groups: dict[str, list[tuple[WorkerExit, Left]]] = {}
    for exit_, left in _left(case):
        key = _inside_ray(left) if left.traceback else left.code
        groups.setdefault(key, []).append((exit_, left))
    for members in groups.values():
        yield _finding(case, [exit_ for exit_, _ in members], members[0][1])


def _left(case: Case) -> Iterator[tuple[WorkerExit, Left]]:
    # The SIGTERM of Ray's own clean-up also ends in an exit code, and without GCS's word looks like one.
    ended_by_ray = {
        e[name]
        for e in case.of("worker.killed_with_owner")
        for name in ("worker", "worker_a", "worker_b")
        if e[name]
    }
    for exit_ in case.all_exits:
        left = left_by_itself(case, exit_)
        if (
            left is None
            or left.sigterm
            or left.exit_actor
            or exit_.worker in ended_by_ray
            or is_about_pickling(parse(left.traceback))
        ):
            continue
        # An actor that leaves with code 0 ends as intended; it is a failure once a caller was hurt.
        hurt = exit_.expected == "intended" and any(
            e.kind == "driver.exception" for e in exit_.events
        )
        if not exit_.expected or hurt:
            yield exit_, left


def _inside_ray(left: Left) -> str:
    return str(parse(left.traceback) or evidence.last_line(left.traceback))


def _finding(case: Case, exits: list[WorkerExit], left: Left) -> Finding:
    who = evidence.join_names(e.label for e in exits)
    how = f"left by {left.call}"
    if left.traceback:
        how = f"ended on an error inside Ray: {_inside_ray(left)}"
    subject = who if evidence.deaths(exits) == 1 else f"{evidence.deaths(exits)} workers ({who})"
    links = [Link(left.event, f"exit code {left.code}: {who} {how}")]
    links += [
        link
        for exit_ in exits[:3]
        for link in evidence.exit_links(exit_, most=1)
        if link.event is not left.event
    ]
    crashed = evidence.attempts_covered(case, exits)
    links += [Link(event, "the driver got WorkerCrashedError") for event in crashed[:1]]
    return Finding(
        f"{subject} {how}",
        tuple(links),
        explains=(
            *evidence.exit_entities(exits),
            *(Entity("actor", e.actor) for e in exits if e.expected),
        ),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=evidence.deaths(exits),
        severity=evidence.severity(case, exits),
        remedies=_remedies(exits, left),
        covers=(*evidence.exit_events(exits), *crashed),
    )


def _remedies(exits: list[WorkerExit], left: Left) -> tuple[Remedy, ...]:
    name = exits[0].names[-1] if exits[0].names else "the task"
    look = _last_words(exits[0])
    if left.traceback:
        report = Remedy(
            "Report it to Ray with this traceback, if no line of it is yours",
            doc="https://github.com/ray-project/ray/issues",
        )
        return (look, report)
    steps = [
        paste.python(
            "raise RuntimeError(...)   # in {name}, instead of {call}",
            name=name,
            call=left.call.partition("(")[0],
        ),
        "try:   # or around the call that leaves\n    main(...)\nexcept SystemExit as error:\n"
        '    raise RuntimeError(f"exit code {error.code}") from error',
    ]
    title = f"Raise an exception in {name}: then its caller gets the reason, not a dead worker"
    if left.kubernetes:
        title += "; Ray's sentence about K8s memory limits is printed on every exit code and is no evidence of memory"
    return (Remedy(title, tuple(steps), doc=_DOC), look)


def _last_words(exit_: WorkerExit) -> Remedy:
    every = paste.shell("*")
    worker, pid = exit_.worker or every, every if exit_.pid is None else exit_.pid
    return Remedy(
        "Read what it printed before it left",
        (
            paste.shell(
                "tail -n 20 logs/worker-{worker}-*-{pid:pid}.err logs/worker-{worker}-*-{pid:pid}.out",
                worker=worker,
                pid=pid,
            ),
        ),
    )


# ------------------------------------------------------------------ examples


_W = "b41a1ad54acd561a0b77648b762c9b4372963c4eb73f76d0d8e90e8c"
_N = "53d8c40aa06edfc75cab15320700f8038cfad0d9ed6c558fbdf6d03b"
_GCS = (
    "[2026-11-21 08:00:48,887 W 17 17] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{_W}, node id = {_N}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = "
)
_ADDED = ". Unintentional worker failures have been reported. If there are lots of this logs, that might indicate there are unexpected failures in the cluster.\n"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a task calls a command line tool's argument check",
        {
            f"logs/worker-{_W}-01000000-399.out": ":job_id:01000000\n:task_name:convert\n",
            "logs/gcs_server.out": f"{_GCS}The leased worker has unrecoverable failure. Worker is requested to be destroyed "
            f"when it is returned. Worker exits with an exit code 3.{_ADDED}",
            "logs/raylet.out": "",
        },
        roots=("worker-exit-code",),
        says=("convert", "sys.exit(3)"),
    ),
    Example(
        "GCS saw only the closed socket; the worker's core log has the code, a text",
        {
            "logs/gcs_server.out": f"{_GCS}Worker unexpectedly exits with a connection error code 2. End of file.{_ADDED}",
            f"logs/python-core-worker-{_W}_399.log": "[2026-11-21 08:00:48,884 I 399 399] core_worker_shutdown_executor.cc:152: "
            "Executing worker exit: SYSTEM_ERROR - Worker exits unexpectedly. Worker exits with an exit code no licence found. "
            "(timeout: -1ms)\n",
            "logs/raylet.out": "",
        },
        roots=("worker-exit-code",),
        says=('sys.exit("no licence found")',),
    ),
    Example(
        "Ray's guess about Kubernetes does not make it a memory problem",
        {
            "logs/gcs_server.out": f"{_GCS}Worker exits unexpectedly. Worker exits with an exit code 1. The worker may have "
            f"exceeded K8s pod memory limits.{_ADDED}",
            "logs/raylet.out": "",
        },
        roots=("worker-exit-code",),
        says=("sys.exit(1)", "no evidence of memory"),
    ),
    Example(
        "a SIGTERM also makes an exit code",
        {
            "logs/gcs_server.out": f"{_GCS}Worker exits unexpectedly. Worker exits with an exit code 1. The process receives "
            f"a SIGTERM.{_ADDED}",
            "logs/raylet.out": "",
        },
        roots=("worker-terminated",),
    ),
    Example(
        "agents and tasks may say `exit code` too",
        {
            "logs/raylet.out": "[2026-11-21 08:00:49,953 I 293 319] (raylet) agent_manager.cc:83: Agent process with name "
            "dashboard_agent exited, exit code 0.\n",
            f"logs/worker-{_W}-01000000-399.out": "Worker exits with an exit code 3.\n",
            "logs/gcs_server.out": "",
        },
    ),
)
