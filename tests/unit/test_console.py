"""Consoles as people paste them: prefixes, shapes and printed exceptions, and look-alikes that stay."""

from __future__ import annotations

import html
import json
import math
import textwrap
from pathlib import Path
from time import thread_time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raydoctor.capture.console import exceptions, files, prefixes, shape
from raydoctor.capture.console.numbering import Numbering
from raydoctor.capture.console.prefixes import HEADER
from raydoctor.capture.console.rewrite import Rewriter
from raydoctor.capture.open import add_driver_log, open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.values import Source
from raydoctor.read.records import parse_line

ROLES = frozenset({"raylet-out", "gcs-out", "core-driver", "kernel"})
OID, AID, TID = "a" * 56, "b" * 32, "c" * 48
RAYLET = "[2026-11-21 07:34:50,739 E 283 293] (raylet) node_manager.cc:3099: 1 Workers killed"
WARNING = "2026-11-21 07:35:03,092\tWARNING worker.py:2622 -- The node is full"


def rewritten(text: str, roles: frozenset[str] = frozenset()) -> list[str]:
    return [line for _, _, line in Rewriter(roles).rewrite(text.split("\n"))]


def shown(text: str) -> list[str]:
    """Without our header."""
    return [parse_line(line, "driver").text for line in rewritten(text)]


# ---------------------------------------------------------------- prefixes

PREFIXES = [
    ("", "E", "ERROR 10-23 12:00:00 [core.py:845] "),
    ("", "E", "[E1023 12:00:00.123456789 ProcessGroupNCCL.cpp:629] "),
    ("", "E", "ERROR:my.module:"),
    ("", "E", "2026-11-21 07:35:03,092 - app - ERROR - "),
    ("", "E", "2026-11-21 07:35:03.092 | ERROR    | __main__:main:12 - "),
    ("", "E", "2026-11-21 07:35:03.092 | ERROR    | __main__:main:12 | "),
    ("", "E", "2026-11-21 07:35:03 [error    ] "),
    ("", "E", "[2026-11-21 07:35:03,092][app.train][ERROR] - "),
    ("", "E", "2026/11/21 07:35:03 ERROR "),
    ("", "", "2026-11-21T07:35:03.123456789Z "),
    ("", "", "2026-11-21T07:35:03.123456789+00:00 stderr F "),
    ("", "", "[pod/raycluster-worker-1/ray-worker] "),
    ("", "", "2026-11-21 07:35:03 "),
    ("", "", "[2026-11-21 07:35:03 DP1 TP3] "),
    ("", "", "[rank3]: "),
    ("", "", "[default0]:"),
    ("", "", "[1,2]<stderr>: "),
    ("", "", "Nov 21 07:35:03 host7 python[812]: "),
    ("(train pid=12, ip=10.0.0.2) ", "", "(train pid=12, ip=10.0.0.2) "),
    ("(train pid=12) ", "", "(APIServer pid=9) (train pid=12) "),
    ("(EngineCore_DP0 pid=7) ", "E", "(EngineCore_DP0 pid=7) ERROR 10-23 12:00:00 [core.py:845] "),
    ("(f(x) pid=7) ", "", "2026-11-21 07:35:03 [rank1]: (f(x) pid=7) "),
]


@pytest.mark.parametrize(("kept", "level", "prefix"), PREFIXES, ids=[p[2] for p in PREFIXES])
def test_a_foreign_prefix_is_taken_off(kept: str, level: str, prefix: str) -> None:
    (line,) = rewritten(f"{prefix}the text itself")
    parsed = parse_line(line, "driver")
    assert parsed.message == "the text itself"
    assert parsed.text == f"{kept}the text itself"
    assert parsed.level == ("E" if level else "")


@pytest.mark.parametrize(
    "header", ["2023-06-07 15:26:09,573\tWARNING ", "2023-06-07 15:26:09,573 WARNING ", "WARNING "]
)
def test_what_old_raylets_pushed_is_their_echo(header: str) -> None:
    said = "A worker died or was killed while executing a task by an unexpected system error."
    (line,) = rewritten(f"{header}worker.py:1986 -- {said}")
    parsed = parse_line(line, "driver")
    assert (parsed.echo, parsed.message) == ("raylet", said)
    assert parsed.stamp == header[:23].removesuffix("WARNING ")


def test_what_a_driver_logs_itself_is_no_echo() -> None:
    line = "2023-06-07 15:26:09,573\tWARNING worker.py:1986 -- A worker was asked for"
    assert rewritten(line) == [line]


def test_a_rank_and_a_stamp_are_kept_as_facts() -> None:
    (line,) = rewritten("[rank3]: 2026-11-21 07:35:03.092 | ERROR    | a:b:12 - lost")
    parsed = parse_line(line, "driver")
    assert (parsed.fields["rank"], parsed.stamp) == ("3", "2026-11-21 07:35:03,092")


@pytest.mark.parametrize(
    "line",
    [
        RAYLET,
        WARNING,
        f"(raylet, ip=10.0.0.2) {RAYLET}",
        "(train pid=12) step 3 [repeated 2x across cluster]",
        "rate(x[5m]) > 0.1 and rate(x[5m:1m]) < 3",
        "shape [m, n] of [0m 30s]",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)",
        "[ERROR] is what the option `--level` prints",
        "(see page 3) pid=12 is only an example",
        "| Error | meaning |",
        "An ActorDiedError may be retried; GetTimeoutError: see the manual",
        "except ray.exceptions.GetTimeoutError as error:",
        "    raise ray.exceptions.GetTimeoutError('x')",
        "- `OutOfMemoryError`: the node ran out of memory",
        "class WorkerCrashedError(RayError):",
        "```python",
        "> quoted once",
        '{"loss": 0.5, "step": 3}',
        "2026 was a good year",
        "Error handling is described in chapter 3.",
        "[1] 4711 killed",
        "2026-11-21 07:35:03,092\tINFO loop.py:3 -- Worker info: 3 of 4",
        "\n".join(f"(train pid=7) epoch {n}" for n in range(5)),
        "a\tb\tc\nd\te\tf",
    ],
)
def test_text_that_only_looks_like_a_form_stays(line: str) -> None:
    assert rewritten(line) == line.split("\n")


def test_a_level_in_lower_case_after_a_word_is_text() -> None:
    (line,) = rewritten("2026-11-21 07:35:03 Worker info: Worker(")
    assert parse_line(line, "driver").text == "Worker info: Worker("


def test_a_rank_that_covers_only_a_traceback_is_kept() -> None:
    lines = rewritten("\n".join(f"[rank1]: {line}" for line in TRACE.split("\n")))
    assert {parse_line(line, "driver").fields["rank"] for line in lines} == {"1"}


