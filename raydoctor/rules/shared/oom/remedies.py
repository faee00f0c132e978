"""The numbers of a memory monitor's report and the remedies made of them: `memory=`, `num_cpus=`, node sizes.

Every number of a remedy comes from one `Fit`, rounded once to hundredths of a GiB as Ray prints them, so that a reader
who checks a sentence gets the same result.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from raydoctor.model import paste
from raydoctor.model.values import Remedy
from raydoctor.rules.shared.oom.kills import MemoryUser, OomReport

DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html"
_EARLY = 0.7
"""A threshold below this share of the limit is a setting, not Ray's default."""
_GROWTH = 15
"""Percent added to a killed worker's memory: it was still growing, so its measured size is a lower bound."""
_ALONE = 50
"""The same for a single process that does not fit: how far it would have grown is unknown."""


def gib(amount: float) -> str:
    """`0.71 GiB`: two digits, as in Ray's reports, where a reader can look the number up."""
    return f"{amount:.2f} GiB"


def hungriest(report: OomReport) -> tuple[str, list[MemoryUser]]:
    """The function (or process) that held most, and its processes."""
    groups: dict[str, list[MemoryUser]] = {}
    for holder in report.holders:
        groups.setdefault(holder.function if holder.is_worker else holder.name, []).append(holder)
    if not groups:
        return "", []
    name = max(groups, key=lambda n: sum(h.gb for h in groups[n]))
    return name, groups[name]


