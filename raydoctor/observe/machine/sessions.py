"""The table `sessions`: the folders of Ray's sessions on this machine, how large they are, whether they live.

Beside the cluster's own session, and where Ray keeps them by default (`/tmp/ray`, `$RAY_TMPDIR/ray`;
`_common/utils.py`, Ray 2.9 to 2.60). A session lives where a process of it runs. Another container may use
the folder too and is not seen from here: `age_s` counts from the last change, and whoever lives writes.

The walk is bounded in time and entries, follows no link and counts what files take on the disk; what it did
not finish is marked `truncated`, and is at least as large as told.
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
from raydoctor.observe.processes import kinship

SECONDS = 1.5
"""For all sessions together."""
ENTRIES = 300_000
"""Files and folders looked at, for all together."""


def tables(cluster: Cluster) -> Iterable[Piece | Gap]:
    """The table `sessions`; there is none where this machine has no session."""
    at = time.time()
    sessions = list(_sessions(cluster))
    if not sessions:
        return
    living = kinship.sessions(kinship.look())
    deadline = time.monotonic() + SECONDS
    rows = []
    for number, path in enumerate(sessions):
        # Each may take its share of what is left, and what those before it did not need.
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
    """Their folders, the newest of each place first; one that is reached by two ways once."""
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
    """When anything in it was last written."""
    is_cut: bool = False
    linked: set[tuple[int, int]] = field(default_factory=set)


def _walk(session: str, until: float, entries: int) -> _Walked:
    walked = _Walked()
    with suppress(OSError):
        walked.changed = os.lstat(session).st_mtime
    # The logs first: they say when the session was last alive, even if the rest is too much.
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
                told = entry.stat(follow_symlinks=False)
                walked.files += 1
                walked.changed = max(walked.changed, told.st_mtime)
                identity = (told.st_dev, told.st_ino)
                if told.st_nlink == 1 or identity not in walked.linked:
                    walked.bytes += told.st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
                elif told.st_nlink > 1:
                    walked.linked.add(identity)
    return below
