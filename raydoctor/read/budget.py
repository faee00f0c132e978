"""CPU time limits of a diagnosis, so that hostile files cannot stall it.

The limits use CPU time, not wall time: on a busy machine the same files give the same report. A normal
gigabyte takes some seconds (see `benchmarks/`), so only files made to be slow exceed a budget.

Reading checks its budget between two lines. Rules, including those of plugins, are interrupted
(`capture/cpu.py`).
"""

from __future__ import annotations

from time import monotonic, thread_time

from raydoctor.model import text
from raydoctor.model.values import Gap

FILE_SECONDS = 1.5
"""Per file, in addition to the time for its size."""
RUN_SECONDS = 60.0
"""For all files of a capture together, in addition to the time for their size."""
SECONDS_PER_GB = 120.0
HINT = "Read the rest of the file yourself, or split its long lines and diagnose it again."


class CpuBudget:
    """A number of seconds of this thread's CPU time, from now on."""

    __slots__ = ("_earliest", "_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = thread_time() + seconds
        # A thread spends no more than the time that passes, and a sandbox reports that faster.
        self._earliest = monotonic() + seconds

    @property
    def spent(self) -> bool:
        """Whether the budget is spent."""
        return monotonic() > self._earliest and thread_time() > self._end

    @property
    def left(self) -> float:
        """Remaining seconds, at least 0."""
        return max(0.0, self._end - thread_time())


def of_file(size: int) -> CpuBudget:
    """The budget of a file of this size in bytes."""
    return CpuBudget(FILE_SECONDS + size / 1e9 * SECONDS_PER_GB)


def gap(file: str, read: int, size: int, spent: CpuBudget) -> Gap:
    """The gap for a file whose budget is spent, with the amount that was read."""
    return Gap(
        file,
        f"{text.size(read)} of {text.size(size)} read within the time budget of "
        f"{text.duration(spent.seconds)}: its lines are very long or very unusual",
        HINT,
    )


def of_run(size: int) -> CpuBudget:
    """The budget of all files of a capture, by their total size in bytes."""
    return CpuBudget(RUN_SECONDS + size / 1e9 * SECONDS_PER_GB)
