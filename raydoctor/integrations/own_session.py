"""The Ray session of this process, which pytest and notebooks diagnose, and no other cluster."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from raydoctor.capture import owners


def folder(since: float) -> str:
    """The session that this process is a driver of, or was after `since` (epoch seconds); empty if none."""
    node = getattr(sys.modules.get("ray._private.worker"), "_global_node", None)
    if node is not None:
        return str(node.get_session_dir_path())  # as every version of Ray from 2.9 names it
    # Ray names the log of a driver after its pid, also after `ray.shutdown()`.
    bases = {os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "/tmp"}
    log = f"ray/session_2*/logs/python-core-driver-*_{os.getpid()}.log"
    found = []
    for file in (file for base in bases for file in Path(base).glob(log)):
        with suppress(OSError):
            status = file.lstat()
            session = str(file.parent.parent)
            # Any user can make a session, and move a log into it: Ray leaves its folders open to all.
            is_ours = (
                status.st_uid == os.geteuid() and owners.of_folder(session) in owners.trusted()
            )
            if is_ours and status.st_mtime >= since:
                found.append((status.st_mtime, session))
    return max(found, default=(0.0, ""))[1]
