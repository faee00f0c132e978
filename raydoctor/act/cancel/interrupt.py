"""The gentle interrupt: KeyboardInterrupt in the main thread of a worker, whatever it waits in there.

`ray.cancel` sets that exception up, but only Python code between two steps notices: a `time.sleep`, a lock,
a socket, `subprocess.wait` or a regex go on (2.60.0 measured). A SIGINT that the thread really gets ends
them, the worker stays usable, and Ray takes the exception for a cancel, without a retry; an actor's method
ends the same way, and the actor lives on with its state.

The thread stands still while the worker is asked whether it still runs what is to end: no other task can
be hit. Needs Linux, and what a debugger needs (ptrace(2)).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from raydoctor.act.audit import Audit
from raydoctor.act.signals.process import Identity, identity_of, send
from raydoctor.observe.processes import proc

_PROGRAM = Path(__file__).with_name("programs") / "interrupt_main.py"
_WAIT = 4.0
"""Seconds for each word of the child."""
_PY_SPY = 10.0
_IDLE = "main_loop"
"""Where a worker's main thread waits while other threads run its methods (`ray/_private/worker.py`)."""
_BIT = 1 << (signal.SIGINT - 1)


def interrupt(
    target: Identity, still: Callable[[], bool], audit: Audit, *, all_users: bool = False
) -> str:
    """Interrupt its main thread if `still` says so while that one stands still. Empty, or why not."""
    if why := _obstacle(target, all_users):
        return why
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_PROGRAM), str(target.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return _interrupt_if(child, target, still, audit)
    except OSError as error:
        return f"the process that interrupts ended: {error.strerror or error}"
    finally:
        _end(child)


def _obstacle(target: Identity, all_users: bool) -> str:
    """Why it cannot be interrupted, as far as that can be told before."""
    if not proc.LINUX:
        return "only Linux can"
    if why := send(target, 0, all_users=all_users):
        return why
    process = proc.read(target.pid)
    if process is not None and process.state in "Tt":
        return "it is stopped: kill -CONT lets it go on"
    handled = _handled(target.pid)
    if handled is not None and not handled & _BIT:
        return "it does not handle SIGINT"
    return ""


def _handled(pid: int) -> int | None:
    """Signals that it has handlers for."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as stream:
        for line in stream:
            if line.startswith(b"SigCgt:"):
                return int(line.split()[1], 16)
    return None


def _interrupt_if(
    child: subprocess.Popen[bytes], target: Identity, still: Callable[[], bool], audit: Audit
) -> str:
    word = _word(child)
    if word != "stopped":
        return _explained(word)
    # The process is held from here on: its pid cannot become another's.
    if identity_of(target.pid) != target:
        return "its pid is another process's by now"
    if not still():
        return "it had gone on to something else"
    if child.stdin is not None:
        child.stdin.write(b"go\n")
        child.stdin.flush()
    word = _word(child)
    audit.write(
        "signal",
        pid=target.pid,
        started_at=target.started_at,
        signal="SIGINT",
        result=word,
        to="its main thread",
    )
    return "" if word == "sent" else _explained(word)


def _word(child: subprocess.Popen[bytes]) -> str:
    if child.stdout is None:
        return ""
    poll = select.poll()
    poll.register(child.stdout, select.POLLIN)
    return child.stdout.readline().decode().strip() if poll.poll(_WAIT * 1000) else "no answer"


def _explained(word: str) -> str:
    why = word.removeprefix("failed: ") or "the process that interrupts ended"
    if why == os.strerror(1):
        why += ": what stops a thread has to be root, or may not be kept from it (ptrace, Yama)"
    return why


def _end(child: subprocess.Popen[bytes]) -> None:
    """The end of its input lets it let go; where it hangs, the system does that for it."""
    for stream in (child.stdin, child.stdout):
        with suppress(OSError):
            if stream is not None:
                stream.close()
    try:
        child.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main_thread_is_busy(pid: int) -> bool | None:
    """Whether a worker's method runs in its main thread, as py-spy sees it; None where it cannot see."""
    name = "py-spy"
    beside = Path(sys.executable).with_name(name)
    program = str(beside) if beside.exists() else shutil.which(name)
    if program is None:
        return None
    command = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    for _ in range(3):  # without stopping the process it may read half of a change
        try:
            output = subprocess.run(
                command, capture_output=True, timeout=_PY_SPY, check=True
            ).stdout
            threads = json.loads(output)
        except (OSError, subprocess.SubprocessError, ValueError):
            time.sleep(0.05)
            continue
        for thread in threads:
            if thread.get("thread_name") == "MainThread" and thread["frames"]:
                return str(thread["frames"][0]["name"]).rpartition(".")[2] != _IDLE
        return None
    return None
