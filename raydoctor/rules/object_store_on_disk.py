"""The object store uses a disk instead of shared memory, in whole or in part.

## What you see
Ray works, but slowly, and one of these messages appears:

- When Ray starts: `The object store is using /tmp/ray instead of /dev/shm because /dev/shm has only 67108864 bytes
  available. This will harm performance!` In this case a store larger than 10 GB keeps Ray from starting: `The
  configured object store size (… GB) exceeds /dev/shm size`.
- When the raylet starts: `System memory request exceeds memory available in /dev/shm`. The raylet then makes the store
  smaller.
- While Ray runs, only in `raylet.out`: `Shared memory store full, falling back to allocating from filesystem:
  20971774`.

## Why
Ray puts the store into /dev/shm, a file system in memory. By default a container's /dev/shm has only 64 MiB. If the
store does not fit there, Ray puts it into its temporary directory instead. A full store that cannot spill (spilling is
switched off, or all its objects are in use) creates further objects in files. Every read and write of these files goes
through the page cache to the disk.

## Confirm
- `df -h /dev/shm` on the node, or in the container, shows less space than the store needs.
- `raylet.out` contains `Starting object store with directory /tmp/ray` (it should be /dev/shm).
- `lsof +L1 | grep plasma` lists the store's files outside /dev/shm, which Ray has unlinked.
- While the cluster runs, `raydoctor` compares the size of /dev/shm with the store's, `--object_store_memory` of the
  raylet.

## Fix
Give the container enough shared memory, or request a smaller store. If the store overflows, keep spilling switched on,
keep fewer objects in scope, or give the store more memory.

    docker run --shm-size=8g IMAGE   # Kubernetes: an emptyDir with medium: Memory, mounted at /dev/shm
    # or a smaller store (bytes; other nodes: --address instead of --head):
    ray start --head --object-store-memory=$((4 * 1024**3))

## Not this when
- only a few objects go to files while spilling catches up: raydoctor reports them only if together they are larger than
  the store.
- the program got `ObjectStoreFullError` (`object-store-full`).
- a file system was over Ray's threshold (`disk-full`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAYLET
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import size as size_of
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import store
from raydoctor.rules.shared.live import examples as sample

_MB = 1024**2
_MUCH = 100 * _MB
"""Bytes in files above which an overflow is reported if the log does not contain the store's size."""

NOT_IN_SHM = Signal(
    "store.not_in_shm", " instead of /dev/shm because /dev/shm has only ",
    r"The object store is using (?P<dir>\S+) instead of /dev/shm because /dev/shm has only (?P<shm>\d+) bytes available\."
    r".*?(?:--shm-size=(?P<wanted>\d{1,20}(?:\.\d{1,20})?)gb|$)", DRIVER,
    "WARNING: The object store is using /tmp/ray instead of /dev/shm because /dev/shm has only 67108864 bytes available. This will "
    "harm performance! You may be able to free up space by deleting files in /dev/shm. If you are inside a Docker container, you "
    "can increase /dev/shm size by passing '--shm-size=0.32gb' to 'docker run' (or add it to the run_options list in a Ray cluster "
    "config). Make sure to set this to more than 30% of available RAM.",
)  # fmt: skip
"""`services.py`, in the terminal where Ray is started; the size is the store's and a tenth more, in decimal gigabytes."""
TOO_LARGE_FOR_SHM = Signal(
    "store.refused_without_shm", " GB) exceeds /dev/shm size (",
    r"^(?:\| )*ValueError: The configured object store size \((?P<gb>\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?) GB\) exceeds /dev/shm size \((?P<shm_gb>\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?) GB\)",
    DRIVER,
    "ValueError: The configured object store size (11.0 GB) exceeds /dev/shm size (0.067108864 GB). This will harm performance. "
    "Consider deleting files in /dev/shm or increasing its size with --shm-size in Docker. To ignore this warning, set "
    "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE=1.",
    symptom=True,
)  # fmt: skip
IN_TMP = Signal(
    "store.in_temp_dir", "Starting object store with directory /tmp",
    r"^Starting object store with directory (?P<dir>/tmp[^,]*), fallback (?P<fallback>[^,]+),", ("raylet-out",),
    "Starting object store with directory /tmp/ray, fallback /tmp/ray/session_2026-11-21_10-45-37_201621_16, and huge page support "
    "disabled",
)  # fmt: skip
"""The raylet's own line: with `ray start` the warning is not written to a file."""


