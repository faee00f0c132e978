"""A node's reading travels as a file and gives the same diagnosis; nodes are read by Ray's own tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from raydoctor import diagnosis, plugins, signals, unexplained
from raydoctor.capture.open import open_capture
from raydoctor.model import Entity, Event, Gap, Report, Source
from raydoctor.read import build, portable
from raydoctor.read.portable import NodeReading
from raydoctor.render.json import render
from raydoctor.rule import Signal

FIXTURES = Path(__file__).parent.parent / "fixtures"
CAPTURES = sorted(path.parent / "capture" for path in FIXTURES.glob("*/fixture.toml"))


# ---------------------------------------------------------------- a reading as a file


def looked_for(roles: set[str]) -> list[Signal]:
    """What a diagnosis of files with these roles looks for."""
    rules = plugins.catalogue().rules
    known = [*signals.FACTS, *(s for rule in rules for s in rule.looks_for)]
    return [*known, *unexplained.signals(roles)]


def told(report: Report) -> dict[str, object]:
    """A report without what only says where its bytes were."""
    whole = json.loads(render(report))
    return {key: whole[key] for key in ("diagnoses", "unexplained", "gaps")}


@pytest.mark.parametrize("folder", CAPTURES, ids=lambda p: p.parent.name)
def test_a_reading_gives_the_report_of_its_files(folder: Path, tmp_path: Path) -> None:
    with open_capture(str(folder)) as capture:
        direct = diagnosis.run(capture, strict=True)
        reading = build.read_node(capture, looked_for({s.role for s in capture.sources}))
    file = tmp_path / "live" / "live-events.jsonl"
    file.parent.mkdir()
    file.write_bytes(portable.dump(reading))
    with open_capture(str(tmp_path)) as capture:
        travelled = diagnosis.run(capture, strict=True)
    assert told(travelled) == told(direct)
