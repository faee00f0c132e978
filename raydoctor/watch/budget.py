"""The CPU budget of a watch: at most 1 % of one CPU, over any ten minutes.

The cost of the rounds is measured and reserved; the cost of a child process is measured when it ends. A
child may start if its expected cost and the rounds fit into the last five minutes. A child that costs more
than five minutes allow waits for correspondingly longer. An urgent child, for a task that does not run, may
use the budget of ten minutes. Nothing is tuned: on a slow machine, or in a cluster with 100,000 tasks,
children are rarer.

The cost of cancelling overdue tasks does not count: the user asked for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

SHARE = 0.009
"""Of one CPU: 1 %, minus a reserve for children that cost more than the last one and for late accounting."""
WINDOW = 300.0
"""Seconds."""
_ASSUMED = 0.004
"""Share of the rounds, while too few of them have been measured."""
_SPAN = 20.0
_STEP = 10.0
_URGENT = 2.0
"""Windows whose budget an urgent child may use."""
_LEAST = 0.0005
"""Share for children, however much the rounds use: otherwise none would ever start."""


class _Spent(NamedTuple):
    at: float
    seconds: float


@dataclass(slots=True)
class WatchBudget:
    """The CPU time that one watch uses. `now` is a monotonic time."""

    share: float = SHARE
    window: float = WINDOW
    _children: deque[_Spent] = field(default_factory=lambda: deque(maxlen=1000))
    _own: deque[_Spent] = field(default_factory=deque)
    """Total CPU time of this process at several moments."""

    def own(self, now: float, seconds: float) -> None:
        """Record the total CPU seconds of this process; the first call is at the end of its start-up."""
        if not self._own:
            self._children.append(_Spent(now, seconds))  # its start: once, as a child's
        elif now - self._own[-1].at < _STEP:
            return
        self._own.append(_Spent(now, seconds))
        while self._own[0].at < now - self.window:
            self._own.popleft()

    def child(self, now: float, seconds: float) -> None:
        """Record the CPU seconds of a child that has ended."""
        self._children.append(_Spent(now, seconds))

    def may(self, now: float, seconds: float, *, is_urgent: bool = False) -> bool:
        """Whether a child with this expected cost may start now."""
        left = max(_LEAST, self.share - self.rounds)
        window = max(_URGENT * self.window if is_urgent else self.window, seconds / left)
        spent = sum(each.seconds for each in self._children if each.at > now - window)
        return spent + seconds <= left * window * (1 + 1e-9)

    @property
    def rounds(self) -> float:
        """The share of one CPU that this process uses itself."""
        if len(self._own) < 2 or self._own[-1].at - self._own[0].at < _SPAN:
            return _ASSUMED
        first, last = self._own[0], self._own[-1]
        return (last.seconds - first.seconds) / (last.at - first.at)
