"""The cluster's own tables: tasks, actors, workers, nodes, jobs, placement groups, objects, demands.

They come from two sources, which are queried in parallel. The dashboard is queried while a child process
loads gRPC. The child then queries GCS and workers for what only they hold (demands, running tasks, exceptions
of drivers) or hold more completely (tasks: the state API returns the first 10,000 by id and reports them as
all), and last for the tables that the dashboard did not return because it is absent, dead, hung, rejects the
token, or truncates.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.collector.run import Collector
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.gcs import dashboard, metrics
from raydoctor.observe.gcs.gcs import Child
from raydoctor.observe.gcs.programs import gcs_messages, gcs_tables
from raydoctor.observe.gcs.replies import Probe, Reply

WHAT = "the cluster's state"
_BETTER_IN_GCS = ("workers", "tasks")
"""Tables that the dashboard is asked for only if the GCS does not answer."""
_OF_DASHBOARD = tuple(name for name in dashboard.TABLES if name not in _BETTER_IN_GCS)
_OF_GCS = tuple(name for name, each in gcs_tables.TABLES.items() if each.is_always_wanted)
_QUICK = ("metrics", *_OF_GCS)
"""Tables that are always requested from the child; the tasks come after them, as they may take a second."""
_BRIEF = ("nodes", "actors", "placement-groups")
_OF_METRICS = ("ray-get", "task-counts", "node-usage")
_PEERS = ("finished",)
"""Duration of finished tasks, by function: requested only if a task has been running for long."""
_OPTIONAL = ("objects", *_PEERS)
_CALLED = {
    "ray-get": "tasks that wait in ray.get",
    "task-counts": "numbers of tasks by state",
    "node-usage": "use of CPUs and memory by nodes",
    **{name: each.called for name, each in gcs_tables.TABLES.items() if each.called},
}
"""Tables whose names would not tell a reader what is missing."""
PEERS_AFTER = 60.0
"""Seconds after which a task counts as long-running. The request takes 0.6 s if the GCS holds its maximum
of 100,000 tasks."""
_MARGIN = 0.9
"""Share of a collector's timeout: the results must be yielded before it expires."""
_PATIENCE = 0.3
"""Seconds for the dashboard to report whether a token is required, before the GCS is queried."""
_ENDPOINT = 0.3
"""Share of the timeout for one endpoint of the dashboard."""
_SECOND = 0.35
"""Share of the timeout reserved for querying the GCS for what the dashboard did not return."""


def collectors(
    cluster: Cluster, timeout: float, peers_after: float = PEERS_AFTER, all_after: float = math.inf
) -> list[Collector]:
    """The collector of the cluster's own tables."""
    return [
        Collector(WHAT, lambda: tables(cluster, timeout, peers_after, all_after), about="tasks")
    ]


def tables(
    cluster: Cluster, timeout: float, peers_after: float = PEERS_AFTER, all_after: float = math.inf
) -> Iterator[Piece | Gap]:
    """The cluster's tables, in less than `timeout` seconds even if parts of it are dead or hung.

    `peers_after`: seconds after which a running task is compared with finished ones of its function;
    `all_after`: the same, if no running task is younger.
    """
    child = Child() if cluster.gcs_address else None
    try:
        yield from _Inquiry(cluster, child, timeout * _MARGIN, peers_after, all_after).items()
    finally:
        if child is not None:
            child.end()


def brief(cluster: Cluster, child: Child, timeout: float) -> Iterator[Piece | Gap]:
    """The tables of the cluster's nodes and of its pending work, from the GCS and the workers alone.

    `child`: already started; it is not ended here.
    """
    without = replace(cluster, dashboard_address="")
    inquiry = _Inquiry(without, child, timeout * _MARGIN, math.inf, math.inf, _BRIEF, ("tasks",))
    yield from inquiry.items()


