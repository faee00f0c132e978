"""Actors that wait to be placed: also those of which Ray records no tasks, such as Serve's replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydoctor.capture.open import open_capture
from raydoctor.case import Case
from raydoctor.diagnosis import engine
from raydoctor.read import live
from raydoctor.render import hung as render
from raydoctor.render.page import plain
from raydoctor.rules.nested_get_deadlock import nested_get_deadlock
from raydoctor.rules.placement_group_pending import placement_group_pending
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples as hang
from raydoctor.rules.shared.live import processes
from raydoctor.waits import remedies
from raydoctor.waits.hung import HungReport, hung
from tests.helpers import FIXTURES

REPLICA = "ServeReplica:app:Model"


def report(folder: Path, **rows: list[sample.Row]) -> HungReport:
    for name, text in sample.tables(**rows).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with open_capture(str(folder)) as capture:
        return hung(Case(live.read(capture.files, [])))


@pytest.mark.parametrize(("state", "pid", "waits"), [("PENDING_CREATION", 0, True), ("RESTARTING", 0, True), ("PENDING_CREATION", 812, False), ("ALIVE", 812, False)])  # fmt: skip
def test_a_replica_that_fits_on_no_node(state: str, pid: int, waits: bool, tmp_path: Path) -> None:
    """For how long it has waited is unknown: neither hung nor well."""
    replica = sample.actor(1, REPLICA, {"GPU": 1}, state=state, pid=pid)
    found = report(tmp_path, nodes=[sample.node({"CPU": 2})], actors=[replica], tasks=[])
    assert found.groups == ()
    assert [each.work.name for each in found.early] == [REPLICA] * waits
    assert found.is_conclusive is not waits


def test_a_breakpoint_in_a_process_that_was_not_sampled_is_no_all_clear(tmp_path: Path) -> None:
    worker = {"worker_id": "c" * 56, "pid": 801, "is_alive": True, "num_paused_threads": 1}
    young = sample.running(1, "clean", {}, worker_id="c" * 56, **hang.since(2))
    found = report(tmp_path, tasks=[young], workers=[worker])
    assert [(each.kind, each.summary) for each in found.early] == [
        ("debugger", "waits for a debugger to connect")
    ]
    assert not found.is_conclusive
    old = sample.running(1, "clean", {}, worker_id="c" * 56, **hang.since(90))
    (group,) = report(tmp_path, tasks=[old], workers=[worker]).groups
    assert next(remedies.remedies(group)).steps[0] == f"raydoctor attach {sample.task_id(1)}"
    (other,) = report(tmp_path, tasks=[old], workers=[{**worker, "num_paused_threads": 0}]).unseen
    assert other.name == "clean"


def test_a_replica_whose_resources_idle_actors_hold(tmp_path: Path) -> None:
    replica = sample.actor(1, REPLICA, {"CPU": 1}, state="PENDING_CREATION", pid=0)
    holders = [sample.actor(n, "Cache", {"CPU": 1}, pid=800 + n) for n in (2, 3)]
    found = report(tmp_path, nodes=[sample.node({"CPU": 2})], actors=[replica, *holders], tasks=[])
    assert [each.summary for each in found.early] == [
        "waits for 1 CPU: 2 Cache actors hold 2 of 2 CPUs and run nothing"
    ]
    assert not found.is_conclusive
    found = report(tmp_path, nodes=[sample.node({"CPU": 3})], actors=[replica, *holders], tasks=[])
    assert found.early == ()


@pytest.mark.parametrize(
    ("asked", "total", "is_conclusive"),
    [({"GPU": 1}, {"CPU": 2}, False), ({"CPU": 1}, {"CPU": 2}, True)],
)
def test_a_wait_of_two_seconds_is_named(
    asked: dict[str, float], total: dict[str, float], is_conclusive: bool, tmp_path: Path
) -> None:
    """Also where nothing hangs yet: whether the task fits on no node, or its worker has still to start."""
    young = sample.task(1, "rank", asked, **hang.since(2, "PENDING_NODE_ASSIGNMENT"))
    node = sample.node(total)
    free = {"node_id": node["node_id"], "available": total, "total": total}
    found = report(tmp_path, nodes=[node], resources=[free], tasks=[young])
    assert found.groups == ()
    assert [each.work.name for each in found.early] == ["rank"]
    assert found.is_conclusive is is_conclusive
    said = render.verdict(render.HungView(found))
    assert said.startswith("Inconclusive: 1 unfinished task, and none has been stuck for 60 s")
    assert "The oldest wait has lasted 2.0 s: rank() waits for" in said
    assert "2.0 s" in said


W = "a" * 56


@pytest.mark.parametrize("state", ["RUNNING", "SUBMITTED_TO_WORKER"])
def test_a_task_without_a_process_is_hung_at_once(state: str, tmp_path: Path) -> None:
    """A fork keeps the connections of its worker open; a process that exists, or is not visible, may be alive."""
    task = sample.running(1, "convert", {"CPU": 1}, worker_id=W, **hang.since(6, state))
    silent = {
        "worker_id": W,
        "pid": 801,
        "node_id": sample.NODE,
        "worker_type": "WORKER",
        "answers": False,
    }
    raylet = processes.process(40, "daemon", "raylet", node_id=sample.NODE)
    fork = processes.process(
        860, "child", "ray::convert", worker_id=W, worker_pid=801, node_id=sample.NODE
    )
    worker = processes.process(
        801, "worker", "ray::convert", worker_id=W, worker_pid=801, node_id=sample.NODE
    )

    def found(*rows: sample.Row) -> HungReport:
        return report(tmp_path, tasks=[task], worker_stats=[silent], processes=list(rows))

    (group,) = found(raylet, fork).groups
    assert group.first.kind == "process-ended"
    assert (
        "pid 801, which has ended without Ray's notice, because its fork pid 860 (ray::convert)"
        in group.first.summary
    )
    assert [r.steps[0].split("   ")[0] for r in remedies.remedies(group)][:2] == [
        "ps -o pid,ppid,user,lstart,rss,args -p 860",
        "kill 860",
    ]
    assert found(raylet, fork, {**worker, "state": "Z"}).groups
    assert found(raylet, fork, worker).groups == ()
    if state != "RUNNING":  # its worker does not answer
        assert [each.kind for each in found(raylet, fork, worker).early] == ["stopped"]
        assert not found(raylet, fork, worker).is_conclusive
    agent = processes.process(
        41, "worker", "tail -f /dev/null", worker_id="", worker_pid=None, node_id=sample.NODE
    )
    assert found(raylet, fork, agent).groups
    assert (
        found(raylet, fork, {**worker, "pid": 9, "worker_id": "", "worker_pid": None}).groups == ()
    )
    assert found(fork).groups == ()


def test_hung_and_diagnose_give_one_reason_for_a_pending_group(tmp_path: Path) -> None:
    bundles = [{"bundle_id": {}, "node_id": None, "unit_resources": {"CPU": 2}}] * 3
    pending = {
        "placement_group_id": "b8ce3c6e15178ae3a2509ec035e001000000", "name": "ranks", "state": "PENDING",
        "creator_job_id": "01000000", "strategy": "STRICT_SPREAD", "bundles": bundles,
    }  # fmt: skip
    task = sample.task(1, "rank", {"CPU": 2}, placement_group_id=pending["placement_group_id"])
    rows = {"nodes": [sample.node({"CPU": 8})], "placement_groups": [pending], "tasks": [task]}
    (early,) = report(tmp_path, **rows).early
    reason = "it needs 3 nodes (one per bundle), but the cluster has only 1"
    assert early.summary == f"waits for placement group ranks (STRICT_SPREAD): {reason}"
    with open_capture(str(tmp_path)) as capture:
        (finding,) = placement_group_pending.judge(Case(live.read(capture.files, [])))
    assert reason in finding.headline


@pytest.mark.parametrize(
    ("age", "spent", "median", "is_said"),
    [(20, 1.0, 0, True), (3, 1.0, 0, False), (20, 15.0, 0, False), (20, 1.0, 8.0, False), (20, None, 0, False)],
)  # fmt: skip
def test_idle_tasks_that_were_not_sampled_are_no_all_clear(
    age: float, spent: float | None, median: float, is_said: bool, tmp_path: Path
) -> None:
    """Unless one has just begun, works, or takes as long as its peers did; or its process is not visible."""
    tasks = [
        sample.running(n, "load", {}, worker_id=f"{n:056x}", **hang.since(60 if n == 2 else age))
        for n in (1, 2)
    ]
    used = [{"worker_id": row["worker_id"], "pid": row["worker_pid"], "kind": "worker", "cpu_seconds": spent} for row in tasks]  # fmt: skip
    took = [hang.took("load", 5, median)] * bool(median)
    report(tmp_path, tasks=tasks, processes=used, finished=took)
    with open_capture(str(tmp_path)) as capture:
        found = engine.run(capture)
    reasons = [
        gap.why
        for gap in found.gaps
        if gap.what == "whether the longest-running task makes progress"
    ]
    assert (
        reasons
        == ["load() (pid 802) has run for 60 s, and no running task uses CPU time"] * is_said
    )


def test_a_poll_for_what_may_never_come_is_no_all_clear(tmp_path: Path) -> None:
    """While the driver waits for it, and nothing else runs."""
    driver = {"worker_pid": 700, "name": "driver", "task_id": f"{'f' * 40}01000000"}
    stats = {"worker_id": f"01000000{'f' * 48}", "pid": 700, "node_id": sample.NODE, "worker_type": "DRIVER", "answers": True, "job_id": "01000000"}  # fmt: skip
    task = sample.running(1, "collect", {}, **hang.since(90))
    naps = hang.waiting(task, ("collect", "etl.py", 7), wchan="hrtimer_nanosleep", syscall=230)
    for n, row in enumerate(naps):
        row["threads"] = [{**row["threads"][0], "voluntary": 60 + 10 * n}]
    gets = hang.getting(driver, ("<module>", "main.py", 9))
    report(tmp_path, tasks=[task], worker_stats=[stats], samples=[*naps, *gets], clues=[hang.clues(driver, task)])  # fmt: skip
    with open_capture(str(tmp_path)) as capture:
        found = engine.run(capture)
    (gap,) = (gap for gap in found.gaps if gap.what == "whether a long wait ends")
    assert gap.why.startswith(
        "collect() (pid 801) sleeps repeatedly in collect() (etl.py:7), for 90 s"
    )
    assert ([each.rule for each in found.diagnoses], found.complete) == (["task-hung"], False)


@pytest.mark.parametrize(
    ("frame", "pid", "is_named"),
    [
        ('  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n    self.run()\n', 801, True),
        ('  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n    self.run()\n', 802, False),
        ("", 801, False),
    ],
)  # fmt: skip
def test_an_exception_that_ended_a_thread_of_the_hung_process(
    frame: str, pid: int, is_named: bool, tmp_path: Path
) -> None:
    """Not one of another process, nor one that the thread caught and printed."""
    task = sample.running(1, "load", {}, worker_id=f"{801:056x}", **hang.since(300))
    event = ("Condition.wait", "threading.py", 327), ("Event.wait", "threading.py", 629)
    report(tmp_path, tasks=[task], samples=hang.waiting(task, *event, ("load", "etl.py", 31)))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / f"worker-{pid:056x}-01000000-{pid}.err").write_text(
        f'Traceback (most recent call last):\n{frame}  File "/home/user/etl.py", line 22, in read_parts\n'
        "    parts.append(read(path))\nKeyError: 'part-7'\n"
    )
    with open_capture(str(tmp_path)) as capture:
        (found,) = engine.run(capture).diagnoses
    assert (
        "after KeyError in read_parts() (etl.py:22) ended a thread" in found.headline
    ) is is_named
    assert found.remedies[0].title.startswith("Fix read_parts()") is is_named


@pytest.mark.parametrize(
    ("later", "age", "hangs", "waits"),
    [(200, 300, True, False), (20, 40, False, True), (400, 300, False, False)],
)
def test_a_coroutine_that_naps_in_its_event_loop(
    later: int, age: int, hangs: bool, waits: bool, tmp_path: Path
) -> None:
    """It hangs while later calls wait; calls that are older than it may wait for something else."""
    cache = sample.actor(1, "Cache", {})
    refresh = sample.call(1, "Cache.refresh", cache, **hang.since(age))
    put = sample.call(2, "Cache.put", cache, worker_pid=801, **hang.since(later))
    in_sleep = {"wchan": "hrtimer_nanosleep", "syscall": 230}
    naps = hang.blocking(refresh, ("refresh", "cache.py", 9))
    naps = [
        {
            **row,
            "threads": [
                row["threads"][0],
                {**row["threads"][1], "voluntary": 60 + 10 * n, **in_sleep},
            ],
        }
        for n, row in enumerate(naps)
    ]
    found = report(tmp_path, tasks=[refresh, put], actors=[cache], samples=naps)
    assert bool(found.groups) is hangs
    if hangs:
        (group,) = found.groups
        assert [h.work.name for h in group.all] == ["Cache.refresh", "Cache.put"]
        assert (
            "later calls of its actor (Cache.put()) have waited for 3 min 20 s"
            in group.first.reason
        )
        assert next(remedies.remedies(group)).steps == (
            "await asyncio.sleep(0.5)                 # not time.sleep(0.5)",
        )
    assert [each.work.name for each in found.early] == ["Cache.refresh"] * waits
    assert not found.is_conclusive or hangs


@pytest.mark.parametrize("is_beside_a_warning", [False, True])
def test_a_report_on_waits_of_some_seconds_is_no_all_clear(
    is_beside_a_warning: bool, tmp_path: Path
) -> None:
    """As in `raydoctor run --timeout`, which takes samples after five seconds; also beside a warning of other matters."""
    task = sample.running(1, "consume", {}, **hang.since(40))
    rows = hang.waiting(task, ("consume", "train.py", 25))
    report(tmp_path, tasks=[task], samples=rows)
    left = processes.process(3, "child", "sleep 3", outlived="worker", worker_pid=88)
    for name, text in processes.machine(left).items() if is_beside_a_warning else ():
        (tmp_path / name).write_text(text)
    with open_capture(str(tmp_path)) as capture:
        found = engine.run(capture)
    assert not found.complete
    assert [(gap.what, gap.why) for gap in found.gaps if "hang" in gap.what] == [
        (
            "whether the wait is a hang",
            "consume() (pid 801) waits for a lock in consume() (train.py:25); this has lasted less than a minute",
        )
    ]


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_method_that_polls_before_a_queued_call_is_no_all_clear(
    is_alone: bool, tmp_path: Path
) -> None:
    """Unless other work runs, which may give it what it checks for."""
    queue = sample.actor(1, "Queue", {})
    get = sample.call(1, "Queue.get", queue, **hang.since(83))
    state = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"
    put = sample.call(2, "Queue.put", queue, **hang.since(83, state))
    other = sample.running(3, "produce", {}, **hang.since(5))
    naps = hang.waiting(get, ("Queue.get", "q.py", 8), wchan="hrtimer_nanosleep", syscall=230)
    for n, row in enumerate(naps):
        row["threads"] = [{**row["threads"][0], "voluntary": 60 + 10 * n}]
    tasks = [get, put] if is_alone else [get, put, other]
    report(tmp_path, tasks=tasks, actors=[queue], samples=naps)
    with open_capture(str(tmp_path)) as capture:
        found = [gap for gap in engine.run(capture).gaps if gap.what == "whether the poll ends"]
    assert ["Queue.put of the same actor is queued behind it" in gap.why for gap in found] == [
        True
    ] * is_alone


def test_a_deadlock_counts_and_lists_the_members_beside_its_shortest_cycle() -> None:
    """Two pairs wait for each other; one of them is the cycle. The sum below would not agree otherwise."""
    fixture = FIXTURES / "live-nested-get--ray-2.60.0--1-node"
    with open_capture(str(fixture / "capture.tar.gz")) as capture:
        found = hung(Case(live.read(capture.files, [])))
    page = plain(render.render(render.HungView(found)))
    (group,) = found.groups
    assert (
        "queued behind Trainer.train(), with 2 more tasks in the same deadlock"
        in render.headline(group)
    )
    assert page.count("waits in ray.get for load()") == 2
    assert "4 of 4 unfinished tasks are hung." in page


def test_a_deadlock_of_actors_is_not_fixed_by_returned_references(tmp_path: Path) -> None:
    """An actor holds its CPU until it ends, and its children of the same class are not started by the driver."""
    parent = sample.actor(1, "Node", {"CPU": 1}, pid=801)
    child = sample.actor(2, "Node", {"CPU": 1}, state="PENDING_CREATION", pid=0)
    run = sample.call(1, "Node.run", parent, **hang.since(90))
    of_run = {"parent_task_id": run["task_id"], "actor_id": child["actor_id"]}
    creation = sample.task(
        2, "Node.__init__", {"CPU": 1}, type="ACTOR_CREATION_TASK",
        **{**of_run, **hang.since(90, "PENDING_NODE_ASSIGNMENT"), "task_id": f"{'f' * 16}{child['actor_id']}"},
    )  # fmt: skip
    waits = hang.since(90, "PENDING_NODE_ASSIGNMENT")
    below = sample.task(3, "Node.run", {}, type="ACTOR_TASK", **of_run, **waits)
    tables = {
        "nodes": [sample.node({"CPU": 1})], "actors": [parent, child], "tasks": [run, creation, below],
        "ray_get": [sample.in_ray_get("Node.run", 1)], "samples": hang.getting(run, ("run", "p.py", 9)),
        "clues": [hang.clues(run, below)],
    }  # fmt: skip
    (group,) = report(tmp_path, **tables).groups
    fixes = list(remedies.remedies(group))
    assert fixes[0].steps[0].startswith("Node.options(num_cpus=0).remote(...)")
    # A cancelled method frees nothing: the CPU is the actor's.
    assert not any("raydoctor cancel" in step for fix in fixes for step in fix.steps)
    assert [fix.risk for fix in fixes if fix.steps[0].startswith("ray.kill(")] == ["destructive"]
    with open_capture(str(tmp_path)) as capture:
        (finding,) = nested_get_deadlock.judge(Case(live.read(capture.files, [])))
    steps = [step for fix in (*fixes, *(finding.remedies or ())) for step in fix.steps]
    assert not any("return [" in step or "range(" in step for step in steps)


def test_a_constructor_that_waits_for_an_actor_whose_cpus_it_holds(tmp_path: Path) -> None:
    """Its own actor is not yet alive, and holds its CPUs already."""
    index = sample.actor(1, "Index", {"CPU": 2}, state="PENDING_CREATION", pid=801)
    shard = sample.actor(2, "Shard", {"CPU": 1}, state="PENDING_CREATION", pid=0)

    def creates(actor: sample.Row, row: sample.Row) -> sample.Row:
        more = {"type": "ACTOR_CREATION_TASK", "actor_id": actor["actor_id"]}
        return {**row, **more, "task_id": f"{'f' * 16}{actor['actor_id']}"}

    waits = hang.since(90, "PENDING_NODE_ASSIGNMENT")
    makes = creates(index, sample.running(1, "Index.__init__", {"CPU": 2}, **hang.since(90)))
    made = creates(shard, sample.task(2, "Shard.__init__", {"CPU": 1}, parent_task_id=makes["task_id"], **waits))  # fmt: skip
    size = sample.task(3, "Shard.size", {}, type="ACTOR_TASK", actor_id=shard["actor_id"], **waits)
    tables = {
        "nodes": [sample.node({"CPU": 2})], "actors": [index, shard], "tasks": [makes, made, size],
        "samples": hang.getting(makes, ("Index.__init__", "index.py", 13)), "clues": [hang.clues(makes, size)],
    }  # fmt: skip
    (group,) = report(tmp_path, **tables).groups
    assert [h.work.name for h in group.cycle] == ["Index.__init__", "Shard.size", "Shard.__init__"]
    with open_capture(str(tmp_path)) as capture:
        (finding,) = nested_get_deadlock.judge(Case(live.read(capture.files, [])))
    assert finding.remedies is not None
    assert finding.remedies[0].title.startswith(
        "Request no CPU for Index: it waits for its children"
    )


def test_a_command_that_the_table_cut_off_is_cut_between_words(tmp_path: Path) -> None:
    made = f"/{'v' * 90}/bin/python -m pip install -r /tmp/ray/session_1/runtime_resources/pip/{'a' * 300}"[
        :200
    ]
    agent = processes.process(627, "child", made, worker_pid=None)
    task = sample.task(1, "f", {"CPU": 1}, **hang.since(75, "PENDING_NODE_ASSIGNMENT"))
    free = {"node_id": sample.NODE, "total": {"CPU": 2}, "available": {"CPU": 1}}
    idle = {"node_id": sample.NODE, "pid": 627, "family_s": 3.0}
    found = report(
        tmp_path, nodes=[sample.node({"CPU": 2})], tasks=[task], resources=[free], processes=[agent], rests=[idle]
    )  # fmt: skip
    (early,) = found.early
    assert early.summary.endswith("pid 627 runs `python -m pip install -r …`")
    assert render.verdict(render.HungView(found)).endswith(
        "The oldest wait has lasted 75 s: f() waits for its runtime environment: pid 627 runs "
        "`python -m pip install -r …`; what it waits for ran 3.0 s ago."
    )
