"""Every example of every rule, with all rules loaded; and what every rule file must be.

The checks are those that plugin authors run: `raydoctor rules test`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.case import signals
from raydoctor.case.rule import Example, Rule
from raydoctor.cli import names
from raydoctor.diagnosis import rulecheck, unexplained
from raydoctor.model import entities, paste
from raydoctor.model.values import Remedy, Report
from raydoctor.render import page
from raydoctor.render import report as render_report
from tests.helpers.examples import CATALOGUE, run_of

SHARED = {*signals.FACTS, *unexplained.signals(())}
"""Signals that no rule needs to look for; those of the rules are checked with the rules."""


@pytest.mark.parametrize("rule", CATALOGUE.rules, ids=lambda r: r.name)
def test_rule(rule: Rule) -> None:
    """It is complete, its steps are quoted, its signals are found, its examples give what they say."""
    assert list(rulecheck.check(rule, CATALOGUE, run=run_of)) == []
    words = {word for example in rule.examples for word in capitals(run_of(example)[0])}
    unknown = {word for word in words if not NO_PLACEHOLDER.fullmatch(word)}
    assert unknown == set(), "add them to paste.PLACEHOLDERS, or here"
    assert commands_of_raydoctor(run_of(example)[0] for example in rule.examples) <= {*names()}
    fixes = (
        r for example in rule.examples for d in run_of(example)[0].diagnoses for r in d.remedies
    )
    assert [fix.title for fix in fixes if ends_what_it_looks_at(fix)] == []


NO_PLACEHOLDER = re.compile(
    r"(?:ASCEND|BAD|CUDA|FUNCTION|GLOO|HCCL|HYDRA|MASTER|MKL|NCCL|OMP|OPENBLAS|RAY|TORCH|TRAIN|VLLM)_\w+|PYTORCH_CUDA_ALLOC_CONF"
    r"|HTTPS_PROXY|LD_LIBRARY_PATH|PYTHON(?:PATH|ASYNCIODEBUG|FAULTHANDLER)|VISIBLE_DEVICES|SERVE_(?:CONTROLLER|PROXY)_ACTOR"
    r"|REDIS_OK|NOPERM|RAY|STACK_TRACE|TLS|(?:STRICT_)?(?:PACK|SPREAD)|ECC|ROW_REMAPPER|[CGN]PU|MEMORY|VM|V?LLM|SBATCH"
    r"|HANDLE|OK|ERROR|INFO|ALIVE|CREATED|ATTEMPT|NODE|CONT"
)
"""Words in capitals in lines to paste that stay as they are: variables, states, settings, our examples' names."""


def steps_of(report: Report) -> Iterator[str]:
    """Every step of every fix."""
    return (s for d in report.diagnoses for r in d.remedies for s in r.steps)


def commands_of_raydoctor(reports: Iterable[Report]) -> set[str]:
    """The commands of raydoctor in the fixes of reports."""
    steps = (step for report in reports for step in steps_of(report))
    return {w for step in steps for w in re.findall(r"(?<![^ ])raydoctor ([a-z]+)(?= |$)", step)}


ENDS = re.compile(
    r"(?:sudo )?(?:kill|rm|reboot|ray stop|nvidia-smi --gpu-reset|raydoctor (?:zombies|cancel))\b(?! -CONT)"
    r"|(?:ray\.)?(?:util\.)?(?:kill|cancel|remove_placement_group)\("
)
LOOKS = re.compile(
    r"(?:sudo )?(?:ps|top|cat|du|df|echo|tail|grep|lsof|dmesg|pgrep|readlink|ray (?:list|status|memory)|nvidia-smi -q"
    r"|raydoctor (?:diagnose|hung|stack|status))\b"
)


def ends_what_it_looks_at(fix: Remedy) -> bool:
    """Whether one paste shows a process or file and ends it before it is read, or answers the question of a command."""
    steps = [s for s in fix.steps if paste.is_code(s) and not s.startswith("#")]
    ready = [s for s in steps if all(kind != "fill-in" for kind, _ in paste.parts(s))]
    ends = any(ENDS.match(step) for step in ready)
    asks = any(step.startswith("raydoctor zombies") for step in steps[:-1])
    return asks or (ends and any(LOOKS.match(step) for step in steps))


def capitals(report: Report) -> Iterator[str]:
    """The words in capitals that a reader of the fixes could take for a placeholder."""
    for step in steps_of(report):
        if paste.is_code(step):
            code = "".join(part for kind, part in paste.parts(step) if kind == "code")
            yield from re.findall(r"(?<![\w$-])[A-Z][A-Z_]+(?![\w%])", code)


ABSENT = re.compile(
    r"\brules? out\b|ruled out|\bno (?:other )?(?:log|record)s?\b|\b(?:logs?|records?) (?:names?|shows?|records?|contains?) no",
    re.I,
)
"""Statements that only logs which were read can support."""
CONSOLES = [
    pytest.param(example, id=f"{rule.name}: {example.title}")
    for rule in CATALOGUE.rules
    for example in rule.examples
    if set(example.files) == {"driver.log"} and (example.roots or example.consequences)
]


