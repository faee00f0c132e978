"""Ties of a process to Ray other than its environment and its output, for a thorough survey.

A descendant of a worker keeps two things (measured with Ray 2.60):
- its process group: Ray makes each worker the leader of one (2.57 and later), and Linux does not reuse the
  number of an existing group;
- the session's runtime environment that contains its program or its mapped libraries
  (`runtime_resources`).

A mapped object store (`/dev/shm/plasma…`) is weaker evidence: drivers and their children map it as well.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from raydoctor.capture import owners
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
    """A tie of a process to Ray."""

    why: str
    """The predicate of a sentence about the process: "runs a program of …"."""
    session: str = ""
    worker: int = 0
    """Pid of the worker whose process group it is in."""


def find(process: Process, groups: Mapping[int, tuple[str, float]]) -> Trace | None:
    """The tie of this process to Ray; None if there is none. `groups`: result of `worker_groups`."""
    if session := _session_of(next(iter(proc.command(process.pid)), "")):
        return Trace(f"runs a program of a runtime environment of {session}", session)
    session, written = groups.get(process.pgid, ("", 0.0))
    # A process that started after the worker's last log line may be in a new group of the same number.
    if session and process.started_at <= written:
        return of_group(session, process.pgid)
    if session := _session_of(_mapped(process.pid)):
        return Trace(f"maps a library of a runtime environment of {session}", session)
    return None


def of_group(session: str, worker: int) -> Trace:
    """That a process is in the group of this worker."""
    return Trace(f"is in the process group of worker pid {worker}", session, worker)


def _session_of(path: str) -> str:
    """The session with the runtime environment that contains a path, or empty."""
    session, found, _ = path.partition(_ENVIRONMENTS)
    return session if found and is_session(posixpath.basename(session)) else ""


def worker_groups(pgids: Iterable[int], sessions: Iterable[str]) -> dict[int, tuple[str, float]]:
    """Group without its leader -> the session with a worker of this pid, and when that last wrote its log."""
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
    """The job of a worker's actor, from the worker's log; empty if there is none.

    `core_worker.cc:3247: Creating actor actor_id=1b53c2df8dd1c90345f261f901000000`: an actor's id ends with
    its job's (Ray 2.9 to 2.60).
    """
    return _match_in(_CREATING, f"{session}/logs/python-core-worker-{worker}_{pid}.log")


def job_of_worker(pid: int) -> str:
    """The job of a worker, from the output file that it has open; empty if unknown.

    `:job_id:01000000` is the first line that a worker prints for its first task (Ray 2.9 to 2.60, for the log
    monitor). A worker serves only one job.
    """
    return _match_in(_JOB, proc.files(pid).get(1, ""))


def _match_in(wanted: re.Pattern[bytes], log: str) -> str:
    """The first match near the beginning of a log, which any user can replace; empty if there is none."""
    with suppress(OSError):
        if match := wanted.search(owners.read_regular(log, _HEAD).data):
            return match[1].decode()
    return ""


def has_run_nothing(pid: int) -> bool:
    """Whether a worker has had no task yet: its output is an empty file (see `job_of_worker`)."""
    with suppress(OSError):
        output = os.stat(f"/proc/{pid}/fd/1")
        return stat.S_ISREG(output.st_mode) and output.st_size == 0
    return False


def _last(found: tuple[str, float]) -> float:
    return found[1]


def _mapped(pid: int) -> str:
    """A mapped file in a runtime environment; empty if there is none."""
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
