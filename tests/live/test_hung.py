"""Which tasks hang and which wait for them: by tables written here, and by those of a real cluster."""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.case import Case
from raydoctor.model.values import Source
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.processes import proc
from raydoctor.observe.stacks import profile, sampling, stacks
from raydoctor.observe.stacks import rests as _rests
from raydoctor.observe.stacks.suspects import Sampling, Suspects, suspects
from raydoctor.read import live
from raydoctor.render import hung as render
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples as hang
from raydoctor.waits.hung import HungGroup, HungReport, hung
from raydoctor.waits.remedies import remedies
from tests.helpers.real_ray import real_ray
from tests.helpers.waiting import Program, until

Read = Callable[..., HungReport]
OLD = hang.since(300)
NODE = sample.node({"CPU": 4})
DRIVER = {
    "worker_id": f"01000000{'f' * 48}", "pid": 700, "node_id": sample.NODE, "worker_type": "DRIVER", "answers": True,
    "job_id": "01000000", "running_task_ids": [],
}  # fmt: skip
DRIVER_ROW = {"worker_pid": 700, "name": "driver", "task_id": f"{'f' * 40}01000000"}
RECV = ("SocketIO.readinto", "socket.py", 706)
TO_DATABASE = {
    "fd": 9, "type": "tcp", "local": "10.0.0.2:4242", "peer": "10.0.0.9:5432", "state": "ESTABLISHED", "tids": [801],
}  # fmt: skip


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """`read(tasks=[…], samples=[…], …)`: who hangs by these rows."""

    def found(min_age: float = 60.0, **rows: Sequence[sample.Row]) -> HungReport:
        return hung(case_of(tmp_path, **rows), min_age)

    return found


def case_of(folder: Path, **rows: Sequence[sample.Row]) -> Case:
    files = {}
    for path, text in sample.tables(**{"nodes": [NODE], **rows}).items():
        file = folder / Path(path).name
        file.write_text(text)
        files[Source(path, "live")] = str(file)
    gaps: list[Any] = []
    case = Case(live.read(files, gaps))
    assert not gaps
    return case


def names(those: Sequence[Any]) -> list[str]:
    return sorted(each.work.name for each in those)


def in_socket(task: sample.Row) -> dict[str, list[sample.Row]]:
    return {
        "samples": hang.waiting(task, RECV, ("load", "etl.py", 31), syscall=45, wchan="wait_woken"),
        "clues": [hang.clues(task, sockets=[TO_DATABASE])],
    }


def together(*parts: Mapping[str, Sequence[sample.Row]]) -> dict[str, list[sample.Row]]:
    found: dict[str, list[sample.Row]] = {}
    for part in parts:
        for name, rows in part.items():
            found.setdefault(name, []).extend(rows)
    return found


def waits(task: sample.Row, *awaited: sample.Row, **more: Any) -> dict[str, list[sample.Row]]:
    place = (task["name"].rpartition(".")[2], "train.py", 12)
    return {"samples": hang.getting(task, place), "clues": [hang.clues(task, *awaited, **more)]}


# ------------------------------------------------------------------ chains


LOAD = sample.running(1, "load", {"CPU": 1}, **OLD)
TRAINS = [sample.running(n, "train", {"CPU": 0}, **OLD) for n in range(2, 6)]


def chain() -> dict[str, list[sample.Row]]:
    """A driver waits for four tasks, which wait for one that waits for a database."""
    return together(
        {
            "tasks": [LOAD, *TRAINS],
            "worker_stats": [DRIVER],
            "finished": [hang.took("load", 24, 0.5)],
        },
        in_socket(LOAD),
        *(waits(train, LOAD) for train in TRAINS),
        waits({**DRIVER_ROW, "worker_pid": 700}, *TRAINS),
    )


def test_a_chain_ends_at_the_one_culprit(read: Read) -> None:
    [group] = read(**chain()).groups
    assert names(group.culprits) == ["load"]
    assert names(group.behind) == ["driver of job 1", *["train"] * 4]
    assert group.first.kind == "socket"
    assert [t.name for t in group.first.targets] == ["10.0.0.9:5432"]
    assert render.headline(group).startswith(
        "4 tasks and the driver wait for load() (pid 801), which waits on a socket to 10.0.0.9:5432"
    )
    assert "24 finished load() tasks took 0.50 s" in group.first.reason


def test_the_page_and_the_json_name_the_culprit_first(read: Read) -> None:
    view = render.HungView(read(**chain()), looked_at=6)
    reply = json.loads(render.to_json(view))
    assert reply["schema"] == "raydoctor/hung/1"
    first, second = reply["hung"][:2]
    assert first["kind"] == "socket"
    assert first["task"] == {"id": LOAD["task_id"], "name": "load"}
    assert (first["pid"], first["state"], first["node"]) == (801, "RUNNING", sample.NODE)
    assert first["stack"][0]["frames"][1] == {"function": "load", "file": "etl.py", "line": 31}
    waited_for = {"kind": "task", "id": LOAD["task_id"], "name": "load"}
    assert waited_for in [target for each in reply["hung"] for target in each["waits_for"]]
    assert second["kind"] == "ray-get"
    assert reply["cycles"] == []
    page = render.render(view)
    text = "\n".join("".join(span.text for span in line) for line in page)
    assert f"raydoctor attach {LOAD['task_id']}" in text
    assert f"raydoctor cancel {LOAD['task_id']}" in text
    styles = [s.style for row in page for s in row if s.text == "load() (etl.py:31)"]
    assert styles[-1] == "strong"


def test_a_long_wait_for_work_that_goes_on_is_no_hang(read: Read) -> None:
    busy = hang.working(LOAD, ("load", "etl.py", 31))
    rows = together({"tasks": [LOAD, *TRAINS], "samples": busy}, *(waits(t, LOAD) for t in TRAINS))
    found = read(**rows)
    assert found.groups == ()
    [works] = found.working
    assert (works.work.name, works.kind, works.reason) == (
        "load",
        "python-loop",
        "has run for 5 min",
    )


def test_what_polls_is_no_hang(read: Read) -> None:
    sleeps = hang.waiting(LOAD, ("load", "etl.py", 31), syscall=230, wchan="hrtimer_nanosleep")
    assert len(read(tasks=[LOAD], samples=sleeps).groups) == 1
    polls = [{**row, "threads": [{**row["threads"][0], "voluntary": 5 * n}]} for n, row in enumerate(sleeps)]  # fmt: skip
    assert read(tasks=[LOAD], samples=polls).groups == ()


def rest(pid: int, seconds: float, woken: bool = False, tid: int = 0) -> sample.Row:
    thread = {"tid": tid or pid, "rested_s": seconds, "woken": woken}
    return {"node_id": sample.NODE, "pid": pid, "threads": [thread]}


@pytest.mark.parametrize(
    ("rested", "woken", "hangs"), [(20.0, False, 0), (200.0, False, 1), (20.0, True, 1)]
)
def test_what_has_run_lately_is_no_hang(read: Read, rested: float, woken: bool, hangs: int) -> None:
    """A loop that sleeps for half a minute, a download that trickles: alike in three looks, and at work."""
    rows = {"tasks": [LOAD], "rests": [rest(LOAD["worker_pid"], rested, woken)]}
    found = read(**together(rows, in_socket(LOAD)))
    assert (len(found.groups), len(found.early)) == (hangs, 1 - hangs)
    if not hangs:
        verdict = render.verdict(render.HungView(found))
        assert "The oldest wait has lasted 20 s: load() (pid 801) waits" in verdict


@pytest.mark.parametrize(("wakes", "hangs"), [(20.0, 0), (-1.0, 0), (9000.0, 1), (None, 1)])
def test_who_naps_is_no_hang_however_often_looks_wake_it(
    read: Read, wakes: float | None, hangs: int
) -> None:
    rests = rest(LOAD["worker_pid"], 5.0, woken=True)
    if wakes is not None:
        rests["threads"][0]["wakes_s"] = wakes
    sleeps = hang.waiting(LOAD, ("load", "etl.py", 31), syscall=230, wchan="hrtimer_nanosleep")
    assert len(read(tasks=[LOAD], samples=sleeps, rests=[rests]).groups) == hangs


@pytest.mark.parametrize(("child", "hangs"), [(2.0, 0), (200.0, 1)])
def test_who_asks_a_child_again_and_again_gets_on_as_that_does(
    read: Read, child: float, hangs: int
) -> None:
    """PyTorch's DataLoader asks every five seconds whether its workers live."""
    frames = [("Queue.get", "multiprocessing/queues.py", 114, "python"), ("load", "etl.py", 31, "user")]  # fmt: skip
    looks = hang.waiting(LOAD, below=frames, syscall=7, wchan="do_sys_poll")
    polls = [{**row, "threads": [{**row["threads"][0], "voluntary": 9 * n}]} for n, row in enumerate(looks)]  # fmt: skip
    children = [{"pid": 77, "command": "python", "state": "S", "rested_s": child}]
    clues = [{**hang.clues(LOAD), "children": children}]
    found = read(tasks=[LOAD], samples=polls, clues=clues, rests=[rest(LOAD["worker_pid"], 1.0)])
    assert len(found.groups) == hangs


@pytest.mark.parametrize("frames", [
    [("socket.accept", "socket.py", 294)],
    [("BaseEventLoop.run_forever", "asyncio/base_events.py", 608), ("run", "asyncio/runners.py", 190)],
    [("Runner.run", "asyncio/runners.py", 118), ("run", "asyncio/runners.py", 190)],  # uvloop
])  # fmt: skip
def test_a_server_without_callers_is_no_hang(
    read: Read, frames: list[tuple[str, str, int]]
) -> None:
    stack = [*((*frame, "python") for frame in frames), ("run", "server.py", 7, "user")]
    found = read(tasks=[LOAD], samples=hang.waiting(LOAD, below=stack))
    assert found.groups == ()
    [wait] = found.open
    assert (wait.hung.work.name, found.working) == ("load", ())


