"""Whether a process continues to make progress after it was entered.

It is stuck if threads wait for the GIL and no thread uses CPU time. In an idle process, no thread waits for
the GIL.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from raydoctor.act.attach import elf
from raydoctor.act.attach.programs import blocked

STILL = 2.0
"""Seconds without progress after which a process is reported."""
_LEAST = 0.02
"""Seconds of CPU time that count as progress: two clock ticks."""
_INTERVAL = 0.05
_SAMPLES, _PAUSE = 5, 0.01
"""Several samples, as a thread that waits for the GIL wakes up briefly every few milliseconds."""


def is_stuck(pid: int, seconds: float = STILL) -> bool:
    """Whether no thread of the process makes progress for `seconds`. Returns as soon as one does.

    False for a process that cannot be read or has ended.
    """
    try:
        if not waits_for_python(pid):
            return False
        used, until = processor_time(pid), time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(_INTERVAL)
            if processor_time(pid) - used >= _LEAST:
                return False
        return waits_for_python(pid)
    except OSError:
        return False


def waits_for_python(pid: int) -> bool:
    """Whether a thread waits for a lock of Python itself; False if these cannot be found. Raises OSError."""
    return _waiting(pid) > 0


def competitors(pid: int) -> int:
    """Number of threads that compete for the GIL; 0 if its locks cannot be found. Raises OSError."""
    found = 0
    for _ in range(_SAMPLES):
        found = max(found, _waiting(pid))
        time.sleep(_PAUSE)
    return found


def _waiting(pid: int) -> int:
    """Number of threads that now wait for a lock of Python itself. Raises OSError."""
    if (locks := elf.runtime(pid)) is None:
        return 0
    found = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):  # it has ended meanwhile
            call = blocked.current(int(thread))
            found += bool(call and call.number == blocked.FUTEX and call.first in locks)
    return found


def processor_time(pid: int) -> float:
    """CPU seconds of all its threads, including ended ones (proc(5), fields 14, 15). Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as stream:
        words = stream.read().rpartition(b")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
