"""Every example of every rule, with all rules loaded; and what every rule file must be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydoctor import diagnosis, rules, signals
from raydoctor.capture.open import open_capture
from raydoctor.model import Report
from raydoctor.rule import Example, Rule, Signal

ALL = rules.load()
EXAMPLES = [(rule, example) for rule in ALL for example in rule.examples]
SIGNALS = sorted(
    {s for rule in ALL for s in rule.looks_for} | set(signals.FACTS),
    key=lambda s: (s.kind, s.find, s.pattern),
)
HEADINGS = ("What you see", "Why", "Confirm", "Fix", "Not this when")


def run_example(example: Example, folder: Path) -> Report:
    for name, content in example.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    with open_capture(str(folder)) as capture:
        return diagnosis.run(capture, strict=True)


@pytest.mark.parametrize(
    ("rule", "example"), EXAMPLES, ids=[f"{r.name}: {e.title}" for r, e in EXAMPLES]
)
def test_example(rule: Rule, example: Example, tmp_path: Path) -> None:
    report = run_example(example, tmp_path)
    assert sorted(d.rule for d in report.roots) == sorted(example.roots)
    assert set(example.consequences) <= {d.rule for d in report.diagnoses} - {
        d.rule for d in report.roots
    }
    own = [d for d in report.diagnoses if d.rule == rule.name]
    said = "\n".join(
        line
        for d in own
        for line in (d.headline, *(x for r in d.remedies for x in (r.title, *r.steps)))
    )
    for text in example.says:
        assert text in said


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.name)
def test_rule_is_complete(rule: Rule) -> None:
    summary, _, page = rule.doc.partition("\n")
    assert summary.endswith(".")
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)+)", page + "\n", re.MULTILINE))
    assert tuple(sections) == HEADINGS
    assert all(text.strip() for text in sections.values())
    assert any(rule.name in (*e.roots, *e.consequences) for e in rule.examples), (
        "needs a positive example"
    )
    assert any(rule.name not in (*e.roots, *e.consequences) for e in rule.examples), (
        "needs a negative example"
    )
    assert rule.looks_for


def test_ranks_and_names_are_unique_enough() -> None:
    names = [r.name for r in ALL] + [old for r in ALL for old in r.formerly]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda s: f"{s.kind}: {s.find}")
def test_signal_matches_its_sample(signal: Signal) -> None:
    assert signal.find in signal.sample
    assert signal.regex.search(signal.sample)
    assert not re.search(r"[\"\\\t\n]", signal.find), "JSON logs escape these"


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda s: f"{s.kind}: {s.find}")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_the_pattern_accepts_contains_the_literal(signal: Signal, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(signal.regex))
    assert signal.find in text
