"""The user's own line for the exception that a call got.

Such an exception names an actor, a task or an object. The line of the program that waited for it stands in
the traceback above, between Ray's own frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from raydoctor.case import Case
from raydoctor.case.signals import RAY_EXCEPTION, TRACEBACK
from raydoctor.model.text import cut
from raydoctor.model.values import Diagnosis, Event, Link
from raydoctor.rules.shared.traceback import Raised, TracebackFrame, parse

_CODE = 120
"""Columns of the program's line that are shown."""


def with_callers(case: Case, diagnoses: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    """The diagnoses; a link to one of `ray.exceptions` ends with the line of the program that received it."""
    return tuple(
        replace(each, chain=tuple(_with_caller(case, link) for link in each.chain))
        for each in diagnoses
    )


def _with_caller(case: Case, link: Link) -> Link:
    event = link.event
    # A task's exception contains the task's own traceback, and its rule names that line.
    if event.kind != RAY_EXCEPTION.kind or event["type"] == "RayTaskError":
        return link
    frame = caller(case, event)
    if frame is None or frame.place in link.shows:
        return link
    # The rule may have quoted the same line of code.
    if link.shows.endswith(quoted := f" at: {_line(frame)}"):
        return replace(link, shows=f"{link.shows.removesuffix(quoted)} {at(frame)}")
    return replace(link, shows=f"{link.shows}; the error was raised {at(frame)}")


def caller(case: Case, exception: Event) -> TracebackFrame | None:
    """The innermost line of the user's program in the traceback that ends with this exception's line."""
    raised = exception_of(case, exception)
    place = raised.place if raised else None
    return place if place and place.is_user_code else None


def exception_of(case: Case, exception: Event) -> Raised | None:
    """The exception of the traceback that ends with this line."""
    for traceback in case.of(TRACEBACK.kind):
        below = exception.line - traceback.line
        lines = traceback.message.splitlines()
        if traceback.source is exception.source and 0 < below < len(lines):
            raised = parse("\n".join(lines[: below + 1]))
            is_it = raised and exception.message.lstrip(" |").startswith(raised.type)
            return raised if is_it else None
    return None


def at(frame: TracebackFrame) -> str:
    """`at train.py:12: ray.get(ref)`; without the code if the traceback has none."""
    code = _line(frame)
    return f"at {frame.place}: {code}" if code else f"at {frame.place}"


def _line(frame: TracebackFrame) -> str:
    return cut(frame.code.partition("\n")[0], _CODE)
