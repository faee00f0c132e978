"""Fixtures with their logs perturbed: a report may say less, never a wrong root.

Two perturbations a fixture, chosen by its name; `benchmarks/accuracy.py` runs them all.
"""

from __future__ import annotations

import random
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
sys.path.insert(0, str(Path(__file__).parent))
import accuracy  # noqa: E402
import perturb  # noqa: E402
from captures import capture_of  # noqa: E402

if TYPE_CHECKING:
    from perturb import Files, Perturbation

FIXTURES = sorted(path.parent for path in accuracy.FIXTURES.glob("*/fixture.toml"))
EACH = 2


@cache
def all_perturbations() -> tuple[Perturbation, ...]:
    return perturb.perturbations(accuracy.read_files(accuracy.HEALTHY))


def chosen(fixture: Path) -> tuple[Perturbation, ...]:
    """Some for each fixture, all of them over the fixtures."""
    known = all_perturbations()
    start = zlib.crc32(fixture.name.encode())
    return tuple(known[(start + n * 5) % len(known)] for n in range(EACH))


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda f: f.name)
def test_perturbed_logs_give_no_wrong_root(fixture: Path) -> None:
    runs = list(accuracy.runs_of(fixture, chosen(fixture), seeds=1))
    assert runs[0].outcome == "right"
    assert [run for run in runs if run.outcome == "wrong"] == []


@pytest.fixture(name="files")
def _files() -> Files:
    return accuracy.read_files(capture_of(accuracy.FIXTURES / "owner-died-oom--ray-2.60.0--1-node"))


@pytest.mark.parametrize("perturbation", all_perturbations(), ids=lambda p: p.name)
def test_a_perturbation_changes_something_and_is_seeded(
    perturbation: Perturbation, files: Files
) -> None:
    once, again = (perturbation.change(files, random.Random(7)) for _ in range(2))
    assert once == again
    assert once != files
    if not perturbation.loses:
        assert sum(map(len, once.values())) >= sum(map(len, files.values()))


def test_rotation_keeps_every_byte(files: Files) -> None:
    parts = perturb.rotated(files, random.Random(3))
    raylet = [parts[name] for name in sorted((n for n in parts if "/raylet" in n and n.endswith(".out")), reverse=True)]  # fmt: skip
    assert len(raylet) > 1
    assert sum(map(len, raylet)) == len(files["logs/raylet.out"])
    assert {perturb.role(path) for path in parts} == {perturb.role(path) for path in files}
