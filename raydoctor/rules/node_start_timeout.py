"""A machine or pod that the autoscaler started did not join the cluster in time, so the autoscaler ended it.

## What you see
- `monitor.log` (KubeRay: `kubectl logs HEAD_POD -c autoscaler`) contains `Update instance ALLOCATED->ALLOCATION_TIMEOUT
  (…): timeout=3600s at status ALLOCATED`, up to 2.4x `ALLOCATED->TERMINATING`. On virtual machines it may be
  `RAY_INSTALLING->RAY_INSTALL_FAILED`.
- Version 1 of the autoscaler prints `Removing 1 nodes of type … (launch failed).`
- Nodes appear and vanish again, and tasks keep waiting.

## Why
The provider created the machine, but Ray did not run on it in time. On Kubernetes, the pod waits for a machine or a
large image, its init container waits for the head, or `ray start` fails in it. On virtual machines, SSH does not
answer, or a setup command fails.

## Confirm
- `kubectl describe pod POD` of such a pod shows what it waits for, `kubectl logs POD --all-containers` what Ray
  printed.
- On virtual machines, `monitor.out` on the head shows the output of each setup command.

## Fix
Remove what delays the start: keep the image on the machines, raise the quota, correct the command. If the start is only
slow, raise the limit in the environment of the head (KubeRay: of the container `autoscaler`):

    RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S=3600

## Not this when
- the provider created nothing (`node-launch-failed`).
- a node of the type joined later, or the autoscaler ended an idle node.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.cluster import autoscaler, hosts
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import cut
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import waiting
from raydoctor.rules.shared.hosts import kubernetes

_LONGEST = 120
_STATES = ("ALLOCATED", "RAY_INSTALLING")
_JOIN_LIMIT = "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S={seconds:number}   # KubeRay: autoscalerOptions.env of the RayCluster"
_INSTALL_LIMIT = "RAY_AUTOSCALER_RECONCILE_RAY_INSTALL_STATUS_TIMEOUT_S={seconds:number}   # before ray start on the head"


@rule(
    tier="root",
    severity="error",
    rank=77,
    explains=("autoscaler",),
    caused_by=("host",),
    looks_for=(autoscaler.STUCK, autoscaler.JOINED, autoscaler.SETUP_FAILED),
)
def node_start_timeout(case: Case) -> Iterator[Finding]:
    """One finding per type of node."""
    stuck = autoscaler.unjoined(case, *_STATES)
    for name, events in stuck.items():
        yield _finding(case, name, events)
    removed = (e for e in case.of(autoscaler.SETUP_FAILED.kind) if e["who"] in ("", "autoscaler"))
    for name, events in evidence.grouped(removed, lambda e: e["type"]).items():
        if name not in stuck:
            yield _removed(case, name, events)


def _finding(case: Case, name: str, events: list[Event]) -> Finding:
    last = events[-1]
    nodes = len({e["id"] for e in events})
    installs = last["before"] == "RAY_INSTALLING"
    within = f" within {last['seconds']} s" if last["seconds"] else ""
    why = f": {cut(last['error'], _LONGEST)}" if last["error"] else ""
    step = "Ray could not be installed" if installs else "Ray did not join the cluster"
    return Finding(
        f"The autoscaler gave up on {evidence.many(nodes, 'node')} of type {name}: {step}{within}{why}",
        (Link(last, "the machine or pod exists, and Ray does not run on it"),),
        explains=(Entity("autoscaler", name), Entity("autoscaler", "launch")),
        caused_by=tuple(dict.fromkeys(_pods(case, events))),
        count=nodes,
        severity=waiting.severity(case),
        remedies=(
            Remedy(
                "Read what the pod waits for while it exists: a machine, its image, its init container, or ray start",
                (
                    paste.shell("kubectl describe pod {pod}", pod=last["instance"]),
                    paste.shell("kubectl logs {pod} --all-containers", pod=last["instance"]),
                    "tail -n 50 /tmp/ray/session_latest/logs/monitor.out   # on the head, for setup commands of virtual machines",
                ),
                finds_cause=True,
            ),
            Remedy(
                "If the start is only slow, raise its time limit in the environment of the autoscaler",
                (paste.shell(_INSTALL_LIMIT if installs else _JOIN_LIMIT, seconds=2 * int(last["seconds"] or 1800)),),
                risk="disruptive",
                doc=autoscaler.AUTOSCALING_DOC,
            ),
        ),
        covers=tuple(e for e in case.of(autoscaler.STUCK.kind) if e["type"] == name and e["before"] in _STATES),
    )  # fmt: skip


def _pods(case: Case, events: list[Event]) -> Iterator[Entity]:
    """The pods of these nodes: a rule that knows why one does not start explains it."""
    names = {e["instance"] for e in events if e["instance"]}
    for pod in case.of("kube.pod", "kube.container"):
        if pod["pod"] in names:
            yield hosts.entity(f"{pod['namespace']}/{pod['pod']}")
    for event in case.of("kube.event"):
        if event["name"] in names:
            yield hosts.entity(f"{event['namespace']}/{event['name']}")


def _removed(case: Case, name: str, events: list[Event]) -> Finding:
    """Machines that version 1 of the autoscaler removed because a command on them failed."""
    last = events[-1]
    return Finding(
        f"The autoscaler removed {evidence.many(int(last['count']), 'new node')} of type {name}, because a command on the machine failed",
        (Link(last, "the machine exists, and its setup failed"),),
        explains=(Entity("autoscaler", name), Entity("autoscaler", "launch")),
        count=evidence.total(events),
        severity="warning",
        remedies=(
            Remedy(
                "Read which command failed: SSH, a setup command, or ray start",
                ("grep -iE -B20 'failed|error' /tmp/ray/session_latest/logs/monitor.out | tail -n 60   # on the head",),
                doc=autoscaler.AUTOSCALING_DOC,
                finds_cause=True,
            ),
        ),
        covers=tuple(events),
    )  # fmt: skip


# ------------------------------------------------------------------ examples

_LINE = "2026-11-21 06:31:18,748\tINFO instance_manager.py:263 -- "
_OLD = autoscaler.STUCK.sample.replace("ALLOCATION_TIMEOUT", "TERMINATING").replace("3600", "300")
_INSTALL = (
    "Update instance RAY_INSTALLING->RAY_INSTALL_FAILED (id=7c1e, type=cpu-small, cloud_instance_id=i-01, ray_id=): failed to install ray "
    "with errors: SSH command failed."
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "Ray does not start in a pod in time",
        f"{_LINE}{autoscaler.STUCK.sample}\n",
        says=("1 node of type gpu-group", "within 3600 s", "kubectl describe pod train-gpu-group-worker-x1"),
    ),
    Example(
        "the same in the log of the autoscaler, as older versions write it",
        {"logs/monitor.log": f"{_LINE}{_OLD}\n", **QUIET_LOGS},
        says=("within 300 s", "ALLOCATE_STATUS_TIMEOUT_S=600"),
    ),
    Example(
        "no machine has room for the pod",
        {
            "logs/monitor.log": f"{_LINE}{autoscaler.STUCK.sample}\n",
            "events.json": kubernetes.listed(
                kubernetes.event("FailedScheduling", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "train-gpu-group-worker-x1")
            ),
            **QUIET_LOGS,
        },
        roots=("pod-unschedulable",),
        consequences=("node-start-timeout",),
    ),
    console(
        "Ray cannot be installed on a virtual machine",
        f"{_LINE}{_INSTALL}\n",
        says=("Ray could not be installed: SSH command failed.",),
    ),
    console(
        "a setup command fails, with version 1 of the autoscaler",
        "(autoscaler +1m2s) Removing 1 nodes of type cpu-small (launch failed).\n",
        says=("removed 1 new node of type cpu-small",),
        severity="warning",
    ),
    console(
        "the next node of the type joins",
        f"{_LINE}{autoscaler.STUCK.sample}\n{_LINE}{autoscaler.JOINED.sample}\n",
    ),
    console(
        "a task prints such lines",
        f"(check pid=12) {autoscaler.STUCK.sample}\n(check pid=12) {autoscaler.SETUP_FAILED.sample}\nloss 0.1\n",
    ),
    Example(
        "the autoscaler ends a node that it no longer needs",
        {
            "logs/monitor.log": f"{_LINE}Update instance RAY_STOPPED->TERMINATING (id=7c1e, type=gpu-group, cloud_instance_id=i-01, ray_id=ab): "
            f"terminating instance from RAY_STOPPED\n{_LINE}Removing 1 nodes of type cpu-small (idle).\n",
            **QUIET_LOGS,
        },
    ),
)  # fmt: skip