def test_rays_header_counts_behind_a_rank() -> None:
    (line,) = rewritten(f"[rank1]: {RAYLET}")
    parsed = parse_line(line, "driver")
    assert (parsed.level, parsed.stamp[:10], parsed.fields["rank"]) == ("E", "2026-11-21", "1")


# ---------------------------------------------------------------- shapes

TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/a/train.py", line 7, in main\n'
    "    ray.get(ref)\n"
    "ValueError: no"
)


@pytest.mark.parametrize(
    ("pasted", "plain"),
    [
        ("\x1b[36m(f pid=1)\x1b[0m x", "(f pid=1) x"),
        ("[36m(f pid=1)[0m x", "(f pid=1) x"),
        ("\ufffd[36m(f pid=1)\ufffd[0m x", "(f pid=1) x"),
        ("\\u001b[36m(f pid=1)\\u001b[0m x", "(f pid=1) x"),
        ("10%|# | 1/9\r20%|## | 2/9(f pid=1) x", "10%|# | 1/9\n20%|## | 2/9\n(f pid=1) x"),
        (f"50%|#####|{RAYLET}", f"50%|#####|\n{RAYLET}"),
        (f"done.{TRACE}", f"done.\n{TRACE}"),
        (
            f"{'on cpu 9 ' * 7}***{WARNING.replace(chr(9), '  ')}",
            f"{'on cpu 9 ' * 7}***\n{WARNING}",
        ),
        (WARNING.replace("\t", "        "), WARNING),
        ("\n".join(f"    {line}" for line in TRACE.split("\n")), TRACE),
        ("\n".join(f"> {line}" for line in TRACE.split("\n")), TRACE),
        ("\n".join(f"E       {line}" for line in TRACE.split("\n")), TRACE),
        ("\n".join(f"worker-1  | {line}" for line in TRACE.split("\n")), TRACE),
        ("\n".join(f" 3: {line}" for line in TRACE.split("\n")), TRACE),
        (json.dumps({"log": TRACE + "\n", "stream": "stderr"}), TRACE),
        (json.dumps({"stdout_tail": TRACE}, indent=1), TRACE),
        (json.dumps({"outputs": [{"text": [f"{x}\n" for x in TRACE.split("\n")]}]}), TRACE),
        ("\ufeff" + TRACE.replace("\n", "\r\n\r\n"), TRACE.replace("\n", "\n\n")),
        (
            "\n".join(f"test\tRun it\t2026-11-21T07:35:03.1234567Z {x}" for x in TRACE.split("\n")),
            TRACE,
        ),
        (
            "\n".join(f"[rank0]: {x}" for x in f"(raylet) full\n{TRACE}".split("\n")),
            f"(raylet) full\n{TRACE}",
        ),
        (
            "\n".join(f"(Launcher pid=7) {x}" for x in f"(f pid=9) x\n{TRACE}".split("\n")),
            f"(f pid=9) x\n{TRACE}",
        ),
        ("\n".join(json.dumps({"line": x, "pod": "a"}) for x in ("a", "", "b")), "a\n\nb"),
        (
            json.dumps(
                [
                    {"textPayload": x, "timestamp": f"2026-11-21T07:35:0{n}Z"}
                    for n, x in enumerate(("b", "a"), 3)
                ][::-1],
                indent=2,
            ),
            "b\na",
        ),
        (
            json.dumps({"outputs": [{"traceback": [TRACE]}], "source": ["f()\n", "g()"]}, indent=1),
            TRACE,
        ),
        *(
            (
                "\n".join(
                    prefix.replace("7", str(n)) + x for n, x in enumerate(TRACE.split("\n"), 3)
                ),
                TRACE,
            )
            for prefix in (
                "[2026-11-27, 12:34:57 UTC] {subprocess.py:97} INFO - ",
                "12:34:57.897 | INFO    | Task run 'train-7' - ",
                "2026-11-07T12:34:57.000007Z 01O ",
                "26/11/07 12:34:57 INFO PythonDriver: ",
                "stdout: ",
                "2026-11-07T12:34:57.1234567Z ##[error]",
                "node-7: ",
                "│ ",
            )
        ),
        ("\n".join(f"(train, pid=12) {x}" for x in TRACE.split("\n")), TRACE),
        ("\n".join(f"`{x}`" for x in TRACE.split("\n")), TRACE),
        (
            "\n".join(
                f'17{n},"{x.replace(chr(34), chr(34) * 2)}"'
                for n, x in enumerate(TRACE.split("\n"))
            ),
            TRACE,
        ),
        (html.escape(TRACE).replace(" ", "\xa0"), TRACE),
        (f"<pre>{html.escape(TRACE)}</pre>", TRACE),
        (f"<details>\n\n```text\n{TRACE}\n```\n</details>", f"\n{TRACE}"),
        ("\n".join(x.strip() for x in TRACE.split("\n")), TRACE),
        (TRACE.replace('  File "', "File \u201c").replace('",', "\u201d,"), TRACE),
        (
            "\n".join(f"(f pid=1) {x.strip()}" for x in TRACE.split("\n")),
            "\n".join(f"(f pid=1) {x}" for x in TRACE.split("\n")),
        ),
        (" ".join(x.strip() for x in TRACE.split("\n")), TRACE),
        (
            " ".join(f"(f pid=1) {x.strip()}" for x in TRACE.split("\n")),
            "\n".join(f"(f pid=1) {x}" for x in TRACE.split("\n")),
        ),
        (json.dumps(TRACE), TRACE),
        (f"{{'ok': False, 'error': {TRACE!r}}}", f"{{'ok': False, 'error':\n{TRACE}"),
        (f"result: {TRACE!r}"[:-1], "result:\n" + TRACE),
    ],
)
def test_a_shape_is_undone(pasted: str, plain: str) -> None:
    assert shown(pasted) == plain.split("\n")


def test_a_notebooks_traceback_of_a_task_is_converted() -> None:
    head = "RayTaskError(ValueError)                  Traceback (most recent call last)"
    frame = "File /app/a.py:12, in main(x)"
    assert shown(f"{head}\n{frame}\nValueError: x") == [
        "Traceback (most recent call last):",
        '  File "/app/a.py", line 12, in main',
        "ValueError: x",
    ]


def test_drawn_tracebacks_become_pythons() -> None:
    rich = (
        "╭──────── Traceback (most recent call last) ────────╮\n"
        "│ /a/train.py:7 in main                             │\n"
        "│                                                   │\n"
        "│ ❱ 7     ray.get(ref)                              │\n"
        "╰───────────────────────────────────────────────────╯\n"
        "ValueError: no"
    )
    ipython = (
        "ValueError                                Traceback (most recent call last)\n"
        "File /a/train.py:7, in main()\n"
        "      6 ref = f.remote()\n"
        "----> 7 ray.get(ref)\n"
        "\n"
        "ValueError: no"
    )
    first, frame, _, last = TRACE.split("\n")
    assert shown(rich) == shown(ipython) == [first, frame, last]


