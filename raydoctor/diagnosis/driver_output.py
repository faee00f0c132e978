"""Drivers that ended, and whose output is not in the capture.

Ray records that a driver ended, but not whether by an exception: `ray.shutdown()` runs at the end of every
Python program (2.9.3 to 2.60.0). An exception that no log of Ray mentions is only in the driver's output, so
that without this output the evidence is incomplete.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from raydoctor.case import Case
from raydoctor.case.facts import Job
from raydoctor.case.rule import Signal
from raydoctor.model import ids, paste, text
from raydoctor.model.values import Gap
from raydoctor.rules.shared import jobs
from raydoctor.rules.shared.connect import CONNECTING

RECENT_S = 3600.0
"""Seconds in which the end of a driver of a running cluster matters, unless the user names a time."""
_TO_REGISTER_S = 60.0
"""Seconds from an agent's connection until the GCS registers its job: 1 s, more on a busy machine."""

AGENT_CONNECTING = Signal(
    "agent.connecting",
    CONNECTING.find,
    CONNECTING.pattern,
    ("dashboard", "dashboard-agent"),
    CONNECTING.sample,
)
"""The dashboard and its agents connect for REST calls (jobs, Serve), and the GCS registers a job for them."""


def gaps_of(case: Case, now: float | None, since: float | None) -> Iterator[Gap]:
    """At most one gap. `now`: of a running cluster, in epoch seconds; `since`: earlier ends do not matter."""
    if any(source.role == "driver" and not source.pid for source in case.sources):
        return  # Which driver wrote it is unknown.
    if since is None and now is not None:
        since = now - RECENT_S
    is_live = "live" in case.roles
    ended = [
        job
        for job in _of_programs(case)
        if (job.ended is not None or not is_live) and (since is None or _end(job) >= since)
    ]
    if ended:
        yield _gap(ended)


def interrupted(case: Case) -> Iterator[Gap]:
    """A gap if Ctrl-C ended the program: a user who waits in vain presses it, and no log tells that apart."""
    for event in case.of("driver.interrupted")[-1:]:
        yield Gap(
            f"{event.source.path}:{event.line}",
            "the program was interrupted (KeyboardInterrupt); whether it would have ended is not in the logs",
            "Next time, before Ctrl-C: raydoctor hung",
            about="driver",
        )


def _end(job: Job) -> float:
    return float("inf") if job.ended is None else job.ended


def _of_programs(case: Case) -> list[Job]:
    """Jobs of drivers whose output is not a job's log in the capture, and that are no part of Ray."""
    submitted = jobs.submissions(case)
    managers = {s.started.pid for s in submitted if s.started}
    known = {job.id for s in submitted if s.source for job in s.jobs} | _of_agents(case)
    is_shown = _outputs(case)
    return [
        job
        for job in case.ledger.jobs.values()
        if job.id not in known
        and job.driver_pid
        and job.driver_pid not in managers
        and not is_shown(job)
    ]


def _outputs(case: Case) -> Callable[[Job], bool]:
    """Whether the capture has the output of a job's driver.

    In containers, drivers of different nodes have the same pid; a driver's own log shows its node.
    """
    outputs = {(each.node, each.pid) for each in case.sources if each.role == "driver" and each.pid}
    nodes = {
        each.path.rpartition("python-core-driver-")[2].partition(".")[0]: each.node
        for each in (case.sources if outputs else ())
        if each.role == "core-driver"
    }

    def is_shown(job: Job) -> bool:
        node = nodes.get(f"{ids.driver_of_job(job.id)}_{job.driver_pid}")
        return any(pid == job.driver_pid and node in (None, where) for where, pid in outputs)

    return is_shown


def _of_agents(case: Case) -> set[str]:
    """For each connection of an agent, the next job that the GCS registered."""
    started = sorted(
        (job.started, job.id) for job in case.ledger.jobs.values() if job.started is not None
    )
    found: set[str] = set()
    # Agents can connect at the same time; each has a job of its own.
    for at in sorted(e.at for e in case.of(AGENT_CONNECTING.kind) if e.at is not None):
        first = bisect_left(started, (at, ""))
        last = bisect_right(started, (at + _TO_REGISTER_S, "\uffff"))
        job = next((job for _, job in started[first:last] if job not in found), None)
        found |= {job} if job else set()
    return found


def _gap(ended: list[Job]) -> Gap:
    pids = [f"{job.driver_pid}" for job in ended]
    shown = text.join_names(pids)
    who = f"driver (pid {shown})" if len(pids) == 1 else f"drivers (pids {shown})"
    return Gap(
        f"output of the {who}",
        "not in the capture; an exception that ended a driver may be shown only there",
        paste.text(
            "Give it with --driver-log FILE. Next time keep it: raydoctor run -- python your_script.py"
        ),
        about="driver",
    )
