"""Removes secrets from a report, as the logs of a live session or of another user's capture may hold some.

Collectors redact when a capture is written (`observe/processes/redact.py`). A report of raw logs goes through
the same redactor here, so that a pasted report holds no secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from raydoctor.model.paste import Pasted
from raydoctor.model.values import Event, Remedy, Source
from raydoctor.redact import Redactor

_T = TypeVar("_T")


def scrub(value: _T, secrets: Iterable[str] = ()) -> _T:
    """A report or a status without secrets; `secrets`: known literals, such as the cluster's token."""
    return _clean(value, Redactor(secrets), {})


def _clean(value: _T, redactor: Redactor, seen: dict[int, Any]) -> _T:
    """A copy of a frozen value with all its texts redacted; the value itself if nothing changes."""
    if id(value) not in seen:
        # The value is kept with its copy, as its id may be reused once it is gone.
        seen[id(value)] = (value, _cleaned(value, redactor, seen))
    cleaned: _T = seen[id(value)][1]
    return cleaned


def _cleaned(value: Any, redactor: Redactor, seen: dict[int, Any]) -> Any:
    if isinstance(value, str):
        return (
            _advised(value, redactor) if isinstance(value, Pasted) else _redacted(value, redactor)
        )
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        parts = tuple(_clean(each, redactor, seen) for each in value)
        return parts if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    if isinstance(value, Remedy):
        # Remedies contain settings and their values (`env_vars={"OMP_NUM_THREADS": "1"}`), which must stay.
        steps = tuple(_advised(step, redactor) for step in value.steps)
        return replace(value, title=_advised(value.title, redactor), steps=steps)
    if isinstance(value, Event):
        # A report shows only an event's text and position.
        return _replaced(value, ("text", "message"), redactor, seen)
    if is_dataclass(value) and not isinstance(value, (type, Source)):
        return _replaced(value, [f.name for f in fields(value)], redactor, seen)
    return value


def _redacted(value: str, redactor: Redactor) -> str:
    return redactor.redact(value) if len(value) > 3 else value


def _advised(step: str, redactor: Redactor) -> str:
    """A line to paste without secrets.

    Its values are redacted before they are quoted, because a placeholder that replaced a quote would let the
    rest of a value act. If the whole line still shows a secret, its values are replaced by their names.
    """
    if not isinstance(step, Pasted):
        return _but_settings(step, redactor)
    cleaned = step.changed(lambda value: _redacted(value, redactor))
    if _but_settings(cleaned, redactor) == cleaned:
        return cleaned
    return cleaned.without_texts()


def _but_settings(step: str, redactor: Redactor) -> str:
    return redactor.redact(step.replace("env_vars", "env\0vars")).replace("env\0vars", "env_vars")


def _replaced(value: Any, names: Iterable[str], redactor: Redactor, seen: dict[int, Any]) -> Any:
    changes = {
        name: new
        for name in names
        if (new := _clean(old := getattr(value, name), redactor, seen)) is not old and new != old
    }
    return replace(value, **changes) if changes else value
