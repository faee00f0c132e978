"""Shared by rules about the object store, spilling and disks: the records of plasma and of its disk.

Read in the logs of Ray 2.9.3, 2.20, 2.40, 2.50 and 2.60. The texts are the same in all of them; only the file-system
monitor's numbers changed from bytes (2.9.3, 2.20) to `77.2179 GB` (2.40 and later).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.case import order
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER, RAYLET
from raydoctor.cluster import tables
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import size as size_of
from raydoctor.model.values import Event, Remedy

_MIB = 1024**2
RAYLET_TOLD = (*RAYLET, "event", "raylet-echo")
"""Raylet errors: its own log, the event file, and the driver's copy of `raylet.err`."""

PLACE, SHRUNK = "place", "shrunk"
"""Entities of kind `store`: one that is not in /dev/shm, and one that is smaller than requested."""

DISK_OVER = (
    Signal(
        "disk.over_threshold", "% full, available space: ",
        r"^(?P<dir>\S.*?) is over (?P<percent>\d{1,20}(?:\.\d{1,20})?)% full, available space: (?P<free>\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?)(?P<gb> GB)?"
        r"(?:; capacity: (?P<capacity>\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?)|\.)", RAYLET_TOLD,
        "/tmp/ray/session_2026-11-21_07-50-14_566733_12 is over 95% full, available space: 9.2337 GB; capacity: 251.972 GB. "
        "Object creation will fail if spilling is required.",
        symptom=True, fold=("dir",),
    ),
    Signal(
        "disk.over_threshold", "object creation will fail if spilling is required.",
        r"^(?P<dir>\S.*?) has no capacity, object creation will fail if spilling is required\.", RAYLET_TOLD,
        "/tmp/ray/session_2026-11-21_07-50-14_566733_12 has no capacity, object creation will fail if spilling is required.",
        symptom=True, fold=("dir",),
    ),
)  # fmt: skip
"""`file_system_monitor.cc`, every ten seconds while it lasts; 2.0 has no capacity, and a share for the percentage."""

OUT_OF_DISK = Signal(
    "object.out_of_disk", "Out-of-disk: Failed to create object ",
    r"^Out-of-disk: Failed to create object (?P<object>[0-9a-f]{56}) of size (?P<mb>\d+)MB", RAYLET,
    "Out-of-disk: Failed to create object 00ffffffffffffffffffffffffffffffffffffff0100000003e1f505 of size 32MB\n"
    "Plasma store debug dump: \nCurrent usage: 0.272633 / 0.104858 GB",
    extent="record", symptom=True,
)  # fmt: skip
"""`create_request_queue.cc`, level I. The store's status follows, in this record or the next."""

STORE_SIZE = Signal(
    "store.size", "Allowing the Plasma store to use up to ",
    r"^Allowing the Plasma store to use up to (?P<gb>\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?)GB of memory", ("raylet-out",),
    "Allowing the Plasma store to use up to 0.209715GB of memory.",
)  # fmt: skip
"""Decimal gigabytes, printed once when the raylet starts."""

FALLBACK = Signal(
    "store.fallback", "Shared memory store full, falling back to allocating from filesystem: ",
    r"^Shared memory store full, falling back to allocating from filesystem: (?P<bytes>\d+)", ("raylet-out",),
    "Shared memory store full, falling back to allocating from filesystem: 20971774",
)  # fmt: skip

FALLBACK_FAILED = (
    Signal(
        "store.fallback_failed", "Plasma fallback allocator failed, likely out of disk space.",
        r"^Plasma fallback allocator failed, likely out of disk space\.", (*RAYLET, "raylet-echo"),
        "Plasma fallback allocator failed, likely out of disk space.", symptom=True,
    ),
    Signal(
        "store.fallback_failed", "Out of disk space with fallocate error: ",
        r"^Out of disk space with fallocate error: (?P<error>.*)", (*RAYLET, "raylet-echo"),
        "Out of disk space with fallocate error: No space left on device", symptom=True,
    ),
)  # fmt: skip

SPILLING_OFF = Signal(
    "store.spilling_off", "Object spilling is disabled because spilling config is unspecified",
    r"^Object spilling is disabled because spilling config is unspecified", ("raylet-out",),
    "Object spilling is disabled because spilling config is unspecified", precedes=True,
)  # fmt: skip

SPILLING_UNPARSED = Signal(
    "store.spilling_unparsed", "Failed to parse spilling config, error message: ",
    r"^Failed to parse spilling config, error message: (?P<error>.*)", RAYLET,
    "Failed to parse spilling config, error message: [json.exception.parse_error.101] parse error at line 1, column 1: syntax error "
    "while parsing value - unexpected end of input; expected '[', '{', or a literal",
    symptom=True,
)  # fmt: skip
"""Up to 2.40 instead of the record above: invalid JSON, such as the empty text of "off", disables spilling."""

