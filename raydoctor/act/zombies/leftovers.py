"""Ray's processes that should have ended: which they are, why, and which of them may be ended.

Whose a process is follows from what it inherited or has open (`observe/processes/kinship.py`), never from
its name alone. A leftover is one of five kinds:

- `defunct`: has ended; its parent has not asked for its exit status. Nothing can end it but that.
- `orphan`: what started it (its worker, its raylet) is gone, or its raylet is defunct.
- `stale-daemon`: a process of Ray's own, of a session that has no raylet, and whose GCS nobody uses.
- `leaked-child`: started by a normal task that has ended; its worker lives and is idle.
- `idle-holder`: an idle worker of a live session that keeps much memory. Shown, never ended.

What lives is never among them: workers of a running raylet, drivers, daemons of a session that has a raylet
or that others are connected to, what they started, children of actors and of busy workers.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raydoctor.act import private as _private
from raydoctor.act.audit import Audit
from raydoctor.act.signals import cgroup
from raydoctor.act.signals.process import GRACE, Action, Identity, Outcome, end
from raydoctor.act.zombies import classify
from raydoctor.act.zombies.classify import Kind, LeftoverSurvey, Mark
from raydoctor.observe.machine import cgroups, holdings
from raydoctor.observe.processes import daemons, proc
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.processes.redact import command_line

KINDS: tuple[Kind, ...] = ("orphan", "stale-daemon", "leaked-child", "idle-holder", "defunct")
_SETTLE = 0.5
"""Seconds that Ray takes to end what a dead worker started (0.2 s measured): later ones are left over."""
_SETTLE_DAEMONS = 2.0
"""The same for a dead raylet: `ray start --block` looks after it once a second, and ends the rest."""
INHERITED_ONLY = (
    "only its environment ties it to Ray: a tmux session or a server that was started from a job looks the "
    "same. --inherited ends it"
)
_TITLE = 200
_MUCH = 0.10
"""Of the machine's memory: what an idle worker may keep untold. As the rule `leftover-process` has it."""
_CONTEXT = 1 << 30
"""Bytes of a GPU: a CUDA context alone takes 0.3 to 0.5 GB, and an idle worker may keep that."""


class Leftover(NamedTuple):
    """One process that should have ended."""

    identity: Identity
    kind: Kind
    why: str
    belongs_to: str
    """`worker pid 812 (gone)`, `raylet pid 40 (defunct)`."""
    command: str
    session: str
    """Folder of its session; empty where it cannot be told."""
    user: str
    uid: int | None
    rss: int
    memory: int
    """Bytes that end with it: without what it shares (Ray's object store), as far as the system tells."""
    gpu_memory: int = 0
    ports: tuple[int, ...] = ()
    is_inherited_only: bool = False
    """As of `Mark`."""

    @property
    def pid(self) -> int:
        """Its pid."""
        return self.identity.pid


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Which leftovers the user means."""

    session: str = ""
    """Folder or name of a session; empty: all."""
    leaked: bool = False
    """End `leaked-child`, too."""
    all_users: bool = False
    inherited: bool = False
    """End also processes that nothing but an inherited environment ties to Ray."""

    def means(self, session: str) -> bool:
        """Whether a session is meant."""
        return not self.session or _name(session) == _name(self.session)


def _name(session: str) -> str:
    return posixpath.basename(session.rstrip("/"))


def find(options: SweepOptions = SweepOptions(), settle: bool = True) -> list[Leftover]:
    """What is left over on this machine, of any user; with `settle`, what is so for a while.

    While a worker, a raylet or a cluster ends there is a moment when the rest is about to end by itself.
    """
    survey = classify.survey()
    if settle and survey.marks:
        before = {survey.identity(pid): mark.kind for pid, mark in survey.marks.items()}
        time.sleep(_SETTLE_DAEMONS if survey.is_ending else _SETTLE)
        survey = classify.survey()
        for pid, mark in list(survey.marks.items()):
            if before.get(survey.identity(pid)) != mark.kind:
                del survey.marks[pid]
    held = holdings.gpu_memory()
    _mark_idle_holders(survey, held)
    listening = holdings.ports(pid for pid, mark in survey.marks.items() if mark.kind != "defunct")
    found = [
        _leftover(survey, pid, held.get(pid, 0), listening.get(pid, ())) for pid in survey.marks
    ]
    meant = [each for each in found if options.means(each.session)]
    return sorted(meant, key=lambda each: (KINDS.index(each.kind), each.session, each.pid))


def youngest() -> float:
    """When the youngest process of this machine was started, as of now."""
    return max((each.started_at for each in proc.table().values()), default=0.0)


def unseen() -> str:
    """What could not be looked at, and how it could; empty where nothing of Ray's was out of sight."""
    if not proc.LINUX:
        return "this system does not tell what processes inherited or have mapped: only Linux does"
    mine = os.geteuid()
    hidden = [_private.distrusted()]
    owners = {proc.owner(d.daemon.pid) for d in daemons.find()} - {mine, None}
    if mine and owners:
        names = ", ".join(sorted(proc.user(uid) for uid in owners if uid is not None))
        hidden.append(
            f"what {names} runs of Ray's may not be read: run it as {names}, or with sudo"
        )
    return "; ".join(filter(None, hidden))


