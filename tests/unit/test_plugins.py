"""Rules of others: from a folder, from installed packages, and the tests their authors run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from raydoctor import cli, rules
from raydoctor.diagnosis import plugins
from raydoctor.model.errors import RaydoctorError

RULE = '''"""The flux capacitor overheated.

## What you see
A job that travels.

## Why
88 miles an hour.

## Confirm
Look at the clock.

## Fix
Cool it.

## Not this when
- it only rains.
"""

from raydoctor.case import Case
from raydoctor.model.values import Finding, Link
from raydoctor.case.rule import Example, Signal, rule

from ._words import LITERAL

HOT = Signal(
    "flux.hot", LITERAL, r"^Flux capacitor at (?P<degrees>\\d+)", ("raylet-out",), "Flux capacitor at 900",
    symptom=True,
)
LINE = "[2026-11-21 07:34:50,739 I 283 293] (raylet) flux.cc:3: Flux capacitor at "
GCS = {"logs/gcs_server.out": ""}


@rule(
    tier="root", severity="error", rank=55, looks_for=(HOT,),
)
def flux_hot(case: Case):
    for event in case.of("flux.hot"):
        if int(event["degrees"]) > 100:
            yield Finding(f"The flux capacitor is {event['degrees']} degrees hot", (Link(event, "its heat"),))


EXAMPLES = (
    Example("hot", {**GCS, "logs/raylet.out": LINE + "900\\n"}, says=("900",)),
    Example("cool", {**GCS, "logs/raylet.out": LINE + "20\\n"}),
)
'''
WORDS = 'LITERAL = "Flux capacitor at "\n'


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "our-rules"
    folder.mkdir()
    (folder / "flux_hot.py").write_text(RULE)
    (folder / "_words.py").write_text(WORDS)
    return folder


@pytest.fixture(name="logs")
def _logs(tmp_path: Path) -> Path:
    logs = tmp_path / "session" / "logs"
    logs.mkdir(parents=True)
    (logs / "gcs_server.out").write_text(
        "[2026-11-21 07:34:50,741 I 8 8] (gcs_server) event.cc:234: Set ray event level to warning\n"
    )
    (logs / "raylet.out").write_text(
        "[2026-11-21 07:34:50,739 I 283 293] (raylet) flux.cc:3: Flux capacitor at 451\n"
    )
    return logs


def say(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.execute([str(a) for a in arguments])
    return code, *capsys.readouterr()


def test_a_folder_adds_its_rules(
    folder: Path, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = say(capsys, "diagnose", logs, "--rules", folder, "--format", "json")
    assert code == 1
    (found,) = json.loads(out)["diagnoses"]
    assert (found["rule"], found["headline"]) == (
        "flux-hot",
        "The flux capacitor is 451 degrees hot",
    )
    # Nothing is found without them; no program ran in this session.
    assert say(capsys, "diagnose", logs)[0] == 3
    assert "flux-hot" in say(capsys, "rules", "--rules", folder)[1]
    assert "88 miles an hour" in say(capsys, "explain", "flux_hot", "--rules", folder)[1]


def test_its_author_tests_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = say(capsys, "rules", "test", folder)
    assert (code, out.splitlines()[-1]) == (0, "1 of 1 rules pass")


@pytest.mark.parametrize(
    ("instead_of", "stands", "problem"),
    [
        ('says=("900",)', "", "no positive example"),
        ('says=("900",)', 'says=("901",)', "contain '901'"),
        ("## Fix\nCool it.\n", "", "the headings must be"),
        ("overheated.", "overheated", "full stop"),
        ("LITERAL, r\"^Flux capacitor at", "LITERAL, r\"^F(?:lux)? capacitor at", "does not contain the literal"),
        ('"Flux capacitor at 900",', '"Flux condenser at 900",', "the pattern does not match the sample"),
        ("> 100", "> 1000", "the roots must be flux-hot; they are none"),
        ("if int(", "if not int(", "the roots must be none; they are flux-hot"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_rule_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], instead_of: str, stands: str, problem: str
) -> None:
    assert instead_of in RULE
    (folder / "flux_hot.py").write_text(RULE.replace(instead_of, stands))
    code, out, _ = say(capsys, "rules", "test", folder)
    assert code == 1
    assert problem in out


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("broken.py", "def", "broken.py: line 1: "),
        ("empty.py", "", "must define one rule, not 0"),
        ("needs_more.py", "import nothing_of_the_kind", "No module named 'nothing_of_the_kind'"),
        ("two-words.py", "", "Rename it to two_words.py"),
        ("owner_died.py", RULE, "a rule named owner-died already exists"),
    ],
)
def test_a_folder_that_does_not_load(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, says: str
) -> None:
    (folder / file).write_text(text)
    code, out, err = say(capsys, "diagnose", folder, "--rules", folder)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize("where", ["nowhere", "empty"])
def test_no_folder_and_no_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = say(capsys, "rules", "--rules", tmp_path / where)
    assert code == 2
    assert where in err


@pytest.fixture(name="installed")
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages folder with a package that offers rules."""
    site = tmp_path / "site"
    package = site / "acme_ray"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "flux_hot.py").write_text(RULE)
    (package / "_words.py").write_text(WORDS)
    metadata = site / "acme_ray-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-ray\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[raydoctor.rules]\nacme = acme_ray\n")
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name in [n for n in sys.modules if n.partition(".")[0] == "acme_ray"]:
        del sys.modules[name]


