"""Processes outlived the worker, raylet or task that started them, and still hold memory or a GPU.

## What you see
`nvidia-smi` shows GPU memory that no task of `ray list tasks` uses; ports stay in use; memory does not come back after
a job. `ps` shows the processes as children of PID 1, or a `ray::` worker without a raylet.

## Why
When Ray ends a worker, it also ends the worker's process group and direct children. A process that left that group can
keep running (measured with Ray 2.60). A child started with `start_new_session=True` keeps running if its worker is
killed; if Ray ends the worker normally, Ray also ends this child. A daemon that forked twice keeps running in both
cases. If the raylet is killed, grandchildren keep running as well. `ray stop --force` ends none of them. An idle worker
keeps what its last task allocated, including GPU memory, until another task in this worker frees it or the worker ends.

## Confirm
- `ps -o pid,ppid,user,lstart,rss,args -p PID` shows the parent: 1, or a worker whose task has ended.
- `tr '\\0' '\\n' < /proc/PID/environ | grep RAY_` prints `RAY_RAYLET_PID` and `RAY_JOB_ID`: the raylet and the job that
  started the process.
- `nvidia-smi` shows the GPU memory that the process holds.

## Fix
- Find out what the process does, on its machine. If it is not needed, end it with `raydoctor zombies --kill`, which
  shows its plan, asks, and ends no process whose pid was reused. Ray itself never ends such leftovers.
- Start such helpers so that they end with their worker: without `start_new_session` and double forks, with a `finally:`
  that ends them, or with a parent-death signal. `finally:` does not run in a worker that is killed.
- For a task that leaves memory on a GPU, set `max_calls=1`, so that its process ends with the task.

## Not this when
- the process's worker runs a task or is an actor: the process is then in use.
- the process is detached, and an older worker of the same raylet is busy: the process may belong to that worker, so
  raydoctor reports nothing.
- the process is a service that a job started on purpose to outlive it: leave it running.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import WORKER_EXIT
from raydoctor.cluster import tables
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import size
from raydoctor.model.values import Finding, Link, Remedy, Subject
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import processes as live
from raydoctor.rules.shared.live.processes import RayProcess

_MUCH = 0.10
"""Of the machine's memory."""
_CONTEXT = 1 << 30
"""Bytes of GPU memory: a CUDA context alone takes 0.3 to 0.5 GB, and an idle worker may keep it for the next task."""


@rule(
    tier="root",
    severity="warning",
    rank=96,
    explains=("process",),
    looks_for=(WORKER_EXIT,),
)
def leftover_process(case: Case) -> Iterator[Finding]:
    """Per machine, one finding for leftover processes and one for idle workers with much memory."""
    counted = {
        (d.event.source.node, p.pid)
        for d in live.defunct_raylets(case)
        for p in (*d.workers, *d.others)
    }
    nodes = {row["node_id"] for row in tables.rows(case, "nodes")}
    for label, everything in live.processes(case).items():
        here = [
            p
            for p in everything
            if (label, p.pid) not in counted and not _is_of_other_cluster(p, nodes)
        ]
        memory = live.machine_memory(case, label)
        workers = {p.pid for p in here if p.kind == "worker"}
        left = [
            p
            for p in here
            if p.outlived
            and (p.outlived != "task" or p.ppid not in workers or _holds_much(p, memory))
        ]
        if left:
            yield _finding(case, label, left, memory)
        idle = [p for p in here if p.is_idle and not p.outlived and _holds_much(p, memory)]
        if idle:
            yield _idle_finding(case, label, idle)


def _is_of_other_cluster(process: RayProcess, nodes: set[str]) -> bool:
    """Whether its raylet runs, and belongs to another cluster on this machine, whose report it is part of."""
    node = process.event["node_id"]
    return bool(nodes and node) and node not in nodes and process.outlived != "raylet"


def _holds_much(process: RayProcess, memory: float) -> bool:
    return process.gpu_bytes >= _CONTEXT or bool(memory and process.memory > _MUCH * memory)


