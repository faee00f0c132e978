"""The log files of a node through the dashboard: for a node that cannot run raydoctor's task.

The dashboard queries that node's agent, which answers even while the raylet is frozen. `GET
/api/v0/logs?node_id=…` lists the files, `/api/v0/logs/file?…&lines=N` returns the last lines of one, 4 to 8
ms each (Ray 2.60.0; the same paths since 2.3). Only the ends of the most important files are fetched, and at
most `MOST_BYTES`.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from raydoctor.capture.layout import read_name
from raydoctor.model.patterns import pattern
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.gcs import dashboard

MOST_BYTES = 8 << 20
MOST_FILES = 150
_ONE_CALL_S = 3.0

_LINES = {
    "raylet-out": 4000,
    "raylet-err": 500,
    "gcs-out": 4000,
    "gcs-err": 500,
    "dashboard-agent": 500,
    "runtime-env-agent": 1000,
    "runtime-env-setup": 1000,
    "monitor": 1000,
    "job-driver": 2000,
    "worker-err": 300,
    "io-worker": 300,
    "core-worker": 300,
}
"""Role -> number of last lines that are fetched, in the order of fetching."""
_ORDER = tuple(_LINES)
_WORKER = pattern(rb"[0-9a-f]{56}")


class Fetched(NamedTuple):
    """The files of a node, or why there are none."""

    pieces: list[Piece]
    problem: str = ""
    """Why there are no files; empty if there are."""
    left: int = 0
    """Relevant files that were not fetched."""


class _RefusedError(Exception):
    """The dashboard did not return a page; the message is the reason."""


@dataclass(slots=True)
class _Node:
    """Access to a node's log files through the dashboard."""

    address: str
    access: Access
    node_id: str
    deadline: float

    def get(self, path: str, **query: object) -> bytes:
        """The body of a page. Raises `_RefusedError`."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _RefusedError("there was no time left")
        asked = urlencode({"node_id": self.node_id, "timeout": int(_ONE_CALL_S), **query})
        answer = dashboard.get(self.address, f"{path}?{asked}", min(left, _ONE_CALL_S), self.access)
        if answer.outcome != "ok":
            raise _RefusedError(_why(answer))
        return answer.body


def fetch(address: str, access: Access, node_id: str, folder: str, deadline: float) -> Fetched:
    """The most important files of a node, as pieces below `folder`; never raises for the network.

    `deadline`: of `time.monotonic`; files that arrived before it are kept.
    """
    node = _Node(address, access, node_id, deadline)
    try:
        names = _names(node)
    except _RefusedError as error:
        return Fetched([], str(error))
    if not names:
        return Fetched([], "it lists no log files")
    pieces = [Piece(f"{folder}/logs/{name}", data) for name, data in _files(node, names)]
    return Fetched(
        pieces, "" if pieces else "it returned no file in time", len(names) - len(pieces)
    )


def _names(node: _Node) -> list[str]:
    """Relevant files of the node, most important first."""
    body = node.get("/api/v0/logs", glob="*")
    try:
        groups = json.loads(body)["data"]["result"]
        names = {str(name) for group in groups.values() for name in group}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _RefusedError(f"it cannot list that node's files: {_error(body)}") from None
    return sorted((name for name in names if _role(name) in _LINES), key=_rank)


def _rank(name: str) -> tuple[int, str]:
    return _ORDER.index(_role(name)), name


def _role(name: str) -> str:
    found = read_name(name)
    return found.role if found else ""


def _files(node: _Node, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Name and last lines of files, until a limit or the deadline is reached."""
    waiting, budget, count, marked = deque(names), MOST_BYTES, 0, False
    while waiting and count < MOST_FILES and budget > 0 and time.monotonic() < node.deadline:
        name = waiting.popleft()
        try:
            data = node.get("/api/v0/logs/file", filename=name, lines=_LINES[_role(name)])
        except _RefusedError:
            continue  # rotated since it was listed
        if name == "raylet.out":
            # Up to Ray 2.40, a reply begins with a 1 for success.
            marked = data.startswith(b"1[")
            waiting = deque(_mentioned_first(waiting, data))
        data = data[1:] if marked else data
        budget -= len(data)
        count += 1
        yield name, data


def _mentioned_first(names: Iterable[str], raylet: bytes) -> list[str]:
    """Sort files of workers that the raylet's log mentions first: it mentions workers that exited."""
    mentioned = set(_WORKER.findall(raylet))

    def key(name: str) -> tuple[bool, bool, int]:
        of_worker = "worker" in _role(name)
        ids = set(_WORKER.findall(name.encode("utf-8", "replace")))
        return (of_worker, of_worker and not ids & mentioned, _ORDER.index(_role(name)))

    return sorted(names, key=key)


def _error(body: bytes) -> str:
    """The error message of a reply, in one line."""
    try:
        reply = json.loads(body)
        text = str(reply["msg"] if isinstance(reply, dict) and reply.get("msg") else reply)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace")
    return (text.strip().splitlines() or ["no reason"])[0][:200]


def _why(answer: dashboard.DashboardReply) -> str:
    if answer.outcome == "refused":
        return "nothing listens there"
    if answer.outcome == "unauthenticated":
        return "it rejects this user's token"
    return _error(answer.body) if answer.body else answer.detail or answer.outcome
