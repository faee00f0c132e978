"""`raydoctor rules new`: a skeleton that says what is missing, and passes once it is filled in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raydoctor import cli

FILLED = {
    "FILL-IN: one sentence that says what happened.": "A disk is on fire.",
    "FILL-IN: the disk of ": "Unlikely: the disk of ",
    "FILL-IN: ": "",
}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.execute([str(each) for each in arguments])
    return code, *capsys.readouterr()


def test_a_skeleton_says_what_is_missing_and_passes_once_it_is_filled_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "our rules"
    code, out, _ = run(capsys, "rules", "new", "flux-hot", "--dir", folder)
    file = folder / "flux_hot.py"
    assert code == 0
    assert str(file) in out
    assert f"raydoctor rules test '{folder}'" in out

    code, out, _ = run(capsys, "rules", "test", folder)
    problems = [line for line in out.splitlines() if line.startswith("      ")]
    assert code == 1
    assert problems
    assert all("FILL-IN is left" in line for line in problems), "nothing but FILL-IN is wrong"
    places = ("page", "signal", "remedy", "example", "headline or the evidence")
    assert all(any(place in line for line in problems) for place in places)

    text = file.read_text()
    for placeholder, words in FILLED.items():
        text = text.replace(placeholder, words)
    assert "FILL-IN" not in text
    filled = tmp_path / "filled in"  # a module of the first folder is imported already
    filled.mkdir()
    (filled / file.name).write_text(text)
    code, out, _ = run(capsys, "rules", "test", filled)
    assert (code, out.splitlines()[-1]) == (0, "1 of 1 rules pass"), out


@pytest.mark.parametrize("left", ["Signal", "Remedy", "Example", "Link", "yield Finding"])
def test_one_forgotten_placeholder_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    run(capsys, "rules", "new", "flux-hot", "--dir", tmp_path)
    file = tmp_path / "flux_hot.py"
    head, found, tail = file.read_text().rpartition(f"{left}(")
    forgotten, _, tail = tail.partition("FILL-IN: ")
    for placeholder, words in FILLED.items():
        head, tail = head.replace(placeholder, words), tail.replace(placeholder, words)
    file.write_text(f"{head}{found}{forgotten}FILL-IN: {tail}")
    assert len(re.findall("FILL-IN", file.read_text())) == 1
    code, out, _ = run(capsys, "rules", "test", tmp_path)
    assert code == 1
    assert "FILL-IN is left" in out


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Flux", "cannot be the name of a rule"),
        ("flux_hot", "cannot be the name of a rule"),
        ("flux--hot", "cannot be the name of a rule"),
        ("7-flux", "cannot be the name of a rule"),
        ("../flux", "cannot be the name of a rule"),
        ("flux\nhot", "cannot be the name of a rule"),
        ("", "cannot be the name of a rule"),
        ("ray-oom-kill", "a rule ray-oom-kill already exists"),
        ("taken", "taken.py exists already"),
        ("dangling", "dangling.py exists already"),
    ],
)
def test_a_name_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    (tmp_path / "taken.py").write_text("mine")
    (tmp_path / "dangling.py").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.iterdir())
    code, out, err = run(capsys, "rules", "new", name, "--dir", tmp_path)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) <= 2
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "taken.py").read_text() == "mine"


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "rules", "new", "flux-hot", "--dir", tmp_path / "file")
    assert code == 2
    assert err.startswith("raydoctor: cannot write ")


def test_pages_of_rules_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "rules", "new", "flux-hot", "--dir", tmp_path / "rules")
    site = tmp_path / "site" / "rules"
    code, out, _ = run(capsys, "rules", "pages", site, "--rules", tmp_path / "rules")
    assert code == 0
    assert str(site) in out
    page = (site / "flux-hot.md").read_text()
    assert page.startswith("# flux-hot\n\nSeverity: error. Tier: root ")
    assert "## Not this when" in page
    assert "[`flux-hot`](flux-hot.md)" in (site / "index.md").read_text()


def test_pages_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    code, _, err = run(capsys, "rules", "pages", tmp_path / "file")
    assert code == 2
    assert "cannot make the folder" in err
    assert (tmp_path / "file").read_text() == "mine"
