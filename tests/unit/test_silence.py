"""How long the GCS's log is silent around a moment: found in the file, wherever in it the moment is."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydoctor.model.values import Event, Source
from raydoctor.read.clock import NodeClocks, as_utc
from raydoctor.read.detail import silence

_DUMP = "".join(f"- cumulative published messages: {n}\n" for n in range(40))


def _log(*stamps: str) -> str:
    return "".join(f"[{s} I 17 17] (gcs_server) gcs_server.cc:9: state\n{_DUMP}" for s in stamps)


def _silence(folder: Path, text: str, moment: str) -> tuple[str, str] | None:
    """The times of day of the last line before a moment and of the next one."""
    file = folder / "gcs_server.out"
    file.write_text(text)
    source = Source("logs/gcs_server.out", "gcs-out")
    clock = NodeClocks()
    lost = Event("gcs.lost", source, 1, 0, "", at=clock.epoch("", moment))
    found = list(silence.read({source: str(file)}, [lost], clock))
    if not found:
        return None
    (event,) = found
    data = file.read_bytes()
    until = as_utc(moment) or 0.0
    assert event.at is not None
    shift = until - (lost.at or 0.0)
    day = until - until % 86400

    def clock_of(at: float) -> str:
        seconds = int(at + shift - day + 1e-3)
        return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    assert data[event.offset : event.offset + 1] == b"["
    return clock_of(event.at), clock_of(float(event["until"]))


@pytest.mark.parametrize("place", [1, 700, 1398])
def test_the_lines_around_a_moment_are_found_in_a_large_log(tmp_path: Path, place: int) -> None:
    stamps = [
        f"2026-11-21 {n // 3600:02d}:{n // 60 % 60:02d}:{n % 60:02d},500" for n in range(1400)
    ]
    text = _log(*stamps[:place], *stamps[place + 1 :])
    assert len(text) > 20 * (64 << 10)
    before, after = stamps[place - 1][11:19], stamps[place + 1][11:19]
    assert _silence(tmp_path, text, stamps[place]) == (before, after)


def test_a_log_that_ends_or_begins_there_shows_no_silence(tmp_path: Path) -> None:
    text = _log("2026-11-21 11:45:56,105", "2026-11-21 11:46:51,676")
    assert _silence(tmp_path, text, "2026-11-21 11:46:10,000") == ("11:45:56", "11:46:51")
    assert _silence(tmp_path, text, "2026-11-21 11:47:10,000") is None
    assert _silence(tmp_path, text, "2026-11-21 11:40:10,000") is None
    assert _silence(tmp_path, "", "2026-11-21 11:40:10,000") is None
    assert _silence(tmp_path, _DUMP * 300, "2026-11-21 11:40:10,000") is None
