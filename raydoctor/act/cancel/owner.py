"""Queries a cluster about one task, and asks its owner to cancel it, by a child that uses Ray's gRPC.

The child (`programs/cancel_calls.py`) is a separate process for the reason in `observe/gcs/gcs.py`, so this
also works in a driver that has Ray loaded. The child gets its token through a pipe.
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
"""Seconds in addition to the timeout of a call, for a child that starts on a busy machine."""


class AskError(RaydoctorError):
    """A request without a reply; `code` is the gRPC status code, or a word of our own."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code


class Owners:
    """Queries one cluster about tasks."""

    def __init__(self, process: subprocess.Popen[bytes], timeout: float) -> None:
        self._process = process
        self._timeout = timeout
        self._rest = b""
        self._asked = 0
        """Number of requests so far."""

    def attempts(self, task: str) -> list[Row]:
        """The attempts of a task as the GCS has them, a second late; the last one is last."""
        return self._ask("attempts", task=task)

    def unfinished(self) -> list[Row]:
        """Tasks that have not ended."""
        return self._ask("unfinished")

    def roles(self, task: str, worker: str = "", owned: bool = True) -> list[Row]:
        """The workers that run or own a task; if `worker` is given, only that one is asked.

        `is` of a row: `runs`, `owns` (with the owner's fields of the task), `may-own` (its list is
        truncated).
        """
        return self._ask("roles", task=task, worker=worker, owned=owned)

    def lives(self, worker: str) -> list[Row]:
        """The worker with this id, if it is alive."""
        return self._ask("lives", worker=worker)

    def actor(self, actor: str) -> Row:
        """An actor; empty if it is unknown."""
        return next(iter(self._ask("actor", actor=actor)), {})

    def job(self, job: str) -> Row:
        """A job, with its driver's pid, and its submission id if it was submitted; empty if unknown."""
        return next((row for row in self._ask("jobs") if row["job_id"] == job), {})

    def cancel(self, task: str, owner: str, force: bool, recursive: bool) -> None:
        """Have the owner cancel a task."""
        self._ask("cancel", task=task, owner=owner, force=force, recursive=recursive)

    def cancel_children(self, parent: str, owner: str, force: bool) -> None:
        """Have the worker that ran an ended task cancel all tasks that it submitted."""
        self._ask("cancel-children", parent=parent, owner=owner, force=force)

    def kill_actor(self, actor: str) -> None:
        """End an actor."""
        self._ask("kill-actor", actor=actor)

    def _ask(self, what: str, **fields: Any) -> list[Row]:
        self._asked += 1
        reply = self.exchange({"do": what, "n": self._asked, **fields})
        if "failed" in reply:
            raise AskError(reply["failed"], reply["detail"])
        return list(reply["answer"])

    def exchange(self, request: Row) -> Row:
        """Send one line and return the reply with the same number `n`; late replies to others are skipped."""
        if self._process.stdin is None:
            raise AskError("ENDED", "")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            deadline = time.monotonic() + self._timeout + _SLACK
            reply: Row = json.loads(self._line(deadline))
            while reply.get("n") != request.get("n"):
                reply = json.loads(self._line(deadline))
        except (OSError, ValueError, RecursionError) as error:
            raise AskError(
                "ENDED", f"the process that queries the cluster ended: {error}"
            ) from error
        return reply

    def _line(self, deadline: float) -> bytes:
        if self._process.stdout is None:
            return b""
        file = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            poll = select.poll()  # not `select`: a driver may have more than 1024 files open
            poll.register(file, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise AskError("NO_REPLY", "the process that queries the cluster did not answer")
            part = os.read(file, 1 << 20)
            if not part:
                return b""
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line


@contextmanager
def connected(cluster: Cluster, timeout: float) -> Iterator[Owners]:
    """A connection to a cluster. Raises RaydoctorError if the cluster does not answer."""
    from raydoctor.observe.gcs import gcs

    if not cluster.gcs_address:
        raise RaydoctorError(
            "no cluster runs on this machine", "Pass --address HOST:PORT of a GCS."
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
        raise RaydoctorError(f"the cluster did not answer: {error}") from error
    if probe["outcome"] != "ok":
        raise RaydoctorError(
            f"the GCS at {cluster.gcs_address} did not answer: {probe['detail'] or probe['outcome']}",
            "To find the cause: raydoctor diagnose",
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):
            if stream is not None:
                stream.close()
    process.kill()  # its gRPC threads may hang
    process.wait()
