"""Tables from a cluster's dashboard over plain HTTP; a slow endpoint does not delay the others.

The order detects first what would hang (Ray 2.60.0): whether the port accepts connections, then
`/api/authentication_mode` and `/api/gcs_healthz` (both need no token and take milliseconds), and the state
API only if the GCS is alive: `/api/v0/*` hangs for more than 15 s if the GCS is dead, and `objects` for 14 s
if one raylet is stopped. Each endpoint has its own thread and its own timeout.

The state API reports truncation only in `total`, not in `warnings`.
"""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import urlencode

from raydoctor.observe.collector.parallel import parallel
from raydoctor.observe.collector.programs.peers import Access, RefusedListenerError, connect
from raydoctor.observe.gcs.programs.gcs_wire import import_without
from raydoctor.observe.gcs.replies import Probe, Reply

_CONNECT = 0.5
_OPEN = 1.0
_HEALTH = 1.5
"""A dashboard reports a dead GCS after one second."""
_KNOCK = 3.0
"""For all requests of `knock`."""
_OWN = Access()
_LIMIT = 10_000
"""Largest `limit` that the state API accepts."""
_LEAST = 2
"""Smallest `timeout` in seconds that works: Ray <= 2.40 rounds one second down to zero and fails."""
_FAILED = 200
"""Failed tasks that are kept: the most recent ones."""
_BYTES = 256 << 20
_PATHS = {
    "nodes": "/api/v0/nodes",
    "actors": "/api/v0/actors",
    "workers": "/api/v0/workers",
    "jobs": "/api/v0/jobs",
    "placement-groups": "/api/v0/placement_groups",
    "objects": "/api/v0/objects",
    "tasks": "/api/v0/tasks",
}
TABLES = tuple(_PATHS)
_FILTERS = {
    "tasks": {"filter_keys": "state", "filter_predicates": "!=", "filter_values": "FINISHED"}
}
_LEFT_OUT = frozenset(
    {"serialized_runtime_env", "runtime_env", "runtime_env_info", "profiling_data", "task_log_info"}
)
"""Fields that are large or private."""


class DashboardReply(NamedTuple):
    """The reply of an address to a request."""

    outcome: str
    """As `Probe.outcome`; every status below 400 is `ok`."""
    status: int = 0
    body: bytes = b""
    detail: str = ""


class Door(NamedTuple):
    """What can be requested from a dashboard."""

    probes: tuple[Probe, ...]
    token_mode: bool | None = None
    """Whether the cluster requires a token; None if the dashboard did not report it."""
    is_open: bool = False
    """Whether the state API can answer."""
    refusal: str = ""
    """Why the token is rejected: `missing` or `wrong`; empty if it is not."""


def get(address: str, path: str, timeout: float, access: Access = _OWN) -> DashboardReply:
    """GET within `timeout` seconds in total, without proxies and redirects; never raises for the network.

    The token goes only to a listener that `access` allows.
    """
    return request("GET", address, path, timeout, access)


def request(method: str, address: str, path: str, timeout: float, access: Access) -> DashboardReply:
    """Like `get`, with another method and without a request body."""
    import_without("http.client", "ssl")  # 4 MB; the dashboard has no TLS
    import http.client

    deadline = time.monotonic() + timeout
    try:
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port))
        with closing(connection):
            connection.sock = sock = connect(address, access, min(_CONNECT, timeout))
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            connection.request(method, path, headers=_headers(access.token))
            with http.client.HTTPResponse(_Timed(sock, deadline), method=method) as reply:  # type: ignore[arg-type]
                reply.begin()
                body = _body(reply)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return _failure(error, timeout)
    if reply.status in (401, 403):
        return DashboardReply("unauthenticated", reply.status, body)
    if reply.status >= 400:
        words = body[:200].decode("utf-8", "replace").removeprefix(f"{reply.status}: ")
        return DashboardReply("error", reply.status, body, f"HTTP {reply.status}: {words}")
    return DashboardReply("ok", reply.status, body)


def _failure(error: Exception, timeout: float) -> DashboardReply:
    if isinstance(error, TimeoutError):
        return DashboardReply("timeout", detail=f"no reply within {timeout:g} s")
    if isinstance(error, ConnectionRefusedError):
        return DashboardReply("refused")
    if isinstance(error, RefusedListenerError):
        return DashboardReply("error", detail=str(error))
    return DashboardReply("error", detail=f"{type(error).__name__}: {error}"[:300])


def _headers(token: str) -> dict[str, str]:
    # Ray <= 2.50 replies HTTP 500 to a request without a user agent (`is_browser_request`).
    named = {"User-Agent": "raydoctor"}
    return {**named, "Authorization": f"Bearer {token}"} if token else named


