"""What fills the disks that a cluster writes to: table `disk-usage`, a row for each kind of thing.

A walk, bounded in time and entries: what it did not finish is marked `truncated`, and then is at least as
large as told. It stays on one file system, follows no link, and counts what files take on the disk, not
their length.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.machine import storage

SECONDS = 1.0
"""For all of it."""
_ENTRIES = 400_000
_SPILLED = "ray_spilled_objects"
"""How folders of spilled objects are called (`DEFAULT_OBJECT_PREFIX`, Ray 2.9 to 2.60; then `_<node id>`)."""
_SHM = "/dev/shm"


class _Thing(NamedTuple):
    """One kind of thing, and the folders or files that it is made of."""

    what: str
    path: str
    """That names it."""
    parts: tuple[str, ...]


def tables(cluster: Cluster) -> Iterator[Piece | Gap]:
    """The table `disk-usage`, the largest first."""
    things = list(_things(cluster))
    if not things:
        return
    walk = _Walk(time.monotonic() + SECONDS)
    rows = [_row(thing, walk, len(things) - number) for number, thing in enumerate(things)]
    rows = [row for row in rows if row["bytes"] or row["truncated"]]
    yield table("disk-usage", sorted(rows, key=lambda row: -int(row["bytes"])), source="walk")


def _things(cluster: Cluster) -> Iterator[_Thing]:
    session = cluster.session_dir
    spills = dict.fromkeys(
        path
        for folder in (*(f for s in storage.of_cluster(cluster) for f in s.spill), session)
        for path in _children(folder)
        if posixpath.basename(path).startswith(_SPILLED)
    )
    if spills:
        yield _Thing("spilled objects", posixpath.dirname(next(iter(spills))), tuple(spills))
    if session:
        yield from _of_session(session)
        old = tuple(_old_sessions(session))
        if old:
            yield _Thing("old sessions", posixpath.dirname(session), old)
    if shared := tuple(_children(_SHM)):
        yield _Thing("shared memory", _SHM, shared)


def _of_session(session: str) -> Iterator[_Thing]:
    logs, environments = f"{session}/logs", f"{session}/runtime_resources"
    known = {logs, environments}
    yield _Thing("logs", logs, (logs,))
    yield _Thing("runtime environments", environments, (environments,))
    rest = [path for path in _children(session) if path not in known and _SPILLED not in path]
    if rest:
        yield _Thing("the rest of the session", session, tuple(rest))


def _old_sessions(session: str) -> Iterator[str]:
    """Other sessions' folders that no raylet or GCS of this machine has a socket in."""
    used = _socket_paths()
    for path in _children(posixpath.dirname(session)):
        is_session = posixpath.basename(path).startswith("session_2")
        if is_session and path != session and not any(p.startswith(f"{path}/") for p in used):
            yield path


def _socket_paths() -> set[str]:
    """Paths of Unix sockets that somebody has bound: a dead process's are not among them."""
    with suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        return {line.split(maxsplit=7)[7].strip() for line in file if line.count(" /")}
    return set()


def _children(folder: str) -> list[str]:
    with suppress(OSError):
        return [f"{folder}/{name}" for name in sorted(os.listdir(folder))] if folder else []
    return []


# ------------------------------------------------------------------ the walk


def _row(thing: _Thing, walk: _Walk, left: int) -> dict[str, Any]:
    # Each may take its share of the time that is left and what those before it did not need.
    walk.until = time.monotonic() + max(0.0, walk.deadline - time.monotonic()) * 2 / (left + 1)
    walk.is_cut = False
    size = sum(walk.size(part) for part in thing.parts)
    return {
        "path": thing.path,
        "bytes": size,
        "what": thing.what,
        "count": len(thing.parts),
        "truncated": walk.is_cut,
    }


class _Walk:
    """Sizes of folders, until time or entries are used up."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.until = deadline
        self.left = _ENTRIES
        self.is_cut = False
        self._linked: set[tuple[int, int]] = set()

    def size(self, path: str) -> int:
        """Bytes that it takes on its file system; sets `is_cut` where that is not all."""
        try:
            top = os.lstat(path)
        except OSError:
            return 0
        size, folders = self._own(top), [path] if os.path.isdir(path) else []
        if os.path.islink(path):
            return size
        while folders:
            if time.monotonic() > self.until or self.left <= 0:
                self.is_cut = True
                break
            for told, name in self._entries(folders.pop(), top.st_dev):
                size += self._own(told)
                if name:
                    folders.append(name)
        return size

    def _entries(self, folder: str, device: int) -> Iterator[tuple[os.stat_result, str]]:
        """Each entry, with its path where it is a folder to look into."""
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self.left -= 1
                    with suppress(OSError):
                        told = entry.stat(follow_symlinks=False)
                        if told.st_dev == device:
                            yield told, entry.path if entry.is_dir(follow_symlinks=False) else ""
                    if self.left % 1024 == 0 and time.monotonic() > self.until:
                        self.is_cut = True
                        return
        except FileNotFoundError:
            pass  # removed meanwhile
        except OSError:
            self.is_cut = True

    def _own(self, told: os.stat_result) -> int:
        """Its blocks; a file with several names counts once."""
        if told.st_nlink > 1:
            identity = (told.st_dev, told.st_ino)
            if identity in self._linked:
                return 0
            self._linked.add(identity)
        return told.st_blocks * 512
