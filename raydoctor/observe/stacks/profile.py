"""A few seconds of a process as a flame graph or for speedscope, by py-spy."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

from raydoctor.observe.processes import proc
from raydoctor.observe.stacks import pyspy

_SAME_START = 0.02
"""Seconds: start times are rounded on their way through JSON."""
_PATIENCE = 20.0
"""Seconds beyond the recording, in which py-spy writes the result."""


def record(pid: int, started_at: float, file: Path, seconds: int) -> str:
    """Write the profile. Returns why that failed; empty if it succeeded.

    Idle threads are included: most hung threads wait.
    """
    if not pyspy.program():
        return "py-spy is not installed: pip install py-spy"
    process = proc.read(pid)
    if process is None or abs(process.started_at - started_at) > _SAME_START:
        return f"pid {pid} does not run on this machine any more, or runs on another: record on its node"
    form = "flamegraph" if file.suffix == ".svg" else "speedscope"
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    command = [pyspy.program(), "record", "--idle", "--nonblocking", "--threads", "--format", form]
    command += ["--duration", str(seconds), "--output", str(partial), "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + _PATIENCE, check=False
        )
        if done.returncode or not partial.exists():
            output = (done.stderr or done.stdout).strip().splitlines()
            return f"py-spy: {output[-1] if output else f'exit code {done.returncode}'}"
        partial.replace(file)
    except subprocess.TimeoutExpired:
        return "py-spy did not exit in time"
    except OSError as error:
        return str(error.strerror or error)
    finally:
        with suppress(OSError):
            partial.unlink()
    return ""
