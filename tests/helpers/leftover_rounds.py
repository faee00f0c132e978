"""Rounds of leftovers among the living, made of plain processes that look like Ray's: run by test_zombies.py.

Runs as the first process of a pid namespace of its own, so that whatever it starts is an orphan (its parent is
PID 1), and nothing outside can be hit. The living are there all the time: two clusters with raylets, workers,
actors, drivers and what these run, detached helpers, unrelated processes, another user's. Each round adds
leftovers and further living ones at random, has them found, ended, and looks at who is still there.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path

from waiting import clock, until  # beside this file, which runs as a program

from raydoctor.act.audit import Audit
from raydoctor.act.tracking import registry
from raydoctor.act.tracking.registry import StartedProcess, Task
from raydoctor.act.zombies import classify, leftovers
from raydoctor.act.zombies.leftovers import SweepOptions
from raydoctor.observe.machine import holdings
from raydoctor.observe.processes import proc

NOBODY = 65534
HOLD = "exec 8<>$FIFO; read -u 8"
"""Waits for ever in one process."""


class Ground:
    """Folders, programs, and whatever was started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin" / "listens").mkdir(parents=True)
        # Daemons are copies and no links: the kernel names the file that a process runs.
        shutil.copy2(os.path.realpath(sys.executable), folder / "bin" / "listens" / "gcs_server")
        for name in ("raylet", "gcs_server", "python"):
            shutil.copy2("/bin/bash", folder / "bin" / name)
        for name in (
            "ray::IDLE",
            "ray::train",
            "ray::Actor.run",
            "server",
        ):
            (folder / "bin" / name).symlink_to("/bin/bash")
        os.mkfifo(folder / "fifo")
        os.chmod(folder / "fifo", 0o666)
        self.number = 0

    def session(self, name: str) -> Path:
        path = self.folder / "ray" / f"session_2026-11-21_{name}"
        (path / "logs").mkdir(parents=True)
        return path

    def run(
        self,
        program: str,
        script: str,
        *words: str,
        env: dict[str, str] | None = None,
        detached: bool = False,
        user: int = 0,
        out: Path | None = None,
        opened: Path | None = None,
    ) -> int:
        """Start `program` with a bash script; words follow on its command line. Its pid."""
        self.number += 1
        path = f"{self.folder}/bin/{program}" if "/" not in program else program
        pid = os.fork()
        if pid:
            return pid
        try:
            if detached:
                os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            target = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if out else null
            os.dup2(null, 0)
            os.dup2(target, 1)
            os.dup2(target, 2)
            if opened:
                os.dup2(os.open(opened, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 9)
            if user:
                os.setgid(user)
                os.setuid(user)
            reply = {"FIFO": str(self.folder / "fifo"), "PATH": "/usr/bin:/bin", **(env or {})}
            # To bash the same; words behind a `-c` make no daemon.
            command = "-c" if "/" in program else "-hc"
            os.execve(path, [path, command, script, *words], reply)
        finally:
            os._exit(127)


class Cluster:
    """What looks like one living cluster: a raylet that has started everything itself."""

    def __init__(self, ground: Ground, name: str) -> None:
        self.ground, self.session = ground, ground.session(name)
        bin_, logs = ground.folder / "bin", self.session / "logs"
        children = []
        for n, title in enumerate(("ray::IDLE", "ray::train", "ray::Actor.run")):
            worker = f"{n}{name[-1]}" * 28
            below = (
                ""
                if title == "ray::IDLE"
                else f"{bin_}/server -c '{HOLD}' & setsid {bin_}/server -c '{HOLD}' & env -i FIFO=$FIFO {bin_}/server -c '{HOLD}' &"
            )
            script = f"{below} {HOLD}"
            children.append(
                f"(P=$BASHPID; exec 9>>{logs}/python-core-worker-{worker}_$P.log"
                f" >>{logs}/worker-{worker}-01000000-$P.out 2>&1;"
                f' RAY_RAYLET_PID=$$ RAY_JOB_ID=01000000 exec {bin_}/{title} -c "$W{n}") &'
            )
            os.environ[f"W{n}"] = script
        env = {f"W{n}": os.environ[f"W{n}"] for n in range(3)}
        self.raylet = ground.run(
            "raylet", " ".join([*children, HOLD]), f"--session_dir={self.session}", "--node_id=" + name[-1] * 56,
            env=env, detached=True, out=logs / "raylet.out",
        )  # fmt: skip
        ground.run("gcs_server", HOLD, f"--session-dir={self.session}", detached=True)
        ground.run(
            "python",
            f"{bin_}/server -c '{HOLD}' & {HOLD}",
            "/x/ray/_private/log_monitor.py",
            f"--logs-dir={logs}",
        )
        self.driver = ground.run("python", f"{bin_}/server -c '{HOLD}' & {HOLD}", "train.py")
        # A driver is recognized by its own log, which has its pid in the name.
        self.own_driver = ground.run(
            "python",
            f"exec 7>>{logs}/python-core-driver-01000000ff_$$.log; {bin_}/server -c '{HOLD}' & {HOLD}",
            "train.py",
        )
        time.sleep(0.4)
        self.workers = {
            p.name: p.pid
            for p in proc.table().values()
            if p.ppid == self.raylet and p.name.startswith("ray::")
        }

    def output(self, pid: int) -> Path:
        (path,) = (self.session / "logs").glob(f"worker-*-01000000-{pid}.out")
        return path


# ------------------------------------------------------------------ leftovers, each by other evidence


class Round:
    """What one round adds."""

    def __init__(
        self, ground: Ground, clusters: list[Cluster], dead: Path, dice: random.Random
    ) -> None:
        self.ground, self.clusters, self.dead, self.dice = ground, clusters, dead, dice
        self.left: list[int] = []
        self.alive: list[int] = []

    def gone(self) -> int:
        """A pid that no process has."""
        while os.path.exists(f"/proc/{(pid := self.dice.randint(20000, 30000))}"):
            pass
        return pid

    def env(self, raylet: int) -> dict[str, str]:
        return {"RAY_RAYLET_PID": str(raylet), "RAY_JOB_ID": "01000000"}

    def dead_raylet(self) -> None:
        detached = self.dice.random() < 0.5
        self.left.append(
            self.ground.run("server", HOLD, env=self.env(self.gone()), detached=detached)
        )

    def output_of_a_dead_session(self) -> None:
        out = self.dead / "logs" / f"worker-{'ab' * 28}-01000000-{self.gone()}.out"
        self.left.append(self.ground.run("server", HOLD, out=out, detached=True))

    def dead_worker_of_a_living_raylet(self) -> None:
        cluster = self.dice.choice(self.clusters)
        out = cluster.session / "logs" / f"worker-{'cd' * 28}-01000000-{self.gone()}.out"
        self.left.append(
            self.ground.run("server", HOLD, env=self.env(cluster.raylet), out=out, detached=True)
        )

    def fork_of_a_dead_worker(self) -> None:
        log = self.dead / "logs" / f"python-core-worker-{'ef' * 28}_{self.gone()}.log"
        self.left.append(self.ground.run("server", HOLD, opened=log))

    def program_of_a_runtime_environment(self) -> None:
        folder = self.dead / "runtime_resources" / "pip" / "abc" / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "python").exists():
            (folder / "python").symlink_to("/bin/bash")
        self.left.append(self.ground.run(f"{folder}/python", HOLD))

    def tree_that_ignores_term(self) -> None:
        bin_ = self.ground.folder / "bin"
        script = f"trap '' TERM; env -i FIFO=$FIFO {bin_}/server -c '{HOLD}' & setsid {bin_}/server -c '{HOLD}' & {HOLD}"
        self.left.append(
            self.ground.run("server", script, env=self.env(self.gone()), detached=True)
        )

    def forks_when_it_ends(self) -> None:
        bin_ = self.ground.folder / "bin"
        script = f"trap \"env -i FIFO=$FIFO {bin_}/server -c '{HOLD}' & exit\" TERM; exec 8<>$FIFO; while :; do read -t 0.05 -u 8; done"
        self.left.append(
            self.ground.run("server", script, env=self.env(self.gone()), detached=True)
        )

    def worker_without_its_raylet(self) -> None:
        bin_, logs = self.ground.folder / "bin", self.dead / "logs"
        script = f"exec 9>>{logs}/python-core-worker-{'99' * 28}_$$.log; {bin_}/server -c '{HOLD}' & {HOLD}"
        self.left.append(self.ground.run("ray::train", script, env=self.env(self.gone())))

    def daemon_of_a_dead_session(self) -> None:
        self.left.append(
            self.ground.run(
                "python",
                HOLD,
                "/x/ray/_private/log_monitor.py",
                f"--logs-dir={self.dead}/logs",
                detached=True,
            )
        )

    def remembered(self) -> None:
        """It has nothing of its worker's; a tracked task had noted it, and that worker is gone."""
        pid = self.ground.run("server", HOLD, detached=True)
        self.left.append(pid)
        self.note(StartedProcess(self.gone(), 1.0), pid)

    def seen_below_a_dead_worker(self) -> None:
        """It has nothing of its worker's either; another process had inspected its children."""
        pid = self.ground.run("server", HOLD, detached=True)
        self.left.append(pid)
        self.note(StartedProcess(self.gone(), 1.0), pid, is_tracked=False)

    def note(self, worker: StartedProcess, pid: int, is_tracked: bool = True) -> None:
        begun = proc.table()[pid].started_at
        leads = "s" if is_tracked else ""
        task = Task(
            int(is_tracked), "ab" * 24, 1.0, {(pid, begun): StartedProcess(pid, begun, leads)}
        )
        path = registry.path_of(worker, is_tracked)
        registry.append(path, registry.lines_of([task]), create=True)

    # -------------------------------------------------------------- the living

    def seen_below_a_busy_worker(self) -> None:
        self.remembered_of_a_living_worker(is_tracked=False)

    def remembered_of_a_living_worker(self, is_tracked: bool = True) -> None:
        cluster = self.dice.choice(self.clusters)
        worker = proc.table()[cluster.workers["ray::train"]]
        pid = self.ground.run("server", HOLD, detached=True)
        self.alive.append(pid)
        self.note(StartedProcess(worker.pid, worker.started_at), pid, is_tracked)

    def helper_of_a_busy_actor(self) -> None:
        cluster = self.dice.choice(self.clusters)
        self.alive.append(
            self.ground.run("server", HOLD, env=self.env(cluster.raylet), detached=True)
        )

    def output_of_a_busy_worker(self) -> None:
        cluster = self.dice.choice(self.clusters)
        out = cluster.output(cluster.workers["ray::train"])
        self.alive.append(
            self.ground.run("server", HOLD, env=self.env(cluster.raylet), out=out, detached=True)
        )

    def reader_of_a_dead_session(self) -> None:
        log = self.dead / "logs" / "raylet.out"
        self.alive.append(self.ground.run("server", HOLD, str(log), opened=log))

    def same_name(self) -> None:
        self.alive.append(
            self.ground.run(self.dice.choice(("ray::train", "ray::IDLE", "server")), HOLD)
        )

    def another_users(self) -> None:
        self.alive.append(
            self.ground.run("server", HOLD, env=self.env(self.gone()), user=NOBODY, detached=True)
        )

    def settle(self) -> None:
        """Wait until all have become what they are to be."""
        until(lambda: all(self.is_up(pid) for pid in (*self.left, *self.alive)))

    def is_up(self, pid: int) -> bool:
        """Whether it and what it starts have become the programs that they are to be."""
        these = below([pid])
        commands = {each: proc.command(each) for each in these}
        words = commands.get(pid, ())
        if len(words) < 3 or not words[0].startswith(str(self.ground.folder)):
            return False  # still a fork of ours
        # What a trap starts, it starts only when it is ended.
        starts = 0 if 'trap "' in words[2] else words[2].count("/bin/server")
        leaves = [c for each, c in commands.items() if each != pid]
        return len(leaves) == starts and all(c[2:3] == (HOLD,) for c in leaves)


