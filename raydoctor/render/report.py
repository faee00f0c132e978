"""Report -> page: one causal tree per incident, then the missing evidence.

A report with one incident fits a screen: each record of the evidence takes one line, consequences of one rule
share a branch, and omissions are marked. `verbose` shows everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from raydoctor.capture.layout import node_label
from raydoctor.model import paste
from raydoctor.model import text as _text
from raydoctor.model.patterns import pattern
from raydoctor.model.values import (
    CaptureInfo,
    Diagnosis,
    Event,
    Gap,
    Link,
    Remedy,
    Report,
    Unexplained,
)
from raydoctor.render.page import (
    MAX_WIDTH,
    RISKS,
    Line,
    Page,
    StyledText,
    columns,
    line,
    paragraph,
    prefixed,
    shortened,
)

_FULL_INCIDENTS = 4
_LINKS = 5
_REMEDIES = 3
_STEPS = 6
_SYMPTOMS = 10
_GIST = 200
"""Letters of missing evidence in the verdict."""
_GAPS = 6

_KINDS = {"pg": "placement group", "gcs": "GCS"}
"""Words for kinds of subjects that are abbreviations."""
_SHORT_NAME = pattern(r"[\w.-]{1,40}")
_WORD = pattern(r"[A-Za-z_]\w{3,}|\d+")
_TOOLS_ERROR = pattern(r" {4}.{0,20}(?:ERROR|error|fatal): ")
_LAST_LINE = pattern(
    r"(?:[\w.]{1,300}\.)?[A-Z]\w{0,200}(?:Error|Exception|Exit|Interrupt|Timeout|Warning)\b"
)
"""The line of a traceback that names the exception."""


@dataclass(frozen=True, slots=True)
class _View:
    """The report and the layout's settings."""

    report: Report
    by_id: dict[str, Diagnosis]
    width: int
    verbose: bool
    advised: set[Remedy] = field(default_factory=set)
    """Remedies that the page already contains: incidents of one kind show them once."""


def render(
    report: Report, width: int = MAX_WIDTH, verbose: bool = False, onward: bool = True
) -> Page:
    """The whole report; `onward`: with suggestions for the next command."""
    view = _View(report, {d.id: d for d in report.diagnoses}, width, verbose)
    roots = report.roots or report.diagnoses
    full, brief = _by_weight(roots, verbose)
    page: Page = []
    for number, root in enumerate(full, 1):
        page += _incident(view, root, f"{number}/{len(full)}" if len(full) > 1 else "")
        page.append(())
    page += _brief(view, brief)
    page += _symptoms(view)
    page += _verdict(view)
    page += _not_seen(view)
    page += _status(view)
    return page + _foot(view, onward)


def incident(report: Report, root: Diagnosis) -> Page:
    """One root of a report with its evidence, consequences and fixes."""
    view = _View(report, {d.id: d for d in report.diagnoses}, MAX_WIDTH, verbose=False)
    return _incident(view, root, "")


def _by_weight(
    roots: Sequence[Diagnosis], verbose: bool
) -> tuple[Sequence[Diagnosis], Sequence[Diagnosis]]:
    """The incidents to show in full, and those that get one line: warnings if there are errors, and all after
    the first few."""
    if verbose:
        return roots, ()
    grave = [r for r in roots if r.severity in ("critical", "error")] or list(roots)
    full = grave[:_FULL_INCIDENTS]
    return full, [r for r in roots if r not in full]


# ---------------------------------------------------------------- one incident


def _incident(view: _View, root: Diagnosis, number: str) -> Page:
    page = [_head(root, number)]
    page += paragraph(root.headline, view.width, style="strong")
    if root.effect:
        page += paragraph(f"Effect: {root.effect}.", view.width, hang=2)
    page += _evidence(view, root)
    page += _consequences(view, root)
    page += _fix(view, root)
    page += _undecided(view, root)
    return page


def _head(root: Diagnosis, number: str) -> Line:
    noticed = f"noticed {_text.moment(root.noticed_at, '%H:%M:%S')}" if root.noticed_at else ""
    seen = "seen " if root.is_snapshot else "about " if noticed else ""
    times = ", ".join(filter(None, (f"{seen}{_text.moment(root.first_at)}", noticed)))
    marks = [mark for mark in (times, number and f"[{number}]") if mark]
    return line(
        (root.severity.upper(), root.severity),
        "  ",
        (root.rule, "rule"),
        *((f"  {mark}", "dim") for mark in marks),
    )


