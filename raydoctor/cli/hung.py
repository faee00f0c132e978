"""`raydoctor hung`: hung tasks, what each waits for, and what waits for it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.capture.open import Capture
    from raydoctor.model.errors import RaydoctorError
    from raydoctor.model.status import EnvironmentBuild
    from raydoctor.model.values import Gap
    from raydoctor.render.hung import HungView
    from raydoctor.waits.hung import HungReport

FOUND = 1
INCOMPLETE = 3
_PEERS_AFTER = 5.0
"""Seconds after which a task is sampled: its peers show whether that is long."""
_MOST = 200
"""Processes to sample."""
_MATTERS = ("tasks", "stacks", "table", "joining")
"""Subjects of gaps that can hide a hang; a gap in the kernel log, for example, cannot."""
_RECORDED = 3
"""Seconds of the culprit's profile."""

_HELP = """Find hung tasks, actor methods and drivers, what each waits for, and what waits for it.

A task is reported as hung if its stack does not change and it has run at least ten times as long
as any finished task of the same name. If none has finished, it counts as hung after --min-age of
idle time. Other long waits are listed with the event that would end them.

A CPU-bound task is listed as busy, unless it has run ten times as long as finished tasks
of the same name: then it counts as hung, even if its stack changes.

An awaiting coroutine appears on no call stack: raydoctor finds what it waits for among the
unfinished calls of its actor.

raydoctor samples the stacks of all tasks that have been running for more than a few seconds,
without pausing them, and reads which objects each process waits for.

A cycle of waits is a deadlock. Otherwise the waits form a chain, and the process at its end
blocks all the others: it is listed first.

PATH is an archive that `raydoctor collect` made during the hang; the default is the live cluster.


\b
Examples:
  raydoctor hung
  raydoctor hung --min-age 10m --format json
  raydoctor hung --save flame.svg   # a flame graph of the blocking process, or *.json for speedscope
  raydoctor hung capture.tar.gz --format html -o hung.html

\b
Exit code:
  0  nothing hangs
  1  at least one task, method or driver hangs
  2  could not run
  3  inconclusive: some evidence is missing, a wait that may be a hang is younger than --min-age,
     a job has only begun, a program here has not reached its cluster, or raydoctor does not know
     what would end a wait
"""


@click.command(
    "hung",
    help=_HELP,
    short_help="Find hung tasks and deadlocks, and what they wait for.",
    **options.SETTINGS,
)
@options.path_argument
@options.min_age_option
@click.option(
    "--samples",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    metavar="N",
    help="Samples to take of each process.",
)
@click.option(
    "--every",
    type=options.Duration(),
    default="1s",
    show_default=True,
    help="Time between two samples.",
)
@click.option("--native", is_flag=True, help="Show C and C++ functions as well.")
@click.option(
    "--save",
    metavar="FILE",
    help="Write a profile of the blocking process, the first one listed: a flame graph (.svg) or "
    "speedscope (.json).",
)
@options.format_option("text", "json", "html", "prometheus")
@options.output_option
@options.live_options
@options.found_option()
@options.verbose_option
def command(
    path: str | None, save: str | None, form: str, output: str | None, verbose: bool, **given: Any
) -> int:
    """Find hung work."""
    given["driver_log"] = None
    if save is not None:
        _check(path, save)
    is_live = options.is_live(path, given)
    capture = _live(**given) if is_live else options.opened(path, None)
    sampled_after = min(_PEERS_AFTER, given["min_age"]) if is_live else None
    with capture:
        return report(capture, given["min_age"], form, verbose, output, sampled_after, save)


def report(  # noqa: PLR0913, PLR0917 - one for each option
    capture: Capture,
    min_age: float,
    form: str,
    verbose: bool,
    output: str | None = None,
    sampled_after: float | None = None,
    save: str | None = None,
) -> int:
    """Report on an open capture, and return the exit code."""
    view = _view(capture, min_age, verbose, sampled_after)
    _show(view, form, capture.path, output)
    if save is not None:
        _save(view, save)
    return _code(view)


def _code(view: HungView) -> int:
    if view.found.groups:
        return FOUND
    from raydoctor.render.hung import gaps

    is_complete = view.found.is_conclusive and all(gap.optional for gap in gaps(view))
    return 0 if is_complete else INCOMPLETE


def _live(**given: Any) -> Capture:
    """Collect the state of the cluster, and the stacks of long-running tasks."""
    from raydoctor.cli._progress import Progress
    from raydoctor.observe import live
    from raydoctor.observe.stacks.suspects import Sampling

    age = min(_PEERS_AFTER, given["min_age"])
    sampling = Sampling(given["samples"], given["every"], age, given["native"], _MOST, drivers=True)
    with Progress("searching for a cluster") as progress:
        collect_options = replace(options.collect_options(**given), logs=False, samples=sampling)
        capture = live.collect(collect_options, progress.say).capture()
    for each in capture.notes:
        options.note(each)
    return capture


