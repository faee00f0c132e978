"""Hung work, what waits for it, its stack, and its fixes -> page or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from raydoctor.cluster.samples import SampledFrame, SampledThread
from raydoctor.model import text as _text
from raydoctor.model.status import EnvironmentBuild
from raydoctor.model.values import Gap, Remedy
from raydoctor.model.version import __version__
from raydoctor.render import json as plain_json
from raydoctor.render import status
from raydoctor.render.machine import prometheus
from raydoctor.render.page import MAX_WIDTH, RISKS, Line, Page, columns, line, paragraph
from raydoctor.waits import remedies
from raydoctor.waits.candidates import SETTLED, UnfinishedTask
from raydoctor.waits.chains import chain
from raydoctor.waits.edges import target
from raydoctor.waits.hung import HELD, PREPARED, Hung, HungGroup, HungReport, OpenWait
from raydoctor.waits.rows import row, unseen

SCHEMA = "raydoctor/hung/1"
_ROWS = 12
_GROUPS = 10
_WORKING = 5
_FRAMES = 24


class HungView(NamedTuple):
    """The content of the page."""

    found: HungReport
    gaps: Sequence[Gap] = ()
    looked_at: int = 0
    """Number of sampled processes."""
    verbose: bool = False
    at: float | None = None
    """Epoch seconds of the collection; None if not recorded."""
    builds: tuple[EnvironmentBuild, ...] = ()
    """Runtime environments that are being set up, if a task waits for one."""


def render(view: HungView, width: int = MAX_WIDTH) -> Page:
    """Group by group: the culprit, what waits for it, its stack, and the fixes."""
    page: Page = []
    for group in view.found.groups[:_GROUPS]:
        page += [*_headline(group, width), *_table(group), *_stack(group, view.verbose)]
        if fixes := list(remedies.remedies(group)):
            page.append(line(("Fix", "dim"), indent=2))
        for number, remedy in enumerate(fixes, 1):
            page += _remedy(remedy, number, width)
        page.append(())
    if len(view.found.groups) > _GROUPS:
        page.append(
            line((f"… and {len(view.found.groups) - _GROUPS} more: see --format json", "dim"))
        )
    page += [
        *_builds(view),
        *_early(view),
        *_open(view),
        *_working(view),
        *_drivers(view),
        *_missing(view, width),
    ]
    return [*page, line((verdict(view), "strong"))]


def headline(group: HungGroup) -> str:
    """`36 tasks and the driver wait for loader (pid 812), which waits for 10.0.0.9:5432 …`.

    A summary has a verb in the singular, so it never follows `and 7 more`.
    """
    first = group.first
    if group.cycle:
        return _cycle(group)
    more = len(group.culprits) - 1
    if not group.behind:
        others = f", and {more} more like it" if more else ""
        return f"{_noun(first.work)} {first.summary}{others}"
    others, which = (f" and {more} more like it", "each of which") if more else ("", "which")
    return f"{_capital(_waiting(group))} for {first.work.label}{others}, {which} {first.summary}"


def _noun(work: UnfinishedTask) -> str:
    """`Task load (pid 812)`, `Driver of job 1 (pid 801)`."""
    return _capital(work.label) if work.kind == "driver" else f"{_NOUNS[work.kind]} {work.label}"


_NOUNS = {"task": "Task", "method": "Actor method", "creation": "Actor"}


def _capital(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"


def _cycle(group: HungGroup) -> str:
    """`Deadlock: A.ping() (pid 4) waits for B.pong() (pid 5), which waits for A.ping()`."""
    alone = len({h.work.actor or h.work.id for h in group.cycle}) == 1
    names = [h.work.label for h in group.cycle]
    labels = " → ".join([*names, group.first.work.label]) if alone else _text.join_names(names, 6)
    how = " waits for itself" if alone else " wait for each other"
    steps = "" if alone else chain(group.cycle)
    labels, how = (steps, "") if steps else (labels, how)
    guess = (
        ""
        if group.exact
        else " (inferred from pending calls and references, not read from call stacks)"
    )
    others = len(_beside(group))
    more = f", with {_text.plural(others, 'more task')} in the same deadlock" if others else ""
    behind = f"; {_waiting(group)} for {'it' if alone else 'them'}" if group.behind else ""
    return f"Deadlock: {labels}{how}{more}{guess}{behind}"


def _beside(group: HungGroup) -> list[Hung]:
    """The members of a deadlock that its shortest cycle does not have."""
    shown = {h.work.id for h in group.cycle}
    return [h for h in group.culprits if group.cycle and h.work.id not in shown]


def _waiting(group: HungGroup) -> str:
    """`36 tasks and the driver wait`."""
    drivers = sum(h.work.kind == "driver" for h in group.behind)
    tasks = len(group.behind) - drivers
    parts = [_text.plural(tasks, "task")] if tasks else []
    parts += ["the driver" if drivers == 1 else f"{drivers} drivers"] if drivers else []
    return f"{' and '.join(parts)} wait{'s' if len(group.behind) == 1 else ''}"


def verdict(view: HungView) -> str:
    """`38 of 412 unfinished tasks are hung.`."""
    found = view.found
    members = [h.work for group in found.groups for h in group.all]
    hung = sum(work.kind != "driver" for work in members)
    count = _text.plural(found.unfinished, "unfinished task")
    if members and not hung:
        are = "is" if len(members) == 1 else "are"
        return f"{_text.plural(len(members), 'driver')} {are} hung; {count}."
    if members:
        return f"{hung:,} of {count} {'is' if hung == 1 else 'are'} hung."
    return _without_hang(found, count, bool(gaps(view)))


def _without_hang(found: HungReport, count: str, has_gaps: bool) -> str:
    """The state without a hang. A wait without a known end is no all-clear."""
    if found.early or found.young:
        return f"Inconclusive: {count}{_not_yet(found)}{_again(found)}"
    if not found.is_conclusive:
        waits = _text.plural(sum(not each.is_known for each in found.open), "long wait")
        return f"No hung task found, but it is not known whether {waits} will end: {count}."
    if has_gaps:
        return f"No hung task found in what could be inspected: {count}."
    tasks = sum(each.hung.work.kind != "driver" for each in found.open)
    if not found.unfinished:
        drivers = len(found.open) - tasks
        does = "waits" if drivers == 1 else "wait"
        outside = f"; {_text.plural(drivers, 'driver')} {does} outside Ray" if drivers else ""
        return f"No task runs or waits{outside}."
    waiting = f", {tasks:,} of them waiting for work in progress" if tasks else ""
    if found.is_young:
        return f"No task is hung yet: {count}, younger than {_text.duration(SETTLED)}."
    return f"No task is hung: {count}{waiting or ', all busy or in a moving queue'}."


def _not_yet(found: HungReport) -> str:
    """The oldest wait that may become a hang, or what is too young to be judged."""
    if not found.early:
        return f". {_capital(found.young[0].summary)}."
    oldest = max(found.early, key=_since)
    stuck = f"none has been stuck for {_text.duration(found.min_age)} (--min-age)"
    rested = oldest.waiting.rested if oldest.waiting and oldest.kind in PREPARED else None
    moves = "" if rested is None else f"; what it waits for ran {_text.duration(rested)} ago"
    wait = f"{oldest.summary}{moves}"
    if lasted := _since(oldest):
        wait = f"The oldest wait has lasted {_text.duration(lasted)}: {oldest.work.label} {wait}"
    else:
        wait = f"{_noun(oldest.work)} {wait}"
    return f", and {stuck}. {wait}."


def _again(found: HungReport) -> str:
    """When to look again at what is too young to be judged."""
    if not found.young:
        return ""
    return f" Repeat raydoctor hung in {math.ceil(max(y.judged_in for y in found.young))} s."


def _since(hung: Hung) -> float:
    """Seconds that it has waited: since its thread last ran, where that is known and it is not paused."""
    rested = hung.verdict.rested if hung.verdict else None
    if hung.waiting is None and rested is not None and hung.kind not in HELD:
        return rested
    return 0.0 if hung.work.kind == "driver" else hung.work.age


def _headline(group: HungGroup, width: int) -> Page:
    page = paragraph(headline(group), width, hang=2, style="error")
    first = group.first
    reason = f"{_noun(first.work)} {first.reason}"
    return [*page, *paragraph(reason, width, indent=2, style="dim")]


def _table(group: HungGroup) -> Page:
    """The culprits, or the cycle, one by one; the others grouped by what they do."""
    shown = group.cycle or group.culprits
    rows = [_row(each) for each in shown[:_ROWS]]
    hidden = [*shown[_ROWS:], *_beside(group), *group.behind]
    rows += _counted(hidden, max(3, _ROWS - len(rows)))
    return columns(rows, indent=2) if len(rows) > 1 else _row_alone(group.first)


def _row(hung: Hung) -> list[str | tuple[str, str]]:
    work = hung.work
    where = f"pid {work.pid}" if work.pid else work.state
    return [
        (hung.kind, "warning"), (work.name, "strong"), _short(work), where,
        _text.duration(work.age) if work.age else "", hung.summary,
    ]  # fmt: skip


def _short(work: UnfinishedTask) -> str:
    """The start of its id; that of all creations of actors is the same."""
    return {"driver": "", "creation": work.actor[:16]}.get(work.kind, work.id[:16])


def _row_alone(hung: Hung) -> Page:
    work = hung.work
    parts = [hung.kind, f"pid {work.pid}" if work.pid else work.state]
    parts += [f"node {work.node[:8]}"] if work.node else []
    parts += [f"task {work.id}"] if work.kind != "driver" else []
    return [line((" · ".join(parts), "path"), indent=2)]


def _counted(members: Sequence[Hung], most: int) -> list[list[str | tuple[str, str]]]:
    alike: dict[tuple[str, str, str], list[Hung]] = {}
    for each in members:
        alike.setdefault((each.kind, each.work.name, each.summary), []).append(each)
    rows = []
    for (kind, name, summary), same in sorted(alike.items(), key=lambda i: -len(i[1]))[:most]:
        if len(same) == 1:
            rows.append(_row(same[0]))
            continue
        ages = [h.work.age for h in same]
        ends = (_text.duration(min(ages)), _text.duration(max(ages)))
        age = " to ".join(dict.fromkeys(ends))
        rows.append([(kind, "warning"), (f"{len(same)} × {name}", "strong"), "", "", age, summary])
    left = len(alike) - most
    if left > 0:
        rows.append([("…", "dim"), f"{left} more kinds"])
    return rows


def _stack(group: HungGroup, verbose: bool) -> Page:
    """The call stacks of the culprits, with the user's own frames highlighted."""
    page: Page = []
    for hung in (group.cycle or group.culprits)[: 3 if group.cycle else 1]:
        thread = hung.verdict.thread if hung.verdict else None
        if thread is None or not thread.frames:
            continue
        page.append(line((f"Stack of {hung.work.label}, {thread.name}:", "dim"), indent=2))
        page += _frames(thread, verbose)
    return page


