"""`raydoctor diagnose`: what broke, why, and what to do."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.case.rule import Signal
    from raydoctor.diagnosis.plugins import Catalogue
    from raydoctor.model.values import Remedy, Report

FOUND, INCOMPLETE = 1, 3

_HELP = """Diagnose a Ray session: what broke, why, the evidence and the fix.

PATH is a session folder, its logs/, a tree with the logs of several nodes, an archive
of these (.tar.gz, .tar.zst, .zip, …), or one log file. Without PATH, raydoctor
diagnoses the cluster that runs on this machine, live, with its other nodes; if no
cluster runs, it diagnoses the latest session.

\b
Examples:
  raydoctor diagnose
  raydoctor diagnose /tmp/ray/session_latest --driver-log train.log
  raydoctor diagnose logs.tar.gz --since 2h
  raydoctor diagnose logs/ --format markdown -o issue.md
  raydoctor diagnose logs/ --format json --fail-on critical
  raydoctor diagnose --address 127.0.0.1:6379 --this-node
  kubectl logs HEAD_POD | raydoctor diagnose --driver-log -

\b
Exit code:
  0  nothing at or above --fail-on, and the evidence is complete
  1  something found, at or above --fail-on
  2  could not run
  3  inconclusive: nothing at or above --fail-on, but some evidence is missing
"""


@click.command(
    "diagnose", help=_HELP, short_help="What broke, why, and how to fix it.", **options.SETTINGS
)
@options.path_argument
@options.driver_log_option
@click.option(
    "--session",
    metavar="NAME",
    default="",
    help="Of several sessions in PATH the one to read; by default the newest. all: one report on "
    "each.",
)
@options.format_option("text", "json", "markdown")
@click.option(
    "--since",
    metavar="TIME",
    callback=options.time_option,
    help="Only incidents since this time: 2h (before now), 2026-11-21T07:30 (local time).",
)
@click.option(
    "--until", metavar="TIME", callback=options.time_option, help="Only incidents until this time."
)
@click.option(
    "--fail-on",
    type=click.Choice(["critical", "error", "warning", "info", "never"]),
    default="error",
    show_default=True,
    help="The lowest severity that gives exit code 1.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the report to this file.")
@options.live_options
@options.rules_option
@options.verbose_option
def command(
    path: str | None, since: float | None, until: float | None, fail_on: str, **rest: Any
) -> int:
    """Diagnose a cluster or a capture."""
    from raydoctor.cli._progress import read_with_progress

    if since is not None and until is not None and since > until:
        raise click.UsageError("--since is later than --until")
    wanted = rest.pop("session")
    if wanted and path is None:
        raise click.UsageError("--session needs PATH")
    if wanted == "all" and rest["output"] is not None:
        raise click.UsageError("--session all writes to standard output")
    catalogue = cache(lambda: _catalogue(rest["folder"]))
    if options.is_live(path, rest):
        # The rules are loaded while the cluster is queried.
        capture = options.opened_live(lambda: _looked_for(catalogue()), since=since, **rest)
    else:
        catalogue()  # report a problem with DIR before reading anything
        capture = options.opened(path, rest["driver_log"], "" if wanted == "all" else wanted)
    from raydoctor.diagnosis.engine import run

    code = 0
    others = sorted(capture.sessions, reverse=True) if wanted == "all" else []
    for name in others or [""]:
        if name:
            capture.close()
            capture = options.opened(path, rest["driver_log"], name)
        with capture, read_with_progress(capture):
            report = run(capture, since=since, until=until, catalogue=catalogue())
        report = _reaching(report, rest["address"])
        emit(report, rest["form"], rest["output"], verbose=rest["verbose"])
        # What was found matters more than what is missing.
        code = min({code, exit_code(report, fail_on)} - {0}, default=0)
    return code


def _reaching(report: Report, address: str | None) -> Report:
    """The report with remedies and hints that reach the cluster which the user named with `--address`."""
    if address is None:
        return report
    from dataclasses import replace

    from raydoctor.model import paste

    def steps(remedy: Remedy) -> Remedy:
        return replace(remedy, steps=tuple(paste.at(step, address) for step in remedy.steps))

    return replace(
        report,
        diagnoses=tuple(
            replace(each, remedies=tuple(map(steps, each.remedies))) for each in report.diagnoses
        ),
        gaps=tuple(replace(gap, hint=paste.at(gap.hint, address)) for gap in report.gaps),
    )


def _catalogue(folder: str | None) -> Catalogue:
    from raydoctor.diagnosis import plugins

    return plugins.catalogue(folder)


def _looked_for(catalogue: Catalogue) -> list[Signal]:
    from raydoctor.diagnosis.engine import signals_of

    return signals_of(catalogue)


def exit_code(report: Report, fail_on: str) -> int:
    """The contract's exit code."""
    from raydoctor.model.values import SEVERITIES

    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on in SEVERITIES else ()
    if any(d.severity in failing for d in report.diagnoses):
        return FOUND
    return 0 if report.complete else INCOMPLETE


def emit(
    report: Report,
    form: str,
    output: str | None = None,
    *,
    verbose: bool = False,
    onward: bool = True,
) -> None:
    """Print the report, or write it to a file; `onward`: with suggestions for the next command."""
    if output is not None and output != "-":
        from raydoctor.cli._files import write_atomically

        write_atomically(output, as_text(report, form, verbose))
        options.note(f"report written to {output}")
    elif form == "text":
        from raydoctor.render import terminal
        from raydoctor.render.report import render

        width = terminal.width_of(sys.stdout)
        options.print_page(render(report, width, verbose, onward))
    else:
        options.print_text(as_text(report, form, verbose))


def as_text(report: Report, form: str, verbose: bool = False) -> str:
    """The report in one of the formats, without colour."""
    from raydoctor.render import json, markdown, page
    from raydoctor.render.report import render

    if form == "json":
        return json.render(report)
    if form == "markdown":
        return markdown.render(report)
    return page.plain(render(report, verbose=verbose))
