"""Serve replaced an HTTP proxy because the proxy was not ready in time.

## What you see
`serve.run` or `serve.start` fails with `ActorDiedError` (`RayActorError` up to Ray 2.10) of a `ProxyActor`: ``The actor
is dead because it was killed by `ray.kill` ``. `logs/serve/controller_*.log` contains `Proxy actor readiness check for
proxy on … didn't complete in 5.0s` or `Didn't receive ready check response for proxy … after 5.0s` (before Ray 2.20),
then `Shutting down the unhealthy proxy and starting a new one`.

## Why
A proxy has five seconds to import its modules, bind its port and answer. Then the controller kills it and starts
another one with a longer limit. The first attempt fails on a machine that is busy, slow to import or short of memory. A
program that waits for that proxy gets the error, although Serve itself keeps running.

## Confirm
- More than five seconds pass between `Starting proxy` in the controller's log and the first line of
  `logs/serve/proxy_*.log`.
- `sar -q -r` on that node, or your monitoring, shows a high load or little free memory at that time.

## Fix
Start Serve before the machine is loaded (`serve start`), and deploy afterwards. Or give proxies more time: set this on
every node before `ray start`, and restart Ray.

    export RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=60

## Not this when
- the proxy's process ended by itself (`worker-vanished`, `ray-oom-kill`).
- a *replica* failed (`serve-replica-failed`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import serve
from raydoctor.rules.shared.actor_deaths import CALL_FAILED, LEFT, deaths

_DOC = "https://docs.ray.io/en/latest/serve/production-guide/fault-tolerance.html"
_N = "e6121f9e86e06cfb94b71366837897d5017b9df78e6baa48ac0da322"

UNREADY = (
    Signal(
        "serve.proxy_unready",
        "Proxy actor readiness check for proxy on ",
        r"^Proxy actor readiness check for proxy on (?P<proxy_node>[0-9a-f]{56}) didn't complete in (?P<seconds>\d{1,20}(?:\.\d{1,20})?)s",
        serve.CONTROLLER,
        f"Proxy actor readiness check for proxy on {_N} didn't complete in 5.0s.",
        fold=("proxy_node",),
    ),
    Signal(
        "serve.proxy_unready",
        "t receive ready check response for proxy ",
        r"^Didn't receive ready check response for proxy (?P<proxy_node>[0-9a-f]{56}) after (?P<seconds>\d{1,20}(?:\.\d{1,20})?)s",
        serve.CONTROLLER,
        f"Didn't receive ready check response for proxy {_N} after 5.0s.",
        fold=("proxy_node",),
    ),
)


_NO_PROXIES = Signal(
    "serve.no_proxies",
    "TimeoutError: ",
    r"^TimeoutError: (?:HTTP proxies not available|Proxies not available|HTTP proxy not ready) after (?P<seconds>\d{1,9}(?:\.\d{1,9})?)(?:s| seconds)\.",
    DRIVER,
    "TimeoutError: HTTP proxies not available after 60s.",
    symptom=True,
)
"""`serve.start` and `serve.run` (`serve/_private/api.py`, `client.py`, 2.9 to 2.60)."""


@rule(
    tier="root",
    severity="error",
    rank=44,
    explains=("actor", "serve-proxy"),
    looks_for=(*UNREADY, _NO_PROXIES, RAY_EXCEPTION, CALL_FAILED, *LEFT),
)
def serve_proxy_unready(case: Case) -> Iterator[Finding]:
    """One finding per node."""
    by_node = evidence.grouped(
        serve.controllers(case, "serve.proxy_unready"), lambda e: e["proxy_node"]
    )
    for node, events in by_node.items():
        suffix = f"SERVE_PROXY_ACTOR-{node}"
        actors = [death.actor for death in deaths(case) if death.name.endswith(suffix)]
        actors += [a.id for a in case.ledger.actors.values() if a.name.endswith(suffix)]
        if actors:  # otherwise no caller used this proxy, and Serve has started another one
            yield _finding(case, node, events, list(dict.fromkeys(actors)))
    waited = [e for e in case.of(_NO_PROXIES.kind) if not evidence.goes_on(case, e)]
    if waited:
        yield _none(case, waited)


def _none(case: Case, events: list[Event]) -> Finding:
    """Proxies that were not ready when the program stopped waiting for them."""
    first = events[0]
    return Finding(
        f"Serve did not start: its proxies were not ready after {first['seconds']} s",
        (Link(first, "the program stops waiting for the proxies"),),
        explains=(Entity("serve-proxy", "start"),),
        count=evidence.total(events),
        remedies=(
            Remedy(
                "Read why the proxies do not start: a port in use, no room for their actors, a slow import",
                (
                    "tail -n 20 /tmp/ray/session_latest/logs/serve/proxy_*.log   # on each node with a proxy",
                    "ss -ltnp 'sport = :8000'; ray status   # the port, and demands without room",
                ),
                doc=_DOC,
                finds_cause=True,
            ),
            *_remedies(),
        ),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
    )


def _finding(case: Case, node: str, events: list[Event], actors: list[str]) -> Finding:
    killed = [Entity("actor", actor) for actor in actors]
    errors = [e for actor in killed for e in case.about(actor, "driver.exception")]
    tries = evidence.total(events)
    times = f", {tries} times" if tries > 1 else ""
    seconds = f"{float(events[0]['seconds']):g} s"
    links = [Link(events[0], "the controller got no answer from the proxy and gave up")]
    links += [
        Link(event, "the program called that proxy and got this error") for event in errors[:1]
    ]
    return Finding(
        f"Serve replaced its proxy on node {evidence.short(node)} because it was not ready within {seconds}{times}",
        tuple(links),
        explains=(Entity("serve-proxy", node), *killed),
        subjects=(Subject("node", node, None),),
        count=tries,
        severity="error"
        if errors
        else "info",  # otherwise the next proxy was ready before a caller needed it
        remedies=_remedies(),
        covers=(*events, *errors),
    )


def _remedies() -> tuple[Remedy, ...]:
    return (
        Remedy(
            "Give proxies more time to start",
            (
                "export RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=60   # on every node, before ray start, or before your program if it starts Ray",
            ),
            risk="disruptive",
            doc=_DOC,
        ),
        Remedy(
            "Start Serve before the machine is busy", ("serve start   # then deploy",), doc=_DOC
        ),
    )


# ------------------------------------------------------------------ examples

_A = "06529581ae84b63360d4cec301000000"
_LINE = "WARNING 2026-11-21 11:26:31,379 controller 215 proxy_state.py:537 - "
_RAISED = (
    "Traceback (most recent call last):\nray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
    f"\tclass_name: ProxyActor\n\tactor_id: {_A}\n\tpid: 262\n\tname: SERVE_CONTROLLER_ACTOR:SERVE_PROXY_ACTOR-{_N}\n"
    "\tnamespace: serve\n\tip: 10.0.0.2\nThe actor is dead because it was killed by `ray.kill`.\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the program waited for the proxy that Serve killed",
        {
            "logs/serve/controller_215.log": f"{_LINE}{UNREADY[1].sample}\n",
            "driver.log": _RAISED,
            **QUIET_LOGS,
        },
        says=("within 5 s", "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=60"),
    ),
    Example(
        "a replaced proxy that no caller used",
        {
            "logs/serve/controller_402.log": f"WARNING 2026-11-21 11:26:31,379 controller 402 -- {UNREADY[0].sample}\n",
            **QUIET_LOGS,
        },
    ),
    Example(
        "a proxy that Serve did not kill",
        {"driver.log": _RAISED, **QUIET_LOGS},
        roots=("actor-killed",),
    ),
    Example(
        "a task that prints a controller's record",
        {"driver.log": f"(report pid=12) {_LINE}{UNREADY[1].sample}\n", **QUIET_LOGS},
    ),
    console(
        "the program stops waiting for the proxies",
        'Traceback (most recent call last):\n  File "/app/deploy.py", line 5, in <module>\n    serve.run(app)\n'
        f"{_NO_PROXIES.sample}\n",
        says=("not ready after 60 s", "proxy_*.log"),
    ),
    console(
        "a program quotes the time-out, and starts Serve again",
        f"{_NO_PROXIES.sample}\ntrying again\nstarted\n",
    ),
)
