"""The demo: limits set just above what is in use, and nothing of it left behind."""

from __future__ import annotations

import ast
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from raydoctor import cli
from raydoctor.cli import demo as command
from raydoctor.demo import cluster, machine, network, scenarios
from raydoctor.model.errors import RaydoctorError
from raydoctor.rules import names
from tests.helpers import hostile
from tests.helpers.hostile import ALICE, MALLORY
from tests.helpers.real_ray import RETRIES, has_started
from tests.helpers.waiting import PATIENCE, Program

GB = 1 << 30
MEMINFO = "MemTotal:  25165824 kB\nMemFree: 1 kB\nMemAvailable:  20971520 kB\n"


def write(root: Path, files: Mapping[str, str]) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


# ---------------------------------------------------------------- the machine


def test_memory_is_the_system_s_where_no_group_limits_it(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "12345\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory.current": "12345\n",
    }
    assert machine.memory(write(tmp_path, files)) == machine.HostMemory(4 * GB, 24 * GB)


@pytest.mark.parametrize(
    ("folder", "limit", "usage", "prefix"),
    [
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ("sys/fs/cgroup", "memory.max", "memory.current", ""),
    ],
)
def test_memory_is_the_group_s_without_its_page_cache(
    tmp_path: Path, folder: str, limit: str, usage: str, prefix: str
) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        f"{folder}/{limit}": f"{4 * GB}\n",
        f"{folder}/{usage}": f"{3 * GB}\n",
        f"{folder}/memory.stat": f"{prefix}inactive_file {GB // 2}\n{prefix}active_file {GB // 2}\n",
    }
    assert machine.memory(write(tmp_path, files)) == machine.HostMemory(2 * GB, 4 * GB)


def test_without_proc_there_is_no_memory(tmp_path: Path) -> None:
    assert machine.memory(tmp_path) is None


def test_the_threshold_lies_above_the_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "memory", lambda: machine.HostMemory(4 * GB, 24 * GB))
    oom = scenarios.find("oom")
    assert oom is not None
    threshold = float(oom.settings(tmp_path)["RAY_memory_usage_threshold"])
    assert 5 * GB < threshold * 24 * GB < 5.5 * GB


@pytest.mark.parametrize("memory", [machine.HostMemory(3 * GB, 4 * GB), None])
def test_too_little_memory_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory: machine.HostMemory | None
) -> None:
    monkeypatch.setattr(machine, "memory", lambda: memory)
    oom = scenarios.find("oom")
    assert oom is not None
    with pytest.raises(RaydoctorError) as refused:
        oom.settings(tmp_path)
    assert "raydoctor demo " in refused.value.hint


def test_the_disk_s_threshold_lies_below_the_use(tmp_path: Path) -> None:
    full = scenarios.find("disk-full")
    assert full is not None
    threshold = float(full.settings(tmp_path)["RAY_local_fs_capacity_threshold"])
    assert threshold < machine.disk_used(tmp_path)


# ---------------------------------------------------------------- the scenarios


@pytest.mark.parametrize("scenario", scenarios.SCENARIOS, ids=lambda s: s.name)
def test_programs_are_small_and_what_they_show_has_a_rule(scenario: scenarios.Scenario) -> None:
    source = scenario.path.read_text()
    ast.parse(source)
    assert len(source.splitlines()) < 60
    assert scenario.finds <= set(names())


def test_the_default_is_one_of_them() -> None:
    assert scenarios.find(scenarios.DEFAULT) is not None
    assert scenarios.find("earthquake") is None


# ---------------------------------------------------------------- the throwaway cluster


def test_the_environment_is_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.1")
    with cluster.throw_away() as run:
        run.exit_code = 0
        environment = run.environment
        assert environment["RAY_TMPDIR"] == str(run.folder)
    assert environment["RAY_ADDRESS"] == "local"
    assert environment["RAY_AUTH_TOKEN"]
    assert "RAY_memory_usage_threshold" not in environment
    assert not run.folder.exists()


def test_sockets_fit_into_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: "/var/folders/" + "x" * 50)
    with cluster.throw_away() as run:
        assert len(str(run.folder)) <= 40


def program(folder: Path, code: str) -> Path:
    path = folder / "program.py"
    path.write_text(code)
    return path


