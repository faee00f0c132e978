"""Times: local stamps, learned zones, the kernel's forms; and the order of learning does not matter."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydoctor.case import Case
from raydoctor.model.values import Event, Source
from raydoctor.read.clock import NodeClocks, as_utc, offset_between
from raydoctor.rules.shared.kernel import journal_span

STAMP = "2026-11-21 07:34:50,741"
EPOCH = 1795246490.741
"""The stamp read as UTC."""


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("TZ", "EST5EDT")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_stamp_is_read_to_the_millisecond() -> None:
    assert as_utc(STAMP) == EPOCH


@pytest.mark.parametrize(
    "text", ["", "x", "2026-02-30 07:34:50,741", "0000-01-01 00:00:00,000", "2026-11-21"]
)
def test_what_is_no_stamp_has_no_time(text: str) -> None:
    assert as_utc(text) is None
    assert NodeClocks().epoch("", text) is None


@pytest.mark.usefixtures("in_new_york")
def test_without_a_hint_this_machines_zone_counts() -> None:
    assert NodeClocks().epoch("n1", STAMP) == EPOCH + 5 * 3600
    assert (
        NodeClocks().epoch("n1", "2026-07-21 07:34:50,741")
        == as_utc("2026-07-21 07:34:50,741") + 4 * 3600
    )  # type: ignore[operator]


@pytest.mark.usefixtures("in_new_york")
def test_a_node_has_the_zone_that_its_records_show() -> None:
    clock = NodeClocks()
    clock.learn("n1", STAMP, EPOCH - 5.5 * 3600 + 0.9)
    assert clock.epoch("n1", STAMP) == EPOCH - 5.5 * 3600
    # A node that shows none lives where the others do, not where the capture is read.
    assert clock.epoch("n2", STAMP) == EPOCH - 5.5 * 3600


def test_the_only_nodes_zone_counts_for_files_beside_the_logs() -> None:
    clock = NodeClocks()
    clock.learn("", STAMP, EPOCH - 3600)
    assert clock.epoch("n1", STAMP) == EPOCH - 3600


def test_a_pair_that_no_zone_explains_is_passed_over() -> None:
    clock = NodeClocks()
    clock.learn("n1", STAMP, EPOCH + 20 * 3600)
    clock.learn("n1", STAMP, EPOCH - 3.75 * 3600)
    clock.learn("n1", "no stamp", EPOCH)
    assert clock.offset("n1") is None


@given(
    hours=st.lists(st.integers(-12, 14), min_size=1, max_size=9),
    order=st.randoms(use_true_random=False),
)
def test_most_pairs_decide_in_any_order(hours: list[int], order: random.Random) -> None:
    def learned(given: list[int]) -> float | None:
        clock = NodeClocks()
        for each in given:
            clock.learn("n1", STAMP, EPOCH - each * 3600)
        return clock.offset("n1")

    shuffled = hours.copy()
    order.shuffle(shuffled)
    assert learned(shuffled) == learned(hours)
    assert learned([*hours, *[3] * 10]) == 3 * 3600


@given(quarters=st.integers(-48, 56), jitter=st.floats(-400, 400))
def test_offsets_are_quarters_of_an_hour(quarters: int, jitter: float) -> None:
    assert offset_between(EPOCH, EPOCH - quarters * 900 + jitter) == quarters * 900


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"iso": "2026-11-21T07:34:50Z"}, 1795246490.0),
        ({"iso": "2026-11-21T07:34:50.741Z"}, EPOCH),
        ({"iso": "2026-11-21T07:34:50,741999+0100"}, EPOCH - 3600),
        ({"iso": "2026-11-21T07:34:50.7-05:30"}, 1795246490.7 + 5.5 * 3600),
        ({"iso": "2026-13-21T07:34:50Z"}, None),
        ({"date": "Wed Foo 21 07:34:50 2026"}, None),
        ({"uptime": "12.5"}, None),
        ({"syslog": "Nov 21 07:34:50"}, None),
    ],
)
def test_lines_of_the_kernel(fields: dict[str, str], at: float | None) -> None:
    found = NodeClocks().kernel(fields, "")
    assert found == (at if at is None else pytest.approx(at, abs=0.0005))


@pytest.mark.parametrize(
    "fields",
    [
        {"date": "Sat Nov 21 07:34:50 2026"},
        {"date": "Sat Nov  1 07:34:50 2026"},
        {"iso": "2026-11-21T07:34:50.741"},
        {"iso": "2026-11-21T07:34:50"},
    ],
)
def test_kernel_stamps_without_a_zone_are_the_nodes(fields: dict[str, str]) -> None:
    clock = NodeClocks()
    clock.learn("n1", STAMP, EPOCH - 7200)
    utc = NodeClocks()
    utc.learn("n1", STAMP, EPOCH)
    here, there = clock.kernel(fields, "n1"), utc.kernel(fields, "n1")
    assert here is not None
    assert there is not None
    assert there - here == 7200


@given(st.text(), st.text())
def test_any_text_is_read_or_none(stamp: str, iso: str) -> None:
    NodeClocks().epoch("", stamp)
    NodeClocks().kernel({"iso": iso}, "")


def _record(text: str, at: float | None) -> Event:
    return Event("x", Source("logs/raylet.out", "raylet-out"), 1, 0, text, at=at)


@pytest.mark.parametrize(
    ("text", "at", "has_zone", "since"),
    [
        ("[2026-11-21 08:34:50,101 E 1 1] x", 1795246490.1, True, "2026-11-21 07:24 UTC"),
        ('{"message": "x"}', 1795246490.1, True, "2026-11-21 07:24 UTC"),
        ("[2026-11-21 08:34:50,101 E 1 1] x", 1795246490.1, False, "2026-11-21 08:24"),
        ("x", None, True, "1 hour ago"),
    ],
)
def test_a_span_for_journalctl_works_as_it_stands(
    text: str, at: float | None, has_zone: bool, since: str
) -> None:
    """In UTC, as the report's times; in the log's own time only if nothing shows its zone."""
    case = Case((), has_zone=has_zone)
    assert journal_span(case, [_record("x", None), _record(text, at)])["since"] == since
