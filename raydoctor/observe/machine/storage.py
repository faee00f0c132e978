"""Where a raylet of this machine keeps objects, as it was told when it was started.

The raylet's command line has the object store's folder and size and, in Ray 2.50 and 2.60 but not 2.40, the
folder for what does not fit (`services.py`, `start_raylet`). What `--system-config` says is on the command
line of the GCS, base64 of JSON, and overrides the environment (`ray_config.cc`).
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
    """One raylet's."""

    node_id: str
    store: str
    """The folder of the object store; empty where it is not known."""
    store_bytes: int
    """What the store may hold; 0 where it is not known."""
    spill: tuple[str, ...]
    """Folders on file systems for what the store does not hold; empty: elsewhere (S3), or not known."""
    threshold: float
    """The share of a file system in use from which Ray puts nothing there any more; 1 is never."""


def of_cluster(cluster: Cluster) -> list[Storage]:
    """One for each raylet of the cluster that runs here."""
    config = system_config(cluster)
    return [_storage(raylet, config) for raylet in cluster.of("raylet") if raylet.state != "Z"]


def _storage(raylet: Daemon, config: Mapping[str, Any]) -> Storage:
    # The raylet's own options; the commands for its workers are single words that begin with others.
    argv = dict(_option(word) for word in proc.command(raylet.pid) if word.startswith("--"))
    wanted = [f"RAY_{name}" for name in (_THRESHOLD, _SPILLING, _SPILL_FOLDER)]
    environment = proc.environment(raylet.pid, wanted) or {}
    told = {name.removeprefix("RAY_"): value for name, value in environment.items()} | dict(config)
    spill = _spill_folders(told)
    if fallback := argv.get("fallback_directory"):
        spill = (*spill, fallback)
    size = argv.get("object_store_memory", "")
    return Storage(
        raylet.node_id or argv.get("node_id", ""),
        argv.get("plasma_directory", ""),
        int(size) if size.isdigit() else 0,
        tuple(dict.fromkeys(spill)),
        _fraction(told.get(_THRESHOLD)),
    )


def _option(word: str) -> tuple[str, str]:
    name, _, value = word[2:].partition("=")
    return name.replace("-", "_"), value


def _spill_folders(told: Mapping[str, Any]) -> tuple[str, ...]:
    """`{"type": "filesystem", "params": {"directory_path": …}}`; one folder or several."""
    with suppress(ValueError, TypeError, KeyError):
        config = json.loads(told[_SPILLING])
        if config["type"] == "filesystem":
            folders = config["params"]["directory_path"]
            return (folders,) if isinstance(folders, str) else tuple(map(str, folders))
        return ()
    folder = told.get(_SPILL_FOLDER)
    return (folder,) if isinstance(folder, str) and folder.startswith("/") else ()


def _fraction(told: object) -> float:
    with suppress(TypeError, ValueError):
        value = float(told)  # type: ignore[arg-type]
        if 0 <= value <= 1:
            return value
    return THRESHOLD


def system_config(cluster: Cluster) -> dict[str, Any]:
    """What the head was given for all nodes; empty where the GCS runs elsewhere."""
    for daemon in cluster.of("gcs_server"):
        for word in proc.command(daemon.pid):
            if word.startswith("--config_list="):
                with suppress(ValueError):
                    config = json.loads(base64.b64decode(word.partition("=")[2]))
                    return config if isinstance(config, dict) else {}
    return {}
