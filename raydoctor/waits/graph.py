"""A wait-for graph over plain ids: which nodes can never continue, and what each of them waits for in the
end.

Pure, and independent of the order of its input. A node is free if it neither hangs by itself nor waits, or
if it waits for free nodes only (for all of them, or for one of several). All other nodes are stuck: they
wait for a node that hangs, or are in a cycle. `edges.py` builds the graph of a cluster, `hung.py` reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

_STARTS = 64
"""Members of a component from which its shortest cycle is searched."""


class Needs(NamedTuple):
    """What a node waits for."""

    nodes: frozenset[str]
    """They have to end; a node that is not part of the graph has ended."""
    mode: Literal["all", "any"] = "all"
    """Whether all of them have to end, or one is enough."""


class StuckGroup(NamedTuple):
    """Nodes that are stuck for one reason."""

    ends: tuple[str, ...]
    """The node that hangs, or the members of a cycle: none of them waits for other nodes."""
    cycle: tuple[str, ...]
    """The shortest cycle, in which each waits for the next; empty where a node hangs by itself."""
    behind: tuple[str, ...]
    """The nodes that wait for them, directly or through others."""


def stuck(hung: Collection[str], waits: Mapping[str, Needs]) -> set[str]:
    """The nodes that can never continue, unless something outside of the graph changes."""
    waiters = {name: needs for name, needs in waits.items() if name not in hung}
    suspects = {*hung, *waiters}
    needed_by: dict[str, list[str]] = {}
    for name, needs in waiters.items():
        for need in needs.nodes:
            needed_by.setdefault(need, []).append(name)
    unchecked = list(waiters)
    while unchecked:
        name = unchecked.pop()
        if name in suspects and name not in hung and _is_free(waiters[name], suspects):
            suspects.discard(name)
            unchecked += needed_by.get(name, ())
    return suspects


def _is_free(needs: Needs, suspects: Collection[str]) -> bool:
    if needs.mode == "any":
        return not needs.nodes or any(need not in suspects for need in needs.nodes)
    return all(need not in suspects for need in needs.nodes)


def groups(hung: Collection[str], waits: Mapping[str, Needs]) -> list[StuckGroup]:
    """The stuck nodes, each in one group; the largest group first. `hung`: nodes that hang by themselves."""
    members = stuck(hung, waits)
    paths = {
        name: sorted(waits[name].nodes & members) if name in waits and name not in hung else []
        for name in sorted(members)
    }
    in_cycles = stuck((), {n: w for n, w in waits.items() if n not in hung})
    ends = [
        component
        for component in _components(paths)
        if component[0] in hung or (component[0] in in_cycles and _is_cycle(component, paths))
    ]
    ends.sort()
    end_of = _nearest(ends, paths)
    found = [_group(number, end, paths, end_of) for number, end in enumerate(ends)]
    return sorted(found, key=lambda g: (-len(g.ends) - len(g.behind), g.ends))


def _group(
    number: int, end: tuple[str, ...], paths: Mapping[str, list[str]], end_of: Mapping[str, int]
) -> StuckGroup:
    cycle = _cycle(end, paths) if _is_cycle(end, paths) else ()
    behind = sorted(name for name, n in end_of.items() if n == number and name not in end)
    return StuckGroup(end, cycle, tuple(behind))


def _is_cycle(component: tuple[str, ...], paths: Mapping[str, list[str]]) -> bool:
    return len(component) > 1 or component[0] in paths[component[0]]


def _nearest(ends: list[tuple[str, ...]], paths: Mapping[str, list[str]]) -> dict[str, int]:
    """Node -> the number of the end that it waits for: the nearest; of two as near, the first."""
    end_of = {name: number for number, end in enumerate(ends) for name in end}
    comes_from: dict[str, list[str]] = {}
    for name, needs in paths.items():
        for need in needs:
            comes_from.setdefault(need, []).append(name)
    near: Iterable[str] = list(end_of)
    while near:
        found: dict[str, int] = {}
        for name in near:
            for waiter in comes_from.get(name, ()):
                if waiter not in end_of:
                    found[waiter] = min(end_of[name], found.get(waiter, len(ends)))
        end_of |= found
        near = list(found)
    return end_of


def _cycle(component: tuple[str, ...], paths: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The shortest cycle within a component."""
    inside = set(component)
    found = [_round_trip(start, inside, paths) for start in component[:_STARTS]]
    return min((way for way in found if way), key=lambda way: (len(way), way))


def _round_trip(start: str, inside: set[str], paths: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The shortest path from a member back to itself."""
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


def _components(paths: Mapping[str, list[str]]) -> list[tuple[str, ...]]:
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
