"""`ray.get` gave up waiting: its timeout passed before the object was there.

## What you see
`ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.`

## Why
The program set a deadline (`ray.get(ref, timeout=45)`), and the task or actor call behind the reference
had not finished by then. That says nothing about the reason: the task may still wait for resources,
for a worker, for its arguments, run slower than expected, or hang.

## Confirm
- `ray list tasks --detail --filter state!=FINISHED`: the state says what it waits for
  (`PENDING_NODE_ASSIGNMENT`: resources; `PENDING_ARGS_AVAIL`: another task; `RUNNING`: its own code).
- `ray stack` on its node: where a running task is.
- `ray status`: what is asked for and not there.

## Fix
Mend what it waits for: the diagnosis above this one, if there is one. If the task was merely slow, give
it more time, or ask for progress with `ray.wait` instead of a deadline on the whole.

## Not this when
The task failed: then `ray.get` raises that error, not this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import DRIVER, NODE_DEAD, RAY_EXCEPTION, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import waiting

_DOC = "https://docs.ray.io/en/latest/ray-observability/user-guides/debug-apps/debug-hangs.html"

CALL = Signal(
    "get.call", "ray.get(", r"^\s+(?P<code>\S.*\bray\.get\(.*)", DRIVER,
    '    print("trained", ray.get(train.remote(3), timeout=45))',
)  # fmt: skip
"""A frame's line in a traceback: for what and how long the program waited. (The whole traceback would be
dearer to read than it is worth: drivers' output may be full of them.)"""

_CLUSTER = Entity("waiting", "cluster")
_SLACK = 5.0
"""Seconds between a deadline and the end of the job it ended: the interpreter's own shutdown."""

_FRAMES = 60
"""Lines of a traceback between that frame and the exception: Ray's own frames, three lines each."""

_SECONDS = pattern(r"timeout(?:_seconds)?=(?P<seconds>\d[\d_]*(?:\.\d+)?)")
_TOLD = pattern(r"within the timeout of (?P<ms>\d+)ms")
"""Ray 2.51 and later say it where objects could not be fetched (`_raylet.so` of 2.60)."""
_CALLED = pattern(r"(?P<function>[A-Za-z_]\w{0,100}(?:\.[A-Za-z_]\w{0,100}){0,20}?)\.remote\(")


@rule(
    tier="symptom",
    severity="error",
    rank=86,
    fallback=True,
    looks_for=(RAY_EXCEPTION, CALL, *NODE_DEAD, WORKER_EXIT),
)  # fmt: skip
def get_timeout(case: Case) -> Iterator[Finding]:
    """One finding for all timeouts of a driver that waited at the same line."""
    plain = [e for e in case.of("driver.exception") if e["type"] == "GetTimeoutError"]
    nested = [e for e in case.of("driver.exception") if e["inner"] == "GetTimeoutError"]
    groups: dict[_Wait, list[Event]] = {}
    for event in plain or nested:
        groups.setdefault(_wait(case, event), []).append(event)
    for wait, events in groups.items():
        yield _finding(case, wait, events, nested)


class _Wait(NamedTuple):
    """For what a program waited, as far as its traceback is left."""

    function: str = ""
    seconds: str = ""
    code: str = ""


def _wait(case: Case, event: Event) -> _Wait:
    """The innermost `ray.get` in the traceback that ends with this exception."""
    told = _TOLD.search(event["what"])
    seconds = f"{int(told['ms']) / 1000:g}" if told else ""
    above = range(event.line - _FRAMES, event.line)
    calls = [e for e in case.of("get.call") if e.source is event.source and e.line in above]
    if not calls:
        return _Wait(seconds=seconds)
    code = max(calls, key=lambda e: e.line)["code"]
    called, given = _CALLED.search(code), _SECONDS.findall(code)
    return _Wait(
        called["function"] if called else "", given[-1] if given else seconds, code.strip()
    )


def _finding(case: Case, wait: _Wait, events: list[Event], nested: list[Event]) -> Finding:
    for_what = f" for {wait.function}" if wait.function else ""
    after = f" after {wait.seconds} s" if wait.seconds else ""
    count = evidence.total(events)
    times = f", {count} times" if count > 1 else ""
    was, links = _last_state(case, wait)
    return Finding(
        f"ray.get gave up{for_what}{after}{times}: {was or 'the result was not ready'}",
        (
            *links,
            Link(events[0], f"the driver's deadline passed{': ' + wait.code if wait.code else ''}"),
        ),
        caused_by=_caused_by(case, wait),
        count=count,
        remedies=_remedies(wait),
        covers=(*events, *nested),
    )


