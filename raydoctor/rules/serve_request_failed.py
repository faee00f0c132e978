"""Requests to Serve failed: the code of a deployment raised an exception, or took longer than the request timeout.

## What you see
HTTP clients get `500 Internal Server Error`, and callers of a `DeploymentHandle` get the exception. The replica logs
`Request failed.` with a traceback in `logs/serve/replica_*.log`. If the deployment is too slow, HTTP clients get status
408 with the text `Request … timed out after 3.0s.`, and the log of the proxy has `GET / 408`.

## Why
A method of the deployment raised the exception, not Serve's own code. The replica keeps running and handles the next
request. Serve cancels a request that takes longer than `request_timeout_s` of the HTTP options (default: no limit), and
answers with 408. The time in which the request waits for a replica counts.

## Confirm
- The traceback after `Request failed.` shows the innermost line of your own program.
- `grep -c 'Request failed' logs/serve/replica_*.log` counts the failed requests.
- `grep ' 408 ' logs/serve/proxy_*.log` shows the requests that timed out, and how long they took.

## Fix
Fix that line, or validate the request first and return a 4xx response. To reproduce the exception without Serve, use
the deployment's `func_or_class`: the class or function that `@serve.deployment` decorates. If requests time out, make
the deployment faster, add replicas if requests wait for one, or raise `request_timeout_s`.

    instance = Model.func_or_class()   # a deployment class `Model`, with the arguments of `bind`
    instance(request)                  # or the method that raised the exception
    predict.func_or_class(request)     # a deployment function `predict`

## Not this when
- the replica could not start, failed its health checks or crashed (`serve-replica-failed`).
- requests were refused because too many waited (`serve-backpressure`).
- the client ended the connection itself (status 499), or the deployment's own code answered with 408.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, TRACEBACK, TRACEBACKS
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import cut
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import serve
from raydoctor.rules.shared.cluster import LOST_WITH_CLUSTER
from raydoctor.rules.shared.disks import NO_SPACE
from raydoctor.rules.shared.failures import (
    SIGNALS,
    ended_programs,
    ended_workers,
    failures,
    program,
)
from raydoctor.rules.shared.task_error import Printed, error_entities
from raydoctor.rules.shared.traceback import Raised, cut_off, parse

_LONGEST = 160
_HTTP_DOC = "https://docs.ray.io/en/latest/serve/http-guide.html"
_NOT_FAILURES = ("HTTPException", "CancelledError", "ClientDisconnect", "BackPressureError")
"""Exceptions that a program raises to answer a request, or that a client caused."""
_TEXT = (
    "Request failed.\nTraceback (most recent call last):\n"
    '  File "/lib/python3.11/site-packages/ray/serve/_private/replica.py", line 1457, in _handle_errors_and_metrics\n    yield\n'
    '  File "/app/model.py", line 12, in __call__\n    raise ValueError("bad feature vector")\nValueError: bad feature vector'
)
FAILED = Signal(
    "serve.request_failed",
    "Request failed",
    r"^Request failed(?:\.| due to \w{1,100}:)(?:\n(?P<what>.*))?",
    ("serve", "worker-echo"),
    _TEXT,
    extent="record",
)
"""`serve/_private/replica.py`, an ERROR of the replica's log (2.9 to 2.60); with the exception's name in 2.9."""

TIMED_OUT = Signal(
    "serve.request_timed_out",
    " timed out after ",
    r"^(?:.{0,200}[\s'\":>])?Request (?P<request>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}) timed out after (?P<seconds>\d{1,6}\.\d{1,3})s\.",
    DRIVER,
    "Request 7ac8fc10-021e-4e5d-b3f3-e7d0d05289b5 timed out after 3.0s.",
)
"""The text of status 408, as a client may print it (`serve/_private/proxy.py`, 2.9 to 2.60)."""
STATUS_408 = Signal(
    "serve.status_408",
    " 408 ",
    r"^(?P<method>[A-Z]{3,7}) (?P<route>\S{1,300}) 408 (?P<ms>\d{1,9}(?:\.\d{1,3})?)ms$",
    ("serve",),
    "GET / 408 3006.5ms",
)
CANCELLED = Signal(
    "serve.request_cancelled",
    " CANCELLED ",
    r"^(?:CALL )?\S{1,60} (?:\S{1,300} )?CANCELLED \d{1,9}(?:\.\d{1,3})?ms$",
    ("serve",),
    "GET / CANCELLED 3000.4ms",
)
"""The access log of a replica: Serve cancelled the request. A deployment that answers 408 itself logs 408 there."""
STATUS_500 = Signal(
    "serve.status_500",
    " 500 ",
    r"^(?P<method>GET|POST|PUT|PATCH|DELETE) (?P<route>/\S{0,300}) 500 (?P<ms>\d{1,9}(?:\.\d{1,3})?)ms$",
    ("worker-echo", *DRIVER),
    "POST /chat 500 1201.3ms",
)
"""The same for an exception of the deployment's code, in a console."""
_LATE_MS = 500.0
"""Milliseconds between a cancellation by the proxy and the replica's record."""


