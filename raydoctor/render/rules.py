"""Rules -> pages: the catalogue, and one rule's own page."""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from raydoctor.capture.layout import DRIVER_OUTPUT, files_of, identify
from raydoctor.model import paste
from raydoctor.model import text as _text
from raydoctor.model.patterns import pattern
from raydoctor.model.version import __version__
from raydoctor.render.page import RISKS, Page, line, paragraph, plain_line

if TYPE_CHECKING:
    from raydoctor.case.rule import Example, Rule, Signal

CATALOGUE_SCHEMA = "raydoctor/rules/1"
RULE_SCHEMA = "raydoctor/rule/1"
_LONGEST_EXAMPLE, _FIRST, _LAST = 16, 10, 4
"""Lines: of a longer file, an example shows the first and the last ones (often the error itself)."""
_TELLING = pattern(r' *"(?:kind|name|reason|message|exitCode)": (?!"List"|[{\[])')
"""The lines of `kubectl get -o json` that a reader of an example needs."""
_FILES = 3
_KERNEL_LOG = files_of("kernel")
_ORDINARY = (
    "autoscaler.config",
    "driver.connecting",
    "driver.exception",
    "job.finished",
    "kuberay.error",
    "log.traceback",
    "node.registered",
    "pg.registered",
    "raylet.started",
    "ray.version",
    "serve.raised",
    "store.size",
    "submission.started",
)
"""Records of healthy sessions, and the beginnings of all exceptions: searches for them find everything."""
_PLACEHOLDER = "DRIVER_OUTPUT"
_OPERATOR = "kubectl logs -n NAMESPACE deploy/kuberay-operator"
SPAN = re.compile(r"(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)", re.DOTALL)
CLASS = r"(?:\w+\.)*[A-Z]\w+(?:Error|Exception|Exceeded)"
_MESSAGE = re.compile(rf"(?=.*[A-Z])(?:.*\w{{2}}.* .*\w{{2}}.*|{CLASS})")
"""A code span that is a message of Ray or the name of an exception: worth an entry in the index."""
_VARIES = re.compile(r"…|\d[\d.,]*|<[^<>]*>|\{[^{}]*\}?|'[a-z]?\b|['\"`]|\bN\b")
"""What differs between two records of a message that a page quotes, or cannot be quoted for a shell."""
_ELSEWHERE = re.compile(r"kubectl|sacct|HTTP clients")
"""Words of a sentence about the output of another tool."""
_LETTERS = 8
"""Letters that a literal must have, unless it reports a failure: ` MiB, ` is in too many lines."""


def summary(rule: Rule) -> str:
    """The first sentence of a rule's page."""
    return _text.first_line(rule.doc)


# ---------------------------------------------------------------- the catalogue


def catalogue(rules: Sequence[Rule], width: int) -> Page:
    """Every rule with its sentence, by tier."""
    room = max((len(rule.name) for rule in rules), default=0)
    page: Page = []
    for tier, group in groupby(rules, key=lambda rule: rule.tier):
        page += [line((f"{tier.capitalize()}s: {TIERS[tier]}", "dim"))]
        for rule in group:
            wrapped = paragraph(summary(rule), width - room - 13)
            left = [(f"  {rule.name:{room}}  ", "rule"), (f"{rule.severity:8} ", rule.severity)]
            page.append((*line(*left), *(wrapped[0] if wrapped else ())))
            page += [(*line(" " * (room + 13)), *more) for more in wrapped[1:]]
        page.append(())
    page.append(line((f"{_text.plural(len(rules), 'rule')}. One in full: ", "dim"),
                     ("raydoctor explain RULE", "code")))  # fmt: skip
    return page


TIERS = {
    "root": "where an incident starts",
    "cause": "explains symptoms, and may itself have a root cause",
    "symptom": "what the program saw",
}


def catalogue_json(rules: Iterable[Rule]) -> str:
    """The catalogue as one JSON object."""
    from raydoctor.render.json import dumps

    return dumps(
        {
            "schema": CATALOGUE_SCHEMA,
            "version": __version__,
            "rules": [_heading(rule) for rule in rules],
        }
    )