def _mark_idle_holders(survey: LeftoverSurvey, held: dict[int, int]) -> None:
    machine, much = survey.machine, _MUCH * _machine_memory()
    for pid, kind in machine.kinds.items():
        process = machine.processes[pid]
        if kind != "worker" or pid in survey.marks or not process.name.startswith("ray::IDLE"):
            continue
        memory = _memory(pid, process.rss)
        if memory > much or held.get(pid, 0) >= _CONTEXT:
            log = machine.log.get(pid)
            survey.marks[pid] = Mark(
                "idle-holder",
                "it is idle, and keeps what its last task took: @ray.remote(max_calls=1) would end it",
                f"raylet pid {process.ppid}",
                log.session if log else "",
            )


def _machine_memory() -> int:
    own = cgroups.of_process("self")
    limit = cgroups.usage(own).limit if own else None
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        total = cgroups.UNLIMITED
    return min(limit or total, total)


def _memory(pid: int, rss: int) -> int:
    private = proc.private_memory(pid)
    return rss if private is None else private


def _leftover(
    survey: LeftoverSurvey, pid: int, gpu_memory: int, ports: tuple[int, ...]
) -> Leftover:
    process, mark = survey.machine.processes[pid], survey.marks[pid]
    uid = proc.owner(pid)
    return Leftover(
        survey.identity(pid),
        mark.kind,
        mark.why,
        mark.belongs_to,
        command_line(pid)[:_TITLE] or f"[{process.name}]",
        mark.session,
        "" if uid is None else proc.user(uid),
        uid,
        process.rss,
        _memory(pid, process.rss) if mark.kind != "defunct" else 0,
        gpu_memory,
        ports,
        mark.is_inherited_only,
    )


# ------------------------------------------------------------------ what may be ended


def spared(leftover: Leftover, options: SweepOptions) -> str:
    """Why it is not ended; empty where it is."""
    if leftover.kind == "defunct":
        return "it has ended already: only its parent can remove it"
    if leftover.kind == "idle-holder":
        return "it is a live worker of a live session"
    if leftover.kind == "leaked-child" and not options.leaked:
        return "its worker lives: --leaked ends it, too"
    if leftover.is_inherited_only and not options.inherited:
        return INHERITED_ONLY
    return _spared_user(leftover.uid, options)


def _spared_user(uid: int | None, options: SweepOptions) -> str:
    mine = os.geteuid()
    if uid == mine:
        return ""
    whose = "another user's" if uid is None else f"{proc.user(uid)}'s"
    if mine != 0:
        return f"it is {whose}"
    return "" if options.all_users else f"it is {whose}: --all-users ends it, too"


