"""A Ray Train run failed because one of its workers failed: the finding names the first rank that failed, and its error.

## What you see
The driver gets `ray.train.WorkerGroupError: Training failed due to worker errors:` with `[Rank 1 Error Snippet]`. With
Train V1 (the default up to Ray 2.50), it gets `ray.train.base_trainer.TrainingFailedError: The Ray Train run failed.
Please inspect the previous error messages for a cause`. The other ranks report errors of their own at about the same
time: `Connection closed by peer`, `Connection reset by peer`, NCCL timeouts.

## Why
All ranks work in step. When one rank raises an exception, is killed or hangs, the others wait for it in their next
collective operation and fail there. Most errors of a failed run are therefore effects. The cause is the error of the
*first* rank. If another rule finds that cause, the report lists this finding as its consequence.

## Confirm
- `logs/train/ray-train-sys-worker-<WorkerID>.log` (Train V2; its JSON contains `world_rank`) and
  `worker-<WorkerID>-*.err` contain the error of a rank (`Error in training function:`). The rank with the earliest such
  record failed first.
- In `logs/train/ray-train-sys-controller-*.log`, `[FailurePolicy]` shows the number of failures and the limit.
- A rank that hangs writes nothing at all: compare the last lines of all ranks.

## Fix
Fix the error of the first rank. `FailureConfig(max_failures=…)` restarts the run from its last checkpoint after the
loss of a worker or node. It does not help against an exception that occurs in every attempt.

## Not this when
- the trainer never started its workers because the cluster had no room (`cluster-starved`, `infeasible-request` or
  `placement-group-pending` is then the root).
- the driver itself failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.case.signals import RAY_EXCEPTION, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import cut
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Severity, Subject
from raydoctor.rules.shared import train
from raydoctor.rules.shared.task_error import error_entity
from raydoctor.rules.shared.train import Rank, TrainAttempt, TrainRun

_FIRST = Gap(
    "log of the rank that ended first",
    "the capture contains only errors of ranks that lost a peer",
    "Add a folder with the logs of each node, put the kernel log (sudo dmesg -T > dmesg.txt) of the node whose worker is missing into its folder, and diagnose the whole.",
)
_DOC = "https://docs.ray.io/en/latest/train/user-guides/fault-tolerance.html"
_LONGEST = 160


@rule(
    tier="symptom",
    severity="error",
    rank=86,
    explains=("train-run",),
    caused_by=("process", "task-error", "waiting", "worker"),
    looks_for=(*train.SIGNALS, RAY_EXCEPTION, WORKER_EXIT),
)
def train_worker_failed(case: Case) -> Iterator[Finding]:
    """One finding per run; one for Ray Train's own exception where the capture shows no other failure."""
    found = train.runs(case)
    for run in found:
        # `train-group-timeout` reports a group that did not start.
        if not (train.is_start_timeout(run.attempts[-1]) and train.timeouts(case)):
            yield _finding(case, run)
    raised = case.of(train.RAISED_V1.kind)
    others = case.of("driver.exception", "log.error", "log.critical", "log.traceback")
    if raised and not found and not case.exits and all(_is_inside(e, raised[0]) for e in others):
        yield _alone(raised)


def _finding(case: Case, run: TrainRun) -> Finding:
    last = run.attempts[-1]
    severity: Severity = "error" if last.gave_up else "warning"
    return Finding(
        _headline(case, run),
        tuple(_links(run)),
        explains=(train.entity(run),),
        caused_by=tuple(_causes(run)),
        subjects=tuple(_subjects(run)),
        count=len(run.attempts),
        severity=severity,
        remedies=tuple(_remedies(run)),
        covers=(
            *_covered(run),
            *(train.timeouts(case) if last.by_controller else ()),
            *train.echoes(case),
        ),
        gaps=(_FIRST,) if last.ranks and last.ranks[0].lost_its_peer else (),
    )


