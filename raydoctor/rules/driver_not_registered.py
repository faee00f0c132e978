"""A driver exited because it could not register with the raylet on its machine.

## What you see
- `Failed to register worker … to Raylet` with `IOError:`, followed by "No such file or directory" or `Failed to read
  data from the socket: End of file`. Up to Ray 2.48, `[RayletClient] Unable to register worker with raylet` is printed
  between them. The driver ends immediately, without a traceback.
- Up to Ray 2.53: ``ValueError: Can't find a `node_ip_address.json` file from /tmp/ray/session_…``.
- From Ray 2.54 on: `RuntimeError: No node info found matching attributes` (from Ray 2.55 on only after a minute).
- `The current node timed out during startup` or `Timed out after 30 seconds while waiting for node to startup`, when
  `ray.init` or `ray start` starts a node.

## Why
A driver needs a raylet on its own machine and finds it by a socket in the session's folder. If the socket is missing,
the raylet has already ended, or the folder is that of a dead cluster. If the connection was closed, the raylet ended
while the driver waited. Most often, the raylet's agent could not start (broken grpcio, slow file system), so the raylet
ended with it. `ray.init()` starts one worker per core of the machine, even if Slurm or a container allows the program
only a few cores. On a large machine, these workers then reach limits on threads or open files.

If `node_ip_address.json` or matching node info is missing, the driver's machine or container is not a node of the
cluster that it connected to: no raylet of that cluster runs there.

## Confirm
- The last lines of `raylet.out`, `raylet.err` and `dashboard_agent.log` in `/tmp/ray/session_latest/logs` show why the
  raylet ended.
- `pgrep -a raylet` on the driver's machine prints nothing: no raylet runs there.
- `nproc` prints far more CPUs than the program may use, and `ulimit -u`, `ulimit -n` or `/sys/fs/cgroup/pids.max` is
  low: the workers reach that limit.

## Fix
- Find out why the raylet exited, and fix that: `raydoctor diagnose /tmp/ray/session_latest`.
- End the Ray processes of earlier runs: `raydoctor zombies --kill` shows its plan and asks.
- Run the driver on a node of the cluster, or submit it as a job: `ray job submit --working-dir . -- python
  your_script.py`.
- In a program that starts Ray itself, limit Ray to the cores that the program may use:
  `ray.init(num_cpus=len(os.sched_getaffinity(0)))`.

## Not this when
- the text ends with `No available ports` (`ports-exhausted`).
- a worker, not a driver, failed to register (`worker-start-crashed`).
- the driver did not reach the GCS (`gcs-unreachable`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAYLET_STARTED
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy
from raydoctor.rules.shared.cluster import AGENT_FAILED, dead_raylets
from raydoctor.rules.shared.connect import (
    CONNECTING,
    INIT_DOC,
    NO_NODE_INFO,
    NO_RAYLET,
    NODE_NOT_STARTED,
    OTHER_ADDRESS,
    STARTED_LOCAL,
    UNREGISTERED,
    UNREGISTERED_CUT,
    connected_to,
)
from raydoctor.rules.shared.failures import ended_programs, program

_W = f"01000000{'f' * 48}"
_NO_NODE = Signal(
    "driver.no_node", "node_ip_address.json",
    r"^ValueError: Can't find a `node_ip_address\.json` file from (?P<session>\S{1,300}?)\.? for (?P<seconds>\d+) seconds", DRIVER,
    "ValueError: Can't find a `node_ip_address.json` file from /tmp/ray/session_2026-11-21_10-40-11_306000_7. for 60 seconds. A ray "
    "instance hasn't started. Did you do `ray start` or `ray.init` on this host?", symptom=True,
)  # fmt: skip

_NOT_YET = (
    Signal(
        "driver.no_node_yet", ". Have you started Ray instance using ",
        r"^Can't find a `node_ip_address\.json` file from (?P<session>\S{1,300}?)\. Have you started Ray instance using ", DRIVER,
        "Can't find a `node_ip_address.json` file from /tmp/ray/session_2026-11-21_10-40-11_306000_7. Have you started Ray instance using "
        "`ray start` or `ray.init`?", fold=("session",),
    ),
    Signal(
        "driver.no_node_yet", "have not registered with GCS, so retrying.",
        r"^(?:global_state_accessor\.cc:\d{1,5}: )?Some processes that the driver needs to connect to have not registered with GCS, so retrying\.",
        DRIVER, "Some processes that the driver needs to connect to have not registered with GCS, so retrying. Have you run 'ray start' on "
        "this node?",
    ),
)  # fmt: skip
"""What a driver logs for each of its attempts; the last one raises (`_private/node.py`, `global_state_accessor.cc`)."""
_WAITS_FOR_RAYLET = (2, 55)
"""From here on the driver waits for a raylet on its machine; a newer driver of an older cluster is a `version-mismatch`."""
_NO_HEAD = (
    Signal(
        "driver.no_head_info", "not found in NodeInfo, ",
        r"^Exception: Head node (?:temp_dir|session dir) not found in NodeInfo, ", DRIVER,
        "Exception: Head node temp_dir not found in NodeInfo, either GCS or head node's raylet may not have started successfully.",
        symptom=True,
    ),
    Signal(
        "driver.no_head_info", "No node info found for head node in GCS.",
        r"^Exception: No node info found for head node in GCS\.", DRIVER,
        "Exception: No node info found for head node in GCS. Did the head node or gcs start successfully?", symptom=True,
    ),
)  # fmt: skip
"""A driver or a worker node asks the GCS for the head's raylet (`_private/node.py`, `_private/utils.py`, 2.54 to 2.60)."""
_NOT_FOUND = (
    Signal(
        "driver.no_own_info", "Timed out waiting for node info for node_id=",
        r"^RuntimeError: Timed out waiting for node info for node_id=(?P<node>[0-9a-f]{56})\.", DRIVER,
        f"RuntimeError: Timed out waiting for node info for node_id={'4' * 56}.", symptom=True,
    ),
    Signal(
        "driver.no_own_info", "Failed to get node info for possible node ids: ",
        r"^RuntimeError: Failed to get node info for possible node ids: \[[^\]\n]{0,4000}\] when trying to resolve node to connect to\. Error: (?P<why>[^\n]{1,300})",
        DRIVER, f"RuntimeError: Failed to get node info for possible node ids: ['{'4' * 56}'] when trying to resolve node to connect to. "
        "Error: RpcError('Deadline Exceeded')", symptom=True,
    ),
)  # fmt: skip
"""The same for the raylet that Ray has just started, or that runs on the machine (`_private/services.py`, 2.51 to 2.60)."""
_REASONS = (
    ("No such file", "its socket does not exist, so the raylet has already ended"),
    ("refused", "nothing listens on its socket, so the raylet has already ended"),
    ("Permission denied", "its socket belongs to another user"),
    ("End of file", "the raylet closed the connection, as it does when it ends"),
    ("reset by peer", "the raylet closed the connection, as it does when it ends"),
    ("Broken pipe", "the raylet closed the connection, as it does when it ends"),
)
"""Error texts of the operating system, and their meaning."""


