"""The object store holds only a fraction of the data, so Ray spills most of it to disk.

## What you see
The job succeeds, but slowly. `raylet.out` contains `Spilled 3840 MiB, 96 objects, write throughput 429 MiB/s.` From 2
GiB on, the driver prints the same line each time the total doubles.

## Why
When the objects in scope do not fit into the store, Ray writes some of them to disk, and reads these back when they
are used. A little spilling costs almost nothing. Spilling costs time when the data is several times as large as the
store, or when the disk is slow. It also takes disk space for as long as the objects are in scope.

## Confirm
- `ray memory --stats-only` shows spilled and restored bytes and their throughput.
- `iostat -x 5` on the node shows `%util` near 100 if the disk is the limit.

## Fix
Give the object store more memory (`ray start --object-store-memory=BYTES`), keep fewer objects in scope (smaller
batches in flight, `del` references), or spill to a faster disk (`ray start --object-spilling-directory=DIRECTORY`, Ray
2.45 and later) or to several disks.

## Not this when
- the store spilled less than four times its size, at a good rate: raydoctor does not report that.
- the disk is full (`disk-full`), or Ray cannot spill any more (`object-store-full`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, console, rule
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import size
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import store

_MIB = 1024**2
_MUCH = evidence.GB
"""Less than a gibibyte is not worth a finding."""
_TIMES = 4.0
"""Spilled bytes per byte of the store: from here on the data does not fit. (A shuffle may write each byte twice.)"""
_SLOW = 100
"""MiB/s, averaged over all spilled bytes: a network disk or a throttled volume. Local disks are several times
faster (measured: 130 to 526 MiB/s)."""


@rule(
    tier="cause",
    severity="warning",
    rank=68,
    explains=("spilling",),
    looks_for=(store.SPILLED, store.RESTORED, store.STORE_SIZE),
)  # fmt: skip
def spill_heavy(case: Case) -> Iterator[Finding]:
    """One finding per node that spilled several times its store, or slowly."""
    for node, records in store.by_node(case, case.of("store.spilled")).items():
        volume = _volume(case, node, records)
        if volume.bytes >= _MUCH and (volume.times >= _TIMES or volume.rate < _SLOW):
            yield _finding(case, node, records, volume)


class _Volume(NamedTuple):
    """All that a node spilled."""

    bytes: int
    rate: int
    """MiB/s, the average that Ray prints."""
    capacity: float
    restored: int

    @property
    def times(self) -> float:
        """Spilled bytes per byte of the store."""
        return self.bytes / self.capacity if self.capacity else 0.0

    @property
    def seconds(self) -> float:
        """The time that writing took, by Ray's own rate."""
        return self.bytes / _MIB / self.rate if self.rate else 0.0


def _volume(case: Case, node: str, records: list[Event]) -> _Volume:
    last = _last(records)
    back = store.by_node(case, case.of("store.restored")).get(node, [])
    return _Volume(
        int(last["mib"]) * _MIB,
        int(last["rate"]),
        store.capacity_of(case, node),
        max((int(e["mib"]) * _MIB for e in back), default=0),
    )


def _last(records: list[Event]) -> Event:
    """The record with the largest total, which only grows while the raylet runs."""
    return max(store.own_log_first(records), key=lambda e: int(e["mib"]))


def _finding(case: Case, node: str, records: list[Event], volume: _Volume) -> Finding:
    last = _last(records)
    first = store.own_log_first(records)[0]
    back = store.by_node(case, case.of("store.restored")).get(node, [])
    return Finding(
        _headline(volume, store.where(case, node)),
        (
            *(Link(first, "spilling begins here") for _ in (1,) if first is not last),
            Link(last, f"{size(volume.bytes)} spilled in total, at {volume.rate} MiB/s on average"),
            *(Link(e, f"{size(volume.restored)} read back in total") for e in back[-1:]),
        ),
        explains=(Entity("spilling", node),),
        subjects=(Subject("node", node, node=node),) if node else (),
        remedies=_remedies(volume),
        covers=tuple(records),
    )


def _headline(volume: _Volume, where: str) -> str:
    times = f", {volume.times:.0f} times the size of its object store" if volume.times >= 1 else ""
    slow = " (a slow disk)" if volume.rate < _SLOW else ""
    back = f", and {size(volume.restored)} read back" if volume.restored else ""
    return (
        f"Ray spilled {size(volume.bytes)} to disk{where}{times}: {volume.seconds:.0f} s of writing at "
        f"{volume.rate} MiB/s{slow}{back}"
    )


