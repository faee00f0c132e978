"""Attaching to a process of this machine, and what is wanted in it: JSON in, JSON out.

A debugger listens on loopback, so what goes through it is done on the process's own node: `raydoctor attach`
calls this directly, or has it called there (`collect/there.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from raydoctor.act import debug
from raydoctor.act.attach import Attached, Wanted, attach, listening, wake
from raydoctor.act.audit import Audit
from raydoctor.act.debug import Place, Wishes
from raydoctor.collect import proc, stacks
from raydoctor.errors import RaydoctorError

Row = dict[str, Any]
Tell = Callable[[str], None]
_LOOK_S = 3.0


def respond(asked: Row) -> Row:
    """Attach, and do what is wished. What went wrong is in the answer, with what could be seen."""
    return run(asked)


def run(asked: Row, tell: Tell = lambda doing: None) -> Row:
    """The same, telling meanwhile what is being done.

    `pid`, `ip`, `worker`, `node`, `debugger` as `_attach_target.Found` has them, `title` for the audit;
    `host`, `port` (0: any) to listen on; `wishes` of `debug.Wishes`.
    """
    try:
        wanted = _wanted(asked)
    except RaydoctorError as error:
        return _failed(error)
    told: Row = {"folder": _folder(wanted.pid), "doing": _doing(wanted)}
    began = time.monotonic()
    tell("attaching")
    try:
        audit = Audit(f"attach {asked.get('title') or wanted.pid}")
        attached = _paused(asked, wanted) or attach(
            wanted, port=asked["port"] or None, host=asked["host"], tell=tell, audit=audit
        )
        told["attached"] = {**_plain(attached), "seconds": round(time.monotonic() - began, 2)}
        told["audit_problem"] = audit.problem
        told["seen"] = _act(attached, Wishes(**asked["wishes"]), tell)
    except RaydoctorError as error:
        told.update(_failed(error))
    return told


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
    }


def _act(attached: Attached, wishes: Wishes, tell: Tell) -> Row:
    if not any((wishes.stack, wishes.variables, wishes.evaluate, wishes.choose, wishes.execute)):
        return {}
    tell("looking inside")
    return asdict(debug.act(Place(attached.pid, attached.host, attached.port), wishes, wake))


def _failed(error: RaydoctorError) -> Row:
    return {"failed": error.message, "hint": error.hint}


def _doing(wanted: Wanted) -> list[Row]:
    """The threads of the process as they are now; none where they cannot be seen."""
    subject = stacks.Wanted(wanted.pid, wanted.started_at)
    rows = stacks.rows([subject], variables=False, native=False, timeout=_LOOK_S)
    return list(rows[0]["threads"]) if rows else []


def _folder(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
