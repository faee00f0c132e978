"""Other users of this machine, for tests that root runs: forks of this process with their user ids.

They load nothing: another user may not reach the interpreter's files. So import first what they are to use.
"""

from __future__ import annotations

import codecs
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

for _name in ("ascii", "idna"):
    codecs.lookup(_name)
ATTACKER, VICTIM = 65533, 65532
"""Users that own nothing else."""
SECONDS = 60
AS_ROOT = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="only root can be other users"
)


def become(user: int) -> None:
    """Be that user from now on, in all respects."""
    if user == os.geteuid():
        return
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def result_of(user: int, work: Callable[[], Any], seconds: int = SECONDS) -> Any:
    """What it returns, as JSON has it, when that user calls it; what goes wrong there fails the test."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.close(readable)
            signal.alarm(seconds)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            try:
                become(user)
                reply = {"result": work()}
            except BaseException:
                reply = {"problem": traceback.format_exc()}
            os.write(writable, json.dumps(reply).encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    assert said, f"it hung or crashed: {os.waitstatus_to_exitcode(status)}"
    reply = json.loads(said)
    assert "problem" not in reply, reply["problem"]
    return reply["result"]


@contextmanager
def running_as(user: int, work: Callable[[], object]) -> Iterator[int]:
    """That user does it in a process of its own until the end of the block; yields its pid.

    The process has become that user when the block begins.
    """
    ready, said = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            become(user)
            os.close(said)
            work()
        os._exit(0)
    os.close(said)
    try:
        os.read(ready, 1)  # ends once the child has closed its end
        os.close(ready)
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
