"""What `raydoctor run` has started ends with it, however `raydoctor run` ends (`act/guard.py`)."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from raydoctor.act.tracking import watcher
from raydoctor.act.zombies import classify
from tests.helpers.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pidfds")

DRIVER = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "86131"], start_new_session=True)
if os.fork() == 0:  # a daemon: no other process's child, in a session of its own
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.execv("/bin/sleep", ["sleep", "86132"])
    os._exit(0)
os.wait()
print("started", flush=True)
time.sleep(1000)
"""
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('started', flush=True); time.sleep(1000)"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "RAYDOCTOR_"))}
    return {**kept, "XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1"}


@pytest.fixture(autouse=True)
def none_left(home: dict[str, str]) -> Iterator[None]:
    """What a failing test leaves is ended."""
    yield
    for process in started(home):
        process.kill()


def started(home: dict[str, str]) -> list[psutil.Process]:
    """What runs of a test, as its environment says."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_ours = process.environ().get("XDG_STATE_HOME") == home["XDG_STATE_HOME"]
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def gone(home: dict[str, str]) -> None:
    """Wait until nothing is left."""
    until(lambda: not started(home))


def start(code: str, env: dict[str, str], *options: str, stream: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "raydoctor", "run", *options, "--", sys.executable, "-c", code]
    return subprocess.Popen(
        words, env=env, stdin=stream, stdout=stream, stderr=stream, start_new_session=True
    )


def read_until(file: int, word: bytes) -> None:
    """Read a whole line: a driver whose terminal is closed before it has written the line's end fails."""
    text = b""
    while not text.partition(word)[2].endswith(b"\n"):
        text += os.read(file, 1000)


@pytest.mark.parametrize(("code", "options"), [(DRIVER, ()), (DEAF, ("--grace", "0.1"))])
def test_a_killed_run_leaves_nothing_running(
    code: str, options: tuple[str, ...], home: dict[str, str], tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    running = start(code, home, *options, stream=theirs)
    read_until(ours, b"started")
    running.kill()
    running.wait()
    gone(home)
    os.close(ours)
    os.close(theirs)
    audit = tmp_path / "state" / "raydoctor" / "audit.jsonl"
    until(audit.exists)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert any(f"raydoctor (pid {running.pid})" in line["purpose"] for line in lines)


def test_a_run_whose_terminal_is_closed_leaves_nothing_running(home: dict[str, str]) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        words = ["raydoctor", "run", "--grace", "1", "--", sys.executable, "-c", DRIVER]
        os.execve(sys.executable, [sys.executable, "-m", *words], home)
    read_until(terminal, b"started")
    os.close(terminal)
    os.waitpid(pid, 0)
    gone(home)


@pytest.mark.parametrize("code", [0, 3])
def test_a_normal_end_leaves_no_guard(code: int, home: dict[str, str]) -> None:
    with open(os.devnull, "r+b") as nothing:
        running = start(f"raise SystemExit({code})", home, stream=nothing.fileno())
        assert running.wait(60) == code
    assert not started(home)


def test_zombies_says_whether_the_guard_of_what_a_killed_run_left_still_runs(
    home: dict[str, str],
) -> None:
    with start(DEAF, home, "--grace", "60s", stream=subprocess.PIPE) as run:
        assert run.stdout
        read_until(run.stdout.fileno(), b"started")
        (guard,) = [p for p in started(home) if watcher.is_one(p.pid)]
        (driver,) = [
            p for p in started(home) if p.cmdline()[-2:] == ["-c", DEAF] and p.ppid() == run.pid
        ]
        run.kill()
        run.wait()

        def why() -> str:
            mark = classify.survey().marks.get(driver.pid)
            return mark.why if mark else ""

        begun = f"raydoctor (pid {run.pid}), which had started it,"
        until(lambda: why() == f"{begun} is gone; its guard (pid {guard.pid}) still runs")
        guard.kill()
        until(lambda: why() == f"{begun} and its guard are gone")
        driver.kill()


def test_a_guard_that_is_killed_does_not_change_the_exit_code(home: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    running = start("print('started', flush=True); input()", home, stream=theirs)
    read_until(ours, b"started")
    (guard,) = [p for p in started(home) if watcher.is_one(p.pid)]
    guard.kill()
    os.write(ours, b"\n")
    assert running.wait(60) == 0
    os.close(ours)
    os.close(theirs)


def test_another_process_with_the_pid_of_the_driver_is_left_alone() -> None:
    """A registry that names a pid with another start: nothing is ended."""
    from raydoctor.act.tracking import registry
    from raydoctor.act.tracking.registry import StartedProcess, Task

    bystander = subprocess.Popen(["sleep", "86133"], start_new_session=True)
    began = psutil.Process(bystander.pid).create_time()
    path = registry.path_of(StartedProcess(2**22 - 1, 1.0))
    task = Task(1, "run", 0.1, {})
    task.add(StartedProcess(bystander.pid, began - 1.0, "s"))
    registry.replace(path, registry.lines_of([task]))
    home = str(Path(watcher.__file__).parents[3])
    words = [sys.executable, "-I", "-S", str(watcher._PROGRAM), home, path, str(2**22 - 1), "1.0"]
    subprocess.run(words, stdin=subprocess.DEVNULL, check=True, timeout=PATIENCE)
    assert bystander.poll() is None
    bystander.send_signal(signal.SIGKILL)
    bystander.wait()


def test_the_registry_of_a_driver_with_many_processes_stays_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from raydoctor.act import private
    from raydoctor.act.run import guard as _guard
    from raydoctor.act.tracking import registry
    from raydoctor.observe.processes import proc

    monkeypatch.setattr(private, "places", lambda user: ((str(tmp_path), "registry"),))
    monkeypatch.setattr(_guard, "_FILE_LIMIT", 2000)
    me = proc.read(os.getpid())
    assert me is not None
    guard = _guard.ProcessGuard(1.0)
    try:
        guard.record([me])
        for number in range(300):
            guard.record([me._replace(pid=2**22 + number, pgid=1, sid=1)])
        (known,) = registry.known_workers()
        assert os.stat(known.path).st_size < 4000
        assert me.pid in {seen.pid for seen in known.tasks[1].processes.values()}
    finally:
        guard.close()
    assert registry.known_workers() == []
