"""A worker process ended, and nothing in the capture shows why.

## What you see
`WorkerCrashedError`, or `ActorDiedError` with `Worker exit type: SYSTEM_ERROR` and `connection error code 2. End of
file`, or `The leased worker has unrecoverable failure`. Ray adds the same three guesses (OOM killer, `ray stop
--force`, SIGSEGV) to every such death.

## Why
The process ended without a record: by a SIGKILL from outside (a person, the kernel's OOM killer, a container limit), or
by `os._exit` inside a library. Ray records the same text for all of them. Measured with Ray 2.60: SIGKILL, a kernel OOM
kill and `os._exit(7)` differ only in the kernel log.

## Confirm
- `sudo dmesg -T | grep -i 'killed process'` on the worker's node: a record with the worker's pid means that the
  kernel's OOM killer ended it.
- On Kubernetes, `kubectl describe pod` shows `OOMKilled` and exit code 137 if the container reached its memory limit.
- In the worker's cgroup, `oom_kill` in `memory.events` (v2) or `memory.oom_control` (v1) counts OOM kills.
- The worker's `.err` file may end with the output of a library that called `os._exit`.

## Fix
Save the kernel log of the worker's node into the folder of the logs, and diagnose that folder again:

    sudo dmesg -T > logs/dmesg.txt; raydoctor diagnose logs/

Until the cause is known, let Ray retry work that may run twice (a retry repeats its side effects):

    @ray.remote(max_retries=10)   # a task; the default is 3
    @ray.remote(max_restarts=3, max_task_retries=3)   # an actor

## Not this when
- Ray's memory monitor killed the worker (`ray-oom-kill`).
- the worker's own log contains a crash report (`worker-native-crash`).
- the kernel log names the worker's pid (`kernel-oom-kill`).
- Ray ended the worker on purpose, or its node or owner died first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import (
    DRIVER,
    GCS,
    RAY_EXCEPTION,
    RAYLET,
    TASK_ATTEMPT_FAILED,
    TASK_FAILED,
    WORKER_DIED,
    WORKER_EXIT,
)
from raydoctor.cluster import hosts
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import called, joined
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy
from raydoctor.rules.shared import ended, engine, gpu_fault, jobs, kernel

_OWN = ("worker-err", "core-worker")
"""Files in which a worker's crash is reported."""
_DEATH_TEXT = (
    Signal(
        "worker.death_text", "The worker died unexpectedly while executing this task.",
        r"^(?:Unhandled error \(suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'\): |(?:ray\.exceptions\.)?WorkerCrashedError: )?"
        r"The worker died unexpectedly while executing this task\.", DRIVER,
        "Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): The worker died unexpectedly while executing this task. Check "
        "python-core-worker-*.log files for more information.",
    ),
    Signal(
        "worker.death_text", "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
        r"^The actor is dead because its worker process has died\. Worker exit type: SYSTEM_ERROR\b", DRIVER,
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly "
        "exits with a connection error code 2. End of file.",
    ),
    Signal(
        "worker.death_text", "Invalid return value: likely worker died or was killed while executing the task",
        r"^Invalid return value: likely worker died or was killed while executing the task", DRIVER,
        "Invalid return value: likely worker died or was killed while executing the task.",
    ),
)  # fmt: skip
"""`str()` of WorkerCrashedError, the last line of ActorDiedError's, and up to 0.6 that of RayGetError's: what is left where a program logs one, or a paste begins."""

_ACTOR_DIED = "The actor died unexpectedly before finishing this task."
_REASONS = ("The actor is dead because", "The actor died because", "never ran")
"""In the lines of the exception that a console may cut off."""


