"""Every exception of user code in a capture, from all of its sources: one stream for several rules."""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case
from raydoctor.case.signals import RAY_EXCEPTION
from raydoctor.rules.shared import data, train
from raydoctor.rules.shared.task_error import ERROR_TEXT, Printed, parse_failure, printed

SIGNALS = (RAY_EXCEPTION, ERROR_TEXT, *train.SIGNALS, *data.FAILED)


def failures(case: Case) -> Iterator[Printed]:
    """Failures of tasks and methods, of training functions, and of functions in pipelines.

    A rank that failed because its peer was gone belongs to `train-worker-failed`: that error is not a cause.
    """
    for seen in (*printed(case), *_exported(case), *train.errors(case), *data.errors(case)):
        if not train.is_loss_of_peer(seen):
            yield seen


def _exported(case: Case) -> Iterator[Printed]:
    for event in case.of("export.task_error"):
        if event["error"] == "TASK_EXECUTION_EXCEPTION" and (
            failure := parse_failure(event["what"])
        ):
            yield Printed(event, failure)
