"""The numbers of a memory monitor's reports and the remedies made of them: `memory=`, `num_cpus=`, node sizes.

Every number of a remedy comes from one `Fit`, in hundredths of a GiB as Ray prints them, so that a reader who checks a
sentence gets the same result. `memory=` is a number that Ray's scheduler adds up: it starts as many tasks as its
`memory` resource holds, which a lowered threshold does not lower and which no task's real use changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raydoctor.cluster.resources import Needs
from raydoctor.model import paste
from raydoctor.model.text import cut, joined
from raydoctor.model.values import Remedy
from raydoctor.rules.shared.oom.kills import MemoryUser, OomReport

DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html"
_DEFAULT, ADVISED = 0.95, 0.85
"""Ray's default threshold, and the one that leaves its monitor time to act before the kernel does."""
MONITOR_FIRST = Remedy(
    "Let Ray's memory monitor act before the kernel does",
    (
        paste.shell(
            "export RAY_memory_usage_threshold={advised}   # on every node, before ray start, or before your program if it starts Ray (default: {default})",
            advised=ADVISED,
            default=_DEFAULT,
        ),
    ),
    risk="disruptive",
    doc=DOC,
)
_UNSET = "unset RAY_memory_usage_threshold   # on every node, or remove it from the unit file or pod spec that sets it. Then restart Ray"
_EARLY = 0.7
"""A threshold below this share of the limit is a setting, not Ray's default."""
_GROWTH = 2
"""A killed worker was still growing, so its measured size is a lower bound: twice as much is left for each."""


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


_OUTLIER = 4
"""How many times as much one process must hold as each of its equals."""
_MINOR = 0.05
"""Share of the used memory below which the known processes do not account for it."""


def is_minor(report: OomReport) -> bool:
    """Whether the processes that a report names hold so little that others must hold the memory."""
    return sum(h.gb for h in report.holders) < _MINOR * report.used_gb


def _find_holders(report: OomReport) -> Remedy:
    return Remedy(
        f"Find the processes that hold the memory of node {report.ip}: they may be outside Ray",
        (
            "ps -eo pid,user,rss,args --sort=-rss | head -15   # on that node, rss in KiB",
            "df -h /dev/shm   # objects of Ray's object store count as memory",
        ),
        doc=DOC,
    )


class Fit(NamedTuple):
    """Memory in GiB that the largest function may use on a node, and the number of its processes that fit."""

    name: str
    holders: list[MemoryUser]
    each: float
    """The largest of its processes in all reports: the survivors of a kill grow on."""
    others: float
    """What everything else on the node used."""
    allowed: float
    """What Ray allows all processes of the node."""
    room: float
    """What is left for this function below the threshold, rounded down."""

    @property
    def label(self) -> str:
        """The function or class as sentences name it."""
        return self.holders[0].label

    @property
    def running(self) -> int:
        """How many of its processes ran when Ray killed."""
        return len(self.holders)

    @property
    def most(self) -> int:
        """How many of them to run at once; 0 where a single one may not fit."""
        if self.running < 2 or self.each >= self.room:
            return 0
        return max(min(int(self.room / (_GROWTH * max(self.each, 0.01))), self.running - 1), 1)


def _fit(name: str, holders: list[MemoryUser], worst: OomReport, each: float) -> Fit:
    others = max(worst.used_gb - sum(h.gb for h in holders), 0.0)
    # Usage had reached Ray's threshold: if the report does not contain it, the default may be too high.
    allowed = min(worst.threshold_gb, worst.used_gb)
    room = math.floor(max(allowed - others, 0.0) * 100 + 1e-6) / 100
    return Fit(name, holders, each, others, allowed, room)


def fullest(episode: Sequence[OomReport]) -> OomReport:
    """The report with the most memory in its largest processes."""
    return max(episode, key=lambda r: (len(r.holders) > 0, sum(h.gb for h in r.holders[:3])))


def largest(episode: Sequence[OomReport], name: str) -> float:
    """GiB of this function's largest process in any of these reports: its one number in headline and remedies."""
    return max(
        (h.gb for r in episode for h in r.holders if name in (h.function, h.name)), default=0.0
    )


def beside_outlier(holders: list[MemoryUser]) -> list[MemoryUser]:
    """The others of its function, largest first, if one process held several times as much as each; else none."""
    others = holders[1:]
    return others if others and holders[0].gb >= _OUTLIER * others[0].gb else []


def remedies(episode: Sequence[OomReport], node: Needs) -> tuple[Remedy, ...]:
    """What would have kept this node below its threshold, with the reports' own numbers.

    `node`: its resources as Ray counts them (bytes of memory); empty if they are unknown.
    """
    worst = fullest(episode)
    return (*_of_the_report(episode, worst, node), *_default_threshold(worst))


