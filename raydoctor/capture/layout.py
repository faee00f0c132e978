"""A file's path -> what it is: its role, its node, and the ids its name carries.

One table. No file is opened here. Names are those of Ray 2.3 to 2.60 (`ray/_private/node.py`,
`services.py`, the C++ sinks), whose rotation differs by writer: Python appends (`dashboard.log.1`),
the C++ sinks put the index before the extension (`raylet.1.out`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from raydoctor.model import Entity, Source

_HEX56 = "[0-9a-f]{56}"
_ROT = r"(?:\.\d+)?"
"""Index that the C++ sinks put before the extension."""


class _Shape(NamedTuple):
    role: str
    pattern: re.Pattern[str]
    sample: str


def _shape(role: str, pattern: str, sample: str) -> _Shape:
    return _Shape(role, re.compile(pattern + r"(?:\.\d+)?(?:\.gz)?$"), sample)


_W = "ddf8977704e1f85d8e440552e68586b1f3fa5f18c631134981469abf"

SHAPES: tuple[_Shape, ...] = (
    _shape("raylet-out", rf"raylet{_ROT}\.out", "raylet.1.out"),
    _shape("raylet-err", rf"raylet{_ROT}\.err", "raylet.err"),
    _shape("gcs-out", rf"gcs_server{_ROT}\.out", "gcs_server.out"),
    _shape("gcs-err", rf"gcs_server{_ROT}\.err", "gcs_server.err"),
    _shape(
        "worker-out",
        rf"worker-(?P<worker>{_HEX56})-(?:(?P<job>[0-9a-f]{{8}})-)?(?P<pid>\d+){_ROT}\.out",
        f"worker-{_W}-01000000-503.out",
    ),
    _shape(
        "worker-err",
        rf"worker-(?P<worker>{_HEX56})-(?:(?P<job>[0-9a-f]{{8}})-)?(?P<pid>\d+){_ROT}\.err",
        f"worker-{_W}-ffffffff-503.err",
    ),
    _shape(
        "io-worker",
        rf"io_worker-(?P<worker>{_HEX56})-(?:(?P<job>[0-9a-f]{{8}})-)?(?P<pid>\d+){_ROT}\.(?:out|err)",
        f"io_worker-{_W}-ffffffff-77.err",
    ),
    _shape(
        "core-driver",
        rf"python-core-driver-(?P<worker>{_HEX56})_(?P<pid>\d+){_ROT}\.log",
        f"python-core-driver-01000000{'f' * 48}_7.log",
    ),
    _shape(
        "core-io",
        rf"python-core-(?:spill|restore)_worker-(?P<worker>{_HEX56})_(?P<pid>\d+){_ROT}\.log",
        f"python-core-spill_worker-{_W}_9.log",
    ),
    _shape(
        "core-worker",
        rf"python-core-worker-(?P<worker>{_HEX56})_(?P<pid>\d+){_ROT}\.log",
        f"python-core-worker-{_W}_503.1.log",
    ),
    _shape(
        "job-driver", rf"job-driver-(?P<submission>.+?){_ROT}\.log", "job-driver-raysubmit_x1.log"
    ),
    _shape("driver", r"driver\.log", "driver.log"),
    _shape(
        "kernel",
        r"(?:dmesg\.txt|dmesg\.log|kern\.log|journal\.txt)",
        "dmesg.txt",
    ),
    _shape("event", rf"event_(?:RAYLET|GCS|AUTOSCALER|JOBS){_ROT}\.log", "event_RAYLET.log"),
    _shape("event", rf"event_CORE_WORKER_(?P<pid>\d+){_ROT}\.log", "event_CORE_WORKER_503.log"),
    _shape(
        "export-event",
        rf"event_EXPORT_[A-Z_]+?(?:_(?P<pid>\d+))?{_ROT}\.log",
        "event_EXPORT_TASK_7.log",
    ),
    _shape("debug-state", r"debug_state(?:_gcs)?\.txt", "debug_state.txt"),
    _shape(
        "runtime-env-setup",
        rf"runtime_env_setup-(?P<job>[0-9a-f]{{8}}|ray_client_server_\d+){_ROT}\.log",
        "runtime_env_setup-01000000.log",
    ),
    _shape(
        "runtime-env-agent", rf"runtime_env_agent{_ROT}\.(?:log|out|err)", "runtime_env_agent.log.1"
    ),
    _shape(
        "dashboard-agent",
        rf"(?:dashboard_agent|agent-\d+){_ROT}\.(?:log|out|err)",
        "dashboard_agent.log",
    ),
    _shape(
        "dashboard", rf"dashboard(?:_[A-Za-z]+)?{_ROT}\.(?:log|out|err)", "dashboard_JobHead.log"
    ),
    _shape("log-monitor", rf"log_monitor{_ROT}\.(?:log|out|err)", "log_monitor.err"),
    _shape("monitor", rf"monitor{_ROT}\.(?:log|out|err)", "monitor.log"),
    _shape(
        "client-server",
        rf"ray_client_server(?:_\d+)?{_ROT}\.(?:out|err|log)",
        "ray_client_server_23000.err",
    ),
    _shape("data", r"ray-data(?:-.*)?\.log", "ray-data.log"),
    _shape("serve", r"(?:controller|proxy|replica)_.+\.log", "controller_812.log"),
    _shape("train", r"ray-train.*\.log", "ray-train-app-controller.log"),
    _shape("pip-packages", r"pip_packages\.txt", "pip_packages.txt"),
)

_BY_INITIAL: dict[str, list[_Shape]] = {}
"""Fifty thousand names are common; most shapes are ruled out by the first letter."""
for _each in SHAPES:
    _letters = (
        "dkj" if _each.role == "kernel" else "cpr" if _each.role == "serve" else _each.sample[0]
    )
    for _letter in {*_letters, *("da" if _each.role == "dashboard-agent" else "")}:
        _BY_INITIAL.setdefault(_letter, []).append(_each)

SUBFOLDERS_OF_LOGS = frozenset({"old", "events", "export_events", "ray-data", "train", "serve"})

SKIPPED_FOLDERS = (
    "runtime_resources",
    "sockets",
    "metrics",
    "ray_spilled_objects",
    "ray_spilled_objects_*",
    "__pycache__",
    ".git",
    "node_modules",
    "nsight",
)
"""Parts of a session that hold no log: virtual environments, spilled objects, dashboards' settings."""


