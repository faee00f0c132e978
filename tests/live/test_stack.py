"""Looks at real workers that hang: their stacks, what the kernel says, what they wait for; `raydoctor stack`."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raydoctor.cluster import samples
from raydoctor.cluster.samples import Sample, SampledProcess
from raydoctor.model.values import Event, Gap, Source
from raydoctor.observe import live
from raydoctor.observe.collector.run import Collector, run
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.stacks import pyspy, sampling, stacks, worker_stacks
from raydoctor.observe.stacks.stack_targets import Known, UnknownTargetError, everywhere, named
from raydoctor.observe.stacks.stacks import ProcessToSample, SampleOptions
from raydoctor.observe.stacks.subject import SampledSubject
from raydoctor.observe.stacks.suspects import Sampling, Suspects, suspects
from raydoctor.observe.stacks.thread_rows import thread_rows, whose_is
from raydoctor.observe.stacks.threads import KernelThread
from raydoctor.observe.stacks.worker_stacks import Found, Stack
from raydoctor.render import stack as render
from raydoctor.render.page import plain
from raydoctor.waits.kinds.kind import kind_of
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.schemas import faults
from tests.helpers.waiting import PATIENCE, Program, clock, until

LINUX = sys.platform.startswith("linux")
SECRET = "correct-horse-battery-staple"
PROGRAM = """
import asyncio, os, signal, socket, subprocess, threading, time
import ray

ray.init(log_to_driver=False)
few = dict(num_cpus=0.01)

@ray.remote(**few)
def base():
    password = "correct-horse-battery-staple"
    hostile = "\\x1b[2J\\u202e"
    time.sleep(100000)

@ray.remote(**few)
def gets(refs):
    return ray.get(refs)

@ray.remote(**few)
def waits(refs):
    return ray.wait(refs, num_returns=len(refs))

class Shared:
    def __init__(self):
        self.lock = threading.RLock()

def hold(lock):
    with lock:
        time.sleep(100000)

@ray.remote(**few)
def locked():
    shared = Shared()
    threading.Thread(target=hold, args=(shared.lock,), name="holder", daemon=True).start()
    time.sleep(0.5)
    with shared.lock:
        pass

@ray.remote(**few)
def receives():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    client = socket.create_connection(server.getsockname())
    return client.recv(1)

@ray.remote(**few)
def child():
    return subprocess.Popen(["sleep", "100000"]).wait()

@ray.remote(**few)
def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(100000)

@ray.remote(**few)
class Actor:
    def wait(self, refs):
        return ray.get(refs[0])

ref = base.remote()
many = [ray.put(n) for n in range(300)]
actor = Actor.options(name="one").remote()
kept = [gets.remote([ref]), waits.remote([ref]), locked.remote(), receives.remote(), child.remote()]
kept += [gets.options(name="many").remote([*many, ref]), stopped.remote(), actor.wait.remote([ref])]
print(ref.hex(), flush=True)
print("ready", flush=True)
ray.get(ref)
"""
NAMES = ("base", "gets", "waits", "locked", "receives", "child", "many", "stopped", "Actor.wait")


# ------------------------------------------------------------------ a real cluster


@pytest.fixture(scope="module")
def ray() -> Iterator[RealRay]:
    with real_ray() as cluster:
        cluster.start(cpus=1, dashboard=False, lean=True)
        cluster.run(PROGRAM)
        cluster.wait_for("ready")
        _wait_until_all_hang(cluster)
        yield cluster


def _wait_until_all_hang(ray: RealRay) -> None:
    deadline = time.monotonic() + PATIENCE
    missing: set[str] = set(NAMES)
    while missing:
        assert time.monotonic() < deadline, f"not there: {missing}"
        time.sleep(0.3)
        missing = {name for name in NAMES if not ray.processes(f"ray::{name}")}
    time.sleep(1.5)  # `locked` takes its lock after half a second


def wanted(ray: RealRay, *names: str) -> list[ProcessToSample]:
    found = []
    for name in names:
        (process,) = ray.processes(f"ray::{name}")
        found.append(
            ProcessToSample(process.pid, process.create_time(), "", "here", f"ray::{name}")
        )
    return found


def awaited(ray: RealRay) -> str:
    said = (ray.folder / "driver-0.txt").read_text().split()
    return next(word for word in said if len(word) == 56)


def rows(found: list[Piece | Gap], name: str) -> list[dict[str, Any]]:
    last = [p for p in found if isinstance(p, Piece) and p.path == f"live/live-{name}.json"][-1]
    reply: list[dict[str, Any]] = json.loads(last.data)["rows"]
    return reply


@pytest.fixture(scope="module")
def looked(ray: RealRay) -> list[Piece | Gap]:
    manner = SampleOptions(samples=2, interval=0.3, timeout=20)
    return list(stacks.samples(wanted(ray, *NAMES), manner))


def test_a_debugger_s_threads_are_folded() -> None:
    def frame(file: str, whose: str) -> dict[str, Any]:
        return {"function": "run", "file": file, "line": 1, "whose": whose}

    own = {"frames": [frame("_pydevd_bundle/pydevd.py", "library"), frame("train.py", "user")]}
    assert render._is_shown(own)
    assert not render._is_shown({"frames": own["frames"][:1]})
    assert not render._is_shown(
        {"frames": [frame("pydevd.py", "library"), frame("socket.py", "python")]}
    )


def test_the_main_thread_is_known_where_py_spy_shows_no_ids() -> None:
    """So it is with Python 3.10 and `--nonblocking`, which is all that a stopped process allows."""
    reply = (
        {"thread_name": "ray_print_logs", "frames": []},
        {"thread_name": "MainThread", "frames": []},
    )
    kernel = {471: KernelThread(471, "ray::work", "T", 0.5, "do_signal_stop")}
    rows = thread_rows(471, pyspy.Dump(reply), kernel, variables=False)
    states = {row["name"]: (row["tid"], row.get("state"), row.get("wchan")) for row in rows}
    assert states["MainThread"] == (471, "T", "do_signal_stop")
    assert states["ray_print_logs"] == (0, None, None)


@pytest.mark.parametrize(
    ("above", "kept"),
    [
        (["clock_nanosleep"], ["clock_nanosleep"]),
        (["clock_nanosleep", "_raylet_task_execution_handler", "ray::core::CoreWorker::ExecuteTask"],
         ["clock_nanosleep"]),
        (["function_executor", "0x7fe639a61fba"], []),
    ],
)  # fmt: skip
def test_what_runs_the_task_is_not_what_the_task_calls(above: list[str], kept: list[str]) -> None:
    """As py-spy 0.4.3 has it of Debian's Python 3.14: native frames first, wherever they belong."""
    native = [{"name": name, "filename": "_raylet.so", "module": "_raylet.so"} for name in above]
    python = [{"name": "train", "filename": "train.py", "line": 7}]
    reply = ({"thread_name": "MainThread", "os_thread_id": 471, "frames": [*native, *python]},)
    (row,) = thread_rows(471, pyspy.Dump(reply), {}, variables=False)
    assert [frame["function"] for frame in row["frames"]] == [*kept, "train"]


