"""Tasks of every kind that hang, cancelled by their id from another process: by which step, with what left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from raydoctor.act.audit import Audit
from raydoctor.act.cancel import elsewhere, interrupt
from raydoctor.act.cancel import ladder as act
from raydoctor.act.cancel.outlook import outlook
from raydoctor.act.cancel.owner import Owners, connected
from raydoctor.act.cancel.steps import CancelOptions
from raydoctor.act.cancel.target import CancelTarget, find
from raydoctor.act.signals.process import Identity, identity_of
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe import live
from raydoctor.render import cancel as render
from raydoctor.render.page import plain
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.schemas import faults
from tests.helpers.waiting import PATIENCE, Program

LINUX = sys.platform.startswith("linux")
TASK = "c8ef45ccd0112571ffffffffffffffffffffffff01000000"

PROGRAM = """
import asyncio, ctypes, hashlib, os, re, socket, subprocess, sys, threading, time
import ray

ray.init(log_to_driver=False)
few = dict(num_cpus=0.01)

def ran(name):
    with open(f"ran-{name}", "a") as out:
        out.write(f"{os.getpid()}\\n")

def loop():
    while True:
        pass

def lock():
    mine = threading.Lock()
    mine.acquire()
    mine.acquire()

def child():
    start = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    others = [
        subprocess.Popen(["sleep", "1001"], start_new_session=True, **start).pid,
        int(subprocess.check_output("sleep 1002 >/dev/null 2>&1 & echo $!", shell=True)),
    ]
    waited = subprocess.Popen(["sleep", "1003"], **start)
    with open("children", "w") as out:
        out.write(" ".join(map(str, [*others, waited.pid])))
    waited.wait()

def away():
    subprocess.Popen(["sleep", "1004"], start_new_session=True, stdout=subprocess.DEVNULL)
    time.sleep(1000)

def swallow():
    while True:
        try:
            time.sleep(0.01)
        except KeyboardInterrupt:
            pass

def gil():
    mutex, lib = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
    lib.pthread_mutex_lock(mutex)
    lib.pthread_mutex_lock(mutex)

BODIES = {
    "loop": loop,
    "sleep": lambda: time.sleep(1000),
    "lock": lock,
    "socket": lambda: [each.recv(1) for each in socket.socketpair()],
    "child": child,
    "away": away,
    "regex": lambda: re.match(r"(a+)+$", "a" * 48 + "b"),
    "native": lambda: hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2**31 - 1),
    "gil": gil,
    "swallow": swallow,
}

@ray.remote(**few)
def hang(kind, name=""):
    ran(name or kind)
    BODIES[kind]()

@ray.remote(**few)
def get(refs):
    ran("get")
    ray.get(refs)

@ray.remote(**few)
def parent():
    ref = hang.options(name="kid").remote("swallow", "kid")
    ran("parent")
    ray.get(ref)

@ray.remote(**few)
def dropper():
    hang.options(name="dropped").remote("sleep", "dropped")
    ran("dropper")
    time.sleep(1000)

class Plain:
    def pid(self): return os.getpid()
    def sleep(self, name):
        ran(name)
        time.sleep(1000)
    def ask(self):
        ran("polite")
        while not ray.get_runtime_context().is_canceled():
            time.sleep(0.05)

@ray.remote(**few)
class Async:
    async def wait(self):
        ran("async")
        await asyncio.sleep(1000)

plain = ray.remote(**few)(Plain).remote()
threaded = ray.remote(max_concurrency=2, **few)(Plain).remote()
waits = Async.remote()
refs = {kind: hang.options(name=f"hang_{kind}").remote(kind) for kind in BODIES if kind != "away"}
refs["away"] = hang.remote("away")
refs["never"] = hang.options(resources={"none": 1}).remote("never")
refs["get"] = get.remote([refs["never"]])
refs["parent"] = parent.remote()
refs["dropper"] = dropper.remote()
refs["method"] = plain.sleep.remote("method")
refs["threaded"] = threaded.sleep.remote("threaded")
refs["polite"] = threaded.ask.remote()
refs["async"] = waits.wait.remote()
for kind, ref in refs.items():
    print("ID", kind, ref.hex())
