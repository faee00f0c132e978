"""Tables from a cluster's GCS and workers, by a child process that uses Ray's gRPC without importing Ray.

The child (`programs/gcs_tables.py`) is a separate process because gRPC's threads cannot be stopped, but a
process can. It receives the token through a pipe. raydoctor ships Ray's messages itself: the cluster's own
installation of Ray contains code of the cluster's user.
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
from raydoctor.observe.gcs.replies import Probe, Reply

_PROGRAM = Path(__file__).with_name("programs") / "gcs_tables.py"
_LINE = 256 << 20
"""A table of 10,000 rows with their errors is 20 MB."""
_CHILD_EXITED = "the process that queries the GCS exited"
_SECRETS = ("RAY_AUTH_TOKEN",)
"""Removed from the child's environment: other processes of this user could read them there."""


class Child:
    """The child process. Its start-up takes 0.1 s, so it is started before it is needed."""

    def __init__(self) -> None:
        self.problem = ""
        """Why it cannot answer any request; empty while it can."""
        self.probe: Probe | None = None
        self.about: dict[str, str] = {}
        """What the head node recorded: `ray_version`, `python_version`. Empty until the first reply."""
        self.is_late = False
        """Whether a request timed out."""
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = start(_PROGRAM)
        except OSError as error:
            self.problem = f"could not be queried: {error.strerror or error}"
            return
        threading.Thread(target=self._read, name="gcs", daemon=True).start()

    def ask(
        self, address: str, access: Access, tables: Sequence[str], timeout: float
    ) -> Iterator[Reply]:
        """Each table as it arrives, and at the end those that are missing, with the reason.

        After a timeout, the child is not queried again: late replies would be mixed with new ones.
        """
        missing = dict.fromkeys(tables)
        request = {"address": address, "access": access, "timeout": timeout, "tables": list(tables)}
        if not self.problem and self._send(request):
            for line in self._until(time.monotonic() + timeout):
                reply = self._reply(line)
                if reply is not None:
                    missing.pop(reply.name, None)
                    yield reply
        yield from (Reply(name, [], why=self.problem or "no reply") for name in missing)

    def end(self) -> None:
        """Kill the child."""
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
            self.problem = self.problem or _CHILD_EXITED
            return False
        return True

    def _read(self) -> None:
        """In a thread: queue the child's lines, and an empty one when it exits."""
        if self._process is None or self._process.stdout is None:
            return
        with suppress(OSError, ValueError), self._process.stdout as stream:
            while line := stream.readline(_LINE):
                self._lines.put(line)
        self._lines.put(b"")

    def _until(self, deadline: float) -> Iterator[bytes]:
        """Lines of the reply to one request."""
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.is_late = True
                self.problem = self.problem or "the GCS did not answer in time"
                return
            if not line:
                self.problem = self.problem or _CHILD_EXITED
                return
            if line.startswith(b'{"answered"'):
                return
            yield line

    def _reply(self, line: bytes) -> Reply | None:
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if "probe" in answer:
            self.probe = Probe(**answer["probe"])
            self.about = answer["about"]
        elif "table" in answer:
            return Reply(answer["table"], answer["rows"], answer["total"], at=time.time())
        elif answer.get("failed"):
            return Reply(answer["failed"], [], why=f"{answer['code']}: {answer['detail']}")
        elif "failed" in answer:
            self.problem = f"gRPC cannot be used: {answer['code']}: {answer['detail']}"
        return None


def start(program: Path) -> subprocess.Popen[bytes]:
    """Start a program that uses gRPC with Ray's messages; requests and replies go through its pipes.

    Raises OSError.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    return subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # gRPC also logs the errors that its calls return; its fork handlers are slow and not needed.
        env={**kept, "GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"},
        start_new_session=True,
    )
