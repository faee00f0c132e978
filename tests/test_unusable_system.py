"""A full output and a system without /proc: one clear line each, never an internal error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures"
CAPTURE = str(next(FIXTURES.glob("kernel-oom--ray-2.60.0--1-node/capture*")))
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
MOUNTS = pytest.mark.skipif(
    not hasattr(os, "geteuid")
    or os.geteuid() != 0
    or bool(subprocess.call(["unshare", "-m", "true"], stderr=subprocess.DEVNULL)),
    reason="needs a mount namespace of its own",
)


def raydoctor(*arguments: str, stdout: str = "", before: str = "true") -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    script = f'{before} && exec "$@"' + (f" >{stdout}" if stdout else "")
    done = subprocess.run(
        [*(["unshare", "-m"] if before != "true" else []), "sh", "-c", script, "sh",
         sys.executable, "-m", "raydoctor", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@linux
@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("rules",), ("explain", "owner-died"), ("diagnose", CAPTURE),
     ("diagnose", CAPTURE, "--format", "json"), ("zombies", "--json")],
    ids=" ".join,
)  # fmt: skip
def test_an_output_without_room(arguments: tuple[str, ...]) -> None:
    code, _, err = raydoctor(*arguments, stdout="/dev/full")
    assert code == 2
    assert err.splitlines()[0] == "raydoctor: cannot write the output: No space left on device"
    assert len(err.splitlines()) == 2, err


@linux
def test_the_exit_code_is_left_where_nothing_can_be_written() -> None:
    assert raydoctor("rules", stdout="/dev/full 2>/dev/full") == (2, "", "")


@linux
@MOUNTS
@pytest.mark.parametrize(
    "arguments",
    [(), ("hung",), ("stack",), ("zombies", "--kill", "--yes"), ("attach", "step"),
     ("cancel", "step"), ("run", "--", sys.executable, "-c", "print('ran')"), ("collect",)],
    ids=" ".join,
)  # fmt: skip
def test_a_system_without_proc(arguments: tuple[str, ...]) -> None:
    code, out, err = raydoctor(*arguments, before="mount -t tmpfs tmpfs /proc")
    assert (code, out) == (2, "")
    assert "/proc is not mounted" in err.splitlines()[0]
    assert "raydoctor diagnose PATH" in err.splitlines()[1]


@linux
@MOUNTS
def test_logs_are_diagnosed_without_proc() -> None:
    code, out, _ = raydoctor("diagnose", CAPTURE, before="mount -t tmpfs tmpfs /proc")
    assert code == 1
    assert "kernel-oom-kill" in out