def _kernel_gaps(case: Case, exits: Sequence[WorkerExit] = ()) -> tuple[Gap, ...]:
    nodes = dict.fromkeys(e.node for e in exits)
    one = next(iter(nodes)) if len(nodes) == 1 else ""
    ip = case.address_of(one, exits[0].ip) if one else ""
    several = "the workers' nodes" if len(nodes) > 1 else "the worker's node"
    ended_by = " or ".join(f"pid {e.pid}" for e in exits if e.pid) if len(exits) <= 2 else ""
    return kernel.gaps(
        case,
        f"node {ip}" if ip else several,
        f"only this log shows whether the kernel's OOM killer ended {ended_by or 'the worker'}",
        kernel.raylet_logs(case, filter(None, nodes)),
    )


_PIDS = 5
"""Pids in a command."""


def _find(exits: Sequence[WorkerExit] = ()) -> Remedy:
    """How to find what ended these processes: on which node, and which pids the kernel would name."""
    pids = dict.fromkeys(f"killed process {e.pid}" for e in exits[:_PIDS] if e.pid)
    return Remedy(
        "Find what ended the process",
        (
            paste.shell(
                "sudo dmesg -T | grep -iwE {words}   # on {node}. If Ray runs in a container, the kernel log shows other pids: look for a kill at the time of the exit",
                words="|".join((*(pids or ("killed process",)), "out of memory")),
                node=next((f"node {e.ip}" for e in exits if e.ip), "the node of the worker"),
            ),
            "kubectl describe pod POD | grep -A3 'Last State'   # Kubernetes: OOMKilled?",
            "grep -rnE 'os\\.(_exit|kill|abort)' .   # here and in site-packages of the libraries you suspect: os._exit leaves no trace",
        ),
        doc="https://docs.ray.io/en/latest/ray-observability/user-guides/debug-apps/debug-failures.html",
        finds_cause=True,
    )


_UNTIL_THEN = (
    "Until you know the cause, let Ray retry work that is safe to run twice. This does not help if the work itself kills its "
    "worker each time"
)


@rule(
    tier="symptom",
    severity="error",
    rank=90,
    explains=("actor-exit", "process", "worker"),
    caused_by=("collective", "gpu-fault", "node", "host"),
    daemons_record=True,
    fallback=True,
    looks_for=(
        WORKER_EXIT,
        WORKER_DIED,
        *_DEATH_TEXT,
        RAY_EXCEPTION,
        engine.WATCHDOG,
        kernel.KILLED,
        *gpu_fault.SIGNALS,
        *jobs.SIGNALS,
    ),
    remedies=(_find(), Remedy(_UNTIL_THEN, (ended.TASK, ended.ACTOR))),
)
def worker_vanished(case: Case) -> Iterator[Finding]:
    """One finding per node: the same kernel log explains all deaths on a node."""
    left = [
        e
        for e in case.exits
        if e.exit_type == "SYSTEM_ERROR"
        and not case.is_explained(*e.entities)
        and (_is_named(e) or not case.explained)
        and not jobs.ended_with(case, e.worker)
    ]
    by_node: dict[str, list[WorkerExit]] = {}
    for exit_ in left:
        by_node.setdefault(exit_.node, []).append(exit_)
    for exits in by_node.values():
        yield _finding(case, exits)
    if not (case.exits or case.explained or _DAEMONS & case.roles):
        yield from _of_texts(case)


def _is_named(exit_: WorkerExit) -> bool:
    """Whether a record names the process; a console may cut it off: then another finding may be about the same one."""
    return bool(exit_.worker or exit_.actor or exit_.pid is not None)


_DAEMONS = frozenset((*GCS, *RAYLET))
"""Their logs record every exit, so that a text alone says nothing new."""


