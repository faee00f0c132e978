"""The pytest plugin on real Ray: which tests get a diagnosis, and of what."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.helpers.real_ray import RETRIES, has_started, turn_to_start

TESTS = """
import os, time, pytest, ray

@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()

@ray.remote(max_retries=0)
def parse(text):
    return float(text)

@ray.remote(max_retries=0)
def crash():
    os._exit(7)

def test_that_passes(cluster):
    assert ray.get(parse.remote("1.5")) == 1.5

def test_that_raises(cluster):
    ray.get(parse.remote("n/a"))

def test_that_crashes(cluster):
    ray.get(crash.remote())

def test_without_ray():
    raise KeyError("price")
"""
ENDED = """
import ray

@ray.remote(max_retries=0)
def parse(text):
    return float(text)

def test_that_ends_ray():
    ray.init(num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1")
    try:
        ray.get(parse.remote("n/a"))
    finally:
        ray.shutdown()
"""


@pytest.fixture(name="folder")
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rpp", dir="/tmp"))  # short: sockets have short paths
    yield path
    shutil.rmtree(path, ignore_errors=True)


def run(folder: Path, tests: str, *options: str) -> str:
    """What pytest prints for these tests."""
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest"]
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    output = ""
    for attempt in range(RETRIES):
        with turn_to_start() if attempt else nullcontext():
            output = subprocess.run(
                [*command, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(folder), *options, "test_it.py"],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            ).stdout  # fmt: skip
        if has_started(output):
            break
    return output


def sections(output: str) -> dict[str, str]:
    """The section of each failed test; empty if it has none."""
    found = {}
    for part in output.partition("= FAILURES =")[2].split("\n____")[1:]:
        name = part.split()[1]
        body = part.partition("raydoctor ---")[2].partition("\n--------")[0]
        found[name] = body.partition("\n")[2]
    return found


@pytest.mark.ray
def test_a_failed_test_that_used_ray_gets_its_diagnosis(folder: Path) -> None:
    output = run(folder, TESTS, "--raydoctor")
    assert "3 failed, 1 passed" in output
    found = sections(output)
    assert "task-exception" in found["test_that_raises"], output
    assert "could not convert string to float" in found["test_that_raises"]
    assert "worker-vanished" in found["test_that_crashes"], output
    assert "task-exception" not in found["test_that_crashes"]  # that was the test before
    assert "worker-" not in found["test_without_ray"]


@pytest.mark.ray
def test_a_session_that_has_ended_is_diagnosed(folder: Path) -> None:
    (folder / "pytest.ini").write_text("[pytest]\nraydoctor = true\n")
    found = sections(run(folder, ENDED))
    assert "task-exception" in found["test_that_ends_ray"]


def test_it_does_nothing_unless_it_is_wanted(folder: Path) -> None:
    tests = "import sys\n\ndef test_it():\n    assert ' '.join(sorted(m for m in sys.modules if 'raydoctor' in m)) == ''\n"
    output = run(folder, tests)
    loaded = "raydoctor raydoctor.integrations raydoctor.integrations.pytest_plugin"
    assert f"+ {loaded}\n" in output, output
    assert "raydoctor ---" not in output
