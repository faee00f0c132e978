"""The rules: one file each. Nothing is registered by hand."""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from importlib import import_module
from types import ModuleType

from raydoctor.case.rule import Rule

_TIERS = ("root", "cause", "symptom")


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Rule names, from the files in this folder; nothing is imported."""
    return tuple(
        sorted(
            module.name.replace("_", "-")
            for module in pkgutil.iter_modules(__path__)
            if not module.ispkg
        )
    )


@lru_cache(maxsize=1)
def load() -> tuple[Rule, ...]:
    """Every rule, by tier (root, cause, symptom), then name."""
    return tuple(sorted((_from_module(name) for name in names()), key=order))


def order(rule: Rule) -> tuple[int, str]:
    """How a catalogue is sorted."""
    return (_TIERS.index(rule.tier), rule.name)


def find(name: str) -> Rule | None:
    """A rule by its name, or None; imports that rule alone."""
    return _from_module(name) if name in names() else None


def _from_module(name: str) -> Rule:
    return only_rule(import_module(f"{__name__}.{name.replace('-', '_')}"))


def only_rule(module: ModuleType) -> Rule:
    """The rule that a module defines; TypeError unless there is exactly one."""
    found = [value for value in vars(module).values() if isinstance(value, Rule)]
    if len(found) != 1:
        raise TypeError(f"{module.__file__} must define one rule, not {len(found)}")
    return found[0]
