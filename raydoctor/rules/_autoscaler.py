"""What the autoscaler says of its node types and of nodes it could not get (`monitor.log`; Ray 2.9 to 2.60)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from raydoctor.case import Case
from raydoctor.rule import Signal
from raydoctor.rules import _resources as resources

AUTOSCALING_DOC = (
    "https://docs.ray.io/en/latest/cluster/vms/user-guides/configuring-autoscaling.html"
)
_SAID = ("monitor", "event", "autoscaler-echo")

CONFIG = Signal(
    "autoscaler.config", "StandardAutoscaler: {", r"^StandardAutoscaler: (?P<config>\{.*)", ("monitor",),
    "StandardAutoscaler: {'cluster_name': 'training', 'max_workers': 2, 'provider': {'type': 'aws'}, 'available_node_types': "
    "{'ray.head.default': {'resources': {'CPU': 1}, 'max_workers': 0}, 'cpu-small': {'resources': {'CPU': 4}, 'max_workers': 2}}}",
)  # fmt: skip
"""The whole configuration, credentials and all: it is read for the node types and never shown."""

LAUNCH_FAILED = Signal(
    "autoscaler.launch_failed", "Failed to launch ",
    r"Failed to launch (?P<count>\d+) node(?:s|\(s\)) of type (?P<type>[^\s:]+?)(?:\.|:| with )(?: ?\((?P<category>\w+)\):)? ?(?P<why>[^\n]*)",
    _SAID,
    ":event_summary:Failed to launch 2 node(s) of type cpu-small. (VcpuLimitExceeded): You have requested more vCPU capacity than your "
    "current vCPU limit of 8 allows.", fold=("type", "category"),
)  # fmt: skip
ADDING = Signal(
    "autoscaler.adding", " node(s) of type ", r"Adding (?P<count>\d+) node\(s\) of type (?P<type>[^\s.]+)\.", _SAID,
    ":event_summary:Adding 1 node(s) of type cpu-small.", fold=("type",),
)  # fmt: skip

_TYPES = re.compile(r"'available_node_types': (?P<types>\{.*)")


@dataclass(frozen=True, slots=True)
class NodeType:
    """What the autoscaler may start."""

    name: str
    holds: resources.Needs
    most: int | None
    """`max_workers` of the type."""

    def __str__(self) -> str:
        most = f", at most {self.most}" if self.most is not None else ""
        return f"{self.name} ({resources.describe(self.holds)}{most})"


def node_types(case: Case) -> list[NodeType]:
    """The worker types of the last configuration; none where the autoscaler only watches (`ray start`)."""
    told = case.of("autoscaler.config")
    if not told or "'type': 'readonly'" in told[-1]["config"]:
        return []
    found = _TYPES.search(told[-1]["config"])
    types = _literal(found["types"]) if found else {}
    return [
        NodeType(str(name), _amounts(spec.get("resources")), spec.get("max_workers"))
        for name, spec in types.items()
        if isinstance(spec, dict) and spec.get("max_workers") != 0
    ]


def _amounts(told: object) -> resources.Needs:
    return {
        str(k): float(v)
        for k, v in (told.items() if isinstance(told, dict) else ())
        if isinstance(v, (int, float))
    }


def _literal(text: str) -> dict[object, object]:
    """The dictionary that a text begins with; the line may be cut, or hold what is no literal."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            try:
                value = ast.literal_eval(text[: position + 1])
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return {}
            return value if isinstance(value, dict) else {}
    return {}
