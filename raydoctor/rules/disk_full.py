"""The disk that holds Ray's session or spilled objects is full, so Ray cannot store objects.

## What you see
`ray.exceptions.OutOfDiskError: Local disk is full`. Every ten seconds the raylet writes `… is over 95% full, available
space: …; capacity: …. Object creation will fail if spilling is required.` Ray gives no earlier warning. On a live
cluster, raydoctor warns from 90% on, unless 100 GiB or more remain until Ray's threshold. It also warns if the file
system runs out of inodes (`df -i`).

## Why
When an object does not fit into the object store, Ray spills other objects to disk. Ray stops spilling when the file
system is over a threshold (95% by default), because a completely full disk ends the node. Ray measures the whole file
system: old sessions, logs, checkpoints and the files of other programs count. On a very large disk, 5% can be much
free space.

## Confirm
- `df -h DIRECTORY` on that node, with the directory in raydoctor's headline, shows a `Use%` above the threshold.
- `du -xsh /tmp/ray/session_* | sort -h` shows the size of each session, old ones included.
- `ray memory --stats-only` shows how much the object store holds and has spilled.

## Fix
Free space, old sessions first, or let Ray write to a larger disk: `--temp-dir` moves everything,
`--object-spilling-directory` (Ray 2.45 and later) only the spilled objects. If a large disk still has much free space,
raise `RAY_local_fs_capacity_threshold`. Keep fewer objects alive at the same time.

## Not this when
- Ray reports `Spilled … MiB`, and the disk has room (`spill-heavy`).
- the session's file system was never over the threshold, and spilling is switched off (`object-store-full`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION
from raydoctor.cluster import disk_contents as contents
from raydoctor.cluster import tables
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import size
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import disks, store
from raydoctor.rules.shared.disks import RayDisk, Use
from raydoctor.rules.shared.failures import SIGNALS as FAILURES
from raydoctor.rules.shared.failures import constructors, failures
from raydoctor.rules.shared.live import examples as sample

_DEFAULT_PERCENT = 95.0
_LOGS_DOC = "https://docs.ray.io/en/latest/ray-observability/user-guides/configure-logging.html"
_ROOMY = 20 * evidence.GB
"""With this much free space, the threshold should change, not the disk."""
_SOON, _FAR = 0.9, 100 * evidence.GB
"""When to warn: this share is in use, and at most this many bytes remain until Ray's threshold."""
_FEW_INODES = 0.001
"""Share of free inodes below which a file system counts as out of inodes."""
_MUCH = 0.05
"""Share of the used space that gets a remedy of its own."""

_NO_SPACE = Signal(
    "disk.no_space",
    disks.NO_SPACE,
    r"^(?:\w+\.){0,12}\w*(?:Error|Exception): .{0,300}?\bNo space left on device\b(?:: '(?P<path>[^'\n]{1,4000})')?",
    (*DRIVER, "worker-echo"),
    "OSError: [Errno 28] No space left on device",
)


@rule(
    tier="root",
    severity="error",
    rank=65,
    explains=("disk", "object", "spilling"),
    caused_by=("arguments",),
    daemons_record=True,
    looks_for=(_NO_SPACE, *store.DISK_OVER, store.OUT_OF_DISK, *store.FALLBACK_FAILED, store.SPILLED, RAY_EXCEPTION, *FAILURES),
)  # fmt: skip
def disk_full(case: Case) -> Iterator[Finding]:
    """One finding per file system that is over the threshold, in the raylet's log or now, or will be soon."""
    now = disks.disks(case)
    over = store.by_node(case, case.of("disk.over_threshold"))
    failed = store.by_node(case, case.of("object.out_of_disk"))
    errors = store.exceptions(case, "OutOfDiskError")
    for node, reported in over.items():
        same = next((d for d in now if d.holds(reported[-1]["dir"], node)), None)
        now = [d for d in now if d is not same]
        yield _finding(case, _Incident(node, reported, failed.get(node, []), errors, same))
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
    elif not (over or now or failed or case.of(store.SPILLED.kind)):
        yield from _of_program(case)


