"""Report -> SARIF 2.1.0, for code scanning.

Each diagnosis is a result. A root's code flow is its chain, followed by the first sign of each consequence. A
consequence is `informational`, so that one incident is one alert. Unexplained errors and missing evidence are
notifications of the run: no viewer may show an incomplete run as a clean one. Paths are relative to the
capture (`originalUriBaseIds`).

Names and limits are those of the standard, sections 3.11 (messages), 3.27 (results) and 3.36 (code flows).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from raydoctor import rules
from raydoctor.case.rule import Rule
from raydoctor.diagnosis.fingerprint import fingerprint
from raydoctor.model import text as _text
from raydoctor.model.values import Diagnosis, Gap, Link, Remedy, Report, Severity, Unexplained
from raydoctor.model.version import __version__
from raydoctor.render import markdown
from raydoctor.render.json import dumps

_LEVELS: dict[Severity, str] = {
    "critical": "error",
    "error": "error",
    "warning": "warning",
    "info": "note",
}
_BASE = "CAPTURE"
_SNIPPET = 4_000
"""Characters of a record that a snippet holds."""
DOCS = "RAYDOCTOR_DOCS"
"""The environment variable with the address of the documentation site."""
_RAY = "https://docs.ray.io/"
_DEBUGGING = f"{_RAY}en/latest/ray-observability/user-guides/debug-apps/index.html"


def render(report: Report, others: Iterable[Rule] = ()) -> str:
    """The report as one SARIF log with one run; `others`: rules of the run besides raydoctor's own."""
    names = list(dict.fromkeys(d.rule for d in report.diagnoses))
    known = {rule.name: rule for rule in others}
    index = {name: number for number, name in enumerate(names)}
    roots = {root.id for root in report.roots or report.diagnoses}
    by_id = {d.id: d for d in report.diagnoses}
    run = {
        "tool": {
            "driver": {
                "name": "raydoctor",
                "version": __version__,
                "rules": [
                    _rule(name, known.get(name) or rules.find(name), _address(name, report))
                    for name in names
                ],
            }
        },
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    *map(_unexplained, report.unexplained),
                    *map(_gap, report.gaps),
                ],
            }
        ],
        "originalUriBaseIds": {
            _BASE: {"description": {"text": "The capture that was diagnosed."}},
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(d, index[d.rule], d.id in roots, by_id) for d in report.diagnoses],
        "properties": {"complete": report.complete, "rayVersions": [*report.capture.ray_versions]},
    }
    return dumps(
        {
            "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/"
            "sarif-schema-2.1.0.json",
            "version": "2.1.0",
            "runs": [run],
        }
    )


def rule_address(name: str) -> str:
    """The address of a rule's page on the site that `RAYDOCTOR_DOCS` names; empty without one."""
    site = os.environ.get(DOCS, "")
    is_site = site.startswith(("https://", "http://"))
    return f"{site.rstrip('/')}/rules/{quote(name, safe='')}/" if is_site else ""


def _address(name: str, report: Report) -> str:
    """The rule's page; without a site, the page of Ray's documentation that its fixes name, if any."""
    fixes = (r.doc for d in report.diagnoses if d.rule == name for r in d.remedies)
    return rule_address(name) or next((doc for doc in fixes if doc.startswith(_RAY)), _DEBUGGING)


def message(text: str) -> str:
    """Text on one line as a message: braces are placeholders, and brackets are links (3.11.5, 3.11.6)."""
    plain = _text.one_line(text).replace("\\", "\\\\") or "(no text)"
    return _braces(plain).replace("[", "\\[").replace("]", "\\]")


def _braces(text: str) -> str:
    """Text of a message, plain or Markdown, in which no brace begins a placeholder."""
    return text.replace("{", "{{").replace("}", "}}")


def _rule(name: str, rule: Rule | None, address: str) -> dict[str, Any]:
    """The rule's page is part of the log: `help`.

    SARIF does not treat it as a message: nothing is inserted, and readers show its braces as they are.
    """
    doc = rule.doc.strip() if rule else name
    return {
        "id": name,
        "shortDescription": {"text": message(_text.first_line(doc))},
        "help": {"text": f"raydoctor explain {name}", "markdown": doc},
        "helpUri": address,
        **({"defaultConfiguration": {"level": _LEVELS[rule.severity]}} if rule else {}),
    }


