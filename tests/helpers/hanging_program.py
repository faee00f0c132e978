"""A driver whose tasks hang, each in its own way; `hangs.py` runs it and says what each is called.

Run: `python hanging_program.py [HANG ...]`, with RAY_ADDRESS. Just before a task hangs it leaves a file
`hangs/NAME.json` in the folder the driver was started in: its pid, and what a good verdict mentions (a peer,
a child's pid). The driver prints `ready` when all hang.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import fcntl
import hashlib
import importlib
import json
import multiprocessing
import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

FOLDER = os.getcwd()
FOREVER = 100_000
SMALL = {"num_cpus": 0.01}
STARTED: dict[str, Callable[[], Any]] = {}
"""What starts each hang, by its name."""
CPU_BOUND = ("loop", "regex", "pbkdf2")
"""Started last: the workers of the others would take their turns with these."""


def here(name: str, *says: object) -> None:
    """Tell that the hang comes now."""
    folder = Path(FOLDER, "hangs")
    folder.mkdir(exist_ok=True)
    unfinished = folder / f".{name}-{os.getpid()}"
    unfinished.write_text(json.dumps({"pid": os.getpid(), "says": [str(each) for each in says]}))
    unfinished.replace(folder / f"{name}.json")


def hangs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A task of this function, started without arguments."""
    STARTED[function.__name__] = ray.remote(**SMALL)(function).remote
    return function


# -- a processor's work


@hangs
def loop() -> None:
    here("loop")
    turns, going = 0, True
    while going:
        turns += 1


@hangs
def regex() -> None:
    here("regex")
    re.match(r"(a+)+$", "a" * 64 + "b")


@hangs
def gil_sleep() -> None:
    library = ctypes.PyDLL(None)
    here("gil_sleep")
    while True:  # a signal ends one sleep
        library.sleep(FOREVER)


@hangs
def pbkdf2() -> None:
    here("pbkdf2")
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2**31 - 1)


# -- waits for other threads


@hangs
def lock_twice() -> None:
    lock = threading.Lock()
    here("lock_twice")
    with lock, lock:
        pass


@hangs
def lock_held() -> None:
    lock = threading.Lock()

    def holder() -> None:
        with lock:
            time.sleep(FOREVER)

    threading.Thread(target=holder, name="holder", daemon=True).start()
    time.sleep(0.2)
    here("lock_held", "holder")
    lock.acquire()


@hangs
def condition() -> None:
    ready = threading.Condition()
    here("condition")
    with ready:
        ready.wait()


@hangs
def queue_get() -> None:
    items: queue.Queue[int] = queue.Queue()
    here("queue_get", "queue")
    items.get()


@hangs
def thread_join() -> None:
    thread = threading.Thread(target=time.sleep, args=(FOREVER,), name="pump", daemon=True)
    thread.start()
    here("thread_join", "thread")
    thread.join()


@hangs
def future_result() -> None:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    here("future_result", "future")
    pool.submit(time.sleep, FOREVER).result()


# -- waits for the kernel


@hangs
def sleep() -> None:
    here("sleep")
    time.sleep(FOREVER)


@hangs
def unix_socket() -> None:
    ours, _theirs = socket.socketpair()
    here("unix_socket")
    ours.recv(10)


@hangs
def select_socket() -> None:
    ours, _theirs = socket.socketpair()
    here("select_socket")
    select.select([ours], [], [])


@hangs
def fifo_read() -> None:
    path = f"{FOLDER}/fifo"
    os.mkfifo(path)
    here("fifo_read", path)
    with open(os.open(path, os.O_RDWR), "rb") as pipe:  # its own writer: never opened by another
        pipe.read(1)


@hangs
def file_lock() -> None:
    path = f"{FOLDER}/table.lock"
    with open(path, "w") as ours, open(path, "w") as again:
        fcntl.flock(ours, fcntl.LOCK_EX)
        here("file_lock", path)
        fcntl.flock(again, fcntl.LOCK_EX)


@hangs
def starts_child() -> None:
    """In state D: `vfork` waits until the child has its new program, and that one waits for a writer."""
    path = f"{FOLDER}/nobody-writes"
    os.mkfifo(path)
    here("starts_child")
    opens = (os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)
    os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[opens])


@hangs
def stopped() -> None:
    here("stopped", "SIGSTOP")
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(FOREVER)


TRACER = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
seize, interrupt = 0x4206, 0x4207
sys.stdin.readline()
for what in (seize, interrupt):
    libc.ptrace(what, int(sys.argv[1]), None, None)
