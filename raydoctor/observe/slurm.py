"""A job of Slurm -> the files of a capture: its accounts, its output, and the sessions of Ray that it names.

    slurm.json or slurm.txt       `sacct --json`, else `sacct --parsable2`
    scontrol.txt                  `scontrol show job`, which forgets a job minutes after its end
    slurm-JOBID.out, .err         the files of its standard output and error
    session_…/logs/…              sessions that the output names, where this machine has their folders

A file is read only if it belongs to the job's user: a job can name any path as its output.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from typing import Any, NamedTuple

from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Gap
from raydoctor.observe.collector import child
from raydoctor.observe.collector.parallel import parallel
from raydoctor.observe.gathered import Gathered

TIMEOUT = 30.0
"""Default seconds for each step."""
_JOB = pattern(r"\d{1,18}(?:_\d{1,9})?(?:\+\d{1,4})?")
_FIELDS = (
    "JobID,JobName,User,State,ExitCode,DerivedExitCode,Reason,MaxRSS,MaxRSSNode,ReqMem,Timelimit,"
    "Elapsed,End,NodeList,WorkDir"
)
_OUTPUT = pattern(r"(?m)^[ \t]*(?P<name>StdOut|StdErr)=(?P<path>/[^\n]*)")
_BLOCK = pattern(r"\bJobId=(?P<job>\d{1,18})\b")
_UID = pattern(r"\bUserId=[^\s()]{0,100}\((?P<uid>\d{1,10})\)")
_MARK = b"/session_"
_SESSION = pattern(rb"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d{1,6}_\d{1,9}(?!\d)")
_PARENT = pattern(rb"(?<![\w./@+-])/[\w./@+-]*\Z")
_MOST_PARENT, _MOST_MARKS = 200, 10_000
_MOST = 256 << 20
"""Bytes of an output, from its end."""
_SEARCHED = 16 << 20
"""Bytes of it that are searched for names of sessions."""
_MOST_OUTPUTS, _MOST_SESSIONS = 20, 8


class _Output(NamedTuple):
    """A file to which a job writes."""

    path: str
    name: str
    """In the capture."""
    uid: int | None
    """Of the job's user; None if unknown."""


def check(job: str) -> None:
    """Raise RaydoctorError for what cannot be the id of a job."""
    if not _JOB.fullmatch(job):
        raise RaydoctorError(f"{job!r} is not the id of a Slurm job", "Ids are shown by: sacct")


def collect(job: str, into: Gathered, timeout: float) -> None:
    """Write what is known of a job. Each tool, and then each file, may take so many seconds."""
    calls = {"sacct": lambda: _accounts(job, timeout), "scontrol": lambda: _shown(job, timeout)}
    found: dict[str, Any] = dict(parallel(calls, 2 * timeout + 1))
    accounts, problem = found.get("sacct", (None, "did not answer in time"))
    outputs: list[_Output] = []
    if isinstance(accounts, str):
        into.place("slurm.txt").write_text(accounts, "utf-8", "backslashreplace")
    elif accounts is not None:
        into.write_json("slurm.json", {"meta": {"slurm": {}}, "jobs": accounts})
        outputs = list(_of_accounts(accounts))
    if problem:
        into.gaps.append(Gap("sacct", problem, "Run this on a machine that has Slurm's commands."))
    shown, problem = found.get("scontrol", ("", "did not answer in time"))
    if shown:
        into.place("scontrol.txt").write_text(shown, "utf-8", "backslashreplace")
    # Slurm's controller forgets a job soon after its end, which sacct does not.
    into.gaps += [Gap("scontrol", problem, optional=accounts is not None)] if problem else []
    _read(list(_of_scontrol(shown)) or outputs, into, timeout)


# ---------------------------------------------------------------- Slurm's commands


def _accounts(job: str, timeout: float) -> tuple[list[dict[str, Any]] | str | None, str]:
    """The accounts as JSON, else as a table, and why there are none."""
    as_json = child.output(("sacct", "-j", job, "--json"), timeout)
    jobs = _jobs(as_json.text) if not as_json.problem else None
    if jobs:
        return jobs, ""
    table = child.output(("sacct", "-j", job, "--parsable2", f"--format={_FIELDS}"), timeout)
    if table.problem:
        return None, as_json.problem or table.problem
    if table.text.strip().count("\n") < 1:
        return None, "has no accounting record of this job"
    return table.text, ""


def _jobs(text: str) -> list[dict[str, Any]] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    jobs = data.get("jobs") if isinstance(data, dict) else None
    return [each for each in jobs if isinstance(each, dict)] if isinstance(jobs, list) else None