def _of_texts(case: Case) -> Iterator[Finding]:
    """At most one finding, where the text of an exception is all that a console shows."""
    texts = case.of(_DEATH_TEXT[0].kind) or [
        e
        for e in case.of(RAY_EXCEPTION.kind)
        if e.source.is_excerpt
        and e["type"] in ("ActorDiedError", "RayActorError")
        and e["what"].startswith(_ACTOR_DIED)
        and not any(words in e["what"] for words in _REASONS)
    ]
    if not texts:
        return
    of_actor = ("actor is dead", _ACTOR_DIED)
    is_actors = any(words in e.message for e in texts for words in of_actor)
    what = "An actor's worker" if is_actors else "A worker"
    yield Finding(
        f"{what} ended suddenly, and the output shows only the exception that its caller got",
        (Link(texts[0], "Ray reports the end of the process without a cause"),),
        explains=(Entity("actor-exit", ""),),
        severity="warning" if evidence.goes_on(case, texts[-1]) else None,
        remedies=(_find(), Remedy(_UNTIL_THEN, (ended.ACTOR,))) if is_actors else None,
        covers=(*texts, *case.of("driver.exception")),
        gaps=_kernel_gaps(case),
    )


def _is_of_end(case: Case, exits: Sequence[WorkerExit]) -> bool:
    """Whether an old Ray reports unnamed workers, and the program then prints its result: they may have ended with it."""
    events = [event for e in exits for event in e.events]
    results = [
        end
        for source, end in case.endings.items()
        if source.is_excerpt and end["is_result"] and not end["ended_by"]
    ]
    return (
        bool(events)
        and all(not _is_named(e) or (not e.detail and not e.names) for e in exits)
        and all(
            any(end.source.path == event.source.path and end.line > event.line for end in results)
            for event in events
        )
    )


def _finding(case: Case, exits: list[WorkerExit]) -> Finding:
    links = [
        link
        for exit_ in exits[:3]
        for link in evidence.exit_links(exit_, most=1 if len(exits) > 1 else 2)
    ]
    if ruled_out := _ruled_out(case, exits):
        shows = f"{links[0].shows}. No log shows {joined(ruled_out, 'or')}"
        links[0] = Link(links[0].event, shows)
    for log in _silent_kernel_logs(case, exits):
        shows = f"{links[0].shows}. The kernel log of its node, {log}, records no kill"
        links[0] = Link(links[0].event, shows)
    final = _final_failure(case, exits)
    links += [Link(*final)] if final else []
    links += evidence.printed_last(case, exits)
    peers = tuple(_peers(case, exits))
    why = ", and no log shows why" if ruled_out else ", and the capture does not show why"
    return Finding(
        f"{ended.workers(exits)} ended suddenly{'' if peers else why}{evidence.recovery(case, exits)}",
        tuple(links),
        explains=evidence.exit_entities(exits),
        caused_by=(
            *(Entity("node", e.node) for e in exits if e.node),
            *(pod for e in exits for pod in hosts.of_node(e.node, e.ip)),
            *peers,
        ),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=evidence.deaths(exits),
        severity="info" if _is_of_end(case, exits) else evidence.severity(case, exits),
        remedies=(_find(exits), *ended.retries(case, exits, _retry_title(case, exits))),
        covers=(*evidence.exit_events(exits), *evidence.attempts_covered(case, exits)),
        gaps=_kernel_gaps(case, exits),
    )


def _retry_title(case: Case, exits: list[WorkerExit]) -> str:
    if evidence.recovery(case, exits):
        return "To survive more such exits, allow more retries"
    return _UNTIL_THEN


def _final_failure(case: Case, exits: list[WorkerExit]) -> tuple[Event, str] | None:
    """The submitter's record of a task whose last attempt ended with one of these workers."""
    attempts = evidence.grouped(case.of("task.attempt_failed"), lambda e: e["task"])
    near = {id(e) for exit_ in exits[-3:] for e in case.near(exit_.events[0], "task.failed")}
    for task, failure in case.ledger.tasks.items():
        died = [e for e in attempts.get(task, ()) if e["error"] == "WORKER_DIED"]
        if id(failure) in near and died and failure["max_retries"]:
            times = evidence.many(evidence.total(died), "attempt")
            limit = f"with max_retries={failure['max_retries']}"
            return (
                failure,
                f"the caller records that {called(failure['name'])} failed for good after {times}, {limit}",
            )
    return None