@rule(
    tier="symptom",
    severity="critical",
    rank=69,
    explains=("program", "registration"),
    caused_by=("raylet",),
    looks_for=(
        UNREGISTERED,
        UNREGISTERED_CUT,
        *NO_RAYLET,
        _NO_NODE,
        *_NOT_YET,
        NO_NODE_INFO,
        OTHER_ADDRESS,
        *NODE_NOT_STARTED,
        *_NO_HEAD,
        *_NOT_FOUND,
        STARTED_LOCAL,
        CONNECTING,
        RAYLET_STARTED,
        AGENT_FAILED,
    ),
)
def driver_not_registered(case: Case) -> Iterator[Finding]:
    """One finding per machine with drivers that could not register, and one per session folder without a node."""
    refused = (e for e in case.of(UNREGISTERED.kind) if _is_drivers(case, e))
    for label, events in evidence.grouped(refused, lambda e: e.source.node).items():
        yield _unregistered(case, label, events)
    waits = case.version is None or case.version >= _WAITS_FOR_RAYLET
    outside = case.of(_NO_NODE.kind, *((NO_NODE_INFO.kind,) if waits else ()))
    for session, events in evidence.grouped(outside, lambda e: e["session"]).items():
        yield _no_node(case, session, events)
    waiting = case.of(_NOT_YET[0].kind)
    if not outside and any(e.source.is_excerpt and case.is_last_of_console(e) for e in waiting):
        session = next((e["session"] for e in waiting if e["session"]), "")
        yield replace(_no_node(case, session, waiting), severity="warning")
    failed = case.of(NODE_NOT_STARTED[0].kind) or case.of(_NOT_FOUND[0].kind)
    events = [e for e in failed if not (e["who"] and evidence.goes_on(case, e))]
    if evidence.is_console(case) and events:
        yield _not_started(case, events)
    elif evidence.is_console(case) and (cut := [*_cut_waits(case)]):
        found = _not_started(case, cut)
        yield replace(found, explains=(*found.explains, *map(program, cut)), severity="warning")
    if events := [e for e in case.of(_NO_HEAD[0].kind) if not evidence.goes_on(case, e)]:
        yield _no_head(case, events)


