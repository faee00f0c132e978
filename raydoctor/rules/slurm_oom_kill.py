"""A step of a Slurm job used more memory than the job requested, and the kernel killed it.

## What you see
- `slurmstepd: error: Detected 1 oom_kill event in StepId=…`, `srun: error: node001: task 0: Out Of Memory`.
- `sacct` shows `OUT_OF_MEMORY`.
- Ray reports only what follows: workers and nodes are gone, and a raylet's log ends without a reason.

## Why
Slurm gives each job a cgroup with the memory that the job requests per node (`--mem`, `--mem-per-cpu`; without them, a
default that is often small). Ray's daemons, workers and object store all count towards it. Ray may see the machine's
memory instead of the job's limit, and then starts more workers than fit.

## Confirm
- In `sacct -j JOB --format=JobID,State,MaxRSS,ReqMem,NodeList,ExitCode`, `MaxRSS` is close to `ReqMem`. Slurm samples
  `MaxRSS` every 30 s, so it can miss the peak.

## Fix
Request more memory, or limit Ray: `--num-cpus`, `--object-store-memory` and `--memory` for `ray start`. `--memory`
limits only tasks that declare `memory=`.

## Not this when
- Ray's memory monitor killed a worker, and the step is still running (`ray-oom-kill`).
- the job ended at its time limit (`slurm-time-limit`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, console, rule
from raydoctor.model import paste
from raydoctor.model.text import joined, size
from raydoctor.model.values import Finding, Link, Remedy
from raydoctor.rules.shared.hosts import slurm
from raydoctor.rules.shared.hosts.slurm import Ended

_MORE = 1.5


@rule(
    tier="root",
    severity="error",
    rank=2,
    explains=("host",),
    looks_for=slurm.SIGNALS,
)
def slurm_oom_kill(case: Case) -> Iterator[Finding]:
    """One finding per job."""
    for job in slurm.ended(case, ("OUT_OF_MEMORY",), case.of("slurm.oom")):
        yield _finding(case, job)


def _finding(case: Case, job: Ended) -> Finding:
    accounts = slurm.accounts_of(case, job.job)
    held = max((slurm.memory(e["max_rss"])[0] for e in accounts), default=0.0)
    wanted = next((slurm.memory(e["requested"]) for e in accounts if e["requested"]), (0.0, ""))
    asked = f"it requested {size(wanted[0])}{f' per {wanted[1]}' if wanted[1] else ''}" if wanted[0] else ""  # fmt: skip
    used = f"a task held up to {size(held)}" if held else ""
    numbers = f": {joined([part for part in (asked, used) if part])}" if asked or used else ""
    where = f" on {evidence.join_names(job.hosts)}" if job.hosts else ""
    count = max((int(e["count"]) for e in job.printed if e["count"]), default=1)
    is_done = any(e["job"] == job.job and e["state"].startswith("COMPLETED") for e in accounts)
    who = f"{slurm.named(job)} completed, but a step of it" if is_done else slurm.named(job)
    return Finding(
        f"{who} exceeded its memory limit{where}, and the kernel killed "
        f"{'one' if count == 1 else count} of its processes{numbers}",
        (
            *(Link(e, f"Slurm reports {evidence.many(count, 'process', 'processes')} killed for lack of memory") for e in job.printed[:1]),
            *(Link(e, "Slurm's accounting record of the job") for e in job.accounts[:2]),
        ),
        explains=slurm.entities(case, job, everything=not job.hosts),
        subjects=slurm.subjects(job),
        count=count,
        severity="warning" if is_done else None,
        remedies=tuple(_remedies(wanted, held)),
        covers=job.events,
    )  # fmt: skip


def _remedies(wanted: tuple[float, str], held: float) -> Iterator[Remedy]:
    amount, per = wanted
    need = math.ceil(max(amount, held if per != "cpu" else 0.0) * _MORE / evidence.GB)
    line = "#SBATCH --mem=0   # all memory of each machine"
    if need and per == "cpu":
        line = paste.text("#SBATCH --mem-per-cpu={need}G", need=need)
    elif need:
        line = paste.text("#SBATCH --mem={need}G", need=need)
    yield Remedy(
        f"Request more memory{f' than {size(amount)}' if amount else ''} for the job",
        (line,),
        doc=slurm.DOC,
    )
    total = int(amount * 0.6) if amount and per != "cpu" else "BYTES"
    store = int(amount * 0.2) if amount and per != "cpu" else "BYTES"
    yield Remedy(
        "Tell Ray how much memory the job really has, so that it starts only what fits",
        (
            paste.shell(
                "ray start --memory={total} --object-store-memory={store}   # plus your other options. On every node",
                total=total,
                store=store,
            ),
        ),
        doc="https://docs.ray.io/en/latest/cluster/vms/user-guides/community/slurm.html",
    )


# ------------------------------------------------------------------ examples

_PRINTED = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.batch. Some of the step tasks have been OOM Killed.\n"
    "srun: error: node001: task 0: Out Of Memory\n"
)
_ACCOUNTS = (
    "JobID|JobName|State|ExitCode|MaxRSS|ReqMem|NodeList|End\n"
    "4711|train|OUT_OF_MEMORY|0:125||16G|node[001-002]|2026-11-22T10:00:00\n"
    "4711.batch|batch|OUT_OF_MEMORY|0:125|16512340K||node001|2026-11-22T10:00:00\n"
    "4711.extern|extern|COMPLETED|0:0|0||node[001-002]|2026-11-22T10:00:00\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the output of the job",
        {"slurm-4711.out": _PRINTED},
        says=("Slurm job 4711", "node001", "#SBATCH --mem=0"),
    ),
    console(
        "an older Slurm",
        "slurmstepd: error: Detected 3 oom-kill event(s) in StepId=4711.0 cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.\n",
        says=("killed 3 of its processes",),
    ),
    Example(
        "its accounts",
        {"sacct.txt": _ACCOUNTS},
        says=("requested 16.0 GiB", "held up to 15.7 GiB", "#SBATCH --mem=24G"),
    ),
    Example(
        "the output, and the time limit afterwards",
        {"slurm-4711.out": _PRINTED + "slurmstepd: error: *** JOB 4711 ON node001 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***\n"},
        roots=("slurm-oom-kill",),
        consequences=("slurm-time-limit",),
    ),
    Example(
        "a task of an array: its step has another number",
        {
            "slurm-4700_3.out": _PRINTED.replace("4711", "4703"),
            "sacct.json": '{"jobs": [{"job_id": 4703, "array": {"job_id": 4700, "task_id": {"set": true, "number": 3}}, "association": {}, '
            '"state": {"current": ["OUT_OF_MEMORY"], "reason": "None"}, "required": {"memory_per_node": {"set": true, "number": 16384}}, '
            '"nodes": "node001", "steps": [{"step": {"id": "4703.batch", "name": "batch"}, "state": ["OUT_OF_MEMORY"]}]}]}\n',
        },
        says=("Slurm job 4700_3", "requested 16.0 GiB"),
    ),
    Example(
        "a step of a job that completed",
        {"sacct.txt": _ACCOUNTS.replace("OUT_OF_MEMORY|0:125", "COMPLETED|0:0", 1)},
        says=("completed, but a step of it exceeded its memory",),
        severity="warning",
    ),
    Example("a job that is done", {"sacct.txt": _ACCOUNTS.replace("OUT_OF_MEMORY|0:125", "COMPLETED|0:0")}),
    console(
        "a program that prints the words",
        "explained: srun prints Out Of Memory, and sacct OUT_OF_MEMORY\n",
    ),
)  # fmt: skip