def _section(title: str) -> Page:
    return [(), line((title, "dim"), indent=2)]


def _evidence(view: _View, diagnosis: Diagnosis) -> Page:
    page = _section("Evidence")
    chain = diagnosis.chain
    left_out = 0 if view.verbose else max(0, len(chain) - _LINKS)
    quoted = 2 if len(chain) <= 3 else 1
    for n, link in enumerate(chain):
        if left_out and n == _LINKS - 1:
            page.append(line((f"… {left_out} more with -v", "dim"), indent=4))
        if not left_out or n < _LINKS - 1 or n == len(chain) - 1:
            page += _link(view, link, quoted)
    return page


def _link(view: _View, link: Link, quoted: int = 1) -> Page:
    """The file and line of a record, what it shows, and `quoted` lines of its text."""
    event = link.event
    shows = _text.one_line(link.shows) + (f" (×{event.count})" if event.count > 1 else "")
    shows = shows if view.verbose else _text.short_ids(shows)
    head = line(
        (place(event.source.path, event.line, view.verbose), "path"),
        (f"  {_text.moment(event.at, '%H:%M:%S')}  ".rstrip() + "  ", "dim"),
        indent=4,
    )
    room = view.width - sum(_text.cells(span.text) for span in head)
    if _text.cells(shows) <= room:
        page = [(*head, *line(shows))]
    else:
        whole = paragraph(shows, view.width, indent=6)
        page = [head, *(whole if view.verbose else shortened(whole, 3, view.width))]
    if view.verbose:
        return page + _record(event)
    code = [
        line((_text.cut(_text.printable(row), view.width - 6), "code"), indent=6)
        for row in link.code.splitlines()
    ]
    # A stack's first line names only the process: the frame is further down.
    said = telling(event, link.shows) if event.kind == "stack.dump" else gist(event)
    return [*page, *code, *_quote(said.strip(), view.width, 1 if code else quoted)]


def _quote(said: str, width: int, quoted: int) -> Page:
    text = paragraph(_text.short_ids(said), width, indent=6, style="dim")
    return [_cut_line(part, width) for part in shortened(text, quoted, width)]


def _cut_line(spans: Line, width: int) -> Line:
    """A line whose last word may be longer than the width."""
    *before, last = spans
    room = width - sum(_text.cells(span.text) for span in before)
    return (*before, StyledText(_text.cut(last.text, room), last.style))


def _record(event: Event) -> Page:
    """The whole record, and its other locations."""
    page = [line((text, "dim"), indent=6) for text in event.text.split("\n")]
    if event.sightings:
        also = ", ".join(f"{e.source.path}:{e.line}" for e in event.sightings)
        page.append(line((f"also in {also}", "dim"), indent=6))
    return page


def gist(event: Event) -> str:
    """The most informative line: the exception of a traceback, otherwise the first line."""
    lines = [text for text in (event.message or event.text).split("\n") if text.strip()]
    if not lines:
        return ""
    if any(text.startswith(("Traceback (most recent", "  File ")) for text in lines):
        raised = next((t for t in reversed(lines) if _LAST_LINE.match(t)), lines[-1])
        # Ray's agent quotes the output of a tool that failed: its last error is the reason.
        of_tool = [t for t in lines if _TOOLS_ERROR.match(t)] if "Run cmd[" in raised else []
        return _as_pasted(_text.one_line((of_tool or [raised])[-1]))
    return _as_pasted(_text.one_line(_text.behind_preamble(lines[0])))


_COMPLETED = pattern(r"(?P<name>\bray::[\w.]{0,200}…)\(\) \(pid=$")


def _as_pasted(text: str) -> str:
    """A line without what reading it added to the name of a call within which a paste ends."""
    return _COMPLETED.sub(lambda found: found["name"], text)


def telling(event: Event, shows: str) -> str:
    """The line of a record that shares most words with a statement; if it has nearly as many, the gist."""
    said = set(_WORD.findall(shows))

    def shared(line: str) -> int:
        return len(said.intersection(_WORD.findall(line)))

    best, usual = max((event.message or event.text).split("\n"), key=shared), gist(event)
    return best if shared(best) > shared(usual) + 1 else usual


