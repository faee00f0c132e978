"""`tracked` and `tracking()`: what a task starts ends with it if it does not end well, and nothing else does."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydoctor.act import private
from raydoctor.act.tracking import family, registry
from raydoctor.act.tracking.registry import StartedProcess, Task
from raydoctor.act.tracking.tracking import tracked, tracking
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process
from tests.helpers import waiting
from tests.helpers.real_ray import real_ray

KINDS = {
    1: "plain",
    2: "new session",
    3: "grandchild",
    4: "exec",
    5: "multiprocessing fork",
    6: "multiprocessing spawn",
    7: "daemon by double fork, without environment",
    8: "new session, without environment",
    9: "from a thread",
    10: "daemon of a shell",
    11: "new session without environment, from a shell",
    12: "posix_spawn",
    13: "os.system in the background",
    14: "multiprocessing fork server",
    15: "asyncio",
    16: "from a thread pool",
    17: "deaf to SIGTERM",
}
HOW = (
    "returns",
    "raises",
    "cancel",
    "force",
    "SIGKILL",
    "SIGTERM",
    "lost watcher",
    "lost registry",
)

PROGRAM = r"""
import asyncio, json, multiprocessing, os, runpy, signal, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import ray
from raydoctor.act.tracking import registry as _registry
from raydoctor.act.tracking.tracking import tracked, tracking

QUIET = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
HOW = sys.argv[1].split(",")
clock = runpy.run_path(sys.argv[3])["clock"]
KINDS = {*range(1, 18)} - {6, 14}
FOLDER = sys.argv[2]

def sleep(base, kind):
    return ["sleep", str(base + kind)]

def start_all(base, is_slow):
    def popen(kind, **options):
        subprocess.Popen(sleep(base, kind), **QUIET, **options)
    def process(method, kind):
        target = multiprocessing.get_context(method).Process
        target(target=os.execvp, args=("sleep", sleep(base, kind))).start()
    def shell(command):
        subprocess.Popen(["sh", "-c", command], **QUIET)
    async def of_asyncio():
        await asyncio.create_subprocess_exec(*sleep(base, 15), start_new_session=True)
    if is_slow:
        process("spawn", 6)
        process("forkserver", 14)
    popen(1)
    popen(2, start_new_session=True)
    shell(f"sleep {base + 3} & wait")
    shell(f"exec sleep {base + 4}")
    shell(f"trap '' TERM; exec sleep {base + 17}")
    process("fork", 5)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.closerange(0, 64)
        os.execve("/bin/sleep", sleep(base, 7), {})
    os.waitpid(pid, 0)
    subprocess.Popen(["/bin/sleep", str(base + 8)], start_new_session=True, env={}, **QUIET)
    threading.Thread(target=popen, args=(9,)).start()
    shell(f"setsid sleep {base + 10} &")
    shell(f"env -i setsid sleep {base + 11} & while test ! -e {FOLDER}/{base}.seen; do sleep 0.2; done")
    os.posix_spawn("/bin/sleep", sleep(base, 12), {})
    os.system(f"sleep {base + 13} &")
    asyncio.run(of_asyncio())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(popen, 16).result()

def alive(base):
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
        except OSError:
            continue
        if len(words) > 1 and words[0].endswith("sleep") and words[1].isdigit() and base < int(words[1]) < base + 90:
            found[int(words[1]) - base] = int(pid)
    return found

def until(is_so, seconds=None):
    # Without a limit of its caller, a wait in vain fails and names its line.
    deadline = time.time() + (seconds or 60)
    while not is_so():
        if time.time() > deadline:
            if seconds is None:
                raise TimeoutError(f"line {is_so.__code__.co_firstlineno} of the program")
            return
        time.sleep(0.1)  # a look reads all processes

def registry(worker):
    return next(r for r in _registry.known_workers() if r.worker.pid == worker)

def remembered():
    return {seen.pid for task in registry(os.getpid()).tasks.values() for seen in task.processes.values()}

def watchers(worker):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
        except OSError:
            continue
        if any(w.endswith("reaper.py") for w in words) and str(worker) in words:
            found.append(int(pid))
    return found

def rss(pid):
    return int(open(f"/proc/{pid}/status").read().split("VmRSS:")[1].split()[0])

