"""A time axis that leaves out long quiet stretches, so that the seconds that matter have room."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from raydoctor.model.text import duration, moment
from raydoctor.render.html.markup import Markup, el, text


class Layout(NamedTuple):
    """The width of a chart, in units that are about pixels, and what it leaves free at its sides."""

    style: str
    """The class of its drawing: a screen shows the one that fits."""
    width: float
    left: float
    """Room for the names of lanes; if there is hardly any, they are above their bars."""
    right: float
    ticks: int
    """Times on the axis, at most about."""

    @property
    def unstyled(self) -> str:
        """How it is displayed where a viewer blocks the style: only the broad one is."""
        return "" if self.has_margin else "none"

    @property
    def has_margin(self) -> bool:
        """Whether names are beside their bars."""
        return self.left > 100


LAYOUTS = WIDE, NARROW = (
    Layout("broad", 1080.0, 238.0, 16.0, 8),
    Layout("narrow", 344.0, 4.0, 10.0, 4),
)
_MOST_BREAKS = 3
_QUIET = 30.0
"""Seconds that are always drawn in full."""
_SHARE = 0.45
"""The part of the remaining time that a quiet stretch may take before it is left out."""
_BREAK = 34.0
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


class AxisPiece(NamedTuple):
    """A part of the axis: from `begin` to `end` (epoch seconds), drawn from `left` to `right`."""

    begin: float
    end: float
    left: float
    right: float
    is_break: bool


class Axis(NamedTuple):
    """Positions of times."""

    pieces: tuple[AxisPiece, ...]
    layout: Layout

    @property
    def begin(self) -> float:
        """The first time."""
        return self.pieces[0].begin

    @property
    def end(self) -> float:
        """The last time."""
        return self.pieces[-1].end

    def x(self, at: float) -> float:
        """The position of a time; times outside the axis are at its ends."""
        at = min(max(at, self.begin), self.end)
        piece = self.pieces[bisect_right(self.pieces, at, key=lambda p: p.begin) - 1]
        share = (at - piece.begin) / ((piece.end - piece.begin) or 1)
        return piece.left + share * (piece.right - piece.left)

    def draw(self, bottom: float) -> Markup:
        """Grid lines, times and breaks, down to `bottom`."""
        return el("g", {"class": "axis", "aria-hidden": "true"}, *self._drawn(bottom))

    def _drawn(self, bottom: float) -> Iterator[Markup]:
        last = 0.0
        for piece in self.pieces:
            if piece.is_break:
                middle = (piece.left + piece.right) / 2
                yield el("rect", {
                    "class": "break", "x": piece.left, "y": 20, "width": piece.right - piece.left,
                    "height": bottom - 20,
                })  # fmt: skip
                quiet = duration(piece.end - piece.begin)
                yield el("text", {"class": "quiet", "x": middle, "y": 30}, f"⋯ {quiet}")
        for at, form in self._ticks():
            x = self.x(at)
            yield el("path", {"class": "grid", "d": f"M{x:.1f} 20V{bottom:.0f}"})
            place = min(max(x, 30.0), self.layout.width - 30)
            if place - last > 62 or not last:
                yield el("text", {"x": place, "y": 13}, text(moment(at, form)))
                last = place

    def _ticks(self) -> Iterator[tuple[float, str]]:
        room = sum(p.right - p.left for p in self.pieces if not p.is_break)
        for piece in self.pieces:
            span, wide = piece.end - piece.begin, piece.right - piece.left
            if piece.is_break or not span:
                continue
            wanted = span / max(1.0, self.layout.ticks * wide / room)
            step = next((s for s in _STEPS if s >= wanted), _STEPS[-1])
            form = "%m-%d %H:%M" if step >= 43200 else "%H:%M:%S"
            first = int(piece.begin / step) + 1
            for n in range(first, first + 2 * self.layout.ticks):
                if n * step <= piece.end:
                    yield n * step, form


def axis(times: Iterable[float], layout: Layout = WIDE, busy: Iterable[float] = ()) -> Axis | None:
    """An axis with room for these times; None where there are none. `busy`: times that it draws in full."""
    known = sorted(set(times))
    if not known:
        return None
    quiet = _quiet(sorted({*known, *(at for at in busy if known[0] < at < known[-1])}))
    drawn = known[-1] - known[0] - sum(end - begin for begin, end in quiet)
    pad = max(drawn * 0.01, 0.5)
    known = [known[0] - pad, *known, known[-1] + pad]
    drawn += 2 * pad
    scale = (layout.width - layout.left - layout.right - _BREAK * len(quiet)) / drawn
    pieces, begin, left = [], known[0], layout.left
    for start, stop in [*quiet, (known[-1], known[-1])]:
        right = left + (start - begin) * scale
        pieces.append(AxisPiece(begin, start, left, right, False))
        if stop > start:
            pieces.append(AxisPiece(start, stop, right, right + _BREAK, True))
            begin, left = stop, right + _BREAK
    return Axis(tuple(pieces), layout)


def _quiet(times: list[float]) -> list[tuple[float, float]]:
    """The stretches to leave out, in time order: each far longer than the rest, without its edges."""
    gaps = sorted(pairwise(times), key=lambda g: g[0] - g[1])
    left, found = times[-1] - times[0], []
    for begin, end in gaps[:_MOST_BREAKS]:
        length = end - begin
        if length < _QUIET or length < _SHARE * left:
            break
        edge = max(0.04 * (left - length), 0.5)
        if length > 3 * edge:
            found.append((begin + edge, end - edge))
            left -= length
    return sorted(found)
