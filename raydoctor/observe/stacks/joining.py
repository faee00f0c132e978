"""Programs of this machine that wait in `ray.init()` for a cluster that has not replied: a gap for each.

No cluster knows them, so that no table lists them. A process counts if Ray is loaded in it, it belongs to no
session, and its main thread stands in the connection to a GCS, or in that of Ray Client to its server, in two
samples (`_private/node.py`, `util/client/worker.py`; Ray 2.9 to 2.60).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from raydoctor.capture import owners
from raydoctor.model import paste
from raydoctor.model.values import Gap
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.redact import command_line
from raydoctor.observe.stacks import pyspy

ABOUT = "joining"
MIN_AGE = 5.0
"""Seconds since its start: importing Ray takes at least one of them."""
PAUSE = 1.0
"""Seconds between the samples: a GCS that answers does so in far less."""
_MOST = 16
_TITLE = 80
_RAY = b"/ray/_raylet.so"
_CONNECTS = (
    ("_init_gcs_client", "ray/_private/node.py"),
    ("_connect_channel", "ray/util/client/worker.py"),
)
_STARTS = ("start_head_processes", "ray/_private/node.py")
"""A program that starts a cluster of its own also connects to it."""
_INIT = ("init", "ray/_private/worker.py")
_HINT = (
    "No cluster can show why: raydoctor does not cover a program that has not connected. See the address in "
    "its output, its call of ray.init() or its RAY_ADDRESS: does a cluster run there?"
)


def gaps(known: Collection[int]) -> Iterator[Gap]:
    """A gap for each program that waits; `known` are the processes that belong to a cluster."""
    found = [each for each in _candidates(known) if _is_joining(each.pid)]
    if not found:
        return
    time.sleep(PAUSE)
    for each in found:
        if (now := proc.read(each.pid)) and now.started_at == each.started_at:
            place = _place(each.pid)
            if place is not None:
                yield _gap(each.pid, place)


def _candidates(known: Collection[int]) -> list[proc.Process]:
    """Python processes of trusted users that have loaded Ray, youngest first."""
    if not proc.LINUX or not pyspy.program():
        return []
    before = time.time() - MIN_AGE
    found = (
        each
        for pid, each in proc.table().items()
        if pid not in known
        and pid != os.getpid()
        and each.started_at <= before
        and proc.credentials(pid) in owners.trusted()
        and "python" in os.path.basename(proc.program(pid) or "")
        and has_loaded_ray(pid)
    )
    return sorted(found, key=lambda each: -each.started_at)[:_MOST]


def has_loaded_ray(pid: int) -> bool:
    """Whether Ray's library is mapped into a process; False if that is not readable."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as stream:
            return any(line.rstrip().endswith(_RAY) for line in stream)
    except OSError:
        return False


def _is_joining(pid: int) -> bool:
    return _place(pid) is not None


def _place(pid: int) -> str | None:
    """The line of the program that connects, such as `train.py:2`; None if it does not connect."""
    threads = pyspy.dump(pid, stopping=False).threads  # a process that waits stands still
    main = next((each for each in threads if each.get("thread_name") == "MainThread"), None)
    return place_of(list(pyspy.frames(main))) if main else None


def place_of(frames: Sequence[dict[str, Any]]) -> str | None:
    """The same for the frames of its main thread, innermost first."""
    if any(_is(frame, *_STARTS) for frame in frames):
        return None
    if not any(_is(frame, *each) for frame in frames for each in _CONNECTS):
        return None
    starts = [number for number, frame in enumerate(frames) if _is(frame, *_INIT)]
    if not starts:
        return None
    users = (each for each in frames[starts[-1] + 1 :] if not _is_of_ray(each))
    user = next(users, None)
    if user is None:
        return ""
    name = os.path.basename(str(user.get("filename") or ""))
    return f"{name}:{user.get('line') or 0}" if name else ""


def _is(frame: dict[str, Any], function: str, file: str) -> bool:
    """Newer versions of py-spy name a method with its class."""
    name = str(frame.get("name") or "").rpartition(".")[2]
    return name == function and str(frame.get("filename") or "").endswith(file)


def _is_of_ray(frame: dict[str, Any]) -> bool:
    return "/ray/_private/" in str(frame.get("filename") or "")


def _gap(pid: int, place: str) -> Gap:
    at = paste.text(" at {place}", place=place) if place else ""
    title = paste.text(" ({title})", title=command_line(pid)[:_TITLE])
    return Gap(
        f"a program outside the cluster, pid {pid}{title}",
        f"waits in ray.init(){at} for a cluster that has not replied",
        _HINT,
        about=ABOUT,
    )
