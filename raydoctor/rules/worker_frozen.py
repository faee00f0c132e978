"""A worker process stopped answering Ray for minutes although it was alive, so Ray treated it as dead.

## What you see
`WorkerCrashedError` or `ActorUnavailableError` about seven minutes after the task started, without a crash, an OOM kill
or a signal. The recorded exit, the driver's core log or the exception contains `keepalive watchdog timeout`.

## Why
Ray pings an idle connection after 300 s and waits 120 s for the answer. A C++ thread answers, whatever Python is doing,
so only a process that is stopped as a whole does not answer. Possible causes are SIGSTOP (Ctrl-Z, or a batch system
that suspends jobs), an attached debugger (gdb, ptrace), a read from a dead NFS or FUSE mount, a paused virtual machine
or container, or a network that drops packets. Measured with Ray 2.60: Ray gives up a worker that was stopped by SIGSTOP
after 7 min 1 s. A thread that holds the GIL does not cause this.

## Confirm
- On the worker's node, the column STAT of `ps -o pid,stat,wchan:30,cmd -p PID` shows `T` for a stopped process, `t` for
  one held by a debugger, and `D` for one that waits for a disk.
- `sudo dmesg -T | grep -iE 'hung_task|nfs|blocked for more than'` lists processes that the kernel found blocked.

## Fix
Find what stopped the process: check the batch system's log, the mount and the hypervisor. `kill -CONT PID` resumes a
stopped process.

## Not this when
- the whole node was unreachable (`node-died`).
- the process exited by itself: the recorded exit then contains `End of file`.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import TASK_ATTEMPT_FAILED, TASK_FAILED, WORKER_DIED, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import ended

_WATCHDOG = "keepalive watchdog timeout"


@rule(
    tier="cause",
    severity="error",
    rank=32,
    explains=("process", "worker"),
    caused_by=("node",),
    looks_for=(WORKER_EXIT, WORKER_DIED, TASK_FAILED, TASK_ATTEMPT_FAILED),
)  # fmt: skip
def worker_frozen(case: Case) -> Iterator[Finding]:
    """One finding per node: one cause often stops several processes of a node."""
    by_node: dict[str, list[WorkerExit]] = {}
    for exit_ in case.exits:
        if _WATCHDOG in exit_.detail or any(_WATCHDOG in e.message for e in exit_.events):
            by_node.setdefault(exit_.node, []).append(exit_)
    for exits in by_node.values():
        yield _finding(case, exits)


def _finding(case: Case, exits: list[WorkerExit]) -> Finding:
    count = evidence.deaths(exits)
    alive = (
        "although the process was alive, so Ray treated it"
        if count == 1
        else "although they were alive, so Ray treated them"
    )
    links = [
        Link(link.event, _shows(link.shows))
        for e in exits[:3]
        for link in evidence.exit_links(e, most=1)
    ]
    links += [Link(e, "the caller's keepalive pings got no answer") for e in _attempts(case)[:1]]
    return Finding(
        f"{ended.workers(exits)} stopped answering {alive} as dead: possible causes are SIGSTOP, a debugger, "
        f"a hung disk or a network that drops packets{evidence.recovery(case, exits)}",
        tuple(links),
        explains=evidence.exit_entities(exits),
        caused_by=tuple(Entity("node", e.node) for e in exits if e.node),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=count,
        severity=evidence.severity(case, exits),
        remedies=_remedies(case, exits),
        covers=(*evidence.exit_events(exits), *_attempts(case), *evidence.attempts_covered(case, exits), *evidence.unreachable_nodes(case)),
    )  # fmt: skip


def _shows(text: str) -> str:
    return f"{text}, after the keepalive watchdog timed out"


def _attempts(case: Case) -> list[Event]:
    return [e for e in case.of("task.attempt_failed", "task.failed") if _WATCHDOG in e.message]


def _remedies(case: Case, exits: list[WorkerExit]) -> tuple[Remedy, ...]:
    pid = exits[0].pid or ""
    return (
        Remedy(
            "Find what stopped the process, on the worker's node",
            (
                paste.shell(
                    "ps -o pid,stat,wchan:30,cmd -p {pid:pid}      # T: stopped, t: held by a debugger, D: waits for I/O",
                    pid=pid,
                ),
                "sudo dmesg -T | grep -iE 'hung_task|nfs|blocked for more than'",
            ),
        ),
        Remedy(
            "If its state is T, end or resume the process: Ray has already treated it as dead, and no longer uses its result",
            (
                paste.shell("kill -KILL {pid:pid}   # on the node of the worker", pid=pid),
                paste.shell("kill -CONT {pid:pid}   # instead, if it must clean up", pid=pid),
            ),
        ),
        Remedy(
            "Make Ray wait longer if the process is paused on purpose (a debugger, a suspended virtual machine)",
            (
                "export RAY_grpc_client_keepalive_time_ms=1800000   # on every node, before ray start, or before your program if it starts Ray (default: 300000)",
                "export RAY_grpc_client_keepalive_timeout_ms=600000   # default 120000",
            ),
            risk="disruptive",
        ),
        *ended.retries(case, exits, "Let Ray retry on another worker"),
    )  # fmt: skip


# ------------------------------------------------------------------ examples

_W = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
_N = "4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483"


def _exit(detail: str) -> dict[str, str]:
    return {
        "logs/gcs_server.out": "[2026-11-21 10:58:54,080 W 17 17] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, "
        f"worker id = {_W}, node id = {_N}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = {detail}. Unintentional "
        "worker failures have been reported. If there are lots of this logs, that might indicate there are unexpected failures in "
        "the cluster.\n",
        "logs/raylet.out": "",
    }


_LEASED = "The leased worker has unrecoverable failure. Worker is requested to be destroyed when it is returned. "

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the exit names the watchdog (2.52 and later)",
        _exit(f"{_LEASED}RPC error: {_WATCHDOG}"),
        says=("stopped answering", "kill -CONT"),
    ),
    Example(
        "the same exit as Ray 2.9.3 records it",
        _exit(f"{_LEASED}RPC Error message: {_WATCHDOG}; RPC Error details: "),
        roots=("worker-frozen",),
    ),
    Example(
        "a worker that exited: its socket was closed, and no ping timed out",
        _exit(f"{_LEASED}RPC error: Socket closed"),
        roots=("worker-vanished",),
    ),
)
