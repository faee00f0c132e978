"""`raydoctor status`: what runs, what waits and why, on one screen."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from raydoctor.cli import _options as options

if TYPE_CHECKING:
    from raydoctor.render.status import StatusView

INCOMPLETE = 3

_HELP = """Show the state of the running cluster: tasks, actors, nodes, resources, memory, disks.

Pending tasks are listed with the reason why they wait, and unfinished runtime environments
with their current step. `raydoctor status` needs no dashboard and changes nothing.
`raydoctor diagnose` of a running cluster ends with the same overview.

\b
Examples:
  raydoctor status
  raydoctor status --address 10.0.0.1:6379
  raydoctor status --format json | jq .tasks.pending

\b
Exit code:
  0  the state was read, whether or not tasks wait
  2  could not run: no cluster, or it did not reply
  3  a part of the state could not be read
"""


@click.command(
    "status",
    help=_HELP,
    short_help="What runs, what waits and why, on one screen.",
    **options.SETTINGS,
)
@options.format_option("text", "json")
@options.address_option()
@options.timeout_option("Time limit of each query to the cluster.")
@options.verbose_option
def command(address: str | None, timeout: float | None, form: str, verbose: bool) -> int:
    """Show the state of the cluster."""
    view = _view(address, timeout)
    from raydoctor.render import status as render
    from raydoctor.render import terminal

    if form == "json":
        options.print_text(render.to_json(view))
    else:
        width = terminal.width_of(sys.stdout)
        options.print_page(render.render(view, width, is_whole=verbose))
    return INCOMPLETE if any(not gap.optional for gap in view.gaps) else 0


def _view(address: str | None, timeout: float | None) -> StatusView:
    from raydoctor.cli._progress import patience
    from raydoctor.observe import status as observed
    from raydoctor.observe.collector.run import usual_timeout

    seconds = usual_timeout() if timeout is None else timeout
    with patience("querying the cluster", seconds):
        collected = observed.collect(address, seconds, _load)
    for each in collected.notes:
        options.note(each)
    from raydoctor.diagnosis import status
    from raydoctor.model import paste
    from raydoctor.model.errors import RaydoctorError
    from raydoctor.read import build
    from raydoctor.redact.report import scrub
    from raydoctor.render.status import StatusView

    with collected.capture(status.ROLES) as capture:
        reading = build.read(capture, status.SIGNALS)
        read = {source.path for source in capture.sources}
        unread = [g for g in reading.gaps if g.about == "table" or g.what in read]
        gaps = (*collected.collection.gaps, *unread)
        found = status.status(reading.case)
        if found is None:
            causes = [gap.why for gap in gaps if not gap.optional]
            gcs = collected.cluster.gcs_address
            raise RaydoctorError(
                f"the cluster did not report its nodes: {causes[0]}"
                if causes
                else "the cluster has no nodes yet",
                paste.shell("Diagnose it: raydoctor diagnose --address {gcs:address}", gcs=gcs),
            )
        return scrub(StatusView(found, gaps, collected.cluster.gcs_address), capture.secrets)


def _load() -> None:
    """Import what the evaluation needs, while the cluster replies."""
    for module in ("diagnosis.status", "read.build", "render.status"):
        import_module(f"raydoctor.{module}")
