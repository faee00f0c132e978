"""What workers start is noted by who looks, and nothing else is: with processes that look like Ray's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydoctor.act import private
from raydoctor.act.tracking import family
from raydoctor.act.tracking import registry as _registry
from raydoctor.act.tracking.lineage import ClusterLineage
from raydoctor.act.tracking.registry import StartedProcess
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.processes import proc
from tests.helpers.waiting import until

pytestmark = pytest.mark.skipif(not proc.LINUX, reason="/proc")

RAYLET = """
(exec 1>>{logs}/worker-{w}-ffffffff-$BASHPID.out; echo :job_id:02000000
 exec {bin}/ray::train -c '{worker}') &
{bin}/python -c '{hold} # default_worker.py' &
{hold}
"""
WORKER = """
{bin}/sh1 -c "{hold} # plain" &
(exec 7>>{logs}/python-core-driver-03000000ff_$BASHPID.log
 exec {bin}/sh2 -c "{bin}/sh3 -c \\"{hold} # of a driver\\" & {hold} # driver") &
{bin}/sh4 -c "{hold} # /raydoctor/act/tracking/programs/reaper.py" "" /raydoctor/act/tracking/programs/reaper.py &
{hold} # worker
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry of this test's own."""
    monkeypatch.setattr(private, "places", lambda user: ((str(tmp_path), "registry"),))
    return tmp_path / "registry"


@pytest.fixture
def raylet(tmp_path: Path) -> Iterator[int]:
    """Something like a raylet with a busy worker, by its pid."""
    bin_, logs = tmp_path / "bin", tmp_path / "session_2026-11-21_10-00-00_000000_1" / "logs"
    for folder in (bin_, logs):
        folder.mkdir(parents=True)
    for name in ("raylet", "ray::train", "python", "sh1", "sh2", "sh3", "sh4"):
        (bin_ / name).symlink_to("/bin/bash")
    (bin_ / "raylet").unlink()
    shutil.copy2("/bin/bash", bin_ / "raylet")  # the kernel names the file that a daemon runs
    os.mkfifo(tmp_path / "fifo")
    hold = f"exec 8<>{tmp_path}/fifo; read -u 8"
    worker = WORKER.format(bin=bin_, logs=logs, hold=hold)
    script = RAYLET.format(bin=bin_, logs=logs, w="ab" * 28, hold=hold, worker=worker)
    started = subprocess.Popen(
        [str(bin_ / "raylet"), "-c", script, f"--session_dir={logs.parent}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until(lambda: set(below(started.pid)) == {"ray::train", "python", "sh1", "sh2", "sh3", "sh4"})
    yield started.pid
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def below(pid: int) -> dict[str, int]:
    """Name -> pid of what descends from a process."""
    table = proc.table()
    found, waiting = {}, [pid]
    while waiting:
        parent = waiting.pop()
        for each in table.values():
            if each.ppid == parent:
                found[each.name] = each.pid
                waiting.append(each.pid)
    return found


def seen() -> set[int]:
    """Pids in the registry."""
    tasks = (task for known in _registry.known_workers() for task in known.tasks.values())
    return {each.pid for task in tasks for each in task.processes.values()}


def test_what_is_below_a_worker_is_noted_and_what_is_a_driver_s_is_not(
    raylet: int, registry: Path, tmp_path: Path
) -> None:
    names = below(raylet)
    other = ClusterLineage(Cluster(session_dir="/t/session_2026-11-21_10-00-00_000000_2"))
    other.sample(proc.table())
    assert not seen(), "the raylet is another cluster's"
    memory = ClusterLineage(Cluster(session_dir=str(next(tmp_path.glob("session_*")))))
    memory.sample(proc.table())
    assert seen() == {names["sh1"], names["sh2"]}
    assert memory.is_awaited(["02000000"])
    assert not memory.is_awaited(["01000000"])
    assert memory.left(["02000000"]) == [], "its worker lives"
    (file,) = registry.iterdir()
    before = file.read_text()
    memory.sample(proc.table())
    assert file.read_text() == before


def test_it_is_known_until_it_is_gone(raylet: int, registry: Path, tmp_path: Path) -> None:
    names = below(raylet)
    cluster = Cluster(session_dir=str(next(tmp_path.glob("session_*"))))
    ClusterLineage(cluster).sample(proc.table())
    later = ClusterLineage(
        cluster
    )  # of another program, that finds what the first had written down
    later.sample(proc.table())
    os.kill(names["ray::train"], signal.SIGKILL)
    until(lambda: below(raylet).get("ray::train") is None or is_defunct(names["ray::train"]))
    left = {each.pid for each in later.left(["02000000"])}
    assert names["sh1"] in left
    assert not left & {names["sh2"], names["sh3"]}, "a driver lives, and is its own"
    for name in ("sh1", "sh2"):
        os.kill(names[name], signal.SIGKILL)
    until(lambda: not any(alive(names[name]) for name in ("sh1", "sh2")))
    later.sample(proc.table())
    assert list(registry.iterdir()) == []


def is_defunct(pid: int) -> bool:
    found = proc.read(pid)
    return found is None or found.state == "Z"


def alive(pid: int) -> bool:
    return not is_defunct(pid)


def test_old_files_of_which_nothing_lives_are_removed(registry: Path) -> None:
    me = proc.table()[os.getpid()]
    for worker in (
        StartedProcess(me.pid, me.started_at),
        StartedProcess(me.pid, 1.0),
        StartedProcess(me.pid, 2.0),
    ):
        _registry.append(_registry.path_of(worker, is_tracked=False), ["begin 0 - 0"], create=True)
    for path in registry.iterdir():
        if f"-{proc.since_boot(2.0):.2f}-" not in path.name:
            os.utime(path, (1.0, time.time() - 4000))
    family.forget_old()
    kept = sorted(known.worker.started_at for known in _registry.known_workers())
    assert kept == pytest.approx([2.0, me.started_at])
