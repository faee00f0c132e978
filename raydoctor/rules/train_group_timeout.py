"""The workers of a Ray Train run did not start within the time limit: their resources were never all free at once.

## What you see
- The controller prints `(TrainController pid=…) Retrying the launch of the training worker group. The previous launch
  attempt encountered the following failure:`, and `The worker group startup timed out after 30.0 seconds waiting for
  8 workers` (Ray 2.41 and later).
- Or the controller prints `Insufficient cluster resources to launch training workers` (Ray 2.49 and later), with what
  the group requires and what the cluster has.
- Train V1 raises `TimeoutError: Placement group creation timed out` after 100 s, or Ray Tune warns every minute that
  `Training has not started` or `No trial is running`.

## Why
The controller requests one placement group for all workers and waits 30 s for it (60 s with Ray 2.60;
`RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S`). Train V1 waits 100 s (`TRAIN_PLACEMENT_GROUP_TIMEOUT_S`). The group is created only if the resources of all workers are free at the
same time.
- The cluster is smaller than the request: a node has not joined, or a GPU is not declared.
- Another job, a leftover placement group or the driver's own actors hold a part of the resources.
- An autoscaling cluster needs longer than the limit to start a node. Then a later attempt succeeds.

## Confirm
- While the run waits, `Pending Demands` in `ray status` lists the group (older Ray: `Demands`), and `Total Usage` shows
  the resources in use.
- In the controller's output, `Attempting to start training worker group of size 8 with the following resources:
  [{'GPU': 1}] * 8` shows the request.

## Fix
Add the missing nodes, end the jobs that hold the resources, or request fewer or smaller workers:

    ScalingConfig(num_workers=4, resources_per_worker={"GPU": 1})

If the cluster must grow first, raise the limit. Each version of Train reads its own variable:

    RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=600 python your_script.py   # Train V2
    TRAIN_PLACEMENT_GROUP_TIMEOUT_S=600 python your_script.py   # Train V1 (Ray 2.9 to 2.60)

## Not this when
- a later attempt started its workers.
- the controller logged whether it retries or gives up (Ray 2.49 and later): `train-worker-failed`, which also covers
  a failed start, then reports the timeout.
- the reason is known (`infeasible-request`, `cluster-starved`): the report then lists it as the root.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, OUTPUT
from raydoctor.cluster import resources
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link
from raydoctor.rules.shared import gpu_start, train, waiting
from raydoctor.rules.shared.failures import SIGNALS

SHORT = Signal(
    "train.group_short",
    "} but the cluster only has a maximum of {",
    r"(?:^|\n)The worker group requires \{\"(?P<resource>[^\"\n]{1,200})\": (?P<required>\d{1,20}(?:\.\d{1,20})?)\} but the cluster only has a maximum of "
    r"\{\"[^\"\n]{1,200}\": (?P<available>\d{1,20}(?:\.\d{1,20})?)\} resources",
    ("train", "worker-echo", *DRIVER),
    'The worker group requires {"GPU": 8.0} but the cluster only has a maximum of {"GPU": 4.0} resources.',
    symptom=True,
)
GROUP_REFUSED = Signal(
    "train.group_refused",
    "Placement group creation timed out. Make sure your",
    r"^(?:\w+\.){0,5}TimeoutError: Placement group creation timed out\. Make sure your cluster either has enough resources"
    r"(?:.{0,600}?Current resources available: \{(?P<free>[^{}]{0,4000})\}, resources requested by the placement group: \[(?P<asked>.{0,4000}?)\])?",
    OUTPUT,
    "TimeoutError: Placement group creation timed out. Make sure your cluster either has enough resources or use an autoscaling cluster. "
    "Current resources available: {'CPU': 3.0}, resources requested by the placement group: [{'CPU': 1.0}, {'GPU': 1.0, 'CPU': 1.0}]",
    symptom=True,
)
"""Train V1 (2.9 to 2.60), after 100 s: the trainer ends."""
NOT_STARTED = Signal(
    "train.not_started",
    "This could be due to the cluster not having enough resources available. You asked for ",
    r"^Ignore this message if the cluster is autoscaling\. .{0,200}? the last (?P<seconds>\d+) seconds\. This could be due to the cluster not "
    r"having enough resources available\. You asked for (?P<cpus>\d{1,20}(?:\.\d{1,20})?) CPUs and (?P<gpus>\d{1,20}(?:\.\d{1,20})?) GPUs(?: per trial)?, but the cluster only "
    r"has (?P<has_cpus>\d{1,20}(?:\.\d{1,20})?) CPUs and (?P<has_gpus>\d{1,20}(?:\.\d{1,20})?) GPUs available",
    DRIVER,
    "Ignore this message if the cluster is autoscaling. Training has not started in the last 60 seconds. This could be due to the cluster "
    "not having enough resources available. You asked for 9.0 CPUs and 4.0 GPUs, but the cluster only has 16.0 CPUs and 2.0 GPUs available. "
    "Stop the training and adjust the required resources",
)
"""Ray Tune, and Train V1 which runs in it (2.9 to 2.60): every minute while it lasts."""
_OFTEN = 3
"""Attempts in a row from which on the group is not expected to start by itself."""


@rule(
    tier="symptom",
    severity="error",
    rank=47,
    explains=("task-error", "train-run"),
    caused_by=("waiting",),
    looks_for=(
        SHORT,
        GROUP_REFUSED,
        NOT_STARTED,
        *SIGNALS,
        *train.SIGNALS,
        train.GROUP_STARTED,
        waiting.INFEASIBLE,
    ),
)
def train_group_timeout(case: Case) -> Iterator[Finding]:
    """One finding for all attempts of a run, and one for Train V1."""
    short = train.logged(case, SHORT.kind)
    timeouts = _since_last_start(case, train.timeouts(case))
    if short or timeouts:
        yield _finding(case, short, timeouts)
    if refused := case.of(GROUP_REFUSED.kind):
        yield _refused(case, refused)
    elif waited := _not_started(case):
        yield _waiting(waited)


def _since_last_start(case: Case, timeouts: list[Event]) -> list[Event]:
    """Timeouts after the last group that started."""
    starts = train.logged(case, train.GROUP_STARTED.kind)
    return [e for e in timeouts if not any(evidence.is_before(e, start) for start in starts)]


def _finding(case: Case, short: list[Event], timeouts: list[Event]) -> Finding:
    count = max(evidence.total(timeouts), 1)
    runs = [run for run in train.runs(case) if short or train.is_start_timeout(run.attempts[-1])]
    gave_up = any(run.attempts[-1].gave_up for run in runs)
    own = Entity("train-run", f"{(short or timeouts)[0].source.path} group")
    return Finding(
        _headline(case, short, timeouts),
        (
            *(Link(e, f"the controller compares the request for {e['resource']} with the cluster") for e in short[:1]),
            *(Link(e, f"an attempt to start {_workers(e)} timed out") for e in timeouts[:1]),
            *(Link(e, f"the last of {count} attempts") for e in timeouts[1:][-1:]),
        ),
        explains=(own, *(train.entity(run) for run in runs)),
        caused_by=(Entity("waiting", "cluster"),),
        count=count,
        severity="error" if short or gave_up or count >= _OFTEN else "warning",
        remedies=train.room_remedies(),
        covers=(*train.echoes(case), *short, *timeouts, *(a.event for r in runs for a in r.attempts), *(e for r in runs for e in r.raised)),
    )  # fmt: skip


_REFUSED = pattern(
    r"^Placement group creation timed out\.|TimeoutError: Placement group creation timed out\."
)


def _refused(case: Case, refused: list[Event]) -> Finding:
    """The end of a trainer of Train V1, which reports what it requested and what was free."""
    event = next((e for e in refused if e["asked"]), refused[-1])
    ended = gpu_start.consequences(case, refused, _REFUSED)
    request = _amounts(event["asked"])
    return Finding(
        "Ray Train could not reserve the resources of its workers"
        + (f": it needs {request} together, with {_amounts(event['free']) or 'nothing'} free" if request else ""),
        (Link(event, "the trainer gave up its placement group"),),
        explains=(Entity("train-run", f"{event.source.path} placement"), *(e for e in ended.entities if e.kind == "task-error")),
        caused_by=(Entity("waiting", "cluster"),),
        remedies=train.room_remedies(v1=True),
        covers=(*refused, *ended.events),
    )  # fmt: skip


_AMOUNT = pattern(r"'(?P<name>CPU|GPU)': (?P<amount>\d{1,20}(?:\.\d{1,20})?)")


def _amounts(text: str) -> str:
    """`3 CPUs and 1 GPU`, summed over all bundles."""
    sums: dict[str, float] = {}
    for found in _AMOUNT.finditer(text):
        sums[found["name"]] = sums.get(found["name"], 0.0) + float(found["amount"])
    return " and ".join(
        f"{amount:g} {name}{'' if amount == 1 else 's'}" for name, amount in sums.items()
    )


def _not_started(case: Case) -> list[Event]:
    """Tune's warnings of requests that are larger than the cluster, since the last worker that started."""
    starts = case.of(train.PLACED.kind)
    return [
        e
        for e in case.of(NOT_STARTED.kind)
        if any(float(e[name]) > float(e[f"has_{name}"]) for name in ("cpus", "gpus"))
        and not any(evidence.is_before(e, start) for start in starts)
    ]


