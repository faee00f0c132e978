"""Files of dead sessions: their folders, spilled objects, files in shared memory.

A session is dead if no process of this machine uses it, no socket in its folder is bound, and nothing in it
was written for ten minutes: another container may use the same folder, and a living GCS writes every 10 s
(Ray 2.60). A file in `/dev/shm` is dead if no process of any container has it open: only then does the kernel
grant a lease for writing (fcntl(2), F_SETLEASE).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import posixpath
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from raydoctor.act.audit import Audit
from raydoctor.act.zombies import history
from raydoctor.act.zombies.leftovers import SweepOptions
from raydoctor.capture import outputs, owners
from raydoctor.capture.session import is_session
from raydoctor.model.patterns import pattern
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.machine import sessions, storage
from raydoctor.observe.processes import discover, ownership, proc
from raydoctor.observe.processes.ownership import Machine

QUIET = 600.0
"""Seconds without a change; living sessions write more often."""
_IN_USE = "it is in use now"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HEAD = 1 << 16
_SHARED = "/dev/shm"
_SHARED_FILES = pattern(r"plasma[A-Za-z0-9]{6}|sem\.(?:obj|hdr).+")
"""Ray's object store, which Ray unlinks right after it is created, unless it crashes in between; and
semaphores of mutable objects (compiled graphs), which their creator unlinks (Ray 2.60)."""
_SPILLED = pattern(r"ray_spilled_objects(?:_([0-9a-f]+))?")


class Stale(NamedTuple):
    """A file or folder of a dead session."""

    path: str
    what: str
    """`session`, `spilled objects`, `shared memory`."""
    bytes: int
    age_s: float
    """Seconds since the last write to it."""
    truncated: bool = False
    """Whether `bytes` is only a lower limit."""
    removed: bool = False
    reason: str = ""
    """Why it is not or was not removed."""

    @property
    def result(self) -> str:
        """Whether it was removed, or why not; empty before."""
        if self.removed:
            return "removed"
        return f"kept: {self.reason}" if self.reason else ""


def find(options: SweepOptions) -> list[Stale]:
    """Files of dead sessions on this machine; `reason` is set if one is not to be removed."""
    used = _Used(ownership.survey_machine(thorough=True, folders=history.session_folders()))
    dead = [each for each in _sessions(used) if options.means(each.path)]
    found = [*dead, *_spilled([each.path for each in dead])]
    if not options.session:
        found += _shared()
    return [_judged(each, options) for each in found]


def remove(plan: Sequence[Stale], options: SweepOptions, audit: Audit) -> list[Stale]:
    """Remove planned files that still belong to dead sessions; each with its result."""
    still = {each.path: each for each in find(options)}
    done = []
    for each in plan:
        now = still.get(each.path)
        if each.reason:
            done.append(each)
        elif now is None or now.reason:
            done.append(each._replace(reason=now.reason if now else _IN_USE))
        else:
            done.append(_removed(now, audit))
    return done


def _removed(each: Stale, audit: Audit) -> Stale:
    problem = _problem_of(each)
    audit.write("remove", path=each.path, bytes=each.bytes, result=problem or "removed")
    return each._replace(removed=not problem, reason=problem)


def _problem_of(each: Stale) -> str:
    """Remove a file or folder. Empty if it is gone, else why not."""
    try:
        with outputs.place(each.path) as place:
            try:
                folder = os.open(place.name, _FOLDER, dir_fd=place.folder)
            except NotADirectoryError:
                os.unlink(place.name, dir_fd=place.folder)
                return ""
            try:
                return _emptied(folder) or _without(place)
            finally:
                os.close(folder)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)


def _emptied(folder: int) -> str:
    """Remove all that an open folder contains, unless it is in use. Raises OSError.

    Ray makes `/tmp/ray` writable for all users: another folder may have this name by now. What is removed is
    therefore below the descriptor.
    """
    if time.time() - _changed(folder) < QUIET:
        return _IN_USE
    for name in os.listdir(folder):
        inside = f"/proc/self/fd/{folder}/{name}"
        if stat.S_ISDIR(os.lstat(inside).st_mode):
            shutil.rmtree(inside)  # follows no link
        else:
            os.unlink(inside)
    return ""


def _changed(folder: int) -> float:
    """The last change of an open folder, its logs and their direct entries: a living session writes there."""
    changed = os.fstat(folder).st_mtime
    with suppress(OSError):
        logs = os.open("logs", _FOLDER, dir_fd=folder)
        try:
            changed = max(changed, os.fstat(logs).st_mtime)
            for name in os.listdir(logs):
                with suppress(OSError):
                    changed = max(changed, os.lstat(name, dir_fd=logs).st_mtime)
        finally:
            os.close(logs)
    return changed


def _without(place: outputs.OutputPlace) -> str:
    """Remove an empty folder. Raises OSError."""
    try:
        os.rmdir(place.name, dir_fd=place.folder)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return "a process created new files in it"
    return ""


def _judged(each: Stale, options: SweepOptions) -> Stale:
    try:
        owner = os.lstat(each.path).st_uid
        owners.output_path(each.path)
    except OSError as error:
        return each._replace(reason=error.strerror or str(error))
    mine = os.geteuid()
    if mine not in (owner, 0):
        return each._replace(reason="it belongs to another user")
    if owner != mine and not options.all_users:
        return each._replace(reason="it belongs to another user: --all-users includes it")
    if any(mount == each.path or mount.startswith(f"{each.path}/") for mount in _mounts()):
        return each._replace(reason="a file system is mounted in it")
    return each


def _mounts() -> list[str]:
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8") as stream:
        return [words[4] for line in stream if len(words := line.split()) > 4]
    return []


# ------------------------------------------------------------------ sessions


class _Used:
    """Folders that processes of this machine use."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.sessions = ownership.sessions(machine) | {t.session for t in machine.traces.values()}
        self.beside = {session for pid, session in _named(machine) if proc.has_our_files(pid)}
        """Sessions in whose parent folders other sessions are searched."""
        self.paths = set(history.bound_sockets()) | {
            path for pid in machine.processes for path in _places(pid)
        }

    def uses(self, folder: str) -> bool:
        """Whether a process has a file or socket of it open, or its working directory or program in it."""
        real = os.path.realpath(folder)
        if folder in self.sessions or real in {os.path.realpath(s) for s in self.sessions}:
            return True
        return any(path == real or path.startswith(f"{real}/") for path in self.paths)


