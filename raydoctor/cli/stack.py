"""`raydoctor stack`: where workers and drivers stand at this moment."""

from __future__ import annotations

import sys

import click

from raydoctor.cli import _options as options

INCOMPLETE = 3

_HELP = """Show where workers and drivers stand: their stacks, and the tasks they run.

TARGET is a task (id, six or more of its first digits, or name), an actor (id, class
or name), a pid, or a node (id or IP address); without it, all workers and drivers of
this machine are looked at, side by side. Each stands still for about 10 ms (--native:
150 ms). Workers at the same place are one block; your own frames stand out.

\b
Examples:
  raydoctor stack                       this machine
  raydoctor stack mesh_part             the workers that run this function
  raydoctor stack Trainer --locals      an actor, with the local variables
  raydoctor stack 10.0.0.9              all workers of a node
  raydoctor stack 812 --native          with the frames of C and C++ code

Locals are shown without what looks like a secret, and are kept nowhere.

\b
Exit code:
  0  the stacks of all that was meant
  2  could not run; nothing that runs is called so
  3  some stacks could not be had
"""


@click.command(
    "stack", help=_HELP, short_help="Where workers stand at this moment.", **options.SETTINGS
)
@click.argument("target", required=False, default="")
@click.option("--all-nodes", is_flag=True, help="The workers of all nodes.")
@click.option("--locals", "variables", is_flag=True, help="The local variables of each frame.")
@click.option("--native", is_flag=True, help="Frames of C, C++ and Rust, too.")
@options.timeout_option("For each look, and each answer of the cluster.")
@options.address_option()
@options.format_option("text", "json")
@options.verbose_option
def command(  # noqa: PLR0913 - one parameter per option
    *,
    target: str,
    all_nodes: bool,
    variables: bool,
    native: bool,
    timeout: float | None,
    address: str | None,
    form: str,
    verbose: bool,
) -> int:
    """Look, and show."""
    from raydoctor.cli._progress import Progress
    from raydoctor.observe import live
    from raydoctor.observe.collector.run import usual_timeout
    from raydoctor.observe.stacks import worker_stacks
    from raydoctor.render import stack as render
    from raydoctor.render import terminal

    if target and all_nodes:
        raise click.UsageError("TARGET is looked for on all nodes: --all-nodes stands alone")
    patience = usual_timeout() if timeout is None else timeout
    wishes = worker_stacks.StackOptions(target, all_nodes, variables, native, patience)
    with Progress("looking for the cluster") as progress:
        cluster, notes = live.find(address)
        found = worker_stacks.look(cluster, wishes, progress.say)
    for each in notes:
        options.note(each)
    if form == "json":
        options.print_text(render.to_json(found))
    else:
        style = render.Style(terminal.width_of(sys.stdout), verbose)
        options.print_page(render.render(found, style))
    return INCOMPLETE if any(not gap.optional for gap in found.gaps) else 0
