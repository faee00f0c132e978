"""The host of a live cluster: kernel log, memory and cgroups, limits, disks, GPUs; and what rules make of them.

What needs root (a full tmpfs, a memory cgroup, another user) is skipped without it. NVIDIA's tool, a journal and a
dead network server cannot be had here and are played by scripts and a slow function.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.values import Gap
from raydoctor.observe.collector import child
from raydoctor.observe.collector.cluster import Cluster, Daemon
from raydoctor.observe.collector.run import run
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.machine import cgroups, disk_usage, disks, gpus, host, kernel
from raydoctor.observe.processes import proc
from raydoctor.read.clock import NodeClocks
from raydoctor.read.records import parse_line
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import PATIENCE, clock

LINUX = sys.platform.startswith("linux")
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
pytestmark = pytest.mark.skipif(not LINUX, reason="/proc")
needs_root = pytest.mark.skipif(not ROOT, reason="needs root")
SPILL = "spill-here"
LIMIT = 256 << 20


def tables(items: Iterable[Piece | Gap]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table; a gap fails the test."""
    found: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        assert isinstance(item, Piece), item
        reply = json.loads(item.data)
        found[reply["table"]] = reply["rows"]
    return found


def keep(items: Iterable[Piece | Gap], folder: Path) -> None:
    """As files of a capture."""
    for item in items:
        if isinstance(item, Piece):
            (folder / item.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / item.path).write_bytes(item.data)


