"""What `raydoctor watch` costs: its own processor time and memory, and what it puts on Ray; and how steadily
its screen is refreshed.

    python -m benchmarks.watching                       # 1,000 tasks, 600 s on a screen, then as JSON
    python -m benchmarks.watching --tasks 1000 --running 200 --seconds 60
    python -m benchmarks.watching --terminals            # in terminals of tmux: when a hung task appears

On a Ray of its own with that many tasks finished, as many waiting and some that stand still (their stacks
are looked at after a minute). Counted from the process table: the watch and all that it started, those that
have ended included (`cutime`), from its start on and in the worst of all windows; and gcs_server, raylet and
the agents, with the watch and without it. Memory that several of its processes map of one file counts once.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import shlex
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from itertools import pairwise
from pathlib import Path

import psutil

from benchmarks.measure import MB, RAYDOCTOR
from tests.helpers.real_ray import RealRay, real_ray

SHARE, MEMORY = 0.01, 80
"""Of one CPU, and MB of memory: of all processes of a watch."""
STEADY, INTERVAL = 0.95, 2.5
"""Share of the intervals between two frames that may take at most so many seconds."""
_FRAME = b"\x1b[1;1H"
"""Each frame writes the time into the first row."""
_WINDOW = 300.0
"""Seconds within which the share is kept."""
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
_STUCK = """
import ray, sys, threading, time
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0)
def warm(): pass
@ray.remote(num_cpus=0)
def stuck(begins):
    with open(begins, "w") as out: out.write(str(time.time()))
    threading.Semaphore(0).acquire()
ray.get(warm.remote())
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
ray.get(stuck.remote(sys.argv[1]))
"""
WIDTHS, _ROWS = (60, 100, 200), 30
_WARM = 20.0
"""Seconds that a watch runs before a task gets stuck."""
_AGE, LATE = 60.0, 15.0
"""Seconds after which `raydoctor hung` reports a task, and in which a watch shows it then."""
_DAEMONS = ("gcs_server", "raylet", "ray::DashboardAgent", "dashboard.py")


def spent(process: psutil.Process) -> float:
    """Seconds of a processor: its own, and those of its children that have ended."""
    times = process.cpu_times()
    return float(sum(times[:4]))


class Group:
    """A process and what is below it, sampled."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.alone: list[int] = []
        """Bytes, while it had no child."""
        self.peak = 0
        self.costs: list[tuple[float, float]] = [(time.monotonic(), 0.0)]
        """When, and seconds of a processor until then."""
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample)

    def __enter__(self) -> Group:
        self._sampler.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._sampler.join()

    def _sample(self) -> None:
        while not self._done.wait(0.1):
            try:
                below = self.root.children(recursive=True)
            except psutil.Error:
                continue
            whole = together([self.root.pid, *(each.pid for each in below)])
            self.peak = max(self.peak, whole)
            if not below:
                self.alone.append(whole)
                self.costs.append((time.monotonic(), spent(self.root)))

    def worst(self) -> float:
        """The largest share of a processor within any window, its start in it; of what has ended."""
        last = self.costs[-1][0]
        length = min(_WINDOW, last - self.costs[0][0])
        shares = [0.0]
        for at, before in self.costs[::10]:
            if at + length <= last + 1:
                after = max(cost for when, cost in self.costs if when <= at + length)
                shares.append((after - before) / length)
        return max(shares)


def together(pids: list[int]) -> int:
    """Bytes that processes hold: what is their own, and each file once."""
    own, files = 0, dict[str, int]()
    for pid in pids:
        try:
            reply = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:
            continue
        file, resident = "", 0
        for line in reply.splitlines():
            name, _, rest = line.partition(":")
            if name == "Rss":
                resident = int(rest.split()[0])
            elif name == "Anonymous":
                anonymous = int(rest.split()[0])
                own += anonymous
                files[file] = max(files.get(file, 0), resident - anonymous)
            elif "-" in name.partition(" ")[0]:
                file = line.split(None, 2)[2]  # where in it, its device and inode
    return (own + sum(files.values())) << 10


def daemons(ray: RealRay) -> dict[str, float]:
    """Seconds of a processor that Ray's daemons have taken."""
    return {name: sum(spent(p) for p in ray.processes(name) if p.is_running()) for name in _DAEMONS}


