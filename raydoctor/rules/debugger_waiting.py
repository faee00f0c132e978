"""A task or actor stopped at a breakpoint and waits for a debugger to attach.

## What you see
A task never ends and uses no CPU. The driver printed one of these messages once, among other output:
- `RemotePdb session open at HOST:PORT, use 'ray debug' to connect...` (up to Ray 2.9, or with `RAY_DEBUG=legacy`)
- `Ray debugger is listening on HOST:PORT` and `Waiting for debugger to attach` (the default in later versions:
  debugpy, for VS Code)

## Why
The code calls `breakpoint()` or `ray.util.pdb.set_trace()`, or it raised an exception and `RAY_DEBUG_POST_MORTEM=1` is
set (`RAY_PDB` with `RAY_DEBUG=legacy`). Ray stops the task until a client connects, without a time limit. The task
keeps its resources. Meanwhile every process that reaches the port can run code in the worker: Ray binds it to the
node's address and asks for no password.

## Confirm
- The worker's `.err` contains the message, and no later line records that a client connected.
- `ray list workers --detail` shows a worker with `num_paused_threads` above 0.
- `raydoctor attach` without an argument lists the processes that wait now.

## Fix
- Attach and continue: RemotePdb with `ray debug`, debugpy with `raydoctor attach TASK` or VS Code.
- Or remove the breakpoint, unset `RAY_DEBUG_POST_MORTEM`, and cancel the task: `raydoctor cancel TASK`. An actor's
  method: `raydoctor cancel TASK --kill-actor`, which loses the actor's state.

## Not this when
- a client connected (`RemotePdb accepted connection from`, `Debugger client is connected`): a person is debugging the
  task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import RAY_EXCEPTION
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import stacks, waiting
from raydoctor.rules.shared.live import examples as sample

_OUTPUT = ("worker-err", "worker-echo")

LEGACY_OPEN = Signal(
    "debugger.open", "RemotePdb session open at ",
    r"^RemotePdb session open at (?P<address>\S+), use 'ray debug' to connect", _OUTPUT,
    "RemotePdb session open at localhost:42285, use 'ray debug' to connect...",
)  # fmt: skip
DEBUGPY_OPEN = Signal(
    "debugger.open", "Ray debugger is listening on ",
    r"Ray debugger is listening on (?P<address>\S+)", _OUTPUT, "Ray debugger is listening on 10.0.0.2:38111",
)  # fmt: skip
DEBUGPY_WAITS = Signal(
    "debugger.waits", "Waiting for debugger to attach (see ", r"Waiting for debugger to attach \(see ", _OUTPUT,
    "Waiting for debugger to attach (see https://docs.ray.io/en/latest/ray-observability/ray-distributed-debugger.html)...",
)  # fmt: skip
CONNECTED = (
    Signal(
        "debugger.connected", "RemotePdb accepted connection from ", r"^RemotePdb accepted connection from ", _OUTPUT,
        "RemotePdb accepted connection from ('127.0.0.1', 40012).",
    ),
    Signal(
        "debugger.connected", "Debugger client is connected", r"Debugger client is connected", _OUTPUT,
        "Debugger client is connected",
    ),
)  # fmt: skip
"""`ray/util/rpdb.py` and `ray/util/debugpy.py` of Ray 2.9.3 and 2.60."""

_DOC = "https://docs.ray.io/en/latest/ray-observability/ray-distributed-debugger.html"
_LEGACY_DOC = (
    "https://docs.ray.io/en/latest/ray-observability/user-guides/debug-apps/ray-debugging.html"
)


@rule(
    tier="root",
    severity="error",
    rank=72,
    explains=("debugger", "waiting"),
    looks_for=(LEGACY_OPEN, DEBUGPY_OPEN, DEBUGPY_WAITS, *CONNECTED, waiting.INTERRUPTED, RAY_EXCEPTION),
)  # fmt: skip
def debugger_waiting(case: Case) -> Iterator[Finding]:
    """One finding for all processes that wait for a client."""
    waits = _waits(case)
    if not waits:
        return
    first = waits[0]
    more = f" (and {evidence.many(len(waits) - 1, 'more process', 'more processes')})" * (
        len(waits) > 1
    )
    where = f" on {first.address}" if first.address else ""
    over = _is_over(case)
    yield Finding(
        f"A breakpoint stopped {first.label}{more}, which waits for a debugger{where}, and no log records a connection",
        tuple(link for wait in waits[:3] for link in _links(wait)),
        explains=(
            *(Entity("debugger", str(w.pid)) for w in waits),
            *((Entity("waiting", "cluster"),) if waiting.gave_up(case) else ()),
        ),
        subjects=tuple(Subject("task", None, w.name or None, w.pid) for w in waits[:10]),
        count=len(waits),
        # A live row is certain: such a worker never continues by itself. A log record may be old.
        severity="error" if waiting.gave_up(case) or any(w.row for w in waits) else "warning",
        remedies=_next_time(first) if over else _remedies(first),
        covers=tuple(event for w in waits for event in (w.event, w.row) if event),
    )


def _is_over(case: Case) -> bool:
    """Whether every known job has ended, so that no process waits there now."""
    jobs = case.ledger.jobs.values()
    return bool(jobs) and all(job.ended is not None for job in jobs)


class _DebuggerWait(NamedTuple):
    """A process that waits for a debugger's client."""

    pid: int
    name: str
    address: str
    legacy: bool
    event: Event
    row: Event | None = None
    """Its worker in a live collection."""

    @property
    def label(self) -> str:
        return f"{called(self.name) or 'a worker'} (pid {self.pid})"


