"""Every regular expression of the package, found by walking its modules: no list has to name a new one."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import BuiltinMethodType, FunctionType
from typing import Any, NamedTuple

import raydoctor
from raydoctor.case.rule import Example, Rule, Signal
from raydoctor.model import patterns

PACKAGE = Path(raydoctor.__file__).parent
_WITHOUT_START = frozenset({"match", "fullmatch"})
"""Methods that try a pattern at one place only."""


class Known(NamedTuple):
    """A pattern of the package."""

    name: str
    """`capture.console.shape._ORDER`, or a file and line where it has no name."""
    text: str
    flags: int
    is_bytes: bool
    is_anchored: bool
    """Whether the package never searches with it."""

    def tries(self, text: str) -> object:
        """Do with a text what the package does."""
        regex = self.compiled
        subject = text.encode("utf-8", "replace") if self.is_bytes else text
        return regex.match(subject) if self.is_anchored else list(regex.finditer(subject))

    @property
    def compiled(self) -> re.Pattern[Any]:
        """The pattern; `re` keeps it."""
        return re.compile(self.text.encode("latin-1") if self.is_bytes else self.text, self.flags)


@cache
def all_patterns() -> tuple[Known, ...]:
    """Each pattern once, but those of signals: `attack_patterns.all_signals` has them."""
    found: dict[str | bytes, Known] = {}
    called, used = _of_sources()
    for name, text, flags in (*_of_modules(), *called):
        methods = used.get(name) or used.get(name.rpartition(".")[2], {"search"})
        shown = text.decode("latin-1") if isinstance(text, bytes) else text
        found.setdefault(
            text,
            Known(name, shown, flags, isinstance(text, bytes), methods <= _WITHOUT_START),
        )
    return tuple(sorted(found.values()))


def _of_modules() -> Iterator[tuple[str, str | bytes, int]]:
    """(name, text, flags) of those that the modules hold, or make without an argument."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        if "programs" in parts or parts[-1] == "__main__":
            continue  # they act when they are imported; `_of_calls` reads them
        module = importlib.import_module(".".join(("raydoctor", *parts)))
        for key, value in vars(module).items():
            for text, flags in _inside(value, 0):
                yield f"{'.'.join(parts)}.{key}", text, flags


def _inside(value: Any, depth: int) -> Iterator[tuple[str | bytes, int]]:
    """(text, flags) of the patterns in a value, however it holds them."""
    if isinstance(value, patterns._Late):
        yield value.late
    elif isinstance(value, re.Pattern):
        yield value.pattern, value.flags & ~re.UNICODE
    elif isinstance(value, BuiltinMethodType):
        yield from _inside(value.__self__, depth + 1) if depth < 4 else ()
    elif isinstance(getattr(value, "__wrapped__", None), FunctionType):
        reply = inspect.signature(value)
        if not reply.parameters and "Pattern" in str(reply.return_annotation):
            yield from _inside(value(), depth + 1)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _inside(each, depth + 1)
    elif isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from _inside(each, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type | Signal | Rule | Example):
        for field in dataclasses.fields(value):
            yield from _inside(getattr(value, field.name), depth + 1)


def _of_sources() -> tuple[list[tuple[str, str | bytes, int]], Mapping[str, set[str]]]:
    """(place, text, 0) of constants passed to `re` or `pattern`; the methods of each name and place."""
    called: list[tuple[str, str | bytes, int]] = []
    used: dict[str, set[str]] = defaultdict(set)
    for file in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in patterns._METHODS:
                name = ast.unparse(node.value).rpartition(".")[2]
                used[name].add(node.attr)
                used[f"{module}.{name}"].add(node.attr)
            elif isinstance(node, ast.Call) and node.args and _is_of_re(node.func):
                text = node.args[0]
                if isinstance(text, ast.Constant) and isinstance(text.value, str | bytes):
                    place = f"{file.relative_to(PACKAGE)}:{node.lineno}"
                    called.append((place, text.value, 0))
                    if isinstance(node.func, ast.Attribute):
                        used[place].add(node.func.attr)
    return called, used


def _is_of_re(function: ast.expr) -> bool:
    return (isinstance(function, ast.Name) and function.id == "pattern") or (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
    )
