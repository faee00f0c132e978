"""NCCL collective operations that timed out, and whether a worker's end came before or after the wait began."""

from __future__ import annotations

from raydoctor.case import Case
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Signal
from raydoctor.case.signals import OUTPUT
from raydoctor.model.entities import Entity

TIMED_OUT = Entity("collective", "nccl")
WATCHDOG = Signal(
    "nccl.timeout",
    "Watchdog caught collective oper",
    r"\[Rank (?P<rank>\d+)\] Watchdog caught collective oper(?:ation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)"
    r"(?:, [^()]*)?, Timeout\(ms\)=(?P<limit>\d+)\) ran for (?P<ms>\d+) milliseconds|[a-z ]{0,13}$)",
    OUTPUT,
    "[rank1]:[E1121 07:34:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum=158046, OpType=ALLREDUCE, NumelIn=2867200, NumelOut=2867200, Timeout(ms)=600000) ran for 600027 milliseconds before timing out.",
    fold=("rank",),
)
"""torch's record (`ProcessGroupNCCL.cpp`, 2.0 to 2.9); a paste may cut it off before the operation."""
_ABORTS = 60.0
"""Seconds before the first report within which its own ranks abort: their watchdogs do not report at the same time."""


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
