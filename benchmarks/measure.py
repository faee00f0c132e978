"""Whole processes, timed: seconds as a user waits for them, memory as the kernel counts it."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

MB, GB = 1 << 20, 1 << 30
# Every process that is measured would compile all modules again: its start takes five times as long.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
SCRIPTS = Path(sysconfig.get_path("scripts"))
RAYDOCTOR, RAY, RG = (str(SCRIPTS / name) for name in ("raydoctor", "ray", "rg"))


class Cost(NamedTuple):
    """What a command cost: median seconds and the fastest, peak memory of its processes together."""

    seconds: float
    fastest: float
    peak_bytes: int


def measure(command: Sequence[str], runs: int, ok: Sequence[int] = (0, 1, 3)) -> Cost:
    """Run a command `runs` times for the time, and once more for the memory."""
    times = [_timed(command, ok) for _ in range(runs)]
    return Cost(median(times), min(times), _peak(command))


def alternate(commands: Sequence[Sequence[str]], runs: int) -> list[Cost]:
    """Several commands in turn, so that a busy moment of the machine hits all of them."""
    times: list[list[float]] = [[] for _ in commands]
    for _ in range(runs):
        for command, taken in zip(commands, times, strict=True):
            taken.append(_timed(command, (0, 1, 3)))
    return [Cost(median(t), min(t), _peak(c)) for c, t in zip(commands, times, strict=True)]


def _timed(command: Sequence[str], ok: Sequence[int]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    taken = time.perf_counter() - began
    if done.returncode not in ok:
        raise SystemExit(
            f"{' '.join(command[:6])} … ended with {done.returncode}: {done.stderr[-2000:]!r}"
        )
    return taken


def _peak(command: Sequence[str]) -> int:
    """The most that a process and its children held at one time, sampled (Linux; elsewhere 0)."""
    peak = [0]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, peak, done))
        watcher.start()
        process.wait()
        done.set()
        watcher.join()
    return peak[0]


def _watch(pid: int, peak: list[int], done: threading.Event) -> None:
    while not done.wait(0.01):
        peak[0] = max(peak[0], sum(map(_held, (pid, *_children(pid)))))


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        reply = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in tasks]
    except OSError:
        return []
    return [int(child) for line in reply for child in line.split()]


def _held(pid: int) -> int:
    """The proportional set size: a page that a fork shares with its parent counts once, not twice."""
    try:
        totals = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    lines = (line for line in totals.splitlines() if line.startswith("Pss:"))
    return sum(int(line.split()[1]) << 10 for line in lines)


def say(what: str, cost: Cost, base: Cost, target: str, met: bool) -> bool:
    """One line of the table; `target` is `base: what it must reach`."""
    ratio = cost.seconds / base.seconds
    base_name, _, wanted = target.partition(": ")
    print(
        f"{what:<32} {cost.seconds:7.3f} s {cost.peak_bytes / MB:5.0f} MB | "
        f"{base_name:>13} {base.seconds:7.3f} s | x {ratio:5.2f} | "
        f"{wanted:<30} {'met' if met else 'MISSED'}",
        flush=True,
    )
    return met