def _is_inside(event: Event, raised: Event) -> bool:
    """Whether an event is this exception, or its traceback."""
    return event.source is raised.source and (
        event.line >= raised.line or train.RAISED_V1.find in event.message
    )


def _alone(raised: list[Event]) -> Finding:
    first = raised[0]
    return Finding(
        "The training run failed, and the output does not show the error of the worker that failed",
        (Link(first, "Ray Train ends the run, and refers to earlier error messages"),),
        explains=(Entity("train-run", f"{first.source.path}:{first.line}"),),
        count=len(raised),
        remedies=(
            Remedy(
                "Read the error of the trial, which Ray Train keeps in the run's folder",
                (
                    "cat ~/ray_results/RUN/*/error.txt   # or RUN in storage_path",
                    "grep -B2 -A40 'Trial task failed' OUTPUT   # in a notebook: the output of the cell, above this exception",
                ),
                doc=_DOC,
            ),
        ),
        covers=tuple(raised),
    )


# ---------------------------------------------------------------- finding


def _is_aborted(case: Case, run: TrainRun) -> bool:
    """Whether the run was aborted before its last failure, which then only follows."""
    last = run.attempts[-1].event
    return any(
        e.source is last.source and e.offset < last.offset for e in case.of(train.ABORTED.kind)
    )


def _headline(case: Case, run: TrainRun) -> str:
    named = f"Training run '{run.name}' " if run.name else "The training run "
    last = run.attempts[-1]
    end = "failed" if last.gave_up else "was restarted"
    end += f" (failure {last.count}, max_failures={last.limit})" if last.limit else ""
    if not last.ranks and _is_aborted(case, run):
        return f"{named}was aborted while it ran: by Ctrl-C or another end of the program that called fit()"
    if not last.ranks:
        says = (
            _first_line(last.event["what"])
            or f"the {'controller' if last.by_controller else 'worker group'} failed"
        )
        return f"{named}{end}: {says}"
    what = "lost a peer" if last.ranks[0].lost_its_peer else "failed first"
    ranks = _ranks(last.ranks, train.world_size(case, last))
    text = f"{named}{end} because {ranks} {what}: {_why(last.ranks[0])}"
    if len(run.attempts) > 1:
        text += f", {_repeats(run)}"
    return text


def _ranks(ranks: list[Rank], world: int | None) -> str:
    """`rank 1 (pid 620, of ranks 0 to 3)`: ranks are counted from 0."""
    of = f"of ranks 0 {'and' if world == 2 else 'to'} {world - 1}" if world and world > 1 else ""
    first = ranks[0]
    if len(ranks) > 1:
        numbers = evidence.join_names((str(r.number) for r in ranks), most=6)
        return f"ranks {numbers}{f' ({of})' if of else ''}"
    name = "a worker" if first.number < 0 else f"rank {first.number}"
    about = [f"pid {first.pid}"] if first.pid else []
    about += [of] if of and first.number >= 0 else []
    return f"{name} ({', '.join(about)})" if about else name


def _why(rank: Rank) -> str:
    if rank.error:
        raised = rank.error.failure.raised
        return _cut(str(raised)) if raised else "its training function raised an exception"
    if rank.exit:
        return f"its process ended ({rank.exit.exit_type})"
    return _cut(rank.says) or "the capture does not show why"


def _repeats(run: TrainRun) -> str:
    firsts = {attempt.ranks[0].number for attempt in run.attempts if attempt.ranks}
    same = (
        "the same rank in each"
        if len(firsts) == 1 and min(firsts) >= 0
        else "a different rank in each"
    )
    return (
        f"{len(run.attempts)} attempts, {same}"
        if min(firsts) >= 0
        else f"{len(run.attempts)} attempts"
    )


_FRAMES = ("Training failed due to", "[Rank ", "ray.train.")
"""Lines around the errors of a group."""


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith(_FRAMES)]
    return _cut(next(iter(causes), "").partition(". Potential causes include")[0])


