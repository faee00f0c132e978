"""Jobs and requests that are too young to be judged are no all-clear; work that is done, or goes on, is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydoctor.capture.open import open_capture
from raydoctor.case import Case
from raydoctor.diagnosis import engine
from raydoctor.read import live
from raydoctor.render import hung as render
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples as hang
from raydoctor.rules.shared.live import processes
from raydoctor.waits.hung import HungReport, hung

Rows = dict[str, list[sample.Row]]
JOB = "01000000"
DRIVER_PID = 700


def job(age: float, status: str = "RUNNING") -> sample.Row:
    began = int((sample.AT - age) * 1000)
    return {"job_id": JOB, "type": "DRIVER", "status": status, "start_time": began}


def stats(pid: int, executed: int, *running: sample.Row, **more: Any) -> sample.Row:
    return {
        "worker_id": f"{pid:056x}",
        "pid": pid,
        "node_id": sample.NODE,
        "worker_type": "WORKER",
        "answers": True,
        "job_id": JOB,
        "running_task_ids": [task["task_id"] for task in running],
        "num_executed_tasks": executed,
        **more,
    }


def driver(pending: int = 0) -> sample.Row:
    worker = f"{JOB}{'f' * 48}"
    return stats(DRIVER_PID, 0, worker_id=worker, worker_type="DRIVER", num_pending_tasks=pending)


def process(state: str) -> sample.Row:
    more = {"node_id": sample.NODE, "job_id": JOB, "state": state, "is_this": True}
    return processes.process(DRIVER_PID, "driver", "python main.py", **more)


def tables(**more: list[sample.Row]) -> Rows:
    """A cluster with two CPUs whose only job began 12 s ago."""
    nodes = [sample.node({"CPU": 2}, start_time_ms=int(sample.AT - 300) * 1000)]
    own: Rows = {"nodes": nodes, "tasks": [], "jobs": [job(12)], "worker_stats": [driver()]}
    return own | more


def written(folder: Path, rows: Rows) -> Path:
    (folder / "live").mkdir()
    for name, text in sample.tables(**rows).items():
        (folder / name).write_text(text)
    return folder


def both(folder: Path, rows: Rows) -> tuple[HungReport, list[str], list[str]]:
    """What `hung` finds, what a diagnosis leaves open, and the rules that it names."""
    with open_capture(str(written(folder, rows))) as capture:
        found = hung(Case(live.read(capture.files, [])))
        report = engine.run(capture, strict=True)
    left = [gap.why for gap in report.gaps if gap.is_observation]
    return found, left, [each.rule for each in report.diagnoses if each.severity == "error"]


def verdict(found: HungReport) -> str:
    return render.verdict(render.HungView(found))


# ------------------------------------------------------------------ requests


def test_a_request_that_no_node_can_meet_is_no_all_clear_before_it_is_reported(
    tmp_path: Path,
) -> None:
    merge = sample.task(1, "merge", {"CPU": 8}, **hang.since(3.7, "PENDING_NODE_ASSIGNMENT"))
    rows = tables(tasks=[merge], jobs=[job(300)])
    found, left, failed = both(tmp_path, rows)
    assert (failed, found.groups, found.is_conclusive) == ([], (), False)
    assert left == [
        "1 merge() task waits for 8 CPUs, which no node has; after 3.7 s it is too early to judge that"
    ]
    assert verdict(found).endswith("Repeat raydoctor hung in 2 s.")


def test_a_request_that_no_node_can_meet_is_reported_after_five_seconds(tmp_path: Path) -> None:
    merge = sample.task(1, "merge", {"CPU": 8}, **hang.since(8, "PENDING_NODE_ASSIGNMENT"))
    found, _, failed = both(tmp_path, tables(tasks=[merge], jobs=[job(300)]))
    assert failed == ["infeasible-request"]
    assert found.young == ()


def group(age: float, cpus: float) -> sample.Row:
    return {
        "placement_group_id": f"{7:028x}{JOB}",
        "name": "trial",
        "state": "PENDING",
        "creator_job_id": JOB,
        "bundles": [{"unit_resources": {"CPU": cpus}, "node_id": ""}],
        "stats": {"creation_request_received_ns": str(int((sample.AT - age) * 1e9))},
    }


@pytest.mark.parametrize(("cpus", "is_open"), [(6, True), (1, False)])
def test_a_young_placement_group_that_no_node_can_hold_is_no_all_clear(
    cpus: float, is_open: bool, tmp_path: Path
) -> None:
    """A trial of Ray Tune: no task or actor waits for its group."""
    rows = tables(placement_groups=[group(2, cpus)], jobs=[job(300)])
    found, left, failed = both(tmp_path, rows)
    assert (failed, found.is_conclusive) == ([], not is_open)
    assert [why.partition(":")[0] for why in left] == ["placement group trial is pending"] * is_open


@pytest.mark.parametrize("works", [True, False])
def test_a_young_request_for_what_idle_actors_hold_is_no_all_clear(
    works: bool, tmp_path: Path
) -> None:
    holders = [sample.actor(n, "Cache", {"CPU": 1}, pid=800 + n) for n in (2, 3)]
    young = sample.task(1, "load", {"CPU": 1}, **hang.since(3, "PENDING_NODE_ASSIGNMENT"))
    other = sample.running(9, "serve", {}, **hang.since(1))
    rows = tables(actors=holders, tasks=[young, other] if works else [young], jobs=[job(300)])
    found, left, failed = both(tmp_path, rows)
    assert failed == []
    assert found.is_conclusive is works  # what runs may end them
    assert (
        any("2 Cache actors hold 2 of 2 CPUs and run nothing" in why for why in left) is not works
    )


# ------------------------------------------------------------------ jobs


@pytest.mark.parametrize(("age", "is_open"), [(12, True), (29, True), (31, False)])
def test_a_job_that_has_only_begun_is_no_all_clear(
    age: float, is_open: bool, tmp_path: Path
) -> None:
    """Ray Tune imports for seconds before it requests anything."""
    found, left, failed = both(tmp_path, tables(jobs=[job(age)], processes=[process("R")]))
    assert (failed, found.is_conclusive) == ([], not is_open)
    said = f"ob 1 began {age} s ago and has no unfinished task; that is too early to judge it"
    assert left == [f"j{said}"] * is_open
    if is_open:
        again = f"Repeat raydoctor hung in {30 - age} s."
        assert verdict(found) == f"Inconclusive: 0 unfinished tasks. J{said}. {again}"


def test_an_ended_job_is_never_too_young(tmp_path: Path) -> None:
    rows = tables(jobs=[job(12, "SUCCEEDED")], worker_stats=[])
    assert both(tmp_path, rows)[1:] == ([], [])


def test_a_cluster_without_jobs_is_well(tmp_path: Path) -> None:
    found, left, failed = both(tmp_path, tables(jobs=[], worker_stats=[]))
    assert (left, failed, found.is_conclusive) == ([], [], True)


@pytest.mark.parametrize(
    ("state", "pending", "is_open"), [("S", 0, False), ("R", 0, True), ("S", 1, True)]
)
def test_a_young_job_that_has_finished_its_work_is_well_while_its_driver_sleeps(
    state: str, pending: int, is_open: bool, tmp_path: Path
) -> None:
    """Ray Data computes in the driver before it starts its first actor."""
    cache = sample.actor(2, "Cache", {}, pid=802)
    done = stats(802, 2, actor_id=cache["actor_id"])  # its constructor and a method
    rows = tables(actors=[cache], worker_stats=[driver(pending), done], processes=[process(state)])
    found, left, _ = both(tmp_path, rows)
    assert (found.is_conclusive, len(left)) == (not is_open, int(is_open))


@pytest.mark.parametrize(
    ("executed", "age", "is_open"), [(1, 2, True), (2, 2, False), (1, 6, False)]
)
def test_a_young_job_is_well_while_it_works(
    executed: int, age: float, is_open: bool, tmp_path: Path
) -> None:
    """Ray counts a task when it begins. After five seconds the stack of a task can be judged."""
    load = sample.running(1, "load", {"CPU": 1}, **hang.since(age))
    busy = hang.working(load, ("load", "etl.py", 3))
    worker = stats(801, executed, load)
    rows = tables(tasks=[load], worker_stats=[driver(1), worker], samples=busy)
    assert both(tmp_path, rows)[0].is_conclusive is not is_open


def test_a_young_job_whose_actor_starts_is_no_all_clear(tmp_path: Path) -> None:
    """The controller of Ray Train runs, and the actor that watches its groups is being created."""
    run = sample.running(1, "TrainController.run", {}, **hang.since(2))
    cleaner = sample.actor(3, "PlacementGroupCleaner", {}, state="PENDING_CREATION", pid=0)
    rows = tables(tasks=[run], actors=[cleaner], worker_stats=[driver(1), stats(801, 5, run)])
    found, left, _ = both(tmp_path, rows)
    assert not found.is_conclusive
    assert left == [
        "job 1 began 12 s ago and its oldest unfinished task, TrainController.run(), runs; that is "
        "too early to judge it"
    ]


def test_a_driver_whose_job_is_not_listed_yet_is_no_all_clear(tmp_path: Path) -> None:
    rows = tables(
        jobs=[], worker_stats=[], processes=[{**process("R"), "started_at": sample.AT - 2}]
    )
    assert both(tmp_path, rows)[1] == [
        "job 1 began 2.0 s ago and has no unfinished task; that is too early to judge it"
    ]


def test_a_capture_of_an_older_raydoctor_is_not_called_too_young(tmp_path: Path) -> None:
    """It does not say how many tasks a worker has executed."""
    old = {name: value for name, value in driver().items() if name != "num_executed_tasks"}
    assert both(tmp_path, tables(worker_stats=[old]))[1] == []


# ------------------------------------------------------------------ peers


@pytest.mark.parametrize(("age", "is_open"), [(10, True), (1.5, False)])
def test_a_lock_that_a_task_waits_in_for_longer_than_its_peers_took_is_no_all_clear(
    age: float, is_open: bool, tmp_path: Path
) -> None:
    """Ten times as long, it hangs; before that, nothing shows that it ends."""
    shard = sample.running(1, "shard", {"CPU": 1}, **hang.since(age))
    rows = tables(
        tasks=[shard],
        jobs=[job(300)],
        finished=[hang.took("shard", 3, 1.8)],
        samples=hang.waiting(shard, ("shard", "main.py", 8), wchan="futex_wait_queue", syscall=202),
    )
    found, left, _ = both(tmp_path, rows)
    assert found.groups == ()
    assert (found.is_conclusive, len(left)) == (not is_open, int(is_open))
