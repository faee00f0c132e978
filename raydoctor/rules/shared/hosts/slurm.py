"""Slurm's records of a job's end: in its accounts (`slurm.job`), and printed by slurmstepd and srun."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER, GCS, RAYLET, RAYLET_STARTED
from raydoctor.cluster import hosts, slurm_jobs
from raydoctor.cluster.slurm_jobs import expanded
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Subject
from raydoctor.rules.shared.cluster import node_of_death

CANCELLED = Signal(
    "slurm.cancelled",
    " CANCELLED AT ",
    r"(?:slurmstepd|srun)[^\n]{0,40}?: (?:error: )?\*\*\* (?P<what>JOB|STEP) (?P<job>[\w.+]{1,60}) ON (?P<host>\S{1,255}) CANCELLED AT "
    r"(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?: DUE TO (?P<why>[A-Z][A-Z ,]{0,60}?))?(?:, SEE [^*\n]{0,60})? \*\*\*",
    DRIVER,
    "slurmstepd: error: *** JOB 4711 ON node001 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***",
    with_header=True,
)
"""`slurmd/slurmstepd/req.c`; without a reason a person cancelled it."""
OOM = (
    Signal(
        "slurm.oom",
        "slurmstepd: error: Detected ",
        r"slurmstepd: error: Detected (?P<count>\d{1,9}) oom[_-]kill events?(?:\(s\))? in (?:StepId=|step )(?P<job>[\w.+]{1,60})",
        DRIVER,
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.batch. Some of the step tasks have been OOM Killed.",
        with_header=True,
    ),
    Signal(
        "slurm.oom",
        ": Out Of Memory",
        r"srun: error: (?P<host>[^\s:]{1,255}): tasks? (?P<tasks>[\d,-]{1,200}): Out Of Memory",
        DRIVER,
        "srun: error: node001: task 0: Out Of Memory",
        with_header=True,
    ),
    Signal(
        "slurm.oom",
        "Exceeded job memory limit",
        r"slurmstepd: error: Exceeded job memory limit",
        DRIVER,
        "slurmstepd: error: Exceeded job memory limit at some point.",
        with_header=True,
    ),
)
"""The first says `oom-kill event(s)` up to 21.08; the last up to 18.08."""
NODE_FAILED = Signal(
    "slurm.node_failed",
    "srun: error: Node failure on ",
    r"srun: error: Node failure on (?P<host>\S{1,255})",
    DRIVER,
    "srun: error: Node failure on node007",
    with_header=True,
)
_DAEMONS = (*GCS, *RAYLET)
SIGNALS = (CANCELLED, *OOM, NODE_FAILED, RAYLET_STARTED)
DOC = "https://slurm.schedmd.com/sacct.html"

_MEMORY = pattern(r"(?P<amount>\d{1,15}(?:\.\d{1,6})?)(?P<unit>[KMGTP]?)(?P<per>[nc]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


class Ended(NamedTuple):
    """A job of Slurm that ended for one reason, with its records."""

    job: str
    """Without the step; empty if no record names it."""
    accounts: tuple[Event, ...]
    printed: tuple[Event, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """All its records."""
        return (*self.accounts, *self.printed)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Machines that the records name."""
        names = [name for e in self.accounts for name in expanded(e["failed_node"] or e["nodes"])]
        return tuple(dict.fromkeys((*names, *(e["host"] for e in self.printed if e["host"]))))

    def of(self, *names: str) -> str:
        """The first value of these fields."""
        return next((e[name] for e in self.events for name in names if e[name]), "")


