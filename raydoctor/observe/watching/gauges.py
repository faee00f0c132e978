"""How full memory and disks of a cluster's nodes are, against the limits at which Ray acts on its own.

This machine is read where Ray reads it: `/proc/meminfo` or the cgroup of the raylet, whichever has less
(`memory_monitor.cc`), and the file systems that it writes to. Of the other nodes their metrics tell, which
are some seconds old and say nothing of their thresholds: these are known where the head was given them for
all nodes (`--system-config`); else Ray's defaults are assumed, as an environment there may say otherwise. The
same metrics count tasks by state. A node takes 50 ms to tell them (Ray 2.60.0): they are asked for rarely.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.parallel import parallel
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.gcs.dashboard import DashboardReply, get
from raydoctor.observe.gcs.metrics import readings
from raydoctor.observe.machine import cgroups, disk_usage, disks, storage
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.watching.watching import Node

MEMORY_THRESHOLD = 0.95
"""Ray's default for `memory_usage_threshold` (`ray_config_def.h`, Ray 2.9 to 2.60)."""
NEAR = 0.9
"""Of its threshold: from here on it is worth a word."""
_MEMORY, _DISK = "memory_usage_threshold", "local_fs_capacity_threshold"
_TOP = 3
_READ = 8
"""Processes whose own memory is read: those that seem largest with what they share."""
_TIMEOUT = 1.0
_NODES = 100
_WANTED = (
    *("ray_tasks", "ray_node_mem_used", "ray_node_mem_total"),
    *("ray_node_disk_usage", "ray_node_disk_free"),
)


Config = Mapping[str, object]
"""What the head was given for all nodes."""


class ResourceUser(NamedTuple):
    """A process that uses much memory, or what fills a disk."""

    pid: int
    """0: it is a folder."""
    name: str
    bytes: int
    path: str = ""


class Gauge(NamedTuple):
    """One memory or one file system of one node."""

    node: str
    ip: str
    what: Literal["memory", "disk"]
    path: str
    """Of a disk: where it is mounted, as far as that is known."""
    used: int
    limit: int
    threshold: float
    """The share from which Ray kills workers, or stores nothing any more."""
    users: tuple[ResourceUser, ...] = ()
    is_assumed: bool = False
    """Whether the threshold is Ray's default, because what the node was given is not known."""

    @property
    def share(self) -> float:
        """Used of the limit."""
        return self.used / self.limit if self.limit else 0.0

    @property
    def level(self) -> Literal["ok", "near", "over"]:
        """How far it is from where Ray acts."""
        if self.share >= self.threshold:
            return "over"
        return "near" if self.share >= self.threshold * NEAR else "ok"


class Metrics(NamedTuple):
    """What the nodes' metrics tell."""

    tasks: Counter[tuple[str, str]]
    """State and name -> how many, finished ones too."""
    gauges: tuple[Gauge, ...]
    """Of other nodes."""
    heard: int
    """Nodes that told."""


# ------------------------------------------------------------------ this machine


def memory_threshold(cluster: Cluster, config: Config) -> float:
    """From where on Ray's memory monitor kills workers on this machine; its default where nobody says."""
    told: dict[str, object] = {}
    for raylet in cluster.of("raylet"):
        told |= {
            name.removeprefix("RAY_"): value
            for name, value in (proc.environment(raylet.pid, [f"RAY_{_MEMORY}"]) or {}).items()
        }
    return _threshold(told | dict(config), _MEMORY) or MEMORY_THRESHOLD


def _threshold(told: Config, name: str) -> float | None:
    with suppress(TypeError, ValueError, KeyError):
        value = float(str(told[name]))
        return value if 0 < value <= 1 else None
    return None


