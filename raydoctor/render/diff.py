"""Difference of two reports -> page, JSON or Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raydoctor.diagnosis.difference import Change, Compared, Difference, Side, count, severity
from raydoctor.model import text as _text
from raydoctor.model.version import __version__
from raydoctor.render.json import dumps
from raydoctor.render.markdown import code, inline
from raydoctor.render.page import MAX_WIDTH, Page, columns, line, paragraph, prefixed, shortened
from raydoctor.render.report import place

SCHEMA = "raydoctor/diff/1"
_ROWS = 8
"""Rows of a section, so that the page fits a screen."""
_OTHERS = 4
_UNSURE = (
    "B lacks evidence that A has: a diagnosis may be gone only because its evidence is missing."
)
_NEW_UNSURE = (
    "A lacks evidence that B has: a diagnosis may be new only because A's evidence is missing."
)


# ---------------------------------------------------------------- for people


def render(difference: Difference, width: int = MAX_WIDTH, verbose: bool = False) -> Page:
    """The difference as a page; `verbose` leaves nothing out."""
    rows = None if verbose else _ROWS
    page = [line((_verdict(difference), "strong")), ()]
    page += _section_of("New", difference.new, width, rows)
    page += _changes("Worse", difference.worse, width, rows)
    page += _changes("Better", difference.better, width, rows)
    page += _section_of("Gone", difference.gone, width, rows)
    page += _same(difference.same, width)
    page += _unexplained(difference, width, verbose)
    page += _gaps(difference, width, verbose)
    for sentence in _remarks(difference):
        page += [*paragraph(sentence, width, style="warning"), ()]
    return page + _sides(difference)


def _remarks(difference: Difference) -> list[str]:
    """What the missing evidence of one side leaves open."""
    remarks = ((_UNSURE, difference.unsure), (_NEW_UNSURE, difference.is_new_unsure))
    return [sentence for sentence, is_open in remarks if is_open]


def _verdict(difference: Difference) -> str:
    """`2 new, 1 worse, 3 gone`."""
    numbers = {
        "new": len(difference.new),
        "worse": len(difference.worse),
        "better": len(difference.better),
        "gone": len(difference.gone),
    }
    counts = ", ".join(f"{number:,} {what}" for what, number in numbers.items() if number)
    return counts or "No difference in what was diagnosed"


def _section_of(title: str, group: Sequence[Compared], width: int, rows: int | None) -> Page:
    """One or two lines each with the location of its evidence; consequences are below their cause."""
    if not group:
        return []
    below = {name for compared in group for name in _consequences(compared)}
    page = [line((title, "strong"))]
    for compared in group[:rows]:
        indent = 5 if compared.id in below else 2
        head = [("└─ ", "dim")] if compared.id in below else []
        page += _entry(head, compared, width, indent)
    return [*page, *_more(len(group), rows), ()]


def _consequences(compared: Compared) -> list[str]:
    names = compared.document.get("consequences")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _entry(head: list[tuple[str, str]], compared: Compared, width: int, indent: int) -> Page:
    lead = line(
        *head,
        (compared.severity.upper(), compared.severity),
        "  ",
        (compared.rule, "rule"),
        (_times(compared.times), ""),
        (f"  {_place(compared)}".rstrip(), "path"),
        indent=indent - len(head) * 3,
    )
    said = paragraph(_text.short_ids(compared.headline), width, indent=indent + 2)
    return [lead, *shortened(said, 2, width)]


def _place(compared: Compared) -> str:
    """The location of the chain's first record; empty if the report, which anyone may write, lacks it."""
    chain = compared.document.get("chain")
    first = chain[0] if isinstance(chain, list) and chain else None
    if not isinstance(first, dict) or not isinstance(first.get("line"), int):
        return ""
    return place(str(first.get("file", "")), first["line"])


def _times(times: int) -> str:
    return f" ×{times:,}" if times > 1 else ""


def _changes(title: str, changes: Sequence[Change], width: int, rows: int | None) -> Page:
    if not changes:
        return []
    page = [line((title, "strong"))]
    for change in changes[:rows]:
        grade = severity(change.after)
        page.append(
            line(
                (grade.upper(), grade), "  ", (change.rule, "rule"), f"  {_step(change)}", indent=2
            )
        )
        said = paragraph(_text.short_ids(change.after[0].headline), width, indent=4)
        page += shortened(said, 2, width)
    return [*page, *_more(len(changes), rows), ()]


def _step(change: Change) -> str:
    """The changes of count and severity."""
    before, after = change.before, change.after
    steps = []
    if count(before) != count(after):
        steps.append(f"×{count(before):,} → ×{count(after):,}")
    if severity(before) != severity(after):
        steps.append(f"{severity(before)} → {severity(after)}")
    return ", ".join(steps)


def _more(total: int, rows: int | None) -> Page:
    left_out = total - rows if rows is not None else 0
    return [line((f"… and {left_out:,} more with -v", "dim"), indent=2)] if left_out > 0 else []


def _same(changes: Sequence[Change], width: int) -> Page:
    if not changes:
        return []
    names = ", ".join(_unchanged(changes))
    return [*paragraph(f"Unchanged: {names}", width, hang=2, style="dim"), ()]


def _unchanged(changes: Iterable[Change]) -> list[str]:
    """Rules with unchanged findings, and their counts."""
    times: Counter[str] = Counter()
    for change in changes:
        times[change.rule] += count(change.after)
    return [f"{rule}{_times(number)}" for rule, number in times.items()]


