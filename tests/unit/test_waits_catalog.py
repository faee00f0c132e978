"""The table of waits: complete, unambiguous, and the only place that a new kind of wait needs beside its fix."""

from __future__ import annotations

import ast
from typing import get_args

import pytest

from raydoctor.waits import remedies
from raydoctor.waits.kinds import catalog, kernel
from raydoctor.waits.kinds.catalog import SHAPES, WAITS, Activity, Kind, WaitCode
from tests.helpers import ROOT

CODES = get_args(WaitCode)
SOURCES = sorted((ROOT / "raydoctor/waits").rglob("*.py"))


def test_every_code_has_one_entry() -> None:
    assert list(WAITS) == sorted(CODES, key=list(WAITS).index)
    assert {each.kind for each in WAITS.values()} == set(catalog.WORST_FIRST)
    assert set(catalog.WORST_FIRST) <= set(get_args(Kind))


def test_shapes_calls_and_fixes_name_known_codes() -> None:
    named = {code for code, _ in SHAPES} | set(kernel.WAIT_OF_CALL.values())
    assert named | set(remedies._OF_CODE) <= set(CODES)


def test_no_two_codes_share_a_sentence() -> None:
    assert len({each.sentence for each in WAITS.values()}) == len(WAITS)


@pytest.mark.parametrize("code", CODES)
def test_a_sentence_holds_its_details_once(code: WaitCode) -> None:
    summary = Activity(code, "DETAIL").summary
    assert summary.count("DETAIL") == 1
    assert not {*"{}"} & {*summary}
    assert summary[0].islower()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_nothing_is_decided_by_a_sentence(path: object) -> None:
    """No comparison, search or look-up uses a summary, a sentence or a reason."""
    tree = ast.parse(path.read_text())  # type: ignore[attr-defined]
    texts = {"summary", "sentence", "detail", "words", "told"}
    for node in ast.walk(tree):
        used: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            used = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            used = [node.func.value] if node.func.attr in ("startswith", "endswith", "find") else []
        names = {each.attr for each in used if isinstance(each, ast.Attribute)}
        assert not names & texts, f"{path}:{getattr(node, 'lineno', 0)}"
