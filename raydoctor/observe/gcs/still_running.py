"""The tasks that workers run after their stacks were sampled: the table `still-running`.

The stacks are sampled seconds after the cluster's tables are collected. In between, one call of a function
may have ended and the next one begun at the same line. A task counts as hung only if its worker ran it before
and after the samples. Only the workers report that without delay (`GetCoreWorkerStats`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.run import Collector
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.gcs.gcs import Child

_WHAT = "running tasks after the stack samples"
_KEYS = ("worker_id", "pid", "node_id", "answers", "running_task_ids")


def collector(cluster: Cluster, timeout: float) -> Collector:
    """The collector that queries the workers again."""
    return Collector(_WHAT, lambda: _tables(cluster, timeout), optional=True, about="stacks")


def _tables(cluster: Cluster, timeout: float) -> Iterator[Piece | Gap]:
    if not cluster.gcs_address:
        yield Gap(_WHAT, "the GCS's address is not known", optional=True, about="stacks")
        return
    child = Child()
    try:
        for reply in child.ask(cluster.gcs_address, cluster.access(), ("worker-stats",), timeout):
            if reply.why:
                yield Gap(_WHAT, reply.why, optional=True, about="stacks")
            else:
                rows = [{key: row.get(key) for key in _KEYS} for row in reply.rows]
                yield table("still-running", rows, source="gcs", total=reply.total, at=reply.at)
    finally:
        child.end()
