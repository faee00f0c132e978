"""Folders of sessions that have ended fill the disk.

## What you see
Many `session_<date>_…` folders below `/tmp/ray`, of clusters that are long gone.

## Why
Ray keeps the folder of every session: logs, runtime environments, and what was spilled and not deleted because the session
ended by force. Nothing removes them but a restart that clears `/tmp`. At 95 % of the disk Ray
stores no more objects.

## Confirm
- `du -xsh /tmp/ray/session_2*`, and which of them live: `ls -l /tmp/ray/session_latest`, `pgrep -af raylet`.

## Fix
Keep what is still to be diagnosed (`raydoctor collect` packs it), and remove the others.

## Not this when
A process of that session runs, or something in its folder was written within the last ten minutes: another
container may use the same folder. A few old sessions with their logs do no harm.
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
from raydoctor.rules.shared.disks import Disk
from raydoctor.rules.shared.live.processes import duration, example

_GB = 1 << 30
_WORTH_TELLING = _GB
_MANY = 100
_LARGE = 20 * _GB
_FULL = 0.90
_SHARE = 0.01
"""Of a disk's capacity: less than that is not what fills it."""
_QUIET = 600.0
"""Seconds without a change. Who lives writes more often: a GCS its state every 10 s (Ray 2.60)."""


class _Stale(NamedTuple):
    event: Event
    path: str
    bytes: float
    age: float


@rule(
    tier="root",
    severity="info",
    rank=97,
    looks_for=(RAYLET_STARTED,),
)
def stale_session(case: Case) -> Iterator[Finding]:
    """At most one finding for each machine."""
    found: dict[str, list[_Stale]] = {}
    for row in live.rows(case, "sessions"):
        age = live.number(row, "age_s") or 0.0
        if not live.truth(row, "alive") and not live.truth(row, "is_this") and age > _QUIET:
            size = live.number(row, "bytes") or 0.0
            found.setdefault(row.source.node, []).append(_Stale(row, row["path"], size, age))
    for label, stale in found.items():
        disk = _disk_of(case, label, stale)
        if _is_worth_telling(stale, disk):
            yield _finding(sorted(stale, key=lambda s: (-s.bytes, s.path)), disk)


def _is_worth_telling(stale: Sequence[_Stale], disk: Disk | None) -> bool:
    return _total(stale) >= _WORTH_TELLING or len(stale) >= _MANY or _fills(stale, disk)


def _total(stale: Sequence[_Stale]) -> float:
    return sum(s.bytes for s in stale)


def _fills(stale: Sequence[_Stale], disk: Disk | None) -> bool:
    """Whether the disk is nearly full, and not of other things alone."""
    return disk is not None and disk.used > _FULL and _total(stale) > _SHARE * disk.capacity


def _disk_of(case: Case, label: str, stale: Sequence[_Stale]) -> Disk | None:
    """The disk that they lie on: sessions are kept side by side, and the running one's is known."""
    folders = {path.rpartition("/")[0] for path in (s.path for s in stale)}
    for disk in disks.disks(case):
        if disk.event.source.node == label and any(
            path.rpartition("/")[0] in folders or path in folders for path in disk.paths
        ):
            return disk
    return None


def _finding(stale: list[_Stale], disk: Disk | None) -> Finding:
    least = "at least " if any(live.truth(s.event, "truncated") for s in stale) else ""
    where = evidence.join_names(s.path.rpartition("/")[0] for s in stale)
    full = f"; the disk is {disk.used:.0%} full" if disk and _fills(stale, disk) else ""
    oldest = duration(max(s.age for s in stale))
    one = len(stale) == 1
    return Finding(
        f"{evidence.many(len(stale), 'session')} that {'has' if one else 'have'} ended {'holds' if one else 'hold'} "
        f"{least}{size(_total(stale))} below {where}, the oldest for {oldest}{full}",
        tuple(
            Link(
                s.event,
                f"{s.path}: {size(s.bytes)}, last written {duration(s.age)} before",
            )
            for s in stale[:3]
        )
        + ((Link(disk.event, f"{disk.path}: {disk.used:.0%} used"),) if full and disk else ()),
        count=len(stale),
        severity="warning" if full or _total(stale) > _LARGE else "info",
        covers=tuple(s.event for s in stale),
        remedies=(
            Remedy(
                f"Remove what nobody needs any more: the largest first"
                f"{'' if len(stale) <= 5 else f' (5 of {len(stale)} are shown)'}",
                tuple(paste.shell("rm -rf {session:path}", session=s.path) for s in stale[:5]),
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
    return example("disks", [{**row, **size, "threshold": 0.95, "node_id": ""}])


EXAMPLES: tuple[Example, ...] = (
    Example(
        "three old sessions",
        example("sessions", [_session(1, 2 * _GB), _session(2, _GB), _session(3, 4 * _GB)]),
        roots=("stale-session",),
        says=("3 sessions", "7.0 GiB", "rm -rf /tmp/ray/session_2026-10-03_"),
    ),
    Example(
        "small, but the disk is nearly full",
        {**example("sessions", [_session(1, 3 * _GB)]), **_disk(0.93)},
        roots=("disk-full", "stale-session"),
        says=("3.0 GiB", "93% full"),
    ),
    Example(
        "one that lives, one that was written to a minute ago, a small one",
        example(
            "sessions",
            [
                _session(1, 50 * _GB, alive=True),
                _session(2, 50 * _GB, age_s=60.0),
                _session(3, 5 << 20),
            ],
        ),
    ),
    Example(
        "small ones on a disk that others have filled",
        {**example("sessions", [_session(1, 5 << 20)]), **_disk(0.93)},
        roots=("disk-full",),
    ),
)