print("submitted", flush=True)
while refs:
    for kind, ref in list(refs.items()):
        if ray.wait([ref], timeout=0.01)[0]:
            try:
                said = ray.get(ref)
            except Exception as error:
                said = type(error).__name__
            print("DONE", kind, said, flush=True)
            del refs[kind]
            if kind == "method":
                print("LIVES", ray.get(plain.pid.remote()), flush=True)
"""


class Case(NamedTuple):
    """What a kind of task needs to end."""

    by: str
    grace: float
    """Long where the first step is to do it, short where it cannot."""
    raises: str = "RayTaskError(TaskCancelledError)"


SHORTER, SHORT, LONG = 2.0, 4.0, 30.0
KINDS = {
    "loop": Case("cancel", LONG),
    "get": Case("cancel", LONG),
    "never": Case("cancel", LONG, "TaskCancelledError"),
    "parent": Case("cancel", 2.5),
    "async": Case("cancel", LONG),
    "polite": Case("cancel", LONG, "TaskCancelledError"),
    "sleep": Case("interrupt", SHORT),
    "lock": Case("interrupt", SHORT),
    "socket": Case("interrupt", SHORT),
    "child": Case("interrupt", SHORT),
    "regex": Case("interrupt", SHORT),
    "method": Case("interrupt", SHORT, "TaskCancelledError"),
    "native": Case("force", SHORTER, "TaskCancelledError"),
    "swallow": Case("force", SHORTER, "TaskCancelledError"),
    "gil": Case("kill", SHORTER, "TaskCancelledError"),
}


class Hung:
    """A cluster whose tasks hang, each to be cancelled once, all at the same time."""

    def __init__(self, ray: RealRay, library: subprocess.Popen[bytes]) -> None:
        self.second = library
        self.ray = ray
        self.cluster = live.find(ray.address)[0]
        self.ids = dict(
            line.split()[1:] for line in self.ray_state().splitlines() if line.startswith("ID")
        )
        self.made: dict[str, Future[act.Cancellation]] = {}
        self.away: Future[tuple[act.Cancellation | str, int]]

    def ray_state(self) -> str:
        return (self.ray.folder / "driver-0.txt").read_text()

    def ran(self, kind: str) -> list[int]:
        """Pids of its attempts."""
        path = self.ray.folder / f"ran-{kind}"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def wait_until_it_runs(self, *kinds: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not all(self.ran(kind) for kind in kinds if kind != "never"):
            assert time.monotonic() < deadline, f"{kinds} do not run"
            time.sleep(0.05)

    def cancel(self, kind: str, grace: float, **options: bool) -> act.Cancellation:
        self.wait_until_it_runs("sleep" if kind == "never" else kind)
        if kind == "parent":  # a child that waits ends with it at once
            self.wait_until_it_runs("kid")
        if kind == "never":  # what waits for it is to be cancelled while it waits
            self.made["get"].result(PATIENCE)
        with connected(self.cluster, 3.0) as owners:
            return cancelled(owners, self, self.ids[kind], CancelOptions(grace, **options))

    def cancel_away(self) -> tuple[act.Cancellation | str, int]:
        """By a task on its node; the pid that it was seen to run under."""
        self.wait_until_it_runs("away")
        with connected(self.cluster, 3.0) as owners:
            (found,) = find(owners, self.ids["away"])
        return elsewhere.there(self.cluster, found, CancelOptions(SHORT)), found.pid

    def rest(self) -> None:
        """Until no other cancel is under way: a worker, at nice 15, is slow on a busy machine."""
        for each in (*self.made.values(), self.away):
            each.result(PATIENCE)

    def outcome(self, kind: str) -> str:
        """What `ray.get` said."""
        self.ray.wait_for(f"DONE {kind} ")
        line = next(x for x in self.ray_state().splitlines() if x.startswith(f"DONE {kind} "))
        return line.removeprefix(f"DONE {kind} ")


def cancelled(owners: Owners, hung: Hung, name: str, options: CancelOptions) -> act.Cancellation:
    (target,) = find(owners, name)
    return act.run(act.backend_for(owners, hung.cluster, options, target), target)


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hung]:
    with pytest.MonkeyPatch.context() as patch, real_ray() as ray, ThreadPoolExecutor(17) as pool:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        # A driver that we start has to look for the cluster on loopback, too (see `real_ray`).
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        ray.start(cpus=4, dashboard=False, lean=True)
        ray.run(PROGRAM)
        library = ray.run(LIBRARY, log="library.txt")
        ray.wait_for("submitted")
        found = Hung(ray, library)
        for kind, case in KINDS.items():
            found.made[kind] = pool.submit(found.cancel, kind, case.grace)
        found.away = pool.submit(found.cancel_away)
        yield found


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="interrupts need ptrace")
@pytest.mark.parametrize("kind", KINDS)
def test_each_ends_by_the_gentlest_step_that_can(hung: Hung, kind: str) -> None:
    case, made = KINDS[kind], hung.made[kind].result(PATIENCE)
    steps = [(each.step, each.outcome, each.why) for each in made.steps]
    assert made.ended, steps
    assert made.by == case.by, steps
    assert hung.outcome(kind) == case.raises
    assert len(hung.ran(kind)) == (0 if kind == "never" else 1)
    assert "not retry" in " ".join(outlook(made))


def still_runs(pid: int) -> bool:
    """Whether it does more than wait for its parent to reap it."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="interrupts need ptrace")