def test_a_part_that_takes_longer_than_the_others_is_at_work(read: Read) -> None:
    busy = hang.working(LOAD, ("load", "etl.py", 31))
    assert read(tasks=[LOAD], samples=busy, finished=[hang.took("load", 24, 8, 40)]).groups == ()
    young = {**LOAD, **hang.since(20)}
    found = read(tasks=[young], samples=busy, finished=[hang.took("load", 24, 0.5)])
    assert found.groups == ()


def test_tasks_of_another_name_are_no_peers(read: Read) -> None:
    """Ray Data runs all its operators in one function."""
    task = {**LOAD, "name": "MapBatches(embed)", "func_or_class_name": "_map_task"}
    busy = hang.working(task, ("embed", "etl.py", 31))
    peers = [hang.took("_map_task", 24, 0.02)]
    assert read(tasks=[task], samples=busy, finished=peers).groups == ()


def test_what_its_worker_has_begun_just_now(read: Read) -> None:
    """The GCS still has it queued: that it waited long does not make it a long run."""
    pool = sample.actor(1, "Pool", {})
    queued = hang.since(300, "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY")
    take = sample.call(1, "Pool.take", pool, worker_id="a" * 56, **queued)
    worker = {**DRIVER, "worker_id": "a" * 56, "worker_type": "WORKER", "pid": 801, "running_task_ids": [take["task_id"]]}  # fmt: skip
    found = read(**together({"tasks": [take], "worker_stats": [worker]}, in_socket(take)))
    assert (found.groups, found.unseen) == ((), ())


def test_what_waits_within_ray_is_reported_and_is_no_hang(read: Read) -> None:
    found = read(tasks=[LOAD], samples=hang.waiting(LOAD))
    assert found.groups == ()
    [wait] = found.open
    assert "generator" in wait.hung.summary
    assert found.is_conclusive


def test_what_a_tracer_holds_does_not_poll(read: Read) -> None:
    held = hang.waiting(LOAD, ("load", "etl.py", 31), state="t", wchan="ptrace_stop")
    polls = [{**row, "threads": [{**row["threads"][0], "voluntary": 50 * n}]} for n, row in enumerate(held)]  # fmt: skip
    [group] = read(tasks=[LOAD], samples=polls).groups
    assert group.first.kind == "debugger"


def test_work_without_end_is_a_hang_where_its_peers_say_so(read: Read) -> None:
    busy = hang.working(LOAD, ("load", "etl.py", 31))
    [group] = read(tasks=[LOAD], samples=busy, finished=[hang.took("load", 24, 0.5)]).groups
    assert (group.first.kind, group.first.work.name) == ("python-loop", "load")


def test_what_stands_as_long_as_its_peers_took_is_no_hang(read: Read) -> None:
    rows = together({"tasks": [LOAD], "finished": [hang.took("load", 24, 200)]}, in_socket(LOAD))
    assert read(**rows).groups == ()


def test_what_stands_without_peers_hangs_after_the_least_age(read: Read) -> None:
    rows = together({"tasks": [LOAD]}, in_socket(LOAD))
    assert len(read(**rows).groups) == 1
    assert read(min_age=400, **rows).groups == ()


def test_what_the_gcs_takes_for_running_and_its_worker_does_not_run(read: Read) -> None:
    task = {**LOAD, "worker_id": "a" * 56}
    idle = {**DRIVER, "worker_id": "a" * 56, "worker_type": "WORKER", "pid": 801}
    rows = together({"tasks": [task], "worker_stats": [idle]}, in_socket(task))
    assert read(**rows).groups == ()


def test_one_call_after_the_other_at_one_line_is_no_hang(read: Read) -> None:
    """Between the tables and the looks one call ended, and the next stands where it stood."""
    task = {**LOAD, "worker_id": "a" * 56}
    worker = {**DRIVER, "worker_id": "a" * 56, "worker_type": "WORKER", "pid": 801}
    before, after = ({**worker, "running_task_ids": [sample.task_id(number)]} for number in (1, 77))
    peers = hang.took("load", 24, 0.5)
    rows = together(
        {"tasks": [task], "worker_stats": [before], "finished": [peers]}, in_socket(task)
    )
    assert read(**rows, still_running=[after]).groups == ()
    assert len(read(**rows, still_running=[before]).groups) == 1


def test_a_worker_that_was_idle_when_it_was_looked_at(read: Read) -> None:
    idle = hang.waiting(LOAD)
    assert read(tasks=[LOAD], samples=idle, finished=[hang.took("load", 24, 0.5)]).groups == ()


def test_one_peer_that_took_long_before_is_no_excuse_for_ever(read: Read) -> None:
    rows = together({"tasks": [LOAD], "finished": [{**hang.took("load", 99, 0.5), "max_s": 900}]}, in_socket(LOAD))  # fmt: skip
    assert len(read(**rows).groups) == 1
    assert read(min_age=600, **rows).groups == ()


def test_ranks_that_stand_at_one_place_are_one_group(read: Read) -> None:
    ranks = [sample.running(n, "load", {}, **OLD) for n in range(1, 9)]
    [group] = read(**together({"tasks": ranks}, *map(in_socket, ranks))).groups
    assert len(group.culprits) == 8
    assert render.headline(group).startswith("Task load() (pid 801) waits on")
    assert render.headline(group).endswith(", and 7 more like it")


def test_one_of_several_is_enough_for_ray_wait(read: Read) -> None:
    busy = sample.running(9, "busy", {}, **OLD)
    either = waits(TRAINS[0], LOAD, busy, call="wait")
    both = waits(TRAINS[1], LOAD, busy)
    rows = together({"tasks": [LOAD, busy, *TRAINS[:2]]}, in_socket(LOAD), either, both)
    [group] = read(**rows).groups
    assert [h.work.id for h in group.behind] == [TRAINS[1]["task_id"]]


def test_a_wait_in_ray_get_for_an_unknown_object_is_no_hang(read: Read) -> None:
    stack = hang.getting(TRAINS[0], ("train", "train.py", 12))
    assert read(tasks=[TRAINS[0]], samples=stack).groups == ()
    [group] = read(tasks=[TRAINS[0]], samples=stack, finished=[hang.took("train", 9, 1)]).groups
    assert (group.first.kind, group.first.waiting and group.first.waiting.exact) == (
        "ray-get",
        False,
    )


def test_an_object_whose_task_has_ended_does_not_come(read: Read) -> None:
    rows = together({"tasks": [TRAINS[0]]}, waits(TRAINS[0], LOAD))
    assert read(**rows).groups == ()  # its task may be newer than the list of tasks
    listed = {
        "object_id": f"{LOAD['task_id']}01000000",
        "reference_type": "LOCAL_REFERENCE",
        "pid": 1,
    }
    [group] = read(**rows, objects=[listed]).groups
    assert group.first.summary == "waits in ray.get for 1 object whose tasks have ended"
    assert [t.kind for t in group.first.targets] == ["object"]


def test_references_show_which_tasks_it_may_wait_for(read: Read) -> None:
    stack = hang.getting(TRAINS[0], ("train", "train.py", 12))
    held = {
        "object_id": f"{LOAD['task_id']}01000000",
        "reference_type": "LOCAL_REFERENCE",
        "pid": 802,
    }
    rows = together(
        {"tasks": [LOAD, TRAINS[0]], "samples": stack, "objects": [held]}, in_socket(LOAD)
    )
    [group] = read(**rows).groups
    assert names(group.behind) == ["train"]
    assert "its memory was not read" in group.behind[0].evidence[0]


def test_what_ran_for_long_and_was_not_looked_at_is_reported(read: Read) -> None:
    found = read(tasks=[LOAD])
    assert [work.name for work in found.unseen] == ["load"]
    [gap] = render.gaps(render.HungView(found))
    assert "load() (pid 801)" in gap.why


def test_requests_wait_for_those_who_hold_everything_and_hang(read: Read) -> None:
    holders = [sample.running(n, "load", {"CPU": 2}, **OLD) for n in (1, 2)]
    queue = [sample.task(n, "train", {"CPU": 1}) for n in range(10, 47)]
    free = {"node_id": sample.NODE, "total": {"CPU": 4}, "available": {"CPU": 0}, "state": "ALIVE"}
    rows = together({"tasks": [*holders, *queue], "resources": [free]}, *map(in_socket, holders))
    [group] = read(**rows).groups
    assert len(group.behind) == 37
    assert {h.kind for h in group.behind} == {"resources"}
    assert render.headline(group).startswith(
        "37 tasks wait for load() (pid 801) and 1 more like it, each of which waits on "
    )


def test_a_queue_that_moves_does_not_hang(read: Read) -> None:
    short = [sample.running(n, "part", {"CPU": 2}, **hang.since(0.2)) for n in (1, 2)]
    old = hang.since(400, "PENDING_NODE_ASSIGNMENT")
    queue = [sample.task(n, "part", {"CPU": 1}, **old) for n in range(10, 47)]
    full = {"node_id": sample.NODE, "total": {"CPU": 4}, "available": {"CPU": 0}, "state": "ALIVE"}
    room = {**full, "available": {"CPU": 4}}
    for resources in (full, room):
        assert read(tasks=[*short, *queue], resources=[resources]).groups == ()


@pytest.mark.parametrize(
    ("needs", "kind"), [({"GPU": 1}, "resources"), ({"CPU": 1}, "worker-start")]
)
def test_what_cannot_be_placed(read: Read, needs: dict[str, float], kind: str) -> None:
    old = hang.since(400, "PENDING_NODE_ASSIGNMENT")
    free = {"node_id": sample.NODE, "total": {"CPU": 4}, "available": {"CPU": 4}, "state": "ALIVE"}
    [group] = read(tasks=[sample.task(1, "train", needs, **old)], resources=[free]).groups
    assert group.first.kind == kind


