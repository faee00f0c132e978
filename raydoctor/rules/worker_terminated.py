"""A SIGTERM ended a worker, and no log of Ray shows that Ray sent it.

## What you see
`WorkerCrashedError` or `ActorDiedError` with `Worker exits with an exit code 1. The process receives a SIGTERM.`

## Why
On SIGTERM a Ray worker exits cleanly and records the signal. Ray itself sends SIGTERM when the worker's owner, job or
node goes away, and records that in `raylet.out` first. Without such a record the signal has another sender: `kill` or
`pkill` by a person or a clean-up script, a batch system at its time limit (Slurm's `scancel`, LSF), systemd, or
Kubernetes ending the pod. The raylet's `DisconnectClient: sending SIGTERM to pgid=…` (Ray 2.50 and later) *follows*
every disconnect: it is clean-up, never the cause.

## Confirm
- Several workers of one node ended within a second: the whole container or machine was being stopped.
- Kubernetes: `kubectl describe pod` and `kubectl get events` show eviction, preemption or a failed liveness probe.
- Batch systems: the job's accounting (`sacct -j JOB`) shows a time limit or preemption.
- On the machine: check `journalctl`, cron and the shell history. auditd records the sender of a signal.

## Fix
Stop the sender from signalling Ray's processes, or let Ray drain the node before the node stops. Where preemption is
normal, retries (`max_retries`, `max_restarts`) of work that may run twice limit the damage.

## Not this when
- `raylet.out` records `Killing leased worker because its owner died` (or `… is killed because the owner process …
  died`) just before (`worker-killed-with-owner`).
- the job or the node was being ended.
- SIGKILL killed the process: it leaves no record (`worker-vanished`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, console, rule
from raydoctor.case.signals import (
    OWNER_GONE_KILLED,
    RAYLET_SIGTERM,
    TRACEBACK,
    TRACEBACKS,
    WORKER_DIED,
    WORKER_EXIT,
)
from raydoctor.cluster import hosts
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Finding, Gap, Link, Remedy
from raydoctor.rules.shared import ended
from raydoctor.rules.shared.exit_code import EXITING, Left, left_by_itself, left_unnamed, submitter
from raydoctor.rules.shared.failures import program
from raydoctor.rules.shared.kernel import journal_span

_TOGETHER = 2.0
"""Seconds within which several SIGTERMs count as one event: a container or machine that stops."""
_NODE_FOLLOWS = 60.0
"""Seconds within which the node's end may follow. Kubernetes allows 30 between SIGTERM and SIGKILL."""


@rule(
    tier="cause",
    severity="error",
    rank=38,
    explains=("process", "program", "worker"),
    caused_by=("host", "node", "raylet"),
    looks_for=(TRACEBACK, WORKER_EXIT, WORKER_DIED, EXITING, *OWNER_GONE_KILLED, RAYLET_SIGTERM),
)
def worker_terminated(case: Case) -> Iterator[Finding]:
    """One finding per node and moment (`_TOGETHER`)."""
    by_ray = {e.value for event in case.of("worker.killed_with_owner") for e in event.entities}
    together: list[tuple[WorkerExit, Left]] = []
    for exit_ in sorted(case.exits, key=lambda e: (e.node, e.at or 0.0)):
        left = left_by_itself(case, exit_)
        if left is None or not left.sigterm or exit_.worker in by_ray or _owner_ended(case, exit_):
            continue
        if together and not _belongs(exit_, together[-1][0]):
            yield _finding(case, together)
            together = []
        together.append((exit_, left))
    if together:
        yield _finding(case, together)
    unnamed = [left for left in left_unnamed(case) if left.sigterm]
    yield from (_unnamed(case, left) for left in unnamed[:1])
    if not (case.exits or unnamed):
        yield from _of_handler(case)


_HANDLER = pattern(r'[/\\]ray[/\\]_private[/\\]worker\.py", line \d{1,6}, in sigterm_handler\n')
_OF_WORKER = ("ray._raylet.execute_task", "ray._raylet.task_execution_handler", "in main_loop")


def _of_handler(case: Case) -> Iterator[Finding]:
    """Tracebacks of an excerpt that pass through the handler of SIGTERM in a worker."""
    for event in case.of(*TRACEBACKS):
        near = [e for e in case.of(*TRACEBACKS) if e.source is event.source]
        if (
            not event.source.is_excerpt
            or not _HANDLER.search(event.message)
            or not any(words in e.message for e in near for words in _OF_WORKER)
        ):
            continue
        yield Finding(
            "A worker got a SIGTERM from an unknown process while it executed a task",
            (Link(event, "Ray's handler of SIGTERM ends the worker with sys.exit"),),
            explains=tuple(program(e) for e in case.endings.values() if e.source is event.source),
            severity="warning",
            remedies=_remedies(case, [], Left("1", event, sigterm=True)),
            covers=tuple(near),
            gaps=(_RAYLET,),
        )
        return


