"""Runs raydoctor's own commands in child processes, for the tools of the MCP server.

A child has its own main thread, in which the CPU time of rules can be limited. Ending it frees the processor
and the memory at once, and its standard output never mixes with the protocol.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import anyio
from anyio.abc import ByteReceiveStream, Process

from raydoctor.act.run.guard import ProcessGuard
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.text import one_line

COMMANDS = "raydoctor"
_AFTER_INTERRUPT = 3.0
"""Seconds that a cancelled command has to remove its temporary files, before it is killed."""
_MOST = 256 << 20
"""Bytes of output."""
_MOST_NOTES = 64 << 10
_OWN_NAME = "raydoctor: "
_running: set[int] = set()
"""Process groups of running commands."""


class CommandResult(NamedTuple):
    """What a command printed."""

    code: int
    document: dict[str, Any]
    notes: tuple[str, ...]
    """Lines of standard error: choices that the command made."""
    size: int = 0
    """Bytes of the document."""


async def run(words: Sequence[str], module: str = COMMANDS, request: bytes = b"") -> CommandResult:
    """Run `python -m MODULE WORDS`, which prints one JSON object; `request` is its standard input.

    If the caller is cancelled, the command and its children are interrupted, and killed if they do not end.
    Raises RaydoctorError with the command's own message if it prints none, and if it cannot be started.
    """
    output, errors = bytearray(), bytearray()
    try:
        process = await anyio.open_process(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE if request else subprocess.DEVNULL,
            cwd="/",  # -m puts the working folder first on the path
            env=_environment(),
            start_new_session=True,  # its group can be ended as a whole
        )
    except (OSError, ValueError) as error:  # a word is too long, or holds a null byte
        reason = getattr(error, "strerror", None) or str(error)
        raise RaydoctorError(
            f"the command could not be started: {reason}",
            "Pass shorter fields, without null bytes.",
        ) from None
    _running.add(process.pid)
    try:
        async with anyio.create_task_group() as group:
            assert process.stdout is not None
            assert process.stderr is not None
            group.start_soon(_collect, process.stdout, output, _MOST)
            group.start_soon(_collect, process.stderr, errors, _MOST_NOTES)
            if process.stdin is not None:
                with suppress(anyio.BrokenResourceError):
                    await process.stdin.send(request)
                await process.stdin.aclose()
        code = await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
        _running.discard(process.pid)
    lines = errors.decode("utf-8", "replace").splitlines()
    if len(output) >= _MOST:
        raise RaydoctorError(
            "the reply is larger than 256 MiB", "Limit it: since, or a smaller path."
        )
    try:
        return CommandResult(code, json.loads(output), _notes(lines), len(output))
    except (ValueError, RecursionError):
        raise _failure(lines, code) from None


def _environment() -> dict[str, str]:
    """The environment of a command: with a mark by which it is ended if the server is killed."""
    kept = {k: v for k, v in os.environ.items() if k != "_RAYDOCTOR_COMPLETE"}
    return {**kept, **_guard().environment}


@cache
def _guard() -> ProcessGuard:
    guard = ProcessGuard(_AFTER_INTERRUPT)
    atexit.register(guard.close)
    return guard


def end_on_hangup() -> None:
    """Treat the end of the terminal as SIGTERM, unless it is ignored: commands in sessions of their own would
    run on.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def interrupt_all() -> None:
    """Interrupt every running command: for a server that is about to end."""
    for group in _running:
        with suppress(OSError):
            os.killpg(group, signal.SIGINT)


async def _collect(stream: ByteReceiveStream, into: bytearray, most: int) -> None:
    """Read to the end; bytes after the first `most` are dropped, so that the writer is never blocked."""
    async for chunk in stream:
        into += chunk[: max(0, most - len(into))]


async def _end(process: Process) -> None:
    """End a command that is still running, with its group; its pid is not reused before it is waited for."""
    for number, patience in ((signal.SIGINT, _AFTER_INTERRUPT), (signal.SIGKILL, None)):
        if process.returncode is None:
            with suppress(OSError):
                os.killpg(process.pid, number)
            with anyio.move_on_after(patience):
                await process.wait()
    await process.aclose()


def _notes(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        one_line(line.removeprefix(_OWN_NAME)) for line in lines if line.startswith(_OWN_NAME)
    )


def _failure(lines: Sequence[str], code: int) -> RaydoctorError:
    """The command's own error: `raydoctor: MESSAGE`, and an indented hint below it."""
    for number, line in reversed(list(enumerate(lines))):
        message = line.removeprefix(_OWN_NAME)
        if message != line or (message := line.removeprefix("Error: ")) != line:
            return RaydoctorError(one_line(message), one_line(" ".join(lines[number + 1 :])))
    last = f": {one_line(lines[-1])}" if lines else ""
    return RaydoctorError(f"the command ended with exit code {code}{last}", "Try it in a shell.")
