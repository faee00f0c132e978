"""Ray Train's records of a failed run: the rank that failed first, its failure, and the ranks that failed with it.

Train V2 (opt-in from 2.42, the default since 2.51) writes JSON to `logs/train/`: every worker its own exception
(`Error in training function`), and the controller one decision per attempt (`[FailurePolicy] …`), which quotes the ranks
that had failed by then. A rank that is not quoted, or failed later, usually failed *because* a peer was gone:
`Connection closed by peer`. Read in runs of 2.60 and in the sources of 2.49 to 2.60.

Train V1 has no log of its own: Tune prints `Trial task failed for trial TorchTrainer_…` and the exception of the rank
that failed first into the driver's output (read in runs of 2.40).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.cluster import resources
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Remedy
from raydoctor.rules.shared.task_error import Printed, TaskFailure, function_of, parse_failure
from raydoctor.rules.shared.traceback import parse

_DOC = "https://docs.ray.io/en/latest/train/user-guides/using-gpus.html"
_ROW = (
    "[Rank 1 Error Snippet]:\nTraceback (most recent call last):\n"
    "  File \"/app/train.py\", line 34, in parse\n    return float(row)\nValueError: could not convert string to float: 'n/a'\n"
)
_LOGGED = ("train", "worker-echo")
"""Logs of the controller and the workers, and a console that echoes them."""
DECISION = Signal(
    "train.decision",
    "[FailurePolicy] ",
    r"^\[FailurePolicy\] (?:Decision: (?:FailureDecision\.)?(?P<decision_a>\w+), Error source: (?P<source_a>[\w ]+), Error count "
    r"/ maximum errors allowed: (?P<count_a>\d+)/(?P<limit_a>[\w.-]+), Error: |(?P<decision_b>\w+)\n  Source: (?P<source_b>[\w ]+)"
    r"\n  Error count: (?P<count_b>\d+) \(max allowed: (?P<limit_b>[\w.-]+)\)\nError: )(?P<what>.*)",
    _LOGGED,
    "[FailurePolicy] RAISE\n  Source: worker group\n  Error count: 1 (max allowed: 0)\n"
    f"Error: Training failed due to worker errors:\n{_ROW}",
    extent="record",
    symptom=True,
)
OLD_DECISION = Signal(
    "train.decision",
    " training worker group after encountering",
    r"^(?P<decision_a>Restarting|Terminating) training worker group after encountering\s+failures?(?:\(s\))? on \d+ worker\(s\):\n(?P<what>.*)",
    _LOGGED,
    "Terminating training worker group after encountering failure(s) on 1 worker(s):\n[Rank 1]\nTraceback (most recent call last):\n"
    '  File "/app/train.py", line 34, in parse\nValueError: x',
    extent="record",
    symptom=True,
)
"""Up to 2.48."""
WORKER_ERROR = Signal(
    "train.worker_error",
    "Error in training function:",
    r"^Error in training function:\n(?P<what>.*)",
    ("train",),
    f"Error in training function:\n{_ROW.partition(chr(10))[2]}",
    extent="record",
    symptom=True,
)
WORKER_ECHO = Signal(
    "train.worker_echo",
    WORKER_ERROR.find,
    WORKER_ERROR.pattern,
    ("worker-echo",),
    WORKER_ERROR.sample,
    extent="record",
)
"""The same in a driver's output, which may end before the controller's decision."""
RAISED = Signal(
    "train.raised",
    "Training failed due to ",
    r"^(?:raise )?ray\.train\.(?:[\w.]*\.)?(?P<type>\w+Error): Training failed due to (?P<source>worker|controller) errors?:\n?(?P<what>.*)",
    DRIVER,
    f"ray.train.WorkerGroupError: Training failed due to worker errors:\n{_ROW}",
    extent="record",
    symptom=True,
)
RAISED_BARE = Signal(
    RAISED.kind,
    "Training failed due to worker errors:",
    r"^Training failed due to (?P<source>worker) errors:\n(?P<what>\[Rank \d.*)",
    DRIVER,
    f"Training failed due to worker errors:\n{_ROW}",
    extent="record",
    symptom=True,
)
"""The same without the class of the exception, as programs print it."""
RAISED_V1 = Signal(
    "train.raised_v1",
    "The Ray Train run failed. Please inspect the previous error",
    r"^(?:ray\.train\.base_trainer\.)?TrainingFailedError: The Ray Train run failed\. Please inspect the previous error",
    DRIVER,
    "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed. Please inspect the previous error messages for a cause.",
    symptom=True,
)
TRIAL = Signal(
    "train.trial_failed",
    "Trial task failed for trial ",
    r"^Trial task failed for trial (?P<trial>\S+)",
    DRIVER,
    "Trial task failed for trial TorchTrainer_df28e_00000",
)
PLACED = Signal(
    "train.rank",
    ") world_rank=",
    r"^- \((?:node_id=[0-9a-f]{56}, )?ip=(?P<rank_ip>[^\s,]+), pid=(?P<rank_pid>\d+)\) world_rank=(?P<rank>\d+), local_rank=",
    ("worker-err", "worker-echo"),
    "- (ip=10.0.0.2, pid=605) world_rank=1, local_rank=1, node_rank=0",
    fold=("rank",),
)
"""The rank of each worker: one line per worker and start."""
SHUTDOWN = Signal(
    "train.shutdown_failed",
    "Graceful shutdown of backend failed. This is expected",
    r"^Graceful shutdown of backend failed\. This is expected if one of the workers has crashed\.",
    ("train", "worker-err"),
    "Graceful shutdown of backend failed. This is expected if one of the workers has crashed.",
    extent="record",
)
"""The controller's error after a rank's end: recognized, so that it is not listed as a separate error."""
NO_ANSWER = Signal(
    "train.no_answer",
    "Failed to send resource request for ",
    r"^Failed to send resource request for \S+ If this only happens transiently",
    ("train", "worker-err"),
    "Failed to send resource request for train-8818959a. If this only happens transiently during network partition or CPU being overloaded",
    extent="record",
)
"""From a controller on a busy machine, with a traceback: harmless, according to its own text."""
ATTEMPT = Signal(
    "train.attempt",
    "Attempting to start training worker group of size ",
    r"^Attempting to start training worker group of size (?P<workers>\d+) with the following resources: \[(?P<each>\{[^{}\n]*\})\] \* \d+",
    _LOGGED,
    "Attempting to start training worker group of size 8 with the following resources: [{'CPU': 1, 'GPU': 1}] * 8",
)
GROUP_STARTED = Signal(
    "train.group_started",
    "Started training worker group of size ",
    r"^Started training worker group of size \d+",
    _LOGGED,
    "Started training worker group of size 8: ",
)
"""2.45 and later."""
TIMEOUT = Signal(
    "train.group_timeout",
    "The worker group startup timed out after ",
    r"(?:^|\n|Error: )The worker group startup timed out after (?P<seconds>\d+(?:\.\d+)?)\.?"
    r"(?: seconds waiting for (?P<workers>\d+) workers)?",
    (*_LOGGED, *DRIVER),
    "The worker group startup timed out after 30.0 seconds waiting for 8 workers. Potential causes include: (1) temporary insufficient "
    "cluster resources while waiting for autoscaling (ignore this warning in this case), (2) infeasible resource request",
    symptom=True,
)
"""2.41 and later."""
ABORTED = Signal(
    "train.aborted",
    " -> ABORTED",
    r"^\[State Transition\] \w{1,40} -> ABORTED\.",
    _LOGGED,
    "[State Transition] RUNNING -> ABORTED.",
)
"""2.49 and later: `fit()` was interrupted, or the driver ended."""
SIGNALS = (
    TIMEOUT,
    ABORTED,
    DECISION,
    OLD_DECISION,
    ATTEMPT,
    WORKER_ERROR,
    WORKER_ECHO,
    RAISED,
    RAISED_BARE,
    RAISED_V1,
    TRIAL,
    PLACED,
    SHUTDOWN,
    NO_ANSWER,
)

_SNIPPET = pattern(
    r"^\[Rank (?P<ranks>\d{1,9}(?:,\d{1,9})*)(?: Error Snippet\]:|\])\n", re.MULTILINE
)
_DEAD = "A worker health check failed."
_PID = pattern(r"\bpid[=:] ?(\d{1,20})")
_IP = pattern(r"(?:node_ip='|\n\tip: )([^'\n]+)")
_WORKER = pattern(r"ray-train-app-worker-([0-9a-f]{56})\.log")
_WORLD = pattern(r"\bworld_size=(\d{1,20})")
_V1_TASK = "ray::_Inner.train()"
_V1_ERROR = "ray::_RayTrainWorker__execute."
_V1_DEAD = pattern(
    r"\tclass_name: RayTrainWorker\n\tactor_id: [0-9a-f]{32}\n\tpid: (?P<pid>\d{1,20})(?:\n\t[^\n]*){0,20}?\n\tip: (?P<ip>\S+)\n(?P<says>[^\n]*)"
)
_UNKNOWN = -1
_PEER = pattern(
    r"Connection (?:closed|reset) by peer|Read error \[[^\]]{0,200}\]:\d+: |Broken pipe"
)
_SAYS = pattern(r"^\)\n(?P<says>[^\n]+)", re.MULTILINE)


class Rank(NamedTuple):
    """A rank that had failed when the controller checked."""

    number: int
    """The world rank; negative if unknown."""
    event: Event
    """The best record: its own error, its process's end, or the controller's decision."""
    at: float
    pid: int | None = None
    error: Printed | None = None
    """The exception that it raised."""
    exit: WorkerExit | None = None
    """The end of its process."""
    says: str = ""
    """The controller's error, if neither is in the capture."""
    world_size: int | None = None

    @property
    def lost_its_peer(self) -> bool:
        """Whether its exception only reports that another rank was gone."""
        return self.error is not None and is_loss_of_peer(self.error)