def _of_the_report(
    episode: Sequence[OomReport], worst: OomReport, node: Needs
) -> tuple[Remedy, ...]:
    more = _threshold(worst)
    name, holders = hungriest(worst)
    if not holders:
        return (*more, *_more_memory(worst))
    if is_minor(worst):
        return (*more, _find_holders(worst), *_more_memory(worst))
    if not holders[0].is_worker:
        return (_not_a_worker(name, holders[0], worst), *more, *_more_memory(worst))
    fit = _fit(name, holders, worst, largest(episode, name))
    pids = {h.pid for h in holders}
    is_actor = any(h.pid in pids and (h.actor or "." in h.name) for r in episode for h in r.holders)
    beside = also_large(worst, name)
    # Of tasks, those that hold little may have just started.
    if is_actor and (others := beside_outlier(holders)):
        return (*more, _of_outlier(holders[0], others), *_more_memory(worst, fit, beside))
    if fit.most and not is_actor:
        return (_fewer_tasks(fit, node), *more, *_more_memory(worst, fit, beside))
    one = (_actors if is_actor else _one_task)(fit, beside)
    return (*more, one, *_more_memory(worst, fit, beside))


def _of_outlier(holder: MemoryUser, others: list[MemoryUser]) -> Remedy:
    """One actor that holds far more than its equals keeps data that they do not keep."""
    name, count = holder.function, len(others)
    return Remedy(
        f"Find out what {name} (pid {holder.pid}) keeps: it held {gib(holder.gb)}, and the other {count} at most {gib(others[0].gb)}",
        (
            paste.python(
                "# {name}: delete values after their last use, also in lists of its module",
                name=name,
            ),
        ),
        doc=DOC,
    )


def _fewer_tasks(fit: Fit, node: Needs) -> Remedy:
    """`num_cpus=` where a whole number does it, and `memory=`, such that exactly `fit.most` run at once on the node."""
    plural = "" if fit.most == 1 else "s"
    by_cpus = list(_by_cpus(fit, node.get("CPU", 0.0)))
    by_memory = _by_memory(fit, node.get("memory", 0.0), "or by memory: " if by_cpus else "")
    return Remedy(
        f"Limit {fit.label} to {fit.most} concurrent task{plural} instead of {fit.running}",
        (*by_cpus, *by_memory, _reason(fit)),
        doc=DOC,
    )


def _reason(fit: Fit) -> str:
    """Why `fit.most` processes fit, as a comment below the code."""
    twice = _GROWTH * fit.each
    allow = " (allow for {twice} each)" if fit.most * twice <= fit.room else ""
    room = "the other processes leave {room} of the {allowed} that Ray allows"
    room = "Ray allows {allowed}" if fit.room >= fit.allowed else room
    values = {"each": fit.each, "twice": twice, "room": fit.room, "allowed": fit.allowed}
    template = f"# Why: the largest held {{each}} and was still growing{allow}, and {room}"
    used = {name: gib(value) for name, value in values.items() if f"{{{name}}}" in template}
    return paste.python(template, **used)


def _plan(fit: Fit) -> str:
    """Why `fit.most` processes fit, in numbers that a reader can divide."""
    each = _GROWTH * fit.each
    twice = f" (allow for {gib(each)} each)" if fit.most * each <= fit.room else ""
    room = f"the other processes leave {gib(fit.room)} of the {gib(fit.allowed)} that Ray allows"
    if fit.room >= fit.allowed:
        room = f"Ray allows {gib(fit.allowed)}"
    return f"the largest held {gib(fit.each)} and was still growing{twice}, and {room}"


def _by_memory(fit: Fit, total: float, begin: str) -> Iterator[str]:
    """A share of the node's `memory` resource (bytes) of which it holds `fit.most`, and half a share.

    The half leaves a margin, because Ray measures the free memory again at each start.
    """
    if not total:
        yield paste.python(
            "nodes = [n['Resources']['memory'] for n in ray.nodes() if n['Alive']]   # {name}: at most {most} at once on each",
            name=fit.name,
            most=fit.most,
        )
        yield paste.python(
            "{function:name}.options(memory=int(max(nodes) / {shares})).remote(ARGUMENTS)",
            function=fit.name,
            shares=fit.most + 0.5,
        )
        return
    if share := int(total / 2**30 / (fit.most + 0.5) * 100) / 100:
        yield paste.python(
            f"@ray.remote(memory=int({{share}} * 1024**3))   # {begin}a share of the {{total}} that Ray counts on "
            "this node. It limits how many run at once, not what {name} uses",
            share=share,
            total=gib(total / 2**30),
            name=fit.name,
        )


def _by_cpus(fit: Fit, total: float) -> Iterator[str]:
    """`num_cpus=`, if a whole number allows exactly `fit.most` at once on the node's CPUs."""
    num_cpus = int(total) // fit.most
    if num_cpus and int(total) // num_cpus == fit.most:
        yield paste.python(
            "@ray.remote(num_cpus={num_cpus})   # of the {total:g} CPUs of this node: {most} {name} at once",
            num_cpus=num_cpus,
            name=fit.name,
            total=total,
            most=fit.most,
        )


