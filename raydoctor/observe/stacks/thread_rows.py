"""The threads of a sample as rows of the table `samples`: py-spy's frames and the kernel's data."""

from __future__ import annotations

from typing import Any

from raydoctor.observe.stacks import pyspy, threads
from raydoctor.observe.stacks.pyspy import Dump
from raydoctor.observe.stacks.threads import KernelThread

Row = dict[str, Any]
_NAME = 300
"""Largest length of a function's name: C++ functions include all their types."""
_MOST_FRAMES = 200
_RUNS_TASKS = ("task_execution_handler", "function_executor", "CoreWorker::ExecuteTask")
"""Parts of names of Ray's native functions that call a task's Python code (`_raylet.so`, 2.9 to 2.60)."""


def thread_rows(
    pid: int, dump: Dump, kernel: dict[int, KernelThread], variables: bool
) -> list[Row]:
    """The main thread first, then the others in py-spy's order; without py-spy, the kernel's threads."""
    if not dump.threads:
        return [{**_empty(each.tid, each.name), **_kernel_row(each)} for each in kernel.values()]
    rows = []
    for thread in sorted(dump.threads, key=lambda each: each.get("os_thread_id") != pid):
        # If a Python 3.10 process cannot be stopped, py-spy reports no ids; the main thread's is the pid.
        is_main = thread.get("thread_name") == "MainThread"
        tid = thread.get("os_thread_id") or (pid if is_main else 0)
        known = kernel.get(tid) or threads.threads(pid, [tid]).get(tid) if tid else None
        row = {
            **_empty(tid, thread.get("thread_name") or (known.name if known else "")),
            "active": bool(thread.get("active")),
            "gil": bool(thread.get("owns_gil")),
            **(_kernel_row(known) if known else {}),
            "frames": _frames(thread, variables),
        }
        rows.append(row)
    return rows


def _empty(tid: int, name: str) -> Row:
    return {"tid": tid, "name": name, "active": False, "gil": False, "frames": []}


def _kernel_row(thread: KernelThread) -> Row:
    return {
        "state": thread.state,
        "wchan": thread.wchan,
        "syscall": thread.syscall,
        "cpu_seconds": thread.cpu_seconds,
        "voluntary": thread.voluntary,
        "involuntary": thread.involuntary,
    }


def _frames(thread: Row, variables: bool) -> list[Row]:
    """Its frames; native ones only above the innermost Python frame: the others belong to the interpreter."""
    found: list[Row] = []
    is_inside = is_below = False
    for each in pyspy.frames(thread):
        whose = whose_is(each)
        if whose != "native":
            is_inside = True
        # For a Python built with tail calls (Debian's 3.14), py-spy 0.4.3 does not recognize the
        # interpreter's frames, and places all Python frames below the native ones.
        is_below = is_below or any(word in str(each.get("name")) for word in _RUNS_TASKS)
        if whose == "native" and (is_inside or is_below):
            continue
        row = {
            "function": str(each.get("name") or "")[:_NAME],
            "file": str(each.get("short_filename") or each.get("filename") or ""),
            "line": 0 if whose == "native" else int(each.get("line") or 0),
            "whose": whose,
        }
        if variables:
            variables_ = each.get("locals") or ()
            row["locals"] = {str(v.get("name")): str(v.get("repr")) for v in variables_}
        found.append(row)
    return found[:_MOST_FRAMES]


def whose_is(frame: Row) -> str:
    """The origin of a frame: `user`, `library`, `python`, `ray` or `native`."""
    name = str(frame.get("filename") or "")
    if frame.get("module"):
        return "native"
    if "/site-packages/ray/" in name or "/dist-packages/ray/" in name:
        return "ray"
    if "/site-packages/" in name or "/dist-packages/" in name:
        return "library"
    if name.startswith("<frozen ") or _in_standard_library(name):
        return "python"
    return "user"


def _in_standard_library(name: str) -> bool:
    """`…/lib/python3.11/threading.py`, `/usr/lib64/python3.11/…`."""
    _, lib, rest = name.rpartition("/python3.")
    return bool(lib) and rest.partition("/")[0].isdigit()
