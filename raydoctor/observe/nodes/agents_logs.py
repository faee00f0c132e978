"""The log files of a node, by way of the dashboard: for a node that cannot run a task of ours.

The dashboard asks that node's agent, which lives where its raylet does and answers even while the raylet is
frozen. `GET /api/v0/logs?node_id=…` names the files, `/api/v0/logs/file?…&lines=N` gives the last lines of
one, 4 to 8 ms each (Ray 2.60.0; the same paths since 2.3). Only what a diagnosis reads most is fetched, the
ends of it, and never more than `MOST_BYTES`.
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
"""Role -> how many of the last lines; the order is that of fetching."""
_ORDER = tuple(_LINES)
_WORKER = pattern(rb"[0-9a-f]{56}")


class Fetched(NamedTuple):
    """What came of it."""

    pieces: list[Piece]
    problem: str = ""
    """Why nothing came; empty where something did."""
    left: int = 0
    """Files that a diagnosis would have read and that were not fetched."""


class _RefusedError(Exception):
    """The dashboard did not give what was asked for; the message says why."""


@dataclass(slots=True)
class _Node:
    """A node's log files, as the dashboard gives them."""

    address: str
    access: Access
    node_id: str
    deadline: float

    def get(self, path: str, **query: object) -> bytes:
        """An answer's body. Raises `_RefusedError`."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise _RefusedError("there was no time left")
        asked = urlencode({"node_id": self.node_id, "timeout": int(_ONE_CALL_S), **query})
        answer = dashboard.get(self.address, f"{path}?{asked}", min(left, _ONE_CALL_S), self.access)
        if answer.outcome != "ok":
            raise _RefusedError(_why(answer))
        return answer.body


def fetch(address: str, access: Access, node_id: str, folder: str, deadline: float) -> Fetched:
    """The most telling files of a node, as pieces below `folder`; never raises for the network.

    `deadline`: of `time.monotonic`; what is there by then is kept.
    """
    node = _Node(address, access, node_id, deadline)
    try:
        names = _names(node)
    except _RefusedError as error:
        return Fetched([], str(error))
    if not names:
        return Fetched([], "it names no log files")
    pieces = [Piece(f"{folder}/logs/{name}", data) for name, data in _files(node, names)]
    return Fetched(pieces, "" if pieces else "it gave no file in time", len(names) - len(pieces))


def _names(node: _Node) -> list[str]:
    """Files of the node that are worth fetching, the most telling first."""
    body = node.get("/api/v0/logs", glob="*")
    try:
        groups = json.loads(body)["data"]["result"]
        names = {str(name) for group in groups.values() for name in group}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _RefusedError(f"it cannot list that node's files: {_said(body)}") from None
    return sorted((name for name in names if _role(name) in _LINES), key=_rank)


def _rank(name: str) -> tuple[int, str]:
    return _ORDER.index(_role(name)), name


def _role(name: str) -> str:
    found = read_name(name)
    return found.role if found else ""


def _files(node: _Node, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """(name, last lines) until there are enough, or the time is up."""
    waiting, budget, count, marked = deque(names), MOST_BYTES, 0, False
    while waiting and count < MOST_FILES and budget > 0 and time.monotonic() < node.deadline:
        name = waiting.popleft()
        try:
            data = node.get("/api/v0/logs/file", filename=name, lines=_LINES[_role(name)])
        except _RefusedError:
            continue  # rotated away since it was named
        if name == "raylet.out":
            # Up to Ray 2.40 an answer begins with a 1 for success.
            marked = data.startswith(b"1[")
            waiting = deque(_mentioned_first(waiting, data))
        data = data[1:] if marked else data
        budget -= len(data)
        count += 1
        yield name, data


def _mentioned_first(names: Iterable[str], raylet: bytes) -> list[str]:
    """Of the workers' files first those of workers that the raylet speaks of: it does when they end."""
    mentioned = set(_WORKER.findall(raylet))

    def key(name: str) -> tuple[bool, bool, int]:
        of_worker = "worker" in _role(name)
        ids = set(_WORKER.findall(name.encode("utf-8", "replace")))
        return (of_worker, of_worker and not ids & mentioned, _ORDER.index(_role(name)))

    return sorted(names, key=key)


def _said(body: bytes) -> str:
    """What an error's answer says, in a line."""
    try:
        told = json.loads(body)
        text = str(told["msg"] if isinstance(told, dict) and told.get("msg") else told)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace")
    return (text.strip().splitlines() or ["no reason"])[0][:200]


def _why(answer: dashboard.DashboardReply) -> str:
    if answer.outcome == "refused":
        return "nothing listens there"
    if answer.outcome == "unauthenticated":
        return "it takes no token of this user"
    return _said(answer.body) if answer.body else answer.detail or answer.outcome
