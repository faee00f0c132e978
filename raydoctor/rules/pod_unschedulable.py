"""A Ray pod waits: no machine of the Kubernetes cluster fits it.

## What you see
- `kubectl get pods` shows `Pending`. `kubectl describe pod` shows `FailedScheduling … 0/3 nodes are available: 3
  Insufficient nvidia.com/gpu`.
- The operator's log, the status of the RayCluster, or an event of a Job contains `pods "ray-head-x1" is forbidden:
  exceeded quota: team, requested: cpu=8, used: cpu=28, limited: cpu=32`.
- The workload of Kueue has the condition `QuotaReserved` with the status `False`: `couldn't assign flavors to pod set
  …`, or `LocalQueue team doesn't exist`.
- Ray waits for the node: it prints `No available node types can fulfill resource request`, and tasks, actors and
  placement groups stay pending. Or the head never starts, and the RayJob stays in `Initializing`.
- SkyPilot prints `Timed out while waiting for nodes to start. Cluster may be out of resources or may be too slow to
  autoscale`, or `Insufficient GPU capacity on the cluster`.

## Why
The pod requests more than any machine has left (CPU, memory, GPUs), selects machines that do not exist, does not
tolerate the machines' taints, or waits for a volume. An autoscaler of the Kubernetes cluster adds a machine only if the
request fits one of its machine types. A pod that requests all of a machine's memory never fits, because the system
reserves a part.

A quota, a limit range or a security policy of the namespace refuses a pod before the scheduler sees it. `kubectl get
pods` then does not list the pod.

## Confirm
- `kubectl describe pod POD` shows the reason in the last event `FailedScheduling`.
- `kubectl describe node NODE` shows `Allocatable` and `Taints` of a machine, to compare with the pod.
- `kubectl describe quota,limitrange -n NAMESPACE` shows what is used and what is allowed.

## Fix
Request what a machine can allocate, add machines of a fitting type, or correct the selector, tolerations and volume
claims.

## Not this when
- Kueue admitted the workload later.
- the pod was scheduled later, or waits for its image (`image-pull-failed`).
- all pods run, but Ray itself has no node for a request (`infeasible-request`, `no-node-type-fits`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import DRIVER
from raydoctor.cluster import autoscaler
from raydoctor.cluster.pods import SIGNALS, Pods, is_head
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, cut, joined
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.hosts import kubernetes

_DOC = "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/"
_LONGEST = 200
_NODES = pattern(
    r"\b\d{1,9}/(?P<all>\d{1,9}) nodes are available: (?P<why>.{0,2000}?)(?:\. preemption: |$)"
)
_INSUFFICIENT = pattern(r"(?:\b(?P<number>\d{1,9}) )?\bInsufficient (?P<what>[\w./-]{1,100})")
_SCHEDULED = ("Scheduled", "Started")
_SELECTOR = pattern(
    r"(?:\b(?P<number>\d{1,9}) node\(s\) )?"
    r"(?:didn't match Pod's node affinity|didn't match node selector|didn't satisfy existing pods)"
)
_TAINT = pattern(
    r"(?:\b(?P<number>\d{1,9}) node\(s\) had (?:untolerated )?)?taint \{(?P<key>[\w./-]{1,200})"
)
_NOT_FOR_WORK = pattern(
    r"node-role\.kubernetes\.io|node\.kubernetes\.io|node\.cloudprovider\.kubernetes\.io"
)
_VOLUME = pattern(
    r"unbound immediate PersistentVolumeClaims|volume node affinity conflict|persistentvolumeclaim"
)
_FORBIDDEN = Signal(
    "kube.pod_forbidden",
    " is forbidden:",
    r"\bpods \\?\"(?P<pod>[\w.-]{1,253}?)\\?\" is forbidden:\s{1,40}(?P<why>(?:exceeded quota: (?P<quota>[\w.-]{1,253})(?:,?\s|,?$)|failed quota: "
    r"|(?:minimum|maximum) \S{1,60} usage per |violates PodSecurity |unable to validate against any security context constraint"
    r"|error looking up service account )[^\n\"}]{0,600})",
    DRIVER,
    'ERROR\tcontroller.raycluster\tReconciler error\t{"error": "pods \\"train-head-x1\\" is forbidden: exceeded quota: team, requested: '
    'limits.cpu=8, used: limits.cpu=28, limited: limits.cpu=32"}',
    extent="record",
    symptom=True,
    fold=("pod",),
)
"""The API server's refusal, as KubeRay's operator logs it and as clients print it."""
_QUEUED = (
    Signal(
        "kube.not_admitted", "assign flavors to pod set ",
        r"t assign flavors to pod set (?P<set>[\w.-]{1,100}): (?P<why>[^\"}]{1,1500}?)(?='?\n {0,40}[a-z]\w{0,40}:|\n\S|[\"}]|'?$)", DRIVER,
        "      message: 'couldn''t assign flavors to pod set gpu-group: insufficient quota for cpu in flavor spot, request > maximum capacity (10 > 8)'",
        extent="record", symptom=True, fold=("set",),
    ),
    Signal(
        "kube.no_queue", "Queue ", r"\b(?P<queue>(?:Local|Cluster)Queue [\w./-]{1,253}) (?P<why>(?:doesn'{1,2}t exist|is inactive))", DRIVER,
        "      message: LocalQueue team-a doesn't exist", symptom=True, fold=("queue",),
    ),
)  # fmt: skip
"""Why Kueue does not admit a workload (`pkg/scheduler`, 0.5 to 0.15), in its condition `QuotaReserved` or in an event."""
_ADMITTED = Signal(
    "kube.admitted", " in ClusterQueue ", r"\bQuota reserved in ClusterQueue ", DRIVER,
    "  Normal  QuotaReserved  5s  kueue-admission  Quota reserved in ClusterQueue team, wait time since queued was 1s",
)  # fmt: skip
_SKYPILOT = (
    Signal(
        "kube.skypilot", "Timed out while waiting for nodes to start. Cluster may be out of resources",
        r"Timed out while waiting for nodes to start\. Cluster may be out of resources or may be too slow to autoscale\."
        r"(?: +Pod status: [^\n]{0,20}? ?Details: '(?P<why>[^\n]{1,1500}))?", DRIVER,
        "sky.provision.kubernetes.config.KubernetesError: Timed out while waiting for nodes to start. Cluster may be out of resources or may "
        "be too slow to autoscale. Pod status: Pending Details: '0/6 nodes are available: 6 Insufficient nvidia.com/gpu.'",
        symptom=True,
    ),
    Signal(
        "kube.skypilot", " capacity on the cluster", r"\bInsufficient (?P<what>[\w./-]{1,60}) capacity on the cluster\b", DRIVER,
        "sky.provision.kubernetes.config.KubernetesError: Insufficient GPU capacity on the cluster. Required resources (GPU=8) were not "
        "found in a single node.", symptom=True, fold=("what",),
    ),
)  # fmt: skip
"""SkyPilot's launcher (`provision/kubernetes/instance.py`, 0.5 to 0.11), which then tries its next place."""
_FOR_GOOD = pattern(
    r"maximum capacity|unavailable in ClusterQueue|exist|inactive|match node affinity"
)
"""Reasons that no end of another workload removes, unless a flavor only lacks unused quota."""
_CREATED = Signal(
    "kube.pod_created",
    "reated ",
    r"\bCreated (?P<kind>head|worker) Pod ",
    DRIVER,
    "Created worker Pod default/train-worker-x2",
)


