"""A task is hung: it runs far longer than finished tasks of the same function, or its call stack does not change.

## What you see
The program gets `GetTimeoutError`, or prints nothing until it is interrupted. The task is in state `RUNNING`, its
worker process is alive, and other tasks of the same function finished long ago.

## Why
The task's code does not return: it takes a lock twice, reads a socket without a timeout, waits for a subprocess that
waits for input, or loops forever. Ray does not end long tasks and logs nothing about them. The logs show one thing:
every core worker logs once a minute how many calls it has answered, how long these took, and whether it is still
serving a call (`CoreWorkerService.grpc_server.PushTask … active`).

If no task of the same function has finished, the logs cannot distinguish a hung task from a slow one. Then this rule
needs a call stack.

On a live cluster raydoctor takes two samples of every worker whose task has run for a minute, and a capture keeps the
samples. A task is reported as hung when its stack has not changed, it used no CPU, and finished tasks of the same
function took far less time. If no task of the function has finished, the task may be waiting on purpose, so raydoctor
reports it as a warning. Tasks that wait for the hung task, directly or through others, are counted with it. If a
heartbeat thread or a call to an idle actor may still end the wait, raydoctor reports the task as information only.
If an exception has ended a thread of the process, the report names it: nothing else may set the event, fill the queue
or release the lock that the task waits for.

A task whose process has ended is reported immediately. Ray detects the end of a worker when its connections close, and
a process that the task forked (`os.fork`, `multiprocessing` with `fork`) keeps the connections open until it ends
itself.

## Confirm
- While the task hangs, `raydoctor hung` takes several samples and shows which process waits for which.
- Run `ray stack` on the task's node, or `py-spy dump --pid PID`, twice, ten seconds apart: the stack of a hung task
  does not change. Save the output as `ray-stack.txt` (or `stack-PID.txt`) in the folder of the logs, and diagnose that
  folder again: the report then names what the task waits for.
- `faulthandler.dump_traceback_later(600)` at the start of the task prints its stack into the worker's `.err` file,
  which raydoctor reads.
- `top -p PID` shows 100% CPU for a loop or native code, and 0% for a lock, a sleep or a socket.

## Fix
Fix the line that the stack shows: add a timeout to the socket or subprocess, use `with` for the lock, or make the loop
end. To end the task now, use `ray.cancel(ref, force=True)`. To notice a hang next time, pass `timeout=` to `ray.get` or
`ray.wait`.

## Not this when
- the worker itself waits for other tasks (`nested-get-deadlock`, `actor-deadlock`).
- the worker stopped at a breakpoint (`debugger-waiting`).
- the worker's process is stopped (`worker-frozen`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, rule
from raydoctor.case.signals import JOB_FINISHED, RAY_EXCEPTION, TRACEBACK
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import called, duration
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import calls, stacks, waiting
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import hang_examples as sampled
from raydoctor.rules.shared.live import hangs, processes
from raydoctor.rules.shared.traceback import Raised, parse

if TYPE_CHECKING:
    from raydoctor.waits.hung import Hung, HungGroup

_DOC = "https://docs.ray.io/en/latest/ray-observability/user-guides/debug-apps/debug-hangs.html"
_LONG, _TIMES = 30.0, 10.0
"""A task is hung, not slow, after this many seconds and this many times the mean of its peers."""


@rule(
    tier="root",
    severity="error",
    rank=77,
    explains=("process", "task", "waiting"),
    looks_for=(waiting.INTERRUPTED, *JOB_FINISHED, stacks.PRINTED, RAY_EXCEPTION, TRACEBACK),
)  # fmt: skip
def task_hung(case: Case) -> Iterator[Finding]:
    """One finding for all hung tasks of a driver that gave up waiting; live, one per group of hung tasks."""
    groups = [group for group in hangs.groups(case) if _is_mine(group)]
    yield from (_live_finding(case, group) for group in groups)
    yield from (_open_finding(hung) for hung in hangs.open_waits(case)[:_OPEN])
    if groups or not waiting.gave_up(case):
        return
    workers = {w.pid: w for w in calls.busy(case)}
    found = [_slower_than_peers(case, w) for w in workers.values()]
    hung = {h.pid: h for h in found if h}
    taken = stacks.dumps(case)
    for dump in taken:
        if known := _with_stack(dump, hung.get(dump.pid), workers, taken):
            hung[dump.pid] = known
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

_THREAD = "_bootstrap_inner"
"""The outermost frame of a thread, in `threading.py`."""
_CERTAIN = ("stopped", "disk", "process-ended")
"""Never intended by a task, however long its peers took."""


def _is_mine(group: HungGroup) -> bool:
    return not group.cycle and group.first.kind not in _OF_OTHERS


def _live_finding(case: Case, group: HungGroup) -> Finding:
    """What a task waits for, at which line, and which tasks wait for it."""
    from raydoctor.waits.remedies import remedies

    first = group.first
    peers, ended = first.work.peers, _ended_thread(case, first)
    alone = (
        ""
        if peers or ended or first.kind in _CERTAIN
        else f", with no finished {first.work.called} to compare with"
    )
    more = (
        f", and {evidence.many(len(group.culprits) - 1, 'more task')} like it"
        if len(group.culprits) > 1
        else ""
    )
    after = (
        f", after {ended[1].name} in {ended[1].place} ended a thread of its process"
        if ended
        else ""
    )
    blocked = hangs.behind(group)
    blocks = f"{'block' if more else 'blocks'} {blocked}; it " if blocked else ""
    found = hangs.finding(
        group,
        f"{_subject(first.work.name, first.work.label, first.work.kind)} {first.summary}{more}{after}, and {blocks}{first.reason}{alone}",
        remedies(group),
        None if peers or first.kind in _CERTAIN else "warning",
    )
    return _with_ended_thread(found, *ended) if ended else found


def _ended_thread(case: Case, hung: Hung) -> tuple[Event, Raised] | None:
    """The first exception of the user's code that ended a thread, if the process waits for what threads do.

    Python prints such an exception from the thread's outermost frame on. Code that catches and prints one
    prints it from its own frame on.
    """
    if hung.kind != "lock":
        return None
    worker = Entity("worker", hung.work.worker)
    for event in case.of(TRACEBACK.kind):
        raised = parse(event.message) if worker in event.entities else None
        place = raised.place if raised and raised.frames[:1] else None
        if raised and place and place.is_user_code and raised.frames[0].function == _THREAD:
            return event, raised
    return None


def _with_ended_thread(found: Finding, event: Event, raised: Raised) -> Finding:
    """The finding with the exception as its likely cause."""
    fix = Remedy(f"Fix {raised.place}, whose exception ended its thread: {raised.name}")
    return replace(
        found,
        chain=(Link(event, "this exception ended a thread of the process"), *found.chain),
        remedies=(fix, *(found.remedies or ())),
    )


_OPEN = 5


def _open_finding(hung: Hung) -> Finding:
    """A long wait that may be a hang, or on purpose: it explains nothing else."""
    name = _subject(hung.work.name, hung.work.label, hung.work.kind)
    since = duration(hung.work.age)
    return Finding(
        f"{name} has run for {since} and {hung.summary}: the wait may never end",
        tuple(hangs.links(hung)),
        subjects=(hung.work.subject,),
        severity="info",
        remedies=(
            Remedy(
                "Check what has to end the wait",
                (paste.shell("raydoctor stack {name} --locals", name=hung.work.id),),
                doc=_DOC,
            ),
        ),
    )


def _subject(name: str, label: str, kind: str = "") -> str:
    """`Task load (pid 801)`, `Actor method Trainer.fit (pid 471)`, `The driver of job 1 (pid 7)`."""
    if kind == "driver":
        return f"The {label}"
    is_method = "." in name and name.replace(".", "").isidentifier()
    return f"{'Actor method' if is_method else 'Task'} {label}"


class _Hung(NamedTuple):
    """A hung task, with its evidence."""

    name: str
    pid: int
    links: tuple[Link, ...]
    lasted: float = 0.0
    peers: int = 0
    took: float = 0.0
    doing: str = ""
    """What it does according to its stack: `waits for a lock`."""
    kind: str = ""
    """The kind of that: `lock`."""
    place: str = ""


def _slower_than_peers(case: Case, worker: calls.Worker) -> _Hung | None:
    """A worker that answered earlier calls of its only function quickly, but not the current one."""
    alone = worker.running and not (worker.calling or worker.leases or worker.actor)
    if not alone or len(worker.names) != 1 or not worker.done or worker.unmoved < calls.LASTING:
        return None
    lasted = _until_the_end(case, worker)
    if lasted < max(_LONG, _TIMES * worker.mean):
        return None
    shows = (
        f"{worker.label} answered {evidence.many(worker.done, 'call')} in {_seconds(worker.mean)} each on average, and "
        f"has been running the next one for at least {lasted:.0f} s"
    )
    return _Hung(
        worker.name, worker.pid, (Link(worker.event, shows),), lasted, worker.done, worker.mean
    )


_NEXT_TABLE = 75.0
"""Seconds after which a running worker has printed its next table: a later end comes from another clock."""


def _until_the_end(case: Case, worker: calls.Worker) -> float:
    """Seconds from the first of the equal tables to the end of the job, or to the last table."""
    at = worker.event.at or 0.0
    ends = [job.ended - at for job in case.ledger.jobs.values() if job.ended is not None]
    return worker.unmoved + max((e for e in ends if 0 < e < _NEXT_TABLE), default=0.0)


_ONE_STACK = ("lock", "socket", "subprocess", "collective")
"""Waits that one stack proves; code that runs or sleeps must be at the same line in two stacks."""


def _with_stack(
    dump: stacks.StackDump,
    hung: _Hung | None,
    workers: dict[int, calls.Worker],
    taken: list[stacks.StackDump],
) -> _Hung | None:
    """A hang with the evidence of a stack, which must contain a frame of the user's code."""
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
    if not (hung or lasting or kind in _ONE_STACK or places.count(user) > 1):
        return None
    link = Link(dump.event, f"its call stack shows that it {words} in {user.place}")
    if hung:
        return _Hung(
            hung.name, hung.pid, (*hung.links, link), hung.lasted, hung.peers, hung.took, words, kind, user.place
        )  # fmt: skip
    return _Hung(dump.name, dump.pid, (link,), doing=words, kind=kind, place=user.place)


