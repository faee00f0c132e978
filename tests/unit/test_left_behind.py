"""Advice about what an earlier task left in its worker, from the frames of an exception."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.rules import task_exception


def titles(folder: Path, function: str) -> list[str]:
    """The fixes for an exception in a function whose name the line that leads to it does not contain."""
    worker = f"worker-{'5d' * 28}-01000000-389.out"
    files = {
        "driver.log": 'Traceback (most recent call last):\n  File "/app/etl.py", line 20, in main\n    ray.get(ref)\n'
        "ray.exceptions.RayTaskError(ValueError): ray::norm() (pid=389, ip=10.0.0.2)\n"
        '  File "/app/etl.py", line 6, in norm\n    rows = read(path)\n'
        f'  File "/app/etl.py", line 2, in {function}\n    raise ValueError("9 s")\nValueError: 9 s\n',
        f"logs/{worker}": ":job_id:01000000\n:task_name:quick\n:task_name:norm\n",
        "logs/gcs_server.out": "",
        "logs/raylet.out": "",
    }
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with open_capture(str(folder)) as capture:
        report = engine.run(capture, strict=True)
    assert [root.rule for root in report.roots] == ["task-exception"]
    return [remedy.title for remedy in report.roots[0].remedies]


@pytest.mark.parametrize(
    ("raised", "workers", "is_advised"),
    [
        ("KeyError: 'tea'", ("5d", "6e"), True),
        ("KeyError: 'tea'", ("6e",), False),
        ("ValueError: tea is sold out", ("5d", "6e"), False),
    ],
)
def test_only_a_restarted_actor_that_misses_something_lost_its_state(
    raised: str, workers: tuple[str, ...], is_advised: bool, tmp_path: Path
) -> None:
    pids = [(worker * 28, int(worker, 16)) for worker in workers]
    kind = raised.partition(":")[0]
    text = task_exception._STATE.replace("KeyError: 'tea'", raised).replace(
        "(KeyError)", f"({kind})"
    )
    text = text.replace("pid=412", f"pid={0x6E}")
    files = {"driver.log": text, **task_exception._restarts(*pids)}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    with open_capture(str(tmp_path)) as capture:
        report = engine.run(capture, strict=True)
    root = next(root for root in report.roots if root.rule == "task-exception")
    assert any("Restore in" in each.title for each in root.remedies) == is_advised


def test_a_function_that_no_line_calls_may_be_a_handler(tmp_path: Path) -> None:
    assert any("too_late() is a signal handler" in each for each in titles(tmp_path, "too_late"))


@pytest.mark.parametrize("function", ["<listcomp>", "<genexpr>", "<lambda>", "__getitem__"])
def test_what_is_called_without_its_name_is_no_handler(function: str, tmp_path: Path) -> None:
    assert not any("signal handler" in each for each in titles(tmp_path, function))
