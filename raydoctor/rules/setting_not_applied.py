"""A `RAY_…` setting stands in a driver's environment, where nobody reads it.

## What you see
Nothing: Ray does as if the setting were not there. The memory monitor still kills at 95 %, the disk still counts as full at
95 %, nodes are still declared dead after five health checks. No process complains of a setting that it does not read.

## Why
Each process of Ray takes `RAY_<name>` from its own environment, when it starts (`ray_config_def.h`, Ray 2.9 to 2.60). The
memory monitor, spilling, the object store's disk and the worker pool are in the raylet, health checks and the list of
tasks in the GCS. A driver that joins a running cluster is neither, and neither is what its `runtime_env` starts: `export
RAY_memory_usage_threshold=0.8; python train.py` changes nothing. Only a driver that starts a Ray of its own hands its
environment on to it.

## Confirm
- `tr '\\0' '\\n' < /proc/<pid of raylet or gcs_server>/environ | grep ^RAY_`, and the same for the driver.

## Fix
Set it for `ray start` on every node (in KubeRay: `env` of the Ray containers), or once for all with `--system-config` at the
head, and start Ray anew.

## Not this when
Both sides have the same value; the setting is one that drivers and workers read (`RAY_task_oom_retries`,
`RAY_record_ref_creation_sites`, `RAY_DEBUG` …); the value is Ray's default.
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
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject

_DOC = "https://docs.ray.io/en/latest/ray-core/configure.html"


class _Setting(NamedTuple):
    """Who reads a setting, what it is by default, and what it does."""

    reader: Literal["raylet", "gcs"]
    default: str
    does: str


_SETTINGS = {
    "memory_usage_threshold": _Setting("raylet", "0.95", "when the memory monitor kills"),
    "memory_monitor_refresh_ms": _Setting("raylet", "250", "how often the memory monitor looks"),
    "min_memory_free_bytes": _Setting("raylet", "-1", "when the memory monitor kills"),
    "local_fs_capacity_threshold": _Setting("raylet", "0.95", "from when on a disk counts as full"),
    "automatic_object_spilling_enabled": _Setting("raylet", "true", "whether objects are spilled"),
    "object_spilling_config": _Setting("raylet", "", "where objects are spilled to"),
    "object_spilling_threshold": _Setting("raylet", "0.8", "when objects are spilled"),
    "max_io_workers": _Setting("raylet", "4", "how many processes spill"),
    "preallocate_plasma_memory": _Setting(
        "raylet", "false", "how the object store takes its memory"
    ),
    "worker_register_timeout_seconds": _Setting(
        "raylet", "60", "how long a worker may take to start"
    ),
    "worker_cap_enabled": _Setting("raylet", "true", "how many workers run at once"),
    "num_workers_soft_limit": _Setting("raylet", "-1", "how many idle workers are kept"),
    "idle_worker_killing_time_threshold_ms": _Setting(
        "raylet", "1000", "when idle workers are ended"
    ),
    "health_check_initial_delay_ms": _Setting("gcs", "5000", "when nodes are checked first"),
    "health_check_period_ms": _Setting("gcs", "3000", "how often nodes are checked"),
    "health_check_timeout_ms": _Setting("gcs", "10000", "how long a node may take to answer"),
    "health_check_failure_threshold": _Setting(
        "gcs", "5", "after how many missed checks a node is dead"
    ),
    "task_events_max_num_task_in_gcs": _Setting("gcs", "100000", "how many tasks `ray list` knows"),
}
"""Those that people set, and that only one kind of daemon reads: `RayConfig::instance().<name>()` in the sources of
raylet (`memory_monitor`, `local_object_manager`, `worker_pool`, the store's file system monitor) and GCS
(`gcs_health_check_manager`, `gcs_task_manager`); defaults of `ray_config_def.h`."""

_WORDS = {"true": "1", "false": "0", "": "0"}


class _Idle(NamedTuple):
    """A setting of a driver's that does nothing."""

    row: Event
    name: str
    setting: _Setting
    wanted: str
    has: str
    """What its reader was given; empty: nothing, so the default counts."""

    @property
    def reader(self) -> str:
        return "GCS" if self.setting.reader == "gcs" else "raylet"

    @property
    def is_overruled(self) -> bool:
        """The head was given it as system config, by a person: Ray makes one of its own of the spilling settings."""
        return live.truth(self.row, "system_config") and "object_spilling" not in self.name

    @property
    def in_effect(self) -> str:
        """What counts instead."""
        return self.has or f"{self.setting.default} (the default)"


@rule(
    tier="root",
    severity="warning",
    rank=94,
    looks_for=(RAYLET_STARTED, *JOB_STARTED),
)  # fmt: skip
def setting_not_applied(case: Case) -> Iterator[Finding]:
    """One finding for all settings of drivers that nobody reads."""
    idle: dict[str, _Idle] = {}
    drivers: dict[str, Event] = {}
    for row in live.rows(case, "settings"):
        if found := _idle(row):
            idle.setdefault(found.name, found)
            drivers.setdefault(row["driver_pid"], row)
    if idle:
        yield _finding(sorted(idle.values(), key=lambda i: i.name), list(drivers))


def _idle(row: Event) -> _Idle | None:
    """The setting of a row, where the driver has it and its reader runs here with another value."""
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
    """Whether two values mean different things: `0.80` is `0.8`, `1` is `true`."""
    a, b = (_WORDS.get(value.strip().lower(), value.strip()) for value in (one, other))
    try:
        return float(a) != float(b)
    except ValueError:
        return a != b


def _finding(idle: list[_Idle], drivers: list[str]) -> Finding:
    names = evidence.join_names(f"RAY_{i.name}={_short(i.wanted)}" for i in idle)
    one = len(drivers) == 1
    who = (
        f"a driver (pid {drivers[0]})"
        if one
        else f"{len(drivers)} drivers (pid {evidence.join_names(drivers)})"
    )
    return Finding(
        f"{names} of {who} {_no_effect(idle)}",
        tuple(
            Link(
                i.row,
                f"{i.setting.does}: the driver has {_short(i.wanted)}, the {i.reader} {_short(i.in_effect)}",
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
    readers = " and ".join(sorted({i.reader for i in idle}))
    if len(idle) == 1:
        return (
            f"has no effect: only the {readers} reads it, and runs with {_short(idle[0].in_effect)}"
        )
    return f"have no effect: only {readers} read them, and run with other values"


def _short(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:60]}…"


def _remedies(idle: list[_Idle]) -> tuple[Remedy, ...]:
    assigned = [
        paste.shell("RAY_{setting:name}={value}", setting=i.name, value=i.wanted) for i in idle
    ]
    where = "on the head" if all(i.setting.reader == "gcs" for i in idle) else "on every node"
    config = json.dumps({i.name: _value(i.wanted) for i in idle})
    at_head = paste.shell("ray start --head --system-config={config} …", config=config)
    if any(i.is_overruled for i in idle):
        title = "Change it where the head is started: what is given there as system config beats any environment"
        steps: tuple[str, ...] = (paste.shell("ray stop; {start}", start=at_head),)
    else:
        title = f"Set it where Ray is started, {where}, and start Ray anew"
        steps = (
            paste.shell(
                "ray stop; {settings} ray start --head …   # KubeRay: env of the Ray containers",
                settings=assigned,
            ),
            paste.shell("{start}   # or once, at the head: it hands it to all", start=at_head),
        )
    return (
        Remedy(title, steps, risk="disruptive", doc=_DOC),
        Remedy(
            "Or take it out of the driver's environment, so that nobody relies on it",
            (paste.shell("unset {settings:name}", settings=[f"RAY_{i.name}" for i in idle]),),
        ),
    )


def _value(text: str) -> object:
    """As JSON has it: a number, a truth, or a text."""
    try:
        return json.loads(text.lower()) if text.lower() in ("true", "false") else json.loads(text)
    except ValueError:
        return text


# ------------------------------------------------------------------ examples


def _settings(**settings: tuple[str | None, str | None, str | None]) -> dict[str, str]:
    """The table: name -> (raylet, GCS, driver)."""
    rows = ",\n".join(
        json.dumps(
            {"setting": f"RAY_{name}", "raylet": raylet, "gcs": gcs, "driver": driver,
             "raylet_pid": 305, "gcs_pid": 13, "driver_pid": 812}
        )
        for name, (raylet, gcs, driver) in settings.items()
    )  # fmt: skip
    head = '{"table": "settings", "at": 1795260600.0, "from": "proc", "total": 1, "rows": ['
    return {"logs/raylet.out": "", "live/live-settings.json": f"{head}\n{rows}\n]}}\n"}


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a threshold that only the driver has",
        _settings(memory_usage_threshold=(None, None, "0.8")),
        roots=("setting-not-applied",),
        says=(
            "RAY_memory_usage_threshold=0.8",
            "pid 812",
            "0.95 (the default)",
            "ray start --head",
        ),
    ),
    Example(
        "two, of which the GCS has one otherwise",
        _settings(
            local_fs_capacity_threshold=(None, None, "0.99"),
            health_check_failure_threshold=("5", "20", "50"),
        ),
        roots=("setting-not-applied",),
        says=(
            "RAY_health_check_failure_threshold=50",
            "RAY_local_fs_capacity_threshold=0.99",
            "GCS and raylet",
        ),
    ),
    Example(
        "set on both sides, or to what is the default, or one that drivers read",
        _settings(
            memory_usage_threshold=("0.80", None, "0.8"),
            automatic_object_spilling_enabled=(None, None, "1"),
            task_oom_retries=(None, None, "3"),
            health_check_period_ms=(None, "9000", "9000"),
        ),
    ),
)
