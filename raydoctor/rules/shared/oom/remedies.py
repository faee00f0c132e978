"""What would have fitted: `memory=`, `num_cpus=` and node sizes from a memory monitor's report."""

from __future__ import annotations

import math

from raydoctor.model import paste
from raydoctor.model.values import Remedy
from raydoctor.rules.shared.oom.kills import Holder, Report

DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html"
_EARLY = 0.7
"""A threshold below this share of the limit was set by somebody."""
_HEADROOM = 1.15
"""A killed worker was still growing: its measured size is a lower bound."""


def hungriest(report: Report) -> tuple[str, list[Holder]]:
    """The function (or process) that held most, and its processes."""
    groups: dict[str, list[Holder]] = {}
    for holder in report.holders:
        groups.setdefault(holder.function if holder.is_worker else holder.name, []).append(holder)
    if not groups:
        return "", []
    name = max(groups, key=lambda n: sum(h.gb for h in groups[n]))
    return name, groups[name]


def remedies(worst: Report) -> tuple[Remedy, ...]:
    """What would have kept this node below its threshold, with the report's own numbers."""
    name, holders = hungriest(worst)
    if not holders:
        return (_more_memory(worst, None),)
    if not holders[0].is_worker:
        return (_not_a_worker(name, holders[0], worst), _more_memory(worst, None))
    each, running = max(h.gb for h in holders), len(holders)
    others = max(worst.used_gb - sum(h.gb for h in holders), 0.0)
    room = worst.threshold_gb - others
    fitting = int(room / (each * _HEADROOM))
    if running > 1 and fitting >= 1:
        return (
            _fewer(name, holders, min(fitting, running - 1), room),
            _more_memory(worst, running * each * _HEADROOM + others),
        )
    if holders[0].actor or "." in holders[0].name:
        return (
            _one_actor(name, each, room, _beside(worst, name)),
            _more_memory(worst, each * 1.5 + others),
        )
    return (
        _one_task(name, each, room, _beside(worst, name)),
        _more_memory(worst, each * 1.5 + others),
    )


def _fewer(name: str, holders: list[Holder], fitting: int, room: float) -> Remedy:
    """`memory=` and `num_cpus=` such that at most `fitting` run at once."""
    each, running = max(h.gb for h in holders), len(holders)
    share = math.floor(room / fitting * 10) / 10
    need = max(share, math.ceil(each * _HEADROOM * 10) / 10)
    cpus = max((h.cpus for h in holders), default=0.0) or 1.0
    num_cpus = math.ceil(running * cpus / fitting)
    decorated = f"class {name}" if holders[0].actor else name
    what = f"{name} at once instead of {running}"
    return Remedy(
        f"Run at most {fitting} {what}: {fitting} × {each:.2f} GiB fit the {room:.1f} GiB that it may use here",
        (
            paste.python(
                "@ray.remote(memory={amount} * 1024**{power})   # {name}: reserves {need:.1f} GiB each, so that Ray starts fewer",
                name=decorated,
                need=need,
                **_memory(need),
            ),
            paste.python(
                "@ray.remote(num_cpus={num_cpus})   # or: {running} ran at once with num_cpus={cpus:g}",
                num_cpus=num_cpus,
                running=running,
                cpus=cpus,
            ),
        ),
        doc=DOC,
    )


def _beside(worst: Report, name: str) -> str:
    """Who else holds much of the node: ` beside build_index (1.6 GB)`."""
    others = [h for h in worst.holders if h.function != name and h.gb > 0.2 * worst.used_gb]
    return f" beside {others[0].function} ({others[0].gb:.1f} GiB)" if others else ""


def _one_task(name: str, each: float, room: float, beside: str) -> Remedy:
    return Remedy(
        f"One {name} alone needs more than the {room:.2f} GiB that are left for it{beside} ({each:.2f} GiB and growing)",
        (
            paste.python(
                "# make the input of {name} smaller (batches, chunks, streaming), or give it a bigger node:",
                name=name,
            ),
            paste.python(
                "@ray.remote(memory={amount} * 1024**{power})   # {name}: only nodes with that much are used",
                name=name,
                **_memory(each * 1.5),
            ),
        ),
        doc=DOC,
    )


def _one_actor(name: str, each: float, room: float, beside: str) -> Remedy:
    return Remedy(
        f"Bound what actor {name} keeps: it held {each:.2f} GiB of the {room:.2f} GiB that are left for it{beside}",
        (
            paste.python(
                "# {name}: drop what is no longer needed, keep big values in the object store (ray.put) or on disk",
                name=name,
            ),
            paste.python(
                "@ray.remote(memory={amount} * 1024**{power}, max_restarts=1, max_task_retries=1)   # class {name}",
                name=name,
                **_memory(each * _HEADROOM),
            ),
        ),
        doc=DOC,
    )


def _not_a_worker(name: str, holder: Holder, worst: Report) -> Remedy:
    command = name if len(name) <= 60 else name[:57] + "…"
    return Remedy(
        f"The memory is held by pid {holder.pid} ({command}), not by a worker: killing workers cannot free it",
        (
            paste.python(
                "# {held:.1f} of {limit:.1f} GiB: keep big data out of the driver (pass refs, not values),",
                held=holder.gb,
                limit=worst.limit_gb,
            ),
            "# or run the driver elsewhere; keep other programs off the node",
        ),
        doc=DOC,
    )


def _more_memory(worst: Report, needed: float | None) -> Remedy:
    """A bigger node, or, where Ray was told to strike early, a threshold as it is by default.

    `needed`: what must stay below the threshold; half gigabytes, and never less than a quarter more."""
    if worst.threshold_gb < _EARLY * worst.limit_gb:
        percent = 100 * worst.threshold_gb / worst.limit_gb
        return Remedy(
            f"Or let Ray use more of the node: its threshold was set to {percent:.0f}% of {worst.limit_gb:.1f} GiB",
            (
                "unset RAY_memory_usage_threshold   # default: 0.95; before ray start, on every node",
            ),
            risk="disruptive",
            doc=DOC,
        )
    title = f"Or give node {worst.ip} more memory than its {worst.limit_gb:.1f} GiB"
    if needed and worst.threshold_gb:
        wanted = max(needed * worst.limit_gb / worst.threshold_gb, worst.limit_gb * 1.25)
        title = (
            f"Or give node {worst.ip} {math.ceil(wanted * 2) / 2:g} GiB of memory instead of {worst.limit_gb:.1f} GiB, "
            "for the same work at once"
        )
    return Remedy(title, risk="disruptive")


def _memory(gb: float) -> dict[str, int]:
    """A value for `memory=`, as people write it: an amount of MiB (power 2) or GiB (3)."""
    if gb < 10:
        return {"amount": math.ceil(gb * 1024), "power": 2}
    return {"amount": math.ceil(gb), "power": 3}
