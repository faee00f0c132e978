"""Large arguments, breakpoints and jobs side by side: what a real cluster's own tables say of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import PATIENCE, limit

pytestmark = pytest.mark.ray
RAYDOCTOR = str(Path(sysconfig.get_path("scripts")) / "raydoctor")
ASKED = ("large-argument", "debugger-waiting", "several-jobs")
PROGRAM = """
import sys, time, ray
ray.init(log_to_driver=False)
@ray.remote(num_cpus=1)
def score(table, row): time.sleep(3600)
@ray.remote(num_cpus=0)
def clean(): breakpoint(); return 1
table = b"x" * 3_500_000
if sys.argv[1] == "by-value":
    refs = [score.remote(table, row) for row in range(12)]
    ref = clean.remote()
else:
    once = ray.put(table)
    refs = [score.remote(once, row) for row in range(12)]
    refs += [score.remote(b"x" * (3_500_000 + 64 * row), row) for row in range(1, 13)]
    held = [ray.put(table) for row in range(12)]
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[RealRay]:
    """A cluster."""
    with real_ray() as ray:
        ray.start(cpus=1, dashboard=False, lean=True)
        yield ray


@contextmanager
def running(ray: RealRay, how: str, **env: str) -> Iterator[int]:
    """The program, until the caller has looked; its pid."""
    log = f"{how}-{len(ray.drivers)}.txt"
    driver = ray.run(PROGRAM, how, env=env, log=log)
    try:
        ray.wait_for("ready", log)
        yield driver.pid
    finally:
        driver.send_signal(signal.SIGINT)
        driver.wait()


def look(ray: RealRay, until: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Rule -> diagnosis, of the rules asked for; again until these words are there: workers start slowly."""
    is_late = limit(PATIENCE)
    while True:
        done = subprocess.run(
            [RAYDOCTOR, "diagnose", "--address", ray.address, "--format", "json", "--this-node"],
            env={**ray.environment, "RAY_TMPDIR": str(ray.folder / "none")},
            capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode in (0, 1, 3), done.stderr
        found = {d["rule"]: d for d in json.loads(done.stdout)["diagnoses"] if d["rule"] in ASKED}
        if all(words in json.dumps(found) for words in until) or is_late():
            return found


def test_one_value_by_value_and_a_breakpoint(ray: RealRay) -> None:
    """Twelve copies, and who reads them; a task that waits, and where."""
    with running(ray, "by-value"):
        found = look(ray, until=("score.remote", "clean() (pid "))
        assert sorted(found) == ["debugger-waiting", "large-argument"]
        assert _listens(found["debugger-waiting"]["remedies"][1]["steps"][0])
    reply = found["large-argument"]
    assert "each hold an argument of the same size, 3.3 MiB" in reply["headline"]
    assert reply["severity"] == "warning"
    assert "score.remote(value_ref)" in str(reply["remedies"])


def test_one_value_by_value_with_creation_sites(ray: RealRay) -> None:
    """Then the line that calls is known, and that no `ray.put` made the copies."""
    with running(ray, "by-value", RAY_record_ref_creation_sites="1"):
        found = look(ray, until=("passed by value: they",))
    assert " at ‹string›:" in found["large-argument"]["headline"]
    assert found["large-argument"]["gaps"] == []


def test_values_that_are_not_copied(ray: RealRay) -> None:
    """Put once; a value of its own for each call; blocks that the program holds."""
    with running(ray, "otherwise"):
        assert look(ray) == {}


def _listens(step: str) -> bool:
    """Whether a process listens at the address of the launch configuration."""
    import socket

    where = json.loads(step)["connect"]
    with socket.create_connection((where["host"], where["port"]), 2):
        return True