@ray.remote(max_retries=0)
@tracked(grace=1)
def work(base, how):
    subprocess.Popen(sleep(base, 50), **QUIET) if how == "returns" else None
    is_slow = how in ("returns", "SIGKILL")
    start_all(base, is_slow)
    until(lambda: {*KINDS, *((6, 14) if is_slow else ())} <= set(alive(base)))
    # What leaves no trace at all is findable if it was seen before its parent went.
    until(lambda: how == "returns" or alive(base)[11] in remembered())
    open(f"{FOLDER}/{base}.seen", "w").close()
    open(f"{FOLDER}/{base}", "w").write(str(os.getpid()))
    if how == "raises":
        raise ValueError("of the task")
    if how == "lost watcher":
        for pid in watchers(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not watchers(os.getpid()))
        subprocess.Popen(sleep(base, 18), start_new_session=True, **QUIET)
    if how == "lost registry":
        os.unlink(registry(os.getpid()).path)
        subprocess.Popen(sleep(base, 18), start_new_session=True, **QUIET)
    if how != "returns":
        open(f"{FOLDER}/{base}.ready", "w")
        while True:
            time.sleep(0.02)
    return os.getpid()

def met(base, kind=None):
    # Both methods see the processes of both before one of the two ends.
    if kind and {40, 41, 42, 43} <= set(alive(base)):
        open(f"{FOLDER}/{base}.{kind}", "w").close()
    return all(os.path.exists(f"{FOLDER}/{base}.{each}") for each in (40, 42))

@ray.remote(max_concurrency=3)
class Threads:
    @tracked(grace=1)
    def run(self, base, kind, is_well):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(subprocess.Popen, sleep(base, kind), **QUIET).result()
        subprocess.Popen(sleep(base, kind + 1), start_new_session=True, **QUIET)
        until(lambda: met(base, kind))
        if not is_well:
            raise ValueError("of the method")
        until(lambda: not {40, 41} & set(alive(base)), 60)
        time.sleep(0.5)
        return sorted(alive(base))

    def plain(self, base):
        subprocess.Popen(sleep(base, 44), start_new_session=True, **QUIET)

@ray.remote
class Async:
    async def plain(self, base):
        subprocess.Popen(sleep(base, 44), start_new_session=True, **QUIET)

    @tracked(grace=1)
    async def run(self, base, kind, is_well):
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: subprocess.Popen(sleep(base, kind), **QUIET))
        await asyncio.create_subprocess_exec(*sleep(base, kind + 1), start_new_session=True)
        while not met(base, kind):
            await asyncio.sleep(0.1)
        if not is_well:
            await asyncio.sleep(1000)
        deadline = time.time() + 60
        while {40, 41} & set(alive(base)) and time.time() < deadline:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        return sorted(alive(base))

@ray.remote
def cost():
    def least(count=60):
        took = []
        for _ in range(count):
            began = time.perf_counter()
            child = subprocess.Popen(["/bin/true"])
            took.append(time.perf_counter() - began)
            child.wait()
        return min(took)
    before = least()
    with tracking():
        subprocess.run(["/bin/true"])
        within = least()
    return before, within, rss(watchers(os.getpid())[0])

@ray.remote
@tracked
def forked_child():
    subprocess.Popen(sleep(990500, 1), **QUIET)
    pid = os.fork()
    if pid == 0:
        try:
            with tracking():
                raise ValueError("of the child")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.3)
    return sorted(alive(990500))

@ray.remote(max_retries=0)
@tracked
def only_system(base):
    os.system(f"sleep {base + 1} & setsid sleep {base + 2}")

@ray.remote(max_retries=0)
@tracked
def only_daemon(base):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execve("/bin/sleep", sleep(base, 1), {})
    os.waitpid(pid, 0)
    until(lambda: len(alive(base)) == 1)
    raise ValueError("of the task")

@ray.remote
@tracked
def stream():
    yield os.getpid()
    yield os.getpid()