@rule(
    tier="root",
    severity="error",
    rank=2,
    explains=("autoscaler", "host"),
    looks_for=(*SIGNALS, _FORBIDDEN, _CREATED, *_QUEUED, _ADMITTED, *_SKYPILOT),
)
def pod_unschedulable(case: Case) -> Iterator[Finding]:
    """One finding per group of pods and reason."""
    pods = Pods(case)
    yield from _forbidden(case, pods)
    yield from _not_admitted(case)
    yield from _of_skypilot(case)
    listed = pods.all()
    waiting = [
        pod for pod in listed if pod["phase"] in ("Pending", "") and pod["unschedulable"] and not pod["deleted"]
    ]  # fmt: skip
    last_words = {e["name"]: e for e in pods.events("FailedScheduling")}
    waiting += [
        pod
        for pod in listed
        if pod["phase"] == "Pending" and not pod["unschedulable"] and pod["pod"] in last_words
        and not pods.events_of(pod, *_SCHEDULED)
    ]  # fmt: skip
    known = {pod["pod"] for pod in listed}
    waiting += [
        pods.pod_of(event)
        for name, event in last_words.items()
        if name not in known and not pods.events_of(pods.pod_of(event), *_SCHEDULED)
    ]
    for group in evidence.grouped(
        waiting, lambda e: (*kubernetes.key(e), _reason(_why(e, last_words)))
    ).values():
        yield _finding(pods, group, last_words)


