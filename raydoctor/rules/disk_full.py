"""The disk below Ray's session or spill directory is full, so objects cannot be stored.

## What you see
`ray.exceptions.OutOfDiskError: Local disk is full`, and every ten seconds `… is over 95% full, available
space: …; capacity: …. Object creation will fail if spilling is required.` Before that, nothing: a live
diagnosis tells from 90 % on, where less than 100 GB are left until Ray's threshold, and where no more
files can be made (`df -i`).

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
from typing import Any, NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import RAY_EXCEPTION
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import size
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import disks, store
from raydoctor.rules.shared.disks import Disk, Use

_DOC = "https://docs.ray.io/en/latest/ray-core/objects/object-spilling.html"
_DEFAULT_PERCENT = 95.0
_LOGS_DOC = "https://docs.ray.io/en/latest/ray-observability/user-guides/configure-logging.html"
_ROOMY = 20 * evidence.GB
"""Free space from which the threshold, not the disk, is what to change."""
_SOON, _FAR = 0.9, 100 * evidence.GB
"""Where to warn: this share in use, and no more than this many bytes until Ray's threshold."""
_FEW_INODES = 0.001
"""Share of them that is left, from which on a disk counts as full of files."""
_MUCH = 0.05
"""Of what is in use: a share worth a remedy of its own."""


@rule(
    tier="root",
    severity="error",
    rank=65,
    daemons_record=True,
    looks_for=(*store.DISK_OVER, store.OUT_OF_DISK, *store.FALLBACK_FAILED, store.SPILLED, RAY_EXCEPTION),
)  # fmt: skip
def disk_full(case: Case) -> Iterator[Finding]:
    """One finding per file system: over the threshold as the raylet said or as it is now, or soon to be."""
    now = disks.disks(case)
    over = store.by_node(case, case.of("disk.over_threshold"))
    failed = store.by_node(case, case.of("object.out_of_disk"))
    errors = store.exceptions(case, "OutOfDiskError")
    for node, told in over.items():
        same = next((d for d in now if d.holds(told[-1]["dir"], node)), None)
        now = [d for d in now if d is not same]
        yield _finding(case, _Incident(node, told, failed.get(node, []), errors, same))
        errors = []
    for disk in now:
        if disk.is_over and disk.takes_objects:
            refused = failed.get(disk.node, []) if disk.node else []
            yield _finding(case, _Incident(disk.node, [], refused, errors, disk))
            errors = []
        elif disk.inodes and disk.inodes_free <= _FEW_INODES * disk.inodes:
            yield _no_files(case, disk)
        elif disk.used >= _SOON and disk.room <= _FAR:
            yield _soon(case, disk)
    if errors and not over and not _store_overflowed(case):
        yield _bare(errors)


def _store_overflowed(case: Case) -> bool:
    """Whether the raylets' words make this the store's own overflow (`object-store-full`), or `spill-failed`."""
    return bool(case.of("store.fallback_failed", "object.out_of_disk", "spill.failed"))


class _Room(NamedTuple):
    """A file system in bytes, as the monitor said or as it is now."""

    directory: str
    percent: float
    """Ray's threshold."""
    free: float
    capacity: float

    @property
    def told(self) -> str:
        """`96.3% full (9.2 GB of 252 GB free)`."""
        if not self.capacity:
            return "without any capacity"
        used = 100 * (1 - self.free / self.capacity)
        free, capacity = size(self.free), size(self.capacity)
        return f"{used:.1f}% full ({free} of {capacity} free)"


class _Incident(NamedTuple):
    """All that was seen of one full file system."""

    node: str
    told: list[Event]
    """What the raylet said of it."""
    failed: list[Event]
    errors: list[Event]
    now: Disk | None
    """What was seen of it live."""


def _said(event: Event) -> _Room:
    unit = evidence.GB if event["gb"] else 1
    return _Room(
        event["dir"],
        float(event["percent"] or _DEFAULT_PERCENT),
        float(event["free"] or 0) * unit,
        float(event["capacity"] or 0) * unit,
    )


def _seen(disk: Disk) -> _Room:
    return _Room(disk.path, 100 * disk.threshold, disk.free, disk.capacity)


# ---------------------------------------------------------------- over the threshold


def _finding(case: Case, incident: _Incident) -> Finding:
    node, told, failed, errors, now = incident
    count = evidence.total(failed) or evidence.total(errors)
    links = list(_over_links(incident))
    if failed:
        links.append(Link(failed[0], f"an object of {failed[0]['mb']} MB cannot be stored"))
    links += [Link(e, f"the driver got {store.raised(e)}") for e in errors[:1]]
    is_over_now = now is not None and now.is_over
    room = _seen(now) if now and is_over_now else _said(_shown(told, failed))
    return Finding(
        _headline(case, incident, room, count),
        tuple(links),
        explains=(
            Entity("disk", node or room.directory),
            Entity("spilling", node),
            *([now.entity] if now else []),
            *store.failed_objects(failed),
        ),
        caused_by=(Entity("arguments", "large"),),
        subjects=(Subject("node", node, node=node),) if node else (),
        count=count or 1,
        severity="error" if count or is_over_now else "warning",
        remedies=_remedies(room, now),
        covers=(*told, *failed, *errors, *case.of("store.fallback_failed")),
    )


