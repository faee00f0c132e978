"""`raydoctor run`: a driver, and a diagnosis if it fails."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import stat
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast

import click

from raydoctor.capture import outputs, owners
from raydoctor.cli import _options as options
from raydoctor.model import paste
from raydoctor.model.text import cut, join_names, printable, size

if TYPE_CHECKING:
    from raydoctor.act.run.supervise import Driver, WaitEnd
    from raydoctor.act.signals.process import Outcome
    from raydoctor.capture.open import Capture
    from raydoctor.diagnosis.plugins import Catalogue
    from raydoctor.model.values import Gap, Report

_T = TypeVar("_T")
_HELP = """Run a driver, and diagnose its cluster if the driver fails.

raydoctor passes the driver's output through. If the driver fails, raydoctor ends the
driver's own cluster, then reads its logs. If the driver is interrupted or reaches its
time limit, raydoctor queries the cluster first. The report goes to standard error.

If the driver succeeds, raydoctor reports the task exceptions that the driver's output
does not show.

In every case raydoctor ends everything that the driver started, including the driver's own
cluster. A cluster that the driver only joined keeps running: there raydoctor ends only the
subprocesses that the driver's tasks started on this machine. Subprocesses on other nodes keep
running: `raydoctor zombies --all-nodes` finds them.


\b
Examples:
  raydoctor run -- python train.py --epochs 3
  raydoctor run --timeout 2h -- python train.py
  raydoctor run --format html -o report.html -- python train.py

\b
Exit code: the driver's own, or
  128+n  signal n ended the driver
  124    the driver reached its time limit
  126    the program could not be run
  127    the program does not exist
  2      raydoctor was called wrongly, or could not run; then it says so on standard error
"""


class _RunOptions(NamedTuple):
    """What the user asked for."""

    words: tuple[str, ...]
    path: str
    """File of the driver's output."""
    timeout: float | None
    grace: float
    form: str
    output: str | None
    address: str | None
    all_nodes: bool
    folder: str | None
    verbose: bool


_MOST_OUTPUT = 64 << 20
"""Characters of the driver's output that are searched for an exception."""
_SAMPLED_AFTER = 5.0
"""Seconds that work must have run for its stack to be shown, if the program did not end by itself."""


@click.command(
    "run",
    help=_HELP,
    short_help="Run a driver; diagnose it if it fails.",
    context_settings={**options.SETTINGS["context_settings"], "allow_interspersed_args": False},
)
@click.argument(
    "words",
    metavar="-- COMMAND…",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    shell_complete=options.complete_path,
)
@click.option(
    "--timeout",
    type=options.Duration(),
    help="The time limit of the driver: 90 (seconds), 10m, 2h.",
)
@options.grace_option("When raydoctor ends processes: the time between SIGTERM and SIGKILL.")
@click.option(
    "--log",
    metavar="FILE",
    shell_complete=options.complete_path,
    help="Keep the driver's output in this file.",
)
@options.format_option(*options.REPORT_FORMATS)
@options.output_option
@options.address_option(
    "The cluster to diagnose if raydoctor cannot find the one that the driver used."
)
@click.option(
    "--all-nodes/--this-node",
    "all_nodes",
    default=True,
    help="Include the cluster's other nodes, or only this machine.  [default: all nodes]",
)
@options.rules_option
@options.verbose_option
def command(words: tuple[str, ...], log: str | None, **rest: Any) -> int:
    """Run a driver."""
    from raydoctor.act.run import runs
    from raydoctor.observe.processes import proc

    proc.require()
    path = log or runs.new_log()
    code, is_well, driver = _run(_RunOptions(words, path, **rest))
    if log is None and is_well:
        runs.forget(path)
    elif log is None and driver is not None:
        runs.describe(path, driver.sessions, {driver.child.pid, *driver.tree})
    return code


