"""One look at a Python process from outside, by py-spy: its threads, their frames, on wish their locals.

py-spy stops the process for as long as it reads (`PTRACE_SEIZE`; 10 ms, with `--native` 150 ms: py-spy 0.4.3,
Ray 2.60.0 measured) and lets go of it even if it is killed meanwhile. What is stopped already, by a signal
or under another tracer, or hangs in the kernel, cannot be stopped once more: that is read as it lies.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from raydoctor.model.patterns import pattern

_REFUSED = ("Permission Denied", "Operation not permitted", "EPERM", "os error 1)", "os error 13)")
_ENDED = 0.5
Cause = Literal["missing", "forbidden", "other"]
"""Why py-spy shows no stack: it is not installed, the system does not permit it, anything else."""


class Dump(NamedTuple):
    """What py-spy told."""

    threads: tuple[dict[str, Any], ...] = ()
    """As its JSON has them, innermost frame first."""
    problem: str = ""
    """Why there are none; empty where there are."""
    cause: Cause = "other"
    """Of the problem."""


@cache
def program() -> str:
    """Where py-spy is: beside the interpreter (a virtual environment need not be activated), or on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("py-spy") or ""


def look(
    pid: int,
    *,
    native: bool = False,
    variables: bool = False,
    stopping: bool = True,
    timeout: float = 5.0,
) -> Dump:
    """The stacks of a process, once; `variables`: with each frame's locals, lists by their first items."""
    if not program():
        return Dump(problem="py-spy is not installed", cause="missing")
    options = [
        *(("--native",) if native else ()),
        *(("--locals", "--locals") if variables else ()),
        *(() if stopping else ("--nonblocking",)),
    ]
    out, err = _run([program(), "dump", "--pid", str(pid), "--json", *options], timeout)
    try:
        told = json.loads(out)
    except ValueError:
        cause: Cause = "forbidden" if any(each in err for each in _REFUSED) else "other"
        return Dump(problem=_reason(err), cause=cause)
    threads = tuple(each for each in told if isinstance(each, dict) and "frames" in each)
    return Dump(threads, "" if threads else "it has no Python thread")


def _run(command: Sequence[str], timeout: float) -> tuple[str, str]:
    """What it printed; never waits longer for a py-spy that hangs in the kernel."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", "RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0"},
            start_new_session=True,
        )
    except OSError as error:
        return "", error.strerror or str(error)
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=_ENDED)
        return "", f"py-spy did not answer within {timeout:g} s"
    return out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def _reason(said: str) -> str:
    """The innermost cause that py-spy names."""
    if "Permission Denied" in said:
        return "permission denied"
    lines = [pattern(r"^\d+: ").sub("", line.strip()) for line in said.splitlines()]
    told = [line for line in lines if line and line != "Caused by:"]
    return told[-1].removeprefix("Error: ")[:200] if told else "py-spy told nothing"


def frames(thread: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The frames of a thread, innermost first."""
    for each in thread["frames"]:
        if isinstance(each, dict):
            yield each
