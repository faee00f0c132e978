"""Page -> stream: in colour if the terminal supports it, otherwise as plain text.

rich is imported only for colour: its import takes ten times as long as the rest of the start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

from raydoctor.render.page import MAX_WIDTH, MIN_WIDTH, Page, plain, trimmed

STYLES = {
    "critical": "bold white on red",
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold blue",
    "ok": "bold green",
    "strong": "bold",
    "dim": "dim",
    "path": "cyan",
    "rule": "bold",
    "code": "green",
}
_ASCII = str.maketrans(
    {"└": "`", "├": "|", "│": "|", "─": "-", "…": "~", "·": "-", "×": "x", "≥": ">", "●": "*"}
)
"""The layout's own characters, for streams that cannot encode them."""


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to use colour: never with NO_COLOR (no-color.org), always with FORCE_COLOR, else by TERM."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_terminal(stream) and environ.get("TERM", "dumb") != "dumb"


def columns_of(stream: TextIO) -> int | None:
    """The terminal's columns, or None for pipes and files."""
    if not is_terminal(stream):
        return None
    import shutil  # slow to import, and not needed for pipes and files

    return max(MIN_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)


def width_of(stream: TextIO) -> int:
    """Columns for the layout: at most MAX_WIDTH, which is also the width for pipes."""
    return min(MAX_WIDTH, columns_of(stream) or MAX_WIDTH)


def show(page: Page, stream: TextIO) -> None:
    """Write the page, in colour if the stream supports it.

    Long words are not broken, so that a line to paste can be copied from the screen.
    """
    if wants_colour(stream):
        _paint(page, stream)
    else:
        stream.write(encodable(plain(page), stream))


def encodable(text: str, stream: TextIO) -> str:
    """Text that the stream's encoding can carry."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        pass
    return text


def _paint(page: Page, stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    text = Text()
    for spans in page:
        for span in trimmed(spans):
            text.append(encodable(span.text, stream), STYLES.get(span.style, ""))
        text.append("\n")
    console = Console(file=stream, force_terminal=True, highlight=False, emoji=False, markup=False)
    console.print(text, soft_wrap=True, end="")
