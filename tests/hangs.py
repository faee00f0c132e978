"""Tasks that hang in every way that can be made here, for tests on a real cluster.

`ray.run(PROGRAM, *names)` starts those named (all, without names); `wait_until_hung(ray)` returns when they
hang, with the pid of each and what a good verdict mentions. The tasks are in `hanging_program.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from real_ray import RealRay

PROGRAM = f"import runpy; runpy.run_path({str(Path(__file__).with_name('hanging_program.py'))!r}, run_name='__main__')"
"""The driver's text."""


class Hang(NamedTuple):
    """One way to hang."""

    name: str
    """The task's, as Ray tells it: a function, or `Actor.method`."""
    kind: str | None
    """`raydoctor.waits.values.Kind`; None where nothing of it hangs."""


KINDS = (
    Hang("loop", "python-loop"),
    Hang("regex", "native-gil"),
    Hang("gil_sleep", "native-gil"),
    Hang("pbkdf2", "native"),
    Hang("lock_twice", "lock"),
    Hang("lock_held", "lock"),
    Hang("condition", "lock"),
    Hang("queue_get", "lock"),
    Hang("thread_join", "lock"),
    Hang("future_result", "lock"),
    Hang("sleep", "sleep"),
    Hang("unix_socket", "socket"),
    Hang("select_socket", "socket"),
    Hang("fifo_read", "socket"),
    Hang("file_lock", "lock"),
    Hang("starts_child", "subprocess"),
    Hang("stopped", "stopped"),
    Hang("traced", "debugger"),
    Hang("subprocess_wait", "subprocess"),
    Hang("communicate", "subprocess"),
    Hang("process_join", "subprocess"),
    Hang("pool_map", "subprocess"),
    Hang("at_breakpoint", "debugger"),
    Hang("tcp_socket", "socket"),
    Hang("http", "socket"),
    Hang("ray_get", "ray-get"),
    Hang("ray_wait", "ray-get"),
    Hang("SelfCall.outer", "ray-get"),
    Hang("BlockedLoop.block", "async-blocked"),
    Hang("LoopGets.block", "async-blocked"),
    Hang("Awaits.wait", None),
    Hang("Threaded.take", "lock"),
)
"""All of them, in the order of the program."""


class Told(NamedTuple):
    """What a task said just before it hung."""

    pid: int
    says: tuple[str, ...]
    """What a good verdict mentions: a peer's address, a child's pid."""


def wait_until_hung(
    ray: RealRay, log: str = "driver-0.txt", seconds: float = 120.0
) -> dict[str, Told]:
    """What hangs now, by its name; `log` is the driver's."""
    ray.wait_for("ready", log, seconds)
    return {path.stem: _told(path) for path in (ray.folder / "hangs").glob("*.json")}


def _told(path: Path) -> Told:
    row = json.loads(path.read_text())
    return Told(row["pid"], tuple(row["says"]))
