"""What a watch may spend: of a processor no more than a hundredth, over any five minutes.

What its rounds take is measured and set aside; what its child takes is measured when it has ended. A child
may run when what it is expected to cost still fits into the five minutes before, with the rounds; one that
costs more than all of them waits for so long that its share is kept none the less. So nothing is tuned: on a
slow machine, or in a cluster with 100,000 tasks, children are rarer.

What the guard spends on ending a task that is overdue is not counted: it was asked for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

SHARE = 0.0095
"""Of a processor: a hundredth, less what a child costs more than the one before, and what is counted late."""
WINDOW = 300.0
"""Seconds."""
_ASSUMED = 0.004
"""What rounds take, while too few of them are known."""
_SPAN = 20.0
_STEP = 10.0
_LEAST = 0.0005
"""Left for children however much the rounds take: otherwise there would be none for ever."""


class _Spent(NamedTuple):
    at: float
    seconds: float


@dataclass(slots=True)
class WatchBudget:
    """All that one watch spends. `now` is of a clock that nobody sets."""

    share: float = SHARE
    window: float = WINDOW
    _children: deque[_Spent] = field(default_factory=lambda: deque(maxlen=1000))
    _own: deque[_Spent] = field(default_factory=deque)
    """What this process had taken in all, from time to time."""

    def own(self, now: float, seconds: float) -> None:
        """This process has taken so much since it was started; first told when it is ready."""
        if not self._own:
            self._children.append(_Spent(now, seconds))  # its start: once, as a child's
        elif now - self._own[-1].at < _STEP:
            return
        self._own.append(_Spent(now, seconds))
        while self._own[0].at < now - self.window:
            self._own.popleft()

    def child(self, now: float, seconds: float) -> None:
        """A child has ended that took so much."""
        self._children.append(_Spent(now, seconds))

    def may(self, now: float, seconds: float) -> bool:
        """Whether a child may run now that is expected to take so much."""
        left = max(_LEAST, self.share - self.rounds)
        window = max(self.window, seconds / left)
        spent = sum(each.seconds for each in self._children if each.at > now - window)
        return spent + seconds <= left * window * (1 + 1e-9)

    @property
    def rounds(self) -> float:
        """The share of a processor that this process takes by itself."""
        if len(self._own) < 2 or self._own[-1].at - self._own[0].at < _SPAN:
            return _ASSUMED
        first, last = self._own[0], self._own[-1]
        return (last.seconds - first.seconds) / (last.at - first.at)
