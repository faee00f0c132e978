"""Serve rejected requests because a deployment's queue was full.

## What you see
Serve logs `Request dropped due to backpressure (num_queued_requests=1, max_queued_requests=1).` A `DeploymentHandle`
raises `BackPressureError`, and the proxy replies with HTTP status 503. (Ray 2.10 and later.)

## Why
Every handle and every proxy queues requests until a replica takes them. `max_queued_requests` limits each of these
queues (-1, the default, is no limit). More requests arrive than the replicas finish: there are too few replicas,
`max_ongoing_requests` is too small, the deployment became slow, or the load came in a burst. Serve drops the requests
that exceed the limit, as intended.

## Confirm
- `serve status` shows whether all replicas are running. If fewer run than usual, find out why (`serve-replica-failed`).
- In `logs/serve/replica_*.log`, `CALL … OK 3004.2ms` shows how long a request takes.
- The metrics `ray_serve_deployment_queued_queries` and `ray_serve_deployment_processing_latency_ms` show when the queue
  and the latency grew.

## Fix
Allow more replicas (`autoscaling_config`), more concurrent requests per replica (`max_ongoing_requests`, for async and
batched deployments) or a longer queue for bursts. Let clients retry after a 503.

## Not this when
- requests fail for other reasons: a timeout (`request_timeout_s`, HTTP 408), or a replica that died
  (`serve-replica-failed`).
- the only message is `Replica at capacity of max_ongoing_requests`: nothing is dropped, and another replica takes the
  request.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import serve

_DOC = "https://docs.ray.io/en/latest/serve/advanced-guides/advanced-autoscaling.html"
_RETRY_DOC = "https://docs.ray.io/en/latest/serve/http-guide.html"

DROPPED = Signal(
    "serve.dropped",
    "Request dropped due to backpressure (num_queued_requests=",
    r"^(?P<raised>ray\.serve\.exceptions\.BackPressureError: )?Request dropped due to backpressure "
    r"\(num_queued_requests=(?P<queued>\d+), max_queued_requests=(?P<limit>\d+)\)",
    (*serve.CONTROLLER, *DRIVER),
    "Request dropped due to backpressure (num_queued_requests=1, max_queued_requests=1).",
    symptom=True,
    fold=("limit",),
)


@rule(
    tier="cause",
    severity="warning",
    rank=83,
    explains=("serve-queue",),
    looks_for=(DROPPED,),
)
def serve_backpressure(case: Case) -> Iterator[Finding]:
    """One finding per limit: the record names no deployment."""
    by_limit = evidence.grouped(
        (e for e in case.of("serve.dropped") if _is_of_serve(case, e)), lambda e: int(e["limit"])
    )
    for limit, events in sorted(by_limit.items()):
        yield _finding(limit, events)


def _is_of_serve(case: Case, event: Event) -> bool:
    """Whether a proxy, a replica or the caller reports it, and not a task that prints such words."""
    if event.source.role == "worker-echo":
        is_own = event["who"].startswith(("ProxyActor", "ServeReplica"))
        return bool(event.level) and is_own and "serve" not in case.roles
    return bool(event.level or event["raised"])


def _finding(limit: int, events: list[Event]) -> Finding:
    logged = [e for e in events if not e["raised"]] or events
    count = evidence.total(logged)
    times = [e.at for e in logged if e.at is not None]
    span = (
        f" in {max(times) - min(times):.2g} s" if times and max(times) - min(times) >= 0.1 else ""
    )
    first = logged[0]
    which = "the request" if count == 1 else f"the first of {count:,} requests"
    links = [Link(first, f"{which} that Serve rejected")]
    links += [
        Link(e, "the program got a BackPressureError")
        for e in events
        if e["raised"] and e is not first
    ][:1]
    return Finding(
        f"Serve rejected {evidence.many(count, 'request')}{span} because the queue was full (max_queued_requests={limit})",
        tuple(links),
        explains=(Entity("serve-queue", str(limit)),),
        count=count,
        remedies=_remedies(limit, count),
        covers=tuple(events),
    )


def _remedies(limit: int, count: int) -> tuple[Remedy, ...]:
    longer = max(2 * limit, min(limit + count, 10 * limit + 100))
    return (
        Remedy(
            "Let Serve add replicas when the load grows: set autoscaling_config",
            (
                '@serve.deployment(autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 2})',
                "serve status   # are all replicas running?",
            ),
            doc=_DOC,
        ),
        Remedy(
            f"Let {longer} requests wait instead of {limit}, if the load came in a burst",
            (
                paste.python(
                    "@serve.deployment(max_queued_requests={longer})   # per handle and proxy; -1: no limit",
                    longer=longer,
                ),
            ),
            doc=_DOC,
            since=(2, 10),
        ),
        Remedy(
            "Let clients retry with increasing delays after BackPressureError or HTTP 503",
            doc=_RETRY_DOC,
        ),
    )


# ------------------------------------------------------------------ examples

_RAISED = f"ray.serve.exceptions.BackPressureError: {DROPPED.sample}\n"


def _line(component: str, second: int) -> str:
    return f"WARNING 2026-11-21 10:47:{second:02},996 {component} -- {DROPPED.sample}\n"


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a driver sends more requests than a deployment can queue",
        {"driver.log": "".join(_line("serve 16", n) for n in range(19)) + _RAISED, **QUIET_LOGS},
        says=("19 requests", "in 18 s", "max_queued_requests=1)", "max_queued_requests=20"),
    ),
    console(
        "a proxy's record in the driver's output, and a task that prints such words",
        f"(ProxyActor pid=21) {_line('proxy 10.0.0.2', 4)}(notes pid=12) {DROPPED.sample}\n",
        says=("1 request",),
    ),
    Example(
        "clients of the proxy send too many requests",
        {
            "logs/serve/proxy_10.0.0.2.log": _line(
                "proxy 10.0.0.2 3b0f5d8a-4bd5-4c44-9f07-8e3b0c8f4a11", 4
            ).replace("=1", "=50"),
            **QUIET_LOGS,
        },
        says=("1 request ", "max_queued_requests=100"),
    ),
    Example(
        "a busy replica, and a program that prints the same text",
        {
            "logs/serve/replica_summaries_Summarizer_coimlm62.log": "WARNING 2026-11-21 10:47:05,000 summaries_Summarizer coimlm62 -- "
            "Replica at capacity of max_ongoing_requests=1, rejecting request 5a51.\n",
            "driver.log": f"{DROPPED.sample}\nlast error: {_RAISED}",
            **QUIET_LOGS,
        },
    ),
)
