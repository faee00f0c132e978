"""A program fetched the result of a task that had been cancelled.

## What you see
`ray.get` raises `ray.exceptions.TaskCancelledError: Task: TaskID(…) was cancelled.`, alone or as
`RayTaskError(TaskCancelledError): ray::…`.

## Why
`ray.cancel(ref)` was called on the task, or on the task that had submitted it (`recursive=True` is the default). An
`asyncio.CancelledError` that a coroutine of an actor raises looks the same. Ray does not retry a cancelled task.

## Confirm
- `grep -rn 'ray.cancel(' .` in the program and in the libraries that it uses shows where tasks are cancelled.
- While the cluster runs, `ray list tasks --filter error_type=TASK_CANCELLED` lists the cancelled tasks.

## Fix
Expect the exception where the result of a cancelled task is fetched, or cancel only tasks whose results are not needed.

## Not this when
- the task kept running after `ray.cancel` (`cancel-ignored`).
- the task's process was killed (`ray-oom-kill`, `worker-vanished`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.case.signals import RAY_EXCEPTION, TASK_FAILED
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject

_CANCELLED = pattern(
    r"(?:ray::(?P<function>[^\n]{1,300}?)\(\) \(pid=|^Task: (?:TaskID\()?(?P<task>[0-9a-f]{48})\)? was cancelled|was cancelled)"
)


@rule(
    tier="root",
    severity="error",
    rank=51,
    explains=("task-error",),
    looks_for=(RAY_EXCEPTION, TASK_FAILED),
)
def task_cancelled(case: Case) -> Iterator[Finding]:
    """One finding per function whose result a program fetched although the task had been cancelled."""
    groups: dict[str, list[Event]] = {}
    records: dict[str, list[Event]] = {}
    group = ""
    end: dict[str, int] = {}
    everything = [
        e for e in case.of("driver.exception") if "TaskCancelledError" in (e["type"], e["inner"])
    ]
    for event in everything:
        path = event.source.path
        if case.torn_down(event):
            continue
        if event.line <= end.get(path, 0):
            records.setdefault(group, []).append(event)  # a part of the record above
            continue
        end[path] = event.line + event.text.count("\n")
        if found := _CANCELLED.search(event["what"]):
            known = case.ledger.tasks.get(found["task"] or "")
            group = found["function"] or (known["name"] if known else "")
            groups.setdefault(group, []).append(event)
            records.setdefault(group, []).append(event)
    for function, events in groups.items():
        name = f"Task {called(function)}" if function else "A task"
        yield Finding(
            f"{name} was cancelled by ray.cancel, or with the task that called it, and the program fetched its result",
            (Link(events[0], "ray.get raised TaskCancelledError"),),
            explains=(Entity("task-error", f"cancelled {function}"),),
            subjects=(Subject("task", None, function or None),),
            count=evidence.total(events),
            remedies=(
                Remedy(
                    "Find the call that cancels it, and expect the exception where its result is fetched",
                    (
                        "grep -rn 'ray.cancel(' .",
                        "try: ray.get(ref)\nexcept ray.exceptions.TaskCancelledError: ...",
                    ),
                    doc="https://docs.ray.io/en/latest/ray-core/tasks.html#cancelling-tasks",
                ),
            ),
            covers=tuple(records[function]),
        )


# ------------------------------------------------------------------ examples

_TRACEBACK = 'Traceback (most recent call last):\n  File "/app/train.py", line 68, in main\n    ray.get(shard)\n'

EXAMPLES: tuple[Example, ...] = (
    console(
        "the result of a cancelled method",
        f"{_TRACEBACK}ray.exceptions.RayTaskError(TaskCancelledError): ray::A.slow() (pid=391, ip=10.0.0.2, "
        f"actor_id={'d' * 32}, repr=<a.A object at 0x7f>)\nconcurrent.futures._base.CancelledError\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        f"ray::A.slow() (pid=391, ip=10.0.0.2, actor_id={'d' * 32}, repr=<a.A object at 0x7f>)\n"
        f"ray.exceptions.TaskCancelledError: Task: TaskID({'1' * 48}) was cancelled.\n",
        logs=QUIET_LOGS,
        says=("Task A.slow() was cancelled by ray.cancel",),
    ),
    Example(
        "a note about the exception",
        {"driver.log": "(watch pid=12) skipping a task: TaskCancelledError\n", **QUIET_LOGS},
    ),
    console(
        "the exception of a cancelled task, without the name of its function",
        f"{_TRACEBACK}ray.exceptions.TaskCancelledError: Task: TaskID({'1' * 48}) was cancelled.\n",
        logs=QUIET_LOGS,
        says=("A task was cancelled",),
    ),
)
