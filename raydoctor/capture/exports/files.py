"""Takes the exports of a capture apart: each becomes the files that it was made of.

A file that Ray wrote has the name that it had in its session; what a container printed is a console. An
export whose records name neither a file nor a container stays one console, which `console/` reads.
"""

from __future__ import annotations

import mmap
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from raydoctor.capture.budget import TooMuchError
from raydoctor.capture.exports import labels, streams
from raydoctor.capture.exports.entries import read
from raydoctor.capture.exports.labels import NOWHERE, Place
from raydoctor.capture.exports.streams import Stream, Streams
from raydoctor.capture.layout import read_name, source_of
from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.text import join_names
from raydoctor.model.values import Gap, Source

ROLE = "export"
_OF_RAY = re.compile(
    rb"\bray(?:let\b|\.|::|\s)|worker\.py:\d|\bpid=\d+[,)]|Traceback \(most recent call"
)
"""What a console that Ray writes to contains."""
_AGAIN = "Export it again; the complete records were read."


@dataclass(slots=True)
class Parts:
    """The parts of one export."""

    files: dict[Source, str]
    gaps: list[Gap]
    notes: list[str]
    sessions: set[str]
    """All that there are, read or not."""


def parts_of(source: Source, file: str, found: Streams, session: str = "") -> Parts | None:
    """The parts of an export; None if its records name no file and no container. `found`: where they go.

    `session`: the only session to read; by default the newest. Raises OSError if the folder is full,
    and RaydoctorError if there is no such session.
    """
    outer = labels.of_path(f"/{source.path}")
    outer = labels.of_path(file) if outer == NOWHERE else outer
    parts = Parts({}, [], [], set())
    try:
        _read(source, file, outer, found, parts.gaps)
    except TooMuchError as error:
        parts.gaps.append(Gap(source.path, f"{error}; the rest was not read", _AGAIN))
        with suppress(TooMuchError):
            found.flush()
    chosen = _of_session(source, found.places, session, parts)
    is_labelled = len(chosen) > 1 or any(place.file or place.container for place in chosen)
    if not is_labelled and not found.are_outputs:
        return None
    _take(source, chosen, parts)
    return parts


def _read(source: Source, file: str, outer: Place, found: Streams, gaps: list[Gap]) -> None:
    read(file, outer, found)
    found.flush()
    if found.damaged:
        more = f" and {found.damaged - 1:,} more" if found.damaged > 1 else ""
        where = f"line {found.first_damaged:,}{more}"
        gaps.append(Gap(source.path, f"is cut off or damaged at {where}", _AGAIN))
    if found.refused:
        why = f"has more than {streams.MOST:,} files; {found.refused:,} records of others were not read"
        gaps.append(Gap(source.path, why, "Export fewer pods, or a shorter time."))


def _of_session(
    source: Source, places: dict[Place, Stream], session: str, parts: Parts
) -> dict[Place, Stream]:
    """The places of one session, and those of none."""
    names = sorted({place.session for place in places if place.session})
    parts.sessions.update(names)
    if not names and not session:
        return places
    chosen = session or names[-1]
    if chosen not in names:
        known = join_names([_clean(name) for name in names]) or "none"
        hint = paste.text("Sessions: {known}", known=known)
        raise RaydoctorError(f"no session {chosen} in {source.path}", hint)
    if not session and len(names) > 1:
        others = join_names([_clean(name) for name in reversed(names[:-1])])
        note = "reading {chosen}, the newest session; to read another: --session NAME ({others})"
        parts.notes.append(paste.text(note, chosen=_clean(chosen), others=others))
    # A shipper that follows `session_*` reads each file by the link `session_latest` as well.
    return {
        place: stream
        for place, stream in places.items()
        if place.session == chosen
        or (not place.session and place._replace(session=chosen) not in places)
    }


def _take(source: Source, chosen: dict[Place, Stream], parts: Parts) -> None:
    """Add the files of the places."""
    by_pod: dict[str, set[str]] = {}
    for place in chosen:
        by_pod.setdefault(place.pod, set()).add(place.namespace)
    skipped: list[str] = []
    for place, stream in chosen.items():
        owner = (place.namespace if len(by_pod[place.pod]) > 1 else "", place.pod)
        node = "/".join(filter(None, map(_clean, owner))) or source.node
        if place.file:
            path = "/".join(part for part in (node, "logs", _clean(place.file)) if part)
            name = read_name(path.rpartition("/")[2])
            if name is None:
                continue
        else:
            path = "/".join(
                part for part in (node, f"{_clean(place.container) or 'console'}.log") if part
            )
            path = path if len(chosen) > 1 else ""
            name = None
            if len(chosen) > 1 and not _is_of_ray(stream.path):
                skipped.append(path)
                continue
        lines = streams.finished(stream)
        size = stream.path.stat().st_size
        shown = f"{source.path}:{path}" if path else source.path
        own = (
            source_of(name, shown, node, size) if name else Source(shown, "driver", node, size=size)
        )
        parts.files[replace(own, lines=lines)] = str(stream.path)
    if skipped:
        names = join_names(skipped)
        parts.notes.append(
            paste.text("Not read, because Ray wrote nothing there: {names}", names=names)
        )


def _clean(name: str) -> str:
    """A label as a part of a path that is only shown: no file is ever made of it."""
    kept = "".join(char if char.isprintable() else "?" for char in name[:500])
    return "/".join(part for part in kept.split("/") if part not in ("", ".", ".."))


def _is_of_ray(file: Path) -> bool:
    with file.open("rb") as stream:
        if not stream.read(1):
            return False
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return _OF_RAY.search(text) is not None