def _cut_waits(case: Case) -> Iterator[Event]:
    """Ends of consoles within the wait for the node that Ray started, which raises only a TimeoutError."""
    for ending, raised in ended_programs(case):
        is_cut = not raised.type or (raised.name == "TimeoutError" and not raised.cause)
        if is_cut and any(f.function == "wait_for_node" and f.is_rays for f in raised.frames):
            yield ending


def _no_head(case: Case, events: list[Event]) -> Finding:
    """A cluster whose GCS answers, but has no raylet of the head."""
    first = events[0]
    joined = connected_to(case, first)
    at = f" at {joined['address']}" if joined else ""
    return Finding(
        f"The GCS{at} does not list the head's raylet: it did not start, or its Ray is of another version",
        (Link(first, "the driver or node asks the GCS for the head"),),
        explains=(Entity("registration", "head"),),
        caused_by=tuple(Entity("raylet", raylet.node) for raylet in dead_raylets(case)),
        count=evidence.total(events),
        remedies=(
            Remedy(
                "On the head, check whether a raylet runs, read why the last one ended, and compare the versions of Ray",
                (
                    "pgrep -a raylet; ray --version   # this and the next line: on the head",
                    "tail -n 20 /tmp/ray/session_latest/logs/raylet.out /tmp/ray/session_latest/logs/raylet.err /tmp/ray/session_latest/logs/dashboard_agent.log",
                ),
                doc=INIT_DOC,
                finds_cause=True,
            ),
        ),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
    )  # fmt: skip


def _not_started(case: Case, events: list[Event]) -> Finding:
    """A node whose raylet did not register with the GCS, if the logs of neither are in the capture."""
    first = events[0]
    seconds = next((e["seconds"] for e in events if e["seconds"]), "")
    limit = f" within {seconds} s" if seconds else " in time"
    return Finding(
        f"The new Ray node did not start{limit}: its raylet did not register with the GCS",
        (Link(first, "Ray waited for the raylet of the node that it had started"),),
        explains=(Entity("registration", "node"),),
        caused_by=(Entity("raylet", "local"),),
        severity="warning" if _tried_again(case, events[-1]) else None,
        remedies=tuple(_remedies(None)),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source and first.message in e.message)),
        gaps=(_GAP,),
    )  # fmt: skip


def _is_drivers(case: Case, event: Event) -> bool:
    """Whether Ray wrote the record (it has a header, or its file) in a driver, not in a worker with a pasted log."""
    worker = event["before"] or event["why"].partition("worker_id")[2][1:57]
    is_named = bool(ids.job_of_driver(worker))
    if not event.level:
        return (is_named and "process.cc:" in event.text) or _is_excerpt_of(case, event)
    return is_named or len(worker) < 56


def _is_excerpt_of(case: Case, event: Event) -> bool:
    """Whether a person pasted the record without its header: the driver ends with it."""
    is_rays = (
        ".cc:" in event.text
        or "Worker will terminate" in event.message
        or event.message.startswith(UNREGISTERED_CUT.find)
    )
    return (
        is_rays
        and event.source.is_excerpt
        and not (event["who"] or evidence.goes_on(case, event, is_line=True))
    )


def _unregistered(case: Case, label: str, events: list[Event]) -> Finding:
    first = events[0]
    drivers = len({e.pid for e in events})
    own, joined = _own_ray(case, first), connected_to(case, first)
    waited = first.at - own.at if own and own.at and first.at else 0.0
    after = f" {waited:.0f} s after Ray started" if waited >= 1 and drivers == 1 else ""
    if own:
        raylet = "the raylet of the local Ray" if drivers == 1 else "the raylet of their Ray"
    else:
        raylet = f"the raylet of cluster {joined['address']}" if joined else "the raylet"
    subject = "The driver" if drivers == 1 else f"{drivers} drivers"
    return Finding(
        f"{subject} could not register with {raylet} and exited{after}: {_reason(first)}",
        (
            *(Link(e, "the driver starts its own Ray cluster") for e in (own,) if e),
            *(Link(e, "the driver joins this cluster") for e in (joined,) if e and not own),
            Link(first, "the raylet on its machine does not register the driver"),
        ),
        explains=(Entity("registration", label),),
        caused_by=(
            *(Entity("raylet", raylet.node) for raylet in dead_raylets(case) if _same(raylet.started, label)),
            Entity("raylet", "local"),
        ),
        count=drivers,
        severity="warning" if _tried_again(case, events[-1]) else None,
        remedies=tuple(_remedies(joined if not own else None)),
        covers=tuple(events),
        gaps=() if {"raylet-out", "raylet-err"} & case.roles else (_GAP,),
    )  # fmt: skip