def _waiting(waited: list[Event]) -> Finding:
    event = waited[-1]
    asked, has = (
        f"{float(event[cpus]):g} CPUs and {float(event[gpus]):g} GPUs"
        for cpus, gpus in (("cpus", "gpus"), ("has_cpus", "has_gpus"))
    )
    return Finding(
        f"The training has not started: it needs {asked} together, and the cluster has {has}",
        (Link(event, f"Ray Tune warns after {event['seconds']} s without a running trial"),),
        explains=(Entity("train-run", f"{event.source.path} trials"),),
        caused_by=(Entity("waiting", "cluster"),),
        count=evidence.total(waited),
        severity="warning",
        remedies=train.room_remedies()[:2],
        covers=tuple(waited),
    )


def _headline(case: Case, short: list[Event], timeouts: list[Event]) -> str:
    if short:
        event = short[-1]
        needs = resources.describe({event["resource"]: float(event["required"])})
        has = f"{float(event['available']):g}"
        return f"Ray Train cannot start its workers: they need {needs} together, and the cluster has at most {has}"
    event = timeouts[-1]
    request = train.requested(case)
    attempts = evidence.total(timeouts)
    text = f"Ray Train could not get the resources of {_workers(event)}"
    text += f" ({request})" if request else ""
    text += f" within {float(event['seconds']):g} s"
    return f"{text}, in {attempts} attempts" if attempts > 1 else text


