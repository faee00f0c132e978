"""`raydoctor explain`: a rule's page."""

from __future__ import annotations

import sys

import click

from raydoctor.cli import _options as options

_HELP = """Explain one rule: what you see, why it happens, how to confirm it, and the fix.

Without RULE, raydoctor lists all rules, as `raydoctor rules` does.

\b
Examples:
  raydoctor explain ray-oom-kill
  raydoctor explain owner-died --format json
"""


@click.command("explain", help=_HELP, short_help="Explain one rule.", **options.SETTINGS)
@click.argument("rule", required=False, shell_complete=options.complete_rule)
@options.format_option("text", "json")
@options.rules_option
@options.verbose_option
def command(rule: str | None, form: str, folder: str | None, verbose: bool) -> int:
    """Explain a rule."""
    from raydoctor.diagnosis import plugins
    from raydoctor.render import rule_pages, terminal
    from raydoctor.render import rules as render

    if rule is None:
        from raydoctor.cli import rules

        rules.show_all(form, folder)
        return 0
    wanted = rule.strip().lower().replace("_", "-")
    found = plugins.find(wanted, folder)
    if found is None:
        raise _unknown(wanted, [each.name for each in plugins.catalogue(folder).rules])
    if form == "json":
        options.print_text(render.rule_json(found))
    else:
        users = rule_pages.users_of(plugins.catalogue(folder).rules)
        signals = rule_pages.searched(found, users)
        options.print_page(render.rule_page(found, terminal.width_of(sys.stdout), signals))
    return 0


def _unknown(name: str, known: list[str]) -> Exception:
    from difflib import get_close_matches

    from raydoctor.model.errors import RaydoctorError

    close = get_close_matches(name, known, n=3, cutoff=0.5)
    close += [other for other in known if name and name in other and other not in close]
    hint = f"Did you mean {', '.join(close[:5])}? " if close else ""
    return RaydoctorError(f"no rule is named {name!r}", f"{hint}All rules: raydoctor rules")
