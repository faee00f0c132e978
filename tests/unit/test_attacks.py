"""Logs made to be slow: every pattern against long repetitions, and what bounds the rest."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from time import thread_time

import pytest

from benchmarks import all_patterns, attack_patterns
from benchmarks.attacks import Attack, attacks
from raydoctor.capture.console import exceptions, files, shape
from raydoctor.capture.console.rewrite import Rewriter, RewrittenLine
from raydoctor.capture.cpu import CpuTimeSpent, cpu_limit, cpu_limits
from raydoctor.capture.open import open_capture
from raydoctor.case import Case, facts
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.diagnosis import engine, rulecheck
from raydoctor.model.values import Event, Finding, Gap, Source
from raydoctor.read import budget, keep, scan, stacks, structured
from raydoctor.read.keep import Draft, Keeper
from raydoctor.read.lines import RECORD_BYTES
from raydoctor.read.records import MAX_LINE, LogLine, message_of
from raydoctor.redact.redactor import Redactor
from raydoctor.rules.shared import actor_deaths
from tests.helpers.examples import CATALOGUE

SIGNALS = attack_patterns.all_signals()
SMALL, QUICK_S, SLOWEST = 1024, 0.0002, 3
"""Of the attacks that take longer for so few characters, the slowest are tried with as many as a pattern can meet."""
MOST_S = 1.0
"""Processor time for one text: what is quadratic with a small factor passes, anything worse does not."""
SHORTER = 4
"""A text of a quarter of the length comes first, which may take a sixteenth of the time: as what is quadratic."""
HEADER = "[2026-11-21 07:34:50,739 E 283 293] (raylet) a.cc:1: "


def slow(tries: Callable[[str], object], tried: Iterable[Attack], size: int) -> list[str]:
    """The attacks for which a pattern takes too long, with the longest text that it can meet."""
    costs: list[tuple[float, str, Attack]] = []
    for attack in tried:
        began = thread_time()
        tries(attack.text(SMALL))
        if (cost := thread_time() - began) >= QUICK_S:
            costs.append((cost, attack.name, attack))
    return [
        name
        for _, name, attack in sorted(costs, reverse=True)[:SLOWEST]
        if takes_too_long(tries, attack.text(size // SHORTER), MOST_S / SHORTER**2)
        and takes_too_long(tries, attack.text(size))
    ]


def takes_too_long(tries: Callable[[str], object], text: str, seconds: float = MOST_S) -> bool:
    began = thread_time()
    try:
        with cpu_limit(MOST_S):
            tries(text)
    except CpuTimeSpent:
        return True
    return thread_time() - began > seconds


@pytest.mark.parametrize(("pattern", "is_slow"), [("a{0,50}b", False), ("a*a*b", True)])
def test_what_grows_too_fast_is_slow(
    pattern: str, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "MOST_S", 0.1)
    monkeypatch.setattr(sys.modules[__name__], "SMALL", 256)
    assert bool(slow(re.compile(pattern).search, attacks(pattern), MAX_LINE)) is is_slow


def test_no_line_is_slow_for_a_signal() -> None:
    """Each literal, sample and part of each signal's pattern, repeated up to the longest text it sees."""
    found = [
        f"{signal.kind} {signal.find!r}: {name}"
        for signal in SIGNALS
        for name in slow(
            signal.regex.search,
            attacks(signal.pattern, signal.regex.flags, signal.find, signal.sample),
            MAX_LINE if signal.extent == "line" else RECORD_BYTES,
        )
    ]
    assert found == []


NOT_HOSTILE = {
    "capture.console.shape._SRUN": "tried at the beginning of a line only",
    "model.target_names._PID": "tried on a whole name that the user typed",
    "observe/stacks/locks.py:175": "tried at the beginning of a line of the kernel",
    "read.kubernetes.documents._IGNORED": "tried at one place only",
    "read.prefilter._HITS": "the output of rg, which puts the numbers first",
    "read/index.py:228": "the patterns of rules",
    "render.rules.SPAN": "the pages of rules",
}
"""Patterns that no text of another user meets as `slow` tries them, and why."""


