"""Every port in Ray's worker port range was in use, so another worker could not start.

## What you see
- Workers die while they start. Their `.err` and core logs contain `Failed to register worker to Raylet: Invalid:
  Invalid: No available ports. Please specify a wider port range using --min-worker-port and --max-worker-port.`
- The raylet reports `Some workers of the worker process(…) have not registered within the timeout. The process is
  dead`.
- Tasks and actors beyond the number of ports wait; from Ray 2.55 on they fail.

## Why
Each worker and each driver on a node takes one port (measured: three ports served one driver and two actors). The range
set with `--min-worker-port` and `--max-worker-port` of `ray start` (default 10002 to 19999), or the list in
`--worker-port-list`, therefore limits their number. Narrow ranges often come from an example, or from what a firewall
leaves open.

## Confirm
- `ps -C raylet -o args= | grep -o 'm[a-z]*_worker_port=[0-9]*'` shows the range.
- `ss -ltnp | grep ray::` shows which processes hold the ports. Other programs in the range count as well.

## Fix
On every node, set a range at least as wide as the number of workers and drivers that may run at the same time: CPUs,
plus actors without CPUs, plus drivers, plus a few workers for spilling. Ray's default, 10002 to 19999, is usually
enough: leave out the options. Open the same range in the firewall.

## Not this when
- a daemon cannot bind its own port (`Failed to bind to …`, `address already in use`): another process holds that port
  (`port-conflict`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.setup import worker_start
from raydoctor.rules.shared.setup.worker_start import Starts

_TEXT = "No available ports. Please specify a wider port range using --min-worker-port and --max-worker-port."
NO_PORT = Signal(
    "ports.none_left",
    "No available ports. Please specify a wider port range",
    r"^Failed to register worker (?:[0-9a-f]{56} )?to Raylet[.:] .*No available ports\. Please specify a wider port range",
    (
        "core-worker",
        "core-driver",
        "core-io",
        "worker-err",
        "raylet-err",
        "worker-echo",
        "raylet-echo",
        *DRIVER,
    ),
    f"Failed to register worker to Raylet: Invalid: Invalid: {_TEXT}",
    symptom=True,
)
_OWN = ("core-worker", "core-driver", "core-io")
"""Files that only Ray writes; in others the record must have the header of Ray's C++ logs."""

_DOC = "https://docs.ray.io/en/latest/ray-core/configure.html#ports-configurations"


@rule(
    tier="root",
    severity="error",
    rank=8,
    explains=("ports", "start-crashed", "waiting", "worker"),
    daemons_record=True,
    looks_for=(NO_PORT, *worker_start.SIGNALS),
)  # fmt: skip
def ports_exhausted(case: Case) -> Iterator[Finding]:
    """One finding per node."""
    by_node: dict[str, list[Event]] = {}
    for event in case.of(NO_PORT.kind):
        trusted = event.source.role in _OWN or event.level in ("E", "C")
        if trusted and not case.torn_down(event):
            by_node.setdefault(case.node_of(event.source), []).append(event)
    starts = {one.node: one for one in worker_start.starts(case, "dead")}
    logs = {node: events for node, events in by_node.items() if node} or by_node
    for node, events in logs.items():
        echoes = by_node.get("", []) if node else []
        yield _finding(case, node, events, echoes, starts.get(node))


def _finding(
    case: Case, node: str, events: list[Event], echoes: list[Event], dead: Starts | None
) -> Finding:  # fmt: skip
    pids = {e.pid for e in events}
    ip = case.ledger.node_ips.get(node, "")
    names = worker_start.affected(case, dead) if dead else []
    process = "the driver" if any(map(_is_drivers, events)) else "another worker"
    text = f"Ray's worker port range{f' on node {ip}' if ip else ''} had no free port for {process}"
    text += f": {evidence.many(len(pids), 'start')} failed"
    return Finding(
        f"{text}, and {evidence.join_names(names)} could not run" if names else text,
        tuple(_links(events, dead)),
        explains=(
            Entity("ports", node),
            *_workers(case, events),
            *((Entity("start-crashed", node), *dead.entities) if dead else ()),
        ),
        subjects=(Subject("node", node or None, ip or None),),
        count=len(pids),
        severity="warning" if dead and worker_start.is_over(case, dead) else None,
        remedies=_remedies(),
        covers=(
            *events,
            *echoes,
            *(e for one in (dead,) if one for e in (*one.events, *one.words, *one.given_up)),
            *(worker_start.echoes(case, "dead") if dead else ()),
        ),
    )


