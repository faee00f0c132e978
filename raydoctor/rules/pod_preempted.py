"""Kubernetes removed a Ray pod to make room for one of higher priority, or because its node was drained, reclaimed or lost.

## What you see
- The pod is gone, or `kubectl describe pod` shows `DisruptionTarget`, `Preempted`, `NodeShutdown`, `Terminated` or
  `NodeLost`.
- Events of the pod are `Preempted`, `TaintManagerEviction`, `NodeNotReady`, `ScaleDown` (Cluster Autoscaler), `Evicted
  pod: …` (Karpenter), `Evict` (Volcano) or those of the descheduler.
- Ray reports a SIGTERM, or a drained or dead node and the objects and actors lost with it.

## Why
The scheduler preempts pods of lower priority for one that does not fit elsewhere. Spot and preemptible machines are
reclaimed with little notice. Autoscalers (Cluster Autoscaler, Karpenter) and upgrades drain machines. A machine that
stops reporting is tainted, and its pods are deleted after five minutes.

## Confirm
- `kubectl get events -n NAMESPACE --sort-by=.lastTimestamp` lists the reason (events are kept for an hour by default).
  While the pod exists, its condition `DisruptionTarget` names the reason as well.
- `kubectl describe node NODE` shows labels of spot machines, or taints such as `ToBeDeletedByClusterAutoscaler`,
  `karpenter.sh/disrupted` or `node.kubernetes.io/unreachable`.

## Fix
Put the head, and work that cannot restart, on nodes that are not reclaimed. A priority class protects from pods of the
same or lower priority. A PodDisruptionBudget and the annotation `karpenter.sh/do-not-disrupt` protect from drains, not
from reclaimed machines. In the group's `template`:

    metadata: {annotations: {karpenter.sh/do-not-disrupt: "true"}}
    spec: {priorityClassName: NAME, nodeSelector: {karpenter.sh/capacity-type: on-demand}}   # the label depends on the cloud

Let work that may run twice restart: `max_retries`, `max_restarts`, checkpoints.

## Not this when
- a person or KubeRay deleted the pod (`kubectl delete`, a scale-down of idle workers): then there is none of the events
  above, and while the pod ends it has no condition `DisruptionTarget`.
- the pod was evicted for memory or disk (`pod-evicted`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.cluster.pods import SIGNALS, Pods, is_head
from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.hosts import kubernetes

_DOC = "https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/"
_DRAIN_DOC = "https://kubernetes.io/docs/concepts/workloads/pods/disruptions/"
_DISRUPTIONS = {
    "PreemptionByScheduler": "a pod of higher priority needed its resources",
    "DeletionByTaintManager": "its machine was tainted, and the pod does not tolerate the taint",
    "EvictionByEvictionAPI": "its machine was drained",
    "DeletionByPodGC": "its machine no longer exists",
    "TerminationByKubelet": "its machine shut down",
}
"""Reasons of the condition `DisruptionTarget` (Kubernetes 1.26 and later)."""
_REASONS = {
    "Preempting": "a pod of higher priority needed its resources",
    "NodeShutdown": "its machine shut down",
    "Shutdown": "its machine shut down",
    "Terminated": "its machine shut down",
    "NodeLost": "its machine stopped reporting",
}
_EVENTS = {
    "Preempted": "a pod of higher priority needed its resources",
    "TaintManagerEviction": "its machine was tainted, and the pod does not tolerate the taint",
    "NodeShutdown": "its machine shut down",
    "ScaleDown": "an autoscaler removed its machine",
    "Evicted": "an autoscaler removed its machine",
    "Evict": "the batch scheduler needed its resources for a job of higher priority or of another queue",
    "Descheduled": "the descheduler evicted it",
}
"""Reasons of events: of Kubernetes itself, the Cluster Autoscaler, Karpenter, Volcano and the descheduler."""
_RECLAIMED = pattern(
    r"spot|preempt|impending-node-termination|scheduled-maintenance|rebalance|itn|interruption", 2
)
_REMOVED = pattern(r"ToBeDeletedByClusterAutoscaler|karpenter\.sh/disrupt|DeletionCandidate")
_LOST = pattern(r"node\.kubernetes\.io/(?:unreachable|not-ready|out-of-service)")


@rule(
    tier="root",
    severity="error",
    rank=2,
    explains=("host",),
    looks_for=SIGNALS,
)
def pod_preempted(case: Case) -> Iterator[Finding]:
    """One finding per group of pods and reason."""
    pods = Pods(case)
    taken = [pod for pod in pods.all() if _reason(pod) and pods.in_time(pod)]
    taken += [event for event in pods.lone(taken, *_EVENTS) if _is_carried_out(pods, event)]
    machines = {event["node"]: event for event in case.of("kube.node")}
    for group in evidence.grouped(taken, lambda e: (*kubernetes.key(e), _reason(e))).values():
        yield _finding(pods, group, machines.get(group[-1]["host"]))


def _is_carried_out(pods: Pods, event: Event) -> bool:
    """Whether the pod of an event was taken away: not if it was refused, cancelled, or the pod is still ready."""
    if "Cancelling deletion" in event["message"]:
        return False
    if event["reason"] == "Evicted" and event["type"] != "Normal":
        return False  # by the kubelet: `pod-evicted`
    pod = pods.known(event["namespace"], event["name"])
    is_same = pod is not None and pod["uid"] and event["uid"] == pod["uid"]
    return not (is_same and pod and pod["ready"] == "True" and not pod["deleted"])


def _reason(pod: Event) -> str:
    """Why a pod was taken away; empty if it was not."""
    if pod.kind == "kube.event":
        if pod["reason"] == "Evicted" and _RECLAIMED.search(pod["message"]):
            return "its machine was reclaimed by the cloud"
        return _EVENTS.get(pod["reason"], "")
    if pod["reason"] == "Evicted" or (
        pod["disruption"] == "TerminationByKubelet" and pod["reason"] not in _REASONS
    ):
        return ""
    return _DISRUPTIONS.get(pod["disruption"], "") or _REASONS.get(pod["reason"], "")


def _finding(pods: Pods, taken: list[Event], machine: Event | None) -> Finding:
    last = taken[-1]
    why = last["disruption_message"] or last["message"]
    records = [e for pod in taken for e in pods.events_of(pod, *_EVENTS, "Killing", "NodeNotReady")]
    what = _machine(machine)
    said = f" ({clause(why)})" if why else ""
    return Finding(
        f"Kubernetes removed {kubernetes.named(taken)}: {what or _reason(last)}{said}",
        (
            *(Link(pod, "the pod was removed") for pod in taken[:3]),
            *([Link(machine, what)] if machine and what else []),
        ),
        explains=tuple(dict.fromkeys(x for pod in taken for x in pods.entities(pod))),
        subjects=kubernetes.subjects(taken),
        count=len(taken),
        severity="critical" if is_head(last) else None,
        remedies=tuple(_remedies(last, machine)),
        covers=(*taken, *records),
    )


def _machine(machine: Event | None) -> str:
    """What the taints of the pod's machine say; empty if nothing."""
    taints = machine["taints"] if machine else ""
    if _RECLAIMED.search(taints):
        return "its machine was reclaimed by the cloud"
    if _REMOVED.search(taints):
        return "an autoscaler removed its machine"
    return "its machine stopped reporting" if _LOST.search(taints) else ""


