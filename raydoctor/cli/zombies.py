"""`raydoctor zombies`: find and end the processes that a finished Ray left running."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from raydoctor.cli import _options as options
from raydoctor.model import text

if TYPE_CHECKING:
    from raydoctor.act.zombies.leftovers import SweepOptions
    from raydoctor.act.zombies.sweep import SweepRequest, SweptMachine
    from raydoctor.act.zombies.sweep_nodes import NodeChoice
    from raydoctor.observe.collector.cluster import Cluster

FOUND = 1
OUT_OF_SIGHT = 3

_HELP = """Find the processes that outlived their Ray worker, raylet or session; --kill ends them.

Leftovers are live processes, not defunct ones. Without --kill or --clean this is a dry run.
With either, raydoctor shows its plan and asks.

By default raydoctor searches only this machine. --node and --all-nodes start a small Ray
task on each selected node, which searches there and, with --kill, ends leftovers there.

raydoctor decides whether a process belongs to Ray, and to which session, from what the process
inherited or holds open: environment, output, log, object store, process group, POSIX session.
The plan names the evidence for each process.

A process that only inherited Ray's environment variables may be a tmux session or a
server that a job started. Ending it needs a second confirmation, or --inherited.

Leftovers get SIGTERM, then SIGKILL after --grace; the audit log records every signal.
In a running session, raydoctor signals only processes whose worker or raylet is gone, or, with
--leaked, whose task has ended. It never signals itself, its parents or a reused pid.

\b
Examples:
  raydoctor zombies
  raydoctor zombies --kill
  raydoctor zombies --kill --yes --leaked --session session_2026-11-21_14-03-00_000000_812
  raydoctor zombies --clean   # folders and shared memory of dead sessions
  sudo raydoctor zombies --kill --all-users
  raydoctor zombies --all-nodes --kill
  raydoctor zombies --node 10.0.0.7 --node 3f2a90c1

\b
Exit code:
  0    no leftovers, or all of them were ended
  1    something is left over
  2    could not run
  3    inconclusive: some processes or nodes could not be inspected
  130  interrupted, or not confirmed
