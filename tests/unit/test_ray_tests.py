"""The benchmark on Ray's own tests: what counts as right, and that its labels name rules."""

from __future__ import annotations

import pytest

from benchmarks import ray_tests
from benchmarks.ray_tests import RayTest, Run
from raydoctor import rules

VANISHED = frozenset({"worker-vanished"})


@pytest.mark.parametrize(
    ("may", "is_silent", "seen", "outcome"),
    [
        ((), False, ["worker-vanished", "node-died"], "right"),
        ((), False, ["node-died", "worker-vanished"], "listed"),
        ((), False, ["node-died"], "other"),
        ((), False, [], "nothing"),
        (("node-died",), False, ["node-died", "worker-vanished"], "right"),
        (("node-died",), False, ["node-died"], "nothing"),
        ((), True, [], "right"),
        ((), True, ["node-died"], "other"),
    ],
)
def test_the_first_root_that_counts_decides(
    may: tuple[str, ...], is_silent: bool, seen: list[str], outcome: str
) -> None:
    test = RayTest("tests/test_a.py::test_b", VANISHED, frozenset(may), is_silent)
    assert ray_tests.judge(test, "session", seen) == outcome


def test_a_live_diagnosis_is_never_silent_about_a_failure() -> None:
    test = RayTest("tests/test_a.py::test_b", VANISHED, frozenset(), True)
    assert ray_tests.judge(test, "live", []) == "nothing"


def test_a_healthy_test_has_no_root() -> None:
    test = RayTest("tests/test_a.py::test_b", frozenset(), frozenset({"node-died"}), False)
    assert ray_tests.judge(test, "live", []) == "right"
    assert ray_tests.judge(test, "live", ["node-died"]) == "right"
    assert ray_tests.judge(test, "live", ["gcs-died"]) == "other"


def test_a_warning_is_no_false_root() -> None:
    test = RayTest("tests/test_a.py::test_b", VANISHED, frozenset({"spill-heavy"}), False)
    roots = [("worker-vanished", "error"), ("spill-heavy", "error"), ("disk-full", "warning")]
    assert Run(test, "session", "right", roots).false_roots == []
    roots.append(("node-died", "critical"))
    assert Run(test, "session", "right", roots).false_roots == ["node-died"]


def test_every_label_names_a_rule() -> None:
    """A renamed rule would otherwise count as missed from then on."""
    known = {rule.name for rule in rules.load()} | {ray_tests.UNKNOWN}
    for test in ray_tests.tests():
        assert test.roots | test.may <= known, test.address
