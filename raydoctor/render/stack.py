"""Stacks of workers and drivers -> page or JSON.

Workers with the same stack are one block. The user's own frames of a thread are highlighted, and frames of
Ray and Python around them are folded. A thread without any code of the user's is only counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from raydoctor.model import text
from raydoctor.model.version import __version__
from raydoctor.observe.stacks.worker_stacks import Found, Stack
from raydoctor.render.json import dumps
from raydoctor.render.page import MAX_WIDTH, Line, Page, Part, line, paragraph

SCHEMA = "raydoctor/stack/1"
Row = dict[str, Any]
_OWN = ("user", "library")
"""Owners of the frames that are shown: a library may have a thread of its own."""
_LISTED = 8
_VALUE = 200


class Style(NamedTuple):
    """The width and the amount of detail."""

    width: int = MAX_WIDTH
    whole: bool = False
    """Show every thread and frame, and idle workers."""


_PLAIN = Style()


def render(found: Found, style: Style = _PLAIN) -> Page:
    """Drivers first, then workers, grouped by equal stacks; idle workers last."""
    page: Page = []
    fold = not style.whole and len(found.stacks) > 1
    idle = [each for each in found.stacks if each.is_idle] if fold else []
    shown = [each for each in found.stacks if each not in idle]
    for group in _groups(shown):
        page += [*_block(group, found.at, style), ()]
    if idle:
        pids = _pids([each.row["pid"] for each in idle])
        page += [line((text.plural(len(idle), "idle worker"), "strong"), f"  {pids}"), ()]
    for gap in found.gaps:
        page += paragraph(f"{gap.what}: {gap.why}", style.width, style="warning")
        page += paragraph(gap.hint, style.width, indent=2) if gap.hint else []
    return page[:-1] if page and not page[-1] else page


def _groups(stacks: Sequence[Stack]) -> list[list[Stack]]:
    groups: dict[object, list[Stack]] = {}
    order = {"driver": 0, "worker": 1, "process": 2}
    for each in sorted(stacks, key=lambda each: order[each.kind]):
        groups.setdefault(_place(each), []).append(each)
    return list(groups.values())


def _place(stack: Stack) -> object:
    """What the stacks of one block have in common: names, and the positions of the user's code."""
    threads = []
    for thread in stack.row["threads"]:
        frames = [
            (f["function"], f["file"], f["line"], str(f.get("locals", "")))
            for f in thread["frames"]
            if f["whose"] in _OWN
        ]
        threads += [(_generic(thread["name"]), *frames)] if frames else []
    return (stack.kind, _title(stack), stack.row["problem"], tuple(sorted(threads)))


def _generic(name: str) -> str:
    """A thread's name without its number: `Dummy-1`, `ThreadPoolExecutor-0_3`."""
    return name.rstrip("0123456789_-")


# ------------------------------------------------------------------ a block


def _block(group: Sequence[Stack], at: float, style: Style) -> Page:
    first = group[0]
    head: list[Part] = [(f"{len(group)} × ", "strong")] if len(group) > 1 else []
    page = [line(*head, (text.cut(_title(first), style.width - 10), "strong"))]
    page += _facts(group, at, style.width)
    if first.row["problem"]:
        page += paragraph(first.row["problem"], style.width, indent=2, style="warning")
    threads = first.row["threads"]
    shown = threads if style.whole else _shown(first)
    if not shown and first.tasks and threads:
        note = "its event loop is idle: a coroutine that awaits has no stack"
        page.append(line((note, "dim"), indent=2))
    for each in shown:
        page += _thread(each, style)
    if len(threads) > len(shown) and first.row["how"] != "proc":
        rest = text.plural(len(threads) - len(shown), "thread")
        page.append(line((f"and {rest} of Ray's and Python's own", "dim"), indent=2))
    return page


def _shown(stack: Stack) -> list[Row]:
    """The threads with code of the user's. If a process that runs a task has none, its main thread.

    The main thread of an actor with an event loop shows nothing of its work, nor does an idle event loop.
    """
    threads: list[Row] = stack.row["threads"]
    shown = [each for each in threads if _is_shown(each)]
    has_loop = any(str(each["name"]).startswith("AsyncIO Thread") for each in threads)
    return shown or ([] if has_loop or not stack.tasks else threads[:1])


def _title(stack: Stack) -> str:
    """`ray::train`, `driver python train.py`."""
    title = text.one_line(str(stack.row["title"]))
    names = sorted({task["name"] for task in stack.tasks if task.get("name")})
    if stack.kind == "worker" and names:
        return f"ray::{', '.join(names[:3])}"
    return f"driver  {title}" if stack.kind == "driver" else title


def _facts(group: Sequence[Stack], at: float, width: int) -> Page:
    """Pids, node, actor, and the tasks with how long they have run."""
    first = group[0]
    parts = [_pids([each.row["pid"] for each in group])]
    nodes = {each.row["node_id"][:12] for each in group if not each.is_here}
    parts += [f"node {', '.join(sorted(nodes))}"] if nodes else []
    if len(group) == 1:
        parts += [f"actor {_actor(first.actor)}"] if first.actor else []
        page = [line((" · ".join(parts), "path"), indent=2)]
        tasks = [f"task {task['task_id']}{_since(task, at)}" for task in first.tasks[:_LISTED]]
        return [*page, *(line((task, "path"), indent=2) for task in tasks)]
    ages = [age for each in group for task in each.tasks if (age := _age(task, at)) is not None]
    if ages:
        shortest, longest = text.duration(min(ages)), text.duration(max(ages))
        parts.append(f"for {shortest}" if shortest == longest else f"for {shortest} to {longest}")
    tasks = [task["task_id"][:16] for each in group for task in each.tasks]
    page = paragraph(" · ".join(parts), width, indent=2, style="path")
    if tasks:
        noun = "task" if len(tasks) == 1 else "tasks"
        listed = f"{noun} {text.join_names(tasks, _LISTED)}"
        page += paragraph(listed, width, indent=2, style="path")
    return page


