"""A large argument is passed by value to many tasks, so every call stores another copy of it.

## What you see
`OutOfDiskError` or `ObjectStoreFullError`, raised by a `.remote(…)` call of your program, with `prepare_args_internal`
in the traceback. With Ray Client: `UserWarning: More than 10MB of messages have been created to schedule tasks on the
server`. If nothing fails, Ray prints no message, because it does not add up the arguments of several calls (Ray 2.9 to
2.60): the program is slow, and the store spills.

## Why
At each call of `f.remote(table)` with a value of more than 100 KiB, Ray does `ray.put(table)`, then `f.remote(ref)`. A
loop of 100 calls with one table of 100 MB serializes it 100 times and holds 10 GB of copies until the tasks have run.
Ray Client also sends each copy over the network.

## Confirm
- At the line of the traceback in your program, every iteration of a loop passes the same variable.
- Without a traceback, `ray memory` lists many rows with one size and `USED_BY_PENDING_TASK` while the program runs.
- Run `RAY_record_ref_creation_sites=1 python your_script.py` (on a running cluster, set it for `ray start` as well),
  and `ray memory --group-by STACK_TRACE` while the program runs. Copies of arguments are listed as `(task call)`, under
  `Used by task`, with the line of the call. A `ray.put` of your own is listed as `(put object)` (seen with Ray 2.60).

## Fix
Call `ref = ray.put(table)` once before the loop, then pass `ref`: the function still receives the value. If every call
has its own value, keep fewer calls in flight (`ray.wait`), or let each task load its own part of the data.

## Not this when
- the function *captures* the value from its surroundings (`large-closure`).
- a `ray.put` of your own, or a task's result, did not fit (`object-store-full`, `disk-full`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION, TRACEBACK
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import size
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import store
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live.objects import Held, waiting_arguments

_DOC = "https://docs.ray.io/en/latest/ray-core/patterns/pass-large-arg-by-value.html"
_ALIKE = 0.1
"""Relative difference allowed between the average object in the store and the refused one."""
_MANY = 3
_MB = 1024**2
_REFUSED = pattern(
    r"^Traceback \(most recent call last\):\n(?P<frames>(?:(?!Traceback ).)*?) in ray\._raylet\.prepare_args_internal\n"
    r"  File [^\n]* in ray\._raylet\.CoreWorker\.put_serialized_object_and_increment_local_ref", re.DOTALL,
)  # fmt: skip
"""`_raylet.pyx`: this function puts arguments above `max_direct_call_object_size`; it has that name from 2.9.3 to 2.60."""
CLIENT = Signal(
    "client.large_messages", "MB of messages have been created to schedule tasks on the server",
    r"\bMore than (?P<mb>\d+)MB of messages have been created to schedule tasks on the server\.", DRIVER,
    "/home/user/venv/lib/python3.11/site-packages/ray/util/client/worker.py:696: UserWarning: More than 10MB of messages have been "
    "created to schedule tasks on the server. This can be slow on Ray Client due to communication overhead over the network.",
)  # fmt: skip
"""Once per connection (`ray/util/client/worker.py`, 2.9.3 to 2.60)."""


@rule(
    tier="root",
    severity="error",
    rank=64,
    explains=("arguments",),
    caused_by=("disk", "spilling", "store"),
    looks_for=(
        TRACEBACK, CLIENT, store.OUT_OF_DISK, *store.DISK_OVER, *store.FALLBACK_FAILED, store.SPILLED, store.STORE_SIZE, RAY_EXCEPTION,
    ),
)  # fmt: skip
def large_argument(case: Case) -> Iterator[Finding]:
    """One finding per refused call, Ray Client's warning, and copies in the live object table."""
    calls: dict[str, list[tuple[Event, Event]]] = {}
    for event in case.of(TRACEBACK.kind):
        found = _REFUSED.search(event.message) if event.source.role in DRIVER else None
        if found and (error := _error_of(case, event)):
            calls.setdefault(_call(found["frames"]), []).append((event, error))
    for call, refused in calls.items():
        yield _refused(case, call, refused)
    if warned := case.of("client.large_messages"):
        yield _client(warned)
    for held in waiting_arguments(case):
        yield _held(held)


