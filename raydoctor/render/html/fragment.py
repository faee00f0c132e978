"""Page -> HTML for notebooks: one preformatted block on a background of its own.

No colour is readable on the background of both a light and a dark notebook.
"""

from __future__ import annotations

from html import escape

from raydoctor.render.page import Page, trimmed

_STYLES = {
    "critical": "color:#fff;background:#b91c1c;font-weight:bold",
    "error": "color:#dc2626;font-weight:bold",
    "warning": "color:#b45309;font-weight:bold",
    "info": "color:#2563eb;font-weight:bold",
    "ok": "color:#15803d;font-weight:bold",
    "strong": "font-weight:bold",
    "rule": "font-weight:bold",
    "dim": "color:#5b6570",
    "path": "color:#0e7490",
    "code": "color:#15803d",
}


_BLOCK = "white-space:pre-wrap;line-height:1.3;padding:8px;color:#1c2127;background:#fff"


def render(page: Page) -> str:
    """The page as a fragment of HTML. Text of logs is escaped and makes neither elements nor links."""
    lines = ("".join(map(_span, trimmed(spans))) for spans in page)
    return f'<pre style="{_BLOCK}">{chr(10).join(lines)}</pre>'


def _span(span: tuple[str, str]) -> str:
    text, style = span
    css = _STYLES.get(style)
    return f'<span style="{css}">{escape(text)}</span>' if css else escape(text)
