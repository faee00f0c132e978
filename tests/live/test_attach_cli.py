"""`raydoctor attach` on a real cluster: tasks, actors of all kinds and a driver, looked into, set free, debugged."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydoctor.act.attach import dap
from raydoctor.act.attach import launch as _launch
from raydoctor.act.attach.attach import Attached, AttachTarget
from raydoctor.act.attach.attach import attach as enter
from raydoctor.act.attach.target import FoundProcess
from raydoctor.act.audit import Audit
from raydoctor.cli import attach as cli
from raydoctor.cli import execute
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.nodes import there
from raydoctor.observe.nodes.there import RemoteReply
from raydoctor.render import attach as render
from raydoctor.render.page import plain
from tests.helpers import ROOT
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.schemas import faults
from tests.helpers.waiting import PATIENCE, until

RAYDOCTOR = str(Path(sysconfig.get_path("scripts")) / "raydoctor")
LINUX = sys.platform.startswith("linux")
PROGRAM = """
import asyncio, threading, time, ray
ray.init(log_to_driver=False)
few = dict(num_cpus=0.01)

@ray.remote(max_retries=0, **few)
def stuck(rate):
    stop, rounds, password = False, 0, "hunter2hunter2"
    while not stop:
        time.sleep(0.01)
        rounds += 1
    print("out of the loop")
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
    return "freed"

@ray.remote(max_retries=0, **few)
def waits(refs):
    return ray.get(refs)

@ray.remote(max_retries=0, **few)
def paused():
    step = 7
    breakpoint()
    return step

@ray.remote(max_concurrency=2, **few)
class Threaded:
    def hold(self, number):
        stop = False
        while not stop:
            time.sleep(0.01)
        return number
    def block(self):
        gate = threading.Event()
        gate.wait()

@ray.remote(**few)
class Async:
    async def hold(self, number):
        inner = number * 2
        await asyncio.sleep(3600)

