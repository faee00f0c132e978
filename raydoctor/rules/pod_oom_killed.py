"""A container of a Ray pod exceeded its memory limit, and the kernel killed it.

## What you see
- `kubectl get pods` shows `OOMKilled` and restarts. `kubectl describe pod` shows `Last State: Terminated`, `Reason:
  OOMKilled`, `Exit Code: 137`.
- KubeRay replaces a pod whose restart policy is Never. Only its event `DeletedWorkerPod` or `DeletedHeadPod` then contains
  `Reason:OOMKilled`.
- Ray reports only the consequences: a dead node, workers and actors that are gone, `ActorDiedError`, lost objects. If
  the pod was the head, Ray prints `Failed to connect to GCS`.

## Why
Everything in the container counts towards the limit: workers, Ray's daemons, the object store in `/dev/shm`, and files
in volumes of medium `Memory`. Above the limit the kernel kills one process of the container, or all of them (cgroup v2
with Kubernetes 1.28 and later). Ray's memory monitor ends tasks at 95% of the same limit. But it checks only every 250
ms, and it cannot end the head's own daemons or free what the tasks left in shared memory.

## Confirm
- `kubectl get pod POD -o jsonpath='{.status.containerStatuses[*].lastState}'` shows `OOMKilled` and the time.
- The metric `container_memory_working_set_bytes` is close to the limit shortly before the kill.
- `kubectl logs POD -c ray-head --previous` (`-c ray-worker` on a worker) prints the last output of the ended container.

## Fix
Raise the memory limit of the group (`headGroupSpec` or `workerGroupSpecs`), or let fewer tasks run at the same time
(`memory=`, `num_cpus=`). Keep tasks off the head (`num-cpus: "0"` in the head's `rayStartParams`). Give the request and
the limit the same value, so that the memory with which Ray plans exists.

## Not this when
- a container ended with exit code 137 for another reason (`Error`): `kubectl delete`, a failed probe, a drain.
- the pod was evicted because its machine ran out of memory (`pod-evicted`).
- Ray's monitor killed a worker, and the container is still running (`ray-oom-kill`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER
from raydoctor.cluster import resources
from raydoctor.cluster.pods import SIGNALS, Pods, is_head, quantity
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import plural, size
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.hosts import kubernetes
from raydoctor.rules.shared.oom.kills import OFFERED
from raydoctor.rules.shared.oom.remedies import ADVISED

_DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html"
_MORE = 1.5
"""The container was still growing when it was killed: its limit is a lower bound of what it needs."""


_SAID = Signal(
    "kube.said_oom",
    "OOMKilled",
    r"^\s{0,40}(?:- )?\"?[Rr]eason\"?: {1,20}\"?OOMKilled\"?,?\s*$",
    DRIVER,
    "reason: OOMKilled",
)
"""The state of a container that a query prints, without the pod around it."""


@rule(
    tier="root",
    severity="error",
    rank=2,
    explains=("host",),
    looks_for=(*SIGNALS, OFFERED, _SAID),
)
def pod_oom_killed(case: Case) -> Iterator[Finding]:
    """One finding per group of pods: they share a limit."""
    pods = Pods(case)
    ends = [event for event in pods.ends() if event["reason"] == "OOMKilled"]
    for group in evidence.grouped(ends, kubernetes.key).values():
        yield _finding(case, pods, group)
    said = [e for e in case.of(_SAID.kind) if e.source.is_excerpt]
    if said and not ends:
        yield _of_state(said)


def _of_state(said: list[Event]) -> Finding:
    """A container of which a paste shows only how it ended."""
    return Finding(
        "A container was killed for lack of memory (OOMKilled)",
        (Link(said[-1], "the state of the container, as Kubernetes records it"),),
        explains=(Entity("host", "state"),),
        count=len(said),
        remedies=(
            Remedy(
                "Give the container more memory: a higher limit, and an equal request, so that Ray plans with what the pod has",
                ("kubectl describe pod POD | grep -A3 -e Limits -e Requests",),
                doc=kubernetes.CONFIG_DOC,
            ),
        ),
        covers=tuple(said),
    )


def _finding(case: Case, pods: Pods, ends: list[Event]) -> Finding:
    last = ends[-1]
    limit = quantity(last["memory_limit"])
    restarts = max(int(e["restarts"]) if e["restarts"].isdecimal() else 0 for e in ends)
    again = f"; {plural(restarts, 'restart')} so far" if restarts > 1 else ""
    who, many = kubernetes.capital(kubernetes.named(ends)), len({e["pod"] for e in ends}) > 1
    verb = "were" if many else "was"
    if limit:
        what = f"exceeded {'their' if many else 'its'} memory limit of {size(limit)} and {verb} killed (OOMKilled)"
    else:
        what = f"{verb} killed for lack of memory (OOMKilled)"
    records = [e for end in ends for e in pods.events_of(end, "OOMKilling", "BackOff", "Killing")]
    planned, plans = _planned(case, pods, last)
    return Finding(
        f"{who} {what}{again}",
        (
            *(Link(e, f"container {e['container'] or 'of Ray'} was killed for lack of memory") for e in ends[:3]),
            *(Link(e, f"Ray counted on {size(planned)} of memory for tasks there") for e in plans),
        ),
        explains=tuple(dict.fromkeys(x for end in ends for x in pods.entities(end))),
        subjects=kubernetes.subjects(ends),
        count=len(ends),
        severity="critical" if is_head(last) else None,
        remedies=tuple(_remedies(last, limit, planned)),
        covers=(*ends, *records),
    )  # fmt: skip


def _planned(case: Case, pods: Pods, end: Event) -> tuple[float, tuple[Event, ...]]:
    """Bytes of memory that Ray planned with on the node, and the record that shows it."""
    node = pods.node(end)
    for event in case.of(OFFERED.kind):
        amount = resources.amounts(event["total"]).get("memory", 0.0)
        if amount and node is not None and case.node_of(event.source) == node.id:
            return amount, (event,)
    return 0.0, ()


def _remedies(end: Event, limit: float | None, planned: float) -> Iterator[Remedy]:
    if limit:
        need = max(math.ceil(limit * _MORE / evidence.GB), 1)
        yield Remedy(
            f"Raise the limit of the container from {size(limit)} to {need} GiB, and request as much",
            (
                paste.python(
                    "resources: {{requests: {{memory: {need}Gi}}, limits: {{memory: {need}Gi}}}}   # {place}, container {container}",
                    need=need,
                    place=kubernetes.place(end),
                    container=end["container"] or "ray",
                ),
            ),
            risk="disruptive",
            doc=kubernetes.CONFIG_DOC,
        )
    else:
        yield Remedy(
            "Give the container more memory: a higher limit, and an equal request, so that Ray plans with what the pod has",
            (
                paste.python(
                    "resources: {{requests: {{memory: 8Gi}}, limits: {{memory: 8Gi}}}}   # {place}, as much as the work needs",
                    place=kubernetes.place(end),
                ),
            ),
            risk="disruptive",
            doc=kubernetes.CONFIG_DOC,
        )
    if end["container"] == kubernetes.SUBMITTER:
        return  # It runs no tasks.
    if is_head(end):
        yield Remedy(
            "Keep tasks and actors off the head",
            (paste.python('rayStartParams: {{num-cpus: "0"}}   # headGroupSpec'),),
            risk="disruptive",
            doc=kubernetes.CONFIG_DOC,
        )
    elif planned:
        share = int(planned / 2 / 2**20)
        yield Remedy(
            f"Or let at most two tasks run at once there: Ray shares out {size(planned)}",
            (
                paste.python(
                    "@ray.remote(memory={share} * 1024**2)   # on the function or class that needs most memory",
                    share=share,
                ),
            ),
            doc=_DOC,
        )
    else:
        yield Remedy(
            "Or let fewer tasks run at once in it",
            (
                "@ray.remote(num_cpus=2)   # half as many tasks at once as with the default, num_cpus=1",
            ),
            doc=_DOC,
        )
    yield Remedy(
        "Let Ray's memory monitor act earlier than the kernel",
        (
            paste.python(
                'env: [{{name: RAY_memory_usage_threshold, value: "{advised}"}}]   # {place}, container {container}. The default is 0.95',
                advised=ADVISED,
                place=kubernetes.place(end),
                container=end["container"] or "ray",
            ),
        ),
        risk="disruptive",
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples

_OOM = kubernetes.terminated("OOMKilled", 137)
_NODE = "3f818372160713c4e2f1a871bd9bf562dfe4eb44b82671c5eba59a68"
_BEGINS = (
    "[2026-11-22 18:40:03,100 I 8 8] (gcs_server) gcs_node_manager.cc:50: Registering new node. "
    f"node_id={_NODE} node_name=10.244.1.7 node_address=10.244.1.7\n"
)
_DIES = (
    f"[2026-11-22 18:52:31,100 W 8 8] (gcs_server) gcs_health_check_manager.cc:79: Node {_NODE} is dead because the health "
    "check failed.\n"
)
_GCS = "train-head/logs/gcs_server.out"
_REPLACED = (
    "Deleted worker Pod ml/train-gpu-x1; Pod status: Failed; Pod restart policy: Never; Ray container terminated status: "
    "&ContainerStateTerminated{{ExitCode:137,Signal:0,Reason:{},Message:,StartedAt:2026-11-22 18:40:02 +0000 UTC,"
    "FinishedAt:2026-11-22 18:52:10 +0000 UTC,ContainerID:containerd://3f1c,}}"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a worker pod was killed and started again; nothing else is known",
        {"pods.json": kubernetes.listed(kubernetes.pod("train-gpu-x1", last=_OOM, restarts=1))},
        says=("Pod train-gpu-x1 exceeded its memory limit of 4.0 GiB", "6Gi", "group gpu"),
    ),
    Example(
        "the head was killed for the third time",
        {"pods.json": kubernetes.listed(kubernetes.pod("train-head", kind="head", last=_OOM, restarts=3))},
        consequences=("head-restarted",),
        says=("(the head)", "3 restarts", 'num-cpus: "0"'),
        severity="critical",
    ),
    Example(
        "two pods of one group",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod("train-gpu-x1", last=_OOM, restarts=1),
                kubernetes.pod("train-gpu-x2", ip="10.244.1.8", last=_OOM, restarts=1),
            )
        },
        says=("2 pods of group gpu", "exceeded their memory limit"),
    ),
    Example(
        "as YAML, written by an older kubectl",
        {
            "pod.yaml": "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    labels:\n      ray.io/cluster: train\n"
            "    name: train-worker-x1\n    namespace: ml\n  spec:\n    containers:\n    - name: ray-worker\n      resources:\n"
            "        limits:\n          memory: 512Mi\n  status:\n    containerStatuses:\n    - lastState:\n        terminated:\n"
            '          exitCode: 137\n          finishedAt: "2026-11-22T18:52:10Z"\n          reason: OOMKilled\n'
            "      name: ray-worker\n      restartCount: 1\n      state:\n        running:\n          startedAt: \"2026-11-22T18:52:12Z\"\n"
            "    phase: Running\nkind: List\nmetadata: {}\n"
        },
        says=("512 MiB", "memory: 1Gi"),
    ),
    Example(
        "kubectl describe",
        {
            "pod.txt": "Name:             train-worker-x1\nNamespace:        ml\nNode:             node-a/192.0.2.7\n"
            "Labels:           app=x\n                  ray.io/cluster=train\nStatus:           Running\nIP:               10.244.1.7\n"
            "Containers:\n  ray-worker:\n    Image:         ray:2.46.0\n    State:          Running\n"
            "      Started:      Sun, 22 Nov 2026 18:52:12 +0000\n    Last State:     Terminated\n      Reason:       OOMKilled\n"
            "      Exit Code:    137\n      Started:      Sun, 22 Nov 2026 18:40:02 +0000\n"
            "      Finished:     Sun, 22 Nov 2026 18:52:10 +0000\n    Ready:          True\n    Restart Count:  1\n"
            "    Limits:\n      cpu:     1\n      memory:  2G\n    Environment:\n      RAY_IP:  10.0.0.1\n"
            "Conditions:\n  Type           Status\n  Ready          True\nEvents:          <none>\n"
        },
        says=("1.9 GiB", "memory: 3Gi"),
    ),
    Example(
        "kubectl get pods",
        {
            "pods.txt": "NAME                 READY   STATUS      RESTARTS      AGE\n"
            "train-head-abcde     1/1     Running     0             3h\n"
            "train-worker-fghij   0/1     OOMKilled   1 (10s ago)   3h\n"
        },
        says=("train-worker-fghij",),
    ),
    Example(
        "the GCS saw the node die when its pod was killed",
        {"pods.json": kubernetes.listed(kubernetes.pod("train-gpu-x1", state=_OOM)), _GCS: _BEGINS + _DIES},
        consequences=("node-died",),
        says=("Pod train-gpu-x1",),
    ),
    Example(
        "ended by kubectl delete: the same exit code, another reason",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod("train-gpu-x1", phase="Failed", state=kubernetes.terminated("Error", 137))
            )
        },
    ),
    Example(
        "a pod of another cluster was killed, long before these logs",
        {
            "pods.json": kubernetes.listed(
                kubernetes.pod("train-gpu-x1"),
                kubernetes.pod("other-gpu-x1", ip="10.244.9.9", cluster="other", last=kubernetes.terminated("OOMKilled", 137, "2026-11-20T01:00:00Z")),
            ),
            _GCS: _BEGINS,
            "train-head/logs/raylet.out": "",
        },
    ),
    Example(
        "a pod that is none of Ray's",
        {
            "pods.json": kubernetes.listed(
                {
                    **kubernetes.pod("postgres-0", last=_OOM, restarts=1),
                    "metadata": {"name": "postgres-0", "namespace": "ml"},
                    "spec": {"containers": [{"name": "postgres"}]},
                }
            ).replace("ray-worker", "postgres"),
            **QUIET_LOGS,
        },
    ),
    console(
        "a query prints only the last state of a container",
        'exitCode: 137\nfinishedAt: "2026-11-22T18:52:10Z"\nreason: OOMKilled\n',
        says=("A container was killed for lack of memory",),
    ),
    console(
        "a program writes about such ends",
        "reason: OOMKilled is counted\nepoch 2\n",
    ),
    Example(
        "KubeRay replaced the pod, and only its event is left",
        {"events.json": kubernetes.listed(kubernetes.event("DeletedWorkerPod", _REPLACED.format("OOMKilled"), "train", "RayCluster", type="Normal"))},
        says=("Pod train-gpu-x1 was killed for lack of memory",),
    ),
    Example(
        "KubeRay replaced a pod that was deleted: the same exit code",
        {"events.json": kubernetes.listed(kubernetes.event("DeletedWorkerPod", _REPLACED.format("Error"), "train", "RayCluster", type="Normal"))},
    ),
)  # fmt: skip