@pytest.mark.ray
def test_each_process_is_looked_at_as_often_as_wished(looked: list[Piece | Gap]) -> None:
    samples = rows(looked, "samples")
    assert [s["sample"] for s in samples] == [0, 1] * len(NAMES)
    assert {s["title"] for s in samples} == {f"ray::{name}" for name in NAMES}
    assert not [g for g in looked if isinstance(g, Gap)]
    for before, after in zip(samples[::2], samples[1::2], strict=True):
        assert before["started_at"] == after["started_at"]
        assert (
            after["at"] - before["at"] >= 0.1
        )  # rounds begin 0.3 s apart; in each, some are later


@pytest.mark.ray
def test_a_thread_has_its_stack_and_what_the_kernel_says(looked: list[Piece | Gap]) -> None:
    by_title = {s["title"]: s for s in rows(looked, "samples")}
    main = by_title["ray::base"]["threads"][0]
    assert main["name"] == "MainThread"
    assert main["frames"][0]["function"] == "base"
    assert main["frames"][0]["whose"] == "user"
    assert {f["whose"] for f in main["frames"][1:]} == {"ray"}
    assert not main["active"]
    if LINUX:
        assert main["state"] == "S"
        assert main["syscall"] == {"x86_64": 230, "aarch64": 115}[os.uname().machine]
        assert main["voluntary"] > 0


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="/proc")
def test_a_stopped_process_is_read_as_it_lies(ray: RealRay, looked: list[Piece | Gap]) -> None:
    row = {s["title"]: s for s in rows(looked, "samples")}["ray::stopped"]
    assert row["threads"][0]["state"] == "T"
    assert "stopped" in [f["function"] for f in row["threads"][0]["frames"]]
    (process,) = ray.processes("ray::stopped")
    assert process.status() == psutil.STATUS_STOPPED


@pytest.mark.ray
def test_no_local_is_in_a_table(looked: list[Piece | Gap]) -> None:
    for item in looked:
        assert isinstance(item, Piece)
        assert SECRET.encode() not in item.data
        assert b'"locals"' not in item.data


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="/proc")
def test_awaited_objects_are_exact(ray: RealRay, looked: list[Piece | Gap]) -> None:
    clues = {by_pid(ray, row): row for row in rows(looked, "clues")}
    for name, call in (("gets", "get"), ("waits", "wait"), ("Actor.wait", "get")):
        (wait,) = clues[name]["awaits"]
        assert (wait["call"], wait["objects"]) == (call, [awaited(ray)]), name
        assert (wait["exact"], wait["untold"]) == (True, 0)
    (wait,) = clues["many"]["awaits"]
    assert len(set(wait["objects"])) == 301
    assert wait["objects"][-1] == awaited(ray)
    assert (wait["exact"], wait["untold"]) == (True, 0)
    assert clues["base"]["awaits"] == []


