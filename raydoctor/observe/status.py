"""The collection behind `raydoctor status`: only what the GCS, the workers and this machine report at once.

The dashboard is not queried: it would be slower, and it may be dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.collector.run import Collector, run
from raydoctor.observe.gcs.gcs import Child

if TYPE_CHECKING:
    from raydoctor.observe.live import Live


def collect(
    address: str | None, timeout: float, meanwhile: Callable[[], object] = lambda: None
) -> Live:
    """Query a cluster for at most `timeout` seconds; `meanwhile` runs while it replies.

    Raises RaydoctorError if no cluster runs here.
    """
    child = Child()  # it loads gRPC while this process imports the rest
    try:
        from raydoctor.observe import live
        from raydoctor.observe.gcs import state
        from raydoctor.observe.processes import discover, processes
        from raydoctor.observe.stacks.suspects import rows
        from raydoctor.observe.watching import gauges

        cluster, notes = live.find(address)
        if not cluster.is_up or not cluster.gcs_address:
            raise RaydoctorError(
                "no cluster runs on this machine",
                "Name one: --address HOST:PORT of its GCS. For the latest session: raydoctor diagnose",
            )
        collectors = [
            Collector(state.WHAT, lambda: state.brief(cluster, child, timeout), about="tasks"),
            Collector("memory and disks", lambda: gauges.tables(cluster)),
            Collector("Ray's daemons", lambda: discover.tables(cluster), optional=True),
        ]
        collection = run(collectors, timeout, meanwhile)
        if any(row.get("answers") is False for row in rows(collection.pieces, "worker-stats")):
            # Its process may have ended. Most clusters have no such worker, and the table takes a while.
            more = run([Collector("the process table", lambda: processes.tables(cluster))], timeout)
            collection.pieces |= more.pieces
            collection.gaps += more.gaps
        return live.redacted(cluster, collection, live.redactor_of(cluster), notes)
    finally:
        child.end()