def catalogue_markdown(rules: Iterable[Rule]) -> str:
    """The catalogue as a Markdown table."""
    rows = [
        f"| `{rule.name}` | {rule.tier} | {rule.severity} | {_cell(summary(rule))} |"
        for rule in rules
    ]
    return (
        "\n".join(["| rule | tier | severity | what it finds |", "|---|---|---|---|", *rows]) + "\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


def _heading(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "tier": rule.tier,
        "severity": rule.severity,
        "summary": summary(rule),
    }


# ---------------------------------------------------------------- one rule


def rule_page(rule: Rule, width: int, searched: Iterable[Signal]) -> Page:
    """A rule's page: its text, searches for these signals, remedies and an example."""
    head = line(
        *((rule.name, "rule"), "  severity: ", (rule.severity, rule.severity)),
        (f"; tier: {rule.tier} ({TIERS[rule.tier]})", "dim"),
    )
    page = [head, (), *_prose(rule.doc, width)]
    page += _signals(rule, searched)
    page += _remedies(rule, width)
    page += _example(rule)
    return page


def _prose(doc: str, width: int) -> Page:
    """The page's own text: headings highlighted, paragraphs and bullets wrapped, code unchanged."""
    page: Page = []
    for block in doc.strip().split("\n\n"):
        for kind, lines in groupby(block.split("\n"), key=kind_of):
            page += _block(kind, list(lines), width)
        page.append(())
    return page


def kind_of(text: str) -> str:
    """The kind of a page's line: heading, code or text."""
    if text.startswith("## "):
        return "heading"
    if text.startswith("    "):
        return "code"
    return "text"


def _block(kind: str, lines: list[str], width: int) -> Page:
    if kind == "heading":
        return [line((text.removeprefix("## "), "strong")) for text in lines]
    if kind == "code":
        return [line((text, "code")) for text in lines]
    page: Page = []
    for item in items(lines):
        page += paragraph(item, width, hang=2 if item.startswith("- ") else 0)
    return page


def items(lines: Iterable[str]) -> list[str]:
    """Each bullet with the lines that continue it."""
    found: list[str] = []
    for text in lines:
        if found and not text.startswith("- "):
            found[-1] += " " + text.strip()
        else:
            found.append(text)
    return found


def _signals(rule: Rule, searched: Iterable[Signal]) -> Page:
    page: Page = []
    for title, signals in sorted_signals(rule, searched):
        page += [line((title, "strong"))]
        found = list(commands(rule, signals))
        found += other_commands(rule, found) if not page[1:] else ()
        page += [
            line((command, "code"), (f"   # {files}", "dim"), indent=2) for command, files in found
        ]
        page.append(())
    if any(_PLACEHOLDER in plain_line(each) for each in page):
        page[-1:] = [
            line(
                f"Replace {_PLACEHOLDER} with the file that holds the driver's output. "
                "Each comment names the files that can contain the text."
            ),
            (),
        ]
    return page


def sorted_signals(rule: Rule, signals: Iterable[Signal]) -> Iterator[tuple[str, list[Signal]]]:
    """The signals under two titles: those of this failure, and those that show another one.

    The latter are those that the page quotes only below "Not this when" and no positive example contains.
    """
    page, _, other = (" ".join(part.split()) for part in rule.doc.partition("## Not this when"))
    found = "\n".join(c for files in _positive(rule) for c in files.values())
    listed = list(signals)
    against = [
        s
        for s in listed
        if s.find.strip() in other and s.find.strip() not in page and s.find not in found
    ]
    if speaking := [s for s in listed if s not in against]:
        yield "Search the logs by hand", speaking
    if against:
        yield "Lines that rule this out", against


def _positive(rule: Rule) -> list[Mapping[str, str]]:
    """The files of the examples in which the rule finds something."""
    return [e.files for e in rule.examples if rule.name in (*e.roots, *e.consequences)]


def is_specific(signal: Signal) -> bool:
    """Whether a search for the signal's literal finds few lines of a healthy session."""
    letters = sum(map(str.isalpha, signal.find))
    return signal.kind not in _ORDINARY and (signal.symptom or letters >= _LETTERS)


def commands(rule: Rule, signals: Iterable[Signal]) -> Iterator[tuple[str, str]]:
    """The command that searches for each literal, and the files that can contain it."""
    by_literal: dict[tuple[str, str], dict[str, None]] = {}
    of_kubernetes = set()
    for signal in signals:
        if signal.kind.startswith(("kube.", "kuberay.")):
            of_kubernetes.add(_from_a_word(signal))
        files = dict.fromkeys(map(files_of, signal.roles))
        by_literal.setdefault(_from_a_word(signal), {}).update(files)
    printed = "\n".join(
        content
        for files in _positive(rule)
        for path, content in files.items()
        if (source := identify(path)) and files_of(source.role) == DRIVER_OUTPUT
    )
    for (flag, literal), files in by_literal.items():
        if (flag, literal) in of_kubernetes:
            search = f"grep -F{flag} -e {shlex.quote(literal)}"
            yield f"{_OPERATOR} | {search}", "the operator's log, or what kubectl or helm printed"
            continue
        if [*files] == [_KERNEL_LOG]:
            yield (
                f"sudo dmesg -T | grep -F{flag} -e {shlex.quote(literal)}",
                "the node's kernel log",
            )
            continue
        of_program = files.pop(DRIVER_OUTPUT, True) is None or literal in printed
        shown = [*files][:_FILES] or ["what the program printed"]
        places = ["/tmp/ray/session_latest/logs/"] * bool(files) + [_PLACEHOLDER] * of_program
        yield (
            f"grep -{'r' * bool(files)}F{flag} -e {shlex.quote(literal)} {' '.join(places)}",
            ", ".join([*shown, *(["…"] if len(files) > _FILES else [])]),
        )


def other_commands(rule: Rule, found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """A search for each message below "What you see" that none of these commands finds."""
    literals = [shlex.split(command)[shlex.split(command).index("-e") + 1] for command, _ in found]
    is_of_operator = any(command.startswith(_OPERATOR) for command, _ in found)
    for item in _seen(rule):
        for message in () if _ELSEWHERE.search(item) else _quoted(item):
            text = message.lower()
            if re.fullmatch(CLASS, message) or any(
                each.strip().lower() in text for each in literals
            ):
                continue
            longest = max(_VARIES.split(message), key=len).strip().lstrip("])},.;: ")
            if sum(map(str.isalpha, longest)) <= _LETTERS:
                continue
            literals.append(longest)
            if "kernel log" in item:
                yield f"sudo dmesg -T | grep -F -e {shlex.quote(longest)}", "the node's kernel log"
            elif is_of_operator and "operator" in item:
                yield f"{_OPERATOR} | grep -F -e {shlex.quote(longest)}", "the operator's log"
            else:
                places = f"/tmp/ray/session_latest/logs/ {_PLACEHOLDER}"
                yield f"grep -rF -e {shlex.quote(longest)} {places}", "any log"


def messages(rule: Rule) -> list[str]:
    """Messages and exceptions that the page quotes below "What you see"."""
    return list(dict.fromkeys(message for item in _seen(rule) for message in _quoted(item)))


def _seen(rule: Rule) -> list[str]:
    """The bullets and paragraphs below "What you see"."""
    section = rule.doc.partition("## What you see")[2].partition("\n## ")[0]
    return [item for part in section.strip().split("\n\n") for item in items(part.split("\n"))]


def _quoted(item: str) -> Iterator[str]:
    spans = (" ".join(span[0].strip("` \n").split()) for span in SPAN.finditer(item))
    return (span for span in spans if _MESSAGE.fullmatch(span))


def _from_a_word(signal: Signal) -> tuple[str, str]:
    """grep's flag, and the literal from the beginning of a word.

    A literal without its first letter (`ersion mismatch`) is in both spellings, but looks like a mistake.
    """
    if not signal.find[:1].islower() or signal.find not in signal.sample:
        return "", signal.find
    before = signal.sample.partition(signal.find)[0]
    if before.endswith("'"):
        return "", signal.find.partition(" ")[2]
    half = before[len(before.rstrip(string.ascii_letters)) :]
    return ("i", half.lower() + signal.find) if half else ("", signal.find)


def _remedies(rule: Rule, width: int) -> Page:
    """The rule's constant remedies; many rules compute theirs from the evidence."""
    page: Page = []
    for remedy in rule.remedies:
        risk = f" [{RISKS[remedy.risk]}]" if remedy.risk in RISKS else ""
        page += paragraph(f"{remedy.title}{risk}", width, indent=2, hang=2)
        page += [
            line((step, "code" if paste.is_code(step) else ""), indent=4)
            for steps in remedy.steps
            for step in steps.split("\n")
        ]
        page += [line((remedy.doc, "dim"), indent=4)] if remedy.doc else []
    return [line(("Remedies", "strong")), *page, ()] if page else []


def example_of(rule: Rule) -> Example | None:
    """The typical example, or the first one in which the rule finds something."""
    found = [e for e in rule.examples if e.roots or e.consequences]
    return next((e for e in found if e.is_typical), next(iter(found), None))


def excerpt(path: str, content: str) -> list[str]:
    """The lines of an example's file; of long JSON only those that name an object or what happened to it."""
    lines = content.rstrip("\n").split("\n")
    if path.endswith(".json") and len(lines) > _FIRST:
        telling = [text.strip() for text in lines if _TELLING.match(text)]
        lines = [text for text, _ in groupby(telling)] or lines
    if len(lines) <= _LONGEST_EXAMPLE:
        return lines
    left = _text.plural(len(lines) - _FIRST - _LAST, "line")
    return [*lines[:_FIRST], f"… {left} …", *lines[-_LAST:]]


def _example(rule: Rule) -> Page:
    example = example_of(rule)
    if example is None:
        return []
    page = [line(("Example", "strong"), f": {example.title}")]
    for path, content in example.files.items():
        if content.strip():
            page.append(line((path, "path"), indent=2))
            page += [
                line((_text.short_ids(text), "dim"), indent=4) for text in excerpt(path, content)
            ]
    return page


def rule_json(rule: Rule) -> str:
    """A rule's page as one JSON object."""
    from raydoctor.render.json import dumps, remedy

    example = example_of(rule)
    return dumps(
        {
            "schema": RULE_SCHEMA,
            "version": __version__,
            **_heading(rule),
            "doc": rule.doc,
            "signals": [_signal(signal) for signal in rule.looks_for],
            "remedies": [remedy(each) for each in rule.remedies],
            "example": example
            and {
                "title": example.title,
                "files": dict(example.files),
                "roots": list(example.roots),
                "consequences": list(example.consequences),
            },
        }
    )


def _signal(signal: Signal) -> dict[str, Any]:
    return {
        "kind": signal.kind,
        "find": signal.find,
        "pattern": signal.pattern,
        "roles": list(signal.roles),
        "sample": signal.sample,
        "symptom": signal.symptom,
    }