def _named(machine: Machine) -> Iterator[tuple[int, str]]:
    """Each process of a session, and the session's folder as that process names it."""
    for logs in (machine.log, machine.output):
        yield from ((pid, log.session) for pid, log in logs.items())
    yield from ((d.pid, d.session_dir) for d in machine.daemons.values() if d.session_dir)
    yield from ((pid, trace.session) for pid, trace in machine.traces.items())


def _places(pid: int) -> Iterator[str]:
    yield from proc.files(pid).values()
    for name in ("cwd", "exe", "root"):
        with suppress(OSError):
            yield os.readlink(f"/proc/{pid}/{name}")


def _sessions(used: _Used) -> list[Stale]:
    found: dict[str, Stale] = {}
    idle = [s for s in history.session_folders(used.beside) if not used.uses(s)]
    for root in sorted({os.path.dirname(session) for session in idle}):
        # The collector lists the folders beside the given session.
        for piece in sessions.tables(Cluster(session_dir=f"{root}/session")):
            rows = json.loads(piece.data)["rows"] if isinstance(piece, Piece) else ()
            for row in rows:
                is_old = not row["alive"] and row["age_s"] > QUIET
                if is_old and is_session(posixpath.basename(row["path"])):
                    what = Stale(
                        row["path"], "session", row["bytes"], row["age_s"], row["truncated"]
                    )
                    found.setdefault(row["path"], what)
    return [each for each in found.values() if each.path in idle]


# ------------------------------------------------------------------ objects


def _spilled(dead: Sequence[str]) -> Iterator[Stale]:
    """Folders of spilled objects outside the session folders, of nodes of dead sessions.

    Other folders may belong to a living node on a machine that shares the file system.
    """
    folders = {f for c in discover.clusters() for s in storage.of_cluster(c) for f in s.spill}
    for folder in sorted(folders):
        for name in _names(folder):
            match = _SPILLED.fullmatch(name)
            if match and match[1] and any(_had_node(session, match[1]) for session in dead):
                path = f"{folder}/{name}"
                yield Stale(path, "spilled objects", *_size(path))


def _had_node(session: str, node_id: str) -> bool:
    """Whether a raylet's log of this session begins with this node id."""
    for path in history.raylet_logs(session):
        with suppress(OSError):
            if node_id.encode() in owners.read_regular(path, _HEAD).data:
                return True
    return False


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _size(path: str) -> tuple[int, float]:
    """Bytes on disk and seconds since the last change of a folder's direct entries."""
    size, changed = 0, 0.0
    with suppress(OSError), os.scandir(path) as entries:
        changed = os.lstat(path).st_mtime
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            size += status.st_blocks * 512
            changed = max(changed, status.st_mtime)
    return size, round(max(0.0, time.time() - changed), 1)


# ------------------------------------------------------------------ shared memory


def _shared() -> Iterator[Stale]:
    for name in _names(_SHARED):
        path = f"{_SHARED}/{name}"
        if _SHARED_FILES.fullmatch(name):
            with suppress(OSError):
                status = os.lstat(path)
                age = max(0.0, time.time() - max(status.st_mtime, status.st_ctime))
                if stat.S_ISREG(status.st_mode) and age > QUIET and not _is_open(path):
                    yield Stale(path, "shared memory", status.st_blocks * 512, round(age, 1))


def _is_open(path: str) -> bool:
    """Whether a process has the file open or mapped; True if that is unknown."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return True
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        os.close(file)
    return False
