"""Ray's memory monitor killed workers because their node ran low on memory.

## What you see
- The driver raises `ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory` (Ray 2.55+:
  `N worker(s) were killed …`).
- Workers end with exit type `NODE_OUT_OF_MEMORY`.
- About once a minute the driver prints `N Workers (tasks / actors) killed due to memory pressure (OOM)`.

## Why
The memory in use on the node (in a container: in its cgroup) passed `RAY_memory_usage_threshold` (default 0.95). Ray
then kills the *newest* retriable task, not the largest process, so the killed task is often not the cause. The table of
top memory users in Ray's report shows which process held the memory. Up to Ray 2.55, Ray kills one worker at a time;
later versions kill as many as it takes to get below the threshold.

## Confirm
- The report in that node's `raylet.out` shows the memory used, the limit, and the `Top 10 memory users`.
- While the cluster is up, `ray list tasks --filter error_type=OUT_OF_MEMORY` lists the killed tasks.

## Fix
- Run fewer of the largest tasks at the same time: raise their `memory=` or `num_cpus=`. `memory=` does not limit a
  process: Ray starts as many tasks as the node's `memory` resource (`ray status`) holds, whatever the tasks use.
- Give each task smaller batches, and free what an actor keeps.
- Give the node more memory. Do not raise the threshold instead: the kernel's OOM killer then acts before Ray does.

## Not this when
- the kernel's OOM killer ended the process (`kernel-oom-kill`): Ray then wrote no report, and the kernel log names the
  pid.
- the words `OOM killer` appear only in the three guesses that Ray prints after a sudden death (`worker-vanished`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import data
from raydoctor.rules.shared.oom.kills import (
    CUT_SUMMARY,
    HEAD,
    MONITOR_STARTED,
    OOM_KILL,
    OOM_SUMMARY,
    REFUSED,
    TAIL,
    MemoryUser,
    OomReport,
    episodes,
    exits_of,
    reports,
    summaries,
)
from raydoctor.rules.shared.oom.remedies import (
    DOC,
    also_large,
    beside_outlier,
    fullest,
    gib,
    hungriest,
    is_minor,
    largest,
    remedies,
)
from raydoctor.rules.shared.waiting import resources_of

_READ_REPORT = Remedy(
    "Read Ray's report in that node's raylet.out: it lists the processes that held the memory",
    ("grep -A25 'Top 10 memory users' /tmp/ray/session_latest/logs/raylet.out   # on that node",),
    doc=DOC,
)


@rule(
    tier="root",
    severity="error",
    rank=20,
    explains=("memory", "process", "worker"),
    caused_by=("oom-loop",),
    daemons_record=True,
    looks_for=(
        *OOM_KILL,
        OOM_SUMMARY,
        HEAD,
        TAIL,
        CUT_SUMMARY,
        RAY_EXCEPTION,
        REFUSED,
        MONITOR_STARTED,
        data.HIGH_MEMORY,
    ),
)
def ray_oom_kill(case: Case) -> Iterator[Finding]:
    """One finding per node and episode of memory pressure."""
    found = reports(case)
    for episode in episodes(found):
        yield _finding(case, episode)
    yield from _without_report(case, found)
    for name, events in evidence.grouped(case.of(REFUSED.kind), lambda e: e["name"]).items():
        yield _refused(name, events)


def _finding(case: Case, episode: list[OomReport]) -> Finding:
    worst = fullest(episode)
    victims = [v for r in episode for v in r.victims]
    exits = exits_of(case, episode, victims)
    repeats = tuple(e for r in episode for e in r.others if e.kind != "worker.exit")
    killed = max(sum(r.killed * r.event.count for r in episode), evidence.deaths(exits))
    shown = episode if len(episode) <= 3 else (episode[0], worst, episode[-1])
    chain = list(dict.fromkeys(Link(r.event, _kill(r)) for r in shown))
    if exits:
        # An idle worker's exit bears the name of what it ran before.
        pids = [v.pid for v in sorted(victims, key=lambda v: -v.gb) if v.function != "IDLE"]
        best = next((e for pid in pids for e in exits if e.pid == pid), exits[0])
        chain += evidence.exit_links(best, most=1)
    uses = data.memory_use(case, {n for v in victims for n in (v.function, v.name) if n})
    chain += [data.memory_link(use) for use in uses[:1]]
    if driver := next((e for e in repeats if e.kind == "driver.exception"), None):
        chain.append(Link(driver, f"the driver got {driver['type']}"))
    return Finding(
        f"{_headline(episode, victims, killed)}{evidence.recovery(case, exits)}",
        tuple(chain),
        explains=(
            *evidence.exit_entities(exits),
            *_victim_entities(victims),
            Entity("memory", _key(episode[0])),
        ),
        subjects=tuple(
            Subject("actor" if v.actor else "task", None, v.function, v.pid, worst.node)
            for v in sorted(victims, key=lambda v: -v.gb)[:10]
        ),
        count=killed,
        severity=evidence.severity(case, exits) if exits else None,
        remedies=(
            *(data.memory_remedy(use) for use in uses[:2]),
            *remedies(episode, resources_of(case, worst.node)),
        ),
        caused_by=tuple(Entity("oom-loop", v.function) for v in victims),
        covers=(
            *(r.event for r in episode),
            *repeats,
            *evidence.exit_events(exits),
            *summaries(case, episode),
        ),
    )


def _key(report: OomReport) -> str:
    return f"{report.node}@{report.event.at or 0:.3f}"


def _victim_entities(victims: list[MemoryUser]) -> tuple[Entity, ...]:
    return tuple(Entity("worker", v.worker) for v in victims if v.worker)


# ---------------------------------------------------------------- sentences


def _headline(episode: list[OomReport], victims: list[MemoryUser], killed: int) -> str:
    worst = fullest(episode)
    text = f"Ray's memory monitor killed {evidence.many(killed, 'worker')}"
    text += f" ({_names(victims)})" if victims else ""
    reached = max(r.used_gb for r in episode)
    text += f" because node {worst.ip} reached {reached:.2f} of {gib(worst.limit_gb)}"
    text += f" (threshold {gib(worst.threshold_gb)})"
    name, holders = hungriest(worst)
    if not holders:
        return text
    each = gib(largest(episode, name))
    if is_minor(worst):
        return f"{text}: the processes that the report names hold only {gib(sum(h.gb for h in worst.holders))}"
    spared = victims and all(name not in (v.function, v.name) for v in victims)
    were = "were" if len(holders) > 1 else "was"
    label = holders[0].label if holders[0].is_worker else name
    subject = f"{label}, which {were} not killed," if spared else label
    if others := beside_outlier(holders):
        rest = f"the other {len(others)} at most {gib(others[0].gb)}"
        return f"{text}: {subject} (pid {holders[0].pid}) held {each}, and {rest}"
    if len(holders) > 1:
        return f"{text}: {len(holders)} × {subject} held up to {each} each"
    more = "".join(f", {h.label} {gib(h.gb)}" for h in also_large(worst, name)[:2])
    return f"{text}: {subject} held {each}{more}"


def _names(victims: list[MemoryUser]) -> str:
    """The names with their counts; without counts if all have one name."""
    counts = Counter(v.label for v in victims)
    many = len(counts) > 1
    return evidence.join_names(
        f"{count} × {label}" if many and count > 1 else label for label, count in counts.items()
    )


def _kill(report: OomReport) -> str:
    victims = evidence.join_names(f"{v.label} (pid {v.pid}, {gib(v.gb)})" for v in report.victims)
    used = f"{report.used_gb:.2f} of {gib(report.limit_gb)} in use"
    return f"the memory monitor kills {victims or evidence.many(report.killed, 'worker')}: {used}"


# ---------------------------------------------------------------- without a report


def _without_report(case: Case, found: list[OomReport]) -> Iterator[Finding]:
    """Workers that ended as NODE_OUT_OF_MEMORY although no report about them is left."""
    reported = {v.worker for r in found for v in r.victims}
    nodes = {r.node for r in found}
    exits = [
        e
        for e in case.exits
        if e.exit_type == "NODE_OUT_OF_MEMORY" and e.worker not in reported and e.node not in nodes
    ]
    if exits:
        names, count = evidence.join_names(e.noun for e in exits), evidence.deaths(exits)
        yield Finding(
            f"Ray's memory monitor killed {names if count == 1 else f'{count} workers: {names}'}{evidence.recovery(case, exits)}",
            tuple(link for e in exits[:3] for link in evidence.exit_links(e, most=1)),
            explains=evidence.exit_entities(exits),
            subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
            count=evidence.deaths(exits),
            severity=evidence.severity(case, exits),
            remedies=(_READ_REPORT,),
            covers=(*evidence.exit_events(exits), *_raised(case)),
        )
    yield from _only_counted(case, nodes | {e.node for e in exits})
    if not (exits or found or case.of(OOM_SUMMARY.kind)):
        yield from _only_raised(case)


_HOLDER = pattern(
    r"^(?P<pid>\d{1,20})\s+(?P<size>\d{1,20}(?:\.\d{1,20})?)Gi?B\s+(?P<command>\S[^\n]*)",
    re.MULTILINE,
)


def _refused(name: str, events: list[Event]) -> Finding:
    """Tasks that an old Ray refused to run."""
    first = events[0]
    top = _HOLDER.search(first["table"])
    held = f": pid {top['pid']} ({top['command'].strip()}) held {top['size']} GiB" if top else ""
    return Finding(
        f"Ray refused to run {evidence.many(evidence.total(events), 'task')} because {first['used']} of {first['limit']} GiB "
        f"of the memory of node {name} was in use{held}",
        (Link(first, f"the limit is {first['percent']}%"),),
        explains=(Entity("memory", name),),
        subjects=(Subject("node", None, name),),
        count=evidence.total(events),
        remedies=(
            Remedy(
                "Run fewer tasks at once, or reduce the memory of each",
                ("@ray.remote(num_cpus=2)   # half as many tasks run on a node",),
                doc=DOC,
            ),
        ),
        covers=tuple(events),
    )


def _raised(case: Case) -> list[Event]:
    """The kills that an excerpt shows as exceptions, also those that reading it made of a worker's exit."""
    return [
        e
        for e in case.of(RAY_EXCEPTION.kind)
        if e.source.is_excerpt
        and "OutOfMemoryError" in (e["type"], e["inner"])
        and "low on memory" in e["what"]
    ]


