"""The queue of tasks to submit, and the tasks in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple


@dataclass(slots=True)
class Flight:
    """A ref that `poll` waits for."""

    task: bytes
    indices: list[int]
    """More than one if the same ref was given several times."""
    submit: Callable[[], Any] | None
    """Submits it again; None for a given ref."""
    attempts: int
    began: float


class Again(NamedTuple):
    """A task to submit once more."""

    place: int
    submit: Callable[[], Any]
    attempts: int
    """Attempts so far."""
    began: float
    """When the first attempt was submitted."""


class Queue:
    """Tasks still to be submitted; a generator is advanced only when the next task may start."""

    def __init__(self, ray: Any, items: Iterable[Any], needs_functions: bool) -> None:
        self._ray = ray
        self._items = iter(items)
        self._needs_functions = needs_functions
        self._index = 0
        self._again: deque[Again] = deque()
        self._has_items = True

    @property
    def is_empty(self) -> bool:
        """Whether no task is left."""
        return not self._has_items and not self._again

    def close(self) -> None:
        """Submit nothing more."""
        self._has_items = False
        self._again.clear()

    def put_back(self, flight: Flight) -> bool:
        """Submit it again, next; False for a given ref."""
        if flight.submit is None:
            return False
        self._again.append(Again(flight.indices[0], flight.submit, flight.attempts, flight.began))
        return True

    def submit(self) -> tuple[Any, Flight] | None:
        """Submit one task and return its ref and `Flight`; None if no task is left."""
        if self._again:
            index, submit, attempts, began = self._again.popleft()
            return self._flight(index, submit(), submit, attempts + 1, began)
        if not self._has_items:
            return None
        try:
            item = next(self._items)
        except StopIteration:
            self._has_items = False
            return None
        index, self._index = self._index, self._index + 1
        if not isinstance(item, self._ray.ObjectRef):
            function = _submitter(item, index)
            return self._flight(index, function(), function, 1, monotonic())
        if self._needs_functions:
            raise TypeError(
                f"task {index} is a ref, which cannot be submitted again: "
                "to use retries, pass (remote function, args)"
            )
        return self._flight(index, item, None, 1, monotonic())

    def _flight(
        self, index: int, ref: Any, submit: Callable[[], Any] | None, attempts: int, began: float
    ) -> tuple[Any, Flight]:
        _check(self._ray, ref)
        return ref, Flight(ref.task_id().binary(), [index], submit, attempts, began)


def _submitter(item: Any, index: int) -> Callable[[], Any]:
    """The function that submits a task."""
    if isinstance(item, tuple) and 2 <= len(item) <= 3 and hasattr(item[0], "remote"):
        remote, args, kwargs = (*item, {}) if len(item) == 2 else item
        return lambda: remote.remote(*args, **kwargs)
    if hasattr(item, "remote"):
        submit: Callable[[], Any] = item.remote
        return submit
    if callable(item):
        return item  # type: ignore[no-any-return]
    raise TypeError(
        f"task {index} is neither a ref, nor a function that returns one, "
        f"nor (remote function, args): {item!r:.200}"
    )


def _check(ray: Any, submitted: Any) -> None:
    if isinstance(submitted, ray.ObjectRef):
        return
    hint = ""
    if isinstance(submitted, list):
        hint = "; for a task with several returns, return one of its refs"
    raise TypeError(
        f"a function that submits a task must return its ref, not {type(submitted)}{hint}"
    )
