"""Every fixture, the capture of a real Ray that was really broken, against what it must give.

`fixture.toml` says which roots are right; `report.json` is the golden report, rewritten by
`pytest --update-golden`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from captures import capture_of, report_of

from raydoctor import rules
from raydoctor.model.values import Event, Report, Unexplained
from raydoctor.render.json import render

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIXTURES = Path(__file__).parent.parent / "fixtures"
ALL = sorted(path.parent for path in FIXTURES.glob("*/fixture.toml"))
SERIOUS = ("critical", "error")
HARMLESS = [
    f
    for f in ALL
    if not any((t := tomllib.loads((f / "fixture.toml").read_text()))[k] for k in ("roots", "may"))
]
"""Nothing went wrong, or nothing that was not wanted; what a retry healed is a warning, and not here."""


def expected(fixture: Path) -> dict[str, Any]:
    return tomllib.loads((fixture / "fixture.toml").read_text())


NOT_PROVOKED = {
    "cuda-oom": "needs a GPU",
    "nccl-failure": "needs GPUs",
    "ray-check-failed": "a defect of Ray's own",
    "serve-proxy-unready": "Ray 2.9 on a busy machine; no capture of it is small",
    "task-queue-backlog": "needs more than a thousand actors",
}
"""Rules without a fixture, and why; their examples have the words of Ray's sources."""


def test_every_other_rule_has_a_fixture() -> None:
    found = {
        told["rule"]
        for fixture in ALL
        for told in json.loads((fixture / "report.json").read_text())["diagnoses"]
    }
    assert set(rules.names()) - found == set(NOT_PROVOKED)


def unforeseen(fixture: Path, report: Report) -> list[Unexplained]:
    """What is left unexplained, without the kinds of errors that the program itself logged."""
    leaves = expected(fixture).get("leaves", [])
    return [each for each in report.unexplained if each.kind not in leaves]


def test_there_are_fixtures() -> None:
    assert len(ALL) >= 50
    assert len(HARMLESS) >= 6


@pytest.mark.parametrize("fixture", ALL, ids=lambda f: f.name)
def test_roots(fixture: Path) -> None:
    wanted, report = expected(fixture), report_of(fixture)
    serious = [d.rule for d in report.roots if d.severity in SERIOUS]
    allowed = {*wanted["roots"], *wanted["may"]}
    assert set(serious) <= allowed, "a false root"
    assert set(wanted["roots"]) <= {d.rule for d in report.roots}
    if wanted["roots"]:
        assert report.roots[0].rule in wanted["roots"], "the first root must be right"
    below = {d.rule for d in report.diagnoses} - {d.rule for d in report.roots}
    assert set(wanted["consequences"]) <= below
    assert unforeseen(fixture, report) == [], "every symptom is explained"


@pytest.mark.parametrize("fixture", HARMLESS, ids=lambda f: f.name)
def test_nothing_is_found_where_nothing_is_wrong(fixture: Path) -> None:
    report = report_of(fixture)
    assert [d for d in report.diagnoses if d.severity != "info"] == []
    assert unforeseen(fixture, report) == []
    if fixture.name.startswith(("healthy", "lookalike", "live-healthy", "live-busy")):
        assert report.diagnoses == ()


@pytest.mark.parametrize("fixture", ALL, ids=lambda f: f.name)
def test_every_link_names_a_line(fixture: Path) -> None:
    for diagnosis_ in report_of(fixture).diagnoses:
        assert diagnosis_.chain
        for link in diagnosis_.chain:
            lines = (capture_of(fixture) / link.event.source.path).read_bytes().split(b"\n")
            told = lines[link.event.line - 1].decode("utf-8", "replace")
            assert is_told(link.event, told)


def is_told(event: Event, line: str) -> bool:
    """Whether this is the line of the event: of a log, or a row of a table of a live capture."""
    if event.kind == "live.table":
        return f'"table": "{event["name"]}"' in line
    if not event.kind.startswith("live."):
        return event.text.splitlines()[0][:20].strip() in line or "\x1b" in line
    row = json.loads(line.removesuffix(","))
    return set(row) == set(event.fields) and all(
        event[key] == value for key, value in row.items() if isinstance(value, str)
    )


def essence(report: Report) -> dict[str, Any]:
    """What a reader of a golden report compares: who, why, where, how many, what to do."""
    told = json.loads(render(report))
    return {
        "diagnoses": [
            {
                **{
                    key: d[key] for key in ("rule", "severity", "headline", "count", "consequences")
                },
                "chain": [f"{link['file']}:{link['line']} {link['shows']}" for link in d["chain"]],
                "remedies": [[r["title"], *r["steps"]] for r in d["remedies"]],
                "gaps": [g["what"] for g in d["gaps"]],
            }
            for d in told["diagnoses"]
        ],
        "unexplained": told["unexplained"],
        "gaps": [g["what"] for g in told["gaps"]],
    }


@pytest.mark.parametrize("fixture", ALL, ids=lambda f: f.name)
def test_golden(fixture: Path, request: pytest.FixtureRequest) -> None:
    now = essence(report_of(fixture))
    golden = fixture / "report.json"
    if request.config.getoption("--update-golden"):
        golden.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n")
    assert now == json.loads(golden.read_text())


@pytest.mark.parametrize(
    "fixture", [f for f in ALL if f.name.startswith("owner-died-oom")], ids=lambda f: f.name
)
def test_owner_died_is_traced_to_the_memory_kill(fixture: Path) -> None:
    report = report_of(fixture)
    (root,) = report.roots
    assert root.rule == "ray-oom-kill"
    below = [d for d in report.diagnoses if d.id in root.consequences]
    assert "owner-died" in [d.rule for d in below]
