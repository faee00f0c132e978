"""Ray's memory monitor kills the same task on every attempt, and Ray retries it without limit.

## What you see
No error and no progress. The driver repeats `Task … failed due to oom. There are infinite oom retries remaining`,
`ray.get` hangs or times out, and `retries left` does not go down.

## Why
Ray counts retries after an out-of-memory kill separately from `max_retries`, and they are unlimited by default
(`RAY_task_oom_retries=-1`). If the task itself needs too much memory, or another process on the node leaves too little,
every attempt ends the same way.

## Confirm
- The submitter's `python-core-*` log repeats `task failed due to oom: 1` for one TaskID.
- Each report in `raylet.out` shows the same top memory users.

## Fix
Reduce the memory of the task, or of the process at the top of the report. Or run the task on a node with more memory,
or run fewer tasks at the same time (`num_cpus`, `memory=`). Limit the retries with `RAY_task_oom_retries=3` for `ray
start` on every node and for the driver, so that the task fails instead of looping.

## Not this when
- several *different* tasks of one function were killed once each (`ray-oom-kill`).
- a later attempt succeeded.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import CORE, TASK_ATTEMPT_FAILED
from raydoctor.model.entities import Entity
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.oom.kills import OOM_KILL, OOM_SUMMARY, OomReport, reports
from raydoctor.rules.shared.oom.remedies import DOC, fullest, gib, hungriest, largest, remedies
from raydoctor.rules.shared.waiting import resources_of

_ENOUGH = 3
"""Kills of one task from which on they count as a loop."""
_T = "16310a0f0a45af5cffffffffffffffffffffffff01000000"

RETRY_PUSHED = Signal(
    "oom.retry", "oom retries remaining",
    r"^Task (?P<name>.+?) failed due to oom\. There are (?P<left>infinite|\d+) oom retries remaining", ("raylet-echo",),
    "Task train failed due to oom. There are infinite oom retries remaining, so the task will be retried.",
    fold=("name",),
)  # fmt: skip
RETRIES_LEFT = Signal(
    "oom.retries_left", ", task failed due to oom: 1",
    r"^task (?P<task>[0-9a-f]{48}) retries left: (?P<left>-?\d+), oom retries left: (?P<oom_left>-?\d+), task failed due to oom: 1",
    CORE, f"task {_T} retries left: 3, oom retries left: -1, task failed due to oom: 1", fold=("task",),
)  # fmt: skip


@rule(
    tier="root",
    severity="error",
    rank=19,
    explains=("oom-loop", "waiting"),
    looks_for=(*OOM_KILL, OOM_SUMMARY, TASK_ATTEMPT_FAILED, RETRY_PUSHED, RETRIES_LEFT),
)  # fmt: skip
def oom_kill_loop(case: Case) -> Iterator[Finding]:
    """One finding per function whose task was killed at least three times and never finished."""
    strikes = reports(case)
    seen: set[str] = set()
    for name, attempts, infinite in (*_by_task(case, strikes), *_by_push(case)):
        if name not in seen:
            seen.add(name)
            yield _finding(case, name, attempts, infinite, strikes)


def _by_task(case: Case, strikes: list[OomReport]) -> Iterator[tuple[str, list[Event], bool]]:
    """Loops by TaskID: the submitter's core log records every failed attempt (all versions)."""
    by_task = evidence.grouped(case.of("oom.retries_left"), lambda e: e["task"])
    for task, attempts in by_task.items():
        if sum(e.count for e in attempts) >= _ENOUGH:
            final = case.ledger.tasks.get(task)
            yield _name(case, attempts, strikes, final), attempts, attempts[-1]["oom_left"] == "-1"


def _name(case: Case, attempts: list[Event], strikes: list[OomReport], final: Event | None) -> str:
    """The function, from the final failure, the driver's message or the victim of that moment; else empty."""
    if final:
        return final["name"]
    pushed = {e["name"] for e in case.of("oom.retry")}
    if len(pushed) == 1:
        return pushed.pop()
    at = attempts[0].at
    near = [
        v.function
        for s in strikes
        for v in s.victims
        if at and s.event.at and abs(s.event.at - at) < 5
    ]
    return near[0] if near else ""


def _by_push(case: Case) -> Iterator[tuple[str, list[Event], bool]]:
    """Loops from the driver's output (2.54+), where its core log is missing."""
    by_name = evidence.grouped(case.of("oom.retry"), lambda e: e["name"])
    for name, attempts in by_name.items():
        if sum(e.count for e in attempts) >= _ENOUGH and attempts[-1]["left"] == "infinite":
            yield name, attempts, True


