"""What `raydoctor watch` costs: its own processor time and memory, and what it puts on Ray.

    python benchmarks/watching.py                       # 1,000 tasks, 90 s
    python benchmarks/watching.py --tasks 1000 --running 200 --seconds 60

On a Ray of its own with that many tasks finished, as many waiting and some running. Counted from the process
table:
the watch and all that it started, those that have ended included (`cutime`), after its start and as a
whole; and gcs_server, raylet and the agents, with the watch and without it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from measure import MB, RAYDOCTOR

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from real_ray import RealRay, real_ray

SHARE, MEMORY = 0.01, 60
_SETTLED = 15.0
"""Seconds after which the start, with its first diagnosis, is over."""
_PROGRAM = """
import ray, sys, time
ray.init(log_to_driver=False)
tasks, running = int(sys.argv[1]), int(sys.argv[2])
@ray.remote(num_cpus=0.1)
def quick(i): return i
@ray.remote(num_cpus=1)
def slow(i):
    while True: time.sleep(0.2)
ray.get([quick.remote(i) for i in range(tasks)])
kept = [slow.remote(i) for i in range(tasks)]
print("ready", flush=True)
time.sleep(36000)
"""
_DAEMONS = ("gcs_server", "raylet", "ray::DashboardAgent", "dashboard.py")


def spent(process: psutil.Process) -> float:
    """Seconds of a processor: its own, and those of its children that have ended."""
    times = process.cpu_times()
    return float(sum(times[:4]))


class Group:
    """A process and what is below it, sampled."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.steady: list[int] = []
        self.peak = 0
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample)

    def __enter__(self) -> Group:
        self._sampler.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._sampler.join()

    def _sample(self) -> None:
        while not self._done.wait(0.25):
            try:
                below = self.root.children(recursive=True)
                whole = sum(each.memory_info().rss for each in (self.root, *below))
            except psutil.Error:
                continue
            self.peak = max(self.peak, whole)
            if not below:
                self.steady.append(whole)

    def seconds(self) -> float:
        """Of a processor: those that run, too."""
        total = spent(self.root)
        for each in self.root.children(recursive=True):
            try:
                total += spent(each)
            except psutil.Error:
                continue
        return total


def daemons(ray: RealRay) -> dict[str, float]:
    """Seconds of a processor that Ray's daemons have taken."""
    return {name: sum(spent(p) for p in ray.processes(name) if p.is_running()) for name in _DAEMONS}


def watched(ray: RealRay, seconds: float, options: list[str]) -> bool:
    """Run the watch, and tell."""
    command = [RAYDOCTOR, "watch", "--address", ray.address, "--json", *options]
    environment = {**os.environ, **ray.environment}
    before, began = daemons(ray), time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, env=environment)
        with Group(process.pid) as group:
            time.sleep(_SETTLED)
            start, since = group.seconds(), time.monotonic()
            time.sleep(seconds)
            whole, now = group.seconds(), time.monotonic()
        after = daemons(ray)
        process.terminate()
        process.wait(timeout=30)
        out.seek(0)
        rounds = [json.loads(line) for line in out if b'"event":"round"' in line]
    share = (whole - start) / (now - since)
    steady = max(group.steady, default=group.peak) / MB
    print(f"watch {' '.join(options)}".rstrip())
    print(f"  start: {start:.2f} s of a processor within {_SETTLED:.0f} s")
    print(
        f"  then: {share:.2%} of a processor over {now - since:.0f} s, {len(rounds)} rounds in all"
    )
    print(f"  of the whole, commands beside took {rounds[-1]['beside_s']:.2f} s of a processor")
    print(f"  memory: {steady:.0f} MB, with a command beside {group.peak / MB:.0f} MB")
    for name in _DAEMONS:
        print(f"  {name}: {(after[name] - before[name]) / (now - began):.2%} of a processor")
    met = share <= SHARE and steady <= MEMORY
    print(f"  {'met' if met else 'MISSED'}: at most {SHARE:.0%} and {MEMORY} MB")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--running", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=90.0)
    options = parser.parse_args()
    with real_ray() as ray:
        ray.start(cpus=options.running)
        ray.run(_PROGRAM, str(options.tasks), str(options.running))
        ray.wait_for("ready", seconds=300)
        time.sleep(20)
        before, began = daemons(ray), time.monotonic()
        time.sleep(30)
        idle, took = daemons(ray), time.monotonic() - began
        print("without a watch")
        for name in _DAEMONS:
            print(f"  {name}: {(idle[name] - before[name]) / took:.2%} of a processor")
        met = watched(ray, options.seconds, [])
        met &= watched(ray, options.seconds, ["--timeout", "1h"])
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
