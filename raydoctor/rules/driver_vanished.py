"""A driver ended suddenly, together with the Ray cluster that it may have started; no log records why.

## What you see
The program's output breaks off, perhaps followed by the shell's `Killed`. pytest-xdist prints `[gw1] node down: Not
properly terminated` for a process of its own that ended this way. On a cluster of its own, the logs of the raylet and
the GCS stop in the middle of their work, and the workers write `Shutting down the core worker because the local raylet
failed`. On another cluster, the raylet writes `Disconnecting driver, graceful=false`, and the GCS records the exit of
the driver as `SYSTEM_ERROR`.

## Why
A driver that ends by itself, by an exception, `sys.exit`, SIGTERM or Ctrl-C, disconnects from Ray first. A driver that
SIGKILL or a crash ended, or that called `os._exit`, does not.

`ray.init()` without an address starts Ray's processes as children of the driver, and the kernel ends them together with
it (`ray/_private/utils.py`, `set_kill_on_parent_death_linux`). The driver was killed by SIGKILL (the kernel's OOM
killer, a container's limit, a scheduler, `kill -9`), called `os._exit`, or crashed before it could log. A driver that
outlives its raylet logs an error: `The node … has been marked dead`, `Failed to connect to GCS`, or a traceback.

If the driver held no worker, raydoctor reports only a warning: the work may have been complete.

## Confirm
- The program's exit code names the signal: 137 or -9 is SIGKILL, 139 or -11 is SIGSEGV.
- `sudo dmesg -T | grep -i 'killed process'` lists the driver's pid if the kernel's OOM killer ended it. Kubernetes:
  `kubectl describe pod` shows `OOMKilled`. Slurm: `sacct -j JOB` shows `OUT_OF_MEMORY` or `TIMEOUT`.

## Fix
Keep large data out of the driver: pass references instead of `ray.get` on everything, and read data in tasks. Start the
cluster with `ray start --head` and connect to it, so that the cluster and its logs outlive the driver.

If the program calls `os._exit` on purpose after its work, call `ray.shutdown()` first.

## Not this when
- the driver's output ends with a traceback, or after `ray.shutdown()`.
- the GCS outlived the raylet (`raylet-died`), or a driver reports that Ray ended first (`gcs-died`).
- the driver belongs to a Ray Client: Ray kills that process on the head when its client has left.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import Job, WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import (
    DRIVER,
    GCS,
    JOB_STARTED,
    LOCAL_RAYLET_FAILED,
    NODE_DEAD,
    NODE_HEALTH_FAILED,
    OWNER_GONE_KILLED,
    RAY_EXCEPTION,
    RAYLET,
    RAYLET_STARTED,
    WORKER_DISCONNECTED,
    WORKER_EXIT,
)
from raydoctor.cluster import hosts
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import cut
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import cluster, jobs, kernel
from raydoctor.rules.shared.connect import STARTED_LOCAL

_DRIVERS = (*DRIVER, "core-driver")
_KILLED = (
    Signal(
        "shell.killed", "Killed", r"^(?:[^\s:]{1,200}: line \d{1,9}: +\d{1,10} )?Killed(?: {2,40}\S.*)?$", DRIVER,
        "train.sh: line 12: 12345 Killed                  python train.py",
    ),
    Signal(
        "shell.killed", "command terminated with exit code 137", r"^command terminated with exit code 137\s*$", DRIVER,
        "command terminated with exit code 137",
    ),
)  # fmt: skip
"""A shell's line for a program that SIGKILL ended, and that of `kubectl exec`."""
_XDIST = (
    Signal(
        "xdist.down", "node down: Not properly terminated", r"^(?:\[(?P<worker>gw\d{1,4})\] )?node down: Not properly terminated", DRIVER,
        "[gw1] node down: Not properly terminated",
    ),
    Signal(
        "xdist.crashed", " crashed while running ", r"^(?:E {1,8})?worker '(?P<worker>gw\d{1,4})' crashed while running '(?P<test>[^'\n]{1,300})'", DRIVER,
        "worker 'gw1' crashed while running 'tests/test_etl.py::test_load'",
    ),
)  # fmt: skip
"""pytest-xdist (`dsession.py`, 1.x to 3.x), whose worker processes are the drivers of the tests."""


