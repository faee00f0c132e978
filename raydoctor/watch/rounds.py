"""Watching a cluster that may die and come back: looks, one after the other, as often as their cost allows.

A cluster that answers no more is told once, and asked again and again. One that comes back as what it was
(a head that lost its connection, a GCS that was started again) goes on with its story; another session is
another story. Of several clusters on this machine, only one that takes the first one's place is taken for it.
"""

from __future__ import annotations

import posixpath
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from raydoctor.model.errors import RaydoctorError
from raydoctor.observe import live
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.gcs import token
from raydoctor.observe.processes import discover
from raydoctor.observe.watching.watching import LookError, Snapshot, Watcher
from raydoctor.watch.budget import WatchBudget
from raydoctor.watch.event import WatchEvent, event
from raydoctor.watch.guard import TimeLimitGuard, TimeLimits
from raydoctor.watch.view import WatchOptions, WatchView
from raydoctor.watch.watched_cluster import WatchedCluster

State = Literal["up", "lost", "refused"]
SHARE = 0.003
"""Of a processor: looks that cost more come more rarely. The rest of a hundredth is for children beside:
within the first five minutes there is room for a diagnosis and a look at what hangs (1.9 s measured)."""
_FIRST, _WEIGHT = 2, 0.1
"""Rounds that do not count, and what one counts later."""
_SLOWEST = 30.0
"""Seconds between two looks at the most."""
_NO_HEIR = "NOT_FOUND"
_EVENTS = 200
_END = 10.0
"""Seconds that cancels under way have at the end."""