def _cut(text: str) -> str:
    return cut(text, _LONGEST)


def _links(run: TrainRun) -> Iterator[Link]:
    last = run.attempts[-1]
    for rank in last.ranks[:1]:
        if rank.event is not last.event:
            yield Link(rank.event, f"{_ranks([rank], None)} failed first: {_why(rank)}")
    yield Link(last.event, _decided(last))
    for event in last.followers[:1]:
        yield Link(
            event,
            f"rank {event['world_rank']} failed{_later(last, event)} because it lost its peer",
        )
    for event in run.raised[:1]:
        yield Link(event, "the driver received the error of the run")


def _decided(attempt: TrainAttempt) -> str:
    if attempt.event.kind != "train.decision":
        return "the driver reports the failed attempt"
    decided = "gave up the run" if attempt.gave_up else "restarted the workers"
    counts = f": failure {attempt.count}, {attempt.limit} allowed" if attempt.count else ""
    return f"Ray Train {decided}{counts}"


def _later(attempt: TrainAttempt, event: Event) -> str:
    first = attempt.ranks[0].at if attempt.ranks else None
    if event.at is None or first is None or not 0 <= event.at - first < float("inf"):
        return ""
    after = event.at - first
    return f" {after:.1f} s later" if after >= 1 else f" {after * 1000:.0f} ms later"


def _subjects(run: TrainRun) -> Iterator[Subject]:
    for rank in [r for attempt in run.attempts for r in attempt.ranks][:10]:
        worker = rank.event["worker_id"] or (rank.exit.worker if rank.exit else "")
        name = f"rank {rank.number}" if rank.number >= 0 else None
        yield Subject("worker", worker or None, name, rank.pid)


def _causes(run: TrainRun) -> Iterator[Entity]:
    for attempt in reversed(run.attempts):
        for rank in attempt.ranks:
            if rank.error and not rank.lost_its_peer:
                yield error_entity(rank.error)
            if rank.exit:
                yield from rank.exit.entities
        if attempt.by_controller:
            yield Entity("waiting", "cluster")


def _covered(run: TrainRun) -> Iterator[Event]:
    yield from run.raised
    for attempt in run.attempts:
        yield attempt.event
        yield from attempt.followers
        yield from (rank.event for rank in attempt.ranks)


# ---------------------------------------------------------------- remedies


def _remedies(run: TrainRun) -> Iterator[Remedy]:
    last = run.attempts[-1]
    first = last.ranks[0] if last.ranks else None
    if first is None:
        return
    worker = first.event["worker_id"] or (first.exit.worker if first.exit else "")
    files = (
        [
            paste.shell(
                "less /tmp/ray/session_latest/logs/worker-{worker}-*.err   # on the node of this rank",
                worker=worker,
            )
        ]
        if worker
        else []
    )
    if worker and last.event.kind == "train.decision":
        log = paste.shell(
            "less /tmp/ray/session_latest/logs/train/ray-train-*-worker-{worker}.log   # on the node of this rank",
            worker=worker,
        )
        files.insert(0, log)
    yield Remedy(
        f"Read the logs of {'this worker' if first.number < 0 else _ranks([first], None)}: the errors of the other ranks follow from its failure",
        tuple(files),
        doc=_DOC,
    )
    limit = int(last.limit) if last.limit.isdecimal() else 0
    if first.error is None:
        yield Remedy(
            "Make the run continue from its last checkpoint when it loses a worker",
            (
                "train.report(metrics, checkpoint=train.Checkpoint.from_directory(path))   # in the training function",
                paste.python(
                    "RunConfig(failure_config=FailureConfig(max_failures={limit}), storage_path=...)   # storage that all nodes can reach",
                    limit=max(limit + 3, 3),
                ),
            ),
            doc=_DOC,
        )


# ------------------------------------------------------------------ examples