def memory(cluster: Cluster, table: Mapping[int, Process], threshold: float) -> list[Gauge]:
    """The memory of this machine, as the raylet sees it; nothing where none runs here."""
    raylet = next((d for d in cluster.of("raylet") if d.state != "Z"), None)
    told = _host()
    if raylet is None or told is None:
        return []
    used, limit = told
    cgroup = cgroups.of_process(raylet.pid)
    for each in (cgroup, *cgroups.above(cgroup)) if cgroup else ():
        usage = cgroups.usage(each)
        if usage.limit is not None and usage.used is not None and usage.limit < limit:
            used, limit = usage.used, usage.limit
    users = tuple(_largest(table))
    return [Gauge(raylet.node_id, "", "memory", "", used, limit, threshold, users)]


def _host() -> tuple[int, int] | None:
    """Used and total; None on other systems than Linux."""
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            words = [line.split() for line in stream]
    except OSError:
        return None
    told = {each[0]: int(each[1]) * 1024 for each in words if len(each) > 1}
    total, available = told.get("MemTotal:"), told.get("MemAvailable:")
    return None if total is None or available is None else (total - available, total)


def _largest(table: Mapping[int, Process]) -> list[ResourceUser]:
    """Who would free most, if it ended."""
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
    """The file systems of this machine that the cluster writes to, each once, the fullest first."""
    found: dict[str, Gauge] = {}
    for_all = _threshold(config, _DISK)
    for row in _rows(disks.tables(cluster)):
        if row["use"] == "shm" and not row["store_bytes"]:
            continue  # no object store lies there
        capacity = int(str(row["capacity"]))
        node, mount = str(row["node_id"] or ""), str(row["mount"] or row["path"])
        used = capacity - int(str(row["free"]))
        # A store takes what it was given: the folder of one is full when the store is.
        own = for_all or float(str(row["threshold"]))
        threshold = 1.0 if row["store_bytes"] else own
        found.setdefault(mount, Gauge(node, "", "disk", mount, used, capacity, threshold))
    return sorted(found.values(), key=lambda each: -each.share / each.threshold)


def _rows(items: Iterable[Piece | Gap]) -> Iterator[dict[str, object]]:
    for item in items:
        if isinstance(item, Piece):
            yield from json.loads(item.data)["rows"]


def filled(gauges: Sequence[Gauge], things: Sequence[ResourceUser]) -> list[Gauge]:
    """The gauges of this machine's disks with what of Ray's lies there, the largest first."""
    told = []
    for gauge in gauges:
        device = _device(gauge.path) if gauge.what == "disk" and not gauge.ip else None
        there = [each for each in things if device is not None and _device(each.path) == device]
        told.append(gauge._replace(users=tuple(there[:_TOP])) if there else gauge)
    return told


def fillers(cluster: Cluster) -> list[ResourceUser]:
    """What of Ray's fills this machine's disks, the largest first: a walk of up to a second."""
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
    """What all nodes tell: their tasks, and, of those not `here`, memory and disk."""
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
        for name, labels, amount in readings(answer.body, _WANTED):
            if name == "ray_tasks":
                tasks[labels.get("State", ""), labels.get("Name", "")] += int(amount)
            else:
                values[name] += int(amount)
        if asked[address].node not in cluster.node_ids:
            gauges += _gauges(asked[address], values, config)
    return Metrics(tasks, tuple(gauges), heard)


def _gauges(node: Node, values: Mapping[str, int], config: Config) -> Iterator[Gauge]:
    memory, disk = _threshold(config, _MEMORY), _threshold(config, _DISK)
    if total := values.get("ray_node_mem_total", 0):
        used = values.get("ray_node_mem_used", 0)
        limit = memory or MEMORY_THRESHOLD
        yield Gauge(node.node, node.ip, "memory", "", used, total, limit, (), memory is None)
    used, free = values.get("ray_node_disk_usage", 0), values.get("ray_node_disk_free", 0)
    if used + free:
        limit = disk or storage.THRESHOLD
        yield Gauge(node.node, node.ip, "disk", "", used, used + free, limit, (), disk is None)
