"""Shared by the rules about callers that wait for GPU workers: vLLM's engine, and callers of compiled graphs."""

from __future__ import annotations

from raydoctor.case import Case
from raydoctor.case.facts import WorkerExit
from raydoctor.model.values import Event
from raydoctor.rules.shared.task_error import Printed

_EARLIER = 600.0
"""Seconds before a timeout in which a worker's end may have caused it: longer than the usual timeouts."""


def earlier_exits(case: Case, event: Event, actors: list[str]) -> list[WorkerExit]:
    """Unexpected exits of these actors, or of workers with an unknown actor shortly before the event."""
    found = []
    for exit_ in case.exits:
        before = event.at is None or exit_.at is None or 0 <= event.at - exit_.at <= _EARLIER
        if not exit_.expected and (exit_.actor in actors if actors and exit_.actor else before):
            found.append(exit_)
    return found


def died(seen: Printed) -> bool:
    """Whether a task failed because vLLM's engine had exited: its error contains no reason."""
    return seen.failure.raised is not None and seen.failure.raised.name == "EngineDeadError"
