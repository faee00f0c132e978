"""Memory, object stores and disks over time: a chart for each, and a table of the readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from raydoctor.model.text import cut, joined, moment, plural, size
from raydoctor.model.timeline import Timeline, TimelineMark, UsageReading
from raydoctor.render.html.axis import LAYOUTS, Axis, Layout, axis
from raydoctor.render.html.markup import Markup, el, folded, join, table
from raydoctor.render.html.timeline import mark

_CHARTS = 8
"""Charts: the fullest ones; the table has all nodes."""
_HEIGHT, _TOP = 132.0, 26.0
_FULL = 0.5
"""The share of a node's memory from which several readings get a chart."""
_CLOSE = 0.8
"""The share of its threshold, or of its limit, from which any resource gets a chart."""
_LISTED = 300
"""Readings in the table; of more, each node's fullest and last one are listed."""


_Level = Callable[[float], float]
"""Bytes -> the height in the chart."""


class _Curve(NamedTuple):
    """The readings of one resource of one node, in time order."""

    name: str
    node: str
    readings: Sequence[UsageReading]

    @property
    def fullest(self) -> UsageReading:
        """The reading with the highest share of its limit."""
        return max(self.readings, key=_share)


def section(timeline: Timeline, shared: Sequence[Axis]) -> Markup | None:
    """The charts and their table; None if no reading is close to its limit. `shared`: the timeline's axes."""
    curves = sorted(_curves(timeline), key=lambda c: (-_share(c.fullest), c.name))
    shown = [c for c in curves if _is_telling(c)][:_CHARTS]
    kills = [m for m in timeline.marks if m.kind == "kill"]
    left = len(curves) - len(shown)
    if not shown:
        return None
    note = f"{plural(left, 'resource')} with lower peaks: see the table." if left else ""
    return join([
        el("p", "dim", "Between two readings the logs do not record how much was in use."),
        *(_figure(curve, kills, shared, n) for n, curve in enumerate(shown)),
        el("p", "dim", note) if note else None,
        folded("Readings as a table", _table(curves)),
    ])  # fmt: skip


def _share(reading: UsageReading) -> float:
    return reading.used / reading.limit if reading.limit else 0.0


def _exact(reading: UsageReading) -> Callable[[float], str]:
    """Sizes with one digit, or with two if one would hide on which side of its limit a reading is."""
    return partial(size, digits=2) if _is_close(reading) else size


def _is_close(reading: UsageReading) -> bool:
    return reading.used >= _CLOSE * (reading.threshold or reading.limit)


def _is_telling(curve: _Curve) -> bool:
    """Whether a chart says more than the table: it does close to a limit, and where memory grew."""
    fullest, several = curve.fullest, len(curve.readings) > 1
    return _is_close(fullest) or (fullest.what == "memory" and several and _share(fullest) >= _FULL)


def _curves(timeline: Timeline) -> Iterator[_Curve]:
    names = {lane.id: lane.name for lane in timeline.lanes}
    found: dict[tuple[str, str, str], list[UsageReading]] = {}
    for each in timeline.readings:
        found.setdefault((each.node, each.what, each.scope), []).append(each)
    for (node, what, scope), readings in found.items():
        of = f" {scope}" if scope else ""
        yield _Curve(f"{what.capitalize()} of {names.get(node, 'a node')}{of}", node, readings)


def _figure(
    curve: _Curve, kills: Sequence[TimelineMark], shared: Sequence[Axis], number: int
) -> Markup:
    times = [r.at for r in curve.readings]
    own = (axis(times, layout) for layout in LAYOUTS)
    has_place = any(shared[0].begin <= t <= shared[0].end for t in times) if shared else False
    scales = shared if has_place else [scale for scale in own if scale is not None]
    scale = scales[0]
    inside = [r for r in curve.readings if scale.begin <= r.at <= scale.end]
    top = max(max(max(r.limit, r.used, r.threshold) for r in inside) * 1.06, 1.0)
    title = f"curve-{number}"

    def y(amount: float) -> float:
        return _TOP + (_HEIGHT - _TOP) * (1 - amount / top)

    peak = max(inside, key=_share)
    outside = len(curve.readings) - len(inside)
    shown = _exact(peak)
    said = f"{curve.name}: at most {shown(peak.used)} of {shown(peak.limit)} ({_share(peak):.0%})"
    said += f"; {plural(outside, 'earlier reading')} in the table" if outside else ""
    own_kills = [m for m in kills if m.lane == curve.node and peak.what == "memory"]
    held = joined([f"{name} {shown(amount)}" for name, amount in peak.holders])
    return el(
        "figure", "",
        el("figcaption", {"id": title}, said),
        el("p", "dim", f"Held most at {moment(peak.at, '%H:%M:%S')}: {held}") if held else None,
        el("div", {"class": "chart", "tabindex": 0, "role": "region", "aria-labelledby": title},
           *(_drawn(inside, own_kills, each, y, title) for each in scales)),
    )  # fmt: skip


