"""Sweeps other nodes (`sweep.py`) by a small task on each.

A node whose raylet is visible from this process is swept here. A node with its own pid namespace (a
container) or on another machine is swept by a task. Several raylets on one machine count as one machine.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from raydoctor.act.zombies import sweep
from raydoctor.act.zombies.leftovers import SweepOptions
from raydoctor.act.zombies.sweep import SweepNode, SweepRequest, SweptMachine
from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.gcs import gcs
from raydoctor.observe.nodes.there import RemoteReply, ReportNodes, ask
from raydoctor.observe.nodes.typed import DAMAGED
from raydoctor.observe.processes import proc

_FUNCTION = "raydoctor.act.zombies.sweep_nodes:respond"
_LOOK_S = 60.0
"""Seconds to search a machine: dead sessions may have many files."""
_ACT_S = 60.0
"""Seconds to end and remove, in addition to the grace period."""
_TIMEOUT = 5.0
_DEAD = "the node is dead"
_ON_ITS_OWN = "If its machine still runs, run there: raydoctor zombies"
_UNEXPECTED = "Unexpected termination"
"""The GCS's reason for a crashed node (Ray 2.9 to 2.60); nodes that an autoscaler ended have another."""
_SHORTEST = 6
"""Minimum number of digits of an id."""


class NodeChoice(NamedTuple):
    """The selected machines."""

    here: SweepNode | None
    there: Sequence[SweepNode]
    gone: Sequence[SweptMachine]
    """Dead nodes; without names, only crashed ones whose address no living node has."""


def choose(cluster: Cluster, named: Collection[str]) -> NodeChoice:
    """The nodes with these ids (or their first digits) or addresses; without names, all and this machine.

    Raises RaydoctorError if the cluster does not answer or no node has the name.
    """
    rows = _nodes(cluster)
    meant = list({row["node_id"]: row for name in named for row in _called(name, rows)}.values())
    local = set(_here(cluster))
    alive = {row["node_id"]: row["node_ip"] for row in rows if row["state"] == "ALIVE"}
    here, there, gone = [], [], []
    for row in meant or rows:
        node = SweepNode(str(row["node_id"]), str(row["node_ip"]))
        if node.id in local:
            here.append(node)
        elif node.id in alive:
            there.append(node)
        elif meant or _is_missed(row, alive.values()):
            gone.append(SweptMachine(node, None, _DEAD, _ON_ITS_OWN))
    own = here[0] if here else None
    return NodeChoice(own or (None if named else SweepNode()), there, gone)


def _is_missed(row: Mapping[str, Any], living: Collection[str]) -> bool:
    """Whether a dead node's machine may still run and have leftovers, and no other node covers it."""
    return str(row["state_message"]).startswith(_UNEXPECTED) and row["node_ip"] not in living


def _nodes(cluster: Cluster) -> list[dict[str, Any]]:
    if not cluster.gcs_address:
        raise RaydoctorError(
            "no cluster runs on this machine", "Pass --address HOST:PORT of a GCS."
        )
    child = gcs.Child()
    try:
        (nodes,) = child.ask(cluster.gcs_address, cluster.access(), ["nodes"], _TIMEOUT)
    finally:
        child.end()
    if nodes.why:
        raise RaydoctorError(
            f"the cluster at {cluster.gcs_address} did not list its nodes: {nodes.why}",
            "Without --node and --all-nodes, raydoctor examines this machine.",
        )
    return nodes.rows


def _called(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    by_id = [r for r in rows if len(name) >= _SHORTEST and r["node_id"].startswith(name.lower())]
    by_ip = [row for row in rows if name in (row["node_ip"], row["node_name"])]
    living = [row for row in by_ip if row["state"] == "ALIVE"]
    if found := by_id or living or by_ip:
        return found
    known = [f"{r['node_id'][:12]} at {r['node_ip']}" for r in rows[:20]]
    raise RaydoctorError(
        f"no node has the id, address or name {name}",
        paste.text("Known nodes: {known}", known=known),
    )


def _here(cluster: Cluster) -> Iterator[str]:
    """Nodes whose raylet is visible from this process, in the same pid namespace."""
    for daemon in cluster.of("raylet"):
        if daemon.state != "Z" and proc.same_pids(daemon.pid):
            yield daemon.node_id


# ------------------------------------------------------------------ requests


def inspect(
    cluster: Cluster,
    nodes: Sequence[SweepNode],
    options: SweepOptions,
    with_disk: bool,
    report_progress: ReportNodes = lambda done, total: None,
) -> list[SweptMachine]:
    """The leftovers on other nodes; each machine once."""
    request = {"do": "inspect", "options": asdict(options), "with_disk": with_disk}
    replies = _asked(
        cluster, dict.fromkeys((n.id for n in nodes), request), _LOOK_S, report_progress
    )
    known = {machine(): "here"}
    places = []
    for node in nodes:
        place = _place(node, replies[node.id])
        if place.view is not None and place.machine in known:
            place = place._replace(view=None, same_as=known[place.machine])
        elif place.view is not None:
            known[place.machine] = node.id
        places.append(place)
    return places


def carry_out(
    cluster: Cluster,
    places: Sequence[SweptMachine],
    deed: SweepRequest,
    report_progress: ReportNodes = lambda done, total: None,
) -> list[SweptMachine]:
    """Carry out the plan on other nodes; nodes with nothing to do get no task."""
    asks = {
        place.node.id: {
            "do": "act",
            "view": sweep.packed(place.view),
            "deed": {**deed._asdict(), "options": asdict(deed.options)},
        }
        for place in places
        if place.view is not None and any(sweep.plan(place.view, deed))
    }
    replies = _asked(cluster, asks, deed.grace + _ACT_S, report_progress)
    return [
        _after(place, replies[place.node.id]) if place.node.id in replies else place
        for place in places
    ]


def respond(request: Mapping[str, Any]) -> dict[str, Any]:
    """On a node: inspect it, or carry out the plan for its report."""
    if request["do"] == "inspect":
        report = sweep.inspect(SweepOptions(**request["options"]), bool(request["with_disk"]))
    else:
        deed = SweepRequest(
            **{**request["deed"], "options": SweepOptions(**request["deed"]["options"])}
        )
        report = sweep.carry_out(sweep.as_of_now(sweep.unpacked(request["view"])), deed)
    return {"view": sweep.packed(report), "machine": machine()}


def machine() -> str:
    """An id of this machine and pid namespace."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    try:
        return f"{boot or socket.gethostname()}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return boot or socket.gethostname()


def _asked(
    cluster: Cluster, asks: Mapping[str, Any], seconds: float, report_progress: ReportNodes
) -> dict[str, RemoteReply]:
    return {
        answer.node: answer for answer in ask(cluster, asks, _FUNCTION, seconds, report_progress)
    }


def _place(node: SweepNode, answer: RemoteReply) -> SweptMachine:
    if answer.problem:
        return SweptMachine(node, None, answer.problem, answer.hint)
    try:
        view = sweep.unpacked(answer.value["view"])
        return SweptMachine(node, view, machine=str(answer.value["machine"]))
    except DAMAGED:
        return SweptMachine(
            node, None, "its reply is malformed", "Run on that node: raydoctor zombies"
        )


def _after(place: SweptMachine, answer: RemoteReply) -> SweptMachine:
    """The machine after the sweep; if it did not reply, as it was before, with the problem."""
    now = _place(place.node, answer)
    return place._replace(problem=now.problem, hint=now.hint) if now.view is None else now
