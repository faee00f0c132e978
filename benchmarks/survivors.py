"""What a task started and what outlives it, event by event; and whether `raydoctor zombies` clears that.

    python -m benchmarks.survivors                              # this interpreter's Ray, all events
    python -m benchmarks.survivors --python OTHER/bin/python    # the Ray of another environment
    python -m benchmarks.survivors stop job-stop --set RAY_process_group_cleanup_enabled=0

A task starts eight descendants; then something happens; what lives five seconds later are the survivors.
`raydoctor zombies --kill --yes` must end them all, but the one that has kept nothing of its worker's (its
environment scrubbed, a session of its own, no file of Ray's): nothing that was not there before can know it.
Each event has processes, network and shared memory of its own (`unshare`; needs root), and bystanders that
must live on. One JSON line each, and a table at the end. Exit code 1 where something was missed or hurt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

BASE = 7_200_000
KINDS = {
    1: "child",
    2: "own session",
    3: "grandchild",
    4: "exec",
    5: "mp fork",
    6: "mp spawn",
    7: "double fork",
    8: "scrubbed",
}
SCRUBBED = "scrubbed"
BYSTANDER = 99
SETTLED = 5.0
"""Seconds after the event: Ray ends within these what it ends itself (live: 2.8 s)."""
TARGET = 3.0
"""Seconds from the first signal to the end of `zombies`, without the grace that something may have taken."""
GRACE = 5.0

DRIVER = """
import multiprocessing, os, signal, subprocess, sys, time
import ray
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
ray.init(address="auto", log_to_driver=False)

@ray.remote(max_retries=0, num_cpus=1)
def eight(base, mark, go):
    sleep = lambda n: ["sleep", str(base + n)]
    subprocess.Popen(sleep(1))
    subprocess.Popen(sleep(2), start_new_session=True)
    subprocess.Popen(["sh", "-c", f"sleep {base + 3} & exec sleep {base + 4}"])
    for n, kind in ((5, "fork"), (6, "spawn")):
        multiprocessing.get_context(kind).Process(target=os.execvp, args=("sleep", sleep(n))).start()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            os.execvp("sleep", sleep(7))
        os._exit(0)
    null = subprocess.DEVNULL
    plain = {"PATH": os.environ["PATH"]}
    subprocess.Popen(sleep(8), env=plain, stdin=null, stdout=null, stderr=null, start_new_session=True)
    time.sleep(1.0)
    open(mark, "w").write(str(os.getpid()))
    while not os.path.exists(go):
        time.sleep(0.1)

base, mark, go, then = int(sys.argv[1]), *sys.argv[2:]
ray.get(eight.remote(base, mark, go))
if then == "live":
    time.sleep(10_000)
"""


def sleeper(number: int) -> list[psutil.Process]:
    """Processes that sleep for this many seconds."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline() == ["sleep", str(BASE + number)]:
                found += [process] if process.status() != psutil.STATUS_ZOMBIE else []
        except psutil.Error:
            pass
    return found


def survivors() -> list[str]:
    """Which kinds live."""
    return [name for number, name in KINDS.items() if sleeper(number)]


def named(name: str) -> list[psutil.Process]:
    """Living processes of this name."""
    return [
        p
        for p in psutil.process_iter(["name", "status"])
        if p.info["name"] == name and p.info["status"] != psutil.STATUS_ZOMBIE
    ]


def until(true: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.1)


# ------------------------------------------------------------------ inside


