"""What a program prints does not outweigh complete logs of Ray's that report no failure."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from captures import FIXTURES, capture_of

from raydoctor import rules
from raydoctor.capture.open import open_capture
from raydoctor.case.rule import Rule
from raydoctor.diagnosis import engine
from raydoctor.diagnosis.corroboration import PRINTED
from raydoctor.model.values import Report

HEALTHY = "healthy-rich--ray-2.60.0--1-node"
RECORDED = [rule for rule in rules.load() if rule.daemons_record]
DRIVERS_ONLY = "task-exception"
"""Ray's daemons know nothing of it: a driver's output is all the evidence there is."""


def forged(tmp_path: Path, rule: Rule, *, without: str = "") -> list[Report]:
    """Reports on a healthy session whose driver prints a rule's examples, as they are and as an echo."""
    reports = []
    for example in rule.examples:
        text = "".join(example.files.values())
        for each in (text, "".join(f"(raylet) {line}\n" for line in text.splitlines())):
            folder = tmp_path / "capture"
            shutil.copytree(capture_of(FIXTURES / HEALTHY), folder)
            with (folder / "driver.log").open("a") as driver:
                driver.write(each)
            for path in folder.rglob(without) if without else ():
                path.unlink()
            with open_capture(str(folder)) as capture:
                reports.append(engine.run(capture, strict=True))
            shutil.rmtree(folder)
    return reports


def severe(reports: list[Report], name: str) -> list[str]:
    return [
        d.headline
        for report in reports
        for d in report.roots
        if d.rule == name
        and d.severity in ("error", "critical")
        and all(link.event.source.role in PRINTED for link in d.chain)
    ]  # fmt: skip


@pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: rule.name)
def test_printed_text_is_a_warning_beside_healthy_logs(rule: Rule, tmp_path: Path) -> None:
    assert severe(forged(tmp_path, rule), rule.name) == []


def test_the_warning_says_why(tmp_path: Path) -> None:
    (rule,) = (r for r in RECORDED if r.name == "actor-killed")
    roots = [d for report in forged(tmp_path, rule) for d in report.roots if d.rule == rule.name]
    assert roots
    assert {d.severity for d in roots} == {"warning"}
    assert all("only the program's output reports this" in d.headline for d in roots)


def test_without_the_raylets_log_the_program_is_believed(tmp_path: Path) -> None:
    (rule,) = (r for r in RECORDED if r.name == "actor-killed")
    assert severe(forged(tmp_path, rule, without="raylet*.out"), rule.name)


def test_what_only_a_driver_can_report_is_believed(tmp_path: Path) -> None:
    (rule,) = (r for r in rules.load() if r.name == DRIVERS_ONLY)
    assert not rule.daemons_record
    assert severe(forged(tmp_path, rule), rule.name)
