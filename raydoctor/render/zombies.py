"""Leftover processes, the actions on them, and the files of dead sessions -> page or JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence

from raydoctor.act.zombies.clean import Stale
from raydoctor.act.zombies.leftovers import KINDS, Leftover
from raydoctor.act.zombies.sweep import SweepReport, SweptMachine
from raydoctor.model import text as _text
from raydoctor.model.version import __version__
from raydoctor.observe.processes import proc
from raydoctor.render.json import dumps
from raydoctor.render.machine import prometheus
from raydoctor.render.page import MAX_WIDTH, Page, columns, line, paragraph

SCHEMA = "raydoctor/zombies/1"
_TITLES = {
    "orphan": ("orphan", "orphans", "the process that started them has exited"),
    "stale-daemon": ("stale daemon", "stale daemons", "of sessions that have ended"),
    "leaked-child": ("leaked child", "leaked children", "of workers whose task has ended"),
    "idle-holder": (
        "idle worker that holds much memory",
        "idle workers that hold much memory",
        "never ended by this command",
    ),
    "defunct": ("defunct process", "defunct processes", "only their parents can remove them"),
}


def render(
    places: Sequence[SweptMachine], width: int = MAX_WIDTH, now: float | None = None
) -> Page:
    """The leftovers by kind and owner, for each machine if there are several."""
    at = time.time() if now is None else now
    page: Page = []
    for place in places:
        if len(places) > 1 or place.view is None:
            page += _head(place, width)
        if place.view is not None:
            page += _machine(place.view, width, at)
    return [*page, line((_verdict(places), "strong"))]


def _head(place: SweptMachine, width: int) -> Page:
    """The name of the machine, and why its leftovers are unknown or incomplete."""
    name = f"node {place.node.id[:12]}" if place.node.id else "this machine"
    ip = f" ({place.node.ip})" if place.node.ip else ""
    said: Page = [line((f"{name}{ip}", "strong"))]
    if place.same_as:
        other = "this one" if place.same_as == "here" else f"node {place.same_as[:12]}"
        said += paragraph(f"the same machine as {other}", width, indent=2, style="dim")
    elif place.problem:
        said += paragraph(f"not searched: {place.problem}", width, indent=2, style="warning")
        said += paragraph(place.hint, width, indent=2, style="dim") if place.hint else []
    elif place.view is not None and not (place.view.leftovers or place.view.stale):
        said.append(line(("nothing is left over", "dim"), indent=2))
    is_alone = place.view is None or not (place.view.leftovers or place.view.stale)
    return [*said, ()] if is_alone else said


def _machine(view: SweepReport, width: int, at: float) -> Page:
    """Each process with the reason why it is a leftover, and the result of ending it."""
    page: Page = []
    for kind in KINDS:
        these = [each for each in view.leftovers if each.kind == kind]
        if these:
            one, many, what = _TITLES[kind]
            page += [line((_text.plural(len(these), one, many), "strong"), (f": {what}", "dim"))]
            for group in _by_owner(these):
                page += _owner(group, width)
                page += _rows(group, view, width, at)
            page.append(())
    if view.stale:
        page += _stale(view.stale)
    return page


def _by_owner(these: Sequence[Leftover]) -> list[list[Leftover]]:
    """The leftovers of each user, session and worker or raylet."""
    groups: dict[tuple[str, str, str], list[Leftover]] = {}
    for each in these:
        groups.setdefault((each.user, each.session, each.belongs_to), []).append(each)
    return list(groups.values())


def _owner(group: Sequence[Leftover], width: int) -> Page:
    first, held = group[0], sum(each.memory for each in group)
    parts = [
        first.belongs_to or "owner unknown",
        first.user and f"user {first.user}",
        first.session,
    ]
    if len(group) > 1:
        parts.append(f"{len(group)} processes" + (f", {_text.size(held)}" if held else ""))
    return paragraph(" · ".join(filter(None, parts)), width, indent=2, hang=2)


def _rows(these: Sequence[Leftover], view: SweepReport, width: int, at: float) -> Page:
    page: Page = []
    why = ""
    for each in these:
        head = [f"pid {each.pid}", _text.duration(max(0.0, at - each.identity.started_at))]
        head += [_text.size(each.memory)] if each.memory else []
        head += [f"{_text.size(each.gpu_memory)} GPU"] if each.gpu_memory else []
        head += [f"port {', '.join(map(str, each.ports))}"] if each.ports else []
        page.append(line((" · ".join(head), "path"), indent=4))
        room = width - 8
        page.append(line((_text.cut(_text.one_line(each.command), room), "code"), indent=8))
        page += paragraph(each.why, width, indent=8) if each.why != why else []
        why = each.why
        if changed := _became(each, view):
            text, style = changed
            page += paragraph(text, width, indent=8, style=style)
    return page


def _became(each: Leftover, view: SweepReport) -> tuple[str, str] | None:
    outcome = view.outcomes.get(each.identity)
    if outcome is None:
        spared = view.spared.get(each.identity)
        return (f"not ended: {spared.reason}", "dim") if spared else None
    if outcome.outcome == "gone":
        how = {"term": "by SIGTERM", "kill": "by SIGKILL", "none": ""}[outcome.action]
        return (" ".join(filter(None, ("ended", how, outcome.reason))), "ok")
    if outcome.outcome == "refused":
        return (f"not touched: {outcome.reason}", "warning")
    return (f"still runs: {outcome.reason}", "error")


def _stale(stale: Sequence[Stale]) -> Page:
    total = sum(each.bytes for each in stale)
    head = f"{_text.plural(len(stale), 'file or folder', 'files and folders')} of dead sessions"
    page = [line((head, "strong"), (f": {_text.size(total)}", "dim"))]
    rows = []
    for each in stale:
        least = "at least " if each.truncated else ""
        rows.append(
            (f"{least}{_text.size(each.bytes)}", f"{_text.duration(each.age_s)} old", each.path, each.result)
        )  # fmt: skip
    return [*page, *columns(rows, indent=2), ()]


def _verdict(places: Sequence[SweptMachine]) -> str:
    """`7 leftovers: 5 would be ended (--kill)`."""
    views = [place.view for place in places if place.view is not None]
    silent = sum(bool(place.problem) for place in places)
    unasked = f"{_text.plural(silent, 'node')} could not be searched" if silent else ""
    leftovers = [each for view in views for each in view.leftovers]
    stale = [each for view in views for each in view.stale]
    if not leftovers and not stale:
        is_here = len(places) == 1 and not places[0].node.id
        where = "on this machine" if is_here else f"on {_text.plural(len(views), 'machine')}"
        nothing = f"Nothing is left over {where}" if views else "Nothing was searched"
        return "; ".join(filter(None, (nothing, unasked))) + "."
    parts = [_text.plural(len(leftovers), "leftover")]
    outcomes = [o.outcome for view in views for o in view.outcomes.values()]
    if outcomes:
        counts = ((state, outcomes.count(state)) for state in ("gone", "running", "refused"))
        parts += [f"{count} {state}" for state, count in counts if count]
    else:
        count = sum(each.identity not in view.spared for view in views for each in view.leftovers)
        parts += [f"--kill would end {count}"] if count else []
    if stale and not any(each.removed for each in stale):
        size = _text.size(sum(each.bytes for each in stale))
        parts.append(f"--clean would remove {size}")
    return "; ".join(filter(None, (*parts, unasked))) + "."


def to_json(places: Sequence[SweptMachine]) -> str:
    """One JSON object. Keys are added, never renamed."""
    seen = [(place.node.id, place.view) for place in places if place.view is not None]
    return dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "leftovers": [
                {"node": node, **_row(each, view)} for node, view in seen for each in view.leftovers
            ],
            "stale_sessions": [
                {"node": node, **each._asdict()} for node, view in seen for each in view.stale
            ],
            "nodes": [_node(place) for place in places],
        }
    )


def to_metrics(places: Sequence[SweptMachine]) -> str:
    """The number of leftovers that still run, by kind, for Prometheus."""
    views = [place.view for place in places if place.view is not None]
    left = [each for view in views for each in view.leftovers if not _is_gone(each, view)]
    missing = sum(bool(p.problem or (p.view and p.view.unseen)) for p in places)
    return prometheus.text(
        [
            prometheus.counts(
                "leftover_processes", "Leftover processes.", "kind", (each.kind for each in left)
            ),
            prometheus.single(
                "leftover_memory_bytes",
                "Memory that their end frees.",
                sum(each.memory for each in left),
            ),
            prometheus.single(
                "stale_sessions",
                "Folders of dead sessions.",
                sum(len(view.stale) for view in views),
            ),
            *prometheus.evidence(missing, "could have hidden a leftover"),
            *prometheus.run(),
        ]
    )


def _is_gone(each: Leftover, view: SweepReport) -> bool:
    outcome = view.outcomes.get(each.identity)
    return outcome is not None and outcome.outcome == "gone"


def _node(place: SweptMachine) -> dict[str, object]:
    """A machine, and whether it was searched."""
    return {
        "node": place.node.id,
        "ip": place.node.ip,
        "problem": place.problem,
        "hint": place.hint,
        "same_as": place.same_as,
        "unseen": place.view.unseen if place.view else "",
        "notes": list(place.view.notes) if place.view else [],
    }


def _row(each: Leftover, view: SweepReport) -> dict[str, object]:
    outcome, spared = view.outcomes.get(each.identity), view.spared.get(each.identity)
    running = "gone" if each.kind == "defunct" else "running"
    return {
        "pid": each.pid,
        "started_at": each.identity.started_at,
        "identity": proc.identity(*each.identity, view.boot),
        "kind": each.kind,
        "inherited_only": each.is_inherited_only,
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
        "reason": outcome.reason if outcome else spared.reason if spared else "",
    }
