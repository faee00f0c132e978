"""The logs of other nodes: read there by a task on each, or fetched through the dashboard.

A child process (`programs/fan_out.py`) runs a Ray task on every node, which returns events instead of logs.
From a node that cannot run it (a frozen raylet, no raydoctor there, a cluster that rejects the driver), the
ends of the most important log files are fetched through the dashboard. If both fail, a gap names the reason
and the fix. All of it ends within `limits(timeout, nodes).whole` seconds.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from raydoctor.case.rule import Signal
from raydoctor.model import paste
from raydoctor.model.values import Gap
from raydoctor.model.version import __version__
from raydoctor.observe.collector.cluster import Cluster, Daemon
from raydoctor.observe.collector.table import FOLDER, Piece, table
from raydoctor.observe.nodes import agents_logs, fan_out
from raydoctor.observe.nodes.fan_out import Frame
from raydoctor.observe.nodes.place import place_of

FILE = f"{FOLDER}/live-events.jsonl"
MOST_EVENTS = 20_000
"""Of one node."""
_MOST_IN_ALL = 400_000
"""Of all nodes: a diagnosis keeps about 2 kB of each event in memory."""
_FEWEST = 500
_MOST_BYTES = 64 << 20
"""Of one reading, unpacked: raydoctor never sends as much."""
_CONNECT_S = 4.0
"""Seconds for a cluster to accept the driver, if `--timeout` is not longer: usually it takes one."""
_READING_S = 1.5
"""Seconds of a node's time for starting a worker and sending the reply."""
_FETCH_AT_ONCE = 4
_LAST_S = 0.3
"""Seconds before the end when fetching stops, so that the files so far are kept."""
_TASK = "raydoctor: read this node's logs"
_COPY = "Copy /tmp/ray/session_latest/logs from that node and run: raydoctor diagnose PATH"

ReportNodes = Callable[[int, int], None]
"""Called with the number of nodes that are done, and of all."""


class Limits(NamedTuple):
    """Time limits in seconds."""

    connecting: float
    """Until the cluster has accepted the driver."""
    each: float
    """For a node's task, from the request to the reply."""
    asking: float
    """For all tasks."""
    whole: float
    """For everything."""


def limits(timeout: float, nodes: int) -> Limits:
    """The limits for this `--timeout` and number of nodes: at least sixteen are queried per second."""
    connecting = max(_CONNECT_S, timeout)
    asking = connecting + timeout + nodes / 16
    return Limits(connecting, timeout, asking, asking + timeout)


def label(node_id: str) -> str:
    """The folder of a node in a capture."""
    return f"node-{node_id[:12]}"


def collect(
    cluster: Cluster,
    nodes: Sequence[str],
    timeout: float,
    signals: Iterable[Signal] = (),
    report: ReportNodes = lambda done, total: None,
) -> Iterator[Piece | Gap]:
    """Readings, files or gaps of these nodes (ids); those with logs on this machine are left out.

    `signals`: what the nodes search for. Paths of pieces begin with the node's folder (`label`).
    """
    wanted = elsewhere(cluster, nodes)
    if not wanted:
        return
    bounds = limits(timeout, len(wanted))
    round_ = _Round(cluster, wanted, time.monotonic() + bounds.whole)
    request = _request(cluster, wanted, bounds, list(signals))
    report(0, len(wanted))
    with fan_out.asking(cluster, request, bounds.connecting, round_.news.put) as driver:
        # Its job appears in the cluster's logs like any other.
        if driver:
            yield table("own-drivers", [{"pid": driver}], source="raydoctor")
        while round_.open and (news := round_.next()):
            yield from round_.take(news)
            report(len(wanted) - len(round_.open), len(wanted))
    yield from round_.unanswered()


def elsewhere(cluster: Cluster, nodes: Iterable[str]) -> list[str]:
    """The nodes with logs outside of this machine's session folder.

    A raylet on this machine may write elsewhere: in a container it has its own file system.
    """
    apart = {
        raylet.node_id
        for raylet in cluster.of("raylet")
        if not _is_same_place(cluster.session_dir, raylet)
    }
    here = {node for node in cluster.node_ids if node not in apart}
    return [node for node in dict.fromkeys(nodes) if node not in here]


def _is_same_place(session_dir: str, raylet: Daemon) -> bool:
    """Whether a raylet's logs are in the session's folder; True if this user cannot determine it."""
    theirs = raylet.session_dir or session_dir
    try:
        there = os.stat(f"/proc/{raylet.pid}/root{theirs}/logs")
    except OSError:
        return True
    try:
        return os.path.samestat(there, os.stat(f"{session_dir}/logs"))
    except OSError:
        return False


