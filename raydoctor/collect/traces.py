"""What still ties a process to Ray when its environment and output do not: for a thorough look.

Three things that a descendant of a worker does not lose by itself (measured with Ray 2.60):
- what it maps of Ray's object store: files `plasma…`, deleted as soon as they are made, of the raylet that
  maps the same ones;
- its process group: Ray makes each worker the leader of one (2.57 and later), and Linux gives no number
  anew that a group still has;
- the session's runtime environment that its program lies in (`runtime_resources`).
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from raydoctor._pattern import pattern
from raydoctor.capture.session import is_session
from raydoctor.collect import proc
from raydoctor.collect.proc import Process

_PLASMA = b"/dev/shm/plasma"
_MAPS = 8 << 20
_ENVIRONMENTS = "/runtime_resources/"
_WORKER_LOG = pattern(r"python-core-worker-[0-9a-f]+_(\d+)\.log")
_CREATING = pattern(rb"Creating actor\S*:? *(?:actor_id[=:] ?)?[0-9a-f]{24}([0-9a-f]{8})\b")
_HEAD = 1 << 17


class Trace(NamedTuple):
    """What ties a process to Ray."""

    why: str
    """What it does, as a clause that follows its name."""
    session: str = ""
    raylet: int = 0
    """Pid of the raylet whose object store it maps; 0 where none that runs does, or none is told."""
    worker: int = 0
    """Pid of the worker whose process group it is in."""


def stores(raylets: Iterable[int]) -> dict[bytes, int]:
    """Device and inode of the object stores' files -> the raylet that maps them."""
    return {store: pid for pid in raylets for store in _mapped(pid)}


def find(
    process: Process, known: Mapping[bytes, int], groups: Mapping[int, tuple[str, float]]
) -> Trace | None:
    """What ties this process to Ray; None where nothing does.

    `known`: what `stores` found; `groups`: what `worker_groups` found.
    """
    if store := _mapped(process.pid):
        raylet = next((known[s] for s in store if s in known), 0)
        return Trace("maps Ray's object store", raylet=raylet)
    program = next(iter(proc.command(process.pid)), "")
    session, found, _ = program.partition(_ENVIRONMENTS)
    if found and is_session(posixpath.basename(session)):
        return Trace(f"runs a program of a runtime environment of {session}", session)
    session, written = groups.get(process.pgid, ("", 0.0))
    # What started after the worker's last word may be of another group that got the number.
    if session and process.started_at <= written:
        return Trace(
            f"is in the process group of worker pid {process.pgid}",
            session,
            worker=process.pgid,
        )
    return None


def worker_groups(pgids: Iterable[int], sessions: Iterable[str]) -> dict[int, tuple[str, float]]:
    """Group whose leader is gone -> the session that had a worker of this pid, and when that wrote last."""
    wanted = set(pgids)
    found: dict[int, tuple[str, float]] = {}
    for session in sessions if wanted else ():
        with suppress(OSError), os.scandir(f"{session}/logs") as entries:
            for entry in entries:
                match = _WORKER_LOG.fullmatch(entry.name)
                if match and (pid := int(match[1])) in wanted:
                    written = entry.stat(follow_symlinks=False).st_mtime
                    found[pid] = max(found.get(pid, ("", 0.0)), (session, written), key=_last)
    return found


def job_of_actor(session: str, worker: str, pid: int) -> str:
    """The job of the actor that a worker holds, by its log; empty where there is none.

    `core_worker.cc:3247: Creating actor actor_id=1b53c2df8dd1c90345f261f901000000`: an actor's id ends with
    its job's (Ray 2.9 to 2.60).
    """
    with (
        suppress(OSError),
        open(f"{session}/logs/python-core-worker-{worker}_{pid}.log", "rb") as stream,
    ):
        if match := _CREATING.search(stream.read(_HEAD)):
            return match[1].decode()
    return ""


def _last(found: tuple[str, float]) -> float:
    return found[1]


def _mapped(pid: int) -> set[bytes]:
    """Device and inode of each file of an object store that it maps."""
    if not proc.LINUX:
        return set()
    try:
        with open(f"/proc/{pid}/maps", "rb") as stream:
            lines = stream.read(_MAPS).splitlines()
    except OSError:
        return set()
    # `7f10…-7f20… rw-s 00000000 00:1a 4242   /dev/shm/plasmaXyz123 (deleted)`
    words = (line.split(maxsplit=5) for line in lines if _PLASMA in line)
    return {w[3] + b" " + w[4] for w in words if len(w) > 5 and w[5].startswith(_PLASMA)}