SERVER = """
import socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[-1]))) as server:
    held = server.accept()
    time.sleep(10000)
"""
CLIENT = """
import socket, sys, time
while True:
    try:
        held = socket.create_connection(("127.0.0.1", int(sys.argv[-1])))
    except OSError:
        time.sleep(0.01)
    else:
        print("connected", flush=True)
        time.sleep(10000)
"""


def servers_of_dead_sessions(ground: Ground) -> tuple[int, int]:
    """Two GCSs whose raylets are gone: no process is connected to the first, something is to the second."""
    with socket.socket() as any_socket:  # a network of our own has its loopback down
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
    pids = []
    for port in (7001, 7002):
        session = ground.session(f"08-00-00_000000_{port}")
        (session / "logs" / "raylet.out").write_text(
            "[2026-11-21 08:00:00,000 I 19998 19998] (raylet) main.cc:1: up\n"
        )
        program = str(ground.folder / "bin" / "listens" / "gcs_server")
        pids.append(
            ground.run(
                program,
                SERVER,
                f"--session-dir={session}",
                str(port),
                env={"PYTHONHOME": sys.base_prefix},
                detached=True,
            )
        )
    out = ground.folder / "connected"
    ground.run(sys.executable, CLIENT, "7002", out=out)
    while not out.exists() or not out.read_text() or not holdings.ports(pids).keys() >= set(pids):
        time.sleep(0.02)
    return pids[0], pids[1]


