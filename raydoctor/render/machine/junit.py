"""Report -> JUnit's XML, as Jenkins, GitLab and GitHub's actions read it: one test suite.

Each root cause is a test case: a failure if it is severe enough for exit code 1, otherwise a passing case
that prints the cause. A report without a cause has one passing case. Missing evidence that could have hidden
a cause is an error then, so that an inconclusive run is never a green one.

Printable text has no character that XML excludes. Elements and attributes are those that Maven's Surefire,
pytest and Jenkins' `junit-10.xsd` have in common.
"""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from raydoctor.model import text as _text
from raydoctor.model.values import SEVERITIES, Diagnosis, Report, Severity
from raydoctor.render.page import plain
from raydoctor.render.report import incident

_NAME = 200


def render(report: Report, fail_on: str = "error") -> str:
    """The report as one XML document; `fail_on`: the lowest severity that is a failure, or `never`."""
    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on in SEVERITIES else ()
    suite = Xml.Element("testsuite", name="raydoctor")
    for root in report.roots or report.diagnoses:
        _cause(suite, report, root, failing)
    if not report.diagnoses:
        _nothing(suite, report)
    _evidence(suite, report, failing)
    counts = {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error"}
    for name, path in {**counts, "skipped": "testcase/skipped"}.items():
        suite.set(name, str(len(suite.findall(path))))
    suite.set("time", f"{report.stats.seconds:.3f}")
    if at := _text.utc(report.capture.end):
        suite.set(
            "timestamp", at.removesuffix("Z")
        )  # without a zone, as the schema of Ant wants it
    whole = Xml.Element("testsuites")
    whole.append(suite)
    Xml.indent(whole)
    return "<?xml version='1.0' encoding='UTF-8'?>\n" + Xml.tostring(whole, "unicode") + "\n"


def _cause(
    suite: Xml.Element, report: Report, root: Diagnosis, failing: tuple[Severity, ...]
) -> None:
    headline = _text.one_line(root.headline)
    case = _case(suite, root.rule, _text.cut(headline, _NAME))
    body = plain(incident(report, root))
    if root.severity in failing:
        Xml.SubElement(case, "failure", type=root.severity, message=headline).text = body
    else:
        Xml.SubElement(case, "system-out").text = body


def _nothing(suite: Xml.Element, report: Report) -> None:
    case = _case(suite, "diagnosis", "No cause of a failure was found")
    if report.unexplained:
        rows = [
            f"{each.file}:{each.line} {_text.first_line(each.text)}" for each in report.unexplained
        ]
        text = "\n".join(("Errors that no rule explains:", *rows))
        Xml.SubElement(case, "system-out").text = _text.printable(text)


def _evidence(suite: Xml.Element, report: Report, failing: tuple[Severity, ...]) -> None:
    """A case for missing evidence: an error if it is the reason for exit code 3, otherwise skipped."""
    if report.complete:
        return
    case = _case(suite, "evidence", "The evidence is complete")
    missing = [gap for gap in report.gaps if not gap.optional]
    rows = "\n".join(f"{gap.what}: {gap.why}. {gap.hint}".strip() for gap in missing)
    is_reason = not any(each.severity in failing for each in report.diagnoses)
    first = _text.one_line(f"inconclusive: {missing[0].what}: {missing[0].why}")
    kind = "error" if is_reason else "skipped"
    Xml.SubElement(case, kind, type="incomplete", message=first).text = _text.printable(rows)


def _case(suite: Xml.Element, classname: str, name: str) -> Xml.Element:
    # A case has a time in every reader's examples; ours has none of its own.
    return Xml.SubElement(
        suite, "testcase", classname=f"raydoctor.{classname}", name=name, time="0"
    )
