"""Signals that several rules need: where processes run, and when they ended.

Texts were read in the logs of real sessions of Ray 2.9.3, 2.20, 2.40, 2.50 and 2.60; where a
generation differs, the signals of one kind are listed together.
"""

from __future__ import annotations

from raydoctor.case.rule import Signal
from raydoctor.model.values import CONSOLES

RAYLET = ("raylet-out", "raylet-err")
GCS = ("gcs-out", "gcs-err")
CORE = ("core-driver", "core-worker")
DRIVER = CONSOLES
OUTPUT = (*DRIVER, "worker-err", "worker-echo")
"""Where a program's exceptions appear: the output of drivers and workers, and the driver's echoes of it."""
PUSHED = ("raylet-echo", "event", "raylet-out", "raylet-err")
"""Errors that a raylet pushes to drivers: echoed there as `(raylet) …`, and kept in event files."""

_W, _N, _A = "[0-9a-f]{56}", "[0-9a-f]{56}", "[0-9a-f]{32}"
_w = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
_n = "4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483"
_a = "331fd576af32d153f0d76d1801000000"

RAY_VERSION = (
    Signal(
        "ray.version",
        "ray_version=",
        r"ray_version=(?P<version>\d+\.\d+\.\w+)",
        GCS,
        "Ray cluster metadata ray_version=2.60.0 ray_commit=b7f4259e944bf6959f721b106adc",
        precedes=True,
    ),
    Signal(
        "ray.version",
        "Ray version: ",
        r"^Ray version: (?P<version>\d+\.\d+\.\w+)",
        ("monitor",),
        "Ray version: 2.9.3",
        precedes=True,
    ),
)

# ---------------------------------------------------------------- nodes and raylets

