"""Queries of one cluster's GCS and workers that several tables share: part of the program `gcs_tables`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from raydoctor.observe.gcs.programs import gcs_wire
    from raydoctor.observe.gcs.programs.gcs_messages import Messages
    from raydoctor.observe.gcs.programs.gcs_wire import Call, CallError, Wire
else:  # a program finds only modules in its own folder
    import gcs_wire
    from gcs_messages import Messages
    from gcs_wire import Call, CallError, Wire


Row = dict[str, Any]
LIMIT = 10_000
"""Largest number of rows of a table."""
_WORKERS = 2_000
_WORKER_DEADLINE = 1.0
"""Seconds: a worker's C++ thread replies within milliseconds, even while native code holds the GIL."""
_PROBE_DEADLINE = 1.5


class RowTable(NamedTuple):
    """Rows, and how many exist in total."""

    rows: list[Row]
    total: int


class Gcs:
    """The queries of one request; data for several tables is queried once."""

    def __init__(self, of: Messages, wire: Wire, address: str, timeout: float) -> None:
        self.of = of
        """Messages of the cluster's version, once `probe` has determined it."""
        self.wire = wire
        self.address = address
        self.timeout = timeout
        self.about: dict[str, str] = {}
        """The cluster's `metadata`, once `probe` has read it."""
        self._nodes: Any = None
        self._workers: Any = None
        self._stats: dict[bool, list[tuple[Any, Any, str]]] = {}
        self._silent: dict[bytes, str] = {}
        self.wanted: frozenset[str] = frozenset()
        self.running: frozenset[str] = frozenset()
        """Functions with running tasks when the tasks were queried."""

    def call(self, service: str, method: str, **fields: Any) -> Call:
        """A call of a method of the GCS; fields that this version of Ray lacks are dropped."""
        return gcs_wire.call_of(self.of, service, method, **fields)

    def start(self, call: Call) -> Any:
        """Begin a call to the GCS."""
        return self.wire.start(self.address, call, self.timeout)

    def ask(self, call: Call) -> Any:
        """Call the GCS and wait."""
        return gcs_wire.result(self.start(call))

    def probe(self) -> Row:
        """Whether the GCS answers and accepts the token; also reads the cluster's version."""
        began = time.monotonic()
        outcome, detail = "ok", ""
        try:
            deadline = min(self.timeout, _PROBE_DEADLINE)
            call = self.call("NodeInfoGcsService", "GetAllNodeInfo")
            nodes = self.wire.start(self.address, call, deadline)
            self.about = gcs_wire.metadata(self.of, self.wire, self.address, deadline)
            known, self.of = self.of, self.of.of_version(self.about.get("ray_version", ""))
            self._nodes = list(gcs_wire.result(nodes).node_info_list) if self.of is known else None
        except CallError as failed:
            outcome = {
                "UNAUTHENTICATED": "unauthenticated",
                "UNAVAILABLE": "refused",
                "DEADLINE_EXCEEDED": "timeout",
            }.get(failed.code, "error")
            detail = f"{failed.code}: {failed.detail}"
        seconds = round(time.monotonic() - began, 4)
        return {
            "name": "gcs",
            "address": self.address,
            "outcome": outcome,
            "seconds": seconds,
            "detail": detail,
        }

    def nodes(self) -> list[Any]:
        """All nodes that the GCS holds, including dead ones."""
        if self._nodes is None:
            call = self.call("NodeInfoGcsService", "GetAllNodeInfo")
            self._nodes = list(self.ask(call).node_info_list)
        return self._nodes  # type: ignore[no-any-return]

    def workers(self) -> list[Any]:
        """All workers that the GCS holds, live ones first."""
        if self._workers is None:
            call = self.call("WorkerInfoGcsService", "GetAllWorkerInfo")
            found = self.ask(call).worker_table_data
            self._workers = sorted(found, key=lambda each: not each.is_alive)
        return self._workers  # type: ignore[no-any-return]

    def stats(self, of_tasks: bool = False) -> list[tuple[Any, Any, str]]:
        """Each live worker with its reply or None, and the error code."""
        if of_tasks not in self._stats:
            alive = [each for each in self.workers() if each.is_alive][:_WORKERS]
            asked = [each for each in alive if id_of(each) not in self._silent]
            started = [(each, self._start_stats(each, of_tasks)) for each in asked]
            replies = {id_of(each): _answer(future) for each, future in started}
            # A worker that did not reply is not queried again.
            self._silent |= {name: code for name, (reply, code) in replies.items() if reply is None}
            self._stats[of_tasks] = [
                (each, *replies.get(id_of(each), (None, self._silent.get(id_of(each), ""))))
                for each in alive
            ]
        return self._stats[of_tasks]

    def _start_stats(self, worker: Any, of_tasks: bool) -> Any:
        address = worker.worker_address
        memory = "objects" in self.wanted
        limit = LIMIT if memory or of_tasks else 0  # of objects, and of tasks that it owns
        call = gcs_wire.worker_stats(self.of, address.worker_id, memory=memory, limit=limit)
        deadline = min(self.timeout, _WORKER_DEADLINE)
        return self.wire.start(gcs_wire.host_port(address), call, deadline)

    def want(self, tables: list[str]) -> None:
        """Begin a request; drops earlier replies of workers if these lack the objects that it needs."""
        if "objects" in tables and "objects" not in self.wanted:
            self._stats.clear()
        self.wanted = frozenset(tables)


def id_of(worker: Any) -> bytes:
    """The id of a `WorkerTableData`."""
    return bytes(worker.worker_address.worker_id)


def _answer(started: Any) -> tuple[Any, str]:
    try:
        return gcs_wire.result(started), ""
    except CallError as failed:
        return None, failed.code


def first(rows: list[Row], total: int | None = None) -> RowTable:
    """The first `LIMIT` rows; `total` if more than these exist."""
    return RowTable(rows[:LIMIT], len(rows) if total is None else max(total, len(rows)))
