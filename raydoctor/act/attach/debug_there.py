"""Attaches to a process of this machine and inspects it: JSON in, JSON out.

A debugger listens on loopback, so it is used on the process's own node: `raydoctor attach` calls this
directly, or on that node (`observe/nodes/there.py`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from raydoctor.act.attach import debug, from_outside
from raydoctor.act.attach.attach import (
    Attached,
    AttachTarget,
    attach,
    has_closed,
    listening,
    wake,
    waking,
)
from raydoctor.act.attach.debug import DebuggerAddress, DebugOptions
from raydoctor.act.audit import Audit
from raydoctor.cluster.samples import Sample, SampledProcess, thread
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Event, Source
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.redact import shared
from raydoctor.observe.stacks import stacks
from raydoctor.observe.stacks.stacks import SampleOptions
from raydoctor.waits.kinds.kind import kind_of

Row = dict[str, Any]
ReportProgress = Callable[[str], None]
_SAMPLING = SampleOptions(samples=2, interval=0.2, timeout=3.0)


def respond(request: Row, report_progress: ReportProgress = lambda doing: None) -> Row:
    """Attach and inspect. The reply contains an error, if any, and everything that could be read.

    `pid`, `ip`, `worker`, `node`, `debugger` as in `target.FoundProcess`; `title` for the audit;
    `host`, `port` (0: any) to listen on; `stays`: whether the port stays open; `options`: `DebugOptions`;
    `may_go_on`: whether an inspection may end a wait at a breakpoint; `close`: only close the port.
    """
    try:
        wanted = _wanted(request)
    except RaydoctorError as error:
        return _failed(error)
    reply: Row = {"folder": _folder(wanted.pid), "doing": _activity_or_problem(wanted)}
    try:
        if request.get("close"):
            reply["closed"] = _close(wanted)
        elif inspection := from_outside.inspect(
            wanted.pid, wanted.started_at, DebugOptions(**request["options"])
        ):
            reply.update(method="py-spy", seen=asdict(debug.redacted(inspection, shared())))
        else:
            _enter(request, wanted, reply, report_progress)
    except RaydoctorError as error:
        reply.update(_failed(error))
    return reply


def _close(wanted: AttachTarget) -> Row:
    """Close the port that an earlier attach left open; its address, empty if there is none."""
    there = listening(wanted.pid)
    if there is None:
        return {}
    debug.close(DebuggerAddress(wanted.pid, there.host, there.port))
    if not has_closed(wanted.pid, there.host, there.port):
        raise RaydoctorError(f"pid {wanted.pid} still listens on {there.host}:{there.port}")
    return {"host": there.host, "port": there.port}


def _enter(request: Row, wanted: AttachTarget, reply: Row, report_progress: ReportProgress) -> None:
    """Attach a debugger and run the inspections. Raises RaydoctorError."""
    began, options = time.monotonic(), DebugOptions(**request["options"])
    if request["debugger"] and any(options[:5]) and not request.get("may_go_on", True):
        raise RaydoctorError(
            "it waits at a breakpoint, and an inspection ends that wait",
            "Add --yes to continue.",
        )
    report_progress("attaching")
    audit = Audit(f"attach {request.get('title') or wanted.pid}")
    attached = _paused(request, wanted) or attach(
        wanted,
        port=request["port"] or None,
        host=request["host"],
        open_for=0.0 if request.get("stays", True) else _AFTER + _EACH * options.seconds,
        report_progress=report_progress,
        audit=audit,
    )
    seconds = round(time.monotonic() - began, 2)
    reply["attached"] = {**_plain(attached), "seconds": seconds}
    reply["seen"] = _act(attached, options, report_progress)
    if attached.is_temporary and not has_closed(attached.pid, attached.host, attached.port):
        reply["attached"]["open"] = True
        reply["seen"]["notes"].append(_STAYS.format(attached))
    _note(audit, wanted, reply["seen"].get("executed"))
    reply["audit_problem"] = audit.problem


_AFTER, _EACH = 60.0, 4.0
"""Seconds after which a temporary port closes by itself: fixed, and per second of the time limit."""
_STAYS = "{0.host}:{0.port} is still open in pid {0.pid}, and closes by itself in a few minutes."


def _wanted(request: Row) -> AttachTarget:
    process = proc.read(request["pid"])
    # A worker has its own log open, whose name contains its id: the pid may belong to another process now.
    files = proc.logs(request["pid"])
    if process is None or (
        request["worker"] and files and not any(request["worker"] in path for path in files)
    ):
        raise RaydoctorError(f"pid {request['pid']} has ended meanwhile")
    return AttachTarget(
        request["pid"],
        process.started_at,
        request["worker"],
        request["node"],
        request["debugger"],
    )


def _paused(request: Row, wanted: AttachTarget) -> Attached | None:
    """The address of Ray's own debugger: an adapter of debugpy in another process listens for the worker."""
    if not request["debugger"] or listening(wanted.pid, request["debugger"]):
        return None
    host, port = request["ip"], request["debugger"]
    is_open = not host.startswith("127.")
    return Attached(wanted.pid, host, port, "ray-breakpoint", (_OPEN,) if is_open else ())


