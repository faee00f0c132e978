"""What the rules about pods share: names, amounts, the manifest's place of a pod, and objects for examples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raydoctor.cluster.pods import is_head
from raydoctor.model.text import join_names, plural
from raydoctor.model.values import Event, Remedy, Subject

CONFIG_DOC = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html"
FAULT_TOLERANCE_DOC = (
    "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/kuberay-gcs-ft.html"
)


SUBMITTER = "ray-job-submitter"
"""The container of the pod with which KubeRay submits a RayJob."""


def named(pods: Sequence[Event]) -> str:
    """`pod train-head (the head)`, `3 pods of group cpu (a, b, c)`."""
    names = list(dict.fromkeys(pod["pod"] for pod in pods))
    if names == [""]:
        return "a pod"
    if len(names) == 1:
        return f"pod {names[0]}{' (the head)' if is_head(pods[0]) else ''}"
    groups = {pod["group"] for pod in pods}
    group = f" of group {pods[0]['group']}" if len(groups) == 1 and pods[0]["group"] else ""
    return f"{plural(len(names), 'pod')}{group} ({join_names(names)})"


def capital(text: str) -> str:
    """The text as the start of a sentence."""
    return text[:1].upper() + text[1:]


def place(pod: Event) -> str:
    """Where the manifest of a RayCluster, or of a RayJob its submitter, specifies a pod."""
    if pod["container"] == SUBMITTER:
        return "submitterPodTemplate.spec of the RayJob"
    if is_head(pod):
        return "headGroupSpec.template.spec"
    group = f" {pod['group']}" if pod["group"] else ""
    return (
        f"workerGroupSpecs, group{group}: template.spec"
        if group
        else "workerGroupSpecs: template.spec"
    )


def key(pod: Event) -> tuple[str, str, str]:
    """Pods that the manifest specifies together have equal keys."""
    return (
        pod["namespace"],
        pod["cluster"],
        pod["group"] or ("head" if is_head(pod) else "worker"),
    )


def subjects(pods: Iterable[Event]) -> tuple[Subject, ...]:
    """The pods, for reports."""
    names = dict.fromkeys((pod["pod"], pod["ip"] or None) for pod in pods)
    return tuple(Subject("pod", None, name, None, ip) for name, ip in list(names)[:10])


def namespace(pod: Event) -> str:
    """The value for `-n`; `default` where a file names none."""
    return pod["namespace"] or "default"


def survive() -> Remedy:
    """Options with which work survives the loss of a pod."""
    return Remedy(
        "Make Ray repeat the work that is lost with a pod",
        (
            "@ray.remote(max_retries=3)   # tasks that may run twice",
            "@ray.remote(max_restarts=3, max_task_retries=3)   # actors whose methods may run twice",
        ),
        doc="https://docs.ray.io/en/latest/ray-core/fault-tolerance.html",
    )


# ------------------------------------------------------------------ objects for examples


def listed(*objects: Mapping[str, Any]) -> str:
    """What `kubectl get … -o json` prints of these objects."""
    return json.dumps({"apiVersion": "v1", "items": objects, "kind": "List"}, indent=4) + "\n"


def pod(  # noqa: PLR0913 - a pod has many parts
    name: str,
    *,
    kind: str = "worker",
    ip: str = "10.244.1.7",
    memory: str = "4Gi",
    phase: str = "Running",
    state: Mapping[str, Any] | None = None,
    last: Mapping[str, Any] | None = None,
    restarts: int = 0,
    conditions: Sequence[Mapping[str, Any]] = (),
    cluster: str = "train",
    **status: Any,
) -> dict[str, Any]:
    """A pod of KubeRay as the API shows it."""
    group = "headgroup" if kind == "head" else "gpu"
    labels = {"ray.io/cluster": cluster, "ray.io/node-type": kind, "ray.io/group": group}
    container = {
        "name": f"ray-{kind}", "restartCount": restarts, "state": state or {"running": {"startedAt": "2026-11-22T18:40:02Z"}},
        "lastState": last or {},
    }  # fmt: skip
    resources = {"limits": {"memory": memory}, "requests": {"memory": memory}} if memory else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "labels": labels},
        "spec": {"nodeName": "node-a", "containers": [{"name": f"ray-{kind}", "resources": resources}]},
        "status": {
            "phase": phase, "podIP": ip, "startTime": "2026-11-22T18:40:00Z", "conditions": list(conditions),
            "containerStatuses": [container], **status,
        },
    }  # fmt: skip


def terminated(reason: str, code: int, at: str = "2026-11-22T18:52:10Z") -> dict[str, Any]:
    """The state of a container that ended."""
    return {
        "terminated": {
            "reason": reason, "exitCode": code, "startedAt": "2026-11-22T18:40:02Z", "finishedAt": at
        }
    }  # fmt: skip


def event(reason: str, message: str, name: str, about: str = "Pod", **more: Any) -> dict[str, Any]:
    """An event as the API shows it."""
    return {
        "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message,
        "involvedObject": {"kind": about, "name": name, "namespace": "ml"},
        "lastTimestamp": "2026-11-22T18:52:10Z", "count": 1, **more,
    }  # fmt: skip
