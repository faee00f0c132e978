"""Calls functions in parallel, each in a daemon thread, and never waits for a hung one.

`concurrent.futures` joins its threads when the interpreter exits: a hung thread would block the exit.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


def parallel(
    calls: Mapping[str, Callable[[], T]], timeout: float, at_once: int | None = None
) -> Iterator[tuple[str, T | Exception]]:
    """Each call's name with its result or exception, as they arrive; calls that take too long are left out.

    `at_once`: how many run at a time, by default all. No call is begun after the timeout, or after the
    caller has closed the iterator.
    """
    results: queue.SimpleQueue[tuple[str, T | Exception]] = queue.SimpleQueue()
    waiting: queue.SimpleQueue[tuple[str, Callable[[], T]]] = queue.SimpleQueue()
    for item in calls.items():
        waiting.put(item)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            try:
                name, call = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                results.put((name, call()))
            except Exception as error:
                results.put((name, error))

    for name in list(calls)[:at_once]:
        threading.Thread(target=work, name=name, daemon=True).start()
    deadline = time.monotonic() + timeout
    try:
        for _ in calls:
            yield results.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        return
    finally:
        is_over.set()
