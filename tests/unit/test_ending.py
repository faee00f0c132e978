"""How a driver's output ends: which traceback ended it, and which it survived."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydoctor.model.values import Event, Gap, Source
from raydoctor.read import ending

FRAMES = 'Traceback (most recent call last):\n  File "/app/t.py", line 9, in <module>\n    main()\n  File "/app/t.py", line 4, in main\n    f()\n'
CAUGHT = 'Traceback (most recent call last):\n  File "/app/t.py", line 4, in main\n    f()\nValueError: x\n'
CHAIN = f"{CAUGHT}\nDuring handling of the above exception, another exception occurred:\n\n{FRAMES}KeyError: 'y'\n"
RAYS_NOISE = (
    "[2026-11-21 10:57:30,000 W 7 7] gcs_client.cc:1: disconnected\n"
    "2026-11-21 10:57:30,138\tINFO worker.py:2001 -- shutting down\n(raylet) a worker died\n(f pid=12) bye\n"
)


def end_of(folder: Path, text: str) -> Event:
    (folder / "driver.log").write_text(text)
    gaps: list[Gap] = []
    (event,) = ending.read({Source("driver.log", "driver"): str(folder / "driver.log")}, gaps)
    assert gaps == []
    return event


@pytest.mark.parametrize(
    "text",
    [
        f"epoch 1\n{FRAMES}ValueError: x\n",
        f"{FRAMES}ValueError: x\n{RAYS_NOISE}",
        f"{FRAMES}ValueError: two lines\n  the second is indented\n",
        f"{CAUGHT}went on\n{FRAMES}ValueError: x\n",
        f"{FRAMES}ray.exceptions.RayTaskError(KeyError): ray::f() (pid=1, ip=10.0.0.2)\n  File \"/app/t.py\", line 4, in f\nKeyError: 'y'\n",
        CHAIN,
    ],
)
def test_it_ended_the_program(tmp_path: Path, text: str) -> None:
    assert end_of(tmp_path, text)["ended_by"] == "traceback"


@pytest.mark.parametrize(
    "text",
    [
        "done\n",
        f"{FRAMES}ValueError: x\nwent on\n",
        CAUGHT,
        f"{FRAMES}ValueError: x\n{CAUGHT}",
        "".join(f"(f pid=12) {line}\n" for line in f"{FRAMES}ValueError: x".splitlines()) + "ok\n",
        f"{FRAMES}",
    ],
)
def test_it_did_not(tmp_path: Path, text: str) -> None:
    assert end_of(tmp_path, text)["ended_by"] == ""


def test_a_chain_is_one_traceback(tmp_path: Path) -> None:
    event = end_of(tmp_path, f"epoch 1\n{CHAIN}")
    assert event.line == 2
    assert event.text.startswith("Traceback")
    assert event.text.endswith("KeyError: 'y'")


def test_rays_own_lines_are_no_output(tmp_path: Path) -> None:
    (tmp_path / "driver.log").write_text(RAYS_NOISE)
    assert ending.read({Source("driver.log", "driver"): str(tmp_path / "driver.log")}, []) == []


def test_of_a_long_output_the_end_is_read(tmp_path: Path) -> None:
    event = end_of(tmp_path, "".join(f"epoch {n}\n" for n in range(20_000)))
    assert event.text.splitlines()[-1] == "epoch 19999"
    assert event.line == 20_000


def test_what_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    gaps: list[Gap] = []
    assert ending.read({Source("driver.log", "driver"): str(tmp_path / "gone")}, gaps) == []
    assert [gap.what for gap in gaps] == ["driver.log"]
