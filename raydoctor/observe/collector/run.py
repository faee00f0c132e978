"""Runs collectors in parallel, each with a hard time limit; none of them can block or fail the run.

A collector is a function that yields files and gaps. Each runs in its own thread. What it has yielded before
the timeout is kept, and a gap records that it did not finish. A thread that is blocked in the kernel (by a
dead NFS server, for example) is abandoned: it is a daemon thread and ends with the process.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from raydoctor.model.values import Gap
from raydoctor.observe.collector.table import Piece

TIMEOUT = 5.0
"""Default seconds for each collector on a machine that is not overloaded."""
_MOST_TIMES = 6.0
"""Largest factor by which an overloaded machine extends it."""

Gather = Callable[[], Iterable[Piece | Gap]]


class ReportProgress(Protocol):
    """Takes what is being done: `done` of `total` units, or at most `limit` seconds."""

    def __call__(self, doing: str, done: float = 0, total: float = 0, *, limit: float = 0) -> None:
        """Called again for each step."""


def silent(doing: str, done: float = 0, total: float = 0, *, limit: float = 0) -> None:
    """Report no progress."""


class Collector(NamedTuple):
    """One source of evidence. `what` is its name in a gap: "the kernel log"."""

    what: str
    gather: Gather
    optional: bool = False
    """Whether the evidence is complete without it."""
    hint: str = ""
    """What to do if it fails or takes too long."""
    about: str = ""
    """Which evidence is missing without it: `Gap.about`."""


@dataclass(slots=True)
class Collection:
    """The results of all collectors."""

    pieces: dict[str, bytes] = field(default_factory=dict)
    """Path in the capture -> content."""
    gaps: list[Gap] = field(default_factory=list)

    def add(self, item: Piece | Gap, folder: str = "") -> None:
        """Add a file or a gap; `folder` is the node's."""
        if isinstance(item, Gap):
            self.gaps.append(item)
        else:
            self.pieces[f"{folder}/{item.path}" if folder else item.path] = item.data


class _Done(NamedTuple):
    error: BaseException | None


def usual_timeout() -> float:
    """Default seconds for each collector.

    If more threads are runnable than there are processors, raydoctor and the processes that it queries need
    proportionally longer.
    """
    try:
        load = os.getloadavg()[0]
    except OSError:  # a sandbox without a load average
        return TIMEOUT
    return TIMEOUT * min(_MOST_TIMES, max(1.0, load / (os.cpu_count() or 1)))


def run(
    collectors: Sequence[Collector],
    timeout: float = TIMEOUT,
    meanwhile: Callable[[], object] = lambda: None,
) -> Collection:
    """Run all of them in parallel; returns after at most `timeout` seconds.

    `meanwhile` is work of the caller that does not depend on them.
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
    # In the order of the collectors, not of arrival: the same machine yields the same report.
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
            # Results that are already queued are taken even after the deadline.
            yield news.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            return


def _failed(collector: Collector, error: BaseException) -> Gap:
    lines = str(error).strip().splitlines()
    detail = f": {lines[0][:200]}" if lines else ""
    return _gap(collector, f"failed: {type(error).__name__}{detail}")


def _gap(collector: Collector, why: str) -> Gap:
    return Gap(collector.what, why, collector.hint, collector.optional, collector.about)
