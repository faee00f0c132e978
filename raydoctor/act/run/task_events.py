"""Events of tasks that Ray writes during a run: the only record of an exception that the program caught.

With `RAY_enable_export_api_write=1`, the owner of a task writes its states and its error to
`logs/export_events/` (Ray 2.40+), about 2 KB for each task. Without it, a failure of a task is known only
to the GCS, whose memory ends with the cluster.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Container, Iterable
from contextlib import suppress

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
    changed = (path for path, status in _files(session) if status.st_mtime >= since)
    return frozenset(os.path.basename(path) for path in changed if _has_failure(path, ids))


def limit(sessions: Iterable[str], since: float) -> None:
    """Empty the files of this run in a session that has more than `MOST` of them: a disk must not fill up."""
    for session in sessions:
        own = [(path, status) for path, status in _files(session) if status.st_mtime >= since]
        if sum(status.st_size for _, status in own) > MOST:
            for path, _ in own:
                with suppress(OSError):
                    os.truncate(path, 0)  # Ray appends to it


def _files(session: str) -> list[tuple[str, os.stat_result]]:
    with suppress(OSError), os.scandir(f"{session}/logs/export_events") as entries:
        own = (e for e in entries if e.name.startswith(_FILE) and e.is_file(follow_symlinks=False))
        return [(each.path, each.stat(follow_symlinks=False)) for each in own]
    return []


def _has_failure(path: str, jobs: Container[str]) -> bool:
    """Whether it records an exception, and its first event is of one of these jobs (ids in base64)."""
    unreadable = suppress(OSError, ValueError, KeyError, TypeError, RecursionError)
    with unreadable, open(path, "rb") as stream:
        if json.loads(stream.readline(_BLOCK))["event_data"]["job_id"] not in jobs:
            return False
        stream.seek(0)
        before = b""
        while block := stream.read(_BLOCK):
            if _FAILED in before + block:
                return True
            before = block[-len(_FAILED) :]
    return False