SHRUNK = Signal(
    "store.shrunk", "System memory request exceeds memory available in ",
    r"^System memory request exceeds memory available in (?P<dir>\S+)\. The request is for (?P<asked>\d+) bytes, and the amount "
    r"available is (?P<available>\d+) bytes\.", (*RAYLET, "raylet-echo", *DRIVER),
    "System memory request exceeds memory available in /dev/shm. The request is for 10200547328 bytes, and the amount available is "
    "9663676416 bytes. You may be able to free up space by deleting files in /dev/shm. If you are inside a Docker container, you may "
    "need to pass an argument with the flag '--shm-size' to 'docker run'.", fold=("dir",),
)  # fmt: skip
"""`store_runner.cc`, level W, in all versions: `available` is nine tenths of what is free there, and the store's new size."""


@rule(
    tier="root",
    severity="warning",
    rank=67,
    explains=("store",),
    caused_by=("spilling",),
    daemons_record=True,
    looks_for=(NOT_IN_SHM, TOO_LARGE_FOR_SHM, IN_TMP, SHRUNK, store.FALLBACK, store.SPILLING_OFF, store.STORE_SIZE),
)  # fmt: skip
def object_store_on_disk(case: Case) -> Iterator[Finding]:
    """One finding for a store that is not in shared memory, and one per node whose store overflowed."""
    for event in case.of("store.refused_without_shm")[:1]:
        yield _refused(case, event)
    if found := _outside(case):
        yield found
    yield from _shrunk(case)
    yield from _overcommitted(case)
    for node, fallbacks in store.by_node(case, case.of("store.fallback")).items():
        size = sum(int(e["bytes"]) * e.count for e in fallbacks)
        capacity = store.capacity_of(case, node)
        off = store.own_log_first(
            store.by_node(case, case.of("store.spilling_off", "store.spilling_unparsed")).get(
                node, []
            )
        )
        if off or size >= (capacity or _MUCH):
            yield _overflow(case, node, fallbacks, size, off)


# ---------------------------------------------------------------- not in shared memory


def _refused(case: Case, event: Event) -> Finding:
    wanted, shm = size_of(float(event["gb"]) * 1e9), size_of(float(event["shm_gb"]) * 1e9)
    return Finding(
        f"Ray did not start because an object store of {wanted} does not fit into /dev/shm, which has {shm}",
        (Link(event, f"requested: {wanted}, available in /dev/shm: {shm}"),),
        explains=(Entity("store", "start"),),
        severity="error",
        remedies=_larger_shm(f"{float(event['gb']) * 1.1:.2f}gb"),
        covers=tuple(case.of("store.refused_without_shm")),
    )


def _outside(case: Case) -> Finding | None:
    warned, placed = case.of("store.not_in_shm"), case.of("store.in_temp_dir")
    # Where Ray itself chose the directory, not a setting.
    chosen = [e for e in placed if e["fallback"].startswith(e["dir"])]
    seen = [e for e in live.rows(case, "disks") if _is_store_on_disk(e)]
    if not warned and not chosen and not seen:
        return None
    directory = warned[0]["dir"] if warned else chosen[0]["dir"] if chosen else seen[0]["path"]
    shm = size_of(int(warned[0]["shm"])) if warned else ""
    capacity = max((float(e["gb"]) * 1e9 for e in case.of("store.size")), default=0.0)
    capacity = capacity or max((live.number(e, "store_bytes") or 0.0 for e in seen), default=0.0)
    of = f" ({size_of(capacity)})" if capacity else ""
    room = _room(case) if not warned else 0.0
    is_set = bool(capacity) and room > capacity
    because = (
        f" because this directory was set (plasma_directory), although /dev/shm has {size_of(room)}"
        if is_set
        else _because(case, shm, bool(chosen))
    )
    return Finding(
        f"The object store{of} is on disk in {directory} instead of in shared memory{because}",
        (
            *(Link(e, f"Ray found only {shm} in /dev/shm, too little for the store") for e in warned[:1]),
            *(Link(e, f"the raylet placed the store in {e['dir']}") for e in chosen[:1]),
            *(Link(e, f"the store's directory is on {e['filesystem']}, mounted at {e['mount']}") for e in seen[:1]),
        ),
        explains=(Entity("store", store.PLACE),),
        remedies=_IN_SHM if is_set else _larger_shm(_wanted(warned, capacity)),
        covers=(*warned, *chosen),
    )  # fmt: skip