RAYLET_STARTED = Signal(
    "raylet.started",
    "Raylet of id, ",
    rf"Raylet of id, (?P<node>{_N}) started\..*node_manager address: (?P<ip>[^\s:]+)(?:.* hostname: (?P<hostname>\S{{1,255}}))?",
    RAYLET,
    f"Raylet of id, {_n} started. Raylet consists of node_manager and object_manager. "
    "node_manager address: 127.0.0.1:0 object_manager address: 127.0.0.1:33891 hostname: ray-node",
    precedes=True,
)
NODE_REGISTERED = (
    Signal(
        "node.registered",
        "Registering new node.",
        rf"Registering new node\. .{{0,2000}}node_id=(?P<node>{_N}).{{0,2000}}?node_address=(?P<ip>\S+)",
        GCS,
        f"Registering new node. node_id={_n} node_name=127.0.0.1 node_address=127.0.0.1",
        precedes=True,
    ),
    Signal(
        "node.registered",
        "Registering node info, node id = ",
        rf"^Registering node info, node id = (?P<node>{_N}), address = (?P<ip>[^,\s]+)",
        GCS,
        f"Registering node info, node id = {_n}, address = 127.0.0.1, node name = 127.0.0.1",
        precedes=True,
    ),
    Signal(
        "node.registered",
        "Registering node info, address = ",
        rf"^Registering node info, address = (?P<ip>[^,\s]+), .*node_id=(?P<node>{_N})",
        GCS,
        f"Registering node info, address = 127.0.0.1, node name = 127.0.0.1 node_id={_n}",
        precedes=True,
    ),
)
RAYLET_SIGTERM = Signal(
    "raylet.sigterm",
    "received SIGTERM",
    r"^(?:Raylet )?received SIGTERM[.,]",
    RAYLET,
    "received SIGTERM. Existing local drain request = None",
)
RAYLET_SHUTDOWN_RPC = Signal(
    "raylet.sigterm",
    "Shutdown RPC has received.",
    r"^Shutdown RPC has received\.",
    RAYLET,
    "Shutdown RPC has received. Shutdown will happen after the RPC is replied.",
)
"""Another way to ask a raylet to stop, used by the autoscaler and by tools that end nodes."""
RAYLET_DRAINED = Signal(
    "raylet.sigterm",
    "Drain raylet RPC has received.",
    r"^Drain raylet RPC has received\..* Drain reason message: Node received SIGTERM",
    RAYLET,
    "Drain raylet RPC has received. Deadline is 1795413861018. Drain reason: DRAIN_NODE_REASON_PREEMPTION. "
    "Drain reason message: Node received SIGTERM; draining before shutdown.",
)
"""`ray start --block` that gets SIGTERM drains its node as if it were preempted (`node.py`, 2.60)."""
RAYLET_ENDS_ITSELF = Signal(
    "raylet.ends_itself",
    "Sending SIGTERM to gracefully shutdown raylet",
    r"^Sending SIGTERM to gracefully shutdown raylet",
    RAYLET,
    "Sending SIGTERM to gracefully shutdown raylet",
)
"""Up to 2.20 at least, a raylet whose agent died stops by sending a signal to itself."""
GCS_SIGTERM = Signal(
    "gcs.sigterm",
    "GCS server received SIGTERM",
    r"^GCS server received SIGTERM",
    GCS,
    "GCS server received SIGTERM, shutting down...",
)
NODE_HEALTH_FAILED = Signal(
    "node.health_failed",
    "Health check failed for node",
    rf"Health check failed for node (?P<node>{_N}), remaining checks (?P<remaining>\d+), status \d+, "
    r"response status \d+, status message (?P<status>.*?)(?:, status details|$)",
    GCS,
    f"Health check failed for node {_n}, remaining checks 0, status 14, response status 0, status "
    "message failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:43819: Failed "
    "to connect to remote host: Connection refused, status details ",
    fold=("node",),
)
NODE_DEAD = (
    Signal(
        "node.dead",
        "is dead because the health check failed",
        rf"^Node (?:(?P<node_a>{_N}) )?is dead because the health check failed\.(?: node_id=(?P<node_b>{_N}))?",
        GCS,
        f"Node is dead because the health check failed. node_id={_n}",
        symptom=True,
    ),
    Signal(
        "node.dead",
        ", death reason = ",
        rf", death reason = (?P<reason>\w+), death message = (?P<why>.*?) ?(?:node_id=(?P<node_b>{_N}).*)?$",
        GCS,
        f", death reason = UNEXPECTED_TERMINATION, death message = health check failed due to missing "
        f"too many heartbeats node_id={_n} node_name=127.0.0.1",
    ),
    Signal(
        "node.dead",
        "The node with node id: ",
        rf"The node with node id: (?P<node>{_N}|\S.{{0,60}}?) and (?:address|ip): (?P<ip>\S+|\S.{{0,60}}?)"
        r"(?: and node name: (?P<name>\S+|\S.{0,60}?))? has been marked dead because",
        (*GCS, "event", "raylet-echo", "gcs-echo"),
        f"The node with node id: {_n} and address: 127.0.0.1 and node name: 127.0.0.1 has been marked dead "
        "because the detector has missed too many heartbeats from it.",
        symptom=True,
    ),
    Signal(
        "node.dead",
        " has been marked dead because the ",
        r"The node with (?:node id|client ID) (?P<node>[0-9a-f]{20,56}) has been marked dead because the (?:detector|monitor) has missed",
        ("event", "raylet-echo", "gcs-echo"),
        "The node with node id 6363a6c225aca3baac918c357ef036e39859e1c2 has been marked dead because the detector has missed too many "
        "heartbeats from it.",
        symptom=True,
    ),
)
"""The last one in 0.7 to 1.0."""
LOCAL_RAYLET_FAILED = Signal(
    "raylet.seen_dead",
    "because the local raylet failed",
    r"Shutting down the core worker because the local raylet failed\..*?Raylet pid: (?P<raylet_pid>\d+)",
    ("core-worker", "core-driver", "core-io"),
    "Shutting down the core worker because the local raylet failed. Check out the raylet.out log file. Raylet pid: 305",
)
RAYLET_TERMINATED = Signal(
    "raylet.seen_dead",
    "Raylet is terminated. ",
    r"^Raylet is terminated\. (?P<verdict>[^\n]*)",
    ("dashboard-agent", "runtime-env-agent", "raylet-echo", "gcs-echo"),
    "Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user or system "
    "OOM killer, (2) Invalid memory access from Raylet causing SIGSEGV or SIGBUS, (3) Other termination signals.",
    extent="record",
)
RAYLET_TERMINATED_UNSENT = Signal(
    RAYLET_TERMINATED.kind,
    "Failed to publish error: Raylet is terminated. ",
    r"^Failed to publish error: Raylet is terminated\. (?P<verdict>[^\n]*)",
    (*DRIVER, "dashboard-agent", "runtime-env-agent"),
    "Failed to publish error: Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user or system "
    "OOM killer, (2) Invalid memory access from Raylet causing SIGSEGV or SIGBUS, (3) Other termination signals.",
    extent="record",
)
"""The same where the agent cannot reach the GCS either (`_private/process_watcher.py`, 2.9 to 2.60)."""