def _finding(case: Case, label: str, left: Sequence[RayProcess], memory: float) -> Finding:
    by_size = sorted(left, key=lambda p: (-p.gpu_bytes, -p.memory, p.pid))
    much = any(p.gpus for p in left) or bool(
        memory and sum(p.memory for p in left) > _MUCH * memory
    )
    them = "it" if len(left) == 1 else "them"
    holds = "holds" if len(left) == 1 else "hold"
    return Finding(
        f"{_what(by_size)} outlived {_starters(case, by_size)} that started {them}, "
        f"and still {holds} {_holdings(by_size)}: {_names(by_size)}",
        tuple(link for p in by_size[:3] for link in _links(case, p)),
        explains=tuple(Entity("process", f"{label}/{p.pid}") for p in left),
        subjects=tuple(
            Subject("process", None, p.title, p.pid, p.event["node_id"] or None)
            for p in by_size[:10]
        ),
        count=len(left),
        severity="error" if much else "warning",
        covers=tuple(p.event for p in left),
        remedies=_remedies(by_size, live.place(case, by_size)),
    )


def _names(processes: Sequence[RayProcess]) -> str:
    """`pid 812 (sleep 60), running for 30 s`; of several processes only the pids."""
    if len(processes) > 1:
        return f"pids {evidence.join_names(str(p.pid) for p in processes)}"
    return f"{processes[0].named}, running for {processes[0].age}"


def _what(processes: Sequence[RayProcess]) -> str:
    """`1 process`; of several also what they run, `2 processes (python -m http.server)`."""
    count = evidence.many(len(processes), "process", "processes")
    programs = evidence.join_names(dict.fromkeys(p.program for p in processes), 2)
    return f"{count} ({programs})" if len(processes) > 1 else count


def _starters(case: Case, processes: Sequence[RayProcess]) -> str:
    """`the worker`, `the workers of serve()`, `the raylets or tasks`: what the processes outlived."""
    keys = {"worker": "worker_id", "raylet": "raylet_pid"}
    ids = {(p.outlived, p.event[keys.get(p.outlived, "")]) for p in processes}
    is_one = len(processes) == 1 or (len(ids) == 1 and all(id_ for _, id_ in ids))
    kinds = " or ".join(
        f"{kind}{'' if is_one else 's'}" for kind in sorted({kind for kind, _ in ids})
    )
    exits = [case.exit_of(id_) for kind, id_ in sorted(ids) if kind == "worker" and id_]
    ran = dict.fromkeys(exit_.called for exit_ in exits if exit_ and exit_.called)
    of = (
        f" of {evidence.join_names(ran)}" if ran and {kind for kind, _ in ids} == {"worker"} else ""
    )
    return f"the {kinds}{of}"


def _holdings(processes: Sequence[RayProcess]) -> str:
    shares = [share.summary for p in processes for share in p.gpus]
    memory = size(sum(p.memory for p in processes))
    return " and ".join([*shares[:3], f"{memory} of memory"])


def _links(case: Case, process: RayProcess) -> Iterator[Link]:
    row = process.event
    if row["worker_pid"] and process.outlived == "worker":
        orphaned = (
            f"it has the output of worker pid {row['worker_pid']} open, and that worker has ended"
        )
    elif process.outlived == "worker":
        raylet = f" of raylet pid {row['raylet_pid']}" if row["raylet_pid"] else ""
        orphaned = f"no worker{raylet} that could have started it is left"
    elif process.outlived == "raylet":
        raylet = f" (pid {row['raylet_pid']})" if row["raylet_pid"] else ""
        orphaned = f"its raylet{raylet} has ended"
    else:
        orphaned = "every worker that could have started it is idle: the task has ended"
    running = f"has been running for {process.age}" if process.age else "is still running"
    yield Link(row, f"{process.named} of user {row['user']!r} {running}, but {orphaned}")
    for share in process.gpus:
        yield Link(share.event, f"it holds {share.summary}")
    exit_ = case.exit_of(row["worker_id"]) if row["worker_id"] else None
    if exit_ and process.kind == "child":
        yield from evidence.exit_links(exit_, most=1)


