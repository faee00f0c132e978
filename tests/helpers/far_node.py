"""A node with processes, shared memory and files of its own, that joins a real cluster: another machine to Ray.

As a container with the host's network is: in a pid namespace and a mount namespace of its own. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from tests.helpers.real_ray import (
    IDLE_DAEMONS,
    RETRIES,
    START_RAY,
    NotStartedError,
    RealRay,
    free_port,
)

MULTI_NODE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
"""Ray keeps a cluster on loopback to one node; drivers need this, too."""
_INIT = """
mount -t tmpfs tmpfs "$0" && mount -t tmpfs tmpfs /dev/shm && cd "$0" || exit 9
"$@"
code=$?
exit $code
"""
"""A shell as PID 1: it reaps what is given to it."""


def may_be_had() -> bool:
    """Whether this user and system have such namespaces."""
    if sys.platform != "linux" or os.geteuid():
        return False
    command = ["unshare", "-p", "-m", "-f", "--mount-proc", "--kill-child", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def join(ray: RealRay) -> subprocess.Popen[bytes]:
    """Start such a node; returns when it is up."""
    for _ in range(RETRIES):
        try:
            return _join(ray)
        except NotStartedError:
            ray.nodes.pop().kill()
    return _join(ray)


def _join(ray: RealRay) -> subprocess.Popen[bytes]:
    number = len(ray.nodes)
    command = [
        *("unshare", "-p", "-m", "-f", "--mount-proc", "--kill-child", "bash", "-c", _INIT),
        *(str(ray.folder), sys.executable, START_RAY, "start", "--block"),
        *(f"--address={ray.address}", "--disable-usage-stats", "--num-cpus=1"),
        *(f"--dashboard-agent-listen-port={free_port()}", "--object-store-memory=80000000"),
        "--resources={\"far\": 1000}",
    ]  # fmt: skip
    with (ray.folder / f"start-{number}.txt").open("wb") as said:
        node = subprocess.Popen(
            command, env={**ray.environment, "WITHOUT": f"{IDLE_DAEMONS} agents"}, stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT, start_new_session=True, cwd=ray.folder,
        )  # fmt: skip
    ray.nodes.append(node)
    ray._wait_for(node, number)
    return node


def raylet(node: subprocess.Popen[bytes]) -> psutil.Process:
    """A node's raylet, as this machine sees it."""
    below = psutil.Process(node.pid).children(recursive=True)
    (found,) = [process for process in below if process.name() == "raylet"]
    return found
