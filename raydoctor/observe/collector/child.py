"""Runs another program for what it prints, with a hard limit in time and size.

Never waits for a child that does not end: one that hangs in a driver of the kernel does not hear SIGKILL.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple


class Output(NamedTuple):
    """What a program printed. `problem` is empty where it ended well."""

    text: str
    problem: str = ""


def output(command: Sequence[str], timeout: float) -> Output:
    """Run `command`, without a shell and in English; never raises for what the program does."""
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
        told = err.decode("utf-8", "replace").strip().splitlines() or ["without a word"]
        return Output(
            out.decode("utf-8", "replace"), f"exit code {child.returncode}: {told[-1][:200]}"
        )
    return Output(out.decode("utf-8", "replace"))
