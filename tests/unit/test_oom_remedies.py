"""The numbers in remedies for out-of-memory kills agree as a reader checks them."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.model.values import Event, Source
from raydoctor.rules.shared.oom.kills import MemoryUser, OomReport
from raydoctor.rules.shared.oom.remedies import remedies

_EVENT = Event("oom.kill", Source("logs/raylet.out", "raylet-out"), 1, 0, "")
_NUMBER = re.compile(r"(\d+\.\d\d) GiB")


def _report(
    each: list[float], others: float, threshold: float, *, actor: bool = False
) -> OomReport:
    """A report of workers that hold `each`, beside `others` GiB, on a node that reached its threshold."""
    used = round(sum(each) + others, 2)
    name = "Cache.load" if actor else "train"
    holders = tuple(MemoryUser(n, gb, f"ray::{name}", actor=actor) for n, gb in enumerate(each, 1))
    limit = threshold / 0.8
    victims = holders[:1]
    return OomReport(
        _EVENT, "n", "10.0.0.2", used, limit, min(threshold, used), victims, holders, 1, 0.0, 0.0
    )


def test_limit_shows_what_each_task_reserves() -> None:
    """Three would fit by the measured 0.68 GiB, two fit with growth; title and steps have one number."""
    title = remedies(_report([0.68, 0.6, 0.5, 0.46], 0.96, 3.2))[0].title
    assert title == (
        "Limit train to 2 concurrent tasks instead of 4: 2 × 1.12 GiB fit in the 2.24 GiB that the other "
        "processes leave below Ray's threshold (the largest held 0.68 GiB when Ray killed)"
    )


def test_actor_is_not_said_to_hold_what_is_left_for_it() -> None:
    title = remedies(_report([1.77], 0.64, 2.4, actor=True))[0].title
    assert title == (
        "Keep actor Cache below 1.76 GiB, the memory left for it: it had grown to 1.77 GiB"
    )


def test_an_actor_at_the_limit_has_grown_beyond_it() -> None:
    title = remedies(_report([1.47], 0.93, 2.4, actor=True))[0].title
    assert title == (
        "Keep actor Cache below 1.47 GiB, the memory left for it: it had grown beyond that"
    )


def test_cpus_are_a_way_only_if_they_allow_the_same_number() -> None:
    three_of_four = remedies(_report([0.7] * 4, 0.4, 3.2))[0]
    two_of_four = remedies(_report([0.68, 0.6, 0.5, 0.46], 0.96, 3.2))[0]
    assert "num_cpus" not in " ".join(three_of_four.steps)
    assert "num_cpus=2)   # or by CPUs: at most 2 at once" in " ".join(two_of_four.steps)


_GIB = st.integers(1, 6400).map(lambda n: n / 100)


@settings(max_examples=200, deadline=None)
@given(st.lists(_GIB, min_size=1, max_size=6), _GIB, st.floats(0.85, 1.0), st.booleans())
def test_numbers_agree(each: list[float], others: float, share: float, actor: bool) -> None:
    threshold = round((sum(each) + others) * share, 2)
    remedy = remedies(_report(each, others, threshold, actor=actor))[0]
    title = remedy.title
    numbers = [float(n) for n in _NUMBER.findall(title)]
    if found := re.match(r"Limit \w+ to (\d+) concurrent \w+ instead of (\d+)", title):
        fitting, running = int(found[1]), int(found[2])
        share, room, largest = numbers
        assert fitting * share <= room + 1e-9
        assert share >= largest * 1.15 - 1e-9
        assert fitting < running
        assert fitting == running - 1 or (fitting + 1) * largest * 1.15 > room - 0.01 * running
        steps = " ".join(remedy.steps)
        assert f"{share:.2f} GiB" in steps
        assert {int(n) for n in re.findall(r"at most (\d+)", steps)} == {fitting}
    elif title.startswith("Keep"):
        assert title.endswith("beyond that") or numbers[0] < numbers[-1]
    else:
        need, _, room, *_ = numbers
        assert need > room
