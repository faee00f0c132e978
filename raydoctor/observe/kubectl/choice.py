"""Which RayCluster the user means, and which of a namespace's objects belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.text import join_names, plural
from raydoctor.observe.kubectl.client import Listed, advice, is_name
from raydoctor.read.kubernetes.objects import container_of_ray

KINDS = ("pods", "events", "rayclusters", "rayjobs", "rayservices")
CLUSTER_LABEL = "ray.io/cluster"
_TYPE_LABEL = "ray.io/node-type"
_PREFIX = 50
"""Characters of a cluster's name that KubeRay keeps in names of pods (`PodName`)."""
_TYPES = {"raycluster": "rayclusters", "rayjob": "rayjobs", "rayservice": "rayservices"}


class Pod(NamedTuple):
    """A pod with names that may be passed on."""

    name: str
    container: str
    """The one of Ray."""
    host: str
    """Name of its Kubernetes node; empty for none."""
    is_head: bool
    is_running: bool
    """Whether that container runs."""
    has_previous: bool
    """Whether it was started again, so that there is a previous log."""


class Chosen(NamedTuple):
    """One cluster, and what belongs to it."""

    namespace: str
    cluster: str
    """Empty if it was never made."""
    job: str
    """The RayJob that made it; empty for none."""
    objects: Mapping[str, list[dict[str, Any]]]
    """By kind."""

    @property
    def shown(self) -> str:
        """`RayCluster train in namespace ml`."""
        what = f"RayCluster {self.cluster}" if self.cluster else f"RayJob {self.job}"
        return f"{what} in namespace {self.namespace}" if self.namespace else what


def choose(listed: Mapping[str, Listed], name: str | None) -> Chosen:
    """What the user means by a name (`train`, `rayjob/train`), or the only cluster of the namespace.

    Raises RaydoctorError if that is nothing, or not clear.
    """
    items = {kind: each.items for kind, each in listed.items()}
    found = _named(items, name) if name else _only(items)
    if found is None:
        raise _not_found(listed, name)
    return _belonging(items, *found)


def _named(items: Mapping[str, list[dict[str, Any]]], name: str) -> tuple[str, str] | None:
    """The cluster and the RayJob of a name."""
    kind, slash, own = name.rpartition("/")
    only = _TYPES.get(kind.lower().partition(".")[0].removesuffix("s")) if slash else ""
    if only is None or not is_name(own):
        raise RaydoctorError(
            f"{name!r} cannot be the name of a RayCluster",
            "Give a name, or raycluster/NAME, rayjob/NAME or rayservice/NAME.",
        )
    if only in ("", "rayclusters") and own in _clusters(items):
        return own, _maker(items, own)
    if only in ("", "rayjobs"):
        for job in items["rayjobs"]:
            if _name(job) == own:
                return _of(job, "status", "rayClusterName"), own
    if only in ("", "rayservices"):
        for service in items["rayservices"]:
            if _name(service) == own:
                status = _dict(service, "status")
                for state in ("activeServiceStatus", "pendingServiceStatus"):
                    if cluster := _of(status, state, "rayClusterName"):
                        return cluster, ""
    return None


def _only(items: Mapping[str, list[dict[str, Any]]]) -> tuple[str, str] | None:
    names = _clusters(items) or [f"rayjob/{_name(job)}" for job in items["rayjobs"]]
    if len(names) > 1:
        raise RaydoctorError(
            f"the namespace has {plural(len(names), 'Ray cluster')}: {join_names(names, 20)}",
            paste.shell("Name one, for example: kubectl raydoctor diagnose {name}", name=names[0]),
        )
    return _named(items, names[0]) if names else None


