"""Runs functions on nodes through Ray: the child process that does it (`programs/fan_out.py`), its frames.

The child is a driver, so that a hang or crash of Ray does not affect raydoctor. It inherits nothing from the
job, shell or hook that raydoctor may run in. It ends within its time limit, together with the processes it
started.

A driver executes code from the cluster: it unpickles results and imports hooks that the GCS names. Therefore
it runs as the owner of the cluster: root starts it as that user, and other users cannot start one. Its output
is controlled by that user: JSON and bytes of limited size, checked here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.programs import peers
from raydoctor.observe.processes import as_user, proc
from raydoctor.observe.processes.as_user import User

AT_ONCE = 64
"""Nodes that run raydoctor's task at a time: limits memory here, and the load on the cluster."""
_LEAVING_S = 3.0
"""Seconds for the child to disconnect from the cluster; it takes 0.3."""
_LINE = 1 << 20
_MOST_BYTES = 4 << 20
"""Of one frame: a node's reply has at most 2.2 MB (`CHUNKS` of `CHUNK_BYTES` in `programs/fan_out.py`)."""
_PROGRAM = Path(__file__).parent / "programs" / "fan_out.py"
_NOT_FOR_DRIVERS = (
    # Set by a job, a hook or for another cluster.
    *("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV_HOOK"),
    *("RAY_OVERRIDE_JOB_RUNTIME_ENV", "RAY_RUNTIME_ENV", "RAY_LOG_TO_STDERR", "RAY_PROFILING"),
    # Set in a worker: the child must not look like a process that the worker's task started.
    *("RAY_JOB_ID", "RAY_RAYLET_PID"),
    # The child receives these through a pipe: other processes of this user could read its environment.
    *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"),
)


_FOR_ANY_USER = ("RAY_USE_TLS", "RAY_TLS_CA_CERT", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY")
"""Variables that a driver of another user inherits: how to connect."""


class Bounds(NamedTuple):
    """Limits of the child."""

    connecting: float
    """Seconds until the cluster has accepted it."""
    whole: float
    """Seconds for everything."""
    frames: int


class Frame(NamedTuple):
    """A message of the child."""

    head: Mapping[str, Any]
    data: bytes = b""


@contextmanager
def asking(
    cluster: Cluster, request: Mapping[str, Any], connecting: float, put: Callable[[Frame], None]
) -> Iterator[int | None]:
    """Run the child (yields its pid) and pass its frames to `put`; on exit it and its processes are ended.

    `request` is that of the program, without address and access. The cluster must accept the driver within
    `connecting` seconds. The last frame has a `problem`: why there are no more.
    """
    child = _start(cluster)
    if isinstance(child, str):
        put(Frame({"problem": child}))
        yield None
        return
    bounds = Bounds(
        connecting, float(request["seconds"]) + _LEAVING_S, 2 * len(request["nodes"]) + 2
    )
    threading.Thread(target=_listen, args=(child, bounds, put), daemon=True).start()
    try:
        with suppress(OSError):
            assert child.stdin is not None
            child.stdin.write(json.dumps({**_access(cluster), **request}).encode())
            child.stdin.close()
        yield child.pid
        # In the logs, a killed driver would look like a crashed one.
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_LEAVING_S)
    finally:
        _end(child)


def _access(cluster: Cluster) -> dict[str, Any]:
    return {"address": cluster.gcs_address, "access": cluster.access()}


def _environment(user: User | None = None) -> dict[str, str]:
    if user is None:
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_DRIVERS}
    else:
        kept = as_user.environment(user, _FOR_ANY_USER)
    # Under `uv run`, Ray (2.49 to 2.60, not 2.40) would pack the working folder and send it to every node.
    return {**kept, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


def _start(cluster: Cluster) -> subprocess.Popen[bytes] | str:
    """The child, or why it could not be started."""
    if not cluster.gcs_address:
        return "the address of its GCS is not known"
    if cluster.token_mode and cluster.token is None:
        return "the cluster requires a token, and this user has none"
    user = _user(cluster)
    if isinstance(user, str):
        return user
    own: dict[str, Any] = {"env": _environment(), "cwd": "/", "start_new_session": True}
    try:
        return subprocess.Popen(
            # As another user, without that user's packages.
            [sys.executable, *(() if user is None else ("-Es",)), str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # cwd="/": Ray puts a driver's folder on the path of its workers.
            **(own if user is None else as_user.options(user, _environment(user))),
        )
    except OSError as error:
        owner = "" if user is None else f" as {user.name}, the owner of the cluster"
        return f"{sys.executable} cannot be run{owner}: {error.strerror}"


def _user(cluster: Cluster) -> User | str | None:
    """The user for the child: None is this user; a text is why no child may be started."""
    uid, me = cluster.owner, os.geteuid()
    if uid is None:  # it runs elsewhere, or in a container with invisible processes
        if me != 0 or _is_driver():
            return None
        uid = peers.owner_of(cluster.gcs_address)
    if uid is None:
        return "its user is unknown, and root runs no code of unknown users"
    if uid in (me, 0):
        return None
    if me != 0:
        return f"it belongs to {proc.user(uid)}, and its code would run as you; run raydoctor as that user"
    return as_user.find(uid)


def _is_driver() -> bool:
    """Whether Ray is connected in this process: then the cluster's code already runs here."""
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and its processes, unless it has exited: then its pid may have been reused."""
    if child.poll() is None:
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1)


def _listen(child: subprocess.Popen[bytes], bounds: Bounds, put: Callable[[Frame], None]) -> None:
    """In a thread: pass on the child's frames, and at the end why there are no more."""
    assert child.stdout is not None
    alarms = [threading.Timer(s, _end, args=(child,)) for s in (bounds.connecting, bounds.whole)]
    for alarm in alarms:
        alarm.daemon = True
        alarm.start()
    why = f"the cluster accepted no driver within {bounds.connecting:g} s"
    with suppress(OSError, ValueError, RecursionError), child.stdout as stream:
        for frame in _frames(stream, bounds.frames):
            alarms[0].cancel()
            why = "the process that queries the nodes exited"
            put(frame)
    for alarm in alarms:
        alarm.cancel()
    put(Frame({"problem": why}))


def _frames(stream: IO[bytes], most: int) -> Iterator[Frame]:
    """Frames until the first malformed one. Raises ValueError, RecursionError for malformed JSON."""
    for _ in range(most):
        line = stream.readline(_LINE)
        head = json.loads(line) if line else None
        if not isinstance(head, dict) or not _is_frame(head):
            return
        yield Frame(head, stream.read(head.get("bytes", 0)))


def _is_frame(head: Mapping[str, Any]) -> bool:
    """Whether it has the form of `programs/fan_out.py`'s frames: another user may print anything."""
    size, nodes = head.get("bytes", 0), head.get("nodes", [])
    return (
        type(size) is int
        and 0 <= size <= _MOST_BYTES
        and isinstance(nodes, list)
        and all(isinstance(node, dict) and {"id", "ip", "alive"} <= set(node) for node in nodes)
    )
