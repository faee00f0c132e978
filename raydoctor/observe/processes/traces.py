"""What still ties a process to Ray when its environment and its output do not: for a thorough look.

Two things that a descendant of a worker does not lose by itself (measured with Ray 2.60):
- its process group: Ray makes each worker the leader of one (2.57 and later), and Linux gives no number
  anew that a group still has;
- the session's runtime environment that its program lies in, or that it maps libraries of
  (`runtime_resources`).

That it maps an object store (`/dev/shm/plasma…`) says less: drivers do, too, and so does what they start.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from raydoctor.capture.session import is_session
from raydoctor.model.patterns import pattern
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process

_MAPS = 8 << 20
_ENVIRONMENTS = "/runtime_resources/"
_WORKER_LOG = pattern(r"python-core-worker-[0-9a-f]+_(\d+)\.log")
_CREATING = pattern(rb"Creating actor\S*:? *(?:actor_id[=:] ?)?[0-9a-f]{24}([0-9a-f]{8})\b")
_JOB = pattern(rb"^:job_id:([0-9a-f]{8})$", re.M)
_HEAD = 1 << 17


class Trace(NamedTuple):
    """What ties a process to Ray."""

    why: str
    """What it does, as a clause that follows its name."""
    session: str = ""
    worker: int = 0
    """Pid of the worker whose process group it is in."""


def find(process: Process, groups: Mapping[int, tuple[str, float]]) -> Trace | None:
    """What ties this process to Ray; None where nothing does. `groups`: what `worker_groups` found."""
    if session := _session_of(next(iter(proc.command(process.pid)), "")):
        return Trace(f"runs a program of a runtime environment of {session}", session)
    session, written = groups.get(process.pgid, ("", 0.0))
    # What started after the worker's last word may be of another group that got the number.
    if session and process.started_at <= written:
        why = f"is in the process group of worker pid {process.pgid}"
        return Trace(why, session, process.pgid)
    if session := _session_of(_mapped(process.pid)):
        return Trace(f"maps a library of a runtime environment of {session}", session)
    return None


def _session_of(path: str) -> str:
    """The session in whose runtime environments a path lies, or empty."""
    session, found, _ = path.partition(_ENVIRONMENTS)
    return session if found and is_session(posixpath.basename(session)) else ""


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


def job_of_worker(pid: int) -> str:
    """The job that a worker works for, by the output that it has open; empty where it does not say.

    `:job_id:01000000`: the first line that a worker prints for its first task (Ray 2.9 to 2.60, for the log
    monitor). A worker works for one job only.
    """
    with suppress(OSError), open(proc.files(pid).get(1, ""), "rb") as stream:
        if match := _JOB.search(stream.read(_HEAD)):
            return match[1].decode()
    return ""


def has_run_nothing(pid: int) -> bool:
    """Whether a worker has not had a task yet: its output is a file, and empty (see `job_of_worker`)."""
    with suppress(OSError):
        seen = os.stat(f"/proc/{pid}/fd/1")
        return stat.S_ISREG(seen.st_mode) and seen.st_size == 0
    return False


def _last(found: tuple[str, float]) -> float:
    return found[1]


def _mapped(pid: int) -> str:
    """A file in a runtime environment that it maps; empty where there is none."""
    if not proc.LINUX:
        return ""
    try:
        with open(f"/proc/{pid}/maps", "rb") as stream:
            text = stream.read(_MAPS)
    except OSError:
        return ""
    # `7f10…-7f20… r-xp 00000000 fe:00 4242   /tmp/ray/session_2026…/runtime_resources/pip/…/_x.so`
    line = next((line for line in text.splitlines() if _ENVIRONMENTS.encode() in line), b"")
    words = line.split(maxsplit=5)
    return words[5].decode("utf-8", "replace") if len(words) > 5 else ""
