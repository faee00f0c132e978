"""Stacks as a flame graph: a frame is as wide as the part of the samples that contain it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from raydoctor.cluster.samples import SampledFrame
from raydoctor.model.text import cut_middle, one_line
from raydoctor.render.html.axis import WIDE
from raydoctor.render.html.markup import Markup, el

_ROW = 19.0
_DEPTH = 48
_LETTER = 6.4
_LEAST = 2.0
"""Width of the narrowest frame; narrower ones are left to the stacks as text."""


@dataclass(slots=True)
class _FlameNode:
    """A frame below its callers, and the number of samples with it."""

    count: int = 0
    whose: str = ""
    below: dict[str, _FlameNode] = field(default_factory=dict)


def draw(stacks: Iterable[tuple[SampledFrame, ...]], name: str) -> Markup | None:
    """The graph of sampled stacks (innermost frame first), callers on top; None where there is none."""
    root = _FlameNode()
    for frames in stacks:
        root.count += 1
        node = root
        for frame in list(reversed(frames))[:_DEPTH]:
            node = node.below.setdefault(frame.place, _FlameNode(whose=frame.whose))
            node.count += 1
    if not root.below:
        return None
    drawn = list(_frames(root, 0.0, WIDE.width, 0))
    depth = max(row for row, _ in drawn) + 1
    return el(
        "svg",
        {
            "class": "flame",
            "viewBox": f"0 0 {WIDE.width:.0f} {depth * _ROW + 2:.0f}",
            "role": "img",
            "aria-labelledby": name,
        },
        el("title", {"id": name}, f"{root.count:,} sampled stacks, callers on top"),
        *(frame for _, frame in drawn),
    )  # fmt: skip


def _frames(
    parent: _FlameNode, left: float, width: float, row: int
) -> Iterator[tuple[int, Markup]]:
    for place, node in sorted(parent.below.items(), key=lambda item: -item[1].count):
        wide = width * node.count / parent.count
        if wide >= _LEAST:
            yield row, _frame(place, node, left, wide, row)
            yield from _frames(node, left, wide, row + 1)
        left += wide


def _frame(place: str, node: _FlameNode, left: float, wide: float, row: int) -> Markup:
    label = cut_middle(one_line(place), int((wide - 8) / _LETTER)) if wide > 8 * _LETTER else ""
    style = "frame user" if node.whose == "user" else "frame"
    return el(
        "g", "",
        el("title", "", f"{place}: {node.count:,} samples"),
        el("rect", {"class": style, "x": left, "y": row * _ROW, "width": wide, "height": _ROW - 1}),
        el("text", {"x": left + 4, "y": row * _ROW + 13}, label) if label else None,
    )  # fmt: skip