time.sleep(100000)
"""


@hangs
def traced() -> None:
    """Held by another process, as under gdb."""
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)  # PR_SET_PTRACER_ANY
    command = [sys.executable, "-c", TRACER, str(os.getpid())]
    tracer = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1)
    here("traced", tracer.pid)
    assert tracer.stdin is not None
    tracer.stdin.write("now\n")
    time.sleep(FOREVER)


# -- waits for other processes


@hangs
def subprocess_wait() -> None:
    child = subprocess.Popen(["sleep", str(FOREVER)])
    here("subprocess_wait", child.pid, "sleep")
    child.wait()


@hangs
def communicate() -> None:
    child = subprocess.Popen(
        ["sleep", str(FOREVER)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    here("communicate", child.pid)
    child.communicate()


@hangs
def process_join() -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER,))
    child.start()
    here("process_join", child.pid)
    child.join()


@hangs
def pool_map() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        here("pool_map", "pool")
        pool.map(time.sleep, [FOREVER, FOREVER])


@hangs
def at_breakpoint() -> None:
    with contextlib.suppress(ImportError):  # takes a while
        importlib.import_module("debugpy")
    here("at_breakpoint")
    breakpoint()


# -- waits for the network: the driver is the server that never answers


def serve() -> int:
    """A listener that accepts no connection: the kernel connects all the same."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=8)
    SERVERS.append(listener)
    return int(listener.getsockname()[1])


SERVERS: list[socket.socket] = []


@ray.remote(**SMALL)
def tcp_socket(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        here("tcp_socket", f"127.0.0.1:{port}")
        connection.recv(10)


@ray.remote(**SMALL)
def http(port: int) -> None:
    here("http", f"127.0.0.1:{port}")
    urllib.request.urlopen(f"http://127.0.0.1:{port}/health")


STARTED["tcp_socket"] = lambda: tcp_socket.remote(serve())
STARTED["http"] = lambda: http.remote(serve())


# -- waits for Ray


@ray.remote(**SMALL)
def never() -> None:
    time.sleep(FOREVER)


@ray.remote(**SMALL)
def ray_get(refs: list[Any]) -> None:
    here("ray_get")
    ray.get(refs)


@ray.remote(**SMALL)
def ray_wait(refs: list[Any]) -> None:
    here("ray_wait")
    ray.wait(refs, num_returns=len(refs))


STARTED["ray_get"] = lambda: ray_get.remote([never.remote()])
STARTED["ray_wait"] = lambda: ray_wait.remote([never.remote(), never.remote()])


# -- actors


@ray.remote(**SMALL)
class SelfCall:
    def outer(self, itself: Any) -> None:
        here("SelfCall.outer")
        ray.get(itself.inner.remote())

    def inner(self) -> None:
        pass


@ray.remote(**SMALL)
class BlockedLoop:
    async def block(self) -> None:
        here("BlockedLoop.block")
        time.sleep(FOREVER)


@ray.remote(**SMALL)
class LoopGets:
    async def block(self, refs: list[Any]) -> None:
        here("LoopGets.block")
        ray.get(refs)


@ray.remote(**SMALL)
class Awaits:
    async def wait(self) -> None:
        here("Awaits.wait")
        await asyncio.sleep(FOREVER)


@ray.remote(max_concurrency=4, **SMALL)
class Threaded:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def take(self) -> None:
        here("Threaded.take")
        with self.lock:
            pass


KEPT: list[Any] = []
"""Actors end with their last handle."""


def call(actor: Any, method: str, *arguments: Any, times: int = 1) -> list[Any]:
    handle = actor.remote()
    KEPT.append(handle)
    given = [handle if each is call else each for each in arguments]
    return [getattr(handle, method).remote(*given) for _ in range(times)]


STARTED["SelfCall.outer"] = lambda: call(SelfCall, "outer", call)
STARTED["BlockedLoop.block"] = lambda: call(BlockedLoop, "block")
STARTED["LoopGets.block"] = lambda: call(LoopGets, "block", [never.remote()])
STARTED["Awaits.wait"] = lambda: call(Awaits, "wait", times=3)
STARTED["Threaded.take"] = lambda: call(Threaded, "take", times=2)


def main() -> None:
    ray.init(log_to_driver=False)
    names = sys.argv[1:] or list(STARTED)
    running = []
    for part in (set(names) - {*CPU_BOUND}, set(names) & {*CPU_BOUND}):
        running += [STARTED[name]() for name in names if name in part]
        reply = [Path(FOLDER, "hangs", f"{name}.json") for name in part]
        while not all(path.exists() for path in reply):
            time.sleep(0.1)
    time.sleep(0.5)  # between a file and its hang
    print("ready", len(running), flush=True)
    time.sleep(FOREVER)


if __name__ == "__main__":
    main()
