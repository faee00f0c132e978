"""Reads the stacks and variables of this process's threads and coroutines, and runs statements.

`act/attach/debug.py` sends the text of this file to debugpy in the process, which runs it in a separate
thread, independent of the other threads. So it uses only the standard library of Python 3.9 and newer, and no
other file of raydoctor. It pauses no thread.

    answer(REQUEST) -> ANSWER, both JSON

Each request runs in a further thread, which is abandoned after `seconds` if it hangs.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import re
import reprlib
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

_FILE = "<raydoctor>"
"""The file name with which this text is compiled."""
_DEBUGGERS = tuple(
    os.path.join(*each)
    for each in (("_pydevd_bundle", "pydevd_daemon_thread.py"), ("pydevd", "pydevd.py"))
)
_HANDLER = os.path.join("raydoctor", "act", "arm.py")
_WRAPPERS = ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow")
_UNDISTURBED = 5.0
"""A switch interval so long that no other thread runs in between."""
_MOST_FRAMES = 200
_MOST_STACKS = 500
_MOST_VARIABLES = 200
_MOST_TEXT = 2000


class CallStack(NamedTuple):
    """A thread or a waiting coroutine; frames innermost first."""

    key: str
    name: str
    tid: int
    kind: str
    frames: list[FrameType]
    awaits: str = ""

    def plain(self) -> dict[str, Any]:
        """Its JSON form."""
        frames = [_frame(each) for each in self.frames]
        halted = any(each["function"].endswith("_do_wait_suspend") for each in frames)
        return {**self._asdict(), "frames": frames, "halted": halted}


class _NotFoundError(Exception):
    """No thread or frame has the requested name."""


def answer(data: str) -> str:
    """Carry out a request."""
    request = json.loads(data)
    done: list[dict[str, Any]] = []

    with suppress(Exception):  # it uses internals of debugpy, which may differ between versions
        _close_ended_sessions()

    def work() -> None:
        try:
            done.append(_DO[request["do"]](request))
        except _NotFoundError as error:
            done.append({"error": str(error)})
        except BaseException as error:  # the user's code may raise anything
            done.append({"error": _described(error)})

    thread = threading.Thread(target=work, name="raydoctor-look", daemon=True)
    # Not a thread of the program: debugpy neither shows nor pauses it.
    vars(thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
    thread.start()
    thread.join(request["seconds"])
    late = {
        "error": f"it has not ended after {request['seconds']:g} s and keeps running",
        "late": True,
    }
    return json.dumps(done[0] if done else late)


def _close_ended_sessions() -> None:
    """Close the connections of ended sessions, which debugpy 1.8 leaves to the garbage collector.

    In a hung program the collector does not run, and each session would leave an open file.
    """
    debugger = sys.modules["pydevd"].get_global_debugger()
    mine = vars(debugger).setdefault("_raydoctor_sessions", [])
    for reader in [each for each in mine if each is not debugger.reader and not each.is_alive()]:
        mine.remove(reader)
        reader.sock.close()
    if debugger.reader not in mine:
        mine.append(debugger.reader)


# ------------------------------------------------------------------ stacks


def _stacks() -> Iterator[CallStack]:
    """All threads except debugpy's own, the main thread first; then the waiting coroutines."""
    frames = sys._current_frames()
    known = {thread.ident: thread for thread in threading.enumerate()}
    main = threading.main_thread().ident
    for ident in sorted(frames, key=lambda ident: (ident != main, ident not in known)):
        found = _outwards(frames[ident])
        if ident != threading.get_ident() and not any(map(_is_debuggers, found)):
            thread = known.get(ident)
            name = thread.name if thread else f"thread {ident}"
            yield CallStack(
                f"t{ident}", name, getattr(thread, "native_id", 0) or 0, "thread", found
            )
    yield from _coroutines()


def _is_debuggers(frame: FrameType) -> bool:
    """Whether a thread with this frame is one of debugpy's own, which `threading` does not list."""
    name, file = frame.f_code.co_name, frame.f_code.co_filename
    return name == "run" and file.endswith(_DEBUGGERS)


def _outwards(innermost: FrameType) -> list[FrameType]:
    frame: FrameType | None = innermost
    found: list[FrameType] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        # The handler that wakes a thread is not part of the program's stack.
        if found or not frame.f_code.co_filename.endswith(_HANDLER):
            found.append(frame)
        frame = frame.f_back
    return found


