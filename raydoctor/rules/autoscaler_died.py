"""The autoscaler exited with an exception, so nodes are no longer added or removed.

## What you see
The driver prints `The autoscaler failed with the following error:` and a traceback. `monitor.log` has the same
traceback after `Error in monitor loop`. Version 2 of the autoscaler writes only to `monitor.log`. `StandardAutoscaler:
Error during autoscaling.` above a traceback means that one round failed: after five in a row the autoscaler ends.

## Why
The autoscaler is the process `monitor.py` on the head. Running tasks continue, but requests that need another node wait
indefinitely, and idle nodes are not removed. Usual causes are a provider that refuses requests and a changed
configuration file. If a person or a service manager ended the autoscaler, the driver prints `Terminated with signal 15`
instead of a traceback.

## Confirm
- `monitor.log`, `monitor.out` or `monitor.err` on the head ends with the exception.
- `pgrep -af 'autoscaler/.*monitor\\.py'` on the head prints nothing. KubeRay: `kubectl describe pod HEAD_POD` shows the
  restarts and the last state of the container `autoscaler`.

## Fix
Fix what the exception names (credentials, configuration, quota). Ray does not restart the autoscaler by itself: restart
the head. This ends the whole cluster, so do it while no job is running. On KubeRay, Kubernetes restarts the container of the autoscaler.

## Not this when
- `monitor.log` only has `Monitor: Execution exception. Trying again...`: the autoscaler continues.
- the cloud refused an instance type (`node-launch-failed`).
- the GCS is gone (`gcs-died`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, TRACEBACK
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.failures import ended_programs
from raydoctor.rules.shared.traceback import BEGIN, cut_off, parse

_TRACEBACK = (
    'Traceback (most recent call last):\n  File "/ray/autoscaler/_private/monitor.py", line 600, in run\n    self._run()\n'
    "RuntimeError: the provider returned 403"
)
FAILED = Signal(
    "autoscaler.failed",
    "The autoscaler failed with the ",
    r"^The autoscaler failed with the +following error:(?:\n(?P<ended>Terminated with signal \d+))?",
    (*DRIVER, "raylet-echo", "gcs-echo", "monitor"),
    "The autoscaler failed with the following error:\nTerminated with signal 15",
    extent="record",
)
"""`autoscaler/_private/monitor.py`, reported to all drivers (2.9 to 2.60)."""
LOOP = Signal(
    "autoscaler.failed",
    "Error in monitor loop",
    r"^Error in monitor loop(?=\n|$)(?:\n(?P<lost>NoneType: None))?",
    ("monitor", *DRIVER),
    "Error in monitor loop",
    extent="record",
)
"""Up to 2.3 at least, the exception is lost where it is logged."""


_ROUND = Signal(
    "autoscaler.round",
    "StandardAutoscaler: Error during autoscaling.",
    r"^StandardAutoscaler: Error during autoscaling\.",
    DRIVER,
    "StandardAutoscaler: Error during autoscaling.",
    symptom=True,
)
"""`autoscaler/_private/autoscaler.py`, 1.0 to 2.60; it ends after five rounds that fail in a row."""
STARTED = Signal(
    "autoscaler.started",
    "Starting monitor using ray installation: ",
    r"^Starting monitor using ray installation: ",
    ("monitor",),
    "Starting monitor using ray installation: /venv/lib/python3.11/site-packages/ray/__init__.py",
)


@rule(
    tier="root",
    severity="error",
    rank=61,
    explains=("daemon",),
    caused_by=("gcs",),
    looks_for=(FAILED, LOOP, STARTED, TRACEBACK, _ROUND),
)
def autoscaler_died(case: Case) -> Iterator[Finding]:
    """At most one finding: a cluster has one autoscaler."""
    events = [e for e in case.of(FAILED.kind) if not case.torn_down(e)]
    found = [
        (event, trace)
        for event in events
        if (trace := event if event["ended"] or _is_lost(event) else _below(case, event))
    ]
    if not found and evidence.is_console(case):
        yield from _of_paste(case)
    if found:
        last = found[-1][0]
        again = [e for e in case.of(STARTED.kind) if evidence.is_before(last, e)]
        yield _finding(found, again)


_ENTRIES = (
    "ray/autoscaler/_private/monitor.py",
    "ray/autoscaler/_private/kuberay/run_autoscaler.py",
    "ray/autoscaler/v2/monitor.py",
)
"""The programs of the autoscaler: an exception that passes through their `run` ends the process."""
_RUNS = ("run", "_run", "_run_autoscaler", "main", "<module>")


def _of_paste(case: Case) -> Iterator[Finding]:
    """The traceback of the autoscaler's process at the end of a paste that holds nothing else of it."""
    for event in case.of(_ROUND.kind)[-1:]:
        if (trace := _below(case, event)) and not evidence.goes_on(case, trace):
            yield _round(event, trace)
        return
    if rounds := list(_rounds_of_v2(case)):
        if len(rounds) >= _AGAIN or not evidence.goes_on(case, rounds[-1]):
            yield _round(rounds[-1], rounds[-1], len(rounds))
        return
    for ending, raised in ended_programs(case):
        if any(
            frame.file.replace("\\", "/").endswith("ray/autoscaler/_private/autoscaler.py")
            and frame.function in ("update", "_update")
            for frame in raised.frames
        ):
            yield _round(ending, ending)
        elif any(
            frame.file.replace("\\", "/").endswith(_ENTRIES) and frame.function in _RUNS
            for frame in raised.frames
        ):
            yield _finding([(ending, _trace(case, ending))], [])


