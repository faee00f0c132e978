"""A cancel must not end what is not its task's: stand-ins for a cluster whose pids mean something else here."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import pytest

from raydoctor.act.attach import target as attach_targets
from raydoctor.act.audit import Audit
from raydoctor.act.cancel import elsewhere, ladder, owner, processes, steps
from raydoctor.act.cancel import job as _cancel_job
from raydoctor.act.cancel import target as targets
from raydoctor.act.cancel.owner import AskError, Owners, Row
from raydoctor.act.workers import running as poll
from raydoctor.act.workers import worker as _worker
from raydoctor.cli import cancel as cancel_command
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.processes import proc
from raydoctor.observe.watching.clocks import RunningClock
from raydoctor.observe.watching.watching import Attempt, ReportedTask
from raydoctor.render import cancel as render
from raydoctor.render.page import plain
from raydoctor.watch import guard
from tests.helpers.other_users import AS_ROOT
from tests.helpers.schemas import faults
from tests.helpers.waiting import Program, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
TASK, WORKER, OWNER = "c8ef45ccd0112571" + "f" * 24 + "01000000", "ab" * 28, "cd" * 28
JOB = "01000000"
SESSION = ""
"""The folder of the cluster's session: that of the test."""


@pytest.fixture(autouse=True)
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(sys.modules[__name__], "SESSION", str(tmp_path))


class Answers:
    """In place of `Owners`: what each question is answered with, or raises."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., list[Row]]:
        def ask(*arguments: Any, **named: Any) -> list[Row]:
            self.asked.append(name)
            answer = self._answers.get(name, [])
            answer = answer(*arguments, **named) if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return list(answer) if isinstance(answer, (list, tuple)) else answer

        return ask


def owners(**answers: Any) -> Owners:
    return cast("Owners", Answers(**answers))


def target(pid: int, **changes: object) -> targets.CancelTarget:
    plain: dict[str, Any] = {
        "task": TASK, "name": "f", "kind": "task", "state": "running", "ray_state": "RUNNING", "attempt": 0,
        "started_at": time.time() - 3600, "worker": WORKER, "pid": pid, "ip": "10.0.0.9", "node": "ef" * 28,
        "owner": OWNER, "owner_pid": 1, "job": JOB, "actor": "", "parent": "",
    }  # fmt: skip
    return targets.CancelTarget(**{**plain, **changes})


def backend(asked: Owners, **options: Any) -> steps.CancelBackend:
    audit = Audit("test", path="/dev/null")
    return steps.CancelBackend(
        asked, Cluster(session_dir=SESSION), steps.CancelOptions(grace=0.1, **options), audit
    )


PARENT = (
    "import subprocess, sys, time\n"
    "files = [open(path, 'a') for path in sys.argv[1:]]\n"
    "subprocess.Popen(['sleep', '86151'], start_new_session=True)\n"
    "print('ready', flush=True)\ntime.sleep(1000)"
)


@pytest.fixture
def parent(tmp_path: Any) -> Iterator[Callable[..., psutil.Process]]:
    made: list[subprocess.Popen[bytes]] = []
    started: list[psutil.Process] = []

    def start(*files: str, name: str = "") -> psutil.Process:
        words = [name or sys.executable, "-c", PARENT, *(str(tmp_path / each) for each in files)]
        child = subprocess.Popen(words, executable=sys.executable, stdout=subprocess.PIPE)
        assert child.stdout
        with child.stdout:
            child.stdout.readline()
        made.append(child)
        parent = psutil.Process(child.pid)
        started.extend(parent.children())
        return parent

    yield start
    for each in made:
        each.kill()
        each.wait()
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


RUNS = {"is": "runs", "worker_id": WORKER, "worker_pid": 1, "worker_ip": "", "worker_node": ""}


# ------------------------------------------------------------------ labels of an older report


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("load() (pid 812)", []),
        ("load() (pid 813)", ["load"]),
        ("load (pid 813)", ["load"]),
        ("pid 812", ["next"]),
        ("812", ["next"]),
        ("a worker (pid 812)", ["next"]),
    ],
)
def test_a_label_means_no_other_task_of_its_process_and_no_other_process_of_its_task(
    label: str, names: list[str]
) -> None:
    """Since the report, the worker with pid 812 has taken another task, and a retry runs elsewhere."""
    rows = [
        {"task_id": TASK, "name": "next", "state": "RUNNING", "worker_pid": 812},
        {"task_id": "d" + TASK[1:], "name": "load", "state": "RUNNING", "worker_pid": 813},
    ]
    asked = owners(unfinished=rows, roles=[RUNS])
    if names:
        assert [each.name for each in targets.find(asked, label)] == names
    else:
        with pytest.raises(targets.UnknownTaskError):
            targets.find(asked, label)


def test_a_debugger_enters_no_other_process_than_the_label_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = attach_targets.FoundProcess("task", TASK, "load", "RUNNING", 813)
    other = attach_targets.FoundProcess("process", "", "/usr/sbin/sshd", "", 812)
    monkeypatch.setattr(attach_targets, "_named", lambda *arguments: [load])
    monkeypatch.setattr(attach_targets, "_process", lambda *arguments: other)
    cluster = Cluster(gcs_address="127.0.0.1:1")
    assert attach_targets.find(cluster, "load() (pid 813)") == [load]
    assert attach_targets.find(cluster, "pid 812") == [other]
    for label in ("load() (pid 812)", "driver of job 3 (pid 812)"):
        with pytest.raises(RaydoctorError, match="pid 812 is no process of"):
            attach_targets.find(cluster, label)


# ------------------------------------------------------------------ pids of other machines and containers


@pytest.mark.parametrize("with_actor", [False, True])
def test_what_has_the_pid_of_a_worker_elsewhere_has_started_nothing_of_the_task(
    parent: Callable[..., psutil.Process], with_actor: bool
) -> None:
    bystander = parent("notes.txt")
    kind = "method" if with_actor else "task"
    assert not processes.started_by(target(bystander.pid, kind=kind), SESSION, with_actor)


def test_a_cancel_of_a_task_elsewhere_ends_nothing_here(
    parent: Callable[..., psutil.Process],
) -> None:
    """Its node could not be asked, so the owner's steps are taken from here."""
    bystander = parent("notes.txt")
    (child,) = bystander.children()
    states = iter([[RUNS]])
    asked = owners(roles=lambda *a, **k: next(states, []), attempts=[])
    made = ladder.run(backend(asked, recursive=False), target(bystander.pid))
    assert made.ended
    assert made.survivors == []
    assert running(child)
    assert running(bystander)


