"""The object store is full and cannot make room for another object.

## What you see
`ray.exceptions.ObjectStoreFullError: Failed to put object … because it is full`; or `OutOfDiskError`, without a record
in `raylet.out` that a file system is `over 95% full`; or tasks that never start, while `ray memory` shows a store full
of objects received from other nodes.

## Why
A full object store first spills objects to disk, then creates new ones as files on disk (fallback allocation). A put
fails only when neither works: spilling is switched off, one object is larger than the store and does not fit on the
disk either, or the disk of the session directory is full. Copies received from other nodes cannot be spilled, and
cannot be evicted while a task uses them. A store full of such copies has no room for the next task's arguments (ray
issue 62093).

## Confirm
- `ray memory --stats-only` shows how full the store is, and how much is spilled.
- `ray memory --group-by STACK_TRACE` shows which lines of your program keep references, if
  `RAY_record_ref_creation_sites=1` was set for `ray start` and for the driver.
- `Plasma store debug dump` in `raylet.out` shows what fills the store. Many `bytes spillable`: spilling is off, slow or
  failing. Many `bytes in use`: processes hold the objects. Many `bytes received`: copies from other nodes.
- `df -h /dev/shm /tmp/ray`, or of the directory of `--temp-dir`, shows whether the disk has room.

## Fix
Keep fewer objects in scope: `del` references, use smaller blocks, run fewer tasks at the same time. Keep spilling
switched on. Give the store more memory (`ray start --object-store-memory=BYTES`), and a container a larger /dev/shm
(`docker run --shm-size=8g`).

## Not this when
- the file system was over Ray's threshold (`disk-full`).
- the store spills and makes progress (`spill-heavy`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import CORE, DRIVER, RAY_EXCEPTION
from raydoctor.model.entities import Entity
from raydoctor.model.text import size as size_of
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import store

_ISSUE = "https://github.com/ray-project/ray/issues/62093"
_MB = 1024**2
_GROWTH = 1.2
"""A new store is this much larger than the bytes that were needed."""

_O = "641e079764274441ffffffffffffffffffffffff0100000001000000"
_PUT = (
    f"Failed to put object {_O} in object store because it is full. Object size is 219375455268 bytes.\n"
    "Plasma store status:\n(global lru) capacity: 78466815590\n"
)

PUT_FAILED = Signal(
    "object.store_full", " in object store because it is full. Object size is ",
    r"Failed to put object (?P<object>[0-9a-f]{56}) in object store because it is full\. Object size is (?P<size>\d+) bytes\."
    r"(?:.*?capacity: (?P<capacity>\d+))?", (*CORE, *DRIVER), _PUT, extent="record", symptom=True,
)  # fmt: skip
"""`plasma_store_provider.cc`: a core worker's log (E), and the text of the exception."""
OLD = Signal(
    "object.store_full_old", "PlasmaStoreFull: object does not fit in the plasma store",
    r"^(?:E +)?(?:pyarrow\.(?:lib|_plasma|plasma)\.)?(?P<type>PlasmaStoreFull): object does not fit in the plasma store", (*DRIVER, "worker-echo"),
    "pyarrow.lib.PlasmaStoreFull: object does not fit in the plasma store", symptom=True,
)  # fmt: skip
"""Up to 0.7, plasma's own exception."""
ECHOED = Signal(
    "object.put_echoed", " in object store because it is full. Object size is ",
    r"\] plasma_store_provider\.cc:\d{1,5}: Failed to put object (?P<object>[0-9a-f]{56}) in object store because it is full\. "
    r"Object size is (?P<size>\d+) bytes\.(?:.*?capacity: (?P<capacity>\d+))?", ("worker-echo",),
    f"[2026-11-21 07:51:03,942 E 12 12] plasma_store_provider.cc:122: {_PUT}", extent="record", with_header=True,
)  # fmt: skip
"""A worker's own record in a console."""


