"""Runs a function on the requested nodes, by one small Ray task per node. A program; it runs as a child.

It is a separate driver, so that a hang or crash of Ray does not affect raydoctor: the parent ends this
process at its time limit, and `signal.alarm` does if the parent is gone. The tasks need no CPU, memory or
object store, so they also run on a fully used node. They are pinned and not retried. Afterwards one finished
job and their (almost empty) log files remain.

Standard input: one JSON object:

    {"address", "access", "version",       how to connect, and the required version of raydoctor
     "task": "raydoctor: …",               the name of the tasks
     "function": "MODULE:FUNCTION",        called there with the packed request and the size of its reply
     "nodes": […], "ask": …, "own": {…},   the request: the same for all, or one for each node (id)
     "reach", "each", "seconds",           for a node's first task (0: none), for its reply, for everything
     "at_once"}

Standard output: frames, each a JSON line followed by its `bytes`:

    {"nodes": [{"id": "…", "ip": "10.0.0.7", "alive": true}, …]}
    {"node": "…", "bytes": 21034, "events": 812, …}    then 21,034 bytes: what the function returned
    {"node": "…", "problem": "…"}
    {"problem": "…"}                                   no node could be queried

It imports no other module of raydoctor: the function that it sends to the nodes imports raydoctor there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import zlib
from collections import deque
from contextlib import suppress
from functools import cache
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from raydoctor.observe.collector.programs.peers import Access, access_of, check, owner_of
else:  # a program finds only modules in its own folder
    _PEERS = os.path.join(
        os.path.dirname(os.path.realpath(__file__)), "..", "..", "collector", "programs"
    )
    sys.path.insert(0, _PEERS)
    from peers import Access, access_of, check, owner_of

    sys.path.remove(_PEERS)  # Ray passes the path to every worker

NAMESPACE = "_raydoctor"
CHUNKS, CHUNK_BYTES = 24, 90_000
"""Return values of each task: one larger than 100 kB (`max_direct_call_object_size`) would go through the
object store; together they may have 10 MB (`task_rpc_inlined_bytes_limit`)."""
_GRACE_S = 4
"""Seconds to disconnect from the cluster."""


def call_there(
    request: bytes, version: str, function: str, chunks: int, chunk_bytes: int
) -> tuple[bytes, ...]:
    """The task: pickled by value, so that it can report a missing raydoctor. Without a request, only
    check."""
    import importlib
    import json
    import sys

    try:
        found = importlib.import_module("raydoctor").__version__
        if found != version:
            raise ImportError(f"raydoctor there is {found}, here {version}")
        module, _, name = function.partition(":")
        respond = getattr(importlib.import_module(module), name)
        reply: tuple[bytes, ...] = (b"{}\n", *[b""] * (chunks - 1))
        if request:
            reply = respond(request, chunks, chunk_bytes)
    except Exception as error:
        missing = isinstance(error, ImportError)
        about = {
            "problem": f"{type(error).__name__}: {error}"[:500],
            "missing": missing,
            "python": sys.executable,
        }
        return (json.dumps(about).encode() + b"\n", *[b""] * (chunks - 1))
    return reply


class _Out:
    """The output for frames; Ray's own standard output is redirected to standard error."""

    def __init__(self) -> None:
        self._stream: IO[bytes] = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def put(self, head: dict[str, Any], data: bytes = b"") -> None:
        """Send a frame."""
        frame = {**head, "bytes": len(data)} if data else head
        self._stream.write(json.dumps(frame).encode() + b"\n" + data)
        self._stream.flush()


class _Asked(NamedTuple):
    """A node with a running task."""

    node: str
    returns: list[Any]
    deadline: float
    is_reached: bool
    """Whether this is the task with the request, not the first one that checks the node."""


def main() -> int:
    """Read the request, run the tasks, print the replies."""
    request = json.load(sys.stdin.buffer)
    signal.alarm(int(request["seconds"]) + _GRACE_S)
    # Ray would add this folder to the path of every worker, where its modules shadow others.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != here]
    access = access_of(request["access"])
    _authenticate(access.token)
    out = _Out()
    deadline = time.monotonic() + float(request["seconds"])
    try:
        _connect(str(request["address"]), access, str(request["version"]))
        _ask_all(out, _report_nodes(out, request["nodes"]), request, deadline)
    except Exception as error:
        out.put({"problem": _brief(error)})
        return 1
    finally:
        _disconnect()
    return 0


def _brief(error: Exception) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:300]}" if message else type(error).__name__


def _authenticate(token: str) -> None:
    """Ray reads these when it is imported; `/proc/PID/environ` does not contain them."""
    if token:
        os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token})


def _connect(address: str, access: Access, version: str) -> None:
    """Connect, after a check of the listener, as Ray opens its own connections. Raises
    RefusedListenerError."""
    import logging

    check(address, access)
    if not _is_same_listener(address):
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when Ray is imported

    import ray
    from ray.job_config import JobConfig

    ray.init(
        address=address,
        namespace=NAMESPACE,
        job_config=JobConfig(metadata={"raydoctor": version}),
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.CRITICAL,
    )


