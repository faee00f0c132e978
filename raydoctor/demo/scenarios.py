"""What the demo can break: a user's program, settings that make it fail, and what must be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from raydoctor.demo import machine
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.text import size

PROGRAMS = Path(__file__).parent / "programs"

_OOM_MARGIN = 1_200 << 20
"""Where the threshold lies above the present use: Ray itself takes 0.5 to 0.7 GB of it, so the
program's tasks meet it after some 0.6 GB, well within the 1.5 GB at which they stop."""
_OOM_RESERVE = 900 << 20
"""What must stay free above the threshold: between two looks of the monitor tasks overshoot it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way to break Ray."""

    name: str
    title: str
    program: str
    finds: frozenset[str]
    """Rules of which one must be a root of the report."""
    settings: Callable[[Path], Mapping[str, str]] = lambda folder: {}
    """Environment for this machine, given the folder Ray works in; raises RaydoctorError where the
    failure cannot be had safely."""
    seconds: float = 75.0
    """What the program may take before it is ended."""

    @property
    def path(self) -> Path:
        """The program's file."""
        return PROGRAMS / self.program


def _oom(folder: Path) -> Mapping[str, str]:
    memory = machine.memory()
    if memory is None:
        raise RaydoctorError(
            "Ray's memory monitor works on Linux only", "Try another one: raydoctor demo crash"
        )
    limit = memory.used + _OOM_MARGIN
    if limit + _OOM_RESERVE > memory.total:
        raise RaydoctorError(
            f"too little memory to run out of it safely: {size(memory.total - memory.used)} are "
            f"free, {size(_OOM_MARGIN + _OOM_RESERVE)} are needed",
            "Try one that needs less: raydoctor demo owner-died",
        )
    return {
        "RAY_memory_usage_threshold": f"{limit / memory.total:.4f}",
        "RAY_memory_monitor_refresh_ms": "100",
    }


def _disk_full(folder: Path) -> Mapping[str, str]:
    """Ray's threshold goes below the present use; the disk stays as it is."""
    used = machine.disk_used(folder)
    return {
        "RAY_local_fs_capacity_threshold": f"{used * 0.9:.6f}",
        "RAY_local_fs_monitor_interval_ms": "100",
    }


def _impatient(folder: Path) -> Mapping[str, str]:
    """The raylet looks for requests that nothing can serve when it dumps its state: every second."""
    return {"RAY_debug_dump_period_milliseconds": "1000"}


SCENARIOS = (
    Scenario(
        "oom",
        "three training tasks together need more memory than the node may use",
        "train_shards.py",
        frozenset({"ray-oom-kill"}),
        _oom,
    ),
    Scenario(
        "owner-died",
        "the actor that owns the objects leaves before they are read",
        "share_tables.py",
        frozenset({"worker-exit-code"}),
    ),
    Scenario(
        "disk-full",
        "objects must spill, and the disk is fuller than Ray allows",
        "collect_blocks.py",
        frozenset({"disk-full"}),
        _disk_full,
    ),
    Scenario(
        "crash",
        "native code reads memory that it freed",
        "decode_frames.py",
        frozenset({"worker-native-crash"}),
    ),
    Scenario(
        "starved",
        "actors hold every CPU, and tasks wait behind them",
        "simulate.py",
        frozenset({"cluster-starved"}),
        _impatient,
    ),
)
DEFAULT = "oom"


def find(name: str) -> Scenario | None:
    """The scenario of that name."""
    return next((s for s in SCENARIOS if s.name == name), None)
