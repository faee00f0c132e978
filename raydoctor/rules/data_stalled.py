"""A Ray Data pipeline is stalled: it makes no progress, or cannot get the resources that it needs.

## What you see
A progress bar that does not move, or one of these messages:
- `Cluster resources are not enough to run any task from …. The job may hang forever` (2.46+)
- `Operator … is running but has no outputs for 60.4 seconds` (2.9+)
- `A task … has been running …, which is longer than the average task duration` (2.49+)
- `ExecutionTimeoutError: Dataset execution made no progress`, after half an hour (2.58+). Older versions wait forever.

## Why
- No resources are free: actors of the same program, of another job, or of the pipeline's own pools hold the CPUs or
  GPUs.
- One operator requests more than the cluster has: `num_gpus=1` without a GPU, or more shuffle aggregators than CPUs.
- A task is hung or slow: a UDF waits for a service, a block is huge, or Ray kills tasks for memory and retries them.
- Nothing consumes the output, and the object store is full: backpressure.

## Confirm
- The progress bar or `logs/ray-data/ray-data.log`: the operator with queued blocks and no active task; `pending`
  actors; `[backpressured:…]`.
- `ray status`: requested and used resources. `ray list tasks --filter state=RUNNING` and `ray stack`: running tasks.

## Fix
Free or add the resources that the operator needs, or request less (`num_cpus`, `concurrency`). Exclude resources that
other actors hold: `execution_options.exclude_resources`. If the function is really that slow, raise the timeout.

## Not this when
A function of the pipeline raised an exception (`task-exception`), or its workers are killed for memory (`ray-oom-kill`,
`oom-kill-loop`). A slow task alone is only a note: the slowest of many tasks always takes longer than the average.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared import data

_DOC = "https://docs.ray.io/en/latest/data/execution-configurations.html"
_TIPS = "https://docs.ray.io/en/latest/data/performance-tips.html"
_RUNNING = pattern(
    r"^  - (?P<operator>.+?): (?P<active>\d+) active task\(s\), (?P<finished>\d+) finished, ",
    re.MULTILINE,
)
_KINDS = tuple(signal.kind for signal in data.STALLS)


@dataclass(slots=True)
class _Stall:
    """The reports about one operator."""

    operator: str
    events: dict[str, list[Event]] = field(default_factory=dict)
    """By kind, the earliest first."""
    active: str = ""
    finished: str = ""

    def first(self, kind: str) -> Event | None:
        """The first record of a kind."""
        return next(iter(self.events.get(kind, ())), None)

    @property
    def all(self) -> list[Event]:
        """Every record, the most serious kinds first."""
        return [event for kind in _KINDS for event in self.events.get(kind, ())]

    @property
    def severity(self) -> Severity:
        """An error if Ray Data ended the pipeline, a note if the pipeline may only be slow."""
        if "data.no_progress" in self.events:
            return "error"
        return "warning" if {"data.not_enough", "data.shuffle_needs"} & set(self.events) else "info"


@rule(
    tier="cause",
    severity="error",
    rank=85,
    explains=("data-operator",),
    caused_by=("task", "waiting"),
    looks_for=(*data.STALLS, WORKER_EXIT),
)
def data_stalled(case: Case) -> Iterator[Finding]:
    """One finding per operator."""
    stalls: dict[str, _Stall] = {}
    for kind in _KINDS:
        for event in data.records(case, kind):
            stall = _stall_of(event)
            known = stalls.setdefault(stall.operator, stall)
            known.events.setdefault(kind, []).append(event)
    for stall in stalls.values():
        yield _finding(case, stall)


def _stall_of(event: Event) -> _Stall:
    running = list(_RUNNING.finditer(event["what"]))
    if running:
        # No operator is active: the first idle one blocks the operators after it.
        waits = next((r for r in running if r["active"] == "0"), running[0])
        return _Stall(data.operator(waits["operator"]), {}, waits["active"], waits["finished"])
    name = event["operator"] or (
        "the hash shuffle" if event.kind == "data.shuffle_needs" else "the pipeline"
    )
    return _Stall(data.operator(name))


def _finding(case: Case, stall: _Stall) -> Finding:
    exits = [e for e in case.exits if stall.operator in e.names]
    tasks = [Entity("task", e["slow_task"]) for e in stall.all if e["slow_task"]]
    return Finding(
        _headline(stall),
        tuple(_links(stall)),
        explains=(Entity("data-operator", stall.operator),),
        caused_by=(*evidence.exit_entities(exits), *tasks, Entity("waiting", "cluster")),
        subjects=(Subject("operator", None, stall.operator),),
        severity=stall.severity,
        remedies=tuple(_remedies(stall)),
        covers=tuple(stall.all),
    )


def _headline(stall: _Stall) -> str:
    operator = stall.operator
    if event := stall.first("data.no_progress"):
        tasks = f" ({stall.active} active tasks, {stall.finished} finished)" if stall.active else ""
        return f"Ray Data ended the pipeline after {event['seconds']} s without progress at {operator}{tasks}"
    if stall.first("data.not_enough"):
        return f"Ray Data cannot run any task of {operator}: the cluster does not have enough free resources"
    if event := stall.first("data.shuffle_needs"):
        needs = (
            f"{_number(event['required'])} {event['unit']} for {event['aggregators']} aggregators"
        )
        return f"A hash shuffle of Ray Data needs {needs}, but the cluster has {_number(event['total'])}"
    if event := stall.first("data.idle"):
        return f"Operator {operator} had no output for {float(event['seconds']):.0f} s: it may be stalled, or only slow"
    event = stall.all[0]
    longest = max(float(e["seconds"]) for e in stall.all)
    return f"A task of {operator} has been running for {longest:.0f} s or more, but the average is {_number(event['average'])} s"


def _number(text: str) -> str:
    return f"{float(text):g}"


def _links(stall: _Stall) -> Iterator[Link]:
    shows = {
        "data.not_enough": f"the cluster does not have enough resources for a task of {stall.operator}",
        "data.shuffle_needs": "the shuffle requests more than the cluster has",
        "data.idle": f"{stall.operator} runs and produces no output",
        "data.slow_task": f"a task of {stall.operator} takes longer than usual",
        "data.no_progress": "no operator made progress, and Ray Data ended the pipeline",
    }
    for kind, reason in shows.items():
        if event := stall.first(kind):
            yield Link(event, reason)


def _remedies(stall: _Stall) -> Iterator[Remedy]:
    if event := stall.first("data.shuffle_needs"):
        if event["resource"] == "CPU":
            step = paste.python(
                "ray.data.DataContext.get_current().max_hash_shuffle_aggregators = {total}",
                total=int(float(event["total"])),
            )
            yield Remedy(
                f"Use at most {int(float(event['total']))} shuffle aggregators",
                (step,),
                doc=_TIPS,
                since=(2, 48),
            )
        return
    yield Remedy(
        f"Find out what holds the resources that {stall.operator} needs",
        (
            "ray status",
            "ray list actors --filter state=ALIVE --detail   # actors that hold CPUs and GPUs, and their jobs",
        ),
    )
    yield Remedy(
        "Exclude resources that other actors hold from the pipeline",
        (
            "from ray.data import DataContext, ExecutionResources",
            "DataContext.get_current().execution_options.exclude_resources = ExecutionResources(cpu=4)   # CPUs that other actors hold",
        ),
        doc=_DOC,
    )
    if event := stall.first("data.no_progress"):
        yield Remedy(
            "Raise the timeout, if one step of the pipeline takes that long",
            (
                paste.python(
                    "ds.context.execution_no_progress_timeout_s = {seconds}   # -1: no timeout",
                    seconds=max(3600, 2 * int(event["timeout"])),
                ),
            ),
            doc=_DOC,
            since=(2, 58),
        )


# ------------------------------------------------------------------ examples


_LOG = "2026-11-21 10:48:33,745\t{level} streaming_executor.py:371 -- "
_WARNING = _LOG.replace("{level}", "WARNING")
_LOGS = {"logs/gcs_server.out": "", "logs/raylet.out": ""}

EXAMPLES: tuple[Example, ...] = (
    Example(
        "Ray Data ends the pipeline after forty seconds without progress",
        {"driver.log": f"{data.NO_PROGRESS.sample}\n", **_LOGS},
        roots=("data-stalled",),
        says=(
            "after 40 s without progress",
            "ReadRange->MapBatches(Embed)",
            "0 active",
            "execution_no_progress_timeout_s = 3600",
        ),
    ),
    Example(
        "too few resources for any task, reported by the driver and the log",
        {
            "logs/ray-data/ray-data.log": f"{_WARNING}{data.NOT_ENOUGH.sample}\n",
            "driver.log": f"{_WARNING}{data.NOT_ENOUGH.sample}\n{_WARNING}{data.IDLE.sample}\n",
            **_LOGS,
        },
        roots=("data-stalled",),
        says=("ReadRange->Map(f)", "not have enough", "exclude_resources"),
    ),
    Example(
        "a shuffle with more aggregators than CPUs",
        {"logs/ray-data/ray-data.log": f"{_WARNING}{data.SHUFFLE.sample}\n", **_LOGS},
        roots=("data-stalled",),
        says=("8 aggregators", "max_hash_shuffle_aggregators = 4"),
    ),
    Example(
        "one slow task is only a note",
        {
            "logs/ray-data/ray-data.log": f"{_WARNING}A task (task_id=c8ef45ccd0112571ffffffffffffffffffffffff01000000) of operator "
            "Map(f) (pid=476, node_id=ab, attempt=0) has been running or stuck in scheduling for 61.20s, which is longer than the "
            "average task duration + z-score * stddev of this operator (2.10 + 10 * 0.50s).\n",
            **_LOGS,
        },
        roots=("data-stalled",),
        says=("61 s", "2.1 s"),
    ),
    Example(
        "a program prints the messages, and a pipeline runs",
        {
            "driver.log": f"{data.NOT_ENOUGH.sample}\n{data.IDLE.sample}\n",
            "logs/ray-data/ray-data.log": f"{_LOG.replace('{level}', 'INFO')}ReadRange->Map(f): 3/10 [backpressured:tasks(ResourceBudget)]\n",
            **_LOGS,
        },
    ),
)
