"""An event of a watch: what happened and when, as a sentence and as values."""

from __future__ import annotations

import time
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "task-slow", "task-overdue", "task-ended", "task-not-ended", "task-hung", "tasks-failed",
    "diagnosis", "diagnosis-gone", "node-joined", "node-gone", "worker-silent", "gauge", "leftovers",
    "cluster-lost", "cluster-back", "cluster-new", "token-refused", "look-failed",
    "log-silent", "log-resumed", "notify-failed",
]  # fmt: skip
Level = Literal["ok", "info", "warning", "error"]


class WatchEvent(NamedTuple):
    """One event of a watch."""

    at: float
    """Epoch seconds."""
    event: Kind
    level: Level
    text: str
    """One sentence; control characters are not escaped yet."""
    facts: dict[str, Any]
    """Further keys of the JSON object."""


def event(kind: Kind, level: Level, text: str, /, **facts: Any) -> WatchEvent:
    """An event at the current time."""
    return WatchEvent(time.time(), kind, level, text, facts)
