"""What a cluster says of itself, by its dashboard and by gRPC: the same, whichever of them is dead or hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
import pytest

from raydoctor.act.audit import Audit
from raydoctor.act.cancel import job
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster, Token
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.collector.run import run
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.gcs import dashboard, gcs, metrics, state
from raydoctor.observe.gcs.replies import Reply
from raydoctor.observe.machine import clocks
from raydoctor.observe.nodes import agents_logs
from raydoctor.observe.preflight import probes
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import PATIENCE, clock, limit, until

SECRET = "5f0e4b1d9a7c4e36a1f28d7b60c3e952"
LOCK = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": SECRET}
HASTE = {"RAY_metrics_report_interval_ms": "1000"}
TABLES = {*dashboard.TABLES, "resources", "demands", "worker-stats"}
MIX = """
import os, ray, time
from ray.util.placement_group import placement_group
ray.init(namespace="mix")

@ray.remote(num_cpus=0)
def sleeps(): time.sleep(9999)

@ray.remote(num_cpus=0)
def waits(refs): return ray.get(refs[0])

@ray.remote(num_cpus=1, max_retries=0)
def fails(i): raise ValueError(f"number {i}")

@ray.remote(num_cpus=64, resources={"unheard_of": 1})
def never(): pass

@ray.remote(num_cpus=0)
class Keeper:
    def ping(self): return os.getpid()
    def sleep(self): time.sleep(9999)

@ray.remote(num_cpus=0)
class Broken:
    def __init__(self): raise RuntimeError("no")

keeper = Keeper.options(name="keeper", lifetime="detached").remote()
killed = Keeper.remote()
ray.get([keeper.ping.remote(), killed.ping.remote()])
ray.kill(killed)
broken = Broken.remote()
big = ray.put(b"x" * 1_000_000)
ready = placement_group([{"CPU": 1}], name="ready")
ray.get(ready.ready())
waiting = placement_group([{"CPU": 99}, {"CPU": 1}], strategy="STRICT_SPREAD", name="waiting")
done = [fails.remote(i) for i in range(300)]
ray.wait(done, num_returns=300)
more = [never.remote() for _ in range(1200)]
held = [sleeps.remote(), keeper.sleep.remote(), waits.remote([more[0]])]
print("ready", flush=True)
time.sleep(9999)
"""

WAITING = """
import time, ray
ray.init()

@ray.remote(num_cpus=0)
def dozes(): time.sleep(9999)

@ray.remote(num_cpus=64)
def also_never(): pass