def by_pid(ray: RealRay, row: dict[str, Any]) -> str:
    return psutil.Process(row["pid"]).name().removeprefix("ray::")


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="/proc")
def test_tasks_that_are_not_finished_come_first(
    ray: RealRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydoctor.observe.stacks.awaited._MOST", 3)
    manner = SampleOptions(1, timeout=20, unfinished=frozenset({awaited(ray)[:48]}))
    (clue,) = rows(list(stacks.samples(wanted(ray, "many"), manner)), "clues")
    (wait,) = clue["awaits"]
    assert wait["objects"][0] == awaited(ray)
    assert (len(wait["objects"]), wait["untold"]) == (3, 298)


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="/proc")
def test_clues_name_lock_peer_and_child(ray: RealRay, looked: list[Piece | Gap]) -> None:
    clues = {by_pid(ray, row): row for row in rows(looked, "clues")}
    (lock,) = clues["locked"]["locks"]
    assert (lock["type"], lock["holder"], lock["count"]) == ("RLock", "holder", 1)
    assert lock["holder_tid"] not in (None, lock["tid"])
    (place,) = lock["seen_in"]
    assert (place["function"], place["name"]) == ("hold", "lock")
    receiving = clues["receives"]
    (mine,) = [s for s in receiving["sockets"] if receiving["pid"] in s["tids"]]
    assert mine["peer"].startswith("127.0.0.1:")
    assert mine["state"] == "ESTABLISHED"
    (started,) = clues["child"]["children"]
    assert (started["command"], started["state"]) == ("sleep 100000", "S")


@pytest.mark.ray
def test_who_ends_is_in_no_later_look(ray: RealRay) -> None:
    command = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(1000)"]
    with Program(command, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        victim.stdout.readline()
        process = psutil.Process(victim.pid)
        subjects = [ProcessToSample(victim.pid, process.create_time()), *wanted(ray, "base")]
        found = []
        for item in stacks.samples(subjects, SampleOptions(2, 0.1, timeout=20)):
            found.append(item)
            victim.kill()
            victim.wait()
    assert [s["pid"] for s in rows(found[:1], "samples")] == [s.pid for s in subjects]
    assert [s["sample"] for s in rows(found, "samples") if s["pid"] == victim.pid] == [0]
    assert [c["pid"] for c in rows(found, "clues")] == [subjects[1].pid]


@pytest.mark.ray
def test_a_reused_pid_is_not_inspected(ray: RealRay) -> None:
    (other,) = wanted(ray, "base")
    found = list(
        stacks.samples([other._replace(started_at=other.started_at - 5)], SampleOptions(1))
    )
    assert rows(found, "samples") == []


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="/proc")
def test_without_py_spy_the_kernel_still_reports(
    ray: RealRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspy, "program", lambda: "")
    found: list[Piece | Gap] = []

    def is_asleep() -> bool:
        """A worker has its task's name before the task sleeps."""
        found[:] = stacks.samples(wanted(ray, "base"), SampleOptions(1))
        (row,) = rows(found, "samples")
        assert row["how"] == "proc"
        return bool(row["threads"][0]["wchan"] == "hrtimer_nanosleep")

    until(is_asleep)
    (gap,) = [g for g in found if isinstance(g, Gap)]
    assert "pip install py-spy" in gap.hint


# ------------------------------------------------------------------ a process of Python's