def clear(
    plan: Sequence[Leftover],
    options: SweepOptions,
    grace: float = GRACE,
    *,
    audit: Audit,
    since: float = 0.0,
) -> dict[Identity, Outcome]:
    """End what was planned and is still left over, and what it starts meanwhile, until nothing is left.

    Time may have passed since the plan: what is no leftover any more is refused. Others that turn up are
    ended where they are of a kind and of a session that the plan has, and were started after it (`since`,
    `youngest` of that moment): what was there before, and was not shown, is nobody's to end.
    """
    meant = {each.identity: each for each in plan if not spared(each, options)}
    kinds = {each.kind for each in meant.values()}
    sessions = {each.session for each in meant.values()}
    now = classify.survey()
    leading = _leading(now, meant)
    still = {now.identity(pid): mark.kind for pid, mark in now.marks.items()}
    audit.about = {
        identity: {"why": each.why, "command": each.command, "session": each.session}
        for identity, each in meant.items()
    }

    def look() -> list[Identity]:
        survey = classify.survey()
        marked = [
            pid
            for pid, mark in survey.marks.items()
            if mark.kind in kinds
            and mark.session in sessions
            and (options.inherited or not mark.is_inherited_only)
            and (survey.identity(pid) in meant or survey.identity(pid).started_at >= since)
        ]
        new = (*marked, *_members(survey, leading))
        return [survey.identity(pid) for pid in new if not _spared_user(proc.owner(pid), options)]

    def more() -> list[Identity]:
        # A look takes some milliseconds: what forks and ends in that time may be missed once.
        return look() or look()

    targets = [each for each in meant if still.get(each) == meant[each].kind]
    outcomes = end(targets, grace, more=more, all_users=options.all_users, audit=audit)
    found = {each.identity: each for each in outcomes}
    if any(each.outcome == "running" for each in outcomes):
        table = proc.table()  # first: what is younger than that was started by what is found next
        found.update(_by_cgroup(table, more(), found, audit))
    for identity in meant:
        if identity not in found:
            found[identity] = _now(identity, "none")
    return found


def _by_cgroup(
    table: Mapping[int, Process],
    rest: Iterable[Identity],
    found: Mapping[Identity, Outcome],
    audit: Audit,
) -> dict[Identity, Outcome]:
    """Outcomes that change as cgroups are killed that hold nothing but what is left."""
    pids = {each.pid for each in rest}
    killed = [folder for folder in cgroup.owned(pids, table) if cgroup.kill(folder, audit)]
    if not killed:
        return {}
    time.sleep(_SETTLE)
    running = [each for each, outcome in found.items() if outcome.outcome == "running"]
    changed = {each: _now(each, "kill") for each in (*running, *rest)}
    return {each: outcome for each, outcome in changed.items() if outcome.outcome == "gone"}


def _now(identity: Identity, action: Action) -> Outcome:
    """What is to be said of it after all was done."""
    process = proc.read(identity.pid)
    if process is None or process.started_at != identity.started_at or process.state == "Z":
        return Outcome(identity, action, "gone", "" if action != "none" else "it had ended before")
    return Outcome(identity, action, "refused", "it is no leftover any more")


def _leading(survey: LeftoverSurvey, meant: Iterable[Identity]) -> set[Identity]:
    """Those that lead a session or a process group."""
    processes = survey.machine.processes
    return {
        each
        for each in meant
        if each.pid in processes and each.pid in (processes[each.pid].sid, processes[each.pid].pgid)
    }


def _members(survey: LeftoverSurvey, leading: set[Identity]) -> list[int]:
    """What is in a session or group whose leader was ended, and is nothing that Ray itself runs.

    Linux gives no number anew that a session or group still has, so these are what that leader started.
    """
    machine = survey.machine
    leaders = {each.pid for each in leading if _has_ended(machine.processes.get(each.pid), each)}
    return [
        process.pid
        for process in machine.processes.values()
        if (process.sid in leaders or process.pgid in leaders)
        and process.state != "Z"
        and process.pid not in machine.kinds
    ]


def _has_ended(now: Process | None, leader: Identity) -> bool:
    """Whether nobody, or the defunct leader itself, has its pid."""
    return now is None or (now.state == "Z" and now.started_at == leader.started_at)