def _last_state(case: Case, wait: _Wait) -> tuple[str, list[Link]]:
    """What the raylets' last dumps say of it: it was running, or it still stood in a queue."""
    if case.is_explained(_CLUSTER):
        return "", []
    for state in case.of("debug.state"):
        running = [
            h for h in waiting.holders_in(state) if wait.function and h.name == wait.function
        ]
        if running:
            pids = evidence.join_names(f"pid {h.pid}" for h in running)
            return f"it was still running ({pids})", [
                Link(state, f"last state: {wait.function} runs, {pids}")
            ]
    for state in waiting.queued_at_the_end(case):
        queue = int(state["grant_queue_length"] or state["dispatch_queue_length"])
        behind = waiting.held_by(waiting.holders_in(state))
        if behind:
            words = f"{evidence.many(queue, 'request')} still queued behind {behind}"
            return words, [Link(state, f"last state: {words}")]
    return "", []


def _caused_by(case: Case, wait: _Wait) -> tuple[Entity, ...]:
    """Whatever keeps the cluster waiting; else what died during the wait and had to be done again."""
    ends = [job.ended for job in case.ledger.jobs.values() if job.ended is not None]
    if case.is_explained(_CLUSTER) or not wait.seconds or not ends:
        return (_CLUSTER,)
    end = max(ends)
    begin = end - float(wait.seconds) - _SLACK
    died = [e for e in case.of("node.dead") if e.at is not None and begin <= e.at <= end]
    nodes = [n for e in died if (n := e["node"] or e["node_a"] or e["node_b"])]
    exits = [e for e in case.exits if e.at is not None and begin <= e.at <= end]
    lost = (*(Entity("node", n) for n in nodes), *evidence.exit_entities(exits))
    return (_CLUSTER, *dict.fromkeys(lost))


def _remedies(wait: _Wait) -> tuple[Remedy, ...]:
    name = wait.function.rpartition(".")[2] or "the task"
    by_name = bool(wait.function) and "." not in wait.function
    return (
        Remedy(
            f"Look where {name} is when it is slow again: waiting, running or stuck",
            (
                paste.shell(
                    "ray list tasks --detail --filter name={function}     # its state, and what it asked for"
                    if by_name
                    else "ray list tasks --detail     # its state, and what it asked for",
                    function=wait.function,
                ),
                "ray stack                              # on its node: where a running task is",
                "ray status                             # what is asked for and not there",
            ),
            doc=_DOC,
        ),
        Remedy(
            "If it only needs longer: wait for progress instead of one deadline",
            (
                "ready, pending = ray.wait(refs, timeout=60)   # again and again, and say what is still pending",
                *(
                    (paste.python("ray.get(…, timeout={seconds:g})", seconds=_longer(wait.seconds)),)
                    if wait.seconds
                    else ()
                ),
            ),
        ),
    )  # fmt: skip


def _longer(seconds: str) -> float:
    """Four times the deadline that was too short."""
    return 4 * float(seconds)


# ------------------------------------------------------------------ examples


_ERROR = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
_RAISED = (
    'Traceback (most recent call last):\n  File "/home/user/project/train.py", line 31, in <module>\n    main()\n'
    '  File "/home/user/project/train.py", line 27, in main\n    print("trained", ray.get(train.remote(3), timeout=45))\n'
    '  File "/home/user/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 3009, in get\n'
    f"    values, debugger_breakpoint = worker.get_objects(\n{_ERROR}"
)

_STATE = (
    "NodeManager:\nDispatch queue length: 0\nnum_waiting_for_resource: 0\nResource usage {\n"
    "    - (language=PYTHON actor_or_task=train pid=128): {CPU: 10000}\n}\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a deadline shorter than the task",
        {"driver.log": _RAISED, "logs/gcs_server.out": "", "logs/raylet.out": ""},
        roots=("get-timeout",),
        says=("for train after 45 s", "ray list tasks", "timeout=180"),
    ),
    Example(
        "the task is still running",
        {
            "driver.log": _RAISED,
            "logs/gcs_server.out": "",
            "logs/raylet.out": "",
            "logs/debug_state.txt": _STATE,
        },
        roots=("get-timeout",),
        says=("it was still running (pid 128)",),
    ),
    Example(
        "a program that polls with a timeout and prints the word is not in trouble",
        {
            "driver.log": "not ready yet: GetTimeoutError, polling again\n(poll pid=12) ray.exceptions.GetTimeoutError: Get timed "
            "out: some object(s) not ready.\n",
            "logs/gcs_server.out": "",
            "logs/raylet.out": "",
        },
    ),
)