def test_a_worker_without_an_id_has_no_owner(parent: Callable[..., psutil.Process]) -> None:
    """Every path contains the empty string."""
    bystander = parent("notes.txt")
    assert isinstance(processes.worker_here(target(bystander.pid, worker=""), SESSION), str)


@pytest.mark.parametrize(
    ("log", "worker", "session"),
    [
        ("other/logs/worker-{}-01000000-812.out", WORKER, ""),
        ("logs/worker-{}-01000000-812.out", WORKER, "elsewhere"),
        ("logs/worker-{}-01000000-812.out", "ab", ""),
        ("logs/python-core-driver-{}_812.log", WORKER, ""),
        ("logs/mine-worker-{}/notes.log", WORKER, ""),
    ],
    ids=["same id", "unknown session", "part of an id", "a driver", "a folder"],
)
def test_a_gcs_that_lies_about_a_worker_ends_no_process(
    parent: Callable[..., psutil.Process], tmp_path: Path, log: str, worker: str, session: str
) -> None:
    """The address of another user's cluster was typed; that user knows pids and ids from `/tmp/ray`."""
    file = log.format(WORKER)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    other = parent(file)
    asked = backend(owners(roles=[RUNS]))
    if session:
        asked.cluster = Cluster(gcs_address="10.0.0.9:6379")
    lie = target(other.pid, worker=worker)
    for step in (steps._kill, steps._interrupt):
        assert "not on this machine" in step(asked, lie)
    assert not processes.started_by(lie, asked.cluster.session_dir)
    assert running(other)


