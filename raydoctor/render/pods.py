"""Leftover processes of pods, as raydoctor in each pod reports them -> page or JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raydoctor.model.text import cut, plural, size
from raydoctor.model.version import __version__
from raydoctor.observe.kubectl.choice import Pod
from raydoctor.observe.kubectl.leftovers import PodLeftovers
from raydoctor.render.json import dumps
from raydoctor.render.page import Page, line, paragraph

SCHEMA = "raydoctor/zombies/1"


def render(pods: Sequence[PodLeftovers], command: Callable[[Pod], str], width: int) -> Page:
    """The leftovers of each pod, and the `command` that ends them there."""
    page: Page = []
    for pod in pods:
        if not pod.leftovers and not pod.problem:
            continue
        page.append(line((f"pod {pod.pod.name}", "strong")))
        if pod.problem:
            page += paragraph(f"not searched: {pod.problem}", width, indent=2, style="warning")
        for row in pod.leftovers:
            page += _row(row, width)
        if pod.leftovers:
            page.append(line("To see the plan and end them:", indent=2))
            page.append(line((command(pod.pod), "code"), indent=4))
        page.append(())
    return [*page, line((_verdict(pods), "strong"))]


def _row(row: dict[str, Any], width: int) -> Page:
    held = row.get("memory")
    head = [f"pid {row.get('pid')}", str(row.get("kind"))]
    head += [size(held)] if isinstance(held, (int, float)) and held > 0 else []
    rows = [line((" · ".join(head), "path"), indent=2)]
    rows.append(line((cut(str(row.get("command")), width - 4), "code"), indent=4))
    return [*rows, *paragraph(str(row.get("why")), width, indent=4)]


def _verdict(pods: Sequence[PodLeftovers]) -> str:
    searched = [pod for pod in pods if not pod.problem]
    count = sum(len(pod.leftovers) for pod in searched)
    found = plural(count, "leftover") if count else "Nothing is left over"
    silent = len(pods) - len(searched)
    unasked = f"; {plural(silent, 'pod')} could not be searched" if silent else ""
    if not searched:
        return "No pod was searched."
    return f"{found} in {plural(len(searched), 'pod')}{unasked}."


def to_json(pods: Sequence[PodLeftovers]) -> str:
    """One JSON object, as `raydoctor zombies --format json` prints, with the pod of each row."""
    return dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "leftovers": [{**row, "pod": pod.pod.name} for pod in pods for row in pod.leftovers],
            "stale_sessions": [{**row, "pod": pod.pod.name} for pod in pods for row in pod.stale],
            "nodes": [{"pod": pod.pod.name, "problem": pod.problem} for pod in pods],
        }
    )