def test_a_driver_is_run_to_its_end_and_its_output_reported(tmp_path: Path) -> None:
    code = "import os, sys; print('hello', os.environ['EXTRA']); sys.exit('wrong')"
    reply: list[str] = []
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    with cluster.throw_away(keep=True) as run:
        cluster.supervise(run, program(tmp_path, code), {"EXTRA": "1"}, 30, reply.append)
    assert run.exit_code == 1
    assert reply == ["hello 1", "wrong"]
    assert run.driver_log.read_text() == "hello 1\nwrong\n"
    assert run.session is None
    assert resource.getrlimit(resource.RLIMIT_CORE) == limits
    run.driver_log.unlink()
    run.folder.rmdir()


SPAWNS = """
import os, subprocess, sys, time
child = [sys.executable, "-c", "import time; time.sleep(600)"]
plain = subprocess.Popen(child)
apart = subprocess.Popen(child, start_new_session=True)
unmarked = subprocess.Popen(child, start_new_session=True, env={"PATH": os.environ["PATH"]})
print(plain.pid, apart.pid, unmarked.pid, flush=True)
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 2)
os._exit(3)
"""


def test_what_it_started_is_ended_and_nothing_else(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with Program(sleeper) as bystander:
        reply: list[str] = []
        with cluster.throw_away() as run:
            cluster.supervise(run, program(tmp_path, SPAWNS), {}, 30, reply.append)
            run.exit_code = None  # no patience: they sleep for long
        pids = list(map(int, reply[0].split()))
        assert len(pids) == 3
        assert not any(alive(pid) for pid in pids)
        assert alive(bystander.pid)
        bystander.kill()
    assert not run.folder.exists()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0,
    reason="plays several users: Linux, as root",
)
def test_a_process_that_another_user_marks_is_not_ended() -> None:
    """The folder's name, which the mark contains, is visible to all."""
    with hostile.ground() as ground:
        with cluster.throw_away() as run:
            planted = ground.run(MALLORY, ground.program("raylet"), [], run.environment)
        assert alive(planted)


LISTENS = """
import os, socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
print(server.getsockname()[1], os.stat("/proc/self/ns/net").st_ino, os.geteuid(), flush=True)
time.sleep(600)
"""


def test_the_demo_has_a_network_of_its_own_or_none(tmp_path: Path) -> None:
    """What it starts connects to itself there; processes outside find nothing at its port."""
    reply: list[str] = []

    def connect(line: str) -> None:
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(line.split(maxsplit=1)[0])), 5).close()
            reply.append("reached")
        reply.append(line)

    with cluster.throw_away() as run:
        cluster.supervise(run, program(tmp_path, LISTENS), {}, 3, connect)
    _, namespace, user = reply[-1].split()
    assert int(user) == os.geteuid()
    is_own = int(namespace) != os.stat("/proc/self/ns/net").st_ino
    assert is_own is network.is_available() is (reply[0] != "reached")


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0,
    reason="plays several users: Linux, as root",
)
@pytest.mark.parametrize("victim", [0, ALICE])
def test_no_program_of_the_demo_meets_another_users_listener(victim: int) -> None:
    """Root has a network without a user namespace; a user has one only if the kernel permits it."""
    with hostile.ground() as ground:
        port = ground.listener(MALLORY).port

        def enter() -> list[object]:
            # As after the login of a user: files of /proc belong to the process's owner.
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
            socket.create_connection(("127.0.0.1", port), 5).close()
            try:
                network.enter()
            except OSError as error:
                return [os.geteuid(), str(error)]
            server = socket.create_server(("127.0.0.1", 0))
            socket.create_connection(server.getsockname()).close()
            with suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 5).close()
                return ["reached"]
            return [os.geteuid(), "apart"]

        reply = hostile.as_user(victim, enter)
    assert reply == [victim, "apart"] or (victim and "unshare" in reply[1])


