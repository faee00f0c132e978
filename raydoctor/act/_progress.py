"""Whether a process keeps running after it was entered.

It does not if it uses no processor time and threads of it wait for the GIL: in a process that merely became
idle, no thread does.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

from raydoctor.act import _elf
from raydoctor.act.programs import blocked

_BUSY, _IDLE = 0.1, 0.01
"""Shares of one processor: above the first a process is busy, below the second it stands still."""
_SHORTEST = 0.05
"""Seconds: processor time is counted in ticks of 10 ms."""
STILL = 2.0
"""Seconds without progress after which a process that was busy is reported."""
_LOOK = 0.05


class Usage(NamedTuple):
    """The processor time that a process has used until a moment, in seconds."""

    at: float
    used: float


def usage(pid: int) -> Usage:
    """Of all its threads, also those that have ended (proc(5), fields 14 and 15). Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as stream:
        words = stream.read().rpartition(b")")[2].split()
    return Usage(time.monotonic(), (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"))


def was_busy(before: Usage, after: Usage) -> bool:
    """Whether the process computed between the two."""
    passed = after.at - before.at
    return passed >= _SHORTEST and (after.used - before.used) / passed >= _BUSY


def stands_still(pid: int, seconds: float = STILL) -> bool:
    """Whether no thread of the process gets any further for so long. It returns as soon as one does.

    Raises OSError.
    """
    before = now = usage(pid)
    while now.at - before.at < seconds:
        time.sleep(_LOOK)
        now = usage(pid)
        if now.used - before.used > _IDLE * seconds:
            return False
    return asks_for_python(pid)


def asks_for_python(pid: int) -> bool:
    """Whether a thread waits for a lock of Python's own, where these can be found. Raises OSError."""
    if (locks := _elf.runtime(pid)) is None:
        return False
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):  # it has ended meanwhile
            call = blocked.current(int(thread))
            if call and call.number == blocked.FUTEX and call.first in locks:
                return True
    return False
