"""Ray's memory monitor killed workers because their node ran low on memory.

## What you see
`ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory` (2.55+: `N
worker(s) were killed …`), workers with exit type `NODE_OUT_OF_MEMORY`, and about once a minute
`N Workers (tasks / actors) killed due to memory pressure (OOM)` in the driver.

## Why
The node's memory (the cgroup's, in a container) passed `RAY_memory_usage_threshold` (0.95). Ray then
kills the *newest* retriable task, not the biggest process, so the victim is often innocent: the
table of top memory users in the report tells who held the memory. Up to 2.55 one worker dies at a time; since
2.56 as many as it takes to get below the threshold.

## Confirm
- The report in that node's `raylet.out`: used / limit, `Top 10 memory users`.
- `ray list tasks --filter error_type=OUT_OF_MEMORY` while the cluster is up.

## Fix
Run fewer of the hungry function at once: `memory=` (logical, but it bounds how many Ray starts) or more
`num_cpus=`; make its batches smaller; free what an actor keeps; or give the node more memory. Raising the
threshold only trades this kill for the kernel's.

## Not this when
The kernel's OOM killer did it (`kernel-oom-kill`: no report of Ray's, but a kernel record with the pid),
or the words `OOM killer` appear only in Ray's three guesses after a sudden death (`worker-vanished`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.model.entities import Entity
from raydoctor.model.values import Finding, Link, Remedy, Subject
from raydoctor.rules.shared.oom.kills import (
    MONITOR_STARTED,
    OOM_KILL,
    OOM_SUMMARY,
    Holder,
    Report,
    episodes,
    exits_of,
    reports,
    summaries,
)
from raydoctor.rules.shared.oom.remedies import DOC, hungriest, remedies


@rule(
    tier="root",
    severity="error",
    rank=20,
    daemons_record=True,
    looks_for=(*OOM_KILL, OOM_SUMMARY, MONITOR_STARTED),
)
def ray_oom_kill(case: Case) -> Iterator[Finding]:
    """One finding per node and episode of memory pressure."""
    for episode in episodes(reports(case)):
        yield _finding(case, episode)
    yield from _untold(case)


def _finding(case: Case, strikes: list[Report]) -> Finding:
    worst = max(strikes, key=lambda r: (len(r.holders) > 0, sum(h.gb for h in r.holders[:3])))
    victims = [v for s in strikes for v in s.victims]
    exits = exits_of(case, strikes, victims)
    told = tuple(e for s in strikes for e in s.others if e.kind != "worker.exit")
    killed = max(sum(s.killed * s.event.count for s in strikes), evidence.deaths(exits))
    chain = [
        Link(s.event, _shows(s))
        for s in (strikes if len(strikes) <= 3 else (strikes[0], worst, strikes[-1]))
    ]
    chain = list(dict.fromkeys(chain))
    if exits:
        chain += evidence.exit_links(exits[0], most=1)
    if driver := next((e for e in told if e.kind == "driver.exception"), None):
        chain.append(Link(driver, f"the driver got {driver['type']}"))
    return Finding(
        _headline(worst, victims, killed),
        tuple(chain),
        explains=(
            *evidence.exit_entities(exits),
            *_victim_entities(victims),
            Entity("memory", _key(strikes[0])),
        ),
        subjects=tuple(
            Subject("actor" if v.actor else "task", None, v.function, v.pid, worst.node)
            for v in victims[:10]
        ),
        count=killed,
        severity=evidence.severity(case, exits) if exits else None,
        remedies=remedies(worst),
        caused_by=tuple(Entity("oom-loop", v.function) for v in victims),
        covers=(
            *(s.event for s in strikes),
            *told,
            *evidence.exit_events(exits),
            *summaries(case, strikes),
        ),
    )


def _key(strike: Report) -> str:
    return f"{strike.node}@{strike.event.at or 0:.3f}"


def _victim_entities(victims: list[Holder]) -> tuple[Entity, ...]:
    return tuple(Entity("worker", v.worker) for v in victims if v.worker)


# ---------------------------------------------------------------- what it says


def _headline(worst: Report, victims: list[Holder], killed: int) -> str:
    name, holders = hungriest(worst)
    whom = evidence.join_names(v.function for v in victims)
    text = f"Ray's memory monitor killed {evidence.many(killed, 'worker')}"
    text += f" ({whom})" if whom else ""
    at = f"{worst.used_gb:.1f} of {worst.limit_gb:.1f} GiB used on node {worst.ip} (threshold {worst.threshold_gb:.1f} GiB)"
    if not holders:
        return f"{text}: {at}"
    each = max(h.gb for h in holders)
    held = (
        f"{len(holders)} × {name} at up to {each:.2g} GiB"
        if len(holders) > 1
        else f"{name} alone held {each:.2g} GiB"
    )
    innocent = (
        "; the victims were not the ones who held it"
        if victims and _innocent(victims, name)
        else ""
    )
    return f"{text}: {held}, {at}{innocent}"


def _innocent(victims: list[Holder], name: str) -> bool:
    return all(name not in (v.function, v.name) for v in victims)


def _shows(strike: Report) -> str:
    victims = evidence.join_names(
        f"{v.function} (pid {v.pid}, {v.gb:.2f} GiB)" for v in strike.victims
    )
    used = f"{strike.used_gb:.2f} of {strike.limit_gb:.2f} GiB used"
    return f"memory monitor: {used}, kills {victims or evidence.many(strike.killed, 'worker')}"


# ---------------------------------------------------------------- without a report


def _untold(case: Case) -> Iterator[Finding]:
    """Workers that ended as NODE_OUT_OF_MEMORY, or summaries, with no report left to read."""
    told = {v.worker for r in reports(case) for v in r.victims}
    nodes = {r.node for r in reports(case)}
    left = [
        e
        for e in case.exits
        if e.exit_type == "NODE_OUT_OF_MEMORY" and e.worker not in told and e.node not in nodes
    ]
    if left:
        yield Finding(
            f"Ray's memory monitor killed {evidence.many(evidence.deaths(left), 'worker')}: {evidence.join_names(e.label for e in left)}",
            tuple(link for e in left[:3] for link in evidence.exit_links(e, most=1)),
            explains=evidence.exit_entities(left),
            subjects=tuple(evidence.exit_subject(e) for e in left[:10]),
            count=evidence.deaths(left),
            severity=evidence.severity(case, left),
            remedies=(
                Remedy(
                    "Read the report in that node's raylet.out: it names who held the memory",
                    doc=DOC,
                ),
            ),
            covers=evidence.exit_events(left),
        )


# ------------------------------------------------------------------ examples


_W = "77eb1fc12930b201c05280f287914a9b9456d6065ac8f24413aca6f6"
_N = "6e3e4b7e3d172751ec57d86d58c6594643fcd0964b3dee305d61701a"
_TABLE = "PID\tMEM(GB)\tCOMMAND\n251\t5.60\tray::train\n129\t5.55\tray::train\n216\t5.50\tray::train\n48\t0.20\tpython driver.py\n"
_OLD = (
    "[2026-11-21 07:54:37,981 I 77 77] (raylet) node_manager.cc:2863: Killing worker with task Type=NORMAL_TASK, Language=PYTHON, "
    "task_name=train, job_id=01000000\n\n"
    f"Memory on the node (IP: 10.0.0.2, ID: {_N}) where the task (task ID: 56c6050da0229ea0f772cd01e4a64225b9725bf601000000, "
    "name=train, pid=251, memory used=5.60GB) was running was 14.40GB / 15.00GB (0.960000), which exceeds the memory usage "
    f"threshold of 0.95. Ray killed this worker (ID: {_W}) because it was the most recently scheduled task; to see more "
    "information about memory usage on this node, use `ray logs raylet.out -ip 10.0.0.2`. Top 10 memory users:\n"
    + _TABLE
)
_NEW = (
    "[2026-11-21 07:54:37,981 I 77 77] (raylet) node_manager.cc:3199: Killing 1 worker(s), kill details: Memory on the node "
    f"(IP: 10.0.0.2, ID: {_N}) was 14.40GB used / 15.00GB limit (0.960000)\n"
    "OOM kill reason: Memory usage 15461882265B exceeded threshold of 15300820992B (95.0% of 16106127360B limit)\n"
    "Ray killed 1 worker(s) based on the killing policy\nConsidered workers: [\n"
    f"Selected to kill: (Task: job ID=01000000, lease ID={'0' * 64}, task name=preprocess, required resources={{CPU: 1}}, pid=251, "
    f"actual memory used=0.05GB, worker ID={_W})\n]\nTop 10 memory users: PID\tMEM(GB)\tCOMMAND\n300\t13.90\tpython driver.py\n"
    "251\t0.05\tray::preprocess\n"
)
_ONE_LINE = (
    "[2026-11-21 11:30:{:02},310 I 322 322] (raylet) node_manager.cc:3081: Killing 1 worker(s), kill details: Memory on the node "
    f"(IP: 10.0.0.2, ID: {_N}) was 3.81GB / 4.00GB (0.952580), which exceeds the memory usage threshold of 0.950000; "
    "Object store memory usage: [- objects spillable: 0; - bytes created by worker: 0; ]; Ray killed 1 worker(s) based on the "
    "killing policy: [(Task: job ID=01000000, lease ID=0200000001000000, task name=train, required resources={{CPU: 1}}, "
    "pid={}, actual memory used=1.23GB, worker ID={})]; Top 10 memory users: PID\tMEM(GB)\tCOMMAND, 435\t1.61\t"
    "ray::build_index, {}\t1.23\tray::train, suggestions: Refer to the documentation\n"
)
_GUESSES = (
    "[2026-11-21 07:34:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{_W}, node id = {_N}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits with a "
    "connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM "
    "killer due to high memory usage. (2) ray stop --force is called.\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "three train tasks of 5.6 GB on a 15 GB node",
        {"logs/raylet.out": _OLD, "logs/gcs_server.out": ""},
        roots=("ray-oom-kill",),
        says=("3 × train", "15.0 GiB", "memory=", "num_cpus="),
    ),
    Example(
        "the victim is innocent: the driver holds the memory",
        {"logs/raylet.out": _NEW, "logs/gcs_server.out": ""},
        roots=("ray-oom-kill",),
        says=("python driver.py", "13.9"),
    ),
    Example(
        "2.55 tells it in one line, and two strikes at the very same numbers",
        {
            "logs/raylet.out": _ONE_LINE.format(8, 541, _W, 541)
            + _ONE_LINE.format(16, 540, _W[::-1], 540),
            "logs/gcs_server.out": "",
        },
        roots=("ray-oom-kill",),
        says=("killed 2 workers (train)", "build_index alone held 1.6 GiB"),
    ),
    Example(
        "Ray's three guesses name the OOM killer on every sudden death",
        {"logs/gcs_server.out": _GUESSES, "logs/raylet.out": ""},
        roots=("worker-vanished",),
    ),
    Example(
        "a task prints the sentence",
        {
            f"logs/worker-{_W}-01000000-251.out": "Task was killed due to the node running low on memory.\n",
            "logs/raylet.out": "",
            "logs/gcs_server.out": "",
        },
    ),
)
