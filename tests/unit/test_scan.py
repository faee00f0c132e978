"""Hits become events: as many as there are, the first and the last of a storm, in any order of files."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from raydoctor import rules
from raydoctor.case import signals
from raydoctor.case.rule import Signal
from raydoctor.model.values import Source
from raydoctor.read import keep
from raydoctor.read.index import Index, SignalProbe, index_of
from raydoctor.read.keep import Draft, Keeper
from raydoctor.read.lines import FileLines
from raydoctor.read.records import MAX_LINE, LogLine, assemble, message_of, parse_line
from raydoctor.read.scan import Scan, scan
from raydoctor.read.template import draw

ALL = tuple(dict.fromkeys([*signals.FACTS, *(s for rule in rules.load() for s in rule.looks_for)]))
HEADER = "[2026-11-21 07:34:50,739 W 283 293] (raylet) a.cc:1: "


def signal(kind: str, find: str, pattern: str, **more: object) -> Signal:
    return Signal(kind, find, pattern, ("raylet-out",), find, **more)  # type: ignore[arg-type]


def scanned(folder: Path, files: dict[str, str | bytes], wanted: list[Signal]) -> Scan:
    sources = {}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        role = "driver" if name.endswith("driver.log") else "raylet-out"
        sources[Source(name, role)] = str(path)
    return scan(sources, wanted)


def reply(result: Scan) -> Counter[str]:
    """Records by kind."""
    counts: Counter[str] = Counter()
    for draft in result.drafts:
        counts[draft.signal.kind] += draft.count
    return counts


# ---------------------------------------------------------------- what is found


OVERLAPPING = ("ab", "abc", "bca", "b c", "ca")


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.text("abc \0é", max_size=12), max_size=12),
    ending=st.sampled_from(["\n", "\r\n"]),
)
def test_no_literal_hides_another(
    lines: list[str], ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """rg names the leftmost of literals that overlap; the events are those of a plain search."""
    wanted = [signal(literal, literal, re.escape(literal)) for literal in OVERLAPPING]
    folder = tmp_path_factory.mktemp("scan")
    result = scanned(folder, {"raylet.out": ending.join(lines)}, wanted)
    assert {(d.line, d.signal.kind) for d in result.drafts} == {
        (n, literal)
        for n, line in enumerate(lines, 1)
        for literal in OVERLAPPING
        if literal in line
    }
    assert all(d.count == 1 for d in result.drafts)


def test_roles_decide(tmp_path: Path) -> None:
    """A driver's file echoes the raylet behind a prefix; its own words are the program's."""
    pushed = Signal("pushed", "oops", "^oops", ("raylet-echo",), "oops")
    own = Signal("own", "oops", "^oops", ("driver",), "oops")
    content = "oops\n(raylet) oops\n(train pid=1) oops\n(gcs_server) oops\n"
    result = scanned(tmp_path, {"driver.log": content, "raylet.out": "oops\n"}, [pushed, own])
    assert [(d.signal.kind, d.line) for d in result.drafts] == [("pushed", 2), ("own", 1)]


def test_a_line_is_one_event_however_often_it_says_it(tmp_path: Path) -> None:
    result = scanned(tmp_path, {"raylet.out": "oops oops\noops\n"}, [signal("x", "oops", "oops")])
    assert [(d.line, d.count) for d in result.drafts] == [(1, 1), (2, 1)]


def test_repeated_lines_count_as_often_as_they_say(tmp_path: Path) -> None:
    echoed = Signal("x", "oops", "^oops", ("worker-echo",), "oops")
    content = "(train pid=1) oops [repeated 7x across cluster]\n" * 3
    assert reply(scanned(tmp_path, {"driver.log": content}, [echoed])) == {"x": 21}


def test_records_are_read_to_their_end(tmp_path: Path) -> None:
    record = signal("x", "oops", r"^oops\n(?P<what>.*)", extent="record")
    result = scanned(tmp_path, {"raylet.out": f"{HEADER}oops\nbecause\n\n{HEADER}next\n"}, [record])
    assert result.drafts[0].fields["what"] == "because"
    assert result.drafts[0].text == f"{HEADER}oops\nbecause"


def test_the_end_of_a_giant_line_is_seen(tmp_path: Path) -> None:
    content = "x" * 3_000_000 + "oops\n" + f"{HEADER}oops\n"
    result = scanned(tmp_path, {"raylet.out": content}, [signal("x", "oops", "oops")])
    assert [(d.line, len(d.text) < 20_000) for d in result.drafts] == [(1, True), (2, True)]


@pytest.mark.parametrize("long", ["9" * 5000, "-" + "9" * 5000, "9" * 5000 + ".5"])
def test_numbers_of_thousands_of_digits_can_be_converted(tmp_path: Path, long: str) -> None:
    number = signal("x", "n=", r"n=(?P<n>-?\d+(?:\.\d+)?)")
    result = scanned(tmp_path, {"raylet.out": f"n={long}\nn=12\n"}, [number])
    assert [math.isfinite(float(d.fields["n"])) for d in result.drafts] == [True, True]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    content = b"\xff\xfe\0oops\xff\n" + b"\0" * 100_000 + b"oops"
    result = scanned(tmp_path, {"raylet.out": content}, [signal("x", "oops", "oops")])
    assert [d.line for d in result.drafts] == [1, 2]


def test_unreadable_files_are_gaps_by_their_path_in_the_capture(tmp_path: Path) -> None:
    result = scan(
        {Source("n1/raylet.out", "raylet-out"): str(tmp_path / "gone")}, [signal("x", "o", "o")]
    )
    assert [gap.what for gap in result.gaps] == ["n1/raylet.out"]


def test_captures_that_are_asked_for_the_same_share_an_index() -> None:
    wanted, others = (tuple(signal(k, k, k) for k in kinds) for kinds in ("ab", "bc"))
    assert index_of(wanted) is index_of(tuple(replace(each) for each in wanted))
    assert index_of(others) is not index_of(wanted)
    assert index_of(others).literals("raylet-out") == {"b", "c"}
    assert index_of(others).literals("gcs-out") == frozenset()


# ---------------------------------------------------------------- storms


FAILED = signal(
    "failed",
    "Task failed: ",
    r"^Task failed: (?P<why>\w+) task=(?P<task>[0-9a-f]{8})",
    fold=("why",),
)
WHOLE = signal(
    "whole",
    "Worker exit: ",
    r"^Worker exit: .*pid=(?P<worker_pid>\d+)(?P<rest>.*)",
    extent="record",
)
STRICT = signal("strict", "Ends: ", r"^Ends: (?P<pid>\d+)$", extent="record")
STORM = st.lists(
    st.one_of(
        st.builds("Task failed: {} task={:08x}".format, st.sampled_from("ab"), st.integers(0, 1 << 32 - 1)),
        st.builds("Worker exit: of {} pid={}".format, st.integers(0, 1 << 40), st.integers(0, 99_999)),
        st.builds("Ends: {}".format, st.integers(0, 9999)),
        st.sampled_from(["Task failed: ", "Ends: 7x", "Worker exit: none", "Task failed: a task=xyz", "quiet"]),
    ),
    max_size=60,
)  # fmt: skip


def plainly(content: str, wanted: list[Signal]) -> Counter[str]:
    """The same count, line by line and with no shortcut."""
    lines = content.split("\n")
    counts: Counter[str] = Counter()
    for number, raw in enumerate(lines):
        head = parse_line(raw, "raylet-out")
        record = assemble(head, lines[number + 1 :], "raylet-out")[1]
        for each in wanted:
            message = head.message if each.extent == "line" else record
            counts[each.kind] += each.find in raw and each.regex.search(message) is not None
    return +counts


@settings(max_examples=80, deadline=None)
@given(
    lines=STORM, times=st.integers(1, 4), heads=st.lists(st.booleans(), min_size=60, max_size=60)
)
def test_counts_are_true(
    lines: list[str], times: int, heads: list[bool], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is kept, counted by templates or folded."""
    content = "\n".join(
        (f"[2026-11-21 07:34:{n % 60:02d},739 W 283 {n}] (raylet) a.cc:1: " if head else "") + line
        for n, (line, head) in enumerate(zip(lines * times, heads * times, strict=False))
    )
    wanted = [FAILED, WHOLE, STRICT]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keeper, "__init__", few)
        patch.setattr(keep, "KEPT_PER_SIGNAL", 8)
        result = scanned(tmp_path_factory.mktemp("storm"), {"raylet.out": content}, wanted)
    assert reply(result) == plainly(content, wanted)
    assert all(sum(d.signal is each for d in result.drafts) <= 8 for each in wanted)