def script(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of that name, the first on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


# ------------------------------------------------------------------ a real cluster


@pytest.fixture(scope="module")
def ray() -> Iterator[RealRay]:
    with real_ray({"RAY_local_fs_capacity_threshold": "0.97"}) as cluster:
        (cluster.folder / SPILL).mkdir()
        cluster.start(
            f"--object-spilling-directory={cluster.folder / SPILL}", dashboard=False, lean=True
        )
        yield cluster


def known(ray: RealRay) -> Cluster:
    found = [
        (name, process.pid) for name in ("gcs_server", "raylet") for process in ray.processes(name)
    ]
    reply = [(name, process) for name, pid in found if (process := proc.read(pid))]
    session = str(ray.session)
    daemons = tuple(
        Daemon(n, p.pid, p.started_at, p.state, session) for n, p in reply if p.name == n
    )
    return Cluster(session_dir=session, daemons=daemons)


@pytest.mark.ray
def test_limits_are_those_of_the_processes(ray: RealRay) -> None:
    cluster = known(ray)
    limits = tables(host.tables(cluster))["limits"]
    assert {row["kind"] for row in limits} == {"gcs_server", "raylet", "worker"}
    raylet = next(row for row in limits if row["kind"] == "raylet")
    pid = cluster.of("raylet")[0].pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert (raylet["pid"], raylet["open_files_soft"], raylet["open_files_hard"]) == (
        pid,
        soft,
        hard,
    )
    assert raylet["processes_soft"] == resource.prlimit(pid, resource.RLIMIT_NPROC)[0]
    assert 10 < raylet["open_files_used"] < soft


@pytest.mark.ray
def test_memory_names_the_cgroup_of_the_raylet(ray: RealRay) -> None:
    cluster = known(ray)
    memory = tables(host.tables(cluster))["memory"]
    machine = memory[0]
    assert machine["kind"] == "host"
    assert machine["limit"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < machine["available"] < machine["limit"] == machine["used"] + machine["available"]
    found = cgroups.of_process(cluster.of("raylet")[0].pid)
    if found is not None:  # there is none in the root of version 2
        own = next(row for row in memory if row["path"] == found.folder)
        assert {d.pid for d in cluster.daemons} < set(own["pids"])
        assert own["used"] > 50 << 20


@pytest.mark.ray
def test_disks_are_those_that_ray_looks_at(ray: RealRay) -> None:
    rows = tables(disks.tables(known(ray)))["disks"]
    spill = next(row for row in rows if row["use"] == "spill")
    assert spill["path"] == str(ray.folder / SPILL)
    assert spill["threshold"] == 0.97
    reply = os.statvfs(ray.folder)
    assert spill["capacity"] == reply.f_blocks * reply.f_frsize
    assert spill["used_fraction"] == pytest.approx(1 - reply.f_bavail / reply.f_blocks, abs=0.02)
    assert os.path.ismount(spill["mount"])
    assert {row["use"] for row in rows} == {"spill", "session", "tmp", "shm"}
    store = next(row for row in rows if row["use"] == "shm")
    assert (store["path"], store["store_bytes"]) == ("/dev/shm", 100_000_000)


@pytest.mark.ray
def test_a_healthy_cluster_on_a_machine_with_a_past_is_silent(ray: RealRay, tmp_path: Path) -> None:
    """The kernel log of this machine may hold any number of kills: of other clusters, of other days."""
    cluster = known(ray)
    shutil.copytree(ray.session / "logs", tmp_path / "logs")
    began = clock()
    fast = [*kernel.tables(cluster), *host.tables(cluster), *disks.tables(cluster)]
    took = clock() - began
    keep([*fast, *disk_usage.tables(cluster), *gpus.tables(cluster)], tmp_path)
    rows = json.loads((tmp_path / "live/live-disks.json").read_text())["rows"]
    is_full = any(row["used_fraction"] >= 0.9 for row in rows)
    report = engine.run(open_capture(tmp_path), strict=True)
    assert {d.rule for d in report.diagnoses} <= ({"disk-full"} if is_full else set())
    assert took < 1  # 40 ms on an idle machine


# ------------------------------------------------------------------ the kernel log


def lines(items: Iterable[Piece | Gap]) -> list[str]:
    piece = next(iter(items))
    assert isinstance(piece, Piece), piece
    assert piece.path == "live/dmesg.txt"
    return piece.data.decode().splitlines()


def is_restricted() -> bool:
    path = Path("/proc/sys/kernel/dmesg_restrict")
    return path.exists() and path.read_text().strip() == "1"


@pytest.mark.skipif(not ROOT and is_restricted(), reason="the kernel log may not be read")
def test_every_line_of_the_kernel_log_has_its_time() -> None:
    found = lines(kernel.tables(Cluster()))
    boot = time.time() - time.monotonic()
    times = [NodeClocks().kernel(parse_line(line, "kernel").fields, "") for line in found]
    assert times
    assert all(at is not None and boot - 2 <= at <= time.time() for at in times)
    assert lines(kernel.tables(Cluster(), since=time.time() + 60)) == []
    middle = times[len(times) // 2]
    assert 0 < len(lines(kernel.tables(Cluster(), since=middle))) < len(found)
    if shutil.which("dmesg"):
        by_dmesg = kernel._from_dmesg(None)
        assert (
            by_dmesg[-1].partition(" kernel: ")[2].strip()
            == found[-1].partition(" kernel: ")[2].strip()
        )


@needs_root
def test_without_permission_the_gap_says_what_is_missing() -> None:
    program = (
        "import os\n"
        "from raydoctor.observe.machine import kernel; from raydoctor.observe.collector import child\n"
        "from raydoctor.observe.collector.cluster import Cluster\n"
        "import subprocess\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print([*kernel.tables(Cluster())])\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    if is_restricted():
        assert "Gap(what='kernel log'" in said.stdout
        assert "/dev/kmsg (Operation not permitted)" in said.stdout
        assert "kernel.dmesg_restrict" in said.stdout
        assert "optional=True" in said.stdout
    else:
        assert "Piece(path='live/dmesg.txt'" in said.stdout


def test_only_the_kernels_own_words_count() -> None:
    """Any process with the right may write `Killed process` to the log; its facility shows that."""
    words = "Out of memory: Killed process 379 (ray::train)"
    device = [f"4,812,5000000,-;{words}\n SUBSYSTEM=mem\n", f"12,813,6000000,-;{words}\n"]
    reply = [*kernel._device_records(device)]
    assert [record.text for record in reply] == [words]
    assert reply[0].at == pytest.approx(time.time() - time.monotonic() + 5, abs=1)
    assert [r.text for r in kernel._device_records([r"4,814,7000000,-;a\x0ab\x5cc"])] == [
        "a",
        r"b\c",
    ]
    raw = [*kernel._raw_records(f"<4>[    5.000000] {words}\n<12>[    6.000000] {words}\n")]
    assert [record.text for record in raw] == [words]


def test_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "2026-11-21T07:43:56.123456+0000 ray-node kernel: Out of memory: Killed process 379 (python)"
    script(
        tmp_path,
        "journalctl",
        f'case "$*" in *--since=@17*) ;; *) echo "{line}";; esac',
        monkeypatch,
    )
    assert kernel._from_journal(None) == [f"{line}\n"]
    assert kernel._from_journal(1795246000.0) == []  # nothing since then: but it may be read
    script(tmp_path, "journalctl", "exit 0", monkeypatch)
    with pytest.raises(OSError, match="shows nothing"):
        kernel._from_journal(1795246000.0)
    script(tmp_path, "journalctl", "echo No journal files were opened >&2; exit 1", monkeypatch)
    with pytest.raises(OSError, match="No journal files"):
        kernel._from_journal(None)


def test_a_child_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "hangs", "exec sleep 60", monkeypatch)
    began = clock()
    assert child.output(["hangs"], 0.2).problem == "did not answer within 0.2 s"
    assert clock() - began < 2
    assert child.output(["no-such-program-here"], 1).problem == "No such file or directory"


def test_the_log_is_cut_at_its_beginning() -> None:
    long = [f"{number:06d} {'x' * 1000}\n" for number in range(3000)]
    kept = kernel._last(long).splitlines()
    assert kept[-1].startswith("002999")
    assert kernel.MOST - 1100 < sum(len(line) + 1 for line in kept) <= kernel.MOST


# ------------------------------------------------------------------ cgroups


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 256 MB, beside this process's own."""
    own = cgroups.of_process("self")
    if own is None:
        pytest.skip("no memory cgroup")
    folder = Path(own.folder, f"raydoctor-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("no right to make a cgroup")
    limit = folder / ("memory.limit_in_bytes" if own.version == 1 else "memory.max")
    try:
        if not limit.exists():
            pytest.skip("the memory controller is not handed on")
        limit.write_text(str(LIMIT))
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Move its processes one up; remove it as soon as the last is gone."""
    deadline = time.monotonic() + PATIENCE
    while folder.exists() and time.monotonic() < deadline:
        try:
            for pid in (folder / "cgroup.procs").read_text().split():
                (folder.parent / "cgroup.procs").write_text(pid)
            folder.rmdir()
        except OSError:
            time.sleep(0.05)


_HOG = "import time\nopen('/proc/self/comm', 'w').write('ray::hog')\ntime.sleep(0.2)\nx = b'x' * (600 << 20)\n"


def inside(folder: Path, program: str) -> subprocess.Popen[bytes]:
    enter = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')\n"
    return subprocess.Popen([sys.executable, "-c", enter + program], stderr=subprocess.DEVNULL)


@needs_root
def test_a_kill_of_the_kernels_is_seen_in_both_places(small_cgroup: Path) -> None:
    began = time.time() - 1
    stays = inside(small_cgroup, "import time\ntime.sleep(60)")
    hog = inside(small_cgroup, _HOG)
    assert hog.wait(timeout=PATIENCE) == -9
    try:
        daemon = Daemon("raylet", stays.pid, time.time(), "S")
        memory = tables(host.tables(Cluster(daemons=(daemon,))))["memory"]
        row = next(row for row in memory if row["path"] == str(small_cgroup))
        assert row["limit"] == LIMIT
        assert row["pids"] == [stays.pid]
        assert row["events"]["oom_kill"] == 1
        assert row["events"]["max"] > 0
        assert 0 < row["used"] <= LIMIT
        assert row["used"] + row["available"] == row["limit"]
        log = "\n".join(lines(kernel.tables(Cluster(), since=began)))
        # The log has the pid of the outermost namespace.
        assert re.search(r"Memory cgroup out of memory: Killed process \d+ \(ray::hog\)", log)
    finally:
        stays.kill()
        stays.wait()


_HUNGRY = """
import ray
ray.init(log_to_driver=False)
@ray.remote(max_retries=0)
def hungry():
    open(PROCS, "w").write("0")
    return len(b"x" * (600 << 20))
try:
    ray.get(hungry.remote())
except ray.exceptions.WorkerCrashedError as error:
    print("crashed", flush=True)
"""


@needs_root
@pytest.mark.ray
def test_the_kernel_kills_a_worker_with_and_without_its_log(
    ray: RealRay, small_cgroup: Path, tmp_path: Path
) -> None:
    procs = small_cgroup / "cgroup.procs"
    began = time.time() - 1
    procs.write_text(str(known(ray).of("raylet")[0].pid))
    ray.run(_HUNGRY.replace("PROCS", repr(str(procs))))
    ray.wait_for("crashed")
    cluster = known(ray)
    time.sleep(0.3)  # until the GCS has written of it
    shutil.copytree(ray.session / "logs", tmp_path / "logs")
    keep(host.tables(cluster), tmp_path)
    (without,) = engine.run(open_capture(tmp_path), strict=True).roots
    assert without.rule == "cgroup-oom-kill"
    assert "most likely killed hungry" in without.headline
    assert "(limit 256 MiB) counts 1 process" in without.headline
    keep(kernel.tables(cluster, began), tmp_path)
    (known_by_log,) = engine.run(open_capture(tmp_path), strict=True).roots
    assert known_by_log.rule == "kernel-oom-kill"
    assert "killed hungry() (pid " in known_by_log.headline
    assert "its cgroup's limit is 256 MiB" in known_by_log.headline


def test_version_2(tmp_path: Path) -> None:
    """The unified hierarchy has no memory controller here: its files, as Linux 6.18 writes them."""
    pod = tmp_path / "kubepods" / "pod1"
    pod.mkdir(parents=True)
    (pod / "memory.current").write_text("3000000000\n")
    (pod / "memory.max").write_text("max\n")
    (pod / "memory.stat").write_text("anon 2000000000\ninactive_file 900000000\nactive_file 1\n")
    (pod / "memory.swap.current").write_text("4096\n")
    (pod / "memory.events").write_text(
        "low 0\nhigh 1\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
    )
    (pod.parent / "memory.max").write_text("3221225472\n")
    own = cgroups.Cgroup(str(pod), 2, str(tmp_path))
    reply = cgroups.usage(own)
    assert reply == cgroups.Usage(
        None, 2_100_000_000, 4096, {"high": 1, "max": 12, "oom": 3, "oom_kill": 2}
    )
    assert [c.folder for c in cgroups.above(own)] == [str(pod.parent), str(tmp_path)]
    assert cgroups.usage(cgroups.Cgroup(str(pod.parent), 2, "")).limit == 3 << 30


@pytest.mark.parametrize(
    ("root", "path", "folder"),
    [
        ("/", "/pod1/c1", "/m/pod1/c1"),
        ("/", "/", "/m"),
        ("/docker/c1", "/docker/c1", "/m"),
        ("/docker/c1", "/docker/c1/ray", "/m/ray"),
        ("/docker/c1", "/ray", "/m/ray"),  # relative to a cgroup namespace
        ("/", "/../other", ""),
    ],
)
def test_where_a_cgroup_is_mounted(root: str, path: str, folder: str) -> None:
    assert cgroups._below(cgroups._Mount("/m", root, 2), path) == folder


# ------------------------------------------------------------------ disks

_FILL = """
import subprocess, sys
from pathlib import Path
place, out = map(Path, sys.argv[1:])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", str(place)], check=True)
session = place / "session_2026-11-21_08-00-00_000000_9"
old = place / "session_2026-11-20_08-00-00_000000_8"
for name, size in ((session / "logs/raylet.out", 1), (session / "ray_spilled_objects_abc/file", 20), (old / "logs/x", 27)):
    name.parent.mkdir(parents=True)
    name.write_bytes(b"x" * (size << 20))
(place / "session_latest").symlink_to(session)
from raydoctor.observe.machine import disk_usage, disks
from raydoctor.observe.collector.cluster import Cluster
cluster = Cluster(session_dir=str(session), node_ids=("ab" * 28,))
for piece in (*disks.tables(cluster), *disk_usage.tables(cluster)):
    (out / piece.path).parent.mkdir(parents=True, exist_ok=True)
    (out / piece.path).write_bytes(piece.data)
"""


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_disk_that_is_full_is_reported_before_anything_fails(tmp_path: Path) -> None:
    place, out = tmp_path / "ray", tmp_path / "capture"
    place.mkdir()
    command = ["unshare", "-m", sys.executable, "-c", _FILL, str(place), str(out)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if "permission denied" in said.stderr.lower():
        pytest.skip("no right to mount")
    assert said.returncode == 0, said.stderr
    (out / "logs").mkdir()
    (out / "logs/raylet.out").write_text("")
    (out / "logs/gcs_server.out").write_text("")
    (found,) = engine.run(open_capture(out), strict=True).diagnoses
    assert (found.rule, found.severity) == ("disk-full", "error")
    assert "96.0% full (2.0 MiB of 50.0 MiB free)" in found.headline
    assert "above Ray's threshold of 95%, with 27.0 MiB in 1 old session:" in found.headline
    assert [link.shows.partition(": ")[0].partition(" in ")[0] for link in found.chain[1:]] == [
        "1 old session",
        "spilled objects",
        "logs",
    ]
    assert [remedy.title for remedy in found.remedies][:2] == [
        f"Free 27.0 MiB: remove old sessions in {place} that no running Ray uses",
        "Keep fewer objects alive at once: 20.0 MiB of them are spilled there",
    ]


def test_a_file_system_that_hangs_is_a_gap_and_the_others_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = tmp_path / "session_2026-11-21_08-00-00_000000_9"
    session.mkdir()
    real = os.statvfs

    def slow(path: str) -> os.statvfs_result:
        if path == str(session):
            time.sleep(1)
        return real(path)

    monkeypatch.setattr(os, "statvfs", slow)
    monkeypatch.setattr(disks, "_PATIENCE", 0.2)
    piece, gap = disks.tables(Cluster(session_dir=str(session)))
    assert isinstance(piece, Piece)
    assert {row["use"] for row in json.loads(piece.data)["rows"]} == {"tmp", "shm"}
    assert isinstance(gap, Gap)
    assert gap.what == f"disk of {session}"
    assert "did not answer within 0.2 s" in gap.why


def test_the_walk_counts_what_files_take_and_is_honest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = tmp_path / "session_2026-11-21_08-00-00_000000_9"
    logs = session / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_bytes(b"x" * (1 << 20))
    os.link(logs / "raylet.out", logs / "again.out")
    with (logs / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    (logs / "loop").symlink_to(tmp_path)
    row = next(
        r
        for r in tables(disk_usage.tables(Cluster(session_dir=str(session))))["disk-usage"]
        if r["what"] == "logs"
    )
    assert 1 << 20 <= row["bytes"] < 2 << 20
    assert row["truncated"] is False
    assert row["largest"] in (f"{logs}/raylet.out", f"{logs}/again.out"), "not the sparse one"
    assert row["largest_bytes"] == 1 << 20
    monkeypatch.setattr(disk_usage, "SECONDS", 0.0)
    row = next(
        r
        for r in tables(disk_usage.tables(Cluster(session_dir=str(session))))["disk-usage"]
        if r["what"] == "logs"
    )
    assert row["truncated"] is True


def test_the_disks_are_two_collectors() -> None:
    found = run(disks.collectors(Cluster()), timeout=5)
    assert not found.gaps
    assert "live/live-disks.json" in found.pieces


# ------------------------------------------------------------------ GPUs

_SMI = f"""
case "$1" in
--query-gpu=*) echo '0, GPU-aa, NVIDIA A100-SXM4-80GB, 81920, 79000, 97'; echo '1, GPU-bb, NVIDIA A100-SXM4-80GB, 81920, 0, [N/A]';;
--query-compute-apps=*) echo '{os.getpid()}, GPU-aa, 70000, {sys.executable}'; echo '999999999, GPU-aa, [N/A], ray::train, rank 3';;
esac
"""


def test_gpus_and_who_holds_their_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "nvidia-smi", _SMI, monkeypatch)
    found = tables(gpus.tables(Cluster()))
    first, second = found["gpus"]
    assert (first["index"], first["name"]) == (0, "NVIDIA A100-SXM4-80GB")
    assert (first["memory_total"], first["memory_used"], first["utilization"]) == (
        80 << 30,
        79000 << 20,
        97,
    )
    assert second["utilization"] is None
    here, host_pid = found["gpu-processes"]
    assert (here["pid"], here["gpu"], here["memory"]) == (os.getpid(), 0, 70000 << 20)
    assert here["title"] == " ".join(proc.command(os.getpid()))[:200]
    assert (host_pid["memory"], host_pid["title"]) == (None, "ray::train, rank 3")


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU")
def test_without_a_gpu_there_is_nothing_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*gpus.tables(Cluster())] == []
    script(tmp_path, "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9", monkeypatch)
    assert [*gpus.tables(Cluster())] == []
