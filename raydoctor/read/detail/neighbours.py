"""The lines around a record in its file."""

from __future__ import annotations

from collections.abc import Mapping

from raydoctor.model.text import cut
from raydoctor.model.timeline import Neighbours
from raydoctor.model.values import Event, Source

_LINES = 3
_WIDTH = 300
_BEFORE, _AFTER = 4 << 10, 4 << 10
_ROWS = ("live", "export-event", "debug-state", "kubernetes", "reading")
"""Roles whose lines have no order in time, so that their neighbours mean nothing."""


def around(files: Mapping[Source, str], event: Event) -> Neighbours | None:
    """At most three lines before and after a record; None if its file was not read here."""
    file = files.get(event.source)
    if file is None or event.source.role in _ROWS:
        return None
    begin = max(0, event.offset - _BEFORE)
    try:
        with open(file, "rb") as stream:
            stream.seek(begin)
            before = stream.read(event.offset - begin)
            rest = stream.read(len(event.text) * 4 + _AFTER)
    except OSError:
        return None
    lines = before.split(b"\n")[:-1]
    following = rest.split(b"\n")[len(event.text.rstrip("\n").split("\n")) :]
    return Neighbours(
        _text(lines[1:][-_LINES:] if begin else lines[-_LINES:]),
        _text(following[:_LINES]).rstrip("\n"),
    )


def _text(lines: list[bytes]) -> str:
    return "\n".join(cut(line.decode("utf-8", "replace").rstrip("\r"), _WIDTH) for line in lines)
