"""Rules -> Markdown files for a static site: one page per rule, and an index by message.

A page's address is its rule's name and never changes: `NAME.md` in the folder, `rules/NAME/` on the site.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from raydoctor.case.rule import Rule, Signal
from raydoctor.model import text as _text
from raydoctor.render import markdown
from raydoctor.render import rules as render

_COMMON = 5
"""A literal that more rules look for says little about one of them."""
_GENERIC = 40
"""A literal that more rules look for says nothing."""
_SEARCHES = 6
_EXAMPLE_WIDTH = 240


def pages(rules: Sequence[Rule]) -> Iterator[tuple[str, str]]:
    """(file name, text) of every page: one per rule, then the index."""
    names = {rule.name for rule in rules}
    users = users_of(rules)
    for rule in rules:
        yield f"{rule.name}.md", page(rule, names, users)
    yield "index.md", index(rules)


def users_of(rules: Iterable[Rule]) -> Counter[str]:
    """How many rules look for each literal."""
    return Counter(find for rule in rules for find in {s.find for s in rule.looks_for})


def page(rule: Rule, names: set[str], users: Mapping[str, int]) -> str:
    """A rule's page; the names of other rules become links. `users`: how many rules look for a literal."""
    head = f"# {rule.name}\n\nSeverity: {rule.severity}. Tier: {rule.tier} ({render.TIERS[rule.tier]})."
    prose = [block for part in rule.doc.strip().split("\n\n") for block in _blocks(part)]
    linked = [
        block if block.startswith("```") else _with_links(block, names - {rule.name})
        for block in prose
    ]
    return "\n\n".join([head, *linked, *_signals(rule, users), *_example(rule)]) + "\n"


def index(rules: Sequence[Rule]) -> str:
    """The messages that the pages quote, each with its rules; then the catalogue."""
    names = {rule.name for rule in rules}
    by_message: dict[str, list[str]] = {}
    for rule in rules:
        for message in render.messages(rule):
            by_message.setdefault(message, []).append(f"`{rule.name}`")
    rows = (
        f"| {markdown.code(message.replace('|', '¦'))} | {', '.join(_rules_of(message, by_message))} |"
        for message in sorted(by_message, key=_without_module)
    )
    text = _INDEX.format(messages="\n".join(rows), rules=render.catalogue_markdown(rules))
    return _with_links(text, names)


_INDEX = """# Rules

Every failure that raydoctor recognizes has a page: what you see, why it happens, how to confirm it,
how to fix it, and when it is something else. `raydoctor explain NAME` prints the same page.

## By symptom

Find the exception or the log message that you see. A message with several rules has several possible
causes: `raydoctor diagnose` decides between them by evidence.

| message | rules |
|---|---|
{messages}

## By name

Tiers: a *root* is where an incident starts. A *cause* explains symptoms, and may itself have a root cause.
A *symptom* is what the program saw.

{rules}"""


def _rules_of(message: str, by_message: Mapping[str, list[str]]) -> Iterable[str]:
    """Those whose pages quote the message. A bare exception leads also to those that quote it with a text."""
    if "." in message or not re.fullmatch(render.CLASS, message):
        return by_message[message]
    name = _without_module(message)
    found = (
        rules for other, rules in by_message.items() if _without_module(other).startswith(name)
    )
    return dict.fromkeys(rule for rules in found for rule in rules)


def _without_module(message: str) -> str:
    """A sort key: `ray.exceptions.OwnerDiedError: …` is found below O."""
    return re.sub(r"^\W*(?:[a-z_]+\.)*", "", message).lower()


def _blocks(part: str) -> Iterator[str]:
    """A paragraph of a docstring as Markdown: headings, fenced code, bullets and text apart."""
    for kind, group in groupby(part.split("\n"), key=render.kind_of):
        lines = list(group)
        if kind == "heading":
            yield from lines
        elif kind == "code":
            yield markdown.fence("\n".join(line.removeprefix("    ") for line in lines))
        else:
            items = [_escaped(item) for item in render.items(lines)]
            if before := [item for item in items if not item.startswith("- ")]:
                yield " ".join(before)
            if bullets := [item for item in items if item.startswith("- ")]:
                yield "\n".join(bullets)


