"""`raydoctor stack` against `ray stack`, on one node with 40 busy workers.

    python -m benchmarks.stacks
    python -m benchmarks.stacks --workers 10

`ray stack` calls `sudo py-spy` for each worker, one after the other. It gets its best case: a `sudo` that
only starts the command, as its user must be root or own the workers anyway. It looks at every
`ray::` process of the machine: run this where no other Ray runs, or in a pid namespace of its own:

    unshare -p -m -f --mount-proc --kill-child python -m benchmarks.stacks
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import RAY, RAYDOCTOR, SCRIPTS, alternate, say
from tests.helpers.real_ray import RealRay, real_ray

_PROGRAM = """
import ray, sys, threading, time
ray.init()
@ray.remote
def stuck(i):
    threading.Event().wait()
@ray.remote
def gets(refs):
    return ray.get(refs)
count = int(sys.argv[1])
waiting = [stuck.remote(i) for i in range(count // 2)]
waiting += [gets.options(num_cpus=0).remote(waiting[:1]) for _ in range(count - len(waiting))]
print("ready", flush=True)
time.sleep(3600)
"""
_SUDO = '#!/bin/sh\nexec "$@"\n'


def main() -> int:
    """Measure; 0 where the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=40)
    parser.add_argument("--runs", type=int, default=3)
    wanted = parser.parse_args()
    with real_ray() as ray:
        ray.start(cpus=wanted.workers)
        ray.run(_PROGRAM, str(wanted.workers))
        ray.wait_for("ready", seconds=120)
        seen = _until_all_run(ray, wanted.workers)
        _prefer_plain_sudo(ray.folder)
        mine = [RAYDOCTOR, "stack", "--address", ray.address]
        own, native, theirs = alternate(
            [mine, [*mine, "--native"], [RAY, "stack"]], runs=wanted.runs
        )
    print(f"{seen} workers with their tasks, {len(os.sched_getaffinity(0))} processors")
    met = say("stack", own, theirs, "ray stack: ≤ 2 s", seen == wanted.workers and own.seconds <= 2)
    met &= say("stack", own, theirs, "ray stack: ≥ 3 × faster", 3 * own.seconds <= theirs.seconds)
    print(
        f"stack --native                 {native.seconds:7.3f} s: as `ray stack` looks; no target"
    )
    return 0 if met else 1


def _prefer_plain_sudo(folder: Path) -> None:
    """Put a `sudo` that asks nothing, and py-spy, first on PATH."""
    place = folder / "bin"
    place.mkdir()
    sudo = place / "sudo"
    sudo.write_text(_SUDO)
    sudo.chmod(0o755)
    os.environ["PATH"] = f"{place}:{SCRIPTS}:{os.environ['PATH']}"


def _until_all_run(ray: RealRay, count: int) -> int:
    """Wait until so many workers run a task, as `raydoctor stack` sees it; how many it sees."""
    seen = 0
    for _ in range(60):
        command = [RAYDOCTOR, "stack", "--address", ray.address, "--json"]
        reply = subprocess.run(command, capture_output=True, check=False).stdout
        rows = json.loads(reply)["processes"] if reply else []
        seen = sum(bool(row["tasks"] and row["threads"]) for row in rows)
        if seen >= count:
            break
        time.sleep(2)
    return seen


if __name__ == "__main__":
    sys.exit(main())
