"""How headlines name the workers whose end they explain."""

from __future__ import annotations

from collections.abc import Sequence

from raydoctor.case import evidence
from raydoctor.case.facts import WorkerExit


def worker(label: str) -> str:
    """`The worker of train (pid 379)`; without a task or class name `The worker (pid 379)`."""
    unnamed = label.startswith(("worker", "driver of job "))
    return f"The {label}" if unnamed else f"The worker of {label}"


def workers(exits: Sequence[WorkerExit], where: str = "") -> str:
    """One worker by its label, or `3 workers` with `where` and their labels in brackets."""
    count = evidence.deaths(exits)
    labels = evidence.join_names(exit_.label for exit_ in exits)
    return worker(labels) if count == 1 else f"{count} workers{where} ({labels})"
