"""What the cluster says of itself: tasks, actors, workers, nodes, jobs, placement groups, objects, demands.

Two ways lead there, and both are tried at once. The dashboard is asked for what it has ready, while a child
process loads gRPC; the child then asks GCS and workers for what only they know (demands, what workers run)
or know better (tasks: the state API takes the first 10,000 by id and calls them all), and at last for
whatever the dashboard did not give, because it is absent, dead, hangs, refuses, or cuts its list.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.collector.run import Collector
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.gcs import dashboard, metrics
from raydoctor.observe.gcs.gcs import Child
from raydoctor.observe.gcs.programs import gcs_messages
from raydoctor.observe.gcs.told import Probe, Reply

WHAT = "the cluster's state"
_OF_DASHBOARD = tuple(name for name in dashboard.TABLES if name != "tasks")
_QUICK = ("metrics", "resources", "demands", "worker-stats")
"""What the child is asked for in any case; and, after that, for the tasks, which may take a second."""
_ALL = (*dashboard.TABLES, "resources", "demands", "worker-stats")
_OF_METRICS = ("ray-get", "task-counts")
_PEERS = ("finished",)
"""How long functions took before: asked only for a task that has run for long."""
_OPTIONAL = ("objects", *_PEERS)
PEERS_AFTER = 60.0
"""Seconds after which a task has: the question costs 0.6 s where the GCS holds its 100,000 tasks."""
_MARGIN = 0.9
"""Of the time that a collector has: what was found must be told before it is over."""
_PATIENCE = 0.3
"""Seconds for the dashboard to say whether a token is needed before the GCS is asked with it."""
_ENDPOINT = 0.3
"""Of the time, for one endpoint of the dashboard."""
_SECOND = 0.35
"""Of the time, for what the dashboard does not give: it is not waited for longer."""


def collectors(
    cluster: Cluster, timeout: float, peers_after: float = PEERS_AFTER
) -> list[Collector]:
    """What asks the cluster itself."""
    return [Collector(WHAT, lambda: tables(cluster, timeout, peers_after), about="tasks")]


def tables(
    cluster: Cluster, timeout: float, peers_after: float = PEERS_AFTER
) -> Iterator[Piece | Gap]:
    """Its tables, in less than `timeout` seconds, whatever of it is dead or hangs.

    `peers_after`: seconds after which a running task is compared with finished ones of its function.
    """
    child = Child() if cluster.gcs_address else None
    try:
        yield from _Inquiry(cluster, child, timeout * _MARGIN, peers_after).items()
    finally:
        if child is not None:
            child.end()


@dataclass(slots=True)
class _Inquiry:
    """One cluster, asked once."""

    cluster: Cluster
    child: Child | None
    timeout: float
    peers_after: float = PEERS_AFTER
    deadline: float = 0.0
    door: dashboard.Door = field(default_factory=lambda: dashboard.Door(()))
    door_known: threading.Event = field(default_factory=threading.Event)
    found: dict[str, Reply] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    """Table -> why it is missing, or not all of it is there."""
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

    def _start(self, whom: str, ask: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                ask()
            except Exception as error:
                self.broken.append(
                    Gap(f"{WHAT}: {whom}", f"failed: {error!r}"[:300], about="tasks")
                )

        thread = threading.Thread(target=guarded, name=whom, daemon=True)
        thread.start()
        return thread

    def _left(self) -> float:
        return max(0.05, self.deadline - time.monotonic())

    def _access(self) -> Access:
        """What to send: no token to a cluster that demands none."""
        return self.cluster.access(self.door.token_mode)

    def _by_dashboard(self) -> None:
        address = self.cluster.dashboard_address
        if address:
            self.door = dashboard.knock(address, self.cluster.access(True), self._left())
        self.door_known.set()
        if self.door.is_open:
            patience = min(self._left(), self.timeout * _ENDPOINT)
            self._keep(dashboard.tables(address, self._access(), _OF_DASHBOARD, patience))

    def _by_gcs(self) -> None:
        self.door_known.wait(_PATIENCE)
        # Whom the dashboard refused, the GCS refuses: it is asked only to say so itself.
        self._ask_gcs(() if self.door.refusal else _QUICK)
        nodes = self.found.pop("metrics", None)
        self.why.pop("metrics", None)
        counting = self._start("the metrics", lambda: self._count(nodes.rows)) if nodes else None
        if not self.door.refusal:
            if self.door_known.is_set() and not self.door.is_open:
                self._ask_gcs(_OF_DASHBOARD)
            self._ask_gcs(("tasks",))
            if self._is_something_old():
                self._ask_gcs(_PEERS)
        if counting is not None:
            counting.join(self._left())

    def _is_something_old(self) -> bool:
        """Whether a task has run for so long that its peers matter."""
        told = self.found.get("tasks")
        before = 1000 * (time.time() - self.peers_after)
        running = (row for row in told.rows if row["state"] == "RUNNING") if told else ()
        return any(started < before for row in running if (started := row.get("start_time_ms")))

    def _ask_gcs(self, names: Sequence[str]) -> None:
        if self.child is None:
            self.why.update(
                {name: self.why.get(name, "the GCS's address is not known") for name in names}
            )
            return
        address = self.cluster.gcs_address
        self._keep(self.child.ask(address, self._access(), names, self._left()))

    def _count(self, nodes: list[dict[str, Any]]) -> None:
        """The metrics of the nodes."""
        total, silent = metrics.counts(nodes, self.cluster.access(False))
        now = time.time()
        for name, rows in (
            ("ray-get", metrics.blocked(total)),
            ("task-counts", metrics.by_state(total)),
        ):
            if len(silent) < len(nodes):
                self.found[name] = Reply(name, rows, len(rows), at=now, source="metrics")
            if silent:
                more = " …" if len(silent) > 3 else ""
                self.why[name] = f"no metrics from {', '.join(silent[:3])}{more}"

    def _second_way(self) -> None:
        """Each table that the one did not give, asked of the other."""
        missing = [name for name in dashboard.TABLES if name in self.why or name not in self.found]
        if self._gcs_answers():
            self._ask_gcs([name for name in missing if name != "tasks"])
        elif self.door.is_open and "tasks" in missing:
            address = self.cluster.dashboard_address
            self._keep(dashboard.tables(address, self._access(), ("tasks",), self._left()))

    def _gcs_answers(self) -> bool:
        probe = self.child.probe if self.child is not None else None
        return probe is not None and probe.outcome == "ok"

    def _keep(self, answers: Iterator[Reply]) -> None:
        for told in answers:
            if not told.why:
                self.found[told.name] = told
                self.why.pop(told.name, None)
                continue
            before = self.why.get(told.name)
            self.why[told.name] = f"{before}; {told.why}" if before else told.why
            if told.rows and told.name not in self.found:
                self.found[told.name] = told

    def _pieces(self) -> Iterator[Piece]:
        yield table("probes", [probe._asdict() for probe in self._probes()], source="raydoctor")
        for name, told in sorted(dict(self.found).items()):
            yield table(name, told.rows, source=told.source, total=told.total, at=told.at or None)

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
        """What the GCS's answer says of the token, where no dashboard does."""
        if gcs.outcome == "unauthenticated":
            refusal = "wrong" if self._access().token else "missing"
            yield gcs._replace(name="auth", detail=f"token: {refusal}", refusal=refusal)
        elif gcs.outcome == "ok":
            # Sent to a cluster that takes any, it was not needed, either way it is not the problem.
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
        why = {name: self._reason(name) for name in _ALL if name not in found}
        why |= {
            name: told for name, told in self.why.items() if name in (*found, *_OF_METRICS, *_PEERS)
        }
        names: dict[str, list[str]] = {}
        for name, told in why.items():
            names.setdefault(told, []).append(name)
        for told, group in names.items():
            what = WHAT if len(group) == len(_ALL) else f"{WHAT}: {', '.join(group)}"
            yield Gap(what, told, optional=set(group) <= {*_OPTIONAL, *_OF_METRICS}, about="tasks")
        yield from _about_version(self.child.about if self.child is not None else {})

    def _reason(self, name: str) -> str:
        """Why a table is missing; where one of the two ways is closed, that is the reason."""
        told = self.why.get(name, "was not answered in time")
        board = next((p for p in self.door.probes if p.outcome != "ok"), None)
        gcs = None if self._gcs_answers() else self._gcs_probe()
        if gcs is None:
            return told
        ways = [_phrase("dashboard", board)] if board is not None else []
        if board is None and self.door.is_open and name in dashboard.TABLES:
            ways = [told]
        return "; ".join([*ways, _phrase("GCS", gcs)])


