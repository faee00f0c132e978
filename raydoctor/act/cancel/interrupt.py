"""The interrupt: KeyboardInterrupt in the main thread of a worker, also while it waits in native code.

`ray.cancel` schedules that exception, but only running Python code notices it: a `time.sleep`, a lock, a
socket, `subprocess.wait` or a regex continues (2.60.0 measured). A SIGINT delivered to the thread ends them.
The worker stays usable, and Ray treats the exception as a cancel, without a retry. A method of an actor ends
in the same way, and the actor keeps its state.

The thread is stopped while the worker is asked whether it still runs the task, so that no other task can be
hit. Needs Linux and the permissions of a debugger (ptrace(2)).
"""

from __future__ import annotations

import errno
import select
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
from raydoctor.observe.stacks import pyspy

_PROGRAM = Path(__file__).with_name("programs") / "interrupt_main.py"
_WAIT = 4.0
"""Seconds for each line of the child."""
_PY_SPY = 10.0
_IDLE = "main_loop"
"""The function in which a worker's main thread waits while other threads run methods."""
_BIT = 1 << (signal.SIGINT - 1)


def interrupt(
    target: Identity, still: Callable[[], bool], audit: Audit, *, all_users: bool = False
) -> str:
    """Interrupt its main thread if `still` returns True while the thread is stopped. Empty, or why not."""
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
        return f"the interrupting process ended: {error.strerror or error}"
    finally:
        _end(child)


def _obstacle(target: Identity, all_users: bool) -> str:
    """Why it cannot be interrupted, as far as that is known beforehand."""
    if not proc.LINUX:
        return "this is supported on Linux only"
    if why := send(target, 0, all_users=all_users):
        return why
    process = proc.read(target.pid)
    if process is not None and process.state in "Tt":
        return "it is stopped: kill -CONT resumes it"
    handled = _handled(target.pid)
    if handled is not None and not handled & _BIT:
        return "it does not handle SIGINT"
    return ""


def _handled(pid: int) -> int | None:
    """The mask of signals that it has handlers for; None if it cannot be read."""
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
    # The process is traced from here on: its pid cannot be reused.
    if identity_of(target.pid) != target:
        return "its pid now belongs to another process"
    if not still():
        return "its worker had started another task"
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
    kind, _, failure = word.partition(" ")
    if kind != "failed":
        return word or "the interrupting process ended"
    number, _, why = failure.partition(" ")
    if number == str(errno.EPERM):
        why += ": stopping a thread requires root, or a system that permits ptrace (Yama)"
    return why


def _end(child: subprocess.Popen[bytes]) -> None:
    """Close its input, so that it releases the thread; kill it if it hangs: the kernel does that then."""
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
    """Whether a method runs in the worker's main thread, by py-spy; None if py-spy cannot read it."""
    for _ in range(3):  # a process that is not stopped may change while py-spy reads it
        for thread in pyspy.dump(pid, stopping=False, timeout=_PY_SPY).threads:
            if thread.get("thread_name") == "MainThread" and thread["frames"]:
                return str(thread["frames"][0]["name"]).rpartition(".")[2] != _IDLE
        time.sleep(0.05)
    return None