_W0, _W1 = (
    "1140eabd6a4d47777eeeb008d248a61d8c9dbc5e28327c546a5c9a09",
    "883b8f09b6c1041f2d22a202bef0aca1c94c253355390231b442a08a",
)
_N = "4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483"
_ROW = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 41, in train_loop\n    value = parse(row)\n'
    '  File "/app/train.py", line 34, in parse\n    return float(row)\n'
    "ValueError: could not convert string to float: 'n/a'\n"
)
_PEER = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 42, in train_loop\n    all_reduce(value)\n'
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:40349. "
    "This is typically caused by a remote worker crashing.\n"
)
_DEAD = (
    "A worker health check failed.\nWorker info: Worker(\n  actor=Actor(RayTrainWorker, a1a4a7a4b5499c2036f6367601000000),\n"
    f"  metadata=ActorMetadata(\n    hostname='h',\n    node_id='{_N}',\n    node_ip='10.0.0.2',\n    pid=615,\n  ),\n"
    "  distributed_context=DistributedContext(world_rank=1, world_size=2, local_rank=1, local_world_size=2, node_rank=0),\n"
    f"  log_file_path='/tmp/ray/s/logs/train/ray-train-app-worker-{_W1}.log',\n)\nThe actor died unexpectedly before "
    "finishing this task.\n\tclass_name: RayTrainWorker\n\tactor_id: a1a4a7a4b5499c2036f6367601000000\n\tpid: 615\n\tip: 10.0.0.2\n"
)


def _json(at: str, message: str, **more: object) -> str:
    level = "ERROR" if message.startswith("Error") else "INFO"
    record = {
        "asctime": f"2026-11-21 {at}",
        "levelname": level,
        "message": message,
        "run_name": "prices",
        **more,
    }
    return json.dumps(record) + "\n"


def _decision(at: str, what: str, snippet: str, count: int, limit: int) -> str:
    text = f"[FailurePolicy] {what}\n  Source: worker group\n  Error count: {count} (max allowed: {limit})\nError: "
    text += f"Training failed due to worker errors:\n[Rank 1 Error Snippet]:\n{snippet}"
    return _json(at, text, exc_text=f"ray.train.WorkerGroupError: {text.partition('Error: ')[2]}")


