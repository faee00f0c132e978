"""Processes that are armed ahead: they let a debugger in where no user may use ptrace(2)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raydoctor.act import private
from raydoctor.act.attach import arm
from raydoctor.act.attach.obstacles import is_armed
from tests.helpers import ROOT
from tests.helpers.waiting import PATIENCE

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

ATTACH = """
import ctypes, json, sys
if sys.argv[2] == "without":
    ctypes.CDLL(None).prctl(24, 19, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_PTRACE: of what is started next
    import os
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[3], sys.argv[1], "with", ""])
from raydoctor.act.attach import attach
from raydoctor.act.audit import Audit
try:
    made = attach.attach(attach.AttachTarget(int(sys.argv[1])), grace=30, audit=Audit("test", path="/dev/null"))
    print(json.dumps([made.method, made.host, made.port]))
except attach.NotAttachedError as error:
    print(json.dumps([error.why, error.message, error.hint]))
"""


def attached_without_ptrace(pid: int) -> list[str]:
    """What comes of it for a user who may not trace that process."""
    reply = subprocess.run(
        [sys.executable, "-c", ATTACH, str(pid), "without", ATTACH],
        stdout=subprocess.PIPE, timeout=2 * PATIENCE, check=True,
    ).stdout  # fmt: skip
    answer = json.loads(reply)
    assert isinstance(answer, list)
    return answer


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a capability to drop")


@contextmanager
def program(text: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said `ready`."""
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


ARMED = (
    "from raydoctor.act.attach.arm import arm; arm(); print('ready', flush=True); print(input())"
)


@only_root
def test_an_armed_process_needs_no_ptrace() -> None:
    with program(ARMED) as process:
        assert is_armed(process.pid)
        method, host, port = attached_without_ptrace(process.pid)
        assert (method, host) == ("armed", "127.0.0.1")
        assert attached_without_ptrace(process.pid) == ["listening", host, port]
        assert process.communicate("goes on\n", timeout=PATIENCE)[0] == "goes on\n"


@only_root
def test_what_is_not_armed_says_so_and_how_it_could_be() -> None:
    with program("print('ready', flush=True); print(input())") as process:
        why, message, hint = attached_without_ptrace(process.pid)
        assert why == "ptrace"
        assert str(process.pid) in message
        assert "worker_process_setup_hook" in hint
        assert process.communicate("goes on\n", timeout=PATIENCE)[0] == "goes on\n"


def test_a_signal_without_a_request_does_nothing() -> None:
    with program(ARMED) as process:
        for _ in range(5):
            os.kill(process.pid, signal.SIGURG)
            time.sleep(0.01)
        name = arm.name_of("answer", process.pid)
        assert not any(folder.has(name) for folder in private.existing())
        assert len(os.listdir(f"/proc/{process.pid}/task")) == 1
        assert process.communicate("goes on\n", timeout=PATIENCE)[0] == "goes on\n"


def test_another_handler_of_the_signal_stays() -> None:
    text = (
        "import signal, warnings; signal.signal(signal.SIGURG, lambda number, frame: print('mine'))\n"
        "from raydoctor.act.attach.arm import arm\n"
        "with warnings.catch_warnings(record=True) as told: arm()\n"
        "print('ready', flush=True); print(len(told), flush=True); input()"
    )
    with program(text) as process:
        assert not is_armed(process.pid)
        assert process.stdout
        assert process.stdout.readline() == "1\n"
        os.kill(process.pid, signal.SIGURG)
        assert process.communicate("\n", timeout=PATIENCE)[0] == "mine\n"


def test_its_files_are_this_users_alone_and_go_with_it() -> None:
    with program(ARMED) as process:
        name = arm.name_of("armed", process.pid)
        (marked,) = (Path(f.path, name) for f in private.existing() if f.has(name))
        assert marked.stat().st_mode & 0o777 == 0o600
        assert marked.parent.stat().st_mode & 0o777 == 0o700
    with program(ARMED):
        assert not marked.exists()


def test_arming_loads_nothing_that_a_worker_has_not() -> None:
    text = (
        "import sys, contextlib, json, signal, threading, typing, warnings; before = set(sys.modules)\n"
        "from raydoctor.act.attach.arm import arm; arm(); print(*sorted(set(sys.modules) - before))"
    )
    reply = subprocess.run(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    ).stdout
    ours = {"raydoctor", "raydoctor.act", "raydoctor.act.attach", "raydoctor.act.attach.arm"}
    assert set(reply.split()) <= {"__future__", "errno", *ours}
