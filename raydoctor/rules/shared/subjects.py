"""Names of workers in the headlines that explain their exits."""

from __future__ import annotations

from collections.abc import Sequence

from raydoctor.case import evidence
from raydoctor.case.facts import WorkerExit


def worker(label: str, is_named: bool) -> str:
    """`The worker of train (pid 379)`; without a task or class name `The worker (pid 379)`."""
    return f"The {'worker of ' if is_named else ''}{label}"


def workers(exits: Sequence[WorkerExit], where: str = "") -> str:
    """One worker by its label, or `3 workers` with `where` and their labels in brackets."""
    count = evidence.deaths(exits)
    if count == 1:
        return worker(exits[0].label, bool(exits[0].names))
    return f"{count} workers{where} ({evidence.join_names(exit_.label for exit_ in exits)})"