def _clusters(items: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Names of clusters, including those whose RayCluster cannot be read."""
    labels = [_of(pod, "metadata", "labels", CLUSTER_LABEL) for pod in items["pods"]]
    names = [*map(_name, items["rayclusters"]), *labels]
    return sorted({name for name in names if is_name(name)})


def _maker(items: Mapping[str, list[dict[str, Any]]], cluster: str) -> str:
    """The RayJob that made a cluster."""
    jobs = (j for j in items["rayjobs"] if _of(j, "status", "rayClusterName") == cluster)
    return next((_name(job) for job in jobs if is_name(_name(job))), "")


def _not_found(listed: Mapping[str, Listed], name: str | None) -> RaydoctorError:
    problems = list(dict.fromkeys(each.problem for each in listed.values() if each.problem))
    refused = [each for each in listed.values() if each.problem and not each.is_unknown]
    if len(refused) == len(listed) or (refused and not any(e.items for e in listed.values())):
        return RaydoctorError(
            f"kubectl could not list the objects: {problems[0]}",
            advice(problems[0]),
        )
    known = _clusters({kind: each.items for kind, each in listed.items()})
    what = f"no RayCluster, RayJob or RayService {name}" if name else "no Ray cluster"
    more = f"; it has {join_names(known, 20)}" if known else ""
    return RaydoctorError(
        f"there is {what} in the namespace{more}",
        "Give its namespace with -n; kubectl get pods -A -l ray.io/cluster lists all.",
    )


def _belonging(items: Mapping[str, list[dict[str, Any]]], cluster: str, job: str) -> Chosen:
    """The objects of a cluster and its RayJob; events also of pods that are gone."""
    pods = [p for p in items["pods"] if _of(p, "metadata", "labels", CLUSTER_LABEL) == cluster]
    clusters = [each for each in items["rayclusters"] if _name(each) == cluster]
    jobs = [j for j in items["rayjobs"] if _name(j) == job and job]
    services = [s for s in items["rayservices"] if cluster and cluster in _served(s)]
    names = {name for each in (*pods, *clusters, *jobs, *services) if (name := _name(each))}
    names |= {_of(pod, "spec", "nodeName") for pod in pods} - {""}
    prefixes = tuple(f"{name[:_PREFIX]}-" for name in (cluster, job) if name)
    events = [
        event
        for event in items["events"]
        if (about := _of(event, "involvedObject", "name") or _of(event, "regarding", "name"))
        in names
        or about.startswith(prefixes)
    ]
    chosen: dict[str, list[dict[str, Any]]] = {
        "pods": pods, "events": events, "rayclusters": clusters, "rayjobs": jobs, "rayservices": services
    }  # fmt: skip
    places = (_of(each, "metadata", "namespace") for kind in chosen.values() for each in kind)
    return Chosen(next(filter(is_name, places), ""), cluster, job, chosen)


def _served(service: Mapping[str, Any]) -> set[str]:
    status = _dict(service, "status")
    states = ("activeServiceStatus", "pendingServiceStatus")
    return {_of(status, state, "rayClusterName") for state in states}


def pods_of(objects: Iterable[dict[str, Any]]) -> tuple[list[Pod], list[str]]:
    """The pods, heads first and then those with most restarts, and refused names."""
    found: list[tuple[tuple[bool, int], Pod]] = []
    refused: list[str] = []
    for each in objects:
        containers = _dicts(_dict(each, "spec").get("containers"))
        name, container = _name(each), container_of_ray(containers)
        if not is_name(name) or not is_name(container):
            refused.append(name)
            continue
        states = _dicts(_dict(each, "status").get("containerStatuses"))
        status: dict[str, Any] = next((s for s in states if s.get("name") == container), {})
        restarts = status.get("restartCount")
        restarts = restarts if isinstance(restarts, int) else 0
        host = _of(each, "spec", "nodeName")
        is_head = _of(each, "metadata", "labels", _TYPE_LABEL) == "head"
        pod = Pod(
            name,
            container,
            host if is_name(host) else "",
            is_head,
            "running" in _dict(status, "state"),
            restarts > 0,
        )
        found.append(((not is_head, -restarts), pod))
    return [pod for _, pod in sorted(found)], refused


# ---------------------------------------------------------------- values of any type


def _dict(data: object, name: str) -> dict[str, Any]:
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> Sequence[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _of(data: Mapping[str, Any], *names: str) -> str:
    """A text inside dicts; empty if it is none."""
    value: Any = data
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def _name(data: Mapping[str, Any]) -> str:
    return _of(data, "metadata", "name")