def _of_program(case: Case) -> Iterator[Finding]:
    """A program's own error about a full disk, in an excerpt that shows no more."""
    events = [e for e in case.of(_NO_SPACE.kind) if e.source.is_excerpt]
    path = next((e["path"] for e in events if e["path"]), "")
    goes_on = bool(events) and evidence.goes_on(case, events[-1]) and not _failed_calls(case)
    if events and not case.exits and (path or not goes_on):
        yield Finding(
            f"A disk is full: a program could not write {path or 'to it'}",
            (Link(events[0], "the system refused to write"),),
            explains=(disks.FULL,),
            count=evidence.total(events),
            severity="warning" if goes_on else None,
            remedies=_remedies_of_program(path),
            covers=tuple(events),
        )


def _failed_calls(case: Case) -> bool:
    """Whether a task, method or constructor failed because a disk is full."""
    raised = (seen.failure.raised for seen in (*failures(case), *constructors(case)))
    return any(disks.NO_SPACE in str(each) for each in raised)


def _remedies_of_program(path: str) -> tuple[Remedy, ...]:
    if path.startswith("/dev/shm/"):
        return (
            Remedy(
                "Give the container more shared memory: this path is in it",
                ("df -h /dev/shm", "docker run --shm-size=8g   # plus your other options, Kubernetes: an emptyDir with medium: Memory"),
                risk="disruptive",
            ),
        )  # fmt: skip
    if path and "/session_" not in path:
        see = paste.shell("df -h {path:path}", path=path)
        return (Remedy("Free space on the file system of this path", (see,)),)
    return _remedies(_DiskRoom("/tmp/ray", _DEFAULT_PERCENT, 0, 0), None)


def _store_overflowed(case: Case) -> bool:
    """Whether the raylets report an overflow of the store itself (`object-store-full`), or `spill-failed`."""
    return bool(case.of("store.fallback_failed", "object.out_of_disk", "spill.failed"))


class _DiskRoom(NamedTuple):
    """The sizes of a file system in bytes, from the raylet's log or from a live collection."""

    directory: str
    percent: float
    """Ray's threshold."""
    free: float
    capacity: float

    @property
    def is_low(self) -> bool:
        """Whether a threshold was set so low that the disk is not full in any other sense."""
        has_room = self.free > (1 - _DEFAULT_PERCENT / 100) * self.capacity
        return self.percent < _DEFAULT_PERCENT and has_room

    @property
    def usage(self) -> str:
        """`96.3% full (9.2 GiB of 252 GiB free)`."""
        if not self.capacity:
            over = f"over {self.percent:g}% full ({size(self.free)} free)"
            return over if self.free else "without any capacity"
        used = 100 * (1 - self.free / self.capacity)
        free, capacity = size(self.free), size(self.capacity)
        return f"{used:.1f}% full ({free} of {capacity} free)"


class _Incident(NamedTuple):
    """All evidence about one full file system."""

    node: str
    reported: list[Event]
    """The raylet's reports that it is over the threshold."""
    failed: list[Event]
    errors: list[Event]
    now: RayDisk | None
    """Its state in a live collection."""


def _logged(event: Event) -> _DiskRoom:
    unit = evidence.GB if event["gb"] else 1
    percent = float(event["percent"] or _DEFAULT_PERCENT)
    return _DiskRoom(
        event["dir"],
        percent if percent > 1 else 100 * percent,
        float(event["free"] or 0) * unit,
        float(event["capacity"] or 0) * unit,
    )


def _live_room(disk: RayDisk) -> _DiskRoom:
    return _DiskRoom(disk.path, 100 * disk.threshold, disk.free, disk.capacity)


# ---------------------------------------------------------------- over the threshold


