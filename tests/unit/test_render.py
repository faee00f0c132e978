"""Renderers: the contract of the JSON, the look of the page, and that hostile logs stay text."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from raydoctor import __version__
from raydoctor.case.rule import Example, Rule, Signal
from raydoctor.model import text as _text
from raydoctor.model.entities import Entity
from raydoctor.model.values import (
    CaptureInfo,
    Diagnosis,
    Event,
    Gap,
    Link,
    NodeInfo,
    Remedy,
    Report,
    Source,
    Stats,
    Subject,
    Unexplained,
)
from raydoctor.read.story import Alias, Story, StoryLine
from raydoctor.render import json as json_report
from raydoctor.render import markdown, page, report, rules, story, terminal
from raydoctor.rules.shared.traceback import parse

WORKER = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
RAYLET = Source("logs/raylet.out", "raylet-out", size=1000)
DRIVER = Source("driver.log", "driver", size=100)
AT = 1795237984.25


def event(text: str = "it broke", source: Source = RAYLET, line: int = 207, **more: Any) -> Event:
    more.setdefault("at", AT)
    return Event("thing.broke", source, line, 0, text, more.pop("message", text), **more)


def diagnosis(id_: str = "d1", **more: Any) -> Diagnosis:
    settings: dict[str, Any] = {
        "rule": "ray-oom-kill",
        "tier": "root",
        "severity": "error",
        "headline": "Ray's memory monitor killed train (pid 503): 3.8 of 4.0 GB used",
        "count": 1,
        "chain": (Link(event(), "the memory monitor is over its threshold"),),
        "remedies": (Remedy("Give train less to do", ("@ray.remote(num_cpus=2)",)),),
    }
    return Diagnosis(id=id_, **{**settings, **more})


def owner_died(id_: str, line: int = 12, **more: Any) -> Diagnosis:
    lost = event("OwnerDiedError: Failed to retrieve object", DRIVER, line, at=None)
    return diagnosis(
        id_,
        rule="owner-died",
        tier="symptom",
        headline=f"object {id_} is lost with its owner",
        chain=(Link(lost, "the driver got OwnerDiedError"),),
        **more,
    )


def reported(*diagnoses: Diagnosis, **more: Any) -> Report:
    info = CaptureInfo(
        "/tmp/ray/session_1",
        "session",
        ("2.60.0",),
        (NodeInfo("4392271d", "10.0.0.2", head=True),),
        AT - 60,
        AT + 60,
        42,
        1_200_000,
    )
    return Report(info, tuple(diagnoses), stats=Stats(0.12, 30, 20, 71), **more)


def text_of(shown: Report, verbose: bool = False) -> str:
    return page.plain(report.render(shown, verbose=verbose))


# ---------------------------------------------------------------- JSON


def test_json_is_the_contract() -> None:
    subject = Subject("worker", WORKER, "train", 503, "4392271d")
    shown = reported(
        diagnosis(consequences=("d2",), subjects=(subject,), first_at=AT, last_at=AT),
        owner_died("d2"),
        gaps=(Gap("kernel log", "not in the capture", "dmesg -T > dmesg.txt", optional=True),),
        unexplained=(Unexplained("worker.exit", "logs/raylet.out", 3, "gone", 2),),
    )
    document = json.loads(json_report.render(shown))
    assert list(document) == [
        "schema", "version", "capture", "diagnoses", "unexplained", "gaps", "stats",
    ]  # fmt: skip
    assert document["schema"] == "raydoctor/report/1"
    assert document["version"] == __version__
    assert document["capture"] == {
        "path": "/tmp/ray/session_1",
        "kind": "session",
        "ray_versions": ["2.60.0"],
        "nodes": [{"id": "4392271d", "ip": "10.0.0.2", "head": True}],
        "from": AT - 60,
        "to": AT + 60,
        "files": 42,
        "bytes": 1_200_000,
    }
    first, second = document["diagnoses"]
    assert list(first) == [
        "id", "rule", "tier", "severity", "headline", "count", "first_at", "last_at",
        "subjects", "chain", "remedies", "gaps", "consequences",
    ]  # fmt: skip
    assert first["consequences"] == ["d2"]
    assert first["subjects"] == [
        {"kind": "worker", "id": WORKER, "name": "train", "pid": 503, "node": "4392271d"}
    ]
    assert list(first["chain"][0])[:5] == ["file", "line", "at", "text", "shows"]
    assert first["remedies"][0] == {
        "title": "Give train less to do",
        "steps": ["@ray.remote(num_cpus=2)"],
        "risk": "safe",
        "doc": None,
    }
    assert second["chain"][0]["at"] is None
    assert document["unexplained"][0] == {
        "kind": "worker.exit", "file": "logs/raylet.out", "line": 3, "text": "gone", "count": 2,
    }  # fmt: skip
    assert list(document["gaps"][0])[:3] == ["what", "why", "hint"]
    assert document["stats"] == {
        "seconds": 0.12, "hits": 30, "events": 20, "rules": 71, "outside_span": 0,
    }  # fmt: skip


def test_json_has_no_numbers_that_json_lacks() -> None:
    shown = reported(diagnosis(first_at=float("nan"), last_at=float("inf")))
    found = json.loads(json_report.render(shown), parse_constant=pytest.fail)["diagnoses"][0]
    assert (found["first_at"], found["last_at"]) == (None, None)


# ---------------------------------------------------------------- the page


def test_one_incident_fits_a_screen_and_a_hundred_columns() -> None:
    long = "used memory " * 40
    chain = tuple(Link(event(long, line=n), f"step {n} of the story") for n in range(8))
    remedies = tuple(Remedy(f"Fix {n}", (f"ray start --memory={n}",) * 2) for n in range(4))
    shown = reported(
        diagnosis(
            headline=long[:150],
            chain=chain,
            remedies=remedies,
            consequences=tuple(f"d{n}" for n in range(2, 40)),
        ),
        *(owner_died(f"d{n}", line=n) for n in range(2, 40)),
        gaps=(Gap("dashboard.log", "unreadable"),),
    )
    lines = text_of(shown).splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100


def test_consequences_hang_below_their_cause_once() -> None:
    shown = reported(
        diagnosis("d1", consequences=("d2", "d3")),
        owner_died("d2", consequences=("d4",)),
        owner_died("d3", consequences=("d4",)),
        diagnosis("d4", rule="job-failed", headline="the job failed"),
    )
    text = text_of(shown)
    assert text.count("the job failed") == 1
    assert text.index("object d2") < text.index("the job failed") < text.index("object d3")
    assert re.search(r"^  ├─ owner-died  object d2", text, re.MULTILINE)
    assert re.search(r"^  │  └─ job-failed", text, re.MULTILINE)
    assert re.search(r"^  └─ owner-died  object d3", text, re.MULTILINE)


def test_consequences_of_one_rule_share_a_branch_unless_all_is_asked_for() -> None:
    found = [owner_died(f"d{n}", line=n, count=10) for n in (2, 3, 4)]
    shown = reported(diagnosis(consequences=("d2", "d3", "d4")), *found)
    text = text_of(shown)
    assert "owner-died ×30  object d2 is lost" in text
    assert "(and 2 more)" in text
    assert "object d4" not in text
    assert "object d4" in text_of(shown, verbose=True)


def test_a_consequence_shows_evidence_of_its_own() -> None:
    exit_ = Link(event("worker exits"), "the exit")
    lost = Link(event("OwnerDiedError", DRIVER, 23), "the driver got it")
    shown = reported(diagnosis(chain=(exit_,), consequences=("d2",)), owner_died("d2", 5))
    shared = diagnosis("d2", rule="owner-died", headline="lost", chain=(exit_, lost))
    text = text_of(Report(shown.capture, (shown.diagnoses[0], shared)))
    assert "driver.log:23  OwnerDiedError" in text


def test_a_root_rule_that_begins_with_the_same_record_is_a_part_not_a_consequence() -> None:
    shown = reported(
        diagnosis("d1", rule="oom-kill-loop", headline="a loop", consequences=("d2", "d3")),
        diagnosis("d2", headline="3 workers were killed"),
        owner_died("d3"),
    )
    text = text_of(shown)
    part, consequence = text.index("Part of this incident"), text.index("Consequences")
    assert part < text.index("3 workers were killed") < consequence < text.index("object d3")
    assert "Part of this incident" not in text_of(
        reported(diagnosis(consequences=("d2",)), owner_died("d2"))
    )


def test_graver_incidents_are_reported_in_full_and_others_in_a_line() -> None:
    grave = [diagnosis(f"d{n}", headline=f"grave {n}") for n in range(6)]
    mild = diagnosis("d9", severity="warning", rule="spill-heavy", headline="spilling a lot")
    text = text_of(reported(*grave, mild))
    assert text.count("Evidence") == 4
    assert "[1/4]" in text
    assert "ray-oom-kill: grave 5" in text
    assert "spill-heavy: spilling a lot" in text
    assert text_of(reported(mild)).count("Evidence") == 1
    assert text_of(reported(*grave, mild), verbose=True).count("Evidence") == 7


def test_of_a_traceback_the_exception_is_quoted() -> None:
    reply = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n    main()\n'
        "ray.exceptions.OwnerDiedError: Failed to retrieve object\n\n"
        "The object's owner has exited."
    )
    assert report.gist(event(reply)).startswith("ray.exceptions.OwnerDiedError: Failed")
    assert report.gist(event("\n  first\nsecond")) == "first"
    assert report.gist(event("")) == ""


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("logs/raylet.out", "raylet.out:7"),
        ("node-a/logs/old/raylet.1.out", "node-a/raylet.1.out:7"),
        ("session_2026-11-21_1/logs/raylet.out", "raylet.out:7"),
        (f"logs/worker-{WORKER}-ffffffff-503.err", "worker-cd09fc46…-ffffffff-503.err:7"),
        ("/home/user/train.log", "train.log:7"),
    ],
)
def test_places_are_short_and_name_the_node(path: str, shown: str) -> None:
    assert report.place(path, 7) == shown
    assert report.place(path, 7, verbose=True) == f"{path}:7"


def test_risk_and_prose_and_lines_to_paste() -> None:
    command = "ray start --head " + "--option=value " * 10 + "--end"
    remedy = Remedy(
        "Restart the cluster",
        (command, "# " + "why this is so " * 10, "Then start every driver again, please do so."),
        risk="disruptive",
    )
    text = text_of(reported(diagnosis(remedies=(remedy,))))
    assert "Restart the cluster [interrupts work]" in text
    assert command in text, "a line to paste stays whole"
    comment = [row for row in text.splitlines() if row.strip().startswith("# why")]
    assert all(len(row) <= 100 for row in comment)


def test_a_root_without_a_remedy_borrows_that_of_its_consequence() -> None:
    shown = reported(diagnosis(remedies=(), consequences=("d2",)), owner_died("d2"))
    assert "Give train less to do" in text_of(shown)


def test_verbose_shows_records_sightings_hints_and_cost() -> None:
    twin = event("it broke", Source("logs/raylet.err", "raylet-err"), 9)
    chain = (Link(event("it broke\nbadly\x1b[31m", sightings=(twin,)), "so it was"),)
    gap = Gap("gcs_server.out", "missing", "Copy it from the head.")
    shown = reported(diagnosis(chain=chain, first_at=AT), gaps=(gap,))
    short, full = text_of(shown), text_of(shown, verbose=True)
    for reply in (
        "badly\\x1b[31m",
        "also in logs/raylet.err:9",
        "Copy it from the head.",
        "71 rules",
    ):
        assert reply not in short
        assert reply in full


def test_the_line_that_raised_stands_below_its_record() -> None:
    """With Python's marks; a hostile line of code acts as little as other evidence."""
    raised = parse(
        'Traceback (most recent call last):\n  File "/app/mean.py", line 7, in mean\n    return total / len(\x1b[31mvalues)\n'
        "           ~~~~~~^~~~~~~~~~~~~\nZeroDivisionError: division by zero\n"
    )
    assert raised
    text = text_of(reported(diagnosis(chain=(Link(event(), "mean raised it", raised.code),))))
    line = next(row for row in text.splitlines() if "return total" in row)
    marks = text.splitlines()[text.splitlines().index(line) + 1]
    assert "\\x1b[31mvalues" in line
    assert line.index("total") == marks.index("~")
    assert line.index("/") == marks.index("^")


