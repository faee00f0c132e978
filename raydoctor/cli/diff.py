"""`raydoctor diff`: what is new, gone, worse and better between two captures or reports."""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import TYPE_CHECKING, Any

import click

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.diagnosis.difference import Difference, Side

FOUND = 1
_REPORT_LIMIT = 256 << 20

_HELP = """Compare two captures or reports: what is new, gone, worse and better in B.

A and B are captures, as `raydoctor diagnose` takes them, or reports of
`raydoctor diagnose --format json`; - reads a report from standard input.

A diagnosis in B is the same as one in A if its rule (such as ray-oom-kill) and the names of the
tasks, actors or nodes that it is about agree; ids, pids, addresses and times may differ. It is
worse if its severity is higher or, at the same severity, its count.

\b
Examples:
  raydoctor diff yesterday.tar.gz today.tar.gz
  raydoctor diff good.json logs/ --fail-on warning
  raydoctor diff before/ after/ --format markdown > comment.md
  raydoctor diagnose --format json | raydoctor diff good.json -

\b
Exit code:
  0  nothing of the severity --fail-on or higher is new or worse
  1  something of that severity is new or worse
  2  could not run
"""


@click.command(
    "diff", help=_HELP, short_help="Compare two captures or reports.", **options.SETTINGS
)
@click.argument("a", shell_complete=options.complete_path)
@click.argument("b", shell_complete=options.complete_path)
@options.format_option("text", "json", "markdown")
@options.fail_on_option
@options.rules_option
@options.verbose_option
def command(  # noqa: PLR0913 - one parameter per option
    *, a: str, b: str, form: str, fail_on: str, folder: str | None, verbose: bool
) -> int:
    """Compare two captures or reports."""
    from raydoctor.diagnosis import difference as diffing

    if a == b == "-":
        raise click.UsageError("only one of the two can come from standard input")
    difference = diffing.compare(_side(a, folder), _side(b, folder))
    _print(difference, form, verbose)
    return exit_code(difference, fail_on)


def exit_code(difference: Difference, fail_on: str) -> int:
    """The contract's exit code."""
    from raydoctor.model.values import SEVERITIES

    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on in SEVERITIES else ()
    return FOUND if any(severity in failing for severity in difference.grave) else 0


def _print(difference: Difference, form: str, verbose: bool) -> None:
    from raydoctor.render import diff, terminal

    if form == "json":
        options.print_text(diff.to_json(difference))
    elif form == "markdown":
        options.print_text(diff.to_markdown(difference))
    else:
        options.print_page(diff.render(difference, terminal.width_of(sys.stdout), verbose))


def _side(path: str, folder: str | None) -> Side:
    """One side of the comparison, from a capture or a report."""
    from raydoctor.diagnosis import difference as diffing
    from raydoctor.redact import Redactor

    data = _report(path)
    if data is None:
        document, shown = _diagnosed(path, folder), path
    else:
        shown = "standard input" if path == "-" else path
        # The report of a capture is already redacted; a file may contain anything.
        document = Redactor().redact_json(_parsed(data, shown))
    side = diffing.side(document, shown)
    return side._replace(path=shown)


def _report(path: str) -> bytes | None:
    """The bytes of a report, or None if the path is that of a capture."""
    if path == "-":
        return sys.stdin.buffer.read(_REPORT_LIMIT)
    try:
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            return None
        with open(path, "rb") as stream:
            head = stream.peek(4096)[:4096]
            is_report = path.endswith(".json") or stat.S_ISFIFO(mode)
            if not is_report and not (head.lstrip().startswith(b"{") and b'"schema"' in head):
                return None
            return stream.read(_REPORT_LIMIT)
    except (OSError, ValueError):
        return None  # opening the capture gives a better error message


def _parsed(data: bytes, path: str) -> Any:
    from raydoctor.model.errors import RaydoctorError

    try:
        return json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise RaydoctorError(
            f"{path} is not JSON: {why}",
            "Give a capture, or what `raydoctor diagnose --format json` printed.",
        ) from None


def _no_number(name: str) -> None:
    """Refuse `NaN` and `Infinity`, which are not valid JSON."""
    raise ValueError(f"{name} is not a number")


def _diagnosed(path: str, folder: str | None) -> Any:
    """The report of a capture, as parsed JSON."""
    from raydoctor.cli._progress import read_with_progress
    from raydoctor.diagnosis import plugins
    from raydoctor.diagnosis.engine import run
    from raydoctor.render.json import render

    catalogue = plugins.catalogue(folder)
    with options.opened(path, None) as capture, read_with_progress(capture):
        return json.loads(render(run(capture, catalogue=catalogue)))