class _Timed(io.RawIOBase):
    """Reads from a socket until a deadline, then raises TimeoutError, even if bytes still arrive.

    `http.client` only has a timeout for each read, not for the whole response.
    """

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        """The buffered stream that `HTTPResponse` reads."""
        return io.BufferedReader(self, 1 << 16)

    def readable(self) -> bool:
        """True: `io.BufferedReader` requires it."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read once. Raises TimeoutError after the deadline."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock.recv_into(buffer)


def _body(reply: Any) -> bytes:
    parts, size = [], 0
    while part := reply.read1(1 << 20):
        parts.append(part)
        size += len(part)
        if size > _BYTES:
            raise ValueError(f"more than {_BYTES >> 20} MiB")
    return b"".join(parts)


def knock(address: str, access: Access, timeout: float = _KNOCK) -> Door:
    """Find out what can be requested: in at most 3 s, and in 5 ms if the dashboard is healthy."""
    deadline = time.monotonic() + min(timeout, _KNOCK)
    open_to_all = access.without_token()

    def ask(path: str, most: float, access: Access = open_to_all) -> DashboardReply:
        return get(address, path, max(0.01, min(most, deadline - time.monotonic())), access)

    began = time.monotonic()
    mode = ask("/api/authentication_mode", _OPEN)
    seconds = round(time.monotonic() - began, 4)
    if mode.outcome != "ok" and mode.status != 404:  # older versions have no such page
        return Door((Probe("dashboard", address, mode.outcome, seconds, mode.detail),))
    dashboard = Probe("dashboard", address, "ok", seconds)
    demands = b'"token"' in mode.body if mode.status != 404 else False
    auth = _auth(address, access, ask) if demands else _not_needed(address)
    if auth.refusal:
        return Door((dashboard, auth), demands, refusal=auth.refusal)
    health = ask("/api/gcs_healthz", _HEALTH)
    if health.outcome != "ok" and health.status != 404:
        detail = f"its GCS does not answer: {health.detail or health.outcome}"
        return Door((dashboard._replace(outcome="error", detail=detail), auth), demands)
    return Door((dashboard, auth), demands, is_open=True)


def _not_needed(address: str) -> Probe:
    return Probe("auth", address, "ok", 0.0, "token: not needed")


def _auth(
    address: str, access: Access, ask: Callable[[str, float, Access], DashboardReply]
) -> Probe:
    """Whether the dashboard accepts the token, from the cheapest endpoint that requires it."""
    if not access.token:
        return Probe("auth", address, "unauthenticated", 0.0, "token: missing", "missing")
    began = time.monotonic()
    answer = ask("/api/version", _OPEN, access)
    seconds = round(time.monotonic() - began, 4)
    if answer.outcome == "unauthenticated":
        return Probe("auth", address, "unauthenticated", seconds, "token: wrong", "wrong")
    return Probe("auth", address, answer.outcome, seconds, answer.detail or "token: ok")


def tables(address: str, access: Access, names: Sequence[str], timeout: float) -> Iterator[Reply]:
    """Each table as it arrives, or why it is missing; returns after at most `timeout` seconds."""
    asked = {name: lambda name=name: _table(address, access, name, timeout) for name in names}
    missing = dict.fromkeys(names)
    for name, reply in parallel(asked, timeout + 0.1):
        del missing[name]
        yield reply if isinstance(reply, Reply) else Reply(name, [], why=f"failed: {reply}")
    for name in missing:
        yield Reply(name, [], why=f"the dashboard did not answer within {timeout:g} s")


def _table(address: str, access: Access, name: str, timeout: float) -> Reply:
    query = urlencode(
        {
            "detail": 1,
            "limit": _LIMIT,
            "timeout": max(_LEAST, int(timeout)),
            **_FILTERS.get(name, {}),
        }
    )
    answer = get(address, f"{_PATHS[name]}?{query}", timeout, access)
    if answer.outcome != "ok":
        return Reply(name, [], why=f"the dashboard: {answer.detail or answer.outcome}")
    try:
        result = json.loads(answer.body)["data"]["result"]
        rows = [_without_big(row) for row in result["result"]]
        total, reached = int(result["total"]), int(result["num_after_truncation"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Reply(name, [], why=f"the dashboard's reply has an unknown form: {error!r}"[:300])
    if result.get("partial_failure_warning"):
        return Reply(name, rows, total, f"incomplete: {result['partial_failure_warning']}"[:300])
    why = (
        f"the dashboard returned {reached:,} of {total:,}" if _is_cut(name, reached, total) else ""
    )
    total = total if why else len(rows)
    kept = _without_old_failures(rows) if name == "tasks" else rows
    return Reply(name, kept, total, why, time.time(), "dashboard")


def _is_cut(name: str, reached: int, total: int) -> bool:
    """Whether rows are missing because of the limit. For tasks, `total` also counts dropped events."""
    return reached >= _LIMIT if name == "tasks" else total > reached


def _without_old_failures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    failed = [row for row in rows if row.get("state") == "FAILED"]
    failed.sort(key=lambda row: row.get("end_time_ms") or 0)
    return [row for row in rows if row.get("state") != "FAILED"] + failed[-_FAILED:]


def _without_big(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _LEFT_OUT}