@pytest.mark.parametrize(
    ("age", "needs", "counts"),
    [(20, {"GPU": 1}, (0, 1)), (400, {"GPU": 1}, (1, 0)), (2, {"GPU": 1}, (0, 1)), (20, {"CPU": 1}, (0, 1))],
)  # fmt: skip
def test_a_wait_that_nothing_ends_is_reported_before_it_counts_as_hung(
    read: Read, age: int, needs: dict[str, float], counts: tuple[int, int]
) -> None:
    waits = hang.since(age, "PENDING_NODE_ASSIGNMENT")
    free = {"node_id": sample.NODE, "total": {"CPU": 4}, "available": {"CPU": 4}, "state": "ALIVE"}
    found = read(tasks=[sample.task(1, "train", needs, **waits)], resources=[free])
    assert (len(found.groups), len(found.early)) == counts
    view = render.HungView(found)
    assert ("Inconclusive" in render.verdict(view)) is bool(counts[1])
    assert len(json.loads(render.to_json(view))["early"]) == counts[1]


@pytest.mark.parametrize(("rested", "hangs"), [(2.0, 0), (200.0, 1)])
def test_a_runtime_environment_that_is_being_made(read: Read, rested: float, hangs: int) -> None:
    """What installs for minutes is at work; what has not run for minutes hangs."""
    folder = "/tmp/ray/session_1/runtime_resources/pip/0f"
    pip = {"pid": 77, "node_id": sample.NODE, "kind": "child", "state": "S", "title": f"{folder}/bin/python -m pip install -r {folder}/r.txt"}  # fmt: skip
    task = sample.task(1, "train", {}, **hang.since(400, "PENDING_NODE_ASSIGNMENT"))
    rests = [{"node_id": sample.NODE, "pid": 77, "family_s": rested}]
    found = read(tasks=[task], processes=[pip], rests=rests)
    assert len(found.groups) == hangs
    if hangs:
        assert found.groups[0].first.kind == "runtime-env"
        assert "`python -m pip install -r r.txt`" in found.groups[0].first.summary


# ------------------------------------------------------------------ deadlocks


BOOK, DESK = sample.actor(1, "OrderBook", {}), sample.actor(2, "RiskDesk", {})
ADD, APPROVE = (
    sample.call(1, "OrderBook.add", BOOK, **hang.since(20)),
    sample.call(2, "RiskDesk.approve", DESK, **hang.since(20)),
)
EXPOSURE = sample.call(3, "OrderBook.exposure", BOOK, worker_pid=None, **hang.since(20, "SUBMITTED_TO_WORKER"))  # fmt: skip


def deadlock() -> dict[str, list[sample.Row]]:
    base = {"tasks": [ADD, APPROVE, EXPOSURE], "worker_stats": [DRIVER], "actors": [BOOK, DESK]}
    driver = waits({**DRIVER_ROW}, ADD)
    return together(base, waits(ADD, APPROVE), waits(APPROVE, EXPOSURE), driver)


def test_a_deadlock_of_two_actors_is_exact(read: Read) -> None:
    [group] = read(**deadlock()).groups
    circle = [h.work.name for h in group.cycle]
    assert circle == ["OrderBook.add", "RiskDesk.approve", "OrderBook.exposure"]
    assert group.exact
    assert names(group.behind) == ["driver of job 1"]
    assert "its id was read from the process's memory" in " ".join(group.first.evidence)
    reply = json.loads(render.to_json(render.HungView(HungReport((group,), 3, ()))))
    assert [each["name"] for each in reply["cycles"][0]] == circle
    said = re.sub(r" \(pid \d+\)", "", render.headline(group))
    assert said == (
        "Deadlock: OrderBook.add() waits for RiskDesk.approve(), which waits for OrderBook.exposure(), "
        "which is queued behind OrderBook.add(); the driver waits for them"
    )


def test_a_deadlock_without_memory_says_that_it_is_a_guess(read: Read) -> None:
    children = [{**APPROVE, "parent_task_id": ADD["task_id"]}, {**EXPOSURE, "parent_task_id": APPROVE["task_id"]}]  # fmt: skip
    gets = [sample.in_ray_get(name, 1) for name in ("OrderBook.add", "RiskDesk.approve")]
    [group] = read(tasks=[ADD, *children], ray_get=gets, actors=[BOOK, DESK]).groups
    assert len(group.cycle) == 3
    assert not group.exact
    assert (
        "inferred from pending calls and references, not read from call stacks"
        in render.headline(group)
    )


def ring(*beside: sample.Row) -> dict[str, list[sample.Row]]:
    """Coroutines that await each other; they have no stacks, and what they call has their actor as its parent."""
    actors = [sample.actor(n, "Ring", {}) for n in (1, 2)]
    first = sample.call(1, "Ring.step", actors[0], **OLD)
    second = sample.call(2, "Ring.step", actors[1], **OLD, parent_task_id=f"{'f' * 16}{actors[0]['actor_id']}")  # fmt: skip
    queued = hang.since(290, "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY")
    third = sample.call(3, "Ring.step", actors[0], **queued, worker_pid=None, parent_task_id=f"{'f' * 16}{actors[1]['actor_id']}")  # fmt: skip
    return {
        "tasks": [first, second, third, *beside],
        "actors": actors,
        "samples": [row for task in (first, second) for row in resting(task)],
    }


def resting(task: sample.Row) -> list[sample.Row]:
    frames = [("_run_once", "asyncio/base_events.py", 1898, "python"), ("run_forever", "asyncio/base_events.py", 608, "python")]  # fmt: skip
    loop = hang.idle_thread(task["worker_pid"] + 9, "AsyncIO Thread: default", frames)
    return [{**row, "threads": [*row["threads"], loop]} for row in hang.waiting(task)]


def test_a_deadlock_of_coroutines(read: Read) -> None:
    [group] = read(**ring()).groups
    assert len(group.cycle) == 3
    assert not group.exact
    assert group.first.summary == "awaits Ring.step() (pid 802)"


ASYNCIO = [
    ("EpollSelector.select", "selectors.py", 468, "python"),
    ("BaseEventLoop._run_once", "asyncio/base_events.py", 1884, "python"),
    ("BaseEventLoop.run_until_complete", "asyncio/base_events.py", 640, "python"),
    ("fetch", "etl.py", 31, "user"),
    ("Worker.main_loop", "ray/_private/worker.py", 1069, "ray"),
]


def in_asyncio(task: sample.Row, rested: float) -> dict[str, list[sample.Row]]:
    """A task whose main thread runs an event loop, which watches a socket."""
    pid = task["worker_pid"]
    watched = {"fd": 9, "type": "tcp", "peer": "10.0.0.9:5432", "state": "ESTABLISHED", "tids": [pid]}  # fmt: skip
    thread = {"tid": pid, "rested_s": rested, "woken": False}
    return {
        "tasks": [task],
        "samples": hang.waiting(task, below=ASYNCIO),
        "clues": [hang.clues(task, sockets=[watched])],
        "rests": [{"node_id": sample.NODE, "pid": pid, "threads": [thread]}],
    }


def test_a_task_whose_coroutines_wait_for_a_socket_hangs(read: Read) -> None:
    [group] = read(**in_asyncio(LOAD, 280.0)).groups
    assert group.first.kind == "socket"
    assert "waits in asyncio on a socket to 10.0.0.9:5432" in group.first.summary
    titles = [remedy.title for remedy in remedies(group)]
    assert titles[0].endswith(", set a timeout on what is awaited")


def test_a_task_whose_coroutines_get_data_now_and_then_does_not_hang(read: Read) -> None:
    assert read(**in_asyncio(LOAD, 3.0)).groups == ()


def test_a_task_whose_coroutine_awaits_a_task_waits_for_that_one(read: Read) -> None:
    """Though its loop watches a socket, too: a connection that is kept for later."""
    mine = in_asyncio(LOAD, 280.0)
    child = {**TRAINS[0], "parent_task_id": LOAD["task_id"], **OLD}
    found = read(**{**mine, "tasks": [LOAD, child], "samples": [*mine["samples"], *hang.waiting(child, ("nap", "train.py", 9))]})  # fmt: skip
    (waiting,) = [h for g in found.groups for h in g.behind if h.work.id == LOAD["task_id"]]
    assert waiting.targets[0].id == child["task_id"]


def test_of_several_coroutines_it_is_unknown_which_awaits_the_one_call(read: Read) -> None:
    first = ring()["tasks"][0]
    other = {**first, "task_id": f"{7:016x}{first['task_id'][16:]}", "name": "Ring.watch"}
    found = read(**ring(other))
    assert found.groups == ()
    assert {w.hung.summary for w in found.open if w.hung.work.name == "Ring.watch"} == {
        "awaits, and a coroutine has no stack while it awaits"
    }


def test_a_wait_for_an_item_of_a_queue_is_reported_and_is_no_hang(read: Read) -> None:
    """Whether a task is going to put one is unknown."""
    get = sample.call(5, "_QueueActor.get", sample.actor(3, "_QueueActor", {}), **OLD)
    found = read(
        **together({"tasks": [get, TRAINS[0]], "samples": resting(get)}, waits(TRAINS[0], get))
    )
    assert found.groups == ()
    [wait] = found.open
    assert "waits for an item" in wait.hung.summary
    assert not found.is_conclusive
    assert "not known whether 1 long wait will end" in render.verdict(render.HungView(found))


QUEUE = sample.actor(3, "_QueueActor", {})
GET = sample.call(5, "_QueueActor.get", QUEUE, **OLD)
ALIVE = {"actor_id": QUEUE["actor_id"], "class_name": "_QueueActor", "state": "ALIVE", "name": ""}
SELF_PIPE = {"fd": 7, "type": "unix", "peer": "", "state": "ESTABLISHED"}