def place(path: str, number: int, verbose: bool = False) -> str:
    """`raylet.out:207`, with the node before it where the capture has several."""
    if verbose:
        return f"{path}:{number}"
    folder, _, name = path.rpartition("/")
    # The path of a driver's log outside the capture names no node.
    node = "" if path.startswith(("/", "..")) else node_label(folder)
    return _text.short_ids(f"{node}/{name}:{number}" if node else f"{name}:{number}")


# ---------------------------------------------------------------- consequences


def _consequences(view: _View, root: Diagnosis) -> Page:
    seen = {root.id}
    below = [view.by_id[i] for i in root.consequences if i in view.by_id and i != root.id]
    parts = [each for each in below if is_same_event(root, each)]
    seen.update(d.id for d in below)
    page: Page = []
    for title, group in (
        ("Part of this incident", parts),
        ("Consequences", [each for each in below if each not in parts]),
    ):
        tree = _grouped(view, group, view.width - 2, seen)
        page += [*_section(title), *prefixed(tree, "  ", "  ")] if tree else []
    return page


def is_same_event(root: Diagnosis, below: Diagnosis) -> bool:
    """Whether a rule that finds roots itself begins with the record that the root begins with."""
    first = [_spot(each.chain[0].event) for each in (root, below) if each.chain]
    return below.tier == "root" and len(first) == 2 and first[0] == first[1]


def _branches(view: _View, parent: Diagnosis, width: int, seen: set[str]) -> Page:
    """The consequences of a diagnosis; each diagnosis appears once."""
    below = [view.by_id[i] for i in parent.consequences if i in view.by_id and i not in seen]
    seen.update(d.id for d in below)
    return _grouped(view, below, width, seen)


def _grouped(view: _View, below: list[Diagnosis], width: int, seen: set[str]) -> Page:
    """The branches of these diagnoses, grouped by rule."""
    groups: dict[object, list[Diagnosis]] = {}
    for diagnosis in below:
        key = diagnosis.id if view.verbose or diagnosis.consequences else diagnosis.rule
        groups.setdefault(key, []).append(diagnosis)
    page: Page = []
    for n, group in enumerate(groups.values()):
        last = n == len(groups) - 1
        branch = _branch(view, group, width - 3, seen)
        page += prefixed(branch, "└─ " if last else "├─ ", "   " if last else "│  ")
    return page


def _branch(view: _View, group: list[Diagnosis], width: int, seen: set[str]) -> Page:
    first = group[0]
    count = sum(d.count for d in group)
    name = f"{first.rule} ×{count}" if count > 1 else first.rule
    begin, *rest = paragraph(f"{name}  {first.headline}", width, hang=2)
    page = [_named(begin, name), *rest]
    if view.verbose:
        page += [part for link in first.chain for part in _link(view, link)]
    else:
        page.append(_first_link(_own_link(view, first), width, more=len(group) - 1))
    return page + _branches(view, first, width, seen)


def _named(first: Line, name: str, style: str = "rule") -> Line:
    """A first line with the name that it begins with set off."""
    text = "".join(span.text for span in first)
    if not text.startswith(name):
        return first
    return line((name, style), "  ", text[len(name) :].lstrip())


def _own_link(view: _View, diagnosis: Diagnosis) -> Link:
    """The first link of a consequence that is not part of its cause's evidence."""
    causes = (d for d in view.report.diagnoses if diagnosis.id in d.consequences)
    shown = {_spot(link.event) for cause in causes for link in cause.chain}
    fresh = (link for link in diagnosis.chain if _spot(link.event) not in shown)
    return next(fresh, diagnosis.chain[0])


def _spot(event: Event) -> tuple[str, int]:
    return event.source.path, event.line


def _first_link(link: Link, width: int, more: int) -> Line:
    where = place(link.event.source.path, link.event.line)
    others = f"  (and {more} more)" if more else ""
    room = width - _text.cells(where) - len(others) - 4
    text = _text.cut(_text.short_ids(gist(link.event)), max(room, 10))
    return line((where, "path"), "  ", (text, "dim"), (others, "dim"), indent=2)


# ---------------------------------------------------------------- what to do


