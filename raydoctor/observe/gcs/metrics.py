"""Number of tasks by name and state, from the nodes' metrics ports.

The state API reports a task inside `ray.get` as RUNNING; the gauge `ray_tasks` distinguishes the two (Ray 2.9
to 2.60; owner and executor report differences of the same count, so only their sum is meaningful). The gauge
also counts finished tasks, takes 5 to 30 ms a node for any number of tasks, and needs no token. Its values
are some seconds old: workers report every `metrics_report_interval_ms`, 10 s by default.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from raydoctor.model.patterns import pattern
from raydoctor.observe.collector.parallel import parallel
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.gcs.dashboard import DashboardReply, get

BLOCKED = ("RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT", "GETTING_AND_PINNING_ARGS")
_NODES = 200
"""Nodes that are queried: a node's metrics are up to 1 MB."""
_LABEL = pattern(rb'\b(\w+)="((?:[^"\\]|\\.)*)"')
TASKS = "ray_tasks"
WANTED = (
    *(TASKS, "ray_node_mem_used", "ray_node_mem_total"),
    *("ray_node_disk_usage", "ray_node_disk_free"),
)
"""Tasks by name and state; memory and disk of the node, in bytes."""
_TIMEOUT = 1.0
_OWN = Access()


class Count(NamedTuple):
    """Tasks of one name in one state, of one job, on one node."""

    name: str
    state: str
    job_id: str
    node_id: str


class NodeMetrics(NamedTuple):
    """The replies of the nodes' metrics ports."""

    tasks: Counter[Count]
    usage: list[dict[str, Any]]
    """Rows of `node-usage`: memory and disk of each node that replied."""
    silent: list[str]
    """The addresses that did not reply."""


def counts(nodes: Sequence[dict[str, Any]], access: Access = _OWN) -> NodeMetrics:
    """The nodes' tasks and usage; `nodes` are rows of `metrics`."""
    asked = {_address(node): node for node in nodes[:_NODES] if node["port"]}
    calls = {
        address: lambda address=address: get(address, "/metrics", _TIMEOUT, access)
        for address in asked
    }
    total: Counter[Count] = Counter()
    usage: dict[str, dict[str, Any]] = {}
    for address, answer in parallel(calls, _TIMEOUT + 0.1):
        if isinstance(answer, DashboardReply) and answer.outcome == "ok":
            node = asked[address]
            row = usage[address] = {"node_id": node["node_id"], "ip": node["ip"]}
            for name, labels, amount in readings(answer.body, WANTED):
                if name == TASKS:
                    total[_count(labels, str(node["node_id"]))] += int(amount)
                else:
                    row[name] = row.get(name, 0) + int(amount)
    silent = [address for address in map(_address, nodes) if address not in usage]
    return NodeMetrics(total, list(usage.values()), silent)


def _address(node: dict[str, Any]) -> str:
    ip = str(node["ip"])
    return f"[{ip}]:{node['port']}" if ":" in ip else f"{ip}:{node['port']}"


def blocked(total: Counter[Count]) -> list[dict[str, Any]]:
    """Rows of `ray-get`: tasks that wait inside `ray.get` or `ray.wait`."""
    return [
        {**count._asdict(), "count": amount}
        for count, amount in sorted(total.items())
        if amount > 0 and count.state in BLOCKED
    ]


def by_state(total: Counter[Count]) -> list[dict[str, Any]]:
    """Rows of `task-counts`: all tasks that Ray has counted, including finished ones."""
    sums: Counter[tuple[str, str]] = Counter()
    for count, amount in total.items():
        sums[count.state, count.name] += amount
    return [
        {"state": state, "name": name, "count": amount}
        for (state, name), amount in sorted(sums.items())
        if amount > 0
    ]


def _count(labels: dict[str, str], node_id: str) -> Count:
    job = labels.get("JobId", "")
    return Count(labels.get("Name", ""), labels.get("State", ""), job, node_id)


def readings(body: bytes, wanted: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Samples of these metrics: name, labels, value; values that are not finite are left out."""
    starts = tuple(f"{name}{{".encode() for name in wanted)
    for line in body.split(b"\n"):
        if not line.startswith(starts):
            continue
        series, _, rest = line.rpartition(b"} ")
        name, _, labels = series.partition(b"{")
        try:
            amount = float(rest.split()[0])
        except (ValueError, IndexError):
            continue
        if math.isfinite(amount):
            known = {key.decode(): _text(value) for key, value in _LABEL.findall(labels)}
            yield name.decode(), known, amount


def _text(value: bytes) -> str:
    plain = value.replace(b"\\n", b"\n").replace(b'\\"', b'"').replace(b"\\\\", b"\\")
    return plain.decode("utf-8", "replace")