def asleep(task: sample.Row, *sockets: sample.Row, wakes: float | None = None) -> sample.Row:
    """An async actor whose event loop watches its own pipe, and has a timer or none."""
    tid = task["worker_pid"] + 9
    own = [{**each, "tids": [tid]} for each in (SELF_PIPE, *sockets)]
    rests = rest(task["worker_pid"], 200.0, tid=tid)
    rests["threads"][0]["wakes_s"] = wakes
    return {
        "samples": resting(task),
        "clues": [hang.clues(task, sockets=own)],
        "rests": [rests],
        "actors": [{**QUEUE, **ALIVE}],
    }


def test_a_queue_hangs_if_all_work_that_could_put_an_item_waits(read: Read) -> None:
    consumer = TRAINS[0]
    rows = together({"tasks": [GET, consumer]}, asleep(GET), waits(consumer, GET))
    [group] = read(**rows).groups
    assert (names(group.culprits), names(group.behind)) == (["_QueueActor.get"], ["train"])
    assert group.first.kind == "lock"
    assert "all other work that could call its actor waits" in group.first.reason
    assert next(remedies(group)).title.startswith("End the queue with a sentinel")


@pytest.mark.parametrize(
    "more",
    [
        {"tasks": [LOAD], "samples": hang.working(LOAD, ("load", "etl.py", 31))},
        {"worker_stats": [DRIVER]},
        {"actors": [{**ALIVE, "actor_id": f"{9:024x}01000000", "class_name": "Producer"}]},
        {"clues": [hang.clues(GET, sockets=[{**SELF_PIPE, "tids": [814]}] * 2)]},
    ],
    ids=["a task that works", "a driver outside of ray.get", "an idle actor", "another socket"],
)
def test_a_queue_into_which_something_may_put_an_item_is_open(
    read: Read, more: dict[str, list[sample.Row]]
) -> None:
    consumer = TRAINS[0]
    rows = together({"tasks": [GET, consumer]}, asleep(GET), waits(consumer, GET), more)
    found = read(**rows)
    assert found.groups == ()
    [wait] = [each for each in found.open if each.hung.work.kind != "driver"]
    assert wait.ends == ("a call of load() (pid 801)" if "tasks" in more else "a call of driver of job 1 (pid 700)" if "worker_stats" in more else "")  # fmt: skip
    assert wait.is_known is bool(wait.ends)


def in_loop(task: sample.Row, wakes: float | None, *sockets: sample.Row) -> dict[str, list[sample.Row]]:  # fmt: skip
    pid = task["worker_pid"]
    rests = rest(pid, 1.0 if wakes == 1 else 200.0)
    rests["threads"][0]["wakes_s"] = wakes
    own = [{**each, "tids": [pid]} for each in (SELF_PIPE, *sockets)]
    looks = hang.waiting(task, below=ASYNCIO, syscall=232, wchan="do_epoll_wait")
    clues = [hang.clues(task, sockets=own)]
    return {"tasks": [task], "samples": looks, "clues": clues, "rests": [rests]}


@pytest.mark.parametrize(("wakes", "kind"), [(None, "lock"), (9000.0, "sleep"), (1.0, None)])
def test_an_event_loop_in_a_task_hangs_without_a_socket_and_a_near_timer(
    read: Read, wakes: float | None, kind: str | None
) -> None:
    found = read(**in_loop(LOAD, wakes))
    assert [group.first.kind for group in found.groups] == ([kind] if kind else [])
    assert (len(found.working), found.open) == (0 if kind else 1, ())


@pytest.mark.parametrize(("state", "ends"), [("ESTABLISHED", ""), ("LISTEN", "a new connection")])
def test_an_event_loop_in_a_task_that_watches_something_else_is_open(
    read: Read, state: str, ends: str
) -> None:
    found = read(**in_loop(LOAD, None, {**SELF_PIPE, "state": state}))
    assert (found.groups, found.working) == ((), ())
    assert [wait.ends for wait in found.open] == [ends]


WAIT = [("Condition.wait", "threading.py", 327, "python"), ("Event.wait", "threading.py", 629, "python")]  # fmt: skip


def test_an_event_beside_a_heartbeat_is_open(read: Read) -> None:
    [row, *more] = hang.waiting(LOAD, below=[*WAIT, ("load", "etl.py", 31, "user")])
    boot = [("Thread.run", "threading.py", 982, "python"), ("Thread._bootstrap", "threading.py", 1002, "python")]  # fmt: skip
    beat = hang.idle_thread(850, "beat", [("beat", "etl.py", 9, "user"), *boot])
    beat |= {"wchan": "hrtimer_nanosleep", "syscall": 230}
    looks = [{**each, "threads": [*each["threads"], beat]} for each in (row, *more)]
    found = read(tasks=[LOAD], samples=looks)
    assert (found.groups, found.working, found.is_conclusive) == ((), (), False)
    assert [wait.ends for wait in found.open] == ["thread beat"]
    [group] = read(tasks=[LOAD], samples=[row, *more]).groups
    assert group.first.kind == "lock"


def test_an_event_in_one_of_several_threads_of_an_actor_waits_for_a_call(read: Read) -> None:
    gate = sample.actor(4, "Gate", {})
    wait = sample.call(6, "Gate.wait", gate, **OLD)
    thread = hang.idle_thread(850, "Dummy-1", [*WAIT, ("Gate.wait", "gate.py", 8, "user")])
    looks = [{**row, "threads": [*row["threads"], thread]} for row in hang.waiting(wait)]
    rows = {"tasks": [wait], "samples": looks, "actors": [{**ALIVE, **gate}], "worker_stats": [DRIVER]}  # fmt: skip
    found = read(**rows)
    assert (found.groups, [w.ends for w in found.open if w.hung.work.kind == "method"]) == ((), ["a call of driver of job 1 (pid 700)"])  # fmt: skip
    [group] = read(**together(rows, waits(DRIVER_ROW, wait))).groups
    assert (names(group.culprits), names(group.behind)) == (["Gate.wait"], ["driver of job 1"])


# ------------------------------------------------------------------ drivers outside of ray.get


@pytest.mark.parametrize(
    ("frames", "call", "ends"),
    [
        ([], (202, "futex_wait_queue"), None),
        ([("_wait_for_tstate_lock", "threading.py", 1119, "python")], (202, "futex_wait_queue"), None),
        ([("SocketIO.readinto", "socket.py", 706, "python")], (45, "wait_woken"), "its peer"),
        ([("Popen.wait", "subprocess.py", 1264, "python")], (61, "do_wait"), "its child process"),
        ([], (230, "hrtimer_nanosleep"), "its timer"),
        (WAIT, (202, "futex_wait_queue"), "a signal"),
    ],
)  # fmt: skip
def test_a_driver_outside_of_ray_get(
    read: Read, frames: list[Any], call: tuple[int, str], ends: str | None
) -> None:
    stack = [*frames, ("<module>", "main.py", 9, "user")]
    looks = hang.waiting(DRIVER_ROW, below=stack, syscall=call[0], wchan=call[1])
    rows = {"tasks": [], "worker_stats": [DRIVER], "samples": looks, "rests": [rest(700, 200.0)]}
    found = read(**rows)
    assert (found.working, found.unseen) == ((), ())
    if ends is None:
        [group] = found.groups
        assert group.first.reason == "its stack has not changed for 3 min 20 s"
        assert render.verdict(render.HungView(found)) == "1 driver is hung; 0 unfinished tasks."
    else:
        assert found.groups == ()
        assert ([wait.ends for wait in found.open], found.is_conclusive) == ([ends], True)
    young = read(**{**rows, "rests": [rest(700, 20.0)]})
    assert (young.groups, young.open, len(young.early)) == ((), (), int(ends is None))


@pytest.mark.parametrize(
    ("is_fork", "ends"),
    [(False, "its child process"), (True, "its child process, a fork in which Ray does not work,")],
)
def test_a_driver_whose_children_only_wake_up_is_reported(
    read: Read, is_fork: bool, ends: str
) -> None:
    """A fork that calls Ray waits for ever, and checks for signals every second."""
    stack = [("Pool.map", "multiprocessing/pool.py", 367, "python"), ("<module>", "main.py", 9, "user")]  # fmt: skip
    looks = hang.waiting(DRIVER_ROW, below=stack, syscall=202, wchan="futex_do_wait")
    child = {"pid": 77, "command": "python main.py", "state": "S", "rested_s": 0.1}
    clues = [{**hang.clues(DRIVER_ROW), "children": [{**child, "is_fork": is_fork}]}]
    rows = {"tasks": [], "worker_stats": [DRIVER], "samples": looks, "clues": clues}
    found = read(**rows, rests=[rest(700, 200.0)])
    assert [wait.ends for wait in found.open] == [ends]
    assert (
        render.verdict(render.HungView(found))
        == "No task runs or waits; 1 driver waits outside Ray."
    )
    young = read(**rows, rests=[rest(700, 20.0)])
    assert (young.open, names(young.drivers)) == ((), ["driver of job 1"])
    assert "main.py:9" in young.drivers[0].summary
    assert render.verdict(render.HungView(young)) == "No task runs or waits."


