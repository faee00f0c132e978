"""`raydoctor watch` on a real cluster: what it reports, what its guard ends and does not touch, and its screen."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.openmetrics import parser as openmetrics

from raydoctor.cli import execute
from raydoctor.cli.screen.lines import LineWriter
from raydoctor.model import text as _text
from raydoctor.model.status import Gauge
from raydoctor.observe import live
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.stacks import rests
from raydoctor.observe.watching.clocks import Clocks
from raydoctor.observe.watching.gauges import metrics
from raydoctor.observe.watching.watching import Attempt, ReportedTask, Snapshot, Watcher
from raydoctor.render import watch as render
from raydoctor.render.page import plain_line
from raydoctor.watch.background import BackgroundProcess, Pace
from raydoctor.watch.budget import WatchBudget
from raydoctor.watch.changes import diagnoses, levels, problems
from raydoctor.watch.effort import Effort
from raydoctor.watch.guard import CancelResult, GuardLimits, TimeLimitGuard, is_meant
from raydoctor.watch.inspections import Inspections
from raydoctor.watch.programs.inspect_cluster import inspect
from raydoctor.watch.rounds import Watch
from raydoctor.watch.view import TaskLine, WatchOptions, WatchProblem, WatchView
from tests.helpers import waiting
from tests.helpers.captures import FIXTURES, capture_of
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.schemas import faults
from tests.helpers.waiting import PATIENCE

SIZE = (24, 80)
CONFIG = {"memory_usage_threshold": 0.97, "local_fs_capacity_threshold": 0.001}
PROGRAM = """
import ctypes, itertools, time, ray
ray.init(log_to_driver=False)
wide = dict(num_cpus=0, max_retries=3)

@ray.remote(**wide)
def soft(): time.sleep(600)

@ray.remote(**wide)
def doomed():  # native: holds the GIL, and goes on after each signal
    all(map(ctypes.PyDLL(None).sleep, itertools.repeat(600)))

@ray.remote(**wide)
def spared(): time.sleep(600)

@ray.remote(**wide)
def picked(): time.sleep(600)

@ray.remote(**wide)
def brief(): time.sleep(0.4); return 1

@ray.remote(num_cpus=0)
class Keeper:
    def hold(self): time.sleep(600)
    def well(self): return "well"

@ray.remote(num_cpus=0)
class Lost:
    def hold(self):
        while True:
            try: time.sleep(600)
            except KeyboardInterrupt: pass

keeper, lost = Keeper.remote(), Lost.remote()
refs = {
    "soft": soft.remote(), "doomed": doomed.remote(), "keeper": keeper.hold.remote(),
    "lost": lost.hold.remote(), "picked": picked.remote(),
}
assert ray.get(brief.remote()) == 1  # its worker has started
refs["spared"] = spared.options(name="spared\\x1b[31m\\u202e\\nevil").remote()
print("ready", flush=True)
told = set()
while True:
    assert ray.get(brief.remote()) == 1
    for name, ref in refs.items():
        if name not in told and ray.wait([ref], timeout=0)[0]:
            told.add(name)
            try: ray.get(ref); how = "value"
            except Exception as error: how = type(error).__name__
            print(f"{name}={how}.", flush=True)
            if name == "keeper": print("keeper is", ray.get(keeper.well.remote()), flush=True)
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[RealRay]:
    with real_ray() as cluster:
        # A disk that is too full for Ray, wherever this runs.
        cluster.start(
            f"--system-config={json.dumps(CONFIG)}", dashboard=False, lean=True, agents=True
        )
        # On a large and empty /tmp, a thousandth is more than Ray writes.
        (cluster.folder / "filler").write_bytes(bytes(64 << 20))
        cluster.run(PROGRAM)
        cluster.wait_for("ready")
        yield cluster