def _same(started: Event | None, label: str) -> bool:
    return started is None or not label or not started.source.node or started.source.node == label


def _own_ray(case: Case, event: Event) -> Event | None:
    """The last `Started a local Ray instance` of the same output, unless it joined a cluster after that."""
    last = evidence.last_before(case, event, STARTED_LOCAL.kind, CONNECTING.kind)
    return last if last and last.kind == STARTED_LOCAL.kind else None


def _tried_again(case: Case, last: Event) -> bool:
    """Whether the same output shows a later driver that connected or started Ray."""
    return any(
        e.source is last.source and e.offset > last.offset
        for e in case.of(STARTED_LOCAL.kind, CONNECTING.kind)
    )


def _reason(event: Event) -> str:
    if event["socket"]:
        return f"nothing answers at its socket {event['socket']}: it has ended, or runs on another machine that shares this folder"
    return next(
        (means for text, means in _REASONS if text in event["why"]), "the reason is not recorded"
    )


_GAP = Gap(
    "raylet.out, raylet.err, dashboard_agent.log",
    "only these logs show why the raylet ended",
    "Copy /tmp/ray/session_latest/logs from the driver's machine, and diagnose that folder.",
    about="raylet-out",
)


def _remedies(joined: Event | None) -> Iterator[Remedy]:
    yield Remedy(
        "Find out why the raylet on the driver's machine exited",
        (
            "raydoctor diagnose /tmp/ray/session_latest",
            "tail -n 20 /tmp/ray/session_latest/logs/raylet.out /tmp/ray/session_latest/logs/raylet.err /tmp/ray/session_latest/logs/dashboard_agent.log",
        ),
        doc=INIT_DOC,
        finds_cause=True,
    )
    if joined:
        yield Remedy(
            "Check that a raylet of that cluster runs on this machine, with the same Ray and Python",
            (
                "pgrep -a raylet",
                paste.shell(
                    "ray --version; python --version; ray status --address {address:address}",
                    address=joined["address"],
                ),
            ),
            doc=INIT_DOC,
        )
    else:
        yield Remedy(
            "Limit Ray to the program's cores, and check its other limits",
            (
                "nproc; ulimit -u; ulimit -n; cat /sys/fs/cgroup/pids.max",
                "ray.init(num_cpus=len(os.sched_getaffinity(0)))   # verl: ray_kwargs.ray_init.num_cpus; Slurm: SLURM_CPUS_PER_TASK",
            ),
            doc=INIT_DOC,
        )
        yield Remedy(
            "End the Ray processes of earlier runs, and start again: raydoctor shows its plan and asks",
            ("raydoctor zombies --kill   # where the driver runs",),
            risk="destructive",
        )
    yield Remedy(
        "If dashboard_agent.log ends with an import error, repair the packages that the agent needs",
        ("pip check", "pip install --force-reinstall grpcio 'ray[default]'"),
        risk="disruptive",
    )


def _no_node(case: Case, session: str, events: list[Event]) -> Finding:
    first = events[0]
    joined = connected_to(case, first)
    where = f" at {joined['address']}" if joined else ""
    missing, waited = (
        "no raylet of the cluster runs there",
        "the driver found no raylet of the cluster on its machine",
    )
    if session:
        missing = f"{session} contains no node_ip_address.json"
        waited = f"the driver searched this session for a node for {first['seconds']} s"
    if first.kind == _NOT_YET[0].kind:
        waited = "the driver finds no raylet of the cluster on its machine, and tries again"
    dead = [raylet.node for raylet in dead_raylets(case)]
    headline = f"The driver's machine or container is not a node of the cluster{where}: {missing}"
    if is_gone := bool(dead) and set(case.ledger.node_ips) <= set(dead):
        headline = f"The driver found no living node of the cluster{where}"
    return Finding(
        headline,
        (
            *(Link(e, "the driver reads the session from this cluster's GCS") for e in (joined,) if e),
            Link(first, waited),
        ),
        explains=(Entity("registration", session),),
        caused_by=tuple(Entity("raylet", node) for node in dead) if is_gone else (),
        count=evidence.total(events),
        remedies=(
            Remedy(
                "Run the program on a node of the cluster, or submit it as a job",
                ("ray job submit --address http://HEAD:8265 --working-dir . -- python your_script.py",),
                doc=INIT_DOC,
            ),
            Remedy(
                "Or make this machine a node; a container on a node needs the node's /tmp/ray",
                (
                    paste.shell("ray start --num-cpus=0 --address={address:address}", address=joined["address"] if joined else ""),
                    "docker run --net=host --ipc=host --pid=host -v /tmp/ray:/tmp/ray   # plus your other options",
                ),
                doc=INIT_DOC,
            ),
        ),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
    )  # fmt: skip


