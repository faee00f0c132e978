"""Runs another program and returns its output, with a hard time limit.

Never waits for a child that does not exit: SIGKILL has no effect while it is blocked in a kernel driver.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, NamedTuple

_CHUNK = 1 << 18
_ERRORS = 16 << 10
"""Bytes of standard error that are kept, from its end."""
_TO_EXIT_S = 2
"""Seconds that a killed program may take to exit: it needs the CPU once more, which may be busy."""
_streams: set[int] = set()
"""Process groups of running streams."""


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
        _end(child)
        return Output("", f"did not answer within {timeout:g} s")
    if child.returncode:
        errors = err.decode("utf-8", "replace").strip().splitlines() or ["no error message"]
        return Output(
            out.decode("utf-8", "replace"), f"exit code {child.returncode}: {errors[-1][:200]}"
        )
    return Output(out.decode("utf-8", "replace"))


class Streamed(NamedTuple):
    """A program whose output went to a file."""

    size: int
    """Bytes of its standard output."""
    code: int | None
    """None: it could not be started, or was ended here."""
    errors: str
    """The end of its standard error."""
    stopped: str = ""
    """Why it was not started, or was ended here."""


def stream(command: Sequence[str], timeout: float, out: IO[bytes], most: int) -> Streamed:
    """Run `command` without a shell and copy at most `most` bytes of its output, as it arrives.

    It is ended with all processes that it started when the time or the bytes are spent. Raises OSError if
    `out` cannot be written.
    """
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Streamed(0, None, "", getattr(error, "strerror", None) or str(error))
    _streams.add(child.pid)
    try:
        return _copied(child, time.monotonic() + timeout, timeout, out, most)
    finally:
        _streams.discard(child.pid)
        _end(child)


def _copied(
    child: subprocess.Popen[bytes], deadline: float, timeout: float, out: IO[bytes], most: int
) -> Streamed:
    assert child.stdout is not None
    assert child.stderr is not None
    size, errors = 0, b""
    with selectors.DefaultSelector() as ready:
        for pipe in (child.stdout, child.stderr):
            ready.register(pipe, selectors.EVENT_READ)
        while ready.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in ready.select(left):
                data = os.read(key.fd, _CHUNK)
                if not data:
                    ready.unregister(key.fileobj)
                elif key.fileobj is child.stderr:
                    errors = (errors + data)[-_ERRORS:]
                elif size + len(data) > most:
                    size += out.write(data[: most - size])
                    return _streamed(size, None, errors, f"printed more than {most >> 20:,} MiB")
                else:
                    size += out.write(data)
        if not ready.get_map():
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(max(0.1, deadline - time.monotonic()))
                return _streamed(size, code, errors)
    return _streamed(size, None, errors, f"did not answer within {timeout:.3g} s")


def _streamed(size: int, code: int | None, errors: bytes, stopped: str = "") -> Streamed:
    return Streamed(size, code, errors.decode("utf-8", "replace"), stopped)


def end_streams() -> None:
    """End all programs whose output is being copied."""
    for group in tuple(_streams):
        _kill(group)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a program if it still runs, and close its pipes."""
    if child.returncode is None:
        _kill(child.pid)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_TO_EXIT_S)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def _kill(group: int) -> None:
    """End a program and what it started: it leads a process group of its own."""
    with suppress(OSError):
        os.killpg(group, signal.SIGKILL)
