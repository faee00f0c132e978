"""A real Ray for tests: a head (and more nodes) on loopback, in a folder of its own, ended by pid.

Nothing here stops a Ray that it did not start: what it ends are processes that it knows by pid and creation
time, because they descend from what it started, or because they name its folder on their command line or
hold its files open.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.helpers.waiting import PATIENCE, limit

RETRIES = 3
"""Another process may take a port between our look and Ray's; and Ray gives a busy machine 30 s to start a node."""
START_RAY = str(Path(__file__).with_name("start_ray.py"))
"""To be run in place of `-m ray.scripts.scripts` where a node starts lean."""
IDLE_DAEMONS = "monitor log_monitor ray_client_server"
"""Daemons that a lean node goes without."""
UNUSED = {
    "pydantic": "raise ImportError",
    "starlette": "raise ImportError",
    "requests": "",
    "jsonschema": "",
    "yaml": "",
    "filelock": "FileLock = None",
}
"""What every worker and driver imports and uses nothing of: half of the processor time of its start.

Ray goes without the first two where they are not installed. The others are empty modules.
"""
REMEMBER_EVERY = 2.0
"""Seconds between two looks for processes that belong to the cluster."""


def free_port() -> int:
    """A port of loopback that no process uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def has_started(printed: str) -> bool:
    """Whether the Ray of a program did; it gives a busy machine 30 s."""
    late = ("did not report its port in time", "timed out during startup")
    return not any(words in printed for words in late)


class NotStartedError(AssertionError):
    """A node did not come up."""


@contextmanager
def turn_to_start() -> Iterator[None]:
    """Wait until no other worker of the suite starts a node: of four at once, some take longer than Ray's 30 s."""
    with Path(__file__).open() as lock:  # reachable in every worker's namespaces
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(slots=True)
class RealRay:
    """A cluster of this test's own."""

    folder: Path
    environment: dict[str, str]
    port: int = 0
    dashboard_port: int = 0
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _path: str = ""
    """PYTHONPATH of drivers, and of workers of lean nodes."""
    _remembered: float = 0.0
    _seen: dict[tuple[int, float], psutil.Process] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The GCS's."""
        return f"127.0.0.1:{self.port}"

    @property
    def dashboard(self) -> str:
        """The dashboard's."""
        return f"127.0.0.1:{self.dashboard_port}"

    @property
    def session(self) -> Path:
        """Its session's folder."""
        return sorted(self.folder.glob("session_2*"))[-1]

    def start(
        self,
        *options: str,
        cpus: int = 2,
        env: Mapping[str, str] | None = None,
        dashboard: bool = True,
        lean: bool = False,
        agents: bool = False,
        runtime_envs: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a node: the first is the head, others join it. Returns when it is up.

        A lean node has no daemons but those that run tasks; the dashboard and its agents if asked for, or the agents
        alone, or the one that runtime environments need. It takes a sixth of the processor time to start, for tests that do
        not look at daemons. Its workers and drivers do not import what is `UNUSED`.
        """
        without = IDLE_DAEMONS if lean else ""
        if lean:
            self._go_without_unused()
        if lean and not dashboard:
            without += " api_server"
            without += "" if agents else " dashboard_agent" if runtime_envs else " agents"
        for _ in range(RETRIES):
            try:
                with turn_to_start():
                    return self._start(options, cpus, env, dashboard, without)
            except NotStartedError:
                if len(self.nodes) == 1:
                    self._end_all()
                    self.nodes.clear()
                else:
                    self.nodes.pop().kill()
        with turn_to_start():
            return self._start(options, cpus, env, dashboard, without)

    def _go_without_unused(self) -> None:
        absent = self.folder / "absent"
        absent.mkdir(exist_ok=True)
        for name, text in UNUSED.items():
            (absent / f"{name}.py").write_text(text)
        self._path = os.pathsep.join(
            filter(None, (str(absent), self.environment.get("PYTHONPATH")))
        )
        python = absent / "python"
        python.write_text(f"#!/bin/sh\nPYTHONPATH='{self._path}' exec '{sys.executable}' \"$@\"\n")
        python.chmod(0o755)

    def _start(
        self,
        options: Sequence[str],
        cpus: int,
        env: Mapping[str, str] | None,
        dashboard: bool,
        without: str,
    ) -> subprocess.Popen[bytes]:
        is_head = not self.nodes
        if is_head:
            self.port, self.dashboard_port = free_port(), free_port()
        where = (
            ["--head", f"--port={self.port}", f"--temp-dir={self.folder}", "--dashboard-host=127.0.0.1",
             f"--dashboard-port={self.dashboard_port}", f"--include-dashboard={str(dashboard).lower()}",
             f"--ray-client-server-port={free_port()}"]
            if is_head
            else [f"--address={self.address}"]
        )  # fmt: skip
        log = (self.folder / f"start-{len(self.nodes)}.txt").open("wb")
        program = (START_RAY,) if without else ("-m", "ray.scripts.scripts")
        lean = self._lean(without) if without else {}
        command = [
            *(sys.executable, *program, "start", *where, "--block", "--disable-usage-stats"),
            f"--dashboard-agent-listen-port={free_port()}",
            *("--node-ip-address=127.0.0.1", f"--num-cpus={cpus}", "--object-store-memory=100000000"),
            *options,
        ]  # fmt: skip
        node = subprocess.Popen(
            command, env={**self.environment, **(env or {}), **lean}, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder,
        )  # fmt: skip
        log.close()
        self.nodes.append(node)
        self._wait_for(node, len(self.nodes) - 1)
        return node

    def _lean(self, without: str) -> dict[str, str]:
        """Variables of the program that starts a node.

        Where a package is missing, Ray starts no dashboard, and agents without most of their parts.
        """
        own = self.environment.get("PYTHONPATH", "")
        path = self._path if "agent" in without else own
        worker = f"{self.folder}/absent/python"
        return {"WITHOUT": without, "WORKER": worker, "PYTHONPATH": path, "DAEMONS_PYTHONPATH": own}

    def _wait_for(self, node: subprocess.Popen[bytes], number: int) -> None:
        said = self.folder / f"start-{number}.txt"
        is_late = limit(PATIENCE)
        while not is_late():
            if "Ray runtime started" in said.read_text(errors="replace"):
                self.remember()
                return
            if node.poll() is not None:
                break
            self._remember_now_and_then()
            time.sleep(0.05)
        raise NotStartedError(f"Ray did not start:\n{said.read_text(errors='replace')[-3000:]}")

    def run(
        self, program: str, *arguments: str, env: Mapping[str, str] | None = None, log: str = ""
    ) -> subprocess.Popen[bytes]:
        """Start a driver of this program text; `log` names a file in the folder for its output."""
        out = (self.folder / (log or f"driver-{len(self.drivers)}.txt")).open("wb")
        path = {"PYTHONPATH": self._path} if self._path else {}
        driver = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env={**self.environment, **path, "RAY_ADDRESS": self.address, **(env or {})},
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder,
        )  # fmt: skip
        out.close()
        self.drivers.append(driver)
        return driver

    def wait_for(self, words: str, log: str = "driver-0.txt", seconds: float = PATIENCE) -> None:
        """Wait until a driver has printed this."""
        is_late, said = limit(seconds), ""
        while not is_late():
            said = (self.folder / log).read_text(errors="replace")
            if words in said:
                self.remember()
                return
            self._remember_now_and_then()
            time.sleep(0.05)
        raise AssertionError(f"{words!r} is not in {log}:\n{said[-3000:]}")

    def processes(self, name: str) -> list[psutil.Process]:
        """This cluster's processes of that name (`raylet`, `gcs_server`, `ray::work`), or with it in their command."""
        self.remember()
        found = []
        for process in self._alive():
            with suppress(psutil.Error):
                command = " ".join(process.cmdline())
                if process.name() == name or command.startswith(name) or f"/{name}" in command:
                    found.append(process)
        return sorted(found, key=lambda p: p.create_time())

    def remember(self) -> None:
        """Note this cluster's processes while they can be distinguished from others."""
        for started in (*self.nodes, *self.drivers):
            with suppress(psutil.Error):
                process = psutil.Process(started.pid)
                for each in (process, *process.children(recursive=True)):
                    self._note(each)
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if any(
                    str(self.folder) in word for word in process.cmdline()
                ) or process.environ().get("RAYDOCTOR_TEST") == str(self.folder):
                    self._note(process)

    def _remember_now_and_then(self) -> None:
        """Every process of the machine is read for it, which would keep a core busy."""
        if time.monotonic() >= self._remembered + REMEMBER_EVERY:
            self.remember()
            self._remembered = time.monotonic()

    def _note(self, process: psutil.Process) -> None:
        with suppress(psutil.Error):
            if process.pid != os.getpid():
                self._seen.setdefault((process.pid, process.create_time()), process)

    def _alive(self) -> list[psutil.Process]:
        alive = []
        for process in self._seen.values():
            with suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        return alive

    def end(self) -> None:
        """End everything of it, by identity; again does no harm.

        A test that kills the GCS calls it: drivers and agents that have lost theirs keep the cores busy.
        """
        self._end_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_all(self) -> None:
        for _ in range(4):
            self.remember()
            alive = self._alive()
            for process in alive:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(alive, timeout=5)
            for started in (*self.nodes, *self.drivers):
                with suppress(subprocess.TimeoutExpired):
                    started.wait(timeout=5)
            if not alive:
                break


@contextmanager
def real_ray(env: Mapping[str, str] | None = None) -> Iterator[RealRay]:
    """A cluster that is gone at the end; nothing is started yet."""
    folder = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))  # Ray's sockets need short paths
    home = tempfile.mkdtemp(prefix="rh-", dir="/tmp")  # Ray opens its own folder to all users
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {
        **kept,
        "RAYDOCTOR_TEST": str(folder),
        "PYTHONUNBUFFERED": "1",
        "HOME": home,
        # Ray binds all interfaces otherwise, even with a node address of 127.0.0.1.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        **(env or {}),
    }
    ray = RealRay(folder, environment)
    try:
        yield ray
    finally:
        ray.end()
        shutil.rmtree(home, ignore_errors=True)


def head(ray: RealRay, options: Sequence[str] = (), **settings: object) -> RealRay:
    """The cluster with its head started."""
    ray.start(*options, **settings)  # type: ignore[arg-type]
    return ray