def _forbidden(case: Case, pods: Pods) -> Iterator[Finding]:
    """One finding per reason for which Kubernetes refuses to create pods, unless it created one later."""
    made = case.of(_CREATED.kind)
    refused = [
        e
        for e in case.of(_FORBIDDEN.kind)
        if not any(m.source is e.source and m.offset > e.offset for m in made)
    ]
    clusters = list(_refused_clusters(case, pods))
    refused += [quoted for quoted, _ in clusters]
    for events in evidence.grouped(
        refused, lambda e: (e["quota"] or e["why"].partition(":")[0], is_head(e))
    ).values():
        last = events[-1]
        head = " (the head)" if is_head(last) else ""
        why = last["why"].rstrip("\\, ")
        yield Finding(
            f"Kubernetes refuses to create pod {last['pod']}{head}: {cut(why, _LONGEST)}",
            (Link(last, "the API server refuses the pod"),),
            explains=(Entity("autoscaler", "launch"),),
            count=evidence.total(events),
            severity="critical" if is_head(last) else None,
            remedies=tuple(_refused_remedies(last)),
            covers=(*events, *(cluster for quoted, cluster in clusters if quoted in events)),
        )


def _refused_clusters(case: Case, pods: Pods) -> Iterator[tuple[Event, Event]]:
    """The refusals that RayClusters quote in their status, which KubeRay clears when it creates the pods."""
    for event in case.of("kube.cluster"):
        is_ours = pods.is_of_ours(event["name"], event["namespace"]) and pods.in_time(event)
        has_failed = event["condition"] in _FAILED or event["state"] == "failed"
        found = re.search(_FORBIDDEN.pattern, f"{event['message']}\n{event['reason']}")
        if found and has_failed and is_ours:
            yield replace(event, fields={**event.fields, **found.groupdict("")}), event


_FAILED = ("ReplicaFailure", "RayClusterReplicaFailure")


