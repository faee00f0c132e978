"""Report -> page for a browser: the cause, its consequences, the timeline, the curves, then the evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from raydoctor.model import paste
from raydoctor.model import text as _text
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Diagnosis, Event, Gap, Link, Remedy, Report
from raydoctor.render import markdown, status
from raydoctor.render.html import curves, timeline
from raydoctor.render.html.document import document
from raydoctor.render.html.markup import Child, Markup, breakable, el, folded, join, table
from raydoctor.render.page import MAX_WIDTH, plain
from raydoctor.render.report import (
    gaps_title,
    is_same_event,
    listed_gaps,
    telling,
    verdict,
    zone_of,
)

_FULL = 40
"""Incidents with their evidence; further ones take one row of a table each."""
_ALIKE = 3
"""Consequences of one rule that are listed one by one; more share a branch."""
_SHOWN = 1
"""Fixes in the result, above the fold; further ones are folded."""
_RECORD_LINES, _RECORD_WIDTH = 60, 500
_FAR = 30
"""Letters by which a comment moves to be below others."""
_LONG_WORD = 40
"""Letters of a word within which an excerpt may be cut."""
_OTHERS = "clusters"
"""What gaps about other clusters on the machine are about; the result has them."""
_LONG_HEADLINE, _LEAST_CLAUSE = 90, 24
"""Letters from which a headline has a heavier first clause, and the least of that clause."""
_BOUNDARY = pattern(r"(?<=[:;]) |(?<=,) (?=(?:and|but|so|because|after|with|although) )")
_APOSTROPHE = pattern(r"(?<=\w)'(?=\w)")
_ROOM = 800_000
"""Characters of records and consequences on a page; those beyond have their headlines and places only."""


@dataclass(slots=True)
class _Page:
    """The report, and what its page may still hold."""

    report: Report
    by_id: dict[str, Diagnosis]
    of_rule: Counter[str]
    """Diagnoses of each rule."""
    room: int = _ROOM
    shortened: int = 0
    """Records and consequences without their text, because the page is full."""
    seen: set[str] = field(default_factory=set)
    first: str = ""
    """The diagnosis of the result, whose headline is the page's."""
    records: set[tuple[str, int]] = field(default_factory=set)
    """Places of the records that the page has already."""


def render(report: Report) -> str:
    """The whole report; its engine must have run with `detailed`, or it has no timeline."""
    roots = report.roots or report.diagnoses
    by_id = {d.id: d for d in report.diagnoses}
    page = _Page(report, by_id, Counter(d.rule for d in report.diagnoses))
    page.seen.update(root.id for root in roots)
    page.first = roots[0].id if roots else ""
    findings = [_incident(page, root, n, len(roots)) for n, root in enumerate(roots[:_FULL], 1)]
    is_one = len(roots) == 1
    unlisted = [gap for gap in listed_gaps(report) if gap.about != _OTHERS]
    unlisted.sort(key=lambda gap: gap.optional)  # what the result needs is first
    charts = list(_charts(report))
    listed = gaps(unlisted)
    if listed and all(gap.optional for gap in unlisted):
        listed = folded("What was not collected, and why", listed)
    missing = section("gaps", gaps_title(unlisted), listed)
    is_verdict = not report.roots and not report.complete
    evidence = [
        section(
            "findings", "Evidence" if is_one else "Evidence and fixes", *_shortened(page), *findings
        ),
        section("also", "Also found", _brief(roots[_FULL:])),
    ]
    parts = [
        _verdict(report, roots),
        section(
            "causes", _below_title(page, roots[0]) if is_one else "Incidents", _tree(page, roots)
        ),
        missing if is_verdict else None,
        *([*charts, *evidence] if timeline.has_signs(report.timeline) else [*evidence, *charts]),
        section("unexplained", "Errors that no rule matches", _symptoms(report)),
        None if is_verdict else missing,
    ]
    if report.status is not None:
        shown = plain(status.section(report.status, MAX_WIDTH)).rstrip()
        parts.append(section("state", "State of the cluster", el("pre", "scroll", shown)))
    return frame(_title(report, roots), _of(report), parts, _read(report))


