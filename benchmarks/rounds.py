"""Leftovers among the living, with two real clusters: is anything touched that lives, is anything left?

    python -m benchmarks.rounds 200 --seed 1            # 200 rounds, or as many as --minutes allow

Two clusters of this interpreter's Ray are there all the time, each with a driver whose actor and task run
and have descendants of all kinds; beside them an unrelated tree, and another user's processes that look like
leftovers. In each round drivers of either cluster start tasks and actors with such descendants, and some of
these are ended in one of the ways that tasks end in: SIGKILL of a worker or a driver, SIGINT or SIGTERM of a
driver, the end of an actor or a task, a cancel. Then what `raydoctor zombies --leaked` finds is ended, at
once, and again when Ray has done its part. Afterwards everything that lives must still be there, by pid and
start, and of what was to end only what cannot be attributed: a process without environment, session and
files of its worker's (`hidden`), and one that left its session and its parents while another worker of the
same job runs, so that it may be that one's (`unclear`).

Has processes, network, `/tmp` and shared memory of its own (`unshare`; needs root). One JSON object; exit
code 1 where something that lives was touched, or a leftover was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.helpers import ROOT

if TYPE_CHECKING:
    from tests.helpers.real_ray import RealRay

KINDS = ("child", "session", "grandchild", "fork", "spawn", "daemon", "scrubbed")
EVENTS = ("worker", "worker", "actor-worker", "actor-worker", "actor", "cancel", "short") * 2
HIDDEN = "scrubbed"
CLIMBED = "daemon"
NOBODY = 65534

PROGRAM = """
import json, multiprocessing, os, subprocess, sys, time
import ray
ray.init(log_to_driver=False)

def descend(base, kinds):
    sleep = lambda n: ["sleep", str(base + n)]
    null = subprocess.DEVNULL
    for n, kind in enumerate(kinds):
        if kind == "child":
            subprocess.Popen(sleep(n))
        elif kind == "session":
            subprocess.Popen(sleep(n), start_new_session=True)
        elif kind == "grandchild":
            subprocess.Popen(["sh", "-c", f"sleep {base + n} & wait"])
        elif kind in ("fork", "spawn"):
            multiprocessing.get_context(kind).Process(target=os.execvp, args=("sleep", sleep(n))).start()
        elif kind == "daemon":
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.closerange(0, 64)
                    os.execvp("sleep", sleep(n))
                os._exit(0)
            os.wait()
        else:
            subprocess.Popen(
                sleep(n), env={"PATH": os.environ["PATH"]}, stdin=null, stdout=null, stderr=null,
                start_new_session=True,
            )

