"""Calls functions side by side, each in a daemon thread, and never waits for one that hangs.

`concurrent.futures` joins its threads when the interpreter exits: one that hangs would hang the exit.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


def parallel(
    calls: Mapping[str, Callable[[], T]], timeout: float
) -> Iterator[tuple[str, T | Exception]]:
    """Name and result, or what it raised, as they come; what has not come by then is left out."""
    results: queue.SimpleQueue[tuple[str, T | Exception]] = queue.SimpleQueue()

    def work(name: str, call: Callable[[], T]) -> None:
        try:
            results.put((name, call()))
        except Exception as error:
            results.put((name, error))

    for name, call in calls.items():
        threading.Thread(target=work, args=(name, call), name=name, daemon=True).start()
    deadline = time.monotonic() + timeout
    for _ in calls:
        try:
            yield results.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return
