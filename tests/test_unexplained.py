"""Errors that no rule knows: found, grouped, ordered; and what is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from captures import report_of

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine, unexplained
from raydoctor.model.values import Report

GCS = "[2026-11-21 07:34:00,100 I 200 200] (gcs_server) gcs_server.cc:90: GCS server is up\n"


def cpp(level: str, message: str, second: int = 50) -> str:
    return f"[2026-11-21 07:34:{second:02},739 {level} 283 293] (raylet) flux_capacitor.cc:366: {message}\n"


def python(level: str, message: str) -> str:
    return f"2026-11-21 07:35:03,092\t{level} head.py:12 -- {message}\n"


def report(folder: Path, **files: str) -> Report:
    logs = folder / "logs"
    for name, content in {"gcs_server.out": GCS, "raylet.out": "", **files}.items():
        file = logs / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    with open_capture(str(logs)) as capture:
        return engine.run(capture, strict=True)


def left(found: Report) -> list[tuple[str, str, int]]:
    return [(u.kind, u.text, u.count) for u in found.unexplained]


def test_equal_errors_are_one_row_the_worst_first(tmp_path: Path) -> None:
    storm = "".join(
        cpp("E", f"Lost {n} gigawatts of worker {n:056x} at 10.0.0.{n}") for n in range(40)
    )
    found = report(
        tmp_path,
        **{
            "raylet.err": cpp("E", "Once only") + storm + cpp("C", "Check of the flux failed"),
            "worker-" + "ab" * 28 + "-01000000-7.err": TRACEBACK,
        },
    )
    assert found.diagnoses == ()
    assert left(found) == [
        ("log.critical", "Check of the flux failed", 1),
        ("log.traceback", "ValueError: no number: 'x'  (/app/train.py:9 in parse)", 1),
        ("log.error", f"Lost 0 gigawatts of worker {0:056x} at 10.0.0.0", 40),
        ("log.error", "Once only", 1),
    ]


TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 30, in main\n'
    "    parse(row)\n"
    '  File "/app/train.py", line 9, in parse\n'
    '    raise ValueError(f"no number: {row!r}")\n'
    "ValueError: no number: 'x'\n"
)


def test_a_storm_is_counted_to_the_last_record(tmp_path: Path) -> None:
    storm = "".join(cpp("E", f"Lost {n} gigawatts", n % 60) for n in range(30_000))
    found = report(tmp_path, **{"raylet.err": storm})
    assert [u.count for u in found.unexplained] == [30_000]


def test_both_files_of_a_pair_count_once(tmp_path: Path) -> None:
    found = report(
        tmp_path, **{"raylet.out": cpp("E", "Lost it"), "raylet.err": cpp("E", "Lost it")}
    )
    assert left(found) == [("log.error", "Lost it", 1)]


def test_without_the_err_file_the_out_file_is_read(tmp_path: Path) -> None:
    found = report(tmp_path, **{"raylet.out": cpp("I", "All is well") + cpp("E", "Lost it")})
    assert left(found) == [("log.error", "Lost it", 1)]


@pytest.mark.parametrize(
    ("file", "line", "kind"),
    [
        ("dashboard.log", python("ERROR", "The flux is low"), "log.error"),
        ("monitor.log", python("CRITICAL", "The flux is low"), "log.critical"),
        ("serve/controller_7.log", "ERROR 2026-11-21 07:35:03,092 controller 7 -- The flux is low\n", "log.error"),
        ("raylet.err", '{"asctime":"2026-11-21 07:34:50,739","levelname":"E","message":"The flux is low"}\n', "log.error"),
    ],
)  # fmt: skip
def test_every_kind_of_log(tmp_path: Path, file: str, line: str, kind: str) -> None:
    found = report(tmp_path, **{file: line})
    ((told, text, count),) = left(found)
    assert (told, count) == (kind, 1)
    assert "The flux is low" in text


def test_an_error_with_a_traceback_is_one(tmp_path: Path) -> None:
    found = report(tmp_path, **{"dashboard.log": python("ERROR", "The flux is low") + TRACEBACK})
    assert left(found) == [("log.error", "The flux is low", 1)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("raylet.err", cpp("E", ":info_message:Spilled 4096 MiB, 7 objects, write throughput 900 MiB/s.")),
        ("raylet.err", cpp("E", "PC: @     0x7f3a  (unknown)  (unknown)") + cpp("E", "    @     0x7f3b  raise")),
        ("raylet.out", cpp("I", "Plan E 1 2] is a C 3 4] too") + cpp("W", "mind ERROR and Traceback")),
        ("dashboard.log", python("INFO", "no ERROR here")),
        ("dashboard_agent.log", python("ERROR", "Report event failed: ['{}']")),
        ("worker-" + "ab" * 28 + "-01000000-7.out", TRACEBACK),
    ],
)  # fmt: skip
def test_what_is_no_error(tmp_path: Path, file: str, text: str) -> None:
    assert left(report(tmp_path, **{file: text})) == []


def test_observers_of_a_dead_gcs_add_nothing(tmp_path: Path) -> None:
    """What dashboards and drivers say once the GCS is gone follows from that."""
    fixture = Path(__file__).parent.parent / "fixtures" / "gcs-killed--ray-2.60.0--1-node"
    found = report_of(fixture)
    assert [d.rule for d in found.roots] == ["gcs-died"]
    assert found.unexplained == ()


def numbers() -> Iterator[tuple[str, str]]:
    yield "worker 7f00aa11bb22cc33 at 10.1.2.3:80 used 5.6 GB", "worker <id> at <ip> used <n> GB"
    yield "no file /tmp/ray/session_1/logs/x.log", "no file <path>"
    yield "deployment 'Translator' failed 3 times", "deployment '…' failed <n> times"
    yield "lost at 0x7f3a and 12.5%", "lost at <id> and <n>%"
    yield "a feedbacked facade of decades", "a feedbacked facade of decades"


@pytest.mark.parametrize(("message", "folded"), list(numbers()))
def test_templates(message: str, folded: str) -> None:
    assert unexplained.template(message) == folded