def _workers(event: Event) -> str:
    """`8 workers`; an excerpt may cut the number off."""
    return evidence.many(int(event["workers"]), "worker") if event["workers"] else "its workers"


# ------------------------------------------------------------------ examples

_TIMED_OUT = (
    "(TrainController pid=100) Retrying the launch of the training worker group. The previous launch attempt encountered the "
    f"following failure:\n(TrainController pid=100) {train.TIMEOUT.sample}\n"
)
_NO_NODE = (
    "(autoscaler +34s) Error: No available node types can fulfill resource request {'GPU': 1.0}. Add suitable node types to this "
    "cluster to resolve this issue.\n"
)
_ATTEMPT = f"(TrainController pid=100) {train.ATTEMPT.sample}\n"
_SHORT = (
    "(TrainController pid=100) [FailurePolicy] RAISE\n(TrainController pid=100)   Source: controller\n"
    "(TrainController pid=100)   Error count: 1 (max allowed: 0)\n(TrainController pid=100) Error: Training failed due to controller "
    "error:\n(TrainController pid=100) Insufficient cluster resources to launch training workers.\n"
    f"(TrainController pid=100) {SHORT.sample}\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "three attempts in the console output of Ray 2.46",
        (_ATTEMPT + _TIMED_OUT) * 3,
        says=("8 workers (1 GPU and 1 CPU each) within 30 s, in 3 attempts", "ray status"),
    ),
    console(
        "the same, and the autoscaler reports again and again that no node fits",
        _TIMED_OUT + 2 * _NO_NODE,
        roots=("infeasible-request",),
        consequences=("train-group-timeout",),
        severity="warning",
    ),
    console(
        "the cluster is smaller than the group, and the controller gives up",
        _ATTEMPT + _SHORT,
        says=("they need 8 GPUs together, and the cluster has at most 4",),
    ),
    console(
        "Train V1 gives up its placement group",
        "Traceback (most recent call last):\nray.exceptions.RayTaskError(TimeoutError): ray::_Inner.train() (pid=275, "
        "ip=10.0.0.2, actor_id=0530923def9c4a86e8a1982f01000000, repr=TorchTrainer)\n"
        '  File "/usr/lib/python3.11/site-packages/ray/train/_internal/backend_executor.py", line 257, in _create_placement_group\n'
        f"    raise TimeoutError(\n{GROUP_REFUSED.sample}\n",
        says=("it needs 2 CPUs and 1 GPU together, with 3 CPUs free",),
    ),
    console(
        "Ray Tune warns that the trial does not fit",
        f"2026-11-21 10:53:17,048\tWARNING insufficient_resources_manager.py:163 -- {NOT_STARTED.sample}\n",
        says=("9 CPUs and 4 GPUs together, and the cluster has 16 CPUs and 2 GPUs",),
        severity="warning",
    ),
    console(
        "the same warning of an autoscaling cluster, and then a worker starts",
        f"2026-11-21 10:53:17,048\tWARNING insufficient_resources_manager.py:163 -- {NOT_STARTED.sample}\n"
         f"(TorchTrainer pid=320) {train.PLACED.sample}\n",
    ),
    console(
        "a second attempt starts, after a node was added",
        f"{_ATTEMPT}{_TIMED_OUT}{_ATTEMPT}(TrainController pid=100) {train.GROUP_STARTED.sample}\n",
    ),
    console(
        "a task and a program quote the messages",
        f"(report pid=12) {train.TIMEOUT.sample}\nfaq: 'The worker group startup timed out after 30.0 seconds waiting for 8 "
        f"workers' means that GPUs are taken\n(report pid=12) {SHORT.sample}\n(report pid=12) {NOT_STARTED.sample}\n",
    ),
)  # fmt: skip
