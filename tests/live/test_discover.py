"""Which clusters are found on a machine: real ones, half-dead ones, and the command lines of older Ray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from raydoctor.act.attach import target
from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.values import Diagnosis
from raydoctor.observe import live
from raydoctor.observe.collector.cluster import Cluster, Daemon
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.processes import daemons, discover, proc, processes
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import PATIENCE, Program, until

linux = pytest.mark.skipif(not proc.LINUX, reason="/proc")

DRIVER = """
import ray, time
ray.init()

@ray.remote(num_cpus=0)
class Alive:
    def pid(self):
        import os
        return os.getpid()

actor = Alive.remote()
print("ACTOR", ray.get(actor.pid.remote()))
print("READY")
time.sleep(600)
"""


def find(session: Path) -> Cluster:
    found = discover.choose(discover.clusters(), session=str(session))
    assert found is not None
    return found


def rows(name: str, cluster: Cluster) -> list[dict[str, Any]]:
    pieces = [p for p in discover.tables(cluster) if isinstance(p, Piece)]
    (data,) = [p.data for p in pieces if p.path == f"live/live-{name}.json"]
    return [json.loads(line.rstrip(b",")) for line in data.splitlines()[1:-1]]


def diagnosed(rule: str, cluster: Cluster, table: Piece, folder: Path) -> list[Diagnosis]:
    """What a rule says of the daemons and of this table, with all others at work."""
    for piece in (table, *discover.tables(cluster)):
        assert isinstance(piece, Piece)
        path = folder / piece.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(piece.data)
    with open_capture(str(folder)) as capture:
        report = engine.run(capture, strict=True)
    return [d for d in report.diagnoses if d.rule == rule]


# ------------------------------------------------------------------ real ones


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[RealRay, RealRay]]:
    with real_ray() as one, real_ray({"RAY_AUTH_MODE": "disabled"}) as other:
        one.start()
        other.start(dashboard=False, lean=True)
        one.run(DRIVER)
        one.wait_for("READY")
        yield one, other


@linux
@pytest.mark.ray
def test_two_clusters_at_once(two: tuple[RealRay, RealRay]) -> None:
    one, other = two
    sessions = [c.session_dir for c in discover.clusters()]
    assert sessions.index(str(other.session)) < sessions.index(str(one.session)), "the newest first"
    for ray in two:
        cluster = find(ray.session)
        assert cluster.gcs_address == ray.address
        (node,) = cluster.node_ids
        assert (ray.session / f"metrics_agent_port_{node}").exists()
        assert [d.pid for d in cluster.of("raylet")] == [p.pid for p in ray.processes("raylet")]
        assert cluster.is_up
        assert cluster.token_mode is False
    assert find(one.session).dashboard_address == one.dashboard
    assert find(other.session).dashboard_address == ""
    assert {d.kind for d in find(one.session).daemons} == {
        *("gcs_server", "raylet", "dashboard", "monitor", "log_monitor", "agent"),
        *("runtime_env_agent", "client_server"),
    }


@linux
@pytest.mark.ray
def test_tables_distinguish_this_cluster_from_the_other(two: tuple[RealRay, RealRay]) -> None:
    one, other = two
    reply = rows("daemons", find(one.session))
    mine = {r["session_dir"] for r in reply if r["is_this"]}
    assert mine == {str(one.session)}
    assert str(other.session) in {r["session_dir"] for r in reply if not r["is_this"]}
    (agent,) = [r for r in reply if r["is_this"] and r["kind"] == "agent"]
    assert agent["node_id"] == find(one.session).node_ids[0]
    assert agent["rss"] > 1 << 20
    clusters = {r["session_dir"]: r for r in rows("clusters", find(one.session))}
    assert clusters[str(one.session)]["is_this"]
    assert not clusters[str(other.session)]["is_this"]
    assert clusters[str(other.session)]["up"]
    assert clusters[str(other.session)]["gcs_address"] == other.address


@linux
@pytest.mark.ray
def test_it_is_quick(two: tuple[RealRay, RealRay]) -> None:
    def cost() -> float:
        begun = time.process_time()
        discover.clusters()
        return time.process_time() - begun

    among = max(200, len(proc.table()))
    assert min(cost() for _ in range(5)) < 0.015 * among / 200


@linux
@pytest.mark.ray
def test_defunct_raylet(two: tuple[RealRay, RealRay], tmp_path: Path) -> None:
    """Its parent does not ask for its end, as a PID 1 that is no init: it stays, and so do its workers."""
    one, _ = two
    actor = int((one.folder / "driver-0.txt").read_text().split("ACTOR ")[1].split()[0])
    before = find(one.session)
    one.nodes[0].send_signal(signal.SIGSTOP)
    (raylet,) = one.processes("raylet")
    raylet.kill()
    time.sleep(1.5)
    after = find(one.session)
    assert [(d.pid, d.state) for d in after.of("raylet")] == [(raylet.pid, "Z")]
    assert after.is_up
    assert after.gcs_address == before.gcs_address
    assert after.dashboard_address == before.dashboard_address
    assert after.node_ids == before.node_ids
    (row,) = [r for r in rows("daemons", after) if r["pid"] == raylet.pid]
    assert (row["state"], row["is_this"], row["ppid"]) == ("Z", True, one.nodes[0].pid)
    (table,) = [p for p in processes.tables(after) if isinstance(p, Piece)]
    reply = [json.loads(line.rstrip(b",")) for line in table.data.splitlines()[1:-1]]
    (worker,) = [r for r in reply if r["pid"] == actor]
    assert (worker["outlived"], worker["raylet_pid"]) == ("raylet", raylet.pid)
    assert worker["is_this"]
    every = diagnosed("raylet-defunct", after, table, tmp_path)
    (said,) = [d for d in every if d.subjects[0].pid == raylet.pid]
    assert f"The raylet (pid {raylet.pid}) has exited" in said.headline
    assert f"pid {actor} (ray::Alive)" in said.headline
    assert f"kill -CONT {one.nodes[0].pid}" in [step for r in said.remedies for step in r.steps]


# ------------------------------------------------------------------ older Ray, by its command lines


@contextmanager
def acting_as(
    name: str, folder: Path, arguments: list[str], env: dict[str, str], then: Sequence[str] = ()
) -> Iterator[int]:
    """A process that is called so and has these arguments; it starts another, and both wait."""
    program = folder / "ray" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    waits = "import subprocess, sys, time\nif len(sys.argv) > 1 and sys.argv[1] == 'then': subprocess.Popen(sys.argv[2:4])\ntime.sleep(60)\n"
    script = program if name.endswith(".py") else folder / "wait.py"
    script.write_text(waits)
    if name.endswith(".py"):
        command = [sys.executable, str(script), *arguments]
    else:
        # A copy and no link: the kernel names the file that a process runs.
        shutil.copy2(os.path.realpath(sys.executable), program)
        env = {**env, "PYTHONHOME": sys.base_prefix}
        command = [str(program), str(script), *then, *arguments]
    process = subprocess.Popen(command, env={**os.environ, **env}, start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE
        while name not in " ".join(proc.command(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@linux
def test_dashboard_alone(tmp_path: Path) -> None:
    session = tmp_path / "session_2026-11-21_10-00-00_000001_7"
    arguments = [
        *("--host=0.0.0.0", "--port=8265", f"--temp-dir={tmp_path}", f"--log-dir={session}/logs"),
        *("--gcs-address=10.0.0.5:6379", "--node-ip-address=10.0.0.5"),
    ]
    with acting_as(
        "dashboard/dashboard.py", tmp_path, arguments, {"RAY_AUTH_MODE": "token"}
    ) as pid:
        cluster = find(session)
    assert [(d.kind, d.pid) for d in cluster.daemons] == [("dashboard", pid)]
    assert cluster.gcs_address == "10.0.0.5:6379"
    assert cluster.dashboard_address == "10.0.0.5:8265"
    assert cluster.node_ids == ()
    assert cluster.token_mode is True


@linux
def test_gcs_alone_with_a_port_that_it_chose(tmp_path: Path) -> None:
    session = tmp_path / "session_2026-11-21_10-00-00_000002_7"
    session.mkdir()
    (session / f"gcs_server_port_{'ab' * 28}").write_text("41234\n")
    arguments = [
        *(f"--log_dir={session}/logs", "--gcs_server_port=0", "--node-ip-address=10.0.0.5"),
        *(f"--session-dir={session}", f"--node-id={'ab' * 28}"),
    ]
    with acting_as("gcs_server", tmp_path, arguments, {}):
        cluster = find(session)
    assert cluster.gcs_address == "10.0.0.5:41234"
    assert cluster.node_ids == ("ab" * 28,)
    assert cluster.dashboard_address == ""


@linux
def test_raylet_of_ray_2_9_has_its_node_from_its_agent(tmp_path: Path) -> None:
    """No raylet of 2.9 or 2.40 names its node; both start their agents with RAY_NODE_ID."""
    session = tmp_path / "session_2026-11-21_10-00-00_000003_7"
    agent = tmp_path / "ray" / "dashboard" / "agent.py"
    agent.parent.mkdir(parents=True)
    agent.write_text("import time\ntime.sleep(60)\n")
    arguments = [
        f"--session_dir={session}",
        "--python_worker_command=python default_worker.py --temp-dir=/t --webui=10.0.0.5:8265 X",
        "--gcs-address=10.0.0.5:6379",
    ]
    node = "cd" * 28
    then = ["then", sys.executable, str(agent)]
    with acting_as("raylet", tmp_path, arguments, {"RAY_NODE_ID": node}, then) as raylet:
        deadline = time.monotonic() + PATIENCE
        cluster = find(session)
        # Between fork and exec the agent looks like its parent.
        while [d.kind for d in cluster.daemons] != ["raylet", "agent"] and (
            time.monotonic() < deadline
        ):
            time.sleep(0.05)
            cluster = find(session)
    assert [(d.kind, d.node_id) for d in cluster.daemons] == [("raylet", node), ("agent", node)]
    assert cluster.of("raylet")[0].pid == raylet
    assert cluster.dashboard_address == "10.0.0.5:8265"
    assert cluster.token_mode is False


@linux
def test_what_only_looks_like_ray(tmp_path: Path) -> None:
    with acting_as(
        "my_dashboard.py", tmp_path, [f"--session-dir={tmp_path}/session_2x"], {}
    ) as pid:
        assert pid not in {s.daemon.pid for s in daemons.find()}


@linux
def test_a_helper_with_its_parents_words_is_no_daemon(tmp_path: Path) -> None:
    """So `multiprocessing` starts the dashboard's fork server with Python 3.14."""
    words = [
        "/x/site-packages/ray/dashboard/dashboard.py",
        f"--logs-dir={tmp_path}/session_2x/logs",
    ]
    for code, expected in ((["-c", "input()"], False), ([], True)):
        program = code or [_script(tmp_path)]
        with Program(
            [sys.executable, *program, *(words if code else words[1:])], stdin=subprocess.PIPE
        ) as process:
            found = {s.daemon.pid for s in daemons.find()}
            process.kill()
        assert (process.pid in found) is expected


