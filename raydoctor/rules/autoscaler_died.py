"""The autoscaler exited with an exception, so nodes are no longer added or removed.

## What you see
The driver prints `The autoscaler failed with the following error:` and a traceback. `monitor.log` has the same
traceback after `Error in monitor loop`. Version 2 of the autoscaler writes only to `monitor.log`.

## Why
The autoscaler is the process `monitor.py` on the head. Running tasks continue, but requests that need another node wait
indefinitely, and idle nodes are not removed. A provider that refuses requests, or a changed configuration file, is the usual
reason. The autoscaler reports `Terminated with signal 15` if a person or a service manager
ended it.

## Confirm
- The end of `monitor.log`, `monitor.out` and `monitor.err` on the head.
- `pgrep -af 'autoscaler/.*monitor\\.py'` on the head prints nothing. KubeRay: `kubectl describe pod HEAD_POD` shows
  the restarts and the last state of the container `autoscaler`.

## Fix
Fix what the exception names (credentials, configuration, quota). Then restart the head while no job is running, as that
ends the whole cluster: Ray does not restart the autoscaler by itself. On KubeRay, Kubernetes restarts its container.

## Not this when
`monitor.log` only has `Monitor: Execution exception. Trying again...`: the autoscaler continues. The cloud refused one
instance type (`node-launch-failed`), or the GCS is gone (`gcs-died`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, TRACEBACK
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.traceback import parse

_TRACEBACK = (
    'Traceback (most recent call last):\n  File "/ray/autoscaler/_private/monitor.py", line 600, in run\n    self._run()\n'
    "RuntimeError: the provider returned 403"
)
FAILED = Signal(
    "autoscaler.failed",
    "The autoscaler failed with the following error:",
    r"^The autoscaler failed with the following error:(?:\n(?P<ended>Terminated with signal \d+))?",
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
    looks_for=(FAILED, LOOP, STARTED, TRACEBACK),
)
def autoscaler_died(case: Case) -> Iterator[Finding]:
    """At most one finding: a cluster has one autoscaler."""
    events = [e for e in case.of(FAILED.kind) if not case.torn_down(e)]
    found = [
        (event, trace)
        for event in events
        if (trace := event if event["ended"] or _is_lost(event) else _below(case, event))
    ]
    if found:
        last = found[-1][0]
        again = [e for e in case.of(STARTED.kind) if evidence.is_before(last, e)]
        yield _finding(found, again)


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
                "Find what sent the signal, and start the head again"
                if first["ended"]
                else "Fix what its last exception names, and start the head again",
                ("tail -n 50 /tmp/ray/session_latest/logs/monitor.log",),
                risk="disruptive",
            ),
        ),
        covers=tuple(event for pair in found for event in pair),
    )


# ------------------------------------------------------------------ examples

EXAMPLES: tuple[Example, ...] = (
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
        "the driver prints the error that the autoscaler reports",
        f"(raylet) The autoscaler failed with the following error:\n{_TRACEBACK}\n",
        logs=QUIET_LOGS,
        says=("RuntimeError: the provider returned 403",),
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
)
