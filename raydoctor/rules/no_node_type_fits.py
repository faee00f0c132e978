"""The autoscaler has no node type that could hold a request, so it never starts a node for it.

## What you see
The task or actor waits, and every 30 s the autoscaler prints `Error: No available node types can fulfill resource
request {'GPU': 1.0}. Add suitable node types to this cluster to resolve this issue.` (autoscaler v2: `… resource
requests {…}*N`).

## Why
The autoscaler starts only the node types of its configuration (`available_node_types`, KubeRay's worker groups), each
with its declared resources. A request must fit on *one* node of *one* type. A type does not fit if its `max_workers` is
0, if its declared resources are too small, or if its declared labels do not match.

## Confirm
- `ray status` lists the request under `Pending Demands` (older Ray: `Demands`), and no node under `Pending`.
- In the cluster's configuration, no type's `resources` hold the request (KubeRay: the limits of each worker group, or
  `num-gpus` in `rayStartParams`).

## Fix
Add a type that can hold the request, correct the declared resources of a type, or request less.

## Not this when
- a type fits, but cannot be started (`node-launch-failed`).
- the cluster was started by `ray start` without an autoscaler configuration: it logs the same message (`monitor.log`,
  the driver's output), and `infeasible-request` reports which resource is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, rule
from raydoctor.case.signals import NODE_DEAD, NODE_REGISTERED
from raydoctor.cluster import autoscaler, resources
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import waiting


@rule(
    tier="cause",
    severity="error",
    rank=73,
    explains=("node-types",),
    looks_for=(*waiting.NO_NODE_TYPE, autoscaler.CONFIG, *NODE_REGISTERED, *NODE_DEAD),
)  # fmt: skip
def no_node_type_fits(case: Case) -> Iterator[Finding]:
    """One finding per request that no type can hold and that was reported more than once."""
    types = autoscaler.node_types(case)
    if not types:
        return
    for needs, reports in _requests(case):
        shown = waiting.one_role(reports)
        fits = any(resources.fits(each.holds, needs) for each in types)
        lasts = evidence.total(shown) > 1 and not _met_later(case, needs, shown)
        if lasts and not fits:
            yield _finding(case, needs, shown, reports, types)


def _requests(case: Case) -> list[tuple[resources.Needs, list[Event]]]:
    found: dict[frozenset[tuple[str, float]], tuple[resources.Needs, list[Event]]] = {}
    for event in case.of("request.no_node_type"):
        if event["combined"] or event["gang"] or case.torn_down(event):
            continue
        for needs in resources.python_amounts(event["asked"]):
            found.setdefault(resources.key(needs), (needs, []))[1].append(event)
    return list(found.values())


def _met_later(case: Case, needs: resources.Needs, shown: list[Event]) -> bool:
    """Whether a node that can hold the request joined after the last report."""
    joined = waiting.joined_after(case, shown[-1].at)
    return bool(joined) and any(resources.fits(t, needs) for t in waiting.totals(case, None))


def _finding(
    case: Case,
    needs: resources.Needs,
    shown: list[Event],
    reports: list[Event],
    types: list[autoscaler.NodeType],
) -> Finding:
    wanted = resources.describe(needs)
    short = resources.short_of([each.holds for each in types], needs)
    return Finding(
        f"The autoscaler has no node type that can hold {wanted}: {'its only type is' if len(types) == 1 else 'its types are'} "
        f"{evidence.join_names(str(t) for t in types)}",
        (
            Link(shown[0], f"no node type can hold {wanted}"),
            *(
                Link(e, "the autoscaler reports the same again")
                for e in shown[-1:]
                if len(shown) > 1
            ),
        ),
        explains=(Entity("node-types", wanted),),
        severity=waiting.severity(case),
        remedies=(
            Remedy(
                f"Add a node type with {wanted}, or correct the resources that a type declares",
                _type_lines(needs),
                doc=autoscaler.AUTOSCALING_DOC,
            ),
            Remedy(
                f"Or lower the request for {evidence.join_names(short)}"
                if short
                else "Or lower the request"
            ),
        ),
        covers=tuple(reports),
    )


def _type_lines(needs: resources.Needs) -> tuple[str, ...]:
    listed = [
        paste.python("{name}: {amount:g}", name=name, amount=amount)
        for name, amount in needs.items()
    ]
    return (
        "available_node_types:",
        "  big-worker:",
        paste.python(
            "    resources: {{{listed}}}     # KubeRay: limits of a worker group, and rayStartParams",
            listed=listed,
        ),
        "    max_workers: 2",
    )


# ------------------------------------------------------------------ examples


_STAMP = "2026-11-21 11:{},199\tINFO monitor.py:438 -- "
_CONFIG = f"{_STAMP.format('16:11')}{autoscaler.CONFIG.sample}\n"
_READONLY = _CONFIG.replace("'aws'", "'readonly'")
_SUMMARY = waiting.NO_NODE_TYPE[0].sample
_TWICE = f"{_STAMP.format('16:33')}{_SUMMARY}\n{_STAMP.format('17:04')}{_SUMMARY}\n"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a request for a GPU, and only CPU node types",
        {"logs/monitor.log": _CONFIG + _TWICE, **QUIET_LOGS},
        consequences=("infeasible-request",),
        says=("1 GPU and 1 CPU", "cpu-small (4 CPUs, at most 2 nodes)"),
    ),
    Example(
        "the same message from a cluster without an autoscaler",
        {"logs/monitor.log": _READONLY + _TWICE, **QUIET_LOGS},
        roots=("infeasible-request",),
    ),
    Example(
        "one report while a node was starting",
        {"logs/monitor.log": _CONFIG + f"{_STAMP.format('16:33')}{_SUMMARY}\n", **QUIET_LOGS},
    ),
    Example(
        "a task prints the message",
        {
            "driver.log": f"(check pid=12) {_SUMMARY}\n" * 3,
            "logs/monitor.log": _CONFIG,
            **QUIET_LOGS,
        },
    ),
)