@rule(
    tier="root",
    severity="error",
    rank=49,
    explains=("program", "serve-replicas", "task-error"),
    looks_for=(FAILED, TRACEBACK, TIMED_OUT, STATUS_408, STATUS_500, CANCELLED, *SIGNALS),
)
def serve_request_failed(case: Case) -> Iterator[Finding]:
    """One finding per exception and place."""
    groups: dict[str, list[tuple[Event, Raised]]] = {}
    for event in serve.replicas(case, FAILED.kind):
        is_logged = event.level == "E" or event.source.role == "serve"
        raised = _raised(case, event) if is_logged else None
        if raised and raised.name not in _NOT_FAILURES and not raised.is_rays_own:
            groups.setdefault(f"{raised.name} {raised.place}", []).append((event, raised))
    calls: dict[str, list[Printed]] = {}
    for seen in failures(case):
        place = _of_call(case, seen)
        if place:
            calls.setdefault(place, []).append(seen)
    # Which of several failures a client got is not known.
    got = list(_clients(case)) if len(groups) == 1 else []
    for place, found in groups.items():
        yield _finding(case, place, found, got, calls.pop(place, []))
    for place, printed in calls.items():
        yield _of_calls(place, printed)
    if not (groups or calls):
        yield from [*_of_ends(case)] or _of_status(case)
    yield from _too_slow(case)


def _of_status(case: Case) -> Iterator[Finding]:
    """Requests of which a paste shows only the line in the access log, and nothing below it."""
    failed = [
        e
        for e in case.of(STATUS_500.kind)
        if e.source.is_excerpt and not evidence.later_output(case, e)
    ]
    if not failed or any(e.source is failed[0].source for e in case.of(*TRACEBACKS)):
        return
    routes = evidence.join_names(dict.fromkeys(e["route"] for e in failed))
    yield Finding(
        f"{evidence.many(evidence.total(failed), 'request')} to {routes} of Serve failed with status 500: "
        "the deployment's code raised an exception that the output does not show",
        (Link(failed[-1], "the replica logs the status of its answer"),),
        explains=(Entity("serve-replicas", f"request {failed[0].line}"),),
        count=evidence.total(failed),
        severity="warning",
        remedies=(_READ_ON,),
        covers=tuple(failed),
    )


_HANDLES = pattern(r"[/\\]ray[/\\]serve[/\\]_private[/\\](?:http_util|replica)\.py$")
_READ_ON = Remedy(
    "Read the whole exception in the log of the replica",
    (
        "grep -A30 'Request failed' /tmp/ray/session_latest/logs/serve/replica_*.log   # on the node of the replica",
    ),
)
_METHODS = pattern(r"(?:_?call_|_wrap_user_method_call|handle_request|_handle_)")
"""A replica's functions that handle a request."""
_CONSTRUCTS = frozenset({"__init__", "initialize_callable", "initialize_and_get_metadata"})
"""Functions below which a replica starts: it handles no request there."""


