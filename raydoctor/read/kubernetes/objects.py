"""One object of Kubernetes -> its facts: the kind of an event, its fields, its time, the text that shows it.

Fields are text, as everywhere in events. Of a pod's specification only names, images and amounts are taken:
its environment may hold secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from raydoctor.model.patterns import pattern
from raydoctor.read.clock import instant

_LONGEST = 4000
"""Characters of a message that are kept."""
_MOST_CONTAINERS = 50


class Fact(NamedTuple):
    """One fact about an object."""

    kind: str
    fields: dict[str, str]
    at: float | None = None
    """Epoch seconds."""
    shows: str = ""
    """Text in the object that shows it, to find its line."""


def facts(data: dict[str, Any]) -> Iterator[Fact]:
    """The facts of one object."""
    kind = _text(data.get("kind")) or ("Pod" if _is_status_of_pod(data) else "")
    if kind in _READERS:
        yield from _READERS[kind](data)
    for event in _dicts(data.get("events")):
        yield from _event(event)


def _is_status_of_pod(data: dict[str, Any]) -> bool:
    """Whether an object without a kind is the status of a pod, which a person cut out of it."""
    conditions = _dicts(_dict(data, "status").get("conditions"))
    return any(_text(each.get("type")) == "PodScheduled" for each in conditions)


# ---------------------------------------------------------------- pods


def _pod(data: dict[str, Any]) -> Iterator[Fact]:
    spec, status = _dict(data, "spec"), _dict(data, "status")
    conditions = {_text(c.get("type")): c for c in _dicts(status.get("conditions"))}
    disruption = conditions.get("DisruptionTarget", {})
    disruption = disruption if _text(disruption.get("status")) == "True" else {}
    scheduled = conditions.get("PodScheduled", {})
    waits = scheduled if _text(scheduled.get("status")) == "False" else {}
    identity = _identity(data, spec, status)
    fields = {
        **identity,
        "phase": _text(status.get("phase")),
        "reason": _text(status.get("reason")),
        "message": _message(status.get("message")),
        "disruption": _text(disruption.get("reason")),
        "disruption_message": _message(disruption.get("message")),
        "unschedulable": _text(waits.get("reason")),
        "unschedulable_message": _message(waits.get("message")),
        "ready": _text(conditions.get("Ready", {}).get("status")),
        "deleted": _text(_dict(data, "metadata").get("deletionTimestamp")),
        "grace": _text(spec.get("terminationGracePeriodSeconds")),
    }
    moment = instant(_text(disruption.get("lastTransitionTime") or waits.get("lastTransitionTime")))
    if moment is None and fields["phase"] == "Failed":
        # Kubernetes before 1.26 records no condition for an eviction.
        moment = _last_end(status)
    reason = fields["disruption"] or fields["reason"] or fields["unschedulable"]
    yield Fact("kube.pod", fields, moment, reason)
    containers, first = _dicts(spec.get("containers")), _dicts(spec.get("initContainers"))
    specified = {_text(c.get("name")): c for c in (*first, *containers)}
    of_ray = container_of_ray(containers)
    statuses = [(False, each) for each in _dicts(status.get("containerStatuses"))]
    # Nearly all init containers are done.
    statuses += [
        (True, each)
        for each in _dicts(status.get("initContainerStatuses"))
        if _text(_dict(_dict(each, "state"), "terminated").get("reason")) != "Completed"
    ]
    for is_first, container in statuses[:_MOST_CONTAINERS]:
        name = _text(container.get("name"))
        made = specified.get(name, {})
        is_sidecar = _text(made.get("restartPolicy")) == "Always"
        is_init = is_first and not is_sidecar
        own = {
            **identity,
            "container": name,
            "is_of_ray": "true" if of_ray in ("", name) and not is_first else "false",
            "is_init": "true" if is_init else "",
            "restarts": _text(container.get("restartCount")),
            **_amounts(*(_dict(each, "resources") for each in (container, made, spec))),
            "image": _text(made.get("image")) or _text(container.get("image")),
        }
        yield from _container(container, own)


def _last_end(status: dict[str, Any]) -> float | None:
    """When the last container of a pod ended."""
    states = (_dict(each, "state") for each in _dicts(status.get("containerStatuses")))
    ends = (instant(_text(_dict(state, "terminated").get("finishedAt"))) for state in states)
    return max((end for end in ends if end), default=None)


def container_of_ray(containers: Sequence[Mapping[str, Any]]) -> str:
    """The name of the container in which KubeRay starts Ray: others are sidecars. Empty if there are none.

    It is the first one of the pod's template, but webhooks may insert theirs before it.
    """
    own = [_text(c.get("name")) for c in containers if _STARTS in map(_name, _dicts(c.get("env")))]
    names = [_text(c.get("name")) for c in containers]
    own += [name for name in names if name.startswith("ray-")]
    own += [name for name in names if name not in _INSERTED]
    return next(iter([*own, *names]), "")


_WAITS_FOR_GCS = "wait-gcs-ready"
"""The init container that KubeRay adds to each worker pod."""
_STARTS = "KUBERAY_GEN_RAY_START_CMD"
"""A variable that KubeRay sets in this container."""
_INSERTED = frozenset(
    {
        "istio-proxy",
        "linkerd-proxy",
        "kuma-sidecar",
        "consul-dataplane",
        "envoy",
        "gke-gcsfuse-sidecar",
        "vault-agent",
    }
)
"""Containers of service meshes and volumes that start before all others."""


def _name(value: Mapping[str, Any]) -> str:
    return _text(value.get("name"))


def _identity(data: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> dict[str, str]:
    metadata = _dict(data, "metadata")
    labels = _dict(metadata, "labels")
    owners = _dicts(metadata.get("ownerReferences"))
    return {
        "pod": _text(metadata.get("name")),
        "namespace": _text(metadata.get("namespace")),
        "uid": _text(metadata.get("uid")),
        "ip": _text(status.get("podIP")),
        "is_on_host": "true" if spec.get("hostNetwork") is True or _is_on_host(status) else "",
        "host": _text(spec.get("nodeName")),
        "cluster": _text(labels.get("ray.io/cluster")),
        "node_type": _text(labels.get("ray.io/node-type")),
        "group": _text(labels.get("ray.io/group")),
        "owner": next((_text(owner.get("name")) for owner in owners), ""),
        **_capacity(spec),
        "started": _text(status.get("startTime")) or _text(metadata.get("creationTimestamp")),
    }


def _is_on_host(status: dict[str, Any]) -> bool:
    """Whether a pod has the address of its machine, as other pods there may have."""
    return bool(_text(status.get("podIP"))) and _text(status.get("podIP")) == _text(
        status.get("hostIP")
    )


def _capacity(spec: dict[str, Any]) -> dict[str, str]:
    """The CPUs and devices (GPUs and others) of the node that Ray starts there, as far as they are known."""
    containers = _dicts(spec.get("containers"))
    of_ray = container_of_ray(containers)
    own = next((c for c in containers if _text(c.get("name")) == of_ray), None)
    if own is None or spec.get("resourceClaims"):
        return {}
    parts = _dict(own, "resources")
    amounts = {**_dict(parts, "requests"), **_dict(parts, "limits")}
    counts = [_count(amount, "") for name, amount in amounts.items() if "/" in name]
    found = {"cpus": _text(amounts.get("cpu"))}
    if all(counts):
        found["devices"] = str(sum(map(int, counts)))
    options = (option for text in _commands(own) for option in _OPTION.finditer(text))
    for option in options:
        name = "cpus" if option["what"] == "cpus" else "devices"
        found[name] = option["amount"] or ""
    return found


_OPTION = pattern(r"--num-(?P<what>cpus|gpus)[= ](?P<amount>\d{1,6})?")
"""In the command with which Ray starts there."""


def _commands(container: dict[str, Any]) -> Iterator[str]:
    for part in (container.get("command"), container.get("args")):
        yield from map(_text, part if isinstance(part, list) else [])
    yield from (_text(each.get("value")) for each in _dicts(container.get("env")))


def _amounts(*places: dict[str, Any]) -> dict[str, str]:
    """Of a container: what its status shows, which a resize can change later, its own part, or the pod's."""

    def first(kind: str, name: str) -> str:
        return next((text for each in places if (text := _text(_dict(each, kind).get(name)))), "")

    return {
        "memory_limit": first("limits", "memory"),
        "memory_request": first("requests", "memory"),
        "storage_limit": first("limits", "ephemeral-storage"),
    }


