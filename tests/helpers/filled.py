"""Values of any type with one text in every place that takes a text: what hostile names would make of them."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_MANY = (tuple, list, frozenset, Sequence, Iterable, Collection)
Known = Mapping[Any, Callable[[str], Any]]


def filled(kind: Any, text: str, known: Known) -> Any:
    """A value of this type, with one element in each list; `known` makes those that no type describes."""
    if kind in known:
        return known[kind](text)
    if kind in (str, Any, object):
        return text
    if kind in (bool, int, float):
        return kind(3)
    if get_origin(kind) is not None:
        return _generic(get_origin(kind), get_args(kind), text, known)
    return kind(**{name: filled(of, text, known) for name, of in _fields(kind).items()})


def _generic(origin: Any, of: tuple[Any, ...], text: str, known: Known) -> Any:
    if origin in _MANY:
        each = of if origin is tuple and Ellipsis not in of else of[:1]
        made = tuple(filled(one, text, known) for one in each)
        return frozenset(made) if origin is frozenset else made
    if origin in (dict, Mapping):
        return {filled(of[0], text, known): filled(of[1], text, known)}
    if origin is Callable:
        return lambda *_, **__: True
    assert origin in (Literal, Union, types.UnionType), origin
    return of[0] if origin is Literal else filled(of[0], text, known)


@cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind) if f.init] if is_dataclass(kind) else kind._fields
    return {name: hints[name] for name in names}