@dataclass(slots=True)
class TrainAttempt:
    """One start of a run's workers, up to its failure."""

    event: Event
    """The controller's decision; if only the driver's output is left, the exception."""
    ranks: list[Rank] = field(default_factory=list)
    """Ranks that failed by themselves, in order."""
    followers: list[Event] = field(default_factory=list)
    """Errors of ranks that failed because another rank had."""

    gave_up: bool = True
    """Whether this failure ended the run."""

    @property
    def by_controller(self) -> bool:
        """Whether the failure was outside the workers, for example if they could not be started."""
        return (_field(self.event, "source") or "worker").startswith("controller")

    @property
    def is_preempted(self) -> bool:
        """Whether a worker's node was preempted (2.31 and later: the actor's error; 2.58 and later: the controller)."""
        text = self.event["what"]
        by_node = "the actor's node was preempted" in text
        return by_node or "Training was interrupted by node preemption" in text

    @property
    def count(self) -> str:
        """The number of failures that the controller has counted."""
        return _field(self.event, "count")

    @property
    def limit(self) -> str:
        """The number of failures that it allows."""
        return _field(self.event, "limit")


@dataclass(slots=True)
class TrainRun:
    """One `trainer.fit()`."""

    name: str
    attempts: list[TrainAttempt]
    raised: list[Event]
    """The exceptions that the driver printed."""


