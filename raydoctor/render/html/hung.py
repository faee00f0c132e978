"""Hung work -> page for a browser: each group's wait graph, members, stacks and fixes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from raydoctor.cluster.samples import SampledFrame, SampledThread
from raydoctor.model import text as _text
from raydoctor.model.version import __version__
from raydoctor.render import hung as words
from raydoctor.render.html import flame, graph
from raydoctor.render.html.markup import Child, Markup, el, folded, join, table
from raydoctor.render.html.report import clauses, frame, gaps, remedies, section
from raydoctor.render.hung import HungView
from raydoctor.waits.hung import Hung, HungGroup
from raydoctor.waits.remedies import remedies as remedies_of

_GROUPS = 40
_MEMBERS = 300
"""Members that a table lists one by one; of more, those that do the same share a row."""
_STACKS = 12
_BRANCHES = 3
"""Different stacks of which a flame graph shows more than the stacks themselves."""


def render(view: HungView, of: str) -> str:
    """The whole page; `of`: what was inspected, as its head names it."""
    groups = view.found.groups
    title = words.headline(groups[0]) if groups else words.verdict(view)
    more = f"{_text.plural(len(groups) - 1, 'further group')} below." if groups[1:] else ""
    when = _text.moment(view.at, "%Y-%m-%d %H:%M:%S %Z")
    parts: list[Child] = [
        el("div", "verdict error" if groups else "verdict ok" if _is_clear(view) else "verdict warning",
           el("p", "", *head) if (head := list(_head(view, when))) else None,
           el("h1", "", *clauses(title)),
           remedies(tuple(remedies_of(groups[0])), 1) if groups else None,
           el("p", "dim", more) if more else None),
        section("groups", "Hung tasks", *(
            _group(group, number) for number, group in enumerate(groups[:_GROUPS], 1)
        )),
        section("more", "Further groups", _further(groups[_GROUPS:])),
        section("flame", "Flame graph of the hung work", _flame(groups)),
        section("early", "Waiting, not yet considered hung", _members(view.found.early)),
        section("open", "Waiting for a long time, not known to be hung", _members(words.open_waits(view))),
        section("busy", "Busy for a long time, not known to be hung", _members(view.found.working)),
        section("drivers", "Drivers, not known to be hung", _members(view.found.drivers)),
        section("gaps", "Not inspected", gaps(words.gaps(view))),
    ]  # fmt: skip
    looked = _text.plural(view.looked_at, "sampled process", "sampled processes")
    return frame(
        title, f"hung work of {of}", parts, f"raydoctor {__version__} inspected {of}: {looked}."
    )


def _head(view: HungView, when: str) -> Iterator[Child]:
    if view.found.groups:
        yield from (el("span", "badge error", "HUNG"), " ", words.verdict(view).rstrip("."), " · ")
    if when:
        yield el("time", "", when)


def _is_clear(view: HungView) -> bool:
    return view.found.is_conclusive and not words.gaps(view)


def _group(group: HungGroup, number: int) -> Markup:
    """A group; the result has the headline and the fixes of the first one."""
    name = f"g{number}"
    first = group.first
    return el(
        "article", {"id": name, "class": "error find", "aria-labelledby": f"{name}-title"},
        el("h3", {"id": f"{name}-title"}, words.headline(group) if number > 1 else first.work.label),
        el("p", "dim", f"{first.work.label} {first.reason}"),
        remedies(tuple(remedies_of(group))) if number > 1 else None,
        el("h4", "", "Wait graph"),
        el("div", {"class": "chart", "tabindex": 0, "role": "region", "aria-label": "Wait graph"},
           graph.draw(group, f"{name}-graph")),
        folded(f"Members as a table ({len(group.all):,})", _members(group.all)),
        *_stacks(group),
        *_evidence(group),
    )  # fmt: skip


def _members(members: Sequence[Hung]) -> Markup | None:
    if not members:
        return None
    one_by_one = len(members) <= _MEMBERS
    alike: dict[object, list[Hung]] = {}
    for each in members:
        key = each.work.id if one_by_one else (each.kind, each.work.name, each.summary)
        alike.setdefault(key, []).append(each)
    head = ("Kind", "Work", "Where", "For", "What it does", "Waits for")
    return table("Tasks, methods and drivers", head, map(_row, alike.values()))


def _row(same: Sequence[Hung]) -> Sequence[Child]:
    first, work = same[0], same[0].work
    ages = [each.work.age for each in same if each.work.age]
    ends = dict.fromkeys(_text.duration(age) for age in (min(ages), max(ages))) if ages else ()
    where = f"pid {work.pid}" if work.pid else work.state
    node = f", node {work.node[:8]}" if work.node else ""
    label = work.name if len(same) == 1 else f"{len(same):,} × {work.name}"
    waits = _text.join_names(f"{t.kind} {t.name}" for t in first.targets)
    place = f"{where}{node}" if len(same) == 1 else ""
    return first.kind, label, place, " to ".join(ends), first.summary, waits


def _stacks(group: HungGroup) -> Iterator[Markup]:
    """The stacks of the culprits, folded; equal ones once."""
    alike: dict[tuple[SampledFrame, ...], list[tuple[Hung, SampledThread]]] = {}
    for hung in group.all:
        thread = hung.verdict.thread if hung.verdict else None
        if thread is not None and thread.frames:
            alike.setdefault(thread.frames, []).append((hung, thread))
    if alike:
        yield el("h4", "", "Stacks")
    for frames, members in list(alike.items())[:_STACKS]:
        who = _text.join_names([hung.work.label for hung, _ in members])
        shown = join(
            (el("span", "own" if f.whose == "user" else "dim", f.place) for f in frames),
            between="\n",
        )
        yield folded(f"{who}, {members[0][1].name}", el("pre", "scroll", shown))
    if len(alike) > _STACKS:
        left = _text.plural(len(alike) - _STACKS, "further stack")
        yield el("p", "dim", f"{left}: see raydoctor hung --format json.")


def _evidence(group: HungGroup) -> Iterator[Markup]:
    said = list(dict.fromkeys(s for each in (group.cycle or group.culprits) for s in each.evidence))
    if said:
        items = el("ul", "", *(el("li", "find", sentence) for sentence in said[:_MEMBERS]))
        yield folded("Evidence", items)


def _flame(groups: Iterable[HungGroup]) -> Markup | None:
    stacks = list(_sampled(groups))
    drawn = flame.draw(stacks, "flame-title")
    if drawn is None or len(set(stacks)) < _BRANCHES:
        return None
    return el(
        "div",
        {"class": "chart", "tabindex": 0, "role": "region", "aria-label": "Flame graph"},
        drawn,
    )


def _sampled(groups: Iterable[HungGroup]) -> Iterator[tuple[SampledFrame, ...]]:
    """The stack of each hung thread in each sample of its process."""
    for hung in (each for group in groups for each in group.all):
        thread = hung.verdict.thread if hung.verdict else None
        for sample in hung.work.process.samples if thread and hung.work.process else ():
            yield from (
                t.frames for t in sample.threads if thread and t.tid == thread.tid and t.frames
            )


def _further(groups: Sequence[HungGroup]) -> Markup | None:
    return el("ul", "", *(el("li", "find", words.headline(g)) for g in groups)) if groups else None
