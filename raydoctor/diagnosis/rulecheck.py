"""Checks of rules, both raydoctor's own and those of plugin authors: `raydoctor rules test DIR`.

Each check yields its problems as sentences. The project's own tests call the same functions.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from raydoctor.capture import owners
from raydoctor.capture.open import open_capture
from raydoctor.case import Case
from raydoctor.case.rule import Example, Rule, Signal
from raydoctor.diagnosis import engine
from raydoctor.diagnosis.plugins import Catalogue
from raydoctor.model.values import Finding, Remedy, Report

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_parse as parser

HEADINGS = ("What you see", "Why", "Confirm", "Fix", "Not this when")
MOST_WORDS = 35
"""In a headline; a reader takes in more only at a second reading."""
_TRIES = 25
_FILL_IN = re.compile(r"\bFILL-IN\b")
"""The marker of `raydoctor rules new` for the parts that the author has to write."""


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """A problem of a rule."""

    rule: str
    where: str
    """`page`, `steps`, `signal KIND: LITERAL`, or `example TITLE`."""
    what: str


def check(
    rule: Rule, catalogue: Catalogue, run: Callable[[Example], ExampleRun] | None = None
) -> Iterator[RuleProblem]:
    """All problems of a rule. Its examples run with the whole catalogue, or by `run`."""
    for what in (*page_problems(rule), *shape_problems(rule)):
        yield RuleProblem(rule.name, "page", what)
    for where, what in unfinished(rule):
        yield RuleProblem(rule.name, where, what)
    for what in line_problems(_source_of(rule)):
        yield RuleProblem(rule.name, "steps", what)
    for signal in rule.looks_for:
        for what in signal_problems(signal):
            yield RuleProblem(rule.name, f"signal {signal.kind}: {signal.find}", what)
    for example in rule.examples:
        report, found = run(example) if run else run_example(example, catalogue)
        for what in example_problems(rule, example, report, found):
            yield RuleProblem(rule.name, f"example {example.title}", what)


def page_problems(rule: Rule) -> Iterator[str]:
    """The module's docstring: a sentence, then the five headings, each with text."""
    summary, _, page = rule.doc.partition("\n")
    if not summary.endswith("."):
        yield "the first line of the docstring must be one sentence that ends in a full stop"
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)+)", page + "\n", re.MULTILINE))
    if tuple(sections) != HEADINGS:
        yield f"the headings must be {', '.join(HEADINGS)}; they are {', '.join(sections) or 'none'}"
    for heading, text in sections.items():
        if not text.strip():
            yield f"no text below {heading!r}"
    if not sections.get(HEADINGS[-1], "- ").startswith("- "):
        yield f"each condition below {HEADINGS[-1]!r} must be a bullet (- the disk was fine)"


def shape_problems(rule: Rule) -> Iterator[str]:
    """The rule needs a signal, a positive and a negative example."""
    named = [rule.name in (*e.roots, *e.consequences) for e in rule.examples]
    if not rule.looks_for:
        yield "looks_for is empty: the rule needs a signal"
    if True not in named:
        yield "no positive example: one must name it among its roots or consequences"
    if False not in named:
        yield "no negative example: one must not name it"


def unfinished(rule: Rule) -> Iterator[tuple[str, str]]:
    """(place, problem) wherever a `FILL-IN` of the skeleton is left."""
    texts = [
        ("page", rule.doc),
        *((f"signal {s.kind}", f"{s.find} {s.pattern} {s.sample}") for s in rule.looks_for),
        *((f"remedy {r.title}", " ".join((r.title, *r.steps))) for r in rule.remedies),
        *((f"example {e.title}", " ".join((e.title, *e.files.values()))) for e in rule.examples),
    ]
    for where, text in texts:
        if count := len(_FILL_IN.findall(text)):
            yield where, f"FILL-IN is left {'once' if count == 1 else f'{count} times'}"


def signal_problems(signal: Signal) -> Iterator[str]:
    """The sample matches, and the pattern cannot match without the literal."""
    if re.search(r"[\\\t\n]" if signal.with_header else r"[\"\\\t\n]", signal.find):
        yield "the literal contains a character that JSON logs escape"
    if signal.find not in signal.sample:
        yield "the sample does not contain the literal"
    if not signal.regex.search(signal.sample):
        yield "the pattern does not match the sample"
    if (text := _without_literal(signal)) is not None:
        yield f"the pattern matches {text!r}, which does not contain the literal"


