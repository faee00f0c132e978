"""Ids in a record's text -> entities."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from raydoctor.model.entities import Entity, EntityKind
from raydoctor.model.patterns import pattern

_KINDS: dict[str, EntityKind] = {
    "worker": "worker",
    "node": "node",
    "actor": "actor",
    "task": "task",
    "object": "object",
    "job": "job",
    "lease": "lease",
    "raylet": "node",
    "placement": "pg",
}
_LABELLED = pattern(
    r"\b(worker|node|actor|task|object|job|lease|raylet|placement)[ _]?(?:group)?[ _]?(?:id)?\s?[:=]?\s?"
    r"([0-9a-f]{64}|[0-9a-f]{56}|[0-9a-f]{48}|[0-9a-f]{36}|[0-9a-f]{32}|[0-9a-f]{8})\b",
    re.IGNORECASE,
)
_MOST = 512
"""Maximum of ids in one record: Ray's longest lists contain the nodes of a cluster."""
_LENGTHS: dict[EntityKind, int] = {
    "worker": 56,
    "node": 56,
    "actor": 32,
    "task": 48,
    "object": 56,
    "job": 8,
    "lease": 64,
    "pg": 36,
}
_FIELD_KINDS: dict[str, EntityKind] = {
    **{kind: kind for kind in _LENGTHS},
    **{f"{kind}_id": kind for kind in _LENGTHS},
    "placement_group_id": "pg",
}


def is_id(kind: EntityKind, value: str) -> bool:
    """Whether `value` has the length of such an id and is not nil (all `f`)."""
    return len(value) == _LENGTHS.get(kind) and value.strip("f") != ""


@lru_cache(maxsize=16)  # every signal that matches a record needs its ids
def in_text(text: str) -> frozenset[Entity]:
    """The ids that the text labels (`worker id = …`, `Node ID: …`, `actor_id=…`), at most `_MOST`."""
    found: set[Entity] = set()
    for match in _LABELLED.finditer(text):
        if len(found) >= _MOST:
            break
        label, value = match.groups()
        kind = _KINDS[label.lower()]
        if is_id(kind, value):
            found.add(Entity(kind, value))
    return frozenset(found)


def in_fields(fields: Mapping[str, str]) -> frozenset[Entity]:
    """Ids among a record's fields, by the field's name."""
    return frozenset(
        Entity(kind, value)
        for name, value in fields.items()
        if (kind := _FIELD_KINDS.get(name)) and value and is_id(kind, value)
    )