class Fit(NamedTuple):
    """Memory in GiB that the largest function may use on a node, and the number of its processes that fit."""

    name: str
    holders: list[MemoryUser]
    each: float
    """The largest of its processes."""
    need: float
    """The same with `_GROWTH`, rounded up."""
    others: float
    """What everything else on the node used."""
    room: float
    """What is left for this function below the threshold, rounded down."""

    @property
    def running(self) -> int:
        """How many of its processes ran when Ray killed."""
        return len(self.holders)

    @property
    def most(self) -> int:
        """How many of them fit; 0 where a single one does not."""
        return min(_hundredths(self.room) // _hundredths(self.need), self.running - 1)

    @property
    def share(self) -> float:
        """What each of them may use, rounded down."""
        return math.floor(self.room / self.most * 100 + 1e-6) / 100

    @property
    def alone(self) -> float:
        """What the largest may need where a single one does not fit, rounded up."""
        return _grown(self.each, _ALONE)


def _fit(name: str, holders: list[MemoryUser], worst: OomReport) -> Fit:
    each = max(h.gb for h in holders)
    need = _grown(each, _GROWTH)
    others = max(worst.used_gb - sum(h.gb for h in holders), 0.0)
    # Usage had reached Ray's threshold: if the report does not contain it, the default may be too high.
    room = max(min(worst.threshold_gb, worst.used_gb) - others, 0.0)
    return Fit(name, holders, each, max(need, 0.01), others, math.floor(room * 100 + 1e-6) / 100)


def _grown(amount: float, percent: int) -> float:
    """The amount plus these percent, rounded up to hundredths."""
    return math.ceil(round(amount * (100 + percent), 6)) / 100


def _hundredths(amount: float) -> int:
    return round(amount * 100)


def remedies(worst: OomReport) -> tuple[Remedy, ...]:
    """What would have kept this node below its threshold, with the report's own numbers."""
    name, holders = hungriest(worst)
    if not holders:
        return (_more_memory(worst, None),)
    if not holders[0].is_worker:
        return (_not_a_worker(name, holders[0], worst), _more_memory(worst, None))
    fit = _fit(name, holders, worst)
    if fit.most >= 1:
        return (_fewer(fit), _more_memory(worst, fit.running * fit.share + fit.others))
    is_actor = holders[0].actor or "." in holders[0].name
    one = (_one_actor if is_actor else _one_task)(fit, _beside(worst, name))
    return (one, _more_memory(worst, fit.alone + fit.others))


def _fewer(fit: Fit) -> Remedy:
    """`memory=`, and `num_cpus=` where it gives the same number, such that at most `fit.most` run at once."""
    is_actor = fit.holders[0].actor
    noun = "actor" if is_actor else "task"
    plural = "" if fit.most == 1 else "s"
    return Remedy(
        f"Limit {fit.name} to {fit.most} concurrent {noun}{plural} instead of {fit.running}: {fit.most} × {gib(fit.share)} fit in the "
        f"{gib(fit.room)} that the other processes leave below Ray's threshold (the largest held {gib(fit.each)} when Ray killed)",
        (
            paste.python(
                "@ray.remote(memory={amount} * 1024**{power})   # {name}: each reserves {share:.2f} GiB, so that at most {most} run at once",
                most=fit.most,
                name=f"class {fit.name}" if is_actor else fit.name,
                share=fit.share,
                **_memory(fit.share),
            ),
            *_by_cpus(fit),
        ),
        doc=DOC,
    )


def _by_cpus(fit: Fit) -> tuple[str, ...]:
    """`num_cpus=`, if a whole number allows exactly `fit.most` at once on the CPUs that were in use."""
    cpus = max((h.cpus for h in fit.holders), default=0.0) or 1.0
    num_cpus = math.ceil(fit.running * cpus / fit.most)
    if math.floor(fit.running * cpus / num_cpus) != fit.most:
        return ()
    step = paste.python(
        "@ray.remote(num_cpus={num_cpus})   # or by CPUs: at most {most} at once; with num_cpus={cpus:g}, {running} ran",
        most=fit.most,
        num_cpus=num_cpus,
        running=fit.running,
        cpus=cpus,
    )
    return (step,)


def _beside(worst: OomReport, name: str) -> str:
    """The largest other relevant process: ` beside build_index (1.61 GiB)`."""
    others = [h for h in worst.holders if h.function != name and h.gb > 0.2 * worst.used_gb]
    return f" beside {others[0].function} ({gib(others[0].gb)})" if others else ""


def _one_task(fit: Fit, beside: str) -> Remedy:
    return Remedy(
        f"Make one {fit.name} task smaller: it needs {gib(fit.alone)} ({gib(fit.each)} measured, plus {_ALONE}% for growth), and "
        f"{gib(fit.room)} is left for it{beside}",
        (
            paste.python(
                "# reduce the input of {name} (batches, chunks, streaming), or run it on a larger node:",
                name=fit.name,
            ),
            paste.python(
                "@ray.remote(memory={amount} * 1024**{power})   # {name}: Ray starts it only on nodes with that much memory free",
                name=fit.name,
                **_memory(fit.alone),
            ),
        ),
        doc=DOC,
    )


def _one_actor(fit: Fit, beside: str) -> Remedy:
    if fit.running > 1:
        title = f"Keep each of the {fit.running} {fit.name} actors below {gib(fit.room / fit.running)}: the largest had grown to {gib(fit.each)}"
    else:
        grown = f"to {gib(fit.each)}" if fit.each > fit.room + 0.005 else "beyond that"
        title = f"Keep actor {fit.name} below {gib(fit.room)}, the memory left for it{beside}: it had grown {grown}"
    return Remedy(
        title,
        (
            paste.python(
                "# {name}: drop what is no longer needed; keep large values in the object store (ray.put) or on disk",
                name=fit.name,
            ),
            paste.python(
                "@ray.remote(memory={amount} * 1024**{power}, max_restarts=1, max_task_retries=1)   # class {name}: reserves "
                "this much on its node; it does not limit the actor",
                name=fit.name,
                **_memory(fit.room),
            ),
        ),
        doc=DOC,
    )


def _not_a_worker(name: str, holder: MemoryUser, worst: OomReport) -> Remedy:
    command = name if len(name) <= 60 else name[:57] + "…"
    return Remedy(
        f"Reduce the memory of pid {holder.pid} ({command}): it is not a worker, so Ray cannot free its {gib(holder.gb)}",
        (
            paste.python(
                "# it held {held:.2f} of {limit:.2f} GiB: keep large data out of the driver (pass refs, not values),",
                held=holder.gb,
                limit=worst.limit_gb,
            ),
            "# or run the driver on another machine, and keep other programs off this node",
        ),
        doc=DOC,
    )


def _more_memory(worst: OomReport, needed: float | None) -> Remedy:
    """A larger node, or Ray's default threshold where a lower one was set.

    `needed`: GiB that must stay below the threshold; rounded to half GiB, and at least a quarter more than now.
    """
    if worst.threshold_gb < _EARLY * worst.limit_gb:
        percent = 100 * worst.threshold_gb / worst.limit_gb
        return Remedy(
            f"Let Ray use more of node {worst.ip}: its threshold is set to {percent:.0f}% of {gib(worst.limit_gb)}",
            (
                "unset RAY_memory_usage_threshold   # default: 0.95; before ray start, on every node",
            ),
            risk="disruptive",
            doc=DOC,
        )
    title = f"Give node {worst.ip} more memory than its {gib(worst.limit_gb)}"
    if needed and worst.threshold_gb:
        wanted = max(needed * worst.limit_gb / worst.threshold_gb, worst.limit_gb * 1.25)
        title = (
            f"Give node {worst.ip} {math.ceil(wanted * 2) / 2:g} GiB of memory instead of {worst.limit_gb:g} GiB, "
            "so that the same work fits"
        )
    return Remedy(title, risk="disruptive")


def _memory(gb: float) -> dict[str, int]:
    """A value for `memory=`, as people write it: an amount of MiB (power 2) or GiB (3)."""
    if gb < 10:
        return {"amount": math.ceil(gb * 1024), "power": 2}
    return {"amount": math.ceil(gb), "power": 3}
