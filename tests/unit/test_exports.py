"""Exports of log stores: where a record belongs, the order of its lines, and what damaged ones cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor import cli
from raydoctor.capture import contents
from raydoctor.capture.exports import entries
from raydoctor.capture.exports.labels import (
    Place,
    Record,
    all_nanoseconds,
    nanoseconds,
    place_of,
    record_of,
)
from raydoctor.capture.exports.repeats import Repeats
from raydoctor.capture.open import Capture, open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.errors import RaydoctorError
from tests.helpers import sinks

LOGS = "/tmp/ray/session_2026-11-21_07-34-00_123456_1/logs"
SECOND = 1_795_246_503


def opened(text: str | bytes, folder: Path, session: str = "") -> dict[str, list[str]]:
    """The lines of each part of an export; none of it may be written outside the capture's folder."""
    with taken(text, folder, session) as capture:
        parts = {s.path.partition(":")[2] or s.path: f for s, f in capture.files.items()}
        return {name: Path(file).read_text().splitlines() for name, file in parts.items()}


def taken(text: str | bytes, folder: Path, session: str = "") -> Capture:
    file = folder / "x.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_capture(str(file), session=session)


def loki(*rows: tuple[int, str], **labels: str) -> str:
    values = [
        {"labels": labels, "line": line, "timestamp": f"2026-11-21T07:35:03.{at:09}Z"}
        for at, line in rows
    ]
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in values)


OF_RAYLET = {"pod": "w-1", "filename": f"{LOGS}/raylet.out"}


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ({"pod": "a", "container": "ray", "namespace": "ml"}, Place("ml", "a", "ray")),
        ({"k8s.pod.name": "a", "k8s.container.name": "ray"}, Place("", "a", "ray")),
        ({"kubernetes": {"pod_name": "a", "container_name": "c", "host": "n"}}, Place("", "a", "c")),
        ({"kubernetes": {"pod": {"name": "a"}, "node": {"name": "n"}}}, Place("", "a")),
        ({"resource": {"labels": {"pod_name": "a", "namespace_name": "ml"}}}, Place("ml", "a")),
        ({"log": {"file": {"path": f"{LOGS}/raylet.out"}}, "host": {"name": "h"}},
         Place("", "h", "", LOGS.split("/")[3], "raylet.out")),
        ({"host": "h", "filename": "/home/me/train.log"}, Place("", "h", "train.log")),
        ({"true": "/tmp/ray/session_latest/logs/old/raylet.out"}, Place(file="old/raylet.out")),
        ({"file": "/var/log/pods/ml_a_3f/ray-head/0.log"}, Place("ml", "a", "ray-head")),
        ({"logStreamName": f"n.var.log.containers.a_ml_ray-{'0f' * 32}.log"}, Place("ml", "a", "ray")),
        ({"logStreamName": "i-0abc"}, Place("", "i-0abc")),
        ({"message": f"see {LOGS}/raylet.out", "count": 3}, Place()),
    ],
)  # fmt: skip
def test_labels_name_a_place(labels: Mapping[str, Any], place: Place) -> None:
    assert place_of(labels) == place


@pytest.mark.parametrize("value", [
    SECOND, SECOND * 1000, float(SECOND), f"{SECOND}000000000", "2026-11-21T07:35:03Z",
    "2026-11-21 07:35:03", "2026-11-21T08:35:03.000+01:00", "2026-11-21T05:05:03-0230",
])  # fmt: skip
def test_times_of_all_stores(value: object) -> None:
    assert nanoseconds(value) == SECOND * 10**9
    assert all_nanoseconds([value] * 2) == [SECOND * 10**9] * 2


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        -1,
        True,
        None,
        float("nan"),
        1e30,
        "9" * 40,
        "9" * 19,
        9999999999999999999,
        "9999-12-31T23:59:59Z",
        "0001-01-01T00:00:00Z",
        [],
        {},
    ],
)
def test_what_is_no_time(value: object) -> None:
    assert nanoseconds(value) == 0
    assert all_nanoseconds([value, "2026-11-21T07:35:03.0Z"]) == [0, SECOND * 10**9]


