"""Watching a cluster that may die and come back: rounds, as often as their cost allows.

A cluster that stops replying is reported once and queried repeatedly. If the same session comes back (a head
that lost its connection, a restarted GCS), the watch resumes; a new session starts a new `WatchedCluster`. Of
several clusters on this machine, only one in the same place counts as the successor.
"""

from __future__ import annotations

import posixpath
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe import live
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.gcs import token
from raydoctor.observe.processes import discover
from raydoctor.observe.watching.watching import QueryError, Snapshot, Watcher
from raydoctor.watch.budget import WatchBudget
from raydoctor.watch.event import WatchEvent, event
from raydoctor.watch.guard import GuardLimits, TimeLimitGuard
from raydoctor.watch.view import WatchOptions, WatchView
from raydoctor.watch.watched_cluster import WatchedCluster

State = Literal["up", "lost", "refused"]
SHARE = 0.005
"""Of one CPU: rounds that cost more are rarer. With 1,000 tasks on a very busy machine, a round costs 9 ms,
which fits into 2 s. The rest of 1 % is for threads and child processes."""
_FIRST, _WEIGHT = 2, 0.1
"""Initial rounds that are not averaged, and the weight of each later round."""
_SLOWEST = 30.0
"""Maximum seconds between two rounds."""
_NO_HEIR = "NOT_FOUND"
_EVENTS = 200
_END = 10.0
"""Seconds that unfinished cancels may take at the end."""


