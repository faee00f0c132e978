"""Live tables that are damaged or hostile: values are made safe where they are read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from raydoctor.case import Case
from raydoctor.cluster import samples
from raydoctor.cluster import tables as fields
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read import live

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import fuzz_tables

SEED, COUNT = 4200, 40


def test_damaged_captures_are_diagnosed() -> None:
    """`benchmarks/fuzz_tables.py` runs thousands."""
    assert fuzz_tables.run(SEED, COUNT) == {}


def events_of(folder: Path, head: object, *rows: str) -> tuple[list[Event], list[Gap]]:
    file = folder / "live-tasks.json"
    told = json.dumps({"table": "tasks", "at": head, "from": "gcs", "total": 1})[:-1]
    file.write_text(f'{told}, "rows": [\n' + ",\n".join(rows) + "\n]}\n")
    gaps: list[Gap] = []
    return live.read({Source("live/live-tasks.json", "live"): str(file)}, gaps), gaps


@pytest.mark.parametrize("at", [[], {}, "soon", None, -1, float("nan"), float("inf"), 10**400])
def test_a_head_without_a_time_is_damage(tmp_path: Path, at: Any) -> None:
    events, gaps = events_of(tmp_path, at, '{"pid":1}')
    assert events == []
    assert [gap.why for gap in gaps] == ["could not be read: damaged"]


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e400", "1" + "0" * 30, "-1e30"]
)
def test_a_number_out_of_range_is_missing(tmp_path: Path, number: str) -> None:
    (row, _), gaps = events_of(tmp_path, 5.0, f'{{"a":{number},"b":[{number}],"c":7}}')
    assert gaps == []
    assert (row["a"], row["b"], row["c"]) == ("", "[null]", "7")
    assert (fields.number(row, "a"), fields.whole(row, "c")) == (None, 7)


@pytest.mark.parametrize("text", ["nan", "inf", "1e400", "²", "", "x", "[]"])
def test_a_text_that_is_no_number_is_none(tmp_path: Path, text: str) -> None:
    (row, _), _ = events_of(tmp_path, 5.0, json.dumps({"a": text}))
    assert fields.number(row, "a") is None
    assert fields.whole(row, "a") is None


def test_texts_are_valid_and_bounded(tmp_path: Path) -> None:
    long = "é" * 1_100_000
    (first, second, _), _ = events_of(tmp_path, 5.0, '{"a":"\\ud800x"}', json.dumps({"a": long}))
    assert first["a"] == "?x"
    assert len(second["a"]) == 1 << 20


def test_parts_of_values_have_their_types(tmp_path: Path) -> None:
    told: dict[str, Any] = {"l": [1, "a", None, {"x": 1}, []], "d": {"x": 1}, "s": "s"}
    (row, _), _ = events_of(tmp_path, 5.0, json.dumps(told))
    assert (fields.records(row, "l"), fields.texts(row, "l")) == ([{"x": 1}], ["a"])
    assert (fields.records(row, "d"), fields.records(row, "s"), fields.texts(row, "no")) == (
        [],
        [],
        [],
    )
    assert [fields.number_of(v) for v in (True, [], {}, None, "3", 2)] == [None] * 4 + [3.0, 2.0]


def test_clues_have_the_types_of_their_columns(tmp_path: Path) -> None:
    """Rows within a row: of any type, in a capture from somebody else."""
    source = Source("live/live-clues.json", "live")
    children = [{"pid": [], "rested_s": "x", "command": {}}, 7, {"pid": 5, "rested_s": 2}]
    locks = [{"tid": 1, "holder_tid": [2], "seen_in": [{"tid": "9"}, 3, "x"]}]
    sample = Event(
        "live.samples", source, 1, 0, "", pid=1, fields={"node_id": "n", "threads": "[7,{}]"}
    )
    clue = Event(
        "live.clues", source, 1, 0, "", pid=1,
        fields={"node_id": "n", "children": json.dumps(children), "locks": json.dumps(locks)},
    )  # fmt: skip
    (process,) = samples.processes(Case([sample, clue]))
    assert process.clues["children"] == [
        {"pid": None, "rested_s": None, "command": None},
        {"pid": 5, "rested_s": 2.0},
    ]
    assert process.clues["locks"] == [{"tid": 1, "holder_tid": None, "seen_in": [{"tid": 9}]}]
    assert len(process.last.threads) == 1