def _coroutines() -> Iterator[CallStack]:
    """The asyncio tasks of all loops that are not currently running in a thread."""
    done = set[int]()
    for task in _tasks():
        if id(task) in done or task.done():
            continue
        done.add(id(task))
        frames, awaits = _awaiting(task.get_coro())
        if frames:
            yield CallStack(f"c{id(task)}", task.get_name(), 0, "coroutine", frames, awaits)


def _tasks() -> Iterator[Any]:
    for name in ("_scheduled_tasks", "_eager_tasks", "_all_tasks"):  # Python 3.12+, 3.12+, before
        yield from list(getattr(asyncio.tasks, name, ()))
    if sys.version_info >= (3, 14):
        # Since 3.14 they are in C lists of each thread, and only accessible for a given loop.
        for each in gc.get_objects():
            if issubclass(type(each), asyncio.AbstractEventLoop):
                yield from asyncio.all_tasks(each)


def _awaiting(waiting: Any) -> tuple[list[FrameType], str]:
    """The frames of a chain of awaiting coroutines, innermost first; and what the last one awaits."""
    frames: list[FrameType] = []
    while waiting is not None and len(frames) < _MOST_FRAMES:
        waiting = _unwrapped(waiting)
        kind = next((k for k in ("cr", "gi", "ag") if hasattr(waiting, k + "_frame")), "")
        if not kind:
            break
        if getattr(waiting, kind + "_running", False):
            return [], ""
        frame = getattr(waiting, kind + "_frame")
        if frame is not None:
            frames.append(frame)
        waiting = getattr(waiting, "gi_yieldfrom" if kind == "gi" else kind + "_await", None)
    return frames[::-1], "" if waiting is None else _text(waiting)


def _unwrapped(waiting: Any) -> Any:
    """The awaitable inside a wrapper of C code (such as Ray's), which has no attribute for it."""
    if type(waiting).__name__ in _WRAPPERS:
        return next(iter(gc.get_referents(waiting)), waiting)
    return waiting


def _frame(frame: FrameType) -> dict[str, Any]:
    code = frame.f_code
    return {
        "function": getattr(code, "co_qualname", code.co_name),
        "file": code.co_filename,
        "line": frame.f_lineno or 0,
        "user": _is_user(code.co_filename),
    }


def _is_user(file: str) -> bool:
    """Whether a file is the user's own: not part of Python, an installed package, Ray or raydoctor."""
    if file.startswith("<frozen") or file == _FILE or "/site-packages/" in file:
        return False
    if "/dist-packages/" in file or file.startswith(_STDLIB) or _ARM.search(file):
        return False
    return not (_RAY and file.startswith(_RAY))


_ARM = re.compile(r"/raydoctor[^/]*/(?:act/attach/)?(?:arm|enter)\.py$")
"""raydoctor's own code in the process: its handler may be running in the main thread."""
_STDLIB = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib")})
_RAY = os.path.dirname(getattr(sys.modules.get("ray"), "__file__", None) or "")


# ------------------------------------------------------------------ one frame


def _chosen(request: dict[str, Any]) -> tuple[CallStack, int]:
    """The requested stack and frame; by default, the innermost frame of the user's code."""
    found = list(_stacks())
    wanted, frame = request.get("thread") or "", request.get("frame") or ""
    if wanted:
        found = [s for s in found if wanted in (s.key, s.name, str(s.tid))]
        if not found:
            raise _NotFoundError(f"no thread has the name or id {wanted}")
    # Several threads may run the user's code: prefer one with the requested function.
    for name in (frame, request.get("function") or ""):
        if name and not name.isdigit():
            found = [s for s in found if any(name in _names(f) for f in s.frames)] or found
    stack = next((s for s in found if any(map(_is_own, s.frames))), found[0])
    return stack, _chosen_frame(stack, frame)


def _chosen_frame(stack: CallStack, wanted: str) -> int:
    if wanted.isdigit():
        if int(wanted) >= len(stack.frames):
            raise _NotFoundError(f"{stack.name} has {len(stack.frames)} frames, counted from 0")
        return int(wanted)
    for number, frame in enumerate(stack.frames):
        if wanted in _names(frame) if wanted else _is_own(frame):
            return number
    if wanted:
        raise _NotFoundError(f"{stack.name} has no function {wanted} on its stack")
    return 0


def _is_own(frame: FrameType) -> bool:
    return _is_user(frame.f_code.co_filename)


def _names(frame: FrameType) -> tuple[str, ...]:
    code = frame.f_code
    return (code.co_name, getattr(code, "co_qualname", code.co_name))


