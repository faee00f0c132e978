"""Asking nodes by Ray's own means: the child process that does it (`programs/fan_out.py`), and its frames.

The child is a driver: Ray's hangs and crashes must not be ours. It takes nothing from the job, shell or hook
that this may run in; it ends within its time, and what it started with it.
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
from typing import Any, NamedTuple

from raydoctor.collect.cluster import Cluster

AT_ONCE = 64
"""Nodes that have a task of ours at one time: what bounds memory here, and the load on the cluster."""
_LEAVING_S = 3.0
"""Seconds for the child to leave the cluster in good order; it takes 0.3."""
_LINE = 1 << 20
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
    bounds = (connecting, float(request["seconds"]) + _LEAVING_S)
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


def _environment() -> dict[str, str]:
    """Of the child."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_DRIVERS}
    # Below `uv run`, Ray (2.49 to 2.60, not 2.40) would pack the working folder and send it to every node.
    return {**kept, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


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


def _listen(
    child: subprocess.Popen[bytes], bounds: tuple[float, float], put: Callable[[Frame], None]
) -> None:
    """In a thread: the child's frames, and at the end why there are no more."""
    assert child.stdout is not None
    alarms = [threading.Timer(seconds, _end, args=(child,)) for seconds in bounds]
    for alarm in alarms:
        alarm.daemon = True
        alarm.start()
    why = f"the cluster accepted no driver within {bounds[0]:g} s"
    with suppress(OSError, ValueError, AttributeError), child.stdout as stream:
        while line := stream.readline(_LINE):
            alarms[0].cancel()
            why = "the process that asks the nodes ended"
            told = json.loads(line)
            put(Frame(told, stream.read(int(told.get("bytes", 0)))))
    for alarm in alarms:
        alarm.cancel()
    put(Frame({"problem": why}))
