"""What the frames that the GCS keeps of an ended driver may claim: its type, an error, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from raydoctor.case.rule import Example
from raydoctor.model.values import Diagnosis, Report
from raydoctor.rules.shared.live import examples as sample
from tests.helpers.examples import run_of

_RAY = "/venv/lib/python3.12/site-packages/ray"
_GET = f'  File "{_RAY}/_private/worker.py", line 1053, in get_objects\n    raise value'
REGISTERED = (
    "[2026-11-21 08:34:08,741 I 8 8] (gcs_server) gcs_job_manager.cc:95: Registering job. job_id=01000000 driver_pid=70\n"
    "[2026-11-21 08:34:11,741 I 8 8] (gcs_server) gcs_job_manager.cc:158: Finished marking job state, job id = 01000000\n"
)


def report(frames: str, files: dict[str, str] | None = None, **more: Any) -> Report:
    """On a cluster whose first job's driver ended with these frames."""
    tables = sample.tables(
        workers=[sample.driver(1, frames, **more)],
        jobs=[sample.job(1, 70)],
        tasks=[],
    )
    logs = {"logs/gcs_server.out": REGISTERED, "logs/raylet.out": ""}
    return run_of(Example("", {**tables, **logs, **(files or {})}))[0]


def found(frames: str, **more: Any) -> Diagnosis | None:
    return next((d for d in report(frames, **more).diagnoses if d.rule == "job-failed"), None)


def at(code: str, marks: str = "", file: str = "/app/train.py") -> str:
    under = f"    {marks}\n" if marks else ""
    return f'  File "{file}", line 7, in step\n    {code}\n{under}'


@pytest.mark.parametrize(
    ("code", "marks", "severity", "says"),
    [
        ("raise ValueError('x')", "", "error", "with ValueError, in step() (train.py:7)"),
        ("raise ValueError(", "", "error", "with ValueError"),
        ("raise errors.ConfigError from None", "", "error", "with ConfigError"),
        ("raise error", "", "error", "with an exception, in"),
        ("return rows[0]", "       ~~~~^^^", "error", "with an exception, in"),
        ("return 1 / n", "       ~~^~~", "error", "with an exception, in"),
        ("return d.rows", "       ^^^^^^", "error", "with an exception, in"),
        ("return d[f(1)]", "       ~^^^^^^", "info", "an exception or Ctrl-C"),
        ("return open(path)", "       ^^^^^^^^^^", "info", "an exception or Ctrl-C"),
        ("while queue[0]:", "      ~~~~~^^^", "info", "an exception or Ctrl-C"),
        ("value = await ref", "        ^^^^^^^^^", "info", "an exception or Ctrl-C"),
        ("time.sleep(600)", "", "info", "an exception or Ctrl-C"),
        ("rows[0]", "", "info", "an exception or Ctrl-C"),  # Python 3.10 marks nothing
    ],
)
def test_the_last_line_decides(code: str, marks: str, severity: str, says: str) -> None:
    diagnosis = found(at(code, marks))
    assert diagnosis is not None
    assert diagnosis.severity == severity
    assert says in diagnosis.headline
    assert "job 1 (pid 70)" in diagnosis.headline


@pytest.mark.parametrize(
    "frames",
    [
        at("raise KeyboardInterrupt"),
        at("raise SystemExit(1)"),
        at("raise ValueError(1)", file="<stdin>"),
        at("raise ValueError(1)", file="<python-input-3>"),
        "",
        "no frames at all: \x1b[31m raise ValueError(1)\n",
    ],
)
def test_no_failure_of_a_program(frames: str) -> None:
    assert found(frames) is None


@pytest.mark.parametrize("file", ["<string>", "<frozen runpy>"])
def test_programs_without_a_file_of_their_own(file: str) -> None:
    assert found(at("main()", file=file) + at("raise ValueError(1)")) is not None


@pytest.mark.parametrize(
    "more",
    [
        {"is_alive": True},
        {"end_time_ms": int(sample.AT - 3700) * 1000},
        {"end_time_ms": "yesterday"},
        {"worker_id": "ab" * 28},
        {"worker_id": f"02000000{'f' * 48}"},  # a job that a submission started
    ],
)
def test_other_workers_do_not_count(more: dict[str, Any]) -> None:
    assert found(at("raise ValueError(1)"), **more) is None


def test_one_of_ray_s_errors_without_a_known_cause() -> None:
    diagnosis = found(at("ray.get(refs)") + f"{_GET}\n")
    assert diagnosis is not None
    assert "in step() (train.py:7)" in diagnosis.headline
    assert diagnosis.chain[0].code == "ray.get(refs)"


def test_the_output_says_more_than_the_frames() -> None:
    """The same place in the driver's output: one finding, with the type and the message."""
    frames = f'  File "/app/train.py", line 9, in <module>\n    step()\n{at("rows[0]")}'
    output = f"Traceback (most recent call last):\n{frames}KeyError: 0\n"
    diagnoses = report(frames, {"driver.log": output}).diagnoses
    assert ["KeyError: 0" in d.headline for d in diagnoses] == [True]


@pytest.mark.parametrize(
    ("frames", "is_missing"), [(at("raise ValueError(1)"), False), (at("rows[0]"), True)]
)
def test_the_output_is_missing_while_the_type_is_unknown(frames: str, is_missing: bool) -> None:
    gaps = [gap for gap in report(frames).gaps if gap.about == "driver"]
    assert any("70" in gap.what for gap in gaps) is is_missing
