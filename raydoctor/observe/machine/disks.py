"""How full the file systems of a cluster are, by Ray's own measure: table `disks`.

Ray checks `available / capacity` of its spill and fallback folders, and stops writing there once usage
reaches `local_fs_capacity_threshold` (`file_system_monitor.cc`). "Available" is the space for unprivileged
users, so blocks that ext4 reserves for root count as used.
"""

from __future__ import annotations

import os
import posixpath
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.run import Collector
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.machine import disk_usage, storage
from raydoctor.observe.machine.storage import Storage

_PATIENCE = 2.0
"""Seconds for a file system to answer; a local one takes microseconds, a dead NFS server never answers."""
_SHM = "/dev/shm"


class _RayFolder(NamedTuple):
    """A folder and its use by Ray."""

    use: str
    """`spill`, `session`, `store`, `shm`, `tmp`."""
    path: str
    node_id: str = ""
    threshold: float = storage.THRESHOLD
    store_bytes: int = 0
    """Size of the object stores in it."""


class _DiskMount(NamedTuple):
    folder: str
    filesystem: str
    device: str


def collectors(cluster: Cluster) -> list[Collector]:
    """One collector for the numbers, and one for the walk, which must not delay them."""
    hint = "df -h, as a user who may read Ray's folders"
    return [
        Collector("disks", lambda: tables(cluster), hint=hint),
        Collector(
            "what fills the disks", lambda: disk_usage.tables(cluster), optional=True, hint=hint
        ),
    ]


def tables(cluster: Cluster) -> Iterator[Piece | Gap]:
    """The table `disks`, and a gap for each file system that does not answer."""
    mounts = _mounts()
    rows, gaps = [], []
    for place, found in _asked(_places(cluster)):
        if isinstance(found, Gap):
            gaps.append(found)
        elif found is not None:
            rows.append(_row(place, found, mounts))
    yield table("disks", rows, source="statvfs")
    yield from gaps


def _places(cluster: Cluster) -> list[_RayFolder]:
    """Every relevant folder, once for each use."""
    stores = storage.of_cluster(cluster)
    node = cluster.node_ids[0] if len(cluster.node_ids) == 1 else ""
    threshold = stores[0].threshold if stores else storage.THRESHOLD
    places = [_RayFolder("spill", path, s.node_id, s.threshold) for s in stores for path in s.spill]
    if cluster.session_dir:
        # By default, objects are spilled below the session.
        places.append(_RayFolder("session", cluster.session_dir, node, threshold))
        places.append(_RayFolder("tmp", posixpath.dirname(cluster.session_dir), node, threshold))
    places += _store_places(stores)
    if sys.platform.startswith("linux") and not any(p.path == _SHM for p in places):
        places.append(_RayFolder("shm", _SHM, node))
    return list({(p.use, p.path): p for p in places}.values())


def _store_places(stores: list[Storage]) -> Iterator[_RayFolder]:
    """One for each folder with object stores, with the sum of their sizes."""
    for folder in dict.fromkeys(s.store for s in stores if s.store):
        there = [s for s in stores if s.store == folder]
        size = sum(s.store_bytes for s in there)
        use = "shm" if folder == _SHM else "store"
        yield _RayFolder(use, folder, there[0].node_id if len(there) == 1 else "", store_bytes=size)


# ------------------------------------------------------------------ queries


class _DiskReply(NamedTuple):
    path: str
    """With links resolved."""
    status: os.statvfs_result


def _asked(places: Iterable[_RayFolder]) -> Iterator[tuple[_RayFolder, _DiskReply | Gap | None]]:
    """Query each path in its own thread, in parallel: one may block in the kernel."""
    places = list(places)
    answers: queue.SimpleQueue[tuple[str, _DiskReply | OSError]] = queue.SimpleQueue()
    paths = dict.fromkeys(place.path for place in places)
    for path in paths:
        threading.Thread(target=_ask, args=(path, answers), daemon=True).start()
    found: dict[str, _DiskReply | OSError] = {}
    deadline = time.monotonic() + _PATIENCE
    with suppress(queue.Empty):
        while len(found) < len(paths):
            path, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            found[path] = answer
    for place in places:
        yield place, _reply_or_gap(place, found.get(place.path))


def _ask(path: str, answers: queue.SimpleQueue[tuple[str, _DiskReply | OSError]]) -> None:
    try:
        resolved = os.path.realpath(path)
        answers.put((path, _DiskReply(resolved, os.statvfs(resolved))))
    except OSError as error:
        answers.put((path, error))


def _reply_or_gap(
    place: _RayFolder, answer: _DiskReply | OSError | None
) -> _DiskReply | Gap | None:
    what = f"disk of {place.path}"
    if answer is None:
        why = f"the file system did not answer within {_PATIENCE:g} s"
        return Gap(
            what, why, "Is it on a network server that is down? See `mount` and `sudo dmesg -T`."
        )
    if isinstance(answer, FileNotFoundError):
        return None  # nothing has been spilled yet, or the session was removed
    if isinstance(answer, OSError):
        return Gap(what, answer.strerror or str(answer))
    return answer


# ------------------------------------------------------------------ rows


def _row(place: _RayFolder, answer: _DiskReply, mounts: list[_DiskMount]) -> dict[str, Any]:
    status = answer.status
    mount = _mount_of(answer.path, mounts)
    capacity, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    return {
        "path": place.path,
        "use": place.use,
        "mount": mount.folder,
        "filesystem": mount.filesystem,
        "device": mount.device,
        "capacity": capacity,
        "free": free,
        "used_fraction": round(1 - free / capacity, 4) if capacity else 1.0,
        "inodes": status.f_files,
        "inodes_free": status.f_favail,
        "threshold": place.threshold,
        "store_bytes": place.store_bytes or None,
        "node_id": place.node_id,
    }


def _mounts() -> list[_DiskMount]:
    """All mounts in the order of mounting: a later one hides an earlier one."""
    found = []
    with (
        suppress(OSError),
        open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            place, _, kind = line.partition(" - ")
            words, system = place.split(), kind.split()
            if len(words) > 4 and len(system) > 1:
                found.append(_DiskMount(_unescaped(words[4]), system[0], _unescaped(system[1])))
    return found


def _unescaped(word: str) -> str:
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        word = word.replace(code, character)
    return word


def _mount_of(path: str, mounts: list[_DiskMount]) -> _DiskMount:
    best = _DiskMount("", "", "")
    for mount in mounts:
        inside = path == mount.folder or path.startswith(mount.folder.rstrip("/") + "/")
        if inside and len(mount.folder) >= len(best.folder):
            best = mount
    return best
