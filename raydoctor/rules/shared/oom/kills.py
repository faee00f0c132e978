"""Parse the reports of Ray's memory monitor, in all five forms of their text.

2.3-2.49 `where the task (…)`, 2.50-2.54 `where the lease (…)`, 2.55 one line with `;`, 2.56-2.58 with
`Considered workers`, 2.59+ `used / limit`. Sizes are GiB, which Ray rounds to two digits and labels `GB`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER, PUSHED, RAYLET
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Event

_HEAD = pattern(
    r"Memory on the node \(IP: (?P<ip>[^,]{1,100}), ID: (?P<node>[0-9a-f]{1,64})\)(?: where the (?:task|lease)"
    r"(?: \((?P<victim>.{0,1000}?), memory used=(?P<victim_gb>\d{1,20}(?:\.\d{1,20})?)GB\))? was running)? was "
    r"(?P<used>\d{1,20}(?:\.\d{1,20})?)GB(?: used)? / (?P<limit>\d{1,20}(?:\.\d{1,20})?)GB(?: limit)? \((?P<fraction>\d{1,20}(?:\.\d{1,20})?)\)"
    r"(?:, which exceeds the memory usage threshold of (?P<threshold>\d{1,20}(?:\.\d{1,20})?))?",
    re.DOTALL,
)
_VICTIM = pattern(
    r"(?P<kind>actor|task|lease) ID: (?P<id>\w+), name=(?P<name>.{0,1000}), pid=(?P<pid>\d{1,20})",
    re.DOTALL,
)
_KILLED_WORKER = pattern(r"Ray killed this worker \(ID: (?P<worker>[0-9a-f]{56})\)")
_CONSIDERED = pattern(
    r"(?P<selected>Selected to kill: )?\((?:(?P<kind>Actor|Task)(?:\(\w*\))?: job ID=\w+, lease ID=\w+, "
    r"task name=(?P<name>.{0,300}?), required resources=\{[^{}]*\}|Worker with no lease granted):?,? "
    r"pid=(?P<pid>\d{1,20}), actual memory used=(?P<gb>\d{1,20}\.\d{1,20})GB, worker ID=(?P<worker>[0-9a-f]{56})\)"
)
_EXCEEDED = pattern(
    r"Memory usage (?P<used>\d{1,20})B exceeded threshold of (?P<threshold>\d{1,20})B \((?P<percent>\d{1,20}(?:\.\d{1,20})?)% of (?P<limit>\d{1,20})B"
)
_COUNT = pattern(
    r"(?P<count>\d{1,10}) worker\(s\) were killed|Killing (?P<killing>\d{1,20}) worker\(s\)"
)
_USER = pattern(
    r"^[;\s]*(?P<pid>\d{1,20})\s+(?P<gb>\d{1,20}\.\d{1,20})\s+(?P<command>\S(?:.*\S)?)\s*$"
)
_BETWEEN_USERS = pattern(r"\n|; |, (?=\d+\t)")
"""Rows of the table: lines up to 2.54 and from 2.57, otherwise separated by `, ` (2.55) or `; ` (2.56)."""

_BODY = (
    "Memory on the node (IP: 127.0.0.1, ID: 7b7300e4fc32be8d273fd1e5045162fa94b1ca910e080bbe66e7b7c8) was 3.22GB used / "
    "4.00GB limit (0.805288)"
)

OOM_KILL = (
    Signal(
        "oom.kill",
        "worker(s), kill details: ",
        r"^Killing (?P<killed>\d+) worker\(s\), kill details: (?P<report>.*)",
        RAYLET,
        f"Killing 1 worker(s), kill details: {_BODY}",
        extent="record",
        symptom=True,
    ),
    Signal(
        "oom.kill",
        "Killing worker with task ",
        r"^Killing worker with task (?P<report>.*)",
        RAYLET,
        f"Killing worker with task Type=NORMAL_TASK\n\n{_BODY}",
        extent="record",
        symptom=True,
    ),
    Signal(
        "oom.kill_printed",
        "due to the node running low on memory.",
        r"(?:Task was killed|worker\(s\) were killed) due to the node running low on memory\.(?P<report>.*)",
        PUSHED,
        f"1 worker(s) were killed due to the node running low on memory. {_BODY}",
        extent="record",
    ),
    Signal(
        "oom.kill_printed",
        "due to the node running low on memory.",
        r"^A worker died or was killed [^\n]{0,900}? Worker exit detail: Task was killed due to the node running low on memory\.(?P<report>.*)",
        DRIVER,
        "A worker died or was killed while executing a task by an unexpected system error. Worker PID: 44 Worker exit type: SYSTEM_ERROR "
        f"Worker exit detail: Task was killed due to the node running low on memory.\n\n{_BODY.replace(' used /', ' /').replace(' limit (', ' (')}",
        extent="record",
    ),
    Signal(
        "oom.kill_printed",
        "Ray killed this worker (ID: ",
        r"^(?P<report>Memory on the node \(IP: .*?, which exceeds the memory usage threshold of [\d.]{1,9}\. Ray killed this worker \(ID: .*)",
        DRIVER,
        f"{_BODY.replace(' used /', ' /').replace(' limit (', ' (')}, which exceeds the memory usage threshold of 0.8. Ray killed this "
        f"worker (ID: {'ba84' * 14}) because it was the most recently scheduled task",
        extent="record",
    ),
)
"""The third as the driver of 2.1 logs it. The last one begins below the error's first line: an excerpt may have lost it."""
OOM_SUMMARY = Signal(
    "oom.summary",
    "killed due to memory pressure (OOM)",
    r"(?P<killed>\d{1,10}) Workers \(tasks / actors\) killed due to memory pressure \(OOM\), \d+ Workers crashed due to other "
    r"reasons at node \(ID: (?P<node>[0-9a-f]{56}), IP: (?P<ip>[^)]+)\)",
    (*RAYLET, "raylet-echo"),
    f"1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node "
    f"(ID: {'7b73' * 14}, IP: 127.0.0.1) over the last time period.",
)
HEAD = Signal(
    "oom.tail",
    "Memory on the node (IP: ",
    r"^Memory on the node \(IP: [^,\n]{1,100}, ID: [0-9a-f]{56}\) where the (?:task|lease) \((?:actor|task|lease) ID: [0-9a-f]{32,56}, "
    r"name=[^\n]{0,400}?(?:, memory used=?[\d.]{0,12}(?:GB?)?|, memory|, memo)$",
    DRIVER,
    f"Memory on the node (IP: 10.0.0.2, ID: {'7b73' * 14}) where the task (task ID: {'c8' * 24}, name=load, pid=664, memory used=0.0",
)
"""The first line of a report, if a console ends within it."""
TAIL = Signal(
    "oom.tail",
    "Refer to the documentation on how to address the out of memory issue: https",
    r"^Refer to the documentation on how to address the out of memory issue: https://docs\.ray\.io/en/\S{1,80}"
    r"/ray-oom-prevention\.html\. Consider ",
    ("raylet-echo", "worker-echo", *DRIVER),
    "Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/en/latest/ray-core/scheduling/"
    "ray-oom-prevention.html. Consider provisioning more memory on this node or reducing task parallelism.",
)
"""The advice below the table of a report (up to 2.60): an excerpt may begin below the report's first line."""
CUT_SUMMARY = Signal(
    "oom.tail",
    " Workers (tasks / actors) killed due to memory pressure",
    r"\d{1,10} Workers \(tasks / actors\) killed due to memory pressure(?: \(OOM\)(?:, (?!\d{1,10} Workers crashed due to other reasons at node "
    r"\(ID: [0-9a-f]{56}, IP: ).*)?)?$",
    ("raylet-echo", *DRIVER),
    "12 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to",
)
"""A raylet's summary within which a console ends."""
REFUSED = Signal(
    "oom.refused",
    "memory_monitor.RayOutOfMemoryError: ",
    r"^(?:ray\.)?(?:_private\.)?memory_monitor\.RayOutOfMemoryError: More than (?P<percent>\d{1,3})% of the memory on\s+node\s+(?P<name>\S{1,255})\s+is "
    r"used\s+\((?P<used>\d{1,20}(?:\.\d{1,20})?) / (?P<limit>\d{1,20}(?:\.\d{1,20})?) GB\)(?P<table>.*)",
    ("worker-echo", *DRIVER),
    "ray.memory_monitor.RayOutOfMemoryError: More than 95% of the memory on node ray-head is used (61.0 / 62.0 GB). The top 10 memory "
    "consumers are:\n\nPID\tMEM\tCOMMAND\n28442\t50.5GiB\tray::Loader.load()",
    extent="record",
)
"""Up to 2.1, workers measured the memory before each task, and refused the task."""
MONITOR_STARTED = Signal(
    "oom.monitor_started",
    "initialized with usage threshold at ",
    r"MemoryMonitor initialized with usage threshold at (?P<threshold>\d+) bytes .*?total system memory bytes: (?P<limit>\d+)",
    RAYLET,
    "ThresholdMemoryMonitor initialized with usage threshold at 24012677120 bytes (95.000000% of system memory), total "
    "system memory bytes: 25276502016, monitor interval: 250ms",
)
OFFERED = Signal(
    "raylet.offers",
    "InitialConfigResources: {",
    r"^(?:\[state-dump\] )?InitialConfigResources: \{(?P<total>[^{}]{0,8000})\}",
    ("raylet-out",),
    "[state-dump] InitialConfigResources: {node:10.0.0.2: 1, CPU: 2, memory: 1.95412e+09, object_store_memory: 8.37479e+08}",
    fold=("total",),
)
"""What a node offers to tasks: in every dump of a raylet (2.9.3 to 2.60)."""

