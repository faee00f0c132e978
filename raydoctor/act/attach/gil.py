"""Samples which thread holds the GIL of a process, and whether others can get it, by py-spy."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from raydoctor.observe.stacks import pyspy

_SAMPLES, _INTERVAL = 3, 0.05


class GilSample(NamedTuple):
    """The result of a few samples."""

    is_unknown: bool = False
    """Whether the process could not be sampled."""
    main_holds_gil: bool = False
    is_stuck: bool = False
    """Whether a thread that is blocked in native code holds it: no Python code can run in the process."""
    stays: bool = False
    """Whether the same thread held it in the same place in all samples."""
    holder: str = ""
    """The thread that holds it, and its position; empty if no thread holds it for long."""


def sample(pid: int) -> GilSample:
    """Sample a few times: a thread that holds the GIL at one place in all samples holds it for long."""
    samples = []
    for number in range(_SAMPLES):
        if number:
            time.sleep(_INTERVAL)
        # Without stopping the process, because that would cut a sleep that holds the GIL short.
        dump = pyspy.dump(pid, stopping=False)
        holders = [each for each in dump.threads if each.get("owns_gil")]
        if not holders:
            return GilSample(is_unknown=not dump.threads)
        samples.append(holders[0])
    last = samples[-1]
    where = {_place(each) for each in samples}
    stays = len(where) == 1
    return GilSample(
        False,
        last.get("os_thread_id") == pid,
        stays and not any(each.get("active") for each in samples),
        stays,
        f"{_location(last)} holds the GIL" if stays else "",
    )


def _place(thread: dict[str, Any]) -> tuple[object, ...]:
    frame = next(pyspy.frames(thread), {})
    return thread.get("os_thread_id"), frame.get("filename"), frame.get("name"), frame.get("line")


def _location(thread: dict[str, Any]) -> str:
    frame = next(pyspy.frames(thread), {})
    return f"{frame.get('name')} ({frame.get('short_filename') or frame.get('filename')}:{frame.get('line')})"