def _silent_kernel_logs(case: Case, exits: list[WorkerExit]) -> list[str]:
    """The kernel log beside the logs of the node of these exits, if it has no record of a kill.

    It may begin later than the exit: a log in a capture is not known to be complete.
    """
    nodes = {each.node for each in exits if each.node}
    labels = {s.node for s in case.sources if case.ledger.raylet_files.get(s.path) in nodes}
    logs = [s.path for s in case.sources if s.role == "kernel" and s.node in labels]
    return [] if case.of(kernel.KILLED.kind) else logs[:1]


def _peers(case: Case, exits: list[WorkerExit]) -> Iterator[Entity]:
    """What ended the GPU workers of the same console, if no log of Ray's daemons records these ends."""
    if any(evidence.is_recorded(exit_) for exit_ in exits):
        return
    for exit_ in exits:
        yield from gpu_fault.earlier(case, exit_.events[0])
    if all(engine.ended_after_wait(case, exit_) for exit_ in exits):
        yield engine.TIMED_OUT


def _ruled_out(case: Case, exits: list[WorkerExit]) -> list[str]:
    """The causes that the logs in the capture would show: a console alone rules out none."""
    if not all(evidence.is_recorded(exit_) for exit_ in exits):
        return []
    own = {
        e.value for s in case.sources if s.role in _OWN for e in s.entities if e.kind == "worker"
    }
    crash = ["a crash"] if all(e.worker in own for e in exits) else []
    return [
        "an OOM kill by Ray",
        *crash,
        "a call of sys.exit",
        "an earlier end of its node or owner",
    ]


# ------------------------------------------------------------------ examples

_W = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"


def _ended_after(
    milliseconds: int,
    *,
    is_reported: bool,
    detail: str = "Worker unexpectedly exits with a connection error code 2. End of file.",
) -> dict[str, str]:
    """A job that ends so many milliseconds after the exit of its worker; `is_reported`: the raylet pushed the failure."""
    at = "[2026-11-21 07:34:50,{} {} 8 8] (gcs_server) "
    report = {
        "label": "RAY_WORKER_FAILURE",
        "message": "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
        f"check the logs for the dead worker. Lease ID: {'0' * 64} Worker ID: {_W} Node ID: {'a' * 56} Worker IP address: 127.0.0.1 "
        f"Worker port: 39003 Worker PID: 379 Worker exit type: SYSTEM_ERROR Worker exit detail: {detail}",
        "severity": "ERROR", "source_type": "RAYLET", "timestamp": 1795246490, "pid": 17,
    }  # fmt: skip
    return {
        "logs/gcs_server.out": at.format("100", "I")
        + "gcs_job_manager.cc:115: Registering job. job_id=01000000 driver_pid=7\n"
        + at.format("700", "W")
        + f"gcs_worker_manager.cc:70: Reporting worker exit, worker id = {_W}, node id = {'a' * 56}, address = 127.0.0.1, "
        f"exit_type = SYSTEM_ERROR, exit_detail = {detail}\n"
        + at.format(700 + milliseconds, "I")
        + "gcs_job_manager.cc:156: Marking job as finished. job_id=01000000\n",
        "logs/raylet.out": "",
        **({"logs/events/event_RAYLET.log": f"{json.dumps(report)}\n"} if is_reported else {}),
    }


_RETRIED_ONCE = "".join(
    f"[2026-11-21 07:34:50,{at} W 7 9] task_manager.cc:1678: {text}\n"
    for at, text in (
        (600, TASK_ATTEMPT_FAILED.sample),
        (701, TASK_ATTEMPT_FAILED.sample),
        (702, TASK_FAILED.sample.replace("max_retries=0", "max_retries=1")),
    )
)

