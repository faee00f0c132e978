"""Slurm ended a job at its time limit.

## What you see
- `slurmstepd: error: *** JOB 4711 ON node001 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***`; `sacct` shows
  `TIMEOUT` or `DEADLINE`.
- Ray reports a SIGTERM, raylets and drivers that are gone, or tasks that never end.

## Why
At its limit a job gets SIGTERM, and SIGKILL after `KillWait` (30 s by default). Without `--time`, the partition's
default applies. A program that hangs, or waits for nodes that never join, also ends this way: then the time limit is
not the cause.

## Confirm
- In `sacct -j JOB --format=JobID,State,Timelimit,Elapsed,End`, `Elapsed` reaches `Timelimit`. `scontrol show partition`
  shows `MaxTime` and `DefaultTime`.
- `raydoctor hung PATH`, and errors before the last lines of the logs, show whether the program hung before.

## Fix
Request more time, or save checkpoints: `#SBATCH --signal=B:USR1@300` warns the job 5 min before its end.

## Not this when
- a person cancelled the job (`scancel`): the line then has no reason.
- the machine failed (`slurm-node-failed`).
- Ray lost a node long before the limit and ran on: that loss has a cause of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case
from raydoctor.case.rule import Example, rule
from raydoctor.cluster import hosts, slurm_jobs
from raydoctor.model import paste
from raydoctor.model.text import duration
from raydoctor.model.values import Finding, Link, Remedy
from raydoctor.rules.shared.hosts import slurm
from raydoctor.rules.shared.hosts.slurm import Ended


@rule(
    tier="root",
    severity="error",
    rank=3,
    explains=("host",),
    caused_by=("host",),
    looks_for=slurm.SIGNALS,
)
def slurm_time_limit(case: Case) -> Iterator[Finding]:
    """One finding per job."""
    printed = [e for e in case.of("slurm.cancelled") if e["why"] == "TIME LIMIT"]
    for job in slurm.ended(case, ("TIMEOUT", "DEADLINE"), printed):
        yield _finding(case, job)


def _finding(case: Case, job: Ended) -> Finding:
    accounts = slurm.accounts_of(case, job.job)
    limit = max((slurm_jobs.seconds(e["time_limit"]) for e in accounts), default=0.0)
    return Finding(
        f"{slurm.named(job)} reached its time limit{f' of {duration(limit)}' if limit else ''}, and Slurm ended it",
        (
            *(Link(e, "Slurm ended the job at its time limit") for e in job.printed[:1]),
            *(Link(e, "Slurm's accounting record of the job") for e in job.accounts[:1]),
        ),
        explains=(
            hosts.entity(f"time of slurm {job.job}"),
            *slurm.entities(case, job, everything=True, but=slurm.lost_long_before(case)),
        ),
        caused_by=(hosts.entity(f"slurm {job.job}"),),
        subjects=slurm.subjects(job),
        remedies=tuple(_remedies(limit)),
        covers=job.events,
    )  # fmt: skip


def _remedies(limit: float) -> Iterator[Remedy]:
    hours = max(1, round(limit * 2 / 3600))
    yield Remedy(
        "Request more time, if the job was still making progress when it ended",
        (
            paste.text("#SBATCH --time={hours}:00:00", hours=hours)
            if limit
            else "#SBATCH --time=HOURS:00:00",
        ),
        doc=slurm.DOC,
    )
    yield Remedy(
        "Save a checkpoint before the end: Slurm can send the job a signal 5 min earlier",
        ("#SBATCH --signal=B:USR1@300   # your batch script must handle the signal: trap … USR1",),
        doc="https://slurm.schedmd.com/sbatch.html",
    )


# ------------------------------------------------------------------ examples

_LINE = "slurmstepd: error: *** JOB 4711 ON node001 CANCELLED AT 2026-11-22T10:00:00{why} ***\n"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the output of the job",
        {"slurm-4711.out": "epoch 3\n" + _LINE.format(why=" DUE TO TIME LIMIT")},
        says=("Slurm job 4711", "--signal=B:USR1@300"),
    ),
    Example(
        "its accounts",
        {
            "sacct.txt": "JobID           State  Timelimit    Elapsed\n------------ ---------- ---------- ----------\n"
            "4711            TIMEOUT   02:00:00   02:00:12\n4711.batch    CANCELLED              02:00:13\n"
        },
        says=("time limit of 2 h", "--time=4:00:00"),
    ),
    Example("cancelled by a person", {"slurm-4711.out": "epoch 3\n" + _LINE.format(why="")}),
)  # fmt: skip
