"""Gauges of memory and disks, from the readings of a live collection and from the metrics of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.model.status import Gauge, ResourceUser
from raydoctor.model.values import Event

THRESHOLD = 0.95
"""Ray's default for `memory_usage_threshold` and for `local_fs_capacity_threshold` (`ray_config_def.h`, Ray
2.9 to 2.60)."""


class Thresholds(NamedTuple):
    """The thresholds of the head's `--system-config`; None where it does not set them."""

    memory: float | None = None
    disk: float | None = None


def of_metrics(
    node: str, ip: str, values: Mapping[str, float], configured: Thresholds
) -> Iterator[Gauge]:
    """Memory and disk of a node by its metrics, which do not contain the node's thresholds."""
    if total := int(values.get("ray_node_mem_total", 0)):
        used = int(values.get("ray_node_mem_used", 0))
        limit, is_assumed = configured.memory or THRESHOLD, configured.memory is None
        yield Gauge(node, ip, "memory", "", used, total, limit, (), is_assumed)
    used, free = (int(values.get(f"ray_node_disk_{name}", 0)) for name in ("usage", "free"))
    if used + free:
        limit, is_assumed = configured.disk or THRESHOLD, configured.disk is None
        yield Gauge(node, ip, "disk", "", used, used + free, limit, (), is_assumed)


def gauges(case: Case) -> Iterator[Gauge]:
    """All gauges of a live collection: this machine's, then those of other nodes."""
    own = [gauge for row in live.rows(case, "gauges") if (gauge := _gauge(row)) is not None]
    yield from own
    first = next(iter(live.rows(case, "thresholds")), None)
    configured = Thresholds()
    if first is not None:
        configured = Thresholds(live.number(first, "memory"), live.number(first, "disk"))
    here = {gauge.node for gauge in own}
    for row in live.rows(case, "node-usage"):
        if row["node_id"] not in here:
            values = {name: live.number(row, name) or 0.0 for name in row.fields}
            yield from of_metrics(row["node_id"], row["ip"], values, configured)


def _gauge(row: Event) -> Gauge | None:
    used, limit = live.whole(row, "used"), live.whole(row, "limit")
    threshold = live.number(row, "threshold")
    if used is None or not limit or not threshold:
        return None
    users = (
        ResourceUser(
            live.whole_of(each.get("pid")) or 0,
            live.text_of(each.get("name")),
            live.whole_of(each.get("bytes")) or 0,
            live.text_of(each.get("path")),
        )
        for each in live.records(row, "users")
    )
    return Gauge(
        row["node_id"],
        row["ip"],
        "memory" if row["what"] == "memory" else "disk",
        row["path"],
        used,
        limit,
        threshold,
        tuple(users),
        live.truth(row, "threshold_assumed"),
    )