@pytest.mark.parametrize("cut", ["Tra", "Traceback (most rec", "Traceback (most recent call last)"])
def test_a_notebooks_traceback_that_a_paste_cuts_off_names_its_exception(cut: str) -> None:
    heading = f"{'-' * 75}\nStepError                 {cut}"
    assert shown_lines(*heading.split("\n"))[1:] == [
        "Traceback (most recent call last):",
        "StepError",
    ]
    if cut.endswith(")"):
        assert shown_lines(*heading.split("\n"), "Fil")[2:] == ["StepError"]
    frames = f"{heading}\nCell In[3], line 5\n----> 5 ray.get("
    if cut.endswith(")"):
        assert shown_lines(*frames.split("\n"))[1:] == [
            "Traceback (most recent call last):",
            '  File "Cell In[3]", line 5, in <module>',
            "StepError",
        ]


@pytest.mark.parametrize(
    ("cell", "file"),
    [
        ("<ipython-input-3-0b22dc> in <module>()", "~/lib/python3.7/site-packages/ray/worker.py"),
        ("<ipython-input-3-0b22dc> in <module>", "/venv/ray/worker.py"),
        ("<ipython-input-3-0b22dc> in <module>", "<timed exec>"),
        (
            "[<ipython-input-3-0b22dc>](https://localhost:8080/#) in <cell line: 8>()",
            "[/venv/ray/worker.py](https://localhost:8080/#)",
        ),
    ],
)
def test_an_older_notebooks_traceback_is_converted(cell: str, file: str) -> None:
    lines = (
        "StepError                                 Traceback (most recent call last)",
        cell, "      1 import ray", "----> 2 ray.init()", "      3 ", "", "4 frames",
        f"{file} in init(address, num_cpus, logging_level)", "   1382         else:",
        '-> 1383             raise StepError("no"', "   1384 ", "", "StepError: no",
    )  # fmt: skip
    plain = file.partition("](")[0].lstrip("[")
    assert shown_lines(*lines) == [
        "Traceback (most recent call last):",
        '  File "<ipython-input-3-0b22dc>", line 2, in <module>',
        f'  File "{plain}", line 1383, in init',
        "StepError: no",
    ]
    assert shown_lines(*lines[:-4])[-1] == "StepError"


def test_a_table_with_such_a_column_stays() -> None:
    table = ["StepError     T", "StepError     Traceback lost"]
    assert shown_lines(table[0], "step 7") == [table[0], "step 7"]
    assert shown_lines(table[1]) == [table[1]]


def test_the_last_line_may_be_one_that_was_cut() -> None:
    text = f"(f pid=12) {'abcdefg' * 40}"[:240]
    wrapped = [text[at : at + 80] for at in range(0, 240, 80)]
    assert rewritten("\n".join(wrapped)) == [text]


def test_lines_cut_at_the_last_column_are_joined() -> None:
    text = "\n".join(f"(f pid=1{n}) {'abcdefgh' * 14} number {n}" for n in range(9))
    wrapped = "\n".join(
        line[at : at + 80] for line in text.split("\n") for at in range(0, len(line), 80)
    )
    assert rewritten(wrapped) == text.split("\n")