def _is_drivers(event: Event) -> bool:
    """Whether the driver itself wrote the record, rather than a worker whose output it shows."""
    role = event.source.role
    return role == "core-driver" or (role in DRIVER and not event.text.startswith("("))


def _workers(case: Case, events: list[Event]) -> Iterator[Entity]:
    for worker in sorted({e for event in events for e in event.entities if e.kind == "worker"}):
        exit_ = case.exit_of(worker.value)
        yield from exit_.entities if exit_ else (worker,)


def _links(events: list[Event], dead: Starts | None) -> Iterator[Link]:
    yield Link(events[0], "the raylet has no free port for this process, which then exits")
    for event in dead.events[:1] if dead else ():
        yield Link(event, "the raylet finds that a worker it started is dead")
    for event in dead.given_up[:1] if dead else ():
        yield Link(event, "Ray stops retrying, and the caller gets the error")


def _remedies() -> tuple[Remedy, ...]:
    return (
        Remedy(
            "Give the node a wider worker port range, and open it in the firewall",
            (
                "ps -C raylet -o args= | grep -o 'm[a-z]*_worker_port=[0-9]*'   # the current range",
                "ray start --min-worker-port=10002 --max-worker-port=19999   # plus your other options. Default: 9998 ports",
            ),
            risk="disruptive",
            doc=_DOC,
        ),
        Remedy(
            "Run fewer workers at the same time: each worker and driver on a node takes one port",
            (
                "ray start --num-cpus=FEWER   # plus your other options",
                "ray.init(num_cpus=FEWER)   # if the program starts Ray",
            ),
            doc=_DOC,
        ),
    )


# ------------------------------------------------------------------ examples

_W = "5d23820dbe229cb263b9518218703d648acf0b1172ae0ef7a7aef242"
_SAID = f"[2026-11-21 10:47:11,145 E 503 503] core_worker_process.cc:247: {NO_PORT.sample} worker_id={_W}\n"
_DEAD = (
    "[2026-11-21 10:48:07,199 E 311 311] (raylet) worker_pool.cc:660: Some workers of the worker process(503) have not "
    "registered within the timeout. The process is dead, probably it crashed during start.\n"
)
_TIMEOUT = "Traceback (most recent call last):\nray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a worker finds no free port",
        {
            f"logs/python-core-worker-{_W}_503.log": _SAID,
            f"logs/worker-{_W}-01000000-503.err": _SAID,
            "logs/raylet.out": _DEAD,
            "logs/gcs_server.out": "",
            "driver.log": _TIMEOUT,
        },
        consequences=("get-timeout",),
        says=("1 start", "--min-worker-port", "firewall"),
    ),
    console(
        "only the driver's output is left",
        f"(pid=503) {_SAID}(raylet) {_DEAD}{_TIMEOUT}",
        roots=("ports-exhausted",),
        consequences=("get-timeout",),
    ),
    Example(
        "a worker that dies for another reason",
        {
            f"logs/python-core-worker-{_W}_503.log": "[2026-11-21 10:47:11,145 E 503 503] core_worker_process.cc:247: Failed to "
            "register worker to Raylet: IOError: [RayletClient] Unable to register worker with raylet. End of file\n",
            "logs/raylet.out": _DEAD,
            "logs/gcs_server.out": "",
        },
        roots=("worker-start-crashed",),
    ),
    console(
        "a task prints the advice",
        f"(check pid=12) {NO_PORT.sample}\n{NO_PORT.sample}\n",
        logs=QUIET_LOGS,
    ),
)
