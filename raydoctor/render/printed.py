"""A report that shows itself: in a prompt, with `print`, and in a notebook."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields

from raydoctor.model.values import Report
from raydoctor.render import page, terminal
from raydoctor.render.html import fragment
from raydoctor.render.report import render


@dataclass(frozen=True, slots=True, repr=False)
class PrintedReport(Report):
    """What a diagnosis found. `print(report)` prints it as the command line does."""

    def __str__(self) -> str:
        return page.plain(render(self)).rstrip("\n")

    def show(self, verbose: bool = False) -> None:
        """Print the report to standard output, in colour on a terminal; `verbose`: with all evidence."""
        terminal.show(render(self, terminal.width_of(sys.stdout), verbose), sys.stdout)

    def _repr_html_(self) -> str:
        """For Jupyter."""
        return fragment.render(render(self))


def printed(report: Report) -> PrintedReport:
    """The same report, which shows itself."""
    return PrintedReport(*(getattr(report, field.name) for field in fields(report)))