def _field(event: Event, name: str) -> str:
    return event[f"{name}_a"] or event[f"{name}_b"] or event[name]


def is_loss_of_peer(seen: Printed) -> bool:
    """Whether a training function raised only because another rank's process was gone (gloo's messages)."""
    raised = seen.failure.raised
    return not seen.failure.is_remote and bool(raised and _PEER.search(raised.message))


def logged(case: Case, *kinds: str) -> list[Event]:
    """Records of Ray Train's own processes; a console's echoes of them only where their logs are missing."""
    return [
        e
        for e in case.of(*kinds)
        if not e["who"] or ("train" not in case.roles and e["who"].startswith(_PROCESSES))
    ]


def echoes(case: Case) -> list[Event]:
    """A console's echoes of the controller's records."""
    found = case.of(DECISION.kind, TIMEOUT.kind)
    return [e for e in found if e["who"].startswith(_PROCESSES)]


_PROCESSES = ("TrainController", "RayTrainWorker", "PreemptionWatcher")


def entity(run: TrainRun) -> Entity:
    """The run; without a name by the place of its last failure."""
    last = run.attempts[-1].event
    return Entity("train-run", run.name or f"{last.source.path}:{last.line}")


def requested(case: Case) -> str:
    """What the latest worker group requested: `1 GPU and 1 CPU each`; empty if no log contains it."""
    attempts = logged(case, ATTEMPT.kind)
    if not attempts:
        return ""
    each = next(iter(resources.python_amounts(attempts[-1]["each"])), None)
    return f"{resources.describe(each)} each" if each else ""


def timeouts(case: Case) -> list[Event]:
    """Attempts whose workers did not start in time."""
    return logged(case, TIMEOUT.kind)


def is_start_timeout(attempt: TrainAttempt) -> bool:
    """Whether the controller decided about a group that did not start in time."""
    return not attempt.ranks and "startup timed out" in attempt.event["what"]


