"""What Jenkins' `junit-10.xsd` allows in a JUnit report, and a reader would misunderstand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.dom import minidom
from xml.etree import ElementTree as Xml

_ELEMENTS: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), set(), {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"skipped", "time", "timestamp"},
        {"testcase"},
    ),
    "testcase": (
        {"name", "classname", "time"},
        set(),
        {"failure", "error", "skipped", "system-out"},
    ),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}
"""Element -> attributes that it needs and may have, and its children."""
_COUNTS = {
    "tests": "testcase",
    "failures": "testcase/failure",
    "errors": "testcase/error",
    "skipped": "testcase/skipped",
}
_TIME = re.compile(r"\d+(\.\d+)?")
"""Stricter than `SUREFIRE_TIME` of the schema, which allows commas as well."""
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def problems(document: str) -> Iterator[str]:
    """What is wrong with a report."""
    root = Xml.fromstring(document)
    if root.tag != "testsuites":
        yield f"the root is {root.tag}"
    for element in root.iter():
        yield from _structure(element)
    for suite in root:
        yield from _suite(suite)
    # A second parser, which reads the bytes of the file, finds the same.
    nodes = minidom.parseString(document.encode()).getElementsByTagName("*")
    if [node.tagName for node in nodes] != [each.tag for each in root.iter()]:
        yield "two parsers disagree"


def _structure(element: Xml.Element) -> Iterator[str]:
    if element.tag not in _ELEMENTS:
        yield f"element {element.tag}"
        return
    needed, allowed, children = _ELEMENTS[element.tag]
    names = set(element.attrib)
    if not needed <= names <= needed | allowed:
        yield f"attributes of {element.tag}: {sorted(names)}"
    if not {child.tag for child in element} <= children:
        yield f"children of {element.tag}: {[child.tag for child in element]}"
    if children and (element.text or "").strip():
        yield f"text in {element.tag}"


def _suite(suite: Xml.Element) -> Iterator[str]:
    for name, path in _COUNTS.items():
        if suite.get(name) != str(len(suite.findall(path))):
            yield f"{name} is {suite.get(name)}"
    if not _TIME.fullmatch(suite.get("time", "")):
        yield f"time {suite.get('time')}"
    if not _STAMP.fullmatch(suite.get("timestamp", "2026-01-01T00:00:00")):
        yield f"timestamp {suite.get('timestamp')}"
    for case in suite:
        if len(case) > 1:
            yield f"a case with {[child.tag for child in case]}"