def _finding(case: Case, incident: _Incident) -> Finding:
    node, reported, failed, errors, now = incident
    count = evidence.total(failed) or evidence.total(errors)
    links = list(_over_links(incident))
    if failed:
        links.append(Link(failed[0], f"the raylet cannot store an object of {failed[0]['mb']} MiB"))
    links += [Link(e, f"the driver got {store.raised(e)}") for e in errors[:1]]
    is_over_now = now is not None and now.is_over
    room = _live_room(now) if now and is_over_now else _logged(_shown(reported, failed))
    return Finding(
        _headline(case, incident, room, count),
        tuple(links),
        explains=(
            Entity("disk", node or room.directory),
            Entity("spilling", node),
            *((disks.FULL,) if case.of(_NO_SPACE.kind) else ()),
            *([now.entity] if now else []),
            *store.failed_objects(failed),
        ),
        caused_by=(Entity("arguments", "large"),),
        subjects=(Subject("node", node, node=node),) if node else (),
        count=count or 1,
        severity="error"
        if count or is_over_now
        else "info"
        if room.free >= _ROOMY and _other_failure(case)
        else "warning",
        remedies=_remedies(room, now),
        covers=(*reported, *failed, *errors, *case.of("store.fallback_failed")),
    )


def _other_failure(case: Case) -> bool:
    """Whether a program raised something else: no object failed for want of space, and much space is left."""
    return any(
        e.source.role in DRIVER
        and "OutOfDiskError" not in e.message
        and "ObjectStoreFullError" not in e.message
        for e in case.of("driver.exception", "log.traceback")
    )


def _shown(reported: list[Event], failed: list[Event]) -> Event:
    """The raylet's last report before the first failure."""
    own = store.own_log_first(reported)
    before = [e for e in own if failed and e.at and failed[0].at and e.at <= failed[0].at]
    return (before or own)[-1]


def _over_links(incident: _Incident) -> Iterator[Link]:
    if incident.reported:
        shown = _shown(incident.reported, incident.failed)
        room = _logged(shown)
        yield Link(shown, f"the disk is {room.usage}, above the threshold of {room.percent:g}%")
    if incident.now:
        now = _live_room(incident.now)
        if incident.now.is_over:
            yield Link(
                incident.now.event,
                f"the disk is {now.usage} now, and Ray's threshold is {now.percent:g}%",
            )
        else:
            yield Link(incident.now.event, f"the disk has room again: it is {now.usage} now")
        yield from incident.now.links()


def _headline(case: Case, incident: _Incident, room: _DiskRoom, count: int) -> str:
    failed = (
        f"{evidence.many(count, 'object')} could not be stored"
        if count
        else "the next object that must be spilled will fail"
    )
    filled = _filled(incident.now) if incident.now else _spilled(case, incident.node)
    where = store.where(case, incident.node)
    if room.is_low:
        return (
            f"Ray's disk threshold is set to {room.percent:g}% (default {_DEFAULT_PERCENT:g}%), and the disk of {room.directory}{where} is "
            f"{room.usage}{filled}: {failed}"
        )
    return f"The disk of {room.directory}{where} is {room.usage} and above Ray's threshold of {room.percent:g}%{filled}: {failed}"


def _spilled(case: Case, node: str) -> str:
    """Bytes that Ray has spilled to that disk: in its last state dump, else in total."""
    now = store.by_node(case, case.of("debug.state")).get(node, [])
    spilled = (
        tables.whole(now[-1], "num_bytes_currently_spilled") or 0
        if now
        else store.spilled_bytes(case, node)
    )
    return f", with {size(spilled)} in spilled objects" if spilled >= evidence.GB else ""


def _filled(disk: RayDisk) -> str:
    """The largest use of the disk by Ray, if it is large."""
    most = disk.uses[0] if disk.uses else None
    if most is None or most.bytes < _MUCH * disk.used * disk.capacity:
        return ""
    amount = size(most.bytes)
    if most.what == contents.OLD_SESSIONS:
        return f", with {amount} in {evidence.many(most.number, 'old session')}"
    if most.is_other and most.is_one_file:
        return f", most of it in {most.file}"
    if most.is_other:
        return f", with {amount} neither in logs nor in spilled objects"
    return f", with {amount} in {most.what}"