def _script(folder: Path) -> str:
    path = folder / "ray/dashboard/dashboard.py"
    path.parent.mkdir(parents=True)
    path.write_text("input()")
    return str(path)


# ------------------------------------------------------------------ which is meant

OLD = Cluster("/tmp/ray/session_2026-01-01_a", "10.0.0.5:6379", "127.0.0.1:8265", daemons=(Daemon("gcs_server", 1, 1.0, "S"),))  # fmt: skip
NEW = Cluster("/tmp/ray/session_2026-02-02_b", "127.0.0.1:6380", "127.0.0.1:8266")


@pytest.mark.parametrize(
    ("address", "session", "wanted"),
    [
        (None, None, NEW),
        ("auto", None, NEW),
        ("10.0.0.5:6379", None, OLD),
        ("127.0.0.1:6379", None, OLD),
        ("localhost:6380", None, NEW),
        ("http://localhost:8265/", None, OLD),
        (None, "/tmp/ray/session_2026-01-01_a/", OLD),
        (None, "session_2026-01-01_a", OLD),
        (None, "session_2026-03-03_c", None),
        ("10.9.9.9:6379", None, Cluster(gcs_address="10.9.9.9:6379", typed=("10.9.9.9:6379",))),
        ("ray://127.0.0.1:10001", None, NEW),
        ("ray://10.9.9.9:10001", None, None),
        (
            "http://10.9.9.9:8265",
            None,
            Cluster(dashboard_address="10.9.9.9:8265", typed=("10.9.9.9:8265",)),
        ),
    ],
)
def test_choose(address: str | None, session: str | None, wanted: Cluster | None) -> None:
    assert discover.choose([NEW, OLD], address, session) == wanted


