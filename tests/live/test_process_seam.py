"""Signals reach the process that was named, and no other: with a machine that reuses pids at every moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raydoctor.act.audit import Audit
from raydoctor.act.signals import process, system
from raydoctor.act.signals.process import Identity, Outcome
from tests.helpers.waiting import PATIENCE, clock

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pidfds")
ME, SHELL = 50, 40


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    return Audit("test", path=str(tmp_path / "audit.jsonl"))


# ------------------------------------------------------------------ a machine that reuses pids


@dataclass(eq=False)
class Life:
    """One process, from its start to its end."""

    pid: int
    begun: float
    users: frozenset[int]
    deaf: bool = False
    is_reaped: bool = False
    is_defunct: bool = False
    got: list[int] = field(default_factory=list)


class Machine:
    """A kernel with pidfds, on which any process may end, and its pid be reused, before every call."""

    is_exact = True

    def __init__(self, dice: random.Random, unrest: float) -> None:
        self.dice, self.unrest = dice, unrest
        self.clock = 1000.0
        self.by_pid: dict[int, Life] = {}
        self.all: list[Life] = []
        self.held: dict[int, Life] = {}
        self.last = 0
        self.root = True

    def start(self, pid: int, **reply: object) -> Life:
        self.clock += 0.01
        life = Life(pid, round(self.clock, 2), reply.pop("users", frozenset({0})), **reply)  # type: ignore[arg-type]
        self.by_pid[pid] = life
        self.all.append(life)
        return life

    def _unrest(self) -> None:
        for pid, life in list(self.by_pid.items()):
            if pid in (1, ME, SHELL) or self.dice.random() >= self.unrest:
                continue
            if not life.is_defunct and self.dice.random() < 0.3:
                life.is_defunct = True
                continue
            life.is_reaped = True
            del self.by_pid[pid]
            if self.dice.random() < 0.8:
                self.start(pid, users=frozenset({self.dice.choice((0, 0, 1000))}))

    def hold(self, pid: int) -> int | None:
        self._unrest()
        if pid not in self.by_pid:
            return None
        self.last += 1
        self.held[self.last] = self.by_pid[pid]
        return self.last

    def release(self, handle: int) -> None:
        del self.held[handle]

    def started_at(self, pid: int) -> float | None:
        self._unrest()
        return self.by_pid[pid].begun if pid in self.by_pid else None

    def signal(self, handle: int, number: int) -> None:
        self._unrest()
        life = self.held[handle]
        if life.is_reaped:
            raise ProcessLookupError
        if number == 0 or life.is_defunct:
            return
        life.got.append(number)
        if number == signal.SIGKILL or not life.deaf:
            life.is_defunct = True

    def ended(self, handles: Collection[int], seconds: float) -> set[int]:
        self.clock += seconds
        self._unrest()
        return {h for h in handles if self.held[h].is_defunct or self.held[h].is_reaped}

    def users(self, pid: int) -> frozenset[int]:
        self._unrest()
        return self.by_pid[pid].users if pid in self.by_pid else frozenset()

    def protected(self) -> frozenset[int]:
        return frozenset({ME, SHELL})

    def uid(self) -> int:
        return 0 if self.root else 1000

    def now(self) -> float:
        return self.clock


def trial(dice: random.Random, audit: Audit) -> tuple[int, int, int]:
    """Wrong signals, right ones, and targets reported as gone that are not."""
    machine = Machine(dice, unrest=dice.choice((0.0, 0.05, 0.3)))
    for pid in (1, ME, SHELL):
        machine.start(pid)
    lives = [
        machine.start(pid, deaf=dice.random() < 0.3) for pid in range(100, 100 + dice.randint(1, 6))
    ]
    named = {
        Identity(life.pid, life.begun): life
        for life in dice.sample(lives, dice.randint(1, len(lives)))
    }
    # Between the look and now time passes.
    for _ in range(dice.randint(0, 3)):
        machine._unrest()
    outcomes = process.end([*named, Identity(1, 0.0)], 1.0, system=machine, audit=audit)
    wanted = set(map(id, named.values()))
    wrong = sum(len(life.got) for life in machine.all if id(life) not in wanted)
    right = sum(len(life.got) for life in named.values())
    lies = sum(
        o.outcome == "gone" and o.identity.pid != 1 and not (named[o.identity].is_defunct or named[o.identity].is_reaped)
        for o in outcomes
    )  # fmt: skip
    assert not machine.held, "every handle is let go"
    return wrong, right, lies


def test_ten_thousand_trials_without_a_wrong_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Audit("test")
    monkeypatch.setattr(Audit, "write", lambda self, what, **reply: None)
    dice = random.Random(20261121)
    wrong = right = lies = 0
    for _ in range(10_000):
        found = trial(dice, silent)
        wrong, right, lies = wrong + found[0], right + found[1], lies + found[2]
    assert (wrong, lies) == (0, 0)
    assert right > 10_000, "the machine was quiet enough for signals to be sent at all"


def test_the_trials_would_notice_a_check_that_comes_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same trials against an order that looks right: read the start first, then hold, then signal."""

    def hold(self: process._Ending, target: Identity) -> int | None:
        begun = self.system.started_at(target.pid)
        handle = (
            self.system.hold(target.pid) if begun == target.started_at and target.pid > 1 else None
        )
        if handle is None:
            self.settle(target, "none", "gone")
        return handle

    monkeypatch.setattr(Audit, "write", lambda self, what, **reply: None)
    monkeypatch.setattr(process._Ending, "hold", hold)
    dice = random.Random(20261121)
    assert sum(trial(dice, Audit("test"))[0] for _ in range(2000)) > 0


