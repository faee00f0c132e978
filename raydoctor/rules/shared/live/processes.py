"""Processes of a machine in a live collection (tables `processes`, `daemons`, `gpu-processes`, `memory`).

The collector established on the machine which cluster a process belongs to and which process it outlived. This module
joins the rows of one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.text import size
from raydoctor.model.values import Event, Remedy
from raydoctor.rules.shared.live import examples as sample

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_PROGRAM = 40
"""Letters of a command in a headline."""


class GpuShare(NamedTuple):
    """GPU memory that a process holds."""

    event: Event
    gpu: str
    bytes: float

    @property
    def summary(self) -> str:
        """`12.0 GiB of GPU 0`."""
        return f"{size(self.bytes)} of GPU {self.gpu}"


class RayProcess(NamedTuple):
    """One row of `processes`."""

    event: Event
    pid: int
    ppid: int
    kind: str
    title: str
    outlived: str
    memory: float
    """Bytes of its own, without memory shared with other processes."""
    gpus: tuple[GpuShare, ...]

    @property
    def is_idle(self) -> bool:
        """Whether it is an idle worker."""
        return self.kind == "worker" and self.title.startswith("ray::IDLE")

    @property
    def named(self) -> str:
        """`pid 812 (sleep 3001)`."""
        return f"pid {self.pid} ({self.title[:60]}{'…' if len(self.title) > 60 else ''})"

    @property
    def program(self) -> str:
        """`python -m http.server 8000`: its command without the folder of the program, cut after a word."""
        path, _, arguments = self.title.partition(" ")
        whole = f"{path.rpartition('/')[2]} {arguments}".strip()
        if len(whole) <= _PROGRAM:
            return whole
        return f"{whole[:_PROGRAM].rpartition(' ')[0] or whole[:_PROGRAM]} …"

    @property
    def age(self) -> str:
        """How long it has been running."""
        begun = live.number(self.event, "started_at")
        return "" if begun is None else duration((self.event.at or begun) - begun)

    @property
    def gpu_bytes(self) -> float:
        """Bytes on all GPUs together."""
        return sum(share.bytes for share in self.gpus)


def processes(case: Case) -> dict[str, list[RayProcess]]:
    """Label of the collected node -> its running processes, by pid."""
    shares: dict[tuple[str, str, str], list[GpuShare]] = {}
    for row in live.rows(case, "gpu-processes"):
        share = GpuShare(row, row["gpu"], live.number(row, "memory") or 0.0)
        # In a container nvidia-smi may print the host's pids, so the title must be equal as well.
        shares.setdefault((row.source.node, row["pid"], row["title"]), []).append(share)
    found: dict[str, list[RayProcess]] = {}
    for row in live.rows(case, "processes"):
        if row["state"] != "Z":
            held = shares.get((row.source.node, row["pid"], row["title"]), ())
            found.setdefault(row.source.node, []).append(_process(row, held))
    return {label: sorted(those, key=lambda p: p.pid) for label, those in found.items()}


def _process(row: Event, gpus: Iterable[GpuShare]) -> RayProcess:
    private = live.number(row, "private")
    return RayProcess(
        row,
        live.whole(row, "pid") or 0,
        live.whole(row, "ppid") or 0,
        row["kind"],
        row["title"],
        row["outlived"],
        (live.number(row, "rss") or 0.0) if private is None else private,
        tuple(gpus),
    )


def machine_memory(case: Case, label: str) -> float:
    """Bytes that the processes of a machine may use together: its cgroup's limit or its memory; 0 if unknown."""
    limits = [
        limit
        for row in live.rows(case, "memory")
        if row.source.node == label and (limit := live.number(row, "limit"))
    ]
    return min(limits, default=0.0)


def place(case: Case, those: Iterable[RayProcess]) -> str:
    """`node 10.0.0.2`: the machine of these processes, for the lines that concern them."""
    ips = (case.ledger.node_ips.get(p.event["node_id"], "") for p in those)
    ip = next(filter(None, ips), "")
    return f"node {ip}" if ip else "the machine of this capture"


def end(title: str, pids: Sequence[int], place: str, *, leaked: bool = False) -> Remedy:
    """End leftovers. The command asks, so it is the last of its step: it would read the next line as the answer."""
    command = "raydoctor zombies --kill --leaked" if leaked else "raydoctor zombies --kill"
    return Remedy(
        f"{title}. raydoctor shows its plan, asks, and ends no process whose pid was reused",
        (
            paste.shell("{command}   # on {place}", command=paste.shell(command), place=place),
            paste.shell("# without raydoctor: kill {pids:pid}", pids=pids[:20]),
        ),
        risk="destructive",
    )


class Defunct(NamedTuple):
    """A raylet that has exited but is still in the process table, and the workers that treat it as alive."""

    event: Event
    pid: int
    workers: tuple[RayProcess, ...]
    others: tuple[RayProcess, ...]
    """Processes that these workers started."""


def defunct_raylets(case: Case) -> list[Defunct]:
    """Defunct raylets whose workers keep running; other clusters' are left out if this cluster is known."""
    found = []
    here = processes(case)
    daemons = live.rows(case, "daemons")
    is_known = any(live.truth(row, "is_this") for row in daemons)
    for row in daemons:
        is_others = is_known and bool(row["session_dir"]) and not live.truth(row, "is_this")
        if row["kind"] == "raylet" and row["state"] == "Z" and not is_others:
            its = [
                p
                for p in here.get(row.source.node, ())
                if p.outlived == "raylet" and p.event["raylet_pid"] == row["pid"]
            ]
            workers = tuple(p for p in its if p.kind == "worker")
            others = tuple(p for p in its if p.kind != "worker")
            if workers:
                found.append(Defunct(row, live.whole(row, "pid") or 0, workers, others))
    return found


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `5 h`, `3 days`."""
    for unit, length in (("days", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


# ------------------------------------------------------------------ for examples

_HOST = {"kind": "host", "limit": 16 << 30, "used": 4 << 30}
SESSION = "/tmp/ray/session_2026-11-21_13-00-00_000000_1"


def machine(*rows: Mapping[str, Any]) -> dict[str, str]:
    """A machine with 16 GiB of memory and these processes."""
    return sample.tables(processes=rows, memory=[_HOST])


def process(pid: int, kind: str, title: str, **more: object) -> dict[str, Any]:
    """A row of `processes`: a process of 10 MiB that has been running for half an hour."""
    return {
        "pid": pid,
        "started_at": sample.AT - 1800,
        "ppid": 1,
        "state": "S",
        "user": "ray",
        "rss": 10 << 20,
        "private": 10 << 20,
        "title": title,
        "kind": kind,
        "session_dir": SESSION,
        "is_this": True,
        "parent_kind": "init",
        "outlived": "",
        **more,
    }
