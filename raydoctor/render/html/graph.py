"""The wait graph of one group: what waits stands on the left, what blocks it on the right.

Work that does the same is one box with a count, so that a thousand tasks behind one culprit stay readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from raydoctor.model.text import cut, cut_middle, duration, one_line
from raydoctor.render.html.markup import Markup, el
from raydoctor.waits.edges import target
from raydoctor.waits.hung import Hung, HungGroup

_WIDTH, _HEIGHT, _ACROSS, _DOWN = 232.0, 44.0, 52.0, 14.0
_LETTERS = 34
_MOST = 12
"""Boxes in a column; the last one counts the others."""
_RAYS = ("task ", "actor ", "job ", "object ", "placement-group ", "resources ")
"""Kinds of targets that belong to Ray."""
_MARGIN = 46.0
"""Room for the curves of a cycle."""
_PAPER = 1190.0
"""Width beyond which a graph does not fit on paper: there, the table of its members stands for it."""


class _Box(NamedTuple):
    """One task, several that do the same, or a thing outside of Ray."""

    name: str
    about: str
    title: str
    style: str = ""


class _Edge(NamedTuple):
    start: str
    end: str
    style: str


def draw(group: HungGroup, name: str) -> Markup:
    """The graph as a picture; `name`: the id of its title."""
    boxes, key_of = _boxes(group)
    edges = list(_edges(group, key_of))
    columns = _columns(boxes, edges, group, key_of)
    others = _fold(columns, boxes)
    drawn = _alone(
        _Edge(others.get(e.start, e.start), others.get(e.end, e.end), e.style) for e in edges
    )
    places, width, height = _places(columns)
    return el(
        "svg",
        {
            "class": "graph wide" if width > _PAPER else "graph",
            "viewBox": f"0 0 {width:.0f} {height:.0f}",
            "width": f"{width:.0f}",
            "height": f"{height:.0f}",
            "role": "img",
            "aria-labelledby": name,
        },
        el("title", {"id": name}, "What waits for what; the table below names every member"),
        *(_edge(edge, places, height) for edge in drawn),
        *(_drawn(boxes[key], *places[key]) for key in places),
    )  # fmt: skip


def _alone(edges: Iterable[_Edge]) -> Iterable[_Edge]:
    """One edge between two boxes: a guess only if none of those that it stands for is exact."""
    found: dict[tuple[str, str], _Edge] = {}
    for edge in edges:
        known = found.setdefault((edge.start, edge.end), edge)
        if "guess" in known.style and "guess" not in edge.style:
            found[edge.start, edge.end] = edge
    return found.values()


def _boxes(group: HungGroup) -> tuple[dict[str, _Box], dict[str, str]]:
    """The boxes by key, and the key of each member's target id."""
    boxes: dict[str, _Box] = {}
    key_of: dict[str, str] = {}
    alike: dict[str, list[Hung]] = {}
    ends = {id(each) for each in (*group.cycle, *group.culprits)}
    for each in group.all:
        alone = id(each) in ends and len(ends) <= _MOST
        key = each.work.id if alone else f"{each.kind} {each.work.name} {each.summary}"
        alike.setdefault(key, []).append(each)
        key_of[target(each.work).id or each.work.id] = key
        key_of[each.work.id] = key
    for key, same in alike.items():
        first = same[0]
        name = first.work.label if len(same) == 1 else f"{len(same):,} × {first.work.name}"
        oldest = max(each.work.age for each in same)
        age = f" for {duration(oldest)}" if oldest else ""
        style = "culprit" if id(first) in ends else ""
        boxes[key] = _Box(name, f"{first.kind}{age}", first.summary, style)
    for each in group.all:
        for name in _things(each, key_of):
            about = "not part of this group" if name.startswith(_RAYS) else "outside of Ray"
            boxes.setdefault(f"thing {name}", _Box(name, about, name, "thing"))
    return boxes, key_of


def _things(hung: Hung, key_of: Mapping[str, str]) -> Iterator[str]:
    """What it waits for outside the group: an address, an object, resources."""
    for each in hung.targets:
        if each.id not in key_of and each.name:
            yield f"{each.kind} {one_line(each.name)}"


def _edges(group: HungGroup, key_of: Mapping[str, str]) -> Iterator[_Edge]:
    cycle = {each.work.id for each in group.cycle}
    for each in group.all:
        start = key_of[each.work.id]
        guess = " guess" if each.waiting and not each.waiting.exact else ""
        for other in each.targets:
            if (end := key_of.get(other.id or "")) is not None:
                style = "cycle" if each.work.id in cycle and end in map(key_of.get, cycle) else ""
                if end != start or each.work.id in cycle:
                    yield _Edge(start, end, f"{style}{guess}")
        for name in _things(each, key_of):
            yield _Edge(start, f"thing {name}", guess)