@given(
    st.lists(
        st.from_regex(
            r"(2026|2262|2263|1969)-11-21T07:3[57]:03[.,]?[0-9\u0663x+]{0,11}[Zz]?", fullmatch=True
        )
    )
)
def test_times_are_read_at_once_as_one_by_one(values: list[str]) -> None:
    assert all_nanoseconds(values) == [nanoseconds(value) for value in values]


def test_newest_first_and_overlapping_pages(tmp_path: Path) -> None:
    pages = [(5, "e"), (4, "d"), (3, "c"), (3, "b")], [(4, "d"), (3, "c"), (2, ""), (1, "a")]
    text = "".join(loki(*page, **OF_RAYLET) for page in pages)
    assert opened(text, tmp_path) == {"w-1/logs/raylet.out": ["a", "", "b", "c", "d", "e"]}


def test_equal_lines_of_one_page_stay(tmp_path: Path) -> None:
    own = {"logStreamName": "i-0abc/raylet.out", "timestamp": SECOND * 1000, "ingestionTime": 7}
    page = {"events": [{**own, "message": text} for text in ("^^^", "^^^", "end")]}
    (lines,) = opened(json.dumps(page) + "\n" + json.dumps(page), tmp_path).values()
    assert lines == ["^^^", "^^^", "end"]


def test_the_line_is_that_of_the_export(tmp_path: Path) -> None:
    entries = [
        {"insertId": "b", "resource": {"labels": {"pod_name": "p", "container_name": name}},
         "textPayload": f"(raylet) {name}", "timestamp": "2026-11-21T07:35:03Z"}
        for name in ("x", "y")
    ]  # fmt: skip
    text = json.dumps(entries, indent=2)
    with taken(text, tmp_path) as capture:
        found = {source.path: source.line(source.place(1)) for source in capture.files}
    lines = text.split("\n")
    assert {path: lines[number - 1].strip() for path, number in found.items()} == {
        f"x.json:p/{name}.log": f'"textPayload": "(raylet) {name}",' for name in ("x", "y")
    }


def test_a_label_named_as_the_text_is_no_text(tmp_path: Path) -> None:
    text = loki((1, "same"), (2, "same"), (3, "other"), line="7", **OF_RAYLET)
    assert opened(text, tmp_path) == {"w-1/logs/raylet.out": ["same", "same", "other"]}


def test_parts_of_lines_are_joined_by_output(tmp_path: Path) -> None:
    rows = [
        ("stdout P ", "(ray"), ("stderr P ", "Trace"), ("stdout F ", "let) x"), ("stderr F ", "back"),
        ("stdout F ", ""), ("stdout P ", "cut"),
    ]  # fmt: skip
    text = "".join(
        f"2026-11-21T07:35:03.{n}Z {kind}{part}\n" for n, (kind, part) in enumerate(rows)
    )
    assert opened(text, tmp_path) == {"x.json": ["(raylet) x", "Traceback", "", "cut"]}


def test_a_file_that_is_followed_by_two_names_is_read_once(tmp_path: Path) -> None:
    text = loki((1, "x"), **OF_RAYLET)
    text += loki((1, "x"), pod="w-1", filename="/tmp/ray/session_latest/logs/raylet.out")
    assert opened(text, tmp_path) == {"w-1/logs/raylet.out": ["x"]}


def test_a_record_of_several_lines(tmp_path: Path) -> None:
    text = loki((1, "one\ntwo"), (2, "three"), **OF_RAYLET)
    with taken(text, tmp_path) as capture:
        (source,) = capture.files
        assert [source.line(n) for n in (1, 2, 3)] == [1, 1, 2]


def test_names_never_lead_out_of_the_folder(tmp_path: Path) -> None:
    names = (
        "../../../etc/cron.d/x",
        "/etc/passwd",
        "a/../../b",
        "..",
        "\x1b]0;x\x07\x1b[31mred",
        "n\0l",
    )
    text = "".join(
        loki((n, "(raylet) x"), pod=name, container=name) for n, name in enumerate(names)
    )
    text += loki((9, "x"), pod="..", filename="/tmp/ray/session_1/logs/../../../raylet.out")
    with taken(text, tmp_path) as capture:
        folder = capture.temporary()
        for source, file in capture.files.items():
            assert Path(file).resolve().parent == folder
            assert source.path.isprintable()
            assert ".." not in source.path.split("/")
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


