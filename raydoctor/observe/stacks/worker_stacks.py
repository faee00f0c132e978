"""The current stacks of a cluster's workers and drivers, with the tasks that they run: `raydoctor stack`.

The processes of this machine are sampled while the GCS is queried for their tasks; those of other nodes are
sampled by a small Ray task on each (`there.py`). Locals are redacted on the node where they are read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster, Token
from raydoctor.observe.collector.run import ReportProgress, silent
from raydoctor.observe.gcs.gcs import Child
from raydoctor.observe.nodes import there
from raydoctor.observe.processes import ownership
from raydoctor.observe.processes.redact import command_line, shared
from raydoctor.observe.stacks import stacks, suspects
from raydoctor.observe.stacks.stack_targets import Known, UnknownTargetError, everywhere, named
from raydoctor.observe.stacks.stacks import ProcessToSample, Row
from raydoctor.observe.stacks.subject import NoStack
from raydoctor.observe.stacks.suspects import Suspects

_FUNCTION = "raydoctor.observe.stacks.worker_stacks:respond"
_TABLES = ("worker-stats", "tasks", "actors", "nodes")


class StackOptions(NamedTuple):
    """The options of `raydoctor stack`."""

    target: str = ""
    """A task, an actor, a pid, a node; empty: all workers and drivers on this machine."""
    all_nodes: bool = False
    variables: bool = False
    native: bool = False
    timeout: float = 5.0


class Stack(NamedTuple):
    """A process, its tasks, and its stack."""

    row: Row
    """As in the table `samples`; its frames have `locals` if requested."""
    kind: str
    """`worker`, `driver` or `process`."""
    tasks: tuple[Row, ...] = ()
    actor: Row = {}  # noqa: RUF012 - never changed
    is_here: bool = True

    @property
    def is_idle(self) -> bool:
        """Whether it is an idle worker."""
        return self.kind == "worker" and not self.tasks and not self.actor and self._is_titled_idle

    @property
    def _is_titled_idle(self) -> bool:
        return str(self.row["title"]).startswith("ray::IDLE")


@dataclass(slots=True)
class Found:
    """The stacks, and gaps for those that could not be read."""

    stacks: list[Stack] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    at: float = 0.0


def inspect(cluster: Cluster, options: StackOptions, report: ReportProgress = silent) -> Found:
    """The stacks of the target. Raises UnknownTargetError if no process matches."""
    query = _Query(cluster, options.timeout)
    query.begin()
    here = _here(cluster)
    found = Found(at=time.time())
    is_all = not options.target and not options.all_nodes
    pid = next((r for r in here if str(r["pid"]) == options.target), None)
    if is_all or pid is not None:
        chosen = Suspects([_wanted(row) for row in ([pid] if pid is not None else here)])
        if not chosen.total:
            raise UnknownTargetError(
                "no worker or driver of the cluster is visible on this machine",
                "To see those of other nodes: raydoctor stack --all-nodes",
            )
    else:
        report("querying the cluster", limit=options.timeout)
        chosen = _chosen(query, options, here, cluster)
    report(f"sampling {chosen.total} processes", limit=options.timeout)
    rows = stacks.rows(
        chosen.here, variables=options.variables, native=options.native, timeout=options.timeout
    )
    found.gaps += _gaps(rows)
    if chosen.elsewhere:
        report(f"querying {len(chosen.elsewhere)} more nodes", limit=options.timeout)
        rows += _elsewhere(cluster, chosen, options, found)
    known = query.answer()
    if query.problem and not known.stats:
        found.gaps.append(Gap("the workers' tasks", query.problem, optional=True))
    kinds = {row["pid"]: str(row["kind"]) for row in here}
    mine = {each.pid for each in chosen.here}
    found.stacks = [
        _stack(row, known, kinds, row["pid"] in mine) for row in _redacted(rows, cluster.token)
    ]
    return found


def _chosen(
    query: _Query, options: StackOptions, here: Sequence[Row], cluster: Cluster
) -> Suspects:
    known = query.answer()
    if not known.stats:
        raise RaydoctorError(
            f"the cluster could not be queried: {query.problem or 'it returned nothing'}",
            "To see the processes of this machine without it: raydoctor stack",
        )
    wanted = named(known, options.target) if options.target else everywhere(known)
    placed = suspects.placed(wanted, here, cluster.node_ids)
    if not placed.total:
        raise UnknownTargetError(
            f"{options.target or 'the cluster'}: its processes are not visible here",
            "Run raydoctor on their node, or in their container.",
        )
    return placed


def _stack(row: Row, known: Known, kinds: dict[int, str], is_here: bool) -> Stack:
    worker = row["worker_id"]
    driver = "driver" if worker.endswith("f" * 48) else "worker"
    kind = kinds.get(row["pid"], driver) if is_here else driver
    if kind not in ("worker", "driver"):
        kind = "process"
    # Their names may hold secrets, as `options(name=…)` accepts any text.
    tasks, actor = shared().redact_json(
        [known.tasks_of(worker), known.actor_of(worker, row["worker_pid"])] if worker else [[], {}]
    )
    return Stack(row, kind, tuple(tasks), actor, is_here)


# ------------------------------------------------------------------ this machine


def _here(cluster: Cluster) -> list[Row]:
    """The workers and drivers of the cluster on this machine, as rows of `processes`."""
    machine = ownership.survey_machine()
    rows = []
    for pid, kind in machine.kinds.items():
        log = machine.log.get(pid)
        process = machine.processes[pid]
        is_this = log is not None and log.session == cluster.session_dir
        if log is None or not is_this or kind not in ("worker", "driver") or process.state == "Z":
            continue
        raylet = machine.daemons.get(process.ppid)
        rows.append(
            {
                "pid": pid,
                "worker_pid": log.pid,
                "started_at": process.started_at,
                "kind": kind,
                "worker_id": log.worker,
                "node_id": raylet.node_id if raylet else _only(cluster.node_ids),
                "title": command_line(pid)[:200] or process.name,
                "is_this": True,
            }
        )
    return sorted(rows, key=lambda row: float(row["started_at"]))


def _only(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else ""


def _wanted(row: Row) -> ProcessToSample:
    return ProcessToSample(
        row["pid"],
        row["started_at"],
        row["worker_id"],
        row["node_id"],
        row["title"],
        row["worker_pid"],
    )


def _gaps(rows: Sequence[Row]) -> Iterator[Gap]:
    """A gap for each reason why stacks are missing."""
    without: dict[NoStack, list[int]] = {}
    for row in rows:
        if row["no_stack"]:
            without.setdefault(NoStack(**row["no_stack"]), []).append(row["pid"])
    for failed, pids in without.items():
        shown = ", ".join(map(str, pids[:5])) + (" …" if len(pids) > 5 else "")
        yield Gap(f"the stacks of {shown}", failed.reason, stacks.fix(failed.cause, pids[0]))


def _redacted(rows: list[Row], token: Token | None = None) -> list[Row]:
    """The rows without secrets in titles, names of threads and locals."""
    redactor = shared([token.value] if token else [])
    return [redactor.redact_json(row) for row in rows]


# ------------------------------------------------------------------ other nodes


def _elsewhere(
    cluster: Cluster, chosen: Suspects, options: StackOptions, found: Found
) -> list[Row]:
    """Rows of other nodes; adds a gap for what a node cannot provide."""
    asks = {
        node: {"wanted": [each._asdict() for each in wanted], "options": options._asdict()}
        for node, wanted in chosen.elsewhere.items()
    }
    rows: list[Row] = []
    for answer in there.ask(cluster, asks, _FUNCTION, 2 * options.timeout):
        where = f"the stacks on node {answer.node[:12]}"
        if answer.problem:
            found.gaps.append(Gap(where, answer.problem, answer.hint))
            continue
        rows += answer.value
        found.gaps += _gaps(answer.value)
        missing = len(asks[answer.node]["wanted"]) - len(answer.value)
        if missing:
            found.gaps.append(Gap(where, f"{missing} ended, or are in another container there"))
    return rows


def respond(asked: dict[str, Any]) -> list[Row]:
    """On that node: its redacted rows."""
    from raydoctor.observe.stacks.sampling import certain

    options = StackOptions(**asked["options"])
    wanted = certain([ProcessToSample(*each.values()) for each in asked["wanted"]])
    rows = stacks.rows(
        wanted, variables=options.variables, native=options.native, timeout=options.timeout
    )
    return _redacted(rows)


# ------------------------------------------------------------------ the cluster


def ask(cluster: Cluster, timeout: float) -> Known:
    """The tables of the cluster that resolve targets."""
    query = _Query(cluster, timeout)
    query.begin()
    return query.answer()


class _Query:
    """A query of the GCS and the workers in the background."""

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self._cluster = cluster
        self._timeout = timeout
        self._known = Known()
        self._thread = threading.Thread(target=self._ask, name="the GCS", daemon=True)
        self.problem = ""

    def begin(self) -> None:
        """Start the query."""
        if self._cluster.gcs_address:
            self._thread.start()
        else:
            self.problem = "the GCS's address is not known"

    def answer(self) -> Known:
        """Wait for the reply; without one in time, empty tables."""
        if self._thread.ident is not None:
            self._thread.join(self._timeout + 0.5)
        return self._known

    def _ask(self) -> None:
        cluster = self._cluster
        child = Child()
        found: dict[str, list[Row]] = {}
        try:
            for reply in child.ask(cluster.gcs_address, cluster.access(), _TABLES, self._timeout):
                if reply.why:
                    self.problem = reply.why
                found[reply.name] = reply.rows
        finally:
            child.end()
        self._known = Known(*(found.get(name, []) for name in _TABLES))
