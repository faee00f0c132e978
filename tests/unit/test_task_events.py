"""Exceptions of tasks that a program caught without printing them: found in the events that Ray writes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from raydoctor.act.run import task_events
from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import unreported
from raydoctor.diagnosis.engine import run

_JOB = "01000000"
_RAISED = (
    "User exception:\n\x1b[36mray::load()\x1b[39m (pid=12, ip=10.0.0.2)\n"
    '  File "/app/etl.py", line 7, in load\n    return rows["price"]\nKeyError: \'price\''
)


def _session(folder: Path, error: str = "TASK_EXECUTION_EXCEPTION", text: str = _RAISED) -> Path:
    """A session with one failed task of job 1."""
    ids = {
        "task_id": base64.b64encode(b"t" * 20 + bytes.fromhex(_JOB)).decode(),
        "job_id": base64.b64encode(bytes.fromhex(_JOB)).decode(),
    }
    data = {**ids, "attempt_number": 0, "task_info": {"func_or_class_name": "load"}}
    updates = {"error_info": {"error_type": error, "error_message": text}}
    event = {
        "source_type": "EXPORT_TASK",
        "timestamp": 1795479998,
        "event_data": {**data, "state_updates": updates},
    }
    path = folder / "session_x" / "logs" / "export_events"
    path.mkdir(parents=True)
    (path / "event_EXPORT_TASK_7.log").write_text(json.dumps(event) + "\n")
    (path.parent / "raylet.out").write_text("")
    return folder / "session_x"


@pytest.mark.parametrize(
    ("output", "count"),
    [
        ("total 6\n", 1),
        ("", 1),
        ("row 3 failed: KeyError('price')\n", 0),
        ("row 3 failed: 'price'\n", 0),
    ],
    ids=["caught", "silent", "class-printed", "message-printed"],
)
def test_an_exception_that_the_output_does_not_name(
    tmp_path: Path, output: str, count: int
) -> None:
    with open_capture(str(_session(tmp_path))) as capture:
        report = run(capture)
    found = unreported.unreported(report, output)
    assert [d.rule for d in found] == ["task-exception"] * count
    assert all("etl.py:7" in d.headline and d.severity == "warning" for d in found)


def test_only_the_failures_of_the_own_jobs_count(tmp_path: Path) -> None:
    """Another driver's equal failures, of the same time and of an earlier one."""
    session = _session(tmp_path)
    assert task_events.with_failures(str(session), 0.0, {_JOB}) == {"event_EXPORT_TASK_7.log"}
    assert not task_events.with_failures(str(session), 0.0, {"02000000"})


def test_an_exception_is_found_wherever_a_block_ends(tmp_path: Path) -> None:
    session = _session(tmp_path, error="OUT_OF_MEMORY")
    (file,) = session.glob("logs/export_events/*")
    first, mark = file.read_bytes(), b"TASK_EXECUTION_EXCEPTION"

    def found(since: float = 0.0, folder: Path = session) -> bool:
        return bool(task_events.with_failures(str(folder), since, {_JOB}))

    assert not found()
    for before in range(-len(mark), 2):
        file.write_bytes(first + b" " * (task_events._BLOCK + before - len(first)) + mark)
        assert found()
    assert not found(file.stat().st_mtime + 60)
    assert not found(folder=tmp_path / "none")
    for broken in (b"", b"{", b"[]\n", b"{}\n", b"[" * 100_000, mark):
        file.write_bytes(broken)
        assert not found()


def test_events_do_not_fill_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = _session(tmp_path)
    (file,) = session.glob("logs/export_events/*")
    size = file.stat().st_size
    monkeypatch.setattr(task_events, "MOST", size)
    task_events.limit([str(session)], 0.0)
    assert file.stat().st_size == size
    monkeypatch.setattr(task_events, "MOST", size - 1)
    task_events.limit([str(session)], file.stat().st_mtime + 60)  # of an earlier run
    assert file.stat().st_size == size
    task_events.limit([str(session)], 0.0)
    assert file.stat().st_size == 0
