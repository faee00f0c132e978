"""Other nodes swept (`sweep.py`), by a small task on each: who is asked, and what they say.

A node's processes are looked at here where its raylet is among them; where it has pids of its own (a
container) or another machine, the node is asked. Several raylets of one machine are one machine.
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
from raydoctor.observe.nodes.there import Answer, Tell, ask
from raydoctor.observe.processes import proc

_FUNCTION = "raydoctor.act.zombies.sweep_nodes:respond"
_LOOK_S = 60.0
"""Seconds to look at a machine: what dead sessions keep on the disk may be much."""
_ACT_S = 60.0
"""The same to end things, beside the grace."""
_TIMEOUT = 5.0
_DEAD = "it is dead, so that nobody there can be asked"
_ON_ITS_OWN = "Where its machine still runs: raydoctor zombies on it."
_UNEXPECTED = "Unexpected termination"
"""Why a node is dead, as the GCS has it (Ray 2.9 to 2.60); not of those that an autoscaler has ended."""
_SHORTEST = 6
"""Digits of an id, at least."""


class NodeChoice(NamedTuple):
    """Which machines are meant."""

    here: SweepNode | None
    there: Sequence[SweepNode]
    gone: Sequence[SweptMachine]
    """Nodes that are dead: of all, those that nobody had meant to end, and whose machine no other has."""


def choose(cluster: Cluster, named: Collection[str]) -> NodeChoice:
    """The nodes of these ids (or their first digits) and addresses; all, and this machine, for none.

    Raises RaydoctorError where the cluster cannot be asked, and where nobody is called so.
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
    """Whether a dead node's machine may still run, with what its raylet has left, and nobody looks at it."""
    return str(row["state_message"]).startswith(_UNEXPECTED) and row["node_ip"] not in living


def _nodes(cluster: Cluster) -> list[dict[str, Any]]:
    if not cluster.gcs_address:
        raise RaydoctorError(
            "no cluster is known to be running here", "Name one: --address HOST:PORT of its GCS."
        )
    child = gcs.Child()
    try:
        (nodes,) = child.ask(cluster.gcs_address, cluster.access(), ["nodes"], _TIMEOUT)
    finally:
        child.end()
    if nodes.why:
        raise RaydoctorError(
            f"the cluster at {cluster.gcs_address} does not tell its nodes: {nodes.why}",
            "Without --node and --all-nodes, this machine is looked at.",
        )
    return nodes.rows


def _called(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    by_id = [r for r in rows if len(name) >= _SHORTEST and r["node_id"].startswith(name.lower())]
    by_ip = [row for row in rows if name in (row["node_ip"], row["node_name"])]
    living = [row for row in by_ip if row["state"] == "ALIVE"]
    if found := by_id or living or by_ip:
        return found
    known = [f"{r['node_id'][:12]} at {r['node_ip']}" for r in rows[:20]]
    raise RaydoctorError(f"no node is called {name}", paste.text("There are: {known}", known=known))


def _here(cluster: Cluster) -> Iterator[str]:
    """Nodes whose raylet runs among the processes that we see, with the pids that we see."""
    for daemon in cluster.of("raylet"):
        if daemon.state != "Z" and proc.same_pids(daemon.pid):
            yield daemon.node_id


# ------------------------------------------------------------------ asking


def inspect(
    cluster: Cluster,
    nodes: Sequence[SweepNode],
    options: SweepOptions,
    with_disk: bool,
    report_progress: Tell = lambda done, total: None,
) -> list[SweptMachine]:
    """What is left over on other nodes; each machine once."""
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
    report_progress: Tell = lambda done, total: None,
) -> list[SweptMachine]:
    """Do there what is planned for what was seen; where that is nothing, nobody is asked."""
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
    """On a node: look, or do what is planned for what was seen."""
    if request["do"] == "inspect":
        report = sweep.inspect(SweepOptions(**request["options"]), bool(request["with_disk"]))
    else:
        deed = SweepRequest(
            **{**request["deed"], "options": SweepOptions(**request["deed"]["options"])}
        )
        report = sweep.carry_out(sweep.as_of_now(sweep.unpacked(request["view"])), deed)
    return {"view": sweep.packed(report), "machine": machine()}


def machine() -> str:
    """Tells this machine, or container, from others: what has the same pids is the same."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    try:
        return f"{boot or socket.gethostname()}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return boot or socket.gethostname()


def _asked(
    cluster: Cluster, asks: Mapping[str, Any], seconds: float, report_progress: Tell
) -> dict[str, Answer]:
    return {
        answer.node: answer for answer in ask(cluster, asks, _FUNCTION, seconds, report_progress)
    }


def _place(node: SweepNode, answer: Answer) -> SweptMachine:
    if answer.problem:
        return SweptMachine(node, None, answer.problem, answer.hint)
    try:
        view = sweep.unpacked(answer.told["view"])
        return SweptMachine(node, view, machine=str(answer.told["machine"]))
    except sweep.DAMAGED:
        return SweptMachine(
            node, None, "its answer is damaged", "Run on that node: raydoctor zombies"
        )


def _after(place: SweptMachine, answer: Answer) -> SweptMachine:
    """What it is after the deed; where that is not known, what it was before, and why."""
    now = _place(place.node, answer)
    return place._replace(problem=now.problem, hint=now.hint) if now.view is None else now
