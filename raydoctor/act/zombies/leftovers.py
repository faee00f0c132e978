"""Leftover processes of Ray: which they are, why, and which of them may be ended.

Ownership is established from inherited and open resources (`observe/processes/ownership.py`), never from a
name alone. A leftover is one of five kinds:

- `defunct`: it has ended, but its parent has not read its exit status. Only the parent can remove it.
- `orphan`: the worker or raylet that started it is gone, or its raylet is defunct.
- `stale-daemon`: a Ray daemon of a session that has no raylet and whose GCS has no other clients.
- `leaked-child`: started by a normal task that has ended; its worker still runs and is idle.
- `idle-holder`: an idle worker of a live session that keeps much memory. Shown, never ended.

Never a leftover: workers of a running raylet, drivers, daemons of a session that has a raylet or other
clients, the processes that these started, and children of actors and of busy workers.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from raydoctor.act.audit import Audit
from raydoctor.act.signals import cgroup
from raydoctor.act.signals.process import GRACE, Action, Identity, Outcome, end
from raydoctor.act.zombies import classify
from raydoctor.act.zombies.classify import Kind, LeftoverSurvey, Mark
from raydoctor.observe.machine import cgroups, holdings
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.processes.redact import command_line

KINDS: tuple[Kind, ...] = ("orphan", "stale-daemon", "leaked-child", "idle-holder", "defunct")
_SETTLE = 0.5
"""Seconds that Ray takes to end the processes of a dead worker (0.2 s measured)."""
_SETTLE_DAEMONS = 2.0
"""The same for a dead raylet: `ray start --block` checks it once a second, and ends the rest."""
_TITLE = 200
_MUCH = 0.10
"""Share of the machine's memory above which an idle worker is shown, as in the rule `leftover-process`."""
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
    """Folder of its session; empty if unknown."""
    user: str
    uid: int | None
    rss: int
    memory: int
    """Bytes that its end frees: without shared memory (Ray's object store), as far as known."""
    gpu_memory: int = 0
    ports: tuple[int, ...] = ()
    is_inherited_only: bool = False
    """As in `Mark`."""

    @property
    def pid(self) -> int:
        """Its pid."""
        return self.identity.pid


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Which leftovers to list and end."""

    session: str = ""
    """Folder or name of a session; empty: all."""
    leaked: bool = False
    """Also end `leaked-child` processes."""
    all_users: bool = False
    inherited: bool = False
    """Also end processes whose only tie to Ray is an inherited environment."""

    def means(self, session: str) -> bool:
        """Whether a session is selected."""
        return not self.session or _name(session) == _name(self.session)


def _name(session: str) -> str:
    return posixpath.basename(session.rstrip("/"))


def find(options: SweepOptions = SweepOptions(), settle: bool = True) -> list[Leftover]:
    """Leftovers on this machine, of any user; with `settle`, only those found by two snapshots.

    When a worker, a raylet or a cluster ends, its processes need a moment to end by themselves.
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
    """Start time of the youngest process on this machine."""
    return max((each.started_at for each in proc.table().values()), default=0.0)


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
                "it is idle and keeps the memory of its last task: @ray.remote(max_calls=1) would end it",
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


# ------------------------------------------------------------------ ending leftovers


class Spared(NamedTuple):
    """Why a leftover is not ended."""

    reason: str
    is_doubtful: bool = False
    """Whether it is kept only because its inherited environment is the only tie to Ray."""
    has_changed_user: bool = False
    """Whether it is kept because it runs as another user than the cluster that started it (setuid)."""


def spared(leftover: Leftover, options: SweepOptions) -> Spared | None:
    """Why it is not ended; None if it is to be ended."""
    if leftover.kind == "defunct":
        return Spared("it has ended already: only its parent can remove it")
    if leftover.kind == "idle-holder":
        return Spared("it is a live worker of a live session")
    if leftover.kind == "leaked-child" and not options.leaked:
        return Spared("its worker still runs: --leaked includes it")
    if leftover.is_inherited_only and not options.inherited:
        return Spared(
            "only its environment ties it to Ray, as with a tmux session or a server that was started "
            "from a job. --inherited includes it",
            is_doubtful=True,
        )
    reason = _spared_user(leftover.uid, options)
    if not reason:
        return None
    return Spared(reason, has_changed_user=leftover.uid != _owner(leftover.session))


def _owner(session: str) -> int | None:
    """The user of a session; None if unknown."""
    with suppress(OSError):
        return os.lstat(session).st_uid
    return None


def _spared_user(uid: int | None, options: SweepOptions) -> str:
    mine = os.geteuid()
    if uid == mine:
        return ""
    owner = "another user" if uid is None else proc.user(uid)
    if mine != 0:
        return f"it belongs to {owner}"
    return "" if options.all_users else f"it belongs to {owner}: --all-users includes it"


def clear(
    plan: Sequence[Leftover],
    options: SweepOptions,
    grace: float = GRACE,
    *,
    audit: Audit,
    since: float = 0.0,
) -> dict[Identity, Outcome]:
    """End the planned processes that are still leftovers, and processes that they start meanwhile.

    Time may have passed since the plan: a process that is not a leftover any more is refused. New leftovers
    are ended if the plan has their kind and session and they were started after it (`since`: `youngest` at
    that time). Older processes that were not in the plan are never ended.
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
        # A snapshot takes some milliseconds: a process that forks and ends meanwhile may be missed once.
        return look() or look()

    targets = [each for each in meant if still.get(each) == meant[each].kind]
    outcomes = end(targets, grace, more=more, all_users=options.all_users, audit=audit)
    found = {each.identity: each for each in outcomes}
    if any(each.outcome == "running" for each in outcomes):
        table = proc.table()  # first: younger processes were started by those found next
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
    """Kill cgroups that contain only remaining processes; the outcomes that change."""
    pids = {each.pid for each in rest}
    killed = [folder for folder in cgroup.owned(pids, table) if cgroup.kill(folder, audit)]
    if not killed:
        return {}
    time.sleep(_SETTLE)
    running = [each for each, outcome in found.items() if outcome.outcome == "running"]
    changed = {each: _now(each, "kill") for each in (*running, *rest)}
    return {each: outcome for each, outcome in changed.items() if outcome.outcome == "gone"}


def _now(identity: Identity, action: Action) -> Outcome:
    """Its final outcome."""
    process = proc.read(identity.pid)
    if process is None or process.started_at != identity.started_at or process.state == "Z":
        return Outcome(identity, action, "gone", "" if action != "none" else "it had ended before")
    return Outcome(identity, action, "refused", "it is not a leftover any more")


def _leading(survey: LeftoverSurvey, meant: Iterable[Identity]) -> set[Identity]:
    """Those that lead a session or a process group."""
    processes = survey.machine.processes
    return {
        each
        for each in meant
        if each.pid in processes and each.pid in (processes[each.pid].sid, processes[each.pid].pgid)
    }


def _members(survey: LeftoverSurvey, leading: set[Identity]) -> list[int]:
    """Processes in a session or group whose ended leader is given, without processes of Ray itself.

    Linux does not reuse the number of a session or group with members, so the leader started these.
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
    """Whether its pid is unused, or belongs to the defunct leader itself."""
    return now is None or (now.state == "Z" and now.started_at == leader.started_at)
