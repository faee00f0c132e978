"""`raydoctor collect`: a cluster's logs and state in one archive, with known kinds of secrets redacted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from raydoctor.cli import _options as options
from raydoctor.model import paste

if TYPE_CHECKING:
    from raydoctor.capture.open import Capture
    from raydoctor.case.rule import Signal
    from raydoctor.observe.gathered import Gathered

_HELP = """Collect the logs and state of a cluster, running or dead, and of its machines into one archive.

Known kinds of secrets are replaced (`<secret:aws-key-1>`), and only you can read the archive
(mode 0600). raydoctor.json in it lists what could not be collected.

To read the logs of other nodes, raydoctor runs short Ray tasks there that reserve no CPU. It
changes nothing else. If the cluster is dead, run raydoctor on each machine whose logs you need.

\b
Examples:
  raydoctor collect
  raydoctor collect -o issue.tar.zst --since 2h --anonymize
  raydoctor collect --address 127.0.0.1:6379 --this-node
  raydoctor collect --slurm 4711
  raydoctor diagnose raydoctor-20261121-140300.tar.gz

\b
Exit code:
  0  written and complete
  2  could not run, or could not write the archive
  3  written, but some evidence could not be collected
"""
INCOMPLETE = 3


@click.command(
    "collect",
    help=_HELP,
    short_help="Collect logs and state into one archive.",
    **options.SETTINGS,
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    shell_complete=options.complete_path,
    help="The archive to write; - is standard output (.tar.gz).  "
    "[default: raydoctor-DATE-TIME.tar.gz]",
)
@options.collect_live_options
@options.since_option("Leave out files last changed before")
@click.option(
    "--anonymize",
    is_flag=True,
    help="Replace IP addresses and this host's name as well (not the names of other hosts).",
)
@click.option(
    "--slurm",
    "job",
    metavar="JOBID",
    help="Collect a Slurm job instead of a cluster: its Slurm records, its output, and the Ray logs "
    "that the output names.",
)
@options.verbose_option
def command(
    output: str | None, since: float | None, anonymize: bool, job: str | None, **rest: Any
) -> int:
    """Collect."""
    from raydoctor.cli._progress import Progress
    from raydoctor.observe import live

    target = target_of(output)
    if job is not None and (since is not None or rest["address"] is not None):
        raise click.UsageError("--slurm cannot be combined with --since or --address")
    if job is not None:
        return _of_slurm(job, target, anonymize, rest["timeout"])
    collect_options = options.collect_options(_looked_for, since=since, anonymize=anonymize, **rest)
    with Progress("querying the cluster") as progress:
        found = live.collect(collect_options, progress.say)
        with found.capture() as capture:
            for each in capture.notes:
                options.note(each)
            content = live.bundle_of(found, capture, since)
            written = _write(target, content, found.redactor, progress)
    _print_summary(target, written, content.gaps)
    return 0 if all(gap.optional for gap in content.gaps) else INCOMPLETE


def target_of(output: str | None) -> str:
    """The archive to write. Raises RaydoctorError for a format that is not supported."""
    import time

    from raydoctor.observe import bundle

    target = output or bundle.default_name(time.time())
    if target != "-":
        bundle.kind_of(target)
    return target


def _of_slurm(job: str, target: str, anonymize: bool, timeout: float | None) -> int:
    from raydoctor.cli._progress import Progress
    from raydoctor.observe import slurm
    from raydoctor.observe.gathered import gathered
    from raydoctor.observe.processes.redact import shared

    slurm.check(job)
    with gathered(f"Slurm job {job}", shared()) as found:
        with Progress("querying Slurm"):
            slurm.collect(job, found, timeout or slurm.TIMEOUT)
        with found.capture() as capture:
            for each in capture.notes:
                options.note(each)
            return write_gathered(target, found, capture, anonymize)


def write_gathered(target: str, found: Gathered, capture: Capture, anonymize: bool) -> int:
    """Write an archive of files that are from elsewhere, and return the exit code."""
    from raydoctor.cli._progress import Progress
    from raydoctor.observe.live import redactor_of

    redactor = redactor_of(None, anonymize)
    redactor.learn(capture.secrets)
    content = found.bundle(capture, {"of": found.shown})
    with Progress("writing the archive") as progress:
        written = _write(target, content, redactor, progress)
    _print_summary(target, written, content.gaps)
    return 0 if all(gap.optional for gap in content.gaps) else INCOMPLETE


def _looked_for() -> list[Signal]:
    from raydoctor.diagnosis import plugins
    from raydoctor.diagnosis.engine import signals_of

    return signals_of(plugins.catalogue())


def _write(target: str, content: Any, redactor: Any, progress: Any) -> Any:
    from raydoctor.observe import bundle

    def report_progress(done: int, total: int) -> None:
        progress.say(f"writing {done >> 20} of {total >> 20} MiB", done, total)

    if target == "-":
        return bundle.write_to(sys.stdout.buffer, ".tar.gz", content, redactor, report_progress)
    return bundle.write(target, content, redactor, report_progress)


def _print_summary(target: str, written: Any, gaps: Any) -> None:
    from raydoctor.model.text import one_line, plural, size

    gone = plural(sum(written.redactions.values()), "secret")
    kinds = ", ".join(f"{kind} ×{count}" for kind, count in written.redactions.items() if count)
    options.note(
        f"{plural(written.files, 'file')}, {size(written.bytes)}, {gone} replaced"
        + (f" ({kinds})" if kinds else "")
    )
    for gap in [g for g in gaps if not g.optional][:6]:
        options.note(one_line(f"not collected: {gap.what}: {gap.why}"))
    if target != "-":
        click.echo(target)
        options.note(paste.shell("read it with: raydoctor diagnose {path:path}", path=target))
