"""Records of Kubernetes and Slurm that show a failure of what Ray runs in: pods, machines, clusters, jobs.

Rules explain some of them. The others are listed as unexplained errors, so that a report beside them never
says that all is well. What has recovered does not count: a pod that is ready now, or was started later.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import hosts, slurm_jobs
from raydoctor.cluster.pods import Pods
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event

_STARTS = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons for which a container waits if all is well."""
_ENDED = frozenset({"", "0", "137", "143"})
"""Exit codes of containers that end well, or that Kubernetes ends: deletions, scale-downs."""
_HARMLESS = frozenset(
    (
        *("DNSConfigForming", "FailedToRetrieveImagePullSecret", "PolicyViolation"),
        # Of the descheduler: the pod stays.
        "EvictionFailed",
        # At the end of a pod.
        *("FailedPreStopHook", "ExceededGracePeriod", "FailedKillPod"),
    )
)
"""Reasons of warnings about pods that run all the same."""
_STARTING_UP = 120.0
"""Seconds after the start of a container in which its probes may fail: KubeRay's allow 50 s."""
_SLOW = 600.0
"""Seconds after which an init container is listed: a large image may be pulled for minutes."""
_AGE = pattern(r"(\d{1,6})([ydhms])")
_UNITS = {"y": 365 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1}
_OUT_OF_MEMORY = frozenset({"SystemOOM", "OOMKilling"})
"""Reasons of events of the kubelet and the node problem detector: the kernel killed a process."""
_OF_RAY = pattern(r"\b(?:ray::|raylet|gcs_server|python)")
"""Processes that may be Ray's: other pods of the machine have theirs."""
_OF_HEAD = (hosts.entity("head"), Entity("gcs", "gcs"))
"""What the init container of KubeRay waits for."""
_OF_NODE = pattern(r"NotReady|Reboot|Deadlock|Interrupt|Preempt|Terminat|Shutdown|Reclaim")
"""Reasons of events about a machine after which its pods are lost, in the words of several clouds."""
CONFLICT = "the object has been modified"
"""In warnings of operators that only repeat what they tried."""
_NOT_RUNNING = frozenset({"ValidationFailed", "Suspended", "Suspending", "Retrying"})
"""`jobDeploymentStatus` of RayJobs that do not run; others are `Failed`, and longer in KubeRay 1.0."""
_OF_KUEUE = pattern(r"(?:rayjob|raycluster|rayservice)-(?P<owner>.{1,200})-[a-z0-9]{1,10}")
"""The name that Kueue gives to the workload of a job."""


_ENDED_WELL = (
    *("COMPLETED", "CANCELLED", "RUNNING", "PENDING"),
    *("COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING"),
)
"""States of Slurm's jobs that are no failure; a table may cut them off."""


class Trouble(NamedTuple):
    """A record that shows a failure."""

    event: Event
    entities: tuple[Entity, ...]
    """A diagnosis that explains one of them explains the trouble."""


@lru_cache(maxsize=1)  # two rules and the unexplained errors need the same ones
def troubles(case: Case) -> tuple[Trouble, ...]:
    """The failures of the pods of the logs, each once. Events of Kubernetes that repeat one are left out."""
    return tuple(_troubles(case))


def _troubles(case: Case) -> Iterator[Trouble]:
    if not any(event.kind.startswith("kube.") for event in case.events):
        return
    pods = Pods(case)
    shown: set[tuple[str, str]] = set()
    for event in (*_containers(case, pods), *_failed_pods(pods), *_slow_starts(case, pods)):
        shown.add((event["namespace"], event["pod"]))
        waits = _OF_HEAD if event["waits_for"] == "gcs" else ()
        yield Trouble(event, (*pods.entities(event), *waits))
    yield from _warnings(case, pods, shown)
    yield from _machines(case, pods)
    yield from _clusters(case, pods)


def failed_jobs(case: Case) -> list[Event]:
    """Jobs of Slurm, or steps of unknown jobs, that failed, and other reasons for which Slurm ended one.

    They are the consequence of any failure in a job, and troubles only if none is known.
    """
    known = slurm_jobs.accounts(case) or case.of("slurm.job")
    accounts = [e for e in known if _has_failed_word(e["state"])]
    jobs = [event for event in accounts if "." not in event["job"]]
    return [*(jobs or accounts), *(event for event in case.of("slurm.cancelled") if event["why"])]


def _has_failed_word(state: str) -> bool:
    word = state.partition(" ")[0].rstrip("+")
    return bool(word) and not any(name.startswith(word) for name in _ENDED_WELL)


