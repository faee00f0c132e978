"""Whether the fields of an event can be those of one of its signals.

Rules convert numbers and look up states without a check, because a pattern matched them. The fields of a
reading that another machine sent were not matched here, and may be damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

try:
    from re import _compiler as compiler  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_compile as compiler
    import sre_parse as parser

from raydoctor.case.rule import Signal

_PLACEHOLDER = re.compile(r".*(?:<secret:[\w-]+>|\b(?:ip|host)-\d+)", re.DOTALL)
_LONGEST_NUMBER = 400
"""Digits: a log has none longer, and Python converts no more than 4,300."""
_CONTEXT = ("ASSERT", "AT", "GROUPREF")
"""Codes of a parsed pattern that depend on the text around a group."""


class _Group(NamedTuple):
    """A named group of a pattern."""

    regex: re.Pattern[str] | None
    """What it matches; None if that depends on the text around it."""
    is_required: bool
    """Whether every match has it."""

    def allows(self, value: str) -> bool:
        """Whether the group can match this value, or did before it was redacted."""
        if self.regex is None or self.regex.fullmatch(value):
            return True
        return bool(_PLACEHOLDER.match(value)) and not self.regex.fullmatch("7")


class ValidFields:
    """The fields that signals can give to each kind of event."""

    def __init__(self, signals: Iterable[Signal]) -> None:
        self._patterns: dict[str, set[tuple[str, int]]] = {}
        for signal in signals:
            flags = 0 if signal.extent == "line" else re.DOTALL
            self._patterns.setdefault(signal.kind, set()).add((signal.pattern, flags))

    def has(self, kind: str, fields: Mapping[str, str]) -> bool:
        """Whether the signals of this kind can give these fields."""
        if any(len(each) > _LONGEST_NUMBER and each.isdecimal() for each in fields.values()):
            return False
        shapes = [_groups(*each) for each in self._patterns.get(kind, ())]
        is_one = not shapes or any(
            all(name in fields for name, group in shape.items() if group.is_required)
            for shape in shapes
        )
        known = [
            (value, [shape[name] for shape in shapes if name in shape])
            for name, value in fields.items()
        ]
        return is_one and all(any(g.allows(v) for g in groups) for v, groups in known if groups)


@cache
def _groups(pattern: str, flags: int) -> dict[str, _Group]:
    tree = parser.parse(pattern, flags)
    names = {number: name for name, number in tree.state.groupdict.items()}
    found = {}
    for number, inner, is_certain in _walk(tree, is_certain=True):
        if number in names:
            regex = None if _has_context(inner) else compiler.compile(inner, tree.state.flags)
            found[names[number]] = _Group(regex, is_certain and inner.getwidth()[0] > 0)
    return found


def _walk(items: Any, *, is_certain: bool) -> Iterator[tuple[int | None, Any, bool]]:
    """(number, content, whether every match has it) of the groups of a parsed pattern."""
    for code, value in items:
        if str(code) == "SUBPATTERN":
            yield value[0], value[-1], is_certain
        for inner in _inner(value):
            may_lack = str(code) == "BRANCH" or (str(code).endswith("_REPEAT") and not value[0])
            yield from _walk(inner, is_certain=is_certain and not may_lack)


def _has_context(items: Any) -> bool:
    """Whether a part of a parsed pattern looks at the text around it, or at another group."""
    return any(
        str(code).startswith(_CONTEXT) or any(map(_has_context, _inner(value)))
        for code, value in items
    )


def _inner(value: Any) -> Iterator[Any]:
    """The parsed patterns inside a part of one."""
    if isinstance(value, parser.SubPattern):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _inner(each)