@rule(
    tier="root",
    severity="error",
    rank=66,
    explains=("object", "spilling", "store", "waiting"),
    caused_by=("arguments", "spilling"),
    daemons_record=True,
    looks_for=(
        PUT_FAILED, OLD, ECHOED, store.OUT_OF_DISK, *store.DISK_OVER, *store.FALLBACK_FAILED, store.FALLBACK, store.SPILLING_OFF,
        store.SPILLING_UNPARSED, store.STORE_SIZE,
        RAY_EXCEPTION,
    ),
)  # fmt: skip
def object_store_full(case: Case) -> Iterator[Finding]:
    """Failed puts, overflows into a full file system (per node), and stores full of received copies."""
    if full := _refused(case):
        yield full
    over = store.by_node(case, case.of("disk.over_threshold"))
    errors = store.exceptions(case, "OutOfDiskError")
    failures = store.by_node(case, case.of("object.out_of_disk", "store.fallback_failed"))
    for node, failed in failures.items():
        refused = any(e.kind == "object.out_of_disk" for e in failed)
        if (refused or errors) and node not in over and "" not in over:
            yield _overflow(case, node, failed, errors)
            errors = []
    yield from _stuck(case)


# ---------------------------------------------------------------- puts that failed


def _refused(case: Case) -> Finding | None:
    refused = case.of("object.store_full")
    refused += [e for e in case.of(ECHOED.kind) if e.source.is_excerpt] if not refused else []
    errors = store.exceptions(case, "ObjectStoreFullError")
    errors = errors or ([] if refused else case.of(OLD.kind))
    if not refused and not errors:
        return None
    objects = store.failed_objects(refused)
    largest = max((int(e["size"]) for e in refused), default=0)
    capacity = max((float(e["capacity"] or 0) for e in refused), default=0.0) or _largest_store(
        case
    )
    shown = errors or refused
    count = len(objects) or evidence.total(shown)
    return Finding(
        _refusal(count, largest, capacity),
        (
            *(Link(e, f"the object store refuses an object of {size_of(int(e['size']))}") for e in refused[:1]),
            *(Link(e, f"the driver got {store.raised(e)}") for e in errors[:1] if e.line not in _lines(refused[:1])),
        ),
        explains=objects or (Entity("store", ""),),
        caused_by=(Entity("arguments", "large"),),
        subjects=tuple(Subject("object", o.value) for o in objects[:10]),
        count=count,
        remedies=(*store.larger((capacity + largest) * _GROWTH), store.FEWER),
        covers=(*refused, *errors),
    )  # fmt: skip


def _lines(events: list[Event]) -> set[int]:
    return {e.line for e in events if e.source.role in DRIVER}


def _refusal(count: int, largest: int, capacity: float) -> str:
    one = evidence.many(count, "object")
    if not largest:
        return f"The object store is full and can neither spill nor evict objects: {one} could not be put"
    if capacity and largest > capacity:
        return (
            f"An object of {size_of(largest)} is larger than the object store ({size_of(capacity)}) "
            "and did not fit on the disk behind it"
        )
    of = f" of {size_of(capacity)}" if capacity else ""
    return f"The object store{of} is full: {one} (up to {size_of(largest)}) could not be put"


def _largest_store(case: Case) -> float:
    return max((float(e["gb"]) * 1e9 for e in case.of("store.size")), default=0.0)


# ---------------------------------------------------------------- overflow into a full file system


