"""`raydoctor.cancel`, for code that launches tasks; `raydoctor cancel` does the same.

Both ask the cluster over gRPC. So a task of any submitter can be cancelled by its id; `ray.cancel` needs the
submitter's own reference.
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
    """Cancel the task of this reference, or of this id or name, with the processes that it started.

    From the gentlest step to the hardest, `grace` seconds each: the owner's cancel, KeyboardInterrupt in the
    worker's main thread, cancel with force, SIGKILL of the worker. An actor's method is not ended by the
    last two, which would end the actor: `kill_actor` does, and its state is lost. `recursive`: also the
    tasks that it submitted.

    `ended` of what is returned says whether it worked. Raises RaydoctorError where the cluster cannot be
    asked, and where no task, or more than one, is meant.
    """
    options = CancelOptions(grace, recursive, kill_actor)
    cluster = _cluster()
    with connected(cluster, TIMEOUT) as owners:
        found = find(owners, _words(what))
        if len(found) > 1:
            raise RaydoctorError(f"{len(found)} tasks are called {what}", "Name one by its id.")
        return run_where_it_runs(backend_for(owners, cluster, options, found[0]), found[0])


def _words(what: Any) -> str:
    if isinstance(what, str):
        return what
    if isinstance(what, bytes):
        return what.hex()
    reference = getattr(what, "_generator_ref", what)  # a generator's first reference stands for it
    if not callable(getattr(reference, "hex", None)):
        raise TypeError(f"a reference, an id or a name of a task, not {type(what).__name__}")
    return str(reference.hex())


def _cluster() -> Cluster:
    """The cluster that this program is connected to, else the one that runs here."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return live.find()[0]
    address = str(ray.get_runtime_context().gcs_address)
    return live.find(address, is_typed=False)[0]