@pytest.mark.parametrize("example", CONSOLES)
def test_a_console_alone_rules_no_cause_out(example: Example) -> None:
    """Only the log that would show a cause can rule it out, not a driver's output."""
    report, _ = run_of(example)
    sentences = [
        text
        for diagnosis in report.diagnoses
        for text in (diagnosis.headline, *(link.shows for link in diagnosis.chain))
    ]
    assert [text for text in sentences if ABSENT.search(text)] == []


@pytest.mark.parametrize(
    ("name", "title", "first"),
    [
        ("raylet-died", "SIGKILL ended the raylet", "raylet.seen_dead"),
        ("raylet-died", "killed a moment ago", "live.daemons"),
        ("driver-vanished", "the driver's output breaks off", "raylet.seen_dead"),
        ("object-store-full", "spilling is off and the disk", "store.fallback_failed"),
        ("gcs-unreachable", "a driver connects to a cluster", "gcs.no_answer"),
        ("clock-skew", "a raylet starts 40 s before", "raylet.started"),
    ],
)
def test_a_diagnosis_is_dated_by_its_failure(name: str, title: str, first: str) -> None:
    """Not by the start of what failed, unless nothing else has a time."""
    rule = next(rule for rule in CATALOGUE.rules if rule.name == name)
    example = next(example for example in rule.examples if example.title.startswith(title))
    report, _ = run_of(example)
    found = next(each for each in report.diagnoses if each.rule == name)
    assert first in {e.event.kind for e in found.chain if e.event.at == found.first_at}


@pytest.mark.parametrize(
    ("title", "waited"),
    [
        (
            "the GCS was killed, so its log stops, and the raylet loses its connection to the GCS",
            60,
        ),
        ("the GCS was killed, and its node was stopped", 0),
        ("a pasted crash report that only its frames identify", 0),
    ],
)
def test_the_end_of_a_gcs_is_dated_before_others_waited_for_it(title: str, waited: int) -> None:
    rule = next(rule for rule in CATALOGUE.rules if rule.name == "gcs-died")
    example = next(example for example in rule.examples if example.title.startswith(title))
    report, _ = run_of(example)
    (found,) = report.roots
    if waited:
        assert found.first_at is not None
        assert found.noticed_at == pytest.approx(found.first_at + waited)
        shown = page.plain(render_report.render(report))
        assert re.search(r"gcs-died  about 2026-11-21 \d\d:41:11, noticed \d\d:42:11", shown)
    else:
        assert found.noticed_at is None


def test_names_are_unique() -> None:
    names = [r.name for r in CATALOGUE.rules]
    assert len(names) == len(set(names))


def test_every_rule_declares_its_entities() -> None:
    assert [r.name for r in CATALOGUE.rules if r.explains is None or r.caused_by is None] == []


def test_every_entity_kind_has_a_meaning() -> None:
    assert tuple(entities.MEANINGS) == get_args(entities.EntityKind)


def test_every_entity_kind_is_explained_and_a_cause() -> None:
    """Or `raydoctor/model/entities.py` lists it, with the reason."""
    explained = Counter(kind for rule in CATALOGUE.rules for kind in rule.explains or ())
    causes = {kind for rule in CATALOGUE.rules for kind in rule.caused_by or ()}
    kinds = set(entities.MEANINGS)
    assert kinds - set(explained) == entities.STORY_ONLY
    assert causes <= set(explained), "a cause that no rule explains"
    alone = {kind for kind, count in explained.items() if count == 1}
    assert alone - causes == entities.IDENTITY_ONLY, "neither a cause nor shared by two rules"


def test_signals_of_no_rule() -> None:
    """The sample matches, and what the pattern accepts contains the literal."""
    assert rulecheck.proves_literals()
    assert [(s.kind, s.find, p) for s in SHARED for p in rulecheck.signal_problems(s)] == []


PIECES = ("ab", "a", r"\.", r"\[", "b|c", "(b|ab)", "(?:ab)?", "[]ab]", "b?", "a+?", "b*", "a{0,2}", "a{2}", r"\x61", r"\d", ".", "^", r"\b", "{", "(?i:ab)")  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_a_pattern_proves_is_in_whatever_it_matches(data: st.DataObject) -> None:
    regex = re.compile("".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=6))))
    literal = data.draw(st.text("ab.[1c{", min_size=1, max_size=3))
    if rulecheck.holds(regex, literal):
        found = regex.search(data.draw(st.from_regex(regex)))
        assert found is not None
        assert literal in found[0]


@pytest.mark.parametrize(
    ("pattern", "proves"),
    [
        (r"^oops \(code (?P<code>\d+)\)\.", True),
        (r"^oops \(code 1|oops \(code 2", True),
        (r"^(?:x oops \(code 1|oops \(code 2)", True),
        (r"^oops \(code 1|oops 2", False),
        (r"^oops \(cod?e ", False),
        (r"^(?:oops \((?P<kind>code) )", True),
        (r"^(?:oops \(code )?", False),
        (r"^(?:oops \(code ){1,2}", True),
        (r"(?i)^oops \(code ", False),
        (r"^(?i:oops) \(code ", False),
        (r"(?x)oops\ \(code\ ", True),
        (r"oops [({]code ", False),
    ],
)
def test_a_pattern_proves_what_every_match_contains(pattern: str, proves: bool) -> None:
    assert rulecheck.holds(re.compile(pattern), "oops (code ") is proves