def test_the_same_advice_is_reported_once() -> None:
    text = text_of(reported(diagnosis("d1"), diagnosis("d2", headline="another")))
    assert text.count("@ray.remote(num_cpus=2)") == 1
    assert "Give train less to do (as above)" in text


def test_symptoms_are_grouped_and_limited() -> None:
    symptoms = [Unexplained("x", "logs/raylet.out", n, f"odd {n}", n) for n in range(1, 14)]
    text = text_of(reported(unexplained=tuple(symptoms)))
    assert "NO CAUSE FOUND" in text
    assert "raylet.out:2   ×2 odd 2" in text
    assert "odd 11" not in text
    assert "… and 3 more" in text


def test_nothing_found_is_a_clean_bill_only_without_gaps() -> None:
    gap = Gap("raylet.out", "not in the capture", "Copy it from each node.")
    sure, unsure = text_of(reported()), text_of(reported(gaps=(gap,)))
    assert "Every log that a diagnosis needs was read" in sure
    assert "42 files (1.1 MiB), 1 node, Ray 2.60.0" in sure
    assert "INCONCLUSIVE  No failure found, but raylet.out: not in the capture" in unsure
    assert "Copy it from each node." in unsure


def test_warnings_beside_open_questions_are_inconclusive_and_name_the_next_step() -> None:
    """An error is a result, whatever else is open."""
    asks = Gap(
        "whether it moves", "f() has run for 6 s", "See: raydoctor hung", is_observation=True
    )
    kernel = Gap("kernel log", "may not be read", optional=True, about="kernel")
    warns, fails = (diagnosis(severity=each) for each in ("warning", "error"))
    open_ = text_of(reported(warns, gaps=(kernel, asks)))
    assert "INCONCLUSIVE  There may also be an error: f() has run for 6 s" in open_
    assert "See: raydoctor hung" in open_
    # What is optional decides nothing, so it has a heading of its own.
    assert open_.index("Could not be determined") < open_.index("Not collected (optional)")
    assert "INCONCLUSIVE" not in text_of(reported(warns, gaps=(kernel,)))
    assert "INCONCLUSIVE" not in text_of(reported(fails, gaps=(asks,)))


