"""The state of a cluster -> a page, a section of a live report, or JSON.

JSON (`raydoctor/status/1`): keys are added, never renamed; a part that could not be read is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from raydoctor.cluster import resources
from raydoctor.model import text
from raydoctor.model.status import (
    EnvironmentBuild,
    Gauge,
    LiveStatus,
    ResourceUse,
    SilentNode,
    TaskAge,
    TaskCounts,
    WaitingGroup,
)
from raydoctor.model.values import Gap
from raydoctor.model.version import __version__
from raydoctor.render import json
from raydoctor.render.page import MAX_WIDTH, Line, Page, Part, columns, fitted, line, paragraph

SCHEMA = "raydoctor/status/1"
SECTION = 12
"""Lines of the section in a report."""
_LABEL = 14
_ON_SCREEN = 10
"""Lines of pending tasks."""
_RESOURCES = 3
"""Lines of resources."""
_DOT = " · "
_BUILDS = 3
"""Environments that the page of a cluster shows."""
_LEVELS = {"ok": "", "near": "warning", "over": "error"}
_BYTES = ("memory", "object_store_memory")


@dataclass(frozen=True, slots=True)
class StatusView:
    """What `raydoctor status` shows."""

    status: LiveStatus
    gaps: tuple[Gap, ...]
    """The parts that could not be read."""
    address: str
    """Of the GCS."""


# ------------------------------------------------------------------ JSON


def to_json(view: StatusView) -> str:
    """The state as one JSON object."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "address": view.address,
            **json.status(view.status),
            "gaps": [json.gap(gap) for gap in view.gaps],
        }
    )


# ------------------------------------------------------------------ pages


def render(view: StatusView, width: int = MAX_WIDTH, *, is_whole: bool = False) -> Page:
    """The whole page; `is_whole`: with all groups of pending tasks."""
    at = text.moment(view.status.at, "%H:%M:%S")
    page: Page = [line(("Cluster", "strong"), f" {view.address}", (f"  {at}", "dim"))]
    builds = len(view.status.builds) if is_whole else _BUILDS
    before = _before(view.status, width, None if is_whole else _RESOURCES)
    after = _after(view.status, builds)
    waits = _waits(view.status, None if is_whole else _ON_SCREEN)
    page += [fitted(each, width) for each in (*before, *waits, *after)]
    for gap in view.gaps:
        if is_whole or not gap.optional:
            problem = f"unknown: {gap.what}: {gap.why}. {gap.hint}".rstrip()
            page += paragraph(problem, width, 2, 2, "dim" if gap.optional else "warning")
    return page


def section(status: LiveStatus, width: int) -> Page:
    """The section of a report: at most `SECTION` lines."""
    at = text.moment(status.at, "%H:%M:%S")
    before, after = _before(status, width, 1), _after(status, 1)
    waits = _waits(status, SECTION - 1 - len(before) - len(after))
    page = [fitted(each, width) for each in (*before, *waits, *after)]
    return [line(("Status", "strong"), (f"  {at}", "dim")), *page]


def _before(status: LiveStatus, width: int, most: int | None) -> Page:
    resources = _resources(status.resources, width - _LABEL - 2, most)
    return [
        _row("nodes", _nodes(status)),
        *(_row("", [_silent(each)]) for each in status.silent),
        *(_row("" if n else "resources", [each]) for n, each in enumerate(resources)),
        _row("tasks", _tasks(status.tasks)),
    ]


def _waits(status: LiveStatus, most: int | None) -> Page:
    """One line for each of the largest groups of pending tasks, in at most `most` lines."""
    waits = status.tasks.waits if status.tasks else ()
    shown = waits if most is None or len(waits) <= most else waits[: most - 1]
    page = columns([_wait(group) for group in shown], indent=4)
    if len(shown) < len(waits):
        left = sum(each.count for each in waits[len(shown) :])
        page.append(line((f"… and {left:,} more, see raydoctor status -v", "dim"), indent=4))
    return page


def _after(status: LiveStatus, builds: int) -> Page:
    page = []
    if status.actors is not None:
        page.append(_row("actors", [_counted(status.actors)]))
    for what in ("memory", "disk"):
        of_kind = [each for each in status.gauges if each.what == what]
        page.append(_row(what, _fullest(of_kind, status.nodes)))
    more = len(status.builds) - builds
    for number, build in enumerate(status.builds[:builds], 1):
        is_last = number == builds
        page += build_lines(build, f" (and {more:,} more)" if more > 0 and is_last else "")
    return page


def _row(label: str, parts: Iterable[Part]) -> Line:
    return line((f"{label:<{_LABEL}}", "dim"), *parts, indent=2)


def _nodes(status: LiveStatus) -> Iterator[Part]:
    yield f"{status.nodes:,} alive"
    if status.draining:
        yield (f" ({status.draining:,} draining)", "warning")
    if status.dead_nodes:
        yield ", "
        yield (f"{status.dead_nodes:,} dead", "warning")
    if status.workers is not None and status.drivers is not None:
        workers, drivers = (
            text.plural(status.workers, "worker"),
            text.plural(status.drivers, "driver"),
        )
        yield f"; {workers}, {drivers}"


