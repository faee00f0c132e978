"""Reports hold no secrets, whatever the logs held."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from captures import capture_of

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis.engine import run
from raydoctor.render import json as as_json
from raydoctor.render import markdown, page
from raydoctor.render.report import render

KEY = "AKIA" + "IOSFODNN7ABCDEFG"
OUTPUT = f"""Traceback (most recent call last):
  File "/app/main.py", line 7, in <module>
    ray.get(load.remote())
ray.exceptions.RayTaskError(PermissionError): \x1b[36mray::load()\x1b[39m (pid=12, ip=10.0.0.1)
  File "/app/main.py", line 4, in load
    raise PermissionError("s3 refused {KEY}, cluster token tok-4711-abc")
PermissionError: s3 refused {KEY}, cluster token tok-4711-abc
"""


def test_no_format_shows_a_secret(tmp_path: Path) -> None:
    (tmp_path / "driver.log").write_text(OUTPUT)
    with open_capture(str(tmp_path / "driver.log")) as capture:
        capture.secrets = ("tok-4711-abc",)
        report = run(capture)
    assert [d.rule for d in report.roots] == ["task-exception"]
    shown = (
        as_json.render(report) + markdown.render(report) + page.plain(render(report, verbose=True))
    )
    assert "s3 refused <secret:aws-key-1>" in shown
    assert KEY not in shown
    assert "tok-4711-abc" not in shown


def test_advice_keeps_the_settings_that_it_names() -> None:
    fixture = Path(__file__).parent.parent / "fixtures/thread-limit--ray-2.60.0--1-node"
    with open_capture(str(capture_of(fixture))) as capture:
        steps = [s for d in run(capture).diagnoses for r in d.remedies for s in r.steps]
    assert any('"OMP_NUM_THREADS": "' in step and "<secret" not in step for step in steps)
