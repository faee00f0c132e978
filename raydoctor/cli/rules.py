"""`raydoctor rules`: the catalogue."""

from __future__ import annotations

import sys

import click

from raydoctor.cli import _options as options

_HELP = """List the failures that raydoctor knows.

\b
Examples:
  raydoctor rules
  raydoctor rules --format json
"""


@click.command("rules", help=_HELP, short_help="The failures raydoctor knows.", **options.SETTINGS)
@options.format_option("text", "json", "markdown")
@options.verbose_option
def command(form: str, verbose: bool) -> int:
    """List the rules."""
    from raydoctor import rules
    from raydoctor.render import rules as render
    from raydoctor.render import terminal

    catalogue = rules.load()
    if form == "json":
        options.print_text(render.catalogue_json(catalogue))
    elif form == "markdown":
        options.print_text(render.catalogue_markdown(catalogue))
    else:
        options.print_page(render.catalogue(catalogue, terminal.width_of(sys.stdout)))
    return 0