def room_remedies(*, v1: bool = False) -> tuple[Remedy, ...]:
    """How to let a worker group start: it needs all of its resources at once."""
    return (
        Remedy(
            "Compare what the group requests with what is free, and end what holds the rest",
            ("ray status   # Total Usage, Total Constraints and Total Demands",),
            doc=_DOC,
        ),
        Remedy(
            "Request no more than the cluster can give at the same time",
            ("ScalingConfig(num_workers=…, resources_per_worker={…})",),
            doc=_DOC,
        ),
        Remedy(
            "Allow the workers 600 s to start if the cluster must grow first",
            (
                "TRAIN_PLACEMENT_GROUP_TIMEOUT_S=600 python your_script.py   # Train V1. The default is 100"
                if v1
                else "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=600 python your_script.py",
            ),
            doc=_DOC,
            since=(0, 0) if v1 else (2, 41),
        ),
    )


def runs(case: Case) -> list[TrainRun]:
    """Failed runs in the order of their first failure."""
    raised = case.of("train.raised")
    decisions = logged(case, "train.decision")
    if raised and all(e["who"] for e in decisions):
        decisions = []  # the exception is whole, while echoes lose the lines that several ranks print
    by_name = evidence.grouped(decisions, lambda e: e["run_name"])
    if not by_name and raised:
        printed_only = [TrainRun("", [_attempt(case, event, [])], [event]) for event in raised]
        return [*printed_only, *_runs_of_v1(case)]
    found = []
    for name, decisions in by_name.items():
        errors = [e for e in case.of("train.worker_error") if e["run_name"] == name]
        attempts = [
            _attempt(case, decision, own)
            for decision, own in zip(decisions, _shared(decisions, errors), strict=True)
        ]
        last = decisions[-1]
        own = [e for e in raised if last.at is not None and _within(e, last)]
        found.append(TrainRun(name, attempts, own or (raised if len(by_name) == 1 else [])))
    return [*found, *_runs_of_v1(case)]


def _within(event: Event, decision: Event) -> bool:
    """Whether the driver printed this very failure: its output has no times."""
    return bool(event["what"]) and event["what"].strip()[:400] in decision.message


_LATE = 30.0
"""Seconds within which a peer notices that a rank is gone, unless its own timeout is longer."""


def _shared(decisions: Sequence[Event], errors: Sequence[Event]) -> Iterator[list[Event]]:
    """The errors of each attempt: those since the attempt before, and late ones."""
    begin = float("-inf")
    for n, decision in enumerate(decisions):
        end = decision.at or 0.0
        following = decisions[n + 1].at if n + 1 < len(decisions) else None
        limit = min(end + _LATE, (following or float("inf")) - 1.0)
        yield [e for e in errors if e.at is not None and begin < e.at <= max(limit, end)]
        begin = max(limit, end)


def _attempt(case: Case, event: Event, errors: list[Event]) -> TrainAttempt:
    decision = _field(event, "decision")
    attempt = TrainAttempt(event, gave_up=decision in ("RAISE", "Terminating", ""))
    own: dict[int, Event] = {}
    for error in errors:
        if error["world_rank"].isdecimal():
            own.setdefault(int(error["world_rank"]), error)
    text = event["what"].partition("\nray.train.")[0]
    parts = _SNIPPET.split(text)
    by_rank: dict[int, Rank] = {}
    for ranks, snippet in zip(parts[1::2], parts[2::2], strict=True):
        if event["who"] and not snippet.strip():
            continue  # another rank has printed the same lines
        for n in map(int, ranks.split(",")):
            if n not in by_rank:
                by_rank[n] = _rank(case, n, event, own.get(n), snippet)
    attempt.ranks += by_rank.values()
    # The loss of a peer is recorded before the peer's own end, if only by milliseconds.
    attempt.ranks.sort(key=lambda r: (r.lost_its_peer, r.at, r.number))
    named = {rank.number for rank in attempt.ranks}
    attempt.followers = [e for n, e in own.items() if n not in named]
    _part_followers(attempt)
    return attempt


def _part_followers(attempt: TrainAttempt) -> None:
    """Keep the ranks that failed in the same way as the first one; the others followed it."""
    first = attempt.ranks[0] if attempt.ranks else None
    if first is None:
        return
    alike = [r for r in attempt.ranks if r is first or _like(r, first)]
    attempt.followers += [r.event for r in attempt.ranks if r not in alike and r.error]
    attempt.ranks = alike


def _like(rank: Rank, first: Rank) -> bool:
    if rank.error and first.error:
        one, other = rank.error.failure.raised, first.error.failure.raised
        return bool(one and other and (one.name, str(one.place)) == (other.name, str(other.place)))
    return rank.exit is not None and first.exit is not None


