"""`raydoctor skill`: write an Agent Skill folder, from which agents learn to use the command line."""

from __future__ import annotations

import os

import click

from raydoctor.cli import _options as options

_HELP = """Write a skill for AI agents: which command answers which question, and what never to do.

DIR is the folder for skills; the default is the working folder. The skill is in
DIR/raydoctor: SKILL.md and references/, made from this version's own help and rules.
Files of an earlier version are replaced.

\b
Examples:
  raydoctor skill
  raydoctor skill ~/.claude/skills
  raydoctor skill .agents/skills
"""


@click.command("skill", help=_HELP, short_help="Write a skill for AI agents.", **options.SETTINGS)
@click.argument("folder", metavar="[DIR]", default=".")
@options.verbose_option
def command(*, folder: str, verbose: bool) -> int:
    """Write the skill."""
    del verbose
    from raydoctor import rules
    from raydoctor.agents import skill
    from raydoctor.capture import owners
    from raydoctor.cli._files import write_atomically
    from raydoctor.model.errors import RaydoctorError

    # The format wants the folder to have the name of the skill.
    if os.path.basename(os.path.abspath(folder)) != skill.NAME:
        folder = os.path.join(folder, skill.NAME)
    for path, text in skill.files(_helps(), rules.load()):
        file = os.path.join(folder, path)
        try:
            os.makedirs(owners.output_path(os.path.dirname(file)), exist_ok=True)
        except OSError as error:
            raise RaydoctorError(
                f"cannot write into {folder}: {error.strerror}", "Name another folder."
            ) from None
        write_atomically(file, text, "Name another folder.")
    options.note(f"skill written to {os.path.join(folder, 'SKILL.md')}")
    return 0


def _helps() -> dict[str, str]:
    """Each command's help, without options that are the same everywhere."""
    from raydoctor import cli

    with cli._group(cli.names()).make_context("raydoctor", [], resilient_parsing=True) as context:
        group = context.command
        assert isinstance(group, click.Group)
        found = {}
        for name in sorted(group.commands):
            each = group.commands[name]
            inner = click.Context(each, context, name, max_content_width=100, terminal_width=100)
            found[name] = each.get_help(inner)
        return found