def _container(container: dict[str, Any], own: dict[str, str]) -> Iterator[Fact]:
    for name in ("lastState", "state"):
        for word, state in _dict(container, name).items():
            if word not in ("terminated", "waiting", "running") or not isinstance(state, dict):
                continue
            fields = {
                **own,
                "state": word,
                "is_last": "true" if name == "lastState" else "false",
                "reason": _text(state.get("reason")),
                "message": _message(state.get("message")),
                "exit_code": _text(state.get("exitCode")),
                "signal": _text(state.get("signal")),
                "began": _text(state.get("startedAt")),
                "age": _text(state.get("age")),
            }
            ended = _text(state.get("finishedAt"))
            since, until = instant(fields["began"]), instant(ended)
            if word == "running" and since is not None:
                fields["since"] = f"{since}"
            if since is not None and until is not None:
                fields["lasted"] = f"{until - since:.0f}"
            if word == "running" and own["container"] == _WAITS_FOR_GCS:
                fields["waits_for"] = "gcs"
                fields["message"] = "waits until the GCS of the head answers"
            yield Fact("kube.container", fields, until, ended or fields["reason"])


# ---------------------------------------------------------------- the rest


PROGRESS = frozenset({"Scheduled", "Started", "Pulled"})
"""Reasons of normal events that only show that a pod recovered from what another event reports."""
USED = PROGRESS.union(
    (
        *("Killing", "Preempted", "TaintManagerEviction"),
        *("CreatedHeadPod", "DeletedHeadPod", "CreatedWorkerPod", "NodeNotReady", "NodeReady"),
        # Of KubeRay as well, the last one up to 1.1: it replaces a pod that has ended.
        *("DeletedWorkerPod", "Deleted"),
        # Of Karpenter and the Cluster Autoscaler. The kubelet's own `Evicted` is a warning.
        *("Evicted", "ScaleDown", "Nominated"),
        # Of KubeRay: its request to the dashboard failed.
        *("WaitForServeDeploymentReady", "WaitForDashboard"),
        # Of Kueue: it stopped a workload.
        *(
            "Stopped",
            "EvictedDueToNodeFailures",
            "EvictedDueToPreempted",
            "EvictedDueToPodsReadyTimeout",
        ),
        *(
            "EvictedDueToAdmissionCheck",
            "EvictedDueToClusterQueueStopped",
            "EvictedDueToDeactivated",
        ),
    )
)
"""Reasons of normal events that are used: most events of a large cluster say that all is well."""
DESCHEDULED = "node by sigs.k8s.io/descheduler"
"""In normal events of the descheduler, whose reasons are the names of its plugins."""


