"""What a watch tells beside its rounds: one thing that happened, when, in words and in figures."""

from __future__ import annotations

import time
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "task-slow", "task-overdue", "task-ended", "task-not-ended", "task-hung", "tasks-failed",
    "diagnosis", "diagnosis-gone", "node-joined", "node-gone", "worker-silent", "gauge", "leftovers",
    "cluster-lost", "cluster-back", "cluster-new", "token-refused", "look-failed",
]  # fmt: skip
Level = Literal["ok", "info", "warning", "error"]


class WatchEvent(NamedTuple):
    """One event."""

    at: float
    """Epoch seconds."""
    event: Kind
    level: Level
    text: str
    """One sentence; not yet made printable."""
    facts: dict[str, Any]
    """Its figures: keys of the JSON object."""


def event(kind: Kind, level: Level, text: str, /, **facts: Any) -> WatchEvent:
    """An event of now."""
    return WatchEvent(time.time(), kind, level, text, facts)