def few(self: Keeper) -> None:
    self.each, self._runs, self._kept, self._chars, self._dropped = 2, [], 0, 0, 0


def test_the_first_and_the_last_of_a_storm_are_kept(tmp_path: Path) -> None:
    content = "".join(
        f"{HEADER}Task failed: {'b' if n == 3000 else 'a'} task={n:08x}\n" for n in range(5000)
    )
    result = scanned(tmp_path, {"raylet.out": content}, [FAILED])
    lines = [d.line for d in result.drafts if d.fields["why"] == "a"]
    assert lines == [*range(1, 257), *range(4745, 5001)]
    assert [(d.line, d.fields["task"]) for d in result.drafts if d.fields["why"] == "b"] == [
        (3001, "00000bb8")
    ]
    assert [d.count for d in result.drafts if d.count > 1] == [4999 - 512 + 1]


def draft(path: str, line: int, count: int = 1) -> Draft:
    return Draft(
        FAILED, Source(path, "raylet-out"), line, 0, LogLine("", ""), "", "", {}, frozenset(), count
    )


@given(
    sizes=st.lists(st.integers(1, 40), max_size=60),
    most=st.integers(2, 30),
    order=st.randoms(use_true_random=False),
)
def test_what_is_kept_does_not_depend_on_the_order_of_files(
    sizes: list[int], most: int, order: random.Random
) -> None:
    def kept(numbers: list[int]) -> list[tuple[str, int, int]]:
        keeper = Keeper(each=16)
        for number in numbers:
            keeper.add([draft(f"{number:03}", line) for line in range(1, sizes[number] + 1)])
        drafts = keeper.drafts()
        assert len(drafts) <= most
        assert sum(d.count for d in drafts) == sum(sizes)
        return [(d.source.path, d.line, d.count) for d in drafts]

    numbers = list(range(len(sizes)))
    shuffled = numbers.copy()
    order.shuffle(shuffled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keep, "KEPT_PER_SIGNAL", most)
        assert kept(shuffled) == kept(numbers)