def _finding(
    case: Case, name: str, attempts: list[Event], infinite: bool, strikes: list[OomReport]
) -> Finding:
    kills = sum(e.count for e in attempts)
    mine = [s for s in strikes if any(v.function == name.partition(".")[0] for v in s.victims)]
    label = f"task {called(name)}" if name else "a task"
    chain = [
        Link(attempts[0], f"Ray's memory monitor killed an attempt of {label}"),
        Link(attempts[-1], f"attempt {kills} was killed as well, and Ray retries the task"),
    ]
    if mine:
        chain.insert(
            0,
            Link(
                mine[0].event,
                f"the memory monitor killed {label}: {gib(mine[0].used_gb)} of {gib(mine[0].limit_gb)} used",
            ),
        )
    retries = (
        "retries are unlimited" if infinite else f"{attempts[-1]['oom_left']} retries were left"
    )
    return Finding(
        f"Ray's memory monitor killed {label} {kills} times, so {called(name) or 'the task'} never finished ({retries}){_held(mine)}",
        tuple(chain),
        explains=(Entity("oom-loop", name.partition(".")[0]), Entity("waiting", "cluster")),
        subjects=(Subject("task", attempts[0]["task"] or None, name or None),),
        count=kills,
        remedies=(
            *(remedies(mine, resources_of(case, mine[-1].node)) if mine else ()),
            Remedy(
                "Limit the retries to 3, so that the task fails with OutOfMemoryError instead of looping",
                (
                    "export RAY_task_oom_retries=3   # on every node before ray start, and in the shell that starts the driver",
                ),
                risk="disruptive",
                doc=DOC,
            ),
        ),
        covers=(*attempts, *case.of("oom.retry")),
    )


def _held(mine: list[OomReport]) -> str:
    """What the largest processes held, beside the sum that crossed the threshold."""
    if not mine:
        return ""
    worst = fullest(mine)
    top, holders = hungriest(worst)
    if not holders:
        return ""
    label = holders[0].label if holders[0].is_worker else top
    each = f"{len(holders)} × {label} held up to" if len(holders) > 1 else f"{label} held"
    total = f"{gib(worst.used_gb)} of memory (threshold {gib(worst.threshold_gb)})"
    return f"; the node used {total}, of which {each} {gib(largest(mine, top))}"


# ------------------------------------------------------------------ examples


def _attempt(second: int, task: str = _T) -> str:
    stamp = f"[2026-11-21 07:45:{second:02d},153 W 12 378] task_manager.cc:1678:"
    return (
        f"{stamp} Task attempt {task} failed with error OUT_OF_MEMORY Fail immediately? 0, status RpcError: x, error info null\n"
        f"{stamp} task {task} retries left: 3, oom retries left: -1, task failed due to oom: 1\n"
    )


def _kill(second: int, worker: str) -> str:
    return (
        f"[2026-11-21 07:45:{second:02d},100 I 7 7] (raylet) node_manager.cc:3199: Killing 1 worker(s), kill details: Memory on the "
        f"node (IP: 10.0.0.2, ID: {'ab' * 28}) was 3.9{second % 10}GB used / 4.00GB limit (0.97)\nConsidered workers: [\n"
        f"Selected to kill: (Task: job ID=01000000, lease ID={'0' * 64}, task name=train, required resources={{CPU: 1}}, pid={second}, "
        f"actual memory used=1.60GB, worker ID={worker * 56})\n]\nTop 10 memory users: PID\tMEM(GB)\tCOMMAND\n"
        f"381\t1.61\tray::build_index\n{second}\t1.60\tray::train\n"
    )


_DRIVER_FILE = f"logs/python-core-driver-01000000{'f' * 48}_12.log"
_KILLS = "".join(_kill(10 + n, "cde"[n]) for n in range(3))

EXAMPLES: tuple[Example, ...] = (
    Example(
        "one train task is killed three times and retried without limit",
        {
            "logs/raylet.out": _KILLS,
            "logs/gcs_server.out": "",
            _DRIVER_FILE: "".join(_attempt(10 + n) for n in range(3)),
        },
        consequences=("ray-oom-kill",),
        says=("train", "3 times", "RAY_task_oom_retries"),
    ),
    Example(
        "three different train tasks are killed once each",
        {
            "logs/raylet.out": _KILLS,
            "logs/gcs_server.out": "",
            _DRIVER_FILE: "".join(_attempt(10 + n, f"{n}{_T[1:]}") for n in range(3)),
        },
        roots=("ray-oom-kill",),
    ),
)