def _run(run_options: _RunOptions) -> tuple[int, bool, Driver | None]:
    """The exit code, whether there is nothing to diagnose, and the driver unless it could not be started."""
    from raydoctor.act.run import supervise

    with _opened(run_options.path) as stream:
        try:
            with supervise.driver(run_options.words, stream, run_options.grace) as driver:
                if driver.guard.problem:
                    options.note(
                        "a SIGKILL of raydoctor run would leave the driver running: "
                        f"{driver.guard.problem}"
                    )
                event = driver.wait(run_options.timeout)
                if event.why == "ended" and not driver.code:
                    _print_left(driver, driver.clear(run_options.grace))
                    log = _written(stream, run_options.path)
                    if lack := _lack(driver):
                        options.note(f"the log {lack}")
                        return 0, True, driver
                    _tried(lambda: _report_caught(driver, run_options, log), run_options)
                    return 0, True, driver
                capture = _failed(driver, event, run_options)
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            options.note(f"cannot run {run_options.words[0]}: {error.strerror or error}")
            return (supervise.NOT_FOUND if is_missing else supervise.NOT_STARTED), True, None
        code = supervise.TIMED_OUT if event.why == "timeout" else driver.code
        if capture is not None:
            log = _written(stream, run_options.path)
            _tried(lambda: _report(capture, driver, event, run_options, log), run_options)
        return code, False, driver


def _unended(event: WaitEnd) -> str:
    return "reached its time limit" if event.why == "timeout" else "was interrupted"


def _unexplained(driver: Driver, event: WaitEnd, doing: str) -> Gap:
    """What is missing from a report on this driver without a diagnosis: it did not end well."""
    from raydoctor.model.values import Gap

    if event.why == "ended":
        why = f"it ended with {_code(driver)}, and nothing of what was collected shows why"
        return Gap("why the program failed", why, "Read the end of its output, and its exit calls.")
    return Gap(
        "why the program had not ended",
        f"it {_unended(event)}, and no task that was collected is known to be hung{doing and f'. {doing}'}",
        "While it runs: raydoctor hung. If it is only slow, give it more time with --timeout.",
    )


def _lack(driver: Driver) -> str:
    """What the log lacks, and why; empty if nothing."""
    tee = driver.tee
    missing = f"lacks {size(tee.lacking)} of the driver's output: {tee.problem}"
    return missing if tee.problem else ""


_DOING = 3
"""Largest number of tasks and drivers of which a report says what they did at a time limit."""


def _doing(capture: Capture) -> str:
    """What unfinished tasks and the drivers did when they were sampled: `load (pid 812) sleeps`."""
    from raydoctor.case import Case
    from raydoctor.read import live
    from raydoctor.waits.hung import hung

    case = Case(live.of_capture(capture, []))
    if not case.of("live.samples"):
        return ""
    found = hung(case, sampled_after=_SAMPLED_AFTER)
    waits = [*found.early, *(each.hung for each in found.open), *found.working]
    said = {(each.work.name, each.summary): each for each in waits}
    shown = [*list(said.values())[: _DOING - 1], *found.drivers[:1]]
    return "; ".join(f"{each.work.label} {each.summary}" for each in shown)


def _opened(log: str) -> BinaryIO:
    from raydoctor.model.errors import RaydoctorError

    try:
        with outputs.place(log) as place:
            file = place.open(os.O_WRONLY | os.O_CREAT)
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode):
            if found.st_uid not in owners.trusted():  # its owner could read the raw output
                os.close(file)
                raise PermissionError(errno.EACCES, f"it belongs to {owners.user(found.st_uid)}")
            os.ftruncate(file, 0)
        return cast("BinaryIO", open(file, "wb", buffering=0))
    except OSError as error:
        raise RaydoctorError(f"cannot write {log}: {error.strerror or error}") from None


def _written(stream: BinaryIO, path: str) -> str:
    """Where the driver's output can be read: by its descriptor, as another file may have its path by now.

    Empty if it went to a pipe or a device.
    """
    from raydoctor.observe.processes import proc

    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return ""
    return f"/proc/{os.getpid()}/fd/{stream.fileno()}" if proc.LINUX else path


