"""The runtime environments that a node's agent sets up, as far as the log of the agent shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.model.text import join_names
from raydoctor.model.values import Event

_BEGUN = "runtime_env.begun"
_MANY = 6
"""Environments from which on each task probably has its own."""


class Alike(NamedTuple):
    """Environments that differ in values only."""

    events: tuple[Event, ...]
    differ: tuple[str, ...]
    """The entries that differ: `env_vars.RUN`, `pip`."""


def alike(case: Case) -> Alike | None:
    """The largest number of environments that differ in values only."""
    return max(_groups(case.of(_BEGUN)), key=lambda each: len(each.events), default=None)


def many(case: Case) -> str:
    """`22 runtime environments, which differ in env_vars.RUN`; empty if there are only a few."""
    found = alike(case)
    if found is None or len(found.events) < _MANY:
        return ""
    return f"{len(found.events)} runtime environments, which differ in {join_names(found.differ)}"


def _groups(events: list[Event]) -> Iterator[Alike]:
    """Groups of different environments with the same entries."""
    shapes: dict[tuple[str, ...], dict[str, tuple[Event, Mapping[str, str]]]] = {}
    for event in events:
        entries = _entries(event["env"])
        shapes.setdefault(tuple(sorted(entries)), {}).setdefault(event["env"], (event, entries))
    for names, found in shapes.items():
        first = next(iter(found.values()))[1]
        differ = [n for n in names if any(entries[n] != first[n] for _, entries in found.values())]
        yield Alike(tuple(event for event, _ in found.values()), tuple(differ))


def _entries(env: str) -> dict[str, str]:
    """`{"env_vars.RUN": "3", "pip": "[…]"}`: the entries of an environment, each with its value as text."""
    try:
        parts = json.loads(env)
    except (ValueError, RecursionError):
        return {}
    variables = parts.pop("env_vars", None)
    named = variables.items() if isinstance(variables, dict) else ()
    found = {f"env_vars.{name}": json.dumps(value) for name, value in named}
    return found | {name: json.dumps(value) for name, value in parts.items()}
