"""The documents agree with the code: commands, options, reports, rule pages, links."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from raydoctor import __version__, rules
from raydoctor.case.rule import Rule, Signal
from raydoctor.cli import execute, names
from raydoctor.cli.kubectl import plugin
from raydoctor.render import rule_pages
from raydoctor.render import rules as render
from tests.helpers import ROOT

README = (ROOT / "README.md").read_text()
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
WRITTEN = [page for page in PAGES if page.parent.name != "rules"]
"""The pages that people write; those of the rules are generated."""
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    execute(list(arguments))
    return capsys.readouterr().out


# ---------------------------------------------------------------- README


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 1100


def test_the_numbers_of_rules_and_fixtures_in_the_readme_are_the_present_ones() -> None:
    fixtures = len(list((ROOT / "fixtures").glob("*--ray-*")))
    live = len(list((ROOT / "fixtures").glob("live-*--ray-*")))
    assert f"{fixtures} recorded runs ({live} of them collected live)" in README
    assert f"of {len(rules.names())} |" in README
    assert f"{len(rules.names())} failures" in README


def test_the_report_in_the_readme_is_the_present_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shown = README.partition("<!-- report -->")[2].partition("<!-- /report -->")[0]
    command, *lines = shown.strip().removeprefix("```").removesuffix("```").strip().split("\n")
    printed = output(capsys, *command.removeprefix("$ raydoctor ").split())
    for line in lines:
        assert line.strip() == "…" or line.rstrip() in printed.split("\n"), line


# ---------------------------------------------------------------- commands


def test_every_command_is_in_the_readme_and_on_a_page() -> None:
    shown = set(re.findall(r"raydoctor ([a-z]+)\b", README))
    assert set(names()) <= shown | {"diagnose"}
    pages = "\n".join(page.read_text() for page in WRITTEN)
    assert {name for name in names() if f"raydoctor {name}" not in pages} == set()


@cache
def help_of(command: str) -> str:
    import contextlib
    import io

    words = [*command.removeprefix("kubectl ").split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert execute(words, plugin.invoke if command.startswith("kubectl ") else None) == 0, (
            command
        )
    return printed.getvalue()


def commands_in(text: str) -> set[tuple[str, str]]:
    """(command, option) that a page shows: (`rules test`, `--verbose`), (`kubectl diagnose`, `--since`)."""
    found = set()
    for program, line in re.findall(r"(\bkubectl )?\braydoctor ([^`\n|)#]*)", text):
        words = line.partition(" -- ")[0].split()
        command = program + (words[0] if words and words[0] in names() else "diagnose")
        if words[:1] == ["rules"] and words[1:] and words[1] in ("test", "pages", "new"):
            command = f"rules {words[1]}"
        found |= {(command, word) for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)}
    return found


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_options_that_a_page_shows_exist(page: Path) -> None:
    for command, option in commands_in(page.read_text()):
        known = help_of(command) + ("--version" if command == "diagnose" else "")
        assert re.search(rf"{option}\b", known), f"raydoctor {command} {option}"


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_python_that_a_page_shows_is_python(page: Path) -> None:
    for language, code in FENCE.findall(page.read_text()):
        if language == "python":
            ast.parse(code if not code.startswith(" ") else "if 1:\n" + code)


def test_every_command_has_examples_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in names():
        assert "example" in output(capsys, command, "--help").lower()


# ---------------------------------------------------------------- rules


def test_every_rule_that_a_page_names_exists() -> None:
    known = set(rules.names())
    planned = re.compile(r"\(`([a-z]+(?:-[a-z]+)+)`[):;,]")
    for rule in rules.load():
        for name in planned.findall(rule.doc):
            assert name in known, f"{rule.name} points to {name}"


def test_the_pages_of_the_rules_are_written_from_their_docstrings() -> None:
    written = {page.name: page.read_text() for page in (ROOT / "docs/rules").glob("*.md")}
    made = dict(rule_pages.pages(rules.load()))
    other = {name for name in written.keys() | made.keys() if written.get(name) != made.get(name)}
    assert not other, "run: raydoctor rules pages docs/rules/ (and remove pages of former rules)"


def _literals(page: str) -> list[str]:
    """What the commands of a page search for."""
    return [words[words.index("-e") + 1] for words in _searches(page)]


def _searches(page: str) -> list[list[str]]:
    """The commands of a page that search a log, in words."""
    part = page.partition("## Search the logs by hand\n")[2].partition("\n## ")[0]
    lines = [line.partition("   # ")[0] for line in part.split("\n")]
    return [shlex.split(line) for line in lines if re.search(r"\bgrep -r?Fi? -e ", line)]


def test_a_search_for_what_the_program_printed_reads_its_output() -> None:
    """Not the folder of Ray's logs, which does not contain it."""
    page = (ROOT / "docs/rules/get-timeout.md").read_text()
    searches = [
        line
        for line in page.split("\n")
        if "ray.exceptions.GetTimeoutError" in line and "grep" in line
    ]
    assert searches
    assert all(" DRIVER_OUTPUT   # " in line for line in searches)


