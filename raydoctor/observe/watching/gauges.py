"""Memory and disk usage of a cluster's nodes, against the limits at which Ray acts on its own.

On this machine, Ray's own sources are read: `/proc/meminfo` or the raylet's cgroup, whichever has less
(`memory_monitor.cc`), and the file systems that it writes to. For other nodes, their metrics are used, which
are some seconds old and do not contain the thresholds. These are known only from the head's
`--system-config`; otherwise Ray's defaults are assumed, although the environment there may override them. The
same metrics count tasks by state. A node takes 50 ms to produce them (Ray 2.60.0), so they are requested
rarely.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from raydoctor.cluster import gauges as cluster_gauges
from raydoctor.cluster.gauges import Thresholds
from raydoctor.model.status import Gauge, ResourceUser
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.parallel import parallel
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.gcs.dashboard import DashboardReply, get
from raydoctor.observe.gcs.metrics import TASKS, WANTED, readings
from raydoctor.observe.machine import cgroups, disk_usage, disks, storage
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.watching.watching import Node

_MEMORY, _DISK = "memory_usage_threshold", "local_fs_capacity_threshold"
_TOP = 3
_READ = 8
"""Processes whose private memory is read: those with the largest total memory."""
_TIMEOUT = 1.0
_NODES = 100


Config = Mapping[str, object]
"""The head's `--system-config`."""


class Metrics(NamedTuple):
    """The data from the nodes' metrics."""

    tasks: Counter[tuple[str, str]]
    """State and name -> number of tasks, including finished ones."""
    gauges: tuple[Gauge, ...]
    """Gauges of other nodes."""
    heard: int
    """Number of nodes that replied."""


# ------------------------------------------------------------------ this machine


def tables(cluster: Cluster) -> Iterator[Piece | Gap]:
    """Tables `gauges`, of this machine, and `thresholds`, of the whole cluster."""
    config = storage.system_config(cluster)
    found = memory(cluster, proc.table(), memory_threshold(cluster, config))
    found += disks_here(cluster, config) if found else []
    yield table("gauges", [each.as_row() for each in found], source="proc")
    yield table("thresholds", [thresholds(config)._asdict()], source="proc")


def memory_threshold(cluster: Cluster, config: Config) -> float | None:
    """The share at which Ray's memory monitor kills workers on this machine.

    None if it is unknown: another user may not read the environment of a raylet.
    """
    environments = [
        proc.environment(raylet.pid, [f"RAY_{_MEMORY}"]) for raylet in cluster.of("raylet")
    ]
    settings: dict[str, object] = {
        name.removeprefix("RAY_"): value
        for each in environments
        for name, value in (each or {}).items()
    }
    default = None if None in environments else cluster_gauges.THRESHOLD
    return _threshold(settings | dict(config), _MEMORY) or default


def thresholds(config: Config) -> Thresholds:
    """The thresholds that hold on all nodes."""
    return Thresholds(_threshold(config, _MEMORY), _threshold(config, _DISK))


def _threshold(config: Config, name: str) -> float | None:
    with suppress(TypeError, ValueError, KeyError):
        value = float(str(config[name]))
        return value if 0 < value <= 1 else None
    return None


def memory(cluster: Cluster, table: Mapping[int, Process], threshold: float | None) -> list[Gauge]:
    """The memory of this machine as each of its raylets sees it; empty if none runs here."""
    raylets = [each for each in cluster.of("raylet") if each.state != "Z"]
    host = _host() if raylets else None
    if host is None:
        return []
    at, users = threshold or cluster_gauges.THRESHOLD, tuple(_largest(table))
    return [
        Gauge(each.node_id, "", "memory", "", *_seen_by(each.pid, *host), at, users, not threshold)
        for each in raylets
    ]


def _seen_by(raylet: int, used: int, limit: int) -> tuple[int, int]:
    """Used and total: of the machine, or of the smallest cgroup around the raylet."""
    cgroup = cgroups.of_process(raylet)
    for each in (cgroup, *cgroups.above(cgroup)) if cgroup else ():
        usage = cgroups.usage(each)
        if usage.limit is not None and usage.used is not None and usage.limit < limit:
            used, limit = usage.used, usage.limit
    return used, limit


