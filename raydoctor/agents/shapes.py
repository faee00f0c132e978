"""The JSON of raydoctor's commands -> results of the tools, the most important first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from raydoctor.agents.replies import Items, Row, ToolResult, as_text, shortened, shown, untrusted
from raydoctor.model.paste import is_code
from raydoctor.model.text import plural

Document = Mapping[str, Any]
_SEVERITIES = ("critical", "error", "warning", "info")
_REMEDIES = 2
"""Remedies of a root in the first reply; the others are in its finding."""
_GROUP_REMEDIES = 4
_LISTED = 20
_FRAMES = 12
_LINK = 500
"""Characters of a record in a chain; `evidence` shows the lines themselves."""


# ---------------------------------------------------------------- diagnose


def diagnosed(document: Document, meanings: Mapping[str, str], notes: Iterable[str]) -> ToolResult:
    """A report: roots with their remedies, then what no rule explains, then gaps. `meanings`: by rule."""
    found = {each["id"]: each for each in document["diagnoses"]}
    below = {name for each in found.values() for name in each["consequences"]}
    roots = [each for each in found.values() if each["id"] not in below]
    gaps = [each for each in document["gaps"] if not each["optional"]]
    is_open = gaps or document["unexplained"]
    verdict = "found" if roots else "inconclusive" if is_open else "healthy"
    head: Row = {"verdict": verdict, "health": _health(document, roots, len(gaps))}
    if state := document.get("status"):
        head["cluster"] = {
            "nodes_alive": state["nodes"]["alive"],
            "nodes_dead": state["nodes"]["dead"],
            "workers": state["workers"],
            "tasks_running": (state["tasks"] or {}).get("running"),
            "tasks_pending": (state["tasks"] or {}).get("pending"),
        }
    items = [("roots", _root(each, meanings)) for each in roots]
    items += [("unexplained", _unexplained(each)) for each in document["unexplained"]]
    items += [("gaps", _gap(each)) for each in gaps]
    return ToolResult("diagnose", head, [*items, *noted(notes)], document)


def _health(document: Document, roots: Sequence[Document], gaps: int) -> str:
    """One line of numbers and raydoctor's own words."""
    counts = [(s, sum(each["severity"] == s for each in roots)) for s in _SEVERITIES]
    kinds = ", ".join(f"{count} {severity}" for severity, count in counts if count)
    info = document["capture"]
    parts = [
        f"{plural(len(roots), 'root cause')} ({kinds})" if roots else "no failure found",
        f"{plural(len(document['diagnoses']), 'finding')} in {plural(info['files'], 'file')}",
        f"{plural(len(document['unexplained']), 'error')} without a rule",
        f"incomplete evidence: {plural(gaps, 'gap')}" if gaps else "complete evidence",
    ]
    return "; ".join(parts)


def _root(diagnosis: Document, meanings: Mapping[str, str]) -> Row:
    first = next(iter(diagnosis["chain"]), None)
    where = f"{first['file']}:{first['line']}" if first else ""
    return {
        "id": diagnosis["id"],
        "rule": diagnosis["rule"],
        "severity": diagnosis["severity"],
        "count": diagnosis["count"],
        "means": meanings.get(diagnosis["rule"], ""),
        "consequences": diagnosis["consequences"][:_LISTED],
        **untrusted(headline=diagnosis["headline"], evidence=where),
        **_fixes(diagnosis["remedies"], _REMEDIES),
    }


def _fixes(remedies: Sequence[Document], most: int) -> Row:
    left = len(remedies) - most
    more = {"more_remedies": left} if left > 0 else {}
    return {"remedies": [fix(each) for each in remedies[:most]], **more}


def fix(remedy: Document) -> Row:
    """A remedy: lines to paste apart from its sentences and comments, which may contain names."""
    commands, prose = _advice("\n".join(remedy["steps"]))
    return {
        "risk": remedy["risk"],
        "commands": commands,
        **({"doc": remedy["doc"]} if remedy.get("doc") else {}),
        **untrusted(title=remedy["title"], steps=prose),
    }


def _unexplained(error: Document) -> Row:
    texts = untrusted(kind=error["kind"], file=error["file"], text=error["text"])
    return {"line": error["line"], "count": error["count"], **texts}


def _gap(gap: Document) -> Row:
    commands, prose = _advice(gap["hint"])
    texts = untrusted(what=gap["what"], why=gap["why"], hint=prose)
    return {"optional": gap.get("optional", False), "commands": commands, **texts}


