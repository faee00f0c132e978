"""Leftovers, what is done about them, and what dead sessions keep on the disk -> page or JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raydoctor import __version__, _text
from raydoctor.act.clean import Stale
from raydoctor.act.leftovers import KINDS, Leftover
from raydoctor.act.process import Identity, Outcome
from raydoctor.render.json import dumps
from raydoctor.render.page import MAX_WIDTH, Page, columns, line, paragraph

SCHEMA = "raydoctor/zombies/1"
_TITLES = {
    "orphan": ("orphan", "orphans", "what started them is gone"),
    "stale-daemon": ("stale daemon", "stale daemons", "of sessions that have ended"),
    "leaked-child": ("leaked child", "leaked children", "of workers whose task has ended"),
    "idle-holder": (
        "idle worker that holds much",
        "idle workers that hold much",
        "never ended here",
    ),
    "defunct": ("defunct process", "defunct processes", "only their parents can remove them"),
}


class View(NamedTuple):
    """All that is shown."""

    leftovers: Sequence[Leftover]
    spared: Mapping[Identity, str]
    """Why one is not ended; those that are not in it are, or would be."""
    stale: Sequence[Stale]
    outcomes: Mapping[Identity, Outcome]
    """Empty before anything was done."""


def render(view: View, width: int = MAX_WIDTH, now: float | None = None) -> Page:
    """Kind by kind; below each process why it is left over, and what became of it."""
    at = time.time() if now is None else now
    page: Page = []
    for kind in KINDS:
        these = [each for each in view.leftovers if each.kind == kind]
        if these:
            one, many, what = _TITLES[kind]
            page += [line((_text.plural(len(these), one, many), "strong"), (f": {what}", "dim"))]
            page += _rows(these, view, width, at)
            page.append(())
    if view.stale:
        page += _stale(view.stale)
    return [*page, line((_verdict(view), "strong"))]


def _rows(these: Sequence[Leftover], view: View, width: int, at: float) -> Page:
    page: Page = []
    for each in these:
        head = [f"pid {each.pid}", _text.duration(max(0.0, at - each.identity.started_at))]
        head += [each.user] if each.user else []
        head += [_text.size(each.memory)] if each.memory else []
        head += [f"{_text.size(each.gpu_memory)} GPU"] if each.gpu_memory else []
        head += [f"port {', '.join(map(str, each.ports))}"] if each.ports else []
        page.append(line((" · ".join(head), "path"), indent=2))
        room = width - 6
        page.append(line((_text.cut(_text.one_line(each.command), room), "code"), indent=6))
        page += paragraph(each.why, width, indent=6)
        if each.session:
            page.append(line((each.session, "dim"), indent=6))
        if told := _became(each, view):
            text, style = told
            page += paragraph(text, width, indent=6, style=style)
    return page


def _became(each: Leftover, view: View) -> tuple[str, str] | None:
    outcome = view.outcomes.get(each.identity)
    if outcome is None:
        why = view.spared.get(each.identity)
        return (f"not ended: {why}", "dim") if why else None
    if outcome.outcome == "gone":
        how = {"term": "by SIGTERM", "kill": "by SIGKILL", "none": ""}[outcome.action]
        return (" ".join(filter(None, ("ended", how, outcome.reason))), "ok")
    if outcome.outcome == "refused":
        return (f"not touched: {outcome.reason}", "warning")
    return (f"still runs: {outcome.reason}", "error")


def _stale(stale: Sequence[Stale]) -> Page:
    total = sum(each.bytes for each in stale)
    head = f"{_text.plural(len(stale), 'thing')} of dead sessions"
    page = [line((head, "strong"), (f": {_text.size(total)}", "dim"))]
    rows = []
    for each in stale:
        least = "at least " if each.truncated else ""
        rows.append(
            (f"{least}{_text.size(each.bytes)}", f"{_text.duration(each.age_s)} old", each.path, each.told)
        )  # fmt: skip
    return [*page, *columns(rows, indent=2), ()]


def _verdict(view: View) -> str:
    """`7 leftovers: 5 would be ended (--kill)`."""
    if not view.leftovers and not view.stale:
        return "Nothing is left over on this machine."
    told = [_text.plural(len(view.leftovers), "leftover")]
    if view.outcomes:
        for state in ("gone", "running", "refused"):
            count = sum(o.outcome == state for o in view.outcomes.values())
            told += [f"{count} {state}"] if count else []
    else:
        count = sum(each.identity not in view.spared for each in view.leftovers)
        told += [f"--kill would end {count}"] if count else []
    if view.stale:
        size = _text.size(sum(each.bytes for each in view.stale if not each.removed))
        told.append(
            f"--clean would remove {size}" if not any(s.removed for s in view.stale) else ""
        )
    return "; ".join(filter(None, told)) + "."


def to_json(view: View) -> str:
    """One JSON object. Keys are added, never renamed."""
    return dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "leftovers": [_row(each, view) for each in view.leftovers],
            "stale_sessions": [
                {
                    "path": s.path,
                    "what": s.what,
                    "bytes": s.bytes,
                    "age_s": s.age_s,
                    "truncated": s.truncated,
                    "removed": s.removed,
                    "reason": s.reason,
                }
                for s in view.stale
            ],
        }
    )


def _row(each: Leftover, view: View) -> dict[str, object]:
    outcome = view.outcomes.get(each.identity)
    running = "gone" if each.kind == "defunct" else "running"
    return {
        "pid": each.pid,
        "started_at": each.identity.started_at,
        "kind": each.kind,
        "why": each.why,
        "belongs_to": each.belongs_to,
        "command": each.command,
        "session": each.session,
        "user": each.user,
        "rss": each.rss,
        "memory": each.memory,
        "gpu_memory": each.gpu_memory,
        "ports": list(each.ports),
        "action": outcome.action if outcome else "none",
        "outcome": outcome.outcome if outcome else running,
        "reason": outcome.reason if outcome else view.spared.get(each.identity, ""),
    }
