"""A `RAY_…` setting is in a driver's environment, where no process reads it.

## What you see
Ray runs as if the setting were not there, and prints nothing about it. The memory monitor still kills at 95%, the disk
still counts as full at 95%, and the GCS still declares nodes dead after five failed health checks.

## Why
Each Ray process reads `RAY_<name>` from its own environment when it starts (`ray_config_def.h`, Ray 2.9 to 2.60). The
raylet runs the memory monitor, spilling, the object store's disk check and the worker pool. The GCS runs health checks
and keeps the list of tasks. A driver that joins a running cluster runs none of these. So neither `export
RAY_memory_usage_threshold=0.8; python train.py` nor a `runtime_env` with the setting has an effect. Only a driver that
starts its own cluster passes its environment on to it.

## Confirm
- `tr '\\0' '\\n' < /proc/$(pgrep -o raylet)/environ | grep ^RAY_` prints the raylet's settings. Do the same for
  `gcs_server` and for the driver's pid: only the driver has the setting.

## Fix
Set the variable for `ray start` on every node (in KubeRay: `env` of the Ray containers), or once with `--system-config`
on the head, and restart Ray, which ends all running jobs:

    ray start --head --system-config='{"memory_usage_threshold": 0.8}'

## Not this when
- the raylet (or the GCS) and the driver have the same value.
- drivers and workers read the setting (`RAY_task_oom_retries`, `RAY_record_ref_creation_sites`, `RAY_DEBUG`, …).
- the value is Ray's default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal, NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import JOB_STARTED, RAYLET_STARTED
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import cut
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.cluster import RAY_STOP
from raydoctor.rules.shared.live import examples as sample

_DOC = "https://docs.ray.io/en/latest/ray-core/configure.html"


class _Setting(NamedTuple):
    """The process that reads a setting, its default, and what it controls."""

    reader: Literal["raylet", "gcs"]
    default: str
    controls: str


_SETTINGS = {
    "memory_usage_threshold": _Setting(
        "raylet", "0.95", "the memory usage from which on the memory monitor kills workers"
    ),
    "memory_monitor_refresh_ms": _Setting("raylet", "250", "how often the memory monitor checks"),
    "min_memory_free_bytes": _Setting(
        "raylet", "-1", "the free memory below which the memory monitor kills workers"
    ),
    "local_fs_capacity_threshold": _Setting(
        "raylet", "0.95", "the usage at which a disk counts as full"
    ),
    "automatic_object_spilling_enabled": _Setting("raylet", "true", "whether objects are spilled"),
    "object_spilling_config": _Setting("raylet", "", "where objects are spilled to"),
    "object_spilling_threshold": _Setting("raylet", "0.8", "when objects are spilled"),
    "max_io_workers": _Setting("raylet", "4", "how many processes spill"),
    "preallocate_plasma_memory": _Setting(
        "raylet", "false", "how the object store allocates its memory"
    ),
    "worker_register_timeout_seconds": _Setting(
        "raylet", "60", "how long a worker may take to start"
    ),
    "worker_cap_enabled": _Setting("raylet", "true", "how many workers run at once"),
    "num_workers_soft_limit": _Setting("raylet", "-1", "how many idle workers are kept"),
    "idle_worker_killing_time_threshold_ms": _Setting(
        "raylet", "1000", "when idle workers are ended"
    ),
    "health_check_initial_delay_ms": _Setting("gcs", "5000", "when nodes are first checked"),
    "health_check_period_ms": _Setting("gcs", "3000", "how often nodes are checked"),
    "health_check_timeout_ms": _Setting("gcs", "10000", "how long a node may take to answer"),
    "health_check_failure_threshold": _Setting(
        "gcs", "5", "after how many missed checks a node is dead"
    ),
    "task_events_max_num_task_in_gcs": _Setting(
        "gcs", "100000", "how many tasks ray list can show"
    ),
}
"""Settings that people change, and that only one kind of daemon reads: `RayConfig::instance().<name>()` in the sources of
raylet (`memory_monitor`, `local_object_manager`, `worker_pool`, the store's file system monitor) and GCS
(`gcs_health_check_manager`, `gcs_task_manager`); defaults of `ray_config_def.h`."""

_WORDS = {"true": "1", "false": "0", "": "0"}


class _Idle(NamedTuple):
    """A driver's setting without effect."""

    row: Event
    name: str
    setting: _Setting
    wanted: str
    has: str
    """The value that its reader got; empty if it got none and uses the default."""

    @property
    def reader(self) -> str:
        return "GCS" if self.setting.reader == "gcs" else "raylet"

    @property
    def is_overruled(self) -> bool:
        """Whether it was passed to the head as system config (Ray itself passes the spilling settings that way)."""
        return live.truth(self.row, "system_config") and "object_spilling" not in self.name

    @property
    def in_effect(self) -> str:
        """The value that Ray uses instead."""
        return self.has or f"{self.setting.default} (the default)"


@rule(
    tier="root",
    severity="warning",
    rank=94,
    explains=("setting",),
    looks_for=(RAYLET_STARTED, *JOB_STARTED),
)  # fmt: skip
def setting_not_applied(case: Case) -> Iterator[Finding]:
    """One finding for all settings of drivers that no process reads."""
    idle: dict[str, _Idle] = {}
    drivers: dict[str, Event] = {}
    for row in live.rows(case, "settings"):
        if found := _idle(row):
            idle.setdefault(found.name, found)
            drivers.setdefault(row["driver_pid"], row)
    if idle:
        yield _finding(sorted(idle.values(), key=lambda i: i.name), list(drivers))


def _idle(row: Event) -> _Idle | None:
    """The setting of a row, if the driver has it and its reader runs here with another value."""
    name = row["setting"].removeprefix("RAY_")
    setting = _SETTINGS.get(name)
    wanted = row["driver"]
    if setting is None or not wanted or not row[f"{setting.reader}_pid"]:
        return None
    has = row[setting.reader]
    return (
        _Idle(row, name, setting, wanted, has) if _differ(wanted, has or setting.default) else None
    )


def _differ(one: str, other: str) -> bool:
    """Whether two values differ in meaning: `0.80` is `0.8`, `1` is `true`."""
    a, b = (_WORDS.get(value.strip().lower(), value.strip()) for value in (one, other))
    try:
        return float(a) != float(b)
    except ValueError:
        return a != b


def _finding(idle: list[_Idle], drivers: list[str]) -> Finding:
    names = evidence.join_names(f"RAY_{i.name}={_short(i.wanted)}" for i in idle)
    one = len(drivers) == 1
    owner = (
        f"of a driver (pid {drivers[0]})"
        if one
        else f"of {len(drivers)} drivers (pid {evidence.join_names(drivers)})"
    )
    noun = "Setting" if len(idle) == 1 else "Settings"
    return Finding(
        f"{noun} {names} {owner} {_no_effect(idle)}",
        tuple(
            Link(
                i.row,
                f"{i.setting.controls}: the driver sets {_short(i.wanted)}, but the {i.reader} uses {_short(i.in_effect)}",
            )
            for i in idle[:4]
        ),
        explains=tuple(Entity("setting", i.name) for i in idle),
        subjects=tuple(
            Subject("driver", None, None, int(p)) for p in drivers[:10] if p.isdecimal()
        ),
        count=len(idle),
        remedies=_remedies(idle),
    )


def _no_effect(idle: list[_Idle]) -> str:
    readers = sorted({f"the {i.reader}" for i in idle})
    if len(idle) == 1:
        return f"has no effect: only {readers[0]} reads it, and uses {_short(idle[0].in_effect)}"
    verbs = ("reads", "uses") if len(readers) == 1 else ("read", "use")
    return (
        f"have no effect: only {' and '.join(readers)} {verbs[0]} them, and {verbs[1]} other values"
    )


def _short(value: str) -> str:
    return cut(value, 60)


def _remedies(idle: list[_Idle]) -> tuple[Remedy, ...]:
    assigned = [
        paste.shell("RAY_{setting:name}={value}", setting=i.name, value=i.wanted) for i in idle
    ]
    where = "on the head" if all(i.setting.reader == "gcs" for i in idle) else "on every node"
    it = "it" if len(idle) == 1 else "them"
    config = json.dumps({i.name: _value(i.wanted) for i in idle})
    at_head = paste.shell("ray start --head --system-config={config}", config=config)
    if any(i.is_overruled for i in idle):
        title = (
            f"Change {it} where the head is started: its system config overrides every environment"
        )
        steps: tuple[str, ...] = (
            RAY_STOP,
            paste.shell("{start}   # plus your other options", start=at_head),
        )
    else:
        title = f"Set {it} where Ray is started, {where}, and restart Ray"
        steps = (
            RAY_STOP,
            paste.shell(
                "{settings} ray start --head   # either this, plus your other options. KubeRay: env of the Ray containers",
                settings=assigned,
            ),
            paste.shell(
                "{start}   # or this on the head only, for all nodes, plus your other options",
                start=at_head,
            ),
        )
    return (
        Remedy(title, steps, risk="disruptive", doc=_DOC),
        Remedy(
            f"Or remove {it} from the driver's environment, where {'it has' if it == 'it' else 'they have'} no effect",
            (paste.shell("unset {settings:name}", settings=[f"RAY_{i.name}" for i in idle]),),
        ),
    )


def _value(text: str) -> object:
    """The JSON value: a number, a boolean or a text."""
    try:
        return json.loads(text.lower()) if text.lower() in ("true", "false") else json.loads(text)
    except (ValueError, RecursionError):
        return text


# ------------------------------------------------------------------ examples


def _settings(**settings: tuple[str | None, str | None, str | None]) -> dict[str, str]:
    """The table: name -> (raylet, GCS, driver)."""
    pids = {"raylet_pid": 305, "gcs_pid": 13, "driver_pid": 812}
    rows = [
        {"setting": f"RAY_{name}", "raylet": raylet, "gcs": gcs, "driver": driver, **pids}
        for name, (raylet, gcs, driver) in settings.items()
    ]
    return {"logs/raylet.out": "", **sample.tables(1795260600.0, settings=rows)}


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a threshold that only the driver sets",
        _settings(memory_usage_threshold=(None, None, "0.8")),
        says=(
            "RAY_memory_usage_threshold=0.8",
            "pid 812",
            "0.95 (the default)",
            "ray start --head",
        ),
    ),
    Example(
        "two settings, one of which the GCS has with another value",
        _settings(
            local_fs_capacity_threshold=(None, None, "0.99"),
            health_check_failure_threshold=("5", "20", "50"),
        ),
        says=(
            "RAY_health_check_failure_threshold=50",
            "RAY_local_fs_capacity_threshold=0.99",
            "the GCS and the raylet read them",
        ),
    ),
    Example(
        "settings that both sides have, that equal the default, or that drivers read",
        _settings(
            memory_usage_threshold=("0.80", None, "0.8"),
            automatic_object_spilling_enabled=(None, None, "1"),
            task_oom_retries=(None, None, "3"),
            health_check_period_ms=(None, "9000", "9000"),
        ),
    ),
)