def _bare(errors: list[Event]) -> Finding:
    """The exception is the only evidence: it does not name the disk."""
    count = evidence.total(errors)
    return Finding(
        f"The object store and the disk that it spills to are full: {evidence.many(count, 'OutOfDiskError')} in the driver",
        (Link(errors[0], f"the driver got {store.raised(errors[0])}"),),
        explains=(disks.FULL, Entity("spilling", "")),
        count=count,
        remedies=_remedies(_DiskRoom("/tmp/ray", _DEFAULT_PERCENT, 0, 0), None),
        covers=tuple(errors),
    )


# ---------------------------------------------------------------- soon


def _soon(case: Case, disk: RayDisk) -> Finding:
    """A disk that is nearly full, or one that holds no objects."""
    room = _live_room(disk)
    if disk.takes_objects:
        then = f"after another {size(disk.room)} Ray stores no more objects there (threshold {room.percent:g}%)"
    else:
        then = "it holds the session's logs, packages and sockets"
    where = store.where(case, disk.node)
    return Finding(
        f"The disk of {room.directory}{where} is {room.usage}{_filled(disk)}: {then}",
        (Link(disk.event, f"the disk is {room.usage} now"), *disk.links()),
        explains=(disk.entity,),
        subjects=(Subject("node", disk.node, node=disk.node),) if disk.node else (),
        severity="warning",
        remedies=_remedies(room, disk),
    )


def _no_files(case: Case, disk: RayDisk) -> Finding:
    """No free inodes: new logs, spilled objects and packages fail as on a full disk."""
    left = evidence.many(int(disk.inodes_free), "inode")
    where = store.where(case, disk.node)
    search = paste.shell(
        "find {mount:path} -xdev -type f | cut -d/ -f1-5 | sort | uniq -c | sort -n | tail -20",
        mount=disk.mount,
    )
    return Finding(
        f"The disk of {disk.path}{where} has {left} of {disk.inodes:.0f} left, so no more files can be created, although "
        f"{size(disk.free)} is free",
        (Link(disk.event, f"the file system has {left} of {disk.inodes:.0f} left"), *disk.links()),
        explains=(disk.entity, Entity("disk", disk.node or disk.path)),
        subjects=(Subject("node", disk.node, node=disk.node),) if disk.node else (),
        severity="warning" if disk.inodes_free else "error",
        remedies=(Remedy("Find the directory with the most files, and remove files that are not needed", (search,)), *_ELSEWHERE),
    )  # fmt: skip


# ---------------------------------------------------------------- remedies


def _remedies(room: _DiskRoom, now: RayDisk | None) -> tuple[Remedy, ...]:
    if room.is_low:
        return _threshold(room)
    return (
        *_threshold(room),
        *_clean_up(room.directory.partition("/session_")[0], now),
        *_ELSEWHERE,
    )


def _clean_up(root: str, now: RayDisk | None) -> Iterator[Remedy]:
    """Old sessions if nothing was measured; else the large uses, the largest first."""
    if now is None or not now.uses:
        yield _old_sessions(root, None)
        return
    large = [u for u in now.uses if u.bytes >= _MUCH * now.used * now.capacity]
    for use in large:
        if use.what == contents.OLD_SESSIONS:
            yield _old_sessions(use.path, use)
        elif use.what == contents.SPILLED:
            yield _fewer_objects(use)
        elif use.what == contents.LOGS:
            yield _logs(use)
        elif use.is_other:
            yield _other_files(use)
    if not large:
        ray = sum(use.bytes for use in now.uses)
        yield Remedy(
            f"Find what fills the disk: Ray's own files there take only {size(ray)}",
            (
                paste.shell(
                    "du -xh --max-depth=2 {mount:path} 2>/dev/null | sort -h | tail -20",
                    mount=now.mount,
                ),
            ),
        )