def _not_admitted(case: Case) -> Iterator[Finding]:
    """One finding per reason for which Kueue admits no pods, unless it admitted the workload later."""
    admitted = case.of(_ADMITTED.kind)
    said = [
        (e, f"pod set {e['set']}" if e["set"] else "", " ".join((f"{e['queue']} " if e["queue"] else "", e["why"])))
        for e in case.of(_QUEUED[0].kind, _QUEUED[1].kind)
        if not any(a.source is e.source and a.offset > e.offset for a in admitted)
    ]  # fmt: skip
    said += [
        (e, e["name"], e["message"])
        for e in case.of("kube.workload")
        if e["condition"] == "QuotaReserved" and e["owner"].startswith("Ray") and e["message"]
    ]
    for (what, why), found in evidence.grouped(
        said, lambda each: (each[1], " ".join(each[2].replace("''", "'").split()))
    ).items():
        events = [event for event, _, _ in found]
        is_for_good = _FOR_GOOD.search(why) is not None and " more needed" not in why
        yield Finding(
            f"Kueue does not admit {what or 'the workload'}, so its pods are not created: {cut(_decisive(why), _LONGEST)}",
            (Link(events[-1], "Kueue's reason"),),
            explains=(Entity("autoscaler", "launch"),),
            count=1,
            severity=None if is_for_good else "warning",
            remedies=(
                Remedy(
                    "Request what a flavor of the queue has, or raise its quota"
                    if is_for_good
                    else "Wait until other workloads of the queue end, or raise its quota",
                    (
                        "kubectl describe workloads -n NAMESPACE",
                        "kubectl get localqueues -n NAMESPACE; kubectl describe clusterqueues",
                    ),
                    risk="disruptive",
                    doc="https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/",
                ),
            ),
            covers=tuple(events),
        )


def _of_skypilot(case: Case) -> Iterator[Finding]:
    """Pods of SkyPilot that no machine took, if the launcher had no other place for them."""
    events = [e for e in case.of(_SKYPILOT[0].kind) if e.source.is_excerpt]
    if not events or evidence.goes_on(case, events[-1]):
        return
    last = next((e for e in reversed(events) if e["why"] or e["what"]), events[-1])
    why = f"the machines have too little {last['what']}" if last["what"] else ""
    why = why or (_reason(last["why"]) if last["why"] else "the output does not show why")
    yield Finding(
        f"Kubernetes found no machine for the pods that SkyPilot requested: {cut(why, _LONGEST)}",
        (Link(last, "SkyPilot gives up on the pods"),),
        explains=(Entity("autoscaler", "launch"),),
        count=1,
        remedies=(
            Remedy(
                "Request a GPU, CPUs and memory that one machine of the cluster has free, or add such a machine",
                (
                    "sky show-gpus --infra k8s   # what the machines have, and what is free",
                    "kubectl describe nodes | grep -A8 'Allocated resources'",
                ),
                doc="https://docs.skypilot.co/en/latest/reference/kubernetes/kubernetes-troubleshooting.html",
            ),
        ),
        covers=(*events, *(e for e in case.of("log.error") if e.source is last.source)),
    )


def _decisive(why: str) -> str:
    """The reasons without the flavors that the pods do not select, if there are others."""
    parts = why.split(", ")
    return ", ".join(p for p in parts if not p.endswith("match node affinity")) or why


def _refused_remedies(refused: Event) -> Iterator[Remedy]:
    if "quota" in refused["why"] or " usage per " in refused["why"]:
        yield Remedy(
            f"Request less in {kubernetes.place(refused)}, or raise the quota of the namespace",
            ("kubectl describe quota,limitrange -n NAMESPACE",),
            risk="disruptive",
            doc="https://kubernetes.io/docs/concepts/policy/resource-quotas/",
        )
    else:
        yield Remedy(
            f"Change {kubernetes.place(refused)} so that the policy of the namespace allows the pod",
            ("kubectl get namespace NAMESPACE -o yaml   # labels pod-security.kubernetes.io/…",),
            risk="disruptive",
            doc="https://kubernetes.io/docs/concepts/security/pod-security-admission/",
        )


def _why(pod: Event, last_words: dict[str, Event]) -> str:
    """What the scheduler says about a pod."""
    event = last_words.get(pod["pod"])
    return pod["unschedulable_message"] or (event["message"] if event else "") or pod["message"]


