"""Runs a function of raydoctor on other nodes: JSON goes there, JSON comes back.

What can only be done on a process's own machine (signals, stacks, an interrupt, /proc) is done there, by a
small Ray task: it needs no CPU, so it runs while everything is taken; it is pinned, is not retried, and is
in no list of tasks where Ray can do that. `programs/fan_out.py` is the driver, `programs/there.py` what the
task calls. A first task sees whether the node runs any, and whether the same raydoctor is there: a node
that is frozen is known as such soon, and nothing has been done on it.
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
"""Seconds that a cluster may take to accept the driver: mostly it takes one or two."""
REACH_S = 15.0
"""Seconds that a node may take to start a worker and run a task: mostly it takes one or two."""
_LEAST_REACH_S = 4.0
_MOST_BYTES = 64 << 20
"""Of one answer, unpacked."""
_SLACK_S = 5.0

Tell = Callable[[int, int], None]
"""Is told how many nodes of how many are done."""


class RemoteReply(NamedTuple):
    """What a node told, or why it told nothing."""

    node: str
    """Its id."""
    told: Any = None
    """What the function returned."""
    problem: str = ""
    """Empty where it answered."""
    hint: str = ""
    """What to do about the problem, where that is known."""


def ask(
    cluster: Cluster,
    asks: Mapping[str, Any],
    function: str,
    seconds: float,
    tell: Tell = lambda done, total: None,
) -> Iterator[RemoteReply]:
    """Call `function` (`raydoctor.act.zombies.clean:respond`) on nodes (ids), each with its own request.

    One answer for each node, as they come. `seconds` are the function's; before, a node has as many to run
    any task at all (no less than 4, no more than 15). An exception that the function raises is a problem.
    Whoever takes no more answers ends the driver, and Ray then ends its tasks.
    """
    if not asks:
        return
    news: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    request = _request(asks, function, seconds)
    deadline = time.monotonic() + request["seconds"] + _SLACK_S
    waiting = dict.fromkeys(asks)
    tell(0, len(asks))
    with fan_out.asking(cluster, request, CONNECT_S, news.put):
        while waiting:
            for answer in _answers(_next(news, deadline), waiting):
                del waiting[answer.node]
                tell(len(asks) - len(waiting), len(asks))
                yield answer


def _next(news: queue.SimpleQueue[Frame], deadline: float) -> Frame:
    """What the driver says next: even one that nothing can end does not hold us up."""
    with suppress(queue.Empty):
        return news.get(timeout=max(0.0, deadline - time.monotonic()))
    return Frame({"problem": "the process that asks the nodes does not answer"})


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
    """What a frame says of nodes that are waited for."""
    told = frame.head
    if "nodes" in told:
        return _not_there(told["nodes"], waiting)
    if "node" not in told:
        return [RemoteReply(node, problem=str(told.get("problem", ""))) for node in waiting]
    node = str(told["node"])
    if node not in waiting:
        return []
    if "problem" in told:
        return [RemoteReply(node, problem=str(told["problem"]), hint=_hint(told))]
    with suppress(zlib.error, ValueError):
        stream = zlib.decompressobj()
        text = stream.decompress(frame.data, _MOST_BYTES)
        return [RemoteReply(node, json.loads(text))]
    return [RemoteReply(node, problem="what it sent is damaged, or far too large")]


def _not_there(known: Collection[Mapping[str, Any]], waiting: Collection[str]) -> list[RemoteReply]:
    alive = {str(n["id"]): bool(n["alive"]) for n in known}
    dead = "it is dead, so that nobody there can be asked"
    return [
        RemoteReply(node, problem=dead if node in alive else "the cluster knows no such node")
        for node in waiting
        if not alive.get(node)
    ]


def _hint(told: Mapping[str, Any]) -> str:
    if told.get("missing"):
        return paste.shell(
            "Install it there: {python:path} -m pip install raydoctor=={version:version}",
            python=str(told.get("python") or "python"),
            version=__version__,
        )
    return paste.text("There: {hint}", hint=str(told["hint"])) if told.get("hint") else ""