def frame(title: str, of: str, parts: Iterable[Child], read: str) -> str:
    """A page with the search field, the landmarks and the foot that every page has."""
    parts = [part for part in parts if part is not None]
    return document(
        f"{title} – raydoctor",
        timeline.symbols(),
        el("a", {"class": "skip", "href": "#main"}, "Skip to the result"),
        el("header", "", el("b", "", "raydoctor"), el("span", "dim", of), _search()),
        el("main", {"id": "main"}, *parts),
        el(
            "footer",
            "",
            _meanings("".join(map(str, parts))),
            el("p", "", read) if read else None,
            el("p", "", _CARE),
        ),
    )


_MEANINGS = {
    "critical": "The whole cluster or job is down, or cannot start.",
    "error": "Work failed, or a part of a machine cannot be used. The rest of the cluster runs on.",
    "warning": "Work is slow or at risk, or was repeated.",
    "info": "Nothing failed.",
    "disruptive": "The fix interrupts work that is running.",
    "destructive": "The fix deletes or kills something.",
}


def _meanings(shown: str) -> Markup | None:
    """The meaning of each severity and risk that the page names."""
    lower = shown.lower()
    named = {word: said for word, said in _MEANINGS.items() if f">{word}</" in lower}
    items = (el("li", "", _badge(word, word), " ", said) for word, said in named.items())
    return folded("Severities and risks on this page", el("ul", "plain", *items)) if named else None


_CARE = (
    "Values that look secret are replaced. The redaction is a safety net, not a proof: read this page "
    "before you publish it."
)


def _search() -> Markup:
    return el(
        "div", {"role": "search", "id": "search", "hidden": True},
        el("label", {"for": "q"}, "Search"),
        el("input", {"id": "q", "type": "search", "placeholder": "words, ids, files", "autocomplete": "off"}),
        el("output", {"id": "hits", "for": "q"}),
    )  # fmt: skip


def section(name: str, title: str, *content: Child) -> Markup | None:
    """A landmark with a heading; None where it is empty."""
    if not any(content):
        return None
    heading = el("h2", {"id": name}, title)
    return el("section", {"aria-labelledby": name}, heading, *content)


# ---------------------------------------------------------------- the result


def _title(report: Report, roots: Sequence[Diagnosis]) -> str:
    return roots[0].headline if roots else verdict(report)[0].capitalize()


def _verdict(report: Report, roots: Sequence[Diagnosis]) -> Markup:
    """What happened in one sentence, and its fixes."""
    if not roots:
        state, style, sentence = verdict(report)
        words = el("p", "", _badge(style, state))
        said = sentence.replace("errors above", "errors below")
        return el("div", f"verdict {style}", words, el("h1", "", said), *_others(report))
    root = roots[0]
    more = len(roots) - 1
    others = f"{_text.plural(more, 'further incident')} below." if more else ""
    return el(
        "div", f"verdict {root.severity}",
        _headed(root, after=_zone_or_end(report, root)),
        el("p", "own", "No failure found.") if root.severity == "info" else None,
        el("h1", "", *clauses(root.headline)),
        _effect(root),
        remedies(root.remedies, _SHOWN),
        el("p", "", el("a", {"href": "#causes"}, others)) if others else None,
        *_others(report),
    )  # fmt: skip


def clauses(headline: str) -> Iterator[Child]:
    """The parts of a headline; of a long one, all that follows the first clause is lighter."""
    found = _BOUNDARY.finditer(headline) if len(headline) > _LONG_HEADLINE else ()
    ends = (each.start() for each in found if each.start() >= _LEAST_CLAUSE)
    end = next((at for at in ends if _is_complete(headline[:at])), len(headline))
    yield breakable(headline[:end])
    yield el("span", "more", breakable(headline[end:])) if headline[end:] else None


