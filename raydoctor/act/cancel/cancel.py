"""`raydoctor.cancel`, for code that launches tasks; `raydoctor cancel` does the same.

Both query the cluster over gRPC, so a task of any submitter can be cancelled by its id; `ray.cancel` needs
the submitter's reference.
"""

from __future__ import annotations

import sys
from typing import Any

from raydoctor.act.cancel.elsewhere import run_where_it_runs
from raydoctor.act.cancel.ladder import TIMEOUT, Cancellation, backend_for
from raydoctor.act.cancel.owner import connected
from raydoctor.act.cancel.steps import CancelOptions
from raydoctor.act.cancel.target import find
from raydoctor.act.signals.process import GRACE
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe import live
from raydoctor.observe.collector.cluster import Cluster


def cancel(
    what: Any, grace: float = GRACE, *, recursive: bool = True, kill_actor: bool = False
) -> Cancellation:
    """Cancel the task with this reference, id or name, and end the processes that it started.

    The steps, from the gentlest to the hardest, with `grace` seconds each: the owner's cancel,
    KeyboardInterrupt in the worker's main thread, cancel with force, SIGKILL of the worker. The last two are
    not used for methods of actors, because they would end the actor; with `kill_actor` the actor is ended and
    loses its state. `recursive`: also cancel the tasks that it submitted.

    The field `ended` of the result is True if it worked. Raises RaydoctorError if the cluster does not
    answer, or no task or more than one matches.
    """
    options = CancelOptions(grace, recursive, kill_actor)
    cluster = _cluster()
    with connected(cluster, TIMEOUT) as owners:
        found = find(owners, _words(what))
        if len(found) > 1:
            raise RaydoctorError(f"{len(found)} tasks have the name {what}", "Pass the id of one.")
        return run_where_it_runs(backend_for(owners, cluster, options, found[0]), found[0])


def _words(what: Any) -> str:
    if isinstance(what, str):
        return what
    if isinstance(what, bytes):
        return what.hex()
    reference = getattr(
        what, "_generator_ref", what
    )  # a generator is represented by its first reference
    if not callable(getattr(reference, "hex", None)):
        raise TypeError(
            f"expected a reference, an id or a name of a task, not {type(what).__name__}"
        )
    return str(reference.hex())


def _cluster() -> Cluster:
    """The cluster that this program is connected to, else the one on this machine."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return live.find()[0]
    address = str(ray.get_runtime_context().gcs_address)
    return live.find(address, is_typed=False)[0]
