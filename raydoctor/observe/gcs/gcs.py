"""Tables from a cluster's GCS and workers, by a child process that speaks Ray's gRPC without importing Ray.

The child (`programs/gcs_tables.py`) is a process of its own because gRPC's threads cannot be stopped: a
process can. It is given its token through a pipe. Ray's messages come with raydoctor: a folder that a process
of the cluster names holds code of the cluster's user.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.gcs.told import Probe, Reply

_PROGRAM = Path(__file__).with_name("programs") / "gcs_tables.py"
_LINE = 256 << 20
"""A table of 10,000 rows with their errors is 20 MB."""
_SECRETS = ("RAY_AUTH_TOKEN",)
"""Not in the child's environment: others of this user could read it there."""


class Child:
    """The child. Starting it takes 5 ms here and 0.1 s there, so it is started before it is needed."""

    def __init__(self) -> None:
        self.problem = ""
        """Why it can tell nothing at all; empty while it can."""
        self.probe: Probe | None = None
        self.about: dict[str, str] = {}
        """What the head wrote down: `ray_version`, `python_version`. Empty until it is known."""
        self.is_late = False
        """Whether a request ran out of time."""
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = start(_PROGRAM)
        except OSError as error:
            self.problem = f"could not be asked: {error.strerror or error}"
            return
        threading.Thread(target=self._read, name="gcs", daemon=True).start()

    def ask(
        self, address: str, access: Access, tables: Sequence[str], timeout: float
    ) -> Iterator[Reply]:
        """Each table as it comes; those that do not come in time are told at the end, with the reason.

        One that let a request run out of time is not asked again: its answers would be mixed up.
        """
        missing = dict.fromkeys(tables)
        request = {"address": address, "access": access, "timeout": timeout, "tables": list(tables)}
        if not self.problem and self._send(request):
            for line in self._until(time.monotonic() + timeout):
                told = self._told(line)
                if told is not None:
                    missing.pop(told.name, None)
                    yield told
        yield from (Reply(name, [], why=self.problem or "was not told") for name in missing)

    def end(self) -> None:
        """End it, whatever it does."""
        if self._process is None:
            return
        with suppress(OSError):
            self._process.kill()
        with suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.5)

    def _send(self, request: dict[str, Any]) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            self.problem = self.problem or "the process that asks the GCS ended"
            return False
        return True

    def _read(self) -> None:
        """In a thread: lines of the child, and an empty one at its end."""
        if self._process is None or self._process.stdout is None:
            return
        with suppress(OSError, ValueError), self._process.stdout as stream:
            while line := stream.readline(_LINE):
                self._lines.put(line)
        self._lines.put(b"")

    def _until(self, deadline: float) -> Iterator[bytes]:
        """Lines that answer one request."""
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.is_late = True
                self.problem = self.problem or "the GCS did not answer in time"
                return
            if not line:
                self.problem = self.problem or "the process that asks the GCS ended"
                return
            if line.startswith(b'{"answered"'):
                return
            yield line

    def _told(self, line: bytes) -> Reply | None:
        try:
            told = json.loads(line)
        except ValueError:
            return None
        if "probe" in told:
            self.probe = Probe(**told["probe"])
            self.about = told["about"]
        elif "table" in told:
            return Reply(told["table"], told["rows"], told["total"], at=time.time())
        elif told.get("failed"):
            return Reply(told["failed"], [], why=f"{told['code']}: {told['detail']}")
        elif "failed" in told:
            self.problem = f"gRPC cannot be used: {told['code']}: {told['detail']}"
        return None


def start(program: Path) -> subprocess.Popen[bytes]:
    """Start a program that speaks gRPC with Ray's messages; it is asked over its pipes.

    Raises OSError.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    return subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # gRPC logs what its calls return already; its fork handlers cost and are not needed.
        env={**kept, "GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"},
        start_new_session=True,
    )