def patterns() -> list[all_patterns.Known]:
    """All of the package. Those of `redact` meet whole windows: they are tried through the redactor."""
    return [each for each in all_patterns.all_patterns() if each.name not in NOT_HOSTILE]


def test_the_walk_finds_patterns_however_they_are_held() -> None:
    names = {each.name for each in all_patterns.all_patterns()}
    assert {
        "redact.places.PLACES",  # in a tuple of objects
        "redact.shapes._shapes",  # made by a function at its first call
        "act/attach/programs/look_inside.py:209",  # in a program that is never imported
    } <= names
    assert set(NOT_HOSTILE) <= names


def test_no_record_is_slow_for_a_pattern() -> None:
    found = [
        f"{each.name}: {attack}"
        for each in patterns()
        if not each.name.startswith("redact")
        for attack in slow(each.tries, attacks(each.text, each.flags), MAX_LINE)
    ]
    assert found == []


def test_no_text_is_slow_to_redact() -> None:
    """A tenth of the patterns; `benchmarks/attack_patterns.py` tries all with 1 MB."""
    known = [each for each in patterns() if each.name.startswith("redact")]
    found = [
        f"{each.name}: {attack}"
        for each in known[::10]
        for attack in attack_patterns.slowest(each.tries, attacks(each.text, each.flags), 1)
        if takes_too_long(Redactor().redact, attack.text(50_000))
    ]
    assert found == []


def test_a_long_record_is_skimmed_for_an_actor() -> None:
    """A pattern with an optional beginning is tried at every character, and records have 64 kB."""
    text = "E   ray::Trainer.step() (pid=812)\n" * 2000
    forms = {
        "class": facts._ACTOR_FRAME.search,
        "class_name": actor_deaths._FRAME.search,
        "slow": re.compile(r"(?:\n\tclass_name: [^\n]*)?\n\tactor_id: [0-9a-f]{32}").search,
    }
    took = {name: min(_seconds(search, text) for _ in range(5)) for name, search in forms.items()}
    assert max(took["class"], took["class_name"]) * 3 < took["slow"]


def _seconds(search: Callable[[str], object], text: str) -> float:
    began = thread_time()
    assert search(text) is None
    return thread_time() - began


@pytest.mark.parametrize("class_name", ["", "\n\tclass_name: Trainer"])
def test_an_actor_is_found_with_its_class(class_name: str) -> None:
    text = f"The actor died.\n\tx: 1{class_name}\n\tactor_id: {'ab' * 16}\n\tpid: 7\nkilled"
    for search in (facts._ACTOR_FRAME.search, actor_deaths._FRAME.search):
        found = search(text)
        assert found is not None
        assert [value for value in found.groups() if value] == [
            *(["Trainer"] if class_name else []),
            *("ab" * 16, "7", "killed"),
        ]


def test_an_exception_is_looked_for_only_in_a_form_that_a_line_may_have() -> None:
    """Each form takes a thousand times as long as the search for its characters."""
    names = ("ray.exceptions.GetTimeoutError", "GetTimeoutError", "<class 'GetTimeoutError'>")
    ends = (": x", "('x')", '("x', "()", "(ValueError('y'))", " x", "(TypeError): x", ", x")
    lines = [f"{begin}{name}{end}" for begin in ("", "a: ", "b=") for name in names for end in ends]
    lines += [
        line for signal in SIGNALS for line in signal.sample.splitlines() if len(line) < MAX_LINE
    ]
    matched = [
        any(part in line for part in parts)
        for form, parts in exceptions._FORMS
        for line in lines
        if form.search(line)
    ]
    assert len(matched) > 50
    assert all(matched)


# ---------------------------------------------------------------- long lines


def signal(kind: str, find: str, pattern: str, **more: object) -> Signal:
    return Signal(kind, find, pattern, ("raylet-out", "driver"), find, **more)  # type: ignore[arg-type]


def scanned(file: Path, wanted: list[Signal], role: str = "raylet-out") -> scan.Scan:
    return scan.scan({Source(file.name, role, size=file.stat().st_size): str(file)}, wanted)