def _fix(view: _View, root: Diagnosis) -> Page:
    remedies = root.remedies or _borrowed(view, root)
    if not remedies:
        return []
    shown = remedies if view.verbose else remedies[:_REMEDIES]
    page = _section("Fix")
    for number, remedy in enumerate(shown, 1):
        page += _remedy(view, remedy, number if len(remedies) > 1 else 0)
    if len(remedies) > len(shown):
        page.append(
            line(
                (
                    f"… {_text.plural(len(remedies) - len(shown), 'more fix', 'more fixes')} with -v",
                    "dim",
                ),
                indent=4,
            )
        )
    return page


def _borrowed(view: _View, root: Diagnosis) -> tuple[Remedy, ...]:
    """The remedies of the consequences, for a root without any."""
    below = (view.by_id[i] for i in root.consequences if i in view.by_id)
    return next((d.remedies for d in below if d.remedies), ())


def _remedy(view: _View, remedy: Remedy, number: int) -> Page:
    lead = f"{number}. " if number else ""
    risk = f" [{RISKS[remedy.risk]}]" if remedy.risk in RISKS else ""
    again = " (as above)" if remedy in view.advised and remedy.steps else ""
    view.advised.add(remedy)
    page = paragraph(f"{lead}{remedy.title}{risk}{again}", view.width, indent=4, hang=len(lead))
    if again:
        return page
    steps = remedy.steps if view.verbose else remedy.steps[:_STEPS]
    for step in steps:
        page += _step(step, view.width, 4 + len(lead) + 2)
    if len(steps) < len(remedy.steps):
        left_out = len(remedy.steps) - len(steps)
        page.append(line((f"… {left_out} more with -v", "dim"), indent=6 + len(lead)))
    if remedy.doc and view.verbose:
        page.append(line((remedy.doc, "dim"), indent=4 + len(lead)))
    return page


def _step(step: str, width: int, indent: int) -> Page:
    """Lines to paste are never wrapped; prose and comments are."""
    page: Page = []
    for text in step.rstrip().split("\n"):
        if text.startswith("# ") and indent + _text.cells(text) > width:
            comment = paragraph(text[2:], width - 2, indent=indent, style="code")
            page += [(*spans[:1], StyledText("# " + spans[1].text, "code")) for spans in comment]
        elif paste.is_code(text):
            page.append(line((text.rstrip(), "code"), indent=indent))
        else:
            page += paragraph(text, width, indent=indent, hang=2)
    return page


def _undecided(view: _View, root: Diagnosis) -> Page:
    """Missing evidence that would confirm or refute this diagnosis."""
    if not root.gaps:
        return []
    shown = root.gaps if view.verbose else root.gaps[:_GAPS]
    return [*_section("Missing evidence"), *_gaps(shown, view.width, 4, hints=True)]


# ---------------------------------------------------------------- the rest


def _brief(view: _View, roots: Sequence[Diagnosis]) -> Page:
    """Incidents with one line and the location of their evidence."""
    if not roots:
        return []
    page = [line(("Also found", "strong"), ("  (in full with -v)", "dim"))]
    for root in roots:
        text = f"{root.rule}: {root.headline}"
        headline = paragraph(text, view.width, indent=2, hang=2)
        where = place(root.chain[0].event.source.path, root.chain[0].event.line)
        page += [*headline, line((where, "path"), indent=4)]
    return [*page, ()]


def _symptoms(view: _View) -> Page:
    """Symptoms that no diagnosis explains."""
    symptoms = view.report.unexplained
    if not symptoms:
        return []
    shown = symptoms if view.verbose else symptoms[:_SYMPTOMS]
    page = [line(("Errors that no rule matches", "strong"))]
    page += columns([_symptom(view, s) for s in shown], indent=2)
    if len(symptoms) > len(shown):
        page.append(line((f"… and {len(symptoms) - len(shown)} more", "dim"), indent=2))
    return [*page, ()]


def _symptom(view: _View, symptom: Unexplained) -> list[tuple[str, str]]:
    where = place(symptom.file, symptom.line, view.verbose)
    times = f"×{symptom.count} " if symptom.count > 1 else ""
    text = times + _text.short_ids(_text.first_line(symptom.text))
    return [(where, "path"), (_text.cut(text, max(view.width - _text.cells(where) - 4, 20)), "")]