def _advice(text: str) -> tuple[list[str], list[str]]:
    """Lines to paste, in which every name is quoted; and sentences and comments, in which none is."""
    commands, prose = [], []
    for line in filter(None, text.split("\n")):
        command, comment = _split(line) if is_code(line) else ("", line)
        # A command is printed as it is or not at all: a part of it may do something else.
        is_whole = shown(command) == command
        commands += [command] if command and is_whole else []
        prose += [part for part in (comment, "" if is_whole else command) if part]
    return commands, prose


def _split(line: str) -> tuple[str, str]:
    """A line to paste, and the comment at its end. A `#` in quotes begins none."""
    quote, before, is_escaped = "", " ", False
    for at, char in enumerate(line):
        if is_escaped:
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and before.isspace():
            return line[:at].rstrip(), line[at:].lstrip("# ")
        before = char
    return line, ""


def noted(notes: Iterable[str]) -> Iterator[tuple[str, Row]]:
    """Choices that a command made."""
    for note in notes:
        yield "notes", untrusted(note=note)


# ---------------------------------------------------------------- finding, evidence


def finding(document: Document, wanted: str, meanings: Mapping[str, str]) -> ToolResult | None:
    """One diagnosis of a report in full; None if the report has none of this id."""
    by_id = {each["id"]: each for each in document["diagnoses"]}
    chosen = by_id.get(wanted)
    if chosen is None:
        return None
    same = ("id", "rule", "severity", "tier", "count", "first_at", "last_at")
    head = {**{name: chosen[name] for name in same}, "means": meanings.get(chosen["rule"], "")}
    items: list[tuple[str, Row]] = [("headline", untrusted(headline=chosen["headline"]))]
    items += [("chain", _link(each)) for each in chosen["chain"]]
    items += [("remedies", fix(each)) for each in chosen["remedies"]]
    items += [("consequences", _consequence(by_id[name])) for name in chosen["consequences"]]
    items += [("subjects", _subject(each)) for each in chosen["subjects"][:_LISTED]]
    items += [("gaps", _gap(each)) for each in chosen["gaps"]]
    return ToolResult("finding", head, items)


def _link(link: Document) -> Row:
    text = shortened(link["text"], _LINK)
    texts = untrusted(shows=link["shows"], file=link["file"], text=text, code=link.get("code"))
    return {"line": link["line"], "at": link["at"], "count": link["count"], **texts}


def _consequence(diagnosis: Document) -> Row:
    headline = untrusted(headline=diagnosis["headline"])
    return {"id": diagnosis["id"], "rule": diagnosis["rule"], **headline}


def _subject(subject: Document) -> Row:
    return untrusted(**{name: value for name, value in subject.items() if value is not None})


def text_at(document: Document, file: str, line: int) -> str:
    """The text that a report quotes from this place; empty if it quotes none."""
    links = (link for each in document["diagnoses"] for link in each["chain"])
    for each in (*links, *document["unexplained"]):
        if each["file"] == file and each["line"] == line:
            return str(each["text"])
    return ""


def evidence(lines: Sequence[tuple[int, str]], target: int) -> ToolResult:
    """Lines of a file around one of them; that one first, as it may be the only one that fits."""
    ordered = sorted(lines, key=lambda each: (abs(each[0] - target), each[0]))
    items = [
        ("lines", {"line": number, "is_target": number == target, **untrusted(text=text)})
        for number, text in ordered
    ]
    numbers = [number for number, _ in lines] or [target]
    return ToolResult("evidence", {"from_line": min(numbers), "to_line": max(numbers)}, items)


# ---------------------------------------------------------------- story, hung, stacks


def story(document: Document, notes: Iterable[str]) -> ToolResult:
    """Lines about one subject in time order, or the ids that the capture has."""
    lines, subject = document["lines"], document["subject"]
    head = {
        "kind": subject["kind"],
        "count": len(lines),
        "files": len({each["file"] for each in lines}),
    }
    aliases = [f"{each['kind']} {each['id']} ({each['why']})" for each in document["aliases"]]
    items: list[tuple[str, Row]] = [("subject", untrusted(id=subject["id"], aliases=aliases))]
    items += [("lines", _story_line(each)) for each in lines]
    items += [("known", untrusted(**each)) for each in document["known"]]
    for each in document["related"]:
        items.append(
            ("related", {"count": each["count"], **untrusted(kind=each["kind"], id=each["id"])})
        )
    items += [("gaps", _gap(each)) for each in document["gaps"]]
    return ToolResult("story", head, [*items, *noted(notes)])


def _story_line(line: Document) -> Row:
    texts = untrusted(
        file=line["file"], node=line["node"], level=line["level"], message=line["message"]
    )
    return {"line": line["line"], "at": line["at"], **texts}