# ---------------------------------------------------------------- pods


def _containers(case: Case, pods: Pods) -> Iterator[Event]:
    for event in case.of("kube.container"):
        # Without KubeRay's operator, nothing is created.
        is_operator = event["pod"].startswith("kuberay-operator") and not pods.clusters
        if not (pods.is_ours(event) or is_operator):
            continue
        if not _is_failing(event) or not pods.in_time(event):
            continue
        pod = pods.known(event["namespace"], event["pod"])
        is_running = pod is not None and pod["phase"] in ("Running", "Succeeded")
        is_deleted = pod is not None and bool(pod["deleted"])
        is_over = event["is_last"] != "true" and pods.is_over(event)
        if not is_deleted and not is_over and not (event["is_init"] and is_running):
            yield event


def _is_failing(container: Event) -> bool:
    """Whether a container waits for something else than its start, or ended by itself with an error.

    Past ends of sidecars do not count: Ray runs without them.
    """
    if container["state"] == "waiting":
        return container["reason"] not in _STARTS and container["is_last"] != "true"
    if container["state"] != "terminated" or container["reason"] == "Completed":
        return False
    if container["is_last"] == "true" and (
        container["is_of_ray"] == "false" or container["is_init"]
    ):
        return False
    by_itself = container["reason"] not in ("", "Error") or not container["exit_code"]
    return container["exit_code"] not in _ENDED or by_itself


def _slow_starts(case: Case, pods: Pods) -> Iterator[Event]:
    """Init containers that still ran long after their start, or that of their pod, when they were listed."""
    times = [event.at for event in case.events if event.kind.startswith("kube.")]
    times += [float(e["since"]) for e in case.of("kube.container") if e["since"]]
    now = max((at for at in times if at is not None), default=0.0)
    for event in case.of("kube.container"):
        if not event["is_init"] or event["state"] != "running" or not pods.is_ours(event):
            continue
        waited = now - float(event["since"]) if event["since"] else _age(event["age"])
        pod = pods.known(event["namespace"], event["pod"])
        if waited >= _SLOW and pod and pod["phase"] == "Pending" and not pod["deleted"]:
            yield event


def _age(text: str) -> float:
    """Seconds of an age as kubectl prints it: `5d3h`, `82s`."""
    return sum(float(found[1]) * _UNITS[found[2]] for found in _AGE.finditer(text))


def _failed_pods(pods: Pods) -> Iterator[Event]:
    for pod in pods.all():
        has_failed = pod["phase"] == "Failed" and bool(pod["reason"])
        if (has_failed or pod["phase"] == "Unknown") and not pod["deleted"] and pods.in_time(pod):
            yield pod


def _warnings(case: Case, pods: Pods, shown: set[tuple[str, str]]) -> Iterator[Trouble]:
    """Warnings about pods that did not recover, the last of each reason; every kill by a failed probe."""
    by_pod: dict[tuple[str, str], list[Event]] = {}
    for event in case.of("kube.event"):
        if event["about"] in ("Pod", "") and (_is_kill(event) or _is_warning(event)):
            by_pod.setdefault((event["namespace"], event["name"]), []).append(event)
    for key, events in by_pod.items():
        about = pods.pod_of(events[-1])
        if not pods.is_ours(about):
            continue
        last = {event["reason"]: event for event in events if pods.in_time(event)}
        for event in last.values():
            if _is_kill(event) or not (
                key in shown or pods.is_over(event) or _has_recovered(pods, event)
            ):
                yield Trouble(event, pods.entities(about))


def _is_kill(event: Event) -> bool:
    return event["reason"] == "Killing" and "probe" in event["message"]


def _is_warning(event: Event) -> bool:
    return event["type"] == "Warning" and event["reason"] not in _HARMLESS


def _has_recovered(pods: Pods, event: Event) -> bool:
    """Whether the pod is ready, or is being deleted, or its container started after the warning."""
    pod = pods.known(event["namespace"], event["name"])
    if pod is not None and (pod["phase"] == "Succeeded" or pod["deleted"]):
        return True
    if pod is not None and pod["ready"]:
        return pod["ready"] == "True"
    if pod is not None and pod["phase"] == "Running" and event["reason"] != "Unhealthy":
        return True
    started = [e.at for e in pods.events_of(pods.pod_of(event), "Started")]
    if event["reason"] == "Unhealthy":
        return any(at and event.at and event.at <= at + _STARTING_UP for at in started)
    if event["reason"] == "BackOff" and event.at is None:
        return False
    return any(at is None or event.at is None or at >= event.at for at in started)


