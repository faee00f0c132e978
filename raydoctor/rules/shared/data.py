"""Ray Data's records of failed blocks and stalled pipelines: signals for two rules.

Texts of `data/_internal/execution/` and `issue_detection/` of 2.9 to 2.60, in `logs/ray-data/ray-data*.log` and in the
driver's output, where the same logger prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from raydoctor.case import Case
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event
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
    r"^Operator (?P<operator>.+?) is running but has no outputs for (?P<seconds>[\d.]+) seconds\. Execution may be slower than expected\.",
    _ROLES,
    "Operator TaskPoolMapOperator[ReadRange->Map(f)] is running but has no outputs for 60.4 seconds. Execution may be slower than expected.",
    fold=("operator",),
)
"""2.9 and later, once."""
SLOW_TASK = Signal(
    "data.slow_task",
    "s, which is longer than the average task duration",
    r"^A task (?:\(task_id=(?P<slow_task>[0-9a-f]+)\) )?of operator (?P<operator>.+?) (?:\(pid=(?P<slow_pid>\w+), [^)]*\) |with task index \d+ )?"
    r"has been running (?:or stuck in scheduling )?for (?P<seconds>[\d.]+)s, which is longer than the average task duration[^(]*\((?P<average>[\d.]+)",
    _ROLES,
    "A task of operator ReadRange->Map(f) with task index 3 has been running for 128.41s, which is longer than the average task duration of "
    "this operator (0.12s).",
    fold=("operator",),
)
"""2.49 and later; ids since 2.54."""
SHUFFLE = Signal(
    "data.shuffle_needs",
    " resources in cluster for hash shuffle operation. Required: ",
    r"^Insufficient (?P<resource>CPU|memory) resources in cluster for hash shuffle operation\. Required: (?P<required>[\d.]+) (?P<unit>CPUs|GiB) "
    r"for (?P<aggregators>\d+) aggregators, but cluster only has (?P<total>[\d.]+) ",
    _ROLES,
    "Insufficient CPU resources in cluster for hash shuffle operation. Required: 8.0 CPUs for 8 aggregators, but cluster only has 4.0 total "
    "CPUs.",
)
STALLS = (NO_PROGRESS, NOT_ENOUGH, IDLE, SLOW_TASK, SHUFFLE)

_TASK = pattern(r"^ray(?:\.exceptions\.RayTaskError|::)", re.MULTILINE)
_IN_BRACKETS = pattern(r"^\w+\[(?P<name>.+)\]$")


def operator(name: str) -> str:
    """`Read->Map(f)` of `TaskPoolMapOperator[Read->Map(f)]`: records use either form."""
    found = _IN_BRACKETS.match(name)
    return found["name"] if found else name


def records(case: Case, *kinds: str) -> Iterator[Event]:
    """Records of Ray Data's logger and its own exceptions: other output may be the program's."""
    for event in case.of(*kinds):
        own = event.source.role == "data" or event.level or event.message.startswith("ray.data.")
        if own and not case.torn_down(event):
            yield event


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
