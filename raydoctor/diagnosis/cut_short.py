"""Programs that ended before their work was finished, although no log shows a failure: pure.

A user who waits in vain presses Ctrl-C, a time limit sends SIGTERM, and a program that gives up leaves its
tasks running. Whether it waited for something that would never come is in no log.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.signals import GCS, TRACEBACKS, WORKER_DISCONNECTED
from raydoctor.diagnosis import callers, effect
from raydoctor.model import ids, text
from raydoctor.model.values import CONSOLES, Event, Gap
from raydoctor.rules.shared.live import drivers
from raydoctor.rules.shared.waiting import TERMINATED

_LONGEST = 120


def gaps(case: Case, now: float | None, since: float | None) -> Iterator[Gap]:
    """At most one: what ended the program, the tasks that had not finished, or what its last line reports.

    `now`: of a live cluster, in epoch seconds; ends before `since`, or long ago, do not matter.
    """
    if since is None and now is not None:
        since = now - drivers.RECENT_S
    interrupted, terminated, left = (
        [event for event in found if since is None or event.at is None or event.at >= since]
        for found in (
            case.of("driver.interrupted"),
            case.of(TERMINATED.kind),
            left_running(case),
        )
    )
    unfinished = f" while {_tasks(case, left)} had not finished" if left else ""
    unknown = "whether the program would have ended by itself"
    if interrupted:
        frame = callers.caller(case, interrupted[-1])
        where = f" {callers.at(frame)}" if frame else ""
        ended = f"Ctrl-C (KeyboardInterrupt) ended the program{where}{unfinished}"
        yield _gap(interrupted[-1], unknown, ended, about="driver")
    elif terminated:
        ended = f"SIGTERM, for example of a time limit, ended the program{unfinished}"
        yield _gap(terminated[-1], unknown, ended)
    elif left:
        ended = f"the driver ended{unfinished}"
        ended += ", and its output shows no error" if _prints_no_error(case) else ""
        said = ended + _last_known(case, left)
        yield _gap(left[-1], "whether the driver gave up waiting", said, hint=_REST)
    else:
        for end in [e for e in case.endings.values() if e["gave_up"]][:1]:
            said = text.cut(text.one_line(end.text.rpartition("\n")[2]), _LONGEST)
            ended = f"the program ended with a line that may report a failure: {said}"
            yield _gap(end, "whether the program failed", ended, hint=_EXIT_CODE)


_RUNNING = "raydoctor hung   # next time, before the program ends"
_REST = f"""This is normal if the program needs only the results that it got. Otherwise, wait for the rest:
ray.get(refs)   # before the end of the program, all references that it still holds
{_RUNNING}"""
_EXIT_CODE = "Look up the exit code of the program. Next time: raydoctor run -- COMMAND"


def _gap(event: Event, unknown: str, ended: str, about: str = "end", hint: str = _RUNNING) -> Gap:
    where = f"{event.source.path}:{event.source.line(event.line)}"
    why = f"{ended}; the logs do not show more ({where})"
    return Gap(unknown, why, hint, about=about, is_observation=True)


def _last_known(case: Case, left: list[Event]) -> str:
    """How the driver of the unfinished tasks ended, as far as the logs show it."""
    owners = {e["owner"] or e["owner_b"] for e in left}
    ends = [e for s, e in case.endings.items() if s.role == "driver" and not e["ended_by"]]
    said = []
    if len(owners) == 1 and any(
        e["graceful"] == "true" and e["worker"] in owners for e in case.of(WORKER_DISCONNECTED.kind)
    ):
        said.append("the driver disconnected from Ray in order")
    if len(ends) == 1:
        said.append(f"its output ends with {effect.last_line(ends[0])}")
    return f"; {' and '.join(said)}" if said else ""


def _prints_no_error(case: Case) -> bool:
    """Whether the output of a driver is in the capture, and shows no exception."""
    kinds = (*TRACEBACKS, "driver.exception")
    is_shown = any(s.role in CONSOLES and s.size for s in case.sources)
    return is_shown and not any(e.source.role in CONSOLES for e in case.of(*kinds))


def left_running(case: Case) -> list[Event]:
    """Kills of workers that still ran a driver's task when this driver left.

    A worker is returned as soon as its task has finished, so that a leased one without an actor runs a task.
    Only the log of the GCS shows which workers had actors.
    """
    if not case.roles.intersection(GCS):
        return []
    return [
        event
        for event in case.of("worker.killed_with_owner")
        if ids.job_of_driver(event["owner"] or event["owner_b"])
        and (worker := _worker(event))
        and not case.actor_of_worker(worker)
    ]


def _worker(event: Event) -> str:
    return event["worker"] or event["worker_a"] or event["worker_b"]


def _tasks(case: Case, left: list[Event]) -> str:
    """`2 tasks (load, train)`."""
    workers = dict.fromkeys(map(_worker, left))
    names = [case.names[worker][-1] for worker in workers if case.names.get(worker)]
    named = f" ({text.join_names(dict.fromkeys(names))})" if names else ""
    return f"{evidence.many(len(workers), 'task')}{named}"
