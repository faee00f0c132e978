"""Attach to busy processes of eleven kinds, and see whether each keeps running afterwards.

    python -m benchmarks.attach_busy                               # every kind, 20 times each
    python -m benchmarks.attach_busy threads-4 forking --times 5   # some kinds
    python -m benchmarks.attach_busy --python OTHER/bin/python     # targets of another Python

Each target writes a counter per thread into a shared file. A target is *frozen* if a counter that rose
before the attach does not rise within `PATIENCE` seconds afterwards, and *dead* if it has exited. A kind
whose module (numpy, torch) the Python lacks is skipped. The exit code is 1 if a target froze or died, or if
a refusal gives no reason or no stack.
"""

from __future__ import annotations

import argparse
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from raydoctor.act.attach import attach
from raydoctor.act.audit import Audit

COUNTERS = 80
PATIENCE = 15.0
"""Seconds in which every counter must rise: 64 threads share the GIL, maybe on a machine with other work."""
WARM_UP = 0.3

PRELUDE = """
import mmap, os, sys, threading, time
counters = memoryview(mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8 * 80)).cast("Q")
def spin(slot, work=lambda: None):
    turn = 0
    while True:
        turn += 1
        work()
        if turn % every == 0:
            counters[slot] += 1
every = 500
def start(count, work=lambda: None):
    for slot in range(1, count):
        threading.Thread(target=spin, args=(slot, work), daemon=True).start()
def ready():
    print("ready", flush=True)
"""
TARGETS = {
    "threads-4": "start(4); ready(); spin(0)",
    "threads-16": "start(16); ready(); spin(0)",
    "threads-64": "every = 100; start(64); ready(); spin(0)",
    "allocating": """
every = 1
def work():
    kept = [bytearray(size) for size in (100, 5_000, 70_000, 300_000)]
    return [str(number) for number in range(200)], kept
start(4, work); ready(); spin(0, work)
""",
    "forking": """
import subprocess
every = 1
def fork():
    if (child := os.fork()) == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
def run():
    subprocess.run(["/bin/true"], check=True)
threading.Thread(target=spin, args=(1, run), daemon=True).start()
every = 1; ready(); spin(0, fork)
""",
    "thread-churn": """
every = 1
def churn():
    threads = [threading.Thread(target=sum, args=(range(1000),)) for _ in range(8)]
    for each in threads: each.start()
    for each in threads: each.join()
start(2, churn); ready(); spin(0, churn)
""",
    "asyncio": """
import asyncio
async def tick(slot):
    while True:
        counters[slot] += 1
        await asyncio.sleep(0)
async def compute(slot):
    while True:
        await asyncio.get_running_loop().run_in_executor(None, sum, range(2000))
        counters[slot] += 1
async def main():
    ready()
    await asyncio.gather(*[tick(slot) for slot in range(4)], *[compute(slot) for slot in range(4, 8)])
asyncio.run(main())
""",
    "numpy": """
import numpy
every = 1
a = numpy.random.rand(120, 120)
work = lambda: (a @ a).sum()
start(4, work); ready(); spin(0, work)
""",
    "torch": """
import torch
every = 1
a = torch.rand(120, 120)
work = lambda: (a @ a).relu().sum().item()
start(4, work); ready(); spin(0, work)
""",
    "waiting": """
start(4); ready()
held = threading.Lock(); held.acquire(); held.acquire()
""",
    "native": """
import hashlib, re, zlib
every = 1
pattern = re.compile("(a+)+$")
def work():
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 2000)
    zlib.compress(bytes(100_000))
    pattern.match(13 * "a" + "b")
start(4, work); ready(); spin(0, work)
""",
}
NEEDS = {"numpy": "numpy", "torch": "torch"}
Result = Literal["attached", "refused", "frozen", "dead", "unexplained"]


class Attempt(NamedTuple):
    """One attach and what became of the target."""

    result: Result
    seconds: float
    reason: str = ""
    """Of a refusal."""