def test_many_files_with_a_storm_each_stay_few_events(tmp_path: Path) -> None:
    content = "".join(f"{HEADER}Task failed: a task={n:08x}\n" for n in range(300))
    files: dict[str, str | bytes] = {f"n{n}/raylet.out": content for n in range(40)}
    result = scanned(tmp_path, files, [FAILED])
    assert reply(result) == {"failed": 12_000}
    assert len(result.drafts) <= keep.KEPT_PER_SIGNAL
    assert len({d.source.path for d in result.drafts}) == 40


def test_too_many_different_failures_are_folded_into_one_run(tmp_path: Path) -> None:
    content = "".join(f"{HEADER}Task failed: why{n} task={n:08x}\n" for n in range(3000))
    result = scanned(tmp_path, {"raylet.out": content}, [FAILED])
    assert reply(result) == {"failed": 3000}
    assert len(result.drafts) <= keep.KEPT_PER_SIGNAL


# ---------------------------------------------------------------- templates


def probe_of(each: Signal) -> SignalProbe:
    return Index([each]).probes[0]


class Drawn(NamedTuple):
    """The template that is drawn from a signal's sample behind a prefix."""

    signal: Signal
    role: str
    found: re.Match[str]
    template: re.Pattern[bytes]


def drawn_from(each: Signal) -> Iterator[Drawn]:
    probe = probe_of(each)
    for prefix in (HEADER, "(raylet) ", ""):
        raw = prefix + each.sample.split("\n")[0]
        role = "driver" if raw.startswith("(raylet) ") else "raylet-out"
        message = message_of(raw, role)[0]
        found = probe.search(message)
        template = draw(probe.pattern, probe.fold, raw.encode(), message) if found else None
        if found is not None and template is not None:
            assert template.match(raw.encode()), (each.kind, raw)
            yield Drawn(each, role, found, template)


