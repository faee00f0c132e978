"""Start time of each running task, from snapshot to snapshot: pure.

A clock belongs to one attempt on one worker. It starts at the first snapshot with the task, so it is at most
one round late and never early. The start time from the GCS then corrects it, but is limited by the last
snapshot without the task, because it comes from the clock of the worker's machine, which may be wrong. When
this machine's clock is set, or the machine was suspended, all clocks are shifted, so that no task gets older.
A retry is a new attempt with a new clock, even on the same worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from raydoctor.observe.watching.watching import Attempt, ReportedTask, Snapshot

_ASKS = 3
_STEP = 0.5
"""Largest difference in seconds of the two clocks' progress between snapshots, unless one was set."""
_AGAIN = 1.0
"""A start time more than these seconds after the first snapshot belongs to a later attempt."""


class RunningClock(NamedTuple):
    """A running task and its clock."""

    run: ReportedTask
    began: float
    """Epoch seconds."""
    seen: float
    """Time of the first snapshot with it."""
    unseen: float
    """Time of the snapshot before, in which it did not run there; 0 if there was none."""
    reported: Attempt | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """The task, its worker, and the number of the attempt, if known."""
        return self.run.task, self.run.worker, self.reported.attempt if self.reported else 0

    def age(self, now: float) -> float:
        """Seconds that it has been running."""
        return max(0.0, now - self.began)


class Clocks:
    """The clocks of all running tasks."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], RunningClock] = {}
        self._last = 0.0
        self._steady = 0.0
        """`Snapshot.steady` of the last snapshot."""
        self._asked: Counter[tuple[str, str]] = Counter()

    def see(self, snapshot: Snapshot) -> list[RunningClock]:
        """The tasks that run now; a worker that does not answer is assumed to still run its tasks."""
        self._follow(snapshot)
        now: dict[tuple[str, str], RunningClock] = {}
        for run in snapshot.running:
            key = (run.task, run.worker)
            now[key] = self._known.get(key) or RunningClock(
                run, snapshot.at, snapshot.at, self._last
            )
        for key, running in self._known.items():
            if running.run.worker in snapshot.silent:
                now.setdefault(key, running)
        self._known, self._last = now, snapshot.at
        self._asked = Counter({key: asks for key, asks in self._asked.items() if key in now})
        return self.running()

    def _follow(self, snapshot: Snapshot) -> None:
        """Shift all clocks by the step of the system clock since the last snapshot."""
        before, self._steady = self._steady, snapshot.steady
        step = (
            (snapshot.at - self._last) - (snapshot.steady - before)
            if before and snapshot.steady
            else 0.0
        )
        if abs(step) > _STEP:
            self._last += step
            self._known = {key: _moved(each, step) for key, each in self._known.items()}

    def learn(self, attempts: Iterable[Attempt]) -> None:
        """Correct the clocks by the attempts that the GCS reports."""
        for each in attempts:
            running = self._known.get((each.task, each.worker))
            if running is not None:
                self._known[each.task, each.worker] = _corrected(running, each, self._last)

    def running(self) -> list[RunningClock]:
        """The tasks of the last snapshot, oldest first."""
        return sorted(self._known.values(), key=lambda each: (each.began, each.run.task))

    def unreported(self, now: float, age: float, most: int) -> list[str]:
        """Tasks to request from the GCS now: seen for `age` seconds without a reported attempt, oldest first.

        A task that the GCS does not know is requested a few times: the GCS drops events under load.
        """
        found = [
            each
            for each in self.running()
            if each.reported is None
            and now - each.seen >= age
            and self._asked[_place(each)] < _ASKS
        ][:most]
        self._asked.update(map(_place, found))
        return [each.run.task for each in found]


def _moved(running: RunningClock, step: float) -> RunningClock:
    unseen = running.unseen + step if running.unseen else 0.0
    return running._replace(began=running.began + step, seen=running.seen + step, unseen=unseen)


def _place(running: RunningClock) -> tuple[str, str]:
    return running.run.task, running.run.worker


def _corrected(running: RunningClock, attempt: Attempt, last: float) -> RunningClock:
    start = attempt.started_at
    if start is None:
        return running._replace(reported=running.reported or attempt)
    is_later = running.reported is not None and attempt.attempt > running.reported.attempt
    if is_later or (running.reported is None and start > running.seen + _AGAIN):
        # If the other machine's clock is behind, the new attempt must not appear old.
        return running._replace(reported=attempt, began=start if start > running.seen else last)
    if running.reported is not None:
        return running
    return running._replace(reported=attempt, began=min(running.began, max(start, running.unseen)))
