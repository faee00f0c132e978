"""A node's reading travels as a file and gives the same diagnosis; nodes are read by Ray's own tasks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, ClassVar
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.capture.open import open_capture
from raydoctor.case import signals
from raydoctor.case.rule import Signal
from raydoctor.diagnosis import engine, plugins, unexplained
from raydoctor.model.entities import MEANINGS, Entity
from raydoctor.model.values import Event, Gap, Report, Source
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.nodes import agents_logs, nodes
from raydoctor.observe.nodes.programs import on_node
from raydoctor.observe.processes import discover
from raydoctor.observe.processes.redact import Redactor
from raydoctor.read import build, portable
from raydoctor.read.portable import NodeReading
from raydoctor.render.json import render
from tests.helpers.captures import capture_of, fixtures
from tests.helpers.real_ray import IDLE_DAEMONS, START_RAY, RealRay, free_port, real_ray
from tests.helpers.waiting import PATIENCE, clock

SOME = fixtures()[::8]
"""All give the same (some 40 s)."""
LOGS_OF_NODES = ("node-lost-cascade", "raylet-killed-worker-node", "two-nodes-two-failures")
"""Scenarios whose captures have the logs of several nodes."""
OF_NODES = [fixture for name in LOGS_OF_NODES for fixture in fixtures(f"{name}--*")]


# ---------------------------------------------------------------- a reading as a file


def known() -> list[Signal]:
    """What rules look for."""
    return [*signals.FACTS, *(s for rule in plugins.catalogue().rules for s in rule.looks_for)]


def reading_of(folder: Path) -> NodeReading:
    """What a node with these files would send, before redaction."""
    with open_capture(str(folder)) as capture:
        roles = {source.role for source in capture.sources}
        return build.read_node(capture, [*known(), *unexplained.signals(roles)])


def write(reading: NodeReading, folder: Path) -> None:
    """Put a reading where a collection puts it."""
    file = folder / nodes.FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(portable.dump(reading))


def reply(folder: Path) -> dict[str, object]:
    """A folder's report, without what only says where its bytes were."""
    with open_capture(str(folder)) as capture:
        report = engine.run(capture, strict=True)
    whole = json.loads(render(report))
    for gap in whole["gaps"]:  # of another node, advice is attributed to it
        gap["hint"] = gap["hint"].removeprefix("There: ")
    return {key: whole[key] for key in ("diagnoses", "unexplained", "gaps")}


@pytest.mark.parametrize("fixture", SOME, ids=lambda f: f.name)
def test_a_reading_gives_the_report_of_its_files(fixture: Path, tmp_path: Path) -> None:
    folder = capture_of(fixture)
    write(reading_of(folder), tmp_path)
    assert reply(tmp_path) == reply(folder)


@pytest.mark.parametrize("fixture", OF_NODES, ids=lambda f: f.name)
def test_some_nodes_may_be_files_and_others_readings(fixture: Path, tmp_path: Path) -> None:
    folder = capture_of(fixture)
    direct = reply(folder)
    labels = sorted(path.parent.name for path in folder.glob("*/logs"))
    assert len(labels) > 1
    for number, travelled in enumerate((labels[:1], labels[1:], labels)):
        mixed = tmp_path / str(number)
        shutil.copytree(folder, mixed)
        for label in travelled:
            shutil.rmtree(mixed / label)
            clean = on_node.without_secrets(reading_of(folder / label), Redactor())
            write(clean, mixed / label)
        assert reply(mixed) == direct


def same(one: Event, other: Event) -> bool:
    """Whether two events say the same of the same place."""
    plain = all(
        getattr(one, name) == getattr(other, name)
        for name in ("kind", "line", "offset", "text", "message", "at", "slack", "level", "pid")
    )
    more = one.fields == other.fields and one.entities == other.entities
    place = one.source.path == other.source.path and one.source.role == other.source.role
    twins = len(one.sightings) == len(other.sightings)
    return (
        plain and more and place and twins and one.count == other.count
        and all(map(same, one.sightings, other.sightings))
    )  # fmt: skip