_EPISODE = 600.0
"""Seconds without a kill after which the next one is another incident."""


_ONE_KILL = 5.0
"""Seconds within which two records with equal numbers describe one kill. Infinite retries repeat the numbers later."""


class MemoryUser(NamedTuple):
    """A process that held memory when the monitor killed workers."""

    pid: int
    gb: float
    name: str
    """Task or actor method; the command of a process that is not a worker."""
    worker: str = ""
    actor: bool = False
    killed: bool = False

    @property
    def is_worker(self) -> bool:
        """Whether this is a process that runs tasks (not a driver or daemon)."""
        return bool(self.worker) or self.name.startswith("ray::")

    @property
    def function(self) -> str:
        """The task or actor class: `ray::Trainer.fit` and `Trainer.__init__` are both `Trainer`."""
        name = self.name.removeprefix("ray::")
        if self.actor and name.endswith(".__init__"):
            # A name that the program gave the actor comes before its class: `shard_0:1:Shard.__init__`.
            name = name.removesuffix(".__init__").rpartition(":")[2]
        return name.partition(".")[0] if self.actor or "." in name else name

    @property
    def program(self) -> str:
        """The command of a process that is not a worker, without folders: `python train.py`."""
        words = (w.rpartition("/")[2] if w.startswith("/") else w for w in self.name.split())
        return " ".join(words)[:60]

    @property
    def label(self) -> str:
        """Its function as sentences name it."""
        if self.function == "IDLE":
            return "an idle worker"
        return self.function if self.actor else called(self.function)