def _of_ends(case: Case) -> Iterator[Finding]:
    """Exceptions that a replica printed outside of its log, and with which a console ends."""
    for ending, raised in ended_programs(case):
        served = [f for f in raised.frames if _HANDLES.search(f.file)]
        starts = any(f.function in _CONSTRUCTS for f in raised.frames)
        if raised.type:
            handles = any(_METHODS.match(f.function) for f in served)
            if handles and not starts and ending.source.is_excerpt and not raised.is_rays_own:
                # The program whose output ends with the traceback is the replica's.
                yield _finding(case, str(raised.place), [(ending, raised)], [ending], [])
        elif served and not starts and not ending["worker"]:
            yield Finding(
                "A request to Serve failed: the code of a deployment raised an exception that the console cut off",
                (
                    Link(
                        ending,
                        "the frames are those of a replica that handles a request",
                        raised.code,
                    ),
                ),
                explains=(Entity("serve-replicas", f"request {ending.line}"), program(ending)),
                severity="warning",
                remedies=(_READ_ON,),
                covers=tuple(
                    e
                    for e in case.of(*TRACEBACKS, "log.error")
                    if e.source is ending.source and e.line >= ending.line
                ),
            )
    for ending, raised in ended_workers(case):
        deployment = serve.deployment_of(ending["worker"])
        starts = not raised.frames or any(f.function in _CONSTRUCTS for f in raised.frames)
        if not deployment or starts or raised.name in _NOT_FAILURES:
            continue
        what = (
            cut(str(raised), _LONGEST) if raised.type else "an exception that the console cut off"
        )
        place = f", in {raised.place}" if raised.place else ""
        yield Finding(
            f"A request to Serve failed because the code of {deployment} raised {what}{place}",
            (Link(ending, "the replica prints the exception, and the console ends", raised.code),),
            explains=(Entity("serve-replicas", f"request {ending.line}"), program(ending)),
            subjects=(Subject("deployment", None, deployment, int(ending["worker_pid"])),),
            severity="warning",
            remedies=tuple(_remedies(raised)),
            covers=tuple(
                e
                for e in case.of(*TRACEBACKS, "log.error")
                if e.source is ending.source and e.line >= ending.line
            ),
        )


def _raised(case: Case, event: Event) -> Raised | None:
    """The exception in a replica's record, or below it in a console; with which a paste may end."""
    text = event["what"] or next((e.message for e in _below(case, event)), "")
    is_last = event.source.is_excerpt and not evidence.later_output(case, event)
    return parse(text) or (cut_off(text) if is_last else None)


def _below(case: Case, event: Event) -> Iterator[Event]:
    """The traceback that a console shows below a replica's record."""
    for each in case.of(*TRACEBACKS):
        if each.source is event.source and each.pid == event.pid and each.line == event.line + 1:
            yield each