def _event(data: dict[str, Any]) -> Iterator[Fact]:
    message = _message(data.get("message") or data.get("note"))
    reason = _text(data.get("reason"))
    is_descheduled = data.get("type") == "Normal" and DESCHEDULED in message
    if data.get("type") == "Normal" and reason not in USED and not is_descheduled:
        return
    about = _dict(data, "involvedObject") or _dict(data, "regarding")
    series = _dict(data, "series")
    last = (
        series.get("lastObservedTime") or data.get("lastTimestamp") or data.get("eventTime")
        or data.get("deprecatedLastTimestamp") or data.get("firstTimestamp")
    )  # fmt: skip
    fields = {
        "reason": "Descheduled" if is_descheduled else reason,
        "message": message,
        "type": _text(data.get("type")),
        "about": _text(about.get("kind")),
        "name": _text(about.get("name")),
        "namespace": _text(about.get("namespace")),
        "uid": _text(about.get("uid")),
        "count": _count(series.get("count") or data.get("count")),
        "first": _text(data.get("firstTimestamp")),
    }
    yield Fact("kube.event", fields, instant(_text(last)), reason)
    yield from _end_of_replaced(message, fields)


_REPLACED = pattern(
    r"Deleted (?P<node_type>head|worker) Pod (?:(?P<namespace>[\w-]{1,63})/)?(?P<pod>[\w.-]{1,253}); "
    r".{0,300}?"
    r"&ContainerStateTerminated\{ExitCode:(?P<exit_code>\d{1,3}),Signal:\d{1,3},Reason:(?P<reason>OOMKilled),"
    r"(?:.{0,2000}?FinishedAt:(?P<day>\d{4}-\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d) \+0000 UTC)?"
)
"""What KubeRay (`raycluster_controller.go`, 1.0 to 1.5) reports of a pod that it replaces."""