held = dozes.remote()
more = [also_never.remote() for _ in range(5500)]
print("ready", flush=True)
time.sleep(9999)
"""


def cluster_of(ray: RealRay, **more: Any) -> Cluster:
    token = Token(SECRET, "RAY_AUTH_TOKEN") if ray.environment.get("RAY_AUTH_TOKEN") else None
    known = {
        "session_dir": str(ray.session),
        "gcs_address": ray.address,
        "dashboard_address": ray.dashboard,
        "token": token,
    }
    return Cluster(**{**known, **more})


class Seen:
    """What a collection brought, and how long it took."""

    def __init__(self, cluster: Cluster, timeout: float = 10.0) -> None:
        began = clock()
        items = list(state.tables(cluster, timeout))
        self.seconds = clock() - began
        self.tables = {}
        for item in items:
            if isinstance(item, Piece):
                head = json.loads(item.data)
                self.tables[head["table"]] = head
        self.gaps = [item for item in items if isinstance(item, Gap)]
        self.said = b"".join(item.data for item in items if isinstance(item, Piece)) + repr(self.gaps).encode()  # fmt: skip

    def rows(self, name: str) -> list[dict[str, Any]]:
        return list(self.tables[name]["rows"])

    @property
    def probes(self) -> dict[str, str]:
        return {row["name"]: row["outcome"] for row in self.rows("probes")}

    @property
    def sources(self) -> set[str]:
        return {self.tables[name]["from"] for name in dashboard.TABLES if name in self.tables}


@pytest.fixture(scope="module")
def ray() -> Iterator[RealRay]:
    """A cluster in token mode with everything in it."""
    with real_ray({**LOCK, **HASTE}) as ray:
        ray.start(lean=True)
        ray.run(MIX, log="mix.txt")
        ray.wait_for("ready", "mix.txt")
        settled(ray, {"sleeps", "waits", "Keeper.sleep"}, 1500)
        yield ray


@pytest.fixture(scope="module")
def seen(ray: RealRay) -> Seen:
    """What is brought in good health; on a busy machine, the agent has no metrics at first."""
    for _ in range(20):
        found = Seen(cluster_of(ray))
        if not found.gaps:
            break
        time.sleep(1)
    return found


def settled(ray: RealRay, running: set[str], total: int) -> None:
    """Workers report their tasks to the GCS once a second."""

    def is_settled() -> bool:
        (tasks,) = child.ask(ray.address, access, ("tasks",), 20.0)
        names = {row["name"] for row in tasks.rows if row["state"] == "RUNNING"}
        return running <= names and tasks.total >= total

    access = Access(ray.environment.get("RAY_AUTH_TOKEN", ""))
    child = gcs.Child()  # one: it takes most of a second of a core to start
    try:
        until(is_settled, every=0.2)
    finally:
        child.end()


def by_key(rows: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[key] for key in keys): row for row in rows}


def end(process: psutil.Process) -> None:
    """Its parent may be stopped, so that it is not reaped."""
    process.kill()
    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)


@contextmanager
def stopped(*processes: psutil.Process) -> Iterator[None]:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


@pytest.mark.ray
def test_a_healthy_cluster(seen: Seen) -> None:
    assert not seen.gaps
    assert set(seen.tables) >= {*TABLES, "probes", "ray-get", "task-counts"}
    assert seen.probes == {"gcs": "ok", "dashboard": "ok", "auth": "ok"}
    assert seen.sources == {"dashboard", "gcs"}
    states = {(row["name"], row["state"]) for row in seen.rows("tasks")}
    assert states >= {
        ("sleeps", "RUNNING"),
        ("waits", "RUNNING"),
        ("Keeper.sleep", "RUNNING"),
        ("never", "PENDING_NODE_ASSIGNMENT"),
        ("fails", "FAILED"),
    }
    assert not [row for row in seen.rows("tasks") if row["state"] == "FINISHED"]
    demands = {row["kind"]: row for row in seen.rows("demands")}
    assert demands["task-or-actor"]["shape"] == {"CPU": 64.0, "unheard_of": 1.0}
    assert demands["task-or-actor"]["count"] > 0
    group = demands["placement-group"]
    assert (group["shape"], group["strategy"]) == ({"CPU": 100.0}, "STRICT_SPREAD")
    (node,) = seen.rows("resources")
    assert (node["total"]["CPU"], node["available"]["CPU"]) == (2.0, 1.0)
    assert node["is_head"] is True
    assert node["state"] == "ALIVE"


@pytest.mark.ray
def test_workers_say_what_they_run(ray: RealRay, seen: Seen) -> None:
    named = {row["task_id"]: row["name"] for row in seen.rows("tasks")}
    running = {
        named[task]: row for row in seen.rows("worker-stats") for task in row["running_task_ids"]
    }
    assert set(running) == {"sleeps", "waits", "Keeper.sleep"}
    assert running["Keeper.sleep"]["actor_id"]
    assert all(row["answers"] for row in seen.rows("worker-stats"))
    driver = next(row for row in seen.rows("worker-stats") if row["worker_type"] == "DRIVER")
    assert driver["pid"] == ray.drivers[0].pid


@pytest.mark.ray
def test_long_lists_are_cut_and_say_so(seen: Seen) -> None:
    tasks = seen.tables["tasks"]
    failed = [row for row in tasks["rows"] if row["state"] == "FAILED"]
    waiting = [row for row in tasks["rows"] if row["name"] == "never"]
    assert (len(failed), len(waiting)) == (200, 1000)
    assert tasks["total"] >= 1500
    # The last that failed: the numbers rise, one runs at a time.
    numbers = {int(found[1]) for row in failed if (found := re.search(r"number (\d+)", row["error_message"]))}  # fmt: skip
    assert numbers >= set(range(110, 300))


def submit(ray: RealRay) -> None:
    """A job that runs and is no driver."""
    url = f"http://{ray.dashboard}/api/jobs/"
    head = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}
    asked = {"entrypoint": "sleep 9999", "submission_id": "asleep", "metadata": {"for": "a test"}}
    urlopen(Request(url, json.dumps(asked).encode(), head), timeout=30).close()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with urlopen(Request(f"{url}asleep", headers=head), timeout=30) as reply:
            if json.load(reply)["status"] == "RUNNING":
                return
        time.sleep(0.1)
    raise AssertionError("the job does not run")


KEYS = {
    "nodes": ("node_id",),
    "actors": ("actor_id",),
    "workers": ("worker_id",),
    "jobs": ("job_id", "submission_id"),
    "placement-groups": ("placement_group_id",),
    "objects": ("object_id", "pid"),
    "tasks": ("task_id", "attempt_number"),
}


@pytest.mark.ray
def test_both_ways_show_the_same(ray: RealRay) -> None:
    """Field by field, for every key that both know.

    What differs must differ every time: between two answers, Ray's job manager has sent its supervisor another
    ping, which is another object.
    """
    submit(ray)
    child = gcs.Child()
    asked = Access(SECRET), tuple(KEYS), PATIENCE

    def compared() -> dict[Any, Any]:
        return compare(
            {t.name: t for t in dashboard.tables(ray.dashboard, *asked)},
            {t.name: t for t in child.ask(ray.address, *asked)},
        )

    try:
        differences, is_late = compared(), limit(PATIENCE)
        while differences and not is_late():
            time.sleep(0.3)
            differences = {at: new for at, new in compared().items() if at in differences}
    finally:
        child.end()
    assert differences == {}


def compare(one: dict[str, Reply], other: dict[str, Reply]) -> dict[Any, Any]:
    """Both values, by table, row and field; no field where one has no such row."""
    differences: dict[Any, Any] = {}
    for name, key in KEYS.items():
        assert not one[name].why + other[name].why
        assert one[name].rows
        left, right = by_key(one[name].rows, *key), by_key(other[name].rows, *key)
        both = left.keys() & right.keys()
        if name == "tasks":  # of those that wait, one way gives some
            assert len(both) > 1200
        else:
            differences |= {
                (name, each, ""): (left.get(each), right.get(each))
                for each in left.keys() ^ right.keys()
            }
        for each in both:
            shared = left[each].keys() & right[each].keys()
            assert len(shared) > 8
            differences |= {
                (name, each, field): (left[each][field], right[each][field])
                for field in shared
                if left[each][field] != right[each][field]
            }
    return differences


@pytest.mark.ray
def test_what_waits_in_ray_get(ray: RealRay) -> None:
    """The state API calls it RUNNING. Workers report their metrics every 10 s, here every second."""
    for _ in range(60):
        seen = Seen(cluster_of(ray))
        if seen.rows("ray-get"):
            break
        time.sleep(1)
    (row,) = seen.rows("ray-get")
    assert (row["name"], row["state"], row["count"]) == ("waits", "RUNNING_IN_RAY_GET", 1)
    assert {(r["name"], r["state"]): r["count"] for r in seen.rows("task-counts")}["never", "PENDING_NODE_ASSIGNMENT"] == 1200  # fmt: skip


@pytest.mark.ray
def test_only_the_dashboard_can_be_reached(ray: RealRay) -> None:
    seen = Seen(cluster_of(ray, gcs_address=""), timeout=PATIENCE)
    assert seen.sources == {"dashboard"}
    assert {row["name"] for row in seen.rows("tasks")} >= {"sleeps", "waits", "never", "fails"}
    (gap,) = seen.gaps
    assert "resources" in gap.what
    assert not gap.optional


@pytest.mark.ray
@pytest.mark.parametrize("way", ["both", "gcs"])
@pytest.mark.parametrize(
    ("token", "said"),
    [(None, "none is in RAY_AUTH_TOKEN"), (Token("0" * 32, "somewhere"), "somewhere")],
)
def test_a_token_that_is_missing_or_wrong(
    ray: RealRay, way: str, token: Token | None, said: str
) -> None:
    only = {"dashboard_address": ""} if way == "gcs" else {}
    seen = Seen(cluster_of(ray, token=token, **only))
    (gap,) = seen.gaps
    assert said in gap.why
    assert "ray get-auth-token" in gap.hint
    assert seen.probes["auth"] == seen.probes["gcs"] == "unauthenticated"
    assert set(seen.tables) == {"probes"}
    assert seen.seconds < 8
    assert SECRET.encode() not in seen.said
    assert b"0" * 32 not in seen.said


@pytest.mark.ray
def test_the_token_is_visible_to_no_user(ray: RealRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in what is collected nor where others could read it of the child."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
    assert SECRET.encode() not in Seen(cluster_of(ray)).said
    child = gcs.Child()
    try:
        assert [
            reply.why for reply in child.ask(ray.address, Access(SECRET), ("nodes",), 20.0)
        ] == [""]
        (process,) = (
            p for p in psutil.Process().children() if any("gcs_tables" in w for w in p.cmdline())
        )
        for name in ("environ", "cmdline"):
            assert SECRET.encode() not in Path(f"/proc/{process.pid}/{name}").read_bytes()
    finally:
        child.end()


@pytest.mark.ray
def test_a_stopped_worker_does_not_answer(ray: RealRay) -> None:
    (worker,) = ray.processes("ray::sleeps")
    with stopped(worker):
        seen = Seen(cluster_of(ray))
    answers = {row["pid"]: row["answers"] for row in seen.rows("worker-stats")}
    assert [pid for pid, does in answers.items() if not does] == [worker.pid]
    assert answers[worker.pid] is False
    assert not seen.gaps
    assert seen.seconds < 8


@pytest.mark.ray
def test_a_stopped_raylet_costs_nothing_else(ray: RealRay) -> None:
    """`objects` of the dashboard hangs then; the workers still report theirs."""
    (raylet,) = ray.processes("raylet")
    with stopped(raylet):
        seen = Seen(cluster_of(ray))
    assert set(seen.tables) >= TABLES
    assert seen.tables["objects"]["from"] == "gcs"
    assert any(row["object_size"] > 1_000_000 for row in seen.rows("objects"))
    assert seen.seconds < 8


@pytest.mark.ray
def test_a_hanging_dashboard(ray: RealRay) -> None:
    with silent_server() as address:
        seen = Seen(cluster_of(ray, dashboard_address=address))
    assert seen.probes == {"dashboard": "timeout", "gcs": "ok", "auth": "ok"}
    assert seen.sources == {"gcs"}
    assert set(seen.tables) >= TABLES
    assert not seen.gaps


@pytest.mark.ray
def test_the_frames_of_an_ended_driver(ray: RealRay) -> None:
    """Only the GCS returns them, also beside a silent dashboard."""
    ray.run("import ray\nray.init()\ndef price(): return {}['price']\nprice()", log="fails.txt")
    ray.wait_for("KeyError: 'price'", "fails.txt")
    rows: list[dict[str, Any]] = []

    def is_recorded() -> bool:
        rows[:] = [row for row in Seen(cluster_of(ray)).rows("workers") if row["exception"]]
        return any(not row["is_alive"] for row in rows)

    until(is_recorded, every=0.2)
    with silent_server() as address:
        silent = Seen(cluster_of(ray, dashboard_address=address)).rows("workers")
    assert [row for row in silent if row["exception"]] == rows
    (row,) = rows
    assert row["worker_type"] == "DRIVER"
    assert 'File "<string>", line 3, in price' in row["exception"]


@pytest.mark.ray
def test_a_running_task_that_the_gcs_lost_is_found_at_its_worker(ray: RealRay) -> None:
    """Ray drops task events; workers and owners still know."""
    quiet = {"RAY_task_events_report_interval_ms": "0"}
    program = """