# ---------------------------------------------------------------- machines and clusters


def _machines(case: Case, pods: Pods) -> Iterator[Trouble]:
    """Machines of these pods that are not ready, or that events report as lost."""
    running: dict[str, list[Event]] = {}
    for pod in pods.all():
        if pod["host"] and pod["phase"] != "Succeeded" and not pod["deleted"]:
            running.setdefault(pod["host"], []).append(pod)
    ready = {event["node"]: event["ready"] for event in case.of("kube.node")}
    found = [e for e in case.of("kube.node") if e["ready"] in ("False", "Unknown")]
    found += [
        event
        for event in case.of("kube.event")
        if event["about"] == "Node"
        and _OF_NODE.search(event["reason"])
        and ready.get(event["name"]) != "True"
        and pods.in_time(event)
    ]
    killed = [
        event
        for event in case.of("kube.event")
        if event["about"] == "Node"
        and event["reason"] in _OUT_OF_MEMORY
        and _OF_RAY.search(event["message"])
        and pods.in_time(event)
    ]
    again = {e["name"]: e.at for e in case.of("kube.event") if e["reason"] == "NodeReady"}
    for event in found:
        at = again.get(event["name"])
        here = running.get(event["node"] or event["name"], [])
        if here and not (at is not None and event.at is not None and at >= event.at):
            yield Trouble(event, tuple(x for pod in here for x in pods.entities(pod)))
    for event in killed:
        if here := running.get(event["name"], []):
            yield Trouble(event, tuple(x for pod in here for x in pods.entities(pod)))


def _clusters(case: Case, pods: Pods) -> Iterator[Trouble]:
    """RayClusters, RayJobs, RayServices and workloads of Kueue that failed, and warnings about them."""
    has_failed: dict[tuple[str, str], bool] = {}
    found: list[Event] = []
    for event in case.of("kube.cluster", "kube.job", "kube.service", "kube.workload"):
        kind, _, owner = event["owner"].partition("/")
        if event.kind == "kube.workload" and not kind.startswith("Ray"):
            continue
        failed = has_failed[event["namespace"], event["name"]] = _has_failed(event)
        named = event["cluster"] or (owner if event.kind == "kube.workload" else event["name"])
        if failed and pods.is_of_ours(named, event["namespace"]):
            found.append(event)
    made = {
        (event["namespace"], event["name"]): event.at or 0.0
        for event in case.of("kube.event")
        if event["reason"] in ("CreatedHeadPod", "CreatedWorkerPod")
    }
    last: dict[tuple[str, str, str], Event] = {}
    for event in filter(_is_about_cluster, case.of("kube.event")):
        key = (event["namespace"], event["name"])
        is_new = key not in made or event.at is None or event.at > made[key]
        if (
            is_new
            and has_failed.get(key, True)
            and pods.is_of_ours(_owner(event), event["namespace"])
        ):
            last[key[0], key[1], event["reason"]] = event
    for event in (*found, *last.values()):
        if pods.in_time(event):
            yield Trouble(event, _entities(event))


def _is_about_cluster(event: Event) -> bool:
    """Whether an operator reports a failure of a cluster, job or service of Ray."""
    if event["about"] == "Workload":
        is_stopped = event["reason"].startswith(("Preempted", "Evicted"))
        return is_stopped and _OF_KUEUE.fullmatch(event["name"]) is not None
    return (
        event["about"] in ("RayCluster", "RayJob", "RayService")
        and (event["type"] == "Warning" or event["reason"] == "Stopped")
        and CONFLICT not in event["message"]
    )


def _owner(event: Event) -> str:
    """The cluster, job or service of Ray that an event is about."""
    found = _OF_KUEUE.fullmatch(event["name"]) if event["about"] == "Workload" else None
    return found["owner"] if found else event["name"]


def _has_failed(event: Event) -> bool:
    if event.kind == "kube.job":
        status = event["deployment_status"]
        has_failed = status.startswith("Failed") or status in _NOT_RUNNING
        return has_failed or event["job_status"] == "FAILED"
    if event.kind == "kube.service":
        return event["state"].startswith("Failed") or bool(event["unhealthy"] or event["condition"])
    return bool(event["condition"]) or event["state"] in ("failed", "unhealthy")


def _entities(event: Event) -> tuple[Entity, ...]:
    names = dict.fromkeys(name for name in (event["submission"], event["name"]) if name)
    return (
        *(Entity("submission", name) for name in names),
        hosts.entity(f"restart of {event['name']}"),
    )
