"""Story -> page or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raydoctor.model import ids, text
from raydoctor.model.entities import Entity
from raydoctor.model.version import __version__
from raydoctor.read.story import Alias, Story, StoryLine
from raydoctor.render.json import dumps, gap, number
from raydoctor.render.page import Page, StyledText, line, paragraph
from raydoctor.render.report import place

SCHEMA = "raydoctor/story/1"
_LEVELS = {"W": "warning", "E": "error", "C": "critical"}
_RELATED = 6
_KNOWN = 12


def render(story: Story, width: int | None, verbose: bool = False) -> Page:
    """The story as a page; with `width` None, messages are not cut (for pipes)."""
    page = [line((name(story.subject, full=True), "strong"))]
    page += [
        line(("also ", "dim"), name(alias.entity), (f"  ({alias.why})", "dim"))
        for alias in story.aliases
    ]
    page.append(())
    page += _entries(story.entries, width, verbose)
    page.append(())
    page += _remarks(story)
    return page


def unknown(story: Story, width: int) -> Page:
    """The ids of the capture, if it does not contain the requested one."""
    page: Page = []
    by_kind: dict[str, list[str]] = {}
    for entity, label in story.known:
        shown = text.short_id(entity.value) + (f" ({label})" if label else "")
        by_kind.setdefault(entity.kind, []).append(shown)
    for kind, found in by_kind.items():
        more = f", … and {len(found) - _KNOWN} more" if len(found) > _KNOWN else ""
        page += paragraph(f"{kind}s: {', '.join(found[:_KNOWN])}{more}", width, indent=2, hang=2)
    return [*page, *_unread(story)]


def name(entity: Entity, full: bool = False) -> str:
    """`worker 1234abcd…`, `pid 503 on node-a`."""
    if entity.kind == "process":
        node, _, pid = entity.value.rpartition("/")
        return f"pid {pid} on {node}" if node else f"pid {pid}"
    if job := ids.job_of_driver(entity.value):
        return f"driver of job {job}"
    return f"{entity.kind} {entity.value if full else text.short_ids(entity.value)}"


def _entries(entries: Sequence[StoryLine], width: int | None, verbose: bool) -> Page:
    """One line each with time, location, level and message; a date at each change."""
    places = [place(e.source.path, e.line, verbose) for e in entries]
    room = min(max((text.cells(p) for p in places), default=0), 40)
    page: Page = []
    day = ""
    for entry, where in zip(entries, places, strict=True):
        today = text.moment(entry.at, "%Y-%m-%d")
        if today != day:
            page.append(line((today or "without a time", "dim")))
            day = today
        page.append(_entry(entry, where, room, width))
    return page


def _entry(entry: StoryLine, where: str, room: int, width: int | None) -> tuple[StyledText, ...]:
    message = text.short_ids(text.first_line(entry.message))
    stamp = _time(entry)
    left = line(
        (f"{stamp:12}  ", "dim"),
        (where + " " * max(0, room - text.cells(where)), "path"),
        (f"  {entry.level or ' '}  ", _LEVELS.get(entry.level, "dim")),
    )
    if width is not None:
        message = text.cut(message, max(width - sum(text.cells(s.text) for s in left), 20))
    return (*left, *line((message, _LEVELS.get(entry.level, ""))))


def _time(entry: StoryLine) -> str:
    """`07:34:50.739`; a tilde for the further lines of a record."""
    stamp = text.moment(entry.at, "%H:%M:%S")
    if entry.at is None or not stamp:
        return ""
    return "~" if entry.inherited else f"{stamp}.{int(entry.at % 1 * 1000):03}"


def _remarks(story: Story) -> Page:
    """Counts, omitted lines, related ids and gaps."""
    count = len(story.entries)
    files = len({entry.source.path for entry in story.entries})
    page = [line((f"{text.plural(count, 'line')} in {text.plural(files, 'file')}", "dim"))]
    if story.omitted:
        left_out = sum(story.omitted.values())
        summary = f"{text.plural(left_out, 'routine line')} of its own logs not shown: --all"
        page.append(line((summary, "dim")))
    others = [(e, n) for e, n in story.related if e.kind != "job"][:_RELATED]
    if others:
        summary = ", ".join(f"{e.kind} {text.short_id(e.value)} (×{n})" for e, n in others)
        page.append(line(("also named: ", "dim"), summary))
    return [*page, *_unread(story)]


def _unread(story: Story) -> Page:
    """What may hide further lines."""
    return [line((f"{each.what}: {each.why}", "warning")) for each in story.gaps]


def to_json(story: Story) -> str:
    """The story as one JSON object."""
    return dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "subject": _entity(story.subject),
            "aliases": [_alias(alias) for alias in story.aliases],
            "lines": [_line(entry) for entry in story.entries],
            "omitted": [{"file": file, "lines": count} for file, count in story.omitted.items()],
            "related": [{**_entity(e), "count": count} for e, count in story.related],
            "known": [{**_entity(e), "label": label} for e, label in story.known],
            "gaps": [gap(each) for each in story.gaps],
        }
    )


def _entity(entity: Entity) -> dict[str, Any]:
    return {"kind": entity.kind, "id": entity.value}


def _alias(alias: Alias) -> dict[str, Any]:
    return {**_entity(alias.entity), "why": alias.why}


def _line(entry: StoryLine) -> dict[str, Any]:
    return {
        "at": number(entry.at),
        "inherited": entry.inherited,
        "node": entry.source.node,
        "file": entry.source.path,
        "line": entry.line,
        "level": entry.level,
        "message": entry.message,
    }