def _shrunk(case: Case) -> Iterator[Finding]:
    """Stores that the raylet made smaller than requested, of all nodes: the smallest is shown."""
    events = case.of(SHRUNK.kind)
    if not events:
        return
    event = min(events, key=lambda e: int(e["available"]))
    asked, available = int(event["asked"]), int(event["available"])
    free = size_of(available / _SHARE)
    yield Finding(
        f"The object store has {size_of(available)} instead of the {size_of(asked)} that were requested: "
        f"{event['dir']} had only {free} free when Ray started",
        (Link(event, f"the raylet reduced the store to nine tenths of the {free} that were free"),),
        explains=(Entity("store", store.SHRUNK),),
        count=evidence.total(events),
        remedies=_larger_shm(f"{asked / _SHARE * 1.05 / 1e9:.2f}gb")
        if event["dir"] == "/dev/shm"
        else (_ROOM,),
        covers=tuple(events),
    )


_SHARE = 0.9
"""The part of the free space that the raylet gives to the store (`store_runner.cc`)."""
_ROOM = Remedy(
    "Free space in the store's directory, or put the store into /dev/shm",
    (
        "df -h /tmp /dev/shm",
        "docker run --shm-size=SIZE   # plus your other options. SIZE: a third of the memory. Kubernetes: an emptyDir with medium: Memory",
    ),
    risk="disruptive",
    doc=store.MEMORY_DOC,
)


def _room(case: Case) -> float:
    """Size of /dev/shm in bytes from a live collection; 0 without one."""
    sizes = [
        live.number(e, "capacity") or 0.0 for e in live.rows(case, "disks") if e["use"] == "shm"
    ]
    return max(sizes, default=0.0)


def _because(case: Case, shm: str, is_rays_choice: bool) -> str:
    """The reason: the size that Ray found at its start, else the size found live, else what Ray's choice implies."""
    room = _room(case)
    shm = shm or (size_of(room) if room else "")
    if shm:
        return f": /dev/shm has only {shm}"
    return ", because /dev/shm was too small for it" if is_rays_choice else ""


_IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs", "devtmpfs", "")
"""File systems in memory; an unknown file system is not reported."""


def _is_store_on_disk(row: Event) -> bool:
    return row["use"] == "store" and row["filesystem"] not in _IN_MEMORY


def _overcommitted(case: Case) -> Iterator[Finding]:
    """Stores whose /dev/shm is too small for them and the other files in it: live only, one per machine."""
    for row in live.rows(case, "disks"):
        size, capacity = (live.number(row, name) or 0.0 for name in ("store_bytes", "capacity"))
        if row["use"] != "shm" or not size or not capacity:
            continue
        others = _others(case, row)
        taken = (live.number(others, "bytes") or 0.0) if others else 0.0
        if size + taken <= capacity:
            continue
        occupied = f", of which other files take {size_of(taken)}" if taken else ""
        where = store.where(case, row["node_id"])
        yield Finding(
            f"The object store{where} may grow to {size_of(size)}, but /dev/shm has {size_of(capacity)}{occupied}: "
            "a process that writes to a full /dev/shm dies of SIGBUS (Bus error)",
            (
                Link(row, f"/dev/shm has {size_of(capacity)}, the store's limit is {size_of(size)}"),
                *([Link(others, f"other files in /dev/shm take {size_of(taken)}")] if others and taken else []),
            ),
            explains=(Entity("store", f"shm:{row.source.node}"),),
            remedies=_larger_shm(f"{(size + taken) * 1.1 / 1e9:.2f}gb"),
        )  # fmt: skip