def _too_slow(case: Case) -> Iterator[Finding]:
    """Requests that Serve cancelled after its timeout: the proxy answers 408, and the replica logs the cancellation."""
    printed = case.of(TIMED_OUT.kind)
    cancelled = case.of(CANCELLED.kind)
    logged = [e for e in case.of(STATUS_408.kind) if any(map(partial(_is_together, e), cancelled))]
    if not (printed or logged):
        return
    seconds = (
        float(printed[0]["seconds"]) if printed else min(float(e["ms"]) for e in logged) / 1000
    )
    count = max(evidence.total(logged), evidence.total(printed))
    routes = list(dict.fromkeys(e["route"] for e in logged))
    to = f" to {evidence.join_names(routes)}" if routes else ""
    yield Finding(
        f"{evidence.many(count, 'request')}{to} of Serve timed out: the deployment had not answered after {seconds:.3g} s (status 408)",
        (
            *(Link(e, "the proxy answers 408, and the replica logs that the request was cancelled") for e in logged[:1]),
            *(Link(e, "a client prints the answer of the proxy") for e in printed[:1]),
        ),
        explains=(Entity("serve-replicas", "request timeout"),),
        count=count,
        severity=None if printed else "warning",
        remedies=(
            Remedy(
                "Find out whether requests wait for a replica or are slow in it, and add replicas or make the code faster",
                (
                    "grep -h ' 200 ' /tmp/ray/session_latest/logs/serve/replica_*.log | tail   # on the node of the replica: times without the wait",
                    "@serve.deployment(num_replicas=2, max_ongoing_requests=8)   # more requests at once",
                ),
                doc=_HTTP_DOC,
            ),
            Remedy(
                f"If such requests may take longer than {seconds:.3g} s, raise the limit",
                (
                    paste.python(
                        'serve.start(http_options={{"request_timeout_s": {limit:.0f}}})   # in a config file: http_options',
                        limit=10 * seconds,
                    ),
                ),
                doc=_HTTP_DOC,
            ),
        ),
        covers=(*printed, *logged),
    )  # fmt: skip


def _is_together(status: Event, cancelled: Event) -> bool:
    """Whether a replica logged a cancellation when the proxy answered."""
    return (
        status.at is not None
        and cancelled.at is not None
        and abs(status.at - cancelled.at) * 1000 <= _LATE_MS
    )


_REQUEST = pattern(r"ServeReplica:(?P<deployment>.{1,300}?)\.handle_request\w*$")
"""A call through a handle of the deployment, whose exception its caller gets (`serve/_private/replica.py`, 2.9 to 2.60)."""


def _of_call(case: Case, seen: Printed) -> str:
    """The exception and place of a failed call on a replica; empty for other failures."""
    raised = seen.failure.raised
    if not _REQUEST.match(seen.failure.function) or seen.is_retried or seen.failure.is_rays_own:
        return ""
    if raised is None:
        is_last = seen.event.source.is_excerpt and not evidence.later_output(case, seen.event)
        is_own = seen.failure.type not in LOST_WITH_CLUSTER
        return (
            f"{seen.event['inner'] or seen.failure.type} {seen.failure.function}"
            if is_last and is_own
            else ""
        )
    # `task-exception` explains a full disk.
    is_other = raised.name in _NOT_FAILURES or NO_SPACE in raised.message
    return "" if is_other else f"{raised.name} {raised.place}"


def _of_calls(place: str, found: list[Printed]) -> Finding:
    """Calls on a deployment whose exception their caller shows, without the replica's record."""
    first = found[0]
    raised, request = first.failure.raised, _REQUEST.match(first.failure.function)
    _, _, of_app = request["deployment"].partition(":") if request else ("", "", "")
    name = of_app or first.failure.function.partition(".")[0]
    what = cut(str(raised), _LONGEST) if raised else "an exception that the console cut off"
    where = f", in {raised.place}" if raised and raised.place else ""
    count = max(1, evidence.total([seen.event for seen in found]))
    return Finding(
        f"{evidence.many(count, 'request')} to Serve failed because the code of {name} raised {what}{where}",
        (Link(first.event, "the caller of the deployment gets its exception", raised.code if raised else ""),),
        explains=(Entity("serve-replicas", f"request {place}"), *error_entities(found)),
        subjects=(Subject("deployment", None, name, first.failure.pid),),
        count=count,
        remedies=tuple(_remedies(raised))
        if raised
        else (
            Remedy(
                "Read the whole exception in the log of the replica",
                ("grep -A30 'Request failed' /tmp/ray/session_latest/logs/serve/replica_*.log   # on the node of the replica",),
            ),
        ),
        covers=tuple(event for seen in found for event in seen.records),
    )  # fmt: skip


