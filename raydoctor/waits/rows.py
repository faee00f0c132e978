"""Hung work as plain values: the rows of `raydoctor hung --format json` and of `raydoctor watch`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raydoctor.cluster.samples import SampledProcess
from raydoctor.model import text
from raydoctor.model.values import Gap
from raydoctor.waits.hung import Hung, HungReport


def row(hung: Hung, group: int | None) -> dict[str, Any]:
    """One hung task, actor or driver; `group` is the number of its group. Keys are added, never renamed."""
    work, process = hung.work, hung.work.process
    share = process.cpu_share if process else None
    return {
        "kind": hung.kind,
        "task": {"id": work.id, "name": work.name},
        "actor": {"id": work.actor, "class": work.class_name} if work.actor else None,
        "pid": work.pid,
        "node": work.node or None,
        "age_s": round(work.age, 3),
        "state": work.state,
        "cpu_percent": None if share is None else round(100 * share, 1),
        "waits_for": [each._asdict() for each in hung.targets],
        "stack": list(_threads(process)) if process else [],
        "evidence": list(hung.evidence),
        "words": hung.summary,
        "why": hung.reason,
        "place": hung.place._asdict() if hung.place else None,
        "exact": hung.waiting.exact if hung.waiting else True,
        "group": group,
    }


def _threads(process: SampledProcess) -> Iterable[dict[str, Any]]:
    for thread in process.last.threads:
        if thread.frames:
            frames = [
                {"function": f.function, "file": f.file, "line": f.line} for f in thread.frames
            ]
            yield {"thread": thread.name, "tid": thread.tid, "frames": frames}


def unseen(found: HungReport) -> list[Gap]:
    """The gap for tasks and drivers that were not sampled, if there are any."""
    if not found.unseen:
        return []
    names = text.join_names(w.label for w in found.unseen)
    why = f"{names} may hang; their stacks could not be read"
    hint = "Run raydoctor on their nodes as the user of Ray (or as root), with py-spy installed."
    count = text.plural(len(found.unseen), "task or driver", "tasks and drivers")
    return [Gap(f"the stacks of {count}", why, hint)]