def test_a_literal_many_times_in_a_line_is_tried_once(tmp_path: Path) -> None:
    """240 kB took 46 s of processor time."""
    (tmp_path / "driver.log").write_text("KeyboardInterrupt: " + "ray::a" * 40_000 + "\n")
    with cpu_limit(5.0), open_capture(str(tmp_path)) as capture:
        engine.run(capture)


@pytest.mark.parametrize(
    ("prefix", "other"),
    [("1" * 150, "1" * 75), ("1 " * 150_000, "1 " * 150_000), ("ERROR " * 50, "ERROR " * 25)],
)
def test_a_prefix_of_a_console_is_no_pattern_that_takes_long(prefix: str, other: str) -> None:
    """The first two took 20 s: the prefix of a line becomes a pattern for the others."""
    lines = [f"{prefix}x: Traceback (most recent call last):", *[f"{other}y"] * 3000][
        : 900_000 // len(other)
    ]
    with cpu_limit(MOST_S):
        assert shape.without_unknown_prefix(lines) == lines


def test_what_stands_late_in_a_long_line_is_found(tmp_path: Path) -> None:
    line = "early " + "x" * 300_000 + " late 7 " + "x" * 300_000 + " early"
    (tmp_path / "raylet.out").write_text(f"{line}\n{HEADER}late 8\n")
    wanted = [signal("early", "early", "early"), signal("late", "late ", r"late (?P<n>\d+)")]
    found = scanned(tmp_path / "raylet.out", wanted)
    reply = sorted((d.signal.kind, d.line, d.count, d.fields.get("n")) for d in found.drafts)
    assert reply == [("early", 1, 1, None), ("late", 1, 1, "7"), ("late", 2, 1, "8")]


def test_a_recognized_line_counts_once(tmp_path: Path) -> None:
    """Lines that templates accept, each with two literals that alternate."""
    lines = "".join(f"{HEADER}aa {n} bb {n} aa bb aa bb\n" for n in range(2000))
    (tmp_path / "raylet.out").write_text(lines)
    wanted = [signal("a", "aa ", r"^aa \d+"), signal("b", " bb ", r" bb \d+")]
    found = scanned(tmp_path / "raylet.out", wanted)
    counts = {kind: sum(d.count for d in found.drafts if d.signal.kind == kind) for kind in "ab"}
    assert counts == {"a": 2000, "b": 2000}


# ---------------------------------------------------------------- budgets


def no_time(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(budget, name, -1.0)
    monkeypatch.setattr(budget, "SECONDS_PER_GB", 0.0)


def test_a_file_that_takes_too_long_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_time(monkeypatch, "FILE_SECONDS")
    (tmp_path / "raylet.out").write_text(f"{HEADER}oops\n" * 100)
    found = scanned(tmp_path / "raylet.out", [signal("x", "oops", "oops")])
    assert [gap.what for gap in found.gaps] == ["raylet.out"]
    assert "53 B of 5.7 KiB read within the time budget" in found.gaps[0].why
    assert not found.gaps[0].optional


def test_a_capture_that_takes_too_long_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_time(monkeypatch, "RUN_SECONDS")
    (tmp_path / "raylet.out").write_text(f"{HEADER}oops\n")
    found = scanned(tmp_path / "raylet.out", [signal("x", "oops", "oops")])
    assert [gap.what for gap in found.gaps] == ["logs"]


def test_the_search_of_a_file_given_up_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rg is not read to the end, nor waited for, and the next file is searched all the same."""
    from raydoctor.read import prefilter

    monkeypatch.setattr(prefilter, "GIANT", 1000)
    for name in "ab":
        (tmp_path / name).write_text("oops\n" * 300_000)
    files = [str(tmp_path / name) for name in "ab"]
    given_up: set[str] = set()
    seen: list[str] = []
    gaps: list[Gap] = []
    wanted = dict.fromkeys(files, frozenset({"oops"}))
    for file, hits in prefilter.batches(wanted, gaps, given_up=given_up):
        seen.append(file)
        given_up.add(file)
        assert len(hits) < 300_000
    assert sorted(seen) == files
    assert gaps == []


def test_a_block_that_takes_too_long_to_rewrite_is_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for the consoles after it: they share the time."""

    def never(rewriter: Rewriter, raws: list[str], first: int = 1) -> list[RewrittenLine]:
        while True:
            re.match("a*", "aaa")

    monkeypatch.setattr(Rewriter, "rewrite", never)
    monkeypatch.setattr(files, "_RUN_SECONDS", 0.05)
    for name in ("driver.log", "job-driver-raysubmit_x.log"):
        (tmp_path / name).write_text("(f pid=1) hello\n")
    with open_capture(str(tmp_path)) as capture:
        whys = [gap.why for gap in capture.gaps]
    assert whys == ["its format takes long to rewrite; read without rewriting from line 1 on"] * 2


def endless(case: Case) -> Iterator[Finding]:
    while True:
        case.of("x")
    yield


def test_a_rule_that_does_not_end_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "RULE_SECONDS", 0.05)
    made = rule(tier="root", severity="error", rank=1, looks_for=())(endless)
    gaps: list[Gap] = []
    assert engine.judge(Case([]), [made], gaps) == []
    assert [gap.why.partition(":")[0] for gap in gaps] == [
        "not finished within its time budget of 0.05 s"
    ]


