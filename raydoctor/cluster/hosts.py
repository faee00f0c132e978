"""What a Ray node runs in, as a cause: a pod of Kubernetes, or a machine of a job of Slurm."""

from __future__ import annotations

from raydoctor.model.entities import Entity


def entity(value: str) -> Entity:
    """A pod by `<namespace>/<name>`, a job of Slurm, the id or address of the Ray node in it, or `head`."""
    return Entity("host", value)


def of_node(*names: str) -> tuple[Entity, ...]:
    """What a Ray node runs in, by the node's id or address."""
    return tuple(entity(name) for name in names if name)