def _pids(pids: Sequence[int]) -> str:
    return f"{'pid' if len(pids) == 1 else 'pids'} {text.join_names(map(str, pids), _LISTED)}"


def _actor(actor: Row) -> str:
    name = f" {actor['name']}" if actor.get("name") else ""
    return f"{actor.get('class_name') or ''}{name} {actor['actor_id']}"


def _since(task: Row, at: float) -> str:
    age = _age(task, at)
    return f" for {text.duration(age)}" if age is not None else ""


def _age(task: Row, at: float) -> float | None:
    started = task.get("start_time_ms")
    return max(0.0, at - started / 1000) if started else None


# ------------------------------------------------------------------ a thread


_DEBUGGER = ("_pydevd", "_pydev_", "pydevd", "debugpy/")
"""As py-spy shortens the files of debugpy."""


def _is_shown(thread: Row) -> bool:
    """Whether it runs code of the user's or of a library's; the threads of a debugger do not count."""
    frames = (each for each in thread["frames"] if not str(each["file"]).startswith(_DEBUGGER))
    return any(frame["whose"] in _OWN for frame in frames)


def _thread(thread: Row, style: Style) -> Page:
    head = line(
        (thread["name"] or f"thread {thread['tid']}", "info"), f"  {_does(thread)}", indent=2
    )
    frames = thread["frames"]
    page: Page = [head]
    end = len(frames) if style.whole else _last_own(frames) + 1
    run: list[Row] = []
    for frame in frames[:end]:
        if frame["whose"] in _OWN or style.whole or _is_top(frame, frames):
            page += _fold(run)
            run = []
            page += _frame(frame, style.width)
        else:
            run.append(frame)
    return [*page, *_fold(run)]


def _does(thread: Row) -> str:
    """Its state in the kernel and the interpreter: `runs, holds the GIL`, `waits in futex_do_wait`."""
    state = thread.get("state", "")
    if state in ("T", "t"):
        return "is stopped" if state == "T" else "is paused by a debugger"
    if thread["active"] or state == "R":
        doing = "runs"
    else:
        doing = f"waits in {thread['wchan']}" if thread.get("wchan") else "waits"
    return f"{doing}, holds the GIL" if thread["gil"] else doing


def _last_own(frames: Sequence[Row]) -> int:
    return max((n for n, frame in enumerate(frames) if frame["whose"] in _OWN), default=0)


def _is_top(frame: Row, frames: Sequence[Row]) -> bool:
    """Whether it is the innermost frame, which shows what the user's code waits in."""
    return frame is frames[0]


def _fold(run: Sequence[Row]) -> Page:
    if not run:
        return []
    owners = {"ray": "Ray", "python": "Python", "native": "native code"}
    names = " and ".join(dict.fromkeys(owners.get(f["whose"], "") for f in run))
    return [line((f"… {text.plural(len(run), 'frame')} of {names}", "dim"), indent=4)]


def _frame(frame: Row, width: int) -> Page:
    style = {"user": "strong", "library": ""}.get(frame["whose"], "dim")
    place = f" ({frame['file']}:{frame['line']})" if frame["line"] else f" ({frame['file']})"
    page = [
        line((frame["function"], style), (place, "path" if style == "strong" else "dim"), indent=4)
    ]
    return [*page, *_locals(frame, width)]


def _locals(frame: Row, width: int) -> Iterator[Line]:
    for name, value in (frame.get("locals") or {}).items():
        shown = text.one_line(f"{name} = {value}"[:_VALUE])
        yield line((text.cut(shown, max(20, width - 8)), "code"), indent=8)


# ------------------------------------------------------------------ JSON


def to_json(found: Found) -> str:
    """One JSON object. Keys are added, never renamed."""
    return dumps(
        {
            "schema": SCHEMA,
            "version": __version__,
            "at": found.at,
            "processes": [_process(each, found.at) for each in found.stacks],
            "gaps": [{"what": g.what, "why": g.why, "hint": g.hint} for g in found.gaps],
        }
    )


def _process(stack: Stack, at: float) -> dict[str, object]:
    row = stack.row
    return {
        "pid": row["pid"],
        "started_at": row["started_at"],
        "node_id": row["node_id"] or None,
        "worker_id": row["worker_id"] or None,
        "kind": stack.kind,
        "title": row["title"],
        "idle": stack.is_idle,
        "tasks": [
            {"id": task["task_id"], "name": task.get("name"), "age_s": _age(task, at)}
            for task in stack.tasks
        ],
        "actor": {"id": stack.actor["actor_id"], "class": stack.actor.get("class_name")}
        if stack.actor
        else None,
        "how": row["how"],
        "problem": row["problem"] or None,
        "threads": row["threads"],
    }