@pytest.mark.parametrize(("bundle", "seconds", "counts"), [(99, 300, (1, 0)), (99, 20, (0, 1)), (1, 300, (0, 0))])  # fmt: skip
def test_a_driver_that_waits_for_a_placement_group(
    read: Read, bundle: int, seconds: int, counts: tuple[int, int]
) -> None:
    """In Ray 2.60 no task makes the object of `pg.ready()`."""
    group = {
        "placement_group_id": f"{7:028x}01000000", "name": "", "state": "PENDING", "creator_job_id": "01000000",
        "bundles": [{"unit_resources": {"CPU": float(bundle)}, "node_id": ""}],
        "stats": {"creation_request_received_ns": str(int((sample.AT - seconds) * 1e9))},
    }  # fmt: skip
    ready = f"00{'f' * 38}0100000001e1f505"
    clues = {**hang.clues(DRIVER_ROW), "awaits": [{"tid": 700, "call": "get", "objects": [ready], "untold": 0, "exact": True}]}  # fmt: skip
    looks = hang.getting(DRIVER_ROW, ("<module>", "main.py", 9))
    found = read(tasks=[], worker_stats=[DRIVER], placement_groups=[group], samples=looks, clues=[clues])  # fmt: skip
    assert (len(found.groups), len(found.early)) == counts
    for each in (*(g.first for g in found.groups), *found.early):
        assert each.kind == "placement-group"
        assert "a bundle needs 99 CPUs, and the largest node has 4 CPUs" in each.summary


# ------------------------------------------------------------------ what is young, and what was not seen


def test_tasks_that_have_just_begun_are_not_called_busy(read: Read) -> None:
    young, busy = {**LOAD, **hang.since(3)}, sample.running(9, "busy", {}, **OLD)
    found = read(tasks=[young], samples=hang.waiting(young))
    said = render.verdict(render.HungView(found))
    assert said == "No task is hung yet: 1 unfinished task, younger than 5.0 s."
    works = {"tasks": [busy], "samples": hang.working(busy, ("busy", "etl.py", 3))}
    found = read(**together({"tasks": [young]}, works))
    assert "yet" not in render.verdict(render.HungView(found))


def test_a_stall_that_is_too_young_for_a_hang_is_no_all_clear(read: Read) -> None:
    young = {**LOAD, **hang.since(20)}
    found = read(**together({"tasks": [young]}, in_socket(young)))
    assert (found.groups, found.is_stalled, found.is_conclusive) == ((), True, False)
    said = render.verdict(render.HungView(found))
    assert "The oldest wait has lasted 20 s: load() (pid 801) waits on a socket" in said
    busy = sample.running(9, "busy", {}, **OLD)
    works = {"tasks": [busy], "samples": hang.working(busy, ("busy", "etl.py", 3))}
    found = read(**together({"tasks": [young]}, in_socket(young), works))
    assert (names(found.early), found.is_conclusive) == (["load"], True)


NAPS: Any = hang.waiting(LOAD, ("load", "etl.py", 31), wchan="hrtimer_nanosleep", syscall=230)
FOR_LOAD: dict[str, Any] = together(
    {"worker_stats": [DRIVER], "samples": hang.getting(DRIVER_ROW, ("<module>", "main.py", 9))},
    {"clues": [hang.clues(DRIVER_ROW, LOAD)]},
)


@pytest.mark.parametrize("age", [20, 300])
def test_work_that_may_poll_for_ever_is_no_all_clear_while_others_wait_for_it(
    read: Read, age: int
) -> None:
    """A loop of short sleeps polls, or works in steps: nothing but other work, or finished peers, tells which."""
    for n, row in enumerate(NAPS):
        row["threads"] = [{**row["threads"][0], "voluntary": 60 + 10 * n}]
    rows = {"tasks": [{**LOAD, **hang.since(age)}], "samples": NAPS}
    found = read(**together(rows, FOR_LOAD))
    listed = [*found.early, *(each.hung for each in found.open)]
    assert (names(listed), len(found.early)) == (["load"], int(age < 60))
    assert (found.groups, found.working, found.is_conclusive) == ((), (), False)
    assert "No task is hung" not in render.verdict(render.HungView(found))
    assert read(**rows).is_conclusive  # it may serve, or beat
    assert read(**together(rows, FOR_LOAD), finished=[hang.took("load", 5, 200.0)]).is_conclusive
    busy = sample.running(9, "busy", {}, **OLD)
    works = {"tasks": [busy], "samples": hang.working(busy, ("busy", "etl.py", 3))}
    assert read(**together(rows, FOR_LOAD, works)).is_conclusive


def repeated(frame: tuple[str, str, int, str], call: int, place: str) -> list[Any]:
    stack = [frame, ("load", "etl.py", 31, "user")]
    looks = hang.waiting(LOAD, below=stack, syscall=call, wchan=place)
    for n, row in enumerate(looks):
        row["threads"] = [{**row["threads"][0], "voluntary": 60 + 4 * n}]
    return looks


@pytest.mark.parametrize("age", [20, 300])
@pytest.mark.parametrize(
    "looks",
    [
        repeated((*RECV, "python"), 7, "poll_schedule_timeout"),
        repeated(("Event.wait", "threading.py", 629, "python"), 202, "futex_do_wait"),
        repeated(("EpollSelector.select", "selectors.py", 468, "python"), 232, "ep_poll"),
    ],
    ids=["a socket", "an event", "a selector"],
)
def test_a_wait_that_is_repeated_after_each_time_limit_is_no_all_clear(
    read: Read, looks: list[Any], age: int
) -> None:
    """`recv` with a timeout of half a second, in a loop: its thread has just run, and nothing has come."""
    rows = {"tasks": [{**LOAD, **hang.since(age)}], "samples": looks, "rests": [rest(801, 0.3)]}
    found = read(**together(rows, FOR_LOAD))
    listed = [*found.early, *(each.hung for each in found.open)]
    assert (names(listed), len(found.early)) == (["load"], int(age < 60))
    assert (found.groups, found.working, found.is_conclusive) == ((), (), False)
    assert read(**together(rows, FOR_LOAD), finished=[hang.took("load", 5, 200.0)]).is_conclusive
    busy = sample.running(9, "busy", {}, **OLD)
    works = {"tasks": [busy], "samples": hang.working(busy, ("busy", "etl.py", 3))}
    young = {**rows, "tasks": [{**LOAD, **hang.since(20)}]}
    assert read(**together(young, FOR_LOAD, works)).is_conclusive


def test_a_generator_whose_own_reader_waits_for_its_end_is_no_all_clear(read: Read) -> None:
    """Its task waits inside Ray, without a frame of the user's code."""
    rows = {"tasks": [LOAD], "samples": hang.waiting(LOAD)}
    assert read(**rows).is_conclusive
    found = read(**together(rows, FOR_LOAD))
    assert ([each.ends for each in found.open], found.is_conclusive) == ([""], False)


def test_a_worker_that_is_slow_to_start_matters_only_if_nothing_else_progresses(read: Read) -> None:
    task = sample.task(1, "train", {"CPU": 1}, **hang.since(20, "PENDING_NODE_ASSIGNMENT"))
    free = {"node_id": sample.NODE, "total": {"CPU": 4}, "available": {"CPU": 4}, "state": "ALIVE"}
    found = read(tasks=[task], resources=[free])
    assert (names(found.early), found.is_conclusive) == (["train"], False)
    busy = sample.running(9, "busy", {}, **OLD)
    works = {"tasks": [busy], "samples": hang.working(busy, ("busy", "etl.py", 3))}
    found = read(**together({"tasks": [task], "resources": [free]}, works))
    assert (names(found.early), found.is_conclusive) == (["train"], True)


def test_a_child_process_that_runs_for_moments_only_is_open(read: Read) -> None:
    """`tail -f` looks for new lines once a second: that is neither known to hang nor known to work."""
    frames = [
        ("Popen.communicate", "subprocess.py", 1209, "python"),
        ("load", "etl.py", 31, "user"),
    ]
    looks = hang.waiting(LOAD, below=frames, syscall=7, wchan="poll_schedule_timeout")
    child = {"pid": 812, "command": "tail -f log", "state": "S", "rested_s": 1.0}
    rows = {"tasks": [LOAD], "samples": looks, "clues": [{**hang.clues(LOAD), "children": [child]}]}
    found = read(**rows)
    assert (found.groups, found.working, found.is_conclusive) == ((), (), False)
    assert [wait.ends for wait in found.open] == ["its child process"]
    young = read(**{**rows, "tasks": [{**LOAD, **hang.since(20)}]})
    assert (names(young.early), young.open, young.is_conclusive) == (["load"], (), False)
    [group] = read(
        **{**rows, "clues": [{**hang.clues(LOAD), "children": [{**child, "rested_s": 200.0}]}]}
    ).groups
    assert group.first.kind == "subprocess"


def test_young_work_that_could_not_be_sampled_is_no_all_clear(tmp_path: Path) -> None:
    case = case_of(tmp_path, tasks=[{**LOAD, **hang.since(20)}])
    found = hung(case, 60.0, sampled_after=5.0)
    assert names_of(found.unseen) == ["load"]
    view = render.HungView(found)
    assert (
        render.verdict(view) == "No hung task found in what could be inspected: 1 unfinished task."
    )
    assert hung(case, 60.0).unseen == ()


def names_of(those: Sequence[Any]) -> list[str]:
    return [work.name for work in those]


@pytest.mark.parametrize(("lines", "hangs"), [((31, 31, 31), 1), ((31, 35, 31), 0)])
def test_work_whose_stack_moves_may_have_more_data_than_its_peers(
    read: Read, lines: tuple[int, ...], hangs: int
) -> None:
    looks = [hang.working(LOAD, ("load", "etl.py", line))[n] for n, line in enumerate(lines)]
    found = read(tasks=[LOAD], samples=looks, finished=[hang.took("load", 24, 0.5)])
    assert (len(found.groups), len(found.working)) == (hangs, 1 - hangs)


