"""The objects that a thread waits for in `ray.get` or `ray.wait`, read from the process's memory.

py-spy shows the address of each `ObjectRef`, and of the list that contains them. The 28 bytes of the id are
at offset 32 of the object: after the header (16), Cython's method table (8) and the hash that C++ caches (8),
in Ray 2.9.3, 2.40.0 and 2.60.0 with CPython 3.11. All values are verified: the object's type must be named
`ObjectRef`, the id must be well-formed, and the list's first items must be those that py-spy shows.

The objects of an awaiting coroutine are not found this way: it has no thread while it waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from raydoctor.model import ids
from raydoctor.model.patterns import pattern
from raydoctor.observe.stacks import pyspy
from raydoctor.observe.stacks.memory import ProcessMemory, memory
from raydoctor.observe.stacks.pyspy import Dump

_WORKER = "ray/_private/worker.py"
_CALLS = {
    "Worker.get_objects": ("get", "object_refs"),
    "get_objects": ("get", "object_refs"),
    "wait": ("wait", "ray_waitables"),
}
"""Function -> the public call, and the local variable with the objects. Before Python 3.11, functions are
shown without their class."""
_MOST = 2000
"""Objects reported for one call: a list may have a million."""
_MOST_READ = 100_000
_ID = 28
_AT = 32
"""Offset of the id in an ObjectRef."""
_TYPE = 8
_TYPE_NAME = 24
"""Offsets of an object's type, and of the address of a type's name (`Include/object.h`)."""
_LIKELY_INDEX = 1 << 30
_LIKELY_JOB = 1 << 20


class Wait(NamedTuple):
    """A thread's call, and the addresses of the objects that it waits for."""

    tid: int
    call: str
    shown: tuple[int, ...]
    """Addresses of the first objects."""
    container: int
    """Address of their list; 0 if there is none, or if all objects are shown."""


def is_call(frame: dict[str, Any]) -> bool:
    """Whether a frame belongs to a call that waits for objects."""
    name = str(frame.get("filename") or "")
    return frame.get("name") in _CALLS and name.endswith(_WORKER)


def awaits(pid: int, dump: Dump, unfinished: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """The objects that each thread waits for, from a dump with locals; those of `unfinished` tasks first."""
    found = [wait for thread in dump.threads for wait in _waits(thread)]
    if not found:
        return []
    with memory(pid) as open_memory:
        return [_row(open_memory, wait, unfinished) for wait in found]


def _waits(thread: dict[str, Any]) -> Iterator[Wait]:
    """The innermost such call of a thread."""
    for frame in pyspy.frames(thread):
        if not is_call(frame):
            continue
        call, name = _CALLS[frame["name"]]
        for variable in frame.get("locals") or ():
            if variable.get("name") == name:
                shown = str(variable.get("repr") or "")
                refs = pattern(r"ObjectRef at 0x([0-9a-f]+)>").findall(shown)
                is_cut = shown.rstrip("])").endswith("...")
                yield Wait(
                    int(thread.get("os_thread_id") or 0),
                    call,
                    tuple(int(each, 16) for each in refs),
                    int(variable.get("addr") or 0) if is_cut else 0,
                )
        return


def _row(found: ProcessMemory | None, wait: Wait, unfinished: frozenset[str]) -> dict[str, Any]:
    addresses, beyond = _addresses(found, wait)
    read = [_object(found, each) for each in addresses] if found else []
    objects = [each for each in read if each]
    objects.sort(key=lambda each: each[:48] not in unfinished)
    shown = list(dict.fromkeys(objects))[:_MOST]
    return {
        "tid": wait.tid,
        "call": wait.call,
        "objects": shown,
        "untold": len(addresses) - len(objects) + beyond + max(0, len(set(objects)) - len(shown)),
        "exact": bool(shown),
    }


def _addresses(found: ProcessMemory | None, wait: Wait) -> tuple[tuple[int, ...], int]:
    """The addresses of all objects that could be read, and how many more there are."""
    if not wait.container or found is None:
        return wait.shown, 0
    # A list has its length at offset 16, then the address of its items (`Include/cpython/listobject.h`).
    head = found.words(wait.container + 16, 2)
    if len(head) != 2 or not len(wait.shown) <= head[0] < 1 << 32:
        return wait.shown, 1
    count = min(head[0], _MOST_READ)
    items = found.words(head[1], count)
    if items[: len(wait.shown)] != wait.shown:
        return wait.shown, head[0] - len(wait.shown)
    return items, head[0] - count


def _object(found: ProcessMemory, address: int) -> str:
    """The id of the ObjectRef at this address; empty if it is not one."""
    kind = found.words(address + _TYPE)
    name = found.words(kind[0] + _TYPE_NAME) if kind else ()
    if not name or found.text(name[0]).rpartition(".")[2] != "ObjectRef":
        return ""
    value = found.read(address + _AT, _ID).hex()
    parts = ids.parse_object_id(value)
    if parts is None or not 0 < parts.number < _LIKELY_INDEX:
        return ""
    return value if 0 < ids.job_number(parts.job) < _LIKELY_JOB else ""