@dataclass
class Target:
    """A busy process."""

    process: subprocess.Popen[str]
    counters: memoryview
    moving: set[int] = field(default_factory=set)
    """The counters that rise while nothing disturbs the process."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def still(self, expected: set[int], patience: float = PATIENCE) -> set[int]:
        """The counters among these that do not rise within that many seconds."""
        before, waiting = self.counters.tolist(), set(expected)
        deadline = time.monotonic() + patience
        while waiting and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            now = self.counters.tolist()
            waiting = {slot for slot in waiting if now[slot] == before[slot]}
        return waiting


@contextmanager
def target(kind: str, python: str = sys.executable) -> Iterator[Target]:
    """A busy process of that kind whose threads all run."""
    with tempfile.NamedTemporaryFile(prefix="busy-") as file:
        file.truncate(8 * COUNTERS)
        counters = memoryview(mmap.mmap(file.fileno(), 8 * COUNTERS)).cast("Q")
        environment = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", **os.environ}
        process = subprocess.Popen(
            [python, "-c", PRELUDE + TARGETS[kind], file.name],
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            busy = Target(process, counters)
            time.sleep(WARM_UP)
            busy.moving = {slot for slot, count in enumerate(counters) if count}
            yield busy
        finally:
            process.kill()
            process.communicate()


def attempt(kind: str, python: str, grace: float = attach.GRACE) -> Attempt:
    """Attach to one fresh target of that kind."""
    with target(kind, python) as busy:
        began, reason, hint = time.monotonic(), "", ""
        try:
            attach.attach(
                attach.AttachTarget(busy.pid),
                grace=grace,
                audit=Audit("benchmark", path="/dev/null"),
            )
        except attach.NotAttachedError as error:
            reason, hint = f"{error.why}: {error.message}", error.hint
        seconds = time.monotonic() - began
        still = busy.still(busy.moving)
        if busy.process.poll() is not None:
            return Attempt("dead", seconds, f"exit code {busy.process.returncode}")
        if still:
            return Attempt("frozen", seconds, f"counters {sorted(still)} stand still; {reason}")
        if reason:
            is_explained = "stack" in hint or "stack" in reason
            return Attempt("refused" if is_explained else "unexplained", seconds, reason)
        return Attempt("attached", seconds)


def can_run(kind: str, python: str) -> bool:
    """Whether that Python has the module that the kind needs."""
    if (module := NEEDS.get(kind)) is None:
        return True
    return not subprocess.run(
        [python, "-c", f"import {module}"], stderr=subprocess.DEVNULL, check=False
    ).returncode


def main() -> int:
    """Print one line per kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--python", default=sys.executable, help="the Python of the targets")
    parser.add_argument("--grace", type=float, default=attach.GRACE, help="seconds until a refusal")
    options = parser.parse_args()
    print(f"load {Path('/proc/loadavg').read_text().split()[0]}, {os.cpu_count()} processors")
    print(f"{'kind':14} attached refused frozen dead  median s  slowest s")
    failed = False
    for kind in options.kinds or TARGETS:
        if not can_run(kind, options.python):
            print(f"{kind:14} skipped: {options.python} has no {NEEDS[kind]}")
            continue
        made = [attempt(kind, options.python, options.grace) for _ in range(options.times)]
        count = {
            result: sum(each.result == result for each in made)
            for result in ("attached", "refused", "frozen", "dead")
        }
        seconds = sorted(each.seconds for each in made)
        print(
            f"{kind:14} {count['attached']:8} {count['refused']:7} {count['frozen']:6} {count['dead']:4}"
            f"  {seconds[len(seconds) // 2]:8.2f}  {seconds[-1]:9.2f}",
            flush=True,
        )
        for each in made:
            if each.reason:
                print(f"    {each.result}: {each.reason}", flush=True)
        failed |= any(each.result not in ("attached", "refused") for each in made)
    print(f"load {Path('/proc/loadavg').read_text().split()[0]}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
