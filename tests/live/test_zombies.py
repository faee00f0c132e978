"""`raydoctor zombies`: finds and ends what outlived its worker, raylet or session, and nothing else."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from raydoctor import cli
from raydoctor.act.audit import Audit
from raydoctor.act.signals.process import Identity, Outcome
from raydoctor.act.zombies import classify, clean, leftovers, sweep, unseen
from raydoctor.act.zombies.history import Raylets, session_folders
from raydoctor.act.zombies.leftovers import Leftover, SweepOptions
from raydoctor.act.zombies.sweep import SweepNode, SweepReport, SweepRequest, SweptMachine
from raydoctor.capture.session import began
from raydoctor.cli import zombies as command
from raydoctor.observe.collector.cluster import Daemon
from raydoctor.observe.machine import holdings
from raydoctor.observe.processes import ownership, proc, traces
from raydoctor.observe.processes.ownership import Log, Machine
from raydoctor.render import zombies as render
from raydoctor.render.page import plain
from tests.helpers import ROOT
from tests.helpers.other_users import AS_ROOT, ATTACKER, VICTIM, result_of, running_as
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.schemas import faults
from tests.helpers.waiting import PATIENCE, clock, until

linux = pytest.mark.skipif(not proc.LINUX, reason="/proc")
ROUNDS = ROOT / "tests" / "helpers" / "leftover_rounds.py"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The audit is this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "raydoctor" / "audit.jsonl"


# ------------------------------------------------------------------ rounds among the living

PRIVATE_TMP = (
    "mount -t tmpfs tmpfs /mnt && mkdir /mnt/1 /mnt/2 && mount --bind {0} /mnt/1 && mount --bind {1} /mnt/2 "
    "&& mount -t tmpfs tmpfs /tmp && mkdir -p {0} {1} && mount --bind /mnt/1 {0} && mount --bind /mnt/2 {1}"
).format(shlex.quote(sys.prefix), shlex.quote(str(ROUNDS.parent)))
"""A `/tmp` of its own, in which the interpreter and the tests still are where they were."""


@linux
def test_rounds_among_the_living() -> None:
    """Leftovers of eleven kinds of evidence are all ended; 30 living processes and what is added never are.

    Each kind is there at least once; `python tests/helpers/leftover_rounds.py ROUNDS SEED` runs more rounds.
    """
    inside = ["unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0 or subprocess.call([*inside, "true"], stderr=subprocess.DEVNULL):
        pytest.skip("needs a pid namespace of its own")
    # Its own /tmp: sessions of others are not looked at, and what it writes is gone with it.
    script = f'{PRIVATE_TMP} && exec "$0" "$@"'
    command = [*inside, "bash", "-c", script, sys.executable, str(ROUNDS), "11", "20261121"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["rounds"] == 11
    assert counts["left"] > 20
    assert counts["living"] > 30
    assert counts["slowest"] < 3.0


# ------------------------------------------------------------------ real clusters

DRIVER = """
import multiprocessing, os, subprocess, sys, time
import ray
ray.init(log_to_driver=False)

@ray.remote(max_retries=0, num_cpus=1)
def eight(base, mark):
    sleep = lambda n: ["sleep", str(base + n)]
    subprocess.Popen(sleep(1))
    subprocess.Popen(sleep(2), start_new_session=True)
    subprocess.Popen(["sh", "-c", f"sleep {base + 3} & exec sleep {base + 4}"])
    for n, kind in ((5, "fork"), (6, "spawn")):
        multiprocessing.get_context(kind).Process(target=os.execvp, args=("sleep", sleep(n))).start()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            os.execvp("sleep", sleep(7))
        os._exit(0)
    null = subprocess.DEVNULL
    subprocess.Popen(
        sleep(8), env={"PATH": os.environ["PATH"]}, stdin=null, stdout=null, stderr=null, start_new_session=True
    )
    time.sleep(0.8)
    open(mark, "w").write(str(os.getpid()))
    time.sleep(1000)

@ray.remote(num_cpus=0)
class Standing:
    def start(self, base):
        subprocess.Popen(["sleep", str(base + 11)])
        subprocess.Popen(["sleep", str(base + 12)], start_new_session=True)
        return os.getpid()

base = int(sys.argv[2])
subprocess.Popen(["sleep", str(base + 13)])
if sys.argv[3] == "stand":
    standing = Standing.remote()
    print("STANDING", ray.get(standing.start.remote(base)), flush=True)
else:
    ref = eight.remote(base, sys.argv[1])
time.sleep(1000)
"""
_SCRUBBED = 8
"""Has neither environment, files, group nor session of its worker's: its ownership cannot be established afterwards."""