def _remedies(left: Sequence[RayProcess], place: str) -> tuple[Remedy, ...]:
    pids = [p.pid for p in left]
    return (
        Remedy(
            f"Find out what {'the process does' if len(pids) == 1 else 'these processes do'}",
            (
                paste.shell(
                    "ps -o pid,ppid,user,lstart,rss,args -p {pids:pids}   # on {place}",
                    pids=",".join(str(pid) for pid in pids[:20]),
                    place=place,
                ),
            ),
        ),
        live.end(
            f"If {'it is' if len(pids) == 1 else 'they are'} not needed, end {'it' if len(pids) == 1 else 'them'}",
            pids,
            place,
            leaked=any(p.outlived == "task" for p in left),
        ),
        Remedy(
            "End subprocesses in a finally block. It runs when the worker exits normally, not when it is killed",
            (
                "process = subprocess.Popen(command)   # do not use start_new_session=True, a trailing & or nohup",
                "try: ...",
                "finally: process.terminate()",
            ),
        ),
    )


def _idle_finding(case: Case, label: str, idle: Sequence[RayProcess]) -> Finding:
    by_size = sorted(idle, key=lambda p: (-p.gpu_bytes, -p.memory, p.pid))
    numbers, place = [p.pid for p in by_size[:20]], live.place(case, by_size)
    pids = evidence.join_names(f"pid {p.pid}" for p in by_size)
    return Finding(
        f"{evidence.many(len(idle), 'idle worker')} still {'holds' if len(idle) == 1 else 'hold'} "
        f"{_holdings(by_size)} although the task has ended: {pids}",
        tuple(
            link
            for p in by_size[:3]
            for link in (
                Link(
                    p.event,
                    f"pid {p.pid} has the title ray::IDLE and holds {size(p.memory)} of memory",
                ),
                *(Link(share.event, f"it holds {share.summary}") for share in p.gpus),
            )
        ),
        explains=tuple(Entity("process", f"{label}/{p.pid}") for p in idle),
        subjects=tuple(
            Subject("worker", None, p.title, p.pid, p.event["node_id"] or None)
            for p in by_size[:10]
        ),
        count=len(idle),
        covers=tuple(p.event for p in idle),
        remedies=(
            Remedy(
                "Set max_calls=1, so that the process ends with the task",
                ("@ray.remote(max_calls=1)",),
            ),
            Remedy(
                f"Or end {'it' if len(idle) == 1 else 'them'} now. First see whether {'its' if len(idle) == 1 else 'each'} title is still ray::IDLE",
                (
                    paste.shell(
                        "ps -o pid,args -p {pids:pids}   # on {place}",
                        pids=",".join(map(str, numbers)),
                        place=place,
                    ),
                ),
            ),
            Remedy(
                "Then end idle workers only: objects that their tasks stored with ray.put are lost",
                (paste.shell("kill {pids:pid}   # on {place}", pids=numbers, place=place),),
                risk="destructive",
            ),
        ),
    )


# ------------------------------------------------------------------ examples

_GPU = 1 << 30


def _gpu(pid: int, title: str, size: int) -> dict[str, str]:
    return sample.tables(gpu_processes=[{"pid": pid, "gpu": 0, "memory": size, "title": title}])


