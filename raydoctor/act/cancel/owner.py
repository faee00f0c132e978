"""What a cluster says of one task, and its owner told to cancel it: by a child that speaks Ray's gRPC.

The child (`programs/cancel_calls.py`) is a process of its own as `observe/gcs/gcs.py` explains, so this
works in a driver that has the real Ray loaded, too. It gets its token through a pipe.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.collector.cluster import Cluster

Row = dict[str, Any]
_PROGRAM = Path(__file__).with_name("programs") / "cancel_calls.py"
_SLACK = 3.0
"""Seconds beside what a call may take: for a child that starts on a busy machine."""


class AskError(RaydoctorError):
    """A request that was not answered; `code` is gRPC's where it is of the wire."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code


class Owners:
    """One cluster, asked about tasks."""

    def __init__(self, process: subprocess.Popen[bytes], timeout: float) -> None:
        self._process = process
        self._timeout = timeout
        self._rest = b""
        self._asked = 0
        """Questions so far."""

    def attempts(self, task: str) -> list[Row]:
        """What the GCS knows of a task, an attempt a row, the last one last; a second late."""
        return self._ask("attempts", task=task)

    def unfinished(self) -> list[Row]:
        """Tasks that have not ended."""
        return self._ask("unfinished")

    def roles(self, task: str, worker: str = "", owned: bool = True) -> list[Row]:
        """Who runs a task and who owns it; one worker alone is asked where it is named.

        `is` of a row: `runs`, `owns` (with what the owner says of it), `may-own` (it does not tell of all).
        """
        return self._ask("roles", task=task, worker=worker, owned=owned)

    def lives(self, worker: str) -> list[Row]:
        """That worker, while it lives."""
        return self._ask("lives", worker=worker)

    def actor(self, actor: str) -> Row:
        """An actor; empty where nothing is known of it."""
        return next(iter(self._ask("actor", actor=actor)), {})

    def job(self, job: str) -> Row:
        """A job, with its driver's pid, and its submission id if it was submitted; empty where unknown."""
        return next((row for row in self._ask("jobs") if row["job_id"] == job), {})

    def cancel(self, task: str, owner: str, force: bool, recursive: bool) -> None:
        """Have the owner cancel it."""
        self._ask("cancel", task=task, owner=owner, force=force, recursive=recursive)

    def cancel_children(self, parent: str, owner: str, force: bool) -> None:
        """Have the worker that ran a task, which has ended, cancel all that this one submitted."""
        self._ask("cancel-children", parent=parent, owner=owner, force=force)

    def kill_actor(self, actor: str) -> None:
        """End the actor."""
        self._ask("kill-actor", actor=actor)

    def _ask(self, what: str, **fields: Any) -> list[Row]:
        self._asked += 1
        reply = self.exchange({"do": what, "n": self._asked, **fields})
        if "failed" in reply:
            raise AskError(reply["failed"], reply["detail"])
        return list(reply["answer"])

    def exchange(self, request: Row) -> Row:
        """One line there, one line back: the one of the same number `n`, as others may come late."""
        if self._process.stdin is None:
            raise AskError("ENDED", "")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            deadline = time.monotonic() + self._timeout + _SLACK
            reply: Row = json.loads(self._line(deadline))
            while reply.get("n") != request.get("n"):
                reply = json.loads(self._line(deadline))
        except (OSError, ValueError) as error:
            raise AskError("ENDED", f"the process that asks the cluster ended: {error}") from error
        return reply

    def _line(self, deadline: float) -> bytes:
        if self._process.stdout is None:
            return b""
        file = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            poll = select.poll()  # not `select`: a driver may have more files open than it can name
            poll.register(file, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise AskError("DEADLINE_EXCEEDED", "no answer in time")
            part = os.read(file, 1 << 20)
            if not part:
                return b""
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line


@contextmanager
def connected(cluster: Cluster, timeout: float) -> Iterator[Owners]:
    """Raises RaydoctorError where the cluster cannot be asked."""
    from raydoctor.observe.gcs import gcs

    if not cluster.gcs_address:
        raise RaydoctorError(
            "no cluster is known to be running here", "Name one: --address HOST:PORT of its GCS."
        )
    process = gcs.start(_PROGRAM)
    try:
        owners = Owners(process, timeout)
        _open(owners, cluster, timeout)
        yield owners
    finally:
        _end(process)


def _open(owners: Owners, cluster: Cluster, timeout: float) -> None:
    try:
        probe = owners.exchange(
            {"address": cluster.gcs_address, "access": cluster.access(), "timeout": timeout}
        )
    except AskError as error:
        raise RaydoctorError(f"the cluster could not be asked: {error}") from error
    if probe["outcome"] != "ok":
        raise RaydoctorError(
            f"the GCS at {cluster.gcs_address} did not answer: {probe['detail'] or probe['outcome']}",
            "What is wrong with it: raydoctor diagnose",
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):
            if stream is not None:
                stream.close()
    process.kill()  # its gRPC threads may hang
    process.wait()
