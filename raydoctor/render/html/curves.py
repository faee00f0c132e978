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
_DRAWN = 3
"""Moments from which readings are a chart; fewer ones are a sentence."""
_LISTED = 300
"""Readings in the table; of more, each node's fullest and last one are listed."""


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
    curves, shown = _ranked(timeline)
    kills = [m for m in timeline.marks if m.kind == "kill"]
    left = len(curves) - len(shown)
    if not shown:
        return None
    note = f"{plural(left, 'resource')} with lower peaks: see the table." if left else ""
    placed = [(curve, *_placed(curve, shared)) for curve in shown]
    said = [_peak(curve, inside) for curve, inside, _ in placed if not _is_course(inside)]
    drawn = [each for each in placed if _is_course(each[1])]
    between = "Between two readings the logs do not record how much was in use."
    return join([
        *(el("p", "", each) for each in said),
        el("p", "dim", between) if drawn else None,
        *(_figure(*each, kills, n) for n, each in enumerate(drawn)),
        el("p", "dim", note) if note else None,
        folded("Readings as a table", _table(curves)),
    ])  # fmt: skip


def moments(timeline: Timeline) -> Iterator[float]:
    """When the readings of the charts were taken."""
    _, shown = _ranked(timeline)
    for curve in (each for each in shown if _is_course(each.readings)):
        yield from (reading.at for reading in curve.readings)


def _ranked(timeline: Timeline) -> tuple[Sequence[_Curve], Sequence[_Curve]]:
    """All curves, the fullest first, and those that the page shows."""
    curves = sorted(_curves(timeline), key=lambda c: (-_share(c.fullest), c.name))
    return curves, [c for c in curves if _is_telling(c)][:_CHARTS]


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
        of = f", {scope}" if scope else ""
        yield _Curve(f"{what.capitalize()} of {names.get(node, 'a node')}{of}", node, readings)


def _placed(curve: _Curve, shared: Sequence[Axis]) -> tuple[Sequence[UsageReading], Sequence[Axis]]:
    """The readings that a chart shows, and its axes: those of the timeline where these have any reading."""
    times = [r.at for r in curve.readings]
    has_place = any(shared[0].begin <= t <= shared[0].end for t in times) if shared else False
    own = (axis(times, layout) for layout in LAYOUTS)
    scales = shared if has_place else [scale for scale in own if scale is not None]
    return [r for r in curve.readings if scales[0].begin <= r.at <= scales[0].end], scales


def _is_course(readings: Sequence[UsageReading]) -> bool:
    """Whether readings show a course: those of fewer moments are said in a sentence."""
    return len({round(each.at, 1) for each in readings}) >= _DRAWN


def _peak(curve: _Curve, among: Sequence[UsageReading]) -> Markup:
    """The fullest reading in words: when it was, the threshold of Ray, and who held most."""
    peak, outside = max(among, key=_share), len(curve.readings) - len(among)
    shown = _exact(peak)
    used = f"{curve.name}: {shown(peak.used)} of {shown(peak.limit)} ({_share(peak):.0%})"
    said = f" in use at {moment(peak.at, '%H:%M:%S')}"
    said += f". {_over(peak)} {shown(peak.threshold)}" if _has_threshold(peak) else ""
    held = joined([f"{name} {shown(amount)}" for name, amount in peak.holders])
    said += f". Held most: {held}" if held else ""
    said += f". {plural(outside, 'earlier reading')} in the table" if outside else ""
    return join([el("b", "", used), f"{said}."])


def _has_threshold(reading: UsageReading) -> bool:
    return 0 < reading.threshold < reading.limit


def _over(reading: UsageReading) -> str:
    """What Ray does beyond its threshold."""
    return {"memory": "Ray kills at", "disk": "Ray stops writing at"}.get(reading.what, "Threshold")


class _Scale(NamedTuple):
    """The amounts at the bottom and at the top of a chart."""

    bottom: float
    top: float

    def y(self, amount: float) -> float:
        """The height of an amount."""
        return _TOP + (_HEIGHT - _TOP) * (self.top - amount) / (self.top - self.bottom)


def _scale(readings: Sequence[UsageReading]) -> _Scale:
    """From zero, or from just below the lowest amount if all are close: lines and points lie apart."""
    amounts = [a for r in readings for a in (r.limit, r.used, r.threshold) if a > 0]
    low, high = min(amounts, default=0.0), max(amounts, default=1.0)
    if low <= _FULL * high:
        return _Scale(0.0, high * 1.06)
    spread = max(high - low, 0.02 * high)
    return _Scale(low - 0.5 * spread, high + 0.12 * spread)


def _figure(
    curve: _Curve,
    inside: Sequence[UsageReading],
    scales: Sequence[Axis],
    kills: Sequence[TimelineMark],
    number: int,
) -> Markup:
    levels = _scale(inside)
    title = f"curve-{number}"
    what = inside[0].what
    own_kills = [m for m in kills if m.lane == curve.node and what == "memory"]
    return el(
        "figure", "",
        el("figcaption", {"id": title}, _peak(curve, inside)),
        el("div", {"class": "chart", "tabindex": 0, "role": "region", "aria-labelledby": title},
           *(_drawn(inside, own_kills, each, levels, title) for each in scales)),
    )  # fmt: skip


def _drawn(
    inside: Sequence[UsageReading],
    kills: Iterable[TimelineMark],
    scale: Axis,
    levels: _Scale,
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
        *_line(inside, scale, levels),
        *(
            mark(
                "kill", scale.x(m.at), _HEIGHT, el("title", "", m.text),
                el("path", {"class": "moment", "d": f"M{scale.x(m.at):.1f} {_TOP:.0f}V{_HEIGHT:.0f}"}),
            )
            for m in kills
            if scale.begin <= m.at <= scale.end
        ),
        *_limits(inside[-1], levels, layout),
    )  # fmt: skip


def _limits(last: UsageReading, scale: _Scale, layout: Layout) -> Iterator[Markup]:
    """The limit, the threshold and the bottom, with their names in the margin, or beside the limit's line."""
    where = "the cgroup's limit" if last.scope.startswith("cgroup") else "limit"
    bottom = "scale from" if scale.bottom else ""
    levels = [(last.limit, where, "limit"), (scale.bottom, bottom, "zero")]
    if _has_threshold(last):
        levels.insert(1, (last.threshold, _over(last), "threshold"))
    lowest, shown = 0.0, _exact(last)
    for amount, name, style in levels:
        place = scale.y(amount)
        yield el(
            "path",
            {
                "class": style,
                "d": f"M{layout.left:.0f} {place:.1f}H{layout.width - layout.right:.0f}",
            },
        )
        label = cut(f"{name} {shown(amount)}".strip(), 34)
        is_below = style == "threshold" and place + 13 <= _HEIGHT
        beside = 4 if layout.has_margin else 13 if is_below else -4
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


def _line(readings: Sequence[UsageReading], scale: Axis, levels: _Scale) -> Iterator[Markup]:
    points = [(scale.x(r.at), levels.y(r.used), r) for r in readings]
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
