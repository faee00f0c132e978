"""A progress bar on standard error, if it is a terminal and rich is installed."""

from __future__ import annotations

import sys
from typing import Any


def bar(total: int | None) -> Bar | None:
    """A bar; None if standard error is not a terminal or rich is not installed."""
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
    return Bar(shown, shown.add_task("", total=total))


class Bar:
    """A progress bar of rich, which draws it in a separate thread, ten times a second."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task

    def show(self, done: int, in_flight: int) -> None:
        """Show the number of results and of tasks in flight."""
        self._progress.update(self._task, completed=done, description=f"{in_flight} in flight")

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()
