"""Who holds the GIL of a process, and whether anybody else can hope for it: a few looks by py-spy."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from raydoctor.observe.stacks import pyspy

_LOOKS, _BETWEEN = 3, 0.05


class GilSample(NamedTuple):
    """What was seen."""

    is_unknown: bool = False
    """Whether it may not be looked at."""
    main_holds_gil: bool = False
    is_stuck: bool = False
    """Whether a thread that waits, in native code, holds it: no Python code can run anywhere in there."""
    stays: bool = False
    """Whether one thread held it in one place in all looks."""
    says: str = ""
    """Which thread, where; empty where nobody holds it for long."""


def look(pid: int) -> GilSample:
    """Sample a few times: a thread that holds the GIL at one place in all samples holds it for long."""
    seen = []
    for number in range(_LOOKS):
        if number:
            time.sleep(_BETWEEN)
        # Without stopping it, or else a sleep that holds the GIL is cut short.
        told = pyspy.look(pid, stopping=False)
        holders = [each for each in told.threads if each.get("owns_gil")]
        if not holders:
            return GilSample(is_unknown=not told.threads)
        seen.append(holders[0])
    last = seen[-1]
    where = {_place(each) for each in seen}
    stays = len(where) == 1
    return GilSample(
        False,
        last.get("os_thread_id") == pid,
        stays and not any(each.get("active") for each in seen),
        stays,
        f"{_words(last)} holds the GIL" if stays else "",
    )


def _place(thread: dict[str, Any]) -> tuple[object, ...]:
    frame = next(pyspy.frames(thread), {})
    return thread.get("os_thread_id"), frame.get("filename"), frame.get("name"), frame.get("line")


def _words(thread: dict[str, Any]) -> str:
    frame = next(pyspy.frames(thread), {})
    return f"{frame.get('name')} ({frame.get('short_filename') or frame.get('filename')}:{frame.get('line')})"