def _finding(pods: Pods, waiting: list[Event], last_words: dict[str, Event]) -> Finding:
    last = waiting[-1]
    why = _why(last, last_words)
    is_gated = last["unschedulable"] == "SchedulingGated"
    events = [e for pod in waiting for e in pods.events_of(pod, "FailedScheduling", "NotTriggerScaleUp")]  # fmt: skip
    reason = "a scheduling gate holds it back (Kueue, for example)" if is_gated else _reason(why)
    chosen = _chosen(pods, last)
    if chosen and not is_gated:
        reason = f"Karpenter chose {evidence.many(len(chosen), 'new machine')} for it, and none has become ready"
    verb = "waits" if len({pod["pod"] for pod in waiting}) == 1 else "wait"
    return Finding(
        f"{kubernetes.capital(kubernetes.named(waiting))} {verb} for a machine: {reason}",
        (
            *(Link(pod, "the pod is not scheduled") for pod in waiting[:1]),
            *(Link(event, "the scheduler's message") for event in events[-1:] if event is not waiting[0]),
            *(Link(event, "Karpenter launches a machine for the pod") for event in [*chosen.values()][-1:]),
        ),
        explains=tuple(
            dict.fromkeys(
                (*(x for pod in waiting for x in pods.entities(pod)), autoscaler.POD_LAUNCH)
            )
        ),
        subjects=kubernetes.subjects(waiting),
        count=len(waiting),
        severity="warning" if is_gated else "critical" if is_head(last) else None,
        remedies=(
            *([_of_karpenter(list(chosen)[-1])] if chosen else ()),
            *_remedies(last, why, is_gated, is_chosen=bool(chosen)),
        ),
        covers=(*waiting, *events, *chosen.values()),
    )  # fmt: skip


_CHOSEN = pattern(r"\bPod should schedule on: (?:nodeclaim|machine)/(?P<name>[\w.-]{1,253})")


def _chosen(pods: Pods, pod: Event) -> dict[str, Event]:
    """The machines that Karpenter launched for a pod, by name: their types fit its selector."""
    events = pods.events_of(pod, "Nominated")
    return {found["name"]: e for e in events if (found := _CHOSEN.search(e["message"]))}


def _of_karpenter(name: str) -> Remedy:
    return Remedy(
        "Find out why the new machine does not become ready: quota, capacity, its image or its network",
        (
            paste.shell(
                "kubectl describe nodeclaim {name}   # machine, before Karpenter 0.32", name=name
            ),
            "kubectl logs -A -l app.kubernetes.io/name=karpenter --tail=200",
        ),
        doc="https://karpenter.sh/docs/troubleshooting/",
        finds_cause=True,
    )


def _reason(why: str) -> str:
    """`2 of 3 machines have too little nvidia.com/gpu, 1 has a taint that the pod does not tolerate`."""
    found = _NODES.search(why)
    parts = [
        _PodLack(_number(match), f"too little {match['what'].rstrip('.')}")
        for match in _INSUFFICIENT.finditer(why)
    ]
    taints = [_number(match) for match in _TAINT.finditer(why)]
    parts += [_PodLack(sum(taints), "a taint that the pod does not tolerate")] if taints else []
    if selected := _SELECTOR.search(why):
        parts.append(
            _PodLack(_number(selected), "labels that its selector or affinity does not allow")
        )
    text = _counted(list(dict.fromkeys(parts)), int(found["all"]) if found else 0)
    volume = "its volume is not there" if _VOLUME.search(why) else ""
    if text or volume:
        return joined([part for part in (text, volume) if part])
    return clause(found["why"] if found else why) or "the scheduler does not report why"


class _PodLack(NamedTuple):
    """What is wrong with some machines."""

    number: int
    """Machines; 0 if the scheduler does not count them."""
    has: str


def _number(match: re.Match[str]) -> int:
    return int(match["number"] or 0)


def _counted(parts: list[_PodLack], machines: int) -> str:
    if not parts:
        return ""
    if not machines or not all(part.number for part in parts):
        return f"the machines have {joined([part.has for part in parts])}"
    of = f"of {machines} machine{'s' if machines > 1 else ''} "
    said = [
        f"{part.number} {of if n == 0 else ''}{'has' if part.number == 1 else 'have'} {part.has}"
        for n, part in enumerate(parts)
    ]
    return joined(said)


