"""What the logs of other nodes tell: read there, by a task on each, or fetched through the dashboard.

A child process (`programs/fan_out.py`) asks all nodes by Ray's own means; each answers with events, not with
logs. A node that cannot (its raylet is frozen, raydoctor is not installed there, the cluster refuses) gives
the ends of its most telling log files through the dashboard's log API. What gives neither is a gap that
says why and what to do. Everything ends within `limits(timeout, nodes).whole` seconds.
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
"""Of all nodes: a diagnosis keeps some 2 kB of each in memory."""
_FEWEST = 500
_MOST_BYTES = 64 << 20
"""Of one reading, unpacked: no node of ours sends as much."""
_CONNECT_S = 4.0
"""Seconds that a cluster may take to accept the driver, or the user's `--timeout`: mostly it takes one."""
_READING_S = 1.5
"""Seconds of a node's time that starting a worker and the way back take."""
_FETCH_AT_ONCE = 4
_LAST_S = 0.3
"""Seconds before the end when fetching stops, so that what has come is kept."""
_TASK = "raydoctor: what this node's logs tell"
_COPY = "Copy /tmp/ray/session_latest/logs from that node, and run: raydoctor diagnose PATH"

Tell = Callable[[int, int], None]
"""Is told how many nodes of how many are done."""


class Limits(NamedTuple):
    """Seconds."""

    connecting: float
    """Until the cluster has accepted the driver."""
    each: float
    """For a node's task, from asking to answer."""
    asking: float
    """For all tasks."""
    whole: float
    """For everything."""


def limits(timeout: float, nodes: int) -> Limits:
    """What a user's `--timeout` means for so many nodes: sixteen a second are asked, or more."""
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
    tell: Tell = lambda done, total: None,
) -> Iterator[Piece | Gap]:
    """Readings, files or gaps of these nodes (ids); those whose logs are here are left out.

    `signals`: what is looked for there. Paths of pieces begin with the node's folder (`label`).
    """
    wanted = elsewhere(cluster, nodes)
    if not wanted:
        return
    bounds = limits(timeout, len(wanted))
    round_ = _Round(cluster, wanted, time.monotonic() + bounds.whole)
    request = _request(cluster, wanted, bounds, list(signals))
    tell(0, len(wanted))
    with fan_out.asking(cluster, request, bounds.connecting, round_.news.put) as driver:
        # The job that it is stands in the cluster's logs like any other.
        if driver:
            yield table("own-drivers", [{"pid": driver}], source="raydoctor")
        while round_.open and (news := round_.next()):
            yield from round_.take(news)
            tell(len(wanted) - len(round_.open), len(wanted))
    yield from round_.unanswered()


def elsewhere(cluster: Cluster, nodes: Iterable[str]) -> list[str]:
    """Those of the nodes whose logs are not in the session's folder of this machine.

    A raylet may run on this machine and write elsewhere: in a container it has files of its own.
    """
    apart = {
        raylet.node_id
        for raylet in cluster.of("raylet")
        if not _is_same_place(cluster.session_dir, raylet)
    }
    here = {node for node in cluster.node_ids if node not in apart}
    return [node for node in dict.fromkeys(nodes) if node not in here]


def _is_same_place(session_dir: str, raylet: Daemon) -> bool:
    """Whether a raylet's logs are those of the session's folder, as far as this user may know."""
    theirs = raylet.session_dir or session_dir
    try:
        seen_there = os.stat(f"/proc/{raylet.pid}/root{theirs}/logs")
    except OSError:
        return True
    try:
        return os.path.samestat(seen_there, os.stat(f"{session_dir}/logs"))
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


# ---------------------------------------------------------------- what comes back


class _Files(NamedTuple):
    """What the dashboard gave."""

    node: str
    fetched: agents_logs.Fetched


_News: TypeAlias = "queue.SimpleQueue[Frame | _Files]"