TEXT = st.text(st.characters(), max_size=30)
SOURCE = Source("logs/raylet.out", "raylet-out", "", (Entity("worker", "ab" * 28),), 7, 99)
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(["raylet.started", "log.error"]),
    source=st.just(SOURCE),
    line=st.integers(0, 10**9),
    offset=st.integers(0, 10**12),
    text=TEXT,
    message=TEXT,
    at=st.none() | st.floats(0, 4e9),
    slack=st.floats(0, 60),
    level=st.sampled_from(["", "E"]),
    pid=st.none() | st.integers(0, 10**7),
    fields=st.dictionaries(TEXT, TEXT, max_size=3),
    entities=st.frozensets(st.builds(Entity, st.sampled_from(sorted(MEANINGS)), TEXT), max_size=2),
    count=st.integers(1, 10**9),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, max_size=4), st.dictionaries(TEXT, st.tuples(TEXT), max_size=2))
def test_what_is_written_is_read_back(
    events: list[Event], names: Mapping[str, tuple[str, ...]]
) -> None:
    twin = [replace(event, sightings=(event,)) for event in events]
    gaps = (Gap("logs/a", "why", portable.COPY, True), Gap("b", "because"))
    reading = NodeReading((*events, *twin), (SOURCE,), names, tuple(events), gaps, 12)
    back = portable.load(portable.dump(reading))
    assert all(map(same, reading.events, back.events))
    assert all(map(same, reading.endings, back.endings))
    assert len(back.events) == 2 * len(events)
    assert (back.names, back.gaps, back.hits) == (names, gaps, 12)
    assert back.sources[0].entities == SOURCE.entities


def test_a_node_has_its_folder_in_front() -> None:
    event = Event("raylet.started", SOURCE, 3, 40, "text")
    back = portable.load(portable.dump(NodeReading((event,), (SOURCE,))), "node-ab")
    assert back.events[0].source.path == "node-ab/logs/raylet.out"
    assert back.events[0].source.node == "node-ab"


@pytest.mark.parametrize(
    "row",
    [
        "[]",
        "{",
        '{"event": "a", "source": 7, "text": ""}',
        '{"event": "a", "source": -1, "text": ""}',
        '{"event": "a", "source": 0, "text": 5}',
        '{"event": "a", "source": 0, "text": "", "at": NaN}',
        '{"event": "a", "source": 0, "text": "", "at": true, "count": "x"}',
        '{"event": "a", "source": 0, "text": "", "fields": [1]}',
        '{"event": "a", "source": 0, "text": "", "sightings": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"event": "a", "source": 0, "text": "", "at": 1' + "0" * 400 + "}",
        '{"gap": 1}',
        '{"other": 1}',
    ],
)
def test_a_damaged_row_is_a_gap_and_no_more(row: str) -> None:
    event = Event("raylet.started", SOURCE, 3, 40, "text")
    data = portable.dump(NodeReading((event,), (SOURCE,))) + row.encode() + b"\n"
    back = portable.load(data)
    assert [e.kind for e in back.events] == ["raylet.started"]
    assert [gap.why for gap in back.gaps] == ["damaged rows left out: 1"]


def test_a_file_that_is_no_reading_is_a_gap(tmp_path: Path) -> None:
    file = tmp_path / nodes.FILE
    file.parent.mkdir()
    file.write_bytes(b'{"table": "tasks"}\n')
    with open_capture(str(tmp_path)) as capture:
        report = engine.run(capture, strict=True)
    assert nodes.FILE in [gap.what for gap in report.gaps]
    assert not report.complete


def test_a_storm_gives_way_before_the_single_record() -> None:
    storm = [Event("log.error", SOURCE, n, n, "again", at=float(n)) for n in range(1, 1001)]
    single = Event("raylet.died", SOURCE, 500, 1, "why", at=500.5)
    reading = NodeReading((*storm[:500], single, *storm[500:]), (SOURCE,))
    trimmed = portable.trim(reading, 101)
    assert len(trimmed.events) == 101
    assert single in trimmed.events
    assert sum(e.count for e in trimmed.events) == 1001
    assert (trimmed.events[0].line, trimmed.events[-1].line) == (1, 1000)
    assert "900 of 1,001" in trimmed.gaps[0].why