def trial(number, how):
    base = 990000 + 1000 * number
    ref = work.remote(base, how)
    seconds = None
    if how in ("returns", "raises"):
        try:
            ray.get(ref)
        except ValueError:
            pass
    else:
        until(lambda: os.path.exists(f"{FOLDER}/{base}.ready"), 60)
        worker = int(open(f"{FOLDER}/{base}").read())
        began = clock()
        if how in ("cancel", "force"):
            ray.cancel(ref, force=how == "force")
        else:
            os.kill(worker, signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
        until(lambda: not alive(base), 60)
        seconds = clock() - began
    left = alive(base)
    for pid in left.values():
        os.kill(pid, signal.SIGKILL)
    return {"left": sorted(left), "seconds": seconds}

def killed_in_system(base):
    ref = only_system.remote(base)
    until(lambda: len(alive(base)) == 2)
    for pid in alive(base).values():
        mark = open(f"/proc/{pid}/environ").read().split(_registry.MARK + "=")[1].split("\0")[0]
    until(lambda: watchers(mark.split(":")[1]))
    os.kill(int(mark.split(":")[1]), signal.SIGKILL)
    until(lambda: not alive(base), 60)
    return sorted(alive(base))

def failed_with_daemon(base):
    try:
        ray.get(only_daemon.remote(base))
    except ValueError:
        pass
    return sorted(alive(base))

def mixed(actor, base, cancels):
    ray.get(actor.plain.remote(base))
    bad, good = actor.run.remote(base, 40, False), actor.run.remote(base, 42, True)
    if cancels:
        until(lambda: met(base))
        ray.cancel(bad)
    try:
        ray.get(bad)
        ended = "well"
    except Exception as error:
        ended = type(error).__name__
    told = {"bad": ended, "seen by the good": ray.get(good), "left": sorted(alive(base))}
    for pid in alive(base).values():
        os.kill(pid, signal.SIGKILL)
    return told

bystander = subprocess.Popen(sleep(970000, 1), start_new_session=True, **QUIET)
ray.init(logging_level="ERROR", log_to_driver=False)
def of_stream():
    return len({ray.get(ref) for ref in stream.options(num_returns="streaming").remote()})

with ThreadPoolExecutor(4) as pool:
    trials = [pool.submit(trial, number, how) for number, how in enumerate(HOW)]
    others = {
        "threads": pool.submit(mixed, Threads.remote(), 980000, False),
        "async": pool.submit(mixed, Async.remote(), 981000, True),
        "killed in system": pool.submit(killed_in_system, 982000),
        "only a daemon": pool.submit(failed_with_daemon, 983000),
        "forked child": pool.submit(lambda: ray.get(forked_child.remote())),
        "stream": pool.submit(of_stream),
    }
answers = {what: answer.result() for what, answer in others.items()}
answers["trials"] = {how: each.result() for how, each in zip(HOW, trials)}
answers["cost"] = ray.get(cost.remote())
answers["bystander"] = bystander.poll()
bystander.kill()
print(json.dumps(answers))
print("all done")
"""


@pytest.fixture(scope="module")
def reply() -> Iterator[dict[str, Any]]:
    """What happened on a real Ray."""
    with real_ray() as ray:
        ray.start(dashboard=False, lean=True)
        ray.run(PROGRAM, ",".join(HOW), str(ray.folder), waiting.__file__)
        ray.wait_for("all done")
        answers = (ray.folder / "driver-0.txt").read_text().splitlines()[-2]
        yield json.loads(answers)


@pytest.mark.ray
@pytest.mark.parametrize("how", HOW[1:])
def test_all_that_a_task_has_started_ends_with_it(how: str, reply: dict[str, Any]) -> None:
    assert [KINDS.get(k, k) for k in reply["trials"][how]["left"]] == []
    assert (reply["trials"][how]["seconds"] or 0.0) < 8.0


@pytest.mark.ray
def test_a_task_that_returns_keeps_what_it_started(reply: dict[str, Any]) -> None:
    assert reply["trials"]["returns"]["left"] == [*KINDS, 50]


@pytest.mark.ray
@pytest.mark.parametrize("kind", ["threads", "async"])
def test_tasks_of_one_worker_leave_each_others_processes_alone(
    kind: str, reply: dict[str, Any]
) -> None:
    assert reply[kind]["bad"] != "well"
    assert reply[kind]["seen by the good"] == [42, 43, 44]  # 44 is of a method that is not tracked
    assert reply[kind]["left"] == [42, 43, 44]


@pytest.mark.ray
def test_who_stands_by_is_not_touched(reply: dict[str, Any]) -> None:
    assert reply["bystander"] is None


@pytest.mark.ray
def test_it_costs_little(reply: dict[str, Any]) -> None:
    before, within, watcher = reply["cost"]
    assert within - before < 0.001
    assert watcher < 16_000  # kB; 11 MB with CPython 3.11


@pytest.mark.ray
def test_a_forked_child_that_fails_ends_nothing(reply: dict[str, Any]) -> None:
    assert reply["forked child"] == [1]


@pytest.mark.ray
def test_what_native_code_starts_is_known_by_its_mark(reply: dict[str, Any]) -> None:
    assert reply["killed in system"] == []


@pytest.mark.ray
def test_a_daemon_is_known_that_is_the_first_thing_a_task_starts(reply: dict[str, Any]) -> None:
    assert reply["only a daemon"] == []


@pytest.mark.ray
def test_a_generator_is_still_one(reply: dict[str, Any]) -> None:
    assert reply["stream"] == 1


# ------------------------------------------------------------------ outside Ray


def test_outside_ray_nothing_is_changed() -> None:
    code = """
import os, subprocess, threading
before = os.fork, os.system, os.posix_spawn, subprocess.Popen, threading.Thread.start
from raydoctor.act.tracking.tracking import tracked, tracking
@tracked
def run():
    return subprocess.run(["sh", "-c", "echo ${RAYDOCTOR_TASK-none}"], capture_output=True).stdout
with tracking():
    print(run().decode(), end="")
print(before == (os.fork, os.system, os.posix_spawn, subprocess.Popen, threading.Thread.start))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "none\nTrue\n"


def test_what_it_wraps_stays_what_it_was() -> None:
    @tracked
    def plain(path: str, *, fast: bool = False) -> str:
        """Of mine."""
        return path

    @tracked(grace=1)
    async def later(x: int) -> int:
        return x + 1

    @tracked
    def some() -> Iterator[int]:
        yield from (1, 2)

    @tracked
    async def many() -> AsyncIterator[int]:
        yield 3

    async def first() -> int:
        return await many().__anext__()

    assert (plain("a"), plain.__name__, plain.__doc__) == ("a", "plain", "Of mine.")
    assert str(inspect.signature(plain)) == "(path: 'str', *, fast: 'bool' = False) -> 'str'"
    assert inspect.iscoroutinefunction(later)
    assert asyncio.run(later(1)) == 2
    assert inspect.isgeneratorfunction(some)
    assert list(some()) == [1, 2]
    assert inspect.isasyncgenfunction(many)
    assert asyncio.run(first()) == 3


def test_what_it_cannot_wrap_is_refused() -> None:
    def remote() -> None: ...

    remote.remote = remote  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="not on a class"):
        tracked(dict)
    with pytest.raises(TypeError, match=r"below ray\.remote"):
        tracked(remote)