def _overflow(case: Case, node: str, failed: list[Event], errors: list[Event]) -> Finding:
    refused = [e for e in failed if e.kind == "object.out_of_disk"]
    fallback = store.own_log_first(e for e in failed if e.kind == "store.fallback_failed")
    off = store.by_node(case, case.of("store.spilling_off", "store.spilling_unparsed")).get(
        node, []
    )
    status = next((s for e in refused if (s := store.status(e.text))), None)
    count = evidence.total(refused) or evidence.total(errors) or 1
    links = [
        *(Link(e, store.why_off(e)) for e in off[:1]),
        *(Link(e, "the store falls back to files, and their file system is full") for e in fallback[:1]),
        *(Link(e, f"an object of {e['mb']} MiB cannot be created") for e in refused[:1]),
        *(Link(e, f"the driver got {store.raised(e)}") for e in errors[:1]),
    ]  # fmt: skip
    room = status.used + status.pending_mb * _MB if status else 0.0
    return Finding(
        _overflow_headline(status, refused, count, store.where(case, node), bool(off)),
        tuple(links),
        explains=(Entity("store", node), Entity("spilling", node), *store.failed_objects(refused)),
        caused_by=(Entity("arguments", "large"), Entity("spilling", node)),
        subjects=(Subject("node", node, node=node),) if node else (),
        count=count,
        remedies=(
            *((store.SPILLING_ON,) if off else ()),
            *store.larger(room * _GROWTH),
            store.FEWER,
        ),
        covers=(*failed, *errors, *off),
    )


def _overflow_headline(
    status: store.Status | None, refused: list[Event], count: int, where: str, off: bool
) -> str:
    of_size = f" of {refused[0]['mb']} MiB" if refused else ""
    beside, memory = "", "its memory"
    if status:
        beside = f" next to {evidence.many(status.objects_in_use, 'object')} in use ({size_of(status.used)})"
        memory = f"its {size_of(status.capacity)} of memory"
    spilling = ", and spilling is off" if off else ""
    return (
        f"The object store{where} could not take {evidence.many(count, 'object')}{of_size}{beside}: "
        f"{memory} and the disk behind it are full{spilling}"
    )


# ---------------------------------------------------------------- received copies


def _stuck(case: Case) -> Iterator[Finding]:
    """Tasks whose arguments cannot be pulled while nothing in the store can be spilled.

    A snapshot alone does not prove that this lasts: a `ray.get` must have timed out, or a job still run.
    """
    timeouts = [e for e in case.of("driver.exception") if e["type"] == "GetTimeoutError"]
    unended = [job for job in case.ledger.jobs.values() if job.ended is None]
    for state in case.of("debug.state"):
        pulls = store.waiting_pulls(state)
        stuck = pulls and pulls.available < pulls.wanted and not pulls.removable
        if pulls and stuck and (timeouts or unended):
            yield _stuck_finding(case, state, pulls, timeouts)


def _stuck_finding(case: Case, state: Event, pulls: store.Pulls, timeouts: list[Event]) -> Finding:
    node = store.node_of(case, state)
    capacity = store.capacity_of(case, node)
    wanted, free = size_of(pulls.wanted), size_of(pulls.available)
    of = f" of {size_of(capacity)}" if capacity else ""
    return Finding(
        f"A task waits for {evidence.many(pulls.objects, 'object')} ({wanted}) that do not fit into the object store"
        f"{store.where(case, node)}: {free}{of} free, and no object in it can be spilled",
        (
            Link(state, f"the raylet's last state: {wanted} needed, {free} free, no object is being pulled or can be spilled"),
            *(Link(e, "the driver's ray.get timed out") for e in timeouts[:1]),
        ),
        explains=(Entity("store", node), Entity("waiting", "cluster")),
        subjects=(Subject("node", node, node=node),) if node else (),
        remedies=(_SMALLER, *store.larger((capacity + pulls.wanted - pulls.available) * _GROWTH if capacity else 0)),
    )  # fmt: skip


# ---------------------------------------------------------------- remedies

_SMALLER = Remedy(
    "Run fewer tasks with large arguments on a node at once, or pass smaller arguments",
    (
        "@ray.remote(num_cpus=2)          # half as many at a time",
        "# or pass the references in smaller batches, so that the arguments of all running tasks fit",
    ),
    doc=_ISSUE,
)
# ------------------------------------------------------------------ examples