def test_a_poll_ends_no_other_clusters_worker(parent: Callable[..., psutil.Process]) -> None:
    """Worker pid 812 of a container is another worker here."""
    other = parent(f"logs/python-core-worker-{'77' * 28}_812.log", name="ray::train")
    assert "not a worker here" in _worker.end_worker(other.pid, WORKER, "test")
    assert running(other)


def test_stopping_a_job_ends_no_other_clusters_driver(
    parent: Callable[..., psutil.Process], tmp_path: Any
) -> None:
    """The first job of every cluster has the same id, and its driver's worker id is made of that."""
    (tmp_path / "session_b" / "logs").mkdir(parents=True)
    other = parent(f"session_b/logs/python-core-driver-{JOB}{'f' * 48}_45.log")
    row = {"job_id": JOB, "submission_id": "", "driver_info": {"pid": str(other.pid)}}
    for session in (str(tmp_path / "session_a"), ""):
        cluster = Cluster(session_dir=session, gcs_address="10.0.0.9:6379")
        why = _cancel_job.stop(
            owners(job=lambda job: row), cluster, JOB, Audit("t", path="/dev/null")
        )
        assert "not on this machine" in why
        assert running(other)


def test_stopping_a_job_ends_its_driver(
    parent: Callable[..., psutil.Process], tmp_path: Any
) -> None:
    (tmp_path / "session_a" / "logs").mkdir(parents=True)
    driver = parent(f"session_a/logs/python-core-driver-{JOB}{'f' * 48}_45.log")
    row = {"job_id": JOB, "submission_id": "", "driver_info": {"pid": str(driver.pid)}}
    cluster = Cluster(session_dir=str(tmp_path / "session_a"), gcs_address="127.0.0.1:6379")
    assert not _cancel_job.stop(
        owners(job=lambda j: row), cluster, JOB, Audit("t", path="/dev/null")
    )
    assert not running(driver)


@pytest.mark.skipif(not proc.LINUX, reason="/proc shows how a file is open")
def test_a_process_that_reads_a_driver_s_log_is_not_that_driver(tmp_path: Any) -> None:
    """The pid is that of a driver in a container; here a program reads the shared folder."""
    log = tmp_path / "session_a" / "logs" / f"python-core-driver-{JOB}{'f' * 48}_45.log"
    log.parent.mkdir(parents=True)
    log.write_text("x\n")
    with subprocess.Popen(["tail", "-f", str(log)], stdout=subprocess.DEVNULL) as reader:
        try:
            until(lambda: str(log) in proc.files(reader.pid).values())
            row = {"job_id": JOB, "submission_id": "", "driver_info": {"pid": str(reader.pid)}}
            cluster = Cluster(session_dir=str(tmp_path / "session_a"), gcs_address="127.0.0.1:6379")
            audit = Audit("t", path="/dev/null")
            why = _cancel_job.stop(owners(job=lambda j: row), cluster, JOB, audit)
            assert "not on this machine" in why
            assert reader.poll() is None
        finally:
            reader.kill()


# ------------------------------------------------------------------ a worker that has gone on


def test_a_worker_that_has_taken_another_task_is_not_killed(
    parent: Callable[..., psutil.Process],
) -> None:
    worker = parent(f"logs/worker-{WORKER}-{JOB}-812.out")
    asked = owners(roles=[], attempts=[])  # it runs something else by now
    why = steps._kill(backend(asked), target(worker.pid))
    assert "another task" in why
    assert running(worker)


def test_a_worker_that_still_runs_it_is_killed(parent: Callable[..., psutil.Process]) -> None:
    worker = parent(f"logs/worker-{WORKER}-{JOB}-812.out")
    assert steps._kill(backend(owners(roles=[RUNS])), target(worker.pid)) == ""
    assert not running(worker)


def test_what_the_next_task_of_a_worker_has_started_is_left_alone(
    parent: Callable[..., psutil.Process],
) -> None:
    """The task ended while the user was asked whether to cancel it."""
    worker = parent(f"logs/worker-{WORKER}-{JOB}-812.out")
    (child,) = worker.children()
    made = ladder.run(backend(owners(roles=[], attempts=[]), recursive=False), target(worker.pid))
    assert made.ended
    assert running(child)
    assert running(worker)