_AGAIN = 3


def _rounds_of_v2(case: Case) -> Iterator[Event]:
    """Exceptions that version 2 of the autoscaler logs for a round, before it tries the next one."""
    for event in case.of(TRACEBACK.kind):
        raised = parse(event.text) or cut_off(event.text)
        if raised and any(
            frame.file.replace("\\", "/").endswith("ray/autoscaler/v2/autoscaler.py")
            and frame.function == "update_autoscaling_state"
            for frame in raised.frames
        ):
            yield event


def _trace(case: Case, ending: Event) -> Event:
    """The record of the traceback with which an output ends."""
    found = (e for e in case.of(TRACEBACK.kind) if e.source is ending.source)
    return next((e for e in found if e.offset >= ending.offset), ending)


def _round(event: Event, trace: Event, rounds: int = 1) -> Finding:
    raised = parse(trace.text) or cut_off(trace.text) or parse(f"{BEGIN}\n{trace.text}")
    why = f" with {str(raised)[:160]}" if raised and raised.type else ""
    return Finding(
        f"A round of the autoscaler failed{why}: no node is added or removed until a round succeeds",
        (
            *(
                [Link(event, "the autoscaler reports that a round failed")]
                if trace is not event
                else []
            ),
            Link(trace, "the exception that ended the round"),
        ),
        explains=(Entity("daemon", "autoscaler"),),
        caused_by=(Entity("gcs", "gcs"),),
        count=rounds,
        severity="warning",
        remedies=(
            Remedy(
                "See whether later rounds fail as well, and fix what the exception names",
                (
                    "grep -cE 'Error during autoscaling|in update_autoscaling_state' /tmp/ray/session_latest/logs/monitor.log   # on the head",
                ),
            ),
        ),
        covers=(event, trace),
    )


def _is_lost(event: Event) -> bool:
    """Whether Ray's own record has `None` in place of the exception."""
    return bool(event["lost"] and event.level)


def _below(case: Case, event: Event) -> Event | None:
    """The traceback behind the record: a program that only prints the sentence prints none."""
    return next(
        (
            e
            for e in case.of(TRACEBACK.kind)
            if e.source is event.source and 0 < e.line - event.line <= _NEAR
        ),
        None,
    )


_NEAR = 2
"""Lines from the record to its traceback."""


def _finding(found: list[tuple[Event, Event]], again: list[Event]) -> Finding:
    first, trace = found[0]
    raised = next((r for _, each in found if (r := parse(each.message))), None)
    why = f" with {str(raised)[:160]}" if raised else ""
    why = f": {first['ended'].lower()}" if first["ended"] else why
    end = "and was started again" if again else "so no node is added or removed any more"
    return Finding(
        f"The autoscaler ended{why}, {end}",
        (
            Link(first, "the autoscaler reports that it ends"),
            *([Link(trace, "the exception that ended it")] if trace is not first else []),
            *(Link(e, "the autoscaler starts again") for e in again[:1]),
        ),
        explains=(Entity("daemon", "autoscaler"),),
        caused_by=(Entity("gcs", "gcs"),),
        severity="warning" if again else None,
        remedies=(
            Remedy(
                "Find what sent the signal. When no job needs the cluster any more, restart the head: this ends all jobs and actors"
                if first["ended"]
                else "Fix what its last exception names. When no job needs the cluster any more, restart the head: this ends all "
                "jobs and actors",
                (
                    "tail -n 50 /tmp/ray/session_latest/logs/monitor.log   # on the head. After a restart of Ray, read the old session instead of session_latest",
                ),
                risk="disruptive",
            ),
        ),
        covers=tuple(event for pair in found for event in pair),
    )


# ------------------------------------------------------------------ examples

