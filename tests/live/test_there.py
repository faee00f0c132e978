"""A function of raydoctor runs on the nodes that are asked, as a task that delays no other."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from raydoctor import cli
from raydoctor.act.zombies import sweep_nodes
from raydoctor.act.zombies.sweep import SweepNode, SweepReport, SweptMachine
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe import live
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.nodes import fan_out, there
from raydoctor.observe.nodes.programs import fan_out as driver
from raydoctor.observe.nodes.programs import there as on_node
from raydoctor.render import zombies as render
from raydoctor.render.page import plain
from tests.helpers import far_node
from tests.helpers.real_ray import RealRay, free_port, real_ray
from tests.helpers.waiting import clock

PROGRAM = """
import os, ray, signal, subprocess, time
ray.init(log_to_driver=False)
few = dict(num_cpus=0, resources={"far": 1}, max_retries=0)
@ray.remote(**few)
def leaver():
    for seconds in ("7300001", "7300002"):
        subprocess.Popen(["sleep", seconds], start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)
@ray.remote(**few)
def waiter():
    subprocess.run(["sh", "-c", "setsid sleep 7300003 &"])
    time.sleep(1000)
@ray.remote
def hold():
    time.sleep(600)
held = [hold.remote() for _ in range(20)]
while ray.available_resources().get("CPU", 0):
    time.sleep(0.1)
print("all taken", flush=True)
for node in ray.nodes():
    print("NODE", node["NodeID"], node["Resources"].get("far", 0), flush=True)
waiting, leaving = waiter.remote(), leaver.remote()
try:
    ray.get(leaving)
except ray.exceptions.WorkerCrashedError:
    print("told", flush=True)
try:
    ray.get(waiting)
except Exception as error:
    print("DONE", type(error).__name__, flush=True)
time.sleep(600)
"""
NOBODY = "ab" * 28
NAMESPACES = pytest.mark.skipif(not far_node.may_be_had(), reason="needs namespaces, as root")


@dataclass
class Two:
    """A cluster of this machine and another."""

    ray: RealRay
    raylet: psutil.Process
    """The far one's."""
    near: str
    far: str
    """Ids of the nodes."""

    def command(
        self, capsys: pytest.CaptureFixture[str], *words: str
    ) -> tuple[int, dict[str, Any]]:
        """What a command of ours says of it."""
        code = cli.execute([*words, "--address", self.ray.address, "--json"])
        return code, json.loads(capsys.readouterr().out)

    def ask(self, function: str, request: Any, seconds: float) -> dict[str, there.RemoteReply]:
        """What both say, and one that is none."""
        cluster = live.find(self.ray.address)[0]
        asks = dict.fromkeys((self.near, self.far, NOBODY), request)
        steps: list[tuple[int, int]] = []
        reply = there.ask(cluster, asks, function, seconds, lambda *at: steps.append(at))
        found = {answer.node: answer for answer in reply}
        assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
        return found


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with pytest.MonkeyPatch.context() as patch, real_ray(far_node.MULTI_NODE) as ray:
        for name, value in far_node.MULTI_NODE.items():
            patch.setenv(name, value)
        ray.start(cpus=1, dashboard=False, lean=True)
        node = far_node.join(ray)
        ray.run(PROGRAM)
        ray.wait_for("told")
        said = (ray.folder / "driver-0.txt").read_text().splitlines()
        rows = [line.split()[1:] for line in said if line.startswith("NODE")]
        ids = {bool(float(far)): node_id for node_id, far in rows}
        patch.setenv("XDG_STATE_HOME", ray.environment["HOME"])
        yield Two(ray, far_node.raylet(node), ids[False], ids[True])


@NAMESPACES
@pytest.mark.ray
def test_json_goes_there_and_comes_back_while_all_cpus_are_taken(two: Two) -> None:
    found = two.ask("json:dumps", {"a": [1, "ü"]}, 15)
    for node in (two.near, two.far):
        assert found[node] == there.RemoteReply(node, '{"a": [1, "\\u00fc"]}')
    assert found[NOBODY].problem == "the cluster has no such node"
    assert two.ray.processes("ray::raydoctor") == []


@NAMESPACES
@pytest.mark.ray
def test_a_node_that_is_frozen_is_reported_as_such(two: Two) -> None:
    two.raylet.suspend()
    try:
        began = clock()
        found = two.ask("time:sleep", 60, 4)
        assert clock() - began < there.CONNECT_S + 8 + 3
    finally:
        two.raylet.resume()
    assert "ran no task within 4 s: it is frozen" in found[two.far].problem
    assert " within 4 s" in found[two.near].problem