def _remedies(pod: Event, machine: Event | None) -> Iterator[Remedy]:
    place = kubernetes.place(pod)
    if "priority" in _reason(pod):
        yield Remedy(
            "Give the pods of this cluster a priority class, so that others do not displace them",
            (
                paste.python("priorityClassName: high-priority   # {place}, a class of your cluster", place=place),
                "kubectl get priorityclasses",
            ),
            risk="disruptive",
            doc=_DOC,
        )  # fmt: skip
    else:
        yield Remedy(
            "Keep autoscalers and drains away from these pods while they work",
            (
                paste.python(
                    'metadata: {{annotations: {{cluster-autoscaler.kubernetes.io/safe-to-evict: "false", '
                    'karpenter.sh/do-not-disrupt: "true"}}}}   # next to {place}',
                    place=place,
                ),
            ),
            risk="disruptive",
            doc=_DRAIN_DOC,
        )
    if is_head(pod) or (machine and _RECLAIMED.search(machine["taints"])):
        yield Remedy(
            "Run the head, and work that cannot restart, on machines that are not reclaimed",
            (
                paste.python(
                    "nodeSelector: {{cloud.google.com/gke-provisioning: standard}}   # {place}, EKS: eks.amazonaws.com/capacityType: ON_DEMAND",
                    place=place,
                ),
            ),
            risk="disruptive",
        )
    yield kubernetes.survive()