crew, asynchronous = Threaded.options(name="crew").remote(), Async.remote()
held = {"stuck": stuck.remote(1.5), "paused": paused.remote(), "hold": crew.hold.remote(5)}
held["waits"] = waits.remote([held["stuck"]])
more = [crew.block.remote(), asynchronous.hold.remote(21)]
print("awaited", held["stuck"].hex(), flush=True)
print("ready", flush=True)
while held:
    done, _ = ray.wait(list(held.values()))
    for name in [name for name, ref in held.items() if ref in done]:
        print(name, "gave", ray.get(held.pop(name)), flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[RealRay]:
    """A cluster with all of these; what is attached to one is so for the tests that follow."""
    if not LINUX:
        pytest.skip("Linux only")
    with real_ray() as ray:
        ray.start(dashboard=False, lean=True, runtime_envs=True)
        path = ray.folder / "job.py"  # debugpy halts no thread in code of no file
        path.write_text(PROGRAM)
        ray.run(f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')")
        ray.wait_for("ready")
        until(lambda: len(json.loads(reply(ray)[1])["waiting"]) == 1, every=0.5)
        yield ray


def reply(ray: RealRay, *arguments: str, form: str = "--json") -> tuple[int, str, str]:
    """Exit code, standard output and error of the command."""
    done = subprocess.run(
        [RAYDOCTOR, "attach", *arguments, "--address", ray.address, *([form] if form else [])],
        env=ray.environment, cwd=ray.folder, capture_output=True, text=True, check=False,
        timeout=90, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def attach(ray: RealRay, *arguments: str) -> dict[str, Any]:
    """The answer of a call that does what it is asked."""
    code, out, errors = reply(ray, *arguments)
    assert code == 0, (out, errors)
    found = json.loads(out)
    assert faults(found) == []
    assert found["schema"] == "raydoctor/attach/1"
    assert isinstance(found, dict)
    return found


# ------------------------------------------------------------------ on a cluster


@pytest.mark.ray
def test_a_task_is_debugged_by_its_name(ray: RealRay) -> None:
    """Listening soon; a client reads locals, sets one and detaches; a second call finds it listening."""
    found = attach(ray, "stuck", "--vscode")
    assert found["method"] == "injected"
    assert found["host"] == "127.0.0.1"
    assert found["task"]["name"] == "stuck"
    assert found["doing"]["kind"] in ("sleep", "python-loop", "unknown")
    entry = json.loads((ray.folder / ".vscode" / "launch.json").read_text())["configurations"]
    assert entry == [found["launch"]]
    assert found["launch"]["connect"] == {"host": "127.0.0.1", "port": found["port"]}
    assert (found["launch"]["justMyCode"], found["launch"]["subProcess"]) == (False, False)

    with dap.attached(found["host"], found["port"]) as session:
        (main,) = (t for t in session.request("threads")["threads"] if t["name"] == "MainThread")
        session.request("pause", {"threadId": main["id"]})
        assert session.event("stopped", 10.0) is not None
        frames = session.request("stackTrace", {"threadId": main["id"]})["stackFrames"]
        frame = next(each["id"] for each in frames if each["name"] == "stuck")
        scope = session.request("scopes", {"frameId": frame})["scopes"][0]["variablesReference"]
        request = {"variablesReference": scope, "name": "rate", "value": "2.5"}
        session.request("setVariable", request)
        session.request("continue", {"threadId": main["id"]})

    again = attach(ray, "stuck", "--eval", "rounds > 0")
    assert (again["method"], again["port"]) == ("listening", found["port"])
    again = attach(ray, "stuck", "--locals")
    assert (again["method"], again["port"]) == ("py-spy", None)
    values = {row["name"]: row["value"] for row in again["variables"]["variables"]}
    assert values["rate"] == "2.5"
    assert values["password"].startswith("<secret:")


@pytest.mark.ray
def test_what_a_get_waits_for(ray: RealRay) -> None:
    said = (ray.folder / "driver-0.txt").read_text()
    awaited = next(line.split()[1] for line in said.splitlines() if line.startswith("awaited "))
    found = attach(ray, "waits", "--eval", "[ref.hex() for ref in refs]", "--stack")
    assert found["evaluated"]["value"] == f"['{awaited}']"
    assert found["evaluated"]["where"]["function"] == "waits"
    assert any("get_objects" in f["function"] for f in found["stacks"][0]["frames"])


@pytest.mark.ray
def test_statements_set_a_task_free(ray: RealRay) -> None:
    """From its loop by a local, from a deadlock by the lock: it goes on to its result, and who awaits it, too."""
    done = attach(ray, "stuck", "--exec", "stop = True", "--yes")
    assert done["executed"]["how"] == "halted"
    until(
        lambda: attach(ray, "stuck", "--eval", "'lock' in locals()")["evaluated"]["value"] == "True"
    )
    done = attach(ray, "stuck", "--exec", "lock.release()", "--yes")
    assert done["executed"]["how"] == "halted", "a signal brings it out of the lock"
    ray.wait_for("stuck gave freed")
    ray.wait_for("waits gave ['freed']")


@pytest.mark.ray
def test_actors(ray: RealRay) -> None:
    """Several threads: the one of the method that is meant. Coroutines that wait: what they hold, and set."""
    code, out, _ = reply(ray, "hold")
    assert code == 2
    names = {row["name"] for row in json.loads(out)["candidates"]}
    assert names == {"Threaded.hold", "Async.hold"}
    by_name = attach(ray, "crew", "--stack")
    running = [f["function"] for s in by_name["stacks"] for f in s["frames"] if f["user"]]
    assert {"Threaded.hold", "Threaded.block"} <= set(running)
    block = attach(ray, "Threaded.block", "--locals")
    assert block["pid"] == by_name["pid"]
    assert [row["name"] for row in block["variables"]["variables"]] == ["self", "gate"]
    hold = attach(ray, "Threaded.hold", "--exec", "stop = True", "--yes")
    assert hold["executed"]["where"]["function"].endswith("hold")
    ray.wait_for("hold gave 5")
    code, out, _ = reply(ray, "Async", "--locals", "hold", "--eval", "1 / 0")
    waiting = json.loads(out)
    assert faults(waiting) == []
    assert code == 1
    assert waiting["evaluated"]["error"].startswith("ZeroDivisionError")
    assert waiting["variables"]["where"]["kind"] == "coroutine"
    values = {row["name"]: row["value"] for row in waiting["variables"]["variables"]}
    assert (values["number"], values["inner"]) == ("21", "42")


@pytest.mark.ray
def test_ray_s_own_breakpoint(ray: RealRay) -> None:
    """It is listed, and its debugger re-used; a look ends the wait, which is asked."""
    waiting = json.loads(reply(ray)[1])["waiting"]
    assert [row["name"] for row in waiting] == ["paused"]
    found = attach(ray, "paused")
    assert (found["method"], found["port"]) == ("ray-breakpoint", waiting[0]["port"])
    code, _, errors = reply(ray, "paused", "--exec", "step = 8")
    assert code == 2
    assert "--yes" in errors
    done = attach(ray, "paused", "--eval", "step", "--yes")
    assert done["evaluated"]["value"] == "7"
    ray.wait_for("paused gave 7")


@pytest.mark.ray
def test_a_driver_and_what_is_not_there(ray: RealRay) -> None:
    driver = attach(ray, str(ray.drivers[0].pid), "--eval", "len(held)")
    assert driver["kind"] == "driver"
    assert driver["evaluated"]["value"].isdigit()
    code, _, errors = reply(ray, "nothing", form="")
    assert code == 2
    assert "no running task, actor or process" in errors


# ------------------------------------------------------------------ other jobs of the cluster


def entered(pid: int, ray: RealRay) -> Attached:
    return enter(
        AttachTarget(pid), grace=PATIENCE, audit=Audit("test", path=str(ray.folder / "audit"))
    )


ENDS = """
import os, threading, time
import ray

ray.init(log_to_driver=False)

@ray.remote(num_cpus=0.1, max_retries=0)
def waits():
    open("FOLDER/waits", "w").write(str(os.getpid()))
    stop = threading.Event()
    while not os.path.exists("FOLDER/go"):
        stop.wait(0.2)
    return "waited"

@ray.remote(num_cpus=0.1, max_concurrency=2)
class Threaded:
    def works(self):
        turns = 0
        while not os.path.exists("FOLDER/go"):
            turns += 1
        return "worked"

    def pid(self):
        return os.getpid()

actor = Threaded.remote()
refs = [waits.remote(), actor.works.remote()]
print("actor", ray.get(actor.pid.remote()), "driver", os.getpid(), flush=True)
print(ray.get(refs), flush=True)
"""


@pytest.mark.ray
def test_workers_actors_and_drivers_go_on_and_finish(ray: RealRay) -> None:
    ray.run(ENDS.replace("FOLDER", str(ray.folder)), log="ends.txt")
    ray.wait_for("driver", "ends.txt")
    words = (ray.folder / "ends.txt").read_text().split()
    marked = ray.folder / "waits"
    until(lambda: marked.exists() and marked.read_text())
    pids = [int(marked.read_text()), *(int(words[words.index(n) + 1]) for n in ("actor", "driver"))]
    for pid in pids:
        made = entered(pid, ray)
        with dap.attached(made.host, made.port, PATIENCE) as connection:
            assert connection.request("threads", {}, PATIENCE)["threads"]
    (ray.folder / "go").touch()
    ray.wait_for("['waited', 'worked']", "ends.txt")


ARMED = """
import os, sys, time
import ray
from raydoctor.act.attach.arm import arm

hook = arm if sys.argv[1] == "function" else "raydoctor.act.attach.arm.arm"
ray.init(log_to_driver=False, runtime_env={"worker_process_setup_hook": hook})
marked = sys.argv[2]

@ray.remote(num_cpus=0.1, max_retries=0)
def pauses():
    open(marked, "w").write(str(os.getpid()))
    time.sleep(1000)

ray.get(pauses.remote())
"""


@pytest.mark.ray
def test_a_hook_arms_every_worker_of_a_job(ray: RealRay) -> None:
    ways = {way: ray.folder / f"pid-{way}" for way in ("function", "name")}
    for way, marked in ways.items():
        ray.run(ARMED, way, str(marked), env={"PYTHONPATH": str(ROOT)}, log=f"{way}.txt")
    for marked in ways.values():
        until(lambda marked=marked: marked.exists() and bool(marked.read_text()))
        made = entered(int(marked.read_text()), ray)
        assert (made.method, made.host) == ("armed", "127.0.0.1")


# ------------------------------------------------------------------ on another node


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (
            {"attached": {"host": "127.0.0.1", "port": 5678, "method": "armed", "notes": [], "seconds": 0.3}, "folder": "/app"},
            0, "ssh -N -L 5678:127.0.0.1:5678 10.0.0.9",
        ),
        ({"failed": "it holds the GIL", "hint": "", "doing": {}}, 1, "Not done: it holds the GIL"),
        (None, 1, "Not done: 10.0.0.9: raydoctor is not installed there"),
    ],
)  # fmt: skip
def test_another_node_is_asked(
    answer: dict[str, Any] | None,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its answer is printed as if it were here, with the way to its port."""
    asked: list[Any] = []

    def ask(*given: Any) -> Iterator[RemoteReply]:
        asked.append(given)
        why = "" if answer else "raydoctor is not installed there"
        yield RemoteReply("b" * 56, answer, why)

    monkeypatch.setattr(there, "ask", ask)
    found = FoundProcess("task", "1" * 48, "loop", "RUNNING", 812, "10.0.0.9", "b" * 56, "a" * 56)
    wishes = {
        **dict.fromkeys(("evaluate", "execute", "frame", "thread"), ""), "variables": None, "stack": False,
        "seconds": 10.0, "port": None, "listen": "127.0.0.1", "vscode": False, "yes": False, "close": False, "only": "", "dry_run": False,
    }  # fmt: skip
    assert cli._Call(Cluster(gcs_address="10.0.0.2:6379"), found, wishes, False).run() == code
    assert words in capsys.readouterr().out
    (_, requests, function, _) = asked[0]
    assert function == "raydoctor.act.attach.debug_there:respond"
    assert requests["b" * 56]["pid"] == 812
    json.dumps(requests)


# ------------------------------------------------------------------ launch.json

ENTRY = _launch.entry("loop", "127.0.0.1", 5678)
OTHER = {"name": "Mine", "args": ["a,]", "}"]}


def test_an_entry_is_put_among_others_and_gives_way_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({"configurations": [OTHER], "inputs": []}))
    assert _launch.write(path, ENTRY) == "added"
    assert json.loads(path.read_text()) == {"configurations": [ENTRY, OTHER], "inputs": []}
    before = path.read_bytes()
    assert _launch.write(path, ENTRY) == "already there"
    assert path.read_bytes() == before
    later = _launch.entry("loop", "127.0.0.1", 9999)
    assert _launch.write(path, later) == "renewed"
    assert json.loads(path.read_text())["configurations"] == [later, OTHER]


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '{"configurations": {}}',
        "{ no JSON",
        '{"configurations": [] // a comment\n}',
        '{"configurations": [],}',
        "[" * 100_000,
    ],
)
def test_what_is_not_understood_is_not_touched(tmp_path: Path, text: str) -> None:
    path = tmp_path / "launch.json"
    path.write_text(text)
    with pytest.raises(RaydoctorError, match="was not changed"):
        _launch.write(path, ENTRY)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": "0.2.0"}', '{"a": [{"configurations": [1]}]}']
)
def test_a_file_without_entries_gets_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".vscode" / "launch.json"
    if text:
        path.parent.mkdir()
        path.write_text(text)
        path.chmod(0o600)
    _launch.write(path, ENTRY)
    reply = json.loads(path.read_text())
    assert reply["configurations"] == [ENTRY]
    assert set(json.loads(text or "{}")) <= set(reply)
    assert not text or path.stat().st_mode & 0o777 == 0o600


def test_path_mappings() -> None:
    """Ray unpacks a `working_dir`; another node's folder is another's."""
    unpacked = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0a1b"
    (mapping,) = _launch.mappings_of(f"{unpacked}/sub", is_here=True)
    assert mapping == ("${workspaceFolder}", unpacked)
    assert _launch.mappings_of("/home/me/job", is_here=True) == []
    (mapping,) = _launch.mappings_of("/app", is_here=False)
    assert mapping.remote == "/app"


# ------------------------------------------------------------------ pages


def page(reply: dict[str, Any], **more: Any) -> str:
    found = FoundProcess("task", "1" * 48, "loop", "RUNNING", 812, "10.0.0.9", "a" * 56)
    attached = {
        "host": "127.0.0.1",
        "port": 5678,
        "method": "injected",
        "notes": [],
        "seconds": 0.6,
    }
    launch = {} if "failed" in reply else ENTRY
    return plain(
        render.render(render.AttachResult(found, {"attached": attached, **reply}, launch, **more))
    )


def test_what_a_person_reads() -> None:
    text = page({}, tunnel="ssh -N -L 5678:127.0.0.1:5678 10.0.0.9")
    assert "listening on 127.0.0.1:5678 (injected, 0.6 s)" in text
    assert f"Close it: raydoctor attach {'1' * 48} --close" in text
    assert "Until the process ends" in text
    assert "ssh -N -L 5678:127.0.0.1:5678 10.0.0.9" in text
    assert "PyCharm" in text
    assert "nvim-dap" in text


def test_where_no_port_stays_none_is_named() -> None:
    found = FoundProcess("task", "1" * 48, "loop", "RUNNING", 812, "10.0.0.9", "a" * 56)
    attached = {
        "host": "127.0.0.1",
        "port": 5678,
        "method": "injected",
        "notes": [],
        "seconds": 0.6,
    }
    temporary = render.AttachResult(
        found, {"attached": {**attached, "open": False}, "seen": {}}, {}
    )
    text = plain(render.render(temporary, inside=True))
    assert "whose port is closed again" in text
    assert "5678" not in text
    reply = json.loads(render.to_json(temporary))
    assert (reply["host"], reply["port"], reply["method"]) == (None, None, "injected")
    outside = render.AttachResult(found, {"method": "py-spy", "seen": {}}, {})
    assert "read by py-spy" in plain(render.render(outside, inside=True))
    assert json.loads(render.to_json(outside))["method"] == "py-spy"


def test_closing_a_port() -> None:
    found = FoundProcess("process", "", "driver.py", "", 812)
    where = {"host": "127.0.0.1", "port": 5678}
    closed = plain(render.render(render.AttachResult(found, {"closed": where}, {})))
    assert "closed 127.0.0.1:5678" in closed
    none = plain(render.render(render.AttachResult(found, {"closed": {}}, {})))
    assert "raydoctor has no open port" in none
    assert execute(["attach", "812", "--close", "--stack"]) == 2


def test_values_cannot_reach_the_terminal() -> None:
    where = {
        "function": "f",
        "file": "a.py",
        "line": 1,
        "number": 0,
        "thread": "T",
        "kind": "thread",
    }
    value = {"where": where, "type": "str", "value": "'\x1b[2J\u202eevil'"}
    text = page(
        {
            "seen": {
                "evaluated": value,
                "variables": {"where": where, "variables": [{"name": "x\x07", **value}]},
            }
        }
    )
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("given", [["--locals", "resample"], ["--locals"], ["--stack"]])
def test_what_is_meant_goes_first(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`--locals` would take it for a frame."""
    assert execute(["attach", *given]) == 2
    assert "TARGET is missing" in capsys.readouterr().err


def test_what_a_statement_did() -> None:
    """Whether its thread was halted for it, and what it gave, where it gave anything."""
    where = {
        "function": "f",
        "file": "a.py",
        "line": 1,
        "number": 0,
        "thread": "T",
        "kind": "thread",
    }
    row = {"where": where, "type": "", "value": "None", "code": "x = 1"}
    halted = page({"seen": {"executed": {**row, "how": "halted"}}})
    assert "done; the program continues" in halted
    assert "None" not in halted
    beside = page(
        {"seen": {"executed": {**row, "value": "7", "how": "beside", "lost": "x not set"}}}
    )
    assert "could not be halted" in beside
    assert "x not set" in beside
    assert "7\n" in beside


def test_a_refusal_shows_the_stack() -> None:
    frames = [{"function": "match", "file": "re/__init__.py", "line": 166, "whose": "python"}]
    threads = [{"tid": 812, "name": "MainThread", "frames": frames}]
    text = page(
        {"failed": "it holds the GIL", "hint": "raydoctor stack", "doing": {"threads": threads}}
    )
    assert "Not done: it holds the GIL" in text
    assert "re/__init__.py:166" in text
    assert "listening" not in text
