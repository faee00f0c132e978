"""The kernel log's out-of-memory records: the killed processes, their memory, and the limit.

One kill is a block of lines: the process that requested memory, `memory: usage …kB, limit …kB` (cgroups only), a
table of tasks, `oom-kill:constraint=…` and `… Killed process <pid> (<comm>)`. The forms are those of Linux 4.x to 6.18;
the kernel cuts `comm` to 15 characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.case.rule import Signal
from raydoctor.case.signals import GCS
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Gap, Source

_KB = 1024
_PAGE = 4 * _KB
"""The table counts pages of 4 KiB, unless the victim's own line implies another size (arm64)."""
COMM = 15
"""Characters that the kernel keeps of a process's name."""

KILLED = Signal(
    "kernel.oom_kill",
    "Killed process ",
    r"(?:(?P<scope>Memory cgroup out of memory|Out of memory)[^:]{0,100}:? ?)?Killed process (?P<victim>\d+),? (?:UID \d+, )?"
    r"\((?P<comm>.{0,64}?)\)(?:,? total-vm:(?P<vm>\d+)kB, anon-rss:(?P<anon>\d+)kB, file-rss:(?P<file>\d+)kB"
    r"(?:, shmem-rss:(?P<shmem>\d+)kB)?|,|$| )",
    ("kernel",),
    "Memory cgroup out of memory: Killed process 22082 (ray::load_embed) total-vm:4596960kB, anon-rss:2477592kB, "
    "file-rss:42684kB, shmem-rss:0kB, UID:0 pgtables:5168kB oom_score_adj:1000",
)
LIMIT = Signal(
    "kernel.oom_limit",
    "kB, limit ",
    r"(?:^|\s)memory: usage (?P<usage>\d+)kB, limit (?P<limit>\d+)kB",
    ("kernel",),
    "memory: usage 3145728kB, limit 3145728kB, failcnt 415",
)
CONSTRAINT = Signal(
    "kernel.oom_constraint",
    "oom-kill:constraint=",
    r"oom-kill:constraint=(?P<constraint>\w+),.{0,1000}?(?:oom_memcg=(?P<memcg>[^,]+),)?(?:task_memcg=(?P<task_memcg>[^,]+),)?"
    r"task=(?P<comm>.{0,64}?),pid=(?P<victim>\d+)",
    ("kernel",),
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/pod1,task_memcg=/pod1,"
    "task=ray::load_embed,pid=22082,uid=0",
)
RAY_TASK = Signal(
    "kernel.oom_task",
    "ray::",
    r"^\[ *(?P<task_pid>\d+)\] +\d+ +\d+ +\d+ +(?P<pages>\d+) .*?(?P<comm>ray::.*)$",
    ("kernel",),
    "[  22082]     0 22082  1149240   630069   619398    10671         0  5292032        0          1000 ray::load_embed",
)
OOM_SIGNALS = (KILLED, LIMIT, CONSTRAINT, RAY_TASK)


class Kill(NamedTuple):
    """One process that the kernel's OOM killer ended."""

    event: Event
    pid: int
    comm: str
    held: int
    """Bytes it had in memory; 0 if unknown."""
    limit: int = 0
    """Bytes that its cgroup may use; 0 if the whole machine ran out, or unknown."""
    memcg: str = ""
    in_cgroup: bool = False
    evidence: tuple[Event, ...] = ()
    """The block's lines with limit and constraint."""
    workers: tuple[tuple[str, int], ...] = ()
    """Ray's processes in the table: name, bytes."""

    def alike(self) -> list[int]:
        """Sizes of the Ray processes that bear the victim's name."""
        return [size for name, size in self.workers if name == self.comm]


def kills(case: Case) -> Iterator[Kill]:
    """Every kill on record, in the order of each log."""
    begun: dict[str, int] = {}
    for event in sorted(case.of("kernel.oom_kill"), key=lambda e: (e.source.path, e.line)):
        path = event.source.path
        block = _block(case, event, begun.get(path, 0))
        begun[path] = event.line
        yield _kill(event, block)


def _block(case: Case, event: Event, after: int) -> list[Event]:
    kinds = ("kernel.oom_limit", "kernel.oom_constraint", "kernel.oom_task")
    found = [
        e for e in case.of(*kinds) if e.source == event.source and after < e.line <= event.line
    ]
    return sorted(found, key=lambda e: e.line)


def _kill(event: Event, block: list[Event]) -> Kill:
    limits = [e for e in block if e.kind == "kernel.oom_limit"]
    constraints = [e for e in block if e.kind == "kernel.oom_constraint"]
    held = sum(int(event[part] or 0) for part in ("anon", "file", "shmem")) * _KB
    memcg = constraints[-1]["memcg"] if constraints else ""
    in_cgroup = event["scope"].startswith("Memory cgroup") or bool(memcg)
    return Kill(
        event=event,
        pid=int(event["victim"]),
        comm=event["comm"],
        held=held,
        limit=int(limits[-1]["limit"]) * _KB if limits and in_cgroup else 0,
        memcg=memcg,
        in_cgroup=in_cgroup,
        evidence=(*limits[-1:], *constraints[-1:]),
        workers=tuple(_table(block, int(event["victim"]), held)),
    )


def _table(block: list[Event], victim: int, held: int) -> Iterator[tuple[str, int]]:
    tasks = [e for e in block if e.kind == "kernel.oom_task"]
    own = next((int(e["pages"]) for e in tasks if int(e["task_pid"]) == victim), 0)
    page = _PAGE
    if own and held:
        page = min((4 * _KB, 16 * _KB, 64 * _KB), key=lambda size: abs(size * own - held))
    for task in tasks:
        yield task["comm"].strip(), int(task["pages"]) * page