def _failed(driver: Driver, event: WaitEnd, run_options: _RunOptions) -> Capture | None:
    """Collect the state of the failed driver's cluster, and end the remaining processes."""
    ran = time.time() - driver.started_at
    if not driver.sessions:
        driver.find_sessions()
    if event.why == "ended":
        options.note(f"{_name(run_options.words)} failed after {ran:.0f} s: {_code(driver)}")
        # The driver's own cluster is shutting down: its logs are read afterwards.
        own = _own_cluster(driver)
        if own:
            _print_left(driver, driver.clear(run_options.grace))
        capture = driver.meanwhile(lambda: _tried(lambda: _look(driver, run_options), run_options))
    else:
        name = _name(run_options.words)
        options.note(f"{name} {_unended(event)} after {ran:.0f} s: diagnosing its cluster")
        capture = driver.meanwhile(
            lambda: _tried(lambda: _look(driver, run_options, waits=True), run_options)
        )
        driver.stop(event.number or signal.SIGTERM, run_options.grace)
        options.note(f"the driver has ended: {_code(driver)}")
    _print_left(driver, driver.clear(run_options.grace))
    lack = _lack(driver)
    options.note(
        f"{run_options.path} {lack}" if lack else f"the driver's output is in {run_options.path}"
    )
    if not driver.sessions and run_options.address is None:
        options.note("no Ray session of the driver was found, so only its output is diagnosed")
    if capture is None:
        session = next(reversed(driver.sessions), "")
        options.note(
            paste.shell(
                "not diagnosed. To diagnose it: raydoctor diagnose {session:path} --driver-log {log:path}"
                if session
                else "not diagnosed. To diagnose it: raydoctor diagnose --driver-log {log:path}",
                session=session,
                log=run_options.path,
            )
        )
    return capture


def _tried(work: Callable[[], _T], run_options: _RunOptions) -> _T | None:
    """Call `work`; print a failure instead of raising it, because the exit code is the driver's."""
    from raydoctor.model.errors import RaydoctorError

    try:
        return work()
    except RaydoctorError as error:
        options.note(error.message)
    except Exception as error:
        options.note(f"internal error: {type(error).__name__}: {error}")
        if run_options.verbose:
            from traceback import format_exc

            click.echo(printable(format_exc()), err=True, nl=False)
    return None


def _name(words: tuple[str, ...]) -> str:
    return cut(shlex.join(words), 60)


def _code(driver: Driver) -> str:
    if driver.child.returncode is None:
        return "still running after SIGKILL"
    number = -driver.child.returncode
    if number > 0:
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return f"exit code {driver.child.returncode}"


def _print_left(driver: Driver, left: list[Outcome]) -> None:
    ended = [o for o in left if o.action != "none" and o.outcome == "gone"]
    if ended:
        names = [f"{o.identity.pid} ({cut(driver.names.get(o.identity, ''), 40)})" for o in ended]
        options.note(f"ended what the driver left running: {join_names(names)}")
    for each in left:
        if each.outcome != "gone":
            options.note(f"still running: pid {each.identity.pid}, {each.reason}")


# ------------------------------------------------------------------ the diagnosis


def _own_cluster(driver: Driver) -> bool:
    """Whether the driver started its cluster itself."""
    from raydoctor.observe.processes import discover

    clusters = discover.clusters()
    found = [discover.choose(clusters, None, session) for session in driver.sessions]
    return driver.is_own(d.pid for cluster in found if cluster for d in cluster.daemons)


@cache
def _catalogue(folder: str | None) -> Catalogue:
    from raydoctor.diagnosis import plugins

    return plugins.catalogue(folder)


def _look(driver: Driver, run_options: _RunOptions, *, waits: bool = False) -> Capture:
    """The capture of the driver's cluster, or of the driver's output if it has no cluster.

    `waits`: with the stacks of work that has run for some seconds, as the program did not end by itself.
    """
    from raydoctor.capture.open import Capture, open_capture
    from raydoctor.diagnosis.engine import signals_of
    from raydoctor.observe import live
    from raydoctor.observe.processes import discover
    from raydoctor.observe.stacks.suspects import Sampling

    def seen(address: str | None, is_typed: bool = False) -> Capture:
        asked = live.CollectOptions(
            address=address,
            is_typed=is_typed,
            all_nodes=run_options.all_nodes,
            since=driver.started_at,
            samples=Sampling(min_age_s=_SAMPLED_AFTER, drivers=True) if waits else Sampling(),
            signals=lambda: signals_of(_catalogue(run_options.folder)),
        )
        return live.collect(asked).capture()

    session = next(reversed(driver.sessions), "")
    if not session:
        return (
            seen(run_options.address, True)
            if run_options.address
            else Capture(run_options.path, "driver", {})
        )
    cluster = discover.choose(discover.clusters(), None, session)
    for address in (cluster.gcs_address if cluster else None, None):
        if _is_at(address, session):
            return seen(address)
    return open_capture(session)


