"""Pages for a browser: hostile text stays text, references resolve, and a large cluster stays readable."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.case import Case
from raydoctor.cli import _files, execute
from raydoctor.cluster.samples import SampledFrame
from raydoctor.diagnosis import timeline as course
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import cells, cut_middle, printable
from raydoctor.model.timeline import (
    Lane,
    MarkKind,
    Neighbours,
    Timeline,
    TimelineMark,
    UsageReading,
)
from raydoctor.model.values import CaptureInfo, Event, Gap, Remedy, Report, Severity, Source, Tier
from raydoctor.read.clock import NodeClocks
from raydoctor.read.detail import neighbours, usage
from raydoctor.render.html import axis, curves, document, flame, fragment, graph, markup, timeline
from raydoctor.render.html import report as report_page
from raydoctor.render.html.report import render
from raydoctor.render.page import line
from raydoctor.render.report import gist, telling
from tests.helpers import hostile_text
from tests.helpers.hostile_pages import AT, HOSTILE, hostile_report
from tests.helpers.pages import Page


def test_there_are_enough_hostile_texts() -> None:
    assert len(set(HOSTILE)) >= 200


@pytest.mark.parametrize("part", range(8))
def test_hostile_text_stays_text(part: int) -> None:
    for text in HOSTILE[part::8]:
        page = Page(render(hostile_report(text)))
        assert page.problems == [], text
        assert page.counts["script"] == page.counts["style"] == page.counts["body"] == 1
        shown = " ".join(printable(text).split())
        assert len(shown) > 150 or shown in page.text


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_is_escaped(text: str) -> None:
    page = Page(markup.el("p", {"class": text}, text))
    assert page.problems == []
    assert page.counts == {"p": 1}


def test_a_zero_is_a_value_of_an_attribute() -> None:
    """Without `tabindex="0"` a keyboard cannot scroll a chart."""
    given: dict[str, str | float | bool] = {"tabindex": 0, "x": 0.0, "open": False, "class": ""}
    assert markup.el("p", given) == '<p tabindex="0" x="0"></p>'


def test_a_page_admits_its_own_style_and_script_alone() -> None:
    source = document.document("a title")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', source)
    assert policy
    assert policy[1].replace("&#x27;", "'").startswith("default-src 'none'; ")
    for name in ("style", "script"):
        content = re.search(rf"<{name}>(.*)</{name}>", source, re.DOTALL)
        assert content
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{name}-src &#x27;sha256-{digest}&#x27;" in policy[1]
    assert not re.search(r"url\(|@import|https?://", document.document("")), "nothing is fetched"


def test_colours_and_shapes_differ_for_each_kind_of_mark() -> None:
    """No information by colour alone."""
    shapes = re.findall(r' d="([^"]+)"', timeline.symbols())
    assert len(set(shapes)) == len(timeline.WORDS)


_READABLE = 4.5
"""Contrast of text with its ground, at least: WCAG 2.2, level AA."""


def luminance(colour: str) -> float:
    """As WCAG defines it, of `#rgb` or `#rrggbb`."""
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * d for d in digits)
    parts = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_two_colours_is_that_of_wcag() -> None:
    assert contrast("#fff", "#000000") == pytest.approx(21)
    assert contrast("#777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("scheme", "number"), [("light", 0), ("dark", 1), ("print", 2)])
def test_each_text_colour_is_readable_on_each_ground(scheme: str, number: int) -> None:
    style = document._asset("style.css")
    roots = [
        dict(re.findall(r"--(\w+):(#\w+)", each)) for each in re.findall(r":root\{([^}]*)\}", style)
    ]
    assert len(roots) == 3
    colours = roots[0] | roots[number]
    inks = set(re.findall(r"[{;]color:var\(--(\w+)\)", style)) - {"card"}
    inks |= set(re.findall(r"svg [^{}]*\{[^}]*fill:var\(--(\w+)\)", style)) - {"card"}
    assert inks >= {"ink", "dim", "link", "error", "warning", "info", "ok"}
    pairs = {(ink, ground) for ink in inks for ground in ("page", "card", "soft")}
    pairs |= {("ink", "hit"), ("card", "critical")}
    found = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert {pair: value for pair, value in found.items() if value < _READABLE} == {}, scheme


@pytest.mark.parametrize("number", range(3))
def test_a_bar_is_seen_on_its_ground(number: int) -> None:
    style = document._asset("style.css")
    roots = [
        dict(re.findall(r"--(\w+):(#\w+)", each)) for each in re.findall(r":root\{([^}]*)\}", style)
    ]
    colours = roots[0] | roots[number]
    assert contrast(colours["bar"], colours["card"]) >= 2
    assert re.search(r"\.bar\{stroke:var\(--bar\)", style)


def test_each_colour_of_a_notebook_is_readable_on_its_own_ground() -> None:
    made = fragment.render([line(("text", style)) for style in fragment._STYLES])
    assert re.match(r'<pre style="[^"]*background:#fff"', made)
    pairs = re.findall(r'style="(?:[^"]*;)?color:(#\w+)(?:;background:(#\w+))?', made)
    assert len(pairs) >= 8
    for ink, ground in pairs:
        assert contrast(ink, ground or "#fff") >= _READABLE, ink


# ---------------------------------------------------------------- the axis


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=40))
@settings(deadline=None)
def test_the_axis_keeps_the_order_and_stays_in_the_chart(seconds: list[float]) -> None:
    times = sorted(AT + each for each in seconds)
    for layout in axis.LAYOUTS:
        scale = axis.axis(times, layout)
        assert scale is not None
        places = [scale.x(each) for each in times]
        assert places == sorted(places)
        assert layout.left <= places[0] <= places[-1] <= layout.width - layout.right + 0.01
        assert all(p.right >= p.left for p in scale.pieces)


def test_the_axis_leaves_out_a_quiet_night() -> None:
    scale = axis.axis([AT, AT + 5, AT + 36_000, AT + 36_004])
    assert scale is not None
    assert [piece.is_break for piece in scale.pieces] == [False, True, False]
    assert scale.x(AT + 5) - scale.x(AT) > 300
    assert "⋯ 9 h 59 min" in scale.draw(100)


def test_the_axis_draws_a_short_run_in_full() -> None:
    scale = axis.axis([AT, AT + 1, AT + 25])
    assert scale is not None
    assert not any(piece.is_break for piece in scale.pieces)


def test_the_axis_leaves_out_no_time_at_which_a_process_began_or_usage_was_read() -> None:
    times = [AT, AT + 500]
    for busy, breaks in (((), 1), ((AT + 200,), 2), (range(int(AT), int(AT) + 500, 5), 0)):
        scale = axis.axis(times, busy=busy)
        assert scale is not None
        left_out = [piece for piece in scale.pieces if piece.is_break]
        assert len(left_out) == breaks
        assert not any(piece.begin < at < piece.end for at in busy for piece in left_out)
    far = axis.axis(times, busy=(AT - 900, AT + 900))
    assert far is not None
    assert far.begin > AT - 10, "it is no longer for what is outside"


def test_a_chart_that_leaves_out_quiet_time_says_so() -> None:
    lanes = (
        Lane("n", "node", "node 10.0.0.2"),
        Lane("p", "process", "train", "n", AT + 2, AT + 95),
    )
    marks = [TimelineMark("p", "death", "exits", AT + 95), TimelineMark("n", "start", "joins", AT)]
    for later, is_said in ((0, False), (500, True)):
        moved = (replace(marks[0], at=AT + 25 + later), marks[1])
        section, _ = timeline.section(Timeline(lanes, moved))
        assert ("⋯ on grey: quiet time that is left out" in section) is is_said


# ---------------------------------------------------------------- scale

NODES, WORKERS = 1_000, 3_000


def _id(number: int, digits: int = 56) -> str:
    return f"{random.Random(number).getrandbits(4 * digits):0{digits}x}"


def large_case() -> Case:
    """10,000 events: a thousand nodes, of which five die, and three thousand workers."""
    gcs = Source("logs/gcs_server.out", "gcs-out")
    events = []

    def add(kind: str, at: float, fields: dict[str, str], *entities: Entity) -> None:
        line = len(events) + 1
        events.append(
            Event(
                kind, gcs, line, 0, kind, kind, AT + at, fields=fields, entities=frozenset(entities)
            )
        )

    for n in range(NODES):
        ip = f"10.0.{n // 250}.{n % 250}"
        add("node.registered", n * 0.01, {"node": _id(n), "ip": ip}, Entity("node", _id(n)))
        for at in range(5):
            if n < 5 or at < 2:
                add("node.health_failed", 900 + at, {"node": _id(n)}, Entity("node", _id(n)))
    for n in range(5):
        add("node.dead", 1000 + n, {"node": _id(n), "reason": "UNEXPECTED"}, Entity("node", _id(n)))
    for n in range(WORKERS):
        worker = _id(10_000 + n)
        fields = {"worker": worker, "worker_pid": str(1000 + n), "node": _id(n % NODES)}
        add("worker.started", 20 + n * 0.01, fields, Entity("worker", worker))
        kind = "SYSTEM_ERROR" if n % NODES < 5 else "INTENDED_USER_EXIT"
        died = {
            **fields,
            "exit_type": kind,
            "detail": "Worker unexpectedly exits",
            "ip": "10.0.0.1",
        }
        add("worker.exit", 1000 + n * 0.02, died, Entity("worker", worker))
    for n in range(995):
        add("task.resubmitted", 1100 + n * 0.1, {"function": "train"})
    assert 9_900 <= len(events) <= 10_100
    return Case(events)


def test_ten_thousand_events_of_a_thousand_nodes() -> None:
    case = large_case()
    began = time.process_time()
    found = course.timeline(case, ())
    source = render(Report(CaptureInfo("big", "tree"), timeline=found))
    seconds = time.process_time() - began
    assert len(source) <= 3_000_000
    assert seconds <= 2.0
    page = Page(source)
    assert page.problems == []
    assert page.text.count("988 other nodes") >= 1
    dead = {mark.lane for mark in found.marks if mark.kind == "death"}
    named = {lane.name for lane in found.lanes if lane.kind == "node" and lane.id in dead}
    own = set(re.findall(r'<text class="name"[^>]*>(node [^<]*)</text>', source))
    assert len(named) == 5
    assert named <= own, "a node that died has a lane of its own"
    rows = re.findall(r'<tr class="find">(.*?)</tr>', source)
    assert len(rows) >= 988 + 2_900, "each node and process can be found"
    (row,) = (each for each in rows if each.startswith("<td>node 10.0.3.7</td>"))
    assert "does not reply to the health checks" in row
    deaths = [mark for mark in found.marks if mark.kind == "death"]
    assert len(deaths) == 5 + 5 * WORKERS // NODES
    # Nothing is cut: the table's counts add up to the marks.
    counts = re.findall(r"<td>([^<]*)</td><td>([\d,]+)</td>", source)
    listed = sum(int(count.replace(",", "")) for _, count in counts)
    assert listed == sum(mark.count for mark in found.marks)


def test_a_thousand_curves_are_eight_charts_and_a_table() -> None:
    lanes = tuple(Lane(str(n), "node", f"node {n}") for n in range(NODES))
    readings = tuple(
        UsageReading(str(n), "memory", "", AT + at, 6e9 + n * 1e6, 8e9, 7e9)
        for n in range(NODES)
        for at in range(10)
    )
    section = curves.section(Timeline(lanes, (), readings), ())
    assert section is not None
    assert section.count("<figure>") == 8
    assert section.count("<tr>") >= NODES
    assert "992 resources with lower peaks" in section


def usage_of(*readings: UsageReading) -> str | None:
    return curves.section(Timeline((Lane("n", "node", "node 10.0.0.2"),), (), readings), ())


def test_one_reading_is_a_sentence_near_its_limit_and_in_the_table_otherwise() -> None:
    assert usage_of(UsageReading("n", "disk", "/tmp", AT, 6e9, 10e9, 9.5e9)) is None
    section = usage_of(UsageReading("n", "disk", "/tmp", AT, 9e9, 10e9, 9.5e9))
    assert section is not None
    assert "<figure>" not in section
    assert "Between two readings" not in section
    assert "Disk of node 10.0.0.2, /tmp: 8.38 GiB of 9.31 GiB (90%)" in section
    assert "Ray stops writing at 8.85 GiB." in section


@pytest.mark.parametrize(("apart", "charts"), [(1.0, 1), (0.001, 0)])
def test_readings_of_at_least_three_moments_are_a_chart(apart: float, charts: int) -> None:
    found = (UsageReading("n", "memory", "", AT + n * apart, 7.1e9, 8e9, 7e9) for n in range(4))
    section = usage_of(*found)
    assert section is not None
    assert section.count("<figure>") == charts


def levels(section: str) -> list[float]:
    return [float(y) for y in re.findall(r'class="name \w+-name" x="0" y="([\d.]+)"', section)]


def test_a_chart_of_amounts_that_are_close_has_room_between_its_lines() -> None:
    at = (AT, AT + 5, AT + 9)
    close = usage_of(*(UsageReading("n", "memory", "", t, 3.87e9, 4e9, 3.8e9) for t in at))
    assert close is not None
    assert "scale from 3.45 GiB" in close
    drawn = drawing(close, "broad")
    limit, threshold, bottom = levels(drawn)
    assert threshold - limit > 30
    assert bottom - threshold > 30
    far = usage_of(*(UsageReading("n", "memory", "", t, 3.87e9, 4e9, 1e9) for t in at))
    assert far is not None
    assert "scale from" not in far
    assert "0 B" in far


def test_a_low_threshold_has_its_name_on_a_narrow_screen() -> None:
    found = (UsageReading("n", "disk", "", AT + t, 7e9, 10e9, 2e8) for t in range(3))
    section = usage_of(*found)
    assert section is not None
    for style in ("broad", "narrow"):
        assert "Ray stops writing at 191 MiB</text>" in drawing(section, style)


def test_a_narrow_frame_keeps_its_line() -> None:
    one = SampledFrame("load", "live_hung_chain.py", 31, "user")
    other = SampledFrame("train", "live_hung_chain.py", 37, "user")
    drawn = flame.draw([(one,), *[(other,)] * 6], "flame")
    assert drawn is not None
    labels = re.findall(r"<text[^>]*>(load[^<]*)</text>", drawn)
    assert len(labels) == 1
    assert "…" in labels[0]
    assert labels[0].endswith("py:31)")


def test_deep_and_wide_stacks_are_drawn() -> None:
    stacks = [
        tuple(SampledFrame(f"f{depth} <b>", "a.py", depth, "user") for depth in range(200 + n))
        for n in range(50)
    ]
    drawn = flame.draw(stacks, "flame")
    assert drawn is not None
    assert Page(drawn).problems == []
    assert flame.draw([], "flame") is None


# ---------------------------------------------------------------- what charts read

DUMP = (
    "[2026-11-21 08:53:45,899 I 292 292] (raylet) node_manager.cc:525: [state-dump] NodeManager:\n"
    "[state-dump] Node ID: abc\n[state-dump] PullManager:\n"
    "[state-dump] - num bytes available for pulled objects: 400\n"
)
OVER = (
    "[2026-11-21 08:52:57,779 I 292 328] (raylet) threshold_memory_monitor.cc:128: Node memory usage above "
    "threshold, used: 4154732544, threshold_bytes: 4080218880, total bytes: 4294967296, threshold fraction: 0.95\n"
)  # fmt: skip
OTHER = "[2026-11-21 08:52:58,000 I 292 328] (raylet) a.cc:1: another line\n"


def usage_in(path: Path, text: str) -> list[Event]:
    path.write_text(text)
    return usage.read({Source("logs/raylet.out", "raylet-out"): str(path)}, NodeClocks(), [])


def test_readings_have_the_time_of_their_record(tmp_path: Path) -> None:
    found = usage_in(tmp_path / "raylet.out", OTHER + OVER + OTHER + DUMP + OTHER)
    at = {event.kind: time.strftime("%H:%M:%S", time.localtime(event.at)) for event in found}
    assert at == {"usage.store": "08:53:45", "usage.memory": "08:52:57"}
    assert [e["used"] for e in found if e.kind == "usage.memory"] == ["4154732544"]


def test_readings_are_read_from_json_logs_as_well(tmp_path: Path) -> None:
    record = {
        "asctime": "2026-11-21 08:53:45,899",
        "levelname": "I",
        "message": DUMP.partition("525: ")[2],
    }
    found = usage_in(tmp_path / "raylet.out", OTHER + json.dumps(record) + "\n")
    assert [event["available"] for event in found] == ["400"]


def test_a_reading_without_a_time_is_left_out(tmp_path: Path) -> None:
    assert usage_in(tmp_path / "raylet.out", DUMP.partition("\n")[2]) == []
    assert usage_in(tmp_path / "raylet.out", "") == []


def test_a_log_that_is_gone_is_a_gap_that_hides_nothing() -> None:
    gaps: list[Gap] = []
    assert (
        usage.read({Source("raylet.out", "raylet-out"): "/nowhere/raylet.out"}, NodeClocks(), gaps)
        == []
    )
    assert [gap.optional for gap in gaps] == [True]


@pytest.mark.parametrize(
    ("number", "before", "after"),
    [(0, "", "1\n2\n3"), (5, "2\n3\n4", "6\n7\n8"), (9, "6\n7\n8", "")],
)
def test_the_neighbours_of_the_first_and_last_record(
    number: int, before: str, after: str, tmp_path: Path
) -> None:
    path = tmp_path / "driver.log"
    path.write_text("".join(f"{n}\n" for n in range(10)))
    source = Source("driver.log", "driver")
    event = Event("x", source, number + 1, 2 * number, str(number))
    assert neighbours.around({source: str(path)}, event) == Neighbours(before, after)
    assert neighbours.around({}, event) is None


def test_a_node_without_logs_says_so_in_its_lane() -> None:
    gcs, raylet = Source("logs/gcs_server.out", "gcs-out"), Source("logs/raylet.out", "raylet-out")
    case = Case(
        [
            *(
                Event(
                    "node.registered",
                    gcs,
                    n,
                    0,
                    "",
                    at=AT,
                    fields={"node": f"n{n}", "ip": f"10.0.0.{n}"},
                )
                for n in (1, 2)
            ),
            Event(
                "raylet.started", raylet, 1, 0, "", at=AT, fields={"node": "n1", "ip": "10.0.0.1"}
            ),
        ]
    )
    found = course.timeline(case, ())
    assert {lane.name: bool(lane.missing) for lane in found.lanes} == {
        "node 10.0.0.1, head": False,
        "node 10.0.0.2": True,
    }
    section, _ = timeline.section(found)
    assert "its logs are not in the capture" in section


def test_a_mark_at_the_right_edge_has_its_words_before_it() -> None:
    words = "Ray kills train (pid 7), 3.2 GiB of 4.0 GiB in use"
    marks = [TimelineMark("n", "start", "joins", AT), TimelineMark("n", "kill", words, AT + 20)]
    section, _ = timeline.section(Timeline((Lane("n", "node", "node 10.0.0.2"),), tuple(marks)))
    assert re.search(
        rf'class="word before" x="10\d\d[^"]*" y="46"[^>]*>{re.escape(words)}</text>', section
    )


def test_words_beside_a_mark_end_with_a_clause() -> None:
    text = (
        "Ray kills train (pid 390), 3.9 GiB of 4.0 GiB in use: the newest task that can be retried"
    )
    marks = [TimelineMark("n", "kill", text, AT + at) for at in (0, 20, 50, 120)]
    section, _ = timeline.section(Timeline((Lane("n", "node", "node 10.0.0.2"),), tuple(marks)))
    lanes = re.findall(r'<g class="mark kill">.*?</g>', section, re.DOTALL)
    words = [
        " ".join(reversed(re.findall(r'class="word[^>]*>([^<]*)</text>', lane))) for lane in lanes
    ]
    assert len(set(words)) > 1
    assert set(words) - {""} <= {
        text,
        "Ray kills train (pid 390), 3.9 GiB of 4.0 GiB in use …",
        "Ray kills train (pid 390) …",
        "killed for lack of memory",
    }


def test_words_beside_a_mark_end_before_a_clause_that_would_be_cut() -> None:
    text = "Actor Trainer (pid 248) died because the driver of job 1 (pid 145), which made it, was lost"
    text += " while it waited for results" + " of other calls" * 6
    marks = [TimelineMark("n", "failure", text, AT), TimelineMark("n", "end", "ends", AT + 60)]
    section, _ = timeline.section(Timeline((Lane("n", "node", "node 10.0.0.2"),), tuple(marks)))
    words = set(re.findall(r'<text class="word[^>]*>([^<]*)</text>', section))
    assert words == {"Actor Trainer (pid 248) died …"}


def test_words_beside_a_mark_are_not_cut_within_parentheses() -> None:
    text = "2 processes (python -c import time; cache = …) outlived the workers that started them, and still hold 1 GiB"
    text += " of memory" + " on the node" * 6
    marks = [TimelineMark("n", "failure", text, AT + 20), TimelineMark("n", "start", "joins", AT)]
    for length in (1080.0, 300.0, 60.0):
        spot = timeline._Spot(0.0, "failure", tuple(marks[:1]))
        words = " ".join(timeline._words(spot, length))
        assert words.count("(") == words.count(")"), words
    section, _ = timeline.section(Timeline((Lane("n", "node", "node 10.0.0.2"),), tuple(marks)))
    assert (
        ">2 processes (python -c import time; cache = …) outlived the workers that started them …</text>"
        in section
    )


def test_a_period_has_no_shape_and_no_words_before_it() -> None:
    marks = [
        TimelineMark("n", "start", "joins", AT),
        TimelineMark("n", "silent", "does not reply to the health checks", AT + 50, AT + 60),
    ]
    section, _ = timeline.section(Timeline((Lane("n", "node", "node 10.0.0.2"),), tuple(marks)))
    drawn = drawing(section, "broad")
    assert '<g class="mark silent">' in drawn
    assert "#k-silent" not in drawn
    assert "word before" not in drawn
    assert 'class="period"' in drawn


def test_a_retry_without_room_for_its_words_has_none() -> None:
    marks = [TimelineMark("n", "restart", "train is submitted again", AT + n) for n in (0, 1, 2)]
    section, _ = timeline.section(Timeline((Lane("n", "node", "node 10.0.0.2"),), tuple(marks)))
    words = set(re.findall(r'<text class="word[^>]*>([^<]*)</text>', section))
    assert words == {"train is submitted again"}


def test_equal_words_of_signs_are_beside_the_first_mark_only_and_each_failure_has_its_own() -> None:
    lane = Lane("n", "node", "node 10.0.0.2")
    kinds: tuple[tuple[MarkKind, int], ...] = (("restart", 1), ("death", 3))
    for kind, times in kinds:
        marks = tuple(TimelineMark("n", kind, "train is here again", AT + 10 * n) for n in range(3))
        section, _ = timeline.section(Timeline((lane,), marks))
        assert drawing(section, "broad").count(">train is here again</text>") == times


def test_marks_that_differ_share_no_count() -> None:
    marks = [TimelineMark("n", "death", f"worker {n} exits", AT, count=3) for n in range(2)]
    end = TimelineMark("n", "end", "ends", AT + 600)
    lane = Lane("n", "node", "node 10.0.0.2")
    section, _ = timeline.section(Timeline((lane,), (*marks, end)))
    assert ">worker 0 exits; worker 1 exits</text>" in section
    assert "period" not in section, "moments are no period"


def drawing(section: str, name: str) -> str:
    """The chart for broad or for narrow screens."""
    found = re.search(rf'<svg class="{name}".*?</svg>', section, re.DOTALL)
    assert found
    return found[0]


def test_a_chart_for_narrow_screens_has_names_above_bars_and_words_within_it() -> None:
    name = "train (pid 390) with a long name"
    marks = [TimelineMark("n", "death", "exits: the reason is long", AT + n) for n in (0, 5, 10)]
    section, _ = timeline.section(Timeline((Lane("n", "node", name),), tuple(marks)))
    drawn = drawing(section, "narrow")
    assert f">{name}</text>" in drawn
    name_y = float(re.findall(r'class="name" x="[\d.]+" y="([\d.]+)"', drawn)[0])
    (bar_y,) = map(float, re.findall(r'class="bar" d="M[\d.]+ ([\d.]+)H', drawn))
    words = [float(y) for y in re.findall(r'class="word[^"]*" x="[\d.]+" y="([\d.]+)"', drawn)]
    assert words
    assert all(name_y + 10 < y < bar_y for y in words)
    grounds = re.findall(r'"ground" x="(-?[\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
    spans = [(float(x), float(x) + float(width)) for x, width in grounds]
    assert all(one >= 0 and other <= axis.NARROW.width + 8 for one, other in spans)


def test_a_second_exact_edge_hides_a_guess() -> None:
    guess, exact = graph._Edge("a", "b", " guess"), graph._Edge("a", "b", "")
    for edges in ([guess, exact], [exact, guess]):
        assert list(graph._alone(edges)) == [exact]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["run it alone: call f(…)", "with the same values"], "Run it alone: call f(…) with the same values"),
        (["ray.get returns it, or", "ask for it"], "ray.get returns it, or ask for it"),
        (["Use less", "Or add a node"], "Use less. Or add a node"),
    ],
)  # fmt: skip
def test_advice_in_several_lines_is_one_paragraph(lines: list[str], said: str) -> None:
    assert report_page._advice(lines) == said


@pytest.mark.parametrize(
    ("line", "shown"),
    [("one two three", "one two three"), ("one two threefour", "one two …"), ("x" * 60, "x" * 13 + "…")],
)  # fmt: skip
def test_an_excerpt_ends_with_a_word(line: str, shown: str) -> None:
    assert report_page._excerpt(line, 14) == shown


def test_a_chart_without_a_sign_is_below_the_evidence() -> None:
    assert not timeline.has_signs(Timeline((), (TimelineMark("n", "start", "joins", AT),)))
    assert timeline.has_signs(Timeline((), (TimelineMark("n", "sign", "fails", AT),)))


def test_words_above_a_bar_overlap_no_other_words() -> None:
    marks = [TimelineMark("n", "death", f"worker {n} exits for a reason", AT + n) for n in range(9)]
    section, _ = timeline.section(Timeline((Lane("n", "node", "node 10.0.0.2"),), tuple(marks)))
    for name, least in (("broad", 4), ("narrow", 2)):
        grounds = re.findall(
            r'"ground" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', drawing(section, name)
        )
        lowest = max(float(y) for _, y, _ in grounds)
        spans = [(float(x), float(x) + float(w)) for x, y, w in grounds if float(y) == lowest]
        assert len(spans) >= least
        assert all(one[1] <= other[0] + 4 for one, other in pairwise(spans))


def test_a_failure_has_its_words_also_among_many_signs() -> None:
    marks = [TimelineMark("n", "sign", f"refused for the {n}th time", AT + n) for n in range(60)]
    failed = TimelineMark("n", "failure", "The provider starts no nodes", AT + 30.5)
    lanes = (Lane("n", "node", "node 10.0.0.2"),)
    section, _ = timeline.section(Timeline(lanes, (*marks, failed)))
    assert re.search(r'<text class="word[^>]*>The provider starts no nodes</text>', section)


def test_a_bar_reaches_the_mark_of_its_end_beside_others() -> None:
    lanes = (Lane("n", "node", "node 10.0.0.2", begin=AT, end=AT + 10),)
    kinds: tuple[MarkKind, ...] = ("kill", "death", "end")
    marks = [TimelineMark("n", kind, "ends", AT + 9.9 + n / 20) for n, kind in enumerate(kinds)]
    section, _ = timeline.section(Timeline(lanes, (TimelineMark("n", "start", "", AT), *marks)))
    for name in ("broad", "narrow"):
        drawn = drawing(section, name)
        (bar,) = re.findall(r'class="bar" d="M[\d.]+ [\d.]+H([\d.]+)"', drawn)
        (end,) = re.findall(r'href="#k-end" x="([\d.]+)"', drawn)
        assert abs(float(bar) - float(end)) < 0.1, name


def test_a_failure_without_room_for_its_words_has_the_name_of_its_rule() -> None:
    words = "The cluster at 10.0.0.2:6379 requires an authentication token of every driver and of all workers"
    failed = TimelineMark("n", "failure", words, AT + 5, short="auth-token")
    begin = TimelineMark("n", "start", "joins", AT)
    section, _ = timeline.section(Timeline((Lane("n", "node", "node"),), (begin, failed)))
    assert re.search(r'<text class="word[^>]*>auth-token</text>', drawing(section, "narrow"))


def test_a_count_beside_a_mark_is_in_words() -> None:
    lanes = (Lane("n", "node", "node 10.0.0.2"),)
    mark = TimelineMark("n", "restart", "train is submitted again", AT)
    for count, said in ((1, "train is submitted again"), (2, "train is submitted again (2 times)")):
        section, _ = timeline.section(Timeline(lanes, (replace(mark, count=count),)))
        assert f">{said}</text>" in section


def words_of(mark: TimelineMark, room: float) -> str:
    return "|".join(timeline._words(timeline._Spot(0.0, mark.kind, (mark,)), room))


def test_words_of_a_failure_never_end_at_a_colon_behind_which_its_cause_is() -> None:
    text = "Actor Solver (pid 555) crashed: SIGSEGV in solve() (a.py:30), in the 3rd call of 5"
    mark = TimelineMark("n", "death", text, AT, short="worker-native-crash")
    assert words_of(mark, 1000) == text
    cut = "Actor Solver (pid 555) crashed:|SIGSEGV in solve() (a.py:30)\u00a0…"
    assert words_of(mark, 255) == cut
    assert words_of(mark, 200) == "worker-native-crash"
    assert words_of(replace(mark, short=""), 200) == "Actor Solver (pid|555) crashed\u00a0…"
    assert words_of(replace(mark, kind="sign", short=""), 200) == ""


def test_a_long_statement_before_a_colon_says_more_than_the_name_of_a_rule() -> None:
    text = "The raylet of node 10.0.0.2 (pid 97) has been stopped by a signal (SIGSTOP): no task starts"
    mark = TimelineMark(
        "n", "failure", f"{text} there until it runs again" * 2, AT, short="clock-skew"
    )
    assert words_of(mark, 320).replace("|", " ") == f"{text.partition(':')[0]}\u00a0…"
    assert words_of(mark, 120) == "clock-skew"


def test_words_beside_a_mark_have_no_addition_behind_a_semicolon() -> None:
    text = (
        "The worker of f() (pid 3) ended suddenly, and no log shows why; Ray recorded SYSTEM_ERROR"
    )
    mark = TimelineMark("n", "death", text, AT, short="worker-vanished")
    assert words_of(mark, 1000) == text.partition(";")[0]
    other = "2 processes (python -c import time; cache = 1) outlived their raylet"
    assert words_of(replace(mark, text=other), 1000) == other


def test_a_mark_of_several_texts_shows_one_that_fits() -> None:
    long = "files that are neither logs nor spilled objects in /tmp/ray/" + "x" * 60
    marks = tuple(TimelineMark("n", "sign", text, AT) for text in (long, "the disk is full"))
    spot = timeline._Spot(0.0, "sign", marks)
    assert timeline._words(spot, 400) == ["the disk is full (and 1 more)"]
    assert timeline._words(spot, 80) == ()
    spills = tuple(replace(mark, kind="spill") for mark in marks)
    assert timeline._words(timeline._Spot(0.0, "spill", spills), 170) == [
        "write to or read from disk"
    ]


def test_no_word_stands_alone_in_the_last_line_above_a_mark() -> None:
    text = (
        "2 train() tasks can never start: each needs 1 GPU and 8 CPUs, but the largest has 2 CPUs"
    )
    mark = TimelineMark("n", "failure", text, AT)
    one, other = words_of(mark, 500).split("|")
    assert f"{one} {other}" == text
    assert len(other) > len(one) / 2


def test_words_beside_a_mark_are_never_a_stump() -> None:
    text = "load(): 8 finished peers took 0.29 s (median), 7.0 s at most"
    sign = TimelineMark("n", "sign", text, AT)
    assert words_of(sign, 1000) == text
    assert words_of(sign, 100) == ""


def test_a_long_name_of_a_lane_keeps_its_pid() -> None:
    name = "ReadRange->Map(price_per_item)->MapBatches(decode) (pid 412)"
    section, _ = timeline.section(
        Timeline(
            (Lane("p", "process", name, has_own_row=True),), (TimelineMark("p", "end", "", AT),)
        )
    )
    (shown,) = re.findall(r'class="name"[^>]*>([^<]*)</text>', drawing(section, "broad"))
    assert "…" in shown
    assert shown.endswith("(pid 412)")


@pytest.mark.parametrize("width", [1, 2, 5, 12, 30, 60])
def test_a_text_without_its_middle_is_no_wider_than_its_room(width: int) -> None:
    shown = cut_middle("a" * 30 + "漢字" + "b" * 28, width)
    assert cells(shown) <= width


def test_lanes_that_share_a_row_have_no_bar() -> None:
    lanes = [Lane("n", "node", "node 10.0.0.2")]
    lanes += [Lane(f"w{n}", "process", f"worker (pid {n})", "n") for n in range(3)]
    section, _ = timeline.section(Timeline(tuple(lanes), (TimelineMark("n", "end", "ends", AT),)))
    assert "3 other processes" in section
    assert drawing(section, "broad").count('class="bar') == 1
    assert drawing(section, "narrow").count('class="bar') == 1


def test_a_reading_close_to_its_limit_has_two_digits_and_names_the_holders() -> None:
    gib = 1024**3
    held = (("train (pid 7)", 2.8 * gib), ("python a.py (pid 8)", 0.5 * gib))
    reading = UsageReading("n", "memory", "", AT, 3.43 * gib, 4 * gib, 3.4 * gib, held)
    section = usage_of(reading)
    assert section is not None
    assert "3.43 GiB of 4.00 GiB" in section
    assert "Ray kills at 3.40 GiB" in section
    assert "train (pid 7) 2.80 GiB and python a.py (pid 8) 512 MiB" in section


def test_an_excerpt_has_no_colours_and_a_record_once() -> None:
    report = hostile_report("\x1b[36m(f pid=3)\x1b[0m \x1eE|||\x1ethe store does not answer")
    source = render(report)
    shown = re.findall(r"<mark>(.*?)</mark>", source)
    assert set(shown) == {"(f pid=3) |E||||the store does not answer"}
    root = report.diagnoses[0]
    twice = replace(report, diagnoses=(replace(root, chain=root.chain * 2), *report.diagnoses[1:]))
    assert Page(render(twice)).text.count("The record is above.") >= len(root.chain)


def test_the_result_has_the_headline_once_and_the_first_fix_above_the_rest() -> None:
    one = hostile_report("train").diagnoses[0]
    fixes = tuple(
        Remedy(f"Fix {n}", ("ray status", paste.python("ray.init()")), "disruptive") for n in (1, 2)
    )
    root = replace(one, headline="The worker ended", remedies=fixes, consequences=())
    source = render(Report(CaptureInfo("logs", "tree"), (root,)))
    assert Page(source).problems == []
    assert source.count(">The worker ended</") == 1
    assert source.index("Fix 1") < source.index("1 more step") < source.index("Fix 2")
    assert source.index("Fix 2") < source.index('id="findings"')
    assert '<pre class="code">ray status</pre><pre class="code">ray.init()</pre>' in source
    assert "The fix interrupts work that is running." in source
    assert "The fix deletes" not in source


@pytest.mark.parametrize(
    ("headline", "first"),
    [
        (
            "Actor Model (pid 441) could not be created: __init__ raised ValueError: no model, in a() (a.py:42)",
            "Actor Model (pid 441) could not be created:",
        ),
        (
            "3 processes (python -c import time, and more: a) outlived their workers, and still hold memory: 2 GiB",
            "3 processes (python -c import time, and more: a) outlived their workers,",
        ),
        (
            "Ray's threshold for 'a: b' is set to 2% on each of the nodes, so 1 object could not be stored there",
            "Ray's threshold for 'a: b' is set to 2% on each of the nodes,",
        ),
        ("The worker of train() ended suddenly: no log shows why", ""),
        ("x" * 95, ""),
    ],
)
def test_a_long_headline_is_lighter_after_its_first_clause(headline: str, first: str) -> None:
    root = replace(hostile_report("train").diagnoses[0], headline=headline, consequences=())
    source = render(Report(CaptureInfo("logs", "tree"), (root,)))
    (heading,) = re.findall(r"<h1>(.*?)</h1>", source)
    assert Page(heading).text == headline
    assert Page(heading.partition("<span")[0]).text == (first or headline)
    assert ("<span" in heading) is bool(first)


@pytest.mark.parametrize(
    ("severity", "ended_driver", "kind", "is_grave"),
    [
        ("error", True, "live.tasks", True),
        ("critical", False, "live.tasks", True),
        ("error", False, "worker.exit", True),
        ("error", False, "live.tasks", False),
        ("warning", False, "worker.exit", False),
    ],
)
def test_an_effect_is_lighter_for_a_warning_and_while_the_program_runs(
    severity: Severity, ended_driver: bool, kind: str, is_grave: bool
) -> None:
    one = hostile_report("train").diagnoses[0]
    chain = tuple(replace(link, event=replace(link.event, kind=kind)) for link in one.chain)
    root = replace(
        one, severity=severity, ended_driver=ended_driver, effect="The program", chain=chain, consequences=(),
    )  # fmt: skip
    source = render(Report(CaptureInfo("logs", "tree"), (root,)))
    assert ("<p><b>Effect:</b> The program.</p>" in source) is is_grave
    assert ('<p class="dim">Effect: The program.</p>' in source) is not is_grave


def test_the_list_of_incidents_refers_to_the_first_one_and_links_to_all() -> None:
    source = render(findings(2, lambda n: (), "the worker ended"))
    listed = source[source.index('id="causes"') : source.index('id="findings"')]
    assert listed.count("the incident above") == 1
    assert re.findall(r'href="#(d\d)"', listed) == ["d0", "d1"]
    assert '<a href="#causes">1 further incident below.</a>' in source


@pytest.mark.parametrize("count", [0, 1, 2])
def test_no_section_is_empty(count: int) -> None:
    source = render(findings(count, lambda n: (), "the worker ended"))
    assert (">Incidents</h2>" in source) is (count > 1)
    assert not re.search(r"</h2>(?:<[ou]l[^>]*></[ou]l>)?</section>", source)


def test_a_consequence_has_its_headline_beside_its_evidence_only_if_its_rule_does_not_name_it() -> (
    None
):
    report = findings(3, lambda n: (1, 2) if not n else (), "the worker ended")
    root, one, two = (replace(d, headline=f"No {n}") for n, d in enumerate(report.diagnoses))
    for rules, times in ((("a", "b"), 1), (("a", "a"), 2)):
        below = [replace(d, rule=rule) for d, rule in zip((one, two), rules, strict=True)]
        page = Page(render(replace(report, diagnoses=(root, *below))))
        assert page.problems == []
        assert [page.text.count(f"No {n}") for n in (1, 2)] == [times, times]


def test_of_several_incidents_each_has_its_headline_above_its_evidence() -> None:
    source = render(findings(2, lambda n: (), "the worker ended"))
    headline = Page(findings(1, lambda n: (), "").diagnoses[0].headline).text
    titles = re.findall(r'<h3 id="d\d-title">(.*?)</h3>', source)
    assert [Page(title).text for title in titles] == [headline, headline]
    assert source.count('<a href="#main">What to do') == 1, "the result has the fixes of the first"


def test_words_to_replace_are_marked_and_named() -> None:
    fix = Remedy("Look at the pod", ("kubectl describe pod POD   # POD: of the <node>",))
    root = replace(hostile_report("train").diagnoses[0], remedies=(fix,), consequences=())
    source = render(Report(CaptureInfo("logs", "tree"), (root,)))
    assert Page(source).problems == []
    assert "<span>kubectl describe pod <var>POD</var></span><span" in source
    assert "Replace <var>POD</var> first." in source


@pytest.mark.parametrize(
    ("tiers", "title"),
    [
        (("root",), "Part of this incident"),
        (("symptom",), "Consequences"),
        (("symptom", "root"), "Parts and consequences"),
    ],
)
def test_other_sides_of_one_event_are_named_as_parts(tiers: tuple[Tier, ...], title: str) -> None:
    """A diagnosis that begins with the record of the root follows from nothing: it is the same event."""
    root = hostile_report("train").diagnoses[0]
    below = [
        replace(root, id=f"b{n}", tier=tier, headline=f"A {tier}", consequences=())
        for n, tier in enumerate(tiers)
    ]
    root = replace(root, consequences=tuple(each.id for each in below))
    source = render(Report(CaptureInfo("logs", "tree"), (root, *below)))
    page = Page(source)
    assert page.problems == []
    assert f'<h2 id="causes">{title}</h2>' in source
    assert page.text.count("part of it: A root") == 2 * tiers.count("root")
    assert "part of it: A symptom" not in page.text
    if len(tiers) > 1:
        assert page.text.index("A root") < page.text.index("A symptom")


def test_long_names_may_be_broken_behind_a_sign_only() -> None:
    assert markup.breakable("at read_very_long_name.py:25 <b>") == (
        "at read_<wbr>very_<wbr>long_<wbr>name.<wbr>py:25 &lt;b&gt;"
    )
    assert markup.breakable("__init__ short_name.py") == "__init__ short_name.py"


def test_only_a_word_that_is_too_long_for_a_column_is_broken() -> None:
    made = markup.table("a", ("b",), [("node 10.0.0.2, head",), ("x" * 25,), ("waits " * 9,)])
    assert '<td>node 10.0.0.2, head</td></tr><tr><td class="long">xxx' in made
    assert '<td class="text">waits' in made


# ---------------------------------------------------------------- the command


def test_open_prints_the_path_where_there_is_no_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    log = tmp_path / "driver.log"
    log.write_text("ray.exceptions.OutOfMemoryError: x\n")
    for _ in range(12):
        execute(["diagnose", str(log), "--open", "--fail-on", "never"])
    out, err = capsys.readouterr()
    path = Path(out.splitlines()[-1])
    assert path.parent == tmp_path / "state" / "raydoctor" / "reports"
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    assert len(list(path.parent.iterdir())) == 10
    assert Page(path.read_text()).problems == []
    assert "no screen for a browser" in err


def test_open_removes_only_its_own_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "raydoctor" / "reports"
    folder.mkdir(parents=True)
    for n in range(12):
        (folder / f"{n}.html").touch()
    for _ in range(12):
        with _files.new_page() as page:
            Path(page).write_text("x")
    assert len(list(folder.iterdir())) == 12 + 10
    assert Path(page).parent == folder


def test_open_follows_no_link_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`XDG_STATE_HOME=/tmp`: another user may have placed a link to a folder of this user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = tmp_path / "mine"
    mine.mkdir()
    for n in range(12):
        (mine / f"2026-01-01T00-00-00-{n}.html").touch()
    (tmp_path / "raydoctor").mkdir()
    (tmp_path / "raydoctor" / "reports").symlink_to(mine)
    with _files.new_page() as path:
        page = Path(path)
        assert page.parent.name.startswith("raydoctor-report-")
        assert page.parent.stat().st_mode & 0o077 == 0
    assert not page.parent.exists()
    assert len(list(mine.iterdir())) == 12


def test_open_leaves_nothing_where_the_report_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk: the file can be created, and its content cannot be written."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    log = tmp_path / "driver.log"
    log.write_text("ray.exceptions.OutOfMemoryError: x\n")
    pages = tmp_path / "state" / "raydoctor" / "reports"
    pages.mkdir(parents=True)
    for n in range(10):
        (pages / f"2026-01-01T00-00-00-{n}.html").write_text("a report")
    before = sorted(pages.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (999, hard))
    try:
        code = execute(["diagnose", str(log), "--open"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2
    assert "cannot write" in capsys.readouterr().err
    assert sorted(pages.iterdir()) == before


def test_open_starts_the_browser_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":9")
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr("webbrowser.open", lambda uri: not opened.append(uri))
    log, page = tmp_path / "driver.log", tmp_path / "a b.html"
    log.write_text("hello\n")
    execute(["diagnose", str(log), "--open", "-o", str(page), "--fail-on", "never"])
    assert opened == [page.as_uri()]
    assert capsys.readouterr().out.strip() == str(page)


@pytest.mark.parametrize(
    "more", [["--format", "json"], ["--json"], ["-o", "-"], ["--session", "all"]], ids=" ".join
)
def test_open_contradicts_other_outputs(more: list[str], tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text("hello\n")
    assert execute(["diagnose", str(log), "--open", *more]) == 2


# ---------------------------------------------------------------- many findings


def findings(count: int, below: Callable[[int], Sequence[int]], text: str) -> Report:
    """A report with `count` diagnoses, of which each has these numbers as its consequences."""
    report = hostile_text.report("train failed on node 10.0.0.2")
    first = report.diagnoses[0]
    chain = tuple(replace(link, event=replace(link.event, text=text)) for link in first.chain)
    return replace(
        report,
        diagnoses=tuple(
            replace(first, id=f"d{n}", chain=chain, consequences=tuple(f"d{m}" for m in below(n)))
            for n in range(count)
        ),
    )


def test_the_headline_has_a_time_with_its_zone_or_says_until_when_the_logs_reach() -> None:
    report = findings(1, lambda _: (), "a")
    info = replace(report.capture, end=AT, has_zone=False)
    first = report.diagnoses[0]
    for at, said in ((AT, "zone unknown"), (None, "time not recorded, logs until 20")):
        source = render(replace(report, capture=info, diagnoses=(replace(first, first_at=at),)))
        assert said in source.partition("<h1>")[0]


@given(st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=25))
@settings(max_examples=60, deadline=None)
def test_every_reference_resolves_whatever_follows_from_what(below: list[list[int]]) -> None:
    assert Page(render(findings(len(below), lambda n: below[n], "a"))).problems == []


@pytest.mark.parametrize("below", [lambda n: (), lambda n: range(1, 2_000) if not n else ()])
def test_thousands_of_findings_are_all_named_on_a_page_of_limited_size(
    below: Callable[[int], Sequence[int]],
) -> None:
    text = "a line of a log that says much, and for the most part nothing new\n" * 30
    report = findings(2_000, below, text)
    began = time.process_time()
    source = render(report)
    assert time.process_time() - began <= 2.0
    assert len(source.encode()) <= 3_000_000
    page = Page(source)
    assert page.problems == []
    shortened = ("records and consequences below are without their text", "1,960 further incidents")
    assert any(words in page.text for words in shortened)
    headline = report.diagnoses[0].headline
    assert page.text.count(headline) >= 2_000


def test_the_quoted_line_is_the_one_that_a_statement_is_about() -> None:
    crash = "Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n"
    crash += '  File "ctypes/__init__.py", line 519 in string_at\n  File "a.py", line 33 in decode'
    event = Event("x", Source("worker.err", "worker-err"), 1, 0, crash, crash)
    shows = "the Python stack ends in string_at (ctypes/__init__.py:519), called from decode"
    assert "string_at" in telling(event, shows)
    assert telling(event, "the worker ended") == gist(event)
