"""Large arguments in the object table of a running cluster: one value stored again by each call.

For `f.remote(value)` with a value above 100 KB, `ray memory` shows (measured with Ray 2.60, 20 calls): 20 objects with
ids of the kind that `ray.put` creates, equal in size to the byte, each `USED_BY_PENDING_TASK` in the caller; and for
each started task a row of the worker, `(deserialize task arg) module.function`. A value that was put once is one such
object. Blocks not passed to a task yet are `LOCAL_REFERENCE`, and blocks of Ray Data are return values of tasks. One
`ray.put` per call looks the same; only creation sites differ (`(task call)`, `(put object)`). Only the bytes, which the
table does not show, would prove that it is one value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.cluster import tables as live
from raydoctor.model import ids
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event

_LARGE = 1 << 20
"""Bytes of one argument."""
_MANY = 10
_TOGETHER = 32 << 20
"""Bytes of all copies: less than this is harmless."""
_WAITS = "USED_BY_PENDING_TASK"
_READER = pattern(r"^\(deserialize (?:actor )?task arg\) (?P<function>\S+)")
_MADE = pattern(r"^\((?P<how>task call|actor call|put object)\) *\|? *(?P<line>[^|]*)")
_OF_LIBRARIES = (
    "ray.",
    "_map_task",
    "_MapWorker",
    "MapWorker",
    "_RayTrainWorker",
    "RayTrainWorker",
)
"""Ray Data, Train and Tune pass blocks of one size on purpose and release them as soon as possible."""


_BEGUN = ("RUNNING", "FINISHED", "FAILED")


class _EqualObjects(NamedTuple):
    """The key by which objects count as copies of one value."""

    owner: str
    size: int
    site: str


class Held(NamedTuple):
    """Objects of one size that one process created and only its pending tasks use."""

    owner: str
    """`DRIVER pid 812`."""
    function: str
    """The function that reads them; empty if unclear."""
    bytes: int
    """Bytes of each."""
    rows: list[Event]
    readers: list[Event]
    by_value: bool
    """Whether creation sites show that a call created them, not a `ray.put`."""
    line: str
    """The creating line, if creation sites are recorded."""

    @property
    def copies(self) -> int:
        """Number of objects."""
        return len(self.rows)


def waiting_arguments(case: Case) -> Iterator[Held]:
    """Groups of arguments that look like one value, the largest first."""
    groups: dict[_EqualObjects, list[Event]] = {}
    readers: dict[str, Event] = {}
    for row in live.rows(case, "objects"):
        size = live.whole(row, "object_size") or 0
        if _READER.search(row["call_site"]):
            readers.setdefault(row["object_id"], row)
        elif size >= _LARGE and row["reference_type"] == _WAITS and _is_put(row["object_id"]):
            group = _EqualObjects(f"{row['type']} pid {row['pid']}", size, row["call_site"])
            groups.setdefault(group, []).append(row)
    for group, rows in sorted(groups.items(), key=lambda g: -len(g[1]) * g[0].size):
        if len(rows) >= _MANY and len(rows) * group.size >= _TOGETHER:
            read = [readers[r["object_id"]] for r in rows if r["object_id"] in readers]
            held = _held(case, group, rows, read)
            if not _by_library(case, held):
                yield held


def _held(case: Case, group: _EqualObjects, rows: list[Event], read: list[Event]) -> Held:
    names = Counter(m["function"] for e in read if (m := _READER.search(e["call_site"])))
    function = (
        names.most_common(1)[0][0].removeprefix("__main__.") if names else _waiting_for(case, rows)
    )
    made = _MADE.search(group.site)
    by_value = made is not None and made["how"] != "put object"
    line = made["line"].strip() if made else ""
    return Held(group.owner, function, group.size, rows, read, by_value, line)


def _waiting_for(case: Case, rows: list[Event]) -> str:
    """The function of the job's pending tasks, if it is only one and there is a task for each object."""
    parts = ids.parse_object_id(rows[0]["object_id"])
    job = parts.job if parts else ""
    waiting = [
        e for e in live.rows(case, "tasks") if e["job_id"] == job and e["state"] not in _BEGUN
    ]
    names = {e["func_or_class_name"] for e in waiting}
    return names.pop() if len(names) == 1 and len(waiting) >= len(rows) else ""


def _is_put(object_id: str) -> bool:
    parts = ids.parse_object_id(object_id)
    return parts is not None and parts.put


def _by_library(case: Case, held: Held) -> bool:
    """Whether one of Ray's libraries passes them; before any task has started, the pending tasks show it."""
    if held.function:
        return held.function.startswith(_OF_LIBRARIES)
    if held.line:
        return "/ray/" in held.line
    waiting = live.rows(case, "tasks")
    return any(e["func_or_class_name"].startswith(_OF_LIBRARIES) for e in waiting)