@rule(
    tier="symptom",
    severity="critical",
    rank=9,
    explains=("gcs", "job", "node", "process", "raylet", "worker"),
    caused_by=("daemon", "host", "node"),
    looks_for=(
        *jobs.SIGNALS, *OWNER_GONE_KILLED, WORKER_DISCONNECTED, WORKER_EXIT, *_KILLED, *_XDIST, STARTED_LOCAL, cluster.DRIVER_GOODBYE, cluster.GCS_LOST, RAYLET_STARTED, LOCAL_RAYLET_FAILED, NODE_HEALTH_FAILED, *NODE_DEAD, *JOB_STARTED, RAY_EXCEPTION,
    ),
)  # fmt: skip
def driver_vanished(case: Case) -> Iterator[Finding]:
    """At most one finding for the driver that started this cluster, and one for each driver of another cluster."""
    raylets = [r for r in cluster.dead_raylets(case) if cluster.is_drivers(case, r.node)]
    open_jobs = [job for job in case.ledger.jobs.values() if job.ended is None]
    if len(raylets) == len(open_jobs) == 1 and _no_record_of_end(case, raylets[0]):
        printed = case.of(STARTED_LOCAL.kind)
        started = printed or _silent_together(case, raylets[0], open_jobs[0])
        if len(started) == 1:
            yield _finding(case, raylets[0], started[0], open_jobs[0])
    known = {
        job.id for each in jobs.submissions(case) if each.code is not None for job in each.jobs
    }
    for exit_ in case.driver_exits:
        job = case.job(ids.job_of_driver(exit_.worker))
        if exit_.exit_type == "SYSTEM_ERROR" and job.id not in known and not _is_of_client(case):
            yield _left_alone(case, exit_, job)
    if evidence.is_console(case) and not case.exits:
        yield from _killed(case)
        yield from _of_tests(case)


def _of_tests(case: Case) -> Iterator[Finding]:
    """A worker process of pytest-xdist that ended suddenly, with the cluster that a test had started in it."""
    events = [e for e in case.of(*(signal.kind for signal in _XDIST)) if not e["who"]]
    if not events or any(
        "Fatal Python error: " in e.text or "*** SIG" in e.text for e in case.events
    ):
        return
    workers = list(dict.fromkeys(e["worker"] for e in events if e["worker"]))
    test = next((e["test"] for e in events if e["test"]), "")
    during = f" while it ran {cut(test, 120)}" if test else ""
    name = f"The worker process {evidence.join_names(workers)}" if workers else "A worker process"
    yield Finding(
        f"{name} of pytest-xdist ended suddenly{during}: the output does not show why",
        (Link(events[0], "pytest-xdist lost the connection to the process, which may be the driver of a Ray cluster"),),
        explains=(Entity("job", f"xdist {events[0].source.path}"),),
        count=max(1, len(workers)),
        severity="error",
        remedies=(
            Remedy(
                "Run the test alone and in pytest's own process, which shows a crash or an exit",
                (
                    "python -X faulthandler -m pytest -p no:xdist -x   # with the name of the test",
                    "sudo dmesg -T | grep -i 'killed process'   # whether the kernel ended it",
                ),
                finds_cause=True,
            ),
        ),
        covers=tuple(events),
        gaps=_kernel_gaps(case, None),
    )  # fmt: skip


def _is_of_client(case: Case) -> bool:
    """Whether drivers may be servers of Ray Client, which its proxy kills when their client has left."""
    return any(_SERVER in source.path for source in case.sources)


_SERVER = "ray_client_server_"


def _left_alone(case: Case, exit_: WorkerExit, job: Job) -> Finding:
    """A driver whose connections broke, while its cluster went on. `os._exit(0)` after the last task looks the same."""
    kills = [
        e
        for e in case.of("worker.killed_with_owner")
        if exit_.worker in (e["owner"], e["owner_b"])
        and not case.actor_of_worker(e["worker"] or e["worker_a"] or e["worker_b"])
    ]
    workers = {e["worker"] or e["worker_a"] or e["worker_b"] for e in kills}
    held = f" while it held {evidence.many(len(workers), 'worker')}" if kills else ""
    links = list(evidence.exit_links(exit_))
    links += [Link(e, "the raylet ended a worker of its tasks with it") for e in kills[:1]]
    return Finding(
        f"The {exit_.label} ended suddenly{held}, without disconnecting from Ray: no log records why",
        tuple(links),
        explains=(Entity("job", job.id), *exit_.entities),
        caused_by=(
            Entity("daemon", f"driver/{job.driver_pid}"),
            *((Entity("node", exit_.node),) if exit_.node else ()),
        ),
        subjects=(Subject("job", job.id, None, exit_.pid, exit_.node or None),),
        severity="error" if kills else "warning",
        remedies=_remedies(job)[:1],
        covers=tuple(exit_.events),
        gaps=_gaps(case, job),
    )


