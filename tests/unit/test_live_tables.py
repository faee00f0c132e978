"""Collectors run side by side under a limit; what they bring becomes files, and the files events."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydoctor.capture.open import open_capture
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Gap, Source
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.collector.run import Collector, run
from raydoctor.observe.collector.table import Piece, table, text
from raydoctor.observe.gcs import dashboard, state
from raydoctor.observe.gcs.programs.gcs_tables import TABLES
from raydoctor.observe.gcs.replies import Probe, Reply
from raydoctor.observe.processes.redact import Redactor
from raydoctor.read import build, live
from tests.helpers.waiting import clock

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.text(max_size=40)
ROWS = st.lists(
    st.dictionaries(st.text(min_size=1, max_size=8), SCALARS | st.lists(SCALARS, max_size=3))
)


def events_of(folder: Path, piece: Piece) -> tuple[list[Event], list[Gap]]:
    file = folder / "table.json"
    file.write_bytes(piece.data)
    gaps: list[Gap] = []
    return live.read({Source(piece.path, "live"): str(file)}, gaps), gaps


# ---------------------------------------------------------------- tables


@given(rows=ROWS)
def test_a_table_is_json_with_one_row_a_line(rows: list[dict[str, object]]) -> None:
    piece = table("tasks", rows, source="gcs", total=len(rows) + 7, at=12.5)
    assert piece.path == "live/live-tasks.json"
    document = json.loads(piece.data)
    assert document == {
        "table": "tasks",
        "at": 12.5,
        "from": "gcs",
        "total": len(rows) + 7,
        "rows": rows,
    }
    lines = piece.data.decode().split("\n")
    assert [json.loads(line.removesuffix(",")) for line in lines[1 : 1 + len(rows)]] == rows


def test_rows_become_events_that_name_their_line(tmp_path: Path) -> None:
    task = "c8ef45ccd0112571ffffffffffffffffffffffff01000000"
    rows = [
        {"task_id": task, "state": "RUNNING", "worker_pid": 812, "node_id": None, "paused": False},
        {"task_id": "nonsense", "shape": {"CPU": 1.0}, "count": 3},
    ]
    events, gaps = events_of(tmp_path, table("tasks", rows, source="gcs", at=12.5))
    assert gaps == []
    first, second, head = events
    assert (first.kind, first.line, first.at, first.pid) == ("live.tasks", 2, 12.5, 812)
    assert first.fields == {
        "task_id": task,
        "state": "RUNNING",
        "worker_pid": "812",
        "node_id": "",
        "paused": "false",
    }
    assert first.entities == {Entity("task", task)}
    assert (second.line, second.entities, second["shape"]) == (3, frozenset(), '{"CPU":1.0}')
    assert (head.kind, head["name"], head["from"], head["rows"]) == (
        "live.table",
        "tasks",
        "gcs",
        "2",
    )
    data = (tmp_path / "table.json").read_bytes()
    assert json.loads(data[second.offset :].split(b"\n")[0]) == rows[1]


def test_an_empty_table_was_looked_at(tmp_path: Path) -> None:
    [head], gaps = events_of(tmp_path, table("tasks", [], source="gcs", at=1.0))
    assert (head["name"], head["total"], gaps) == ("tasks", "0", [])


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]\n", b'{"table": 3, "at": 1, "rows": [\n]}', b'{"table": "x", "rows": [\n]}',
     b'{"table": "x", "at": "noon", "rows": [\n]}', b"\xff\xfe\n", b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_table_is_a_gap(tmp_path: Path, data: bytes) -> None:
    events, gaps = events_of(tmp_path, Piece("live/live-x.json", data))
    assert events == []
    assert [g.what for g in gaps] == ["live/live-x.json"]


def test_a_damaged_row_costs_that_row_alone(tmp_path: Path) -> None:
    whole = table("tasks", [{"n": 1}, {"n": 2}, {"n": 3}], source="gcs", at=1.0)
    torn = whole.data.replace(b'{"n":2}', b'{"n":').replace(b'{"n":3}', b'{"n":3}' + b"\x00")
    events, _ = events_of(tmp_path, Piece(whole.path, torn))
    assert [e["n"] for e in events if e.kind == "live.tasks"] == ["1"]
    assert events[-1]["rows"] == "1"
    assert events[-1]["total"] == "3"


def test_redaction_leaves_rows_that_can_be_read() -> None:
    key = "hf_" + "aB3" * 12
    rows = [
        {
            "entrypoint": f'python t.py --token {key} --note "x"',
            "runtime_env": '{"env_vars": {"A": "b"}}',
        },
        {"message": f"url https://me:pass4711word@host/x {key}\\"},
        {"message": "nothing"},
    ]
    piece = table("jobs", rows, source="dashboard", at=1.0)
    cleaned = Redactor().redact_rows(piece.data)
    kept = json.loads(cleaned)["rows"]
    assert len(kept) == 3
    assert key.encode() not in cleaned
    assert b"pass4711word" not in cleaned
    assert kept[2] == rows[2]
    assert "python t.py --token <secret:" in kept[0]["entrypoint"]


def test_tables_of_another_program_hold_no_secrets(tmp_path: Path) -> None:
    """A row's text is cut, and sentences join its values, after which no redactor knows a secret."""
    key = "FAKE" + "aB3dE7gH" * 30
    label = "RSA PRIVATE K" + "EY"
    lines = [f"\x1b[36m(f pid=7)\x1b[0m {key[at : at + 64]}" for at in range(0, len(key), 64)]
    title = "\n".join([f"\x1b[36m(f pid=7)\x1b[0m -----BEGIN {label}-----\x1b[0m", *lines])
    (tmp_path / "live").mkdir()
    piece = table("processes", [{"pid": 7, "title": title}], source="ps", at=1.0)
    (tmp_path / piece.path).write_bytes(piece.data)
    with open_capture(str(tmp_path)) as capture:
        (row,) = build.read(capture, []).case.of("live.processes")
    assert "(f pid=7)\x1b[0m <secret:private-key" in row["title"]
    assert not any(line[-64:] in row.text + row["title"] for line in lines)