def _others(case: Case, shm: Event) -> Event | None:
    """Named files in /dev/shm: the store's own file is unlinked as soon as it is open."""
    used = live.rows(case, "disk-usage")
    return next(
        (e for e in used if e["path"] == shm["path"] and e.source.node == shm.source.node), None
    )


def _wanted(warned: list[Event], capacity: float) -> str:
    """The size that Ray recommends, or the same computed as Ray does."""
    recommended = next((e["wanted"] for e in warned if e["wanted"]), "")
    return f"{recommended or f'{capacity * 1.1 / 1e9:.2f}'}gb" if recommended or capacity else "…gb"


_IN_SHM = (
    Remedy(
        "Let Ray put the store into /dev/shm, which has enough room",
        (
            "ray start   # with the options that this node was started with, without --plasma-directory",
            "ray.init()               # plus your other options. Without _plasma_directory",
        ),
        risk="disruptive",
        doc="https://docs.ray.io/en/latest/ray-core/starting-ray.html",
    ),
)


def _larger_shm(size: str) -> tuple[Remedy, ...]:
    return (
        Remedy(
            "Give the container more shared memory",
            (
                paste.shell(
                    "docker run --shm-size={size:size}   # plus your other options", size=size
                ),
                "# Kubernetes: an emptyDir with medium: Memory, mounted at /dev/shm",
                "df -h /dev/shm   # outside a container: find what fills it, delete old files",
            ),
            risk="disruptive",
            doc="https://docs.ray.io/en/latest/ray-core/starting-ray.html",
        ),
        Remedy(
            "Or request a smaller store that fits into the present /dev/shm",
            (
                "ray start --object-store-memory=BYTES   # plus your other options. BYTES: less than df reports",
                "ray.init(object_store_memory=BYTES)   # if the program starts Ray",
            ),
            risk="disruptive",
            doc=store.MEMORY_DOC,
        ),
    )


# ---------------------------------------------------------------- overflow


def _overflow(
    case: Case, node: str, fallbacks: list[Event], size: int, off: list[Event]
) -> Finding:
    capacity = store.capacity_of(case, node)
    count = evidence.total(fallbacks)
    holds = f" of {size_of(capacity)}" if capacity else ""
    spilling = " and spilling is switched off" if off else ""
    return Finding(
        f"The object store{holds}{store.where(case, node)} is full{spilling}: Ray put {evidence.many(count, 'object')} "
        f"({size_of(size)}) into memory-mapped files on disk, where each access is slow",
        (
            *(Link(e, store.why_off(e)) for e in off[:1]),
            Link(fallbacks[0], f"the first object in a file: {size_of(int(fallbacks[0]['bytes']))}"),
            *(Link(e, f"the last of {evidence.many(count, 'object')} in files") for e in fallbacks[1:][-1:]),
        ),
        explains=(Entity("store", node),),
        caused_by=(Entity("spilling", node),),
        subjects=(Subject("node", node, node=node),) if node else (),
        count=count,
        remedies=(*((store.SPILLING_ON,) if off else ()), *store.larger(capacity + size), store.FEWER),
        covers=(*fallbacks, *off),
    )  # fmt: skip


# ------------------------------------------------------------------ examples


def _raylet(second: int, text: str) -> str:
    return f"[2026-11-21 07:53:{second:02d},043 I 293 303] (raylet) dlmalloc.cc:378: {text}\n"


_START = _raylet(6, "Allowing the Plasma store to use up to 0.104858GB of memory.")
_OVERFLOW = "".join(_raylet(8 + n, store.FALLBACK.sample) for n in range(6))
_HEADS = {"logs/gcs_server.out": ""}
_AT = 1795247700.0