def test_who_makes_an_actor_that_needs_what_he_holds(read: Read) -> None:
    creator = sample.running(1, "creator", {"slot": 1}, **hang.since(20))
    pending = {"parent_task_id": creator["task_id"], "actor_id": f"{1:024x}01000000", **hang.since(20, "PENDING_NODE_ASSIGNMENT")}  # fmt: skip
    made = {**sample.task(2, "Child.__init__", {"slot": 1}, type="ACTOR_CREATION_TASK", **pending), "task_id": f"{'f' * 16}{1:024x}01000000"}  # fmt: skip
    ping = sample.task(3, "Child.ping", {}, type="ACTOR_TASK", **pending)
    rows = together({"nodes": [sample.node({"CPU": 4, "slot": 1})], "tasks": [creator, made, ping]}, waits(creator, ping))  # fmt: skip
    [group] = read(**rows).groups
    assert [h.work.name for h in group.cycle] == ["creator", "Child.ping", "Child.__init__"]


def test_threads_of_one_actor_in_one_method(read: Read) -> None:
    """It is unknown which thread runs which call: each may wait for what any of them awaits."""
    pool = sample.actor(1, "Pool", {})
    takes = [sample.call(n, "Pool.take", pool, worker_pid=850, **OLD) for n in (2, 3)]
    frames = [("Worker.get_objects", "ray/_private/worker.py", 1007, "ray"), ("Pool.take", "pool.py", 4, "user")]  # fmt: skip
    [row] = hang.waiting(takes[0], count=1)
    threads = [hang.idle_thread(tid, f"Dummy-{tid}", frames) for tid in (811, 812)]
    awaits = [hang.clues(takes[0], LOAD, tid=tid)["awaits"][0] for tid in (811, 812)]
    seen = [{**row, "threads": [*row["threads"], *threads]}]
    clues = [{**hang.clues(takes[0]), "awaits": awaits}]
    rows = together({"tasks": [LOAD, *takes], "samples": seen, "clues": clues}, in_socket(LOAD))
    [group] = read(**rows).groups
    assert names(group.behind) == ["Pool.take", "Pool.take"]
    assert not any(h.waiting.exact for h in group.behind if h.waiting)


def test_two_that_wait_while_a_third_works_are_no_deadlock(read: Read) -> None:
    work = sample.call(4, "Ledger.sum", sample.actor(9, "Ledger", {}), **OLD)
    rows = together({"tasks": [ADD, APPROVE, work]}, waits(ADD, APPROVE), waits(APPROVE, work))
    assert read(**rows).groups == ()


def test_parents_that_hold_what_their_children_need(read: Read) -> None:
    plans = [sample.running(n, "plan", {"licence": 1}, **hang.since(20)) for n in (1, 2)]
    parts = [sample.task(n + 2, "part", {"licence": 1}, parent_task_id=sample.task_id(n)) for n in (1, 2)]  # fmt: skip
    rows = together(
        {"nodes": [sample.node({"CPU": 4, "licence": 2})], "tasks": [*plans, *parts], "ray_get": [sample.in_ray_get("plan", 2)]},
        *(waits(plan, part) for plan, part in zip(plans, parts, strict=True)),
    )  # fmt: skip
    [group] = read(**rows).groups
    assert {h.work.name for h in group.cycle} == {"plan", "part"}
    assert {h.kind for h in group.all} == {"ray-get", "resources"}


def test_an_event_loop_that_a_coroutine_blocks(read: Read) -> None:
    crawler = sample.actor(1, "Crawler", {})
    crawl = sample.call(1, "Crawler.crawl", crawler, **OLD)
    others = [sample.call(n, "Crawler.fetch", crawler, worker_pid=801, **OLD) for n in (2, 3)]
    samples = hang.blocking(crawl, ("crawl", "crawl.py", 31))
    [group] = read(tasks=[crawl, *others], samples=samples, actors=[crawler]).groups
    assert (names(group.culprits), group.first.kind) == (["Crawler.crawl"], "async-blocked")
    assert names(group.behind) == ["Crawler.fetch", "Crawler.fetch"]


# ------------------------------------------------------------------ looks


SLEEPER = "import time\nprint('up', flush=True)\nwhile True: time.sleep(float({!r}))"


@pytest.fixture(scope="module")
def sleepers() -> Iterator[list[int]]:
    """Processes that sleep for ever, and in short steps."""
    run = [subprocess.Popen([sys.executable, "-c", SLEEPER.format(seconds)], stdout=subprocess.PIPE) for seconds in ("100", "0.1")]  # fmt: skip
    for each in run:
        assert each.stdout is not None
        each.stdout.readline()
    yield [each.pid for each in run]
    for each in run:
        each.kill()
        each.communicate()


@pytest.mark.skipif(
    not Path("/proc/self/sched").exists(), reason="a kernel without CONFIG_SCHED_DEBUG"
)
def test_how_long_a_thread_has_rested(sleepers: list[int]) -> None:
    idle, busy = sleepers

    def rested(pid: int) -> float | None:
        """None while it runs."""
        rows = _rests.of_threads([pid]).get(pid, ())
        return next((row["rested_s"] for row in rows if row["tid"] == pid), None)

    def is_distinguished() -> bool:
        return (rested(idle) or 0) > 1 > (rested(busy) or 1)

    until(is_distinguished)  # on a busy machine, the second one rests longer now and then
    before = rested(idle)
    family = _rests.of_families([idle])[idle]
    after = rested(idle)
    assert before is not None
    assert after is not None
    assert before - 0.5 <= family <= after + 0.5


@pytest.mark.skipif(
    not Path("/proc/self/sched").exists() or sys.version_info < (3, 11),
    reason="a kernel without CONFIG_SCHED_DEBUG, or a Python that sleeps in select",
)
def test_when_a_sleep_ends(sleepers: list[int]) -> None:
    began = psutil.Process(sleepers[0]).create_time()
    (row,) = [
        row for row in _rests.of_threads(sleepers[:1])[sleepers[0]] if row["tid"] == sleepers[0]
    ]
    assert row["wakes_s"] == pytest.approx(began + 100 - time.time(), abs=5)


@pytest.mark.skipif(
    not Path("/proc/self/sched").exists(), reason="a kernel without CONFIG_SCHED_DEBUG"
)
@pytest.mark.parametrize(("timeout", "wakes"), [(None, None), (100.0, 100.0)])
def test_when_the_next_timer_of_an_event_loop_is_due(
    timeout: float | None, wakes: float | None
) -> None:
    read, write = os.pipe()
    epoll = select.epoll()
    epoll.register(read, select.EPOLLIN)
    loop = threading.Thread(target=epoll.poll, args=(timeout,))
    loop.start()

    def row() -> sample.Row:
        rows = _rests.of_threads([os.getpid()])[os.getpid()]
        return next((each for each in rows if each["tid"] == loop.native_id), {})

    until(lambda: "wakes_s" in row())
    found = row()["wakes_s"]
    os.write(write, b"x")
    loop.join()
    assert found is None if wakes is None else found == pytest.approx(wakes, abs=5)
    epoll.close()
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(("together", "alone"), [([40.2, 40.1, 40.0, 39.8], [3.0]), ([], [40.0, 3.0, 2.9, 2.8, 2.7])])  # fmt: skip
def test_threads_that_a_look_has_woken_show_nothing(
    together: list[float], alone: list[float]
) -> None:
    assert sorted(_rests.woken([*together, *alone])) == sorted(together)


def test_the_oldest_are_looked_at_first_and_the_others_after_them(
    sleepers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "FIRST", 1)
    wanted = [stacks.ProcessToSample(pid) for pid in sleepers]
    reply = [
        (piece.path.rpartition("-")[2], [row["pid"] for row in json.loads(piece.data)["rows"]])
        for piece in sampling.take_samples(wanted, stacks.SampleOptions(samples=1))
        if isinstance(piece, Piece)
    ]
    assert reply == [
        ("rests.json", sleepers),
        ("samples.json", sleepers[:1]),
        ("clues.json", sleepers[:1]),
        ("samples.json", sleepers),
        ("clues.json", sleepers),
    ]


_THREADS = """
import threading, time
for _ in range(5):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
time.sleep(4)
print("up", flush=True)
threading.Event().wait()
"""