def _escaped(text: str) -> str:
    """Text in which `<` outside of code does not begin a tag."""
    ends = [0, *(n for span in render.SPAN.finditer(text) for n in span.span()), len(text)]
    parts = [text[start:end] for start, end in pairwise(ends)]
    return "".join(p if n % 2 else p.replace("<", "&lt;") for n, p in enumerate(parts))


def _with_links(text: str, names: set[str]) -> str:
    """Text in which a code span that is a rule's name links to its page."""
    return re.sub(
        r"`([a-z0-9-]+)`",
        lambda span: f"[{span[0]}]({span[1]}.md)" if span[1] in names else span[0],
        text,
    )


def _signals(rule: Rule, users: Mapping[str, int]) -> list[str]:
    """Commands that search the logs by hand."""
    parts: list[str] = []
    for title, signals in render.sorted_signals(rule, searched(rule, users)):
        found = list(render.commands(rule, signals))
        if not parts:
            found += render.other_commands(rule, found)
        lines = [f"{command}   # {files}" for command, files in found]
        parts += [f"## {title}", markdown.fence("\n".join(lines), language="bash")]
    if any("DRIVER_OUTPUT" in part for part in parts):
        parts.append(
            "Replace `DRIVER_OUTPUT` with the file that holds the driver's output. "
            "Each comment names the log files that can contain the text. "
            "Ray also prints some of these texts to the driver's output."
        )
    return parts


def searched(rule: Rule, users: Mapping[str, int]) -> list[Signal]:
    """The signals to search for by hand: those that the page quotes, those in its example, other failures.

    Literals that many rules look for say little about one of them, and are left out. If none is left, the
    names of Ray's exceptions in the example remain. A symptom below "What you see" always has its search.
    """
    example = render.example_of(rule)
    text = "\n".join(example.files.values()) if example else ""
    prose = " ".join(rule.doc.split())
    specific = [s for s in rule.looks_for if render.is_specific(s)]
    quoted = {s.find for s in specific if s.find.strip() in prose and users[s.find] <= _GENERIC}
    most = _COMMON if quoted else _GENERIC
    shown = [
        s
        for s in specific
        if s.find in quoted
        or (s.find in text and users[s.find] <= (most if s.symptom else _COMMON))
    ]
    shown.sort(
        key=lambda s: (s.find not in text, s.find not in quoted, not s.symptom, users[s.find])
    )
    if not any(s.find in text for s in shown):
        shown = [*_exceptions(rule, text), *shown]
    others = [s for s in specific if s.symptom and users[s.find] <= _COMMON]
    seen = " ".join(render.messages(rule))
    ranked = enumerate(dict.fromkeys(s.find for s in (*shown, *others)))
    literals = [f for n, f in ranked if n < _SEARCHES or (f in quoted and f.strip() in seen)]
    return [
        s
        for literal in literals
        for s in dict.fromkeys((*shown, *rule.looks_for))
        if s.find == literal
    ]


def _exceptions(rule: Rule, text: str) -> Iterator[Signal]:
    """A signal for each of Ray's exceptions in the text, whose literal contains the exception's name."""
    for signal in rule.looks_for:
        if signal.kind == "driver.exception":
            for name in dict.fromkeys(re.findall(rf"{re.escape(signal.find)}\w+", text)):
                yield replace(signal, find=name)


def _example(rule: Rule) -> list[str]:
    """The first example of the rule, file by file."""
    example = render.example_of(rule)
    if example is None:
        return []
    parts = ["## Example", f"{example.title[:1].upper()}{example.title[1:]}:"]
    for path, content in example.files.items():
        lines = [_text.short_ids(_text.printable(text)) for text in render.excerpt(path, content)]
        shown = [text[:_EXAMPLE_WIDTH] + "…" * (len(text) > _EXAMPLE_WIDTH) for text in lines]
        if content.strip():
            parts += [f"`{path}`", markdown.fence("\n".join(shown))]
    if any(path.startswith("live/") for path in example.files):
        parts.append(
            "The files in `live/` are tables that `raydoctor collect` writes while the cluster runs."
        )
    return parts
