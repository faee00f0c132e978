"""Inspects a process through its debugger for `raydoctor attach`: stacks, variables, statements.

Reading pauses nothing: a program (`programs/look_inside.py`) that debugpy runs in a separate thread reads all
threads. A statement runs in its thread, which is paused meanwhile. A thread in native code cannot be paused;
the statement then runs in another thread. Finally raydoctor disconnects and verifies that the program keeps
running, even if raydoctor is killed meanwhile (`programs/let_go.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from raydoctor.act.attach import dap
from raydoctor.act.attach.obstacles import status
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.redact import Redactor, shared
from raydoctor.observe.stacks import sockets, stacks

Row = dict[str, Any]
Wake = Callable[[int], object]
"""Has the main thread of a process run Python code for a moment, even if it waits in native code."""
_PROGRAMS = Path(__file__).with_name("programs")
_ENDS = 1.0
"""Seconds for another session to end."""
_SLACK = 3.0
"""Seconds in addition to the time limit, for a busy process."""
_HALT = 0.3
"""Seconds for a thread that runs Python code to pause."""
_WAKES = 6
"""Attempts to pause a thread that is woken by a signal, of `_HALT` each."""
_WAITS = 4
"""The same for a thread that is not woken."""
_LET_GO = 1.0
_INTERVAL, _SAMPLES = 0.2, 5
_GUARD = 15.0


class DebuggerAddress(NamedTuple):
    """A process and the address of its debugger."""

    pid: int
    host: str
    port: int


class DebugOptions(NamedTuple):
    """Which inspections to run; they run in this order."""

    stack: bool = False
    variables: bool = False
    evaluate: str = ""
    choose: bool = False
    """Only report where a statement would run."""
    execute: str = ""
    thread: str = ""
    """Name or kernel id of a thread; empty: the first that runs user code."""
    function: str = ""
    """A function on the stack of the intended thread, if several qualify."""
    frame: str = ""
    """Number of a frame (0 is the innermost) or its function; empty: the innermost frame of user code."""
    seconds: float = 10.0
    """Time limit of each inspection."""


@dataclass(slots=True)
class Inspection:
    """The results, as `look_inside` returns them."""

    stacks: list[Row] = field(default_factory=list)
    variables: Row = field(default_factory=dict)
    evaluated: Row = field(default_factory=dict)
    chosen: Row = field(default_factory=dict)
    executed: Row = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def act(
    place: DebuggerAddress,
    options: DebugOptions,
    wake: Wake,
    redactor: Redactor | None = None,
    *,
    shut: bool = False,
) -> Inspection:
    """Run the inspections; `shut` closes the port afterwards. Raises RaydoctorError."""
    _require_alone(place)
    inspection = Inspection()
    try:
        if options.execute:
            with _guarded(place):
                _session(place, options, wake, inspection, shut)
        else:
            _session(place, options, wake, inspection, shut)
    finally:
        inspection.notes += _wrong_with(place.pid)
    return redacted(inspection, redactor or shared())


def close(place: DebuggerAddress) -> None:
    """Close the port that an earlier attach left open. Raises RaydoctorError."""
    _require_alone(place)
    with dap.attached(place.host, place.port) as session:
        reply = _Program(session, DebugOptions())("shut")
    if "error" in reply:
        raise RaydoctorError(
            f"raydoctor did not open {place.host}:{place.port}, and cannot close it",
            "It closes when the process ends.",
        )


def _require_alone(place: DebuggerAddress) -> None:
    if others := _staying(place):
        raise RaydoctorError(
            f"a debugger is already attached to pid {place.pid}, from {', '.join(others)}",
            "End that session first: a second one would cut it off.",
        )


def _staying(place: DebuggerAddress) -> list[str]:
    """Connected debuggers, without sessions that end within a second."""
    deadline = time.monotonic() + _ENDS
    while (peers := _peers(place)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return peers


def _peers(place: DebuggerAddress) -> list[str]:
    """Addresses of debuggers that are connected to the port in the process itself."""
    links, folder = {}, f"/proc/{place.pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                links[int(name)] = os.readlink(f"{folder}/{name}")
    rows = sockets.rows(place.pid, links, {})
    ends = f":{place.port}"
    connected = (row for row in rows if row["type"] == "tcp" and row["state"] == "ESTABLISHED")
    return [str(row["peer"]) for row in connected if str(row["local"]).endswith(ends)]


def _session(
    place: DebuggerAddress, options: DebugOptions, wake: Wake, inspection: Inspection, shut: bool
) -> None:
    with dap.attached(place.host, place.port) as session:
        program = _Program(session, options)
        if shut and not options.execute:
            program("shut")  # this session stays connected
        if options.stack:
            reply = program("look")
            inspection.stacks = reply.get("stacks", [])
            inspection.notes += [f"no stacks: {reply['error']}"] if "error" in reply else []
        if options.variables:
            inspection.variables = program("locals")
        if options.evaluate:
            inspection.evaluated = {**program("eval", options.evaluate), "code": options.evaluate}
        if options.choose:
            inspection.chosen = program("choose")
        if options.execute:
            try:
                inspection.executed = {**_execute(place, program, wake), "code": options.execute}
            finally:
                if shut:  # not earlier: `_guarded` may have to connect as well
                    with suppress(RaydoctorError):
                        program("shut")


class _Program(NamedTuple):
    """Runs `look_inside.py` in the process."""

    session: dap.Connection
    options: DebugOptions

    def __call__(self, what: str, code: str = "") -> Row:
        options = self.options
        request = {
            "do": what,
            "code": code,
            "thread": options.thread,
            "function": options.function,
            "frame": options.frame,
            "seconds": options.seconds,
        }
        text = (_PROGRAMS / "look_inside.py").read_text("utf-8")
        run = f"exec(compile({text!r}, '<raydoctor>', 'exec'), space)"
        expression = f"(lambda space: ({run}, space['answer']({json.dumps(request)!r}))[1])({{}})"
        reply = self.session.request(
            "evaluate", {"expression": expression, "context": "watch"}, options.seconds + _SLACK
        )
        try:
            row = json.loads(str(reply.get("result", "")))
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise RaydoctorError("the debugger in the process did not answer as expected")
        return row


# ------------------------------------------------------------------ a statement


def _execute(place: DebuggerAddress, program: _Program, wake: Wake) -> Row:
    """Run the statement in its thread, or in another one."""
    chosen = program("choose")
    if "error" in chosen:
        return chosen
    where = chosen["where"]
    thread = _dap_thread(program.session, where)
    if thread is not None and _halt(program, thread, place, where, wake):
        return _in_frame(program, thread, where)
    reply = program("exec", program.options.execute)
    return {**reply, "how": "beside"}


def _dap_thread(session: dap.Connection, where: Row) -> int | None:
    """The debugger's number of the thread; None if it is ambiguous."""
    if where["kind"] != "thread":
        return None
    rows = session.request("threads").get("threads", [])
    same = [row["id"] for row in rows if row.get("name") == where["thread"]]
    return same[0] if len(same) == 1 else None