def also_large(worst: OomReport, name: str) -> list[MemoryUser]:
    """The other processes that matter for the sum: a fifth of the used memory or more each."""
    return [
        h for h in worst.holders if name not in (h.function, h.name) and h.gb > 0.2 * worst.used_gb
    ]


def _others(fit: Fit, beside: list[MemoryUser]) -> str:
    """`train (1.28 GiB) and other processes (0.92 GiB)`: with the room, the printed numbers give what Ray allows."""
    named = [f"{h.label} ({gib(h.gb)})" for h in beside]
    rest = round(fit.allowed, 2) - round(fit.room, 2) - sum(round(h.gb, 2) for h in beside)
    return joined([*named, f"other processes ({gib(max(rest, 0.0))})"])


def _smaller(what: str, fit: Fit, beside: list[MemoryUser]) -> str:
    return (
        f"Reduce the memory of {what} to clearly less than {gib(fit.room)} (it held {gib(fit.each)}). "
        f"Ray allows {gib(fit.allowed)}, and {_others(fit, beside)} use the rest"
    )


def _one_task(fit: Fit, beside: list[MemoryUser]) -> Remedy:
    return Remedy(
        _smaller(f"the largest {fit.label} task", fit, beside),
        (
            paste.python(
                "# {name}: smaller batches, chunks or streaming. memory= does not limit what a task uses",
                name=fit.name,
            ),
        ),
        doc=DOC,
    )


def _actors(fit: Fit, beside: list[MemoryUser]) -> Remedy:
    """Fewer or smaller actors: a restart repeats the kill, and with `memory=` the other actors never start."""
    if fit.most:
        return Remedy(
            f"Start at most {fit.most} of the {fit.running} {fit.name} actors on this node: {_plan(fit)}",
            (
                paste.python(
                    "actors = [{actor:name}.remote() for _ in range({most})]",
                    actor=fit.name,
                    most=fit.most,
                ),
            ),
            doc=DOC,
        )
    if fit.running > 1:
        title = f"Keep each of the {fit.running} {fit.name} actors below {gib(fit.room / fit.running)}: the largest grew to {gib(fit.each)}"
    else:
        title = _smaller(f"actor {fit.name}", fit, beside)
    return Remedy(
        title,
        (
            paste.python(
                "# {name}: delete values after their last use, or keep them on disk",
                name=fit.name,
            ),
        ),
        doc=DOC,
    )


def _not_a_worker(name: str, holder: MemoryUser, worst: OomReport) -> Remedy:
    command = cut(name, 60)
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


def _threshold(worst: OomReport) -> tuple[Remedy, ...]:
    """Ray's default threshold, where a lower one was set."""
    if worst.threshold_gb >= _EARLY * worst.limit_gb:
        return ()
    percent = 100 * worst.threshold_gb / worst.limit_gb
    return (
        Remedy(
            f"Raise Ray's memory threshold on node {worst.ip}: it is set to {percent:.0f}% of {gib(worst.limit_gb)}",
            (_UNSET,),
            risk="disruptive",
            doc=DOC,
        ),
    )


def _default_threshold(worst: OomReport) -> tuple[Remedy, ...]:
    """Ray's default threshold, where one somewhat below it was set, perhaps for a test."""
    gained = _DEFAULT * worst.limit_gb - worst.threshold_gb
    is_lowered = worst.threshold_gb < (ADVISED - 0.005) * worst.limit_gb
    if not is_lowered or _threshold(worst):
        return ()
    percent = 100 * worst.threshold_gb / worst.limit_gb
    return (
        Remedy(
            f"Instead of adding memory, restore the threshold of node {worst.ip}, which was lowered to {percent:.0f}% of {gib(worst.limit_gb)}: "
            f"Ray's default of 95% allows {gib(gained)} more",
            (_UNSET,),
            risk="disruptive",
            doc=DOC,
        ),
    )


def _more_memory(
    worst: OomReport, fit: Fit | None = None, beside: Sequence[MemoryUser] = ()
) -> tuple[Remedy, ...]:
    """A larger node, unless a lowered threshold is what limits this one.

    Below its threshold, every process of `fit` and `beside` can double; rounded up to half GiB, and at least a quarter
    more than now.
    """
    if _threshold(worst):
        return ()
    title = f"Give node {worst.ip} more memory than its {gib(worst.limit_gb)}"
    if fit and worst.threshold_gb:
        needed = _GROWTH * fit.each * fit.running + fit.others
        needed += (_GROWTH - 1) * sum(h.gb for h in beside)
        wanted = max(needed * worst.limit_gb / worst.threshold_gb, worst.limit_gb * 1.25)
        count = f"{fit.running} × " if fit.running > 1 else ""
        names = joined([f"{count}{fit.label}", *dict.fromkeys(h.label for h in beside)])
        title = (
            f"Raise the memory of node {worst.ip} from {worst.limit_gb:g} GiB to {math.ceil(wanted * 2) / 2:g} GiB: "
            f"enough for {names} to grow to twice the measured size"
        )
    return (Remedy(title, risk="disruptive"),)
