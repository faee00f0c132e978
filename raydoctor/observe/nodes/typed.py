"""Values of another node's reply as raydoctor's own types, which are checked."""

from __future__ import annotations

from dataclasses import is_dataclass
from math import isfinite
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Exceptions that a malformed reply raises."""


def made(kind: type[_T], values: Any) -> _T:
    """A named tuple from a list, or a dataclass from an object. Raises one of DAMAGED."""
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        return kind(**{name: typed(hints[name], value) for name, value in values.items()})
    if not isinstance(values, list):
        raise ValueError(f"not a {kind.__name__}")
    fields = [typed(hint, value) for hint, value in zip(hints.values(), values, strict=False)]
    return kind(*fields, *values[len(fields) :])


def typed(hint: Any, value: Any) -> Any:
    """The value, converted to this type. Raises one of DAMAGED if it has another type."""
    options = get_args(hint)
    if get_origin(hint) is Literal:
        fits = isinstance(value, str) and value in options
    elif get_origin(hint) is tuple:
        return tuple(typed(options[0], each) for each in value)
    elif options:  # `int | None`
        return None if value is None else typed(options[0], value)
    elif hint is float:
        fits = type(value) in (int, float) and isfinite(value)
    elif hint in (int, str, bool):
        fits = type(value) is hint
    else:
        return made(hint, value)
    if not fits:
        raise ValueError(f"not of type {hint}")
    return value
