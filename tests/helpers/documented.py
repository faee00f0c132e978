"""Reports that the documentation shows after a command, compared with what the command prints."""

from __future__ import annotations

from tests.helpers import ROOT

WIDTH = "100"
"""Columns of the terminal for which the pages show reports."""


def missing(page: str, command: str, printed: str) -> list[str]:
    """The lines after `$ command` on a page that are not among those printed; `…` stands for some."""
    text = (ROOT / "docs" / page).read_text()
    shown = text.partition(f"\n$ {command}\n")[2].partition("\n```")[0].split("\n")
    assert len(shown) > 1, f"{page} shows no output of {command}"
    lines = {line.rstrip() for line in printed.split("\n")}
    return [each for each in shown if each.strip("│ ") != "…" and each.rstrip() not in lines]