def test_a_search_is_listed_first_only_if_an_example_contains_it() -> None:
    page = (ROOT / "docs/rules/job-pending.md").read_text()
    speaking = _literals(page)
    assert "Job supervisor actor failed to start within " in speaking
    assert "Job entrypoint command failed with exit code " not in speaking


def test_a_page_searches_for_the_messages_that_it_quotes() -> None:
    """The first example shows one form of a failure, the page names others."""
    for name, quoted in {
        "autoscaler-died": "Error in monitor loop",
        "cancel-ignored": "Cancel an actor task",
        "port-conflict": "No address added out of total ",
    }.items():
        assert quoted in _literals((ROOT / "docs/rules" / f"{name}.md").read_text())
    assert "Check failed: " not in _literals((ROOT / "docs/rules/port-conflict.md").read_text())


def shown_by(rule: Rule) -> Mapping[str, str]:
    """The files of the example on the rule's page."""
    example = render.example_of(rule)
    assert example is not None, rule.name
    return example.files


def test_a_page_searches_for_what_its_example_contains() -> None:
    """Unless only a live collection shows it, whose tables are not searched by hand, or only Ray's exceptions do."""
    for rule in rules.load():
        page = (ROOT / "docs/rules" / f"{rule.name}.md").read_text()
        literals = _literals(page)
        files = shown_by(rule)
        in_logs = [text for name, text in files.items() if not name.startswith("live/")]
        failures = {s.find for s in rule.looks_for if s.symptom} - {"ray.exceptions."}
        prose = " ".join(rule.doc.split())
        if not any(find in text for find in failures for text in in_logs) and (
            all(literal.strip() in prose for literal in literals)
        ):
            continue
        assert literals, f"{rule.name}: no command searches for its example"
        assert any(literals[0].lower() in text.lower() for text in files.values()), (
            f"{rule.name}: the first of {literals} is not in its example"
        )


def test_the_searches_of_a_page_find_each_symptom_that_it_shows() -> None:
    """In its example, in the file that contains the line; and in the messages that it quotes below "What you see".

    The exit of a worker, for which half of the rules look, is no symptom of one of them.
    """
    missing = []
    for rule in rules.load():
        searches = _searches((ROOT / "docs/rules" / f"{rule.name}.md").read_text())
        signals = [s for s in rule.looks_for if render.is_specific(s) and s.kind != "worker.exit"]
        shown = shown_by(rule)
        symptoms = [
            (path, line)
            for path, text in shown.items()
            if not path.startswith("live/")
            for line in text.split("\n")
            if any(s.symptom and s.find in line for s in signals)
        ]
        seen = rule.doc.partition("## What you see\n")[2].partition("\n## ")[0]
        symptoms += [
            ("", message)
            for item in re.split(r"\n- |\n\n", seen)
            if searches and not re.search("kubectl|sacct|HTTP clients", item)
            for message in render.messages(replace(rule, doc=f"## What you see\n{item}"))
            if not re.fullmatch(render.CLASS, message)
        ]
        missing += [
            f"{rule.name}: {path}: {line[:150]}"
            for path, line in symptoms
            if not any(_finds(search, path, line) for search in searches)
        ]
    assert not missing, "\n".join(missing)


