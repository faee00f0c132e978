"""Tasks that hang in every way that can be made here, for tests on a real cluster.

`ray.run(PROGRAM, *names)` starts those named (all, without names); `wait_until_hung(ray)` returns when they
hang, with the pid of each and what a good verdict mentions. The tasks are in `hanging_program.py`.

`python -m tests.helpers.hangs FILE.json.gz` records the tables `samples` and `clues` of all of them, scrubbed, for
tests without Ray (`recorded`).
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from raydoctor.capture.open import open_capture
from raydoctor.case import Case
from raydoctor.case.signals import FACTS
from raydoctor.cluster import samples
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.stacks import stacks
from raydoctor.observe.stacks.stacks import ProcessToSample, SampleOptions
from raydoctor.read import build
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import PATIENCE

PROGRAM = f"import runpy; runpy.run_path({str(Path(__file__).with_name('hanging_program.py'))!r}, run_name='__main__')"
"""The driver's text."""


class Hang(NamedTuple):
    """One way to hang."""

    name: str
    """The task's name, as Ray reports it: a function, or `Actor.method`."""
    kind: str | None
    """`raydoctor.waits.kinds.catalog.Kind`; None where nothing of it hangs."""


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


class HungTask(NamedTuple):
    """What a task reported just before it hung."""

    pid: int
    says: tuple[str, ...]
    """What a good verdict mentions: a peer's address, a child's pid."""


def wait_until_hung(
    ray: RealRay, log: str = "driver-0.txt", seconds: float = PATIENCE
) -> dict[str, HungTask]:
    """What hangs now, by its name; `log` is the driver's."""
    ray.wait_for("ready", log, seconds)
    return {path.stem: _reported(path) for path in (ray.folder / "hangs").glob("*.json")}


def _reported(path: Path) -> HungTask:
    row = json.loads(path.read_text())
    return HungTask(row["pid"], tuple(row["says"]))


# -- samples of them


def sampled(tasks: Iterable[HungTask], manner: SampleOptions) -> dict[str, str]:
    """The tables of these processes, by the name of their file."""
    wanted = [ProcessToSample(each.pid) for each in tasks]
    pieces = (p for p in stacks.samples(wanted, manner) if isinstance(p, Piece))
    return {Path(piece.path).name: piece.data.decode() for piece in pieces}


def case_of(tables: dict[str, str]) -> Case:
    """A case with nothing but these tables."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "live").mkdir()
        Path(folder, "logs").mkdir()
        Path(folder, "logs/gcs_server.out").touch()
        for name, text in tables.items():
            Path(folder, "live", name).write_text(text)
        with open_capture(folder) as capture:
            return build.read(capture, FACTS).case


class Recording(NamedTuple):
    """What was recorded of a cluster."""

    tasks: dict[str, HungTask]
    processes: dict[int, samples.SampledProcess]


def recorded(path: Path) -> Recording:
    """A file that this program wrote."""
    with gzip.open(path, "rt") as stream:
        kept = json.load(stream)
    tasks = {name: HungTask(pid, tuple(says)) for name, (pid, says) in kept["told"].items()}
    return Recording(tasks, {p.pid: p for p in samples.processes(case_of(kept["tables"]))})


def _record(path: Path, names: list[str]) -> None:
    with real_ray() as ray:
        ray.start()
        ray.run(PROGRAM, *names)
        tasks = wait_until_hung(ray, seconds=300)
        tables = sampled(tasks.values(), SampleOptions(native=True))
        text = json.dumps({"told": tasks, "tables": tables})
        for private, public in ((str(ray.folder), "/tmp/rt-0"), (sys.prefix, "/home/user/venv")):
            text = text.replace(private, public)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    _record(Path(sys.argv[1]), sys.argv[2:])