_CALL = pattern(
    r"(?P<call>(?P<name>[\w.]{1,300})(?:\.options\([^()]*\))?\.remote\((?P<args>[^()]*)\)?)"
)


def _call(frames: str) -> str:
    """The innermost `….remote(…)` call in the program's own frames."""
    own = frames.partition("/ray/remote_function.py")[0].partition("/ray/actor.py")[0]
    found = [m["call"] for m in _CALL.finditer(own)]
    return found[-1] if found else ""


# ---------------------------------------------------------------- refused


_ERRORS = ("OutOfDiskError", "ObjectStoreFullError")
_FAR = 60
"""Most lines between the frame and the exception: other processes may print in between."""


def _error_of(case: Case, refused: Event) -> Event | None:
    """The exception at the end of the traceback."""
    after = [
        e
        for e in case.of("driver.exception")
        if e["type"] in _ERRORS
        and e.source == refused.source
        and 0 < e.line - refused.line <= refused.text.count("\n") + _FAR
    ]
    return min(after, key=lambda e: e.line, default=None)


@dataclass(frozen=True, slots=True)
class _Copies:
    """Objects of the refused one's size, in the store and spilled."""

    event: Event
    count: int
    bytes: float

    @property
    def summary(self) -> str:
        """`13 objects of about 20.0 MiB`."""
        return f"{evidence.many(self.count, 'object')} of about {size(self.bytes / self.count)}"


def _copies(case: Case) -> _Copies | None:
    """Copies that fill the store, and its disk if that was full; None if other objects do, or no log has sizes."""
    refused = store.own_log_first(case.of("object.out_of_disk"))[-1:]
    spilled = store.own_log_first(case.of("store.spilled"))[-1:]
    in_store = _created(refused[0].text) if refused else None
    # An attempt that found nothing to spill is recorded, too.
    many = int(spilled[0]["objects"]) if spilled else 0
    on_disk = (many, int(spilled[0]["mib"]) * _MB) if many else None
    size = int(refused[0]["mb"]) * _MB if refused else 0
    groups = [g for g in (in_store, on_disk) if g and _alike(g, size)]
    count, total = sum(g[0] for g in groups), sum(g[1] for g in groups)
    used = _used_of_disk(case)
    if count < _MANY or (not used and in_store not in groups) or total < used / 2:
        return None
    return _Copies((refused or spilled)[0], count, total)


def _alike(group: tuple[int, int], size: int) -> bool:
    """Whether these objects are on average as large as the refused one (Ray prints whole megabytes)."""
    return abs(group[1] / group[0] - size) <= max(_MB, _ALIKE * size) if size else False


_CREATED = pattern(
    r"^- objects created by worker: (\d{1,20})\n- bytes created by worker: (\d{1,20})", re.M
)


def _created(text: str) -> tuple[int, int] | None:
    found = _CREATED.search(text)
    return (int(found[1]), int(found[2])) if found and int(found[1]) else None


def _used_of_disk(case: Case) -> float:
    """Bytes used on the disk that is over Ray's threshold, from its last report; 0 if no disk is."""
    over = case.of("disk.over_threshold")[-1:]
    return max(
        (
            (float(e["capacity"] or 0) - float(e["free"] or 0)) * (evidence.GB if e["gb"] else 1)
            for e in over
        ),
        default=0.0,
    )


def _refused(case: Case, call: str, refused: list[tuple[Event, Event]]) -> Finding:
    copies = _copies(case)
    what = f"Every call to {call}" if call else "Every call to a task or actor"
    full = f": {copies.summary} filled the store and the disk behind it" if copies else ""
    event, error = refused[0]
    nodes = ("", *case.ledger.node_ips)
    return Finding(
        f"{what} stores a copy of its large argument, and the object store had no room for another{full}",
        (
            *(Link(c.event, f"{c.summary}, {size(c.bytes)} in all, and no room for another") for c in (copies,) if c),
            Link(event, f"{call or 'this call'} raised this while storing an argument passed by value"),
            Link(error, f"the driver got {store.raised(error)}"),
        ),
        explains=(Entity("arguments", "large" if copies else call),),
        caused_by=() if copies else tuple(Entity(k, n) for k in ("store", "spilling", "disk") for n in nodes),
        subjects=(Subject("function", None, call.partition(".remote(")[0]),) if call else (),
        count=len(refused),
        remedies=(_put_once(call), _IN_FLIGHT),
        covers=tuple(e for pair in refused for e in pair),
        gaps=() if copies else (_WHAT_FILLS,),
    )  # fmt: skip