# ------------------------------------------------------------------ refusals


def quiet() -> Machine:
    machine = Machine(random.Random(0), unrest=0.0)
    for pid in (1, ME, SHELL):
        machine.start(pid)
    return machine


def only(outcomes: list[Outcome]) -> Outcome:
    (outcome,) = outcomes
    return outcome


@pytest.mark.parametrize("pid", [1, ME, SHELL, 0, -1])
def test_init_ourselves_and_our_ancestors_are_refused(pid: int, audit: Audit) -> None:
    machine = quiet()
    begun = machine.by_pid[pid].begun if pid in machine.by_pid else 0.0
    outcome = only(
        process.end([Identity(pid, begun)], 0.1, system=machine, audit=audit, all_users=True)
    )
    assert outcome.outcome == "refused"
    assert not any(life.got for life in machine.all)


@pytest.mark.parametrize(
    ("root", "all_users", "users", "ended"),
    [
        (True, False, {0}, True),
        (True, False, {1000}, False),
        (True, True, {1000}, True),
        (True, False, {0, 1000}, False),
        (False, False, {1000}, True),
        (False, True, {0}, False),
        (False, True, {1001}, False),
        (False, True, {1000, 0}, False),
    ],
)
def test_other_users(
    root: bool, all_users: bool, users: set[int], ended: bool, audit: Audit
) -> None:
    machine = quiet()
    machine.root = root
    life = machine.start(100, users=frozenset(users))
    outcome = only(
        process.end(
            [Identity(100, life.begun)], 0.1, all_users=all_users, system=machine, audit=audit
        )
    )
    assert (outcome.outcome, bool(life.got)) == (("gone", True) if ended else ("refused", False))


def test_defunct_processes_count_as_dead_and_get_no_signal(audit: Audit) -> None:
    machine = quiet()
    life = machine.start(100, is_defunct=True)
    outcome = only(process.end([Identity(100, life.begun)], 0.1, system=machine, audit=audit))
    assert (outcome.action, outcome.outcome) == ("none", "gone")
    assert not Path(audit.path).exists()


def test_processes_that_appear_meanwhile_are_ended_and_endless_forks_are_reported(
    audit: Audit,
) -> None:
    machine = quiet()
    first = machine.start(100)
    second = machine.start(101)
    rounds: Iterator[list[int]] = iter([[101], []])
    outcomes = process.end(
        [Identity(100, first.begun)], 0.1, system=machine, audit=audit,
        more=lambda: [Identity(p, machine.by_pid[p].begun) for p in next(rounds)],
    )  # fmt: skip
    assert [o.outcome for o in outcomes] == ["gone", "gone"]
    assert second.got == [signal.SIGTERM]

    def again() -> list[Identity]:
        return [Identity(200, machine.start(200, deaf=True).begun)]

    started = machine.now()
    outcomes = process.end(
        [Identity(100, first.begun)], 1.0, system=machine, audit=audit, more=again
    )
    assert outcomes[-1].outcome == "running"
    assert "kept appearing" in outcomes[-1].reason
    assert machine.now() - started < 200, "patience with each of them ends"


# ------------------------------------------------------------------ real processes

SYSTEMS: list[Callable[[], system.RealSystem]] = [
    system.real_system,
    lambda: system.RealSystem(system.Pids(), is_exact=False),
]


def sleeper(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words or ("sleep", "300"), stdout=subprocess.PIPE)


