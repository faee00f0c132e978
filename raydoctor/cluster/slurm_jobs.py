"""Slurm's accounts of the job that ran this Ray: `sacct` lists all jobs of a user."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from raydoctor.case import Case
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event

_OUTPUT = pattern(r"(?:.*/)?slurm-(?P<job>\d{1,18}(?:_\d{1,9})?)\.(?:out|err)(?:\.gz)?")
"""The file of a job's output, as Slurm names it."""
_HOSTS = pattern(r"[^,\[\]]+(?:\[[^\]]*\])?[^,\[\]]*")
_CLOCK = pattern(
    r"(?:(?P<days>\d{1,6})-)?(?:(?P<hours>\d{1,9}):)?(?P<minutes>\d{1,9}):(?P<seconds>\d\d)(?:\.\d+)?"
)
_AROUND = 60.0
"""Seconds by which the clocks of a job and of its Ray may differ."""
_ZONES = 15 * 3600.0
"""Seconds by which they can differ if the zone of one is unknown."""


@lru_cache(maxsize=1)  # several rules need the same ones
def accounts(case: Case) -> tuple[Event, ...]:
    """The accounts of the jobs whose output is in the capture, or that held the machines of the logs.

    Several jobs can form one cluster. All accounts if nothing shows whose logs these are; none if the
    machines of the logs are in no job of several.
    """
    found = tuple(case.of("slurm.job"))
    names = jobs_by_number(case)
    jobs: dict[str, list[Event]] = {}
    for event in found:
        jobs.setdefault(name_of(event, names), []).append(event)
    if len(jobs) < 2:
        return found
    printed = (e for e in case.of("slurm.cancelled", "slurm.oom") if e["job"])
    outputs = (_OUTPUT.fullmatch(source.path) for source in case.sources)
    numbers = {*(number(e["job"]) for e in printed), *(match["job"] for match in outputs if match)}
    named = {names.get(each, each) for each in numbers}.intersection(jobs)
    raylets = case.of("raylet.started")
    held = {job: machines(own) for job, own in jobs.items()}
    own = named.union(
        *(_holders(each, raylets, jobs, held, named) for each in machines_of(raylets))
    )
    if not own and not (any(held.values()) and machines_of(raylets)):
        return found
    return tuple(e for e in found if name_of(e, names) in own)


def machines(accounts: Iterable[Event]) -> set[str]:
    """The machines that a job held, without their domains."""
    return {host.partition(".")[0] for e in accounts for host in expanded(e["nodes"])}


def machines_of(raylets: Iterable[Event]) -> set[str]:
    """The machines of the logs, without their domains."""
    return {e["hostname"].partition(".")[0] for e in raylets} - {""}


def _holders(
    machine: str,
    raylets: list[Event],
    jobs: dict[str, list[Event]],
    held: dict[str, set[str]],
    named: set[str],
) -> set[str]:
    """The jobs that held a machine: a named one, or those during which its raylet started."""
    here = {job for job in jobs if machine in held[job]}
    if here & named:
        return here & named
    starts = [
        e.at for e in raylets if e.at is not None and e["hostname"].partition(".")[0] == machine
    ]
    away = {job: min((_away(jobs[job], at) for at in starts), default=math.inf) for job in here}
    at_the_time = {job for job in here if away[job] <= _AROUND}
    if at_the_time or named:
        return at_the_time
    # Logs may be in another zone than the accounts.
    nearest = min(away.values(), default=math.inf)
    return {job for job in here if away[job] == math.inf or away[job] == nearest <= _ZONES}


def _away(job: list[Event], at: float) -> float:
    """Seconds from a time to the run of a job: 0 within it, infinity if it is not known when it ran."""
    found = math.inf
    for each in job:
        text = each["elapsed"]
        # A number is of JSON: there it is seconds.
        lasted = float(text) if text.isdecimal() and len(text) < 12 else seconds(text)
        if each.at is not None and lasted:
            found = min(found, max(each.at - lasted - at, at - each.at, 0.0))
    return found


def number(step: str) -> str:
    """The job of a step: `4711` of `4711.batch`, `4711_3.0` and `4711+0`."""
    return step.partition(".")[0].partition("+")[0]


def name_of(event: Event, names: dict[str, str]) -> str:
    """The job of an event."""
    own = number(event["job"])
    return names.get(own, own)


def jobs_by_number(case: Case) -> dict[str, str]:
    """The job of each number that Slurm assigns to a task of an array or to a part of a heterogeneous job."""
    return {number(e["raw"]): number(e["job"]) for e in case.of("slurm.job") if e["raw"]}


def seconds(text: str) -> float:
    """Seconds of `1-02:03:04`, or of a number of minutes (JSON); 0 for other text."""
    if text.isdecimal() and len(text) < 12:
        return float(text) * 60
    found = _CLOCK.fullmatch(text)
    if not found:
        return 0.0
    days, hours, minutes, rest = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def expanded(text: str, most: int = 2000) -> list[str]:
    """The hosts of `node[001-003,7],gpu1`."""
    found: list[str] = []
    for match in _HOSTS.finditer(text):
        if len(found) >= most:
            break
        head, bracket, rest = match[0].partition("[")
        if not bracket:
            found.append(head)
            continue
        inside, _, tail = rest.partition("]")
        for part in inside.split(","):
            low, _, high = part.partition("-")
            if low.isdecimal() and (high or low).isdecimal() and len(low) < 9 and len(high) < 9:
                last = min(int(high or low), int(low) + most - len(found))
                numbers = range(int(low), last + 1)
                found += [f"{head}{each:0{len(low)}d}{tail}" for each in numbers]
    return [name for name in found[:most] if name]
