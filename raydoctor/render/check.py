"""Checks of a machine -> page or JSON."""

from __future__ import annotations

from collections.abc import Sequence

from raydoctor.model import paste, text
from raydoctor.model.version import __version__
from raydoctor.observe.preflight.checks import Check
from raydoctor.render.json import dumps
from raydoctor.render.page import MAX_WIDTH, Line, Page, line, paragraph

SCHEMA = "raydoctor/check/1"
_STYLES = {"fail": "error", "gap": "warning", "warn": "warning", "ok": "ok", "n/a": "dim"}
"""Outcomes, in the order of the page."""
_VERDICTS = {"fail": ("NOT FIT FOR RAY", "error"), "gap": ("INCONCLUSIVE", "warning")}


def render(checks: Sequence[Check], width: int = MAX_WIDTH) -> Page:
    """The verdict, then a line for each check with its fix below: failures first, then warnings."""
    checks = sorted(checks, key=lambda check: list(_STYLES).index(check.outcome))
    room = max((text.cells(check.name) for check in checks), default=0)
    indent = 4 + 2 + room + 2
    page: Page = [_verdict(checks), ()]
    for check in checks:
        left = line(
            (f"{check.outcome:4}  ", _STYLES[check.outcome]), (f"{check.name:{room}}  ", "")
        )
        lines = paragraph(check.found, width - indent)
        page.append((*left, *lines[0]) if lines else left)
        page += [(*line(" " * indent), *more) for more in lines[1:]]
        page += _fix(check.fix, width, indent) if check.fix else []
    return page


def _fix(fix: str, width: int, indent: int) -> Page:
    """Lines to paste are never wrapped; prose is."""
    if paste.is_code(fix):
        return [line((fix, "code"), indent=indent)]
    return paragraph(fix, width, indent=indent)


def _verdict(checks: Sequence[Check]) -> Line:
    """`FIT FOR RAY  20 checks: 1 warning, 17 ok, 2 not applicable`."""
    counts = {outcome: sum(c.outcome == outcome for c in checks) for outcome in _STYLES}
    parts = [
        text.plural(counts["fail"], "failure") if counts["fail"] else "",
        f"{counts['gap']} not checked" if counts["gap"] else "",
        text.plural(counts["warn"], "warning") if counts["warn"] else "",
        f"{counts['ok']} ok" if counts["ok"] else "",
        f"{counts['n/a']} not applicable" if counts["n/a"] else "",
    ]
    verdict = next((_VERDICTS[o] for o in _VERDICTS if counts[o]), ("FIT FOR RAY", "ok"))
    return line(verdict, f"  {text.plural(len(checks), 'check')}: {', '.join(filter(None, parts))}")


def to_json(checks: Sequence[Check]) -> str:
    """The checks as one JSON object. Keys are added, never renamed."""
    return dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "checks": [
                {"name": c.name, "outcome": c.outcome, "found": c.found, "fix": c.fix}
                for c in checks
            ],
        }
    )