def _unnamed(case: Case, left: Left) -> Finding:
    """Without the record of any worker's exit: the sentence may be a quotation, so it is a warning."""
    return Finding(
        "A worker got a SIGTERM from an unknown process",
        (
            Link(
                left.event,
                f"Ray's reason for a worker's exit: SIGTERM, exit code {left.code}; the capture does not show which worker",
            ),
        ),
        severity="warning",
        remedies=_remedies(case, [], left),
        covers=(left.event,),
        gaps=(_RAYLET,),
    )


def _may_be_tear_down(case: Case, exits: list[WorkerExit]) -> bool:
    """Whether the logs end at that moment, on a Ray version that ends a job's workers by SIGTERM.

    Ray 2.9 to 2.20 record these exits as failures. Only the record of the job's end, written at the same
    moment, distinguishes them, and that record may be cut off.
    """
    if case.version is None or case.version >= (2, 24):
        return False
    last = max((e.at for e in exits if e.at is not None), default=None)
    daemons = (e.at for e in case.events if e.source.role.startswith(("gcs", "raylet", "event")))
    return last is not None and all(at is None or at <= last + _TOGETHER for at in daemons)


def _owner_ended(case: Case, exit_: WorkerExit) -> bool:
    """Whether the lease names an owner that ended, in a capture without a raylet log."""
    return "raylet-out" not in case.roles and case.exit_of(submitter(exit_)) is not None


def _belongs(exit_: WorkerExit, before: WorkerExit) -> bool:
    if exit_.node != before.node:
        return False
    return exit_.at is None or before.at is None or exit_.at - before.at <= _TOGETHER


def _finding(case: Case, together: list[tuple[WorkerExit, Left]]) -> Finding:
    exits = [exit_ for exit_, _ in together]
    left = together[0][1]
    several = len(exits) > 1
    subject = ended.workers(exits, " of one node")
    within = f" within {_span(exits)}" if several else ""
    crashed = evidence.attempts_covered(case, exits)
    doubtful = not crashed and _may_be_tear_down(case, exits)
    known = "raylet-out" in case.roles and not doubtful
    sender = "a process outside Ray" if known else "an unknown process"
    labels = evidence.join_names(e.noun for e in exits)
    links = [Link(left.event, f"a SIGTERM ended {labels}, and {_ruled_out(known)}")]
    links += [
        link
        for exit_ in exits[:3]
        for link in evidence.exit_links(exit_, most=1)
        if link.event is not left.event
    ]
    links += [Link(event, "the driver got WorkerCrashedError") for event in crashed[:1]]
    return Finding(
        f"{subject} got a SIGTERM from {sender}{within}{evidence.recovery(case, exits)}",
        tuple(links),
        explains=evidence.exit_entities(exits),
        caused_by=_node(case, exits[-1]) if known else _suspects(case, exits),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=evidence.deaths(exits),
        severity="warning" if doubtful else evidence.severity(case, exits),
        remedies=_remedies(case, exits, left),
        covers=(*evidence.exit_events(exits), *crashed),
        gaps=(_END,) if doubtful else () if known else (_RAYLET,),
    )


_RAYLET = Gap(
    "raylet.out",
    "only this log shows whether Ray itself sent the SIGTERM",
    "Copy /tmp/ray/session_latest/logs/raylet.out from the worker's node into the folder with the logs, and diagnose that folder.",
    about="raylet-out",
)

_END = Gap(
    "logs after the SIGTERM",
    "the logs end there: if the job ended at that moment, Ray itself sent the SIGTERM",
    "The end of gcs_server.out shows whether the job had ended (`Finished marking job state`).",
)


def _span(exits: list[WorkerExit]) -> str:
    times = [e.at for e in exits if e.at is not None]
    seconds = max(times) - min(times) if times else 0.0
    return "a second" if seconds <= 1 else f"{seconds:.0f} seconds"


def _ruled_out(known: bool) -> str:
    if not known:
        return "the capture does not show whether Ray sent it"
    return "the raylet records no earlier end of the owner, job or node"


def _node(case: Case, last: WorkerExit) -> tuple[Entity, ...]:
    """The node, if it ended soon after: both ends then have the same cause."""
    if not last.node or last.at is None:
        return ()
    ends = [case.stopped_at(last.node)]
    ends += [e.at for e in case.about(Entity("node", last.node), "node.dead") if e.at is not None]
    if not any(0 <= end - last.at <= _NODE_FOLLOWS for end in ends):
        return ()
    return (Entity("raylet", last.node), Entity("node", last.node), hosts.entity(last.node))


def _suspects(case: Case, exits: list[WorkerExit]) -> tuple[Entity, ...]:
    """Other workers that ended suddenly: any of them may have been the owner, as far as the capture shows."""
    chosen = {id(e) for e in exits}
    return tuple(entity for e in case.exits if id(e) not in chosen for entity in e.entities)