def test_evidence_that_a_diagnosis_misses_is_listed_once() -> None:
    own = Gap("kernel log of the head", "not in the capture", about="kernel")
    shared = Gap("kernel log", "may not be read", optional=True, about="kernel")
    other = Gap("stacks", "py-spy failed", optional=True)
    shown = text_of(reported(diagnosis(gaps=(own,)), gaps=(shared, other)))
    assert "not in the capture" in shown
    assert "py-spy failed" in shown
    assert "may not be read" not in shown


def test_next_step_names_the_subject_and_quotes_the_path() -> None:
    subject = Subject("worker", WORKER, "train", 503)
    shown = reported(diagnosis(subjects=(subject,)))
    spaced = Report(CaptureInfo("/tmp/my logs", "tree"), shown.diagnoses)
    text = text_of(spaced)
    assert "raydoctor explain ray-oom-kill" in text
    command = "story cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7 '/tmp/my logs'"
    assert f"raydoctor {command}   # every line about worker train" in text
    assert "Next:" not in page.plain(report.render(spaced, onward=False))


# ---------------------------------------------------------------- streams


class Screen(io.StringIO):
    """A terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_and_those_who_force_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert not terminal.wants_colour(io.StringIO(), {"TERM": "xterm"})
    assert terminal.wants_colour(Screen(), {"TERM": "xterm"})
    assert not terminal.wants_colour(Screen(), {"TERM": "dumb"})
    assert not terminal.wants_colour(Screen(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert terminal.wants_colour(io.StringIO(), {"FORCE_COLOR": "1"})
    assert not terminal.wants_colour(io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"})


def test_painted_text_is_the_plain_text_and_markup_is_not_interpreted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = report.render(reported(diagnosis(headline="[bold red]x[/] :boom: [link=http://e]y")))
    screen = Screen()
    terminal.show(shown, screen)
    painted = screen.getvalue()
    assert "\x1b[" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == page.plain(shown)


def test_streams_without_unicode_get_ascii() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    shown = report.render(reported(diagnosis(consequences=("d2",)), owner_died("d2")))
    terminal.show(shown, out)
    out.flush()
    assert "`- owner-died" in out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]


# ---------------------------------------------------------------- hostile text

TRICKY = st.sampled_from(
    [
        "\x1b[2J", "\x1b]0;title\x07", "\r", "\x00", "\x7f", "\x9b31m", "\u202e", "\u2066", "\u200b",
        "\u2028", "\ud800", "\t", "\n", "```", "`", "<b>", "<!--", "-->", "@all", "#12", "[x](y)",
        "![i](u)", "|", "https://e.example/x", "www.e.example", "[red]", "\\", "* ", "# ", "$x$",
        "&lt;", "<https://e.example>", "~~~", "__x__", "_x_", "\u0301",
    ]
)  # fmt: skip
HOSTILE = st.lists(st.one_of(TRICKY, st.text(max_size=3)), max_size=3).map("".join)
SOURCES = st.builds(Source, path=HOSTILE, role=st.just("driver"), node=HOSTILE)
NUMBERS = st.one_of(st.none(), st.floats(), st.integers(0, 2**40).map(float))
EVENTS = st.builds(
    Event,
    kind=st.just("x"),
    source=SOURCES,
    line=st.integers(1, 10**6),
    offset=st.just(0),
    text=HOSTILE,
    message=HOSTILE,
    at=NUMBERS,
    count=st.integers(1, 3),
    sightings=st.just(()),
)
GAPS = st.builds(Gap, what=HOSTILE, why=HOSTILE, hint=HOSTILE)
REMEDIES = st.builds(Remedy, title=HOSTILE, steps=st.tuples(HOSTILE, HOSTILE))
DIAGNOSES = st.builds(
    Diagnosis,
    id=st.sampled_from(["d1", "d2", "d3"]),
    rule=st.just("ray-oom-kill"),
    tier=st.just("root"),
    severity=st.sampled_from(["critical", "error", "warning", "info"]),
    headline=HOSTILE,
    count=st.integers(1, 9),
    chain=st.lists(st.builds(Link, event=EVENTS, shows=HOSTILE), min_size=1, max_size=3).map(tuple),
    remedies=st.tuples(REMEDIES),
    subjects=st.tuples(st.builds(Subject, kind=st.just("task"), id=HOSTILE, name=HOSTILE)),
    gaps=st.tuples(GAPS),
    consequences=st.lists(st.sampled_from(["d1", "d2", "d3", "d4"]), max_size=3).map(tuple),
    first_at=NUMBERS,
)
REPORTS = st.builds(
    Report,
    capture=st.builds(
        CaptureInfo, path=HOSTILE, kind=st.just("tree"), begin=NUMBERS, end=NUMBERS,
        ray_versions=st.tuples(HOSTILE),
    ),
    diagnoses=st.lists(DIAGNOSES, max_size=3, unique_by=lambda d: d.id).map(tuple),
    unexplained=st.tuples(
        st.builds(Unexplained, kind=HOSTILE, file=HOSTILE, line=st.integers(1, 9), text=HOSTILE)
    ),
    gaps=st.tuples(GAPS),
)  # fmt: skip
STORIES = st.builds(
    Story,
    subject=st.builds(Entity, kind=st.just("name"), value=HOSTILE),
    aliases=st.tuples(
        st.builds(Alias, entity=st.builds(Entity, kind=st.just("task"), value=HOSTILE), why=HOSTILE)
    ),
    entries=st.lists(
        st.builds(
            StoryLine, at=NUMBERS, source=SOURCES, line=st.integers(1, 9), level=st.just("E"),
            message=HOSTILE,
        ),
        max_size=3,
    ),
    gaps=st.lists(GAPS, max_size=1),
    known=st.tuples(st.tuples(st.builds(Entity, kind=st.just("x"), value=HOSTILE), HOSTILE)),
)  # fmt: skip


fuzzed = settings(
    deadline=None, max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def assert_shows(text: str) -> None:
    """Nothing but printable characters and line breaks, and UTF-8 can carry it."""
    bad = {c for c in text if c != "\n" and not c.isprintable()}
    assert not bad
    text.encode()


@fuzzed
@given(REPORTS, st.booleans(), st.integers(40, 100))
def test_pages_are_printable(shown: Report, verbose: bool, width: int) -> None:
    assert_shows(page.plain(report.render(shown, width, verbose)))


@fuzzed
@given(REPORTS)
def test_markdown_is_printable(shown: Report) -> None:
    assert_shows(markdown.render(shown))


@fuzzed
@given(REPORTS)
def test_json_is_printable_and_json(shown: Report) -> None:
    text = json_report.render(shown)
    assert text.isascii()
    assert_shows(text)
    json.loads(text)


@fuzzed
@given(STORIES, st.one_of(st.none(), st.integers(40, 200)), st.booleans())
def test_stories_are_printable(reply: Story, width: int | None, verbose: bool) -> None:
    assert_shows(page.plain(story.render(reply, width, verbose)))
    assert_shows(page.plain(story.unknown(reply, 80)))
    json.loads(story.to_json(reply))


@fuzzed
@given(HOSTILE, HOSTILE)
def test_rule_pages_are_printable(doc: str, content: str) -> None:
    signal = Signal("x", content, "x", ("driver",), content)
    globals()["EXAMPLES"] = (Example(content, {content: content}, roots=("x",)),)
    rule = Rule(
        "x-y",
        "root",
        "error",
        1,
        (),
        (),
        (signal,),
        (Remedy(content, (content,)),),
        judge=_nothing,
        doc=doc,
    )
    assert_shows(page.plain(rules.rule_page(rule, 80, rule.looks_for)))
    assert_shows(page.plain(rules.catalogue([rule], 80)))
    assert_shows(rules.catalogue_markdown([rule]))
    json.loads(rules.rule_json(rule))
    json.loads(rules.catalogue_json([rule]))


def _nothing(case: object) -> Iterator[Any]:
    return iter(())


@fuzzed
@given(REPORTS)
def test_painting_adds_colours_and_nothing_else(shown: Report) -> None:
    whole = report.render(shown)
    screen = Screen()
    text = "".join(terminal.painted(spans, screen) + "\n" for spans in whole)
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == page.plain(whole)


# ---------------------------------------------------------------- Markdown


@fuzzed
@given(REPORTS)
def test_markdown_runs_nothing_that_a_log_wrote(shown: Report) -> None:
    """No HTML, image or link of the log's, no table, and no heading but ours."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown.render(shown))
    for token in tokens:
        assert token.type not in ("html_block", "table_open", "blockquote_open", "code_block")
        for inner in token.children or ():
            assert inner.type not in (
                "link_open",
                "image",
                "strong_open" if token.level > 1 else "",
            )
            if inner.type == "html_inline":
                assert inner.content == "<!-- -->"
    headings = [t for t in tokens if t.type == "heading_open"]
    assert len(headings) == 1 + len(shown.roots or shown.diagnoses)