DEAF = ("bash", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")


@pytest.mark.parametrize("make", SYSTEMS, ids=["pidfds", "pids"])
def test_term_then_kill(make: Callable[[], system.RealSystem], audit: Audit) -> None:
    mild, deaf, other = sleeper(), sleeper(*DEAF), sleeper()
    try:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        named = [process.identity_of(p.pid) for p in (mild, deaf)]
        begun, start = time.monotonic(), clock()
        outcomes = process.end([n for n in named if n], 0.3, system=make(), audit=audit)
        assert [(o.action, o.outcome) for o in outcomes] == [("term", "gone"), ("kill", "gone")]
        assert time.monotonic() - begun > 0.25
        assert clock() - start < 2.0
        assert (mild.wait(1), deaf.wait(1)) == (-signal.SIGTERM, -signal.SIGKILL)
        assert other.poll() is None
        lines = [json.loads(line) for line in Path(audit.path).read_text().splitlines()]
        assert [(line["pid"], line["signal"], line["result"]) for line in lines] == [
            (mild.pid, "SIGTERM", "sent"),
            (deaf.pid, "SIGTERM", "sent"),
            (deaf.pid, "SIGKILL", "sent"),
        ]
        assert os.stat(audit.path).st_mode & 0o077 == 0
    finally:
        for each in (mild, deaf, other):
            each.kill()
            each.communicate()


def test_an_older_identity_of_a_pid_is_not_signalled(audit: Audit) -> None:
    other = sleeper()
    try:
        identity = process.identity_of(other.pid)
        assert identity is not None
        stale = identity._replace(started_at=identity.started_at - 0.01)
        assert only(process.end([stale], 0.1, audit=audit)).outcome == "gone"
        assert process.send(stale, signal.SIGKILL, audit=audit) != ""
        assert process.send(identity, 0, audit=audit) == ""
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


@linux
def test_a_python_without_pidfds_makes_the_system_calls_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.delattr(signal, "pidfd_send_signal", raising=False)
    handles = system.Pidfds()
    child = sleeper()
    handle = handles.hold(child.pid)
    assert handle is not None
    assert handles.ended([handle], 0.0) == set()
    handles.signal(handle, signal.SIGTERM)
    assert handles.ended([handle], 5.0) == {handle}
    child.communicate()
    with pytest.raises(ProcessLookupError):
        handles.signal(handle, 0)
    handles.release(handle)
    assert handles.hold(child.pid) is None


def test_an_audit_that_cannot_be_written_is_reported_and_does_not_stop_anything(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    audit = Audit("test", path=str(tmp_path / "file" / "audit.jsonl"))
    child = sleeper()
    identity = process.identity_of(child.pid)
    assert identity is not None
    assert only(process.end([identity], 1.0, audit=audit)).outcome == "gone"
    assert "audit.jsonl" in audit.problem
    child.communicate()


# ------------------------------------------------------------------ the kernel reuses a pid

REUSE = """
import os, random, signal, subprocess, sys, time
from raydoctor.act.signals import process, system
from raydoctor.act.audit import Audit
Audit.write = lambda self, what, **told: None

def again(pid):
    # The next process of this pid namespace gets this pid.
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
    return subprocess.Popen(["sleep", "300"])

class Reusing:
    '''The real system; at one moment the process ends, and the kernel gives its pid to another one.'''
    is_exact = True
    def __init__(self, moment, victim):
        self.real, self.moment, self.victim, self.calls, self.other = system.real_system(), moment, victim, 0, None
    def __getattr__(self, name):
        call = getattr(self.real, name)
        def made(*words):
            self.calls += 1
            if self.calls == self.moment:
                self.victim.kill(); self.victim.wait()
                self.other = again(self.victim.pid)
                assert self.other.pid == self.victim.pid, "the pid was not reused"
            return call(*words)
        return made

reused = 0
for trial in range(int(sys.argv[1])):
    victim = subprocess.Popen(["sleep", "300"])
    named = process.identity_of(victim.pid)
    time.sleep(0.011)
    seam = Reusing(random.randint(1, 9), victim)
    (outcome,) = process.end([named], 0.2, system=seam)
    assert outcome.outcome == "gone", outcome
    if seam.other:
        reused += 1
        time.sleep(0.001)
        assert seam.other.poll() is None, (seam.moment, outcome)
        seam.other.kill(); seam.other.wait()
    else:
        victim.wait()
print("reused", reused)
"""


@linux
def test_pids_that_the_kernel_reuses_at_every_moment() -> None:
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    probe = "echo 200 > /proc/sys/kernel/ns_last_pid"
    if os.geteuid() != 0 or subprocess.call(
        [*inside, "sh", "-c", probe], stderr=subprocess.DEVNULL
    ):
        pytest.skip("needs a pid namespace of its own")
    command = [*inside, sys.executable, "-c", REUSE, "200"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) > 80