def _halt(program: _Program, thread: int, place: DebuggerAddress, where: Row, wake: Wake) -> bool:
    """Pause the thread; whether it did. debugpy 1.8 pauses all threads, and reports the first one only."""
    session = program.session
    session.request("pause", {"threadId": thread})
    is_main = where["tid"] == place.pid
    has_any = False
    for attempt in range(1 + (_WAKES if is_main else _WAITS)):
        if attempt and is_main:
            wake(place.pid)
        has_any = session.event("stopped", _HALT) is not None or has_any
        if has_any and _is_halted(program, where["key"]):
            return True
    _let_go(session, thread)  # otherwise it would pause once it returns from native code
    return False


def _is_halted(program: _Program, key: str) -> bool:
    return any(row["key"] == key and row["halted"] for row in program("look").get("stacks", []))


def _let_go(session: dap.Connection, thread: int) -> None:
    """Resume all threads. debugpy replies only once a paused thread continues."""
    with suppress(dap.DapError):
        session.request("continue", {"threadId": thread}, _LET_GO)


def _in_frame(program: _Program, thread: int, where: Row) -> Row:
    session, options = program.session, program.options
    try:
        frames = session.request("stackTrace", {"threadId": thread}).get("stackFrames", [])
        frame = _same_frame(frames, where)
        if frame is None:
            return {
                "where": where,
                "error": f"it had left {where['function']} before it was paused",
            }
        arguments = {"expression": options.execute, "frameId": frame["id"], "context": "repl"}
        reply = session.request("evaluate", arguments, options.seconds)
    except dap.DapError as error:
        late = error.trouble == "late"
        why = (
            f"it has not ended after {options.seconds:g} s and keeps running"
            if late
            else error.message
        )
        return {"where": where, "error": why, "late": late}
    finally:
        _let_go(session, thread)
    return {
        "where": where,
        "type": reply.get("type") or "",
        "value": reply.get("result") or "",
        "how": "halted",
    }


