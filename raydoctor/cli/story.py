"""`raydoctor story`: every line about one worker, task, actor, object, node, job or pid."""

from __future__ import annotations

import sys

import click

from raydoctor.cli import _options as options

NOT_FOUND = 1

_HELP = """Show the log lines about one id, pid or name, from all files and nodes, in time order.

ID is the id (or its first six or more digits) of a worker, task, actor, object, node,
job, lease or placement group; a pid; or the name of a task or actor.

Lines about other names of the same thing, such as a worker's pid, are included. Routine lines of
a worker's own log are left out; --all shows them.

If an ID is ambiguous, write pid:503 or name:train; if several nodes have that pid, pid:NODE/503.

PATH is a session folder, its logs, a tree with a folder for each node, an
archive or a file; the default is the newest session of this machine.

\b
Examples:
  raydoctor story 1234abcd
  raydoctor story pid:503 logs.tar.gz
  raydoctor story pid:node-a/503 collected/
  raydoctor story 'ObjectRef(00310a0f0a45af5cdbb3…)' --driver-log train.log
  raydoctor story name:train --format json

\b
Exit code:
  0  at least one line found
  1  no line matches the ID; raydoctor lists the ids and names that it found in PATH
  2  could not run, or the ID is ambiguous
"""


@click.command(
    "story", help=_HELP, short_help="Show every line about one id, pid or name.", **options.SETTINGS
)
@click.argument("id_", metavar="ID")
@options.path_argument
@options.driver_log_option
@options.session_option
@options.format_option("text", "json")
@click.option(
    "--all", "everything", is_flag=True, help="Include routine lines of a worker's own logs."
)
@options.verbose_option
def command(  # noqa: PLR0913 - one parameter per option
    *,
    id_: str,
    path: str | None,
    driver_log: str | None,
    session: str,
    form: str,
    everything: bool,
    verbose: bool,
) -> int:
    """Show a story."""
    from raydoctor.cli._progress import read_with_progress
    from raydoctor.read.story import story_of
    from raydoctor.render import story as render
    from raydoctor.render import terminal

    with options.opened(path, driver_log, session) as capture, read_with_progress(capture):
        story = story_of(capture, id_, everything)
    if form == "json":
        options.print_text(render.to_json(story))
    elif story.entries:
        options.print_page(render.render(story, terminal.columns_of(sys.stdout), verbose))
    else:
        options.note(f"nothing in this capture has the name {id_!r}; the capture has")
        terminal.show(render.unknown(story, terminal.width_of(sys.stderr)), sys.stderr)
    return 0 if story.entries else NOT_FOUND