def _view(
    capture: Capture, min_age: float, verbose: bool, sampled_after: float | None = None
) -> HungView:
    from raydoctor.case import Case
    from raydoctor.read import live
    from raydoctor.render.hung import HungView
    from raydoctor.waits.hung import hung

    gaps = list(capture.gaps)
    events = live.of_capture(capture, gaps)
    tables = {event["name"] for event in events if event.kind == "live.table"}
    if "tasks" not in tables:
        raise _no_tasks(capture)
    case = Case(events)
    gaps = [_required(gap) for gap in gaps if gap.about in _MATTERS]
    looked_at = len({(e["node_id"], e.pid) for e in case.of("live.samples")})
    at = max((e.at for e in case.of("live.table") if e.at is not None), default=None)
    found = hung(case, min_age, sampled_after)
    return HungView(found, gaps, looked_at, verbose, at, _builds(capture, found, at))


def _builds(capture: Capture, found: HungReport, at: float | None) -> tuple[EnvironmentBuild, ...]:
    """The runtime environments that are being set up, from their agents' logs, if a task waits for one."""
    from raydoctor.waits.hung import PREPARED

    waits = (*found.early, *(each for group in found.groups for each in group.culprits))
    if at is None or not any(each.kind in PREPARED for each in waits):
        return ()
    from raydoctor.read import build
    from raydoctor.redact.report import scrub
    from raydoctor.rules.shared.setup import builds

    case = build.read(capture, builds.SIGNALS).case
    return scrub(tuple(each.at(at) for each in builds.builds(case)), capture.secrets)


def _required(gap: Gap) -> Gap:
    """Require the stacks: a diagnosis can do without them, but their absence may hide a hang."""
    return replace(gap, optional=False) if gap.about == "stacks" else gap


def _no_tasks(capture: Capture) -> RaydoctorError:
    """The error for a capture without a list of tasks, with its cause and a hint."""
    from raydoctor.model import paste
    from raydoctor.model.errors import RaydoctorError

    if capture.kind == "live":
        causes = [f"{gap.what}: {gap.why}" for gap in capture.gaps if not gap.optional]
        cause = f" ({causes[0]})" if causes else ""
        hint = "If it is only slow: raydoctor hung --timeout 30. If it has ended, for its logs: raydoctor"
        return RaydoctorError(f"the cluster did not report its tasks{cause}", hint)
    if lost := next((gap for gap in capture.gaps if gap.about == "tasks"), None):
        why = f"{lost.what}: {lost.why}"
        return RaydoctorError(f"{capture.path} holds no list of tasks ({why})", lost.hint)
    return RaydoctorError(
        f"{capture.path} holds no list of tasks",
        paste.shell(
            "Make a capture during the hang: raydoctor collect. For its logs: raydoctor {path:path}",
            path=capture.path,
        ),
    )


def _show(view: HungView, form: str, of: str, output: str | None = None) -> None:
    """Print the view, or write it to a file."""
    from raydoctor.render import hung as render
    from raydoctor.render import terminal

    if form == "text" and output in (None, "-"):
        options.print_page(render.render(view, terminal.width_of(sys.stdout)))
        return
    options.write(_as_text(view, form, of), output)


def _as_text(view: HungView, form: str, of: str) -> str:
    from raydoctor.render import hung as render
    from raydoctor.render.page import plain

    if form == "json":
        return render.to_json(view)
    if form == "prometheus":
        return render.to_metrics(view)
    if form == "html":
        from raydoctor.render.html.hung import render as page_for_browser
        from raydoctor.render.markdown import name_of

        return page_for_browser(view, name_of(of))
    return plain(render.render(view))


# ------------------------------------------------------------------ --save


def _check(path: str | None, save: str) -> None:
    """Refuse an impossible --save before the collection begins."""
    if path is not None:
        raise click.UsageError("--save records a running process and cannot be used with a capture")
    if not save.endswith((".svg", ".json")):
        raise click.UsageError("--save writes a flame graph (FILE.svg) or speedscope (FILE.json)")


def _save(view: HungView, save: str) -> None:
    """Record the culprit for a few seconds."""
    from raydoctor.cli._progress import patience
    from raydoctor.model.errors import RaydoctorError
    from raydoctor.observe.stacks import profile

    groups = view.found.groups
    runs = [h.work for g in groups for h in (*g.cycle, *g.culprits) if h.work.process]
    if not runs or runs[0].process is None:
        options.note(f"{save} was not written: no hung process could be inspected")
        return
    process, label = runs[0].process, runs[0].label
    started_at = float(process.last.event["started_at"] or 0)
    with patience(f"recording {label}", _RECORDED):
        problem = profile.record(process.pid, started_at, Path(save), _RECORDED)
    if problem:
        raise RaydoctorError(f"{save} was not written: {problem}")
    options.note(f"{_RECORDED} s of {label} written to {save}")
