"""A clock that is set between two looks: processes keep their identity, and tasks their age.

The kernel's `btime` (`/proc/stat`) is the time of day less the time since the boot, so it jumps with the clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from raydoctor.act import private
from raydoctor.act.attach import handshake
from raydoctor.act.tracking import family
from raydoctor.act.tracking import registry as _registry
from raydoctor.act.tracking import watcher as _watcher
from raydoctor.act.tracking.registry import StartedProcess, Task
from raydoctor.act.workers import running as _running
from raydoctor.act.zombies import leftovers, sweep, sweep_nodes
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.gcs.programs.gcs_wire import Wire
from raydoctor.observe.processes import ownership, proc
from raydoctor.observe.stacks import stacks
from raydoctor.observe.watching import watching
from raydoctor.observe.watching.clocks import Clocks
from raydoctor.observe.watching.watching import ReportedTask

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
STEPS = (3600.0, 1.0, -1.0, -86400.0)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private, "places", lambda user: ((str(tmp_path), "registry"),))
    return tmp_path / "registry"


@pytest.fixture
def sleeper() -> Iterator[int]:
    child = subprocess.Popen(["sleep", "86141"], start_new_session=True)
    yield child.pid
    child.kill()
    child.wait()


def set_clock(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process sees it that starts after the clock was set."""
    boot = proc._boot_time() + step
    monkeypatch.setattr(proc, "_boot_time", lambda: boot)