_IDS = ("worker", "job")

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.zst", ".tar.bz2", ".zip")


def is_archive(name: str) -> bool:
    """Whether a file name is that of an archive we read."""
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def is_read(name: str) -> bool:
    """Whether a file of this name may be one that diagnoses read: a cheap look before `identify`."""
    return name[:1] in _BY_INITIAL


def identify(path: str, size: int = 0) -> Source | None:
    """The source that a path in a capture is, or None if no diagnosis reads such a file.

    `path` is relative to the capture, with forward slashes.
    """
    folder, _, name = path.rpartition("/")
    for shape in _BY_INITIAL.get(name[:1], ()):
        if match := shape.pattern.match(name):
            groups = match.groupdict()
            entities = tuple(
                Entity(kind, value) for kind in _IDS if _is_id(value := groups.get(kind) or "")
            )
            pid = int(groups["pid"]) if groups.get("pid") else None
            return Source(path, shape.role, node_label(folder), entities, pid, size)
    return None


def _is_id(value: str) -> bool:
    """A WorkerID or JobID, and not nil."""
    return len(value) in (8, 56) and value.strip("f") != ""


@lru_cache(maxsize=1024)
def node_label(folder: str) -> str:
    """The node whose logs a folder holds: the path without `logs/` and what lies inside it.

    A session's own name is no node: `node-a/session_2026…/logs/old` is `node-a`.
    """
    parts = [p for p in folder.split("/") if p]
    while parts and parts[-1] in SUBFOLDERS_OF_LOGS:
        parts.pop()
    if parts and parts[-1] == "logs":
        parts.pop()
    if parts and (parts[-1].startswith("session_")):
        parts.pop()
    return "/".join(parts)
