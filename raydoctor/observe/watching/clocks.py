"""Since when each task runs, from look to look: pure.

A clock belongs to one attempt on one worker. It starts when the task is first seen there, so it is late by a
round at most and never early; what the GCS says of the start makes it exact as far as that is possible: by
the clock of the worker's machine, which may be wrong, a task cannot have begun before the last look that did
not see it. When this machine's clock is set, or the machine was suspended, all clocks are moved as much: no
task gets older by that. A retry is a new attempt, and gets a new clock on the same worker, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from raydoctor.observe.watching.watching import Attempt, ReportedTask, Snapshot

_ASKS = 3
_STEP = 0.5
"""Seconds that the two clocks may differ by between two looks without one having been set."""
_AGAIN = 1.0
"""Seconds after it was first seen from which a start is that of a later attempt."""


class RunningClock(NamedTuple):
    """A task that runs, and its clock."""

    run: ReportedTask
    began: float
    """Epoch seconds."""
    seen: float
    """When it was first seen."""
    unseen: float
    """The last look before that: it did not run there then. 0 if there was none."""
    reported: Attempt | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Its attempt: the task, its worker, and which attempt as far as that is known."""
        return self.run.task, self.run.worker, self.reported.attempt if self.reported else 0

    def age(self, now: float) -> float:
        """Seconds that it has run."""
        return max(0.0, now - self.began)


class Clocks:
    """All that run, oldest first."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], RunningClock] = {}
        self._last = 0.0
        self._steady = 0.0
        """`Snapshot.steady` of the last look."""
        self._asked: Counter[tuple[str, str]] = Counter()

    def see(self, seen: Snapshot) -> list[RunningClock]:
        """Those that run now. What a worker that does not answer ran, it still runs."""
        self._follow(seen)
        now: dict[tuple[str, str], RunningClock] = {}
        for run in seen.running:
            key = (run.task, run.worker)
            now[key] = self._known.get(key) or RunningClock(run, seen.at, seen.at, self._last)
        for key, running in self._known.items():
            if running.run.worker in seen.silent:
                now.setdefault(key, running)
        self._known, self._last = now, seen.at
        self._asked = Counter({key: asks for key, asks in self._asked.items() if key in now})
        return self.running()

    def _follow(self, seen: Snapshot) -> None:
        """Move all clocks by as much as the time of day was moved since the last look."""
        before, self._steady = self._steady, seen.steady
        step = (seen.at - self._last) - (seen.steady - before) if before and seen.steady else 0.0
        if abs(step) > _STEP:
            self._last += step
            self._known = {key: _moved(each, step) for key, each in self._known.items()}

    def learn(self, told: Iterable[Attempt]) -> None:
        """What the GCS says of them."""
        for each in told:
            running = self._known.get((each.task, each.worker))
            if running is not None:
                self._known[each.task, each.worker] = _corrected(running, each, self._last)

    def running(self) -> list[RunningClock]:
        """Those of the last look."""
        return sorted(self._known.values(), key=lambda each: (each.began, each.run.task))

    def unreported(self, now: float, age: float, most: int) -> list[str]:
        """Those seen for so long and of which nothing has been learnt, oldest first: to be asked for now.

        One that the GCS does not know is asked for a few times: it drops what it is told too fast.
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


def _corrected(running: RunningClock, told: Attempt, last: float) -> RunningClock:
    start = told.started_at
    if start is None:
        return running._replace(reported=running.reported or told)
    is_later = running.reported is not None and told.attempt > running.reported.attempt
    if is_later or (running.reported is None and start > running.seen + _AGAIN):
        # A clock of another machine that is behind must not make the new attempt old.
        return running._replace(reported=told, began=start if start > running.seen else last)
    if running.reported is not None:
        return running
    return running._replace(reported=told, began=min(running.began, max(start, running.unseen)))