def _only_raised(case: Case) -> Iterator[Finding]:
    """Exceptions of which a console shows only the first words, or the last."""
    raised = [*(e for e in case.of(TAIL.kind) if e.source.is_excerpt), *_raised(case)]
    if raised:
        yield Finding(
            "Ray's memory monitor killed a worker because its node ran low on memory",
            (Link(raised[0], "Ray reports the kill, and the console cut the report off"),),
            explains=(Entity("memory", raised[0].source.path),),
            count=evidence.total(raised),
            severity="warning" if evidence.goes_on(case, raised[-1], is_line=True) else None,
            remedies=(_READ_REPORT,),
            covers=tuple(raised),
        )


def _only_counted(case: Case, known: set[str]) -> Iterator[Finding]:
    """Nodes of which only Ray's once-a-minute count is left, as in a console.

    The tasks may have been retried, unless the driver raised.
    """
    raised = any(
        e.source.role in DRIVER and not e["who"]
        for e in case.of("driver.exception", "log.traceback")
    )
    counts = (e for e in case.of("oom.summary") if e["node"] not in known and int(e["killed"]))
    for node, events in evidence.grouped(counts, lambda e: e["node"]).items():
        killed = sum(int(e["killed"]) * e.count for e in events)
        yield Finding(
            f"Ray's memory monitor killed {evidence.many(killed, 'worker')} because node {events[0]['ip']} ran low on memory",
            (Link(events[0], f"the raylet counts {evidence.many(killed, 'killed worker')}"),),
            explains=(Entity("memory", f"{node}@{events[0].at or 0:.3f}"),),
            subjects=(Subject("node", node, events[0]["ip"]),),
            count=killed,
            severity="error" if raised else "warning",
            remedies=(_READ_REPORT,),
            covers=tuple(events),
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
    console(
        "a program prints a report of another year",
        "2026-11-21 11:24:30,417\tINFO worker.py:2029 -- Started a local Ray instance.\n"
        "(raylet) [2025-03-02 11:20:51,204 E 310 310] (raylet) node_manager.cc:3219: 2 Workers (tasks / actors) killed due to memory "
        f"pressure (OOM), 0 Workers crashed due to other reasons at node (ID: {'5' * 56}, IP: 10.4.1.7) over the last time period.\n",
    ),
    Example(
        "three train tasks of 5.6 GB on a 15 GB node",
        {"logs/raylet.out": _OLD, "logs/gcs_server.out": ""},
        says=(
            "3 × train",
            "15.00 GiB",
            "Limit train() to 1 concurrent task instead of 3",
            "Ray allows 14.25 GiB",
            "memory=",
        ),
    ),
    Example(
        "tasks of Ray Data that use more memory than they request",
        {
            "driver.log": f"2026-11-21 07:54:30,100\tWARNING issue_detector_manager.py:50 -- \n\n{data.HIGH_MEMORY.sample}\n",
            "logs/raylet.out": _OLD.replace("task_name=train", "task_name=_map_task").replace(
                "name=train", "name=_map_task"
            ),
            "logs/gcs_server.out": "",
        },
        says=(
            "Request 5.1 GiB of memory for each task of ReadRange->MapBatches(embed)",
            "memory=5502926848",
        ),
    ),
    console(
        "the same in a console of Ray 2.60, which knows the largest use",
        "2026-11-21 07:54:30,100\tWARNING issue_detector_manager.py:71 -- \n\n"
        "Operator 'Map(embed)' uses 4.1GiB of memory per worker on average (up\nto 6.0GiB), but Ray only requests 0.0B per worker at the "
        "start of the\npipeline.\n\nTo avoid out-of-memory errors, consider setting `memory=8053063680`\n(7.5GiB) in the appropriate "
        "function or method call.\n\n(raylet) Task _map_task failed. There are infinite retries remaining, so the task will be retried. "
        f"Error: 1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.2, ID: {_N}) was "
        "14.40GB / 15.00GB (0.960000), which exceeds the memory usage threshold of 0.950000.\n",
        says=("Request 7.5 GiB", "1.25 × the 6.0 GiB", "memory=8053063680"),
    ),
    console(
        "the warning alone: no task was killed",
        f"{data.HIGH_MEMORY.sample}\n",
    ),
    Example(
        "the killed task is not the cause: the driver holds the memory",
        {"logs/raylet.out": _NEW, "logs/gcs_server.out": ""},
        says=("python driver.py, which was not killed, held 13.90 GiB",),
    ),
    console(
        "the killed task holds next to nothing, and the list of the largest processes is cut off",
        f"Memory on the node (IP: 10.0.0.2, ID: {_N}) where the task (task ID: {'5' * 48}, name=probe, pid=664, memory used=0.05GB) "
        "was running was 219.41GB / 230.40GB (0.952289), which exceeds the memory usage threshold of 0.95. Ray killed this "
        f"worker (ID: {_W}) because it was the most recently scheduled task; to see more information, use `ray logs raylet.out "
        "-ip 10.0.0.2`. Top 10 memory users:\n",
        says=(
            "the processes that the report names hold only 0.05 GiB",
            "Find the processes that hold the memory of node 10.0.0.2",
        ),
    ),
    Example(
        "Ray 2.55 reports in one line, and two kills have the same numbers",
        {
            "logs/raylet.out": _ONE_LINE.format(8, 541, _W, 541)
            + _ONE_LINE.format(16, 540, _W[::-1], 540),
            "logs/gcs_server.out": "",
        },
        says=(
            "killed 2 workers (train())",
            "build_index(), which was not killed, held 1.61 GiB",
        ),
    ),
    Example(
        "Ray's three guesses mention the OOM killer after every sudden death",
        {"logs/gcs_server.out": _GUESSES, "logs/raylet.out": ""},
        roots=("worker-vanished",),
    ),
    console(
        "a console with nothing but Ray's once-a-minute count",
        f"(raylet) {OOM_SUMMARY.sample}\nstep 3\n",
        says=("killed 1 worker because node 127.0.0.1 ran low on memory",),
        severity="warning",
    ),
    console(
        "a count of workers that only crashed",
        f"(raylet) {OOM_SUMMARY.sample}\n".replace("1 Workers", "0 Workers").replace(
            "0 Workers crashed", "2 Workers crashed"
        ),
    ),
    console(
        "an old Ray refuses a task, and the console wraps the line",
        f"Traceback (most recent call last):\n{REFUSED.sample}\n".replace("on node ", "on node\n"),
        roots=("ray-oom-kill", "unsupported-version"),
        says=("61.0 of 62.0 GiB", "pid 28442 (ray::Loader.load()) held 50.5 GiB"),
    ),
    console(
        "a program that writes about the exception",
        "except ray.memory_monitor.RayOutOfMemoryError: retry()\n",
    ),
    console(
        "only Ray's count is left, above the start of the driver's traceback",
        f"step 7\n(raylet) [2026-11-21 07:55:02,117 E 77 77] (raylet) node_manager.cc:3069: {OOM_SUMMARY.sample}\n"
        'Traceback (most recent call last):\n  File "/app/train.py", line 24, in <module>\n    main()\n',
        says=("killed 1 worker",),
    ),
    console(
        "the killed actor of a library is one of the processes that held the memory",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
        f"Memory on the node (IP: 10.0.0.2, ID: {_N}) where the task (actor ID: {'1' * 24}01000000, "
        "name=k2v9pShard_0:1:Shard.__init__, pid=412, memory used=5.60GB) was running was 14.40GB / 15.00GB (0.960000), "
        "which exceeds the memory usage threshold of 0.95. "
        f"Ray killed this worker (ID: {_W}) because it was the most recently scheduled task. Top 10 memory users:\n"
        "PID\tMEM(GB)\tCOMMAND\n412\t5.60\tray::Shard.generate\n411\t5.50\tray::Shard.generate\n",
        says=("killed 1 worker (Shard)", "2 × Shard held up to 5.60 GiB each"),
    ),
    console(
        "one actor of three grows",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
        f"Memory on the node (IP: 10.0.0.2, ID: {_N}) where the task (actor ID: {'1' * 24}01000000, "
        "name=Scorer.__init__, pid=412, memory used=9.60GB) was running was 14.40GB / 15.00GB (0.960000), "
        "which exceeds the memory usage threshold of 0.95. "
        f"Ray killed this worker (ID: {_W}) because it was the most recently scheduled task. Top 10 memory users:\n"
        "PID\tMEM(GB)\tCOMMAND\n412\t9.60\tray::Scorer.score\n411\t0.31\tray::Scorer.score\n410\t0.29\tray::Scorer\n",
        says=(
            "Scorer (pid 412) held 9.60 GiB, and the other 2 at most 0.31 GiB",
            "Find out what Scorer (pid 412) keeps",
        ),
    ),
    Example(
        "a task prints the same sentence",
        {
            f"logs/worker-{_W}-01000000-251.out": "Task was killed due to the node running low on memory.\n",
            **QUIET_LOGS,
        },
    ),
    console(
        "a console that ends with the first words of the exception",
        'Traceback (most recent call last):\n  File "/app/run.py", line 3, in <module>\n    ray.get(refs)\n'
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n",
        says=("Ray's memory monitor killed a worker",),
    ),
    console(
        "a console that begins below the exception's name",
        f"{OOM_KILL[-1].sample}; to see more information about memory usage on this node, use `ray logs raylet.out`\n",
        says=("3.22 of 4.00 GiB",),
    ),
    console(
        "a task logs the same report",
        f"(audit pid=12) {OOM_KILL[-1].sample}\n(audit pid=12) read 12 reports\n",
    ),
    console(
        "a console that begins within the report's table",
        f"(Actor pid=82) 88\t1.18\tray::Reference\n(Actor pid=82) {TAIL.sample}\nepoch 3\n",
        severity="warning",
    ),
    console(
        "a caught exception, and text that resembles the end of a report",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
        "caught; batch size halved\n(eval pid=9) Refer to the documentation on how to address the out of memory issue: https://x\n",
        severity="warning",
    ),
    console(
        "a console that ends within the first line of a report",
        f"{HEAD.sample}\n",
        says=("memory monitor killed a worker",),
    ),
    console(
        "a paste that begins within Ray's advice",
        "Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/en/latest/ray-core/scheduling/"
        "ray-oom-prevention.html. Consider provisioning more memory on this node.\n",
        roots=("ray-oom-kill",),
    ),
    console(
        "a console that ends within the raylet's summary",
        f"(raylet) {CUT_SUMMARY.sample}\n",
        roots=("ray-oom-kill",),
    ),
)
