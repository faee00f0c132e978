"""The examples of all rules, each run once in a process."""

from __future__ import annotations

from raydoctor import rules
from raydoctor.case.rule import Example
from raydoctor.diagnosis import rulecheck
from raydoctor.diagnosis.plugins import Catalogue

CATALOGUE = Catalogue(rules.load())
_RUNS: dict[tuple[tuple[str, str], ...], rulecheck.ExampleRun] = {}


def run_of(example: Example) -> rulecheck.ExampleRun:
    """The report on an example as all rules give it, and what each of them yields."""
    files = tuple(example.files.items())
    if files not in _RUNS:
        _RUNS[files] = rulecheck.run_example(example, CATALOGUE)
    return _RUNS[files]