def is_inconclusive(report: Report) -> bool:
    """Whether there may be an error that the report does not show: its warnings are no all-clear."""
    return not report.complete and not any(
        d.severity in ("critical", "error") for d in report.diagnoses
    )


def _verdict(view: _View) -> Page:
    if view.report.diagnoses and not is_inconclusive(view.report):
        return []
    state, style, sentence = verdict(view.report)
    head, *rest = paragraph(f"{state}  {sentence}", view.width, hang=2)
    return [_named(head, state, style), *rest, ()]


_SERIOUS = ("kube.", "slurm.", "log.critical", "log.traceback", "log.echoed_traceback")
"""Kinds of symptoms of which a report does not say that they may be harmless."""


def verdict(report: Report) -> tuple[str, str, str]:
    """The conclusion of a report without an error: a title, its style, and a sentence."""
    if report.diagnoses:
        return "INCONCLUSIVE", "warning", f"There may also be an error: {_first_gap(report)}"
    if report.unexplained:
        sentence = "No rule matches the errors above."
        if not any(each.kind.startswith(_SERIOUS) for each in report.unexplained):
            sentence += " They may be harmless."
        return "NO CAUSE FOUND", "warning", sentence
    if not report.complete and not report.recognized:
        sentence = "Inconclusive: no line is a message of Ray or looks like an error. Is this the right file?"
        return "NOTHING RECOGNIZED", "warning", sentence
    if report.complete:
        return (
            "NOTHING FOUND",
            "ok",
            "Every log that a diagnosis needs was read, and none shows a failure.",
        )
    return "INCONCLUSIVE", "warning", f"No failure found, but {_first_gap(report)}"


def listed_gaps(report: Report) -> list[Gap]:
    """The missing evidence that no diagnosis lists itself, without the words of the conclusion."""
    said = None if report.diagnoses or report.unexplained or report.complete else _main_gap(report)
    return [_unsaid(gap) if gap is said else gap for gap in unlisted_gaps(report)]


def _unsaid(gap: Gap) -> Gap:
    """A gap without its main clause, which the conclusion has, if there is more to say."""
    rest = gap.why.removeprefix(gap.gist).removeprefix("; ")
    is_said = rest and gap.is_observation and len(gap.gist) <= _GIST
    return replace(gap, why=rest) if is_said else gap


def _main_gap(report: Report) -> Gap:
    """The gap that matters most."""
    needed = [gap for gap in report.gaps if not gap.optional]
    return next((gap for gap in needed if gap.is_observation), needed[0])


def _first_gap(report: Report) -> str:
    """The gap that matters most, and how many more there are."""
    needed, first = [gap for gap in report.gaps if not gap.optional], _main_gap(report)
    said = _text.cut(_text.one_line(first.gist), _GIST)
    more = _text.plural(len(needed) - 1, "more gap")
    return f"{said}, and {more}, see below" if len(needed) > 1 else said


def _status(view: _View) -> Page:
    """The state of a live cluster."""
    if view.report.status is None:
        return []
    from raydoctor.render import status

    return [*status.section(view.report.status, view.width), ()]


def _not_seen(view: _View) -> Page:
    """The missing evidence that no diagnosis lists itself."""
    gaps = listed_gaps(view.report)
    if not gaps:
        return []
    hints = view.verbose or not view.report.diagnoses or is_inconclusive(view.report)
    page: Page = []
    for title, group in gap_sections(gaps):
        shown = group if view.verbose else group[:_GAPS]
        page += [line((title, "strong")), *_gaps(shown, view.width, 2, hints)]
        if len(group) > len(shown):
            page.append(line((f"… and {len(group) - len(shown)} more with -v", "dim"), indent=2))
        page.append(())
    return page


def gap_sections(gaps: Iterable[Gap]) -> list[tuple[str, list[Gap]]]:
    """What the result needs, and apart from it what is optional, each with its heading."""
    listed = list(gaps)
    groups = ([g for g in listed if not g.optional], [g for g in listed if g.optional])
    return [(gaps_title(group), group) for group in groups if group]


def gaps_title(gaps: Iterable[Gap]) -> str:
    """The heading of missing evidence, which says whether the result needs it."""
    listed = list(gaps)
    if all(gap.about == "quoted" for gap in listed):
        return "Left out"
    needed = [gap for gap in listed if not gap.optional]
    if not needed:
        return "Not collected (optional)"
    is_open = all(gap.is_observation for gap in needed)
    return "Could not be determined" if is_open else "Missing evidence"