def sleeping(base: int) -> dict[int, psutil.Process]:
    """Which of the driver's sleepers run."""
    found = {}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if len(words) == 2 and words[0] == "sleep" and words[1].isdigit():
            number = int(words[1]) - base
            if 0 < number < 20 and process.status() != psutil.STATUS_ZOMBIE:
                found[number] = process
    return found


def start(ray: RealRay) -> None:
    ray.start(dashboard=False, lean=True, agents=True)


@linux
@pytest.mark.ray
def test_what_a_dead_worker_and_a_dead_raylet_left_beside_a_living_cluster() -> None:
    with real_ray() as standing, real_ray() as ray:
        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(start, (standing, ray)):
                pass
        standing.run(DRIVER, "-", "7100100", "stand")
        standing.wait_for("STANDING")
        options = SweepOptions(session=str(ray.session), inherited=True)
        living = {
            (p.pid, p.create_time()) for p in (*standing._alive(), *sleeping(7100100).values())
        }
        for base, whom in ((7100200, "worker"), (7100300, "raylet")):
            mark = ray.folder / whom
            ray.run(DRIVER, str(mark), str(base), "eight")
            until(lambda mark=mark: mark.exists() and mark.read_text())  # type: ignore[misc]
            before = leftovers.find(options, settle=False)
            assert [f for f in before if not leftovers.spared(f, options)] == []
            victim = int(mark.read_text()) if whom == "worker" else ray.processes("raylet")[0].pid
            os.kill(victim, signal.SIGKILL)
            _wait_for_ray(ray, base)
            _clear_and_look(base, options)
        assert {i for i in living if not _lives(i)} == set()


def _wait_for_ray(ray: RealRay, base: int) -> None:
    """Until Ray has ended what it ends itself: within a second, on a busy machine later."""
    if not ray.processes("raylet"):
        until(lambda: not ray.processes("ray::"), every=0.2)
    before: object = None
    while before != (before := sleeping(base).keys()):
        time.sleep(1.5)


def _clear_and_look(base: int, options: SweepOptions) -> None:
    """All that can be known is found, reported with its worker or raylet, and gone within three seconds."""
    found: dict[int, Leftover] = {}
    left: dict[int, psutil.Process] = {}

    def all_are_found() -> bool:  # on a busy machine Ray is still ending some of them
        found.clear()
        found.update({f.pid: f for f in leftovers.find(options)})
        left.clear()
        left.update({n: p for n, p in sleeping(base).items() if n not in (_SCRUBBED, 13)})
        return all(p.pid in found for p in left.values())

    until(all_are_found, every=0.5)
    assert left, "something has survived"
    assert all(" is gone" in found[p.pid].why or "idle" in found[p.pid].why for p in left.values())
    begun = clock()
    outcomes = leftovers.clear(list(found.values()), options, 1.0, audit=Audit("test"))
    assert clock() - begun < 3.0 + 1.0
    assert {o.outcome for o in outcomes.values()} == {"gone"}
    assert sleeping(base).keys() <= {_SCRUBBED, 13}
    assert leftovers.find(options, settle=False) == []


def _lives(identity: tuple[int, float]) -> bool:
    try:
        process = psutil.Process(identity[0])
        return process.create_time() == identity[1] and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


# ------------------------------------------------------------------ one leftover of a made-up session


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A dead session of this test's own; its raylet had a pid that no process has."""
    base = Path(tempfile.mkdtemp(prefix="z-", dir="/tmp"))  # paths of sockets are short
    monkeypatch.setenv("RAY_TMPDIR", str(base))
    path = base / "ray" / "session_2026-11-01_09-00-00_000000_7"
    (path / "logs").mkdir(parents=True)
    (path / "sockets").mkdir()
    (path / "logs" / "raylet.out").write_text(
        "[2026-11-01 09:00:00,000 I 4999999 4999999] (raylet) main.cc:1: node_id=abcdef01\n"
    )
    yield path
    shutil.rmtree(base)


def leave(**more: str) -> psutil.Process:
    """A process that init has, and that inherited the dead raylet's pid."""
    printed = subprocess.run(
        ["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"], check=True, capture_output=True,
        env={**os.environ, "RAY_RAYLET_PID": "4999999", "RAY_JOB_ID": "01000000", **more},
    )  # fmt: skip
    process = psutil.Process(int(printed.stdout))
    until(lambda: process.cmdline()[:1] == ["sleep"])
    return process


def end(process: psutil.Process) -> None:
    """Kill it and wait for its end: the next test's session has the same name."""
    if process.is_running():
        process.kill()
        process.wait(PATIENCE)


