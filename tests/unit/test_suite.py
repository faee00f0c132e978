"""The suite itself: its tiers, its helpers, and that an unexpected skip fails CI."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, skips, waiting

TESTS = sorted((ROOT / "tests").rglob("*.py"))
MODULES = [path for path in TESTS if path.name.startswith("test_")]
CLUSTERS = {"tests.helpers.real_ray", "tests.helpers.far_node", "tests.helpers.hangs"}
NOT_IN = {"unit": {*CLUSTERS, "tests.helpers.captures"}, "fixtures": CLUSTERS, "live": set()}
"""Helpers that tests of a tier do without."""


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_each_module_is_in_the_tier_of_what_it_needs() -> None:
    wrong = [p.name for p in MODULES if imports_of(p) & NOT_IN.get(p.parent.name, {"pytest"})]
    assert wrong == [], "see CONTRIBUTING: unit, fixtures or live"
    marked = [p.name for p in MODULES if p.parent.name != "live" and "mark.ray" in p.read_text()]
    assert marked == [Path(__file__).name]


def test_helpers_are_imported_without_tricks() -> None:
    changed = [p for p in (*TESTS, *(ROOT / "benchmarks").glob("*.py")) if _changes_the_path(p)]
    assert changed == [ROOT / "tests/conftest.py"]


def _changes_the_path(path: Path) -> bool:
    calls = (n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
    changes = {f"sys.path.{name}" for name in ("insert", "append", "extend")}
    return any(ast.unparse(func) in changes for func in calls)


def test_every_expected_skip_is_one_of_a_test() -> None:
    text = "".join(path.read_text() for path in TESTS if path.name != "skips.py")
    assert [skip.reason for skip in skips.EXPECTED if f'"{skip.reason}"' not in text] == []


@pytest.mark.parametrize(
    ("reason", "options", "code"),
    [
        (skips.EXPECTED[0].reason, ["--fail-on-skip"], pytest.ExitCode.OK),
        ("no luck", ["--fail-on-skip"], pytest.ExitCode.TESTS_FAILED),
        ("no luck", ["--fail-on-skip", "-n1"], pytest.ExitCode.TESTS_FAILED),
        ("no luck", [], pytest.ExitCode.OK),
    ],
)
def test_an_unexpected_skip_fails_ci(
    tmp_path: Path, reason: str, options: list[str], code: pytest.ExitCode
) -> None:
    """Wherever it is: in a decorator, in a test, or at the top of a module."""
    texts = {
        "decorator": f"@pytest.mark.skipif(True, reason={reason!r})\ndef test_it(): pass\n",
        "test": f"def test_it(): pytest.skip({reason!r})\n",
        "module": f"pytest.skip({reason!r}, allow_module_level=True)\n",
    }
    (tmp_path / "test_passes.py").write_text("def test_it(): pass\n")
    for name, text in texts.items():
        (tmp_path / f"test_{name}.py").write_text(f"import pytest\n{text}")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    said = subprocess.run(
        [*command, "-n0", *options, "-c", "/dev/null", "--basetemp", tmp_path / "base", tmp_path],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == code, said.stdout + said.stderr
    found = [
        name for name in texts if f"test_{name}.py" in said.stdout.partition("unexpected skips")[2]
    ]
    assert found == (list(texts) if code else []), said.stdout


def test_a_clock_for_limits_stands_still_while_processors_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressure = tmp_path / "cpu"
    monkeypatch.setattr(waiting, "PRESSURE", pressure)
    monkeypatch.setattr(waiting.time, "monotonic", lambda: 1000.0)
    line = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 total=7\n"
    pressure.write_text(line.format(5_000_000))
    assert waiting.clock() == 995.0
    pressure.unlink()
    assert waiting.clock() == 1000.0 / waiting.UNKNOWN
