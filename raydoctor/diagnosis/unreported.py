"""Failures of tasks that Ray recorded and the program's output does not mention: pure.

A program that catches an exception and continues exits with 0, possibly with a wrong result.
"""

from __future__ import annotations

from raydoctor.model.values import Diagnosis, Report
from raydoctor.rules.shared.failures import is_recorded
from raydoctor.rules.shared.traceback import parse

_TELLING = 4
"""Characters of a message that is not found in any output by chance."""


def unreported(report: Report, output: str) -> tuple[Diagnosis, ...]:
    """The exceptions of tasks that the output names neither by class nor by message."""
    return tuple(each for each in report.diagnoses if _is_unreported(each, output))


def _is_unreported(diagnosis: Diagnosis, output: str) -> bool:
    event = diagnosis.chain[0].event if diagnosis.chain else None
    if event is None or not is_recorded(event):
        return False
    raised = parse(event.message)
    while raised is not None:
        text = raised.message.strip()
        if (raised.name and raised.name in output) or (len(text) >= _TELLING and text in output):
            return False
        raised = raised.cause
    return True