def unlisted_gaps(report: Report) -> list[Gap]:
    """The report's gaps without those about a part that a diagnosis lists as missing itself."""
    own = [gap for d in report.diagnoses for gap in d.gaps]
    listed = {each for gap in own for each in (gap.about, gap.what) if each}
    return [gap for gap in report.gaps if not {gap.about, gap.what} & listed]


def _gaps(gaps: Iterable[Gap], width: int, indent: int, hints: bool) -> Page:
    page: Page = []
    for gap in gaps:
        page += paragraph(f"{gap.what}: {gap.why}", width, indent=indent, hang=2)
        if hints and gap.hint:
            page += _step(gap.hint, width, indent + 2)
    return page


def _foot(view: _View, onward: bool) -> Page:
    page = paragraph(_what_was_read(view), view.width, style="dim")
    commands = _next(view) if onward else []
    one_line = " · ".join(commands)
    if commands and _text.cells(one_line) + 6 <= view.width:
        commands = [one_line]
    for n, command in enumerate(commands):
        page.append(line(("Next: " if n == 0 else "      ", "dim"), (command, "code")))
    return page


def _what_was_read(view: _View) -> str:
    """Ray versions, nodes, files, bytes, span, seconds."""
    info, stats = view.report.capture, view.report.stats
    ray = "Ray " + ", ".join(info.ray_versions) if info.ray_versions else "Ray of unknown version"
    parts = [f"{_text.plural(info.files, 'file')} ({_text.size(info.bytes)})", ray]
    if info.nodes:
        parts.insert(1, _text.plural(len(info.nodes), "node"))
    if info.begin is not None and info.end is not None:
        parts.append(f"{_text.moment(info.begin)} to {_span_end(info)}")
    live = " and its cluster, live" if info.kind == "live" else ""
    read = f"Input: {info.path}{live}: {', '.join(parts)}; analyzed in {_text.duration(stats.seconds)}."
    if stats.outside_span:
        read += f" Left out: {_text.plural(stats.outside_span, 'incident')} outside the given time."
    if view.verbose:
        read += f" {stats.hits:,} hits, {stats.events:,} events, {stats.rules} rules."
    return read


def _span_end(info: CaptureInfo) -> str:
    """The end of a span with its zone, and with its date only if that is another day."""
    same_day = _text.moment(info.begin, "%Y-%m-%d") == _text.moment(info.end, "%Y-%m-%d")
    end = _text.moment(info.end, "%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S")
    return f"{end} {zone_of(info)}"


def zone_of(info: CaptureInfo) -> str:
    """The zone of the report's times: `UTC`, or that the zone is unknown."""
    return _text.moment(info.end, "%Z") if info.has_zone else "(times as logged; time zone unknown)"


def _next(view: _View) -> list[str]:
    """Suggestions for the next command."""
    report = view.report
    if not report.diagnoses:
        if not report.complete or report.unexplained:
            return []
        if report.capture.kind == "archive":
            command = paste.shell("raydoctor hung {path:path}", path=report.capture.path)
            return [
                f"{command}   # if raydoctor collect wrote this archive while a job made no progress"
            ]
        return ["raydoctor hung   # on the cluster, if a job makes no progress"]
    root = (report.roots or report.diagnoses)[0]
    commands: list[str] = [paste.shell("raydoctor explain {rule}", rule=root.rule)]
    subject = next((s for s in root.subjects if s.id or s.pid is not None), None)
    is_stream = report.capture.path in ("-", "<text>")  # no file that `story` could read
    if subject and not is_stream:
        command = paste.shell(
            "raydoctor story {subject} {path:path}",
            subject=subject.id or f"pid:{subject.pid}",
            path=report.capture.path,
        )
        kind = _KINDS.get(subject.kind, subject.kind) if subject.id else "process"
        is_named = subject.id and subject.name != kind and _SHORT_NAME.fullmatch(subject.name or "")
        named = f"{kind} {subject.name}" if is_named else f"this {kind}"
        commands.append(f"{command}   # every line about {named}")
    if report.capture.kind == "live":
        commands.append(
            "raydoctor collect   # keeps this evidence, including the files named live/…"
        )
    return commands
