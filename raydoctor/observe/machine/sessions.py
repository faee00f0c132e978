"""The table `sessions`: the folders of Ray's sessions on this machine, their sizes, whether they are live.

They are searched next to the cluster's own session and in Ray's default folders (`/tmp/ray`,
`$RAY_TMPDIR/ray`; `_common/utils.py`, Ray 2.9 to 2.60). A session is live if one of its processes runs here.
Processes in another container that use the folder are not visible; `age_s`, the time since the last change,
shows whether such processes write to it.

The walk is limited in time and entries, does not follow links and counts allocated blocks. An unfinished row
is marked `truncated`, and its size is a lower bound.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from raydoctor.capture.session import is_session
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.processes import ownership

SECONDS = 1.5
"""For all sessions together."""
ENTRIES = 300_000
"""Files and folders that are examined, for all sessions together."""


def tables(cluster: Cluster) -> Iterable[Piece | Gap]:
    """The table `sessions`; nothing if this machine has no session."""
    at = time.time()
    sessions = list(_sessions(cluster))
    if not sessions:
        return
    living = ownership.sessions(ownership.survey_machine())
    deadline = time.monotonic() + SECONDS
    rows = []
    for number, path in enumerate(sessions):
        # Each may use its share of the remaining time, including what earlier ones did not use.
        share = (deadline - time.monotonic()) / (len(sessions) - number)
        walked = _walk(path, time.monotonic() + share, ENTRIES // len(sessions))
        rows.append(
            {
                "path": path,
                "bytes": walked.bytes,
                "files": walked.files,
                "age_s": round(max(0.0, at - walked.changed), 1),
                "alive": path in living,
                "truncated": walked.is_cut,
                "is_this": path == cluster.session_dir,
                "logs": os.path.isdir(f"{path}/logs"),
            }
        )
    yield table("sessions", rows, source="walk", at=at)


def _sessions(cluster: Cluster) -> Iterator[str]:
    """Their folders, newest first in each place; a folder that is reachable by two paths appears once."""
    bases = [os.environ.get("RAY_TMPDIR"), "/tmp"]
    roots = [posixpath.dirname(cluster.session_dir), *(f"{base}/ray" for base in bases if base)]
    seen = set()
    for root in dict.fromkeys(root for root in roots if root):
        with suppress(OSError):
            for name in sorted(os.listdir(root), reverse=True):
                path = f"{root}/{name}"
                if not is_session(name) or os.path.islink(path) or not os.path.isdir(path):
                    continue
                if (real := os.path.realpath(path)) not in seen:
                    seen.add(real)
                    yield path


# ------------------------------------------------------------------ the walk


@dataclass(slots=True)
class _Walked:
    bytes: int = 0
    files: int = 0
    changed: float = 0.0
    """Time of the last change of anything in it."""
    is_cut: bool = False
    linked: set[tuple[int, int]] = field(default_factory=set)


def _walk(session: str, until: float, entries: int) -> _Walked:
    walked = _Walked()
    with suppress(OSError):
        walked.changed = os.lstat(session).st_mtime
    # The logs first: their change times matter most, even if the rest is truncated.
    folders = [session, f"{session}/logs"]
    begun = set()
    while folders:
        folder = folders.pop()
        if folder in begun:
            continue
        begun.add(folder)
        if time.monotonic() > until or walked.files > entries:
            walked.is_cut = True
            break
        try:
            folders += _enter(folder, walked)
        except FileNotFoundError:
            pass  # removed meanwhile, or a session without logs
        except OSError:
            walked.is_cut = True
    return walked


def _enter(folder: str, walked: _Walked) -> list[str]:
    below = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                walked.files += 1
                walked.changed = max(walked.changed, status.st_mtime)
                identity = (status.st_dev, status.st_ino)
                if status.st_nlink == 1 or identity not in walked.linked:
                    walked.bytes += status.st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
                elif status.st_nlink > 1:
                    walked.linked.add(identity)
    return below