_OPEN = (
    "Ray has bound its debugger to the node's address, without a password: everyone who can reach "
    "that port can run code in the worker."
)


def _plain(attached: Attached) -> Row:
    return {
        "host": attached.host,
        "port": attached.port,
        "method": attached.method,
        "notes": list(attached.notes),
        "open": not attached.is_temporary,
    }


def _act(attached: Attached, options: DebugOptions, report_progress: ReportProgress) -> Row:
    if not any(
        (options.stack, options.variables, options.evaluate, options.choose, options.execute)
    ):
        return {}
    report_progress("inspecting the process")
    with waking(attached):
        place = DebuggerAddress(attached.pid, attached.host, attached.port)
        return asdict(debug.act(place, options, wake, shut=attached.is_temporary))


def _note(audit: Audit, wanted: AttachTarget, executed: Row | None) -> None:
    """Record a statement that ran in the process in the audit."""
    if executed:
        code = executed["code"]
        result = executed.get("error") or executed.get("how", "")
        audit.write(
            "execute", pid=wanted.pid, started_at=wanted.started_at, code=code, result=result
        )


def _failed(error: RaydoctorError) -> Row:
    return {"failed": error.message, "hint": error.hint}


def _activity_or_problem(wanted: AttachTarget) -> Row:
    try:
        return _doing(wanted)
    except Exception as error:  # this information is optional
        return {"problem": f"{type(error).__name__}: {error}"}


def _doing(wanted: AttachTarget) -> Row:
    """The threads of the process, and the kind of wait it hangs in; empty if it cannot be sampled."""
    tables: dict[str, list[Row]] = {}
    for item in stacks.samples([stacks.ProcessToSample(wanted.pid, wanted.started_at)], _SAMPLING):
        if isinstance(item, Piece):
            table = json.loads(item.data)
            tables[table["table"]] = table["rows"]
    rows = tables.get("samples")
    if not rows:
        return {}
    verdict = kind_of(_process(wanted, rows, next(iter(tables.get("clues", ())), {})))
    if verdict is None:
        return {"threads": rows[-1]["threads"]}
    return {"kind": verdict.kind, "words": verdict.summary, "threads": rows[-1]["threads"]}


def _process(wanted: AttachTarget, rows: list[Row], clues: Row) -> SampledProcess:
    row_of = Event("live.samples", Source("", ""), 0, 0, "")  # of no capture
    samples = tuple(
        Sample(
            row["at"],
            row["cpu_seconds"],
            tuple(map(thread, row["threads"])),
            row["how"],
            row["problem"],
            row_of,
        )
        for row in rows
    )
    return SampledProcess(
        wanted.pid, wanted.node, wanted.worker_id, rows[-1]["title"], samples, clues, ()
    )


def _folder(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
