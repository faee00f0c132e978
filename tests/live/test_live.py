"""A live cluster, whole or broken, as a user meets it: `raydoctor diagnose` and `collect` as commands.

Every situation must be reported in 15 seconds with the right root, what could not be had must be named, and
nothing may be left behind in the cluster.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import subprocess
import sysconfig
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from raydoctor.observe.processes import discover
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import PATIENCE, clock, until

pytestmark = pytest.mark.ray
RAYDOCTOR = str(Path(sysconfig.get_path("scripts")) / "raydoctor")
LONGEST = 15.0
_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, _CAP_SYSLOG = 24, 21, 34
"""linux/prctl.h, linux/capability.h"""

PASSWORD, KEY = "pass4711wörd-of-mine", "hf_" + "qRsTuVwXyZ" * 3 + "4711"
IDLE = f"""
# started with --hub-token {KEY}
import ray, time
ray.init(log_to_driver=False, runtime_env={{"env_vars": {{"DB_PASSWORD": "{PASSWORD}"}}}})
@ray.remote(num_cpus=0)
def quick(i): return i
ray.get([quick.remote(i) for i in range(20)])
print("ready", flush=True)
time.sleep(3600)
"""
BUSY = """
import ray, time
ray.init(log_to_driver=False)
@ray.remote
def simulate(i): time.sleep(10)  # one that sleeps for a minute is a finding of its own
waiting = [simulate.remote(i) for i in range(60)]
print("ready", flush=True)
time.sleep(3600)
"""
STARVED = """
import ray, time
ray.init(log_to_driver=False)
@ray.remote(num_cpus=1)
class Simulator:
    def ping(self): return 1