def test_damage_costs_only_the_damaged_records(tmp_path: Path) -> None:
    whole = [{"labels": OF_RAYLET, "line": str(n), "timestamp": SECOND + n} for n in range(4)]
    rows = [json.dumps(each) for each in whole]
    rows[1:1] = ["{not json", "[1, 2", "null", '{"labels": 3, "line": {"a": 1}}', '"text"', ""]
    with taken("\n".join(rows), tmp_path) as capture:
        (source,) = capture.files
        assert Path(capture.files[source]).read_text() == "0\n1\n2\n3\n"
        (gap,) = capture.gaps
    assert (gap.what, gap.why) == ("x.json", "is cut off or damaged at line 2 and 3 more")


@pytest.mark.parametrize("indent", [None, 2])
def test_a_document_that_is_cut_off_keeps_its_entries(indent: int | None, tmp_path: Path) -> None:
    values = [[f"{SECOND}00000000{n}", f"line {n}"] for n in range(3)]
    streams = [{"stream": {**OF_RAYLET, "pod": f"w-{n}"}, "values": values} for n in range(3)]
    text = json.dumps({"status": "success", "data": {"result": streams}}, indent=indent)
    with taken(text[: text.index("w-2")], tmp_path) as capture:
        assert len(capture.files) == 2
        assert ["is cut off or damaged" in gap.why for gap in capture.gaps] == [True]


def answer(*values: str, after: str = "", labels: str = json.dumps(OF_RAYLET)) -> str:
    inner = f'{{"stream": {labels}, "values": [{", ".join(values)}]{after}}}'
    return f'{{"status": "success", "data": {{"resultType": "streams", "result": [{inner}, {inner}]}}}}'


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ((f'["{SECOND}000000001", "a\\tb\\"]"]', f'["{SECOND}000000002", "}}"]'), ['a\tb"]', "}"]),
        (
            (
                f'["{SECOND}000000001", "a", {{"trace": "{{]"}}]',
                f'["{SECOND}000000002", "b", {{}}]',
            ),
            ["a", "b"],
        ),
        ((f'["{SECOND}000000001", "a"]', "[]", "7", f'[{SECOND}000000002, "b"]'), ["a", "b"]),
        ((f'["{SECOND}000000001", "a\\n"]', f'["{SECOND}000000002", ""]'), ["a", ""]),
        ((), None),
    ],
)
def test_values_of_a_stream(
    values: tuple[str, ...], read: list[str] | None, tmp_path: Path
) -> None:
    parts = opened(answer(*values), tmp_path)
    assert parts.get("w-1/logs/raylet.out") == read


