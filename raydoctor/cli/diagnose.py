"""`raydoctor diagnose`: what broke, why, and what to do."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.capture.open import Capture
    from raydoctor.case.rule import Rule, Signal
    from raydoctor.diagnosis.plugins import Catalogue
    from raydoctor.model.values import Remedy, Report

FOUND, INCOMPLETE = 1, 3
_SUMMARY = 1_000_000
"""Bytes that a step's summary may have: GitHub drops the whole summary above 1 MiB."""

_HELP = """Diagnose a Ray session: what broke, why, the evidence and the fix.

PATH is a session folder, its logs/, a tree with the logs of several nodes, an archive
of these (.tar.gz, .tar.zst, .zip, …), or one log file.

Without PATH, raydoctor diagnoses the cluster running on this machine, live, including its
other nodes; if no cluster runs, it diagnoses the latest session.

\b
Examples:
  raydoctor diagnose
  raydoctor diagnose /tmp/ray/session_latest --driver-log train.log
  raydoctor diagnose logs.tar.gz --since 2026-11-21T07:30
  raydoctor diagnose logs/ --format markdown -o issue.md
  raydoctor diagnose logs/ --open          # in the browser, with a timeline
  raydoctor diagnose logs/ --format html -o incident.html
  raydoctor diagnose logs/ --format json --fail-on critical
  raydoctor diagnose logs/ --format junit -o raydoctor.xml
  raydoctor diagnose --format github     # in GitHub Actions: annotations and the job summary
  raydoctor diagnose --address 127.0.0.1:6379 --this-node
  kubectl logs SUBMITTER_POD | raydoctor diagnose --driver-log -

\b
Exit code:
  0  nothing at or above --fail-on, and no missing evidence could hide it
  1  something found, at or above --fail-on
  2  could not run
  3  inconclusive: nothing at or above --fail-on, but missing evidence could hide it
     (evidence that is only missing for a reported finding does not count)
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
    help="The session to read if PATH has several; by default the newest. all: one report on each.",
)
@options.format_option(*options.REPORT_FORMATS)
@options.since_option("Only incidents since")
@click.option(
    "--until", metavar="TIME", callback=options.time_option, help="Only incidents until this time."
)
@options.fail_on_option
@options.output_option
@click.option(
    "--open",
    "in_browser",
    is_flag=True,
    help="Show the report as HTML in the browser, and print the path of its file.",
)
@options.live_options
@options.found_option()
@options.rules_option
@options.verbose_option
def command(
    path: str | None,
    since: float | None,
    until: float | None,
    fail_on: str,
    in_browser: bool,
    **rest: Any,
) -> int:
    """Diagnose a cluster or a capture."""
    if since is not None and until is not None and since > until:
        raise click.UsageError("--since is later than --until")
    if in_browser:
        _prepare_browser(rest)
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
    code = 0
    others = sorted(capture.sessions, reverse=True) if wanted == "all" else []
    for name in others or [""]:
        if name:
            capture.close()
            capture = options.opened(path, rest["driver_log"], name)
        with capture:
            found = report_on(capture, catalogue(), fail_on, since=since, until=until, **rest)
        # What was found matters more than what is missing.
        code = min({code, found} - {0}, default=0)
    if in_browser:
        from raydoctor.cli._files import show

        click.echo(rest["output"])
        if problem := show(rest["output"]):
            options.note(problem)
    return code


def report_on(  # noqa: PLR0913 - one keyword per option
    capture: Capture,
    catalogue: Catalogue,
    fail_on: str,
    *,
    since: float | None,
    form: str,
    output: str | None,
    verbose: bool,
    until: float | None = None,
    address: str | None = None,
    onward: bool = True,
    **_: Any,
) -> int:
    """Report on an open capture, and return the exit code."""
    from raydoctor.cli._progress import read_with_progress
    from raydoctor.diagnosis.engine import run

    with read_with_progress(capture):
        report = run(
            capture, since=since, until=until, catalogue=catalogue, detailed=form == "html"
        )
    report = _reaching(report, address)
    emit(
        report,
        form,
        output,
        verbose=verbose,
        onward=onward,
        fail_on=fail_on,
        rules=catalogue.rules,
    )
    return exit_code(report, fail_on)


def _prepare_browser(rest: dict[str, Any]) -> None:
    """Make HTML the format, and a private file the output if none is named."""
    given = click.get_current_context().get_parameter_source("form")
    if rest["form"] != "html" and (rest["form"] != "text" or given is ParameterSource.COMMANDLINE):
        raise click.UsageError(f"--open shows HTML and contradicts --format {rest['form']}")
    if rest["session"] == "all" or rest["output"] == "-":
        raise click.UsageError("--open shows one report, and not standard output")
    from raydoctor.cli._files import new_page

    rest["form"] = "html"
    rest["output"] = rest["output"] or click.get_current_context().with_resource(new_page())


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


def emit(  # noqa: PLR0913 - one keyword per option
    report: Report,
    form: str,
    output: str | None = None,
    *,
    verbose: bool = False,
    onward: bool = True,
    fail_on: str = "error",
    rules: Sequence[Rule] = (),
) -> None:
    """Print the report, or write it to a file; `onward`: with suggestions for the next command.

    `rules`: those of the run, whose pages some formats contain.
    """
    if form == "github":
        summarize(report)
    if form == "text" and output in (None, "-"):
        from raydoctor.render import terminal
        from raydoctor.render.report import render

        width = terminal.width_of(sys.stdout)
        options.print_page(render(report, width, verbose, onward))
    else:
        options.write(as_text(report, form, verbose, fail_on, rules), output)


def as_text(
    report: Report,
    form: str,
    verbose: bool = False,
    fail_on: str = "error",
    rules: Sequence[Rule] = (),
) -> str:
    """The report in one of the formats, without colour."""
    if form == "text":
        from raydoctor.render import page
        from raydoctor.render.report import render

        return page.plain(render(report, verbose=verbose))
    if form == "junit":
        from raydoctor.render.machine import junit

        return junit.render(report, fail_on)
    if form == "sarif":
        from raydoctor.render.machine import sarif

        return sarif.render(report, rules)
    text: str = import_module(options.REPORT_FORMATS[form]).render(report)
    return text


def summarize(report: Report) -> None:
    """Append the report to the summary of the current step of GitHub Actions, if there is one."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    from raydoctor.render import markdown

    text = markdown.render(report).encode("utf-8", "backslashreplace")
    try:
        problem = _append(path, text)
    except OSError as error:
        problem = f"{path}: {error.strerror}"
    if problem:
        options.note(f"the step's summary lacks the report: {problem}")


def _append(path: str, text: bytes) -> str:
    """Append to a regular file, if it does not grow too large; the problem, or nothing. Raises OSError."""
    # Opening a pipe without a reader would wait for one.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
    why = os.strerror(errno.ENOSPC)
    with open(os.open(path, flags, 0o644), "ab", buffering=0) as summary:
        status = os.fstat(summary.fileno())
        if not stat.S_ISREG(status.st_mode):
            return f"{path} is not a regular file"
        if status.st_size + len(text) > _SUMMARY:
            return f"the summary would have more than {_SUMMARY:,} bytes"
        try:
            is_whole = summary.write(text) == len(text)
        except OSError as error:
            is_whole, why = False, error.strerror or str(error)
        if not is_whole:
            os.ftruncate(summary.fileno(), status.st_size)
            return f"{path}: {why}"
    return ""
