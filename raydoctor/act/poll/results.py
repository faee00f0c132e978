"""What becomes of tasks: one result for each, and how many there are of which kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Status = Literal["ok", "error", "timeout", "cancelled"]


class TaskTimeoutError(TimeoutError):
    """A task ran longer than its limit. Its `__cause__` is what Ray says of its end, if it has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What became of one task."""

    index: int
    """Its place among the tasks that were given, from 0."""
    status: Status
    ref: Any
    """Of its last attempt."""
    value: Any = None
    error: BaseException | None = None
    """The task's own exception or Ray's; a `TaskTimeoutError` where the status is `timeout`."""
    seconds: float = 0.0
    """From when it was given or submitted, waiting included."""
    attempts: int = 1
    still_running: bool = False
    """It was given up, and could not or was not to be ended."""

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
    """What has come so far."""

    ok: int
    errors: int
    timeouts: int
    cancelled: int
    retries: int
    still_running: int
    in_flight: int
    seconds: float
    problem: str = ""
    """Why limits could not be kept, for now; empty where they are."""

    @property
    def done(self) -> int:
        """How many results there are."""
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
        return f"{text}; limits were not kept: {self.problem}" if self.problem else text


def kinds(results: Iterable[Result]) -> Iterator[str]:
    """What a summary counts."""
    for result in results:
        yield result.status
        if result.still_running:
            yield "still running"