def _other_files(use: Use) -> Remedy:
    """Ray keeps packages and sockets there; large files are usually those of a program."""
    largest = f": the largest is {use.file}" if use.file else ""
    return Remedy(
        f"Find the largest files in the folder of the session, and move those of a program elsewhere{largest}",
        (
            paste.shell(
                "du -ah {path:path} 2>/dev/null | sort -h | tail -20   # on that node",
                path=use.path,
            ),
        ),
    )


def _old_sessions(root: str, use: Use | None) -> Remedy:
    what = f"the {use.number} old sessions" if use and use.number > 1 else "old sessions"
    remove = f"Free {size(use.bytes)}: remove" if use else "Remove"
    if root == "/tmp/ray":
        title = f"{remove} {what} in {root} that no running Ray uses. raydoctor lists them with their sizes and asks"
        return Remedy(title, ("raydoctor zombies --clean   # on that node",), risk="destructive")
    return Remedy(
        f"{remove} {what} in {root} that no running Ray uses",
        (
            paste.shell("du -xsh {root:path}/session_* | sort -h   # on that node", root=root),
            paste.shell(
                "readlink {root:path}/session_latest       # keep this one: it is in use", root=root
            ),
            paste.shell("rm -rf {root:path}/session_OLD", root=root),
        ),
        risk="destructive",
    )


def _fewer_objects(use: Use) -> Remedy:
    return Remedy(
        f"Keep fewer objects alive at once: {size(use.bytes)} of them are spilled there",
        (
            "ray memory --stats-only",
            "ray memory --group-by STACK_TRACE     # which code holds them",
        ),
        doc=store.SPILLING_DOC,
    )


def _logs(use: Use) -> Remedy:
    return Remedy(
        f"Keep fewer log files: {use.path} holds {size(use.bytes)}",
        (
            paste.shell("du -xsh {folder:path}/* | sort -h | tail", folder=use.path),
            "export RAY_ROTATION_MAX_BYTES=104857600 RAY_ROTATION_BACKUP_COUNT=2   # on every node, before ray start, or before your program if it starts Ray (default: 512 MiB and 5)",
        ),
        risk="disruptive",
        doc=_LOGS_DOC,
    )


_ELSEWHERE = (
    *store.spill_to("Spill to a larger disk"),
    Remedy(
        "Move the whole session (logs, spilled objects, packages) to a larger disk",
        (
            "ray start --head --temp-dir=/big_disk/ray   # plus your other options",
            'ray.init(_temp_dir="/big_disk/ray")   # if the program starts Ray',
        ),
        risk="disruptive",
    ),
)


def _threshold(room: _DiskRoom) -> tuple[Remedy, ...]:
    """A remedy for a threshold that was lowered, or for a large disk with much free space."""
    if room.percent < _DEFAULT_PERCENT:
        title = f"Restore the default threshold of {_DEFAULT_PERCENT:g}% (0.95): it was set to {room.percent:g}%"
        step = "unset RAY_local_fs_capacity_threshold   # on every node, then restart Ray. If _system_config sets local_fs_capacity_threshold, remove it there"
    elif room.free >= _ROOMY:
        title = f"Raise the threshold: {size(room.free)} is still free"
        step = "export RAY_local_fs_capacity_threshold=0.99   # on every node, before ray start, or before your program if it starts Ray"
    else:
        return ()
    return (Remedy(title, (step,), risk="disruptive", doc=store.SPILLING_DOC),)


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


