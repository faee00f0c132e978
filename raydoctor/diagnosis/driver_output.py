"""Drivers that ended, or never connected, and whose output is not in the capture.

Ray records that a driver ended, but not whether by an exception: `ray.shutdown()` runs at the end of every
Python program (2.9.3 to 2.60.0). An exception that no log of Ray mentions is only in the driver's output, so
that without this output the evidence is incomplete, unless the GCS of a live cluster keeps its last line and
this line names its type. A program that `ray.init` refuses before it connects (an
address without a cluster, another version, a `working_dir` that does not exist) leaves no record in any log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from raydoctor.case import Case
from raydoctor.case.facts import Job
from raydoctor.case.rule import Signal
from raydoctor.case.signals import GCS, RAYLET
from raydoctor.cluster import tables as live
from raydoctor.model import ids, paste, text
from raydoctor.model.values import Gap, Source
from raydoctor.rules.shared import jobs
from raydoctor.rules.shared.connect import CONNECTING
from raydoctor.rules.shared.live import drivers

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


def gaps_of(case: Case, now: float | None, since: float | None, path: str = "") -> Iterator[Gap]:
    """At most one gap. `now`: of a live cluster, in epoch seconds; `since`: earlier ends do not matter.

    `path`: of the capture, or the address of a live cluster without a session folder, for the command.
    """
    if any(source.role == "driver" and not source.pid for source in case.sources):
        return  # Which driver wrote it is unknown.
    if since is None and now is not None:
        since = now - drivers.RECENT_S
    programs = _of_programs(case)
    if not programs and _shows_no_program(case):
        yield _of_none(is_recent=since is None or _begin(case) >= since)
    is_live = "live" in case.roles
    ended = [
        job
        for job in programs
        if (job.ended is not None or not is_live) and (since is None or _end(job) >= since)
    ]
    if ended:
        yield _gap(ended, path)


def _shows_no_program(case: Case) -> bool:
    """Whether the GCS's log is in the capture, and nothing in the capture belongs to a program."""
    is_used = any(s.role.startswith("worker") and _has_job(s) for s in case.sources)
    is_live = any(live.mapping(row, "driver_info") for row in live.rows(case, "jobs"))
    return bool(case.roles.intersection(GCS)) and not (is_used or is_live or jobs.submissions(case))


def _has_job(source: Source) -> bool:
    return any(e.kind == "job" and e.value.strip("f") for e in source.entities)


def _begin(case: Case) -> float:
    """When Ray's daemons wrote their first record, as far as the events show; infinity if none has a time."""
    daemons = (*GCS, *RAYLET)
    return min(
        (e.at for e in case.events if e.at is not None and e.source.role in daemons),
        default=float("inf"),
    )


def _of_none(is_recent: bool) -> Gap:
    """`is_recent`: an idle cluster that started long ago is no sign of a program that could not connect."""
    return Gap(
        "output of programs that could not connect",
        "the logs show no program that connected to this Ray; an earlier error of ray.init "
        "is only in the program's output",
        paste.text(
            "If one failed, give its output with --driver-log FILE, or: "
            "raydoctor run -- python your_script.py"
        ),
        optional=not is_recent,
        about="driver",
    )


def _end(job: Job) -> float:
    return float("inf") if job.ended is None else job.ended


def _of_programs(case: Case) -> list[Job]:
    """Jobs of drivers whose output is not a job's log in the capture, and that are no part of Ray."""
    submitted = jobs.submissions(case)
    managers = jobs.managers(case)
    known = {job.id for s in submitted if s.source for job in s.jobs} | _of_agents(case)
    known |= {end.job for end in drivers.ends(case) if end.raised.type}
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


def _with_output(path: str) -> str:
    """The command that reads the driver's output with what this report read."""
    if path and "/" not in path:
        return paste.shell(
            "raydoctor diagnose --address {address} --driver-log FILE  # next time: raydoctor run -- COMMAND",
            address=path,
        )
    return paste.shell(
        "raydoctor {path:path} --driver-log FILE   # next time: raydoctor run -- COMMAND",
        path=path or "PATH",
    )


def _gap(ended: list[Job], path: str) -> Gap:
    pids = [f"{job.driver_pid}" for job in ended]
    shown = text.join_names(pids)
    who = f"driver (pid {shown})" if len(pids) == 1 else f"drivers (pids {shown})"
    return Gap(
        f"output of the {who}",
        "missing from the capture; an exception that ended a driver may be shown only there",
        _with_output(path),
        about="driver",
    )