def _remedies(pod: Event, why: str, is_gated: bool, *, is_chosen: bool) -> Iterator[Remedy]:
    place = kubernetes.place(pod)
    lacking = dict.fromkeys(match["what"].rstrip(".") for match in _INSUFFICIENT.finditer(why))
    if is_gated:
        yield Remedy(
            "Wait until the queue admits the workload, or look at its quota",
            (paste.shell("kubectl get workloads -n {namespace}", namespace=kubernetes.namespace(pod)),),
        )  # fmt: skip
        return
    if lacking:
        names = dict.fromkeys(["cpu", "memory", *lacking])
        columns = ",".join(_column(name) for name in names)
        yield Remedy(
            "Compare the pod's request with what machines can allocate, and request less or add machines that fit",
            (
                paste.shell(
                    "kubectl get pod {pod} -n {namespace} -o {path}   # what it requests",
                    pod=pod["pod"],
                    namespace=kubernetes.namespace(pod),
                    path="jsonpath={.spec.containers[*].resources.requests}",
                ),
                paste.shell(
                    "kubectl get nodes -o {columns}   # what machines can allocate",
                    columns=f"custom-columns=NODE:.metadata.name,{columns}",
                ),
            ),
            risk="disruptive",
            doc=kubernetes.CONFIG_DOC,
        )
    keys = [found["key"] for found in _TAINT.finditer(why) if not _NOT_FOR_WORK.match(found["key"])]
    if keys:
        yield Remedy(
            "Add a toleration for the taint, if the pod belongs on these machines",
            (
                paste.python(
                    "tolerations: [{{key: {key}, operator: Exists}}]   # {place}",
                    key=keys[0],
                    place=place,
                ),
            ),
            risk="disruptive",
            doc="https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/",
        )
    if _SELECTOR.search(why) and not is_chosen:
        yield Remedy(
            "Correct the node selector or affinity: no machine has these labels",
            ("kubectl get nodes --show-labels",),
            doc=_DOC,
        )
    if _VOLUME.search(why):
        yield Remedy(
            "Look at the volume claim that the pod waits for",
            (paste.shell("kubectl get pvc -n {namespace}", namespace=kubernetes.namespace(pod)),),
            doc="https://kubernetes.io/docs/concepts/storage/persistent-volumes/",
        )
    yield Remedy(
        "Read the messages of the Kubernetes scheduler and autoscaler about the pod",
        (
            paste.shell(
                "kubectl describe pod {pod} -n {namespace}",
                pod=pod["pod"],
                namespace=kubernetes.namespace(pod),
            ),
        ),
    )


def _column(name: str) -> str:
    """A column of `kubectl get nodes` with one allocatable resource; dots in its name are escaped."""
    title = name.rpartition("/")[2].upper()
    return f"{title}:.status.allocatable.{name.replace('.', chr(92) + '.')}"


# ------------------------------------------------------------------ examples


def _waiting(
    message: str, reason: str = "Unschedulable", kind: str = "worker"
) -> dict[str, object]:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message, "lastTransitionTime": "2026-11-22T18:45:00Z"}  # fmt: skip
    made = kubernetes.pod(f"train-{kind}-x1", kind=kind, phase="Pending", ip="", conditions=(condition,))  # fmt: skip
    made["status"]["containerStatuses"] = []
    return made


_GPU = "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."  # fmt: skip

