"""The program that `raydoctor watch` runs in the background: one inspection of a cluster, as JSON.

    python -m raydoctor.watch.programs.inspect_cluster '{"address": "10.0.0.1:6379", "report": true}'

The diagnosis and the search for hung tasks share one collection. Only suspects are sampled. The program has
no options and no help text: people use `raydoctor diagnose` and `raydoctor hung`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from raydoctor.capture.open import Capture, open_capture
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap
from raydoctor.observe import live
from raydoctor.observe.collector.run import Collector, run, usual_timeout
from raydoctor.observe.gcs import state
from raydoctor.observe.live import Live
from raydoctor.observe.processes import processes
from raydoctor.observe.processes.redact import shared
from raydoctor.observe.stacks import sampling as sampling_of
from raydoctor.observe.stacks.suspects import Sampling, suspects

_EVERY = 1.0


def inspect(request: dict[str, Any]) -> dict[str, Any]:
    """`diagnoses` and `hung`, if requested and known; otherwise `problem` and `hint`.

    The request has `address`, `report` (whether to diagnose), and for the suspects: `suspects` (how many to
    sample, drivers first), `age_s` (minimum age) and `elsewhere` (whether some are on other nodes). For a
    dead cluster it has only `session`, its folder.

    Raises RaydoctorError if there is no cluster or session.
    """
    if "session" in request:
        with open_capture(request["session"]) as dead:
            return {"diagnoses": _diagnoses(dead)}
    is_elsewhere = bool(request.get("elsewhere"))
    sampling = _sampling(request)
    found = (
        live.collect(
            live.CollectOptions(
                request["address"],
                usual_timeout(),
                is_elsewhere,
                logs=False,
                samples=sampling,
                is_typed=bool(request.get("typed")),
            )
        )
        if request["report"]
        else _tasks_and_stacks(request, sampling or Sampling(), is_elsewhere)
    )
    reply: dict[str, Any] = {}
    problems = _missing_tasks(found)
    with found.capture() as capture:
        # In this order, the diagnosis reuses the memory of the search for hung tasks, which saves 5 MB.
        if sampling is not None and not problems:
            rows, problems = _hung(capture)
            reply |= {} if problems else {"hung": found.redactor.redact_json(rows)}
        if request["report"]:
            reply["diagnoses"] = _diagnoses(capture)
    return reply | _problem(problems)


def _sampling(request: dict[str, Any]) -> Sampling | None:
    most = request.get("suspects")
    return Sampling(interval=_EVERY, min_age_s=request["age_s"], most=most) if most else None


def _tasks_and_stacks(request: dict[str, Any], sampling: Sampling, is_elsewhere: bool) -> Live:
    """Only what `hung` reads: half the cost of a whole collection."""
    cluster, notes = live.find(request["address"], bool(request.get("typed")))
    timeout = usual_timeout()
    asked = [
        *state.collectors(cluster, timeout, sampling.min_age_s),
        Collector("the process table", lambda: processes.tables(cluster)),
    ]
    collection = run(asked, timeout)
    found = suspects(collection.pieces, sampling, cluster.node_ids)
    samplers = sampling_of.collectors(cluster, found, sampling, timeout, is_elsewhere)
    if samplers:
        brought = run(samplers, sampling_of.seconds(found, sampling, timeout))
        collection.pieces.update(brought.pieces)
        collection.gaps += brought.gaps
    secrets = [cluster.token.value] if cluster.token else []
    return Live(cluster, collection, shared(secrets), notes, logs=False)


def _missing_tasks(found: Live) -> list[Gap]:
    """The gaps that explain a missing list of tasks; empty if there is a list."""
    if "live/live-tasks.json" in found.collection.pieces:
        return []
    return [gap for gap in found.collection.gaps if not gap.optional]


def _problem(gaps: Sequence[Gap]) -> dict[str, str]:
    """The first gap, as a problem."""
    return next(({"problem": f"{gap.what}: {gap.why}", "hint": gap.hint} for gap in gaps), {})


def _diagnoses(capture: Capture) -> list[dict[str, Any]]:
    from raydoctor.diagnosis import engine

    return [
        {
            "rule": each.rule,
            "severity": each.severity,
            "tier": each.tier,
            "headline": each.headline,
            "subjects": [asdict(subject) for subject in each.subjects],
        }
        for each in engine.run(capture).diagnoses
    ]


def _hung(capture: Capture) -> tuple[list[dict[str, Any]], list[Gap]]:
    """Rows of `raydoctor hung --json`, and the gaps that may hide others."""
    from raydoctor.case import Case
    from raydoctor.read import live
    from raydoctor.waits.hung import hung
    from raydoctor.waits.rows import row

    gaps: list[Gap] = []
    case = Case(live.read(capture.files, gaps))
    blind = [gap for gap in capture.gaps if gap.about == "stacks"]
    groups = hung(case).groups
    rows = [row(each, number) for number, group in enumerate(groups) for each in group.all]
    return rows, ([] if rows else [*blind, *gaps])


def main(arguments: Sequence[str]) -> int:
    """Write the result, or the problem."""
    try:
        reply = inspect(json.loads(arguments[0]))
    except RaydoctorError as error:
        reply = {"problem": error.message, "hint": error.hint}
    json.dump(reply, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
