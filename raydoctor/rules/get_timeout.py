"""A `ray.get` timed out: the result was not ready within the timeout that the program had set.

## What you see
`ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.`

## Why
The program set a timeout (`ray.get(ref, timeout=45)`), and the task or actor call behind the reference had not finished
in time. The exception does not name the reason. The task may wait for resources, for a worker or for its arguments. It
may be slower than expected, or hung.

## Confirm
- `ray list tasks --detail --filter state!=FINISHED` shows whether the task waits for resources
  (`PENDING_NODE_ASSIGNMENT`) or for another task (`PENDING_ARGS_AVAIL`), or runs (`RUNNING`).
- For a running task, `ray stack` on the task's node shows the call stack.
- `ray status` shows requested resources that are not available.
- If the exception contains `There was timeout in getting the list of named actors`, no `ray.get` timed out: the GCS did
  not answer a request.

## Fix
If the report shows a root cause, fix that first. If the task was merely slow, set a longer timeout, or poll for
progress with `ray.wait` instead of one timeout for everything.

## Not this when
- the task failed: `ray.get` then raises the task's error, not `GetTimeoutError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, NODE_DEAD, RAY_EXCEPTION, WORKER_EXIT
from raydoctor.cluster import resources
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import waiting
from raydoctor.rules.shared.setup import builds

_DOC = "https://docs.ray.io/en/latest/ray-observability/user-guides/debug-apps/debug-hangs.html"

CALL = Signal(
    "get.call", "ray.get(", r"^\s+(?P<code>(?:\S.*)?\bray\.get\(.*)", DRIVER,
    '    print("trained", ray.get(train.remote(3), timeout=45))',
)  # fmt: skip
"""A frame's line in a traceback: what the program waited for, and for how long. (Parsing the whole traceback
costs too much: a driver's output may hold very many.)"""

_CLUSTER = Entity("waiting", "cluster")
_SLACK = 5.0
"""Seconds between a timeout and the end of the job that it ended: the interpreter's shutdown."""

_FRAMES = 60
"""Most traceback lines between that frame and the exception: Ray's own frames, three lines each."""

_SECONDS = pattern(r"timeout(?:_seconds)?=(?P<seconds>\d[\d_]{0,20}(?:\.\d{1,20})?)")
_REPORTED = pattern(r"within the timeout of (?P<ms>\d{1,20})ms")
"""Ray 2.51 and later print it when objects could not be fetched (`_raylet.so` of 2.60)."""
_OF_GCS = pattern(r"There was timeout in (?P<request>(?!waiting )[^,.\n]{1,120})(?:[,.\n]|$)")
"""Requests to the GCS: the names of actors, an actor's handle, a new actor or placement group (`_raylet.so` of 2.60)."""
_CALLED = pattern(r"(?P<function>[A-Za-z_]\w{0,100}(?:\.[A-Za-z_]\w{0,100}){0,20}?)\.remote\(")


@rule(
    tier="symptom",
    severity="error",
    rank=86,
    explains=(),
    caused_by=("gcs", "runtime-env", "waiting"),
    fallback=True,
    looks_for=(RAY_EXCEPTION, CALL, *NODE_DEAD, WORKER_EXIT, *builds.SIGNALS),
)  # fmt: skip
def get_timeout(case: Case) -> Iterator[Finding]:
    """One finding for all timeouts at the same `ray.get`."""
    timeouts = [e for e in case.of("driver.exception") if not _is_pipelines(case, e)]
    unanswered = [e for e in timeouts if e["type"] == "GetTimeoutError" and _request(e)]
    for request, events in evidence.grouped(unanswered, _request).items():
        yield _of_gcs(request, events)
    timeouts = [e for e in timeouts if not _request(e)]
    plain = [e for e in timeouts if e["type"] == "GetTimeoutError"]
    nested = [e for e in timeouts if e["inner"] == "GetTimeoutError"]
    groups = evidence.grouped(plain or nested, lambda e: _wait(case, e))
    for wait, events in groups.items():
        yield _finding(case, wait, events, nested)


def _request(event: Event) -> str:
    """The request that the GCS did not answer, which raises the same exception as ray.get; empty for a ray.get."""
    found = _OF_GCS.search(event["what"])
    return found["request"] if found else ""