def is_named(comm: str, name: str) -> bool:
    """Whether a worker that runs `name` (a function, or an actor's class) would have this `comm`."""
    title = f"ray::{name}"
    return comm == title[:COMM] or re.match(rf"{re.escape(title)}\.", comm) is not None


def is_program(comm: str) -> bool:
    """Whether a Python, Java or C++ process of Ray may have this `comm`.

    A pid alone proves nothing: in a container Ray's pids differ from the kernel's, whose pid 379 is another process.
    `ray::` names are Ray's; other frameworks in its workers use similar names (`VLLM::EngineCore`).
    """
    return "::" in comm or comm.startswith(("python", "pypy", "java", "default_worker"))


def nodes_beside(case: Case, event: Event) -> set[str]:
    """Nodes whose raylet's log is in the same folder as this event's file."""
    labels = {source.path: source.node for source in case.sources}
    files = case.ledger.raylet_files.items()
    return {node for path, node in files if labels.get(path) == event.source.node}


def is_beside_others(case: Case, event: Event, own: Iterable[Source]) -> bool:
    """Whether this event's file lies with the logs of another node than these sources, which are of one machine."""
    labels = {source.node for source in own}
    return bool(labels) and event.source.node not in labels and bool(nodes_beside(case, event))


def raylet_logs(case: Case, nodes: Iterable[str]) -> list[Source]:
    """The logs of the raylets of these nodes."""
    wanted = set(nodes)
    return [s for s in case.sources if case.ledger.raylet_files.get(s.path) in wanted]


def gcs_logs(case: Case) -> list[Source]:
    """The logs of the GCS, which runs on the head."""
    return [s for s in case.sources if s.role in GCS and not s.is_excerpt]


def driver_logs(case: Case, pid: int | None) -> list[Source]:
    """The core log of a driver, which is on its machine."""
    return [s for s in case.sources if s.role == "core-driver" and pid and s.pid == pid]


def gaps(case: Case, machine: str, why: str, own: Iterable[Source] = ()) -> tuple[Gap, ...]:
    """The kernel log of a machine as missing evidence, unless the capture has it.

    `own` are other logs of this machine. A kernel log in a folder without a raylet's log may be from any machine.
    """
    own = list(own)
    folders = {source.node for source in own}
    of_raylets = {s.node for s in case.sources if s.role.startswith("raylet")}
    logs = {s.node for s in case.sources if s.role == "kernel" and not s.is_excerpt}
    fitting = logs & folders or logs - of_raylets if folders else logs
    if fitting:
        return ()
    # A log in an export of a log store, `export.json:…`, has no folder.
    paths = [s.path for s in own if ":" not in s.path] if len(of_raylets) > 1 else []
    folder = (
        min(paths, key=lambda path: (path.count("/"), path)).rpartition("/")[0] if paths else ""
    )
    hint = how_to_save(case, machine, folder)
    return (Gap(f"kernel log of {machine}", why, hint, about="kernel"),)


def how_to_save(case: Case, machine: str, folder: str = "") -> str:
    """The hint of a gap: where to get the log, and where to put it; `folder`: that of the machine's logs.

    The folder, not one of its files: reports show paths of files without the folders that are always there.
    """
    put: str
    if case.is_packed and folder:
        put = paste.text(
            "Unpack the archive, put dmesg.txt into its folder {folder}, and diagnose the unpacked folder.",
            folder=folder,
        )
    elif case.is_packed:
        put = "Unpack the archive, put dmesg.txt into the folder with the logs, and diagnose that folder."
    elif folder:
        put = paste.text(
            "Put dmesg.txt into {folder}, and diagnose the whole capture again.", folder=folder
        )
    else:
        put = "Put dmesg.txt into the folder with the logs, and diagnose that folder."
    machine = machine.replace(" -", " _")  # the name of a node must not become an option
    return f"{paste.text('On {machine}, save the output of `sudo dmesg -T` in dmesg.txt.', machine=machine)} {put}"


def outlived(case: Case, kill: Kill, kind: str, pid: int | None = None) -> bool:
    """Whether the live tables show that this cluster's process of that kind was running before the kill and still is.

    `kind` is a daemon's (table `daemons`) or `driver` (table `processes`), on the machine of the kernel log.
    """
    for row in live.rows(case, "processes" if kind == "driver" else "daemons"):
        here = live.truth(row, "is_this") and row.source.node == kill.event.source.node
        if not here or row["kind"] != kind or row["state"] == "Z" or pid not in (None, row.pid):
            continue
        started = live.number(row, "started_at")
        if started is not None and kill.event.at is not None and started <= kill.event.at:
            return True
    return False


_STAMP = pattern(r"\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_AROUND = timedelta(minutes=10)


def journal_span(case: Case, events: Iterable[Event]) -> dict[str, str]:
    """`since` and `until` for journalctl: around the first of these records.

    In UTC, whatever the zone of the node is; in the log's own time if its zone is unknown.
    """
    events = list(events)
    at = next((e.at for e in events if e.at is not None), None) if case.has_zone else None
    moment, zone = _utc(at), " UTC"
    if moment is None:
        moment, zone = next(filter(None, map(_local_time, events)), None), ""
    if moment is None:
        return {"since": "1 hour ago", "until": "now"}
    return {
        "since": f"{moment - _AROUND:%Y-%m-%d %H:%M}{zone}",
        "until": f"{moment + _AROUND:%Y-%m-%d %H:%M}{zone}",
    }


def _utc(at: float | None) -> datetime | None:
    try:
        return None if at is None else datetime.fromtimestamp(at, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None


def _local_time(event: Event) -> datetime | None:
    stamp = _STAMP.match(event.text)
    try:
        return datetime.fromisoformat(stamp["at"]) if stamp else None
    except ValueError:
        return None