def _frames(thread: SampledThread, verbose: bool) -> Page:
    """Innermost first; of Ray's own frames above and below the user's only the first is shown."""
    frames, page = thread.frames, list[Line]()
    own = [n for n, f in enumerate(frames) if f.whose in ("user", "")]
    first, last = (own[0], own[-1]) if own else (0, len(frames) - 1)
    for number, frame in enumerate(frames[:_FRAMES] if not verbose else frames):
        is_hidden = number > last or (frame.whose == "ray" and 0 < number < first)
        if verbose or not is_hidden:
            page.append(line((frame.place, _style(frame)), indent=4))
    left = len(frames) - len(page)
    return [*page, *([line((f"… {left} more frames: see -v", "dim"), indent=4)] if left else [])]


def _style(frame: SampledFrame) -> str:
    return "strong" if frame.whose == "user" else "dim"


def _remedy(remedy: Remedy, number: int, width: int) -> Page:
    lead = f"{number}. "
    risk = f" [{RISKS[remedy.risk]}]" if remedy.risk in RISKS else ""
    page = paragraph(f"{lead}{remedy.title}{risk}", width, indent=2, hang=len(lead))
    return [*page, *(line((step, "code"), indent=4 + len(lead)) for step in remedy.steps)]


def _builds(view: HungView) -> Page:
    """The runtime environments that are being set up, with their last errors."""
    page = [each for build in view.builds for each in status.build_lines(build)]
    return [*page, ()] if page else []


