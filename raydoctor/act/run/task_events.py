"""Events of tasks that Ray writes during a run: the only record of an exception that the program caught.

With `RAY_enable_export_api_write=1`, the owner of a task writes its states and its error to
`logs/export_events/` (Ray 2.40+), about 2 KB for each task. Without it, a failure of a task is known only
to the GCS, whose memory ends with the cluster.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from raydoctor.capture import owners

ENVIRONMENT = {"RAY_enable_export_api_write": "1"}
"""For the driver; a setting of the user takes precedence."""
MOST = 256 << 20
"""Bytes of events of a session that a run keeps: Ray itself keeps 2 GB of each process."""
_FILE = "event_EXPORT_TASK_"
_FAILED = b"TASK_EXECUTION_EXCEPTION"
_BLOCK = 1 << 20


def with_failures(session: str, since: float, jobs: Iterable[str]) -> frozenset[str]:
    """Names of the files that record an exception in these jobs and changed after `since` (epoch seconds).

    Each process writes its own file, and belongs to one job.
    """
    ids = [base64.b64encode(bytes.fromhex(job)).decode() for job in jobs]
    with _files(session, since) as (folder, found):
        return frozenset(name for name in found if _has_failure(folder, name, ids))


def limit(sessions: Iterable[str], since: float) -> None:
    """Empty the files of this run in a session that has more than `MOST` of them: a disk must not fill up."""
    for session in sessions:
        with _files(session, since) as (folder, found):
            if sum(found.values()) > MOST:
                for name in found:
                    with suppress(OSError), _opened(folder, name, os.O_WRONLY) as stream:
                        os.ftruncate(stream.fileno(), 0)  # Ray appends to it


@contextmanager
def _files(session: str, since: float) -> Iterator[tuple[int, dict[str, int]]]:
    """The open folder of events, and the sizes of those files in it that changed after `since`."""
    folder, found = -1, {}
    with suppress(OSError):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(f"{session}/logs/export_events", flags)
        with os.scandir(folder) as entries:
            for each in entries:
                if each.name.startswith(_FILE) and each.is_file(follow_symlinks=False):
                    status = each.stat(follow_symlinks=False)
                    if status.st_mtime >= since:
                        found[each.name] = status.st_size
    try:
        yield folder, found
    finally:
        if folder >= 0:
            os.close(folder)


def _opened(folder: int, name: str, flags: int) -> BinaryIO:
    """A file of events, which any user can replace by a link or a pipe. Raises OSError for anything else."""
    own = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(name, flags | own, dir_fd=folder)
    status = os.fstat(file)
    is_ours = status.st_uid in owners.trusted() and status.st_nlink == 1
    if not stat.S_ISREG(status.st_mode) or not is_ours:
        os.close(file)
        raise PermissionError(errno.EACCES, "is no file of ours", name)
    return open(file, "rb" if flags == os.O_RDONLY else "wb")


def _has_failure(folder: int, name: str, jobs: Container[str]) -> bool:
    """Whether it records an exception, and its first event is of one of these jobs (ids in base64)."""
    unreadable = suppress(OSError, ValueError, KeyError, TypeError, RecursionError)
    with unreadable, _opened(folder, name, os.O_RDONLY) as stream:
        if json.loads(stream.readline(_BLOCK))["event_data"]["job_id"] not in jobs:
            return False
        stream.seek(0)
        before = b""
        while block := stream.read(_BLOCK):
            if _FAILED in before + block:
                return True
            before = block[-len(_FAILED) :]
    return False
