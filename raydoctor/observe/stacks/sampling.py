"""Samples the suspects of a cluster, here and on other machines: tables `rests`, `samples` and `clues`.

Another node is sampled by a small Ray task (`there.py`); its tables are in its own folder of the capture.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.run import Collector
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.nodes import nodes, there
from raydoctor.observe.processes import proc
from raydoctor.observe.stacks import rests, stacks
from raydoctor.observe.stacks.stacks import ProcessToSample, SampleOptions
from raydoctor.observe.stacks.suspects import Sampling, Suspects

WHAT = "the stacks of workers"
_FUNCTION = "raydoctor.observe.stacks.sampling:respond"
_FEW = 20
"""Processes that a busy machine samples in one `timeout`."""
FIRST = 40
"""Processes that are sampled before the others, so that an overloaded machine yields at least these."""
LONGEST = 30.0
"""Seconds for the sampling itself, unless `timeout` is longer; afterwards the result is partial."""
_OWN = 0.9
"""Share of the time: the results must be yielded before it is over."""
_OF_FIRST = 0.75
"""Share of the time for the first ones, if there are others."""


def seconds(found: Suspects, sampling: Sampling, timeout: float) -> float:
    """Seconds that sampling may take here."""
    most = max(map(len, (found.here, *found.elsewhere.values())))
    pauses = sampling.samples * sampling.interval * (2 if most > FIRST else 1)
    return pauses + _longest(most, timeout)


def _longest(number: int, timeout: float) -> float:
    """Seconds that this number of processes may take, without the pauses between samples.

    A process on which py-spy hangs takes a whole `timeout` before it is read without stopping it.
    """
    return min(max(LONGEST, 1.5 * timeout), timeout * (1.5 + number / _FEW))


def collectors(
    cluster: Cluster, found: Suspects, sampling: Sampling, timeout: float, all_nodes: bool
) -> list[Collector]:
    """The collectors: one for this machine, one for all others."""
    options = SampleOptions(
        sampling.samples, sampling.interval, sampling.native, timeout, True, found.unfinished
    )
    made = []
    if found.here or found.makers:
        gather = partial(take_samples, found.here, options, found.makers)
        made.append(Collector(WHAT, gather, optional=True, about="stacks"))
    if found.elsewhere and all_nodes and cluster.gcs_address:
        patience = seconds(found, sampling, timeout)
        made.append(
            Collector(
                f"{WHAT} on other nodes",
                lambda: _elsewhere(cluster, found.elsewhere, options, patience),
                optional=True,
                about="stacks",
            )
        )
    return made


def take_samples(
    wanted: Sequence[ProcessToSample],
    options: SampleOptions,
    makers: Sequence[tuple[str, int]] = (),
) -> Iterator[Piece | Gap]:
    """First their idle times, before py-spy wakes them; then the samples.

    The stacks of `makers` are not sampled.
    """
    began, left = time.monotonic(), _OWN * _longest(len(wanted), options.timeout)
    rested = rests.of_threads(each.pid for each in wanted)
    rows: list[dict[str, Any]] = [
        {"node_id": each.node_id, "pid": each.pid, "threads": rested[each.pid]} for each in wanted
    ]
    families = rests.of_families(pid for _, pid in makers)
    rows += [{"node_id": node, "pid": pid, "family_s": families[pid]} for node, pid in makers]
    yield table("rests", rows, source="proc")
    before: dict[str, Piece] = {}
    left = max(0.0, left - (time.monotonic() - began))
    first, others = wanted[:FIRST], wanted[FIRST:]
    for those, share in ((first, _OF_FIRST if others else 1.0), (others, 1.0)):
        began, last = time.monotonic(), dict(before)
        for item in stacks.samples(those, options, share * left) if those else ():
            if isinstance(item, Piece):
                item = last[item.path] = _joined(before.get(item.path), item)  # noqa: PLW2901
            yield item
        left = max(0.0, left - max(0.0, time.monotonic() - began - options.pauses))
        before = last


def _joined(before: Piece | None, piece: Piece) -> Piece:
    """A table with the rows of the first before those of the second."""
    if before is None:
        return piece
    head, more = json.loads(before.data), json.loads(piece.data)
    rows = [*head["rows"], *more["rows"]]
    return table(head["table"], rows, source=head["from"], at=head["at"])


def _elsewhere(
    cluster: Cluster,
    others: Mapping[str, Sequence[ProcessToSample]],
    options: SampleOptions,
    patience: float,
) -> Iterator[Piece | Gap]:
    asks = {node: ask(wanted, options) for node, wanted in others.items()}
    for answer in there.ask(cluster, asks, _FUNCTION, patience):
        if answer.problem:
            what = f"{WHAT} on node {answer.node[:8]}"
            yield Gap(what, answer.problem, answer.hint, optional=True, about="stacks")
            continue
        yield from unpacked(answer.node, answer.value)


def ask(wanted: Sequence[ProcessToSample], options: SampleOptions) -> dict[str, Any]:
    """The request to another node, for `respond`."""
    plain = options._asdict() | {"unfinished": sorted(options.unfinished)}
    return {"wanted": [each._asdict() for each in wanted], "options": plain}


def respond(asked: dict[str, Any]) -> dict[str, Any]:
    """On that node: sample its processes."""
    plain = asked["options"] | {"unfinished": frozenset(asked["options"]["unfinished"])}
    pieces, gaps = {}, []
    for item in take_samples(
        certain([ProcessToSample(**w) for w in asked["wanted"]]), SampleOptions(**plain)
    ):
        if isinstance(item, Piece):
            pieces[item.path] = item.data.decode()
        else:
            gaps.append([item.what, item.why, item.hint])
    return {"pieces": pieces, "gaps": gaps}


def unpacked(node: str, reply: dict[str, Any]) -> Iterator[Piece | Gap]:
    """The reply of `respond`, in the node's folder."""
    for path, text in reply["pieces"].items():
        yield Piece(f"{nodes.label(node)}/{path}", text.encode())
    for what, why, hint in reply["gaps"]:
        yield Gap(f"{what} on node {node[:8]}", why, hint, optional=True, about="stacks")


def certain(wanted: Sequence[ProcessToSample]) -> list[ProcessToSample]:
    """Those that are verified by their start time, or else by their open log.

    Ray reports only pids, which differ inside a container.
    """
    return [each for each in wanted if each.started_at or _has_log(each)]


def _has_log(wanted: ProcessToSample) -> bool:
    kind = "driver" if wanted.worker_id.endswith("f" * 48) else "worker"
    name = f"/python-core-{kind}-{wanted.worker_id}_{wanted.pid}.log"
    return any(path.endswith(name) for path in proc.logs(wanted.pid))