def _early(view: HungView) -> Page:
    """Waits that are too young for a hang: a node may still join, a peer still reply."""
    if not view.found.early:
        return []
    head = line(("Waiting, not yet considered hung:", "warning"))
    return [head, *columns(_counted(view.found.early, _WORKING), indent=2), ()]


def _open(view: HungView) -> Page:
    """Long waits that something may still end, or of which that is not known."""
    shown = open_waits(view)
    if not shown:
        return []
    head = line(("Waiting for a long time, not known to be hung:", "warning"))
    return [head, *columns(_counted(shown, _ROWS), indent=2), ()]


def open_waits(view: HungView) -> list[Hung]:
    """Long waits, with what may end each of them as a part of its summary."""
    return [each.hung._replace(summary=_with_end(each)) for each in view.found.open]


def _with_end(wait: OpenWait) -> str:
    """`waits on a socket to 10.0.0.9:5432 in main (etl.py:9); its peer may end that`."""
    ends = f"{wait.ends} may end that" if wait.ends else "what may end that is not known"
    return f"{wait.hung.summary}; {ends}"


def _working(view: HungView) -> Page:
    """Busy work that has run for long. Without peers, an endless loop looks like work."""
    busy = view.found.working
    if not busy:
        return []
    head = line(("Busy for a long time, not known to be hung:", "dim"))
    return [head, *columns(_counted(busy, _WORKING), indent=2), ()]