def _killed(case: Case) -> Iterator[Finding]:
    """A console whose last line is the shell's, below the start of the program's own cluster."""
    for event in case.of(_KILLED[0].kind):
        ending = case.endings.get(event.source)
        is_last = not event["who"] and ending is not None and ending.offset <= event.offset
        started = evidence.last_before(case, event, STARTED_LOCAL.kind)
        if is_last and started:
            yield Finding(
                "SIGKILL ended the driver, and the Ray cluster that it had started ended with it: the output does not show "
                "who sent the signal",
                (
                    Link(
                        started,
                        "the driver starts its own Ray cluster, whose processes end with it",
                    ),
                    Link(event, "the shell reports that SIGKILL ended the program"),
                ),
                explains=(Entity("job", f"killed {event.source.path}"),),
                remedies=_remedies(None),
                covers=(event,),
                gaps=_kernel_gaps(case, None),
            )


def _silent_together(case: Case, raylet: cluster.DeadRaylet, job: Job) -> list[Event]:
    """The start of the only job, if the driver is the parent of a cluster that fell silent with it.

    The driver's output is not in the capture. `ray start` also starts the server of Ray Client, and before any driver: the pid
    of a driver that calls `ray.init` is lower than those of its daemons. A GCS that is still running logs the loss of a raylet.
    """
    registered = [e for e in case.of("job.started") if e["job"] == job.id]
    if not registered or len(case.ledger.jobs) > 1 or case.roles & {*DRIVER, "client-server"}:
        return []
    first = registered[0]
    daemons = [pid for pid in (first.pid, raylet.pid) if pid is not None]
    seen = min((e.at for e in raylet.seen if e.at is not None), default=None)
    is_parent = job.driver_pid is not None and len(daemons) == 2 and job.driver_pid < min(daemons)
    if not is_parent or seen is None or "core-driver" not in case.roles:
        return []
    roles = {*GCS, *RAYLET, "core-driver"}
    outlived = any(e.source.role in roles and e.at is not None and e.at > seen for e in case.events)
    return [] if outlived else [first]


def _no_record_of_end(case: Case, raylet: cluster.DeadRaylet) -> bool:
    """Whether no record of the raylet, the GCS or the driver mentions the end.

    A surviving GCS marks the node dead, and a surviving driver logs an error.
    """
    if raylet.said or any(e.kind != LOCAL_RAYLET_FAILED.kind for e in raylet.seen):
        return False
    errors = [e for e in case.of("gcs.lost", "raylet.seen_dead") if e.source.role in _DRIVERS]
    errors += [*case.of("driver.goodbye"), *cluster.lost_driver_errors(case)]
    ended_by_itself = any(ending["ended_by"] for ending in case.endings.values())
    return not errors and not ended_by_itself


def _finding(case: Case, raylet: cluster.DeadRaylet, started: Event, job: Job) -> Finding:
    number = ids.job_number(job.id)
    pid = f" (pid {job.driver_pid})" if job.driver_pid else ""
    shows = "the driver starts its own Ray cluster, whose processes end with it"
    if started.kind != STARTED_LOCAL.kind:
        shows = f"the only driver (pid {job.driver_pid}) is older than the cluster's daemons, so it started them"
    links = [Link(started, shows)]
    if raylet.started:
        links.append(
            Link(
                raylet.started, "the raylet's log stops here and records no SIGTERM and no shutdown"
            )
        )
    links += cluster.witnesses(raylet)
    return Finding(
        f"The driver of job {number}{pid} ended suddenly, and its own Ray cluster ended with it: no log records why",
        tuple(links),
        explains=(
            Entity("raylet", raylet.node),
            Entity("node", raylet.node),
            Entity("gcs", "gcs"),
            Entity("job", job.id),
        ),
        caused_by=(Entity("daemon", f"driver/{job.driver_pid}"), hosts.entity("head")),
        subjects=(Subject("job", job.id, None, job.driver_pid, raylet.node),),
        remedies=_remedies(job),
        covers=raylet.seen,
        gaps=_gaps(case, job),
    )


def _gaps(case: Case, job: Job) -> tuple[Gap, ...]:
    code = Gap(
        "the driver's exit code",
        "no log contains it. 137 means SIGKILL, 143 SIGTERM, 139 or 134 a crash, 1 an uncaught Python exception, any other number sys.exit or os._exit",
        'Read the exit code from the scheduler or the container. For the next run: python your_script.py; echo "exit code: $?"',
    )
    return (code, *_kernel_gaps(case, job.driver_pid))


