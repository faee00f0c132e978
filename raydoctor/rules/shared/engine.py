"""Shared by the rules about processes that wait for GPU workers: vLLM's engine, compiled graphs, and peers in NCCL."""

from __future__ import annotations

from raydoctor.case import Case
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Signal
from raydoctor.case.signals import OUTPUT
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event
from raydoctor.rules.shared.task_error import Printed

_EARLIER = 600.0
"""Seconds before a timeout in which a worker's end may have caused it: longer than the usual timeouts."""
TIMED_OUT = Entity("collective", "nccl")
WATCHDOG = Signal(
    "nccl.timeout",
    "Watchdog caught collective oper",
    r"\[Rank (?P<rank>\d+)\] Watchdog caught collective oper(?:[a-z ]{0,13}:?$|ation timeout: Work(?P<library>[A-Z]CCL)\(SeqNum=(?:\d*$|(?P<seq>\d+)(?=,)"
    r"(?:, OpType=(?P<op>\w+)(?:, [^()]*)?, Timeout\(ms\)=(?P<limit>\d+)\)(?: ran for (?P<ms>\d+) milliseconds|[a-z\d ]{0,30}$)"
    r"|(?:, [A-Za-z]{1,12}(?:=\w{0,30})?){0,3},? ?$)))",
    OUTPUT,
    "[rank1]:[E1121 07:34:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum=158046, OpType=ALLREDUCE, NumelIn=2867200, NumelOut=2867200, Timeout(ms)=600000) ran for 600027 milliseconds before timing out.",
    fold=("rank",),
)
"""torch's record (`ProcessGroupNCCL.cpp`, 2.0 to 2.9), which torch_npu copies for HCCL; a paste may cut it off or break
it anywhere."""
_ABORTS = 60.0
"""Seconds before the first report within which its own ranks abort: their watchdogs do not report at the same time."""


def earlier_exits(case: Case, event: Event, actors: list[str]) -> list[WorkerExit]:
    """Unexpected exits of these actors, or of workers with an unknown actor shortly before the event."""
    found = []
    for exit_ in case.exits:
        before = event.at is None or exit_.at is None or 0 <= event.at - exit_.at <= _EARLIER
        if not exit_.expected and (exit_.actor in actors if actors and exit_.actor else before):
            found.append(exit_)
    return found


def died(seen: Printed) -> bool:
    """Whether a task failed because vLLM's engine had exited: its error contains no reason."""
    return seen.failure.raised is not None and seen.failure.raised.name == "EngineDeadError"


def ended_after_wait(case: Case, exit_: WorkerExit) -> bool:
    """Whether a worker ended because of a collective operation that had timed out, not the other way round.

    Without times: Ray reports an end at once, and a driver that waits for that worker raises then. If it
    printed no exception before the first report, the worker did not end when the wait began.
    """
    reports = case.of(WATCHDOG.kind)
    if not reports or not exit_.events:
        return False
    first, died = reports[0], exit_.events[0]
    if exit_.at is not None and first.at is not None:
        return exit_.at > first.at - _ABORTS
    if died.source.path != first.source.path or died.line > first.line:
        return died.source.path == first.source.path
    return died.kind != "driver.exception" and not any(
        e.source.path == died.source.path and died.line < e.line < first.line
        for e in case.of("driver.exception", "log.traceback")
    )
