"""`raydoctor run`: the driver's output and exit code as they are, a diagnosis if it fails, nothing left of it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from raydoctor.act.audit import Audit
from raydoctor.act.tracking import registry, watcher
from raydoctor.act.zombies import leftovers
from raydoctor.act.zombies.leftovers import SweepOptions
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import PATIENCE, clock, until

QUICK = """
import os, signal, sys
session, pid = sys.argv[1], os.getpid()
os.makedirs(f"{session}/logs")
open(f"{session}/logs/python-core-driver-0a{pid:054d}_{pid}.log", "w").close()
open(f"{session}/logs/raylet.out", "w").close()
sys.exit(9)
"""
POLLS = """
import ray, subprocess
ray.init(log_to_driver=False)
@ray.remote
def score(n): return n
pending = [score.remote(1)]
ray.get(pending)
subprocess.Popen(["sleep", "86127"])
while True: ray.wait(pending)
"""
HANGS = """
import ray, time, subprocess
ray.init()
@ray.remote(max_retries=0)
def step():
    subprocess.Popen(["sleep", "86123"], start_new_session=True)
    print("hangs now", flush=True)
    time.sleep(1000)
ray.get(step.remote())
"""
LEAVES = """
import ray, time, subprocess
ray.init()
@ray.remote(max_retries=0)
def step():
    # A session of its own, no environment, no file of the worker's.
    hidden = "env -i setsid sleep 86124 </dev/null >/dev/null 2>&1 3<&- & wait"
    subprocess.Popen(["sh", "-c", hidden])
    time.sleep(1000)
running = step.remote()
time.sleep(1000)
"""
FAILS = """
import ray, subprocess, sys
ray.init()
@ray.remote(max_retries=0)
def step(n):
    raise ValueError(f"bad number {n}")
print("the driver's own words", flush=True)
ray.get(step.remote(42))
"""
CATCHES = """
import ray
ray.init()
@ray.remote(max_retries=0)
def step(n):
    raise ValueError(f"bad number {n}")
for n in range(2):
    try:
        ray.get(step.remote(n))
    except Exception as error:
        if "{shown}":
            print(error)
print("done")
"""
DAEMON = """
import os, sys
reading, writing = os.pipe()  # closed by the execve
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.execve("/bin/sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
os.wait()
os.close(writing)
os.read(reading, 1)
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "RAYDOCTOR_"))}
    return {**kept, "XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1"}


def start(*words: str, env: dict[str, str], options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "raydoctor", "run", *options, "--", *words],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(
    *words: str, env: dict[str, str], options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    child = start(*words, env=env, options=options)
    out, err = child.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(words, child.returncode, out, err)


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *arguments)


def sleepers(seconds: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if len(command) == 2 and command[0].endswith("sleep") and command[1] == seconds:
            found.append(process.pid)
    return found


def logs(env: dict[str, str]) -> list[Path]:
    return sorted(Path(env["XDG_STATE_HOME"]).glob("raydoctor/runs/*/driver.log"))


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit(0)", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)],
)  # fmt: skip
def test_the_exit_code_passes_through(code: str, expected: int, home: dict[str, str]) -> None:
    assert run(*python(code), env=home).returncode == expected


