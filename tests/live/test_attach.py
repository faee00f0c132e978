"""A debugger in processes that were not prepared; and processes that never notice that one was tried."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from raydoctor.act import private
from raydoctor.act.attach import arm, attach, by_gdb, dap, gil, inject
from raydoctor.act.attach.attach import AttachTarget, NotAttachedError
from raydoctor.act.attach.obstacles import handles, obstacle, status
from raydoctor.act.attach.programs import blocked
from raydoctor.act.audit import Audit
from tests.helpers.attaching import refused_as_late
from tests.helpers.waiting import PATIENCE, Program, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
NEEDS_GDB = pytest.mark.usefixtures("usable_gdb")
PYTHON_3_14 = shutil.which("python3.14")


@contextmanager
def program(
    text: str, python: str | None = None, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said `ready`."""
    process = subprocess.Popen(
        [python or sys.executable, "-c", text],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    try:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    return Audit("test", path=str(tmp_path / "audit.jsonl"))


def entered(pid: int, audit: Audit, grace: float = PATIENCE) -> attach.Attached:
    return attach.attach(AttachTarget(pid), grace=grace, audit=audit)


def left(beginning: str) -> list[str]:
    """Files of this user's whose names begin so."""
    names = [name for folder in private.existing() for name in folder.names()]
    return [name for name in names if name.startswith(beginning)]


def is_as_it_was(pid: int) -> bool:
    """Nobody traces it, nothing handles the signal, and no request waits for it."""
    reply = status(pid)
    return (
        reply["TracerPid"] == "0"
        and reply["State"][0] not in "tT"
        and not handles(pid)
        and not left(f"request-{pid}-")
    )


# ------------------------------------------------------------------ what it is doing goes on

WAITS = {
    "input": "line = input()",
    "lock": "import threading; held = threading.Lock(); held.acquire()\n"
    "threading.Timer(0, lambda: (input(), held.release())).start(); held.acquire()",
    "loop": "import select, sys\nturns = 0\nwhile not select.select([sys.stdin], [], [], 0)[0]:\n  turns += 1",
}


@pytest.mark.parametrize("name", WAITS)
def test_what_a_process_does_goes_on(name: str, audit: Audit) -> None:
    text = f"import time\nprint('ready', flush=True)\n{WAITS[name]}\nprint('done', flush=True)"
    with program(text) as process:
        made = entered(process.pid, audit)
        assert (made.method, made.host) == ("injected", "127.0.0.1")
        with dap.attached(made.host, made.port, PATIENCE) as connection:
            threads = connection.request("threads", {}, PATIENCE)["threads"]
        assert "MainThread" in [each["name"] for each in threads]
        assert attach.listening(process.pid) == (made.host, made.port, "listening", True)
        out, _ = process.communicate("go\n", timeout=PATIENCE)
    assert out == "done\n"
    assert process.returncode == 0


def test_a_request_that_its_next_native_call_delays_is_injected_again(
    monkeypatch: pytest.MonkeyPatch, audit: Audit
) -> None:
    """A process that waits for a processor begins that call after it was sampled."""
    calls: list[bool] = []
    injects = inject.inject

    def later(*target: Any, now: bool, holds_gil: bool) -> inject.Injection:
        calls.append(now)
        if len(calls) < 3:
            return inject.Injection("queued")
        return injects(*target, now=now, holds_gil=holds_gil)

    monkeypatch.setattr(inject, "inject", later)
    with program("print('ready', flush=True); input()") as process:
        assert entered(process.pid, audit).port
        assert calls == [False, True, True]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """On another processor."""
    monkeypatch.setattr(inject.trampoline, "is_supported", lambda: False)
    return monkeypatch


@NEEDS_GDB
@pytest.mark.parametrize("name", WAITS)
def test_gdb_does_it_on_other_processors(
    name: str, elsewhere: pytest.MonkeyPatch, audit: Audit
) -> None:
    text = f"import time\nprint('ready', flush=True)\n{WAITS[name]}\nprint('done', flush=True)"
    with program(text) as process:
        made = entered(process.pid, audit)
        # What runs is left to Python itself, where that can do it.
        by_itself = sys.version_info >= (3, 14) and name == "loop"
        assert made.method == ("remote-exec" if by_itself else "gdb")
        assert attach.listening(process.pid) == (made.host, made.port, "listening", True)
        out, _ = process.communicate("go\n", timeout=PATIENCE)
    assert (out, process.returncode) == ("done\n", 0)


def test_a_gdb_that_cannot_restore_registers_enters_nothing(
    elsewhere: pytest.MonkeyPatch, tmp_path: Path, audit: Audit
) -> None:
    """gdb 13.1 kills what it enters on a processor with AMX."""
    gdb = tmp_path / "gdb"
    gdb.write_text(
        '#!/bin/sh\necho "$@" >> $0.calls\necho "Couldn\'t write extended state status"\n'
    )
    gdb.chmod(0o755)
    elsewhere.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    elsewhere.setattr(by_gdb, "restores_registers", by_gdb.restores_registers.__wrapped__)
    with program("print('ready', flush=True); print(input())") as process:
        with pytest.raises(NotAttachedError, match="cannot restore the registers"):
            entered(process.pid, audit)
        assert process.communicate("alone\n", timeout=PATIENCE)[0] == "alone\n"
    assert str(process.pid) not in (tmp_path / "gdb.calls").read_text()


@NEEDS_GDB
def test_gdb_enters_no_other_process_of_that_pid() -> None:
    with program("print('ready', flush=True); print(input())") as process:
        with pytest.raises(ProcessLookupError):
            by_gdb.inject(process.pid, "1", "print('entered')", now=False, holds_gil=False)
        assert process.communicate("alone\n", timeout=PATIENCE)[0] == "alone\n"


@NEEDS_GDB
def test_a_call_of_gdbs_that_waits_for_the_gil_is_left_to_end() -> None:
    text = """
import ctypes, threading, time
def hold():
    time.sleep(0.5)
    ctypes.PyDLL(None).sleep(4)
threading.Thread(target=hold).start()
print("ready", flush=True)
print(input())
"""
    with program(text) as process:
        until(lambda: gil.sample(process.pid).is_stuck)
        start = arm.start_of(process.pid)
        did = by_gdb.inject(process.pid, start, "print('entered')", now=False, holds_gil=False)
        assert did == "called"
        assert process.communicate("goes on\n", timeout=PATIENCE)[0] == "entered\ngoes on\n"
        assert process.returncode == 0


class SlowGdb:
    """Ends at its third look."""

    pid, looks, signals = 1, 0, 0

    def communicate(self, timeout: float) -> tuple[bytes, None]:
        self.looks += 1
        if self.looks < 3:
            raise subprocess.TimeoutExpired("gdb", timeout)
        return b"did=called", None

    def send_signal(self, number: int) -> None:
        self.signals += 1


def test_a_call_of_gdbs_that_holds_the_gil_or_waits_for_it_is_not_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread would keep the GIL, and wait for it for ever."""
    waits, gdb = blocked.SystemCall(0, 0, 1, 1), SlowGdb()
    monkeypatch.setattr(blocked, "current", lambda pid: None)  # it runs
    assert by_gdb._taken_back(gdb, 1, waits) == b"did=called"  # type: ignore[arg-type]
    assert not gdb.signals
    # A waiter that vanishes from glibc's condition variable would stop every thread that releases the GIL.
    monkeypatch.setattr(blocked, "current", lambda pid: blocked.SystemCall(blocked.FUTEX, 1, 1, 1))
    monkeypatch.setattr(by_gdb.elf, "runtime", lambda pid: None)
    gdb = SlowGdb()
    assert by_gdb._taken_back(gdb, 1, waits) == b"did=called"  # type: ignore[arg-type]
    assert not gdb.signals
    monkeypatch.setattr(blocked, "current", lambda pid: waits)  # the call has not begun
    gdb = SlowGdb()
    with pytest.raises(OSError, match="undone"):
        by_gdb._taken_back(gdb, 1, waits)  # type: ignore[arg-type]
    assert gdb.signals == 1


@pytest.mark.skipif(PYTHON_3_14 is None, reason="there is no Python 3.14")
def test_remote_exec_does_it_without_gdb(elsewhere: pytest.MonkeyPatch, audit: Audit) -> None:
    elsewhere.setattr(by_gdb, "is_there", lambda: False)
    with program(f"print('ready', flush=True)\n{WAITS['loop']}", python=PYTHON_3_14) as process:
        made = entered(process.pid, audit)
        assert made.method == "remote-exec"
        assert attach.listening(process.pid) == (made.host, made.port, "listening", True)
        assert not left(f"entry-{process.pid}-")
        process.communicate("go\n", timeout=PATIENCE)
        assert process.returncode == 0


@pytest.mark.skipif(PYTHON_3_14 is None, reason="there is no Python 3.14")
def test_remote_exec_that_is_forbidden_says_so(elsewhere: pytest.MonkeyPatch, audit: Audit) -> None:
    elsewhere.setattr(by_gdb, "is_there", lambda: False)
    text = f"print('ready', flush=True)\n{WAITS['loop']}"
    forbidden = {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}
    with (
        program(text, python=PYTHON_3_14, **forbidden) as process,
        pytest.raises(NotAttachedError, match=r"remote_exec: .*not enabled"),
    ):
        entered(process.pid, audit)
    assert not left(f"entry-{process.pid}-")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python has a way of its own")
def test_without_gdb_another_processor_has_no_way_in(elsewhere: pytest.MonkeyPatch) -> None:
    elsewhere.setattr(by_gdb, "is_there", lambda: False)
    with program("print('ready', flush=True); input()") as process:
        found = {each.what: each for each in obstacle(process.pid)}
        assert "only gdb" in found["gdb"].why
        assert "install gdb" in found["gdb"].fix
        assert found["gdb"].only_injection
        with pytest.raises(NotAttachedError, match="only gdb"):
            attach.attach(AttachTarget(process.pid))
        assert is_as_it_was(process.pid)


def test_native_code_that_looks_for_signals_is_entered(audit: Audit) -> None:
    with program("import re; print('ready', flush=True); re.match('(a+)+$', 64 * 'a' + 'b')") as it:
        made = entered(it.pid, audit)
        assert made.wants_waking
        with (
            attach.waking(made),
            dap.attached(made.host, made.port, PATIENCE) as connection,
        ):
            assert connection.request("threads", {}, PATIENCE)["threads"]
        assert it.poll() is None


def test_a_computation_that_is_entered_all_the_time_has_the_right_result() -> None:
    text = """
import json
print("ready", flush=True)
total, kept = 0, {}
for turn in range(150_000):
    kept[turn % 1000] = [str(turn), (turn, turn * 2.5)]
    total += len(json.dumps(kept[turn % 1000]))
print(total)
"""
    with program(text) as undisturbed:
        expected, _ = undisturbed.communicate(timeout=PATIENCE)
    done, until = 0, time.monotonic() + PATIENCE
    while done < 3:  # on a busy machine the program may end before it was entered as often
        with program(text) as process:
            start = arm.start_of(process.pid)
            while process.poll() is None:
                made = inject.inject(process.pid, start, "x = [1]", now=False, holds_gil=True)
                done += made.did == "queued"
            assert process.communicate()[0] == expected
        assert time.monotonic() < until


def test_rounds_leave_no_more_than_the_first(audit: Audit) -> None:
    text = "import gc; print('ready', flush=True)\nwhile input(): gc.collect(); print('here', flush=True)"
    with program(text) as it:
        made = entered(it.pid, audit)
        process = psutil.Process(it.pid)

        def held() -> tuple[int, int]:
            # Sockets of ended sessions are closed by the garbage collector, whenever that runs.
            assert it.stdin
            assert it.stdout
            it.stdin.write("collect\n")
            it.stdin.flush()
            assert it.stdout.readline() == "here\n"
            return process.num_threads(), process.num_fds()

        def round_trip() -> None:
            again = entered(it.pid, audit)
            assert (again.port, again.method) == (made.port, "listening")
            with dap.attached(again.host, again.port, PATIENCE):
                pass

        round_trip()
        before = held()
        for _ in range(8):
            round_trip()

        def is_as_after_the_first() -> bool:
            after = held()  # of the last session, debugpy keeps a socket or two
            return after[0] <= before[0] and after[1] <= before[1] + 2

        until(is_as_after_the_first)


# ------------------------------------------------------------------ an attempt that fails, or is cut off


@pytest.mark.parametrize("waits", ["time.sleep(0.001)", "[str(n) for n in range(300)]"])
def test_killing_the_injecting_process_harms_no_other(
    waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(4)

    def killed(plan: str) -> inject.Injection:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(inject._PROGRAM)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert child.stdin
        assert child.stdout
        child.stdin.write(plan.encode())
        child.stdin.close()
        time.sleep(dice.uniform(0.01, 0.06))
        child.kill()
        child.wait()
        child.stdout.close()
        return inject.Injection("")

    monkeypatch.setattr(inject, "_run_program", killed)
    text = f"import sys, time; print('ready', flush=True)\nwhile True:\n  {waits}\n  open(sys.argv[0], 'w')"
    with program(text.replace("sys.argv[0]", "'/dev/null'")) as process:
        start = arm.start_of(process.pid)
        for _ in range(12):
            inject.inject(process.pid, start, "x = 1", now=True, holds_gil=False)
            assert process.poll() is None
        assert status(process.pid)["TracerPid"] == "0"
        used = psutil.Process(process.pid).cpu_times()
        until(lambda: psutil.Process(process.pid).cpu_times() != used)


def test_a_native_call_that_keeps_the_gil_is_not_touched(audit: Audit) -> None:
    text = (
        "import ctypes, time; began = time.monotonic(); print('ready', flush=True)\n"
        "ctypes.PyDLL(None).usleep(2_000_000); print(time.monotonic() - began >= 2)"
    )
    with program(text) as process:
        with pytest.raises(NotAttachedError) as caught:
            entered(process.pid, audit)
        assert caught.value.why == "gil"
        assert "<module>" in caught.value.message
        assert is_as_it_was(process.pid)
        assert process.communicate(timeout=PATIENCE)[0] == "True\n"


def test_what_did_not_come_in_time_never_comes(tmp_path: Path, audit: Audit) -> None:
    """A native loop that never looks for signals ends after we gave up: what is queued does nothing."""
    end = tmp_path / "end"
    end.write_bytes(b"\0")
    text = (
        f"import itertools, mmap; file = open({str(end)!r}, 'r+b'); end = mmap.mmap(file.fileno(), 1)\n"
        "print('ready', flush=True); any(map(end.__getitem__, itertools.repeat(0)))\n"
        "print('done', flush=True); input()"
    )
    with program(text) as it:
        with pytest.raises(NotAttachedError) as caught:
            entered(it.pid, audit, grace=0.3)
        assert caught.value.why == "gil"
        with end.open("r+b") as file:  # without a moment in which it is empty
            file.write(b"\1")
        assert it.stdout
        assert it.stdout.readline() == "done\n"
        time.sleep(0.3)
        assert is_as_it_was(it.pid)


def test_a_debugpy_that_does_not_start(tmp_path: Path, audit: Audit) -> None:
    (tmp_path / "debugpy.py").write_text("raise RuntimeError('broken on purpose')\n")
    with program("print('ready', flush=True); input()", PYTHONPATH=str(tmp_path)) as process:
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
        with pytest.raises(NotAttachedError) as caught:
            entered(process.pid, audit)
        assert caught.value.why == "debugpy"
        assert "broken on purpose" in caught.value.message
        assert is_as_it_was(process.pid)
        assert process.communicate("\n", timeout=PATIENCE)[0] == ""


SLOW = """
import os, sys, time
here = os.path.dirname(__file__)
while not os.path.exists(os.path.join(here, "go on")):
    time.sleep(0.01)
sys.path.remove(here)
del sys.modules["debugpy"]
import debugpy
"""


def test_a_slow_import_is_refused_in_time_and_continues(tmp_path: Path, audit: Audit) -> None:
    (tmp_path / "debugpy.py").write_text(SLOW)
    with program("print('ready', flush=True); input()", PYTHONPATH=str(tmp_path)) as process:
        assert f"raydoctor stack --native {process.pid}" in refused_as_late(process.pid).hint
        (tmp_path / "go on").touch()
        assert entered(process.pid, audit).port
        assert process.communicate("\n", timeout=PATIENCE)[0] == ""


def test_an_interrupted_attempt_is_taken_back(audit: Audit) -> None:
    def interrupted(doing: str) -> None:
        raise KeyboardInterrupt

    with program("print('ready', flush=True); input()") as process:
        with pytest.raises(KeyboardInterrupt):
            attach.attach(AttachTarget(process.pid), report_progress=interrupted, audit=audit)
        assert is_as_it_was(process.pid)


# ------------------------------------------------------------------ what is reported before


def test_a_process_that_is_stopped_stays_so(audit: Audit) -> None:
    with program("print('ready', flush=True); input()") as process:
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: status(process.pid)["State"].startswith("T"))
        with pytest.raises(NotAttachedError) as caught:
            entered(process.pid, audit)
        assert caught.value.why == "stopped"
        assert f"kill -CONT {process.pid}" in caught.value.hint
        assert status(process.pid)["State"].startswith("T")


def test_what_stands_in_the_way_is_named() -> None:
    with Program(["sleep", "60"]) as process:
        assert [each.what for each in obstacle(process.pid)] == ["python"]
        process.kill()
        process.wait()
        assert [each.what for each in obstacle(process.pid)] == ["gone"]


def test_a_reused_pid_is_not_entered(audit: Audit) -> None:
    with program("print('ready', flush=True); input()") as process:
        with pytest.raises(NotAttachedError) as caught:
            attach.attach(AttachTarget(process.pid, started_at=1.0), audit=audit)
        assert "another process" in caught.value.message
        assert is_as_it_was(process.pid)


def test_another_users_folder_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(PermissionError):
        private.opened(str(tmp_path / "open"))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="directory"):
        private.opened(str(tmp_path / "link"))
