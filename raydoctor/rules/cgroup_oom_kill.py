"""A worker was killed, its cgroup counted an OOM kill, and the kernel log is not readable.

## What you see
- Ray reports `WorkerCrashedError` or `ActorDiedError` with `connection error code 2. End of file`, as after any
  SIGKILL.
- You have no access to the kernel log (in a container, or as a user), and no other log names the killed process.

## Why
A process needed memory that its cgroup, or the machine, no longer had, and the kernel killed it. The kernel log records
which process. The cgroup also counts such kills, and every process can read that counter.

## Confirm
- `oom_kill` in `/sys/fs/cgroup/memory.events` (cgroup v2) or `/sys/fs/cgroup/memory/memory.oom_control` (v1) is above 0
  in the container.
- Kubernetes: `kubectl describe pod` shows `OOMKilled` if the container's main process was killed. On the host, `sudo
  dmesg -T | grep -i 'killed process'` names the killed process.
- The counter starts with the container and has no timestamps. Check whether it grows when the next worker ends.

## Fix
Make the batches of the function that needs the most memory smaller, or raise the cgroup's limit. If several of its
calls ran at the same time, let fewer run (`memory=`, `num_cpus=`). Let Ray's memory monitor act before the kernel does
(`RAY_memory_usage_threshold=0.85` for `ray start`).

## Not this when
- the kernel log is readable: it shows which process was killed (`kernel-oom-kill`).
- Ray's memory monitor (`ray-oom-kill`), a crash (`worker-native-crash`) or the death of the owner process
  (`worker-killed-with-owner`) explains the worker's end.
- no worker ended: raydoctor does not report the counter alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, rule
from raydoctor.case.signals import WORKER_DIED, WORKER_EXIT
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.text import size
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy
from raydoctor.rules.shared import jobs, kernel
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.oom.remedies import DOC, MONITOR_FIRST

_LOG = Gap(
    "kernel log",
    "only this log records which process was killed, and when. A container, or a user other than root, may not be able to read it",
    optional=True,
    about="kernel",
)


@rule(
    tier="root",
    severity="error",
    rank=89,
    explains=("process", "worker"),
    fallback=True,
    looks_for=(WORKER_EXIT, WORKER_DIED, *jobs.SIGNALS),
)  # fmt: skip
def cgroup_oom_kill(case: Case) -> Iterator[Finding]:
    """One finding per cgroup that counts kills, for the ends on its node that no other rule explains."""
    taken: set[int] = set()
    for row in live.rows(case, "memory"):
        kills = live.mapping(row, "events").get("oom_kill")
        is_ours = row["kind"] == "cgroup" and live.sequence(row, "pids")
        if not is_ours or not isinstance(kills, int) or kills < 1 or _has_kernel_log(case, row):
            continue
        exits = [e for e in _unexplained(case, row) if id(e) not in taken]
        taken |= {id(e) for e in exits}
        if exits:
            yield _finding(case, row, exits, kills)


def _has_kernel_log(case: Case, row: Event) -> bool:
    return any(s.role == "kernel" and s.node == row.source.node for s in case.sources)


def _unexplained(case: Case, row: Event) -> Iterator[WorkerExit]:
    """Sudden ends on the node of this cgroup that no other rule explains."""
    nodes = kernel.nodes_beside(case, row)
    for exit_ in case.exits:
        is_here = not nodes or not exit_.node or exit_.node in nodes
        is_sudden = exit_.exit_type == "SYSTEM_ERROR" and not jobs.ended_with(case, exit_.worker)
        if is_here and is_sudden and not case.is_explained(*exit_.entities):
            yield exit_


def _finding(case: Case, row: Event, exits: list[WorkerExit], kills: int) -> Finding:
    limit = live.whole(row, "limit")
    room = f"limit {size(limit)}" if limit else "no limit, so the machine ran out"
    count = evidence.deaths(exits)
    names = evidence.join_names(e.label for e in exits)
    killed = names if count == 1 else f"up to {min(kills, count)} of {count} workers ({names})"
    return Finding(
        f"The kernel's OOM killer most likely killed {killed}: the node's cgroup ({room}) counts "
        f"{evidence.many(kills, 'process', 'processes')} killed for lack of memory{evidence.recovery(case, exits)}",
        (
            Link(
                row,
                f"{evidence.many(kills, 'kill')} for lack of memory since the cgroup was created: {row['path']}",
            ),
            *(link for e in exits[:3] for link in evidence.exit_links(e, most=1)),
        ),
        explains=evidence.exit_entities(exits),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=count,
        severity=evidence.severity(case, exits),
        remedies=tuple(_remedies(case, exits, row, limit)),
        covers=(*evidence.exit_events(exits), *evidence.attempts_covered(case, exits)),
        gaps=(replace(_LOG, hint=kernel.how_to_save(case, "the worker's node")),),
    )


def _of_the_killed(case: Case, exits: list[WorkerExit]) -> Remedy:
    """Less memory for what was killed; fewer at once only where the cluster's tasks do not show that one ran alone."""
    killed = next((e for e in exits if e.names), None)
    name = killed.called if killed else "the largest function"
    plain = killed.names[-1] if killed else name
    smaller = paste.python("# {name}: smaller batches, chunks or streaming", name=plain)
    if killed and _ran_alone(case, killed):
        title = f"Reduce the memory of {name}: it ran alone, so fewer calls at once would not help"
        return Remedy(title, (smaller,), doc=DOC)
    fewer = paste.python(
        "@ray.remote(num_cpus=2)   # {name}: half as many run on a node as with the default, 1",
        name=plain,
    )
    title = (
        f"Reduce the memory of {name}, or run fewer of its calls at once if several ran together"
    )
    return Remedy(title, (smaller,) if killed and killed.actor else (smaller, fewer), doc=DOC)