def _is_complete(clause: str) -> bool:
    """Whether each parenthesis and quotation mark in it is closed."""
    quotes = clause.count("'") - len(_APOSTROPHE.findall(clause))
    return quotes % 2 == 0 and all(
        clause.count(a) == clause.count(b) for a, b in ("()", "[]", "{}")
    )


def _effect(root: Diagnosis) -> Markup | None:
    """What the incident did to the program: lighter for a warning, and where the program still runs."""
    if not root.effect:
        return None
    is_live = any(link.event.kind.startswith("live.") for link in root.chain)
    is_grave = root.ended_driver or root.severity == "critical"
    is_grave = is_grave or (root.severity == "error" and not is_live)
    label = el("b", "", "Effect:") if is_grave else "Effect:"
    return el("p", "" if is_grave else "dim", label, " ", breakable(f"{root.effect}."))


def _others(report: Report) -> Iterator[Markup]:
    """Other clusters on the machine: who looks at the wrong one needs nothing else."""
    for gap in report.gaps:
        if gap.about == _OTHERS:
            what = f"{gap.what[:1].upper()}{gap.what[1:]} {gap.why}."
            yield el("div", "", el("p", "dim", what), *_hint(gap))


def _of(report: Report) -> str:
    """The capture's name, its driver if there is only one, and the time that its logs cover."""
    info = report.capture
    lanes = report.timeline.lanes if report.timeline else ()
    drivers = [lane.name for lane in lanes if lane.is_driver]
    begin, end = (_text.moment(at, "%Y-%m-%d %H:%M") for at in (info.begin, info.end))
    end = end[11:] if end[:11] == begin[:11] else end
    span = " to ".join(dict.fromkeys(filter(None, (begin, "" if begin.endswith(end) else end))))
    parts = (
        f"report on {markdown.name_of(info.path)}",
        *(drivers if len(drivers) == 1 else ()),
        span,
    )
    return ", ".join(filter(None, parts))


def _headed(root: Diagnosis, count: str = "", after: str = "") -> Markup:
    badge, when = _badge(root.severity, root.severity.upper()), _when(root.first_at, True)
    when = join(["seen ", when]) if when and root.is_snapshot else when
    noticed = f"noticed {_text.moment(root.noticed_at, '%H:%M:%S')}" if root.noticed_at else ""
    said = [el("span", "dim", each) for each in (noticed, count, after) if each]
    rest = filter(None, (_rule(root), when, *said))
    return el("p", "", badge, " ", join(rest, " · "))


def _zone_or_end(report: Report, root: Diagnosis) -> str:
    """The zone of the incident's time, or what is known instead of its time."""
    info = report.capture
    if root.first_at is not None:
        return _zone(report)
    zone = f" {_zone(report)}" if info.has_zone else ""
    return (
        "" if info.end is None else f"time not recorded, logs until {_text.moment(info.end)}{zone}"
    )


def _zone(report: Report) -> str:
    return zone_of(report.capture).strip("()")


def _badge(style: str, word: str) -> Markup:
    return el("span", f"badge {style}", word)


def _rule(diagnosis: Diagnosis) -> Markup:
    times = (
        f", {diagnosis.count:,} occurrences"
        if diagnosis.count > 1 and diagnosis.severity != "info"
        else ""
    )
    return join([el("code", "", diagnosis.rule), times])


def _when(at: float | None, with_date: bool = False) -> Markup | None:
    shown = _text.moment(at, "%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S")
    return el("time", "", shown) if shown else None


def _tree(page: _Page, roots: Sequence[Diagnosis]) -> Markup | None:
    """What follows from what; of a single incident, which the verdict already names, what is below it."""
    seen = {root.id for root in roots}
    if len(roots) > 1:
        return el("ol", "tree", *(_branch(page, root, seen) for root in roots[:_FULL]))
    items = _below_in_tree(page, roots[0], seen) if roots else []
    return el("ul", "tree", *items) if items else None


