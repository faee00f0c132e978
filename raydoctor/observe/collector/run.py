"""Runs collectors side by side, each with a hard limit in time; none can hang or fail the run.

A collector is a function that yields files and gaps. Each runs in a thread of its own; what it has yielded
when its time is up is kept, and that it was not done is a gap. A thread that hangs in the kernel (a dead
NFS server, say) is left behind: it is a daemon and ends with the process.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raydoctor.model.values import Gap
from raydoctor.observe.collector.table import Piece

TIMEOUT = 5.0
"""Seconds for each collector, where the user gives no other and the machine has time."""
_MOST_TIMES = 6.0
"""Times that, on a machine without."""

Gather = Callable[[], Iterable[Piece | Gap]]


class Collector(NamedTuple):
    """One thing to look at. `what` names it in a gap: "the kernel log"."""

    what: str
    gather: Gather
    optional: bool = False
    """Its absence alone does not make the evidence incomplete."""
    hint: str = ""
    """What to do where it fails or takes too long."""


@dataclass(slots=True)
class Collection:
    """What collectors brought."""

    pieces: dict[str, bytes] = field(default_factory=dict)
    """Path in the capture -> content, redacted."""
    gaps: list[Gap] = field(default_factory=list)

    def add(self, item: Piece | Gap, folder: str = "") -> None:
        """Keep a file or a gap; `folder` is the node's."""
        if isinstance(item, Gap):
            self.gaps.append(item)
        else:
            self.pieces[f"{folder}/{item.path}" if folder else item.path] = item.data


class _Done(NamedTuple):
    error: BaseException | None


def usual_timeout() -> float:
    """Seconds for each collector, where the user gives no other.

    Where more threads want a processor than there are, all of raydoctor takes as many times longer, and so
    does what is asked.
    """
    try:
        load = os.getloadavg()[0]
    except OSError:  # a sandbox that does not tell
        return TIMEOUT
    return TIMEOUT * min(_MOST_TIMES, max(1.0, load / (os.cpu_count() or 1)))


def run(
    collectors: Sequence[Collector],
    timeout: float = TIMEOUT,
    meanwhile: Callable[[], object] = lambda: None,
) -> Collection:
    """Run them all at once; back after `timeout` seconds at the latest.

    `meanwhile` is work of the caller's own that need not wait for them.
    """
    news: queue.SimpleQueue[tuple[int, Piece | Gap | _Done]] = queue.SimpleQueue()
    for number, collector in enumerate(collectors):
        threading.Thread(
            target=_work, args=(number, collector.gather, news), name=collector.what, daemon=True
        ).start()
    began = time.monotonic()
    meanwhile()
    brought: dict[int, list[Piece | Gap]] = {number: [] for number in range(len(collectors))}
    running = set(brought)
    for number, item in _until(news, running, began + timeout):
        if isinstance(item, _Done):
            running.discard(number)
            if item.error is not None:
                brought[number].append(_failed(collectors[number], item.error))
        else:
            brought[number].append(item)
    for number in running:
        why = f"did not answer within {timeout:g} s"
        brought[number].append(_gap(collectors[number], why))
    collection = Collection()
    # In the collectors' order, whoever was first: the same machine gives the same report.
    for number in sorted(brought):
        for item in brought[number]:
            collection.add(item)
    return collection


def _work(
    number: int, gather: Gather, news: queue.SimpleQueue[tuple[int, Piece | Gap | _Done]]
) -> None:
    try:
        for item in gather():
            news.put((number, item))
    except BaseException as error:
        news.put((number, _Done(error)))
    else:
        news.put((number, _Done(None)))


def _until(
    news: queue.SimpleQueue[tuple[int, Piece | Gap | _Done]], running: set[int], deadline: float
) -> Iterator[tuple[int, Piece | Gap | _Done]]:
    while running:
        try:
            # What is there already is taken, however late it is.
            yield news.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            return


def _failed(collector: Collector, error: BaseException) -> Gap:
    told = str(error).strip().splitlines()
    return _gap(collector, f"failed: {type(error).__name__}{f': {told[0][:200]}' if told else ''}")


def _gap(collector: Collector, why: str) -> Gap:
    return Gap(collector.what, why, collector.hint, collector.optional)