_STATUS_500 = pattern(r"\b500\b.{0,60}\bServer Error\b.{0,200}\burl\b", re.IGNORECASE)
"""An answer with status 500, in the words of requests, httpx and aiohttp."""


def _clients(case: Case) -> Iterator[Event]:
    """Ends of programs by an answer with status 500, which Serve gives for an exception of the deployment's code."""
    for ending, raised in ended_programs(case):
        if not raised.is_rays_own and _STATUS_500.search(raised.message):
            yield ending


def _finding(
    case: Case,
    place: str,
    found: list[tuple[Event, Raised]],
    clients: Sequence[Event],
    calls: Sequence[Printed],
) -> Finding:
    event, raised = found[0]
    count = evidence.total([each for each, _ in found])
    text = cut(str(raised), _LONGEST) if raised.type else "an exception that the console cut off"
    where = f", in {raised.place}" if raised.place else ""
    return Finding(
        f"{evidence.many(count, 'request')} to Serve failed because the deployment's code raised {text}{where}",
        (
            Link(event, "a replica logs the exception of a request", raised.code),
            *(
                Link(each, "the client gets status 500, and ends with it")
                for each in clients[:1]
                if each is not event
            ),
        ),
        explains=(
            Entity("serve-replicas", f"request {place}"),
            *map(program, clients),
            *error_entities(calls),
        ),
        subjects=(Subject("deployment", None, None, event.pid),),
        count=count,
        remedies=tuple(_remedies(raised)),
        covers=(
            *(x for each, _ in found for x in (each, *_below(case, each))),
            *(x for seen in calls for x in seen.records),
        ),
    )


def _remedies(raised: Raised) -> Iterator[Remedy]:
    yield Remedy(
        f"Fix {raised.place or 'the line that raises ' + (raised.name or 'the exception')}, or refuse such requests with a 4xx response",
        doc=_HTTP_DOC,
    )


# ------------------------------------------------------------------ examples

_LOG = "logs/serve/replica_default_M_11j8iuzl.log"
_HEAD = "ERROR 2026-11-23 01:00:0{},000 default_M 11j8iuzl 1b9f-{} -- "

_PROXY = "logs/serve/proxy_127.0.0.1.log"
_SLOW = "INFO 2026-11-23 01:00:03,000 {} -- {}\n"