def watched(ray: RealRay, seconds: float, options: list[str], *, is_screen: bool) -> bool:
    """Run the watch, and report its costs."""
    form = [] if is_screen else ["--json"]
    command = [RAYDOCTOR, "watch", "--address", ray.address, *form, *options]
    environment = {**os.environ, **ray.environment, "TERM": "xterm-256color"}
    before, began = daemons(ray), time.monotonic()
    with tempfile.TemporaryFile() as out:
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        stdout = follower if is_screen else out
        process = subprocess.Popen(command, stdin=follower, stdout=stdout, env=environment)
        frames: list[float] = []
        threading.Thread(target=_read, args=(leader, frames), daemon=True).start()
        with Group(process.pid) as group:
            time.sleep(seconds)
        after, now = daemons(ray), time.monotonic()
        process.terminate()
        process.wait(timeout=30)
        os.close(follower)
        out.seek(0)
        rounds = [json.loads(line) for line in out if b'"event":"round"' in line]
    times = frames if is_screen else [each["at"] for each in rounds]
    worst, peak = group.worst(), group.peak / MB
    alone = max(group.alone, default=group.peak) / MB
    print(f"watch {' '.join([*form, *options])}".rstrip())
    print(
        f"  {worst:.2%} of a processor in the worst {min(_WINDOW, seconds):.0f} s, its start included"
    )
    if rounds:
        print(f"  rounds at {rounds[-1]['cost']:.2%}; children took {rounds[-1]['beside_s']:.2f} s")
    is_steady = _intervals(times)
    print(f"  memory: {peak:.0f} MB, without a child {alone:.0f} MB")
    for name in _DAEMONS:
        print(f"  {name}: {(after[name] - before[name]) / (now - began):.2%} of a processor")
    met = worst <= SHARE and peak <= MEMORY and is_steady
    print(f"  {'met' if met else 'MISSED'}: at most {SHARE:.0%}, {MEMORY} MB and {INTERVAL} s")
    return met


def _read(leader: int, frames: list[float]) -> None:
    """Read a terminal until it is closed; note when each frame arrives."""
    while True:
        try:
            drawn = os.read(leader, 1 << 16)
        except OSError:  # its last process has ended
            return
        if _FRAME in drawn:
            frames.append(time.monotonic())


def _intervals(times: list[float]) -> bool:
    """Print the quantiles of the intervals; whether they are steady."""
    gaps = [after - before for before, after in pairwise(times)]
    cuts = statistics.quantiles(gaps, n=100)
    steady = sum(gap <= INTERVAL for gap in gaps) / len(gaps)
    print(
        f"  {len(times)} rounds, {cuts[4]:.2f} to {cuts[94]:.2f} s apart (5 % to 95 %), at most "
        f"{max(gaps):.2f} s; {steady:.1%} within {INTERVAL} s"
    )
    return steady >= STEADY


class Terminal:
    """A watch in a terminal of tmux."""

    def __init__(self, ray: RealRay, width: int) -> None:
        self.width = width
        self.shown = 0.0
        """When the hung task was first shown; 0 until then."""
        self._tmux = ["tmux", "-S", str(ray.folder / f"tmux-{width}")]
        self._environment = {**os.environ, **ray.environment, "TERM": "xterm-256color"}
        watch = shlex.join([RAYDOCTOR, "watch", "--address", ray.address])
        size = ("-x", str(width), "-y", str(_ROWS))
        self._run("-f", "/dev/null", "new-session", "-d", *size, f"exec {watch}")
        self.group = Group(int(self._run("list-panes", "-F", "#{pane_pid}")))

    def _run(self, *words: str) -> str:
        return subprocess.run(
            [*self._tmux, *words], env=self._environment, capture_output=True, text=True, check=True
        ).stdout

    def look(self) -> None:
        """Note when its screen shows the task with a hang."""
        lines = self._run("capture-pane", "-p").splitlines()
        if not self.shown and any("stuck" in line and " lock " in line for line in lines):
            self.shown = time.time()

    def end(self) -> None:
        self._run("kill-server")


def in_terminal(ray: RealRay, width: int, seconds: float) -> bool:
    """Watch in a terminal: when a hung task appears, and what the watch costs.

    One watch at a time: each reads the stack of the task, which the others would take for its own activity.
    """
    begins = ray.folder / "begins.txt"
    ray.run(_STUCK, str(begins), str(_WARM))
    ray.wait_for("ready", seconds=300)
    terminal, until = Terminal(ray, width), time.monotonic() + seconds
    with terminal.group:
        while time.monotonic() < until:
            terminal.look()
            time.sleep(0.5)
    terminal.end()
    late = terminal.shown - float(begins.read_text()) - _AGE if terminal.shown else float("inf")
    worst, peak = terminal.group.worst(), terminal.group.peak / MB
    met = late <= LATE and worst <= SHARE and peak <= MEMORY
    print(
        f"{width} columns: the task appears {late:+.1f} s after hung would report it; "
        f"{worst:.2%} of a processor, {peak:.0f} MB: {'met' if met else 'MISSED'}"
    )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--terminals", action="store_true", help="60, 100 and 200 columns in tmux")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--running", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    if options.terminals:
        met = True
        for width in WIDTHS:
            with real_ray() as ray:
                ray.start()
                met &= in_terminal(ray, width, options.seconds)
        return 0 if met else 1
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
        met = watched(ray, options.seconds, [], is_screen=True)
        met &= watched(ray, options.seconds, ["--timeout", "1h"], is_screen=False)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
