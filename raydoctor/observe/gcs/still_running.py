"""What workers run after they were looked at: the table `still-running`.

The cluster's tables are taken first, then the stacks, seconds apart: in between one call of a function may
have ended and the next begun, at the same line. Whoever is to be called hung was in one and the same task
before and after the looks, and only the workers themselves know that at once (`GetCoreWorkerStats`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.run import Collector
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.gcs.gcs import Child

_WHAT = "what runs after the looks"
_KEYS = ("worker_id", "pid", "node_id", "answers", "running_task_ids")


def collector(cluster: Cluster, timeout: float) -> Collector:
    """What asks the workers once more."""
    return Collector(_WHAT, lambda: _tables(cluster, timeout), optional=True)


def _tables(cluster: Cluster, timeout: float) -> Iterator[Piece | Gap]:
    if not cluster.gcs_address:
        yield Gap(_WHAT, "the GCS's address is not known", optional=True)
        return
    child = Child()
    try:
        for told in child.ask(cluster.gcs_address, cluster.access(), ("worker-stats",), timeout):
            if told.why:
                yield Gap(_WHAT, told.why, optional=True)
            else:
                rows = [{key: row.get(key) for key in _KEYS} for row in told.rows]
                yield table("still-running", rows, source="gcs", total=told.total, at=told.at)
    finally:
        child.end()
