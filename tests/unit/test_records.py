"""Lines and records: every header that Ray, its libraries and the kernel write, and any junk."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydoctor.read.records import (
    MAX_RECORD_LINES,
    assemble,
    begins_record,
    header_length,
    message_of,
    parse_line,
    plausible,
    trailing_fields,
)

ROLES = (
    "raylet-out",
    "gcs-out",
    "worker-err",
    "driver",
    "job-driver",
    "kernel",
    "event",
    "dashboard",
)
PIECES = st.sampled_from(
    [
        "[2026-11-21 07:34:50,739 W 283 293] (raylet) store.cc:366: ",
        "2026-11-21 07:35:03,092\tWARNING worker.py:2622 -- ",
        "E1121 04:58:43.606480 31606 f.cc:378] ",
        "(raylet, ip=10.0.0.2) ", "(train pid=12, ip=10.0.0.2) ", "\x1b[36m(train pid=12)\x1b[0m ",
        " [repeated 3x across cluster]", '{"message": "x", "timestamp_ns": 1}', "[12.5] ", "\r", "\x1b[",
        "9" * 30, "(", ")", "pid=", "Traceback (most recent call last):", ":task_name:", "²", "٣",
    ]
)  # fmt: skip
LINES = st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=6).map("".join)


# ---------------------------------------------------------------- headers


def test_a_record_of_cpp() -> None:
    line = parse_line(
        "[2026-11-21 07:34:50,739 W 283 293] (raylet) store.cc:366: text\r\n", "raylet-out"
    )
    assert (line.stamp, line.level, line.pid) == ("2026-11-21 07:34:50,739", "W", 283)
    assert (line.message, line.headed) == ("text", True)


def test_a_record_of_a_core_worker_has_no_component() -> None:
    line = parse_line("[2026-11-21 07:42:54,469 I 595 595] core_worker_process.cc:872: text")
    assert (line.message, line.pid) == ("text", 595)


def test_fatal_and_check_levels_are_one() -> None:
    for letter in ("C", "F"):
        assert parse_line(f"[2026-11-21 07:34:50,739 {letter} 1 1] (raylet) a.cc:1: x").level == "C"


def test_a_record_of_python() -> None:
    line = parse_line("2026-11-21 07:35:03,092\tWARNING worker.py:2622 -- text")
    assert (line.stamp, line.level, line.message) == ("2026-11-21 07:35:03,092", "W", "text")


@pytest.mark.parametrize(
    "head",
    [
        "ERROR 2026-11-21 10:43:00,589 controller 402 -- ",
        "ERROR 2026-11-21 10:43:00,589 scores_Scorer 3oao5w2q 8b838f28-3293-4163-8b4e-c0ff6f0ee5c0 -- ",
        "ERROR 2026-11-21 10:43:00,589 controller 389 deployment_state.py:823 - ",
        "ERROR 2026-11-21 10:43:00,589 app_D app#D#aBc 8b838f28 /route app replica.py:12 - ",
    ],
)
def test_a_record_of_serve(head: str) -> None:
    for line in (
        parse_line(f"{head}text", "serve"),
        parse_line(f"(C pid=402) {head}text", "driver"),
    ):
        assert (line.stamp, line.level) == ("2026-11-21 10:43:00,589", "E")
        assert (line.message, line.headed) == ("text", True)
    assert header_length(f"{head}text") == len(head)


def test_no_record_of_serve() -> None:
    for text in ("ERROR 2026-11-21 is a date", "INFO 2026-11-21 10:43:00,589 no dashes here"):
        assert (parse_line(text).message, parse_line(text).headed) == (text, False)


def test_records_of_grpc_and_abseil_have_no_year() -> None:
    line = parse_line("E1121 04:58:43.606480 31606 fork_posix.cc:378] text")
    assert (line.level, line.pid, line.stamp, line.message) == ("E", 31606, "", "text")
    assert line.fields["time"] == "04:58:43.606480"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[Sat Nov 21 07:34:50 2026] oom-kill", "date"),
        ("[ 1234.567890] oom-kill", "uptime"),
        ("2026-11-21T07:34:50,123456+0000 ray-node kernel: oom-kill", "iso"),
        ("Nov 21 07:34:50 ray-node kernel: [ 1234.567890] oom-kill", "syslog"),
    ],
)
def test_lines_of_the_kernel(text: str, field: str) -> None:
    line = parse_line(text, "kernel")
    assert (line.message, line.headed) == ("oom-kill", True)
    assert line.fields[field]


def test_a_json_record_of_cpp() -> None:
    text = json.dumps(
        {"asctime": "2026-11-21 07:34:50,739", "levelname": "W", "message": "Worker exited",
         "component": "raylet", "filename": "a.cc", "lineno": 7, "worker_id": "ab"}
    )  # fmt: skip
    line = parse_line(text)
    assert (line.stamp, line.level) == ("2026-11-21 07:34:50,739", "W")
    assert line.message == "Worker exited worker_id=ab"


def test_a_json_record_of_python() -> None:
    text = json.dumps(
        {"message": "failed", "levelname": "ERROR", "process": 17, "timestamp_ns": 1795246490_500000000,
         "exc_text": "Traceback (most recent call last):\nValueError: x"}
    )  # fmt: skip
    line = parse_line(text)
    assert (line.epoch, line.pid, line.level) == (1795246490.5, 17, "E")
    assert line.message.endswith("ValueError: x")


@pytest.mark.parametrize("stamp", [1795246490, "1795246490"])
def test_an_event_file_has_the_epoch_as_number_or_text(stamp: object) -> None:
    line = parse_line(
        json.dumps({"message": "m", "severity": "ERROR", "pid": "9", "timestamp": stamp})
    )
    assert (line.epoch, line.level, line.pid) == (1795246490.0, "E", 9)


# ---------------------------------------------------------------- driver output


@pytest.mark.parametrize(
    ("prefix", "echo", "who", "pid", "ip"),
    [
        ("(raylet) ", "raylet", "raylet", None, ""),
        ("(raylet, ip=10.0.0.2) ", "raylet", "raylet", None, "10.0.0.2"),
        ("(gcs_server) ", "gcs", "gcs_server", None, ""),
        ("(autoscaler +12s) ", "autoscaler", "autoscaler", None, ""),
        ("(train pid=12) ", "worker", "train", 12, ""),
        ("(train pid=12, ip=10.0.0.2) ", "worker", "train", 12, "10.0.0.2"),
        ("(Trainer(rank=1) pid=12) ", "worker", "Trainer(rank=1)", 12, ""),
        ("\x1b[36m(train pid=12)\x1b[0m ", "worker", "train", 12, ""),
    ],
)
def test_prefixes(prefix: str, echo: str, who: str, pid: int | None, ip: str) -> None:
    line = parse_line(f"{prefix}text", "driver")
    assert (line.echo, line.who, line.pid, line.ip) == (echo, who, pid, ip)
    assert line.message == "text"


def test_prefixes_count_in_driver_output_only() -> None:
    assert parse_line("(raylet) text", "worker-out").echo == ""


def test_a_header_behind_a_prefix_is_taken_too() -> None:
    line = parse_line(
        "(raylet) [2026-11-21 07:34:50,739 E 283 293] (raylet) a.cc:1: text", "driver"
    )
    assert (line.message, line.level, line.echo, line.pid) == ("text", "E", "raylet", 283)


def test_repeated_lines_say_how_often() -> None:
    note = (
        " [repeated 3x across cluster] (Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0 …)"
    )
    for suffix, count in ((note, 3), (" [repeated 41x across cluster]", 41), ("", 1)):
        line = parse_line(f"(train pid=12) text{suffix}", "driver")
        assert (line.message, line.repeated) == ("text", count)


# ---------------------------------------------------------------- any junk


@given(text=st.one_of(LINES, st.text()), role=st.sampled_from(ROLES))
def test_any_text_is_a_line(text: str, role: str) -> None:
    line = parse_line(text, role)
    assert "\x1b[0m" not in line.text
    assert line.repeated >= 0
    assert line.epoch is None or 0 < line.epoch < 1e11


@given(text=st.one_of(LINES, st.text()), role=st.sampled_from(ROLES))
def test_the_short_way_to_a_message_gives_the_same(text: str, role: str) -> None:
    line = parse_line(text, role)
    assert message_of(text, role) == (line.message, line.echo, line.repeated)


@given(text=LINES)
def test_the_length_of_a_header(text: str) -> None:
    line = parse_line(text, "raylet-out")
    if not line.text.startswith("{"):
        assert line.message == line.text[header_length(line.text) :]


@pytest.mark.parametrize(
    "text",
    [
        f"[2026-11-21 07:34:50,739 W {'9' * 5000} 1] (raylet) a.cc:1: x",
        f"(train pid={'9' * 5000}) x",
        f"(train pid=1) x [repeated {'9' * 5000}x across cluster]",
        '{"message": "x", "timestamp": ' + "9" * 5000 + "}",
        '{"message": "x", "timestamp": 1e999}',
        '{"message": "x", "timestamp": NaN}',
        '{"message": "x", "timestamp_ns": ' + "9" * 400 + "}",
        '{"message": "x", "timestamp": [], "pid": "²", "process": {}}',
        '{"message": "x", "a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"message": null, "custom_fields": 7}',
        "²026-11-21",
        "(" * 20_000,
        "(" + "x" * 20_000,
        "\x1b[" * 10_000,
    ],
)
def test_hostile_lines_cost_nothing(text: str) -> None:
    began = time.process_time()
    for role in ROLES:
        parse_line(text, role)
        message_of(text, role)
    assert time.process_time() - began < 1


@given(value=st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.booleans()))
def test_what_is_no_time_of_a_log_is_none(value: object) -> None:
    seconds = plausible(value)
    assert seconds is None or 0 < seconds < 1e11


@given(text=st.text())
def test_trailing_fields_of_anything(text: str) -> None:
    assert all(key and value for key, value in trailing_fields(text).items())


def test_trailing_fields_are_those_of_the_last_line() -> None:
    text = "Worker exited. a=1\nnode_id=ab why=a,b exit_code=3"
    assert trailing_fields(text) == {"node_id": "ab", "exit_code": "3"}


# ---------------------------------------------------------------- whole records


def whole(first: str, *following: str, role: str = "raylet-out") -> str:
    return assemble(parse_line(first, role), following, role)[1]


CPP = "[2026-11-21 07:34:50,739 W 283 293] (raylet) store.cc:366: "


def test_a_record_ends_where_the_next_begins() -> None:
    assert whole(f"{CPP}a", "b", "  c", f"{CPP}d", "e") == "a\nb\n  c"


def test_a_pushed_message_goes_on_behind_its_own_prefix() -> None:
    lines = ("(raylet) b", "(raylet) c", "(train pid=1) d")
    assert whole("(raylet) a", *lines, role="driver") == "a\nb\nc"


def test_a_worker_s_streamed_record_ends_where_its_prefix_does() -> None:
    """A message that a raylet pushes has only one prefix, also behind an equal one."""
    trace = "Traceback (most recent call last):"
    lines = (f"(a pid=1) {trace}", "(a pid=1) ValueError: x", "RuntimeError: the driver's")
    assert whole("(a pid=1) E", *lines, role="driver") == f"E\n{trace}\nValueError: x"
    assert (
        whole("(raylet) a", "(raylet) b:", "ValueError: x", role="driver") == "a\nb:\nValueError: x"
    )


def test_a_new_pushed_message_is_a_record_of_its_own() -> None:
    died = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error."
    )
    assert whole("(raylet) a", "(raylet) b", died, role="driver") == "a\nb"


def test_magic_lines_end_a_record() -> None:
    assert whole("a", "b", ":task_name:train", "c", role="worker-err") == "a\nb"


def test_a_traceback_begins_a_record_unless_every_record_there_has_a_header() -> None:
    trace = "Traceback (most recent call last):"
    assert whole("a", trace, "x", role="worker-err") == "a"
    assert whole(f"{CPP}a", trace, "x", role="raylet-out") == f"a\n{trace}\nx"


def test_a_record_has_a_limit() -> None:
    assert whole("a", *["b"] * 5000).count("\n") == MAX_RECORD_LINES - 1


def test_no_more_is_read_than_the_record_has() -> None:
    def lines() -> object:
        yield "b"
        yield f"{CPP}c"
        raise AssertionError("read on")

    assert assemble(parse_line("a"), lines(), "raylet-out")[1] == "a\nb"  # type: ignore[arg-type]


@given(first=LINES, following=st.lists(LINES, max_size=8), role=st.sampled_from(ROLES))
def test_any_lines_make_a_record(first: str, following: list[str], role: str) -> None:
    line = parse_line(first, role)
    text, message = assemble(line, following, role)
    assert line.text.rstrip().startswith(text[: len(line.text)].rstrip()[:50])
    assert text.count("\n") <= line.text.count("\n") + sum(f.count("\n") + 1 for f in following)
    assert message == message.rstrip()


def test_where_a_record_of_cpp_begins() -> None:
    data = b"x\n" + CPP.encode() + b"y\nz"
    assert begins_record(data, 2)
    assert not begins_record(data, len(data) - 1)
    assert not begins_record(data, len(data) + 5)