def _shown(job: str, timeout: float) -> tuple[str, str]:
    shown = child.output(("scontrol", "show", "job", job), timeout)
    return ("", shown.problem) if shown.problem else (shown.text, "")


def _of_scontrol(text: str) -> Iterator[_Output]:
    """The outputs of each job of an array; both streams often go to one file."""
    blocks = [found.start() for found in _BLOCK.finditer(text)]
    for begin, end in pairwise([*blocks, len(text)]):
        block = text[begin:end]
        job, user = _BLOCK.match(block), _UID.search(block)
        paths = {found["path"].rstrip(): found["name"] for found in _OUTPUT.finditer(block)}
        for path, name in paths.items():
            suffix = "err" if name == "StdErr" and len(paths) > 1 else "out"
            if job is not None:
                uid = int(user["uid"]) if user else None
                yield _Output(path, f"slurm-{job['job']}.{suffix}", uid)


def _of_accounts(jobs: Iterable[dict[str, Any]]) -> Iterator[_Output]:
    """The outputs by the accounts: Slurm 24.05 records them, and the default name is known for older ones."""
    for each in jobs:
        number, folder = each.get("job_id"), each.get("working_directory")
        if not isinstance(number, int):
            continue
        named = each.get("stdout_expanded")
        path = named if isinstance(named, str) and named else f"{folder}/slurm-{number}.out"
        if path.startswith("/"):
            yield _Output(path, f"slurm-{number}.out", _uid(each.get("user")))


def _uid(name: object) -> int | None:
    import pwd

    try:
        return pwd.getpwnam(name).pw_uid if isinstance(name, str) else None
    except (KeyError, ValueError):
        return None


# ---------------------------------------------------------------- files


def _read(outputs: list[_Output], into: Gathered, timeout: float) -> None:
    """Copy the outputs, and find the sessions that they name. A file system that hangs is a gap."""
    if not outputs:
        into.gaps.append(
            Gap("the job's output", "Slurm does not name its file", _GIVE, about="driver")
        )
    calls: dict[str, Callable[[], dict[str, int]]] = {
        each.path: lambda each=each: _copy(each, into)  # type: ignore[misc]
        for each in outputs[:_MOST_OUTPUTS]
    }
    late = set(calls)
    sessions: dict[str, int] = {}
    for path, result in parallel(calls, timeout):
        late.discard(path)
        if isinstance(result, Exception):
            why = getattr(result, "strerror", None) or str(result)
            into.gaps.append(Gap(path, f"cannot be read: {why}", _GIVE, about="driver"))
        else:
            sessions |= result
    into.gaps += [Gap(path, "could not be read in time", _GIVE, about="driver") for path in late]
    into.sessions = dict(islice(sessions.items(), _MOST_SESSIONS))
    if outputs and not into.sessions:
        into.gaps.append(Gap("Ray's logs", _NOT_SHARED, _COPY))


def _copy(output: _Output, into: Gathered) -> dict[str, int]:
    """Copy the end of an output; returns the sessions that it names, and their owner. Raises OSError."""
    handle = os.open(output.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(None, "is not a regular file")
        if status.st_uid != output.uid:
            raise OSError(None, "does not belong to the job's user")
        if status.st_size > _MOST:
            stream.seek(-_MOST, os.SEEK_END)
            why = f"only its last {_MOST >> 20} MiB are read"
            into.gaps.append(Gap(output.path, why, optional=True))
        data = stream.read(_MOST)
    into.place(output.name).write_bytes(data)
    folders = islice(dict.fromkeys(_named_in(data[:_SEARCHED])), _MOST_SESSIONS)
    return {each: status.st_uid for each in folders if _is_session(each, status.st_uid)}


def _named_in(data: bytes) -> Iterator[str]:
    """The folders of sessions that an output names."""
    at = -1
    for _ in range(_MOST_MARKS):
        at = data.find(_MARK, at + 1)
        if at < 0:
            return
        parent = _PARENT.search(data[max(0, at - _MOST_PARENT) : at])
        found = _SESSION.match(data, at + len(_MARK))
        if parent and found:
            yield (parent[0] + _MARK + found[0]).decode("ascii", "replace")


def _is_session(folder: str, uid: int) -> bool:
    try:
        status = os.lstat(folder)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid


_GIVE = "Give it yourself: raydoctor diagnose --driver-log FILE"
_NOT_SHARED = "the output names no session of Ray whose folder is on this machine"
_COPY = paste.text(
    "Keep them on a shared disk: copy /tmp/ray/session_latest/logs at the end of the batch script."
)
