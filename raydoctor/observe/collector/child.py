"""Runs another program and returns its output, with a hard time limit.

Never waits for a child that does not exit: SIGKILL has no effect while it is blocked in a kernel driver.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple


class Output(NamedTuple):
    """The standard output of a program; `problem` is empty if its exit code is 0."""

    text: str
    problem: str = ""


def output(command: Sequence[str], timeout: float) -> Output:
    """Run `command` without a shell and with English messages; never raises for the program's failures."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return Output("", error.strerror or str(error))
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=0.5)
        return Output("", f"did not answer within {timeout:g} s")
    if child.returncode:
        errors = err.decode("utf-8", "replace").strip().splitlines() or ["no error message"]
        return Output(
            out.decode("utf-8", "replace"), f"exit code {child.returncode}: {errors[-1][:200]}"
        )
    return Output(out.decode("utf-8", "replace"))
