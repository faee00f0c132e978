"""Pods of Ray as Kubernetes records them, joined with the nodes of Ray's own logs.

A pod is one of Ray's by KubeRay's labels, by the name of its first container, or because a raylet's log names
its host name or address. Of the pods of several clusters only those of the cluster of the logs count.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.case.signals import NODE_REGISTERED, RAYLET_STARTED
from raydoctor.cluster import hosts
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event

_RAY_NAME = pattern(r"-(?:head|worker|workergroup|headgroup)(?:-|$)|(?:^|-)ray(?:-|$)")
_HEAD_NAME = pattern(r"-head(?:-|$)")
_SUFFIXES = {
    "": 1, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}  # fmt: skip
_QUANTITY = pattern(r"(\d{1,15}(?:\.\d{1,9})?(?:[eE]\d{1,2})?)([mkKMGTP]?i?)")
_MADE = pattern(r"-(?:raycluster-)?[bcdfghjklmnpqrstvwxz2456789]{5}")
"""What KubeRay appends to the name of a RayJob or RayService for that of its RayCluster."""
_CUT = 50
"""Characters that KubeRay 1.0 kept of the name of a group or cluster."""
_AROUND = 60.0
"""Seconds by which Kubernetes may record an end before or after Ray's last record of it, clocks included."""
_ROUNDED = 2.0
"""Seconds by which a raylet may seem to start after its container's end: the kubelet writes whole seconds.

The raylet of the next container starts later.
"""
_NOTICED = 600.0
"""Seconds after the last record of the logs in which an end can still belong to them."""


SIGNALS = (RAYLET_STARTED, *NODE_REGISTERED)
"""What joins pods with the nodes of Ray's logs."""


def quantity(text: str) -> float | None:
    """A quantity of Kubernetes (`4Gi`, `500m`, `2e9`) in bytes or units; None for other text."""
    found = _QUANTITY.fullmatch(text)
    if not found or found[2] not in _SUFFIXES:
        return None
    return float(found[1]) * _SUFFIXES[found[2]]


class RayNode(NamedTuple):
    """A node of Ray in the logs."""

    id: str
    ip: str
    hostname: str
    label: str
    """Of the folder of its logs."""
    started: float | None

    @property
    def names(self) -> tuple[str, str]:
        """Names that may be that of its pod."""
        return self.hostname, self.label.rpartition("/")[2]


def _likeness(pod: Event, node: RayNode) -> int:
    """How surely a node ran in a pod: pods of other namespaces may have its name, ended pods its address."""
    is_named, is_at = pod["pod"] in node.names, pod["ip"] == node.ip
    return 2 * (is_named and bool(pod["pod"])) + (is_at and bool(pod["ip"]))


def is_head(event: Event) -> bool:
    """Whether a pod is the head of its cluster."""
    if event["node_type"]:
        return event["node_type"] == "head"
    return event["container"] == "ray-head" or bool(_HEAD_NAME.search(event["pod"]))