def ended(case: Case, states: Iterable[str], printed: Sequence[Event]) -> list[Ended]:
    """The jobs of which the accounts have one of these states, or a record was printed."""
    wanted = tuple(states)
    accounts = [e for e in slurm_jobs.accounts(case) if _is_one_of(e["state"], wanted)]
    names = slurm_jobs.jobs_by_number(case)

    def job_of(event: Event) -> str:
        return slurm_jobs.name_of(event, names)

    jobs = dict.fromkeys(job_of(e) for e in (*accounts, *printed))
    if len(jobs) > 1 and "" in jobs:
        del jobs[""]
    only = next(iter(jobs), "") if len(jobs) == 1 else None
    return [
        Ended(
            job,
            tuple(e for e in accounts if job_of(e) == job),
            tuple(e for e in printed if job_of(e) in ((job, "") if only is not None else (job,))),
        )
        for job in jobs
    ]  # fmt: skip


def _is_one_of(state: str, wanted: Sequence[str]) -> bool:
    """Whether a state is one of these, also beside another one, or cut off: `REQUEUED NODE_FAIL`, `OUT_OF_ME+`."""
    return any(
        word in wanted or (word[-1:] == "+" and any(name.startswith(word[:-1]) for name in wanted))
        for word in state.split(" ")
    )


def accounts_of(case: Case, job: str) -> list[Event]:
    """All accounts of a job and its steps."""
    names = slurm_jobs.jobs_by_number(case)
    return [e for e in slurm_jobs.accounts(case) if not job or slurm_jobs.name_of(e, names) == job]


def memory(text: str) -> tuple[float, str]:
    """Bytes, and per what: `node`, `cpu` or empty; 0 for other text. A bare number is bytes for MaxRSS."""
    found = _MEMORY.fullmatch(text)
    if not found:
        return 0.0, ""
    return float(found["amount"]) * _UNITS[found["unit"]], {"n": "node", "c": "cpu"}.get(found["per"], "")  # fmt: skip


def entities(
    case: Case, job: Ended, everything: bool, but: Collection[str] = ()
) -> tuple[Entity, ...]:
    """What the end explains: the job, and the Ray nodes on its hosts, or all of them with the head and the drivers.

    If another job held a part of the cluster, `everything` is what this one held. `but`: ids of Ray nodes
    that it does not explain.
    """
    raylets = case.of("raylet.started")
    held, all_ = slurm_jobs.machines(job.accounts), slurm_jobs.machines_of(raylets)
    is_part = bool(held & all_) and bool(all_ - held)
    names = held if everything else {host.partition(".")[0] for host in job.hosts}
    everything = everything and not is_part
    nodes = [e for e in raylets if everything or e["hostname"].partition(".")[0] in names]
    found = [hosts.entity(f"slurm {job.job}")]
    found += [
        each for e in nodes if e["node"] not in but for each in hosts.of_node(e["node"], e["ip"])
    ]
    if everything:
        found += [hosts.entity(node) for node in case.ledger.node_ips if node not in but]
    heads = {source.node for source in case.sources if source.role in GCS}
    if everything or (is_part and any(e.source.node in heads for e in nodes)):
        found.append(hosts.entity("head"))
    return tuple(dict.fromkeys(found))


_AT_ONCE = 600.0
"""Seconds within which all nodes end with their job, and Ray records it."""


def lost_long_before(case: Case) -> set[str]:
    """Nodes that the GCS lost while the others ran on for long: an end of the whole job at once is not why.

    Only Ray's clocks are compared: Slurm's may be in another zone.
    """
    daemons = [e for e in case.events if e.at is not None and e.source.role in _DAEMONS]
    end = max((e.at or 0.0 for e in daemons), default=0.0)
    deaths = (e for e in daemons if e.kind == "node.dead" and (e.at or 0.0) < end - _AT_ONCE)
    return {node_of_death(e) for e in deaths}


def subjects(job: Ended) -> tuple[Subject, ...]:
    """The job, for reports."""
    return (Subject("slurm job", job.job or None, job.of("name") or None),)


def named(job: Ended) -> str:
    """`Slurm job 4711`, or `The Slurm job`."""
    return f"Slurm job {job.job}" if job.job else "The Slurm job"
