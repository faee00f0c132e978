"""The autoscaler's node types, and nodes that it could not launch (`monitor.log`; Ray 2.9 to 2.60)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.cluster import resources
from raydoctor.model.patterns import pattern
from raydoctor.model.text import plural

AUTOSCALING_DOC = (
    "https://docs.ray.io/en/latest/cluster/vms/user-guides/configuring-autoscaling.html"
)
_SAID = ("monitor", "event", "autoscaler-echo")

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