@dataclass(slots=True)
class _Inquiry:
    """One query of one cluster."""

    cluster: Cluster
    child: Child | None
    timeout: float
    peers_after: float = PEERS_AFTER
    all_after: float = math.inf
    of_both: tuple[str, ...] = _OF_DASHBOARD
    """Wanted tables that the dashboard and the GCS hold."""
    better_in_gcs: tuple[str, ...] = _BETTER_IN_GCS
    deadline: float = 0.0
    door: dashboard.Door = field(default_factory=lambda: dashboard.Door(()))
    door_known: threading.Event = field(default_factory=threading.Event)
    found: dict[str, Reply] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    """Table -> why it is missing or incomplete."""
    broken: list[Gap] = field(default_factory=list)

    def items(self) -> Iterator[Piece | Gap]:
        self.deadline = time.monotonic() + self.timeout
        board = self._start("the dashboard", self._by_dashboard)
        gcs = self._start("the GCS", self._by_gcs)
        gcs.join(self._left())
        board.join(max(0.0, self._left() - self.timeout * _SECOND))
        if not gcs.is_alive() and not self._refusal():
            self._second_way()
        yield from self._pieces()
        yield from self._gaps()

    def _start(self, source: str, ask: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                ask()
            except Exception as error:
                self.broken.append(
                    Gap(f"{WHAT}: {source}", f"failed: {error!r}"[:300], about="tasks")
                )

        thread = threading.Thread(target=guarded, name=source, daemon=True)
        thread.start()
        return thread

    def _left(self) -> float:
        return max(0.05, self.deadline - time.monotonic())

    def _access(self) -> Access:
        """Without the token if the cluster requires none."""
        return self.cluster.access(self.door.token_mode)

    def _by_dashboard(self) -> None:
        address = self.cluster.dashboard_address
        if address:
            self.door = dashboard.knock(address, self.cluster.access(True), self._left())
        self.door_known.set()
        if self.door.is_open:
            patience = min(self._left(), self.timeout * _ENDPOINT)
            self._keep(dashboard.tables(address, self._access(), self.of_both, patience))

    def _by_gcs(self) -> None:
        self.door_known.wait(_PATIENCE)
        # If the dashboard rejected the token, so will the GCS: probe it, but request no tables.
        self._ask_gcs(() if self.door.refusal else _QUICK)
        nodes = self.found.pop("metrics", None)
        self.why.pop("metrics", None)
        counting = self._start("the metrics", lambda: self._count(nodes.rows)) if nodes else None
        if not self.door.refusal:
            if self.door_known.is_set() and not self.door.is_open:
                self._ask_gcs(self.of_both)
            self._ask_gcs(self.better_in_gcs)
            if self._is_something_old():
                self._ask_gcs(_PEERS)
        if counting is not None:
            counting.join(self._left())

    def _is_something_old(self) -> bool:
        """Whether tasks have been running for so long that they are compared with finished ones."""
        tasks, now = self.found.get("tasks"), time.time()
        running = [row for row in tasks.rows if row["state"] == "RUNNING"] if tasks else []
        ages = [now - started / 1000 for row in running if (started := row.get("start_time_ms"))]
        return bool(ages) and (max(ages) > self.peers_after or min(ages) > self.all_after)

    def _ask_gcs(self, names: Sequence[str]) -> None:
        if self.child is None:
            self.why.update(
                {name: self.why.get(name, "the GCS's address is not known") for name in names}
            )
            return
        address = self.cluster.gcs_address
        self._keep(self.child.ask(address, self._access(), names, self._left()))

    def _count(self, nodes: list[dict[str, Any]]) -> None:
        """Query the metrics of the nodes."""
        total, usage, silent = metrics.counts(nodes, self.cluster.access(False))
        now = time.time()
        for name, rows in (
            ("ray-get", metrics.blocked(total)),
            ("task-counts", metrics.by_state(total)),
            ("node-usage", usage),
        ):
            if len(silent) < len(nodes):
                self.found[name] = Reply(name, rows, len(rows), at=now, source="metrics")
            if silent:
                more = " …" if len(silent) > 3 else ""
                endpoints = "endpoint" if len(silent) == 1 else "endpoints"
                self.why[name] = (
                    f"no reply from the metrics {endpoints} {', '.join(silent[:3])}{more}"
                )

    def _second_way(self) -> None:
        """Request each missing table from the other source."""
        wanted = (*self.of_both, *self.better_in_gcs)
        missing = [name for name in wanted if name in self.why or name not in self.found]
        if self._gcs_answers():
            self._ask_gcs([name for name in missing if name not in self.better_in_gcs])
        elif self.door.is_open and (left := set(missing).intersection(self.better_in_gcs)):
            address = self.cluster.dashboard_address
            self._keep(dashboard.tables(address, self._access(), sorted(left), self._left()))

    def _gcs_answers(self) -> bool:
        probe = self.child.probe if self.child is not None else None
        return probe is not None and probe.outcome == "ok"

    def _keep(self, answers: Iterator[Reply]) -> None:
        for reply in answers:
            if not reply.why:
                self.found[reply.name] = reply
                self.why.pop(reply.name, None)
                continue
            before = self.why.get(reply.name)
            self.why[reply.name] = f"{before}; {reply.why}" if before else reply.why
            if reply.rows and reply.name not in self.found:
                self.found[reply.name] = reply

    def _pieces(self) -> Iterator[Piece]:
        yield table("probes", [probe._asdict() for probe in self._probes()], source="raydoctor")
        for name, reply in sorted(dict(self.found).items()):
            yield table(
                name, reply.rows, source=reply.source, total=reply.total, at=reply.at or None
            )

    def _probes(self) -> list[Probe]:
        probes = list(self.door.probes)
        gcs = self._gcs_probe()
        if gcs is None:
            return probes
        known = any(probe.name == "auth" for probe in probes)
        return [*probes, gcs] if known else [*probes, gcs, *self._auth_of(gcs)]

    def _gcs_probe(self) -> Probe | None:
        if self.child is None:
            return None
        if self.child.probe is not None:
            return self.child.probe
        outcome = "timeout" if self.child.is_late or not self.child.problem else "error"
        return Probe("gcs", self.cluster.gcs_address, outcome, 0.0, self.child.problem)

    def _auth_of(self, gcs: Probe) -> Iterator[Probe]:
        """Whether the token was accepted, from the GCS's reply if no dashboard reported it."""
        if gcs.outcome == "unauthenticated":
            refusal = "wrong" if self._access().token else "missing"
            yield gcs._replace(name="auth", detail=f"token: {refusal}", refusal=refusal)
        elif gcs.outcome == "ok":
            # The GCS also accepts an unneeded token: either way, the token is not the problem.
            yield gcs._replace(
                name="auth", detail="token: ok" if self._access().token else "token: not needed"
            )

    def _refusal(self) -> str:
        return next((probe.refusal for probe in self._probes() if probe.refusal), "")

    def _gaps(self) -> Iterator[Gap]:
        yield from self.broken
        if refusal := self._refusal():
            yield _about_token(self.cluster, refusal)
            return
        found = dict(self.found)
        wanted = (*self.of_both, *self.better_in_gcs, *_OF_GCS)
        why = {name: self._reason(name) for name in wanted if name not in found}
        partial = (*found, *_OF_METRICS, *_PEERS)
        why |= {name: reason for name, reason in self.why.items() if name in partial}
        names: dict[str, list[str]] = {}
        for name, reason in why.items():
            names.setdefault(reason, []).append(name)
        for reason, group in names.items():
            parts = ", ".join(_CALLED.get(name, name.replace("-", " ")) for name in group)
            what = WHAT if len(group) == len(wanted) else f"{WHAT} ({parts})"
            optional = set(group) <= {*_OPTIONAL, *_OF_METRICS}
            yield Gap(what, reason, optional=optional, about="tasks")
        yield from _about_version(self.child.about if self.child is not None else {})

    def _reason(self, name: str) -> str:
        """Why a table is missing: first of all, a source that cannot be reached."""
        reason = self.why.get(name, "no reply in time")
        board = next((p for p in self.door.probes if p.outcome != "ok"), None)
        gcs = None if self._gcs_answers() else self._gcs_probe()
        if gcs is None:
            return reason
        sources = [_failure("dashboard", board)] if board is not None else []
        if board is None and self.door.is_open and name in dashboard.TABLES:
            sources = [reason]
        return "; ".join([*sources, _failure("GCS", gcs)])


def _failure(component: str, probe: Probe) -> str:
    how = {"refused": "refused the connection", "timeout": "did not answer"}
    problem = how.get(probe.outcome) or f"failed ({probe.detail})"
    return f"the {component} at {probe.address} {problem}"


def _about_version(about: Mapping[str, str]) -> Iterator[Gap]:
    """A gap if the cluster runs a newer Ray, whose messages may have different field numbers."""
    version = about.get("ray_version", "")
    if gcs_messages.is_newer(version):
        known = gcs_messages.versions()[-1]
        why = (
            f"the cluster runs Ray {version}; raydoctor supports the messages of Ray up to {known}"
        )
        hint = (
            f"Values may be missing or wrong. Update: {sys.executable} -m pip install -U raydoctor"
        )
        yield Gap(WHAT, why, hint, optional=True, about="tasks")


def _about_token(cluster: Cluster, refusal: str) -> Gap:
    """What to do if the cluster rejects the token; the token itself is not shown."""
    where = "`ray get-auth-token` on its head node prints it"
    if refusal == "missing" or cluster.token is None:
        return Gap(
            WHAT,
            "the cluster requires a token, and none is in RAY_AUTH_TOKEN, in the file named by "
            "RAY_AUTH_TOKEN_PATH, or in ~/.ray/auth_token",
            f"Put the cluster's token into one of them: {where}.",
            about="tasks",
        )
    return Gap(
        WHAT,
        f"the cluster rejected the token from {cluster.token.origin}",
        f"Replace it with the cluster's token: {where}.",
        about="tasks",
    )
