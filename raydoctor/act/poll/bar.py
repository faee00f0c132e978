"""A progress bar on standard error: on a terminal, where rich is installed; else nothing."""

from __future__ import annotations

import sys
from typing import Any, Protocol


class Bar(Protocol):
    """Shows how far it is."""

    def show(self, done: int, in_flight: int) -> None:
        """So many results, so many tasks under way."""

    def close(self) -> None:
        """Leave the last state on the screen."""


def bar(total: int | None) -> Bar | None:
    """A bar, or None where nobody would see it."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed
    except ImportError:
        return None
    shown = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        Elapsed(),
        console=Console(stderr=True),
    )
    shown.start()
    return _Rich(shown, shown.add_task("", total=total))


class _Rich:
    """Of rich; it draws in a thread of its own, ten times a second."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task

    def show(self, done: int, in_flight: int) -> None:
        """So many results, so many tasks under way."""
        self._progress.update(self._task, completed=done, description=f"{in_flight} in flight")

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()
