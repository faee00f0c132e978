"""What rules read of a live collection: the rows of its tables, as numbers and mappings."""

from __future__ import annotations

import json
import math
from typing import Any

from raydoctor.case import Case
from raydoctor.model import Event


def rows(case: Case, table: str) -> list[Event]:
    """The rows of a table; empty where it has none or was not collected (see `looked`)."""
    return case.of(f"live.{table}")


def looked(case: Case, table: str) -> Event | None:
    """That a table was collected: its head, with `from`, `total` and `rows`; None where it was not."""
    return next((e for e in case.of("live.table") if e["name"] == table), None)


def number(event: Event, name: str) -> float | None:
    """A field as a number, or None where it is none."""
    try:
        return float(event[name])
    except ValueError:
        return None


def whole(event: Event, name: str) -> int | None:
    """A field as a whole number, or None where it is none."""
    found = number(event, name)
    return int(found) if found is not None and math.isfinite(found) else None


def truth(event: Event, name: str) -> bool:
    """Whether a field is true."""
    return event[name] == "true"


def value(event: Event, name: str) -> Any:
    """A field that is a list or an object, as such; None where it is empty or damaged."""
    try:
        return json.loads(event[name]) if event[name] else None
    except (ValueError, RecursionError):
        return None


def mapping(event: Event, name: str) -> dict[str, Any]:
    """A field that is an object, or an empty one."""
    found = value(event, name)
    return found if isinstance(found, dict) else {}


def sequence(event: Event, name: str) -> list[Any]:
    """A field that is a list, or an empty one."""
    found = value(event, name)
    return found if isinstance(found, list) else []