def _of_gcs(request: str, events: list[Event]) -> Finding:
    count = evidence.total(events)
    times = f" {count} times" if count > 1 else ""
    return Finding(
        f"The GCS did not answer a request of the program in time{times} ({request})",
        (Link(events[0], "the request timed out"),),
        caused_by=(Entity("gcs", "gcs"), _CLUSTER),
        count=count,
        remedies=(
            Remedy(
                "Check whether the GCS runs and answers, and how busy the head is",
                (
                    "ray health-check --address HEAD:6379",
                    "top -b -n1 -p $(pgrep -d, gcs_server)   # on the head",
                ),
                doc=_DOC,
            ),
        ),
        covers=tuple(events),
    )


def _is_pipelines(case: Case, event: Event) -> bool:
    """Whether Ray Data raised it: another finding accounts for the pipeline."""
    return any(entity.kind == "data-operator" for entity in case.explained_with(event))


class _TimedOutGet(NamedTuple):
    """What a program waited for, as far as its traceback is in the capture."""

    function: str = ""
    seconds: str = ""
    code: str = ""


def _wait(case: Case, event: Event) -> _TimedOutGet:
    """The innermost `ray.get` in the traceback that ends with this exception."""
    reported = _REPORTED.search(event["what"])
    seconds = f"{int(reported['ms']) / 1000:g}" if reported else ""
    above = range(event.line - _FRAMES, event.line)
    calls = [e for e in case.of("get.call") if e.source is event.source and e.line in above]
    if not calls:
        return _TimedOutGet(seconds=seconds)
    code = max(calls, key=lambda e: e.line)["code"]
    called, given = _CALLED.search(code), _SECONDS.findall(code)
    return _TimedOutGet(
        called["function"] if called else "", given[-1] if given else seconds, code.strip()
    )


def _finding(case: Case, wait: _TimedOutGet, events: list[Event], nested: list[Event]) -> Finding:
    awaited = f" for {called(wait.function)}" if wait.function else ""
    after = f" after {wait.seconds} s" if wait.seconds else ""
    count = evidence.total(events)
    times = f" {count} times" if count > 1 else ""
    state, links, was_running = _last_state(case, wait)
    return Finding(
        f"A ray.get{awaited} timed out{times}{after}: {state or 'the result was not ready'}",
        (
            *links,
            Link(events[0], f"the timeout expired{' at: ' + wait.code if wait.code else ''}"),
        ),
        caused_by=_caused_by(case, wait),
        count=count,
        remedies=_remedies(wait, was_running),
        covers=(*events, *nested),
    )


def _last_state(case: Case, wait: _TimedOutGet) -> tuple[str, list[Link], bool]:
    """The task in the raylets' last state dumps: it was running (True), or requests were still queued."""
    if case.is_explained(_CLUSTER):
        return "", [], False
    for state in case.of("debug.state"):
        running = [
            h for h in waiting.holders_in(state) if wait.function and h.name == wait.function
        ]
        if running:
            pids = evidence.join_names(f"pid {h.pid}" for h in running)
            shows = f"{called(wait.function)} was running in the raylet's last state dump ({pids})"
            link = Link(waiting.at_holder(state, running[0]), shows)
            return f"the task was still running ({pids})", [link], True
    for state in waiting.queued_at_the_end(case):
        queue = waiting.queue(state)
        none_left = waiting.used_up(state)
        holders = waiting.held_by(
            h
            for h in waiting.holders_in(state)
            if h.held and (not none_left or none_left.keys() & h.held.keys())
        )
        one = f"{evidence.many(queue, 'request for resources was', 'requests for resources were')} still queued"
        shows = f"{one} in the raylet's last state dump"
        if holders:
            link = Link(waiting.at_queue(state), f"{shows}, behind {holders}")
            return f"{one}, and {holders} held the resources", [link], False
        if none_left:
            used, links = _used(state, none_left)
            return f"{one}, and {used}", [Link(waiting.at_queue(state), shows), *links], False
    return "", [], False