@ray.remote(max_retries=0, num_cpus=0)
def task(base, kinds, mark, seconds):
    descend(base, kinds)
    with open(mark, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(seconds)

@ray.remote(num_cpus=0)
class Actor:
    def work(self, base, kinds, mark):
        descend(base, kinds)
        with open(mark, "w") as file:
            file.write(str(os.getpid()))

kept = {}
print("READY", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    what, base = order.pop("what"), order["base"]
    if what == "task":
        kept[base] = task.remote(seconds=100_000, **order)
    elif what == "short":
        kept[base] = task.remote(seconds=0, **order)
    elif what == "actor":
        kept[base] = Actor.remote()
        kept[base].work.remote(**order)
    elif what == "kill":
        ray.kill(kept.pop(base))
    elif what == "cancel":
        ray.cancel(kept.pop(base), force=True)
"""


# ------------------------------------------------------------------ what there is


@dataclass(slots=True)
class Work:
    """A task or an actor, and the processes that it has started."""

    what: str
    base: int
    kinds: list[str]
    mark: Path
    worker: tuple[int, float] = (0, 0.0)
    """Its worker's pid and start."""


@dataclass(slots=True)
class Program:
    """A driver that follows orders."""

    process: subprocess.Popen[str]
    said: Path
    works: list[Work] = field(default_factory=list)

    def tell(self, **order: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()


@dataclass(slots=True)
class Ground:
    """Everything."""

    dice: random.Random
    folder: Path
    clusters: list[RealRay]
    base: int = 1_000_000

    spares: dict[int, Program] = field(default_factory=dict)
    """Drivers that are starting, by cluster: a start takes longer than all the rest."""

    def program(self, number: int) -> Program:
        """A driver of a cluster, and one that starts meanwhile for the next time."""
        program = self.spares.pop(number, None) or self._begun(number)
        until(lambda: "READY" in program.said.read_text(), program.said)
        self.spares[number] = self._begun(number)
        return program

    def _begun(self, number: int) -> Program:
        cluster = self.clusters[number]
        environment = {**cluster.environment, "RAY_ADDRESS": cluster.address}
        said = self.folder / f"driver-{time.monotonic_ns()}.txt"
        with said.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], env=environment, stdin=subprocess.PIPE, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True, text=True, cwd=self.folder,
            )  # fmt: skip
        return Program(process, said)

    def work(self, program: Program, what: str, kinds: Iterable[str] = ()) -> Work:
        """Have a driver start something; returns when all its descendants are what they are to be."""
        chosen = list(kinds) or self.dice.sample(KINDS, self.dice.randint(1, 4))
        self.base += 100
        made = Work(what, self.base, chosen, self.folder / f"mark-{self.base}")
        program.tell(what=what, base=made.base, kinds=chosen, mark=str(made.mark))
        until(lambda: made.mark.exists() and made.mark.read_text(), made.mark)
        pid = int(made.mark.read_text())
        made.worker = next((i for i in identities() if i[0] == pid), (pid, 0.0))
        until(lambda: what == "short" or len(sleepers(made.base)) == len(chosen), made.mark)
        program.works.append(made)
        return made


def until(is_so: Callable[[], object], about: Path, seconds: float = 90.0) -> None:
    """Wait for that; where it does not come true, what is in this file says why."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            text = about.read_text() if about.exists() else ""
            raise AssertionError(f"it did not come true: {about}: {text[-2000:]}")
        time.sleep(0.05)


def sleepers(base: int) -> dict[int, tuple[int, float]]:
    """Which of a work's processes run: number -> pid and start."""
    from raydoctor.observe.processes import proc

    found = {}
    for process in proc.table().values():
        if process.name == "sleep" and process.state != "Z":
            words = proc.command(process.pid)
            if len(words) == 2 and words[1].isdigit() and 0 <= int(words[1]) - base < 100:
                found[int(words[1]) - base] = (process.pid, process.started_at)
    return found


def identities() -> set[tuple[int, float]]:
    """Pid and start of all that run."""
    from raydoctor.observe.processes import proc

    return {(p.pid, p.started_at) for p in proc.table().values() if p.state != "Z"}


# ------------------------------------------------------------------ a round


@dataclass(slots=True)
class Reply:
    """What came of all rounds."""

    rounds: int = 0
    touched: list[Any] = field(default_factory=list)
    missed: list[Any] = field(default_factory=list)
    found: int = 0
    ended: int = 0
    hidden: int = 0
    unclear: int = 0
    slowest: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    living: int = 0


def happen(ground: Ground, program: Program, reply: Reply) -> tuple[list[Work], bool]:
    """Something ends; what it had started, and whether the driver still runs."""
    event = ground.dice.choice((*EVENTS, "TERM", "INT", "KILL"))
    reply.events[event] += 1
    if event in ("TERM", "INT", "KILL"):
        ground.work(program, ground.dice.choice(("task", "actor")))
        if ground.dice.random() < 0.5:
            ground.work(program, "task")
        works, program.works = program.works, []
        program.process.send_signal(getattr(signal, f"SIG{event}"))
        program.process.wait(60)
        return works, False
    what = {"actor-worker": "actor", "actor": "actor", "short": "short"}.get(event, "task")
    work = ground.work(program, what)
    program.works.remove(work)
    if event in ("worker", "actor-worker"):
        os.kill(work.worker[0], signal.SIGKILL)
    elif event == "actor":
        program.tell(what="kill", base=work.base)
    elif event == "cancel":
        program.tell(what="cancel", base=work.base)
    return [work], True


def sweep(reply: Reply) -> None:
    """What `zombies --kill --leaked` does."""
    from raydoctor.act.audit import Audit
    from raydoctor.act.zombies import leftovers

    wishes = leftovers.SweepOptions(leaked=True, inherited=True)
    plan = leftovers.find(wishes)
    reply.found += sum(not leftovers.spared(each, wishes) for each in plan)
    begun = time.monotonic()
    outcomes = leftovers.clear(plan, wishes, 0.5, audit=Audit("rounds"))
    reply.slowest = max(reply.slowest, time.monotonic() - begun)
    reply.ended += sum(o.action != "none" for o in outcomes.values())


def count(ended: list[tuple[Work, bool]], reply: Reply, number: int) -> None:
    """Who is left of what was to end."""
    for work, is_unclear in ended:
        for n, (pid, started_at) in sleepers(work.base).items():
            kind = work.kinds[n]
            if kind == HIDDEN:
                reply.hidden += 1
            elif kind == CLIMBED and is_unclear:
                reply.unclear += 1
            else:
                reply.missed.append((number, work.what, kind, pid, evidence(pid)))
            kill((pid, started_at))


def kill(identity: tuple[int, float]) -> None:
    from raydoctor.act.signals import process

    process.end([process.Identity(*identity)], 0.0)


def evidence(pid: int) -> str:
    """All that speaks for or against its being left over."""
    from raydoctor.act.zombies import classify
    from raydoctor.observe.processes import kinship, proc

    seen = classify.survey()
    machine = seen.machine
    orphan = machine.processes.get(pid)
    origins = kinship._possible_origins(machine, orphan) if orphan else []
    names = [(p, machine.processes[p].name, kinship._job(machine, p)) for p in origins]
    reply = proc.environment(pid, kinship._VARIABLES)
    return f"{orphan} {machine.kinds.get(pid)} {seen.marks.get(pid)} {reply} {names}"


def one(
    ground: Ground,
    programs: list[Program],
    reply: Reply,
    number: int,
    standing: set[tuple[int, float]],
) -> None:
    ended: list[tuple[Work, bool]] = []
    for n, program in enumerate(programs):
        if ground.dice.random() < 0.3:
            continue
        if len(program.works) < 2 and ground.dice.random() < 0.5:
            ground.work(program, ground.dice.choice(("task", "actor")))
        works, lives = happen(ground, program, reply)
        is_unclear = lives and bool(program.works)
        ended += [(work, is_unclear) for work in works]
        if not lives:
            programs[n] = ground.program(n)
    gone = {i for work, _ in ended for i in sleepers(work.base).values()}
    time.sleep(ground.dice.choice((0.0, 0.5, 1.5)))
    lived = {
        i for program in programs for work in program.works for i in sleepers(work.base).values()
    }
    lived |= {(pid, at) for pid, at in identities() if pid in {p.process.pid for p in programs}}
    sweep(reply)  # while Ray may still be at it
    until(
        lambda: not identities() & {w.worker for w, _ in ended if w.what != "short"}, ground.folder
    )
    sweep(reply)
    count(ended, reply, number)
    now = identities()
    touched = (standing | lived) - gone - now
    if touched:
        reply.touched.append((number, sorted(touched)))
    reply.living = max(reply.living, len(standing | lived))
    reply.rounds += 1


def bystanders(folder: Path) -> None:
    """An unrelated tree, and another user's processes that look like leftovers."""
    subprocess.Popen(
        ["sh", "-c", "sleep 900001 & setsid sleep 900002 & wait"], start_new_session=True
    )
    environment = {"PATH": os.environ["PATH"], "RAY_RAYLET_PID": "31999", "RAY_JOB_ID": "01000000"}
    theirs = subprocess.Popen(
        ["setpriv", "--reuid", str(NOBODY), "--clear-groups", "sh", "-c",
         "setsid sleep 900003 </dev/null >/dev/null 2>&1 & sleep 900004 & wait"],
        env=environment, cwd="/", start_new_session=True,
    )  # fmt: skip
    for n in (900001, 900003):
        until(lambda n=n: len(sleepers(n)) >= 2, folder)
    os.kill(theirs.pid, signal.SIGKILL)


def rounds(count: int, seed: int, minutes: float) -> Reply:
    from tests.helpers.real_ray import real_ray

    reply = Reply()
    folder = Path("/tmp/rounds")
    folder.mkdir()
    os.environ["XDG_STATE_HOME"] = str(folder)
    deadline = time.monotonic() + 60 * minutes
    with real_ray() as first, real_ray() as second:
        for each in (first, second):
            each.start(dashboard=False)
        ground = Ground(random.Random(seed), folder, [first, second])
        bystanders(folder)
        stand = [ground.program(n) for n in range(len(ground.clusters))]
        for program in stand:
            ground.work(program, "task", KINDS)
            ground.work(program, "actor", KINDS)
        daemons = {"raylet", "gcs_server"}
        programs = [ground.program(n) for n in range(len(ground.clusters))]
        time.sleep(3.0)
        standing = standing_of(stand, daemons)
        for number in range(count):
            if time.monotonic() > deadline:
                break
            one(ground, programs, reply, number, standing)
            print(number, reply, file=sys.stderr, flush=True)
    return reply


def standing_of(stand: list[Program], daemons: set[str]) -> set[tuple[int, float]]:
    from raydoctor.observe.processes import proc

    kept = {900001, 900003, *(w.base for p in stand for w in p.works)}
    found = {i for base in kept for i in sleepers(base).values()}
    workers = {w.worker[0] for p in stand for w in p.works} | {p.process.pid for p in stand}
    table = proc.table().values()
    return found | {(p.pid, p.started_at) for p in table if p.pid in workers or p.name in daemons}


# ------------------------------------------------------------------ a machine of its own


def reap() -> int:
    """As PID 1: run the rounds in a child, and take away what has ended."""
    child = os.fork()
    if child == 0:
        return -1
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def enclosed(words: list[str]) -> int:
    """Run this again with processes, network and folders of its own."""
    kept = [sys.prefix, str(ROOT)]
    binds = " && ".join(
        f"mkdir -p /mnt/{n} && mount --bind {shlex.quote(path)} /mnt/{n}"
        for n, path in enumerate(kept)
    )
    back = " && ".join(
        f"mkdir -p {shlex.quote(path)} && mount --bind /mnt/{n} {shlex.quote(path)}"
        for n, path in enumerate(kept)
    )
    script = (
        f"mount -t tmpfs tmpfs /mnt && {binds} && mount -t tmpfs tmpfs /tmp && {back} && "
        'mount -t tmpfs tmpfs /dev/shm && ip link set lo up && exec "$0" "$@"'
    )
    inside = ["unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child"]
    return subprocess.call(
        [
            *inside,
            "bash",
            "-c",
            script,
            sys.executable,
            "-m",
            "benchmarks.rounds",
            "--inside",
            *words,
        ],
        cwd=ROOT,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    wishes = parser.parse_args()
    if not wishes.inside:
        return enclosed(sys.argv[1:])
    code = reap()
    if code >= 0:
        return code
    reply = rounds(wishes.count, wishes.seed, wishes.minutes)
    print(json.dumps({n: getattr(reply, n) for n in Reply.__slots__}, default=list))
    os._exit(1 if reply.touched or reply.missed else 0)


if __name__ == "__main__":
    sys.exit(main())
