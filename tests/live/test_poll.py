"""`raydoctor.poll`: one result for each task, none that runs for ever, and nothing else ended."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from raydoctor.act.poll import limits
from raydoctor.act.poll.bar import bar
from raydoctor.act.poll.limits import LADDERS, TimeLimits
from raydoctor.act.poll.poll import poll
from raydoctor.act.poll.results import Result, Summary
from raydoctor.act.poll.timing import OwnTime
from raydoctor.act.workers.running import JobCluster, RayMessages, WorkerTask
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.gcs.programs import gcs_wire
from raydoctor.observe.gcs.programs.gcs_wire import Wire
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import PATIENCE, until

# ---------------------------------------------------------------------- with a real Ray

HUNG = r"""
import ctypes, json, os, signal, sys, time
import ray
from raydoctor import poll

ray.init(log_to_driver=False, logging_level="error")

@ray.remote
def work(number):
    if number % 14 == 3:  # native code that holds the GIL and does not mind SIGTERM
        open(f"hung-{number}-{os.getpid()}", "w").close()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctypes.PyDLL(None).sleep(1000)
    return number * 2

@ray.remote
def slot():
    time.sleep(0.3)

ray.get([slot.remote() for _ in range(4)])
print("warm", flush=True)
results = list(polling := poll([work.options(max_retries=3).remote(n) for n in range(100)], timeout=3, grace=0.5))
began = time.monotonic()
ray.get([slot.remote() for _ in range(4)])
print("told", json.dumps({
    "right": sum(r.ok and r.value == r.index * 2 for r in results),
    "timeouts": sorted(r.index for r in results if r.status == "timeout"),
    "errors": [str(r.error) for r in results if not r.ok],
    "running": [r.index for r in results if r.still_running],
    "slots": time.monotonic() - began,
    "summary": str(polling.summary),
}))
print("DONE", flush=True)
time.sleep(1000)
"""

OTHERS = r"""
import _thread, json, os, subprocess, sys, threading, time
import ray
from raydoctor import as_completed, poll

ray.init(log_to_driver=False, logging_level="error")
apart = {"num_cpus": 0, "resources": {"apart": 1}}  # the other driver's hung tasks have all CPUs

@ray.remote(**apart)
def value(number, seconds=0):
    time.sleep(seconds)
    return number

@ray.remote(**apart)
def fails():
    raise ValueError("of my own")

@ray.remote(**apart)
def once(path, note):
    if os.path.exists(path):
        return "second time"
    open(path, "w").close()
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print(child.pid, file=open(note, "w"), flush=True)
    time.sleep(1000)

@ray.remote(**apart)
def loop():
    while True:
        pass

@ray.remote(num_cpus=0)
class Counter:
    count = 0
    def slow(self):
        self.count += 1
        time.sleep(5)
    def add(self):
        self.count += 1
        return self.count

@ray.remote(num_cpus=0)
def nested():
    return [(r.status, r.value) for r in poll([(loop, ()), (value, (1,))], timeout=2).results()]

def told(name, **of):
    print(name, json.dumps(of), flush=True)

def rows(results):
    return [[r.index, r.status, r.value, type(r.error).__name__, r.still_running, r.attempts]
            for r in sorted(results, key=lambda r: r.index)]

warm = ray.get([value.remote(0) for _ in range(4)])

def forms():
    ref = value.remote(5)
    calls = []
    tasks = [value.remote(1), fails.remote(), ref, ref, (value, (7,)), (value, (8,), {"seconds": 0.5}),
             lambda: value.remote(9)]
    results = list(poll(tasks, on_result=lambda r: calls.append(r.index)))
    try:
        list(as_completed([value.remote(1), fails.remote()]))
        raised = None
    except ValueError as error:
        raised = str(error).splitlines()[-1]
    own = {r.index: r.seconds for r in results}  # read at once: the worker's record is still on its way
    told("forms", rows=rows(results), calls=sorted(calls), raised=raised, own=[own[0], own[5]],
         completed=sorted(as_completed(value.remote(n) for n in range(5))))

