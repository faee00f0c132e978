"""Describes a cycle of waits: which task waits for which, back to the first."""

from __future__ import annotations

from collections.abc import Sequence

from raydoctor.waits.hung import Hung

_MOST = 4
"""Members that a sentence names one by one."""


def chain(cycle: Sequence[Hung]) -> str:
    """`A.add() (pid 4) waits for B.get() (pid 5), which waits for A.size(), which is queued behind A.add()`.

    Empty for a cycle that is too long for a sentence.
    """
    if not 1 < len(cycle) <= _MOST:
        return ""
    waits = ["waits for" if each.work.runs else "is queued behind" for each in cycle]
    names = [*(each.work.label for each in cycle[1:]), cycle[0].work.called]
    steps = [f"{verb} {name}" for verb, name in zip(waits, names, strict=True)]
    return f"{cycle[0].work.label} {', which '.join(steps)}"