def _below_title(page: _Page, parent: Diagnosis) -> str:
    """What the diagnoses below one are: other sides of the same event, consequences, or both."""
    below = [page.by_id[each] for each in parent.consequences if each in page.by_id]
    are_parts = {is_same_event(parent, each) for each in below}
    if are_parts == {True}:
        return "Part of this incident"
    return "Parts and consequences" if True in are_parts else "Consequences"


def _as_part(parent: Diagnosis | None, diagnosis: Diagnosis) -> Markup | None:
    is_part = parent is not None and is_same_event(parent, diagnosis)
    return el("b", "dim", "part of it: ") if is_part else None


def _branch(
    page: _Page, diagnosis: Diagnosis, seen: set[str], parent: Diagnosis | None = None
) -> Markup:
    head = el(
        "a", {"href": f"#{diagnosis.id}"},
        _badge(diagnosis.severity, diagnosis.severity), " ", el("code", "", diagnosis.rule),
    )  # fmt: skip
    is_first = parent is None and diagnosis.id == page.first
    words = "the incident above" if is_first else _text.short_ids(diagnosis.headline)
    said = el("span", "dim" if is_first else "", _as_part(parent, diagnosis), breakable(words))
    items = _below_in_tree(page, diagnosis, seen)
    below = el("ul", "", *items) if items else None
    return el("li", "find", head, " ", _when(diagnosis.first_at), " ", said, below)


def _below_in_tree(page: _Page, parent: Diagnosis, seen: set[str]) -> list[Markup]:
    below = _below(page, parent, seen)
    return [item for same in _by_rule(below) for item in _branches(page, parent, same, seen)]


def _below(page: _Page, parent: Diagnosis, seen: set[str]) -> list[Diagnosis]:
    """The consequences that the page does not have yet, in the order of time."""
    found = [i for i in dict.fromkeys(parent.consequences) if i in page.by_id and i not in seen]
    seen.update(found)

    def order(each: Diagnosis) -> tuple[float, bool]:
        at = float("inf") if each.first_at is None else each.first_at
        return at, not is_same_event(parent, each)

    return sorted((page.by_id[i] for i in found), key=order)


def _branches(
    page: _Page, parent: Diagnosis, same: Sequence[Diagnosis], seen: set[str]
) -> Iterator[Markup]:
    """Branches of one rule: each its own item, or all in one that can be unfolded."""
    items = [_branch(page, each, seen, parent) for each in same]
    if len(items) <= _ALIKE:
        yield from items
        return
    summary = join([f"{len(items):,} × ", el("code", "", same[0].rule)])
    yield el("li", "", folded(summary, el("ul", "", *items)))


def _by_rule(diagnoses: Iterable[Diagnosis]) -> Iterator[list[Diagnosis]]:
    alike: dict[str, list[Diagnosis]] = {}
    for each in diagnoses:
        alike.setdefault(each.rule, []).append(each)
    return iter(alike.values())


def _charts(report: Report) -> Iterator[Markup | None]:
    if report.timeline is None or not (report.timeline.marks or report.timeline.readings):
        return
    read_at, until = curves.moments(report.timeline), report.capture.end
    chart, scale = timeline.section(report.timeline, _untimed(report), read_at, until)
    yield section("timeline", "Timeline", chart)
    yield section("usage", "Memory and disks", curves.section(report.timeline, scale))


def _untimed(report: Report) -> str:
    """The incidents that the chart does not show, because none of their records has a time."""
    marks = report.timeline.marks if report.timeline else ()
    marked = {diagnosis for mark in marks for diagnosis in mark.diagnoses}
    left = [f"{n}" for n, root in enumerate(report.roots, 1) if root.id not in marked]
    if not left:
        return ""
    if len(report.roots) == 1:
        return "The incident is not in the chart: its records have no time."
    noun = "incident" if len(left) == 1 else "incidents"
    names = _text.join_names(left, _ALIKE)
    return f"Not in the chart, because the records have no time: {noun} {names} below."


# ---------------------------------------------------------------- incidents


