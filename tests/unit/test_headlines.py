"""Headlines: on one line, without raw bytes, at most two lines of a wide terminal long; last words with a word."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from raydoctor.case import evidence
from raydoctor.model.text import behind_preamble, headline
from tests.helpers import FIXTURES


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Task f raised ValueError: x\n  more", "Task f raised ValueError: x   more"),
        (
            "Task f raised UnpicklingError: b'\\x80\\x04\\x95abc', in load() (a.py:3)",
            "Task f raised UnpicklingError: (bytes), in load() (a.py:3)",
        ),
        ('f got b"\\x00\\xff"', "f got (bytes)"),
        ("Task f raised KeyError: b'price'", "Task f raised KeyError: b'price'"),
        ("The job b'ended", "The job b'ended"),
    ],
)
def test_headline_is_one_line_without_raw_bytes(given: str, expected: str) -> None:
    """Escapes mark raw bytes; short readable bytes and other quotes stay."""
    assert headline(given).split() == expected.split()
    assert "\n" not in headline(given)


def test_headline_is_cut_at_a_word() -> None:
    """A long message keeps its beginning."""
    cut = headline("Task f raised ValueError: " + "word " * 200)
    assert len(cut) <= 281
    assert cut.endswith("word…")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss 0.3\nsaved model\n..F.\n", "saved model"),
        ("====== 1 failed in 3.1s ======\n.\nF\n", "====== 1 failed in 3.1s ======"),
        (".\nF\n 100% 12/12\n", ""),
        ("学習終了しました\n.\n", "学習終了しました"),
    ],
)
def test_last_words_contain_a_word(text: str, expected: str) -> None:
    """What pytest prints per test, and bars of progress, are no last words."""
    assert evidence.last_words(text) == expected


def test_check_is_shown_without_the_request_to_report_a_bug() -> None:
    """The text behind `Check failed:` is what a reader searches for; another line stays as it is."""
    preamble = "An unexpected system state has occurred. You have likely discovered a bug in Ray. "
    assert behind_preamble(f"{preamble}Check failed: a == b why") == "… Check failed: a == b why"
    assert behind_preamble("  Check failed: fd.ok() Bad file") == "  Check failed: fd.ok() Bad file"


_DECIMAL = re.compile(r"\d ?(?:k|M|G|T)B\b")
_PROGRAM = "; the error was raised at "


@pytest.mark.parametrize(
    "golden", sorted(FIXTURES.glob("*/report.json")), ids=lambda p: p.parent.name
)
def test_sizes_in_a_report_are_binary(golden: Path) -> None:
    """Ray prints binary sizes as `20MB`: a report names them `20 MiB`, or its numbers could not be compared."""
    for found in json.loads(golden.read_text())["diagnoses"]:
        chain = [link.partition(_PROGRAM)[0] for link in found["chain"]]
        remedies = [line for remedy in found["remedies"] for line in remedy]
        assert [s for s in (found["headline"], *chain, *remedies) if _DECIMAL.search(s)] == []


_SHARES = re.compile(
    r"to clearly less than ([\d.]+) GiB \(it held [\d.]+ GiB\)\. Ray allows ([\d.]+) GiB, and (.+) use the rest"
)


def test_printed_shares_of_the_memory_add_up() -> None:
    """A reader adds the printed numbers, which are rounded: the sum must be what Ray allows."""
    reports = (json.loads(golden.read_text()) for golden in FIXTURES.glob("*/report.json"))
    titles = (
        remedy[0]
        for report in reports
        for found in report["diagnoses"]
        for remedy in found["remedies"]
    )
    shares = [match for title in titles if (match := _SHARES.search(title))]
    assert len(shares) >= 3
    for room, allowed, others in (match.groups() for match in shares):
        parts = [float(room), *map(float, re.findall(r"\(([\d.]+) GiB\)", others))]
        assert round(sum(parts), 2) == float(allowed)