def test_an_error_passes_through() -> None:
    with pytest.raises(KeyError), tracking():
        raise KeyError("mine")


# ------------------------------------------------------------------ the registry


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    first, second = Task(1, "aa", 5.0, {}), Task(2, "bb", 0.5, {})
    first.add(StartedProcess(10, 100.25, "gs"))
    second.add(StartedProcess(11, 101.5))
    registry.replace(path, registry.lines_of([first, second]))
    assert list(registry.read(path).values()) == [first, second]
    registry.append(
        path, [registry.end_line(1), registry.saw_line(2, StartedProcess(11, 101.5, "g"))]
    )
    tasks = registry.read(path)
    assert list(tasks) == [2]
    assert [s.leads for s in tasks[2].processes.values()] == ["g"]
    registry.append(path, [registry.shut_line(2, StartedProcess(11, 101.5))])
    assert [s.leads for s in registry.read(path)[2].processes.values()] == [""]


@pytest.mark.parametrize("torn", ["begin", "saw 1 x 1.0 -", "saw 9 5 1.0 -", "", "end", "\xff\x00"])
def test_a_torn_line_costs_no_other(torn: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(f"begin 1 aa 5\n{torn}\nsaw 1 5 1.00 -\n")
    assert [s.pid for s in registry.read(str(path))[1].processes.values()] == [5]


def test_a_folder_that_others_can_write_to_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    monkeypatch.setattr(private, "places", lambda user: ((str(tmp_path), "shared"),))
    assert registry.path_of(StartedProcess(5, 1.0)).startswith(f"{shared}/5-")
    shared.chmod(0o777)
    with pytest.raises(PermissionError):
        registry.path_of(StartedProcess(5, 1.0))


def test_what_is_not_needed_is_removed() -> None:
    gone = [StartedProcess(4194304 + number, 1.0) for number in range(4)]  # above any pid
    child = subprocess.Popen(["sleep", "60"])
    living = family.started_process(child.pid)
    assert living is not None
    paths = [registry.path_of(seen) for seen in gone]
    tasks = [Task(1, "aa", 5.0, {}) for _ in gone]
    tasks[2].add(living)
    for path, task in zip(paths, tasks, strict=True):
        registry.replace(path, registry.lines_of([task]))
    for path in paths[1:3]:
        os.utime(path, (1.0, 1.0))
    program = Path(family.__file__).parent / "programs" / "reaper.py"
    words = (str(program.parents[4]), paths[3], str(gone[3].pid), "1.00")
    try:
        subprocess.run([sys.executable, "-I", "-S", str(program), *words], check=True)
        # A young one, one of which something lives (its worker is gone), and the two that are of no use.
        assert [os.path.exists(path) for path in paths] == [True, False, True, False]
    finally:
        for path in paths:
            Path(path).unlink(missing_ok=True)
        child.kill()
        child.wait()


def test_without_pidfds_the_watcher_waits_all_the_same(tmp_path: Path) -> None:
    worker, started = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["sleep", "60"])
    seen, path = family.started_process(worker.pid), str(tmp_path / "file")
    child = family.started_process(started.pid)
    assert seen is not None
    assert child is not None
    task = Task(1, "aa", 1.0, {})
    task.add(child)
    registry.replace(path, registry.lines_of([task]))
    program = Path(family.__file__).parent / "programs" / "reaper.py"
    refuse = "import errno, os\ndef no(pid): raise OSError(errno.ENOSYS, '')\nos.pidfd_open = no\n"
    code = f"{refuse}import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    start = f"{proc.since_boot(seen.started_at):.2f}"
    words = [str(program.parents[4]), path, str(seen.pid), start]
    watcher = subprocess.Popen([sys.executable, "-c", code, *words], cwd=tmp_path)
    try:
        time.sleep(1.0)
        assert started.poll() is None
        worker.kill()
        worker.wait()
        assert watcher.wait(10) == 0
        assert started.wait(5) == -15
    finally:
        for each in (worker, started, watcher):
            each.kill()
            each.wait()