def _remedies(volume: _Volume) -> tuple[Remedy, ...]:
    return (
        *_more_memory(volume),
        Remedy(
            "Keep fewer objects in scope: work in batches and delete used references",
            (
                "ready, pending = ray.wait(pending, num_returns=1)    # submit the next task only when one is done",
                "del block                                            # once it has been used",
            ),
            doc=store.SPILLING_DOC,
        ),
        Remedy(
            "Spill to a faster disk (a local SSD instead of a network volume)",
            (
                "ray start --object-spilling-directory=/fast_disk/spill   # plus your other options. On every node",
                'ray.init(object_spilling_directory="/fast_disk/spill")   # if the program starts Ray',
            ),
            risk="disruptive",
            doc=store.SPILLING_DOC,
            since=(2, 45),
        ),
        Remedy(
            "Spill to a faster disk or to several disks: directory_path may be a list",
            (
                'ray start --head --system-config=\'{"object_spilling_config": "{\\"type\\": \\"filesystem\\", '
                '\\"params\\": {\\"directory_path\\": [\\"/disk1/spill\\", \\"/disk2/spill\\"]}}"}\'   # plus your other options',
                'ray.init(_system_config={"object_spilling_config": json.dumps('
                '{"type": "filesystem", "params": {"directory_path": ["/disk1/spill", "/disk2/spill"]}})})   # if the program starts Ray',
            ),
            risk="disruptive",
            doc=store.SPILLING_DOC,
            until=(2, 45),
        ),
    )


def _more_memory(volume: _Volume) -> tuple[Remedy, ...]:
    """A store in which everything would have fitted: its capacity and the spilled bytes."""
    if volume.times < _TIMES:
        return ()
    wanted = int(volume.capacity + volume.bytes)
    return (
        Remedy(
            f"Enlarge the object store: one of {size(wanted)} holds all the data, and a smaller one already helps",
            (
                paste.shell(
                    "ray start --object-store-memory={size}   # on every node, plus your other options. A smaller value where memory is short",
                    size=wanted,
                ),
                paste.python(
                    "ray.init(object_store_memory={size})   # if the program starts Ray",
                    size=wanted,
                ),
            ),
            risk="disruptive",
            doc=store.SPILLING_DOC,
        ),
    )


# ------------------------------------------------------------------ examples


def _raylet(second: int, text: str) -> str:
    return f"[2026-11-21 07:46:{second:02d},610 I 288 288] (raylet) local_object_manager.cc:244: {text}\n"


def _start(gb: str) -> str:
    return _raylet(30, f"Allowing the Plasma store to use up to {gb}GB of memory.")


def _spilled(second: int, mib: int, rate: int) -> str:
    return _raylet(
        second,
        f":info_message:Spilled {mib} MiB, {mib // 40} objects, write throughput {rate} MiB/s.",
    )


EXAMPLES: tuple[Example, ...] = (
    Example(
        "nineteen times the size of the store is spilled",
        {
            "logs/raylet.out": _start("0.209715")
            + _spilled(40, 120, 257)
            + _spilled(50, 3840, 429)
            + _raylet(54, store.RESTORED.sample),
            "logs/gcs_server.out": "",
        },
        says=("3.8 GiB", "19 times", "2.4 GiB read back", "object_store_memory="),
    ),
    console(
        "a slow disk, reported in the driver's output",
        "(raylet) Spilled 8200 MiB, 205 objects, write throughput 41 MiB/s. Set RAY_verbose_spill_logs=0 to disable "
        "this message.\n",
        says=("41 MiB/s", "200 s"),
    ),
    Example(
        "a store that spills its own size once, and a task that prints the same text",
        {
            "logs/raylet.out": _start("20") + _spilled(40, 2048, 430) + _spilled(50, 20480, 420),
            "logs/gcs_server.out": "",
            "driver.log": "(raylet) Spilled 20480 MiB, 512 objects, write throughput 420 MiB/s.\n(check pid=12) Spilled 999999 MiB, 1 "
            "objects, write throughput 1 MiB/s.\n",
        },
    ),
)
