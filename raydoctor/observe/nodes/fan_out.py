"""Asking nodes by Ray's own means: the child process that does it (`programs/fan_out.py`), and its frames.

The child is a driver: Ray's hangs and crashes must not be ours. It takes nothing from the job, shell or hook
that this may run in; it ends within its time, and what it started with it.

A driver runs code that the cluster gives it: it unpickles results and imports hooks that the GCS names. So it
runs as the user to whom the cluster belongs: as root, raydoctor starts it as that user; another user's
cluster gets none. What it prints is that user's text: JSON and bytes of bounded size, checked here.
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
"""Nodes that have a task of ours at one time: what bounds memory here, and the load on the cluster."""
_LEAVING_S = 3.0
"""Seconds for the child to leave the cluster in good order; it takes 0.3."""
_LINE = 1 << 20
_MOST_BYTES = 4 << 20
"""Of one frame: a node's answer has 2.2 MB at most (`CHUNKS` of `CHUNK_BYTES` in `programs/fan_out.py`)."""
_PROGRAM = Path(__file__).parent / "programs" / "fan_out.py"
_NOT_FOR_DRIVERS = (
    # What a job, a hook or another cluster's user put there.
    *("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV_HOOK"),
    *("RAY_OVERRIDE_JOB_RUNTIME_ENV", "RAY_RUNTIME_ENV", "RAY_LOG_TO_STDERR", "RAY_PROFILING"),
    # What a worker has: nobody is to take the child for something that the task in it started.
    *("RAY_JOB_ID", "RAY_RAYLET_PID"),
    # The child is told through a pipe: others of this user could read its environment.
    *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"),
)


_FOR_ANY_USER = ("RAY_USE_TLS", "RAY_TLS_CA_CERT", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY")
"""What a driver of another user is given of this environment: how to connect."""


class Bounds(NamedTuple):
    """How much the child may take."""

    connecting: float
    """Seconds until the cluster has accepted it."""
    whole: float
    """Seconds for everything."""
    frames: int


class Frame(NamedTuple):
    """What the child said."""

    told: Mapping[str, Any]
    data: bytes = b""


@contextmanager
def asking(
    cluster: Cluster, request: Mapping[str, Any], connecting: float, put: Callable[[Frame], None]
) -> Iterator[int | None]:
    """The child at work (its pid), its frames given to `put`; at the end it and what it started are gone.

    `request` as the program has it, without address and access. The cluster must have accepted the driver
    within `connecting` seconds. The last frame has a `problem`: why there are no more.
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
        # A driver that is killed looks like one that crashed, to everybody who reads the logs later.
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_LEAVING_S)
    finally:
        _end(child)


def _access(cluster: Cluster) -> dict[str, Any]:
    return {"address": cluster.gcs_address, "access": cluster.access()}


def _environment(user: User | None = None) -> dict[str, str]:
    """Of the child."""
    if user is None:
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_DRIVERS}
    else:
        kept = as_user.environment(user, _FOR_ANY_USER)
    # Below `uv run`, Ray (2.49 to 2.60, not 2.40) would pack the working folder and send it to every node.
    return {**kept, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


def _start(cluster: Cluster) -> subprocess.Popen[bytes] | str:
    """The child, or why it is none."""
    if not cluster.gcs_address:
        return "the address of its GCS is not known"
    if cluster.token_mode and cluster.token is None:
        return "the cluster demands a token, and this user has none"
    user = _user(cluster)
    if isinstance(user, str):
        return user
    own: dict[str, Any] = {"env": _environment(), "cwd": "/", "start_new_session": True}
    try:
        return subprocess.Popen(
            # As another user, with no package of that user's in the place of ours.
            [sys.executable, *(() if user is None else ("-Es",)), str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # cwd="/": Ray puts a driver's folder on the path of its workers.
            **(own if user is None else as_user.options(user, _environment(user))),
        )
    except OSError as error:
        whose = "" if user is None else f" as {user.name}, to whom the cluster belongs"
        return f"{sys.executable} cannot be run{whose}: {error.strerror}"


def _user(cluster: Cluster) -> User | str | None:
    """Whom the child runs as: None is this user; text is why there may be no child."""
    uid, me = cluster.owner, os.geteuid()
    if uid is None:  # it is elsewhere, or in a container whose processes are not seen
        if me != 0 or _is_driver():
            return None
        uid = peers.owner_of(cluster.gcs_address)
    if uid is None:
        return "its user is not known, and root runs no code of unknown users"
    if uid in (me, 0):
        return None
    if me != 0:
        return f"it belongs to {proc.user(uid)}, whose code would run as you; run raydoctor as that user"
    return as_user.find(uid)


def _is_driver() -> bool:
    """Whether Ray is connected in this very process: then a cluster's code runs here already."""
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and what it started. Once it has ended by itself, its number may be another's."""
    if child.poll() is None:
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1)


def _listen(child: subprocess.Popen[bytes], bounds: Bounds, put: Callable[[Frame], None]) -> None:
    """In a thread: the child's frames, and at the end why there are no more."""
    assert child.stdout is not None
    alarms = [threading.Timer(s, _end, args=(child,)) for s in (bounds.connecting, bounds.whole)]
    for alarm in alarms:
        alarm.daemon = True
        alarm.start()
    why = f"the cluster accepted no driver within {bounds.connecting:g} s"
    with suppress(OSError, ValueError, RecursionError), child.stdout as stream:
        for frame in _frames(stream, bounds.frames):
            alarms[0].cancel()
            why = "the process that asks the nodes ended"
            put(frame)
    for alarm in alarms:
        alarm.cancel()
    put(Frame({"problem": why}))


def _frames(stream: IO[bytes], most: int) -> Iterator[Frame]:
    """Frames until one is none. Raises ValueError, RecursionError for what is no JSON."""
    for _ in range(most):
        line = stream.readline(_LINE)
        told = json.loads(line) if line else None
        if not isinstance(told, dict) or not _is_frame(told):
            return
        yield Frame(told, stream.read(told.get("bytes", 0)))


def _is_frame(told: Mapping[str, Any]) -> bool:
    """Whether it is what `programs/fan_out.py` prints: another user may print anything."""
    size, nodes = told.get("bytes", 0), told.get("nodes", [])
    return (
        type(size) is int
        and 0 <= size <= _MOST_BYTES
        and isinstance(nodes, list)
        and all(isinstance(node, dict) and {"id", "ip", "alive"} <= set(node) for node in nodes)
    )
