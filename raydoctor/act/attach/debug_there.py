"""Attaching to a process of this machine, and what is wanted in it: JSON in, JSON out.

A debugger listens on loopback, so what goes through it is done on the process's own node: `raydoctor attach`
calls this directly, or has it called there (`observe/nodes/there.py`).
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
    Wanted,
    attach,
    has_closed,
    listening,
    wake,
    waking,
)
from raydoctor.act.attach.debug import DebugOptions, Place
from raydoctor.act.audit import Audit
from raydoctor.cluster.samples import Sample, SampledProcess, thread
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Event, Source
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.redact import shared
from raydoctor.observe.stacks import stacks
from raydoctor.observe.stacks.stacks import Manner
from raydoctor.waits.kinds.kind import kind_of

Row = dict[str, Any]
Tell = Callable[[str], None]
_LOOKS = Manner(looks=2, every=0.2, timeout=3.0)


def respond(asked: Row) -> Row:
    """Attach, and do what is wished. What went wrong is in the answer, with what could be seen."""
    return run(asked)


def run(asked: Row, tell: Tell = lambda doing: None) -> Row:
    """The same, telling meanwhile what is being done.

    `pid`, `ip`, `worker`, `node`, `debugger` as `_attach_target.Found` has them, `title` for the audit;
    `host`, `port` (0: any) to listen on; `stays`: whether the port stays open; `wishes`: `DebugOptions`;
    `may_go_on`: whether a look may end a wait at a breakpoint; `close`: only close the port.
    """
    try:
        wanted = _wanted(asked)
    except RaydoctorError as error:
        return _failed(error)
    told: Row = {"folder": _folder(wanted.pid), "doing": _seen_from_outside(wanted)}
    try:
        if asked.get("close"):
            told["closed"] = _close(wanted)
        elif seen := from_outside.seen(
            wanted.pid, wanted.started_at, DebugOptions(**asked["wishes"])
        ):
            told.update(method="py-spy", seen=asdict(debug.redacted(seen, shared())))
        else:
            _enter(asked, wanted, told, tell)
    except RaydoctorError as error:
        told.update(_failed(error))
    return told


def _close(wanted: Wanted) -> Row:
    """Close the port that an earlier attach left open; where it was, empty where there is none."""
    there = listening(wanted.pid)
    if there is None:
        return {}
    debug.close(Place(wanted.pid, there.host, there.port))
    if not has_closed(wanted.pid, there.host, there.port):
        raise RaydoctorError(f"pid {wanted.pid} still listens on {there.host}:{there.port}")
    return {"host": there.host, "port": there.port}


def _enter(asked: Row, wanted: Wanted, told: Row, tell: Tell) -> None:
    """Attach a debugger, and do what is wished through it. Raises RaydoctorError."""
    began, wishes = time.monotonic(), DebugOptions(**asked["wishes"])
    if asked["debugger"] and any(wishes[:5]) and not asked.get("may_go_on", True):
        raise RaydoctorError(
            "it stands at a breakpoint, and a look from inside ends that wait",
            "Add --yes to do it all the same.",
        )
    tell("attaching")
    audit = Audit(f"attach {asked.get('title') or wanted.pid}")
    attached = _paused(asked, wanted) or attach(
        wanted,
        port=asked["port"] or None,
        host=asked["host"],
        open_for=0.0 if asked.get("stays", True) else _AFTER + _EACH * wishes.seconds,
        tell=tell,
        audit=audit,
    )
    seconds = round(time.monotonic() - began, 2)
    told["attached"] = {**_plain(attached), "seconds": seconds}
    told["seen"] = _act(attached, wishes, tell)
    if attached.is_temporary and not has_closed(attached.pid, attached.host, attached.port):
        told["attached"]["open"] = True
        told["seen"]["notes"].append(_STAYS.format(attached))
    _note(audit, wanted, told["seen"].get("executed"))
    told["audit_problem"] = audit.problem


_AFTER, _EACH = 60.0, 4.0
"""Seconds after which a port closes by itself that was opened for a look: beside those of each wish."""
_STAYS = "{0.host}:{0.port} is still open in pid {0.pid}, and closes by itself in a few minutes."


def _wanted(asked: Row) -> Wanted:
    process = proc.read(asked["pid"])
    # The worker that had the pid when the cluster was asked has its log open, which is called like it.
    files = proc.files(asked["pid"]).values()
    if process is None or (
        asked["worker"] and files and not any(asked["worker"] in path for path in files)
    ):
        raise RaydoctorError(f"pid {asked['pid']} has ended meanwhile")
    return Wanted(
        asked["pid"],
        process.started_at,
        asked["worker"],
        asked["node"],
        asked["debugger"],
    )


def _paused(asked: Row, wanted: Wanted) -> Attached | None:
    """Where Ray's own debugger waits: an adapter of debugpy, a process of its own, listens for the worker."""
    if not asked["debugger"] or listening(wanted.pid, asked["debugger"]):
        return None
    host, port = asked["ip"], asked["debugger"]
    is_open = not host.startswith("127.")
    return Attached(wanted.pid, host, port, "ray-breakpoint", (_OPEN,) if is_open else ())


_OPEN = (
    "Ray has bound its debugger to the node's address, without a password: whoever reaches that "
    "port can run code in the worker."
)


def _plain(attached: Attached) -> Row:
    return {
        "host": attached.host,
        "port": attached.port,
        "method": attached.method,
        "notes": list(attached.notes),
        "open": not attached.is_temporary,
    }


def _act(attached: Attached, wishes: DebugOptions, tell: Tell) -> Row:
    if not any((wishes.stack, wishes.variables, wishes.evaluate, wishes.choose, wishes.execute)):
        return {}
    tell("looking inside")
    with waking(attached):
        place = Place(attached.pid, attached.host, attached.port)
        return asdict(debug.act(place, wishes, wake, shut=attached.is_temporary))


def _note(audit: Audit, wanted: Wanted, executed: Row | None) -> None:
    """Have a statement in the audit that ran in the process."""
    if executed:
        code = executed["code"]
        told = executed.get("error") or executed.get("how", "")
        audit.write("execute", pid=wanted.pid, started_at=wanted.started_at, code=code, result=told)


def _failed(error: RaydoctorError) -> Row:
    return {"failed": error.message, "hint": error.hint}


def _seen_from_outside(wanted: Wanted) -> Row:
    try:
        return _doing(wanted)
    except Exception as error:  # what it shows is welcome, and nothing depends on it
        return {"problem": f"{type(error).__name__}: {error}"}


def _doing(wanted: Wanted) -> Row:
    """What the process does now: its threads, and in what it hangs; nothing where that cannot be seen."""
    tables: dict[str, list[Row]] = {}
    for item in stacks.samples([stacks.Wanted(wanted.pid, wanted.started_at)], _LOOKS):
        if isinstance(item, Piece):
            told = json.loads(item.data)
            tables[told["table"]] = told["rows"]
    rows = tables.get("samples")
    if not rows:
        return {}
    verdict = kind_of(_process(wanted, rows, next(iter(tables.get("clues", ())), {})))
    if verdict is None:
        return {"threads": rows[-1]["threads"]}
    return {"kind": verdict.kind, "words": verdict.summary, "threads": rows[-1]["threads"]}


def _process(wanted: Wanted, rows: list[Row], clues: Row) -> SampledProcess:
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