@pytest.mark.skipif(
    not Path("/proc/self/sched").exists(), reason="a kernel without CONFIG_SCHED_DEBUG"
)
def test_a_process_that_was_stopped_for_a_look_is_known_by_its_threads() -> None:
    with Program([sys.executable, "-c", _THREADS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not _rests.is_main_woken(process.pid)  # it ran later than the other threads
        process.send_signal(signal.SIGSTOP)
        until(lambda: (each := proc.read(process.pid)) is not None and each.state == "T")
        process.send_signal(signal.SIGCONT)
        until(lambda: _rests.is_main_woken(process.pid))
        process.kill()


def looked_at(**rows: Sequence[sample.Row]) -> list[str]:
    """The titles of the processes that `hung` samples."""
    pieces = {path: text.encode() for path, text in sample.tables(**rows).items()}
    found = suspects(pieces, Sampling(min_age_s=5))
    return sorted(each.title for those in found.elsewhere.values() for each in those)


def shown_by_worker(name: str, pid: int, *running: str, **more: Any) -> sample.Row:
    return {**DRIVER, "worker_id": name * 56, "worker_type": "WORKER", "pid": pid, "running_task_ids": list(running), **more}  # fmt: skip


def test_an_actor_that_is_being_made_is_looked_at() -> None:
    """Of it the GCS knows no worker; its worker knows."""
    made = sample.call(1, "Model.__init__", sample.actor(1, "Model", {}), **OLD, worker_id=None)
    worker = shown_by_worker("a", 801, made["task_id"])
    assert looked_at(tasks=[made], worker_stats=[worker]) == ["ray::Model.__init__"]
    assert looked_at(tasks=[made], worker_stats=[shown_by_worker("a", 801)]) == []


def test_workers_of_ray_train_are_looked_at_while_a_training_runs() -> None:
    actor = sample.actor(1, "RayTrainWorker", {})
    worker = shown_by_worker("b", 901, actor_id=actor["actor_id"])
    controller = shown_by_worker("c", 809, RUN["task_id"], actor_id=TRAINER["actor_id"])
    run = {**RUN, "worker_id": "c" * 56}
    both = looked_at(tasks=[run], actors=[actor], worker_stats=[worker, controller])
    assert both == ["ray::RayTrainWorker", "ray::TrainController.run"]
    assert looked_at(tasks=[LOAD], actors=[actor], worker_stats=[worker]) == []


def test_looks_have_an_end_however_many_there_are() -> None:
    many = Suspects(here=[stacks.ProcessToSample(pid) for pid in range(2000)])
    assert sampling.seconds(many, Sampling(samples=3, interval=1.0), timeout=10) <= 40


# ------------------------------------------------------------------ Ray Serve

REPLICA = sample.actor(1, "ServeReplica:a:Model", {})
SERVING = ("_run_user_code_event_loop", "ray/serve/_private/replica.py", 3746, "ray")
CALL = ("Model.__call__", "model/values.py", 7, "user")
POOL = ("WorkerThread.run", "anyio/_backends/_asyncio.py", 1124, "library")


def requests(count: int, *threads: list[Any], rested: float = 200.0) -> dict[str, list[sample.Row]]:
    """Calls of which Ray notes no start, in threads that no function of theirs stands in."""
    calls = [
        {**sample.call(n, "Model.handle_request", REPLICA, worker_pid=901), "events": [], "reported_by": "worker"}
        for n in range(count)
    ]  # fmt: skip
    loop = hang.idle_thread(909, "AsyncIO Thread: default", [("Thread.run", "threading.py", 982, "python")])  # fmt: skip
    own = [hang.idle_thread(910 + n, f"Thread-{n}", [*frames, *BOTTOM]) for n, frames in enumerate(threads)]  # fmt: skip
    looks = hang.waiting({"worker_pid": 901, "name": "ServeReplica:a:Model"})
    samples = [{**row, "threads": [*row["threads"], loop, *own]} for row in looks]
    threads_rested = [{"tid": t["tid"], "rested_s": rested, "woken": True} for t in own]
    rests = [{"node_id": sample.NODE, "pid": 901, "threads": threads_rested}]
    return {"tasks": calls, "actors": [REPLICA], "samples": samples, "rests": rests}


def test_a_handler_that_blocks_the_loop_of_its_replica(read: Read) -> None:
    [group] = read(**requests(2, [CALL, SERVING])).groups
    assert (len(group.culprits), group.first.kind) == (1, "async-blocked")
    assert len(group.behind) == 1
    assert read(**requests(2, [SERVING])).groups == ()


def test_handlers_that_stand_in_a_pool_of_their_replica(read: Read) -> None:
    [group] = read(**requests(2, [SERVING], [CALL, POOL], [CALL, POOL])).groups
    assert len(group.culprits) == 2
    assert "model/values.py:7" in render.headline(group)
    assert read(**requests(3, [SERVING], [CALL, POOL], [CALL, POOL])).groups == ()


def test_a_request_that_has_come_just_now_is_no_hang(read: Read) -> None:
    found = read(**requests(1, [SERVING], [CALL, POOL], rested=2.0))
    assert found.groups == ()
    assert len(found.working) == 1


def test_a_request_of_unknown_age_that_waits_is_open_and_not_busy(read: Read) -> None:
    event = [("Condition.wait", "threading.py", 327, "python"), ("Event.wait", "threading.py", 629, "python")]  # fmt: skip
    for threads in ([[SERVING]], [[SERVING], [*event, CALL, POOL]]):
        found = read(**requests(1, *threads, rested=0.5))
        assert [each.hung.work.pid for each in found.open] == [901]
        assert (found.groups, found.working, found.is_conclusive) == ((), (), False)
    controller = sample.actor(2, "ServeController", {})
    poll = {**sample.call(1, "ServeController.listen_for_change", controller, worker_pid=901), "events": [], "reported_by": "worker"}  # fmt: skip
    assert read(**{**requests(1, [SERVING]), "tasks": [poll]}).open == ()


# ------------------------------------------------------------------ Ray Train

TRAINER = sample.actor(9, "TrainController", {})
RUN = sample.call(9, "TrainController.run", TRAINER, **OLD)
ALL_REDUCE = ("all_reduce", "torch/distributed/distributed_c10d.py", 3252, "library")
RUNNER = ("ThreadRunner.run.<locals>._run_target", "ray/train/v2/_internal/execution/worker_group/thread_runner.py", 37, "ray")  # fmt: skip


def ranks(*tops: tuple[str, str, int, str], works: bool = False) -> dict[str, list[sample.Row]]:
    """Loops of Ray Train: threads of actors without a call. The last one works on wish."""
    rows = together({"tasks": [RUN], "samples": resting(RUN)})
    for number, top in enumerate(tops, 1):
        actor = sample.actor(number, "RayTrainWorker", {}, placement_group_id="e" * 32)
        worker = {**DRIVER, "worker_id": f"{number}" * 56, "worker_type": "WORKER", "pid": actor["pid"], "actor_id": actor["actor_id"]}  # fmt: skip
        thread = hang.idle_thread(actor["pid"] + 9, "TrainingThread", [top, ("loop", "train.py", 13, "user"), RUNNER, *BOTTOM])  # fmt: skip
        looks = hang.waiting({"worker_pid": actor["pid"], "name": "RayTrainWorker"})
        busy = {"active": True, "state": "R"} if works and number == len(tops) else {}
        more = {"worker_id": worker["worker_id"]}
        samples = [{**row, **more, "threads": [*row["threads"], {**thread, **busy}]} for row in looks]  # fmt: skip
        rows = together(rows, {"actors": [actor], "worker_stats": [worker], "samples": samples})
    return rows


BOTTOM = [("Thread._bootstrap_inner", "threading.py", 1045, "python"), ("Thread._bootstrap", "threading.py", 1002, "python")]  # fmt: skip


def test_ranks_in_a_collective_wait_for_the_one_that_is_elsewhere(read: Read) -> None:
    elsewhere = ("SocketIO.readinto", "socket.py", 706, "python")
    [group] = read(**ranks(ALL_REDUCE, ALL_REDUCE, elsewhere)).groups
    assert [h.work.pid for h in group.culprits] == [903]
    assert [(h.work.pid, h.kind) for h in group.behind if h.work.pid != 809] == [
        (901, "collective"),
        (902, "collective"),
    ]
    assert "TrainController.run" in names(group.behind)
    assert group.first.place
    assert group.first.place.place == "loop() (train.py:13)"


def test_ranks_that_are_all_in_a_collective_hang_together(read: Read) -> None:
    [group] = read(**ranks(ALL_REDUCE, ALL_REDUCE)).groups
    assert (len(group.culprits), group.first.kind) == (2, "collective")


def test_ranks_that_wait_for_one_that_works_do_not_hang(read: Read) -> None:
    assert (
        read(**ranks(ALL_REDUCE, ("forward", "model/values.py", 4, "user"), works=True)).groups
        == ()
    )


# ------------------------------------------------------------------ whatever the order


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_the_order_of_rows_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, order: random.Random, with_deadlock: bool
) -> None:
    rows = deadlock() if with_deadlock else chain()
    shuffled = {name: order.sample(each, len(each)) for name, each in rows.items()}
    folder = tmp_path_factory.mktemp("rows")
    reply = [
        [(ids_of(g.culprits), ids_of(g.cycle), ids_of(g.behind)) for g in hung(case, 60.0).groups]
        for case in (case_of(folder, **rows), case_of(folder, **shuffled))
    ]
    assert reply[0] == reply[1]


def ids_of(those: Sequence[Any]) -> list[str]:
    return [each.work.id for each in those]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_one_that_hangs_is_in_exactly_one_group(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tasks = [sample.running(n, f"f{n}", {}, **OLD) for n in range(1, 8)]
    parts = []
    for task in tasks:
        awaited = data.draw(st.lists(st.sampled_from(tasks), max_size=3, unique_by=id))
        stands = data.draw(st.booleans())
        parts.append(waits(task, *awaited) if awaited else in_socket(task) if stands else {})
    case = case_of(tmp_path_factory.mktemp("rows"), **together({"tasks": tasks}, *parts))
    groups: Sequence[HungGroup] = hung(case, 60.0).groups
    members = [h.work.id for g in groups for h in g.all]
    assert len(members) == len(set(members))
    for group in groups:
        assert {h.work.id for h in group.cycle} <= {h.work.id for h in group.culprits}
        assert bool(group.cycle) != (group.first.waiting is None)


# ------------------------------------------------------------------ a real cluster

PROGRAM = """
import asyncio, hashlib, os, pathlib, ray, socket, threading, time
from ray.util.queue import Queue
ray.init()
print("first", flush=True)
silent = socket.create_server(("127.0.0.1", 0))
port = silent.getsockname()[1]
small = dict(num_cpus=0.01)

def began(name):
    pathlib.Path(os.environ["RAYDOCTOR_TEST"], "began-" + name).touch()

@ray.remote(**small)
def load(part):
    time.sleep(0.05)
    if part == 30:
        began("load")
        socket.create_connection(("127.0.0.1", port)).recv(1)

@ray.remote(**small)
def train(parts, number):
    began("train-" + str(number))
    ray.get(parts)

@ray.remote(**small)
class Member:
    def meet(self, other): self.other = other
    def ping(self): return ray.get(self.other.pong.remote())
    def pong(self): return ray.get(self.other.pang.remote())
    def pang(self):
        look = self.other.look.remote()
        began("pang")
        return ray.get(look)
    def look(self): return 1

@ray.remote(resources={"seat": 1}, num_cpus=0)
def parent():
    part = child.remote()
    began("parent")
    return ray.get(part)

@ray.remote(resources={"seat": 1}, num_cpus=0)
def child(): pass

@ray.remote(**small)
class Crawler:
    async def crawl(self):
        began("crawl")
        time.sleep(9999)
    async def fetch(self): return 1

@ray.remote(max_concurrency=1, **small)
class Ring:
    async def join(self, other): self.other = other
    async def step(self, steps):
        if steps == 0: began("ring")
        return await self.other.step.remote(steps - 1)

@ray.remote(**small)
def naps():
    began("naps")
    while True: time.sleep(1)

@ray.remote(**small)
def count():
    began("count")
    while True: pass

@ray.remote(**small)
def hashes():
    began("hashes")
    while True: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 100_000)

@ray.remote(**small)
def waits_for_work(refs):
    began("waits")
    ray.get(refs)

@ray.remote(**small)
def never_set():
    began("never_set")
    asyncio.run(asyncio.Event().wait())

@ray.remote(**small)
def beside_heartbeat():
    threading.Thread(target=naps_here, daemon=True).start()
    began("beside")
    threading.Event().wait()

def naps_here():
    while True: time.sleep(0.5)

@ray.remote(**small)
def consume(queue):
    began("consume")
    queue.get()

for part in range(30): ray.get(load.remote(part))  # in one worker: only the first is slow
for part in range(9): ray.get(load.options(name="another").remote(part))
loading = load.remote(30)
trains = [train.remote([loading], number) for number in range(2)]
one, two, three = Member.remote(), Member.remote(), Member.remote()
ray.get([one.meet.remote(two), two.meet.remote(three), three.meet.remote(one)])
circle = one.ping.remote()
nested = parent.remote()
crawler = Crawler.remote()
crawling = [crawler.crawl.remote()]
ring = [Ring.remote(), Ring.remote()]
ray.get([ring[0].join.remote(ring[1]), ring[1].join.remote(ring[0])])
steps = ring[0].step.remote(1)
def until_all_began(*names):
    while not all(pathlib.Path(os.environ["RAYDOCTOR_TEST"], "began-" + name).exists() for name in names):
        time.sleep(0.1)

queue = Queue(actor_options=small)
waiting = [never_set.remote(), beside_heartbeat.remote(), consume.remote(queue)]
until_all_began("load", "train-0", "train-1", "pang", "parent", "crawl", "ring", "never_set", "beside", "consume")
crawling.append(crawler.fetch.remote())
working = [count.remote(), hashes.remote(), naps.remote()]  # last: the workers above would wait for processors
patient = [waits_for_work.remote(working[:1])]
until_all_began("count", "hashes", "naps", "waits")
time.sleep(3.5)
print("ready", flush=True)
ray.get(trains)
"""


LOCKED = """
import ray, threading
ray.init()
print("locked", flush=True)
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""
AT_WORK = {"count", "hashes", "naps"}
YOUNGEST = "Crawler.fetch"
"""The last call of the program that hangs."""
LATE = {YOUNGEST, "never_set", "driver of job 2"}
TRIES = 5
"""While processors are short, a coroutine may run late and so be listed as at work, and a call arrive late."""


@pytest.fixture(scope="module")
def hanging() -> dict[str, Any]:
    """What `raydoctor hung` says of a cluster where several things hang at once, and others work.

    The cluster ends right after it: its loops would keep both processors from other tests.
    """
    with real_ray() as ray:
        ray.start('--resources={"seat": 1}', dashboard=False, lean=True)
        ray.run(PROGRAM)
        ray.wait_for("first")
        ray.run(LOCKED)
        ray.wait_for("locked", "driver-1.txt")
        ray.wait_for("ready")
        command = [sys.executable, "-m", "raydoctor", "hung", "--json", "--address", ray.address]
        command += ["--min-age", "3s", "--every", "500ms", "--timeout", "20"]
        for _ in range(TRIES):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 1, done.stderr
            reply = json.loads(done.stdout)
            hung = {each["task"]["name"] for each in reply["hung"]}
            if hung >= LATE and {e["task"]["name"] for e in reply["working"]} <= AT_WORK:
                break
    return reply


def of(reply: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in reply["hung"] if each["task"]["name"] == name)


def together_with(reply: dict[str, Any], name: str) -> set[str]:
    group = of(reply, name)["group"]
    return {each["task"]["name"] for each in reply["hung"] if each["group"] == group}


@pytest.mark.ray
def test_a_chain_on_a_real_cluster(hanging: dict[str, Any]) -> None:
    culprit = of(hanging, "load")
    assert culprit["kind"] == "socket"
    [address] = culprit["waits_for"]
    assert address["kind"] == "address"
    assert address["name"].startswith("127.0.0.1:")
    assert "30 finished" in culprit["why"]  # not those of another name
    assert together_with(hanging, "load") == {"load", "train", "driver of job 1"}
    [headline] = [
        g["headline"] for g in hanging["groups"] if culprit["task"]["id"] in g["culprits"]
    ]
    assert headline.startswith("2 tasks and the driver wait for load() (pid ")


@pytest.mark.ray
def test_a_circle_of_three_actors_on_a_real_cluster(hanging: dict[str, Any]) -> None:
    [circle] = [c for c in hanging["cycles"] if c[0]["name"].startswith("Member")]
    names = ["Member.ping", "Member.pong", "Member.pang", "Member.look"]
    assert [each["name"] for each in circle] == names
    assert of(hanging, "Member.ping")["exact"]


@pytest.mark.ray
def test_a_nested_get_on_a_real_cluster(hanging: dict[str, Any]) -> None:
    assert {"parent", "child"} in [
        {each["name"] for each in circle} for circle in hanging["cycles"]
    ]
    assert of(hanging, "child")["kind"] == "resources"


@pytest.mark.ray
def test_a_blocked_event_loop_on_a_real_cluster(hanging: dict[str, Any]) -> None:
    assert of(hanging, "Crawler.crawl")["kind"] == "async-blocked"
    assert YOUNGEST in together_with(hanging, "Crawler.crawl")


@pytest.mark.ray
def test_what_works_and_who_waits_for_it_does_not_hang(hanging: dict[str, Any]) -> None:
    names = {each["task"]["name"] for each in hanging["hung"]}
    assert not names & {"count", "hashes", "naps", "waits_for_work"}
    kinds = {each["task"]["name"]: each["kind"] for each in hanging["working"]}
    assert not kinds.keys() & {each["task"]["name"] for each in hanging["open"]}
    assert (kinds["count"], kinds["hashes"]) == ("python-loop", "native")
    assert set(kinds) <= AT_WORK


@pytest.mark.ray
def test_waits_that_nothing_in_their_process_can_end_on_a_real_cluster(
    hanging: dict[str, Any],
) -> None:
    assert of(hanging, "never_set")["kind"] == "lock"
    assert of(hanging, "driver of job 2")["kind"] == "lock"
    ends = {each["task"]["name"]: each["may_end"] for each in hanging["open"]}
    assert "naps_here" in ends["beside_heartbeat"]
    assert ends["_QueueActor.get"].startswith("a call of ")


@pytest.mark.ray
def test_a_circle_of_coroutines_on_a_real_cluster(hanging: dict[str, Any]) -> None:
    [cycle] = [c for c in hanging["cycles"] if c[0]["name"] == "Ring.step"]
    assert len(cycle) == 3
    assert of(hanging, "Ring.step")["words"].startswith("awaits Ring.step")


FORKED = """
import os, time, ray
ray.init()

@ray.remote(max_retries=0)
def convert():
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.close(ours)
        os.write(theirs, b"x")
        time.sleep(600)
        os._exit(0)
    os.read(ours, 1)
    os._exit(1)

task = convert.remote()
print("ready", flush=True)
ray.get(task)
"""


@pytest.mark.ray
def test_a_worker_that_ended_while_its_fork_keeps_its_connections() -> None:
    """Ray lists the task as running: the fork has inherited the connections of its worker."""
    with real_ray() as ray:
        ray.start(dashboard=False, lean=True)
        ray.run(FORKED)
        ray.wait_for("ready")
        command = [sys.executable, "-m", "raydoctor", "hung", "--json", "--address", ray.address]
        reply: dict[str, Any] = {"hung": []}

        def is_reported() -> bool:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            reply.update(json.loads(done.stdout))
            return any(each["kind"] == "process-ended" for each in reply["hung"])

        until(is_reported, 40)
        row = of(reply, "convert")
        (fork,) = ray.processes("ray::convert")
        assert f"because its fork pid {fork.pid} (ray::convert) keeps" in row["words"]
        assert [each["name"] for each in row["waits_for"]] == [f"pid {fork.pid}"]
        fork.kill()
        ray.wait_for("WorkerCrashedError")


# ------------------------------------------------------------------ --save


@pytest.mark.parametrize("name", ["flame.svg", "profile.speedscope.json"])
def test_a_profile_of_the_culprit(tmp_path: Path, name: str) -> None:
    text = "import time\ndef stands_still():\n    print('now', flush=True)\n    time.sleep(99)\nstands_still()"
    with Program([sys.executable, "-c", text], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            found = proc.read(process.pid)
            assert found is not None
            assert "does not run" in profile.record(process.pid, 1.0, tmp_path / name, 1)
            assert profile.record(process.pid, found.started_at, tmp_path / name, 1) == ""
        finally:
            process.kill()
    assert "stands_still" in (tmp_path / name).read_text()
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("about", "is_optional"), [("stacks", False), ("table", True)])
def test_missing_stacks_make_the_result_inconclusive(about: str, is_optional: bool) -> None:
    """Exit code 3, not 0: a hang may be hidden."""
    from raydoctor.cli import hung as command
    from raydoctor.model.values import Gap

    gap = Gap("something", "did not answer within 16 s", optional=True, about=about)
    assert command._required(gap).optional is is_optional