def _kernel_gaps(case: Case, pid: int | None) -> tuple[Gap, ...]:
    driver = f"pid {pid}" if pid else "the driver"
    return kernel.gaps(
        case,
        "the driver's machine",
        f"only this log shows whether the kernel's OOM killer ended {driver}",
        kernel.driver_logs(case, pid),
    )


def _remedies(job: Job | None) -> tuple[Remedy, ...]:
    return (
        Remedy(
            "Find out what ended the driver",
            (
                paste.shell(
                    "sudo dmesg -T | grep -iw 'killed process {pid:pid}'   # if Ray runs in a container, the kernel log shows another pid: search without it, for a kill at that time",
                    pid=job.driver_pid,
                )
                if job and job.driver_pid
                else "sudo dmesg -T | grep -i 'killed process'",
                "kubectl describe pod POD | grep -A3 'Last State'   # Kubernetes",
                "sacct -j JOB --format=State,ExitCode,MaxRSS   # Slurm",
                "grep -rnE 'os\\.(_exit|kill|abort)' .   # here and in site-packages of the libraries you suspect: os._exit leaves no trace",
            ),
            finds_cause=True,
        ),
        Remedy(
            "Start the cluster separately, so that it outlives the driver",
            ("ray start --head   # then, in the driver: ray.init(address='auto')",),
            doc="https://docs.ray.io/en/latest/ray-core/starting-ray.html",
        ),
    )


# ------------------------------------------------------------------ examples

_N = "fd875f52489dc9a2f53c85a6f87fba13611a3340ab1d20bc262561bf"
_RAYLET = (
    f"[2026-11-21 07:44:03,993 I 305 305] (raylet) node_manager.cc:355: Raylet of id, {_N} started. Raylet consists of "
    "node_manager and object_manager. node_manager address: 10.0.0.2:0 object_manager address: 10.0.0.2:46637 hostname: n\n"
)
_SEEN = (
    "[2026-11-21 07:44:10,500 W 424 462] core_worker.cc:1075: Shutting down the core worker because the local raylet failed. "
    "Check out the raylet.out log file. Raylet pid: 305\n"
)
_JOB = (
    "[2026-11-21 07:44:04,082 I 17 17] (gcs_server) gcs_job_manager.cc:115: Registering job. job_id=01000000 driver_pid=16\n"
)  # fmt: skip
_STARTED = (
    "2026-11-21 07:44:03,262\tINFO worker.py:2029 -- Started a local Ray instance. View the dashboard at "
    "http://127.0.0.1:8265\nembedding\n"
)
_CRASHED_EXIT = (
    "[2026-11-21 07:44:08,100 W 17 17] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{'c' * 56}, node id = {_N}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits with a "
    "connection error code 2. End of file.\n"
)
_TRACEBACK = (
    'Traceback (most recent call last):\n  File "/app/a.py", line 9, in <module>\n    ray.get(x)\n'
    "ray.exceptions.LocalRayletDiedError: The task's local raylet died. Check raylet.out for more information.\n"
)
_FILES = {
    "logs/raylet.out": _RAYLET,
    "logs/gcs_server.out": _JOB,
    f"logs/python-core-worker-{'b' * 56}_424.log": _SEEN,
    f"logs/python-core-driver-01000000{'f' * 48}_16.log": "",
}

_DRIVER = f"01000000{'f' * 48}"


def _alone(how: str, *, is_busy: bool = False, stopped: bool = False) -> dict[str, str]:
    """The logs of a cluster that goes on after its driver has ended; `is_busy`: a worker was leased by the driver."""
    at = "[2026-11-21 07:44:10,{} I 17 17] "
    stop = (
        at.format(400)
        + "(raylet) main.cc:552: received SIGTERM. Existing local drain request = None\n"
    )
    kill = (
        at.format(503)
        + "(raylet) node_manager.cc:1050: Killing leased worker because its owner died. "
        f"worker_id={'c' * 56} owner_worker_id={_DRIVER}\n"
    )
    return {
        "logs/raylet.out": f"{_RAYLET}{stop if stopped else ''}{kill if is_busy else ''}",
        "logs/gcs_server.out": f"{_JOB}{at.format(501)}(gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
        f"{_DRIVER}, node id = {_N}, address = 10.0.0.2, exit_type = {how}, exit_detail = Worker unexpectedly exits with a "
        f"connection error code 2. End of file.\n{at.format(502)}(gcs_server) gcs_job_manager.cc:156: Marking job as finished. "
        "job_id=01000000\n",
    }