def test_a_limit_between_limits_leaves_them_in_force() -> None:
    with cpu_limits() as limit:
        with cpu_limit(1):
            pass
        for _ in range(2):
            limit(0.05)
            with pytest.raises(CpuTimeSpent):
                next(endless(Case([])))


def test_a_limit_leaves_no_timer_behind() -> None:
    with cpu_limit(0.05):
        pass
    ends = thread_time() + 0.1
    while thread_time() < ends:
        pass


# ---------------------------------------------------------------- memory


def test_records_that_are_huge_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_KEPT_CHARS", 200_000)
    record = f"{HEADER}oops\n" + f"{'y' * 2000}\n" * 20
    (tmp_path / "raylet.out").write_text(record * 60)
    found = scanned(tmp_path / "raylet.out", [signal("x", "oops", "^oops\n", extent="record")])
    assert sum(d.count for d in found.drafts) == 60
    assert sum(d.chars for d in found.drafts) < 400_000


def test_a_keeper_bounds_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "KEPT_CHARS", 10_000)
    keeper = Keeper()
    for number in range(50):
        source = Source(f"{number}", "raylet-out")
        draft = Draft(SIGNALS[0], source, 1, 0, LogLine("", ""), "x" * 1000, "", {}, frozenset(), 3)
        keeper.add([draft])
    kept = keeper.drafts()
    assert sum(d.count for d in kept) == 150
    assert sum(d.chars for d in kept) <= 20_000


def test_an_export_event_is_no_longer_than_a_message(tmp_path: Path) -> None:
    event = {
        "source_type": "EXPORT_NODE",
        "timestamp": 1e400,
        "event_data": {"death_info": {"reason_message": "x" * 900_000}},
    }
    file = tmp_path / "event_EXPORT_NODE.log"
    file.write_text("y" * 3_000_000 + '"EXPORT_NODE"\n' + json.dumps(event) + "\n")
    (found,) = structured.read({Source(file.name, "export-event", size=1): str(file)}, [])
    assert (found.line, found.at, len(found.message)) == (2, None, 32_000)


def test_a_file_of_many_stacks_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "stacks.txt"
    file.write_text("Process 1: x\nThread 1\n" * 200_000)
    with cpu_limit(5.0):
        found: list[Event] = stacks.read({Source(file.name, "stack"): str(file)}, [])
    assert [(e.line, e.offset) for e in found[:2]] == [(1, 0), (3, 22)]
    assert len(found) == 500


# ---------------------------------------------------------------- numbers


