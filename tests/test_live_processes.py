"""The process table of a real cluster: who is what, and what outlived whom."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from real_ray import RealRay, real_ray

from raydoctor.collect import discover, proc, processes
from raydoctor.collect.cluster import Cluster
from raydoctor.collect.table import Piece

linux = pytest.mark.skipif(not proc.LINUX, reason="/proc")

DRIVER = """
import os, subprocess, sys, time
import ray
ray.init()

def detach(command):
    # The classic daemon: two forks, a session of its own, no open files.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            os.closerange(3, 256)
            os.execvp(command[0], command)
        os._exit(0)
    os.wait()

@ray.remote(num_cpus=0)
class Busy:
    def start(self):
        subprocess.Popen(["sleep", "3001"])
        return os.getpid()
    def detach(self):
        detach(["sleep", "3002"])
        return os.getpid()

@ray.remote(num_cpus=0)
class Doomed:
    def start(self):
        # Its own session, so that Ray's clean-up of the worker's group passes it over.
        subprocess.Popen(["sleep", "3003"], start_new_session=True)
        return os.getpid()

own = subprocess.Popen(["sleep", "3004"])
busy, doomed = Busy.remote(), Doomed.remote()
print("BUSY", ray.get(busy.start.remote()), ray.get(busy.detach.remote()))
print("DOOMED", ray.get(doomed.start.remote()))
print("READY")
for line in iter(lambda: os.path.exists(sys.argv[1]), True):
    time.sleep(0.1)
ray.kill(busy)
print("KILLED")
time.sleep(600)
"""


def rows(ray: RealRay) -> dict[str, dict[str, Any]]:
    """The table's rows of this cluster, by title."""
    cluster = discover.choose(discover.clusters(), session=str(ray.session))
    assert cluster is not None
    (piece,) = [p for p in processes.tables(cluster) if isinstance(p, Piece)]
    found = [json.loads(line.rstrip(",")) for line in piece.data.decode().splitlines()[1:-1]]
    return {r["title"]: r for r in found if r["is_this"]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealRay]:
    with real_ray() as ray:
        ray.start(dashboard=False)
        ray.run(DRIVER, str(ray.folder / "go"))
        ray.wait_for("READY")
        yield ray


@linux
@pytest.mark.ray
def test_table_of_a_healthy_cluster(cluster: RealRay) -> None:
    found = rows(cluster)
    said = (cluster.folder / "driver-0.txt").read_text()
    busy = int(said.split("BUSY ")[1].split()[0])
    worker = next(r for r in found.values() if r["pid"] == busy)
    assert (worker["kind"], worker["parent_kind"], worker["outlived"]) == ("worker", "daemon", "")
    assert f"python-core-worker-{worker['worker_id']}_{busy}.log" in os.listdir(
        cluster.session / "logs"
    )
    assert (
        worker["node_id"]
        == discover.choose(discover.clusters(), session=str(cluster.session)).node_ids[0]
    )  # type: ignore[union-attr]
    child = found["sleep 3001"]
    assert (child["kind"], child["parent_kind"], child["ppid"]) == ("child", "worker", busy)
    assert (child["worker_id"], child["worker_pid"]) == (worker["worker_id"], busy)
    assert child["raylet_pid"] == worker["ppid"] == worker["raylet_pid"]
    assert found["sleep 3004"]["parent_kind"] == "driver"
    assert found["sleep 3004"]["job_id"] == "01000000"
    assert {r["outlived"] for r in found.values()} == {""}


@linux
@pytest.mark.ray
def test_detached_process_of_a_busy_actor_is_in_its_place(cluster: RealRay) -> None:
    """Nothing says whose it is but the raylet's pid; the actor that started it lives."""
    detached = rows(cluster)["sleep 3002"]
    assert (detached["kind"], detached["outlived"]) == ("child", "")
    raylet = next(p for p in cluster.processes("raylet"))
    assert detached["raylet_pid"] == raylet.pid


@linux
@pytest.mark.ray
def test_killed_worker_leaves_a_process_behind(cluster: RealRay) -> None:
    said = (cluster.folder / "driver-0.txt").read_text()
    doomed = int(said.split("DOOMED ")[1].split()[0])
    before = rows(cluster)["sleep 3003"]
    assert before["outlived"] == ""
    os.kill(doomed, signal.SIGKILL)
    psutil.wait_procs([p for p in cluster.processes("ray::Doomed") if p.pid == doomed], timeout=5)
    time.sleep(1.0)
    left = rows(cluster)["sleep 3003"]
    assert left["outlived"] == "worker"
    assert (left["pid"], left["started_at"]) == (before["pid"], before["started_at"])
    assert (left["worker_pid"], left["worker_id"]) == (doomed, before["worker_id"])


@linux
@pytest.mark.ray
def test_no_variable_of_an_environment_is_told(cluster: RealRay) -> None:
    (piece,) = [p for p in processes.tables(Cluster(str(cluster.session))) if isinstance(p, Piece)]
    assert b"RAYDOCTOR_TEST" not in piece.data
    assert b"RAY_RAYLET_PID" not in piece.data


@linux
@pytest.mark.ray
def test_dead_raylet_leaves_a_process_behind(cluster: RealRay) -> None:
    """Last in this file: it ends the cluster."""
    (raylet,) = cluster.processes("raylet")
    cluster.remember()
    raylet.kill()
    deadline = time.monotonic() + 10
    while cluster.processes("ray::Busy") and time.monotonic() < deadline:
        time.sleep(0.2)
    found = {
        line["title"]: line
        for piece in processes.tables(Cluster())
        if isinstance(piece, Piece)
        for line in map(json.loads, (x.rstrip(b",") for x in piece.data.splitlines()[1:-1]))
    }
    assert found["sleep 3002"]["outlived"] == "raylet"
    assert found["sleep 3002"]["raylet_pid"] == raylet.pid
    assert psutil.pid_exists(found["sleep 3002"]["pid"])