def _incident(page: _Page, root: Diagnosis, number: int, total: int) -> Markup:
    """An incident; the result has the headline and the fixes of the first one."""
    count = f"incident {number} of {total}" if total > 1 else ""
    above = el("p", "", el("a", {"href": "#main"}, "What to do: see the top of this page"))
    title = el(
        "h3", {"id": f"{root.id}-title"}, breakable(root.headline) if total > 1 else _rule(root)
    )
    return el(
        "article", {"id": root.id, "class": f"find {root.severity}", "aria-labelledby": f"{root.id}-title"},
        _headed(root, count) if total > 1 else None,
        title,
        _effect(root) if number > 1 else None,
        remedies(root.remedies) if number > 1 else None,
        above if number == 1 < total and root.remedies else None,
        None if total == 1 else el("h4", "", "Evidence"),
        _chain(page, root),
        *_missing(root),
        *_consequences(page, root),
        el("p", "dim", "More: ", el("code", "", f"raydoctor explain {root.rule}")),
    )  # fmt: skip


def remedies(those: Sequence[Remedy], shown: int = 0) -> Markup | None:
    """Fixes; those after the first `shown`, if any, are folded: so they are in the result.

    The page's script adds a button to each block of lines to paste.
    """
    if not those:
        return None
    first = el("ol", "", *map(_remedy, those[: shown or None]))
    rest = [_remedy(each) for each in those[shown:]] if shown else []
    more = folded(
        f"{_text.plural(len(rest), 'more step', 'more steps')}",
        el("ol", {"start": shown + 1}, *rest),
    )
    heading = el("h2" if shown else "h4", "", "What to do")
    return el("div", "remedies", heading, first, more if rest else None)


def _remedy(remedy: Remedy) -> Markup:
    risk = None if remedy.risk == "safe" else el("span", "badge", remedy.risk)
    blocks = list(paste.blocks(remedy.steps))
    steps = (_code(block) if paste.is_code(block[0]) else el("p", "", *block) for block in blocks)
    words = [
        part
        for step in remedy.steps
        if paste.is_code(step)
        for kind, part in paste.parts(step)
        if kind == "fill-in" and part[0].isalpha()
    ]
    note = (
        el("p", "dim", "Replace ", *_named(list(dict.fromkeys(words))), " first.")
        if words
        else None
    )
    link = None
    if remedy.doc.startswith("https://"):
        link = el("p", "", el("a", {"href": remedy.doc, "rel": "noreferrer noopener"}, remedy.doc))
    title, reason = _split(remedy.title)
    said = join([el("b", "", breakable(title)), breakable(reason)])
    return el("li", "", said, " ", risk, *steps, note, link)


def _split(title: str) -> tuple[str, str]:
    """The advice of a title, and behind its first colon the reason, with the numbers."""
    advice, colon, reason = title.partition(": ")
    return (advice, f"{colon}{reason}") if colon and _is_complete(advice) else (title, "")


def _named(words: Sequence[str]) -> Iterator[Child]:
    """`A`, `A and B`, `A, B and C`."""
    for n, word in enumerate(words):
        if n:
            yield " and " if n == len(words) - 1 else ", "
        yield el("var", "", word)


def _code(block: Sequence[str]) -> Markup:
    """Lines to paste, with the words that the reader replaces first marked; or advice."""
    if all(step.startswith("# ") for step in block):
        return el("p", "", _advice([step.removeprefix("# ").strip() for step in block]))
    lines = [row for step in block for row in paste.rows(step)]
    wide = max((_width(parts) for parts in lines if parts[-1][1]), default=0)
    ends = ["\n"] * (len(lines) - 1) + [""]
    rows = (_row(parts, wide, end) for parts, end in zip(lines, ends, strict=True))
    return el("pre", "code", *rows)


def _row(parts: Sequence[tuple[paste.Part, str]], wide: int, end: str) -> Markup:
    """A line to paste; a narrow screen shows a comment above the code that it is beside."""
    shown = list(_line(parts, wide))
    if parts[-1] == ("comment", "") or parts[-1][0] != "comment" or not _width(parts):
        return join([*shown, end])
    return el("span", "row", el("span", "", *shown[:-1]), shown[-1], end)