class _Round:
    """Which nodes have been heard of, and what is done about the others."""

    def __init__(self, cluster: Cluster, nodes: Sequence[str], deadline: float) -> None:
        self.news: _News = queue.SimpleQueue()
        self.open = dict.fromkeys(nodes)
        """Nodes of which nothing is known yet."""
        self._cluster = cluster
        self._deadline = deadline
        self._ips: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._reasons: dict[str, _Reason] = {}
        """Nodes that could not be asked, and why."""
        self._waiting: deque[str] = deque()
        self._fetching = 0

    def next(self) -> Frame | _Files | None:
        """What comes next; None where the time is up."""
        with suppress(queue.Empty):
            return self.news.get(timeout=max(0.0, self._deadline - time.monotonic()))
        return None

    def take(self, news: Frame | _Files) -> Iterator[Piece | Gap]:
        """What a frame or a node's files come to."""
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
        """Gaps for what is open when the time is up."""
        for node in self.open:
            yield self._gap(node, "it did not answer, nor did the dashboard for it, in time")
        self.open = {}

    # ------------------------------------------------------------ what the child says

    def _known(self, told: Iterable[Mapping[str, Any]]) -> Iterator[Gap]:
        known = {str(n["id"]): n for n in told}
        self._ips = {node: str(n["ip"]) for node, n in known.items()}
        for node in list(self.open):
            if node not in known or not known[node]["alive"]:
                self._settle(node)
                yield self._gap(node, "it is dead, so that nobody there can be asked")

    def _answered(self, frame: Frame) -> Iterator[Piece | Gap]:
        told, node = frame.head, str(frame.head["node"])
        if node not in self.open:
            return
        if "problem" in told:
            self._refused(node, _Reason(str(told["problem"]), _advice(told)))
            return
        self._settle(node)
        place = str(told.get("place", ""))
        if told.get("same") or (place and self._places.setdefault(place, node) != node):
            return  # its logs lie where those of another node do, and are read already
        try:
            yield Piece(f"{label(node)}/{FILE}", _unpacked(frame.data))
        except (zlib.error, ValueError) as error:
            yield self._gap(node, f"what it sent is damaged: {error}")

    def _all_refused(self, why: str) -> None:
        for node in self.open:
            if node not in self._reasons:
                self._refused(node, _Reason(why))

    def _refused(self, node: str, reason: _Reason) -> None:
        self._reasons[node] = reason
        self._waiting.append(node)

    def _settle(self, node: str) -> None:
        self.open.pop(node, None)

    # ------------------------------------------------------------ what the dashboard gives

    def _fetch(self) -> None:
        """Ask the dashboard for the files of nodes that could not be asked, a few at a time."""
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
                f"{reason.why}; its logs came through the dashboard: the ends of "
                f"{len(files.fetched.pieces)} files, {files.fetched.left} are left out"
            )
            yield self._gap(files.node, why, reason.hint, optional=not files.fetched.left)
        else:
            why = f"{reason.why}; nor did the dashboard give its logs: {files.fetched.problem}"
            yield self._gap(files.node, why, reason.hint)

    def _gap(self, node: str, why: str, hint: str = _COPY, *, optional: bool = False) -> Gap:
        ip = f" ({self._ips[node]})" if self._ips.get(node) else ""
        return Gap(f"node {node[:12]}{ip}", why, hint, optional)


class _Reason(NamedTuple):
    """Why a node could not be asked, and what to do."""

    why: str
    hint: str = _COPY


def _advice(told: Mapping[str, Any]) -> str:
    """What to do about a node that could not read its logs."""
    if told.get("missing"):
        return paste.shell(
            "Install it there: {python:path} -m pip install raydoctor=={version:version}. "
            "Or copy its logs, and run: raydoctor diagnose PATH",
            python=str(told.get("python") or "python"),
            version=__version__,
        )
    return paste.text("There: {hint}", hint=str(told["hint"])) if told.get("hint") else _COPY


def _unpacked(data: bytes) -> bytes:
    """A reading's rows. Raises ValueError where they are more than any node of ours sends."""
    stream = zlib.decompressobj()
    rows = stream.decompress(data, _MOST_BYTES)
    if not stream.eof:
        raise ValueError("cut, or far too large")
    return rows
