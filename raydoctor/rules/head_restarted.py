"""The head pod, or its Ray container, ended and was started again: the GCS lost its state.

## What you see
- `kubectl get pods` shows restarts of the head pod, or a head pod that is younger than its workers.
- Ray logs `Failed to connect to GCS` or `WrongClusterID`. Raylets exit; drivers and jobs vanish.

## Why
The GCS runs in the head. Without GCS fault tolerance its state is gone with it: jobs, actors and placement groups do
not survive, and all workers register again with an empty cluster. The head ends if it exceeds its memory limit, if `ray
start` fails, if its probes fail (too little CPU is enough), or if the pod is deleted, evicted or preempted.

## Confirm
- `kubectl get pod HEAD -o jsonpath='{.status.containerStatuses[*].lastState}'` shows why and when the container ended;
  `kubectl logs HEAD -c ray-head --previous` shows its last output.
- `kubectl get events --field-selector involvedObject.name=HEAD` lists `Unhealthy` or `Killing` if a probe failed.

## Fix
Remove the cause of the restart. With GCS fault tolerance (`gcsFaultToleranceOptions` and a Redis), the cluster and its
detached actors survive the next restart.

## Not this when
- the head ended because the whole cluster was deleted, or because a RayJob with `shutdownAfterJobFinishes` was done.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import CORE, DRIVER, RAYLET
from raydoctor.cluster import hosts
from raydoctor.cluster.pods import SIGNALS, Pods, is_head
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy
from raydoctor.rules.shared.hosts import kubernetes

_UNHEALTHY = ("Unhealthy", "ProbeError")
_GAP = Gap(
    "the previous output of the head's container",
    "only this output shows why the container ended",
    "kubectl logs POD -c ray-head --previous > previous.log. Put the file into the folder with the logs, and diagnose that folder.",
    optional=True,
)

_TOLERANT = Remedy(
    "Let the cluster survive the next restart: GCS fault tolerance",
    (
        "gcsFaultToleranceOptions: {redisAddress: 'redis:6379'}   # spec of the RayCluster, KubeRay 1.3 and later",
    ),
    risk="disruptive",
    doc=kubernetes.FAULT_TOLERANCE_DOC,
)


_WRONG_ID = Signal(
    "gcs.wrong_cluster",
    "WrongClusterID: Perhaps the client is accessing GCS after it has restarted",
    r"(?:\w{3,40}: ){1,3}WrongClusterID: Perhaps the client is accessing GCS after it has restarted",
    (*DRIVER, *CORE, *RAYLET, "raylet-echo", "monitor", "dashboard", "dashboard-agent"),
    "AuthenticationError detected, restarting autoscaler: RPC error: WrongClusterID: Perhaps the client is accessing GCS after it has "
    "restarted.",
    symptom=True,
)
"""The reply of a GCS to a process that connected before it started (2.5 to 2.60): its state and its id are new."""


@rule(
    tier="cause",
    severity="critical",
    rank=4,
    explains=("host",),
    caused_by=("daemon", "gcs", "host", "raylet"),
    looks_for=(*SIGNALS, _WRONG_ID),
)
def head_restarted(case: Case) -> Iterator[Finding]:
    """One finding per head pod whose container ended and runs again, or that was replaced."""
    pods = Pods(case)
    again = [end for end in pods.ends() if is_head(end) and _is_again(end)]
    for group in evidence.grouped(again, lambda e: (e["namespace"], e["pod"])).values():
        yield _finding(case, pods, group)
    if not again:
        replaced = list(_replaced(case, pods))
        yield from replaced or _with_new_id(case)


def _is_again(end: Event) -> bool:
    """Whether the container was started again after this end."""
    return end["is_last"] == "true" or end["restarts"] not in ("", "0")


def _finding(case: Case, pods: Pods, ends: list[Event]) -> Finding:
    last = ends[-1]
    name = f"{last['namespace']}/{last['pod']}"
    probes = [e for e in pods.events_of(last, *_UNHEALTHY) if "iveness" in e["message"]]
    records = [e for end in ends for e in pods.events_of(end, "BackOff", "Killing", *_UNHEALTHY)]
    number = int(last["restarts"]) if last["restarts"].isdecimal() else 1
    times = f"{number} times" if number > 1 else "once"
    return Finding(
        f"The head pod {last['pod']} was restarted {times}, {_why(last, probes)}{_lost(case, last)}",
        (
            *(Link(end, "the container of the head ended, and was started again") for end in ends[:2]),
            *(Link(event, "its liveness probe failed") for event in probes[-1:]),
        ),
        explains=(hosts.entity(f"restart of {name}"), *_node(pods, last)),
        caused_by=(hosts.entity(name), *_daemons(pods, last, probes)),
        subjects=kubernetes.subjects(ends),
        count=max(number, 1),
        remedies=tuple(_remedies(last, probes)),
        covers=(*ends, *records, *probes),
        gaps=() if "gcs-out" in case.roles or _has_previous(case) else (_GAP,),
    )  # fmt: skip


def _with_new_id(case: Case) -> Iterator[Finding]:
    """A GCS with a new id, in a console without its log: the process that reports it had outlived the head."""
    refused = [e for e in case.of(_WRONG_ID.kind) if e["who"] in ("", "raylet", "autoscaler")]
    refused = [e for e in refused if not evidence.goes_on(case, e, is_line=True)]
    if not refused or not evidence.is_console(case):
        return
    yield Finding(
        "The head was restarted and its GCS has a new cluster id: it refuses processes that connected before, and its earlier jobs and actors are lost",
        (Link(refused[0], "a process of the old cluster is refused, and exits or is restarted"),),
        explains=(hosts.entity("restart of the head"), hosts.entity("head")),
        count=evidence.total(refused),
        severity="error",
        remedies=(
            Remedy(
                "Find out why the head ended",
                (
                    "kubectl describe pod HEAD; kubectl logs HEAD -c ray-head --previous",
                    "tail -n 50 /tmp/ray/session_*/logs/gcs_server.out   # on the head: the end of the session before the last one",
                ),
                finds_cause=True,
            ),
            _TOLERANT,
        ),
        covers=tuple(refused),
    )  # fmt: skip


def _has_previous(case: Case) -> bool:
    """Whether the output of the container that ended is in the capture, where `kubectl raydoctor` puts it."""
    return any("previous" in source.path.split("/") for source in case.sources)


def _node(pods: Pods, end: Event) -> tuple[Entity, ...]:
    return tuple(
        each for each in pods.entities(end) if each.value != f"{end['namespace']}/{end['pod']}"
    )


def _daemons(pods: Pods, end: Event, probes: list[Event]) -> tuple[Entity, ...]:
    """What ends a container that was not ended from outside: `ray start --block` exits with its GCS or raylet."""
    node = pods.node(end)
    if probes or end["reason"] == "OOMKilled" or end["exit_code"] in _FROM_OUTSIDE:
        return ()
    raylet = (Entity("raylet", node.id),) if node else ()
    return (Entity("daemon", "gcs_server"), Entity("gcs", "gcs"), *raylet)


_FROM_OUTSIDE = frozenset({"", "0", "137", "143"})


def _why(end: Event, probes: list[Event]) -> str:
    if end["reason"] == "OOMKilled":
        return "because it exceeded its memory limit"
    if probes:
        return "because its liveness probe failed"
    if end["exit_code"] in ("137", "143"):
        sent = "SIGKILL" if end["exit_code"] == "137" else "SIGTERM"
        return f"after it was ended with {sent}"
    if end["exit_code"]:
        return f"after its container ended with exit code {end['exit_code']}"
    return "and the reason is not in the capture"


def _lost(case: Case, end: Event) -> str:
    """What went with it, where the RayCluster says so."""
    clusters = [
        e
        for e in case.of("kube.cluster")
        if (e["namespace"], e["name"]) == (end["namespace"], end["cluster"])
    ]
    if any(e["fault_tolerant"] == "true" for e in clusters):
        return ""
    return "; without GCS fault tolerance its jobs and actors are lost" if clusters else ""


def _replaced(case: Case, pods: Pods) -> Iterator[Finding]:
    """A new head pod: KubeRay reports each head pod that it makes."""
    made = [
        e
        for e in case.of("kube.event")
        if e["reason"] == "CreatedHeadPod"
        and pods.in_time(e)
        and e["about"] == "RayCluster"
        and pods.is_of_ours(e["name"], e["namespace"])
    ]
    for (_, cluster), group in evidence.grouped(
        made, lambda e: (e["namespace"], e["name"])
    ).items():
        count = sum(int(e["count"]) if e["count"].isdecimal() else 1 for e in group)
        if count > 1:
            yield Finding(
                f"KubeRay replaced the head pod of RayCluster {cluster}: it made {count} of them",
                (Link(group[0], "the first head pod"), Link(group[-1], "the last head pod")),
                explains=(hosts.entity(f"restart of {cluster}"), hosts.entity("head")),
                caused_by=(hosts.entity("head"),),
                count=count - 1,
                remedies=(_TOLERANT,),
                covers=tuple(group),
            )  # fmt: skip


def _remedies(end: Event, probes: list[Event]) -> Iterator[Remedy]:
    yield Remedy(
        "Read why the container ended",
        (
            paste.shell(
                "kubectl logs {pod} -n {namespace} -c {container} --previous",
                pod=end["pod"],
                namespace=kubernetes.namespace(end),
                container=end["container"] or "ray-head",
            ),
        ),
    )
    if probes:
        yield Remedy(
            "Leave CPU time on the head for Ray's daemons, so that they answer its probes",
            (paste.python('rayStartParams: {{num-cpus: "0"}}   # headGroupSpec'),),
            risk="disruptive",
            doc=kubernetes.CONFIG_DOC,
        )
    yield _TOLERANT


# ------------------------------------------------------------------ examples

EXAMPLES: tuple[Example, ...] = (
    console(
        "the autoscaler outlives the head",
        f"2026-11-22 18:52:59,082\tWARNING autoscaler.py:223 -- {_WRONG_ID.sample} Note: RAY_AUTH_MODE is currently 'disabled' (not 'token').\n",
        says=("new cluster id", "ray-head --previous"),
        severity="error",
    ),
    console(
        "a program explains the error, and continues",
        f"note: {_WRONG_ID.sample}\n(check pid=12) {_WRONG_ID.sample}\nloss 0.1\n",
    ),
    Example(
        "the head's liveness probe failed, and Kubernetes restarted its container (`kubectl get pods,events -o json`)",
        {
            "all.json": kubernetes.listed(
                kubernetes.pod("train-head", kind="head", last=kubernetes.terminated("Error", 137), restarts=2),
                kubernetes.event("Unhealthy", "Liveness probe failed: command timed out", "train-head"),
            )
        },
        says=("2 times", "liveness probe", "num-cpus", "gcsFaultToleranceOptions"),
    ),
    Example(
        "ray start failed",
        {"pods.json": kubernetes.listed(kubernetes.pod("train-head", kind="head", last=kubernetes.terminated("Error", 1), restarts=1))},
        says=("exit code 1", "--previous"),
    ),
    Example(
        "KubeRay made a second head pod",
        {
            "events.json": kubernetes.listed(
                kubernetes.event("CreatedHeadPod", "Created head Pod ml/train-head-a", "train", "RayCluster", lastTimestamp="2026-11-22T18:40:00Z"),
                kubernetes.event("CreatedHeadPod", "Created head Pod ml/train-head-b", "train", "RayCluster"),
            )
        },
        says=("RayCluster train", "2 of them"),
    ),
    Example(
        "a worker restarted, not the head",
        {"pods.json": kubernetes.listed(kubernetes.pod("train-gpu-x1", last=kubernetes.terminated("Error", 1), restarts=1))},
    ),
    Example(
        "the cluster was deleted",
        {"pods.json": kubernetes.listed(kubernetes.pod("train-head", kind="head", phase="Failed", state=kubernetes.terminated("Error", 137)))},
    ),
    Example(
        "the container of a head whose logs are there ended by itself",
        {
            "pods.json": kubernetes.listed(kubernetes.pod("train-head", kind="head", last=kubernetes.terminated("Error", 1), restarts=1)),
            "train-head/logs/gcs_server.out": "[2026-11-22 18:40:03,100 I 8 8] (gcs_server) gcs_node_manager.cc:50: Registering new node. "
            f"node_id={'c' * 56} node_name=10.244.1.7 node_address=10.244.1.7\n"
            "[2026-11-22 18:52:03,100 I 8 8] (gcs_server) gcs_node_manager.cc:50: Registering new node. "
            f"node_id={'d' * 56} node_name=10.244.1.8 node_address=10.244.1.8\n",
        },
        says=("exit code 1",),
    ),
)  # fmt: skip