# ---------------------------------------------------------------- jobs and drivers

JOB_STARTED = (
    Signal(
        "job.started",
        "Registering job.",
        r"^Registering job\..*job_id=(?P<job>[0-9a-f]{8}) driver_pid=(?P<driver_pid>\d+)",
        GCS,
        "Registering job. job_id=01000000 driver_pid=7",
        precedes=True,
    ),
    Signal(
        "job.started",
        "Adding job, job id = ",
        r"^Adding job, job id = (?P<job>[0-9a-f]{8}), driver pid = (?P<driver_pid>\d+)",
        GCS,
        "Adding job, job id = 01000000, driver pid = 7",
        precedes=True,
    ),
)
JOB_FINISHED = (
    Signal(
        "job.finished",
        "Marking job as finished",
        r"^Marking job as finished\.? job_id=(?P<job>[0-9a-f]{8})",
        GCS,
        "Marking job as finished. job_id=01000000",
    ),
    Signal(
        "job.finished",
        "Finished marking job state, job id = ",
        r"^Finished marking job state, job id = (?P<job>[0-9a-f]{8})",
        GCS,
        "Finished marking job state, job id = 01000000",
    ),
)
DRIVER_GONE = Signal(
    "driver.disconnected",
    "Driver (pid=",
    r"^Driver \(pid=(?P<driver_pid>\d+)\) is disconnected\.(?:.*job_id[=:] ?(?P<job>[0-9a-f]{8}))?",
    RAYLET,
    "Driver (pid=7) is disconnected. worker_id=01000000ffffffffffffffffffffffffffffffffffffffffffffffff job_id=01000000",
)

# ---------------------------------------------------------------- workers