_ONCE = (
    "kill",
    _RETRIED_ONCE.partition("\n")[0]
    + "\n"
    + _RETRIED_ONCE.splitlines()[-1].replace("max_retries=1", "max_retries=0")
    + "\n",
)
"""A function, and the records of its caller about one attempt."""

_LICENSE = "solver: no license for feature MESH (4 of 4 in use)"
_SILENT = {
    "logs/gcs_server.out": "[2026-11-21 07:34:50,739 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, "
    f"worker id = {_W}, node id = {'a' * 56}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly "
    "exits with a connection error code 2. End of file.\n",
    "logs/raylet.out": "",
    f"logs/worker-{_W}-01000000-379.out": ":job_id:01000000\n:task_name:solve\nstep 12\n",
}

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a SIGKILL leaves only Ray's three guesses",
        {
            "logs/gcs_server.out": f"[2026-11-21 07:34:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: {WORKER_EXIT.sample}"
            " Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, "
            "(2) ray stop --force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error.\n",
            "logs/raylet.out": "",
        },
        roots=("worker-vanished",),
    ),
    Example(
        "a library prints why, and calls _exit",
        {
            **_SILENT,
            f"logs/worker-{_W}-01000000-379.err": f":job_id:01000000\n:task_name:solve\n{_LICENSE}\n:task_name:solve\n",
        },
        says=("solve() (pid 379)",),
    ),
    Example(
        "the log of the caller, which retried the task once",
        {
            **_ended_after(40, is_reported=True),
            f"logs/python-core-driver-01000000{'f' * 48}_7.log": _RETRIED_ONCE,
        },
        roots=("worker-vanished",),
    ),
    Example(
        "the log of the caller, whose program disables retries of the task",
        {
            **_ended_after(40, is_reported=True),
            f"logs/worker-{_W}-ffffffff-379.out": f":task_name:{_ONCE[0]}\n",
            f"logs/python-core-driver-01000000{'f' * 48}_7.log": _ONCE[1],
        },
        says=("only if it is safe to run twice. The program set max_retries=0",),
    ),
    Example(
        "the kernel log beside the raylet's log names no kill",
        {
            **_ended_after(40, is_reported=True),
            "logs/raylet.out": "[2026-11-21 07:34:40,100 I 17 17] (raylet) main.cc:1082: Raylet of id, "
            f"{'a' * 56} started. Raylet consists of node_manager and object_manager. node_manager address: 127.0.0.1:0\n",
            "logs/dmesg.txt": "2026-11-21T07:34:48.100000+00:00 host kernel: eth0: link becomes ready\n",
        },
        roots=("worker-vanished",),
    ),
    console(
        "only the driver's output is left, and it names the actor but no process",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        f"\tclass_name: Trainer\n\tactor_id: {'1' * 24}01000000\nThe actor is dead because its worker process has died. "
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2.\n",
        roots=("worker-vanished",),
    ),
    console(
        "a failed result that the program never fetched, and no log of Ray's daemons",
        f"2026-11-21 07:34:50,741\tERROR worker.py:405 -- {_DEATH_TEXT[0].sample}\n",
        says=("only the exception that its caller got",),
    ),
    console(
        "an engine logs the end of its actor",
        f"ERROR 11-21 13:21:18 [core.py:396] {_DEATH_TEXT[1].sample}\nProcess EngineCore_0:\n",
        roots=("worker-vanished",),
    ),
    console(
        "a task and a note quote the texts, and an actor left on purpose",
        f"(check pid=12) {_DEATH_TEXT[1].sample}\nIf the worker died unexpectedly while executing this task, run it "
        f"again.\n{_DEATH_TEXT[1].sample.replace('SYSTEM_ERROR', 'INTENDED_USER_EXIT')}\n",
    ),
    Example(
        "the text beside complete logs, which record no exit",
        {"driver.log": f"{_DEATH_TEXT[0].sample}\n", **QUIET_LOGS},
    ),
    Example(
        "an idle worker that Ray itself ended",
        {
            "logs/gcs_server.out": f"[2026-11-21 07:34:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, "
            f"worker id = {_W}, node id = {'a' * 56}, address = 127.0.0.1, exit_type = INTENDED_SYSTEM_EXIT, exit_detail = Worker "
            "exited because it was idle for a long time\n",
            "logs/raylet.out": "",
        },
    ),
    Example(
        "a script that ends 40 ms after its worker died, which the raylet reported as a failure",
        _ended_after(40, is_reported=True),
        roots=("worker-vanished",),
    ),
    Example(
        "a worker that ends with its script: the raylet reports no failure",
        _ended_after(40, is_reported=False),
    ),
    Example(
        "Ctrl-C reaches the worker before the script",
        _ended_after(
            40,
            is_reported=True,
            detail="Worker exits unexpectedly. Worker exits with an exit code 1.",
        ),
    ),
    console(
        "a driver of Ray 0.8 logs what the raylet pushes",
        "2026-11-21 07:42:46,044\tWARNING worker.py:1072 -- A worker died or was killed while executing task "
        "ffffffffffffffff7dec85640100.\n",
        roots=("unsupported-version", "worker-vanished"),
    ),
    console(
        "a console that cuts the raylet's message off",
        f"(raylet) {WORKER_DIED.sample.partition(' Node ID')[0][:-20]}\n",
        roots=("worker-vanished",),
    ),
    console(
        "a program prints the sentence",
        "(watch pid=12) A worker died or was killed while executing a task by an unexpected system error. Next\n",
    ),
    console(
        "a console that ends with the first words of ActorDiedError",
        '  File "/venv/site-packages/ray/_private/worker.py", line 908, in get_objects\n    raise value\n'
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Runner\n",
        says=("An actor's worker ended suddenly",),
    ),
    console(
        "a worker prints that an actor which it called died, and tries again",
        '(pid=1926) Traceback (most recent call last):\n(pid=1926)   File "/app/tune.py", line 88, in _train\n'
        "(pid=1926)     results = ray.get(status)\n"
        "(pid=1926) ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n(pid=1926) Killing worker 2\n",
        says=("An actor's worker ended suddenly",),
    ),
    console(
        "such a worker prints the reason as well: that is another rule's",
        "(pid=1926) ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
        "(pid=1926) \tclass_name: Trainer\n(pid=1926) \tactor_id: 42f4f1e5b3ee4d8fa4cd7a0801000000\n"
        "(pid=1926) The actor is dead because it was killed by `ray.kill`.\n",
        roots=("actor-killed",),
    ),
    console(
        "a paste that begins within the raylet's message",
        "detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is "
        "killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called.\n",
        says=("The worker ended suddenly",),
    ),
    console(
        "a paste that begins within the details of an actor",
        "\tactor_id: 331fd576af32d153f0d76d1801000000\n\tpid: 379\n\tip: 10.0.0.2\nThe actor is dead because its worker process has died. "
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n",
        says=("ended suddenly",),
    ),
    console(
        "a program quotes the end of the message in its second line, and a task in its first",
        "(check pid=12) (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\n"
        "known: (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\nepoch 2\n",
    ),
    console(
        "Ray 0.8 reports an unnamed worker, and the program prints its result",
        "2020-11-21 15:35:00,032 WARNING worker.py:1072 -- A worker died or was killed while executing task ffffffffffffffff45b95b1c0100.\nsuccess!\n",
        roots=("worker-vanished", "unsupported-version"),
        severity="info",
    ),
    console(
        "Tune of Ray 0.6 logs that a trial's process died",
        "RayGetError: Could not get objectid ObjectID(01000000f76b). It was created by remote function <unknown> which failed with:\n\n"
        f"Remote function <unknown> failed with:\n\n{_DEATH_TEXT[2].sample}\n",
        says=("A worker ended suddenly",),
    ),
)
