"""Report -> workflow commands of GitHub Actions: one annotation per root cause.

Every line is a command, so that no text of a log begins a line. The runner ends a message at a line break and
a property at `,` or `:`; these and `%` are encoded as its toolkit encodes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.model import text as _text
from raydoctor.model.values import Diagnosis, Report, Severity
from raydoctor.render.report import gist, place

_COMMANDS: dict[Severity, str] = {
    "critical": "error",
    "error": "error",
    "warning": "warning",
    "info": "notice",
}
_MOST = 8
"""Causes: GitHub shows ten annotations of a kind for a step, and two more can be warnings."""


def render(report: Report) -> str:
    """The annotations of the report, one a line."""
    return "".join(f"{line}\n" for line in _lines(report))


def _lines(report: Report) -> Iterator[str]:
    roots = report.roots or report.diagnoses
    for root in roots[:_MOST]:
        yield _command(_COMMANDS[root.severity], f"raydoctor: {root.rule}", _message(root))
    if (rest := len(roots) - _MOST) > 0:
        yield _command("notice", "raydoctor", _text.plural(rest, "more root cause"))
    if report.unexplained:
        count = _text.plural(len(report.unexplained), "error")
        first = report.unexplained[0]
        where = f"{first.file}:{first.line}: {_text.first_line(first.text)}"
        text = f"No rule explains {count}, the first at {where}"
        yield _command("warning", "raydoctor: unexplained", text)
    missing = [gap for gap in report.gaps if not gap.optional]
    if missing:
        rows = [f"{gap.what}: {gap.why}. {gap.hint}".strip() for gap in missing]
        text = "\n".join(("Inconclusive: some evidence is missing.", *rows))
        yield _command("warning", "raydoctor: evidence", text)
    elif not roots:
        yield _command("notice", "raydoctor", "No cause of a failure was found.")


def _message(root: Diagnosis) -> str:
    first = root.chain[0].event
    rows = [root.headline, f"Evidence: {place(first.source.path, first.line)}: {gist(first)}"]
    rows += [f"Fix: {remedy.title}" for remedy in root.remedies[:1]]
    return "\n".join(map(_text.one_line, rows))


def _command(name: str, title: str, text: str) -> str:
    data = _encoded(_text.printable(text))
    return f"::{name} title={_encoded(title).replace(':', '%3A').replace(',', '%2C')}::{data}"


def _encoded(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
