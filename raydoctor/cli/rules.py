"""`raydoctor rules`: the catalogue, and the tests of a rule's author."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.diagnosis.rulecheck import Problem

_HELP = """List the failures that raydoctor knows, or test rules of your own.

\b
Examples:
  raydoctor rules
  raydoctor rules --format json
  raydoctor rules --rules our-rules/
  raydoctor rules test our-rules/
"""

_TEST_HELP = """Test the rules of a folder as raydoctor tests its own.

Each file of DIR is a rule: its docstring the page, its signals, its function, its
examples (`raydoctor/rules/worker_vanished.py` is a short one to copy). Tested are the
page, that each sample matches, that no pattern can match without its literal (this
needs the extra raydoctor[test]), and every example with all rules at work.

\b
Examples:
  raydoctor rules test our-rules/
  raydoctor diagnose LOGS --rules our-rules/

\b
Exit code: 0 all is well, 1 a rule has a problem, 2 a rule cannot be loaded.
"""


@click.group(
    "rules",
    help=_HELP,
    short_help="The failures raydoctor knows.",
    invoke_without_command=True,
    **options.SETTINGS,
)
@options.format_option("text", "json", "markdown")
@options.rules_option
@options.verbose_option
@click.pass_context
def command(context: click.Context, form: str, folder: str | None, verbose: bool) -> int:
    """List the rules."""
    from raydoctor.diagnosis import plugins
    from raydoctor.render import rules as render
    from raydoctor.render import terminal

    if context.invoked_subcommand:
        return 0
    catalogue = plugins.catalogue(folder)
    for gap in catalogue.gaps:
        options.note(f"{gap.what}: {gap.why}")
    if form == "json":
        options.print_text(render.catalogue_json(catalogue.rules))
    elif form == "markdown":
        options.print_text(render.catalogue_markdown(catalogue.rules))
    else:
        options.print_page(render.catalogue(catalogue.rules, terminal.width_of(sys.stdout)))
    return 0


@click.command("test", help=_TEST_HELP, short_help="Test rules of your own.", **options.SETTINGS)
@click.argument("folder", metavar="DIR")
@options.verbose_option
def test(folder: str, verbose: bool) -> int:
    """Test the rules of a folder."""
    from raydoctor.diagnosis import plugins, rulecheck

    catalogue = plugins.catalogue(folder)
    wanted = {rule.name for rule in plugins.from_folder(folder)}
    failed = 0
    for rule in catalogue.rules:
        if rule.name in wanted:
            problems = list(rulecheck.check(rule, catalogue))
            failed += bool(problems)
            told = f"{len(rule.looks_for)} signals, {len(rule.examples)} examples"
            click.echo(f"{'FAIL' if problems else 'ok  '}  {rule.name}  ({told})")
            for problem in problems:
                _tell(problem)
    if not rulecheck.proves_literals():
        options.note("literals are not proven: pip install 'raydoctor[test]'")
    click.echo(f"{len(wanted) - failed} of {len(wanted)} rules are well")
    return 1 if failed else 0


def _tell(problem: Problem) -> None:
    from raydoctor.model.text import one_line

    click.echo(f"      {one_line(problem.where)}: {one_line(problem.what)}")


command.add_command(test)