def test_a_field_does_not_keep_what_its_record_lost() -> None:
    text = "[2026-11-21 07:34:50,739 E 1 1] (raylet) a.cc:1: login with password=hunter2abc for bob"
    fields = {"rest": "hunter2abc", "who": "bob"}
    event = Event("a.b", SOURCE, 1, 0, text, text[50:], fields=fields)
    reading = NodeReading((replace(event, sightings=(event,)),), (SOURCE,), endings=(event,))
    clean = on_node.without_secrets(reading, Redactor())
    assert b"hunter2abc" not in portable.dump(clean)
    assert clean.events[0]["who"] == "bob"


def wanted(
    folder: Path, seconds: float = 30, packed: int = 1 << 20, tag: str = ""
) -> on_node.NodeRequest:
    """What a node with that session is asked."""
    return on_node.NodeRequest(tuple(known()), seconds, 20_000, packed, "", str(folder), tag)


def session(folder: Path, **files: str) -> Path:
    """A session with these logs (`.` for `__`)."""
    for name, content in files.items():
        file = folder / "logs" / name.replace("__", ".")
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    return folder


STAMP = "[2026-11-21 07:34:50,739 E 1 1] (raylet) a.cc:1: "


def test_placeholders_of_two_nodes_differ(tmp_path: Path) -> None:
    folder = session(tmp_path, raylet__out=f"{STAMP}Cannot use password=hunter2abc\n")
    for tag in ("abc123", "def456"):
        rows = zlib.decompress(on_node.answer(wanted(folder, tag=tag)).data)
        assert b"hunter2abc" not in rows
        assert f"<secret:password-{tag}-1>".encode() in rows


def test_what_is_sent_is_bounded(tmp_path: Path) -> None:
    lines = (f"{STAMP}trouble {n:x}{n * 7919:x}{n * n:x}\n" for n in range(2000))
    folder = session(tmp_path, raylet__out="".join(lines))
    answer = on_node.answer(wanted(folder, packed=10_000))
    assert len(answer.data) <= 10_000
    back = portable.load(zlib.decompress(answer.data))
    assert sum(event.count for event in back.events) == 2000
    assert "were only counted" in back.gaps[-1].why
    back = portable.load(zlib.decompress(on_node.answer(wanted(folder, packed=10)).data))
    assert back.events == ()
    assert "exceeds the size limit" in back.gaps[0].why


def test_a_search_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    folder = session(tmp_path, raylet__out=f"{STAMP}trouble\n" + "nothing of note\n" * (4 << 20))
    for number in range(1, 40):  # more than two gigabytes to read, 64 MB on disk
        os.link(folder / "logs" / "raylet.out", folder / "logs" / f"raylet.{number}.out")
    answer = on_node.answer(wanted(folder, seconds=0.2))
    back = portable.load(zlib.decompress(answer.data))
    assert [gap.why for gap in back.gaps] == [
        "the search of this node's logs was ended after 0.2 s"
    ]
    assert not [c for c in psutil.Process().children() if c.name() == "rg"]


# ---------------------------------------------------------------- real nodes

MAY_HIDE = (
    sys.platform == "linux"
    and hasattr(os, "geteuid")
    and os.geteuid() == 0
    and subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/tmp"], capture_output=True, check=False
    ).returncode == 0
)  # fmt: skip
MULTI_NODE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
"""Ray keeps a cluster on loopback to one node."""
TOKEN = "ghp_" + "a1B2" * 9

PROGRAM = """
import os, sys, time, ray
ray.init(log_to_driver=False)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

@ray.remote(max_retries=0)
def crash():
    print("ACME license is about to expire: password=hunter2abc", flush=True)
    print("{token}", file=sys.stderr, flush=True)
    os._exit(7)

@ray.remote(num_cpus=1)
def hold():
    time.sleep(600)

for node in ray.nodes():
    try:
        ray.get(crash.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote())
    except ray.exceptions.WorkerCrashedError:
        pass
held = [hold.remote() for _ in range(30)]
while ray.available_resources().get("CPU", 0):
    time.sleep(0.1)
print("all taken", flush=True)
time.sleep(600)
""".replace("{token}", TOKEN)