def _finding(hung: list[_Hung]) -> Finding:
    first = hung[0]
    more = f", and {evidence.many(len(hung) - 1, 'more task')}" if len(hung) > 1 else ""
    return Finding(
        f"{_subject(first.name, f'{called(first.name)} (pid {first.pid})')} {_what(first)}{more}",
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
    doing = f"{hung.doing} in {hung.place}" if hung.doing else ""
    if not hung.lasted:
        return f"is hung: it {doing}"
    peers = f"but the {hung.peers} before it took {_seconds(hung.took)} each"
    return f"has run for at least {hung.lasted:.0f} s, {peers}{f': it {doing}' if doing else ''}"


def _gap(hung: _Hung) -> Gap:
    return Gap(
        f"stack of pid {hung.pid}",
        "only a stack distinguishes a loop from a lock, a socket or a subprocess",
        paste.shell(
            "On its node while it hangs: py-spy dump --pid {pid:pid} > stack-{pid:pid}.txt. Put the file into the folder with the logs, and diagnose that folder again.",
            pid=hung.pid,
        ),
        optional=True,
    )


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 0.05 else f"{value * 1000:.0f} ms"


_ADVICE = {
    "collective": "# compare the stacks of all ranks: every rank must make the same calls in the same order, so the "
    "rank at another line is the cause",
    "lock": "# take every lock in a with block, never take one twice, and never hold one during ray.get",
    "socket": "# give every connection a timeout (requests.get(…, timeout=30), sock.settimeout(30))",
    "subprocess": "subprocess.run(…, timeout=600, stdin=subprocess.DEVNULL)   # the subprocess may wait for input",
    "python-loop": "# give the loop an end condition, and print its progress",
    "native": "# check the settings of the library: threads, tolerance, number of iterations",
}


def _remedies(hung: _Hung) -> tuple[Remedy, ...]:
    limit = max(60.0, 10 * hung.took)
    steps = (_ADVICE[hung.kind],) if hung.kind in _ADVICE else ()
    take_stacks = (
        paste.shell(
            "py-spy dump --pid {pid:pid}   # twice, ten seconds apart: compare the lines",
            pid=hung.pid,
        ),
        "ray stack   # all workers of a node",
    )
    return (
        Remedy(
            f"Fix the line at which {called(hung.name)} hangs: {hung.place}" if hung.place else f"Take two stacks of {called(hung.name)} to see where it hangs",
            steps or take_stacks,
            doc=_DOC,
        ),
        Remedy(
            f"Cancel each call of {called(hung.name)} that takes longer than {limit:.0f} s, and submit it again",
            (
                paste.python(
                    "ready, late = ray.wait(refs, num_returns=len(refs), timeout={limit:.0f})",
                    limit=limit,
                ),
                "for ref in late: ray.cancel(ref, force=True)   # without force a wait for a lock or a socket continues",
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


_LOAD = sample.running(1, "load", {}, **sampled.since(300))
_TRAINS = [sample.running(n, "train", {}, **sampled.since(290)) for n in (2, 3)]
_DATABASE = {
    "fd": 9, "type": "tcp", "local": "10.0.0.2:4242", "peer": "10.0.0.9:5432", "state": "ESTABLISHED", "tids": [801],
}  # fmt: skip


def _live(*peers: sample.Row, is_busy: bool = False) -> dict[str, str]:
    """A task that waits for a socket (or uses CPU), and two that wait for it."""
    frames = ("SocketIO.readinto", "socket.py", 706), ("load", "etl.py", 31)
    samples = sampled.waiting(_LOAD, *frames, syscall=45, wchan="wait_woken")
    getting = [row for task in _TRAINS for row in sampled.getting(task, ("train", "train.py", 12))]
    return sample.tables(
        nodes=[sample.node({"CPU": 4})],
        tasks=[_LOAD, *_TRAINS],
        samples=[*(sampled.working(_LOAD, frames[1]) if is_busy else samples), *getting],
        clues=[
            sampled.clues(_LOAD, sockets=[_DATABASE]),
            *(sampled.clues(task, _LOAD) for task in _TRAINS),
        ],
        finished=list(peers),
    )


def _after_a_thread(first_frame: str) -> dict[str, str]:
    """A task that waits for an event, and a traceback in the log of its worker."""
    task = sample.running(1, "load", {}, worker_id=_W, **sampled.since(300))
    frames = ("Condition.wait", "threading.py", 327), ("Event.wait", "threading.py", 629)
    return {
        **sample.tables(
            nodes=[sample.node({"CPU": 4})],
            tasks=[task],
            samples=sampled.waiting(task, *frames, ("load", "etl.py", 31)),
        ),
        f"logs/worker-{_W}-01000000-801.err": f"""Exception in thread Thread-7 (read_parts):
Traceback (most recent call last):
{first_frame}  File "/home/user/project/etl.py", line 22, in read_parts
    parts.append(open(path, "rb").read())
FileNotFoundError: [Errno 2] No such file or directory: '/data/part-7'
""",
    }


_BOOTSTRAP = (
    '  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n    self.run()\n'
)


def _beside_heartbeat() -> dict[str, str]:
    """A task in `Event.wait`, and a thread of its process that sleeps again and again."""
    frames = ("Condition.wait", "threading.py", 327), ("Event.wait", "threading.py", 629)
    looks = sampled.waiting(_LOAD, *frames, ("load", "etl.py", 31))
    own = [
        ("beat", "etl.py", 9, "user"),
        ("Thread._bootstrap", "threading.py", 1002, "python"),
    ]
    beat = {
        **sampled.idle_thread(850, "beat", own),
        "wchan": "hrtimer_nanosleep",
        "syscall": 230,
    }
    return sample.tables(
        nodes=[sample.node({"CPU": 4})],
        tasks=[_LOAD],
        samples=[{**each, "threads": [*each["threads"], beat]} for each in looks],
    )


def _ended(*more: dict[str, object], node: str = sample.NODE) -> dict[str, str]:
    """A task that has run for 8 s, whose worker does not answer, and a fork of that worker."""
    task = sample.running(1, "convert", {"CPU": 1}, worker_id=_W, **sampled.since(8))
    silent = {
        "worker_id": _W,
        "pid": 801,
        "node_id": sample.NODE,
        "worker_type": "WORKER",
        "answers": False,
    }
    fork = processes.process(
        860, "child", "ray::convert", outlived="worker", worker_id=_W, worker_pid=801, node_id=node
    )
    raylet = processes.process(40, "daemon", "raylet", node_id=node)
    tables = sample.tables(nodes=[sample.node({"CPU": 4})], tasks=[task], worker_stats=[silent])
    return {**tables, **processes.machine(raylet, fork, *more)}  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    Example(
        "seven tasks took half a second each, and the eighth never ends",
        _files(_table("10:42:54", 7) + _table("10:43:54", 7), ended="10:44:20"),
        consequences=("get-timeout",),
        says=(
            "Task resample() (pid 471) has run for at least 86 s",
            "7 before it took 0.5 s",
            "py-spy dump --pid 471",
        ),
    ),
    Example(
        "no peers in the logs, but a stack",
        {**_files(_table("10:43:54", 0)), "ray-stack.txt": _STACK},
        consequences=("get-timeout",),
        says=("waits for a lock in resample() (train.py:31)",),
    ),
    Example(
        "a long task among long tasks",
        _files(_table("10:42:54", 2, took="64.2s") + _table("10:43:54", 2, took="64.2s")),
        roots=("get-timeout",),
    ),
    Example(
        "a task without finished peers and without a stack may only be slow",
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
        consequences=("get-timeout",),
        says=("Trainer.fit() (pid 471)", "a collective operation in resample() (train.py:31)"),
    ),
    Example(
        "a stack that faulthandler printed after a minute",
        {
            **_files(_table("10:43:54", 0)),
            f"logs/worker-{_W}-01000000-471.err": ":job_id:01000000\n:task_name:resample\n"
            + stacks.PRINTED.sample.replace(
                '  File "/home/user/project',
                '  File "/usr/lib/python3.11/threading.py", line 327 in wait\n  File "/home/user/project',
                1,
            ),
        },
        consequences=("get-timeout",),
        says=(
            "resample() (pid 471)",
            "waits for a lock in resample() (/home/user/project/train.py:31)",
        ),
    ),
    Example(
        "live: a task waits for a database that does not answer, and two tasks wait for it",
        _live(sampled.took("load", 24, 0.5)),
        says=(
            "load() (pid 801)",
            "10.0.0.9:5432",
            "load() (etl.py:31)",
            "24 finished load() tasks took 0.50 s",
            "blocks 2 train() tasks",
            f"raydoctor attach {_LOAD['task_id']}",
        ),
    ),
    Example(
        "live: a task without finished peers may wait on purpose",
        _live(),
        says=("no finished load() to compare with",),
        severity="warning",
    ),
    Example(
        "a running cluster whose task waits for a thread that an exception has ended",
        _after_a_thread(_BOOTSTRAP),
        roots=("task-hung",),
        says=(
            "waits for an event to be set in load() (etl.py:31), after FileNotFoundError in read_parts() "
            "(etl.py:22) ended a thread of its process",
            "Fix read_parts() (etl.py:22)",
        ),
        severity="warning",
    ),
    Example(
        "live: a task waits for an event beside a heartbeat thread",
        _beside_heartbeat(),
        says=("thread beat sleeps", "the wait may never end"),
        severity="info",
    ),
    Example(
        "live: the process of a young task has ended, and a fork of it keeps its connections open",
        _ended(),
        says=(
            "Task convert() (pid 801) was sent to pid 801, which has ended",
            "its fork pid 860 (ray::convert) keeps the connections open",
            "kill 860",
        ),
    ),
    Example(
        "live: the process of a task that does not answer still exists",
        _ended(processes.process(801, "worker", "ray::convert", node_id=sample.NODE, worker_id=_W)),
        roots=("leftover-process",),
    ),
    Example(
        "live: the processes of its node are not visible",
        _ended(node="0" * 56),
    ),
    Example(
        "live: finished tasks of the same function took as long",
        _live(sampled.took("load", 24, 120)),
    ),
    Example("live: a CPU-bound task without finished peers", _live(is_busy=True)),
    Example(
        "a stack of a running task, while no driver gave up",
        {
            **QUIET_LOGS,
            "driver.log": "epoch 1\n",
            "ray-stack.txt": _STACK,
        },
    ),
)