# ------------------------------------------------------------------ examples

_N = "4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483"
_STARTED = "2026-11-21 10:40:11,306\tINFO worker.py:1841 -- Started a local Ray instance.\n"
_CONNECTING = "2026-11-21 10:40:11,306\tINFO worker.py:1841 -- Connecting to existing Ray cluster at address: 10.0.0.2:6379...\n"
_FAILED = f"[2026-11-21 10:40:41,421 E 759 759] core_worker.cc:496: {UNREGISTERED.sample}\n"
_NEW = _FAILED.replace("core_worker.cc:496", "core_worker_process.cc:223").replace(
    "[RayletClient] Unable to register worker with raylet. ", ""
)
_OLD = (
    f"[2026-11-21 10:40:41,421 E 759 759] core_worker.cc:228: Failed to register worker {_W} to Raylet. IOError: [RayletClient] "
    "Unable to register worker with raylet. No such file or directory\n"
)
_RAYLET = (
    f"[2026-11-21 10:40:12,000 I 804 804] (raylet) node_manager.cc:355: Raylet of id, {_N} started. Raylet consists of "
    "node_manager and object_manager. node_manager address: 10.0.0.2:0 object_manager address: 10.0.0.2:46637 hostname: n\n"
    f"[2026-11-21 10:40:41,000 E 804 804] (raylet) agent_manager.cc:89: {AGENT_FAILED.sample}\n"
)
_FRAMES = 'Traceback (most recent call last):\n  File "/app/train.py", line 24, in <module>\n    ray.init("auto")\n'

