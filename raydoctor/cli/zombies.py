"""`raydoctor zombies`: what a Ray that has ended left running, and its end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.act.clean import Stale
    from raydoctor.act.leftovers import Leftover, Wishes
    from raydoctor.render.zombies import View

FOUND = 1
OUT_OF_SIGHT = 3

_HELP = """Find the processes that outlived their Ray worker, raylet or session; --kill ends them.

Whose a process is, is told by what it inherited or has open: environment, output,
log, object store, process group, session. Each is shown with the reason. A dry run
unless --kill is given; that shows the plan, and asks.

SIGTERM first, SIGKILL after --grace to what has not ended, again until nothing is
left. Never touched: workers, drivers and daemons of a living session and what they
run, other users' processes, raydoctor itself and what started it, and a process whose
pid was given to another one meanwhile. Each signal is noted in
~/.local/state/raydoctor/audit.jsonl.

\b
Examples:
  raydoctor zombies
  raydoctor zombies --kill
  raydoctor zombies --kill --yes --leaked --session session_2026-11-21_14-03-00_000000_812
  raydoctor zombies --clean                  dead sessions' folders and shared memory
  sudo raydoctor zombies --kill --all-users
  for node in $(cat nodes); do ssh $node raydoctor zombies --kill --yes; done

This node alone is looked at: run it on each node for all.

\b
Exit code:
  0  nothing is left over, or nothing any more
  1  something is left over
  2  could not run
  3  nothing is left over, but some processes could not be looked at
"""


@click.command(
    "zombies", help=_HELP, short_help="What Ray left running: find it, end it.", **options.SETTINGS
)
@click.option("--kill", is_flag=True, help="End them: show the plan, ask, do it, verify it.")
@click.option("--clean", is_flag=True, help="Remove what dead sessions keep on the disk.")
@click.option("--dry-run", is_flag=True, help="Only show, whatever else is given.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--leaked", is_flag=True, help="End also what an ended task left below an idle worker."
)
@click.option(
    "--session", metavar="SESSION", default="", help="Of this session only: folder or name."
)
@click.option(
    "--grace",
    type=click.FloatRange(0, 600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Between SIGTERM and SIGKILL.",
)
@click.option("--all-users", is_flag=True, help="Other users' processes, too: as root.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options.verbose_option
def command(  # noqa: PLR0913 - one parameter per option
    *,
    kill: bool,
    clean: bool,
    dry_run: bool,
    yes: bool,
    leaked: bool,
    session: str,
    grace: float,
    all_users: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Find, and end."""
    del verbose
    from raydoctor.act import leftovers

    wishes = leftovers.Wishes(session, leaked, all_users)
    is_dry = dry_run or not (kill or clean)
    view = _look(wishes, with_disk=is_dry or clean or not yes)
    if hidden := leftovers.unseen():
        options.note(hidden)
    nothing = OUT_OF_SIGHT if hidden else 0
    if is_dry:
        _show(view, as_json)
        return FOUND if view.leftovers else nothing
    ending, removing = _plan(view, kill, clean)
    if (ending or removing) and not yes:
        _show(view, as_json=False, to_stderr=as_json)
        _ask(ending, removing)
    done = _act(view, wishes, grace, ending, removing)
    _show(done, as_json)
    return FOUND if _is_left(done) else nothing


def _look(wishes: Wishes, with_disk: bool) -> View:
    from raydoctor.act import clean, leftovers
    from raydoctor.cli._progress import patience
    from raydoctor.render.zombies import View

    with patience("looking at the processes"):
        found = leftovers.find(wishes)
        stale = clean.find(wishes) if with_disk else []
    spared = {each.identity: why for each in found if (why := leftovers.spared(each, wishes))}
    return View(found, spared, stale, {})


def _plan(view: View, kill: bool, clean: bool) -> tuple[list[Leftover], list[Stale]]:
    """What is to be ended, and what is to be removed."""
    ending = [each for each in view.leftovers if each.identity not in view.spared] if kill else []
    return ending, [each for each in view.stale if not each.reason] if clean else []


def _ask(ending: list[Leftover], removing: list[Stale]) -> None:
    """Raises click.Abort where the answer is no, RaydoctorError where nobody can be asked."""
    from raydoctor import _text
    from raydoctor.errors import RaydoctorError

    parts = [
        f"end {_text.plural(len(ending), 'process', 'processes')}" if ending else "",
        f"remove {_text.plural(len(removing), 'thing')} ({_text.size(sum(s.bytes for s in removing))})"
        if removing
        else "",
    ]
    what = " and ".join(filter(None, parts))
    if not sys.stdin.isatty():
        raise RaydoctorError(
            f"nothing was done: nobody can be asked whether to {what}",
            "Add --yes to do it without a question.",
        )
    click.confirm(f"{what[0].upper()}{what[1:]}?", abort=True, err=True)


def _act(
    view: View, wishes: Wishes, grace: float, ending: list[Leftover], removing: list[Stale]
) -> View:
    from raydoctor.act import clean, leftovers
    from raydoctor.act.audit import Audit
    from raydoctor.act.system import real_system
    from raydoctor.cli._progress import patience

    audit = Audit("zombies")
    if ending and not real_system().is_exact:
        options.note("this system cannot hold processes: a pid is checked right before each signal")
    with patience("ending processes"):
        outcomes = leftovers.clear(ending, wishes, grace, audit=audit) if ending else {}
        removed = clean.remove(removing, wishes, audit) if removing else []
    if audit.problem:
        options.note(f"the audit could not be written: {audit.problem}")
    kept = [each for each in view.stale if each.path not in {s.path for s in removed}]
    return view._replace(outcomes=outcomes, stale=[*removed, *kept])


def _is_left(view: View) -> bool:
    """Whether anything that was to go is still there."""
    ended = all(outcome.outcome == "gone" for outcome in view.outcomes.values())
    return not ended or any(each.reason and not each.removed for each in view.stale)


def _show(view: View, as_json: bool, to_stderr: bool = False) -> None:
    from raydoctor.render import terminal, zombies

    if as_json:
        options.print_text(zombies.to_json(view))
    else:
        stream = sys.stderr if to_stderr else sys.stdout
        terminal.show(zombies.render(view, terminal.width_of(stream)), stream)