def test_a_poll_asks_again_before_each_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kill may take seconds; meanwhile the second worker takes another task."""
    running_now = {b"one", b"two"}
    ended = []

    def end_worker(pid: int, worker: str, purpose: str) -> str:
        ended.append(pid)
        running_now.discard(b"two")
        return ""

    monkeypatch.setattr(_worker, "end_worker", end_worker)
    runs = [
        poll.WorkerTask(task, 0, "f", 0.0, b"w", pid, "here")
        for task, pid in ((b"one", 1), (b"two", 2))
    ]
    reply = _worker.RayBackend(None, "here").kill(runs, lambda run: run.task in running_now)
    assert ended == [1]
    assert reply[b"one"] == ""
    assert "does not run it" in reply[b"two"]


@pytest.mark.parametrize(("attempt", "is_cancelled"), [(0, True), (1, False)])
def test_a_watch_does_not_cancel_the_retry_of_what_was_overdue(
    attempt: int, is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    from raydoctor.act.cancel import elsewhere

    reply = Attempt(TASK, "f", "f", 0, "RUNNING", WORKER, "", 1000.0)
    overdue = RunningClock(
        ReportedTask(TASK, WORKER, 12, "127.0.0.1", "ef" * 28), 1000.0, 1000.0, 0.0, reply
    )
    ran = []

    def run(*arguments: object) -> ladder.Cancellation:
        ran.append(arguments)
        return ladder.Cancellation(target(12), ended=True)

    monkeypatch.setattr(owner, "connected", lambda *a: nullcontext(owners()))
    monkeypatch.setattr(targets, "by_id", lambda *a: target(12, attempt=attempt))
    monkeypatch.setattr(elsewhere, "run_where_it_runs", run)
    monkeypatch.setattr(Audit, "write", lambda *a, **k: None)
    made = guard.end_task(Cluster(), overdue, guard.GuardLimits(10.0, "force"))
    assert made.ended
    assert bool(ran) == is_cancelled


# ------------------------------------------------------------------ what earlier tasks of its worker left

STARTS = (
    "import subprocess, sys\n"
    "log = open(sys.argv[1], 'a')\n"
    "for line in sys.stdin:\n"
    "    words = ['sh', '-c', 'sleep 86153 & echo $!; read again || exit; sleep 86154 & echo $!; read end']\n"
    "    child = subprocess.Popen(words, start_new_session=True, stdin=subprocess.PIPE, text=True,"
    " stdout=subprocess.PIPE)\n"
    "    print(child.pid, child.stdout.readline(), end='', flush=True)\n"
    "    if sys.stdin.readline() == 'again\\n':\n"
    "        child.stdin.write('\\n'); child.stdin.flush()\n"
    "        print(child.stdout.readline(), end='', flush=True)\n"
)


class WorkerOfTwo(NamedTuple):
    """A worker with a server that an earlier task left, and the processes of the task that runs now."""

    pid: int
    launched_at: float
    started_at: float
    """Of the task that runs now."""
    earlier: list[int]
    """The server, its first child, and a child that it forked after the task had started."""
    own: list[int]


@pytest.fixture
def worker_of_two(tmp_path: Any) -> Iterator[WorkerOfTwo]:
    launched = time.time()
    log = str(tmp_path / f"logs/worker-{WORKER}-{JOB}-812.out")
    words = [sys.executable, "-c", STARTS, log]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as worker:

        def ask(line: str) -> list[int]:
            assert worker.stdin
            assert worker.stdout
            worker.stdin.write(line)
            return [int(each) for each in worker.stdout.readline().split()]

        earlier = ask("start\n")
        time.sleep(0.1)  # the clock of process starts has ticks of 0.01 s
        started = time.time()
        earlier += ask("again\n")
        own = ask("start\n")
        try:
            yield WorkerOfTwo(worker.pid, launched, started, earlier, own)
        finally:
            worker.kill()
            for pid in (*earlier, *own):
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(pid).kill()


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and running(psutil.Process(pid))


@pytest.mark.parametrize(
    ("step", "is_before", "ended", "listed"),
    [
        (0.0, False, "own", ""),
        (3600.0, False, "own", "earlier"),
        (1.0, False, "own", "earlier"),
        (3600.0, True, "", "own"),
        (-3600.0, False, "", "own"),
        (-3600.0, True, "own", "earlier"),
    ],
)
def test_a_set_clock_gives_no_process_of_an_earlier_task_to_this_one(
    worker_of_two: WorkerOfTwo, step: float, is_before: bool, ended: str, listed: str
) -> None:
    """`is_before`: the clock was set before the task started, not afterwards."""
    pid, launched, started, *_ = worker_of_two
    now = target(
        pid, launched_at=launched - step, started_at=started if is_before else started - step
    )
    found = processes.started_by(now, SESSION)
    assert {each.pid for each in found.own} == set(getattr(worker_of_two, ended, []))
    assert {each.pid for each in found.unplaced} == set(getattr(worker_of_two, listed, []))
    assert all("the clock was set" in why for why in found.unplaced.values())


@pytest.mark.parametrize("unknown", ["launched_at", "started_at"])
def test_without_a_time_no_process_is_given_to_a_task(
    worker_of_two: WorkerOfTwo, unknown: str
) -> None:
    pid, launched, started, earlier, own = worker_of_two
    times = {"launched_at": launched, "started_at": started, unknown: None}
    found = processes.started_by(target(pid, **times), SESSION)
    assert found.own == set()
    assert {each.pid for each in found.unplaced} == {*earlier, *own}


def cancelled_by_its_owner(worker: WorkerOfTwo, step: float) -> ladder.Cancellation:
    """The clock was set after the task had started."""
    sent: list[object] = []
    asked = owners(
        roles=lambda *a, **k: [] if sent else [RUNS],
        cancel=lambda *a: sent.append(a) or [],
        attempts=[],
    )
    times = {"launched_at": worker.launched_at - step, "started_at": worker.started_at - step}
    return ladder.run(backend(asked), target(worker.pid, **times))


def test_a_process_that_may_be_an_earlier_task_s_is_listed_and_not_ended(
    worker_of_two: WorkerOfTwo,
) -> None:
    made = cancelled_by_its_owner(worker_of_two, 3600.0)
    assert made.ended
    assert all(map(alive, worker_of_two.earlier))
    assert not any(map(alive, worker_of_two.own))
    assert {each.identity.pid for each in made.processes} == set(worker_of_two.earlier)
    document = json.loads(render.to_json(made))
    assert faults(document) == []
    assert (document["ended"], document["complete"]) == (True, False)
    page = plain(render.render(made))
    assert "Ended, but what it started is still running: 3 processes." in page
    assert "the clock was set since its worker started" in page
    assert f"-p {','.join(map(str, sorted(worker_of_two.earlier)))}" in page


def test_a_kill_of_the_worker_spares_what_an_earlier_task_left(worker_of_two: WorkerOfTwo) -> None:
    pid, launched, started, earlier, own = worker_of_two
    now = target(pid, launched_at=launched, started_at=started)
    assert steps._kill(backend(owners(roles=[RUNS])), now) == ""
    assert not running(psutil.Process(pid))
    assert not any(map(alive, own))
    assert all(map(alive, earlier[1:]))  # the first one ends with its input


CHANGED = (
    "import os, subprocess, sys, time\n"
    "log = open(sys.argv[1], 'a')\n"
    "os.setpgid(0, 0)\n"
    "words = ['sh', '-c', 'setpriv --reuid 65534 sleep 86155 >/dev/null 2>&1 & echo $!']\n"
    "print(int(subprocess.check_output(words)), flush=True)\n"
    "time.sleep(1000)"
)


@AS_ROOT
def test_a_detached_process_that_changed_its_user_is_listed(tmp_path: Any) -> None:
    """Only its process group is known of it, and it gets no signal without --all-users."""
    launched = time.time()
    words = [sys.executable, "-c", CHANGED, str(tmp_path / f"logs/worker-{WORKER}-{JOB}-812.out")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout
        child = psutil.Process(int(worker.stdout.readline()))
        try:
            until(lambda: child.cmdline()[:1] == ["sleep"] and child.ppid() == 1)
            made = cancelled_by_its_owner(
                WorkerOfTwo(worker.pid, launched, launched, [], [child.pid]), 0.0
            )
            (left,) = made.processes
            assert (left.identity.pid, left.outcome) == (child.pid, "refused")
            assert "belongs to another user" in left.reason
            assert child.is_running()
        finally:
            worker.kill()
            child.kill()


REFUSED = processes.Survivor(processes.Identity(12, 1.0), "pg_ctl", "refused", "of another user")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"survivors": [REFUSED]}, 1),
        ({"survivors": [REFUSED._replace(outcome="running")]}, 1),
        ({"survivors": [REFUSED._replace(outcome="gone")]}, 0),
        ({"children": [target(12)]}, 1),
        ({"children": [target(12)], "is_recursive": False}, 0),
        ({"children": [target(12)], "steps": []}, 0),  # it had ended before: nothing was done
        ({"survivors": [REFUSED], "silence": "GCS"}, 3),
    ],
)
def test_a_cancel_that_leaves_something_running_does_not_exit_with_0(
    changes: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    made = ladder.Cancellation(
        target(12), [ladder.Taken("cancel", "ended", 0.1, "", TASK)], ended=True
    )
    made = dataclasses.replace(made, **changes)
    monkeypatch.setattr(elsewhere, "run_where_it_runs", lambda *a: made)
    monkeypatch.setattr(targets, "settled", lambda *a: {})
    for as_json in (False, True):
        assert cancel_command._run(backend(owners()), target(12), as_json) == code
    page, _, document = capsys.readouterr().out.partition("{")
    assert ("Ended." in page) == (code == 0)
    assert json.loads("{" + document)["complete"] == (code == 0)


# ------------------------------------------------------------------ no answer is no end


@pytest.mark.parametrize("code", ["ENDED", "UNAUTHENTICATED", "INTERNAL", "GCS", "KeyError"])
def test_an_end_is_not_claimed_where_no_component_could_be_queried(code: str) -> None:
    asked = owners(roles=AskError(code, "…"), attempts=AskError(code, "…"))
    with pytest.raises(AskError):
        targets.has_ended(asked, target(12))


def test_a_worker_that_cannot_be_reached_has_ended_once_the_gcs_says_so() -> None:
    lost = AskError("UNAVAILABLE", "connection refused")
    alive = {"worker_id": WORKER}
    assert not targets.has_ended(owners(roles=lost, lives=[alive]), target(12))
    assert targets.has_ended(owners(roles=lost, lives=[]), target(12))
    assert targets.has_ended(owners(roles=AskError("NOT_FOUND", "…")), target(12))


def test_a_cluster_that_stops_answering_leaves_the_state_unknown(
    parent: Callable[..., psutil.Process],
) -> None:
    """The GCS was stopped after the cancel was sent."""
    worker = parent(f"logs/worker-{WORKER}-{JOB}-812.out")
    (child,) = worker.children()
    sent: list[object] = []

    def roles(*_: object, **__: object) -> list[Row] | AskError:
        return AskError("GCS", "DEADLINE_EXCEEDED") if sent else [RUNS]

    asked = owners(roles=roles, cancel=lambda *a: sent.append(a) or [])
    made = ladder.run(backend(asked), target(worker.pid))
    assert not made.ended
    assert [(each.step, each.outcome) for each in made.steps] == [("cancel", "unknown")]
    assert [each.task for each in made.unknown] == [TASK]
    assert made.silence == "GCS: DEADLINE_EXCEEDED"
    assert running(child), "its task may still run"
    assert [(each.identity.pid, each.outcome) for each in made.survivors] == [
        (child.pid, "running")
    ]
    document = json.loads(render.to_json(made))
    assert faults(document) == []
    assert [each["id"] for each in document["unknown"]] == [TASK]
    page = plain(render.render(made))
    assert "Unknown whether it has ended." in page
    assert "Ray does not retry it" in page
    far = elsewhere.unpacked(json.loads(json.dumps(dataclasses.asdict(made))))
    assert (far.unknown, far.silence) == (made.unknown, made.silence)


def test_the_children_of_an_ended_task_are_unknown_if_they_cannot_be_listed() -> None:
    kid = {"task_id": TASK.replace("c8", "c9"), "parent_task_id": TASK, "state": "RUNNING"}
    kid |= {"name": "kid", "func_or_class_name": "kid", "attempt_number": 0, "worker_pid": 9}
    sent: list[object] = []

    def roles(task: str, *_: object, **__: object) -> list[Row]:
        owns = {**RUNS, "is": "owns", "state": "RUNNING", "worker_id": OWNER}
        return [] if sent and task == TASK else [RUNS, owns]

    silent = AskError("GCS", "DEADLINE_EXCEEDED")
    for answers, names in (({"unfinished": silent}, []), ({"attempts": silent}, ["kid"])):
        sent.clear()
        asked = owners(
            **{"unfinished": [kid], **answers}, roles=roles, cancel=lambda *a: sent.append(a) or []
        )
        made = ladder.run(backend(asked), target(0))
        assert made.ended
        assert made.silence
        assert [each.name for each in made.unknown] == names
        assert "whether tasks that it submitted still run is unknown" in plain(render.render(made))


def test_an_owner_that_answers_is_enough_while_the_gcs_does_not() -> None:
    """The worker was killed: only the GCS knows whether it still runs."""

    def roles(task: str, worker: str = "", owned: bool = True) -> list[Row] | AskError:
        done = [{"is": "owns", "state": "FAILED"}]
        return done if worker == OWNER else AskError("UNAVAILABLE", "connection refused")

    assert targets.has_ended(
        owners(roles=roles, lives=AskError("DEADLINE_EXCEEDED", "…")), target(12)
    )


def test_a_task_that_had_ended_is_left_alone_with_its_children() -> None:
    kid = {"task_id": TASK.replace("c8", "c9"), "parent_task_id": TASK, "state": "RUNNING"}
    kid |= {"name": "kid", "func_or_class_name": "kid", "attempt_number": 0, "worker_pid": 9}

    def roles(task: str, *_: object, **__: object) -> list[Row]:
        return [] if task == TASK else [RUNS]

    asked = owners(roles=roles, unfinished=[kid])
    made = ladder.run(backend(asked), target(0, state="ended", worker="", owner=""))
    assert made.ended
    assert not made.steps
    assert [each.name for each in made.children] == ["kid"]
    assert not {"cancel", "cancel_children", "kill_actor"} & set(cast("Answers", asked).asked)
    assert "nothing was done" in plain(render.render(made))


LATE = """
import json, sys, time
for number, line in enumerate(sys.stdin):
    asked = json.loads(line)
    if asked["do"] == "cancel":
        time.sleep(0.6)  # longer than is waited
    row = {"is": "runs", "of": asked["do"]}
    print(json.dumps({"answer": [row], "n": asked.get("n")}), flush=True)