@fuzzed
@given(HOSTILE)
def test_inline_markdown_reads_as_the_text(text: str) -> None:
    inner = MarkdownIt("gfm-like", {"linkify": False}).parseInline(markdown.inline(text))[0]
    shown = "".join(t.content for t in inner.children or () if t.type in ("text", "code_inline"))
    assert shown.split() == _text.one_line(text).split()


@fuzzed
@given(HOSTILE)
def test_a_fence_holds_the_whole_text(text: str) -> None:
    fences = [t for t in MarkdownIt().parse(markdown.fence(text)) if t.type == "fence"]
    assert [[row.rstrip() for row in f.content.splitlines()] for f in fences] == [
        [row.rstrip() for row in _text.printable(text).split("\n")]
    ]


def test_mentions_and_issue_numbers_do_not_reach_github() -> None:
    assert markdown.inline("@ray.remote of #123") == "`@ray.remote` of `#123`"
    assert markdown.code("a ` b") == "`` a ` b ``" or markdown.code("a ` b") == "``a ` b``"


def test_markdown_names_the_capture_and_not_the_way_to_it() -> None:
    shown = Report(CaptureInfo("/home/alice/logs.tar.gz", "archive"))
    assert "alice" not in markdown.render(shown)
    assert "`logs.tar.gz`" in markdown.render(shown)