EXAMPLES: tuple[Example, ...] = (
    console(
        "a process of pytest-xdist, the driver of the tests, ends suddenly",
        f"{_XDIST[0].sample}\n[gw1] [ 89%] FAILED tests/test_etl.py::test_load \nreplacing crashed worker gw1\n{_XDIST[1].sample}\n",
        says=("The worker process gw1 of pytest-xdist ended suddenly", "test_load", "faulthandler"),
        severity="error",
    ),
    console(
        "a node of another program is down",
        "[db1] node down: Not properly started\n(watch pid=12) [gw1] node down: Not properly terminated\nloss 0.1\n",
    ),
    Example(
        "the driver's output breaks off, and the logs of the raylet and the GCS stop",
        {**_FILES, "driver.log": _STARTED},
        says=("pid 16", "job 1"),
        is_typical=True,
    ),
    Example(
        "on another cluster: the raylet ended a worker of the driver's tasks with it",
        {**QUIET_LOGS, **_alone("SYSTEM_ERROR", is_busy=True)},
        says=(
            "The driver of job 1 (pid 16) ended suddenly while it held 1 worker",
            "os._exit leaves no trace",
        ),
        severity="error",
    ),
    Example(
        "on another cluster, after its last task: os._exit may be meant",
        {**QUIET_LOGS, **_alone("SYSTEM_ERROR"), "driver.log": "done\n"},
        says=("The driver of job 1 (pid 16) ended suddenly, without disconnecting",),
        severity="warning",
    ),
    Example(
        "on another cluster, a driver that disconnected",
        {**QUIET_LOGS, **_alone("INTENDED_USER_EXIT", is_busy=True)},
    ),
    Example(
        "a server of Ray Client, whose client has left",
        {
            **QUIET_LOGS,
            **_alone("SYSTEM_ERROR", is_busy=True),
            "logs/ray_client_server_23000.err": "",
        },
    ),
    Example(
        "on another cluster, whose node was being stopped",
        {**QUIET_LOGS, **_alone("SYSTEM_ERROR", is_busy=True, stopped=True)},
        roots=("ray-stopped",),
    ),
    Example(
        "without the driver's output: all core logs fall silent together",
        {**_FILES, "logs/gcs_server.out": _JOB},
        says=("pid 16",),
    ),
    Example(
        "a worker crashed before its driver ended, and an agent quotes the raylet's log, which names that worker",
        {
            **_FILES,
            "driver.log": _STARTED,
            "logs/gcs_server.out": f"{_JOB}{_CRASHED_EXIT}",
            f"logs/python-core-worker-{'c' * 56}_425.log": "[2026-11-21 07:44:08,000 E 425 425] logging.cc:474: *** SIGSEGV received at "
            "time=1795247048 on cpu 1 ***\n",
            "logs/runtime_env_agent.err": f"Raylet is terminated. Termination is unexpected. Last 20 lines of the Raylet logs:\n    {_CRASHED_EXIT}",
        },
        roots=("driver-vanished", "worker-native-crash"),
    ),
    Example(
        "without the driver's output, on a head that ray start had started",
        {**_FILES, "logs/ray_client_server.out": ""},
        roots=("raylet-died",),
    ),
    Example(
        "without the driver's output: the GCS outlived the raylet",
        {
            **_FILES,
            "logs/gcs_server.out": f"{_JOB}[2026-11-21 07:44:13,000 W 17 17] (gcs_server) gcs_health_check_manager.cc:169: Health check "
            f"failed for node {_N}, remaining checks 4, status 14, response status 0, status message failed to connect to all "
            "addresses, status details\n",
        },
        roots=("raylet-died",),
    ),
    Example(
        "the kernel's OOM killer ended the driver",
        {
            **_FILES,
            "driver.log": _STARTED,
            "dmesg.txt": "[Sat Nov 21 07:44:09 2026] Out of memory: Killed process 16 (python) total-vm:9000000kB, "
            "anon-rss:8000000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:100kB oom_score_adj:0\n",
        },
        roots=("kernel-oom-kill",),
        consequences=("driver-vanished",),
    ),
    Example(
        "the driver outlived its raylet",
        {**_FILES, "driver.log": _STARTED + _TRACEBACK},
        roots=("raylet-died",),
    ),
    console(
        "a console that ends with the shell's line",
        f"{_STARTED}(embed pid=12) 3 of 9\n{_KILLED[0].sample}\n",
        says=("SIGKILL ended the driver", "does not show who sent the signal", "sudo dmesg -T"),
    ),
    console(
        "the shell reports the end of another program, and the driver continues",
        f"{_STARTED}Killed\nembedding again\n{_KILLED[1].sample}: see above\n",
    ),
    Example(
        "the driver did not start the cluster",
        {**_FILES, "driver.log": "embedding\n"},
        roots=("raylet-died",),
    ),
)
