"""The results of tasks, one for each, and a summary of how many there are of each kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Status = Literal["ok", "error", "timeout", "cancelled"]


class TaskTimeoutError(TimeoutError):
    """A task ran longer than its limit. Its `__cause__` is Ray's error, if the task has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The result of one task."""

    index: int
    """Its position among the given tasks, from 0."""
    status: Status
    ref: Any
    """The ref of its last attempt."""
    value: Any = None
    error: BaseException | None = None
    """The task's own exception or Ray's; a `TaskTimeoutError` where the status is `timeout`."""
    elapsed: float = 0.0
    """Seconds since it was given or submitted, including the time that it waited."""
    attempts: int = 1
    still_running: bool = False
    """`poll` stopped waiting: the task could not be ended, or was not to be ended."""
    timing: Callable[[], float] = field(default=lambda: math.nan, repr=False)
    """Returns `seconds`."""

    @property
    def seconds(self) -> float:
        """Seconds that the function itself ran, in its last attempt; NaN if Ray does not record it.

        The worker's record arrives up to 1.2 s after the task's end: reading it earlier waits for it.
        """
        return self.timing()

    @property
    def ok(self) -> bool:
        """Whether it has a value."""
        return self.status == "ok"

    def get(self) -> Any:
        """Its value; raises its error."""
        if self.error is not None:
            raise self.error
        return self.value


class Summary(NamedTuple):
    """Counts of the results so far."""

    ok: int
    errors: int
    timeouts: int
    cancelled: int
    retries: int
    still_running: int
    in_flight: int
    seconds: float
    problem: str = ""
    """Why time limits are not enforced at present; empty if they are."""

    @property
    def done(self) -> int:
        """Number of results."""
        return self.ok + self.errors + self.timeouts + self.cancelled

    def __str__(self) -> str:
        counts = (
            (self.errors, "error", "errors"),
            (self.timeouts, "timeout", "timeouts"),
            (self.cancelled, "cancelled", "cancelled"),
            (self.retries, "retry", "retries"),
            (self.still_running, "still running", "still running"),
            (self.in_flight, "in flight", "in flight"),
        )
        parts = [f"{n} {one if n == 1 else more}" for n, one, more in counts if n]
        text = f"{', '.join([f'{self.ok} ok', *parts])} in {self.seconds:.1f} s"
        return f"{text}; limits were not enforced: {self.problem}" if self.problem else text


def kinds(results: Iterable[Result]) -> Iterator[str]:
    """The kinds that a summary counts, for each result."""
    for result in results:
        yield result.status
        if result.still_running:
            yield "running"
