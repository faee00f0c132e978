"""Fixtures' captures as folders, and the reports on them, each made once in a process.

Large captures are kept as archives, and unpacked where a test wants them.
"""

from __future__ import annotations

import atexit
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine, plugins, rulecheck
from raydoctor.model.values import Report
from tests.helpers import FIXTURES


@cache
def _ground() -> Path:
    """A folder of this process, gone with it."""
    folder = Path(tempfile.mkdtemp(prefix="raydoctor-captures-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def capture_of(fixture: Path) -> Path:
    """The capture of a fixture, as a folder."""
    archive = fixture / "capture.tar.gz"
    if not archive.exists():
        return fixture / "capture"
    folder = _ground() / fixture.name / "capture"
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None, f"{member.name}: files alone are kept"
            file = folder / member.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.read())
    return folder


@cache
def _diagnosed(fixture: Path) -> tuple[Report, rulecheck.Found]:
    catalogue, found = rulecheck.recorded(plugins.catalogue())
    with open_capture(str(capture_of(fixture))) as capture:
        return engine.run(capture, catalogue=catalogue, strict=True), found


def report_of(fixture: Path) -> Report:
    """The report on the capture of a fixture, as all rules give it; an immutable value."""
    return _diagnosed(fixture)[0]


def findings_of(fixture: Path) -> rulecheck.Found:
    """What each rule yields on the capture of a fixture, before any of it is dropped."""
    return _diagnosed(fixture)[1]


def fixtures(pattern: str = "*") -> list[Path]:
    """The folders of the fixtures with such a name, sorted; nothing is unpacked."""
    return [path.parent for path in sorted(FIXTURES.glob(f"{pattern}/fixture.toml"))]


def all_captures() -> list[Path]:
    """Those of all fixtures, by name; unpacks them."""
    return [capture_of(fixture) for fixture in fixtures()]