_LEFT = live.process(
    3003, "child", "sleep 3003", outlived="worker", worker_pid=88, worker_id="ab" * 28
)
_BUSY = live.process(88, "worker", "ray::train", ppid=40, parent_kind="daemon")
_SERVER = "python -m my_server --port 8000"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a child in its own session after its worker was killed",
        live.machine(_LEFT),
        says=("1 process outlived", "pid 3003 (sleep 3003), running for", "kill 3003", "10.0 MiB"),
    ),
    Example(
        "two servers of workers that ran one task, and only Ray's record of their exits names it",
        {
            **live.machine(
                live.process(
                    500, "child", f"/opt/venv/bin/{_SERVER}", outlived="worker", worker_id="ab" * 28
                ),
                live.process(
                    501, "child", f"/opt/venv/bin/{_SERVER}", outlived="worker", worker_id="cd" * 28
                ),
            ),
            **{
                f"logs/worker-{worker * 28}-01000000-{pid}.out": ":task_name:serve\n"
                for worker, pid in (("ab", 88), ("cd", 89))
            },
            "logs/gcs_server.out": "".join(
                f"[2026-11-21 07:34:50,741 I 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
                f"{worker * 28}, node id = {'a' * 56}, address = 10.0.0.2, exit_type = INTENDED_USER_EXIT, exit_detail = a\n"
                for worker in ("ab", "cd")
            ),
        },
        says=(
            "2 processes (python -m my_server --port 8000) outlived the workers of serve()",
            "pids 500 and 501",
        ),
    ),
    Example(
        "two children of one worker that was killed",
        live.machine(
            {
                **_LEFT,
                "pid": 3004,
                "title": "tail -f /var/log/a-very-long-name/of-a-log/that-a-task-watches.log",
            },
            _LEFT,
        ),
        says=("(sleep 3003 and tail -f …) outlived the worker that started them",),
    ),
    Example(
        "a child of another cluster on the machine, whose raylet runs",
        {
            **live.machine({**_LEFT, "node_id": "ef" * 28}),
            **sample.tables(nodes=[sample.node({"CPU": 2})]),
        },
    ),
    Example(
        "a detached server on a GPU after its raylet ended",
        {
            **live.machine(live.process(500, "child", _SERVER, outlived="raylet", raylet_pid=40)),
            **_gpu(500, _SERVER, 12 * _GPU),
        },
        says=("12.0 GiB of GPU 0", "raylet"),
        severity="error",
    ),
    Example(
        "an idle worker that holds 20 GiB of GPU memory",
        {
            **live.machine(live.process(90, "worker", "ray::IDLE", ppid=40, parent_kind="daemon")),
            **_gpu(90, "ray::IDLE", 20 * _GPU),
        },
        says=("idle worker", "20.0 GiB of GPU 0", "max_calls=1"),
    ),
    Example(
        "children of a running task, of a driver, of a detached helper of a busy worker, an idle worker",
        live.machine(
            _BUSY,
            live.process(3001, "child", "sleep 3001", ppid=88, parent_kind="worker"),
            live.process(3002, "child", "sleep 3002", raylet_pid=40),
            live.process(70, "driver", "python train.py", parent_kind="other"),
            live.process(71, "child", "tensorboard", ppid=70, parent_kind="driver"),
            live.process(90, "worker", "ray::IDLE", ppid=40, parent_kind="daemon"),
        ),
    ),
    Example(
        "a small helper of an idle worker: process pools wait for the next task",
        live.machine(
            live.process(90, "worker", "ray::IDLE", ppid=40, parent_kind="daemon"),
            live.process(91, "child", "loky", ppid=90, parent_kind="worker", outlived="task"),
        ),
    ),
    Example(
        "another process has the same pid on the GPU's host",
        {
            **live.machine(live.process(90, "worker", "ray::IDLE", ppid=40, parent_kind="daemon")),
            **_gpu(90, "/usr/bin/python3", 20 * _GPU),
        },
    ),
    Example("the process has ended since", live.machine({**_LEFT, "state": "Z"})),
    Example(
        "workers of a defunct raylet and their children are explained by raylet-defunct",
        {
            **live.machine(
                live.process(88, "worker", "ray::train", outlived="raylet", raylet_pid=40),
                live.process(300, "child", "sleep", ppid=88, outlived="raylet", raylet_pid=40),
            ),
            **sample.tables(daemons=[{"kind": "raylet", "pid": 40, "state": "Z", "ppid": 1}]),
        },
        roots=("raylet-defunct",),
    ),
)
