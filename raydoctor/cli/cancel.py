"""`raydoctor cancel`: end one task, by the gentlest effective step."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.act.cancel.owner import Owners
    from raydoctor.act.cancel.steps import CancelBackend
    from raydoctor.act.cancel.target import CancelTarget

NOT_ENDED = 1
UNKNOWN = 3
SEVERAL = 2
_TIMEOUT = 5.0

_HELP = """Cancel one task of any job of a live cluster and, by default, the tasks that it submitted.

TASK is a task id (from `ray list tasks` or an ObjectRef), the first six or more digits of one,
the name of a task, the class of its actor, or the pid of its worker. raydoctor tries the
steps below in order, each only if the task still runs 5 s (--grace) after the previous one:

\b
  cancel      the task's owner cancels it, as ray.cancel does
  interrupt   KeyboardInterrupt in the task's main thread, even while it sleeps or waits
              on a lock or a socket; the worker keeps running and an actor keeps its state
  force       tasks only, never an actor's method: the owner cancels it by force, and Ray ends
              the worker
  kill        tasks only, never an actor's method: SIGKILL to the worker, for native code that
              holds the GIL (--no-force leaves out force and kill)
  kill-actor  only with --kill-actor: ends the method's actor and loses its state
  job-stop    only with --job-stop: stops a submitted job, or ends the driver of any other job

The subprocesses of the task end with it, including those that called setsid. Ray does not retry
the task. If it runs on another node, a small Ray task there, which reserves no CPU, takes the steps.

\b
Examples:
  raydoctor cancel c8ef45ccd0112571ffffffffffffffffffffffff01000000
  raydoctor cancel mesh_part --dry-run
  raydoctor cancel c8ef45cc --yes --grace 1s
  raydoctor cancel Trainer.step --kill-actor

\b
Exit code:
  0    the task and everything that it started have ended
  1    the task or something that it started is still running
  2    could not run, or the name matches no task or more than one
  3    unknown: the cluster stopped answering
  130  interrupted, or not confirmed
"""


@click.command(
    "cancel", help=_HELP, short_help="End one task and its subprocesses.", **options.SETTINGS
)
@click.argument("task", metavar="TASK", shell_complete=options.complete_running)
@options.grace_option("Time each step may take before the next one is tried.")
@click.option(
    "--recursive/--no-recursive",
    default=True,
    show_default=True,
    help="Also cancel the tasks that the task submitted.",
)
@click.option(
    "--force/--no-force",
    default=True,
    show_default=True,
    help="End the worker of a task if the gentler steps fail; never that of an actor.",
)
@click.option("--kill-actor", is_flag=True, help="End the actor if nothing else ends the method.")
@click.option(
    "--job-stop",
    is_flag=True,
    help="Stop the whole job if nothing else ends the task.",
)
@click.option("--all-users", is_flag=True, help="Also end subprocesses of other users (root only).")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@options.address_option()
@options.found_option()
@options.only_option()
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
    is_found: bool,
    only: str,
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

    cancel_options = CancelOptions(grace, recursive, kill_actor, job_stop, all_users, force)
    with patience("looking for the cluster"):
        cluster, notes = live.find(address, is_typed=not is_found)
    for each in notes:
        options.note(each)
    with connected(cluster, _TIMEOUT) as owners:
        targets = _targets(owners, task)
        if len(targets) > 1:
            return _print_several(targets, task, form == "json")
        options.check_only(only, targets[0].identity)
        backend = backend_for(owners, cluster, cancel_options, targets[0])
        return _cancel(backend, targets[0], dry_run, yes, form == "json")


def _targets(owners: Owners, task: str) -> list[CancelTarget]:
    from raydoctor.act.cancel.target import find
    from raydoctor.cli._progress import patience

    with patience("looking for the task"):
        return find(owners, task)


def _print_several(targets: list[CancelTarget], task: str, as_json: bool) -> int:
    from raydoctor.render import cancel as render

    if as_json:
        options.print_text(render.several_to_json(targets, task))
    else:
        options.print_page(render.several(targets, task))
    return SEVERAL


def _cancel(
    backend: CancelBackend, target: CancelTarget, dry_run: bool, yes: bool, as_json: bool
) -> int:
    if dry_run:
        _show_plan(backend, target, as_json)
        return NOT_ENDED if target.state != "ended" else 0
    if target.state != "ended" and not yes:
        _ask(backend, target)
    return _run(backend, target, as_json)


def _show_plan(
    backend: CancelBackend, target: CancelTarget, as_json: bool, to_stderr: bool = False
) -> None:
    from raydoctor.act.cancel.steps import plan
    from raydoctor.render import cancel as render
    from raydoctor.render import terminal

    steps = plan(backend, target)
    if as_json:
        options.print_text(render.plan_to_json(target, steps))
        return
    stream = sys.stderr if to_stderr else sys.stdout
    page = render.plan(target, steps, backend.options.grace, terminal.width_of(stream))
    terminal.show(page, stream)


def _ask(backend: CancelBackend, target: CancelTarget) -> None:
    """Ask for confirmation. Raises click.Abort if refused, RaydoctorError if there is no terminal."""
    from raydoctor.model.errors import RaydoctorError

    _show_plan(backend, target, as_json=False, to_stderr=True)
    if not sys.stdin.isatty():
        raise RaydoctorError(
            "nothing was done: standard input is not a terminal, so no answer can be given",
            "Add --yes to do it without confirmation.",
        )
    click.confirm("Cancel it?", abort=True, err=True)


def _run(backend: CancelBackend, target: CancelTarget, as_json: bool) -> int:
    from raydoctor.act.cancel.elsewhere import run_where_it_runs
    from raydoctor.act.cancel.owner import AskError
    from raydoctor.act.cancel.target import settled
    from raydoctor.cli._progress import Progress
    from raydoctor.render import cancel as render
    from raydoctor.render import terminal

    with Progress(f"cancelling {target.name}") as progress:
        made = run_where_it_runs(backend, target, progress.say)
        if made.ended and not made.silence:
            with suppress(AskError):
                made.last = settled(backend.owners, target)
    if backend.audit.problem:
        options.note(f"the audit log could not be written: {backend.audit.problem}")
    if as_json:
        options.print_text(render.to_json(made))
    else:
        options.print_page(render.render(made, terminal.width_of(sys.stdout)))
    if made.silence:
        return UNKNOWN
    return 0 if made.ended and not (made.processes or made.tasks) else NOT_ENDED
