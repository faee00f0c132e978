"""Whether this machine's clock is synchronised, and how far the nodes' clocks differ: table `clocks`.

The kernel reports the first (`adjtimex(2)`, Linux), the dashboard's summary of nodes the second: each node's
agent sends its time every few seconds (`dashboard/modules/reporter/reporter_agent.py`, `now`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.gcs import dashboard
from raydoctor.observe.processes import proc

_STALE_S = 30.0
"""An agent's report that looks older than this may come from a clock that is behind."""
_STA_UNSYNC = 0x0040
_ANSWER_S = 2.0


def tables(cluster: Cluster) -> Iterator[Piece | Gap]:
    """The table `clocks`: a row for the kernel, and one for each node in the dashboard's summary."""
    synchronised, error = kernel()
    rows: list[dict[str, Any]] = [
        {"kind": "kernel", "synchronised": synchronised, "largest_error_s": error}
    ]
    for ip, ahead in offsets(cluster.dashboard_address, cluster.access(True), _ANSWER_S):
        rows.append({"kind": "node", "ip": ip, "ahead_s": ahead})
    yield table("clocks", rows, source="kernel")


def kernel() -> tuple[bool | None, float]:
    """Whether the clock is synchronised (None: unknown), and its largest error in seconds; read-only."""
    if not proc.LINUX:
        return None, 0.0
    import ctypes

    class Timex(ctypes.Structure):
        """The first fields of `struct timex`, and space for the rest."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("frequency", ctypes.c_long),
            ("largest_error", ctypes.c_long),
            ("estimated_error", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_char * 256),
        )

    timex = Timex()
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None, 0.0
    if state < 0:
        return None, 0.0
    return not timex.status & _STA_UNSYNC, timex.largest_error / 1e6


def offsets(address: str, access: Access, timeout: float) -> Iterator[tuple[str, float]]:
    """Each node's address, and seconds by which its clock is certainly ahead of ours (behind: negative).

    The token is sent only to a dashboard that requires one.
    """
    if not address:
        return
    began, deadline = time.time(), time.monotonic() + timeout
    answer = dashboard.get(address, "/nodes?view=summary", timeout, access.without_token())
    if answer.status in (401, 403) and access.token:
        left = max(0.05, deadline - time.monotonic())
        answer = dashboard.get(address, "/nodes?view=summary", left, access)
    ended = time.time()
    for node in _nodes(answer.body):
        now, raylet = node.get("now"), node.get("raylet") or {}
        if isinstance(now, (int, float)) and raylet.get("state", "ALIVE") == "ALIVE":
            ahead, behind = now - ended, began - now
            sure = ahead if ahead > 0 else -behind if behind > _STALE_S else 0.0
            yield str(node.get("ip") or node.get("hostname") or "?"), round(sure, 3)


def _nodes(body: bytes) -> list[dict[str, Any]]:
    try:
        summary = json.loads(body)["data"]["summary"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [each for each in summary if isinstance(each, dict)] if isinstance(summary, list) else []