@pytest.mark.parametrize("step", STEPS)
def test_a_registry_names_the_same_processes_after_the_clock_was_set(
    step: float, registry: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, seen = family.started_process(os.getpid()), family.started_process(sleeper)
    assert worker
    assert seen
    task = Task(1, "abc", 5.0, {})
    task.add(seen)
    mark = task.mark(worker)
    path = _registry.path_of(worker)
    _registry.replace(path, _registry.lines_of([task]))
    set_clock(step, monkeypatch)
    (known,) = _registry.known_workers()
    now = proc.read(os.getpid())
    assert now
    assert known.worker.is_same(now.pid, now.started_at)
    assert [each.pid for each in family.members(known.tasks[1].processes.values(), ())] == [sleeper]
    assert known.tasks[1].mark(known.worker) == mark
    assert _registry.path_of(known.worker) == path


@pytest.mark.parametrize("step", STEPS)
def test_the_mark_of_a_living_worker_names_it_after_the_clock_was_set(
    step: float, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`zombies` would call what it started an orphan."""
    worker = family.started_process(sleeper)
    assert worker
    mark = Task(1, "abc", 5.0, {}).mark(worker)
    set_clock(step, monkeypatch)
    machine = ownership.survey_machine()
    assert ownership._marked(machine, mark) == [sleeper]
    assert ownership._marked(machine, f"abc:{sleeper}:1.00:1") == []


def test_a_watcher_that_starts_after_the_clock_was_set_ends_nothing(
    registry: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker lives, and so do its tasks' processes."""
    worker = family.started_process(os.getpid())
    seen = family.started_process(sleeper)
    assert worker
    assert seen
    task = Task(1, "abc", 0.1, {})
    task.add(seen)
    path = _registry.path_of(worker)
    _registry.replace(path, _registry.lines_of([task]))
    command = _watcher._command(path, worker)
    # The real program, whose kernel reports another boot time.
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[1])\n"
        "from raydoctor.act import private; from raydoctor.observe.processes import proc\n"
        f"private.places = lambda user: (({str(registry.parent)!r}, 'registry'),)\n"
        "boot = proc._boot_time() + 7; proc._boot_time = lambda: boot\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    words = [sys.executable, "-I", "-c", code, *command[command.index("-S") + 1 :]]
    watcher = subprocess.Popen(words, stdin=subprocess.PIPE)
    try:
        with suppress(subprocess.TimeoutExpired):
            watcher.wait(1.5)
        assert watcher.poll() is None, "it takes the worker for gone"
        assert proc.read(sleeper)
        assert proc.read(sleeper).state != "Z"  # type: ignore[union-attr]
    finally:
        watcher.kill()
        watcher.communicate()


@pytest.mark.parametrize("other", ["boot", "namespace"])
def test_a_registry_of_another_boot_or_pid_namespace_names_nothing_here(
    other: str, registry: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot the same program may have the same pid at the same second since the boot."""
    seen = family.started_process(sleeper)
    assert seen
    task = Task(1, "abc", 5.0, {})
    task.add(seen)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(proc, "place", lambda: other)
        _registry.replace(
            _registry.path_of(StartedProcess(2**22 - 1, 1.0)), _registry.lines_of([task])
        )
        assert len(_registry.known_workers()) == 1
    assert _registry.known_workers() == []
    family.forget_old()
    assert len(list(registry.iterdir())) == 1  # it may be another container's
    (file,) = registry.iterdir()
    os.utime(file, (time.time() - 7 * 86400,) * 2)
    family.forget_old()
    assert not list(registry.iterdir())


@pytest.mark.parametrize("step", STEPS)
def test_a_node_that_is_asked_again_ends_what_it_was_asked_to(
    step: float, sleeper: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The look and the deed are two processes on the node: "gone" must not be claimed of what runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    process = proc.read(sleeper)
    assert process
    view = sweep.SweepReport(
        [_leftover(process)], {}, [], {}, "", process.started_at, boot=proc.boot_time()
    )
    asked = json.loads(json.dumps({"do": "act", "view": sweep.packed(view), "deed": _deed()}))
    set_clock(step, monkeypatch)
    targets = []

    def clear(found: list[leftovers.Leftover], *_: object, **__: object) -> dict[object, object]:
        targets.extend(each.identity for each in found)
        return {}

    monkeypatch.setattr(leftovers, "clear", clear)
    sweep_nodes.respond(asked)
    now = proc.read(sleeper)
    assert now
    assert [(t.pid, round(t.started_at, 2)) for t in targets] == [
        (sleeper, round(now.started_at, 2))
    ]


def _leftover(process: proc.Process) -> leftovers.Leftover:
    identity = leftovers.Identity(process.pid, process.started_at)
    return leftovers.Leftover(identity, "orphan", "", "", "", "", "", None, 0, 0)


def _deed() -> dict[str, object]:
    from dataclasses import asdict

    deed = sweep.SweepRequest(leftovers.SweepOptions(), 0.1, kill=True, remove=False)
    return {**deed._asdict(), "options": asdict(deed.options)}


# ------------------------------------------------------------------ time limits

TASK, WORKER = "c8ef45ccd0112571" + "f" * 24 + "01000000", "ab" * 28
RUN = ReportedTask(TASK, WORKER, 12, "127.0.0.1", "cd" * 28)


def seen_at(at: float, steady: float, *runs: ReportedTask) -> watching.Snapshot:
    return watching.Snapshot(at, "s", (), runs, len(runs), (), 1, 1, (), steady)


@pytest.mark.parametrize("step", STEPS)
def test_no_task_gets_older_in_a_watch_when_the_clock_is_set(step: float) -> None:
    """`watch --timeout 30m --on-timeout force` must not end what runs for a minute."""
    clocks = Clocks()
    clocks.see(seen_at(10_000.0, 100.0))
    clocks.see(seen_at(10_002.0, 102.0, RUN))
    clocks.learn([watching.Attempt(TASK, "f", "f", 0, "RUNNING", WORKER, "", 10_001.0)])
    (running,) = clocks.see(seen_at(10_062.0 + step, 162.0, RUN))
    assert running.age(10_062.0 + step) == 61.0
    # What the GCS reports in the time of before the step does not make it older.
    late = running.run._replace(task=TASK.replace("c8", "c9"))
    clocks.see(seen_at(10_064.0 + step, 164.0, RUN, late))
    clocks.learn([watching.Attempt(late.task, "f", "f", 0, "RUNNING", WORKER, "", 10_063.0)])
    assert all(each.age(10_064.0 + step) <= 63.0 for each in clocks.running())


def test_a_suspended_machine_makes_no_task_older() -> None:
    clocks = Clocks()
    clocks.see(seen_at(10_000.0, 100.0, RUN))
    (running,) = clocks.see(seen_at(50_000.0, 102.0, RUN))
    assert running.age(50_000.0) == 2.0


def test_no_task_gets_older_in_a_poll_when_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire = Wire(Access())
    cluster = _running.JobCluster(_running.RayMessages(), wire, wire, "", b"job", 0.0)
    monkeypatch.setattr(cluster.__class__, "_of_gcs", lambda self, wanted: ())
    monkeypatch.setattr(cluster.__class__, "_of_workers", lambda self, wanted: ())
    cluster.running(lambda task: True)
    began = time.time() - 3600.0  # an hour ago, as the clock says that was just set
    event = SimpleNamespace(
        task_id=b"t", attempt_number=0, profile_events=SimpleNamespace(events=[])
    )
    started = cluster._started_at(event, {"RUNNING": began})
    assert time.monotonic() - started < 2 * _running.LAG + 1.0


# ------------------------------------------------------------------ deadlines


def test_stacks_are_sampled_in_time_when_the_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, slept = iter(range(100_000, 0, -3600)), []
    monkeypatch.setattr(stacks.time, "time", lambda: float(next(times)))
    monkeypatch.setattr(stacks.time, "sleep", slept.append)
    list(stacks.samples([], stacks.SampleOptions(samples=3, interval=0.5)))
    assert len(slept) == 2
    assert max(slept) <= 1.0


CLOCK = "import time; print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True); input()"


@pytest.mark.parametrize("inside", [[], ["unshare", "--time", "--monotonic", "864000", "--fork"]])
def test_a_request_to_a_process_expires_by_that_process_s_own_clock(
    inside: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither a step of the time of day nor a time namespace makes it older, or keeps it valid."""
    if inside and subprocess.call([*inside, "true"], stderr=subprocess.DEVNULL):
        pytest.skip("needs a time namespace of its own")
    words = [*inside, sys.executable, "-c", CLOCK]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout
        its = float(program.stdout.readline())
        pid = psutil.Process(program.pid).children()[0].pid if inside else program.pid
        monkeypatch.setattr(private, "places", lambda user: ((str(tmp_path), "attach"),))
        monkeypatch.setattr(time, "time", lambda: 5.0)
        meeting = handshake.handshake(pid)
        meeting.ask("127.0.0.1", 0, 30.0)
        request = json.loads((tmp_path / "attach" / meeting.request).read_text())
        assert its < request["until"] - 30.0 < its + 60.0
        meeting.close()
        program.communicate(b"\n")


def test_the_kernel_log_is_dated_right_in_a_time_namespace() -> None:
    inside = ["unshare", "--time", "--monotonic", "864000", "--fork"]
    if subprocess.call([*inside, "true"], stderr=subprocess.DEVNULL):
        pytest.skip("needs a time namespace of its own")
    code = "from raydoctor.observe.processes import proc; print(proc.kernel_clock())"
    printed = subprocess.run(
        [*inside, sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert abs(float(printed.stdout) - proc.kernel_clock()) < 60.0