def test_installed_packages_add_theirs(
    installed: Path, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "flux-hot" in say(capsys, "diagnose", logs)[1]
    assert "88 miles" in say(capsys, "explain", "flux-hot")[1]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("acme_ray:nothing", "has no attribute 'nothing'"),
        ("acme_ray._words:LITERAL", "is not a rule"),
        ("acme_ray.gone", "No module named 'acme_ray.gone'"),
    ],
)
def test_a_package_that_does_not_load_is_a_gap(installed: Path, value: str, why: str) -> None:
    (installed / "acme_ray-1.0.dist-info" / "entry_points.txt").write_text(
        f"[raydoctor.rules]\nacme = {value}\n"
    )
    found = plugins.catalogue()
    assert found.rules == rules.load()
    (gap,) = found.gaps
    assert why in gap.why


def test_a_package_that_ends_the_process_is_a_gap(
    installed: Path, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit code 0 would say that nothing is wrong, and what it prints would be no JSON."""
    (installed / "acme_ray" / "__init__.py").write_text("print('hello')\nraise SystemExit(0)\n")
    code, out, err = say(capsys, "diagnose", logs, "--format", "json")
    assert code == 3
    assert [g["why"] for g in json.loads(out)["gaps"] if "acme" in g["what"]] == [
        "not loaded: SystemExit: 0"
    ]
    assert "hello" in err


def test_a_rule_that_ends_the_process_is_a_gap(
    folder: Path, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "flux_hot.py").write_text(
        RULE.replace("    for event in", "    exit(0)\n    for event in")
    )
    code, out, _ = say(capsys, "diagnose", logs, "--rules", str(folder), "--format", "json")
    assert code == 3
    assert "crashed: SystemExit: 0" in out


def test_a_package_cannot_take_a_name(installed: Path) -> None:
    (installed / "acme_ray" / "owner_died.py").write_text(RULE)
    found = plugins.catalogue()
    assert [g.why for g in found.gaps] == ["not loaded: a rule named owner-died already exists"]
    assert "flux-hot" in {rule.name for rule in found.rules}


def test_one_rule_or_several_may_be_named(installed: Path) -> None:
    (installed / "acme_ray" / "__init__.py").write_text(
        "from acme_ray.flux_hot import flux_hot\nALL = [flux_hot]\n"
    )
    for value in ("acme_ray.flux_hot", "acme_ray.flux_hot:flux_hot", "acme_ray:ALL"):
        (installed / "acme_ray-1.0.dist-info" / "entry_points.txt").write_text(
            f"[raydoctor.rules]\nacme = {value}\n"
        )
        assert len(plugins.catalogue().rules) == len(rules.load()) + 1


def test_without_plugins_no_metadata_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing every package's metadata would cost more than all rules together."""
    monkeypatch.delitem(sys.modules, "importlib.metadata", raising=False)
    assert plugins.catalogue().rules == rules.load()
    assert "importlib.metadata" not in sys.modules


def test_from_folder_names_the_folder() -> None:
    with pytest.raises(RaydoctorError, match="cannot read the folder of rules"):
        plugins.from_folder("/nowhere/at/all")
