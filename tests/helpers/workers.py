"""How the suite is spread over processes: as many as profit, and each on a machine of its own.

Most tests wait for other processes, so that more workers than cores are busy. Some tests look at every process,
port or session of the machine. Root can give each worker namespaces of its own, in which these are its own; for
other users, all tests that start processes run in one worker.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.helpers import ROOT

A_CORE = 2
"""Workers for each core."""
A_WORKER = 3 << 30
"""Memory for each worker, in bytes: a Ray cluster with some workers holds 1 to 2 GiB."""
INSIDE = ("unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child")


def count() -> int:
    """Workers for a run of the whole suite on this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(A_CORE * cores, memory // A_WORKER))


def share_before() -> float:
    """How many of the workers come before this one, as a part of all."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return number / int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@cache
def are_isolated() -> bool:
    """Whether this user and system have the namespaces."""
    if sys.platform != "linux" or os.geteuid():
        return False
    try:
        own_machine = [*_own_machine([]), "true"]
        return subprocess.run(own_machine, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def interpreter(temporary: Path) -> str:
    """The command line of a worker's Python, which keeps the tests' temporary folder."""
    kept = (Path(sys.prefix), Path(sys.base_prefix), ROOT, Path.cwd(), temporary)
    return shlex.join([*_own_machine(list(dict.fromkeys(kept))), sys.executable])


def _own_machine(kept: list[Path]) -> list[str]:
    below = [str(path) for path in kept if {Path("/tmp"), Path("/dev/shm")} & {*path.parents}]
    return [*INSIDE, str(ROOT / "tests/helpers/own_machine.sh"), *below, "--"]
