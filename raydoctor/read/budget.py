"""How much processor time reading may take, so that a hostile file cannot stall a diagnosis.

Processor time of this thread, not wall time: on a busy machine the same files give the same report.
A normal gigabyte takes some seconds (see `benchmarks/`), so only texts made to be slow spend a budget.
"""

from __future__ import annotations

from time import thread_time

FILE_SECONDS = 10.0
"""Per file, beside what its size grants."""
RUN_SECONDS = 120.0
"""For all files of a capture together, beside what their size grants."""
SECONDS_PER_GB = 60.0


class CpuBudget:
    """A number of seconds of this thread's processor time, from now on."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = thread_time() + seconds

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return thread_time() > self._end


def of_file(size: int) -> CpuBudget:
    """The budget of a file of so many bytes."""
    return CpuBudget(FILE_SECONDS + size / 1e9 * SECONDS_PER_GB)


def of_run(size: int) -> CpuBudget:
    """The budget of all files of a capture, which together have so many bytes."""
    return CpuBudget(RUN_SECONDS + size / 1e9 * SECONDS_PER_GB)