SPILLED = Signal(
    "store.spilled", " MiB, ",
    r"^(?::info_message:)?Spilled (?P<mib>\d+) MiB, (?P<objects>\d+) objects, write throughput (?P<rate>\d+) MiB/s",
    (*RAYLET, "raylet-echo"),
    ":info_message:Spilled 2080 MiB, 52 objects, write throughput 453 MiB/s. Set RAY_verbose_spill_logs=0 to disable this message.",
)  # fmt: skip
"""Sums since the raylet's start; the rate is the average over all of it (`local_object_manager.cc`)."""

RESTORED = Signal(
    "store.restored", " MiB, ",
    r"^Restored (?P<mib>\d+) MiB, (?P<objects>\d+) objects, read throughput (?P<rate>\d+) MiB/s", ("raylet-out",),
    "Restored 2480 MiB, 62 objects, read throughput 771 MiB/s",
)  # fmt: skip


class Status(NamedTuple):
    """The block `Plasma store debug dump`, in bytes."""

    used: float
    capacity: float
    pending_mb: int
    objects_in_use: int


class Pulls(NamedTuple):
    """Task arguments that the raylet should fetch, from the last dump of its state."""

    objects: int
    wanted: int
    available: int
    removable: int
    """Bytes that it can still spill or is spilling."""


_PULLS = pattern(
    r"^PullManager:\n.{0,1500}?- num bytes available for pulled objects: (?P<available>\d{1,20})\n.{0,1500}?- num bytes being pulled \(all\): 0\n"
    r".{0,1500}?- first task request bundle: (?P<objects>\d{1,20}) objects, (?P<wanted>\d{1,20}) bytes \(inactive, waiting for capacity\)",
    re.MULTILINE | re.DOTALL,
)


def waiting_pulls(state: Event) -> Pulls | None:
    """Arguments that wait for room while nothing is being pulled, or None (`debug.state`, all Ray versions)."""
    found = _PULLS.search(state.message)
    if not found:
        return None
    names = ("pinned_objects_size", "num_bytes_pending_spill")
    removable = sum(tables.whole(state, name) or 0 for name in names)
    return Pulls(int(found["objects"]), int(found["wanted"]), int(found["available"]), removable)


_USAGE = pattern(
    r"Current usage: (\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?) / (\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?) GB"
)
_PENDING = pattern(r"\d{1,15} pending objects of total size (\d{1,15})MB")
_IN_USE = pattern(r"^- objects in use: (\d{1,15})", re.MULTILINE)


def status(text: str) -> Status | None:
    """The store's status block in a record, or None."""
    usage = _USAGE.search(text)
    if not usage:
        return None
    pending = _PENDING.search(text)
    objects = _IN_USE.search(text)
    return Status(
        used=float(usage[1]) * 1e9,
        capacity=float(usage[2]) * 1e9,
        pending_mb=int(pending[1]) if pending else 0,
        objects_in_use=int(objects[1]) if objects else 0,
    )


def node_of(case: Case, event: Event) -> str:
    """The NodeID of the raylet that wrote this record, or empty if unknown.

    A driver's copy contains the address only if the raylet is on another host.
    """
    if event["node_id"]:
        return event["node_id"]
    if not event.source.role.startswith(("driver", "job-driver")):
        return case.node_of(event.source)
    nodes = {n for n, ip in case.ledger.node_ips.items() if not event["ip"] or ip == event["ip"]}
    return nodes.pop() if len(nodes) == 1 else ""


def by_node(case: Case, events: Iterable[Event]) -> dict[str, list[Event]]:
    """Events by the node of their raylet; if only one node is known, events of unknown nodes count for it."""
    found = evidence.grouped(events, lambda e: node_of(case, e))
    if "" in found and len(found) == 2:
        nameless = found.pop("")
        known = next(iter(found))
        found[known] = sorted([*found[known], *nameless], key=order)
    return found


def own_log_first(events: Iterable[Event]) -> list[Event]:
    """The raylet's own records, or else the copies: each record appears up to three times."""
    listed = list(events)
    for roles in (RAYLET, ("event",), ("raylet-echo",)):
        chosen = [e for e in listed if role_of(e) in roles]
        if chosen:
            return chosen
    return listed


def role_of(event: Event) -> str:
    """The role of an event's line: a driver's file also contains copies of raylets' errors."""
    return "raylet-echo" if event.source.role in DRIVER else event.source.role