ACME = Signal("acme.license", "ACME license", r"ACME license is (?P<what>.*)", ("worker-out",), "")
"""A signal of a user's own rule: what it looks for is known here only."""


@dataclass
class Nodes:
    """A cluster whose nodes cannot see one another's files."""

    ray: RealRay
    ids: list[str] = field(default_factory=list)
    """The head first, then in the order of joining."""

    @property
    def cluster(self) -> Cluster:
        return Cluster(gcs_address=self.ray.address, dashboard_address=self.ray.dashboard)

    def join(self, count: int) -> None:
        """Start nodes with a private folder where the head has its session."""
        first = len(self.ray.nodes)
        for number in range(first, first + count):
            with (self.ray.folder / f"start-{number}.txt").open("wb") as said:
                self.ray.nodes.append(self._join(said))
        for number in range(first, first + count):
            self.ray._wait_for(self.ray.nodes[number], number)
        self.learn()

    def _join(self, said: BinaryIO) -> subprocess.Popen[bytes]:
        command = [
            *("unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(self.ray.folder)),
            *(sys.executable, START_RAY, "start", f"--address={self.ray.address}"),
            *("--block", "--disable-usage-stats", f"--dashboard-agent-listen-port={free_port()}"),
            *("--num-cpus=1", "--object-store-memory=80000000"),
        ]  # fmt: skip
        return subprocess.Popen(
            command, env={**self.ray.environment, "WITHOUT": IDLE_DAEMONS}, stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT, start_new_session=True, cwd=self.ray.folder,
        )  # fmt: skip

    def raylet(self, node: str) -> psutil.Process:
        """A node's raylet."""
        found = [p for p in self.ray.processes("raylet") if f"--node_id={node}" in p.cmdline()]
        return found[0]

    def learn(self) -> None:
        """Note the ids of nodes that are new."""
        rows = self.state("nodes")
        self.ids += sorted(r["node_id"] for r in rows if r["node_id"] not in self.ids)

    def state(self, table: str, query: str = "") -> list[dict[str, Any]]:
        """A table of the state API."""
        url = f"http://{self.ray.dashboard}/api/v0/{table}?detail=1&limit=1000{query}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            rows: list[dict[str, Any]] = json.load(answer)["data"]["result"]["result"]
        return rows

    def collect(
        self, seconds: float, tell: nodes.Tell = lambda done, total: None
    ) -> tuple[dict[str, bytes], list[Gap]]:
        """Files and gaps of all nodes."""
        found = list(nodes.collect(self.cluster, self.ids, seconds, [*known(), ACME], tell))
        gaps = [item for item in found if isinstance(item, Gap)]
        return {item.path: item.data for item in found if isinstance(item, Piece)}, gaps


@pytest.fixture(scope="module")
def four() -> Iterator[Nodes]:
    os.environ.update(MULTI_NODE)
    try:
        with real_ray(MULTI_NODE) as ray:
            ray.start(cpus=1, lean=True)
            cluster = Nodes(ray)
            cluster.learn()
            cluster.join(3 if MAY_HIDE else 0)
            ray.run(PROGRAM)
            ray.wait_for("all taken")
            yield cluster
    finally:
        for name in MULTI_NODE:
            os.environ.pop(name, None)


@dataclass(frozen=True)
class Collected:
    """What one collection of all four nodes brought."""

    pieces: dict[str, bytes]
    gaps: list[Gap]
    seconds: float
    steps: list[tuple[int, int]]


@pytest.fixture(scope="module")
def collected(four: Nodes) -> Collected:
    steps: list[tuple[int, int]] = []
    began = clock()
    pieces, gaps = four.collect(PATIENCE, tell=lambda *at: steps.append(at))
    return Collected(pieces, gaps, clock() - began, steps)


def events_in(data: bytes) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in data.splitlines()]
    return [row for row in rows if "event" in row]