def test_nothing_to_choose_from() -> None:
    assert discover.choose([]) is None


@pytest.mark.parametrize(
    ("address", "chosen"),
    [
        ("", NEW),
        ("10.0.0.5:6379", OLD),
        ("localhost:6379", OLD),
        ("127.0.0.1:9", NEW),
        ("auto", NEW),
    ],
)
def test_ray_address_chooses_among_several_clusters(
    address: str, chosen: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(discover, "clusters", lambda: [NEW, OLD])
    cluster, notes = live.find()
    assert cluster.gcs_address == chosen.gcs_address
    other = OLD if chosen is NEW else NEW
    assert other.gcs_address in notes[0]
    assert ("of RAY_ADDRESS" in notes[0]) == (chosen is OLD)


def test_ray_address_leads_to_a_cluster_elsewhere_only_if_something_answers_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(discover, "clusters", lambda: [NEW])
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        cluster, notes = live.find()
        assert (cluster.gcs_address, notes) == (address, [])
    cluster, notes = live.find()
    assert cluster.gcs_address == NEW.gcs_address
    assert f"no cluster answers at RAY_ADDRESS={address}" in notes[-1]


def test_a_live_report_names_a_newer_session_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    old, new = (tmp_path / "ray" / f"session_2026-11-21_1{n}-00-00_000000_1" for n in (0, 1))
    old.mkdir(parents=True)
    running = Cluster(session_dir=str(old), daemons=(Daemon("raylet", 1, 0.0, str(old)),))
    assert live._newer_session(running) == []
    new.mkdir()
    (gap,) = live._newer_session(running)
    assert gap.optional
    assert f"raydoctor diagnose {new}" in gap.why
    assert live._newer_session(replace(running, session_dir=str(new))) == []
    monkeypatch.setattr(discover, "everything", lambda: [Cluster(session_dir=str(new))])
    assert live._newer_session(running) == []


@linux
def test_the_pids_of_a_container_are_not_those_of_this_machine() -> None:
    """A worker whose recorded pid is that of some process here is not that process."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() or subprocess.call([*inside, "true"], stderr=subprocess.DEVNULL):
        pytest.skip("needs a pid namespace of its own")
    with subprocess.Popen([*inside, "sleep", "87"]) as outside:
        try:
            until(lambda: psutil.Process(outside.pid).children())
            (contained,) = psutil.Process(outside.pid).children()
            raylets = {
                node: Daemon("raylet", pid, 0.0, "S", "/s", node)
                for node, pid in (("near", os.getpid()), ("contained", contained.pid))
            }
            cluster = Cluster("/s", node_ids=tuple(raylets), daemons=tuple(raylets.values()))
            assert not discover.has_other_pids(cluster)
            is_same = {
                node: target.is_here(
                    cluster, target.FoundProcess("worker", "", "", "", os.getpid(), node=node)
                )
                for node in raylets
            }
            assert is_same == {"near": True, "contained": False}
            alone = replace(cluster, daemons=(raylets["contained"],))
            assert discover.has_other_pids(alone)
        finally:
            outside.kill()