def _end_of_replaced(message: str, event: dict[str, str]) -> Iterator[Fact]:
    """How the container of a pod ended that KubeRay replaced."""
    found = _REPLACED.search(message) if event["about"] == "RayCluster" else None
    if found:
        own = {name: text or "" for name, text in found.groupdict().items()}
        at = f"{own.pop('day')}T{own.pop('time')}Z"
        own["namespace"] = own["namespace"] or event["namespace"]
        own |= {
            "cluster": event["name"],
            "state": "terminated",
            "is_last": "false",
            "is_of_ray": "true",
        }
        yield Fact(
            "kube.container", {**dict.fromkeys(_CONTAINER, ""), **own}, instant(at), own["reason"]
        )


_CONTAINER = ("container", "restarts", "is_init", "began", "message")


def _node(data: dict[str, Any]) -> Iterator[Fact]:
    conditions = _dicts(_dict(data, "status").get("conditions"))
    true = [_text(c.get("type")) for c in conditions if _text(c.get("status")) == "True"]
    ready = next((c for c in conditions if c.get("type") == "Ready"), {})
    taints = [_text(t.get("key")) for t in _dicts(_dict(data, "spec").get("taints"))]
    fields = {
        "node": _text(_dict(data, "metadata").get("name")),
        "ready": _text(ready.get("status")),
        "reason": _text(ready.get("reason")),
        "message": _message(ready.get("message")),
        "pressures": ",".join(name for name in true if name.endswith("Pressure")),
        "taints": ",".join(taints),
        "memory": _text(_dict(_dict(data, "status"), "allocatable").get("memory")),
    }
    yield Fact("kube.node", fields, instant(_text(ready.get("lastTransitionTime"))), fields["node"])