_ROUND_OF_V2 = (
    "2026-11-21 10:49:20,676\tERROR autoscaler.py:200 -- an instance must have a type\nTraceback (most recent call last):\n"
    '  File "/venv/lib/python3.11/site-packages/ray/autoscaler/v2/autoscaler.py", line 185, in update_autoscaling_state\n'
    "    return Reconciler.reconcile(\n"
    '  File "/venv/lib/python3.11/site-packages/ray/autoscaler/v2/instance_manager/reconciler.py", line 120, in reconcile\n'
    "    Reconciler._step_next(\nAssertionError: an instance must have a type\n"
)
EXAMPLES: tuple[Example, ...] = (
    console(
        "the driver prints the error that the autoscaler reports",
        f"(raylet) The autoscaler failed with the following error:\n{_TRACEBACK}\n",
        logs=QUIET_LOGS,
        says=("RuntimeError: the provider returned 403",),
    ),
    console(
        "old Ray loses the exception, and a task prints such words",
        "2026-11-21 07:49:48,196 ERROR monitor.py:498 -- Error in monitor loop\nNoneType: None\n",
        says=("The autoscaler ended",),
    ),
    console(
        "a program with a monitor loop of its own",
        "Error in monitor loop\nNoneType: None\nretrying\n",
    ),
    console(
        "only the end of its traceback is left",
        "Process train,ml:\nTraceback (most recent call last):\n"
        '  File "/venv/lib/python3.11/site-packages/ray/autoscaler/_private/monitor.py", line 484, in run\n    self._run()\n'
        '  File "/venv/lib/python3.11/site-packages/ray/autoscaler/_private/monitor.py", line 380, in _run\n'
        "    self.update_load_metrics()\nKeyError: 'head'\n",
        says=("The autoscaler ended with KeyError: 'head'",),
    ),
    console(
        "a paste ends with a round that failed",
        f"2026-11-21 10:49:20,676\tERROR autoscaler.py:290 -- {_ROUND.sample}\n{_TRACEBACK}\n",
        says=("A round of the autoscaler failed with RuntimeError: the provider returned 403",),
        severity="warning",
    ),
    console(
        "rounds of version 2 fail, one after the other",
        _ROUND_OF_V2 * 3
        + "2026-11-21 10:49:40,676\tWARNING monitor.py:196 -- No autoscaling state to report.\n",
        says=(
            "A round of the autoscaler failed with AssertionError: an instance must have a type",
        ),
        severity="warning",
    ),
    console(
        "a round of version 2 that failed once, while the program continues",
        f"{_ROUND_OF_V2}(train pid=7) epoch 2\n(train pid=7) epoch 3\n",
    ),
    console(
        "a round that failed, and the next one, which worked",
        f"2026-11-21 10:49:20,676\tERROR autoscaler.py:290 -- {_ROUND.sample}\n{_TRACEBACK}\n"
        "(train pid=7) epoch 2\n(train pid=7) epoch 3\n",
    ),
    console(
        "the autoscaler is ended while a driver runs",
        f'(raylet) {FAILED.sample}\n  File "/ray/autoscaler/_private/monitor.py", line 751, in <module>\n',
        logs=QUIET_LOGS,
        says=("terminated with signal 15",),
    ),
    Example(
        "only its own log is left",
        {
            **QUIET_LOGS,
            "logs/monitor.log": f"2026-11-21 10:49:20,676\tERROR monitor.py:610 -- {LOOP.sample}\n{_TRACEBACK}\n",
        },
        roots=("autoscaler-died",),
    ),
    Example(
        "a round that failed, which the autoscaler repeats, and a task that prints the sentence",
        {
            **QUIET_LOGS,
            "driver.log": "(watch pid=7) The autoscaler failed with the following error: unknown\n",
            "logs/monitor.log": "2026-11-21 10:49:20,676\tERROR autoscaler.py:354 -- Monitor: Execution exception. Trying again...\n"
            f"{_TRACEBACK}\n",
        },
    ),
    Example(
        "it is started again",
        {
            **QUIET_LOGS,
            "logs/monitor.log": f"2026-11-21 10:49:20,676\tERROR monitor.py:610 -- {LOOP.sample}\n{_TRACEBACK}\n"
            f"2026-11-21 10:49:25,001\tINFO monitor.py:690 -- {STARTED.sample}\n",
        },
        says=("was started again",),
        severity="warning",
    ),
    console(
        "a paste within the traceback of a round of version 1",
        '  File "/venv/lib/python3.11/site-packages/ray/autoscaler/_private/autoscaler.py", line 219, in update\n    self._update()\n'
        '  File "/venv/lib/python3.11/site-packages/ray/autoscaler/_private/autoscaler.py", line 369, in terminate_nodes\n    self.provider.term\n',
        roots=("autoscaler-died",),
        severity="warning",
    ),
)