@ray.remote(**apart)
def after(path):
    while path and not os.path.exists(path):
        time.sleep(0.02)

def order():
    indices = []
    for result in poll([after.remote(path) for path in ("had-1", "had-2", "")]):
        indices.append(result.index)
        open(f"had-{result.index}", "w").close()
    told("order", indices=indices)

class Slow:
    def __reduce__(self):
        return time.sleep, (2,)

slow = Slow()

@ray.remote(**apart)
def heavy(seconds, argument=None):  # loads for 2 s in each new worker
    time.sleep(seconds)
    return slow

def loading():
    results = list(poll([(heavy, (0,)), (heavy, (1000,)), (heavy, (0, slow))], timeout=1))
    told("loading", rows=rows(results), texts=[str(r.error) for r in results if not r.ok])

def queued():
    polling = poll([value.remote(n, 0.5) for n in range(24)], timeout=2.5)
    told("queued", statuses=[r.status for r in polling], seconds=polling.summary.seconds)

def gentle():
    python = poll([loop.remote()], timeout=1, on_timeout="cancel", grace=60).results()
    task = value.remote(1, 1000)
    polling = poll([task], timeout=1, on_timeout="cancel")
    results = list(polling)
    told("gentle", rows=[*rows(results), *rows(python)], errors=[str(r.error) for r in results],
         later=len(ray.wait([task], timeout=0)[0]), summary=str(polling.summary))

def reported():
    task = value.remote(1, 5)
    told("reported", rows=rows(poll([task], timeout=1, on_timeout="report")), later=ray.get(task))

def again():
    tasks = [(once, ("first-time", "child")), (value, (2,))]
    polling = poll(tasks, timeout=1.5, retries=1, grace=0.5)
    told("again", rows=rows(polling), retries=polling.summary.retries)

def pressed():
    taken, most, done = 0, 0, 0
    def tasks():
        nonlocal taken
        for number in range(12):
            taken += 1
            yield value.remote(number)
    for result in poll(tasks(), max_in_flight=3):
        most, done = max(most, taken - done), done + 1
    told("pressed", most=most, done=done)

def actor():
    counter = Counter.remote()
    ray.get(counter.add.remote())
    results = poll([counter.slow.remote()], timeout=1, grace=0.5).results()
    told("actor", rows=rows(results), count=ray.get(counter.add.remote()))

def interrupted():
    tasks = [(value, (1,)), (loop, ()), (value, (2, 1000)), *[(value, (3, 1000))] * 6]
    later = threading.Timer(0.5, _thread.interrupt_main)
    polling = poll(tasks, timeout=100, grace=5, on_result=lambda r: r.ok and later.start())
    began = time.monotonic()
    try:
        polling.results()
        raised = False
    except KeyboardInterrupt:
        raised = True
    seconds = time.monotonic() - began
    ray.get([value.remote(0) for _ in range(4)], timeout=60)
    told("interrupted", raised=raised, seconds=seconds, rows=rows(polling.results()))

def left():
    with poll([(value, (1,)), (value, (2, 1000))], grace=0.5) as polling:
        first = next(polling)
    told("left", first=first.value, rows=rows(polling))

def dropped():
    refs = [loop.remote()]
    def submit():
        refs.append(loop.remote())
        return refs[-1]
    polling = poll([refs[0], submit, (value, (1,))])
    next(polling)
    del polling
    own, _ = ray.wait(refs[1:], timeout=60)
    given, _ = ray.wait(refs[:1], timeout=0.3)
    told("dropped", own=len(own), given=len(given))
    ray.cancel(refs[0])

def refused():
    errors = []
    for tasks, options in (([value.remote(1)], {"retries": 1}), ([3], {}), ([lambda: 3], {})):
        try:
            list(poll(tasks, **options))
        except TypeError as error:
            errors.append(str(error))
    told("refused", errors=errors)

def inside():
    told("inside", rows=ray.get(nested.remote()))

scenarios = (forms, order, queued, loading, gentle, reported, again, pressed, actor, interrupted, left, dropped, refused,
             inside)