def test_a_damaged_value_costs_what_follows_it_and_is_a_gap(tmp_path: Path) -> None:
    with taken(
        answer(f'["{SECOND}000000001", "a"]', f'["{SECOND}000000001", "\\x"]'), tmp_path
    ) as capture:
        (file,) = capture.files.values()
        assert Path(file).read_text() == "a\n"
        assert ["damaged at line 1" in gap.why for gap in capture.gaps] == [True]


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {**OF_RAYLET, "pod": "w-2"}},
        {"line": 'quoted "x" \\ \t \u2028 é \ud800', "stream": "stderr"},
        {"line": '","timestamp":"2020-01-01T00:00:00.1Z"}'},
        {"line": ""},
        {"line": None, "message": "other"},
        {"timestamp": "soon"},
        {"timestamp": None, "time": f"{SECOND + 5}"},
        {"timestamp": "", "time": f"{SECOND + 5}"},
        {"timestamp": "2026-11-21T08:35:03.5+01:00"},
        {"labels": {**OF_RAYLET, "line": "no text"}},
        {
            "line": json.dumps(
                {"log": "inner", "path": f"{LOGS}/gcs_server.out", "time": f"{SECOND}"}
            )
        },
        {"line": json.dumps({"log": "inner", "path": f"{LOGS}/gcs_server.out"})},
        {"_p": "P"},
        {"timestamp": {"line": "x"}},
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("is_list", [False, True])
def test_a_record_that_repeats_another_is_read_as_if_it_was_parsed(
    change: Mapping[str, Any],
    separators: tuple[str, str],
    is_list: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = {"labels": OF_RAYLET, "line": "x", "timestamp": "2026-11-21T07:35:03.25Z", "time": "7"}
    rows = [usual, {**usual, "line": "y"}, {**usual, **change}, {**usual, "line": "z"}] * 2
    texts = [json.dumps(row, separators=separators) for row in rows]
    text = f"[{', '.join(texts)}]" if is_list else "\n".join(texts)
    fast = [opened(text, tmp_path)]
    monkeypatch.setattr(entries, "_FEW", len(texts[0]))
    fast.append(opened(text, tmp_path))
    monkeypatch.setattr(Repeats, "find", lambda *_: None)
    monkeypatch.setattr(Repeats, "find_all", lambda *_: None)
    assert fast == [opened(text, tmp_path)] * 2


def test_most_records_of_an_export_are_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    find = Repeats.find
    monkeypatch.setattr(
        Repeats, "find", lambda *each: (found.append(result := find(*each)), result)[1]
    )
    monkeypatch.setattr(Repeats, "find_all", lambda *_: None)
    for form in sinks.FILES:
        if form == "Loki, query_range":
            continue
        capture = tmp_path / "capture"
        (capture / "logs").mkdir(parents=True, exist_ok=True)
        (capture / "logs" / "raylet.out").write_text("".join(f"line {n}\n" for n in range(100)))
        found.clear()
        with open_capture(str(sinks.export(capture, form, tmp_path))):
            assert sum(map(bool, found)) >= 95, form


def test_usual_lines_are_read_in_blocks_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first block, and records that differ, are read one by one."""
    rows = [{"labels": OF_RAYLET, "line": f"line {n}", "timestamp": f"2026-11-21T07:35:03.{n:03}Z"} for n in range(1, 500)]  # fmt: skip
    rows[300]["labels"] = {**OF_RAYLET, "level": "info"}
    text = "".join(f"{json.dumps(row)}\n" for row in reversed(rows))
    monkeypatch.setattr(entries, "_FEW", 1000)
    found: list[object] = []
    monkeypatch.setattr(Repeats, "find", lambda *each: found.append(each))
    (lines,) = opened(text, tmp_path).values()
    assert lines == [f"line {n}" for n in range(1, 500)]
    assert len(found) < 20


def test_only_consoles_that_ray_writes_to_are_read(tmp_path: Path) -> None:
    text = loki((1, "(raylet) x"), pod="a", container="ray") + loki(
        (2, "GET /"), pod="b", container="nginx"
    )
    with taken(text, tmp_path) as capture:
        assert [source.path for source in capture.files] == ["x.json:a/ray.log"]
        assert any("b/nginx.log" in note for note in capture.notes)


def test_the_newest_session_is_read_or_the_named_one(tmp_path: Path) -> None:
    older = "session_2026-11-20_07-34-00_123456_1"
    text = loki((1, "new"), **OF_RAYLET)
    text += loki((2, "old"), pod="w-1", filename=f"/tmp/ray/{older}/logs/raylet.out")
    assert opened(text, tmp_path) == {"w-1/logs/raylet.out": ["new"]}
    assert opened(text, tmp_path, older) == {"w-1/logs/raylet.out": ["old"]}
    with pytest.raises(RaydoctorError, match="no session other"):
        opened(text, tmp_path, "other")


def test_all_sessions_give_one_report_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    file.write_text(
        loki((1, "x"), **OF_RAYLET)
        + loki((2, "y"), pod="w", filename="/a/session_2026-1/logs/raylet.out")
    )
    code = cli.execute(["diagnose", str(file), "--session", "all", "--format", "json"])
    assert capsys.readouterr().out.count('"schema": "raydoctor/report/1"') == 2
    assert code == 3


def test_many_streams(tmp_path: Path) -> None:
    text = "".join(loki((1, "(raylet) x"), pod=f"w-{n}", container="ray") for n in range(2_000))
    assert len(opened(text, tmp_path)) == 2_000


def test_without_labels_it_is_one_console(tmp_path: Path) -> None:
    rows = [{"labels": {}, "line": f"Traceback {n}", "timestamp": SECOND + n} for n in range(3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert contents.role_of_text(text) == "export"
    assert opened(text, tmp_path) == {"x.json": [f"Traceback {n}" for n in range(3)]}


KEYS = st.sampled_from(
    ("labels", "line", "stream", "values", "timestamp", "pod", "log", "jsonPayload", "file")
)
VALUES = st.none() | st.text(max_size=5) | st.integers() | st.floats()


@given(
    st.dictionaries(
        KEYS, VALUES | st.lists(VALUES | st.lists(VALUES)) | st.dictionaries(KEYS, VALUES)
    )
)
def test_no_value_is_an_error(value: Any) -> None:
    from raydoctor.capture.exports.documents import records
    from raydoctor.capture.exports.labels import NOWHERE

    for record, place in records(value, NOWHERE, json.dumps(value)):
        assert (type(record.text), type(record.at)) == (str, int)
        assert place >= 0


FIELDS = st.dictionaries(
    st.sampled_from(
        ("line", "log", "message", "timestamp", "time", "ts", "date", "stream", "_p", "path")
    ),
    st.sampled_from(
        ("", "x", "y\n", "{", None, 7, {"path": "/b"}, SECOND, SECOND + 0.5, f"{SECOND}", "stderr",
         "2026-11-21T07:35:03.25Z", "2026-11-21T07:35:04.5Z", f"{LOGS}/raylet.out")
    ),
)  # fmt: skip
OF_RECORD = FIELDS | st.builds(
    lambda own, key, inner: {**own, key: inner},
    FIELDS,
    st.sampled_from(("jsonPayload", "_source", "labels")),
    FIELDS,
)


@settings(max_examples=300)
@given(OF_RECORD, OF_RECORD)
def test_what_is_decoded_is_what_is_parsed(own: dict[str, Any], more: dict[str, Any]) -> None:
    """Each record is first parsed, and found in others that have nearly all of its fields."""
    usual = {"log": "x\n", "stream": "stdout", "time": "2026-11-21T07:35:03.25Z", **own}
    rows = [{**usual, key: value} for key, value in more.items()]
    rows += [{key: value for key, value in usual.items() if key != name} for name in usual]
    repeats = Repeats()
    for row in [usual, *rows, usual, *rows]:
        raw = json.dumps(row)
        parsed, outer = record_of(row), Place()
        found = repeats.find(raw, outer)
        assert found in (None, parsed)
        for place, output, _, times, texts in repeats.find_all([raw.encode()] * 2, outer) or ():
            assert (len(texts), Record(place, times[1], texts[1], output)) == (2, parsed)
        if parsed and not found:
            repeats.learn(raw, row, parsed, outer)


@pytest.mark.parametrize(
    "fields",
    [
        {"file": "train.py"},
        {"path": "/v1/chat"},
        {"hostname": "node-a", "path": "/x"},
        {"labels": {"app": "x"}},
    ],
)
def test_a_programs_own_records_are_one_console(fields: dict[str, Any], tmp_path: Path) -> None:
    """Their fields name code, requests and hosts; the text of an exception is in a field of its own."""
    failed = 'Traceback (most recent call last):\n  File "/a.py", line 1, in <module>\n    f()\nValueError: bad'
    records = [{"message": "start", **fields}, {"message": "failed", "exception": failed, **fields}]
    (tmp_path / "out.json").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    with open_capture(str(tmp_path / "out.json")) as capture:
        report = engine.run(capture)
    assert "ValueError: bad" in str([d.headline for d in report.diagnoses])
