"""`raydoctor hung`: what hangs, in what, and who waits for whom."""

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
    from raydoctor.model.values import Gap
    from raydoctor.render.hung import View

FOUND = 1
INCOMPLETE = 3
_PEERS_AFTER = 5.0
"""Seconds after which a task is looked at: whether that is long, its peers tell."""
_MOST = 200
_MATTERS = ("the cluster's state", "the stacks", "what runs after", "live/")
"""Gaps that can hide a hang; the kernel's log, say, cannot."""
_STACKS = ("the stacks", "what runs after")
_RECORDED = 3
"""Seconds of the culprit's profile."""

_HELP = """Find the tasks, actor methods and drivers that hang, say in what, and who waits for whom.

A task hangs that stands still far longer than finished ones of its function took, or
without such peers has not run for --min-age, as the kernel tells: a loop that wakes up
now and then, a trickling download, a server without callers do not hang. The stacks
of all that run for longer than a few seconds are looked at several times, without
stopping anybody; from the objects that they wait for comes who waits for whom:
circles are deadlocks, chains end at the one culprit, which is shown first. What uses a
processor is at work and no hang, unless its peers prove otherwise; of a coroutine that
awaits, only its actor's calls tell.

PATH is a capture that raydoctor made while it hung; without it, the live cluster.

\b
Examples:
  raydoctor hung
  raydoctor hung --min-age 10m --json
  raydoctor hung --save flame.svg          a profile of the culprit, or .speedscope.json
  raydoctor hung capture.tar.gz

\b
Exit code:
  0  nothing hangs
  1  something does
  2  could not run
  3  nothing was found, but not everything could be seen
"""


def _seconds(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """`60`, `60s`, `10m`, `2h`, `500ms` as seconds, or a usage error."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    number = value.rstrip("dhms")
    try:
        return max(0.0, float(number)) * units[value[len(number) :] or "s"]
    except (ValueError, KeyError):
        raise click.BadParameter(f"{value!r} is no duration: 60s, 10m, 500ms") from None


@click.command(
    "hung", help=_HELP, short_help="Find what hangs, and for whom it waits.", **options.SETTINGS
)
@options.path_argument
@click.option(
    "--min-age",
    callback=_seconds,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="What has not run for so long hangs, where there are no finished peers.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    metavar="N",
    help="How often to look at each process.",
)
@click.option(
    "--every",
    callback=_seconds,
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Between two looks.",
)
@click.option("--native", is_flag=True, help="Show functions of C and C++, too.")
@click.option(
    "--save",
    metavar="FILE",
    help="Write a profile of the culprit: .svg is a flame graph, .json speedscope.",
)
@options.json_option
@options.live_options
@options.verbose_option
def command(path: str | None, save: str | None, as_json: bool, verbose: bool, **given: Any) -> int:
    """Find what hangs."""
    given["driver_log"] = None
    if save is not None:
        _check(path, save)
    is_live = options.is_live(path, given)
    capture = _live(**given) if is_live else options.opened(path, None)
    with capture:
        view = _view(capture, given["min_age"], verbose)
    _show(view, as_json)
    if save is not None:
        _save(view, save)
    if view.found.groups:
        return FOUND
    from raydoctor.render.hung import gaps

    return INCOMPLETE if any(not gap.optional for gap in gaps(view)) else 0


def _live(**given: Any) -> Capture:
    """What the cluster says, and the stacks of what runs for long."""
    from dataclasses import replace

    from raydoctor.cli._progress import Progress
    from raydoctor.observe import live
    from raydoctor.observe.stacks.suspects import Sampling

    age = min(_PEERS_AFTER, given["min_age"])
    sampling = Sampling(given["samples"], given["every"], age, given["native"], _MOST)
    with Progress("looking for a cluster") as progress:
        wishes = replace(options.wishes(**given), logs=False, samples=sampling)
        capture = live.collect(wishes, progress.say).capture()
    for each in capture.notes:
        options.note(each)
    return capture


def _view(capture: Capture, min_age: float, verbose: bool) -> View:
    from raydoctor.case import Case
    from raydoctor.read import live
    from raydoctor.redact import Redactor
    from raydoctor.render.hung import View
    from raydoctor.waits.hung import hung

    gaps = list(capture.gaps)
    # What a live collection brought is redacted already; a capture may be made by hand.
    redactor = None if capture.kind == "live" else Redactor(capture.secrets)
    events = live.read(capture.files, gaps, redactor)
    tables = {event["name"] for event in events if event.kind == "live.table"}
    if "tasks" not in tables:
        raise _untold(capture)
    case = Case(events)
    gaps = [_judged(gap) for gap in gaps if gap.what.startswith(_MATTERS)]
    looked_at = len({(e["node_id"], e.pid) for e in case.of("live.samples")})
    return View(hung(case, min_age), gaps, looked_at, verbose)


def _judged(gap: Gap) -> Gap:
    """A diagnosis can do without stacks; here their absence may hide what is looked for."""
    return replace(gap, optional=False) if gap.what.startswith(_STACKS) else gap


def _untold(capture: Capture) -> RaydoctorError:
    """Nobody told what runs: why, and what to do."""
    from raydoctor.model.errors import RaydoctorError

    if capture.kind == "live":
        told = [f"{gap.what}: {gap.why}" for gap in capture.gaps if not gap.optional]
        why = f" ({told[0]})" if told else ""
        hint = "Is it only slow? raydoctor hung --timeout 30. Its logs: raydoctor diagnose"
        return RaydoctorError(f"the cluster did not tell what runs{why}", hint)
    return RaydoctorError(
        f"{capture.path} does not tell what ran: its tasks were not collected",
        "Make a capture while it hangs: raydoctor collect. Of logs alone: raydoctor diagnose PATH",
    )


def _show(view: View, as_json: bool) -> None:
    from raydoctor.render import hung as render
    from raydoctor.render import terminal

    if as_json:
        options.print_text(render.to_json(view))
    else:
        options.print_page(render.render(view, terminal.width_of(sys.stdout)))


# ------------------------------------------------------------------ --save


def _check(path: str | None, save: str) -> None:
    """Refuse what cannot be done before anything is looked at."""
    if path is not None:
        raise click.UsageError("--save records a running process: it cannot be had of a capture")
    if not save.endswith((".svg", ".json")):
        raise click.UsageError("--save writes a flame graph (FILE.svg) or speedscope (FILE.json)")


def _save(view: View, save: str) -> None:
    """Record the culprit for a few seconds."""
    from raydoctor.cli._progress import patience
    from raydoctor.model.errors import RaydoctorError
    from raydoctor.observe.stacks import profile

    groups = view.found.groups
    runs = [h.work for g in groups for h in (*g.circle, *g.culprits) if h.work.process]
    if not runs or runs[0].process is None:
        options.note(f"{save} was not written: nothing hangs that could be looked at")
        return
    process, label = runs[0].process, runs[0].label
    started_at = float(process.last.event["started_at"] or 0)
    with patience(f"recording {label}"):
        problem = profile.record(process.pid, started_at, Path(save), _RECORDED)
    if problem:
        raise RaydoctorError(f"{save} was not written: {problem}")
    options.note(f"{_RECORDED} s of {label} written to {save}")
