"""Metrics in Prometheus' text format 0.0.4, which is valid OpenMetrics as well: gauges only, and `# EOF`.

The number of series is bounded: labels are names of rules, kinds and levels, never text of a log. A file of
node_exporter's textfile collector, or `watch --serve`, takes them to Prometheus.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from raydoctor.model.values import Report
from raydoctor.model.version import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    """A gauge with its samples."""

    name: str
    """Without the prefix `raydoctor_`."""
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]
    """Labels and value of each."""


def render(report: Report) -> str:
    """The findings of a report."""
    roots = {root.id for root in report.roots or report.diagnoses}
    found = Counter(
        (d.rule, d.severity, "root" if d.id in roots else "consequence") for d in report.diagnoses
    )
    return text(
        [
            Family(
                "diagnoses",
                "Diagnoses of the last run, by rule.",
                [
                    ({"rule": rule, "severity": severity, "place": place}, count)
                    for (rule, severity, place), count in sorted(found.items())
                ],
            ),
            single(
                "unexplained_errors",
                "Errors that no rule explains.",
                sum(each.count for each in report.unexplained),
            ),
            *evidence(
                sum(not gap.optional for gap in report.gaps), "could have hidden a diagnosis"
            ),
            single("run_duration_seconds", "Duration of the last run.", report.stats.seconds),
            *run(),
        ]
    )


def single(name: str, explanation: str, value: float) -> Family:
    """A gauge without labels."""
    return Family(name, explanation, [({}, value)])


def counts(name: str, explanation: str, label: str, values: Iterable[str]) -> Family:
    """How often each value of a label occurs."""
    found = sorted(Counter(values).items())
    return Family(name, explanation, [({label: value}, count) for value, count in found])


def evidence(missing: int, effect: str) -> Iterator[Family]:
    """Whether the last run had all evidence: zero findings alone are no all-clear."""
    yield single("evidence_gaps", f"Missing evidence that {effect}.", missing)
    yield single("evidence_complete", "Whether no such evidence is missing.", not missing)


def run() -> Iterator[Family]:
    """When, and by which version."""
    yield single("last_run_timestamp_seconds", "When the last run ended.", round(time.time(), 3))
    yield Family("build_info", "The version of raydoctor.", [({"version": __version__}, 1)])


def text(families: Iterable[Family]) -> str:
    """The families as a document."""
    return "".join(f"{line}\n" for family in families for line in _lines(family)) + "# EOF\n"


def _lines(family: Family) -> Iterator[str]:
    name = f"raydoctor_{family.name}"
    yield f"# HELP {name} {family.help}"
    yield f"# TYPE {name} gauge"
    for labels, value in family.samples:
        shown = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        yield f"{name}{{{shown}}} {float(value)!r}" if shown else f"{name} {float(value)!r}"


def _escaped(value: str) -> str:
    """A label's value: backslash, quotation mark and line break are escaped; the rest is UTF-8."""
    value = value.encode("utf-8", "backslashreplace").decode()
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
