"""Replies of a cluster, from the dashboard, the GCS or a metrics port."""

from __future__ import annotations

from typing import Any, NamedTuple


class Reply(NamedTuple):
    """A requested table, or the reason why it is missing."""

    name: str
    rows: list[dict[str, Any]]
    total: int = 0
    why: str = ""
    """Why the table is missing or incomplete; empty if it is complete."""
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
    """Why the token was rejected: `missing` or `wrong`; empty if it was accepted or not needed."""