class OomReport(NamedTuple):
    """One report of the memory monitor: what was in use, and which workers it killed."""

    event: Event
    node: str
    ip: str
    used_gb: float
    limit_gb: float
    threshold_gb: float
    victims: tuple[MemoryUser, ...]
    holders: tuple[MemoryUser, ...]
    """Top memory users, largest first, joined with the report's entry for the same worker."""
    killed: int
    others: tuple[Event, ...] = ()
    """Further records of the same kill."""


def parse(event: Event, text: str) -> OomReport | None:
    """Parse a report in any of its forms; None if the text holds none."""
    head = _HEAD.search(text)
    if not head:
        return None
    limit = float(head["limit"])
    exceeded = _EXCEEDED.search(text)
    if exceeded:
        threshold = int(exceeded["threshold"]) / 1024**3
    else:
        threshold = limit * float(head["threshold"] or 0.95)
    considered = _considered(text)
    victims = tuple(h for h in considered if h.killed) or _named_victim(head, text)
    counted = _COUNT.search(text)
    return OomReport(
        event,
        head["node"],
        head["ip"],
        float(head["used"]),
        limit,
        threshold,
        victims,
        _holders(text, (*considered, *victims)),
        int((counted["count"] or counted["killing"]) if counted else max(len(victims), 1)),
    )


def _considered(text: str) -> tuple[MemoryUser, ...]:
    """Workers that the killing policy considered; 2.55 lists only the killed ones, unmarked."""
    only_chosen = "Considered workers: [" not in text
    return tuple(
        MemoryUser(
            int(m["pid"]),
            float(m["gb"]),
            m["name"] or "ray::IDLE",
            m["worker"],
            m["kind"] == "Actor",
            bool(m["selected"]) or only_chosen,
        )
        for m in _CONSIDERED.finditer(text)
    )


def _named_victim(head: re.Match[str], text: str) -> tuple[MemoryUser, ...]:
    """Up to 2.54 the first sentence names the one victim."""
    victim = _VICTIM.search(head["victim"] or "")
    if not victim:
        return ()
    worker = _KILLED_WORKER.search(text)
    actor = victim["kind"] == "actor"
    return (
        MemoryUser(
            int(victim["pid"]),
            float(head["victim_gb"]),
            victim["name"],
            worker["worker"] if worker else "",
            actor or victim["name"].endswith(".__init__"),
            True,
        ),
    )


