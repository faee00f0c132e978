"""Who can never go on, and for whom each of those waits in the end: a wait-for graph over plain ids.

Pure, and the same whatever the order of what it is given. Free is who neither stands still by himself nor
waits, and who waits for free ones only (for all of them, or for one of several). Whoever is not free is
stuck: he waits for one that stands still, or in a circle. Nothing is said of clusters here: `edges.py`
makes the graph, `hung.py` reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

_STARTS = 64
"""Members of a knot from which its shortest circle is looked for."""


class Wait(NamedTuple):
    """What somebody waits for."""

    needs: frozenset[str]
    """Those that have to end; whoever is not part of the graph has ended."""
    mode: Literal["all", "any"] = "all"
    """Whether all of them have to, or one is enough."""


class Group(NamedTuple):
    """Those that are stuck for one reason."""

    ends: tuple[str, ...]
    """Who stands still, or who waits in a circle: nobody of them waits for others."""
    circle: tuple[str, ...]
    """The shortest circle, each before the one that it waits for; empty where one stands still."""
    behind: tuple[str, ...]
    """Who waits for them, directly or through others."""


def stuck(standing: Collection[str], waits: Mapping[str, Wait]) -> set[str]:
    """All that can never go on, unless somebody helps."""
    waiters = {name: wait for name, wait in waits.items() if name not in standing}
    suspects = {*standing, *waiters}
    asked_by: dict[str, list[str]] = {}
    for name, wait in waiters.items():
        for need in wait.needs:
            asked_by.setdefault(need, []).append(name)
    doubtful = list(waiters)
    while doubtful:
        name = doubtful.pop()
        if name in suspects and name not in standing and _goes_on(waiters[name], suspects):
            suspects.discard(name)
            doubtful += asked_by.get(name, ())
    return suspects


def _goes_on(wait: Wait, suspects: Collection[str]) -> bool:
    if wait.mode == "any":
        return not wait.needs or any(need not in suspects for need in wait.needs)
    return all(need not in suspects for need in wait.needs)


def groups(standing: Collection[str], waits: Mapping[str, Wait]) -> list[Group]:
    """Everybody who is stuck, each in one group; those with most members first."""
    members = stuck(standing, waits)
    paths = {
        name: sorted(waits[name].needs & members) if name in waits and name not in standing else []
        for name in sorted(members)
    }
    in_circles = stuck((), {n: w for n, w in waits.items() if n not in standing})
    ends = [
        knot
        for knot in _knots(paths)
        if knot[0] in standing or (knot[0] in in_circles and _is_circle(knot, paths))
    ]
    ends.sort()
    whose = _nearest(ends, paths)
    found = [_group(number, end, paths, whose) for number, end in enumerate(ends)]
    return sorted(found, key=lambda g: (-len(g.ends) - len(g.behind), g.ends))


def _group(
    number: int, end: tuple[str, ...], paths: Mapping[str, list[str]], whose: Mapping[str, int]
) -> Group:
    circle = _circle(end, paths) if _is_circle(end, paths) else ()
    behind = sorted(name for name, n in whose.items() if n == number and name not in end)
    return Group(end, circle, tuple(behind))


def _is_circle(knot: tuple[str, ...], paths: Mapping[str, list[str]]) -> bool:
    return len(knot) > 1 or knot[0] in paths[knot[0]]


def _nearest(ends: list[tuple[str, ...]], paths: Mapping[str, list[str]]) -> dict[str, int]:
    """Who waits for which end: the nearest; of two as near, the first."""
    whose = {name: number for number, end in enumerate(ends) for name in end}
    comes_from: dict[str, list[str]] = {}
    for name, needs in paths.items():
        for need in needs:
            comes_from.setdefault(need, []).append(name)
    near: Iterable[str] = list(whose)
    while near:
        found: dict[str, int] = {}
        for name in near:
            for waiter in comes_from.get(name, ()):
                if waiter not in whose:
                    found[waiter] = min(whose[name], found.get(waiter, len(ends)))
        whose |= found
        near = list(found)
    return whose


def _circle(knot: tuple[str, ...], paths: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The shortest circle within a knot."""
    inside = set(knot)
    found = [_round_trip(start, inside, paths) for start in knot[:_STARTS]]
    return min((way for way in found if way), key=lambda way: (len(way), way))


def _round_trip(start: str, inside: set[str], paths: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The shortest way from a member back to itself."""
    ways: dict[str, tuple[str, ...]] = {start: (start,)}
    near = [start]
    while near:
        further = []
        for name in near:
            for need in paths[name]:
                if need == start:
                    return ways[name]
                if need in inside and need not in ways:
                    ways[need] = (*ways[name], need)
                    further.append(need)
        near = further
    return ()


def _knots(paths: Mapping[str, list[str]]) -> list[tuple[str, ...]]:
    """Strongly connected components (Tarjan's, without recursion: a chain may be long)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    pending: list[str] = []
    found: list[tuple[str, ...]] = []
    closed: set[str] = set()
    for root in paths:
        work = [] if root in index else [(root, 0)]
        while work:
            name, step = work.pop()
            if step == 0:
                index[name] = low[name] = len(index)
                pending.append(name)
            elif (before := paths[name][step - 1]) not in closed:
                low[name] = min(low[name], low[before])
            ahead = next(
                (s for s in range(step, len(paths[name])) if paths[name][s] not in index), None
            )
            for need in paths[name][step:ahead]:
                if need not in closed:
                    low[name] = min(low[name], index[need])
            if ahead is not None:
                work += [(name, ahead + 1), (paths[name][ahead], 0)]
            elif low[name] == index[name]:
                cut = pending.index(name)
                found.append(tuple(sorted(pending[cut:])))
                closed.update(pending[cut:])
                del pending[cut:]
    return found