def _unexplained(difference: Difference, width: int, verbose: bool) -> Page:
    parts = (("new", difference.new_unexplained), ("gone", difference.gone_unexplained))
    rows = []
    for what, items in parts:
        shown = items if verbose else items[:_OTHERS]
        for item in shown:
            text = _text.short_ids(_text.first_line(str(item.get("text", ""))))
            rows.append([(what, _style(what)), (_text.cut(text, max(width - 8, 20)), "")])
        if len(items) > len(shown):
            rows.append([(what, _style(what)), (f"… and {len(items) - len(shown):,} more", "dim")])
    return [line(("Errors that no rule matches", "strong")), *columns(rows, 2), ()] if rows else []


def _gaps(difference: Difference, width: int, verbose: bool) -> Page:
    page: Page = []
    for what, items in (("new", difference.new_gaps), ("gone", difference.gone_gaps)):
        shown = items if verbose else items[:_OTHERS]
        for item in shown:
            said = paragraph(f"{item.get('what', '')}: {item.get('why', '')}", width - 8)
            page += prefixed(said, f"  {what:4}  ", " " * 8, _style(what))
        page += _more(len(items), len(shown))
    return [line(("Missing evidence", "strong")), *page, ()] if page else []


def _style(what: str) -> str:
    return "warning" if what == "new" else "ok"


def _sides(difference: Difference) -> Page:
    return columns(
        [
            [("A", "dim"), (difference.a.path, "path"), (_read(difference.a), "dim")],
            [("B", "dim"), (difference.b.path, "path"), (_read(difference.b), "dim")],
        ]
    )


def _read(side: Side) -> str:
    """Ray versions, nodes and time."""
    parts = [f"Ray {', '.join(side.ray_versions)}" if side.ray_versions else "Ray ?"]
    if side.nodes:
        parts.append(_text.plural(side.nodes, "node"))
    if side.begin is not None:
        parts.append(_text.moment(side.begin))
    return ", ".join(parts)


# ---------------------------------------------------------------- for programs


def to_json(difference: Difference) -> str:
    """The difference as one JSON object. Keys are added, never renamed."""
    return dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "a": _side(difference.a),
            "b": _side(difference.b),
            "new": [compared.document for compared in difference.new],
            "gone": [compared.document for compared in difference.gone],
            "worse": [_change(each) for each in difference.worse],
            "better": [_change(each) for each in difference.better],
            "same": [_change(each) for each in difference.same],
            "unexplained": _both(difference.new_unexplained, difference.gone_unexplained),
            "gaps": _both(difference.new_gaps, difference.gone_gaps),
        }
    )


def _side(side: Side) -> dict[str, Any]:
    return {
        "path": side.path,
        "ray_versions": list(side.ray_versions),
        "nodes": side.nodes,
        "from": side.begin,
        "to": side.end,
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "rule": change.rule,
        "headline": change.after[0].headline,
        "before": _state(change.before),
        "after": _state(change.after),
    }


def _state(group: Sequence[Compared]) -> dict[str, Any]:
    return {"ids": [t.id for t in group], "count": count(group), "severity": severity(group)}


def _both(new: Iterable[Mapping[str, Any]], gone: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {"new": list(new), "gone": list(gone)}


# ---------------------------------------------------------------- for an issue


def to_markdown(difference: Difference) -> str:
    """The difference for a GitHub issue or a pull request."""
    parts = [f"## raydoctor diff: {_verdict(difference)}"]
    parts += _list("New", map(_item, difference.new))
    parts += _list("Worse", map(_changed, difference.worse))
    parts += _list("Better", map(_changed, difference.better))
    parts += _list("Gone", map(_item, difference.gone))
    parts += _list("Unchanged", map(inline, _unchanged(difference.same)))
    parts += _list("New errors that no rule matches", map(_quoted, difference.new_unexplained))
    parts += _list("Gone errors that no rule matches", map(_quoted, difference.gone_unexplained))
    parts += _list("Evidence that is missing now", map(_missing, difference.new_gaps))
    parts += _list("Evidence that is no longer missing", map(_missing, difference.gone_gaps))
    parts += _remarks(difference)
    names = _names(difference.a.path, difference.b.path)
    sides = zip("AB", names, (difference.a, difference.b), strict=True)
    read = "\n".join(f"- {which}: {code(name)}, {inline(_read(s))}" for which, name, s in sides)
    return "\n\n".join([*parts, f"---\nraydoctor {__version__}\n\n{read}"]) + "\n"


def _list(title: str, items: Iterable[str]) -> list[str]:
    lines = [f"- {item}" for item in items]
    return [f"**{title}**", "\n".join(lines)] if lines else []


def _item(compared: Compared) -> str:
    return f"{code(compared.rule)}{_times(compared.times)} ({compared.severity}): {inline(compared.headline)}"


def _changed(change: Change) -> str:
    return f"{code(change.rule)} {inline(_step(change))}: {inline(change.after[0].headline)}"


def _quoted(item: Mapping[str, Any]) -> str:
    return code(_text.cut(_text.first_line(str(item.get("text", ""))), 400))


def _missing(item: Mapping[str, Any]) -> str:
    return f"{inline(str(item.get('what', '')))}: {inline(str(item.get('why', '')))}"


def _names(a: str, b: str) -> tuple[str, str]:
    """The captures' own names, because issues are public and paths contain user names; with the folder if
    both names are equal."""
    one, other = a.rstrip("/").split("/"), b.rstrip("/").split("/")
    parts = 2 if one[-1] == other[-1] else 1
    return "/".join(one[-parts:]) or a, "/".join(other[-parts:]) or b
