"""A page: lines of styled spans, the one layout behind coloured and plain text.

Renderers compose pages, and `render.terminal` paints them. Control characters are escaped when a span is
made, so that the text of a log reaches a terminal as text only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from raydoctor.model.text import cells, cut, one_line, wrap

MAX_WIDTH = 100
MIN_WIDTH = 40
RISKS = {"disruptive": "interrupts work", "destructive": "loses state or data"}
"""What a page prints after a fix that is not safe."""


class StyledText(NamedTuple):
    """Text in one style; styles are words (`error`, `path`, `dim`, …), not colours."""

    text: str
    style: str = ""


Line = tuple[StyledText, ...]
Page = list[Line]
Part = str | tuple[str, str]
"""Text, or text and style."""


def line(*parts: Part, indent: int = 0) -> Line:
    """A line of these parts, with control characters escaped."""
    spans = [StyledText(" " * indent)] if indent else []
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        if text:
            spans.append(StyledText(_keep_edges(text), style))
    return tuple(spans)


def _keep_edges(text: str) -> str:
    """Printable text on one line that keeps the spaces around it, which align columns."""
    if text.isprintable():
        return text
    stripped = text.strip(" ")
    left = text[: len(text) - len(text.lstrip(" "))]
    right = text[len(text.rstrip(" ")) :]
    return f"{left}{one_line(stripped)}{right}"


def paragraph(text: str, width: int, indent: int = 0, hang: int = 0, style: str = "") -> Page:
    """Text wrapped at spaces to lines of `width` columns; lines after the first hang deeper."""
    lines = wrap(one_line(text), width - indent - hang)
    return [line((part, style), indent=indent + (hang if n else 0)) for n, part in enumerate(lines)]


def shortened(page: Page, count: int, width: int) -> Page:
    """At most `count` lines; an ellipsis shows that there were more."""
    if len(page) <= count:
        return page
    *before, last = page[:count]
    ends = last[-1]
    text = ends.text if cells(plain_line(last)) < width else ends.text[:-1]
    return [*before, (*last[:-1], StyledText(text.rstrip(" …") + "…", ends.style))]


def prefixed(page: Page, first: str, rest: str, style: str = "dim") -> Page:
    """A page with a margin: `first` before its first line, `rest` before the others."""
    return [
        (StyledText(first if n == 0 else rest, style), *content) for n, content in enumerate(page)
    ]


def columns(rows: Sequence[Sequence[Part]], indent: int = 0, gap: int = 2) -> Page:
    """Rows in aligned columns; the last column is ragged."""
    made = [line(*(part or " " for part in row)) for row in rows]
    if not made:
        return []
    count = max(map(len, made))
    widths = [
        max((cells(row[n].text) for row in made if len(row) > n + 1), default=0)
        for n in range(count)
    ]
    page = []
    for row in made:
        spans = [StyledText(" " * indent)] if indent else []
        for n, span in enumerate(row):
            last = n == len(row) - 1
            fill = "" if last else " " * (widths[n] - cells(span.text) + gap)
            spans.append(StyledText(span.text + fill, span.style))
        page.append(tuple(spans))
    return page


def fitted(spans: Line, width: int) -> Line:
    """A line of at most `width` columns."""
    kept: list[StyledText] = []
    room = width
    for span in spans:
        if cells(span.text) > room:
            if room > 0:
                kept.append(StyledText(cut(span.text, room), span.style))
            break
        kept.append(span)
        room -= cells(span.text)
    return tuple(kept)


def trimmed(spans: Line) -> Line:
    """A line without trailing blanks."""
    while spans and not spans[-1].text.strip(" "):
        spans = spans[:-1]
    return (*spans[:-1], StyledText(spans[-1].text.rstrip(" "), spans[-1].style)) if spans else ()


def plain_line(spans: Iterable[StyledText]) -> str:
    """A line's text without styles."""
    return "".join(span.text for span in spans)


def plain(page: Page) -> str:
    """The page's text without styles, with a line break at its end."""
    return "".join(plain_line(trimmed(spans)) + "\n" for spans in page)
