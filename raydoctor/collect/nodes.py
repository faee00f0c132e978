"""What the logs of other nodes tell: read there, by a task on each, or fetched through the dashboard.

A child process (`programs/fan_out.py`) asks all nodes by Ray's own means; each answers with events, not with
logs. A node that cannot (its raylet is frozen, raydoctor is not installed there, the cluster refuses) gives
the ends of its most telling log files through the dashboard's log API. What gives neither is a gap that
says why and what to do. Everything ends within `limits(timeout, nodes).whole` seconds.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from raydoctor import __version__
from raydoctor.collect import agents_logs
from raydoctor.collect.cluster import Cluster, Daemon
from raydoctor.collect.table import FOLDER, Piece, table
from raydoctor.model import Gap
from raydoctor.rule import Signal

FILE = f"{FOLDER}/live-events.jsonl"
AT_ONCE = 64
"""Nodes that have a task of ours at one time: what bounds memory here, and the load on the cluster."""
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
_LEAVING_S = 3.0
"""Seconds for the child to leave the cluster in good order; it takes 0.3."""
_LAST_S = 0.3
"""Seconds before the end when fetching stops, so that what has come is kept."""
_LINE = 1 << 20
_PROGRAM = Path(__file__).parent / "programs" / "fan_out.py"
_NOT_FOR_DRIVERS = (
    # What a job, a hook or another cluster's user put there.
    *("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV_HOOK"),
    *("RAY_OVERRIDE_JOB_RUNTIME_ENV", "RAY_RUNTIME_ENV", "RAY_LOG_TO_STDERR", "RAY_PROFILING"),
    # The child is told through a pipe: others of this user could read its environment.
    *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"),
)
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
    with _asking(cluster, request, bounds, round_.news) as driver:
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
        "address": cluster.gcs_address,
        "token": cluster.token.value if cluster.token and cluster.token_mode is not False else "",
        "version": __version__,
        "nodes": list(nodes),
        "each": bounds.each,
        "seconds": bounds.asking,
        "at_once": AT_ONCE,
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


def place_of(session_dir: str) -> str:
    """Identifies a session's logs across the machines and containers that may share them, or empty."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    try:
        status = os.stat(os.path.join(session_dir, "logs"))
    except OSError:
        return ""
    return f"{boot}:{status.st_dev}:{status.st_ino}"


def _environment() -> dict[str, str]:
    """Of the child: a driver's, that takes nothing from the job or shell which this may run in."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_DRIVERS}
    # Below `uv run`, Ray (2.49 to 2.60, not 2.40) would pack the working folder and send it to every node.
    return {**kept, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


# ---------------------------------------------------------------- the child


class _Frame(NamedTuple):
    """What the child said."""

    told: Mapping[str, Any]
    data: bytes = b""


class _Files(NamedTuple):
    """What the dashboard gave."""

    node: str
    fetched: agents_logs.Fetched


_News: TypeAlias = "queue.SimpleQueue[_Frame | _Files]"


@contextmanager
def _asking(
    cluster: Cluster, request: dict[str, Any], bounds: Limits, news: _News
) -> Iterator[int | None]:
    """The child at work (its pid), its frames put into `news`; at the end it and what it started are gone."""
    child = _start(cluster)
    if isinstance(child, str):
        news.put(_Frame({"problem": child}))
        yield None
        return
    threading.Thread(target=_listen, args=(child, bounds, news), daemon=True).start()
    try:
        with suppress(OSError):
            assert child.stdin is not None
            child.stdin.write(json.dumps(request).encode())
            child.stdin.close()
        yield child.pid
        # A driver that is killed looks like one that crashed, to everybody who reads the logs later.
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_LEAVING_S)
    finally:
        _end(child)


def _start(cluster: Cluster) -> subprocess.Popen[bytes] | str:
    """The child, or why it is none."""
    if not cluster.gcs_address:
        return "the address of its GCS is not known"
    if cluster.token_mode and cluster.token is None:
        return "the cluster demands a token, and this user has none"
    try:
        return subprocess.Popen(
            [sys.executable, str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            cwd="/",  # Ray puts a driver's folder on the path of its workers
            start_new_session=True,
        )
    except OSError as error:
        return f"Python cannot be started: {error.strerror}"


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and what it started. Once it has ended by itself, its number may be another's."""
    if child.poll() is None:
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1)


def _listen(child: subprocess.Popen[bytes], bounds: Limits, news: _News) -> None:
    """In a thread: the child's frames, and at the end why there are no more."""
    assert child.stdout is not None
    connecting = threading.Timer(bounds.connecting, _end, args=(child,))
    asking = threading.Timer(bounds.asking + _LEAVING_S, _end, args=(child,))
    for alarm in (connecting, asking):
        alarm.daemon = True
        alarm.start()
    why = f"the cluster accepted no driver within {bounds.connecting:g} s"
    with suppress(OSError, ValueError), child.stdout as stream:
        while line := stream.readline(_LINE):
            connecting.cancel()
            why = "the process that asks the nodes ended"
            told = json.loads(line)
            news.put(_Frame(told, stream.read(int(told.get("bytes", 0)))))
    for alarm in (connecting, asking):
        alarm.cancel()
    news.put(_Frame({"problem": why}))


# ---------------------------------------------------------------- what comes back


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

    def next(self) -> _Frame | _Files | None:
        """What comes next; None where the time is up."""
        with suppress(queue.Empty):
            return self.news.get(timeout=max(0.0, self._deadline - time.monotonic()))
        return None

    def take(self, news: _Frame | _Files) -> Iterator[Piece | Gap]:
        """What a frame or a node's files come to."""
        if isinstance(news, _Files):
            self._fetching -= 1
            yield from self._files(news)
        elif "nodes" in news.told:
            yield from self._known(news.told["nodes"])
        elif "node" in news.told:
            yield from self._answered(news)
        else:
            self._all_refused(str(news.told.get("problem", "")))
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

    def _answered(self, frame: _Frame) -> Iterator[Piece | Gap]:
        told, node = frame.told, str(frame.told["node"])
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
                self._cluster.token,
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
        install = f"{told.get('python') or 'python'} -m pip install raydoctor=={__version__}"
        return f"Install it there: {install}. Or copy its logs, and run: raydoctor diagnose PATH"
    return f"There: {told['hint']}" if told.get("hint") else _COPY


def _unpacked(data: bytes) -> bytes:
    """A reading's rows. Raises ValueError where they are more than any node of ours sends."""
    stream = zlib.decompressobj()
    rows = stream.decompress(data, _MOST_BYTES)
    if not stream.eof:
        raise ValueError("cut, or far too large")
    return rows