for scenario in scenarios:
    scenario()
print("DONE", flush=True)
time.sleep(1000)
"""


DRIVERS = (
    (HUNG, "hung.txt"),
    (OTHERS, "others.txt"),
)
"""They run at the same time: what hangs waits."""


@dataclass(slots=True)
class Reply:
    """What the drivers said, and their cluster."""

    ray: RealRay
    of: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def reply() -> Iterator[Reply]:
    with real_ray() as ray:
        ray.start('--resources={"apart": 4}', cpus=4, dashboard=False, lean=True)
        for program, log in DRIVERS:
            ray.run(program, log=log, env={"XDG_STATE_HOME": ray.environment["HOME"]})
            if program == HUNG:
                ray.wait_for("warm", log=log)
        for _, log in DRIVERS:
            ray.wait_for("DONE", log=log)
        lines = [
            line.split(" ", 1)
            for _, log in DRIVERS
            for line in (ray.folder / log).read_text().splitlines()
            if line.partition(" ")[2].startswith("{")  # other lines are Ray's
        ]
        yield Reply(ray, {name: json.loads(rest) for name, rest in lines})


@pytest.mark.ray
def test_what_hangs_in_native_code_is_ended_and_nothing_else(reply: Reply) -> None:
    """7 of 100 tasks hold the GIL for ever: neither cancel nor force reaches them.

    What a new worker imports first (Ray's serializers with pydantic, 2.60.0) takes as long as the limit where
    two cores start eight workers, and does not count.
    """
    of = reply.of["told"]
    assert of["right"] == 93, of["errors"]
    assert of["timeouts"] == [3, 17, 31, 45, 59, 73, 87]
    assert of["running"] == []
    assert of["slots"] < 30  # what hangs would keep them for 1,000 s
    assert "93 ok, 7 timeouts in" in of["summary"]
    assert all("longer than its 3 s: ended by cancel" in error for error in of["errors"])
    started = list(reply.ray.folder.glob("hung-*"))
    assert len(started) == 7, "Ray must not try a killed one again"
    assert not any(is_alive(int(path.name.rpartition("-")[2])) for path in started)


@pytest.mark.ray
def test_every_form_of_task_gives_one_result(reply: Reply) -> None:
    of = reply.of["forms"]
    values = {0: 1, 2: 5, 3: 5, 4: 7, 5: 8, 6: 9}
    for index, value in values.items():
        assert of["rows"][index] == [index, "ok", value, "NoneType", False, 1]
    assert of["rows"][1] == [1, "error", None, "RayTaskError(ValueError)", False, 1]
    assert of["calls"] == [0, 1, 2, 3, 4, 5, 6]
    assert of["raised"] == "ValueError: of my own"
    assert of["completed"] == [0, 1, 2, 3, 4]
    short, long = of["own"]
    assert short < long
    assert 0.5 <= long < 1.5, "the time of the function alone, without what it waited for"


@pytest.mark.ray
def test_results_come_in_the_order_in_which_tasks_end(reply: Reply) -> None:
    assert reply.of["order"]["indices"] == [2, 1, 0]


@pytest.mark.ray
def test_waiting_for_a_cpu_does_not_count(reply: Reply) -> None:
    of = reply.of["queued"]
    assert of["statuses"] == ["ok"] * 24
    assert of["seconds"] > 2.5, "else nothing was queued for longer than the limit"


@pytest.mark.ray
def test_loading_a_function_or_its_arguments_does_not_count(reply: Reply) -> None:
    of = reply.of["loading"]
    assert [row[1] for row in of["rows"]] == ["ok", "timeout", "ok"]
    assert ["longer than its 1 s" in text for text in of["texts"]] == [True]


@pytest.mark.ray
def test_cancel_alone_ends_python_and_gives_the_rest_up(reply: Reply) -> None:
    of = reply.of["gentle"]
    assert of["rows"][0] == [0, "timeout", None, "TaskTimeoutError", True, 1]
    assert of["rows"][1] == [0, "timeout", None, "TaskTimeoutError", False, 1]
    assert any("it still runs" in error for error in of["errors"])
    assert of["later"] == 0, "what is given up is not waited for"
    assert of["summary"].startswith("0 ok, 1 timeout, 1 still running in")


@pytest.mark.ray
def test_report_ends_nothing(reply: Reply) -> None:
    of = reply.of["reported"]
    assert of["rows"] == [[0, "timeout", None, "TaskTimeoutError", True, 1]]
    assert of["later"] == 1


@pytest.mark.ray
def test_a_timed_out_task_is_tried_again_and_leaves_no_process(reply: Reply) -> None:
    of = reply.of["again"]
    assert of["rows"][0] == [0, "ok", "second time", "NoneType", False, 2]
    assert of["rows"][1] == [1, "ok", 2, "NoneType", False, 1]
    assert of["retries"] == 1
    child = int((reply.ray.folder / "child").read_text())
    assert not is_alive(child), "it had a session of its own"


@pytest.mark.ray
def test_a_generator_is_not_asked_for_more_than_may_be_in_flight(reply: Reply) -> None:
    assert reply.of["pressed"]["done"] == 12
    assert reply.of["pressed"]["most"] <= 3


@pytest.mark.ray
def test_an_actor_is_not_ended_for_its_method(reply: Reply) -> None:
    of = reply.of["actor"]
    assert of["rows"] == [[0, "timeout", None, "TaskTimeoutError", True, 1]]
    assert of["count"] == 3, "its state is kept"


@pytest.mark.ray
def test_an_interrupt_ends_what_is_under_way_and_keeps_what_is_there(reply: Reply) -> None:
    of = reply.of["interrupted"]
    assert of["raised"]
    assert of["seconds"] < 15
    assert [row[:2] for row in of["rows"]] == [[0, "ok"], *([n, "cancelled"] for n in range(1, 9))]
    assert not any(row[4] for row in of["rows"]), "all have ended"


@pytest.mark.ray
def test_leaving_the_block_ends_what_is_under_way(reply: Reply) -> None:
    of = reply.of["left"]
    assert of["first"] == 1
    [[index, status, *_, still_running, _]] = of["rows"]
    assert (index, status, still_running) == (1, "cancelled", False)


@pytest.mark.ray
def test_letting_go_ends_only_what_it_has_submitted_itself(reply: Reply) -> None:
    assert reply.of["dropped"] == {"own": 1, "given": 0}


@pytest.mark.ray
def test_what_is_no_task_is_refused_with_the_reason(reply: Reply) -> None:
    again, number, not_a_ref = reply.of["refused"]["errors"]
    assert "cannot be submitted again" in again
    assert number.startswith("task 0 is neither a ref, nor a function")
    assert "must return its ref, not <class 'int'>" in not_a_ref


@pytest.mark.ray
def test_tasks_may_poll(reply: Reply) -> None:
    assert reply.of["inside"]["rows"] == [["timeout", None], ["ok", 1]]


@pytest.mark.ray
def test_every_signal_is_in_the_audit(reply: Reply) -> None:
    lines = Path(reply.ray.environment["HOME"], "raydoctor", "audit.jsonl").read_text().splitlines()
    signals = [json.loads(line) for line in lines]
    killed = {each["pid"] for each in signals if each["what"] == "signal"}
    assert killed, "native code was ended by a signal"
    assert all(each["purpose"].startswith("poll ") for each in signals)


def is_alive(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


# ---------------------------------------------------------------------- what cannot be had from a real one


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"on_timeout": "kill"}, "on_timeout must be one of 'report', 'cancel', 'force'"),
        ({"max_in_flight": 0}, "max_in_flight must be at least 1"),
        ({"retries": -1}, "must not be negative"),
        ({"retries": 1, "on_timeout": "report"}, "retries need on_timeout"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        poll([], **options)


def test_a_summary_names_only_what_there_is() -> None:
    assert str(Summary(2, 0, 0, 0, 0, 0, 0, 1.0)) == "2 ok in 1.0 s"
    full = Summary(1, 1, 2, 1, 1, 1, 3, 2.0, "GCS: UNAVAILABLE")
    assert str(full) == (
        "1 ok, 1 error, 2 timeouts, 1 cancelled, 1 retry, 1 still running, 3 in flight in 2.0 s; "
        "limits were not enforced: GCS: UNAVAILABLE"
    )
    assert full.done == 5


def test_a_result_gives_its_value_or_raises() -> None:
    assert Result(0, "ok", None, value=3).get() == 3
    assert math.isnan(Result(0, "ok", None).seconds)
    with pytest.raises(KeyError):
        Result(0, "error", None, error=KeyError("x")).get()


TASK = b"8 bytes." + b"\xff" * 12 + b"job."
RUN = WorkerTask(TASK, 0, "work", 0.0, b"worker", 17, "node")


@dataclass(slots=True)
class Machine:
    """A cluster with one task, and all that is done to it."""

    runs: list[WorkerTask] = field(default_factory=list)
    answers: list[bool | None] = field(default_factory=list)
    """What the worker says, one a question; the last for ever."""
    done: list[str] = field(default_factory=list)
    failures: int = 0
    cost: float = 0.0
    is_over: bool = False
    """Whether the owner holds the result."""

    def running(self, wanted: Callable[[bytes], bool]) -> list[WorkerTask]:
        if self.failures:
            self.failures -= 1
            raise OSError("gone")
        return [run for run in self.runs if wanted(run.task)]

    def confirm(self, runs: Sequence[WorkerTask]) -> list[bool | None]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [answer] * len(runs)

    def close(self) -> None:
        self.done.append("close")

    def is_done(self, ref: Any) -> bool:
        return self.is_over

    def cancel(self, ref: Any, force: bool) -> str:
        self.done.append("force" if force else "cancel")
        return ""

    def remember(self, run: WorkerTask) -> None:
        self.done.append("remember")

    def sweep(self, task: bytes) -> None:
        self.done.append("sweep")

    def kill(
        self, runs: Sequence[WorkerTask], still: Callable[[WorkerTask], bool]
    ) -> dict[bytes, str]:
        self.done.append("kill")
        return dict.fromkeys((run.task for run in runs), "")


def guarded(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    on_timeout: str = "force",
    limit: float | None = 0.05,
) -> tuple[TimeLimits, Callable[[Callable[[], object]], None]]:
    monkeypatch.setattr(limits, "_SHORTEST", 0.01)
    guard = TimeLimits(limit, LADDERS[on_timeout], 0.02, lambda: (machine, machine))

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, machine.done
            time.sleep(0.01)

    return guard, until


def running_for(seconds: float, **other: Any) -> WorkerTask:
    return RUN._replace(started_at=time.monotonic() - seconds, **other)


def test_steps_are_taken_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([running_for(1)], [True])
    guard, until = guarded(machine, monkeypatch)
    guard.watch(RUN.task, "ref")
    given_up: list[Any] = []
    until(lambda: given_up.extend(guard.given_up()) or given_up)
    guard.close()
    assert machine.done[:4] == ["cancel", "remember", "force", "kill"]
    assert given_up[0].how == "cancel, then force, then kill"


def test_a_worker_that_has_gone_on_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([running_for(1)], [True, False])
    guard, until = guarded(machine, monkeypatch)
    guard.watch(RUN.task, "ref")
    given_up: list[Any] = []
    until(lambda: given_up.extend(guard.given_up()) or given_up)
    guard.close()
    assert "kill" not in machine.done
    assert given_up[0].how.endswith("kill (its worker does not run it)")


def test_what_the_gcs_thinks_runs_and_the_worker_does_not_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine([running_for(1)], [False])
    guard, _ = guarded(machine, monkeypatch)
    guard.watch(RUN.task, "ref")
    time.sleep(0.3)
    guard.close()
    assert machine.done in ([], ["close"])


def test_a_task_that_ends_meanwhile_gets_no_further_step(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([running_for(1)], [True])
    guard, until = guarded(machine, monkeypatch)
    guard.watch(RUN.task, "ref")
    until(lambda: "cancel" in machine.done)
    ended = guard.done(RUN.task)
    taken = len(machine.done)
    time.sleep(0.2)
    guard.close()
    assert ended is not None
    assert ended.reason == "timeout"
    assert [step for step in machine.done[taken:] if step != "close"] == []


@pytest.mark.parametrize("on_timeout", ["force", "report"])
def test_a_task_whose_result_is_there_is_left_alone(
    on_timeout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GCS and a worker that does not answer still have it as running; the caller has not taken the result."""
    machine = Machine([running_for(1)], [None], is_over=True)
    guard, _ = guarded(machine, monkeypatch, on_timeout)
    guard.watch(RUN.task, "ref")
    until(lambda: guard._source is not None)
    time.sleep(0.2)
    assert guard.done(RUN.task) is None, "it has not timed out"
    assert guard.given_up() == []
    guard.close()
    until(lambda: machine.done)
    assert machine.done == ["close"]


def test_a_task_that_ends_after_a_step_gets_no_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([running_for(1)], [True])
    monkeypatch.setattr(Machine, "cancel", lambda self, *_: setattr(self, "is_over", True) or "")
    guard, _ = guarded(machine, monkeypatch)
    guard.watch(RUN.task, "ref")
    until(lambda: machine.is_over)
    time.sleep(0.2)
    ended = guard.done(RUN.task)
    guard.close()
    assert ended is not None
    assert ended.how == "cancel"
    assert "kill" not in machine.done


def test_a_cluster_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine([running_for(1)], [True], failures=1)
    guard, until = guarded(machine, monkeypatch, "cancel")
    guard.watch(RUN.task, "ref")
    until(lambda: guard.problem)
    assert guard.problem == "OSError: gone"
    until(lambda: "cancel" in machine.done)
    guard.close()
    assert guard.problem == ""
    assert len(caplog.records) == 1


def test_all_can_be_ended_although_it_is_unknown_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GCS is gone: Ctrl-C must not wait for it."""
    machine = Machine([running_for(1)], [True], failures=1000)
    guard, until = guarded(machine, monkeypatch)
    guard.watch(RUN.task, "ref")
    guard.end_all(LADDERS["force"])
    given_up: list[Any] = []
    until(lambda: given_up.extend(guard.given_up()) or given_up)
    guard.close()
    assert given_up[0].reason == "cancelled"
    assert given_up[0].how == "cancel, then force, then kill (not seen running)"
    assert "kill" not in machine.done


def test_all_can_be_ended_where_there_was_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([running_for(1)], [True])
    guard, until = guarded(machine, monkeypatch, limit=None)
    guard.watch(RUN.task, "ref")
    assert guard._thread is None, "nothing is to be seen to"
    guard.end_all(LADDERS["cancel"])
    until(lambda: machine.done == ["cancel"])
    guard.done(RUN.task)
    time.sleep(0.1)
    assert guard._thread.is_alive(), "it may be asked again"
    guard.close()
    until(lambda: machine.done[-1] == "close")


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bar(3) is None
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        shown = bar(3)
        assert shown is not None
        shown.show(2, 1)
        shown.close()
    drawn = ""
    with suppress(OSError):  # EIO: no process writes any more
        while piece := os.read(ours, 10_000):
            drawn += piece.decode(errors="replace")
    os.close(ours)
    assert "2/3" in drawn
    assert "1 in flight" in drawn
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("loaded", "expected"), [((), 13.0), ((-4.0,), -4.0)])
def test_what_loads_for_ever_counts_as_running_at_last(
    loaded: tuple[float, ...], expected: float
) -> None:
    """RUNNING for 17 s; it may load for 30 s."""
    now = time.time()
    language = SimpleNamespace(Value=lambda name: 0)
    messages, wire = RayMessages(SimpleNamespace(Language=language)), Wire(Access())
    events = [
        SimpleNamespace(event_name="task:deserialize_arguments", end_time=int((now + at) * 1e9))
        for at in loaded
    ]
    event = SimpleNamespace(
        task_id=b"task",
        attempt_number=0,
        task_info=SimpleNamespace(name="work", func_or_class_name="", language=0),
        state_updates=SimpleNamespace(worker_id=b"w", worker_pid=17, node_id=b"\x01"),
        profile_events=SimpleNamespace(events=events),
    )
    cluster = JobCluster(messages, wire, wire, "", b"job", loading=30.0)
    run = cluster._run(event, {"RUNNING": now - 17})
    assert run.started_at - time.monotonic() == pytest.approx(expected, abs=0.5)


STATES = {"RUNNING": 8, "FINISHED": 11, "SUBMITTED_TO_WORKER": 6}
LOADED, EXECUTED = ("task:deserialize_arguments", 1.0, 2.0), ("task:execute", 2.0, 2.5)


@pytest.mark.parametrize(
    ("at", "profiled", "ran"),
    [
        ({"RUNNING": 1.0, "FINISHED": 9.0}, (LOADED, EXECUTED), 0.5),
        ({"RUNNING": 1.0, "FINISHED": 9.0}, (LOADED,), 7.0),
        ({"RUNNING": 1.0, "FINISHED": 9.0}, (), None),
        ({"FINISHED": 9.0}, (), None),
        ({"RUNNING": 1.0}, (), None),
    ],
)
def test_the_own_time_is_the_workers_record(
    at: dict[str, float],
    profiled: tuple[tuple[str, float, float], ...],
    ran: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner reports the end before the worker's record arrives: then it is unknown for a moment."""
    events = [
        SimpleNamespace(event_name=name, start_time=int(a * 1e9), end_time=int(b * 1e9))
        for name, a, b in profiled
    ]
    states = SimpleNamespace(
        DESCRIPTOR=SimpleNamespace(fields_by_name=("state_ts_ns",)),
        state_ts_ns={STATES[name]: int(s * 1e9) for name, s in at.items()},
    )
    event = SimpleNamespace(
        task_id=b"task",
        attempt_number=0,
        state_updates=states,
        profile_events=SimpleNamespace(events=events),
    )
    monkeypatch.setattr(gcs_wire, "task_events", lambda of, tasks: None)
    wire = SimpleNamespace(ask=lambda *_: SimpleNamespace(events_by_task=[event]))
    messages = RayMessages(SimpleNamespace(TaskStatus=STATES))
    assert JobCluster(messages, wire, wire, "", b"job").ran(b"task") == ran  # type: ignore[arg-type]


def test_the_own_time_is_asked_until_it_must_have_arrived_and_only_once() -> None:
    answers: list[float | None] = [None, None, 0.5]
    source = SimpleNamespace(ran=lambda task: answers.pop(0), close=lambda: None)
    timing = OwnTime(b"task", lambda: source)
    assert [timing(), timing()] == [0.5, 0.5]

    def gone() -> Any:
        raise ConnectionError

    assert OwnTime(b"task", gone, 3.0)() == 3.0


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_clock_that_is_off_does_not_make_a_task_old(skew: float) -> None:
    """The owner, whose clock is ours, sent it two seconds ago."""
    wire = Wire(Access())
    cluster = JobCluster(RayMessages(), wire, wire, "", b"job", loading=0.0)
    event = SimpleNamespace(
        task_id=b"task",
        attempt_number=0,
        task_info=SimpleNamespace(name="work", func_or_class_name=""),
        state_updates=SimpleNamespace(worker_id=b"w", worker_pid=17, node_id=b"\x01"),
        profile_events=SimpleNamespace(events=[]),
    )
    now = time.time()
    times = {"SUBMITTED_TO_WORKER": now - 2, "RUNNING": now - 1 + skew}
    run = cluster._run(event, times)
    assert 0 <= time.monotonic() - run.started_at < 2.5
    time.sleep(0.05)
    assert cluster._run(event, times).started_at == run.started_at, "a start does not move"