def _waits(case: Case) -> list[_DebuggerWait]:
    """Processes that opened a debugger and to which no client connected."""
    connected = {e.pid for e in case.of("debugger.connected")}
    found: dict[int, _DebuggerWait] = {}
    for event in case.of("debugger.open", "debugger.waits"):
        pid = event.pid or 0
        if pid in connected:
            continue
        seen = found.get(pid)
        if seen is None or not seen.address:
            legacy = event.message.startswith("RemotePdb")
            found[pid] = _DebuggerWait(pid, _name(case, event), event["address"], legacy, event)
    for dump in stacks.dumps(case):
        if any(t.doing[0] == "debugger" for t in dump.threads) and dump.pid not in found:
            found[dump.pid] = _DebuggerWait(dump.pid, dump.name, "", False, dump.event)
    return _with_live(case, found, connected)


def _with_live(
    case: Case, found: dict[int, _DebuggerWait], connected: set[int | None]
) -> list[_DebuggerWait]:
    """Adds what the live tables show: workers that wait and their ports, without workers that ended."""
    workers = [
        e for e in live.rows(case, "workers") if live.truth(e, "is_alive") and e.pid is not None
    ]
    for row in workers:
        pid = row.pid or 0
        if pid in connected or not live.number(row, "num_paused_threads"):
            continue
        port, ip = live.whole(row, "debugger_port"), row["ip"]
        address = f"{ip}:{port}" if port else ""
        seen = found.get(pid)
        if seen is None:
            found[pid] = _DebuggerWait(pid, _task_of(case, row), address, False, row, row)
        else:
            found[pid] = seen._replace(
                name=seen.name or _task_of(case, row), address=seen.address or address, row=row
            )
    head = live.looked(case, "workers")
    if head is None or head["rows"] != head["total"]:
        return list(found.values())
    alive = {e.pid for e in workers}
    return [wait for pid, wait in found.items() if pid in alive]


def _task_of(case: Case, worker: Event) -> str:
    """The task that the worker runs: Ray marks no task as paused (`is_debugger_paused` is empty, 2.60)."""
    same = (
        e
        for e in live.rows(case, "tasks")
        if e.pid == worker.pid and e["worker_id"] == worker["worker_id"] and e["state"] == "RUNNING"
    )
    names = [*case.names.get(worker["worker_id"], ()), *(e["name"] for e in same)]
    return names[-1] if names else ""


def _name(case: Case, event: Event) -> str:
    """The task as the driver's output names it, or the last one that the worker started."""
    worker = evidence.worker_of(event)
    names = case.names.get(worker, ())
    return event["who"].partition("(")[0] or (names[-1] if names else "")


_FIND = "grep -rn 'breakpoint()\\|set_trace()' ."
_LEGACY = Remedy(
    "Attach a debugger and continue",
    (
        "ray debug                          # on the head. Choose the session, then enter c to continue",
    ),
    doc=_LEGACY_DOC,
)


def _next_time(wait: _DebuggerWait) -> tuple[Remedy, ...]:
    attach = _LEGACY.steps if wait.legacy else (_attach(wait),)
    return (
        Remedy(f"Remove the breakpoint from {_function(wait)}", (_FIND,), doc=_DOC),
        Remedy("Or run the program again, and attach while it waits", attach, doc=_DOC),
    )


def _function(wait: _DebuggerWait) -> str:
    return called(wait.name) or "the task"