def _where(stack: CallStack, number: int) -> dict[str, Any]:
    depth = len(stack.frames) - 1 - number
    result = {"number": number, "depth": depth, "thread": stack.name, "key": stack.key}
    return {**_frame(stack.frames[number]), **result, "kind": stack.kind, "tid": stack.tid}


def _look(request: dict[str, Any]) -> dict[str, Any]:
    return {"stacks": [each.plain() for each in _stacks()][:_MOST_STACKS]}


def _choose(request: dict[str, Any]) -> dict[str, Any]:
    stack, number = _chosen(request)
    return {"where": _where(stack, number)}


def _locals(request: dict[str, Any]) -> dict[str, Any]:
    stack, number = _chosen(request)
    frame = stack.frames[number]
    found = dict(frame.f_locals)
    if frame.f_locals is frame.f_globals:
        found = {name: value for name, value in found.items() if not name.startswith("__")}
    rows = [
        {"name": str(name), "type": _type(value), "value": _text(value)}
        for name, value in list(found.items())[:_MOST_VARIABLES]
    ]
    return {
        "where": _where(stack, number),
        "variables": rows,
        "more": max(0, len(found) - len(rows)),
    }


def _evaluate(request: dict[str, Any]) -> dict[str, Any]:
    stack, number = _chosen(request)
    frame = stack.frames[number]
    # One namespace, because comprehensions and lambdas do not see separate locals.
    space = {**frame.f_globals, **frame.f_locals}
    value = eval(compile(request["code"].strip(), _FILE, "eval"), space)
    return {"where": _where(stack, number), "type": _type(value), "value": _text(value)}


def _execute(request: dict[str, Any]) -> dict[str, Any]:
    """Run a statement in this thread, because its own thread could not be paused."""
    stack, number = _chosen(request)
    frame = stack.frames[number]
    before = {**frame.f_globals, **frame.f_locals}
    space = dict(before)
    value, code = None, request["code"]
    try:
        compiled = compile(code.strip(), _FILE, "eval")
    except SyntaxError:
        exec(compile(code, _FILE, "exec"), space)
    else:
        value = eval(compiled, space)
    changed = {n: v for n, v in space.items() if n not in before or before[n] is not v}
    changed.pop("__builtins__", None)
    lost = _write_back(stack, frame, changed)
    result = {"where": _where(stack, number), "type": _type(value), "value": _text(value)}
    return {**result, "lost": lost} if lost else result


def _write_back(stack: CallStack, frame: FrameType, changed: dict[str, Any]) -> str:
    """Set variables of a frame that may be running; returns why that failed, empty if it succeeded."""
    code = frame.f_code
    local = code.co_varnames + code.co_cellvars + code.co_freevars
    inner = {name: value for name, value in changed.items() if name in local}
    frame.f_globals.update(
        {n: changed[n] for n in changed if n not in local and n in frame.f_globals}
    )
    if not inner:
        return ""
    interval = sys.getswitchinterval()
    # All variables are written back: the frame must not run between the read and the write.
    sys.setswitchinterval(_UNDISTURBED)
    try:
        if not any(frame in each.frames for each in _stacks() if each.key == stack.key):
            return f"it had left the function meanwhile; not set: {', '.join(inner)}"
        variables = frame.f_locals
        variables.update(inner)
        if sys.version_info < (3, 13):  # later versions write through
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    finally:
        sys.setswitchinterval(interval)
    return ""


# ------------------------------------------------------------------ texts


class _Short(reprlib.Repr):
    """Texts of values, truncated if they are large."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 4, 400, 400, 100
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 50
        self.maxdict = self.maxdeque = self.maxarray = 50


def _text(value: object) -> str:
    try:
        result = _Short().repr(value)
    except BaseException as error:
        return f"<its repr raised {_described(error)}>"
    return result if len(result) <= _MOST_TEXT else result[: _MOST_TEXT - 1] + "…"


def _type(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _described(error: BaseException) -> str:
    try:
        result = f"{type(error).__name__}: {error}"
    except BaseException:
        result = type(error).__name__
    return result[:_MOST_TEXT]


def _shut(request: dict[str, Any]) -> dict[str, Any]:
    """Close the port that raydoctor opened; this connection stays open."""
    vars(sys.modules["debugpy"])["_raydoctor_door"].shut()
    return {}


_DO = {
    "look": _look,
    "choose": _choose,
    "locals": _locals,
    "eval": _evaluate,
    "exec": _execute,
    "shut": _shut,
}
