"""`raydoctor status` on a real cluster whose dashboard is dead: what waits for what, and what is being built."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from raydoctor.cli import execute
from raydoctor.observe import live
from raydoctor.observe.watching import gauges
from raydoctor.observe.watching.watching import Watcher
from raydoctor.render.page import MAX_WIDTH
from raydoctor.render.status import SECTION
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.schemas import faults
from tests.helpers.waiting import PATIENCE

PROGRAM = """
import ray, time
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1)
class Desk:
    def write(self): time.sleep(600)
    def read(self): pass

@ray.remote
def work(*_): time.sleep(600)

@ray.remote(num_gpus=8)
def render(): pass

pip = {"packages": ["acme"], "pip_install_options": ["--index-url", "http://ann:hunter2@127.0.0.1:9/simple"]}
@ray.remote(num_cpus=0, runtime_env={"pip": pip})
def dressed(): pass

desk = Desk.remote()
ray.get(desk.__ray_ready__.remote())  # before the tasks take all CPUs
calls = [desk.write.remote(), desk.read.remote()]
first = work.remote()
refs = [work.remote(), work.remote(), work.options(name="after").remote(first), render.remote(), dressed.remote()]
print("ready", flush=True)
time.sleep(9999)
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[RealRay]:
    with real_ray() as cluster:
        cluster.start(dashboard=False, lean=True, runtime_envs=True)
        cluster.run(PROGRAM)
        cluster.wait_for("ready")
        yield cluster


@pytest.fixture
def status(
    ray: RealRay, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Reads the status of the cluster; a dashboard that accepts connections and never replies is not asked."""
    cluster, notes = live.find(ray.address)
    with closing(socket.create_server(("127.0.0.1", 0))) as dead:
        port = dead.getsockname()[1]
        dead.settimeout(0)
        found = replace(cluster, dashboard_address=f"127.0.0.1:{port}"), notes
        monkeypatch.setattr(live, "find", lambda _: found)
        yield lambda: read(ray, capsys)
        with pytest.raises(BlockingIOError):  # nothing has called it
            dead.accept()


def read(ray: RealRay, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert execute(["status", "--address", ray.address, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert faults(found) == []
    return found


@pytest.mark.ray
def test_what_waits_and_why(ray: RealRay, status: Callable[[], dict[str, Any]]) -> None:
    """The reasons are those of `hung`, the numbers those of `watch`."""
    expected = {
        "work": ("resources", 2, "waits for 1 CPU, held by 1 work() task"),
        "after": ("arguments", 1, "waits for an argument"),
        "render": ("resources", 1, "waits for 8 GPUs and 1 CPU, which no node has"),
        "Desk.read": ("actor-queue", 1, "is queued behind Desk.write() (pid "),
    }
    deadline = time.monotonic() + PATIENCE
    while True:  # tasks reach the GCS a second later
        found = status()
        waits = {each["name"]: each for each in found["tasks"]["waits"]}
        kinds = {name: (each["kind"], each["count"]) for name, each in waits.items()}
        if kinds.pop("dressed", None) and kinds == {
            name: (kind, count) for name, (kind, count, _) in expected.items()
        }:
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.3)
    for name, (_, _, reason) in expected.items():
        assert waits[name]["reason"].startswith(reason)
    assert (found["tasks"]["running"], found["tasks"]["pending"]) == (2, 6)
    assert found["actors"] == {"ALIVE": 1}
    cpus = next(each for each in found["resources"] if each["name"] == "CPU")
    assert cpus == {"name": "CPU", "used": 2.0, "total": 2.0}
    assert {gauge["what"] for gauge in found["gauges"]} == {"memory", "disk"}
    (build,) = found["environments"]
    assert (build["tool"], build["timeout_s"]) == ("pip", 600.0)
    watcher = Watcher(live.find(ray.address)[0])
    snapshot = watcher.snapshot()
    watcher.close()
    assert (len(snapshot.running), snapshot.waiting) == (2, 6)
    assert (found["workers"], found["drivers"]) == (snapshot.workers, snapshot.drivers)


@pytest.mark.ray
def test_a_live_report_ends_with_the_status(
    ray: RealRay, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(["diagnose", "--address", ray.address])
    printed = capsys.readouterr().out
    section = printed[printed.index("\nStatus  ") + 1 :].partition("\n\n")[0].splitlines()
    assert len(section) <= SECTION
    assert all(len(line) <= MAX_WIDTH for line in section)
    assert any("2 × work" in line for line in section)
    execute(["diagnose", "--address", ray.address, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert faults(report) == []
    assert report["status"]["tasks"]["pending"] == 6
    assert "hunter2" not in printed + json.dumps(report)
    execute(["diagnose", "--address", ray.address, "--format", "markdown"])
    assert "```text\nStatus  " in capsys.readouterr().out


@pytest.mark.ray
def test_the_exit_code_shows_what_could_not_be_read(
    ray: RealRay, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no /proc")

    with monkeypatch.context() as patched:
        patched.setattr(gauges, "tables", broken)
        assert execute(["status", "--address", ray.address]) == 3
    printed = capsys.readouterr().out
    assert "unknown: memory and disks: failed: OSError: no /proc" in printed
    assert "2 × work" in printed
    (gcs,) = ray.processes("gcs_server")
    os.kill(gcs.pid, signal.SIGKILL)
    assert execute(["status", "--address", ray.address]) == 2
    complaint = capsys.readouterr().err
    assert f"the GCS at {ray.address} refused the connection" in complaint
    assert "raydoctor diagnose" in complaint
    ray.end()
