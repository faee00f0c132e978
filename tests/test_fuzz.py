"""Some seeded cases of `benchmarks/fuzz.py`; thousands are run there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import fuzz


def test_damaged_captures_and_archives_are_diagnosed_or_refused() -> None:
    assert list(fuzz.failures(13, range(40))) == []


def test_a_case_depends_on_its_seed_and_number_alone(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        path, what = fuzz.make(13, 4, tmp_path / name)
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        made.append((what, [file.read_bytes() for file in files]))
    assert made[0] == made[1]