def _shown(told: list[Event], failed: list[Event]) -> Event:
    """The raylet's last word before the first failure."""
    own = store.own_log_first(told)
    before = [e for e in own if failed and e.at and failed[0].at and e.at <= failed[0].at]
    return (before or own)[-1]


def _over_links(incident: _Incident) -> Iterator[Link]:
    if incident.told:
        shown = _shown(incident.told, incident.failed)
        room = _said(shown)
        yield Link(shown, f"{room.told}: over the threshold of {room.percent:g}%")
    if incident.now:
        now = _seen(incident.now)
        if incident.now.is_over:
            yield Link(incident.now.event, f"now {now.told}; Ray's threshold is {now.percent:g}%")
        else:
            yield Link(incident.now.event, f"by now it has room again: {now.told}")
        yield from incident.now.links()


def _headline(case: Case, incident: _Incident, room: _Room, count: int) -> str:
    failed = (
        f"{evidence.many(count, 'object')} could not be stored"
        if count
        else "the next object that needs spilling will fail"
    )
    filled = _filled(incident.now) if incident.now else _spilled(case, incident.node)
    where = store.where(case, incident.node)
    return f"The disk of {room.directory}{where} is {room.told}{filled}, over Ray's threshold of {room.percent:g}%: {failed}"


def _spilled(case: Case, node: str) -> str:
    """What Ray itself has on that disk: as of its last state, else all that it ever spilled."""
    now = store.by_node(case, case.of("debug.state")).get(node, [])
    spilled = (
        int(now[-1]["num_bytes_currently_spilled"] or 0) if now else store.spilled_bytes(case, node)
    )
    return f", {size(spilled)} of it spilled by Ray" if spilled >= evidence.GB else ""


def _filled(disk: Disk) -> str:
    """What of Ray's takes most of it, if that is much."""
    most = disk.uses[0] if disk.uses else None
    if most is None or most.bytes < _MUCH * disk.used * disk.capacity:
        return ""
    amount = size(most.bytes)
    if most.what == "old sessions":
        return f", {amount} of it {evidence.many(most.number, 'old session')}"
    return f", {amount} of it {'spilled by Ray' if most.what == 'spilled objects' else most.what}"


def _bare(errors: list[Event]) -> Finding:
    """Only the exception is left: it says that store and disk are full, not which disk."""
    count = evidence.total(errors)
    return Finding(
        f"The object store and the disk behind it are full: {evidence.many(count, 'OutOfDiskError')} in the driver",
        (Link(errors[0], f"the driver got {store.raised(errors[0])}"),),
        explains=(Entity("disk", ""), Entity("spilling", "")),
        count=count,
        remedies=_remedies(_Room("/tmp/ray", _DEFAULT_PERCENT, 0, 0), None),
        covers=tuple(errors),
    )


# ---------------------------------------------------------------- soon


def _soon(case: Case, disk: Disk) -> Finding:
    """Not yet over, or a disk that Ray only writes logs to."""
    room = _seen(disk)
    if disk.takes_objects:
        then = f"after {size(disk.room)} more Ray stores no more objects there (threshold {room.percent:g}%)"
    else:
        then = "the session's logs, packages and sockets lie there"
    where = store.where(case, disk.node)
    return Finding(
        f"The disk of {room.directory}{where} is {room.told}{_filled(disk)}: {then}",
        (Link(disk.event, f"now {room.told}"), *disk.links()),
        explains=(disk.entity,),
        subjects=(Subject("node", disk.node, node=disk.node),) if disk.node else (),
        severity="warning",
        remedies=_remedies(room, disk),
    )


def _no_files(case: Case, disk: Disk) -> Finding:
    """Room for bytes, none for files: every new log, spilled object and package fails as on a full disk."""
    left = evidence.many(int(disk.inodes_free), "inode")
    where = store.where(case, disk.node)
    search = paste.shell(
        "find {mount:path} -xdev -type f | cut -d/ -f1-5 | sort | uniq -c | sort -n | tail -20",
        mount=disk.mount,
    )
    return Finding(
        f"The disk of {disk.path}{where} has {left} of {disk.inodes:.0f} left: no more files can be made, although "
        f"{size(disk.free)} are free",
        (Link(disk.event, f"{left} of {disk.inodes:.0f} left"), *disk.links()),
        explains=(disk.entity, Entity("disk", disk.node or disk.path)),
        subjects=(Subject("node", disk.node, node=disk.node),) if disk.node else (),
        severity="warning" if disk.inodes_free else "error",
        remedies=(Remedy("Find the many small files, and remove those that nobody needs", (search,)), *_ELSEWHERE),
    )  # fmt: skip