WORKER_STARTED = Signal(
    "worker.started",
    "Started worker process with pid ",
    rf"Started worker process with pid (?P<worker_pid>\d+)(?: worker_id=(?P<worker>{_W}))?",
    RAYLET,
    f"Started worker process with pid 379 worker_id={_w}",
    precedes=True,
)
WORKER_EXIT = Signal(
    "worker.exit",
    "Reporting worker exit, worker id = ",
    rf"^Reporting worker exit, worker id = (?P<worker>{_W}), node id = (?P<node>\w*), address = (?P<ip>[^,]*), "
    r"exit_type = (?P<exit_type>\w+), exit_detail = (?P<detail>.*?)(?:\. Unintentional worker failures have been reported\..*)?$",
    GCS,
    f"Reporting worker exit, worker id = {_w}, node id = {_n}, address = 127.0.0.1, exit_type = SYSTEM_ERROR, "
    "exit_detail = Worker unexpectedly exits with a connection error code 2. End of file.",
    extent="record",
    symptom=True,
    fold=("exit_type",),
)
WORKER_DIED = Signal(
    "worker.died",
    "A worker died or was killed while executing ",
    r"A worker died or was killed while executing (?:task \w{16,64}\.|a task by an unexpected system error\.)(?: .{0,2000}?"
    rf"(?:RayTask ID: (?P<task>[0-9a-f]+)|Lease ID: (?P<lease>[0-9a-f]+)) Worker ID: (?P<worker>{_W}) "
    rf"Node ID: (?P<node>{_N}) Worker IP address: (?P<ip>\S*) +Worker port: \d+ Worker PID: (?P<worker_pid>\d+)"
    r"(?: Worker exit type: (?P<exit_type>\w+) Worker exit detail: (?P<detail>.*))?)?",
    PUSHED,
    "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
    "check the logs for the dead worker. Lease ID: "
    "0000000001000000ffffffffffffffffffffffffffffffffffffffffffffffff "
    f"Worker ID: {_w} Node ID: {_n} Worker IP address: 127.0.0.1 Worker port: 39003 Worker PID: 379 Worker exit type: "
    "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.",
    extent="record",
    symptom=True,
    fold=("exit_type",),
)
"""Up to 1.8 only the task is named, up to 1.13 no exit type; and a console may cut the record off."""
WORKER_DISCONNECTED = Signal(
    "worker.disconnected",
    ", graceful=",
    rf"^Disconnecting (?P<what>client|worker|driver), graceful=(?P<graceful>true|false), disconnect_type=(?P<disconnect_type>\d)"
    rf".*?worker_id=(?P<worker>{_W})(?: job_id=(?P<job>[0-9a-f]{{8}}))?",
    RAYLET,
    f"Disconnecting worker, graceful=false, disconnect_type=0, has_creation_task_exception=false worker_id={_w} job_id=01000000",
)
OWNER_GONE_KILLED = (
    Signal(
        "worker.killed_with_owner",
        "Killing leased worker because its ",
        rf"^Killing leased worker because its (?P<why>owner died|owner's node died|job finished)\..*?worker_id=(?P<worker>{_W})"
        rf"(?:.*?owner_worker_id=(?P<owner>{_W}))?",
        RAYLET,
        f"Killing leased worker because its owner died. worker_id={_w} owner_worker_id={_w}",
    ),
    Signal(
        "worker.killed_with_owner",
        "is killed because the owner ",
        rf"The leased worker (?:(?P<worker_a>{_W}) )?is killed because the (?P<why>owner process|owner node) ?(?P<owner>{_W})? ?died\."
        rf"(?:.*?worker_id=(?P<worker_b>{_W}))?(?:.*?owner_worker_id=(?P<owner_b>{_W}))?",
        RAYLET,
        f"The leased worker {_w} is killed because the owner process {_w} died.",
    ),
)

# ---------------------------------------------------------------- actors and tasks

ACTOR_PLACED = (
    Signal(
        "actor.placed",
        "Submitting actor creation task to worker.",
        rf"^Submitting actor creation task to worker\. actor_id=(?P<actor>{_A}) worker_id=(?P<worker>{_W}) node_id=(?P<node>{_N})",
        GCS,
        f"Submitting actor creation task to worker. actor_id={_a} worker_id={_w} node_id={_n} job_id=01000000",
        precedes=True,
    ),
    Signal(
        "actor.placed",
        "Start creating actor ",
        rf"^Start creating actor (?P<actor>{_A}) on worker (?P<worker>{_W}) at node (?P<node>{_N})",
        GCS,
        f"Start creating actor {_a} on worker {_w} at node {_n}, job id = 01000000",
        precedes=True,
    ),
)
# Intended exits (`exit_actor`) have the same text, so it is not a symptom by itself.
ACTOR_FAILED = Signal(
    "actor.failed",
    " is failed on worker ",
    rf"^Actor (?:(?P<actor_a>{_A}) )?is failed on worker (?P<worker>{_W}) at node (?P<node>{_N}), "
    r"need_reschedule = (?P<reschedule>\d), death context type = (?P<context>\w+), remaining_restarts = (?P<remaining>-?\d+)"
    rf"(?:.*?actor_id=(?P<actor_b>{_A}))?",
    GCS,
    f"Actor is failed on worker {_w} at node {_n}, need_reschedule = 1, death context type = ActorDiedErrorContext, "
    f"remaining_restarts = 0, num_restarts = 0 job_id=01000000 actor_id={_a}",
)
TASK_FAILED = Signal(
    "task.failed",
    "Task failed: ",
    r"^Task failed: (?P<status>.{0,4000}?): Type=(?P<type>\w+), Language=\w+, .{0,1000}?class_name=(?P<class_name>[^,]{0,300}), "
    r"function_name=(?P<function>[^,}]{0,300}).{0,300}?task_id=(?P<task>[0-9a-f]{48}), task_name=(?P<name>.{0,300}?), job_id=(?P<job>[0-9a-f]{8})"
    r"(?:.*?max_retries=(?P<max_retries>-?\d+))?",
    CORE,
    "Task failed: RpcError: RPC error: Socket closed rpc_code: 14: Type=NORMAL_TASK, Language=PYTHON, Resources: {CPU: 1, }, "
    "function_descriptor={type=PythonFunctionDescriptor, module_name=t, class_name=, function_name=kill, function_hash=b21}, "
    "task_id=c8ef45ccd0112571ffffffffffffffffffffffff01000000, task_name=kill, job_id=01000000, num_args=0, num_returns=1, "
    "max_retries=0, depth=1, attempt_number=0, dependencies={}",
    extent="record",
    fold=("name",),
)
TASK_ATTEMPT_FAILED = Signal(
    "task.attempt_failed",
    "Task attempt ",
    r"^Task attempt (?P<task>[0-9a-f]{48}) failed with error (?P<error>\w+) Fail immediately\? (?P<immediately>\d)",
    CORE,
    "Task attempt c8ef45ccd0112571ffffffffffffffffffffffff01000000 failed with error WORKER_DIED Fail immediately? 0, "
    "status RpcError: RPC error: Socket closed rpc_code: 14, error info null",
    fold=("error",),
)
RAY_EXCEPTION = Signal(
    "driver.exception",
    "ray.exceptions.",
    r"^ *(?:\| )*(?:raise )?ray\.exceptions\.(?P<type>\w+)(?:\((?P<inner>\w+)\))?: (?P<what>.*)",
    DRIVER,
    "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.",
    extent="record",
    symptom=True,
    fold=("type", "inner"),
)