def test_a_program_that_is_not_there_and_one_that_is_none(
    home: dict[str, str], tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("no program")
    assert run(str(tmp_path / "missing"), env=home).returncode == 127
    assert run(str(text), env=home).returncode == 126


def test_output_is_shown_apart_and_kept_together_where_it_failed(home: dict[str, str]) -> None:
    code = """
import sys, time
for place in sys.stdout, sys.stderr, sys.stdout:
    print(place.name, file=place)
    time.sleep(0.3)
sys.exit(4)
"""
    result = run(*python(code), env=home)
    assert result.stdout == "<stdout>\n<stdout>\n"
    assert result.stderr.startswith("<stderr>\n")
    assert logs(home)[0].read_text() == "<stdout>\n<stderr>\n<stdout>\n"
    assert str(logs(home)[0]) in result.stderr
    assert "why the program failed: it ended with exit code 4" in " ".join(result.stderr.split())


def test_a_driver_that_does_well_leaves_no_log_and_no_words(home: dict[str, str]) -> None:
    result = run(*python("print('fine')"), env=home)
    assert (result.stdout, result.stderr) == ("fine\n", "")
    assert not logs(home)


def test_a_report_that_cannot_be_written_does_not_change_the_exit_code(
    home: dict[str, str], tmp_path: Path
) -> None:
    result = run(*python("exit(5)"), env=home, options=("-o", str(tmp_path / "no" / "report")))
    assert result.returncode == 5
    assert "report" in result.stderr


def test_a_terminal_stays_one_for_the_driver(home: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    code = "import sys; print('tty', sys.stdout.isatty(), sys.stderr.isatty())"
    command = [sys.executable, "-m", "raydoctor", "run", "--", *python(code)]
    child = subprocess.Popen(command, env=home, stdin=theirs, stdout=theirs, stderr=theirs)
    assert child.wait(30) == 0
    assert os.read(ours, 1000) == b"tty True True\r\n"
    os.close(ours)
    os.close(theirs)


def test_nothing_outlives_it_not_even_a_daemon_without_a_trace(home: dict[str, str]) -> None:
    result = run(*python(DAEMON, "86111"), env=home)
    assert result.returncode == 0
    assert "86111" in result.stderr
    assert not sleepers("86111")


def test_time_runs_out(home: dict[str, str]) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"
    began = clock()
    result = run(*python(stubborn), env=home, options=("--timeout", "1", "--grace", "0.5"))
    assert result.returncode == 124
    assert "SIGKILL" in result.stderr
    assert "why the program had not ended" in result.stderr
    assert "Every log that a diagnosis needs was read" not in result.stderr
    assert clock() - began < 30


def test_sigterm_is_passed_on(home: dict[str, str]) -> None:
    child = start("sh", "-c", "sleep 86112; echo unreachable", env=home)
    until(lambda: sleepers("86112"))
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=PATIENCE)
    assert child.returncode == 143
    assert out == ""
    assert not sleepers("86112")


def test_a_second_interrupt_has_less_patience(home: dict[str, str]) -> None:
    deaf = "import signal, time; signal.signal(2, signal.SIG_IGN); print('up'); time.sleep(1000)"
    child = start(*python(deaf), env=home, options=("--grace", "60"))
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGINT)
    time.sleep(1.5)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=PATIENCE)
    assert child.returncode == 143  # SIGTERM ends it


def test_a_driver_that_was_too_quick_for_a_look_is_known_by_its_log(
    home: dict[str, str], tmp_path: Path
) -> None:
    session = tmp_path / "ray" / "session_2026-11-21_15-14-42_727416_26468"
    report = tmp_path / "report.json"
    env, options = {**home, "RAY_TMPDIR": str(tmp_path)}, ("--format", "json", "-o", str(report))
    result = run(*python(QUICK, str(session)), env=env, options=options)
    assert result.returncode == 9
    assert json.loads(report.read_text())["capture"]["path"] == str(session)


# ------------------------------------------------------------------ with Ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealRay]:
    with real_ray() as ray:
        ray.start(dashboard=False, lean=True)
        yield ray


def environment(cluster: RealRay, home: dict[str, str]) -> dict[str, str]:
    return {**cluster.environment, "RAY_ADDRESS": cluster.address, "XDG_STATE_HOME": home["XDG_STATE_HOME"]}  # fmt: skip