def test_what_it_started_goes_with_it(hung: Hung) -> None:
    made = hung.made["child"].result(PATIENCE)
    pids = [int(pid) for pid in (hung.ray.folder / "children").read_text().split()]
    assert len(pids) == 3
    assert not [pid for pid in pids if still_runs(pid)]
    assert {each.identity.pid for each in made.survivors} >= {pids[0], pids[2]}
    assert {each.outcome for each in made.survivors} == {"gone"}


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="interrupts need ptrace")
def test_an_interrupted_actor_lives_on(hung: Hung) -> None:
    assert hung.made["method"].result(PATIENCE).ended
    hung.ray.wait_for("LIVES")
    assert f"LIVES {hung.ran('method')[0]}\n" in hung.ray_state()


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="interrupts need ptrace")
def test_tasks_that_it_submitted_end_with_it(hung: Hung) -> None:
    made = hung.made["parent"].result(PATIENCE)
    assert made.children == []
    of_kid = [each for each in made.steps if each.task != made.target.task]
    assert [(each.step, each.outcome) for each in of_kid] == [
        ("cancel", "no-effect"),
        ("interrupt", "no-effect"),
        ("force", "ended"),
    ]


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="interrupts need ptrace")
def test_a_task_without_a_reference(hung: Hung) -> None:
    hung.wait_until_it_runs("dropped")
    with connected(hung.cluster, 3.0) as owners:
        made = cancelled(owners, hung, "dropped", CancelOptions(SHORT))
    assert [(each.step, each.outcome) for each in made.steps] == [
        ("cancel", "skipped"),
        ("interrupt", "ended"),
    ]
    assert "has dropped the reference" in made.steps[0].why


@pytest.mark.ray
def test_a_threaded_method_ends_with_its_actor_alone(hung: Hung) -> None:
    hung.made["polite"].result(PATIENCE)  # it runs beside this one
    made = hung.cancel("threaded", 0.5)
    assert not made.ended
    assert [each.step for each in made.steps] == ["cancel", "interrupt"]
    assert "another thread" in made.steps[1].why or not LINUX
    reply = " ".join(outlook(made))
    assert "is_canceled()" in reply
    assert "--kill-actor" in reply
    made = hung.cancel("threaded", 0.5, kill_actor=True)
    assert made.by == "kill-actor"
    assert hung.outcome("threaded") in ("ActorDiedError", "TaskCancelledError")