def _raylet(second: int, level: str, text: str) -> str:
    return f"[2026-11-21 07:53:{second:02d},043 {level} 293 303] (raylet) file.cc:141: {text}\n"


_START = _raylet(6, "I", "Allowing the Plasma store to use up to 0.104858GB of memory.")
_OVERFLOW = (
    _START
    + _raylet(8, "I", store.SPILLING_OFF.sample)
    + _raylet(9, "I", store.FALLBACK.sample)
    + "".join(_raylet(10, "E", s.sample) for s in store.FALLBACK_FAILED)
    + _raylet(
        10, "I",
        f"Out-of-disk: Failed to create object {_O} of size 20MB\nPlasma store debug dump: \nCurrent usage: 0.272633 / 0.104858 GB\n"
        "1 pending objects of total size 20MB\n- bytes spillable: 251661288\n- objects in use: 13\n- bytes in use: 272633062\n"
        "- bytes received: 0",
    )
)  # fmt: skip
_STATE = (
    "NodeManager:\nLocalObjectManager:\n- num pinned objects: 0\n- pinned objects size: {pinned}\n- num bytes pending spill: 0\n"
    "- num bytes currently spilled: 0\n\nPullManager:\n- num bytes available for pulled objects: 18700000000\n"
    "- num bytes being pulled (all): 0\n- first task request bundle: 24 objects, 23100000000 bytes (inactive, waiting for "
    "capacity)\n- num objects queued: 24\n"
)
_TIMEOUT = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
_OUT_OF_DISK = (
    "ray.exceptions.OutOfDiskError: Local disk is full\nThe object cannot be created because the local object store is full and "
    "the local disk's utilization is over capacity (95% by default).\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "spilling is off and the disk of the fallback allocation is full",
        {"logs/raylet.out": _OVERFLOW, "logs/gcs_server.out": "", "driver.log": _OUT_OF_DISK},
        says=(
            "1 object of 20 MiB",
            "260 MiB",
            "100 MiB",
            "spilling is off",
            "object_store_memory=",
        ),
    ),
    console(
        "one object is larger than the store",
        f"ray.exceptions.ObjectStoreFullError: {_PUT}The local object store is full of objects that are still "
        "in scope and cannot be evicted. Tip: Use the `ray memory` command to list active objects in the cluster.\n",
        says=("204 GiB", "larger than the object store (73.1 GiB)"),
    ),
    console(
        "a worker's record in a console",
        "".join(f"(load pid=12) {line}\n" for line in ECHOED.sample.splitlines()),
        says=("204 GiB",),
    ),
    Example(
        "received copies that cannot be evicted or spilled",
        {
            "logs/raylet.out": _raylet(
                6, "I", "Allowing the Plasma store to use up to 72GB of memory."
            ),
            "logs/gcs_server.out": "",
            "logs/debug_state.txt": _STATE.format(pinned=0),
            "driver.log": _TIMEOUT,
        },
        consequences=("get-timeout",),
        says=("24 objects", "21.5 GiB", "17.4 GiB"),
    ),
    Example(
        "arguments wait until spilling has made room",
        {
            "logs/raylet.out": _START,
            "logs/gcs_server.out": "",
            "logs/debug_state.txt": _STATE.format(pinned=52200000000),
            "driver.log": _TIMEOUT,
        },
        roots=("get-timeout",),
    ),
    Example(
        "fallback allocation works, and a task prints the error: no failure",
        {
            "logs/raylet.out": _START + _raylet(9, "I", store.FALLBACK.sample),
            "logs/gcs_server.out": "",
            "driver.log": f"(check pid=12) {_PUT}(check pid=12) ray.exceptions.ObjectStoreFullError: as expected\n",
        },
    ),
    console(
        "plasma's own exception, up to Ray 0.7",
        f"{OLD.sample}\n(pid=7) 2019-05-27 17:58:37,324\tINFO worker.py:392 -- object exists\n",
        says=("The object store is full",),
    ),
)