def proves_literals() -> bool:
    """Whether hypothesis is installed, which searches for counterexamples (`raydoctor[test]`)."""
    try:
        import hypothesis  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def _without_literal(signal: Signal) -> str | None:
    """A text that the pattern accepts and ripgrep would not find; None if the search found none."""
    if not proves_literals() or holds(signal.regex, signal.find):
        return None
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis import strategies as st
    from hypothesis.errors import NoSuchExample

    few = settings(
        max_examples=_TRIES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        return find(st.from_regex(signal.regex), lambda text: signal.find not in text, settings=few)
    except NoSuchExample:
        return None


_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def holds(regex: re.Pattern[str], literal: str) -> bool:
    """Whether the pattern itself proves that every match contains the literal.

    It does if the literal's characters are consecutive in a part that no match lacks. Otherwise only a search
    for counterexamples can show it.
    """
    if regex.flags & re.IGNORECASE:
        return False
    return _is_in_all(parser.parse(regex.pattern, regex.flags), literal)


def _is_in_all(items: Any, literal: str) -> bool:
    """Whether every text that matches a parsed sequence contains the literal."""
    run = ""
    for code, value in _flat(items):
        if code == "AT":
            continue  # a place, no character
        run = run + chr(value) if code == "LITERAL" else ""
        if literal in run or _is_in_part(code, value, literal):
            return True
    return False


def _flat(items: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a sequence, in which each group is replaced by its parts."""
    for code, value in items:
        if f"{code}" == "SUBPATTERN" and not value[1] & re.IGNORECASE:
            yield from _flat(value[3])
        else:
            yield f"{code}", value


def _is_in_part(code: str, value: Any, literal: str) -> bool:
    if code == "BRANCH":
        return all(_is_in_all(arm, literal) for arm in value[1])
    return code in _REPEATS and value[0] >= 1 and _is_in_all(value[2], literal)


Found = list[tuple[Rule, Finding]]
ExampleRun = tuple[Report, Found]


def recorded(catalogue: Catalogue) -> tuple[Catalogue, Found]:
    """The same rules, and a list to which each rule adds its findings."""
    found: Found = []

    def record(rule: Rule) -> Rule:
        def judge(case: Case) -> Iterator[Finding]:
            for finding in rule.judge(case):
                found.append((rule, finding))
                yield finding

        return replace(rule, judge=judge)

    return Catalogue(tuple(map(record, catalogue.rules)), catalogue.gaps), found


def undeclared(found: Found) -> Iterator[str]:
    """Problems of findings with an entity of a kind that their rule does not declare."""
    for rule, finding in found:
        for use, declared in (("explains", rule.explains), ("caused_by", rule.caused_by)):
            kinds = {entity.kind for entity in getattr(finding, use)}
            for kind in sorted(kinds - set(kinds if declared is None else declared)):
                yield f"{rule.name} yields {use} {kind!r}, which its {use}= does not declare"


def run_example(example: Example, catalogue: Catalogue) -> ExampleRun:
    """The report on an example, and what each rule yields, before any of it is dropped."""
    catalogue, found = recorded(catalogue)
    with tempfile.TemporaryDirectory(prefix="raydoctor-", dir=owners.temporary_parent()) as folder:
        for name, content in example.files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        with open_capture(folder) as capture:
            return engine.run(capture, catalogue=catalogue, strict=True), found


def example_problems(rule: Rule, example: Example, report: Report, found: Found) -> Iterator[str]:
    """With all rules, the report must have the example's roots and numbers, and only declared entities."""
    yield from dict.fromkeys(undeclared(found))
    roots = sorted(d.rule for d in report.roots)
    if roots != sorted(example.roots):
        yield f"the roots must be {_listed(example.roots)}; they are {_listed(roots)}"
    below = {d.rule for d in report.diagnoses} - set(roots)
    for name in example.consequences:
        if name not in below:
            yield f"{name} must be a consequence of a root"
    texts = [
        text
        for d in report.diagnoses
        if d.rule == rule.name
        for text in (d.headline, *(x for r in d.remedies for x in (r.title, *r.steps)))
    ]
    for severity in sorted({d.severity for d in report.diagnoses if d.rule == rule.name}):
        if severity != (example.severity or rule.severity):
            yield f"the severity must be {example.severity or rule.severity}; it is {severity}"
    shown = (link.shows for d in report.diagnoses if d.rule == rule.name for link in d.chain)
    for d in report.diagnoses:
        if d.rule == rule.name and len(d.headline.split()) > MOST_WORDS:
            yield f"the headline has more than {MOST_WORDS} words: {d.headline}"
    for remedy in (r for d in report.diagnoses if d.rule == rule.name for r in d.remedies):
        yield from _risk_problems(remedy)
    if _FILL_IN.search("\n".join((*texts, *shown))):
        yield "FILL-IN is left in the headline or the evidence"
    for words in example.says:
        if words not in "\n".join(texts):
            yield f"neither headline nor remedies contain {words!r}"


_RESTARTS = re.compile(r"(?:export|unset|ulimit) .*(?:before ray start|[Tt]hen restart Ray)")
"""A setting that only the next start of Ray reads."""


def _risk_problems(remedy: Remedy) -> Iterator[str]:
    if remedy.risk == "safe" and any(map(_RESTARTS.match, remedy.steps)):
        yield f"the remedy restarts Ray, but its risk is 'safe': {remedy.title}"


def _listed(names: object) -> str:
    return ", ".join(names) if isinstance(names, (list, tuple)) and names else "none"


# ------------------------------------------------------------------ lines to paste


def _source_of(rule: Rule) -> str:
    """The source of the rule's module; empty without a file."""
    try:
        return Path(str(rule.judge.__globals__.get("__file__", ""))).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def line_problems(source: str) -> Iterator[str]:
    """Steps and hints must be constants or made by `raydoctor.paste`: an f-string does not quote values."""
    tree = ast.parse(source)
    for made in (each for part in _parts(tree) for each in _made(tree, part)):
        yield f"a step or hint must be made with raydoctor.paste: {ast.unparse(made)}"
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args):
        is_helper = ast.unparse(call.func) in (*_HELPERS, *(f"paste.{name}" for name in _HELPERS))
        parts = ast.walk(call.args[0]) if is_helper else ()
        if any(isinstance(part, (ast.JoinedStr, ast.BinOp)) for part in parts):
            yield f"the template must be a constant: {ast.unparse(call)}"


_HELPERS = frozenset({"shell", "python", "text"})


def _parts(tree: ast.Module) -> Iterator[ast.expr]:
    """Expressions that become steps or hints."""
    place = {"Remedy": (1, "steps"), "Gap": (2, "hint")}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in place:
            number, name = place[call.func.id]
            yield from call.args[number : number + 1]
            yield from (k.value for k in call.keywords if k.arg == name)


def _made(tree: ast.Module, part: ast.AST, seen: frozenset[str] = frozenset()) -> Iterator[ast.AST]:
    """Strings that this expression combines without the helpers of `paste`."""
    if isinstance(part, (ast.JoinedStr, ast.BinOp)):
        named = [n.id for n in ast.walk(part) if isinstance(n, ast.Name)]
        if not all(map(str.isupper, named)):
            yield part
    elif isinstance(part, ast.Call):
        yield from _of_call(tree, part, seen)
    elif isinstance(part, ast.Name) and part.id not in seen:
        for value in _values_of(tree, part.id):
            yield from _made(tree, value, seen | {part.id})
    for child in _strings_in(part):
        yield from _made(tree, child, seen)


def _strings_in(part: ast.AST) -> list[ast.expr]:
    """The parts of an expression that become the string, without conditions, indexes and loops."""
    if isinstance(part, ast.IfExp):
        return [part.body, part.orelse]
    for kind, name in _HOLDS.items():
        if isinstance(part, kind):
            held = getattr(part, name)
            return held if isinstance(held, list) else [held]
    return []


_HOLDS: dict[type[ast.AST], str] = {
    ast.Tuple: "elts",
    ast.List: "elts",
    ast.BoolOp: "values",
    ast.Dict: "values",
    ast.GeneratorExp: "elt",
    ast.ListComp: "elt",
    ast.Starred: "value",
    ast.Subscript: "value",
}


def _of_call(tree: ast.Module, call: ast.Call, seen: frozenset[str]) -> Iterator[ast.AST]:
    if isinstance(call.func, ast.Attribute):
        if call.func.attr == "get":
            yield from _made(tree, call.func.value, seen)
        elif ast.unparse(call.func.value) != "paste" or call.func.attr not in _HELPERS:
            yield call
    elif isinstance(call.func, ast.Name) and call.func.id in ("tuple", "next"):
        yield from _made(tree, call.args[0], seen)
    elif isinstance(call.func, ast.Name) and call.func.id not in (*seen, *_HELPERS):
        name = call.func.id
        defined = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
        if not defined:
            yield call
        for node in (n for function in defined for n in ast.walk(function)):
            if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
                yield from _made(tree, node.value, seen | {name})


def _values_of(tree: ast.Module, name: str) -> Iterator[ast.AST]:
    """All values that the module assigns to this name or adds to the list of this name."""
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr))
            and node.value
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(n, ast.Name) and n.id == name for t in targets for n in ast.walk(t)):
                yield node.value
        elif _adds_to(node, name):
            yield node.args[-1]


def _adds_to(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return ast.unparse(node.func.value) == name and node.func.attr in ("append", "insert", "extend")