def test_what_a_template_accepts_the_pattern_matches() -> None:
    """And with the same fold fields: so it is counted where the pattern would have counted it."""
    drawn = [list(drawn_from(each)) for each in ALL]
    assert sum(map(len, drawn)) > len(ALL)

    @settings(max_examples=3, deadline=None, phases=[Phase.generate])
    @given(data=st.data())
    def accept_no_more(some: list[Drawn], data: st.DataObject) -> None:
        for signal, role, found, template in some:
            other = data.draw(st.from_regex(template, fullmatch=True)).decode("ascii").rstrip("\n")
            again = probe_of(signal).search(message_of(other, role)[0])
            assert again is not None, (signal.kind, other)
            assert [again[name] for name in signal.fold] == [found[name] for name in signal.fold]

    # One prefix for each signal, each prefix for some; a run of hypothesis takes as long as the checks of several.
    chosen = [some[number % len(some)] for number, some in enumerate(drawn) if some]
    for begin in range(0, len(chosen), 8):
        accept_no_more(chosen[begin : begin + 8])


@pytest.mark.parametrize(
    "pattern",
    [
        r"^oops (?=x)\d+",
        r"^oops (?!y)\d+",
        r"oops (\d)\1",
        r"(?i)oops \d+",
        r"oops (?P<a>\d+) (?P=a)",
    ],
)
def test_patterns_without_a_template(pattern: str) -> None:
    assert draw(re.compile(pattern), (), b"oops 11 11", "oops 11 11") is None


def test_a_template_opens_what_the_pattern_leaves_open_and_nothing_else() -> None:
    pattern = re.compile(
        r"^oops (?P<worker>[0-9a-f]{8}) pid=(?P<pid>\d+) in (?P<kind>\d+), .*code 7"
    )
    raw = f"{HEADER}oops 0123abcd pid=12 in 3, at 10.0.0.2 code 7 and 8".encode()
    template = draw(pattern, ("kind",), raw, raw.decode()[len(HEADER) :])
    assert template is not None

    def like(old: str, new: str) -> bool:
        return template.match(raw.replace(old.encode(), new.encode()) + b"\n") is not None

    assert like("0123abcd", "ffffffff")
    assert not like("0123abcd", "fffffff")
    assert like("pid=12", "pid=123456")
    assert like("10.0.0.2", "192.168.17.255")
    assert like("07:34:50,739", "23:59:59,999")
    assert like("and 8", "and 99")
    assert not like("in 3", "in 4")
    assert not like("code 7", "code 8")
    assert not like(" W ", " E ")


def test_lines_with_colours_inside_or_beyond_ascii() -> None:
    pattern = re.compile("oops")
    exact = draw(pattern, (), b"\x1b[31moops\x1b[0m 1", "oops 1")
    assert exact is not None
    assert exact.match(b"\x1b[31moops\x1b[0m 1\n")
    assert not exact.match(b"\x1b[31moops\x1b[0m 2\n")
    assert draw(pattern, (), "oops é".encode(), "oops é") is None


def test_lines_after_a_line_are_whole_however_long_they_are(tmp_path: Path) -> None:
    lengths = [0, 1, 900, 1023, 1024, 1025, 3000, 5, 0, MAX_LINE + 7, 2]
    lines = [bytes([97 + n]) * length + b"\xc3" * (n % 2) for n, length in enumerate(lengths)]
    file = tmp_path / "raylet.out"
    file.write_bytes(b"first\n" + b"\n".join(lines))
    found = FileLines(str(file))
    found.around(2)
    expected = [line[:MAX_LINE].decode("utf-8", "replace") for line in lines]
    assert list(found.after(2, 1 << 20)) == expected
    assert list(found.after(2, 2000)) == [*expected[:4], expected[4][:70]]
    found.close()
