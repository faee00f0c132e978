"""Ray Data's records of failed blocks and stalled pipelines: signals for three rules.

Texts of `data/_internal/execution/` and `issue_detection/` of 2.9 to 2.60, in `logs/ray-data/ray-data*.log` and in the
driver's output, where the same logger prints.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from math import ceil
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.text import size
from raydoctor.model.values import Event, Link, Remedy
from raydoctor.rules.shared.task_error import Printed, parse_failure

_ROLES = ("data", *DRIVER)

BLOCK_FAILED = Signal(
    "data.block_failed",
    "An exception was raised from a task of operator ",
    r"^An exception was raised from a task of operator \"(?P<operator>[^\"\n]+)\"\.",
    _ROLES,
    'An exception was raised from a task of operator "ReadRange->Map(price)". Dataset execution will now abort.',
    extent="record",
    fold=("operator",),
)
USER_ERROR = Signal(
    "data.user_error",
    "Exception occurred in user code, with the abbreviated stack trace below",
    r"^Exception occurred in user code, with the abbreviated stack trace below",
    _ROLES,
    "Exception occurred in user code, with the abbreviated stack trace below. By default, the Ray Data internal stack trace is omitted",
)
STACK = Signal(
    "data.stack",
    "Full stack trace:",
    r"^Full stack trace:\n(?P<what>.*)",
    ("data",),
    "Full stack trace:\nTraceback (most recent call last):\nray.exceptions.RayTaskError(UserCodeException): ray::ReadRange->Map(price)() "
    "(pid=476, ip=10.0.0.2)\nZeroDivisionError: division by zero",
    extent="record",
)
"""The exception that ended the pipeline, whole."""
FAILED = (BLOCK_FAILED, USER_ERROR, STACK)

NO_PROGRESS = Signal(
    "data.no_progress",
    "Dataset execution made no progress for at least ",
    r"^(?:ray\.data\.exceptions\.ExecutionTimeoutError: )?Dataset execution made no progress for at least (?P<seconds>\d+)s of scheduling "
    r"time \(timeout: (?P<timeout>\d+)s\)(?P<what>.*)",
    _ROLES,
    "ray.data.exceptions.ExecutionTimeoutError: Dataset execution made no progress for at least 40s of scheduling time (timeout: 40s). No "
    "output was taken and no blocks moved through any operator's queues in that window.\nOperators still running:\n"
    "  - ReadRange->MapBatches(Embed): 0 active task(s), 0 finished, 0 outputs taken",
    extent="record",
    symptom=True,
)
"""2.58 and later, after half an hour: Ray Data aborts the pipeline."""
TIMED_OUT = Signal(
    "data.no_progress",
    "ExecutionTimeoutError: ",
    r"^(?:\w+\.){1,6}ExecutionTimeoutError: (?P<what>(?!Dataset execution made no progress)[^\n]{0,400}?progress for (?:at least )?"
    r"(?P<seconds>\d+) ?s\b.*)",
    DRIVER,
    "ray.data.exceptions.ExecutionTimeoutError: No operator made progress for 1800s. Operators still running: ReadParquet->MapBatches(f)",
    extent="record",
    symptom=True,
)
"""The same exception in other words than those of 2.58 to 2.60."""
NO_ACTORS = Signal(
    "data.no_actors",
    "Timed out while starting actors. ",
    r"^ray\.exceptions\.GetTimeoutError: Timed out while starting actors\. This may mean that the cluster does not have enough resources",
    DRIVER,
    "ray.exceptions.GetTimeoutError: Timed out while starting actors. This may mean that the cluster does not have enough resources for "
    "the requested actor pool.",
)
"""2.9 and later, after `wait_for_min_actors_s`: Ray Data aborts the pipeline."""
NOT_ENOUGH = Signal(
    "data.not_enough",
    "The job may hang forever unless the cluster scales up.",
    r"^Cluster resources? are not eng?ough to run any task from (?P<operator>.+?)\. The job may hang forever unless the cluster scales up\.",
    _ROLES,
    "Cluster resources are not enough to run any task from TaskPoolMapOperator[ReadRange->Map(f)]. The job may hang forever unless the "
    "cluster scales up.",
    fold=("operator",),
)
"""2.46 and later, misspelt up to 2.49, once after a minute."""
IDLE = Signal(
    "data.idle",
    " is running but has no outputs for ",
    r"^Operator (?P<operator>.+?) is running but has no outputs for (?P<seconds>\d{1,20}(?:\.\d{1,20})?) seconds\. Execution may be slower than expected\.",
    _ROLES,
    "Operator TaskPoolMapOperator[ReadRange->Map(f)] is running but has no outputs for 60.4 seconds. Execution may be slower than expected.",
    fold=("operator",),
)
"""2.9 and later, once."""
SLOW_TASK = Signal(
    "data.slow_task",
    "s, which is longer than the average task duration",
    r"^A task (?:\(task_id=(?P<slow_task>[0-9a-f]+)\) )?of operator (?P<operator>.+?) (?:\(pid=(?P<slow_pid>\w+), [^)]*\) |with task index \d+ )?"
    r"has been running (?:or stuck in scheduling )?for (?P<seconds>\d{1,20}(?:\.\d{1,20})?)s, which is longer than the average task duration[^(]*\((?P<average>\d{1,20}(?:\.\d{1,20})?)",
    _ROLES,
    "A task of operator ReadRange->Map(f) with task index 3 has been running for 128.41s, which is longer than the average task duration of "
    "this operator (0.12s).",
    fold=("operator",),
)
"""2.49 and later; ids since 2.54."""
SHUFFLE = Signal(
    "data.shuffle_needs",
    " resources in cluster for hash shuffle operation. Required: ",
    r"^Insufficient (?P<resource>CPU|memory) resources in cluster for hash shuffle operation\. Required: (?P<required>\d{1,20}(?:\.\d{1,20})?) (?P<unit>CPUs|GiB) "
    r"for (?P<aggregators>\d+) aggregators, but cluster only has (?P<total>\d{1,20}(?:\.\d{1,20})?) ",
    _ROLES,
    "Insufficient CPU resources in cluster for hash shuffle operation. Required: 8.0 CPUs for 8 aggregators, but cluster only has 4.0 total "
    "CPUs.",
)
AGGREGATORS = Signal(
    "data.aggregators",
    " hash-shuffle aggregators are ready after ",
    r"^Only (?P<ready>\d+) out of (?P<aggregators>\d+) hash-shuffle aggregators are ready after (?P<seconds>\d{1,20}(?:\.\d{1,20})?) secs\."
    r"(?:.{0,200}?\(available CPUs: (?P<free>\d{1,20}(?:\.\d{1,20})?), required CPUs: (?P<required>\d{1,20}(?:\.\d{1,20})?)\))?",
    _ROLES,
    "Only 3 out of 8 hash-shuffle aggregators are ready after 300.0 secs. This might indicate resource contention for cluster resources "
    "(available CPUs: 0.0, required CPUs: 8.0). Cluster only has 1.20 GiB available memory, required memory: 8.00 GiB.",
)
"""2.48 and later, after five minutes."""
_CALLED = ("worker-echo", "worker-err", "core-worker")
STALE = (
    Signal(
        "data.stale_calls",
        "Cancelling stale RPC with seqno ",
        r"^Cancelling stale RPC with seqno (?P<seqno>\d+) < (?P<expected>\d+)",
        _CALLED,
        "Cancelling stale RPC with seqno 41 < 43",
    ),
    Signal(
        "data.stale_calls",
        "ancelling all queued tasks",
        r"^[tT]imed out waiting for (?:seq_no )?(?P<expected>\d+)(?: in concurrency group [^,\n]{0,200}, after waiting for "
        r"(?P<seconds>\d+) seconds)?[.,] [cC]ancelling all queued tasks",
        _CALLED,
        "timed out waiting for 43, cancelling all queued tasks",
    ),
)
"""Written by the actor that is called, in all versions: a call came again that the actor counts as done, or one never came."""
_MAP_WORKER = pattern(r"^MapWorker\((?P<operator>.+)\)$")
SPLIT = Signal(
    "data.split_waits",
    " blocked waiting on other clients for more than ",
    r"^StreamSplitDataIterator\(epoch=(?P<epoch>-?\d{1,9}), split=(?P<split>\d{1,9})\) blocked waiting on other clients for more than (?P<seconds>\d{1,9})s",
    (*_ROLES, "worker-echo", "worker-err"),
    "StreamSplitDataIterator(epoch=0, split=1) blocked waiting on other clients for more than 30s. All clients must read from the "
    "DataIterator splits at the same time.",
    fold=("epoch", "split"),
)
"""Once for each split and epoch (`data/_internal/iterator/stream_split_iterator.py`, 2.9 to 2.60)."""
STALLS = (NO_PROGRESS, TIMED_OUT, NO_ACTORS, NOT_ENOUGH, AGGREGATORS, IDLE, SLOW_TASK, SHUFFLE)

FINISHED = Signal(
    "data.finished",
    " execution finished in ",
    r"Dataset (?:\S+ )?execution finished in \d{1,20}(?:\.\d{1,20})? seconds",
    _ROLES,
    "✔️  Dataset train_7_0 execution finished in 12.30 seconds",
)
"""2.32 and later."""
RUN_FAILED = Signal(
    "data.run_failed",
    " execution failed",
    r"^\W{0,4}Dataset (?:\S+ )?execution failed",
    _ROLES,
    "⚠️  Dataset train_7_0 execution failed",
)

HIGH_MEMORY = Signal(
    "data.high_memory",
    "Operator ",
    r"^Operator '(?P<operator>[^'\n]{1,500})'\s+uses\s+(?P<average>\d{1,20}(?:\.\d{1,20})?[KMGTP]?i?B)\s+of\s+memory\s+per\s+(?:task|worker)\s+on\s+average"
    r"(?:\s+\(up\s+to\s+(?P<largest>\d{1,20}(?:\.\d{1,20})?[KMGTP]?i?B)\))?,\s+but\s+Ray\s+only\s+requests\s+(?P<requested>\d{1,20}(?:\.\d{1,20})?[KMGTP]?i?B)(?P<what>.*)",
    (*_ROLES, "worker-echo"),
    "Operator 'ReadRange->MapBatches(embed)' uses 4.1GiB of memory per task\non average, but Ray only requests 0.0B per task at the start "
    "of the\npipeline.\n\nTo avoid out-of-memory errors, consider setting `memory=4.1GiB` in the\nappropriate function or method call.",
    extent="record",
    fold=("operator",),
)
"""2.49 and later, wrapped at 70 columns; 2.60 adds the largest use, and recommends 1.25 times of it in bytes."""

_TASK = pattern(r"^ray(?:\.exceptions\.RayTaskError|::)", re.MULTILINE)
_IN_BRACKETS = pattern(r"^\w+\[(?P<name>.+)\]$")


_OWN = ("ray.data.", "ray.exceptions.")


def operator(name: str) -> str:
    """`Read->Map(f)` of `TaskPoolMapOperator[Read->Map(f)]`: records use either form."""
    found = _IN_BRACKETS.match(name)
    return found["name"] if found else name


def records(case: Case, *kinds: str) -> Iterator[Event]:
    """Records of Ray Data's logger and its own exceptions: other output may be the program's."""
    for event in case.of(*kinds):
        own = event.source.role == "data" or event.level or event.message.startswith(_OWN)
        if own and not case.torn_down(event):
            yield event


def stale_calls(case: Case) -> dict[str, list[Event]]:
    """Calls that actors of a pipeline refuse as out of order, by operator.

    A single one heals: its caller sends the call again. Without an actor's name a record may be of any program.
    """
    found: dict[str, list[Event]] = {}
    for event in case.of(STALE[0].kind):
        names = [event["who"], *case.names.get(evidence.worker_of(event), ())]
        called = next((m["operator"] for name in names if (m := _MAP_WORKER.match(name))), "")
        if called and not case.torn_down(event):
            found.setdefault(called, []).append(event)
    ends = case.of(FINISHED.kind)
    return {
        name: events
        for name, events in found.items()
        if (evidence.total(events) > 1 or not events[0]["seqno"])
        and not any(evidence.is_before(events[-1], end) for end in ends)
    }


class MemoryUse(NamedTuple):
    """What tasks of one operator use, as Ray Data measured it."""

    event: Event
    operator: str
    used: str
    """`4.1GiB`: the largest use of a task, or the average where only that is known."""
    requested: str
    request: int
    """Bytes: 1.25 times what a task uses, as Ray itself recommends since 2.60."""


_HEADROOM = 1.25
_REQUEST = pattern(r"`memory=(\d{1,20})`")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


_MAP_TASKS = ("_map_task", "MapWorker")
"""The functions and actors that run operators, in Ray's reports of killed workers."""