def _silent(node: SilentNode) -> Part:
    raylet = f"raylet (pid {node.pid}) is stopped" if node.pid else "raylet is gone"
    return f"node {node.node[:8]} does not answer: its {raylet}", "error"


def _resources(uses: Iterable[ResourceUse], width: int, most: int | None) -> list[str]:
    """Lines of resources, at most `most`; the last one says how many more there are."""
    lines: list[list[str]] = [[]]
    for each in map(_use, uses):
        if lines[-1] and text.cells(_DOT.join([*lines[-1], each])) > width:
            lines.append([])
        lines[-1].append(each)
    if most is not None and (left := sum(map(len, lines[most:]))):
        lines = lines[:most]
        while text.cells(_DOT.join([*lines[-1], more := f"{left:,} more"])) > width and lines[-1]:
            lines[-1].pop()
            left += 1
        lines[-1].append(more)
    return [_DOT.join(each) for each in lines if each] or ["unknown"]


def _use(use: ResourceUse) -> str:
    if use.name in _BYTES:
        used = "?" if use.used is None else text.size(use.used)
        name = "object store" if use.name == "object_store_memory" else "requested memory"
        return f"{used} of {text.size(use.total)} {name}"
    used = "?" if use.used is None else f"{use.used:g}"
    return f"{used} of {use.total:g} {resources.unit(use.name, use.total)}"


def _tasks(tasks: TaskCounts | None) -> Iterator[Part]:
    if tasks is None:
        yield ("unknown", "warning")
        return
    yield f"{tasks.running:,} running{_oldest(tasks.oldest_running)}, "
    yield f"{tasks.pending:,} pending{_oldest(tasks.oldest_pending)}"


def _oldest(task: TaskAge | None) -> str:
    if task is None or not task.age:
        return ""
    return f" (oldest: {text.cut(task.name, 24)}, {text.duration(task.age)})"


def _wait(group: WaitingGroup) -> list[Part]:
    name = f"{group.count:,} × {text.cut(group.name, 24)}"
    return [name, text.duration(group.oldest) if group.oldest else "", group.reason]


def _counted(states: Mapping[str, int]) -> str:
    """`3 alive, 1 pending creation, 2 dead`: what has ended last."""
    ordered = sorted(states.items(), key=lambda each: (each[0] == "DEAD", each[0]))
    found = [f"{number:,} {state.lower().replace('_', ' ')}" for state, number in ordered]
    return ", ".join(found) or "none"


def _fullest(gauges: list[Gauge], nodes: int) -> Iterator[Part]:
    """The gauge that is nearest to its threshold, how many there are, and how many nodes have none."""
    if gauges:
        first = max(gauges, key=lambda each: each.share / each.threshold)
        yield (f"{first.share:.0%}", _LEVELS[first.level])
        where = " ".join(part for part in (first.path, first.ip and f"on {first.ip}") if part)
        yield f" {limit(first)}{f', {where}' if where else ''}"
        if len(gauges) > 1:
            yield (f" (the fullest of {len(gauges):,})", "dim")
        if first.level != "ok" and first.users:
            yield f" {users(first)}"
    silent = nodes - len({each.node for each in gauges})
    if silent > 0:
        yield (f"{', ' if gauges else ''}unknown on {text.plural(silent, 'node')}", "warning")


def limit(gauge: Gauge) -> str:
    """`of 23.5 GiB, Ray's limit 95%`."""
    of = f"of {text.size(gauge.limit)}"
    if gauge.is_assumed:
        return f"{of}, limit unknown (Ray's default: {gauge.threshold:.0%})"
    return f"{of}, Ray's limit {gauge.threshold:.0%}"


def users(gauge: Gauge) -> str:
    """The largest users of a gauge: `ray::train 3.1 GiB, python 1.0 GiB`."""
    return ", ".join(f"{each.name} {text.size(each.bytes)}" for each in gauge.users)


def build_lines(build: EnvironmentBuild, more: str = "") -> Iterator[Line]:
    """A runtime environment that is being set up, and its last error or the command that runs."""
    tool = f"{build.tool} " if build.tool else ""
    since = f" for {text.duration(build.age)}" if build.age is not None else ""
    on = f" on {build.node}" if build.node else ""
    limit = f", limit {text.duration(build.limit)}" if build.limit else ""
    said = f"{tool}being set up{on}{since}, attempt {build.attempt}{limit}{more}"
    yield _row("environment", [said])
    if build.last_error:
        yield line(("the last attempt failed: ", "dim"), (build.last_error, "warning"), indent=4)
    elif build.command:
        age = f" for {text.duration(build.command_age)}" if build.command_age else ""
        yield line((f"runs{age}: ", "dim"), build.command, indent=4)
