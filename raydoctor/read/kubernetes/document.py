"""What a file of Kubernetes objects consists of."""

from __future__ import annotations

from typing import Any, NamedTuple


class Document(NamedTuple):
    """One object."""

    data: dict[str, Any]
    line: int
    """1-based, in the file."""
    raw: str
    """Its text in the file."""


class Damage(NamedTuple):
    """Where a file could not be parsed, and why."""

    line: int
    why: str


CUT = "is cut off or damaged: objects from here on are missing"
"""Why objects of a file are missing."""