def test_lines_that_a_mail_broke_between_words_are_joined() -> None:
    words = [f"{letter * (3 + n % 5)}" for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz" * 2)]
    text = "\n".join(f"{name} {' '.join(words)}." for name in ("alpha", "beta", "gamma", "delta"))
    wrapped = "\n".join(x for line in text.split("\n") for x in textwrap.wrap(line, 72))
    assert rewritten(wrapped) == text.split("\n")


@pytest.mark.parametrize(
    "text",
    [
        # A program prints what stands in front of a quoted traceback in each of its lines.
        "\n".join(f'note {n}: "Traceback (most recent call last):" was seen' for n in range(5)),
        "\n".join(["a", "b", "c", "saw: Traceback (most recent call last):"]),
        'print("File \\"a.py\\", line 3")',
        'grep "File \\"/a.py\\", line 3, in f" log',
        "\n".join(["x < y &co; z", "a & b", "&ltx"]),
    ],
)
def test_text_without_such_a_shape_stays(text: str) -> None:
    assert shown(text) == text.split("\n")


@pytest.mark.parametrize(
    "line", ["step {:04} of the training, loss 0.1234, and so on for the whole length", "+{:-<78}+"]
)
def test_lines_of_equal_length_are_not_joined(line: str) -> None:
    lines = [line.format(n) for n in range(30)]
    assert rewritten("\n".join(lines)) == lines


def test_a_label_that_a_paste_cuts_off_is_removed() -> None:
    assert shown("(Worker pid=7) ValueError: x\n(Work") == ["(Worker pid=7) ValueError: x"]
    assert shown("(Worker pid=7) loading\n(done") == ["(Worker pid=7) loading", "(done"]
    assert shown("(Work") == ["(Work"]


def test_the_newest_line_first_is_turned_round() -> None:
    lines = [f"2026-11-21 07:35:0{n},092\tINFO worker.py:1 -- {n}" for n in range(9)]
    assert rewritten("\n".join(reversed(lines))) == lines


def test_mixed_tracebacks_are_sorted() -> None:
    lines = TRACE.split("\n")
    mixed = [f"(f pid={pid}) {line}" for line in lines for pid in (1, 2)]
    assert rewritten("\n".join(mixed)) == [f"(f pid={p}) {line}" for p in (1, 2) for line in lines]


def test_a_daemons_records_are_recognized_by_their_content() -> None:
    text = f"$ cat raylet.out\n{RAYLET}\nits second line\n{WARNING}\n[   12.345678] oom-kill: x"
    reply = [(role, number) for role, number, _ in Rewriter(ROLES).rewrite(text.split("\n"))]
    assert reply == [("", 1), ("raylet-out", 2), ("raylet-out", 3), ("", 4), ("kernel", 5)]
    for kernel in ("Nov 21 07:35:03 h7 kernel: oom", "2026-11-21T07:35:03Z h7 kernel: oom"):
        assert Rewriter(ROLES).rewrite([kernel]) == [("kernel", 1, kernel)]


# ---------------------------------------------------------------- JSON

TIME = "2026-11-21 07:35:03,092"
SECONDS = 1795246503
RAY_JSON = {"asctime": TIME, "levelname": "ERROR", "message": "step failed", "filename": "train.py"}
RAISED_IN_MAIN = {"filename": "/a/train.py", "lineno": 7, "name": "main"}


def documents(*records: object) -> str:
    return "\n".join(json.dumps(record) for record in records)


@pytest.mark.parametrize(
    "pasted",
    [
        documents({**RAY_JSON, "job_id": "01000000", "exc_text": TRACE}),
        documents({"exc_info": TRACE, **RAY_JSON}),
        documents(
            {"exception": TRACE, "event": "step failed", "level": "error", "timestamp": f"{TIME}Z"}
        ),
        documents({"severity": "ERROR", "jsonPayload": {"message": "step failed"}, "timestamp": TIME})
        + f"\n{TRACE}",
        documents({"log": documents({**RAY_JSON, "exc_text": TRACE}) + "\n", "stream": "stderr"}),
        documents({"streams": [{"stream": {}, "values": [
            [f"{SECONDS}000000002", TRACE], [f"{SECONDS}000000001", documents(RAY_JSON)]]}]}),
        documents([
            {"timestamp": SECONDS * 1000 + 2, "message": TRACE},
            {"timestamp": SECONDS * 1000 + 1, "message": f"{TIME} ERROR: step failed"}]),
        documents({"text": f"{TIME} | ERROR    | a:main:7 - step failed\n{TRACE}\n",
                   "record": {"message": "step failed", "level": {"name": "ERROR"}}}),
    ],
    ids=["Ray", "exc_info", "structlog", "Stackdriver", "docker", "Loki", "CloudWatch", "loguru"],
)  # fmt: skip
def test_a_record_in_json_keeps_its_level_and_time(pasted: str) -> None:
    first, *rest = (parse_line(line, "driver") for line in rewritten(pasted))
    assert (first.message, first.level, first.stamp) == ("step failed", "E", TIME)
    assert [line.text for line in rest] == TRACE.split("\n")


def test_a_task_name_with_brackets_of_its_own_is_a_prefix() -> None:
    (line,) = rewritten("(run(evaluate)::eval/step-7334) pid=12, ip=10.0.0.2) step 3")
    parsed = parse_line(line, "driver")
    assert (parsed.pid, parsed.ip, parsed.message) == (12, "10.0.0.2", "step 3")
    assert rewritten("(see (a) and b pid=12) is a note") == ["(see (a) and b pid=12) is a note"]


def test_json_behind_the_prefix_of_a_process_is_its_line() -> None:
    line = (
        f"(train pid=12, ip=10.0.0.2) {documents({**RAY_JSON, 'task_id': TID, 'exc_text': TRACE})}"
    )
    shown = [parse_line(each, "driver") for each in rewritten(f"2026-11-21T07:35:03Z {line}")]
    assert {(each.who, each.pid, each.ip) for each in shown} == {("train", 12, "10.0.0.2")}
    assert (shown[0].message, shown[0].level) == ("step failed", "E")
    assert [each.message for each in shown[1:]] == TRACE.split("\n")


def test_a_daemons_json_is_read_as_its_text_log() -> None:
    record = {"asctime": TIME, "levelname": "E", "message": "Killing it.", "component": "raylet",
              "filename": "node_manager.cc", "lineno": 3099, "node_id": "aa"}  # fmt: skip
    text = f"[{TIME} E 0 0] (raylet) node_manager.cc:3099: Killing it. node_id=aa"
    assert Rewriter(ROLES).rewrite([documents(record)]) == [("raylet-out", 1, text)]


def test_a_record_of_serve_in_json_is_read_as_its_text_log() -> None:
    record = {"levelname": "WARNING", "asctime": TIME, "component_name": "controller",
              "component_id": "12", "message": "deployment_state.py:2152 - It waits."}  # fmt: skip
    assert shown(documents(record)) == [f"WARNING {TIME} controller 12 -- It waits."]


def test_a_structured_traceback_becomes_pythons() -> None:
    stack = {"exc_type": "ValueError", "exc_value": "no", "frames": [RAISED_IN_MAIN]}
    first, frame, _, last = TRACE.split("\n")
    assert shown(documents({"event": "x", "exception": [stack]})) == ["x", first, frame, last]


@pytest.mark.parametrize(("number", "stamp"), [
    (SECONDS, "2026-11-21 07:35:03,000"), (SECONDS + 0.5, "2026-11-21 07:35:03,500"),
    (SECONDS * 1000 + 92, TIME), (f"{SECONDS}092000000", TIME), (f"{TIME[:-4]}.0921Z", TIME),
    (12, ""), (True, ""), ("soon", ""), (-5, ""), (1e30, ""), (float("inf"), ""), (None, ""),
])  # fmt: skip
def test_times_of_any_unit_are_read(number: object, stamp: str) -> None:
    (line,) = rewritten(json.dumps({"ts": number, "level": "error", "msg": "lost"}))
    assert parse_line(line, "driver").stamp == stamp


@pytest.mark.parametrize(
    "line",
    [
        documents(RAY_JSON),  # of Ray and in one line: read as it is
        documents({"loss": 0.5, "level": "INFO"}),
        documents([1, 2, ["3", 4]]),
        'config: {"lr": 0.1, "sizes": [1, 2]}',
        '(f pid=1) {"loss": 0.5}',
        "[{not json}]",
        '  "lr": "0.1",',
        'print(f"{x}": "y")',
    ],
)
def test_json_without_text_for_people_stays(line: str) -> None:
    assert rewritten(line) == [line]


def test_a_printed_document_never_loses_its_texts() -> None:
    """Those of Loki's streams have no key in their line."""
    values = [[f"179524650300000000{n}", text] for n, text in ((1, "ValueError: 1"), (0, "begin"))]
    answer = {"status": "success", "data": {"result": [{"stream": {}, "values": values}]}}
    assert shown_lines(*json.dumps(answer, indent=2).split("\n")) == ["begin", "ValueError: 1"]


def test_members_of_json_over_several_lines_are_taken_out() -> None:
    entry = {"severity": "ERROR", "textPayload": "ValueError: no", "labels": {"pod": "head"}}
    assert rewritten(json.dumps([entry], indent=2)) == ["ValueError: no"]
    cut_off = json.dumps([entry], indent=2)[:-1]
    assert "ValueError: no" in rewritten(cut_off)
    config = json.dumps({"lr": 0.1, "sizes": [1, 2]}, indent=2)
    assert rewritten(config) == config.split("\n")


# ---------------------------------------------------------------- printed exceptions

RAISED = {
    "GetTimeoutError": "Get timed out: some object(s) not ready.",
    "WorkerCrashedError": "The worker died unexpectedly while executing this task.",
    "ActorDiedError": "The actor died unexpectedly before finishing this task.",
    "ActorUnavailableError": f"The actor {AID} is unavailable: it restarts.",
    "ObjectLostError": f"Failed to retrieve object {OID}. To see more, set RAY_x=1",
    "OutOfMemoryError": "Task was killed due to the node running low on memory.",
    "NodeDiedError": "The node died unexpectedly while executing this task",
    "RuntimeEnvSetupError": "Failed to set up runtime environment.",
    "ObjectStoreFullError": f"Failed to put object {OID} in object store because it is full.",
    "OutOfDiskError": "Local disk is full",
    "TaskCancelledError": f"Task: {TID} was cancelled.",
    "LocalRayletDiedError": "The task's local raylet died.",
    "TaskUnschedulableError": "The task is not schedulable: no node",
    "ActorUnschedulableError": "The actor is not schedulable: no node",
    "RayChannelTimeoutError": "System error: Timed out waiting for object available to read.",
}
SHAPES = {
    "print": "{text}",
    "print of an f-string": "it failed: {text}",
    "repr": '{name}("{text}")',
    "repr, qualified": "ray.exceptions.{name}('{text}')",
    "class": "<class 'ray.exceptions.{name}'> {text}",
    "name": "{name}: {text}",
    "name behind words": "run 3 failed: {name}: {text}",
    "logging": "ERROR:root:{name}: {text}",
    "logging with a stamp": "2026-11-21 07:35:03,092 - app - ERROR - ray.exceptions.{name}: {text}",
    "loguru": "2026-11-21 07:35:03.092 | ERROR    | __main__:main:12 - {name}: {text}",
    "structlog": "2026-11-21 07:35:03 [error    ] {text}",
    "of a worker": "(train pid=12) caught {name}: {text}",
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", RAISED)
def test_a_printed_exception_is_spelled_out(name: str, shape: str) -> None:
    line = SHAPES[shape].format(name=name, text=RAISED[name])
    parsed = [parse_line(each, "driver") for each in rewritten(line)]
    assert parsed[-1].message == f"ray.exceptions.{name}: {RAISED[name]}"
    assert parsed[-1].fields["printed"] == "yes"


def test_an_uncaught_exception_is_not_marked_as_printed() -> None:
    text = TRACE.replace("ValueError: no", f"GetTimeoutError: {RAISED['GetTimeoutError']}")
    last = parse_line(rewritten(text)[-1], "driver")
    assert last.text.startswith("ray.exceptions.GetTimeoutError: ")
    assert "printed" not in last.fields


# ---------------------------------------------------------------- properties

WORDS = st.sampled_from(
    [
        *("(f pid=1) ", "[rank1]: ", "ERROR 10-23 12:00:00 [a.py:1] ", "\x1b[31m", "[0m", "\r", "\t"),
        *("GetTimeoutError: ", "Get timed out: some object(s) not ready.", "\\n", '{"log": "', '"}'),
        *('{"ts": 1, "msg": "', '", "level": "error"}', "[{", "}]", '": "'),
        *("\n", "    ", "> ", "E   ", "Traceback (most recent call last):", " | ", "2026-11-21 07:35:03 "),
        *(RAYLET, WARNING, HEADER, "│", "word", "[m", "\ufffd", "12", "é"),
    ]
)  # fmt: skip


@given(st.lists(WORDS, max_size=25).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_rewritten_into_lines_of_the_original(text: str) -> None:
    raws = text.split("\n")
    for role, number, line in Rewriter(ROLES).rewrite(raws):
        assert role in {"", *ROLES}
        assert 1 <= number <= len(raws)
        assert not set(line) & set("\n\r\x1b\0")
        assert line.count(HEADER) in (0, 2)


@given(st.lists(WORDS, max_size=8).map("".join))
@example("TimeoutError: (f pid=1) \rTimeoutError: \rTimeoutError: ")
@settings(max_examples=300, deadline=None)
def test_what_was_rewritten_stays(text: str) -> None:
    """Without printed exceptions: what stands before one is kept as well."""
    once = [parse_line(line, "driver").text for line in rewritten(text.replace("Get", ""))]
    if once and not any(
        each[:1] in (" ", "\t", ">", "|", "{", "E") or "\\n" in each for each in once
    ):
        again = [parse_line(line, "driver").text for line in rewritten("\n".join(once))]
        assert again == once


@given(st.text(alphabet="abcdef XYZ.,;-=()0123\n", max_size=200))
def test_plain_text_stays(text: str) -> None:
    lines = text.split("\n")
    if not any(line[:1] in (" ", "") for line in lines):
        assert rewritten(text) == lines


# ---------------------------------------------------------------- files


def test_a_numbering_is_a_list_of_numbers() -> None:
    numbers, made = [1, 2, 3, 3, 3, 7, 8, 2], Numbering()
    for number in numbers:
        made.append(number)
    assert list(made) == numbers
    assert made[-1] == 2
    assert made[1:4] == [2, 3, 3]


def test_lines_have_the_numbers_of_the_original(tmp_path: Path) -> None:
    wrapped = json.dumps({"log": "one\ntwo\nthree"})
    log = tmp_path / "out.txt"
    log.write_text(f"{wrapped}\nplain\nGetTimeoutError: {RAISED['GetTimeoutError']}\n")
    with open_capture(str(log)) as capture:
        report = engine.run(capture)
        (source,) = capture.sources
    assert [source.line(n) for n in range(1, 6)] == [1, 1, 1, 2, 3]
    assert {link.event.line for d in report.diagnoses for link in d.chain} == {3}


def test_lines_that_are_shown_newest_first_are_compared_in_their_order(tmp_path: Path) -> None:
    log = tmp_path / "out.txt"
    stamped = [f"2026-11-21T07:35:0{n}Z {x}" for n, x in enumerate((WARNING, "a", RAYLET, "b"))]
    log.write_text("\n".join(reversed(stamped)))
    with open_capture(str(log)) as capture:
        sources = capture.sources
    places = [source.place(n) for source in sources for n in range(1, len(source.places) + 1)]
    assert len(sources) == 2
    assert sorted(places) == [1, 2, 3, 4]
    assert [sources[0].line(place) for place in sorted(places)] == [4, 3, 2, 1]


def test_a_driver_log_that_is_added_later_is_rewritten(tmp_path: Path) -> None:
    (tmp_path / "raylet.out").write_text(f"{RAYLET}\n")
    (tmp_path / "own").write_text("[rank3]: [0;31mlost[0m\n")
    with open_capture(str(tmp_path)) as capture:
        add_driver_log(capture, str(tmp_path / "own"))
        (driver,) = (s for s in capture.sources if s.role == "driver")
        assert Path(capture.files[driver]).read_text() == f"{HEADER}||3|{HEADER}lost\n"


def test_a_files_own_header_is_not_believed(tmp_path: Path) -> None:
    forged = f"{HEADER}E|2026-11-21 07:35:03,092|3|printed{HEADER}lost\n"
    (tmp_path / "a.txt").write_text(forged + "x" * 80 + "\n")
    with open_capture(str(tmp_path / "a.txt")) as capture:
        assert HEADER not in Path(*capture.files.values()).read_text()


def test_blocks_end_where_a_record_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BLOCK", 1000)
    text = f"{WARNING}\n{TRACE}\n" * 200
    (tmp_path / "a").write_text(text)
    with (tmp_path / "a").open("rb") as stream:
        blocks = list(files._blocks(stream))
    assert [line for block in blocks for line in block] == text.splitlines()
    assert len(blocks) > 10
    assert all(block[0].startswith(("2026-", "Traceback")) for block in blocks)


def test_a_few_texts_are_read_as_consoles_and_many_are_not(tmp_path: Path) -> None:
    for name in ("paste.txt", "28.jsonl"):
        (tmp_path / name).write_text(f"GetTimeoutError: {RAISED['GetTimeoutError']}\n")
    with open_capture(str(tmp_path)) as capture:
        assert {s.path for s in capture.sources} == {"paste.txt", "28.jsonl"}
        assert engine.run(capture).gaps
    for n in range(30):
        (tmp_path / f"{n}.txt").write_text("x")
    with pytest.raises(Exception, match="no Ray logs in"):
        open_capture(str(tmp_path))


# ---------------------------------------------------------------- attacks

HOSTILE = [
    *("[", "(", "(a", "(pid=1) ", "[3", "\x1b[", " ", "\t", "> ", "| ", "│", "'", '"', ")", "\r"),
    *("Error", "GetTimeoutError: ", "GetTimeoutError('", "died", "<class '", "\\n", '{"log":', "[["),
    *("Traceback (most recent call last):", "[2026-11-21 07:34:50,739 E 1 1] ", "a" * 60 + " pid=1 "),
    *("{\n", "[\n", "{\n}\n", '{\n "msg": "x"\n}\n', '{"', '": "', '[{"a": ', '{"msg": "x"} ', '(a pid=1) {"', '"a.'),
    *("(" + "a" * 299 + "(", "ERROR 10-23 12:00:00 ", "[rank1]: ", "Failed to ", "x:1 in ", "\\\\"),
]  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_no_text_is_slow(unit: str) -> None:
    long = unit * (250_000 // len(unit))
    lines = [long[at : at + 8000] for at in range(0, len(long), 8000)]
    for text in ([long], lines, [f"(f pid=1) {long}"], long.split("\n")[:25_000]):
        began = thread_time()
        out = Rewriter(ROLES).rewrite(text)
        assert thread_time() - began < 0.5
        assert sum(len(line) for _, _, line in out) < 10_000_000


@pytest.mark.parametrize(
    "text",
    [
        "x'" * 300_000 + "Traceback (most recent call last):\\n",
        ("=RayError(a(" * 160 + "))" * 6 + " " * 14_000 + "x\n") * 20,
    ],
)
def test_quotes_and_parentheses_are_searched_once(text: str) -> None:
    began = thread_time()
    Rewriter(ROLES).rewrite(text.split("\n"))
    assert thread_time() - began < 0.7


def test_no_prefix_is_kept_without_bound() -> None:
    Rewriter(ROLES).rewrite([f"(f{n} pid={n}) x" for n in range(20_000)])
    assert len(prefixes._PARSED) <= 10_000


# ---------------------------------------------------------------- forms of chats, editors and terminals

OOM = (
    "(raylet) node_manager.cc:3007: 2 Workers (tasks / actors) killed due to memory pressure (OOM), "
    "0 Workers crashed due to other reasons at node (ID: 5f, IP: 10.0.0.2) over the last time period."
)


def shown_lines(*lines: str) -> list[str]:
    return [text for _, _, text in Rewriter(frozenset()).rewrite(list(lines))]


@pytest.mark.parametrize("escape", shape._WRITTEN)
def test_colours_that_are_written_out_are_removed(escape: str) -> None:
    line = f"{escape}[33m(raylet){escape}[0m The node is full"
    assert shown_lines(line) == ["(raylet) The node is full"]
    assert shown_lines(f"{escape}[1;31mERROR: boom") == ["ERROR: boom"]


def test_a_word_that_ends_in_esc_is_no_colour() -> None:
    assert shown_lines("ORDER BY a DESC[A]") == ["ORDER BY a DESC[A]"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("36m(Trainer pid=7)0m step 2", "(Trainer pid=7) step 2"),
        ("36m(Core pid=7)0m(Wrapper pid=9)0m step 2", "(Core pid=7)(Wrapper pid=9) step 2"),
        ("ran 5m(Trainer pid=7) step 2", "ran 5m(Trainer pid=7) step 2"),
        ("f(a pid=7)0m is no prefix", "f(a pid=7)0m is no prefix"),
        ("[[A(Trainer pid=7) step 2", "(Trainer pid=7) step 2"),
        ("[A] step 2", "[A] step 2"),
    ],
)
def test_what_is_left_of_codes_around_a_prefix_is_removed(line: str, shown: str) -> None:
    assert shape.uncoloured(line) == shown
    assert line == shown or not shape.is_simple(line)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("ray_Trainer:step() (pid=7, host=a)", "ray::Trainer.step() (pid=7, host=a)"),
        ("ray_worker:shop.load() (pid=7, ip=10.0.0.2)", "ray::shop.load() (pid=7, ip=10.0.0.2)"),
        ("ray_worker (pid=7, host=a)", "ray::task() (pid=7, host=a)"),
        ("(pid=7) ray_Trainer:step() (pid=7, ip=a)", "(pid=7) ray::Trainer.step() (pid=7, ip=a)"),
        ("the log of ray_Trainer (pid=7, ip=a)", "the log of ray_Trainer (pid=7, ip=a)"),
    ],
)
def test_a_call_of_old_ray_is_named_as_later_ones(line: str, shown: str) -> None:
    assert exceptions.with_call(line) == shown


def test_a_header_whose_message_begins_on_the_next_line_stays_a_header() -> None:
    header = "2026-11-21 14:33:08,082 ERROR services.py:1411 --"
    assert shown_lines(header, "The last 20 lines") == [
        "2026-11-21 14:33:08,082\tERROR services.py:1411 -- ",
        "The last 20 lines",
    ]


def test_skypilots_logger_is_read() -> None:
    line = "E 11-21 17:42:55 provisioner.py:740] ⨯ Failed to set up"
    assert shown_lines(line) == ["\x1eE|||\x1eFailed to set up"]


@pytest.mark.parametrize(
    "line",
    [
        "`ValueError: no rows`",
        "- `ValueError: no rows`",
        "- ValueError: no rows",
        "> ValueError: no rows",
        '"ValueError: no rows',
    ],
)
def test_markdown_around_an_error_is_removed(line: str) -> None:
    assert shown_lines(line) == ["ValueError: no rows"]


@pytest.mark.parametrize(
    "line", ["- `ValueError`: raised for no rows", "- epoch 3", '"quoted" text']
)
def test_other_markdown_stays(line: str) -> None:
    assert shown_lines(line) == [line]


@pytest.mark.parametrize("form", ["{} {}", "{}\t{}", "{}| {}", "{}: {}", "  {} {}"])
@pytest.mark.parametrize("step", [1, -1])
def test_line_numbers_are_removed(form: str, step: int) -> None:
    lines = [
        "(f pid=1) Traceback (most recent call last):",
        '(f pid=1)   File "a"',
        "(f pid=1) KeyError: 1",
    ]
    numbered = [form.format(98 + step * n, line) for n, line in enumerate(lines)]
    assert shown_lines(*numbered) == lines


def test_counted_output_of_a_program_stays() -> None:
    lines = [f"{n} apples" for n in range(5)]
    assert shown_lines(*lines) == lines


@pytest.mark.parametrize("width", [70, 100, 116])
def test_a_message_that_a_chat_broke_is_joined(width: int) -> None:
    pieces = [OOM[at : at + width] for at in range(0, len(OOM), width)]
    expected = OOM.replace("node_manager.cc:3007: ", "")
    assert shown_lines(*pieces, "epoch 3") == [expected, "epoch 3"]


def test_a_log_on_one_line_is_split() -> None:
    line = (
        "2026-11-21 07:35:03,092 ERROR loop.py:12 -- no loss Traceback (most recent call last): "
        'File "/app/a.py", line 3, in main return step() File "/app/a.py", line 9, in step ValueError: no loss'
    )
    assert shown_lines(line)[1:] == [
        "Traceback (most recent call last):",
        '  File "/app/a.py", line 3, in main',
        "    return step()",
        '  File "/app/a.py", line 9, in step',
        "ValueError: no loss",
    ]


def test_a_paste_that_begins_within_a_traceback_gets_its_beginning() -> None:
    frame = '  File "/app/a.py", line 9, in step'
    begin = "Traceback (most recent call last):"
    assert shown_lines("    return step()", frame, "KeyError: 1")[1:] == [
        begin,
        frame,
        "KeyError: 1",
    ]
    assert shown_lines("ray::step() (pid=7)", frame) == ["ray::step() (pid=7)", frame]


@pytest.mark.parametrize("indentation", ["\t", "    ", ""])
def test_the_details_of_a_dead_actor_are_indented(indentation: str) -> None:
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    details = ("class_name: Trainer", f"actor_id: {AID}", "pid: 12")
    pasted = [f"{indentation}{line}" for line in details]
    assert shown_lines(died, *pasted) == [died, *(f"\t{line}" for line in details)]
    assert shown_lines("the program's own list", *details) == ["the program's own list", *details]


def test_the_sentences_of_a_workers_death_are_one_message() -> None:
    died = "The actor is dead because its worker process has died."
    sentences = ("Worker exit type: SYSTEM_ERROR", "Worker exit detail: End of file.")
    assert shown_lines(died, *sentences) == [" ".join((died, *sentences))]
    assert shown_lines("the workers:", *sentences) == ["the workers:", *sentences]


def test_frames_without_indentation_and_comma_get_it() -> None:
    frames = ('File "/app/a.py", line 9 in step', 'File "/app/a.py", line 7 in run')
    assert shown_lines(*frames) == [f"  {frame}" for frame in frames]
    assert shown_lines(*(f" {frame}" for frame in frames)) == [f"  {frame}" for frame in frames]


def test_a_function_that_a_terminal_broke_off_its_frame_is_joined() -> None:
    frame = '  File "/app/a.py", line 9, in '
    assert shown_lines(frame, "step", "    return x")[-2:] == [f"{frame}step", "    return x"]
    assert shown_lines(frame, "ValueError: x")[-1] == "ValueError: x"


@pytest.mark.parametrize("before", ["", "(train pid=12) ", "[rank0]: "])
def test_the_name_of_an_exception_within_which_a_paste_ends_is_completed(before: str) -> None:
    cut, whole = f"{before}ray.exceptions.OutOfMe", "ray.exceptions.OutOfMemoryError: "
    assert whole in shown_lines("x", cut)[-1]
    assert whole not in "\n".join(shown_lines("x", cut, "y"))


@pytest.mark.parametrize("before", ["", "(train pid=12) ", "[rank0]: "])
@pytest.mark.parametrize(
    ("cut", "name"),
    [
        ("RayTaskError(OSError):", "task…"),
        ("RayTaskError(OSError): r", "task…"),
        ("RayTaskError: ray::", "task…"),
        ("RayTaskError(OSError): ray::Loader.re", "Loader.re…"),
        ("RayTaskError(OSError): ray::Loader.read(", "Loader.read"),
        ("RayTaskError: ray::Loader.read() (pi", "Loader.read"),
    ],
)
def test_a_failed_call_within_which_a_paste_ends_is_completed(
    before: str, cut: str, name: str
) -> None:
    end = f"ray.exceptions.{cut.partition(':')[0]}: ray::{name}() (pid="
    assert shown_lines("x", f"{before}ray.exceptions.{cut}")[-1].endswith(end)
    assert end not in "\n".join(shown_lines("x", f"{before}ray.exceptions.{cut}", "y"))


@pytest.mark.parametrize(
    "line",
    [
        "ray.exceptions.RayTaskError: rows are missing",
        "ray.exceptions.RayTaskError(OSError): ray::Loader.read() (pid=7, ip=10.0.0.2)",
        "    except ray.exceptions.RayTaskError(OSError): r",
        "see RayTaskError(OSError): ray::Loader.re",
        "ray.exceptions.Actor",  # several begin so
        "ray.exceptions.OutOfMemoryError",
        "    except ray.exceptions.OutOfMe",
        "raise ray.exceptions.OutOfMe",
        "ray.exceptions.OutOfLuck",
    ],
)
def test_other_ends_of_a_paste_stay(line: str) -> None:
    assert exceptions.completed(line) == line


def test_the_daemons_of_windows_are_rays_daemons() -> None:
    record = "[2026-11-21 07:34:50,739 I 283 293] (raylet{}) store.cc:5: at capacity"
    assert shown_lines(record.format(".exe")) == [record.format("")]
    assert shown_lines("(raylet.exe) dlmalloc.cc:129:  Check failed: x") == shown_lines(
        "(raylet) dlmalloc.cc:129:  Check failed: x"
    )


def test_a_pushed_message_without_its_prefix_is_the_raylets() -> None:
    text = "A worker died or was killed while executing a task by an unexpected system error."
    assert shown_lines(text) == [f"(raylet) {text}"]


def test_the_quick_tests_for_an_exception_miss_none() -> None:
    names = exceptions._NAME.split("|")
    assert [n for n in names if not any(part in n for part in exceptions._IN_NAMES)] == []
    assert [n for n in names if not exceptions.may_hold(f"{n}('x')")] == []
    texts = list(exceptions._WORDS.values())
    assert [t for t in texts if not any(part in t for part in exceptions._IN_WORDS)] == []


def test_samples_of_a_large_output_may_begin_within_a_traceback(tmp_path: Path) -> None:
    """Rewriting it, for a beginning that no paste lost, would take seconds for each 10 MB."""
    unit = 'Traceback (most recent call last):\n  File "/app/a.py", line 1, in f\n    raise value\nValueError: 1\nstep\n'
    file = tmp_path / "driver.log"
    file.write_text(unit * (files._WHOLE // len(unit) + 1))
    source = Source("driver.log", "driver", size=file.stat().st_size)
    assert files._rewritten(source, str(file), tmp_path / "out", [], math.inf) == {
        source: str(file)
    }
    assert not (tmp_path / "out").exists()


REPORT = """ERROR  disk-full  2026-11-21 11:12:40
The disk of /tmp/ray is full: 1 OutOfDiskError
in the driver

  Evidence
    driver.log:5  the driver got OutOfDiskError
      ray.exceptions.OutOfDiskError: Local disk is full

Missing evidence
  raylet.out: no raylet log in the capture

Read driver.log: 1 file (69 B), Ray of unknown version; read in 0.63 s.
Next: raydoctor explain disk-full
"""


def test_a_quoted_report_of_this_program_is_no_evidence() -> None:
    assert rewritten(f"step 1\n{REPORT}step 2") == ["step 1", "step 2"]
    assert rewritten(f"step 1\n{REPORT.partition('Missing')[0]}step 2") == ["step 1", "step 2"]


@pytest.mark.parametrize(
    "text", ["ERROR  disk-full\nstep 2", "ERROR  disk-full\nno room\n\nEvidence\nof it"]
)
def test_what_resembles_a_report_stays(text: str) -> None:
    assert rewritten(text) == text.split("\n")


def test_a_request_that_gave_up_is_listed() -> None:
    """A program may log it at INFO: its own server does not answer."""
    line = (
        "(reward pid=98924) INFO 03-11 19:53:41 reward.py:24] Request error: HTTPConnectionPool(host='127.0.0.1', "
        "port=5000): Max retries exceeded with url: /get_reward"
    )
    with open_capture(text=f"step 1\n{line}\nstep 2\n") as capture:
        report = engine.run(capture, strict=True)
    assert not report.diagnoses
    assert ["Max retries exceeded" in event.text for event in report.unexplained] == [True]


_OF_ENGINE = "(EngineCore_DP0 pid=61) ERROR 11-21 10:53:18 [core.py:845] "
_LONG_ERROR = (
    f"{_OF_ENGINE}ValueError: the pool has no room for the request, requested={{'alpha': 1500000000, "
    "'beta': 25000, 'gamma_with_a_long_name': 31, 'delta': 4200}, available={'alpha': 12, 'beta': 0}"
)
_OF_RECORD = [
    f"{_OF_ENGINE}Traceback (most recent call last):",
    f'{_OF_ENGINE}  File "/app/pool.py", line 12, in take',
    f"{_OF_ENGINE}    raise ValueError(text)",
    _LONG_ERROR,
]


@pytest.mark.parametrize("lost", [0, 3])
@pytest.mark.parametrize("width", [99, 102])
def test_the_rest_of_a_wrapped_line_lacks_the_prefix_of_the_others(width: int, lost: int) -> None:
    """Of a short paste only two lines may be wrapped, and a person may have shortened an address in one."""
    whole = [_LONG_ERROR[at : at + width] for at in range(0, len(_LONG_ERROR), width)]
    wrapped = [*_OF_RECORD[:3], whole[0], whole[1][lost:], *whole[2:]]
    meant = _LONG_ERROR.replace(whole[1], whole[1][lost:])
    last = f"{_OF_ENGINE}stopped\n{_OF_ENGINE.rstrip()}"
    assert rewritten("\n".join([*wrapped, last])) == rewritten(
        "\n".join([*_OF_RECORD[:3], meant, last])
    )


@pytest.mark.parametrize(
    "plain",
    [
        ["epoch 1 is done", "epoch 2 is done"],
        ["Traceback (most recent call last):", '  File "/app/a.py", line 2, in main'],
    ],
)
def test_a_drivers_own_lines_between_those_of_processes_stay(plain: list[str]) -> None:
    of_process = f"(Trainer pid=7) step 100, loss 0.12, and so on: {'abc ' * 12}"
    lines = [of_process, of_process, plain[0], of_process, of_process, plain[1], of_process]
    assert rewritten("\n".join(lines)) == lines


def test_a_message_of_an_exception_of_ray_goes_on_below_the_edge() -> None:
    text = "ray.exceptions.RayChannelTimeoutError: System error: If the execution takes long, increase the timeout"
    assert rewritten(f"first\n{text[:80]}\n{text[80:]}\nlast") == ["first", text, "last"]
    whole = "ray.exceptions.RaySystemError: System error: No module named 'shards' in this worker's Python"
    below = [whole, "Traceback (most recent call last):", "  x"]
    assert rewritten("\n".join(below)) == below
    ended = [
        "a line that is longer than the exception's, so that no terminal broke that one" * 2,
        whole,
        "epoch 2",
    ]
    assert rewritten("\n".join(ended)) == ended


def test_line_numbers_on_lines_of_their_own_are_removed() -> None:
    records = [f"【2026-11-21 16:32:0{n}】(Trainer pid=7) loss 0.{n}" for n in range(5)]
    copied = [line for n, record in enumerate(records) for line in (record, f"{1550 + n}")]
    assert rewritten("\n".join(copied)) == [f"(Trainer pid=7) loss 0.{n}" for n in range(5)]
    counted = [line for n, record in enumerate(records) for line in (record[21:], f"{100 * n}")]
    assert rewritten("\n".join(counted)) == counted
