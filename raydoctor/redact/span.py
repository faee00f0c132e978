"""A part of a text that is a secret, and the kind of the secret."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from raydoctor.model.patterns import pattern

HELD = rb"<secret:[a-z0-9-]+-\d+>"
PLACEHOLDER = pattern(HELD)
PLACEHOLDER_BEFORE = pattern(HELD + rb"$")


class Span(NamedTuple):
    """`start` and `end` are byte offsets."""

    start: int
    end: int
    kind: str

    def moved(self, by: int) -> Span:
        """The span shifted by a number of bytes."""
        return Span(self.start + by, self.end + by, self.kind)


def merged(spans: list[Span], block: bytes) -> list[Span]:
    """Disjoint spans in order: overlapping ones become their union, with the kind of the widest.

    Spans inside a placeholder are dropped, so that redaction is idempotent.
    """
    held = [m.span() for m in PLACEHOLDER.finditer(block)] if b"<secret:" in block else []
    starts = [start for start, _ in held]
    kept: list[tuple[Span, int]] = []
    # Sorting is stable: among equal spans, the first kind stays.
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        number = bisect_right(starts, span.start) - 1
        if number >= 0 and span.end <= held[number][1]:
            continue
        if kept and span.start < kept[-1][0].end:
            last, width = kept[-1]
            wider = span.end - span.start > width
            joined = Span(last.start, max(last.end, span.end), span.kind if wider else last.kind)
            kept[-1] = (joined, max(width, span.end - span.start))
        elif span.end > span.start:
            kept.append((span, span.end - span.start))
    return [span for span, _ in kept]