def _attach(wait: _DebuggerWait) -> str:
    return paste.shell("raydoctor attach {task}", task=wait.name or str(wait.pid))


def _remedies(wait: _DebuggerWait) -> tuple[Remedy, ...]:
    return (
        *((_LEGACY,) if wait.legacy else _by_debugpy(wait)),
        Remedy(f"Or remove the breakpoint from {_function(wait)}", (_FIND,), doc=_DOC),
        Remedy(
            "And cancel the task, which still waits. raydoctor shows its steps and asks",
            (
                paste.shell(
                    "raydoctor cancel {task}   # an actor's method: --kill-actor, which loses the actor's state",
                    task=wait.name or str(wait.pid),
                ),
            ),
            risk="disruptive",
            doc=_DOC,
        ),
    )


def _by_debugpy(wait: _DebuggerWait) -> tuple[Remedy, ...]:
    host, _, port = wait.address.rpartition(":")
    where = f" to {wait.address}" if wait.address else ""
    first = Remedy(f"Attach a debugger{where} and continue", (_attach(wait),), doc=_DOC)
    if not host:
        return (first,)
    is_open = not host.startswith("127.")
    warning = ". Every process that reaches this port can run code in the worker: Ray asks for no password"
    launch = paste.python(
        '{{"type": "debugpy", "request": "attach", "connect": {{"host": {host}, "port": {port:number}}}}}',
        host=host,
        port=port,
    )
    title = f"Or use this launch configuration in VS Code{warning if is_open else ''}"
    return (first, Remedy(title, (launch,), doc=_DOC))


def _links(wait: _DebuggerWait) -> Iterator[Link]:
    """Its log record, and its row in a live collection."""
    if wait.event is not wait.row:
        yield Link(wait.event, f"{wait.label} opened a debugger port and waits")
    if wait.row:
        threads = live.whole(wait.row, "num_paused_threads") or 1
        paused = evidence.many(threads, "thread is", "threads are")
        yield Link(wait.row, f"{paused} paused now at a breakpoint in {wait.label}")


# ------------------------------------------------------------------ examples

_ERROR = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
_W = "7f8a94bb4c5d65c0b14b5172c804b8ed21fbec4162ecaa5b179bd46d"


def _live(paused: int) -> dict[str, str]:
    """A task's worker as the state API returns it, and a worker that has ended."""
    task = {
        "task_id": "1" * 48,
        "name": "clean",
        "state": "RUNNING",
        "worker_id": _W,
        "worker_pid": 401,
    }
    rows = [
        {"worker_id": _W, "is_alive": True, "pid": 401, "ip": "10.0.0.2", "debugger_port": 57419, "num_paused_threads": paused},
        {"worker_id": "b" * 56, "is_alive": False, "pid": 399, "ip": "10.0.0.2", "debugger_port": None, "num_paused_threads": None},
    ]  # fmt: skip
    return sample.tables(1795260600.0, workers=rows, tasks=[task])


EXAMPLES: tuple[Example, ...] = (
    Example(
        "`breakpoint()` with Ray's older debugger",
        {**QUIET_LOGS, "driver.log": f"(transform pid=399) {LEGACY_OPEN.sample}\n{_ERROR}"},
        consequences=("get-timeout",),
        says=("transform() (pid 399)", "localhost:42285", "ray debug"),
    ),
    Example(
        "breakpoint() with debugpy, seen in the worker's own log",
        {
            **QUIET_LOGS,
            f"logs/worker-{'a' * 56}-01000000-401.err": f":job_id:01000000\n:task_name:clean\n{DEBUGPY_OPEN.sample}\n{DEBUGPY_WAITS.sample}\n",
            "driver.log": _ERROR,
        },
        consequences=("get-timeout",),
        says=("10.0.0.2:38111",),
    ),
    Example(
        "the live tables show a waiting worker, and an earlier worker has ended",
        {
            **QUIET_LOGS,
            "driver.log": f"(transform pid=399) {LEGACY_OPEN.sample}\n",
            **_live(paused=1),
        },
        says=("clean() (pid 401)", "10.0.0.2:57419", "raydoctor attach clean"),
    ),
    Example(
        "the live tables show no waiting worker",
        {
            **QUIET_LOGS,
            **_live(paused=0),
        },
    ),
    console(
        "a client attached",
        f"(transform pid=399) {LEGACY_OPEN.sample}\n(transform pid=399) {CONNECTED[0].sample}\ndone\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a program prints text about debuggers",
        "(train pid=7) hint: RemotePdb session open at means ray debug\n",
        logs=QUIET_LOGS,
    ),
)
