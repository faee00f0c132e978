"""Worker processes were alive but did not register with their raylet in time.

## What you see
`Some workers of the worker process(451) have not registered within the timeout. The process is still alive, probably
it's hanging during start.` Ray then starts another worker. Since Ray 2.55 it gives up after several attempts
(`RaySystemError: … Failed to startup worker after retrying 5 times`). Before Ray 2.55 tasks wait forever.

## Why
Before a worker registers, it starts Python, runs `sitecustomize` and `.pth` files, and imports Ray. The limit is
`RAY_worker_register_timeout_seconds` (default: 60). It is too short if Python is on a network drive, if a start-up
module does too much, or if so many workers start at the same time that each gets little CPU time. When the first job starts,
Ray starts one worker for each CPU: 192 on a machine with 192 CPUs.

## Confirm
- On that node, `time python -c "import ray"` takes long, and `python -X importtime -c "import ray"` shows which imports
  take the time.
- While it happens, `py-spy dump --pid PID` shows the line at which such a process waits. Take PID from the newest
  `Started worker process` line in the node's `raylet.out`.
- `Started worker process` lines in `raylet.out` show how many workers start at the same time.

## Fix
Put the Python environment on a local disk, remove slow code from `sitecustomize`, or start fewer workers (`--num-cpus`).
Or raise the limit: set the variable on every node before `ray start`, or before a program that starts Ray.

    export RAY_worker_register_timeout_seconds=180

## Not this when
- the process is `dead` (`worker-start-crashed`).
- the runtime environment is still being created, which happens before the process starts (`runtime-env-failed`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import called
from raydoctor.model.values import Finding, Link, Remedy, Subject
from raydoctor.rules.shared.cluster import restore
from raydoctor.rules.shared.setup import worker_start
from raydoctor.rules.shared.setup.worker_start import DEFAULT_TIMEOUT, UNREGISTERED_OLD, Starts

_DOC = "https://docs.ray.io/en/latest/ray-observability/user-guides/debug-apps/debug-hangs.html"
_STORM = 16
"""Workers started within one timeout: from this number on, the number itself may be the cause."""


@rule(
    tier="root",
    severity="error",
    rank=72,
    explains=("start-slow", "waiting"),
    daemons_record=True,
    looks_for=worker_start.SIGNALS,
)
def worker_start_slow(case: Case) -> Iterator[Finding]:
    """One finding per node: the cause is its disk, its environment or its load."""
    for one in worker_start.starts(case, "still alive"):
        yield _finding(case, one)


def _finding(case: Case, one: Starts) -> Finding:
    names = worker_start.affected(case, one)
    over = worker_start.is_over(case, one)
    return Finding(
        _headline(one, names, over),
        tuple(_links(one)),
        explains=(Entity("start-slow", one.node), *one.entities),
        subjects=(
            Subject("node", one.node or None, one.ip or None),
            *(Subject("task", None, n) for n in names[:9]),
        ),
        count=max(1, one.count),
        severity="warning" if over else None,
        remedies=tuple(_remedies(case, one)),
        covers=(*one.events, *one.given_up, *worker_start.echoes(case, "still alive")),
    )


def _headline(one: Starts, names: list[str], over: bool) -> str:
    within = f"within {one.timeout:.0f} s" if one.timeout else "in time"
    were = "it was" if one.count == 1 else "they were"
    text = (
        f"{evidence.many(one.count, 'worker process', 'worker processes')}{one.place} did not register with the raylet {within} "
        f"although {were} alive"
    )
    if over:
        return f"{text}, but later ones did"
    if one.given_up:
        text += ", and Ray gave up"
    if names:
        text += f", so task{'s' if len(names) > 1 else ''} {evidence.join_names(map(called, names))} could not run"
    return text


def _links(one: Starts) -> Iterator[Link]:
    if one.events:
        after = f" after {one.timeout:.0f} s" if one.timeout else ""
        yield Link(
            one.events[0],
            f"the raylet reports that a process it started has not registered{after}, and is alive",
        )
    if one.count > 1:
        yield Link(
            one.events[-1], f"the last of {one.count} processes that did not register in time"
        )
    for event in one.given_up[:1]:
        yield Link(event, f"Ray gave up, and the driver got {event['type']}")


def _remedies(case: Case, one: Starts) -> Iterator[Remedy]:
    path = worker_start.search_path(case)
    run = worker_start.python_with(path)
    waited = one.timeout or DEFAULT_TIMEOUT
    yield Remedy(
        "Find out why Python starts slowly"
        + (f": workers import from {path} first" if path else ""),
        (
            paste.shell(
                'time {python} -c "import ray"                         # on that node', python=run
            ),
            paste.shell(
                '{python} -X importtime -c "import ray" 2>&1 | sort -t"|" -k2 -n | tail', python=run
            ),
            "py-spy dump --pid PID   # while it happens. PID: from the newest Started worker process line in raylet.out",
        ),
        doc=_DOC,
    )
    if (many := _at_once(case, one)) >= _STORM:
        yield Remedy(
            f"Start fewer workers at the same time: {many} were started within {waited:.0f} s",
            (
                "ray start --num-cpus=CORES   # plus your other options. CORES: the number of real cores",
                "ray.init(num_cpus=CORES)   # if the program starts Ray",
            ),
            doc=_DOC,
        )
    if waited < DEFAULT_TIMEOUT:
        yield restore("RAY_worker_register_timeout_seconds", waited, DEFAULT_TIMEOUT)
        return
    yield Remedy(
        f"Allow {4 * waited:.0f} s instead of {waited:.0f} s",
        (
            paste.shell(
                "export RAY_worker_register_timeout_seconds={seconds:.0f}   # on every node, before ray start, or before your program if it starts Ray",
                seconds=4 * waited,
            ),
        ),
        risk="disruptive",
        doc=_DOC,
    )


def _at_once(case: Case, one: Starts) -> int:
    """The largest number of workers that the raylet started within one timeout before a late one."""
    waited = one.timeout or DEFAULT_TIMEOUT
    return max(
        (
            len(case.near(event, "worker.started", before=waited, after=0))
            for event in one.events[:50]
        ),
        default=0,
    )


# ------------------------------------------------------------------ examples


def _unregistered(at: str, pid: int) -> str:
    return (
        f"[2026-11-21 07:48:{at} E 285 285] (raylet) worker_pool.cc:660: Some workers of the worker process({pid}) have not "
        "registered within the timeout. The process is still alive, probably it's hanging during start.\n"
    )


_LATE = "".join(
    worker_start.started_line(f"{6 * n:02},098", 451 + n)
    + _unregistered(f"{6 * n + 6:02},098", 451 + n)
    for n in range(6)
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "none of six workers registers within the limit, here 6 s, and Ray gives up",
        {
            "logs/raylet.out": _LATE,
            "logs/gcs_server.out": "",
            "logs/runtime_env_agent.log": "2026-11-21 07:47:59,221\tINFO runtime_env_agent.py:593 -- Successfully created runtime "
            'env: {"env_vars": {"PYTHONPATH": "/mnt/share/site"}}, context: {"command_prefix": []}\n',
            "driver.log": "ray.exceptions.RaySystemError: System error: Failed to startup worker after retrying 5 times. This is "
            "most often caused by errors in the worker's Python environment setup.\n",
        },
        says=(
            "6 worker processes",
            "within 6 s",
            "unset RAY_worker_register_timeout_seconds",
            "/mnt/share/site",
        ),
    ),
    console(
        "before 2.55 the caller only times out; only the driver's output is available",
        "".join(f"(raylet) {_unregistered(f'{6 * n + 6:02},098', 451 + n)}" for n in range(3))
        + "Traceback (most recent call last):\nray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n",
        roots=("worker-start-slow",),
        consequences=("get-timeout",),
    ),
    Example(
        "one worker was late, and the next one registered",
        {
            "logs/raylet.out": worker_start.started_line("00,098", 451)
            + _unregistered("06,098", 451)
            + worker_start.started_line("06,100", 452)
            + worker_start.started_line("40,100", 453),
            "logs/gcs_server.out": "",
        },
        says=("1 worker process",),
        severity="warning",
    ),
    console(
        "a task prints the sentence",
        f"(check pid=12) {_unregistered('06,098', 451)}the page says: {_unregistered('06,098', 451)}",
        logs=QUIET_LOGS,
    ),
    console(
        "the raylet of Ray 1.1 says nothing about the process",
        f"[2026-11-21 07:48:29,824 I 285 285] worker_pool.cc:375: {UNREGISTERED_OLD.sample}\n",
        says=("did not register with the raylet in time",),
    ),
)
