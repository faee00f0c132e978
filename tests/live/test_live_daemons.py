"""Who is connected to what, and which of Ray's own processes are gone or stand still: live, on a real cluster.

One cluster is taken apart bit by bit, so the order of the tests counts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.machine import addresses, settings
from raydoctor.observe.processes import discover
from tests.helpers.real_ray import RealRay, free_port, real_ray
from tests.helpers.waiting import PATIENCE, clock

pytestmark = pytest.mark.ray
RAYDOCTOR = str(Path(sysconfig.get_path("scripts")) / "raydoctor")
WHOLE_MACHINE = ("leftover-process", "raylet-defunct", "stale-session")
"""Rules that look at what other clusters left behind: other tests' clusters run on this machine, too."""
TOKEN = "f3c9d1a0b7e64c25a8d90e1f2b3c4d5e"
PROGRAM = """
import ray, time
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0)
def quick(): return 1
ray.get(quick.remote())
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[RealRay]:
    """A cluster and its driver; what `ray start --block` would do about dead daemons is held up."""
    with real_ray({"RAY_max_io_workers": "3"}) as ray:
        ray.start(cpus=1, lean=True)
        ray.run(PROGRAM, env={"RAY_local_fs_capacity_threshold": "0.95"})
        ray.wait_for("ready")
        ray.remember()
        os.kill(ray.nodes[0].pid, signal.SIGSTOP)
        yield ray


def cluster_of(ray: RealRay) -> Cluster:
    """It as discovery finds it."""
    found = discover.choose(discover.clusters(), ray.address)
    assert found is not None
    return found


def rows(pieces: Iterator[Any]) -> list[dict[str, Any]]:
    """The rows of the one table."""
    (piece,) = [p for p in pieces if isinstance(p, Piece)]
    found = json.loads(piece.data)["rows"]
    assert isinstance(found, list)
    return found


def diagnoses(ray: RealRay, env: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Rule -> diagnosis of a live run, of warning and above; `RAY_TMPDIR` keeps this machine's own address file out."""
    done = subprocess.run(
        [RAYDOCTOR, "diagnose", "--address", ray.address, "--timeout", "3", "--format", "json", "--this-node"],
        env={**ray.environment, "RAY_TMPDIR": str(ray.folder / "none"), **(env or {})},
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode in (0, 1, 3), done.stderr
    found = json.loads(done.stdout)["diagnoses"]
    return {
        d["rule"]: d for d in found if d["rule"] not in WHOLE_MACHINE and d["severity"] != "info"
    }


def test_good_health_is_silent(ray: RealRay) -> None:
    """The driver's one setting is Ray's default; the raylet's own is no driver's matter."""
    assert diagnoses(ray) == {}


def test_addresses(ray: RealRay, tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    (folder / "ray_current_cluster").write_text(f"localhost:{ray.port}\n")
    found = rows(addresses.tables(cluster_of(ray), {"RAY_TMPDIR": str(tmp_path)}))
    reply = {Path(row["origin"]).name: row for row in found if str(tmp_path) in row["origin"]}
    assert reply["ray_current_cluster"]["is_this"] is True, "another name of the same place"
    assert reply["ray_current_cluster"]["used"] is True
    (folder / "ray_current_cluster").write_text(f"127.0.0.1:{free_port()}")
    for said, answers in (("auto", None), ("ray://127.0.0.1:10001", None), (ray.address, True)):
        environ = {"RAY_TMPDIR": str(tmp_path), "RAY_ADDRESS": said}
        found = rows(addresses.tables(cluster_of(ray), environ))
        assert (found[0]["address"], found[0]["answers"]) == (said, answers)
        (used,) = [row for row in found if row["used"]]
        assert used["origin"] == ("raylet" if said == "auto" else "RAY_ADDRESS")


def test_a_file_of_a_cluster_that_is_gone(ray: RealRay, tmp_path: Path) -> None:
    """Ray's own commands wait 40 s for it."""
    (tmp_path / "ray").mkdir()
    file = tmp_path / "ray" / "ray_current_cluster"
    file.write_text(f"127.0.0.1:{free_port()}")
    began = clock()
    found = diagnoses(ray, {"RAY_TMPDIR": str(tmp_path)})
    assert clock() - began < 15
    assert list(found) == ["wrong-cluster"]
    assert found["wrong-cluster"]["severity"] == "error"
    steps = [step for remedy in found["wrong-cluster"]["remedies"] for step in remedy["steps"]]
    assert any(step.startswith(f"rm {file}") for step in steps)
    assert f"export RAY_ADDRESS={ray.address}" in steps
    assert diagnoses(ray, {"RAY_TMPDIR": str(tmp_path), "RAY_ADDRESS": ray.address}) == {}


def test_settings(ray: RealRay) -> None:
    """A threshold that only the driver has; secrets stay where they are."""
    secrets = {"RAY_AUTH_TOKEN": TOKEN, "RAY_MY_PASSWORD": TOKEN, "RAY_API_KEY": TOKEN}
    driver = ray.run(
        PROGRAM, env={**secrets, "RAY_memory_usage_threshold": "0.8"}, log="second.txt"
    )
    ray.wait_for("ready", "second.txt")
    pieces = [p for p in settings.tables(cluster_of(ray)) if isinstance(p, Piece)]
    assert pieces
    assert all(TOKEN.encode() not in p.data and b"PASSWORD" not in p.data for p in pieces)
    table = {(r["driver_pid"], r["setting"]): r for r in rows(iter(pieces))}
    threshold = table[driver.pid, "RAY_memory_usage_threshold"]
    assert (threshold["raylet"], threshold["gcs"], threshold["driver"]) == (None, None, "0.8")
    assert table[driver.pid, "RAY_max_io_workers"]["raylet"] == "3"
    found = diagnoses(ray)["setting-not-applied"]
    driver.send_signal(signal.SIGINT)  # a driver that is killed would be a finding of its own
    driver.wait(30)
    assert "RAY_memory_usage_threshold=0.8" in found["headline"]
    assert str(driver.pid) in found["headline"]
    assert "0.95 (the default)" in found["headline"]


def test_a_raylet_that_is_stopped(ray: RealRay) -> None:
    """As the same incident is named afterwards: a node that stood still."""
    (raylet,) = ray.processes("raylet")
    raylet.suspend()
    try:
        found = diagnoses(ray)
    finally:
        raylet.resume()
    assert [rule for rule, d in found.items() if d["severity"] in ("critical", "error")] == [
        "clock-skew"
    ]
    assert f"pid {raylet.pid}" in found["clock-skew"]["headline"]
    assert f"kill -CONT {raylet.pid}" in str(found["clock-skew"]["remedies"])


def test_a_dashboard_that_is_stopped_and_one_that_was_killed(ray: RealRay) -> None:
    (dashboard,) = ray.processes("ray/dashboard/dashboard.py")
    dashboard.suspend()
    stopped = diagnoses(ray)
    dashboard.kill()
    time.sleep(2)  # its modules look once a second
    killed = diagnoses(ray)
    assert list(stopped) == list(killed) == ["dashboard-died"]
    assert f"kill -CONT {dashboard.pid}" in str(stopped["dashboard-died"]["remedies"])
    assert "is gone" in killed["dashboard-died"]["headline"]
    assert str(dashboard.pid) in killed["dashboard-died"]["headline"]


def test_a_gcs_that_was_killed(ray: RealRay) -> None:
    """Before any log says so: raylets wait 60 s for it, and Ray's own commands 40 s."""
    (gcs,) = ray.processes("gcs_server")
    gcs.kill()
    time.sleep(0.5)
    began = clock()
    found = diagnoses(ray)
    assert clock() - began < 15
    below = {name for d in found.values() for name in d["consequences"]}
    assert [rule for rule, d in found.items() if d["id"] not in below] == ["gcs-died"]
    assert found["gcs-died"]["severity"] == "critical"
