"""What the documents say is what the code does."""

from __future__ import annotations

import re

import pytest

from raydoctor import __version__, rules
from raydoctor.cli import execute, names
from tests.helpers import ROOT

README = (ROOT / "README.md").read_text()


def between(start: str, end: str, text: str) -> str:
    return text.partition(start)[2].partition(end)[0].strip()


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert execute(list(arguments)) == 0
    return capsys.readouterr().out


def test_the_catalogue_in_the_readme_is_the_one_of_the_rules(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = output(capsys, "rules", "--format", "markdown").strip()
    assert between("<!-- rules -->", "<!-- /rules -->", README) == shown


def test_every_rule_that_a_page_names_exists() -> None:
    names = set(rules.names())
    planned = re.compile(r"\(`([a-z]+(?:-[a-z]+)+)`[):;,]")
    for rule in rules.load():
        for name in planned.findall(rule.doc):
            assert name in names, f"{rule.name} points to {name}"


def test_commands_that_the_readme_shows_exist(capsys: pytest.CaptureFixture[str]) -> None:
    shown = set(re.findall(r"`raydoctor (\w+)\b", README))
    # `raydoctor [diagnose] [PATH]`
    assert shown | {"diagnose"} == set(names()), "each command is in the README, and nothing else"


def test_every_command_has_examples_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in names():
        assert "example" in output(capsys, command, "--help").lower()


def test_versions_agree() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{__version__}"' in pyproject
    assert "[Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