_WAITS_FOR_LABELS = (
    "  Warning  FailedScheduling  31m   default-scheduler  0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. "
    "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.\n"
)
EXAMPLES: tuple[Example, ...] = (
    Example(
        "only the status of the pod was pasted, and its last line is cut off",
        {
            "status.txt": "status:\n  phase: Pending\n  conditions:\n    - type: PodScheduled\n      status: 'False'\n      reason: Unschedulable\n"
            "      message: '0/5 nodes are available: 1 Insufficient cpu, 4 node(s) didn''t match Pod''s node affinity/selector.'\n  qo"
        },
        says=("A pod waits for a machine: 1 of 5 machines has too little cpu",),
    ),
    Example(
        "no GPU is left",
        {"pods.json": kubernetes.listed(_waiting(_GPU))},
        says=("Pod train-worker-x1 waits", "nvidia.com/gpu", "2 of 3 machines have too little nvidia.com/gpu and 1 has a taint", "GPU:.status.allocatable.nvidia", "jsonpath"),
        is_typical=True,
    ),
    Example(
        "the pod does not tolerate the machines' taint",
        {"pods.json": kubernetes.listed(_waiting("0/2 nodes are available: 2 node(s) had untolerated taint {nvidia.com/gpu: present}."))},
        says=("2 of 2 machines have a taint that the pod does not tolerate", 'key: "nvidia.com/gpu"'),
    ),
    Example(
        "the head fits nowhere",
        {"pods.json": kubernetes.listed(_waiting("0/2 nodes are available: 2 Insufficient memory.", kind="head"))},
        says=("(the head)", "2 of 2 machines have too little memory"),
        severity="critical",
    ),
    Example(
        "the selector matches no machine",
        {"pods.json": kubernetes.listed(_waiting("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."))},
        says=("selector", "--show-labels"),
    ),
    console(
        "the status of a RayCluster whose head a quota refuses",
        "status:\n  head: {}\n  reason: 'pods \"train-head-x9\" is forbidden: exceeded quota: team,\n    requested: requests.cpu=2010m, used: requests.cpu=2810m, "
        "limited: requests.cpu=3'\n  state: failed\n",
        says=("refuses to create pod train-head-x9 (the head): exceeded quota: team",),
        severity="critical",
    ),
    console(
        "a part of a workload of Kueue that no flavor can hold",
        "    conditions:\n    - lastTransitionTime: \"2026-11-22T21:08:28Z\"\n      message: 'couldn\'\'t assign flavors to pod set gpu-group: \n"
        "        flavor spot doesn\'\'t match node affinity, insufficient quota for cpu in\n        flavor fixed, request > maximum capacity (10 > 8)'\n"
        "      observedGeneration: 1\n      reason: Pending\n      status: \"False\"\n      type: QuotaReserved\n",
        says=("does not admit pod set gpu-group", "not created: insufficient quota for cpu in flavor fixed"),
        severity="error",
    ),
    console(
        "an event of a workload that waits for others",
        "Warning  Pending  3m  kueue-admission  couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor fixed, 2 more needed\n",
        says=("Wait until other workloads of the queue end",),
        severity="warning",
    ),
    console(
        "a queue that does not exist",
        f"{_QUEUED[1].sample}\n",
        says=("LocalQueue team-a doesn't exist",),
        severity="error",
    ),
    console(
        "a workload that Kueue admitted later",
        "Warning  Pending  3m  kueue-admission  couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor fixed, 2 more needed\n"
        f"{_ADMITTED.sample}\n",
    ),
    Example(
        "Kueue has not admitted the workload",
        {"pods.json": kubernetes.listed(_waiting("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"))},
        says=("scheduling gate", "workloads"),
        severity="warning",
    ),
    Example(
        "only the events are left",
        {"events.json": kubernetes.listed(kubernetes.event("FailedScheduling", _GPU, "train-gpu-worker-x1"))},
        says=("train-gpu-worker-x1",),
    ),
    Example(
        "the pod was scheduled later",
        {
            "events.json": kubernetes.listed(
                kubernetes.event("FailedScheduling", _GPU, "train-gpu-worker-x1"),
                kubernetes.event("Scheduled", "Successfully assigned ml/train-gpu-worker-x1 to node-a", "train-gpu-worker-x1", lastTimestamp="2026-11-22T18:53:10Z"),
            )
        },
    ),
    console(
        "the namespace's quota forbids the head: the operator's log",
        f"2026-11-21T10:38:00.815Z\t{_FORBIDDEN.sample}\n",
        says=("refuses to create pod train-head-x1 (the head)", "exceeded quota: team", "quota,limitrange"),
        severity="critical",
    ),
    console(
        "the operator's log as JSON",
        '{"level":"error","ts":"2026-11-21T10:38:00.815Z","logger":"controllers.RayCluster","msg":"Error reconciling Pods","error":'
        '"failed to create worker Pod for the cluster ml/train: pods \\"train-gpu-worker-x1\\" is forbidden: exceeded quota: gpus, '
        'requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"}\n',
        says=("train-gpu-worker-x1: exceeded quota: gpus",),
    ),
    console(
        "the quota had room later, and a user may not list pods",
        f"2026-11-21T10:38:00.815Z\t{_FORBIDDEN.sample}\n2026-11-21T10:39:00.815Z\tINFO\t{_CREATED.sample}\n"
        'Error from server (Forbidden): pods is forbidden: User "jane" cannot list resource "pods"\n',
    ),
    Example(
        "it runs: the event is old",
        {
            "both.json": kubernetes.listed(
                kubernetes.pod("train-gpu-x1"), kubernetes.event("FailedScheduling", _GPU, "train-gpu-x1")
            )
        },
    ),
    Example(
        "the events of a pod without its name, as people paste them",
        {
            "events.txt": "Events:\n  Type     Reason            Age                From               Message\n"
            "  ----     ------            ----               ----               -------\n"
            "  Warning  FailedScheduling  12s (x3 over 2m)   default-scheduler  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.\n"
        },
        says=("A pod waits for a machine: 4 of 4 machines have too little nvidia.com/gpu",),
    ),
    console(
        "one of these lines in a message",
        "the worker does not start:\n  Warning  FailedScheduling  12s  default-scheduler  0/1 nodes are available: 1 Insufficient cpu.\n",
        says=("A pod waits for a machine",),
    ),
    console(
        "a program's own warnings in columns",
        "Warning  FailedScheduling  12 rows  default  0/1 nodes are available\nepoch 2\n",
    ),
    *(
        console(
            f"SkyPilot gives up on pods: {says}",
            f"W 11-21 17:19:17 instance.py:1232] run_instances: Error occurred when creating pods: {signal.sample}\n",
            says=("that SkyPilot requested", says),
        )
        for signal, says in zip(_SKYPILOT, ("too little nvidia.com/gpu", "too little GPU"), strict=True)
    ),
    console(
        "SkyPilot finds another place for its pods",
        f"W 11-21 17:19:17 instance.py:1232] run_instances: Error occurred when creating pods: {_SKYPILOT[0].sample}\n"
        "(setup pid=7) installing\n(train, pid=8) epoch 1\n(train, pid=8) epoch 2\nepoch 3\n",
    ),
    console(
        "Karpenter launches machines for a pod, and none becomes ready",
        f"Events:\n{_WAITS_FOR_LABELS}" + "".join(
            f"  Normal   Nominated         {age}m   karpenter          Pod should schedule on: nodeclaim/gpu-{name}\n"
            for age, name in ((31, "fc4pv"), (28, "jnzd8"))
        ),
        says=("Karpenter chose 2 new machines for it, and none has become ready", "kubectl describe nodeclaim gpu-jnzd8"),
    ),
    console(
        "no autoscaler launches a machine for the labels",
        f"Events:\n{_WAITS_FOR_LABELS}",
        says=("labels that its selector or affinity does not allow", "no machine has these labels"),
    ),
    console(
        "the pod runs on the machine that Karpenter launched",
        f"Events:\n{_WAITS_FOR_LABELS}"
        "  Normal   Nominated         31m   karpenter          Pod should schedule on: nodeclaim/gpu-fc4pv\n"
        "  Normal   Scheduled         29m   default-scheduler  Successfully assigned default/llm-worker-x1 to ip-10-0-0-3\n",
    ),
)  # fmt: skip