@pytest.mark.ray
def test_the_command(hung: Hung) -> None:
    hung.wait_until_it_runs("dropper")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "raydoctor", "cancel", "--address", hung.ray.address]
        return subprocess.run(
            [*command, *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    unasked = run("dropper")
    assert unasked.returncode == 2
    assert "interrupt" in unasked.stderr
    assert "--yes" in unasked.stderr
    done = run(hung.ids["dropper"], "--yes", "--grace", "1", "--no-recursive", "--json")
    reply = json.loads(done.stdout)
    assert faults(reply) == []
    assert (done.returncode, reply["ended"], reply["schema"]) == (0, True, "raydoctor/cancel/1")
    assert [step["step"] for step in reply["steps"]] == ["cancel", "interrupt"]
    assert reply["target"]["name"] == "dropper"
    again = run(hung.ids["dropper"])
    assert (again.returncode, "already ended" in again.stdout) == (0, True)


@pytest.mark.ray
def test_no_match_and_several_matches(hung: Hung) -> None:
    hung.ray.wait_for("HANGS", "library.txt")
    with connected(hung.cluster, 3.0) as owners:
        with pytest.raises(
            RaydoctorError, match="no waiting or running task has the name or id nonesuch"
        ):
            find(owners, "nonesuch")
        with pytest.raises(RaydoctorError, match="no task has the id"):
            find(owners, "12" * 24)
        assert [each.name for each in find(owners, "twin")] == ["twin", "twin"]


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="interrupts need ptrace")
def test_by_a_task_on_its_node(hung: Hung) -> None:
    made, pid = hung.away.result(PATIENCE)
    assert isinstance(made, act.Cancellation), made
    assert (made.by, made.target.pid, made.ended) == ("interrupt", pid, True)
    assert [each.outcome for each in made.survivors] == ["gone"]
    assert hung.outcome("away") == "RayTaskError(TaskCancelledError)"
    lost = elsewhere.there(hung.cluster, target(node="d" * 56), CancelOptions(0.1))
    assert isinstance(lost, str)


LIBRARY = """
import os, ray, time
from raydoctor import cancel
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0.01)
def hang():
    open("hangs", "w")
    time.sleep(1000)
@ray.remote(num_cpus=0.01)
class Slow:
    def __init__(self): open("begun", "w"); time.sleep(1000)
ref = hang.remote()
twins = [hang.options(name="twin", resources={"none": 1}).remote() for _ in range(2)]
print("HANGS", flush=True)
while not (os.path.exists("hangs") and os.path.exists("go")): time.sleep(0.1)
made = cancel(ref)
print("BY", made.by, made.steps, flush=True)
slow = Slow.remote()
while not os.path.exists("begun"): time.sleep(0.1)
print("READY", flush=True)
time.sleep(1000)
"""


@pytest.mark.ray
@pytest.mark.skipif(not LINUX, reason="interrupts need ptrace")
def test_in_a_driver_and_a_whole_job(hung: Hung) -> None:
    hung.rest()
    (hung.ray.folder / "go").touch()
    hung.ray.wait_for("READY", "library.txt")
    ray_state = (hung.ray.folder / "library.txt").read_text()
    assert "BY interrupt" in ray_state, ray_state
    with connected(hung.cluster, 3.0) as owners:
        made = cancelled(owners, hung, "Slow.__init__", CancelOptions(SHORT, job_stop=True))
    assert (made.by, made.ended) == ("job-stop", True)
    hung.second.wait(10)


# ------------------------------------------------------------------ without Ray

SLEEPER = """
import signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("up", flush=True)
while True:
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    with Program([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "up\n"
        yield it
        it.kill()


def mask_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigBlk")).split()[1], 16)


@pytest.mark.skipif(not LINUX, reason="ptrace")
def test_the_interrupt_passes_a_blocked_signal_once(
    sleeper: subprocess.Popen[str], tmp_path: Path
) -> None:
    target = identity_of(sleeper.pid)
    assert target is not None
    assert sleeper.stdout is not None
    for _ in range(3):
        audit = Audit("test", path=str(tmp_path / "audit.jsonl"))
        assert interrupt.interrupt(target, lambda: True, audit) == ""
        assert sleeper.stdout.readline() == "interrupted\n"
        assert mask_of(sleeper.pid) & 1 << (signal.SIGINT - 1)
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["signal"] for line in lines] == ["SIGINT"] * 3


@pytest.mark.skipif(not LINUX, reason="ptrace")
def test_the_interrupt_spares_what_has_gone_on(
    sleeper: subprocess.Popen[str], tmp_path: Path
) -> None:
    target = identity_of(sleeper.pid)
    assert target is not None
    audit = Audit("test", path=str(tmp_path / "audit.jsonl"))
    stopped = []

    def still() -> bool:
        stopped.append(psutil.Process(sleeper.pid).status())
        return False

    assert interrupt.interrupt(target, still, audit) == "its worker had started another task"
    assert stopped == [psutil.STATUS_TRACING_STOP]
    other = Identity(target.pid, target.started_at - 50)
    assert "another process" in interrupt.interrupt(other, lambda: True, audit)
    deadline = time.monotonic() + PATIENCE
    while psutil.Process(sleeper.pid).status() != psutil.STATUS_SLEEPING:  # a busy machine is slow
        assert time.monotonic() < deadline
    assert not (tmp_path / "audit.jsonl").exists()


@pytest.mark.skipif(not LINUX, reason="ptrace")
def test_the_interrupt_ends_nothing_that_does_not_handle_it(
    sleeper: subprocess.Popen[str], tmp_path: Path
) -> None:
    audit = Audit("test", path=str(tmp_path / "audit.jsonl"))
    with Program(["sleep", "1000"]) as plain_sleep:
        target = identity_of(plain_sleep.pid)
        assert target is not None
        assert interrupt.interrupt(target, lambda: True, audit) == "it does not handle SIGINT"
        assert plain_sleep.poll() is None
        plain_sleep.kill()
    sleeper.send_signal(signal.SIGSTOP)
    stopped = identity_of(sleeper.pid)
    assert stopped is not None
    while psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    assert "it is stopped" in interrupt.interrupt(stopped, lambda: True, audit)
    own = identity_of(os.getpid())
    assert own is not None
    assert "raydoctor itself" in interrupt.interrupt(own, lambda: True, audit)


def target(**changes: object) -> CancelTarget:
    given: dict[str, object] = {
        "task": TASK, "name": "mesh", "kind": "task", "state": "running", "ray_state": "RUNNING", "attempt": 0,
        "started_at": None, "worker": "a" * 56, "pid": 7, "ip": "10.0.0.1", "node": "c" * 56, "owner": "b" * 56,
        "owner_pid": 6, "job": "01000000", "actor": "", "parent": "",
    }  # fmt: skip
    return CancelTarget(**{**given, **changes})  # type: ignore[arg-type]


def test_what_comes_next_where_a_kill_was_retried() -> None:
    made = act.Cancellation(target(), [act.Taken("kill", "retried", 1.0, "", TASK)])
    assert "retried it 1 time" in outlook(made)[0]
    assert made.by == ""


def test_pages_name_the_step_and_fit_a_screen() -> None:
    made = act.Cancellation(
        target(),
        [
            act.Taken("cancel", "no-effect", 5.0, "", TASK),
            act.Taken(
                "interrupt", "skipped", 0.0, "its worker is on\x1b[31m another machine", TASK
            ),
            act.Taken("force", "ended", 0.1, "", TASK),
        ],
        ended=True,
        was_accepted=True,
    )
    text = plain(render.render(made, 80))
    assert "\x1b" not in text
    assert "force      ended it" in text
    assert "not retry" in text
    assert len(text.splitlines()) < 24
    assert max(map(len, text.splitlines())) <= 80


def test_several_of_a_name_are_listed() -> None:
    text = plain(render.several([target(task=f"{n:048x}") for n in range(30)], "mesh"))
    assert "30 tasks called mesh" in text
    assert "10 more" in text
    reply = json.loads(render.several_to_json([target()], "mesh"))
    assert faults(reply) == []
    assert (reply["ended"], reply["candidates"][0]["id"]) == (False, TASK)
