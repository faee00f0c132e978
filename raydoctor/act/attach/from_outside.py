"""Reads what `attach --stack` and `--locals` show by py-spy, without entering the process or opening a port.

py-spy reads threads and the variables of functions. Waiting coroutines and the variables of a module can only
be read through a debugger in the process (`debug.py`).
"""

from __future__ import annotations

from typing import Any

from raydoctor.act.attach.debug import DebugOptions, Inspection
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.stacks import stacks

Row = dict[str, Any]
_TIMEOUT = 3.0
_DEBUGGERS = ("/pydevd_daemon_thread.py", "/pydevd.py")
"""Frames at the bottom of debugpy's own threads; `programs/look_inside.py` leaves the same ones out."""
_LOOP = ("asyncio/base_events.py", "asyncio/runners.py")
_LOOPS_THREAD = "AsyncIO Thread"
"""Prefix of thread names of Ray's async actors (2.9 to 2.60); uvloop has no Python frame."""
_MOST_VARIABLES = 200


def inspect(pid: int, started_at: float, options: DebugOptions) -> Inspection | None:
    """The result; None if only a debugger in the process can provide it."""
    if options.evaluate or options.execute or options.choose:
        return None
    if not (options.stack or options.variables):
        return None
    threads = _threads(pid, started_at, options.variables)
    has_loop = any(map(_runs_loop, threads))
    if not threads or (options.stack and has_loop):
        return None
    inspection = Inspection(stacks=[_stack(each) for each in threads] if options.stack else [])
    if options.variables:
        variables = _variables(threads, options)
        if variables is None or (has_loop and not variables.get("where", {}).get("user")):
            return None  # the user may mean a coroutine
        inspection.variables = variables
    return inspection


def where(pid: int, started_at: float, options: DebugOptions) -> Row | None:
    """The thread and frame in which a statement would run now; None if only a debugger can choose them.

    Raises RaydoctorError if the process lacks the requested ones.
    """
    threads = _threads(pid, started_at, variables=False)
    if not threads:
        return None
    thread, number = _chosen(threads, options)
    if any(map(_runs_loop, threads)) and not _is_user(thread["frames"][number]):
        return None  # the user may mean a coroutine
    return _where(thread, number)


def _threads(pid: int, started_at: float, variables: bool) -> list[Row]:
    """The threads of a process but the debugger's; empty if they could not be read."""
    found = stacks.rows(
        [stacks.ProcessToSample(pid, started_at)],
        variables=variables,
        native=False,
        timeout=_TIMEOUT,
    )
    if not found or found[0]["how"] == "proc" or found[0]["problem"]:
        return []
    return [each for each in found[0]["threads"] if each["frames"] and not _is_debuggers(each)]


def _is_debuggers(thread: Row) -> bool:
    return any(
        frame["function"].rpartition(".")[2] == "run" and frame["file"].endswith(_DEBUGGERS)
        for frame in thread["frames"]
    )


def _runs_loop(thread: Row) -> bool:
    files = (frame["file"] for frame in thread["frames"])
    return thread["name"].startswith(_LOOPS_THREAD) or any(f.endswith(_LOOP) for f in files)


def _stack(thread: Row) -> Row:
    frames = [_frame(each) for each in thread["frames"]]
    halted = any(each["function"].endswith("_do_wait_suspend") for each in frames)
    own = {"key": str(thread["tid"]), "name": thread["name"], "tid": thread["tid"]}
    return {**own, "kind": "thread", "awaits": "", "frames": frames, "halted": halted}


def _frame(frame: Row) -> Row:
    plain = {name: frame[name] for name in ("function", "file", "line")}
    return {**plain, "user": frame["whose"] == "user"}


def _variables(threads: list[Row], options: DebugOptions) -> Row | None:
    """Variables of a frame; None if py-spy cannot read them."""
    try:
        thread, number = _chosen(threads, options)
    except RaydoctorError as error:
        return {"error": error.message}
    frame = thread["frames"][number]
    found: dict[str, str] = frame.get("locals") or {}
    if not found and frame["function"].startswith("<module>"):
        return None
    rows = [{"name": n, "type": "", "value": v} for n, v in list(found.items())[:_MOST_VARIABLES]]
    return {
        "where": _where(thread, number),
        "variables": rows,
        "more": max(0, len(found) - len(rows)),
    }


def _chosen(threads: list[Row], options: DebugOptions) -> tuple[Row, int]:
    """The thread and the number of the frame that `look_inside` would choose. Raises RaydoctorError."""
    if options.thread:
        threads = [t for t in threads if options.thread in (t["name"], str(t["tid"]))]
        if not threads:
            raise RaydoctorError(f"no thread has the name or id {options.thread}")
    for name in (options.frame, options.function):
        if name and not name.isdigit():
            threads = [t for t in threads if any(_is(f, name) for f in t["frames"])] or threads
    thread = next((t for t in threads if any(map(_is_user, t["frames"]))), threads[0])
    frames = thread["frames"]
    if options.frame.isdigit():
        number = int(options.frame)
        if number >= len(frames):
            raise RaydoctorError(f"{thread['name']} has {len(frames)} frames, counted from 0")
        return thread, number
    wanted = [
        n for n, f in enumerate(frames) if (_is(f, options.frame) if options.frame else _is_user(f))
    ]
    if not wanted and options.frame:
        raise RaydoctorError(f"{thread['name']} has no function {options.frame} on its stack")
    return thread, wanted[0] if wanted else 0


def _where(thread: Row, number: int) -> Row:
    return {
        **_frame(thread["frames"][number]),
        "number": number,
        "depth": len(thread["frames"]) - 1 - number,
        "thread": thread["name"],
        "key": str(thread["tid"]),
        "kind": "thread",
        "tid": thread["tid"],
    }


def _is_user(frame: Row) -> bool:
    return bool(frame["whose"] == "user")


def _is(frame: Row, name: str) -> bool:
    return name in (frame["function"], frame["function"].rpartition(".")[2])