def _holders(text: str, known: Iterable[MemoryUser]) -> tuple[MemoryUser, ...]:
    """The top-10 table, each pid joined with the report's entry for that worker."""
    by_pid = {h.pid: h for h in known}
    _, _, table = text.partition("Top 10 memory users:")
    found = {}
    for line in _BETWEEN_USERS.split(table.partition("suggestions: ")[0].rstrip(" ,;")):
        if row := _USER.match(line):
            pid = int(row["pid"])
            worker = by_pid.get(pid)
            holder = MemoryUser(pid, float(row["gb"]), row["command"])
            found[pid] = worker._replace(gb=max(worker.gb, holder.gb)) if worker else holder
    for pid, worker in by_pid.items():
        found.setdefault(pid, worker)
    return tuple(sorted(found.values(), key=lambda h: -h.gb))


def reports(case: Case) -> list[OomReport]:
    """Every report in the capture, once: the raylet's own record first, then copies of it elsewhere."""
    found: list[OomReport] = []
    for event, text in _texts(case):
        report = parse(event, text)
        if report is None:
            continue
        same = next((n for n, known in enumerate(found) if _same(known, report)), None)
        if same is None:
            found.append(report)
        else:
            found[same] = found[same]._replace(others=(*found[same].others, event))
    return sorted(found, key=lambda r: (r.event.at is None, r.event.at or 0.0))


def _texts(case: Case) -> Iterator[tuple[Event, str]]:
    for event in case.of("oom.kill"):
        yield event, event.message
    for event in case.of("worker.exit"):
        if event["exit_type"] == "NODE_OUT_OF_MEMORY":
            yield event, event["detail"]
    for event in case.of("oom.kill_printed"):
        yield event, event.message
    for event in case.of("driver.exception"):
        if "running low on memory" in event["what"] or "OutOfMemoryError" in event["type"]:
            yield event, event["what"]


def _same(known: OomReport, other: OomReport) -> bool:
    """Whether two records describe one kill: they share a victim, or the same numbers at about the same time."""
    shared = {(h.pid, h.worker[:8]) for h in known.victims} & {
        (h.pid, h.worker[:8]) for h in other.victims
    }
    numbers = (known.used_gb, known.limit_gb) == (other.used_gb, other.limit_gb)
    both_name_victims = bool(known.victims and other.victims)
    apart = abs((known.event.at or 0.0) - (other.event.at or known.event.at or 0.0))
    near = known.event.at is None or apart <= _ONE_KILL
    return known.node == other.node and (bool(shared) if both_name_victims else numbers and near)


def episodes(found: list[OomReport]) -> Iterator[list[OomReport]]:
    """Reports of one node that follow each other within minutes."""
    by_node: dict[str, list[OomReport]] = {}
    for report in found:
        by_node.setdefault(report.node, []).append(report)
    for those in by_node.values():
        episode: list[OomReport] = []
        for report in those:
            timed = episode and report.event.at and episode[-1].event.at
            if timed and (report.event.at or 0) - (episode[-1].event.at or 0) > _EPISODE:
                yield episode
                episode = []
            episode.append(report)
        yield episode


_LOW = "killed due to the node running low on memory"
"""In the details of an exit, up to 2.1 of type SYSTEM_ERROR."""


def exits_of(case: Case, episode: list[OomReport], victims: list[MemoryUser]) -> list[WorkerExit]:
    """Recorded exits of the victims: by worker id, by pid, or as out-of-memory exits on that node at that time."""
    workers, pids = {v.worker for v in victims if v.worker}, {v.pid for v in victims}
    nodes = {r.node for r in episode}
    first, last = episode[0].event.at, episode[-1].event.at
    found = []
    for exit_ in case.exits:
        here = exit_.node in nodes or not exit_.node
        in_time = (
            exit_.at is None or first is None or last is None or first - 5 <= exit_.at <= last + 5
        )
        by_type = exit_.exit_type == "NODE_OUT_OF_MEMORY" and here and in_time
        by_pid = exit_.pid in pids and here and in_time and not exit_.worker
        by_text = _LOW in exit_.detail and here and in_time
        if exit_.worker in workers or by_type or by_pid or by_text:
            found.append(exit_)
    return found


def summaries(case: Case, episode: list[OomReport]) -> tuple[Event, ...]:
    """Ray's once-a-minute counts of those nodes."""
    nodes = {r.node for r in episode}
    return tuple(e for e in case.of("oom.summary") if e["node"] in nodes)
