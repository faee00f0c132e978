"""A task runs far longer than others of the same function did, or a stack shows where it stands still.

## What you see
`GetTimeoutError`, or nothing at all until somebody presses Ctrl-C. The task is `RUNNING`, its worker lives,
other tasks of the same function have ended long ago.

## Why
The task's own code does not return: a lock taken twice, a socket without a timeout, a subprocess that waits
for input, a loop without end. Ray does not end tasks that take long, and writes nothing about them. What its
logs do show: every core worker prints once a minute how many calls it has answered and how long these took,
and that it still serves one (`CoreWorkerService.grpc_server.PushTask … active`).

Without peers to compare with, a task that still runs is merely slow as far as logs go; then only a stack
decides, and this diagnosis is made only with one.

Of a live cluster, workers whose task has run for a minute are looked at twice, and a capture keeps what was seen: what
stood at one place and used no processor hangs, if its peers were done long ago; without any peers it may
be meant to wait, and is a warning. Whoever waits for it, directly or through others, is counted with it.

## Confirm
- `raydoctor hung`, while it hangs: it looks several times, and shows who waits for whom.
- `ray stack` on its node, or `py-spy dump --pid PID`, twice, ten seconds apart. Put the output beside the logs as
  `ray-stack.txt` (or `stack-PID.txt`) and diagnose again: it says what the task waits for.
- `faulthandler.dump_traceback_later(600)` at the task's start prints its stack into the worker's `.err`; that is read too.
- `top -p PID`: 100 % CPU is a loop or native code, 0 % a lock, a sleep or a socket.

## Fix
What the stack says: a timeout for the socket or subprocess, a `with` for the lock, an end for the loop. To
get on now: `ray.cancel(ref, force=True)`, and a `timeout=` for `ray.get` or `ray.wait` that notices it next time.

## Not this when
The worker waits for others itself (`nested-get-deadlock`, `actor-deadlock`), stands at a breakpoint
(`debugger-waiting`), or the process is stopped (`worker-frozen`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import JOB_FINISHED, RAY_EXCEPTION
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import calls, stacks, waiting
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples as looked
from raydoctor.rules.shared.live import hangs

if TYPE_CHECKING:
    from raydoctor.waits.hung import Group

_DOC = "https://docs.ray.io/en/latest/ray-observability/user-guides/debug-apps/debug-hangs.html"
_LONG, _TIMES = 30.0, 10.0
"""A task is hung, not slow, after so many seconds and so many times what its peers took."""


@rule(
    tier="root",
    severity="error",
    rank=77,
    looks_for=(waiting.INTERRUPTED, *JOB_FINISHED, stacks.PRINTED, RAY_EXCEPTION),
)  # fmt: skip
def task_hung(case: Case) -> Iterator[Finding]:
    """One finding for all tasks that hung while somebody waited; live, one for those that hang at one place."""
    groups = [group for group in hangs.groups(case) if _is_mine(group)]
    yield from (_live_finding(group) for group in groups)
    if groups or not waiting.gave_up(case):
        return
    workers = {w.pid: w for w in calls.busy(case)}
    found = [_beside_peers(case, w) for w in workers.values()]
    hung = {h.pid: h for h in found if h}
    taken = stacks.dumps(case)
    for dump in taken:
        if seen := _stands(dump, hung.get(dump.pid), workers, taken):
            hung[dump.pid] = seen
    if hung:
        yield _finding(sorted(hung.values(), key=lambda h: (-h.lasted, h.pid)))


_OF_OTHERS = (
    "debugger",
    "async-blocked",
    "actor-queue",
    "resources",
    "placement-group",
    "arguments",
    "runtime-env",
    "worker-start",
)

_CERTAIN = ("stopped", "disk")
"""Nobody means a task to do that, however long others took."""


def _is_mine(group: Group) -> bool:
    return not group.cycle and group.first.kind not in _OF_OTHERS


def _live_finding(group: Group) -> Finding:
    """Who stands, in what, where, and who waits for it."""
    from raydoctor.waits.remedies import remedies

    first = group.first
    peers = first.work.peers
    alone = "" if peers else f"; there is no finished {first.work.name} to compare with"
    more = (
        f", and {evidence.many(len(group.culprits) - 1, 'more task')} like it"
        if len(group.culprits) > 1
        else ""
    )
    return hangs.finding(
        group,
        f"{first.work.label} {first.summary}{more}: {first.reason}{alone}{hangs.waiting(group)}",
        remedies(group),
        None if peers or first.kind in _CERTAIN else "warning",
    )


class _Hung(NamedTuple):
    """A task that does not end, and how that shows."""

    name: str
    pid: int
    links: tuple[Link, ...]
    lasted: float = 0.0
    peers: int = 0
    took: float = 0.0
    doing: str = ""
    """What its stack says it does."""
    place: str = ""


def _beside_peers(case: Case, worker: calls.Worker) -> _Hung | None:
    """A worker that answered calls of this one function quickly, and then no more."""
    alone = worker.running and not (worker.calling or worker.leases or worker.actor)
    if not alone or len(worker.names) != 1 or not worker.done or worker.unmoved < calls.LASTING:
        return None
    lasted = _until_the_end(case, worker)
    if lasted < max(_LONG, _TIMES * worker.mean):
        return None
    shows = (
        f"{worker.label} has answered {evidence.many(worker.done, 'call')} in {_seconds(worker.mean)} each on average, and "
        f"still runs another; unchanged for {worker.unmoved:.0f} s"
    )
    return _Hung(
        worker.name, worker.pid, (Link(worker.event, shows),), lasted, worker.done, worker.mean
    )


_NEXT_TABLE = 75.0
"""Seconds after which a living worker has printed its next table; what ended later was told by another clock."""


def _until_the_end(case: Case, worker: calls.Worker) -> float:
    """Seconds from the first of the equal tables to the end of the job, or to the last table."""
    at = worker.event.at or 0.0
    ends = [job.ended - at for job in case.ledger.jobs.values() if job.ended is not None]
    return worker.unmoved + max((e for e in ends if 0 < e < _NEXT_TABLE), default=0.0)


_TELLING = ("lock", "socket", "subprocess", "collective")
"""What one stack is enough for; code that runs or sleeps has to be seen twice at one place."""


def _stands(
    dump: stacks.Dump,
    hung: _Hung | None,
    workers: dict[int, calls.Worker],
    taken: list[stacks.Dump],
) -> _Hung | None:
    """What a stack adds to a hang, or shows alone: a task's or method's own frame."""
    thread = dump.busy
    user = thread.user if thread else None
    worker = workers.get(dump.pid)
    if not dump.is_worker or thread is None or user is None:
        return None
    kind, words = thread.doing
    if kind in ("ray-get", "debugger"):
        return None
    places = [d.busy.user for d in taken if d.pid == dump.pid and d.busy]
    lasting = worker is not None and worker.unmoved >= calls.LASTING
    if not (hung or lasting or kind in _TELLING or places.count(user) > 1):
        return None
    link = Link(dump.event, f"its stack: {words} in {user.place}")
    if hung:
        return _Hung(
            hung.name, hung.pid, (*hung.links, link), hung.lasted, hung.peers, hung.took, words, user.place
        )  # fmt: skip
    return _Hung(dump.name, dump.pid, (link,), doing=words, place=user.place)


def _finding(hung: list[_Hung]) -> Finding:
    first = hung[0]
    more = f", and {evidence.many(len(hung) - 1, 'more task')}" if len(hung) > 1 else ""
    return Finding(
        f"{first.name} (pid {first.pid}) {_what(first)}{more}",
        tuple(link for h in hung[:3] for link in h.links),
        explains=(Entity("waiting", "cluster"),),
        subjects=tuple(
            Subject("actor" if "." in h.name else "task", None, h.name, h.pid) for h in hung[:10]
        ),
        count=len(hung),
        remedies=_remedies(first),
        gaps=() if first.doing else (_gap(first),),
    )


def _what(hung: _Hung) -> str:
    stands = f"{hung.doing} in {hung.place}" if hung.doing else ""
    if not hung.lasted:
        return f"does not end: its stack shows that it {stands}"
    peers = f"the {hung.peers} before it took {_seconds(hung.took)} each"
    return f"has run for at least {hung.lasted:.0f} s; {peers}{f'. It {stands}' if stands else ''}"


def _gap(hung: _Hung) -> Gap:
    return Gap(
        f"stack of pid {hung.pid}",
        "not in the capture: it alone tells a loop from a lock, a socket or a subprocess",
        paste.shell(
            "On its node while it hangs: py-spy dump --pid {pid:pid} > stack-{pid:pid}.txt, and put it beside the logs.",
            pid=hung.pid,
        ),
        optional=True,
    )


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 0.05 else f"{value * 1000:.0f} ms"


_ADVICE = {
    "waits in a collective operation": "every rank must reach the same calls in the same order: take the stacks of all ranks, the "
    "one that stands elsewhere is the culprit",
    "waits for a lock": "release every lock with `with lock:`, never take one twice, and never across ray.get",
    "waits for a socket": "give every connection a timeout (requests.get(…, timeout=30), socket.settimeout(30))",
    "waits for a subprocess": "subprocess.run(…, timeout=600, stdin=subprocess.DEVNULL): it may wait for input",
    "runs Python code": "give the loop an end, and print its progress",
    "runs native code": "look at the library's own settings: threads, tolerance, number of iterations",
}


def _remedies(hung: _Hung) -> tuple[Remedy, ...]:
    steps = (_ADVICE[hung.doing],) if hung.doing in _ADVICE else ()
    look = (
        paste.shell(
            "py-spy dump --pid {pid:pid}                 # twice, ten seconds apart: where it stands",
            pid=hung.pid,
        ),
        "ray stack                                # all workers of a node",
    )
    return (
        Remedy(
            f"Mend {hung.name} where it stands: {hung.place}" if hung.place else f"See where {hung.name} stands",
            steps or look,
            doc=_DOC,
        ),
        Remedy(
            f"End a {hung.name} that takes too long, and try it again",
            (
                paste.python(
                    "ready, late = ray.wait(refs, num_returns=len(refs), timeout={limit:.0f})",
                    limit=max(60.0, 10 * hung.took),
                ),
                "for ref in late: ray.cancel(ref, force=True)   # without force a lock or a socket goes on waiting",
            ),
            risk="disruptive",
            doc="https://docs.ray.io/en/latest/ray-core/tasks.html#cancelling-tasks",
        ),
    )  # fmt: skip


# ------------------------------------------------------------------ examples


_ERROR = (
    '    print("resampled", ray.get([resample.remote(s) for s in range(8)], timeout=90))\n'
    "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
)
_W = "a" * 56


def _table(at: str, done: int, active: int = 1, took: str = "3.5s") -> str:
    return (
        f"[2026-11-21 {at},438 I 471 418] core_worker.cc:591: Event stats:\n\n\nGlobal stats: 822 total (13 active)\n"
        f"\tCoreWorkerService.grpc_server.PushTask - {done + active} total ({active} active), Execution time: mean = 0.500 s, "
        f"total = {took}, Queueing time: mean = 0.00ms, max = -0.00ms, min = 9223372036854.78ms, total = 0.00ms\n"
    )


def _files(core: str, ended: str = "10:45:20") -> dict[str, str]:
    return {
        "logs/gcs_server.out": f"[2026-11-21 {ended},100 I 17 17] (gcs_server) gcs_job_manager.cc:1: {JOB_FINISHED[0].sample}\n",
        "logs/raylet.out": "",
        "driver.log": _ERROR,
        f"logs/python-core-worker-{_W}_471.log": core,
        f"logs/worker-{_W}-01000000-471.out": ":job_id:01000000\n:task_name:resample\n:task_name:resample\n",
    }


_STACK = (
    "Process 471: ray::resample\nPython v3.11.7 (/home/user/venv/bin/python3.11)\n\n"
    'Thread 471 (idle): "MainThread"\n    _wait_for_tstate_lock (threading.py:1119)\n    resample (train.py:31)\n'
    "    main_loop (ray/_private/worker.py:947)\n    <module> (ray/_private/workers/default_worker.py:320)\n"
    'Thread 482 (idle): "ray_print_logs"\n    wait (threading.py:331)\n'
)


_LOAD = sample.running(1, "load", {}, **looked.since(300))
_TRAINS = [sample.running(n, "train", {}, **looked.since(290)) for n in (2, 3)]
_DATABASE = {
    "fd": 9, "type": "tcp", "local": "10.0.0.2:4242", "peer": "10.0.0.9:5432", "state": "ESTABLISHED", "tids": [801],
}  # fmt: skip


def _live(*peers: sample.Row, works: bool = False) -> dict[str, str]:
    """A task that stands in a socket (or works), and two that wait for it."""
    stands = ("SocketIO.readinto", "socket.py", 706), ("load", "etl.py", 31)
    looks = looked.looks(_LOAD, *stands, syscall=45, wchan="wait_woken")
    getting = [row for task in _TRAINS for row in looked.getting(task, ("train", "train.py", 12))]
    return sample.tables(
        nodes=[sample.node({"CPU": 4})],
        tasks=[_LOAD, *_TRAINS],
        samples=[*(looked.working(_LOAD, stands[1]) if works else looks), *getting],
        clues=[
            looked.clues(_LOAD, sockets=[_DATABASE]),
            *(looked.clues(task, _LOAD) for task in _TRAINS),
        ],
        finished=list(peers),
    )


EXAMPLES: tuple[Example, ...] = (
    Example(
        "seven tasks took half a second, the eighth never ends",
        _files(_table("10:42:54", 7) + _table("10:43:54", 7), ended="10:44:20"),
        roots=("task-hung",),
        consequences=("get-timeout",),
        says=(
            "resample (pid 471) has run for at least 86 s",
            "7 before it took 0.5 s",
            "py-spy dump --pid 471",
        ),
    ),
    Example(
        "no peers in the logs, but a stack",
        {**_files(_table("10:43:54", 0)), "ray-stack.txt": _STACK},
        roots=("task-hung",),
        consequences=("get-timeout",),
        says=("waits for a lock in resample (train.py:31)",),
    ),
    Example(
        "a long task among long tasks",
        _files(_table("10:42:54", 2, took="64.2s") + _table("10:43:54", 2, took="64.2s")),
        roots=("get-timeout",),
    ),
    Example(
        "a task without peers and without a stack may simply be slow",
        _files(_table("10:42:54", 0) + _table("10:43:54", 0)),
        roots=("get-timeout",),
    ),
    Example(
        "an actor's method that waits in a collective operation",
        {
            **_files(""),
            "stacks.txt": _STACK.replace("ray::resample", "ray::Trainer.fit").replace(
                "_wait_for_tstate_lock (threading.py:1119)",
                "all_reduce (torch/distributed/distributed_c10d.py:2501)",
            ),
        },
        roots=("task-hung",),
        consequences=("get-timeout",),
        says=("Trainer.fit (pid 471)", "a collective operation in resample (train.py:31)"),
    ),
    Example(
        "faulthandler printed a stack after a minute",
        {
            **_files(_table("10:43:54", 0)),
            f"logs/worker-{_W}-01000000-471.err": ":job_id:01000000\n:task_name:resample\n"
            + stacks.PRINTED.sample.replace(
                '  File "/home/user/project',
                '  File "/usr/lib/python3.11/threading.py", line 327 in wait\n  File "/home/user/project',
                1,
            ),
        },
        roots=("task-hung",),
        consequences=("get-timeout",),
        says=(
            "resample (pid 471)",
            "waits for a lock in resample (/home/user/project/train.py:31)",
        ),
    ),
    Example(
        "live: one task waits for a database that does not answer, and two wait for it",
        _live(looked.took("load", 24, 0.5)),
        roots=("task-hung",),
        says=(
            "load (pid 801)",
            "10.0.0.9:5432",
            "load (etl.py:31)",
            "24 finished peers took 0.50 s",
            "2 train tasks wait for it",
            f"raydoctor attach {_LOAD['task_id']}",
        ),
    ),
    Example(
        "live: without peers it may be meant to wait",
        _live(),
        roots=("task-hung",),
        says=("no finished load to compare with",),
    ),
    Example("live: its peers took as long", _live(looked.took("load", 24, 120))),
    Example("live: it uses a processor and has no peers", _live(works=True)),
    Example(
        "a stack taken while everything works, and nobody gave up",
        {
            "logs/gcs_server.out": "",
            "logs/raylet.out": "",
            "driver.log": "epoch 1\n",
            "ray-stack.txt": _STACK,
        },
    ),
)
