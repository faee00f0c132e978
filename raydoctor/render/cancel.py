"""The plan or the result of a cancel -> page or JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence

from raydoctor.act.cancel.ladder import Cancellation, Taken
from raydoctor.act.cancel.outlook import outlook
from raydoctor.act.cancel.steps import Step
from raydoctor.act.cancel.target import CancelTarget
from raydoctor.model import text
from raydoctor.model.version import __version__
from raydoctor.render.json import dumps
from raydoctor.render.page import MAX_WIDTH, Page, columns, line, paragraph

SCHEMA = "raydoctor/cancel/1"
_KINDS = {"task": "task", "method": "actor method", "creation": "actor creation"}
_OUTCOMES = {
    "ended": ("ended it", "ok"),
    "no-effect": ("no effect", "warning"),
    "retried": ("ended it, but it was retried", "warning"),
    "skipped": ("not possible", "dim"),
    "unknown": ("effect unknown", "warning"),
}
_LISTED = 20


def plan(target: CancelTarget, steps: Sequence[Step], grace: float, width: int = MAX_WIDTH) -> Page:
    """The steps that would be taken."""
    page = _head(target)
    if target.state == "ended":
        return [*page, line("The task has already ended: there is nothing to cancel.")]
    if not steps:
        return [*page, *paragraph("No step applies to it. --kill-actor ends the actor.", width)]
    page += columns(
        [(f"{n}", (step.name, "strong"), step.does) for n, step in enumerate(steps, 1)], 2
    )
    if len(steps) > 1:
        sentence = (
            f"Each step only if the task is still running {grace:g} s after the previous one."
        )
        page += paragraph(sentence, width, indent=2, style="dim")
    return page


def several(targets: Sequence[CancelTarget], wanted: str) -> Page:
    """Tasks of which one is to be chosen."""
    rows = [(each.task, each.name, each.ray_state, *_where(each)) for each in targets[:_LISTED]]
    page = [
        line((f"{text.plural(len(targets), 'task')} called {wanted}", "strong")),
        *columns(rows, 2),
    ]
    if len(targets) > _LISTED:
        page.append(line((f"… and {len(targets) - _LISTED:,} more", "dim"), indent=2))
    return [*page, line("Name one by its id.")]


def render(made: Cancellation, width: int = MAX_WIDTH) -> Page:
    """The steps taken, their results, and the state afterwards."""
    page = _head(made.target)
    page += columns([_row(step, made.target) for step in made.steps], indent=2)
    for step in made.steps:
        if step.why:
            page += paragraph(f"{step.step}: {step.why}", width, indent=4, style="dim")
    if made.problem:
        page += paragraph(made.problem, width, indent=4, style="warning")
    page += _left_behind(made, width)
    if made.silence:
        page += paragraph(
            f"The cluster stopped answering: {made.silence}", width, indent=2, style="warning"
        )
    page.append(line(_verdict(made)))
    for sentence in outlook(made):
        page += paragraph(sentence, width, indent=2)
    return page


def _verdict(made: Cancellation) -> tuple[str, str]:
    left = [
        text.plural(len(each), *words)
        for each, words in (
            (made.processes, ("process", "processes")),
            (made.tasks, ("task",)),
        )
        if each
    ]
    if made.ended and left:
        return (f"Ended, but what it started is still running: {text.joined(left)}.", "error")
    if made.ended:
        return ("Ended.", "ok")
    if made.silence:
        return ("Unknown whether it has ended.", "warning")
    return ("Not ended.", "error")


def _head(target: CancelTarget) -> Page:
    parts = [_KINDS[target.kind], target.ray_state, *_where(target)]
    if target.started_at is not None:
        parts.insert(2, f"for {text.duration(max(0.0, time.time() - target.started_at))}")
    if target.attempt:
        parts.append(f"attempt {target.attempt}")
    if target.owner_pid:
        parts.append(f"owner pid {target.owner_pid}")
    return [
        line((target.name, "strong"), f"  {target.task}"),
        line((" · ".join(parts), "path"), indent=2),
    ]


def _where(target: CancelTarget) -> list[str]:
    return [f"pid {target.pid} on {target.ip}"] if target.pid else []


def _row(step: Taken, target: CancelTarget) -> tuple[str | tuple[str, str], ...]:
    words, style = _OUTCOMES[step.outcome]
    whose = "" if step.task == target.task else f"of its task {text.short_id(step.task)}"
    return (step.step, (words, style), (text.duration(step.seconds), "dim"), whose)


def _left_behind(made: Cancellation, width: int) -> Page:
    page: Page = []
    for each in made.survivors:
        what = f"pid {each.identity.pid} outlived the task: {each.command}"
        page.append(line((text.cut(text.one_line(what), width - 2), "code"), indent=2))
        if each.outcome == "gone":
            page.append(line(("ended", "ok"), indent=4))
        else:
            page += paragraph(f"{each.outcome}: {each.reason}", width, indent=4, style="error")
    for child in made.children:
        sentence = f"a task that it submitted is still running: {child.name} {child.task}"
        page += paragraph(sentence, width, indent=2, style="warning")
    if made.silence and made.ended:
        sentence = "whether tasks that it submitted still run is unknown"
        named = ", ".join(f"{each.name} {each.task}" for each in made.unknown[:_LISTED])
        page += paragraph(
            f"{sentence}: {named}" if named else sentence, width, indent=2, style="warning"
        )
    return page


# ------------------------------------------------------------------ JSON


def to_json(made: Cancellation) -> str:
    """One JSON object. Keys are added, never renamed."""
    return dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "target": _target(made.target),
            "steps": [step._asdict() for step in made.steps],
            "ended": made.ended,
            "complete": made.ended and not (made.silence or made.processes or made.tasks),
            "ended_by": made.by or None,
            "accepted": made.was_accepted,
            "leftovers": [*_processes(made, gone=False), *map(_target, made.children)],
            "subprocesses": _processes(made, gone=True),
            "state": made.last.get("state"),
            "error_type": made.last.get("error_type"),
            "problem": made.problem or made.silence or None,
            "unknown": [_target(each) for each in made.unknown],
            "next": outlook(made),
        }
    )


def plan_to_json(target: CancelTarget, steps: Sequence[Step]) -> str:
    """The plan as one JSON object."""
    planned = [{"step": step.name, "does": step.does} for step in steps]
    return _nothing_done(_target(target), target.state == "ended", plan=planned)


def several_to_json(targets: Sequence[CancelTarget], wanted: str) -> str:
    """Tasks of which one is to be chosen."""
    return _nothing_done(None, False, wanted=wanted, candidates=[_target(each) for each in targets])


def _nothing_done(target: object, ended: bool, **more: object) -> str:
    plain = {"schema": SCHEMA, "version": __version__, "target": target, "ended": ended}
    return dumps({**plain, "steps": [], "leftovers": [], **more})


def _target(target: CancelTarget) -> dict[str, object]:
    return {
        "kind": target.kind,
        "id": target.task,
        "name": target.name,
        "state": target.ray_state,
        "attempt": target.attempt,
        "pid": target.pid or None,
        "ip": target.ip or None,
        "node_id": target.node or None,
        "worker_id": target.worker or None,
        "owner_id": target.owner or None,
        "job_id": target.job,
        "actor_id": target.actor or None,
        "identity": target.identity,
    }


def _processes(made: Cancellation, gone: bool) -> list[dict[str, object]]:
    return [
        {
            "kind": "process",
            "pid": each.identity.pid,
            "started_at": each.identity.started_at,
            "command": each.command,
            "outcome": each.outcome,
            "reason": each.reason,
        }
        for each in made.survivors
        if (each.outcome == "gone") == gone
    ]
