"""The wait-for graph: no task that can continue is called stuck, every stuck task is in one group, order does not matter."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.waits import graph
from raydoctor.waits.graph import Needs

NAMES = [f"t{n}" for n in range(9)]
GRAPHS = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        lambda needs, mode: Needs(frozenset(needs), mode),
        st.sets(st.sampled_from([*NAMES, "ended"]), max_size=4),
        st.sampled_from(["all", "any"]),
    ),
)
STANDING = st.sets(st.sampled_from(NAMES), max_size=3)


def waits(**needs: str) -> dict[str, Needs]:
    """`waits(a="b c")`: a waits for b and c."""
    return {name: Needs(frozenset(each.split())) for name, each in needs.items()}


def test_a_chain_ends_at_the_one_that_stands() -> None:
    [group] = graph.groups({"loader"}, waits(train="loader", driver="train", other="loader"))
    assert (group.ends, group.cycle) == (("loader",), ())
    assert group.behind == ("driver", "other", "train")


def test_who_waits_for_a_working_task_is_not_stuck() -> None:
    assert graph.groups((), waits(driver="train", train="part")) == []


def test_a_circle_and_who_waits_for_it() -> None:
    [group] = graph.groups((), waits(a="b", b="c", c="a", driver="a"))
    assert group.cycle == ("a", "b", "c")
    assert group.behind == ("driver",)


def test_who_waits_for_himself() -> None:
    [group] = graph.groups((), waits(a="a"))
    assert group.cycle == ("a",)


def test_one_of_several_is_enough_for_ray_wait() -> None:
    either = {"driver": Needs(frozenset({"hung", "works"}), "any")}
    assert graph.stuck({"hung"}, either) == {"hung"}
    assert graph.stuck({"hung", "works"}, either) == {"hung", "works", "driver"}


def test_a_circle_that_also_waits_for_one_that_stands_is_a_deadlock_of_its_own() -> None:
    found = graph.groups({"hung"}, waits(a="b hung", b="a"))
    assert {group.ends for group in found} == {("hung",), ("a", "b")}


def test_a_circle_that_one_who_stands_keeps_closed_is_none() -> None:
    either = {"a": Needs(frozenset({"b", "hung"}), "any"), **waits(b="a")}
    assert graph.stuck((), either) == set()
    [group] = graph.groups({"hung"}, either)
    assert (group.ends, group.behind) == (("hung",), ("a", "b"))


def test_a_long_chain() -> None:
    chain = {f"t{n}": Needs(frozenset({f"t{n + 1}"})) for n in range(5000)}
    [group] = graph.groups({"t5000"}, chain)
    assert len(group.behind) == 5000


@settings(max_examples=300, deadline=None)
@given(STANDING, GRAPHS)
def test_every_stuck_task_is_in_exactly_one_group(
    standing: set[str], found: dict[str, Needs]
) -> None:
    members = [
        name for group in graph.groups(standing, found) for name in (*group.ends, *group.behind)
    ]
    assert sorted(members) == sorted(graph.stuck(standing, found))


@settings(max_examples=300, deadline=None)
@given(STANDING, GRAPHS)
def test_the_stuck_have_a_reason_and_the_others_a_way_out(
    standing: set[str], found: dict[str, Needs]
) -> None:
    stuck = graph.stuck(standing, found)
    for name in set(found) - standing:
        held = [need in stuck for need in found[name].nodes]
        is_held = all(held) and bool(held) if found[name].mode == "any" else any(held)
        assert is_held == (name in stuck)


@settings(max_examples=300, deadline=None)
@given(STANDING, GRAPHS)
def test_every_circle_is_one(standing: set[str], found: dict[str, Needs]) -> None:
    for group in graph.groups(standing, found):
        for name, after in zip(group.cycle, (*group.cycle[1:], *group.cycle[:1]), strict=True):
            assert after in found[name].nodes
        assert bool(group.cycle) != (group.ends[0] in standing)


@settings(max_examples=300, deadline=None)
@given(STANDING, GRAPHS, st.randoms())
def test_order_is_nothing(standing: set[str], found: dict[str, Needs], random: object) -> None:
    items = list(found.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert graph.groups(standing, dict(items)) == graph.groups(sorted(standing)[::-1], found)