"""


def test_an_answer_that_comes_late_is_not_the_next_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a task would have ended because the answer to another question names none."""
    monkeypatch.setattr(owner, "_SLACK", 0.0)
    words = [sys.executable, "-c", LATE]
    with Program(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        asked = Owners(program, 0.3)
        with pytest.raises(AskError):
            asked.cancel(TASK, OWNER, force=False, recursive=False)
        asked._timeout = 20.0
        assert asked.roles(TASK) == [{"is": "runs", "of": "roles"}]
        assert program.stdin
        program.stdin.close()


@pytest.mark.parametrize(("session", "is_stopped"), [("session_a", True), ("session_b", False)])
def test_another_clusters_dashboard_on_the_same_port_is_not_asked_to_stop_a_job(
    session: str, is_stopped: bool
) -> None:
    """Users name their submissions, so two clusters may have one of the same name."""
    posted = []

    class Dashboard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({"ray_version": "2.60.0", "session_name": session})

        def do_POST(self) -> None:
            posted.append(self.path)
            self._reply({"stopped": True})

        def _reply(self, body: Row) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        cluster = Cluster(session_dir="/tmp/ray/session_a", dashboard_address=address)
        row = {"job_id": JOB, "submission_id": "nightly"}
        why = _cancel_job.stop(
            owners(job=lambda j: row), cluster, JOB, Audit("t", path="/dev/null")
        )
        server.shutdown()
    assert bool(posted) == is_stopped
    assert ("another cluster" in why) != is_stopped