class Pods:
    """The pods of a capture that may be those of its logs."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._nodes: dict[str, list[RayNode]] = {}
        """By host name, folder and address."""
        for node in _nodes(case):
            for name in {node.ip, *node.names} - {""}:
                self._nodes.setdefault(name, []).append(node)
        self._best: dict[str, tuple[int, str, str]] = {}
        """The likeness, namespace and name of the pod that fits best, by the id of a node."""
        for event in case.of("kube.pod"):
            for node in self._alike(event):
                fit = (_likeness(event, node), event["namespace"], event["pod"])
                self._best[node.id] = max(self._best.get(node.id, fit), fit)
        own = [e for e in case.of("kube.pod", "kube.container") if self.node(e)]
        self.clusters = frozenset(name for e in own if (name := e["cluster"] or _cluster(e["pod"])))
        """The RayClusters of the logs, as far as pods show them."""
        listed = case.of("kube.pod", "kube.container")
        self._listed = frozenset(e["cluster"] or _cluster(e["pod"]) for e in listed) - {""}
        """All RayClusters of the capture, as far as pods show them."""
        self._namespaces = frozenset(e["namespace"] for e in own)
        self._is_joined = bool(own)
        self._span = _span(case)

    def all(self) -> list[Event]:
        """The pods (`kube.pod`)."""
        return [event for event in self._case.of("kube.pod") if self.is_ours(event)]

    def ends(self) -> list[Event]:
        """The ended containers of Ray in these pods, each end once."""
        found: dict[tuple[str, str, str, str], Event] = {}
        for event in self._case.of("kube.container"):
            if event["state"] != "terminated" or event["is_of_ray"] == "false":
                continue
            if self.is_ours(event) and self.in_time(event):
                at = "" if event.at is None else f"{event.at:.0f}"
                key = (event["namespace"], event["pod"], at, event["container"])
                found.setdefault(key, event)
        # KubeRay's event about an end does not name the container.
        named = {key[:3] for key in found if key[3]}
        return [event for key, event in found.items() if key[3] or key[:3] not in named]

    def waiting(self) -> list[Event]:
        """The containers of these pods that wait to start."""
        waiting = [e for e in self._case.of("kube.container") if e["state"] == "waiting"]
        return [event for event in waiting if self.is_ours(event)]

    def known(self, namespace: str, name: str) -> Event | None:
        """The pod (`kube.pod`) of this name."""
        return self._known.get((namespace, name)) or self._known.get(("", name))

    def events_of(self, pod: Event, *reasons: str) -> list[Event]:
        """Events of Kubernetes about a pod with these reasons."""
        return [event for event in self._events.get(pod["pod"], ()) if event["reason"] in reasons
                and event["namespace"] in ("", pod["namespace"])
                and (not event["uid"] or not pod["uid"] or event["uid"] == pod["uid"])]  # fmt: skip

    def events(self, *reasons: str) -> list[Event]:
        """Events of Kubernetes with these reasons about pods that may be those of the logs."""
        return [
            event
            for event in self._case.of("kube.event")
            if event["reason"] in reasons
            and event["about"] in ("Pod", "")
            and self.is_ours(self.pod_of(event))
            and self.in_time(event)
        ]

    def lone(self, listed: list[Event], *reasons: str) -> list[Event]:
        """Events with these reasons about other pods than the listed ones, as facts about those pods."""
        known = {(pod["namespace"], pod["pod"]) for pod in listed}
        found = [e for e in self.events(*reasons) if (e["namespace"], e["name"]) not in known]
        return [self.pod_of(event) for event in found]

    def pod_of(self, event: Event) -> Event:
        """An event about a pod with the pod's own facts: those of the capture, or what its name says."""
        pod = self.known(event["namespace"], event["name"])
        facts = dict(pod.fields) if pod else {"pod": event["name"]}
        if pod and event["uid"] and pod["uid"] and event["uid"] != pod["uid"]:
            # An earlier pod of this name, which was of the same kind.
            kept = ("pod", "namespace", "cluster", "node_type", "group")
            facts = {name: facts[name] for name in kept if name in facts}
        return replace(event, fields={**facts, **event.fields})

    @cached_property
    def _known(self) -> dict[tuple[str, str], Event]:
        return {(event["namespace"], event["pod"]): event for event in self._case.of("kube.pod")}

    @cached_property
    def _events(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for event in self._case.of("kube.event"):
            found.setdefault(event["name"], []).append(event)
        return found

    def node(self, pod: Event) -> RayNode | None:
        """The Ray node that ran in a pod at the time of the event: the last one that had started by then."""
        found = self._in(pod)
        if pod.at is not None:
            latest = pod.at + (_ROUNDED if pod.kind == "kube.container" else _AROUND)
            found = [n for n in found if n.started is None or n.started <= latest]
        return max(found, key=lambda node: node.started or 0.0, default=None)

    def _in(self, pod: Event) -> list[RayNode]:
        """The Ray nodes that ran in a pod, one after the other, and that fit no other pod better."""
        own = (pod["namespace"], pod["pod"])
        return [
            node
            for node in self._alike(pod)
            if (best := self._best.get(node.id)) is None
            or own == best[1:]
            or _likeness(pod, node) >= best[0]
        ]

    def _alike(self, pod: Event) -> list[RayNode]:
        # The address of a machine is that of all pods on its network: one of them may be Ray's.
        is_other = pod["is_on_host"] and not _is_rays(pod)
        names = ("" if is_other else pod["ip"], pod["pod"])
        return [node for name in names if name for node in self._nodes.get(name, ())]

    def _precedes(self, pod: Event) -> bool:
        """Whether the event happened before any node of the logs started: it ended an earlier session."""
        if pod.at is None or not self._nodes:
            return False
        all_nodes = (node for nodes in self._nodes.values() for node in nodes)
        return all(n.started is not None and n.started > pod.at + _ROUNDED for n in all_nodes)

    def in_time(self, event: Event) -> bool:
        """Whether an event can belong to the time of the logs; without times or logs it can."""
        if self._span is None or event.at is None:
            return True
        return self._span[0] - _AROUND <= event.at <= self._span[1] + _NOTICED

    def is_over(self, event: Event) -> bool:
        """Whether Ray was stopped before: in this pod, or in all pods if Ray did not run in it."""
        if event.at is None:
            return False
        node = self.node(event)
        ids = [node.id] if node else [each.id for found in self._nodes.values() for each in found]
        return bool(ids) and event.at + event.slack >= max(map(self._case.stopped_at, ids))

    def entities(self, pod: Event) -> tuple[Entity, ...]:
        """What a pod's end explains: the pod, the Ray node in it, and the head where it was the head."""
        node = self.node(pod)
        values = [f"{pod['namespace']}/{pod['pod']}"]
        # A container that ended before the node started is not the cause of the node's failure.
        values += [node.id, node.ip] if node else [] if self._in(pod) else [pod["ip"]]
        values += ["head"] if is_head(pod) and not self._precedes(pod) else []
        return tuple(dict.fromkeys(hosts.entity(value) for value in values if value))

    def is_of_ours(self, cluster: str, namespace: str) -> bool:
        """Whether a RayCluster, or a RayJob or RayService whose cluster has its name, is that of the logs."""
        return not self._is_joined or (
            self._is_in_ours(namespace)
            and any(_is_made_for(name, cluster) for name in self.clusters)
        )

    def _is_in_ours(self, namespace: str) -> bool:
        """Whether pods of the logs are, or may be, in this namespace."""
        return not namespace or not self._namespaces or bool({"", namespace} & self._namespaces)

    def is_ours(self, event: Event) -> bool:
        """Whether a pod is one of Ray's, and of the cluster of the logs where they show which it is."""
        if self.node(event) is not None:
            return True
        if self._is_joined:
            named = event["cluster"] or _cluster(event["pod"], self.clusters | self._listed)
            is_named = bool(named) and named in self.clusters
            return is_named and self._is_in_ours(event["namespace"])
        return _is_rays(event) and not self._is_of_another_program(event)

    def _is_of_another_program(self, event: Event) -> bool:
        """Whether a pod is a worker by its name alone (`celery-worker-x1`), and no head has such a name.

        Pods of one cluster share the first word of its name, unless KubeRay 1.0 cut a long one at its begin.
        """
        if (
            event["cluster"]
            or event["node_type"]
            or event["container"]
            or _HEAD_NAME.search(event["pod"])
        ):
            return False
        is_cut = len(event["pod"]) >= _CUT
        return (
            bool(self._first_words)
            and not is_cut
            and _first_word(event["pod"]) not in self._first_words
        )

    @cached_property
    def _first_words(self) -> frozenset[str]:
        heads = (e for e in self._case.of("kube.pod") if is_head(e) and e["pod"])
        return frozenset({_first_word(e["cluster"] or e["pod"]) for e in heads})


def _nodes(case: Case) -> list[RayNode]:
    """The nodes whose raylets' logs are in the capture, or that the GCS registered."""
    found = {
        e["node"]: RayNode(e["node"], e["ip"], e["hostname"], e.source.node, e.at)
        for e in case.of("raylet.started")
    }
    for event in case.of("node.registered"):
        node = RayNode(event["node"], event["ip"], "", "", event.at)
        found.setdefault(node.id, node)
    return list(found.values())


def _cluster(pod: str, known: frozenset[str] = frozenset()) -> str:
    """The RayCluster that KubeRay named a pod after: a known one, or that of a head; otherwise empty.

    The name of one cluster can begin with that of another: `train` and `train-2`.
    """
    if found := _HEAD_NAME.search(pod):
        return pod[: found.start()]
    fitting = (name for name in known if pod.startswith(f"{name}-") and _RAY_NAME.search(pod))
    return max(fitting, key=len, default="")


def _is_made_for(cluster: str, name: str) -> bool:
    """Whether a RayCluster has this name, or is that of the RayJob or RayService of this name."""
    return cluster == name or (
        cluster.startswith(name) and _MADE.fullmatch(cluster, len(name)) is not None
    )


def _first_word(name: str) -> str:
    return name.partition("-")[0]


def _is_rays(event: Event) -> bool:
    if event["cluster"] or event["node_type"]:
        return event["node_type"] != "redis-cleanup"
    if event["container"]:
        return event["container"].startswith("ray") or event["container"] in ("head", "worker")
    if not event["pod"]:
        return True  # a part of one that was pasted alone
    return bool(_RAY_NAME.search(event["pod"]))


def _span(case: Case) -> tuple[float, float] | None:
    """The times between which the logs of Ray's nodes were written."""
    started = [e.at for e in case.of("raylet.started", "node.registered") if e.at is not None]
    if not started:
        return None
    logged = (e.at for e in case.events if e.at is not None and not e.kind.startswith("kube."))
    return min(started), max(logged)
