"""The numbers in remedies for out-of-memory kills agree as a reader checks them."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.model.values import Event, Source
from raydoctor.rules.shared.oom.kills import MemoryUser, OomReport
from raydoctor.rules.shared.oom.remedies import remedies

_EVENT = Event("oom.kill", Source("logs/raylet.out", "raylet-out"), 1, 0, "")
_NODE = {"CPU": 4.0, "memory": 14.0 * 2**30}


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
        _EVENT, "n", "10.0.0.2", used, limit, min(threshold, used), victims, holders, 1
    )


def test_memory_makes_ray_start_fewer_tasks() -> None:
    """Ray counts 14 GiB of memory: the 0.68 GiB that a task held would let 20 start."""
    remedy = remedies([_report([0.68, 0.6, 0.5, 0.46], 0.96, 3.2)], _NODE)[0]
    assert remedy.title == "Limit train() to 1 concurrent task instead of 4"
    assert [str(step) for step in remedy.steps] == [
        "@ray.remote(num_cpus=4)   # of the 4 CPUs of this node: 1 train at once",
        "@ray.remote(memory=int(9.33 * 1024**3))   # or by memory: a share of the 14.00 GiB that Ray counts on this "
        "node. It limits how many run at once, not what train uses",
        "# Why: the largest held 0.68 GiB and was still growing (allow for 1.36 GiB each), and the other processes "
        "leave 2.24 GiB of the 3.20 GiB that Ray allows",
    ]


def test_a_lowered_threshold_is_not_answered_with_more_memory() -> None:
    report = _report([0.9], 0.6, 1.5)._replace(limit_gb=24.0)
    titles = [remedy.title for remedy in remedies([report], _NODE)]
    assert (
        titles[0] == "Raise Ray's memory threshold on node 10.0.0.2: it is set to 6% of 24.00 GiB"
    )
    assert not any("more memory" in title for title in titles)


def test_survivors_of_a_kill_show_how_large_a_task_grows() -> None:
    """The last report has the largest process: every sentence has its size."""
    first, last = _report([0.7] * 4, 0.4, 3.2), _report([1.3] * 2, 0.4, 3.2)
    remedy = remedies([first, last], _NODE)[0]
    assert remedy.title.startswith("Limit train() to 1 concurrent task")
    said = " ".join(remedy.steps)
    assert "1.30 GiB" in said
    assert "0.70" not in said


def test_actor_is_not_said_to_hold_what_is_left_for_it() -> None:
    title = remedies([_report([1.77], 0.64, 2.4, actor=True)], _NODE)[0].title
    assert title == (
        "Reduce the memory of actor Cache to clearly less than 1.76 GiB (it held 1.77 GiB). Ray allows 2.40 GiB, and other processes (0.64 GiB) use the rest"
    )


def test_an_actor_at_the_limit_has_grown_beyond_it() -> None:
    title = remedies([_report([1.47], 0.93, 2.4, actor=True)], _NODE)[0].title
    assert title == (
        "Reduce the memory of actor Cache to clearly less than 1.47 GiB (it held 1.47 GiB). Ray allows 2.40 GiB, and other processes (0.93 GiB) use the rest"
    )


_GIB = st.integers(1, 6400).map(lambda n: n / 100)


@settings(max_examples=200, deadline=None)
@given(st.lists(_GIB, min_size=1, max_size=8), _GIB, st.integers(1, 64), st.floats(0.1, 500))
def test_numbers_agree(each: list[float], others: float, cpus: int, memory: float) -> None:
    """As many tasks as the title says, and no more, fit in what Ray counts."""
    report = _report(each, others, round(sum(each) + others, 2))
    node = {"CPU": float(cpus), "memory": memory * 2**30}
    remedy = remedies([report], node)[0]
    steps = " ".join(remedy.steps)
    found = re.match(r"Limit train\(\) to (\d+) concurrent tasks? instead of (\d+)", remedy.title)
    if not found:
        assert "memory=" not in steps.replace("memory= does not", "")
        return
    most, running = int(found[1]), int(found[2])
    assert 1 <= most < running == len(each)
    assert most == 1 or most * 2 * max(each) <= sum(each) + 0.011
    shares = re.findall(r"memory=int\(([\d.]+) \*", steps)
    assert bool(shares) is (memory >= 0.01 * (most + 0.5))
    for share in shares:
        assert int(memory / float(share)) == most
    for share in re.findall(r"num_cpus=(\d+)", steps):
        assert cpus // int(share) == most
    assert {int(n) for n in re.findall(r": (\d+) train at once", steps)} <= {most}


def test_a_threshold_that_a_test_lowered_can_be_restored() -> None:
    """Ray's default, and the 0.85 that raydoctor advises against kills by the kernel, are left as they are."""
    last = remedies([_report([0.68, 0.6, 0.5, 0.46], 0.96, 3.2)], _NODE)[-1]
    assert "lowered to 80% of 4.00 GiB: Ray's default of 95% allows 0.60 GiB more" in last.title
    assert last.steps[0].startswith("unset RAY_memory_usage_threshold ")
    for share in (0.85, 0.95):
        report = _report([0.68, 0.6], 0.96, 3.2)._replace(limit_gb=3.2 / share)
        assert not any("restore" in remedy.title for remedy in remedies([report], _NODE))
