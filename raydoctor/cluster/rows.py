"""What rules about waiting read from a row: amounts of resources, and the name of its task or actor."""

from __future__ import annotations

from collections.abc import Mapping

from raydoctor.cluster import resources
from raydoctor.cluster import tables as live
from raydoctor.model import text
from raydoctor.model.values import Event

_TOLERANCE = 1e-6


def amounts(event: Event, name: str) -> resources.Needs:
    """A field that maps resources to amounts."""
    return amounts_of(live.mapping(event, name))


def amounts_of(value: object) -> resources.Needs:
    """An object of a row that maps resources to amounts."""
    items = value.items() if isinstance(value, dict) else ()
    return {name: float(v) for name, v in items if isinstance(v, (int, float)) and v}


def fits(total: resources.Needs, needs: resources.Needs) -> bool:
    """Whether there is enough, with a tolerance: the amounts are results of sums."""
    return all(total.get(name, 0.0) >= amount - _TOLERANCE for name, amount in needs.items())


def plain(needs: resources.Needs) -> resources.Needs:
    """Amounts without a placement group's names: `CPU_group_0_<id>` is CPU; bundles are dropped."""
    found: dict[str, float] = {}
    for name, amount in needs.items():
        word = name.partition("_group_")[0]
        if word != "bundle" or word == name:
            found[word] = max(found.get(word, 0.0), amount)
    return found


def name_of(event: Event) -> str:
    """A task's function or an actor's class; `a request` for a demand, which has no name."""
    return named(event) or "a request"


def named(event: Event) -> str:
    """The same, or empty for a demand."""
    name = event["class_name"] or event["func_or_class_name"] or event["name"]
    return name.removesuffix(".__init__")


def is_actor(event: Event) -> bool:
    """Whether a waiting row is an actor or its creation task."""
    return not event["task_id"] or event["type"] == "ACTOR_CREATION_TASK"


def listed(counts: Mapping[tuple[str, str], int], most: int = 3) -> str:
    """`2 Simulator actors, 1 plan() task and 4 more`, of (name, kind) -> how many."""
    items = sorted(counts.items(), key=lambda item: -item[1])
    parts = [
        f"{kind} '{name}'"
        if kind == "placement group" and n == 1
        else text.plural(n, f"{text.called(name) if kind == 'task' else name} {kind}".strip())
        for (name, kind), n in items[:most]
    ]
    rest = sum(n for _, n in items[most:])
    return text.joined([*parts, f"{rest} more"] if rest else parts)
