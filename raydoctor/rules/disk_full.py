"""The disk below Ray's session or spill directory is full, so objects cannot be stored.

## What you see
`ray.exceptions.OutOfDiskError: Local disk is full`, and every ten seconds `… is over 95% full, available
space: …; capacity: …. Object creation will fail if spilling is required.`

## Why
An object that does not fit into the object store makes Ray spill others to disk. Ray refuses to once
the file system is over a threshold (95 % by default), because a disk that is really full takes the
node down. It looks at the file system's use, not at Ray's: old sessions, logs, checkpoints and other
people's files count; so do five percent of a very large disk that are free.

## Confirm
- `df -h <the directory in the headline>` on that node.
- `du -xsh /tmp/ray/session_* | sort -h`: sessions that nobody uses any more.
- `ray memory --stats-only`: what the object store holds and has spilled.

## Fix
Free space (old sessions first), or let Ray write to a larger disk: `--temp-dir` moves everything,
`--object-spilling-directory` (Ray 2.46 and later) the spilled objects alone. Where much space is free
in absolute terms, raise `RAY_local_fs_capacity_threshold`. Keep fewer objects alive at once.

## Not this when
Ray reports `Spilled … MiB` and the disk has room (`spill-heavy`), or the file system of the session was
never over the threshold and spilling is switched off (`object-store-full`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.model import Entity, Event, Finding, Link, Remedy, Subject
from raydoctor.rule import Example, rule
from raydoctor.rules import _evidence as evidence
from raydoctor.rules import _store as store
from raydoctor.signals import RAY_EXCEPTION

_DOC = "https://docs.ray.io/en/latest/ray-core/objects/object-spilling.html"
_DEFAULT_PERCENT = 95.0
_ROOMY = 20 * evidence.GB
"""Free space from which the threshold, not the disk, is what to change."""

_SESSION = "/tmp/ray/session_2026-11-21_07-50-14_566733_12"
_OVER = (
    f"{_SESSION} is over 95% full, available space: 9.2337 GB; capacity: 251.972 GB. "
    "Object creation will fail if spilling is required."
)
_OVER_IN_BYTES = (
    f"{_SESSION} is over 95% full, available space: 9914566912; capacity: 270553174016. "
    "Object creation will fail if spilling is required."
)
_ERROR = (
    "ray.exceptions.OutOfDiskError: Local disk is full\nThe object cannot be created because the local object store is full and "
    "the local disk's utilization is over capacity (95% by default).Tip: Use `df` on this node to check disk usage and `ray "
    "memory` to check object store memory usage.\n"
)


def _raylet(second: int, level: str, text: str) -> str:
    return f"[2026-11-21 07:50:{second:02d},494 {level} 290 300] (raylet) file.cc:116: {text}\n"


_FAILED = _raylet(34, "I", store.OUT_OF_DISK.sample)


@rule(
    tier="root",
    severity="error",
    rank=65,
    looks_for=(*store.DISK_OVER, store.OUT_OF_DISK, *store.FALLBACK_FAILED, store.SPILLED, RAY_EXCEPTION),
    examples=(
        Example(
            "the disk is over the threshold and a put fails",
            {
                "logs/raylet.out": _raylet(17, "E", _OVER) + _raylet(27, "E", _OVER) + _FAILED,
                "logs/raylet.err": _raylet(17, "E", _OVER) + _raylet(27, "E", _OVER),
                "logs/gcs_server.out": "Ray cluster metadata ray_version=2.60.0 ray_commit=b7f4259\n",
                "driver.log": f"(raylet) {_raylet(27, 'E', _OVER)}{_ERROR}",
            },
            roots=("disk-full",),
            says=("96.3% full", "9.2 GB of 252 GB free", "1 object", "--object-spilling-directory"),
        ),
        Example(
            "Ray 2.9 writes bytes, and nothing failed yet",
            {
                "logs/raylet.out": _raylet(17, "E", _OVER_IN_BYTES) + _raylet(27, "E", _OVER_IN_BYTES),
                "logs/gcs_server.out": "Ray cluster metadata ray_version=2.9.3 ray_commit=b7f4259\n",
            },
            roots=("disk-full",),
            says=("96.3% full", "9.2 GB of 252 GB free", "object_spilling_config"),
        ),
        Example(
            "only the driver's output is left",
            {"driver.log": f"(raylet, ip=10.0.0.3) {_raylet(27, 'E', _OVER)}{_ERROR}"},
            roots=("disk-full",),
            says=("9.2 GB of 252 GB free",),
        ),
        Example(
            "a task that checks a disk itself, and a Ray that talks of spilling, are no full disk",
            {
                "logs/raylet.out": _raylet(17, "I", "Plasma store at capacity\nCurrent usage: 0.1 / 0.2 GB"),
                "logs/gcs_server.out": "",
                "driver.log": f"(check pid=12) {_OVER}\n(check pid=12) ray.exceptions.OutOfDiskError is what we test for\n",
            },
        ),
    ),
)  # fmt: skip
def disk_full(case: Case) -> Iterator[Finding]:
    """One finding per node: its file system over the threshold, and what failed for it."""
    over = store.by_node(case, case.of("disk.over_threshold"))
    failed = store.by_node(case, case.of("object.out_of_disk"))
    errors = store.exceptions(case, "OutOfDiskError")
    for node, told in over.items():
        yield _finding(case, node, told, failed.get(node, []), errors)
        errors = []
    if errors and not over and not _store_overflowed(case):
        yield _bare(errors)


def _store_overflowed(case: Case) -> bool:
    """Whether the raylets' words make this the store's own overflow (`object-store-full`), or `spill-failed`."""
    return bool(case.of("store.fallback_failed", "object.out_of_disk", "spill.failed"))


class _Disk(NamedTuple):
    """What the file-system monitor said, in bytes."""

    directory: str
    percent: float
    free: float
    capacity: float

    @property
    def used_percent(self) -> float:
        return 100 * (1 - self.free / self.capacity) if self.capacity else 100.0


def _disk(event: Event) -> _Disk:
    unit = evidence.GB if event["gb"] else 1
    return _Disk(
        event["dir"],
        float(event["percent"] or _DEFAULT_PERCENT),
        float(event["free"] or 0) * unit,
        float(event["capacity"] or 0) * unit,
    )


def _finding(
    case: Case, node: str, told: list[Event], failed: list[Event], errors: list[Event]
) -> Finding:
    own = store.own_log_first(told)
    before = [e for e in own if failed and e.at and failed[0].at and e.at <= failed[0].at]
    shown = (before or own)[-1]
    disk = _disk(shown)
    count = evidence.total(failed) or evidence.total(errors)
    spilled = _spilled(case, node)
    links = [Link(shown, f"{_room(disk)}: over the threshold of {disk.percent:g}%")]
    if failed:
        links.append(Link(failed[0], f"an object of {failed[0]['mb']} MB cannot be stored"))
    links += [Link(e, f"the driver got {store.raised(e)}") for e in errors[:1]]
    return Finding(
        _headline(disk, store.where(case, node), count, spilled),
        tuple(links),
        explains=(
            Entity("disk", node or disk.directory),
            Entity("spilling", node),
            *store.failed_objects(failed),
        ),
        caused_by=(Entity("arguments", "large"),),
        subjects=(Subject("node", node, node=node),) if node else (),
        count=count or 1,
        severity="error" if count else "warning",
        remedies=_remedies(disk),
        covers=(*told, *failed, *errors, *case.of("store.fallback_failed")),
    )


def _headline(disk: _Disk, where: str, count: int, spilled: int) -> str:
    failed = (
        f"{evidence.many(count, 'object')} could not be stored"
        if count
        else "the next object that needs spilling will fail"
    )
    by_ray = f", {evidence.size(spilled)} of it spilled by Ray" if spilled >= evidence.GB else ""
    return (
        f"The disk of {disk.directory}{where} is {_room(disk)}{by_ray}, over Ray's threshold of "
        f"{disk.percent:g}%: {failed}"
    )


def _room(disk: _Disk) -> str:
    """`96.3% full (9.2 GB of 252 GB free)`."""
    if not disk.capacity:
        return "without any capacity"
    free, capacity = evidence.size(disk.free), evidence.size(disk.capacity)
    return f"{disk.used_percent:.1f}% full ({free} of {capacity} free)"


def _spilled(case: Case, node: str) -> int:
    """What Ray itself has on that disk: as of its last state, else all that it ever spilled."""
    now = store.by_node(case, case.of("debug.state")).get(node, [])
    return (
        int(now[-1]["num_bytes_currently_spilled"] or 0) if now else store.spilled_bytes(case, node)
    )


def _bare(errors: list[Event]) -> Finding:
    """Only the exception is left: it says that store and disk are full, not which disk."""
    count = evidence.total(errors)
    return Finding(
        f"The object store and the disk behind it are full: {evidence.many(count, 'OutOfDiskError')} in the driver",
        (Link(errors[0], f"the driver got {store.raised(errors[0])}"),),
        explains=(Entity("disk", ""), Entity("spilling", "")),
        count=count,
        remedies=_remedies(_Disk("/tmp/ray", _DEFAULT_PERCENT, 0, 0)),
        covers=tuple(errors),
    )


def _remedies(disk: _Disk) -> tuple[Remedy, ...]:
    root = disk.directory.partition("/session_")[0]
    return (
        *_threshold(disk),
        Remedy(
            f"Remove sessions below {root} that no running Ray uses",
            (
                f"du -xsh {root}/session_* | sort -h",
                f"readlink {root}/session_latest       # in use: keep it",
                f"rm -rf {root}/session_<old one>",
            ),
            risk="destructive",
        ),
        Remedy(
            "Spill to a larger disk",
            (
                "ray start --object-spilling-directory=/big_disk/spill …   # every node",
                'ray.init(object_spilling_directory="/big_disk/spill")     # where the script starts Ray',
            ),
            risk="disruptive",
            doc=_DOC,
            since=(2, 46),
        ),
        Remedy(
            "Spill to a larger disk",
            (
                'ray start --head --system-config=\'{"object_spilling_config": "{\\"type\\": \\"filesystem\\", '
                '\\"params\\": {\\"directory_path\\": \\"/big_disk/spill\\"}}"}\' …',
            ),
            risk="disruptive",
            doc=_DOC,
            until=(2, 46),
        ),
        Remedy(
            "Move the whole session (logs, spilled objects, packages) to a larger disk",
            ("ray start --head --temp-dir=/big_disk/ray …",),
            risk="disruptive",
        ),
    )


def _threshold(disk: _Disk) -> tuple[Remedy, ...]:
    """The threshold is at fault where it was lowered, or where a large disk has much room left."""
    if disk.percent < _DEFAULT_PERCENT:
        title = f"The threshold was set to {disk.percent:g}%: use Ray's default again"
        step = "unset RAY_local_fs_capacity_threshold        # default: 0.95; before ray start, on every node"
    elif disk.free >= _ROOMY:
        title = f"{evidence.size(disk.free)} are still free: raise the threshold"
        step = "RAY_local_fs_capacity_threshold=0.99 ray start …   # on every node"
    else:
        return ()
    return (Remedy(title, (step,), risk="disruptive", doc=_DOC),)