import time, ray
ray.init()
@ray.remote(num_cpus=0)
def unheard(): time.sleep(9999)
ref = unheard.remote()
time.sleep(1)
print("ready", flush=True)
time.sleep(9999)
"""
    ray.run(program, log="quiet.txt", env=quiet)
    ray.wait_for("ready", "quiet.txt")
    while not (found := ray.processes("ray::unheard")):
        time.sleep(0.1)
    row = next(row for row in Seen(cluster_of(ray)).rows("tasks") if row["name"] == "unheard")
    assert (row["state"], row["worker_pid"]) == ("RUNNING", found[0].pid)


@pytest.mark.ray
def test_killed_dashboard_then_stopped_and_killed_gcs(ray: RealRay) -> None:
    """The last test of this cluster."""
    ray.nodes[0].send_signal(signal.SIGSTOP)  # `ray start --block` ends the node otherwise
    for process in ray.processes("ray-dashboard") + ray.processes("dashboard.py"):
        end(process)
    while dashboard.get(ray.dashboard, "/", 1.0).outcome != "refused":
        time.sleep(0.02)
    seen = Seen(cluster_of(ray))
    assert seen.probes == {"dashboard": "refused", "gcs": "ok", "auth": "ok"}
    assert seen.sources == {"gcs"}
    assert set(seen.tables) >= TABLES
    assert not seen.gaps

    # More than is asked for at once: by a filter of the GCS.
    had = seen.tables["tasks"]["total"]
    ray.run(WAITING, log="waiting.txt")
    ray.wait_for("ready", "waiting.txt")
    settled(ray, {"dozes"}, had + 5501)
    tasks = Seen(cluster_of(ray)).tables["tasks"]
    names = [row["name"] for row in tasks["rows"]]
    assert names.count("dozes") == 1
    assert names.count("never") == names.count("also_never") == 1000
    assert tasks["total"] == had + 5501

    (server,) = ray.processes("gcs_server")
    with stopped(server):
        seen = Seen(cluster_of(ray))
    assert seen.probes == {"dashboard": "refused", "gcs": "timeout"}
    assert seen.seconds < 8

    end(server)
    seen = Seen(cluster_of(ray))
    (gap,) = seen.gaps
    assert seen.probes == {"dashboard": "refused", "gcs": "refused"}
    assert gap.what == state.WHAT
    assert f"the GCS at {ray.address} refused the connection" in gap.why
    assert not gap.optional
    assert seen.seconds < 8
    ray.end()


def test_a_gcs_that_died_under_its_dashboard() -> None:
    """The dashboard answers, and says so after a second; asked for tables it would hang."""
    with half_dead_dashboard() as address:
        seen = Seen(Cluster(dashboard_address=address, gcs_address="127.0.0.1:9"))
    assert seen.probes == {"dashboard": "error", "auth": "ok", "gcs": "refused"}
    (gap,) = seen.gaps
    assert "its GCS does not answer" in gap.why
    assert seen.seconds < 8


def test_an_address_where_nothing_answers() -> None:
    with silent_server() as board, silent_server() as gcs_server:
        cluster = Cluster(dashboard_address=board, gcs_address=gcs_server)
        began = clock()
        collection = run(state.collectors(cluster, 2.0), 2.0)
        assert clock() - began < 1.95  # its own limit, not the runner's
    assert list(collection.pieces) == ["live/live-probes.json"]
    probes = json.loads(collection.pieces["live/live-probes.json"])["rows"]
    assert {row["name"]: row["outcome"] for row in probes} == {
        "dashboard": "timeout",
        "gcs": "timeout",
    }
    (gap,) = collection.gaps
    assert f"the GCS at {gcs_server} did not answer" in gap.why


def test_the_child_is_gone_at_the_end() -> None:
    before = set(psutil.Process().children())
    seen = Seen(Cluster(gcs_address="127.0.0.1:9"))
    assert seen.probes == {"gcs": "refused"}
    assert set(psutil.Process().children()) == before


def test_no_address_at_all() -> None:
    seen = Seen(Cluster())
    assert seen.rows("probes") == []
    assert seen.gaps
    assert seen.seconds < 1


def test_a_server_that_drips_has_a_deadline_too() -> None:
    def drip(peer: socket.socket, request: bytes) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            peer.sendall(b"x")
            time.sleep(0.05)

    with server(drip) as address:
        began = clock()
        assert dashboard.get(address, "/", 0.4).outcome == "timeout"
        assert clock() - began < 1


SLOW_DASHBOARD: dict[str, Callable[[Cluster], object]] = {
    "diagnose, hung, collect": lambda c: run(state.collectors(c, 5.0), 5.0),
    "nodes' clocks": lambda c: list(clocks.offsets(c.dashboard_address, c.access(True), 2.0)),
    "check": lambda c: probes._ask(c.dashboard_address, c.access(True)),
    "cancel": lambda c: job._stop_submitted(c, "raysubmit_1", Audit("cancel", path=os.devnull)),
    "logs of nodes": lambda c: agents_logs.fetch(
        c.dashboard_address, c.access(True), "ab" * 28, "x", time.monotonic() + 4
    ),
}
"""What asks a dashboard, by command. `watch` and `mcp` run these commands; `status` and `zombies` ask none."""


@pytest.mark.parametrize("status", ["200 OK", "401 Unauthorized"])
@pytest.mark.parametrize("ask", SLOW_DASHBOARD.values(), ids=SLOW_DASHBOARD)
def test_a_dashboard_that_drips_holds_no_command(
    ask: Callable[[Cluster], object], status: str
) -> None:
    """It completes a first reply late, and sends the others one byte at a time."""
    is_first = True

    def drip(peer: socket.socket, request: bytes) -> None:
        nonlocal is_first
        whole, is_first = is_first and b"authentication_mode" not in request, False
        body = b"{}" if whole else b"x" * 1000
        text = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        with suppress(OSError):
            for byte in text:
                peer.sendall(bytes([byte]))
                time.sleep(0.03)

    with server(drip) as address:
        cluster = Cluster(
            dashboard_address=address, typed=(address,), token=Token("t" * 20, "test")
        )
        began = clock()
        ask(cluster)
        assert clock() - began < 6  # 5 s are promised


def test_every_request_says_who_asks() -> None:
    """Ray <= 2.50 answers HTTP 500 to a request without `User-Agent`; only who needs one gets the token."""
    requests = []

    def note(peer: socket.socket, request: bytes) -> None:
        requests.append(request)
        peer.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with server(note) as address:
        door = dashboard.knock(address, Access(SECRET))
    assert (door.is_open, door.token_mode) == (True, False)
    assert len(requests) == 2
    assert all(b"\r\nUser-Agent: raydoctor\r\n" in request for request in requests)
    assert SECRET.encode() not in b"".join(requests)


def test_a_status_that_the_reply_repeats_is_named_once() -> None:
    def refuse(peer: socket.socket, request: bytes) -> None:
        body = b"503: Health check failed"
        head = f"HTTP/1.1 503 x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        peer.sendall(head + body)

    with server(refuse) as address:
        reply = dashboard.get(address, "/api/gcs_healthz", 5.0, Access(SECRET))
    assert reply.detail == "HTTP 503: Health check failed"


def test_without_grpc_the_gap_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grpc.py").write_text("raise ImportError('no module named grpc')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (gap,) = Seen(Cluster(gcs_address="127.0.0.1:9")).gaps
    assert "gRPC cannot be used" in gap.why


def test_metrics_are_sums_of_what_owner_and_executor_say() -> None:
    def tell(peer: socket.socket, request: bytes) -> None:
        body = (
            'ray_tasks{JobId="",Name="f",Source="owner",State="SUBMITTED_TO_WORKER"} 3.0\n'
            'ray_tasks{JobId="01",Name="f",Source="executor",State="SUBMITTED_TO_WORKER"} -3.0\n'
            'ray_tasks{JobId="01",Name="f",Source="executor",State="RUNNING"} 1.0\n'
            'ray_tasks{JobId="01",Name="a \\"b\\"",Source="executor",State="RUNNING_IN_RAY_GET"} 2.0\n'
            "ray_tasks{damaged} x\nray_other 1\n"
        )
        peer.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    with server(tell) as address:
        host, _, port = address.partition(":")
        answers = {"ip": host, "port": int(port), "node_id": "n1"}
        without = {"ip": "127.0.0.2", "port": 0, "node_id": "n2"}
        counts, _, silent = metrics.counts([answers, without])
    assert silent == ["127.0.0.2:0"]
    assert metrics.blocked(counts) == [
        {
            "name": 'a "b"',
            "state": "RUNNING_IN_RAY_GET",
            "job_id": "01",
            "node_id": "n1",
            "count": 2,
        }
    ]
    assert metrics.by_state(counts) == [
        {"state": "RUNNING", "name": "f", "count": 1},
        {"state": "RUNNING_IN_RAY_GET", "name": 'a "b"', "count": 2},
    ]


@contextmanager
def server(serve: Any) -> Iterator[str]:
    """Something on loopback that is no Ray."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def accept() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=attend, args=(peer,), daemon=True).start()

        def attend(peer: socket.socket) -> None:
            with peer:
                try:
                    serve(peer, peer.recv(65536))
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield "127.0.0.1:%d" % listening.getsockname()[1]  # noqa: UP031
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def silent_server() -> Any:
    """It accepts and never answers."""
    return server(lambda peer, request: time.sleep(8))


def half_dead_dashboard() -> Any:
    """As a dashboard whose GCS was killed answers (Ray 2.60.0)."""

    def serve(peer: socket.socket, request: bytes) -> None:
        if b"authentication_mode" in request:
            body = b'{"authentication_mode": "disabled"}'
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        elif b"gcs_healthz" in request:
            peer.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        else:
            time.sleep(8)

    return server(serve)