# ---------------------------------------------------------------- remedies


def _remedies(room: _Room, now: Disk | None) -> tuple[Remedy, ...]:
    return (
        *_threshold(room),
        *_clean_up(room.directory.partition("/session_")[0], now),
        *_ELSEWHERE,
    )


def _clean_up(root: str, now: Disk | None) -> Iterator[Remedy]:
    """Where nobody looked, old sessions are the first guess; else what is there, the largest first."""
    if now is None or not now.uses:
        yield _old_sessions(root, None)
        return
    large = [u for u in now.uses if u.bytes >= _MUCH * now.used * now.capacity]
    for use in large:
        if use.what == "old sessions":
            yield _old_sessions(use.path, use)
        elif use.what == "spilled objects":
            yield _fewer_objects(use)
        elif use.what == "logs":
            yield _logs(use)
    if not large:
        ray = sum(use.bytes for use in now.uses)
        yield Remedy(
            f"Ray's own files there are {size(ray)}: find out what else fills the disk",
            (
                paste.shell(
                    "du -xh --max-depth=2 {mount:path} 2>/dev/null | sort -h | tail -20",
                    mount=now.mount,
                ),
            ),
        )


def _old_sessions(root: str, use: Use | None) -> Remedy:
    what = f"the {use.number} sessions" if use and use.number > 1 else "sessions"
    gain = f": {size(use.bytes)}" if use else ""
    return Remedy(
        f"Remove {what} below {root} that no running Ray uses{gain}",
        (
            paste.shell("du -xsh {root:path}/session_* | sort -h", root=root),
            paste.shell("readlink {root:path}/session_latest       # in use: keep it", root=root),
            paste.shell("rm -rf {root:path}/session_OLD", root=root),
        ),
        risk="destructive",
    )


def _fewer_objects(use: Use) -> Remedy:
    return Remedy(
        f"Keep fewer objects alive at once: {size(use.bytes)} of them are spilled there",
        ("ray memory --stats-only", "ray memory --group-by STACK_TRACE     # who holds them"),
        doc=_DOC,
    )


def _logs(use: Use) -> Remedy:
    return Remedy(
        f"Keep less of the logs: {size(use.bytes)} in {use.path}",
        (
            paste.shell("du -xsh {folder:path}/* | sort -h | tail", folder=use.path),
            "RAY_ROTATION_MAX_BYTES=104857600 RAY_ROTATION_BACKUP_COUNT=2 ray start …   # default: 512 MB and 5",
        ),
        risk="disruptive",
        doc=_LOGS_DOC,
    )