def _result(
    diagnosis: Diagnosis, rule: int, is_root: bool, by_id: dict[str, Diagnosis]
) -> dict[str, Any]:
    steps = [_step(link, 0) for link in diagnosis.chain]
    if is_root:
        steps += _consequences(diagnosis, by_id)
    text = "\n".join((message(diagnosis.headline), *_fixes(diagnosis.remedies)))
    return {
        "ruleId": diagnosis.rule,
        "ruleIndex": rule,
        # A result that does not fail has the level "none" (3.27.10).
        "kind": "fail" if is_root else "informational",
        "level": _LEVELS[diagnosis.severity] if is_root else "none",
        "message": {"text": text, "markdown": _markdown(diagnosis)},
        "locations": [_location(diagnosis.chain[0])],
        "codeFlows": [{"threadFlows": [{"locations": steps}]}],
        "partialFingerprints": {"cause/v1": fingerprint(diagnosis)},
        "occurrenceCount": max(1, diagnosis.count),
        "properties": {
            "id": diagnosis.id,
            "tier": diagnosis.tier,
            "severity": diagnosis.severity,
            "consequences": list(diagnosis.consequences),
        },
    }


def _consequences(root: Diagnosis, by_id: dict[str, Diagnosis]) -> Iterator[dict[str, Any]]:
    """The first sign of each consequence, nested as deep as it is in the tree; each once."""
    seen, waiting = {root.id}, [(1, name) for name in reversed(root.consequences)]
    while waiting:
        depth, name = waiting.pop()
        if name in seen or (below := by_id.get(name)) is None:
            continue
        seen.add(name)
        yield _step(below.chain[0], depth, f"{below.rule}: {below.headline}")
        waiting += [(depth + 1, each) for each in reversed(below.consequences)]


def _step(link: Link, depth: int, shows: str = "") -> dict[str, Any]:
    """One location of a code flow; `shows` replaces the link's own words."""
    location = {**_location(link), "message": {"text": message(shows or link.shows)}}
    at = _text.utc(link.event.at)
    return {
        "location": location,
        "nestingLevel": depth,
        **({"executionTimeUtc": at} if at else {}),
    }


def _location(link: Link) -> dict[str, Any]:
    snippet = _text.cut(_text.printable(link.event.text), _SNIPPET)
    region = {"startLine": max(1, link.event.line), "snippet": {"text": snippet}}
    return {
        "physicalLocation": {
            "artifactLocation": _artifact(link.event.source.path),
            "region": region,
        }
    }


def _artifact(path: str) -> dict[str, Any]:
    """A relative address below the capture; a name of a log can contain anything."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    data = "/".join(parts).encode("utf-8", "backslashreplace")
    return {"uri": quote(data, safe="/"), "uriBaseId": _BASE}


def _markdown(diagnosis: Diagnosis) -> str:
    parts = [markdown.inline(diagnosis.headline), *markdown.remedies(diagnosis.remedies)]
    return _braces("\n\n".join(parts))


def _fixes(remedies: Iterable[Remedy]) -> list[str]:
    return [f"Fix: {message(each.title)}" for each in remedies]


def _unexplained(symptom: Unexplained) -> dict[str, Any]:
    text = f"No rule explains this error: {_text.first_line(symptom.text)}"
    where = {
        "artifactLocation": _artifact(symptom.file),
        "region": {"startLine": max(1, symptom.line)},
    }
    return {
        "level": "warning",
        "message": {"text": message(text)},
        "locations": [{"physicalLocation": where}],
    }


def _gap(gap: Gap) -> dict[str, Any]:
    text = f"Missing evidence: {gap.what}: {gap.why}. {gap.hint}".strip()
    level = "note" if gap.optional else "warning"
    return {"level": level, "message": {"text": message(text)}}
