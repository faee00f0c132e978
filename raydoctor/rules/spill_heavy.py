"""The object store holds only a fraction of the data, so most of it goes over the disk.

## What you see
The job succeeds, slowly. In raylet.out (and, each time the sum doubles from 2 GiB on, in the driver's
output): `Spilled 3840 MiB, 96 objects, write throughput 429 MiB/s.`

## Why
Objects in scope that do not fit into the store are written to disk and read back when they are used.
That is what spilling is for, and a little of it costs nothing. It costs time when the data is several
times as large as the store, or the disk is slow; and disk space for as long as the objects are in scope.

## Confirm
- `ray memory --stats-only`: spilled and restored bytes, and their throughput.
- `iostat -x 5` on the node: is the disk the limit?

## Fix
More object-store memory, fewer objects in scope at once (smaller batches in flight, `del` references),
spilling to a faster disk, or several disks.

## Not this when
Less than four times the store was spilled at a good rate: then it is no diagnosis at all. The disk is
full (`disk-full`), or nothing more can be spilled (`object-store-full`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import size
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import store

_DOC = "https://docs.ray.io/en/latest/ray-core/objects/object-spilling.html"
_MIB = 1024**2
_MUCH = evidence.GB
"""Below a gibibyte nothing is worth a word."""
_TIMES = 4.0
"""So many stores full: the data does not nearly fit. (A shuffle may well write each byte once or twice.)"""
_SLOW = 100
"""MiB/s, averaged over all that was spilled: a network disk or a throttled volume; local disks do several
times that (measured: 130 to 526 MiB/s)."""


@rule(
    tier="cause",
    severity="warning",
    rank=68,
    looks_for=(store.SPILLED, store.RESTORED, store.STORE_SIZE),
)  # fmt: skip
def spill_heavy(case: Case) -> Iterator[Finding]:
    """One finding per node that spilled several times its store, or slowly."""
    for node, told in store.by_node(case, case.of("store.spilled")).items():
        volume = _volume(case, node, told)
        if volume.bytes >= _MUCH and (volume.times >= _TIMES or volume.rate < _SLOW):
            yield _finding(case, node, told, volume)


class _Volume(NamedTuple):
    """What a node spilled in all."""

    bytes: int
    rate: int
    """MiB/s, the average that Ray prints."""
    capacity: float
    restored: int

    @property
    def times(self) -> float:
        """How many stores full."""
        return self.bytes / self.capacity if self.capacity else 0.0

    @property
    def seconds(self) -> float:
        """What writing took, by Ray's own rate."""
        return self.bytes / _MIB / self.rate if self.rate else 0.0


def _volume(case: Case, node: str, told: list[Event]) -> _Volume:
    last = _last(told)
    back = store.by_node(case, case.of("store.restored")).get(node, [])
    return _Volume(
        int(last["mib"]) * _MIB,
        int(last["rate"]),
        store.capacity_of(case, node),
        max((int(e["mib"]) * _MIB for e in back), default=0),
    )


def _last(told: list[Event]) -> Event:
    """The record with the greatest sum: it only grows while the raylet lives."""
    return max(store.own_log_first(told), key=lambda e: int(e["mib"]))


def _finding(case: Case, node: str, told: list[Event], volume: _Volume) -> Finding:
    last = _last(told)
    first = store.own_log_first(told)[0]
    back = store.by_node(case, case.of("store.restored")).get(node, [])
    return Finding(
        _headline(volume, store.where(case, node)),
        (
            *(Link(first, "spilling begins") for _ in (1,) if first is not last),
            Link(last, f"{size(volume.bytes)} spilled, at {volume.rate} MiB/s on average"),
            *(Link(e, f"{size(volume.restored)} read back") for e in back[-1:]),
        ),
        explains=(Entity("spilling", node),),
        subjects=(Subject("node", node, node=node),) if node else (),
        remedies=_remedies(volume),
        covers=tuple(told),
    )


def _headline(volume: _Volume, where: str) -> str:
    times = f", {volume.times:.0f} times what its object store holds" if volume.times >= 1 else ""
    slow = ", a slow disk" if volume.rate < _SLOW else ""
    back = f"; {size(volume.restored)} read back" if volume.restored else ""
    return (
        f"{size(volume.bytes)} went over the disk{where}{times}: {volume.seconds:.0f} s of writing at "
        f"{volume.rate} MiB/s{slow}{back}"
    )


def _remedies(volume: _Volume) -> tuple[Remedy, ...]:
    return (
        *_more_memory(volume),
        Remedy(
            "Keep fewer objects in scope: work in batches and drop what is used",
            (
                "ready, pending = ray.wait(pending, num_returns=1)    # submit the next only when one is done",
                "del block                                            # once it has been used",
            ),
            doc=_DOC,
        ),
        Remedy(
            "Spill to a faster disk (a local SSD instead of a network volume)",
            ("ray start --object-spilling-directory=/fast_disk/spill …   # every node",),
            risk="disruptive",
            doc=_DOC,
            since=(2, 46),
        ),
        Remedy(
            "Spill to a faster disk, or to several: directory_path may be a list",
            (
                'ray start --head --system-config=\'{"object_spilling_config": "{\\"type\\": \\"filesystem\\", '
                '\\"params\\": {\\"directory_path\\": [\\"/disk1/spill\\", \\"/disk2/spill\\"]}}"}\' …',
            ),
            risk="disruptive",
            doc=_DOC,
            until=(2, 46),
        ),
    )


def _more_memory(volume: _Volume) -> tuple[Remedy, ...]:
    """What was spilled would have fitted into a store as much larger."""
    if volume.times < _TIMES:
        return ()
    wanted = int(volume.capacity + volume.bytes)
    return (
        Remedy(
            f"A larger object store, where the node has the memory (all of it would need {size(wanted)})",
            (
                paste.shell(
                    "ray start --object-store-memory={size} …   # every node; or as much as there is",
                    size=wanted,
                ),
                paste.python(
                    "ray.init(object_store_memory={size})       # where the script starts Ray",
                    size=wanted,
                ),
            ),
            risk="disruptive",
            doc=_DOC,
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
        "nineteen stores full go over the disk",
        {
            "logs/raylet.out": _start("0.209715")
            + _spilled(40, 120, 257)
            + _spilled(50, 3840, 429)
            + _raylet(54, store.RESTORED.sample),
            "logs/gcs_server.out": "",
        },
        roots=("spill-heavy",),
        says=("3.8 GiB", "19 times", "2.4 GiB read back", "object_store_memory="),
    ),
    Example(
        "a slow disk, told to the driver",
        {
            "driver.log": "(raylet) Spilled 8200 MiB, 205 objects, write throughput 41 MiB/s. Set RAY_verbose_spill_logs=0 to disable "
            "this message.\n"
        },
        roots=("spill-heavy",),
        says=("41 MiB/s", "200 s"),
    ),
    Example(
        "a store that spills its own size once, and a task that prints the words",
        {
            "logs/raylet.out": _start("20") + _spilled(40, 2048, 430) + _spilled(50, 20480, 420),
            "logs/gcs_server.out": "",
            "driver.log": "(raylet) Spilled 20480 MiB, 512 objects, write throughput 420 MiB/s.\n(check pid=12) Spilled 999999 MiB, 1 "
            "objects, write throughput 1 MiB/s.\n",
        },
    ),
)