def _rank(case: Case, number: int, decision: Event, error: Event | None, snippet: str) -> Rank:
    pid = _PID.search(snippet)
    world = _WORLD.search(snippet)
    size = int(world[1]) if world else None
    late = decision.at or float("inf")
    if snippet.startswith(_DEAD) or not error:
        exit_ = _exit(case, snippet, int(pid[1]) if pid else None)
        if exit_ or snippet.startswith(_DEAD):
            says = _SAYS.search(snippet)
            heard = says["says"] if says else snippet.partition("\n")[0]
            at = exit_.at if exit_ and exit_.at is not None else late
            event = exit_.events[0] if exit_ and exit_.events else decision
            return Rank(number, event, at, int(pid[1]) if pid else None, None, exit_, heard, size)
    event = error or decision
    text = error["what"] if error else snippet
    printed = _printed(event, text) if parse(text) else None
    at = error.at if error and error.at is not None else late
    message = "" if printed else snippet.strip().partition("\n")[0]
    return Rank(number, event, at, error.pid if error else None, printed, None, message, size)


def _exit(case: Case, snippet: str, pid: int | None) -> WorkerExit | None:
    worker = _WORKER.search(snippet)
    if worker and (exit_ := case.exit_of(worker[1])):
        return exit_
    ip = _IP.search(snippet)
    return case.exit_of_process(pid, ip=ip[1] if ip else "") if pid is not None else None


def _printed(event: Event, text: str) -> Printed:
    """The error of a training function, as the failure of a function that is not a task."""
    raised = parse(text)
    function = function_of(raised) if raised else "the training function"
    cause = (function, raised.cause) if raised and raised.cause else None
    return Printed(event, TaskFailure(function, raised, cause, pid=event.pid, is_remote=False))


# ---------------------------------------------------------------- V1


def _runs_of_v1(case: Case) -> Iterator[TrainRun]:
    raised = case.of("train.raised_v1")
    failures = [e for e in case.of("driver.exception") if _V1_TASK in e.message]
    by_trial: dict[str, list[TrainAttempt]] = {}
    covered: list[Event] = []
    for trial in case.of("train.trial_failed"):
        below = [e for e in failures if e.source is trial.source and e.line > trial.line]
        first = min(below, key=lambda e: e.line, default=None)
        if first and (rank := _rank_of_v1(case, first)):
            attempt = TrainAttempt(trial, [rank], gave_up=False)
            by_trial.setdefault(trial["trial"], []).append(attempt)
            covered += below
    for name, attempts in by_trial.items():
        attempts[-1].gave_up = bool(raised)
        yield TrainRun(name, attempts, [*raised, *dict.fromkeys(covered)])


def _rank_of_v1(case: Case, event: Event) -> Rank | None:
    at = event.at if event.at is not None else float("inf")
    if _V1_ERROR in event.message:
        failure = parse_failure(event.message)
        if failure is None or failure.is_remote:
            return None
        return Rank(_number(case, failure.pid), event, at, failure.pid, Printed(event, failure))
    if dead := _V1_DEAD.search(event.message):
        pid = int(dead["pid"])
        exit_ = case.exit_of_process(pid, ip=dead["ip"])
        best = exit_.events[0] if exit_ and exit_.events else event
        return Rank(_number(case, pid), best, at, pid, None, exit_, dead["says"])
    return None


def _number(case: Case, pid: int | None) -> int:
    found = {e["rank"] for e in case.of("train.rank") if e["rank_pid"] == str(pid)}
    return int(found.pop()) if len(found) == 1 else _UNKNOWN


def world_size(case: Case, attempt: TrainAttempt) -> int | None:
    """The number of ranks, if a log contains it."""
    size = next((r.world_size for r in attempt.ranks if r.world_size), None)
    ranks = [int(e["rank"]) for e in case.of("train.rank")]
    return size or (max(ranks) + 1 if ranks else None)


def errors(case: Case) -> Iterator[Printed]:
    """Exceptions that training functions raised by themselves, without those caused by a peer's end.

    V1's exceptions are among the tasks' failures in the driver's output.
    """
    found = runs(case)
    for run in found:
        for attempt in run.attempts:
            for rank in attempt.ranks:
                if rank.error and rank.error.event.kind != "driver.exception":
                    yield rank.error
    for event in [] if found else case.of(WORKER_ECHO.kind):
        raised = parse(event["what"])
        if raised and event["who"] == "RayTrainWorker" and not raised.type.startswith("ray."):
            copies = (e for e in case.of("log.echoed_traceback") if e.source is event.source)
            yield _printed(event, event["what"])._replace(
                inside=tuple(e for e in copies if str(parse(e.message)) == str(raised))
            )