def _is_same_listener(address: str) -> bool:
    """Whether Ray may replace a loopback address by this machine's own, as `ray.init` does (2.60,
    `services.resolve_ip_for_localhost`): a GCS bound to loopback is not there, but another listener may be.
    """
    host, _, port = address.rpartition(":")
    own = _own_ip() if host in ("127.0.0.1", "localhost", "::1", "[::1]") else ""
    return not own or owner_of(f"{own}:{port}") == owner_of(address)


def _own_ip() -> str:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("8.8.8.8", 53))  # chooses a route and sends nothing
        return str(probe.getsockname()[0])
    return ""


def _disconnect() -> None:
    """End the job: its workers keep running as long as its driver does."""
    if "ray" in sys.modules:
        import ray

        with suppress(Exception):
            ray.shutdown()


def _report_nodes(out: _Out, wanted: list[str]) -> list[str]:
    """Report which nodes exist; returns those that are alive."""
    import ray

    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [
        {"id": n["NodeID"], "ip": n.get("NodeManagerAddress", ""), "alive": bool(n["Alive"])}
        for n in known
        if n["NodeID"] in wanted
    ]
    out.put({"nodes": nodes})
    return [str(n["id"]) for n in nodes if n["alive"]]


def _ask_all(out: _Out, nodes: list[str], request: dict[str, Any], deadline: float) -> None:
    """Query some nodes at a time, until all have replied or timed out."""
    import ray

    tasks = _Tasks(request, deadline)
    waiting, asked = deque(nodes), dict[Any, _Asked]()

    def begin(node: str, *, is_reached: bool) -> None:
        one = tasks.begin(node, is_reached)
        asked[one.returns[0]] = one

    while (waiting or asked) and time.monotonic() < deadline:
        while waiting and len(asked) < int(request["at_once"]):
            begin(waiting.popleft(), is_reached=not request.get("reach"))
        left = max(0.0, min(one.deadline for one in asked.values()) - time.monotonic())
        ready, _ = ray.wait(list(asked), num_returns=1, timeout=left, fetch_local=False)
        for first in ready:
            one = asked.pop(first)
            if _hand_over(out, one):
                begin(one.node, is_reached=True)
        for first in [f for f, one in asked.items() if one.deadline <= time.monotonic()]:
            _give_up(out, asked.pop(first), request)
    for one in asked.values():
        _give_up(out, one, request)
    for node in waiting:
        out.put({"node": node, "problem": "there was no time left to query it"})


class _Tasks:
    def __init__(self, request: dict[str, Any], deadline: float) -> None:
        self._request = request
        self._own: dict[str, Any] = request.get("own") or {}
        self._common = _packed(request.get("ask"))
        self._deadline = deadline

    def begin(self, node: str, is_reached: bool) -> _Asked:
        """Start a node's task, or first the check whether it runs tasks: the same worker then runs both."""
        packed = _packed(self._own[node]) if node in self._own else self._common
        how = (self._request["version"], self._request["function"], CHUNKS, CHUNK_BYTES)
        task = _task(node, str(self._request["task"]))
        returns = task.remote(packed if is_reached else b"", *how)
        seconds = float(self._request["each" if is_reached else "reach"])
        until = min(time.monotonic() + seconds, self._deadline)
        return _Asked(node, returns, until, is_reached)


def _packed(ask: Any) -> bytes:
    return zlib.compress(json.dumps(ask).encode())


def _task(node: str, name: str) -> Any:
    """The task, pinned to a node and hidden from lists of tasks if Ray supports it (2.40 does, 2.9 does
    not)."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options = {
        "num_cpus": 0,
        "max_retries": 0,
        "num_returns": CHUNKS,
        "name": name,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
    }
    remote: Any = _remote()
    try:
        return remote.options(**options, enable_task_events=False)
    except (TypeError, ValueError):
        return remote.options(**options)


@cache
def _remote() -> Any:
    import ray

    return ray.remote(call_there)


def _hand_over(out: _Out, one: _Asked) -> bool:
    """Report a finished task; returns whether it was the first check and succeeded."""
    import ray

    try:
        whole = b"".join(ray.get(one.returns, timeout=1))
    except Exception as error:
        out.put({"node": one.node, "problem": _brief(error)})
        return False
    about, _, data = whole.partition(b"\n")
    head = json.loads(about)
    if not one.is_reached and "problem" not in head:
        return True
    out.put({**head, "node": one.node}, data)
    return False


def _give_up(out: _Out, one: _Asked, request: dict[str, Any]) -> None:
    import ray

    with suppress(Exception):
        ray.cancel(one.returns[0], force=True)
    out.put({"node": one.node, "problem": _too_late(request, one.is_reached)})


def _too_late(request: dict[str, Any], is_reached: bool) -> str:
    """The problem of a node that timed out."""
    reach = request.get("reach")
    if reach and is_reached:
        return f"it runs tasks, but did not reply within {float(request['each']):g} s"
    seconds = float(reach or request["each"])
    return f"its raylet ran no task within {seconds:g} s: it is frozen or overloaded"


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Ray's threads may still run; no cleanup of theirs is needed.
    os._exit(code)