@pytest.mark.parametrize("version", [("2.40.0", True), ("2.59.1", False), ("3.0", False)])
@pytest.mark.parametrize("is_apart", [True, False])
def test_a_cluster_that_others_can_reach_without_a_token_is_said(
    version: tuple[str, bool],
    is_apart: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, warns = version
    monkeypatch.setattr(network, "is_available", lambda: is_apart)
    monkeypatch.setattr("importlib.metadata.version", lambda package: name)
    path = str(program(tmp_path, "print('hello')"))
    with cluster.throw_away() as run:
        monkeypatch.setattr(network, "enter", lambda: None)
        command._run(scenarios.Scenario("x", "x", path, frozenset()), run)
    shown = capsys.readouterr().err
    assert "hello" in shown
    assert ("this Ray has no tokens" in shown) is (warns and not is_apart)


def test_a_driver_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with cluster.throw_away() as run:
        cluster.supervise(run, program(tmp_path, "import time; time.sleep(600)"), {}, 0.5, print)
        assert run.exit_code is None
    assert not any(p.is_running() for p in run.processes.values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, number: int) -> None:
    code = (
        "import signal, sys\nfrom pathlib import Path\nfrom raydoctor.demo import cluster\n"
        # A shell's background job, as CI may be, inherits SIGINT ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with cluster.throw_away() as run:\n"
        "    print(run.folder, flush=True)\n"
        f"    cluster.supervise(run, Path({str(program(tmp_path, SPAWNS))!r}), {{}}, 60,\n"
        "        lambda line: print(line, flush=True))\n"
    )
    with Program(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        pids = list(map(int, process.stdout.readline().split()))
        time.sleep(0.5)
        os.kill(process.pid, number)
        assert process.wait(timeout=PATIENCE) != 0
    assert len(pids) == 3
    assert not any(alive(pid) for pid in pids)
    assert not folder.exists()


# ---------------------------------------------------------------- the command


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["demo", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(s.name in out and s.title in out for s in scenarios.SCENARIOS)


def test_without_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.execute(["demo"]) == 2
    assert "pip install 'ray[default]'" in capsys.readouterr().err


def test_a_ray_that_does_not_start_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = scenarios.Scenario(
        "x", "x", str(program(tmp_path, "raise SystemExit(1)")), frozenset()
    )
    monkeypatch.setattr(scenarios, "find", lambda name: broken)
    monkeypatch.setattr(command, "_check_ray", lambda: None)
    assert cli.execute(["demo"]) == 2
    assert "Ray did not start" in capsys.readouterr().err


def test_endless_output_is_cut_short() -> None:
    reply: list[str] = []
    limited = command._limited(reply.append, 2)
    for text in "abcd":
        limited(text)
    assert reply == ["a", "b", "…"]


BESIDE = {"owner-died": "starved"}
"""The one mostly waits: it does so while others run, but not beside the one that measures the memory in use."""


@pytest.fixture(scope="module")
def begun() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Demos that run; what no test has waited for is ended."""
    running: dict[str, subprocess.Popen[str]] = {}
    yield running
    for process in running.values():
        process.terminate()
        process.communicate()


def begin(name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "raydoctor", "demo", name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def other_user() -> Iterator[hostile.Listener | None]:
    """Another user's process at the port of Ray's dashboard, where the machine lets a test have one."""
    with hostile.ground() as ground:
        try:
            yield ground.listener(MALLORY if os.geteuid() == 0 else 0, port=8265)
        except AssertionError:  # a Ray of this machine has the port
            yield None


@pytest.mark.ray
@pytest.mark.skipif(find_spec("ray") is None, reason="breaks a real Ray")
@pytest.mark.parametrize("name", [s.name for s in scenarios.SCENARIOS])
def test_a_real_failure_is_found(
    name: str, other_user: hostile.Listener | None, begun: dict[str, subprocess.Popen[str]]
) -> None:
    for each in (name, BESIDE.get(name, name)):
        if each not in begun:
            begun[each] = begin(each)
    process = begun[name]
    out, err = process.communicate(timeout=PATIENCE)
    for _ in range(RETRIES):
        if not has_started(out + err):
            process = begin(name)
            out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err
    folder = next(line for line in err.splitlines() if " in its own Ray cluster, in " in line)
    folder = folder.rpartition(" in ")[2]
    assert not Path(folder).exists()
    commands = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if folder in command]
    # Ray's agent sends events, with the cluster's token, to a dashboard that was not started.
    assert other_user is None or other_user.received == b""
