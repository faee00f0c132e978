"""Required logs that end too early, at the end of a line: other logs show it; complete logs never look cut."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from captures import FIXTURES, capture_of

from raydoctor.capture.open import open_capture
from raydoctor.model import Gap
from raydoctor.read import coverage

LONG_AGO = 1_700_000_000
ALL = sorted(path.parent for path in FIXTURES.glob("*/fixture.toml"))
STOPPED = [f"healthy--ray-{v}--1-node" for v in ("2.9.3", "2.40.0", "2.50.0", "2.55.1", "2.60.0")]
STAMP = "[2026-11-21 08:{:02}:{:02},000 I 9 9] (raylet) "


def aged(folder: Path) -> Path:
    """The same files, last written long ago."""
    for file in folder.rglob("*"):
        os.utime(file, (LONG_AGO, LONG_AGO))
    return folder


def gaps_of(folder: Path) -> list[Gap]:
    """What is missing of the required logs."""
    with open_capture(str(aged(folder))) as capture:
        return coverage.gaps_of(capture.files)


def cut(fixture: str, name: str, mark: bytes, folder: Path) -> Path:
    """The capture with a log that ends with the line before the first one with this mark."""
    shutil.copytree(capture_of(FIXTURES / fixture), folder)
    (log,) = folder.rglob(name)
    data = log.read_bytes()
    log.write_bytes(data[: data.rindex(b"\n", 0, data.index(mark)) + 1])
    return folder


@pytest.mark.parametrize("fixture", ALL, ids=lambda f: f.name)
def test_no_log_of_a_fixture_looks_cut(fixture: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(capture_of(fixture), tmp_path / "capture")
    assert [gap for gap in gaps_of(folder) if "too early" in gap.why] == []


@pytest.mark.parametrize("fixture", STOPPED)
@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("raylet.out", b"is disconnected"),
        ("gcs_server.out", b"arking job"),
        ("raylet.out", b"Started worker process with pid"),
    ],
)
def test_a_log_that_ends_too_early_is_a_gap(
    fixture: str, name: str, mark: bytes, tmp_path: Path
) -> None:
    (gap,) = gaps_of(cut(fixture, name, mark, tmp_path / "capture"))
    assert gap.what.endswith(name)
    assert gap.why.startswith("ends too early: ")
    assert gap.hint.endswith(f"/logs/{name}")


def session(folder: Path, raylet_minutes: int, driver_minutes: int) -> Path:
    """A session of which the raylet writes a table every minute, and a driver now and then."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    node = "ab" * 28
    rows = [
        f"{STAMP.format(0, 0)}main.cc:1: Setting cluster ID to: 1",
        f"{STAMP.format(0, 1)}main.cc:2: Raylet of id, {node} started",
        *(
            f"{STAMP.format(minute, 1)}node_manager.cc:1: [state-dump] NodeManager:"
            for minute in range(1, raylet_minutes)
        ),
    ]
    (logs / "raylet.out").write_text("\n".join(rows) + "\n")
    driver = logs / f"python-core-driver-01000000{'f' * 48}_7.log"
    driver.write_text(f"{STAMP.format(driver_minutes, 0).replace(' (raylet)', '')}a.cc:1: b\n")
    return folder


@pytest.mark.parametrize(
    ("raylet", "driver", "is_cut"),
    [(10, 9, False), (10, 11, False), (10, 13, True), (2, 50, False)],
)
def test_a_daemon_that_stops_writing_its_table_is_a_gap(
    raylet: int, driver: int, is_cut: bool, tmp_path: Path
) -> None:
    """Only where it shows at which interval it writes: somebody may have changed it."""
    gaps = gaps_of(session(tmp_path / "a", raylet, driver))
    assert any("other logs of its node go on" in gap.why for gap in gaps) == is_cut


def test_a_log_that_is_written_now_is_no_evidence(tmp_path: Path) -> None:
    """The raylet may be about to write its part."""
    folder = cut(STOPPED[-1], "raylet.out", b"is disconnected", tmp_path / "capture")
    aged(folder)
    for file in folder.rglob("python-core-*"):
        os.utime(file)
    with open_capture(str(folder)) as capture:
        shown = [gap.why for gap in coverage.gaps_of(capture.files)]
    assert not any("disconnected later" in why for why in shown)
