"""The stacks of a Python process from outside, by py-spy: threads, frames and, if requested, locals.

py-spy stops the process while it reads (`PTRACE_SEIZE`; 10 ms, with `--native` 150 ms: py-spy 0.4.3, Ray
2.60.0 measured), and releases it even if py-spy is killed. A process that is stopped by a signal or another
tracer, or blocked in the kernel, cannot be stopped again: it is read without stopping.
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
    """The output of py-spy."""

    threads: tuple[dict[str, Any], ...] = ()
    """In the form of its JSON, innermost frame first."""
    problem: str = ""
    """Why there are no threads; empty if there are."""
    cause: Cause = "other"
    """Of the problem."""


@cache
def program() -> str:
    """Path of py-spy: next to the interpreter (a virtual environment need not be active), or on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("py-spy") or ""


def dump(
    pid: int,
    *,
    native: bool = False,
    variables: bool = False,
    stopping: bool = True,
    timeout: float = 5.0,
) -> Dump:
    """The stacks of a process; `variables`: with each frame's locals, of lists the first items."""
    if not program():
        return Dump(problem="py-spy is not installed", cause="missing")
    options = [
        *(("--native",) if native else ()),
        *(("--locals", "--locals") if variables else ()),
        *(() if stopping else ("--nonblocking",)),
    ]
    out, err = _run([program(), "dump", "--pid", str(pid), "--json", *options], timeout)
    try:
        output = json.loads(out)
    except (ValueError, RecursionError):
        cause: Cause = "forbidden" if any(each in err for each in _REFUSED) else "other"
        return Dump(problem=_reason(err), cause=cause)
    threads = tuple(each for each in output if isinstance(each, dict) and "frames" in each)
    return Dump(threads, "" if threads else "it has no Python thread")


def _run(command: Sequence[str], timeout: float) -> tuple[str, str]:
    """Its standard output and error; does not wait longer for a py-spy that is blocked in the kernel."""
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


def _reason(errors: str) -> str:
    """The innermost cause in py-spy's error output."""
    if "Permission Denied" in errors:
        return "permission denied"
    lines = [pattern(r"^\d+: ").sub("", line.strip()) for line in errors.splitlines()]
    causes = [line for line in lines if line and line != "Caused by:"]
    return causes[-1].removeprefix("Error: ")[:200] if causes else "py-spy printed nothing"


def frames(thread: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The frames of a thread, innermost first."""
    for each in thread["frames"]:
        if isinstance(each, dict):
            yield each