@pytest.mark.ray
def test_a_failure_is_diagnosed_and_its_cluster_left_alone(
    cluster: RealRay, home: dict[str, str], tmp_path: Path
) -> None:
    env, report = environment(cluster, home), tmp_path / "report.json"
    options = ("--format", "json", "-o", str(report))
    result = run(*python(FAILS), env=env, options=options)
    assert result.returncode == 1
    assert result.stdout == "the driver's own words\n"
    reply = json.loads(report.read_text())
    assert "task-exception" in [d["rule"] for d in reply["diagnoses"]]
    assert reply["capture"]["kind"] == "live"
    assert len(cluster.processes("raylet")) == 1


@pytest.mark.ray
def test_an_exception_that_the_driver_caught_without_a_word(
    cluster: RealRay, home: dict[str, str]
) -> None:
    """The third driver has the failures of the first one, which the same cluster has recorded."""
    for shown in ("", "yes", ""):
        result = run(*python(CATCHES.replace("{shown}", shown)), env=environment(cluster, home))
        assert result.returncode == 0, result.stderr
        assert result.stdout.endswith("done\n")
        reported = "2 calls of step() raised ValueError: bad number" in " ".join(
            result.stderr.split()
        )
        assert reported is not bool(shown), result.stderr


@pytest.mark.ray
def test_a_driver_that_hangs_is_looked_at_before_it_is_ended(
    cluster: RealRay, home: dict[str, str], tmp_path: Path
) -> None:
    env, report = environment(cluster, home), tmp_path / "report.json"
    child = start(*python(HANGS), env=env, options=("--format", "json", "-o", str(report)))
    until(lambda: sleepers("86123"))
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode in (1, 130), err  # as Python does with `-c`, or with a file
    assert "KeyboardInterrupt" in err
    assert json.loads(report.read_text())["capture"]["kind"] == "live"
    assert len(cluster.processes("raylet")) == 1


@pytest.mark.ray
def test_what_a_driver_does_that_does_not_end_is_reported(
    cluster: RealRay, home: dict[str, str]
) -> None:
    child = start(*python(POLLS), env=environment(cluster, home))
    until(lambda: sleepers("86127"))
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=PATIENCE)
    said = " ".join(err.split())
    # The loop is seen within ray.wait or between two calls.
    does = r"(?:waits in ray\.(?:wait|get)|runs Python code in <module> \(<string>:\d+\))"
    assert re.search(rf"driver of job \d+ \(pid \d+\) {does}", said), err


@pytest.mark.ray
def test_what_a_worker_started_without_a_trace_is_remembered(
    cluster: RealRay, home: dict[str, str], tmp_path: Path
) -> None:
    alone = cluster.run(LEAVES)
    until(lambda: len(sleepers("86124")) == 1)
    kept = sleepers("86124")
    child = start(*python(LEAVES), env=environment(cluster, home), options=("--format", "json"))
    until(lambda: len(sleepers("86124")) == 2)
    (seen,) = set(sleepers("86124")) - set(kept)
    until(lambda: is_remembered(seen) and is_remembered(kept[0]))
    (driver,) = [c for c in psutil.Process(child.pid).children() if not watcher.is_one(c.pid)]
    driver.kill()
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 137
    # With the name that it had when it was first seen.
    assert re.search(rf"ended what the driver left running: .*\b{seen} \(", err)
    assert sleepers("86124") == kept  # another driver's, which lives
    assert not found(kept[0])
    alone.kill()
    until(lambda: any(each.kind == "orphan" for each in found(kept[0])))  # its worker is gone
    plan = found(kept[0])
    assert plan[0].session == str(cluster.session)
    leftovers.clear(
        plan, SweepOptions(inherited=True), audit=Audit("test", path=str(tmp_path / "audit"))
    )
    assert not sleepers("86124")


def is_remembered(pid: int) -> bool:
    begun = psutil.Process(pid).create_time()
    tasks = [task for known in registry.known_workers() for task in known.tasks.values()]
    return any(seen.is_same(pid, begun) for task in tasks for seen in task.processes.values())


def found(pid: int) -> list[leftovers.Leftover]:
    return [each for each in leftovers.find(settle=False) if each.pid == pid]
