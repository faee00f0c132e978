"""`raydoctor check`: check this machine, and the cluster that runs on it."""

from __future__ import annotations

import sys

import click

from raydoctor.cli import _options as options

_CODES = {"fail": 1, "gap": 3}

_HELP = """Check this machine, and any Ray cluster that runs on it, before a job starts.

raydoctor checks versions, ports, shared memory, disk, memory and its cgroup limit, limits of open
files and processes, tools for stacks and debuggers, the clock, stale cluster addresses and the
auth token.

The output has one line per check, and a fix for each check that fails. It takes less than a second,
and changes nothing.

\b
Examples:
  raydoctor check
  raydoctor check --format json
  ssh node-7 raydoctor check

\b
Exit code:
  0  no check fails; there may be warnings
  1  at least one check fails
  2  could not run
  3  no check fails, but some could not run
"""


@click.command(
    "check", help=_HELP, short_help="Check that this machine is fit for Ray.", **options.SETTINGS
)
@options.format_option("text", "json")
@options.verbose_option
def command(*, form: str, verbose: bool) -> int:
    """Check this machine."""
    from raydoctor.observe.preflight import checks as preflight
    from raydoctor.observe.preflight import probes
    from raydoctor.observe.processes import proc
    from raydoctor.render import check, terminal

    proc.require()  # otherwise most checks could not look, and the rest would be called fit
    checks = probes.check(_scanner())
    if form == "json":
        options.print_text(check.to_json(checks))
    else:
        options.print_page(check.render(checks, terminal.width_of(sys.stdout)))
    return _CODES.get(preflight.worst(checks), 0)


def _scanner() -> str | None:
    from raydoctor.model.errors import RaydoctorError
    from raydoctor.read.prefilter import find_rg

    try:
        return find_rg()
    except RaydoctorError:
        return None