def test_a_table_that_takes_too_long_to_redact_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_: object) -> bytes:
        while True:
            pass

    monkeypatch.setattr(live.budget, "FILE_SECONDS", 0.05)
    monkeypatch.setattr(Redactor, "redact_rows", endless)
    file = tmp_path / "table.json"
    file.write_bytes(table("tasks", [{"n": 1}], source="gcs", at=1.0).data)
    gaps: list[Gap] = []
    assert not live.read({Source("live/live-tasks.json", "live"): str(file)}, gaps, Redactor())
    assert [(gap.about, gap.optional) for gap in gaps] == [("table", False)]
    assert "time budget" in gaps[0].why


# ---------------------------------------------------------------- collectors


def test_one_that_hangs_costs_its_time_alone() -> None:
    forever = threading.Event()

    def hangs() -> Iterator[Piece]:
        yield text("early.txt", "kept")
        forever.wait()

    def quick() -> Iterator[Piece | Gap]:
        yield text("quick.txt", "q")
        yield Gap("something", "is not there")

    began, start = time.monotonic(), clock()
    found = run([Collector("the slow", hangs, hint="Wait."), Collector("the quick", quick)], 0.3)
    assert time.monotonic() - began > 0.25
    assert clock() - start < 1.5
    assert found.pieces == {"live/early.txt": b"kept", "live/quick.txt": b"q"}
    assert found.gaps == [
        Gap("the slow", "did not answer within 0.3 s", "Wait."),
        Gap("something", "is not there"),
    ]
    forever.set()


def test_one_that_fails_is_a_gap_with_its_reason() -> None:
    def fails() -> Iterator[Piece]:
        yield text("half.txt", "h")
        raise ValueError("first line\nsecond")

    def exits() -> Iterator[Piece]:
        raise SystemExit(3)
        yield

    found = run([Collector("a", fails, optional=True), Collector("b", exits)], 5)
    assert found.pieces == {"live/half.txt": b"h"}
    assert [(g.what, g.why, g.optional) for g in found.gaps] == [
        ("a", "failed: ValueError: first line", True),
        ("b", "failed: SystemExit: 3", False),
    ]


def test_who_was_first_makes_no_difference() -> None:
    def after(seconds: float, name: str) -> Iterator[Gap]:
        time.sleep(seconds)
        yield Gap(name, "x")

    late, soon = (
        Collector(n, lambda n=n, s=s: after(s, n)) for n, s in (("late", 0.1), ("soon", 0))
    )
    assert [g.what for g in run([late, soon], 5).gaps] == ["late", "soon"]


def test_work_meanwhile_costs_no_evidence() -> None:
    found = run([Collector("a", lambda: [text("a.txt", "a")])], 0.05, lambda: time.sleep(0.2))
    assert (list(found.pieces), found.gaps) == (["live/a.txt"], [])


# ---------------------------------------------------------------- tables of the GCS


def test_the_gcs_can_be_asked_for_every_table_that_is_wanted() -> None:
    inquiry = state._Inquiry(Cluster(), None, 1.0)
    wanted = {*inquiry.of_both, *inquiry.better_in_gcs, *state._QUICK, *state._BRIEF, *state._PEERS}
    assert wanted <= set(TABLES)
    assert {*dashboard.TABLES, *state._OPTIONAL} <= set(TABLES)


class AnswersAllBut:
    """In place of the child process: lacks some tables, and notes which are requested."""

    probe, problem, is_late = Probe("gcs", "10.0.0.2:6379", "ok", 0.0), "", False
    about: Mapping[str, str] = {}

    def __init__(self, lacks: Collection[str]) -> None:
        self.lacks, self.asked = lacks, set[str]()

    def ask(
        self, address: str, access: Access, tables: Sequence[str], timeout: float
    ) -> Iterator[Reply]:
        self.asked.update(tables)
        return (Reply(name, [], why="oops" if name in self.lacks else "") for name in tables)


def test_a_table_that_no_dashboard_holds_is_requested_and_called_what_its_entry_says() -> None:
    own = {name: each.called for name, each in TABLES.items() if each.is_always_wanted}
    child = AnswersAllBut(own)
    inquiry = state._Inquiry(Cluster(gcs_address="10.0.0.2:6379"), child, 5.0)  # type: ignore[arg-type]
    (gap,) = (each for each in inquiry.items() if isinstance(each, Gap))
    assert child.asked > {*own, *dashboard.TABLES}
    assert gap.what == f"{state.WHAT} (resources, resource requests, memory and objects of workers)"
    assert gap.why == "oops"
