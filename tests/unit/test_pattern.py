"""Patterns compiled when they are first used."""

from __future__ import annotations

import re
import sys

import pytest

from raydoctor.diagnosis import engine, plugins
from raydoctor.model import patterns
from raydoctor.model.patterns import pattern


def test_it_is_compiled_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    real = re.compile
    monkeypatch.setattr(patterns.re, "compile", lambda *a: (compiled.append(a), real(*a))[1])
    late = pattern(r"(?P<n>\d+)", re.IGNORECASE)
    assert compiled == []
    assert late.findall("1 and 2") == ["1", "2"]
    assert late.search("x3")["n"] == "3"
    assert late.sub("#", "4") == "#"
    assert (late.pattern, late.groupindex["n"], late.flags & re.IGNORECASE) == (r"(?P<n>\d+)", 1, 2)
    assert len(compiled) == 1


def test_it_has_no_other_attribute() -> None:
    with pytest.raises(AttributeError):
        pattern("x").nothing  # noqa: B018


def test_every_pattern_of_ours_compiles() -> None:
    assert engine
    assert plugins.catalogue().rules
    late = [
        value
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "raydoctor"
        for value in vars(module).values()
        if isinstance(value, patterns._Late)
    ]
    assert late
    for each in late:
        re.compile(*each.late)