def _request(
    cluster: Cluster, nodes: Sequence[str], bounds: Limits, signals: list[Signal]
) -> dict[str, Any]:
    share = max(_FEWEST, min(MOST_EVENTS, _MOST_IN_ALL // len(nodes)))
    return {
        "version": __version__,
        "task": _TASK,
        "function": "raydoctor.observe.nodes.programs.on_node:respond",
        "nodes": list(nodes),
        "each": bounds.each,
        "seconds": bounds.asking,
        "at_once": fan_out.AT_ONCE,
        "ask": {
            "signals": [
                [s.kind, s.find, s.pattern, s.roles, s.extent, s.symptom, s.fold, s.with_header]
                for s in dict.fromkeys(signals)
            ],
            "seconds": max(1.0, bounds.each - _READING_S),
            "most_events": share,
            "known_folder": place_of(cluster.session_dir) if cluster.session_dir else "",
        },
    }


# ---------------------------------------------------------------- replies


class _Files(NamedTuple):
    node: str
    fetched: agents_logs.Fetched


_News: TypeAlias = "queue.SimpleQueue[Frame | _Files]"


class _Round:
    """The nodes that have not replied yet, and the fallback for those that cannot."""

    def __init__(self, cluster: Cluster, nodes: Sequence[str], deadline: float) -> None:
        self.news: _News = queue.SimpleQueue()
        self.open = dict.fromkeys(nodes)
        """Nodes without a result so far."""
        self._cluster = cluster
        self._deadline = deadline
        self._ips: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._reasons: dict[str, _Reason] = {}
        """Nodes that could not be queried, and why."""
        self._waiting: deque[str] = deque()
        self._fetching = 0

    def next(self) -> Frame | _Files | None:
        """The next message; None after the deadline."""
        with suppress(queue.Empty):
            return self.news.get(timeout=max(0.0, self._deadline - time.monotonic()))
        return None

    def take(self, news: Frame | _Files) -> Iterator[Piece | Gap]:
        """The pieces and gaps from a frame or a node's files."""
        if isinstance(news, _Files):
            self._fetching -= 1
            yield from self._files(news)
        elif "nodes" in news.head:
            yield from self._known(news.head["nodes"])
        elif "node" in news.head:
            yield from self._answered(news)
        else:
            self._all_refused(str(news.head.get("problem", "")))
        self._fetch()

    def unanswered(self) -> Iterator[Gap]:
        """Gaps for nodes without a result at the deadline."""
        for node in self.open:
            yield self._gap(node, "neither the node nor the dashboard answered in time")
        self.open = {}

    # ------------------------------------------------------------ messages of the child

    def _known(self, nodes: Iterable[Mapping[str, Any]]) -> Iterator[Gap]:
        known = {str(n["id"]): n for n in nodes}
        self._ips = {node: str(n["ip"]) for node, n in known.items()}
        for node in list(self.open):
            if node not in known or not known[node]["alive"]:
                self._settle(node)
                yield self._gap(node, "it is dead and cannot be queried")

    def _answered(self, frame: Frame) -> Iterator[Piece | Gap]:
        head, node = frame.head, str(frame.head["node"])
        if node not in self.open:
            return
        if "problem" in head:
            self._refused(node, _Reason(str(head["problem"]), _advice(head)))
            return
        self._settle(node)
        place = str(head.get("place", ""))
        if head.get("same") or (place and self._places.setdefault(place, node) != node):
            return  # it shares its logs with another node
        try:
            yield Piece(f"{label(node)}/{FILE}", _unpacked(frame.data))
        except (zlib.error, ValueError) as error:
            yield self._gap(node, f"its reply is damaged: {error}")

    def _all_refused(self, why: str) -> None:
        for node in self.open:
            if node not in self._reasons:
                self._refused(node, _Reason(why))

    def _refused(self, node: str, reason: _Reason) -> None:
        self._reasons[node] = reason
        self._waiting.append(node)

    def _settle(self, node: str) -> None:
        self.open.pop(node, None)

    # ------------------------------------------------------------ files from the dashboard

    def _fetch(self) -> None:
        """Fetch the files of nodes that could not be queried, a few nodes at a time."""
        while self._waiting and self._fetching < _FETCH_AT_ONCE:
            self._fetching += 1
            node = self._waiting.popleft()
            threading.Thread(target=self._fetch_one, args=(node,), daemon=True).start()

    def _fetch_one(self, node: str) -> None:
        fetched = agents_logs.Fetched([], "the dashboard's address is not known")
        if self._cluster.dashboard_address:
            fetched = agents_logs.fetch(
                self._cluster.dashboard_address,
                self._cluster.access(True),
                node,
                label(node),
                self._deadline - _LAST_S,
            )
        self.news.put(_Files(node, fetched))

    def _files(self, files: _Files) -> Iterator[Piece | Gap]:
        reason = self._reasons[files.node]
        self._settle(files.node)
        yield from files.fetched.pieces
        if files.fetched.pieces:
            why = (
                f"{reason.why}; its logs were fetched through the dashboard: the ends of "
                f"{len(files.fetched.pieces)} files, without {files.fetched.left} others"
            )
            yield self._gap(files.node, why, reason.hint, optional=not files.fetched.left)
        else:
            why = f"{reason.why}; the dashboard did not return its logs either: {files.fetched.problem}"
            yield self._gap(files.node, why, reason.hint)

    def _gap(self, node: str, why: str, hint: str = _COPY, *, optional: bool = False) -> Gap:
        ip = f" ({self._ips[node]})" if self._ips.get(node) else ""
        return Gap(f"node {node[:12]}{ip}", why, hint, optional)


class _Reason(NamedTuple):
    """Why a node could not be queried, and what to do."""

    why: str
    hint: str = _COPY


def _advice(head: Mapping[str, Any]) -> str:
    """What to do about a node that could not read its logs."""
    if head.get("missing"):
        return paste.shell(
            "Install it there: {python:path} -m pip install raydoctor=={version:version}. "
            "Or copy its logs, and run: raydoctor diagnose PATH",
            python=str(head.get("python") or "python"),
            version=__version__,
        )
    return paste.text("There: {hint}", hint=str(head["hint"])) if head.get("hint") else _COPY


def _unpacked(data: bytes) -> bytes:
    """A reading's rows. Raises ValueError if they exceed the size that raydoctor sends."""
    stream = zlib.decompressobj()
    rows = stream.decompress(data, _MOST_BYTES)
    if not stream.eof:
        raise ValueError("truncated or too large")
    return rows