# ---------------------------------------------------------------- text


def test_printable_keeps_letters_and_shows_the_rest() -> None:
    assert _text.printable("naïve 木 😀") == "naïve 木 😀"
    assert _text.printable("a\x1b[31mb\u202ec\ud800\xa0d\te") == "a\\x1b[31mb\\u202ec\\ud800 d    e"


@fuzzed
@given(HOSTILE, st.integers(1, 60))
def test_cut_fits(text: str, width: int) -> None:
    shown = _text.one_line(text)
    assert _text.cells(_text.cut(shown, width)) <= width


@fuzzed
@given(st.text(), st.integers(1, 60))
def test_wrap_loses_no_word(text: str, width: int) -> None:
    assert " ".join(_text.wrap(text, width)).split() == text.split()


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1000 B"),
        (1024, "1.0 KiB"),
        (1_048_200, "1.0 MiB"),
        (151_000, "147 KiB"),
        (2e13, "18.2 TiB"),
    ],
)
def test_sizes(count: float, shown: str) -> None:
    assert _text.size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.123, "0.12 s"),
        (9.96, "10 s"),
        (1.0, "1.0 s"),
        (119.6, "2 min"),
        (7200, "2 h"),
        (7300, "2 h 1 min"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    assert _text.duration(seconds) == shown


def test_short_ids_still_identify_a_process() -> None:
    assert _text.short_ids(f"worker {WORKER} of 01000000") == "worker cd09fc46… of 01000000"
    assert _text.short_id("f" * 16 + WORKER[:32]) == "f" * 16 + "cd09fc46"
    assert _text.short_id("01000000") == "01000000"
