"""A worker process exited because a task or an actor method called `sys.exit` (SystemExit).

## What you see
`WorkerCrashedError` or `ActorDiedError` with `Worker exits with an exit code 3.` A text in place of the number is the
argument of `sys.exit("…")`; `None` is `sys.exit()` without an argument. A traceback after the code means that Ray
itself failed while it ran the task.

## Why
Code written for the command line calls `sys.exit` where it should raise an exception: an argument parser, a `main()`, a
training script. Ray treats SystemExit as a request to end the worker process, so the task fails as if the worker had
crashed. In a task even `sys.exit(0)` counts as a failure. In an actor it is an intended exit, but later calls fail. In
Kubernetes Ray appends `The worker may have exceeded K8s pod memory limits.` to every exit code. That is a guess, not
evidence.

## Confirm
- The worker's `.err` and `.out` files show what the program printed before it exited.
- The worker's core log records `Worker exits with an exit code …`.

## Fix
Raise an exception instead of calling `sys.exit`, or catch SystemExit around the call: the caller then gets the reason.
To end an actor on purpose, use `ray.actor.exit_actor()`.

## Not this when
- `The process receives a SIGTERM` follows the code (`worker-terminated`, `worker-killed-with-owner`).
- Ray reports no exit code: `os._exit` leaves none (`worker-vanished`).
- Ray's own error is `[Errno 24] Too many open files` (`file-descriptor-limit`).
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
from raydoctor.rules.shared import ended
from raydoctor.rules.shared.exit_code import EXITING, Left, left_by_itself
from raydoctor.rules.shared.serialize import is_about_pickling

_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/tasks.html"


@rule(
    tier="root",
    severity="error",
    rank=35,
    explains=("process", "worker"),
    looks_for=(WORKER_EXIT, WORKER_DIED, RAY_EXCEPTION, EXITING),
)
def worker_exit_code(case: Case) -> Iterator[Finding]:
    """One finding per exit code: workers with the same code usually failed the same check."""
    groups: dict[str, list[tuple[WorkerExit, Left]]] = {}
    for exit_, left in _left(case):
        key = _inside_ray(left) if left.traceback else left.code
        groups.setdefault(key, []).append((exit_, left))
    for members in groups.values():
        yield _finding(case, [exit_ for exit_, _ in members], members[0][1])


def _left(case: Case) -> Iterator[tuple[WorkerExit, Left]]:
    # Ray's clean-up sends SIGTERM, which also ends in an exit code. Without GCS's record it looks like `sys.exit`.
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
            or left.is_out_of_files
            or is_about_pickling(left.raised)
        ):
            continue
        # An actor that exits with code 0 ends as intended. It is a failure if a caller got an exception.
        caller_failed = exit_.expected == "intended" and any(
            e.kind == "driver.exception" for e in exit_.events
        )
        if not exit_.expected or caller_failed:
            yield exit_, left


def _inside_ray(left: Left) -> str:
    return str(left.raised or evidence.last_line(left.traceback))


def _finding(case: Case, exits: list[WorkerExit], left: Left) -> Finding:
    labels = evidence.join_names(e.noun for e in exits)
    how = f"exited because the code called {left.call}"
    if left.traceback:
        how = f"exited because of an error inside Ray: {_inside_ray(left)}"
    links = [Link(left.event, f"exit code {left.code} of {labels}")]
    links += [
        link
        for exit_ in exits[:3]
        for link in evidence.exit_links(exit_, most=1)
        if link.event is not left.event
    ]
    crashed = evidence.attempts_covered(case, exits)
    links += [Link(event, "the driver got WorkerCrashedError") for event in crashed[:1]]
    links += evidence.printed_last(case, exits)
    return Finding(
        f"{ended.workers(exits)} {how}{evidence.recovery(case, exits)}",
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
    output = _last_output(exits[0])
    if left.traceback:
        report = Remedy(
            "Report this traceback to the Ray project if none of its lines is in your code",
            doc="https://github.com/ray-project/ray/issues",
        )
        return (output, report)
    steps = [
        paste.python(
            "raise RuntimeError(...)   # in {name}, instead of {call}",
            name=name,
            call=left.call.partition("(")[0],
        ),
        "try:   # or around the call that exits\n    main(...)\nexcept SystemExit as error:\n"
        '    raise RuntimeError(f"exit code {error.code}") from error',
    ]
    title = f"Raise an exception in {exits[0].called or name} instead of calling sys.exit, so that its caller gets the reason"
    if left.kubernetes:
        title += ". Ray adds its sentence about K8s memory limits to every exit code: it is not evidence of memory use"
    return (Remedy(title, tuple(steps), doc=_DOC), output)


def _last_output(exit_: WorkerExit) -> Remedy:
    every = paste.shell("*")
    worker, pid = exit_.worker or every, every if exit_.pid is None else exit_.pid
    return Remedy(
        "Read what the worker printed before it exited",
        (
            paste.shell(
                "tail -n 20 /tmp/ray/session_latest/logs/worker-{worker}-*-{pid:pid}.err /tmp/ray/session_latest/logs/worker-{worker}-*-{pid:pid}.out   # on its node",
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
        "a task calls the argument parser of a command-line tool",
        {
            f"logs/worker-{_W}-01000000-399.out": ":job_id:01000000\n:task_name:convert\n",
            "logs/gcs_server.out": f"{_GCS}The leased worker has unrecoverable failure. Worker is requested to be destroyed "
            f"when it is returned. Worker exits with an exit code 3.{_ADDED}",
            "logs/raylet.out": "",
        },
        says=("convert", "sys.exit(3)"),
    ),
    Example(
        "GCS records only the closed socket, and the worker's core log records a text as exit code",
        {
            "logs/gcs_server.out": f"{_GCS}Worker unexpectedly exits with a connection error code 2. End of file.{_ADDED}",
            f"logs/python-core-worker-{_W}_399.log": "[2026-11-21 08:00:48,884 I 399 399] core_worker_shutdown_executor.cc:152: "
            "Executing worker exit: SYSTEM_ERROR - Worker exits unexpectedly. Worker exits with an exit code no licence found. "
            "(timeout: -1ms)\n",
            "logs/raylet.out": "",
        },
        says=('sys.exit("no licence found")',),
    ),
    Example(
        "Ray's guess about Kubernetes memory limits is not evidence",
        {
            "logs/gcs_server.out": f"{_GCS}Worker exits unexpectedly. Worker exits with an exit code 1. The worker may have "
            f"exceeded K8s pod memory limits.{_ADDED}",
            "logs/raylet.out": "",
        },
        says=("sys.exit(1)", "not evidence of memory"),
    ),
    Example(
        "a SIGTERM also produces an exit code",
        {
            "logs/gcs_server.out": f"{_GCS}Worker exits unexpectedly. Worker exits with an exit code 1. The process receives "
            f"a SIGTERM.{_ADDED}",
            "logs/raylet.out": "",
        },
        roots=("worker-terminated",),
    ),
    Example(
        "an agent and a task print the words `exit code`",
        {
            "logs/raylet.out": "[2026-11-21 08:00:49,953 I 293 319] (raylet) agent_manager.cc:83: Agent process with name "
            "dashboard_agent exited, exit code 0.\n",
            f"logs/worker-{_W}-01000000-399.out": "Worker exits with an exit code 3.\n",
            "logs/gcs_server.out": "",
        },
    ),
)
