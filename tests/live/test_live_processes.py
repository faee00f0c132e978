"""The process table of a real cluster: the kind of each process, and what outlived its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.values import Diagnosis
from raydoctor.observe.collector.cluster import Cluster, Daemon
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.machine import sessions
from raydoctor.observe.processes import discover, ownership, proc, processes
from raydoctor.observe.processes.ownership import Log, Machine
from raydoctor.observe.processes.proc import Process
from raydoctor.watch import watched_cluster
from tests.helpers.other_users import AS_ROOT, ATTACKER, VICTIM
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import PATIENCE

linux = pytest.mark.skipif(not proc.LINUX, reason="/proc")

DRIVER = """
import os, subprocess, time
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
        ray.start(dashboard=False, lean=True)
        ray.run(DRIVER)
        ray.wait_for("READY")
        yield ray


def leftovers(ray: RealRay, folder: Path) -> list[Diagnosis]:
    """What all rules together say of processes that are left over."""
    cluster = Cluster(str(ray.session))
    for piece in processes.tables(cluster):
        assert isinstance(piece, Piece)
        path = folder / piece.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(piece.data)
    with open_capture(str(folder)) as capture:
        report = engine.run(capture, strict=True)
    return [d for d in report.diagnoses if d.rule == "leftover-process"]


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
def test_a_healthy_cluster_has_nothing_left_over(cluster: RealRay, tmp_path: Path) -> None:
    assert [d.headline for d in leftovers(cluster, tmp_path) if "sleep 300" in d.headline] == []


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
def test_killed_worker_leaves_a_process_behind(cluster: RealRay, tmp_path: Path) -> None:
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
    reply = [
        d for d in leftovers(cluster, tmp_path) if any(s.pid == left["pid"] for s in d.subjects)
    ]
    assert [d.severity for d in reply] == ["warning"]
    assert f"it has the output of worker pid {doomed} open, and that worker has ended" in "\n".join(
        link.shows for link in reply[0].chain
    )
    assert not {"sleep 3001", "sleep 3002", "sleep 3004"} & {s.name for s in reply[0].subjects}


@linux
@pytest.mark.ray
def test_no_variable_of_an_environment_is_reported(cluster: RealRay) -> None:
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
    deadline = time.monotonic() + PATIENCE
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


# ------------------------------------------------------------------ the process table itself