def _line(parts: Sequence[tuple[paste.Part, str]], wide: int) -> Iterator[Child]:
    """A line whose comment begins below those of other lines, if that is not far away."""
    own = _width(parts)
    gap = " " * (wide - own + 3 if wide - own < _FAR else 3)
    for kind, part in parts:
        is_beside = kind == "comment" and own and part
        yield _PARTS[kind](gap + part.lstrip() if is_beside else part) if part else None


def _width(parts: Sequence[tuple[paste.Part, str]]) -> int:
    """Letters before the comment."""
    return sum(len(part) for kind, part in parts if kind != "comment")


def _advice(lines: Sequence[str]) -> str:
    """Comments that stand alone, as sentences: a line that begins in lower case continues the one before."""
    said = lines[0]
    for line in lines[1:]:
        said += f" {line}" if line[:1].islower() or said[-1:] in ".:;," else f". {line}"
    is_word = said.split(" ", 1)[0].isalpha()
    return f"{said[:1].upper()}{said[1:]}" if is_word else said


_PARTS: Mapping[paste.Part, Callable[[str], Child]] = {
    "code": lambda part: part,
    "fill-in": lambda part: el("var", "", part),
    "comment": lambda part: el("span", "dim", part),
}


def _chain(page: _Page, diagnosis: Diagnosis) -> Markup:
    return el("ol", "chain", *(_link(page, link) for link in diagnosis.chain))


def _link(page: _Page, link: Link) -> Markup:
    event = link.event
    times = f" ({event.count:,} records)" if event.count > 1 else ""
    head = el(
        "p", "",
        _path(event), " ", _when(event.at), " ",
        el("span", "", breakable(_text.short_ids(_text.one_line(link.shows)) + times)),
    )  # fmt: skip
    code = el("pre", "line", link.code) if link.code else None
    return el("li", "find", head, code, _record(page, link))


def _path(event: Event) -> Markup:
    """The place of a record; a narrow screen shows only the first digits of its ids."""
    parts: list[Child] = []
    for shown, rest in _text.id_parts(f"{event.source.path}:{event.line}"):
        parts += [shown, el("span", "rest", rest) if rest else None]
    return el("code", "path", *parts)


def _record(page: _Page, link: Link) -> Markup | None:
    """The record, folded, between its neighbours."""
    event, around = link.event, link.around
    if (place := (event.source.path, event.line)) in page.records:
        return el("p", "dim", "The record is above.")
    shown = _trimmed(event.text)
    before, after = (around.before, around.after) if around else ("", "")
    size = len(shown) + len(before) + len(after)
    if page.room < size:
        page.shortened += 1
        return None
    page.room -= size
    page.records.add(place)
    block = el(
        "pre", "scroll",
        el("span", "dim", f"{_text.uncoloured(before)}\n") if before else None,
        el("mark", "", shown),
        el("span", "dim", f"\n{_text.uncoloured(after)}") if after else None,
    )  # fmt: skip
    quoted = _text.short_ids(_text.one_line(_text.uncoloured(telling(event, link.shows))))
    summary = el("code", "", _excerpt(quoted, 200) or "record")
    return folded(summary, block, _also(event), name="record")


def _excerpt(line: str, most: int) -> str:
    """A line cut after a word."""
    shown = _text.cut(line, most)
    head, _, rest = shown.removesuffix(_text.ELLIPSIS).rpartition(" ")
    return (
        shown if shown == line or not head or len(rest) > _LONG_WORD else f"{head} {_text.ELLIPSIS}"
    )


def _also(event: Event) -> Markup | None:
    places = [f"{each.source.path}:{each.line}" for each in event.sightings]
    return el("p", "dim", f"Also in {_text.join_names(places, 6)}") if places else None


def _trimmed(record: str) -> str:
    lines = _text.uncoloured(record).rstrip().split("\n")
    rows = [_text.cut(_text.printable(row), _RECORD_WIDTH) for row in lines]
    if len(rows) > _RECORD_LINES:
        left = len(rows) - _RECORD_LINES
        rows[20 : 20 + left] = [f"… {_text.plural(left, 'line')} left out …"]
    return "\n".join(rows)