@pytest.mark.ray
def test_every_node_reports_while_all_cpus_are_taken(four: Nodes, collected: Collected) -> None:
    assert collected.seconds < 10
    assert collected.gaps == []
    readings = {f"{nodes.label(node)}/{nodes.FILE}" for node in four.ids}
    assert set(collected.pieces) == {*readings, "live/live-own-drivers.json"}
    for data in (collected.pieces[path] for path in readings):
        kinds = [row["event"] for row in events_in(data)]
        assert "raylet.started" in kinds
        assert kinds.count("acme.license") == 1, "each node reports its own, and no other's"
        assert b"hunter2abc" not in data
        assert TOKEN.encode() not in data
    assert collected.steps[0] == (0, len(four.ids))
    assert collected.steps[-1] == (len(four.ids), len(four.ids))


@pytest.mark.ray
def test_events_of_all_nodes_are_one_diagnosis(
    four: Nodes, collected: Collected, tmp_path: Path
) -> None:
    for path, data in collected.pieces.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(data)
    deaths = whole(tmp_path).diagnoses
    assert [d.rule for d in deaths] == ["worker-vanished"] * len(four.ids), "and nothing of ours"
    gcs = f"{nodes.label(four.ids[0])}/logs/gcs_server.out"
    for death in deaths:
        assert death.headline.startswith("The worker of crash() (pid "), (
            "only its own node reports its name"
        )
        assert death.chain[0].event.source.path == gcs, "its end by the GCS's"


def whole(folder: Path) -> Report:
    with open_capture(str(folder)) as capture:
        return engine.run(capture, strict=True)


@pytest.mark.ray
def test_a_container_of_this_machine_is_elsewhere(four: Nodes) -> None:
    (found,) = [c for c in discover.clusters() if c.gcs_address.endswith(f":{four.ray.port}")]
    assert set(found.node_ids) == set(four.ids), "all raylets run on this machine"
    assert nodes.elsewhere(found, four.ids) == four.ids[1:], "but only the head's logs are here"


@pytest.mark.ray
def test_nothing_is_left_behind(four: Nodes, collected: Collected) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and our_processes():
        time.sleep(0.2)
    assert our_processes() == []
    (job,) = [row for row in four.state("jobs") if row["job_id"] != "01000000"]
    assert job["status"] == "SUCCEEDED"
    assert "raydoctor" in job["metadata"], "what distinguishes it from the user's jobs"
    assert four.state("actors") == []
    assert four.state("placement_groups") == []
    tasks = four.state("tasks")
    assert [t for t in tasks if t["job_id"] == job["job_id"] and t["state"] != "FINISHED"] == []
    assert not any("raydoctor" in str(task["name"]) for task in tasks)


