"""`raydoctor watch`: the state and the events of a running cluster; with --task-timeout, its guard."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.cli.screen.lines import LineWriter
    from raydoctor.cli.screen.screen import Signals
    from raydoctor.watch.event import WatchEvent
    from raydoctor.watch.guard import GuardLimits
    from raydoctor.watch.rounds import Watch

_INTERRUPTED = 130

_HELP = """Watch a cluster: tasks by state, the slowest tasks, hung tasks, memory and disks against
Ray's limits, leftovers, new diagnoses.

On a terminal the screen is redrawn in place. Keys select a task (to see its call stack or cancel
it), sort and filter; ? lists them, q or Ctrl-C ends the watch. Otherwise, or with --json, each
round and each event is one JSON line.

The watch uses less than 1% of one CPU. If the cluster dies, raydoctor diagnoses its logs, and
resumes the watch when the cluster is back.


With --task-timeout (or --timeout) the watch checks all tasks against a time limit, or those that
--job and --name select. Only running time counts, and each retry gets the full limit. --on-timeout sets
what happens to a task over its limit, without a change to the program and without confirmation:

\b
  report  report the task and change nothing (the default)
  cancel  ask its owner to cancel it, then raise KeyboardInterrupt in it; its worker keeps running
  force   like cancel, but then end its worker, with SIGKILL if necessary; actors are ended only
          with --kill-actor

Drivers and Ray's own actors (Serve's actors, job supervisors) are never touched. Every action is
recorded in ~/.local/state/raydoctor/audit.jsonl.

--serve exposes the state as Prometheus metrics. --notify sends an event to a webhook or a command
for each new diagnosis, hung task and loss of the cluster, and each time the logs of this machine
fall silent (--silence).


\b
Examples:
  raydoctor watch
  raydoctor watch --serve 9105 --notify https://hooks.example/ray
  raydoctor watch --silence 'step \\d+' --silence-after 10m --notify 'mail -s ray me@example.org'
  raydoctor watch --json --for 10m | jq 'select(.event != "round")'
  raydoctor watch --task-timeout 100s
  raydoctor watch --task-timeout 5m --on-timeout force --job 02000000 --name 'mesh_*'

\b
Exit code:
  0    ended by q, --for or SIGTERM
  2    could not run: no cluster, or the cluster refused RAY_AUTH_TOKEN
  130  ended by Ctrl-C
