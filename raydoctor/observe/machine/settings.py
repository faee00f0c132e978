"""The `RAY_…` settings of this machine's raylet and GCS next to those of each driver: table `settings`.

Ray's C++ core reads `RAY_<name>` from the environment of its own process (`ray_config_def.h`). Only the
head's `--system-config` (or `ray.init(_system_config=…)`) applies to all nodes: it is on the command line of
the GCS, as base64 of JSON after `--config_list=`, and every raylet and worker requests it (Ray 2.9 to 2.60).

The table has a row for each setting of either side. A driver is a process that has a
`python-core-driver-*_PID.log` of this session open. Settings that a program adds to `os.environ` at run time
are not in `/proc/PID/environ`, and therefore missing.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from raydoctor.model.patterns import pattern
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster, Daemon
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.processes import proc

_PREFIX = "RAY_"
_SECRET = pattern(r"TOKEN|PASSW|SECRET|KEY|CREDENTIAL|AUTH_(?!MODE\b)", re.IGNORECASE)
_PLUMBING = frozenset(
    f"RAY_{name}"
    for name in (
        *("ADDRESS", "CLIENT_MODE", "JOB_CONFIG_JSON_ENV_VAR", "JOB_ID", "JOB_NAME", "JOB_SUBMISSION_ID"),
        *("NODE_ID", "NODE_IP_ADDRESS", "NODE_MANAGER_PORT", "RAYLET_PID", "SESSION_DIR", "WORKER_ID"),
    )
)  # fmt: skip
"""Variables that Ray's processes pass to each other, and those of other tables."""
_DRIVER_LOG = pattern(r"python-core-driver-[0-9a-f]{56}_(?P<pid>\d+)\.log")
_VALUE = 200
_DRIVERS = 50


class _Side(NamedTuple):
    """A process and the settings that it was started with."""

    pid: int
    settings: Mapping[str, str]


def tables(cluster: Cluster) -> Iterator[Piece | Gap]:
    """The table `settings`; nothing if no raylet of the cluster runs here."""
    if not proc.LINUX:
        why = "this system has no /proc to read the environment of processes from"
        yield Gap("settings of raylet and drivers", why, optional=True)
        return
    given = _system_config(cluster)
    raylets: list[tuple[Daemon, _Side]] = []
    for daemon in cluster.of("raylet"):
        side = _side(daemon.pid)
        if isinstance(side, Gap):
            yield side
        elif side is not None:
            raylets.append((daemon, _Side(side.pid, {**side.settings, **given})))
    gcs = next((s for d in cluster.of("gcs_server") if isinstance(s := _side(d.pid), _Side)), None)
    if gcs:
        gcs = _Side(gcs.pid, {**gcs.settings, **given})
    drivers = [s for pid in _drivers(cluster) if isinstance(s := _side(pid), _Side)]
    rows = [row for daemon, raylet in raylets for row in _rows(daemon, raylet, gcs, drivers, given)]
    if raylets:
        yield table("settings", rows, source="proc")


def _rows(
    daemon: Daemon,
    raylet: _Side,
    gcs: _Side | None,
    drivers: list[_Side],
    given: Mapping[str, str],
) -> Iterator[dict[str, object]]:
    """The settings of this raylet, the GCS and each driver; without a driver, those of the first two."""
    sides: list[_Side | None] = [*drivers] or [None]
    for driver in sides:
        names = {
            *raylet.settings,
            *(gcs.settings if gcs else ()),
            *(driver.settings if driver else ()),
        }
        for name in sorted(names):
            yield {
                "setting": "auth_mode" if name == "RAY_AUTH_MODE" else name,
                "raylet": raylet.settings.get(name),
                "gcs": gcs.settings.get(name) if gcs else None,
                "driver": driver.settings.get(name) if driver else None,
                "raylet_pid": raylet.pid,
                "gcs_pid": gcs.pid if gcs else None,
                "driver_pid": driver.pid if driver else None,
                "system_config": name in given,
                "node_id": daemon.node_id,
            }


# ---------------------------------------------------------------- a process


def _side(pid: int) -> _Side | Gap | None:
    """Its settings; a gap if its environment is not readable, None if it is gone."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        hint = "Run as the user who started Ray, or as root."
        return Gap(
            f"environment of pid {pid}",
            "this user has no permission to read it",
            hint,
            optional=True,
        )
    except OSError:
        return None
    pairs = (word.partition("=") for word in raw.decode("utf-8", "replace").split("\0"))
    return _Side(pid, {name: value[:_VALUE] for name, _, value in pairs if _is_shown(name)})


def _is_shown(name: str) -> bool:
    return name.startswith(_PREFIX) and name not in _PLUMBING and not _SECRET.search(name)


def _drivers(cluster: Cluster) -> list[int]:
    """Pids of the newest drivers of the session that still run."""
    logs = Path(os.path.realpath(cluster.session_dir), "logs")
    found = {}
    with suppress(OSError):
        for name in os.listdir(logs):
            if match := _DRIVER_LOG.fullmatch(name):
                found[int(match["pid"])] = str(logs / name)
    # A pid may have been reused; its process then does not have the log open.
    alive = [pid for pid, log in sorted(found.items()) if log in proc.logs(pid)]
    return alive[-_DRIVERS:]


# ---------------------------------------------------------------- --system-config


def _system_config(cluster: Cluster) -> dict[str, str]:
    """The head's settings for all nodes, as `RAY_<name>` -> value; empty if the GCS runs elsewhere."""
    for daemon in cluster.of("gcs_server"):
        with suppress(OSError, ValueError, RecursionError):
            words = Path(f"/proc/{daemon.pid}/cmdline").read_text("utf-8", "replace").split("\0")
            encoded = next(
                (w.partition("=")[2] for w in words if w.startswith("--config_list=")), ""
            )
            config = json.loads(base64.b64decode(encoded))
            return {
                f"{_PREFIX}{name}": _as_text(value)[:_VALUE]
                for name, value in config.items()
                if not _SECRET.search(name)
            }
    return {}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