@pytest.fixture
def orphan(session: Path) -> Iterator[psutil.Process]:
    process = leave()
    yield process
    end(process)


def reply(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.execute(["zombies", *arguments])
    return code, capsys.readouterr().out


@linux
def test_dry_run_then_kill(
    orphan: psutil.Process, session: Path, own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = reply(capsys, "--json", "--session", session.name)
    assert code == 1
    document = json.loads(out)
    assert faults(document) == []
    assert document["schema"] == "raydoctor/zombies/1"
    (row,) = document["leftovers"]
    assert row["pid"] == orphan.pid
    assert row["started_at"] == orphan.create_time()
    assert (row["kind"], row["action"], row["outcome"]) == ("orphan", "none", "running")
    assert row["session"] == str(session), "by the log of the raylet that had this pid"
    assert row["why"] == "raylet pid 4999999 is gone (it inherited RAY_RAYLET_PID=4999999)"
    assert orphan.is_running()
    assert not own_state.exists()
    assert reply(capsys, "--kill", "--dry-run", "--session", session.name)[0] == 1
    assert orphan.is_running()
    code, out = reply(capsys, "--kill", "--yes", "--json", "--session", str(session), "--inherited")
    assert code == 0
    (row,) = json.loads(out)["leftovers"]
    assert (row["action"], row["outcome"]) == ("term", "gone")
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
    line = json.loads(own_state.read_text())
    assert (line["pid"], line["signal"], line["session"]) == (orphan.pid, "SIGTERM", str(session))
    assert reply(capsys, "--session", session.name)[1] == "Nothing is left over on this machine.\n"


@linux
def test_what_only_inherited_the_environment_needs_an_answer_of_its_own(
    orphan: psutil.Process, session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tmux server that was started from a job looks exactly like this one."""
    code, out = reply(capsys, "--kill", "--yes", "--json", "--session", session.name)
    assert code == 1, "it is still there"
    (row,) = json.loads(out)["leftovers"]
    assert (row["inherited_only"], row["action"], row["outcome"]) == (True, "none", "running")
    assert "--inherited includes it" in row["reason"]
    assert orphan.is_running()


@linux
@pytest.mark.parametrize(
    ("name", "is_inherited_only"), [("RAYDOCTOR_RUN", True), ("RAYDOCTOR_TASK", False)]
)
def test_the_mark_of_raydoctor_run_ties_nothing_to_a_worker(
    name: str, is_inherited_only: bool, session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unlike a tracked task's, it is in the environment of all that its driver starts."""
    process = leave(**{name: "x:4999998:1.00:1"})
    try:
        (row,) = json.loads(reply(capsys, "--json", "--session", session.name)[1])["leftovers"]
        assert row["inherited_only"] == is_inherited_only
    finally:
        end(process)


@linux
def test_what_keeps_the_output_of_its_worker_needs_no_second_answer(
    session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = session / "logs" / f"worker-{'ab' * 28}-01000000-4999998.out"
    printed = subprocess.run(
        ["sh", "-c", f"setsid sleep 300 >>{out} 2>&1 & echo $!"], check=True, capture_output=True,
        env={**os.environ, "RAY_RAYLET_PID": "4999999", "RAY_JOB_ID": "01000000"},
    )  # fmt: skip
    process = psutil.Process(int(printed.stdout))
    until(lambda: process.cmdline()[:1] == ["sleep"])
    try:
        code, said = reply(capsys, "--kill", "--yes", "--json", "--session", session.name)
        (row,) = json.loads(said)["leftovers"]
        assert (code, row["inherited_only"], row["outcome"]) == (0, False, "gone")
    finally:
        end(process)


@linux
def test_a_child_that_changed_its_user_is_still_left_over(
    session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to change the user of a process")
    out = session / "logs" / f"worker-{'ab' * 28}-01000000-4999998.out"
    printed = subprocess.run(
        ["sh", "-c", f"setsid setpriv --reuid 65534 sleep 300 >>{out} 2>&1 & echo $!"],
        check=True, capture_output=True, env={**os.environ, "RAY_RAYLET_PID": "4999999"},
    )  # fmt: skip
    process = psutil.Process(int(printed.stdout))
    until(lambda: process.cmdline()[:1] == ["sleep"])
    words = ("--kill", "--yes", "--json", "--session", session.name)
    try:
        code, said = reply(capsys, *words)
        (row,) = json.loads(said)["leftovers"]
        assert (code, row["outcome"]) == (1, "running")
        assert "--all-users includes it" in row["reason"]
        os.chown(session, 65534, 65534)  # the whole cluster belongs to that user
        assert reply(capsys, *words)[0] == 0
        code, said = reply(capsys, *words, "--all-users")
        (row,) = json.loads(said)["leftovers"]
        assert (code, row["outcome"]) == (0, "gone")
    finally:
        end(process)


GROUP = (
    "import os, subprocess\n"
    "os.setpgid(0, 0)\n"
    "child = subprocess.Popen(['sleep', '300'], stdout=-3, stderr=-3, start_new_session={away})\n"
    "print(os.getpid(), child.pid)"
)


@contextmanager
def of_another_user(session: Path, away: bool) -> Iterator[psutil.Process]:
    """A process of root whose worker, of the session's user, is gone; `away`: in a POSIX session of its own."""
    os.chown(session, VICTIM, VICTIM)
    session.parents[1].chmod(0o755)
    code = GROUP.format(away=away)
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    worker, pid = map(int, printed.stdout.split())
    (session / "logs" / f"python-core-worker-{'ab' * 28}_{worker}.log").write_text("x\n")
    process = psutil.Process(pid)
    try:
        until(lambda: process.ppid() == 1)
        yield process
    finally:
        end(process)


def swept_by_the_victim(session: Path, pid: int) -> tuple[dict[str, Any], str]:
    """The row of that process, and what is not seen, where an ordinary user ends all that it may."""
    meant = SweepOptions(str(session), leaked=True, inherited=True)

    def work(kill: bool = True) -> list[Any]:
        request = SweepRequest(meant, 0.1, kill, False)
        view = sweep.carry_out(sweep.inspect(meant, with_disk=False), request)
        code = command.FOUND if view.is_left else 0
        shown = plain(render.render([SweptMachine(SweepNode(), view, is_here=True)]))
        row = {e.pid: render._row(e, view) for e in view.leftovers}.get(pid, {})
        return [{**row, "code": code, "page": shown}, view.unseen]

    work(kill=False)  # loads what that user cannot
    began(str(session))
    row, hidden = result_of(VICTIM, work)
    assert proc.read(pid), "another user's process was ended"
    return row, hidden


@linux
@AS_ROOT
def test_a_child_of_another_user_is_listed_by_its_process_group(session: Path) -> None:
    """Of a child that became root by sudo, its user may read neither environment nor files."""
    with of_another_user(session, away=False) as process:
        row, hidden = swept_by_the_victim(session, process.pid)
        assert row["why"].startswith("a raylet is gone (it is in the process group of worker pid ")
        assert (row["outcome"], row["reason"]) == ("running", "it belongs to root")
        assert row["code"] == 1
        assert str(process.pid) in row["page"]
        assert f"pid {process.pid} " not in hidden


@linux
@AS_ROOT
def test_a_child_of_another_user_without_a_tie_is_named_as_not_examined(session: Path) -> None:
    with of_another_user(session, away=True) as process:
        row, hidden = swept_by_the_victim(session, process.pid)
        assert "why" not in row
        assert f"pid {process.pid} of root, sleep 300" in hidden
        assert "run sudo raydoctor zombies" in hidden
        # Not for a user without a session, and not for root, who can examine it.
        assert f"pid {process.pid} " not in result_of(ATTACKER, unseen.unseen)
        assert unseen.unseen() == ""


@linux
@AS_ROOT
def test_what_cannot_come_from_a_task_is_not_named(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with of_another_user(session, away=True) as process:

        def named(since: float = 0.0) -> bool:
            table = proc.table()
            return process.pid in {each.pid for each in unseen.changed(table, VICTIM, since)}

        with running_as(VICTIM, lambda: time.sleep(600)) as own:
            assert named()
            assert not named(since=time.time() + 5)
            place = unseen._cgroup(own)
            for what, values, expected in (
                ("_login", {process.pid: "1234"}, False),  # another user's login started it
                ("_login", {process.pid: str(VICTIM)}, True),
                ("_cgroup", {process.pid: "0::/system.slice/cron.service"}, False),
                (
                    "_cgroup",
                    {process.pid: f"0::/user.slice/user-{VICTIM}.slice/session-3.scope"},
                    True,
                ),
                ("_cgroup", {process.pid: place}, True),
            ):
                with monkeypatch.context() as changed:
                    real = getattr(unseen, what)
                    changed.setattr(
                        unseen, what, lambda pid, v=values, r=real: v[pid] if pid in v else r(pid)
                    )
                    assert named() is expected, (what, values)
            table = proc.table()
            table[own] = table[own]._replace(ppid=process.pid)  # as sshd is a login's parent
            monkeypatch.setattr(proc, "table", lambda: table)
            assert not named()


@linux
@pytest.mark.parametrize(
    "name", ["python-core-worker-{0}_4999998.log", "python-core-driver-{0}_4999998.log"]
)
def test_a_process_that_only_reads_a_log_of_a_dead_worker_is_not_its_child(
    name: str, session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = session / "logs" / name.format("ab" * 28)
    log.write_text("x\n")
    script = f"setsid tail -f {log} >/dev/null 2>&1 & echo $!"
    printed = subprocess.run(["sh", "-c", script], check=True, capture_output=True)
    process = psutil.Process(int(printed.stdout))
    until(lambda: str(log) in proc.files(process.pid).values())
    try:
        code, said = reply(
            capsys, "--kill", "--yes", "--json", "--inherited", "--session", session.name
        )
        assert (code, json.loads(said)["leftovers"]) == (0, [])
        assert process.is_running()
        assert not ownership.is_driver(process.pid)
    finally:
        end(process)


@linux
def test_what_cannot_be_looked_at_is_said(
    session: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unseen.unseen() == "" or os.geteuid() != 0
    monkeypatch.setattr(unseen, "unseen", lambda found: "what ann runs of Ray's may not be read")
    assert cli.execute(["zombies", "--session", session.name]) == 3
    assert "what ann runs of Ray's may not be read" in capsys.readouterr().err


@linux
def test_no_question_without_a_terminal(
    orphan: psutil.Process,
    session: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    arguments = ["zombies", "--kill", "--inherited", "--session", session.name]
    assert cli.execute(arguments) == 2
    captured = capsys.readouterr()
    assert f"pid {orphan.pid}" in captured.out, "the plan"
    assert "--yes" in captured.err
    assert orphan.is_running()


@linux
@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("answer", [False, True])
def test_the_answer_counts(
    answer: bool, inherited: bool, orphan: psutil.Process, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked = []

    def confirm(text: str, abort: bool = False, err: bool = False, default: bool = False) -> bool:
        asked.append(text.partition(" (")[0])
        if abort and not answer:
            raise command.click.Abort
        return answer

    monkeypatch.setattr(command.click, "confirm", confirm)
    option = ["--inherited"] if inherited else []
    refused = 130 if inherited else 1
    code = cli.execute(["zombies", "--kill", "--session", session.name, *option])
    assert code == (0 if answer else refused)
    second = "End also 1 process that only inherited Ray's environment"
    assert asked == ["End 1 process?" if inherited else second]
    assert (orphan.is_running() and orphan.status() != psutil.STATUS_ZOMBIE) == (not answer)


@linux
def test_what_is_no_leftover_any_more_is_left_alone(orphan: psutil.Process, session: Path) -> None:
    """Between the plan and the answer time passes."""
    (found,) = leftovers.find(SweepOptions(session.name), settle=False)
    (session / "logs" / "raylet.out").unlink()
    child = subprocess.Popen(["sleep", "300"])
    try:
        began = proc.read(child.pid)
        assert began is not None
        other = found._replace(identity=Identity(child.pid, began.started_at))
        outcomes = leftovers.clear([other], SweepOptions(inherited=True), 0.1, audit=Audit("test"))
        assert [(o.outcome, o.reason) for o in outcomes.values()] == [
            ("refused", "it is not a leftover any more")
        ]
        assert child.poll() is None
        assert orphan.is_running()
    finally:
        child.kill()
        child.wait()


@linux
def test_what_was_there_and_not_shown_is_left_alone(
    orphan: psutil.Process, session: Path, own_state: Path
) -> None:
    """Somebody said yes to a list: what is added to it is only what that forks."""
    options = SweepOptions(session.name, inherited=True)
    view = sweep.inspect(options, with_disk=False)
    (shown,) = view.leftovers
    more = leave()
    try:
        later = view._replace(youngest=leftovers.youngest() + 0.01)
        done = sweep.carry_out(later, SweepRequest(options, 0.5, kill=True, remove=False))
        assert [(i.pid, o.outcome) for i, o in done.outcomes.items()] == [(orphan.pid, "gone")]
        assert more.is_running()
        travelled = sweep.unpacked(json.loads(json.dumps(sweep.packed(done))))
        assert travelled == done._replace(leftovers=[shown], stale=[], notes=[])
        assert travelled.leftovers[0].identity in travelled.outcomes
    finally:
        end(more)


@linux
@pytest.mark.parametrize(
    ("name", "printed", "outlived"),
    [
        ("ray::IDLE", ":job_id:01000000\n", "task"),
        ("ray::IDLE", ":job_id:02000000\n", "worker"),
        ("ray::IDLE", "", "worker"),
        ("ray::mesh", "", ""),
        ("ray::raydoctor:", ":job_id:09000000\n", "worker"),
    ],
)
def test_which_worker_may_have_started_what_detached_itself(
    name: str, printed: str, outlived: str, tmp_path: Path
) -> None:
    """Of a raylet with one worker left: is it that one's, or a dead one's?"""
    out = tmp_path / f"worker-{'ab' * 28}-ffffffff-20.out"
    out.write_text(printed)
    with out.open("ab") as stream:
        child = subprocess.Popen(["sleep", "300"], stdout=stream)
    try:
        process = proc.read(child.pid)
        assert process is not None
        raylet = process._replace(pid=1, name="raylet")
        orphan = process._replace(pid=2, pgid=2)
        machine = Machine(
            {1: raylet, 2: orphan, child.pid: process._replace(name=name, pgid=child.pid)},
            {1: Daemon("raylet", 1, 0.0, "S", "/tmp/ray/session_1")},
            output={child.pid: Log("/tmp/ray/session_1", "", "ab" * 28, "ffffffff", child.pid)},
            kinds={1: "daemon", child.pid: "worker"},
            variables={
                2: {"RAY_RAYLET_PID": "1", "RAY_JOB_ID": "01000000"},
                child.pid: {"RAY_RAYLET_PID": "1"},
            },
        )
        assert ownership.outlived_by(machine, orphan) == outlived
    finally:
        child.kill()
        child.wait()


CGROUP = """
import os, subprocess, sys, time
from raydoctor.act.signals import cgroup
from raydoctor.act.audit import Audit
from raydoctor.observe.processes import proc

def start(*folders):
    child = subprocess.Popen(["sleep", "300"])
    for folder in folders:
        with open(folder + "/cgroup.procs", "w") as file:
            file.write(str(child.pid))
    return child

top = sys.argv[1]
os.mkdir(top)
os.mkdir(top + "/below")
first, second, stranger = start(top), start(top + "/below"), start()
table = proc.table()
both = {first.pid, second.pid}
def owned(pids, table):
    # The hierarchy may be mounted elsewhere, too.
    return sorted(folder.partition("raydoctor-test-")[2].partition("/")[2] for folder in cgroup.owned(pids, table))
assert owned(both, table) == ["", "below"], cgroup.owned(both, table)
assert owned({first.pid}, table) == [], "another process is in one below it"
assert owned({second.pid}, table) == ["below"]
assert owned({stranger.pid}, table) == [], "no process owns the root"
time.sleep(0.02)
young = start(top)
assert owned(both, table) == ["", "below"], "started since: by one of them"
assert owned(both, proc.table()) == ["below"]
with open(top + "/below/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
assert owned({*both, young.pid, os.getpid()}, proc.table()) == [], "we are in it"
with open("/tmp/c/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
assert cgroup.kill(top, Audit("test", path="/tmp/audit"))
assert [p.wait(5) for p in (first, second, young)] == [-9, -9, -9]
assert stranger.poll() is None
assert '"cgroup.kill"' in open("/tmp/audit").read()
os.rmdir(top + "/below"), os.rmdir(top)
print("done")
"""


@linux
def test_a_cgroup_is_killed_only_where_it_holds_nothing_else() -> None:
    inside = ["unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child"]
    ground = f"{PRIVATE_TMP} && mkdir /tmp/c && mount -t cgroup2 none /tmp/c"
    probe = [*inside, "bash", "-c", f"{ground} && test -w /tmp/c/cgroup.procs"]
    if os.geteuid() != 0 or subprocess.call(probe, stderr=subprocess.DEVNULL):
        pytest.skip("needs namespaces and cgroups of its own")
    name = f"/tmp/c/raydoctor-test-{os.getpid()}"
    reply = [sys.executable, "-c", CGROUP, name]
    done = subprocess.run(
        [*inside, "bash", "-c", f'{ground} && "$0" "$@"', *reply],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "done\n", done.stderr


# ------------------------------------------------------------------ evidence


@linux
def test_who_is_connected_to_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        me = os.getpid()
        assert holdings.ports([me])[me].count(port) == 1
        assert holdings.clients(me, [me]) == set()
        script = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port})); print('up', flush=True); time.sleep(60)"
        client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        try:
            assert client.stdout is not None
            client.stdout.readline()
            connection, _ = server.accept()
            with connection:
                assert holdings.clients(me, [me, client.pid]) == {client.pid}
                assert holdings.clients(me, [me]) is None, "a client that cannot be seen"
        finally:
            client.kill()
            client.communicate()


def test_sessions_and_the_pids_of_their_raylets(session: Path) -> None:
    assert str(session) in session_folders()
    raylets = Raylets([str(session)])
    assert raylets.of(str(session)) == (4999999,)
    assert raylets.session(4999999, time.time()) == str(session)
    assert raylets.session(4999999, 1000.0) == "", "it began later than that process"
    assert raylets.session(12, time.time()) == ""


@linux
def test_a_raylet_in_another_container_lives(orphan: psutil.Process, session: Path) -> None:
    """It is not among the processes, but it listens in the session's folder."""
    options = SweepOptions(session.name)
    assert [f.pid for f in leftovers.find(options, settle=False)] == [orphan.pid]
    with socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(session / "sockets" / "raylet"))
        assert leftovers.find(options, settle=False) == []
    assert [f.pid for f in leftovers.find(options, settle=False)] == [orphan.pid]


MAPS = """
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    time.sleep(300)
"""


@linux
@pytest.mark.parametrize("by", ["program", "library"])
def test_what_only_runs_in_a_runtime_environment(by: str, session: Path) -> None:
    """It has no environment, file or group of Ray's."""
    folder = session / "runtime_resources" / "pip" / "abc"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(os.path.realpath(sys.executable))
    (folder / "_x.so").write_bytes(b"x" * 4096)
    program = str(folder / "python") if by == "program" else os.path.realpath(sys.executable)
    mapped = str(folder / "_x.so") if by == "library" else "/bin/true"
    printed = subprocess.run(
        ["sh", "-c", 'setsid "$@" >/dev/null 2>&1 & echo $!', "sh", program, "-S", "-c", MAPS, mapped],
        check=True, capture_output=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    process = psutil.Process(int(printed.stdout))
    try:
        until(lambda: leftovers.find(SweepOptions(session.name), settle=False))
        (found,) = leftovers.find(SweepOptions(session.name), settle=False)
        assert (found.pid, found.kind) == (process.pid, "orphan")
        assert f"a {by} of a runtime environment of {session}" in found.why
    finally:
        end(process)


# ------------------------------------------------------------------ what dead sessions keep


def age(path: Path, seconds: float) -> None:
    for each in (*path.rglob("*"), path):
        os.utime(each, (1.0, time.time() - seconds), follow_symlinks=False)


@linux
def test_clean_removes_what_is_dead_and_quiet(
    session: Path, own_state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "precious"
    outside.write_text("precious")
    (session / "logs" / "worker.out").write_bytes(b"x" * 100_000)
    (session / "ray_spilled_objects_ab").mkdir()
    (session / "link").symlink_to(outside)
    options = SweepOptions(session.name)
    assert clean.find(options) == [], "written a moment ago"
    age(session, 5000)
    with (session / "logs" / "worker.out").open():
        assert clean.find(options) == [], "a process reads in it"
    (found,) = clean.find(options)
    assert (found.path, found.what, found.reason) == (str(session), "session", "")
    assert found.bytes > 100_000
    code, out = reply(capsys, "--clean", "--yes", "--json", "--session", session.name)
    assert code == 0
    (row,) = json.loads(out)["stale_sessions"]
    assert row["removed"] is True
    assert not session.exists()
    assert outside.read_text() == "precious"
    line = json.loads(own_state.read_text())
    assert (line["what"], line["path"], line["result"]) == ("remove", str(session), "removed")


@linux
def test_a_session_that_lives_again_is_kept(session: Path) -> None:
    age(session, 5000)
    options = SweepOptions(session.name)
    plan = clean.find(options)
    (session / "logs" / "gcs_server.out").write_text("up again")
    (kept,) = clean.remove(plan, options, Audit("test"))
    assert (kept.removed, kept.reason) == (False, "it is in use now")
    assert session.exists()


@linux
def test_others_sessions_are_kept(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    age(session, 5000)
    monkeypatch.setattr(clean.os, "geteuid", lambda: os.getuid() + 12345)
    (found,) = clean.find(SweepOptions(session.name))
    assert found.reason == "it belongs to another user"


@linux
def test_shared_memory_that_no_process_has_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plasmaAbC123", "plasma_of_mine.bin", "sem.objxyz", "torch_1_2"):
        (tmp_path / name).write_bytes(b"x" * 5000)
    monkeypatch.setattr(clean, "_SHARED", str(tmp_path))
    monkeypatch.setattr(clean, "QUIET", -1.0)
    assert [Path(s.path).name for s in clean._shared()] == ["plasmaAbC123", "sem.objxyz"]
    with (tmp_path / "plasmaAbC123").open("rb") as held:
        import mmap

        with mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ):
            assert [Path(s.path).name for s in clean._shared()] == ["sem.objxyz"]
    monkeypatch.setattr(clean, "QUIET", 600.0)
    assert list(clean._shared()) == []


# ------------------------------------------------------------------ the page


def leftover(pid: int, kind: classify.Kind, **reply: object) -> Leftover:
    made = Leftover(
        Identity(pid, 1000.0), kind, "its raylet is gone", "raylet pid 1 (gone)", f"sleep {pid}",
        "/tmp/ray/session_2026", "ray", os.getuid(), 30_000_000, 10_000_000,
    )  # fmt: skip
    return made._replace(**reply)


def here(view: SweepReport) -> SweptMachine:
    return SweptMachine(SweepNode(), view, is_here=True)


def test_page_says_what_would_be_done_and_what_was() -> None:
    these = [
        leftover(5, "orphan", ports=(8000,), gpu_memory=2_000_000_000),
        leftover(6, "leaked-child"),
    ]
    spared = {f.identity: why for f in these if (why := leftovers.spared(f, SweepOptions()))}
    stale = [clean.Stale("/tmp/ray/session_1", "session", 3_000_000, 86400.0)]
    before = plain(render.render([here(SweepReport(these, spared, stale, {}))], 100, now=1600.0))
    assert (
        "  raylet pid 1 (gone) · user ray · /tmp/ray/session_2026\n    pid 5 · 10 min · " in before
    )
    assert "pid 5 · 10 min · 9.5 MiB · 1.9 GiB GPU · port 8000" in before
    assert "not ended: its worker still runs: --leaked includes it" in before
    assert "2 leftovers; --kill would end 1; --clean would remove 2.9 MiB." in before
    outcomes = {
        these[0].identity: Outcome(these[0].identity, "kill", "gone"),
        these[1].identity: Outcome(these[1].identity, "kill", "running", "not gone 5 s after KILL"),
    }
    after = plain(render.render([here(SweepReport(these, {}, [], outcomes))], 100, now=1600.0))
    assert "ended by SIGKILL" in after
    assert "still runs: not gone 5 s after KILL" in after
    assert "2 leftovers; 1 gone; 1 running." in after


def test_page_names_each_owner_and_reason_once() -> None:
    these = [leftover(pid, "orphan") for pid in (5, 6)]
    others = [leftover(7, "orphan", user="ada"), leftover(8, "orphan", belongs_to="worker pid 9")]
    page = plain(render.render([here(SweepReport([*these, *others], {}, [], {}))], 100, now=1600.0))
    assert "raylet pid 1 (gone) · user ray · /tmp/ray/session_2026 · 2 processes, 19.1 MiB" in page
    assert page.count("· user ray ·") == 2
    assert page.count("· user ada ·") == 1
    assert page.count("its raylet is gone") == 3


@pytest.mark.parametrize("hostile", ["evil\x1b[2Jname", "line\nbreak"])
def test_commands_cannot_reach_the_terminal_raw(hostile: str) -> None:
    places = [here(SweepReport([leftover(5, "orphan", command=hostile)], {}, [], {}))]
    page = plain(render.render(places, 100, now=1600.0))
    assert "\x1b" not in page
    assert "line\nbreak" not in page
    assert json.loads(render.to_json(places))["leftovers"][0]["command"] == hostile


@pytest.mark.parametrize("kind", ["defunct", "idle-holder", "leaked-child"])
def test_what_is_never_ended_by_default(kind: classify.Kind) -> None:
    assert leftovers.spared(leftover(5, kind), SweepOptions(all_users=True)) is not None
    ended = leftovers.spared(leftover(5, kind), SweepOptions(leaked=True)) is None
    assert ended == (kind == "leaked-child")


@pytest.mark.parametrize(
    ("line", "job"),
    [
        ("core_worker.cc:2716: Creating actor: 6a01ab9474ae83ef4645ec5a01000000", "01000000"),
        (
            "core_worker.cc:3247: Creating actor actor_id=1b53c2df8dd1c90345f261f902000000",
            "02000000",
        ),
        (
            "gcs_actor_manager.cc:1: Creating actor via GCS actor id = : 1b53c2df8dd1c90345f261f9",
            "",
        ),
        ("core_worker.cc:1: nothing of an actor", ""),
    ],
)
def test_job_of_an_actor_in_its_workers_log(line: str, job: str, session: Path) -> None:
    log = session / "logs" / f"python-core-worker-{'ab' * 28}_88.log"
    log.write_text(f"[2026-11-21 15:23:11,221 I 88 88] {line}\n")
    assert traces.job_of_actor(str(session), "ab" * 28, 88) == job
    assert traces.job_of_actor(str(session), "cd" * 28, 88) == ""
    written = log.stat().st_mtime
    assert traces.worker_groups([88, 89], [str(session)]) == {88: (str(session), written)}
