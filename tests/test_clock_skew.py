"""Real captures of two hosts, the clock of one of them turned: it is told, and no root becomes a wrong one."""

from __future__ import annotations

import re
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from captures import all_captures

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.values import Report

FIXTURES = [c for c in all_captures() if c.parent.name.startswith("raylet-killed-worker-node--")]
NODE = "ray-node-2"
_STAMP = re.compile(r"^(\[?)(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})", re.MULTILINE)


def turned(capture: Path, target: Path, seconds: int) -> Path:
    """A copy in which the second host's logs were written by a clock that is ahead by so much."""
    shutil.copytree(capture, target)

    def shift(match: re.Match[str]) -> str:
        moment = datetime.strptime(match[2], "%Y-%m-%d %H:%M:%S") + timedelta(seconds=seconds)
        return f"{match[1]}{moment:%Y-%m-%d %H:%M:%S},{match[3]}"

    for file in (target / NODE).rglob("*"):
        if file.is_file():
            text = file.read_bytes().decode("utf-8", "surrogateescape")
            file.write_bytes(_STAMP.sub(shift, text).encode("utf-8", "surrogateescape"))
    return target


def report_of(capture: Path) -> Report:
    with open_capture(str(capture)) as opened:
        return engine.run(opened, strict=True)


def told(report: Report) -> list[str]:
    return [d.headline for d in report.diagnoses if d.rule == "clock-skew"]


def test_there_are_such_captures() -> None:
    assert FIXTURES
    assert all((capture / NODE).is_dir() for capture in FIXTURES)


@pytest.mark.parametrize("capture", FIXTURES, ids=lambda c: c.parent.name)
def test_clocks_that_agree(capture: Path) -> None:
    assert told(report_of(capture)) == []


@pytest.mark.parametrize("capture", FIXTURES, ids=lambda c: c.parent.name)
def test_a_clock_that_is_behind(capture: Path, tmp_path: Path) -> None:
    report = report_of(turned(capture, tmp_path / "capture", -60))
    (headline,) = told(report)
    assert re.search(r"10\.0\.0\.3 is at least (59|60) s behind", headline)
    before = {d.rule for d in report_of(capture).roots}
    assert {d.rule for d in report.roots} <= {*before, "clock-skew"}


@pytest.mark.parametrize("capture", FIXTURES, ids=lambda c: c.parent.name)
def test_another_time_zone_is_no_skew(capture: Path, tmp_path: Path) -> None:
    assert told(report_of(turned(capture, tmp_path / "capture", -7200))) == []