@ray.remote
def evaluate(): return 1
held = [Simulator.remote() for _ in range(2)]
ray.get([s.ping.remote() for s in held])
waiting = [evaluate.remote() for _ in range(3)]
print("ready", flush=True)
time.sleep(3600)
"""


class Reply(NamedTuple):
    """What a run of the command reported."""

    report: dict[str, Any]
    seconds: float
    code: int
    stderr: str

    @property
    def roots(self) -> list[str]:
        """Rules of the roots of warning and above."""
        below = {name for d in self.report["diagnoses"] for name in d["consequences"]}
        return [
            d["rule"]
            for d in self.report["diagnoses"]
            if d["id"] not in below and d["severity"] != "info"
        ]

    @property
    def gaps(self) -> str:
        """All gaps as one text."""
        return "\n".join(f"{g['what']}: {g['why']} ({g['hint']})" for g in self.report["gaps"])


def diagnose(ray: RealRay, *options: str, env: Mapping[str, str] | None = None) -> Reply:
    """`raydoctor diagnose` of this cluster."""
    began = clock()
    done = subprocess.run(
        [RAYDOCTOR, "diagnose", "--address", ray.address, "--format", "json", *options],
        # An address file of this machine's own is another story.
        env={**ray.environment, "RAY_TMPDIR": str(ray.folder / "none"), **(env or {})},
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    seconds = clock() - began
    assert done.returncode in (0, 1, 3), done.stderr
    return Reply(json.loads(done.stdout), seconds, done.returncode, done.stderr)


def hold(ray: RealRay) -> None:
    """Stop `ray start --block`, which would end the whole node where one daemon of it dies."""
    for node in ray.nodes:
        os.kill(node.pid, signal.SIGSTOP)


@pytest.fixture(scope="module")
def idle() -> Iterator[RealRay]:
    """A cluster in good health with a driver that does nothing; later tests load it, and end it piece by piece."""
    with real_ray() as ray:
        ray.start(lean=True)
        ray.run(IDLE)
        ray.wait_for("ready")
        time.sleep(1.5)  # task events are sent once a second
        yield ray


def test_good_health_is_silent_and_nothing_is_left_behind(idle: RealRay) -> None:
    before = {p.pid for p in idle.processes("")}
    files = {str(p) for p in idle.folder.rglob("*")}
    reply = diagnose(idle)
    time.sleep(0.5)
    assert reply.roots == []
    assert reply.code == 0, reply.gaps
    assert reply.seconds < LONGEST
    assert reply.report["capture"]["kind"] == "live"
    assert {p.pid for p in idle.processes("")} - before == set()
    after = {str(p) for p in idle.folder.rglob("*")} - files
    assert [p for p in after if "/logs/" not in p] == []


def test_live_and_captured_are_reported_alike(idle: RealRay, tmp_path: Path) -> None:
    from raydoctor.capture.open import open_capture
    from raydoctor.diagnosis.engine import run
    from raydoctor.observe import bundle, live

    found = live.collect(live.CollectOptions(address=idle.address))
    target = tmp_path / "x.tar.zst"
    with found.capture() as capture:
        now = run(capture)
        bundle.write(str(target), live.bundle_of(found, capture), found.redactor)
    with open_capture(str(target)) as capture:
        later = run(capture)
    assert _essence(now) == _essence(later)
    assert now.capture.files > 20


def _essence(report: Any) -> Any:
    shown = [(d.rule, d.severity, d.headline, d.count, d.consequences, [
        (link.event.source.path, link.event.line, link.event.text) for link in d.chain
    ], d.remedies) for d in report.diagnoses]  # fmt: skip
    return shown, report.unexplained, sorted(map(str, report.gaps)), report.capture.nodes


def test_collect_writes_what_diagnose_reads(idle: RealRay, tmp_path: Path) -> None:
    done = subprocess.run(
        [RAYDOCTOR, "collect", "--address", idle.address, "-o", str(tmp_path / "x.tar.gz")],
        env=idle.environment, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "x.tar.gz")
    with tarfile.open(tmp_path / "x.tar.gz") as tar:
        names = tar.getnames()
        about = json.load(tar.extractfile("raydoctor.json"))  # type: ignore[arg-type]
        clocks = json.load(tar.extractfile("live/live-clocks.json"))["rows"]  # type: ignore[arg-type]
    assert {"logs/raylet.out", "live/live-nodes.json", "live/live-daemons.json"} <= set(names)
    assert [row["ahead_s"] for row in clocks if row["kind"] == "node"] == [0.0]
    assert about["schema"] == "raydoctor/capture/1"
    assert about["cluster"]["gcs_address"] == idle.address
    again = subprocess.run(
        [RAYDOCTOR, "diagnose", str(tmp_path / "x.tar.gz")], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr


def forms(secret: str) -> set[bytes]:
    """How Python, JSON and C++ may write it."""
    return {secret.encode(), secret.encode("unicode_escape"), json.dumps(secret)[1:-1].encode()}


def test_secrets_stay_behind_and_a_pipe_may_take_the_archive(idle: RealRay) -> None:
    """Ray writes a runtime environment to its logs, and a driver's command to the list of jobs."""
    written = b"".join(p.read_bytes() for p in idle.session.rglob("logs/*") if p.is_file())
    assert any(form in written for form in forms(PASSWORD))
    data = subprocess.run(
        [RAYDOCTOR, "collect", "--address", idle.address, "-o", "-", "--anonymize"],
        env=idle.environment, capture_output=True, check=True, timeout=PATIENCE,
    ).stdout  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        data = b"".join(tar.extractfile(each).read() for each in tar if each.isfile())  # type: ignore[union-attr]
        names = tar.getnames()
    assert "raydoctor.json" in names
    assert [form for form in forms(PASSWORD) | forms(KEY) if form in data] == []
    assert b"<secret:" in data


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_and_a_needless_token_hinder_no_report(idle: RealRay, tmp_path: Path) -> None:
    program = (
        'mount -t tmpfs -o size=64k tmpfs "$1" && dd if=/dev/zero of="$1/x" bs=1k count=64 2>/dev/null; '
        'cd "$1" && export TMPDIR="$1" && shift && "$@"'
    )
    full = ["unshare", "-m", "sh", "-c", program, "sh", str(tmp_path)]
    command = [RAYDOCTOR, "diagnose", "--address", idle.address, "--format", "json"]
    done = subprocess.run(
        [*full, *command], env={**idle.environment, "RAY_AUTH_TOKEN": "a" * 64},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "a" * 64 not in done.stdout
    assert json.loads(done.stdout)["diagnoses"] == []
    refused = subprocess.run(
        [*full, RAYDOCTOR, "collect", "--address", idle.address], env=idle.environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "No space left on device" in refused.stderr
    assert refused.stderr.count("\n") <= 3


def test_the_kernel_log_may_be_forbidden(idle: RealRay) -> None:
    restricted = Path("/proc/sys/kernel/dmesg_restrict")
    if os.geteuid() != 0 or not restricted.exists() or restricted.read_text().strip() == "0":
        pytest.skip("every user may read it here, or none")
    done = subprocess.run(
        [RAYDOCTOR, "diagnose", "--address", idle.address, "--format", "json"],
        env=idle.environment, capture_output=True, text=True, check=False, preexec_fn=_without_capabilities,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout  # it is optional
    gaps = json.loads(done.stdout)["gaps"]
    assert [g["hint"] for g in gaps if g["what"] == "kernel log"]


def _without_capabilities() -> None:
    """Give up, for good, what reading the kernel's log takes."""
    prctl = ctypes.CDLL(None).prctl
    for capability in (_CAP_SYSLOG, _CAP_SYS_ADMIN):
        prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


PRINTS_AND_GOES_ON = """
import sys, time, traceback, ray
ray.init()
@ray.remote(num_cpus=0)
def load(): time.sleep(2)
loaded = load.remote()
try: ray.get(loaded, timeout=0.2)
except ray.exceptions.GetTimeoutError: traceback.print_exc()
ray.get(loaded)
print("ready", flush=True)
sys.stdin = open(sys.argv[1]); sys.stdin.read()
"""


def test_the_output_of_a_running_driver_is_read_and_missed_when_it_has_ended(
    idle: RealRay, tmp_path: Path
) -> None:
    os.mkfifo(pipe := tmp_path / "go")
    log = f"driver-{len(idle.drivers)}.txt"
    driver = idle.run(PRINTS_AND_GOES_ON, str(pipe), log=log)
    idle.wait_for("ready", log)
    time.sleep(1.5)
    reply = diagnose(idle)
    archive = tmp_path / "x.tar.gz"
    command = [RAYDOCTOR, "collect", "--address", idle.address, "-o", str(archive)]
    subprocess.run(command, env=idle.environment, check=True, capture_output=True, timeout=PATIENCE)
    pipe.write_text("")
    assert driver.wait(PATIENCE) == 0
    (found,) = (d for d in reply.report["diagnoses"] if d["rule"] == "get-timeout")
    assert {link["file"] for link in found["chain"]} >= {str(idle.folder / log)}
    assert "output of the driver" not in reply.gaps
    again = subprocess.run(
        [RAYDOCTOR, "diagnose", str(archive), "--format", "json"], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert "get-timeout" in [d["rule"] for d in json.loads(again.stdout)["diagnoses"]]
    assert "output of the driver" not in again.stdout
    until(lambda: f"output of the driver (pid {driver.pid})" in diagnose(idle).gaps)


@contextmanager
def running(ray: RealRay, program: str) -> Iterator[None]:
    """The program's driver, until the caller has looked. An interrupt ends it: a kill would be a finding."""
    driver = ray.run(program, log=(log := f"driver-{len(ray.drivers)}.txt"))
    try:
        ray.wait_for("ready", log)
        time.sleep(12)  # by then Ray itself would warn of a wait
        yield
    finally:
        driver.send_signal(signal.SIGINT)
        driver.wait(PATIENCE)


def test_work_is_not_starvation(idle: RealRay) -> None:
    """All CPUs are taken by work, and more waits."""
    with running(idle, BUSY):
        reply = diagnose(idle)
    assert reply.roots == []
    assert reply.seconds < LONGEST


def test_starvation_is_reported_with_and_without_a_dashboard_and_then_the_gcs(
    idle: RealRay,
) -> None:
    """All CPUs are taken by actors that do nothing, and tasks wait. The last test of this cluster: it is ended."""
    idle.run(STARVED, log="starved.txt")  # a driver whose GCS is gone does not end by an interrupt
    idle.wait_for("ready", "starved.txt")
    time.sleep(12)
    reply = diagnose(idle)
    assert reply.roots == ["cluster-starved"]
    assert "2 Simulator actors hold 2 of 2 CPUs" in reply.report["diagnoses"][0]["headline"]
    # Without a dashboard: the same, by the GCS itself.
    hold(idle)
    [cluster] = [c for c in discover.clusters() if c.gcs_address == idle.address]
    [board] = cluster.of("dashboard")
    os.kill(board.pid, signal.SIGKILL)
    time.sleep(1)
    reply = diagnose(idle)
    assert set(reply.roots) == {"cluster-starved", "dashboard-died"}
    assert reply.seconds < LONGEST
    [gcs] = idle.processes("gcs_server")
    gcs.kill()
    time.sleep(1)
    reply = diagnose(idle)
    assert reply.roots[0] == "gcs-died"
    assert reply.seconds < LONGEST