def _same_frame(frames: list[Row], where: Row) -> Row | None:
    """The chosen frame in a paused thread: at the same depth, else the innermost of that name."""
    name = str(where["function"]).rpartition(".")[2]
    same = [row for row in frames if str(row.get("name", "")).rpartition(".")[2] == name]
    at = len(frames) - 1 - int(where["depth"])
    if 0 <= at < len(frames) and frames[at] in same:
        return frames[at]
    return same[0] if same else None


# ------------------------------------------------------------------ resuming


@contextmanager
def _guarded(place: DebuggerAddress) -> Iterator[None]:
    """Resume threads that are paused in the block, even if this process is killed."""
    guard = subprocess.Popen(
        [sys.executable, str(_PROGRAMS / "let_go.py"), place.host, str(place.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    word = b""
    try:
        yield
        word = b"" if _is_held(place.pid) else b"done"
    finally:
        with suppress(subprocess.TimeoutExpired, OSError):
            guard.communicate(word, timeout=_GUARD)


def _is_held(pid: int) -> bool:
    """Whether debugpy still pauses a thread of the process, by py-spy."""
    for _ in range(_SAMPLES):
        rows = stacks.rows([stacks.ProcessToSample(pid)], variables=False, native=False)
        frames = (each for row in rows for thread in row["threads"] for each in thread["frames"])
        if not any(each["function"].endswith("_do_wait_suspend") for each in frames):
            return False
        time.sleep(_INTERVAL)
    return True


def _wrong_with(pid: int) -> list[str]:
    """Problems of a process after the session."""
    process = proc.read(pid)
    if process is None:
        return ["the process has ended meanwhile"]
    if process.state in "Tt":
        tracer = status(pid).get("TracerPid", "0")
        if tracer != "0":
            return [f"the process is traced by pid {tracer}, which raydoctor did not start"]
        return [f"the process is stopped: kill -CONT {pid} resumes it"]
    return []


def redacted(inspection: Inspection, redactor: Redactor) -> Inspection:
    """The same without secrets; a variable's name may show that its value is one."""

    def clean(row: Row) -> Row:
        row = {**row}
        # A variable called `password` contains one, whatever its value looks like.
        name = str(row.get("code", "")).rpartition(".")[2].strip() or "value"
        for key, called in (("value", name), ("error", "error")):
            if isinstance(row.get(key), str):
                row[key] = redactor.redact_json({called: row[key]})[called]
        if "variables" in row:
            row["variables"] = [
                {**each, "value": redactor.redact_json({each["name"]: each["value"]})[each["name"]]}
                for each in row["variables"]
            ]
        return row

    return Inspection(
        stacks=redactor.redact_json(inspection.stacks),
        variables=clean(inspection.variables),
        evaluated=clean(inspection.evaluated),
        chosen=clean(inspection.chosen),
        executed=clean(inspection.executed),
        notes=inspection.notes,
    )