def _host() -> tuple[int, int] | None:
    """Used and total; None on other systems than Linux."""
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            words = [line.split() for line in stream]
    except OSError:
        return None
    info = {each[0]: int(each[1]) * 1024 for each in words if len(each) > 1}
    total, available = info.get("MemTotal:"), info.get("MemAvailable:")
    return None if total is None or available is None else (total - available, total)


def _largest(table: Mapping[int, Process]) -> list[ResourceUser]:
    """The processes that would free most memory if they ended."""
    seeming = sorted(table.values(), key=lambda each: -each.rss)[:_READ]
    users = [
        ResourceUser(each.pid, _title(each), proc.private_memory(each.pid) or each.rss)
        for each in seeming
    ]
    return sorted(users, key=lambda each: -each.bytes)[:_TOP]


def _title(process: Process) -> str:
    words = proc.command(process.pid)
    return words[0] if words and words[0].startswith("ray::") else process.name


def disks_here(cluster: Cluster, config: Config) -> list[Gauge]:
    """The file systems of this machine that the cluster writes to, fullest first."""
    found: dict[str, Gauge] = {}
    for_all = _threshold(config, _DISK)
    for row in _rows(disks.tables(cluster)):
        if row["use"] == "shm" and not row["store_bytes"]:
            continue  # it contains no object store
        capacity = int(str(row["capacity"]))
        node, mount = str(row["node_id"] or ""), str(row["mount"] or row["path"])
        used = capacity - int(str(row["free"]))
        # An object store allocates its whole size: its folder is full when the store is.
        own = for_all or float(str(row["threshold"]))
        threshold = 1.0 if row["store_bytes"] else own
        found.setdefault(mount, Gauge(node, "", "disk", mount, used, capacity, threshold))
    return sorted(found.values(), key=lambda each: -each.share / each.threshold)


def _rows(items: Iterable[Piece | Gap]) -> Iterator[dict[str, object]]:
    for item in items:
        if isinstance(item, Piece):
            yield from json.loads(item.data)["rows"]


def filled(gauges: Sequence[Gauge], things: Sequence[ResourceUser]) -> list[Gauge]:
    """The gauges with the content that fills this machine's disks, largest first."""
    result = []
    for gauge in gauges:
        device = _device(gauge.path) if gauge.what == "disk" and not gauge.ip else None
        there = [each for each in things if device is not None and _device(each.path) == device]
        result.append(gauge._replace(users=tuple(there[:_TOP])) if there else gauge)
    return result


def fillers(cluster: Cluster) -> list[ResourceUser]:
    """Ray's content on this machine's disks, largest first, by a walk of up to a second."""
    return [
        ResourceUser(0, str(row["what"]), int(str(row["bytes"])), str(row["path"]))
        for row in _rows(disk_usage.tables(cluster))
    ]


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


# ------------------------------------------------------------------ metrics


def metrics(cluster: Cluster, nodes: Sequence[Node], config: Config) -> Metrics:
    """The tasks of all nodes, and memory and disk of nodes on other machines."""
    access = cluster.access(False)
    asked = {each.metrics: each for each in nodes[:_NODES] if each.metrics}
    calls = {
        address: lambda address=address: get(address, "/metrics", _TIMEOUT, access)
        for address in asked
    }
    tasks: Counter[tuple[str, str]] = Counter()
    gauges: list[Gauge] = []
    heard = 0
    for address, answer in parallel(calls, _TIMEOUT + 0.1):
        if not isinstance(answer, DashboardReply) or answer.outcome != "ok":
            continue
        heard += 1
        values: Counter[str] = Counter()
        for name, labels, amount in readings(answer.body, WANTED):
            if name == TASKS:
                tasks[labels.get("State", ""), labels.get("Name", "")] += int(amount)
            else:
                values[name] += int(amount)
        if asked[address].node not in cluster.node_ids:
            node = asked[address]
            gauges += cluster_gauges.of_metrics(node.node, node.ip, values, thresholds(config))
    return Metrics(tasks, tuple(gauges), heard)
