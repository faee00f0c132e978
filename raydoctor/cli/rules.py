"""`raydoctor rules`: the catalogue, its pages, and what an author of rules needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.diagnosis.rulecheck import RuleProblem

_HELP = """List the failures that raydoctor knows, and write and test rules of your own.

\b
Examples:
  raydoctor rules
  raydoctor rules --format json
  raydoctor rules --rules our-rules/
  raydoctor rules new flux-hot --dir our-rules/
  raydoctor rules test our-rules/
  raydoctor rules pages site/rules/
"""

_NEW_HELP = """Write the skeleton of a rule.

The file holds the page, a signal, the function, a remedy and two examples. Replace every
FILL-IN; `raydoctor rules test DIR` shows what is still missing. NAME becomes the rule's name
and, with underscores, the file's.

\b
Examples:
  raydoctor rules new flux-hot --dir our-rules/
  raydoctor rules test our-rules/

\b
Exit code: 0 written, 2 could not run, or the name is invalid or taken.
"""

_PAGES_HELP = """Write one Markdown page per rule into DIR, and an index of messages.

The pages are what `raydoctor explain` prints, ready for a static site. A page's address
is its rule's name: NAME.md, and index.md. Files of those names are replaced.

\b
Examples:
  raydoctor rules pages docs/rules/
  raydoctor rules pages site/ --rules our-rules/

\b
Exit code: 0 written, 2 could not run or could not write.
"""

_TEST_HELP = """Test the rules of a folder as raydoctor tests its own.

Each file of DIR is a rule: a page (its docstring), signals, a function and examples.

The test checks that the page is complete, that each sample matches, and that each example gives
what it expects when all rules are loaded. With the extra raydoctor[test], it also checks that no
pattern matches without its literal.

\b
Examples:
  raydoctor rules test our-rules/
  raydoctor diagnose LOGS --rules our-rules/

\b
Exit code: 0 all rules pass, 1 a rule has a problem, 2 a rule cannot be loaded.
"""


@click.group(
    "rules",
    help=_HELP,
    short_help="List the failures raydoctor knows.",
    invoke_without_command=True,
    **options.SETTINGS,
)
@options.format_option("text", "json", "markdown")
@options.rules_option
@options.verbose_option
@click.pass_context
def command(context: click.Context, form: str, folder: str | None, verbose: bool) -> int:
    """List the rules."""
    if not context.invoked_subcommand:
        show_all(form, folder)
    return 0


def show_all(form: str, folder: str | None) -> None:
    """Print the catalogue."""
    from raydoctor.diagnosis import plugins
    from raydoctor.render import rules as render
    from raydoctor.render import terminal

    catalogue = plugins.catalogue(folder)
    for gap in catalogue.gaps:
        options.note(f"{gap.what}: {gap.why}")
    if form == "json":
        options.print_text(render.catalogue_json(catalogue.rules))
    elif form == "markdown":
        options.print_text(render.catalogue_markdown(catalogue.rules))
    else:
        options.print_page(render.catalogue(catalogue.rules, terminal.width_of(sys.stdout)))


@click.command("test", help=_TEST_HELP, short_help="Test rules of your own.", **options.SETTINGS)
@click.argument("folder", metavar="DIR", shell_complete=options.complete_path)
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
            parts = f"{len(rule.looks_for)} signals, {len(rule.examples)} examples"
            click.echo(f"{'FAIL' if problems else 'ok  '}  {rule.name}  ({parts})")
            for problem in problems:
                _print_problem(problem)
    if not rulecheck.proves_literals():
        options.note("literals were not checked: pip install 'raydoctor[test]'")
    click.echo(f"{len(wanted) - failed} of {len(wanted)} rules pass")
    return 1 if failed else 0


def _print_problem(problem: RuleProblem) -> None:
    from raydoctor.model.text import one_line

    click.echo(f"      {one_line(problem.where)}: {one_line(problem.what)}")


@click.command(
    "new", help=_NEW_HELP, short_help="Write the skeleton of a rule.", **options.SETTINGS
)
@click.argument("name")
@click.option(
    "--dir", "folder", metavar="DIR", default=".", help="The folder to write to.  [default: .]"
)
@options.verbose_option
def new(name: str, folder: str, verbose: bool) -> int:
    """Write the skeleton of a rule."""
    from raydoctor.cli import _new_rule
    from raydoctor.diagnosis import plugins
    from raydoctor.model import paste
    from raydoctor.model.errors import RaydoctorError

    if plugins.find(name) is not None:
        raise RaydoctorError(
            f"a rule {name} already exists",
            paste.shell("raydoctor explain {name}", name=name),
        )
    path = _new_rule.write(name, folder)
    click.echo(f"{path} written. Replace every FILL-IN, then:")
    click.echo(paste.shell("  raydoctor rules test {folder:path}", folder=folder))
    return 0


@click.command("pages", help=_PAGES_HELP, short_help="Write the rules' pages.", **options.SETTINGS)
@click.argument("target", metavar="DIR", shell_complete=options.complete_path)
@options.rules_option
@options.verbose_option
def pages(target: str, folder: str | None, verbose: bool) -> int:
    """Write the rules' pages."""
    import os

    from raydoctor.capture import owners
    from raydoctor.cli._files import write_atomically
    from raydoctor.diagnosis import plugins
    from raydoctor.model.errors import RaydoctorError
    from raydoctor.render import rule_pages

    try:
        os.makedirs(owners.output_path(target), exist_ok=True)
    except OSError as error:
        raise RaydoctorError(
            f"cannot make the folder {target}: {error.strerror}", "Choose another folder."
        ) from None
    written = list(rule_pages.pages(plugins.catalogue(folder).rules))
    for name, text in written:
        write_atomically(os.path.join(target, name), text, "Choose another folder.")
    click.echo(f"{len(written)} pages written to {target}")
    return 0


for each in (new, test, pages):
    command.add_command(each)