def capacity_of(case: Case, node: str) -> float:
    """Bytes that the node's object store may hold; 0 if its raylet's log does not contain it."""
    sizes = by_node(case, case.of("store.size")).get(node, [])
    return float(sizes[-1]["gb"]) * 1e9 if sizes else 0.0


def spilled_bytes(case: Case, node: str) -> int:
    """Bytes that the node has spilled since its raylet's start, as far as logged."""
    records = by_node(case, case.of("store.spilled")).get(node, [])
    return max((int(e["mib"]) << 20 for e in records), default=0)


def exceptions(case: Case, name: str) -> list[Event]:
    """Driver exceptions of this type, plain or as the cause of a task's error."""
    return [e for e in case.of("driver.exception") if name in (e["type"], e["inner"])]


_RAISER = pattern(r"ray::(?P<function>[\w.<>]+)\(")


def raised(error: Event) -> str:
    """`OutOfDiskError, raised in load_block`: the exception and its task, if it names one."""
    name = error["inner"] or error["type"]
    found = _RAISER.search(error["what"])
    return f"{name}, raised in {found['function']}" if found else name


def failed_objects(events: Iterable[Event]) -> tuple[Entity, ...]:
    """The objects that these records name."""
    return tuple(dict.fromkeys(Entity("object", e["object"]) for e in events if e["object"]))


def where(case: Case, node: str) -> str:
    """` on node 10.0.0.2 (6990a5f6626e)`, or nothing in a cluster of one."""
    if not node or len(case.ledger.node_ips) < 2:
        return ""
    return f" on node {case.ledger.node_ips.get(node, '')} ({evidence.short(node)})".replace(
        "  ", " "
    )


# ---------------------------------------------------------------- remedies

SPILLING_DOC = "https://docs.ray.io/en/latest/ray-core/objects/object-spilling.html"
MEMORY_DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/memory-management.html"
FEWER = Remedy(
    "Find the code that keeps the objects in scope, and delete references that are no longer needed",
    (
        "RAY_record_ref_creation_sites=1 python your_script.py",
        "ray memory --group-by STACK_TRACE          # in another terminal, while the program runs",
        "del refs                                   # in the program, once a result has been used",
    ),
    doc=MEMORY_DOC,
)
SPILLING_ON = Remedy(
    "Switch spilling on: Ray then moves objects to disk, and back when a task needs them",
    (
        "# remove automatic_object_spilling_enabled=False from _system_config / --system-config",
        "unset RAY_automatic_object_spilling_enabled",
    ),
    risk="disruptive",
    doc=SPILLING_DOC,
)


def why_off(event: Event) -> str:
    """How a raylet's line shows that it does not spill; an empty configuration is one that Ray cannot parse."""
    if event.kind == "store.spilling_unparsed":
        return "the spilling configuration is empty or invalid (Ray cannot parse it), so spilling is off on this node"
    return "spilling is switched off on this node"


def spill_to(title: str) -> tuple[Remedy, ...]:
    """Another directory for spilled objects, with the option of each version of Ray."""
    return (
        Remedy(
            title,
            (
                "ray start --object-spilling-directory=/big_disk/spill   # plus your other options. On every node",
                'ray.init(object_spilling_directory="/big_disk/spill")   # if the program starts Ray',
            ),
            risk="disruptive",
            doc=SPILLING_DOC,
            since=(2, 45),
        ),
        Remedy(
            title,
            (
                'ray start --head --system-config=\'{"object_spilling_config": "{\\"type\\": \\"filesystem\\", '
                '\\"params\\": {\\"directory_path\\": \\"/big_disk/spill\\"}}"}\'   # plus your other options',
                'ray.init(_system_config={"object_spilling_config": json.dumps('
                '{"type": "filesystem", "params": {"directory_path": "/big_disk/spill"}})})   # if the program starts Ray',
            ),
            risk="disruptive",
            doc=SPILLING_DOC,
            until=(2, 45),
        ),
    )


def larger(needed: float) -> tuple[Remedy, ...]:
    """A store of this many bytes, in whole MiB; nothing if the need is unknown (0)."""
    if not needed:
        return ()
    size = ceil(needed / _MIB) * _MIB
    return (
        Remedy(
            f"Give the object store {size_of(size)}, if the node has that much memory",
            (
                paste.shell(
                    "ray start --object-store-memory={size}   # plus your other options. On every node",
                    size=size,
                ),
                paste.python(
                    "ray.init(object_store_memory={size})   # if your program starts Ray itself",
                    size=size,
                ),
                "docker run --shm-size=SIZE   # plus your other options. The container needs at least as much shared memory",
            ),
            risk="disruptive",
            doc=MEMORY_DOC,
        ),
    )
