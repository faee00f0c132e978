"""Cancels a task on another node: a small Ray task takes all steps there.

Signals, process trees and the interrupt work only on the worker's machine. If that machine does not answer
(raydoctor is not installed there, or its raylet is frozen), only the steps through the owner are taken, from
here, and `Cancellation.problem` has the reason.
"""

from __future__ import annotations

from dataclasses import asdict

from raydoctor.act.cancel import ladder
from raydoctor.act.cancel.owner import Row, connected
from raydoctor.act.cancel.processes import Survivor, worker_here
from raydoctor.act.cancel.steps import CancelBackend, CancelOptions
from raydoctor.act.cancel.target import CancelTarget, by_id
from raydoctor.act.signals.process import Identity
from raydoctor.observe import live
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.nodes.there import ask
from raydoctor.observe.nodes.typed import DAMAGED, made, typed

_FUNCTION = "raydoctor.act.cancel.elsewhere:respond"
_STEPS = 8
"""Grace periods that a ladder with a few retries may take."""


def run_where_it_runs(
    backend: CancelBackend,
    target: CancelTarget,
    report_progress: ladder.ReportProgress = lambda doing: None,
) -> ladder.Cancellation:
    """Cancel it on its worker's machine; if that fails, take the possible steps from here."""
    here = worker_here(target, backend.cluster.session_dir)
    if not target.runs or not target.node or isinstance(here, Identity):
        return ladder.run(backend, target, report_progress)
    report_progress(f"cancelling it on {target.ip}")
    found = there(backend.cluster, target, backend.options)
    if isinstance(found, ladder.Cancellation):
        return found
    from_here = ladder.run(backend, target, report_progress)
    from_here.problem = f"raydoctor could not run on {target.ip}: {found}"
    return from_here


def there(
    cluster: Cluster, target: CancelTarget, options: CancelOptions
) -> ladder.Cancellation | str:
    """The result of its node, or why there is none."""
    asked = {"address": cluster.gcs_address, "task": target.task, "options": asdict(options)}
    seconds = _STEPS * (options.grace + 2.0)
    (answer,) = ask(cluster, {target.node: asked}, _FUNCTION, seconds)
    try:
        return answer.problem or unpacked(answer.value)
    except DAMAGED:
        return "its reply is malformed"


def respond(asked: Row) -> Row:
    """On that node: cancel it and return the result."""
    cluster = live.find(asked["address"], is_typed=False)[0]
    with connected(cluster, ladder.TIMEOUT) as owners:
        target = by_id(owners, asked["task"])
        backend = ladder.backend_for(owners, cluster, CancelOptions(**asked["options"]), target)
        return asdict(ladder.run(backend, target))


def unpacked(reply: Row) -> ladder.Cancellation:
    """A `Cancellation` from the JSON of `respond`. Raises one of DAMAGED if it is malformed."""
    plain: Row = {key: typed(bool, reply[key]) for key in ("ended", "was_accepted", "is_recursive")}
    plain |= {key: typed(str, reply[key]) for key in ("problem", "silence")}
    return ladder.Cancellation(
        target=made(CancelTarget, reply["target"]),
        steps=[made(ladder.Taken, each) for each in reply["steps"]],
        survivors=[made(Survivor, each) for each in reply["survivors"]],
        children=[made(CancelTarget, each) for each in reply["children"]],
        unknown=[made(CancelTarget, each) for each in reply["unknown"]],
        last=dict(reply["last"]),
        **plain,
    )
