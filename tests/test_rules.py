"""Every example of every rule, with all rules loaded; and what every rule file must be.

The checks are those that plugin authors run: `raydoctor rules test`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from raydoctor import rulecheck, rules, signals, unexplained
from raydoctor.plugins import Catalogue
from raydoctor.rule import Example, Rule, Signal

CATALOGUE = Catalogue(rules.load())
EXAMPLES = [(rule, example) for rule in CATALOGUE.rules for example in rule.examples]
SIGNALS = sorted(
    {s for rule in CATALOGUE.rules for s in rule.looks_for}
    | set(signals.FACTS)
    | set(unexplained.signals(())),
    key=lambda s: (s.kind, s.find, s.pattern),
)


@pytest.mark.parametrize(
    ("rule", "example"), EXAMPLES, ids=[f"{r.name}: {e.title}" for r, e in EXAMPLES]
)
def test_example(rule: Rule, example: Example, tmp_path: Path) -> None:
    assert list(rulecheck.example_problems(rule, example, CATALOGUE, tmp_path)) == []


@pytest.mark.parametrize("rule", CATALOGUE.rules, ids=lambda r: r.name)
def test_rule_is_complete(rule: Rule) -> None:
    assert [*rulecheck.page_problems(rule), *rulecheck.shape_problems(rule)] == []


def test_names_are_unique() -> None:
    names = [name for r in CATALOGUE.rules for name in (r.name, *r.formerly)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda s: f"{s.kind}: {s.find}")
def test_signal(signal: Signal) -> None:
    """Its sample matches, and what the pattern accepts contains the literal."""
    assert rulecheck.proves_literals()
    assert list(rulecheck.signal_problems(signal)) == []