_ELSEWHERE = (
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


def _threshold(room: _Room) -> tuple[Remedy, ...]:
    """The threshold is at fault where it was lowered, or where a large disk has much room left."""
    if room.percent < _DEFAULT_PERCENT:
        title = f"The threshold was set to {room.percent:g}%: use Ray's default again"
        step = "unset RAY_local_fs_capacity_threshold        # default: 0.95; before ray start, on every node"
    elif room.free >= _ROOMY:
        title = f"{size(room.free)} are still free: raise the threshold"
        step = "RAY_local_fs_capacity_threshold=0.99 ray start …   # on every node"
    else:
        return ()
    return (Remedy(title, (step,), risk="disruptive", doc=_DOC),)


# ------------------------------------------------------------------ examples


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


def _live(
    used: float, use: str = "spill", path: str = _SESSION, mount: str = "/"
) -> dict[str, Any]:
    """A row of the table `disks`: 1000 GB, so much of it in use."""
    free = round((1 - used) * 1000) * 1024**3
    return {
        "path": path, "use": use, "mount": mount, "filesystem": "ext4", "device": f"/dev/sd{mount}", "capacity": 1000 * 1024**3,
        "free": free, "used_fraction": used, "threshold": 0.95, "node_id": "",
    }  # fmt: skip


def _usage(what: str, path: str, gigabytes: int, count: int = 1) -> dict[str, Any]:
    return {
        "path": path,
        "bytes": gigabytes * 1024**3,
        "what": what,
        "count": count,
        "truncated": False,
    }


_LIVE_DISKS, _LIVE_USAGE = "live/live-disks.json", "live/live-disk-usage.json"
_QUIET = {"logs/raylet.out": _raylet(1, "I", "Starting"), "logs/gcs_server.out": ""}

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the disk is over the threshold and a put fails",
        {
            "logs/raylet.out": _raylet(17, "E", _OVER) + _raylet(27, "E", _OVER) + _FAILED,
            "logs/raylet.err": _raylet(17, "E", _OVER) + _raylet(27, "E", _OVER),
            "logs/gcs_server.out": "Ray cluster metadata ray_version=2.60.0 ray_commit=b7f4259\n",
            "driver.log": f"(raylet) {_raylet(27, 'E', _OVER)}{_ERROR}",
        },
        roots=("disk-full",),
        says=("96.3% full", "9.2 GiB of 252 GiB free", "1 object", "--object-spilling-directory"),
    ),
    Example(
        "Ray 2.9 writes bytes, and nothing failed yet",
        {
            "logs/raylet.out": _raylet(17, "E", _OVER_IN_BYTES) + _raylet(27, "E", _OVER_IN_BYTES),
            "logs/gcs_server.out": "Ray cluster metadata ray_version=2.9.3 ray_commit=b7f4259\n",
        },
        roots=("disk-full",),
        says=("96.3% full", "9.2 GiB of 252 GiB free", "object_spilling_config"),
    ),
    Example(
        "only the driver's output is left",
        {"driver.log": f"(raylet, ip=10.0.0.3) {_raylet(27, 'E', _OVER)}{_ERROR}"},
        roots=("disk-full",),
        says=("9.2 GiB of 252 GiB free",),
    ),
    Example(
        "a task that checks a disk itself, and a Ray that talks of spilling, are no full disk",
        {
            "logs/raylet.out": _raylet(
                17, "I", "Plasma store at capacity\nCurrent usage: 0.1 / 0.2 GB"
            ),
            "logs/gcs_server.out": "",
            "driver.log": f"(check pid=12) {_OVER}\n(check pid=12) ray.exceptions.OutOfDiskError is what we test for\n",
        },
    ),
    Example(
        "live: over the threshold now, nothing failed yet, and old sessions fill it",
        {
            **_QUIET,
            _LIVE_DISKS: disks.example("disks", (_live(0.962), _live(0.962, "session"))),
            _LIVE_USAGE: disks.example(
                "disk-usage",
                (
                    _usage("old sessions", "/tmp/ray", 410, 31),
                    _usage("spilled objects", _SESSION, 120),
                    _usage("logs", f"{_SESSION}/logs", 1),
                ),
            ),
        },
        roots=("disk-full",),
        says=(
            "96.2% full (38.0 GiB of 1000 GiB free)",
            "410 GiB of it 31 old sessions",
            "Ray's threshold of 95%",
            "the 31 sessions",
            "120 GiB of them",
        ),
    ),
    Example(
        "live and in the log: one incident, its numbers those of now",
        {
            "logs/raylet.out": _raylet(17, "E", _OVER),
            "logs/gcs_server.out": "",
            _LIVE_DISKS: disks.example(
                "disks", (_live(0.97), _live(0.2, "session", "/other", "/other"))
            ),
        },
        roots=("disk-full",),
        says=("97.0% full (30.0 GiB of 1000 GiB free)",),
    ),
    Example(
        "live: below the threshold, and something that is not Ray's fills it",
        {
            **_QUIET,
            _LIVE_DISKS: disks.example("disks", (_live(0.931),)),
            _LIVE_USAGE: disks.example("disk-usage", (_usage("logs", f"{_SESSION}/logs", 2),)),
        },
        roots=("disk-full",),
        says=(
            "93.1% full",
            "19.0 GiB more",
            "Ray's own files there are 2.0 GiB",
            "du -xh --max-depth=2 /",
        ),
    ),
    Example(
        "live: only the session's disk is full, objects are spilled elsewhere",
        {
            **_QUIET,
            _LIVE_DISKS: disks.example(
                "disks", (_live(0.3, "spill", "/big/spill", "/big"), _live(0.99, "session"))
            ),
        },
        roots=("disk-full",),
        says=("99.0% full", "logs, packages and sockets"),
    ),
    Example(
        "live: room for bytes, none for files",
        {
            **_QUIET,
            _LIVE_DISKS: disks.example(
                "disks", ({**_live(0.4), "inodes": 16777216, "inodes_free": 0},)
            ),
        },
        roots=("disk-full",),
        says=("0 inodes of 16777216 left", "600 GiB are free", "find / -xdev"),
    ),
    Example(
        "live: disks with room, and a full one that is none of Ray's",
        {
            **_QUIET,
            _LIVE_DISKS: disks.example(
                "disks",
                (
                    _live(0.6),
                    _live(0.6, "session"),
                    _live(0.99, "tmp", "/tmp", "/tmp"),
                    _live(0.98, "shm", "/dev/shm", "/dev/shm"),
                ),
            ),
        },
    ),
)
