"""A node started many more worker processes than it has CPUs.

## What you see
The driver prints `(raylet) WARNING: 24 PYTHON worker processes have been started on node: …`, and from Ray 2.48 on
`which is 4x the maximum expected startup concurrency (6)`.

## Why
Ray starts one process per actor, and another one for each task that waits in `ray.get`: such a task releases its CPU
but keeps its process. With `num_cpus=0`, a fraction, or nested tasks, the CPUs do not limit the number of processes.
Each process takes 60 MiB or more, and all of them compete for the cores.

## Confirm
- `ray list actors --filter state=ALIVE` lists the actors that are alive, with their nodes.
- `raydoctor hung` shows which tasks wait in `ray.get`, and for what.

## Fix
Create fewer actors and give each more work, or state what they need (`num_cpus=1`, `memory=`). Return references from
nested tasks instead of waiting for them.

## Not this when
- the number is intended, and the node has the memory for it: the warning alone stops nothing.
- fewer than 20 processes have been started: healthy programs with a few actors on two CPUs cause the warning as well,
  and raydoctor does not report it.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy

_NODE = "5138952a94c541c8bbe1810e8849d9fb906febed62ddf9a62f4addbe"
STARTED = Signal(
    "workers.many",
    " worker processes have been started on node: ",
    r"^WARNING: (?P<count>\d{1,7}) (?P<language>[A-Z]+) worker processes have been started on node: (?P<node>[0-9a-f]{56}) with "
    r"address: (?P<ip>[^\s,]{1,80}?)(?:, which is (?P<times>\d+)x the maximum expected startup concurrency \((?P<limit>\d+)\))?\. ",
    ("raylet-out", "raylet-err", "raylet-echo", "event"),
    f"WARNING: 24 PYTHON worker processes have been started on node: {_NODE} with address: 10.0.0.2, which is 4x the maximum "
    "expected startup concurrency (6). This could be a result of using a large number of actors, tasks blocked in ray.get() calls, or "
    "tasks with fractional CPU requests (e.g., num_cpus=0.1) allowing high concurrency.",
    fold=("node",),
)
"""`worker_pool.cc` (text of 2.60); earlier, the sentence ends behind the address."""
_MANY = 20
"""Processes from which on they matter: healthy programs with a few actors on two CPUs cause the warning as well."""
_DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/resources.html"


@rule(
    tier="cause",
    severity="warning",
    rank=92,
    explains=("backlog",),
    looks_for=(STARTED,),
)
def worker_pool_large(case: Case) -> Iterator[Finding]:
    """One finding per node, with the highest number that its raylet reported."""
    for node, events in evidence.grouped(case.of(STARTED.kind), lambda e: e["node"]).items():
        most = max(events, key=lambda e: int(e["count"]))
        if int(most["count"]) >= _MANY:
            yield _finding(node, most, events)


def _finding(node: str, most: Event, events: list[Event]) -> Finding:
    limit = f", {most['times']} times the expected {most['limit']}" if most["limit"] else ""
    return Finding(
        f"Node {most['ip']} started {most['count']} worker processes{limit}: actors or nested tasks that no CPU limits",
        (Link(most, "the raylet reports the number of its worker processes"),),
        explains=(Entity("backlog", f"workers {node}"),),
        remedies=(
            Remedy(
                "Count the actors and the tasks that wait in ray.get on this node",
                (
                    "ray list actors --filter state=ALIVE --limit 1000",
                    "raydoctor hung   # which tasks wait in ray.get, and for what",
                ),
            ),
            Remedy(
                "Create fewer actors, or state what each one needs",
                (
                    "@ray.remote(num_cpus=1)   # one process for each CPU",
                    "pool = ray.util.ActorPool(actors)",
                ),
                risk="disruptive",
                doc=_DOC,
            ),
        ),
        covers=tuple(events),
    )


# ------------------------------------------------------------------ examples

EXAMPLES: tuple[Example, ...] = (
    console(
        "a raylet that reports a growing number",
        f"(raylet) {STARTED.sample.replace('24 PY', '12 PY').replace('4x', '2x')}\n(raylet) {STARTED.sample}\n",
        logs=QUIET_LOGS,
        says=("Node 10.0.0.2 started 24 worker processes, 4 times the expected 6",),
    ),
    Example(
        "the wording without the expected number",
        {
            **QUIET_LOGS,
            "logs/raylet.out": "[2026-11-23 01:49:22,975 W 74 74] (raylet) worker_pool.cc:1796: "
            f"WARNING: 90 PYTHON worker processes have been started on node: {_NODE} with address: 10.0.0.2. This could be a result of "
            "using a large number of actors, or due to tasks blocked in ray.get() calls\n",
        },
        roots=("worker-pool-large",),
    ),
    console(
        "a few actors on two CPUs",
        f"(raylet) {STARTED.sample.replace('24 PY', '8 PY').replace('(6)', '(2)')}\n",
        logs=QUIET_LOGS,
    ),
    Example(
        "a task that prints the sentence",
        {**QUIET_LOGS, "driver.log": f"(load pid=7) {STARTED.sample}\n"},
    ),
)