def _finds(search: list[str], path: str, line: str) -> bool:
    """Whether the command finds the line, and reads the file at that path (none: any file)."""
    literal = search[search.index("-e") + 1].strip()
    fold = str.lower if any(re.fullmatch(r"-r?Fi", word) for word in search) else str
    place = "DRIVER_OUTPUT" if path == "driver.log" else "/tmp/ray/session_latest/logs/"
    place = "dmesg" if path == "dmesg.txt" else place
    place = "kubectl" if search[:2] == ["kubectl", "logs"] else place
    return fold(literal) in fold(line) and (not path or place in search)


def test_no_page_searches_for_what_every_session_contains() -> None:
    for rule in rules.load():
        page = (ROOT / "docs/rules" / f"{rule.name}.md").read_text()
        literals = _literals(page)
        assert not {"Traceback (most recent call last):", "ray.exceptions."} & {*literals}, (
            rule.name
        )
        assert "Allowing the Plasma store to use up to " not in literals, rule.name


def test_a_signal_that_reports_a_failure_is_specific_however_short() -> None:
    signal = Signal(
        "crash.handler", "*** SIG", r"\*\*\* SIG", ("worker-err",), "*** SIGSEGV", symptom=True
    )
    assert render.is_specific(signal)
    assert not render.is_specific(replace(signal, symptom=False))
    assert not render.is_specific(replace(signal, kind="log.traceback"))


_COMMAND = re.compile(r"`((?:ps|pgrep|ls|grep|nc|df|tr|py-spy|ray|raydoctor|sacct|kill) [^`]*)`")


def test_commands_of_the_pages_can_be_pasted() -> None:
    """No placeholder that a shell reads as a redirection, and no `grep` that finds itself among processes."""
    for rule in rules.load():
        for command in _COMMAND.findall(" ".join(rule.doc.split())):
            assert not re.search(r"<\w", command), f"{rule.name}: {command}"
            piped = re.search(r"^ps .*\bargs\b.*\| grep (?!-o)(.*)", command)
            assert not piped or "[" in piped[1], f"{rule.name}: {command}"


def test_a_message_leads_to_the_rules_that_quote_it() -> None:
    index = (ROOT / "docs/rules/index.md").read_text()
    (row,) = (
        r for r in index.split("\n") if r.startswith("| `connection error code 2. End of file`")
    )
    assert "[`kernel-oom-kill`](kernel-oom-kill.md)" in row
    assert "[`worker-vanished`](worker-vanished.md)" in row
    (row,) = (r for r in index.split("\n") if r.startswith("| `RayTaskError` "))
    assert "[`task-exception`](task-exception.md)" in row
    assert all(f"]({name}.md)" in index for name in rules.names())


def test_the_worked_example_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = (
        c
        for language, c in FENCE.findall((ROOT / "CONTRIBUTING.md").read_text())
        if language == "python"
    )
    (tmp_path / "license_denied.py").write_text(code)
    assert output(capsys, "rules", "test", str(tmp_path)).endswith("1 of 1 rules pass\n")


# ---------------------------------------------------------------- links


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors of the headings, as forges and the site's generator make them."""
    prose = FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    kept = (re.sub(r"[^\w\s-]", "", title.lower().strip()) for title in titles)
    return frozenset(re.sub(r"[\s]", "-", title) for title in kept)


def dead_links(page: Path) -> list[str]:
    """Links to files and headings that do not exist; addresses elsewhere are not tried."""
    dead = []
    prose = re.sub(
        r"(`+)(?!`).+?(?<!`)\1(?!`)", "`code`", FENCE.sub("", page.read_text()), flags=re.DOTALL
    )
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(
        r"`((?:raydoctor|tests|benchmarks|fixtures)/[a-z0-9_./]+(?:/|\.[a-z]+))`", text
    ):
        assert (ROOT / path).exists(), path
    for folder, files in re.findall(
        r"^\| `(raydoctor/\w+/)` \|.*\| ([^|]*) \|$", text, re.MULTILINE
    ):
        for file in re.findall(r"`([^`]+)`", files):
            assert (ROOT / folder / file).exists(), f"{folder}{file}"


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n\n[a](#one) [b](#two) [c](none.md) [d](page.md#one) `[e](f.md)`\n")
    assert dead_links(page) == ["#two", "none.md"]


def test_every_page_is_in_the_navigation() -> None:
    shown = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").glob("*.md")}
    assert shown == pages | {"rules/index.md"}


def test_versions_agree() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{__version__}"' in pyproject
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
