"""Takes secrets out of a report: the logs of a live session, or of a capture that others made, may hold some.

`collect/redact.py` does it once where a capture is written; a report that was made of raw logs goes through
the same redactor here, so that what is pasted into an issue holds none either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from raydoctor.collect.redact import Redactor
from raydoctor.model import Event, Remedy, Report, Source

_T = TypeVar("_T")


def scrub(report: Report, secrets: Iterable[str] = ()) -> Report:
    """The report without secrets; `secrets` are literal ones, such as the cluster's token."""
    return _clean(report, Redactor(secrets), {})


def _clean(value: _T, redactor: Redactor, seen: dict[int, Any]) -> _T:
    """A copy of a frozen value with every text in it redacted; the value itself where nothing changes."""
    if id(value) not in seen:
        # The value is kept beside its copy: an id is another's once its object is gone.
        seen[id(value)] = (value, _cleaned(value, redactor, seen))
    cleaned: _T = seen[id(value)][1]
    return cleaned


def _cleaned(value: Any, redactor: Redactor, seen: dict[int, Any]) -> Any:
    if isinstance(value, str):
        return redactor.redact(value) if len(value) > 3 else value
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        parts = tuple(_clean(each, redactor, seen) for each in value)
        return parts if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    if isinstance(value, Remedy):
        # Advice names settings and their values (`env_vars={"OMP_NUM_THREADS": "1"}`): those are ours.
        return replace(value, steps=tuple(_advised(step, redactor) for step in value.steps))
    if isinstance(value, Event):
        # Of an event, a report shows its text and its place.
        return _replaced(value, ("text", "message"), redactor, seen)
    if is_dataclass(value) and not isinstance(value, (type, Source)):
        return _replaced(value, [f.name for f in fields(value)], redactor, seen)
    return value


def _advised(step: str, redactor: Redactor) -> str:
    """A step of a remedy without secrets that stand in it under a secret's name, shape or place."""
    return redactor.redact(step.replace("env_vars", "env\0vars")).replace("env\0vars", "env_vars")


def _replaced(value: Any, names: Iterable[str], redactor: Redactor, seen: dict[int, Any]) -> Any:
    changes = {
        name: new
        for name in names
        if (new := _clean(old := getattr(value, name), redactor, seen)) is not old and new != old
    }
    return replace(value, **changes) if changes else value