@pytest.fixture
def sleeper() -> Iterator[ProcessToSample]:
    code = "import threading, time; lock = threading.Lock(); lock.acquire(); print(1, flush=True); lock.acquire()"
    with Program([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)
        yield ProcessToSample(process.pid)
        process.kill()


def py_spy_that(folder: Path, where: str | int, does: str) -> str:
    """A py-spy that does this first, if it is given that word."""
    program = folder / "py-spy"
    program.write_text(
        f'#!/bin/sh\nfor each in "$@"; do [ "$each" = {where} ] && {does}; done\n'
        f'exec {pyspy.program()} "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


def failing(folder: Path, where: str, said: str) -> str:
    """A py-spy that cannot look in this way."""
    return py_spy_that(folder, where, f'echo "{said}" >&2 && exit 1')


@pytest.mark.skipif(not LINUX, reason="macOS wants root for it")
def test_native_frames_that_cannot_be_had_cost_no_stack(
    sleeper: ProcessToSample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "Error: Failed to get stack traces\nCaused by:\n    0: UNW_EBADREG: bad register number"
    broken = failing(tmp_path, "--native", said)
    monkeypatch.setattr(pyspy, "program", lambda: broken)
    (row,) = stacks.rows([sleeper], variables=False, native=True, timeout=20)
    assert row["how"] == "py-spy"
    assert row["problem"] == "no native frames: UNW_EBADREG: bad register number"
    assert row["threads"][0]["frames"][0]["function"] == "<module>"


@pytest.mark.skipif(not LINUX, reason="macOS wants root for it")
def test_native_frames_stand_above_those_of_python(sleeper: ProcessToSample) -> None:
    (row,) = stacks.rows([sleeper], variables=False, native=True, timeout=20)
    whose = [frame["whose"] for frame in row["threads"][0]["frames"]]
    if row["how"] == "py-spy --native":  # py-spy cannot unwind at every moment
        assert whose[0] == "native"
    assert whose[-1] == "user"
    assert whose == sorted(whose)


@pytest.fixture
def sleepers() -> Iterator[list[ProcessToSample]]:
    """Four of them."""
    code = "import time; print(1, flush=True); time.sleep(100)"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)
    ]
    for each in started:
        assert each.stdout is not None
        each.stdout.readline()
    yield [ProcessToSample(each.pid) for each in started]
    for each in started:
        each.kill()
        each.communicate()


@pytest.mark.skipif(not LINUX, reason="macOS wants root for it")
def test_processes_that_could_be_seen_in_time_are_reported(
    sleepers: list[ProcessToSample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is not seen in time: the others are, and what lies around them."""
    late = py_spy_that(tmp_path, sleepers[0].pid, "sleep 30")  # as on a machine without time
    monkeypatch.setattr(pyspy, "program", lambda: late)
    began = clock()
    found = list(stacks.samples(sleepers, SampleOptions(3, 0.1, timeout=60), seconds=6))
    assert clock() - began < 10
    seen = {each.pid for each in sleepers[1:]}
    assert {row["pid"] for row in rows(found, "samples")} == seen
    assert {row["pid"] for row in rows(found, "clues")} == seen
    (gap,) = [item for item in found if isinstance(item, Gap)]
    assert gap.why == "this machine is overloaded: of 4 processes, 1 was not sampled"


@pytest.mark.skipif(not LINUX, reason="macOS wants root for it")
def test_a_process_whose_clues_came_too_late_is_reported(
    sleepers: list[ProcessToSample], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stack is there, but not what it waits for."""
    searched = SampledSubject.clues

    def late(subject: SampledSubject, options: SampleOptions) -> stacks.Row | None:
        if subject.wanted.pid == sleepers[0].pid:
            time.sleep(30)  # as on a machine without time
        return searched(subject, options)

    monkeypatch.setattr(SampledSubject, "clues", late)
    found = list(stacks.samples(sleepers, SampleOptions(1), seconds=6))
    assert {row["pid"] for row in rows(found, "samples")} == {each.pid for each in sleepers}
    assert {row["pid"] for row in rows(found, "clues")} == {each.pid for each in sleepers[1:]}
    (gap,) = [item for item in found if isinstance(item, Gap)]
    assert gap.what == "what processes wait for"
    assert gap.why == (
        "this machine is overloaded: the search did not end in time for 1 of 4 processes"
    )


@pytest.mark.skipif(not LINUX, reason="macOS wants root for it")
def test_a_collector_that_is_cut_off_has_reported_what_it_saw(
    sleepers: list[ProcessToSample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a look that is not done, too."""
    late = py_spy_that(tmp_path, sleepers[0].pid, "sleep 30")  # as on a machine without time
    monkeypatch.setattr(pyspy, "program", lambda: late)
    monkeypatch.setattr(stacks, "_SO_FAR", 0.0)
    looks = run(
        [Collector("looks", lambda: stacks.samples(sleepers, SampleOptions(1, timeout=60)))], 4
    )
    reply = json.loads(looks.pieces["live/live-samples.json"])["rows"]
    assert {row["pid"] for row in reply} == {each.pid for each in sleepers[1:]}


@pytest.mark.skipif(not LINUX, reason="another user's process")
def test_a_refusal_is_reported_with_what_to_do(
    sleeper: ProcessToSample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "Permission Denied: Try running again with elevated permissions by going 'sudo env'"
    refused = failing(tmp_path, "dump", said)
    monkeypatch.setattr(pyspy, "program", lambda: refused)
    found = list(stacks.samples([sleeper], SampleOptions(1)))
    (row,) = rows(found, "samples")
    assert (row["how"], row["problem"]) == ("proc", "no stack: permission denied")
    assert row["threads"][0]["state"] == "S"
    (gap,) = [item for item in found if isinstance(item, Gap)]
    assert (gap.why, bool(gap.hint)) == ("permission denied", True)


@pytest.mark.skipif(not LINUX, reason="/proc")
def test_a_call_that_a_look_interrupted_is_still_known() -> None:
    code = "import ctypes; print(1, flush=True); ctypes.CDLL(None).sleep(1000)"
    number = {"x86_64": 230, "aarch64": 115}[os.uname().machine]

    def calls() -> set[tuple[int, str]]:
        """Of a new process each time: its kernel no longer names a call that an earlier try interrupted."""
        with Program([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            subject = ProcessToSample(process.pid)
            found = list(stacks.samples([subject], SampleOptions(3, 0.05, timeout=20)))
            process.kill()
        threads = [row["threads"][0] for row in rows(found, "samples")]
        return {(thread["syscall"], thread["wchan"]) for thread in threads}

    # Not yet asleep, or not asleep again: on a busy machine it waits for a processor.
    until(lambda: calls() == {(number, "hrtimer_nanosleep")})


@pytest.mark.skipif(not LINUX, reason="/proc")
def test_what_a_call_waits_on_is_named(tmp_path: Path) -> None:
    fifo, flock = tmp_path / "fifo", tmp_path / "lock"
    os.mkfifo(fifo)
    flock.touch()
    code = f"""
import fcntl, os, subprocess, threading, time
def opens(): open({str(fifo)!r})
def locks(): fcntl.flock(os.open({str(flock)!r}, os.O_RDWR), fcntl.LOCK_EX)
def talks(): subprocess.Popen(["sleep", "1000"], stdout=-1, stderr=-1).communicate()
for each in (opens, locks, talks):
    threading.Thread(target=each, name=each.__name__, daemon=True).start()
time.sleep(0.3)
print(1, flush=True)
time.sleep(1000)
"""
    with flock.open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        with Program([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            found = list(
                stacks.samples([ProcessToSample(process.pid)], SampleOptions(1, timeout=20))
            )
            (sleep,) = psutil.Process(process.pid).children()
            sleep.kill()
            process.kill()
    threads = {t["name"]: t["tid"] for t in rows(found, "samples")[0]["threads"]}
    (clue,) = rows(found, "clues")
    files = {tid: file for file in clue["files"] for tid in file["tids"]}
    assert files[threads["opens"]]["path"] == str(fifo)
    assert files[threads["locks"]]["path"] == str(flock)
    assert files[threads["talks"]]["path"].startswith("pipe:")
    assert files[threads["talks"]]["held_by"] == [sleep.pid]
    (lock,) = clue["locks"]
    assert (lock["type"], lock["holder_pid"]) == ("file", os.getpid())


@pytest.mark.skipif(not LINUX, reason="/proc")
@pytest.mark.parametrize(
    ("awaits", "kind", "words"),
    [
        ("reads({port})", "socket", "waits in asyncio on a socket to 127.0.0.1:{port}"),
        ("asyncio.sleep(1000)", "unknown", "waits in asyncio: a coroutine that awaits has no stack"),
        ("(await both({port})).serve_forever()", "socket", "waits in asyncio for incoming connections"),
    ],
)  # fmt: skip
def test_what_coroutines_wait_for_is_what_their_loop_watches(
    awaits: str, kind: str, words: str
) -> None:
    """A server is none that waits for its clients, whatever other sockets it has."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        code = f"""
import asyncio
async def reads(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.read(1)
async def both(port):
    both.kept = await asyncio.open_connection("127.0.0.1", port)
    return await asyncio.start_server(print, "127.0.0.1", 0)
async def go():
    asyncio.get_running_loop().call_later(0.3, lambda: print(1, flush=True))
    await {awaits.format(port=port)}
asyncio.run(go())
"""
        with Program([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.1)
            found = list(
                stacks.samples([ProcessToSample(process.pid)], SampleOptions(2, 0.1, timeout=20))
            )
            process.kill()
    event = Event("live.samples", Source("", ""), 1, 0, "")
    looks = tuple(
        Sample(row["at"], row["cpu_seconds"], tuple(map(samples.thread, row["threads"])), row["how"], row["problem"], event)
        for row in rows(found, "samples")
    )  # fmt: skip
    (clue,) = rows(found, "clues")
    verdict = kind_of(SampledProcess(process.pid, "n", "w", "ray::f", looks, clue, ()))
    assert verdict is not None
    assert (verdict.kind, verdict.activity.summary) == (kind, words.format(port=port))
    assert verdict.in_asyncio
    assert verdict.is_open == (verdict.code != "asyncio-socket")


@pytest.mark.skipif(not LINUX, reason="/proc")
def test_a_lock_that_is_no_local_is_found_in_the_heap(sleeper: ProcessToSample) -> None:
    (clue,) = rows(list(stacks.samples([sleeper], SampleOptions(1, timeout=20))), "clues")
    (lock,) = clue["locks"]
    assert (lock["tid"], lock["type"], lock["holder_tid"]) == (sleeper.pid, "Lock", None)


# ------------------------------------------------------------------ live.collect


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="/proc")
def test_a_collection_looks_at_what_has_run_for_long(ray: RealRay) -> None:
    options = live.CollectOptions(
        ray.address, 20, all_nodes=False, samples=Sampling(samples=1, min_age_s=0.5)
    )
    pieces = live.collect(options).collection.pieces
    samples = json.loads(pieces["live/live-samples.json"])["rows"]
    titles = {row["title"] for row in samples}
    assert {f"ray::{name}" for name in NAMES} <= titles
    assert "driver of job 1" in titles
    nodes = {row["node_id"] for row in samples}
    assert all(len(node) == 56 for node in nodes)
    clues = json.loads(pieces["live/live-clues.json"])["rows"]
    driver = next(row for row in clues if row["worker_id"].endswith("f" * 48))
    assert driver["awaits"][0]["objects"] == [awaited(ray)]


@pytest.mark.ray
def test_another_node_looks_at_its_own(ray: RealRay) -> None:
    """This node, taken for another one."""
    cluster, _ = live.find(ray.address)
    known = worker_stacks.ask(cluster, 20)
    (there,) = named(known, "base")
    found = Suspects((), {there.node_id: [there]}, frozenset())
    (collector,) = sampling.collectors(cluster, found, Sampling(1), 20, all_nodes=True)
    pieces = {item.path: item for item in collector.gather() if isinstance(item, Piece)}
    (row,) = rows([_flat(p) for p in pieces.values()], "samples")
    assert (row["pid"], row["node_id"]) == (there.pid, there.node_id)
    assert row["threads"][0]["frames"][0]["function"] == "base"
    assert all(path.startswith(f"node-{there.node_id[:12]}/live/") for path in pieces)


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="/proc")
def test_a_node_that_is_asked_redacts_and_takes_no_other_pid(ray: RealRay) -> None:
    cluster, _ = live.find(ray.address)
    (meant,) = named(worker_stacks.ask(cluster, 20), "base")
    options = worker_stacks.StackOptions("base", variables=True, timeout=20)
    other = meant._replace(pid=os.getpid())
    asked = {"wanted": [meant._asdict(), other._asdict()], "options": options._asdict()}
    (row,) = worker_stacks.respond(json.loads(json.dumps(asked)))
    assert row["pid"] == meant.pid
    reply = row["threads"][0]["frames"][0]["locals"]
    assert reply["password"].startswith("<secret:")
    assert "hostile" in reply


def _flat(piece: Piece) -> Piece:
    return Piece(piece.path.partition("/")[2], piece.data)


# ------------------------------------------------------------------ raydoctor stack


def stack(ray: RealRay, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raydoctor", "stack", "--address", ray.address]
    return subprocess.run(
        [*command, "--timeout", "20", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.ray
def test_stack_shows_all_that_runs_here(ray: RealRay) -> None:
    done = stack(ray)
    assert done.returncode == 0, done.stderr
    assert "driver  " in done.stdout
    for name in NAMES:
        assert f"ray::{name}" in done.stdout
    assert "and 1 thread of Ray's and Python's own" in done.stdout


@pytest.mark.ray
def test_stack_of_a_task_with_its_locals(ray: RealRay) -> None:
    done = stack(ray, "base", "--locals")
    assert done.returncode == 0, done.stderr
    assert f"task {awaited(ray)[:48]} for " in done.stdout
    assert "base (<string>:" in done.stdout
    assert "password = " in done.stdout
    assert SECRET not in done.stdout
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout


@pytest.mark.ray
def test_stack_as_json(ray: RealRay) -> None:
    (process,) = ray.processes("ray::Actor.wait")
    reply = json.loads(stack(ray, "one", "--json").stdout)
    assert faults(reply) == []
    assert reply["schema"] == "raydoctor/stack/1"
    (row,) = reply["processes"]
    assert (row["pid"], row["kind"]) == (process.pid, "worker")
    assert row["actor"]["class"] == "Actor"
    assert [task["name"] for task in row["tasks"]] == ["Actor.wait"]


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="/proc")
def test_stacks_that_cannot_be_had_are_a_gap(ray: RealRay, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = live.find(ray.address)
    monkeypatch.setattr(pyspy, "program", lambda: "")
    found = worker_stacks.inspect(cluster, worker_stacks.StackOptions("base", timeout=20))
    (gap,) = found.gaps
    assert (gap.why, gap.optional) == ("py-spy is not installed", False)
    (seen,) = found.stacks
    assert [task["name"] for task in seen.tasks] == ["base"]


@pytest.mark.ray
def test_stack_without_a_match(ray: RealRay) -> None:
    done = stack(ray, "nobody_at_all")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no running task, actor, process or node has the name or id nobody_at_all" in done.stderr


# ------------------------------------------------------------------ who is meant


def known() -> Known:
    task, other = "c8" * 8 + "ff" * 12 + "01000000", "d7" * 8 + "ee" * 12 + "01000000"
    waiting = "e6" * 8 + "ff" * 12 + "01000000"
    stats = [
        {
            "worker_id": "a1" * 28,
            "pid": 10,
            "node_id": "1a" * 28,
            "answers": True,
            "running_task_ids": [task],
            "worker_type": "WORKER",
        },
        {
            "worker_id": "b2" * 28,
            "pid": 11,
            "node_id": "2b" * 28,
            "answers": True,
            "running_task_ids": [other],
            "actor_id": other[16:],
            "worker_type": "WORKER",
        },
        {
            "worker_id": "c3" * 28,
            "pid": 12,
            "node_id": "2b" * 28,
            "answers": True,
            "running_task_ids": [],
            "worker_type": "WORKER",
        },
        {"worker_id": "01000000" + "f" * 48, "pid": 13, "worker_type": "DRIVER"},
    ]
    tasks = [
        {"task_id": task, "name": "pkg.train", "state": "RUNNING", "worker_id": "a1" * 28},
        {"task_id": other, "name": "Loader.step", "state": "RUNNING", "worker_id": "b2" * 28},
        {"task_id": waiting, "name": "later", "state": "PENDING_NODE_ASSIGNMENT"},
    ]
    actors = [
        {
            "actor_id": other[16:],
            "class_name": "m.Loader",
            "name": "the-loader",
            "state": "ALIVE",
            "pid": 11,
            "node_id": "2b" * 28,
        }
    ]
    nodes = [
        {"node_id": "1a" * 28, "node_ip": "10.0.0.1"},
        {"node_id": "2b" * 28, "node_ip": "10.0.0.2"},
    ]
    return Known(stats, tasks, actors, nodes)


@pytest.mark.parametrize(
    ("name", "pids"),
    [
        ("train", [10]),
        ("pkg.train", [10]),
        ("c8c8c8", [10]),
        (f"TaskID({'c8' * 8 + 'ff' * 12 + '01000000'})", [10]),
        (f"ObjectRef({'c8' * 8 + 'ff' * 12 + '0100000001000000'})", [10]),
        ("Loader.step", [11]),
        ("Loader", [11]),
        ("the-loader", [11]),
        (f"Actor(Loader, {'ee' * 12}01000000)", [11]),
        ("10.0.0.2", [11, 12]),
        ("2b2b2b2b", [11, 12]),
        ("12", [12]),
        ("c3c3c3", [12]),
        ("Loader.step() (pid 11)", [11]),
        ("driver of job 1 (pid 12)", [12]),
        ("Driver of job 1", [13]),
    ],
)
def test_who_is_meant(name: str, pids: list[int]) -> None:
    assert [each.pid for each in named(known(), name)] == pids


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("later", "is not running: PENDING_NODE_ASSIGNMENT"),
        ("c8c8", "name or id c8c8"),
        ("rain", "name or id rain"),
        ("10.0.0.9", "name or id 10.0.0.9"),
        ("driver of job 2", "name or id driver of job 2"),
        ("Loader.step (pid 10)", "name or id Loader"),
        ("²", "name or id ²"),
        ("9" * 5000, "name or id 99"),
    ],
)
def test_who_is_not_there(name: str, said: str) -> None:
    with pytest.raises(UnknownTargetError, match=said.replace(".", r"\.")):
        named(known(), name)


def test_all_of_them() -> None:
    assert [each.pid for each in everywhere(known())] == [10, 11, 12, 13]
    assert [each.pid for each in everywhere(known(), "1a" * 28)] == [10]


# ------------------------------------------------------------------ who is suspect


def pieces(tasks: list[dict[str, Any]], stats: list[dict[str, Any]]) -> dict[str, bytes]:
    here = [
        {
            "pid": row["pid"],
            "worker_id": row["worker_id"] if row["worker_type"] == "WORKER" else "",
            "kind": row["worker_type"].lower(),
            "node_id": "n",
            "is_this": True,
            "started_at": 5.0,
        }
        for row in stats
    ]
    made = (
        table("tasks", tasks, source="gcs", at=1000.0),
        table("worker-stats", stats, source="gcs", at=1000.0),
        table("processes", here, source="proc", at=1000.0),
    )
    return {piece.path: piece.data for piece in made}


def running(number: int, name: str, age: float, **more: Any) -> dict[str, Any]:
    return {
        "task_id": f"{number:048x}",
        "name": name,
        "state": "RUNNING",
        "worker_id": f"w{number}",
        "node_id": "n",
        "start_time_ms": (1000 - age) * 1000,
        **more,
    }


def worker(number: int, runs: bool = True, answers: bool = True) -> dict[str, Any]:
    reply = {"running_task_ids": [f"{number:048x}"] if runs else []} if answers else {}
    return {
        "worker_id": f"w{number}",
        "pid": number,
        "node_id": "n",
        "worker_type": "WORKER",
        "answers": answers,
        **reply,
    }


def test_no_process_is_suspect_while_tasks_are_young() -> None:
    found = suspects(pieces([running(1, "f", 30)], [worker(1)]), Sampling(min_age_s=60), ("n",))
    assert found == Suspects()
    assert suspects({}, Sampling()) == Suspects()


def test_of_each_function_the_oldest_comes_first() -> None:
    tasks = [running(n, "many", 100 + n) for n in range(1, 9)] + [running(9, "one", 70)]
    stats = [worker(n) for n in range(1, 10)]
    found = suspects(pieces(tasks, stats), Sampling(most=2), ("n",))
    assert [each.pid for each in found.here] == [8, 9]
    assert [each.started_at for each in found.here] == [5.0, 5.0]
    assert len(found.unfinished) == 9


def test_what_a_worker_denies_is_believed() -> None:
    tasks = [running(1, "over", 100), running(2, "stands", 100, state="SUBMITTED_TO_WORKER")]
    found = suspects(
        pieces(tasks, [worker(1, runs=False), worker(2, answers=False)]), Sampling(), ("n",)
    )
    assert [each.pid for each in found.here] == [2]


def test_a_driver_is_looked_at_where_a_task_waits_for_long() -> None:
    driver = {
        "worker_id": "01000000" + "f" * 48,
        "pid": 7,
        "node_id": "n",
        "worker_type": "DRIVER",
        "answers": True,
    }
    waiting = {
        "task_id": "e" * 48,
        "name": "f",
        "state": "PENDING_NODE_ASSIGNMENT",
        "creation_time_ms": 900_000,
    }
    found = suspects(pieces([waiting], [driver]), Sampling(), ("n",))
    assert [(each.pid, each.title) for each in found.here] == [(7, "driver of job 1")]


def test_who_runs_on_another_node_is_asked_there() -> None:
    tasks, stats = [running(1, "f", 100)], [{**worker(1), "node_id": "far"}]
    made = {k: v for k, v in pieces(tasks, stats).items() if "processes" not in k}
    found = suspects(made, Sampling(), ("n",))
    assert not found.here
    assert [each.pid for each in found.elsewhere["far"]] == [1]


# ------------------------------------------------------------------ the page


def a_stack(pid: int, line: int = 3, **more: Any) -> Stack:
    frames = [
        {"function": "wait", "file": "threading.py", "line": 9, "whose": "python"},
        {"function": "work", "file": "app.py", "line": line, "whose": "user"},
        {"function": "main_loop", "file": "ray/_private/worker.py", "line": 1, "whose": "ray"},
    ]
    threads = [
        {
            "tid": pid,
            "name": "MainThread",
            "active": False,
            "gil": False,
            "state": "S",
            "wchan": "futex_do_wait",
            "frames": frames,
        },
        {"tid": pid + 1, "name": "gc", "active": False, "gil": False, "frames": frames[:1]},
    ]
    row = {
        "pid": pid,
        "worker_pid": pid,
        "started_at": 1.0,
        "title": "ray::work",
        "worker_id": "w",
        "node_id": "n",
        "how": "py-spy",
        "problem": "",
        "threads": threads,
        **more,
    }
    task = {"task_id": f"{pid:048x}", "name": "work", "start_time_ms": 40_000.0}
    return Stack(row, "worker", (task,))


def test_workers_at_one_place_are_one_block() -> None:
    page = plain(
        render.render(Found([a_stack(n) for n in range(10, 22)] + [a_stack(50, 4)], [], 100.0))
    )
    assert page.count("12 × ray::work") == 1
    assert "pids 10, 11, 12, 13, 14, 15, 16, 17 and 4 more · for 60 s" in page
    assert page.count("work (app.py:3)") == 1
    assert page.count("work (app.py:4)") == 1
    assert "main_loop" not in page
    assert "wait (threading.py:9)" in page
    assert page.count("and 1 thread of Ray's and Python's own") == 2


def test_what_is_hostile_is_escaped() -> None:
    page = plain(
        render.render(Found([a_stack(1, title="ray::\x1b[31mred\n")._replace(tasks=())], [], 1.0))
    )
    assert "\x1b" not in page
    assert "ray::\\x1b[31mred" in page


def test_what_could_not_be_seen_is_said() -> None:
    gap = Gap("the stacks of 5", "permission denied", "Processes of ann need sudo")
    page = plain(render.render(Found([], [gap], 1.0)))
    assert "the stacks of 5: permission denied" in page
    assert "Processes of ann need sudo" in page


def test_the_fix_fits_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pip install" in stacks.fix("missing", 1)
    monkeypatch.setattr(stacks.proc, "owner", lambda pid: os.geteuid() + 1)
    assert stacks.fix("forbidden", 1).startswith("Processes of ")
    assert "need sudo: run raydoctor with sudo" in stacks.fix("forbidden", 1)
    monkeypatch.setattr(stacks.proc, "owner", lambda pid: os.geteuid())
    monkeypatch.setattr(stacks, "_yama", lambda: 1)
    assert "ptrace_scope=0" in stacks.fix("forbidden", 1)
    monkeypatch.setattr(stacks, "_yama", lambda: 0)
    assert "SYS_PTRACE" in stacks.fix("forbidden", 1)


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("/usr/lib/python3.11/threading.py", "python"),
        ("/opt/venv/lib/python3.12/site-packages/ray/_private/worker.py", "ray"),
        ("/opt/venv/lib/python3.12/site-packages/numpy/core.py", "library"),
        ("<frozen importlib._bootstrap>", "python"),
        ("<string>", "user"),
        ("/home/ann/python3.d/app.py", "user"),
        ("/app/ray/train.py", "user"),
    ],
)
def test_whose_a_frame_is(name: str, whose: str) -> None:
    assert whose_is({"filename": name, "module": None}) == whose