def memory_use(case: Case, killed: Collection[str]) -> list[MemoryUse]:
    """Operators whose tasks use more memory than Ray reserves for them, each with its last report.

    `killed`: names of the workers that were OOM-killed. If they are known, one must be the operator's.
    """
    found = {}
    for event in case.of(HIGH_MEMORY.kind):
        if killed and not any(event["operator"] in n or n.startswith(_MAP_TASKS) for n in killed):
            continue
        used = event["largest"] or event["average"]
        recommended = _REQUEST.search(event["what"])
        request = int(recommended[1]) if recommended else ceil(_HEADROOM * _bytes(used))
        found[event["operator"]] = MemoryUse(
            event, event["operator"], used, event["requested"], request
        )
    return list(found.values())


def _bytes(text: str) -> float:
    number = text.rstrip("BKMGTPi")
    unit = text.removeprefix(number)
    return float(number) * float(1024 ** (_UNITS.index(unit) if unit in _UNITS else 0))


def memory_link(use: MemoryUse) -> Link:
    """The report as evidence."""
    return Link(
        use.event,
        f"a task of {use.operator} uses {size(_bytes(use.used))} of memory, and Ray reserves {size(_bytes(use.requested))} for it",
    )


def memory_remedy(use: MemoryUse) -> Remedy:
    """Reserve what a task uses, so that Ray starts fewer of them at once."""
    return Remedy(
        f"Request {size(use.request)} of memory for each task of {use.operator}: 1.25 × the {size(_bytes(use.used))} that one uses",
        (
            paste.python("ds.map_batches(…, memory={bytes})", bytes=use.request),
            paste.python(
                'ray.data.read_parquet(…, ray_remote_args={{"memory": {bytes}}})   # if the operator reads',
                bytes=use.request,
            ),
        ),
        doc="https://docs.ray.io/en/latest/data/performance-tips.html",
    )


def errors(case: Case) -> Iterator[Printed]:
    """Exceptions of users' functions in a pipeline, if the driver's output is not in the capture."""
    if case.roles & set(DRIVER):
        return
    seen: set[str] = set()
    for event in case.of("data.stack"):
        begin = _TASK.search(event["what"])
        text = event["what"][begin.start() :] if begin else ""
        # Each data set's own log repeats the common one.
        if text and text not in seen and (failure := parse_failure(text)):
            seen.add(text)
            yield Printed(event, failure)
