"""Whole processes, timed: seconds as a user waits for them, memory as the kernel counts it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple


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
    """The sum of the peaks of a process and its children, sampled (Linux; elsewhere 0)."""
    peaks: dict[int, int] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, peaks, done))
        watcher.start()
        process.wait()
        done.set()
        watcher.join()
    return sum(peaks.values())


def _watch(pid: int, peaks: dict[int, int], done: threading.Event) -> None:
    while not done.wait(0.02):
        for member in (pid, *_children(pid)):
            peaks[member] = max(peaks.get(member, 0), _high_water(member))


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [
            int(c)
            for t in tasks
            for c in Path(f"/proc/{pid}/task/{t}/children").read_text().split()
        ]
    except OSError:
        return []


def _high_water(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next(
        (int(li.split()[1]) << 10 for li in status.splitlines() if li.startswith("VmHWM")), 0
    )
