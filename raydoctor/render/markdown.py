"""Report -> Markdown for a GitHub issue.

Log text is in fences longer than any run of backticks in it. Elsewhere, every character on which Markdown,
HTML or GitHub itself (`@name`, `#123`) would act is escaped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import groupby

from raydoctor.model import paste
from raydoctor.model import text as _text
from raydoctor.model.values import Diagnosis, Gap, Link, Remedy, Report, Unexplained
from raydoctor.model.version import __version__
from raydoctor.render import status
from raydoctor.render.page import MAX_WIDTH, RISKS, plain
from raydoctor.render.report import gap_sections, unlisted_gaps, zone_of

_RECORD_LINES = 15
_RECORD_WIDTH = 400
_SYMPTOMS = 20
_SPECIAL = re.compile(r"([\\`*\[\]<|~$]|(?<![^\W_])_|_(?![^\W_]))")
"""Characters that act inside a line; an underscore within a word does not."""
_REFERENCE = re.compile(r"[@#]|\bGH-\d")
"""GitHub notifies the user `@name` and links the issue `#123`, escaped or not, except in code spans."""
_OPENING = re.compile(r"\A(\d*)([>+=.)-])")
"""At the start of a list item: a quotation, a list or a heading within it."""
_SCHEME = re.compile(r"\b(https?|ftp|www)(?=[:.])", re.IGNORECASE)


def render(report: Report) -> str:
    """The whole report."""
    by_id = {d.id: d for d in report.diagnoses}
    roots = report.roots or report.diagnoses
    parts = [_title(report)]
    seen: set[str] = set()
    for number, root in enumerate(roots, 1):
        parts += [f"### {number}. {_headline(root)}", *_incident(root)]
        parts += _consequences(root, by_id, seen)
        parts += remedies(root.remedies)
        parts += _gaps("Missing evidence", root.gaps)
    parts += _symptoms(report.unexplained)
    for title, gaps in gap_sections(unlisted_gaps(report)):
        parts += _gaps(title, gaps)
    if report.status is not None:
        parts.append(fence(plain(status.section(report.status, MAX_WIDTH)).rstrip()))
    return "\n\n".join([*parts, _read(report)]) + "\n"


def inline(text: str) -> str:
    """Text on one line that Markdown shows unchanged."""
    words = _text.one_line(text).split()
    shown = (code(word) if _REFERENCE.search(word) else _escaped(word) for word in words)
    return _OPENING.sub(r"\1\\\2", " ".join(shown))


def _escaped(text: str) -> str:
    text = _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;"))
    # An address in a log must not become a link of the issue.
    return _SCHEME.sub(r"\1<!-- -->", text)


def code(text: str) -> str:
    """A code span, whatever backticks the text holds."""
    text = _text.one_line(text)
    ticks = "`" * (_longest_run(text) + 1)
    edge = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{ticks}{edge}{text}{edge}{ticks}"


def fence(text: str, indent: str = "", language: str = "text") -> str:
    """A fenced block that the text cannot end."""
    lines = _text.printable(text).split("\n")
    ticks = "`" * max(3, _longest_run(text) + 1)
    return "\n".join(f"{indent}{row}".rstrip() for row in (f"{ticks}{language}", *lines, ticks))


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)


def _title(report: Report) -> str:
    if not report.diagnoses:
        if report.unexplained:
            return "## raydoctor: no cause found for the errors below"
        if not report.complete and not report.recognized:
            return "## raydoctor: nothing recognized as Ray's"
        return "## raydoctor: nothing found" + (
            "" if report.complete else ", but the evidence is incomplete"
        )
    count = len(report.roots or report.diagnoses)
    return f"## raydoctor: {_text.plural(count, 'root cause')}"


def _headline(diagnosis: Diagnosis) -> str:
    times = f" ×{diagnosis.count}" if diagnosis.count > 1 else ""
    return f"{code(diagnosis.rule)}{times} ({diagnosis.severity}): {inline(diagnosis.headline)}"


def _incident(root: Diagnosis) -> list[str]:
    effect = [f"Effect: {inline(root.effect)}."] if root.effect else []
    return [*effect, "**Evidence**", "\n".join(_link(link) for link in root.chain)]


def _link(link: Link) -> str:
    event = link.event
    when = f" {_text.moment(event.at, '%H:%M:%S')}" if event.at is not None else ""
    head = f"- {code(f'{event.source.path}:{event.line}')}{when} {inline(link.shows)}"
    return f"{head}\n{fence(_trimmed(event.text), indent='  ')}"


def _trimmed(text: str) -> str:
    lines = [_text.cut(_text.printable(row), _RECORD_WIDTH) for row in text.rstrip().split("\n")]
    if len(lines) > _RECORD_LINES:
        left_out = len(lines) - _RECORD_LINES
        lines[5 : 5 + left_out] = [f"… {left_out} lines left out …"]
    return "\n".join(lines)


def _consequences(root: Diagnosis, by_id: dict[str, Diagnosis], seen: set[str]) -> list[str]:
    lines = _branches(root, by_id, seen, depth=0)
    return ["**Consequences**", "\n".join(lines)] if lines else []


def _branches(
    parent: Diagnosis, by_id: dict[str, Diagnosis], seen: set[str], depth: int
) -> list[str]:
    lines = []
    seen.add(parent.id)
    for name in parent.consequences:
        if (below := by_id.get(name)) is None or name in seen:
            continue
        seen.add(name)
        first = below.chain[0].event
        where = code(f"{first.source.path}:{first.line}")
        lines.append(f"{'  ' * depth}- {_headline(below)} ({where})")
        lines += _branches(below, by_id, seen, depth + 1)
    return lines


def remedies(fixes: Iterable[Remedy]) -> list[str]:
    """The section with the fixes; empty if there are none."""
    parts = []
    for remedy in fixes:
        risk = f" ({RISKS[remedy.risk]})" if remedy.risk in RISKS else ""
        parts.append(f"- {inline(remedy.title)}{risk}")
        for is_code, steps in groupby(remedy.steps, key=paste.is_code):
            if is_code:
                parts.append(fence("\n".join(steps), indent="  "))
            else:
                parts += [f"  - {inline(step)}" for step in steps]
        if remedy.doc.startswith("https://"):
            parts.append(f"\n  <{remedy.doc}>")
    return ["**Fix**", "\n".join(parts)] if parts else []


def _gaps(title: str, gaps: Iterable[Gap]) -> list[str]:
    lines = []
    for gap in gaps:
        hint = f" ({inline(gap.hint)})" if gap.hint else ""
        lines.append(f"- {inline(gap.what)}: {inline(gap.why)}{hint}")
    return [f"**{title}**", "\n".join(lines)] if lines else []


def _symptoms(symptoms: tuple[Unexplained, ...]) -> list[str]:
    if not symptoms:
        return []
    rows = [
        f"- {code(f'{s.file}:{s.line}')}{f' ×{s.count}' if s.count > 1 else ''} "
        + code(_text.cut(_text.first_line(s.text), _RECORD_WIDTH))
        for s in symptoms[:_SYMPTOMS]
    ]
    if len(symptoms) > _SYMPTOMS:
        rows.append(f"- … and {len(symptoms) - _SYMPTOMS} more")
    return ["**Errors that no rule matches**", "\n".join(rows)]


def _read(report: Report) -> str:
    name, said = read(report)
    return f"---\nRead {code(name)}: {inline(said)}."


def read(report: Report) -> tuple[str, str]:
    """What was read, with the capture's name only: reports are passed on, and paths contain user names."""
    info = report.capture
    parts = [
        f"raydoctor {__version__}",
        f"Ray {', '.join(info.ray_versions) or 'of unknown version'}",
        _text.plural(len(info.nodes), "node"),
        f"{_text.plural(info.files, 'file')} ({_text.size(info.bytes)})",
    ]
    if info.begin is not None and info.end is not None:
        zone = zone_of(info)
        parts.append(f"{_text.moment(info.begin)} to {_text.moment(info.end)} {zone}")
    return name_of(info.path), ", ".join(parts)


def name_of(path: str) -> str:
    """The name of a capture without its folders."""
    return os.path.basename(path.rstrip("/")) or path