def our_processes() -> list[str]:
    """Workers that run our task (Ray names them by it), drivers of ours, and searches they started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            title = " ".join(process.cmdline())
            if "raydoctor: what" in title or "fan_out.py" in title:
                found.append(title)
    return found


@pytest.mark.ray
def test_a_node_with_another_raydoctor_gives_its_files(
    four: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "__version__", "9.9.9")
    node = four.ids[0]
    found = list(nodes.collect(four.cluster, [node], 6, known()))
    (gap,) = [item for item in found if isinstance(item, Gap)]
    assert "here 9.9.9" in gap.why
    assert "-m pip install raydoctor==9.9.9" in gap.hint
    assert f"{nodes.label(node)}/logs/raylet.out" in [i.path for i in found if isinstance(i, Piece)]


@pytest.mark.ray
@pytest.mark.skipif(not MAY_HIDE, reason="a node's files cannot be hidden from others here")
def test_a_dead_and_a_frozen_node_are_named_and_the_others_complete(four: Nodes) -> None:
    dead, frozen = four.ids[2], four.ids[3]
    four.raylet(dead).send_signal(signal.SIGKILL)
    stopped = four.raylet(frozen)
    stopped.suspend()
    try:
        began = clock()
        pieces, gaps = four.collect(10)
        assert clock() - began < 20
    finally:
        stopped.resume()
    for node in four.ids[:2]:
        assert f"{nodes.label(node)}/{nodes.FILE}" in pieces
    assert {gap.what.split()[1] for gap in gaps} == {dead[:12], frozen[:12]}
    why = {gap.what.split()[1]: gap.why for gap in gaps}
    assert f"{nodes.label(dead)}/logs/raylet.out" not in pieces
    # The GCS takes it for alive until it has missed its health checks.
    reasons = ("it is dead", "neither the node nor the dashboard", "the dashboard did not return")
    assert any(reason in why[dead[:12]] for reason in reasons)
    assert "ran no task within" in why[frozen[:12]]
    log = pieces[f"{nodes.label(frozen)}/logs/raylet.out"]
    assert b"(raylet)" in log, "its agent still gives its logs"


# ---------------------------------------------------------------- an older dashboard

DEAD, ALIVE = "d" * 55 + "1", "a" * 55 + "1"


class OlderDashboard(BaseHTTPRequestHandler):
    """The log API as Ray 2.9 and 2.40 have it: a 1 for success before what a file holds."""

    FILES: ClassVar = {
        "raylet.out": f"[2026-11-21 07:34:50,739 I 1 1] (raylet) worker {DEAD} went away\n",
        f"worker-{ALIVE}-01000000-7.err": "nothing\n",
        f"worker-{DEAD}-01000000-8.err": "why\n",
        "dashboard.log": "of no use\n",
        "gcs_server.out": "",
    }

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        name = parse_qs(asked.query).get("filename", [""])[0]
        if asked.path == "/api/v0/logs":
            names = [*self.FILES, "old/", "raylet.err"]
            body = json.dumps({"result": True, "data": {"result": {"internal": names}}})
        else:
            body = f"1{self.FILES[name]}" if name in self.FILES else ""
        self.send_response(200 if body else 500)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *said: object) -> None:
        pass


@pytest.fixture
def older_dashboard() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), OlderDashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_files_come_the_most_informative_first_and_without_marks(older_dashboard: str) -> None:
    fetched = agents_logs.fetch(
        older_dashboard, Access(), "ab" * 28, "node-ab", time.monotonic() + 5
    )
    assert [piece.path.removeprefix("node-ab/logs/") for piece in fetched.pieces] == [
        "raylet.out",
        "gcs_server.out",
        f"worker-{DEAD}-01000000-8.err",
        f"worker-{ALIVE}-01000000-7.err",
    ]
    assert fetched.pieces[0].data.startswith(b"[2026")
    assert fetched.pieces[2].data == b"why\n"
    assert (fetched.problem, fetched.left) == ("", 1), "raylet.err was named and could not be had"


def test_a_dashboard_that_is_not_there_is_reported() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    fetched = agents_logs.fetch(nobody, Access(), "ab" * 28, "node-ab", time.monotonic() + 5)
    assert fetched == agents_logs.Fetched([], "nothing listens there")


# ---------------------------------------------------------------- no cluster to ask


def test_a_cluster_that_is_not_there_is_a_gap_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_CONNECT_S", 1.0)
    nobody = Cluster(gcs_address=f"127.0.0.1:{free_port()}", owner=os.geteuid())
    began = clock()
    (gap,) = (item for item in nodes.collect(nobody, ["ab" * 28], 1) if isinstance(item, Gap))
    assert clock() - began < nodes.limits(1, 1).whole + 1
    assert gap.what.startswith("node abababababab")
    assert "raydoctor diagnose" in gap.hint


def test_a_token_that_is_missing_is_reported_at_once() -> None:
    locked = Cluster(gcs_address="127.0.0.1:1", token_mode=True)
    (gap,) = nodes.collect(locked, ["ab" * 28], 5)
    assert isinstance(gap, Gap)
    assert "requires a token" in gap.why


def test_nodes_of_this_machine_need_no_task() -> None:
    here = Cluster(gcs_address="127.0.0.1:1", node_ids=("ab" * 28,))
    assert list(nodes.collect(here, ["ab" * 28], 2)) == []
