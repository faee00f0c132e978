"""`raydoctor stack`: the call stacks of workers and drivers at this moment."""

from __future__ import annotations

import sys

import click

from raydoctor.cli import _options as options

INCOMPLETE = 3

_HELP = """Show the call stacks of workers and drivers, and the tasks that they run.

TARGET is a task (id, its first six or more digits, or name), an actor (id, class or
name), a pid, or a node (id or IP address). The default is all workers and drivers of
this machine. Each process is paused for about 10 ms (--native: 150 ms). Workers with
the same stack form one block.

\b
Examples:
  raydoctor stack                       this machine
  raydoctor stack mesh_part             the workers that run this function
  raydoctor stack Trainer --locals      an actor, with the local variables
  raydoctor stack 10.0.0.9              all workers of a node
  raydoctor stack 812 --native          with C and C++ frames

Reading a process of another user, or one in a container without ptrace, needs root. On another
node, a small Ray task reads the stacks. Values of variables that look like secrets (by name, such
as token, or by form) are shown as <secret:…>: check the rest before you share it.

\b
Exit code:
  0  all stacks of the target were read
  2  could not run, or no running task, actor or process matches TARGET
  3  some stacks could not be read
"""


@click.command(
    "stack",
    help=_HELP,
    short_help="Show the call stacks of workers and drivers.",
    **options.SETTINGS,
)
@click.argument("target", required=False, default="", shell_complete=options.complete_running)
@click.option("--all-nodes", is_flag=True, help="Include the workers of all nodes.")
@click.option("--locals", "variables", is_flag=True, help="Show the local variables of each frame.")
@click.option("--native", is_flag=True, help="Show C, C++ and Rust frames as well.")
@options.timeout_option("Time limit for each sample and each reply of the cluster.")
@options.address_option()
@options.found_option()
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
    is_found: bool,
    form: str,
    verbose: bool,
) -> int:
    """Sample the stacks, and print them."""
    from raydoctor.cli._progress import Progress
    from raydoctor.observe import live
    from raydoctor.observe.collector.run import usual_timeout
    from raydoctor.observe.stacks import worker_stacks
    from raydoctor.render import stack as render
    from raydoctor.render import terminal

    if target and all_nodes:
        raise click.UsageError("TARGET is searched on all nodes: use --all-nodes without a TARGET")
    patience = usual_timeout() if timeout is None else timeout
    stack_options = worker_stacks.StackOptions(target, all_nodes, variables, native, patience)
    with Progress("searching for the cluster") as progress:
        cluster, notes = live.find(address, is_typed=not is_found)
        found = worker_stacks.inspect(cluster, stack_options, progress.say)
    for each in notes:
        options.note(each)
    if form == "json":
        options.print_text(render.to_json(found))
    else:
        style = render.Style(terminal.width_of(sys.stdout), verbose)
        options.print_page(render.render(found, style))
    return INCOMPLETE if any(not gap.optional for gap in found.gaps) else 0