def _resource(kind: str, data: dict[str, Any]) -> Iterator[Fact]:
    metadata, spec, status = _dict(data, "metadata"), _dict(data, "spec"), _dict(data, "status")
    conditions = _dicts(status.get("conditions"))
    failed = sorted(
        filter(_is_failing, conditions), key=lambda c: _text(c.get("type")) not in _TELLING
    )
    unhealthy = list(_unhealthy(status))
    owner = next(iter(_dicts(metadata.get("ownerReferences"))), {})
    started = status.get("startTime") or metadata.get("creationTimestamp")
    fields = {
        "name": _text(metadata.get("name")),
        "namespace": _text(metadata.get("namespace")),
        "cluster": _text(status.get("rayClusterName")),
        "state": _text(status.get("state") or status.get("serviceStatus")),
        "reason": _text(status.get("reason")) or _text((failed or [{}])[0].get("reason")),
        "message": _message(status.get("message") or (failed or [{}])[0].get("message")),
        "condition": _text((failed or [{}])[0].get("type")),
        "unhealthy": _message("; ".join(unhealthy)),
        "owner": f"{_text(owner.get('kind'))}/{_text(owner.get('name'))}" if owner else "",
        "last_words": _last_line(status.get("message")),
        "job_status": _text(status.get("jobStatus")),
        "deployment_status": _text(status.get("jobDeploymentStatus")),
        "mode": _text(spec.get("submissionMode")),
        "deadline": _text(spec.get("activeDeadlineSeconds")),
        "waiting_deadline": _text(spec.get("preRunningDeadlineSeconds")),
        "submission": _text(status.get("jobId")),
        "started": _text(started),
        "fault_tolerant": str("gcsFaultToleranceOptions" in spec).lower(),
    }
    ended = _text(status.get("endTime")) or _text((failed or [{}])[0].get("lastTransitionTime"))
    shows = fields["reason"] or fields["deployment_status"] or fields["state"]
    yield Fact(kind, fields, instant(ended), shows)


_FAILING = {
    "ReplicaFailure": "True", "RayClusterReplicaFailure": "True", "HeadPodReady": "False",
    "RayClusterSuspended": "True", "Evicted": "True", "QuotaReserved": "False",
}  # fmt: skip
"""Conditions of RayClusters (KubeRay 1.3 and later) and of Kueue's workloads: the status of a failure."""
_TELLING = frozenset({"ReplicaFailure", "RayClusterReplicaFailure"})
"""Of several, those that say why."""
_FAILED_FOR = frozenset({"InitializingTimeout", "ValidationFailed"})
"""Reasons of a RayService's condition `Ready` that no waiting changes (KubeRay 1.5 and later)."""


def _is_failing(condition: dict[str, Any]) -> bool:
    kind, status = _text(condition.get("type")), _text(condition.get("status"))
    is_final = kind == "Ready" and _text(condition.get("reason")) in _FAILED_FOR
    return _FAILING.get(kind) == status or (is_final and status == "False")


def _unhealthy(status: dict[str, Any]) -> Iterator[str]:
    """`application llm: DEPLOY_FAILED …` of the Serve applications of a RayService that failed."""
    for cluster in ("activeServiceStatus", "pendingServiceStatus"):
        for name, each in _dict(_dict(status, cluster), "applicationStatuses").items():
            parts = _dict(each, "serveDeploymentStatuses")
            named = {f"application {name}": each} | {
                f"deployment {part} of application {name}": found for part, found in parts.items()
            }
            for what, found in named.items():
                word = _text(found.get("status")) if isinstance(found, dict) else ""
                if word in ("DEPLOY_FAILED", "UNHEALTHY"):
                    yield f"{what}: {word} {_text(found.get('message'))}"


_READERS: dict[str, Callable[[dict[str, Any]], Iterator[Fact]]] = {
    "Pod": _pod,
    "Event": _event,
    "Node": _node,
    "RayCluster": lambda data: _resource("kube.cluster", data),
    "RayJob": lambda data: _resource("kube.job", data),
    "RayService": lambda data: _resource("kube.service", data),
    "Workload": lambda data: _resource("kube.workload", data),
}


# ---------------------------------------------------------------- values of any type


def _dict(data: dict[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    """A text or number as text; empty for anything else."""
    if isinstance(value, str):
        text = value[:_LONGEST]
        return text if text.isascii() else text.encode("utf-8", "replace").decode()
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _count(value: object, otherwise: str = "1") -> str:
    """A whole number of a file that may be damaged, such as how often an event happened."""
    text = _text(value)
    return text if text.isascii() and text.isdecimal() and len(text) < 10 else otherwise


def _last_line(value: object) -> str:
    lines = value.rstrip().splitlines() if isinstance(value, str) else []
    return _text(lines[-1].strip()) if lines[1:] else ""


def _message(value: object) -> str:
    return " ".join(_text(value).split())
