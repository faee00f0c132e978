"""The consequences of a cancel as sentences: retries, restarts, the error of `ray.get`, and next steps.

A task that its owner has cancelled is not retried, whatever ends it afterwards (2.9.3, 2.40.0, 2.60.0). The
death of a worker without that is a crash, which Ray retries up to `max_retries` times (default 3).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.act.cancel.ladder import Cancellation
from raydoctor.model.text import plural


def outlook(made: Cancellation) -> list[str]:
    """The sentences, the most important one first."""
    if made.ended and not made.steps:
        return ["It had already ended, so nothing was done."]
    if made.silence and not made.ended:
        return list(_unknown(made))
    return list(_ended(made) if made.ended else _not_ended(made))


def _ended(made: Cancellation) -> Iterator[str]:
    by = made.by
    if by == "kill-actor":
        yield "Its actor has ended, its state is lost, and Ray does not restart it: calls to it fail."
    elif by == "job-stop":
        yield "Its job has ended."
    elif made.was_accepted or by == "interrupt":
        older = " (WorkerCrashedError with Ray 2.40 and older)" if by in ("force", "kill") else ""
        yield f"Ray does not retry it: ray.get raises TaskCancelledError{older}."
    else:
        yield "Ray does not retry it any more: all retries (max_retries) are used up."
    if by == "interrupt":
        lives = (
            "Its actor keeps running with its state."
            if made.target.actor
            else "Its worker keeps running."
        )
        yield lives
    elif by in ("force", "kill"):
        yield "Its worker has ended; Ray starts a new one when it needs one."
    if running := [each.identity.pid for each in made.processes if each.outcome == "running"]:
        yield (
            "Check what they are before you end them: "
            f"ps -o pid,user,lstart,args -p {','.join(map(str, running))}"
        )


def _unknown(made: Cancellation) -> Iterator[str]:
    if not any(step.outcome != "skipped" for step in made.steps):
        yield "Nothing was done."
    elif made.was_accepted:
        yield "Its owner has accepted the cancel: Ray does not retry it."
    yield "To find out why the cluster does not answer: raydoctor. Then run the same command again."


def _not_ended(made: Cancellation) -> Iterator[str]:
    target = made.target
    if target.kind == "creation":
        yield "The creation of an actor cannot be cancelled. --kill-actor ends the actor."
    elif target.kind == "method":
        yield from _method(made)
    else:
        if times := sum(step.outcome == "retried" for step in made.steps):
            yield f"Ray retried it {plural(times, 'time')}; max_retries is the limit."
        yield "--job-stop stops its whole job."


def _method(made: Cancellation) -> Iterator[str]:
    if not made.target.runs:
        if made.was_accepted:
            yield (
                "It is queued in its actor. Its owner has accepted the cancel: when its turn comes, it ends "
                "without being run."
            )
        yield "To see what its actor runs now: ray list tasks --filter state=RUNNING"
    else:
        yield (
            "Only the end of its actor can end this method from outside. A method can support cancelling: "
            "it checks ray.get_runtime_context().is_canceled() in its loop and returns (Ray >= 2.54), or "
            "awaits if it is a coroutine."
        )
    yield f"--kill-actor ends the actor {made.target.actor}; its state is lost."