def test_a_node_that_runs_tasks_and_takes_too_long_is_distinguished() -> None:
    frozen = "its raylet ran no task within {} s: it is frozen or overloaded"
    patient = {"reach": 4.0, "each": 60.0}
    assert driver._too_late(patient, is_reached=False) == frozen.format(4)
    assert driver._too_late(patient, is_reached=True).endswith("did not reply within 60 s")
    assert driver._too_late({"each": 6.0}, is_reached=True) == frozen.format(6), "asked at once"


@NAMESPACES
@pytest.mark.ray
def test_another_raydoctor_is_reported(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(there, "__version__", "9.9.9")
    answer = two.ask("json:dumps", 1, 15)[two.near]
    assert "here 9.9.9" in answer.problem
    assert "-m pip install raydoctor==9.9.9" in answer.hint


def sleeping(first: int = 7300001, last: int = 7300002) -> set[str]:
    """Which of the program's sleepers run, on whatever node."""
    found = set()
    for process in psutil.process_iter(["cmdline", "status"]):
        words, status = process.info["cmdline"] or [], process.info["status"]
        if words[:1] == ["sleep"] and len(words) == 2 and status != psutil.STATUS_ZOMBIE:
            found |= {words[1]} & set(map(str, range(first, last + 1)))
    return found


@NAMESPACES
@pytest.mark.ray
def test_leftovers_of_another_node_are_found_and_ended_there(
    two: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sleeping() == {"7300001", "7300002"}
    session = ("zombies", "--session", two.ray.session.name)
    code, reply = two.command(capsys, *session, "--node", two.far[:8])
    assert code == 1
    assert {row["node"] for row in reply["leftovers"]} == {two.far}
    assert {row["command"] for row in reply["leftovers"]} == {"sleep 7300001", "sleep 7300002"}
    assert {row["kind"] for row in reply["leftovers"]} == {"orphan"}
    assert sleeping() == {"7300001", "7300002"}, "a dry run"
    code, reply = two.command(
        capsys, *session, "--all-nodes", "--kill", "--yes", "--inherited", "--grace", "2"
    )
    assert code == 0
    ended = [(row["node"], row["action"], row["outcome"]) for row in reply["leftovers"]]
    assert ended == [(two.far, "term", "gone")] * 2
    assert [(row["node"], row["problem"]) for row in reply["nodes"]] == [
        (two.near, ""),
        (two.far, ""),
    ]
    assert sleeping() == set()
    assert sleeping(7300003, 7300003), "what a living task has started"
    assert two.raylet.is_running()


@NAMESPACES
@pytest.mark.ray
def test_a_task_on_another_node_is_cancelled_there(
    two: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    code, reply = two.command(capsys, "cancel", "waiter", "--yes", "--grace", "1")
    assert code == 0
    assert reply["ended"]
    assert reply["steps"][-1]["outcome"] == "ended"
    taken = {step["step"]: step["outcome"] for step in reply["steps"]}
    assert taken["interrupt"] != "skipped", "only its own machine can do that"
    assert [each["command"] for each in reply["subprocesses"]] == ["sleep 7300003"]
    assert reply["leftovers"] == []
    two.ray.wait_for("DONE ")
    assert sleeping(7300003, 7300003) == set()


def responded(function: str, request: Any, room: int = 2000) -> tuple[dict[str, Any], bytes]:
    """What a task returns: what is said beside the answer, and that."""
    packed = zlib.compress(json.dumps({"function": function, "ask": request}).encode())
    about, _, data = b"".join(on_node.respond(packed, 2, room // 2)).partition(b"\n")
    return json.loads(about), data


def test_what_is_too_large_is_reported_and_not_cut() -> None:
    about, data = responded("json:loads", json.dumps("x" * 100_000))
    assert (about, json.loads(zlib.decompress(data))) == ({}, "x" * 100_000)
    about, data = responded("json:loads", json.dumps(list(range(1000))), 1100)
    assert "bytes, more than the limit of 76" in about["problem"]
    assert data == b""


def test_what_the_user_can_mend_keeps_its_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise RaydoctorError("no", "Do this.")

    monkeypatch.setattr(on_node, "refuse", refuse, raising=False)
    about, _ = responded(f"{on_node.__name__}:refuse", 1)
    assert about == {"problem": "no", "hint": "Do this."}


def test_a_cluster_that_is_not_there_is_reported_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(there, "CONNECT_S", 1.0)
    nobody = Cluster(gcs_address=f"127.0.0.1:{free_port()}", owner=os.geteuid())
    began = clock()
    (answer,) = there.ask(nobody, {NOBODY: 1}, "json:dumps", 5)
    assert answer.problem == "the cluster accepted no driver within 1 s"
    assert clock() - began < 4
    locked = Cluster(gcs_address="127.0.0.1:1", token_mode=True)
    (answer,) = there.ask(locked, {NOBODY: 1}, "json:dumps", 5)
    assert "requires a token" in answer.problem
    assert list(there.ask(nobody, {}, "json:dumps", 5)) == []


def test_a_child_takes_nothing_of_the_job_that_this_may_run_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"RAY_ADDRESS", "RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_AUTH_TOKEN"}
    for name in names:
        monkeypatch.setenv(name, "1")
    child = fan_out._environment()
    assert not names & set(child)
    assert child["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "0"


def row(number: int, ip: str, state: str = "ALIVE", why: str | None = None) -> dict[str, Any]:
    return {
        "node_id": f"{number}" * 56,
        "node_ip": ip,
        "node_name": f"host-{number}",
        "state": state,
        "state_message": why,
    }


ROWS = [
    row(1, "10.0.0.1"),
    row(2, "10.0.0.2"),
    row(3, "10.0.0.2", "DEAD", "Unexpected termination: health check failed"),
    row(4, "10.0.0.4", "DEAD", "Unexpected termination: health check failed"),
    row(5, "10.0.0.5", "DEAD", "Expected termination: received SIGTERM"),
]


@pytest.mark.parametrize(
    ("named", "here", "there_", "gone"),
    [
        ((), "1", "2", "4"),
        (("10.0.0.2",), "", "2", ""),
        (("222222", "host-2"), "", "2", ""),
        (("10.0.0.1", "555555"), "1", "", "5"),
    ],
)
def test_which_nodes_are_meant(
    named: tuple[str, ...], here: str, there_: str, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_nodes, "_nodes", lambda cluster: ROWS)
    monkeypatch.setattr(sweep_nodes, "_here", lambda cluster: ["1" * 56])
    choice = sweep_nodes.choose(Cluster(gcs_address="10.0.0.1:6379"), named)
    assert (choice.here.id[:1] if choice.here else "") == here
    assert [node.id[0] for node in choice.there] == list(there_)
    assert [place.node.id[0] for place in choice.gone] == list(gone)
    for stranger in ("10.0.0.9", "22222"):
        with pytest.raises(
            RaydoctorError, match=f"no node has the id, address or name {stranger}"
        ) as error:
            sweep_nodes.choose(Cluster(), [stranger])
        assert "222222222222 at 10.0.0.2" in error.value.hint


def test_a_cluster_that_does_not_report_its_nodes() -> None:
    with pytest.raises(RaydoctorError, match="no cluster runs"):
        sweep_nodes.choose(Cluster(), ())
    nobody = Cluster(gcs_address=f"127.0.0.1:{free_port()}")
    with pytest.raises(RaydoctorError, match="did not list its nodes"):
        sweep_nodes.choose(nobody, ())


def test_a_machine_that_did_not_answer_is_shown_as_such() -> None:
    nothing = SweepReport([], {}, [], {})
    places = [
        SweptMachine(SweepNode("1" * 56, "10.0.0.1"), nothing, is_here=True),
        SweptMachine(SweepNode("2" * 56, "10.0.0.2"), None, same_as="here"),
        SweptMachine(
            SweepNode("3" * 56, "10.0.0.3"), None, "raydoctor there is 0.0.9", "Install it there."
        ),
    ]
    page = plain(render.render(places, 100))
    assert page.splitlines() == [
        "node 111111111111 (10.0.0.1)",
        "  nothing is left over",
        "",
        "node 222222222222 (10.0.0.2)",
        "  the same machine as this one",
        "",
        "node 333333333333 (10.0.0.3)",
        "  not searched: raydoctor there is 0.0.9",
        "  Install it there.",
        "",
        "Nothing is left over on 1 machine; 1 node could not be searched.",
    ]
    rows = json.loads(render.to_json(places))["nodes"]
    assert [(r["problem"], r["same_as"]) for r in rows] == [
        ("", ""),
        ("", "here"),
        ("raydoctor there is 0.0.9", ""),
    ]
