"""Access to the rows of a live collection's tables, as numbers and mappings.

Every accessor accepts any row: a value of another type is None, or empty. `read/live.py` ensures that
numbers are finite and texts are text.
"""

from __future__ import annotations

import json
import math
from typing import Any

from raydoctor.case import Case
from raydoctor.model.values import Event


def rows(case: Case, table: str) -> list[Event]:
    """The rows of a table; empty where it has none or was not collected (see `looked`)."""
    return case.of(f"live.{table}")


def looked(case: Case, table: str) -> Event | None:
    """The head of a collected table, with `from`, `total` and `rows`; None if it was not collected."""
    return next((e for e in case.of("live.table") if e["name"] == table), None)


def number(event: Event, name: str) -> float | None:
    """A field as a finite number, or None if it is not a number."""
    return number_of(event[name])


def whole(event: Event, name: str) -> int | None:
    """A field as a whole number, or None if it is not a number."""
    found = number(event, name)
    return None if found is None else int(found)


def truth(event: Event, name: str) -> bool:
    """Whether a field is true."""
    return event[name] == "true"


def value(event: Event, name: str) -> Any:
    """A field that is a list or an object; None if it is empty or damaged."""
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


def records(event: Event, name: str) -> list[dict[str, Any]]:
    """The objects of a field that is a list of objects; other items are left out."""
    return records_of(sequence(event, name))


def texts(event: Event, name: str) -> list[str]:
    """The texts of a field that is a list of texts; other items are left out."""
    return texts_of(sequence(event, name))


def number_of(value: object) -> float | None:
    """A part of a value as a finite number, or None if it is not a number; Ray writes some as text."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def whole_of(value: object) -> int | None:
    """A part of a value as a whole number, or None if it is not a number."""
    found = number_of(value)
    return None if found is None else int(found)


def text_of(value: object) -> str:
    """A part of a value as text; empty if it is not text."""
    return value if isinstance(value, str) else ""


def records_of(value: object) -> list[dict[str, Any]]:
    """A part of a value as a list of objects; other items are left out."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def texts_of(value: object) -> list[str]:
    """A part of a value as a list of texts; other items are left out."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
