"""What the Python frames on top of a user's function wait for.

A table of shapes, `function (file)`, as CPython 3.10 to 3.13 and Ray 2.9.3 to 2.60.0 have them; methods stand
there with their class from Python 3.11 on, and without it before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from raydoctor.cluster.samples import Frame, Kind
from raydoctor.waits.kinds import frames

EVENT = "waits for an event that nobody sets"
CONDITION = "waits for a condition that nobody notifies"
FUTURE = "waits for the result of a future"
ITEM = "waits for an item of a queue"
ROOM = "waits for room in a queue"
BARRIER = "waits for others at a barrier"
FILE_LOCK = "waits for a lock on a file"
SEMAPHORE = "waits for a semaphore"
ITEMS_DONE = "waits until all items of a queue are done"
POOL_END = "waits for the end of a pool of threads"
THREAD_END = "waits for the end of a thread"
FOR_THREADS = frozenset({FUTURE, EVENT, CONDITION, ITEM, POOL_END, THREAD_END})
"""Another thread of the process has to bring about what is waited for: while that works, nothing hangs."""
IN_ASYNCIO = "waits in asyncio"
COROUTINES = f"{IN_ASYNCIO}: coroutines that wait are on no stack"
"""Whether one of them hangs, nobody can tell."""
SERVES = "waits for somebody to connect"
"""What a server does that nobody needs now: no hang."""


class Waits(NamedTuple):
    """What is waited for."""

    kind: Kind
    words: str


def _m(names: str) -> str:
    """Functions of these names, with their class or without."""
    return rf"(?:^|[.> ])(?:{names}) "


_WORKER = r"\(ray/_private/worker\.py\)"
_CLIENT = r"\(ray/util/client/"
_THREADS = r"\(threading\.py\)"
_SHAPES: tuple[tuple[Kind, str, str], ...] = (
    ("debugger", "is held at a breakpoint by a debugger", _m("_?do_wait_suspend") + r"\("),
    (
        "debugger",
        "waits for a debugger",
        _m("wait_for_client|__call__|_wait_for_attach|block_until_configuration_done")
        + r"\((?:debugpy|pydevd)"
        r"|RemotePdb|\(ray/util/rpdb\.py\)|set_trace \(ray/util/debugpy\.py\)",
    ),
    (
        "debugger",
        "waits for commands at a breakpoint of pdb",
        _m("interaction|_?cmdloop") + r"\((?:pdb|cmd|IPython/)",
    ),
    ("ray-get", "waits in ray.get", _m("get_objects") + rf"{_WORKER}|{_m('_?get')}{_CLIENT}"),
    ("ray-get", "waits in ray.wait", rf"^wait {_WORKER}|{_m('wait')}{_CLIENT}"),
    (
        "collective",
        "waits in a collective operation",
        r"\((?:torch/distributed/|ray/util/collective/|deepspeed/comm/|horovod/|mpi4py/|cupy\w*/.*nccl)",
    ),
    ("native", "waits for its GPU", _m("synchronize") + r"\(torch/cuda/"),
    ("lock", FILE_LOCK, r"\((?:filelock|portalocker|fasteners)/"),
    (
        "subprocess",
        "waits for a pool of processes",
        r"\(multiprocessing/pool\.py\)|\((?:joblib|loky)/",
    ),
    (
        "subprocess",
        "waits for a subprocess",
        r"\(multiprocessing/(?:popen_\w+|process|forkserver)\.py\)",
    ),
    ("lock", "waits for a lock of several processes", r"\(multiprocessing/synchronize\.py\)"),
    (
        "subprocess",
        "waits for data of another process",
        r"\(multiprocessing/(?:connection|queues|managers)\.py\)",
    ),
    ("subprocess", "waits for a subprocess", r"\(subprocess\.py\)|\(pexpect/"),
    ("socket", "waits for an answer by gRPC", r"\(grpc/"),
    ("socket", "looks up a host's name", _m("getaddrinfo|gethostbyname") + r"\(socket\.py\)"),
    (
        "socket",
        "connects to a socket",
        _m("create_connection|connect|_new_conn|connect_tcp")
        + r"\((?:socket|ssl|urllib3|httpcore)",
    ),
    (
        "socket",
        "waits for an answer by HTTP",
        r"\((?:http/client\.py|urllib/|urllib3/|requests/|httpx/|httpcore/|aiohttp/|botocore/)",
    ),
    ("socket", SERVES, _m("accept") + r"\(socket\.py\)"),
    (
        "socket",
        "waits for a socket",
        r"\((?:socket|ssl|socketserver|ftplib|smtplib|telnetlib)\.py\)"
        r"|\((?:redis|pymysql|psycopg|kafka|pymongo|paramiko)/",
    ),
    (
        "unknown",
        COROUTINES,
        _m("run_until_complete|run_forever|_run_once|run") + r"\((?:asyncio|uvloop)/",
    ),
    (
        "lock",
        FUTURE,
        _m("result|exception|wait|as_completed|result_iterator") + r"\(concurrent/futures/",
    ),
    ("subprocess", "waits for a pool of processes", r"\(concurrent/futures/process\.py\)"),
    ("lock", POOL_END, _m("shutdown") + r"\(concurrent/futures/"),
    ("lock", ITEM, _m("get") + r"\(queue\.py\)"),
    ("lock", ROOM, _m("put") + r"\(queue\.py\)"),
    ("lock", ITEMS_DONE, _m("join") + r"\(queue\.py\)"),
    (
        "lock",
        THREAD_END,
        _m("join|_wait_for_tstate_lock|_shutdown") + _THREADS,
    ),
    (
        "lock",
        BARRIER,
        rf"Barrier\.\w+ {_THREADS}|^_(?:enter|wait) {_THREADS}",
    ),
    ("lock", EVENT, rf"Event\.wait {_THREADS}"),
    ("lock", SEMAPHORE, rf"Semaphore\.\w+ {_THREADS}"),
    ("lock", "waits for a lock", _m("__enter__|acquire") + _THREADS),
    ("lock", CONDITION, _m("wait|wait_for") + _THREADS),
    (
        "lock",
        "waits for a module that another thread imports",
        "_ModuleLock|_lock_unlock_module|_get_module_lock",
    ),
    ("socket", "waits for sockets or pipes", r"\(selectors\.py\)"),
)
"""The first that fits; a library that is waited in stands before the lock or socket that it waits with."""


def waits(inner: Sequence[Frame]) -> Waits | None:
    """What these frames wait for; None where they do not say."""
    shapes = [frames.shape(frame) for frame in inner]
    for kind, words, names in _SHAPES:
        if any(re.search(names, shape) for shape in shapes):
            # Without their class, an event's `wait` stands on a condition's: Python 3.10.
            is_event = words == CONDITION and shapes.count("wait (threading.py)") > 1
            return Waits(kind, EVENT if is_event else words)
    return None


_IMPORTS = ("_find_and_load ", "_load_unlocked ", "exec_module ")


def imported(inner: Sequence[Frame]) -> str:
    """The module's file that these frames import, innermost; empty where they do not."""
    shapes = [frames.shape(frame) for frame in inner]
    if not any(name in shape for shape in shapes for name in _IMPORTS):
        return ""
    files = (frames.short(frame) for frame in inner if frame.function == "<module>")
    return next(files, "")