EXAMPLES: tuple[Example, ...] = (
    console(
        "the raylet that `ray.init()` started locally closes the connection",
        _STARTED + _FAILED,
        says=("30 s after Ray started", "closed the connection", "num_cpus"),
    ),
    console(
        "the socket of the raylet is gone (2.32 and older)",
        _STARTED + _OLD,
        says=("socket does not exist",),
    ),
    console(
        "a driver of a running cluster (2.49 and newer)",
        _CONNECTING + _NEW,
        says=("10.0.0.2:6379", "ray --version"),
    ),
    console(
        "the raylet's port is closed when the driver reads its settings",
        f"{_CONNECTING}[2026-11-21 10:40:41,421 E 759 759] core_worker_process.cc:217: {NO_RAYLET[0].sample}\n",
        says=("cluster 10.0.0.2:6379", "nothing listens on its socket"),
    ),
    console(
        "an excerpt without the header, above the stack of the driver",
        f"{NO_RAYLET[0].sample} .Please see `raylet.out` for more details.\n{_FRAMES.rpartition('    ray.init')[0]}",
        says=("nothing listens on its socket",),
    ),
    console(
        "nodes of a batch job share the session's folder",
        f"raylet_client.cc:60: {NO_RAYLET[1].sample}.1\n",
        says=("sockets/raylet.1", "another machine that shares this folder"),
    ),
    console(
        "a worker of a running program prints both errors, and so does the program's own log",
        f"(check pid=12) {NO_RAYLET[0].sample}\n{NO_RAYLET[0].sample}\nnote: {NO_RAYLET[1].sample}\n{NO_RAYLET[1].sample}\nloss 0.1\n",
    ),
    Example(
        "the raylet had ended with its agent",
        {"driver.log": _STARTED + _FAILED, "logs/raylet.out": _RAYLET, "logs/gcs_server.out": ""},
        roots=("agent-died",),
        consequences=("driver-not-registered",),
    ),
    Example(
        "the only node of the cluster had ended with its agent",
        {
            "driver.log": f"{_CONNECTING}{_FRAMES}{NO_NODE_INFO.sample}\n",
            "logs/raylet.out": _RAYLET,
            "logs/gcs_server.out": "",
        },
        roots=("agent-died",),
        consequences=("driver-not-registered",),
    ),
    console(
        "the driver's container is not a node of the cluster",
        f"{_CONNECTING}{_FRAMES}{_NO_NODE.sample}\n",
        says=("10.0.0.2:6379", "/tmp/ray:/tmp/ray"),
    ),
    console(
        "the same, as Ray 2.55 and newer report it",
        f"{_CONNECTING}{_FRAMES}{NO_NODE_INFO.sample}\n",
        says=("not a node of the cluster at 10.0.0.2:6379", "no raylet"),
    ),
    console(
        "the node that the driver starts does not come up",
        f"{_FRAMES}{NODE_NOT_STARTED[1].sample}\n\n{_FRAMES}{NODE_NOT_STARTED[0].sample}\n",
        says=("did not start within 60 s", "dashboard_agent.log"),
    ),
    console(
        "the agent's failure ends the raylet of the node that the driver starts",
        f"(raylet) [2026-11-21 10:40:41,000 E 804 804] (raylet) agent_manager.cc:89: {AGENT_FAILED.sample}\n"
        f"{_FRAMES}{NODE_NOT_STARTED[0].sample}\n",
        roots=("agent-died",),
        consequences=("driver-not-registered",),
    ),
    console(
        "the GCS has no record of the head's raylet",
        f"{_CONNECTING}{_FRAMES}{_NO_HEAD[0].sample}\n",
        says=("10.0.0.2:6379", "raylet.err"),
    ),
    console(
        "the raylet that ray start started is not in the GCS",
        f"{_FRAMES}{_NOT_FOUND[0].sample}\n",
        says=("did not register with the GCS",),
    ),
    console(
        "a program prints both errors and continues",
        f"seen before: {_NO_HEAD[1].sample}\n{_NO_HEAD[1].sample}\n(check pid=12) {_NOT_FOUND[1].sample}\nloss 0.1\n",
    ),
    console(
        "a program and a task quote the timeout of a node",
        f"known problem: {NODE_NOT_STARTED[0].sample}\n(check pid=12) {NODE_NOT_STARTED[0].sample}\n",
    ),
    console(
        "the driver waited for the file, and then found it",
        "2026-11-21 10:40:11,306\tINFO node.py:1080 -- Can't find a `node_ip_address.json` file from "
        "/tmp/ray/session_2026-11-21_10-40-11_306000_7. Have you started Ray instance using `ray start` or `ray.init`?\n"
        "loss 0.1\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a program and a task that quote the words",
        f"known problem: {UNREGISTERED.sample}\n(check pid=12) {_FAILED}{UNREGISTERED.sample}\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a paste ends while the driver searches for a node on its machine",
        f"{_CONNECTING}{_NOT_YET[0].sample}\n[2026-11-21 10:40:41,421 I 759 759] global_state_accessor.cc:539: {_NOT_YET[1].sample}\n",
        says=("not a node of the cluster", "ray job submit"),
        severity="warning",
    ),
    console(
        "a driver finds the node at a later attempt",
        f"{_CONNECTING}{_NOT_YET[0].sample}\n"
        "2026-11-21 10:40:21,306\tINFO worker.py:1841 -- Connected to Ray cluster. View the dashboard at 127.0.0.1:8265\nstep 1\n",
    ),
    console(
        "the record without its header, as people quote it",
        "core worker process.cc:224: Failed to register worker to Raylet: IOError: Failed to read data from the socket: End of file "
        f"worker_id-{_W}\n",
        says=("could not register with the raylet",),
    ),
    console(
        "a console that ends within the wait for the node",
        'Traceback (most recent call last):\n  File "/app/t.py", line 3, in <module>\n    ray.init()\n'
        '  File "/venv/lib/python3.11/site-packages/ray/_private/node.py", line 318, in __init__\n    ray._private.services.wait_for_node(\n'
        '  File "/venv/lib/python3.11/site-packages/ray/_private/services.py", line 460, in wait_for_node\n    raise TimeoutEr\n',
        says=("its raylet did not register with the GCS",),
        severity="warning",
    ),
    console(
        "a driver whose address no raylet has",
        f"{OTHER_ADDRESS.sample}\n",
        says=("is not a node of the cluster",),
    ),
    console(
        "a paste breaks the message into lines",
        f"core_worker.cc:408: Failed to register worker \\\n{_W} to Raylet. \\\n{UNREGISTERED_CUT.sample}\n",
        says=("could not register",),
        severity="critical",
    ),
)
