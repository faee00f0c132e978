"""Where a raylet of this machine stores objects, according to its command line and configuration.

The raylet's command line contains the object store's folder and size and, in Ray 2.50 and 2.60 but not 2.40,
the fallback folder (`services.py`, `start_raylet`). The `--system-config` is on the command line of the GCS,
as base64 of JSON, and overrides the environment (`ray_config.cc`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from raydoctor.observe.collector.cluster import Cluster, Daemon
from raydoctor.observe.processes import proc

THRESHOLD = 0.95
"""Ray's default for `local_fs_capacity_threshold` (`ray_config_def.h`, Ray 2.9 to 2.60)."""
_THRESHOLD, _SPILLING = "local_fs_capacity_threshold", "object_spilling_config"
_SPILL_FOLDER = "object_spilling_directory"


class Storage(NamedTuple):
    """The object storage of one raylet."""

    node_id: str
    store: str
    """The folder of the object store; empty if unknown."""
    store_bytes: int
    """Capacity of the store; 0 if unknown."""
    spill: tuple[str, ...]
    """Spill and fallback folders; empty if objects are spilled elsewhere (S3), or if unknown."""
    threshold: float
    """Usage of a file system, as a share, at which Ray stops writing to it; 1 is never."""


def of_cluster(cluster: Cluster) -> list[Storage]:
    """One for each raylet of the cluster that runs here."""
    config = system_config(cluster)
    return [_storage(raylet, config) for raylet in cluster.of("raylet") if raylet.state != "Z"]


def _storage(raylet: Daemon, config: Mapping[str, Any]) -> Storage:
    # Only the raylet's own options begin with `--`: its workers' commands are single words.
    argv = dict(_option(word) for word in proc.command(raylet.pid) if word.startswith("--"))
    wanted = [f"RAY_{name}" for name in (_THRESHOLD, _SPILLING, _SPILL_FOLDER)]
    environment = proc.environment(raylet.pid, wanted) or {}
    settings = {name.removeprefix("RAY_"): value for name, value in environment.items()}
    settings |= config
    spill = _spill_folders(settings)
    if fallback := argv.get("fallback_directory"):
        spill = (*spill, fallback)
    size = argv.get("object_store_memory", "")
    return Storage(
        raylet.node_id or argv.get("node_id", ""),
        argv.get("plasma_directory", ""),
        int(size) if size.isdigit() else 0,
        tuple(dict.fromkeys(spill)),
        _fraction(settings.get(_THRESHOLD)),
    )


def _option(word: str) -> tuple[str, str]:
    name, _, value = word[2:].partition("=")
    return name.replace("-", "_"), value


def _spill_folders(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """`{"type": "filesystem", "params": {"directory_path": …}}`; one folder or several."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        config = json.loads(settings[_SPILLING])
        if config["type"] == "filesystem":
            folders = config["params"]["directory_path"]
            return (folders,) if isinstance(folders, str) else tuple(map(str, folders))
        return ()
    folder = settings.get(_SPILL_FOLDER)
    return (folder,) if isinstance(folder, str) and folder.startswith("/") else ()


def _fraction(setting: object) -> float:
    with suppress(TypeError, ValueError):
        value = float(setting)  # type: ignore[arg-type]
        if 0 <= value <= 1:
            return value
    return THRESHOLD


def system_config(cluster: Cluster) -> dict[str, Any]:
    """The head's `--system-config`; empty if the GCS runs elsewhere."""
    for daemon in cluster.of("gcs_server"):
        for word in proc.command(daemon.pid):
            if word.startswith("--config_list="):
                with suppress(ValueError, RecursionError):
                    config = json.loads(base64.b64decode(word.partition("=")[2]))
                    return config if isinstance(config, dict) else {}
    return {}