@linux
def test_both_ways_to_read_a_process_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`/proc`, and psutil, which is the way on macOS."""
    with (tmp_path / "out").open("w") as out:
        child = subprocess.Popen(["sleep", "60"], stdout=out, env={"SEEN": "1", "HIDDEN": "2"})
    try:
        deadline = time.monotonic() + PATIENCE
        # `Popen` returns while the kernel still makes the new program's arguments.
        while not proc.command(child.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        read = proc.read(child.pid)
        reply = (
            proc.command(child.pid),
            proc.environment(child.pid, ["SEEN"]),
            proc.owner(child.pid),
        )
        assert proc.files(child.pid)[1] == str(tmp_path / "out")
        monkeypatch.setattr(proc, "LINUX", False)
        other = proc.table()[child.pid]
        assert read is not None
        assert abs(read.started_at - other.started_at) < 1.1
        assert (read.name, read.ppid) == (other.name, other.ppid) == ("sleep", os.getpid())
        assert (read.pgid, read.sid) == (other.pgid, other.sid) == (os.getpgid(0), os.getsid(0))
        assert reply == (("sleep", "60"), {"SEEN": "1"}, os.geteuid())
        assert reply == (
            proc.command(child.pid),
            proc.environment(child.pid, ["SEEN"]),
            proc.owner(child.pid),
        )
        assert str(tmp_path / "out") in proc.files(child.pid).values()
    finally:
        child.kill()
        child.wait()


@linux
def test_a_process_that_is_gone_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["true"])
    deadline = time.monotonic() + PATIENCE
    while proc.read(child.pid).state != "Z" and time.monotonic() < deadline:  # type: ignore[union-attr]
        time.sleep(0.01)
    assert proc.command(child.pid) == ()
    child.wait()
    for is_linux in (True, False):
        monkeypatch.setattr(proc, "LINUX", is_linux)
        assert proc.read(child.pid) is None
        assert proc.command(child.pid) == ()
        assert proc.environment(child.pid, ["PATH"]) is None
        assert proc.files(child.pid) == {}
        assert proc.owner(child.pid) is None


# ------------------------------------------------------------------ what follows, and what does not

RAYLET, WORKER, OTHER, ORPHAN = 40, 88, 90, 300
INHERITED = {"RAY_RAYLET_PID": str(RAYLET), "RAY_JOB_ID": "01000000"}


def process(pid: int, name: str, ppid: int, begun: float) -> Process:
    return Process(pid, name, "S", ppid, pid, pid, begun, 0.0, 1)


def machine(worker: str = "ray::train", raylet_begun: float = 1.0) -> Machine:
    """A raylet, a worker that is so called, and a process that detached itself from who started it."""
    found = {
        RAYLET: process(RAYLET, "raylet", 1, raylet_begun),
        WORKER: process(WORKER, worker, RAYLET, 10.0),
        ORPHAN: process(ORPHAN, "server", 1, 20.0),
    }
    return Machine(
        found,
        {RAYLET: Daemon("raylet", RAYLET, raylet_begun, "S", "/t/session_2", "n")},
        kinds={RAYLET: "daemon", WORKER: "worker", ORPHAN: "child"},
        variables={WORKER: INHERITED, ORPHAN: INHERITED},
    )


def whom(machine: Machine) -> str:
    return ownership.outlived_by(machine, machine.processes[ORPHAN])


def test_a_busy_worker_may_have_started_it() -> None:
    assert whom(machine("ray::train")) == ""


def test_who_may_have_started_it_is_idle() -> None:
    assert whom(machine("ray::IDLE")) == "task"


def test_every_worker_is_younger() -> None:
    known = machine()
    known.processes[WORKER] = process(WORKER, "ray::train", RAYLET, 30.0)
    assert whom(known) == "worker"


def test_the_worker_is_of_another_raylet() -> None:
    known = machine()
    known.variables[WORKER] = {**INHERITED, "RAY_RAYLET_PID": "41"}
    assert whom(known) == "worker"


def test_a_worker_that_may_not_be_read_may_have_started_it() -> None:
    known = machine()
    known.variables[WORKER] = None
    assert whom(known) == ""


def test_what_a_worker_of_no_job_started_is_not_one_s_that_was_started_for_a_job() -> None:
    known = machine()
    known.variables[ORPHAN] = {**INHERITED, "RAY_JOB_ID": "ffffffff"}
    assert whom(known) == "worker"
    known.variables[WORKER] = {**INHERITED, "RAY_JOB_ID": "ffffffff"}
    assert whom(known) == "", "that one was started before any job, too"
    known.variables[WORKER] = INHERITED
    known.variables[ORPHAN] = {"RAY_RAYLET_PID": str(RAYLET)}
    assert whom(known) == "", "a program has removed the job from its environment"


def test_the_raylet_s_pid_belongs_to_a_younger_raylet() -> None:
    assert whom(machine(raylet_begun=25.0)) == "raylet"


def test_its_output_names_the_worker() -> None:
    known = machine("ray::train")
    log = Log("/t/session_2", "", "ab" * 28, "01000000", OTHER)
    known.output[ORPHAN] = log
    assert whom(known) == "worker", "the busy one is not the one whose output it has"
    known.kinds[OTHER] = "worker"
    known.processes[OTHER] = process(OTHER, "ray::serve", RAYLET, 15.0)
    known.log[OTHER] = log._replace(kind="worker", worker="cd" * 28)
    assert whom(known) == "worker", "the pid is another worker's by now"
    known.log[OTHER] = log._replace(kind="worker")
    assert whom(known) == ""


# ------------------------------------------------------------------ sessions


def test_sessions_beside_the_one_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "base"))
    mine = tmp_path / "session_2026-02-02_00-00-00_000000_2"
    old = tmp_path / "session_2026-01-01_00-00-00_000000_1"
    elsewhere = tmp_path / "base" / "ray" / "session_2025-01-01_00-00-00_000000_3"
    for session in (mine, old, elsewhere):
        (session / "logs").mkdir(parents=True)
    (tmp_path / "session_latest").symlink_to(mine)
    (tmp_path / "other").mkdir()
    (old / "logs" / "raylet.out").write_bytes(b"x" * 100_000)
    os.link(old / "logs" / "raylet.out", old / "twice")
    for path in (*old.rglob("*"), old):
        os.utime(path, (1.0, time.time() - 5000))
    with (mine / "logs" / "python-core-driver-01ff_1.log").open("w"):
        (piece,) = sessions.tables(Cluster(str(mine)))
        assert isinstance(piece, Piece)
    reply = [json.loads(line.rstrip(b",")) for line in piece.data.splitlines()[1:-1]]
    found = {row["path"]: row for row in reply if row["path"].startswith(str(tmp_path))}
    assert list(found) == [str(mine), str(old), str(elsewhere)]
    assert [row["is_this"] for row in found.values()] == [True, False, False]
    assert 100_000 <= found[str(old)]["bytes"] < 200_000, "a file with two names counts once"
    assert 4990 < found[str(old)]["age_s"] < 5100
    assert found[str(mine)]["age_s"] < 60
    assert found[str(old)]["files"] == 3
    if proc.LINUX:
        # By the log that this test has open, as a driver of it would.
        assert [row["alive"] for row in found.values()] == [True, False, False]


def test_a_walk_that_is_cut_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = tmp_path / "session_2026-02-02_00-00-00_000000_2"
    for number in range(20):
        (session / f"f{number}" / "g").mkdir(parents=True)
    monkeypatch.setattr(sessions, "ENTRIES", 5)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    (piece,) = sessions.tables(Cluster(str(session)))
    assert isinstance(piece, Piece)
    rows = [json.loads(line.rstrip(b",")) for line in piece.data.splitlines()[1:-1]]
    assert [r["truncated"] for r in rows if r["path"] == str(session)] == [True]


@linux
@AS_ROOT
@pytest.mark.parametrize(
    ("user", "owner", "is_listed"),
    [
        (ATTACKER, 0, False),
        (ATTACKER, VICTIM, False),
        (ATTACKER, ATTACKER, True),
        (0, VICTIM, True),
        (0, 0, True),
    ],
)
def test_what_another_user_claims_to_be_a_leftover_is_not_reported(
    user: int, owner: int, is_listed: bool
) -> None:
    """Any user can start a process with the environment of a worker's child."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    environment = {"RAY_RAYLET_PID": str(gone.pid), "RAY_JOB_ID": "01000000"}
    cluster = Cluster(owner=owner)
    before = watched_cluster._count_leftovers(cluster)  # other tests leave some as well
    claims = subprocess.Popen(
        ["/usr/bin/sleep", "3009"], env=environment, user=user, group=user, start_new_session=True
    )
    try:
        (piece, *_) = processes.tables(cluster)
        assert isinstance(piece, Piece)
        rows = [row for row in json.loads(piece.data)["rows"] if row["pid"] == claims.pid]
        assert [row["outlived"] for row in rows] == (["raylet"] if is_listed else [])
        assert watched_cluster._count_leftovers(cluster) - before == is_listed
    finally:
        claims.kill()
        claims.wait()
