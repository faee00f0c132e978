"""How long the function of a task ran: asked of the GCS when a caller reads it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress

from raydoctor.act.workers.running import LAG, TaskSource

_PAUSE = 0.1


class OwnTime:
    """The running time of a task that has ended; the first call asks the GCS, others repeat its answer."""

    __slots__ = ("_connect", "_ended", "_known", "_task")

    def __init__(
        self, task: bytes, connect: Callable[[], TaskSource], known: float = math.nan
    ) -> None:
        """`known`: what is returned if the GCS has no record."""
        self._task, self._connect, self._known = task, connect, known
        self._ended: float | None = time.monotonic()

    def __call__(self) -> float:
        """Seconds; NaN if unknown. Waits until the worker must have sent its record, `LAG` after the end."""
        if self._ended is not None:
            with suppress(
                Exception
            ):  # of gRPC, or Ray has been shut down: the result is valid without it
                self._known = self._ask(self._ended + LAG)
            self._ended = None
        return self._known

    def _ask(self, until: float) -> float:
        source = self._connect()
        try:
            while (ran := source.ran(self._task)) is None and time.monotonic() < until:
                time.sleep(_PAUSE)
        finally:
            source.close()
        return self._known if ran is None else ran