_WHAT_FILLS = Gap(
    "what fills the object store",
    "no log in this capture lists the sizes of its objects, or they differ from the argument's size",
    "Run RAY_record_ref_creation_sites=1 python your_script.py, and while it runs ray memory --group-by STACK_TRACE, which lists arguments as (task call).",
)


# ---------------------------------------------------------------- Ray Client


def _client(warned: list[Event]) -> Finding:
    size = f"{warned[0]['mb']} MiB"
    return Finding(
        f"Ray Client sent more than {size} over the network with task calls: they pass large arguments by value, or there "
        "are very many of them",
        (Link(warned[0], f"Ray Client counts more than {size} of messages that schedule tasks"),),
        explains=(Entity("arguments", "client"),),
        severity="warning",
        remedies=(
            _put_once(""),
            Remedy(
                "Run the driver on the cluster, as a job, instead of through Ray Client",
                (
                    "ray job submit --address http://HEAD:8265 --working-dir . -- python your_script.py",
                ),
                doc="https://docs.ray.io/en/latest/cluster/running-applications/job-submission/index.html",
            ),
        ),
        covers=tuple(warned),
    )


# ---------------------------------------------------------------- in the object table, now


def _held(held: Held) -> Finding:
    """Arguments that wait for their tasks: equal in size to the byte, one object per call."""
    to = f" to {held.function}" if held.function else ""
    by_value = ", passed by value" if held.by_value else ""
    at = f" at {held.line}" if held.line else ""
    gap = Gap(
        "whether these arguments are one value",
        "the object table lists only their sizes; by default, Ray does not record where an object was created",
        "Run `RAY_record_ref_creation_sites=1 python your_script.py`, and diagnose again while it runs. Ray then lists arguments passed by value as (task call).",
        optional=True,
    )
    return Finding(
        f"{held.copies} pending calls{to}{at} each hold an argument of the same size, {size(held.bytes)} "
        f"({size(held.copies * held.bytes)} in all){by_value}: they may be copies of one value",
        tuple(Link(e, f"one of {held.copies} objects: {size(held.bytes)}, used only by a pending task") for e in held.rows[:2])
        + tuple(Link(e, f"the function that reads the argument: {held.function}") for e in held.readers[:1]),
        explains=(Entity("arguments", f"held by {held.function or held.owner}"),),
        severity="warning",
        count=held.copies,
        subjects=(Subject("function", None, held.function),) if held.function else (),
        remedies=(_put_once(f"{held.function}.remote(value)" if held.function else ""), _IN_FLIGHT),
        gaps=() if held.by_value else (gap,),
    )  # fmt: skip


# ---------------------------------------------------------------- remedies


def _put_once(call: str) -> Remedy:
    """The call with a reference in place of its first argument that is a plain name."""
    found = _CALL.search(call)
    names = [a.strip() for a in found["args"].split(",")] if found else []
    large = next((n for n in names if re.fullmatch(r"[A-Za-z_]\w*", n)), "") if found else ""
    if not found or not large:
        steps: tuple[str, ...] = (
            "ref = ray.put(value)              # once, before the loop",
            "f.remote(ref)                     # f gets the value",
        )
    else:
        # An argument is code of the program's author: only names are repeated.
        arguments = [
            paste.python(
                "{large:name}_ref" if n == large else "{large:name}" if n.isidentifier() else "...",
                large=n,
            )
            for n in names
        ]
        steps = (
            paste.python(
                "{large:name}_ref = ray.put({large:name})    # once, before the loop, for each large argument",
                large=large,
            ),
            paste.python(
                "{function:name}.remote({arguments})   # {function} gets the value",
                function=found["name"],
                arguments=arguments,
            ),
        )
    return Remedy("Call ray.put once for a value that several calls share", steps, doc=_DOC)


