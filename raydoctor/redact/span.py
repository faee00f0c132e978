"""What is to go: a part of a text and the kind of secret that it is."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from raydoctor.model.patterns import pattern

HELD = rb"<secret:[a-z0-9-]+-\d+>"
PLACEHOLDER = pattern(HELD)
PLACEHOLDER_BEFORE = pattern(HELD + rb"$")


class Span(NamedTuple):
    """`start` and `end` are offsets of bytes."""

    start: int
    end: int
    kind: str

    def moved(self, by: int) -> Span:
        """The same in a text where it begins `by` bytes later."""
        return Span(self.start + by, self.end + by, self.kind)


def merged(spans: list[Span], block: bytes) -> list[Span]:
    """Disjoint spans in order: where some overlap, what they cover, called as the widest of them.

    What lies in a placeholder is none, so that redacting twice is redacting once.
    """
    held = [m.span() for m in PLACEHOLDER.finditer(block)] if b"<secret:" in block else []
    starts = [start for start, _ in held]
    kept: list[tuple[Span, int]] = []
    # Sorting is stable: of equal spans the first rule's name stays.
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