def _drawn(
    inside: Sequence[UsageReading],
    kills: Iterable[TimelineMark],
    scale: Axis,
    y: _Level,
    title: str,
) -> Markup:
    layout = scale.layout
    return el(
        "svg",
        {
            "class": layout.style,
            "viewBox": f"0 0 {layout.width:.0f} {_HEIGHT + 8:.0f}",
            "role": "img",
            "aria-labelledby": title,
            "display": layout.unstyled,
        },
        scale.draw(_HEIGHT),
        *_line(inside, scale, y),
        *(
            mark(
                "kill", scale.x(m.at), _HEIGHT, el("title", "", m.text),
                el("path", {"class": "moment", "d": f"M{scale.x(m.at):.1f} {_TOP:.0f}V{_HEIGHT:.0f}"}),
            )
            for m in kills
            if scale.begin <= m.at <= scale.end
        ),
        *_limits(inside[-1], y, layout),
    )  # fmt: skip


def _limits(last: UsageReading, y: _Level, layout: Layout) -> Iterator[Markup]:
    """The limit, the threshold and zero, with their names in the margin, or beside the limit's line."""
    over = {"memory": "Ray kills at", "disk": "Ray stops writing at"}.get(last.what, "threshold")
    where = "the cgroup's limit" if last.scope.startswith("cgroup") else "limit"
    levels = [(last.limit, where, "limit"), (0.0, "", "zero")]
    if 0 < last.threshold < last.limit:
        levels.insert(1, (last.threshold, over, "threshold"))
    lowest, shown = 0.0, _exact(last)
    for amount, name, style in levels:
        place = y(amount)
        yield el(
            "path",
            {
                "class": style,
                "d": f"M{layout.left:.0f} {place:.1f}H{layout.width - layout.right:.0f}",
            },
        )
        label = cut(f"{name} {shown(amount)}".strip(), 34)
        beside = 4 if layout.has_margin else -4 if style != "threshold" else 13
        lowest = max(place + beside, lowest + 14)
        if lowest <= _HEIGHT + 4:
            yield el(
                "text",
                {
                    "class": f"name {style}-name",
                    "x": 0 if layout.has_margin else layout.left,
                    "y": lowest,
                },
                label,
            )


def _line(readings: Sequence[UsageReading], scale: Axis, y: _Level) -> Iterator[Markup]:
    points = [(scale.x(r.at), y(r.used), r) for r in readings]
    kept = [
        p
        for n, p in enumerate(points)
        if not n or n == len(points) - 1 or p[0] - points[n - 1][0] > 0.4
    ]
    path = " ".join(f"{x:.1f} {level:.1f}" for x, level, _ in kept)
    yield el("path", {"class": "usage", "d": f"M{path}"})
    for x, level, reading in kept:
        shown = _exact(reading)
        said = f"{moment(reading.at)}: {shown(reading.used)} of {shown(reading.limit)}"
        yield el(
            "circle", {"class": "reading", "cx": x, "cy": level, "r": 3}, el("title", "", said)
        )


def _table(curves: Sequence[_Curve]) -> Markup:
    every = sum(len(c.readings) for c in curves) <= _LISTED
    rows = [
        (
            moment(r.at),
            c.name,
            _exact(r)(r.used),
            _exact(r)(r.limit),
            _exact(r)(r.threshold) if r.threshold else "–",
        )
        for c in curves
        for r in (c.readings if every else dict.fromkeys((c.fullest, c.readings[-1])))
    ]
    caption = "All readings" if every else "The fullest and the last reading of each resource"
    return table(caption, ("Time", "Resource", "In use", "Limit", "Ray's threshold"), rows)
