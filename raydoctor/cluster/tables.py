"""What rules read of a live collection: the rows of its tables, as numbers and mappings.

Every accessor answers for any row: a value of another type is None, or empty. `read/live.py` sees to it
that numbers are finite and texts are text.
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
    """That a table was collected: its head, with `from`, `total` and `rows`; None where it was not."""
    return next((e for e in case.of("live.table") if e["name"] == table), None)


def number(event: Event, name: str) -> float | None:
    """A field as a finite number, or None where it is none."""
    return number_of(event[name])


def whole(event: Event, name: str) -> int | None:
    """A field as a whole number, or None where it is none."""
    found = number(event, name)
    return None if found is None else int(found)


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


def records(event: Event, name: str) -> list[dict[str, Any]]:
    """The objects of a field that is a list of them; what else it holds is left out."""
    return records_of(sequence(event, name))


def texts(event: Event, name: str) -> list[str]:
    """The texts of a field that is a list of them; what else it holds is left out."""
    return texts_of(sequence(event, name))


def number_of(told: object) -> float | None:
    """A part of a value as a finite number, or None where it is none; Ray writes some as text."""
    if isinstance(told, bool) or not isinstance(told, (str, int, float)):
        return None
    try:
        found = float(told)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def whole_of(told: object) -> int | None:
    """A part of a value as a whole number, or None where it is none."""
    found = number_of(told)
    return None if found is None else int(found)


def text_of(told: object) -> str:
    """A part of a value as text, empty where it is none."""
    return told if isinstance(told, str) else ""


def records_of(told: object) -> list[dict[str, Any]]:
    """A part of a value as a list of objects; what else it holds is left out."""
    return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def texts_of(told: object) -> list[str]:
    """A part of a value as a list of texts; what else it holds is left out."""
    return [each for each in told if isinstance(each, str)] if isinstance(told, list) else []
