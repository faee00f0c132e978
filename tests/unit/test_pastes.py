"""The benchmark on pasted logs: what counts as right, and that its labels name rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import pastes
from raydoctor import rules

LEFT_OVER = {"any", "unknown-rule"}


@pytest.mark.parametrize(
    ("wanted", "roots", "listed", "outcome"),
    [
        ({"cuda-oom"}, ["cuda-oom", "gpu-fault"], True, "right"),
        ({"cuda-oom"}, ["gpu-fault", "cuda-oom"], False, "other"),
        ({"any"}, ["gpu-fault"], False, "right"),
        ({"cuda-oom"}, [], True, "listed"),
        ({"any"}, [], False, "nothing"),
        ({"unknown-rule"}, [], True, "no rule"),
        ({"unknown-rule"}, ["gpu-fault"], False, "other"),
        (set(), [], True, "silent"),
        (set(), ["gpu-fault"], False, "false alarm"),
    ],
)
def test_the_first_root_decides(
    wanted: set[str], roots: list[str], listed: bool, outcome: str
) -> None:
    assert pastes.judge(wanted, roots, listed) == outcome


def test_every_label_names_a_rule(tmp_path: Path) -> None:
    """A renamed rule would otherwise count as missed from then on."""
    known = {rule.name for rule in rules.load()} | LEFT_OVER
    for paste in pastes.pastes(tmp_path):
        assert paste.wanted <= known, paste.name
        assert paste.range in pastes.RANGES, paste.name


def test_a_folder_brings_labels_of_its_own(tmp_path: Path) -> None:
    old = {"file": "logs/a.out", "kind": "failure", "want": ["cuda-oom"], "in_range": False}
    new = {"file": "driver.log", "kind": "negative", "want": ["cuda-oom"], "in_range": True}
    (tmp_path / "truth.json").write_text(json.dumps({"old": old, "new": new}))
    folder, console = pastes.pastes(tmp_path)
    assert (folder.range, folder.wanted, folder.path.name) == ("older", {"cuda-oom"}, "old")
    assert (console.range, console.wanted, console.path.name) == ("2.9+", set(), "driver.log")
    assert (folder.is_driver_log, console.is_driver_log) == (False, True)