"""


@click.command(
    "zombies", help=_HELP, short_help="Find and end what Ray left running.", **options.SETTINGS
)
@click.option(
    "--kill", is_flag=True, help="End the leftovers: show the plan, ask, end them, verify."
)
@click.option(
    "--clean", is_flag=True, help="Remove the files of dead sessions, including their logs."
)
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="Do not ask for confirmation. Processes that only inherited Ray's environment are ended "
    "only with --inherited.",
)
@click.option(
    "--leaked",
    is_flag=True,
    help="Also end subprocesses that a finished task left under an idle worker.",
)
@click.option(
    "--inherited",
    is_flag=True,
    help="Also end processes that only inherited Ray's environment variables.",
)
@click.option(
    "--session",
    metavar="SESSION",
    default="",
    help="Only leftovers of this session: its folder or name.",
)
@options.grace_option("Time between SIGTERM and SIGKILL.")
@click.option("--all-users", is_flag=True, help="Also end other users' processes (root only).")
@click.option(
    "--node", "nodes", metavar="ID|IP", multiple=True, help="Search this node; repeatable."
)
@click.option("--all-nodes", is_flag=True, help="Search all nodes of the cluster and this machine.")
@options.address_option(
    "For --node and --all-nodes: address of the cluster's GCS (host:port). Needed if the cluster runs "
    "elsewhere, or if several run here."
)
@options.only_option()
@options.format_option("text", "json", "prometheus")
@options.verbose_option
def command(  # noqa: PLR0913 - one parameter per option
    *,
    kill: bool,
    clean: bool,
    dry_run: bool,
    yes: bool,
    leaked: bool,
    inherited: bool,
    session: str,
    grace: float,
    all_users: bool,
    nodes: tuple[str, ...],
    all_nodes: bool,
    address: str | None,
    only: str,
    form: str,
    verbose: bool,
) -> int:
    """Find, and end."""
    del verbose
    from raydoctor.act.zombies import sweep
    from raydoctor.act.zombies.leftovers import SweepOptions
    from raydoctor.act.zombies.sweep import SweepRequest

    if nodes and all_nodes:
        raise click.UsageError("--node and --all-nodes cannot be combined")
    if address is not None and not (nodes or all_nodes):
        raise click.UsageError(
            "--address needs --node or --all-nodes: without them, zombies searches this machine for "
            "leftovers of all clusters; --session limits it to one session"
        )
    is_dry = dry_run or not (kill or clean)
    deed = SweepRequest(SweepOptions(session, leaked, all_users, inherited), grace, kill, clean)
    field = _Field(*_chosen(nodes, address)) if nodes or all_nodes else _Field()
    places = field.look(deed.options, with_disk=is_dry or clean or not yes)
    if only:
        places = [p._replace(view=p.view and sweep.only(p.view, only)) for p in places]
    nothing = OUT_OF_SIGHT if _is_hidden(places) else 0
    if is_dry:
        _show(places, form)
        return FOUND if any(each.view and each.view.leftovers for each in places) else nothing
    what = _meant(places, deed)
    doubtful = sum(len(sweep.doubtful(each.view)) for each in places if each.view) if kill else 0
    if (what or doubtful) and not yes:
        _show(places, "text", to_stderr=form != "text")
        if what:
            _ask(what)
        if doubtful and _ask_about_doubtful(doubtful):
            places, deed = sweep.with_doubtful(places, deed)
    done = field.carry_out(places, deed)
    _print_notes(done)
    _show(done, form)
    return FOUND if any(each.view and each.view.is_left for each in done) else nothing


class _Field:
    """The machines to search: this one only, or nodes of a cluster."""

    def __init__(self, cluster: Cluster | None = None, choice: NodeChoice | None = None) -> None:
        self._cluster = cluster
        self._choice = choice

    def look(self, sweep_options: SweepOptions, with_disk: bool) -> list[SweptMachine]:
        """The leftovers on these machines, this machine first."""
        from raydoctor.act.zombies import sweep, sweep_nodes
        from raydoctor.cli._progress import Progress

        here = sweep.SweepNode() if self._choice is None else self._choice.here
        places = []
        with Progress("searching the processes") as progress:
            if here is not None:
                places.append(
                    sweep.SweptMachine(here, sweep.inspect(sweep_options, with_disk), is_here=True)
                )
            if self._cluster is not None and self._choice is not None:
                places += sweep_nodes.inspect(
                    self._cluster,
                    self._choice.there,
                    sweep_options,
                    with_disk,
                    lambda done, total: progress.say(
                        f"{done} of {total} other nodes are searched", done, total
                    ),
                )
                places += self._choice.gone
        return places

    def carry_out(self, places: list[SweptMachine], deed: SweepRequest) -> list[SweptMachine]:
        """End the processes and remove the files of the plan."""
        from raydoctor.act.zombies import sweep, sweep_nodes
        from raydoctor.cli._progress import Progress

        with Progress("ending processes") as progress:
            done = [
                each._replace(view=sweep.carry_out(each.view, deed))
                if each.is_here and each.view is not None
                else each
                for each in places
            ]
            if self._cluster is None:
                return done
            there = sweep_nodes.carry_out(
                self._cluster,
                [each for each in done if not each.is_here],
                deed,
                lambda ended, total: progress.say(
                    f"{ended} of {total} other nodes are done", ended, total
                ),
            )
        return [*(each for each in done if each.is_here), *there]


def _chosen(named: tuple[str, ...], address: str | None) -> tuple[Cluster, NodeChoice]:
    from raydoctor.act.zombies import sweep_nodes
    from raydoctor.cli._progress import patience
    from raydoctor.observe import live

    with patience("looking for the cluster"):
        cluster, notes = live.find(address)
        for each in notes:
            options.note(each)
        return cluster, sweep_nodes.choose(cluster, named)


def _is_hidden(places: list[SweptMachine]) -> bool:
    """Whether some processes or nodes could not be inspected; for this machine, print the reason."""
    for each in places:
        if each.is_here and each.view and each.view.unseen:
            options.note(each.view.unseen)
    return any(each.problem or (each.view and each.view.unseen) for each in places)


def _print_notes(places: list[SweptMachine]) -> None:
    for each in places:
        for note in each.view.notes if each.view else ():
            options.note(note if each.is_here else f"node {each.node.id[:12]}: {note}")


def _meant(places: list[SweptMachine], deed: SweepRequest) -> str:
    """The plan as a sentence; empty if there is nothing to do."""
    from raydoctor.act.zombies import sweep

    plans = [sweep.plan(each.view, deed) for each in places if each.view is not None]
    count = sum(len(plan.ending) for plan in plans)
    removing = [stale for plan in plans for stale in plan.removing]
    size = text.size(sum(each.bytes for each in removing))
    parts = (
        f"end {text.plural(count, 'process', 'processes')}" if count else "",
        f"remove {text.plural(len(removing), 'file or folder', 'files and folders')} ({size})"
        if removing
        else "",
    )
    where = sum(any(plan) for plan in plans)
    return " and ".join(filter(None, parts)) + (f" on {where} machines" if where > 1 else "")


def _ask_about_doubtful(count: int) -> bool:
    """Ask separately whether to end processes that only inherited Ray's environment; the default is no."""
    if not sys.stdin.isatty():
        return False  # the report lists them, with the option that ends them
    what = text.plural(count, "process", "processes")
    return click.confirm(
        f"End also {what} that only inherited Ray's environment (a tmux session or a server that was started "
        "from a job looks the same)?",
        default=False,
        err=True,
    )


def _ask(what: str) -> None:
    """Ask for confirmation. Raises click.Abort if refused, RaydoctorError if there is no terminal."""
    from raydoctor.model.errors import RaydoctorError

    if not sys.stdin.isatty():
        raise RaydoctorError(
            f"nothing was done: standard input is not a terminal, so no answer can be given to: {what}?",
            "Add --yes to do it without confirmation.",
        )
    click.confirm(f"{what[0].upper()}{what[1:]}?", abort=True, err=True)


def _show(places: list[SweptMachine], form: str, to_stderr: bool = False) -> None:
    from raydoctor.render import terminal, zombies

    if form == "json":
        options.print_text(zombies.to_json(places))
    elif form == "prometheus":
        options.print_text(zombies.to_metrics(places))
    else:
        stream = sys.stderr if to_stderr else sys.stdout
        terminal.show(zombies.render(places, terminal.width_of(stream)), stream)
