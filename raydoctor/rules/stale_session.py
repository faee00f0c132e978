"""Folders of Ray sessions that have ended fill the disk.

## What you see
`/tmp/ray` contains many `session_<date>_…` folders of clusters that ended long ago.

## Why
Ray keeps the folder of every session: logs, runtime environments, and spilled objects that were not deleted because the
session was killed. Ray never removes these folders. When the disk is 95% full, Ray stores no more objects.

## Confirm
- `du -xsh /tmp/ray/session_2*` shows their sizes.
- `pgrep -af 'raylet|gcs_server'` shows which sessions run. On the host, it also shows those of containers.
  `/tmp/ray/session_latest` is only the newest session.

## Fix
Let raydoctor remove the ended sessions. It lists them, asks, and keeps every folder that a process uses or that has
changed within the last ten minutes:

    raydoctor zombies --clean

To diagnose a session later, copy it first. To remove a single one by hand, make sure that no process names it:

    tar czf session.tar.gz -C /tmp/ray session_DATE_TIME_PID
    pgrep -af session_DATE_TIME_PID || rm -r /tmp/ray/session_DATE_TIME_PID

## Not this when
- a process of that session is running, or a file in its folder changed within the last ten minutes: another container
  may use the same folder.
- the old sessions are few and contain only logs: they do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import RAYLET_STARTED
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.text import size
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import disks
from raydoctor.rules.shared.disks import RayDisk
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live.processes import duration

_GB = 1 << 30
_RELEVANT = _GB
_MANY = 100
_LARGE = 20 * _GB
_FULL = 0.90
_SHARE = 0.01
"""Share of a disk's capacity below which old sessions are not the reason that it is full."""
_QUIET = 600.0
"""Seconds without a change. A running session writes more often: the GCS logs its state every 10 s (Ray 2.60)."""


class _Stale(NamedTuple):
    event: Event
    path: str
    bytes: float
    age: float


@rule(
    tier="root",
    severity="info",
    rank=97,
    explains=(),
    looks_for=(RAYLET_STARTED,),
)
def stale_session(case: Case) -> Iterator[Finding]:
    """At most one finding per machine."""
    found: dict[str, list[_Stale]] = {}
    for row in live.rows(case, "sessions"):
        age = live.number(row, "age_s") or 0.0
        if not live.truth(row, "alive") and not live.truth(row, "is_this") and age > _QUIET:
            size = live.number(row, "bytes") or 0.0
            found.setdefault(row.source.node, []).append(_Stale(row, row["path"], size, age))
    for label, stale in found.items():
        disk = _disk_of(case, label, stale)
        if _is_relevant(stale, disk):
            yield _finding(sorted(stale, key=lambda s: (-s.bytes, s.path)), disk)


def _is_relevant(stale: Sequence[_Stale], disk: RayDisk | None) -> bool:
    return _total(stale) >= _RELEVANT or len(stale) >= _MANY or _fills(stale, disk)


def _total(stale: Sequence[_Stale]) -> float:
    return sum(s.bytes for s in stale)


def _fills(stale: Sequence[_Stale], disk: RayDisk | None) -> bool:
    """Whether the disk is nearly full, and old sessions hold a relevant share of it."""
    return disk is not None and disk.used > _FULL and _total(stale) > _SHARE * disk.capacity


def _disk_of(case: Case, label: str, stale: Sequence[_Stale]) -> RayDisk | None:
    """The disk with these folders: all sessions share a parent folder, and the running session's disk is known."""
    folders = {path.rpartition("/")[0] for path in (s.path for s in stale)}
    for disk in disks.disks(case):
        if disk.event.source.node == label and any(
            path.rpartition("/")[0] in folders or path in folders for path in disk.paths
        ):
            return disk
    return None


def _finding(stale: list[_Stale], disk: RayDisk | None) -> Finding:
    least = "at least " if any(live.truth(s.event, "truncated") for s in stale) else ""
    where = evidence.join_names(s.path.rpartition("/")[0] for s in stale)
    full = f", and the disk is {disk.used:.0%} full" if disk and _fills(stale, disk) else ""
    oldest = duration(max(s.age for s in stale))
    one = len(stale) == 1
    return Finding(
        f"{evidence.many(len(stale), 'ended session')} {'holds' if one else 'hold'} "
        f"{least}{size(_total(stale))} in {where}, {'unchanged' if one else 'the oldest of them unchanged'} for {oldest} by file times{full}",
        tuple(
            Link(
                s.event,
                f"{s.path} holds {size(s.bytes)}, last written {duration(s.age)} before this capture",
            )
            for s in stale[:3]
        )
        + ((Link(disk.event, f"{disk.path}: {disk.used:.0%} used"),) if full and disk else ()),
        count=len(stale),
        severity="warning" if full or _total(stale) > _LARGE else "info",
        covers=tuple(s.event for s in stale),
        remedies=(
            Remedy(
                "Remove ended sessions: raydoctor lists them, asks, and keeps what a process uses",
                ("raydoctor zombies --clean   # on the machine that holds them",),
                risk="destructive",
            ),
            Remedy(
                f"Or remove only those that you choose{'' if len(stale) <= 5 else f' (the 5 largest of {len(stale)})'}",
                tuple(
                    paste.shell("rm -rf {session:path}   # with its logs", session=s.path)
                    for s in stale[:5]
                ),
                risk="destructive",
            ),
        ),
    )


# ------------------------------------------------------------------ examples


def _session(number: int, size: int, **more: object) -> dict[str, Any]:
    row = {"path": f"/tmp/ray/session_2026-10-0{number}_10-00-00_000000_{number}", "bytes": size}
    return {**row, "files": 900, "age_s": 86400.0 * 30, "alive": False, "truncated": False, **more}


def _disk(used: float) -> dict[str, str]:
    row = {
        "path": "/tmp/ray/session_2026-11-21_x",
        "use": "session",
        "mount": "/",
        "device": "sda1",
    }
    size = {"capacity": 200 * _GB, "free": int(200 * _GB * (1 - used)), "used_fraction": used}
    return sample.tables(disks=[{**row, **size, "threshold": 0.95, "node_id": ""}])


EXAMPLES: tuple[Example, ...] = (
    Example(
        "three old sessions",
        sample.tables(sessions=[_session(1, 2 * _GB), _session(2, _GB), _session(3, 4 * _GB)]),
        says=("3 ended sessions", "7.0 GiB", "rm -rf /tmp/ray/session_2026-10-03_"),
    ),
    Example(
        "a small session on a disk that is nearly full",
        {**sample.tables(sessions=[_session(1, 3 * _GB)]), **_disk(0.93)},
        roots=("disk-full", "stale-session"),
        says=("3.0 GiB", "93% full"),
        severity="warning",
    ),
    Example(
        "a running session, a session written to a minute ago, and a small one",
        sample.tables(
            sessions=[
                _session(1, 50 * _GB, alive=True),
                _session(2, 50 * _GB, age_s=60.0),
                _session(3, 5 << 20),
            ]
        ),
    ),
    Example(
        "a small session on a disk that is full of other files",
        {**sample.tables(sessions=[_session(1, 5 << 20)]), **_disk(0.93)},
        roots=("disk-full",),
    ),
)