@dataclass(slots=True)
class Watch:
    """The watch of one cluster, from `open` to `close`."""

    address: str | None = None
    every: float = 2.0
    limits: GuardLimits | None = None
    options: WatchOptions = field(default_factory=WatchOptions)
    state: State = "up"
    problem: str = ""
    """Why the last round failed; empty if it succeeded."""
    events: deque[WatchEvent] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    notes: list[str] = field(default_factory=list)
    """Choices that raydoctor made for the user, such as the cluster."""
    spent_on_keys: float = 0.0
    """CPU seconds of this process for what the user asked for: they make rounds no rarer."""
    guard: TimeLimitGuard | None = None
    sinks: list[Callable[[Sequence[WatchEvent]], Sequence[WatchEvent]]] = field(
        default_factory=list
    )
    """Each gets the events of every round, and returns events of its own."""
    _budget: WatchBudget = field(default_factory=WatchBudget)
    _watched: WatchedCluster | None = None
    _spent_before: float = 0.0
    """CPU seconds of the child processes of earlier sessions."""
    _cost: float = 0.0
    """CPU seconds of one round, smoothed."""
    _rounds: int = 0
    _began: float = 0.0
    """When the last round began, by `time.monotonic`."""
    _interval: float = 0.0
    """Seconds between the starts of the last two rounds; 0 before the second one."""
    _clock: float = 0.0
    _failures: int = 0
    _was_ending: bool = False
    """Whether there were unfinished cancels at the last round."""

    def open(self) -> None:
        """Find the cluster. Raises RaydoctorError if there is none, or if it refuses the token."""
        if self.limits is not None:
            self.guard = TimeLimitGuard(self.limits)
        cluster, self.notes = live.find(self.address)
        if not cluster.is_up or not cluster.gcs_address:
            raise RaydoctorError(
                "no cluster runs on this machine", "Name one: --address HOST:PORT of its GCS."
            )
        watcher = Watcher(cluster)
        events: list[WatchEvent] = []
        try:
            self._begin(cluster, watcher, watcher.snapshot(), events)
        except QueryError as error:
            raise RaydoctorError(*_in_words(cluster, error)) from error
        self._began = time.monotonic()
        self._emit(events)

    @property
    def cluster(self) -> Cluster:
        """The watched cluster."""
        assert self._watched is not None
        return self._watched.cluster

    @property
    def view(self) -> WatchView:
        """The latest known state."""
        assert self._watched is not None
        assert self._watched.view is not None
        return self._watched.view

    @property
    def pause(self) -> float:
        """Seconds until the next round: as requested, unless rounds cost too much or fail."""
        if self.state != "up":
            return min(10.0, max(self.every, 1.0) * 2.0 ** min(4, self._failures))
        most = _SLOWEST if self.limits is None else max(self.every, self.limits.timeout / 4)
        return max(self.every, min(self._cost / SHARE, _SLOWEST, most))

    @property
    def next_round(self) -> float:
        """When the next round is due, by `time.monotonic`; a round that took long leaves half a pause."""
        return max(self._began + self.pause, time.monotonic() + self.pause / 2)

    @property
    def interval(self) -> float:
        """Seconds between rounds: the planned ones, or the measured ones if the last round was late."""
        return max(self.pause, self._interval)

    @property
    def cost(self) -> float:
        """The share of one CPU that rounds use."""
        return self._cost / max(self.interval, 0.001)

    @property
    def background_s(self) -> float:
        """CPU seconds that child processes have used so far."""
        return self._spent_before + (self._watched.spent if self._watched is not None else 0.0)

    def round(self) -> list[WatchEvent]:
        """Do one round; its events."""
        assert self._watched is not None
        events: list[WatchEvent] = []
        began = time.monotonic()
        self._interval, self._began = began - self._began, began
        try:
            (self._look if self.state == "up" else self._look_again)(events)
        except QueryError as error:
            events += self._lost(error)
        except Exception as error:  # one malformed message must not end the guard
            events += self._lost(QueryError("INTERNAL", repr(error)))
        self._emit(events)
        self._count()
        return events

    def close(self) -> list[WatchEvent]:
        """End the watch; the events of the cancels that were unfinished."""
        events = self.guard.wait(_END) if self.guard is not None else []
        self._keep(events)
        if self._watched is not None:
            self._watched.close()
        return events

    def _count(self) -> None:
        """Measure the cost of a round and its output; threads have intervals of their own.

        The cost of cancels does not count: they must not slow down the guard.
        """
        own = time.process_time()
        self._budget.own(time.monotonic(), own - self.spent_on_keys)
        now = own - self.spent_on_keys - (self._watched.spent_in_threads if self._watched else 0.0)
        is_ending = self.guard is not None and self.guard.under_way
        self._rounds += 1
        if self._rounds > _FIRST and not (is_ending or self._was_ending):
            # The first rounds include the start of Python, gRPC and the screen.
            weight = max(_WEIGHT, 1 / (self._rounds - _FIRST))
            self._cost += weight * (max(0.0, now - self._clock) - self._cost)
        self._clock, self._was_ending = now, bool(is_ending)

    # -------------------------------------------------------------- one session, or the next

    def _begin(
        self, cluster: Cluster, watcher: Watcher, snapshot: Snapshot, events: list[WatchEvent]
    ) -> None:
        self._budget.own(time.monotonic(), time.process_time())  # the cost of the start
        watched = WatchedCluster(cluster, watcher, self.options, self.guard, self._budget)
        watched.add(snapshot, events)
        if self._watched is not None:
            self._watched.close()
            self._spent_before += self._watched.spent
        self._watched = watched

    def _look(self, events: list[WatchEvent]) -> None:
        assert self._watched is not None
        snapshot = self._watched.watcher.snapshot()
        if self._watched.is_same(snapshot):
            self._watched.add(snapshot, events)
            if any(each.event in ("node-joined", "node-gone") for each in events):
                with suppress(QueryError):
                    self._watched.use(self._found_again())  # one of them may be on this machine
        else:
            self._look_again(events)

    def _look_again(self, events: list[WatchEvent]) -> None:
        """Find the cluster again after it was lost or replaced."""
        assert self._watched is not None
        before = self._watched
        cluster = self._found_again()
        watcher = Watcher(cluster)
        try:
            snapshot = watcher.snapshot()
        except QueryError:
            watcher.close()
            raise
        if before.is_same(snapshot):
            before.watcher.close()
            before.use(cluster, watcher)
            before.add(snapshot, events)
            if self.state != "up":
                events.append(event("cluster-back", "ok", "The cluster replies again"))
        else:
            text = f"A new session: {snapshot.session or cluster.gcs_address}"
            events.append(event("cluster-new", "info", text, session=snapshot.session))
            self._begin(cluster, watcher, snapshot, events)
        self.state, self.problem, self._failures = "up", "", 0

    def _found_again(self) -> Cluster:
        """The cluster or its successor. Raises QueryError if there is none."""
        before = self.cluster
        if not before.session_dir:  # it runs on other machines: only its address is known
            return before
        folder = posixpath.dirname(before.session_dir)
        for found in discover.clusters():
            is_its = found.gcs_address == before.gcs_address or (
                posixpath.dirname(found.session_dir) == folder
            )
            is_its = is_its and found.owner == before.owner
            if is_its and found.is_up and found.gcs_address:
                return replace(found, token=token.find(found))
        raise QueryError(_NO_HEIR, "no cluster runs in its place")

    def _lost(self, error: QueryError) -> list[WatchEvent]:
        assert self._watched is not None
        self._failures += 1
        found: list[WatchEvent] = []
        self._watched.lost(found)
        state: State = "refused" if error.is_refusal else "lost"
        message, hint = _in_words(self.cluster, error)
        was, self.state, self.problem = self.state, state, message
        if was == state:
            return found
        if state == "refused":
            return [event("token-refused", "error", f"{message}. {hint}", code=error.code), *found]
        text = f"{message}; raydoctor keeps trying"
        return [event("cluster-lost", "error", text, code=error.code), *found]

    def _emit(self, events: list[WatchEvent]) -> None:
        for sink in self.sinks:
            events += sink(tuple(events))
        self._keep(events)

    def _keep(self, events: list[WatchEvent]) -> None:
        self.events.extend(events)


def _in_words(cluster: Cluster, error: QueryError) -> tuple[str, str]:
    """The problem, and a hint."""
    where = f"The GCS at {cluster.gcs_address}"
    if error.is_refusal:
        what = "refused the token" if cluster.token else "requires a token, and none was found"
        return (
            f"{where} {what}",
            "Put the cluster's token into RAY_AUTH_TOKEN or ~/.ray/auth_token: on its head node, "
            "`ray get-auth-token` prints it.",
        )
    detail = {
        "UNAVAILABLE": "cannot be reached",
        "DEADLINE_EXCEEDED": "does not reply",
        _NO_HEIR: "is gone, and no cluster runs in its place",
    }
    problem = detail.get(error.code) or f"returned an error ({error})"
    hint = paste.shell(
        "Diagnose it: raydoctor diagnose --address {gcs:address}", gcs=cluster.gcs_address
    )
    return f"{where} {problem}", hint