def _remedies(case: Case, exits: list[WorkerExit], left: Left) -> tuple[Remedy, ...]:
    steps = [
        paste.shell(
            "journalctl --since {since} --until {until} | grep -iE 'kill|stop|terminat|evict'   # on that node",
            **journal_span(case, (event for exit_ in exits for event in exit_.events)),
        ),
        "sacct -j JOB --format=JobID,State,ExitCode,Timelimit,Elapsed   # Slurm",
    ]
    pod = "kubectl describe pod POD; kubectl get events --sort-by=.lastTimestamp   # eviction, preemption, probes"
    steps.insert(0 if left.kubernetes else len(steps), pod)
    return (
        Remedy("Find the sender of the SIGTERM", tuple(steps)),
        *ended.retries(case, exits, "If such ends are normal (preemption), let Ray retry the work"),
    )


# ------------------------------------------------------------------ examples


_W = "d71272a4f74fbcc1b9a512babee38970d83b615363ab2b3f2775d469"
_N = "ac0b6ba1bd42bdd2dcf310bd7f01437ac30bd7821c0fc29974cddd58"
_EXIT = (
    "[2026-11-21 07:47:49,611 W 13 13] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{_W}, node id = {_N}, address = 127.0.0.1, exit_type = SYSTEM_ERROR, exit_detail = The leased worker has unrecoverable "
    "failure. Worker is requested to be destroyed when it is returned. Worker exits with an exit code 1. The process receives "
    "a SIGTERM.. Unintentional worker failures have been reported.\n"
)
_CLEANUP = (
    "[2026-11-21 07:47:49,610 I 285 285] (raylet) node_manager.cc:124: DisconnectClient: sending SIGTERM to pgid=381 "
    f"worker_id={_W}\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a clean-up script sends SIGTERM before the raylet's own SIGTERM",
        {
            f"logs/worker-{_W}-01000000-381.out": ":job_id:01000000\n:task_name:train\n",
            "logs/gcs_server.out": _EXIT,
            "logs/raylet.out": _CLEANUP,
        },
        says=("train", "SIGTERM", "outside Ray"),
    ),
    Example(
        "without the raylet's log the sender is unknown",
        {"logs/gcs_server.out": _EXIT},
        says=("got a SIGTERM from an unknown process",),
    ),
    console(
        "only Ray's sentence about an exit is left",
        "The events say: Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly. Worker exits with "
        "an exit code 1. The worker may have exceeded K8s pod memory limits. The process receives a SIGTERM\n",
        says=("unknown process", "kubectl describe pod"),
        severity="warning",
    ),
    console(
        "a task quotes the sentence, and another sentence about an exit has no SIGTERM",
        "(check pid=12) Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits with an exit code 1. The process "
        "receives a SIGTERM\nWorker exit type: SYSTEM_ERROR Worker exit detail: Worker exits with an exit code 1.\n",
    ),
    Example(
        "Ray sent the SIGTERM because the owner had died",
        {
            "logs/gcs_server.out": _EXIT,
            "logs/raylet.out": "[2026-11-21 07:47:49,600 I 285 285] (raylet) node_manager.cc:1050: Killing leased worker because "
            f"its owner died. worker_id={_W} owner_worker_id={'b' * 56}\n",
        },
        roots=("worker-killed-with-owner",),
    ),
    Example(
        "the raylet's clean-up SIGTERM after another kind of death is not the cause",
        {
            "logs/gcs_server.out": f"[2026-11-21 07:47:49,611 W 13 13] (gcs_server) gcs_worker_manager.cc:70: {WORKER_EXIT.sample}\n",
            "logs/raylet.out": _CLEANUP,
        },
        roots=("worker-vanished",),
    ),
    console(
        "the driver of 2.44 names the signal, and how the worker exits",
        f"(raylet) {WORKER_DIED.sample.partition(' Worker exit detail')[0]} Worker exit detail: Worker exits unexpectedly by a signal. "
        "SystemExit is raised (sys.exit is called). Exit code: 1. The process receives a SIGTERM.\n",
        says=("got a SIGTERM from an unknown process",),
    ),
    console(
        "a traceback passes through the handler of SIGTERM",
        'Traceback (most recent call last):\n  File "/app/convert.py", line 246, in call\n    subprocess.check_call(command)\n'
        '  File "/venv/lib/python3.8/site-packages/ray/_private/worker.py", line 776, in sigterm_handler\n    sys.exit(1)\nSystemExit: 1\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "python/ray/_raylet.pyx", line 1418, in ray._raylet.execute_task\n'
        '  File "/venv/lib/python3.8/site-packages/ray/_private/worker.py", line 569, in record_task_log_end\n'
        "    self.core_worker.record_task_log_end(\nAttributeError: 'Worker' object has no attribute 'core_worker'\n",
        says=("A worker got a SIGTERM from an unknown process while it executed a task",),
        severity="warning",
    ),
)
