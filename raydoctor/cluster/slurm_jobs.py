"""Slurm's accounts of the job that ran this Ray: `sacct` lists all jobs of a user."""

from __future__ import annotations

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


@lru_cache(maxsize=1)  # several rules need the same ones
def accounts(case: Case) -> tuple[Event, ...]:
    """The accounts of the jobs whose output is in the capture, or that held the machines of the logs.

    All accounts if neither is known, or none fits.
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
    own = {names.get(each, each) for each in numbers}.intersection(jobs) or _by_machine(case, jobs)
    return tuple(e for e in found if name_of(e, names) in own) if own else found


def _by_machine(case: Case, jobs: dict[str, list[Event]]) -> set[str]:
    """The jobs that held machines of the logs, and of several those during which a raylet started."""
    raylets = case.of("raylet.started")
    hosts = {e["hostname"].partition(".")[0] for e in raylets} - {""}
    here = {
        name
        for name, own in jobs.items()
        if hosts.intersection(host.partition(".")[0] for e in own for host in expanded(e["nodes"]))
    }
    starts = [e.at for e in raylets if e.at is not None]
    at_the_time = {name for name in here if any(_covers(jobs[name], at) for at in starts)}
    return at_the_time or here


def _covers(job: list[Event], at: float) -> bool:
    """Whether a job ran at a time."""
    for each in job:
        text = each["elapsed"]
        # A number is of JSON: there it is seconds.
        lasted = float(text) if text.isdecimal() and len(text) < 12 else seconds(text)
        if each.at is not None and lasted and each.at - lasted - _AROUND <= at <= each.at + _AROUND:
            return True
    return False


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
