"""The autoscaler's node types, and nodes that it could not launch (`monitor.log`; Ray 2.9 to 2.60)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.cluster import resources
from raydoctor.cluster.pods import quantity
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import plural
from raydoctor.model.values import Event

AUTOSCALING_DOC = (
    "https://docs.ray.io/en/latest/cluster/vms/user-guides/configuring-autoscaling.html"
)
_SAID = ("monitor", "event", "autoscaler-echo")

LAUNCH = Entity("autoscaler", "launch")
POD_LAUNCH = Entity("autoscaler", "launch of pods")
"""Of nodes in pods of Kubernetes that wait: it is a cause only for requests that one of them could hold."""
_DEVICES = frozenset({"GPU", "TPU", "HPU", "NPU", "neuron_cores"})


def launches(case: Case, *requests: resources.Needs) -> tuple[Entity, ...]:
    """The launches of nodes that could provide for one of these requests; any launch if none is given."""
    pods = [pod for pod in case.of("kube.pod") if pod["phase"] == "Pending"]
    may_hold = (
        not pods or not requests or any(_may_hold(p, needs) for p in pods for needs in requests)
    )
    return (LAUNCH, POD_LAUNCH) if may_hold else (LAUNCH,)


def _may_hold(pod: Event, needs: resources.Needs) -> bool:
    """Whether a node in a pod could hold a request, as far as its devices and CPUs are known."""
    cpus = quantity(pod["cpus"])
    devices = sum(amount for name, amount in needs.items() if name in _DEVICES)
    return (not pod["devices"] or devices <= float(pod["devices"])) and (
        cpus is None or needs.get("CPU", 0.0) <= math.ceil(cpus)
    )


CONFIG = Signal(
    "autoscaler.config", "StandardAutoscaler: {", r"^StandardAutoscaler: (?P<config>\{.*)", ("monitor",),
    "StandardAutoscaler: {'cluster_name': 'training', 'max_workers': 2, 'provider': {'type': 'aws'}, 'available_node_types': "
    "{'ray.head.default': {'resources': {'CPU': 1}, 'max_workers': 0}, 'cpu-small': {'resources': {'CPU': 4}, 'max_workers': 2}}}",
)  # fmt: skip
"""The whole configuration, including credentials: read for the node types and never shown."""

LAUNCH_FAILED = Signal(
    "autoscaler.launch_failed", "Failed to launch ",
    r"Failed to launch (?P<count>\d+) node(?:s|\(s\)) of type (?P<type>[^\s:]+?)(?:\.|:| with )(?: ?\((?P<category>\w+)\):)? ?(?P<why>[^\n]*)",
    _SAID,
    ":event_summary:Failed to launch 2 node(s) of type cpu-small. (VcpuLimitExceeded): You have requested more vCPU capacity than your "
    "current vCPU limit of 8 allows.", fold=("type", "category"),
)  # fmt: skip
INSTANCES_FAILED = Signal(
    LAUNCH_FAILED.kind, "Launching instances failed: NewInstances[",
    r"Launching instances failed: NewInstances\[(?P<type>[^;\]\n]{1,100});num:(?P<count>\d+)[^\]\n]{0,200}\][^\n]{0,1000}?"
    r"api error (?P<category>\w{1,100}): (?P<why>[^\n]*)", (*_SAID, *DRIVER),
    "[autoscaler] Launching instances failed: NewInstances[m5.large;num:2;all:false]: could not launch any instances: operation error "
    "EC2: RunInstances, api error InsufficientInstanceCapacity: We currently do not have sufficient m5.large capacity.",
    fold=("type", "category"),
)  # fmt: skip
"""Anyscale's autoscaler."""
ATTEMPT_FAILED = Signal(
    "autoscaler.attempt_failed", "create_instances: Attempt failed with ",
    r"^create_instances: Attempt failed with An error occurred \((?P<category>\w+)\) when calling the (?P<call>\w+) operation"
    r"(?: \(reached max retries: \d+\))?: (?P<why>[^\n]*?)(?:, retrying\.)?$", _SAID,
    "create_instances: Attempt failed with An error occurred (InsufficientInstanceCapacity) when calling the RunInstances operation "
    "(reached max retries: 0): We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone you requested., "
    "retrying.", fold=("category",),
)  # fmt: skip
"""AWS (`_private/aws/node_provider.py`, since 1.0): another subnet is tried next."""
STARTED = Signal(
    "autoscaler.started", "Launched ", r"^Launched (?P<count>\d+) nodes", _SAID, "Launched 2 nodes [subnet_id=subnet-1]",
)  # fmt: skip
ADDING = Signal(
    "autoscaler.adding", " node(s) of type ", r"Adding (?P<count>\d+) node\(s\) of type (?P<type>[^\s.]+)\.", _SAID,
    ":event_summary:Adding 1 node(s) of type cpu-small.", fold=("type",),
)  # fmt: skip

NO_GPU_CARDS = Signal(
    "autoscaler.no_gpu_cards", " GPU cards ",
    r"^No enough (?:unused GPU cards for any VMs of pool (?P<pool>\S+)|available GPU cards to assigned to nodes expected enough for "
    r"(?P<asked>\d+) nodes, only enough for (?P<enough>\d+) nodes)", ("monitor", *DRIVER),
    "No enough unused GPU cards for any VMs of pool frozen-vms", symptom=True,
)  # fmt: skip
"""The provider for vSphere (`_private/vsphere/gpu_utils.py` and `node_provider.py`, from 2.9 on): no node is launched."""
GPU_CARDS = Signal(
    "autoscaler.gpu_cards", "Got Frozen VM ", r"^Got Frozen VM (?P<vm>[^,\s]+), Host ", ("monitor", *DRIVER),
    "Got Frozen VM frozen-2, Host esx-2, GPU Cards [0000:3b:00.0]",
)  # fmt: skip

