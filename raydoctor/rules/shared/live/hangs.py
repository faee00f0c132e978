"""Findings about hangs that `raydoctor/waits/` established in a live collection, current or from a capture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from raydoctor.case import Case, evidence
from raydoctor.cluster import ended
from raydoctor.cluster import tables as live
from raydoctor.cluster.calls import QUEUED
from raydoctor.model.entities import Entity
from raydoctor.model.text import called, join_names
from raydoctor.model.values import Finding, Link, Remedy, Severity

if TYPE_CHECKING:
    from raydoctor.waits.candidates import UnfinishedTask
    from raydoctor.waits.hung import Hung, HungGroup, HungReport

_LINKS = 3
_SUBJECTS = 10


@lru_cache(maxsize=1)  # four rules need the same report
def _report(case: Case) -> HungReport | None:
    """What hangs; None if no process was sampled, unless one of them has ended without a sample."""
    if live.looked(case, "samples") is None and not ended.workers(case):
        return None
    from raydoctor.waits.hung import hung  # most captures hold no samples

    return hung(case)


def groups(case: Case) -> tuple[HungGroup, ...]:
    """Groups of processes that hang together."""
    report = _report(case)
    is_sampled = live.looked(case, "samples") is not None
    found = report.groups if report else ()
    return tuple(each for each in found if is_sampled or each.first.kind == "process-ended")


def open_waits(case: Case) -> list[Hung]:
    """The long waits of which it is not known whether they will end, one for each function and wait.

    Not those of coroutines that merely await, as in healthy async actors and servers, unless others wait for
    them and nothing makes progress.
    """
    report = _report(case)
    if report is None:
        return []
    waits = (each.hung for each in report.open if not each.is_known)
    found = [each for each in waits if each.kind != "unknown" or each.work.id in report.idle]
    return list({(each.work.name, each.summary): each for each in found}.values())


def early_waits(case: Case) -> tuple[Hung, ...]:
    """The waits that would count as hung if they were longer, the oldest first, unless they are usual."""
    report = _report(case)
    return report.early if report and not report.is_conclusive else ()


def idle_tasks(case: Case) -> list[UnfinishedTask]:
    """Tasks whose processes were not sampled, if no running task shows progress."""
    if not live.rows(case, "tasks"):
        return []
    from raydoctor.waits.candidates import idle  # most captures hold no tasks

    sampled = {(row["node_id"], row.pid) for row in live.rows(case, "samples")}
    return [work for work in idle(case) if (work.node, work.pid) not in sampled]


def polling(case: Case) -> list[tuple[Hung, str]]:
    """Methods that alone run, polling, while calls of the same actor are queued behind them, and these calls' names.

    Such a method never ends if it checks for what the queued calls would set.
    """
    report = _report(case)
    found = []
    idle = [each.hung for each in report.open if each.hung.work.id in report.idle] if report else []
    for each in (*report.working, *idle) if report else ():
        behind = [
            row["name"]
            for row in live.rows(case, "tasks")
            if row["actor_id"] == each.work.actor and row["state"] in QUEUED
        ]
        if each.kind == "sleep" and each.work.kind == "method" and behind:
            found.append((each, join_names(behind)))
    running = [row for row in live.rows(case, "tasks") if row["state"] == "RUNNING"]
    return found if len(found) == len(running) else []


def blocks_its_loop(group: HungGroup) -> bool:
    """Whether the cause is an async actor that blocks its own event loop."""
    return any(h.kind == "async-blocked" and h.verdict for h in group.culprits)


def is_nested(group: HungGroup) -> bool:
    """Whether it is a cycle in which tasks wait for resources that the others hold."""
    return any(h.kind in ("resources", "placement-group") for h in group.cycle)


def finding(
    group: HungGroup, headline: str, remedies: Iterable[Remedy], severity: Severity | None = None
) -> Finding:
    """One finding for a group, with all of its tasks and actors."""
    shown = (group.cycle or group.culprits)[:_LINKS]
    return Finding(
        headline,
        tuple(link for h in shown for link in links(h)),
        explains=(Entity("waiting", "cluster"), *entities(group)),
        subjects=tuple(h.work.subject for h in group.all[:_SUBJECTS]),
        count=len(group.all),
        severity=severity,
        remedies=tuple(remedies),
    )


def links(hung: Hung) -> Iterator[Link]:
    """The evidence of one wait, or the row of its task."""
    yield from hung.links or (Link(hung.work.event, f"{hung.work.label} {hung.summary}"),)


def entities(group: HungGroup) -> Iterator[Entity]:
    """All tasks and actors that hang, as other rules name them."""
    for hung in group.all:
        yield Entity("task", hung.work.id)
        if hung.work.actor:
            yield Entity("waiting-actor", hung.work.actor)
    for hung in group.culprits:
        if hung.kind == "async-blocked" and hung.work.pid:
            yield Entity("event-loop", str(hung.work.pid))
        if hung.waiting and (gone := hung.waiting.ended):
            yield from (Entity("process", f"{gone.event.source.node}/{pid}") for pid in gone.pids)


def waiting(group: HungGroup) -> str:
    """`, and 36 train tasks and the driver wait for it`, or nothing."""
    if not (those := behind(group)):
        return ""
    wait = "waits" if len(group.behind) == 1 else "wait"
    them = "them" if len(group.culprits) > 1 else "it"
    return f", and {those} {wait} for {them}"


def behind(group: HungGroup) -> str:
    """`36 train() tasks and the driver`: what waits for the culprits; empty if nothing does."""
    tasks = [h for h in group.behind if h.work.kind != "driver"]
    drivers = len(group.behind) - len(tasks)
    names = {h.work.name for h in tasks}
    noun = f"{called(names.pop())} task" if len(names) == 1 else "task"
    parts = [evidence.many(len(tasks), noun)] if tasks else []
    parts += ["the driver" if drivers == 1 else f"{drivers} drivers"] if drivers else []
    return " and ".join(parts)
