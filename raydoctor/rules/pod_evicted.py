"""The kubelet evicted a Ray pod: its machine ran short of memory or disk, or the pod exceeded its own disk limit.

## What you see
- `kubectl get pods` shows `Evicted`. `kubectl describe pod` shows `Status: Failed`, `Reason: Evicted`, and a message
  such as `The node was low on resource: memory`, `Pod ephemeral local storage usage exceeds the total limit of
  containers 10Gi` or `Usage of EmptyDir volume "shared-mem" exceeds the limit "8Gi"`.
- Ray reports only that a node stopped or died, and what was lost with it.

## Why
When a machine runs low on memory, disk, inodes or process ids, its kubelet evicts pods, first those that use more than
they request. A pod is also evicted if it writes more to its own disk than its limit allows: Ray's logs, spilled objects
and runtime environments all go to `/tmp/ray` in the container unless a volume is mounted there.

## Confirm
- `kubectl get pod POD -o jsonpath='{.status.reason}: {.status.message}'` prints `Evicted` and the reason. If the pod is
  gone, `kubectl get events --field-selector reason=Evicted` shows the message for about an hour.
- `kubectl describe node NODE` shows `MemoryPressure`, `DiskPressure` or `PIDPressure` if the machine ran short.

## Fix
- Memory: give the pod a request equal to its limit, so that the scheduler reserves that memory.
- Disk: raise the `ephemeral-storage` limit, or mount a volume for `/tmp/ray`, and let objects spill there.
- An emptyDir: raise its `sizeLimit`.

## Not this when
- the container exceeded its own memory limit (`pod-oom-killed`).
- the machine was drained, reclaimed or needed for another pod (`pod-preempted`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.cluster.pods import SIGNALS, Pods, is_head, quantity
from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, size
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.hosts import kubernetes

_DOC = "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/"
_LOW = pattern(r"low on resource: (?P<what>[\w-]+)")
_OWN_DISK = pattern(
    r"local storage usage exceeds the total limit of containers (?P<limit>\w+)|ephemeral[ -]storage limit \"?(?P<own>\w+)"
)
_VOLUME = pattern(
    r"Usage of EmptyDir volume \"(?P<volume>[^\"]{1,100})\" exceeds the limit \"(?P<limit>\w+)\""
)
_USED = pattern(r"was using (?P<used>\w+), request is (?P<request>\w+)")
_MORE = 1.5


@rule(
    tier="root",
    severity="error",
    rank=2,
    explains=("host",),
    looks_for=SIGNALS,
)
def pod_evicted(case: Case) -> Iterator[Finding]:
    """One finding per group of pods and resource that ran out."""
    pods = Pods(case)
    evicted = [pod for pod in pods.all() if _is_evicted(pod) and pods.in_time(pod)]
    # A normal event of this name is Karpenter's: `pod-preempted`.
    evicted += [event for event in pods.lone(evicted, "Evicted") if event["type"] != "Normal"]
    for group in evidence.grouped(evicted, lambda e: (*kubernetes.key(e), _what(e))).values():
        yield _finding(pods, group)


def _is_evicted(pod: Event) -> bool:
    return pod["reason"] == "Evicted" or (
        pod["disruption"] == "TerminationByKubelet" and pod["reason"] not in _SHUTDOWN
    )


_SHUTDOWN = ("Terminated", "NodeShutdown", "Shutdown")
"""Reasons with which the kubelet ends pods because its machine shuts down."""


def _why(pod: Event) -> str:
    return pod["message"] or pod["disruption_message"]


def _what(pod: Event) -> str:
    """The resource that ran out; empty if the message does not name it."""
    if found := _VOLUME.search(_why(pod)):
        return f"volume {found['volume']}"
    if _OWN_DISK.search(_why(pod)):
        return "its own disk"
    found = _LOW.search(_why(pod))
    return found["what"] if found else ""


def _finding(pods: Pods, evicted: list[Event]) -> Finding:
    last = evicted[-1]
    records = [e for pod in evicted for e in pods.events_of(pod, "Evicted", "Killing", "NodeHasDiskPressure", "NodeHasMemoryPressure", "EvictionThresholdMet")]  # fmt: skip
    return Finding(
        f"The kubelet evicted {kubernetes.named(evicted)}: {_reason(last)}",
        tuple(Link(pod, "the pod was evicted") for pod in evicted[:3]),
        explains=tuple(dict.fromkeys(x for pod in evicted for x in pods.entities(pod))),
        subjects=kubernetes.subjects(evicted),
        count=len(evicted),
        severity="critical" if is_head(last) else None,
        remedies=tuple(_remedies(last)),
        covers=(*evicted, *records),
    )


def _reason(pod: Event) -> str:
    what, why = _what(pod), _why(pod)
    if found := _VOLUME.search(why):
        return f"volume {found['volume']} held more than its limit, {_amount(found['limit'])}"
    if found := _OWN_DISK.search(why):
        return (
            f"it wrote more to its disk than its limit, {_amount(found['limit'] or found['own'])}"
        )
    if what:
        used = _USED.search(why)
        held = (
            f"; the pod used {_amount(used['used'])} and {_requested(used['request'])}"
            if used
            else ""
        )
        machine = f"its machine {pod['host']}" if pod["host"] else "its machine"
        return f"{machine} was low on {what}{held}"
    return clause(why) if why else "no reason is recorded"


def _requested(text: str) -> str:
    return f"had requested {_amount(text)}" if quantity(text) != 0 else "had requested none"


def _amount(text: str) -> str:
    number = quantity(text)
    return text if number is None else size(number)


def _remedies(pod: Event) -> Iterator[Remedy]:
    what, why = _what(pod), _why(pod)
    place = kubernetes.place(pod)
    if found := _VOLUME.search(why):
        yield Remedy(
            f"Raise the limit of volume {found['volume']} (mounted at /dev/shm, it holds Ray's object store)",
            (
                paste.python(
                    "volumes: [{{name: {volume}, emptyDir: {{medium: Memory, sizeLimit: {need}Gi}}}}]   # {place}",
                    volume=found["volume"],
                    need=_more(found["limit"]),
                    place=place,
                ),
                paste.python(
                    'rayStartParams: {{object-store-memory: "{store}"}}   # bytes, less than the volume',
                    store=int((quantity(found["limit"]) or 4 * evidence.GB) * 0.8),
                ),
            ),
            risk="disruptive",
            doc=kubernetes.CONFIG_DOC,
        )
    elif what in ("its own disk", "ephemeral-storage", "inodes", "nodefs", "imagefs"):
        found = _OWN_DISK.search(why)
        limit = (found["limit"] or found["own"]) if found else ""
        used = _USED.search(why) if what == "ephemeral-storage" else None
        held = used["used"] if used and quantity(used["used"]) else ""
        yield Remedy(
            "Put /tmp/ray (logs, spilled objects, runtime environments) on a separate volume, as an emptyDir is on the same disk",
            (
                paste.python(
                    "volumes: [{{name: ray-tmp, ephemeral: {{volumeClaimTemplate: {{spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {need}Gi}}}}}}}}}}}}]   # {place}",
                    need=_more(limit or held, 20),
                    place=place,
                ),
                "volumeMounts: [{name: ray-tmp, mountPath: /tmp/ray}]   # in the Ray container",
            ),
            risk="disruptive",
            doc=kubernetes.CONFIG_DOC,
        )
        if held:
            yield Remedy(
                "Or request as much disk as the pod uses, so that it runs on a machine that has it",
                (
                    paste.python(
                        "resources: {{requests: {{ephemeral-storage: {need}Gi}}}}   # {place}",
                        need=_more(held, factor=1.2),
                        place=place,
                    ),
                ),
                risk="disruptive",
            )
        if limit:
            yield Remedy(
                f"Or raise the limit of its disk (ephemeral-storage) from {_amount(limit)} to {_more(limit)} GiB",
                (
                    paste.python(
                        "resources: {{limits: {{ephemeral-storage: {need}Gi}}}}   # {place}",
                        need=_more(limit),
                        place=place,
                    ),
                ),
                risk="disruptive",
            )
    else:
        used = _USED.search(why)
        need = _more(used["used"], factor=1.2) if used and quantity(used["used"]) else 8
        yield Remedy(
            "Request as much memory as the pod uses, so that the scheduler reserves it and other pods are evicted first",
            (
                paste.python(
                    "resources: {{requests: {{memory: {need}Gi}}, limits: {{memory: {need}Gi}}}}   # {place}",
                    need=need,
                    place=place,
                ),
            ),
            risk="disruptive",
            doc=_DOC,
        )
    yield kubernetes.survive()


def _more(text: str, otherwise: int = 8, factor: float = _MORE) -> int:
    """GiB: half as much again as a quantity."""
    amount = quantity(text)
    return math.ceil(amount * factor / evidence.GB) if amount else otherwise


# ------------------------------------------------------------------ examples

_MEMORY = (
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 81Mi. Container ray-worker was using "
    "31457280Ki, request is 4Gi, has larger consumption of memory. "
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the machine ran out of memory",
        {"pods.json": kubernetes.listed(kubernetes.pod("train-gpu-x1", phase="Failed", reason="Evicted", message=_MEMORY))},
        says=("low on memory", "30.0 GiB", "requested 4.0 GiB", "memory: 36Gi"),
    ),
    Example(
        "it wrote too much to its own disk",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod(
                    "train-gpu-x1", phase="Failed", reason="Evicted",
                    message="Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. ",
                )
            )
        },
        says=("more to its disk", "10.0 GiB", "storage: 15Gi", "ephemeral-storage: 15Gi", "mountPath: /tmp/ray"),
    ),
    Example(
        "the machine's disk was nearly full",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod(
                    "train-gpu-x1", phase="Failed", reason="Evicted",
                    message="The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 8Gi. "
                    "Container ray-worker was using 62914560Ki, request is 0, has larger consumption of ephemeral-storage. ",
                )
            )
        },
        says=("the pod used 60.0 GiB and had requested none", "storage: 90Gi", "ephemeral-storage: 72Gi"),
    ),
    Example(
        "its container wrote too much to its own disk",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod(
                    "train-gpu-x1", phase="Failed", reason="Evicted",
                    message='Container ray-worker exceeded its local ephemeral storage limit "10Gi". ',
                )
            )
        },
        says=("wrote more to its disk", "10.0 GiB", "ephemeral-storage: 15Gi"),
    ),
    Example(
        "the volume of the object store was full",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod(
                    "train-gpu-x1", phase="Failed", reason="Evicted",
                    message='Usage of EmptyDir volume "shared-mem" exceeds the limit "8Gi". ',
                )
            )
        },
        says=("volume shared-mem", "sizeLimit: 12Gi", "object-store-memory"),
    ),
    Example(
        "only the event is left",
        {"events.json": kubernetes.listed(kubernetes.event("Evicted", _MEMORY, "train-gpu-worker-x1"))},
        says=("train-gpu-worker-x1",),
    ),
    Example(
        "a pod that has completed",
        {"pods.json": kubernetes.listed(kubernetes.pod("train-gpu-x1", phase="Succeeded", state=kubernetes.terminated("Completed", 0)))},
    ),
    Example(
        "another program's pod was evicted",
        {"events.json": kubernetes.listed(kubernetes.event("Evicted", _MEMORY, "postgres-0"))},
    ),
)  # fmt: skip
