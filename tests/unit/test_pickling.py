"""What raydoctor says of a value that Ray could not pickle: which variable to move, and where."""

from __future__ import annotations

import pytest

from raydoctor.model.values import Report
from raydoctor.rules import not_serializable as rule
from tests.helpers.examples import run_of

_EXAMPLES = {each.title: each for each in rule.EXAMPLES}


def _report(words: str) -> Report:
    example = next(each for title, each in _EXAMPLES.items() if words in title)
    return run_of(example)[0]


@pytest.mark.parametrize("words", ["below the wrapper of Ray's tracing", "a task calls a function"])
def test_the_pickler_s_own_traceback_is_explained(words: str) -> None:
    """Python prints it above Ray's refusal, which it caused."""
    report = _report(words)
    assert report.unexplained == ()
    assert [each.rule for each in report.diagnoses] == ["not-serializable"]


def test_only_classes_can_leave_an_attribute_out() -> None:
    """`__getstate__` is no method of a function that captures a lock."""
    (diagnosis,) = _report("below the wrapper of Ray's tracing").diagnoses
    assert not any("__getstate__" in step for r in diagnosis.remedies for step in r.steps)
    (diagnosis,) = _report("a task calls a function").diagnoses
    assert any("__getstate__" in step for r in diagnosis.remedies for step in r.steps)