def _missing(diagnosis: Diagnosis) -> Iterator[Child]:
    if diagnosis.gaps:
        yield el("h4", "", "Missing evidence")
        yield gaps(diagnosis.gaps)


def _consequences(page: _Page, parent: Diagnosis) -> Iterator[Markup]:
    """The consequences with their evidence, folded."""
    below = _below(page, parent, page.seen)
    if below:
        yield el("h4", "", _below_title(page, parent))
    for each in below:
        # The causal tree has its headline.
        is_only = page.of_rule[each.rule] == 1
        named = join([_as_part(parent, each), _text.short_ids(each.headline)])
        words = "evidence" if is_only else named
        summary = join([
            _badge(each.severity, each.severity), " ", _rule(each), " ", _when(each.first_at), " ", words,
        ])  # fmt: skip
        given: dict[str, str | float | bool] = {"id": each.id, "class": "find consequence"}
        if page.room <= 0:
            page.shortened += 1
            where = el("code", "path", _place(each))
            yield el("div", given, summary, " ", where, *_consequences(page, each))
            continue
        body = join([
            _own_fixes(each), el("h4", "", "Evidence"), _chain(page, each), *_missing(each),
        ])  # fmt: skip
        page.room -= len(body)
        yield el("details", given, el("summary", "", summary), body, *_consequences(page, each))


def _own_fixes(consequence: Diagnosis) -> Markup | None:
    """The fixes of a consequence, folded: it ends with its cause."""
    fixes = remedies(consequence.remedies)
    return folded("What to do if this happens without the cause above", fixes) if fixes else None


def _shortened(page: _Page) -> Iterator[Markup]:
    if page.shortened:
        yield el(
            "p", "note",
            f"The page is full: {page.shortened:,} records and consequences below are without their text. ",
            el("code", "", "raydoctor diagnose -v"), " prints all of them.",
        )  # fmt: skip


# ---------------------------------------------------------------- the rest


def _brief(roots: Sequence[Diagnosis]) -> Markup | None:
    if not roots:
        return None
    rows = (
        (
            root.severity,
            root.rule,
            _text.moment(root.first_at),
            _text.short_ids(root.headline),
            _place(root),
        )
        for root in roots
    )
    caption = (
        f"{_text.plural(len(roots), 'further incident')}; raydoctor diagnose -v prints them in full"
    )
    return table(caption, ("Severity", "Rule", "Time", "What happened", "Where"), rows)


def _place(diagnosis: Diagnosis) -> str:
    event = diagnosis.chain[0].event
    return f"{event.source.path}:{event.line}"


def _symptoms(report: Report) -> Markup | None:
    if not report.unexplained:
        return None
    items = (
        el("li", "find", el("code", "path", f"{s.file}:{s.line}"),
           f" {s.count:,} records: " if s.count > 1 else " ",
           el("code", "", _excerpt(_text.first_line(_text.uncoloured(s.text)), _RECORD_WIDTH)))
        for s in report.unexplained
    )  # fmt: skip
    return el("ul", "symptoms", *items)


def gaps(those: Sequence[Gap]) -> Markup | None:
    """Missing evidence, with hints how to get it."""
    if not those:
        return None
    return el("ul", "gaps", *map(_gap, those))


def _gap(gap: Gap) -> Markup:
    return el("li", "find", el("b", "", gap.what), ": ", gap.why, *_hint(gap))


def _hint(gap: Gap) -> Iterator[Markup]:
    """How to get the missing evidence: lines to paste, and sentences with their commands marked."""
    for line in filter(None, gap.hint.split("\n")):
        if paste.is_code(line):
            yield _code([line])
        else:
            parts = (el("code", "", p) if n % 2 else p for n, p in enumerate(line.split("`")))
            yield el("p", "hint", *parts)


def _read(report: Report) -> str:
    name, said = markdown.read(report)
    return f"What was read: {name}, {said}."