# ------------------------------------------------------------------ examples


def _disrupted(reason: str, message: str) -> dict[str, object]:
    return {
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message, "lastTransitionTime": "2026-11-22T18:52:01Z"}
        ]
    }  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a pod of higher priority needed the room",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod("train-gpu-x1", phase="Failed", **_disrupted("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"))  # type: ignore[arg-type]
            )
        },
        says=("higher priority", "priorityClassName"),
    ),
    Example(
        "the machine was drained",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod("train-head", kind="head", **_disrupted("EvictionByEvictionAPI", "Eviction API: evicting"))  # type: ignore[arg-type]
            )
        },
        says=("(the head)", "drained", "do-not-disrupt"),
        severity="critical",
    ),
    Example(
        "the cloud reclaimed a spot machine",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod("train-gpu-x1", phase="Failed", **_disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")),  # type: ignore[arg-type]
                {
                    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
                    "spec": {"taints": [{"key": "cloud.google.com/impending-node-termination", "effect": "NoExecute"}]}, "status": {},
                },
            )
        },
        says=("reclaimed by the cloud", "ON_DEMAND"),
    ),
    Example(
        "the machine shut down, and Kubernetes is older than the condition",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod("train-gpu-x1", phase="Failed", reason="Terminated", message="Pod was terminated in response to imminent node shutdown.")
            )
        },
        says=("shut down",),
    ),
    Example(
        "only the event is left",
        {"events.json": kubernetes.listed(kubernetes.event("Preempted", "Preempted by pod 1b2c on node node-a", "train-gpu-worker-x1"))},
        says=("train-gpu-worker-x1", "higher priority"),
    ),
    Example(
        "Karpenter drained a spot machine, and only the event is left",
        {"events.json": kubernetes.listed(kubernetes.event("Evicted", "Evicted pod: SpotInterrupted", "train-gpu-worker-x1", type="Normal"))},
        says=("reclaimed by the cloud", "do-not-disrupt"),
    ),
    Example(
        "the Cluster Autoscaler removed the machine",
        {"events.json": kubernetes.listed(kubernetes.event("ScaleDown", "deleting pod for node scale down", "train-gpu-worker-x1", type="Normal"))},
        says=("an autoscaler removed its machine", "safe-to-evict"),
    ),
    Example(
        "Volcano needed the room",
        {"events.json": kubernetes.listed(kubernetes.event("Evict", "Pod is evicted, because of preempt", "train-gpu-worker-x1"))},
        says=("batch scheduler", "priorityClassName"),
    ),
    Example(
        "the descheduler evicted it",
        {
            "events.json": kubernetes.listed(
                kubernetes.event("LowNodeUtilization", "pod eviction from node-a node by sigs.k8s.io/descheduler", "train-gpu-worker-x1", type="Normal")
            )
        },
        says=("the descheduler evicted it",),
    ),
    Example(
        "an eviction that a disruption budget refused: the pod is ready",
        {
            "all.json": kubernetes.listed(
                kubernetes.pod("train-gpu-x1", conditions=[{"type": "Ready", "status": "True"}]),
                kubernetes.event("ScaleDown", "deleting pod for node scale down", "train-gpu-x1", type="Normal",
                    involvedObject={"kind": "Pod", "name": "train-gpu-x1", "namespace": "ml", "uid": "uid-train-gpu-x1"}),
            )
        },
    ),
    Example(
        "the deletion by a taint was cancelled",
        {"events.json": kubernetes.listed(kubernetes.event("TaintManagerEviction", "Cancelling deletion of Pod ml/train-gpu-worker-x1", "train-gpu-worker-x1"))},
    ),
    Example(
        "deleted by a person",
        {"events.json": kubernetes.listed(kubernetes.event("Killing", "Stopping container ray-worker", "train-gpu-worker-x1"))},
    ),
)  # fmt: skip