def groups(pattern: str) -> Iterator[tuple[str, str]]:
    """(name, pattern) of each group that captures."""
    opened: list[int] = []
    for match in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]", pattern, re.DOTALL):
        if match[0] == "(":
            opened.append(match.end())
        elif match[0] == ")":
            inner = pattern[opened.pop() : match.start()]
            named = re.match(r"\?P<(\w+)>", inner)
            if named or not inner.startswith("?"):
                yield (named[1], inner[named.end() :]) if named else ("", inner)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [(r"a(b[)]\()(?:c)(?P<n>\d+(?:\.\d)?)", [("", r"b[)]\("), ("n", r"\d+(?:\.\d)?")])],
)
def test_groups_of_a_pattern(pattern: str, wanted: list[tuple[str, str]]) -> None:
    assert list(groups(pattern)) == wanted


def test_what_a_group_takes_for_a_number_is_one() -> None:
    """Otherwise a single line of a program would end a rule. The scan limits the digits of a signal's field."""
    read = ("rules.", "read.", "case.facts")
    every = [(p.name, p.compiled, "9" * 400) for p in patterns() if p.name.startswith(read)]
    every = [each for each in every if isinstance(each[1].pattern, str)]
    every += [(signal.kind, signal.regex, "1.2.3") for signal in SIGNALS]
    bad = [
        f"{name}: {group or inner}"
        for name, regex, long in every
        for group, inner in groups(regex.pattern)
        for taken in [re.compile(inner, regex.flags).fullmatch]
        if taken("7") and not taken("x") and not ("version" in group or group == "ip")
        if taken(long) or taken("1.2.3")
    ]
    assert bad == []


def _numbers_of(signal: Signal) -> list[str]:
    """The groups of a signal that accept numbers only."""
    return [
        name
        for name, inner in groups(signal.pattern)
        for taken in [re.compile(inner).fullmatch]
        if name and taken("7") and not taken("x")
    ]


NUMBERS = {signal: names for signal in SIGNALS if (names := _numbers_of(signal))}


def _spans(text: str, signal: Signal) -> Iterator[tuple[int, int]]:
    """Where the numbers of a signal's fields are in a log."""
    for hit in re.finditer(re.escape(signal.find), text):
        begin, end = text.rfind("\n", 0, hit.start()) + 1, text.find("\n", hit.end())
        end = end if end >= 0 else len(text)
        message = end - len(message_of(text[begin:end], signal.roles[0])[0])
        stop = end if signal.extent == "line" else message + 4000
        for at in {begin, message}:
            if found := signal.regex.search(text[at:stop]):
                for name in NUMBERS[signal]:
                    if found[name] and (digits := re.search(r"\d+", found[name])):
                        start = at + found.start(name)
                        yield start + digits.start(), start + digits.end()


@cache
def _numbers(text: str) -> tuple[list[tuple[int, int]], set[str]]:
    """Where the numbers of all signals' fields are in a log, last first, and the kinds of these signals."""
    spans = {s: set(_spans(text, s)) for s in NUMBERS if s.find in text}
    return sorted(set().union(*spans.values()), reverse=True), {s.kind for s in spans if spans[s]}


def _with_numbers(text: str, digits: str) -> str:
    """A log with other digits in each field that is a number."""
    for start, end in _numbers(text)[0]:
        text = text[:start] + digits + text[end:]
    return text


@pytest.mark.parametrize("digits", ["9" * 5000, "0"])
def test_no_number_ends_a_rule(digits: str) -> None:
    """Each rule meets the signals of its examples, and those without examples, with such numbers."""
    met: set[tuple[str, frozenset[str]]] = set()
    kinds: set[str] = set()

    def meet(rule: str, files: Mapping[str, str]) -> None:
        changed = set[str]().union(*(_numbers(text)[1] for text in files.values()))
        texts = {name: _with_numbers(text, digits) for name, text in files.items()}
        if changed and (rule, frozenset(changed)) not in met:
            met.add((rule, frozenset(changed)))
            kinds.update(changed)
            rulecheck.run_example(Example("", texts), CATALOGUE)

    for each in CATALOGUE.rules:
        for example in each.examples:
            meet(each.name, example.files)
    for signal in NUMBERS:
        if signal.kind not in kinds:
            meet("", {attack_patterns.name_of(signal): f"{signal.sample}\n"})
    assert {signal.kind for signal in NUMBERS} - kinds == {"oom.retry"}  # "infinite" in its sample
