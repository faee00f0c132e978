"""What happens after a cancel, in words: retry, restart, what `ray.get` raises, and what is left to do.

What its owner has cancelled is not retried, whatever ends it afterwards (2.9.3, 2.40.0, 2.60.0). A worker
that dies without that is a crash, which is retried up to `max_retries` times, 3 unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.act.cancel.ladder import Cancellation
from raydoctor.model.text import plural


def outlook(made: Cancellation) -> list[str]:
    """Sentences, what matters most first."""
    if made.ended and not made.steps:
        return ["It has ended already: there is nothing to cancel."]
    return list(_ended(made) if made.ended else _not_ended(made))


def _ended(made: Cancellation) -> Iterator[str]:
    by = made.by
    if by == "kill-actor":
        yield "Its actor has ended, with its state, and is not started again: calls to it fail."
    elif by == "job-stop":
        yield "Its job has ended."
    elif made.was_accepted or by == "interrupt":
        older = " (WorkerCrashedError with Ray 2.40 and older)" if by in ("force", "kill") else ""
        yield f"It is not retried: ray.get raises TaskCancelledError{older}."
    else:
        yield "It is not retried any more: it was ended as often as max_retries had it started again."
    if by == "interrupt":
        lives = (
            "Its actor lives on with its state." if made.target.actor else "Its worker lives on."
        )
        yield lives
    elif by in ("force", "kill"):
        yield "Its worker has ended; Ray starts another one when it needs it."


def _not_ended(made: Cancellation) -> Iterator[str]:
    target = made.target
    if target.kind == "creation":
        yield "The creation of an actor cannot be cancelled. --kill-actor ends the actor."
    elif target.kind == "method":
        yield from _method(made)
    else:
        if times := sum(step.outcome == "retried" for step in made.steps):
            yield f"It was started again {plural(times, 'time')}: max_retries says how often it may be."
        yield "--job-stop stops its whole job."


def _method(made: Cancellation) -> Iterator[str]:
    if not made.target.runs:
        if made.was_accepted:
            yield (
                "It waits for its turn in its actor. Its owner has taken the cancel: it ends when its turn "
                "comes, without being run."
            )
        yield "What its actor runs now: ray list tasks --filter state=RUNNING"
    else:
        yield (
            "Nothing can end this method from outside but its actor's end. One that asks "
            "ray.get_runtime_context().is_canceled() in its loop, and returns (Ray >= 2.54; in a coroutine: "
            "awaits something), ends when it is cancelled."
        )
    yield f"--kill-actor ends the actor {made.target.actor}; its state is lost."