def _used(state: Event, none_left: resources.Needs) -> tuple[str, list[Link]]:
    """What was in use on a node, and what held it if the dump shows this of a single resource."""
    all_of = evidence.join_names((resources.all_of(n, v) for n, v in none_left.items()), 3)
    were = "was" if [*none_left.values()] == [1] else "were"
    links = [Link(waiting.at_totals(state), f"{all_of} on the node {were} in use")]
    if len(none_left) > 1:
        return f"{all_of} were in use", links
    ((name, total),) = none_left.items()
    leases = waiting.granted(state, name, total)
    if not leases:
        return f"{all_of} {were} in use", links
    held_by = evidence.join_names(each.label for each in leases)
    links += [
        Link(each.at, f"{each.label} held {each.amount(name)} of them") for each in leases[:2]
    ]
    return f"{held_by} held {all_of}", links


def _caused_by(case: Case, wait: _TimedOutGet) -> tuple[Entity, ...]:
    """The shortage that keeps the cluster waiting; else what else may explain it.

    That are nodes and workers that died during the wait, and an environment whose setup began before it.
    """
    ends = [job.ended for job in case.ledger.jobs.values() if job.ended is not None]
    if case.is_explained(_CLUSTER) or not wait.seconds or not ends:
        return (_CLUSTER,)
    end = max(ends)
    begin = end - float(wait.seconds) - _SLACK
    died = [e for e in case.of("node.dead") if e.at is not None and begin <= e.at <= end]
    nodes = [n for e in died if (n := e["node"] or e["node_a"] or e["node_b"])]
    exits = [e for e in case.exits if e.at is not None and begin <= e.at <= end]
    lost = (*(Entity("node", n) for n in nodes), *evidence.exit_entities(exits))
    setups = [b for b in builds.lasting(case) if (b.begun.at or end) <= begin + 2 * _SLACK]
    return (_CLUSTER, *(b.entity for b in setups), *dict.fromkeys(lost))


def _remedies(wait: _TimedOutGet, was_running: bool) -> tuple[Remedy, ...]:
    by_name = bool(wait.function) and "." not in wait.function
    task = called(wait.function) or "the task"
    unknown = "slow or hung" if was_running else "waiting, running or hung"
    return (
        Remedy(
            f"When this happens again, find out before the timeout whether {task} is {unknown}",
            (
                paste.shell(
                    "ray list tasks --detail --filter name={function}     # the state and the requested resources"
                    if by_name
                    else "ray list tasks --detail     # the state and the requested resources",
                    function=wait.function,
                ),
                "ray stack   # on the node of the task: the call stack, if the task is running",
                "ray status   # requested resources that are not available",
            ),
            doc=_DOC,
        ),
        Remedy(
            "If the task is only slow, wait longer, or poll for progress",
            (
                "ready, pending = ray.wait(refs, timeout=60)   # in a loop; log what is still pending",
                *(
                    (paste.python("ray.get(…, timeout={seconds:g})", seconds=_longer(wait.seconds)),)
                    if wait.seconds
                    else ()
                ),
            ),
        ),
    )  # fmt: skip


def _longer(seconds: str) -> float:
    """Four times the timeout that was too short."""
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
        "a timeout shorter than the task",
        {"driver.log": _RAISED, "logs/gcs_server.out": "", "logs/raylet.out": ""},
        says=("for train() timed out after 45 s", "ray list tasks", "timeout=180"),
    ),
    console(
        "a request to the GCS: no ray.get timed out",
        'Traceback (most recent call last):\n  File "/app/h.py", line 7, in <module>\n    print(ray.get(f.remote()), '
        "ray.util.list_named_actors())\nray.exceptions.GetTimeoutError: There was timeout in getting the list of named actors, probably "
        "because the GCS server is dead or under high load .\n",
        logs=QUIET_LOGS,
        says=(
            "The GCS did not answer a request of the program in time (getting the list of named actors)",
        ),
    ),
    Example(
        "the task was still running",
        {
            "driver.log": _RAISED,
            **QUIET_LOGS,
            "logs/debug_state.txt": _STATE,
        },
        says=("the task was still running (pid 128)",),
    ),
    console(
        "a program polls with a timeout and prints the exception's name",
        "not ready yet: GetTimeoutError, polling again\n(poll pid=12) ray.exceptions.GetTimeoutError: Get timed "
        "out: some object(s) not ready.\n",
        logs=QUIET_LOGS,
    ),
)