_RANK_0 = _json(
    "10:42:24,094",
    f"Error in training function:\n{_PEER}",
    world_rank=0,
    process=577,
    worker_id=_W0,
)
_RANK_1 = _json(
    "10:42:22,164", f"Error in training function:\n{_ROW}", world_rank=1, process=605, worker_id=_W1
)
_EXIT = (
    "[2026-11-21 10:44:46,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{_W1}, node id = {_N}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits with a "
    "connection error code 2. End of file.\n"
)
_RAISED = f'Traceback (most recent call last):\n  File "/app/train.py", line 51, in main\n    trainer.fit()\nray.train.WorkerGroupError: Training failed due to worker errors:\n[Rank 1 Error Snippet]:\n{_ROW}\n'
_V1 = (
    "2026-11-21 10:53:17,048\tERROR tune_controller.py:1331 -- Trial task failed for trial TorchTrainer_b4431_00000\n"
    "Traceback (most recent call last):\n"
    "ray.exceptions.RayTaskError(ValueError): ray::_Inner.train() (pid=275, ip=10.0.0.2, actor_id=0530923def9c4a86e8a1982f01000000, "
    'repr=TorchTrainer)\n  File "/usr/lib/python3.11/site-packages/ray/train/_internal/utils.py", line 57, in check_for_failure\n'
    "ray.exceptions.RayTaskError(ValueError): ray::_RayTrainWorker__execute.get_next() (pid=320, ip=10.0.0.2, "
    "actor_id=56e8a5f6212de7a86427db4401000000, repr=<ray.train._internal.worker_group.RayTrainWorker object at 0x7f9dac1e1210>)\n"
    f"{_ROW.partition(chr(10))[2]}\n"
    "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed. Please inspect the previous error messages for a cause.\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "rank 1 raises an exception, and rank 0 fails two seconds later",
        {
            f"logs/train/ray-train-sys-worker-{_W0}.log": _RANK_0,
            f"logs/train/ray-train-sys-worker-{_W1}.log": _RANK_1,
            "logs/train/ray-train-sys-controller-a.log": _decision(
                "10:42:24,081", "RAISE", _ROW, 1, 0
            ),
            **QUIET_LOGS,
        },
        roots=("task-exception",),
        consequences=("train-worker-failed",),
        says=("rank 1 (pid 605) failed first: ValueError", "max_failures=0"),
    ),
    console(
        "the run is aborted, and the controller fails afterwards",
        "".join(
            f"(TrainController pid=19) {line}\n"
            for line in (
                train.ABORTED.sample,
                "[FailurePolicy] Decision: FailureDecision.RAISE, Error source: controller, Error count / maximum errors allowed: 1/0, "
                "Error: Training failed due to controller error:",
                "Worker group is not active. Call WorkerGroup.create() to create a new worker group.",
                "[State Transition] ABORTED -> SHUTTING_DOWN.",
            )
        ),
        says=("was aborted while it ran",),
    ),
    console(
        "the end of a notebook's traceback, and nothing above it",
        "File /app/venv/lib/python3.11/site-packages/ray/train/base_trainer.py:638, in BaseTrainer.fit(self)\n"
        "    634 result = result_grid[0]\n--> 638     raise TrainingFailedError(\n    641 return result\n\n"
        "TrainingFailedError: The Ray Train run failed. Please inspect the previous error messages for a cause.\n",
        says=("does not show the error", "error.txt"),
    ),
    console(
        "a program that expects the failure and goes on",
        "caught TrainingFailedError: The Ray Train run failed. Please inspect the previous error\nepoch 2\n",
    ),
    Example(
        "rank 1 is killed in both attempts",
        {
            "logs/train/ray-train-sys-controller-a.log": _decision(
                "10:44:47,743", "RETRY", _DEAD, 1, 1
            )
            + _decision(
                "10:45:04,337", "RAISE", _DEAD.replace("615", "831").replace(_W1, _W0), 2, 1
            ),
            "logs/gcs_server.out": _EXIT + _EXIT.replace(_W1, _W0).replace("10:44:46", "10:45:03"),
            "logs/raylet.out": "",
        },
        roots=("worker-vanished",),
        consequences=("train-worker-failed",),
        says=("of ranks 0 and 1)", "2 attempts", "FailureConfig(max_failures=4)"),
    ),
    Example(
        "no log shows which rank ended first",
        {
            "logs/train/ray-train-sys-controller-a.log": _decision(
                "10:42:24,081", "RAISE", _PEER, 1, 0
            ),
            **QUIET_LOGS,
        },
        says=("rank 1 lost a peer",),
    ),
    Example(
        "the records of Train V2 before 2.54",
        {
            "logs/train/ray-train-sys-controller-a.log": _json(
                "10:42:24,081",
                "[FailurePolicy] Decision: FailureDecision.RAISE, Error source: worker group, Error count / maximum errors allowed: 1/0, "
                f"Error: Training failed due to worker errors:\n[Rank 1 Error Snippet]:\n{_ROW}",
            ),
            **QUIET_LOGS,
        },
        roots=("task-exception",),
        consequences=("train-worker-failed",),
        says=("rank 1 failed first: ValueError", "max_failures=0"),
    ),
    Example(
        "a rank that does not answer",
        {
            "logs/train/ray-train-sys-controller-a.log": _decision(
                "10:42:24,081",
                "RAISE",
                "A worker health check has been hanging for 600.00 seconds. Marking the worker as dead.\n",
                1,
                0,
            ),
            **QUIET_LOGS,
        },
        says=("rank 1 failed first: A worker health check has been hanging for 600.00 seconds",),
    ),
    Example(
        "the workers could not be started, and Ray Train retries",
        {
            "logs/train/ray-train-sys-controller-a.log": _json(
                "10:42:24,081",
                "[FailurePolicy] RETRY\n  Source: controller\n  Error count: 1 (max allowed: inf)\nError: Training failed due to "
                "controller error:\nThe worker group startup timed out after 15.0 seconds waiting for 8 workers. Potential causes "
                "include: (1) temporary insufficient cluster resources while waiting for autoscaling (ignore this warning in this case)",
            ),
            **QUIET_LOGS,
        },
        roots=("train-group-timeout",),
    ),
    console(
        "the same in a console",
        "(TrainController pid=100) Attempting to start training worker group of size 8 with the following resources: "
        "[{'GPU': 1}] * 8\n(TrainController pid=100) [FailurePolicy] RETRY\n(TrainController pid=100)   Source: controller\n"
        "(TrainController pid=100)   Error count: 1 (max allowed: inf)\n(TrainController pid=100) Error: Training failed due to "
        "controller error:\n(TrainController pid=100) The worker group startup timed out after 30.0 seconds waiting for 8 workers.\n",
        roots=("train-group-timeout",),
    ),
    console(
        "a console that dropped the lines that several ranks print, and the controller retries",
        "(TrainController pid=100) [FailurePolicy] RETRY\n(TrainController pid=100)   Source: worker group\n"
        "(TrainController pid=100)   Error count: 1 (max allowed: 3)\n(TrainController pid=100) Error: Training failed due to "
        "worker errors:\n(TrainController pid=100) [Rank 1 Error Snippet]:\n(TrainController pid=100) \n",
        says=(
            "The training run was restarted (failure 1, max_failures=3): the worker group failed",
        ),
        severity="warning",
    ),
    console(
        "a console of Ray 2.46 with the exception of rank 1",
        "".join(
            f"(TrainController pid=100) {line}\n"
            for line in (
                "Terminating training worker group after encountering failure(s) on 1 worker(s):\n[Rank 1]\n"
                + _ROW
            ).splitlines()
        ),
        roots=("task-exception",),
        consequences=("train-worker-failed",),
        says=("rank 1 failed first: ValueError",),
    ),
    console(
        "a task and a program print a controller's decision",
        "(report pid=12) [FailurePolicy] RAISE\n(report pid=12)   Source: worker group\n"
        "(report pid=12)   Error count: 1 (max allowed: 0)\n(report pid=12) Error: none\n"
        "what [FailurePolicy] RAISE means: see the guide\n",
    ),
    console(
        "only the driver's output is available",
        _RAISED,
        roots=("task-exception",),
        consequences=("train-worker-failed",),
        says=("rank 1 failed first: ValueError",),
    ),
    Example(
        "Train V1 reports the failure through Tune",
        {"driver.log": _V1, **QUIET_LOGS},
        roots=("task-exception",),
        consequences=("train-worker-failed",),
        says=("(pid 320) failed first: ValueError",),
    ),
    Example(
        "a worker that prints the errors of other runs",
        {
            "driver.log": "(report pid=12) ray.train.WorkerGroupError: Training failed due to worker errors:\n"
            "summary: Error in training function: none\n",
            "logs/train/ray-train-app-worker-a.log": _json(
                "10:00:00,000", "Error in training function: 0"
            ),
            **QUIET_LOGS,
        },
    ),
    console(
        "a program prints the error of the run without its class",
        f"{train.RAISED_BARE.sample}\n",
        roots=("task-exception",),
        consequences=("train-worker-failed",),
        says=("rank 1 failed first",),
    ),
    console(
        "a program's own words",
        "Training failed due to worker errors: see the page of rank 0\nretrying\n",
    ),
)