# ------------------------------------------------------------------ whose is it


def process(pid: int, ppid: int = 1, *, at: float = 200.0, pgid: int = 0, sid: int = 0) -> Process:
    return Process(pid, "p", "S", ppid, pgid or 7, sid or 7, at, 0.0, 0)


def members(
    monkeypatch: pytest.MonkeyPatch, table: list[Process], *seen: StartedProcess
) -> list[int]:
    monkeypatch.setattr(proc, "table", lambda: {p.pid: p for p in table})
    return sorted(m.pid for m in family.members(seen, ()))


def test_a_pid_that_is_anothers_by_now_is_not_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [process(60, at=300.0), process(61, 60, at=301.0)]
    assert members(monkeypatch, table, StartedProcess(60, 200.0)) == []


def test_descendants_are_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [process(60), process(61, 60), process(62, 61), process(63)]
    assert members(monkeypatch, table, StartedProcess(60, 200.0)) == [60, 61, 62]


def test_the_session_of_a_dead_leader_is_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [process(61, at=201.0, sid=60), process(62, at=202.0, pgid=60)]
    assert members(monkeypatch, table, StartedProcess(60, 200.0, "gs")) == [61, 62]
    assert members(monkeypatch, table, StartedProcess(60, 200.0, "s")) == [61]
    assert members(monkeypatch, table, StartedProcess(60, 200.0)) == []


def test_a_session_of_that_number_that_another_made_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [process(60, at=300.0, sid=60, pgid=60), process(61, 60, at=301.0, sid=60, pgid=60)]
    assert members(monkeypatch, table, StartedProcess(60, 200.0, "gs")) == []
    older = [process(61, at=150.0, sid=60)]
    assert members(monkeypatch, older, StartedProcess(60, 200.0, "gs")) == []


def test_the_present_is_reported_on_the_clock_of_starts() -> None:
    before = family.now()
    time.sleep(0.02)
    child = subprocess.Popen(["sleep", "10"])
    try:
        seen = family.started_process(child.pid)
        assert seen is not None
        assert before <= seen.started_at <= family.now()
        assert seen.pid in (family.children(os.getpid()) or [])
    finally:
        child.kill()
        child.wait()