def _phrase(whom: str, probe: Probe) -> str:
    how = {"refused": "refused the connection", "timeout": "did not answer"}
    return f"the {whom} at {probe.address} {how.get(probe.outcome) or f'failed: {probe.detail}'}"


def _about_version(about: Mapping[str, str]) -> Iterator[Gap]:
    """Ray gives new numbers to fields now and then: those of a newer version are not known here."""
    version = about.get("ray_version", "")
    if gcs_messages.is_newer(version):
        known = gcs_messages.versions()[-1]
        why = f"it runs Ray {version}, and raydoctor knows Ray's messages up to {known}"
        hint = (
            f"Values may be missing or wrong. Update: {sys.executable} -m pip install -U raydoctor"
        )
        yield Gap(WHAT, why, hint, optional=True, about="tasks")


def _about_token(cluster: Cluster, refusal: str) -> Gap:
    """What to do where the cluster does not take the token; its value is not told."""
    where = "on its head node, `ray get-auth-token` prints the right one"
    if refusal == "missing" or cluster.token is None:
        return Gap(
            WHAT,
            "the cluster demands a token, and there is none in RAY_AUTH_TOKEN, in the file that "
            "RAY_AUTH_TOKEN_PATH names, or else in ~/.ray/auth_token",
            f"put the cluster's token into one of them: {where}",
            about="tasks",
        )
    return Gap(
        WHAT,
        f"the cluster refused the token of {cluster.token.origin}",
        f"replace it: {where}",
        about="tasks",
    )
