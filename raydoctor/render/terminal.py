"""Page -> stream: in colour if the terminal supports it, otherwise as plain text.

Ten styles need no library: the import of rich takes ten times as long as the rest of the start, and painting
with it takes a fifth of what one round of `raydoctor watch` costs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

from raydoctor.render.page import MAX_WIDTH, MIN_WIDTH, Line, Page, plain, plain_line, trimmed

_CODES = {
    "critical": "1;37;41",  # bold, white on red
    "error": "1;31",
    "warning": "1;33",
    "info": "1;34",
    "ok": "1;32",
    "strong": "1",
    "dim": "2",
    "path": "36",
    "rule": "1",
    "code": "32",
}
"""Style -> the parameters of its escape sequence (ECMA-48, SGR)."""
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
    text = (
        "".join(painted(spans, stream) + "\n" for spans in page)
        if wants_colour(stream)
        else encodable(plain(page), stream)
    )
    stream.write(text)


def painted(spans: Line, stream: TextIO, *, is_coloured: bool = True) -> str:
    """A line without its trailing blanks, as the stream can carry it."""
    kept = trimmed(spans)
    if not is_coloured:
        return encodable(plain_line(kept), stream)
    return "".join(_styled(encodable(span.text, stream), span.style) for span in kept)


def _styled(text: str, style: str) -> str:
    code = _CODES.get(style)
    return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


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
