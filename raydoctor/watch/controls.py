"""Keys -> what the screen of a watch shows, and what its user asks for: pure.

Textual would bring widgets and the mouse, but its import takes 0.10 s and 17 MB, and the watch has 1 % of one
CPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from raydoctor.watch.view import TaskLine

Pane = Literal["tasks", "help", "output"]
SORTS = ("age", "name", "hang", "node")
"""Orders of the tasks; `s` changes to the next one."""
PAGE = 10
"""Lines that Page Up and Page Down move by."""
HELP = (
    ("↑ ↓  j k", "select a task; Page Up, Page Down, Home and End go further"),
    ("Enter  t", "the call stack of the selected task"),
    ("c", "cancel the selected task, after a confirmation"),
    ("s", f"sort by {', '.join(SORTS)}"),
    ("/", "show only tasks with this text in their name, kind of hang, pid, node or id"),
    ("Esc", "leave a pane, or remove the filter and the selection"),
    ("?", "this help"),
    ("q  Ctrl-C", "end the watch; Ctrl-Z stops it until `fg`"),
)
_KEY = re.compile(r"\x1b(?:\[|O)(?P<code>[A-DFH]|[1-8]~)|\x1b\[[0-9;]*[ -~]|.", re.DOTALL)
_CODES = {
    "A": "up", "B": "down", "H": "home", "F": "end", "1~": "home", "7~": "home", "4~": "end",
    "8~": "end", "5~": "page up", "6~": "page down",
}  # fmt: skip
_NAMES = {"\x1b": "esc", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace"}
_LETTERS = {"j": "down", "k": "up"}
_STEPS = {"up": -1, "down": 1, "page up": -PAGE, "page down": PAGE, "home": -(10**9), "end": 10**9}


class UserRequest(NamedTuple):
    """What the user asks for."""

    what: Literal["quit", "stack", "cancel"]
    task: TaskLine | None = None


class PaneOutput(NamedTuple):
    """What a command printed that was started by a key."""

    title: str
    """The command and how it ended."""
    lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Controls:
    """The user's choices."""

    pane: Pane = "tasks"
    sort: str = "age"
    filter: str = ""
    is_typing: bool = False
    """Whether keys are the filter's text."""
    selected: tuple[str, str] = ("", "")
    """The selected task and its worker; empty for none."""
    place: int = -1
    """The row of the selected task, which the next one takes over when the task has ended; -1 for none."""
    cancels: TaskLine | None = None
    """The task whose cancel waits for a confirmation."""
    top: int = 0
    """First line of the output pane."""


def keys(text: str) -> list[str]:
    """The names of the pressed keys: `up`, `enter`, `esc`, or the character itself."""
    pressed = []
    for match in _KEY.finditer(text):
        if code := match["code"]:
            pressed.append(_CODES.get(code, ""))
        elif len(match[0]) == 1:
            pressed.append(_NAMES.get(match[0], match[0]))
    return [each for each in pressed if each]


def shown(lines: Sequence[TaskLine], controls: Controls) -> list[TaskLine]:
    """The tasks that the filter lets through, in order; equal ones stay in order of age."""
    wanted = controls.filter.casefold()
    kept = [each for each in lines if wanted in _text(each)] if wanted else list(lines)
    orders: dict[str, Callable[[TaskLine], tuple[object, ...]]] = {
        "name": lambda each: (each.name.casefold(),),
        "hang": lambda each: (not each.hang, each.hang),
        "node": lambda each: (each.running.run.ip, each.running.run.pid),
    }
    return sorted(kept, key=orders[controls.sort]) if controls.sort in orders else kept


def row_of(rows: Sequence[TaskLine], controls: Controls) -> int:
    """The row of the selected task, or of the one that took its place; -1 if none is selected."""
    if controls.place < 0 or not rows:
        return -1
    found = (n for n, each in enumerate(rows) if each.running.key[:2] == controls.selected)
    return next(found, min(controls.place, len(rows) - 1))


def press(
    controls: Controls, key: str, lines: Sequence[TaskLine]
) -> tuple[Controls, UserRequest | None]:
    """The choices after a key, and what it asks for."""
    if controls.cancels is not None:
        return _answered(controls, key, lines)
    if controls.is_typing:
        return _typed(controls, key), None
    if key in ("q", "Q"):
        return controls, UserRequest("quit")
    if key in ("?", "h"):
        return replace(controls, pane="tasks" if controls.pane == "help" else "help"), None
    if controls.pane == "tasks":
        return _in_tasks(controls, _LETTERS.get(key, key), shown(lines, controls))
    return _in_pane(controls, _LETTERS.get(key, key)), None


def _answered(
    controls: Controls, key: str, lines: Sequence[TaskLine]
) -> tuple[Controls, UserRequest | None]:
    """A cancel means what was confirmed: not a retry, and not a task of the next session with the same id."""
    asked, meant = replace(controls, cancels=None), controls.cancels
    runs = meant is not None and any(each.running.key == meant.running.key for each in lines)
    if key not in ("y", "Y") or not runs:
        return asked, None
    return replace(asked, pane="output", top=0), UserRequest("cancel", controls.cancels)


def _typed(controls: Controls, key: str) -> Controls:
    if key == "enter":
        return replace(controls, is_typing=False)
    if key == "esc":
        return replace(controls, is_typing=False, filter="")
    if key == "backspace":
        return replace(controls, filter=controls.filter[:-1])
    is_text = len(key) == 1 and key.isprintable()
    return replace(controls, filter=controls.filter + key) if is_text else controls


def _in_pane(controls: Controls, key: str) -> Controls:
    if key in ("esc", "enter"):
        return replace(controls, pane="tasks", top=0)
    return replace(controls, top=max(0, controls.top + _STEPS.get(key, 0)))


def _in_tasks(
    controls: Controls, key: str, rows: Sequence[TaskLine]
) -> tuple[Controls, UserRequest | None]:
    place = row_of(rows, controls)
    if place >= 0 and key in ("enter", "t"):
        return replace(controls, pane="output", top=0), UserRequest("stack", rows[place])
    if place >= 0 and key == "c":
        return replace(controls, cancels=rows[place]), None
    if key in _STEPS and rows:
        # From no selection, a step down goes to the first row.
        place = max(0, min(len(rows) - 1, place + _STEPS[key]))
        controls = replace(controls, place=place, selected=rows[place].running.key[:2])
    elif key == "s":
        after = SORTS[(SORTS.index(controls.sort) + 1) % len(SORTS)]
        controls = replace(controls, sort=after)
    elif key == "/":
        controls = replace(controls, is_typing=True, filter="")
    elif key == "esc":
        controls = replace(controls, filter="", place=-1, selected=("", ""))
    return controls, None


def _text(line: TaskLine) -> str:
    run = line.running.run
    return " ".join(
        (line.name, line.hang, f"pid {run.pid}", run.ip, run.task, run.worker)
    ).casefold()