def _columns(
    boxes: Mapping[str, _Box], edges: Iterable[_Edge], group: HungGroup, key_of: Mapping[str, str]
) -> list[list[str]]:
    """Keys by their distance from what blocks, the farthest column first."""
    waiters: dict[str, list[str]] = {}
    for edge in edges:
        waiters.setdefault(edge.end, []).append(edge.start)
    ends = [key_of[each.work.id] for each in (*group.cycle, *group.culprits)]
    distance = dict.fromkeys(ends, 0)
    near = list(distance)
    while near:
        further = []
        for key in near:
            for waiter in waiters.get(key, ()):
                if waiter not in distance:
                    distance[waiter] = distance[key] + 1
                    further.append(waiter)
        near = further
    columns: dict[int, list[str]] = {}
    for key, box in boxes.items():
        column = -1 if box.style == "thing" else distance.get(key, 1)
        columns.setdefault(column, []).append(key)
    return [columns[number] for number in sorted(columns, reverse=True)]


def _fold(columns: Sequence[list[str]], boxes: dict[str, _Box]) -> dict[str, str]:
    """Shorten long columns: their last box stands for the others, which are keys of the result."""
    found: dict[str, str] = {}
    for number, column in enumerate(columns):
        rest = column[_MOST - 1 :] if len(column) > _MOST else []
        if rest:
            key = f"others {number}"
            boxes[key] = _Box(f"{len(rest):,} more kinds", "see the table", "in the table below")
            column[_MOST - 1 :] = [key]
            found |= dict.fromkeys(rest, key)
    return found


def _places(
    columns: Sequence[Sequence[str]],
) -> tuple[dict[str, tuple[float, float]], float, float]:
    """The corner of each box, and the size of the picture."""
    tallest = max(len(column) for column in columns)
    height = tallest * (_HEIGHT + _DOWN) + _DOWN
    places = {}
    for number, column in enumerate(columns):
        top = (height - len(column) * (_HEIGHT + _DOWN) + _DOWN) / 2
        for row, key in enumerate(column):
            places[key] = (_MARGIN + number * (_WIDTH + _ACROSS), top + row * (_HEIGHT + _DOWN))
    width = 2 * _MARGIN + len(columns) * _WIDTH + (len(columns) - 1) * _ACROSS
    return places, width, height + _DOWN


def _drawn(box: _Box, x: float, y: float) -> Markup:
    return el(
        "g", "",
        el("title", "", f"{box.name}: {box.title}"),
        el("rect", {
            "class": f"box {box.style}".strip(), "x": x, "y": y, "width": _WIDTH, "height": _HEIGHT, "rx": 5,
        }),
        el("text", {"class": "box-name", "x": x + 10, "y": y + 18}, cut_middle(one_line(box.name), _LETTERS)),
        el("text", {"x": x + 10, "y": y + 34}, cut(box.about, _LETTERS)),
    )  # fmt: skip


def _edge(edge: _Edge, places: Mapping[str, tuple[float, float]], bottom: float) -> Markup:
    (x, y), (to_x, to_y) = places[edge.start], places[edge.end]
    y, to_y = y + _HEIGHT / 2, to_y + _HEIGHT / 2
    if to_x > x:
        x, bend, tip = x + _WIDTH, _ACROSS / 2, -1
    else:  # within a column, or back: around the boxes, downwards on their right and upwards on their left
        is_loop = edge.start == edge.end
        right = to_y > y or is_loop
        x, to_x, tip = (x + _WIDTH, to_x + _WIDTH, 1) if right else (x, to_x, -1)
        bend = tip * _MARGIN * 0.9
        y, to_y = (y - 9, to_y + 9) if is_loop else (y, to_y)
    to_bend, way = tip * abs(bend), ""
    if to_x - x > _ACROSS:  # below the boxes of the columns between them
        low, start, end = bottom - 6, x + bend, to_x + to_bend
        way = f"C{start:.0f} {y:.0f} {start:.0f} {low:.0f} {start + bend:.0f} {low:.0f}"
        way += f"H{end - bend:.0f}C{end:.0f} {low:.0f} {end:.0f} {to_y:.0f}"
    way = way or f"C{x + bend:.0f} {y:.0f} {to_x + to_bend:.0f} {to_y:.0f}"
    path = f"M{x:.0f} {y:.0f}{way} {to_x + tip * 7:.0f} {to_y:.0f}"
    return el(
        "g",
        "",
        el("path", {"class": f"edge {edge.style}".strip(), "d": path}),
        el("path", {"class": "arrow", "d": f"M{to_x:.0f} {to_y:.0f}l{tip * 9} -4.5v9Z"}),
    )