@dataclass
class Stage:
    """A cluster in namespaces of its own, with a driver whose task has started its eight."""

    python: str
    folder: Path
    driver: subprocess.Popen[bytes] | None = None
    worker: int = 0
    bystander: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    def ray(self, *arguments: str, check: bool = True) -> None:
        """Ray's own command line."""
        command = [self.python, "-m", "ray.scripts.scripts", *arguments]
        with (self.folder / "ray.txt").open("ab") as said:
            subprocess.run(
                command, check=check, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=said, stderr=said, cwd=self.folder, timeout=180,
            )  # fmt: skip

    def start(self, then: str, as_job: bool) -> None:
        """The cluster, the driver, the task."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RAYDOCTOR")}
        self.environment = {**kept, "HOME": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0"}
        self.ray(
            *("start", "--head", "--port=6379", f"--temp-dir={self.folder}", "--num-cpus=2"),
            *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--disable-usage-stats"),
            f"--include-dashboard={str(as_job).lower()}",
            "--object-store-memory=100000000",
        )
        self.bystander = subprocess.Popen(["sleep", str(BASE + BYSTANDER)]).pid
        program, mark = self.folder / "driver.py", self.folder / "mark"
        program.write_text(DRIVER)
        words = [str(program), str(BASE), str(mark), str(self.folder / "go"), then]
        if as_job:
            address = "--address=http://127.0.0.1:8265"
            entry = ["--no-wait", "--submission-id=raysubmit_1", "--", self.python, *words]
            self.ray("job", "submit", address, *entry)
        else:
            with (self.folder / "driver.txt").open("wb") as said:
                self.driver = subprocess.Popen(
                    [self.python, *words], env={**self.environment, "RAY_ADDRESS": "127.0.0.1:6379"},
                    stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                    cwd=self.folder, start_new_session=True,
                )  # fmt: skip
        until(lambda: mark.exists() and mark.read_text(), "the task runs")
        self.worker = int(mark.read_text())
        until(lambda: len(survivors()) == len(KINDS), "all eight run")  # one starts a Python

    def end_task(self) -> None:
        """Let the task return."""
        (self.folder / "go").touch()

    def signal_driver(self, number: int) -> None:
        """To the driver alone."""
        assert self.driver is not None
        self.driver.send_signal(number)


def _kill_raylet(stage: Stage) -> None:
    (raylet,) = named("raylet")
    raylet.kill()


def _stop_job(stage: Stage) -> None:
    stage.ray("job", "stop", "--address=http://127.0.0.1:8265", "raysubmit_1")


EVENTS: dict[str, Callable[[Stage], None]] = {
    "stop": lambda stage: stage.ray("stop", check=False),
    "job-stop": _stop_job,
    "stop-force": lambda stage: stage.ray("stop", "--force", check=False),
    "raylet-unreaped": _kill_raylet,
    "raylet-kill": _kill_raylet,
    "worker-kill": lambda stage: os.kill(stage.worker, signal.SIGKILL),
    "task-end": Stage.end_task,
    "driver-exit": Stage.end_task,
    "driver-int": lambda stage: stage.signal_driver(signal.SIGINT),
    "driver-term": lambda stage: stage.signal_driver(signal.SIGTERM),
    "driver-kill": lambda stage: stage.signal_driver(signal.SIGKILL),
}


def inside(event: str, python: str, folder: Path) -> dict[str, Any]:
    """Have it happen, and clear what is left."""
    stage = Stage(python, folder)
    stage.start("exit" if event == "driver-exit" else "live", as_job=event == "job-stop")
    before = survivors()
    EVENTS[event](stage)
    if event in ("task-end", "driver-exit"):
        time.sleep(1.0)
    time.sleep(SETTLED)
    if stage.driver:
        stage.driver.poll()
    reply = {"event": event, "started": before, "survivors": survivors()}
    living = {p.pid for name in ("raylet", "gcs_server") for p in named(name)}
    cleared = _zombies(folder, leaked=event == "task-end")
    is_live = bool(living) and event not in ("raylet-kill", "raylet-unreaped")
    lost = [] if psutil.pid_exists(stage.bystander) else ["bystander"]
    lost += [str(pid) for pid in living if is_live and not psutil.pid_exists(pid)]
    if event == "task-end" and not psutil.pid_exists(stage.worker):
        lost.append("worker")
    return {**reply, **cleared, "left": survivors(), "hurt": lost}


def _zombies(folder: Path, leaked: bool) -> dict[str, Any]:
    """Run it, as users do; with the seconds from its first signal to its end."""
    state = folder / "state"
    command = [
        sys.executable,
        "-m",
        "raydoctor",
        "zombies",
        "--kill",
        "--yes",
        "--inherited",
        "--json",
    ]
    done = subprocess.run(
        [*command, "--leaked"] if leaked else command,
        check=False, capture_output=True, text=True, timeout=120,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
    )  # fmt: skip
    ended = time.time()
    audit = state / "raydoctor" / "audit.jsonl"
    lines = audit.read_text().splitlines() if audit.exists() else []
    rows = json.loads(done.stdout)["leftovers"] if done.stdout else []
    grace = GRACE if any(row["action"] == "kill" for row in rows) else 0.0
    return {
        "code": done.returncode,
        "said": done.stderr[-500:],
        "planned": sum(row["kind"] not in ("defunct", "idle-holder") for row in rows),
        "defunct": sum(row["kind"] == "defunct" for row in rows),
        "seconds": round(ended - json.loads(lines[0])["at"] - grace, 2) if lines else 0.0,
    }


# ------------------------------------------------------------------ outside

_INIT = 'ip link set lo up; mount -t tmpfs tmpfs /dev/shm; "$@"; code=$?; exit $code'
_NO_INIT = 'ip link set lo up; mount -t tmpfs tmpfs /dev/shm; exec "$@"'
"""The program itself is PID 1, and reaps no children: as in a container without an init."""


def run(event: str, python: str, settings: list[str]) -> dict[str, Any]:
    """One event; once more where Ray did not start, as on a busy machine."""
    reply = _run(event, python, settings)
    return _run(event, python, settings) if "failed" in reply else reply


def _run(event: str, python: str, settings: list[str]) -> dict[str, Any]:
    """One event in namespaces of its own."""
    folder = Path(tempfile.mkdtemp(prefix="sv-", dir="/tmp"))  # Ray's sockets need short paths
    script = _NO_INIT if event == "raylet-unreaped" else _INIT
    command = [
        *("unshare", "-p", "-n", "-m", "-f", "--mount-proc", "--kill-child", "bash", "-c", script, "x"),
        *(sys.executable, __file__, event, "--python", python, "--inside", str(folder)),
    ]  # fmt: skip
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment = {**kept, **dict(each.split("=", 1) for each in settings)}
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=600, env=environment
        )
        if done.returncode:
            return {"event": event, "failed": done.stderr[-1500:]}
        reply: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return reply
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def verdict(row: dict[str, Any]) -> str:
    """Empty where it is as it should be."""
    if "failed" in row:
        return f"FAILED {row['failed'].strip().splitlines()[-1:]}"
    missed = [name for name in row["left"] if name != SCRUBBED]
    reply = [f"MISSED {', '.join(missed)}"] if missed else []
    reply += [f"HURT {', '.join(row['hurt'])}"] if row["hurt"] else []
    reply += ["SLOW"] if row["seconds"] > TARGET else []
    reply += [] if len(row["started"]) == len(KINDS) else ["NOT STARTED"]
    return " ".join(reply)


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = ["| event | survivors | left | seconds | |", "|---|---|---|---|---|"]
    for row in rows:
        alive = row.get("survivors", [])
        named_ = "all 8" if len(alive) == len(KINDS) else ", ".join(alive) or "none"
        left = ", ".join(row.get("left", [])) or "none"
        lines.append(
            f"| {row['event']} | {named_} | {left} | {row.get('seconds', 0):.1f} | {verdict(row)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("events", nargs="*", metavar="EVENT", help=f"of {', '.join(EVENTS)}")
    parser.add_argument("--python", default=sys.executable, help="whose Ray it is")
    parser.add_argument("--set", action="append", default=[], metavar="RAY_…=…", dest="settings")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(inside(options.events[0], options.python, options.inside)), flush=True)
        os._exit(0)  # as PID 1: what is left ends with us
    if unknown := set(options.events) - set(EVENTS):
        parser.error(f"no such event: {', '.join(unknown)}")
    rows = []
    for event in options.events or EVENTS:
        rows.append(run(event, options.python, options.settings))
        print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    return int(any(map(verdict, rows)))


if __name__ == "__main__":
    sys.exit(main())
