"""What the Python frames on top of a user's function wait for, or import."""

from __future__ import annotations

import re
from collections.abc import Sequence

from raydoctor.cluster.samples import SampledFrame
from raydoctor.waits.kinds import frames
from raydoctor.waits.kinds.catalog import SHAPES, WaitCode


def waits(inner: Sequence[SampledFrame]) -> WaitCode | None:
    """What these frames wait for; None where no shape fits."""
    shapes = [frames.shape(frame) for frame in inner]
    for code, names in SHAPES:
        if any(re.search(names, shape) for shape in shapes):
            # Python 3.10 shows `Event.wait` without its class: `wait`, on top of a condition's `wait`.
            is_event = code == "condition" and shapes.count("wait (threading.py)") > 1
            return "event" if is_event else code
    return None


_IMPORTS = ("_find_and_load ", "_load_unlocked ", "exec_module ")


def imported(inner: Sequence[SampledFrame]) -> str:
    """The module's file that these frames import, innermost; empty where they import none."""
    shapes = [frames.shape(frame) for frame in inner]
    if not any(name in shape for shape in shapes for name in _IMPORTS):
        return ""
    files = (frames.short(frame) for frame in inner if frame.function == "<module>")
    return next(files, "")
