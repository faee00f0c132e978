"""Live cases of `benchmarks.run`: whole processes against Ray's own CLI, on a real local Ray.

`live` has 1,000 finished tasks, `stuck` 100,000 and 5 that are stuck.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import time
from pathlib import Path

from benchmarks.measure import RAY, RAYDOCTOR, alternate, say
from tests.helpers.real_ray import RealRay, real_ray

_THOUSAND = """
import ray, time
ray.init()
@ray.remote
def quick(i): return i
@ray.remote(num_cpus=0)
def slow(i): time.sleep(3600)
ray.get([quick.remote(i) for i in range(1000)])
waiting = [slow.remote(i) for i in range(4)]
print("ready", flush=True)
time.sleep(3600)
"""

_STUCK = """
import ray, sys, threading, time
ray.init()
@ray.remote
def quick(): pass
@ray.remote(num_cpus=0)
def stuck(i): threading.Event().wait()
waiting = [stuck.remote(i) for i in range(5)]
for _ in range(100):
    ray.get([quick.remote() for _ in range(int(sys.argv[1]) // 100)])
print("ready", flush=True)
time.sleep(3600)
"""


def thousand(folder: Path, scale: float) -> bool:
    """1,000 tasks: faster than `ray memory`, and than the three commands that people type."""
    with real_ray() as ray:
        ray.start()
        ray.run(_THOUSAND)
        ray.wait_for("ready", seconds=120)
        time.sleep(3)  # task events are sent once a second
        os.environ.update(ray.environment, RAY_ADDRESS=ray.address)
        mine = [RAYDOCTOR, "diagnose", "--address", ray.address]
        three = ["sh", "-c", f"{RAY} status && {RAY} list tasks && {RAY} list actors"]
        own, memory, listed = alternate([mine, [RAY, "memory"], three], runs=7)
        states = [[RAYDOCTOR, "status", "--address", ray.address], [RAY, "status"]]
        state, of_ray = alternate(states, runs=7)
    name = "diagnose, live, 1,000 tasks"
    met = say(name, own, memory, "ray memory: faster", own.seconds < memory.seconds)
    faster = own.seconds < listed.seconds
    met &= say(name, own, listed, "status + lists: faster", faster)
    fast = state.seconds <= 0.6 * of_ray.seconds
    return met & say("status, 1,000 tasks", state, of_ray, "ray status: 0.6 x", fast)


def stuck(folder: Path, scale: float) -> bool:
    """100,000 finished tasks, 5 stuck: those are found, in five seconds."""
    total = int(100_000 * scale)
    with real_ray() as ray:
        ray.start()
        ray.run(_STUCK, str(total))
        ray.wait_for("ready", seconds=900)
        time.sleep(3)
        began = time.perf_counter()
        found = running(ray)
        taken = time.perf_counter() - began
    met = found == 5 and taken <= 5
    verdict = "met" if met else "MISSED"
    print(f"{total:,} finished: {found} of 5 stuck tasks in {taken:.2f} s (5 s)  {verdict}")
    return met


def running(ray: RealRay) -> int:
    """How many of the stuck tasks a collection of this cluster names as running."""
    target = ray.folder / "capture.tar"
    command = [RAYDOCTOR, "collect", "--address", ray.address, "-o", str(target)]
    subprocess.run(command, check=False, capture_output=True)
    with tarfile.open(target) as tar:
        member = tar.extractfile("live/live-tasks.json")
        rows = json.load(member)["rows"] if member else []
    return sum(row["name"] == "stuck" and row["state"] == "RUNNING" for row in rows)