def _is_at(address: str | None, session: str) -> bool:
    """Whether the cluster at this address (None: the one of this machine) has this session."""
    from raydoctor.model.errors import RaydoctorError
    from raydoctor.observe import live

    try:
        found, _ = live.find(address, is_typed=False)
    except RaydoctorError:
        return False
    return os.path.realpath(found.session_dir) == os.path.realpath(session)


_RETRIES = ("core-driver", "core-worker", "monitor")
"""Roles of the files that record which failed tasks Ray has retried, and its version."""


def _report_caught(driver: Driver, run_options: _RunOptions, log: str) -> None:
    """Report exceptions of tasks that the driver caught without a word: its result may be wrong.

    `log`: the file with its output; empty if it cannot be read.
    """
    from dataclasses import replace

    from raydoctor.act.run import task_events
    from raydoctor.capture.open import open_capture
    from raydoctor.diagnosis import unreported
    from raydoctor.diagnosis.engine import run

    if not driver.sessions:
        driver.find_sessions()
    session = next(reversed(driver.sessions), "")
    jobs = driver.jobs(session) if session else frozenset()
    failures = task_events.with_failures(session, driver.started_at, jobs)
    if not failures or not log:
        return
    with open_capture(session) as capture:
        # Without the events of other drivers, whose equal failures would be counted as this one's.
        capture.files = {
            s: file
            for s, file in capture.files.items()
            if s.role in _RETRIES or os.path.basename(s.path) in failures
        }
        report = run(capture, since=driver.started_at, catalogue=_catalogue(run_options.folder))
    with open(log, encoding="utf-8", errors="replace") as written:
        output = written.read(_MOST_OUTPUT)
    found = unreported.unreported(report, output)
    if found:
        options.note("the program succeeded, but its output does not show that tasks failed:")
        _emit(replace(report, diagnoses=found, unexplained=(), gaps=()), run_options)


def _report(
    capture: Capture, driver: Driver, event: WaitEnd, run_options: _RunOptions, log: str
) -> None:
    """Diagnose, and print the report to standard error: standard output belongs to the driver.

    `log`: the file with the driver's output; empty if it cannot be read.
    """
    from dataclasses import replace

    from raydoctor.capture.open import add_driver_log
    from raydoctor.cli._progress import read_with_progress
    from raydoctor.diagnosis.engine import run
    from raydoctor.model.values import Gap
    from raydoctor.redact.report import scrub

    with capture, read_with_progress(capture):
        if log:
            add_driver_log(capture, run_options.path, log)
        catalogue = _catalogue(run_options.folder)
        report = run(
            capture,
            since=driver.started_at,
            catalogue=catalogue,
            detailed=run_options.form == "html",
            has_failed=event.why == "ended",
        )
        doing = "" if event.why == "ended" else _doing(capture)
        (gap,) = scrub((_unexplained(driver, event, doing),), capture.secrets)
    # The driver's cluster is the one meant, and `gap` says how the driver ended.
    others = tuple(each for each in report.gaps if each.about not in ("clusters", "end"))
    if lack := _lack(driver):
        hint = "Free space, or name a file on another file system with --log."
        others = (Gap(run_options.path, lack, hint), *others)
    if report.diagnoses and doing:
        gap = replace(gap, why=doing, hint="", optional=True)
    report = replace(report, gaps=(gap, *others) if doing or not report.diagnoses else others)
    _emit(report, run_options)


def _emit(report: Report, run_options: _RunOptions) -> None:
    """Print a report to standard error, or to the file that the user named."""
    from raydoctor.cli import diagnose
    from raydoctor.model.errors import RaydoctorError
    from raydoctor.render import terminal
    from raydoctor.render.report import render

    rules = _catalogue(run_options.folder).rules
    if run_options.output is not None:
        try:
            diagnose.emit(
                report,
                run_options.form,
                run_options.output,
                verbose=run_options.verbose,
                rules=rules,
            )
            return
        except RaydoctorError as error:  # the cluster is gone, so the report cannot be made again
            options.note(error.message)
    if run_options.output is not None or run_options.form == "text":
        terminal.show(
            render(report, terminal.width_of(sys.stderr), run_options.verbose), sys.stderr
        )
    else:
        if run_options.form == "github":
            diagnose.summarize(report)
        text = diagnose.as_text(report, run_options.form, run_options.verbose, rules=rules)
        sys.stderr.write(terminal.encodable(text, sys.stderr))
