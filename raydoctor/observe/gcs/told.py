"""What a cluster told, whichever way it was asked."""

from __future__ import annotations

from typing import Any, NamedTuple


class Reply(NamedTuple):
    """A table that was asked for, or why it did not come."""

    name: str
    rows: list[dict[str, Any]]
    total: int = 0
    why: str = ""
    """Empty where it came."""
    at: float = 0.0
    source: str = "gcs"


class Probe(NamedTuple):
    """Whether an address answered: a row of `probes`."""

    name: str
    address: str
    outcome: str
    """`ok`, `refused`, `timeout`, `error`, `unauthenticated`."""
    seconds: float
    detail: str = ""
    refusal: str = ""
    """Why the token was not taken: `missing` or `wrong`; empty where it was taken, or none was needed."""
