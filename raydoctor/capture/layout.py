"""A file's path -> its role, its node, and the ids in its name.

One table. No file is opened here. Names are those of Ray 2.3 to 2.60 (`ray/_private/node.py`,
`services.py`, the C++ sinks), whose rotation differs by writer: Python appends (`dashboard.log.1`),
the C++ sinks put the index before the extension (`raylet.1.out`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from raydoctor.model.entities import Entity, EntityKind
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Source

_HEX56 = "[0-9a-f]{56}"
_ROT = r"(?:\.\d+)?"
"""Index that the C++ sinks put before the extension."""


class _Shape(NamedTuple):
    role: str
    pattern: re.Pattern[str]
    sample: str
    kinds: tuple[EntityKind, ...]
    """Of the ids that such a name carries."""
    has_pid: bool


class Name(NamedTuple):
    """The facts in a file's bare name."""

    role: str
    entities: tuple[Entity, ...]
    pid: int | None


def _shape(role: str, stem: str, sample: str) -> _Shape:
    late = pattern(stem + r"(?:\.\d+)?(?:\.gz)?\Z")
    ids: tuple[EntityKind, ...] = ("worker", "job")
    kinds = tuple(kind for kind in ids if f"(?P<{kind}>" in stem)
    return _Shape(role, late, sample, kinds, "(?P<pid>" in stem)


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
    _shape("driver", r"driver(?:-(?P<pid>\d+)(?:-\d+)?)?\.log", "driver.log"),
    _shape("driver", r"stdout\.log", "stdout.log"),
    _shape("driver", r"slurm-\d{1,18}(?:_\d{1,9})?\.(?:out|err)", "slurm-4711.out"),
    _shape(
        "stack", r"(?:ray[_-]stack|py[_-]spy|stacks?)(?:[-_.].*)?\.(?:txt|log)", "ray-stack.txt"
    ),
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
    # Of a KubeRay History Server: the node, and when the file was begun.
    _shape("export-event", rf"{_HEX56}_\d{{16,20}}\.jsonl", f"{_W}_1754200000000000000.jsonl"),
    # Of a KubeRay History Server: what the dashboard answered.
    _shape("time-zone", r"restful__timezone", "restful__timezone"),
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
    _shape("start-block", rf"ray_process_exit{_ROT}\.log", "ray_process_exit.log"),
    _shape("monitor", rf"monitor{_ROT}\.(?:log|out|err)", "monitor.log"),
    _shape(
        "client-server",
        rf"ray_client_server(?:_\d+)?{_ROT}\.(?:out|err|log)",
        "ray_client_server_23000.err",
    ),
    _shape("data", r"ray-data(?:-.*)?\.log", "ray-data.log"),
    _shape("serve", r"(?:controller|proxy|replica)_.+\.log", "controller_812.log"),
    _shape("train-app", r"ray-train-app.*\.log", f"ray-train-app-worker-{_W}.log"),
    _shape("train", r"ray-train.*\.log", f"ray-train-{_W}.log"),
    _shape("pip-packages", r"pip_packages\.txt", "pip_packages.txt"),
    _shape("live", r"live-[a-z-]+\.json", "live-tasks.json"),
    _shape("reading", r"live-events\.jsonl", "live-events.jsonl"),
    _shape("manifest", r"raydoctor\.json", "raydoctor.json"),
)

_VARIES = pattern(r"(?:[-_](?:raysubmit_x1|JobHead|[0-9a-f]{8,64}|\d+)(?=[-_.])|\.1(?=\.|$))+")
"""The part of a sample's name that differs between files of one role."""


DRIVER_OUTPUT = "driver output"
"""What the program printed: a file that Ray does not write."""


def files_of(role: str) -> str:
    """The files of a role: `worker*.err`; other roles are read from a driver's output."""
    if role == "serve":
        return "serve/*.log"
    sample = next((each.sample for each in SHAPES if each.role == role), "driver.log")
    return DRIVER_OUTPUT if sample == "driver.log" else _VARIES.sub("*", sample)


_INITIALS = {"kernel": "dkj", "serve": "cpr", "stack": "rps"}
"""First letters of the roles whose names do not all begin alike."""

_BY_INITIAL: dict[str, list[_Shape]] = {}
"""Shapes by first letter, because captures with 50,000 names are common."""
for _each in SHAPES:
    _letters = _INITIALS.get(_each.role, _each.sample[0])
    _others = {"dashboard-agent": "da", "export-event": "0123456789abcdef"}.get(_each.role, "")
    for _letter in {*_letters, *_others}:
        _BY_INITIAL.setdefault(_letter, []).append(_each)

SUBFOLDERS_OF_LOGS = frozenset({"old", "events", "export_events", "ray-data", "train", "serve"})
SIBLINGS_OF_LOGS = frozenset({"logs", "live", "node_events", "job_events", "fetched_endpoints"})
"""Folders of a node: Ray's logs, the tables of a live collection, and what a KubeRay History Server keeps."""

SKIPPED_FOLDERS = frozenset(
    (
        "runtime_resources",
        "sockets",
        "metrics",
        "ray_spilled_objects",
        "__pycache__",
        ".git",
        "node_modules",
        "nsight",
    )
)
"""Parts of a session that hold no log: virtual environments, spilled objects, dashboards' settings."""
SKIPPED_PREFIXES = ("ray_spilled_objects_",)


ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.zst", ".tar.bz2", ".zip")


def is_archive(name: str) -> bool:
    """Whether a file name is that of an archive we read."""
    return name.lower().endswith(ARCHIVE_SUFFIXES)


_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
}
"""First bytes of a file -> its compression."""


def compression(head: bytes) -> str:
    """The compression that a file's first bytes announce; empty for none."""
    return next((name for magic, name in _COMPRESSED.items() if head.startswith(magic)), "")


def identify(path: str, size: int = 0) -> Source | None:
    """The source that a path in a capture is, or None if no diagnosis reads such a file.

    `path` is relative to the capture, with forward slashes.
    """
    folder, _, last = path.rpartition("/")
    name = read_name(last)
    return name and source_of(name, path, node_label(folder), size)


def source_of(name: Name, path: str, node: str, size: int) -> Source:
    """The source of that name at a path; `node` is the label of the folder."""
    return Source(path, name.role, node, name.entities, name.pid, size)


def read_name(name: str) -> Name | None:
    """The facts in a file's bare name, or None if no diagnosis reads such a file."""
    for shape in _BY_INITIAL.get(name[:1], ()):
        if match := shape.pattern.match(name):
            found = []
            for kind in shape.kinds:
                value = match[kind]
                # Nil ids (a prestarted worker has no job yet) and other words do not count.
                if value and len(value) in (8, 56) and value.strip("f"):
                    found.append(Entity(kind, value))
            return Name(
                shape.role,
                tuple(found),
                int(match["pid"]) if shape.has_pid and match["pid"] else None,
            )
    return None


@lru_cache(maxsize=1024)
def node_label(folder: str) -> str:
    """The node whose logs a folder holds: the path without `logs/` and what lies inside it.

    A session's own name is no node: `node-a/session_2026…/logs/old` is `node-a`.
    """
    parts = [p for p in folder.split("/") if p]
    while parts and (parts[-1] in SUBFOLDERS_OF_LOGS or parts[-2:-1] == ["job_events"]):
        parts.pop()
    if parts and parts[-1] in SIBLINGS_OF_LOGS:
        parts.pop()
    if parts and (parts[-1].startswith("session_")):
        parts.pop()
    return "/".join(parts)