def _place(
    use: str, path: str, filesystem: str, capacity: int, held: int = 104_857_600
) -> dict[str, Any]:
    """A row of the table `disks`: the store's directory, or /dev/shm."""
    return {
        "path": path, "use": use, "mount": path, "filesystem": filesystem, "capacity": capacity, "free": capacity, "used_fraction": 0.0,
        "store_bytes": held or None, "node_id": "",
    }  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    Example(
        "spilling is off, so the store overflows into files",
        {**_HEADS, "logs/raylet.out": _START + _raylet(7, store.SPILLING_OFF.sample) + _OVERFLOW},
        says=("6 objects", "120 MiB", "100 MiB", "switched off", "object_store_memory="),
    ),
    Example(
        "a container with 64 MiB of shared memory",
        {
            **_HEADS,
            "logs/raylet.out": _START + _raylet(7, IN_TMP.sample),
            "driver.log": f"2026-11-21 07:53:05,000\tWARNING services.py:2248 -- {NOT_IN_SHM.sample}\n",
        },
        says=("/tmp/ray", "64.0 MiB", "--shm-size=0.32gb"),
    ),
    console(
        "a store of more than 10 GB: Ray refuses to start",
        f'Traceback (most recent call last):\n  File "/app/main.py", line 3, in <module>\n{TOO_LARGE_FOR_SHM.sample}\n',
        says=("10.2 GiB", "64.0 MiB", "--shm-size=12.10gb"),
        severity="error",
    ),
    console(
        "the raylet finds /dev/shm a little too small, and a console has its warning",
        f"[2026-11-21 07:53:06,435 W 39 39] (raylet) store_runner.cc:83: {SHRUNK.sample}\n",
        says=("9.0 GiB instead of the 9.5 GiB", "10.0 GiB free", "--shm-size=11.90gb"),
    ),
    console(
        "the same warning, echoed by a driver, about a store whose directory was set",
        f"(raylet, ip=10.0.0.3) {SHRUNK.sample.replace('available in /dev/shm', 'available in /mnt/store')}\n",
        says=("/mnt/store had only",),
    ),
    console(
        "a task and a program quote the warnings",
        f"(check pid=12) {SHRUNK.sample}\nWARN saw: {SHRUNK.sample}\n(check pid=12) {NOT_IN_SHM.sample}\n",
    ),
    Example(
        "one block falls back while spilling catches up, the store is in /dev/shm, and a task prints the warning",
        {
            **_HEADS,
            "logs/raylet.out": _START
            + _raylet(7, IN_TMP.sample.replace("/tmp/ray,", "/dev/shm,", 1))
            + _raylet(8, store.FALLBACK.sample),
            "driver.log": f"(check pid=12) {NOT_IN_SHM.sample}\n",
        },
    ),
    Example(
        "live: the store's directory is on a disk",
        {
            **_HEADS,
            "logs/raylet.out": _START,
            **sample.tables(
                _AT,
                disks=[
                    _place("store", "/tmp/ray", "ext4", 252 << 30),
                    _place("shm", "/dev/shm", "tmpfs", 64 << 20, 0),
                ],
            ),
        },
        says=("/tmp/ray", "/dev/shm has only 64.0 MiB", "--shm-size=0.12gb"),
    ),
    Example(
        "live: the store in /dev/shm may grow larger than /dev/shm",
        {
            **_HEADS,
            "logs/raylet.out": _START,
            **sample.tables(_AT, disks=[_place("shm", "/dev/shm", "tmpfs", 64 << 20)]),
        },
        says=("100 MiB", "/dev/shm has 64.0 MiB", "SIGBUS", "--shm-size=0.12gb"),
    ),
    Example(
        "live: the store is in another memory file system, and the small /dev/shm is not used",
        {
            **_HEADS,
            "logs/raylet.out": _START,
            **sample.tables(
                _AT,
                disks=[
                    _place("store", "/mnt/huge", "hugetlbfs", 8 << 30),
                    _place("shm", "/dev/shm", "tmpfs", 64 << 20, 0),
                ],
            ),
        },
    ),
)