LEFT = ("dead_raylet", "output_of_a_dead_session", "dead_worker_of_a_living_raylet", "fork_of_a_dead_worker", "program_of_a_runtime_environment", "tree_that_ignores_term", "forks_when_it_ends", "worker_without_its_raylet", "daemon_of_a_dead_session", "remembered", "seen_below_a_dead_worker")  # fmt: skip
ALIVE = (
    "remembered_of_a_living_worker",
    "seen_below_a_busy_worker",
    "helper_of_a_busy_actor",
    "output_of_a_busy_worker",
    "reader_of_a_dead_session",
    "same_name",
    "another_users",
)


def reap() -> None:
    """We are PID 1 here: what has ended is ours to take away."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def below(roots: list[int]) -> set[int]:
    """These, and all that descends from them."""
    table = proc.table()
    found = {pid for pid in roots if pid in table}
    while more := {p.pid for p in table.values() if p.ppid in found} - found:
        found |= more
    return found


def alive(pids: dict[int, float]) -> list[int]:
    table = proc.table()
    return [
        p
        for p, begun in pids.items()
        if p in table and table[p].started_at == begun and table[p].state != "Z"
    ]


def more_than(living: dict[int, float]) -> set[int]:
    """What runs beside these and this process. What was killed needs a moment to end on a busy machine."""
    reap()
    return set(proc.table()) - set(living) - {os.getpid()}


def identities(pids: set[int]) -> dict[int, float]:
    table = proc.table()
    return {pid: table[pid].started_at for pid in pids if pid in table}


def main(rounds: int, seed: int) -> None:
    folder = Path("/tmp/ground")
    folder.mkdir()
    os.chmod(folder, 0o755)
    os.environ["RAY_TMPDIR"] = str(folder)
    ground = Ground(folder)
    clusters = [Cluster(ground, f"10-00-0{n}_000000_{n}") for n in (1, 2)]
    dead = ground.session("09-00-00_000000_7")
    (dead / "logs" / "raylet.out").write_text(
        "[2026-11-21 09:00:00,000 I 19999 19999] (raylet) main.cc:1: up\n"
    )
    dice = random.Random(seed)
    found_at_first = leftovers.find(settle=False)
    assert not found_at_first, found_at_first
    audit = Audit("test", path=str(folder / "audit.jsonl"))
    unused, _ = servers_of_dead_sessions(ground)
    found_now = leftovers.find(settle=False)
    assert [(f.pid, f.kind, f.ports) for f in found_now] == [(unused, "stale-daemon", (7001,))], (
        found_now
    )
    assert [
        o.outcome
        for o in leftovers.clear(found_now, SweepOptions(inherited=True), 1.0, audit=audit).values()
    ] == ["gone"]
    reap()
    reply = {"rounds": 0, "left": 0, "ended": 0, "living": 0, "slowest": 0.0}
    standing = identities(set(proc.table()) - {os.getpid()})
    assert len(standing) > 25, standing
    for number in range(rounds):
        made = Round(ground, clusters, dead, dice)
        # One after the other, so that a few rounds have each, and beside it what the dice say.
        for kinds in (LEFT, ALIVE):
            for name in (kinds[number % len(kinds)], *dice.choices(kinds, k=dice.randint(0, 2))):
                getattr(made, name)()
        made.settle()
        wanted = below(made.left)
        living = {**standing, **identities(below(made.alive))}
        found = leftovers.find(settle=False)
        meant = {f.pid for f in found if not leftovers.spared(f, SweepOptions(inherited=True))}
        assert meant == wanted, (number, names(meant - wanted), names(wanted - meant))
        begun = clock()
        outcomes = leftovers.clear(found, SweepOptions(inherited=True), 0.1, audit=audit)
        reply["slowest"] = max(reply["slowest"], clock() - begun)
        assert all(o.outcome == "gone" for o in outcomes.values()), outcomes
        reap()
        lost = set(living) - set(alive(living))
        assert not lost, (number, lost)
        deadline = clock() + 2.0
        while (extra := more_than(living)) and clock() < deadline:
            time.sleep(0.01)
        assert not extra, (number, names(extra))
        reply["rounds"] += 1
        reply["left"] += len(wanted)
        reply["ended"] += sum(o.action != "none" for o in outcomes.values())
        reply["living"] = len(living)
        for pid in below(made.alive):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not more_than(standing))
    print(json.dumps(reply))


def names(pids: set[int]) -> list[tuple[int, str, str]]:
    seen = classify.survey()
    return [(p, " ".join(proc.command(p))[:200], str(seen.marks.get(p))) for p in pids]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