def started(ray: RealRay, *options: str) -> subprocess.Popen[str]:
    """A watch of this cluster that writes JSON lines."""
    command = [
        sys.executable,
        "-m",
        "raydoctor",
        "watch",
        "--address",
        ray.address,
        "--every",
        "0.5",
        *options,
    ]
    # Without the mark of what is the cluster's own, and ends with it.
    env = {name: value for name, value in ray.environment.items() if name != "RAYDOCTOR_TEST"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


@contextmanager
def ending(watch: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever the block does, the watch has ended after it; one that says nothing more is killed."""
    patience = threading.Timer(PATIENCE, watch.kill)
    patience.start()
    try:
        with watch:
            try:
                yield
            finally:
                watch.terminate()
    finally:
        patience.cancel()


def until(watch: subprocess.Popen[str], event: str, *names: str) -> list[dict[str, Any]]:
    """Its lines up to the one with this event, for each of these names, too."""
    assert watch.stdout is not None
    lines: list[dict[str, Any]] = []
    for text in watch.stdout:
        line = json.loads(text)
        assert faults(line) == []
        assert line["schema"] == "raydoctor/watch/1"
        assert line["at"]
        lines.append(line)
        if set(names) <= set(of(lines, event)) and of(lines, event):
            return lines
    raise AssertionError(f"it ended without {event} {names}: {lines[-5:]}")


def of(lines: list[dict[str, Any]], event: str) -> dict[str, dict[str, Any]]:
    return {str(line.get("name", "")): line for line in lines if line["event"] == event}


@pytest.mark.ray
def test_the_guard_ends_what_is_meant_and_nothing_else(ray: RealRay) -> None:
    """All at once: tasks overdue are reported, cancelled, forced; an actor is kept, another one ended."""
    limit = ("--no-diagnose", "--timeout", "3s")
    report = started(ray, *limit)
    soft = started(
        ray,
        *limit,
        "--on-timeout",
        "cancel",
        "--grace",
        "30s",
        "--name",
        "soft",
        "--name",
        "Keeper.*",
    )
    hard = started(ray, *limit, "--on-timeout", "force", "--grace", "0.5s", "--name", "do*")
    actor = started(
        ray,
        *limit,
        "--on-timeout",
        "force",
        "--kill-actor",
        "--grace",
        "0.5s",
        "--name",
        "Lost.hold",
    )
    with ending(report), ending(soft), ending(hard), ending(actor):
        reported = until(report, "task-overdue", "soft", "doomed", "Keeper.hold", "Lost.hold")
        softly = until(soft, "task-ended", "soft", "Keeper.hold")
        forced = until(hard, "task-ended", "doomed")
        killed = until(actor, "task-ended", "Lost.hold")

    overdue = of(reported, "task-overdue")
    assert "brief" not in overdue, overdue["brief"]
    assert all(each["action"] == "report" and each["age_s"] >= 3 for each in overdue.values())
    assert not of(reported, "task-ended")
    assert set(of(softly, "task-overdue")) == {"soft", "Keeper.hold"}
    assert {each["by"] for each in of(softly, "task-ended").values()} == {"interrupt"}
    assert set(of(forced, "task-overdue")) == {"doomed"}
    assert of(forced, "task-ended")["doomed"]["by"] in ("force", "kill")
    assert of(killed, "task-ended")["Lost.hold"]["by"] == "kill-actor"

    for words in ("soft=", "doomed=", "keeper is well", "lost="):
        ray.wait_for(words)
    assert "spared=" not in (ray.folder / "driver-0.txt").read_text()
    assert ray.drivers[0].poll() is None
    home = Path(ray.environment["HOME"])
    audit = (home / ".local/state/raydoctor/audit.jsonl").read_text()
    lines = [json.loads(line) for line in audit.splitlines()]
    assert {line["name"] for line in lines if line["what"] == "task-overdue"} == {
        *("soft", "doomed", "Keeper.hold", "Lost.hold"),
    }


@pytest.mark.ray
def test_rounds_show_tasks_and_memory_and_end_with_the_signal(ray: RealRay) -> None:
    codes = []
    for number in (signal.SIGTERM, signal.SIGINT):
        watch = started(ray, "--no-diagnose")
        with ending(watch):
            (first,) = of(until(watch, "round"), "round").values()
            while number == signal.SIGINT and not any(
                gauge["users"] for gauge in first["gauges"] if gauge["what"] == "disk"
            ):
                (first,) = of(until(watch, "round"), "round").values()
            watch.send_signal(number)
            codes.append(watch.wait(timeout=PATIENCE))
    assert codes == [0, 130]
    assert first["state"] == "up"
    assert first["nodes"] == 1
    assert first["tasks"]["running"] >= 1
    hostile = next(row for row in first["slowest"] if row["name"].startswith("spared"))
    assert hostile["age_s"] >= 3
    assert {gauge["what"] for gauge in first["gauges"]} == {"memory", "disk"}
    memory, disk = first["gauges"][:2]
    assert 0 < memory["used"] < memory["limit"]
    assert (memory["threshold"], memory["threshold_assumed"]) == (0.97, False)
    assert (disk["threshold"], disk["level"]) == (0.001, "over")
    assert all(each["path"].startswith("/") and each["bytes"] for each in disk["users"])


@pytest.mark.ray
def test_metrics_and_notifications_of_a_watch(ray: RealRay, tmp_path: Path) -> None:
    file, script = tmp_path / "taken", tmp_path / "take.py"
    script.write_text(f"import sys; open({str(file)!r}, 'a').write(sys.stdin.read() + '\\n')")
    wanted = ("--serve", "0", "--silence", "never printed", "--silence-after", "2s")
    watch = started(ray, *wanted, "--notify", f"{sys.executable} {script}")
    assert watch.stderr is not None
    with ending(watch):
        note = watch.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", note)
        assert found, note
        (silent,) = of(until(watch, "log-silent"), "log-silent").values()
        assert silent["pattern"] == "never printed"
        with urlopen(found[0], timeout=5) as reply:
            text = reply.read().decode()
        clock = time.monotonic() + PATIENCE
        while not file.exists() and time.monotonic() < clock:
            time.sleep(0.1)
    samples = {
        sample.name: sample.value
        for family in openmetrics.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["raydoctor_cluster_up"] == samples["raydoctor_nodes"] == 1
    assert "raydoctor_running_tasks" in samples
    assert "log-silent" in {json.loads(line)["event"] for line in file.read_text().splitlines()}


@pytest.mark.ray
def test_other_nodes_are_measured_by_what_the_head_was_given_or_their_limit_is_unknown(
    ray: RealRay,
) -> None:
    """This node, taken for another one: it reports only over its metrics port."""
    cluster, _ = live.find(ray.address)
    watcher = Watcher(cluster)
    try:
        nodes, config = watcher.snapshot().nodes, watcher.config()
    finally:
        watcher.close()
    assert CONFIG.items() <= config.items()
    elsewhere = replace(cluster, node_ids=())
    end = time.monotonic() + PATIENCE
    while not (known := metrics(elsewhere, nodes, config).gauges) and time.monotonic() < end:
        time.sleep(0.5)
    assert [(g.what, g.threshold, g.is_assumed) for g in known] == [
        ("memory", 0.97, False),
        ("disk", 0.001, False),
    ]
    unknown = metrics(elsewhere, nodes, {}).gauges
    assert [(g.what, g.threshold, g.is_assumed) for g in unknown] == [
        ("memory", 0.95, True),
        ("disk", 0.95, True),
    ]
    (reply,) = levels([], [unknown[0]._replace(used=unknown[0].limit)])
    assert "the node's own setting is unknown" in reply.text


@pytest.mark.ray
def test_a_child_looks_at_a_cluster_and_at_the_stacks_of_suspects(ray: RealRay) -> None:
    request = {"address": ray.address, "report": False, "suspects": 2, "age_s": 1.0}
    child = BackgroundProcess()
    assert child.start(request) == ""
    reply, end = None, time.monotonic() + PATIENCE
    while reply is None and time.monotonic() < end:
        time.sleep(0.05)
        reply = child.poll()
    assert reply is not None
    assert reply.keys() == {"hung"}
    assert isinstance(reply["hung"], list)
    assert 0 < child.cost == child.spent


@pytest.mark.ray
def test_a_full_disk_and_a_reader_that_goes_are_no_trouble(ray: RealRay) -> None:
    command = [
        sys.executable,
        "-m",
        "raydoctor",
        "watch",
        "--address",
        ray.address,
        "--no-diagnose",
    ]
    options: Any = {"env": ray.environment, "text": True, "timeout": PATIENCE}
    brief = [*command, "--for", "0.5s", "--every", "0.1"]
    with Path("/dev/full").open("w") as full:
        watch = subprocess.run(brief, stdout=full, stderr=subprocess.PIPE, check=False, **options)
    assert watch.returncode == 0
    assert "lines were dropped: the disk of the output is full" in watch.stderr
    line = f"{shlex.join(command)} --every 0.1 | head -1"
    watch = subprocess.run(["bash", "-c", line], capture_output=True, check=True, **options)
    assert json.loads(watch.stdout)["event"] == "round"
    assert watch.stderr == ""


@pytest.mark.ray
def test_the_screen_fits_and_gives_the_terminal_back(ray: RealRay) -> None:
    command = [sys.executable, "-m", "raydoctor", "watch", "--address", ray.address, "--every", "0.5", "--no-diagnose"]  # fmt: skip
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
    before = termios.tcgetattr(follower)
    env = {**ray.environment, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    watch = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=env, cwd=ray.folder)  # fmt: skip
    out = read(leader, 3)
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 50, 0, 0))
    watch.send_signal(signal.SIGWINCH)
    new = b""
    while b"\x1b[2J" not in new:  # what was being drawn has the old size
        new += read(leader, 1)
    assert max(rows_of(new.partition(b"\x1b[2J")[2])) <= 10
    out += new
    os.write(leader, b"q")
    out += read(leader, 0)
    assert watch.wait(timeout=PATIENCE) == 0
    assert termios.tcgetattr(follower) == before
    for file in (leader, follower):
        os.close(file)
    assert b"\x1b[?1049h" in out
    assert b"\x1b[?1049l" in out
    assert max(rows_of(out.partition(b"\x1b[2J")[2].partition(b"\x1b[2J")[0])) <= SIZE[0]
    assert b"\x1b[31m\xe2" not in out
    assert "\u202e".encode() not in out


class Tmux:
    """A watch in a terminal of tmux's."""

    def __init__(self, ray: RealRay, width: int) -> None:
        self._socket = str(ray.folder / f"tmux-{width}")
        watch = shlex.join([sys.executable, "-m", "raydoctor", "watch", "--address", ray.address, "--no-diagnose"])  # fmt: skip
        self._env = {**ray.environment, "TERM": "xterm-256color"}
        self._run("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", "24", watch)

    def _run(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, *words],
            env=self._env, capture_output=True, text=True, timeout=PATIENCE, check=True,
        ).stdout  # fmt: skip

    def press(self, *keys: str, until: str) -> str:
        """The screen once it shows these words after the keys."""
        for key in keys:
            self._run("send-keys", key)
        deadline = time.monotonic() + PATIENCE
        while until not in (screen := self._run("capture-pane", "-p")):
            assert time.monotonic() < deadline, screen
            time.sleep(0.1)
        return screen

    def __enter__(self) -> Tmux:
        self.press(until="q quits")  # it reads keys
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(subprocess.CalledProcessError):  # q has ended it
            self._run("kill-server")


NEEDS_TMUX = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")


@NEEDS_TMUX
@pytest.mark.ray
def test_keys_select_a_task_show_its_stack_and_cancel_it(ray: RealRay) -> None:
    with Tmux(ray, 100) as watch:
        watch.press("?", until="the call stack of the selected task")
        watch.press("Escape", until="running, longest first")
        watch.press("s", until="running, by name")
        found = watch.press("/", *"picked", "Enter", "Down", until="> picked")
        assert "Keeper.hold" not in found
        assert "filter 'picked'" in found
        stack = watch.press("Enter", until="exit code 0")
        assert "picked (" in stack
        watch.press("Escape", "c", until="cancel picked (task ")
        watch.press("n", until="q quits")
        assert "picked=" not in (ray.folder / "driver-0.txt").read_text()
        watch.press("c", "y", until="Ended.")
        ray.wait_for("picked=")
        watch.press("Escape", until="no running task has 'picked'")


@NEEDS_TMUX
@pytest.mark.ray
@pytest.mark.parametrize(("width", "columns"), [(60, 4), (200, 6)])
def test_a_narrow_screen_shows_what_matters_and_a_wide_one_more(
    ray: RealRay, width: int, columns: int
) -> None:
    with Tmux(ray, width) as watch:
        screen = watch.press("Down", until="> ").splitlines()
    head = next(line for line in screen if line.startswith("running, longest first"))
    names = ["for", "hang", "peers", "where", "task"]
    wanted = [name for name in names if columns == 6 or name in ("for", "hang", "where")]
    assert head.split()[3:] == wanted
    (row,) = (line for line in screen if line.startswith("> "))
    assert " pid " in row
    assert "…" not in row


@pytest.mark.ray
def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(ray: RealRay) -> None:
    command = [sys.executable, "-m", "raydoctor", "watch", "--address", ray.address, "--every", "0.5", "--no-diagnose"]  # fmt: skip
    env = {**ray.environment, "TERM": "xterm-256color"}
    child, leader = pty.fork()  # the terminal that it has is its own: Ctrl-Z reaches it
    if not child:
        os.execve(sys.executable, command, env)
    read(leader, 2)
    before = termios.tcgetattr(leader)
    os.write(leader, b"\x1a")
    out = read(leader, 0)
    assert b"\x1b[?1049l" in out
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    canonical = termios.ICANON | termios.ECHO
    assert termios.tcgetattr(leader)[3] & canonical == canonical
    os.kill(child, signal.SIGCONT)
    out = read(leader, 2)
    assert b"\x1b[?1049h" in out
    assert termios.tcgetattr(leader) == before
    os.write(leader, b"q")
    read(leader, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(leader)


def rows_of(out: bytes) -> list[int]:
    """The rows of the terminal that were written."""
    return [int(row) for row in re.findall(rb"\x1b\[(\d+);1H", out)]


def read(file: int, frames: int) -> bytes:
    """What is drawn until there are so many frames, or, for none, until the screen is given back."""
    out, end = b"", time.monotonic() + PATIENCE
    while time.monotonic() < end:
        # Each frame shows the time in its first row.
        if out.count(b"\x1b[1;1H") >= frames > 0 or b"\x1b[?1049l" in out:
            return out
        if select.select([file], [], [], 0.5)[0]:
            out += os.read(file, 1 << 16)
    raise AssertionError(out[-500:])


@pytest.mark.ray
def test_a_page_is_never_larger_than_asked(ray: RealRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", ray.environment["HOME"])
    watch = Watch(ray.address, options=WatchOptions(False, False), limits=GuardLimits(1.0))
    watch.open()
    try:
        watch.round()
        for width, height in ((80, 24), (20, 3), (200, 100), (1, 1)):
            page = render.page(watch, width, height)
            assert len(page) <= height
            assert all(_text.cells(plain_line(line)) <= width for line in page)
            assert all(plain_line(line).isprintable() for line in page)
        page = [plain_line(line) for line in render.page(watch, 80, 24)]
        assert page[0].startswith("raydoctor watch")
        assert any(
            "has run for" in line for line in page
        )  # however much else there is to say by now
        render.round_to_json(watch).encode("ascii")
        watch.options = WatchOptions()
        view = watch.view
        far = view.snapshot.nodes[0]._replace(node="f" * 56)
        view.snapshot = view.snapshot._replace(nodes=(*view.snapshot.nodes, far))
        page = [plain_line(line) for line in render.page(watch, 80, 24)]
        assert (
            "hung tasks of 1 other node appear later; raydoctor hung finds them immediately" in page
        )
    finally:
        watch.close()


@pytest.mark.ray
def test_a_cluster_that_dies_is_reported_and_asked_again(ray: RealRay) -> None:
    """The last one of this cluster: it ends it, and starts another one in its place."""
    watch = started(ray, "--no-diagnose")
    with ending(watch):
        until(watch, "round")
        ray._end_all()
        lost = of(until(watch, "cluster-lost"), "cluster-lost")[""]
        assert ray.address in lost["text"]
        assert of(until(watch, "round"), "round")[""]["state"] == "lost"
        ray.nodes.clear()
        ray.start(cpus=0, dashboard=False, lean=True)
        assert of(until(watch, "cluster-new"), "cluster-new")[""]["session"]
        assert of(until(watch, "round"), "round")[""]["state"] == "up"


# ------------------------------------------------------------------ without a cluster


def test_a_cluster_that_died_is_diagnosed_by_its_logs() -> None:
    session = capture_of(FIXTURES / "gcs-killed--ray-2.60.0--1-node")
    reply = inspect({"session": str(session), "report": True})
    assert [(each["rule"], each["tier"]) for each in reply["diagnoses"]] == [("gcs-died", "root")]


def test_what_uses_a_processor_is_at_work() -> None:
    process = Process(7, "ray::f", "R", 1, 7, 7, 1000.0, 50.0, 0)
    effort = Effort()
    assert effort.share(7, {7: process}, 0.0) is None
    assert effort.share(7, {7: process._replace(cpu_seconds=54.0)}, 5.0) is None
    assert effort.share(7, {7: process._replace(cpu_seconds=75.0)}, 25.0) == 1.0
    assert effort.share(7, {7: process._replace(cpu_seconds=75.0)}, 50.0) == 0.0
    assert effort.share(7, {7: process._replace(started_at=1100.0)}, 80.0) is None


TASK, WORKER = "c8ef45ccd0112571" + "f" * 24 + "01000000", "ab" * 28
RUN = ReportedTask(TASK, WORKER, 12, "127.0.0.1", "cd" * 28)


def seen(at: float, *runs: ReportedTask, silent: tuple[str, ...] = ()) -> Snapshot:
    return Snapshot(at, "s", (), runs, len(runs), (), 1, 1, silent)


def attempt(number: int, started_at: float | None, name: str = "train.step") -> Attempt:
    return Attempt(TASK, name, name, number, "RUNNING", WORKER, "", started_at)


def test_a_clock_starts_when_a_task_is_seen_and_is_set_right() -> None:
    clocks = Clocks()
    clocks.see(seen(100.0))
    (first,) = clocks.see(seen(102.0, RUN))
    assert first.age(103.0) == 1.0
    clocks.learn([attempt(0, 101.5)])
    assert clocks.running()[0].age(103.0) == 1.5
    # The clock of its machine is an hour behind: it cannot have begun before we last looked.
    clocks = Clocks()
    clocks.see(seen(100.0))
    clocks.see(seen(102.0, RUN))
    clocks.learn([attempt(0, 102.0 - 3600)])
    assert clocks.running()[0].began == 100.0


def test_what_ran_before_the_first_look_began_when_the_gcs_says() -> None:
    clocks = Clocks()
    clocks.see(seen(1000.0, RUN))
    clocks.learn([attempt(0, 400.0)])
    assert clocks.running()[0].age(1000.0) == 600.0


def test_a_retry_has_a_fresh_clock_on_the_same_worker_and_another() -> None:
    clocks = Clocks()
    clocks.see(seen(100.0, RUN))
    clocks.learn([attempt(0, 50.0)])
    clocks.see(seen(200.0, RUN))
    clocks.learn([attempt(1, 190.0)])
    (running,) = clocks.running()
    assert (running.age(200.0), running.key[2]) == (10.0, 1)
    other = RUN._replace(worker="ef" * 28)
    (running,) = clocks.see(seen(300.0, other))
    assert running.age(300.0) == 0.0


def test_a_worker_that_is_stopped_keeps_its_clocks() -> None:
    clocks = Clocks()
    clocks.see(seen(100.0, RUN))
    (running,) = clocks.see(seen(150.0, silent=(WORKER,)))
    assert running.age(150.0) == 50.0
    assert clocks.see(seen(151.0)) == []


def guarded(
    limits: GuardLimits, *attempts: Attempt
) -> tuple[TimeLimitGuard, Clocks, list[str], Any]:
    """A guard whose deeds are only noted, of a task that has run for 100 s."""
    done: list[str] = []

    def end(cluster: Cluster, running: Any, limits: GuardLimits) -> CancelResult:
        done.append(running.run.task)
        return CancelResult(running, True, "cancel", 0.1)

    clocks, answers = Clocks(), list(attempts)
    clocks.see(seen(100.0, RUN))
    clocks.learn(answers[:1])
    return TimeLimitGuard(limits, end), clocks, done, lambda tasks: {TASK: answers[-1]}


def test_each_attempt_is_ended_once() -> None:
    guard, clocks, done, ask = guarded(GuardLimits(10.0, "cancel"), attempt(0, 50.0))
    for _ in range(3):
        guard.check(Cluster(), clocks, ask, 100.0)
        guard.wait(2.0)
    assert done == [TASK]


def test_an_unseen_retry_is_not_ended_for_its_earlier_attempt() -> None:
    guard, clocks, done, ask = guarded(
        GuardLimits(10.0, "force"), attempt(0, 50.0), attempt(1, 105.0)
    )
    clocks.see(seen(106.0, RUN))
    assert guard.check(Cluster(), clocks, ask, 107.0) == []
    assert done == []


@pytest.mark.parametrize(
    ("name", "limits", "is_so"),
    [
        ("train.step", GuardLimits(1.0), True),
        ("train.step", GuardLimits(1.0, names=("step",)), True),
        ("train.step", GuardLimits(1.0, names=("st",)), False),
        ("train.step", GuardLimits(1.0, exclude=("train.*",)), False),
        ("train.step", GuardLimits(1.0, jobs=(RUN.task[40:],)), True),
        ("train.step", GuardLimits(1.0, names=("step",), jobs=("ab000000",)), False),
        ("JobSupervisor.run", GuardLimits(1.0), False),
        ("ServeController.listen_for_change", GuardLimits(1.0, names=("*",)), False),
        ("raydoctor: act.clean:respond", GuardLimits(1.0), False),
    ],
)
def test_who_is_meant(name: str, limits: GuardLimits, is_so: bool) -> None:
    clocks = Clocks()
    clocks.see(seen(100.0, RUN))
    clocks.learn([attempt(0, 50.0, name)])
    assert is_meant(clocks.running()[0], limits) is is_so


def test_a_task_without_a_known_name_is_only_reported() -> None:
    guard, clocks, done, _ = guarded(GuardLimits(10.0, "force"))
    clocks.see(seen(120.0, RUN))
    (event,) = guard.check(Cluster(), clocks, lambda tasks: {}, 120.0)
    assert event.facts["why_not"]
    assert done == []
    guard, clocks, done, _ = guarded(GuardLimits(10.0, "force", names=("x",)))
    assert guard.check(Cluster(), clocks, lambda tasks: {}, 120.0) == []


def test_the_next_round_is_counted_from_the_begin_of_the_last() -> None:
    now = time.monotonic()
    assert Watch(every=2.0, _began=now - 0.5).next_round == pytest.approx(now + 1.5, abs=0.2)
    assert Watch(every=2.0, _began=now - 9.0).next_round == pytest.approx(now + 1.0, abs=0.2)
    assert (Watch(every=2.0, _interval=3.0).interval, Watch(every=2.0).interval) == (3.0, 2.0)


def test_a_reason_is_heard_soon_and_less_so_where_it_led_to_nothing() -> None:
    pace = Pace(10.0)
    assert pace.is_due(0.0, False)
    pace.started(0.0)
    pace.ended(True)
    assert not pace.is_due(60.0, False)
    assert pace.is_due(10.0, True)
    pace.ended(False)
    assert not pace.is_due(15.0, True)
    assert pace.is_due(20.0, True)
    assert pace.is_due(600.0, False)


@pytest.mark.parametrize(("is_urgent", "window"), [(False, 300), (True, 600)])
def test_any_five_minutes_cost_no_more_than_a_hundredth(is_urgent: bool, window: int) -> None:
    """Rounds of 0.4 %, children of 0.1 to 9 s that are always wanted: the worst window is looked for."""
    budget, spent, own = WatchBudget(), list[tuple[float, float]](), 0.5
    spent.append((0.0, own))
    costs = [0.9, 0.1, 1.5, 0.7, 9.0, 0.3]
    for second in range(0, 12_000, 2):
        own += 0.008
        budget.own(float(second), own)
        spent.append((float(second), 0.008))
        if budget.may(float(second), costs[0], is_urgent=is_urgent):
            budget.child(float(second), costs[0])
            spent.append((float(second), costs[0]))
            costs.append(costs.pop(0))
    children = [cost for _, cost in spent if cost != 0.008]
    assert len(children) > 12
    large = [at for at, cost in spent if cost == 9.0]
    for start in range(0, 11_700, 10):
        if not any(start <= at < start + window for at in large):
            assert sum(c for at, c in spent if start <= at < start + window) <= 0.0101 * window
    assert sum(c for _, c in spent) <= 12_000 * 0.01


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit('the file is gone')", "the file is gone"),
        ("1 / 0", "ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("print('no JSON')", "unreadable reply"),
    ],
)
def test_a_look_that_fails_says_why(
    program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_look.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = BackgroundProcess("broken_look")
    assert child.start({}) == ""
    reply, end = None, time.monotonic() + PATIENCE
    while reply is None and time.monotonic() < end:
        time.sleep(0.02)
        reply = child.poll()
    assert reply is not None
    assert words in reply["problem"]
    assert not child.is_running


def test_a_look_that_failed_is_a_problem_until_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, view = tmp_path / "a_look.py", WatchView(seen(100.0))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    inspections = Inspections(
        Cluster(gcs_address="127.0.0.1:1"), WatchOptions(), WatchBudget(share=2.0)
    )
    inspections._child.program = "a_look"
    reply = []
    for text in ("1 / 0", 'print(\'{"diagnoses": [{"rule": "disk-full", "severity": "error"}]}\')'):
        program.write_text(text)
        inspections._paces[0]._last = None  # it is time again
        end = time.monotonic() + PATIENCE
        events = list(inspections.turn(view, {}, True))
        while inspections._child.is_running and time.monotonic() < end:
            time.sleep(0.02)
            events += inspections.turn(view, {}, False)
        reply.append(([each.why for each in inspections.problems], [each.event for each in events]))
    assert reply == [(["failed: ZeroDivisionError: division by zero"], []), ([], ["diagnosis"])]


@pytest.mark.parametrize(("is_urgent", "lower"), [(False, True), (True, False)])
def test_only_an_urgent_inspection_has_the_priority_of_the_watch(
    is_urgent: bool, lower: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import json, os, time; time.sleep(0.5); print(json.dumps({'nice': os.nice(0)}))"
    (tmp_path / "a_look.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child, replies = BackgroundProcess(program="a_look"), list[dict[str, Any]]()
    assert child.start({}, is_urgent=is_urgent) == ""
    waiting.until(lambda: replies.extend([reply] if (reply := child.poll()) else []) or replies)
    assert (replies[0]["nice"] > os.nice(0)) is (lower and os.nice(0) < 10)


@pytest.mark.parametrize(
    ("rested", "is_woken", "events"),
    [
        (30.0, False, []),
        (70.0, False, ["task-hung"]),
        (30.0, True, ["task-hung"]),  # another tool has read its stack
        (1.0, True, []),  # a loop that wakes up each second
    ],
)
def test_a_task_that_does_not_run_is_sampled_at_once_though_the_budget_is_spent(
    rested: float,
    is_woken: bool,
    events: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"kind": "lock", "task": {"id": TASK}, "pid": 12, "state": "RUNNING"}
    (tmp_path / "a_look.py").write_text(f"print({json.dumps({'hung': [row]})!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(rests, "of_main_threads", lambda pids: dict.fromkeys(pids, rested))
    monkeypatch.setattr(rests, "is_main_woken", lambda pid: is_woken)
    clocks = Clocks()
    clocks.see(seen(0.0, RUN))
    view = WatchView(seen(70.0, RUN), [TaskLine(clocks.running()[0], "f", None, "")])
    budget = WatchBudget()
    budget.child(time.monotonic(), 1.8)
    assert not budget.may(time.monotonic(), 0.75)
    inspections = Inspections(
        Cluster(gcs_address="127.0.0.1:1", node_ids=(RUN.node,)),
        WatchOptions(diagnose=False),
        budget,
    )
    inspections._child.program = "a_look"
    processes = {12: Process(12, "ray::f", "S", 1, 12, 12, 1000.0, 0.0, 0)}
    reply, end = list(inspections.turn(view, processes, False)), time.monotonic() + PATIENCE
    while inspections._child.is_running and time.monotonic() < end:
        time.sleep(0.02)
        reply += inspections.turn(view, processes, False)
    assert [each.event for each in reply] == events
    assert not inspections._child.is_running


def test_a_reader_that_stops_delays_no_other() -> None:
    reader, writer = os.pipe()
    try:
        with LineWriter(writer) as lines:
            for number in range(100):
                lines.put("x" * 5000 + "\n", is_dispensable=True)
                lines.put(f"{number}\n")
            assert 50 < lines.lost < 100
            os.set_blocking(reader, False)
            read = b""
            while b"99\n" not in read:
                with suppress(BlockingIOError):
                    read += os.read(reader, 1 << 20)
        reply = [int(line) for line in read.split() if line.isdigit()]
        assert reply == list(range(100))
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            put_until_it_fails(writer)
    finally:
        os.close(writer)


def put_until_it_fails(writer: int) -> None:
    end = time.monotonic() + PATIENCE
    with LineWriter(writer) as lines:
        while time.monotonic() < end:
            lines.put("nobody\n")
            time.sleep(0.001)


def test_what_could_not_be_found_out_is_reported_once_for_each_reason() -> None:
    problem = WatchProblem("the diagnosis", "took too long", "By hand: raydoctor diagnose")
    (reply,) = problems([], [problem])
    assert reply.event == "look-failed"
    assert reply.text == "the diagnosis: took too long. By hand: raydoctor diagnose"
    assert list(problems([problem], [problem])) == []
    assert len(list(problems([problem], [problem._replace(why="was ended by SIGKILL")]))) == 1


def test_gauges_and_diagnoses_are_reported_when_they_change() -> None:
    ok = Gauge("n", "", "disk", "/", 50, 100, 0.95)
    near, over = ok._replace(used=90), ok._replace(used=96)
    assert [e.level for e in levels([], [ok])] == []
    assert [e.level for e in levels([ok], [near])] == ["warning"]
    assert [e.level for e in levels([near], [over])] == ["error"]
    assert [e.level for e in levels([over], [ok])] == ["ok"]
    row = {"rule": "disk-full", "severity": "error", "headline": "97 %", "subjects": [{"kind": "node", "id": "a"}]}  # fmt: skip
    (new,) = diagnoses([], [row])
    assert (new.event, new.facts["rule"]) == ("diagnosis", "disk-full")
    assert list(diagnoses([row], [{**row, "headline": "98 %"}])) == []
    assert [e.event for e in diagnoses([row], [])] == ["diagnosis-gone"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--timeout", "soon"],
        ["--timeout", "0"],
        ["--on-timeout", "force"],
        ["--timeout", "5s", "--on-timeout", "cancel", "--kill-actor"],
        ["--job", "01000000"],
        ["--timeout", "5s", "--job", "raysubmit_ab"],
        ["--address", "127.0.0.1:9"],
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["watch", "--for", "1s", *arguments]) == 2
    assert capsys.readouterr().err
