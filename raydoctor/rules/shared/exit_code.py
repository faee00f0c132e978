"""`Worker exits with an exit code …`: the code, what requested the exit, and Ray's own error.

`_raylet.pyx` builds the sentence from the `SystemExit` that ended the task loop (the same in 2.9.3 to 2.60). It has the
code; in Kubernetes always a guess about memory limits; the text of Ray's SIGTERM handler or of `exit_actor()`; and a
traceback if Ray failed while it ran the task. `os._exit`, SIGKILL and crashes leave no such sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Signal
from raydoctor.model import ids
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event
from raydoctor.rules.shared.task_error import OUT_OF_FILES
from raydoctor.rules.shared.traceback import Raised, parse

EXITING = Signal(
    "worker.exiting",
    "SYSTEM_ERROR",
    r"SYSTEM_ERROR.{0,2000}?Worker exits with an exit code (?P<left>.*)",
    ("core-worker",),
    "Executing worker exit: SYSTEM_ERROR - Worker exits unexpectedly. Worker exits with an exit code 3. (timeout: -1ms)",
    extent="record",
)
"""A worker's own record; the GCS's may only report the closed socket, if it noticed that first."""

_LEFT = pattern(
    r"(?:Worker exits with an exit code |SystemExit is raised \(sys\.exit is called\)\. Exit code: )(?P<left>.*)",
    re.DOTALL,
)
_K8S = " The worker may have exceeded K8s pod memory limits."
_SIGTERM = "The process receives a SIGTERM"
_EXIT_ACTOR = "exit_actor() is called."
_TRACEBACK = "Traceback (most recent call last):"
_GCS_ADDS = pattern(
    r"\.? ?(?:Unintentional worker failures have been reported\.|\(timeout: -?\d+ms\)).*", re.DOTALL
)


class Left(NamedTuple):
    """How a worker exited by itself."""

    code: str
    """The argument of `sys.exit`: a number, `None`, or a text."""
    event: Event
    """The record of it."""
    sigterm: bool = False
    exit_actor: bool = False
    kubernetes: bool = False
    traceback: str = ""

    @property
    def raised(self) -> Raised | None:
        """Ray's own error, if it failed while it ran the task."""
        return parse(self.traceback)

    @property
    def is_out_of_files(self) -> bool:
        """Whether Ray failed because the worker had no file descriptor left."""
        return self.raised is not None and OUT_OF_FILES in self.raised.message

    @property
    def call(self) -> str:
        """`sys.exit(3)`, as the program may have written it."""
        if self.code == "None":
            return "sys.exit()"
        return (
            f"sys.exit({self.code})"
            if self.code.lstrip("-").isdecimal()
            else f'sys.exit("{self.code}")'
        )


def left_by_itself(case: Case, exit_: WorkerExit) -> Left | None:
    """The first exit code among the records of a worker's end and in its own core log."""
    matches = [(e, _LEFT.search(e["detail"] or e["what"])) for e in exit_.events]
    for event, found in matches:
        if found:
            return _parse(found["left"], event)
    if exit_.worker:
        for event in case.about(Entity("worker", exit_.worker), EXITING.kind):
            return _parse(event["left"], event)
    return None


def left_unnamed(case: Case) -> Iterator[Left]:
    """Exit codes in a console that names no worker: Ray's sentence alone, as people quote it."""
    if evidence.is_console(case) and not case.all_exits:
        for event in case.of(EXITING.kind):
            if not event["who"]:
                yield _parse(event["left"], event)


def _parse(text: str, event: Event) -> Left:
    text = _GCS_ADDS.sub("", text)
    message, _, traceback = text.partition(_TRACEBACK)
    first = message.split("\n", 1)[0]
    code = first
    for known in (_K8S, f" {_SIGTERM}", f" {_EXIT_ACTOR}"):
        code = code.partition(known)[0]
    return Left(
        code=code.rstrip(". "),
        event=event,
        sigterm=_SIGTERM in first,
        exit_actor=_EXIT_ACTOR in first,
        kubernetes=_K8S in first,
        traceback=f"{_TRACEBACK}{traceback}" if traceback else "",
    )


def submitter(exit_: WorkerExit) -> str:
    """The WorkerID of the process that leased the worker, if a report names the lease (2.50+)."""
    return next((w for e in exit_.events if (w := ids.submitter_of_lease(e["lease"]))), "")