_CALLED = (
    'Traceback (most recent call last):\n  File "/app/client.py", line 9, in <module>\n    handle.remote(1).result()\n'
    "ray.exceptions.RayTaskError(ValueError): ray::ServeReplica:default:M.handle_request() (pid=390, ip=10.0.0.2)\n"
    '  File "/lib/python3.11/site-packages/ray/serve/_private/replica.py", line 1457, in handle_request\n    yield\n'
    '  File "/app/model.py", line 12, in __call__\n    raise ValueError("bad feature vector")\n'
)
EXAMPLES: tuple[Example, ...] = (
    Example(
        "a request in the log of Ray 2.9",
        {
            **QUIET_LOGS,
            _LOG: _HEAD.format(1, 1) + _TEXT.replace(".\n", " due to ValueError:\n", 1) + "\n",
        },
        says=("1 request to Serve failed",),
    ),
    Example(
        "two requests that fail at the same line, which the driver prints as well",
        {
            **QUIET_LOGS,
            _LOG: "".join(f"{_HEAD.format(n, n)}{_TEXT}\n" for n in (1, 2)),
            "driver.log": "".join(
                f"(ServeReplica:default:M pid=7) {line}\n"
                for line in f"{_HEAD.format(1, 1)}{_TEXT}".splitlines()
            ),
        },
        says=(
            "2 requests to Serve failed",
            "ValueError: bad feature vector, in __call__() (model.py:12)",
        ),
        is_typical=True,
    ),
    Example(
        "the program that sent the request ends with the status",
        {
            **QUIET_LOGS,
            _LOG: f"{_HEAD.format(1, 1)}{_TEXT}\n",
            "driver.log": 'Traceback (most recent call last):\n  File "/app/client.py", line 10, in <module>\n'
            "    requests.post(url, json=row).raise_for_status()\n"
            "requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: http://127.0.0.1:8000/\n",
        },
        says=("1 request to Serve failed",),
    ),
    Example(
        "a request that the program answers with 404, and a program that prints the words",
        {
            **QUIET_LOGS,
            _LOG: _HEAD.format(1, 1)
            + _TEXT.replace(
                "ValueError: bad feature vector",
                "fastapi.exceptions.HTTPException: 404: no such model",
            )
            + "\n",
            "driver.log": "(ServeReplica:default:M pid=7) Request failed.\n",
        },
    ),
    Example(
        "requests that take longer than the limit",
        {
            **QUIET_LOGS,
            _PROXY: _SLOW.format("proxy 127.0.0.1 1b9f", "GET /rank 408 3006.5ms"),
            _LOG: _SLOW.format("default_M 11j8iuzl 1b9f", "GET /rank CANCELLED 3000.4ms"),
            "driver.log": "HTTP 408: Request 7ac8fc10-021e-4e5d-b3f3-e7d0d05289b5 timed out after 3.0s.\n",
        },
        says=("1 request to /rank of Serve timed out", "after 3 s", "request_timeout_s"),
    ),
    Example(
        "the log of the proxy alone shows it",
        {
            **QUIET_LOGS,
            _PROXY: _SLOW.format("proxy 127.0.0.1 1b9f", "GET /rank 408 3006.5ms") * 2,
            _LOG: _SLOW.format("default_M 11j8iuzl 1b9f", "GET /rank CANCELLED 3000.4ms") * 2,
        },
        says=("2 requests to /rank of Serve timed out",),
        severity="warning",
    ),
    Example(
        "the deployment answers 408 itself, a client leaves, and a program prints similar words",
        {
            **QUIET_LOGS,
            _PROXY: _SLOW.format("proxy 127.0.0.1 1b9f", "GET /rank 408 12.5ms")
            + _SLOW.format("proxy 127.0.0.1 77aa", "GET /rank 499 800.1ms").replace(
                "01:00:03", "01:00:09"
            ),
            _LOG: _SLOW.format("default_M 11j8iuzl 1b9f", "GET /rank 408 11.9ms")
            + _SLOW.format("default_M 11j8iuzl 77aa", "GET /rank CANCELLED 800.0ms").replace(
                "01:00:03", "01:00:09"
            ),
            "driver.log": "Request 12 timed out after 3.0s. next\n",
        },
    ),
    console(
        "a crawler that logs the words",
        "".join(
            f"(crawl pid=12) {line}\n"
            for line in f"2026-11-23 01:00:00,000\tERROR crawl.py:12 -- {_TEXT}\nnext url".splitlines()
        ),
    ),
    console(
        "a console that ends within the traceback of a request",
        "".join(f"{line}\n" for line in f"{_HEAD.format(1, 1)}{_TEXT}".splitlines()[:-2]),
        says=(
            "1 request to Serve failed because the deployment's code raised an exception that the console cut off",
        ),
    ),
    console(
        "a pasted log of a replica",
        f"{_HEAD.format(1, 1)}{_TEXT}\n",
        says=(
            "1 request to Serve failed",
            "ValueError: bad feature vector, in __call__() (model.py:12)",
        ),
    ),
    console(
        "a console shows a replica's record",
        "".join(
            f"(ServeReplica:default:M pid=7) {line}\n"
            for line in f"{_HEAD.format(1, 1)}{_TEXT}".splitlines()
        ),
        says=("1 request to Serve failed", "ValueError: bad feature vector"),
    ),
    console(
        "a program that calls the deployment ends with its exception",
        f"{_CALLED}ValueError: bad feature vector\n",
        says=(
            "1 request to Serve failed because the code of M raised ValueError: bad feature vector, in __call__() (model.py:12)",
        ),
    ),
    Example(
        "the log of the replica has the same exception",
        {
            **QUIET_LOGS,
            _LOG: f"{_HEAD.format(1, 1)}{_TEXT}\n",
            "driver.log": f"{_CALLED}ValueError: bad feature vector\n",
        },
        roots=("serve-request-failed",),
    ),
    console(
        "frames of a replica that handles a request, without head and end",
        '  File "/venv/lib/python3.11/site-packages/ray/serve/_private/replica.py", line 1386, in call_user_method\n    result = await self.call(request)\n'
        '  File "/app/model.py", line 12, in __call__\n    return self.score(request)\n  File "/venv/lib/pyth\n',
        says=("the code of a deployment raised an exception that the console cut off",),
        severity="warning",
    ),
    console(
        "a console that ends below the call that failed",
        "".join(f"{line}\n" for line in _CALLED.splitlines()[:4]),
        says=("the code of M raised an exception that the console cut off",),
    ),
    console(
        "a replica prints the exception of its web application",
        "(ServeReplica:default:Api pid=322) ERROR:    Exception in ASGI application\n(ServeReplica:default:Api pid=322) Traceback (most recent call last):\n"
        '(ServeReplica:default:Api pid=322)   File "/lib/python3.11/site-packages/starlette/middleware/errors.py", line 162, in __call__\n'
        '(ServeReplica:default:Api pid=322)   File "/app/api.py", line 31, in generate\n(ServeReplica:default:Api pid=322)     raise RuntimeError("no model")\n'
        "(ServeReplica:default:Api pid=322) RuntimeError: no model\n",
        says=("the code of Api raised RuntimeError: no model, in generate() (api.py:31)",),
        severity="warning",
    ),
    console(
        "a replica prints an exception, and answers the next request",
        "(ServeReplica:default:Api pid=322) Traceback (most recent call last):\n"
        '(ServeReplica:default:Api pid=322)   File "/app/api.py", line 31, in generate\n(ServeReplica:default:Api pid=322)     raise RuntimeError("no model")\n'
        "(ServeReplica:default:Api pid=322) RuntimeError: no model\n(ServeReplica:default:Api pid=322) generated 12 words for the next user\n",
    ),
    console(
        "a paste within the traceback of a request",
        '  File "/lib/python3.11/site-packages/ray/serve/_private/http_util.py", line 497, in __call__\n    await self._asgi_app(\n'
        '  File "/lib/python3.11/site-packages/fastapi/applications.py", line 1054, in __call__\n    await super().__call__(sc\n',
        says=("the code of a deployment raised an exception that the console cut off",),
        severity="warning",
    ),
    console(
        "a paste within the traceback of a constructor",
        '  File "/lib/python3.11/site-packages/ray/serve/_private/replica.py", line 728, in initialize_and_get_metadata\n    await self.run()\n'
        '  File "/app/model.py", line 9, in __init__\n    self.net = load(\n',
        roots=("job-failed",),
        severity="warning",
    ),
    console(
        "a paste shows only the access log of a replica",
        f"(ServeReplica:default:Chat pid=12) INFO 2026-11-21 07:34:12,123 default_Chat ab12 7f -- {STATUS_500.sample}\n",
        says=("1 request to /chat of Serve failed with status 500", "Request failed"),
        severity="warning",
    ),
    console(
        "a later request succeeds, and a client prints times",
        f"(ServeReplica:default:Chat pid=12) INFO 2026-11-21 07:34:12,123 default_Chat ab12 7f -- {STATUS_500.sample}\n"
        "(ServeReplica:default:Chat pid=12) INFO 2026-11-21 07:34:13,123 default_Chat ab12 7f -- POST /chat 200 12.1ms\n"
        "sent POST /chat 500 times in 12ms\n",
    ),
)