def _ran_alone(case: Case, exit_: WorkerExit) -> bool:
    """Whether the complete table of tasks shows no other task beside the one of this worker."""
    head, tasks = live.looked(case, "tasks"), live.rows(case, "tasks")
    is_complete = head is not None and live.number(head, "total") == len(tasks)
    return is_complete and bool(tasks) and all(e["worker_id"] == exit_.worker for e in tasks)


def _remedies(
    case: Case, exits: list[WorkerExit], row: Event, limit: int | None
) -> Iterator[Remedy]:
    yield _of_the_killed(case, exits)
    if limit:
        need = max(1, -(-limit * 5 // (4 * evidence.GB)))
        yield Remedy(
            f"Raise the memory limit of the cgroup from {size(limit)} to {need} GiB (at least a quarter more), and check that the count stops growing",
            (
                paste.python(
                    "resources: {{limits: {{memory: {need}Gi}}}}   # on Kubernetes. With Docker: docker run --memory={need}g",
                    need=need,
                ),
                paste.shell(
                    "grep -H . {cgroup:path}/memory.{file:name}   # with the new limit: oom_kill must no longer grow",
                    cgroup=row["path"],
                    file="events" if row["version"] == "2" else "oom_control",
                ),
            ),
            risk="disruptive",
        )
    yield MONITOR_FIRST


# ------------------------------------------------------------------ examples


_LOGS = {
    "logs/gcs_server.out": f"[2026-11-21 07:34:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: {WORKER_EXIT.sample}\n",
    "logs/raylet.out": "",
}
_W = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
_AT = 1795247700.0


def _cgroup(
    kills: int, pids: tuple[int, ...] = (290, 379), limit: int | None = 3 << 30
) -> dict[str, Any]:
    """A row of the table `memory`."""
    return {
        "kind": "cgroup", "path": "/sys/fs/cgroup", "limit": limit, "used": 2 << 30, "events": {"oom_kill": kills, "max": 9 * kills},
        "version": 2, "pids": list(pids),
    }  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a worker ended, and its container counts one kill",
        {**_LOGS, **sample.tables(_AT, memory=[_cgroup(1)])},
        says=("most likely", "1 process", "3.0 GiB", "docker run --memory=4g"),
    ),
    Example(
        "one call of load() ran, alone",
        {
            **_LOGS,
            f"logs/worker-{_W}-ffffffff-379.out": ":task_name:load\n",
            **sample.tables(
                _AT, memory=[_cgroup(1)], tasks=[sample.task(1, "load", {"CPU": 1}, worker_id=_W)]
            ),
        },
        says=("Reduce the memory of load()", "ran alone"),
    ),
    Example(
        "two calls of load() ran",
        {
            **_LOGS,
            f"logs/worker-{_W}-ffffffff-379.out": ":task_name:load\n",
            **sample.tables(
                _AT,
                memory=[_cgroup(1)],
                tasks=[
                    sample.task(1, "load", {"CPU": 1}, worker_id=_W),
                    sample.task(2, "load", {"CPU": 1}, worker_id="b" * 56),
                ],
            ),
        },
        says=("run fewer of its calls at once if several ran together", "num_cpus=2"),
    ),
    Example(
        "the cgroup counts no kill",
        {**_LOGS, **sample.tables(_AT, memory=[_cgroup(0)])},
        roots=("worker-vanished",),
    ),
    Example(
        "a cgroup without processes of this cluster",
        {**_LOGS, **sample.tables(_AT, memory=[_cgroup(4, ())])},
        roots=("worker-vanished",),
    ),
    Example(
        "the kernel log is readable and has no kill of this worker",
        {
            **_LOGS,
            **sample.tables(_AT, memory=[_cgroup(1)]),
            "live/dmesg.txt": "2026-11-21T05:00:00.000000+00:00 host kernel: Out of memory: Killed process 4711 (mysqld) "
            "total-vm:9000000kB, anon-rss:8000000kB, file-rss:0kB, shmem-rss:0kB, UID:0\n",
        },
        roots=("worker-vanished",),
    ),
    Example(
        "an earlier kill in the container, and a healthy cluster",
        {
            **QUIET_LOGS,
            **sample.tables(_AT, memory=[_cgroup(2)]),
        },
    ),
)