_AT = 1795247700.0
_QUIET = {"logs/raylet.out": _raylet(1, "I", "Starting"), "logs/gcs_server.out": ""}

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the disk is over the threshold and a ray.put fails",
        {
            "logs/raylet.out": _raylet(17, "E", _OVER) + _raylet(27, "E", _OVER) + _FAILED,
            "logs/raylet.err": _raylet(17, "E", _OVER) + _raylet(27, "E", _OVER),
            "logs/gcs_server.out": "Ray cluster metadata ray_version=2.60.0 ray_commit=b7f4259\n",
            "driver.log": f"(raylet) {_raylet(27, 'E', _OVER)}{_ERROR}",
        },
        says=("96.3% full", "9.2 GiB of 252 GiB free", "1 object", "--object-spilling-directory"),
    ),
    Example(
        "Ray 2.9 writes bytes, and no object has failed yet",
        {
            "logs/raylet.out": _raylet(17, "E", _OVER_IN_BYTES) + _raylet(27, "E", _OVER_IN_BYTES),
            "logs/gcs_server.out": "Ray cluster metadata ray_version=2.9.3 ray_commit=b7f4259\n",
        },
        says=("96.3% full", "9.2 GiB of 252 GiB free", "object_spilling_config"),
        severity="warning",
    ),
    console(
        "only the driver's output is in the capture",
        f"(raylet, ip=10.0.0.3) {_raylet(27, 'E', _OVER)}{_ERROR}",
        says=("9.2 GiB of 252 GiB free",),
    ),
    Example(
        "a task prints the message, and a raylet reports spilling, but no disk is full",
        {
            "logs/raylet.out": _raylet(
                17, "I", "Plasma store at capacity\nCurrent usage: 0.1 / 0.2 GB"
            ),
            "logs/gcs_server.out": "",
            "driver.log": f"(check pid=12) {_OVER}\n(check pid=12) ray.exceptions.OutOfDiskError is what we test for\n",
        },
    ),
    Example(
        "live: the disk is over the threshold because of old sessions, and no object has failed yet",
        {
            **_QUIET,
            **sample.tables(
                _AT,
                disks=[_live(0.962), _live(0.962, "session")],
                disk_usage=[
                    _usage("old sessions", "/tmp/ray", 410, 31),
                    _usage("spilled objects", _SESSION, 120),
                    _usage("logs", f"{_SESSION}/logs", 1),
                ],
            ),
        },
        says=(
            "96.2% full (38.0 GiB of 1000 GiB free)",
            "with 410 GiB in 31 old sessions",
            "Ray's threshold of 95%",
            "the 31 old sessions",
            "120 GiB of them",
        ),
    ),
    Example(
        "live and in the log: one incident with the live numbers",
        {
            "logs/raylet.out": _raylet(17, "E", _OVER),
            "logs/gcs_server.out": "",
            **sample.tables(_AT, disks=[_live(0.97), _live(0.2, "session", "/other", "/other")]),
        },
        says=("97.0% full (30.0 GiB of 1000 GiB free)",),
    ),
    Example(
        "live: below the threshold, and filled by files that are not Ray's",
        {
            **_QUIET,
            **sample.tables(
                _AT, disks=[_live(0.931)], disk_usage=[_usage("logs", f"{_SESSION}/logs", 2)]
            ),
        },
        says=(
            "93.1% full",
            "another 19.0 GiB",
            "Ray's own files there take only 2.0 GiB",
            "du -xh --max-depth=2 /",
        ),
        severity="warning",
    ),
    Example(
        "live: only the session's disk is full, and objects are spilled to another disk",
        {
            **_QUIET,
            **sample.tables(
                _AT, disks=[_live(0.3, "spill", "/big/spill", "/big"), _live(0.99, "session")]
            ),
        },
        says=("99.0% full", "logs, packages and sockets"),
        severity="warning",
    ),
    Example(
        "live: free space, but no free inodes",
        {
            **_QUIET,
            **sample.tables(_AT, disks=[{**_live(0.4), "inodes": 16777216, "inodes_free": 0}]),
        },
        says=("0 inodes of 16777216 left", "600 GiB is free", "find / -xdev"),
    ),
    Example(
        "live: Ray's disks have room, and a disk that Ray does not use is full",
        {
            **_QUIET,
            **sample.tables(
                _AT,
                disks=[
                    _live(0.6),
                    _live(0.6, "session"),
                    _live(0.99, "tmp", "/tmp", "/tmp"),
                    _live(0.98, "shm", "/dev/shm", "/dev/shm"),
                ],
            ),
        },
    ),
    console(
        "Ray 2.0 prints a share and no capacity",
        "(raylet, ip=10.0.0.2) [2026-11-21 07:50:20,324 E 77 80] (raylet) file_system_monitor.cc:105: /mnt/data/ray is "
        "over 0.95% full, available space: 50637901824. Object creation will fail if spilling is required.\n",
        says=("over 95% full", "47.2 GiB"),
        severity="warning",
    ),
    console(
        "a program reports a disk of its own",
        "/mnt/archive is over 90% full, available space: plenty. Clean up soon\n",
    ),
    console(
        "an excerpt with a program's own error",
        "(Loader pid=12) OSError: [Errno 28] No space left on device: '/data/x'\n",
        roots=("disk-full",),
    ),
    console(
        "the same beside the logs of healthy daemons",
        "(Loader pid=12) OSError: [Errno 28] No space left on device: '/data/x'\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a program that continues without its cache on another disk",
        "OSError: [Errno 28] No space left on device: '/mnt/usb/cache/x'\ncache disabled, continuing\ndone\n",
        says=("could not write /mnt/usb/cache/x", "df -h /mnt/usb/cache/x"),
        severity="warning",
    ),
    console(
        "shared memory is full",
        "(trainer pid=12) OSError: [Errno 28] No space left on device: '/dev/shm/torch_1_2'\n",
        says=("--shm-size",),
    ),
    Example(
        "a method could not write a file: the library's own exception quotes the system",
        {
            "driver.log": "Traceback (most recent call last):\n"
            '  File "/app/train.py", line 9, in main\n    ray.get(worker.save.remote())\n'
            "ray.exceptions.RayTaskError(SafetensorError): ray::Worker.save() (pid=12, ip=10.0.0.2)\n"
            '  File "/app/train.py", line 40, in save\n    save_file(weights, path)\n'
            'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space '
            'left on device" })\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n'
        },
        roots=("disk-full",),
        consequences=("task-exception",),
    ),
    Example(
        "a constructor could not write its cache",
        {
            "driver.log": "(Loader pid=12) Exception raised in creation task: The actor died because of an error raised in its "
            "creation task, ray::Loader.__init__() (pid=12, ip=10.0.0.2)\n"
            '(Loader pid=12)   File "/app/load.py", line 37, in __init__\n(Loader pid=12)     self.cache.write(block)\n'
            "(Loader pid=12) OSError: [Errno 28] No space left on device: '/data/x'\n"
        },
        roots=("disk-full",),
        consequences=("actor-init-failed",),
        says=("could not write /data/x",),
    ),
    console(
        "a test that prints the line and passes",
        "OSError: [Errno 28] No space left on device\n====== 1 passed in 0.12s ======\n",
    ),
    console(
        "a shuffle of Ray Data finds no room",
        'Traceback (most recent call last):\n  File "/app/etl.py", line 5, in <module>\n    main()\n'
        "ray.data._internal.execution.operators.shuffle_operators.ShuffleDiskError: Disk exhausted pre-allocating 1048576 bytes for "
        "/tmp/ray/a.shf: [Errno 28] No space left on device\n",
        says=("A disk is full",),
    ),
    *(
        Example(
            f"live: below the threshold, and {title}",
            {
                **_QUIET,
                **sample.tables(
                    _AT,
                    disks=[_live(0.931)],
                    disk_usage=[
                        {
                            **_usage(kind, _SESSION, 800),
                            "largest": f"{_SESSION}/data/last.ckpt",
                            "largest_bytes": gigabytes * 1024**3,
                        }
                    ],
                ),
            },
            says=("93.1% full", *says),
            severity="warning",
        )
        for title, kind, gigabytes, says in (
            ("one file fills it", contents.OTHER, 700, ("most of it in data/last.ckpt (700 GiB)",)),
            (
                "many files fill it",
                contents.FORMER_OTHER,
                7,
                (
                    "with 800 GiB neither in logs nor in spilled objects",
                    "the largest is data/last.ckpt (7.0 GiB)",
                    "du -ah ",
                ),
            ),
        )
    ),
)
