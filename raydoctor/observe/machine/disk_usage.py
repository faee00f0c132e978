"""What fills the disks that a cluster writes to: table `disk-usage`, a row for each kind of content.

The walk is limited in time and entries: an unfinished row is marked `truncated`, and its size is a lower
bound. It stays on one file system, does not follow links, and counts allocated blocks, not file lengths.
"""

from __future__ import annotations

import os
import posixpath
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from raydoctor.cluster import disk_contents as contents
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.machine import storage

SECONDS = 1.0
"""For all of it."""
_ENTRIES = 400_000
_SPILLED = "ray_spilled_objects"
"""Prefix of folders of spilled objects (`DEFAULT_OBJECT_PREFIX`, Ray 2.9 to 2.60; then `_<node id>`)."""
_SHM = "/dev/shm"


class _Content(NamedTuple):
    """One kind of content, and its folders or files."""

    what: str
    path: str
    """The path shown for it."""
    parts: tuple[str, ...]


def tables(cluster: Cluster) -> Iterator[Piece | Gap]:
    """The table `disk-usage`, largest first."""
    things = list(_things(cluster))
    if not things:
        return
    walk = _Walk(time.monotonic() + SECONDS)
    rows = [_row(thing, walk, len(things) - number) for number, thing in enumerate(things)]
    rows = [row for row in rows if row["bytes"] or row["truncated"]]
    yield table("disk-usage", sorted(rows, key=lambda row: -int(row["bytes"])), source="walk")


def _things(cluster: Cluster) -> Iterator[_Content]:
    session = cluster.session_dir
    spills = dict.fromkeys(
        path
        for folder in (*(f for s in storage.of_cluster(cluster) for f in s.spill), session)
        for path in _children(folder)
        if posixpath.basename(path).startswith(_SPILLED)
    )
    if spills:
        yield _Content(contents.SPILLED, posixpath.dirname(next(iter(spills))), tuple(spills))
    if session:
        yield from _of_session(session)
        old = tuple(_old_sessions(session))
        if old:
            yield _Content(contents.OLD_SESSIONS, posixpath.dirname(session), old)
    if shared := tuple(_children(_SHM)):
        yield _Content(contents.SHARED_MEMORY, _SHM, shared)


def _of_session(session: str) -> Iterator[_Content]:
    logs, environments = f"{session}/logs", f"{session}/runtime_resources"
    known = {logs, environments}
    yield _Content(contents.LOGS, logs, (logs,))
    yield _Content(contents.ENVIRONMENTS, environments, (environments,))
    rest = [path for path in _children(session) if path not in known and _SPILLED not in path]
    if rest:
        yield _Content(contents.OTHER, session, tuple(rest))


def _old_sessions(session: str) -> Iterator[str]:
    """Folders of other sessions without a socket of a raylet or GCS of this machine."""
    used = _socket_paths()
    for path in _children(posixpath.dirname(session)):
        is_session = posixpath.basename(path).startswith("session_2")
        if is_session and path != session and not any(p.startswith(f"{path}/") for p in used):
            yield path


def _socket_paths() -> set[str]:
    """Paths of bound Unix sockets; those of dead processes are not among them."""
    with suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        return {line.split(maxsplit=7)[7].strip() for line in file if line.count(" /")}
    return set()


def _children(folder: str) -> list[str]:
    with suppress(OSError):
        return [f"{folder}/{name}" for name in sorted(os.listdir(folder))] if folder else []
    return []


# ------------------------------------------------------------------ the walk


def _row(thing: _Content, walk: _Walk, left: int) -> dict[str, Any]:
    # Each may use its share of the remaining time, including what earlier ones did not use.
    walk.until = time.monotonic() + max(0.0, walk.deadline - time.monotonic()) * 2 / (left + 1)
    walk.is_cut, walk.largest = False, (0, "")
    size = sum(walk.size(part) for part in thing.parts)
    return {
        "path": thing.path,
        "bytes": size,
        "what": thing.what,
        "count": len(thing.parts),
        "truncated": walk.is_cut,
        "largest": walk.largest[1],
        "largest_bytes": walk.largest[0],
    }


class _Walk:
    """Sizes of folders, until the time or entry limit."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.until = deadline
        self.left = _ENTRIES
        self.is_cut = False
        self.largest = (0, "")
        """The allocated bytes and the path of the largest file."""
        self._linked: set[tuple[int, int]] = set()

    def size(self, path: str) -> int:
        """Bytes allocated on its file system; sets `is_cut` if the sum is incomplete."""
        try:
            top = os.lstat(path)
        except OSError:
            return 0
        size = self._own(top, path)
        if os.path.islink(path):
            return size
        folders = [path] if os.path.isdir(path) else []
        while folders:
            if time.monotonic() > self.until or self.left <= 0:
                self.is_cut = True
                break
            for status, name in self._entries(folders.pop(), top.st_dev):
                size += self._own(status, name)
                if stat.S_ISDIR(status.st_mode):
                    folders.append(name)
        return size

    def _entries(self, folder: str, device: int) -> Iterator[tuple[os.stat_result, str]]:
        """Each entry's status and path."""
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self.left -= 1
                    with suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        if status.st_dev == device:
                            yield status, entry.path
                    if self.left % 1024 == 0 and time.monotonic() > self.until:
                        self.is_cut = True
                        return
        except FileNotFoundError:
            pass  # removed meanwhile
        except OSError:
            self.is_cut = True

    def _own(self, status: os.stat_result, path: str) -> int:
        """Its allocated bytes; a file with several hard links counts once."""
        if status.st_nlink > 1:
            identity = (status.st_dev, status.st_ino)
            if identity in self._linked:
                return 0
            self._linked.add(identity)
        allocated = status.st_blocks * 512
        if stat.S_ISREG(status.st_mode):
            self.largest = max(self.largest, (allocated, path), key=lambda found: found[0])
        return allocated
