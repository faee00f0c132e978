"""`raydoctor demo`: start a throwaway Ray cluster, break it and diagnose it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from raydoctor.cli import _options as options
from raydoctor.model import paste

if TYPE_CHECKING:
    from collections.abc import Callable

    from raydoctor.demo.cluster import DemoRun
    from raydoctor.demo.scenarios import Scenario
    from raydoctor.model.values import Report

NOT_FOUND = 1
_ATTEMPTS = 2
_ECHOED = 40
"""Lines of the program's output that are shown while it runs: Ray may print several pages."""

_TOKENS_SINCE = (2, 59)

_HELP = """Start a throwaway Ray cluster on this machine, break it and diagnose it.

A small program fails in a temporary Ray cluster of its own (loopback only, in its own folder),
and raydoctor diagnoses its logs as it would yours. Afterwards the cluster and its
files are removed. The demo takes about half a minute.

\b
Examples:
  raydoctor demo                 tasks run out of memory
  raydoctor demo owner-died
  raydoctor demo --list
  raydoctor demo crash --keep    keep the logs, to try other commands on them

\b
Exit code:
  0  raydoctor found the failure
  1  raydoctor did not find it, or the program did not fail
  2  could not run
"""


@click.command(
    "demo", help=_HELP, short_help="Break a throwaway cluster, and diagnose it.", **options.SETTINGS
)
@click.argument("scenario", required=False)
@click.option("--list", "list_", is_flag=True, help="List the scenarios and exit.")
@click.option("--keep", is_flag=True, help="Keep the logs, and print their path.")
@options.verbose_option
def command(*, scenario: str | None, list_: bool, keep: bool, verbose: bool) -> int:
    """Run a demo."""
    from raydoctor.demo import scenarios

    if list_:
        for each in scenarios.SCENARIOS:
            click.echo(f"{each.name:12} {each.title}")
        return 0
    chosen = scenarios.find(scenario or scenarios.DEFAULT)
    if chosen is None:
        names = ", ".join(each.name for each in scenarios.SCENARIOS)
        raise click.UsageError(f"no scenario is called {scenario!r}; there are {names}")
    _check_ray()
    return _demonstrate(chosen, keep, verbose)


def _check_ray() -> None:
    from importlib.util import find_spec

    from raydoctor.model.errors import RaydoctorError

    if sys.platform == "win32":
        raise RaydoctorError("the demo does not run on Windows", "Try it under Linux or WSL.")
    if find_spec("ray") is None:
        raise RaydoctorError(
            "Ray is not installed in raydoctor's environment, and the demo needs a real Ray",
            paste.shell("{python:path} -m pip install 'ray[default]'", python=sys.executable),
        )


def _demonstrate(scenario: Scenario, keep: bool, verbose: bool) -> int:
    from raydoctor.cli.diagnose import emit
    from raydoctor.demo import cluster

    _say(f"{scenario.name}: {scenario.title}")
    for attempt in range(_ATTEMPTS):
        with cluster.throw_away(keep) as run:
            _run(scenario, run)
            if run.exit_code == 0 and attempt < _ATTEMPTS - 1:
                _say("the program did not fail; perhaps the machine's load changed. Trying again")
                continue
            report = _diagnose(run)
            emit(report, "text", verbose=verbose, onward=keep)
        break
    _say(_whats_next(run, scenario, keep))
    return 0 if {root.rule for root in report.roots} & scenario.finds else NOT_FOUND


def _run(scenario: Scenario, run: DemoRun) -> None:
    from raydoctor.demo import cluster, network

    settings = scenario.settings(run.folder)
    _say(f"running {scenario.program} in its own Ray cluster, in {run.folder}")
    for name, value in settings.items():
        _say(f"  with {name}={value}")
    if not network.is_available() and not _has_tokens():
        _say(
            "this Ray has no tokens: until the demo ends, any user of this machine can run code in it"
        )
    began = time.monotonic()
    cluster.supervise(run, scenario.path, settings, scenario.seconds, _limited(_echo, _ECHOED))
    _say(f"{_ended(run)} after {time.monotonic() - began:.0f} s")


def _has_tokens() -> bool:
    """Whether the installed Ray lets in only clients that have its cluster's token."""
    import re
    from importlib.metadata import version

    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", version("ray"))
    return numbers is None or tuple(map(int, numbers.groups())) >= _TOKENS_SINCE


def _diagnose(run: DemoRun) -> Report:
    from raydoctor.capture.open import open_capture
    from raydoctor.diagnosis.engine import run as diagnose
    from raydoctor.model.errors import RaydoctorError

    if run.session is None:
        raise RaydoctorError(
            "Ray did not start",
            "The lines above are all of its output. Check this Ray installation.",
        )
    with open_capture(str(run.session), str(run.driver_log)) as capture:
        return diagnose(capture)


def _ended(run: DemoRun) -> str:
    if run.exit_code is None:
        return "the program was ended at its time limit"
    if run.exit_code == 0:
        return "the program succeeded"
    return f"the program failed with exit code {run.exit_code}"


def _whats_next(run: DemoRun, scenario: Scenario, keep: bool) -> str:
    if keep:
        return paste.shell(
            "kept: raydoctor diagnose {session:path} --driver-log {log:path}",
            session=str(run.session),
            log=str(run.driver_log),
        )
    return f"Ray and its logs were removed; raydoctor demo {scenario.name} --keep keeps them"


def _say(text: str) -> None:
    click.echo(f"demo: {text}", err=True)


def _echo(text: str) -> None:
    """Print a line of the program or of Ray; frames of a traceback are only in the log."""
    from raydoctor.model.text import cut, printable
    from raydoctor.read.records import strip_ansi
    from raydoctor.render.page import MAX_WIDTH

    shown = printable(strip_ansi(text))
    if shown.strip() and not shown.startswith((" ", "-")):
        click.echo(f"  | {cut(shown, MAX_WIDTH - 4)}", err=True)


def _limited(echo: Callable[[str], None], limit: int) -> Callable[[str], None]:
    """Pass on the first lines only, then one ellipsis."""
    count = 0

    def pass_on(text: str) -> None:
        nonlocal count
        count += 1
        if count <= limit:
            echo(text)
        elif count == limit + 1:
            echo("…")

    return pass_on
