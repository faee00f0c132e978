"""Small live tables for examples about hangs: samples of processes, what they wait for, and finished peers.

Real rows have every key that `observe/stacks/stacks.py` writes, and py-spy shows more of Ray's frames.
"""

from __future__ import annotations

from collections.abc import Sequence

from raydoctor.rules.shared.live.examples import AT, NODE, Row

_Frame = tuple[str, str, int, str]
_MAIN: list[_Frame] = [
    ("Worker.main_loop", "ray/_private/worker.py", 1069, "ray"),
    ("<module>", "ray/_private/workers/default_worker.py", 323, "ray"),
]
_GET: list[_Frame] = [
    ("Worker.get_objects", "ray/_private/worker.py", 1007, "ray"),
    ("get", "ray/_private/worker.py", 3009, "ray"),
]
_LOOP: list[_Frame] = [
    ("async_func", "ray/_private/async_compat.py", 40, "ray"),
    ("_run_once", "asyncio/base_events.py", 1922, "python"),
]


def waiting(
    of: Row,
    *frames: tuple[str, str, int],
    count: int = 3,
    below: Sequence[_Frame] = _MAIN,
    **more: object,
) -> list[Row]:
    """Rows of `samples`: a process with these frames, innermost first, in every sample."""
    own = [(*frame, _whose(frame[1])) for frame in frames]
    thread = {**idle_thread(of["worker_pid"], "MainThread", [*own, *below]), **more}
    return [_sample(of, number, thread) for number in range(count)]


def working(of: Row, *frames: tuple[str, str, int], count: int = 3) -> list[Row]:
    """Rows of a process whose Python code is running in every sample."""
    own = [(*frame, _whose(frame[1])) for frame in frames]
    thread = {
        **idle_thread(of["worker_pid"], "MainThread", [*own, *_MAIN]),
        "active": True,
        "gil": True,
    }
    runs = {**thread, "state": "R", "wchan": "0", "syscall": None}
    return [_sample(of, n, {**runs, "cpu_seconds": 0.4 + n}) for n in range(count)]


def getting(of: Row, *frames: tuple[str, str, int]) -> list[Row]:
    """A process whose user frames call `ray.get`."""
    own = [(*frame, "user") for frame in frames]
    return waiting(of, below=[*_GET, *own, *_MAIN])


def blocking(of: Row, *frames: tuple[str, str, int], count: int = 3) -> list[Row]:
    """An async actor whose event loop is blocked at these frames."""
    main = idle_thread(of["worker_pid"], "MainThread", [*_MAIN])
    own = [(*frame, _whose(frame[1])) for frame in frames]
    loop = idle_thread(of["worker_pid"] + 9, "AsyncIO Thread: default", [*own, *_LOOP])
    return [_sample(of, number, main, loop) for number in range(count)]


def idle_thread(tid: int, name: str, frames: Sequence[_Frame]) -> Row:
    """One waiting thread."""
    return {
        "tid": tid, "name": name, "active": False, "gil": False, "state": "S", "wchan": "futex_wait_queue", "syscall": 202,
        "cpu_seconds": 0.4, "voluntary": 60, "involuntary": 9,
        "frames": [dict(zip(("function", "file", "line", "whose"), f, strict=True)) for f in frames],
    }  # fmt: skip


def _sample(of: Row, number: int, *threads: Row) -> Row:
    return {
        "node_id": NODE, "pid": of["worker_pid"], "worker_pid": of["worker_pid"], "started_at": AT - 900, "worker_id": "",
        "title": f"ray::{of['name']}", "sample": number, "at": AT + number, "cpu_seconds": 1.2, "how": "py-spy", "problem": "",
        "threads": list(threads),
    }  # fmt: skip


def _whose(file: str) -> str:
    if file.startswith("ray/"):
        return "ray"
    return (
        "python"
        if file in ("threading.py", "socket.py", "selectors.py", "subprocess.py")
        else "user"
    )


def clues(
    of: Row, *awaited: Row, sockets: Sequence[Row] = (), call: str = "get", tid: int = 0
) -> Row:
    """A row of `clues`: a process that waits for the results of these tasks, and its sockets."""
    ids = [f"{task['task_id']}01000000" for task in awaited]
    wait = {
        "tid": tid or of["worker_pid"],
        "call": call,
        "objects": ids,
        "untold": 0,
        "exact": True,
    }
    return {
        "node_id": NODE, "pid": of["worker_pid"], "worker_pid": of["worker_pid"], "worker_id": "", "sockets": list(sockets),
        "children": [], "files": [], "locks": [], "awaits": [wait] if ids else [],
    }  # fmt: skip


def took(name: str, count: int, median: float, longest: float = 0.0) -> Row:
    """A row of `finished`."""
    most = longest or median
    return {"name": name, "count": count, "median_s": median, "p95_s": most, "max_s": most}


def since(seconds: float, state: str = "RUNNING") -> Row:
    """Keys of a task that entered its state this many seconds ago."""
    at = int((AT - seconds) * 1000)
    return {"state": state, "start_time_ms": at, "events": [{"state": state, "created_ms": at}]}