_IN_FLIGHT = Remedy(
    "Keep few calls in flight, if each has its own large value",
    (
        "ready, pending = ray.wait(pending, num_returns=1)   # before each further .remote()",
        "# or pass a path or an index, and let the task load its own part",
    ),
    doc="https://docs.ray.io/en/latest/ray-core/patterns/limit-pending-tasks.html",
)


# ------------------------------------------------------------------ examples


_FRAMES = (
    "Traceback (most recent call last):\n"
    '  File "/home/user/project/score.py", line 44, in main\n'
    "    scores.append(score.remote(table, row))\n"
    "                  ^^^^^^^^^^^^^^^^^^^^^^^^\n"
    '  File "/home/user/venv/lib/python3.11/site-packages/ray/remote_function.py", line 176, in _remote_proxy\n'
    "    return self._remote(\n"
    '  File "python/ray/_raylet.pyx", line 729, in ray._raylet.prepare_args_and_increment_put_refs\n'
    '  File "python/ray/_raylet.pyx", line 844, in ray._raylet.prepare_args_internal\n'
    '  File "python/ray/_raylet.pyx", line 3699, in ray._raylet.CoreWorker.put_serialized_object_and_increment_local_ref\n'
    '  File "python/ray/includes/common.pxi", line 101, in ray._raylet.check_status\n'
    "ray.exceptions.OutOfDiskError: Local disk is full\n"
    "The object cannot be created because the local object store is full and the local disk's utilization is over capacity "
    "(95% by default).Tip: Use `df` on this node to check disk usage and `ray memory` to check object store memory usage.\n"
)


def _raylet(second: int, level: str, text: str) -> str:
    return f"[2026-11-21 10:57:{second:02d},494 {level} 290 300] (raylet) file.cc:116: {text}\n"


def _full(objects: int, size: int) -> str:
    """The record of a refused object, in a store with this many objects of this size."""
    return _raylet(
        40, "I",
        f"Out-of-disk: Failed to create object 00ffffffffffffffffffffffffffffffffffffff010000000ee1f505 of size 20MB\nPlasma store "
        f"debug dump: \nCurrent usage: 0.272633 / 0.104858 GB\n1 pending objects of total size 20MB\n- bytes spillable: 0\n"
        f"- objects in use: {objects}\n- bytes in use: {objects * size}\n- objects created by worker: {objects}\n"
        f"- bytes created by worker: {objects * size}\n- bytes received: 0",
    )  # fmt: skip


_STORE = _raylet(6, "I", "Allowing the Plasma store to use up to 0.104858GB of memory.")
_NO_ROOM = "".join(_raylet(40, "E", s.sample) for s in store.FALLBACK_FAILED)
_HEADS = {"logs/gcs_server.out": ""}
_OWN_PUT = _FRAMES.replace("prepare_args_internal", "CoreWorker.put_object").replace(
    "score.remote(table, row)", "ray.put(block)"
)


def _objects(
    count: int,
    *,
    use: str = "USED_BY_PENDING_TASK",
    site: str = "disabled",
    reader: str = "__main__.score",
    step: int = 0,
) -> dict[str, str]:
    """The object table: `count` objects put by a driver, the first of them read by a task."""
    put = "00ffffffffffffffffffffffffffffffffffffff01000000"
    rows: list[sample.Row] = [
        {
            "object_id": f"{put}{(100_000_001 + n).to_bytes(4, 'little').hex()}", "object_size": 4_000_251 + n * step,
            "task_status": "FINISHED", "reference_type": use, "call_site": site, "type": "DRIVER", "pid": 812,
        }
        for n in range(count)
    ]  # fmt: skip
    if reader:
        rows.append(
            {
                "object_id": f"{put}01e1f505", "object_size": 4000245, "task_status": "NIL", "reference_type": "PINNED_IN_MEMORY",
                "call_site": f"(deserialize task arg) {reader}", "type": "WORKER", "pid": 840,
            }
        )  # fmt: skip
    return sample.tables(1795258700.0, objects=rows)


