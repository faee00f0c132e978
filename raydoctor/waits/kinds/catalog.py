"""Every kind of wait: its code, its sentence, and the frames of Python that show it.

A new kind of wait is an entry here and a remedy in `waits/remedies.py`. Code decides by `WaitCode` and
`Kind`; the sentences are for people only. The shapes of frames, `function (file)`, are those of CPython
3.10 to 3.13 and Ray 2.9.3 to 2.60.0. Methods have their class on the stack from Python 3.11 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal[
    "python-loop", "native-gil", "native", "lock", "sleep", "socket", "disk", "subprocess", "stopped",
    "debugger", "collective", "ray-get", "async-blocked", "actor-queue", "resources", "placement-group",
    "arguments", "runtime-env", "worker-start", "process-ended", "unknown",
]  # fmt: skip
"""The group of waits that reports show; part of the JSON contract."""

WORST_FIRST: tuple[Kind, ...] = (
    "debugger", "stopped", "async-blocked", "native-gil", "disk", "socket", "subprocess", "collective",
    "ray-get", "placement-group", "sleep", "lock", "unknown", "native", "python-loop", "worker-start",
)  # fmt: skip
"""Which of several threads is reported: a thread that waits for a lock may wait for another of them."""

WaitCode = Literal[
    "breakpoint", "debugger", "pdb", "traced", "stopped", "frozen",
    "event-loop", "worker-start",
    "ray-get", "ray-wait", "placement-group", "collective", "gpu",
    "lock", "named-lock", "file-lock", "process-lock", "import-lock", "semaphore", "process-semaphore",
    "barrier",
    "event", "condition", "future", "queue-item", "queue-room", "queue-done", "pool-end", "thread-end",
    "subprocess", "process-pool", "process-data", "child-pipe", "start-child",
    "socket", "send", "connect", "accept", "poll", "dns", "http", "grpc", "pipe", "terminal",
    "asyncio-socket", "asyncio-server", "asyncio-event", "asyncio-sleep", "coroutines",
    "disk", "nfs", "fuse", "smb", "network-file-system", "kernel",
    "sleep", "polling",
    "python-loop", "import", "native", "native-wait", "native-gil", "native-gil-call", "gil",
    "lock-or-gil", "select", "read", "unknown", "not-inspected", "busy-without-stack", "waits-without-stack",
]  # fmt: skip
"""What one thread waits in, or runs."""


class WaitType(NamedTuple):
    """What raydoctor knows about one code."""

    kind: Kind
    sentence: str
    """For people. `{}` is the place of the details; otherwise they follow after a colon."""
    ended_by_thread: bool = False
    """Whether another thread of the process has to end the wait: while that thread works, nothing hangs."""
    is_open: bool = False
    """Whether this wait may last without limit and is no hang: a server without callers."""
    in_asyncio: bool = False
    """Whether the thread runs an event loop: what its coroutines wait for is on no stack."""
    joint: str = ": "
    """What precedes the details where the sentence has no place for them."""


_GIL = "the interpreter's lock (GIL)"
WAITS: Mapping[WaitCode, WaitType] = {
    "breakpoint": WaitType("debugger", "is paused at a breakpoint by a debugger"),
    "debugger": WaitType("debugger", "waits for a debugger to connect"),
    "pdb": WaitType("debugger", "waits for commands at a pdb breakpoint"),
    "traced": WaitType("debugger", "is paused by {}, which traces it"),
    "stopped": WaitType("stopped", "is stopped (SIGSTOP)"),
    "frozen": WaitType("stopped", "is frozen with its cgroup (docker pause or a freezer)"),
    "event-loop": WaitType("async-blocked", "blocks its event loop, because it {}"),
    "worker-start": WaitType("worker-start", "is still starting: {}"),
    "ray-get": WaitType("ray-get", "waits in ray.get"),
    "ray-wait": WaitType("ray-get", "waits in ray.wait"),
    "placement-group": WaitType("placement-group", "waits for a placement group"),
    "collective": WaitType("collective", "waits in a collective operation"),
    "gpu": WaitType("native", "waits for its GPU"),
    # Threads and their locks
    "lock": WaitType("lock", "waits for a lock"),
    "named-lock": WaitType("lock", "waits for {}"),
    "file-lock": WaitType("lock", "waits for a file lock"),
    "process-lock": WaitType("lock", "waits for a lock shared by several processes"),
    "import-lock": WaitType("lock", "waits for a module that another thread imports"),
    "semaphore": WaitType("lock", "waits for a semaphore"),
    "process-semaphore": WaitType("lock", "waits for a semaphore shared by several processes"),
    "barrier": WaitType("lock", "waits for other threads at a barrier"),
    "event": WaitType("lock", "waits for an event to be set", ended_by_thread=True),
    "condition": WaitType("lock", "waits for a condition to be notified", ended_by_thread=True),
    "future": WaitType("lock", "waits for the result of a future", ended_by_thread=True),
    "queue-item": WaitType("lock", "waits for an item from a queue", ended_by_thread=True),
    "queue-room": WaitType("lock", "waits for room in a queue"),
    "queue-done": WaitType("lock", "waits until all items of a queue are marked as done"),
    "pool-end": WaitType("lock", "waits for the end of a thread pool", ended_by_thread=True),
    "thread-end": WaitType("lock", "waits for the end of a thread", ended_by_thread=True),
    # Other processes
    "subprocess": WaitType("subprocess", "waits for a subprocess"),
    "process-pool": WaitType("subprocess", "waits for a pool of processes"),
    "process-data": WaitType("subprocess", "waits for data from another process"),
    "child-pipe": WaitType("subprocess", "waits for a pipe of its child process"),
    "start-child": WaitType("subprocess", "waits for a new process to start its program"),
    # Sockets and pipes
    "socket": WaitType("socket", "waits on a socket", joint=" to "),
    "send": WaitType("socket", "waits until a socket accepts more data"),
    "connect": WaitType("socket", "connects to a socket"),
    "accept": WaitType("socket", "waits for incoming connections", is_open=True),
    "poll": WaitType("socket", "waits for sockets or pipes"),
    "dns": WaitType("socket", "looks up a host name"),
    "http": WaitType("socket", "waits for an HTTP reply"),
    "grpc": WaitType("socket", "waits for a gRPC reply"),
    "pipe": WaitType("socket", "waits for a pipe"),
    "terminal": WaitType("socket", "waits for input at a terminal"),
    "asyncio-socket": WaitType(
        "socket", "waits in asyncio on a socket", in_asyncio=True, joint=" to "
    ),
    "asyncio-server": WaitType(
        "socket", "waits in asyncio for incoming connections", is_open=True, in_asyncio=True
    ),
    "asyncio-event": WaitType(
        "lock",
        "waits in asyncio, where no socket, timer or thread can end its wait",
        in_asyncio=True,
    ),
    "asyncio-sleep": WaitType("sleep", "sleeps in asyncio", in_asyncio=True),
    "coroutines": WaitType(
        "unknown",
        "waits in asyncio: a coroutine that awaits has no stack",
        is_open=True,
        in_asyncio=True,
    ),
    # Files, in the kernel
    "disk": WaitType("disk", "waits for a disk"),
    "nfs": WaitType("disk", "waits for an NFS server"),
    "fuse": WaitType("disk", "waits for a FUSE file system"),
    "smb": WaitType("disk", "waits for an SMB server"),
    "network-file-system": WaitType("disk", "waits for a network file system"),
    "kernel": WaitType("disk", "is blocked in the kernel, in {}"),
    "sleep": WaitType("sleep", "sleeps"),
    "polling": WaitType("sleep", "sleeps repeatedly"),
    # Code that runs, and the interpreter's lock
    "python-loop": WaitType("python-loop", "runs Python code{}"),
    "import": WaitType("python-loop", "imports {}"),
    "native": WaitType("native", "runs native code"),
    "native-wait": WaitType("native", "waits in native code"),
    "native-gil": WaitType("native-gil", f"waits in native code that holds {_GIL}"),
    "native-gil-call": WaitType("native-gil", f"runs native code that holds {_GIL}"),
    "gil": WaitType("native-gil", f"waits for {_GIL}{{}}"),
    # Too little is known
    "lock-or-gil": WaitType("unknown", f"waits for a lock, or for {_GIL}{{}}"),
    "select": WaitType("unknown", "sleeps, or waits for sockets (select)"),
    "read": WaitType("unknown", "reads or writes a file or a pipe"),
    "unknown": WaitType("unknown", "waits in a call (perhaps a lock, sleep, file or socket)"),
    "not-inspected": WaitType("unknown", "could not be inspected"),
    "busy-without-stack": WaitType("unknown", "uses {}, and its stack could not be read"),
    "waits-without-stack": WaitType("unknown", "waits{}, and its stack could not be read"),
}

PLAIN: Mapping[Kind, WaitCode] = {
    "python-loop": "python-loop",
    "native-gil": "native-gil",
    "native": "native",
    "collective": "collective",
    "subprocess": "subprocess",
    "socket": "socket",
    "lock": "lock",
    "sleep": "sleep",
    "disk": "disk",
    "unknown": "unknown",
}
"""The most general code of a kind."""


class Activity(NamedTuple):
    """What a thread does: a code, and details for people."""

    code: WaitCode
    detail: str = ""
    """`10.0.0.9:5432`, `RLock self.lock`."""
    inner: WaitCode | None = None
    """What it waits in, if the code says where: in its event loop, while it starts."""

    @property
    def type(self) -> WaitType:
        """The entry of its code."""
        return WAITS[self.code]

    @property
    def kind(self) -> Kind:
        """The kind that reports show."""
        return self.type.kind

    def with_detail(self, detail: str) -> Activity:
        """The same with one detail more."""
        return self._replace(detail=f"{self.detail}: {detail}" if self.detail else detail)

    @property
    def summary(self) -> str:
        """`waits on a socket to 10.0.0.9:5432`."""
        before, place, after = self.type.sentence.partition("{}")
        if place:
            return f"{before}{self.detail}{after}"
        return f"{before}{self.type.joint}{self.detail}" if self.detail else before


# ------------------------------------------------------------------ frames of Python


def _function(names: str) -> str:
    """Functions of these names, with their class or without."""
    return rf"(?:^|[.> ])(?:{names}) "


_WORKER = r"\(ray/_private/worker\.py\)"
_CLIENT = r"\(ray/util/client/"
_THREADING = r"\(threading\.py\)"

SHAPES: tuple[tuple[WaitCode, str], ...] = (
    ("breakpoint", _function("_?do_wait_suspend") + r"\("),
    (
        "debugger",
        _function("wait_for_client|__call__|_wait_for_attach|block_until_configuration_done")
        + r"\((?:debugpy|pydevd)"
        r"|RemotePdb|\(ray/util/rpdb\.py\)|set_trace \(ray/util/debugpy\.py\)",
    ),
    ("pdb", _function("interaction|_?cmdloop") + r"\((?:pdb|cmd|IPython/)"),
    ("ray-get", _function("get_objects") + rf"{_WORKER}|{_function('_?get')}{_CLIENT}"),
    ("placement-group", r"^_call_placement_group_ready \(ray/util/placement_group\.py\)"),
    ("ray-wait", rf"^wait {_WORKER}|{_function('wait')}{_CLIENT}"),
    (
        "collective",
        r"\((?:torch/distributed/|ray/util/collective/|deepspeed/comm/|horovod/|mpi4py/|cupy\w*/.*nccl)",
    ),
    ("gpu", _function("synchronize") + r"\(torch/cuda/"),
    ("file-lock", r"\((?:filelock|portalocker|fasteners)/"),
    ("process-pool", r"\(multiprocessing/pool\.py\)|\((?:joblib|loky)/"),
    ("subprocess", r"\(multiprocessing/(?:popen_\w+|process|forkserver)\.py\)"),
    ("process-lock", r"\(multiprocessing/synchronize\.py\)"),
    ("process-data", r"\(multiprocessing/(?:connection|queues|managers)\.py\)"),
    ("subprocess", r"\(subprocess\.py\)|\(pexpect/"),
    ("grpc", r"\(grpc/"),
    ("dns", _function("getaddrinfo|gethostbyname") + r"\(socket\.py\)"),
    (
        "connect",
        _function("create_connection|connect|_new_conn|connect_tcp")
        + r"\((?:socket|ssl|urllib3|httpcore)",
    ),
    (
        "http",
        r"\((?:http/client\.py|urllib/|urllib3/|requests/|httpx/|httpcore/|aiohttp/|botocore/)",
    ),
    ("accept", _function("accept") + r"\(socket\.py\)"),
    (
        "socket",
        r"\((?:socket|ssl|socketserver|ftplib|smtplib|telnetlib)\.py\)"
        r"|\((?:redis|pymysql|psycopg|kafka|pymongo|paramiko)/",
    ),
    (
        "coroutines",
        _function("run_until_complete|run_forever|_run_once|run") + r"\((?:asyncio|uvloop)/",
    ),
    (
        "future",
        _function("result|exception|wait|as_completed|result_iterator") + r"\(concurrent/futures/",
    ),
    ("process-pool", r"\(concurrent/futures/process\.py\)"),
    ("pool-end", _function("shutdown") + r"\(concurrent/futures/"),
    ("queue-item", _function("get") + r"\(queue\.py\)"),
    ("queue-room", _function("put") + r"\(queue\.py\)"),
    ("queue-done", _function("join") + r"\(queue\.py\)"),
    ("thread-end", _function("join|_wait_for_tstate_lock|_shutdown") + _THREADING),
    ("barrier", rf"Barrier\.\w+ {_THREADING}|^_(?:enter|wait) {_THREADING}"),
    ("event", rf"Event\.wait {_THREADING}"),
    ("semaphore", rf"Semaphore\.\w+ {_THREADING}"),
    ("lock", _function("__enter__|acquire") + _THREADING),
    ("condition", _function("wait|wait_for") + _THREADING),
    ("import-lock", "_ModuleLock|_lock_unlock_module|_get_module_lock"),
    ("poll", r"\(selectors\.py\)"),
)
"""The first that fits. A library that waits is listed before the lock or socket that it waits with."""
