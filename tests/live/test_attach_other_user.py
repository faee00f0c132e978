"""Root attaches to a process of another user: what acts there has that user's rights, and none of root's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raydoctor.act import private
from raydoctor.act.attach import attach, by_remote_exec, trampoline
from raydoctor.act.audit import Audit
from tests.helpers.other_users import AS_ROOT, VICTIM
from tests.helpers.waiting import Program

pytestmark = AS_ROOT
PATIENCE = 30.0
WAITS = f"""
import ctypes, importlib, os
from debugpy.server import api
from debugpy.common import log, messaging, sockets
import debugpy.adapter.clients, debugpy.adapter.servers, ipaddress, json, socket, threading
os.setgroups([])
os.setresgid({VICTIM}, {VICTIM}, {VICTIM})
os.setresuid({VICTIM}, {VICTIM}, {VICTIM})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: `/proc/PID` belongs to the user again
print("ready", flush=True)
print(input())
"""


@pytest.mark.skipif(not trampoline.is_supported(), reason="x86-64 only")
def test_root_attaches_to_a_process_of_another_user() -> None:
    with Program(
        [sys.executable, "-c", WAITS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            made = attach.attach(
                attach.AttachTarget(process.pid),
                grace=PATIENCE,
                audit=Audit("test", path="/dev/null"),
            )
            assert made.method == "injected"
            assert attach.listening(process.pid) is not None
            folders = [Path(each.path) for each in private.existing(VICTIM, VICTIM)]
            assert {each.stat().st_uid for f in folders for each in (f, *f.iterdir())} == {VICTIM}
            assert process.communicate("goes on\n", timeout=PATIENCE)[0] == "goes on\n"
        finally:
            process.kill()
            for _, name in private.places(VICTIM):
                shutil.rmtree(Path("/tmp", name), ignore_errors=True)


def test_a_program_of_another_user_gets_none_of_our_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_OF_ROOT", "1")
    reply = subprocess.run(
        ["/bin/sh", "-c", "id -u; id -G; env"],
        capture_output=True, text=True, check=True, **by_remote_exec._as(VICTIM),
    ).stdout.splitlines()  # fmt: skip
    assert reply[:2] == [str(VICTIM), str(VICTIM)]
    assert not any("SECRET_OF_ROOT" in line for line in reply)
