"""Runs a function of raydoctor on other nodes, with JSON as request and reply.

Operations on a process need its own machine (signals, stacks, an interrupt, /proc). A small Ray task performs
them there: it needs no CPU, so it also runs on a fully used node; it is pinned, is not retried, and is hidden
from lists of tasks if Ray supports that. `programs/fan_out.py` is the driver, the task calls
`programs/there.py`. A first task checks that the node runs tasks and has the same raydoctor: a frozen node is
recognized early, before anything is done on it.
"""

from __future__ import annotations

import json
import math
import queue
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from raydoctor.model import paste
from raydoctor.model.version import __version__
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.nodes import fan_out
from raydoctor.observe.nodes.fan_out import Frame

CONNECT_S = 15.0
"""Seconds for a cluster to accept the driver: usually it takes one or two."""
REACH_S = 15.0
"""Seconds for a node to start a worker and run a task: usually it takes one or two."""
_LEAST_REACH_S = 4.0
_MOST_BYTES = 64 << 20
"""Of one reply, unpacked."""
_SLACK_S = 5.0

ReportNodes = Callable[[int, int], None]
"""Called with the number of nodes that are done, and of all."""


class RemoteReply(NamedTuple):
    """A node's reply, or why there is none."""

    node: str
    """Its id."""
    value: Any = None
    """The function's return value."""
    problem: str = ""
    """Why there is no value; empty if there is one."""
    hint: str = ""
    """What to do about the problem, if known."""


def ask(
    cluster: Cluster,
    asks: Mapping[str, Any],
    function: str,
    seconds: float,
    report: ReportNodes = lambda done, total: None,
) -> Iterator[RemoteReply]:
    """Call `function` (`raydoctor.act.zombies.clean:respond`) on nodes (ids), each with its own request.

    Yields one reply for each node, as they arrive. The function has `seconds`; before it, a node has the same
    time (at least 4 s, at most 15 s) to run a first task. An exception of the function becomes a problem.
    Closing the iterator ends the driver, and Ray then ends its tasks.
    """
    if not asks:
        return
    news: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    request = _request(asks, function, seconds)
    deadline = time.monotonic() + request["seconds"] + _SLACK_S
    waiting = dict.fromkeys(asks)
    report(0, len(asks))
    with fan_out.asking(cluster, request, CONNECT_S, news.put):
        while waiting:
            for answer in _answers(_next(news, deadline), waiting):
                del waiting[answer.node]
                report(len(asks) - len(waiting), len(asks))
                yield answer


def _next(news: queue.SimpleQueue[Frame], deadline: float) -> Frame:
    """The driver's next frame; waits at most until the deadline."""
    with suppress(queue.Empty):
        return news.get(timeout=max(0.0, deadline - time.monotonic()))
    return Frame({"problem": "the process that queries the nodes does not answer"})


def _request(asks: Mapping[str, Any], function: str, seconds: float) -> dict[str, Any]:
    reach = min(REACH_S, max(_LEAST_REACH_S, seconds))
    rounds = math.ceil(len(asks) / fan_out.AT_ONCE)
    return {
        "version": __version__,
        "task": f"raydoctor: {function.removeprefix('raydoctor.')}",
        "function": "raydoctor.observe.nodes.programs.there:respond",
        "nodes": list(asks),
        "own": {node: {"function": function, "ask": asked} for node, asked in asks.items()},
        "reach": reach,
        "each": seconds,
        "seconds": CONNECT_S + rounds * (reach + seconds) + len(asks) / 16 + _SLACK_S,
        "at_once": fan_out.AT_ONCE,
    }


def _answers(frame: Frame, waiting: Collection[str]) -> list[RemoteReply]:
    """The replies in a frame of nodes that are waited for."""
    head = frame.head
    if "nodes" in head:
        return _not_there(head["nodes"], waiting)
    if "node" not in head:
        return [RemoteReply(node, problem=str(head.get("problem", ""))) for node in waiting]
    node = str(head["node"])
    if node not in waiting:
        return []
    if "problem" in head:
        return [RemoteReply(node, problem=str(head["problem"]), hint=_hint(head))]
    with suppress(zlib.error, ValueError, RecursionError):
        stream = zlib.decompressobj()
        text = stream.decompress(frame.data, _MOST_BYTES)
        return [RemoteReply(node, json.loads(text))]
    return [RemoteReply(node, problem="its reply is damaged or too large")]


def _not_there(known: Collection[Mapping[str, Any]], waiting: Collection[str]) -> list[RemoteReply]:
    alive = {str(n["id"]): bool(n["alive"]) for n in known}
    dead = "it is dead and cannot be queried"
    return [
        RemoteReply(node, problem=dead if node in alive else "the cluster has no such node")
        for node in waiting
        if not alive.get(node)
    ]


def _hint(head: Mapping[str, Any]) -> str:
    if head.get("missing"):
        return paste.shell(
            "Install it there: {python:path} -m pip install raydoctor=={version:version}",
            python=str(head.get("python") or "python"),
            version=__version__,
        )
    return paste.text("There: {hint}", hint=str(head["hint"])) if head.get("hint") else ""
