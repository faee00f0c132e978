"""Notebooks: `%load_ext raydoctor`, then `%%raydoctor` in the first line of a cell.

The cell runs as usual. If it raises and this process has used Ray, the diagnosis of its session follows the
traceback, and the cell still counts as failed.
"""

from __future__ import annotations

import sys
import time
from traceback import format_exception
from typing import Any

_SLACK = 2.0
"""Seconds before the cell from which incidents may date."""


class CellFailedError(Exception):
    """The cell raised; its traceback and the diagnosis are above."""

    def _render_traceback_(self) -> list[str]:
        """For IPython, which has shown the traceback already."""
        return [f"The cell raised {self}."]


def load(shell: Any) -> None:
    """Register the magic with an IPython shell."""
    shell.register_magic_function(lambda line, cell: run(shell, cell), "cell", "raydoctor")


def run(shell: Any, cell: str) -> Any:
    """Run a cell and return its value. Raises CellFailedError if it raised, after showing the diagnosis."""
    began = time.time()
    done = shell.run_cell(cell)
    if done.success:
        return None  # the shell has shown its value
    error = done.error_in_exec or done.error_before_exec
    if "ray" in sys.modules:
        _show(began - _SLACK, "".join(format_exception(error)))
    raise CellFailedError(type(error).__name__)


def _show(since: float, output: str) -> None:
    """Show the report on this process's session, as the notebook shows any value."""
    from importlib import import_module

    from raydoctor.integrations import own_session
    from raydoctor.model.errors import RaydoctorError

    session = own_session.folder(since)
    if not session:
        return
    try:
        # The package offers this module, so it is imported when it is needed.
        report = import_module("raydoctor").diagnose(session, text=output, since=since)
    except RaydoctorError as problem:
        print(f"raydoctor: no diagnosis: {problem.message}")
        return
    import_module("IPython.display").display(report)