"""
_SPAN = options.Duration(0.001)


def _address(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, int] | None:
    if value is None:
        return None
    from raydoctor.watch.serve import address

    try:
        return address(value)
    except ValueError:
        raise click.BadParameter(f"{value} is no [HOST:]PORT; HOST is an IP address") from None


def _pattern(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    from raydoctor.observe.watching import silence

    if value == "":
        raise click.BadParameter("an empty pattern matches every line")
    if value and (problem := silence.check(value)):
        raise click.BadParameter(f"ripgrep cannot read the regular expression {value}: {problem}")
    return value or ""


def _jobs(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    from raydoctor.model import ids

    for each in value:
        if not ids.is_job(each):
            raise click.BadParameter(f"{each} is not a job id such as 02000000")
    return value


@click.command(
    "watch",
    help=_HELP,
    short_help="Watch a cluster; on request, end tasks that run too long.",
    **options.SETTINGS,
)
@click.option(
    "--every",
    type=_SPAN,
    default="2s",
    show_default=True,
    help="Time between two rounds.",
)
@click.option("--for", "span", type=_SPAN, help="End the watch after this time.")
@click.option(
    "--task-timeout",
    "--timeout",
    "timeout",
    type=_SPAN,
    help="Time limit of each task, from the moment it starts to run. In other commands, --timeout limits "
    "queries instead.",
)
@click.option(
    "--on-timeout",
    type=click.Choice(["report", "cancel", "force"]),
    help="What happens to a task over its limit.  [default: report]",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="GLOB",
    help="Apply --task-timeout only to functions with a matching name; repeatable.",
)
@click.option(
    "--job",
    "jobs",
    multiple=True,
    metavar="JOB",
    callback=_jobs,
    help="Apply --task-timeout only to the tasks of this job (its id in `ray list jobs`); repeatable.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Never apply --task-timeout to functions with a matching name; repeatable.",
)
@click.option(
    "--kill-actor", is_flag=True, help="With force: also end the actor of a method over its limit."
)
@options.grace_option("Time each step of a cancel may take before the next one is tried.")
@click.option(
    "--diagnose/--no-diagnose",
    default=True,
    show_default=True,
    help="Diagnose the cluster if tasks fail, wait while none runs, or if a node is lost, a worker falls "
    "silent or logs show errors; look for hung tasks if one runs long.",
)
@click.option(
    "--serve",
    metavar="[HOST:]PORT",
    callback=_address,
    help="Serve metrics for Prometheus at http://HOST:PORT/metrics; HOST is 127.0.0.1 by default.",
)
@click.option(
    "--notify",
    metavar="URL|COMMAND",
    help="Send each of these events as JSON: by POST to an http(s) address, or to the standard input of "
    "a command, which runs without a shell.",
)
@click.option(
    "--silence",
    metavar="REGEX",
    callback=_pattern,
    help="Report if no line of any job's logs on this machine has matched for --silence-after. The "
    "syntax is ripgrep's, without look-around.",
)
@click.option(
    "--silence-after",
    type=_SPAN,
    default="10m",
    show_default=True,
    help="Report silence after this long without a matching line.",
)
@options.address_option()
@options.format_option("text", "json", text="json writes JSON lines, even on a terminal.")
@options.verbose_option
def command(
    *, every: float, span: float | None, address: str | None, form: str, **rest: Any
) -> int:
    """Watch."""
    serve, notify = rest.pop("serve"), rest.pop("notify")
    silence, silence_after = rest.pop("silence"), rest.pop("silence_after")
    from raydoctor.cli._progress import patience
    from raydoctor.watch.rounds import Watch
    from raydoctor.watch.view import WatchOptions

    limits = _limits(**rest)
    watch_options = WatchOptions(rest["diagnose"], rest["diagnose"], silence, silence_after)
    watch = Watch(address, every, limits, watch_options)
    with ExitStack() as stack:
        for sink in (serve and _serving(watch, *serve), notify and _notifying(watch, notify)):
            if sink:
                stack.enter_context(sink)
        with patience("looking for the cluster"):
            watch.open()
        if silence and not watch.cluster.session_dir:
            options.note("--silence reads logs of this machine, and this cluster has none here")
        for each in watch.notes:
            options.note(each)
        return _watched(watch, span, form)


def _watched(watch: Watch, span: float | None, form: str) -> int:
    """Show the rounds until the end, and return the exit code."""
    from raydoctor.cli.screen.screen import Signals
    from raydoctor.render.terminal import is_terminal

    until = None if span is None else time.monotonic() + span
    is_screen = form != "json" and is_terminal(sys.stdout)
    with Signals() as signals:
        if is_screen:
            from raydoctor.cli.screen.watch_screen import show

            show(watch, signals, until)
        else:
            _print_events(watch, signals, until)
    return _INTERRUPTED if signals.ended_by == signal.SIGINT else 0


@contextmanager
def _serving(watch: Watch, host: str, port: int) -> Iterator[None]:
    """Serve the state after each round."""
    from raydoctor.render import watch as render
    from raydoctor.render.machine.prometheus import CONTENT_TYPE
    from raydoctor.watch import serve

    with serve.MetricsServer(host, port, CONTENT_TYPE) as server:

        def sink(_: object) -> list[WatchEvent]:
            server.text = render.to_metrics(watch)
            return []

        watch.sinks.append(sink)
        where = f"[{host}]" if ":" in host else host
        options.note(f"metrics are at http://{where}:{server.port}/metrics")
        if not serve.is_loopback(host):
            options.note("every user who can reach this address can read them, without a password")
        yield


@contextmanager
def _notifying(watch: Watch, target: str) -> Iterator[None]:
    """Send new incidents."""
    from raydoctor.render import watch as render
    from raydoctor.watch.notify import Notifier

    notifier = Notifier(target, render.event_to_json)
    watch.sinks.append(notifier)
    try:
        yield
    finally:
        notifier.close()
        for each in notifier(()):  # of the last round
            options.note(each.text)


def _limits(
    *, timeout: float | None, on_timeout: str | None, names: tuple[str, ...], **rest: Any
) -> GuardLimits | None:
    """The limits of the guard. Raises click.UsageError for options that need --task-timeout."""
    from raydoctor.watch.guard import GuardLimits, check_limits

    exclude, kill_actor, jobs = rest["exclude"], rest["kill_actor"], rest["jobs"]
    if timeout is None:
        if on_timeout or names or exclude or kill_actor or jobs:
            raise click.UsageError(
                "--on-timeout, --job, --name, --exclude and --kill-actor need --task-timeout"
            )
        return None
    mode: Any = on_timeout or "report"
    limits = GuardLimits(timeout, mode, names, exclude, kill_actor, rest["grace"], jobs)
    check_limits(limits)
    if mode != "report" and not (names or jobs):
        options.note(
            f"--on-timeout {mode} acts on the tasks of every job in the cluster: --job or --name selects some"
        )
    return limits


def _print_events(watch: Watch, signals: Signals, until: float | None) -> None:
    """Print the rounds and events as lines."""
    from raydoctor.cli.screen.lines import LineWriter

    sys.stdout.flush()
    with LineWriter(sys.stdout.fileno()) as lines:
        try:
            _put(lines, [*watch.events])
            _lines(watch, signals, until, lines)
        finally:
            left = watch.close()
        _put(lines, left)
    if lines.lost:
        why = "the disk of the output is full" if lines.is_full else "the reader was too slow"
        options.note(f"{lines.lost:,} lines were dropped: {why}")


def _lines(watch: Watch, signals: Signals, until: float | None, lines: LineWriter) -> None:
    from raydoctor.render import watch as render

    while True:
        lines.put(render.round_to_json(watch), is_dispensable=True)
        if not _pause(watch, signals, until):
            return
        _put(lines, watch.round())


def _put(lines: LineWriter, events: list[WatchEvent]) -> None:
    from raydoctor.render import watch as render

    for each in events:
        lines.put(render.event_to_json(each))


def _pause(watch: Watch, signals: Signals, until: float | None) -> bool:
    """Wait for the next round; False at the end of the watch."""
    next_round = watch.next_round
    deadline = next_round if until is None else min(next_round, until)
    while not signals.ended_by and time.monotonic() < deadline:
        signals.wait(deadline - time.monotonic())
    return not signals.ended_by and (until is None or time.monotonic() < until)