def _drivers(view: HungView) -> Page:
    """What the drivers do of which nothing else is known."""
    if not view.found.drivers:
        return []
    head = line(("Drivers, not known to be hung:", "dim"))
    return [head, *columns(_counted(view.found.drivers, _WORKING), indent=2), ()]


def _missing(view: HungView, width: int) -> Page:
    """What could not be inspected, and how to make it readable."""
    page: Page = []
    for gap in gaps(view):
        text = f"Not inspected: {gap.what}: {gap.why}"
        page += paragraph(text, width, hang=2, style="warning")
        page += paragraph(gap.hint, width, indent=2) if gap.hint else []
    return page


def gaps(view: HungView) -> list[Gap]:
    """What raydoctor could not inspect, with the tasks that ran for long and were not sampled."""
    return [*view.gaps, *unseen(view.found)]


# ------------------------------------------------------------------ JSON


def to_json(view: HungView) -> str:
    """One JSON object. Keys are added, never renamed."""
    found = view.found
    return plain_json.dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "hung": [row(h, number) for number, g in enumerate(found.groups) for h in g.all],
            "cycles": [
                [target(h.work)._asdict() for h in g.cycle] for g in found.groups if g.cycle
            ],
            "groups": [_group(g) for g in found.groups],
            "working": [row(each, None) for each in found.working],
            "early": [row(each, None) for each in found.early],
            "drivers": [row(each, None) for each in found.drivers],
            "young": [
                {"summary": each.summary, "judged_in_s": each.judged_in} for each in found.young
            ],
            "open": [{**row(each.hung, None), "may_end": each.ends or None} for each in found.open],
            "unfinished": found.unfinished,
            "looked_at": view.looked_at,
            "gaps": [plain_json.gap(gap) for gap in gaps(view)],
        }
    )


def to_metrics(view: HungView) -> str:
    """The number of hung tasks by kind of wait, for Prometheus."""
    hung = [each for group in view.found.groups for each in group.all]
    missing = sum(not gap.optional for gap in gaps(view)) + (not view.found.is_conclusive)
    return prometheus.text(
        [
            prometheus.counts(
                "hung_tasks", "Hung tasks, methods and drivers.", "kind", (h.kind for h in hung)
            ),
            prometheus.single("unfinished_tasks", "Unfinished tasks.", view.found.unfinished),
            *prometheus.evidence(missing, "could have hidden a hung task"),
            *prometheus.run(),
        ]
    )


def _group(group: HungGroup) -> dict[str, Any]:
    return {
        "headline": headline(group),
        "culprits": [h.work.id for h in group.culprits],
        "waiting": [h.work.id for h in group.behind],
        "exact": group.exact,
        "remedies": [plain_json.remedy(r) for r in remedies.remedies(group)],
    }
