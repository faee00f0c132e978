"""`raydoctor cancel`: end one task, by the gentlest step that can."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.act.cancel.owner import Owners
    from raydoctor.act.cancel.steps import CancelBackend
    from raydoctor.act.cancel.target import Target

NOT_ENDED = 1
SEVERAL = 2
_TIMEOUT = 5.0

_HELP = """Cancel one task of a live cluster, whoever submitted it, step by step.

TASK is a task's id (of `ray list tasks`, or in an ObjectRef), six or more of its
first digits, or its name. Each step is taken only if the last one has not ended
it within --grace, and is verified:

\b
  cancel      its owner cancels it, as ray.cancel does
  interrupt   KeyboardInterrupt in its main thread, also in a sleep, a lock, a
              socket; its worker lives on, an actor keeps its state
  force       its owner cancels it by force: Ray ends its worker
  kill        SIGKILL of its worker, for native code that holds the GIL
              (neither with --no-force)
  kill-actor  only with --kill-actor: ends the actor of a method, and its state
  job-stop    only with --job-stop: ends its whole job

What the task had started itself is ended with it, in sessions of their own, too.
It is not retried. What has to be done on another node is done there, by a small task.

\b
Examples:
  raydoctor cancel c8ef45ccd0112571ffffffffffffffffffffffff01000000
  raydoctor cancel mesh_part --dry-run
  raydoctor cancel c8ef45cc --yes --grace 1
  raydoctor cancel Trainer.step --kill-actor

\b
Exit code:
  0  it has ended
  1  it has not
  2  could not run; no task, or several, are called so
"""


@click.command(
    "cancel", help=_HELP, short_help="End one task, as gently as it lets.", **options.SETTINGS
)
@click.argument("task", metavar="TASK")
@options.grace_option("Time each step may take before the next one is tried.")
@click.option(
    "--recursive/--no-recursive",
    default=True,
    show_default=True,
    help="Cancel the tasks that it submitted, too.",
)
@click.option(
    "--force/--no-force",
    default=True,
    show_default=True,
    help="End its worker, too, if nothing gentler ends it.",
)
@click.option("--kill-actor", is_flag=True, help="End its actor if nothing else ends the method.")
@click.option("--job-stop", is_flag=True, help="Stop its whole job if nothing else ends it.")
@click.option("--all-users", is_flag=True, help="Another user's, too: as root.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@options.address_option()
@options.format_option("text", "json")
@options.verbose_option
def command(  # noqa: PLR0913 - one parameter per option
    *,
    task: str,
    grace: float,
    recursive: bool,
    force: bool,
    kill_actor: bool,
    job_stop: bool,
    all_users: bool,
    dry_run: bool,
    yes: bool,
    address: str | None,
    form: str,
    verbose: bool,
) -> int:
    """Cancel a task."""
    del verbose
    from raydoctor.act.cancel.ladder import backend_for
    from raydoctor.act.cancel.owner import connected
    from raydoctor.act.cancel.steps import CancelOptions
    from raydoctor.cli._progress import patience
    from raydoctor.observe import live

    wishes = CancelOptions(grace, recursive, kill_actor, job_stop, all_users, force)
    with patience("looking for the cluster"):
        cluster, notes = live.find(address)
    for each in notes:
        options.note(each)
    with connected(cluster, _TIMEOUT) as owners:
        targets = _targets(owners, task)
        if len(targets) > 1:
            return _tell_several(targets, task, form == "json")
        hands = backend_for(owners, cluster, wishes, targets[0])
        return _cancel(hands, targets[0], dry_run, yes, form == "json")


def _targets(owners: Owners, task: str) -> list[Target]:
    from raydoctor.act.cancel.target import find
    from raydoctor.cli._progress import patience

    with patience("looking for the task"):
        return find(owners, task)


def _tell_several(targets: list[Target], task: str, as_json: bool) -> int:
    from raydoctor.render import cancel as render

    if as_json:
        options.print_text(render.several_to_json(targets, task))
    else:
        options.print_page(render.several(targets, task))
    return SEVERAL


def _cancel(hands: CancelBackend, target: Target, dry_run: bool, yes: bool, as_json: bool) -> int:
    if dry_run:
        _show_plan(hands, target, as_json)
        return NOT_ENDED if target.state != "ended" else 0
    if target.state != "ended" and not yes:
        _ask(hands, target)
    return _run(hands, target, as_json)


def _show_plan(
    hands: CancelBackend, target: Target, as_json: bool, to_stderr: bool = False
) -> None:
    from raydoctor.act.cancel.steps import plan
    from raydoctor.render import cancel as render
    from raydoctor.render import terminal

    steps = plan(hands, target)
    if as_json:
        options.print_text(render.plan_to_json(target, steps))
        return
    stream = sys.stderr if to_stderr else sys.stdout
    page = render.plan(target, steps, hands.wishes.grace, terminal.width_of(stream))
    terminal.show(page, stream)


def _ask(hands: CancelBackend, target: Target) -> None:
    """Raises click.Abort where the answer is no, RaydoctorError where nobody can be asked."""
    from raydoctor.model.errors import RaydoctorError

    _show_plan(hands, target, as_json=False, to_stderr=True)
    if not sys.stdin.isatty():
        raise RaydoctorError(
            "nothing was done: nobody can be asked whether to cancel it",
            "Add --yes to do it without a question.",
        )
    click.confirm("Cancel it?", abort=True, err=True)


def _run(hands: CancelBackend, target: Target, as_json: bool) -> int:
    from raydoctor.act.cancel.elsewhere import run_where_it_runs
    from raydoctor.act.cancel.target import settled
    from raydoctor.cli._progress import Progress
    from raydoctor.render import cancel as render
    from raydoctor.render import terminal

    with Progress(f"cancelling {target.name}") as progress:
        made = run_where_it_runs(hands, target, progress.say)
        if made.ended:
            made.last = settled(hands.owners, target)
    if hands.audit.problem:
        options.note(f"the audit could not be written: {hands.audit.problem}")
    if as_json:
        options.print_text(render.to_json(made))
    else:
        options.print_page(render.render(made, terminal.width_of(sys.stdout)))
    return 0 if made.ended else NOT_ENDED