_INSTANCE = r"\(id=(?P<id>[\w-]{0,60}), type=(?P<type>[^,\n]{0,200}), cloud_instance_id=(?P<instance>[^,\n]{0,300}), ray_id=\w{0,60}\)"
STUCK = Signal(
    "autoscaler.stuck", "Update instance ",
    r"\bUpdate instance (?P<before>REQUESTED|ALLOCATED|RAY_INSTALLING)->(?:QUEUED|ALLOCATION_FAILED|ALLOCATION_TIMEOUT|TERMINATING|RAY_INSTALL_FAILED) "
    + _INSTANCE + r": (?:queue again to launch after timeout=(?P<waited>\d{1,9})s|timeout=(?P<seconds>\d{1,9})s at status "
    r"|failed to allocate cloud instance after (?P<attempts>\d{1,9}) attempts|launch failed with (?P<refused>[^\n]{0,600})"
    r"|failed to install ray with errors: (?P<error>[^\n]{0,600}))", (*_SAID, *DRIVER),
    "Update instance ALLOCATED->ALLOCATION_TIMEOUT (id=7c1e, type=gpu-group, cloud_instance_id=train-gpu-group-worker-x1, ray_id=): "
    "timeout=3600s at status ALLOCATED", symptom=True, fold=("type",),
)  # fmt: skip
"""Version 2 (`v2/instance_manager/reconciler.py`, 2.10 to 2.60): a node that it gives up on, or requests again."""
JOINED = Signal(
    "autoscaler.joined", "->RAY_RUNNING ", r"\bUpdate instance [A-Z_]{3,30}->RAY_RUNNING " + _INSTANCE, (*_SAID, *DRIVER),
    "Update instance ALLOCATED->RAY_RUNNING (id=7c1e, type=gpu-group, cloud_instance_id=train-gpu-group-worker-x1, ray_id=): ray node "
    "joined", fold=("type",),
)  # fmt: skip
SETUP_FAILED = Signal(
    "autoscaler.setup_failed_on_node", " (launch failed).", r"\bRemoving (?P<count>\d{1,9}) nodes of type (?P<type>\S{1,200}) \(launch failed\)\.",
    (*_SAID, *DRIVER), ":event_summary:Removing 1 nodes of type cpu-small (launch failed).", fold=("type",),
)  # fmt: skip
"""Version 1 (`_private/autoscaler.py`, 1.9 to 2.60): a command on a new machine failed, most often because SSH did not answer."""


def unjoined(case: Case, *before: str) -> dict[str, list[Event]]:
    """By type, the nodes that the autoscaler gave up on in one of these states, if none of the type joined later."""
    found: dict[str, list[Event]] = {}
    for event in case.of(STUCK.kind):
        joined = [e for e in case.of(JOINED.kind) if e["type"] == event["type"]]
        is_quoted = bool(event["who"]) and event["who"] != "autoscaler"
        if (
            event["before"] in before
            and not is_quoted
            and not any(_is_later(e, event) for e in joined)
        ):
            found.setdefault(event["type"], []).append(event)
    return found


def _is_later(event: Event, other: Event) -> bool:
    if event.source is other.source:
        return event.offset > other.offset
    return event.at is not None and other.at is not None and event.at > other.at


_TYPES = pattern(r"'available_node_types': (?P<types>\{.*)")
_RESOURCES = pattern(r"'resources': (?P<holds>\{[^{}]*\})")
_MOST = pattern(r"'max_workers': (?P<most>\d+)")
_ENTRY = pattern(r"'(?P<name>[^']+)': $")


class NodeType(NamedTuple):
    """A type of node that the autoscaler may start."""

    name: str
    holds: resources.Needs
    most: int | None
    """`max_workers` of the type."""

    def __str__(self) -> str:
        most = f", at most {plural(self.most, 'node')}" if self.most is not None else ""
        return f"{self.name} ({resources.describe(self.holds)}{most})"


def node_types(case: Case) -> list[NodeType]:
    """The worker types of the last configuration; none if the autoscaler is read-only (`ray start`)."""
    configs = case.of("autoscaler.config")
    if not configs or "'type': 'readonly'" in configs[-1]["config"]:
        return []
    found = _TYPES.search(configs[-1]["config"])
    types = [_node_type(name, body) for name, body in _entries(found["types"] if found else "")]
    return [each for each in types if each.most != 0]


def _node_type(name: str, body: str) -> NodeType:
    holds, most = _RESOURCES.search(body), _MOST.search(body)
    amounts = resources.python_amounts(holds["holds"])[0] if holds else {}
    return NodeType(name, amounts, int(most["most"]) if most else None)


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Name and body of each dictionary within the outermost one of a `repr`; the line may be cut."""
    depth, begin = 0, 0
    for position, char in enumerate(text):
        if char == "{":
            depth += 1
            begin = position if depth == 2 else begin
        elif char == "}":
            depth -= 1
            if depth == 1 and (entry := _ENTRY.search(text[:begin])):
                yield entry["name"], text[begin : position + 1]
            if depth == 0:
                return