TRACEBACK = Signal(
    "log.traceback",
    "Traceback (most recent call last):",
    r"^Traceback \(most recent call last\):",
    (
        *DRIVER,
        *("worker-err", "io-worker", "client-server", "serve", "data", "train"),
        *("dashboard", "dashboard-agent", "runtime-env-agent", "monitor", "log-monitor"),
    ),
    "Traceback (most recent call last):",
    extent="traceback",
    symptom=True,
)
"""The only signal with this literal: a second one would make storms of tracebacks several times slower.
Rules read what they need from the event's message."""
TRACEBACKS = (TRACEBACK.kind, "log.echoed_traceback")
"""Also those of other processes that a driver's output repeats."""
HYDRA = "Error executing job with overrides: "
"""Above the uncaught exception of a program that hydra starts; hydra leaves out its own frames."""
ELSEWHERE = (
    *(
        "See root cause above.",
        "See stack trace for root cause.",
        "See stack trace for the root cause.",
    ),
    *(
        "See stack trace (above) for the root cause.",
        "Inspect the stacktrace to find the original error",
    ),
    "See stack trace above for the actual cause.",
    "please check the stack trace above for the root cause",
    *("Please see the error messages above.", " scheduler died during initialization (exit code: "),
    "Server process terminated unexpectedly during startup",
)
"""In exceptions that report only that another process of the same program failed (vLLM, SGLang, verl)."""

FACTS: tuple[Signal, ...] = (
    *RAY_VERSION,
    RAYLET_STARTED,
    *NODE_REGISTERED,
    RAYLET_SIGTERM,
    RAYLET_SHUTDOWN_RPC,
    RAYLET_DRAINED,
    RAYLET_ENDS_ITSELF,
    GCS_SIGTERM,
    NODE_HEALTH_FAILED,
    *NODE_DEAD,
    LOCAL_RAYLET_FAILED,
    RAYLET_TERMINATED,
    *JOB_STARTED,
    *JOB_FINISHED,
    DRIVER_GONE,
    WORKER_STARTED,
    WORKER_EXIT,
    WORKER_DIED,
    WORKER_DISCONNECTED,
    *OWNER_GONE_KILLED,
    *ACTOR_PLACED,
    ACTOR_FAILED,
    TASK_FAILED,
    TASK_ATTEMPT_FAILED,
    RAY_EXCEPTION,
)
"""Read for every diagnosis, whatever rules are loaded: `facts` builds the ledger from them."""