def hung(document: Document, code: int, notes: Iterable[str]) -> ToolResult:
    """Culprits and cycles with what waits for them, then waits that may end."""
    rows: dict[int, list[Document]] = {}
    for row in document["hung"]:
        rows.setdefault(row["group"], []).append(row)
    head = {
        "verdict": {0: "healthy", 1: "found"}.get(code, "inconclusive"),
        "hung": len(document["hung"]),
        "unfinished": document["unfinished"],
        "sampled": document["looked_at"],
    }
    items: list[tuple[str, Row]] = [
        ("groups", _group(group, rows[number])) for number, group in enumerate(document["groups"])
    ]
    for name in ("early", "open", "working", "drivers"):
        items += [("others", _other(each, name)) for each in document[name]]
    items += [("gaps", _gap(each)) for each in document["gaps"]]
    return ToolResult("hung", head, [*items, *noted(notes)])


def _group(group: Document, rows: Sequence[Document]) -> Row:
    first = rows[0]
    return {
        "kind": first["kind"],
        "pid": first["pid"] or None,
        "age_s": first["age_s"],
        "culprits": len(group["culprits"]),
        "waiting": len(group["waiting"]),
        "exact": group["exact"],
        **untrusted(
            headline=group["headline"],
            task=first["task"]["name"],
            task_id=first["task"]["id"],
            why=first["why"],
            stack=_frames(first["stack"]),
        ),
        **_fixes(group["remedies"], _GROUP_REMEDIES),
    }


def _other(row: Document, state: str) -> Row:
    return untrusted(
        state=state,
        kind=row["kind"],
        task=row["task"]["name"],
        pid=row["pid"],
        does=row["words"],
        may_end=row.get("may_end"),
    )


def _frames(threads: Sequence[Document]) -> list[str]:
    """The innermost frames of the first thread."""
    frames = threads[0]["frames"][:_FRAMES] if threads else []
    return [f"{each['function']} ({each['file']}:{each['line']})" for each in frames]


def stacks(document: Document, notes: Iterable[str]) -> ToolResult:
    """The stacks of processes: those that run a task first."""
    processes = sorted(document["processes"], key=lambda each: bool(each["idle"]))
    items: list[tuple[str, Row]] = [("processes", _process(each)) for each in processes]
    items += [("gaps", _gap(each)) for each in document["gaps"]]
    return ToolResult("stacks", {"count": len(processes)}, [*items, *noted(notes)])


def _process(process: Document) -> Row:
    threads = [
        f"{thread['name'] or thread['tid']}: {' < '.join(_frames([thread]))}"
        for thread in process["threads"]
        if thread["frames"]
    ]
    return untrusted(
        pid=process["pid"],
        title=process["title"],
        tasks=[each["name"] or each["id"] for each in process["tasks"]],
        threads=threads,
        problem=process["problem"],
    )


# ---------------------------------------------------------------- explain, check


def explained(document: Document) -> ToolResult:
    """A rule's page, section by section: raydoctor's own text."""
    head = {"rule": document["name"], "severity": document["severity"], "tier": document["tier"]}
    parts = document["doc"].strip().split("\n## ")
    items: list[tuple[str, Row]] = [("sections", {"heading": "", "text": parts[0].strip()})]
    for part in parts[1:]:
        heading, _, text = part.partition("\n")
        items.append(("sections", {"heading": heading, "text": text.strip()}))
    return ToolResult("explain", head, items)


def checked(document: Document, notes: Iterable[str]) -> ToolResult:
    """The checks of a machine: failures, then warnings."""
    order = ("fail", "warn", "ok", "n/a")
    checks = sorted(document["checks"], key=lambda each: order.index(each["outcome"]))
    failures, warnings = (sum(c["outcome"] == o for c in checks) for o in ("fail", "warn"))
    head = {
        "verdict": "not fit" if failures else "fit",
        "failures": failures,
        "warnings": warnings,
    }
    items: list[tuple[str, Row]] = [("checks", _check(each)) for each in checks]
    return ToolResult("check", head, [*items, *noted(notes)])


def _check(check: Document) -> Row:
    commands, prose = _advice(check["fix"])
    texts = untrusted(found=check["found"], fix=prose)
    return {"name": check["name"], "outcome": check["outcome"], "commands": commands, **texts}


# ---------------------------------------------------------------- plans and acts


def listed(rows: Iterable[Document]) -> Items:
    """Rows of a plan or an act, all of whose values are shown as text."""
    return [("items", untrusted(**{k: _as_text(v) for k, v in row.items()})) for row in rows]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else as_text(value)
