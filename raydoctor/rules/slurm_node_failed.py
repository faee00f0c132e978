"""A machine of a Slurm job failed, or Slurm reclaimed it for another job.

## What you see
- `srun: error: Node failure on node007`, `slurmstepd: error: *** JOB 4711 ON node001 CANCELLED AT … DUE TO NODE
  FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***`, or `… DUE TO PREEMPTION ***`.
- `sacct` shows `NODE_FAIL`, `BOOT_FAIL` or `PREEMPTED`.
- Ray reports a dead node, and the workers and objects lost with it.

## Why
slurmctld lost a machine (crash, network, a health check that drained it), and ends the jobs on it unless they were
submitted with `--no-kill`. A job in a preemptible partition or QOS ends, or is requeued, when a more important job
needs its machines.

## Confirm
- `sacct -j JOB --format=JobID,State,FailedNode,NodeList,End` names the failed node.
- `scontrol show node NODE` shows its `State` and the `Reason`.

## Fix
Exclude the machine (`sbatch --exclude=NODE`), submit the job again, and report the machine to the administrators. To
survive preemption, let Slurm requeue the job (`--requeue`), and continue from a checkpoint.

## Not this when
- the job ended at its time limit (`slurm-time-limit`), for lack of memory (`slurm-oom-kill`), or by `scancel`.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.model import paste
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.hosts import slurm
from raydoctor.rules.shared.hosts.slurm import Ended

_FAILED = ("NODE_FAIL", "BOOT_FAIL")
_PREEMPTED = ("PREEMPTED",)


@rule(
    tier="root",
    severity="error",
    rank=2,
    explains=("host",),
    looks_for=slurm.SIGNALS,
)
def slurm_node_failed(case: Case) -> Iterator[Finding]:
    """One finding per job."""
    cancelled = case.of("slurm.cancelled")
    printed = [e for e in cancelled if e["why"] == "NODE FAILURE"] + case.of("slurm.node_failed")
    for job in slurm.ended(case, _FAILED, printed):
        yield _finding(case, job, is_preempted=False)
    taken = [e for e in cancelled if e["why"] == "PREEMPTION"]
    for job in slurm.ended(case, _PREEMPTED, taken):
        yield _finding(case, job, is_preempted=True)


def _finding(case: Case, job: Ended, is_preempted: bool) -> Finding:
    failed = tuple(dict.fromkeys(e["failed_node"] for e in job.accounts if e["failed_node"]))
    failed = failed or tuple(e["host"] for e in job.printed if e.kind == "slurm.node_failed")
    where = f": {evidence.join_names(failed)}" if failed and not is_preempted else ""
    what = (
        "was preempted: Slurm needed its machines for another job"
        if is_preempted
        else f"lost a machine{where}"
    )
    accounts = slurm.accounts_of(case, job.job)
    is_done = any("." not in e["job"] and e["state"].startswith("COMPLETED") for e in accounts)
    then = ", was queued again and completed" if is_done else ""
    return Finding(
        f"{slurm.named(job)} {what}{then}",
        (
            *(
                Link(e, _shows(e))
                for e in sorted(job.printed, key=lambda e: e.kind != "slurm.node_failed")[:2]
            ),
            *(Link(e, "Slurm's accounting record of the job") for e in job.accounts[:1]),
        ),
        explains=slurm.entities(case, job, everything=True),
        subjects=slurm.subjects(job),
        severity="warning" if is_done else None,
        remedies=tuple(_remedies(failed, is_preempted)),
        covers=job.events,
    )


def _shows(event: Event) -> str:
    if event.kind == "slurm.node_failed":
        return f"Slurm reports that {event['host']} failed"
    return "Slurm ended the job"


def _remedies(failed: tuple[str, ...], is_preempted: bool) -> Iterator[Remedy]:
    if not is_preempted:
        yield Remedy(
            "Submit again without the machine, and report it",
            (
                paste.shell("scontrol show node {node:id}", node=failed[0]),
                paste.shell("sbatch --exclude={node:id} JOB_SCRIPT", node=failed[0]),
            )
            if failed
            else ("sacct -j JOB --format=JobID,State,FailedNode,NodeList,End",),
            doc=slurm.DOC,
        )
    yield Remedy(
        "Have Slurm queue the job again, and continue from its last checkpoint",
        ("#SBATCH --requeue",),
        doc="https://slurm.schedmd.com/sbatch.html",
    )
    if is_preempted:
        yield Remedy(
            "Or use a partition or QOS that is not preempted",
            ("sacctmgr show qos format=Name,Priority,Preempt,PreemptMode",),
        )


# ------------------------------------------------------------------ examples

_LINE = (
    "slurmstepd: error: *** JOB 4711 ON node001 CANCELLED AT 2026-11-22T10:00:00 DUE TO {why} ***\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the output of the job",
        {
            "slurm-4711.out": "srun: error: Node failure on node007\n"
            + _LINE.format(why="NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")
        },
        says=("lost a machine: node007", "sbatch --exclude=node007"),
    ),
    Example(
        "preempted",
        {"slurm-4711.out": _LINE.format(why="PREEMPTION")},
        says=("was preempted", "--requeue"),
    ),
    Example(
        "its accounts as JSON",
        {
            "sacct.json": '{"jobs": [{"job_id": 4711, "name": "train", "association": {}, "state": {"current": ["NODE_FAIL"], "reason": "None"}, '
            '"failed_node": "node007", "nodes": "node[001-007]", "time": {"end": 1795341600, "limit": {"set": true, "number": 60}}, "steps": []}]}\n'
        },
        says=("Slurm job 4711", "node007"),
    ),
    Example(
        "queued again after the failure, and completed",
        {
            "sacct.txt": "JobID|JobName|State|ExitCode|FailedNode|End\n4711|train|NODE_FAIL|1:0|node007|2026-11-22T09:00:00\n"
            "4711|train|COMPLETED|0:0||2026-11-22T12:00:00\n"
        },
        says=("lost a machine: node007, was queued again and completed",),
        severity="warning",
    ),
    Example(
        "ended at its time limit",
        {"slurm-4711.out": _LINE.format(why="TIME LIMIT")},
        roots=("slurm-time-limit",),
    ),
)  # fmt: skip