def _tasks(count: int, function: str = "score") -> dict[str, str]:
    """`count` calls of one function that wait for a CPU."""
    rows = [
        {
            "task_id": sample.task_id(n), "job_id": "01000000", "name": function, "func_or_class_name": function,
            "state": "PENDING_NODE_ASSIGNMENT",
        }
        for n in range(count)
    ]  # fmt: skip
    return sample.tables(1795258700.0, tasks=rows)


EXAMPLES: tuple[Example, ...] = (
    Example(
        "thirteen copies of one table fill the store",
        {
            **_HEADS,
            "logs/raylet.out": _STORE + _NO_ROOM + _full(13, 20_971_774),
            "driver.log": _FRAMES,
        },
        consequences=("object-store-full",),
        says=(
            "score.remote(table, row)",
            "13 objects",
            "20.0 MiB",
            "ray.put(table)",
            "score.remote(table_ref, row)",
        ),
    ),
    Example(
        "the raylet records that it spilled nothing",
        {
            **_HEADS,
            "logs/raylet.out": _STORE
            + _raylet(39, "I", ":info_message:Spilled 0 MiB, 0 objects, write throughput 0 MiB/s.")
            + _NO_ROOM
            + _full(13, 20_971_774),
            "driver.log": _FRAMES,
        },
        consequences=("object-store-full",),
        says=("13 objects",),
    ),
    Example(
        "the store was full of other objects, and the argument did not fit",
        {
            **_HEADS,
            "logs/raylet.out": _STORE + _NO_ROOM + _full(4, 65_000_000),
            "driver.log": _FRAMES,
        },
        roots=("object-store-full",),
        consequences=("large-argument",),
    ),
    console(
        "Ray Client warns about it",
        f"{CLIENT.sample} If you're running many fine-grained tasks, consider running them inside a single remote "
        "function.\n",
        says=("10 MiB", "Ray Client", "ray.put"),
        severity="warning",
    ),
    Example(
        "live: twenty objects of exactly one size wait for their tasks",
        {**_HEADS, "logs/raylet.out": _STORE, **_objects(20)},
        says=(
            "20 pending calls to score",
            "of the same size, 3.8 MiB",
            "76.3 MiB",
            "ray.put(value)",
        ),
        severity="warning",
    ),
    Example(
        "live: no task has started, and the queued tasks name the function",
        {
            **_HEADS,
            "logs/raylet.out": _STORE,
            **_objects(20, reader=""),
            **_tasks(20),
        },
        says=("20 pending calls to score", "of the same size"),
        severity="warning",
    ),
    Example(
        "live: creation sites show that the call itself stored them",
        {
            **_HEADS,
            "logs/raylet.out": _STORE,
            **_objects(20, site="(task call)  | train.py:main:14"),
        },
        says=("at train.py:main:14", "passed by value: they may be copies of one value"),
        severity="warning",
    ),
    Example(
        "a value that was put once for twenty tasks",
        {**_HEADS, "logs/raylet.out": _STORE, **_objects(1)},
    ),
    Example(
        "blocks of one size that the program itself holds",
        {
            **_HEADS,
            "logs/raylet.out": _STORE,
            **_objects(20, use="LOCAL_REFERENCE"),
        },
    ),
    Example(
        "blocks of a dataset",
        {
            **_HEADS,
            "logs/raylet.out": _STORE,
            **_objects(20, reader="ray.data._internal.execution.operators.map_operator._map_task"),
        },
    ),
    Example(
        "blocks of a dataset, before the first task has started",
        {
            **_HEADS,
            "logs/raylet.out": _STORE,
            **_objects(20, reader=""),
            **_tasks(20, "_map_task"),
        },
    ),
    Example(
        "arguments of many sizes",
        {**_HEADS, "logs/raylet.out": _STORE, **_objects(20, step=8)},
    ),
    Example(
        "the program's own ray.put did not fit; a task prints the warning",
        {
            **_HEADS,
            "logs/raylet.out": _STORE + _NO_ROOM + _full(13, 20_971_774),
            "driver.log": f"(check pid=12) {CLIENT.sample}\n{_OWN_PUT}",
        },
        roots=("object-store-full",),
    ),
)