@dataclass(slots=True)
class Watch:
    """One cluster, watched until it is closed."""

    address: str | None = None
    every: float = 2.0
    limits: TimeLimits | None = None
    options: WatchOptions = field(default_factory=WatchOptions)
    state: State = "up"
    problem: str = ""
    """Why nothing new is known; empty while all is well."""
    events: deque[WatchEvent] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    notes: list[str] = field(default_factory=list)
    """What was chosen for the user."""
    guard: TimeLimitGuard | None = None
    _budget: WatchBudget = field(default_factory=WatchBudget)
    _watched: WatchedCluster | None = None
    _spent_before: float = 0.0
    """What children of earlier stories took."""
    _cost: float = 0.0
    """Seconds of a processor of one round, smoothed."""
    _rounds: int = 0
    _clock: float = 0.0
    _failures: int = 0
    _was_ending: bool = False
    """Whether cancels were under way at the last round."""

    def open(self) -> None:
        """Find the cluster. Raises RaydoctorError where there is none, or it does not take the token."""
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
            self._begin(cluster, watcher, watcher.look(), events)
        except LookError as error:
            raise RaydoctorError(*_in_words(cluster, error)) from error
        self._keep(events)

    @property
    def cluster(self) -> Cluster:
        """The one that is watched."""
        assert self._watched is not None
        return self._watched.cluster

    @property
    def view(self) -> WatchView:
        """What was last known."""
        assert self._watched is not None
        assert self._watched.view is not None
        return self._watched.view

    @property
    def pause(self) -> float:
        """Seconds until the next round: what is wished, unless a round costs too much or fails."""
        if self.state != "up":
            return min(10.0, max(self.every, 1.0) * 2.0 ** min(4, self._failures))
        most = _SLOWEST if self.limits is None else max(self.every, self.limits.timeout / 4)
        return max(self.every, min(self._cost / SHARE, _SLOWEST, most))

    @property
    def cost(self) -> float:
        """The share of a processor that rounds take."""
        return self._cost / max(self.pause, 0.001)

    @property
    def background_s(self) -> float:
        """Seconds of a processor that children beside have taken so far."""
        return self._spent_before + (self._watched.spent if self._watched is not None else 0.0)

    def round(self) -> list[WatchEvent]:
        """Look once more; what happened."""
        assert self._watched is not None
        events: list[WatchEvent] = []
        try:
            (self._look if self.state == "up" else self._look_again)(events)
        except LookError as error:
            events += self._lost(error)
        except Exception as error:  # a guard that one odd message ends is none
            events += self._lost(LookError("INTERNAL", repr(error)))
        self._keep(events)
        self._count()
        return events

    def close(self) -> list[WatchEvent]:
        """The end: what became of the cancels that were under way."""
        events = self.guard.wait(_END) if self.guard is not None else []
        self._keep(events)
        if self._watched is not None:
            self._watched.close()
        return events

    def _count(self) -> None:
        """What a round costs with what is drawn; what is asked in threads has a pace of its own.

        Not what it costs to end a task: the guard must not become slower by what it does.
        """
        own = time.process_time()
        self._budget.own(time.monotonic(), own)
        now = own - (self._watched.spent_in_threads if self._watched else 0.0)
        is_ending = self.guard is not None and self.guard.under_way
        self._rounds += 1
        if self._rounds > _FIRST and not (is_ending or self._was_ending):
            # The first ones have started Python, gRPC and the screen, too.
            weight = max(_WEIGHT, 1 / (self._rounds - _FIRST))
            self._cost += weight * (max(0.0, now - self._clock) - self._cost)
        self._clock, self._was_ending = now, bool(is_ending)

    # -------------------------------------------------------------- one cluster, or the next

    def _begin(
        self, cluster: Cluster, watcher: Watcher, snapshot: Snapshot, events: list[WatchEvent]
    ) -> None:
        self._budget.own(time.monotonic(), time.process_time())  # what the start took
        watched = WatchedCluster(cluster, watcher, self.options, self.guard, self._budget)
        watched.add(snapshot, events)
        if self._watched is not None:
            self._watched.close()
            self._spent_before += self._watched.spent
        self._watched = watched

    def _look(self, events: list[WatchEvent]) -> None:
        assert self._watched is not None
        snapshot = self._watched.watcher.look()
        if self._watched.is_same(snapshot):
            self._watched.add(snapshot, events)
            if any(each.event in ("node-joined", "node-gone") for each in events):
                with suppress(LookError):
                    self._watched.use(self._found_again())  # one of them may be on this machine
        else:
            self._look_again(events)

    def _look_again(self, events: list[WatchEvent]) -> None:
        """After it was lost, or was another: find it anew."""
        assert self._watched is not None
        before = self._watched
        cluster = self._found_again()
        watcher = Watcher(cluster)
        try:
            snapshot = watcher.look()
        except LookError:
            watcher.close()
            raise
        if before.is_same(snapshot):
            before.watcher.close()
            before.use(cluster, watcher)
            before.add(snapshot, events)
            if self.state != "up":
                events.append(event("cluster-back", "ok", "the cluster answers again"))
        else:
            text = f"a new session: {snapshot.session or cluster.gcs_address}"
            events.append(event("cluster-new", "info", text, session=snapshot.session))
            self._begin(cluster, watcher, snapshot, events)
        self.state, self.problem, self._failures = "up", "", 0

    def _found_again(self) -> Cluster:
        """What now takes the place of the cluster. Raises LookError where nothing does."""
        before = self.cluster
        if not before.session_dir:  # it is on other machines: its address is all that is known
            return before
        folder = posixpath.dirname(before.session_dir)
        for found in discover.clusters():
            is_its = found.gcs_address == before.gcs_address or (
                posixpath.dirname(found.session_dir) == folder
            )
            is_its = is_its and found.owner == before.owner
            if is_its and found.is_up and found.gcs_address:
                return replace(found, token=token.find(found))
        raise LookError(_NO_HEIR, "no cluster runs in its place")

    def _lost(self, error: LookError) -> list[WatchEvent]:
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
        text = f"{message}; it is asked again"
        return [event("cluster-lost", "error", text, code=error.code), *found]

    def _keep(self, events: list[WatchEvent]) -> None:
        self.events.extend(events)


def _in_words(cluster: Cluster, error: LookError) -> tuple[str, str]:
    """What is the matter, and what to do."""
    where = f"the GCS at {cluster.gcs_address}"
    if error.is_refusal:
        what = "refused the token" if cluster.token else "demands a token, and none was found"
        return (
            f"{where} {what}",
            "Put the cluster's token into RAY_AUTH_TOKEN or ~/.ray/auth_token: on its head node, "
            "`ray get-auth-token` prints it.",
        )
    detail = {
        "UNAVAILABLE": "is not reached",
        "DEADLINE_EXCEEDED": "does not answer",
        _NO_HEIR: "is gone, and no cluster runs in its place",
    }
    told = detail.get(error.code) or f"did not tell ({error})"
    return f"{where} {told}", "What is wrong with it: raydoctor diagnose"
